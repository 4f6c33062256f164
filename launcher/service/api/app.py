"""The application: routes, bounds, and one shape for everything that goes wrong."""

import asyncio
import contextlib
import json
import logging
import math
import os
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from launcher.service import packets
from launcher.service.api import health, routes
from launcher.service.api.context import Context
from launcher.service.packets import status_of
from launcher.service.schema import Error
from policy.errors import Refusal, in_rows

# HTTP on the control socket: uvicorn's protocol with the peer checked first, bounds, and the upgrade to a stream.
#
# Everything that goes wrong before a request reaches the application is answered here, in the shape of all refusals.

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
        self._peer = packets.Peer(0, 0, 0)
        self._admission: asyncio.Task[None] | None = None
        self._ahead = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Identifies the peer before any byte from it is read."""
        super().connection_made(transport)
        self._watch()
        self._admission = self.loop.create_task(self._admit(transport, len(self.connections)))

    async def _admit(self, transport: asyncio.Transport, number: int) -> None:
        try:
            peer = await self._door.admit(transport.get_extra_info("socket"), number, transport.abort)
        except Refusal as refusal:
            if not transport.is_closing():
                self._door.warn(refusal)
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
        self.refuse(Refusal("request-invalid", "this is not a readable HTTP request", context=msg, hint=hint))

    def refuse(self, refusal: Refusal) -> None:
        """Answers with a refusal, as far as nothing else was answered, and hangs up."""
        self._unwatch()
        self._door.refused(refusal)
        if self.cycle is None or not self.cycle.response_started:
            self.transport.write(packets.raw(refusal))
        self.transport.close()

    def _should_upgrade(self) -> bool:
        return (self._get_upgrade() or b"").decode("latin-1") == STREAM

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hands the connection to the process that streams over it, and forgets it here."""
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


_CLOSE_SECONDS = 2
_WARN_SECONDS = 10.0


def config_of(app: Any, keep_alive: int) -> Config:  # noqa: ANN401  # an ASGI application
    """How uvicorn serves an application of the service's: by `ControlProtocol`, and believing no header about its peer.

    Args:
        app: see there.
        keep_alive: seconds for which a connection may wait for its next request.
    """
    return Config(
        app, http=ControlProtocol, ws="none", lifespan="off", loop="none", log_config=None, access_log=False,
        server_header=False, proxy_headers=False, timeout_keep_alive=keep_alive,
        timeout_graceful_shutdown=_CLOSE_SECONDS, h11_max_incomplete_event_size=MOST_HEADERS,
    )  # fmt: skip


class Server(uvicorn.Server):
    """uvicorn's, without signal handlers: those are the service's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals alone."""
        yield


class Door:
    """Who may come in, and where streams begin.

    Args:
        admit: looks at a connection (socket, number of connections, what cuts it), off the loop; raises a Refusal, or
            says who it is.
        upgrade: makes streams.
        request_seconds: patience with a request, asked each time.
        refused: hears of what is refused before it reaches the application.
    """

    def __init__(
        self,
        admit: Callable[[Any, int, Callable[[], None]], Awaitable[packets.Peer]],
        upgrade: Upgrade,
        request_seconds: Callable[[], float],
        refused: Callable[[Refusal], None],
    ) -> None:
        self.admit = admit
        self.upgrade = upgrade
        self.request_seconds = request_seconds
        self.refused = refused
        self._said = -math.inf
        self._unsaid = 0

    def warn(self, refusal: Refusal) -> None:
        """Logs that a connection was refused, now and then: whoever connects must not fill the log."""
        if time.monotonic() - self._said < _WARN_SECONDS:
            self._unsaid += 1
            return
        more = f"; {self._unsaid} more since the last such line" if self._unsaid else ""
        log.warning("connection refused: %s (%s)%s", refusal.message, refusal.context, more)
        self._said, self._unsaid = time.monotonic(), 0

    def application(self, app: Any) -> Any:  # noqa: ANN401  # an ASGI application
        """`app` with this door, for `uvicorn.Config`."""
        app.door = self
        return app


