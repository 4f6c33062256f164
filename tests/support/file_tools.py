"""The file tools as a client meets them: the official SDK's client, over standard streams and over HTTP."""

import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, TextIO
from unittest import mock

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from launcher import programmes
from launcher.bridges.files import workers
from launcher.bridges.files.file_worker import FileTools
from launcher.bridges.files.mcp_server import SESSION_HEADER, TOKEN_HEADER
from launcher.bridges.files.router import Mode, Router, Sessions
from launcher.bridges.files.scope import Scope
from launcher.bridges.files.tool_calls import CALLS, Answer, Call
from launcher.bridges.files.workers import Jails, Room, WorkerProcess
from launcher.session.places import Places
from policy.sandbox_context import MainWorktreeContext, SubmoduleWorktreeContext, WorktreeSandboxContext
from tests.support import warmed
from tests.support.identity import Word
from tests.support.install import Installed
from tests.support.paddock import Paddock

# File tools in this process, over a directory that stands for a worktree: for the tools' own rules, without a jail.


def boundaries(root: Path, *, closed: Iterable[str] = (), denied: Iterable[Path] = ()) -> WorktreeSandboxContext:
    """The context of a worktree at `root`, whose submodules `closed` are not granted."""
    modules = tuple(
        SubmoduleWorktreeContext(
            submodule_name=name,
            worktree_id=f"w.{name}",
            worktree_path=root / name,
            main_worktree_id="w",
            granted=False,
        )
        for name in closed
    )
    return WorktreeSandboxContext(
        main_worktree=MainWorktreeContext(
            worktree_id="w",
            worktree_path=root,
            submodule_worktree_ids=tuple(module.worktree_id for module in modules),
        ),
        ungranted_submodules=modules,
        denied_paths=tuple(denied),
    )


class Files:
    """Calls of tools on one scope."""

    def __init__(self, scope: Scope) -> None:
        self.tools = FileTools(scope)

    def __call__(self, tool: str, **arguments: object) -> Answer:
        """One call, as the worker does it."""
        return self.tools.answer(CALLS[tool].model_validate(arguments))

    def text(self, tool: str, **arguments: object) -> str:
        """The text of a call that succeeds."""
        answer = self(tool, **arguments)
        assert not answer.failed, answer.text
        return answer.text

    def error(self, tool: str, **arguments: object) -> str:
        """The errorType of a call that fails, in whose JSON nothing is missing."""
        answer = self(tool, **arguments)
        assert answer.failed, answer.text
        return error_of(answer)


def error_of(answer: Answer) -> str:
    """The errorType of an error with all six keys."""
    told = json.loads(answer.text)
    assert list(told) == ["error", "errorType", "attemptedPath", "sandboxRoot", "operation", "message"]
    assert told["error"] is True
    assert told["message"]
    return str(told["errorType"])


# Directories for the file tools' router without a jail: workers of this suite's own, honest ones and others.

ROOT = Path(__file__).resolve().parents[2]
PATH = f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
WORKER = [sys.executable, "-c", PATH + "from launcher.bridges.files import file_worker; sys.exit(file_worker.main())"]

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
        self._root = scope.root
        self._identity = workers.identity(scope.root)

    @property
    def usable(self) -> bool:
        return not self.process.ended and workers.identity(self._root) == self._identity

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


# A router in this process whose workers run in real jails, from the installed wheel.


@contextmanager
def jails(installed: Installed, home: Path) -> Iterator[Jails]:
    """Makes jails for the suite's own user, whose home this is (as HOME of this process).

    The sources under test are not installed beside the suite's interpreter, so the wheel's stands for it.
    """
    python = str(installed.python)
    start = (python, "-I", "-m")
    places = Places(str(home), f"{home}/.config/paddock", f"{home}/.local/state/paddock", f"{home}/.cache/paddock")
    with (
        mock.patch.object(programmes, "paddock", lambda *words: [str(installed.paddock), *words]),
        mock.patch.object(workers, "WORKER", (*start, "launcher.bridges.files.file_worker")),
        mock.patch.object(workers, "BEGIN", (*start, "launcher.bridges.files.workers")),
        mock.patch.object(workers, "_code", list),
        mock.patch.dict("os.environ", {"HOME": str(home)}),
    ):
        yield Jails(places, {"--git": "readonly"})


PATIENCE = 60.0
_Heard = MemoryObjectReceiveStream[SessionMessage | Exception]
_SERVING = ("launcher.verbs.forms", "launcher.verbs.files", "launcher.bridges.files.file_service")


class Said(NamedTuple):
    """One answer of a tool.

    Attributes:
        failed: the protocol's own flag.
        text: the first piece of content.
        note: the second one, or empty.
    """

    failed: bool
    text: str
    note: str

    @property
    def error(self) -> str:
        """The errorType of an error, in whose JSON nothing is missing; empty when it is none."""
        if not self.failed:
            return ""
        told = json.loads(self.text)
        assert told["error"] is True
        assert {"errorType", "attemptedPath", "sandboxRoot", "operation", "message"} <= set(told)
        assert told["message"]
        return str(told["errorType"])

    @property
    def told(self) -> dict[str, object]:
        """The error's JSON."""
        found = json.loads(self.text)
        assert isinstance(found, dict)
        return found


