"""What decides how long a launcher at a terminal stays stopped: messages of the init, and the shell's SIGCONT."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher import wire
from launcher.jail import reports
from launcher.session import stops

STOPPED, CONTINUED, DENIED = reports.STOPPED, reports.CONTINUED, reports.DENIED
TOLD = [
    # Nothing but the command's own messages counts while nobody has touched the launcher.
    ([], False, False),
    ([DENIED], False, False),
    ([CONTINUED], False, True),
    ([CONTINUED, DENIED], False, True),
    ([CONTINUED, STOPPED], False, False),
    ([CONTINUED, STOPPED, CONTINUED], False, True),
    # The shell's SIGCONT has reached the launcher, too; it may have met a second Ctrl-Z since.
    ([], True, False),
    ([CONTINUED], True, False),
    ([CONTINUED, STOPPED], True, False),
    ([CONTINUED, STOPPED, CONTINUED], True, True),
    # The end of the command is the end of every stop.
    ([CONTINUED, STOPPED, reports.EXITED], False, True),
    ([CONTINUED, STOPPED, reports.EXITED], True, True),
    ([STOPPED, reports.REFUSED], True, True),
]


@pytest.fixture
def pipes() -> Iterator[tuple[int, int, tuple[int, int]]]:
    """The pipe with the init's messages, which the launcher reads without waiting, and one for copies of them."""
    reader, writer = os.pipe2(os.O_NONBLOCK)
    copy = os.pipe()
    yield reader, writer, copy
    for fd in (reader, writer, *copy):
        os.close(fd)


@pytest.mark.parametrize(("kinds", "by_shell", "goes_on"), TOLD)
def test_the_last_turn_decides(
    pipes: tuple[int, int, tuple[int, int]], kinds: list[bytes], by_shell: bool, goes_on: bool
) -> None:
    """A command that has gone on and stopped again leaves its launcher stopped; nothing is taken out of the pipe."""
    reader, writer, copy = pipes
    for kind in kinds:
        reports.send(writer, kind)
    for _ in range(2):
        assert stops.has_continued(reader, wire.Decoder(), copy, by_shell=by_shell) is goes_on


def test_the_end_of_the_pipe_is_the_end_of_the_stop() -> None:
    """An init that is gone, with its end of the pipe, leaves nobody stopped."""
    reader, writer = os.pipe2(os.O_NONBLOCK)
    os.close(writer)
    copy = os.pipe()
    assert stops.has_continued(reader, wire.Decoder(), copy, by_shell=False)
    for fd in (reader, *copy):
        os.close(fd)


def test_a_stop_that_is_over_is_none() -> None:
    """What stands still is told by the kernel, for the command may have gone on since its stop was reported."""
    script = "sleep 60 & echo $!; wait"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True, text=True) as init:
        assert init.stdout is not None
        command = int(init.stdout.readline())
        try:
            assert not stops.stands_still(init.pid)
            os.kill(command, signal.SIGSTOP)
            wait_for(command, "T")
            assert stops.stands_still(init.pid)
            os.kill(command, signal.SIGCONT)
            wait_for(command, "S")
            assert not stops.stands_still(init.pid)
        finally:
            os.killpg(init.pid, signal.SIGKILL)
    assert not stops.stands_still(init.pid)


def wait_for(pid: int, state: str) -> None:
    """Waits until the process has this letter in proc(5)."""
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != state:
        assert time.monotonic() < deadline, f"{pid} is not in the state {state}"
        time.sleep(0.01)
