"""System calls behind the filter, in a child that a test has forked."""

import ctypes
import errno
from collections.abc import Callable

from launcher.jail import filtering, hygiene, seccomp, syscall_tables, syscalls
from tests.support import forked

LIBC = ctypes.CDLL(None, use_errno=True)


def raw(number: int, *arguments: int) -> str:
    """``ok`` or the errno's name of a call by number; unnamed arguments are 0."""
    words = [ctypes.c_long(argument) for argument in (*arguments, 0, 0, 0, 0, 0, 0)[:6]]
    ctypes.set_errno(0)
    if LIBC.syscall(ctypes.c_long(number), *words) != -1:
        return "ok"
    return errno.errorcode[ctypes.get_errno()]


def call(name: str, *arguments: int) -> str:
    """`raw` by name, for the machine the test runs on."""
    number = syscall_tables.number(name, syscalls.MACHINE)
    assert number is not None
    return raw(number, *arguments)


HERE = tuple(
    name
    for name in (*syscall_tables.UNIFIED, *syscall_tables.OLDER)
    if syscall_tables.number(name, syscalls.MACHINE) is not None
)


def filtered(
    act: Callable[[], forked.T],
    net: str = "none",
    *,
    own_network: bool = False,
    own_processes: bool = False,
    own_ipc: bool = False,
    kill_zero: bool = False,
    unix_datagrams: bool = False,
) -> forked.T:
    """What `act` returns behind the filter."""
    program = seccomp.program(
        syscalls.MACHINE,
        net=net,
        own_network=own_network,
        own_processes=own_processes,
        own_ipc=own_ipc,
        kill_zero=kill_zero,
        unix_datagrams=unix_datagrams,
    )
    hygiene.no_new_privs()
    filtering.install(program)
    return act()
