"""Promises about processes: what they inherit, whom they can touch, whom they can see."""

import os
import select
import shutil
import signal
import socket
import struct
import subprocess
from contextlib import ExitStack

import pytest

from policy import promises
from tests.support.identity import AS_A_USER
from tests.support.install import base_python
from tests.support.programs import processes
from tests.support.programs.harness import ATTACK, TWIN
from tests.support.programs.hygiene import KINDS
from tests.support.programs.scene import SECRET, Bystander, Scene, bystander, leaked


def test_promise_environment(scene: Scene) -> None:
    """No variable of the caller comes in but the listed ones, and none can be found in another process either."""
    names = ("AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "LC", "PATHS")
    loaders = ("LD_AUDIT", "PYTHONSTARTUP", "BASH_ENV", "GIT_SSH_COMMAND", "NODE_OPTIONS", "PERL5OPT", "ENV")
    hostile = {name: f"{SECRET}-{name}" for name in (*names, *loaders, "BASH_FUNC_ls%%", "XDG_SECRET", "home")}
    listed = {"LC_MESSAGES": "C.UTF-8", "TERM": "xterm-test", "ASKED": "of the caller"}
    answers = scene.tried(
        "hygiene:ENVIRONMENT",
        {"wanted": SECRET},
        *("--env", "ASKED", "--env", "GIVEN=a value = of the command line"),
        env=hostile | listed,
    )
    scene.judge("environment", answers, seen=leaked(answers))


def descriptors(stack: ExitStack, scene: Scene) -> dict[str, int]:
    """One open descriptor of each kind, high above the standard ones; they are closed by the stack."""
    (scene.place / "secret").write_text(SECRET)
    listener, (ours, theirs), (reading, writing) = socket.socket(), socket.socketpair(), os.pipe()
    memory = os.memfd_create("secret")
    os.write(memory, SECRET.encode())
    high = os.open(scene.place / "secret", os.O_RDONLY)
    os.dup2(high, 900)
    found = {
        "file": os.open(scene.place / "secret", os.O_RDWR),
        "directory": os.open(scene.place, os.O_RDONLY),
        "path": os.open("/", os.O_PATH),
        "listener": listener.detach(),
        "connected": ours.detach(),
        "pipe": reading,
        "memfd": memory,
        "pidfd": os.pidfd_open(os.getpid()),
        "eventfd": os.eventfd(1),
        "epoll": select.epoll().fileno(),
        "high": 900,
    }
    for number in (*found.values(), theirs.detach(), writing, high):
        stack.callback(_close, number)
    return found


def _close(number: int) -> None:
    try:
        os.close(number)
    except OSError:  # the epoll object closed its own
        return


def test_promise_fds(scene: Scene) -> None:
    """Of what the launcher inherits, only 0, 1 and 2 arrive, whatever kind of thing the others are."""
    with ExitStack() as stack:
        poll = select.epoll()
        stack.callback(poll.close)
        found = descriptors(stack, scene) | {"epoll": poll.fileno()}
        assert set(found) == set(KINDS)
        answers = scene.tried("hygiene:DESCRIPTORS", {"descriptors": found}, pass_fds=tuple(found.values()))
    scene.judge("fds", answers, seen=leaked(answers))


@AS_A_USER
def test_promise_fds_where_standard_ones_are_closed(scene: Scene) -> None:
    """A closed standard stream is not replaced by a descriptor of ours: what is there is /dev/null."""
    out = scene.area / "out"
    scene.own(scene.area)
    program = f'ls -l /proc/self/fd >"{out}"'
    for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        words = scene.command(["sh", "-c", program])
        ended = scene.who.run(
            ["sh", "-c", f'"$@" {closed}', "-", *words], cwd=scene.area, env=scene.environment(), stdin="typed"
        )
        assert ended.returncode == 0, (closed, ended.stderr)
        listing = out.read_text()
        for number, sign in enumerate(("<&-", ">&-", "2>&-")):
            if sign in closed.split() and number != 1:
                assert f" {number} -> /dev/null" in listing, closed
        assert {line.split()[8] for line in listing.splitlines()[1:]} <= {"0", "1", "2", "3"}, (closed, listing)


def privileged_programmes(scene: Scene) -> dict[str, str]:
    """Root's programmes with set-uid and set-gid bits and file capabilities, in a directory that the jail may use."""
    place = scene.place / "tools"
    place.mkdir()
    found = {}
    for name, mode in (("setuid", 0o4755), ("setgid", 0o2755)):
        shutil.copy("/usr/bin/id", place / name)
        found[name] = str(place / name)
        if os.geteuid() == 0:
            # For root itself another owner, or there would be nothing to see.
            other = 0 if scene.who.uid else 65534
            os.chown(place / name, other, other)
        (place / name).chmod(mode)
    shutil.copy(base_python().resolve(), place / "capable")
    found["capable"] = str(place / "capable")
    if os.geteuid() == 0:
        # struct vfs_cap_data, revision 2 with the effective bit: everything permitted.
        data = struct.pack("<IIIII", 0x02000001, 0xFFFFFFFF, 0, 0x1FF, 0)
        os.setxattr(place / "capable", "security.capability", data)
    (place / "unreadable").write_text(SECRET)
    (place / "unreadable").chmod(0)
    if os.geteuid() == 0:
        os.chown(place / "unreadable", 4, 4)
    found["unreadable"] = str(place / "unreadable")
    return found


def test_promise_privileges(scene: Scene) -> None:
    """No capability, no way to gain one: not by set-uid programmes, file capabilities, or being started by root."""
    programmes = privileged_programmes(scene)
    answers = scene.tried("hygiene:PRIVILEGES", programmes, "--ro", scene.place / "tools")
    scene.judge("privileges", answers, seen=leaked(answers))


@pytest.mark.parametrize("scene", promises.BACKENDS[:1], indirect=True)
def test_the_privileged_programmes_do_work_outside(scene: Scene) -> None:
    """Without the jail the same files give what they promise, so the attacks mean something (root makes them)."""
    programmes = privileged_programmes(scene)
    said = scene.who.run([programmes["setuid"], "-u"], cwd=scene.place).stdout.strip()
    if os.geteuid() == 0:
        assert int(said) == (0 if scene.who.uid else 65534)
    else:
        assert int(said) == os.geteuid()


def group_of(stack: ExitStack, scene: Scene) -> Bystander:
    """A bystander that leads a process group of its own."""
    return bystander(stack, scene.who, scene.place, "leader", process_group=0)


def test_promise_signals(scene: Scene) -> None:
    """No process outside can be signalled, traced, read, reniced or limited, the members of the own group included."""
    own = [name for name in processes.BY_ID if not promises.has_mounts(scene.backend)]
    with ExitStack() as stack:
        alone = group_of(stack, scene)
        peer = bystander(stack, scene.who, scene.place, "peer", process_group=alone.pid)
        before = {"alone": alone.facts(), "peer": peer.facts()}
        places = {ATTACK: {"outside": alone.pid, "peer": peer.pid}, TWIN: {"child": "child"}, "pid": alone.pid}
        answers = scene.tried(
            "processes",
            places | {"leave": [f"{name}@child" for name in own]},
            process_group=alone.pid,
        )
        if own:
            leave = [name for name in processes.PROGRAMME.placed if name not in own]
            answers += scene.tried("processes", {TWIN: {"own": "own"}, "leave": leave, "placed_only": True})
        after = {"alone": alone.facts(), "peer": peer.facts()}
    touched = {name for name in before if before[name] != after[name]}
    assert not touched, (before, after)
    scene.judge("signals", answers)


def test_promise_visibility(scene: Scene) -> None:
    """Processes outside have no name, number or command line inside, or the table says that they have."""
    with ExitStack() as stack:
        victim = bystander(stack, scene.who, scene.place, "a-word-on-the-command-line")
        answers = scene.tried("processes:SEEING", {"pid": victim.pid, "marker": "a-word-on-the-command-line"})
    scene.judge("visibility", answers)


@pytest.mark.parametrize("scene", promises.BACKENDS[:1], indirect=True)
def test_the_attacks_on_processes_do_work_without_a_jail(scene: Scene) -> None:
    """The bystander notices a signal, so its silence in the other tests means something."""
    with ExitStack() as stack:
        victim = group_of(stack, scene)
        before = victim.facts()
        subprocess.run(["kill", "-USR1", str(victim.pid)], check=True)
        subprocess.run(["renice", "-n", "3", "-p", str(victim.pid)], check=True, capture_output=True)
        after = victim.facts()
    assert (before["signals"], after["signals"]) == ([], [signal.SIGUSR1])
    assert before["nice"] != after["nice"]
