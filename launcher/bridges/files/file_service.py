"""A file server that stands alone, put together: sessions, jails, router, transport (`paddock files`)."""

import ipaddress
import json
import os
import signal
import socket
import stat
import threading
import time
from collections.abc import Callable, Mapping

import anyio
import uvicorn

from launcher.bridges.files import mcp_server
from launcher.bridges.files.mcp_server import SESSION_HEADER, TOKEN_HEADER
from launcher.bridges.files.router import LEGACY, Mode, Router, Sessions, Tokens
from launcher.bridges.files.workers import Jails, Outside
from launcher.session import exec_client, messages, planning
from launcher.session.machine import Machine
from launcher.session.places import Places
from launcher.vcs import checkout
from launcher.vcs.worktrees import models
from policy.errors import Refusal
from policy.sandbox_context import WorktreeSandboxContext

# Where the server listens: a port of the loopback, or a unix socket of its owner's.


UNIX = "unix:"


def listen(address: str) -> tuple[socket.socket, str]:
    """A listening socket (the caller owns it), and the URL at which it answers.

    Args:
        address: ``HOST:PORT`` with a loopback host and 0 for any free port, or ``unix:PATH``.

    Refusals: http-address, http-not-loopback, http-unusable.
    """
    if address.startswith(UNIX):
        return _unix(address[len(UNIX) :]), "http://localhost"
    host, colon, port = address.rpartition(":")
    host = host.strip("[]")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise Refusal("http-address", f"{address!r} is not an address to listen on", hint="--http 127.0.0.1:0")
    return _loopback(host, int(port))


def remove_socket(address: str, listener: socket.socket) -> None:
    """Removes the unix socket again, if it is still this one's name, and closes the listener."""
    listener.close()
    if address.startswith(UNIX):
        try:
            os.unlink(address[len(UNIX) :])
        except FileNotFoundError:
            return


def _loopback(host: str, port: int) -> tuple[socket.socket, str]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise Refusal("http-address", f"{host!r} is not a host", context=error.strerror or str(error)) from None
    family, kind, protocol, _, where = found
    if not ipaddress.ip_address(where[0]).is_loopback:
        raise Refusal(
            "http-not-loopback",
            f"{host} is an address that other machines can reach",
            context="tokens and files would cross the network in clear text",
            hint="--http 127.0.0.1:PORT, and a tunnel (ssh -L) from elsewhere",
        )
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise _unusable(f"{host}:{port}", error) from None
    shown = f"[{where[0]}]" if family == socket.AF_INET6 else where[0]
    return listener, f"http://{shown}:{listener.getsockname()[1]}"


