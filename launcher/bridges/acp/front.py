"""The bridge without any process: two byte streams, the rules between them, and what is answered in the jail.

`launcher.bridges.acp.bridge` starts the provider itself; whoever has got the descriptors in another way uses this.
"""

import re
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from launcher.bridges.acp import logins, rpc, way
from launcher.bridges.acp.inside import Inside
from launcher.bridges.acp.judge import READ, WRITE
from launcher.bridges.acp.logins import TERMINAL_LOGIN
from launcher.bridges.acp.places import JAIL, STRIP, Place, Rules
from launcher.bridges.acp.relay import Poll, Relay
from launcher.bridges.acp.rpc import Outcome
from launcher.bridges.acp.way import Kept, Way
from launcher.session import messages
from policy.errors import printable
from policy.plan import Plan

if TYPE_CHECKING:
    from acp.schema import ReadTextFileRequest, WriteTextFileRequest


# From the agent to the client: requests that the client would carry out outside of the jail.
#
# The agent may be hostile, and the client acts on its own reading of a line. So what is policed must be
# unmistakable, and goes on in the bridge's own words: only the protocol's own fields, with the canonical path.


_ROOMS = ("fs/", "terminal/", "mcp/")
"""Methods of the client's that act outside of the jail: on its files, its processes, its MCP servers."""

_MOST_AWAITED = 1000

_ENDED = (
    "paddock: the agent has ended without an answer; what it said is in the editor's log, "
    "or in `paddock logs` where the agent lives in the service"
)


