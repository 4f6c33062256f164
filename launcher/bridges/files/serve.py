"""A file server that stands alone, put together: sessions, jails, router, transport (`paddock files`)."""

import json
import os
import signal

import anyio
import uvicorn

from launcher.bridges.files import listening, server
from launcher.bridges.files.headers import SESSION_HEADER, TOKEN_HEADER
from launcher.bridges.files.jail import Jails, Outside
from launcher.bridges.files.known import KnownSessions
from launcher.bridges.files.router import Router
from launcher.bridges.files.sessions import LEGACY, Mode, Sessions, Tokens
from launcher.session import messages, planning
from launcher.session.places import Places

GRACE = 5
"""Seconds for calls that are under way when the server is to end."""


class Service:
    """What a server needs to know.

    Attributes:
        places: Paddock's own directories.
        options: launch options for jails.
        directories: worktrees by session id, "" for an id that names a live session.
        mode: what becomes of calls without a known session.
        base: where relative paths start for calls without one.
    """

    def __init__(
        self, places: Places, options: planning.Options, directories: dict[str, str], *, mode: Mode, base: str
    ) -> None:
        self.places = places
        self.options = options
        self.directories = directories
        self.mode = mode
        self.base = base

    def router(self, tokens: Tokens | None) -> Router:
        """A router for these sessions; with `tokens` each call must bring its session's."""
        submodules = self.options.get("--submodule", [])
        known = KnownSessions(
            self.places,
            self.directories,
            submodules=tuple(submodules) if isinstance(submodules, list) else (),
            freeze_root="--freeze-root" in self.options,
        )
        jails = Jails(self.places, self.options, known.live)
        sessions = Sessions(known.find, ended=known.ended, mode=self.mode, tokens=tokens)
        outside = (lambda: Outside(self.base)) if self.mode is Mode.COMPATIBLE else None
        return Router(sessions, jails.enter, outside)


def over_stdio(service: Service, session_id: str | None) -> int:
    """Serves one client, whose session is fixed, until it leaves. Returns the exit status."""
    if os.isatty(0):
        messages.say(
            "paddock: this speaks the Model Context Protocol on standard input; a client starts it. Ctrl-D ends it"
        )
    with server.ending(service.router(None)) as router:
        anyio.run(server.serve_stdio, router, session_id)
    return 0


def over_http(service: Service, address: str) -> int:
    """Serves until a signal ends it. Says on standard output, as one line of JSON, where it is and who may come.

    Args:
        service: what is served.
        address: see `listening.listen`.
    """
    tokens = Tokens()
    names = [*service.directories, *([LEGACY] if service.mode is Mode.COMPATIBLE else [])]
    issued = {name: tokens.issue(name) for name in names}
    listener, url = listening.listen(address)
    try:
        with server.ending(service.router(tokens)) as router:
            http = uvicorn.Server(
                uvicorn.Config(
                    server.application(router),
                    log_config=None,
                    access_log=False,
                    server_header=False,
                    lifespan="on",
                    timeout_graceful_shutdown=GRACE,
                )
            )

            # Under uvicorn's own handlers, which raise the signal again at the end: the workers are to be ended first.
            def end(*_: object) -> None:
                http.should_exit = True

            for ending in (signal.SIGTERM, signal.SIGINT):
                signal.signal(ending, end)
            words = {"url": url + server.PATH, "sessionHeader": SESSION_HEADER, "tokenHeader": TOKEN_HEADER}
            place = {"socket": os.path.abspath(address[len(listening.UNIX) :])} if _is_unix(address) else {}
            messages.show(json.dumps({**words, **place, "tokens": issued}))
            http.run(sockets=[listener])
    finally:
        listening.remove(address, listener)
    return 0


def _is_unix(address: str) -> bool:
    return address.startswith(listening.UNIX)
