"""Routes about the service itself: health, metrics, events."""

import os
import platform
import resource
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import PlainTextResponse, StreamingResponse
from pydantic import Field

from launcher.service.api.context import context_of
from launcher.service.schema import Condition, Error, Event, EventKind, Frozen, SessionName, Told, Usage
from launcher.service.settings import Settings
from launcher.service.supervisor import Supervisor
from policy.errors import Refusal

# Metrics in Prometheus' text format (prometheus.io/docs/instrumenting/exposition_formats).


Sample = tuple[Mapping[str, str], float]


def render(
    supervisor: Supervisor,
    usage: Mapping[str, Usage],
    *,
    version: str,
    started: float,
    uptime: float,
    descriptors: int,
    disk: Mapping[str, int],
    logs: int,
    ticket_runs: Mapping[str, int],
    tickets: Mapping[str, int],
) -> str:
    """All metrics of the service.

    Args:
        started: when its process was started, in seconds since the epoch.
        uptime: seconds for which it has answered.
        disk: bytes that are free where its directories lie, by what they are for.
        ticket_runs: how many there are of each state.
    """
    try:
        counts = supervisor.store.counts()
    except Refusal:  # the database is away; all else can be told
        counts = {}
    counters = supervisor.counters
    conditions = supervisor.store.database.conditions
    built = {"version": version, "python": platform.python_version(), "kernel": platform.release()}
    lines = _metric("paddock_build_info", "gauge", "what runs here", [(built, 1)])
    lines += _metric("process_start_time_seconds", "gauge", "when the service's process was started, since the epoch",
                     [({}, started)])  # fmt: skip
    lines += _metric("paddock_degraded", "gauge", "conditions of GET /v1/health, by id",
                     [({"id": name}, conditions.number(name)) for name in conditions.names()])  # fmt: skip
    lines += _metric("paddock_sessions", "gauge", "sessions on record, by state",
                    [({"state": str(state)}, number) for state, number in counts.items()])  # fmt: skip
    lines += _metric("paddock_sessions_created_total", "counter", "sessions that were accepted",
                     [({}, counters.created)])  # fmt: skip
    lines += _metric("paddock_attempts_ended_total", "counter", "ended attempts, by reason",
                     [({"reason": reason}, number) for reason, number in sorted(counters.ended.items())])  # fmt: skip
    lines += _metric(
        "paddock_denials_total", "counter", "denials in sessions that have ended", [({}, counters.denials)]
    )
    for name, text, label, counted in (
        ("harvests", "harvests of ended sessions and of the service's own, by result", "result", counters.harvests),
        ("refusals", "refused requests, sessions and harvests, by id", "id", counters.refusals),
    ):
        numbers = [({label: each}, number) for each, number in sorted(counted.items())]
        lines += _metric(f"paddock_{name}_total", "counter", text, numbers)
    for name, text, states in (("ticket_runs", "ticket runs", ticket_runs), ("tickets", "tickets", tickets)):
        numbers = [({"state": state}, number) for state, number in sorted(states.items())]
        lines += _metric(f"paddock_{name}", "gauge", f"{text} on record, by state", numbers)
    lines += _metric("paddock_disk_free_bytes", "gauge", "free space where the service's directories are",
                     [({"directory": name}, free) for name, free in sorted(disk.items())])  # fmt: skip
    lines += _metric("paddock_logs_bytes", "gauge", "logs of all sessions", [({}, logs)])
    lines += counters.spawn.lines("paddock_spawn_seconds", "from the hand-over to a helper to the command's execution")
    lines += _metric("paddock_helpers_ready", "gauge", "warm helpers", [({}, len(supervisor.pool))])
    for name, text, attribute in (
        ("processes", "processes of a session", "processes"),
        ("memory_bytes", "resident memory of a session", "memory"),
        ("cpu_seconds", "processor time of a session's living processes", "cpu_seconds"),
    ):
        samples = [({"session": session}, getattr(found, attribute)) for session, found in sorted(usage.items())]
        lines += _metric(f"paddock_session_{name}", "gauge", text, samples)
    lines += _metric("paddock_descriptors", "gauge", "open descriptors of the service",
                     [({}, descriptors)])  # fmt: skip
    lines += _metric("paddock_uptime_seconds", "gauge", "since the service was ready", [({}, uptime)])
    return "\n".join(lines) + "\n"


