"""The bounds that every session has unless it lifts them: shares of the machine, looked at once a session lasts.

An agent's memory bomb, or a log that grows without end, must not take the user's desktop with it. The bounds are wide,
so a short command is over before anybody looks, and costs nothing.

Launch path: `os` and `time`; the watchdog itself is loaded at the first look.
"""

import time

from launcher.lean import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.session.watchdog import Watchdog

FIRST_LOOK = 0.2
"""Seconds of a session before anything is looked at."""
SLOW = 1.0
"""Seconds between looks at a jail that uses little."""


class Generous:
    """Stands in a watchdog's place (`launcher.session.watchdog.Watchdog`), and beside that of the session's own limits.

    Attributes:
        ended: the bound or limit that was passed; "" as long as none was.
        passed: the same, of the bounds alone.
    """

    def __init__(
        self, shares: dict[str, int], paths: tuple[str, ...], *, scratch: bool, other: "Watchdog | None"
    ) -> None:
        """Prepares; nothing is looked at yet.

        Args:
            shares: "memory" and "disk", in percent of the machine's memory and of what is free on the disks of `paths`.
            scratch: the jail has a private /tmp that takes memory.
        """
        self._shares = shares
        self._paths = paths
        self._scratch = scratch
        self._other = other
        self._watch: Watchdog | None = None
        self._first = 0
        self._begin = 0.0
        self._since = time.time_ns()
        self._limits: dict[str, int] = {}
        self._over = False
        self.ended = self.passed = ""

    def over(self) -> None:
        """The jail is empty, and its directories go: there is nothing to look at any more."""
        self._over = True

    def attach(self, first: int) -> None:
        """Begins to watch what is below the process `first`, a child of this one that has not been reaped."""
        self._first = first
        self._begin = time.monotonic() + FIRST_LOOK
        if self._other is not None:
            self._other.attach(first)

    def look(self) -> float:
        """Looks, if it is time. Returns the seconds until the next time, 0 when the jail is to be ended."""
        if self._over:
            return SLOW
        other = self._other.look() if self._other is not None else SLOW
        if self._other is not None and self._other.ended:
            self.ended = self._other.ended
            return 0.0
        rest = self._begin - time.monotonic()
        if rest > 0:
            return min(other, rest)
        try:
            rest = self._looked()
        except (OSError, ImportError):  # while Paddock is being upgraded
            return min(other, SLOW)  # what cannot be asked just now ends no session
        self.ended = self.passed = self._watch.ended if self._watch is not None else ""
        return min(other, rest)

    def _looked(self) -> float:
        if self._watch is None:
            from launcher.session.watchdog import Watchdog

            self._limits = {name: self._bytes(name) for name in self._shares}
            self._watch = Watchdog(
                self._limits, self._paths, scratch=self._scratch, time_used=_unknown, since=self._since, slow=SLOW
            )
            self._watch.attach(self._first)
        return self._watch.look()

    def report_lines(self) -> list[str]:
        """What the user should be told at the end."""
        if not self.passed:
            return []
        amount = f"{self._limits[self.passed] / (1 << 30):.1f} GiB"
        share = self._shares[self.passed]
        what = {
            "memory": f"{amount} of memory, {share}% of the machine's",
            "disk": f"{amount} of disk, {share}% of what was free, in its worktree and private directories",
        }[self.passed]
        another = f"--limit {self.passed}=SIZE sets another limit, {self.passed}=none lifts it"
        return [f"the jail was ended: it used more than {what} ({another})"]

    def _bytes(self, name: str) -> int:
        if name == "memory":
            return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * self._shares[name] // 100
        from launcher.session.watchdog import disks

        free = sum(each.f_bavail * each.f_frsize for each in disks(self._paths).values())
        return 1 + free * self._shares[name] // 100


def _unknown() -> None:
    """Processor time has no such bound."""
