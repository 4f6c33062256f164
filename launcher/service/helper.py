"""A warm helper: a process that has loaded what a launch needs, waits for one launch, and becomes that launch.

What it runs is what `paddock run` runs: the cached Plan, the private git directory, limits,
proxy, ledger, hand-off check and harvest. Only the interpreter's start and the imports lie behind it already. It is
used once: two sessions from one process would share its address space layout.

Messages (both ways, over a SEQPACKET socket): one letter, then data for `marshal`. A launch may be larger than
a packet, so it comes as a memory file, the first of the descriptors that its letter brings along.

Started by `launcher.service.pool` under `python -I -S`. Launch path: see launcher/jail/syscalls.py.
"""

import gc
import marshal
import time

from launcher.jail import init, processes, syscalls
from launcher.lean import os
from policy.errors import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    import signal as _signal
    from collections.abc import Callable
    from typing import Any, NoReturn
else:
    import _signal

LAUNCH = b"L"  # to the helper; with a memory file, standard input, output and error
SESSION = b"S"  # from it: name, directory, worktree, its id, backend, network
JAIL = b"J"  # process id of the jail's first process
STARTED = b"B"  # the command is about to be executed; data: when, after CLOCK_MONOTONIC, which all processes share
ENDED = b"X"  # status, limit that was passed, denials, harvest, hand-off changes, what was told
REFUSED = b"E"  # the Refusal as a dictionary

_LETTERS = {"session": SESSION, "jail": JAIL, "started": STARTED, "ended": ENDED, "refused": REFUSED}
_NOFILE = 7  # RLIMIT_NOFILE
_TIOCSCTTY = 0x540E
_MOST_TOLD = 64 << 10


def main(parent: int, descriptor: int, run: "Callable[..., int]") -> "NoReturn":
    """Waits for a launch and carries it out; the process ends with its exit status.

    Args:
        parent: process id of the service, whose end is this process's, too.
        descriptor: of the socket.
        run: `launcher.verbs.run.supervised`.
    """
    processes.tie_to_parent(parent)
    gc.disable()  # as for every launch; and a collection would write to pages that the jail's processes share
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # no KeyboardInterrupt while a plan is made
    import _socket

    os.set_inheritable(descriptor, False)
    channel = _socket.socket(fileno=descriptor)
    descriptors = _received(channel)
    os.setsid()
    launch = _unpacked(descriptors)
    os._exit(_run(launch, channel, run))


def _received(channel: "_socket.socket") -> list[int]:
    """The descriptors of the launch. Without one the service has no use for this process any more: it ends."""
    import _socket

    data, ancillary, _, _ = channel.recvmsg(16, _socket.CMSG_SPACE(4 * 4), _socket.MSG_CMSG_CLOEXEC)
    descriptors = [
        int.from_bytes(raw[at : at + 4], "little")
        for level, kind, raw in ancillary
        if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS)
        for at in range(0, len(raw) - 3, 4)
    ]
    if data != LAUNCH or len(descriptors) != 4:
        os._exit(0)
    return descriptors


def _unpacked(descriptors: list[int]) -> "dict[str, Any]":
    """Takes its place: standard streams, environment, directory, mask. Returns the launch."""
    memory, *streams = descriptors
    content = b""
    while piece := os.read(memory, 1 << 20):
        content += piece
    os.close(memory)
    for number, fd in enumerate(streams):
        os.dup2(fd, number, inheritable=True)
        os.close(fd)
    launch: dict[str, Any] = marshal.loads(content)
    if launch["terminal"]:
        import fcntl

        fcntl.ioctl(0, _TIOCSCTTY, 0)  # ioctl_tty(2): Ctrl-C and the window's size are for this session from now on
    _replace_environment(launch["environment"])
    os.umask(launch["umask"])
    hard = syscalls.prlimit64(0, _NOFILE)[1]
    syscalls.prlimit64(0, _NOFILE, (min(launch["open_files"], hard), hard))
    return launch


def _replace_environment(wanted: dict[str, str]) -> None:
    """Makes `wanted` the environment, for this module's `os` and for a real one that is imported later."""
    import posix

    for raw in list(posix.environ):
        posix.unsetenv(raw)
    posix.environ.clear()
    for name, value in wanted.items():
        encoded = os.fsencode(name), os.fsencode(value)
        posix.putenv(*encoded)
        posix.environ[encoded[0]] = encoded[1]
    os.environ.clear()
    os.environ.update(wanted)


def _run(launch: "dict[str, Any]", channel: "_socket.socket", run: "Callable[..., int]") -> int:
    def send(letter: bytes, data: "Any") -> None:  # noqa: ANN401  # what marshal takes
        try:
            channel.send(letter + marshal.dumps(data))
        except OSError:
            return  # the service has gone, and with it, in a moment, this process

    def observer(what: str, data: object) -> None:
        if what == "ended" and isinstance(data, tuple):
            data = _bounded(data)
        send(_LETTERS[what], time.monotonic() if what == "started" else data)

    try:
        os.chdir(launch["directory"])
        return run(launch["words"], observer)
    except Refusal as error:
        refusal = error
    except Exception as error:
        refusal = init.failure("the session could not be started", error)
    send(REFUSED, refusal.as_dict())
    return refusal.exit_code


def _bounded(data: "tuple[Any, ...]") -> "tuple[Any, ...]":
    """What was told at the end, small enough for a packet."""
    if len(marshal.dumps(data)) <= _MOST_TOLD:
        return data
    status, limit, denials, harvest, changes, lines = data
    brief = {name: harvest[name] for name in ("state", "errorType", "message") if name in harvest} if harvest else None
    return status, limit, denials, brief, changes[:100], tuple(line[:200] for line in lines[:20])
