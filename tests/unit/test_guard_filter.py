"""The system call filter of a jail with a guard."""

import errno

import pytest

from launcher.jail import seccomp, syscall_tables
from launcher.jail.guard import server
from tests.support.bpf import ENOSYS, EPERM, execute, seccomp_data

NOTIFY = seccomp.USER_NOTIF
MACHINES = syscall_tables.MACHINES
OTHERS = ("kill", "clone", "socket", "ioctl", "prlimit64", "mount", "bpf")


def answer(machine: str, name: str, *arguments: int, guard: bool = True, net: str = "none") -> int:
    """What a filter says to a call by name."""
    program = seccomp.program(
        machine, net=net, own_network=False, own_processes=False, own_ipc=False, kill_zero=True,
        unix_datagrams=False, guard=guard,
    )  # fmt: skip
    number = syscall_tables.number(name, machine)
    assert number is not None
    return execute(program, seccomp_data(number, syscall_tables.AUDIT_ARCH[machine], arguments))


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("net", seccomp.NETWORKS)
def test_the_mediated_calls_are_notified_of(machine: str, net: str) -> None:
    """Each call that the machine has goes to the guard, whatever its arguments and the network mode."""
    names = [name for name in seccomp.MEDIATED if syscall_tables.number(name, machine) is not None]
    assert len(names) == {"x86_64": 20, "aarch64": 14}[machine]
    for name in names:
        for arguments in ((), (-1, 0, 0o777, -1, -1, -1)):
            assert answer(machine, name, *arguments, net=net) == NOTIFY, name
            assert answer(machine, name, *arguments, net=net, guard=False) == seccomp.ALLOW, name


@pytest.mark.parametrize("machine", MACHINES)
def test_everything_else_is_judged_as_without(machine: str) -> None:
    """What the guard does not serve is never notified of: a guard does not know it."""
    served = {*seccomp.MEDIATED, *seccomp._ABSENT_WITH_GUARD}
    for name in (*syscall_tables.UNIFIED, *syscall_tables.OLDER):
        if syscall_tables.number(name, machine) is not None and name not in served:
            assert answer(machine, name) == answer(machine, name, guard=False) != NOTIFY, name


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", seccomp._ABSENT_WITH_GUARD)
def test_younger_relatives_are_absent(machine: str, name: str) -> None:
    """They read structures that nobody reads here, and nobody needs them."""
    assert answer(machine, name) == ENOSYS
    assert answer(machine, name, guard=False) == seccomp.ALLOW


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("high", [0, 1 << 32, 0xFFFFFFFF << 32])
def test_file_systems_requests_are_reduced(machine: str, high: int) -> None:
    """ioctls that change attributes are EPERM, whatever the high bits; those that read are left, and all others."""
    changing = (0x40086602, 0x40046602, 0x401C5820, 0x40087602, 0x5000940E, 0x50009401, 0x40806685, 0xC0045877, 0xF501)
    reading = (0x80086601, 0x801C581F, 0xC020660B, 0x40049409, 0x4020940D, 0xC0189436)
    others = (0x5401, 0x5413, 0x541B, 0x8915, 0x80045430)
    for request in changing:
        assert answer(machine, "ioctl", 3, high | request) == EPERM, hex(request)
        assert answer(machine, "ioctl", 3, high | request, guard=False) == seccomp.ALLOW
    for request in (*reading, *others):
        assert answer(machine, "ioctl", 3, high | request) == seccomp.ALLOW, hex(request)


@pytest.mark.parametrize("machine", MACHINES)
def test_the_other_side_of_a_terminal_is_the_guards(machine: str) -> None:
    """TIOCGPTPEER is notified of; pushing input stays closed."""
    assert answer(machine, "ioctl", 3, server.TIOCGPTPEER) == NOTIFY
    assert answer(machine, "ioctl", 3, 0x5412) == EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_foreign_machines_are_killed_before_anything_is_notified_of(machine: str) -> None:
    """A number of another instruction set never reaches the guard."""
    program = seccomp.program(
        machine, net="none", own_network=False, own_processes=False, own_ipc=False, kill_zero=True,
        unix_datagrams=False, guard=True,
    )  # fmt: skip
    number = syscall_tables.number("connect", machine)
    assert number is not None
    assert execute(program, seccomp_data(number, 0x40000003, ())) == seccomp.KILL_PROCESS
    if machine == "x86_64":
        x32 = seccomp_data(number | syscall_tables.X32_BIT, syscall_tables.AUDIT_ARCH[machine], ())
        assert execute(program, x32) == seccomp.KILL_PROCESS
    assert errno.ENOSYS == ENOSYS & 0xFFFF
