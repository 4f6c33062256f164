"""An editor for tests: speaks ACP over pipes, and really opens the files that it is asked for, with its own rights."""

import base64
import json
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.identity import Word
from tests.support.paddock import Paddock

PATIENCE = 60.0
AGENT = Path(__file__).parent / "programs" / "acp_agent.py"
PYTHON = "/usr/bin/python3"


class Editor:
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
    ) -> None:
        """Most tests are about what an editor is asked; `own_default` leaves --fs to `paddock acp`."""
        self.paddock = paddock
        agent = paddock.worktree / "agent.py"
        agent.write_text(AGENT.read_text())
        paddock.who.give(agent)
        files = () if "--fs" in options or own_default else ("--fs", "editor")
        words = paddock.words("acp", *files, *options, "--", PYTHON, "-I", "-S", "agent.py", *arguments)
        self.process: subprocess.Popen[bytes] = paddock.who.start(
            words, cwd=paddock.worktree, env={**paddock.env, **(env or {})}
        )
        self._rest = bytearray()

    def __enter__(self) -> "Editor":
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
            status = self.process.wait(PATIENCE)
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

    def line(self, patience: float = PATIENCE) -> bytes:
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
