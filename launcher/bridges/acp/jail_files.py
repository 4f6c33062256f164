"""The agent's requests for files, carried out in the jail in place of the client (`--fs jail`).

The kernel judges the path in the moment it is opened, so no link that is put there meanwhile leads anywhere. What the
client has in an editor and has not saved is not seen; what is written it finds on the disk.
"""

import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from launcher.bridges.acp import rpc
from launcher.bridges.acp.jailed import Jailed
from launcher.bridges.acp.relay import Poll
from launcher.jail import request
from policy.errors import Refusal
from policy.plan import Plan

if TYPE_CHECKING:
    from acp.schema import ReadTextFileRequest, WriteTextFileRequest

MOST_READ = 8 << 20
"""Bytes of a file that can be read."""

MOST_AT_ONCE = 8

_NOT_FOUND = -32002  # the protocol's "resource not found"
_READ = ("/bin/cat", "--")
_WRITE = ("/bin/sh", "-c", 'cat >"$1"', "sh")


class JailFiles:
    """Reads and writes of one bridge that are under way."""

    def __init__(
        self, poll: Poll, connect: Callable[[], socket.socket], reply: Callable[[bytes], None], plan: Plan
    ) -> None:
        """Prepares; nothing is started.

        Args:
            poll: of the loop that hands events over.
            connect: makes a connection to the session's control socket; a Refusal of it is told the agent.
            reply: sends the agent a line.
            plan: of the session.
        """
        self._poll = poll
        self._connect = connect
        self._reply = reply
        self._plan = plan
        self._running: list[Jailed] = []

    @property
    def descriptors(self) -> frozenset[int]:
        """Those that are registered now."""
        return frozenset(fd for each in self._running for fd in each.descriptors)

    def serve(self, fd: int) -> None:
        """Handles an event of one of `descriptors`."""
        for each in self._running:
            if fd in each.descriptors:
                each.serve(fd)
                return

    def close(self) -> None:
        """Ends what is under way."""
        for each in self._running:
            each.close()
        self._running.clear()

    def __call__(self, number: rpc.Id, wanted: "ReadTextFileRequest | WriteTextFileRequest", path: str) -> bytes:
        """Begins a request for a file: the reply if it failed at once, else b"".

        Args:
            number: the request's id.
            wanted: its parameters.
            path: canonical.
        """
        content = getattr(wanted, "content", None)
        words = [*(_READ if content is None else _WRITE), path]
        first, count = getattr(wanted, "line", None), getattr(wanted, "limit", None)
        if len(self._running) >= MOST_AT_ONCE:
            return rpc.error(number, rpc.INTERNAL_ERROR, f"{MOST_AT_ONCE} files are being read or written already")

        def on_end(run: Jailed) -> None:
            self._running.remove(run)
            if content is not None:
                self._reply(_written(number, run))
            else:
                self._reply(_read(number, run, path, first, count))

        try:
            run = Jailed(
                self._poll,
                self._connect(),
                request.Command(words, cwd=self._plan.worktree, insists=True),
                most=MOST_READ,
                stdin=(content or "").encode(),
                on_end=on_end,
            )
        except Refusal as refusal:
            return rpc.error(number, rpc.INTERNAL_ERROR, f"paddock: {refusal.message}", refusal.as_dict())
        except (OSError, ValueError) as error:
            return rpc.error(number, rpc.INTERNAL_ERROR, f"paddock: the file could not be opened: {error}")
        self._running.append(run)
        return b""


def _failed(number: rpc.Id, run: Jailed) -> bytes | None:
    if run.ended is not None and run.ended.code == 0:
        return None
    said = run.output[-1000:].decode("utf-8", "replace").strip()
    return rpc.error(number, _NOT_FOUND, said or "the file could not be opened in the jail")


def _written(number: rpc.Id, run: Jailed) -> bytes:
    return _failed(number, run) or rpc.result(number, {})


def _read(number: rpc.Id, run: Jailed, path: str, first: int | None, count: int | None) -> bytes:
    failed = _failed(number, run)
    if failed is not None and os.path.lexists(path):
        return failed
    if failed is not None:
        # As editors have it: a file that is not there yet is an empty buffer. Agents ask before they make one, and
        # Gemini CLI takes an error of any kind for a file that it must not touch.
        return rpc.result(number, {"content": ""})
    if run.truncated:
        return rpc.error(number, rpc.INTERNAL_ERROR, f"the file has more than {MOST_READ} bytes")
    text = run.output.decode("utf-8", "replace")
    if first is not None or count is not None:
        start = max((first or 1) - 1, 0)
        lines = text.split("\n")
        lines = [f"{line}\n" for line in lines[:-1]] + lines[-1:]
        text = "".join(lines[start:] if count is None else lines[start : start + count])
    return rpc.result(number, {"content": text})
