"""Anthropic's Messages API, as far as agents use it: https://docs.anthropic.com/en/api/messages-streaming."""

import json
from collections.abc import Iterator

from tests.support.models.script import Call, Json, Tool


def tools(body: Json) -> list[Tool]:
    """The tools of a request; those that the provider's servers run are none."""
    return [Tool(tool["name"], tool["input_schema"]) for tool in body.get("tools", []) if "input_schema" in tool]


def results(body: Json) -> list[str]:
    """What the tools have answered so far."""
    return [
        _text(block.get("content"))
        for message in body.get("messages", [])
        if isinstance(message["content"], list)
        for block in message["content"]
        if block["type"] == "tool_result"
    ]


def answer(body: Json, turn: Call | str) -> tuple[str, bytes]:
    """Content type and body of the answer: a call, or words and the end of the turn."""
    number = len(results(body))
    block: Json = {"type": "text", "text": turn if isinstance(turn, str) else ""}
    if isinstance(turn, Call):
        block = {"type": "tool_use", "id": f"toolu_{number}", "name": turn.tool.name, "input": turn.arguments}
    message = {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": [block],
        "stop_reason": "tool_use" if isinstance(turn, Call) else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
    if not body.get("stream"):
        return "application/json", json.dumps(message).encode()
    return "text/event-stream", "".join(
        f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in _events(message, turn)
    ).encode()


def _events(message: Json, turn: Call | str) -> Iterator[Json]:
    (block,) = message["content"]
    empty: Json = {**block, "input": {}} if isinstance(turn, Call) else {**block, "text": ""}
    piece = (
        {"type": "input_json_delta", "partial_json": turn.text}
        if isinstance(turn, Call)
        else {"type": "text_delta", "text": turn}
    )
    yield {"type": "message_start", "message": message | {"content": [], "stop_reason": None}}
    yield {"type": "content_block_start", "index": 0, "content_block": empty}
    yield {"type": "content_block_delta", "index": 0, "delta": piece}
    yield {"type": "content_block_stop", "index": 0}
    end = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": end, "usage": {"output_tokens": 1}}
    yield {"type": "message_stop"}


def _text(content: object) -> str:
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return str(content or "")
