"""The private git directory of an earlier worktree at the same place: not for the one that is there now.

A worktree and its private git directory go by their path. One that is made anew there would have the commits, the
branch and the stashes of the one before; so those are moved to where no session looks.
"""

import os
from pathlib import Path

from launcher.safefs.remove import remove_tree
from launcher.vcs.git import Git
from launcher.vcs.harvest import outstanding, stashes
from launcher.vcs.quarantine import contents, lock, record, signed, swap
from launcher.vcs.worktrees.request import Unharvested
from policy.errors import Refusal

_ORDINARY = {
    *(record.RECORD, record.GIT, record.POINTERS, record.STORE, record.HARVEST, record.SWAPPED_NOW, record.SIGN),
    *(record.STRICT, record.SETTLED, lock.LOCK, contents.GIVEN, signed.NAME, stashes.TAKEN, outstanding.NOTE),
}
"""What lies beside a private git directory; anything else has been put there to be kept."""


def clear(state: str, root: str, worktree_id: str, unharvested: Unharvested) -> str:
    """Makes room for a new worktree. Returns where the earlier one's private git directory is now; "" for removed.

    Args:
        state: Paddock's state directory.
        root: of the worktree.
        worktree_id: its id.
        unharvested: tells of commits in a private git directory.

    Refusals: worktree-in-use (a session lives in it); state-unusable.
    """
    directory = record.directory_of(state, worktree_id)
    if not os.path.isdir(directory):
        return ""
    try:
        descriptor = lock.opened(directory)
        try:
            if not lock.alone(descriptor, wait=False):
                raise Refusal("worktree-in-use", f"a session of an earlier worktree at {root} is running",
                              hint="paddock exec --list")  # fmt: skip
            swap.remove_journal(directory)  # it speaks of `.git` files that are gone
            if _is_empty(directory, root, unharvested):
                failures = remove_tree(directory)
                if failures:
                    raise _unusable(directory, "\n".join(failures[:10]))
                return ""
            return _put_aside(state, directory, worktree_id)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _unusable(directory, error.strerror or str(error)) from None


def _is_empty(directory: str, root: str, unharvested: Unharvested) -> bool:
    if not _ORDINARY.issuperset(os.listdir(directory)):
        return False
    try:
        return not unharvested(Path(root))
    except Refusal:
        return False  # what cannot be read is not for us to give up


def _put_aside(state: str, directory: str, worktree_id: str) -> str:
    target = f"{state}/removed/{worktree_id}-{os.urandom(4).hex()}"
    os.makedirs(os.path.dirname(target), 0o700, exist_ok=True)
    try:
        known = record.read(directory)
    except Refusal:
        known = None
    for repository in known.repositories if known is not None else ():
        # The pin goes by the worktree's id, and the new one takes it for itself.
        git = Git(repository.common_dir) if os.path.isdir(repository.common_dir) else None
        if git is not None and repository.base:
            git.run("update-ref", record.pin(os.path.basename(target)), repository.base, ok=(0, 1, 128))
    os.rename(directory, target)
    return target


def _unusable(directory: str, why: str) -> Refusal:
    return Refusal(
        "state-unusable",
        f"{directory} of an earlier worktree cannot be put aside",
        context=why,
        hint="move it away, or name another --path",
    )
