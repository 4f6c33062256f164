"""The file tools of ticket runs: one MCP server over HTTP for all agents, in a process of its own.

Each call names its session by header, with a token (contracts section 6); the stored request context has the worktree,
and the worker runs in the live jail of the agent's own session.
"""

import json
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from launcher.bridges.files import file_service, mcp_server
from launcher.bridges.files.router import Router, Sessions, SignedTokens
from launcher.bridges.files.tool_calls import Answer, ErrorType, ToolFailed, error
from launcher.bridges.files.workers import Jails, needed
from launcher.service import ticket_work
from launcher.service.database import PASSING, Database
from launcher.service.tables import StoredRequestContexts
from launcher.service.ticket_records import add_tickets
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
        say: told ``url``, ``port`` and ``readable``: what agents' jails must show; later the ``run`` of new tickets.
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
    sessions = Sessions.of_workflow(contexts, graph, children, tokens=tokens)
    router = Router(sessions, Jails(where, {}, live).enter)
    try:
        listener, url = file_service.listen(f"127.0.0.1:{port}")
    except Refusal:  # somebody else has that port by now
        listener, url = file_service.listen("127.0.0.1:0")
    with listener, mcp_server.ending(router):
        say({"url": url + mcp_server.PATH, "port": listener.getsockname()[1], "readable": needed()})
        file_service.serve(router, listener, Orchestrating(sessions, contexts, Database(database), say))
    return {}


class Orchestrating:
    """A `launcher.bridges.files.mcp_server.Dispatch` over the service's record.

    Args:
        sessions: proves who calls.
        contexts: say whose session hands out tickets.
        database: a connection of its own.
        say: told the ``run`` that has new tickets.
    """

    def __init__(
        self,
        sessions: Sessions,
        contexts: StoredRequestContexts,
        database: Database,
        say: Callable[[dict[str, Any]], None],
    ) -> None:
        """See the class."""
        self._sessions = sessions
        self._contexts = contexts
        self._database = database
        self._say = say
        self._one = threading.Lock()  # a connection has one transaction at a time; a line is written whole

    def prompt(self, session_id: str | None, token: str | None) -> str | None:
        """What a session is asked to do, when it hands out tickets."""
        try:
            self._sessions.boundaries(session_id, token)
        except ToolFailed:
            return None
        return ticket_work.orchestrator_prompt(self._contexts, (session_id or "").strip())

    def make_tickets(self, session_id: str | None, token: str | None, arguments: Mapping[str, object]) -> Answer:
        """Adds tickets to the run of the session, once it has proven who it is."""

        def failure(kind: ErrorType, message: str) -> Answer:
            return error(kind, message, operation=mcp_server.MAKE_TICKETS)

        try:
            root = self._sessions.boundaries(session_id, token)
            name = (session_id or "").strip()
            if root is None or ticket_work.orchestrator_prompt(self._contexts, name) is None:
                return failure(ErrorType.ACCESS_DENIED, "this session hands out no tickets")
            asked = mcp_server.MakeTickets.model_validate(dict(arguments))
            run = name.partition("/")[0]
            with self._one:
                new = add_tickets(self._database, run, [(each.ticket, each.details) for each in asked.tickets])
                self._say({"run": run})
        except ToolFailed as failed:
            return failure(failed.kind, failed.message)
        except ValidationError as refused:
            lines = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in refused.errors()]
            return failure(ErrorType.INVALID_ARGUMENT, "; ".join(lines[:10]))
        except Refusal as refusal:
            busy = refusal.reference in PASSING
            return failure(ErrorType.BUSY if busy else ErrorType.INVALID_ARGUMENT, refusal.message)
        already = [each.ticket for each in asked.tickets if each.ticket not in new]
        return Answer(json.dumps({"made": new, "already": already}))
