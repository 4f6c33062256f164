"""Who is attached to a session: the attach stream, which a shim speaks with the client itself.

``GET /v1/sessions/NAME/attach`` with ``Connection: Upgrade`` and ``Upgrade: paddock-stream`` is looked at by the
service, which then hands the connection over to the session's shim. It is answered with 101, and from then on both
sides send frames (`launcher.wire`): a letter, four bytes of length (little-endian), a payload.
Query: ``mode=read`` (default) or ``write``, ``offset=N`` to get what is kept from there on (``offset=0``: all that is
kept), ``take=1`` to become the writer in place of another one.

From the server: ``H`` hello, ``O`` standard output, ``R`` standard error, ``X`` the session is over, ``E`` a refusal,
after which the stream ends. ``H``, ``X`` and ``E`` are JSON; the first ``history`` bytes of output, as hello has it,
were written before. To the server: ``I`` standard input, ``Z`` its end,
``K`` a signal's number in one byte, behind which a second one, 1, means the command's whole process group, as a
terminal would, ``W`` the terminal's size: rows and columns, two bytes each (little-endian).

``mode=acp`` is for editors: ``I`` holds lines of the editor's, ``O`` lines for it, ``R`` the agent's standard error.
The end of the input (``Z``) and that of the connection are the editor's alone: the agent goes on. ``take=1``
makes this editor the one that writes.
"""

import json
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import parse_qs

from launcher import loop as loops
from launcher import wire
from launcher.service.packets import (
    END,
    ERRORS,
    HELLO,
    INPUT,
    MOST_FRAME,
    OUTPUT,
    OVER,
    REFUSED,
    SIGNAL,
    WINDOW,
)
from launcher.service.shim.streams import MOST_INPUT, STDOUT, TERMINAL, Piece, Streams
from policy.errors import Refusal

PATIENCE = 30.0
"""Seconds for which a client may hold the session up by not reading."""
UPGRADED = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: paddock-stream\r\n\r\n"
_PIECE = 64 << 10


class Host(Protocol):
    """The session, as its clients see it."""

    name: str
    request: dict[str, Any]
    streams: Streams

    def session(self) -> dict[str, Any]:
        """The fields of `launcher.service.schema.Session`."""
        ...

    def signal(self, number: int, *, group: bool = False) -> None:
        """Sends the command a signal, or refuses to."""
        ...

    def joined(self, client: "Client") -> None:
        """A client is attached."""
        ...

    def detached(self, client: "Client") -> None:
        """A client was detached."""
        ...


