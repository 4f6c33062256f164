"""Questions of a run's agents to its context manager: another agent, which finds out what they need to know."""

import asyncio
import os
from typing import Annotated

from pydantic import Field

from launcher.service.jobs import Jobs, refusal_of
from launcher.service.schema import Frozen, Reason, Session
from launcher.service.supervisor import Supervisor
from launcher.service.ticket_records import TicketRecords
from launcher.service.ticket_schema import Ticket, TicketRequest
from launcher.service.ticket_sessions import TicketSessions
from policy.errors import Refusal

MOST_SECONDS = 300.0
"""What a context manager may take when its table says nothing."""

_MOST = 4
"""Questions of one run at the same time."""


class TicketQuestion(Frozen):
    """A question of an agent.

    Attributes:
        session_id: of the agent's context.
        question: in words.
    """

    session_id: Annotated[str, Field(min_length=1, max_length=512)]
    question: Annotated[str, Field(min_length=1, max_length=64 << 10)]


class Questions:
    """Those of all runs of one service. A session answers each, in the jail of the worktree of the agent that asks."""

    def __init__(
        self, records: TicketRecords, sessions: TicketSessions, supervisor: Supervisor, jobs: Jobs, database: str
    ) -> None:
        """Args: what is known of runs; their sessions; who runs sessions; who works with git; the service's."""
        self._records = records
        self._sessions = sessions
        self._supervisor = supervisor
        self._jobs = jobs
        self._database = database
        self._asked: dict[str, dict[str, asyncio.Task[object] | None]] = {}

    def begun(self, run: str) -> None:
        """The agents of a run may ask from now on."""
        self._asked[run] = {}

    def over(self, run: str, *, stop: bool) -> None:
        """Nobody asks any more. `stop`: whoever is at a question still is stopped."""
        for name, task in self._asked.pop(run, {}).items():
            if task is not None:
                task.cancel()
            if stop and name in self._supervisor.live:
                self._supervisor.stop(name, why=Reason.STOPPED)

    async def ask(self, run: str, asked: TicketQuestion) -> Session:
        """Starts the session that answers a question with what it writes to its standard output.

        Raises:
            Refusal: ticket-run-unknown, ticket-run-closed, ticket-run-busy, or why it does not start.
        """
        request = self._records.request(run)
        manager = request.context_manager
        if manager is None or run not in self._asked:
            raise Refusal("ticket-run-closed", f"ticket run {run} has nobody to answer questions",
                          hint="name one in the tickets file: the table [context_manager]")  # fmt: skip
        if len(self._asked[run]) >= _MOST:
            raise Refusal("ticket-run-busy", f"{_MOST} questions of ticket run {run} are already being answered",
                          hint="try again when one is")  # fmt: skip
        name = f"{run[:50]}.c{os.urandom(4).hex()}"
        self._asked[run][name] = None  # its place, from here on
        try:
            arguments = {"database": self._database, "run": run, "number": name.rpartition(".")[2],
                         **asked.model_dump()}  # fmt: skip
            place = await self._jobs.run("tickets.ask", arguments)
            ticket = manager.ticket(place["ticket"], asked.question)
            ticket = ticket.model_copy(update={"timeout": ticket.timeout or MOST_SECONDS})
            client_uid = self._records.row(run)["client_uid"]
            refused = self._sessions.started(run, name, ticket, place, request, client_uid)
            if refused is not None:
                raise refusal_of(refused["refusal"])
        except BaseException:
            self._forget(run, name)
            raise
        if run not in self._asked:  # the run was over before it had begun
            self._supervisor.stop(name, why=Reason.STOPPED)
        else:
            self._asked[run][name] = self._follow(run, name, ticket, place, request)
        return self._supervisor.session(name)

    def _follow(
        self, run: str, name: str, ticket: Ticket, place: dict[str, object], request: TicketRequest
    ) -> asyncio.Task[object]:
        """Ends the session when it takes too long."""
        following = self._sessions.ended(name, ticket, place, request, lambda: False)
        task: asyncio.Task[object] = asyncio.get_running_loop().create_task(following)
        task.add_done_callback(lambda _: self._forget(run, name))
        return task

    def _forget(self, run: str, name: str) -> None:
        self._asked.get(run, {}).pop(name, None)
