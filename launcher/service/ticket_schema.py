"""What a ticket run is asked for with, and told as: part of the control API, and the form of a tickets file."""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, StrictInt, StrictStr, StringConstraints, ValidationError, model_validator

from launcher.service.schema import Directory, Frozen, SessionName, Told, Variable, Word
from launcher.vcs.merge.descriptors import MergeAggregation
from policy.errors import Refusal


class TicketState(StrEnum):
    """Where a run is."""

    CREATED = "created"
    PREPARING = "preparing"
    RUNNING = "running"
    MERGING = "merging"
    ENDED = "ended"
    """Every ticket's agent ended well, and all of their work is in the trunk (or was not to be merged)."""
    FAILED = "failed"
    """The result says what did not go well."""


OVER = (TicketState.ENDED, TicketState.FAILED)
"""Nothing comes after them, unless somebody resumes the run."""


class TicketStep(StrEnum):
    """Where one ticket of a run is."""

    WAITING = "waiting"
    PREPARED = "prepared"
    """Its worktree is ready."""
    RUNNING = "running"
    ENDED = "ended"
    """Its agent ended well."""
    FAILED = "failed"
    """Its agent did not start, or did not end well."""
    MERGED = "merged"
    CONFLICTED = "conflicted"
    REVIEWING = "reviewing"
    """Its agent ended well, and the run's review is at its work."""
    RESOLVING = "resolving"
    """The run's merger is at its conflict."""


class OnConflict(StrEnum):
    """What a ticket that cannot be merged means for those behind it."""

    STOP = "stop"
    SKIP = "skip"


def _ticket(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", text):
        raise ValueError("1 to 64 letters, digits, dots, dashes and underscores; starting with a letter or digit")
    return text


def _size(given: int | str) -> int:
    text = str(given)
    scale = {"K": 10, "M": 20, "G": 30, "T": 40}.get(text[-1:].upper(), 0)
    number = text[:-1] if scale else text
    if not number.isdecimal():
        raise ValueError('a size in bytes, as 2147483648 or "2G"')
    return int(number) << scale


# What a node of a cluster sets aside for a command. Strict, so that `true` is no processor.
Cpus = Annotated[float, Field(ge=0, le=10_000, allow_inf_nan=False, strict=True)]
Memory = Annotated[StrictInt | StrictStr, AfterValidator(_size)]
ResourceName = Annotated[str, StringConstraints(min_length=1)]
Amount = Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False, strict=True)]

Timeout = Annotated[float, Field(gt=0, le=30 * 86_400)]


class EngineName(StrEnum):
    """Where agents work."""

    LOCAL = "local"
    RAY = "ray"
    """On the nodes of a Ray cluster."""


class Command(Frozen):
    """What is started in a worktree.

    Attributes:
        command: its words.
        options: of `paddock run`, besides those that hold it to its worktree.
        timeout: seconds after which its session is stopped; the run's own when there is none.
    """

    command: list[Word] = Field(min_length=1, max_length=1_024)
    options: list[Word] = Field(default_factory=list, max_length=1_024)
    timeout: Timeout | None = None


class Ticket(Command):
    """One ticket.

    Attributes:
        ticket: what it is called; its worktree and branch are named after it.
        details: what it says, for the agent's context.
        command: the agent's words.
        cpus: processors that a cluster's node sets aside for it.
        memory: bytes that it sets aside, or as "4G"; what the agent may use is ``--limit memory=`` in `options`.
        resources: further resources of a node that it needs, by name.
    """

    ticket: Annotated[str, AfterValidator(_ticket)]
    details: Annotated[str, Field(max_length=64 << 10)] = ""
    cpus: Cpus = 1
    memory: Memory = 0
    resources: dict[ResourceName, Amount] = Field(default_factory=dict, max_length=100)


class Merger(Command):
    """What resolves a ticket's conflict with the trunk.

    Attributes:
        command: its words. It starts in the ticket's worktree, in which the trunk is being merged, and commits.
    """


