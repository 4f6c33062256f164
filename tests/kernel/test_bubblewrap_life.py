"""The bubblewrap backend: exchanged paths while it starts, its terminal, its end."""

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.jail import processes
from tests.support import paddock as paddocks
from tests.support.features import need
from tests.support.identity import AS_A_USER, CTRL_C, CTRL_D, CTRL_Z, SHELL, Console, Who
from tests.support.install import Installed
from tests.support.paddock import BACKEND, PATIENCE, Paddock, Session, below, content
from tests.support.paddock import run_in_bubblewrap as run


@pytest.fixture
def paddock(who: Who, installed: Installed, place: Path) -> Iterator[Paddock]:
    """The installed command with a linked worktree; nothing of a session may be left."""
    need("bubblewrap")
    made = paddocks.make(who, installed, place)
    yield made
    end = time.monotonic() + PATIENCE  # what a console's end has ended is perhaps still at it
    while made.left() and time.monotonic() < end:
        time.sleep(0.05)
    assert made.left() == []


# Something changes while the jail is built

_SLOW = """#!/bin/sh
# Stands in for bwrap: lets the test act between what Paddock looked at and what bwrap mounts.
{act}
exec {bwrap} "$@"
"""


def _acting(paddock: Paddock, act: str) -> dict[str, str]:
    """An environment whose bwrap first does `act`, once a jail is wanted in earnest (there is a trial before)."""
    directory = paddock.place / "bin"
    directory.mkdir()
    bwrap = paddock.who.run(["sh", "-c", "command -v bwrap"]).stdout.strip()
    counting = f"echo >> {directory}/count; if [ $(wc -l < {directory}/count) -gt 1 ]; then {act}; fi"
    (directory / "bwrap").write_text(_SLOW.format(act=counting, bwrap=bwrap))
    (directory / "bwrap").chmod(0o755)
    paddock.who.give(directory)
    return {"PATH": f"{directory}:{paddock.who.path}"}


# What another jail may do meanwhile in a directory that both may write, and what is lost thereby.
SWAPS = {
    "a granted tree leads elsewhere": "mv {shared}/tree {shared}/kept; ln -s {outside} {shared}/tree",
    "a granted tree is another": "mv {shared}/tree {shared}/kept; mkdir {shared}/tree",
    "a protected file's directory leads elsewhere": "mv {root}/.vscode {root}/kept; ln -s {outside} {root}/.vscode",
    "a protected file is another": "mv {root}/.envrc {root}/kept; echo x > {root}/.envrc",
    "a denied directory leads elsewhere": "mv {root}/secret {root}/kept; ln -s {outside} {root}/secret",
}


@pytest.mark.parametrize("swap", SWAPS.values(), ids=SWAPS)
def test_a_path_exchanged_meanwhile_is_refused(user_paddock: Paddock, swap: str) -> None:
    """bwrap follows links; what it mounted is compared, and a command never starts in the wrong view."""
    paddock, root = user_paddock, user_paddock.worktree
    shared, outside = paddock.place / "shared", paddock.place / "outside"
    for directory in (shared / "tree", outside, root / ".vscode", root / "secret"):
        directory.mkdir(parents=True)
    for file in (outside / "tasks.json", root / ".vscode/tasks.json", root / ".envrc"):
        file.write_text("content\n")
    paddock.who.give(paddock.place)
    env = _acting(paddock, swap.format(shared=shared, outside=outside, root=root))
    words = ("run", *BACKEND, "--ro", str(shared / "tree"), "--deny", str(root / "secret"), "--", "touch", "started")
    error = paddock.refused(*words, env=env)
    assert error.reference in ("view-changed", "bubblewrap-failed"), error.text
    assert not (root / "started").exists()
    assert sorted(os.listdir(outside)) == ["tasks.json"]


def test_the_same_without_an_exchange_goes_through(user_paddock: Paddock) -> None:
    """The bwrap of the test before is not what is refused."""
    assert run(user_paddock, "--", "touch", "started", env=_acting(user_paddock, ":")).returncode == 0
    assert (user_paddock.worktree / "started").exists()


