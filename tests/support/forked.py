"""Runs a function in a forked child, because what the jail gives up cannot be taken back in the test's own process."""

import ctypes
import errno
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from launcher.jail import hygiene, landlock, syscalls
from tests.support.identity import Who

T = TypeVar("T")

_HUGE = 2 << 20
_MADV_COLLAPSE = 25  # madvise(2); EINVAL before Linux 6.1


def make_cheap() -> None:
    """Makes huge pages of this process's own memory, as far as the kernel has some; takes 3 ms for each MB.

    fork(2) copies the table of all pages, and the child's end frees it: 6 ms for a worker with all tests, and 2 so. A
    huge page is one entry there, until somebody writes to it beside a child.
    """
    madvise = ctypes.CDLL(None).madvise
    with open("/proc/self/maps") as file:
        maps = [line.split() for line in file]
    for addresses, modes, _, _, _, *name in maps:
        if modes == "rw-p" and name in ([], ["[heap]"]):
            first, end = (int(address, 16) for address in addresses.split("-"))
            for address in range(-(-first // _HUGE) * _HUGE, end - _HUGE + 1, _HUGE):
                madvise(ctypes.c_void_p(address), ctypes.c_size_t(_HUGE), _MADV_COLLAPSE)


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
    for capability in hygiene.bounding():
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


# Landlock domains in forked children, and the small tree that they are tried on.

Grants = tuple[tuple[str, str, str], ...]

ABIS = range(1, min(landlock.kernel_abi()[0], landlock.NEWEST_ABI) + 1)
"""Every ABI that this kernel can stand in for."""


def grants(*pairs: tuple[Path | str, str]) -> Grants:
    """Grants from (path, access) pairs."""
    return tuple((str(path), access, "test") for path, access in pairs)


def restricted(given: Grants, act: Callable[[], T], *, abi: int, network: bool = True) -> T:
    """What `act` returns inside a domain with these grants; in a child only."""
    hygiene.no_new_privs()
    landlock.restrict(given, abi=abi, network=network, log=True)
    return act()


def read(path: Path) -> None:
    """Opens a file for reading."""
    os.close(os.open(path, os.O_RDONLY))


def write(path: Path) -> None:
    """Opens a file for writing, as it is."""
    os.close(os.open(path, os.O_WRONLY))


def create(path: Path) -> None:
    """Makes a file that must not be there yet."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def plant(place: Path, who: Who) -> Path:
    """`open` and `shut` in `place`, each with a file, a programme, a directory with a file, and an empty directory."""
    for name in ("open", "shut"):
        (place / name / "inner").mkdir(parents=True)
        (place / name / "empty").mkdir()
        (place / name / "file").write_text("content")
        (place / name / "inner" / "deep").write_text("content")
        (place / name / "tool").write_text("#!/bin/sh\n")
        (place / name / "tool").chmod(0o755)
    return who.give(place)


# Killing a function at each of its changes of the disk, one run after the other.

CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.chmod", "os.utime", "os.rmdir", "subprocess.Popen")


def killed_at(number: int, act: Callable[[], object]) -> bool:
    """Runs `act` in a child that is killed before its change number `number`; whether it came so far."""

    def child() -> None:
        left = number

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal left
            changes = event in CHANGES or (event == "open" and isinstance(arguments[2], int)
                                           and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))  # fmt: skip
            if changes:
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        act()

    try:
        run(child)
    except Killed:
        return True
    return False
