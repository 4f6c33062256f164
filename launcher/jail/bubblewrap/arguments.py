"""What bubblewrap is told: from the operations of `namespaces.layout` to its options. Pure.

bubblewrap carries its options out in order, each source seen outside and each target inside; what a later one mounts
covers what lies there. So an option for a directory always comes before those for what lies below it.

Launch path: no imports but the spec's and the layout's.
"""

from launcher.jail.namespaces import layout
from launcher.jail.namespaces.layout import Operation
from launcher.jail.spec import JailSpec
from policy.plan import beneath


def argv(
    spec: JailSpec,
    operations: tuple[Operation, ...],
    *,
    uid: int,
    gid: int,
    files: frozenset[str] = frozenset(),
    terminal: str = "",
) -> list[str]:
    """The options of bwrap(1) that show `spec`, without descriptors and command.

    Args:
        operations: from `layout.prepare`, without those whose path is not there.
        uid: effective user id, kept inside.
        gid: effective group id, kept inside.
        files: those paths of operations that are no directories.
        terminal: path of the caller's terminal, "" without one.
    """
    size = dict(spec.limits).get("disk")
    words = ["--unshare-all", "--unshare-user", *(("--share-net",) if spec.net == "open" else ())]
    # `--die-with-parent` ends everything with the process above; no `--new-session`: nobody inside has the terminal,
    # and the command, which does, cannot push input into it (seccomp).
    words += ["--die-with-parent", "--as-pid-1", "--cap-drop", "ALL", "--chdir", "/"]
    words += ["--uid", str(uid), "--gid", str(gid)]
    last: list[str] = []
    made = {"/"}
    for operation in sorted((o for o in operations if o.kind != layout.LINK), key=lambda o: o.path):
        path = operation.path
        words += _parents(path, made) if operation.makes else []
        made.add(path)
        if operation.kind == layout.PRIVATE:
            words += _dev(terminal, size) if path == "/dev" else _temp(operation)
        elif operation.kind == layout.MASK:
            # A device on a mount without devices can be neither opened nor read, not by root either.
            words += ["--ro-bind", "/dev/null", path] if path in files else _mask(operation)
            last += [] if path in files else ["--remount-ro", path]
        elif _is_device(operation):
            words += ["--dev-bind", path, path]
        else:
            writable = operation.kind == layout.PIN or (operation.kind == layout.BIND and operation.writable)
            words += ["--bind" if writable else "--ro-bind", operation.source or path, path]
    words += _links(operations)
    last += ["--remount-ro", "/dev"]
    # Read-only as a whole: started by root, the files of /proc/sys and their like are this user's.
    return [*words, *last, "--proc", "/proc", "--remount-ro", "/proc", "--remount-ro", "/"]


def to_lock(operations: tuple[Operation, ...], files: frozenset[str], terminal: str) -> tuple[str, ...]:
    """Mounts in /dev that are still to be made read-only: a device is written all the same, its mode and owner are not.

    `--remount-ro` makes devices unusable, because it adds the flag nodev. Arguments as for `argv`.
    """
    nodes = [f"/dev/{name}" for name in layout.DEVICE_NODES] + (["/dev/console"] if terminal else [])
    nodes += [o.path for o in operations if _is_device(o) and (o.path in files or not o.writable)]
    return tuple(nodes)


def _parents(path: str, made: set[str]) -> list[str]:
    """Makes the directories above a mount point that are on the jail's own tmpfs; left to itself, bwrap closes them."""
    missing = []
    parent = path.rpartition("/")[0] or "/"
    while parent not in made:
        made.add(parent)
        missing.append(parent)
        parent = parent.rpartition("/")[0] or "/"
    return [word for directory in reversed(missing) for word in ("--dir", directory)]


def _is_device(operation: Operation) -> bool:
    return operation.kind == layout.BIND and beneath(operation.path, "/dev") and operation.path != "/dev"


def _temp(operation: Operation) -> list[str]:
    if operation.text:
        return ["--bind", operation.text, operation.path]
    return ["--perms", "1777", "--tmpfs", operation.path]


def _dev(terminal: str, size: int | None) -> list[str]:
    console = ["--dev-bind", terminal, "/dev/console"] if terminal else []
    bound = [] if size is None else ["--size", str(max(size, 4096))]
    return ["--dev", "/dev", "--perms", "1777", *bound, "--tmpfs", "/dev/shm", "--mqueue", "/dev/mqueue", *console]


def _mask(operation: Operation) -> list[str]:
    return ["--perms", "0555" if operation.holes else "0000", "--tmpfs", operation.path]


def _links(operations: tuple[Operation, ...]) -> list[str]:
    """Symbolic links, except where a mount point had to be made in their place: what was granted wins."""
    taken = [operation.path for operation in operations if operation.kind != layout.LINK]
    words = []
    for operation in operations:
        if operation.kind == layout.LINK and not any(beneath(path, operation.path) for path in taken):
            words += ["--symlink", operation.text, operation.path]
    return words
