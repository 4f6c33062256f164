"""One command in a minimal jail: what runs in the helper process that `jailed_git.start` starts.

The command reads bytes that an agent wrote, so it is held like an agent: it sees the system's programmes, what it is
to read, and nothing else; it writes its standard output and the trees that are named for it, none for a harvest; it
has no network, no terminal, no privileges, and nothing of it survives.

Namespaces where the machine has them, Landlock where it has it; with one of the two the jail holds. Without namespaces
there is no guard either: the calls that it would judge are not allowed at all (ENOSYS), and git does without them.

Started in a small interpreter of its own, so that a service with threads can use it: `os`, `sys`, `marshal` and the
jail's own modules.
"""

import marshal
import os

from launcher import wire
from launcher.jail import init, landlock, processes, reports, spawn, syscalls
from launcher.jail.spec import HELD, JailSpec
from policy.errors import EXIT_REFUSED, Refusal, Rows

Trees = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
"""(readable, writable, hidden in either where there are mounts); what is hidden may hold what is readable."""

Spec = tuple[str, tuple[str, ...], Trees, tuple[tuple[str, str], ...], tuple[tuple[str, int], ...]]
"""(directory to start in, argument vector, trees, environment, limits); argv[0] is absolute."""

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store", "/opt/git",
          "/run/current-system", "/home/linuxbrew/.linuxbrew")  # fmt: skip
"""Trees of programmes, without configuration."""
_FILES = ("/etc/ld.so.cache", "/etc/ld.so.preload", "/etc/passwd")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")


def main(descriptor: int, parent: int) -> int:
    """Runs the command that `descriptor` holds (marshal of a `Spec`); returns its exit status, 128+N for a signal.

    Ends with the process `parent`. A Refusal goes to standard error as one line that begins with a NUL byte; the
    status is 125 then.
    """
    try:
        processes.tie_to_parent(parent)
        return _run(_spec(descriptor))
    except Refusal as refusal:
        parts = (refusal.reference, refusal.message, refusal.context, refusal.hint)
        os.write(2, b"\n\0" + "\0".join(parts).encode("utf-8", "surrogateescape"))
        return EXIT_REFUSED


def serve(descriptor: int, parent: int) -> int:
    """Runs a command for each request on a socket, as `main` does, in a process forked from this one.

    Python and the jail's modules are started once for many commands. Each command's process is a child of `parent`
    (CLONE_PARENT), which waits for it. A request is a frame without payload and descriptors: where the process answers
    with its id, the spec, standard input, output and error, and what it holds open.
    """
    # Before the first fork: what is loaded after it, each of them loads.
    import gc

    from launcher.jail import namespaces, probe, seccomp, syscall_tables  # noqa: F401

    gc.disable()  # a collection would write to pages that are shared

    processes.tie_to_parent(parent)
    while True:
        given: list[int] = []
        if not wire.receive(descriptor, given, deadline=None, most=0)[0]:
            return 0
        if processes.fork(syscalls.CLONE_PARENT) == 0:
            try:
                os.close(descriptor)
                os._exit(_forked(given, parent))
            finally:
                os._exit(EXIT_REFUSED)
        for number in given:
            os.close(number)


def _forked(given: list[int], parent: int) -> int:
    """The process of one command of `serve`."""
    answer, spec, *standard = given[:5]
    os.setsid()  # a group of its own, by which it can be ended
    for number, source in enumerate(standard):
        os.dup2(source, number)
        os.close(source)
    os.write(answer, b"%d" % os.getpid())
    os.close(answer)
    return main(spec, parent)


def _spec(descriptor: int) -> Spec:
    with os.fdopen(descriptor, "rb") as file:
        found: Spec = marshal.loads(file.read())
    return found


def refusal_in(said: str) -> Refusal | None:
    """The Refusal at the end of what a helper has written to standard error; None when its command ran."""
    _, mark, text = said.rpartition("\n\0")
    parts = text.split("\0")
    return (
        Refusal(parts[0], parts[1], context=Rows(parts[2]), hint=Rows(parts[3])) if mark and len(parts) == 4 else None
    )


def _run(spec: Spec) -> int:
    from launcher.jail import probe

    abi = landlock.abi()
    wanted = _jail_spec(spec)
    if not landlock.switched_on(probe.ENV_NO_USERNS):
        # The PID namespace bounds signals, and the session that the helper leads: whatever /proc shows.
        required = tuple(row for row in HELD if row != "signals")
        try:
            return run(wanted.replace(landlock=abi > 0, required=required))
        except Refusal as refusal:
            if refusal.reference != "userns-unavailable" or abi < 6:
                raise
    if abi < 6:
        raise Refusal(
            "harvest-no-jail",
            "git objects that an agent wrote cannot be read in a jail here",
            context="neither user namespaces nor Landlock with scopes (ABI 6, Linux 6.12) can be used",
            hint="paddock doctor says which setting closes them; the work stays where it is until then",
        )
    return run(wanted.replace(namespaces=False))


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
    """Runs a helper in a jail to its end; its exit status, 128+N for a signal. The calling thread must be the only one.

    Raises:
        Refusal: what `spawn.spawn` or the steps inside refused.
    """
    if not spec.namespaces:
        processes.adopt_orphans()
    init.block_signals()
    try:
        jailed = spawn.spawn(spec)
        try:
            code = _followed(jailed.status)
        finally:
            os.close(jailed.status)
            ended = os.waitpid(jailed.pid, 0)[1]
            if not spec.namespaces:
                processes.sweep()
    finally:
        init.unblock_signals()
    code = os.waitstatus_to_exitcode(ended if code is None else code)
    return code if code >= 0 else 128 - code


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
