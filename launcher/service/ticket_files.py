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
from launcher.bridges.files.tool_calls import MOST_TEXT, Answer, ErrorType, ToolFailed, error
from launcher.bridges.files.workers import Jails, needed
from launcher.service import ticket_work
from launcher.service.client import Client, run_path, session_path
from launcher.service.database import PASSING, Database
from launcher.service.schema import FINAL, Reason, SessionState
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
            raise Refusal("session-unknown", f"no agent is working for {session_id}")
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
        file_service.serve(router, listener, OfRuns(sessions, router, contexts, Database(database), Client(where), say))
    return {}


class OfRuns:
    """A `launcher.bridges.files.mcp_server.Workflow` over the service's record.

    Args:
        sessions: proves who calls.
        router: counts the calls of a session.
        database: a connection of its own.
        say: told the ``run`` that has new tickets.
    """

    def __init__(
        self,
        sessions: Sessions,
        router: Router,
        contexts: StoredRequestContexts,
        database: Database,
        service: Client,
        say: Callable[[dict[str, Any]], None],
    ) -> None:
        self._sessions = sessions
        self._router = router
        self._contexts = contexts
        self._database = database
        self._service = service
        self._say = say
        self._one = threading.Lock()  # a connection has one transaction at a time; a line is written whole

    def prompt(self, session_id: str | None, token: str | None) -> str | None:
        """What a session is asked to do, when it hands out tickets."""
        name = self._proven(session_id, token)
        return None if name is None else ticket_work.orchestrator_prompt(self._contexts, name)

    def tools(self, session_id: str | None, token: str | None) -> list[str]:
        """Tickets are handed out by the orchestrator of a run, questions asked by everybody where somebody answers."""
        name = self._proven(session_id, token)
        if name is None:
            return []
        making = ticket_work.orchestrator_prompt(self._contexts, name) is not None
        with self._one:
            rows = self._database.rows("SELECT request FROM ticket_run WHERE name = ?", _run_of(name))
        asking = bool(rows) and json.loads(rows[0]["request"]).get("context_manager") is not None
        return [tool for tool, offered in ((mcp_server.MAKE_TICKETS, making), (mcp_server.ASK, asking)) if offered]

    def call(self, tool: str, session_id: str | None, token: str | None, arguments: Mapping[str, object]) -> Answer:
        """One call, answered whatever happens."""

        def failure(kind: ErrorType, message: str) -> Answer:
            return error(kind, message, operation=tool)

        try:
            self._sessions.boundaries(session_id, token)
            name = (session_id or "").strip()
            if tool not in self.tools(session_id, token):
                return failure(ErrorType.ACCESS_DENIED, f"this session is not offered the tool {tool}")
            with self._router.turn(name):
                if tool == mcp_server.MAKE_TICKETS:
                    return self._made(_run_of(name), mcp_server.MakeTickets.model_validate(dict(arguments)))
                return self._answered(name, mcp_server.Ask.model_validate(dict(arguments)))
        except ToolFailed as failed:
            return failure(failed.kind, failed.message)
        except ValidationError as refused:
            lines = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in refused.errors()]
            return failure(ErrorType.INVALID_ARGUMENT, "; ".join(lines[:10]))
        except Refusal as refusal:
            kinds = {"ticket-run-busy": ErrorType.BUSY, "ticket-double": ErrorType.INVALID_ARGUMENT,
                     "quota-tickets": ErrorType.INVALID_ARGUMENT, **dict.fromkeys(PASSING, ErrorType.BUSY)}  # fmt: skip
            return failure(kinds.get(refusal.reference, ErrorType.WORKER_FAILED), refusal.message)

    def _proven(self, session_id: str | None, token: str | None) -> str | None:
        """The session that calls; None when that is not proven."""
        try:
            self._sessions.boundaries(session_id, token)
        except ToolFailed:
            return None
        return (session_id or "").strip()

    def _made(self, run: str, asked: mcp_server.MakeTickets) -> Answer:
        with self._one:
            new = add_tickets(self._database, run, [(each.ticket, each.details) for each in asked.tickets])
            self._say({"run": run})
        already = [each.ticket for each in asked.tickets if each.ticket not in new]
        return Answer(json.dumps({"made": new, "already": already}))

    def _answered(self, name: str, asked: mcp_server.Ask) -> Answer:
        """What the context manager has written to its standard output."""
        question = {"session_id": name, "question": asked.question}
        session = self._service.call("POST", run_path(_run_of(name), "questions"), question)
        path = session_path(session["name"])
        while session["state"] not in FINAL:
            session = self._service.call("GET", path, query={"wait": _LOOK})
        lines = self._service.lines(f"{path}/logs", {"stream": "stdout"})
        text = "\n".join(line["text"] for line in lines)
        outcome = session["outcome"] or {}
        if session["state"] != SessionState.ENDED or outcome.get("reason") != Reason.EXITED:
            how = f"status {outcome['status']}" if outcome.get("status") is not None else session["state"]
            why = f"the context manager did not answer: it ended with {how}"
            return error(ErrorType.WORKER_FAILED, why, operation=mcp_server.ASK, note=text[-MOST_TEXT:])
        return Answer(text[:MOST_TEXT], "the rest is omitted" if len(text) > MOST_TEXT else "")


_LOOK = 60
"""Seconds of one look at a session that answers a question."""


def _run_of(session_id: str) -> str:
    return session_id.partition("/")[0]
