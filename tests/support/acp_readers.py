"""What different clients would make of the same bytes: readers from careful to careless, as an oracle."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any


def _first_wins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        found.setdefault(key, value)
    return found


def _forgiving(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key.strip().casefold(): value for key, value in pairs}


_DECODERS: tuple[Callable[[bytes], str], ...] = (
    lambda data: data.decode("utf-8", "replace"),
    lambda data: data.decode("utf-8", "ignore"),
    lambda data: data.decode("utf-8-sig", "replace"),
    lambda data: data.decode("latin-1"),
    lambda data: data.replace(b"\0", b"").decode("utf-8", "ignore"),
)
_SPLITTERS: tuple[Callable[[str], list[str]], ...] = (
    lambda text: text.split("\n"),
    lambda text: re.split("\r\n|\n|\r|\u2028|\u2029", text),
    str.splitlines,
)
_HOOKS = (dict, _first_wins, _forgiving)


def messages(data: bytes) -> Iterator[dict[str, Any]]:
    """Every object that some reader would take for a message."""
    seen: set[str] = set()
    for decode in _DECODERS:
        text = decode(data)
        for split in _SPLITTERS:
            for line in split(text):
                if line in seen:
                    continue
                seen.add(line)
                for hook in _HOOKS:
                    yield from _read(line.strip(), hook)


def _read(line: str, hook: Callable[[list[tuple[str, Any]]], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The first value of a line: a reader of streams takes it, whatever follows."""
    if not line:
        return
    decoder = json.JSONDecoder(object_pairs_hook=hook, strict=False)
    try:
        value, _ = decoder.raw_decode(line)
    except (ValueError, RecursionError):
        return
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, dict):
            yield each


def method(message: dict[str, Any]) -> str:
    """The method that a careless dispatcher would call."""
    found = message.get("method")
    if isinstance(found, list) and len(found) == 1:
        found = found[0]  # JavaScript: a list as a key is its text
    return found.strip("\0 \t").casefold() if isinstance(found, str) else ""
