"""What a ticket run is asked for with, and told as: part of the control API, and the form of a tickets file."""

import re
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from launcher.service.models import Directory, Frozen, SessionName, Variable, Word
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
    LOST = "lost"
    """Of an earlier version: it ended with a service that was killed."""


OVER = (TicketState.ENDED, TicketState.FAILED, TicketState.LOST)
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


class OnConflict(StrEnum):
    """What a ticket that cannot be merged means for those behind it."""

    STOP = "stop"
    SKIP = "skip"


def _ticket(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", text):
        raise ValueError("1 to 64 letters, digits, dots, dashes and underscores; a letter or digit in front")
    return text


Timeout = Annotated[float, Field(gt=0, le=30 * 86_400)]


class Ticket(Frozen):
    """One ticket.

    Attributes:
        ticket: what it is called; its worktree and branch are named after it.
        details: what it says, for the agent's context.
        command: the agent's words.
        options: of `paddock run`, besides those that hold it to its worktree.
        timeout: seconds after which its session is stopped; the run's own when there is none.
    """

    ticket: Annotated[str, AfterValidator(_ticket)]
    details: Annotated[str, Field(max_length=64 << 10)] = ""
    command: list[Word] = Field(min_length=1, max_length=1_024)
    options: list[Word] = Field(default_factory=list, max_length=1_024)
    timeout: Timeout | None = None


class TicketRequest(Frozen):
    """A ticket run that somebody wants.

    Attributes:
        name: of the run; random when there is none.
        repository: a worktree: what the tickets begin with, and where their work is merged into.
        goal: what for.
        tickets: in the order in which their work is merged.
        parallel: agents at the same time.
        merge: whether their work is merged.
        merge_failed: also that of agents whose command failed.
        on_conflict: "stop" leaves everybody behind the first conflict unmerged, "skip" leaves out who conflicts.
        timeout: seconds that each ticket's session may take; no bound when there is none.
        remove: the worktrees of tickets whose work is merged, when nothing in them would be lost; branches stay.
        environment: of the agents' launchers; the service's own when there is none.
    """

    name: SessionName | None = None
    repository: Directory
    goal: Annotated[str, Field(max_length=4_096)] = ""
    tickets: list[Ticket] = Field(min_length=1, max_length=10_000)
    parallel: int = Field(4, ge=1, le=256)
    merge: bool = True
    merge_failed: bool = False
    on_conflict: OnConflict = OnConflict.STOP
    timeout: Timeout | None = None
    remove: bool = True
    environment: dict[Variable, Word] | None = Field(None, max_length=4_096)


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
        tickets: what each is called.
        steps: where each is, in the same order.
        seen: changes with each step; for waiting until the next one.
        result: what came of it: agents with their sessions, the aggregation of the merge, or a refusal.
    """

    name: str
    state: TicketState
    created: float
    ended: float | None
    tickets: list[str]
    steps: list[TicketStatus]
    seen: int
    result: dict[str, Any] | None


def of_ticket(name: str, refusal: Refusal) -> Refusal:
    """A Refusal that says which ticket it is about."""
    return Refusal(refusal.reference, f"ticket {name}: {refusal.message}", context=refusal.context, hint=refusal.hint,
                   exit_code=refusal.exit_code)  # fmt: skip
