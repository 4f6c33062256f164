"""What is wrong with the service at present: raised by whoever finds it, cleared by whoever finds it mended.

`GET /v1/health` and `paddock status` list the conditions; as long as there is one, the service is degraded.
"""

import logging
import time
from collections.abc import Callable

from launcher.service.schema import Condition

log = logging.getLogger("paddock.service")

_MOST_LISTED = 100


class Conditions:
    """The conditions of one service, by id and subject. Used from the service's one thread.

    Attributes:
        changed: called with a condition, and whether it was raised just now; None for nobody.
    """

    def __init__(self) -> None:
        """Nothing is wrong yet."""
        self._raised: dict[tuple[str, str], Condition] = {}
        self.changed: Callable[[Condition, bool], None] | None = None

    def raise_(self, name: str, what: str, hint: str, subject: str = "") -> None:
        """Raises a condition, or renews its text.

        Args:
            name: stable identifier, in kebab-case.
            what: is wrong, for people.
            hint: what to do.
            subject: tells conditions of one name apart: a worktree, a directory.
        """
        known = self._raised.get((name, subject))
        since = time.time() if known is None else known.since
        raised = Condition(id=name, subject=subject, what=what, since=since, hint=hint)
        self._raised[name, subject] = raised
        if known is None:
            log.warning("degraded: %s (%s)", what, hint, extra={"fields": {"condition": name}})
            self._tell(raised, now=True)

    def clear(self, name: str, subject: str = "") -> None:
        """Takes a condition back, if it was raised."""
        known = self._raised.pop((name, subject), None)
        if known is not None:
            log.info("mended: %s", known.what, extra={"fields": {"condition": name}})
            self._tell(known, now=False)

    def _tell(self, condition: Condition, *, now: bool) -> None:
        if self.changed is not None:
            self.changed(condition, now)

    def raised(self, name: str, subject: str = "") -> bool:
        """Whether a condition is raised."""
        return (name, subject) in self._raised

    def names(self) -> list[str]:
        """The ids of what is wrong, each once."""
        return sorted({name for name, _ in self._raised})

    def listed(self) -> list[Condition]:
        """What is wrong, the oldest first, not more of it than anybody reads."""
        return sorted(self._raised.values(), key=lambda each: each.since)[:_MOST_LISTED]

    def number(self, name: str) -> int:
        """How many conditions of a name there are."""
        return sum(1 for known, _ in self._raised if known == name)
