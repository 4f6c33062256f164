"""What git keeps of a linked worktree, as files: written and read without running git.

Layout: gitrepository-layout(5), "worktrees". `git worktree add` writes the same files.
"""

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from launcher.safefs.guarded_files import Inside
from launcher.vcs import checkout
from launcher.vcs.disk import Present
from launcher.vcs.private.swap import BUSY
from policy.documents import written

if TYPE_CHECKING:
    from launcher.vcs.worktrees.models import Part, Worktree

RECORD = "paddock-worktree.json"
"""In the git directory of each worktree that Paddock knows: what the store is made from again when it is lost."""

PLACES = "paddock-places"
"""In the git directory of a worktree that was moved: see `places`."""

LOCKED = "locked"
_BRANCH = "ref: refs/heads/"


def free_name(common_dirs: list[str], wanted: str) -> str:
    """A name that is free below ``worktrees`` in each of these repositories: `wanted`, or with a number behind it."""
    name, number = wanted, 0
    while any(os.path.lexists(f"{common}/worktrees/{name}") for common in common_dirs):
        number += 1
        name = f"{wanted}{number}"
    return name


def make(part: "Part", owner: str, zero: str) -> None:
    """Makes a worktree's git directory, locked against `git worktree prune`.

    Args:
        part: the worktree; its branch exists.
        owner: id of the worktree that it is made for, noted in the lock.
        zero: the object id of nothing, as long as the repository's ids are.
    """
    with Inside(os.fspath(part.common_dir)) as common:
        common.make("worktrees", mode=0o777)
        common.create_directory(f"worktrees/{part.git_dir.name}")
    log = f"{zero} {part.base} paddock <paddock@localhost> {int(time.time())} +0000\t\n"
    with Inside(os.fspath(part.git_dir)) as git_dir:
        # First: `git worktree prune` would take a directory that is not finished for one that is broken.
        git_dir.create(LOCKED, f"{BUSY}{owner}\n".encode())
        git_dir.create("gitdir", os.fsencode(f"{os.fspath(part.path)}/.git\n"))
        git_dir.create("commondir", b"../..\n")
        git_dir.create("HEAD", f"ref: {part.ref}\n".encode() if part.ref else f"{part.base}\n".encode())
        git_dir.create_directory("logs")
        git_dir.create("logs/HEAD", log.encode())


def restore(part: "Part", owner: str, head: str) -> None:
    """Recreates what is missing of a worktree's git directory, which `git worktree prune` removes (OSError)."""
    with Inside(os.fspath(part.common_dir)) as common:
        common.make(f"worktrees/{part.git_dir.name}", mode=0o777)
    with Inside(os.fspath(part.git_dir)) as git_dir:
        if not git_dir.exists(LOCKED):
            git_dir.create(LOCKED, f"{BUSY}{owner}\n".encode())
        for name, text in (("gitdir", f"{os.fspath(part.path)}/.git"), ("commondir", "../.."), ("HEAD", head)):
            if not git_dir.exists(name):
                # By its age a worktree is told from another one: `private.lock.is_of_another`.
                git_dir.create(name, os.fsencode(f"{text}\n"), time=0 if name == "commondir" else None)


def note_place(git_dir: str, root: str) -> None:
    """Notes where the worktree of a git directory has been: it may come back there (`places`)."""
    known = places(git_dir)
    if root not in known:
        _replace(f"{git_dir}/{PLACES}", "".join(f"{place}\0" for place in (*known, root)))


def places(git_dir: str) -> tuple[str, ...]:
    """Former roots of a worktree that has been moved, oldest first."""
    content = Present().read(f"{git_dir}/{PLACES}", 1 << 20) or b""
    return tuple(os.fsdecode(place) for place in content.split(b"\0") if place)


def record(worktree: "Worktree") -> None:
    """Writes what is known of a finished worktree into its git directory, and the list of its submodules."""
    git_dir = os.fspath(worktree.main.git_dir)
    pairs = [text for part in worktree.submodules for text in (part.name, os.fspath(part.git_dir))]
    if pairs:
        _replace(f"{git_dir}/{checkout.MODULES}", "\0".join(pairs))
    _replace(f"{git_dir}/{RECORD}", written(worktree))


def unlock(part: "Part") -> None:
    """Takes the lock of `make` away, if it is there."""
    if _locked_by(os.fspath(part.git_dir)) is not None:
        with Inside(os.fspath(part.git_dir)) as git_dir:
            git_dir.remove(LOCKED)


def lock(part: "Part", owner: str) -> None:
    """Locks a worktree that is missing, so that nobody prunes what it has, unless it is locked."""
    if not os.path.lexists(f"{part.git_dir}/{LOCKED}"):
        relock(part, owner)


