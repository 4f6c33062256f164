"""What the service counts since its start, for its metrics."""

from collections import Counter

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
        return [*lines, f'{name}_bucket{{le="+Inf"}} {self.number}', f"{name}_sum {self.sum:.6f}",
                f"{name}_count {self.number}"]  # fmt: skip


class Counters:
    """Of one supervisor."""

    def __init__(self) -> None:
        """All at zero."""
        self.created = 0
        self.denials = 0
        self.ended: Counter[str] = Counter()
        self.spawn = Histogram()
        self.ahead = 0

    def count(self, outcome: Outcome, spawn_seconds: float | None, *, ahead: bool) -> None:
        """One attempt has ended."""
        self.ended[str(outcome.reason)] += 1
        self.denials += outcome.denials
        if spawn_seconds is not None:
            self.spawn.add(spawn_seconds)
        self.ahead += ahead
