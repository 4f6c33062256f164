"""Landlock domains in forked children, and the small tree that they are tried on."""

import os
from collections.abc import Callable
from pathlib import Path

from launcher.jail import hygiene, landlock
from tests.support import forked
from tests.support.identity import Who

Grants = tuple[tuple[str, str, str], ...]

ABIS = range(1, min(landlock.kernel_abi()[0], landlock.NEWEST_ABI) + 1)
"""Every ABI that this kernel can stand in for."""


def grants(*pairs: tuple[Path | str, str]) -> Grants:
    """Grants from (path, access) pairs."""
    return tuple((str(path), access, "test") for path, access in pairs)


def restricted(given: Grants, act: Callable[[], forked.T], *, abi: int, network: bool = True) -> forked.T:
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
