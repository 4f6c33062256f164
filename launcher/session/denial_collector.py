"""What a session was refused: gathered while it runs, kept in its ledger, summed up at its end.

Loaded only where there is something to hear: with the right to read the kernel's audit, with the guard, with the proxy.
On the launch path then: what is costly is imported with the first record.
"""

import time

from launcher.jail import processes
from launcher.lean import os
from policy.errors import Refusal, printable
from policy.plan import Plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.ledger.audit import Reader
    from launcher.ledger.denial import Denial
    from launcher.ledger.ledgers import Ledger
    from launcher.session.teach import Wants

_SHOWN = 5
_SETTLE = 0.1
_AWAIT_ENDS = 0.3
_PROXY_LOG = "egress.jsonl"
"""As `launcher.egress.log.FILE`."""

_HANDED_ON = 3.0
"""Seconds for a busy service to hand on what the kernel has told it, at most."""


class Denials:
    """Of one session. To be made before the jail is started; `close` ends it."""

    def __init__(self, state: str, session: str, directory: str, plan: Plan, audit_fd: int,
                 wants: "Wants | None" = None, started: int = 0, *, handed_on: bool = False) -> None:  # fmt: skip
        """Prepares; nothing is written before something was refused.

        Args:
            directory: the session's own directory, where the proxy writes.
            plan: bound.
            audit_fd: from `launcher.ledger.audit_socket.listening`, owned by this object from now on; -1 for none.
            wants: told what the command wants, in a session that is watched.
            started: nanoseconds since the epoch that name the ledger; 0 for now.
            handed_on: a service hands the audit on (`launcher.ledger.audit_socket`), so that records come later.
        """
        self._handed_on = handed_on
        self._wants = wants
        if wants is not None:
            wants.plan = plan
        self._state = state
        self._session = session
        self._directory = directory
        self._plan = plan
        self._started = started or time.time_ns()
        self._init = 0
        self._reader: Reader | None = None
        self._ledger: Ledger | None = None
        self._trouble = ""
        self._lost = 0
        self._uncounted = False
        self.fd = audit_fd
        """The audit socket, to be polled for reading; -1 for none."""

    def attach(self, init: int) -> None:
        """Tells the process id of the jail's init, whose descendants are the session."""
        self._init = init

    def hear(self) -> None:
        """Takes what has arrived at `fd`."""
        if self.fd != -1:
            self._audit().drain()

    def observe(self, payload: bytes) -> None:
        """Takes a message of the guard's (`launcher.jail.reports`, DENIED)."""
        import marshal

        from launcher.ledger import denial

        self.add(denial.of_guard(time.time(), marshal.loads(payload)))

    def wanted(self, payload: bytes) -> None:
        """Takes a message of the watch's (`launcher.jail.reports`, WANTED)."""
        if self._wants is not None:
            import marshal

            self._wants.add(marshal.loads(payload))

    def add(self, found: "Denial") -> None:
        """Takes one denial."""
        if found.layer == "seccomp":
            found = found._replace(target=_call_name(found.target))
        try:
            self.ledger().add(found)
        except OSError as error:
            self._trouble = self._trouble or f"the ledger cannot be written: {error.strerror}"

    @property
    def total(self) -> int:
        """How many denials are known of, lost ones included."""
        return self._lost + (self._ledger.total if self._ledger is not None else 0)

    def ledger(self) -> "Ledger":
        """The session's ledger."""
        if self._ledger is None:
            from launcher.ledger import ledgers

            facts = ledgers.facts_of(self._session, self._plan)
            self._ledger = ledgers.Ledger(
                ledgers.path_for(self._state, self._session, self._started), self._plan, facts
            )
        return self._ledger

    def close(self) -> list[str]:
        """Takes what was caused until now, writes the last lines, closes. The jail has ended; its directory lives.

        Returns:
            What went wrong with it, for people: the command's end does not depend on its ledger.
        """
        reader = self._audit() if self.fd != -1 else None
        try:
            if reader is not None:
                self._settle(reader)
            self._from_proxy()
            if self._ledger is not None or self._lost:
                from launcher.ledger import ledgers

                self.ledger().end(self._lost, tuple(self._notes(reader)))
                ledgers.prune(self._state, time.time())
        except (OSError, Refusal) as error:
            self._trouble = self._trouble or f"the ledger is not complete: {error}"
        finally:
            if reader is not None:
                reader.close()
            if self._ledger is not None:
                self._ledger.close()
        return [self._trouble] if self._trouble else []

    def _settle(self, reader: "Reader") -> None:
        reader.settle(_HANDED_ON if self._handed_on else _SETTLE)
        if reader.overflows or self._ledger is not None or self._handed_on:
            # The kernel tells the number of all denials a moment after the last process has gone.
            reader.await_ends(_HANDED_ON if self._handed_on else _AWAIT_ENDS)
            self._uncounted = not reader.whole
            self._lost += reader.lost

    def summary(self, *, quiet: bool) -> list[str]:
        """Lines for people at a terminal, [] when nothing was refused or nobody would read them."""
        if self._ledger is None or quiet or not os.isatty(2):
            return []
        from launcher.ledger.ledgers import one_line

        kinds = [(found, seen) for found, seen in self._ledger.kinds if not found.harmless]
        total = self._ledger.total - sum(seen for found, seen in self._ledger.kinds if found.harmless)
        lines = list(dict.fromkeys(each.hint for each, _ in self._ledger.kinds if each.harmless and each.host))[:_SHOWN]
        if not total:
            return [printable(line) for line in lines]
        ways = f"in {len(kinds)} ways" if len(kinds) > 1 else "in one way"
        lines.append(f"denied {total} times, {ways}" if total > 1 else "denied once")
        lines += [f"  {one_line(found, seen, self._plan)}" for found, seen in kinds[:_SHOWN]]
        if len(kinds) > _SHOWN:
            lines.append(f"  and {len(kinds) - _SHOWN} more ways")
        if self._lost:
            lost = "1 denial was" if self._lost == 1 else f"{self._lost} denials were"
            lines.append(f"  {lost} lost: there were too many at once")
        lines.append(f"  more: paddock denials {self._session}")
        return [printable(line) for line in lines]

    def _audit(self) -> "Reader":
        if self._reader is None:
            from launcher.ledger import audit

            self._reader = audit.Reader(self.fd, self._belongs, self.add)
        return self._reader

    def _notes(self, reader: "Reader | None") -> list[str]:
        from launcher.ledger import ledgers

        notes = ledgers.missing_kinds(self._plan.backend, heard=reader is not None and reader.heard)
        if reader is not None and reader.unknown:
            notes.append(f"{reader.unknown} refused system calls whose process had ended: perhaps this session's")
        if self._uncounted:
            notes.append("the kernel's own count did not come: there may have been more denials")
        if reader is not None and reader.overflows:
            notes.append("the kernel's queue overflowed: there were too many records at once")
        return notes

    def _from_proxy(self) -> None:
        path = f"{self._directory}/{_PROXY_LOG}"
        if self._plan.net != "proxy" or not os.path.exists(path):
            return
        with open(path, "rb") as file:
            content = file.read()
        # A client's quotation marks are escaped there. Importing what JSON takes is half of a short command's launch.
        if all(word not in content for word in (b'"deny"', b'"lost"', b'"asked: ')):
            return
        from launcher.ledger import ledgers

        refused, lost = ledgers.read_proxy_log(path)
        self._lost += lost
        for found in refused:
            self.add(found)
        for answer in ledgers.read_answers(path):
            self.ledger().note({"kind": "decision", **answer})

    def _belongs(self, pid: int) -> bool:
        """Whether a process is the jail's init or lives below it."""
        return processes.is_below(pid, self._init)


def _call_name(told: str) -> str:
    """``NUMBER of ARCHITECTURE`` as the call's name; another machine's calls keep their numbers."""
    from launcher.jail import syscall_tables, syscalls

    number, _, architecture = told.partition(" of ")
    if architecture != f"{syscall_tables.AUDIT_ARCH[syscalls.MACHINE]:x}":
        return f"{number} of another instruction set"
    names = (*syscall_tables.UNIFIED, *syscall_tables.OLDER)
    found = [name for name in names if str(syscall_tables.number(name, syscalls.MACHINE)) == number]
    return found[0] if found else number
