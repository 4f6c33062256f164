"""The host's index after a harvest, so that `git status` says of the worktree what is true.

The agent's own index is never looked at: it is the agent's. The host's index belongs to the commit that the branch was
at; entries that the work changed get their new state, everything else that the user had staged stays. Then the times of
files are put in, so that nothing unchanged has to be read again. No filter, hook or monitor runs (`vcs.git`), and no
repository inside the worktree is looked into, because an agent may have made it.

The index is made elsewhere and put in place under git's own lock, so that a SIGKILL leaves the old one or the new one.
"""

import os
import shutil
import stat
from collections.abc import Callable
from itertools import takewhile

from launcher.safefs.guarded_files import Inside
from launcher.safefs.remove import remove_tree
from launcher.vcs.git import EMPTY_TREE, Git, GitFailed, parsed_differences, split
from launcher.vcs.harvest.parts import Entry
from launcher.vcs.jailed_git import SOON, JailedGit
from policy.errors import Refusal

_PATIENCE = 120.0
"""Seconds for comparing files with the index."""
_MOST_READ = 4 << 30
"""Bytes of files that git may read for it, once it has been slow."""
_SETTINGS = (("core.splitIndex", "false"), ("core.preloadIndex", "true"), ("index.threads", "true"))


def bring_forward(entry: Entry, git: Git, directory: str, serial: str, step: Callable[[str], None]) -> None:
    """Brings the index of a checkout from one commit to another. May be repeated after a crash.

    Args:
        directory: a private directory for temporary files.

    Refusals: index-locked: another git holds the lock; git-died: git cannot make it, and it stays as it was.
    """
    assert entry.index is not None
    old, new = entry.index
    target = f"{entry.git_dir}/index"
    beside = f"{entry.git_dir}/paddock-index-{serial}"
    _clear(target, beside)
    own = f"{directory}/index-{serial}"  # which git in its jail may write
    making = f"{own}/index"
    remove_tree(own)
    os.mkdir(own, 0o700)
    exists = os.path.exists(target)
    if exists:
        shutil.copy2(target, making)
    objects = git.variant(_SETTINGS)
    where = {"GIT_INDEX_FILE": making}
    empty = EMPTY_TREE[len(new)]
    if not exists:
        objects.run("read-tree", new, environment=where)
    else:
        try:
            objects.run("read-tree", "-i", "-m", old or empty, new, environment=where)
        except GitFailed as failure:
            if failure.status != 128:
                raise
            # What is staged differs from both: it stays, path by path.
            _path_by_path(objects, making, old or empty, new)
    # Without mounts a command may have removed the submodule's directory, or put a link there.
    there = os.path.isdir(entry.path) and os.path.realpath(entry.path) == entry.path
    if there and not _trapped(objects, entry.path, making):
        files = JailedGit(git.git_dir, entry.path, settings=_SETTINGS)
        try:
            if not _refreshed(files, making):
                _unknown(files, where)
        except Refusal as error:
            if error.reference not in ("git-died", "git-timeout", "worktree-obstructed"):
                raise
            _unlink(f"{making}.lock")  # the index is right without: only the user's first `git status` takes longer
    _put(own, beside, target, step)


def _refreshed(git: JailedGit, index: str) -> bool:
    """Puts the times of files into an index; whether all are as it has them.

    A file that was committed may have terabytes of holes by now, which git would read: what it is slow with is looked
    at, and the largest are left to the user's own git.
    """
    where = {"GIT_INDEX_FILE": index}
    # In this order: the option counts for what comes after it (git-update-index(1)).
    words = ("update-index", "--ignore-submodules", "--refresh")
    try:
        return git.run(*words, ok=(0, 1), environment=where, timeout=SOON).status == 0
    except GitFailed as failure:
        if failure.reference != "git-timeout":
            raise
    _unlink(f"{index}.lock")
    large = b"".join(path + b"\0" for path in _largest(git, where))
    mark = ("update-index", "-z", "--stdin")
    if large:
        git.run(mark[0], "--assume-unchanged", *mark[1:], input=large, environment=where)
    status = git.run(*words, ok=(0, 1), environment=where, timeout=_PATIENCE).status
    if large:
        git.run(mark[0], "--no-assume-unchanged", *mark[1:], input=large, environment=where)
    return status == 0 and not large


