"""Routes of sessions, and of work with git: ticket runs, worktrees, merges."""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from fastapi import APIRouter, Header, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import Field, model_validator

from launcher.service.api.context import Context, context_of, denial_lines, denials_of, json_line, log_lines, peer_of
from launcher.service.schema import (
    Directory,
    Error,
    Frozen,
    Session,
    SessionDetails,
    SessionName,
    SessionRequest,
    SessionState,
    Told,
    Word,
)
from launcher.service.shim.attempt import SENDABLE
from launcher.service.tables import session_of
from launcher.service.ticket_schema import Prompt, TicketRequest, TicketResume, TicketRun
from launcher.service.ticket_sessions import TicketQuestion
from launcher.session import answers
from policy import asking
from policy.errors import Refusal

JSON_LINES = "application/x-ndjson"
MOST_WAIT = 300.0

router = APIRouter(prefix="/v1/sessions", tags=["sessions"])

_Responses = dict[int | str, dict[str, Any]]

_KNOWN: _Responses = {404: {"model": Error, "description": "There is no such session."}}
_STATE: _Responses = {409: {"model": Error, "description": "Its state does not allow that."}}
_LINES: _Responses = {
    200: {"content": {JSON_LINES: {"schema": {"type": "string"}}}, "description": "JSON objects, one per line."}
}

Seconds = Annotated[float, Field(ge=0, le=MOST_WAIT)]
Key = Annotated[str | None, Header(min_length=1, max_length=255, pattern=r"^[\x21-\x7e]+$")]


class Stop(Frozen):
    """How a session is to end.

    Attributes:
        term_seconds: patience between SIGTERM and the kill; the service's own when there is none.
        wait: seconds for which the answer may wait for its end.
        forget: forget it then, with its log.
    """

    term_seconds: float | None = Field(None, ge=0, le=3_600)
    wait: Seconds = 0
    forget: bool = False


class Signal(Frozen):
    """A signal for a session's command.

    Attributes:
        signal: its name.
    """

    signal: Annotated[str, Field(max_length=32, examples=["SIGTERM"])]


class Freeze(Frozen):
    """Whether a session may run.

    Attributes:
        frozen: nothing of it runs until this is false, or it is asked to end.
    """

    frozen: bool


class Sessions(Frozen):
    """Several sessions, the newest first.

    Attributes:
        sessions: those that were asked for.
    """

    sessions: list[Session]


class RunContexts(Frozen):
    """The request contexts of a ticket run.

    Attributes:
        contexts: of `launcher.workflow.request_context.RequestContext`, in the order of their keys.
    """

    contexts: list[dict[str, Any]]


class Prompts(Frozen):
    """The prompts of a ticket run.

    Attributes:
        prompts: in the order of the sessions that get them.
    """

    prompts: list[Prompt]


class SessionContext(Told):
    """The request context of a session (`launcher.workflow.request_context`).

    Attributes:
        session_id: the text of its key, which tools name.
        state: where in its life it is.
        worktree_context: the boundaries that tools keep to; none until they are known.
        metadata: labels.
    """

    session_id: str
    state: str
    worktree_context: dict[str, Any] | None
    metadata: dict[str, str]


@router.post(
    "",
    status_code=201,
    responses={
        200: {"model": Session, "description": "The idempotency key is known: the session that was made then."},
        409: {"model": Error, "description": "The name is taken, or the key was used with another request."},
        410: {
            "model": Error,
            "description": "The idempotency key is known, but the session that was made then has been forgotten"
            " (session-forgotten): a request is carried out only once for its key.",
        },
        429: {"model": Error, "description": "The limit of sessions is reached."},
    },
)
async def create_session(
    body: SessionRequest,
    request: Request,
    response: Response,
    wait: Annotated[Seconds, Query(description="seconds that the answer may wait until the command runs")] = 0,
    idempotency_key: Key = None,
) -> Session:
    """Accepts a session, which is started in its turn."""
    supervisor = context_of(request).supervisor
    client = peer_of(request).uid
    session, new = await supervisor.store.database.patiently(lambda: supervisor.create(body, client, idempotency_key))
    if not new:
        response.status_code = 200
    if wait:
        return await supervisor.wait(session.name, frozenset({SessionState.RUNNING, SessionState.STOPPING}), wait)
    return session


