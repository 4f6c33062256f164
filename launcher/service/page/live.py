"""What moves on an open page: a stream of fragments, each of which takes the place of the element with its id.

A tab that is open for long grows nothing: a stream remembers the digests of what is on its page now, and no more.
"""

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from fastapi import Request
from fastapi.responses import StreamingResponse

from launcher.service.api.context import Context, context_of
from launcher.service.page.admission import Visit
from launcher.service.page.rendering import macros
from launcher.service.page.watcher import Watcher
from policy.errors import Refusal

LOOK_SECONDS = 1.0
MOST_TABS = 24
_QUIET_SECONDS = 15.0

Make = Callable[[], Awaitable[Mapping[str, str]]]
"""The fragments of a page as it should be now, by the ids of their elements."""


class Tabs:
    """The open tabs of one service: counts their streams, looks for them, and ends them."""

    def __init__(self, context: Context) -> None:
        """Starts with none."""
        self.number = 0
        self.watcher = Watcher(context)
        self.closing = asyncio.Event()

    def left(self) -> None:
        """One stream less."""
        self.number -= 1
        if not self.number and not self.closing.is_set():
            self.watcher.rest()


def watcher_of(request: Request) -> Watcher:
    """Who looks at live sessions."""
    tabs: Tabs = request.app.state.tabs
    return tabs.watcher


def admit(request: Request) -> Tabs:
    """Looks whether there may be one more stream.

    Refusals: quota-followers.
    """
    tabs: Tabs = request.app.state.tabs
    if tabs.number >= MOST_TABS:
        raise Refusal("quota-followers", f"limit of {MOST_TABS} open tabs reached")
    context_of(request).followers.check()
    return tabs


def stream(request: Request, make: Make, seconds: float = LOOK_SECONDS) -> StreamingResponse:
    """The answer to an open page that asks for what moves.

    Args:
        request: of the page's.
        make: makes its fragments.
        seconds: between two looks.

    Refusals: quota-followers.
    """
    tabs = admit(request)
    lines = context_of(request).followers.counted(_sent(tabs, request.scope["state"]["visit"], make, seconds))
    return StreamingResponse(lines, media_type="text/event-stream")


async def _sent(tabs: Tabs, visit: Visit, make: Make, seconds: float) -> AsyncIterator[bytes]:
    tabs.number += 1
    try:
        tabs.watcher.hear()
        parts = macros("parts.html", visit)
        shown: dict[str, bytes] = {}
        told = tabs.watcher.number
        quiet = time.monotonic()
        yield b"retry: 3000\n\n"
        while not (tabs.closing.is_set() or visit.over):
            visit.used()
            try:
                await tabs.watcher.look()
                made = {**await make(), "asked": str(parts.asked(tabs.watcher.asked))}
            except Refusal as refusal:  # the session was forgotten, or the database is away: the next look may do
                if refusal.reference.endswith("-unknown"):
                    yield b"event: gone\ndata: {}\n\n"
                    return
                made = {}
            digests = {name: hashlib.blake2b(text.encode(), digest_size=16).digest() for name, text in made.items()}
            for name, text in made.items():
                if shown.get(name) != digests[name]:
                    yield f"data: {json.dumps({'id': name, 'html': text})}\n\n".encode()
                    quiet = time.monotonic()
            shown = digests or shown
            for note in [each for each in tabs.watcher.notes if each.number > told]:
                told = note.number
                yield f"event: note\ndata: {json.dumps(note._asdict())}\n\n".encode()
            if time.monotonic() - quiet > _QUIET_SECONDS:
                yield b": nothing new\n\n"
                quiet = time.monotonic()
            try:
                await asyncio.wait_for(tabs.closing.wait(), seconds)
            except TimeoutError:
                continue
    finally:
        tabs.left()
