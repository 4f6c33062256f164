"""The control API from the other side: what `paddock ps`, `stop` and the others ask the service."""

import contextlib
import http.client
import json
import os
import pwd
import socket
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

from launcher.jail.processes import jailed
from launcher.service import instance
from launcher.session.places import SYSTEM_RUNTIME, Places
from launcher.session.state import NAME_RULE, control_address, valid_name
from policy.errors import Refusal, in_rows

_TIMEOUT = 330.0
_MANAGER_SECONDS = 2.0


class Client:
    """A client of one service. Each call uses a connection of its own, except calls that follow."""

    def __init__(self, places: Places) -> None:
        """Args: of the user whose service is asked."""
        self._candidates = candidates(places)

    def connect(self) -> socket.socket:
        """A connection to the control socket.

        Refusals: service-absent, service-stranger.
        """
        tried = []
        for path in self._candidates:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(_TIMEOUT)
            try:
                _connect(connection, path)
            except OSError as error:
                connection.close()
                tried.append(f"{path}: {error.strerror or error}")
                continue
            except Refusal:
                connection.close()
                raise
            return connection
        raise Refusal(
            "service-absent",
            "no Paddock service answers",
            context=in_rows(*tried),
            hint=_failed_unit() or "paddock serve starts one here; paddock service install lets systemd do it",
        )

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        query: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:  # noqa: ANN401  # whatever JSON the route answers with
        """Sends one request, and returns the answer's JSON, or None.

        Refusals: the service's own, or service-absent.
        """
        with contextlib.closing(self._request(method, path, body, query, headers)) as response:
            content = _whole(response)
        return json.loads(content) if content else None

    def text(self, path: str) -> str:
        """The answer of a route that speaks plain text.

        Refusals: see `call`.
        """
        with contextlib.closing(self._request("GET", path, None, None, None)) as response:
            return _whole(response).decode()

    def lines(self, path: str, query: Mapping[str, object]) -> Iterator[dict[str, Any]]:
        """JSON lines, as they come.

        Refusals: see `call`.
        """
        with contextlib.closing(self._request("GET", path, None, query, None)) as response:
            for line in response:
                yield json.loads(line)

    def events(self, query: Mapping[str, object]) -> Iterator[dict[str, Any]]:
        """Events of the service, as they come.

        Refusals: see `call`.
        """
        with contextlib.closing(self._request("GET", "/v1/events", None, query, None)) as response:
            for line in response:
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])

    def _request(
        self,
        method: str,
        path: str,
        body: object,
        query: Mapping[str, object] | None,
        headers: Mapping[str, str] | None,
    ) -> http.client.HTTPResponse:
        words = {
            name: value
            for name, value in (query or {}).items()
            if value is not None and value is not False and value != []
        }
        target = path + ("?" + urlencode(words, doseq=True) if words else "")
        connection = _Connection(self.connect())
        content = None if body is None else json.dumps(body).encode()
        try:
            # A service that refuses without reading says why, and the answer is there when sending fails.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, target, content, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            if response.status >= 400:
                raise _refusal(response)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise _broken_off(error) from None
        except Refusal:
            connection.close()
            raise
        return response

    def upgrade(self, path: str, query: Mapping[str, object]) -> tuple[socket.socket, bytes]:
        """Opens a stream: the connection, and the bytes already received from it.

        Refusals: see `call`.
        """
        connection = self.connect()
        words = {name: value for name, value in query.items() if value is not None}
        request = f"GET {path}?{urlencode(words)} HTTP/1.1\r\nhost: paddock\r\nconnection: upgrade\r\n"
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(f"{request}upgrade: paddock-stream\r\n\r\n".encode())
            head = b""
            while b"\r\n\r\n" not in head:
                piece = connection.recv(65_536)
                if not piece:
                    raise ConnectionResetError(104, "the service closed the connection")
                head += piece
            before, _, rest = head.partition(b"\r\n\r\n")
            if before.split(None, 2)[1] != b"101":
                while piece := connection.recv(65_536):
                    rest += piece
                raise Refusal.of(json.loads(rest))
        except (OSError, ValueError) as error:
            connection.close()
            raise _broken_off(error) from None
        except Refusal:
            connection.close()
            raise
        return connection, rest


