"""The page's own listener: a loopback port, its connections' peers, and the application behind its gate."""

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from launcher.loopback import LOOPBACKS, listening
from launcher.service import packets
from launcher.service.api.app import Door, Server, config_of
from launcher.service.api.context import Context
from launcher.service.page import attached, boards, denied, merging, overview, reviewing
from launcher.service.page.admission import FILE, TOKEN_SECONDS, Admissions, Gate, owner_of
from launcher.service.page.live import Tabs
from launcher.service.page.rendering import ROOT, page, refusal_page
from policy.errors import Refusal

_PORTS_TRIED = 64
_KEEP_ALIVE = 75
_MOST_STRANGERS = 64
"""Connections that no browser with a session has used; with one more, the oldest of them ends."""


def build(context: Context) -> FastAPI:
    """The page's routes. What they do is what the control API's routes do, by the same functions."""
    app = FastAPI(title="Paddock", openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.context = context
    app.state.tabs = Tabs(context)
    app.state.merges = merging.Merges()
    for room in (overview, attached, denied, reviewing, merging, boards):
        app.include_router(room.router)
    app.mount("/static", StaticFiles(directory=ROOT / "static", follow_symlink=False))
    app.add_exception_handler(Refusal, _refused)
    app.add_exception_handler(RequestValidationError, _unknown)
    app.add_exception_handler(HTTPException, _unknown)
    return app


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    context: Context = request.app.state.context
    context.supervisor.counters.refused(error.as_dict())
    return page(request, "error.html", packets.status_of(error), refusal=error)


async def _unknown(request: Request, error: Exception) -> Response:
    """A page that is none. What the request holds is not shown."""
    refusal = Refusal("route-unknown", "there is no such page", hint="the links at the top name all of them")
    if request.scope["path"].startswith("/static/"):
        return Response(status_code=404)
    return await _refused(request, refusal)


def take(port: int) -> list[socket.socket]:
    """Listens at one port of every loopback address, or at none.

    Whoever else listened at one of them would be the page to browsers: he would be sent the invitation and the cookie,
    and his scripts would be of the page's origin.

    Args:
        port: 0 for any that is free at all of them.

    Refusals: page-port.
    """
    tries = 1 if port else _PORTS_TRIED
    while True:
        tries -= 1
        try:
            return _listening(port)
        except Refusal:
            if not tries:
                raise


def _listening(port: int) -> list[socket.socket]:
    try:
        return [socket.socket(fileno=one.detach()) for one in listening(LOOPBACKS, port)]
    except OSError as error:
        raise Refusal("page-port", f"the page cannot listen on port {port}",
                      context=f"{error.filename}: {error.strerror}",
                      hint="take another one, or 0 for any that is free") from None  # fmt: skip


class Listener:
    """One port of this machine's loopback addresses, where the page is.

    Attributes:
        port: its number.
        admissions: who may come in.
    """

    def __init__(self, context: Context, port: int) -> None:
        """Listens. `port`: 0 for any that is free.

        Refusals: page-port.
        """
        sockets = take(port)
        self.port: int = sockets[0].getsockname()[1]
        self.admissions = Admissions(self.port)
        for left in Path(context.places.runtime).glob(f"{FILE}*.html"):  # by a service that was killed
            left.unlink(missing_ok=True)
        self._app = build(context)
        door = Door(self._admit, _no_upgrade, lambda: context.supervisor.settings.request_seconds,
                    lambda refusal: context.supervisor.counters.refused(refusal.as_dict()))  # fmt: skip
        self._context = context
        self._strangers: dict[Callable[[], None], None] = {}
        gate = Gate(self._app, self.admissions, refusal_page, lambda abort: self._strangers.pop(abort, None))
        self._server = Server(config_of(door.application(gate), _KEEP_ALIVE))
        self._serving = asyncio.get_running_loop().create_task(self._server.serve(sockets), name="page")

    def invite(self, *, plain: bool, file: bool) -> tuple[str, str | None]:
        """An address that lets one browser in, and on request a file that leads to it (`Admissions`)."""
        address = self.admissions.invite(plain=plain)
        if not file:
            return address, None
        asyncio.get_running_loop().call_later(TOKEN_SECONDS + 1, self.admissions.sweep)
        return address, self.admissions.file_of(address, self._context.places.runtime)

    async def _admit(self, connection: Any, number: int, abort: Callable[[], None]) -> packets.Peer:  # noqa: ANN401
        try:
            owner = owner_of(connection.getpeername()[:2], connection.getsockname()[:2])
        except OSError:  # it has gone already
            owner = None
        if owner not in (os.geteuid(), 0):
            raise Refusal("peer-refused", "this connection may not use the page",
                          context=f"only user {os.geteuid()} and root may; it belongs to user {owner}")  # fmt: skip
        # A jail that was granted the port can connect as often as it likes, and must not keep a browser out.
        self._strangers[abort] = None
        if len(self._strangers) > _MOST_STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest()
        if number > self._context.supervisor.settings.most_connections:
            raise Refusal("connections-exhausted", "the page's limit of connections is reached")
        return packets.Peer(0, owner, 0)

    async def close(self) -> None:
        """Ends all streams, then all connections; nobody is let in any more."""
        self.admissions.close()
        self._app.state.tabs.closing.set()
        self._app.state.tabs.watcher.stop()
        self._server.should_exit = True
        await self._serving


async def _no_upgrade(path: str, query: str, ahead: bytes, connection: int) -> None:
    raise Refusal("route-unknown", "the page has no such stream")
