"""The agent's side of a hub: the standard streams of its session, cut into lines."""

import logging
from typing import Protocol

from launcher.service.acp.hub import Client, Hub
from launcher.service.running import Live
from launcher.service.streams import STDOUT, Piece

log = logging.getLogger("paddock.service.acp")

MOST_LINE = 16 << 20
"""Bytes of one line, which is parsed as a whole."""


class Lines:
    """Cuts bytes into lines. One that is too long is dropped, and said so."""

    def __init__(self, most: int = MOST_LINE) -> None:
        """Args: bytes of the longest line."""
        self._most = most
        self._rest = bytearray()
        self._dropping = False
        self.dropped = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are whole now."""
        *whole, rest = data.split(b"\n")
        found: list[bytes] = []
        for piece in whole:
            self._add(piece)
            if self._dropping:
                self.dropped += 1
            elif self._rest:
                found.append(bytes(self._rest))
            self._rest.clear()
            self._dropping = False
        self._add(rest)
        return found

    def _add(self, piece: bytes) -> None:
        if not self._dropping and len(self._rest) + len(piece) > self._most:
            log.warning("a line of more than %d bytes was dropped", self._most)
            self._dropping = True
            self._rest.clear()
        if not self._dropping:
            self._rest += piece


class Editor(Client, Protocol):
    """A client that is attached to the session."""

    def errors(self, data: bytes) -> None:
        """Takes what the agent has written to its standard error."""
        ...

    def over(self) -> None:
        """The session is over."""
        ...


class AgentSide:
    """Of one session, from the first client on to the session's end."""

    def __init__(self, live: Live) -> None:
        """Takes the session's standard input for itself, and all of its output, what was kept included."""
        self.hub = Hub(live.streams.write)
        self._editors: list[Editor] = []
        self._lines = Lines()
        live.streams.writer = self
        live.streams.subscribe(self, 0)

    def attach(self, editor: Editor, *, take: bool) -> None:
        """A client comes."""
        self._editors.append(editor)
        self.hub.attach(editor, take=take)

    def detach(self, editor: Editor) -> None:
        """A client goes; the agent stays."""
        self._editors.remove(editor)
        self.hub.detach(editor)

    def output(self, piece: Piece) -> None:
        """Takes output of the agent's."""
        if piece.stream == STDOUT:
            for line in self._lines.feed(piece.data):
                self.hub.from_agent(line)
        else:
            for editor in list(self._editors):
                editor.errors(piece.data)

    def over(self) -> None:
        """The session is over."""
        for editor in list(self._editors):
            editor.over()


def side_of(live: Live) -> AgentSide:
    """The one agent side of a session, made for its first client."""
    if not isinstance(live.streams.writer, AgentSide):
        return AgentSide(live)
    return live.streams.writer
