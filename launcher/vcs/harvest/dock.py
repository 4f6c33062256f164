"""Docking: the `.git` entries of a worktree lead to the trusted git directories again.

Where mounts hold a jail they never led anywhere else. Where they do not, or when something in the worktree was damaged
after all, what lies at `.git` may be an agent's work: it is moved out of the worktree, into a directory beside the
private one where no git looks for it, before the pointer is written. Host git never meets it.
"""

import os
import shutil
import stat
from typing import NamedTuple

from launcher.vcs.quarantine import lock
from launcher.vcs.quarantine import record as records
from policy.errors import Refusal


class Docked(NamedTuple):
    """What docking did at one checkout.

    Attributes:
        path: the checkout's root.
        action: ``right`` (nothing to do) or ``restored``.
        aside: where what had been there is now; "" when there was nothing.
    """

    path: str
    action: str
    aside: str


def dock(directory: str) -> tuple[Docked, ...]:
    """Puts the `.git` entries of a worktree and its submodules right.

    Args:
        directory: of the worktree's private git directory.

    Raises:
        Refusal: dock-no-record, dock-busy (a session lives there), dock-main: the `.git` of a main checkout is the
            repository itself, and cannot be made anew; dock-failed.
    """
    descriptor = lock.opened(directory) if os.path.isdir(directory) else -1
    try:
        record = records.read(directory) if descriptor >= 0 else None
        if record is None:
            raise Refusal(
                "dock-no-record",
                "there is nothing to dock: no session has had a private git directory in this worktree",
                context=directory,
            )
        if not lock.alone(descriptor, wait=False):
            raise Refusal("dock-busy", f"a session is running in {record.worktree}", hint="dock when it has ended")
        # A submodule's root may be a link by now; the worktree's own pointer first, then outermost to innermost.
        return tuple(_docked(directory, record, repository) for repository in record.repositories)
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _docked(directory: str, record: records.Record, repository: records.Repository) -> Docked:
    path, entry = repository.path, f"{repository.path}/.git"
    if os.path.realpath(path) != path or not os.path.isdir(path):
        # The agent has removed the submodule's directory, or put a link there: `git submodule update` makes it anew.
        return Docked(path, "right", "")
    if repository.git_dir == entry:
        if not stat.S_ISDIR(_mode(entry)):
            raise Refusal(
                "dock-main",
                f"{entry} was the repository itself, and is gone",
                context="a main checkout holds its repository; there is nothing that it could be restored from",
                hint="look for it beside the worktree, or restore it from a backup",
            )
        return Docked(path, "right", "")
    if _right(entry, repository):
        return Docked(path, "right", "")
    aside = ""
    try:
        if os.path.lexists(entry):
            aside = f"{directory}/docked-{os.urandom(5).hex()}"
            shutil.move(entry, aside)
        relative = os.path.relpath(repository.git_dir, path)
        text = repository.git_dir if not repository.name else relative  # as git itself writes the two
        records.replace_file(entry, os.fsencode(f"gitdir: {text}\n"))
        os.chmod(entry, 0o644)
    except OSError as error:
        raise Refusal(
            "dock-failed", f"{entry} cannot be put right", context=error.strerror or str(error),
            hint=f"do not run git in {record.worktree} until it is: paddock worktree dock",
        ) from None  # fmt: skip
    return Docked(path, "restored", aside)


def _right(entry: str, repository: records.Repository) -> bool:
    """Whether a pointer file leads to the trusted git directory (gitrepository-layout(5))."""
    try:
        descriptor = os.open(entry, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return False
        content = os.fsdecode(os.read(descriptor, 8192))
    finally:
        os.close(descriptor)
    if not content.startswith("gitdir: "):
        return False
    target = content[len("gitdir: ") :].rstrip("\n")
    return os.path.realpath(os.path.join(repository.path, target)) == repository.git_dir


def _mode(path: str) -> int:
    try:
        return os.lstat(path).st_mode
    except OSError:
        return 0
