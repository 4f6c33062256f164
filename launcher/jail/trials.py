"""Whether the guard and bubblewrap work here, found out by trying all that they need on a child.

Not on the launch path of a cached Plan.
"""

import select
from _stat import S_ISREG

from launcher.jail import bubblewrap, hygiene, layout, seccomp, syscall_tables, syscalls
from launcher.jail.bubblewrap import Bubblewrap
from launcher.jail.guard.call import Call, Listener
from launcher.jail.seccomp import Program
from launcher.jail.spec import JailSpec
from launcher.lean import ctypes, os
from policy.errors import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
else:
    import _signal

_PATIENCE = 5000
"""Milliseconds that the child may take for what takes microseconds."""

_ANSWER = 42


def guard_works() -> tuple[bool, str]:
    """(whether a parent can mediate its child's calls, why not)."""
    word = ctypes.create_string_buffer(b"paddock")  # at the same address in the child
    reading, writing = os.pipe()
    waiting, going = os.pipe()
    child = os.fork()
    if child == 0:
        # Nothing may escape from here: this is a copy of the caller, with all that it has on its stack.
        code = 1
        try:
            os.close(going)
            code = _child(word, writing, waiting)
        finally:
            os._exit(code)
    os.close(writing)
    os.close(waiting)
    try:
        why = _supervise(child, word, reading, going)
    except OSError as error:
        why = f"{error.filename or 'seccomp_unotify'}: {error.strerror}"
    finally:
        os.close(reading)
        os.close(going)
        os.kill(child, _signal.SIGKILL)
        os.waitpid(child, 0)
    return not why, why


def _child(word: "ctypes.Array[ctypes.c_char]", writing: int, waiting: int) -> int:
    try:
        hygiene.no_new_privs()
        fd = hygiene.install_notifying(_program())
    except Refusal as refusal:
        os.write(writing, b"E" + refusal.context.encode())
        return 1
    os.write(writing, b"N" + fd.to_bytes(4, "little"))
    if not os.read(waiting, 1):
        return 1  # the supervisor has ended
    os.close(fd)  # or the kernel would wait for an answer of our own when the supervisor ends now
    fchmodat = ctypes.CDLL(None, use_errno=True)["syscall"]
    number = syscall_tables.number("fchmodat", syscalls.MACHINE)
    os.write(writing, b"%d" % fchmodat(number, syscalls.AT_FDCWD, word, 0))
    return 0


def _program() -> bytes:
    """A filter that notifies of fchmodat and allows the rest."""
    number = syscall_tables.number("fchmodat", syscalls.MACHINE)
    assert number is not None
    bpf = Program()
    bpf.load(0)
    bpf.equal(number, then="notify")
    bpf.answer(seccomp.ALLOW)
    bpf.label("notify")
    bpf.answer(seccomp.USER_NOTIF)
    return bpf.assemble()


def _supervise(child: int, word: "ctypes.Array[ctypes.c_char]", reading: int, going: int) -> str:
    said = _said(reading)
    if said[:1] != b"N":
        return said[1:].decode(errors="replace") or "the process that tried reported nothing"
    step = "pidfd_getfd"
    try:
        pidfd = syscalls.pidfd_open(child)
        listener = Listener(syscalls.pidfd_getfd(pidfd, int.from_bytes(said[1:], "little")))
        os.close(pidfd)
        os.write(going, b"!")
        poll = select.poll()
        poll.register(listener.fd, select.POLLIN)
        step = "SECCOMP_IOCTL_NOTIF_RECV"
        if not poll.poll(_PATIENCE):
            return "no notification came"
        notified = listener.receive()
        if notified is None:
            return "the notification was withdrawn"
        call = Call(listener, *notified)
        step = "process_vm_readv"
        if call.string(call.arguments[1]) != word.value:
            return "the process's memory was not as expected"
        step = "/proc/PID/cwd"
        call.directory(syscalls.AT_FDCWD)
        call.close()
        call.check()
        step = "SECCOMP_IOCTL_NOTIF_SEND"
        listener.answer(call.identity, _ANSWER)
        if _said(reading) != b"%d" % _ANSWER:
            return "the answer did not arrive"
        os.close(listener.fd)
    except OSError as error:
        return f"{step}: {error.strerror}"
    return ""


def _said(reading: int) -> bytes:
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    return os.read(reading, 512) if poll.poll(_PATIENCE) else b""


# Whether there is a bwrap to be trusted, and whether it works here: found out by making a jail with it.
#
_WORKS = b"\0"

# One `struct sock_filter`: return SECCOMP_RET_ALLOW.
_ALLOW_EVERYTHING = (0x06).to_bytes(4, "little") + (0x7FFF0000).to_bytes(4, "little")


def bubblewrap_candidates(search: str) -> tuple[str, ...]:
    """The canonical paths at which a bwrap may be: in the absolute directories of `search`, a PATH."""
    return tuple(os.path.realpath(f"{place}/bwrap") for place in search.split(":") if place.startswith("/"))


def find_bubblewrap(among: tuple[str, ...]) -> str:
    """The first bwrap that can be executed and that nobody but root and this user can have put there, or "".

    It runs outside of every jail. So the file must belong to root or this user, with nobody else allowed to write it;
    the caller leaves out what an agent may have led to.
    """
    for path in among:
        try:
            found = os.stat(path)
        except OSError:
            continue
        trusted = found.st_uid in (0, os.geteuid()) and not found.st_mode & 0o002
        if trusted and S_ISREG(found.st_mode) and os.access(path, os.X_OK):
            return path
    return ""


def why_no_bubblewrap(path: str) -> str:
    """Why the bwrap at `path` is of no use here, "" when it is. Leaves no trace in the calling bubblewrap."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        # Nothing may escape from here: this is a copy of the caller, with all that it has on its stack.
        try:
            os.close(reading)
            os.write(writing, _tried(path).encode(errors="backslashreplace") or _WORKS)
        finally:
            os._exit(0)
    os.close(writing)
    said = b""
    while block := os.read(reading, 4096):
        said += block
    os.close(reading)
    os.waitpid(pid, 0)
    if said == _WORKS:
        return ""
    return said.decode() or "the process that tried it was killed"


def _shows_proc(running: Bubblewrap) -> str:
    """Why a command would not have its own /proc, "" when it would."""
    child = os.fork()
    if child == 0:
        try:
            running.join_user()
            bubblewrap.own_proc()
            os._exit(0)
        finally:
            os._exit(1)
    return "" if os.waitpid(child, 0)[1] == 0 else "it allows no mount of /proc in a nested PID namespace"


def _tried(path: str) -> str:
    spec = JailSpec()
    words = bubblewrap.argv(spec, layout.prepare(spec), uid=os.geteuid(), gid=os.getegid())
    try:
        running = Bubblewrap(path, words, _ALLOW_EVERYTHING)
        try:
            running.join()
            running.separate_first(())
            if why := _shows_proc(running):
                return why
        finally:
            running.end()
    except Refusal as refusal:
        return refusal.context.split("\n")[0]
    return ""
