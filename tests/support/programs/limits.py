"""Attacks on limits; `given["limits"]` holds what was set, `given["by_uid"]` whether processes are counted."""

import ctypes
import mmap
import os
import resource
import signal
import time

from tests.support.programs.harness import Given, Programme, libc
from tests.support.programs.reads import fresh

PROGRAMME = Programme()
attack, twin = PROGRAMME.attack, PROGRAMME.twin


@attack
def open_too_many_files(given: Given) -> None:
    opened = [open("/dev/null") for _ in range(given["limits"]["open_files"] + 1)]  # noqa: SIM115  # kept open
    assert opened


@attack
def write_too_large_a_file(given: Given) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with open(fresh(given, "large"), "wb", buffering=0) as file:
        for _ in range(4):
            if file.write(bytes(given["limits"]["file_size"] // 2)) < given["limits"]["file_size"] // 2:
                raise OSError(27, "short")


@attack
def write_too_large_a_memory_file(given: Given) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    os.ftruncate(os.memfd_create("large"), given["limits"]["file_size"] * 2)


@attack
def take_too_much_memory(given: Given) -> None:
    try:
        memory = mmap.mmap(-1, given["limits"]["memory"] * 2, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except MemoryError:
        raise OSError(12, "memory") from None
    for at in range(0, len(memory), 4096 * 256):
        memory[at] = 1


@attack
def take_too_much_heap(given: Given) -> None:
    try:
        assert bytearray(given["limits"]["memory"] * 2)
    except MemoryError:
        raise OSError(12, "memory") from None


@attack
def start_too_many_processes(given: Given) -> None:
    """In a child of its own group, all of which is ended."""
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        try:
            for _ in range(given["limits"]["processes"] + 20):
                if os.fork() == 0:
                    time.sleep(60)
                    os._exit(0)
        except OSError:
            os._exit(11)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.killpg(pid, signal.SIGKILL)
    if code:
        raise OSError(code, "fork")


def _lifted(name: str, number: int) -> None:
    def act(given: Given) -> None:
        hard = resource.getrlimit(number)[1]
        assert hard != resource.RLIM_INFINITY or given["limits"].get(name) is None, "no limit at all"
        try:
            resource.setrlimit(number, (hard, hard + 1))
        except ValueError as error:
            raise OSError(1, str(error)) from None

    act.__name__ = f"lift_{name}"
    attack(act)


for _row in (
    ("open_files", resource.RLIMIT_NOFILE),
    ("file_size", resource.RLIMIT_FSIZE),
    ("memory", resource.RLIMIT_DATA),
):
    _lifted(*_row)


@attack
def leave_a_core_dump(given: Given) -> None:
    """Another limit than 1 has the kernel start its helper (core(5)): by either call, for oneself and by a child."""
    for limits in ((0, 0), (0, 1), (1 << 30, 1 << 30)):
        words = (ctypes.c_ulong * 2)(*limits)
        if os.uname().machine == "x86_64":
            libc.syscall(160, resource.RLIMIT_CORE, words)
        libc.prlimit(0, resource.RLIMIT_CORE, words, None)
        if os.fork() == 0:
            libc.prlimit(os.getppid(), resource.RLIMIT_CORE, words, None)
            os._exit(0)
        os.wait()
    assert resource.getrlimit(resource.RLIMIT_CORE) != (1, 1), "none"


@twin
def stay_below(given: Given) -> None:
    opened = [open("/dev/null") for _ in range(10)]  # noqa: SIM115  # kept open
    assert opened
    with open(fresh(given, "small"), "wb") as file:
        file.write(bytes(given["limits"]["file_size"] // 2))
    assert bytearray(given["limits"]["memory"] // 4)
    pids = []
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
