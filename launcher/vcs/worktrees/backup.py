"""Keeping what would be lost: a commit of everything in the files, held by a ref of our own."""

import os
import time

from launcher.vcs import below, gitlinks, patience
from launcher.vcs.git import Git
from launcher.vcs.harvest import transfer
from launcher.vcs.held import Held
from launcher.vcs.jailed_git import JailedGit
from launcher.vcs.quarantine.inside import Inside
from launcher.vcs.scratch import Scratch
from launcher.vcs.worktrees import condition, files, kept, strangers
from launcher.vcs.worktrees.creation import IDENTITY
from launcher.vcs.worktrees.models import Part, Worktree

PREFIX = "refs/paddock/backup"

_AUTHOR = {"GIT_AUTHOR_NAME": "paddock", "GIT_AUTHOR_EMAIL": "paddock@localhost", **IDENTITY}


def keep(worktree: Worktree) -> list[tuple[str, str]]:
    """Makes a backup of each part, and returns (git directory, ref) of each.

    A backup is a commit on top of HEAD that holds the files as they are: changed ones, new ones, and those of
    repositories that somebody put inside; not what is ignored. Where nothing differs the ref holds HEAD itself. Git
    directories that lie among the files are never read.

    Refusals: of git; worktree-obstructed.
    """
    worktree = strangers.with_populated(worktree)
    patience.check(worktree.path)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    made: list[tuple[str, str]] = []
    commits: dict[str, str] = {}
    for part in reversed(worktree.parts):  # inner ones first: the outer backup names the inner
        if not os.path.isdir(part.git_dir):
            continue
        place = os.fspath(part.path)
        gone = os.path.realpath(place) != place or not os.path.isdir(place)
        git = Git(os.fspath(part.git_dir))
        with Held(f"backup of {worktree.worktree_id}, until a ref leads to it") as held:
            commit = _head(git) if gone else _commit(JailedGit(git.git_dir, place), part, worktree, commits, held)
            if commit is None:
                continue
            commits[part.name] = commit
            ref = f"{PREFIX}/{worktree.worktree_id}/{stamp}-{os.urandom(2).hex()}"
            words = ("update-ref", "-m", "paddock: backup", ref, commit, "0" * len(commit))
            git.variant(hold=held.locks).run(*words, environment=IDENTITY)
        made.append((git.common_dir, ref))
    return made[::-1]


def keep_heads(worktree: Worktree) -> list[tuple[str, str]]:
    """Makes refs for the commits of detached HEADs that nothing else holds: of a worktree whose files are missing.

    Returns (git directory, ref) of each.
    """
    made: list[tuple[str, str]] = []
    for part in filter(lambda part: part.linked, worktree.parts):  # stores of their own are kept as a whole
        oid = files.head(os.fspath(part.git_dir))
        git = Git(os.fspath(part.common_dir))
        if not oid or oid.startswith("ref: ") or not kept.is_loose(git, oid):
            continue
        ref = f"{PREFIX}/{worktree.worktree_id}/{oid[:12]}"
        git.run("update-ref", "-m", "paddock: detached HEAD of a lost worktree", ref, oid, environment=IDENTITY)
        made.append((git.common_dir, ref))
    return made


def _head(git: Git) -> str | None:
    return git.ref("HEAD", ok=(0, 1, 128)) or None


def _commit(git: JailedGit, part: Part, worktree: Worktree, commits: dict[str, str], held: Held) -> str | None:
    head = _head(git)
    with Scratch() as scratch:
        index, objects = scratch.path("index"), scratch.path("objects")
        for directory in (index, objects):
            os.mkdir(directory)
        own = {"GIT_INDEX_FILE": f"{index}/index"}
        git.repository.run("read-tree", head or "--empty", environment=own)
        links: set[bytes] = set()
        changed: list[bytes] = []
        entries = condition.unwatched_index(git)
        if head:
            links = set(map(os.fsencode, gitlinks.of_tree(git, head)))
            names = git.run("diff-index", "--name-only", "-z", "--ignore-submodules=all", "HEAD").out.split(b"\0")
            changed = [
                name for name in (*names, *condition.unwatched_changed(git, entries)) if name and name not in links
            ]
        for place in strangers.in_places_of_submodules(condition.unwatched_gitlinks(entries), part, worktree):
            changed += _inside(part, os.fsencode(place))
        others = git.run("ls-files", "--others", "--exclude-standard", "-z").out.split(b"\0")
        for name in filter(None, others):
            changed += _below(part, name, links) if name.endswith(b"/") else [name]
        own["GIT_OBJECT_DIRECTORY"] = objects
        if changed:
            paths = b"".join(name + b"\0" for name in changed)
            git.run("update-index", "--add", "--remove", "--replace", "-z", "--stdin", input=paths, environment=own)
        for inner in worktree.submodules:
            relative = os.path.relpath(inner.path, part.path)
            if inner.name in commits and os.fsencode(relative) in links:
                entry = f"160000 {commits[inner.name]}\t{relative}\0"
                git.run("update-index", "-z", "--index-info", input=os.fsencode(entry), environment=own)
        tree = git.run("write-tree", environment=own).out.decode("ascii").strip()
        if head and tree == git.text("rev-parse", f"{head}^{{tree}}"):
            return head
        words = ["commit-tree", "-m", f"paddock: backup of {worktree.path}", *(["-p", head] if head else []), tree]
        commit = git.run(*words, environment=_AUTHOR | own).out.decode("ascii").strip()
        transfer.adopt(git, objects, commit, scratch.path("quarantine"), held)
    return commit


def _below(part: Part, name: bytes, links: set[bytes]) -> list[bytes]:
    """The files of a repository inside the worktree, which git lists as one directory; its `.git` is left out."""
    return [] if name.rstrip(b"/") in links else _inside(part, name.rstrip(b"/"))  # [] for a populated submodule


def _inside(part: Part, name: bytes) -> list[bytes]:
    """The files in a directory of a part, or what is there in place of one."""
    root = os.fsencode(part.path)
    with Inside(os.fspath(part.path)) as inside:
        if not inside.is_directory(os.fsdecode(name)):
            return [name]
    found = below.files(os.fsdecode(root), _is_git, at=os.fsdecode(name))
    return [name + b"/" + os.fsencode(path) for path, entry in found if not _is_git(entry.name)]


def _is_git(name: str) -> bool:
    return name.lower() == ".git"
