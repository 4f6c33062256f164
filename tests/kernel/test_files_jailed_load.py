"""Many sessions of one repository at once, each in a jail of its own, called from sixteen threads.

`PADDOCK_SESSIONS=1000` makes as many as the specification's tests ask for; the suite does with fewer.
"""

import os
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from launcher.bridges.files.router import Mode, Router, Sessions
from launcher.bridges.files.tool_calls import Answer
from launcher.bridges.files.workers import Outside, Pool
from policy.sandbox_context import MainWorktreeContext, WorktreeSandboxContext
from tests.support import file_tools
from tests.support.features import need
from tests.support.file_tools import error_of
from tests.support.install import Installed

SESSIONS = int(os.environ.get("PADDOCK_SESSIONS", "3"))
THREADS = 16

_SCRIPT = """
git -c init.defaultBranch=main init -q main
git -C main config user.name Tester
git -C main config user.email tester@example.invalid
git -C main commit -q --allow-empty -m 'main: First.'
for number in $(seq 0 $(($1 - 1))); do git -C main worktree add -q -b "b$number" "$PWD/wt-$number"; done
"""


@pytest.mark.timeout(3000)
@pytest.mark.spec("SC-002", "SC-003", "US7.3")
def test_jailed_sessions_side_by_side(installed: Installed, tmp_path: Path) -> None:
    """Each writes, reads, and runs a command in its own worktree; neither tool nor command reaches the neighbour's."""
    need("landlock")
    import subprocess

    subprocess.run(["sh", "-eu", "-c", _SCRIPT, "sh", str(SESSIONS)], cwd=tmp_path, check=True)
    (tmp_path / "home").mkdir()
    roots = {f"s{number}": tmp_path / f"wt-{number}" for number in range(SESSIONS)}
    contexts = {
        name: WorktreeSandboxContext(main_worktree=MainWorktreeContext(worktree_id=name, worktree_path=root))
        for name, root in roots.items()
    }
    begun = time.monotonic()
    calls = 0
    lock = threading.Lock()
    with file_tools.jails(installed, tmp_path / "home") as jails:
        router = Router(Sessions(contexts.get), jails.enter, pool=Pool(most=THREADS))

        def work(thread: int) -> None:
            nonlocal calls
            for index in range(thread, SESSIONS, THREADS):
                name, neighbour = f"s{index}", roots[f"s{(index + 1) % SESSIONS}"]

                def call(tool: str, name: str = name, **arguments: object) -> Answer:
                    return router.call(tool, arguments, name, None)

                assert not call("write", file_path="file", content=name).failed
                assert call("read", file_path="file").text == name
                assert error_of(call("read", file_path=str(neighbour / "file"))) == "SANDBOX_VIOLATION"
                assert error_of(call("write", file_path=str(neighbour / "x"), content="")) == "SANDBOX_VIOLATION"
                said = call("shell", command=f"cat file; echo x >{neighbour}/x")
                assert said.text.startswith(("exit status 1\n", "exit status 2\n")), said
                assert name in said.text
                with lock:
                    calls += 5

        with ThreadPoolExecutor(THREADS) as pool:
            for share in [pool.submit(work, thread) for thread in range(THREADS)]:
                share.result()
        router.close()
    for name, root in roots.items():
        assert sorted(os.listdir(root)) == [".git", "file"]
        assert (root / "file").read_text() == name
    assert os.listdir(tmp_path / "home/.local/state/paddock/sessions") == []
    print(f"{SESSIONS} sessions, {THREADS} threads, {calls} calls: {time.monotonic() - begun:.1f} s")


@pytest.mark.spec("SC-003")
def test_a_call_costs_little_more_in_a_jail(installed: Installed, tmp_path: Path) -> None:
    """Beside the same worker without one, call by call in turn: the jail is entered once, not for each."""
    need("landlock")
    import subprocess

    subprocess.run(["sh", "-eu", "-c", _SCRIPT, "sh", "1"], cwd=tmp_path, check=True)
    (tmp_path / "home").mkdir()
    root = tmp_path / "wt-0"
    context = WorktreeSandboxContext(main_worktree=MainWorktreeContext(worktree_id="s", worktree_path=root))
    with file_tools.jails(installed, tmp_path / "home") as jails:
        jailed = Router(Sessions({"s": context}.get), jails.enter)
        free = Router(Sessions(lambda _: None, mode=Mode.COMPATIBLE), jails.enter, lambda: Outside(str(root)))
        taken: dict[str, list[float]] = {"jailed": [], "free": []}
        for number in range(100):
            for name, router, session in (("jailed", jailed, "s"), ("free", free, None)):
                begun = time.perf_counter()
                assert not router.call("write", {"file_path": "file", "content": str(number)}, session, None).failed
                assert router.call("read", {"file_path": "file"}, session, None).text == str(number)
                taken[name].append(time.perf_counter() - begun)
        jailed.close()
        free.close()
    # Of the ten quickest in a hundred: what a busy machine adds to the others is not the jail's.
    jailed_time, free_time = (statistics.quantiles(taken[name], n=10)[0] for name in ("jailed", "free"))
    ratio = jailed_time / free_time
    print(f"write and read in a jail: {ratio:.2f} times the time without one")
    assert ratio < 3
