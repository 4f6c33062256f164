"""The record of what the bridge decided, in the session's ledger; what it refused is shown by `paddock denials`."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from launcher.session import messages
from policy.plan import Plan

if TYPE_CHECKING:
    from launcher.ledger.denial import Denial

MOST_KINDS = 2000
"""Kinds of decisions that are written down for one session, so that no agent fills the disk with them."""

_LONGEST = 4096  # PATH_MAX


class Audit:
    """Writes decisions of one session. A decision that repeats is written once."""

    def __init__(self, path: str, plan: Plan, facts: dict[str, object]) -> None:
        """Prepares; nothing is written yet.

        Args:
            path: the session's ledger (`launcher.ledger.store.path_for`).
            plan: of the session; says what would allow what was refused.
            facts: of the session, for the ledger's first line.
        """
        self._path = path
        self._plan = plan
        self._facts = facts
        self._known: set[tuple[str, ...]] = set()
        self._said: set[str] = set()

    def allowed(self, method: str, subject: str, detail: str = "") -> None:
        """Something passed.

        Args:
            method: of the protocol.
            subject: the path, command or address.
            detail: in what form, when it was changed.
        """
        method, subject, detail = _cut(method), _cut(subject), _cut(detail)
        if self._is_new("allowed", method, subject, detail):
            from launcher.ledger import record

            verdict = {"kind": "decision", "time": record.stamp(time.time()), "method": method, "subject": subject}
            self._write(
                lambda: record.note(self._path, self._facts, {**verdict, "verdict": "allowed", "detail": detail})
            )

    def refused(
        self,
        method: str,
        operation: str,
        *,
        path: str = "",
        host: str = "",
        port: int = 0,
        target: str = "",
        hint: str = "",
    ) -> None:
        """Something did not pass.

        Args:
            method: of the protocol.
            operation: in words.
            path: canonical where there is one.
            host: with `port`, where it was about a server.
            port: 0 when it is not known.
            target: what it was about in other cases, or why, for people.
            hint: what would allow it, where path or host do not say it.
        """
        method, operation, path, host, target = map(_cut, (method, operation, path, host, target))
        if self._is_new("refused", method, operation, path, host, str(port), target):
            from launcher.ledger import denial, record

            found: Denial = denial.Denial(
                time.time(),
                denial.BRIDGE,
                operation,
                path,
                host,
                port,
                target,
                (method,),
                wanted="w" if operation == "write" else "r",
                hint=hint,
            )
            self._write(lambda: record.append(self._path, self._plan, found, self._facts))

    def _is_new(self, *key: str) -> bool:
        if key in self._known:
            return False
        if len(self._known) >= MOST_KINDS:
            self._say_once("further decisions are not written to the ledger: there are too many kinds")
            return False
        self._known.add(key)
        return True

    def _write(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            self._say_once(f"the ledger cannot be written: {error.strerror}")

    def _say_once(self, text: str) -> None:
        """Decisions hold without their record; that it is missing is said."""
        if text not in self._said:
            self._said.add(text)
            messages.say(f"paddock: {text}")


def _cut(text: str) -> str:
    """`text` in a length that a name can have; agents may send more."""
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
