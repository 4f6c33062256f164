"""JSON-RPC 2.0 messages of the bridge's own (https://www.jsonrpc.org/specification)."""

from typing import Any

from launcher.bridges.acp import strict

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
DENIED = -32003
"""Within the range that JSON-RPC leaves to servers; ACP itself uses -32000 (authentication) and -32002 (not found)."""

AUTH_REQUIRED = -32000

Id = str | int

_MOST_ID = 1 << 53
"""Integers beyond it are different numbers to parsers that read them as IEEE 754 doubles (RFC 8259, section 6)."""

_LONGEST_ID = 1000

MEMBERS = frozenset({"jsonrpc", "id", "method", "params", "result", "error"})


def usable_id(message: dict[str, Any]) -> Id | None:
    """The message's id, if every peer takes it for the same one and it is worth being kept; else None."""
    found = message.get("id")
    if isinstance(found, str) and len(found) <= _LONGEST_ID:
        return found
    if isinstance(found, int) and not isinstance(found, bool) and abs(found) < _MOST_ID:
        return found
    return None


def is_plain(message: dict[str, Any]) -> bool:
    """Whether no member could be taken for one of JSON-RPC's by a parser that forgives case or white space."""
    return all(name in MEMBERS or name.strip().casefold() not in MEMBERS for name in message)


def error(number: Id | None, code: int, message: str, data: object = None) -> bytes:
    """An error response, as a line."""
    what: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        what["data"] = data
    return strict.encode({"jsonrpc": "2.0", "id": number, "error": what})


def result(number: Id, value: object) -> bytes:
    """A response, as a line."""
    return strict.encode({"jsonrpc": "2.0", "id": number, "result": value})
