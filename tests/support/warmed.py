"""A user's process that has loaded the command, and runs command lines in children: how the command starts is tried
elsewhere, and costs more than what most verbs do, and half of what a launch does.
"""

import atexit
import json
import os
import select
import selectors
import signal
import socket
import subprocess
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from launcher import start as starting
from launcher.jail import processes, syscalls
from tests.support.identity import MARKER, Who, Word

PATIENCE = 120
_PIPE_SIZE = 1 << 16
APART = False
"""Whether each command is started by itself after all: where it is measured (tests/bench)."""
PR_SET_CHILD_SUBREAPER = 36

_LAUNCHING = (
    "launcher.verbs.run", "launcher.session.packages", *starting.SOMETIMES,
    "launcher.vcs.private.renew", "launcher.session.carrier", "launcher.session.harvesting",
)  # fmt: skip
"""What a launcher needs, besides the shipped tables. It is not learnt from those that there were: they close what they
could tell of it by."""

# What a child has imported is imported here, too, so that the next one has it. One that stays belongs to whom orphans
# come to; its errors go to a log, or it has the streams of the request. So has one that launches, for its command.
_SERVING = r"""
import contextlib, gc, importlib, json, os, signal, socket, sys, traceback
from launcher.__main__ import main
from policy import egress_rules, toolchains
from policy.config import layer
asked, answers = socket.socket(fileno=os.dup(0)), os.fdopen(os.dup(1), "w")
null = os.open("/dev/null", os.O_RDWR)
os.dup2(null, 0), os.dup2(null, 1)
def perform(program, words, env, cwd, streams, modules=null):
    status = 70
    try:
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(env)
        for number, fd in enumerate(streams):
            os.dup2(fd, number)
        for fd in (asked.fileno(), answers.fileno(), *streams):
            os.close(fd)
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
        if modules != null:
            os.pwrite(modules, " ".join(sys.modules).encode(), 0)
        os._exit(status)
def answer(pid, *said):
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), *said]), file=answers, flush=True)
while head := socket.recv_fds(asked, 8, 3):
    if not head[0]:
        break
    request = b""
    while len(request) < int.from_bytes(head[0]):
        request += asked.recv(1 << 20)
    program, words, env, cwd, stdin, patience, log, loaded = json.loads(request)
    for name in loaded:
        importlib.import_module(name)
    if head[1] and not log:
        layer.shipped(), toolchains.load_table(), egress_rules.bundles()
        gc.freeze(), gc.disable()
        if (pid := os.fork()) == 0:
            signal.alarm(patience)
            perform(program, words, env, cwd, head[1])
        for fd in head[1]:
            os.close(fd)
        answer(pid, "", "")
        continue
    *streams, modules = [os.memfd_create(name) for name in ("in", "out", "err", "modules")]
    os.pwrite(streams[0], stdin.encode("utf-8", "surrogateescape"), 0)
    if (pid := os.fork()) == 0:
        if not log:
            signal.alarm(patience)
            perform(program, words, env, cwd, streams, modules)
        if (pid := os.fork()) == 0:
            if not head[1]:
                log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            perform(program, words, env, cwd, head[1] or (os.dup(null), os.dup(null), log), modules)
        os.pwrite(streams[1], str(pid).encode(), 0)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    *said, imported = [os.pread(fd, os.fstat(fd).st_size, 0).decode("utf-8", "surrogateescape")
                       for fd in (*streams[1:], modules)]
    for fd in (*streams, modules, *head[1]):
        os.close(fd)
    print(json.dumps([status, *said]), file=answers, flush=True)
    for name in imported.split():  # in its order: asyncio's compiled half, imported before asyncio, is of two minds
        if name not in sys.modules:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    gc.freeze()
"""

_Server = tuple["subprocess.Popen[str]", socket.socket]

_started: dict[int, _Server] = {}
"""All of this process, by their ids."""

_idle: defaultdict[tuple[object, ...], list[_Server]] = defaultdict(list)
"""Those that nobody waits for, by process, user, installation, and whether they launch.

A launch is forked again and again, and has a server that knows no other verb: the more memory, the slower the fork.
"""

_MOST_IDLE = 2
"""Of a kind: threads that ask at once have one each, and what one has loaded the next need not."""


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


def launch(
    who: Who,
    python: Path,
    words: Sequence[Word],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str = "",
    patience: int = PATIENCE,
) -> "subprocess.CompletedProcess[str]":
    """As `run`, but with pipes for the command's streams, which are read until nobody holds them any more."""
    given, text = [str(word) for word in words], stdin.encode("utf-8", "surrogateescape")
    if APART or len(text) > _PIPE_SIZE:
        return who.run([python.with_name("paddock"), *given], cwd=cwd, env=env, stdin=stdin, timeout=patience)
    pipes = [os.pipe() for _ in range(3)]
    (source, feed), (out, out_end), (err, err_end) = pipes
    os.write(feed, text)
    os.close(feed)
    request = ("", given, who.environment(env), str(cwd or who.home), "", patience, "", _LAUNCHING)
    said: list[str] = []

    def read() -> None:
        for fd in (source, out_end, err_end):
            os.close(fd)
        said.extend(_read_out(out, err))

    status, _, _ = _ask(who, python, request, (source, out_end, err_end), read)
    return subprocess.CompletedProcess(given, status, *said)


