"""JSON-RPC 2.0 messages (https://www.jsonrpc.org/specification), read so strictly that every parser reads them alike.

The bridge decides by its own reading of a line, and who gets the line acts on another parser's. So a line that two
parsers could read differently (RFC 8259, sections 4, 8 and 9; the grey zones are duplicate names, byte order marks,
numbers beyond the interoperable range, nesting) is refused, and what goes on is written anew by `encode`.
"""

import json
from typing import Any, NamedTuple

MOST_DEPTH = 200
"""Levels of nesting. ACP's own messages have about ten; many parsers stop at 128 or 512."""

MOST_VALUES = 2 << 20
"""Commas and opening brackets of one line: a value of three bytes (`{},`) takes Python some seventy."""

MOST_NAME = 1000
"""Characters of an id, a method, the name of a session: they are compared, kept, and repeated in answers."""


class Ambiguous(ValueError):
    """A line that not every parser would read in the same way. Its text says why."""


def parse(line: bytes) -> dict[str, Any]:
    """The message of one line.

    Args:
        line: with or without its final newline.

    Raises:
        Ambiguous: it is not JSON in UTF-8, names a key twice, nests too deep, is a batch ...
    """
    text = _text(line)
    if "\r" in text:
        raise Ambiguous("a carriage return inside the line")
    opening = line.count(b"{") + line.count(b"[")
    if opening + line.count(b",") > MOST_VALUES:
        raise Ambiguous(f"more than {MOST_VALUES} values")
    try:
        found: object = _DECODER.decode(text)
    except RecursionError:
        raise Ambiguous("nested too deep") from None
    except Ambiguous:
        raise
    except ValueError as error:
        raise Ambiguous(f"not JSON: {error}") from None
    if opening > MOST_DEPTH and _is_deep(found):
        raise Ambiguous("nested too deep")
    if not isinstance(found, dict):
        raise Ambiguous("a batch, which the protocol does not have" if isinstance(found, list) else "no object")
    if not _is_plain(found):
        raise Ambiguous("a member that could be mistaken for another one")
    method = found.get("method", "")
    if not isinstance(method, str):
        raise Ambiguous("a method that is not a string")
    if len(method) > MOST_NAME:
        raise Ambiguous(f"a method of more than {MOST_NAME} characters")
    return found


def encode(value: object) -> bytes:
    """One line: ASCII only, no white space but the final newline."""
    return _ENCODER.encode(value).encode() + b"\n"


def _text(line: bytes) -> str:
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise Ambiguous(f"not UTF-8: {error.reason} at byte {error.start}") from None
    text = text.removesuffix("\n").removesuffix("\r")
    if text.startswith("\ufeff"):
        raise Ambiguous("a byte order mark")
    return text


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(name for name, _ in pairs if found.pop(name, pairs) is pairs)
        raise Ambiguous(f"the key {twice[:MOST_NAME]!r} is listed twice")
    return found


def _no_constant(name: str) -> None:
    raise Ambiguous(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise Ambiguous("a number beyond what parsers agree on")
    return number


# json.loads and json.dumps would make new ones for every line.
_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)
_ENCODER = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), allow_nan=False)


def _is_deep(value: object) -> bool:
    """Whether containers are nested more than `MOST_DEPTH` levels; without recursion."""
    level = [value]
    for _ in range(MOST_DEPTH + 1):
        below: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                below += [item for item in each.values() if isinstance(item, dict | list)]
            elif isinstance(each, list):
                below += [item for item in each if isinstance(item, dict | list)]
        if not below:
            return False
        level = below
    return True


PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
DENIED = -32003
"""Within the range that JSON-RPC leaves to servers; ACP itself uses -32000 (authentication) and -32002 (not found)."""

AUTH_REQUIRED = -32000
TERMINAL_LOGIN = "terminal-auth"

Id = str | int

_MOST_ID = 1 << 53
"""Integers beyond it are different numbers to parsers that read them as IEEE 754 doubles (RFC 8259, section 6)."""

MEMBERS = frozenset({"jsonrpc", "id", "method", "params", "result", "error"})


def usable_id(message: dict[str, Any]) -> Id | None:
    """The message's id, if every peer takes it for the same one and it is worth being kept; else None."""
    found = message.get("id")
    if isinstance(found, str) and len(found) <= MOST_NAME:
        return found
    if isinstance(found, int) and not isinstance(found, bool) and abs(found) < _MOST_ID:
        return found
    return None


def _is_plain(message: dict[str, Any]) -> bool:
    """Whether no member could be taken for one of JSON-RPC's by a parser that forgives case or white space."""
    return message.keys() <= MEMBERS or all(
        name in MEMBERS or name.strip().casefold() not in MEMBERS for name in message
    )


def error(number: Id | None, code: int, message: str, data: object = None) -> bytes:
    """An error response, as a line."""
    what: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        what["data"] = data
    return encode({"jsonrpc": "2.0", "id": number, "error": what})


def result(number: Id, value: object) -> bytes:
    """A response, as a line."""
    return encode({"jsonrpc": "2.0", "id": number, "result": value})


# What becomes of one line.


class Outcome(NamedTuple):
    """Whole lines, or nothing.

    Attributes:
        on: goes on to the other side.
        back: goes back to the side that the line came from.
    """

    on: bytes = b""
    back: bytes = b""
