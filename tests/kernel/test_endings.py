"""However a run ends, nothing of it survives: no process, no session, no lock; and the next run cleans what is left."""

import itertools
import os
import random
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from launcher.jail import processes
from tests.support.features import need
from tests.support.identity import AS_A_USER
from tests.support.paddock import Paddock, said

PATIENCE = 30.0
ITERATIONS = 12  # for each backend
MANY = 4

# A command with a daemon that has left its session and ignores what it can, and that tells when it runs.
STUBBORN = """
trap "" HUP INT TERM
setsid sh -c 'trap "" HUP INT TERM; sleep {mark} & wait' >/dev/null 2>&1 &
sleep {mark} &
echo ready
wait
"""


def mark() -> str:
    """A number of seconds that no other process sleeps for: it is found in the process list."""
    return f"{random.randrange(10**6, 10**9)}.5"


def sleepers(word: str) -> list[int]:
    """Processes with `word` on their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if word.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


def await_end(pids: list[int]) -> None:
    """Waits until all of these processes have ended."""
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            assert select.select([fd], [], [], PATIENCE)[0], f"process {pid} lives on"
        finally:
            os.close(fd)


def await_launcher(process: "subprocess.Popen[bytes]") -> int:
    """The process id of the launcher: setpriv and the script execute it, so it is the one that was started."""
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n", process.stderr and process.stderr.read()
    return process.pid


@contextmanager
def started(paddock: Paddock, *words: str, env: dict[str, str]) -> Iterator["subprocess.Popen[bytes]"]:
    """`paddock run WORDS...` in the background, ended and closed when the block ends."""
    with paddock.who.start(paddock.words("run", *words), cwd=paddock.worktree, env=env) as process:
        try:
            yield process
        finally:
            process.kill()


def age(paddock: Paddock) -> None:
    """Makes directories that were being made when their process was killed look old enough to be removed."""
    for path in (paddock.state / "sessions").glob(".new-*"):
        os.utime(path, (0, 0))


def swept(paddock: Paddock, env: dict[str, str]) -> None:
    """Runs once more, and checks that nothing of the runs before is left."""
    age(paddock)
    ended = paddock.run("--", "true", env=env)
    assert ended.returncode == 0, ended.stderr
    assert paddock.left() == []


@AS_A_USER
def test_a_signal_to_the_launcher_ends_the_command(paddock: Paddock, backend: dict[str, str]) -> None:
    """The command gets it, the launcher answers 128+N, and what the command left in the background is gone."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
        word = mark()
        line = f"setsid sleep {word} & echo ready; exec sleep {word}"
        with started(paddock, "--", "sh", "-c", line, env=backend) as process:
            os.kill(await_launcher(process), number)
            assert (number, process.wait(PATIENCE)) == (number, 128 + number)
        await_end(sleepers(word))
        assert (number, paddock.left()) == (number, [])


@AS_A_USER
def test_a_command_may_catch_signals(paddock: Paddock, backend: dict[str, str]) -> None:
    """The launcher then lives on with it; only the command decides."""
    word = mark()
    line = f'trap "echo caught; exit 5" TERM; sleep {word} & echo ready; wait'
    with started(paddock, "--", "sh", "-c", line, env=backend) as process:
        os.kill(await_launcher(process), signal.SIGTERM)
        out, _ = process.communicate(timeout=PATIENCE)
        assert (out, process.returncode) == (b"caught\n", 5)
    await_end(sleepers(word))


@AS_A_USER
def test_sigkill_of_the_launcher_ends_everything(paddock: Paddock, backend: dict[str, str]) -> None:
    """Daemons that left the session and ignore signals too; the stale session is removed by the next run."""
    word = mark()
    with started(paddock, "--session", "killed", "--", "sh", "-c", STUBBORN.format(mark=word), env=backend) as process:
        await_launcher(process)
        inside = sleepers(word)
        assert inside
        process.kill()
        assert process.wait(PATIENCE) == -signal.SIGKILL
    await_end(inside)
    assert [Path(path).name for path in paddock.left()] == ["killed"]
    ended = paddock.run("--session", "killed", "--", "true", env=backend)
    assert ended.returncode == 0, ended.stderr


@AS_A_USER
def test_a_name_in_use(paddock: Paddock, backend: dict[str, str]) -> None:
    """Two sessions cannot have one name; the first is not disturbed."""
    with started(paddock, "--session", "mine", "--", "sh", "-c", "echo ready; read x; exit 3", env=backend) as process:
        await_launcher(process)
        error = paddock.refused("run", "--session", "mine", "--", "true", env=backend)
        assert (error.reference, "mine" in error.text) == ("session-in-use", True)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(PATIENCE) == 3


@AS_A_USER
def test_sigkill_at_random_moments(paddock: Paddock, backend: dict[str, str]) -> None:
    """Whichever of our processes is killed, while it starts, runs or ends: nothing survives."""
    rng = random.Random(7)
    before = time.monotonic()
    assert paddock.run("--", "sh", "-c", "true", env=backend).returncode == 0
    whole = time.monotonic() - before
    for round_number in range(ITERATIONS):
        word = mark()
        # Every third command ends by itself, so that the end is met as well; every fifth plan is a new one.
        line = f"setsid sleep {word} & " + ("true" if round_number % 3 == 0 else f"sleep {word}")
        cold = ["--limit", f"processes={500 + round_number}"] if round_number % 5 == 0 else []
        # Without a proxy where it could be the one that is killed: a session goes on without (test_egress_life).
        net = [] if round_number % 2 else ["--net", "none"]
        with started(paddock, *cold, *net, "--", "sh", "-c", line, env=backend) as process:
            select.select([], [], [], rng.uniform(0, whole * 1.3))
            # Ours only: without a git that it asked for the user's name, a launch goes on.
            victims = [process.pid, *filter(_is_paddock, processes.descendants(process.pid))]
            victim = rng.choice(victims[: 1 if round_number % 2 else 3])
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                assert process.wait(PATIENCE) == 0
            if victim != process.pid and round_number % 3:
                _, stderr = process.communicate(timeout=PATIENCE)
                assert b"Traceback" not in stderr
                assert process.returncode not in (0, 1), stderr
        await_end(sleepers(word))
    swept(paddock, backend)


