"""The MCP server: the official SDK on one side, the router on the other."""

import functools
import inspect
import json
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from importlib import metadata
from typing import Any, Protocol, TypeVar

import anyio
import anyio.to_thread
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from launcher.bridges.files.router import MOST_CALLS, Router, Stop
from launcher.bridges.files.tool_calls import CALLS, MOST_CONTENT, Answer, Call, Shell

# Standard streams, on which every request has its answer: also one that the SDK's transport cannot read.
#
# The transport hands on what is no message as an exception, and its server drops that. A client waits for ever then,
# for instance after half of a surrogate pair, which JSON can write and no Unicode text can hold.

Reading = MemoryObjectReceiveStream[SessionMessage | Exception]


@asynccontextmanager
async def answered(
    transport: Any = stdio_server,  # noqa: ANN401  # a context manager of the SDK's two streams, whose type is private
) -> AsyncIterator[tuple[Reading, Any]]:
    """The two streams of `transport`, of which the first one holds nothing but messages.

    Args:
        transport: makes the SDK's streams.
    """
    passing, messages = anyio.create_memory_object_stream[SessionMessage | Exception]()
    async with transport() as (reading, writing), anyio.create_task_group() as group:

        async def sort() -> None:
            async with passing:
                async for item in reading:
                    if not isinstance(item, Exception):
                        await passing.send(item)
                    elif (said := answer(item)) is not None:
                        await writing.send(SessionMessage(said))

        group.start_soon(sort)
        async with messages:
            yield messages, writing
            group.cancel_scope.cancel()


def answer(failure: Exception) -> types.JSONRPCError | None:
    """What is said to a line that is no message; None for an empty one.

    Args:
        failure: the transport's.

    Returns:
        The error, with the request's id where the line has one: ``Parse error`` for what is no JSON, ``Invalid params``
        for JSON that holds what no text can hold, ``Invalid Request`` for other JSON (JSON-RPC 2.0 section 5.1).
    """
    if not isinstance(failure, ValidationError):
        return _error(None, types.PARSE_ERROR, "the line cannot be read")
    found = failure.errors(include_url=False, include_context=False)
    first = found[0]
    if first["type"] != "json_invalid":
        # Among the kinds of message that it might have been is one of which it lacks a field: that one shows all of it.
        whole = next((each["input"] for each in found if each["type"] == "missing"), None)
        return _error(_id(whole), types.INVALID_REQUEST, "this is JSON, but not a JSON-RPC 2.0 message")
    line = first["input"]
    if not isinstance(line, str) or not line.strip():
        return None
    try:
        message = json.loads(line)  # reads half a pair as well
    except (ValueError, RecursionError):
        return _error(None, types.PARSE_ERROR, first["msg"])
    return _error(_id(message), types.INVALID_PARAMS, f"{first['msg']}; does it contain half of a surrogate pair?")


def _id(message: object) -> str | int | None:
    """The id of a request, as far as it can be said back."""
    found = message.get("id") if isinstance(message, dict) else None
    if isinstance(found, bool) or not isinstance(found, str | int):
        return None
    if isinstance(found, str) and not found.isascii():
        try:
            found.encode()
        except UnicodeEncodeError:
            return None
    return found


def _error(identifier: str | int | None, code: int, message: str) -> types.JSONRPCError:
    return types.JSONRPCError(jsonrpc="2.0", id=identifier, error=types.ErrorData(code=code, message=message))


# The HTTP headers by which a request says whose it is (contracts section 6).
#
# They are not the protocol's: `Mcp-Session-Id` names a connection, and any client may have one. An id alone proves
# nothing either, so over HTTP the session's token goes with it.


SESSION_HEADER = "X-Paddock-Session"
"""The session's id: the key of its request context."""

TOKEN_HEADER = "X-Paddock-Token"
"""What was handed out for that session, and to nobody else."""


_Found = TypeVar("_Found")