def _failed_unit() -> str:
    """What to do about a unit of Paddock's that systemd no longer restarts after many crashes; "" without one."""
    from launcher.service.units import Manager, Scope

    for scope, name in ((Scope.USER, "paddock"), (Scope.SYSTEM, f"paddock@{_user()}")):
        manager = Manager(scope, os.environ, _MANAGER_SECONDS)
        if manager.runs() and (failed := manager.failed(f"{name}.service", f"{name}.socket")):
            user = " --user" if scope is Scope.USER else ""
            return (
                f"its unit has failed: systemctl{user} reset-failed {' '.join(failed)}"
                f" && systemctl{user} start {name}.socket; journalctl{user} -u {name}.service says why"
            )
    return ""


def session_path(name: str, what: str = "") -> str:
    """The route of a session.

    Refusals: usage.
    """
    return _route(f"/v1/sessions/{session_name(name)}", what)


def run_path(name: str, what: str = "") -> str:
    """The route of a ticket run.

    Refusals: usage.
    """
    return _route(f"/v1/ticket-runs/{_named(name, 'ticket run', 'paddock tickets list lists them')}", what)


def session_name(name: str) -> str:
    """A session's name as a caller has written it.

    Refusals: usage.
    """
    return _named(name, "session", "paddock ps --all lists them")


def _named(name: str, what: str, hint: str) -> str:
    # An empty name, or one with a slash, would make another route of the path that it is put into.
    if not valid_name(name):
        raise Refusal("usage", f"{name!r} cannot be the name of a {what}",
                      context=f"a name has {NAME_RULE}", hint=hint)  # fmt: skip
    return name


def _route(path: str, what: str) -> str:
    return f"{path}/{what}" if what else path


def candidates(places: Places) -> tuple[str, ...]:
    """Where a service of this user may listen: his own, then one that the system's manager runs for him."""
    return (f"{places.runtime}/{instance.SOCKET}", f"{SYSTEM_RUNTIME}/{_user()}/{instance.SOCKET}")


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _connect(connection: socket.socket, path: str) -> None:
    """Connects to exactly the socket at `path`, which must be one of this user's or root's."""
    directory = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        name = os.path.basename(path)
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if found.st_mode & 0o170000 != 0o140000:
            raise Refusal("service-stranger", f"{path} is not a socket",
                          context="a control socket is never used through a symbolic link",
                          hint="check it, then remove it")  # fmt: skip
        connection.connect(control_address(directory, name))
    finally:
        os.close(directory)
    from launcher.service import packets

    # Whoever listens (unix(7): who called listen(2)) is told everything, the environment included.
    answering = packets.of(connection)
    if answering.uid not in (os.geteuid(), 0):
        raise Refusal("service-stranger", f"{path} is answered by user {answering.uid}",
                      hint="only a service of this user or of root is trusted")  # fmt: skip
    if answering.uid == os.geteuid() and jailed(answering.pid):
        raise Refusal("service-stranger", f"{path} is answered by process {answering.pid}, which is in a jail",
                      hint="stop that session, and check what is there")  # fmt: skip


class _Connection(http.client.HTTPConnection):
    """HTTP over a socket that is connected already."""

    def __init__(self, connected: socket.socket) -> None:
        super().__init__("paddock", timeout=_TIMEOUT)
        self.sock = connected

    def connect(self) -> None:
        """It is."""


def _whole(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read()
    except (OSError, http.client.HTTPException) as error:
        raise _broken_off(error) from None


def _refusal(response: http.client.HTTPResponse) -> Refusal:
    content = response.read()
    try:
        return Refusal.of(json.loads(content))
    except (ValueError, KeyError, TypeError):
        return Refusal("service-answer", f"the service answered with status {response.status}",
                       context=content[:500].decode(errors="replace"))  # fmt: skip


def _broken_off(error: Exception) -> Refusal:
    return Refusal("service-gone", "the service's answer was cut off", context=str(error),
                   hint="paddock status; see its log")  # fmt: skip
