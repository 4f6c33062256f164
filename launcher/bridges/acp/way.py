"""One direction of the bridge: lines in, lines out, in order, and those that must be judged, judged.

A line ends with a newline (https://agentclientprotocol.com/protocol/transports). Whole lines without any word that
matters pass as the bytes they are. A line too long to be held in memory is kept in a file until it is whole: it passes
when no such word has come, else it is refused, and nothing of it has left. Where lines of any kind may pass, a long one
does so piece by piece.
"""

import errno
import os
import re
from collections import deque
from collections.abc import Callable
from typing import Protocol

from launcher.bridges.acp.rpc import Outcome

# What may pass unread: a search for bytes that anything to be policed must contain.
#
# Most of what crosses the bridge is streamed text, and parsing it would cost more than carrying it. So bytes are
# first searched, at the speed of memory, for everything from which *some* JSON parser could make a policed message:
#
# - the beginnings of policed words behind their quote, as they are and with the slash escaped (RFC 8259, section 7);
# - the methods that clients know in whole, in case that a dispatcher forgives white space around them;
# - what is about logins, that error of the protocol's included;
# - escapes of printable ASCII: ``\u0066`` is ``f``;
# - NUL and whatever is not UTF-8 (RFC 3629): a sloppy decoder that leaves such bytes out would join what they split.
#
# What contains none of these is no policed message, however it is split into lines and whoever parses it,
# well-formed or not. What contains one is parsed in the strictest way (`rpc`). Too many hits cost time, too few
# would be a hole.


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


# A line too long for memory: kept in a file without a name until it is whole, then given out in portions.


PORTION = 1 << 16
"""Bytes that are given out at once."""

_FLAGS = os.O_RDWR | os.O_CLOEXEC


class Kept:
    """One line, or the beginning of it. The file goes with the last descriptor, whatever happens to this process.

    Attributes:
        left: bytes that were added and not given out yet.
    """

    def __init__(self, directory: str) -> None:
        """Makes the file.

        Args:
            directory: on a disk, out of the agent's reach.

        Raises:
            OSError: it cannot be made.
        """
        self.left = 0
        self._given = 0
        try:
            self._fd = os.open(directory, _FLAGS | os.O_TMPFILE, 0o600)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):
                raise
            self._fd = _named_and_removed(directory)  # a file system without O_TMPFILE (open(2))

    def add(self, data: bytes | bytearray) -> None:
        """Adds to the end.

        Raises:
            OSError: no space, or beyond a limit on files.
        """
        with memoryview(data) as view:
            at = 0
            while at < len(view):
                at += os.pwrite(self._fd, view[at:], self._given + self.left + at)
        self.left += len(data)

    def give(self) -> bytes:
        """The next portion; b"" when all was given out.

        Raises:
            OSError: it cannot be read.
        """
        data = os.pread(self._fd, PORTION, self._given)
        self._given += len(data)
        self.left -= len(data)
        return data

    def close(self) -> None:
        """Gives the file up."""
        os.close(self._fd)


def _named_and_removed(directory: str) -> int:
    path = f"{directory}/.line-{os.urandom(8).hex()}"
    fd = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    os.unlink(path)
    return fd


MOST_HELD = 8 << 20
"""Bytes of one line that are held to be judged as a whole."""

MOST_KEPT = 256 << 20
"""Bytes of one line that are kept in a file."""

_FREE, _PASSING, _KEEPING, _DROPPING = range(4)
_SPLIT = 3  # bytes of a character of UTF-8 that may lie before the end of a piece


