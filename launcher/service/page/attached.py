"""A session's terminal in the browser: what it writes as one endless answer, what is typed as small requests.

No WebSocket: two ordinary requests pass the page's gate, every key by the token of its session, and need no second
protocol. Each attachment is a client of the session's shim, as `paddock attach` is one: one writes, others read.
"""

import asyncio
import json
import secrets
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import HTMLResponse, StreamingResponse

from launcher import wire
from launcher.service import packets
from launcher.service.api import routes
from launcher.service.api.context import context_of
from launcher.service.page import live
from launcher.service.page.admission import Visit
from launcher.service.page.overview import form_of, visit_of
from launcher.service.page.rendering import page
from launcher.service.schema import SessionName
from policy.errors import Refusal

router = APIRouter()

BEGUN = b"A"
"""The first frame of an answer, this module's own: the attachment's id. All others are the shim's (`packets`)."""
_QUERIES = {"open": "mode=write", "write": "mode=write", "take": "mode=write&take=1"}
MOST_TYPED = 32 << 10
_PIECE = 64 << 10
_MOST_HEAD = 8 << 10


@dataclass
class Attachment:
    """A terminal that is open in a browser.

    Attributes:
        visit: the browser's session, the only one that may type.
        name: of the session.
        writer: to its shim.
    """

    visit: Visit
    name: str
    writer: asyncio.StreamWriter


_open: dict[str, Attachment] = {}
"""Those that are open, by their ids; each is bounded by its stream (`live.MOST_TABS`)."""


@router.get("/sessions/{name}/terminal")
async def show_terminal(name: SessionName, request: Request) -> HTMLResponse:
    """The page with the terminal."""
    return page(request, "terminal.html", session=await routes.show_session(name, request))


@router.post("/sessions/{name}/attach")
async def attach(name: SessionName, request: Request) -> StreamingResponse:
    """Joins a session's streams: an answer of frames, which ends with the session, or when the browser leaves.

    The field ``mode``: ``read``; ``write``; ``take``, in place of who writes; ``open``, write unless somebody does.

    Refusals: of the shim; session-over; quota-followers.
    """
    mode = (await form_of(request)).get("mode", "read")
    tabs = live.admit(request)
    try:
        reader, writer = await _joined(name, _QUERIES.get(mode, "mode=read"), request)
    except Refusal as refusal:
        if mode != "open" or refusal.reference != "session-has-writer":
            raise
        reader, writer = await _joined(name, "mode=read", request)
    attachment = Attachment(visit_of(request), name, writer)
    frames = _frames(tabs, attachment, reader)
    await anext(frames)  # from here on it closes the connection, also where the browser has left before it is asked
    return StreamingResponse(context_of(request).followers.counted(frames), media_type="application/octet-stream")


async def _joined(name: str, query: str, request: Request) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client's connection to a session's shim, which has let it in."""
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            await context_of(request).supervisor.attach(name, f"{query}&offset=0", b"", theirs.fileno())
        reader, writer = await asyncio.open_unix_connection(sock=ours)
    except BaseException:
        ours.close()
        raise
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.split(None, 2)[1] != b"101":
            raise Refusal.of(json.loads(await reader.read(_MOST_HEAD)))
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
        writer.close()
        raise Refusal("session-over", f"session {name} has just ended", hint=f"paddock show {name}") from None
    except BaseException:  # also where the browser leaves meanwhile
        writer.close()
        raise
    return reader, writer


async def _frames(tabs: live.Tabs, attachment: Attachment, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    number = secrets.token_urlsafe(16)
    _open[number] = attachment
    tabs.number += 1
    closing = asyncio.ensure_future(tabs.closing.wait())
    try:
        yield b""
        yield wire.frame(BEGUN, number.encode())
        while not attachment.visit.over:
            reading = asyncio.ensure_future(reader.read(_PIECE))
            await asyncio.wait({reading, closing}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                reading.cancel()
                break
            if not (data := reading.result()):
                break
            attachment.visit.used()
            yield data
    finally:
        closing.cancel()
        del _open[number]
        tabs.left()
        attachment.writer.close()


@router.post("/attachments/{number}")
async def type_into(
    number: Annotated[str, Path(max_length=64)], request: Request, rows: int = 0, columns: int = 0
) -> Response:
    """What was typed, and the terminal's size where it has another one."""
    attachment = _open.get(number)
    if attachment is None or attachment.visit is not visit_of(request):
        raise Refusal("session-not-running", "this terminal is no longer attached", hint="reload the page")
    typed = await request.body()
    if len(typed) > MOST_TYPED:
        raise Refusal("request-large", f"more than {MOST_TYPED} bytes were typed at once")
    if 0 < rows < 1_000 and 0 < columns < 1_000:
        attachment.writer.write(wire.frame(packets.WINDOW, rows.to_bytes(2, "little") + columns.to_bytes(2, "little")))
    if typed:
        attachment.writer.write(wire.frame(packets.INPUT, typed))
    await attachment.writer.drain()
    return Response(status_code=204)
