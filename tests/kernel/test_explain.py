"""`paddock explain` says what really happens in a jail, in words and as JSON of a fixed shape."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from policy.plan import Plan
from tests.support.identity import AS_A_USER
from tests.support.paddock import Paddock

KEYS = {"asked", "path", "allowed", "rules", "limits", "hint", "risk", "refused"}

# What a jailed process can really do at each path. A directory counts as readable when all of its names are there: on
# the way to what is granted, a jail has directories of its own that show nothing else.
TRY = """
import json, os, sys
def tried(call, *words):
    try:
        return call(*words)
    except OSError:
        return False
def read(path, names):
    if names is not None:
        return set(names) <= set(os.listdir(path))
    os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    return True
def write(path, names):
    name = path if names is None else path + "/.explain-probe"
    os.close(os.open(name, os.O_WRONLY | os.O_NONBLOCK | (0 if names is None else os.O_CREAT | os.O_EXCL), 0o600))
    if names is not None:
        os.unlink(name)
    return True
asked = json.loads(sys.argv[1])
print(json.dumps({path: [tried(read, path, names), tried(write, path, names)] for path, names in asked.items()}))
"""


def explained(paddock: Paddock, *words: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    """What `paddock explain WORDS... --json` prints; its exit status goes with what is allowed."""
    return judged(paddock.call("explain", "--json", *words, env=env))


def explained_each(
    paddock: Paddock, *questions: Sequence[str], env: dict[str, str] | None = None
) -> list[dict[str, Any]]:
    """The same for each of these questions, by children of one process."""
    return [judged(ended) for ended in paddock.each(*(["explain", "--json", *words] for words in questions), env=env)]


def judged(ended: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    """The document that it printed."""
    assert ended.stderr == "" or "paddock: warning" in ended.stderr, ended.stderr
    document: dict[str, Any] = json.loads(ended.stdout)
    assert set(document) == KEYS
    assert ended.returncode == (0 if document["allowed"] else 1)
    return document


def test_it_agrees_with_the_kernel(paddock: Paddock, backend: dict[str, str]) -> None:
    """For paths of every kind, what is said to be readable or writable is just that in a jail of the same options."""
    place = paddock.place
    for name in ("granted", "granted/secret", "shown", "closed", "one/sub", "one/hidden"):
        (place / name).mkdir()
        (place / name / "file").write_text("content\n")
    (place / "one/out").symlink_to("../closed/file")
    (place / "one/in").symlink_to("sub/file")
    paddock.who.give(place)
    options = ["--rw", "../granted", "--ro", "../shown", "--deny", "hidden", "--freeze-root"]
    paths = [
        *(str(place / name) for name in ("granted/file", "shown", "shown/file", "closed", "closed/file", "main/file",
                                         "one/sub", "one/sub/file", "one/hidden/file", "one/out", "one/in")),
        "/usr/bin/env", "/usr", "/etc/passwd", "/etc/shadow", "/root", "/dev/null", "/dev/mem", "/sys/kernel/debug",
        "/boot", "/var/log", str(paddock.state), str(paddock.cache),
    ]  # fmt: skip
    paths = [path for path in paths if os.path.lexists(path)]
    code = [str(paddock.installed.python), "-I", "-S", "-c", TRY]
    asked = {path: os.listdir(path) if os.path.isdir(path) else None for path in paths}
    ended = paddock.run(*options, "--", *code, json.dumps(asked), env=backend)
    assert ended.returncode == 0, ended.stderr
    happened: dict[str, list[bool]] = json.loads(ended.stdout)
    said = {}
    answers = explained_each(paddock, *([*options, path] for path in paths), env=backend)
    for path, answer in zip(paths, answers, strict=True):
        allowed = answer["allowed"]
        said[path] = ["read" in allowed, "write" in allowed]
        if paddock.who.uid and not os.path.isdir(path):
            # Ordinary file permissions are not the jail's doing.
            may = paddock.who.run(["test", "-w", path]).returncode == 0
            said[path][1] = said[path][1] and may
    assert said == happened
    assert [True, True] in said.values()
    assert [True, False] in said.values()
    assert [False, False] in said.values()


@AS_A_USER
def test_private_directories_are_not_the_machines(paddock: Paddock) -> None:
    """What lies in the machine's own /tmp, /dev/shm and /dev/pts is not allowed where a jail has its own."""
    closed, private = ("/tmp/nonexistent", "/var/tmp/x", "/dev/shm/x", "/dev/pts/0"), ("/tmp", "/var/tmp", "/dev/shm")
    asked = ([f"{paddock.place}/main/file"], *([path] for path in (*closed, *private)))
    inside, *others, below = explained_each(paddock, *asked, ["--ro", "../main", "../main/file"])
    assert (inside["allowed"], bool(inside["hint"])) == ([], True)
    for path, found in zip((*closed, *private), others, strict=True):
        assert ("write" in found["allowed"]) is (path in private), found
        assert found["allowed"] == [] or found["rules"][0]["source"].startswith("private /"), found
    assert below["allowed"] == ["read", "execute"]


def test_paths_that_are_not_there(paddock: Paddock, backend: dict[str, str]) -> None:
    """They are judged by where they would be, behind `..` and dangling links too; a loop leads nowhere."""
    (paddock.worktree / "dangling").symlink_to("/nonexistent/there")
    (paddock.worktree / "local").symlink_to("sub/file")
    (paddock.worktree / "loop").symlink_to("loop")
    wanted = (
        ("new/file", f"{paddock.worktree}/new/file", True),
        ("nonexistent/../../main/x", f"{paddock.main}/x", False),
        ("/nonexistent/../etc/shadow", "/etc/shadow", False),
        ("dangling", "/nonexistent/there", False),
        ("local", f"{paddock.worktree}/sub/file", True),
        ("./file/", f"{paddock.worktree}/file", True),
    )
    *found, loop = explained_each(paddock, *([asked] for asked, *_ in wanted), ["loop"], env=backend)
    assert tuple((each["asked"], each["path"], bool(each["allowed"])) for each in found) == wanted
    assert loop["path"] == f"{paddock.worktree}/loop"