@router.get("")
async def list_sessions(
    request: Request,
    state: Annotated[list[SessionState], Query(max_length=10, description="only those in these states")] = [],  # noqa: B006
    live: Annotated[bool, Query(description="only those that have not ended")] = False,
    after: Annotated[float, Query(ge=0, description="only those made later than this, in seconds since the epoch")] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1_000,
) -> Sessions:
    """Lists sessions, the newest first."""
    context = context_of(request)
    rows = context.supervisor.store.listed(states=tuple(state), live=live, limit=limit, after=after)
    return Sessions(sessions=[_with_life(context, session_of(row)) for row in rows])


def _with_life(context: Context, session: Session) -> Session:
    live = context.supervisor.live.get(session.name)
    if live is None:
        return session
    return session.model_copy(
        update={"attached": live.about["attached"], "usage": context.sampler.usage.get(session.name)}
    )


@router.get("/{name}", responses=_KNOWN)
async def show_session(
    name: SessionName,
    request: Request,
    wait: Annotated[Seconds, Query(description="seconds that the answer may wait for the session's end")] = 0,
) -> SessionDetails:
    """Shows all about a session: its life, its processes, what it uses, how it ended."""
    context = context_of(request)
    supervisor = context.supervisor
    if wait:
        await supervisor.wait(name, frozenset(), wait)
    session = _with_life(context, supervisor.session(name))
    live = supervisor.live.get(name)
    pid = live.about["pid"] if live is not None else None
    processes = await context.sampler.tree(pid) if pid else []
    return SessionDetails(
        **dict(session),
        transitions=supervisor.store.transitions(name),
        processes=processes,
        log_note=live.about.get("log_note", "") if live is not None else "",
    )


@router.get("/{name}/context", responses=_KNOWN)
async def show_session_context(name: SessionName, request: Request) -> SessionContext:
    """Shows a live session's request context: the boundaries that tools acting for it keep to."""
    supervisor = context_of(request).supervisor
    supervisor.session(name)
    found = supervisor.registration.of(name)
    if found is None:
        raise Refusal("context-unknown", f"session {name} no longer has a context", hint="it expires with the session")
    return SessionContext.model_validate({"session_id": found.session_id, **found.model_dump(mode="json")})


@router.delete("/{name}", status_code=204, responses=_KNOWN | _STATE)
async def forget_session(name: SessionName, request: Request) -> None:
    """Forgets a session that is over, and its log.

    A repetition is answered with 404, as for a name that never was: whoever did not hear the first answer may take that
    for success.
    """
    supervisor = context_of(request).supervisor
    await supervisor.store.database.patiently(lambda: supervisor.forget(name))


@router.post("/{name}/stop", responses=_KNOWN)
async def stop_session(name: SessionName, body: Stop, request: Request) -> Session:
    """Ends a session in order: its input is closed, then SIGTERM, then it is killed. Its work is harvested."""
    supervisor = context_of(request).supervisor
    await supervisor.ask_to_stop(name, body.term_seconds)
    session = await supervisor.wait(name, frozenset(), body.wait) if body.wait else supervisor.session(name)
    if body.forget and session.state.final:
        await supervisor.store.database.patiently(lambda: supervisor.forget(name))
    return session


@router.post("/{name}/signal", status_code=204, responses=_KNOWN | _STATE)
async def signal_session(name: SessionName, body: Signal, request: Request) -> None:
    """Sends a signal to a session's command."""
    if body.signal not in SENDABLE:
        raise Refusal("signal-unknown", f"{body.signal} cannot be sent to a session",
                      hint=f"one of {', '.join(SENDABLE)}")  # fmt: skip
    await context_of(request).supervisor.signal(name, SENDABLE[body.signal])


