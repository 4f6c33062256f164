"""MCP servers that the client names for a session: which of them an agent in its jail may use.

A stdio server is started by the agent, so it inherits the jail. One on the network is reached from inside the jail, so
the egress rules hold; naming one that they close would only make the agent fail. One that the client runs itself and
offers through the protocol ("acp") acts outside of the jail, at the agent's command: never.
"""

from typing import Any, NamedTuple
from urllib.parse import urlsplit

from policy.plan import Plan

JAIL, REFUSE = "jail", "refuse"


class Dropped(NamedTuple):
    """A server that is left out: its name, why, and where it was (`host` "" when it was no server of the network)."""

    name: str
    why: str
    host: str = ""
    port: int = 0


def chosen(servers: object, plan: Plan, mode: str) -> tuple[list[Any], list[Dropped]]:
    """Divides the servers that a client names.

    Args:
        servers: `mcpServers` of a request.
        plan: of the jail.
        mode: `JAIL` or `REFUSE` (all of them).
    """
    kept: list[Any] = []
    dropped: list[Dropped] = []
    for server in servers if isinstance(servers, list) else []:
        found = _ruling(server, plan, mode)
        if found is None:
            kept.append(server)
        else:
            dropped.append(found)
    return kept, dropped


def _ruling(server: object, plan: Plan, mode: str) -> Dropped | None:
    if not isinstance(server, dict):
        return Dropped("", "it is not described by an object")
    name = str(server.get("name", ""))
    if mode == REFUSE:
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
