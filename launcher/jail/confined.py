"""Commands in minimal jails: what runs in the helper process that `jailed_git.start` starts.

The command reads bytes that an agent wrote, so it is held like an agent: it sees the system's programmes, what it is
to read, and nothing else; it writes its standard output and the trees that are named for it, none for a harvest; it
has no network, no terminal, no privileges, and nothing of it survives.

Namespaces where the machine has them, Landlock where it has it; with one of the two the jail holds. Without namespaces
there is no guard either: the calls that it would judge are not allowed at all (ENOSYS), and git does without them.

Started in a small interpreter of its own, so that a service with threads can use it: `os`, `sys`, `marshal` and the
jail's own modules.
"""

import marshal

from launcher import wire
from launcher.jail import init, landlock, probe, processes, reports, spawn, syscalls
from launcher.jail.spec import HELD, JailSpec
from launcher.lean import os
from policy.errors import EXIT_REFUSED, Refusal, Rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

Trees = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
"""(readable, writable, hidden in either where there are mounts); what is hidden may hold what is readable."""

Spec = tuple[str, tuple[str, ...], Trees, tuple[tuple[str, str], ...], tuple[tuple[str, int], ...]]
"""(directory to start in, argument vector, trees, environment, limits); argv[0] is absolute."""

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store", "/opt/git",
          "/run/current-system", "/home/linuxbrew/.linuxbrew")  # fmt: skip
"""Trees of programmes, without configuration."""
_FILES = ("/etc/ld.so.cache", "/etc/ld.so.preload", "/etc/passwd")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")


def serve(descriptor: int, parent: int) -> "NoReturn":
    """Runs a command for each request on a socket; ends with the process `parent`, as the commands do.

    Python and the jail's modules are started once for many commands. What answers for a command is a child of `parent`
    (CLONE_PARENT), which waits for it: its exit status is the command's, 128+N for a signal. A Refusal goes to the
    command's standard error as one line that begins with a NUL byte; the status is 125 then. In namespaces it is the
    jail's first process, else one that ends whatever that one leaves. A command that exits with 125 itself has 126.

    A request is a frame without payload and descriptors: where the id of that child is written, the spec (marshal of a
    `Spec`), standard input, output and error, and what it holds open.
    """
    # Before the first fork: what is loaded after it, each of them loads.
    import gc

    from launcher.jail import namespaces, seccomp, syscall_tables  # noqa: F401

    gc.disable()  # a collection would write to pages that are shared
    processes.tie_to_parent(parent)
    launcher = syscalls.pidfd_open(parent)
    init.block_signals()
    usable: bool | None = None
    try:
        while True:
            given: list[int] = []
            if not wire.receive(descriptor, given, deadline=None, most=0)[0]:
                break
            wanted = _jail_spec(_spec(given.pop(1)))
            told, go = os.pipe()
            close = (launcher, descriptor, given[0])
            pid, refused = 0, None
            try:
                if usable is None:
                    usable = not landlock.switched_on(probe.ENV_NO_USERNS) and _usable()
                pid = _in_namespaces(wanted, [told, go, *given[1:]], close) if usable else 0
            except Refusal as refusal:
                refused = refusal
            pid = pid or _by_landlock(wanted, refused, [told, go, *given[1:]], close, parent)
            os.write(given[0], b"%d" % pid)
            os.write(go, b"g")
            for number in (told, go, *given):
                os.close(number)
    except OSError:
        pass  # no process can be made, or who asked has gone; it learns that from the end of its pipe
    os._exit(0)


