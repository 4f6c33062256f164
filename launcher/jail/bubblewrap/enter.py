"""Into the namespaces that bubblewrap makes, and what they hold, read back from the kernel.

The process above the command joins the namespaces and starts the command in them, as on the other backends. So stops,
signals, exit statuses and failures to execute are seen directly; no process of bubblewrap's stands in the terminal's
process group, where Ctrl-C would kill it with the whole jail; and the command's environment is in no other process.

bubblewrap works with paths, which another jail may lead elsewhere meanwhile. So each mount is compared afterwards with
what was found before: its place, its inode, whether it can be written.

Launch path: see launcher/jail/syscalls.py.
"""

import errno
from _stat import S_ISDIR

from launcher.jail.bubblewrap import arguments
from launcher.jail.bubblewrap.process import Bubblewrap
from launcher.jail.namespaces import layout
from launcher.jail.namespaces.layout import Operation
from launcher.jail.spec import Facts, JailSpec
from launcher.lean import os
from launcher.safefs import walk
from policy.errors import Refusal

_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES)


class Jail:
    """What `enter` entered.

    Attributes:
        facts: for the ledger.
        end: ends all its processes and waits for them.
        on_command: to be called with the process id of the next child, which is the command's, when it has been made.
        join_user: to be called by every child, first of all.
    """

    __slots__ = ("end", "facts", "join_user", "on_command")

    def __init__(self, facts: Facts, running: Bubblewrap) -> None:
        self.facts = facts
        self.end = running.end
        self.on_command = running.separated
        self.join_user = running.join_user


class _Seen:
    """What is at a path: which inode, whether it is a directory, whether its mount is read-only."""

    __slots__ = ("directory", "inode", "read_only")

    def __init__(self, fd: int) -> None:
        status = os.fstat(fd)
        self.inode = (status.st_dev, status.st_ino)
        self.directory = S_ISDIR(status.st_mode)
        self.read_only = bool(os.fstatvfs(fd).f_flag & os.ST_RDONLY)


def enter(spec: JailSpec, operations: tuple[Operation, ...]) -> "Jail":
    """Lets bubblewrap build the jail's view and namespaces, and joins them.

    To be called once, single-threaded, in the process that will start the command.

    Args:
        spec: with `bwrap` and `filter`.
        operations: from `layout.prepare` for it.

    Returns:
        What is held now, and what ends everything in there.

    Raises:
        Refusal: bubblewrap-failed, bubblewrap-closed, view-changed, worktree-missing.
    """
    found: dict[str, _Seen] = {}
    skipped: list[tuple[str, str]] = []
    for operation in operations:
        if operation.kind != layout.LINK:
            try:
                found[operation.path] = _look(operation.source or operation.path)
            except OSError as error:
                if operation.source or error.errno not in _GONE:
                    raise
                if operation.nested or operation.kind != layout.PRIVATE:
                    skipped.append((operation.path, error.strerror or ""))
    gone = {where for where, _ in skipped}
    if spec.worktree in gone:
        raise Refusal("worktree-missing", f"{spec.worktree} has disappeared", hint="was it removed meanwhile?")
    kept = tuple(operation for operation in operations if operation.path not in gone)
    files = frozenset(where for where, seen in found.items() if not seen.directory)
    terminal = layout.terminal_name()
    words = arguments.argv(spec, kept, uid=os.geteuid(), gid=os.getegid(), files=files, terminal=terminal)
    running = Bubblewrap(spec.bwrap, words, spec.filter)
    try:
        running.limit(spec.limits)
        running.join(arguments.to_lock(kept, files, terminal))
        for operation in kept:
            if operation.kind not in (layout.LINK, layout.PRIVATE):
                _compare(operation, found[operation.path], running.mounts)
        _check_own()
        running.separate_first(spec.limits)
    except BaseException:
        running.end()
        raise
    return Jail(_facts(spec, kept, skipped), running)


def _look(path: str) -> _Seen:
    """What is at `path`, in the view that this process has at present, with no link on the way."""
    fd = walk.open_canonical(path, os.O_PATH)
    try:
        return _Seen(fd)
    finally:
        os.close(fd)


def _compare(operation: Operation, before: _Seen, mount_points: frozenset[str]) -> None:
    """Whether an operation was carried out at its own place and with its own source.

    Raises:
        Refusal: view-changed.
    """
    try:
        inside = _look(operation.path)
    except OSError as error:
        raise _changed(operation, error.strerror or "") from None
    if operation.path not in mount_points:
        raise _changed(operation, "nothing is mounted there")
    if (inside.inode == before.inode) == (operation.kind == layout.MASK):
        raise _changed(operation, "something else is there now")
    writable = operation.kind == layout.PIN or operation.writable
    if not writable and not inside.read_only:
        raise _changed(operation, "it can be written")


def _check_own() -> None:
    for path in ("/", "/dev", "/proc"):
        if not _look(path).read_only:
            raise Refusal("view-incomplete", f"bubblewrap left {path} of the jail writable")


def _changed(operation: Operation, why: str) -> Refusal:
    return Refusal(
        "view-changed",
        f"cannot {operation.describe()}",
        context=f"{why}; something on the way to it changed while the jail was built",
        hint="start it again",
    )


def _facts(spec: JailSpec, operations: tuple[Operation, ...], skipped: list[tuple[str, str]]) -> Facts:
    kinds = "user, mount, pid, ipc, uts, cgroup" + ("" if spec.net == "open" else ", net")
    protected = sum(operation.kind == layout.PROTECT for operation in operations)
    facts = [
        ("bubblewrap", "layer", f"{spec.bwrap}: {kinds}; {len(operations)} operations"),
        ("reads", "held", "what is not granted is not mounted"),
        ("deny-inside-allow", "held", "covered by mounts"),
        ("toolchains", "held", "mounted one by one"),
        ("writes", "held", "what is not writable is on read-only mounts"),
        ("handoff", "held", f"{protected} path{'' if protected == 1 else 's'} read-only, parents pinned"),
        ("metadata", "held", "what is not writable is on read-only mounts"),
        ("signals", "held", "PID namespace, another for each command; the own process group by the system call filter"),
        ("visibility", "held", "/proc of the jail's own PID namespace"),
        ("survival", "held", "PID namespace that ends with the launcher"),
        ("shared-memory", "held", "private /dev/shm, IPC namespace"),
        ("terminals", "held", "private devpts"),
    ]
    if spec.net == "open":
        facts.append(("unix-sockets", "not held", "abstract names: the network is the machine's"))
    else:
        facts.append(("unix-sockets", "held", "paths: not mounted; abstract names: network namespace"))
        facts.append(("network", "held", "network namespace with a loopback interface only"))
    facts += [("skipped", "layer", f"{where}: {reason}") for where, reason in skipped]
    return tuple(facts)
