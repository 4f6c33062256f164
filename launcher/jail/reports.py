"""What the processes inside report to the launcher, over one pipe: frames (`launcher.wire`).

The pipe is close-on-exec, so the command itself never holds it: every message is Paddock's own.

Launch path: built-in modules and `launcher.wire` only.
"""

import marshal
import time

from launcher import wire
from launcher.lean import os
from policy.errors import Refusal, Rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STARTING = b"B"  # the jail is built; the command's process takes its last steps. Of a further command:
# payload: how large a file may become, eight bytes, 0 for no bound
EXECUTING = b"G"  # the command is executed now; payload: nanoseconds of CLOCK_MONOTONIC, eight bytes
STOPPED = b"S"  # the command has stopped; payload: the signal's number, one byte, and which stop it is, four bytes
CONTINUED = b"C"  # the command runs again; no payload
EXITED = b"X"  # the command has ended; see `send_exited`
SWEPT = b"Z"  # the client has left, and nothing of the further command lives any more; no payload
REFUSED = b"E"  # a Refusal, to be raised again by the launcher; payload: marshal of its five parts
DENIED = b"D"  # the guard has refused something; payload: marshal of what `launcher.jail.guard.server` says of it
WANTED = b"W"  # a watched command wants something; payload: marshal of `launcher.jail.guard.watch.Want`
REPORT = b"R"  # facts for the ledger; payload: marshal of a tuple

NOBODY = -1
"""In place of the pipe, where no launcher reads: what was refused is said on standard error (`confined.refusal_in`)."""

_LONGEST = 1500


def send(fd: int, kind: bytes, payload: bytes = b"") -> None:
    """Writes one message. A launcher that is gone is no error: its death ends the caller by other means."""
    if fd == NOBODY:
        return
    try:
        wire.write(fd, wire.frame(kind, payload))
    except BrokenPipeError:
        return


def shortened(text: str) -> str:
    """As much of a text as `marshal` writes in `_LONGEST` bytes, for messages that several threads or processes send.

    With two such texts, a message is not longer than what a pipe takes at once, and whole (pipe(7), PIPE_BUF).
    """
    while len(text.encode("utf-8", "surrogatepass")) > _LONGEST:
        text = text[: len(text) * 7 // 8]
    return text


def send_refusal(fd: int, refusal: Refusal) -> None:
    """Sends a Refusal for the launcher to raise."""
    parts = (refusal.reference, refusal.message, refusal.context, refusal.hint)
    if fd == NOBODY:
        os.write(2, b"\n\0" + "\0".join(parts).encode("utf-8", "surrogateescape"))
    send(fd, REFUSED, marshal.dumps((*parts, refusal.exit_code)))


def send_report(fd: int, facts: "tuple[Any, ...]") -> None:
    """Sends facts about what is enforced. Only what `marshal` can write: tuples, strings, numbers."""
    send(fd, REPORT, marshal.dumps(facts))


def send_exited(fd: int, code: int, *, alone: bool = False) -> None:
    """Sends the command's wait status; `alone` when nothing else lives in the jail."""
    send(fd, EXITED, code.to_bytes(4, "little") + bytes((alone,)))


def send_executing(fd: int) -> None:
    """Says that the command is executed now."""
    send(fd, EXECUTING, time.monotonic_ns().to_bytes(8, "little"))


def executing(payload: bytes) -> float:
    """When that was, in seconds of the clock of `time.monotonic`, which all processes share."""
    return int.from_bytes(payload, "little") / 1e9


def exited(payload: bytes) -> tuple[int, bool]:
    """The wait status that `send_exited` wrote, and whether nothing else lives in the jail."""
    return int.from_bytes(payload[:4], "little"), payload[4] != 0


def refusal(payload: bytes) -> Refusal:
    """The Refusal that `send_refusal` wrote."""
    reference, message, context, hint, exit_code = marshal.loads(payload)
    return Refusal(reference, message, context=Rows(context), hint=Rows(hint), exit_code=exit_code)


def have_refused(reader: int) -> bool:
    """Whether the writers of a pipe, who have ended, sent a Refusal."""
    decoder, found = wire.Decoder(), False
    while data := os.read(reader, 65536):
        found |= any(kind == REFUSED for kind, _ in decoder.feed(data))
    return found


def report(payload: bytes) -> "tuple[Any, ...]":
    """The facts that `send_report` wrote."""
    facts: tuple[Any, ...] = marshal.loads(payload)
    return facts
