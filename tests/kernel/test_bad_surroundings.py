"""Closed streams, small limits, full devices, wrong systems: one clear error or it works, and nothing left behind."""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from policy import promises
from tests.support import paddock as paddocks
from tests.support.features import need_backend
from tests.support.identity import AS_A_USER, Who
from tests.support.install import Installed
from tests.support.paddock import Paddock, said
from tests.support.programs.scene import SWITCHES

# Standard streams and limits of the caller


@AS_A_USER
def test_closed_streams(paddock: Paddock, backend: dict[str, str]) -> None:
    """The exit status stays what it is, and the command finds /dev/null in their place."""
    for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        used = paddock.shell(f"paddock run -- sh -c 'cat; echo x; echo y >&2; exit 7' {closed}", env=backend)
        assert used.returncode == 7, closed
        ended = paddock.shell(f"paddock run -- nonexistent {closed}", env=backend)
        assert (closed, ended.returncode, "Traceback" in ended.stderr) == (closed, 127, False)


WRITING = ("--version", "run --help", "run --dry-run -- true", "explain", "explain --json", "trust --list")


def test_output_that_cannot_be_written(user_paddock: Paddock) -> None:
    """A full device is an error, a reader that has left is SIGPIPE's status; neither is a traceback."""
    for words in WRITING:
        ended = user_paddock.shell(f"paddock {words} >/dev/full")
        assert (words, ended.returncode, said(ended.stderr).reference) == (words, 125, "output-unwritable")
        reader, writer = os.pipe()
        os.close(reader)
        try:
            broken = subprocess.run(
                user_paddock.who.command(user_paddock.words(*words.split())),
                cwd=user_paddock.worktree,
                env=user_paddock.who.environment(),
                stdout=writer,
                stderr=subprocess.PIPE,
                check=False,
            )
        finally:
            os.close(writer)
        assert (words, broken.returncode, broken.stderr) == (words, 141, b"")


@AS_A_USER
def test_errors_that_nobody_can_read(paddock: Paddock, backend: dict[str, str]) -> None:
    """A full standard error changes no exit status and no run."""
    assert paddock.shell("paddock run -- nonexistent 2>/dev/full", env=backend).returncode == 127
    assert paddock.shell("paddock run -v -- sh -c 'exit 7' 2>/dev/full", env=backend).returncode == 7


@AS_A_USER
def test_the_command_meets_its_own_errors(paddock: Paddock, backend: dict[str, str]) -> None:
    """A full or broken standard output is the command's to deal with."""
    assert paddock.shell("paddock run -- echo x >/dev/full", env=backend).returncode == 1
    line = "{ paddock run -- yes; echo $? >status; } | head -n 1"
    assert paddock.shell(line, env=backend).stdout == "y\n"
    assert (paddock.worktree / "status").read_text() == "141\n"


def test_few_descriptors(user_paddock: Paddock, backend: dict[str, str]) -> None:
    """With a low limit it works, or says that descriptors are missing. Below ten sh(1) itself gives up."""
    results = set()
    for number in (11, 12, 15, 20, 30, 60, 200):
        ended = user_paddock.shell(f"ulimit -n {number}; paddock run -- sh -c 'ulimit -n'", env=backend)
        results.add(ended.returncode)
        if ended.returncode:
            assert ended.returncode == 125
            assert "Too many open files" in said(ended.stderr).text
        else:
            assert ended.stdout == f"{number}\n"
    assert 0 in results


def test_small_limits_of_the_caller(user_paddock: Paddock, backend: dict[str, str]) -> None:
    """File size, processes, memory and stack of the launcher itself: it works, or there is one error."""
    for limit in ("-f 0", "-f 1", "-v 30000", "-v 60000", "-s 64", "-c 0", "-p 1", "-p 3"):
        for words in ("", "--limit processes=77"):  # cold and warm
            ended = user_paddock.shell(
                f"ulimit {limit} 2>/dev/null || exit 0; exec paddock run {words} -- true", env=backend
            )
            if ended.returncode:
                assert ended.returncode == 125, (limit, ended)
                said(ended.stderr)


@AS_A_USER
def test_limits_of_the_command(paddock: Paddock, backend: dict[str, str]) -> None:
    """The smallest values end in one error or in the command's own failure, never in a half-made jail."""
    for name in ("processes", "memory", "open_files", "file_size", "disk", "cpu_time"):
        ended = paddock.run("--limit", f"{name}=1", "--", "true", env=backend)
        if ended.returncode == 125:
            said(ended.stderr)
        else:
            assert "paddock: [" not in ended.stderr
            assert "Traceback" not in ended.stderr


# Where Paddock itself cannot run


def test_another_system_or_an_old_python(user_paddock: Paddock) -> None:
    """One clear refusal, in words that old interpreters understand."""
    program = """
import sys
sys.{name} = {value}
path = {path!r}
with open(path) as file:
    code = compile(file.read(), path, "exec")
sys.argv = [path, path, "run", "--", "true"]
exec(code)
"""
    for name, value, reference in (
        ("platform", "'darwin'", "not-linux"),
        ("platform", "'win32'", "not-linux"),
        ("version_info", "(3, 10, 9, 'final', 0)", "python-too-old"),
    ):
        text = program.format(name=name, value=value, path=str(user_paddock.installed.paddock))
        ended = user_paddock.who.run([str(user_paddock.installed.python), "-I", "-S", "-c", text])
        assert (ended.returncode, ended.stdout) == (125, "")
        assert said(ended.stderr).reference == reference


@pytest.mark.parametrize("backend", promises.BACKENDS)
def test_a_worktree_or_a_grant_in_shared_memory(
    user: Who, installed: Installed, public_dir: Path, backend: str
) -> None:
    """A jail with mounts has a /dev of its own, so it cannot show what is there, and says so; the guard can."""
    need_backend(backend)
    (public_dir / "elsewhere").mkdir()
    place = Path(tempfile.mkdtemp(prefix="paddock-test-", dir="/dev/shm"))
    try:
        made = paddocks.make(user, installed, user.give(place))
        variables, options = SWITCHES[backend]
        ended = made.run(*options, "--", "sh", "-c", "echo works >file; cat file", env=dict(variables))
        if promises.has_mounts(backend):
            assert (ended.returncode, said(ended.stderr).reference) == (125, "worktree-place"), ended
        else:
            assert (ended.returncode, ended.stdout) == (0, "works\n"), ended
        elsewhere = paddocks.make(user, installed, user.give(public_dir / "elsewhere"))
        ended = elsewhere.run(*options, "--rw", str(made.worktree), "--", "ls", str(made.worktree), env=dict(variables))
        told = "a jail has its own /dev/shm, which shows nothing of the machine's" in ended.stderr
        assert (told, ended.returncode != 0) == (promises.has_mounts(backend),) * 2, ended
        words = ("--rw", str(made.worktree), "--json", str(made.worktree))
        explained = json.loads(elsewhere.call("explain", *options, *words, env=dict(variables)).stdout)
        assert ("write" in explained["allowed"]) is not told, explained
    finally:
        shutil.rmtree(place)
