"""What every upgraded connection has in common: frames of bounded size, a client that must read, one way to hang up.

`launcher.service.api.stream` says which frames there are.
"""

import asyncio
import json
import logging
from abc import ABC, abstractmethod
from typing import Any

from launcher.jail.status import Decoder
from launcher.service.frames import HEADER, MOST_FRAME, OVER, REFUSED, frame
from launcher.service.running import Live
from launcher.service.supervisor import Supervisor
from policy.errors import Refusal

log = logging.getLogger("paddock.service")

PATIENCE = 30.0
"""Seconds for which a client may hold the session up by not reading."""
UPGRADED = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: paddock-stream\r\n\r\n"


class ClientStream(asyncio.Protocol, ABC):
    """One client of one session. Says over which frames it takes (`frame_received`) and how it joins (`joined`)."""

    high_water = 1 << 20
    """Bytes that may wait for the client before the session waits, too."""

    def __init__(self, supervisor: Supervisor, live: Live) -> None:
        """Args: of all sessions; this one."""
        self.supervisor = supervisor
        self.live = live
        self._decoder = Decoder()
        self._pending = 0
        self._transport: asyncio.Transport | None = None
        self._patience: asyncio.TimerHandle | None = None

    @abstractmethod
    def joined(self) -> None:
        """The connection is a stream now."""

    @abstractmethod
    def frame_received(self, kind: bytes, payload: bytes) -> None:
        """Takes a frame.

        Raises:
            Refusal: ends the stream.
        """

    @abstractmethod
    def left(self) -> None:
        """The client has gone; the session stays."""

    def send_frame(self, kind: bytes, payload: bytes) -> None:
        """Sends a frame, unless the stream has ended."""
        assert self._transport is not None
        if not self._transport.is_closing():
            self._transport.write(frame(kind, payload))

    def send_json(self, kind: bytes, content: dict[str, Any]) -> None:
        """Sends a frame that holds JSON."""
        self.send_frame(kind, json.dumps(content).encode())

    def over(self) -> None:
        """Tells that the session is over, and hangs up."""
        self.send_json(OVER, self.supervisor.session(self.live.name).model_dump(mode="json"))
        self.hang_up()

    def hang_up(self) -> None:
        """Ends the stream behind what was sent."""
        assert self._transport is not None
        self._transport.close()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Answers the request; see `joined`."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=self.high_water)
        transport.write(UPGRADED)
        self.joined()
        self.live.client.set()

    def pause_writing(self) -> None:
        """The client does not read fast enough: the session waits for it, for a while."""
        self.live.streams.hold(self, held=True)
        self._patience = asyncio.get_running_loop().call_later(PATIENCE, self._let_go)

    def resume_writing(self) -> None:
        """It has caught up."""
        self._be_patient()
        self.live.streams.hold(self, held=False)

    def _be_patient(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _let_go(self) -> None:
        assert self._transport is not None
        log.warning("a client of session %s did not read for %g s", self.live.name, PATIENCE)
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Takes frames apart; one that is refused ends the stream."""
        assert self._transport is not None
        self._pending += len(data)
        try:
            for kind, payload in self._decoder.feed(data):
                self._pending -= HEADER + len(payload)
                self.frame_received(kind, payload)
                if self._transport.is_closing():
                    return
            if self._pending > MOST_FRAME + HEADER:
                raise Refusal("request-large", "a frame of the stream is too long",
                              context=f"at most {MOST_FRAME} bytes")  # fmt: skip
        except Refusal as refusal:
            self.send_json(REFUSED, dict(refusal.as_dict()))
            self.hang_up()

    def eof_received(self) -> bool:
        """The client has left. Who only ends the session's input says so (`END`), because a socket cannot tell."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """See `left`."""
        del exc
        self._be_patient()
        self.live.streams.hold(self, held=False)
        self.left()
