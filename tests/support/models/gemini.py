"""Google's Gemini API, as far as agents use it: https://ai.google.dev/api/generate-content."""

import json

from tests.support.models.script import Call, Json, Tool, example


def tools(body: Json) -> list[Tool]:
    """The tools of a request."""
    return [
        Tool(function["name"], function.get("parametersJsonSchema") or function.get("parameters") or {})
        for tool in body.get("tools", [])
        for function in tool.get("functionDeclarations", [])
    ]


def results(body: Json) -> list[str]:
    """What the tools have answered so far."""
    return [
        json.dumps(part["functionResponse"]["response"])
        for content in body["contents"]
        for part in content.get("parts", [])
        if "functionResponse" in part
    ]


def answer(body: Json, turn: Call | str, *, stream: bool) -> tuple[str, bytes]:
    """Content type and body of the answer: a call, or words and the end of the turn."""
    part: Json = {"text": turn if isinstance(turn, str) else ""}
    wanted = body.get("generationConfig", {})
    if wanted.get("responseMimeType") == "application/json":  # which of its models fits a request, for example
        part = {"text": json.dumps(example(wanted.get("responseJsonSchema") or wanted.get("responseSchema") or {}))}
    if isinstance(turn, Call):
        part = {"functionCall": {"name": turn.tool.name, "args": turn.arguments}, "thoughtSignature": "c2lnbmVk"}
    whole = {
        "candidates": [{"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2},
        "modelVersion": "fake",
    }
    if not stream:
        return "application/json", json.dumps(whole).encode()
    return "text/event-stream", f"data: {json.dumps(whole)}\r\n\r\n".encode()