PATH = "/mcp"
THREADS = 64
"""Threads for what waits for no worker and no command: who calls, and what he is offered."""
OF_SESSION = MOST_CALLS + 4
"""Threads for a session's calls, each of which may wait long. Those beyond `MOST_CALLS` are answered at once."""

_INSTRUCTIONS = (
    "Files of one git worktree. Relative paths start at its root. All else is denied: the tool then answers with"
    ' JSON, {"error": true, "errorType": ..., "message": ...}.'
)
_HOSTS = ["127.0.0.1", "localhost", "[::1]"]

Context = ServerRequestContext[dict[str, Any], Any]

PROMPT = "orchestrator"
"""The MCP prompt of a session that hands out tickets; a resource, too, for clients that show no prompts."""
PROMPT_URI = "paddock://orchestrator"
MAKE_TICKETS, ASK = "make_tickets", "ask"


class Workflow(Protocol):
    """What the server offers to sessions of a ticket run besides the file tools."""

    def prompt(self, session_id: str | None, token: str | None) -> str | None:
        """What a session that hands out tickets is asked to do; None for every other one."""
        ...

    def tools(self, session_id: str | None, token: str | None) -> Collection[str]:
        """Which of `MAKE_TICKETS` and `ASK` a session is offered."""
        ...

    def call(self, tool: str, session_id: str | None, token: str | None, arguments: Mapping[str, object]) -> Answer:
        """Calls one of them."""
        ...


class MadeTicket(BaseModel):
    """A ticket that an agent hands out."""

    model_config = ConfigDict(extra="forbid")
    ticket: str = Field(description="Its id: letters, digits, dots, dashes and underscores.", max_length=64)
    details: str = Field(description="Everything its agent has to know, in words.", max_length=64 << 10, min_length=1)


class MakeTickets(BaseModel):
    """Hands out tickets, all of them or none. Each is worked on by an agent of its own, once this session ends."""

    model_config = ConfigDict(extra="forbid")
    tickets: list[MadeTicket] = Field(description="In the order in which their work is to be merged.", min_length=1,
                                      max_length=1_000)  # fmt: skip


class Ask(BaseModel):
    """Asks the context manager of this run, an agent that finds out what others need to know; waits for its answer."""

    model_config = ConfigDict(extra="forbid")
    question: str = Field(description="What you need to know, and why.", min_length=1, max_length=64 << 10)


