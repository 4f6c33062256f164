"""The router: whose call is it, which worker does it, and what is said when anything goes wrong.

It touches no file of a worktree: it asks where the worktree is, and whether it is still there.
"""

import hashlib
import hmac
import logging
import os
import secrets
import select
import subprocess
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum

from pydantic import ValidationError

from launcher.bridges.files.tool_calls import (
    CALLS,
    MOST_TEXT,
    PLACES,
    Answer,
    Call,
    ErrorType,
    Shell,
    ToolFailed,
    denied,
    error,
)
from launcher.bridges.files.workers import Pool, Room, WorkerFailed, end_group, identity
from launcher.workflow.graph import GraphRepository
from launcher.workflow.request_context import RequestContextRepository
from launcher.workflow.worktrees import WorktreeService, worktree_of_session
from policy.errors import Refusal, printable
from policy.sandbox_context import WorktreeSandboxContext
from policy.violation import Reason, SandboxValidationResult, escaped

# Running a command line for the shell tool, with an end in time and an answer of bounded size.

_HEAD = MOST_TEXT // 2
_BLOCK = 1 << 16
_PATIENCE = 5.0


class Stop:
    """Ends a command early, from another thread."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # Both threads hold it, and either may be the last.
        weakref.finalize(self, os.close, self._fd)

    def fileno(self) -> int:
        """Readable once it was set."""
        return self._fd

    def set(self) -> None:
        """Ends the command, if it still runs or ever begins."""
        os.eventfd_write(self._fd, 1)


def run(argv: list[str], cwd: str, seconds: float, stop: Stop | None = None) -> Answer:
    """Runs `argv` to its end: its exit status on the first line, then what it wrote to both of its outputs.

    Args:
        cwd: directory that it is started from.
        seconds: after that it is ended, with all that it started.

    Raises:
        ToolFailed: it could not be started, or was ended (what it had written is in the message).
    """
    try:
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            start_new_session=True,
        )
    except OSError as error:
        raise ToolFailed(ErrorType.WORKER_FAILED, f"the command cannot be started: {error.strerror}") from None
    output = _Output()
    with process:
        assert process.stdout is not None
        ended = _follow(process.stdout.fileno(), output, time.monotonic() + seconds, stop)
        if ended is not None:
            end_group(process, _PATIENCE)
        status = process.wait()
    if ended is not None:
        raise ToolFailed(*ended, output.text())
    status = status if status >= 0 else 128 - status
    return Answer(f"exit status {status}\n{output.text()}", output.note())


class _Output:
    """The beginning and the end of what was written."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._size = 0

    def add(self, data: bytes) -> None:
        self._size += len(data)
        room = _HEAD - len(self._head)
        self._head += data[:room]
        self._tail = (self._tail + data[room:])[-_HEAD:] if room < len(data) else self._tail

    def text(self) -> str:
        gap = b"\n[...]\n" if self._size > len(self._head) + len(self._tail) else b""
        return bytes(self._head + gap + self._tail).decode(errors="backslashreplace").replace("\0", "\\x00")

    def note(self) -> str:
        left_out = self._size - len(self._head) - len(self._tail)
        return f"{left_out} bytes in the middle are omitted" if left_out else ""


