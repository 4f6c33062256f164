"""What one worker may touch: from a path as it was given to a place below an open root."""

import os
from types import TracebackType
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from launcher.bridges.files.tool_calls import PathDenied
from launcher.jail import landlock
from policy.handoff import PROTECT, Patterns
from policy.plan import beneath
from policy.sandbox import WorktreeSandbox
from policy.sandbox_context import WorktreeSandboxContext
from policy.violation import Operation, Reason, SandboxValidationResult, message_for

_PROTECTED = (
    "Access denied: {path} is a file that other tools execute or obey, and is protected inside worktree {root};"
    " ask the user to change it"
)


class Scope(BaseModel):
    """The boundaries that a worker is started with.

    Attributes:
        context: the session's; None is the legacy behaviour of the mode `compatible`: no boundaries at all.
        handoff: hand-off patterns and how each is treated, as in a Plan.
        base: where relative paths start when there is no context.
        narrow: whether the worker has Landlock hold it to the worktree, or else serves nobody. Whoever makes the scope
            decides, outside of the jail: nothing in there can make the kernel look as if it had no Landlock.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    context: WorktreeSandboxContext | None
    handoff: tuple[tuple[str, str], ...] = ()
    base: str = "/"
    narrow: bool = Field(default_factory=lambda: landlock.abi() > 0)

    @property
    def root(self) -> str:
        """The boundary, as errors name it; empty without one."""
        return "" if self.context is None else str(self.context.worktree_path)


class Place:
    """Where a call acts: below a root directory that is open. A context manager, which closes it.

    Attributes:
        root: descriptor of the root.
        path: relative to it, without symbolic links and ``..``; empty for the root itself.
        shown: the path as it was given.
    """

    __slots__ = ("path", "root", "shown")

    def __init__(self, root: int, path: str, shown: str) -> None:
        self.root = root
        self.path = path
        self.shown = shown

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.root)

    @property
    def folder(self) -> str:
        """The directory that holds it."""
        return self.path.rpartition("/")[0]

    @property
    def name(self) -> str:
        """Its name there."""
        return self.path.rpartition("/")[2]


class Gate:
    """Lets paths through, or denies them."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self._box = WorktreeSandbox()
        self._patterns = Patterns(scope.handoff)
        context = scope.context
        self.has_exceptions = context is not None and bool(
            context.ungranted_submodules or context.denied_paths or context.freeze_root
        )

    def place(self, path: str, operation: Operation) -> Place:
        """The place that `path` names, open for `operation`.

        Raises:
            PathDenied: it is outside, or protected.
            OSError: the root directory cannot be opened.
        """
        context = self.scope.context
        if context is None:
            return self._legacy(path)
        verdict = self._box.validate_in_context(path, context, operation)
        found = verdict.normalized_path
        if not verdict.allowed or found is None:
            raise PathDenied(self._explained(verdict, path, context))
        top = self.scope.root
        root = os.open(top, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            canonical = os.readlink(f"/proc/self/fd/{root}")
            if not beneath(found, canonical):  # another directory has taken the root's place since
                raise self._denied(path, operation, Reason.ROOT_REPLACED)
            inside = found[len(canonical) :].lstrip("/")
            if operation.mutates:
                self._guard(path, inside, operation)
        except BaseException:
            os.close(root)
            raise
        return Place(root, inside, path)

    def open_to(self, path: str, operation: Operation) -> bool:
        """Whether `path`, relative to the root, may be used; for walks, where each denial is only left out."""
        context = self.scope.context
        return context is None or self._box.validate_in_context(path, context, operation).allowed

    def swapped(self, path: str, operation: Operation) -> PathDenied:
        """The denial of a path on which a symbolic link has appeared between the verdict and the opening."""
        return self._denied(
            path, operation, Reason.UNREACHABLE, "a symbolic link appeared in its path while it was being opened"
        )

    def _explained(
        self, verdict: SandboxValidationResult, path: str, context: WorktreeSandboxContext
    ) -> SandboxValidationResult:
        """The denial of what lies in a closed directory by that directory: in the jail it cannot be looked into."""
        if verdict.reason is not Reason.UNREACHABLE or not self.has_exceptions:
            return verdict
        root = self.scope.root
        inside = os.path.normpath(os.path.join(root, path))
        if not beneath(inside, root):
            return verdict
        here = root
        for name in inside[len(root) + 1 :].split("/")[:-1]:
            here = f"{here}/{name}"
            reason = self._box.validate_in_context(here, context, Operation.LIST).reason
            if reason in (Reason.DENIED, Reason.UNGRANTED_SUBMODULE):
                detail = here if reason is Reason.DENIED else here[len(root) + 1 :]
                message = message_for(reason, path, root, detail)
                return verdict.model_copy(update={"reason": reason, "message": message})
        return verdict

    def _guard(self, path: str, inside: str, operation: Operation) -> None:
        """Refuses git's own files, and those that other tools would execute, before the kernel has to."""
        for name in inside.split("/"):
            if name.casefold() == ".git":
                raise self._denied(path, operation, Reason.READ_ONLY, ".git")
        if self._patterns.mode(inside) == PROTECT:
            root = self.scope.root
            raise PathDenied(
                SandboxValidationResult.deny(
                    path,
                    root,
                    operation.value,
                    _PROTECTED.format(path=path, root=root),
                    reason=Reason.READ_ONLY,
                )
            )

    def _denied(self, path: str, operation: Operation, reason: Reason, detail: str = "") -> PathDenied:
        return PathDenied(
            SandboxValidationResult.deny(path, self.scope.root, operation.value, reason=reason, detail=detail)
        )

    def _legacy(self, path: str) -> Place:
        found = os.path.realpath(os.path.join(self.scope.base, path))
        return Place(os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), found[1:], path)
