"""Editors that speak ACP (https://agentclientprotocol.com).

`PlainEditor` has an agent of the suite send any bytes. `Editor`, on the official SDK, gives an agent all it offers: it
runs outside of every jail, allows each permission that is asked for, writes and reads any file, and runs any command.
What it was asked for is recorded, so that a test can tell who came through to it.
"""

import asyncio
import asyncio.subprocess
import base64
import itertools
import json
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import acp
from acp import schema
from acp.client.connection import ClientSideConnection

from tests.support import warmed
from tests.support.identity import Word
from tests.support.paddock import Paddock

# An editor for tests: speaks ACP over pipes, and really opens the files that it is asked for, with its own rights.

ANSWER_SECONDS = 60.0
AGENT = Path(__file__).parent / "programs" / "acp_agent.py"
PYTHON = "/usr/bin/python3"
_SERVING = ("launcher.verbs.forms", "launcher.verbs.acp", "launcher.bridges.acp.bridge", "acp.schema")


class PlainEditor:
    """`paddock acp -- AGENT` and the client's end of it. A context manager: at its end everything has ended.

    Args:
        paddock: the command.
        options: of `paddock acp`.
        env: variables on top of the user's, a choice of backend among them.
        arguments: of the scripted agent.
    """

    def __init__(
        self,
        paddock: Paddock,
        *options: Word,
        env: Mapping[str, str] | None = None,
        arguments: Sequence[Word] = (),
        own_default: bool = False,
        apart: bool = False,
    ) -> None:
        """Most tests are about what an editor is asked; `own_default` leaves --fs to `paddock acp`.

        It is started in a process that has its code, unless `apart`: where it is measured what it has in memory.
        """
        self.paddock = paddock
        agent = paddock.worktree / "agent.py"
        agent.write_text(AGENT.read_text())
        paddock.who.give(agent)
        files = () if "--fs" in options or own_default else ("--fs", "editor")
        words = ("acp", *files, *options, "--", PYTHON, "-I", "-S", "agent.py", *arguments)
        who, cwd, env = paddock.who, paddock.worktree, {**paddock.env, **(env or {})}
        self.process: warmed.Process | subprocess.Popen[bytes] = (
            who.start(paddock.words(*words), cwd=cwd, env=env)
            if apart or warmed.APART
            else warmed.piped(who, paddock.installed.python, words, cwd=cwd, env=env, loaded=_SERVING)
        )
        self._rest = bytearray()

    def __enter__(self) -> "PlainEditor":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> tuple[int, bytes]:
        """Closes the editor's side; returns the status and what was said on standard error."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        if not self.process.stdin.closed:
            try:
                self.process.stdin.close()
            except BrokenPipeError:
                pass
        try:
            status = self.process.wait(ANSWER_SECONDS)
        finally:
            self.process.kill()
            self.process.wait()
        said = b"" if self.process.stderr.closed else self.process.stderr.read()
        self.process.stdout.close()
        self.process.stderr.close()
        return status, said

    def send(self, message: bytes | Mapping[str, Any]) -> None:
        """Writes a line: an object as JSON, bytes as they are."""
        assert self.process.stdin is not None
        data = message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n"
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def line(self, patience: float = ANSWER_SECONDS) -> bytes:
        """The next line; b"" at the end."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + patience
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"nothing came; so far {bytes(self._rest[:200])!r}"
            data = self.process.stdout.read1(65536)  # type: ignore[attr-defined]  # a BufferedReader
            if not data:
                return b""
            self._rest += data
        end = self._rest.index(b"\n") + 1
        line = bytes(self._rest[:end])
        del self._rest[:end]
        return line

    def read(self) -> dict[str, Any]:
        """The next line's object."""
        found = json.loads(self.line())
        assert isinstance(found, dict)
        return found

    def say(self, *lines: bytes | Mapping[str, Any], newline: bool = True) -> None:
        """Has the agent write these lines: objects as JSON, bytes as they are."""
        data = b"".join(
            line if isinstance(line, bytes) else json.dumps(line).encode() + (b"\n" if newline else b"")
            for line in lines
        )
        self.send({"jsonrpc": "2.0", "method": "_say", "params": {"data": base64.b64encode(data).decode()}})

    def got(self) -> bytes:
        """The next line that the agent tells to have read."""
        message = self.read()
        assert message.get("method") == "_got", message
        return base64.b64decode(message["params"]["line"])

    def answer(self, *messages: bytes | Mapping[str, Any]) -> dict[str, Any]:
        """Has the agent send a request; returns what came back to it: the bridge's answer, or this editor's own."""
        self.say(*messages)
        while True:
            message = self.read()
            if message.get("method") == "_got":
                found = json.loads(base64.b64decode(message["params"]["line"]))
                assert isinstance(found, dict)
                return found
            self.send(self._open(message))

    def _open(self, message: dict[str, Any]) -> dict[str, Any]:
        """Does what an editor does with a request for a file: nothing but opening it by its path."""
        params = message["params"]
        path = Path(params["path"])
        reply = {"jsonrpc": "2.0", "id": message["id"]}
        if message["method"] == "fs/write_text_file":
            path.write_text(params["content"])
            return {**reply, "result": {}}
        assert message["method"] == "fs/read_text_file", message
        return {**reply, "result": {"content": path.read_text()}}


