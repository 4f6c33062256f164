"""Runs a function in a forked child, because what the jail gives up cannot be taken back in the test's own process."""

import errno
import os
import pickle
import traceback
from collections.abc import Callable
from typing import TypeVar

from launcher.jail import capabilities, syscalls
from tests.support.identity import Who

T = TypeVar("T")


class Killed(Exception):
    """The child was ended by a signal, whose number is `signal`."""

    def __init__(self, signal: int) -> None:
        super().__init__(f"killed by signal {signal}")
        self.signal = signal


def run(act: Callable[[], T], who: Who | None = None) -> T:
    """What `act` returns in a child process; its exceptions fail the test with the child's traceback.

    Args:
        act: whatever it imports must be imported before: inside a jail there may be nothing to import from.
        who: identity to take on first (all capabilities are lost with root's uid); the test's own by default.

    Raises:
        Killed: a signal ended the child.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            if who is not None:
                become(who)
            result = (True, act())
        except BaseException:
            result = (False, traceback.format_exc())  # type: ignore[assignment]  # the other half of the message
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(pickle.dumps(result))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status < 0:
        raise Killed(-status)
    ok, value = pickle.loads(said)
    assert ok, value
    return value  # type: ignore[no-any-return]  # pickle gives back what the child put in


def become(who: Who) -> None:
    """Takes on the identity of `who` for good, in a child only."""
    if who.uid == os.getuid():
        return
    for capability in capabilities.bounding():
        syscalls.prctl(syscalls.PR_CAPBSET_DROP, capability)
    os.setgroups([])
    os.setresgid(who.gid, who.gid, who.gid)
    os.setresuid(who.uid, who.uid, who.uid)
    # Losing root made the process undumpable, so that /proc/self would belong to root.
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)


def verdict(call: Callable[..., object], *arguments: object) -> str:
    """``ok``, or the name of the errno that `call` failed with."""
    try:
        call(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "ok"
