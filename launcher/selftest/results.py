"""What the rounds come to: a verdict for each trial and sandbox, as a table, as JSON, and as a page."""

import html
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from launcher.selftest.catalogue import ATTACK, CONTROL, Trial, concerns
from launcher.selftest.rounds import Outcome
from policy import promises

HELD, ESCAPED, NOT_PROMISED, WORKS, BROKEN = "held", "ESCAPED", "not promised", "works", "BROKEN"
NOT_POSSIBLE = "not possible here"
VERDICTS = {ATTACK: (HELD, ESCAPED, NOT_PROMISED, NOT_POSSIBLE), CONTROL: (WORKS, BROKEN, NOT_PROMISED, NOT_POSSIBLE)}
FAILED = (ESCAPED, BROKEN)


class Result(NamedTuple):
    """One sandbox.

    Attributes:
        name: for people.
        backend: of `policy.promises`; "" for a sandbox that is not Paddock's.
        outcomes: of every trial.
        bare: without a sandbox, of those that were tried so.
        seconds: that the round took.
    """

    name: str
    backend: str
    outcomes: dict[Trial, Outcome]
    bare: dict[Trial, Outcome]
    seconds: float

    def verdict(self, trial: Trial) -> str:
        """What became of a trial; what this machine does not allow anyway is no merit of the sandbox."""
        here = trial in self.bare and bool(self.bare[trial].effects)
        possible = here or trial not in self.bare
        if self.outcomes[trial].effects:
            return WORKS if trial.kind == CONTROL else NOT_PROMISED if self._exempt(trial) else ESCAPED
        if not possible:
            return NOT_POSSIBLE
        if trial.kind == CONTROL:
            return NOT_PROMISED if self._exempt(trial) else BROKEN
        return HELD

    def _exempt(self, trial: Trial) -> bool:
        """Whether the manual says itself that the backend does not hold this."""
        if not self.backend or not trial.row:
            return bool(self.backend) and trial.unless == self.backend
        return promises.verdict(trial.row, self.backend)[0] != promises.HELD

    def number(self, kind: str, verdict: str, concern: str = "") -> int:
        """How many trials of a kind (and about something) came to this verdict."""
        return sum(
            trial.kind == kind and concern in ("", trial.concern) and self.verdict(trial) == verdict
            for trial in self.outcomes
        )

    @property
    def whole(self) -> bool:
        """Whether every attack was held, and every control works."""
        return not any(self.verdict(trial) in FAILED for trial in self.outcomes)

    @property
    def summary(self) -> str:
        """One line on it."""
        parts = []
        for kind, known in VERDICTS.items():
            counts = {verdict: self.number(kind, verdict) for verdict in known}
            shown = [f"{count} {each}" for each, count in counts.items() if count or each in known[:2]]
            parts.append(f"{kind}s " + ", ".join(shown))
        return f"{self.name}: {'; '.join(parts)}; {self.seconds:.0f} s"


def tried(results: Sequence[Result]) -> tuple[Trial, ...]:
    """All trials, in the order of the catalogue."""
    return tuple(results[0].outcomes)


def by_concern(result: Result) -> Iterator[tuple[str, ...]]:
    """Rows of a table: a concern, and how many attacks and controls came to each verdict, as `HEADING` has them."""
    for concern in concerns():
        counts = [result.number(ATTACK, each, concern) for each in VERDICTS[ATTACK]]
        counts += [result.number(CONTROL, each, concern) for each in VERDICTS[CONTROL]]
        if any(counts):
            yield (concern, *(str(count) if count else "" for count in counts))


HEADING = (
    "CONCERN",
    *(f"{kind.upper()}S: {verdict.upper()}" if verdict == known[0] else verdict.upper()
      for kind, known in VERDICTS.items() for verdict in known),
)  # fmt: skip


def remarkable(result: Result) -> Iterator[tuple[str, str, str]]:
    """(verdict, concern and name, what was seen) of what failed, or is not promised."""
    for trial, outcome in result.outcomes.items():
        verdict = result.verdict(trial)
        if verdict in (*FAILED, NOT_PROMISED):
            seen = "; ".join(outcome.effects) or last_line(outcome.output)
            yield verdict, f"{trial.concern}: {trial.name}", seen