def _largest(git: JailedGit, where: dict[str, str]) -> list[bytes]:
    """Paths of the files that remain when the smaller ones make up `_MOST_READ`; without those of a mark's."""
    listed = split(git.run("ls-files", "-v", "-z", environment=where).out, b"\0")
    with Inside(git.work_tree) as inside:
        sizes = ((inside.size(os.fsdecode(line[2:])) or 0, line[2:]) for line in listed if line[:2] == b"H ")
        found = sorted(one for one in sizes if one[0])
    total = 0
    for count, (size, _) in enumerate(found):
        total += size
        if total > _MOST_READ:
            return [path for _, path in found[count:]]
    return []


def _unknown(git: JailedGit, where: dict[str, str]) -> None:
    """Takes what is known of files that seem changed out of the index: the user's own git is to compare them.

    No filter has run here. Where a file is what a filter makes of its entry (Git LFS, line endings), the user's git
    would still take it for changed, because of the size that the index has of it.
    """
    out = git.run("diff-files", "-z", "--raw", "--no-abbrev", "--ignore-submodules", environment=where).out
    changed = (one for one in parsed_differences(out) if one.kind == b"M")
    lines = b"".join(b"%s %s\t%s\0" % (one.old_mode, one.old.encode(), one.path) for one in changed)
    git.run("update-index", "-z", "--index-info", input=lines, environment=where)


def _trapped(git: Git, root: str, index: str) -> bool:
    """Whether git would wait for ever on attributes: it opens every `.gitattributes` there is, a FIFO too."""
    before = b""
    with Inside(root) as inside:
        for path in split(git.run("ls-files", "-z", environment={"GIT_INDEX_FILE": index}).out, b"\0"):
            directory = path.rpartition(b"/")[0]
            if directory == before:
                continue
            # All in one directory come one after the other, so none has to be remembered.
            names = directory.split(b"/")
            same = sum(
                1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before.split(b"/"), names, strict=False))
            )
            for length in range(same + 1, len(names) + 1):
                if not _harmless(inside, b"/".join(names[:length])):
                    return True
            before = directory
        return not _harmless(inside, b"")


def _harmless(inside: Inside, directory: bytes) -> bool:
    kind = inside.kind(os.fsdecode(os.path.join(directory, b".gitattributes")))
    return kind in (None, stat.S_IFREG, stat.S_IFLNK)  # git follows no link there


def _path_by_path(git: Git, index: str, old: str, new: str) -> None:
    """Entries that are as in `old` become as in `new`; those that somebody staged otherwise stay."""
    where = {"GIT_INDEX_FILE": index}
    staged = set(git.run("diff-index", "--cached", "--name-only", "-z", "--no-renames", old, environment=where)
                 .out.split(b"\0"))  # fmt: skip
    moved = (one for one in git.differences(old, new) if one.path not in staged)
    lines = b"".join(b"%s %s\t%s\0" % (one.new_mode, one.new.encode(), one.path) for one in moved)
    git.run("update-index", "--add", "--replace", "-z", "--index-info", input=lines, environment=where)


def _put(own: str, beside: str, target: str, step: Callable[[str], None]) -> None:
    """Puts a finished index in place, as git does: through `index.lock`, which only one can make."""
    with Inside(own) as inside:
        content = inside.read("index")
    if content is None:
        raise Refusal("index-unusable", f"git in its jail wrote no index for {target}")
    times = os.lstat(f"{own}/index")
    with open(beside, "xb") as file:
        file.write(content)
    os.chmod(beside, os.stat(target).st_mode & 0o777 if os.path.exists(target) else times.st_mode & 0o777)
    # Entries that changed later than the index was read count as racy, whatever we do in between.
    os.utime(beside, ns=(times.st_atime_ns, times.st_mtime_ns))
    step("lock the index")
    try:
        os.link(beside, f"{target}.lock")
    except FileExistsError:
        os.unlink(beside)
        raise Refusal(
            "index-locked",
            f"{target} is locked by another git",
            context=f"{target}.lock exists",
            hint="if no git is running there, remove that file; then: paddock worktree harvest",
        ) from None
    step("replace the index")
    os.rename(f"{target}.lock", target)
    step("tidy the index")
    os.unlink(beside)
    remove_tree(own)


def _clear(target: str, beside: str) -> None:
    """Removes what this harvest left when it was killed: our own lock is known by being the same file."""
    try:
        ours = os.lstat(beside)
    except FileNotFoundError:
        return
    try:
        if os.path.samestat(ours, os.lstat(f"{target}.lock")):
            os.unlink(f"{target}.lock")
    except FileNotFoundError:
        pass
    os.unlink(beside)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
