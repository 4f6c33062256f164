"""What the service counts since its start, for its metrics."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from launcher.service.models import Outcome

_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Histogram:
    """How long something took: counts per bucket, since the service's start."""

    def __init__(self) -> None:
        """Empty."""
        self._counts = [0] * len(_BUCKETS)
        self.number = 0
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        """Counts one."""
        self.number += 1
        self.sum += seconds
        for place, bound in enumerate(_BUCKETS):
            if seconds <= bound:
                self._counts[place] += 1

    def lines(self, name: str, text: str) -> list[str]:
        """In the text format."""
        lines = [f"# HELP {name} {text}", f"# TYPE {name} histogram"]
        lines += [
            f'{name}_bucket{{le="{bound:g}"}} {count}' for bound, count in zip(_BUCKETS, self._counts, strict=True)
        ]
        return [*lines, f'{name}_bucket{{le="+Inf"}} {self.number}', f"{name}_sum {self.sum!r}",
                f"{name}_count {self.number}"]  # fmt: skip


class Counters:
    """Of one supervisor."""

    def __init__(self) -> None:
        """All at zero."""
        self.created = 0
        self.denials = 0
        self.ended: Counter[str] = Counter()
        self.harvests: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.spawn = Histogram()
        self.ahead = 0

    def spawned(self, seconds: float, *, ahead: bool) -> None:
        """One command was executed."""
        self.spawn.add(seconds)
        self.ahead += ahead

    def count(self, outcome: Outcome) -> None:
        """One attempt has ended."""
        self.ended[str(outcome.reason)] += 1
        self.denials += outcome.denials
        harvest = harvest_of(outcome)
        if harvest is not None:
            self.harvested(harvest)
        if outcome.refusal is not None and outcome.refusal is not harvest:
            self.refused(outcome.refusal)

    def harvested(self, harvest: Mapping[str, Any]) -> None:
        """A harvest has come to its end.

        Args:
            harvest: its result, or the Refusal of it.
        """
        self.harvests[result_of(harvest)] += 1
        if "errorType" in harvest:
            self.refused(harvest)

    def refused(self, refusal: Mapping[str, Any]) -> None:
        """A request, a session or a harvest was refused.

        Args:
            refusal: `Refusal.as_dict`.
        """
        self.refusals[str(refusal["errorType"])] += 1


def harvest_of(outcome: Outcome) -> dict[str, Any] | None:
    """What became of the commits of an attempt; None when there was nothing to harvest.

    A strict hand-off that is refused is the refusal of the whole session.
    """
    if outcome.refusal is not None and outcome.refusal.get("errorType") == "handoff-strict":
        return outcome.refusal
    return outcome.harvest


def result_of(harvest: Mapping[str, Any]) -> str:
    """A harvest's result in one word."""
    return "refused" if "errorType" in harvest else str(harvest.get("state") or "nothing")