def last_line(text: str) -> str:
    """The last line of what a trial printed."""
    return (text.strip().splitlines() or ["it printed nothing"])[-1][:200]


def document(results: Sequence[Result]) -> dict[str, object]:
    """All of it, as JSON has it."""
    return {
        "whole": all(result.whole for result in results),
        "sandboxes": [
            {
                "name": result.name,
                "backend": result.backend or None,
                "whole": result.whole,
                "seconds": round(result.seconds, 1),
                "attacks": {each: result.number(ATTACK, each) for each in VERDICTS[ATTACK]},
                "controls": {each: result.number(CONTROL, each) for each in VERDICTS[CONTROL]},
                "trials": [
                    {
                        "concern": trial.concern,
                        "kind": trial.kind,
                        "name": trial.name,
                        "verdict": result.verdict(trial),
                        "effects": list(outcome.effects),
                        "without_sandbox": list(result.bare[trial].effects) if trial in result.bare else None,
                        "output": last_line(outcome.output),
                        "seconds": round(outcome.seconds, 2),
                    }
                    for trial, outcome in result.outcomes.items()
                ],
            }
            for result in results
        ],
    }


_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 72em; padding: 0 1em; color: #1c2024;
  background: #fff }
table { border-collapse: collapse; margin: 1em 0; width: 100% }
th, td { border-bottom: 1px solid #d8dce0; padding: .3em .6em; text-align: left; vertical-align: top }
th { font-weight: 600 } h2 { margin-top: 2em } code { font-size: .92em }
.held, .works { color: #116329 } .escaped, .broken { color: #b3261e; font-weight: 700 }
.not { color: #6a737d }
@media (prefers-color-scheme: dark) {
  body { color: #e6e8ea; background: #16191c } th, td { border-color: #363b40 }
  .held, .works { color: #6fce8b } .escaped, .broken { color: #ff8a80 } .not { color: #9aa2aa } }
"""


def page(results: Sequence[Result], machine: str) -> str:
    """A page of HTML: one table of all sandboxes, then every trial.

    Args:
        results: of each sandbox.
        machine: what it was made on, in a line.
    """
    lines = [
        "<!doctype html>", '<html lang="en"><head><meta charset="utf-8"><title>paddock selftest</title>',
        '<meta name="viewport" content="width=device-width">', f"<style>{_STYLE}</style></head><body>",
        "<h1>paddock selftest</h1>", f"<p>{_text(time.strftime('%Y-%m-%d %H:%M'))}, {_text(machine)}</p>",
        _table(("sandbox", *(f"{kind}s: {each}" for kind, known in VERDICTS.items() for each in known), "seconds"),
               map(_sums, results)),
    ]  # fmt: skip
    every = tried(results)
    for concern, about in concerns().items():
        rows = [
            (trial.kind, trial.name, *(_cell(result, trial) for result in results))
            for trial in every
            if trial.concern == concern
        ]
        if rows:
            lines += [f"<h2>{_text(concern)}</h2>", f"<p>{_text(about)}</p>"]
            lines.append(_table(("", "", *(result.name for result in results)), rows))
    return "\n".join([*lines, "</body></html>", ""])


def _sums(result: Result) -> tuple[str, ...]:
    counts = [result.number(kind, each) for kind, known in VERDICTS.items() for each in known]
    return (result.name, *map(str, counts), f"{result.seconds:.0f}")


def _cell(result: Result, trial: Trial) -> str:
    effects = "; ".join(result.outcomes[trial].effects)
    verdict = result.verdict(trial)
    return f"{verdict}: {effects}" if effects and verdict != WORKS else verdict


def _table(heading: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f"<th>{_text(cell)}</th>" for cell in heading)
    body = "\n".join("<tr>" + "".join(map(_column, row)) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>\n{body}\n</table>"


def _column(cell: str) -> str:
    first = cell.partition(":")[0].partition(" ")[0].lower()
    shade = f' class="{first}"' if first in ("held", "escaped", "works", "broken", "not") else ""
    return f"<td{shade}>{_text(cell)}</td>"


def _text(text: str) -> str:
    return html.escape("".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text))
