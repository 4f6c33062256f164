"""Running a command line for the shell tool, with an end in time and an answer of bounded size."""

import os
import select
import signal
import subprocess
import time
import weakref

from launcher.bridges.files.tool_calls import MOST_TEXT, Answer, ErrorType, ToolFailed

_HEAD = MOST_TEXT // 2
_BLOCK = 1 << 16
_PATIENCE = 5.0


class Stop:
    """Ends a command early, from another thread."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # Both threads hold it, and either may be the last.
        weakref.finalize(self, os.close, self._fd)

    def fileno(self) -> int:
        """Readable once it was set."""
        return self._fd

    def set(self) -> None:
        """Ends the command, if it still runs or ever begins."""
        os.eventfd_write(self._fd, 1)


def run(argv: list[str], cwd: str, seconds: float, stop: Stop | None = None) -> Answer:
    """Runs `argv` to its end: its exit status on the first line, then what it wrote to both of its outputs.

    Args:
        argv: the command.
        cwd: directory that it is started from.
        seconds: after that it is ended, with all that it started.
        stop: ends it before that.

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
        ended = _follow(process.stdout.fileno(), output, time.monotonic() + seconds, stop)
        if ended is not None:
            _end(process)
        status = process.wait()
    if ended is not None:
        raise ToolFailed(*ended, output.text())
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


def _follow(fd: int, output: _Output, deadline: float, stop: Stop | None) -> tuple[ErrorType, str] | None:
    """Reads until the end: None. Why it must end, when something else comes first."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    if stop is not None:
        poll.register(stop.fileno(), select.POLLIN)
    while True:
        left = deadline - time.monotonic()
        ready = [each for each, _ in poll.poll(max(0.0, left) * 1000)]
        if not ready:
            return ErrorType.TIMED_OUT, "the command took too long and was ended; timeout_seconds allows more"
        if fd not in ready:
            return ErrorType.CANCELLED, "the command was ended, because nobody waits for it any more"
        data = os.read(fd, _BLOCK)
        if not data:
            return None
        output.add(data)
        if len(ready) > 1:
            return ErrorType.CANCELLED, "the command was ended, because nobody waits for it any more"
        if left <= 0:
            return ErrorType.TIMED_OUT, "the command took too long and was ended; timeout_seconds allows more"


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
