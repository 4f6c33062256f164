"""Starting a command in a minimal jail of its own: the process above the one that `confined` describes."""

import marshal
import os
import subprocess
import sys
from typing import IO

from launcher.jail import confined

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# The finder of `launcher.start` halves the time to import what the jail is made of.
_START = (
    "import sys; sys.path.insert(0, {root!r}); from launcher import start; "
    "sys.meta_path.insert(0, start.CompiledModules); from launcher.jail import confined; "
    "sys.exit(confined.main({fd}, {parent}))"
)


def start(
    spec: confined.Spec,
    *,
    stdin: int | IO[bytes] | None,
    stdout: int | IO[bytes] | None,
    stderr: int | IO[bytes] | None,
    hold: tuple[int, ...] = (),
) -> "subprocess.Popen[bytes]":
    """Starts a command in a jail of its own, which ends with this process.

    Args:
        spec: see `confined.Spec`.
        stdin: as for `subprocess.Popen`, like `stdout` and `stderr`.
        stdout: see there.
        stderr: see there.
        hold: descriptors that the helper inherits; the command does not get them.
    """
    told = os.memfd_create("paddock-spec", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(told), "wb") as file:
            file.write(marshal.dumps(spec))
        os.lseek(told, 0, os.SEEK_SET)
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _START.format(root=_ROOT, fd=told, parent=os.getpid())],
            cwd="/",
            stdin=stdin,
            stdout=stdout,
            bufsize=0,
            stderr=stderr,
            pass_fds=(told, *hold),
            start_new_session=True,  # no terminal, and no signal of a terminal
        )
    finally:
        os.close(told)
