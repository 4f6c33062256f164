"""Git directories of worktrees that git cannot use any more: their HEAD or `commondir` is empty, garbage or gone, or
their index begins as none does.

No agent writes there, but disks fill up and machines lose power. Without a HEAD git finds no repository, and tells
nothing of what is at stake.
"""

import os
from collections.abc import Iterable

from launcher.safefs.guarded_files import Inside
from launcher.vcs import checkout
from launcher.vcs.disk import Present
from launcher.vcs.git import Git
from launcher.vcs.private import ref_files
from launcher.vcs.worktrees import admin_files
from launcher.vcs.worktrees.models import Part

MOST_LOG = 256 << 20
"""Bytes of a log of a ref that are read."""


def is_head(text: str) -> bool:
    """Whether git takes a git directory with this HEAD for one."""
    return text.startswith("ref: refs/") or ref_files.is_oid(text)


def found(part: Part) -> dict[str, str]:
    """The files by which the git directory of a part leads to no repository, or to no commit -> what they should say.

    HEAD is where its log has been last, or before that where this is no longer there. What is left without any of
    these is a branch without commits: an index and files can be kept with that.
    """
    git_dir, common_dir = os.fspath(part.git_dir), os.fspath(part.common_dir)
    if not (os.path.isdir(git_dir) and os.path.isdir(f"{common_dir}/objects")):
        return {}
    damaged: dict[str, str] = {}
    if part.linked and os.path.realpath(checkout.common_dir(git_dir, Present())) != os.path.realpath(common_dir):
        damaged["commondir"] = "../.."
    git, text = Git(common_dir), admin_files.head(git_dir)
    ref = text.removeprefix("ref: ")
    oid = git.ref(ref) if ref != text and is_head(text) else text
    if not is_head(text) or (oid and not is_commit(git, oid)):
        own = git.ref(part.ref) if part.ref else ""
        last = last_commit(git, [f"{git_dir}/logs/HEAD"], own, part.base)
        damaged["HEAD"] = f"ref: {part.ref}" if last == own and part.ref else last or "ref: refs/heads/none"
    index = Present().read(f"{git_dir}/index", 64 << 20)
    if index is not None and not index.startswith(b"DIRC"):
        damaged["index"] = "what HEAD has"
    return damaged


def cut_off(common_dir: str) -> bool:
    """Whether a crash has cut off the file of packed refs, or filled it with zeros: git can change no ref then."""
    content = Present().read(f"{common_dir}/packed-refs", MOST_LOG) or b"\n"
    return b"\0" in content or not content.endswith(b"\n")


def last_commit(git: Git, logs: Iterable[str], *further: str) -> str:
    """The last commit of the first of these logs of refs that names one that is there; else of `further`, or ""."""
    return next((oid for oid in (*logged(logs), *further) if is_commit(git, oid)), "")


def logged(logs: Iterable[str]) -> list[str]:
    """Object ids that logs of refs name, of each log the last one first."""
    lines = (line for log in logs for line in reversed((Present().read(log, MOST_LOG) or b"").splitlines()))
    return list(dict.fromkeys(line.split(b" ")[1].decode("ascii", "replace") for line in lines if b" " in line))


def is_commit(git: Git, oid: str) -> bool:
    """Whether an object id is that of a commit which is there."""
    return ref_files.is_oid(oid) and [one.kind for one in git.objects([oid])] == ["commit"]


def mend(part: Part) -> list[str]:
    """Mends what is damaged; returns what was done."""
    done = []
    for name, text in found(part).items():  # the index last: git makes it
        if name == "index":
            git = Git(os.fspath(part.git_dir))
            if git.run("read-tree", "HEAD", ok=(0, 128)).status:
                git.run("read-tree", "--empty")
        else:
            with Inside(os.fspath(part.git_dir)) as git_dir:
                git_dir.write(name, os.fsencode(f"{text}\n"), mode=None)
        done.append(f"repaired {part.git_dir}/{name}, which was damaged: it says {text} now")
    return done
