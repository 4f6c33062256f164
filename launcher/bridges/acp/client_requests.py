"""What a client says to its agent: where sessions start, which MCP servers they get, what the client offers.

The client acts for the user and is trusted; what is changed here would not work in the jail, or not as it says. The
agent's effective root is the `cwd` of `session/new`, which the client chooses. In the jail only the worktree is there
to work in; a client that stands elsewhere is told so, or moved (`--cwd map`).

A client may know the worktree by another name, through a symbolic link that the jail does not show. The agent gets the
canonical name, and paths that it asks the client for get the client's own spelling back.
"""

import os
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from launcher.bridges.acp import rpc
from launcher.bridges.acp.rpc import Outcome
from launcher.bridges.acp.rulings import STRIP, Judge, Rules
from launcher.session import messages
from policy.errors import printable
from policy.plan import Plan, beneath

CHECK, MAP = "check", "map"

_ELSEWHERE = "start the client in the worktree, or let `paddock acp --cwd map` move its sessions there"
_GRANT = "`paddock acp --ro DIR` lets it read there, --rw also write, and --cwd map drops what it cannot read"


class Place(NamedTuple):
    """A directory for the agent.

    Attributes:
        path: canonical, for the agent; "" when it is refused.
        spelled: as the client gave it.
        why: of a refusal, for people.
        hint: what to do about that.
    """

    path: str
    spelled: str
    why: str = ""
    hint: str = ""


class SessionDirectories:
    """Directories of one bridge's sessions, and how the client spells them."""

    def __init__(self, plan: Plan, judge: Judge, mode: str) -> None:
        """Takes what decides."""
        self._plan = plan
        self._judge = judge
        self._mode = mode
        self._spellings: dict[str, tuple[str, str]] = {}

    def root(self, path: object) -> Place:
        """The directory that a session is to start in: inside the worktree."""
        if not isinstance(path, str) or not path.startswith("/"):
            return Place("", str(path), f"{path!r} is not an absolute path")
        ruling = self._judge.directory(path)
        if ruling.allowed and beneath(ruling.path, self._plan.worktree):
            return Place(ruling.path, path)
        if self._mode == MAP:
            return Place(self._mapped(path), path)
        why = f"{path} is not inside the worktree {self._plan.worktree}, which is all that the agent's jail shows"
        return Place("", path, why, _ELSEWHERE)

    def further(self, path: object) -> Place:
        """A further directory of a session: readable in the jail."""
        if not isinstance(path, str) or not path.startswith("/"):
            return Place("", str(path), f"{path!r} is not an absolute path")
        ruling = self._judge.directory(path)
        if ruling.allowed:
            return Place(ruling.path, path)
        if not os.path.isdir(path):
            return Place("", path, f"the additional directory {path} does not exist")
        return Place("", path, f"the agent's jail does not show the additional directory {path}", _GRANT)

    def remember(self, session: str, place: Place) -> None:
        """Takes note of how the client spells the root of a session."""
        if place.path and place.path != place.spelled and not beneath(place.spelled, self._plan.worktree):
            self._spellings[session] = (place.path, place.spelled.rstrip("/") or "/")
        else:
            self._spellings.pop(session, None)

    def forget(self, session: str) -> None:
        """The session has been closed."""
        self._spellings.pop(session, None)

    def spelled(self, session: str, path: str) -> str:
        """A canonical path as the client of a session would write it, as long as that leads to the same place."""
        canonical, spelled = self._spellings.get(session, ("", ""))
        if not canonical or not beneath(path, canonical) or os.path.realpath(spelled) != canonical:
            return path
        return spelled + path[len(canonical) :]

    def _mapped(self, path: str) -> str:
        """The worktree's directory for a place elsewhere: the one of the same name in another checkout, or the root."""
        canonical = os.path.realpath(path)
        top = _checkout(canonical)
        if top:
            inside = self._judge.directory(self._plan.worktree + canonical[len(top) :])
            if inside.allowed and beneath(inside.path, self._plan.worktree):
                return inside.path
        return self._plan.worktree


def _checkout(path: str) -> str:
    """The root of the checkout that holds a directory (the nearest one above with a `.git`); "" when there is none."""
    while path != "/":
        if os.path.lexists(f"{path}/.git"):
            return path
        path = os.path.dirname(path)
    return ""


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
    """Divides the servers that a client names."""
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
        return Dropped("", "its description is not an object")
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
        return Dropped(name, f"{url!r} is not an address of an MCP server")
    if verdict.allowed:
        return None
    return Dropped(name, verdict.reason or "the network rules of the jail do not allow it", host, port)