def build(router: Router, session_id: str | None = None, workflow: Workflow | None = None) -> "Server[dict[str, Any]]":
    """A server over `router`.

    Args:
        session_id: the one session of a server on standard streams. Over HTTP each request names its own.
    """
    limiter: list[anyio.CapacityLimiter] = []  # belongs to the event loop, which does not run yet
    lanes: dict[str, tuple[anyio.CapacityLimiter, int]] = {}  # of sessions with calls, and how many those are

    def who(context: Context) -> tuple[str | None, str | None]:
        return _named(context.request) if isinstance(context.request, Request) else (session_id, None)

    async def in_thread(work: Callable[[], _Found]) -> _Found:
        if not limiter:
            limiter.append(anyio.CapacityLimiter(THREADS))
        return await anyio.to_thread.run_sync(work, limiter=limiter[0], abandon_on_cancel=True)

    async def in_lane(context: Context, work: Callable[[], _Found]) -> _Found:
        """Waits in a thread of the session's own: whatever its calls wait for, no other session waits for a thread."""
        name = await in_thread(functools.partial(router.caller, *who(context)))
        if name is None:
            return await in_thread(work)  # says so
        lane, calls = lanes.get(name) or (anyio.CapacityLimiter(OF_SESSION), 0)
        lanes[name] = lane, calls + 1
        try:
            return await anyio.to_thread.run_sync(work, limiter=lane, abandon_on_cancel=True)
        finally:
            lane, calls = lanes.pop(name)
            if calls > 1:
                lanes[name] = lane, calls - 1

    async def prompt(context: Context) -> str | None:
        return None if workflow is None else await in_thread(functools.partial(workflow.prompt, *who(context)))

    async def list_tools(context: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        del params
        offered = await in_thread(functools.partial(router.offered, *who(context)))
        tools = [_described(kind) for name, kind in CALLS.items() if name in offered]
        if workflow is not None:
            also = await in_thread(functools.partial(workflow.tools, *who(context)))
            tools += [tool for tool in _OF_WORKFLOW if tool.name in also]
        return types.ListToolsResult(tools=tools)

    async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        named, token = who(context)
        arguments = params.arguments or {}
        if workflow is not None and params.name in (MAKE_TICKETS, ASK):
            asked = functools.partial(workflow.call, params.name, named, token, arguments)
            return _result(await in_lane(context, asked))
        stop = Stop()
        try:
            called = functools.partial(router.call, params.name, arguments, named, token, stop)
            return _result(await in_lane(context, called))
        except anyio.get_cancelled_exc_class():
            stop.set()
            raise

    async def list_prompts(context: Context, params: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
        del params
        found = [] if await prompt(context) is None else [types.Prompt(name=PROMPT, description=_PROMPT)]
        return types.ListPromptsResult(prompts=found)

    async def get_prompt(context: Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        text = await prompt(context)
        if text is None or params.name != PROMPT:
            raise MCPError(types.INVALID_PARAMS, f"this session has no prompt {params.name[:100]}")
        said = types.PromptMessage(role="user", content=types.TextContent(text=text))
        return types.GetPromptResult(description=_PROMPT, messages=[said])

    async def list_resources(
        context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        del params
        if await prompt(context) is None:
            return types.ListResourcesResult(resources=[])
        about = types.Resource(name=PROMPT, uri=PROMPT_URI, description=_PROMPT, mime_type=_MARKDOWN)
        return types.ListResourcesResult(resources=[about])

    async def read_resource(context: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        text = await prompt(context)
        if text is None or params.uri != PROMPT_URI:
            raise MCPError(types.INVALID_PARAMS, f"this session has no resource {params.uri[:100]}")
        held = types.TextResourceContents(uri=PROMPT_URI, mime_type=_MARKDOWN, text=text)
        return types.ReadResourceResult(contents=[held])

    return Server(
        "paddock-files",
        version=metadata.version("paddock-launcher"),
        instructions=_INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_prompts=None if workflow is None else list_prompts,
        on_get_prompt=None if workflow is None else get_prompt,
        on_list_resources=None if workflow is None else list_resources,
        on_read_resource=None if workflow is None else read_resource,
    )


async def serve_stdio(router: Router, session_id: str | None) -> None:
    """Serves one client on standard input and output until it leaves."""
    server = build(router, session_id)
    async with answered() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


def application(router: Router, workflow: Workflow | None = None) -> Starlette:
    """The streamable HTTP application. Each request stands alone: what it may do is in its own two headers."""
    found = build(router, workflow=workflow).streamable_http_app(
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


_PROMPT = "The task of this session: the goal, the worktrees, and how to hand out tickets."
_MARKDOWN = "text/markdown"
_OF_WORKFLOW = [
    types.Tool(
        name=name,
        description=inspect.getdoc(kind),
        input_schema=kind.model_json_schema(),
        annotations=types.ToolAnnotations(read_only_hint=kind is Ask, destructive_hint=False, open_world_hint=False),
    )
    for name, kind in ((MAKE_TICKETS, MakeTickets), (ASK, Ask))
]


def _result(answer: Answer) -> types.CallToolResult:
    content: list[types.ContentBlock] = [types.TextContent(text=answer.text)]
    if answer.note:
        content.append(types.TextContent(text=f"[{answer.note}]"))
    return types.CallToolResult(content=content, is_error=answer.failed)
