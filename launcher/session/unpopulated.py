"""Places of submodules that an index names and `launcher.vcs.checkout` does not know: what is in them.

Empty ones must stay so while a command runs (`launcher.session.gitlinks` says why). A repository that is there already
is the user's, who has put it there without `.gitmodules`; what git obeys in it must not change.
"""

import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from launcher.vcs.checkout import Checkout
from policy.host import Host
from policy.plan import Place, beneath

_POINTER = "gitdir: "


class GitHost(Host, Protocol):
    """What is asked beyond `Host`."""

    def gitlinks(self, git_dir: str) -> tuple[str, ...]:
        """Paths of the submodules that the index of a trusted git directory names."""


class Places(NamedTuple):
    """What is in the places.

    Attributes:
        empty: directories without a `.git`, or with one that leads to what a command may write: it is its own.
        absent: places where no directory is.
        inside: `.git` directories.
        pointers: other `.git`.
    """

    empty: tuple[Place, ...]
    absent: tuple[Place, ...]
    inside: tuple[str, ...]
    pointers: tuple[str, ...]


def look(found: Checkout, inside: Iterable[str], pointers: Mapping[str, str], host: GitHost) -> Places:
    """Looks into every place; git enters what is a directory, and reached by no link.

    Args:
        found: the checkout.
        inside: git directories that lie in their submodules.
        pointers: git directory -> `.git` file, of other worktrees in this one.
        host: answers about the disk.
    """
    around = {found.root: found.git_dir} | {sub.path: sub.git_dir for sub in found.submodules}
    around |= {os.path.dirname(git_dir): git_dir for git_dir in inside}
    around |= {os.path.dirname(path): git_dir for git_dir, path in pointers.items()}
    known = {root for root in around if host.kind(f"{root}/.git") is not None}
    empty: dict[str, Place] = {}
    absent: dict[str, Place] = {}
    directories, others = [], []
    for root in sorted(known):
        for name in host.gitlinks(around[root]):
            place = f"{root}/{name}"
            if place in known or not {"", ".", "..", ".git"}.isdisjoint(name.split("/")):
                continue
            if host.resolve(place) != place or host.kind(place) != "dir":
                absent[place] = (root, around[root], place)
                continue
            entry = f"{place}/.git"
            kind = host.kind(entry)
            if kind == "dir":
                directories.append(entry)
            elif kind is not None and not _leads_into(found.root, entry, host):
                others.append(entry)
            else:
                empty[place] = (root, around[root], place)
    return Places(tuple(empty.values()), tuple(absent.values()), tuple(directories), tuple(others))


def _leads_into(root: str, entry: str, host: Host) -> bool:
    """Whether git, sent by a `.git` that is no directory, would be in the worktree, or nobody can say where."""
    text = os.fsdecode((host.read(entry, 8192) or b"").rstrip(b"\n"))
    target = host.resolve(os.path.join(os.path.dirname(entry), text[len(_POINTER) :]))
    return not text.startswith(_POINTER) or target is None or beneath(target, root)