def _is_paddock(pid: int) -> bool:
    """Whether a process runs our code, be it as the launcher, as init or as somebody that tries something out."""
    try:
        return b"paddock" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0", 1)[1]
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return False


@AS_A_USER
def test_a_temp_directory_of_every_kind_is_removed(paddock: Paddock, backend: dict[str, str]) -> None:
    """Deep, closed, read-only and oddly named trees go with the session."""
    line = r"""
    cd "$TMPDIR" && mkdir closed && : >closed/file && ln -s / link && : >"$(printf 'a\nb\033')"
    deep=$(printf '%600s' | sed 's|  |d/|g') && mkdir -p "$deep" && cd "$deep"
    (umask 777; mkdir closed; : >file)
    """
    ended = paddock.run("--", "sh", "-c", line, env=backend)
    assert (ended.returncode, "not removed" in ended.stderr) == (0, False), ended.stderr


@AS_A_USER
def test_two_jails_in_one_worktree(paddock: Paddock, backend: dict[str, str]) -> None:
    """They run side by side and see each other's files; the end of one leaves the other alone."""
    with started(paddock, "--", "sh", "-c", ": >first; echo ready; read x; cat second", env=backend) as process:
        await_launcher(process)
        assert paddock.run("--", "sh", "-c", "test -e first && echo other >second", env=backend).returncode == 0
        out, _ = process.communicate(b"\n", timeout=PATIENCE)
        assert (out, process.returncode) == (b"other\n", 0)


def test_many_at_once(user_paddock: Paddock) -> None:
    """Jails of both backends in worktrees of their own, first all cold and then all warm, and then all in one worktree,
    whose private home they share and make only once: each in its own, and none left behind.
    """
    made = user_paddock
    names = [f"w{number}" for number in range(MANY)]
    add = "for name; do git worktree add -q --detach ../$name; done"
    added = made.who.run(["sh", "-ec", add, "sh", *names], cwd=made.main, timeout=120)
    assert added.returncode == 0, added.stderr
    own = [made.place / name for name in names]
    line = "pwd; echo x >>mine; cat ~/.gitconfig >/dev/null && echo done"
    for places in (own, own, [made.worktree] * MANY):
        running = [
            made.who.start(made.words("run", "--", "sh", "-c", line), cwd=path, env=env)
            for path, env in zip(places, itertools.cycle(({}, {"PADDOCK_NO_USERNS": "1"})), strict=False)
        ]
        for path, process in zip(places, running, strict=True):
            out, err = process.communicate(timeout=120)
            assert (process.returncode, out.decode()) == (0, f"{path}\ndone\n"), err
    assert {(path / "mine").read_text() for path in own} == {"x\nx\n"}
    assert (made.worktree / "mine").read_text() == "x\n" * MANY
    assert made.left() == []


@AS_A_USER
def test_a_worktree_removed_during_the_run(paddock: Paddock, backend: dict[str, str]) -> None:
    """The command goes on with what it has open, its status counts, and the session ends as ever."""
    with started(paddock, "--", "sh", "-c", "echo ready; read x; exit 9", env=backend) as process:
        await_launcher(process)
        shutil.rmtree(paddock.worktree)
        _, stderr = process.communicate(b"\n", timeout=PATIENCE)
        assert (process.returncode, b"Traceback" in stderr) == (9, False)
    error = paddock.refused("run", "--worktree", str(paddock.worktree), "--", "true", cwd=paddock.main, env=backend)
    assert error.reference == "worktree-missing"


def test_a_jail_in_a_jail(paddock: Paddock) -> None:
    """Inside namespaces a second jail works, with the guard; it holds on top of the first."""
    need("userns")
    inner = paddock.words("run", "--deny", "hidden", "--", "sh", "-c", "cat file; cat hidden/file; cat /etc/shadow")
    (paddock.worktree / "hidden").mkdir()
    (paddock.worktree / "hidden/file").write_text("secret\n")
    paddock.who.give(paddock.worktree)
    ended = paddock.run("--ro", str(paddock.installed.prefix), "--", *inner, "--freeze-root")
    assert (ended.returncode, ended.stdout) == (125, ""), ended
    inner.insert(2, "--freeze-root")
    ended = paddock.run("--ro", str(paddock.installed.prefix), "--", *inner)
    assert (ended.returncode, ended.stdout) == (1, "content\n"), ended
    assert "hidden/file: Permission denied" in ended.stderr
    assert "/etc/shadow: No such file" in ended.stderr


def test_a_second_guard_is_refused(paddock: Paddock) -> None:
    """Where a guard holds the outer jail the kernel allows no second one: the error says what to leave out."""
    env = {"PADDOCK_NO_USERNS": "1"}
    inner = paddock.words("run", "--", "true")
    ended = paddock.run("--ro", str(paddock.installed.prefix), "--", *inner, env=env)
    assert (ended.returncode, ended.stdout) == (125, "")
    error = said(ended.stderr)
    assert error.reference == "guard-missing"
    assert "leave out `paddock run --`" in error.text
