"""Routes of git work: ticket runs, worktrees, merges."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from pydantic import Field

from launcher.service.api.context import context_of, peer_of
from launcher.service.models import Directory, Error, Frozen, SessionName, Word
from launcher.service.ticket_models import TicketRequest, TicketRun

router = APIRouter(prefix="/v1")

_KNOWN: dict[int | str, dict[str, Any]] = {404: {"model": Error, "description": "There is no such thing."}}
_BOUNDED: dict[int | str, dict[str, Any]] = {
    409: {"model": Error, "description": "The name is taken."},
    429: {"model": Error, "description": "There are as many runs as may be."},
}
_MOST_WAIT = 300.0


class TicketRunList(Frozen):
    """Ticket runs, the newest first."""

    ticket_runs: list[TicketRun]


class WorktreeList(Frozen):
    """Worktrees that Paddock knows, as `paddock worktree list --json` tells them."""

    worktrees: list[dict[str, Any]]


class WorktreeRequest(Frozen):
    """A worktree that somebody wants.

    Attributes:
        repository: a worktree of the repository, beside which it is made.
        ticket: what it is for.
        branch: its branch; ``agent/<ticket>`` when there is none.
        start: the commit to start from; what is checked out in `repository` when there is none.
    """

    repository: Directory
    ticket: Annotated[Word, Field(min_length=1, max_length=200)]
    branch: Annotated[Word, Field(min_length=1, max_length=200)] | None = None
    start: Annotated[Word, Field(min_length=1, max_length=200)] | None = None


class MergeRequest(Frozen):
    """A merge that somebody wants: children into a trunk, as `paddock merge` does it.

    Attributes:
        repository: a worktree of the repository.
        children: branches, worktrees or tickets, in this order.
        into: branch or worktree; what is checked out in `repository` when there is none.
    """

    repository: Directory
    children: list[Annotated[Word, Field(min_length=1, max_length=4_096)]] = Field(min_length=1, max_length=1_000)
    into: Annotated[Word, Field(min_length=1, max_length=4_096)] | None = None


class Merge(Frozen):
    """A run of merges.

    Attributes:
        run: as its journal has it (`paddock merge status --json`).
        warnings: work of children that is not on their branches, and so not merged.
    """

    run: dict[str, Any]
    warnings: list[str]


class MergeList(Frozen):
    """Runs of merges."""

    runs: list[dict[str, Any]]


@router.post("/ticket-runs", status_code=201, tags=["tickets"], responses=_BOUNDED)
async def create_ticket_run(
    body: TicketRequest,
    request: Request,
    wait: Annotated[float, Query(ge=0, le=_MOST_WAIT, description="seconds to wait for its end")] = 0,
) -> TicketRun:
    """Makes a worktree for each ticket, runs the agents in them, and merges their work in two phases."""
    runs = context_of(request).tickets
    made = runs.create(body, peer_of(request).uid)
    return await runs.wait(made.name, wait) if wait else made


@router.get("/ticket-runs", tags=["tickets"])
async def list_ticket_runs(request: Request, limit: Annotated[int, Query(ge=1, le=10_000)] = 100) -> TicketRunList:
    """Lists ticket runs, the newest first."""
    return TicketRunList(ticket_runs=context_of(request).tickets.listed(limit))


@router.get("/ticket-runs/{name}", tags=["tickets"], responses=_KNOWN)
async def show_ticket_run(
    name: SessionName,
    request: Request,
    wait: Annotated[float, Query(ge=0, le=_MOST_WAIT, description="seconds to wait for its end")] = 0,
) -> TicketRun:
    """Shows a ticket run."""
    return await context_of(request).tickets.wait(name, wait)


@router.post("/ticket-runs/{name}/stop", tags=["tickets"], responses=_KNOWN)
async def stop_ticket_run(name: SessionName, request: Request) -> TicketRun:
    """Stops a ticket run: its agents end, nothing is merged. A merge that is under way is not interrupted."""
    return context_of(request).tickets.stop(name)


@router.get("/worktrees", tags=["worktrees"])
async def list_worktrees(
    request: Request, repository: Annotated[Directory | None, Query(description="of this one only")] = None
) -> WorktreeList:
    """Lists the worktrees that Paddock knows."""
    found = await context_of(request).jobs.run("worktree.list", {"repository": repository})
    return WorktreeList(worktrees=found["worktrees"])


@router.post("/worktrees", status_code=201, tags=["worktrees"])
async def add_worktree(body: WorktreeRequest, request: Request) -> dict[str, Any]:
    """Makes a worktree for a ticket."""
    return await context_of(request).jobs.run("worktree.add", body.model_dump(mode="json"))


@router.delete("/worktrees/{name}", tags=["worktrees"], responses=_KNOWN)
async def remove_worktree(
    name: Annotated[Word, Path(min_length=1, max_length=200, description="id, ticket or branch")],
    request: Request,
    repository: Annotated[Directory, Query(description="a worktree of the repository")],
    keep_branch: Annotated[bool, Query(description="leave its branch, which may hold work then")] = False,
) -> dict[str, Any]:
    """Removes a worktree, never with work that is nowhere else."""
    arguments = {"repository": repository, "name": name, "keep_branch": keep_branch}
    return await context_of(request).jobs.run("worktree.remove", arguments)


@router.get("/merges", tags=["merges"])
async def list_merges(
    request: Request, repository: Annotated[Directory, Query(description="a worktree of the repository")]
) -> MergeList:
    """Lists what merges have done in a repository."""
    found = await context_of(request).jobs.run("merge.list", {"repository": repository})
    return MergeList(runs=found["runs"])


@router.post("/merges", status_code=201, tags=["merges"])
async def merge(body: MergeRequest, request: Request) -> Merge:
    """Merges children into a trunk, in order, up to the first that conflicts."""
    context = context_of(request)
    arguments = body.model_dump(mode="json")
    common_dir = (await context.jobs.run("repository", {"directory": body.repository}))["common_dir"]
    return Merge.model_validate(await context.tickets.merging(common_dir, "merge", arguments))