def test_a_failure_of_bubblewrap_is_no_status_of_the_command(user_paddock: Paddock) -> None:
    """What it said is the reason, and 125 the status, not the 1 that it ended with."""
    env = _acting(user_paddock, "echo 'bwrap: no room today' >&2; exit 1")
    error = user_paddock.refused("run", *BACKEND, "--", "touch", "started", env=env)
    assert (error.reference, "no room today" in error.text) == ("bubblewrap-failed", True)


# The terminal


@pytest.fixture
def console(paddock: Paddock) -> Console:
    """A shell on a terminal."""
    return Console(paddock.who, paddock.worktree)


def line(paddock: Paddock, *argv: str) -> str:
    """A command line that runs `argv` in the jail. No word of it needs quotes but the last."""
    *words, last = (*paddock.words("run", *BACKEND, "--"), *argv)
    return " ".join(words) + f" '{last}'"


@AS_A_USER
def test_ctrl_c_ends_the_command(paddock: Paddock, console: Console) -> None:
    """With 128+2."""
    with console:
        console.run(line(paddock, "sh", "-c", "echo ready; exec cat"))
        console.expect("ready\r\n")
        console.type(CTRL_C)
        console.expect("\r\n")  # the shell's, which leaves the rest of its line
        console.run(f"test $? = {128 + signal.SIGINT}")
        console.expect("<0>")


@AS_A_USER
def test_ctrl_c_is_the_commands_affair(paddock: Paddock, console: Console) -> None:
    """One that catches it lives on, and the jail with it: bwrap is not hit."""
    with console:
        console.run(line(paddock, "sh", "-c", 'trap "echo caught" INT; echo ready; read x; read x; echo got $x'))
        console.expect("ready")
        console.type(CTRL_C)
        console.expect("caught")
        console.type("one\ntwo\n")
        console.expect("got (one|two)")
        console.expect("<0>")


@AS_A_USER
def test_ctrl_z_and_fg(paddock: Paddock, console: Console) -> None:
    """Twice, and the command reads on."""
    with console:
        console.run(line(paddock, "sh", "-c", "echo ready; exec cat"))
        console.expect("ready")
        for word in ("one", "two"):
            console.type(CTRL_Z)
            console.expect("Stopped")
            console.expect(f"<{128 + signal.SIGTSTP}>")
            console.run("fg")
            console.expect(r"paddock[^\n]*\n")
            console.type(f"{word}\n")
            console.expect(word)
        console.type(CTRL_D)
        console.expect("<0>")


@AS_A_USER
def test_a_stopped_job_goes_on_with_its_command(paddock: Paddock, console: Console) -> None:
    """Without `fg`: something inside continues the command, and the launcher ends with it."""
    with console:
        os.mkfifo(paddock.worktree / "go")
        paddock.who.give(paddock.worktree)
        console.run("set -b")
        script = "(read x < go; kill -CONT $$) & kill -STOP $$; wait; exit 7"
        console.type(line(paddock, "sh", "-c", script) + "\n")
        console.expect("Stopped")
        console.type("echo > go\n")
        console.expect("Exit 7")


@AS_A_USER
def test_a_shell_inside_has_job_control(paddock: Paddock, console: Console) -> None:
    """bash is interactive, its jobs stop and continue, and the terminal is the caller's again at the end."""
    with console:
        console.run(" ".join(paddock.words("run", *BACKEND, "--", *SHELL)))
        console.type("tty; sh -c 'echo inside-$((6*7)); exec cat'\n")
        console.expect("/dev/console")
        console.expect("inside-42")
        console.type(CTRL_Z)
        console.expect("Stopped")
        console.type("fg\n")
        console.expect(r"sh -c[^\n]*\n")
        console.type("to-cat\n")
        console.expect("to-cat")
        console.type(CTRL_D)
        console.type("exit 5\n")
        console.expect("<5>")


# The end

DAEMONS = """
trap "" HUP TERM INT
setsid sh -c "(exec env -i sleep $1 <&- >&- 2>&- &)"
sleep $1 &
sh -c 'kill -STOP $$; exec sleep '$1 &
echo ready
wait
"""


def _gone(pids: list[int]) -> bool:
    """Whether all of these processes end within `PATIENCE`."""
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if not select.select([fd], [], [], PATIENCE)[0]:
                return False
        finally:
            os.close(fd)
    return True


