"""Which signed commit stands in the main repository for which commit of the agent's.

A harvest that signs makes commits anew. The agent's own are what his private git directory still has, until the next
session there starts from the signed ones. Kept beside the record, out of every jail's reach.
"""

from collections.abc import Mapping

from launcher.lean import os
from launcher.vcs.quarantine.record import SIGN, replace_file

NAME = "signed"
MOST = 100_000
"""Pairs that are kept; the newest ones."""


def read(directory: str) -> dict[str, str]:
    """The agent's commit -> the signed one. The signed one may be gone from the repository.

    Args:
        directory: of the worktree (`record.directory_of`).
    """
    try:
        with open(f"{directory}/{NAME}", encoding="ascii") as file:
            return dict(line.split() for line in file)
    except FileNotFoundError:
        return {}


def write(directory: str, pairs: Mapping[str, str]) -> None:
    """Replaces what is known (OSError)."""
    newest = list(pairs.items())[-MOST:]
    replace_file(f"{directory}/{NAME}", "".join(f"{old} {new}\n" for old, new in newest).encode("ascii"))


def wish(directory: str) -> None:
    """Has whoever harvests next sign (OSError). For the start of a session, whose end may be a kill."""
    replace_file(f"{directory}/{SIGN}", b"")


def wished(directory: str) -> bool:
    """Whether a session has asked for signatures on what waits there."""
    return os.path.lexists(f"{directory}/{SIGN}")


def granted(directory: str) -> None:
    """Forgets the wish: nothing waits any more (OSError)."""
    try:
        os.unlink(f"{directory}/{SIGN}")
    except FileNotFoundError:
        return
