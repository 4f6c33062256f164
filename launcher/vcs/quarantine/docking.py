"""Docking: the `.git` entries of a worktree lead to the trusted git directories again.

Where mounts hold a jail they never led anywhere else. Where they do not, or when something in the worktree was damaged
after all, what lies at `.git` may be an agent's work: it is moved out of the worktree, into a directory beside the
private one where no git looks for it, before the pointer is written. Host git never meets it.
"""

import os
import stat

from launcher.vcs.quarantine import lock, swap
from launcher.vcs.quarantine import record as records
from launcher.vcs.quarantine.pointer import Holder
from launcher.vcs.quarantine.swap import Docked
from policy.errors import Refusal


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
        before = swap.dock(directory)
        # The worktree's own pointer first, then outermost to innermost.
        now = tuple(_docked(directory, record, repository) for repository in record.repositories)
        known = {docked.path: docked for docked in before}
        return tuple(known.get(docked.path, docked) if docked.action == "right" else docked for docked in now)
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _docked(directory: str, record: records.Record, repository: records.Repository) -> Docked:
    path = repository.path
    entry = f"{path}/.git"
    try:
        try:
            holder = Holder(record.worktree, path)
        except (FileNotFoundError, NotADirectoryError):
            if not repository.name:
                raise
            # The agent has removed the submodule's directory, or put a link there: `git submodule update` makes it.
            return Docked(path, "gone")
        with holder:
            found = holder.stat()
            if repository.git_dir == entry:
                if found is None or not stat.S_ISDIR(found.st_mode):
                    raise Refusal(
                        "dock-main",
                        f"{entry} was the repository itself, and is gone",
                        context="a main checkout holds its repository; there is nothing that it could be restored from",
                        hint="look for it beside the worktree, or restore it from a backup",
                    )
                return Docked(path, "right")
            content = holder.read()
            if content is not None and swap.leads_to(content, path, repository.git_dir):
                return Docked(path, "right")
            aside = holder.put_aside(directory)
            relative = os.path.relpath(repository.git_dir, path)
            text = repository.git_dir if not repository.name else relative  # as git itself writes the two
            holder.put(os.fsencode(f"gitdir: {text}\n"), f".git.paddock-{os.urandom(6).hex()}")
            return Docked(path, "restored", aside)
    except OSError as error:
        raise Refusal(
            "dock-failed", f"{entry} cannot be put right", context=error.strerror or str(error),
            hint=f"do not run git in {record.worktree} until it is: paddock worktree dock",
        ) from None  # fmt: skip