def _metric(name: str, kind: str, text: str, samples: Iterable[Sample]) -> list[str]:
    lines = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        shown = ",".join(f'{label}="{_escaped(content)}"' for label, content in labels.items())
        lines.append(f"{name}{{{shown}}} {value!r}" if shown else f"{name} {value!r}")
    return lines


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


EVENT_STREAM = "text/event-stream"

router = APIRouter(prefix="/v1", tags=["service"])


class Health(Frozen):
    """How the service is.

    Attributes:
        status: "ok"; "degraded" as long as there are reasons; "stopping".
        reasons: what is wrong, the oldest first, and what to do about it.
        pid: its process id.
        uid: the user it serves.
        started: seconds since the epoch.
        sessions: how many there are of each state; none when the database cannot be read.
        remembered: how many ticket runs, request contexts and refs of merges and backups there are; none when it cannot
            be read.
        helpers: warm helpers that are ready.
        groups: directory of control groups; "" without any.
        groups_note: why there are none.
        memory: bytes of its own resident memory, at most so far.
        descriptors: how many it has open.
        free: bytes of room where its directories lie ("state", "runtime").
        logs: bytes of all sessions' logs; `settings.most_log_bytes` is their bound.
        settings: what it obeys.
        notes: what is out of the ordinary, and nothing to be mended.
    """

    status: Literal["ok", "degraded", "stopping"]
    reasons: list[Condition]
    pid: int
    uid: int
    started: float
    sessions: dict[str, int]
    remembered: dict[str, int]
    helpers: int
    groups: str
    groups_note: str
    memory: int
    descriptors: int
    free: dict[str, int]
    logs: int
    settings: Settings
    notes: list[str]


@router.get("/health")
async def read_health(request: Request) -> Health:
    """Tells how the service is. Its status is 200 whenever it answers: what is wrong is among the reasons."""
    context = context_of(request)
    supervisor = context.supervisor
    try:
        counts = {str(state): number for state, number in supervisor.store.counts().items()}
        remembered = context.tickets.records.counts() | {"kept_refs": context.collector.kept_refs}
    except Refusal:
        counts, remembered = {}, {}  # which is among the reasons by now
    reasons = supervisor.store.database.conditions.listed()
    return Health(
        status="stopping" if supervisor.closing is not None else "degraded" if reasons else "ok",
        reasons=reasons,
        pid=os.getpid(),
        uid=os.geteuid(),
        started=context.started,
        sessions=counts,
        remembered=remembered,
        helpers=len(supervisor.pool),
        groups=supervisor.groups.top,
        groups_note=supervisor.groups.why,
        memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
        descriptors=await context.sampler.descriptors(),
        free=context.sampler.free,
        logs=context.sampler.logs,
        settings=supervisor.settings,
        notes=context.notes,
    )


class Promises(Told):
    """What this machine can enforce: `paddock doctor --json`.

    Attributes:
        layers: of the kernel, and whether each is usable.
        backend: that was tested; none when no jail could be started.
        verdict: one sentence on all.
        promises: each with its verdict and what tried to break it.
        refusal: why no jail could be started.
    """

    layers: list[dict[str, Any]]
    backend: str | None
    verdict: str | None
    promises: list[dict[str, Any]]
    refusal: dict[str, Any] | None


class Removable(Frozen):
    """What nothing needs any more.

    Attributes:
        removed: refs, journals and private directories (`launcher.vcs.worktrees.retention.Unneeded`).
        notes: what could not be looked at.
        size: bytes of the directories.
    """

    removed: list[dict[str, Any]]
    notes: list[str]
    size: int


@router.post("/promises")
async def test_promises(request: Request) -> Promises:
    """Proves what this machine can enforce, in a jail of its own; takes seconds."""
    return Promises.model_validate(await context_of(request).jobs.run("promises", {}))


