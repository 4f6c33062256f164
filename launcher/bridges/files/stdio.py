"""Standard streams, on which every request has its answer: also one that the SDK's transport cannot read.

The transport hands on what is no message as an exception, and its server drops that. A client waits for ever then, for
instance after half of a surrogate pair, which JSON can write and no Unicode text can hold.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

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
        return _error(_id(whole), types.INVALID_REQUEST, "this is JSON, and no message of JSON-RPC 2.0")
    line = first["input"]
    if not isinstance(line, str) or not line.strip():
        return None
    try:
        message = json.loads(line)  # reads half a pair as well
    except (ValueError, RecursionError):
        return _error(None, types.PARSE_ERROR, first["msg"])
    return _error(_id(message), types.INVALID_PARAMS, f"{first['msg']}; is there half of a surrogate pair in it?")


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
