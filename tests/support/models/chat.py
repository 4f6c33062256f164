"""OpenAI's Chat Completions API, as far as agents use it: https://platform.openai.com/docs/api-reference/chat-streaming."""

import json

from tests.support.models.script import Call, Json, Tool


def tools(body: Json) -> list[Tool]:
    """The tools of a request."""
    return [
        Tool(tool["function"]["name"], tool["function"].get("parameters") or {})
        for tool in body.get("tools", [])
        if tool["type"] == "function"
    ]


def results(body: Json) -> list[str]:
    """What the tools have answered so far."""
    return [_text(message["content"]) for message in body["messages"] if message["role"] == "tool"]


def answer(body: Json, turn: Call | str) -> tuple[str, bytes]:
    """Content type and body of the answer: a call, or words and the end of the turn."""
    number = len(results(body))
    said: Json = {"role": "assistant", "content": turn if isinstance(turn, str) else None}
    if isinstance(turn, Call):
        function = {"name": turn.tool.name, "arguments": turn.text}
        said["tool_calls"] = [{"index": 0, "id": f"call_{number}", "type": "function", "function": function}]
    reason = "tool_calls" if isinstance(turn, Call) else "stop"
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    common: Json = {"id": f"chatcmpl-{number}", "created": 0, "model": body["model"]}
    if not body.get("stream"):
        choice = {"index": 0, "message": said, "finish_reason": reason}
        whole = common | {"object": "chat.completion", "choices": [choice], "usage": usage}
        return "application/json", json.dumps(whole).encode()
    chunks: list[Json] = [
        {"choices": [{"index": 0, "delta": said, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
        {"choices": [], "usage": usage},
    ]
    texts = [json.dumps(common | {"object": "chat.completion.chunk"} | chunk) for chunk in chunks]
    return "text/event-stream", "".join(f"data: {text}\n\n" for text in [*texts, "[DONE]"]).encode()


def _text(content: object) -> str:
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return str(content or "")
