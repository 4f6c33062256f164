"""`paddock doctor` proves what it says, and says the same to programmes."""

import json
import os
import subprocess
from pathlib import Path

from policy import promises
from tests.support.identity import AS_A_USER
from tests.support.paddock import Paddock, said

LAYER = {"layer", "present", "usable", "why", "remedy"}
PROMISE = {"row", "promise", "expected", "proven", "attempts", "reason", "honest"}
ALONE = """set -e; exec 9<"$1"
for shared in /tmp /dev/shm; do mount -t tmpfs -o mode=1777 none "$shared"; done
mkdir -p "$1"; mount -c --bind /proc/self/fd/9 "$1"; cd "$2"; left=$3; shift 3; exec 9<&-
"$@"; find /tmp /dev/shm -mindepth 1 -maxdepth 1 >"$left"
"""
"""Runs a command where others who test at the same time leave nothing, and writes down what it has left."""


def test_every_promise_is_proven(paddock: Paddock, backend: dict[str, str]) -> None:
    """All rows of the table are there, each with an attack and an allowed twin, and none claims too much. No directory,
    socket, link or shared memory of the self-test stays, wherever it is started.
    """
    who = paddock.who
    (who.home / ".cache").mkdir(exist_ok=True)
    who.give(who.home)
    enter = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    kept, left = paddock.place.parent, paddock.place.parent / "left"
    line = f"mkdir ../gone && cd ../gone && rmdir ../gone && {paddock.installed.paddock} doctor --json"
    ended = subprocess.run(
        [*enter, "sh", "-c", ALONE, "sh", kept, paddock.worktree, left, *who.command(["sh", "-c", line])],
        env=who.environment({**paddock.env, **backend}), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (ended.returncode, "paddock" in ended.stderr) == (0, False), ended  # sh itself complains
    document = json.loads(ended.stdout)
    assert set(document) == {"layers", "backend", "promises", "verdict", "refusal"}
    assert document["backend"] == (promises.GUARD if backend else promises.NAMESPACES)
    assert document["refusal"] is None
    assert [row["row"] for row in document["promises"]] == [name for name, *_ in promises.ROWS]
    for row in document["promises"]:
        assert set(row) == PROMISE
        assert row["honest"], row
        if row["expected"] == promises.HELD:
            assert row["proven"], row
            assert {kind for kind, *_ in row["attempts"]} == {"attack", "twin"}
        else:
            assert row["reason"]
    assert all(set(layer) == LAYER for layer in document["layers"])
    assert {layer["layer"] for layer in document["layers"]} >= {"landlock", "seccomp"}
    own = {path.relative_to(paddock.state).as_posix() for path in paddock.state.rglob("*")}
    assert not [path for path in own if path.startswith(("worktrees/", "denials/", "sessions/"))], own
    assert paddock.call("denials", "--list").stdout.startswith("no denial was recorded\n")
    assert left.read_text().splitlines() == [str(path) for path in kept.parents if path.parent == Path("/tmp")]
    assert [*(who.home / ".cache").iterdir()] == []


@AS_A_USER
def test_in_words(paddock: Paddock) -> None:
    """The same rows in text; -v lists the attempts."""
    short = paddock.call("doctor", cwd=paddock.place)
    long = paddock.call("doctor", "-v", cwd=paddock.place)
    assert (short.returncode, long.returncode) == (0, 0)
    for name, *_ in promises.ROWS:
        assert f" {name} " in short.stdout
    assert "BROKEN" not in short.stdout
    assert ("attack" in short.stdout, "attack" in long.stdout) == (False, True)


@AS_A_USER
def test_a_machine_that_cannot_hold_a_jail(paddock: Paddock) -> None:
    """The layers are shown all the same, with the reason and what to do; the status is 125."""
    env = {"PADDOCK_NO_LANDLOCK": "1", "PADDOCK_NO_USERNS": "1"}
    ended = paddock.call("doctor", "--json", cwd=paddock.place, env=env)
    assert ended.returncode == 125
    document = json.loads(ended.stdout)
    (landlock,) = [layer for layer in document["layers"] if layer["layer"] == "landlock"]
    assert (landlock["usable"], "switched off" in landlock["why"]) == (False, True)
    assert document["refusal"]["errorType"] == said(ended.stderr).reference
    assert document["promises"] == []
    words = paddock.call("doctor", cwd=paddock.place, env=env)
    assert (words.returncode, "landlock" in words.stdout) == (125, True)
