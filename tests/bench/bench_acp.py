"""What the ACP bridge costs: `python -m tests.bench acp`.

The same scripted agent, in turn, on pipes of its own and behind `paddock acp`: round trips of a message that passes, of
a request for a file (left to the editor), session updates in bulk, and what memory the process has after them.
"""

import json
import time
from functools import partial
from pathlib import Path
from typing import IO

from tests.bench import harness
from tests.bench.harness import Result
from tests.support import identity

NO_BRIDGE = "an agent without a bridge"
MEGABYTES = 20
UPDATE = 1000  # bytes of text in one update

# Echoes; `_ask` asks the client for a file, and tells when the answer is there; `_fill` writes updates.
AGENT = """
import json, sys
read, write, flush = sys.stdin.buffer.readline, sys.stdout.buffer.write, sys.stdout.buffer.flush
while line := read():
    if b"_ask" in line:
        write(b'{"jsonrpc":"2.0","id":1,"method":"fs/read_text_file","params":{"sessionId":"s","path":"PATH"}}\\n')
        flush()
        line = read()
    elif b"_fill" in line:
        count, size = json.loads(line)["params"]
        update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "x" * size}}
        text = {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": update}}
        data = json.dumps(text).encode() + b"\\n"
        for _ in range(count):
            write(data)
    write(line)
    flush()
"""


class Line:
    """An agent at the end of two pipes."""

    def __init__(self, argv: list[str], who: identity.Who, cwd: Path) -> None:
        self.process = who.start(argv, cwd=cwd)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin: IO[bytes] = self.process.stdin
        self.stdout: IO[bytes] = self.process.stdout

    def trip(self) -> None:
        self.stdin.write(b'{"jsonrpc":"2.0","id":1,"method":"session/prompt","params":{"text":"hello"}}\n')
        self.stdin.flush()
        assert self.stdout.readline()

    def ask(self) -> None:
        self.stdin.write(b'{"jsonrpc":"2.0","method":"_ask"}\n')
        self.stdin.flush()
        assert b"fs/read_text_file" in self.stdout.readline()
        self.stdin.write(b'{"jsonrpc":"2.0","id":1,"result":{"content":"text"}}\n')
        self.stdin.flush()
        assert b"content" in self.stdout.readline()

    def fill(self) -> float:
        """Seconds for many session updates."""
        count = (MEGABYTES << 20) // UPDATE
        self.stdin.write(json.dumps({"method": "_fill", "params": [count, UPDATE]}).encode() + b"\n")
        self.stdin.flush()
        start = time.perf_counter()
        while b"_fill" not in self.stdout.readline():
            pass
        return time.perf_counter() - start

    def end(self) -> None:
        self.process.communicate(timeout=60)


def rows(quick: bool = False) -> list[Result]:
    """Both lines at the same time."""
    with harness.scene() as paddock:
        agent = paddock.worktree / "agent.py"
        agent.write_text(AGENT.replace("PATH", str(paddock.worktree / "file")))
        plain = ["/usr/bin/python3", "-I", "-S", str(agent)]
        ways = {"direct": plain, "bridge": paddock.words("acp", "--fs", "editor", "--", *plain)}
        lines = {name: Line(argv, paddock.who, paddock.worktree) for name, argv in ways.items()}
        rounds, found = 200 if quick else 2000, []
        for what, act, often in (
            ("a round trip", Line.trip, rounds),
            ("a request for a file", Line.ask, rounds),
            (f"{MEGABYTES} MiB of updates", Line.fill, 3),
        ):
            taken = harness.turns({name: partial(act, line) for name, line in lines.items()}, often)
            found += harness.against({NO_BRIDGE: taken["direct"], what: taken["bridge"]}, prefix="ACP, ")
        held = [[harness.memory([line.process.pid])] for line in lines.values()]
        for line in lines.values():
            line.end()
        names = (NO_BRIDGE, "memory of the bridge")
        return found + harness.against(dict(zip(names, held, strict=True)), prefix="ACP, ", unit="MiB")


if __name__ == "__main__":
    harness.main(rows)