class Jail(Protocol):
    """What answers requests in the client's place, in the jail. A reply b"" comes later."""

    def terminal(self, number: rpc.Id, method: str, params: dict[str, Any]) -> bytes:
        """Answers a `terminal/` request."""
        ...

    def file(self, number: rpc.Id, wanted: "ReadTextFileRequest | WriteTextFileRequest", path: str) -> bytes:
        """Answers a request for the file at a canonical path."""
        ...

    def shown(self, message: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        """A message with text for its terminals, and whether it is another one."""
        ...


class ToClient:
    """The agent's lines that are not passed unread."""

    def __init__(self, rules: Rules, look: way.ToClient, jail: Jail, found: Callable[[str, Place], None]) -> None:
        """Takes what decides.

        Args:
            rules: of the bridge.
            look: chooses the lines that come here; told when a reply is awaited.
            jail: serves what the rules have done there.
            found: told of each new session, and where it works.
        """
        self._rules = rules
        self._look = look
        self._jail = jail
        self._found = found
        self._awaited: dict[rpc.Id, Place | None] = {}

    def awaits(self, number: rpc.Id, place: Place | None) -> None:
        """The agent was asked for a new session in this place; without one, what it can do."""
        if len(self._awaited) < _MOST_AWAITED:
            self._awaited[number] = place
            self._look.awaited = True

    def opened(self, session: str, place: Place) -> None:
        """A session of the protocol has begun, or is taken up again."""
        self._rules.places.remember(session, place)
        self._found(session, place)

    def __call__(self, line: bytes) -> Outcome:
        """Judges one line."""
        try:
            message = rpc.parse(line)
        except rpc.Ambiguous as error:
            return self.unreadable(str(error))
        if not isinstance(message, dict):
            return self.unreadable("a batch, which the protocol does not have")
        if not rpc.is_plain(message):
            return self.unreadable("a member that could be taken for another one")
        method = message.get("method", "")
        if not isinstance(method, str):
            return self.unreadable("a method that is no string")
        if _bare(method).startswith(_ROOMS):
            return self._policed(method, message)
        self._look_for_session(message)
        other, changed = self._jail.shown(message)
        if changed:
            return Outcome(rpc.encode(other))
        advised, changed = logins.advised(message, self._rules.plan)
        safe, stripped = logins.without_terminals(advised)
        if stripped:
            why = "the client would run it outside of the jail"
            self._rules.audit.refused("initialize", "offer a login in a terminal", target=why)
        return Outcome(rpc.encode(safe) if changed or stripped else rpc.unmistakable(line))

    def last_words(self) -> bytes:
        """The agent has ended: errors for what it has not answered. What the user was warned of may be the reason."""
        reasons = [f"paddock: warning: {warning}" for warning in self._rules.plan.warnings]
        text = "\n".join([_ENDED, *map(printable, reasons)])
        lines = [rpc.error(number, rpc.INTERNAL_ERROR, text) for number in self._awaited]
        self._awaited.clear()
        return b"".join(lines)

    def unreadable(self, why: str) -> Outcome:
        """The answer to a line that might ask for something, and cannot be read for certain."""
        self._rules.audit.refused("", "send an ambiguous message", target=why)
        return Outcome(back=rpc.error(None, rpc.PARSE_ERROR, f"paddock does not pass this on: {why}"))

    def _look_for_session(self, message: dict[str, Any]) -> None:
        number = rpc.usable_id(message)
        if "method" in message or number is None:
            return
        place = self._awaited.pop(number, None)
        self._look.awaited = bool(self._awaited)
        result = message.get("result")
        if place is not None and isinstance(result, dict) and isinstance(result.get("sessionId"), str):
            self.opened(result["sessionId"], place)

    def _policed(self, method: str, message: dict[str, Any]) -> Outcome:
        number, params = rpc.usable_id(message), message.get("params")
        if number is None:
            self._rules.audit.refused(method, "send a request without a usable id", target=method)
            text = f"{method} needs an id that is a string or an integer below 2**53"
            return Outcome(back=rpc.error(None, rpc.INVALID_REQUEST, text))
        if not isinstance(params, dict):
            return Outcome(back=rpc.error(number, rpc.INVALID_PARAMS, f"{method} needs an object of parameters"))
        if method.startswith("terminal/") and self._rules.choices.terminals == JAIL:
            return Outcome(back=self._jail.terminal(number, method, params))
        if method in ("fs/read_text_file", "fs/write_text_file") and self._rules.choices.files != STRIP:
            return self._file(number, method, params)
        self._rules.audit.refused(method, "call a method of the client", target=method)
        text = f"paddock does not pass {method} on: it would act outside of the agent's jail"
        return Outcome(back=rpc.error(number, rpc.METHOD_NOT_FOUND, text, {"method": method}))

    def _file(self, number: rpc.Id, method: str, params: dict[str, Any]) -> Outcome:
        from acp.schema import ReadTextFileRequest, WriteTextFileRequest
        from pydantic import ValidationError

        write = method == "fs/write_text_file"
        model: type[ReadTextFileRequest | WriteTextFileRequest] = WriteTextFileRequest if write else ReadTextFileRequest
        try:
            wanted = model.model_validate(params)
        except ValidationError as error:
            why = [{"field": ".".join(map(str, each["loc"])), "why": each["msg"]} for each in error.errors()]
            return Outcome(back=rpc.error(number, rpc.INVALID_PARAMS, f"{method}: parameters are not valid", why))
        ruling = self._rules.judge.file(wanted.path, WRITE if write else READ)
        if not ruling.allowed:
            self._rules.audit.refused(method, "write" if write else "read", path=ruling.seen, hint=ruling.hint)
            return Outcome(back=rpc.error(number, rpc.DENIED, ruling.message, ruling.data))
        if self._rules.choices.files == JAIL:
            self._rules.audit.allowed(method, ruling.path, "in the jail")
            return Outcome(back=self._jail.file(number, wanted, ruling.path))
        path = self._rules.places.spelled(wanted.session_id, ruling.path)
        self._rules.audit.allowed(method, ruling.path, f"as {path}" if path != wanted.path else "")
        fields = wanted.model_dump(by_alias=True, exclude_none=True)
        request = {"jsonrpc": "2.0", "id": number, "method": method, "params": {**fields, "path": path}}
        return Outcome(rpc.encode(request))


def _bare(method: str) -> str:
    """A method as the most forgiving dispatcher would take it: without case, white space and control characters."""
    return "".join(character for character in method if character.isprintable() and character != " ").casefold()


# From the client to the agent: where sessions start, which MCP servers they get, what the client offers.
#
# The client acts for the user and is trusted; what is changed here would not work in the jail, or not as it says.
# So a line that cannot be read passes as it is, unless it begins what is checked here.


# MCP servers that the client names for a session: which of them an agent in its jail may use.
#
# A stdio server is started by the agent, so it inherits the jail. One on the network is reached from inside the
# jail, so the egress rules hold; naming one that they close would only make the agent fail. One that the client
# runs itself and offers through the protocol ("acp") acts outside of the jail, at the agent's command: never.


MCP_IN_JAIL, MCP_REFUSED = "jail", "refuse"


class Dropped(NamedTuple):
    """A server that is left out: its name, why, and where it was (`host` "" when it was no server of the network)."""

    name: str
    why: str
    host: str = ""
    port: int = 0


def chosen_servers(servers: object, plan: Plan, mode: str) -> tuple[list[Any], list[Dropped]]:
    """Divides the servers that a client names.

    Args:
        servers: `mcpServers` of a request.
        plan: of the jail.
        mode: `MCP_IN_JAIL` or `MCP_REFUSED` (all of them).
    """
    kept: list[Any] = []
    dropped: list[Dropped] = []
    for server in servers if isinstance(servers, list) else []:
        found = _server_ruling(server, plan, mode)
        if found is None:
            kept.append(server)
        else:
            dropped.append(found)
    return kept, dropped


def _server_ruling(server: object, plan: Plan, mode: str) -> Dropped | None:
    if not isinstance(server, dict):
        return Dropped("", "it is not described by an object")
    name = str(server.get("name", ""))
    if mode == MCP_REFUSED:
        return Dropped(name, "MCP servers of the client are refused (--mcp refuse)")
    kind = server.get("type")
    if kind is None and isinstance(server.get("command"), str):
        return None
    if kind == "stdio":
        return None
    if kind in ("http", "sse"):
        return _on_network(name, server.get("url"), plan)
    if kind == "acp":
        return Dropped(name, "it runs in the client, outside of the jail")
    return Dropped(name, f"a server of the type {kind!r} is not known")


def _on_network(name: str, url: object, plan: Plan) -> Dropped | None:
    from policy import remedy

    try:
        parts = urlsplit(url if isinstance(url, str) else "")
        host = parts.hostname or ""
        port = parts.port or (443 if parts.scheme == "https" else 80)
        if parts.scheme not in ("http", "https"):
            raise ValueError("no http")
        verdict = remedy.decide_host(plan, host, port)
    except ValueError:
        return Dropped(name, f"{url!r} is no address of an MCP server")
    if verdict.allowed:
        return None
    return Dropped(name, verdict.reason or "the network rules of the jail do not allow it", host, port)


# What an agent is told of its client: only what holds with a jail in between.
#
# Source: the protocol's `initialize` (https://agentclientprotocol.com/protocol/initialization).


def capabilities_for_agent(params: dict[str, Any], *, files: bool, terminals: bool) -> dict[str, Any]:
    """The `initialize` request's parameters, as the agent gets them.

    Args:
        params: as the client gave them; not changed.
        files: the client's own offers of file access stand; else there are none.
        terminals: an offer of terminals stands, because the bridge serves them; else there are none.
    """
    given = params.get("clientCapabilities")
    offered: dict[str, Any] = dict(given) if isinstance(given, dict) else {}
    if not files:
        offered["fs"] = {"readTextFile": False, "writeTextFile": False}
    if not terminals:
        offered["terminal"] = False
    if isinstance(offered.get("auth"), dict):
        offered["auth"] = {**offered["auth"], "terminal": False}
    if isinstance(offered.get("_meta"), dict):
        offered["_meta"] = {name: value for name, value in offered["_meta"].items() if name != TERMINAL_LOGIN}
    return {**params, "clientCapabilities": offered}


_CHECKED = re.compile(rb'"method"\s*:\s*"(?:initialize|session\\?/(?:new|load|resume|fork|list))"')
_NO_SERVER = "--mcp jail, and servers that the agent can start or reach itself"
_STARTING = ("session/new", "session/load", "session/resume", "session/fork")


class ToAgent:
    """The client's lines that are not passed unread."""

    def __init__(
        self, rules: Rules, awaits: Callable[[rpc.Id, Place | None], None], opened: Callable[[str, Place], None]
    ) -> None:
        """Takes what decides.

        Args:
            rules: of the bridge.
            awaits: told that the reply to the request with this id will name a new session in this place; without one,
                that there will be a reply.
            opened: told of a session that is taken up again, by its id.
        """
        self._rules = rules
        self._awaits = awaits
        self._opened = opened

    def __call__(self, line: bytes) -> Outcome:
        """Judges one line."""
        try:
            message = rpc.parse(line)
        except rpc.Ambiguous as error:
            if _CHECKED.search(line) is None:
                return Outcome(line)
            return Outcome(back=rpc.error(None, rpc.PARSE_ERROR, f"paddock cannot check this request: {error}"))
        if not isinstance(message, dict) or not isinstance(params := message.get("params"), dict):
            return Outcome(line)
        method = message.get("method")
        if method == "initialize":
            if (number := rpc.usable_id(message)) is not None:
                self._awaits(number, None)
            choices = self._rules.choices
            adjusted = capabilities_for_agent(
                params, files=choices.files != STRIP, terminals=choices.terminals != STRIP
            )
            return Outcome(rpc.encode({**message, "params": adjusted}))
        if method in _STARTING:
            return self._start(str(method), message, params)
        if method == "session/list" and params.get("cwd") is not None:
            place = self._rules.places.root(params["cwd"])
            return self._sent(message, params, place, {"cwd": place.path})
        return Outcome(line)

    def _start(self, method: str, message: dict[str, Any], params: dict[str, Any]) -> Outcome:
        """A session begins, or is taken up again."""
        places, audit = self._rules.places, self._rules.audit
        place = places.root(params.get("cwd"))
        if not place.path:
            return self._sent(message, params, place, {})
        changes: dict[str, Any] = {"cwd": place.path}
        further = params.get("additionalDirectories")
        if further is not None:
            found = [places.further(path) for path in (further if isinstance(further, list) else [further])]
            refused = [each for each in found if not each.path]
            for each in refused:
                audit.refused(method, "read", path=each.spelled, target=each.why)
            if refused and self._rules.choices.cwd == "check":
                return _refusal(message, refused[0], self._rules.plan.worktree)
            changes["additionalDirectories"] = [each.path for each in found if each.path]
        kept, dropped = chosen_servers(params.get("mcpServers"), self._rules.plan, self._rules.choices.mcp)
        for server in dropped:
            what = f"use the MCP server {server.name}"
            hint = "" if server.host else _NO_SERVER
            audit.refused(method, what, host=server.host, port=server.port, target=server.why, hint=hint)
            more = "; paddock denials says what would allow it" if server.host else ""
            messages.say(f"paddock: the MCP server {printable(server.name)} is left out: {printable(server.why)}{more}")
        if "mcpServers" in params:
            changes["mcpServers"] = kept
        outcome = self._sent(message, params, place, changes)
        number = rpc.usable_id(message)
        if method in ("session/new", "session/fork") and number is not None:
            self._awaits(number, place)
        elif isinstance(params.get("sessionId"), str):
            self._opened(params["sessionId"], place)
        return outcome

    def _sent(self, message: dict[str, Any], params: dict[str, Any], place: Place, changes: dict[str, Any]) -> Outcome:
        """The request with changes in its parameters, or the refusal of its place."""
        method = str(message["method"])
        if not place.path:
            self._rules.audit.refused(method, "start in", target=place.spelled, hint=place.hint)
            return _refusal(message, place, self._rules.plan.worktree)
        moved = f"at {place.path}" if place.path != place.spelled else ""
        self._rules.audit.allowed(method, place.spelled, moved)
        return Outcome(rpc.encode({**message, "params": {**params, **changes}}))


def _refusal(message: dict[str, Any], place: Place, worktree: str) -> Outcome:
    """What to do stands in the message, too: editors show nothing else of an error."""
    data = {"attemptedPath": place.spelled, "sandboxRoot": worktree, "hint": place.hint}
    text = f"paddock: {place.why}; {place.hint}" if place.hint else f"paddock: {place.why}"
    return Outcome(back=rpc.error(rpc.usable_id(message), rpc.INVALID_PARAMS, text, data))


class Front:
    """Carries and judges what a client and an agent say to each other.

    Attributes:
        relay: says who has ended.
    """

    def __init__(
        self,
        poll: Poll,
        client: tuple[int, int],
        agent: tuple[int, int],
        rules: Rules,
        connect: Callable[[], socket.socket],
        found: Callable[[str, Place], None],
        directory: str,
    ) -> None:
        """Begins to carry.

        Args:
            poll: of the loop that hands events over.
            client: descriptors to read what it says and to write to it: owned from now on, different numbers.
            agent: the same of the agent, not blocking.
            rules: what is judged, and how.
            connect: makes a connection to the session's control socket (`exec_client.connect`).
            found: told the id of each new session of the protocol, and where it works.
            directory: for the agent's lines that are too long for memory, out of its reach.
        """
        look = way.ToClient(terminals=rules.choices.terminals != STRIP)
        self._inside = Inside(poll, connect, rules, self._tell_agent, self._tell_client)
        up = ToClient(rules, look, self._inside, found)
        down = ToAgent(rules, up.awaits, up.opened)
        to_agent = Way(way.ToAgent(), _guarded(down), None)
        to_client = Way(look, _guarded(up), up.unreadable, keep=lambda: Kept(directory), last_words=up.last_words)
        self.relay = Relay(poll, client, agent, to_agent, to_client)

    def serve(self, fd: int, events: int) -> bool:
        """Handles what poll said of a descriptor; False when it is none of this object's."""
        if self.relay.owns(fd):
            self.relay.serve(fd, events)
        elif fd in self._inside.descriptors:
            self._inside.serve(fd)
        else:
            return False
        return True

    def close(self) -> None:
        """Closes all descriptors, and ends what runs for the bridge in the jail."""
        self._inside.close()
        self.relay.close()

    def _tell_agent(self, line: bytes) -> None:
        self.relay.reply_to_agent(line)

    def _tell_client(self, line: bytes) -> None:
        self.relay.reply_to_client(line)


def _guarded(judge: Callable[[bytes], Outcome]) -> Callable[[bytes], Outcome]:
    """`judge`, which refuses what it fails at: one line must not end what both sides have built up."""

    def judged(line: bytes) -> Outcome:
        try:
            return judge(line)
        except Exception as error:
            messages.say(f"paddock: a message could not be judged, so it is refused: {printable(repr(error)[:1000])}")
            return Outcome(back=rpc.error(None, rpc.INTERNAL_ERROR, "paddock could not judge this message"))

    return judged
