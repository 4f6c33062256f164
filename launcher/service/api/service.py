"""Routes about the service itself: health and metrics."""

import os
import resource
import time

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse

from launcher.service.api.context import context_of
from launcher.service.metrics import render
from launcher.service.models import Frozen
from launcher.service.settings import Settings

router = APIRouter(prefix="/v1", tags=["service"])


class Health(Frozen):
    """How the service is.

    Attributes:
        status: "running" or "stopping".
        pid: its process id.
        uid: the user it serves.
        started: seconds since the epoch.
        sessions: how many there are of each state.
        helpers: warm helpers that are ready.
        groups: directory of control groups; "" without any.
        groups_note: why there are none.
        memory: bytes of its own resident memory, at most so far.
        descriptors: how many it has open.
        settings: what it obeys.
        notes: what is out of the ordinary.
    """

    status: str
    pid: int
    uid: int
    started: float
    sessions: dict[str, int]
    helpers: int
    groups: str
    groups_note: str
    memory: int
    descriptors: int
    settings: Settings
    notes: list[str]


@router.get("/health")
async def health(request: Request) -> Health:
    """Tells how the service is."""
    context = context_of(request)
    supervisor = context.supervisor
    return Health(
        status="running" if supervisor.closing is None else "stopping",
        pid=os.getpid(),
        uid=os.geteuid(),
        started=context.started,
        sessions={str(state): number for state, number in supervisor.store.counts().items()},
        helpers=len(supervisor.pool),
        groups=supervisor.groups.top,
        groups_note=supervisor.groups.why,
        memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
        descriptors=len(os.listdir("/proc/self/fd")) - 1,
        settings=supervisor.settings,
        notes=context.notes,
    )


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> PlainTextResponse:
    """Metrics in Prometheus' text format (version 0.0.4)."""
    context = context_of(request)
    text = render(context.supervisor, context.sampler.usage, uptime=time.time() - context.started)
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")
