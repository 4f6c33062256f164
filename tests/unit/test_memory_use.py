"""Measuring the memory of processes from outside, while others free theirs."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from launcher.session import watchdog
from launcher.session.watchdog import Usage
from tests.support import forked
from tests.support.identity import Who
from tests.support.install import base_python

MIB = 1 << 20
LIMIT, TAKEN, FREED = 32 * MIB, 64 * MIB, 256 * MIB

_WAITING = """
import ctypes, mmap, os, sys
kind, size = sys.argv[1], int(sys.argv[2])
if kind == "hidden":
    libc = ctypes.CDLL(None)
    libc.prctl(15, b"\\rRssAnon: x", 0, 0, 0)  # PR_SET_NAME: which /proc/PID/status shows as it is
    libc.prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
print("ready", flush=True)
sys.stdin.readline()
if kind == "file":
    kept = os.memfd_create("kept")
    os.write(kept, bytes(size))
else:
    kept = mmap.mmap(-1, size, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
    kept[:] = bytes(size)
print("had", flush=True)
sys.stdin.read()
"""


@contextmanager
def below(kind: str) -> Iterator["subprocess.Popen[str]"]:
    """A process whose child takes `TAKEN` bytes when it reads a line."""
    words = ["sh", "-c", 'exec 3<&0; "$@" <&3 & wait', "sh", str(base_python()), "-I", "-S", "-c", _WAITING]
    words += [kind, str(TAKEN)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.mark.parametrize("kind", ["mapped", "hidden", "file"])
def test_what_others_free_meanwhile_hides_nothing(user: Who, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Memory that is shared, also of a process that nobody may look into; and a file in memory that nobody maps."""
    monkeypatch.setattr(watchdog, "FILES_EVERY", 0.0)

    def measured() -> tuple[int, int]:
        others = os.memfd_create("others")
        for _ in range(FREED // MIB):
            os.write(others, bytes(MIB))
        with below(kind) as process:
            usage = Usage(process.pid, scratch=False)
            usage.look()
            before = usage.memory(LIMIT)
            os.close(others)
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "had\n"
            usage.look()
            return before, usage.memory(LIMIT)

    before, after = forked.run(measured, user)
    assert before < LIMIT < after < 2 * TAKEN


def test_who_has_too_much_to_be_looked_at_hides_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that takes too long says so, and does not go on."""
    own, device = os.getpid(), {watchdog._shared_memory_device()}
    assert watchdog.nameless_files([own], device, wide=False)[1] == set()
    monkeypatch.setattr(watchdog, "MOST_SECONDS", -1.0)
    assert watchdog.nameless_files([own], device, wide=False) == (0, {own})


_HIDING = """
import array, ctypes, mmap, os, socket, sys, threading
kind, name = sys.argv[1:]
libc = ctypes.CDLL(None)
file = os.memfd_create("x") if name == "memory" else os.open(name, os.O_RDWR | os.O_CREAT)
if name != "memory":
    os.unlink(name)
os.write(file, bytes(1 << 20))
if kind == "sent":
    pair = socket.socketpair()
    pair[0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file]))])
elif kind in ("shared", "private"):
    libc.mmap(None, ctypes.c_size_t(4096), 1, 1 if kind == "shared" else 2, file, ctypes.c_long(0))
elif kind == "anonymous":
    kept = mmap.mmap(-1, 1 << 20)
def wait():
    print("ready", flush=True)
    sys.stdin.read()
if kind == "thread":
    def alone():
        libc.unshare(0x400)
        mine = os.memfd_create("mine")
        os.write(mine, bytes(2 << 20))
        wait()
    thread = threading.Thread(target=alone)
    thread.start()
    thread.join()
else:
    if kind != "open":
        os.close(file)
    wait()
"""


@pytest.mark.parametrize("where", ["memory", "disk"])
@pytest.mark.parametrize("kind", ["open", "sent", "shared", "private", "anonymous", "thread"])
def test_what_is_nowhere_open_makes_its_process_one_that_hides(tmp_path: Path, kind: str, where: str) -> None:
    """Sent and not received, it is never seen; who maps a nameless file hides from the wide bounds alone."""
    memory = watchdog._shared_memory_device()
    devices = {memory} if where == "memory" else {os.stat(tmp_path).st_dev}
    words = [str(base_python()), "-I", "-S", "-c", _HIDING, kind, "memory" if where == "memory" else f"{tmp_path}/x"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        found = {wide: watchdog.nameless_files([process.pid], devices, wide=wide) for wide in (False, True)}
        process.communicate()
    size = {"open": 1, "thread": 3 if where == "memory" else 1}.get(kind, 0) * MIB
    assert {each[0] for each in found.values()} == {size}
    wide = kind in ("sent", "shared", "private") or (kind, where) == ("anonymous", "memory")
    assert found[True][1] == ({process.pid} if wide else set())
    assert found[False][1] == ({process.pid} if kind == "sent" else set())


@pytest.mark.parametrize(("who", "counts"), [((), False), ((1, 2), False), ((1, 1), True)])
def test_the_machines_growth_counts_where_somebody_hides_twice(
    monkeypatch: pytest.MonkeyPatch, who: tuple[int, ...], counts: bool
) -> None:
    """As the machine says it, which here nobody else changes. Once may be a command that is just executed."""
    machine, looks = [100 * MIB], iter(who)
    monkeypatch.setattr(watchdog, "_shared_memory", lambda: machine[0])
    monkeypatch.setattr(watchdog, "nameless_files", lambda *_, **__: (0, {next(looks)} if who else set()))
    usage = Usage(os.getpid(), scratch=False)
    assert usage.memory(LIMIT) < LIMIT
    machine[0] += TAKEN
    assert (usage.memory(LIMIT) >= TAKEN) == counts
