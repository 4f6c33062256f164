"""The rules of one bridge: its choices, the judge of paths, and the log of what was decided by them.

With `--fs editor` the client acts outside of the jail and with the user's own rights, so what it is asked for is judged
by everything that holds the agent itself: the path validator (symbolic links, submodules, exceptions), then the Plan's
grants and limits for the canonical path. Stricter than the jail where the jail shows something else at a path than the
machine has there: its private git directory, /proc, /dev, private temporary directories.

pydantic is imported with the first question, not before.
"""

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from launcher.session import messages
from policy.plan import Plan, beneath
from policy.verdict import decide, exceptions

if TYPE_CHECKING:
    from launcher.ledger.denial import Denial
    from policy.sandbox import SandboxValidationResult, WorktreeSandbox
    from policy.sandbox_context import WorktreeSandboxContext

READ, WRITE = "READ", "WRITE"

_OTHER_INSIDE = ("/proc", "/sys", "/dev", "/run")
"""What a jail has there is not what the client has there, so no grant of the Plan speaks of the latter."""

_GIT = "nothing needs to: git in the jail writes to a directory of its own"
_OTHER = "no option does: this path is something else in the jail than outside"


class Ruling(NamedTuple):
    """An answer.

    Attributes:
        path: canonical path to be opened; "" when it must not be.
        message: why not, for people and models; "" when allowed.
        data: the error response of the specification (contracts.md, "Error Response Format"); {} when allowed.
        seen: the canonical path, or the path as it was given: for the log.
        hint: what would allow it, where the Plan alone cannot say; for people.
    """

    path: str
    message: str
    data: dict[str, Any]
    seen: str
    hint: str = ""

    @property
    def allowed(self) -> bool:
        """Whether the path may be opened."""
        return not self.message


class Judge:
    """Rules on paths for one Plan."""

    def __init__(self, plan: Plan) -> None:
        """Prepares; nothing is imported or looked at yet."""
        self._plan = plan
        self._context: WorktreeSandboxContext | None = None
        self._sandbox: WorktreeSandbox | None = None
        own = tuple(where for where in _OTHER_INSIDE if not beneath(plan.worktree, where))
        self._elsewhere = (*own, *(path for _, path, _ in plan.binds))

    @property
    def context(self) -> "WorktreeSandboxContext":
        """The agent's boundaries as the validator wants them: the worktree, and the Plan's exceptions in it."""
        if self._context is None:
            self._context = _context(self._plan)
        return self._context

    def file(self, path: str, operation: str) -> Ruling:
        """Rules on a file that the client is to read or write.

        Args:
            path: as the agent gave it; ACP demands an absolute one.
            operation: `READ` or `WRITE`.
        """
        ruling = self._place(path, operation)
        if ruling.allowed and not _is_file_or_absent(ruling.path):
            return self._denied(path, operation, f"Access denied: {path} is not a regular file", ruling.path)
        return ruling

    def directory(self, path: str) -> Ruling:
        """Rules on a directory that the agent is to work in: it must exist, and be readable in the jail."""
        ruling = self._place(path, READ)
        if ruling.allowed and not os.path.isdir(ruling.path):
            return self._denied(path, READ, f"{path} is not a directory", ruling.path)
        return ruling

    def _place(self, path: str, operation: str) -> Ruling:
        from policy.sandbox import WorktreeSandbox
        from policy.violation import Reason

        if not path.startswith("/"):
            return self._denied(path, operation, f"Access denied: {path!r} is not an absolute path", "")
        if self._sandbox is None:
            self._sandbox = WorktreeSandbox()
        found = self._sandbox.validate_in_context(path, self.context, operation)
        canonical = found.normalized_path or ""
        if not _is_unicode(path) or not _is_unicode(canonical):
            # Whoever reads the JSON would open another name than the one that was looked at.
            return self._denied(path, operation, f"Access denied: {path!r} is not Unicode", canonical)
        if not found.allowed and found.reason is not Reason.OUTSIDE:
            return _refused(found, canonical)
        if any(beneath(canonical, where) for where in self._elsewhere):
            message = f"Access denied: {path} is something else in the jail than outside"
            return self._denied(path, operation, message, canonical)._replace(hint=_OTHER)
        if operation == WRITE and any(name.casefold() == ".git" for name in canonical.split("/")):
            # Where nothing can be mounted over it the jail cannot keep it either, but finds out what became of it.
            message = f"Access denied: {path} belongs to git: programmes outside the jail obey it"
            return self._denied(path, operation, message, canonical)._replace(hint=_GIT)
        if ("w" if operation == WRITE else "r") not in decide(self._plan, canonical).access:
            if not found.allowed:
                return _refused(found, canonical)
            message = f"Access denied: {path} is not granted for this by the plan of the jail"
            return self._denied(path, operation, message, canonical)
        return Ruling(canonical, "", {}, canonical)

    def _denied(self, path: str, operation: str, message: str, canonical: str) -> Ruling:
        from policy.sandbox import SandboxValidationResult

        return _refused(
            SandboxValidationResult.deny(path, self._plan.worktree, operation, _printable(message)), canonical
        )


