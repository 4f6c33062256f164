"""The attach stream: a session's standard streams over the control socket.

``GET /v1/sessions/NAME/attach`` with ``Connection: Upgrade`` and ``Upgrade: paddock-stream`` is answered with 101, and
from then on both sides send frames: a letter, four bytes of length (little-endian), a payload (`launcher.jail.status`
has the same form). Query: ``mode=read`` (default) or ``write``, ``offset=N`` to get what is kept from there on
(``offset=0``: all that is kept), ``take=1`` to become the writer in place of another one.

``mode=acp`` is for editors (`launcher.service.api.acp_stream`).

From the server: ``H`` hello, ``O`` standard output, ``R`` standard error, ``X`` the session is over, ``E`` a refusal,
after which the stream ends. ``H``, ``X`` and ``E`` are JSON. To the server: ``I`` standard input, ``Z`` its end,
``K`` a signal's number in one byte.
"""

import asyncio
import json
import logging
from typing import Any
from urllib.parse import parse_qs

from launcher.jail.status import Decoder
from launcher.service.frames import (
    END,
    ERRORS,
    HEADER,
    HELLO,
    INPUT,
    MOST_FRAME,
    OUTPUT,
    OVER,
    REFUSED,
    SIGNAL,
    frame,
)
from launcher.service.running import Live
from launcher.service.streams import STDOUT, Piece
from launcher.service.supervisor import Supervisor
from policy.errors import Refusal

log = logging.getLogger("paddock.service")

_HIGH_WATER = 1 << 20
PATIENCE = 30.0
"""Seconds for which a client may hold the session up by not reading."""
UPGRADED = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: paddock-stream\r\n\r\n"


class AttachStream(asyncio.Protocol):
    """One attached client."""

    def __init__(self, supervisor: Supervisor, live: Live, *, write: bool, take: bool, offset: int | None) -> None:
        """Looks whether it may.

        Raises:
            Refusal: session-has-writer, session-no-stdin.
        """
        self._supervisor = supervisor
        self._live = live
        self._write = write
        self._offset = offset
        self._decoder = Decoder()
        self._transport: asyncio.Transport | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._pending = 0
        if write and live.request.stdin == "null":
            raise Refusal("session-no-stdin", f"session {live.name} has no standard input to write to",
                          hint="it was made with stdin null; look on: --read (mode=read)")  # fmt: skip
        if write and live.streams.writer is not None:
            if not take:
                raise Refusal("session-has-writer", f"another client writes to session {live.name}",
                              hint="look on: --read (mode=read); or take its place: --take (take=1)")  # fmt: skip
            if isinstance(live.streams.writer, AttachStream):
                live.streams.writer.displaced()
        if write:
            live.streams.writer = self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Says hello and subscribes."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=_HIGH_WATER)
        transport.write(UPGRADED)
        streams = self._live.streams
        first = streams.first if self._offset is not None else streams.offset
        wanted = streams.offset if self._offset is None else min(self._offset, streams.offset)
        self._send(HELLO, {"session": self._live.name, "mode": "write" if self._write else "read",
                           "offset": max(first, wanted), "missed": max(0, first - wanted)})  # fmt: skip
        streams.subscribe(self, self._offset)
        self._live.client.set()

    def _send(self, kind: bytes, content: dict[str, Any]) -> None:
        assert self._transport is not None
        self._transport.write(frame(kind, json.dumps(content).encode()))

    # Output

    def output(self, piece: Piece) -> None:
        """Passes output on."""
        assert self._transport is not None
        if not self._transport.is_closing():
            self._transport.write(frame(OUTPUT if piece.stream == STDOUT else ERRORS, piece.data))

    def over(self) -> None:
        """Tells that the session is over, and hangs up."""
        assert self._transport is not None
        if not self._transport.is_closing():
            session = self._supervisor.session(self._live.name)
            self._send(OVER, session.model_dump(mode="json"))
            self._transport.close()

    def displaced(self) -> None:
        """Another client writes from now on; this one may go on reading."""
        self._write = False

    def pause_writing(self) -> None:
        """The client does not read fast enough: the session waits for it, for a while."""
        self._live.streams.hold(self, held=True)
        self._patience = asyncio.get_running_loop().call_later(PATIENCE, self._let_go)

    def resume_writing(self) -> None:
        """It has caught up."""
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        self._live.streams.hold(self, held=False)

    def _let_go(self) -> None:
        assert self._transport is not None
        log.warning("a client of session %s did not read for %g s", self._live.name, PATIENCE)
        self._transport.abort()

    # Input

    def data_received(self, data: bytes) -> None:
        """Takes frames of the client's."""
        self._pending += len(data)
        try:
            for kind, payload in self._decoder.feed(data):
                self._pending -= HEADER + len(payload)
                self._frame(kind, payload)
            if self._pending > MOST_FRAME + HEADER:
                raise Refusal("request-large", "a frame of the stream is too long",
                              context=f"at most {MOST_FRAME} bytes")  # fmt: skip
        except Refusal as refusal:
            self._refuse(refusal)

    def _frame(self, kind: bytes, payload: bytes) -> None:
        streams = self._live.streams
        if kind in (INPUT, END, SIGNAL) and not self._write:
            raise Refusal("session-has-writer", "this client may only read", hint="attach with mode=write")
        if kind == INPUT:
            if not streams.write(payload):
                raise Refusal("request-large", "the session does not read its standard input",
                              context=f"{streams.waiting} bytes are waiting for it already")  # fmt: skip
        elif kind == END:
            streams.end_input()
        elif kind == SIGNAL and len(payload) == 1:
            self._supervisor.signal(self._live.name, payload[0])
        else:
            raise Refusal("request-invalid", "this is no frame of the stream")

    def _refuse(self, refusal: Refusal) -> None:
        assert self._transport is not None
        self._send(REFUSED, dict(refusal.as_dict()))
        self._transport.close()

    def eof_received(self) -> bool:
        """The client has left. Who only ends the session's input says so (`END`), because a socket cannot tell."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone; the session stays."""
        del exc
        if self._patience is not None:
            self._patience.cancel()
        self._live.streams.unsubscribe(self)


def attach(supervisor: Supervisor, name: str, query: str) -> asyncio.Protocol:
    """The stream for an upgrade request.

    Raises:
        Refusal: session-unknown, session-over, request-invalid, session-has-writer, session-no-stdin, session-not-acp,
            session-acp.
    """
    words = {key: values[-1] for key, values in parse_qs(query).items()}
    mode, offset = words.get("mode", "read"), words.get("offset")
    if mode not in ("read", "write", "acp") or (offset is not None and not (offset.isascii() and offset.isdigit())):
        raise Refusal("request-invalid", "the query cannot be understood", hint="mode=read|write|acp, offset=N, take=1")
    live = supervisor.required(name)
    if mode == "acp":
        from launcher.service.api.acp_stream import AcpStream

        return AcpStream(supervisor, live, take=words.get("take") == "1")
    if mode == "write" and live.request.bridge:
        raise Refusal("session-acp", f"session {name} speaks the Agent Client Protocol, and not with everybody at once",
                      hint="attach with mode=acp, or mode=read to look on")  # fmt: skip
    number = None if offset is None else int(offset[:18])
    return AttachStream(supervisor, live, write=mode == "write", take=words.get("take") == "1", offset=number)