@router.post("/{name}/freeze", status_code=204, responses=_KNOWN | _STATE)
async def freeze_session(name: SessionName, body: Freeze, request: Request) -> None:
    """Lets nothing of a session run, its launcher included, or lets it go on."""
    await context_of(request).supervisor.freeze(name, frozen=body.frozen)


@router.get(
    "/{name}/attach",
    status_code=426,
    responses=_KNOWN | {101: {"description": "The stream begins."}, 426: {"model": Error}},
    response_model=None,
)
async def attach_session(name: SessionName, request: Request) -> None:
    """Joins a session's standard streams: with the headers ``Connection: Upgrade`` and ``Upgrade: paddock-stream``.

    Frames are described in `launcher/service/shim/clients.py`.
    """
    context_of(request).supervisor.session(name)
    raise Refusal("upgrade-needed", "this request needs the headers Connection: Upgrade and Upgrade: paddock-stream")


@router.get("/{name}/logs", responses=_KNOWN | _LINES, response_class=StreamingResponse)
async def read_session_log(
    name: SessionName,
    request: Request,
    tail: Annotated[int | None, Query(ge=0, le=1_000_000, description="only this many of the last lines")] = None,
    stream: Annotated[list[str], Query(max_length=4, description="stdout, stderr, paddock, terminal")] = [],  # noqa: B006
    go_on: Annotated[bool, Query(alias="follow", description="continue until the session ends")] = False,
) -> StreamingResponse:
    """Tells what a session has written, line by line, without credentials."""
    context = context_of(request)
    context.supervisor.session(name)
    if unknown := sorted(set(stream) - {"stdout", "stderr", "paddock", "terminal"}):
        raise Refusal("request-invalid", f"there is no stream {unknown[0]}", hint="stdout, stderr, paddock or terminal")
    context.followers.check()
    lines = log_lines(context.supervisor, name, tail=tail, streams=frozenset(stream), follow=go_on)
    return StreamingResponse(context.followers.counted(lines), media_type=JSON_LINES)


@router.get("/{name}/denials", responses=_KNOWN | _LINES, response_class=StreamingResponse)
async def read_session_denials(
    name: SessionName,
    request: Request,
    go_on: Annotated[bool, Query(alias="follow", description="continue until the session ends")] = False,
) -> StreamingResponse:
    """Tells what a session was refused, and what would allow it."""
    context = context_of(request)
    context.supervisor.session(name)
    context.followers.check()
    state = context.places.state
    if go_on and name in context.supervisor.live:
        lines = denial_lines(context.supervisor, state, name)
        return StreamingResponse(context.followers.counted(lines), media_type=JSON_LINES)
    found = [json_line(line) for line in denials_of(state, name)]
    return StreamingResponse(iter(found), media_type=JSON_LINES)


# Questions about refused hosts.


class HostQuestion(Frozen):
    """A question of a session's about a host that no rule allows; who wants it waits for half a minute.

    Attributes:
        number: of the session's questions.
        host: a name in its canonical form.
        port: 1 to 65535.
        process: the name of who waits, in plain letters; empty when it is not known.
        risk: what a yes opens.
    """

    number: int
    host: str
    port: int
    process: str
    risk: str = asking.RISK


class HostQuestions(Frozen):
    """Questions of a session's that are open.

    Attributes:
        questions: the oldest first.
    """

    questions: list[HostQuestion]


class HostAnswer(Frozen):
    """An answer: no, once (who waits now), session, or always (also in this user's own configuration).

    Attributes:
        answer: the word. In a response it is `session` where the configuration could not be changed.
        host: whom the question is about. A session that is started again counts its questions from 1 again.
        port: that of the question.
    """

    answer: Literal["no", "once", "session", "always"]
    host: str
    port: int = Field(ge=1, le=65_535)


