"""The client's side of `paddock exec`: one further command in a live session, followed to its end.

Standard streams cross as descriptors, so the command reads and writes the caller's own pipes and sockets. Its files and
its terminal never do: see `Streams`. Signals that reach the client are passed on, and when the command stops, the
client stops.
"""

import _socket
import os
import select
import time

from launcher import wire
from launcher.jail import hygiene, init, minder, processes, reports
from launcher.session import state
from launcher.session.places import Places
from launcher.session.relayed import Relay, can_be_resumed, stop
from policy.errors import EXIT_REFUSED, Refusal, unusable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal

    from launcher.session.carrier import Carrier
else:
    import _signal


# What a further command gets for standard input, output and error. Never the caller's terminal itself.
#
# What a command leaves behind lives as long as its session, and a terminal that it was given it would keep: to read
# what the user types at his shell later, and to write there. So where output goes to the terminal, the command gets
# one of its own (`relayed`). Where it goes elsewhere, as in ``paddock exec s -- make | less``, the keys belong to
# whoever else is in front of the terminal: the command finds no input, and what it says on standard error crosses
# by a pipe.
#
# Files do not cross either: see `carrier`.


_CHUNK = 65536
_MOST_UNREAD = 1 << 20
"""Bytes: a pipe holds no more (pipe(7), pipe-max-size), but for who may make it larger."""
_ERROR = 2


class Streams:
    """The three streams of one command; owns what it makes.

    Attributes:
        kinds: for `request.Command.streams`.
        relay: between the caller's terminal and the command's, None where it has none.
        complaints: read end of the pipe for standard error, -1 where there is none.
        carrier: of files, None where there are none.
    """

    def __init__(self, launcher: int) -> None:
        """Makes pipes and a process where this one's streams need them (OSError, Refusal); ended with the launcher."""
        hygiene.fill_standard_fds()
        terminals = [os.isatty(fd) for fd in (0, 1, 2)]
        self.kinds = minder.DIRECT * 3
        self.relay: Relay | None = None
        self.complaints = -1
        self._passed = [0, 1, 2]
        self._own: list[int] = []
        self.carrier: Carrier | None = None
        if to_carry := hygiene.streams_to_carry():
            from launcher.session import carrier

            self.carrier = carrier.Carrier(to_carry, launcher=launcher)
            self._passed = list(self.carrier.streams)
            self._own += self.carrier.ends
        if terminals[1]:
            self.kinds = "".join(minder.PTY if terminal else minder.DIRECT for terminal in terminals)
            self._passed = [fd for fd, terminal in zip(self._passed, terminals, strict=True) if not terminal]
            self.relay = Relay(0, 1, keys=terminals[0])
            return
        if terminals[0]:
            self._passed[0] = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
            self._own.append(self._passed[0])
        if terminals[2]:
            self.complaints, self._passed[2] = os.pipe2(os.O_CLOEXEC)
            self._own.append(self._passed[2])
            os.set_blocking(self.complaints, False)

    def passed(self) -> list[int]:
        """The descriptors to send, one for each stream that is no terminal of the command's own."""
        return self._passed

    def sent(self) -> None:
        """They are on their way: closes those that were made for it, so that a pipe ends with the command."""
        for fd in self._own:
            os.close(fd)
        self._own.clear()

    def limit(self, size: int) -> None:
        """The session bounds files by this many bytes, if it is not 0: what the command writes to one counts.

        Only now anything is written: the command runs before this has been heard.
        """
        if self.carrier is not None:
            self.carrier.limit((("file_size", size),) if size else ())

    def wanted(self) -> list[tuple[int, int]]:
        """The descriptors to poll now, with events."""
        found = self.relay.wanted() if self.relay is not None else []
        return found if self.complaints == -1 else [*found, (self.complaints, select.POLLIN)]

    def serve(self, fd: int, events: int) -> None:
        """Moves bytes for what poll(2) has said about one of `wanted`."""
        if fd == self.complaints:
            self._pass_complaint()
        elif self.relay is not None:
            self.relay.serve(fd, events)

    def finish(self, *, impatient: bool) -> Refusal | None:
        """The command has ended: shows the rest of what it has said. Arguments and result: `Carrier.finish`."""
        if self.relay is not None:
            self.relay.finish()
        left = _MOST_UNREAD  # others may go on writing
        while left > 0 and self.complaints != -1 and (size := self._pass_complaint()):
            left -= size
        if self.carrier is None:
            return None
        return self.carrier.finish(ended=False, impatient=impatient)

    def close(self) -> None:
        """Gives the terminal back, and closes everything. Whoever still holds the pipe writes in vain."""
        self.sent()
        if self.relay is not None:
            self.relay.close()
        self._close_complaints()

    def _pass_complaint(self) -> int:
        """Returns how many bytes there were."""
        try:
            data = os.read(self.complaints, _CHUNK)
        except BlockingIOError:
            return 0
        if not data:
            self._close_complaints()
            return 0
        size = len(data)
        try:
            while data:
                data = data[os.write(_ERROR, data) :]
        except OSError:
            self._close_complaints()  # the terminal has hung up
        return size

    def _close_complaints(self) -> None:
        if self.complaints != -1:
            os.close(self.complaints)
            self.complaints = -1