def _follow(fd: int, output: _Output, deadline: float, stop: Stop | None) -> tuple[ErrorType, str] | None:
    """Reads until the end: None. Why it must end, when something else comes first."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    if stop is not None:
        poll.register(stop.fileno(), select.POLLIN)
    while True:
        left = deadline - time.monotonic()
        ready = [each for each, _ in poll.poll(max(0.0, left) * 1000)]
        if not ready:
            return ErrorType.TIMED_OUT, "the command took too long and was ended; timeout_seconds allows more"
        if fd not in ready:
            return ErrorType.CANCELLED, "the command was ended, because nobody is waiting for it any more"
        data = os.read(fd, _BLOCK)
        if not data:
            return None
        output.add(data)
        if len(ready) > 1:
            return ErrorType.CANCELLED, "the command was ended, because nobody is waiting for it any more"
        if left <= 0:
            return ErrorType.TIMED_OUT, "the command took too long and was ended; timeout_seconds allows more"


log = logging.getLogger(__name__)

Enter = Callable[[str, WorktreeSandboxContext], Room]
"""Makes a room for a session with these boundaries; see `launcher.bridges.files.workers.Jails.enter`."""

# From what a request says of itself to the boundaries it is held to (story 5, contracts section 6).
#
# Two modes. In `strict` a call without a known session is an error. In `compatible` it is what it was before there
# was a sandbox (the specification's backward-compatibility table): without a session, with an unknown one, or with
# one that has no worktree, files are used without boundaries. A session that has ended, whose worktree is gone, or
# whose token is wrong is never let out, in either mode.

LEGACY = ""
"""Stands for all callers without a session, in the mode `compatible`."""


class Mode(StrEnum):
    """What becomes of a call whose session leads to no worktree."""

    STRICT = "strict"
    COMPATIBLE = "compatible"


class Tokens:
    """One secret for each session, compared in constant time. Safe to share between threads.

    Only digests are kept, so nothing that reads this process's memory later finds a token.
    """

    def __init__(self) -> None:
        """Starts without any."""
        self._lock = threading.Lock()
        self._digests: dict[str, bytes] = {}

    def issue(self, session_id: str) -> str:
        """A new token for a session, in place of an earlier one; `LEGACY` for callers without a session."""
        token = secrets.token_urlsafe(32)
        with self._lock:
            self._digests[session_id] = _digest(token)
        return token

    def revoke(self, session_id: str) -> None:
        """The session has no token any more."""
        with self._lock:
            self._digests.pop(session_id, None)

    def knows(self, session_id: str) -> bool:
        """Whether a token was issued for the session."""
        return session_id in self._digests

    def matches(self, session_id: str, token: str | None) -> bool:
        """Whether `token` is the session's. Takes as long for a session that has none."""
        expected = self._digests.get(session_id)
        same = hmac.compare_digest(expected or bytes(32), _digest(token or ""))
        return same and expected is not None


