"""OpenAI's Responses API, as far as agents use it: https://platform.openai.com/docs/api-reference/responses-streaming."""

import json
from collections.abc import Iterator

from tests.support.models.script import Call, Json, Tool

_OUTPUTS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output")


def tools(body: Json) -> list[Tool]:
    """The tools of a request, those of its `additional_tools` and inside of namespaces too."""
    found = _tools(body.get("tools") or [])
    for item in body["input"] if isinstance(body["input"], list) else []:
        if item.get("type") == "additional_tools":
            found += _tools(item["tools"])
    return found


def _tools(listed: list[Json], group: str = "") -> list[Tool]:
    found: list[Tool] = []
    for tool in listed:
        if tool["type"] == "namespace":
            found += _tools(tool["tools"], tool["name"])
        elif tool["type"] == "function":
            found.append(Tool(tool["name"], tool.get("parameters") or {}, group=group))
        elif tool["type"] == "custom":
            found.append(Tool(tool["name"], free=True, group=group))
    return found


def results(body: Json) -> list[str]:
    """What the tools have answered so far."""
    items = body["input"] if isinstance(body["input"], list) else []
    return [_text(item["output"]) for item in items if item.get("type") in _OUTPUTS]


def answer(body: Json, turn: Call | str) -> tuple[str, bytes]:
    """Content type and body of the answer: a call, or words and the end of the turn."""
    number = len(results(body))
    response = {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 0,
        "model": body["model"],
        "status": "completed",
        "output": [_item(number, turn)],
        "usage": {
            "input_tokens": 1,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 1,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 2,
        },
    }
    if not body.get("stream"):
        return "application/json", json.dumps(response).encode()
    return "text/event-stream", "".join(
        f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in _events(response)
    ).encode()


def _item(number: int, turn: Call | str) -> Json:
    if isinstance(turn, str):
        content = [{"type": "output_text", "text": turn, "annotations": []}]
        return {
            "type": "message",
            "id": f"msg_{number}",
            "role": "assistant",
            "status": "completed",
            "content": content,
        }
    item = {"id": f"fc_{number}", "call_id": f"call_{number}", "name": turn.tool.name, "status": "completed"}
    if turn.tool.group:
        item["namespace"] = turn.tool.group
    if turn.tool.free:
        return item | {"type": "custom_tool_call", "input": turn.text}
    return item | {"type": "function_call", "arguments": turn.text}


def _events(response: Json) -> Iterator[Json]:
    (item,) = response["output"]
    yield {"type": "response.created", "response": response | {"status": "in_progress", "output": []}}
    yield {"type": "response.output_item.added", "output_index": 0, "item": item | {"status": "in_progress"}}
    if item["type"] == "message":
        text = item["content"][0]["text"]
        where = {"item_id": item["id"], "output_index": 0, "content_index": 0}
        yield {"type": "response.content_part.added", **where, "part": {"type": "output_text", "text": ""}}
        yield {"type": "response.output_text.delta", **where, "delta": text}
        yield {"type": "response.output_text.done", **where, "text": text}
    yield {"type": "response.output_item.done", "output_index": 0, "item": item}
    yield {"type": "response.completed", "response": response}


def _text(output: object) -> str:
    if isinstance(output, list):
        return "".join(part.get("text", "") for part in output)
    return str(output)
