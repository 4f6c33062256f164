"""Routes of git work: ticket runs, worktrees, merges."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import Field

from launcher.service.api.context import context_of, peer_of
from launcher.service.api.session_routes import Key
from launcher.service.schema import (
    Directory,
    Error,
    Frozen,
    SessionName,
    TicketRequest,
    TicketResume,
    TicketRun,
    Told,
    Word,
)

router = APIRouter(prefix="/v1")

_KNOWN: dict[int | str, dict[str, Any]] = {404: {"model": Error, "description": "There is no such thing."}}
_BOUNDED: dict[int | str, dict[str, Any]] = {
    409: {"model": Error, "description": "The name is taken."},
    429: {"model": Error, "description": "There are as many runs as may be."},
}
_MOST_WAIT = 300.0


class TicketRunList(Frozen):
    """Ticket runs, the newest first.

    Attributes:
        ticket_runs: those that were asked for.
    """

    ticket_runs: list[TicketRun]


class Worktree(Told):
    """A worktree that Paddock knows (`launcher.vcs.worktrees.models`).

    Attributes:
        worktree_id: its id.
        ticket: what it was made for.
        state: whether it is whole.
        created: seconds since the epoch.
        adopted: whether it was there before Paddock knew of it.
        main: the worktree itself: its path, branch and commit.
        submodules: the same of each submodule.
        context: the boundaries that tools keep to.
    """

    worktree_id: str
    ticket: str
    state: str
    created: float
    adopted: bool
    main: dict[str, Any]
    submodules: list[dict[str, Any]]
    context: dict[str, Any]


class RemovedWorktree(Frozen):
    """A worktree that was removed.

    Attributes:
        worktree_id: its id.
        path: where it was.
    """

    worktree_id: str
    path: str


class WorktreeList(Frozen):
    """Worktrees that Paddock knows.

    Attributes:
        worktrees: those that were asked for.
    """

    worktrees: list[Worktree]


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


class MergeRun(Told):
    """A run of merges, as its journal has it (`paddock merge status --json`).

    Attributes:
        run_id: its name.
        state: where it is.
    """

    run_id: str
    state: str


class Merge(Frozen):
    """A run of merges.

    Attributes:
        run: what was done.
        warnings: work of children that is not on their branches, and so not merged.
    """

    run: MergeRun
    warnings: list[str]


class MergeList(Frozen):
    """Runs of merges.

    Attributes:
        runs: of the repository.
    """

    runs: list[MergeRun]


@router.post(
    "/ticket-runs",
    status_code=201,
    tags=["tickets"],
    responses={200: {"model": TicketRun, "description": "The idempotency key is known: its run."}, **_BOUNDED},
)
async def create_ticket_run(
    body: TicketRequest,
    request: Request,
    response: Response,
    wait: Annotated[float, Query(ge=0, le=_MOST_WAIT, description="seconds to wait for its end")] = 0,
    idempotency_key: Key = None,
) -> TicketRun:
    """Makes a worktree for each ticket, runs the agents in them, and merges their work in two phases."""
    context, client = context_of(request), peer_of(request).uid
    runs = context.tickets
    made, new = await context.supervisor.store.database.patiently(lambda: runs.create(body, client, idempotency_key))
    if not new:
        response.status_code = 200
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
    seen: Annotated[int | None, Query(description="wait only until a ticket has moved since: `seen` of it")] = None,
) -> TicketRun:
    """Shows a ticket run."""
    return await context_of(request).tickets.wait(name, wait, seen)


@router.post("/ticket-runs/{name}/stop", tags=["tickets"], responses=_KNOWN)
async def stop_ticket_run(name: SessionName, request: Request) -> TicketRun:
    """Stops a ticket run: its agents end, nothing is merged. A merge that is under way is not interrupted."""
    return context_of(request).tickets.stop(name)


@router.post("/ticket-runs/{name}/resume", tags=["tickets"], responses=_KNOWN | _BOUNDED)
async def resume_ticket_run(name: SessionName, body: TicketResume, request: Request) -> TicketRun:
    """Goes on with a ticket run from where it was: agents that did not end well are started again, then the merge."""
    return context_of(request).tickets.resume(name, body, peer_of(request).uid)


@router.get("/worktrees", tags=["worktrees"])
async def list_worktrees(
    request: Request, repository: Annotated[Directory | None, Query(description="of this one only")] = None
) -> WorktreeList:
    """Lists the worktrees that Paddock knows."""
    found = await context_of(request).jobs.run("worktree.list", {"repository": repository})
    return WorktreeList.model_validate(found)


@router.post("/worktrees", status_code=201, tags=["worktrees"])
async def add_worktree(body: WorktreeRequest, request: Request) -> Worktree:
    """Makes a worktree for a ticket."""
    made = await context_of(request).jobs.run("worktree.add", body.model_dump(mode="json"))
    return Worktree.model_validate(made)


@router.delete("/worktrees/{name}", tags=["worktrees"], responses=_KNOWN)
async def remove_worktree(
    name: Annotated[Word, Path(min_length=1, max_length=200, description="id, ticket or branch")],
    request: Request,
    repository: Annotated[Directory, Query(description="a worktree of the repository")],
    keep_branch: Annotated[bool, Query(description="leave its branch, which may hold work then")] = False,
) -> RemovedWorktree:
    """Removes a worktree, never with work that is nowhere else."""
    arguments = {"repository": repository, "name": name, "keep_branch": keep_branch}
    return RemovedWorktree.model_validate(await context_of(request).jobs.run("worktree.remove", arguments))


@router.get("/merges", tags=["merges"])
async def list_merges(
    request: Request, repository: Annotated[Directory, Query(description="a worktree of the repository")]
) -> MergeList:
    """Lists what merges have done in a repository."""
    found = await context_of(request).jobs.run("merge.list", {"repository": repository})
    return MergeList.model_validate(found)


@router.post("/merges", status_code=201, tags=["merges"])
async def create_merge(body: MergeRequest, request: Request) -> Merge:
    """Merges children into a trunk, in order, up to the first that conflicts."""
    context = context_of(request)
    arguments = body.model_dump(mode="json")
    common_dir = (await context.jobs.run("repository", {"directory": body.repository}))["common_dir"]
    return Merge.model_validate(await context.tickets.merging(common_dir, "merge", arguments))
