"""A view that is begun before its session is known: what most sessions have in common now, their own places later.

What can be begun are trees that are shown read-only at their own paths, links, /dev and /proc. Each of them is an
operation of `launcher.jail.namespaces.layout` as a tuple, and only a session whose own operations include every one of
them may complete the view (`launcher.session.early`). So nothing is in it that the session's Plan does not name.

Loaded by warm helpers, with the launch path's imports: see launcher/jail/syscalls.py.
"""

from launcher.jail import syscalls
from launcher.jail.namespaces import layout
from launcher.jail.namespaces.layout import Operation
from launcher.jail.namespaces.view import _HERE, _READ_ONLY, _WRITABLE, View
from launcher.lean import os
from policy.errors import Refusal
from policy.plan import beneath

Part = tuple[str, str, str]
"""Kind, path and text of an operation that can be carried out early."""

Identity = tuple[int, int] | None
"""Device and inode of what was mounted; None where there was nothing."""


def part(operation: Operation) -> Part | None:
    """The operation as a part of an early view; None for one that has to wait for its session."""
    early = (
        operation.kind in (layout.BIND, layout.LINK)
        and not (operation.writable or operation.nested or operation.source or operation.holes)
        and operation.makes
        and operation.path != "/"
        and not any(beneath(operation.path, own) for own in layout.PRIVATE_DIRECTORIES)
    )
    return (operation.kind, operation.path, operation.text) if early else None


def remaining(begun: "frozenset[Part]", operations: "tuple[Operation, ...]") -> "tuple[Operation, ...] | None":
    """What is left to be done of `operations` in a view with the parts `begun`; None when that view is another one.

    A view with a part that the operations lack is another one; so is one whose links would be in the way of what is
    left.
    """
    found = set()
    left = []
    for operation in operations:
        known = part(operation)
        if known is not None and known in begun:
            found.add(known)
        else:
            left.append(operation)
    if len(found) != len(begun):
        return None
    links = tuple(f"{path}/" for kind, path, _ in begun if kind == layout.LINK)
    if any(operation.path == "/" or f"{operation.path}/".startswith(links) for operation in left):
        return None
    return tuple(left)


def identity(path: str) -> Identity:
    """What lies at a path now, to be held against what was mounted."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class EarlyView(View):
    """`begin`, then in the same process or a child of it `complete`, then `leave_outside`."""

    def begin(self, parts: "tuple[Part, ...]") -> tuple[Identity, ...]:
        """Builds what is known.

        Args:
            parts: as `part` gave them, in the order of `layout.prepare`.

        Returns:
            What was mounted for each part that is a tree.

        Raises:
            Refusal: view-failed, view-incomplete, view-not-early.
        """
        self._make_root()
        self._do(Operation(layout.PRIVATE, "/dev"))
        identities: list[Identity] = []
        binds = []
        for kind, path, _ in parts:
            if kind == layout.BIND:
                prepared = self._prepared(Operation(kind, path))
                identities.append(None)
                if prepared is not None:
                    found = os.fstat(prepared[0])
                    identities[-1] = found.st_dev, found.st_ino
                    binds.append(prepared)
        for kind, path, text in parts:
            if kind == layout.LINK:
                self._do(Operation(kind, path, text=text))
        for prepared in binds:
            self._attach(*prepared)
        syscalls.mount_setattr(self._root, "", _HERE, _READ_ONLY)
        self._finish_own()
        # By now a directory on the way to a session's own places may be another one at the same path.
        while self._outer:
            os.close(self._outer.popitem()[1])
        if not self.fresh_proc:  # then the scratch tmpfs lies somewhere else now, and what is left needs it
            raise Refusal("view-not-early", "this machine's /proc is not free, so the view is built in one go")
        return tuple(identities)

    def complete(self, operations: "tuple[Operation, ...]") -> None:
        """Adds what `remaining` has left, in the order that the text of `launcher.jail.namespaces.view` explains."""
        flat = [operation for operation in operations if not operation.nested]
        # Mount points are made on the root's tmpfs, and on nothing that has been attached to it.
        syscalls.mount_setattr(self._root, "", syscalls.AT_EMPTY_PATH, 0, syscalls.MOUNT_ATTR_RDONLY)
        for operation in flat:
            if operation.kind == layout.PRIVATE and operation.path != "/dev":
                self._do(operation)
        binds = [(operation, self._prepared(operation)) for operation in flat if operation.kind == layout.BIND]
        for operation in flat:
            if operation.kind == layout.LINK:
                self._do(operation)
        syscalls.mount_setattr(self._root, "", syscalls.AT_EMPTY_PATH, _READ_ONLY)
        for operation, prepared in binds:
            if prepared is not None:
                syscalls.mount_setattr(prepared[0], "", _HERE, _WRITABLE if operation.writable else _READ_ONLY)
                self._attach(*prepared)
        self._cover_trees(operations)

    def close(self) -> None:
        """Lets go of all that leads outside, in a process that has no part in completing the view."""
        for fd in {self._outer_root, self._root, *self._directories.values(), *self._masks}:
            os.close(fd)
