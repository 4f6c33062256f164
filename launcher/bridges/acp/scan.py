"""What may pass unread: a search for bytes that anything to be policed must contain.

Most of what crosses the bridge is streamed text, and parsing it would cost more than carrying it. So bytes are first
searched, at the speed of memory, for everything from which *some* JSON parser could make a policed message:

- the beginnings of policed words behind their quote, as they are and with the slash escaped (RFC 8259, section 7);
- the methods that clients know in whole, in case that a dispatcher forgives white space around them;
- what is about logins, that error of the protocol's included;
- escapes of printable ASCII: ``\\u0066`` is ``f``;
- NUL and whatever is not UTF-8 (RFC 3629): a sloppy decoder that leaves such bytes out would join what they split.

What contains none of these is no policed message, however it is split into lines and whoever parses it, well-formed
or not. What contains one is parsed in the strictest way (`strict`). Too many hits cost time, too few would be a hole.
"""

import re
from typing import Protocol

_SLASHES = (b"/", b"\\/")
_ROOMS = (b'"fs', b'"terminal', b'"mcp')
_METHODS = ((b"fs", b"read_text_file"), (b"fs", b"write_text_file"), (b"terminal", b"create"), (b"mcp", b"message"))
_TO_CLIENT = (
    *(room + slash for room in _ROOMS for slash in _SLASHES),
    *(room + slash + name for room, name in _METHODS for slash in _SLASHES),
    b'"authMethods"',
    b"-32000",
    b"\0",
)
_TO_AGENT = re.compile(rb'"initialize"|"session\\?/(?:new|load|resume|fork|list)"|\\u00[2-7]')
_ESCAPED_ASCII = re.compile(rb"\\u00[2-7]")

LONGEST = 24
"""Bytes: no word is longer, so a search that begins this far before the end of what was searched misses none."""


class Scan(Protocol):
    """What one direction looks for."""

    def has_word(self, data: bytes | bytearray) -> bool:
        """Whether `data`, lines or a piece of one, holds what a line to be judged must hold."""
        ...

    def is_sound(self, data: bytes | bytearray) -> bool:
        """Whether `data`, which begins and ends between characters, is text that everybody decodes alike."""
        ...


class ToClient:
    """What must not simply pass from the agent to the client.

    Attributes:
        awaited: also look for replies to requests: one of them is awaited.
        terminals: also look for terminals that are named.
    """

    def __init__(self, *, terminals: bool = False) -> None:
        self.awaited = False
        self.terminals = terminals

    def has_word(self, data: bytes | bytearray) -> bool:
        """See `Scan`."""
        for word in _TO_CLIENT:
            if word in data:
                return True
        if self.terminals and b'"terminalId"' in data:
            return True
        if self.awaited and (b'"result"' in data or b'"error"' in data):
            return True
        return b"\\u00" in data and _ESCAPED_ASCII.search(data) is not None

    def is_sound(self, data: bytes | bytearray) -> bool:
        """See `Scan`."""
        if data.isascii():
            return True
        try:
            data.decode()
        except UnicodeDecodeError:
            return False
        return True


class ToAgent:
    """What the agent must get adjusted. Whatever else the client sends is between the two of them."""

    def has_word(self, data: bytes | bytearray) -> bool:
        """See `Scan`."""
        return _TO_AGENT.search(data) is not None

    def is_sound(self, data: bytes | bytearray) -> bool:
        """See `Scan`: the jail holds, whatever the agent makes of it."""
        return True
