"""Inside containers, imitated by `tests.support.container`: the right backend, or a clear refusal; no silent gap."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from policy import promises
from tests.support.features import need
from tests.support.identity import Who, Word
from tests.support.install import ROOT
from tests.support.paddock import Paddock, said

if os.geteuid() != 0:
    pytest.skip("only root can cover parts of /proc for others", allow_module_level=True)

# What the shell tries, and what each of it must say.
INSIDE = """
cat "$1/secret" 2>/dev/null && echo read; touch "$1/written" 2>/dev/null && echo wrote
chmod 777 "$1/secret" 2>/dev/null && echo changed; echo x >here && chmod 640 here && cat here
mount -t tmpfs none /tmp 2>/dev/null && echo mounted; touch "$TMPDIR/t" && echo temp
"""


def run(paddock: Paddock, container: Sequence[str], *words: Word) -> "subprocess.CompletedProcess[str]":
    """`paddock run WORDS...` in a container, as the identity of `paddock`."""
    options = [*container, "--uid", str(paddock.who.uid), "--cwd", str(paddock.worktree)]
    return subprocess.run(
        [sys.executable, "-m", "tests.support.container", *options, "--", *paddock.words("run", *words)],
        cwd=ROOT,
        env=paddock.who.environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def outside(paddock: Paddock) -> Path:
    """A directory with a secret, of the same user and granted to nobody."""
    directory = paddock.place / "outside"
    directory.mkdir()
    (directory / "secret").write_text("secret\n")
    return paddock.who.give(directory)


def attacked(paddock: Paddock, container: Sequence[str], outside: Path) -> tuple[str, dict[str, str]]:
    """The backend of a jail in which INSIDE came to nothing, and its verdicts."""
    report = paddock.place / "report"
    ended = run(paddock, container, "--report", report, "--", "sh", "-c", INSIDE, "sh", outside)
    assert (ended.returncode, ended.stdout.split()) == (0, ["x", "temp"]), ended
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert (outside / "secret").stat().st_mode & 0o777 == 0o644
    document = json.loads(report.read_text())
    return document["backend"], {row["row"]: row["verdict"] for row in document["promises"]}


def test_without_a_filter_there_are_namespaces(paddock: Paddock, outside: Path) -> None:
    """As in podman, and in Docker with `seccomp=unconfined`: covered parts of /proc cost one row, and it is said."""
    need("userns")
    backend, rows = attacked(paddock, ["--unconfined"], outside)
    assert backend == promises.NAMESPACES
    assert {row for row, verdict in rows.items() if verdict != "held"} == {"visibility"}
    assert "are visible" in run(paddock, ["--unconfined"], "--", "true").stderr


def test_dockers_filter_with_the_right_to_trace_leaves_the_guard(paddock: Paddock, outside: Path) -> None:
    """It has no namespaces; `--cap-add SYS_PTRACE` allows pidfd_getfd, and what the guard holds anywhere it holds."""
    backend, rows = attacked(paddock, ["--ptrace"], outside)
    assert backend == promises.GUARD
    not_held = {row for row, verdict in rows.items() if verdict != "held"}
    assert not_held == {"handoff", "visibility", "shared-memory"}


def test_dockers_filter_alone_is_refused_in_words(user_paddock: Paddock) -> None:
    """Neither namespaces nor the guard; the text names both, and what to change about the container."""
    ended = run(user_paddock, [], "--", "true")
    assert ended.returncode == 125
    error = said(ended.stderr)
    assert error.reference == "guard-missing"
    for part in ("unshare: Operation not permitted", "pidfd_getfd: Operation not permitted", "--cap-add SYS_PTRACE"):
        assert part in error.text


def test_a_plan_is_not_carried_into_a_container_or_out(user_paddock: Paddock) -> None:
    """The home directory with the kept plans is often the same; what the machine can do is not."""
    need("userns")
    for _ in range(2):
        assert user_paddock.run("--", "true").stderr == ""
        ended = run(user_paddock, ["--ptrace"], "--verbose", "--", "true")
        assert f", {promises.GUARD}, " in ended.stderr, ended
    ended = user_paddock.run("--verbose", "--", "true")
    assert f", {promises.NAMESPACES}, " in ended.stderr


def test_the_imitation_is_one(user: Who) -> None:
    """The twin: without Paddock, the container denies what it should deny, and nothing else of these."""
    tries = {
        "unshare": "unshare --user true",
        "mount": "mount -t tmpfs none /mnt",
        "ptrace": f"{sys.base_prefix}/bin/python3 -c 'import ctypes; exit(ctypes.CDLL(None).ptrace(0, 0, 0, 0) != 0)'",
        "pidfd_getfd": "grep -q 'Seccomp:.2' /proc/self/status && ! head -c1 /proc/kcore >/dev/null",
    }
    script = "\n".join(f"({line}) >&2 && echo {name}" for name, line in tries.items())
    words = [sys.executable, "-m", "tests.support.container", "--", "sh", "-c", f"{script}\ntrue"]
    ended = subprocess.run(words, cwd=ROOT, env=user.environment(), capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout.split()) == (0, ["ptrace", "pidfd_getfd"]), ended
