"""One agent of the Agent Client Protocol, many editors: one of them writes, all see, and each may leave and come back.

The agent believes that it has one client all its life. Each client has request numbers of its own, so those that go to
the agent get others. `initialize` reaches the agent once; later clients get the same answer. `session/load` of one
that the agent has open is answered from what was heard of it. What the agent asks for while nobody is there waits for
the next one, if a person is to answer it, and is refused at once if a programme is.

Pure: lines in, lines out by what it was given to send with. What an editor may ask and an agent may ask for is policed
close to the agent (`launcher.bridges.acp`), on every line that passes here.
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from launcher.bridges.acp import rpc
from launcher.service.packets import END, ERRORS, HELLO, INPUT, MOST_FRAME, OUTPUT
from launcher.service.shim.clients import Client, Host
from launcher.service.shim.streams import STDOUT, Piece, Streams
from policy.errors import Refusal

# What has happened in one session of the protocol, so that an editor that comes back can be shown it again.
#
# The protocol's own way to show it is `session/load`: the agent streams the conversation as `session/update`
# notifications, then answers (https://agentclientprotocol.com/protocol/session-setup). An agent that is alive need
# not be asked for what it has said: it was heard.


MOST_BYTES = 8 << 20
"""Of one session's notifications; the oldest are forgotten first."""


class History:
    """One session.

    Attributes:
        opened: the result of the request that began it, with its modes and models as they are now; None before.
        missing: notifications that were forgotten.
        turns: requests of `session/prompt` that are being worked on.
    """

    def __init__(self, opened: dict[str, Any] | None = None, most: int = MOST_BYTES) -> None:
        """Empty."""
        self.opened = opened
        self.missing = 0
        self.turns = 0
        self._most = most
        self._lines: deque[bytes] = deque()
        self._bytes = 0

    def add(self, line: bytes) -> None:
        """Takes a notification, as a line."""
        self._lines.append(line)
        self._bytes += len(line)
        while self._bytes > self._most and len(self._lines) > 1:
            self._bytes -= len(self._lines.popleft())
            self.missing += 1

    @property
    def lines(self) -> tuple[bytes, ...]:
        """The notifications that are kept, in order."""
        return tuple(self._lines)

    def loaded(self) -> dict[str, Any]:
        """The result of a `session/load` that is answered from here."""
        result = {name: value for name, value in (self.opened or {}).items() if name != "sessionId"}
        meta = result.get("_meta")
        own = {"missing": self.missing, "running": self.turns > 0}
        return {**result, "_meta": {**(meta if isinstance(meta, dict) else {}), "paddock": own}}

    def changed(self, method: str, params: dict[str, Any], result: object) -> None:
        """A client's request has changed the session: `opened` follows, as agents need not announce it."""
        if self.opened is None:
            return
        for wanted, group, current, name in (
            ("session/set_mode", "modes", "currentModeId", "modeId"),
            ("session/set_model", "models", "currentModelId", "modelId"),
        ):
            known = self.opened.get(group)
            if method == wanted and isinstance(known, dict):
                self.opened = {**self.opened, group: {**known, current: params.get(name)}}
        if method == "session/set_config_option" and isinstance(result, dict) and "configOptions" in result:
            self.opened = {**self.opened, "configOptions": result["configOptions"]}


log = logging.getLogger("paddock.service.acp")

NO_WRITER = -32004
"""Of `rpc.DENIED`'s range: another client writes."""
NOT_FOUND = -32002

_FOR_ALL = ("session/list",)
"""Requests that change nothing, and that each client may make."""
_FOR_PEOPLE = ("session/request_permission", "elicitation/")
"""Requests of the agent's that wait for the next client."""
_MOST_ASKED = 1_000
_MOST_ASKED_BYTES = 32 << 20
"""Of what waits for an answer: an agent must not fill its session's process with questions."""
MOST_SESSIONS = 32
"""Whose history is kept; an agent that loads sessions is asked for the others."""
_LOADING = ("session/load", "session/resume")
_OPENING = ("session/new", "session/fork")
_CLOSING = ("session/close", "session/delete")


class Participant(Protocol):
    """One editor."""

    def send(self, line: bytes) -> None:
        """Takes a line."""
        ...


class _View:
    """What the hub knows of a client: the sessions that it has opened or loaded."""

    def __init__(self) -> None:
        self.sessions: set[str] = set()


class _Sent(NamedTuple):
    """A client's request that the agent works on."""

    client: Participant
    number: rpc.Id
    method: str
    params: dict[str, Any]