def _unix(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        _remove_dead(path)
        listener.bind(path)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise _unusable(path, error) from None
    finally:
        os.umask(mask)
    return listener


def _remove_dead(path: str) -> None:
    """Removes a socket on which nobody listens any more; anything else stays, and is in the way."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)


def _unusable(where: str, error: OSError) -> Refusal:
    return Refusal("http-unusable", f"cannot listen on {where}", context=error.strerror or str(error))


# The sessions of a server that stands alone: those it was given a directory for, and live ones by their names.


FRESH = 1.0
"""Seconds for which what a live session said of itself is believed."""


class KnownSessions:
    """Boundaries by session id. Safe to share between threads.

    An id keeps its live session's name, and the worktree in which that was first found: agents choose ids, too.

    Args:
        directories: worktrees by id.
        live: names of running sessions by id.
    """

    def __init__(
        self,
        places: Places,
        directories: Mapping[str, str],
        live: Mapping[str, str],
        *,
        submodules: tuple[str, ...] = (),
        freeze_root: bool = False,
    ) -> None:
        self._places = places
        self._directories = dict(directories)
        self._live = dict(live)
        self._submodules = list(submodules)
        self._freeze_root = freeze_root
        self._lock = threading.Lock()
        self._contexts: dict[str, WorktreeSandboxContext] = {}
        self._asked: dict[str, tuple[float, str]] = {}
        self._first: dict[str, str] = {}
        for session_id in self._live:
            self._of_live(session_id)

    def find(self, session_id: str) -> WorktreeSandboxContext | None:
        """The session's boundaries, None when it is unknown or does not run.

        Refusals: its directory is missing, is no worktree, or lacks a submodule that was asked for.
        """
        directory = self._directories.get(session_id) or self._of_live(session_id)
        if not directory:
            return None
        with self._lock:
            known = self._contexts.get(directory)
        if known is None:
            if not os.path.isdir(directory):  # made later, it counts from then on
                raise Refusal("worktree-missing", f"there is no directory {directory}")
            found = checkout.find(directory, Machine(os.environ), exact=True)
            known = models.context_of(planning.boundaries_of(found, self._submodules, self._freeze_root))
            with self._lock:
                known = self._contexts.setdefault(directory, known)
        return known

    def ended(self, session_id: str) -> bool:
        """Whether it was there before: such a one is never taken for an unknown one."""
        return session_id in self._live

    def live(self, session_id: str) -> str | None:
        """The name of the running session that the id stands for."""
        return self._live.get(session_id)

    def _of_live(self, session_id: str) -> str:
        """The worktree of a running session, "" when it does not run, or runs in another one than before."""
        name = self._live.get(session_id)
        if name is None:
            return ""
        now = time.monotonic()
        with self._lock:
            asked, directory = self._asked.get(session_id, (-FRESH, ""))
        if now - asked < FRESH:
            return directory
        said = exec_client.about(self._places, name)
        directory = said[0] if said else ""
        with self._lock:
            if directory and self._first.setdefault(session_id, directory) != directory:
                directory = ""
            self._asked[session_id] = now, directory
        return directory


GRACE = 5
"""Seconds for calls that are under way when the server is to end."""


class Service:
    """What a server needs to know.

    Attributes:
        places: Paddock's own directories.
        options: launch options for jails.
        directories: worktrees by session id.
        live: names of running sessions by the ids that stand for them.
        mode: what becomes of calls without a known session.
        base: where relative paths start for calls without one.
    """

    def __init__(
        self,
        places: Places,
        options: planning.Options,
        directories: Mapping[str, str],
        live: Mapping[str, str],
        *,
        mode: Mode,
        base: str,
    ) -> None:
        self.places = places
        self.options = options
        self.directories = directories
        self.live = live
        self.mode = mode
        self.base = base

    def router(self, tokens: Tokens | None) -> Router:
        """A router for these sessions; with `tokens` each call must bring its session's."""
        submodules = self.options.get("--submodule", [])
        known = KnownSessions(
            self.places,
            self.directories,
            self.live,
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
    with mcp_server.ending(service.router(None)) as router:
        anyio.run(mcp_server.serve_stdio, router, session_id)
    return 0


def over_http(service: Service, address: str) -> int:
    """Serves until a signal ends it. Says on standard output, as one line of JSON, where it is and who may come."""
    tokens = Tokens()
    names = [*service.directories, *service.live, *([LEGACY] if service.mode is Mode.COMPATIBLE else [])]
    issued = {name: tokens.issue(name) for name in names}
    listener, url = listen(address)
    try:
        with mcp_server.ending(service.router(tokens)) as router:
            words = {"url": url + mcp_server.PATH, "sessionHeader": SESSION_HEADER, "tokenHeader": TOKEN_HEADER}
            place = {"socket": os.path.abspath(address[len(UNIX) :])} if _is_unix(address) else {}
            said = json.dumps({**words, **place, "tokens": issued})
            serve(router, listener, ready=lambda: messages.show(said))
    finally:
        remove_socket(address, listener)
    return 0


def serve(
    router: Router,
    listener: socket.socket,
    workflow: mcp_server.Workflow | None = None,
    *,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serves over HTTP until SIGTERM or SIGINT; `ready` is called once these end it in order."""
    http = uvicorn.Server(
        uvicorn.Config(
            mcp_server.application(router, workflow),
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
    ready()
    http.run(sockets=[listener])


def _is_unix(address: str) -> bool:
    return address.startswith(UNIX)
