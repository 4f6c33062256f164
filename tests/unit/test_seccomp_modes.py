"""Modes in the system call filter: no programme is made that takes its owner's identity; all else passes."""

import os

import pytest

from launcher.jail import seccomp, syscall_tables
from tests.support.bpf import EPERM, execute, seccomp_data

MACHINES = syscall_tables.MACHINES
MODES = (0o4755, 0o2755, 0o6755, 0o4000, 0o2000, 0o104755, 0o4755 | 0xABC << 32)
HARMLESS = (0, 0o755, 0o777, 0o1777, 0o100644, 0xFFFF0000, 0o4755 << 32)
MADE = {"creat": (0,), "mknod": (0,), "mknodat": (0, 0)}
CHANGED = {"chmod": (0,), "fchmod": (3,), "fchmodat": (-100, 0), "fchmodat2": (-100, 0)}
CREATING = (os.O_CREAT, os.O_CREAT | os.O_EXCL | os.O_RDWR, os.O_TMPFILE | os.O_RDWR, os.O_CREAT | 0x777 << 32)


def answer(
    machine: str, name: str, *arguments: int, set_gid: bool = False, guard: bool = False, watch: bool = False
) -> int | None:
    """What the filter says to a call by name; None where the machine has no such call."""
    number = syscall_tables.number(name, machine)
    if number is None:
        return None
    program = seccomp.program(
        machine, net="open", own_network=True, own_processes=True, own_ipc=True, kill_zero=True,
        unix_datagrams=True, guard=guard, set_gid=set_gid, watch=watch,
    )  # fmt: skip
    return execute(program, seccomp_data(number, syscall_tables.AUDIT_ARCH[machine], arguments))


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("guard", [False, True])
@pytest.mark.parametrize("set_gid", [False, True])
def test_no_file_is_made_with_a_set_id_bit(machine: str, guard: bool, set_gid: bool) -> None:
    """In whatever way a mode is given; other modes pass."""
    for name, before in MADE.items():
        for mode in MODES:
            assert answer(machine, name, *before, mode, guard=guard, set_gid=set_gid) in (EPERM, None), (name, mode)
        for mode in HARMLESS:
            assert answer(machine, name, *before, mode, guard=guard) in (seccomp.ALLOW, None), (name, mode)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", ["open", "openat"])
def test_the_mode_of_an_open_counts_when_it_makes_a_file(machine: str, name: str) -> None:
    """Without O_CREAT and O_TMPFILE the register may hold anything."""
    before = (0,) if name == "open" else (-100, 0)
    for mode in MODES:
        for flags in CREATING:
            assert answer(machine, name, *before, flags, mode) in (EPERM, None)
        for flags in (os.O_RDONLY, os.O_RDWR | os.O_TRUNC, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW):
            assert answer(machine, name, *before, flags, mode) in (seccomp.ALLOW, None)
    for mode in HARMLESS:
        assert answer(machine, name, *before, os.O_CREAT, mode) in (seccomp.ALLOW, None)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", CHANGED)
def test_chmod_sets_no_set_uid_bit(machine: str, name: str) -> None:
    """And the set-gid bit only where that was asked for, because directories are shared by it."""
    for mode in MODES:
        assert answer(machine, name, *CHANGED[name], mode) in (EPERM, None)
        expected = EPERM if mode & 0o4000 else seccomp.ALLOW
        assert answer(machine, name, *CHANGED[name], mode, set_gid=True) in (expected, None)
    for mode in HARMLESS:
        assert answer(machine, name, *CHANGED[name], mode) in (seccomp.ALLOW, None)


@pytest.mark.parametrize("machine", MACHINES)
def test_the_guard_judges_chmod_itself(machine: str) -> None:
    """It knows files from directories."""
    for name, before in CHANGED.items():
        for mode in (*MODES, *HARMLESS):
            assert answer(machine, name, *before, mode, guard=True) in (seccomp.USER_NOTIF, None)


@pytest.mark.parametrize("machine", MACHINES)
def test_an_open_is_judged_in_few_steps(machine: str) -> None:
    """It is the call that is made most, and the kernel runs the filter each time: ten instructions at most."""
    program = seccomp.program(
        machine, net="none", own_network=False, own_processes=False, own_ipc=False, kill_zero=False,
        unix_datagrams=False,
    )  # fmt: skip
    steps: list[int] = []
    for flags in (os.O_RDONLY, os.O_CREAT):
        number = syscall_tables.number("openat", machine)
        assert number is not None
        data = seccomp_data(number, syscall_tables.AUDIT_ARCH[machine], (0, 0, flags, 0o644))
        assert execute(program, data, steps) == seccomp.ALLOW
    assert max(steps) <= 12


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("guard", [False, True])
def test_who_is_watched_is_not_lent_a_set_id_bit(machine: str, guard: bool) -> None:
    """`paddock learn` is told of what passes, opens included; what is forbidden stays so."""
    for name, before in {**MADE, **({} if guard else {name: CHANGED[name] for name in ("chmod", "fchmodat")})}.items():
        assert answer(machine, name, *before, 0o4755, watch=True, guard=guard) in (EPERM, None), name
        assert answer(machine, name, *before, 0o755, watch=True, guard=guard) in (seccomp.USER_NOTIF, None), name
    for flags, mode, expected in (
        (os.O_CREAT, 0o4755, EPERM),
        (os.O_CREAT, 0o644, seccomp.USER_NOTIF),
        (os.O_RDONLY, 0o4755, seccomp.USER_NOTIF),
    ):
        assert answer(machine, "openat", -100, 0, flags, mode, watch=True, guard=guard) == expected
