"""Submodules: which commits trees record for them (gitlinks, git-ls-tree(1)), and their places in worktrees."""

import errno
import os
import stat
from collections.abc import Collection, Mapping
from typing import NamedTuple

from launcher.safefs import walk
from launcher.vcs.git import Git, split
from policy.errors import Refusal
from policy.pasted import cited, pathspec, quoted

MODE = b"160000"
"""Of a gitlink in a tree or an index."""

_MOST_PATHS = 100
"""Paths up to which only these are looked at. There may be more in an agent's `.gitmodules` than execve(2) takes."""


def of_tree(
    git: Git, tree: str, paths: Collection[str] = (), environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The gitlinks of a tree at any depth, path -> commit: at least those of `paths`, all without any."""
    words = ("ls-tree", "-r", "-z", "--full-tree", tree, "--", *(paths if len(paths) <= _MOST_PATHS else ()))
    found: dict[str, str] = {}
    for entry in split(git.run(*words, environment=environment).out, b"\0"):
        info, _, path = entry.partition(b"\t")
        mode, _, oid = info.rpartition(b" ")
        if mode.startswith(MODE):
            found[os.fsdecode(path)] = oid.decode("ascii")
    return found


# Submodules as a commit records them: names and places from `.gitmodules`, commits from the tree.


def in_index(git: Git) -> list[str]:
    """Paths of the submodules that the index names, relative to the root of its files."""
    entries = split(git.run("ls-files", "--stage", "-z").out, b"\0")
    return [os.fsdecode(entry.partition(b"\t")[2]) for entry in entries if entry.startswith(MODE)]


class Gitlink(NamedTuple):
    """One submodule in one commit: its name, its path, and the commit recorded there."""

    name: str
    path: str
    commit: str


def gitlinks_of(git: Git, commit: str) -> dict[str, Gitlink]:
    """The submodules that a commit records, by name.

    A gitlink that `.gitmodules` does not name, or with a path that would lead elsewhere, is left to git.
    """
    named = paths_by_name(git, commit)
    paths = {name: path for name, path in named.items() if _harmless(name) and _harmless(path)}
    if not paths:
        return {}
    commits = of_tree(git, commit, paths.values())
    return {name: Gitlink(name, path, commits[path]) for name, path in paths.items() if path in commits}


_MOST_KNOWN = 16
_MOST_SETTINGS, _MOST_KEPT = 8 << 20, 1 << 20
"""Bytes of a `.gitmodules` that is read, and of one that is kept: what it names takes ten times as much."""
_paths: dict[str, dict[str, str]] = {}
"""What each `.gitmodules`, by its object id, names: most commits of a repository have the same one."""


def paths_by_name(
    git: Git, commit: str, environment: Mapping[str, str] | None = None, *, ok: Collection[int] = (0, 1)
) -> dict[str, str]:
    """The paths of submodules in the `.gitmodules` of a commit, by name. Both are whatever somebody has written there.

    Args:
        ok: with 3 and 128 also of a file that git cannot parse, or that is too large, which names none.

    Refusals: gitmodules-too-large.
    """
    (one,) = git.objects([f"{commit}:.gitmodules"], environment)
    if one.kind != "blob" or one.oid in _paths:
        return _paths.get(one.oid, {})
    blob = one.oid
    if one.size > _MOST_SETTINGS:
        if 128 in ok:
            return {}
        why = f".gitmodules of {commit[:12]} has {one.size} bytes; the limit is {_MOST_SETTINGS}"
        raise Refusal("gitmodules-too-large", "the submodules of a commit cannot be read", context=why)
    pattern = r"^submodule\..*\.path$"
    done = git.run("config", "-z", "--blob", blob, "--get-regexp", pattern, ok=ok, environment=environment)
    entries = (entry.partition("\n") for entry in os.fsdecode(done.out).split("\0"))
    found = {key.removeprefix("submodule.").removesuffix(".path"): path for key, newline, path in entries if newline}
    if done.status in (0, 1) and one.size <= _MOST_KEPT:
        if len(_paths) >= _MOST_KNOWN:
            _paths.clear()
        _paths[blob] = found
    return found


def with_gitlinks(git: Git, commit: str, changes: Mapping[str, str | None], environment: Mapping[str, str]) -> str:
    """The tree of `commit` with gitlinks put (path -> commit) or taken away (path -> None).

    Args:
        environment: names a private index; overwritten.

    Raises:
        GitFailed: it cannot be done (a path leads through a file, say).
    """
    git.run("read-tree", commit, environment=environment)
    lines = []
    zero = b"0" * len(commit)
    for path, oid in changes.items():
        info = b"0 " + zero if oid is None else MODE + b" " + oid.encode()
        lines.append(info + b"\t" + os.fsencode(path) + b"\0")
    git.run("update-index", "-z", "--index-info", input=b"".join(sorted(lines)), environment=environment)
    return git.run("write-tree", "--missing-ok", environment=environment).out.decode().strip()


def _harmless(path: str) -> bool:
    """Whether a name or path stays below where it is put, and is no option (CVE-2018-11235, CVE-2018-17456)."""
    parts = path.split("/")
    return (
        bool(path)
        and not path.startswith(("/", "-"))
        and not any(part in ("", ".", "..") or part.lower() == ".git" for part in parts)
    )


# The places of submodules in a worktree that an agent has written, and what a user may type about them.
#
# A link anywhere on the path may lead to the user's own files. So no advice is to remove or fill what is behind one.

_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


class Reached(NamedTuple):
    """What a walk to a place has found.

    Attributes:
        there: whether something is there, or may be, where a directory is closed to us; reached through no link.
        link: absolute path of the first symbolic link on the way, the place itself included; "" for none.
        target: the text of that link.
    """

    there: bool
    link: str = ""
    target: str = ""

    @property
    def link_in_words(self) -> str:
        """The link in words, which can be printed."""
        return f"{cited(self.link)} is a symbolic link to {cited(self.target)}"


def reach(root: str, path: str) -> Reached:
    """Looks at each name from `root` to `path`, and stops at the first symbolic link.

    Args:
        root: canonical root of the worktree; nothing that leads to it is an agent's.
        path: absolute, in it.

    Raises:
        OSError: something else is wrong than that it is not there, or closed.
    """
    names = [name for name in path[len(root) :].split("/") if name not in ("", ".")]
    if ".." in names:
        return Reached(there=False)
    here = -1
    try:
        here = walk.open_canonical(root, os.O_PATH | os.O_DIRECTORY)
        for count, name in enumerate(names, 1):
            inner = walk.open_inside(here, name, os.O_PATH | os.O_NOFOLLOW)
            os.close(here)
            here = inner
            if stat.S_ISLNK(os.fstat(here).st_mode):
                link = "/".join((root, *names[:count]))
                return Reached(there=False, link=link, target=os.readlink("", dir_fd=here))
    except PermissionError:
        return Reached(there=True)
    except OSError as error:
        if error.errno in _ABSENT:
            return Reached(there=False)
        raise
    finally:
        if here != -1:
            os.close(here)
    return Reached(there=True)


def update_command(around: str, where: str) -> str:
    """The command that populates the submodule `where` of the repository at `around`.

    Only for a place that is reached through no link: git may follow one into what is the user's own.
    """
    return f"git -C {quoted(around)} submodule update --init -- {pathspec(where)}"


def how_to_populate(root: str | None, path: str, spelled: str) -> str:
    """What to do about a submodule that is not populated: git's command, in the repository around all; or the link."""
    seen = reach(root, f"{root}/{path}") if root is not None else Reached(there=False)
    if seen.link:
        return f"{seen.link_in_words}, so populate nothing there"
    return f"git submodule update --init -- {pathspec(spelled)}"
