"""What the ACP bridge costs: `python -m tests.bench.bench_acp [MEGABYTES]` in the repository.

The same scripted agent, in the same minute, on pipes of its own and behind `paddock acp`: round trips of a message that
passes, of a request for a file (left to the editor), session updates in bulk, what memory the bridge has before and
after them, and what it does while nobody says anything.
"""

import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from tests.support import identity, install
from tests.support import paddock as paddocks

ROUNDS = 2000
IDLE = 3.0  # seconds
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

    def fill(self, megabytes: int) -> float:
        """Seconds for so many megabytes of session updates."""
        count = (megabytes << 20) // UPDATE
        self.stdin.write(json.dumps({"method": "_fill", "params": [count, UPDATE]}).encode() + b"\n")
        self.stdin.flush()
        start = time.perf_counter()
        while b"_fill" not in self.stdout.readline():
            pass
        return time.perf_counter() - start

    def memory(self) -> int:
        """KiB of memory that the process has."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(next(line for line in text.splitlines() if line.startswith("VmRSS")).split()[1])

    def idle(self) -> float:
        """Milliseconds of processor time that the process uses in a while without any message."""
        before = self._used()
        time.sleep(IDLE)
        return self._used() - before

    def _used(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        self.process.communicate(timeout=60)


def median(what: Callable[[], None], rounds: int) -> float:
    """Microseconds."""
    taken: list[float] = []
    for number in range(-50, rounds):
        start = time.perf_counter()
        what()
        if number >= 0:
            taken.append(time.perf_counter() - start)
    return statistics.median(taken) * 1e6


def main(megabytes: int) -> None:
    """Measures and prints."""
    place = Path(tempfile.mkdtemp(prefix="bench-acp-", dir=install.public_root()))
    place.chmod(0o755)
    try:
        home = place / "home"
        who = identity.root(home) if os.geteuid() == 0 else identity.user(home)
        work = place / "work"
        work.mkdir()
        paddock = paddocks.make(who, install.install(), who.give(work))
        agent = paddock.worktree / "agent.py"
        agent.write_text(AGENT.replace("PATH", str(paddock.worktree / "file")))
        plain = ["/usr/bin/python3", "-I", "-S", str(agent)]
        figures: dict[str, dict[str, Any]] = {}
        for name, argv in (("direct", plain), ("bridge", paddock.words("acp", "--fs", "editor", "--", *plain))):
            start = time.perf_counter()
            line = Line(argv, who, paddock.worktree)
            line.trip()
            found: dict[str, Any] = {"first reply, ms": (time.perf_counter() - start) * 1e3}
            found["round trip, us"] = median(line.trip, ROUNDS)
            found["file asked for, us"] = median(line.ask, ROUNDS)
            before = line.memory()
            found["updates, MB/s"] = megabytes / line.fill(megabytes)
            found["memory, MiB"] = line.memory() / 1024
            found["grown by, KiB"] = line.memory() - before
            found[f"in {IDLE:.0f} idle seconds, ms"] = line.idle()
            line.end()
            figures[name] = found
        width = max(map(len, figures["direct"]))
        print(f"{'':{width}}  {'direct':>10}  {'bridge':>10}  {'ratio':>6}  {'more':>10}")
        for key, value in figures["direct"].items():
            other = figures["bridge"][key]
            ratio = f"{other / value:6.2f}" if value else "     -"
            print(f"{key:{width}}  {value:10.1f}  {other:10.1f}  {ratio}  {other - value:10.1f}")
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
