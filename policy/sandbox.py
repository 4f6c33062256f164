"""The path validator: may this operation touch this path?

The polite layer in front of the kernel jail: what it allows, the jail allows too (a property test compares).
Paths are compared by components after symbolic links were resolved the kernel's way (`policy.resolution`);
what cannot be resolved is denied. No exception leaves `validate`: a denial is a value with a JSON form (FR-014).

Relative paths are taken from the sandbox root unless a base is given. `~` is an ordinary name. Case counts.

Source: contracts.md section 4, spec.md stories 2 to 4 and 6.
"""

import errno
import os
import stat
from pathlib import Path

from policy.plan import beneath
from policy.resolution import (
    Boundaries,
    Finding,
    Location,
    Unresolvable,
    by_walk,
    checked,
    directory,
    resolve,
    resolve_entry,
)
from policy.violation import Operation, Reason, SandboxValidationResult
from policy.worktree import WorktreeSandboxContext

__all__ = ["AnyPath", "Operation", "Reason", "SandboxValidationResult", "WorktreeSandbox"]

AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]

_OPERATIONS = {operation.value: operation for operation in Operation}
_KEPT = 128


class WorktreeSandbox:
    """Validates paths against a root or a whole context. Safe to share between threads."""

    def __init__(self) -> None:
        """Starts without any context laid out."""
        # id(context) -> (context, boundaries). The reference keeps the id from being used again.
        self._boundaries: dict[int, tuple[WorktreeSandboxContext, Boundaries]] = {}

    def normalize_path(self, path: AnyPath, base: AnyPath | None = None) -> Path:
        """The canonical form: absolute, symbolic links and `..` resolved as the kernel does.

        Args:
            path: may name something that does not exist yet.
            base: where relative paths start; the current directory when absent.

        Raises:
            Unresolvable: a loop, an unreadable directory, NUL, too long ...
        """
        text = os.fsdecode(path)
        start = os.getcwd() if base is None else os.fsdecode(base)
        return Path(resolve(_absolute(text, start)).path)

    def is_path_within_sandbox(self, target: AnyPath, root: AnyPath) -> bool:
        """Whether `target` is `root` or lies below it. What cannot be checked is not within."""
        return self.validate(target, root).allowed

    def validate(
        self,
        target: AnyPath,
        root: AnyPath,
        operation: Operation | str = Operation.READ,
        base: AnyPath | None = None,
    ) -> SandboxValidationResult:
        """The verdict for one root.

        Args:
            target: the path a tool was asked for.
            root: the sandbox's root directory. Its last component must not be a symbolic link: somebody would
                have put it there since the worktree was made.
            operation: an `Operation` or its name; an unknown name is denied.
            base: directory where a relative target starts (default: the root).
        """
        return self._verdict(target, root, operation, base, None)

    def validate_in_context(
        self,
        target: AnyPath,
        context: WorktreeSandboxContext,
        operation: Operation | str = Operation.READ,
        cwd: AnyPath | None = None,
    ) -> SandboxValidationResult:
        """The verdict for a worktree with its submodules and exceptions (`policy.resolution`).

        Where the exceptions' symbolic links lead is found out once per context object, at its first use, as the
        jail does at its start.

        Args:
            target: the path a tool was asked for.
            context: the agent's boundaries.
            operation: an `Operation` or its name; an unknown name is denied.
            cwd: directory where a relative target starts (default: the main worktree).
        """
        return self._verdict(target, context.main_worktree_path, operation, cwd, context)

    def _verdict(
        self,
        target: AnyPath,
        root: AnyPath,
        operation: Operation | str,
        base: AnyPath | None,
        context: WorktreeSandboxContext | None,
    ) -> SandboxValidationResult:
        path, top = os.fsdecode(target), os.fsdecode(root)
        wanted = _OPERATIONS.get(operation) or _OPERATIONS.get(operation.upper())
        if wanted is None:
            return SandboxValidationResult.deny(
                path, top, operation, reason=Reason.UNKNOWN_OPERATION, detail=repr(operation)
            )
        location: Location | None = None
        try:
            checked(path)
            canonical = _canonical_root(top)
            start = top if base is None else _absolute(os.fsdecode(base), top)
            full = path if path[0] == "/" else _absolute(path, start)
            location = resolve_entry(full) if wanted.entry else resolve(full)
            finding = self._judge(location, canonical, wanted, context)
        except Unresolvable as error:
            finding = Finding(error.reason, error.detail)
        normalized = location and location.path
        if finding is None:
            return SandboxValidationResult.allow(
                attempted_path=path, sandbox_root=top, operation=wanted.value, normalized_path=normalized
            )
        return SandboxValidationResult.deny(
            path, top, wanted.value, reason=finding.reason, normalized_path=normalized, detail=finding.detail
        )

    def _judge(
        self, location: Location, root: str, operation: Operation, context: WorktreeSandboxContext | None
    ) -> Finding | None:
        if context is not None:
            return self._laid_out(context, root).judge(location, operation)
        if not beneath(location.path, root):
            return Finding(Reason.OUTSIDE, "")
        if location.path == root and operation.mutates:
            return Finding(Reason.ROOT_ITSELF, "")
        return None

    def _laid_out(self, context: WorktreeSandboxContext, root: str) -> Boundaries:
        kept = self._boundaries.get(id(context))
        if kept is not None and kept[1].root == root:
            return kept[1]
        boundaries = Boundaries(context, root)
        if len(self._boundaries) >= _KEPT:
            self._boundaries.clear()
        self._boundaries[id(context)] = (context, boundaries)
        return boundaries


def _absolute(path: str, base: str) -> str:
    """`path` from `base`, joined as text: nothing may be taken away before symbolic links are resolved."""
    checked(path)
    return path if path[0] == "/" else f"{base}/{path}"


def _canonical_root(root: str) -> str:
    """The canonical path of the sandbox's root, which must be a directory now.

    Raises:
        Unresolvable: it is missing, was replaced, or cannot be reached.
    """
    checked(root)
    if root[0] != "/":
        raise Unresolvable(Reason.ROOT_MISSING, root, "the sandbox root must be an absolute path")
    plain = root
    while plain.endswith(("/", "/.")) and len(plain) > 1:
        plain = plain[:-1]  # "link/" and "link/." would follow the link
    try:
        found = directory(plain)
        if found is not None:
            return found
        status = os.lstat(plain)
    except OSError as error:
        reasons = {
            errno.ENOENT: Reason.ROOT_MISSING,
            errno.ENOTDIR: Reason.ROOT_REPLACED,
            errno.ELOOP: Reason.ROOT_REPLACED,
        }
        raise Unresolvable(reasons.get(error.errno or 0, Reason.UNREACHABLE), root, str(error.strerror)) from error
    if not stat.S_ISDIR(status.st_mode):
        raise Unresolvable(Reason.ROOT_REPLACED, root)
    return by_walk(plain).path
