"""Attacks on files that another tool obeys later: `given["file"]`, at least one directory below the worktree's root.

Placed: a place is the worktree-like directory, and each act has one of its own with `.vscode/tasks.json` in it.
The acts on single files at the root are given as `given["targets"]`.
"""

import os
import shutil

from tests.support.programs.harness import Given, Programme, syscall
from tests.support.programs.reads import fresh

PROGRAMME = Programme()
AT_FDCWD, RENAME_EXCHANGE = -100, 2


def planted(given: Given) -> str:
    """A new file in the worktree with words of the attacker."""
    path = fresh(given, "planted")
    with open(path, "w") as file:
        file.write("planted")
    return path


@PROGRAMME.pair
def write(given: Given, target: str) -> None:
    with open(target, "a") as file:
        file.write("planted")


@PROGRAMME.pair
def truncate(given: Given, target: str) -> None:
    os.truncate(target, 0)


@PROGRAMME.pair
def write_through_another_name(given: Given, target: str) -> None:
    name = fresh(given, "other-name")
    os.link(target, name)
    with open(name, "w") as file:
        file.write("planted")


@PROGRAMME.pair
def write_by_a_path_descriptor(given: Given, target: str) -> None:
    with open(f"/proc/self/fd/{os.open(target, os.O_PATH)}", "w") as file:
        file.write("planted")


@PROGRAMME.pair
def make_executable(given: Given, target: str) -> None:
    os.chmod(target, 0o755)


@PROGRAMME.pair
def exchange(given: Given, target: str) -> None:
    syscall("renameat2", AT_FDCWD, planted(given).encode(), AT_FDCWD, target.encode(), RENAME_EXCHANGE)


@PROGRAMME.pair
def replace(given: Given, target: str) -> None:
    os.rename(planted(given), target)


@PROGRAMME.pair
def replace_after_moving_away(given: Given, target: str) -> None:
    os.rename(target, fresh(given, "away"))
    with open(target, "w") as file:
        file.write("planted")


@PROGRAMME.pair
def replace_after_removal(given: Given, target: str) -> None:
    os.unlink(target)
    os.symlink(planted(given), target)


@PROGRAMME.pair
def move_the_parent(given: Given, target: str) -> None:
    parent = os.path.dirname(target)
    assert parent != given["worktree"], "at the root"
    os.rename(parent, fresh(given, "away"))
    os.mkdir(parent)
    with open(target, "w") as file:
        file.write("planted")


@PROGRAMME.pair
def exchange_the_parent(given: Given, target: str) -> None:
    parent, other = os.path.dirname(target), fresh(given, "directory")
    assert parent != given["worktree"], "at the root"
    os.mkdir(other)
    with open(f"{other}/{os.path.basename(target)}", "w") as file:
        file.write("planted")
    syscall("renameat2", AT_FDCWD, other.encode(), AT_FDCWD, parent.encode(), RENAME_EXCHANGE)


@PROGRAMME.pair
def remove_the_parent(given: Given, target: str) -> None:
    parent = os.path.dirname(target)
    assert parent != given["worktree"], "at the root"
    shutil.rmtree(parent)
    os.symlink(os.path.dirname(planted(given)), parent)


@PROGRAMME.twin
def read_them(given: Given) -> None:
    for path in given["attack"].values():
        with open(path) as file:
            assert file.read(1)


@PROGRAMME.twin
def write_beside_them(given: Given) -> None:
    with open(f"{given['worktree']}/.vscode/notes.txt", "w") as file:
        file.write("mine")
    with open(f"{given['worktree']}/.claude/notes.txt", "w") as file:
        file.write("mine")
