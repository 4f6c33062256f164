"""The agent's own branch is not there, or unreadable: what that means, and how to go on."""

from launcher.vcs.harvest.parts import Part
from policy.errors import printable
from policy.pasted import quoted


def told(part: Part) -> tuple[str, str, str]:
    """What is lost, and two commands: one lists the agent's commits, one lets the branch begin again."""
    run, ref = f"paddock run --worktree {quoted(part.path)} -- sh -c", quoted(part.ref)
    name = printable(part.ref.removeprefix("refs/heads/"))
    log = 'cat "$(git rev-parse --git-path logs/HEAD)"'
    # By its file: where git cannot read a branch it does not write it either.
    again = f'rm -rf "$(git rev-parse --git-path {ref})"; git update-ref {ref} {part.base}'
    return (
        f"the agent has removed {name} or made it unreadable; nothing of it is taken over, and the main repository's "
        "is as it was",
        f"next: the agent's commits are listed by: {run} {quoted(log)}",
        f"next: the branch as it was, or with another commit's id as the last word: {run} {quoted(again)}",
    )