class Agent(Command):
    """What works on a ticket that says nothing of that itself, or reviews the work on one.

    Attributes:
        command: its words, in which ``{ticket}`` and ``{details}`` are the ticket's.
    """

    def ticket(self, name: str, details: str) -> Ticket:
        """A ticket that it works on.

        Raises:
            pydantic.ValidationError: name or details cannot be a ticket's.
        """
        words = []
        for word in self.command:
            said = _PLACE.sub(lambda found: name if found[1] == "ticket" else details, word)
            # What a model has written is never an option of the command.
            words.append(f" {said}" if said.startswith("-") and not word.startswith("-") else said)
        return Ticket(ticket=name, details=details, command=words, options=self.options, timeout=self.timeout)


class Orchestrator(Command):
    """An agent that makes the tickets of a run.

    It has a worktree of its own. The tickets begin with what it has committed there, and are merged into it; what they
    come to is merged into the trunk at the end.

    Attributes:
        command: its words, in which ``{prompt}`` is what it is asked to do.
        most_tickets: that it may make.
    """

    most_tickets: int = Field(32, ge=1, le=10_000)


class TicketRequest(Frozen):
    """A ticket run that somebody wants.

    Attributes:
        name: of the run; random when there is none.
        repository: a worktree: what the tickets begin with, and where their work is merged into.
        goal: what for.
        tickets: in the order in which their work is merged.
        agent: works on tickets that name no command of their own.
        orchestrator: makes tickets, before any is worked on; they come after those that are there already.
        parallel: agents at the same time.
        merge: whether their work is merged.
        merge_failed: also that of agents whose command failed.
        on_conflict: "stop" leaves everybody behind the first conflict unmerged, "skip" leaves out who conflicts.
        file_tools: agents may use Paddock's file tools over HTTP: PADDOCK_FILES_URL, PADDOCK_FILES_SESSION and
            PADDOCK_FILES_TOKEN in their environment say how.
        context_manager: answers what agents of the run ask, in the worktree of who asks; ``{details}`` is the question.
        review: looks at the commit that a ticket's agent has come to, in a fresh worktree. That is merged only where it
            ends with status 0.
        merger: resolves conflicts, each ticket's once; a person does when there is none.
        timeout: seconds that each ticket's session may take; no bound when there is none.
        engine: where the tickets' agents work; whatever else is started works here.
        address: of the cluster's head; that of this machine when there is none.
        remove: the worktrees of tickets whose work is merged, when nothing in them would be lost; branches stay.
        environment: of the agents' launchers; the service's own when there is none.
    """

    name: SessionName | None = None
    repository: Directory
    goal: Annotated[str, Field(max_length=4_096)] = ""
    tickets: list[Ticket] = Field(default_factory=list, max_length=10_000)
    agent: Agent | None = None
    orchestrator: Orchestrator | None = None
    parallel: int = Field(4, ge=1, le=256)
    merge: bool = True
    merge_failed: bool = False
    on_conflict: OnConflict = OnConflict.STOP
    context_manager: Agent | None = None
    review: Agent | None = None
    merger: Merger | None = None
    file_tools: bool = False
    timeout: Timeout | None = None
    remove: bool = True
    engine: EngineName = EngineName.LOCAL
    address: Annotated[str, Field(min_length=1, max_length=1_024)] | None = None
    environment: dict[Variable, Word] | None = Field(None, max_length=4_096)

    @model_validator(mode="before")
    @classmethod
    def _with_commands(cls, given: object) -> object:
        """Tickets that name no command are the agent's."""
        if not isinstance(given, dict) or not isinstance(tickets := given.get("tickets"), list):
            return given
        try:
            agent = Agent.model_validate(given.get("agent"))
        except ValidationError:
            return given  # which says what is wrong with it
        return given | {"tickets": [_with_command(each, agent) for each in tickets]}

    @model_validator(mode="after")
    def _with_tickets(self) -> Self:
        if not self.tickets and self.orchestrator is None:
            raise ValueError("tickets is missing, and no orchestrator makes any")
        if self.engine is not EngineName.LOCAL and (self.file_tools or self.context_manager is not None):
            raise ValueError("file_tools and context_manager serve this machine only: not with another engine")
        if self.orchestrator is not None and self.agent is None:
            raise ValueError("agent is missing: it names the command for the tickets that the orchestrator makes")
        return self