@router.get("/{name}/questions", responses=_KNOWN | _STATE)
async def list_questions(name: SessionName, request: Request) -> HostQuestions:
    """Lists what a session asks about hosts that no rule allows."""
    context = context_of(request)
    context.supervisor.session(name)

    def look() -> list[asking.Question]:
        with answers.Client(context.places, name) as client:
            return client.questions

    return HostQuestions(questions=[HostQuestion(**each._asdict()) for each in await asyncio.to_thread(look)])


@router.post("/{name}/questions/{number}", responses=_KNOWN | _STATE)
async def answer_question(
    name: SessionName,
    number: Annotated[int, Path(ge=1, description="of the question")],
    body: HostAnswer,
    request: Request,
) -> HostAnswer:
    """Answers a question of a session's: the one with this number, host and port, and no other."""
    context = context_of(request)
    context.supervisor.session(name)

    def give() -> str:
        with answers.Client(context.places, name) as client:
            for each in client.questions:
                if (each.number, each.host, each.port) == (number, body.host, body.port):
                    return client.answer(each, body.answer)
        raise Refusal("question-unknown", f"session {name} has no open question {number} about this host and port")

    return body.model_copy(update={"answer": await asyncio.to_thread(give)})


# Ticket runs, worktrees, merges.

git = APIRouter(prefix="/v1")

_KNOWN_WORK: dict[int | str, dict[str, Any]] = {404: {"model": Error, "description": "There is no such object."}}
_BOUNDED: dict[int | str, dict[str, Any]] = {
    409: {"model": Error, "description": "The name is taken."},
    429: {"model": Error, "description": "The limit of runs is reached."},
}


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
        head: the commit that is checked out there, "" where that cannot be told; None but in a list.
        waiting: what waits there to be harvested, in words; None but in a list.
        main: the worktree itself: its path, branch and commit.
        submodules: the same of each submodule.
        context: the boundaries that tools keep to.
    """

    worktree_id: str
    ticket: str
    state: str
    created: float
    adopted: bool
    head: str | None = None
    waiting: list[str] | None = None
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
        commits: what was shown, one for each child: one that is at another commit by now is not merged, nor are the
            others. Without any, what is there when the merge begins. A forecast does not read them.
    """

    repository: Directory
    children: list[Annotated[Word, Field(min_length=1, max_length=4_096)]] = Field(min_length=1, max_length=1_000)
    into: Annotated[Word, Field(min_length=1, max_length=4_096)] | None = None
    commits: list[Annotated[Word, Field(max_length=64)]] = Field(default=[], max_length=1_000)

    @model_validator(mode="after")
    def _one_each(self) -> Self:
        if self.commits and len(self.commits) != len(self.children):
            raise ValueError("commits are as many as children")
        return self


class WorktreeChanges(Told):
    """What a worktree would bring (`launcher.vcs.worktrees.review.read`).

    Attributes:
        worktree_id: its id.
        ticket: what it was made for.
        path: its root.
        state: whether it is whole.
        branch: that it was made on; "" without one.
        waiting: what its agent has that was not harvested, in words.
        parts: itself, then its submodules.
    """

    worktree_id: str
    ticket: str
    path: str
    state: str
    branch: str
    waiting: list[str]
    parts: list[dict[str, Any]]


class Harvested(Frozen):
    """What came of a harvest.

    Attributes:
        state: ``nothing``, ``harvested``, or why work is still there (`launcher.vcs.harvest.parts.HarvestResult`).
        lines: what people are told of it.
    """

    state: str
    lines: list[str]


class MergeForecast(Frozen):
    """What a merge would come to (`launcher.vcs.merge.preview.MergePreview`).

    Attributes:
        forecast: of each child and each pair.
        warnings: work of children that is not on their branches, and so would not be merged.
    """

    forecast: dict[str, Any]
    warnings: list[str]


class MergeRollback(Frozen):
    """Where a run of merges is to be taken back.

    Attributes:
        repository: a worktree of the repository.
    """

    repository: Directory


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


