"""A jail that is made before its session is known: a warm helper's, while it waits.

Two processes in new namespaces: the init, and the one that will be the command. What sessions have in common is done
in them: identity, loopback, /proc and /dev, the trees that are shown read-only. What they are not told yet, they cannot
give away. When a session comes whose Plan names all that (`Early.become`), they take over what is its own, and go on
as every jail does; for any other session they are ended, and its jail is made as it is without them.

Nothing is taken on trust from the time before: the parts are compared with the session's own operations, and what lies
at their paths with what was mounted. What is opened only now, a worktree or a grant, is opened among the mounts that
the machine had when their namespace was made: so they are nobody's any more once any mount has changed, wherever it
is. They end with the helper (`processes.tie_to_launcher`), and are used once, like the helper itself.

Loaded by warm helpers, with the launch path's imports: see launcher/jail/syscalls.py.
"""

import marshal
import select

from launcher.egress import start
from launcher.jail import capabilities, hygiene, init, pages, processes, seccomp, status, syscalls
from launcher.jail.namespaces import early, layout
from launcher.jail.namespaces import enter as namespaces
from launcher.jail.namespaces.view import ROOT
from launcher.lean import os
from launcher.session.mounts import Mounts
from launcher.session.worker import Worker
from policy import promises
from policy.errors import EXIT_REFUSED
from policy.plan import Plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    import signal as _signal
    from collections.abc import Callable
    from typing import Any, NoReturn
else:
    import _signal

Recipe = tuple[int, int | None, int, tuple[early.Part, ...]]
"""What an early jail is made from: CLONE_NEW* flags, bytes of its tmpfs or None, bound of process ids or 0, parts."""

_NOFILE = 7  # RLIMIT_NOFILE
_READY_WITHIN = 0.05
"""Seconds to wait for an early jail that is still being made; it was begun first, so it is the quicker one mostly."""

_PIECE = 1 << 16
_SWITCHES = "PADDOCK_"


class Jailed(Worker):
    """A session's `Worker` in the processes of an early jail, which have no copy of the launcher's."""

    __slots__ = ()

    def __init__(self, data: "tuple[Any, ...]", status_fd: int, channel: int = -1) -> None:
        """Takes what `told` gives.

        Args:
            data: that.
            status_fd: as `Worker.__call__` takes it.
            channel: of a proxy, which the command's process has to hand its sockets to.
        """
        plan, self._argv, self.environment, self._filter, self._uid, self._gid, telling, proxy, *further = data
        self._code, self.proof = further
        found = Plan.from_data(plan)
        assert found is not None
        self.plan = found
        self._status_fd = status_fd
        self._telling = seccomp.telling if telling else None
        self._egress = start.Egress.of_inside(proxy, channel) if channel != -1 else None
        self._limits = self._watch = self._bubblewrap = None
        self._bwrap, self._listener, self._held = "", -1, ()
        self._operations, self.namespaces = (), namespaces.flags(found)

    def hold(self, facts: "tuple[tuple[str, str, str], ...]") -> None:
        """Is told what holds already."""
        self._held = ("survival", *(name for name, state, _ in facts if state == "held"))

    def hand_out(self) -> None:
        """Passes the proxy its sockets."""
        if self._egress is not None:
            self._egress.hand_out()

    def serving(self, listener: int, directory: int) -> "tuple[int, Callable[[int, int], NoReturn]]":
        """What `init.Init` needs for further commands."""
        self._listener, self._code = listener, (directory, self._code[1])
        return listener, self._serve


def told(worker: Worker) -> "tuple[Any, ...]":
    """Of a session's worker what its jail needs, as plain data."""
    plan = worker.without_bound_pids() if worker.bound_pids else worker.plan
    proxy = worker._egress.inside() if worker._egress is not None else None
    telling = worker._telling is not None
    return (
        plan.to_data(), worker._argv, worker.environment, worker._filter, worker._uid, worker._gid, telling, proxy,
        worker._code, worker.proof,
    )  # fmt: skip


def recipe(worker: Worker) -> Recipe | None:
    """What would have been made early for this session; None where nothing can be.

    That is: other means than namespaces, limits with control groups, a command that is watched, the whole file system.
    """
    kind = _kind(worker)
    if kind is None:
        return None
    return *kind, tuple(found for found in map(early.part, worker._operations) if found is not None)


def _kind(worker: Worker) -> tuple[int, int | None, int] | None:
    if worker._limits is not None or worker._watch is not None or worker.plan.backend != promises.NAMESPACES:
        return None
    return worker.namespaces, dict(worker.plan.limits).get("disk"), worker.bound_pids


