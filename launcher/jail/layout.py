"""From a JailSpec to the mounts that show it: operations as data, in the order in which they are carried out.

Pure. The jail's root is a tmpfs that holds nothing but what the spec names, so nothing has to be hidden there; only
exceptions inside granted trees need mounts of their own. Whether a path is a file or a directory is not known here.

Launch path: no imports but the spec's.
"""

from _stat import S_ISCHR

from launcher.jail.spec import JailSpec
from launcher.lean import os
from policy.errors import Refusal
from policy.plan import beneath, held_by

PRIVATE = "private"  # a directory of the jail's own
BIND = "bind"  # what a grant names, at its own path
LINK = "link"  # a symbolic link that leads to grants
PIN = "pin"  # a directory bound on itself, so that it cannot be renamed away from what it holds
PROTECT = "protect"  # read-only inside a writable tree
MASK = "mask"  # nothing to be seen inside a granted tree

PRIVATE_DIRECTORIES = ("/dev", "/tmp", "/var/tmp")
_OWN_DEVICES = (
    "null",
    "zero",
    "full",
    "random",
    "urandom",
    "tty",
    "console",
    "ptmx",
    "pts",
    "shm",
    "mqueue",
    "fd",
    "stdin",
    "stdout",
    "stderr",
)

_MANY = 4
"""Neighbours from which on one rule is less work."""

# What lies at a path, for what comes below it.
_OURS = "ours"  # the jail's tmpfs: mount points are made as needed
_READ_ONLY = "ro"
_WRITABLE = "rw"
_MASKED = "masked"


class Operation:
    """One step. Immutable by custom.

    Attributes:
        kind: PRIVATE, BIND, LINK, PIN, PROTECT or MASK.
        path: where, in the jail; for BIND also the source outside, unless it has another.
        source: BIND only: what lies there is shown at `path`, and must be; "" for `path` itself.
        writable: BIND only.
        nested: some directory above `path` shows the disk, so the way there may change while mounts are made.
        makes: the mount point is on a tmpfs of the jail and has to be made.
        text: LINK: the link's text. PROTECT: why. PRIVATE: what is shown there, "" for an empty tmpfs.
            BIND: where what is written goes, "" for the disk.
        holes: MASK: paths below that stay visible; their mount points are made inside the mask.
    """

    __slots__ = ("holes", "kind", "makes", "nested", "path", "source", "text", "writable")

    def __init__(
        self,
        kind: str,
        path: str,
        *,
        writable: bool = False,
        nested: bool = False,
        makes: bool = True,
        text: str = "",
        holes: tuple[str, ...] = (),
        source: str = "",
    ) -> None:
        self.kind = kind
        self.source = source
        self.path = path
        self.writable = writable
        self.nested = nested
        self.makes = makes
        self.text = text
        self.holes = holes

    def describe(self) -> str:
        """The step in words, for `paddock explain` and for errors."""
        if self.kind == BIND and self.text:
            return f"show a copy of {self.path}"
        if self.kind == BIND:
            what = f"{self.source} at {self.path}" if self.source else self.path
            return f"show {what} {'writable' if self.writable else 'read-only'}"
        if self.kind == PRIVATE:
            return f"make a private {self.path}"
        if self.kind == LINK:
            return f"link {self.path} to {self.text}"
        if self.kind == PIN:
            return f"keep {self.path} from being renamed"
        if self.kind == PROTECT:
            return f"make {self.path} read-only ({self.text})"
        return f"hide {self.path}" + (f", except {', '.join(self.holes)}" if self.holes else "")

    def __repr__(self) -> str:
        return f"<{self.describe()}>"


