"""What holds an agent's work while it is harvested."""

from launcher.vcs.git import Git
from launcher.vcs.quarantine.record import pin

KEPT = "nothing is lost: the work stays in the private git directory; look at it with: paddock run -- git log"


def pinned(git: Git, worktree_id: str, base: str) -> str:
    """The commit that holds what a private git directory borrows, whatever the user does with his refs; "" for none.

    Args:
        git: on the repository.
        worktree_id: names the pin.
        base: what it is set to when the user has removed it.

    Raises:
        GitFailed: git itself failed.
    """
    held = git.ref(pin(worktree_id))
    if not held and base:
        git.run("update-ref", "-m", "paddock: harvest", pin(worktree_id), base)
    return held or base