class SignedTokens(Tokens):
    """Tokens that follow from one secret: they outlive this process, and nothing is kept of them.

    None can be taken back; a session that is over has no boundaries.
    """

    def __init__(self, secret: bytes) -> None:
        """Args: 32 random bytes that no session sees."""
        super().__init__()
        self._secret = secret

    def issue(self, session_id: str) -> str:
        """The session's token."""
        return hmac.new(self._secret, session_id.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()

    def knows(self, session_id: str) -> bool:
        """Every session has one."""
        return True

    def matches(self, session_id: str, token: str | None) -> bool:
        """Whether `token` is the session's, in constant time."""
        return hmac.compare_digest(_digest(self.issue(session_id)), _digest(token or ""))


class Sessions:
    """Finds a session's boundaries.

    Args:
        find: boundaries by session id, None where there are none; a Refusal says why there can be none.
        ended: whether a session has been and is no more.
        offered: the tools that a session is offered; None for all.
        tokens: checked against when given: for callers that anybody could be.
    """

    def __init__(
        self,
        find: Callable[[str], WorktreeSandboxContext | None],
        *,
        ended: Callable[[str], bool] = lambda session_id: False,
        offered: Callable[[str], Collection[str] | None] = lambda session_id: None,
        mode: Mode = Mode.STRICT,
        tokens: Tokens | None = None,
    ) -> None:
        self.mode = mode
        self._offered = offered
        self.tokens = tokens
        self._find = find
        self._ended = ended

    @classmethod
    def of_workflow(
        cls,
        contexts: RequestContextRepository,
        graph: GraphRepository,
        worktrees: WorktreeService,
        *,
        mode: Mode = Mode.STRICT,
        tokens: Tokens | None = None,
    ) -> "Sessions":
        """Those whose contexts the decorators have written down, with the tools that they were offered (FR-017)."""

        def offered(session_id: str) -> Collection[str] | None:
            found = contexts.get(session_id)
            listed = () if found is None or found.tool_context is None else found.tool_context.tools
            return listed or None  # a context that lists none says nothing of them

        return cls(
            lambda session_id: worktree_of_session(session_id, contexts, graph, worktrees),
            ended=lambda session_id: contexts.state(session_id) == "expired",
            offered=offered,
            mode=mode,
            tokens=tokens,
        )

    def boundaries(self, session_id: str | None, token: str | None) -> WorktreeSandboxContext | None:
        """The session's boundaries; None for a call that is served without any.

        Args:
            session_id: from the header, or fixed at start; None without one.
            token: from the header. Not looked at when there are no tokens.

        Raises:
            ToolFailed: `WORKTREE_UNRESOLVED`.
        """
        name = (session_id or "").strip()
        if not self._proven(name, token):
            raise _unresolved(name, "it is unknown, or its token is missing or wrong")
        if name:
            try:
                found = self._find(name)
            except Refusal as refusal:
                raise _unresolved(name, refusal.message) from None
            if found is not None and str(found.worktree_path) not in ("", "."):
                return found
            if self._ended(name):
                raise _unresolved(name, "it has ended")
        if self.mode is Mode.COMPATIBLE:
            return None
        raise _unresolved(name, "no worktree is known for it")

    def offered(self, session_id: str | None) -> Collection[str]:
        """The tools that a session is offered."""
        found = self._offered((session_id or "").strip())
        return CALLS if found is None else [tool for tool in CALLS if tool in found]

    def check_offered(self, session_id: str | None, tool: str) -> None:
        """Refuses (ToolFailed, ACCESS_DENIED) a tool that the session is not offered."""
        offered = self.offered(session_id)
        if tool in CALLS and tool not in offered:
            why = f"this session is not offered the tool {tool}; it has: {', '.join(sorted(offered)) or 'none'}"
            raise ToolFailed(ErrorType.ACCESS_DENIED, why)

    def _proven(self, name: str, token: str | None) -> bool:
        if self.tokens is None:
            return True
        if self.mode is Mode.COMPATIBLE and not self.tokens.knows(name):
            return self.tokens.matches(LEGACY, token)
        return self.tokens.matches(name, token)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _unresolved(name: str, why: str) -> ToolFailed:
    if not name:
        return ToolFailed(
            ErrorType.WORKTREE_UNRESOLVED, "the worktree could not be resolved: the request names no session"
        )
    shown = printable(escaped(name[:200]))
    return ToolFailed(ErrorType.WORKTREE_UNRESOLVED, f"the worktree of session {shown} could not be resolved: {why}")


MOST_CALLS = 16
"""Calls of one session at the same time."""


class Router:
    """Answers calls for all sessions. Safe to share between threads.

    Args:
        enter: makes a jail with a worker.
        outside: makes a worker without a jail, for the mode `compatible`.
    """

    def __init__(
        self, sessions: Sessions, enter: Enter, outside: Callable[[], Room] | None = None, pool: Pool | None = None
    ) -> None:
        self._sessions = sessions
        self._enter = enter
        self._outside = outside
        self._pool = pool if pool is not None else Pool()
        self._counting = threading.Lock()
        self._under_way: Counter[str] = Counter()

    def offered(self, session_id: str | None, token: str | None) -> Collection[str]:
        """The tools that a session is offered; all to who is not known, whose calls are answered with the reason."""
        try:
            self._sessions.boundaries(session_id, token)
        except ToolFailed:
            return CALLS
        return self._sessions.offered(session_id)

    def caller(self, session_id: str | None, token: str | None) -> str | None:
        """Whose call it is, `LEGACY` for callers without a session; None for who is not known, whom `call` tells."""
        try:
            context = self._sessions.boundaries(session_id, token)
        except ToolFailed:
            return None
        return LEGACY if context is None else (session_id or "").strip()

    def call(
        self,
        tool: str,
        arguments: Mapping[str, object],
        session_id: str | None,
        token: str | None,
        stop: Stop | None = None,
    ) -> Answer:
        """One call, answered whatever happens (FR-014).

        Args:
            session_id: from the header, or fixed at start.
            token: from the header.
            stop: ends a command that nobody waits for any more.
        """
        path = next((text for name, text in arguments.items() if name in PLACES and isinstance(text, str)), "")[
            :_ECHOED
        ]
        root = ""

        def failure(kind: ErrorType, message: str, note: str = "") -> Answer:
            operation = CALLS[tool].operation.value if tool in CALLS else tool[:_ECHOED]
            return error(kind, message, path=path, root=root, operation=operation, note=note)

        try:
            # Who nobody knows is not told what is wrong with his arguments.
            context = self._sessions.boundaries(session_id, token)
            root = "" if context is None else str(context.worktree_path)
            if context is not None:
                self._sessions.check_offered(session_id, tool)
            call = _checked(tool, arguments)
            name = LEGACY if context is None else (session_id or "").strip()
            with self.turn(name):
                return self._serve(name, context, call, stop)
        except ToolFailed as failed:
            return failure(failed.kind, failed.message, failed.note)
        except WorkerFailed as failed:
            log.warning("session %r: %s", session_id, failed)
            return failure(ErrorType.WORKER_FAILED, f"the session's worker failed: {failed}")
        except Refusal as refusal:
            log.warning("session %r: %s", session_id, refusal.message)
            return failure(ErrorType.WORKER_FAILED, "; ".join(filter(None, (refusal.message, refusal.context))))
        except Exception:
            log.exception("session %r: %s failed", session_id, tool)
            return failure(ErrorType.WORKER_FAILED, "this is a bug in Paddock; see its log")

    @contextmanager
    def turn(self, session_id: str) -> Iterator[None]:
        """Counts a session's calls under way: no session has more threads than these."""
        with self._counting:
            if self._under_way[session_id] >= MOST_CALLS:
                why = f"{MOST_CALLS} calls of this session are in progress; try again when one has ended"
                raise ToolFailed(ErrorType.BUSY, why)
            self._under_way[session_id] += 1
        try:
            yield
        finally:
            with self._counting:
                self._under_way -= Counter([session_id])

    def close(self) -> None:
        """Ends all workers and their jails."""
        self._pool.close()

    def _serve(self, session_id: str, context: WorktreeSandboxContext | None, call: Call, stop: Stop | None) -> Answer:
        if context is not None and (gone := _gone(context, call)) is not None:
            return gone
        with self._pool.lease(session_id, context, lambda: self._room(session_id, context)) as room:
            if isinstance(call, Shell):
                return _run(room, call, stop)
            try:
                answer = room.process.call(call)
                if answer.failed and answer.text.startswith(_DENIED):
                    room.refused(call)
                return answer
            except WorkerFailed:
                if call.reads_only:
                    raise
        # A worker that was killed while it wrote may have left a file with a name of ours.
        try:
            with self._pool.lease(session_id, context, lambda: self._room(session_id, context)) as room:
                room.process.call(call, sweep=True)
        except WorkerFailed as failed:
            log.warning("session %r: cleaning up after its worker failed: %s", session_id, failed)
        raise WorkerFailed(
            "it ended during the call, which may or may not have taken effect; check before trying again"
        )

    def _room(self, session_id: str, context: WorktreeSandboxContext | None) -> Room:
        if context is not None:
            return self._enter(session_id, context)
        if self._outside is None:
            raise ToolFailed(ErrorType.WORKTREE_UNRESOLVED, "calls without a worktree are not served here")
        return self._outside()


_DENIED = denied(SandboxValidationResult.deny("", "", "")).text.partition(', "attemptedPath"')[0]
_MOST_ARGUMENTS = 100
_ECHOED = 8192  # characters of a wrong argument that are said back


def _checked(tool: str, arguments: Mapping[str, object]) -> Call:
    if len(arguments) > _MOST_ARGUMENTS:  # pydantic makes a kilobyte of each that no tool has
        raise ToolFailed(ErrorType.INVALID_ARGUMENT, f"{len(arguments)} arguments: no tool has so many")
    kind = CALLS.get(tool)
    if kind is None:
        raise ToolFailed(ErrorType.UNKNOWN_TOOL, f"there is no tool {tool[:100]}; there are {', '.join(CALLS)}")
    try:
        return kind.model_validate(dict(arguments))
    except ValidationError as refused:
        lines = [f"{'.'.join(map(str, each['loc'])) or tool}: {each['msg']}" for each in refused.errors()]
        raise ToolFailed(ErrorType.INVALID_ARGUMENT, "; ".join(lines)) from None


def _gone(context: WorktreeSandboxContext, call: Call) -> Answer | None:
    """The denial for a worktree that is not there any more; its boundaries stay, so nothing is let out instead."""
    root = str(context.worktree_path)
    if identity(root) is not None and os.path.isdir(root) and not os.path.islink(root):
        return None
    reason = Reason.ROOT_MISSING if identity(root) is None else Reason.ROOT_REPLACED
    return denied(SandboxValidationResult.deny(call.path, root, call.operation.value, reason=reason))


def _run(room: Room, call: Shell, stop: Stop | None) -> Answer:
    if "\0" in call.command:
        raise ToolFailed(ErrorType.INVALID_ARGUMENT, "a command cannot contain a NUL character")
    start = room.process.call(call)  # the worker says where that is; the jail's init holds it to the worktree again
    if start.failed:
        if start.text.startswith(_DENIED):
            room.refused(call)
        return start
    if not start.text.startswith("/") or not start.text.isprintable():
        raise ToolFailed(ErrorType.INVALID_ARGUMENT, "a command cannot be started in a directory with such a name")
    return run(room.command(call.command, start.text), "/", call.timeout_seconds, stop)
