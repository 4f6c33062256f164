"""Running a command line for the shell tool, with an end in time and an answer of bounded size."""

import os
import select
import signal
import subprocess
import time

from launcher.bridges.files.answers import MOST_TEXT, Answer, ErrorType, ToolFailed

_HEAD = MOST_TEXT // 2
_BLOCK = 1 << 16
_PATIENCE = 5.0


def run(argv: list[str], cwd: str, seconds: float) -> Answer:
    """Runs `argv` to its end: its exit status on the first line, then what it wrote to both of its outputs.

    Args:
        argv: the command.
        cwd: directory that it is started from.
        seconds: after that it is ended, with all that it started.

    Raises:
        ToolFailed: it could not be started, or was ended (what it had written is in the message).
    """
    try:
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            start_new_session=True,
        )
    except OSError as error:
        raise ToolFailed(ErrorType.WORKER_FAILED, f"the command cannot be started: {error.strerror}") from None
    output = _Output()
    with process:
        assert process.stdout is not None
        in_time = _follow(process.stdout.fileno(), output, time.monotonic() + seconds)
        if not in_time:
            _end(process)
        status = process.wait()
    if not in_time:
        raise ToolFailed(ErrorType.TIMED_OUT, f"the command was ended after {seconds:g} seconds", output.text())
    status = status if status >= 0 else 128 - status
    return Answer(f"exit status {status}\n{output.text()}", output.note())


class _Output:
    """The beginning and the end of what was written."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._size = 0

    def add(self, data: bytes) -> None:
        self._size += len(data)
        room = _HEAD - len(self._head)
        self._head += data[:room]
        self._tail = (self._tail + data[room:])[-_HEAD:] if room < len(data) else self._tail

    def text(self) -> str:
        gap = b"\n[...]\n" if self._size > len(self._head) + len(self._tail) else b""
        return bytes(self._head + gap + self._tail).decode(errors="backslashreplace").replace("\0", "\\x00")

    def note(self) -> str:
        left_out = self._size - len(self._head) - len(self._tail)
        return f"{left_out} bytes in the middle are left out" if left_out else ""


def _follow(fd: int, output: _Output, deadline: float) -> bool:
    """Reads until the end. False: the time was up first."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            return False
        data = os.read(fd, _BLOCK)
        if not data:
            return True
        output.add(data)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """SIGTERM, which the launcher's client passes on and obeys; SIGKILL for what does not."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, sent)
        try:
            process.wait(_PATIENCE)
            return
        except subprocess.TimeoutExpired:
            continue
