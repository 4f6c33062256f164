"""An editor's stream to an agent that lives in the service: ``mode=acp`` of the attach stream.

The frames are those of `launcher.service.api.stream`: ``I`` holds lines of the editor's, ``O`` lines for it, ``R``
what the agent says on standard error, ``X`` that the session is over. The end of the input (``Z``) and that of the
connection are the editor's alone: the agent goes on. ``take=1`` makes this editor the one that writes.
"""

import asyncio
import json
import logging

from launcher.jail.status import Decoder
from launcher.service.acp.agent import Lines, side_of
from launcher.service.api.stream import PATIENCE, UPGRADED
from launcher.service.frames import END, ERRORS, HEADER, HELLO, INPUT, MOST_FRAME, OUTPUT, OVER, REFUSED, frame
from launcher.service.running import Live
from launcher.service.supervisor import Supervisor
from policy.errors import Refusal

log = logging.getLogger("paddock.service.acp")

_HIGH_WATER = 4 << 20


class AcpStream(asyncio.Protocol):
    """One editor."""

    def __init__(self, supervisor: Supervisor, live: Live, *, take: bool) -> None:
        """Looks whether the session is of the kind.

        Raises:
            Refusal: session-not-acp.
        """
        if live.request.bridge != "acp":
            raise Refusal("session-not-acp", f"session {live.name} does not speak the Agent Client Protocol",
                          hint=f"paddock attach {live.name}")  # fmt: skip
        self._supervisor = supervisor
        self._live = live
        self._side = side_of(live)
        self._take = take
        self._decoder = Decoder()
        self._lines = Lines()
        self._pending = 0
        self._transport: asyncio.Transport | None = None
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Says hello, and joins."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=_HIGH_WATER)
        transport.write(UPGRADED)
        self._side.attach(self, take=self._take)
        hello = {"session": self._live.name, "mode": "acp", "writer": self._side.hub.writer is self}
        self._write(HELLO, json.dumps(hello).encode())
        self._live.client.set()

    def _write(self, kind: bytes, payload: bytes) -> None:
        assert self._transport is not None
        if not self._transport.is_closing():
            self._transport.write(frame(kind, payload))

    # From the agent

    def send(self, line: bytes) -> None:
        """Passes a line on, in as many frames as it takes."""
        for at in range(0, len(line), MOST_FRAME):
            self._write(OUTPUT, line[at : at + MOST_FRAME])

    def errors(self, data: bytes) -> None:
        """Passes on what the agent says on standard error."""
        self._write(ERRORS, data)

    def over(self) -> None:
        """Tells that the session is over, and hangs up."""
        assert self._transport is not None
        session = self._supervisor.session(self._live.name)
        self._write(OVER, json.dumps(session.model_dump(mode="json")).encode())
        self._transport.close()

    def pause_writing(self) -> None:
        """The editor does not read fast enough: the agent waits for it, for a while."""
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
        log.warning("an editor of session %s did not read for %g s", self._live.name, PATIENCE)
        self._transport.abort()

    # From the editor

    def data_received(self, data: bytes) -> None:
        """Takes frames of the editor's."""
        assert self._transport is not None
        self._pending += len(data)
        try:
            for kind, payload in self._decoder.feed(data):
                self._pending -= HEADER + len(payload)
                if kind == INPUT:
                    for line in self._lines.feed(payload):
                        self._side.hub.from_client(self, line)
                elif kind == END:
                    self._transport.close()
                    return
                else:
                    raise Refusal("request-invalid", "this is no frame of an editor's stream")
            if self._pending > MOST_FRAME + HEADER:
                raise Refusal("request-large", "a frame of the stream is too long",
                              context=f"at most {MOST_FRAME} bytes")  # fmt: skip
        except Refusal as refusal:
            self._write(REFUSED, json.dumps(refusal.as_dict()).encode())
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The editor has gone; the agent stays."""
        del exc
        if self._patience is not None:
            self._patience.cancel()
        self._live.streams.hold(self, held=False)
        self._side.detach(self)
