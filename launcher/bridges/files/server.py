"""The MCP server: the official SDK on one side, the router on the other."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import Any

import anyio
import anyio.to_thread
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from launcher.bridges.files.answers import Answer
from launcher.bridges.files.calls import CALLS, MOST_CONTENT, Call, Shell
from launcher.bridges.files.router import Router
from launcher.bridges.files.shell import Stop
from launcher.bridges.files.stdio import answered

# The HTTP headers by which a request says whose it is (contracts section 6).
#
# They are not the protocol's: `Mcp-Session-Id` names a connection, and any client may have one. An id alone proves
# nothing either, so over HTTP the session's token goes with it.


SESSION_HEADER = "X-Paddock-Session"
"""The session's id: the key of its request context."""

TOKEN_HEADER = "X-Paddock-Token"
"""What was handed out for that session, and to nobody else."""


PATH = "/mcp"
THREADS = 64
"""Calls at the same time; each waits in a thread of its own for its session's worker."""

_INSTRUCTIONS = (
    "Files of one git worktree. Relative paths start at its root. What lies outside is denied: a tool answers with"
    ' JSON then, {"error": true, "errorType": ..., "message": ...}.'
)
_HOSTS = ["127.0.0.1", "localhost", "[::1]"]

Context = ServerRequestContext[dict[str, Any], Any]


def build(router: Router, session_id: str | None = None) -> "Server[dict[str, Any]]":
    """A server over `router`.

    Args:
        router: answers.
        session_id: the one session of a server on standard streams. Over HTTP each request names its own.
    """
    limiter: list[anyio.CapacityLimiter] = []  # belongs to the event loop, which does not run yet

    async def list_tools(context: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        del context, params
        return types.ListToolsResult(tools=[_described(kind) for kind in CALLS.values()])

    async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        if not limiter:
            limiter.append(anyio.CapacityLimiter(THREADS))
        named, token = _named(context.request) if isinstance(context.request, Request) else (session_id, None)
        stop = Stop()
        work = functools.partial(router.call, params.name, params.arguments or {}, named, token, stop)
        try:
            return _result(await anyio.to_thread.run_sync(work, limiter=limiter[0], abandon_on_cancel=True))
        except anyio.get_cancelled_exc_class():
            stop.set()
            raise

    return Server(
        "paddock-files",
        version=metadata.version("paddock-launcher"),
        instructions=_INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def serve_stdio(router: Router, session_id: str | None) -> None:
    """Serves one client on standard input and output until it leaves."""
    server = build(router, session_id)
    async with answered() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


def application(router: Router) -> Starlette:
    """The streamable HTTP application. Each request stands alone: what it may do is in its own two headers."""
    found = build(router).streamable_http_app(
        streamable_http_path=PATH,
        json_response=True,
        stateless_http=True,
        max_request_body_size=2 * MOST_CONTENT,
        transport_security=TransportSecuritySettings(
            # Against web pages whose names are made to lead here: only these may be asked for, and no page may ask.
            allowed_hosts=[*_HOSTS, *(f"{host}:*" for host in _HOSTS)],
            allowed_origins=[],
        ),
    )
    found.add_middleware(_PostOnly)
    return found


class _PostOnly:
    """Answers other methods at once: there is nothing to hear on a stream of its own, and nothing to delete.

    The SDK would hold a GET open, whoever sends it, for messages that never come.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] != "POST":
            await Response(status_code=405, headers={"Allow": "POST"})(scope, receive, send)
        else:
            await self._app(scope, receive, send)


@contextmanager
def ending(router: Router) -> Iterator[Router]:
    """Ends the router's workers at the end."""
    try:
        yield router
    finally:
        router.close()


def _named(request: Request) -> tuple[str | None, str | None]:
    """Session and token of a request. A header that is there twice says nothing."""
    sessions, tokens = request.headers.getlist(SESSION_HEADER), request.headers.getlist(TOKEN_HEADER)
    if len(sessions) > 1 or len(tokens) > 1:
        return "?", None  # no session can have this name, and no token goes with it
    return next(iter(sessions), None), next(iter(tokens), None)


def _described(kind: type[Call]) -> types.Tool:
    schema = kind.model_json_schema()
    description = str(schema.pop("description"))
    return types.Tool(
        name=kind.tool,
        description=description,
        input_schema=schema,
        annotations=types.ToolAnnotations(
            read_only_hint=kind.reads_only, destructive_hint=not kind.reads_only, open_world_hint=kind is Shell
        ),
    )


def _result(answer: Answer) -> types.CallToolResult:
    content: list[types.ContentBlock] = [types.TextContent(text=answer.text)]
    if answer.note:
        content.append(types.TextContent(text=f"[{answer.note}]"))
    return types.CallToolResult(content=content, is_error=answer.failed)