@git.post(
    "/ticket-runs",
    status_code=201,
    tags=["tickets"],
    responses={200: {"model": TicketRun, "description": "The idempotency key is known: its run."}, **_BOUNDED},
)
async def create_ticket_run(
    body: TicketRequest,
    request: Request,
    response: Response,
    wait: Annotated[float, Query(ge=0, le=MOST_WAIT, description="seconds to wait for its end")] = 0,
    idempotency_key: Key = None,
) -> TicketRun:
    """Makes a worktree for each ticket, runs the agents in them, and merges their work in two phases."""
    context, client = context_of(request), peer_of(request).uid
    runs = context.tickets
    made, new = await context.supervisor.store.database.patiently(lambda: runs.create(body, client, idempotency_key))
    if not new:
        response.status_code = 200
    return await runs.records.wait(made.name, wait) if wait else made


@git.get("/ticket-runs", tags=["tickets"])
async def list_ticket_runs(request: Request, limit: Annotated[int, Query(ge=1, le=10_000)] = 100) -> TicketRunList:
    """Lists ticket runs, the newest first."""
    return TicketRunList(ticket_runs=context_of(request).tickets.records.listed(limit))


@git.get("/ticket-runs/{name}", tags=["tickets"], responses=_KNOWN_WORK)
async def show_ticket_run(
    name: SessionName,
    request: Request,
    wait: Annotated[float, Query(ge=0, le=MOST_WAIT, description="seconds to wait for its end")] = 0,
    seen: Annotated[int | None, Query(description="wait only until a ticket has changed since: its `seen`")] = None,
) -> TicketRun:
    """Shows a ticket run."""
    return await context_of(request).tickets.records.wait(name, wait, seen)


@git.get("/ticket-runs/{name}/contexts", tags=["tickets"], responses=_KNOWN_WORK)
async def show_ticket_run_contexts(name: SessionName, request: Request) -> RunContexts:
    """Shows what is known of each session of a run: its latest request and result, boundaries, tools and prompt."""
    return RunContexts(contexts=context_of(request).tickets.records.contexts(name))


@git.get("/ticket-runs/{name}/prompts", tags=["tickets"], responses=_KNOWN_WORK)
async def show_ticket_run_prompts(name: SessionName, request: Request) -> Prompts:
    """Shows what an orchestrating agent is told: where the agents work, and how the merge went."""
    return Prompts(prompts=context_of(request).tickets.records.prompts(name))


@git.post("/ticket-runs/{name}/questions", status_code=201, tags=["tickets"], responses=_KNOWN_WORK | _BOUNDED)
async def ask_context_manager(name: SessionName, body: TicketQuestion, request: Request) -> Session:
    """Starts the session that answers a question of one of a run's agents: its standard output is the answer."""
    return await context_of(request).tickets.questions.ask(name, body)


@git.post("/ticket-runs/{name}/stop", tags=["tickets"], responses=_KNOWN_WORK)
async def stop_ticket_run(name: SessionName, request: Request) -> TicketRun:
    """Stops a ticket run: its agents end, nothing is merged. A merge that is under way is not interrupted."""
    return context_of(request).tickets.stop(name)


@git.post("/ticket-runs/{name}/resume", tags=["tickets"], responses=_KNOWN_WORK | _BOUNDED)
async def resume_ticket_run(name: SessionName, body: TicketResume, request: Request) -> TicketRun:
    """Goes on with a ticket run from where it was: agents that did not end well are started again, then the merge."""
    return context_of(request).tickets.resume(name, body, peer_of(request).uid)


@git.get("/worktrees", tags=["worktrees"])
async def list_worktrees(
    request: Request, repository: Annotated[Directory | None, Query(description="only those of this one")] = None
) -> WorktreeList:
    """Lists the worktrees that Paddock knows."""
    found = await context_of(request).jobs.run("worktree.list", {"repository": repository})
    return WorktreeList.model_validate(found)


