"""What git ignores in a worktree: mostly made by tools and made again, but an agent's results may be among it.

It keeps no worktree from being removed, and no backup has it. So it is named. A repository in which somebody has worked
is the exception: package managers clone, too, but what they do is told by its reflog.
"""

import os
import re
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from launcher.safefs import walk
from launcher.safefs.guarded_files import Inside
from launcher.vcs.disk import readable
from launcher.vcs.private import pointer
from policy.pasted import cited

MOST_SHOWN = 5
"""Names in words for people."""
MOST_FILES = 20_000
"""Files that are looked at; the answer is known to be incomplete then."""
_LEAST_FILES = 100
"""Of each place, even so: what lies beside a directory of a package manager is looked for a repository, too."""
_REFLOG = re.compile(r"(?s)(?:(.*?/\.git)/(?:.*/)?|(.*?)/(?:worktrees/[^/]+/)?)logs/(?:HEAD|refs/(?:stash|heads/.*))")
"""Behind a directory called `.git`, or any other one; of a worktree that is linked to it, too."""
_BARE_REFS = re.compile(r"(?s)(.*?)/(?:refs/(?:heads|tags)/.*|packed-refs)")
"""Behind a git directory that may be a bare one: by default they have no reflogs."""
_PACKED = re.compile(rb" refs/(?:heads|tags)/")
_FETCHED = re.compile(
    rb"(?:0+ [^\t\n]*\n|[^\t\n]*\t(?:clone|checkout|reset|fetch|[Bb]ranch|rebase \((?:start|finish)|"
    rb"(?:pull|merge)[^:\n]*: Fast-forward)\b[^\n]*\n)*"
)
"""A reflog without work: what it leads to was fetched. That of a linked worktree begins without a message."""
_MOST_READ = 1 << 20
"""Bytes of a reflog, a configuration or packed refs."""


class Ignored(NamedTuple):
    """Ignored files of one part of a worktree.

    Attributes:
        names: places relative to the part, each a file or (with a slash behind it) a directory that is wholly ignored.
        files: how many files there are.
        size: their bytes.
        more: whether there are more than were looked at.
        repositories: each git directory among them to which somebody has committed, stashed or pushed (a bare one
            without remotes has been pushed to, or with a branch that was neither cloned nor fetched), and the `.git` of
            each worktree of another repository.
    """

    names: tuple[str, ...] = ()
    files: int = 0
    size: int = 0
    more: bool = False
    repositories: tuple[str, ...] = ()

    def __str__(self) -> str:
        """For people: count, size, the first names."""
        shown = ", ".join(map(cited, self.names[:MOST_SHOWN]))
        rest = f" and {len(self.names) - MOST_SHOWN} more" if len(self.names) > MOST_SHOWN else ""
        least = "at least " if self.more else ""
        return f"{least}{self.files} file{'' if self.files == 1 else 's'}, {readable(self.size)}: {shown}{rest}"


def look(root: str, places: Iterable[str]) -> Ignored:
    """The ignored files of a part; empty directories are none."""
    names: list[str] = []
    files = size = 0
    more = False
    found: dict[str, None] = {}
    for name in places:
        if files >= MOST_FILES and not name.endswith("/"):
            continue
        here, bytes_, closed = _measured(root, name, max(MOST_FILES - files, _LEAST_FILES), found)
        files, size, more = files + here, size + bytes_, more or closed
        names += [name] if here or closed else []
    return Ignored(tuple(names), files, size, more or files >= MOST_FILES, tuple(sorted(found)))


def _measured(root: str, name: str, most: int, repositories: dict[str, None]) -> tuple[int, int, bool]:
    """How many files there are, their bytes, and whether there may be more that nobody can look at.

    Args:
        repositories: gets those with work.
    """
    if not name.endswith("/"):
        with Inside(root) as inside:
            size = inside.size(name)
            return (0, 0, False) if size is None else (1, size, False)
    closed: list[str] = []
    found = walk.files(root, at=name, failed=lambda path, error: closed.append(path))
    sizes = []
    for path, entry in islice(found, most):
        path = f"{name}{path}"
        sizes.append(_size(entry))
        if "logs/" in path and (log := _REFLOG.fullmatch(path)):
            found_in = log[1] or log[2]
            if found_in not in repositories and (log[1] or is_git_dir(root, log[2])) and _has_work(root, log[0]):
                repositories[found_in] = None
        elif "/refs/" in path or entry.name == "packed-refs":
            bare = _BARE_REFS.fullmatch(path)
            if bare and bare[1] not in repositories and _is_pushed_to(root, path, bare[1]):
                repositories[bare[1]] = None
        elif entry.name == pointer.NAME and _is_of_another(root, path):
            repositories[path] = None
    return len(sizes), sum(sizes), bool(closed)


def is_git_dir(root: str, path: str) -> bool:
    """Whether a directory, relative to `root`, has what git looks for in a repository."""
    with Inside(root) as inside:
        return inside.exists(f"{path}/HEAD") and inside.is_directory(f"{path}/objects")


def _is_pushed_to(root: str, ref: str, path: str) -> bool:
    """Whether a git directory has no reflogs, and nothing that it could have been fetched from: neither a remote, or
    what `git clone --bare` has packed, nor what git-fetch(1) leaves."""
    if not is_git_dir(root, path):
        return False
    with Inside(root) as inside:
        config = inside.read(f"{path}/config", _MOST_READ)
        if ref.endswith("/packed-refs") and not _PACKED.search(inside.read(ref, _MOST_READ) or b" refs/tags/"):
            return False
        fetched = ref.endswith("/packed-refs") or inside.exists(f"{path}/FETCH_HEAD")
        return not (inside.exists(f"{path}/logs") or (fetched and config is not None and b"[remote " in config))


def _is_of_another(root: str, path: str) -> bool:
    """Whether a `.git` leads to where repositories have their linked worktrees."""
    with Inside(root) as inside:
        place = pointer.text(inside.read(path, pointer.MOST_BYTES)) or ""
    return os.path.basename(os.path.dirname(place)) == "worktrees"


def _has_work(root: str, reflog: str) -> bool:
    with Inside(root) as inside:
        content = inside.read(reflog, _MOST_READ)
    return reflog.endswith("stash") or content is None or _FETCHED.fullmatch(content) is None


def _size(entry: "os.DirEntry[str]") -> int:
    """Bytes of a file; 0 where it cannot be asked any more."""
    try:
        return entry.stat(follow_symlinks=False).st_size
    except OSError:
        return 0
