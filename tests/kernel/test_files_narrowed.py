"""The file tools' worker is held to the worktree by the kernel: a hole in the validator opens nothing."""

import json
import sys
from contextlib import closing
from pathlib import Path

import pytest

from launcher import wire
from launcher.bridges.files import tool_calls
from launcher.bridges.files.scope import Scope
from launcher.bridges.files.tool_calls import CALLS, Grep, Read
from launcher.bridges.files.workers import WorkerFailed, WorkerProcess
from launcher.jail import landlock
from tests.conftest import IDENTITIES
from tests.support.features import need
from tests.support.file_tools import PATH, boundaries
from tests.support.paddock import Paddock

# A worker whose validator lets everything through.
HOLE = """
import os, sys
from launcher.bridges.files import file_worker, scope
scope.Gate.place = lambda self, path, operation: self._legacy(os.path.expandvars(path))
for name in ("TMPDIR", "HOME"):
    with open(os.environ[name] + "/secret", "w") as file:
        file.write("secret")
sys.exit(file_worker.main())
"""

# As many domains as a process may have, each of which allows everything.
FULL = """
import landlock
for _ in range(16):
    rules = landlock.Ruleset()
    rules.allow("/")
    rules.apply()
from launcher.bridges.files import file_worker
sys.exit(file_worker.main())
"""

# Says what it would have to load once it is held.
WATCHED = """
narrow = file_worker._narrow
def watched(root):
    narrow(root)
    sys.addaudithook(lambda event, given: event == "import" and print("loads", given[0], file=sys.stderr, flush=True))
file_worker._narrow = watched
sys.exit(file_worker.main())
"""

SWITCHES = {"namespaces": {}, "guard": {"PADDOCK_NO_USERNS": "1"}, "bubblewrap": {"PADDOCK_NO_LANDLOCK": "1"}}


def calls_on(place: str) -> dict[str, dict[str, object]]:
    """What each tool can do to a directory in which there is a file `secret`."""
    return {
        "read": {"file_path": f"{place}/secret"},
        "list": {"directory": place},
        "glob": {"pattern": "sec*", "directory": place},
        "grep": {"pattern": "secret", "target": f"{place}/secret"},
        "write": {"file_path": f"{place}/new", "content": "new"},
        "edit": {"file_path": f"{place}/secret", "old_string": "secret", "new_string": "changed"},
    }


def answers(paddock: Paddock, env: dict[str, str], granted: Path, *, narrow: bool) -> dict[str, dict[str, str]]:
    """What the worker with the hole answers, by place and tool: "ok" or the kind of error."""
    options = ("--git", "readonly", "--rw", granted)
    words = paddock.words("run", *options, "--", paddock.installed.python, "-I", "-c", HOLE)
    places = [str(paddock.worktree), str(granted), "$TMPDIR", "$HOME"]
    data = tool_calls.packed(Scope(context=boundaries(paddock.worktree), narrow=narrow))
    calls = [(place, tool, arguments) for place in places for tool, arguments in calls_on(place).items()]
    for number, (_, tool, arguments) in enumerate(calls):
        data += tool_calls.packed(tool_calls.Request(number=number, tool=tool, arguments=arguments))
    process = paddock.who.start(words, cwd=paddock.worktree, env=env)
    said, errors = process.communicate(data, timeout=60)
    assert process.returncode == 0, errors
    replies = [json.loads(payload) for _, payload in wire.Decoder().feed(said)][1:]
    found: dict[str, dict[str, str]] = {place: {} for place in places}
    for reply, (place, tool, _) in zip(replies, calls, strict=True):
        found[place][tool] = json.loads(reply["text"])["errorType"] if reply["failed"] else "ok"
    return found


@pytest.mark.parametrize(
    ("backend", "who"),
    [*((each, IDENTITIES[-1]) for each in SWITCHES), *(("guard", each) for each in IDENTITIES[:-1])],
    indirect=["who"],
)
def test_a_hole_in_the_validator_is_held_by_the_kernel(paddock: Paddock, backend: str) -> None:
    """What the session's jail grants and the tools may not use: neither read nor written, but by a worker at large."""
    need({"namespaces": "userns", "guard": "landlock", "bubblewrap": "bubblewrap"}[backend])
    granted = paddock.place / "granted"
    granted.mkdir()
    for place in (granted, paddock.worktree):
        (place / "secret").write_text("secret")
        paddock.who.give(place)
    paddock.who.give(paddock.worktree)

    held = answers(paddock, SWITCHES[backend], granted, narrow=True)
    everything = dict.fromkeys(calls_on(""), "ok")
    assert held.pop(str(paddock.worktree)) == everything
    assert held == dict.fromkeys(held, dict.fromkeys(everything, "ACCESS_DENIED"))
    assert (granted / "secret").read_text() == "secret"
    assert not (granted / "new").exists()

    (paddock.worktree / "secret").write_text("secret")
    at_large = answers(paddock, SWITCHES[backend], granted, narrow=False)
    assert at_large == dict.fromkeys(at_large, everything)
    assert (granted / "secret").read_text() == "changed"


def test_a_worker_that_cannot_be_held_serves_nobody(tmp_path: Path) -> None:
    """One clear sentence is all it says; where there is no Landlock, the same worker serves."""
    need("landlock")
    (tmp_path / "file").write_text("content")
    context = boundaries(tmp_path)
    argv = [sys.executable, "-c", PATH + FULL]
    with pytest.raises(WorkerFailed) as failed:
        WorkerProcess(argv, Scope(context=context), "/")
    assert str(failed.value) == (
        f"it has ended: the kernel cannot confine the file tools to {tmp_path}: Argument list too long"
    )
    with closing(WorkerProcess(argv, Scope(context=context, narrow=False), "/")) as served:
        assert served.call(Read(file_path="file")).text == "content"


def test_a_worker_that_is_held_has_loaded_what_it_needs(tmp_path: Path) -> None:
    """It could not read a module any more: neither what calls need that succeed, nor what errors need."""
    need("landlock")
    (tmp_path / "file").write_text("a \N{EM DASH} b\n")
    argv = [sys.executable, "-c", PATH + "from launcher.bridges.files import file_worker" + WATCHED]
    with closing(WorkerProcess(argv, Scope(context=boundaries(tmp_path)), "/")) as worker:
        for place in (str(tmp_path), "missing", "\x1b/etc"):
            for tool, arguments in calls_on(place).items():
                worker.call(CALLS[tool].model_validate(arguments))
        assert worker.call(Grep(pattern=r"A \N{EM DASH}", ignore_case=True)).text == "file:1:a \N{EM DASH} b"
        for pattern in ("(", "[[a]&&b]"):  # an error, and what Python only warns of
            worker.call(Grep(pattern=pattern))
        refused = worker.call(Read.model_construct(file_path="file", offset=-1))
        assert "INVALID_ARGUMENT" in refused.text
    assert "loads " not in worker.said


def test_whether_it_is_held_is_decided_where_the_scope_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The switch that stands for a kernel without Landlock counts there; the worker's own environment does not."""
    assert Scope(context=None).narrow is (landlock.kernel_abi()[0] > 0)
    monkeypatch.setenv("PADDOCK_NO_LANDLOCK", "1")
    assert Scope(context=None).narrow is False