log = logging.getLogger("paddock.service")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_ANY = {
    400: {"model": Error, "description": "The request cannot be read."},
    413: {"model": Error, "description": "The request is too large."},
    422: {"model": Error, "description": "The request cannot be carried out."},
    503: {"model": Error, "description": "The service cannot do this now."},
}


def build(context: Context, version: str) -> FastAPI:
    """The ASGI application."""
    app = FastAPI(
        title="Paddock control API",
        version=version,
        docs_url=None,
        redoc_url=None,
        openapi_url="/v1/openapi.json",
        responses=_ANY,  # type: ignore[arg-type]  # the type is wider than its annotation
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.context = context
    for router in (routes.router, routes.git, health.router):
        app.include_router(router)
    app.add_exception_handler(Refusal, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unforeseen)
    return app


class Bounded:
    """An ASGI application whose requests have bodies of a bounded size."""

    def __init__(self, app: FastAPI, most: Callable[[], int]) -> None:
        self._app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, once its whole body is there and small enough."""
        most, seen = self._most(), 0
        for name, value in scope.get("headers", ()):
            if name == b"content-length" and (not value.isdigit() or int(value) > most):
                await self._refuse(send, most)
                return
        messages: list[MutableMapping[str, Any]] = []
        while not messages or messages[-1].get("more_body"):
            messages.append(await receive())
            seen += len(messages[-1].get("body", b""))
            if seen > most:
                await self._refuse(send, most)
                return

        async def replayed() -> MutableMapping[str, Any]:
            return messages.pop(0) if messages else await receive()

        await self._app(scope, replayed, send)

    async def _refuse(self, send: Send, most: int) -> None:
        refusal = Refusal(
            "request-large", "the request is too large", context=f"its body may have at most {most} bytes"
        )
        _count(self._app, refusal)
        await _answer(send, refusal)


def _count(app: FastAPI, refusal: Refusal) -> None:
    context: Context = app.state.context
    context.supervisor.counters.refused(refusal.as_dict())


async def _answer(send: Send, refusal: Refusal) -> None:
    body = json.dumps(refusal.as_dict()).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()),
               (b"connection", b"close")]  # fmt: skip
    await send({"type": "http.response.start", "status": status_of(refusal), "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _response(request: Request, refusal: Refusal) -> JSONResponse:
    _count(request.app, refusal)
    return JSONResponse(refusal.as_dict(), status_of(refusal))


async def _refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Refusal)
    return _response(request, error)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    """A request of another form than the OpenAPI document has. What was sent is not sent back: it may be secret."""
    assert isinstance(error, RequestValidationError)
    problems = [f"{'.'.join(str(part) for part in each['loc'])}: {each['msg']}" for each in error.errors()]
    refusal = Refusal("request-malformed", "the request does not match the API's schema",
                      context=in_rows(*problems[:20]), hint="GET /v1/openapi.json describes it")  # fmt: skip
    return _response(request, refusal)


async def _http(request: Request, error: Exception) -> JSONResponse:
    """What the framework refuses by itself: unknown routes and methods, bodies that it cannot read."""
    assert isinstance(error, HTTPException)
    hint = "GET /v1/openapi.json lists them"
    what = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        return _response(request, Refusal("route-unknown", f"there is no {what}", hint=hint))
    if error.status_code == 405:
        response = _response(request, Refusal("method-unknown", f"there is no {what}", hint=hint))
        response.headers.update(error.headers or {})
        return response
    return _response(request, Refusal("request-invalid", "the request cannot be read", context=str(error.detail)))


async def _unforeseen(request: Request, error: Exception) -> JSONResponse:
    log.error("%s %s", request.method, request.url.path, exc_info=error)
    refusal = Refusal("internal-error", "the service failed unexpectedly on this request", context=repr(error),
                      hint="this is a bug in Paddock; its log has more")  # fmt: skip
    return _response(request, refusal)