def prepare(spec: JailSpec) -> tuple[Operation, ...]:
    """The operations that build the view of `spec`, parents before what lies below them.

    A denied path hides grants at and below it, a read-only path makes them read-only, and of the narrowed ones the
    longest counts, as `policy.verdict` says it. /dev, /proc, /tmp, /var/tmp and /dev/shm are always the jail's own;
    mount points for grants below the last three are made there.
    """
    grants = _effective(spec)
    protected = _protected(spec, grants)
    binds = {path: (source, "w" in access) for source, path, access in spec.binds}
    denied = {path for path, _ in spec.denied} - binds.keys()
    narrowed = {path: (access, source) for path, access, source in spec.narrowed}
    holes = [path for path in (*grants, *binds) if any(beneath(path, root) for root in spec.exempt)]

    regions: dict[str, str] = {}
    disk: set[str] = set()
    operations: list[Operation] = []
    pinned: set[str] = set()

    def nearest(path: str) -> tuple[str, str]:
        while path != "/":
            path = path.rpartition("/")[0] or "/"
            if path in regions:
                return path, regions[path]
        return "/", _OURS

    def add(operation: Operation, region: str) -> None:
        above, kind = found
        operation.nested = above in disk
        operation.makes = kind in (_OURS, _MASKED)
        operations.append(operation)
        regions[operation.path] = region
        if region != _OURS or operation.nested:
            disk.add(operation.path)

    def pin(path: str) -> None:
        """Pins what lies between `path` and the tree it is in: renamed, it would take the exception out of its place.

        The mount goes with the directory, but the next jail would look for the exception where it was.
        """
        root, _ = nearest(path)
        parent = path.rpartition("/")[0]
        parents = []
        while parent != root:
            parents.append(parent)
            parent = parent.rpartition("/")[0]
        for directory in reversed(parents):
            if directory not in pinned:
                pinned.add(directory)
                operations.append(Operation(PIN, directory, nested=True, makes=False))

    def protect(path: str, why: str) -> None:
        pin(path)
        add(Operation(PROTECT, path, text=why), _READ_ONLY)

    for path in sorted({*grants, *protected, *narrowed, *denied, *binds, *PRIVATE_DIRECTORIES}):
        found = nearest(path)
        around = found[1]
        if path in binds:
            if around == _WRITABLE:
                pin(path)
            source, writable = binds[path]
            add(Operation(BIND, path, writable=writable, source=source), _WRITABLE if writable else _READ_ONLY)
        elif path in PRIVATE_DIRECTORIES:
            add(Operation(PRIVATE, path, text=spec.private.get(path, "")), _OURS)
        elif path in denied and path not in grants:
            if around in (_READ_ONLY, _WRITABLE):
                below = tuple(hole for hole in holes if beneath(hole, path))
                if around == _WRITABLE:
                    pin(path)
                add(Operation(MASK, path, holes=below), _MASKED)
        elif path in protected and around == _WRITABLE:
            protect(path, protected[path])
        elif path in narrowed and around == (_WRITABLE if narrowed[path][0] == "r" else _READ_ONLY):
            if around == _WRITABLE:
                protect(path, narrowed[path][1])
            elif not any(beneath(path, closed) for closed in protected):
                add(Operation(BIND, path, writable=True), _WRITABLE)
        elif path in grants:
            writable = grants[path]
            if around == (_WRITABLE if writable else _READ_ONLY):
                continue  # already shown just so
            if around == _WRITABLE:
                protect(path, "granted for reading only")
            else:
                add(Operation(BIND, path, writable=writable), _WRITABLE if writable else _READ_ONLY)
    if spec.copy:
        _copy(spec, operations)
    return (*operations, *_links(spec, nearest, regions, disk))


def _copy(spec: JailSpec, operations: list[Operation]) -> None:
    """Has the worktree shown as a copy.

    Refusals: cow-covered; what is in it would be shown writable from the disk.
    """
    found = [each for each in operations if each.kind == BIND and each.writable and not each.source]
    around = [each for each in found if beneath(spec.worktree, each.path)]
    inside = [each for each in found if beneath(each.path, spec.worktree) and each not in around]
    if [each.path for each in around] != [spec.worktree] or inside:
        raise Refusal(
            "cow-covered",
            f"{spec.worktree} cannot be shown as a copy",
            context=", ".join(each.describe() for each in (*around, *inside)) or "it is not granted for writing",
            hint="leave out --cow, or the --rw and --ro that name it or something in it",
        )
    around[0].text = spec.copy