class _Asked:
    """A request of the agent's that is not answered yet."""

    def __init__(self, line: bytes, method: str, session: str) -> None:
        self.line = line
        self.method = method
        self.session = session
        self.told: Participant | None = None

    @property
    def for_people(self) -> bool:
        return self.method.startswith(_FOR_PEOPLE)


class Hub:
    """Between one agent and its clients."""

    def __init__(self, to_agent: Callable[[bytes], bool]) -> None:
        """Args: sends the agent a line; False when it does not read what it was sent."""
        self._to_agent = to_agent
        self._views: dict[Participant, _View] = {}
        self._numbers = 0
        self._sent: dict[int, _Sent] = {}
        self._asked: dict[rpc.Id, _Asked] = {}
        self._sessions: dict[str, History] = {}
        self._loading: dict[str, Participant] = {}
        self._greeting: dict[str, Any] | None = None
        self._loads = False
        self._greeted = False
        self._waiting: list[tuple[Participant, rpc.Id]] = []
        self.writer: Participant | None = None

    # Clients

    @property
    def clients(self) -> int:
        """How many are there."""
        return len(self._views)

    @property
    def busy(self) -> bool:
        """Whether the agent works on a prompt."""
        return any(history.turns for history in self._sessions.values())

    def attach(self, client: Participant, *, take: bool = False) -> None:
        """A client comes. The first one writes, and one that takes the place of the present one."""
        self._views[client] = _View()
        if take or self.writer is None:
            self.writer = client

    def detach(self, client: Participant) -> None:
        """A client goes. What only a programme could have answered is refused; what is for people waits."""
        del self._views[client]
        self._waiting = [entry for entry in self._waiting if entry[0] is not client]
        if self.writer is client:
            self.writer = None
        for number, asked in list(self._asked.items()):
            if asked.told is client:
                asked.told = None
                if not asked.for_people:
                    self._refuse_agent(number, asked)

    def from_client(self, client: Participant, line: bytes) -> None:
        """Takes a line of a client's."""
        try:
            message = rpc.parse(line)
        except rpc.Ambiguous as error:
            client.send(rpc.error(None, rpc.PARSE_ERROR, f"paddock cannot read this: {error}"))
            return
        number, method = rpc.usable_id(message), message.get("method")
        if not isinstance(method, str):
            self._answered(client, number, message)
        elif "id" not in message:
            if self._may_write(client):
                self._to_agent(rpc.encode(message))
        elif number is None:
            client.send(rpc.error(None, rpc.INVALID_REQUEST, "the id is not a string or an integer below 2**53"))
        else:
            params = message.get("params")
            self._request(client, number, method, params if isinstance(params, dict) else {}, message)

    def _request(self, client: Participant, number: rpc.Id, method: str, params: dict[str, Any],
                 message: dict[str, Any]) -> None:  # fmt: skip
        session = params.get("sessionId")
        if method == "initialize":
            self._initialize(client, number, message)
        elif method in _LOADING and isinstance(session, str) and self._is_open(session):
            self._load_again(client, number, method, session)
        elif method not in _FOR_ALL and not self._may_write(client):
            client.send(rpc.error(number, NO_WRITER, "another client writes to this agent; this one can only watch"))
        else:
            self._forward(client, number, method, params, message)

    def _may_write(self, client: Participant) -> bool:
        if self.writer is None:
            self.writer = client
        return self.writer is client

    def _is_open(self, session: str) -> bool:
        return session in self._sessions and session not in self._loading

    def _initialize(self, client: Participant, number: rpc.Id, message: dict[str, Any]) -> None:
        if self._greeting is not None:
            client.send(rpc.result(number, self._greeting))
        elif self._greeted:
            self._waiting.append((client, number))
        else:
            self._greeted = True
            self._forward(client, number, "initialize", {}, message)

    def _load_again(self, client: Participant, number: rpc.Id, method: str, session: str) -> None:
        """Replays a session that the agent has open, from its history."""
        history = self._sessions[session]
        self._may_write(client)
        if method == "session/load":
            for line in history.lines:
                client.send(line)
        client.send(rpc.result(number, history.loaded()))
        self._views[client].sessions.add(session)
        self._deliver()

    def _forward(self, client: Participant, number: rpc.Id, method: str, params: dict[str, Any],
                 message: dict[str, Any]) -> None:  # fmt: skip
        session = params.get("sessionId")
        if method in _LOADING and isinstance(session, str):
            if session in self._loading:
                client.send(rpc.error(number, rpc.INVALID_REQUEST, f"session {session} is already being loaded"))
                return
            if method == "session/load" and not self._loads:
                client.send(rpc.error(number, NOT_FOUND, f"the agent no longer knows a session {session}"))
                return
            self._sessions.pop(session, None)
            self._history(session)
            self._loading[session] = client
        self._numbers += 1
        self._sent[self._numbers] = _Sent(client, number, method, params)
        if not self._to_agent(rpc.encode({**message, "id": self._numbers})):
            self._failed(self._numbers)
            return
        if method == "session/prompt" and isinstance(session, str) and session in self._sessions:
            self._sessions[session].turns += 1
            self._heard_user(client, session, params.get("prompt"))

    def _failed(self, number: int) -> None:
        """The agent does not take a request."""
        sent = self._sent.pop(number)
        self._loading.pop(str(sent.params.get("sessionId")), None)
        self._greeted = self._greeted and sent.method != "initialize"
        sent.client.send(rpc.error(sent.number, rpc.INTERNAL_ERROR, "the agent does not read what it is sent"))

    def _heard_user(self, client: Participant, session: str, prompt: object) -> None:
        """Shows the user's message to the other editors, because agents do not repeat it."""
        for block in prompt if isinstance(prompt, list) else []:
            update = {"sessionUpdate": "user_message_chunk", "content": block}
            line = rpc.encode({"jsonrpc": "2.0", "method": "session/update",
                                  "params": {"sessionId": session, "update": update}})  # fmt: skip
            self._sessions[session].add(line)
            for other, view in self._views.items():
                if other is not client and session in view.sessions:
                    other.send(line)

    def _answered(self, client: Participant, number: rpc.Id | None, message: dict[str, Any]) -> None:
        asked = self._asked.get(number) if number is not None else None
        if number is None or asked is None or asked.told is not client:
            log.info("an answer to no known request was dropped")
            return
        del self._asked[number]
        self._to_agent(rpc.encode(message))

    # The agent

    def from_agent(self, line: bytes) -> None:
        """Takes a line of the agent's."""
        try:
            message = rpc.parse(line)
        except rpc.Ambiguous as error:
            log.warning("a line from the agent was dropped: %s", error)
            return
        method, number = message.get("method"), rpc.usable_id(message)
        params = message.get("params")
        params = params if isinstance(params, dict) else {}
        if isinstance(method, str) and "id" in message:
            self._asks(method, number, params, message)
        elif isinstance(method, str):
            self._tells(method, params, rpc.encode(message))
        elif isinstance(number, int) and number in self._sent:
            self._answers(self._sent.pop(number), message)
        else:
            log.info("an answer from the agent to no known request was dropped")

    def _tells(self, method: str, params: dict[str, Any], line: bytes) -> None:
        """Sends a notification to the editors that have its session open, and adds it to the history."""
        session = params.get("sessionId")
        if not isinstance(session, str):
            for client in list(self._views):
                client.send(line)
            return
        if method == "session/update" and (session in self._sessions or self._opening()):
            self._history(session).add(line)
        loader, opening = self._loading.get(session), self._opening()
        for client, view in list(self._views.items()):
            if client is loader or (loader is None and (session in view.sessions or client in opening)):
                client.send(line)

    def _opening(self) -> list[Participant]:
        return [sent.client for sent in self._sent.values() if sent.method in _OPENING]

    def _history(self, session: str) -> History:
        """Of a session; a new one may cost the place of the oldest that nothing happens in."""
        if session not in self._sessions:
            idle = [name for name, each in self._sessions.items() if not each.turns and name not in self._loading]
            for name in idle[: max(0, len(self._sessions) + 1 - MOST_SESSIONS)]:
                del self._sessions[name]
            self._sessions[session] = History()
        return self._sessions[session]

    def _asks(self, method: str, number: rpc.Id | None, params: dict[str, Any], message: dict[str, Any]) -> None:
        if number is None or number in self._asked:
            log.warning("a request from the agent was dropped: it has no usable id")
            return
        session, line = params.get("sessionId"), rpc.encode(message)
        waiting = sum(len(asked.line) for asked in self._asked.values())
        if len(self._asked) >= _MOST_ASKED or waiting + len(line) > _MOST_ASKED_BYTES:
            self._to_agent(
                rpc.error(number, rpc.INTERNAL_ERROR, f"{method}: too many requests are waiting for an answer")
            )
            return
        asked = _Asked(line, method, session if isinstance(session, str) else "")
        self._asked[number] = asked
        if self.writer is None and not asked.for_people:
            self._refuse_agent(number, asked)
        else:
            self._deliver()

    def _deliver(self) -> None:
        """Puts what is asked before the writer, as far as he has its session open."""
        if self.writer is None:
            return
        view = self._views[self.writer]
        for asked in list(self._asked.values()):
            if asked.told is None and (not asked.session or asked.session in view.sessions):
                asked.told = self.writer
                self.writer.send(asked.line)

    def _refuse_agent(self, number: rpc.Id, asked: _Asked) -> None:
        del self._asked[number]
        self._to_agent(rpc.error(number, rpc.INTERNAL_ERROR, f"{asked.method}: no editor is attached"))

    def _answers(self, sent: _Sent, message: dict[str, Any]) -> None:
        result, session = message.get("result"), sent.params.get("sessionId")
        well = isinstance(result, dict) and "error" not in message
        if sent.method == "initialize":
            message = self._has_greeted(message, result if isinstance(result, dict) else None)
        elif sent.method in _OPENING and isinstance(result, dict) and isinstance(result.get("sessionId"), str):
            session = result["sessionId"]
            self._history(session).opened = result
        elif sent.method in _LOADING and isinstance(session, str):
            self._loading.pop(session, None)
            if well and isinstance(result, dict):
                self._sessions[session].opened = result
            else:
                self._sessions.pop(session, None)
        elif isinstance(session, str) and session in self._sessions:
            self._has_changed(sent, session, well=well, result=result)
        if sent.client not in self._views:
            return
        if well and sent.method in (*_OPENING, *_LOADING) and isinstance(session, str):
            self._views[sent.client].sessions.add(session)
        sent.client.send(rpc.encode({**message, "id": sent.number}))
        self._deliver()

    def _has_changed(self, sent: _Sent, session: str, *, well: bool, result: object) -> None:
        history = self._sessions[session]
        if sent.method == "session/prompt":
            history.turns -= 1
        elif well and sent.method in _CLOSING:
            del self._sessions[session]
        elif well:
            history.changed(sent.method, sent.params, result)

    def _has_greeted(self, message: dict[str, Any], result: dict[str, Any] | None) -> dict[str, Any]:
        """Remembers the answer to `initialize` for all editors, and adds that sessions can be loaded: here they can."""
        waiting, self._waiting = self._waiting, []
        if result is None:
            self._greeted = False
            for client, number in waiting:
                client.send(rpc.encode({**message, "id": number}))
            return message
        capabilities = result.get("agentCapabilities")
        capabilities = capabilities if isinstance(capabilities, dict) else {}
        self._loads = capabilities.get("loadSession") is True
        self._greeting = {**result, "agentCapabilities": {**capabilities, "loadSession": True}}
        for client, number in waiting:
            client.send(rpc.result(number, self._greeting))
        return {**message, "result": self._greeting}