class Caller:
    """A connected client."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def __call__(self, tool: str, **arguments: object) -> Said:
        """Calls a tool."""
        result = await self.client.call_tool(tool, arguments, read_timeout_seconds=PATIENCE)
        texts = [piece.text for piece in result.content if piece.type == "text"]
        assert 1 <= len(texts) <= 2
        return Said(bool(result.is_error), texts[0], texts[1] if len(texts) > 1 else "")


@asynccontextmanager
async def over_stdio(
    paddock: Paddock,
    *words: Word,
    env: Mapping[str, str] | None = None,
    mode: str = "auto",
    inside: Sequence[Word] = (),
    errors: TextIO = sys.stderr,
) -> AsyncIterator[Caller]:
    """A client of `paddock files WORDS...`, started in the worktree; `inside` stands in front of that command.

    Without that, it is a child of a process that has its code (`warmed`): importing that takes longer than the rest.
    """
    if not inside and not warmed.APART:
        async with Client(_loaded(paddock, words, env or {}, errors), mode=mode) as client:
            yield Caller(client)
        return
    command, *arguments = paddock.who.command([*inside, *paddock.words("files", *words)])
    parameters = StdioServerParameters(
        command=command,
        args=arguments,
        cwd=paddock.worktree,
        env=paddock.who.environment({**paddock.env, **(env or {})}),
    )
    async with Client(stdio_client(parameters, errlog=errors), mode=mode) as client:
        yield Caller(client)


def _start(paddock: Paddock, words: Sequence[Word], env: Mapping[str, str], *streams: int) -> warmed.Process:
    who, python = paddock.who, paddock.installed.python
    env = {**paddock.env, **env}
    return warmed.start(who, python, ["files", *words], cwd=paddock.worktree, env=env, loaded=_SERVING, streams=streams)


def served(paddock: Paddock, *words: Word) -> warmed.Process:
    """`paddock files WORDS...` with pipes for its streams, in a process that has its code."""
    who, python = paddock.who, paddock.installed.python
    return warmed.piped(who, python, ["files", *words], cwd=paddock.worktree, env=paddock.env, loaded=_SERVING)


@asynccontextmanager
async def _loaded(
    paddock: Paddock, words: Sequence[Word], env: Mapping[str, str], errors: TextIO
) -> AsyncIterator[tuple[_Heard, MemoryObjectSendStream[SessionMessage]]]:
    """The SDK's transport to a server on standard streams, which ends when its input does."""
    (taken, feed), (said, told) = os.pipe(), os.pipe()
    process = _start(paddock, words, env, taken, told, errors.fileno())
    os.close(taken)
    os.close(told)
    os.set_blocking(feed, False)
    heard, hears = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    asks, asked = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        rest, ended = b"", False
        async with heard:
            while not ended:
                await anyio.wait_readable(said)
                ended = not (piece := os.read(said, 1 << 16))
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    await heard.send(SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False)))

    async def write() -> None:
        async for item in asked:
            data = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
            while data:
                await anyio.wait_writable(feed)
                data = data[os.write(feed, data) :]

    try:
        async with anyio.create_task_group() as group, hears, asks, asked:
            group.start_soon(read)
            group.start_soon(write)
            yield hears, asks
            group.cancel_scope.cancel()
    finally:
        os.close(feed)
        try:
            process.wait(PATIENCE)
        finally:
            process.kill()
            os.close(said)


class Server:
    """`paddock files --http ADDRESS WORDS...`, started in the worktree. A context manager, which ends it.

    Attributes:
        ready: what it said when it was ready.
    """

    def __init__(
        self, paddock: Paddock, *words: Word, address: str = "127.0.0.1:0", env: Mapping[str, str] | None = None
    ) -> None:
        source, told = os.pipe()
        self._told, self._errors = os.fdopen(source), os.memfd_create("errors")
        with open(os.devnull) as nothing:
            streams = (nothing.fileno(), told, self._errors)
            self.process = _start(paddock, ["--http", address, *words], env or {}, *streams)
        os.close(told)

    def __enter__(self) -> "Server":
        line = self._told.readline()
        assert line, self._said()
        self.ready = json.loads(line)
        return self

    def _said(self) -> bytes:
        return os.pread(self._errors, 1 << 20, 0)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(PATIENCE)
        finally:
            self.process.kill()
        errors = self._said()
        self._told.close()
        os.close(self._errors)
        if kind is None:
            assert b"Traceback" not in errors, errors.decode()

    @property
    def url(self) -> str:
        """Where it answers."""
        return str(self.ready["url"])

    def headers(self, session: str) -> dict[str, str]:
        """What proves that a request is of this session."""
        return {SESSION_HEADER: session, TOKEN_HEADER: self.ready["tokens"][session]}

    @asynccontextmanager
    async def client(
        self, headers: Mapping[str, str] | list[tuple[str, str]], socket: Path | None = None, mode: str = "auto"
    ) -> AsyncIterator[Caller]:
        """A client whose every request bears these headers; with the mode "legacy" one of the protocol's older days."""
        transport = httpx2.AsyncHTTPTransport(uds=None if socket is None else str(socket))
        given = headers if isinstance(headers, list) else dict(headers)
        async with (
            httpx2.AsyncClient(headers=given, timeout=PATIENCE, transport=transport) as http,
            Client(streamable_http_client(self.url, http_client=http), mode=mode) as client,
        ):
            yield Caller(client)
