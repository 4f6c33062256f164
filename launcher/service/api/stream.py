"""The attach stream: a session's standard streams over the control socket.

``GET /v1/sessions/NAME/attach`` with ``Connection: Upgrade`` and ``Upgrade: paddock-stream`` is answered with 101, and
from then on both sides send frames: a letter, four bytes of length (little-endian), a payload (`launcher.jail.status`
has the same form). Query: ``mode=read`` (default) or ``write``, ``offset=N`` to get what is kept from there on
(``offset=0``: all that is kept), ``take=1`` to become the writer in place of another one.

``mode=acp`` is for editors (`launcher.service.api.acp_stream`).

From the server: ``H`` hello, ``O`` standard output, ``R`` standard error, ``X`` the session is over, ``E`` a refusal,
after which the stream ends. ``H``, ``X`` and ``E`` are JSON. To the server: ``I`` standard input, ``Z`` its end,
``K`` a signal's number in one byte, behind which a second one, 1, means the command's whole process group, as a
terminal would, ``W`` the terminal's size: rows and columns, two bytes each (little-endian).
"""

from urllib.parse import parse_qs

from launcher.service.api.client_stream import ClientStream
from launcher.service.frames import END, ERRORS, HELLO, INPUT, OUTPUT, SIGNAL, WINDOW
from launcher.service.models import Input
from launcher.service.running import Live
from launcher.service.streams import STDOUT, Piece
from launcher.service.supervisor import Supervisor
from policy.errors import Refusal


class AttachStream(ClientStream):
    """One attached client."""

    def __init__(self, supervisor: Supervisor, live: Live, *, write: bool, take: bool, offset: int | None) -> None:
        """Looks whether it may.

        Raises:
            Refusal: session-has-writer, session-no-stdin.
        """
        super().__init__(supervisor, live)
        self._write = write
        self._offset = offset
        if write and live.request.stdin is Input.NULL:
            raise Refusal("session-no-stdin", f"session {live.name} has no standard input to write to",
                          hint="it was made with stdin null; look on: --read (mode=read)")  # fmt: skip
        if write and live.streams.writer is not None:
            if not take:
                raise Refusal("session-has-writer", f"another client writes to session {live.name}",
                              hint=f"paddock attach {live.name} --read looks on (mode=read), "
                                   "--take writes in its place (take=1)")  # fmt: skip
            if isinstance(live.streams.writer, AttachStream):
                live.streams.writer.displaced()
        if write:
            live.streams.writer = self

    def joined(self) -> None:
        """Says hello and subscribes."""
        streams = self.live.streams
        first = streams.first if self._offset is not None else streams.offset
        wanted = streams.offset if self._offset is None else min(self._offset, streams.offset)
        self.send_json(HELLO, {"session": self.live.name, "mode": "write" if self._write else "read",
                               "offset": max(first, wanted), "missed": max(0, first - wanted),
                               "terminal": self.live.request.stdin is Input.TERMINAL})  # fmt: skip
        streams.subscribe(self, self._offset)

    def output(self, piece: Piece) -> None:
        """Passes output on."""
        self.send_frame(OUTPUT if piece.stream == STDOUT else ERRORS, piece.data)

    def displaced(self) -> None:
        """Another client writes from now on; this one may go on reading."""
        self._write = False

    def frame_received(self, kind: bytes, payload: bytes) -> None:
        """Takes a frame of the client's.

        Raises:
            Refusal: session-has-writer, request-large, request-invalid, and those of `Supervisor.signal`.
        """
        streams = self.live.streams
        if kind in (INPUT, END, SIGNAL, WINDOW) and not self._write:
            raise Refusal("session-has-writer", "this client may only read", hint="attach with mode=write")
        if kind == INPUT:
            if not streams.write(payload):
                raise Refusal("request-large", "the session does not read its standard input",
                              context=f"{streams.waiting} bytes are waiting for it already")  # fmt: skip
        elif kind == END:
            streams.end_input()
        elif kind == SIGNAL and (len(payload) == 1 or (len(payload) == 2 and payload[1] == 1)):
            self.supervisor.signal(self.live.name, payload[0], group=len(payload) == 2)
        elif kind == WINDOW and len(payload) == 4:
            streams.resize(int.from_bytes(payload[:2], "little"), int.from_bytes(payload[2:], "little"))
        else:
            raise Refusal("request-invalid", "this is no frame of the stream")

    def left(self) -> None:
        """The session stays."""
        self.live.streams.unsubscribe(self)


def attach(supervisor: Supervisor, name: str, query: str) -> ClientStream:
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