# The agent's side of a hub: the standard streams of its session, cut into lines.

MOST_LINE = 16 << 20
"""Bytes of one line, which is parsed as a whole."""


class Lines:
    """Cuts bytes into lines; drops one that is too long, and reports it."""

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


class Editor(Participant, Protocol):
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
        self.hub = Hub(streams.write)
        self._editors: list[Editor] = []
        self._lines = Lines()
        streams.writer = self
        streams.subscribe(self, 0)

    def attach(self, editor: Editor, *, take: bool) -> None:
        """A client comes."""
        self._editors.append(editor)
        self.hub.attach(editor, take=take)

    def detach(self, editor: Editor) -> None:
        """A client goes, perhaps before it was attached; the agent stays."""
        if editor in self._editors:
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
        """Joins the agent's editors, and greets."""
        self._side.attach(self, take=self._takes)
        writer = self._side.hub.writer is self
        self.send_json(HELLO, {"session": self.host.name, "mode": "acp", "writer": writer})

    def send(self, line: bytes) -> None:
        """Passes a line of the agent's on, in as many frames as it takes."""
        for at in range(0, len(line), MOST_FRAME):
            self.send_frame(OUTPUT, line[at : at + MOST_FRAME])

    def errors(self, data: bytes) -> None:
        """Passes on the agent's standard error."""
        self.send_frame(ERRORS, data)

    def frame_received(self, kind: bytes, payload: bytes) -> None:
        """Takes a frame of the editor's."""
        if kind == INPUT:
            for line in self._lines.feed(payload):
                self._side.hub.from_client(self, line)
        elif kind == END:
            self.hang_up()
        else:
            raise Refusal("request-invalid", "this is not a frame of an editor's stream")

    def leave(self) -> None:
        """The agent stays."""
        self._side.detach(self)
