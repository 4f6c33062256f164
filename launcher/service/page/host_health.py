"""How this machine and the service are: promises, figures, what is wrong, what could be removed."""

import time
from collections.abc import Mapping

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, StreamingResponse

from launcher.service.api import health
from launcher.service.page import live
from launcher.service.page.overview import visit_of
from launcher.service.page.rendering import macros, page

router = APIRouter()

_SECONDS = 5.0


@router.get("/health")
async def show_health(request: Request) -> HTMLResponse:
    """The service's own figures, and buttons for what takes longer."""
    return page(request, "health.html", health=await health.read_health(request), now=time.time())


@router.get("/live/health")
async def follow_health(request: Request) -> StreamingResponse:
    """What moves there."""
    parts = macros("figures.html", visit_of(request))

    async def make() -> Mapping[str, str]:
        return {"figures": str(parts.figures(await health.read_health(request), time.time()))}

    return live.stream(request, make, _SECONDS)


@router.post("/health/promises")
async def test_promises(request: Request) -> HTMLResponse:
    """Proves what this machine can enforce, in a jail of its own."""
    return page(request, "promises.html", found=await health.test_promises(request))


@router.post("/health/unneeded")
async def look_for_unneeded(request: Request) -> HTMLResponse:
    """What `paddock prune` would remove."""
    return page(request, "unneeded.html", found=await health.read_unneeded(request))