def _usable() -> bool:
    """Whether this user can make user namespaces, and mounts in them: AppArmor and containers allow one without the
    other."""
    from launcher.jail import namespaces

    ids = os.geteuid(), os.getegid()
    try:
        pid = processes.fork(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS)
    except Refusal:
        return False
    if pid == 0:
        try:
            namespaces.identity(*ids)
            syscalls.mount("", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def _in_namespaces(wanted: JailSpec, given: list[int], close: tuple[int, ...]) -> int:
    """The first process of a jail in namespaces; 0 where no more of them can be made."""
    # The PID namespace bounds signals, whatever /proc shows.
    required = tuple(row for row in HELD if row != "signals")
    inside = spawn.Inside(wanted.replace(landlock=landlock.abi() > 0, required=required))
    try:
        pid = processes.fork(syscalls.CLONE_PARENT | inside.flags)
    except Refusal:
        return 0
    if pid == 0:
        try:
            _take(given)
            inside.live(reports.NOBODY, close[0], close[1:], own_session=True)
        finally:
            os._exit(EXIT_REFUSED)
    return pid


def _by_landlock(
    wanted: JailSpec, refused: Refusal | None, given: list[int], close: tuple[int, ...], parent: int
) -> int:
    """The process that follows a jail without namespaces, or says why there is none."""
    pid = processes.fork(syscalls.CLONE_PARENT)
    if pid:
        return pid
    try:
        for number in close:
            os.close(number)
        _take(given)
        os.setsid()  # a group of its own, by which it can be ended
        processes.tie_to_parent(parent)
        if refused is not None:
            raise refused
        if landlock.abi() < 6:
            raise Refusal(
                "harvest-no-jail",
                "git objects that an agent wrote cannot be read in a jail here",
                context="neither user namespaces nor Landlock with scopes (ABI 6, Linux 6.12) can be used",
                hint="paddock doctor says which setting closes them; the work stays where it is until then",
            )
        os._exit(run(wanted.replace(namespaces=False)))
    except Refusal as refusal:
        reports.send_refusal(reports.NOBODY, refusal)
    except OSError as error:
        reports.send_refusal(reports.NOBODY, init.failure("git could not be started in a jail", error))
    finally:
        os._exit(EXIT_REFUSED)


def _take(given: list[int]) -> None:
    """The command's streams become this process's; what it holds open besides stays.

    Begins when the helper has said which process this is: one that is killed before has told nobody to wait for it, and
    the command is run again.
    """
    told, go, *streams = given[:5]
    os.close(go)
    if not os.read(told, 1):
        os._exit(EXIT_REFUSED)
    os.close(told)
    for number, source in enumerate(streams):
        os.dup2(source, number)
        os.close(source)


def _spec(descriptor: int) -> Spec:
    # From its beginning: a helper that was killed may have read it, and the next one shares the offset.
    found: Spec = marshal.loads(os.pread(descriptor, os.fstat(descriptor).st_size, 0))
    os.close(descriptor)
    return found


def refusal_in(said: str) -> Refusal | None:
    """The Refusal at the end of what a helper has written to standard error; None when its command ran."""
    _, mark, text = said.rpartition("\n\0")
    parts = text.split("\0")
    return (
        Refusal(parts[0], parts[1], context=Rows(parts[2]), hint=Rows(parts[3])) if mark and len(parts) == 4 else None
    )


def _jail_spec(spec: Spec) -> JailSpec:
    cwd, argv, (readable, writable, hidden), environment, limits = spec
    grants: list[tuple[str, str, str]] = []
    links: list[tuple[str, str]] = []
    for path in (*SYSTEM, *_FILES):
        if os.path.islink(path):
            links.append((path, os.readlink(path)))
        elif os.path.exists(path):
            grants.append((path, "rx" if path in SYSTEM else "r", "system"))
    grants += [(path, "rw", "device") for path in _DEVICES]
    grants += [(path, "r", "objects") for path in readable]
    grants += [(path, "rw", "files") for path in writable]
    return JailSpec(
        argv,
        dict(environment),
        worktree=cwd,
        grants=tuple(grants),
        links=tuple(links),
        denied=tuple((path, "repository") for path in hidden),
        exempt=readable,
        limits=limits,
    )


def run(spec: JailSpec) -> int:
    """Runs a command in a jail without namespaces to its end; its exit status, 128+N for a signal.

    The calling thread must be the only one, with `init.BLOCKED` signals blocked.

    Raises:
        Refusal: what `spawn.spawn` or the steps inside refused.
    """
    processes.adopt_orphans()
    jailed = spawn.spawn(spec)
    try:
        code = _followed(jailed.status)
    finally:
        os.close(jailed.status)
        ended = os.waitpid(jailed.pid, 0)[1]
        processes.sweep()
    return init.status_of(ended) if code is None else init.own_status(code)


def _followed(reader: int) -> int | None:
    """The command's wait status, read until the jail has ended; None when its init ended without a word."""
    decoder = wire.Decoder()
    found: int | None = None
    refusal: Refusal | None = None
    while data := os.read(reader, 65536):
        for kind, payload in decoder.feed(data):
            if kind == reports.REFUSED:
                refusal = refusal or reports.refusal(payload)
            elif kind == reports.EXITED:
                found = reports.exited(payload)[0]
    if refusal is not None:
        raise refusal
    return found
