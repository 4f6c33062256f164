"""The attacks and controls of the self-test, as `catalogue.txt` has them."""

import functools
from pathlib import Path
from typing import NamedTuple

ATTACK, CONTROL = "attack", "control"
_KEYS = frozenset({"run", "check", "then", "plain", "row", "unless", "bare", "end", "terminal", "seconds"})


class Trial(NamedTuple):
    """An attack, or a control: something that has to work.

    Attributes:
        concern: what it is about; the report has a table row for each.
        kind: "attack" or "control".
        name: in a few words.
        script: what runs in the sandbox; for Python, its first line is left out.
        python: whether that is Python with the names of `inside`, else it is sh(1).
        run: options that `paddock run` gets.
        check: sh(1) outside, afterwards: status 0 says that the attack had its effect, or that the control works.
        then: sh(1) outside once the sandbox has ended, where that is Paddock's: what its user does next.
        plain: the same without Paddock.
        row: of `policy.promises`; a backend that does not promise it is not blamed.
        unless: a backend that does not offer this, as the manual says.
        bare: "no" where it is not run without a sandbox.
        end: "kill" where the launcher is killed at the end.
        terminal: "yes" where it needs one.
        seconds: that it may take.
    """

    concern: str
    kind: str
    name: str
    script: str
    python: bool = False
    run: str = ""
    check: str = ""
    then: str = ""
    plain: str = ""
    row: str = ""
    unless: str = ""
    bare: str = ""
    end: str = ""
    terminal: str = ""
    seconds: str = "10"

    @property
    def alone(self) -> bool:
        """Whether it has a sandbox of its own."""
        return bool(self.at_border or self.end or self.terminal)

    @property
    def at_border(self) -> bool:
        """Whether its user does something afterwards: then it has a scratch area of its own, too."""
        return bool(self.then or self.plain)

    @property
    def group(self) -> object:
        """Trials with the same one share a scratch area. What works is not tried where attacks have been, and git's
        commands where nobody has changed a file."""
        return self if self.at_border else (self.concern == "git", self.kind, self.run, bool(self.end or self.terminal))


@functools.cache
def concerns() -> dict[str, str]:
    """What the attacks are about -> a sentence on it, in the order of the catalogue."""
    return {name: about for name, about, _ in _sections()}


@functools.cache
def trials() -> tuple[Trial, ...]:
    """All of them, in the order of the catalogue."""
    return tuple(_trial(name, block) for name, _, blocks in _sections() for block in blocks)


def _sections() -> list[tuple[str, str, list[str]]]:
    """(concern, sentence, what stands in a paragraph each) of the catalogue."""
    text = Path(__file__).with_name("catalogue.txt").read_text(encoding="utf-8")
    found = []
    for section in text.removeprefix("== ").split("\n== "):
        heading, *blocks = section.strip("\n").split("\n\n")
        name, _, about = heading.partition(": ")
        found.append((name, about, blocks))
    return found


def _trial(concern: str, block: str) -> Trial:
    first, *lines = block.split("\n")
    kind, _, name = first.partition(": ")
    assert kind in (ATTACK, CONTROL), first
    fields: dict[str, str] = {}
    while lines and (key := lines[0].partition(": ")[0]) in _KEYS:
        value = lines.pop(0).partition(": ")[2]
        fields[key] = f"{fields[key]}\n{value}" if key in fields else value
    python = lines[:1] == ["#python"]
    return Trial(concern, kind, name, "\n".join(lines[python:]), python, **fields)
