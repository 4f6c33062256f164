"""From the client to the agent: where sessions start, which MCP servers they get, what the client offers.

The client acts for the user and is trusted; what is changed here would not work in the jail, or not as it says. So a
line that cannot be read passes as it is, unless it begins what is checked here.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from launcher.bridges.acp import rpc
from launcher.bridges.acp.logins import TERMINAL_LOGIN
from launcher.bridges.acp.places import STRIP, Place, Rules
from launcher.bridges.acp.rpc import Outcome
from launcher.session import messages
from policy.errors import printable
from policy.plan import Plan

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
