"""Worktrees by id and context, as the workflow asks for them (`launcher.workflow.worktrees.WorktreeService`)."""

import os
from pathlib import Path

from launcher.vcs import checkout
from launcher.vcs.checkout import Checkout
from launcher.vcs.disk import Present
from launcher.vcs.worktrees import naming
from launcher.vcs.worktrees.models import State, Worktree
from launcher.vcs.worktrees.naming import worktree_id
from launcher.vcs.worktrees.request import Options
from launcher.vcs.worktrees.service import WorktreeService
from policy.errors import Refusal
from policy.sandbox_context import MainWorktreeContext, SubmoduleWorktreeContext, WorktreeSandboxContext

# The boundaries of an agent, from a checkout as it is on the disk.


def context_of_checkout(found: Checkout) -> WorktreeSandboxContext:
    """The context of a worktree with all its populated submodules granted.

    The ids are those that a launch there has, and those of the worktrees that the service makes.
    """
    main = worktree_id(found.root)
    submodules = tuple(
        SubmoduleWorktreeContext(
            submodule_name=submodule.name,
            worktree_id=worktree_id(submodule.path),
            worktree_path=Path(submodule.path),
            main_worktree_id=main,
        )
        for submodule in found.submodules
    )
    return WorktreeSandboxContext(
        main_worktree=MainWorktreeContext(
            worktree_id=main,
            worktree_path=Path(found.root),
            submodule_worktree_ids=tuple(submodule.worktree_id for submodule in submodules),
        ),
        submodule_worktrees=submodules,
    )


_MOST_NAMES = 1000


class ChildWorktrees:
    """Makes and discards the worktrees of a workflow's agents.

    Args:
        service: makes them.
        workers: processes that write the files of one; None: as many as are quickest where one is made at a time.
    """

    def __init__(self, service: WorktreeService, workers: int | None = None) -> None:
        self._service = service
        self.workers = workers

    def open_trunk(self, root: str | Path) -> WorktreeSandboxContext:
        """Notes a worktree that the user works in, so that its id means something, and gives its context.

        Args:
            root: its root directory; a main checkout, or any other.

        Refusals: what `checkout.find` refuses.
        """
        found = checkout.find(os.path.abspath(root), Present(), exact=True)
        self._service.store.note_trunk(naming.worktree_id(found.root), found.root)
        return self._known(found.root) or context_of_checkout(found)

    def worktree_context(self, worktree_id: str) -> WorktreeSandboxContext | None:
        """The boundaries of a worktree with all its submodules; None when it is unknown or no longer exists."""
        row = self._service.store.get(worktree_id)
        path = row.path if row is not None else self._service.store.trunk(worktree_id)
        if path is None:
            return None
        try:
            found = checkout.find(path, Present(), exact=True)
        except Refusal:
            return None
        if naming.worktree_id(found.root) != worktree_id:
            return None
        return context_of_checkout(found) if row is None else self._known(path)

    def of_repository(self, common_dir: str) -> list[Worktree]:
        """The worktrees of a repository that are ready."""
        return [row for row in self._service.store.of(common_dir) if row.state is State.READY]

    def create_child(self, parent: WorktreeSandboxContext, name: str) -> WorktreeSandboxContext:
        """Makes a worktree on a branch of its own beside the parent's (FR-006), with the submodules granted there.

        Args:
            parent: the worktree whose HEAD it begins with.
            name: what it is named after; a number is added when the name is taken.

        Refusals: those of `WorktreeService.add`.
        """
        granted = tuple(submodule.submodule_name for submodule in parent.submodule_worktrees)
        options = Options(submodules=granted if parent.ungranted_submodules else None, workers=self.workers)
        wanted = naming.slug(name[:60])
        for number in range(1, _MOST_NAMES):
            ticket = wanted if number == 1 else f"{wanted}-{number}"
            try:
                return self._service.add(parent.main_worktree_path, ticket, options).context()
            except Refusal as refusal:
                if refusal.reference not in ("worktree-exists", "branch-exists", "worktree-busy"):
                    raise
        raise Refusal("worktree-exists", f"there are {_MOST_NAMES} worktrees named after {name}",
                      hint="paddock worktree list; paddock worktree remove NAME")  # fmt: skip

    def discard_child(self, worktree_id: str) -> None:
        """Removes a worktree that nobody has worked in; one that is gone already is no error.

        Refusals: worktree-dirty (there are changes or commits), and those of `WorktreeService.remove`.
        """
        row = self._service.store.get(worktree_id)
        if row is None:
            return
        ahead = [part for part in self._service.status(row).parts if part.ahead]
        if ahead:
            raise Refusal(
                "worktree-dirty",
                f"{row.path} holds commits that were made there",
                context=", ".join(f"{part.ahead} on {part.branch or 'no branch'}" for part in ahead),
                hint=f"merge them; paddock worktree remove {worktree_id} keeps the branch",
            )
        self._service.remove(row)

    def _known(self, path: str) -> WorktreeSandboxContext | None:
        row = self._service.store.at(path)
        return row.context() if row is not None and row.state is State.READY else None
