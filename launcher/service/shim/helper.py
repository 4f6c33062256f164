"""A session's launcher: a process that a shim has forked, that waits for one launch, and becomes that launch.

What it runs is what `paddock run` runs: the cached Plan, the private git directory, limits,
proxy, ledger, hand-off check and harvest. Only the interpreter's start and the imports lie behind it already. It is
used once: two sessions from one process would share its address space layout.

While it waits it makes a jail ahead, if the service has said what sessions have in common (`session.early`), and
another one when the machine's mounts have changed. The old one ends at once: an unmounted disk is not kept busy by it.

Messages (both ways, over a SEQPACKET socket): one letter, then data for `marshal`. A launch may be larger than
a packet, so it comes as a memory file, the first of the descriptors that its letter brings along.

Forked by `launcher.service.shim.attempt`. Launch path: see launcher/jail/syscalls.py.
"""

import gc
import marshal

from launcher.jail import init, pages, processes, syscalls
from launcher.lean import os
from policy.errors import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    import signal as _signal
    from collections.abc import Callable
    from typing import Any, NoReturn

    from launcher.session.early import Early, Recipe
else:
    import _signal

PREPARE = b"P"  # to the helper; data: the recipe of a jail to be made ahead
LAUNCH = b"L"  # to the helper; with a memory file, standard input, output and error
SESSION = b"S"  # from it: name, directory, worktree, its id, backend, network
JAIL = b"J"  # process id of the jail's first process
STARTED = b"B"  # the command is executed; data: when (`time.monotonic`), and whether in a jail that was made ahead
ENDED = b"X"  # status, limit that was passed, denials, harvest, hand-off changes, what was told
REFUSED = b"E"  # the Refusal as a dictionary
RECIPE = b"R"  # of a jail for this session, where it is not the one that was made ahead

_LETTERS = {"session": SESSION, "jail": JAIL, "started": STARTED, "ended": ENDED, "refused": REFUSED}
_NOFILE = 7  # RLIMIT_NOFILE
_TIOCSCTTY = 0x540E
_QUIET = 0.3
"""Seconds without a change of the mounts before a jail is made ahead again; they mostly change several at a time."""

_MOST_TOLD = 64 << 10
_MOST_MESSAGE = 128 << 10
"""Bytes of a message. A recipe is a list of paths, of some thousand bytes."""


def main(parent: int, descriptor: int, run: "Callable[..., int]") -> "NoReturn":
    """Waits for a launch and carries it out; the process ends with its exit status.

    Args:
        parent: process id of the shim, whose end is this process's, too.
        descriptor: of the socket.
        run: `launcher.verbs.run.supervised`.
    """
    processes.tie_to_parent(parent)
    gc.disable()  # as for every launch; and a collection would write to pages that the jail's processes share
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # no KeyboardInterrupt while a plan is made
    import _socket

    os.set_inheritable(descriptor, False)
    channel = _socket.socket(fileno=descriptor)
    # Now, because what is made ahead is to be in this process's own session from the beginning (setsid(2)).
    os.setsid()
    descriptors, ahead = _waited(channel)
    launch = _unpacked(descriptors)
    os._exit(_run(launch, channel, run, ahead))


def _waited(channel: "_socket.socket") -> "tuple[list[int], Early | None]":
    """Waits for the launch: the descriptors that came with it, and the jail that was made ahead meanwhile."""
    from launcher.session.mounts import Mounts

    mounts = Mounts()
    recipe: Recipe | None = None
    ahead: Early | None = None
    quiet = True
    while True:
        told, changed = mounts.wait(channel.fileno(), None if quiet else _QUIET)
        if changed and ahead is not None:
            ahead.discard()
            ahead = None
        if changed:
            quiet = False
        elif not told:
            quiet = True
            ahead = _prepared(recipe)
        if not told:
            continue
        data, descriptors = _received(channel)
        if data[:1] == PREPARE:
            recipe = marshal.loads(data[1:])
            if ahead is not None:
                ahead.discard()
            ahead = _prepared(recipe) if quiet else None
        elif data == LAUNCH and len(descriptors) == 4:
            mounts.close()
            return descriptors, ahead
        else:  # the shim has no use for this process any more
            os._exit(0)


def _prepared(recipe: "Recipe | None") -> "Early | None":
    """A jail made ahead; None where that cannot be: then the launch itself will say why, if it cannot be either."""
    if recipe is None:
        return None
    from launcher.session import early

    try:
        made = early.Early(recipe)
        pages.own()
        return made
    except (OSError, Refusal):
        return None


def _received(channel: "_socket.socket") -> tuple[bytes, list[int]]:
    """A message, with the descriptors that came along; b"" when the shim has closed its end."""
    import _socket

    data, ancillary, _, _ = channel.recvmsg(_MOST_MESSAGE, _socket.CMSG_SPACE(4 * 4), _socket.MSG_CMSG_CLOEXEC)
    return data, [
        int.from_bytes(raw[at : at + 4], "little")
        for level, kind, raw in ancillary
        if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS)
        for at in range(0, len(raw) - 3, 4)
    ]


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


def _run(launch: "dict[str, Any]", channel: "_socket.socket", run: "Callable[..., int]", ahead: "Early | None") -> int:
    def send(letter: bytes, data: "Any") -> None:  # noqa: ANN401  # what marshal takes
        try:
            channel.send(letter + marshal.dumps(data))
        except OSError:
            return  # the shim has gone, and with it, in a moment, this process

    started = False

    def observer(what: str, data: object) -> None:
        nonlocal started
        started = started or what == "started"
        if what == "jailed":
            _tell_recipe(data, ahead, send)
            return
        if what == "started":
            data = data, ahead is not None and ahead.used
        if what == "ended" and isinstance(data, tuple):
            data = _bounded(data)
        send(_LETTERS[what], data)

    try:
        os.chdir(launch["directory"])
        return run(launch["words"], observer, ahead)
    except Refusal as error:
        refusal = error
    except Exception as error:
        what = "ended, but not all that belongs to its end could be done" if started else "could not be started"
        refusal = init.failure(f"the session {what}", error)
    finally:
        if ahead is not None:
            ahead.discard()
    send(REFUSED, refusal.as_dict())
    return refusal.exit_code


def _tell_recipe(worker: "Any", ahead: "Early | None", send: "Callable[[bytes, Any], None]") -> None:  # noqa: ANN401
    """Says what could have been made ahead for this session, unless it was."""
    from launcher.session import early

    wanted = early.recipe(worker)
    if wanted is not None and (ahead is None or wanted != ahead.recipe) and len(marshal.dumps(wanted)) < _MOST_MESSAGE:
        send(RECIPE, wanted)


def _bounded(data: "tuple[Any, ...]") -> "tuple[Any, ...]":
    """What was told at the end, small enough for a packet."""
    if len(marshal.dumps(data)) <= _MOST_TOLD:
        return data
    status, limit, denials, harvest, changes, lines = data
    brief = {name: harvest[name] for name in ("state", "errorType", "message") if name in harvest} if harvest else None
    return status, limit, denials, brief, changes[:100], tuple(line[:200] for line in lines[:20])
