"""What a client asks a running jail for: frames (`launcher.wire`) of NUL-separated fields.

The bytes come from another process of the same user, so they are only ever split, never unmarshalled.

Loaded for a further command: built-in modules only, see launcher/jail/minder.py.
"""

import time

from launcher import wire
from launcher.lean import os
from policy.errors import Refusal

PROOF = b"P"  # the first message: `Session.proof`
ABOUT = b"A"  # what runs here; no fields. Answered by status.REPORT
COMMAND = b"Q"  # run a command; fields: see `Command`. Its streams come along as descriptors
GO = b"G"  # the terminal is as it shall be: start; no fields
SIGNAL = b"K"  # two bytes: a signal's number, and 1 when it is for the command's whole process group

TERMINAL = b"T"  # the answer to a COMMAND with a terminal: its master side comes along. Then GO is awaited

MOST_BYTES = 4 << 20
"""Of one message. The kernel takes about 2 MiB of arguments and environment (execve(2))."""

PATIENCE = 10.0
"""Seconds in which a message must be complete."""

_VERSION = b"1"

DIRECT, PTY = "d", "t"
"""Where a stream of the command leads: to a descriptor that comes along, or to the terminal made for it."""


class Command:
    """A further command for a running jail.

    Attributes:
        argv: its words, at least one.
        environment: (name, value) on top of what the session's first command got.
        cwd: canonical path to start in; "" for the session's own directory.
        insists: `cwd` was asked for; else a path outside of the worktree means the session's directory.
        streams: one of `DIRECT` and `PTY` for each of 0, 1 and 2.
    """

    __slots__ = ("argv", "cwd", "environment", "insists", "streams")

    def __init__(
        self,
        argv: list[str],
        environment: tuple[tuple[str, str], ...] = (),
        *,
        cwd: str = "",
        insists: bool = False,
        streams: str = DIRECT * 3,
    ) -> None:
        self.argv = argv
        self.environment = environment
        self.cwd = cwd
        self.insists = insists
        self.streams = streams

    def encode(self) -> bytes:
        """The message's payload. Refusals: request-invalid for a NUL, which no argument can hold; request-too-long."""
        pairs = [f"{name}={value}" for name, value in self.environment]
        fields = [self.streams, "!" if self.insists else "?", self.cwd, str(len(self.argv)), *self.argv, *pairs]
        if any("\0" in field for field in fields):
            raise _invalid("an argument or a variable holds a NUL character")
        payload = b"\0".join((_VERSION, *map(os.fsencode, fields)))
        if len(payload) > MOST_BYTES:
            raise _too_long(f"{len(payload)} bytes, of {MOST_BYTES} at most")
        return payload

    @classmethod
    def decode(cls, payload: bytes) -> "Command":
        """The command that `encode` wrote. Refusal request-invalid for anything else."""
        version, *rest = payload.split(b"\0")
        if version != _VERSION:
            raise _invalid("the session was started by another version of Paddock")
        fields = list(map(os.fsdecode, rest))
        if len(fields) < 5 or not (fields[3].isascii() and fields[3].isdigit() and len(fields[3]) < 8):
            raise _invalid("fields are missing")
        streams, insists, cwd, count, *words = fields
        argv, pairs = words[: int(count)], words[int(count) :]
        if not argv or len(argv) != int(count) or insists not in ("!", "?") or len(streams) != 3:
            raise _invalid("fields are missing")
        if set(streams) - {DIRECT, PTY} or not all(pair.find("=") > 0 for pair in pairs):
            raise _invalid("a field is not what it should be")
        environment = tuple((name, value) for name, _, value in (pair.partition("=") for pair in pairs))
        return cls(argv, environment, cwd=cwd, insists=insists == "!", streams=streams)


def _invalid(why: str) -> Refusal:
    return Refusal("request-invalid", "the request for a further command is not well formed", context=why)


def receive(connection: int, descriptors: list[int], most: int = MOST_BYTES) -> tuple[bytes, bytes]:
    """The next message as (kind, payload); (b"", b"") when the client has left.

    Args:
        connection: to read from.
        descriptors: takes what comes along; the caller owns them, after an exception too.
        most: bytes that the payload may have.

    Refusals: request-too-long, request-late, request-invalid.
    """
    try:
        return wire.receive(connection, descriptors, deadline=time.monotonic() + PATIENCE, most=most)
    except TimeoutError:
        raise Refusal("request-late", f"the request was not complete within {PATIENCE:.0f} seconds") from None
    except wire.TooLong as error:
        raise _too_long(str(error)) from None
    except wire.Malformed as error:
        raise _invalid(str(error)) from None


def _too_long(why: str) -> Refusal:
    return Refusal("request-too-long", "arguments and environment together are too long", context=why)
