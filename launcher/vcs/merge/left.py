"""What a child has beside its branch, and a merge of that branch leaves where it is: told, with the way in."""

import os

from launcher.vcs.git import Git
from launcher.vcs.gitlinks import gitlinks_of
from launcher.vcs.harvest import refusals
from launcher.vcs.harvest.decide import join
from launcher.vcs.harvest.outstanding import beside_branches, outstanding
from launcher.vcs.merge import sessions
from launcher.vcs.merge.models import Source
from launcher.vcs.merge.place import Place
from policy.errors import Refusal
from policy.pasted import quoted


def told(source: Source, state: str) -> list[str]:
    """One sentence for everything that is not merged with a child.

    Args:
        source: the child.
        state: Paddock's state directory.

    Raises:
        Refusal: git-record-damaged.
    """
    if source.place is None or source.place.worktree is None:
        return []
    head = f"{source.label} is merged as its branch is, and "
    root = source.place.worktree
    why = sessions.lacking(state, root)
    if why == sessions.WORKING:
        return [head + why]  # and what it makes of its submodules is not to be looked at
    directory = sessions.private_of(state, root) if why else None
    agents = _of_agents(head, why, root, directory) if directory is not None else []
    try:
        return [*agents, *_of_submodules(source, source.place)]
    except Refusal as refusal:
        return [*agents, f"{head}its submodules cannot be looked at: {refusal.message}"]


def _of_agents(head: str, why: str, root: str, directory: str) -> list[str]:
    said = [
        f"{head}{count} {'commit of the agent is' if count == 1 else 'commits of the agent are'} kept in {ref}; "
        f"to join them: {join(ref, path)}"
        for ref, path, count in beside_branches(directory)
    ]
    if said and not outstanding(directory):
        return said
    reason = refusals.why(directory)
    because = f", because {reason}" if reason else ""
    return [*said, f"{head}{why}{because}: paddock worktree harvest {quoted(root)}"]


def _of_submodules(source: Source, place: Place) -> list[str]:
    """Commits in submodules that the child does not record: they stay in the submodule."""
    said = []
    for link in gitlinks_of(Git(place.common_dir), source.commit).values():
        inner = place.submodule(link.name, link.path)
        if inner is None or inner.worktree is None:
            continue
        git = Git(inner.git_dir)
        counted = git.run("rev-list", "--count", f"{link.commit}..HEAD", ok=(0, 128))
        count = int(counted.out or b"0") if counted.status == 0 else 0
        if count:
            words = f"git -C {quoted(place.worktree or '')}"
            said.append(
                f"submodule {link.name} has {count} commit{'' if count == 1 else 's'} not merged, because "
                f"{source.label} does not record them; to record them: {words} add {quoted(link.path)} && "
                f"{words} commit -m {quoted(f'Update submodule {os.path.basename(link.path)}')}; then merge again"
            )
    return said
