"""`paddock doctor` proves what it says, and says the same to programmes."""

import json
import time
from pathlib import Path

from policy import promises
from tests.support.identity import AS_A_USER
from tests.support.paddock import Paddock, said

LAYER = {"layer", "present", "usable", "why", "remedy"}
PROMISE = {"row", "promise", "expected", "proven", "attempts", "reason", "honest"}


def test_every_promise_is_proven(paddock: Paddock, backend: dict[str, str]) -> None:
    """All rows of the table are there, each with an attack and an allowed twin, and none claims too much. No directory,
    socket, link or shared memory of the self-test stays, wherever it is started.
    """
    places = [Path("/dev/shm"), Path("/tmp"), paddock.who.home / ".cache"]
    (paddock.who.home / ".cache").mkdir(exist_ok=True)
    paddock.who.give(paddock.who.home)
    before = {path for place in places for path in place.glob("paddock*")}
    ended = paddock.shell("mkdir ../gone && cd ../gone && rmdir ../gone && paddock doctor --json", env=backend)
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
    nothing_is_left(paddock, places, before)


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


def nothing_is_left(paddock: Paddock, places: list[Path], before: set[Path]) -> None:
    """Fails when the self-test has left something in these places, or in the state."""
    own = {path.relative_to(paddock.state).as_posix() for path in paddock.state.rglob("*")}
    assert not [path for path in own if path.startswith(("worktrees/", "denials/", "sessions/"))], own
    assert paddock.call("denials", "--list").stdout.startswith("no denial was recorded\n")
    left = {path for place in places for path in place.glob("paddock*") if path.name != "paddock"} - before
    for _ in range(600):  # other tests at work meanwhile have their own, for as long as they last
        left = {path for path in left if path.exists() and path.stat().st_uid == paddock.who.uid}
        if not left:
            break
        time.sleep(0.05)
    assert left == set()