# What an agent is told of its client: only what holds with a jail in between.
#
# Source: the protocol's `initialize` (https://agentclientprotocol.com/protocol/initialization).


def capabilities_for_agent(params: dict[str, Any], *, files: bool, terminals: bool) -> dict[str, Any]:
    """The `initialize` request's parameters, as the agent gets them."""
    given = params.get("clientCapabilities")
    offered: dict[str, Any] = dict(given) if isinstance(given, dict) else {}
    if not files:
        offered["fs"] = {"readTextFile": False, "writeTextFile": False}
    if not terminals:
        offered["terminal"] = False
    if isinstance(offered.get("auth"), dict):
        offered["auth"] = {**offered["auth"], "terminal": False}
    if isinstance(offered.get("_meta"), dict):
        offered["_meta"] = {name: value for name, value in offered["_meta"].items() if name != rpc.TERMINAL_LOGIN}
    return {**params, "clientCapabilities": offered}


_NO_SERVER = "--mcp jail, and servers that the agent can start or reach itself"
_STARTING = ("session/new", "session/load", "session/resume", "session/fork")


class ClientRequests:
    """Judges the client's lines."""

    def __init__(
        self,
        rules: Rules,
        directories: SessionDirectories,
        awaits: Callable[[rpc.Id, Place | None], None],
        opened: Callable[[str, Place], None],
        takes: Callable[[dict[str, Any]], bool] = lambda message: False,
    ) -> None:
        """Takes what decides. `takes`: whether a message answers a question of Paddock's own."""
        self._rules = rules
        self._directories = directories
        self._awaits = awaits
        self._opened = opened
        self._takes = takes

    def __call__(self, line: bytes) -> Outcome:
        """Judges one line."""
        if not line.strip():
            return Outcome()
        try:
            message = rpc.parse(line)
        except rpc.Ambiguous as error:
            return self.unreadable(str(error))
        if self._takes(message):
            return Outcome()
        params = message.get("params")
        if not isinstance(params, dict):
            return Outcome(rpc.encode(message))
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
            place = self._directories.root(params["cwd"])
            return self._sent(message, params, place, {"cwd": place.path})
        return Outcome(rpc.encode(message))

    def unreadable(self, why: str) -> Outcome:
        """The answer to a line that the agent might read differently."""
        return Outcome(back=rpc.error(None, rpc.PARSE_ERROR, f"paddock cannot check this message: {why}"))

    def _start(self, method: str, message: dict[str, Any], params: dict[str, Any]) -> Outcome:
        """A session begins, or is taken up again."""
        directories, decisions = self._directories, self._rules.decisions
        place = directories.root(params.get("cwd"))
        if not place.path:
            return self._sent(message, params, place, {})
        changes: dict[str, Any] = {"cwd": place.path}
        further = params.get("additionalDirectories")
        if further is not None:
            found = [directories.further(path) for path in (further if isinstance(further, list) else [further])]
            refused = [each for each in found if not each.path]
            for each in refused:
                decisions.refused(method, "read", path=each.spelled, target=each.why)
            if refused and self._rules.choices.cwd == "check":
                return _refusal(message, refused[0], self._rules.plan.worktree)
            changes["additionalDirectories"] = [each.path for each in found if each.path]
        kept, dropped = chosen_servers(params.get("mcpServers"), self._rules.plan, self._rules.choices.mcp)
        for server in dropped:
            what = f"use the MCP server {server.name}"
            hint = "" if server.host else _NO_SERVER
            decisions.refused(method, what, host=server.host, port=server.port, target=server.why, hint=hint)
            more = "; paddock denials shows what would allow it" if server.host else ""
            messages.say(f"paddock: the MCP server {printable(server.name)} is dropped: {printable(server.why)}{more}")
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
            self._rules.decisions.refused(method, "start in", target=place.spelled, hint=place.hint)
            return _refusal(message, place, self._rules.plan.worktree)
        moved = f"at {place.path}" if place.path != place.spelled else ""
        self._rules.decisions.allowed(method, place.spelled, moved)
        return Outcome(rpc.encode({**message, "params": {**params, **changes}}))


def _refusal(message: dict[str, Any], place: Place, worktree: str) -> Outcome:
    """What to do stands in the message, too: editors show nothing else of an error."""
    data = {"attemptedPath": place.spelled, "sandboxRoot": worktree, "hint": place.hint}
    text = f"paddock: {place.why}; {place.hint}" if place.hint else f"paddock: {place.why}"
    return Outcome(back=rpc.error(rpc.usable_id(message), rpc.INVALID_PARAMS, text, data))