def relock(part: "Part", owner: str) -> None:
    """Locks a worktree that is about to vanish, so that nobody prunes it halfway."""
    if os.path.isdir(part.git_dir):
        _replace(f"{part.git_dir}/{LOCKED}", f"{BUSY}{owner}\n")


def lock_reason(git_dir: str) -> str | None:
    """The reason in a lock that the user set (`git worktree lock`), None without one."""
    if not os.path.lexists(f"{git_dir}/{LOCKED}") or _locked_by(git_dir) is not None:
        return None
    return os.fsdecode(Present().read(f"{git_dir}/{LOCKED}") or b"").strip()


def is_ours(part: "Part", owner: str) -> bool:
    """Whether the git directory was made, or begun, for this worktree."""
    git_dir = os.fspath(part.git_dir)
    if points_to(git_dir) == f"{part.path}/.git" or _locked_by(git_dir) == owner:
        return True
    return os.path.isdir(git_dir) and not os.listdir(git_dir)


def points_to(git_dir: str) -> str | None:
    """The `.git` file that a worktree's git directory names; None when it names none."""
    content = Present().read(f"{git_dir}/gitdir", 8192)
    return None if content is None else os.path.normpath(os.path.join(git_dir, os.fsdecode(content.rstrip(b"\n"))))


def repoint(git_dir: str, entry: str) -> None:
    """Makes a worktree's git directory name another `.git` file."""
    _replace(f"{git_dir}/gitdir", f"{entry}\n")


def write_pointer(root: str, git_dir: str) -> None:
    """Writes ``.git`` in a directory that has none; `root` is canonical."""
    with Inside(root) as directory:
        directory.create(".git", os.fsencode(f"gitdir: {git_dir}\n"))


def linked(common_dir: str) -> list[str]:
    """Git directories of a repository's linked worktrees, sorted."""
    directory = f"{common_dir}/worktrees"
    return [
        f"{directory}/{name}" for name in Present().listing(directory) or () if os.path.isdir(f"{directory}/{name}")
    ]


def head(git_dir: str) -> str:
    """Content of HEAD: ``ref: NAME`` or an object id; empty when it cannot be read."""
    path = f"{git_dir}/HEAD"
    if os.path.islink(path):  # as git made it long ago
        return f"ref: {os.readlink(path)}"
    text = os.fsdecode(Present().read(path, 8192) or b"").strip()
    return f"ref: {text[4:].strip()}" if text.startswith("ref:") else text


def branch(git_dir: str) -> str | None:
    """The branch that is checked out, without ``refs/heads/``; None with a detached HEAD."""
    text = head(git_dir)
    return text.removeprefix(_BRANCH) if text.startswith(_BRANCH) else None


def checked_out(common_dir: str, ref: str) -> str | None:
    """Where a branch is checked out: the `.git` of that worktree; None when nowhere."""
    if head(common_dir) == f"ref: {ref}" and not _is_bare(common_dir):
        return common_dir
    for git_dir in linked(common_dir):
        if head(git_dir) == f"ref: {ref}":
            return points_to(git_dir) or git_dir
    return None


def discard(part: "Part", owner: str) -> list[str]:
    """Removes the git directory of a worktree if it is this one's. Returns what could not be removed."""
    git_dir = os.fspath(part.git_dir)
    if not os.path.isdir(git_dir) or not is_ours(part, owner):
        return []
    return remove(git_dir)


def remove(git_dir: str) -> list[str]:
    """Removes the git directory of one worktree, and of no other. Returns what could not be removed."""
    directory, name = os.path.split(git_dir)
    try:
        with Inside(directory) as worktrees:
            failures = worktrees.remove_tree(name)
        with Inside(os.path.dirname(directory)) as common, suppress(OSError):
            common.remove_directory(os.path.basename(directory))  # git keeps no empty `worktrees` either
    except OSError as error:
        return [f"{git_dir}: {error.strerror}"]
    return failures


def _is_bare(common_dir: str) -> bool:
    content = Present().read(f"{common_dir}/config", 1 << 20) or b""
    return any(line.replace(b" ", b"").strip().lower() == b"bare=true" for line in content.splitlines())


def _locked_by(git_dir: str) -> str | None:
    text = os.fsdecode(Present().read(f"{git_dir}/{LOCKED}", 8192) or b"").strip()
    return text.removeprefix(BUSY) if text.startswith(BUSY) else None


def _replace(path: str, text: str) -> None:
    directory, name = os.path.split(path)
    with Inside(directory) as holder:
        holder.write(name, os.fsencode(text), mode=None)