ANSWER_TIMEOUT = 2.0
"""Seconds for a session to say what it is."""

_LOST = 128 + _signal.SIGKILL
_LOOK_AGAIN = 200  # milliseconds between two looks at whether a background job has come to the foreground


def connect(places: Places, name: str, socket: str = state.CONTROL, proof: str = state.PROOF_NAME) -> _socket.socket:
    """A connection to the control socket of the session `name`, or to another one, which wants another proof.

    Refusals: session-name, session-unknown, session-not-ours, session-deaf.
    """
    path = f"{places.state}/sessions/{state.check_name(name)}"
    try:
        directory = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise _unknown(places, name) from None
    except OSError as error:
        raise unusable(path, error) from None
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        owner = os.fstat(directory).st_uid
        if owner != os.geteuid():
            raise Refusal(
                "session-not-ours",
                f"the session {name} is not this user's",
                context=f"{path} belongs to user {owner}, this is user {os.geteuid()}",
                hint="only who started a session can run further commands in it",
            )
        connection.connect(state.control_address(directory, socket))
        # Whoever listens (SO_PEERCRED says who called listen(2)) answers with what this process will believe.
        launcher, uid = wire.peer(connection.fileno())
        if uid != os.geteuid():
            raise Refusal("session-not-ours", f"the session {name} is answered by another user")
        if processes.jailed(launcher):
            raise Refusal("session-not-ours", f"the session {name} is answered from a jail")
        try:
            connection.sendall(wire.frame(minder.PROOF, _proof(launcher, proof)))
        except (BrokenPipeError, ConnectionResetError):
            pass  # refused without having been read: the reason waits to be read
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        if name in state.live_sessions(places):
            if socket == state.QUESTIONS:
                raise Refusal("session-deaf", f"the session {name} asks nobody", hint="--ask yes") from None
            raise Refusal(
                "session-deaf",
                f"the session {name} takes no further commands",
                context="it is just starting or ending, or an older Paddock started it",
            ) from None
        raise _unknown(places, name) from None
    except OSError as error:
        connection.close()
        raise unusable(path, error) from None
    except Refusal:
        connection.close()
        raise
    finally:
        os.close(directory)
    return connection


def _proof(launcher: int, name: str) -> bytes:
    """What shows the session that this process lives in no jail; see `Session.proof`."""
    found = b""
    for fd in os.listdir(f"/proc/{launcher}/fd"):
        path = f"/proc/{launcher}/fd/{fd}"
        try:
            if os.readlink(path) == f"/memfd:{name} (deleted)":
                with open(path, "rb") as file:
                    found = file.read(state.PROOF_BYTES)
        except FileNotFoundError:
            continue  # closed meanwhile
    return found


def _unknown(places: Places, name: str) -> Refusal:
    live = state.live_sessions(places)
    return Refusal(
        "session-unknown",
        f"there is no live session {name}",
        context="live: " + (", ".join(live) or "none"),
        hint="paddock exec --list" if live else "paddock run --session NAME -- COMMAND starts one",
    )


def about(places: Places, name: str) -> "tuple[str, ...] | None":
    """What a session says of itself: worktree, command, backend, network, provider. None: it has no time to say."""
    try:
        connection = connect(places, name)
    except Refusal:
        return None
    try:
        deadline = time.monotonic() + ANSWER_TIMEOUT
        wire.send(connection.fileno(), wire.frame(minder.ABOUT))
        kind, payload = wire.receive(connection.fileno(), [], deadline=deadline)
        return tuple(map(str, reports.report(payload))) if kind == reports.REPORT else None
    except (OSError, wire.Malformed):
        return None
    finally:
        connection.close()


def run(connection: _socket.socket, command: minder.Command) -> int:
    """Runs `command` to its end, and returns its exit status: 128+N when signal N ended it.

    `command.streams` is chosen here. To be called once, in a process without other threads.

    Args:
        connection: from `connect`; closed at the end.

    Refusals: it could not be started (125, 126, 127), or the session ended first (137).
    """
    streams = Streams(wire.peer(connection.fileno())[0])
    command.streams = streams.kinds
    data = wire.frame(minder.COMMAND, command.encode())
    init.block_signals()
    signals = init.open_signals()
    client = _Client(connection, signals, streams)
    try:
        client.send(data, streams.passed())
        streams.sent()
        return client.follow()
    finally:
        client.close()
        connection.close()
        init.read_signals(signals)
        os.close(signals)
        init.unblock_signals()


