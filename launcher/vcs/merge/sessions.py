"""Agents' sessions beside a merge: none may be at work, and work that has not been harvested is not passed over."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

from launcher.vcs.git import Git
from launcher.vcs.gitlinks import gitlinks_of
from launcher.vcs.harvest import agent_refs
from launcher.vcs.harvest.decide import join
from launcher.vcs.harvest.outstanding import beside_branches, outstanding
from launcher.vcs.harvest.parts import HarvestResult
from launcher.vcs.merge.descriptors import Source
from launcher.vcs.merge.target import Place, is_store
from launcher.vcs.private import lock, swap, withheld, writers
from launcher.vcs.private import record as records
from policy.errors import Refusal, in_rows
from policy.launch import worktree_id
from policy.pasted import cited, joined, quoted

Harvest = Callable[[str], HarvestResult]
"""Harvests a private git directory, with the hand-off rules of its worktree."""


WORKING = "a session is still working there"
"""One answer of `lacking`."""


def private_of(state: str, root: str) -> str | None:
    """The private git directory of a worktree; None when it has none."""
    directory = records.directory_of(state, worktree_id(root))
    return directory if os.path.isdir(directory) and records.read(directory) is not None else None


def lacking(state: str, root: str) -> str:
    """Why the branch of a worktree may lack some of an agent's work; "" when it does not."""
    if writers.live(state, root):
        return WORKING
    directory = private_of(state, root)
    if directory is None:
        return ""
    descriptor = lock.opened(directory)
    try:
        if not lock.alone(descriptor, wait=False):
            return WORKING
        swap.dock(directory)  # one that has been killed could not, nor could one that ends at this moment
    finally:
        os.close(descriptor)
    return "an agent left work there that is not harvested" if outstanding(directory, kept=False) else ""


@contextmanager
def at_rest(state: str, root: str, harvest: Harvest | None = None, *, own: bool = False) -> Iterator[str | None]:
    """Makes sure that no session is at work in a worktree, and that its branch has all of the agent's commits.

    Sessions have ended, and until the end none can start there; or they are frozen.

    Args:
        root: canonical root of the worktree.
        harvest: for work that is not harvested; None refuses then, because hand-off rules may have held it back.
        own: sessions that were granted it beside a worktree of their own do not count.

    Yields:
        its private git directory; None when it has none.

    Refusals: session-running; harvest-due; harvest-kept (the branch has been moved beside the agent); what `harvest`
    refuses.
    """
    directory = private_of(state, root)
    if directory is not None and harvest is not None and agent_refs.harvest_due(directory):
        result = harvest(directory)
        if result.state == "kept":
            raise Refusal(
                "harvest-kept",
                f"the agent's work in {root} could not be put on its branch",
                context=in_rows(*result.notes),
                hint=f"paddock worktree harvest {quoted(root)} shows why",
            )
    with writers.excluded(state, [root], own=own), ExitStack() as stack:
        if directory is not None:
            use = stack.enter_context(writers.held(directory))
            if use is writers.Use.BUSY:
                raise writers.running(root)
            if use is writers.Use.ENDED:
                swap.dock(directory)  # a session that was killed could not
            if harvest is None and outstanding(directory, kept=False):
                raise Refusal(
                    "harvest-due",
                    f"an agent left work in {root} that is not harvested",
                    context="its branch lacks commits that are still in the private git directory",
                    hint=f"paddock worktree harvest {quoted(root)}, and merge again",
                )
        yield directory


@contextmanager
def undisturbed(state: str, roots: Iterable[str], directories: Iterable[str]) -> Iterator[None]:
    """Keeps sessions from working in worktrees while a run that touches them is finished or taken back.

    Args:
        roots: of the worktrees, and of submodules in them.
        directories: private git directories of agents whose worktrees have moved since.

    Refusals: session-running.
    """
    known = list(roots)
    private = [found for root in known if (found := private_of(state, root)) is not None]
    with writers.excluded(state, known), ExitStack() as stack:
        for directory in dict.fromkeys(map(os.path.realpath, (*private, *directories))):
            record = records.read(directory) if os.path.isdir(directory) else None
            if record is not None and stack.enter_context(writers.held(directory)) is writers.Use.BUSY:
                raise writers.running(record.worktree)
        yield


# What a child has beside its branch, and a merge of that branch leaves where it is: told, with the way in.


def warnings(source: Source, state: str) -> list[str]:
    """One sentence for everything that is not merged with a child.

    Refusals: git-record-damaged.
    """
    if source.place is None or source.place.worktree is None:
        return []
    head = f"{source.label} is merged as its branch stands: "
    root = source.place.worktree
    why = lacking(state, root)
    if why == WORKING:
        return [head + why]  # and what it makes of its submodules is not to be looked at
    directory = private_of(state, root) if why else None
    agents = _of_agents(head, why, root, directory) if directory is not None else []
    try:
        alone = _alone(source.place, source.commit, source.place.common_dir)
        return [*agents, *_of_submodules(source, source.place), *alone]
    except Refusal as refusal:
        return [*agents, f"{head}its submodules cannot be checked: {refusal.message}"]


def _of_agents(head: str, why: str, root: str, directory: str) -> list[str]:
    said = [
        f"{head}{count} {'commit of the agent is' if count == 1 else 'commits of the agent are'} kept in {ref}; "
        f"to merge them: {join(ref, path)}"
        for ref, path, count in beside_branches(directory)
    ]
    if said and not outstanding(directory):
        return said
    reason = withheld.why(directory)
    because = f", because {reason}" if reason else ""
    return [*said, f"{head}{why}{because}: paddock worktree harvest {quoted(root)}"]


def _alone(place: Place, commit: str, shared: str, above: str = "") -> list[str]:
    """Commits of submodules that are recorded, and in no store but one that git has made in the child's worktree.

    Nothing of them is merged where the main checkout has no store of the submodule (`shared`); the trunk names them.
    """
    said = []
    for link in gitlinks_of(Git(place.git_dir), commit).values():
        inner, store, name = place.submodule(link.name, link.path), f"{shared}/modules/{link.name}", above + link.name
        if inner is None or inner.worktree is None:
            continue
        words = ("rev-list", "--max-count=1", link.commit, "--not", "--remotes")
        if not is_store(store) and Git(inner.git_dir).run(*words, ok=(0, 128)).out:
            push = joined(("git", "-C", inner.worktree, "push", "origin", f"{link.commit}:refs/heads/NAME"))
            said.append(
                f"submodule {cited(name)} is recorded at a commit that only this worktree has, and nobody else can "
                f"fetch it: {push}"
            )
        said += _alone(inner, link.commit, store, f"{name}/")
    return said


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
                f"submodule {cited(link.name)} has {count} commit{'' if count == 1 else 's'} not merged, because "
                f"{source.label} does not record them; to record them: {words} add {quoted(link.path)} && "
                f"{words} commit -m {quoted(f'Update submodule {os.path.basename(link.path)}')}; then merge again"
            )
    return said