def request(method: str, number: int | str = 1, **params: object) -> dict[str, Any]:
    """A JSON-RPC request."""
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def peak(pid: int) -> int:
    """KiB of memory that a process had at most: half as many without any traffic, for the interpreter and libraries."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


# What different clients would make of the same bytes: readers from careful to careless, as an oracle.


def _first_wins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        found.setdefault(key, value)
    return found


def _forgiving(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key.strip().casefold(): value for key, value in pairs}


_DECODERS: tuple[Callable[[bytes], str], ...] = (
    lambda data: data.decode("utf-8", "replace"),
    lambda data: data.decode("utf-8", "ignore"),
    lambda data: data.decode("utf-8-sig", "replace"),
    lambda data: data.decode("latin-1"),
    lambda data: data.replace(b"\0", b"").decode("utf-8", "ignore"),
)
_SPLITTERS: tuple[Callable[[str], list[str]], ...] = (
    lambda text: text.split("\n"),
    lambda text: re.split("\r\n|\n|\r|\u2028|\u2029", text),
    str.splitlines,
)
_HOOKS = (dict, _first_wins, _forgiving)


def messages(data: bytes) -> Iterator[dict[str, Any]]:
    """Every object that some reader would take for a message."""
    seen: set[str] = set()
    for decode in _DECODERS:
        text = decode(data)
        for split in _SPLITTERS:
            for line in split(text):
                if line in seen:
                    continue
                seen.add(line)
                for hook in _HOOKS:
                    yield from _read(line.strip(), hook)


def _read(line: str, hook: Callable[[list[tuple[str, Any]]], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The first value of a line: a reader of streams takes it, whatever follows."""
    if not line:
        return
    decoder = json.JSONDecoder(object_pairs_hook=hook, strict=False)
    try:
        value, _ = decoder.raw_decode(line)
    except (ValueError, RecursionError):
        return
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, dict):
            yield each


def method(message: dict[str, Any]) -> str:
    """The method that a careless dispatcher would call."""
    found = message.get("method")
    if isinstance(found, list) and len(found) == 1:
        found = found[0]  # JavaScript: a list as a key is its text
    return found.strip("\0 \t").casefold() if isinstance(found, str) else ""


PATIENCE = 60.0
LINE_LIMIT = 64 * 1024 * 1024
ALL = schema.ClientCapabilities(
    fs=schema.FileSystemCapabilities(read_text_file=True, write_text_file=True), terminal=True
)
NONE = schema.ClientCapabilities(
    fs=schema.FileSystemCapabilities(read_text_file=False, write_text_file=False), terminal=False
)


