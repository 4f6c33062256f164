"""Numbers of the calls that the guard's tests make directly, for this machine."""

import os

from launcher.jail import seccomp, syscall_tables

NAMES = (*seccomp.MEDIATED, "setxattrat", "removexattrat", "seccomp", "socket", "socketpair", "ioctl")
_MORE = {"seccomp": {"x86_64": 317, "aarch64": 277}}


def _number(name: str) -> int | None:
    machine = os.uname().machine
    return _MORE[name][machine] if name in _MORE else syscall_tables.number(name, machine)


NUMBERS = {name: number for name in NAMES if (number := _number(name)) is not None}