@AS_A_USER
def test_options_on_both_sides_of_the_path(paddock: Paddock) -> None:
    """They add up, wherever they stand, and what would be run may follow."""
    for name in ("a", "b"):
        (paddock.place / name).mkdir()
    paddock.who.give(paddock.place)
    found = explained_each(paddock, ["--ro", "../a", "../b", "--ro", "../b"], ["../b", "--ro=../a", "--ro=../b"],
                           ["--ro", "../a", "--ro", "../b", "../b", "--", "sh", "-c", "true"],
                           ["../b", "--ro", "../a"])  # fmt: skip
    assert [each["allowed"] for each in found] == [["read", "execute"]] * 3 + [[]]


@AS_A_USER
def test_hints_can_be_pasted(paddock: Paddock, backend: dict[str, str]) -> None:
    """The option that is named allows it, names with spaces and quotes included; `--deny` is named where it is why."""
    odd = paddock.place / "it's a name"
    odd.mkdir()
    paddock.who.give(paddock.place)
    found = explained(paddock, str(odd), env=backend)
    option = found["hint"].partition(" (")[0]
    ended = paddock.shell(f"paddock explain {option} --json {option.partition(' ')[2]}", env=backend)
    assert json.loads(ended.stdout)["allowed"] == ["read", "execute"]
    denied = explained(paddock, "--ro", str(odd), "--deny", str(odd), str(odd), env=backend)
    assert (denied["allowed"], denied["hint"]) == ([], f"leave out --deny {option.partition(' ')[2]}")
    own = explained(paddock, str(paddock.state), env=backend)
    assert (own["allowed"], own["hint"].startswith("no option does")) == ([], True)


@AS_A_USER
def test_a_risk_is_named(paddock: Paddock) -> None:
    """Before somebody pastes the hint for a private key. `--rw /var/tmp` does not give the machine's, and says so
    instead of doing less in silence.
    """
    found = explained(paddock, str(paddock.who.home / ".ssh/id_ed25519"))
    assert "private keys" in found["risk"]
    assert paddock.call("explain", str(paddock.who.home / ".ssh/id_ed25519")).stdout.count("risk") == 1
    ended = paddock.run("--ro", "/var/tmp", "--", "true")
    assert (ended.returncode, "a jail has its own /var/tmp" in ended.stderr) == (0, True)


@AS_A_USER
def test_the_whole_plan(paddock: Paddock, backend: dict[str, str]) -> None:
    """As JSON it has the plan's fields and no others; in words the first line is the worktree. No value of a secret."""
    env = backend | {"ANTHROPIC_API_KEY": "the-secret"}
    words = ("--env", "TOKEN=another-secret", "--provider", "claude-code", "--", "sh")
    for more in ((), ("--plan",)):
        ended = paddock.call("explain", "--json", *more, *words, env=env)
        assert ended.returncode == 0, ended.stderr
        document = json.loads(ended.stdout)
        assert list(document) == list(Plan.FIELDS)
        assert document["worktree"] == str(paddock.worktree)
        ended = paddock.call("explain", *more, *words, env=env)
        assert ended.stdout.startswith(f"worktree  {paddock.worktree}\n")
        assert "\nlegend    r read, w write" in ended.stdout
        assert "secret" not in ended.stdout + json.dumps(document)
    assert paddock.run("--dry-run", *words, env=env).stdout == ended.stdout


def test_every_verb_has_help_with_examples(file_paddock: Paddock) -> None:
    """`--help` exits with 0, writes to stdout only, outside of any worktree too, and shows command lines to copy; the
    version is one line.
    """
    shown = file_paddock.call("--help", cwd=Path("/")).stdout
    assert "--help" in shown
    for verb in ("run", "explain", "doctor", "init", "trust"):
        ended = file_paddock.call(verb, "--help", cwd=Path("/"))
        assert (ended.returncode, ended.stderr) == (0, "")
        assert "usage: " in ended.stdout.lower()
        assert ended.stdout.count(f"  paddock {verb}") >= 1
        assert f"  {verb} " in shown
    for word in ("--version", "version"):
        ended = file_paddock.call(word, cwd=Path("/"))
        assert (ended.returncode, ended.stderr, ended.stdout.count("\n")) == (0, "", 1)
        assert ended.stdout.split()[1][0].isdigit()


def test_help_says_what_the_verb_itself_does(file_paddock: Paddock) -> None:
    """Exit statuses are the verb's own, and no option is listed that decides nothing there."""
    idle = ("--session", "--report", "--strict-handoff", "--dry-run")
    for verb in ("explain", "why", "learn"):
        text = file_paddock.call(verb, "--help", cwd=Path("/")).stdout
        assert "the command's own" not in text
        assert "Exit status: 0" in text
        assert not [name for name in idle if f"  {name}" in text]
    assert all(f"  {name}" in file_paddock.call("run", "--help", cwd=Path("/")).stdout for name in idle)
    told = file_paddock.call("worktree", "harvest", "--help").stdout
    assert file_paddock.call("help", "worktree", "harvest").stdout == told
    assert "3 when the work is kept" in " ".join(told.split())
    assert "or --preview forecasts" in " ".join(file_paddock.call("merge", "--help").stdout.split())