def _read_out(*sources: int) -> list[str]:
    """What comes from descriptors until each has ended, which closes it."""
    said = dict.fromkeys(sources, b"")
    with selectors.DefaultSelector() as selector:
        for fd in sources:
            selector.register(fd, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                piece = os.read(key.fd, 1 << 16)
                said[key.fd] += piece
                if not piece:
                    selector.unregister(key.fd)
                    os.close(key.fd)
    return [data.decode("utf-8", "surrogateescape") for data in said.values()]


def start(
    who: Who,
    python: Path,
    words: Sequence[Word],
    *,
    cwd: Path,
    env: Mapping[str, str],
    loaded: Sequence[str],
    log: Path | None = None,
    streams: Sequence[int] = (),
) -> "Process":
    """A command that stays.

    Args:
        who: acts.
        python: the interpreter of the installation.
        words: behind ``paddock``.
        cwd: directory to start in.
        env: variables on top of the user's own.
        loaded: modules that it needs, to be imported before.
        log: takes its errors; there is nothing on its input and output then.
        streams: or all three of them, which stay the caller's, too.
    """
    request = ("", list(map(str, words)), who.environment(env), str(cwd), "", PATIENCE, str(log), loaded)
    status, pid, said = _ask(who, python, request, streams)
    assert status == 0, said
    return Process(int(pid))


def piped(
    who: Who, python: Path, words: Sequence[Word], *, cwd: Path, env: Mapping[str, str], loaded: Sequence[str]
) -> "Process":
    """As `start`, with a pipe for each of its streams, whose other ends the process has."""
    (source, feed), (out, out_end), (err, err_end) = (os.pipe() for _ in range(3))
    theirs = (source, out_end, err_end)
    process = start(who, python, words, cwd=cwd, env=env, loaded=loaded, streams=theirs)
    for fd in theirs:
        os.close(fd)
    process.stdin, process.stdout, process.stderr = os.fdopen(feed, "wb"), os.fdopen(out, "rb"), os.fdopen(err, "rb")
    return process


class Process:
    """A child of this process, which has not started it: what `subprocess.Popen` offers to those who end one."""

    stdin: BinaryIO | None = None
    stdout: BinaryIO | None = None
    stderr: BinaryIO | None = None

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


def _ask(
    who: Who,
    python: Path,
    request: tuple[object, ...],
    streams: Sequence[int] = (),
    meanwhile: Callable[[], None] = lambda: None,
) -> tuple[int, str, str]:
    launches = request[-1] is _LAUNCHING
    idle = _idle[os.getpid(), who.prefix, python, launches]
    try:
        process, asking = server = idle.pop()
    except IndexError:
        process, asking = server = _start(who, python)
    assert process.stdout is not None
    data = json.dumps(request).encode()
    try:
        socket.send_fds(asking, [len(data).to_bytes(8)], streams)
        asking.sendall(data)
        meanwhile()
        status, out, err = json.loads(process.stdout.readline())
    except BaseException:  # nobody reads this answer any more
        _end(*server)
        raise
    if len(idle) < _MOST_IDLE:
        idle.append(server)
    else:
        _end(*server)
    return status, out, err


def pids() -> set[int]:
    """These processes, which outlive tests."""
    return {*_started}


def left() -> set[int]:
    """Children of theirs: launchers that have not ended."""
    return {child for pid in pids() for child in processes.children(pid)}


def _start(who: Who, python: Path) -> _Server:
    syscalls.prctl(PR_SET_CHILD_SUBREAPER, 1)  # which a forked child of this process is not
    if not _started:
        atexit.register(_end_all, os.getpid())
    env = {name: value for name, value in who.environment().items() if name != MARKER}
    argv = who.command([python, "-I", "-c", _SERVING])
    asking, asked = socket.socketpair()
    with asked:
        process = subprocess.Popen(argv, cwd="/", env=env, stdin=asked.fileno(), stdout=subprocess.PIPE, text=True)
    _started[process.pid] = process, asking
    return process, asking


def _end(process: "subprocess.Popen[str]", asking: socket.socket) -> None:
    del _started[process.pid]
    process.kill()
    process.communicate()
    asking.close()


def _end_all(pid: int) -> None:
    for server in [*_started.values()] if pid == os.getpid() else ():
        _end(*server)