class Way:
    """One direction. Gets bytes by `feed`, keeps what is to be written in `out`.

    Attributes:
        out: what the other side gets next; whoever writes it takes it away from the front. Empty when all is written.
        owed: bytes in `out` that are replies of the bridge's own, at most.
    """

    def __init__(
        self,
        scan: Scan,
        judge: Callable[[bytes], Outcome],
        unreadable: Callable[[str], Outcome] | None,
        most: int = MOST_HELD,
        keep: Callable[[], Kept] | None = None,
        most_kept: int = MOST_KEPT,
        last_words: Callable[[], bytes] = bytes,
    ) -> None:
        """Prepares one direction.

        Args:
            scan: tells which lines are judged.
            judge: judges a line that has its newline.
            unreadable: answers a line that is too long to be judged; None: such lines pass.
            most: bytes of a line that are held in memory.
            keep: makes the place for a longer one; None: longer ones are refused.
            most_kept: bytes of a line that are kept there.
            last_words: gives whole lines that follow the end.
        """
        self.out = bytearray()
        self.owed = 0
        self._scan = scan
        self._judge = judge
        self._unreadable = unreadable
        self._most = most
        self._rest = bytearray()
        self._looked = 0  # bytes of the rest that are known to hold no newline
        self._state = _FREE
        self._keep = keep
        self._most_kept = most_kept
        self._last_words = last_words
        self._kept: Kept | None = None
        self._behind: deque[bytearray | Kept] = deque()  # what follows `out`
        self._waiting: list[bytes] = []
        self._reply: Callable[[bytes], None] = self.reply

    @property
    def waiting(self) -> int:
        """Bytes that have passed and are not written yet, those in files among them."""
        behind = sum(len(part) if isinstance(part, bytearray) else part.left for part in self._behind)
        return len(self.out) + behind

    def replies_to(self, other: "Way") -> None:
        """Sends what is answered to a line back by the other direction."""
        self._reply = other.reply

    def feed(self, data: bytes) -> None:
        """Takes what has been read."""
        self._rest += data
        end = self._rest.rfind(b"\n", self._looked) + 1
        if end == 0:
            self._looked = len(self._rest)
            if self._state != _FREE or len(self._rest) > self._most:
                self._piece()
            return
        if self._state != _FREE:
            first = self._rest.find(b"\n") + 1
            self._last_piece(first)
            end -= first
        self._looked = 0
        if end:
            lines = bytes(self._rest[:end])
            del self._rest[:end]
            self._lines(lines)
        if len(self._rest) > self._most:
            self._looked = len(self._rest)
            self._piece()

    def end(self) -> None:
        """There is no more to come. A last line without its newline is a line."""
        is_cut = self._state != _FREE or bool(self._rest)
        if self._state != _FREE:
            self._last_piece(len(self._rest))
        elif self._rest:
            lines = bytes(self._rest)
            self._rest.clear()
            self._lines(lines)
        self._release()
        if words := self._last_words():
            self._put(b"\n" + words if is_cut else words)

    def reply(self, data: bytes) -> None:
        """Puts whole lines of the bridge's own between the others."""
        self.owed += len(data)
        if self._state == _PASSING:
            self._waiting.append(data)
        else:
            self._put(data)

    def written(self, count: int) -> None:
        """Takes bytes that have been written off the front of `out`, which then holds what follows.

        Raises:
            OSError: what follows cannot be read.
        """
        del self.out[:count]
        while self._behind and len(self.out) < PORTION:
            part = self._behind[0]
            data = part if isinstance(part, bytearray) else part.give()
            self.out += data
            if isinstance(part, bytearray) or not data:
                self._give_up(self._behind.popleft())
        if not self.out and not self._waiting:
            self.owed = 0

    def discard(self) -> None:
        """There is nobody to write to any more."""
        while self._behind:
            self._give_up(self._behind.popleft())
        self._waiting.clear()
        self.out.clear()
        self.owed = 0

    def close(self) -> None:
        """Gives up what is kept in files."""
        self.discard()
        self._give_up(self._kept)
        self._kept = None

    @staticmethod
    def _give_up(part: bytearray | Kept | None) -> None:
        if isinstance(part, Kept):
            part.close()

    def _put(self, data: bytes | bytearray) -> None:
        if not self._behind:
            self.out += data
        elif isinstance(last := self._behind[-1], bytearray):
            last += data
        else:
            self._behind.append(bytearray(data))

    def _lines(self, lines: bytes) -> None:
        if not self._is_suspicious(lines):
            self._put(lines)
            return
        start = 0
        while start < len(lines):
            end = lines.find(b"\n", start) + 1 or len(lines)
            line = lines[start:end]
            start = end
            if not self._is_suspicious(line):
                self._put(line)
            elif len(line) <= self._most:
                self._judged(line)
            elif self._unreadable is None:
                self._put(line)
            else:
                self._refuse_long()

    def _judged(self, line: bytes) -> None:
        outcome = self._judge(line)
        self._put(outcome.on)
        if outcome.back:
            self._reply(outcome.back)

    def _is_suspicious(self, data: bytes) -> bool:
        return self._scan.has_word(data) or not self._scan.is_sound(data)

    def _refuse(self, why: str) -> None:
        if self._unreadable is not None:
            self._reply(self._unreadable(why).back)

    def _refuse_long(self) -> None:
        self._refuse(f"the line is longer than {self._most} bytes")

    def _piece(self) -> None:
        """A piece of a line that is too long to be held is at hand."""
        cut = _boundary(self._rest, len(self._rest) - LONGEST)
        if self._unreadable is None:
            self._state = _PASSING
            self._put(self._rest[:cut])
        elif self._state != _DROPPING:
            self._state = _KEEPING
            if self._scan.has_word(self._rest) or not self._scan.is_sound(self._rest[:cut]):
                self._drop()
            else:
                self._add(self._rest[:cut])
        if self._state == _DROPPING:
            cut = len(self._rest)
        del self._rest[:cut]
        self._looked = len(self._rest)

    def _last_piece(self, end: int) -> None:
        """The end of a line that is too long to be held is at hand."""
        piece = bytes(self._rest[:end])
        del self._rest[:end]
        if self._state == _PASSING:
            self._put(piece)
        elif self._state == _KEEPING:
            if self._is_suspicious(piece):
                self._drop()
            else:
                self._add(piece)
            if self._kept is not None:
                self._behind.append(self._kept)
                self._kept = None
                self.written(0)
        self._state = _FREE
        self._release()

    def _add(self, data: bytes | bytearray) -> None:
        """Keeps a piece of a line that is not whole yet."""
        if self._keep is None:
            self._drop()
            return
        try:
            if self._kept is None:
                self._kept = self._keep()
            if self._kept.left + len(data) > self._most_kept:
                self._drop(f"the line is longer than {self._most_kept} bytes")
            else:
                self._kept.add(data)
        except OSError as error:
            self._drop(f"a line longer than {self._most} bytes cannot be kept: {error.strerror}")

    def _drop(self, why: str = "") -> None:
        """Refuses the line, of which nothing has left, and whatever is still to come of it."""
        self._give_up(self._kept)
        self._kept = None
        self._state = _DROPPING
        if why:
            self._refuse(why)
        else:
            self._refuse_long()

    def _release(self) -> None:
        for data in self._waiting:
            self._put(data)
        self._waiting.clear()


def _boundary(data: bytearray, at: int) -> int:
    """The nearest place at or before `at` that is no continuation of a character (RFC 3629)."""
    at = max(at, 0)
    for back in range(_SPLIT + 1):
        if at - back <= 0:
            return max(at - back, 0)
        if data[at - back] & 0xC0 != 0x80:
            return at - back
    return at
