"""Rooms for the file tools' router without a jail: workers of this suite's own, honest ones and others."""

import sys
from pathlib import Path

from launcher.bridges.files.calls import Call
from launcher.bridges.files.pool import Room
from launcher.bridges.files.process import WorkerProcess
from launcher.bridges.files.router import Router
from launcher.bridges.files.scope import Scope
from launcher.bridges.files.sessions import Mode, Sessions
from policy.worktree import WorktreeSandboxContext
from tests.support.file_scope import boundaries

ROOT = Path(__file__).resolve().parents[2]
PATH = f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
WORKER = [sys.executable, "-c", PATH + "from launcher.bridges.files import worker; sys.exit(worker.main())"]

# Reads the scope, says hello, then does to the first request what the test says.
HOSTILE = PATH + (
    "import os, time, json\n"
    "def take():\n"
    "    n = int.from_bytes(os.read(0, 5)[1:], 'little'); data = b''\n"
    "    while len(data) < n: data += os.read(0, n - len(data))\n"
    "    return data\n"
    "def say(text): os.write(1, b'J' + len(text).to_bytes(4, 'little') + text)\n"
    'take(); say(b\'{"ready": true, "pid": 1}\')\n'
    "request = json.loads(take())\n"
)


class Stand:
    """A room without a jail: a worker that this test starts.

    Args:
        scope: its boundaries.
        argv: what is started.
    """

    def __init__(self, scope: Scope, argv: list[str] | None = None) -> None:
        self.process = WorkerProcess(argv or WORKER, scope, "/")
        self.refusals: list[str] = []

    @property
    def usable(self) -> bool:
        return not self.process.ended

    def refused(self, call: Call) -> None:
        self.refusals.append(call.path)

    def command(self, line: str, directory: str) -> list[str]:
        return ["env", "-C", directory, "sh", "-c", line]


def routed(root: Path, argv: list[str] | None = None, mode: Mode = Mode.STRICT) -> Router:
    """A router with one session, `one`, in `root`."""
    context = boundaries(root)

    def enter(session_id: str, found: WorktreeSandboxContext) -> Room:
        assert (session_id, found) == ("one", context)
        return Stand(Scope(context=found), argv)

    known = {"one": context}
    outside = (lambda: Stand(Scope(context=None, base=str(root)))) if mode is Mode.COMPATIBLE else None
    return Router(Sessions(known.get, mode=mode), enter, outside)
