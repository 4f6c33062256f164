"""The file tools as a client meets them: the official SDK's client, over standard streams and over HTTP."""

import json
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from launcher.bridges.files.server import SESSION_HEADER, TOKEN_HEADER
from tests.support.identity import Word
from tests.support.paddock import Paddock

PATIENCE = 60.0


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
) -> AsyncIterator[Caller]:
    """A client of `paddock files WORDS...`, started in the worktree; `inside` stands in front of that command."""
    command, *arguments = paddock.who.command([*inside, *paddock.words("files", *words)])
    parameters = StdioServerParameters(
        command=command,
        args=arguments,
        cwd=paddock.worktree,
        env=paddock.who.environment({**paddock.env, **(env or {})}),
    )
    async with Client(stdio_client(parameters), mode=mode) as client:
        yield Caller(client)


class Server:
    """`paddock files --http ADDRESS WORDS...`, started in the worktree. A context manager, which ends it.

    Attributes:
        ready: what it said when it was ready.
    """

    def __init__(
        self, paddock: Paddock, *words: Word, address: str = "127.0.0.1:0", env: Mapping[str, str] | None = None
    ) -> None:
        self.process: subprocess.Popen[bytes] = paddock.who.start(
            paddock.words("files", "--http", address, *words),
            cwd=paddock.worktree,
            env={**paddock.env, **(env or {})},
        )

    def __enter__(self) -> "Server":
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        self.ready = json.loads(line)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()
        try:
            _, errors = self.process.communicate(timeout=PATIENCE)
        finally:
            self.process.kill()
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
