"""`paddock batch`: what comes of each row, what a batch continues from, what ends it, and what is left."""

import base64
import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from policy import promises
from tests.support.features import need, need_backend
from tests.support.paddock import EXEC_PATIENCE as PATIENCE
from tests.support.paddock import Paddock
from tests.support.programs.scene import SWITCHES


def rows(paddock: Paddock, *found: dict[str, Any], name: str = "rows.jsonl") -> Path:
    """A file of rows on the paddock's repository."""
    path = paddock.place / name
    path.write_text("".join(json.dumps({"repository": str(paddock.main), **row}) + "\n" for row in found))
    return path


def results(path: Path) -> dict[str, dict[str, Any]]:
    """The last result of each row by its id."""
    lines = path.with_suffix(".results.jsonl").read_text().splitlines()
    return {found["id"]: found for found in map(json.loads, lines)}


def left(paddock: Paddock) -> tuple[list[str], str]:
    """What lies beside the repository, and what git knows in it."""
    git = paddock.who.run(["git", "-C", str(paddock.main), "for-each-ref"], cwd=paddock.place).stdout
    return sorted(path.name for path in paddock.place.iterdir() if path.suffix not in (".jsonl", ".begun")), git


@pytest.mark.parametrize("backend", promises.BACKENDS)
def test_each_row_has_its_result_and_leaves_nothing(user_paddock: Paddock, backend: str) -> None:
    """Status, streams, patch (no UTF-8 too), cause; each on a clean copy, whatever others wrote; then it is skipped.

    What is read of streams and patches is the same whatever held the command: one backend shows it.
    """
    need_backend(backend)
    env, switches = SWITCHES[backend]
    paddock, policy = user_paddock, list(switches)
    before = left(paddock)
    work = "cat new ~/own 2>&1; git config own.key && exit 4; echo out; echo err >&2; cat >new; echo x >~/own"
    work += "; git config own.key x; git branch own && git add . && git commit -qm N; exit 3"
    read = (
        {"id": "bytes", "command": ["printf", r"\377\n"], "env": {"A": "b"}, "policy": policy},
        {"id": "binary", "command": r"printf '\377\n' >latin; echo $A", "env": {"A": "b c"}, "policy": policy},
    ) if backend == promises.BACKENDS[0] else ()  # fmt: skip
    path = rows(
        paddock,
        {"id": "one", "command": work, "input": "text\n", "policy": policy},
        {"id": "two", "command": work, "input": "text\n", "policy": policy},
        *read,
        {"id": "slow", "command": "sleep 1000", "timeout": 0.3, "policy": policy},
        {"id": "killed", "command": "kill -9 $$", "policy": policy},
        {"id": "absent", "command": ["no-such-command"], "policy": policy},
    )
    done = paddock.call("batch", path, "--parallel", "2", env=env)
    assert done.returncode == 1, done.stderr
    count = 5 + len(read)
    assert f"{count} rows: {2 + len(read)} exited (2 of them not with 0), " in done.stdout
    assert f"line {count}: no-such-command: command not found inside the jail [command-not-found]" in done.stdout
    assert "next: fix what refused 1 row, in the file of rows or on this machine" in done.stdout
    assert "it continues" not in done.stdout
    found = results(path)
    causes = {name: (row["cause"], row["status"]) for name, row in found.items()}
    assert causes == {
        "one": ("exited", 3), "two": ("exited", 3), **{str(each["id"]): ("exited", 0) for each in read},
        "slow": ("timeout", 124), "killed": ("signal", 137), "absent": ("refused", None),
    }  # fmt: skip
    for name in ("one", "two"):
        assert (found[name]["stdout"].splitlines()[-1], found[name]["stderr"]) == ("out", "err\n")
        assert found[name]["stdout"].count("No such file") == 2, "one sees what the other has written"
        assert found[name]["patch"].endswith("--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+text\n")
    if read:
        assert found["bytes"]["stdout"] == "\ufffd\n"
        assert base64.b64decode(found["binary"]["patch_base64"]).endswith(b"+\xff\n")
        assert found["binary"]["stdout"] == "b c\n"
    assert found["absent"]["refusal"]["errorType"] == "command-not-found"
    assert left(paddock) == before
    assert not path.with_suffix(".results.jsonl.begun").exists()

    size = path.with_suffix(".results.jsonl").stat().st_size
    again = paddock.call("batch", path, env=env)
    assert f"{count - 1} rows have their results already\npaddock: 1 row could not be run before, " in again.stderr
    (last,) = path.with_suffix(".results.jsonl").read_bytes()[size:].splitlines()
    assert json.loads(last)["id"] == "absent"


def test_retries_are_by_cause_and_counted(user_paddock: Paddock) -> None:
    """A status is a result and no reason, unless asked for; then the last attempt is what counts."""
    need("userns")
    path = rows(user_paddock, {"id": "bad", "command": ["false"]}, {"id": "good", "command": ["true"]})
    words = ("--retry", "exited=2", "--json")
    done = user_paddock.call("batch", path, *words)
    assert json.loads(done.stdout)["causes"] == {"exited": 2}
    assert {name: row["attempt"] for name, row in results(path).items()} == {"bad": 3, "good": 1}
    assert not path.with_suffix(".results.jsonl.begun").exists()


