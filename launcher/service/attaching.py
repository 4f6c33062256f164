"""A terminal's or an editor's end of the attach stream: standard streams on one side, frames on the other."""

import json
import os
import select
import socket
from typing import Any

from launcher.jail.status import Decoder
from launcher.service.api.stream import END, ERRORS, HELLO, INPUT, MOST_FRAME, OUTPUT, OVER, REFUSED, frame
from launcher.service.client import Client, session_path
from launcher.service.jobs import refusal_of
from policy.errors import Refusal

DETACHED = 0
_PIECE = 64 << 10
_MOST_WAITING = 1 << 20
"""Bytes for the service that wait, before no more is read from standard input."""


class Attached:
    """One attached client, from standard input to standard output and error."""

    def __init__(self, connection: socket.socket, begun: bytes, *, ends_input: bool, sends: bool) -> None:
        """Takes over `connection`.

        Args:
            connection: upgraded.
            begun: what has come of the stream already.
            ends_input: the end of standard input is that of the session's; else this client leaves then.
            sends: standard input is read at all.
        """
        self._connection = connection
        self._decoder = Decoder()
        self._begun = begun
        self._ends_input = ends_input
        self._waiting = bytearray()
        self._reads = sends
        self._left = self._leaving = False
        self.over: dict[str, Any] | None = None

    def serve(self) -> int:
        """Carries until the session or this client's part in it ends.

        Returns:
            The session's exit status; `DETACHED` when it goes on.

        Raises:
            Refusal: the service's own; service-gone.
        """
        with self._connection as connection:
            connection.setblocking(False)
            self._take(self._begun)
            while self.over is None and not self._left:
                service = connection.fileno()
                reading = [service, *([0] if self._reads and len(self._waiting) < _MOST_WAITING else [])]
                ready, writable, _ = select.select(reading, [service] if self._waiting else [], [])
                if 0 in ready:
                    self._on_input()
                if writable:
                    self._push()
                if service in ready:
                    self._on_service()
        if self.over is None:
            return DETACHED
        status = (self.over.get("outcome") or {}).get("status")
        return status if isinstance(status, int) else 0

    def _on_input(self) -> None:
        data = os.read(0, _PIECE)
        if data:
            self._waiting += frame(INPUT, data)
        elif self._ends_input:
            self._reads = False
            self._waiting += frame(END)
        else:
            self._reads = False
            self._left = not self._waiting
            self._leaving = True

    def _push(self) -> None:
        try:
            del self._waiting[: self._connection.send(self._waiting)]
        except BlockingIOError:
            return
        except OSError as error:
            raise _gone(str(error)) from None
        if self._leaving and not self._waiting:
            self._left = True

    def _on_service(self) -> None:
        try:
            data = self._connection.recv(MOST_FRAME)
        except BlockingIOError:
            return
        except OSError as error:
            raise _gone(str(error)) from None
        if not data:
            raise _gone("it hung up")
        self._take(data)

    def _take(self, data: bytes) -> None:
        for kind, payload in self._decoder.feed(data):
            if kind in (OUTPUT, ERRORS):
                _write(1 if kind == OUTPUT else 2, payload)
            elif kind == OVER:
                self.over = json.loads(payload)
            elif kind == REFUSED:
                raise refusal_of(json.loads(payload))
            elif kind != HELLO:
                raise _gone(f"it said {kind!r}, which this version does not know")


def attach(client: Client, name: str, *, mode: str, take: bool, replay: bool) -> Attached:
    """Joins a session.

    Args:
        client: of the service.
        name: the session's.
        mode: "read", "write" or "acp".
        take: in place of the one who writes now.
        replay: with the output that is kept.

    Raises:
        Refusal: the service's own.
    """
    query = {"mode": mode, "take": 1 if take else None, "offset": 0 if replay and mode != "acp" else None}
    connection, begun = client.upgrade(session_path(name, "attach"), query)
    return Attached(connection, begun, ends_input=mode == "write", sends=mode != "read")


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _gone(why: str) -> Refusal:
    return Refusal("service-gone", "the service went away while this client was attached", context=why,
                   hint="paddock ps --all says what became of the session")  # fmt: skip