def _refused(found: "SandboxValidationResult", canonical: str) -> Ruling:
    import json

    data = json.loads(found.to_error_json())
    return Ruling("", str(data["message"]), data, canonical or found.attempted_path or "")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _printable(message: str) -> str:
    from policy.errors import printable

    return printable(message if len(message) < 1024 else message[:1000] + "...")


def _is_file_or_absent(path: str) -> bool:
    """Whether `path` names a regular file or nothing: a pipe would hold the client up, a device would do worse."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _context(plan: Plan) -> "WorktreeSandboxContext":
    from policy.sandbox_context import MainWorktreeContext, WorktreeSandboxContext

    found = exceptions(plan)
    read_only = dict.fromkeys((*found.read_only, *(path for path, mode in plan.handoff if mode == "protect")))
    return WorktreeSandboxContext(
        main_worktree=MainWorktreeContext(worktree_id=plan.worktree_id, worktree_path=Path(plan.worktree)),
        read_only_paths=tuple(map(Path, read_only)),
        writable_paths=tuple(map(Path, found.writable)),
        unpopulated_submodules=tuple(map(Path, found.unpopulated)),
        denied_paths=tuple(Path(path) for path, _ in found.denied),
    )


MOST_KINDS = 2000
"""Kinds of decisions that are written down for one session, so that no agent fills the disk with them."""

_LONGEST = 4096  # PATH_MAX


class Decisions:
    """Writes decisions of one session. A decision that repeats is written once."""

    def __init__(self, path: str, plan: Plan, facts: dict[str, object]) -> None:
        """Prepares; nothing is written yet.

        Args:
            path: the session's ledger (`launcher.ledger.ledgers.path_for`).
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
            subject: the path, command or address.
            detail: in what form, when it was changed.
        """
        method, subject, detail = _cut(method), _cut(subject), _cut(detail)
        if self._is_new("allowed", method, subject, detail):
            from launcher.ledger import ledgers

            verdict = {"kind": "decision", "time": ledgers.stamp(time.time()), "method": method, "subject": subject}
            self._write(
                lambda: ledgers.note(self._path, self._facts, {**verdict, "verdict": "allowed", "detail": detail})
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
            path: canonical where there is one.
            host: with `port`, where it was about a server.
            port: 0 when it is not known.
            target: what it was about in other cases, or why, for people.
            hint: what would allow it, where path or host do not say it.
        """
        method, operation, path, host, target = map(_cut, (method, operation, path, host, target))
        if self._is_new("refused", method, operation, path, host, str(port), target):
            from launcher.ledger import denial, ledgers

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
            self._write(lambda: ledgers.append(self._path, self._plan, found, self._facts))

    def _is_new(self, *key: str) -> bool:
        if key in self._known:
            return False
        if len(self._known) >= MOST_KINDS:
            self._say_once("further decisions are not written to the ledger: there are too many kinds")
            return False
        self._known.add(key)
        return True

    def _write(self, write: Callable[[], bool]) -> None:
        try:
            if not write():
                self._say_once("further decisions are not written to the ledger: it is full")
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


EDITOR, JAIL, STRIP = "editor", "jail", "strip"
"""Who carries out what an agent asks its client for: the client, the bridge in the jail, nobody."""


class Choices(NamedTuple):
    """What a bridge does.

    Attributes:
        cwd: with sessions outside the worktree: `check` or `map`.
        mcp: with MCP servers of the client: `jail` or `refuse`.
        files: with requests for files: `EDITOR`, `JAIL` or `STRIP`.
        terminals: with requests for terminals: `JAIL` or `STRIP`.
    """

    cwd: str = "check"
    mcp: str = "jail"
    files: str = EDITOR
    terminals: str = JAIL


class Rules:
    """Everything that both directions ask: the Plan, the user's choices, the judge of paths, the log of decisions."""

    def __init__(self, plan: Plan, choices: Choices, decisions: Decisions) -> None:
        self.plan = plan
        self.choices = choices
        self.decisions = decisions
        self.judge = Judge(plan)