def _launcher(process: "subprocess.Popen[bytes]") -> int:
    return process.pid


def _init(process: "subprocess.Popen[bytes]") -> int:
    *_, pid = content(process.pid, f"task/{process.pid}/children").split()  # behind what carries streams
    return int(pid)


def _bwrap(process: "subprocess.Popen[bytes]") -> int:
    return next(pid for pid in below(process.pid) if content(pid, "cmdline").startswith(b"bwrap\0"))


def _keeper(process: "subprocess.Popen[bytes]") -> int:
    return next(pid for pid in below(process.pid) if content(pid, "cmdline").startswith(b"/proc/self/fd/"))


@AS_A_USER
@pytest.mark.parametrize("victim", [_launcher, _init, _bwrap, _keeper])
def test_nothing_outlives_a_sigkill(paddock: Paddock, victim: "Callable[[subprocess.Popen[bytes]], int]") -> None:
    """Of any process of ours; the launcher, if it was not that one, tells of a death by SIGKILL."""
    mark = f"{int.from_bytes(os.urandom(4), 'little') + 10**6}"
    words = paddock.words("run", *BACKEND, "--", "sh", "-c", DAEMONS, "sh", mark)
    with paddock.who.start(words, cwd=paddock.worktree) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        ours = below(process.pid)
        marked = [pid for pid in ours if mark.encode() in content(pid, "cmdline")]
        assert len(marked) >= 3
        os.kill(victim(process), signal.SIGKILL)
        status = process.wait(PATIENCE)
    assert status == (-signal.SIGKILL if victim is _launcher else 128 + signal.SIGKILL)
    assert _gone(ours)
    if victim is _launcher:
        assert run(paddock, "--", "true").returncode == 0  # clears away what the killed one left


@AS_A_USER
def test_the_end_of_the_command_ends_its_daemons(paddock: Paddock) -> None:
    """They are gone when the launcher says so, not some time later."""
    mark = f"{int.from_bytes(os.urandom(4), 'little') + 10**6}"
    ended = run(paddock, "--", "sh", "-c", DAEMONS.replace("\nwait\n", "\nexit 3\n"), "sh", mark)
    assert ended.returncode == 3
    for entry in Path("/proc").iterdir():
        assert not (entry.name.isdecimal() and mark.encode() in content(int(entry.name), "cmdline"))


def test_further_commands_run_in_the_same_jail(user_paddock: Paddock) -> None:
    """`paddock exec` reaches it too: same view, same processes."""
    words = user_paddock.words(
        "run", *BACKEND, "--session", "further", "--", "sh", "-c", "echo ready; echo x > /tmp/x; read _"
    )
    with user_paddock.who.start(words, cwd=user_paddock.worktree) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"ready\n"
            ended = user_paddock.call(
                "exec", "further", "--", "sh", "-c", "cat /tmp/x; ls /proc | grep -c '^[12]$'; exit 4"
            )
            assert (ended.returncode, ended.stdout) == (4, "x\n2\n"), ended
        finally:
            process.stdin.close()
            process.wait(PATIENCE)


def test_of_further_commands_nothing_stays_but_what_they_left(user_paddock: Paddock) -> None:
    """What keeps a command's processes together ends with the last of them; a daemon of one lives on."""
    with Session(user_paddock, options=BACKEND) as session:
        before = set(below(session.process.pid))
        assert session.run("sh", "-c", "sleep 600 >/dev/null 2>&1 & echo done").stdout == "done\n"
        assert session.run("true").returncode == 0
        (daemon,) = [pid for pid in below(session.process.pid) if content(pid, "cmdline").startswith(b"sleep\0")]
        first = processes.parent(daemon)
        for pid in set(below(session.process.pid)) - before - {daemon, first}:
            assert ended(pid), content(pid, "cmdline")
        assert content(daemon, "cmdline") != b""
        os.kill(daemon, signal.SIGKILL)
        assert ended(first)


def ended(pid: int) -> bool:
    """Whether a process ends, or has done so."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([pidfd], [], [], PATIENCE)[0])
    finally:
        os.close(pidfd)