def gathered(grants: "tuple[Grant, ...]") -> "tuple[Grant, ...]":
    """The grants with neighbours put together on their directory where the view shows nothing but them there.

    Of /etc, it shows some sixty granted entries on a tmpfs. One rule of Landlock on the tmpfs says the same as sixty,
    for what is mounted there (and for nothing that is in the outer /etc): a tenth of a millisecond for each ten.

    Args:
        grants: (canonical path, access, source), all that the view shows.
    """
    neighbours: dict[str, int] = {}
    for path, access, _ in grants:
        parent = path.rpartition("/")[0]
        if "w" not in access:
            neighbours[parent] = neighbours.get(parent, 0) + 1
    found = grants
    for parent, count in neighbours.items():
        if count < _MANY or not parent or any(beneath(parent, own) for own in (*PRIVATE_DIRECTORIES, "/proc")):
            continue
        below = {access for path, access, _ in found if beneath(path, parent)}
        shown = any(beneath(parent, path) for path, access, _ in found if access != "l")
        if len(below) == 1 and not shown:
            rest = tuple(grant for grant in found if not beneath(grant[0], parent))
            found = (*rest, (parent, below.pop(), "all that is shown there"))
    return found


def _effective(spec: JailSpec) -> dict[str, bool]:
    """Granted path -> writable, without what is denied or the jail's own."""
    grants: dict[str, bool] = {}
    exempt = _roots(spec.exempt)
    denied = _roots(path for path, _ in spec.denied)
    read_only = _roots(path for path, _ in spec.read_only)
    for path, access, _ in spec.grants:
        if path in PRIVATE_DIRECTORIES or _is_own(path):
            continue
        writable = "w" in access
        if writable and path == "/":
            raise Refusal(
                "root-writable",
                "the whole file system cannot be granted for writing",
                hint="grant the directories that are needed, each with --rw",
            )
        held = held_by(spec.narrowed, path) if writable else None
        writable = writable and (held is None or held[1] == "w")
        directory = f"{path}/"
        if not directory.startswith(exempt):
            if directory.startswith(denied):
                continue
            writable = writable and not directory.startswith(read_only)
        grants[path] = grants.get(path, False) or writable
    return grants


def _roots(paths: "Iterable[str]") -> tuple[str, ...]:
    """For `startswith`: what begins with one of them, a slash behind it, is at or below one of the paths."""
    return tuple(path.rstrip("/") + "/" for path in paths)


def _is_own(path: str) -> bool:
    return (
        path == "/proc"
        or path.startswith("/proc/")
        or (path.startswith("/dev/") and path[5:].partition("/")[0] in _OWN_DEVICES)
    )


def _protected(spec: JailSpec, grants: dict[str, bool]) -> dict[str, str]:
    """Path -> why, of what stays read-only in writable trees. An explicit writable grant of the very path wins."""
    found = {path: "hand-off file" for path, mode in spec.handoff if mode == "protect" and not grants.get(path)}
    return found | dict(spec.read_only)


def _links(
    spec: JailSpec, nearest: "Callable[[str], tuple[str, str]]", regions: dict[str, str], disk: set[str]
) -> list[Operation]:
    """The links that lie on the jail's own tmpfs; those inside granted trees are there already."""
    return [
        Operation(LINK, path, text=target, nested=nearest(path)[0] in disk)
        for path, target in spec.links
        if path not in regions and nearest(path)[1] == _OURS and not _is_own(path)
    ]


TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Grant = tuple[str, str, str]


# What the jail's own /dev holds.


DEVICE_NODES = ("null", "zero", "full", "random", "urandom", "tty")

DEVICE_LINKS = (
    ("ptmx", "pts/ptmx"),
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
)


def terminal_name() -> str:
    """Path of the terminal on standard input, output or error, "" without one. Needs the outer /proc."""
    for fd in (0, 1, 2):
        try:
            name = os.ttyname(fd)
            # The name is what the kernel remembers; behind it there must still be the same device.
            if S_ISCHR(os.lstat(name).st_mode) and os.lstat(name).st_rdev == os.fstat(fd).st_rdev:
                return name
        except OSError:
            continue  # no terminal, or one of another mount namespace (a container's): it has no name here
    return ""


def device_nodes(terminal: str) -> list[tuple[str, str]]:
    """(path outside, name in the jail's /dev). The terminal gets the name that ttyname(3) looks for: console."""
    return [(f"/dev/{name}", name) for name in DEVICE_NODES] + ([(terminal, "console")] if terminal else [])
