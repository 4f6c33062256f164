"""What an agent can try with the tools and with commands in the same jail: on the worker, on git, on hand-off files."""

import json
import os
import random
import signal
import subprocess
import threading
import time
from pathlib import Path

import anyio

from launcher import wire
from launcher.bridges.files import tool_calls, writing
from launcher.bridges.files.mcp_server import SESSION_HEADER, TOKEN_HEADER
from launcher.bridges.files.scope import Scope
from tests.support.file_tools import Caller, Server, boundaries, over_stdio
from tests.support.paddock import Paddock

# All that a command can think of doing to the processes beside it.
MISCHIEF = """
for process in /proc/[0-9]*; do
    pid=${process#/proc/}
    [ "$pid" = $$ ] && continue
    kill -9 "$pid" && echo "killed $pid"
    for fd in 0 1 2 3 4 5 6 7 8; do
        echo junk >"$process/fd/$fd" && echo "wrote to $pid"
    done
    head -c 1 "$process/mem" && echo "read memory of $pid"
    cat "$process/environ" && echo "read environment of $pid"
done 2>/dev/null
true
"""


async def mischief(paddock: Paddock, call: Caller) -> None:
    """A command can neither kill the worker, nor speak in its place, nor look into it; and the next call is served."""
    assert (await call("read", file_path="file")).text == "content\n"
    before = {path.name for path in (paddock.state / "sessions").iterdir()}
    said = await call("shell", command=MISCHIEF)
    assert said.text == "exit status 0\n"
    assert (await call("read", file_path="file")).text == "content\n"
    assert {path.name for path in (paddock.state / "sessions").iterdir()} == before  # it is the same jail


def test_a_command_cannot_touch_the_worker_without_namespaces(user_paddock: Paddock) -> None:
    """With them: below, beside git."""

    async def attack() -> None:
        async with over_stdio(user_paddock, env={"PADDOCK_NO_USERNS": "1"}) as call:
            await mischief(user_paddock, call)

    anyio.run(attack)


def test_the_kernel_holds_where_the_validator_would_not(paddock: Paddock, backend: dict[str, str]) -> None:
    """A worker that is told no boundaries at all still reads and writes nothing outside of its jail."""
    secret = paddock.place / "secret"
    secret.write_text("secret")
    paddock.who.give(secret)
    worker = [str(paddock.installed.python), "-I", "-m", "launcher.bridges.files.file_worker"]
    process = paddock.who.start(paddock.words("run", "--", *worker), cwd=paddock.worktree, env=backend)
    calls = (
        ("read", {"file_path": str(paddock.worktree / "file")}),
        ("read", {"file_path": str(secret)}),
        ("write", {"file_path": str(secret), "content": "changed"}),
        ("write", {"file_path": str(paddock.place / "new"), "content": "changed"}),
        ("edit", {"file_path": str(secret), "old_string": "secret", "new_string": "changed"}),
        ("list", {"directory": str(paddock.place)}),
        ("grep", {"pattern": "secret", "target": str(secret)}),
    )
    data = tool_calls.packed(Scope(context=None))
    for number, (tool, arguments) in enumerate(calls):
        data += tool_calls.packed(tool_calls.Request(number=number, tool=tool, arguments=dict(arguments)))
    said, errors = process.communicate(data, timeout=60)
    assert process.returncode == 0, errors
    replies = [json.loads(payload) for _, payload in wire.Decoder().feed(said)]
    inside, *outside = replies[1:]
    assert (inside["text"], inside["failed"]) == ("content\n", False)
    assert len(outside) == len(calls) - 1
    for reply, (tool, _) in zip(outside, calls[1:], strict=True):
        assert "secret\n" not in reply["text"]
        assert reply["failed"] or (tool == "list" and "secret" not in reply["text"]), reply
    assert secret.read_text() == "secret"
    assert not (paddock.place / "new").exists()