def common(one: Recipe | None, other: Recipe) -> Recipe:
    """A recipe that serves both sessions, if it can be and still has most of what the later one, `other`, needs."""
    if one is None or one[:3] != other[:3]:
        return other
    known = frozenset(one[3])
    shared = tuple(part for part in other[3] if part in known)
    return (*other[:3], shared) if 2 * len(shared) >= len(other[3]) else other


class Early:
    """An early jail, from the launcher's side. `become` or `discard` ends it.

    Attributes:
        recipe: what it was made from.
        used: a session has it.
    """

    __slots__ = ("_agent", "_child", "_first", "_mounts", "recipe", "used")

    def __init__(self, wanted: Recipe) -> None:
        """Starts to make it. To be called by the only thread, which must live as long as the jail.

        Raises:
            Refusal: userns-unavailable.
            OSError: there are no processes or descriptors left.
        """
        import _socket

        self.recipe = wanted
        self.used = False
        self._child = 0
        self._mounts = Mounts()  # before there is a namespace that a change would not reach
        self._agent, agent = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
        self._first, first = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
        pidfd = syscalls.pidfd_open(os.getpid())
        own = os.geteuid(), os.getegid()  # in the new namespace nobody has an id yet
        init.block_signals()
        try:
            self._child = processes.fork(wanted[0])
            if self._child == 0:
                _live(wanted, own, pidfd, agent, first)
        finally:
            init.unblock_signals()
            agent.close()
            first.close()
            os.close(pidfd)
            if not self._child:
                self._mounts.close()

    def become(self, worker: Worker, status_fd: int) -> int:
        """Makes it the jail of a session.

        Args:
            worker: of the session.
            status_fd: write end of the pipe to the launcher; stays the caller's.

        Returns:
            The process id of the jail's first process; 0 when it does not fit, and has ended.
        """
        try:
            left = None
            if _kind(worker) == self.recipe[:3] and not layout.terminal_name():
                left = early.remaining(frozenset(self.recipe[3]), worker._operations)
            if left is not None and (rows := self._confirmed()) is not None:
                self._hand_over(worker, status_fd, left, rows)
                child, self._child = self._child, 0
                self.used = True
                return child
        except OSError:  # it has ended, or something is short: the usual way will tell
            pass
        finally:
            self.discard()
        return 0

    def discard(self) -> None:
        """Ends it, unless a session has it. Safe to call twice."""
        self._mounts.close()
        self._agent.close()
        self._first.close()
        if self._child:
            os.kill(self._child, _signal.SIGKILL)
            os.waitpid(self._child, 0)
            self._child = 0

    def _confirmed(self) -> "tuple[tuple[str, str, str], ...] | None":
        """What it says of itself, if it is ready and all that it shows is as it was; else None."""
        poll = select.poll()
        poll.register(self._first.fileno(), select.POLLIN)
        if not poll.poll(_READY_WITHIN * 1000):
            return None
        content = _received(self._first, [])
        if not content:
            return None
        identities, rows = marshal.loads(content)
        paths = [path for kind, path, _ in self.recipe[3] if kind == layout.BIND]
        if identities != tuple(map(early.identity, paths)):
            return None
        if self._mounts.changed():
            return None
        found: tuple[tuple[str, str, str], ...] = rows
        return found

    def _hand_over(
        self,
        worker: Worker,
        status_fd: int,
        left: "tuple[layout.Operation, ...]",
        rows: "tuple[tuple[str, str, str], ...]",
    ) -> None:
        mask = os.umask(0)
        os.umask(mask)
        switches = {name: value for name, value in os.environ.items() if name.startswith(_SWITCHES)}
        shared = told(worker), switches
        steps = tuple(tuple(getattr(operation, name) for name in layout.Operation.__slots__) for operation in left)
        about = marshal.dumps((*shared, steps, rows, mask, syscalls.prlimit64(0, _NOFILE)))
        proxy = worker._egress.handed_over if worker._egress is not None else ()
        _send(self._agent, about, (status_fd, *worker.streams, *proxy))
        _send(self._first, marshal.dumps(shared), (status_fd, worker._listener, worker._code[0]))


def _send(channel: "_socket.socket", content: bytes, descriptors: tuple[int, ...]) -> None:
    import _socket

    head = len(content).to_bytes(8, "little")
    rights = b"".join(fd.to_bytes(4, "little") for fd in descriptors)
    ancillary = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)] if rights else []
    sent = channel.sendmsg([head, content], ancillary, _socket.MSG_NOSIGNAL)
    if sent < len(head) + len(content):
        channel.sendall((head + content)[sent:], _socket.MSG_NOSIGNAL)