@dataclass
class Editor:
    """The client's side of a connection.

    Attributes:
        written, read, run: what it did for the agent outside of the jail: paths, and command lines.
        allowed: titles of the tool calls that it was asked about.
        updates: every `session/update`.
        extensions: methods beyond the protocol.
    """

    written: list[str] = field(default_factory=list)
    read: list[str] = field(default_factory=list)
    run: list[str] = field(default_factory=list)
    allowed: list[str] = field(default_factory=list)
    updates: list[Any] = field(default_factory=list)
    extensions: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._terminals: dict[str, tuple[asyncio.subprocess.Process, asyncio.Task[bytes]]] = {}
        self._numbers = itertools.count(1)

    def on_connect(self, _conn: object) -> None:
        """Nothing to do."""

    async def session_update(self, session_id: str, update: object, **_kwargs: object) -> None:
        """Remembers."""
        self.updates.append(update)

    async def request_permission(
        self, session_id: str, tool_call: schema.ToolCallUpdate, options: Sequence[schema.PermissionOption], **_: object
    ) -> schema.RequestPermissionResponse:
        """Allows, for ever where that is offered."""
        self.allowed.append(tool_call.title or "")
        wanted = [option for kind in ("allow_always", "allow_once") for option in options if option.kind == kind]
        chosen = schema.AllowedOutcome(option_id=wanted[0].option_id, outcome="selected")
        return schema.RequestPermissionResponse(outcome=chosen)

    async def write_text_file(self, session_id: str, path: str, content: str, **_: object) -> None:
        """Writes, wherever that is."""
        self.written.append(path)
        try:
            Path(path).write_text(content)
        except OSError as error:
            raise acp.RequestError.internal_error({"details": str(error)}) from error

    async def read_text_file(
        self, session_id: str, path: str, line: int | None = None, limit: int | None = None, **_: object
    ) -> schema.ReadTextFileResponse:
        """Reads, wherever that is. As in an editor, a file that is not there yet is an empty buffer."""
        self.read.append(path)
        try:
            lines = Path(path).read_text().splitlines(keepends=True)
        except FileNotFoundError:
            lines = []
        except OSError as error:
            raise acp.RequestError.internal_error({"details": str(error)}) from error
        start = (line or 1) - 1
        return schema.ReadTextFileResponse(content="".join(lines[start : start + limit if limit else None]))

    async def create_terminal(
        self,
        session_id: str,
        command: str,
        args: Sequence[str] | None = None,
        env: Sequence[schema.EnvVariable] | None = None,
        cwd: str | None = None,
        output_byte_limit: int | None = None,
        **_: object,
    ) -> schema.CreateTerminalResponse:
        """Runs a command as the editor."""
        self.run.append(" ".join([command, *(args or ())]))
        words = [command, *args] if args else ["sh", "-c", command]
        process = await asyncio.create_subprocess_exec(
            *words,
            cwd=cwd,
            env={**os.environ, **{item.name: item.value for item in env or ()}},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert process.stdout is not None
        name = f"terminal-{next(self._numbers)}"
        self._terminals[name] = process, asyncio.create_task(process.stdout.read())
        return schema.CreateTerminalResponse(terminal_id=name)

    async def terminal_output(self, session_id: str, terminal_id: str, **_: object) -> schema.TerminalOutputResponse:
        """What a command has said, once it has ended."""
        process, output = self._terminals[terminal_id]
        text = (await output).decode(errors="replace")
        status = schema.TerminalExitStatus(exit_code=await process.wait())
        return schema.TerminalOutputResponse(output=text, truncated=False, exit_status=status)

    async def wait_for_terminal_exit(
        self, session_id: str, terminal_id: str, **_: object
    ) -> schema.WaitForTerminalExitResponse:
        """Waits for a command."""
        process, output = self._terminals[terminal_id]
        await output
        return schema.WaitForTerminalExitResponse(exit_code=await process.wait())

    async def kill_terminal(self, session_id: str, terminal_id: str, **_: object) -> None:
        """Ends a command."""
        process, _output = self._terminals[terminal_id]
        if process.returncode is None:
            process.kill()

    async def release_terminal(self, session_id: str, terminal_id: str, **_: object) -> None:
        """Ends a command and forgets it."""
        await self.kill_terminal(session_id, terminal_id)
        process, output = self._terminals.pop(terminal_id)
        await output
        await process.wait()

    async def create_elicitation(self, *_arguments: object, **_kwargs: object) -> Any:  # noqa: ANN401  # as the SDK has it
        """Has nobody to ask."""
        raise acp.RequestError.method_not_found("elicitation/create")

    async def complete_elicitation(self, *_arguments: object, **_kwargs: object) -> None:
        """Has nobody who was asked."""

    async def ext_method(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Knows no extension."""
        self.extensions.append(method)
        raise acp.RequestError.method_not_found(method)

    async def ext_notification(self, method: str, params: dict[str, Any]) -> None:
        """Knows no extension."""
        self.extensions.append(method)


@dataclass(frozen=True)
class Conversation:
    """What came of one prompt.

    Attributes:
        editor: what it was asked for.
        initialized: the agent's answer to `initialize`.
        stop_reason: why the turn ended.
        status: exit status of the agent after its input was closed.
        stderr: of the agent.
    """

    editor: Editor
    initialized: schema.InitializeResponse
    stop_reason: str
    status: int
    stderr: str


def converse(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    root: Path | None = None,
    capabilities: schema.ClientCapabilities = ALL,
    login: str = "",
    stderr: Path,
) -> Conversation:
    """One session with one prompt, as an editor has it; then the agent's input is closed, and it has to end.

    Args:
        argv: the agent.
        cwd: where it is started.
        env: its whole environment.
        root: directory of the session, `cwd` by default.
        capabilities: what the editor offers.
        login: id of the method to authenticate with before the session.
        stderr: file for what the agent says on its standard error.

    Raises:
        TimeoutError: the agent has not answered, or not ended, within `PATIENCE`.
        acp.RequestError: the agent has refused.
    """
    return asyncio.run(_converse(argv, cwd, env, str(root or cwd), capabilities, login, stderr))


async def _converse(
    argv: Sequence[str],
    cwd: Path,
    env: Mapping[str, str],
    root: str,
    capabilities: schema.ClientCapabilities,
    login: str,
    stderr: Path,
) -> Conversation:
    editor = Editor()
    with stderr.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd=cwd,
            env=env,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            limit=LINE_LIMIT,
            start_new_session=True,
        )
    try:
        connection = ClientSideConnection(editor, process.stdin, process.stdout)
        async with asyncio.timeout(PATIENCE):
            initialized = await connection.initialize(
                protocol_version=acp.PROTOCOL_VERSION,
                client_capabilities=capabilities,
                client_info=schema.Implementation(name="test-editor", version="1"),
            )
            if login:
                await connection.authenticate(method_id=login)
            session = await connection.new_session(cwd=root, mcp_servers=[])
            answered = await connection.prompt(session_id=session.session_id, prompt=[acp.text_block("Do your work.")])
        assert process.stdin is not None
        process.stdin.close()
        async with asyncio.timeout(PATIENCE):
            status = await process.wait()
        await connection.close()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    return Conversation(editor, initialized, answered.stop_reason, status, stderr.read_text(errors="replace"))