_PLACE = re.compile(r"\{(ticket|details)\}")


def _with_command(ticket: object, agent: Agent) -> object:
    if not isinstance(ticket, dict) or "command" in ticket or not isinstance(ticket.get("ticket"), str):
        return ticket
    details = ticket.get("details", "")
    try:
        made = agent.ticket(ticket["ticket"], details if isinstance(details, str) else "")
    except ValidationError:
        return ticket | {"command": agent.command}  # whose own mistakes are told
    return made.model_dump() | ticket


class TicketResume(Frozen):
    """How an interrupted run goes on.

    Attributes:
        on_conflict: in place of what was asked for first.
        environment: of the launchers of agents that are started; as at first when there is none.
    """

    on_conflict: OnConflict | None = None
    environment: dict[Variable, Word] | None = Field(None, max_length=4_096)


class TicketStatus(Frozen):
    """One ticket of a run.

    Attributes:
        ticket: what it is called.
        state: where it is.
        changed: since when, in seconds since the epoch.
        attempt: how often its agent was started.
        session: of its agent; "" before it was started.
        worktree: made for it; "" before.
    """

    ticket: str
    state: TicketStep
    changed: float
    attempt: int
    session: str
    worktree: str


class TicketRun(Frozen):
    """A ticket run as the service knows it.

    Attributes:
        name: its name.
        state: where it is.
        created: seconds since the epoch.
        ended: when it was over.
        orchestrator: where that is, as one of its tickets; None without one.
        tickets: what each is called.
        steps: where each is, in the same order.
        seen: changes with each step; for waiting until the next one.
        result: what came of it: agents with their sessions, the aggregation of the merge, or a refusal.
    """

    name: str
    state: TicketState
    created: float
    ended: float | None
    orchestrator: TicketStatus | None
    tickets: list[str]
    steps: list[TicketStatus]
    seen: int
    result: dict[str, Any] | None


class Prompt(Told):
    """The contributed part of one prompt of a ticket run.

    Attributes:
        session_id: of the context that it was made from.
        agent_type: whose prompt it is.
        text: Markdown.
    """

    session_id: str
    agent_type: str
    text: str


def check_for_nodes(options: Mapping[str, object]) -> None:
    """Refuses what a command on a cluster's node must not have: whoever reaches a port of Ray's runs commands there.

    Args:
        options: of ``paddock run``, by name.
    """
    if "--reach" in options or options.get("--net") == "open":
        raise Refusal("usage", "a command on a cluster's node gets neither an open network nor ports of its loopback",
                      hint="--net proxy")  # fmt: skip


def of_ticket(name: str, refusal: Refusal) -> Refusal:
    """A Refusal that says which ticket it is about."""
    return Refusal.of({**refusal.as_dict(), "message": f"ticket {name}: {refusal.message}"})


def aggregation(
    merged: Sequence[dict[str, Any]], conflicted: Sequence[dict[str, Any]], pending: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """The aggregation of several merges (`launcher.vcs.merge.descriptors.MergeAggregation`), with a summary.

    ``aggregation`` names the first who conflicts; ``conflicts`` all of them.
    """
    first = conflicted[0] if conflicted else None
    waiting = [each | {"merge_descriptor": None} for each in conflicted[1:]]
    found = MergeAggregation.model_validate({"merged": merged, "pending": [*waiting, *pending], "conflicted": first})
    return {
        "aggregation": found.model_dump(mode="json"),
        "conflicts": list(conflicted),
        "summary": found.pretty_print(),
        "clean": found.all_successful,
    }