def _received(channel: "_socket.socket", descriptors: list[int]) -> bytes:
    """What `_send` sent; b"" when the other end has gone."""
    import _socket

    content, size = b"", 8
    while len(content) < size:
        piece, ancillary, _, _ = channel.recvmsg(_PIECE, _socket.CMSG_SPACE(8 * 4), _socket.MSG_CMSG_CLOEXEC)
        if not piece:
            return b""
        for _, _, raw in ancillary:
            descriptors += [int.from_bytes(raw[at : at + 4], "little") for at in range(0, len(raw) - 3, 4)]
        content += piece
        if len(content) >= 8:
            size = 8 + int.from_bytes(content[:8], "little")
    return content[8:]


def _live(
    wanted: Recipe,
    user: tuple[int, int],
    launcher: int,
    agent_channel: "_socket.socket",
    channel: "_socket.socket",
) -> "NoReturn":
    """The first process: makes what is known, starts the command's process, then is the init of whatever comes."""
    # Nothing may escape from here: this is a copy of the launcher, with all that it has on its stack.
    try:
        processes.tie_to_launcher(launcher)
        hygiene.close_inherited((launcher, agent_channel.fileno(), channel.fileno()))
        flags, size, pids, parts = wanted
        rows = hygiene.bound_pids_row(pids) if pids else ()
        mask = os.umask(0)
        namespaces.identity(*user)
        view = early.EarlyView(size)
        identities = view.begin(parts)
        if flags & syscalls.CLONE_NEWNET:
            namespaces.loopback_up()
        os.umask(mask)
        capabilities.drop_bounding()
        # Its number is the status pipe's from the moment on that there is one.
        status_fd = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
        own = os.getpid()
        agent = os.fork()
        if agent == 0:
            channel.close()
            command = _Command(view, parts, agent_channel, status_fd)
            init.run_agent(status_fd, own, command.start, command.prepare)
        agent_channel.close()
        view.close()
        _send(channel, marshal.dumps((identities, rows)), ())
        descriptors: list[int] = []
        content = _received(channel, descriptors)
        channel.close()
        if content:
            data, switches = marshal.loads(content)
            os.dup2(descriptors[0], status_fd, inheritable=False)
            os.close(descriptors[0])
            os.environ.update(switches)
            worker = Jailed(data, status_fd)
            worker.hold(namespaces.facts(worker.plan, (), view))
            further = worker.serving(*descriptors[1:])
            init.Init(status_fd, launcher, agent, end_all=None, further=further, seen_as=own).run()
    finally:
        os._exit(EXIT_REFUSED)  # and the other process with it


class _Command:
    """The process that will be the command, as long as it waits, and when its session comes."""

    __slots__ = ("_channel", "_parts", "_status_fd", "_view", "_worker")

    def __init__(
        self, view: early.EarlyView, parts: tuple[early.Part, ...], channel: "_socket.socket", status_fd: int
    ) -> None:
        self._view = view
        self._parts = parts
        self._channel = channel
        self._status_fd = status_fd
        self._worker: Jailed | None = None

    def prepare(self) -> None:
        """Waits for the session, and takes over what is its own: streams, limits, mask, the rest of the view."""
        pages.own(f"{ROOT}/proc")
        descriptors: list[int] = []
        content = _received(self._channel, descriptors)
        if not content:
            os._exit(EXIT_REFUSED)  # the launcher has no use for it
        self._channel.close()
        for fd, number in zip(descriptors, (self._status_fd, 0, 1, 2), strict=False):
            os.dup2(fd, number, inheritable=number < 3)
            os.close(fd)
        data, switches, steps, rows, mask, open_files = marshal.loads(content)
        os.environ.update(switches)
        syscalls.prlimit64(0, _NOFILE, open_files)
        worker = self._worker = Jailed(data, self._status_fd, *descriptors[4:])
        left = tuple(layout.Operation(**dict(zip(layout.Operation.__slots__, step, strict=True))) for step in steps)
        os.umask(0)
        self._view.complete(left)
        namespaces.leave(worker.plan, self._view)
        os.umask(mask)
        done = (*(layout.Operation(kind, path, text=text) for kind, path, text in self._parts), *left)
        facts = namespaces.facts(worker.plan, done, self._view)
        status.send_report(self._status_fd, (*rows, *facts))
        worker.hold(facts)
        worker.hand_out()

    def start(self) -> "NoReturn":
        """Executes the command."""
        assert self._worker is not None
        self._worker.start()
