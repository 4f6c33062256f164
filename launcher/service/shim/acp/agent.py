"""The agent's side of a hub: the standard streams of its session, cut into lines."""

import logging
from typing import Protocol

from launcher.service.packets import END, ERRORS, HELLO, INPUT, MOST_FRAME, OUTPUT
from launcher.service.shim.acp import hub
from launcher.service.shim.clients import Client, Host
from launcher.service.shim.streams import STDOUT, Piece, Streams
from policy.errors import Refusal

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


class Editor(hub.Client, Protocol):
    """A client that is attached to the session."""

    def errors(self, data: bytes) -> None:
        """Takes what the agent has written to its standard error."""
        ...

    def over(self) -> None:
        """The session is over."""
        ...


class AgentSide:
    """Of one session, from the first client on to the session's end."""

    def __init__(self, streams: Streams) -> None:
        """Takes the session's standard input for itself, and all of its output, what was kept included."""
        self.hub = hub.Hub(streams.write)
        self._editors: list[Editor] = []
        self._lines = Lines()
        streams.writer = self
        streams.subscribe(self, 0)

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


class EditorClient(Client):
    """An editor's connection: ``mode=acp`` of the attach stream (`launcher.service.shim.clients`)."""

    high_water = 4 << 20

    def __init__(self, host: Host, side: AgentSide, *, take: bool) -> None:
        """Args: the session; its agent's side; whether it becomes the one that writes."""
        super().__init__(host)
        self._side = side
        self._takes = take
        self._lines = Lines()

    def join(self) -> None:
        """Becomes one of the agent's editors, and says hello."""
        self._side.attach(self, take=self._takes)
        writer = self._side.hub.writer is self
        self.send_json(HELLO, {"session": self.host.name, "mode": "acp", "writer": writer})

    def send(self, line: bytes) -> None:
        """Passes a line of the agent's on, in as many frames as it takes."""
        for at in range(0, len(line), MOST_FRAME):
            self.send_frame(OUTPUT, line[at : at + MOST_FRAME])

    def errors(self, data: bytes) -> None:
        """Passes on what the agent says on standard error."""
        self.send_frame(ERRORS, data)

    def frame_received(self, kind: bytes, payload: bytes) -> None:
        """Takes a frame of the editor's.

        Raises:
            Refusal: request-invalid.
        """
        if kind == INPUT:
            for line in self._lines.feed(payload):
                self._side.hub.from_client(self, line)
        elif kind == END:
            self.hang_up()
        else:
            raise Refusal("request-invalid", "this is no frame of an editor's stream")

    def leave(self) -> None:
        """The agent stays."""
        self._side.detach(self)