class _Client:
    def __init__(self, connection: _socket.socket, signals: int, streams: Streams) -> None:
        self._connection = connection
        self._signals = signals
        self._streams = streams
        self._relay = streams.relay
        self._started = False
        self._status: int | None = None
        self._refusal: Refusal | None = None
        self._stop = 0
        self._asked_to_end = False
        self._open = True
        # The command waits for the start signal, so a terminal's master is awaited before anything else.
        self._decoder = wire.Decoder()

    def send(self, data: bytes, descriptors: list[int]) -> None:
        """Sends the request. A session that refuses without reading says why, so a failure is no end yet."""
        try:
            wire.send(self._connection.fileno(), data, tuple(descriptors))
        except (BrokenPipeError, ConnectionResetError):
            return

    def follow(self) -> int:
        while self._open and self._status is None:
            poll = select.poll()
            poll.register(self._connection, select.POLLIN)
            poll.register(self._signals, select.POLLIN)
            for fd, events in self._streams.wanted():
                poll.register(fd, events)
            wait = None if self._relay is None or self._relay.in_foreground() else _LOOK_AGAIN
            for fd, events in poll.poll(wait):
                if fd == self._signals:
                    self._on_signals()
                elif fd == self._connection.fileno():
                    self._on_message()
                else:
                    self._streams.serve(fd, events)
            if self._stop:
                self._stop_too()
        return self._result()

    def close(self) -> None:
        self._streams.close()

    def _result(self) -> int:
        lost = self._streams.finish(impatient=self._asked_to_end)
        if self._refusal is not None:
            raise self._refusal
        if self._status is None:
            raise Refusal(
                "session-ended",
                "the session has ended, and this command with it" if self._started else "the session has ended",
                context="a session ends with its first command",
                exit_code=_LOST if self._started else EXIT_REFUSED,
            )
        code = os.waitstatus_to_exitcode(self._status)
        code = code if code >= 0 else 128 - code
        if lost is not None:
            lost.exit_code = code or EXIT_REFUSED
            raise lost
        return code

    def _on_signals(self) -> None:
        for signal, code, _ in init.read_signals(self._signals):
            self._asked_to_end |= signal in init.ENDING
            if signal == _signal.SIGWINCH and self._relay is not None:
                self._relay.resize()
            elif not self._started and signal in init.ENDING:
                # Nobody listens yet, and a jail that hangs never will.
                self._open, self._started = False, True
                self._status = signal
            elif signal in (*init.FORWARDED, _signal.SIGCONT):
                # The terminal means the whole job; a process that sends one means who it names.
                self._pass_on(signal, group=code == init.SI_KERNEL)

    def _pass_on(self, signal: int, *, group: bool) -> None:
        self._say(wire.frame(minder.SIGNAL, bytes((signal, group))))

    def _say(self, data: bytes) -> None:
        try:
            self._connection.sendall(data)
        except OSError:
            return  # it has ended; its last words are on the way

    def _on_message(self) -> None:
        descriptors: list[int] = []
        data = wire.receive_piece(self._connection.fileno(), descriptors)
        if not data:
            self._open = False
        for kind, payload in self._decoder.feed(data):
            if kind == minder.TERMINAL and self._relay is not None and descriptors:
                self._relay.begin(descriptors.pop())
                self._say(wire.frame(minder.GO))
            elif kind == reports.STARTING:
                self._started = True
                self._streams.limit(int.from_bytes(payload, "little"))
            elif kind == reports.REFUSED:
                self._refusal = self._refusal or reports.refusal(payload)
            elif kind == reports.EXITED:
                self._status = reports.exited(payload)[0]
            elif kind == reports.STOPPED:
                self._stop = payload[0]
            elif kind == reports.CONTINUED:
                self._stop = 0
        for fd in descriptors:
            os.close(fd)

    def _stop_too(self) -> None:
        """Stops as the command did, so that the shell takes over; when continued, lets the command go on."""
        signal, self._stop = self._stop, 0
        from launcher.session import terminal

        if not can_be_resumed(signal, terminal=terminal.in_reach()):
            return  # left to whoever stopped it
        if self._relay is not None:
            self._relay.pause()
        stop(signal)
        if self._relay is not None:
            self._relay.resume()
        self._pass_on(_signal.SIGCONT, group=True)