class Client(ABC):
    """One client. Says over which frames it takes (`frame_received`) and how it joins (`join`)."""

    high_water = 1 << 20
    """Bytes that may wait for the client before the session waits, too."""

    def __init__(self, host: Host) -> None:
        """Looks whether it may attach; `begin` attaches it."""
        self.host = host
        self._decoder = wire.Decoder(MOST_FRAME)
        self._connection: socket.socket | None = None
        self._waiting = bytearray()
        self._closing = False
        self._patience: loops.Timer | None = None
        self._paused = False

    @abstractmethod
    def join(self) -> None:
        """The connection is a stream now."""

    @abstractmethod
    def frame_received(self, kind: bytes, payload: bytes) -> None:
        """Takes a frame."""

    @abstractmethod
    def leave(self) -> None:
        """Detaches the client; the session stays."""

    def begin(self, connection: socket.socket, ahead: bytes) -> None:
        """Answers the upgrade request and attaches; the connection is owned here from now on."""
        connection.setblocking(False)
        self._connection = connection
        self._write(UPGRADED)
        if self._connection is None:  # it is gone already, and would count as attached for ever
            return
        self.host.joined(self)
        self.join()
        if self._connection is not None and not self._paused:
            loops.running().add_reader(connection.fileno(), self._read)
        if ahead:
            self._take(ahead)

    def send_frame(self, kind: bytes, payload: bytes) -> None:
        """Sends a frame, unless the stream has ended."""
        self._write(wire.frame(kind, payload))

    def send_json(self, kind: bytes, content: dict[str, Any]) -> None:
        """Sends a frame that holds JSON."""
        self.send_frame(kind, json.dumps(content).encode())

    def over(self) -> None:
        """Tells that the session is over, and hangs up."""
        self.send_json(OVER, self.host.session())
        self.hang_up()

    def hang_up(self) -> None:
        """Ends the stream behind what was sent, which the client has some time to read."""
        self._closing = True
        if not self._waiting:
            self._close()
        elif self._patience is None:
            self._patience = loops.running().call_later(PATIENCE, self._close)

    def pause(self) -> None:
        """Reads nothing more from the client, until `resume`."""
        if not self._paused:
            self._paused = True
            if self._connection is not None:
                loops.running().remove_reader(self._connection.fileno())

    def resume(self) -> None:
        """Reads on."""
        if self._paused:
            self._paused = False
            if self._connection is not None:
                loops.running().add_reader(self._connection.fileno(), self._read)

    def _write(self, data: bytes) -> None:
        if self._connection is None or self._closing:
            return
        self._waiting += data
        self._push()
        if len(self._waiting) > self.high_water and self._patience is None:
            self.host.streams.hold(self, held=True)
            self._patience = loops.running().call_later(PATIENCE, self._let_go)

    def _push(self) -> None:
        connection = self._connection
        if connection is None:
            return
        try:
            while self._waiting:
                del self._waiting[: connection.send(self._waiting, socket.MSG_NOSIGNAL)]
        except BlockingIOError:
            loops.running().add_writer(connection.fileno(), self._push)
        except OSError:
            self._close()
            return
        else:
            loops.running().remove_writer(connection.fileno())
            if self._closing:
                self._close()
                return
        if len(self._waiting) <= self.high_water // 4 and not self._closing:
            self._be_patient()
            self.host.streams.hold(self, held=False)

    def _be_patient(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _let_go(self) -> None:
        self.host.streams.log.note(f"a client did not read for {PATIENCE:g} s and was disconnected")
        self._close()

    def _read(self) -> None:
        connection = self._connection
        if connection is None:
            return
        try:
            data = connection.recv(_PIECE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._take(data)
        else:
            # The client has left. Who only ends the session's input says so (`END`), because a socket cannot tell.
            self._close()

    def _take(self, data: bytes) -> None:
        try:
            for kind, payload in self._decoder.feed(data):
                self.frame_received(kind, payload)
                if self._connection is None or self._closing:
                    return
        except Refusal as refusal:
            self._refuse(refusal)
        except wire.TooLong:
            self._refuse(Refusal("request-large", "a frame of the stream is too long",
                                 context=f"at most {MOST_FRAME} bytes"))  # fmt: skip

    def _refuse(self, refusal: Refusal) -> None:
        self.send_json(REFUSED, dict(refusal.as_dict()))
        self.hang_up()

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        self._be_patient()
        loop = loops.running()
        loop.remove_reader(connection.fileno())
        loop.remove_writer(connection.fileno())
        connection.close()
        self.host.streams.hold(self, held=False)
        self.leave()
        self.host.detached(self)


class StreamClient(Client):
    """One that reads a session's standard streams, and perhaps writes."""

    def __init__(self, host: Host, *, write: bool, take: bool, offset: int | None) -> None:
        """Looks whether it may."""
        super().__init__(host)
        self._writes = write
        self._offset = offset
        self._sized = False
        if write and host.request["stdin"] == "null":
            raise Refusal("session-no-stdin", f"session {host.name} has no standard input to write to",
                          hint="it was made with stdin null; watch it: --read (mode=read)")  # fmt: skip
        if write and host.streams.writer is not None:
            if not take:
                raise Refusal("session-has-writer", f"another client writes to session {host.name}",
                              hint=f"paddock attach {host.name} --read watches (mode=read), "
                                   "--take takes over writing (take=1)")  # fmt: skip
            if isinstance(host.streams.writer, StreamClient):
                host.streams.writer.displaced()
        if write:
            host.streams.writer = self

    def join(self) -> None:
        """Says hello and subscribes."""
        streams = self.host.streams
        first = streams.first if self._offset is not None else streams.offset
        wanted = streams.offset if self._offset is None else min(self._offset, streams.offset)
        begin = max(first, wanted)
        self.send_json(HELLO, {"session": self.host.name, "mode": "write" if self._writes else "read",
                               "offset": begin, "missed": max(0, first - wanted), "history": streams.offset - begin,
                               "terminal": self.host.request["stdin"] == TERMINAL})  # fmt: skip
        streams.subscribe(self, self._offset)

    def output(self, piece: Piece) -> None:
        """Passes output on."""
        self.send_frame(OUTPUT if piece.stream == STDOUT else ERRORS, piece.data)

    def displaced(self) -> None:
        """Another client writes from now on; this one may go on reading."""
        self._writes = False
        self.resume()

    def frame_received(self, kind: bytes, payload: bytes) -> None:
        """Takes a frame of the client's."""
        streams = self.host.streams
        if kind in (INPUT, END, SIGNAL, WINDOW) and not self._writes:
            raise Refusal("session-has-writer", "this client may only read", hint="attach with mode=write")
        if kind == INPUT:
            streams.write(payload, bounded=False)
            if streams.waiting > MOST_INPUT:
                self.pause()  # as a full pipe would
                streams.when_taken(self.resume)
        elif kind == END:
            streams.end_input()
        elif kind == SIGNAL and (len(payload) == 1 or (len(payload) == 2 and payload[1] == 1)):
            self.host.signal(payload[0], group=len(payload) == 2)
        elif kind == WINDOW and len(payload) == 4:
            rows, columns = (int.from_bytes(payload[at : at + 2], "little") for at in (0, 2))
            streams.resize(rows, columns, redraw=not self._sized)
            self._sized = True
        else:
            raise Refusal("request-invalid", "this is not a frame of the stream")

    def leave(self) -> None:
        """The session stays."""
        self.host.streams.unsubscribe(self)


def client_for(host: Host, query: str, editor: Callable[[bool], Client]) -> Client:
    """The client for an upgrade request."""
    words = {key: values[-1] for key, values in parse_qs(query).items()}
    mode, offset = words.get("mode", "read"), words.get("offset")
    if mode not in ("read", "write", "acp") or (offset is not None and not (offset.isascii() and offset.isdigit())):
        raise Refusal("request-invalid", "the query is not valid", hint="mode=read|write|acp, offset=N, take=1")
    take = words.get("take") == "1"
    if mode == "acp":
        if host.request["bridge"] != "acp":
            raise Refusal("session-not-acp", f"session {host.name} does not speak the Agent Client Protocol",
                          hint=f"paddock attach {host.name}")  # fmt: skip
        return editor(take)
    if mode == "write" and host.request["bridge"]:
        raise Refusal("session-acp", f"session {host.name} speaks the Agent Client Protocol, with one client at "
                      "a time", hint="attach with mode=acp, or mode=read to watch")  # fmt: skip
    number = None if offset is None else int(offset[:18])
    return StreamClient(host, write=mode == "write", take=take, offset=number)
