"""Merges as the command, the service and the workflow begin them: with this user's sessions and records in view."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext

from launcher.session import configuration, harvesting, places
from launcher.session.places import Places
from launcher.vcs.harvest.parts import HarvestResult
from launcher.vcs.merge import sessions
from launcher.vcs.merge.moves import Follow
from launcher.vcs.merge.service import WorktreeMergeService
from launcher.vcs.merge.target import Target
from launcher.vcs.quarantine import record as records


def by_contexts(where: Places, caller: Mapping[str, str]) -> WorktreeMergeService:
    """What merges worktrees by their contexts.

    Args:
        where: places of the user whose sessions and worktrees they are.
        caller: environment that names author and committer.
    """
    return WorktreeMergeService(places.made(where.state), caller)


@contextmanager
def into(target: Target, where: Places, say: Callable[[str], None], *, files: bool = True) -> Iterator[Follow]:
    """Prepares a merge into a branch: how the files of its worktree follow, with no agent at work on them.

    An agent in a linked worktree is to be at rest, and what it has committed is harvested first. A session that was
    granted the worktree beside its own may go on, and so may any in a main checkout, which is the user's.

    Args:
        target: where the merge goes.
        where: places of the user.
        say: told what was harvested.
        files: they are to follow.

    Raises:
        Refusal: as `sessions.at_rest`.
    """

    def harvest(directory: str) -> HarvestResult:
        record = records.read(directory)
        assert record is not None
        result = harvesting.take(directory, configuration.handoff_patterns(record.worktree, os.environ))
        for line in harvesting.told(result, place=record.worktree):
            say(line)
        return result

    linked = target.worktree is not None and target.git_dir != target.common_dir
    with sessions.at_rest(where.state, target.worktree or "", harvest, own=True) if linked else nullcontext() as agent:
        yield Follow(files=files, jailed=agent is not None, agent=agent)