def test_worker_git_and_handoff_files_stay_and_commits_come_home(user_paddock: Paddock) -> None:
    """By tools and by commands; what only a command could do is undone by nobody, so the jail mounts them read-only.
    The session's jail is one of `paddock run`: its commits reach the branch when it ends.
    """
    paddock = user_paddock
    (paddock.worktree / ".envrc").write_text("true\n")
    (paddock.worktree / ".vscode").mkdir()
    paddock.who.give(paddock.worktree)
    pointer = (paddock.worktree / ".git").read_text()

    async def attack() -> None:
        async with over_stdio(paddock) as call:
            for path in (".envrc", ".vscode/tasks.json", ".git", ".git/config", "deep/er/.git/hooks/pre-commit"):
                assert (await call("write", file_path=path, content="x")).error == "SANDBOX_VIOLATION", path
            assert (await call("edit", file_path=".envrc", old_string="t", new_string="x")).error == "SANDBOX_VIOLATION"
            said = await call("shell", command="echo x >.envrc || mv new .envrc")
            assert not said.text.startswith("exit status 0")
            assert not (await call("write", file_path="work", content="done\n")).failed
            line = "git add work && git -c user.name=A -c user.email=a@example.invalid commit -q -m 'one: Work.'"
            assert (await call("shell", command=line)).text == "exit status 0\n"
            await mischief(paddock, call)

    anyio.run(attack)
    assert (paddock.worktree / ".envrc").read_text() == "true\n"
    assert (paddock.worktree / ".git").read_text() == pointer
    assert not (paddock.worktree / "deep").exists()
    shown = paddock.who.run(["git", "-C", str(paddock.main), "show", "one:work"])
    assert shown.stdout == "done\n", shown.stderr


def test_a_unix_socket_is_its_owners(user_paddock: Paddock) -> None:
    """Served there; nobody else can connect; it is gone afterwards, and a dead one is no obstacle. The workers of a
    server that is killed see their input end, and end with their jails (the fixtures look for what is left).
    """
    paddock = user_paddock
    path = paddock.place / "socket"

    async def ask(server: Server) -> None:
        async with server.client(server.headers("one"), path) as call:
            assert (await call("read", file_path="file")).text == "content\n"
        async with server.client({SESSION_HEADER: "one", TOKEN_HEADER: "x"}, path) as call:
            assert (await call("read", file_path="file")).error == "WORKTREE_UNRESOLVED"

    for killed in (True, False):
        with Server(paddock, f"--session=one={paddock.worktree}", address=f"unix:{path}") as server:
            assert server.ready["socket"] == str(path)
            assert path.stat().st_mode & 0o777 == 0o600
            anyio.run(ask, server)
            if killed:
                server.process.kill()
                server.process.wait()
                deadline = time.monotonic() + 30
                while paddock.left():
                    assert time.monotonic() < deadline, paddock.left()
                    time.sleep(0.05)
        assert path.exists() is killed


def test_a_killed_worker_leaves_no_half_file(tmp_path: Path) -> None:
    """SIGKILL at any moment of a write: the old content or the new, and after the sweep no other name."""
    root = tmp_path / "wt"
    root.mkdir()
    path = root / "file"
    contents = {letter * 2_000_000 for letter in "ab"}
    path.write_text(min(contents))
    import sys

    here = Path(__file__).resolve().parents[2]
    code = f"import sys; sys.path.insert(0, {str(here)!r}); from launcher.bridges.files.file_worker import main; main()"
    scope = tool_calls.packed(Scope(context=boundaries(root)))
    chance = random.Random(1)
    left = 0
    for number in range(int(os.environ.get("PADDOCK_KILLS", "6"))):
        process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(scope)
        process.stdin.flush()
        assert b"ready" in os.read(process.stdout.fileno(), 1000)
        killer = threading.Timer(chance.random() * 0.1, os.kill, (process.pid, signal.SIGKILL))
        killer.start()
        try:
            for count in range(1000):
                content = sorted(contents)[count % 2]
                arguments: dict[str, object] = {"file_path": "file", "content": content}
                process.stdin.write(
                    tool_calls.packed(tool_calls.Request(number=count, tool="write", arguments=arguments))
                )
                process.stdin.flush()
                if not os.read(process.stdout.fileno(), 1000):
                    break
        except BrokenPipeError:
            pass
        killer.join()
        process.kill()
        process.communicate()
        assert path.read_text() in contents, number
        names = set(os.listdir(root)) - {"file"}
        assert all(name.startswith(writing.PREFIX) for name in names)
        left += len(names)
        for name in names:
            (root / name).unlink()
    print(f"names left between link and rename: {left}")
