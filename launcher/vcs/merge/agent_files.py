"""The files of an agent's worktree, taken from one commit to another, and the agent's own git with them.

Where the agent's sessions have ended, the next one finds out for itself where its branch is (`quarantine.renew`). A
frozen one goes on where it stopped, so its branch and index are put right before it does.
"""

import os

from launcher.vcs.jailed_git import JailedGit
from launcher.vcs.merge.files import Files
from launcher.vcs.quarantine import contents, frozen
from launcher.vcs.quarantine import record as records
from launcher.vcs.quarantine.inside import Inside
from launcher.vcs.quarantine.refs import Head
from policy.errors import Refusal

_UNDER_WAY = ("index.lock", "HEAD.lock", "MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "rebase-merge",
              "rebase-apply", "sequencer")  # fmt: skip


class AgentFiles(Files):
    """Index and files of a worktree that an agent has written.

    Args:
        git: on the worktree.
        run: name of the run.
        ref: full name of its branch, or ``HEAD``.
        agent: its private git directory (see `record`); None when it has none.
    """

    def __init__(self, git: JailedGit, run: str, ref: str, agent: str | None) -> None:
        super().__init__(git, run)
        self._ref = ref
        self._agent = agent

    def check(self, old: str, new: str) -> None:
        """As `Files.check`.

        Raises:
            Refusal: child-busy: a frozen agent is in the middle of something.
        """
        self._follow(old, old)
        super().check(old, new)

    def apply(self, old: str, new: str) -> None:
        """As `Files.apply`; a frozen agent's own git follows."""
        super().apply(old, new)
        self._follow(old, new)

    def recover(self, old: str, new: str) -> None:
        """As `Files.recover`; a frozen agent's own git follows."""
        super().recover(old, new)
        self._follow(old, new)

    def _follow(self, old: str, new: str) -> None:
        """Takes a frozen agent's branch, HEAD and index from `old` to `new`; does nothing where none is frozen.

        With `old` and `new` the same it only looks whether that is possible.
        """
        record = records.read(self._agent) if self._agent is not None else None
        if record is None or self._agent is None or not frozen.sessions(self._agent):
            return
        for repository in record.repositories:
            if repository.path == self._root:
                break
        else:
            return  # it was not granted, so the agent has no git for it
        branch = None if self._ref == "HEAD" else self._ref
        with Inside(os.path.realpath(f"{self._agent}/{records.GIT}"), repository.private) as inside:
            busy = [name for name in _UNDER_WAY if inside.exists(name)]
            head = contents.agent_head(inside)
            if busy or head not in (Head(branch, old), Head(branch, new)):
                what = f"{busy[0]} exists" if busy else f"its HEAD is at {head.oid if head else 'no commit'}, not {old}"
                raise Refusal(
                    "child-busy",
                    f"the frozen agent in {self._root} is in the middle of something",
                    context=f"in its own git directory {what}",
                    hint="let it go on, and merge when it has finished that",
                )
            if old == new:
                return
            source = contents.Source(
                repository.path, repository.git_dir, repository.common_dir, repository.private,
                repository.object_format, "", (), record.worktree,
            )  # fmt: skip
            contents.advance(inside, source, Head(branch, new))
        moved = tuple(
            each.replace(branch=each.branch, base=new) if each is repository else each for each in record.repositories
        )
        records.write(self._agent, records.Record(record.worktree, record.kind, record.form, moved))