def beat(paddock: Paddock) -> tuple[Path, "subprocess.Popen[bytes]"]:
    """A batch, one row at a time, whose first row has ended and whose second one runs."""
    path = rows(
        paddock,
        {"id": "quick", "command": "echo done"},
        {"id": "slow", "command": "setsid sleep 1000 & test -e other || sleep 1000"},
        {"id": "last", "command": "echo done"},
    )
    process = paddock.who.start([*paddock.words("batch", path, "--parallel", "1")], cwd=paddock.place, env=paddock.env)
    begun = path.with_suffix(".results.jsonl.begun")
    deadline = time.monotonic() + PATIENCE
    while not begun.exists() or begun.read_text().count("\n") < 2:
        assert time.monotonic() < deadline, process.poll()
        time.sleep(0.05)
    return path, process


def test_an_interrupt_keeps_results_and_the_batch_continues(user_paddock: Paddock) -> None:
    """Ctrl-C ends the row that runs at once: it has no result, nothing is left, and the same command goes on."""
    need("userns")
    before = left(user_paddock)
    path, process = beat(user_paddock)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, err
    assert b"3 rows: 1 exited, 2 without a result" in out
    assert results(path).keys() == {"quick"}
    assert left(user_paddock) == before
    path.write_text(path.read_text().replace("test -e other || sleep 1000", "true"))
    with path.with_suffix(".results.jsonl").open("a") as file:
        file.write('{"key": "half')
    done = user_paddock.call("batch", path)
    assert done.returncode == 0, done.stderr
    assert "1 row has its result already" in done.stderr
    assert "half written, and is dropped" in done.stderr
    assert results(path).keys() == {"quick", "slow", "last"}


def test_a_killed_batch_leaves_nothing_that_the_next_does_not_tell_and_remove(user_paddock: Paddock) -> None:
    """Its jails end with it. The next one says what was begun, removes that worktree, and runs the row again."""
    need("userns")
    before = left(user_paddock)
    path, process = beat(user_paddock)
    locked = user_paddock.call("batch", path)
    assert "[batch-running]" in locked.stderr
    process.kill()
    process.communicate()
    assert left(user_paddock) != before
    path.write_text(path.read_text().replace("echo done", "echo other", 2))
    done = user_paddock.call("batch", path, "--timeout", "1")
    assert done.returncode == 0, done.stderr
    assert left(user_paddock) == before
    assert results(path)["slow"]["cause"] == "timeout"
    assert "1 result in" in done.stderr


MISTAKES = [
    ("", (), "rows-invalid"),
    ('{"command": "true", "policy": ["--net", "foo"]}', (), "rows-invalid"),
    ('{"command": "true", "commit": "--all"}', (), "rows-invalid"),
    ('{"command": "true", "repository": "/nowhere"}', (), "rows-invalid"),
    ('{"command": "true"}', ("--results", "/nowhere/x"), "results-unusable"),
    ('{"command": "true"}', ("--results", "/dev/null"), "results-unusable"),
    ('{"command": "true"}', ("--results", "ROWS"), "results-invalid"),
]


def test_a_mistake_is_refused_with_its_line_before_anything_starts(user_paddock: Paddock) -> None:
    """And before anything is made."""
    paths = [rows(user_paddock, {"command": ["touch", "/tmp/begun"]}, name=f"rows{number}.jsonl")
             for number in range(len(MISTAKES))]  # fmt: skip
    for path, (content, _, reference) in zip(paths, MISTAKES, strict=True):
        path.chmod(0o666)
        if reference == "rows-invalid":
            path.write_text("\n" + content)
    before = left(user_paddock)
    commands: list[list[str | Path]] = [["batch", path, *(each.replace("ROWS", str(path)) for each in words)]
                for path, (_, words, _) in zip(paths, MISTAKES, strict=True)]  # fmt: skip
    errors = user_paddock.refused_each(*commands)
    for path, (content, _, reference), said in zip(paths, MISTAKES, errors, strict=True):
        assert (content, said.reference) == (content, reference)
        assert not content or reference != "rows-invalid" or f"{path}: line 2: " in said.text, said
    assert left(user_paddock) == before
    assert not list(user_paddock.place.glob("*.begun"))


def test_what_a_killed_batch_left_is_removed_by_any_other(user_paddock: Paddock) -> None:
    """By the locks of what made the worktrees: those of a batch that lives stay."""
    need("userns")
    paddock = user_paddock
    place = paddock.who.home / ".local/state/paddock/rows"
    before = left(paddock)

    def trees() -> set[str]:
        return set(left(paddock)[0]) - set(before[0])

    stays = rows(paddock, {"command": "sleep 300"}, name="stays.jsonl")
    living = paddock.who.start(paddock.words("batch", stays, "--quiet"), cwd=paddock.place, env=paddock.env)
    try:
        deadline = time.monotonic() + PATIENCE
        while len(trees()) < 1:
            assert time.monotonic() < deadline, living.poll()
            time.sleep(0.05)
        (lives,) = (path.name for path in place.iterdir())
        _, driver = beat(paddock)
        driver.kill()
        driver.communicate()
        assert len(trees()) == 2
        assert paddock.call("batch", rows(paddock, {"command": "true"}, name="next.jsonl"), "--quiet").returncode == 0
        (worktree,) = trees()
        assert worktree.endswith(lives)
        assert [path.name for path in place.iterdir()] == [lives]
    finally:
        living.send_signal(signal.SIGTERM)
        living.communicate(timeout=PATIENCE)
    assert [*place.iterdir()] == []
    assert left(paddock) == before
