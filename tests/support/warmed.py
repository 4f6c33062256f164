"""A user's process that has loaded the command, and runs command lines in children: how the command starts is tried
elsewhere, and costs more than what most verbs do.
"""

import atexit
import json
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.identity import MARKER, Who, Word

PATIENCE = 120

# What a child has imported is imported here, too, so that the next one has it.
_SERVING = r"""
import contextlib, gc, importlib, json, os, signal, sys, traceback
from launcher.__main__ import main
asked, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
for line in asked:
    program, words, env, cwd, stdin, patience = json.loads(line)
    streams = [os.memfd_create(name) for name in ("in", "out", "err", "modules")]
    os.pwrite(streams[0], stdin.encode("utf-8", "surrogateescape"), 0)
    if (pid := os.fork()) == 0:
        status = 70
        try:
            signal.alarm(patience)
            os.chdir(cwd)
            os.environ.clear()
            os.environ.update(env)
            for number, fd in enumerate(streams[:3]):
                os.dup2(fd, number)
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
            os.pwrite(streams[3], " ".join(sys.modules).encode(), 0)
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    _, *said, imported = [os.pread(fd, os.fstat(fd).st_size, 0).decode("utf-8", "surrogateescape") for fd in streams]
    for fd in streams:
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
    key = (who.prefix, python, os.getpid(), threading.get_ident())
    process = _started.get(key) or _start(who, python)
    _started[key] = process
    assert process.stdin is not None
    assert process.stdout is not None
    given = [str(word) for word in words]
    request = (program, given, who.environment(env), str(cwd or who.home), stdin, PATIENCE)
    try:
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        came = json.loads(process.stdout.readline())
    except BaseException:  # nobody reads this answer any more
        _end(_started.pop(key))
        raise
    return subprocess.CompletedProcess(given, *came)


def pids() -> set[int]:
    """These processes, which outlive tests."""
    return {process.pid for process in _started.values()}


def _start(who: Who, python: Path) -> "subprocess.Popen[str]":
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
