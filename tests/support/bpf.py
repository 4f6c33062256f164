"""An interpreter of classic BPF, so that filters can be judged without installing them."""

import ctypes
import errno
import os
from collections.abc import Callable
from itertools import product

from launcher.jail import hygiene, seccomp, syscall_tables, syscalls
from tests.support import forked

# Numbers of the calls that the guard's tests make directly, for this machine.

NAMES = (*seccomp.MEDIATED, "setxattrat", "removexattrat", "seccomp", "socket", "socketpair", "ioctl")
_MORE = {"seccomp": {"x86_64": 317, "aarch64": 277}}


def _number(name: str) -> int | None:
    machine = os.uname().machine
    return _MORE[name][machine] if name in _MORE else syscall_tables.number(name, machine)


NUMBERS = {name: number for name in NAMES if (number := _number(name)) is not None}


# System calls behind the filter, in a child that a test has forked.

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
    hygiene.install_filter(program)
    return act()


ENOSYS = seccomp.ERRNO | errno.ENOSYS
EPERM = seccomp.ERRNO | errno.EPERM
EACCES = seccomp.ERRNO | errno.EACCES
FAMILY = seccomp.ERRNO | errno.EAFNOSUPPORT
PROTOCOL = seccomp.ERRNO | errno.EPROTONOSUPPORT
FASTOPEN = seccomp.ERRNO | errno.EOPNOTSUPP
DONE = seccomp.ERRNO
ANSWERS = {seccomp.ALLOW, DONE, seccomp.KILL_PROCESS, ENOSYS, EPERM, EACCES, FAMILY, PROTOCOL, FASTOPEN}


def execute(program: bytes, data: bytes, steps: list[int] | None = None) -> int:
    """The answer of a program to 64 bytes of `struct seccomp_data`; an error where the kernel's checker objects.

    The number of instructions that it took is added to `steps`.
    """
    assert len(program) % 8 == 0
    accumulator = 0
    here = 0
    taken = 0
    while True:
        taken += 1
        word = program[here * 8 : here * 8 + 8]
        assert len(word) == 8, "ran off the end of the program"
        code = int.from_bytes(word[:2], "little")
        when_true, when_false = word[2], word[3]
        constant = int.from_bytes(word[4:], "little")
        here += 1
        if code == seccomp.RETURN:
            if steps is not None:
                steps.append(taken)
            return constant
        if code == seccomp.LOAD:
            assert constant % 4 == 0
            assert constant < 64
            accumulator = int.from_bytes(data[constant : constant + 4], "little")
        elif code == seccomp.AND:
            accumulator &= constant
        elif code == seccomp.JUMP:
            here += constant
        else:
            tests = {
                seccomp.JUMP_EQUAL: accumulator == constant,
                seccomp.JUMP_GREATER: accumulator > constant,
                seccomp.JUMP_ANY_BIT: accumulator & constant != 0,
            }
            here += when_true if tests[code] else when_false


def seccomp_data(number: int, arch: int, arguments: tuple[int, ...]) -> bytes:
    """`struct seccomp_data`: number, architecture, instruction pointer, six arguments."""
    words = [*arguments, 0, 0, 0, 0, 0, 0][:6]
    head = (number & 0xFFFFFFFF).to_bytes(4, "little") + arch.to_bytes(4, "little") + bytes(8)
    return head + b"".join((word & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "little") for word in words)


class Filter:
    """A filter for one machine, asked by the names of calls. Nothing is allowed beyond the minimum unless said."""

    def __init__(
        self,
        machine: str,
        net: str = "none",
        *,
        own_network: bool = False,
        own_processes: bool = False,
        own_ipc: bool = False,
        kill_zero: bool = False,
        unix_datagrams: bool = False,
    ) -> None:
        self.machine = machine
        self.program = seccomp.program(
            machine,
            net=net,
            own_network=own_network,
            own_processes=own_processes,
            own_ipc=own_ipc,
            kill_zero=kill_zero,
            unix_datagrams=unix_datagrams,
        )

    def number(self, number: int, *arguments: int, arch: int | None = None) -> int:
        """The answer to a call by number."""
        native = syscall_tables.AUDIT_ARCH[self.machine]
        return execute(self.program, seccomp_data(number, native if arch is None else arch, arguments))

    def __call__(self, name: str, *arguments: int) -> int:
        """The answer to a call by name."""
        number = syscall_tables.number(name, self.machine)
        assert number is not None, f"{self.machine} has no {name}"
        return self.number(number, *arguments)


SWITCHES = ("own_network", "own_processes", "own_ipc", "kill_zero", "unix_datagrams")
FILTERS = [
    Filter(machine, net, **dict(zip(SWITCHES, values, strict=True)))
    for machine in syscall_tables.MACHINES
    for net in seccomp.NETWORKS
    for values in product((False, True), repeat=len(SWITCHES))
]
"""Every filter that there is."""
