"""A user's process that has loaded the command, and runs command lines in children: how the command starts is tried
elsewhere, and costs more than what most verbs do.
"""

import atexit
import json
import os
import select
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from launcher.jail import syscalls
from tests.support.identity import MARKER, Who, Word

PATIENCE = 120
APART = False
"""Whether each command is started by itself after all: where it is measured (tests/bench)."""
PR_SET_CHILD_SUBREAPER = 36

# What a child has imported is imported here, too, so that the next one has it. One that stays, which writes to a log,
# belongs to whom orphans come to.
_SERVING = r"""
import contextlib, gc, importlib, json, os, signal, sys, traceback
from launcher.__main__ import main
asked, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
def perform(program, words, env, cwd, streams):
    status = 70
    try:
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(env)
        for number, fd in enumerate(streams):
            os.dup2(fd, number)
        os.close(asked.fileno()), os.close(answers.fileno())
        if program:
            status, sys.argv[1:] = 0, words
            exec(program, {"__name__": "__main__"})
        else:
            status = main(["paddock", *words])
    except SystemExit as error:
        status = error.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        os.pwrite(modules, " ".join(sys.modules).encode(), 0)
        os._exit(status)
for line in asked:
    program, words, env, cwd, stdin, patience, log, loaded = json.loads(line)
    for name in loaded:
        importlib.import_module(name)
    *streams, modules = [os.memfd_create(name) for name in ("in", "out", "err", "modules")]
    os.pwrite(streams[0], stdin.encode("utf-8", "surrogateescape"), 0)
    if (pid := os.fork()) == 0:
        if not log:
            signal.alarm(patience)
            perform(program, words, env, cwd, streams)
        null = os.open("/dev/null", os.O_RDWR)
        if (pid := os.fork()) == 0:
            perform(program, words, env, cwd, (null, null, os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)))
        os.pwrite(streams[1], str(pid).encode(), 0)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    *said, imported = [os.pread(fd, os.fstat(fd).st_size, 0).decode("utf-8", "surrogateescape")
                       for fd in (*streams[1:], modules)]
    for fd in (*streams, modules):
        os.close(fd)
    print(json.dumps([status, *said]), file=answers, flush=True)
    for name in {*imported.split()} - {*sys.modules}:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()
"""

_started: dict[tuple[object, ...], "subprocess.Popen[str]"] = {}
"""By user, installation, and the thread that asks, so that one which waits is in nobody's way."""


def run(
    who: Who,
    python: Path,
    words: Sequence[Word],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str = "",
    program: str = "",
) -> "subprocess.CompletedProcess[str]":
    """As `who.run` with `paddock WORDS...`; streams that the command leaves open to others are not waited for.

    Args:
        who: acts.
        python: the interpreter of the installation.
        words: behind ``paddock``, or behind the programme's name.
        cwd: directory to start in, the user's home by default.
        env: variables on top of the user's own.
        stdin: text that the command reads.
        program: Python, in the place of the command.
    """
    given = [str(word) for word in words]
    if APART:
        argv: list[Word] = [python, "-I", "-c", program, *given] if program else [python.with_name("paddock"), *given]
        return who.run(argv, cwd=cwd, env=env, stdin=stdin, timeout=PATIENCE)
    came = _ask(who, python, (program, given, who.environment(env), str(cwd or who.home), stdin, PATIENCE, "", ()))
    return subprocess.CompletedProcess(given, *came)


def start(
    who: Who,
    python: Path,
    words: Sequence[Word],
    *,
    cwd: Path,
    env: Mapping[str, str],
    log: Path,
    loaded: Sequence[str],
) -> "Process":
    """A command that stays: nothing on its input and output, and a file for its errors.

    Args:
        who: acts.
        python: the interpreter of the installation.
        words: behind ``paddock``.
        cwd: directory to start in.
        env: variables on top of the user's own.
        log: takes its errors.
        loaded: modules that it needs, to be imported before.
    """
    request = ("", list(map(str, words)), who.environment(env), str(cwd), "", PATIENCE, str(log), loaded)
    status, pid, said = _ask(who, python, request)
    assert status == 0, said
    return Process(int(pid))


class Process:
    """A child of this process, which has not started it: what `subprocess.Popen` offers to those who end one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    def poll(self) -> int | None:
        """Its exit status once it has ended."""
        if self._status is None and (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            self._status = os.waitstatus_to_exitcode(ended[1])
        return self._status

    def wait(self, timeout: float = PATIENCE) -> int:
        """Waits for that."""
        if (status := self.poll()) is None:
            fd = os.pidfd_open(self.pid)
            ready, _, _ = select.select([fd], [], [], timeout)
            os.close(fd)
            status = self.poll() if ready else None
        if status is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return status

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _ask(who: Who, python: Path, request: tuple[object, ...]) -> tuple[int, str, str]:
    key = (who.prefix, python, os.getpid(), threading.get_ident())
    process = _started.get(key) or _start(who, python)
    _started[key] = process
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        status, out, err = json.loads(process.stdout.readline())
    except BaseException:  # nobody reads this answer any more
        _end(_started.pop(key))
        raise
    if threading.current_thread() is not threading.main_thread():
        _end(_started.pop(key))
    return status, out, err


def pids() -> set[int]:
    """These processes, which outlive tests."""
    return {process.pid for process in _started.values()}


def _start(who: Who, python: Path) -> "subprocess.Popen[str]":
    syscalls.prctl(PR_SET_CHILD_SUBREAPER, 1)  # which a forked child of this process is not
    if not _started:
        atexit.register(_end_all, os.getpid())
    env = {name: value for name, value in who.environment().items() if name != MARKER}
    argv = who.command([python, "-I", "-c", _SERVING])
    return subprocess.Popen(argv, cwd="/", env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.communicate()


def _end_all(pid: int) -> None:
    while pid == os.getpid() and _started:
        _end(_started.popitem()[1])
