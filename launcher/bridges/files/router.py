"""The router: whose call is it, which worker does it, and what is said when anything goes wrong.

It touches no file of a worktree: it asks where the worktree is, and whether it is still there.
"""

import logging
import os
from collections.abc import Callable, Mapping

from pydantic import ValidationError

from launcher.bridges.files import shell
from launcher.bridges.files.callers import LEGACY, Sessions
from launcher.bridges.files.tool_calls import CALLS, Answer, Call, ErrorType, Shell, ToolFailed, denied, error
from launcher.bridges.files.worker_jails import identity
from launcher.bridges.files.worker_pool import Pool, Room, WorkerFailed
from policy.errors import Refusal
from policy.sandbox_context import WorktreeSandboxContext
from policy.violation import Reason, SandboxValidationResult

log = logging.getLogger(__name__)

Enter = Callable[[str, WorktreeSandboxContext], Room]
"""Makes a room for a session with these boundaries; see `launcher.bridges.files.worker_jails.Jails.enter`."""


class Router:
    """Answers calls for all sessions. Safe to share between threads.

    Args:
        sessions: from ids to boundaries.
        enter: makes a jail with a worker.
        outside: makes a worker without a jail, for the mode `compatible`.
        pool: the workers.
    """

    def __init__(
        self, sessions: Sessions, enter: Enter, outside: Callable[[], Room] | None = None, pool: Pool | None = None
    ) -> None:
        self._sessions = sessions
        self._enter = enter
        self._outside = outside
        self._pool = pool if pool is not None else Pool()

    def call(
        self,
        tool: str,
        arguments: Mapping[str, object],
        session_id: str | None,
        token: str | None,
        stop: shell.Stop | None = None,
    ) -> Answer:
        """One call, answered whatever happens (FR-014).

        Args:
            tool: its name.
            arguments: as they came.
            session_id: from the header, or fixed at start.
            token: from the header.
            stop: ends a command that nobody waits for any more.
        """
        path = next((text for name, text in arguments.items() if name in _PATHS and isinstance(text, str)), "")[
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
            call = _checked(tool, arguments)
            return self._serve(LEGACY if context is None else (session_id or "").strip(), context, call, stop)
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
            return failure(ErrorType.WORKER_FAILED, "this is a fault of Paddock; its log says more")

    def close(self) -> None:
        """Ends all workers and their jails."""
        self._pool.close()

    def _serve(
        self, session_id: str, context: WorktreeSandboxContext | None, call: Call, stop: shell.Stop | None
    ) -> Answer:
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
            log.warning("session %r: nobody could clean up after its worker: %s", session_id, failed)
        raise WorkerFailed("it ended during the call, which may have been done or not; look before trying again")

    def _room(self, session_id: str, context: WorktreeSandboxContext | None) -> Room:
        if context is not None:
            return self._enter(session_id, context)
        if self._outside is None:
            raise ToolFailed(ErrorType.WORKTREE_UNRESOLVED, "calls without a worktree are not served here")
        return self._outside()


_DENIED = denied(SandboxValidationResult.deny("", "", "")).text.partition(', "attemptedPath"')[0]
_ECHOED = 8192  # characters of a wrong argument that are said back
_PATHS = ("file_path", "directory", "target")


def _checked(tool: str, arguments: Mapping[str, object]) -> Call:
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


def _run(room: Room, call: Shell, stop: shell.Stop | None) -> Answer:
    if "\0" in call.command:
        raise ToolFailed(ErrorType.INVALID_ARGUMENT, "a command cannot hold a NUL character")
    start = room.process.call(call)  # the worker says where that is; the jail's init holds it to the worktree again
    if start.failed:
        if start.text.startswith(_DENIED):
            room.refused(call)
        return start
    if not start.text.startswith("/") or not start.text.isprintable():
        raise ToolFailed(ErrorType.INVALID_ARGUMENT, "a command cannot be started in a directory with such a name")
    return shell.run(room.command(call.command, start.text), "/", call.timeout_seconds, stop)
