"""An editor's stream to an agent that lives in the service: ``mode=acp`` of the attach stream.

The frames are those of `launcher.service.api.stream`: ``I`` holds lines of the editor's, ``O`` lines for it, ``R``
what the agent says on standard error, ``X`` that the session is over. The end of the input (``Z``) and that of the
connection are the editor's alone: the agent goes on. ``take=1`` makes this editor the one that writes.
"""

from launcher.service.acp.agent import Lines, side_of
from launcher.service.api.client_stream import ClientStream
from launcher.service.frames import END, ERRORS, HELLO, INPUT, MOST_FRAME, OUTPUT
from launcher.service.running import Live
from launcher.service.supervisor import Supervisor
from policy.errors import Refusal


class AcpStream(ClientStream):
    """One editor."""

    high_water = 4 << 20

    def __init__(self, supervisor: Supervisor, live: Live, *, take: bool) -> None:
        """Looks whether the session is of the kind.

        Raises:
            Refusal: session-not-acp.
        """
        super().__init__(supervisor, live)
        if live.request.bridge != "acp":
            raise Refusal("session-not-acp", f"session {live.name} does not speak the Agent Client Protocol",
                          hint=f"paddock attach {live.name}")  # fmt: skip
        self._side = side_of(live)
        self._take = take
        self._lines = Lines()

    def joined(self) -> None:
        """Becomes one of the agent's editors, and says hello."""
        self._side.attach(self, take=self._take)
        writer = self._side.hub.writer is self
        self.send_json(HELLO, {"session": self.live.name, "mode": "acp", "writer": writer})

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

    def left(self) -> None:
        """The agent stays."""
        self._side.detach(self)