@git.post("/worktrees", status_code=201, tags=["worktrees"])
async def add_worktree(body: WorktreeRequest, request: Request) -> Worktree:
    """Makes a worktree for a ticket."""
    made = await context_of(request).jobs.run("worktree.add", body.model_dump(mode="json"))
    return Worktree.model_validate(made)


@git.delete("/worktrees/{name}", tags=["worktrees"], responses=_KNOWN_WORK)
async def remove_worktree(
    name: Annotated[Word, Path(min_length=1, max_length=200, description="id, ticket or branch")],
    request: Request,
    repository: Annotated[Directory, Query(description="a worktree of the repository")],
    keep_branch: Annotated[bool, Query(description="keep its branch, which may then hold work")] = False,
) -> RemovedWorktree:
    """Removes a worktree, never with work that is nowhere else."""
    arguments = {"repository": repository, "name": name, "keep_branch": keep_branch}
    return RemovedWorktree.model_validate(await context_of(request).jobs.run("worktree.remove", arguments))


@git.get("/worktrees/{name}/changes", tags=["worktrees"], responses=_KNOWN_WORK)
async def review_worktree(
    name: Annotated[Word, Path(min_length=1, max_length=200, description="its id")],
    request: Request,
    file: Annotated[str, Query(max_length=64, description="key of the one file that is wanted, with more lines")] = "",
) -> WorktreeChanges:
    """Shows what a worktree would bring: its commits, and its files that are in none, hand-off files first."""
    arguments = {"name": name, "file": file}
    return WorktreeChanges.model_validate(await context_of(request).jobs.run("worktree.review", arguments))


@git.post("/worktrees/{name}/harvest", tags=["worktrees"], responses=_KNOWN_WORK)
async def harvest_worktree(
    name: Annotated[Word, Path(min_length=1, max_length=200, description="its id")], request: Request
) -> Harvested:
    """Brings home what the agent has committed and nobody has harvested. A strict session's stays strict."""
    return Harvested.model_validate(await context_of(request).jobs.run("worktree.harvest", {"name": name}))


@git.get("/merges", tags=["merges"])
async def list_merges(
    request: Request, repository: Annotated[Directory, Query(description="a worktree of the repository")]
) -> MergeList:
    """Lists what merges have done in a repository."""
    found = await context_of(request).jobs.run("merge.list", {"repository": repository})
    return MergeList.model_validate(found)


@git.post("/merges", status_code=201, tags=["merges"])
async def create_merge(body: MergeRequest, request: Request) -> Merge:
    """Merges children into a trunk, in order, up to the first that conflicts."""
    return await merge(context_of(request), body)


async def merge(
    context: Context, body: MergeRequest, step: Callable[[dict[str, Any]], None] = lambda step: None
) -> Merge:
    """A merge; `step` hears of each child (`launcher.service.job.merge`)."""
    common_dir = await _repository(context, body.repository)
    return Merge.model_validate(await context.tickets.merging(common_dir, "merge", body.model_dump(mode="json"), step))


async def _repository(context: Context, directory: str) -> str:
    found: str = (await context.jobs.run("repository", {"directory": directory}))["common_dir"]
    return found


@git.post("/merges/preview", tags=["merges"])
async def preview_merge(body: MergeRequest, request: Request) -> MergeForecast:
    """Forecasts a merge: each child with the trunk, and the children with one another. Nothing is moved."""
    found = await context_of(request).jobs.run("merge.preview", body.model_dump(mode="json", exclude={"commits"}))
    return MergeForecast.model_validate(found)


@git.post("/merges/{run_id}/rollback", tags=["merges"], responses=_KNOWN_WORK)
async def roll_back_merge(
    run_id: Annotated[str, Path(max_length=64, description="of the run")], body: MergeRollback, request: Request
) -> Merge:
    """Takes a whole run of merges back."""
    context = context_of(request)
    common_dir = await _repository(context, body.repository)
    arguments = {"repository": body.repository, "run_id": run_id}
    return Merge.model_validate(await context.tickets.merging(common_dir, "merge.rollback", arguments))
