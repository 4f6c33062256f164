"""What a killed checkout leaves behind, told apart from what the user wrote.

git writes a file in place, so a SIGKILL leaves files of the old commit, of the new one, and one that is half written.
Whatever is equal to one of the two, or to the beginning of one, can be made again from the objects; so it may be
removed, and the checkout then starts from files that are either git's or missing, which it takes for clean.
"""

import os
import stat
from typing import NamedTuple

from launcher.vcs.jailed_git import JailedGit
from launcher.vcs.quarantine.inside import Inside

_GITLINK = "160000"
_LINK = "120000"


class Side(NamedTuple):
    """What one commit has at a path: mode and object."""

    mode: str
    object_id: str


class Difference(NamedTuple):
    """A path whose content differs between two commits, with what each has there (one side: absent in the other)."""

    path: str
    sides: tuple[Side, ...]
    added: bool

    @property
    def is_submodule(self) -> bool:
        """One side has a submodule there."""
        return any(side.mode == _GITLINK for side in self.sides)


def sweep(git: JailedGit, differences: list[Difference], environment: dict[str, str]) -> list[str]:
    """Removes the files that can be made again, and tells which paths are free now (removed, or missing before).

    Args:
        git: on the worktree.
        differences: what lies between the two commits.
        environment: names the index whose attributes say how content is written to files.
    """
    free: list[str] = []
    files: list[Difference] = []
    with Inside(git.work_tree) as inside:
        for each in differences:
            if each.is_submodule:
                continue
            kind = inside.kind(each.path)
            if kind is None:
                if not _is_behind_link(inside, each.path):  # one that the user has put there: not git's file
                    free.append(each.path)
            elif kind == stat.S_IFLNK:
                target = os.fsencode(inside.link(each.path) or "")
                if any(side.mode == _LINK and target == _blob(git, side) for side in each.sides):
                    free.append(each.path)
                    inside.remove(each.path)
            elif kind == stat.S_IFREG:
                files.append(each)
        hashes = _hashes(git, [each.path for each in files], environment)
        for each in files:
            found = hashes.get(each.path)
            if any(side.object_id == found for side in each.sides) or any(
                _begins(git, inside, each.path, side, environment) for side in each.sides if side.mode != _LINK
            ):
                inside.remove(each.path)
                free.append(each.path)
    return free


def _is_behind_link(inside: Inside, path: str) -> bool:
    parts = path.split("/")
    return any(inside.kind("/".join(parts[:depth])) == stat.S_IFLNK for depth in range(1, len(parts)))


def _hashes(git: JailedGit, names: list[str], environment: dict[str, str]) -> dict[str, str]:
    """Object ids that files would have if they were added; one process. Names with a newline are left out."""
    asked = [name for name in names if "\n" not in name and not name.startswith('"')]
    if not asked:
        return {}
    content = b"".join(os.fsencode(name) + b"\n" for name in asked)
    found = git.run("hash-object", "--stdin-paths", input=content, environment=environment).out.decode().splitlines()
    return dict(zip(asked, found, strict=True))


def _blob(git: JailedGit, side: Side) -> bytes:
    return git.run("cat-file", "blob", side.object_id).out


def _begins(git: JailedGit, inside: Inside, name: str, side: Side, environment: dict[str, str]) -> bool:
    """Whether the file is the beginning of what git would write for this side."""
    wanted = git.run("cat-file", "--filters", f"--path={name}", side.object_id, environment=environment).out
    content = inside.read(name, len(wanted))
    return content is not None and wanted.startswith(content)
