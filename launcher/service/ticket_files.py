"""The file tools of ticket runs: one MCP server over HTTP for all agents, in a process of its own.

Each call names its session by header, with a token (contracts section 6); the stored request context has the worktree,
and the worker runs in the live jail of the agent's own session.
"""

import os
from collections.abc import Callable
from typing import Any

from launcher.bridges.files import file_service, mcp_server
from launcher.bridges.files.router import Router, Sessions, SignedTokens
from launcher.bridges.files.workers import Jails, needed
from launcher.service import ticket_work
from launcher.service.database import Database
from launcher.service.tables import StoredRequestContexts
from launcher.session import places
from launcher.vcs.worktrees.worktree_service import ChildWorktrees
from launcher.workflow.graph import InMemoryGraphRepository
from policy.errors import Refusal

SESSION = "session"
"""Label of a request context: the name of its agent's session."""


def serve(database: str, port: int, secret: str, say: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Serves until SIGTERM, or until the service's end.

    Args:
        database: the service's.
        port: of the loopback, where a server before this one was; 0 for any.
        secret: what tokens are made with, in hexadecimal digits.
        say: told ``url``, ``port`` and ``readable``: what agents' jails must show.
    """
    where = places.places(os.environ)
    contexts = StoredRequestContexts(Database(database))

    def live(session_id: str) -> str:
        found = contexts.get(session_id)
        name = None if found is None else found.metadata.get(SESSION)
        if name is None:  # a jail made for the occasion would be another one than the agent's
            raise Refusal("session-unknown", f"no agent works for {session_id}")
        return name

    graph, children = InMemoryGraphRepository(), ChildWorktrees(ticket_work.service(where))
    tokens = SignedTokens(bytes.fromhex(secret))
    router = Router(Sessions.of_workflow(contexts, graph, children, tokens=tokens), Jails(where, {}, live).enter)
    try:
        listener, url = file_service.listen(f"127.0.0.1:{port}")
    except Refusal:  # somebody else has that port by now
        listener, url = file_service.listen("127.0.0.1:0")
    with listener, mcp_server.ending(router):
        say({"url": url + mcp_server.PATH, "port": listener.getsockname()[1], "readable": needed()})
        file_service.serve(router, listener)
    return {}
