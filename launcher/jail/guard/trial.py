"""Whether the guard can work here, found out by trying all it needs on a child of its own.

Not on the launch path of a cached plan.
"""

import select

from launcher.jail import filtering, hygiene, seccomp, syscall_tables, syscalls
from launcher.jail.bpf import Program
from launcher.jail.guard.call import Call
from launcher.jail.guard.listener import Listener
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


def works() -> tuple[bool, str]:
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
        fd = filtering.install_notifying(_program())
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
        return said[1:].decode(errors="replace") or "the process that tried said nothing"
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
            return "the process's memory was not what it should be"
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
