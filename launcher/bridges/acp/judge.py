"""May the client open this path for the agent? The Plan's answer, and the path in the form that is safe to open.

The client acts outside of the jail and with the user's own rights, so what it is asked for is judged by everything that
holds the agent itself: the path validator (symbolic links, submodules, exceptions), then the Plan's grants and limits
for the canonical path. Stricter than the jail where the jail shows something else at a path than the machine has there:
its private git directory, /proc, /dev, private temporary directories.

pydantic is imported with the first question, not before.
"""

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from policy import promises
from policy.plan import Plan, beneath
from policy.verdict import decide

if TYPE_CHECKING:
    from policy.sandbox import SandboxValidationResult, WorktreeSandbox
    from policy.sandbox_context import WorktreeSandboxContext

READ, WRITE = "READ", "WRITE"

_OTHER_INSIDE = ("/proc", "/sys", "/dev", "/run")
"""What a jail has there is not what the client has there, so no grant of the Plan speaks of the latter."""

_GIT = "nothing does: git in the jail has a directory of its own for what it has to write"
_OTHER = "nothing does: in the jail there is something else at this path than outside"


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
        """Prepares; nothing is imported or looked at yet.

        Args:
            plan: need not be bound: what lies behind its slots is nothing that the client is to open.
        """
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
            return self._denied(path, operation, f"Access denied: {path} is no regular file", ruling.path)
        return ruling

    def directory(self, path: str) -> Ruling:
        """Rules on a directory that the agent is to work in: it must exist, and be readable in the jail."""
        ruling = self._place(path, READ)
        if ruling.allowed and not os.path.isdir(ruling.path):
            return self._denied(path, READ, f"{path} is no directory", ruling.path)
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
            message = f"Access denied: {path} is something else in the jail than outside of it"
            return self._denied(path, operation, message, canonical)._replace(hint=_OTHER)
        if operation == WRITE and any(name.casefold() == ".git" for name in canonical.split("/")):
            # Where nothing can be mounted over it the jail cannot keep it either, but finds out what became of it.
            message = f"Access denied: {path} belongs to git: programmes outside of the jail obey what it says"
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

    root = plan.worktree
    empty = [path for path, source in plan.read_only if source == promises.UNPOPULATED]
    read_only = [path for path, _ in plan.read_only if beneath(path, root) and path not in empty]
    read_only += [path for path, mode in plan.handoff if mode == "protect"]
    return WorktreeSandboxContext(
        main_worktree=MainWorktreeContext(worktree_id=plan.worktree_id, worktree_path=Path(root)),
        read_only_paths=tuple(map(Path, read_only)),
        unpopulated_submodules=tuple(map(Path, empty)),
        denied_paths=tuple(Path(path) for path, _ in plan.denied if beneath(path, root)),
    )
