"""Measuring the memory of processes from outside, while others free theirs."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

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
