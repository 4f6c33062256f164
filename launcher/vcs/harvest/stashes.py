"""What an agent has stashed: every entry of `git stash list` crosses with a harvest, each into a ref of its own.

A stash is a commit that no branch has, and all but the last are in a reflog alone (git-stash(1)), which no repository
gives to another. `git stash apply REF` takes such a commit by any name.
"""

import os

from launcher.vcs.git import Git
from launcher.vcs.harvest import agent_refs
from launcher.vcs.private import record as records
from launcher.vcs.private.contents import given_oids, given_place
from policy.pasted import quoted

TAKEN = "stashed"
"""File beside the record: which entries have been taken over. The refs are the user's, who may have removed them."""

_MOST_TAKEN = 10_000


def place(worktree_id: str) -> str:
    """What the names of refs with a worktree's stashes begin with; a number follows, the newest has the largest."""
    return f"refs/paddock/stash/{worktree_id}"


def apply(ref: str, path: str = "") -> str:
    """The command that applies such a stash.

    Args:
        path: root of the checkout; empty for the one that the user is in.
    """
    git = f"git -C {quoted(path)}" if path else "git"
    return f"{git} stash apply {ref}"


def waiting(directory: str, repository: records.Repository) -> tuple[str, ...]:
    """Entries that no harvest has taken over yet, the oldest first.

    Raises:
        Refusal: harvest-git-replaced, harvest-ref-unreadable, harvest-refs-too-large.
    """
    with agent_refs.opened(directory, repository) as refs:
        entries = refs.stash()
    if not entries:
        return ()
    known = {*taken(directory)} | given_oids(given_place(directory, repository.private))
    known |= set(Git(repository.common_dir).text("for-each-ref", "--format=%(objectname)", _own(directory)).split())
    return tuple(oid for oid in entries if oid not in known)


def named(git: Git, directory: str, oids: tuple[str, ...]) -> dict[str, str]:
    """The refs that entries get: full name -> entry.

    Args:
        oids: the oldest first.
    """
    if not oids:
        return {}
    used = git.text("for-each-ref", "--format=%(refname)", _own(directory)).split()
    numbers = [int(name.rpartition("/")[2]) for name in used if name.rpartition("/")[2].isdigit()]
    first = max(numbers, default=0) + 1
    return {f"{_own(directory)}{number}": oid for number, oid in enumerate(oids, first)}


def taken(directory: str) -> list[str]:
    """Entries that harvests have taken over."""
    return (records.noted(directory, TAKEN) or b"").decode("ascii").split()


def note(directory: str, oids: tuple[str, ...]) -> None:
    """Notes that entries have been taken over (OSError)."""
    newest = list(dict.fromkeys((*taken(directory), *oids)))[-_MOST_TAKEN:]
    records.note(directory, TAKEN, "".join(f"{oid}\n" for oid in newest).encode("ascii"))


def _own(directory: str) -> str:
    return f"{place(os.path.basename(os.path.realpath(directory)))}/"