@router.get("/unneeded")
async def read_unneeded(request: Request) -> Removable:
    """Lists what the service's next collection would remove, within its settings' bounds."""
    found = await context_of(request).collector.unneeded()
    return Removable(**found, size=sum(each["size"] for each in found["removed"]))


class PageRequest(Frozen):
    """The page that somebody wants to look at.

    Attributes:
        port: where it is to listen on the loopback interface; 0 for where it does, or any that is free.
        plain: the address has 127.0.0.1 in it, for browsers that do not know names below `.localhost`. Their cookie
            is sent to every server of this machine that they visit.
        file: a file is to lead to the address: for a browser's command line, which others can read.
    """

    port: int = Field(0, ge=0, le=65_535)
    plain: bool = False
    file: bool = False


class PageAddress(Frozen):
    """Where the page is.

    Attributes:
        address: lets one browser in, once, within five minutes.
        port: where it listens.
        file: leads there, and goes when the address is used; None where none was asked for.
    """

    address: str
    port: int
    file: str | None = None


@router.post("/page", status_code=201)
async def open_page(body: PageRequest, request: Request) -> PageAddress:
    """Has the page listen, unless it does, and makes an address for a browser."""
    listen = context_of(request).listen
    if listen is None:
        raise Refusal("service-stopping", "the service is stopping")
    keeper = listen(body.port)
    address, file = keeper.invite(plain=body.plain, file=body.file)
    return PageAddress(address=address, port=keeper.port, file=file)


@router.get(
    "/metrics",
    response_class=PlainTextResponse,
    responses={200: {"description": "Lines of text.", "content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def read_metrics(request: Request) -> PlainTextResponse:
    """Metrics in Prometheus' text format (version 0.0.4)."""
    context = context_of(request)
    text = render(
        context.supervisor,
        context.sampler.usage,
        version=request.app.version,
        started=context.process_started,
        uptime=time.time() - context.started,
        descriptors=await context.sampler.descriptors(),
        disk=context.sampler.free,
        logs=context.sampler.logs,
        ticket_runs=context.tickets.records.states("ticket_run"),
        tickets=context.tickets.records.states("ticket"),
    )
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get(
    "/events",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Server-sent events: `id`, `event` (the kind) and `data` (the whole event as JSON, on one"
            " line); a comment line from time to time while nothing happens.",
            "model": Event,
            "content": {EVENT_STREAM: {"schema": {"type": "string"}}},
        },
        429: {"model": Error, "description": "The limit of followers is reached."},
    },
)
async def read_events(
    request: Request,
    kind: Annotated[list[EventKind], Query(max_length=10, description="only events of these kinds")] = [],  # noqa: B006
    session: Annotated[list[SessionName], Query(max_length=100, description="only events of these sessions")] = [],  # noqa: B006
    since: Annotated[int | None, Query(ge=0, description="id of the last event you have; 0 for all")] = None,
    last_event_id: Annotated[
        int | None, Header(ge=0, description="the same, as browsers send it when they reconnect; it takes precedence")
    ] = None,
    go_on: Annotated[bool, Query(alias="follow", description="continue until the service ends")] = True,
) -> StreamingResponse:
    """Tells what happens: sessions' states, denials, harvests, steps of ticket runs, what is wrong with the service.

    The newest 10,000 events are kept, over restarts, too. Whoever asks for older ones gets an event of the kind
    "missed" first. A client that does not read is hung up on, and can go on with the last id that it has.
    """
    context = context_of(request)
    context.followers.check()
    found = context.supervisor.events.follow(
        since if last_event_id is None else last_event_id,
        kind,
        session,
        request.scope["state"]["abort"],
        live=go_on,
    )
    lines = context.followers.counted(_sent(found))
    return StreamingResponse(lines, media_type=EVENT_STREAM, headers={"cache-control": "no-store"})


async def _sent(events: AsyncIterator[Event | None]) -> AsyncIterator[bytes]:
    """Events as the standard has them (html.spec.whatwg.org/multipage/server-sent-events.html)."""
    yield b": events\n\n"
    async for event in events:
        if event is None:
            yield b": nothing new\n\n"
        else:
            yield f"id: {event.id}\nevent: {event.kind}\ndata: {event.model_dump_json()}\n\n".encode()
