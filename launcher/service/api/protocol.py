"""HTTP on the control socket: uvicorn's protocol with the peer checked first, bounds, and the upgrade to a stream.

Everything that goes wrong before a request reaches the application is answered here, in the shape of all refusals.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from launcher.service import peers
from launcher.service.api import status
from policy.errors import Refusal

log = logging.getLogger("paddock.service")

STREAM = "paddock-stream"
"""The protocol's name in an Upgrade header (RFC 9110, section 7.8)."""

MOST_HEADERS = 32 << 10

Upgrade = Callable[[str, str, bytes, int], Awaitable[None]]
"""Hands a connection over (path, query, what was sent behind the request, descriptor), or raises a Refusal."""


class ControlProtocol(H11Protocol):
    """One connection. `Door` makes them."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._door: Door = config.app.door  # type: ignore[union-attr]  # `Door.application` puts it there
        self._deadline: asyncio.TimerHandle | None = None
        self._peer = peers.Peer(0, 0, 0, 0)
        self._admission: asyncio.Task[None] | None = None
        self._ahead = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Looks who it is; nothing of what it sends is read before that is known."""
        super().connection_made(transport)
        self._watch()
        self._admission = self.loop.create_task(self._admit(transport, len(self.connections)))

    async def _admit(self, transport: asyncio.Transport, number: int) -> None:
        try:
            peer = await self._door.admit(transport.get_extra_info("socket"), number)
        except Refusal as refusal:
            if not transport.is_closing():
                log.warning("connection refused: %s (%s)", refusal.message, refusal.context)
                self.refuse(refusal)
            return
        if transport.is_closing():
            return
        self._peer = peer
        self.app_state = {**self.app_state, "peer": peer, "abort": transport.abort}
        self._admission = None
        if self._ahead:
            transport.resume_reading()
            self.data_received(self._ahead)
            self._ahead = b""

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops watching."""
        self._unwatch()
        if self._admission is not None:
            self._admission.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Takes a piece of a request, which must be whole in time."""
        if self.transport.is_closing():
            return
        if self._admission is not None:
            self.transport.pause_reading()
            self._ahead += data
            return
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self.conn.their_state is h11.SEND_BODY or (self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]):
            self._watch()
        else:
            self._unwatch()

    def _watch(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self._door.request_seconds(), self._too_slow)

    def _unwatch(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        seconds = f"{self._door.request_seconds():g} s"
        self.refuse(Refusal("request-slow", "the request did not arrive in time", context=f"within {seconds}"))

    def send_400_response(self, msg: str) -> None:
        """For what is no HTTP."""
        hint = f"headers have room for {MOST_HEADERS} bytes"
        self.refuse(Refusal("request-invalid", "this is no HTTP request that can be read", context=msg, hint=hint))

    def refuse(self, refusal: Refusal) -> None:
        """Answers with a refusal, as far as nothing else was answered, and hangs up."""
        self._unwatch()
        self._door.refused(refusal)
        if self.cycle is None or not self.cycle.response_started:
            self.transport.write(status.raw(refusal))
        self.transport.close()

    def _should_upgrade(self) -> bool:
        return (self._get_upgrade() or b"").decode("latin-1") == STREAM

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hands the connection over to whoever streams over it: the other process has it then, and this one no more."""
        self._unwatch()
        path, _, query = event.target.decode("ascii", "replace").partition("?")
        # What the client has sent ahead of the answer belongs to the stream.
        self.conn.next_event()
        ahead = self.conn.trailing_data[0]
        self._unset_keepalive_if_required()
        self.transport.pause_reading()
        self._handing = self.loop.create_task(self._hand_over(path, query, ahead))

    async def _hand_over(self, path: str, query: str, ahead: bytes) -> None:
        connection = os.dup(self.transport.get_extra_info("socket").fileno())
        try:
            await self._door.upgrade(path, query, ahead, connection)
        except Refusal as refusal:
            self.refuse(refusal)
        else:
            self.transport.abort()  # closes this process's descriptor; the connection is another one's
        finally:
            os.close(connection)


class Door:
    """Who may come in, and where streams begin.

    Args:
        admit: looks at a connection (socket, number of connections), off the loop; raises a Refusal, or says who it
            is.
        upgrade: makes streams.
        request_seconds: patience with a request, asked each time.
        refused: hears of what is refused before it reaches the application.
    """

    def __init__(
        self,
        admit: Callable[[Any, int], Awaitable[peers.Peer]],
        upgrade: Upgrade,
        request_seconds: Callable[[], float],
        refused: Callable[[Refusal], None],
    ) -> None:
        """See the class."""
        self.admit = admit
        self.upgrade = upgrade
        self.request_seconds = request_seconds
        self.refused = refused

    def application(self, app: Any) -> Any:  # noqa: ANN401  # an ASGI application
        """`app` with this door, for `uvicorn.Config`."""
        app.door = self
        return app
