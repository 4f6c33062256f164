"""Machine code for aarch64 that Paddock carries, executed by an emulator where the machine is another."""

import os
import platform
import subprocess
from pathlib import Path

import pytest

from launcher.jail.bubblewrap import keeper_program
from tests.support.features import need

EXPECTED = ("write(", "read(", "prctl(4,0", "write(", "close_range(0,4294967295,0)")


def started(path: Path) -> "subprocess.Popen[bytes]":
    """The keeper as a process with pipes; its calls are told on standard error by the emulator."""
    emulator = [] if platform.machine() == "aarch64" else ["qemu-aarch64", "-strace"]
    return subprocess.Popen(
        [*emulator, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@pytest.mark.skipif(platform.machine() == "aarch64", reason="every test of bubblewrap runs it there")
def test_the_keeper_of_aarch64_keeps_its_order(tmp_path: Path) -> None:
    """It says that it runs, waits for a word, makes itself untouchable, says so, and lets go of everything."""
    need("qemu")
    path = tmp_path / "keeper"
    path.write_bytes(keeper_program("aarch64"))
    path.chmod(0o755)
    process = started(path)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        assert process.stdout.read(1) == b"\0"
        os.write(process.stdin.fileno(), b"x")
        assert process.stdout.read() == b"\0"  # and then its end: the descriptor is closed
        assert process.poll() is None, "it sleeps"
    finally:
        process.kill()
        process.wait()
    calls = process.stderr.read().decode().splitlines()
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()
    assert len(calls) == len(EXPECTED)
    for call, expected in zip(calls, EXPECTED, strict=True):
        assert expected in call
