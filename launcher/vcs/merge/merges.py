"""Merging by worktree contexts, in both directions: what the workflow layer calls (plan.md MF-010 to MF-025)."""

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from typing import NamedTuple

from launcher.vcs.git import Git
from launcher.vcs.gitlinks import Gitlink, gitlinks_of
from launcher.vcs.merge import moving, sessions, work
from launcher.vcs.merge.descriptors import (
    AgentMergeStatus,
    MergeAggregation,
    MergeDescriptor,
    MergeDirection,
    MergeResult,
    Outcome,
    Source,
    SubmoduleMergeResult,
    SubmoduleStatus,
)
from launcher.vcs.merge.engine import Engine
from launcher.vcs.merge.moving import Follow, moves
from launcher.vcs.merge.runs import Run, State
from launcher.vcs.merge.target import Place, Target, checked_out_at, refuse_when_busy
from launcher.vcs.private import swap
from policy.errors import Refusal, Rows, in_rows
from policy.pasted import cited
from policy.sandbox_context import WorktreeSandboxContext


class _Known(NamedTuple):
    place: Place
    target: Target


class WorktreeMergeService:
    """`descriptors.MergeService` on this machine's git, and the single steps that the specification names.

    No session may be at work in a worktree that a merge is about, on whichever side of it, and whatever git mode the
    session has; and nothing is merged of an agent's whose commits are not all on its branch.

    Args:
        state: directory of Paddock's own state, in which sessions have their records and agents their private git
            directories.
        caller: the caller's environment, for author and committer; this process's when None.
        harvest: harvests a private git directory; None refuses to merge what is not harvested.
        only: of these worktrees, by id, nothing but this commit is merged, which somebody has looked at; and of their
            submodules what it records. One that the trunk was merged into has the commit of that merge from then on.
    """

    def __init__(
        self,
        state: str,
        caller: Mapping[str, str] | None = None,
        *,
        harvest: sessions.Harvest | None = None,
        only: Mapping[str, str] | None = None,
    ) -> None:
        self._state = state
        self.only = dict(only or {})
        self._caller = dict(os.environ if caller is None else caller)
        self._harvest = harvest
        self._links: dict[tuple[str, str], dict[str, Gitlink]] = {}

    def merge_trunk_to_child(self, trunk: WorktreeSandboxContext, child: WorktreeSandboxContext) -> MergeDescriptor:
        """Phase 1, once the agent's session has ended or is frozen. Git in a jail brings its files along.

        A conflict leaves the child as it was; the hint tells its agent how to merge in its own jail.
        """
        try:
            return self.merge_submodules_first(trunk, child, MergeDirection.TRUNK_TO_CHILD)
        except Refusal as refusal:
            if refusal.reference == "session-running":
                # Its jail shows the trunk's objects, so its own git can do it.
                refusal.hint = f"wait for its end; or, in its jail: git merge {_at(trunk).target.commit}"
            return _failed(MergeDirection.TRUNK_TO_CHILD, refusal)

    def merge_children_to_trunk(
        self, children: Sequence[AgentMergeStatus], trunk: WorktreeSandboxContext
    ) -> MergeAggregation:
        """Phase 2: in order, up to the first that cannot be merged. Those before it are in the trunk."""
        swap.originals(self._state)
        with_worktree = [status for status in children if status.worktree_context is not None]
        descriptors: dict[str, MergeDescriptor] = {}
        with ExitStack() as stack:
            known: list[tuple[AgentMergeStatus, Source]] = []
            held: dict[str, str | None] = {}
            problem: tuple[AgentMergeStatus, Refusal] | None = None
            try:
                into = _at(trunk)
                agent = self._at_rest(stack, held, into)
                for status in with_worktree:
                    source = self._source(stack, held, status, into)
                    if any(source.label == other.label for _, other in known):
                        source = source._replace(label=f"{source.label} ({status.agent_result_id})")
                    known.append((status, source))
            except Refusal as refusal:
                if with_worktree:
                    problem = (with_worktree[len(known)], refusal)
                    further = self._obstacles(with_worktree[len(known) + 1 :], held)
                    refusal.context = in_rows(Rows(refusal.context), *further)
            if known:
                try:
                    run = self._merge(trunk, [source for _, source in known], MergeDirection.CHILD_TO_TRUNK, agent)
                except Refusal as refusal:
                    problem = (known[0][0], refusal)
                else:
                    descriptors = _descriptors(run, [status for status, _ in known])
                    if run.outcome is not None and run.outcome.has_conflict:
                        problem = None  # it came first
            if problem is not None:
                failed, why = problem
                descriptors[failed.agent_result_id] = _failed(MergeDirection.CHILD_TO_TRUNK, why)
        return _sorted(children, descriptors)

    def merge_submodules_first(
        self,
        source: WorktreeSandboxContext,
        target: WorktreeSandboxContext,
        direction: MergeDirection | None = None,
    ) -> MergeDescriptor:
        """Merges what is checked out in one worktree into another of the same repository: submodules, then itself.

        Args:
            direction: which of them is the trunk; None where the worktrees themselves say so: one is the main
                checkout, or was made from the other.

        Refusals: a worktree is gone, busy, dirty where it matters, or in use by a session; merge-direction. Nothing has
        moved then.
        """
        swap.originals(self._state)  # docks what a session has left that was killed
        into, came_from = _at(target), _at(source)
        _refuse_strangers(came_from, into)
        direction = direction or _direction((source, came_from), (target, into))
        with ExitStack() as stack:
            held: dict[str, str | None] = {}
            self._at_rest(stack, held, came_from)
            agent = self._at_rest(stack, held, into)
            # A harvest may have moved the agent's branch.
            came_from = _at(source)
            self._refuse_others(target, _at(target))
            if direction is MergeDirection.TRUNK_TO_CHILD:
                known = self._nothing_new(came_from, into if agent is None else _at(target))
                if known is not None:
                    return known
            run = self._merge(target, [self._as_source(source, came_from)], direction, agent)
        if run.child_outcome is not None:
            if target.worktree_id in self.only and run.state is State.DONE:
                self.only[target.worktree_id] = run.moves[-1].new
            return run.child_outcome
        assert run.outcome is not None
        status = run.outcome.conflicted or run.outcome.merged[0]
        assert status.merge_descriptor is not None
        return status.merge_descriptor

    def _nothing_new(self, trunk: _Known, child: _Known) -> MergeDescriptor | None:
        """What a merge would come to that has nothing to do, as most have in phase 1; None where it may have.

        The child has the trunk's commit, and in the trunk each submodule is checked out as that commit records it.
        """
        place, commit = trunk.place, trunk.target.commit
        git = Git(place.common_dir)
        if not git.contains(child.target.commit, commit):
            return None
        key = (place.common_dir, commit)
        if key not in self._links:
            self._links[key] = gitlinks_of(git, commit)
        results = []
        for name, link in sorted(self._links[key].items()):
            inner = place.submodule(name, link.path)
            if inner is not None and inner.worktree is not None and Git(inner.git_dir).ref("HEAD") != link.commit:
                return None
            result = Outcome(link.commit, no_op=True).result(name, name, link.commit)
            status = SubmoduleStatus.UP_TO_DATE
            results.append(SubmoduleMergeResult(submodule_name=name, merge_result=result, status=status))
        main = Outcome(commit, no_op=True).result(
            trunk.target.label, child.target.label, child.target.commit,
            repository=place.common_dir, ref=child.target.ref,
        )  # fmt: skip
        return MergeDescriptor(
            merge_direction=MergeDirection.TRUNK_TO_CHILD, successful=True, submodule_merge_results=tuple(results),
            main_worktree_merge_result=main,
        )  # fmt: skip

    merge_with_submodule_ordering = merge_submodules_first

    def merge_worktrees(
        self,
        source: WorktreeSandboxContext,
        target: WorktreeSandboxContext,
        direction: MergeDirection | None = None,
    ) -> MergeResult:
        """The main worktrees' result of `merge_submodules_first`, in either phase."""
        descriptor = self.merge_submodules_first(source, target, direction)
        if descriptor.main_worktree_merge_result is None:
            raise Refusal(
                "merge-failed",
                descriptor.error_message or "a submodule could not be merged",
                context=in_rows(*map(cited, descriptor.conflict_files)),
                hint=descriptor.hint or "",
            )
        return descriptor.main_worktree_merge_result

    def update_submodule_pointer(self, worktree: WorktreeSandboxContext, submodule_name: str) -> MergeResult:
        """Lets a worktree's branch record what is checked out in one of its submodules (MF-024)."""
        known = _at(worktree)
        journal = work.journal_of(self._state, known.place.common_dir)
        with ExitStack() as stack:
            agent = self._at_rest(stack, {}, known)
            lock = stack.enter_context(journal.lock())
            work.refuse_when_unfinished(journal)
            target = _at(worktree).target
            refuse_when_busy(target)
            who = work.identity_environment(Git(target.git_dir), self._caller)
            name = journal.new_id()
            with Engine(known.place, who, hold=(lock,), run=name) as engine:
                link = engine.links(engine.main, target.commit).get(submodule_name)
                inner = known.place.submodule(submodule_name, link.path) if link else None
                if link is None or inner is None or inner.worktree is None:
                    raise Refusal(
                        "submodule-unknown",
                        f"{target.label} has no submodule {cited(submodule_name)} that is checked out",
                        context=f"in {target.worktree}",
                        hint="git submodule status",
                    )
                head = checked_out_at(inner.git_dir, inner.common_dir, inner.worktree).commit
                names = (submodule_name, target.label)
                where = {"repository": known.place.common_dir, "ref": target.ref}
                if head == link.commit:
                    return Outcome(head, no_op=True).result(*names, "", **where)
                tree = engine.main.with_gitlinks(target.commit, {link.path: head})
                new = engine.main.commit(tree, [target.commit], f"Update submodule {submodule_name}\n")
                planned = moves(engine, target, new, (), Follow(files=True, jailed=agent is not None, agent=agent))
                run = Run(run_id=name, state=State.PREPARED, target=target.label, moves=planned.moves)
                engine.publish(planned.moves)
                moving.carry_out(journal, run, hold=(lock, *engine.held.locks))
        return Outcome(new).result(*names, target.commit, **where)

    def rollback_merges(self, descriptors: Sequence[MergeDescriptor]) -> list[Run]:
        """Takes the runs of these merges back, the latest first, submodules and files included (MF-025).

        A run is taken back as a whole: every child that it merged.
        """
        runs: dict[str, str] = {}
        for each in descriptors:
            main = each.main_worktree_merge_result
            if each.run_id is not None and main is not None and main.repository is not None:
                runs[each.run_id] = str(main.repository)
        return [work.roll_back(runs[name], self._state, name) for name in sorted(runs, reverse=True)]

    def _merge(
        self,
        target: WorktreeSandboxContext,
        sources: Sequence[Source],
        direction: MergeDirection,
        agent: str | None,
    ) -> Run:
        settings = work.Settings(
            self._state,
            self._caller,
            direction=direction,
            follow=Follow(files=True, jailed=agent is not None, agent=agent),
        )
        common_dir = _at(target).place.common_dir
        return work.merge(lambda: _at(target).target, sources, settings, common_dir)

    def _at_rest(self, stack: ExitStack, held: dict[str, str | None], known: _Known) -> str | None:
        """Keeps a worktree at rest, once, also where several agents have shared it. Its private git directory."""
        root = known.target.worktree or ""
        if root not in held:
            held[root] = stack.enter_context(sessions.at_rest(self._state, root, self._harvest))
        return held[root]

    def _source(self, stack: ExitStack, held: dict[str, str | None], status: AgentMergeStatus, into: _Known) -> Source:
        """A child as a source; its worktree is kept at rest."""
        context = status.worktree_context
        assert context is not None
        known = _at(context)
        _refuse_strangers(known, into)
        self._at_rest(stack, held, known)
        return self._as_source(context, _at(context))

    def _as_source(self, context: WorktreeSandboxContext, known: _Known) -> Source:
        self._refuse_others(context, known)
        looked_at = context.worktree_id in self.only
        return Source(known.target.label, known.target.commit, known.place, heads=not looked_at)

    def _refuse_others(self, context: WorktreeSandboxContext, known: _Known) -> None:
        """Refuses a worktree that has moved since somebody looked at it."""
        wanted = self.only.get(context.worktree_id, known.target.commit)
        if known.target.commit != wanted:
            raise Refusal(
                "child-moved",
                f"{known.target.label} has moved since it was reviewed",
                context=f"reviewed: {wanted}; now: {known.target.commit}",
                hint="it is reviewed again when the run is resumed",
            )

    def _obstacles(self, statuses: Sequence[AgentMergeStatus], held: Mapping[str, str | None]) -> list[str]:
        """What would keep these children from being merged, were it their turn."""
        found = []
        for status in statuses:
            assert status.worktree_context is not None
            root = os.path.realpath(status.worktree_context.main_worktree_path)
            try:
                with nullcontext() if root in held else sessions.at_rest(self._state, root):
                    continue
            except Refusal as refusal:
                if refusal.reference == "harvest-due" and self._harvest is not None:
                    continue
                found.append(f"{status.agent_result_id}: {refusal.message}; {refusal.context}")
        return found


def checked_out_in(context: WorktreeSandboxContext) -> tuple[Place, str]:
    """Where a worktree is, and the commit that is checked out there."""
    known = _at(context)
    return known.place, known.target.commit


def _direction(
    source: tuple[WorktreeSandboxContext, _Known], target: tuple[WorktreeSandboxContext, _Known]
) -> MergeDirection:
    """Which of two worktrees is the trunk."""
    for (one, known), (other, _), direction in (
        (source, target, MergeDirection.TRUNK_TO_CHILD),
        (target, source, MergeDirection.CHILD_TO_TRUNK),
    ):
        if known.place.git_dir == known.place.common_dir or other.parent_worktree_id == one.worktree_id:
            return direction
    raise Refusal(
        "merge-direction",
        "cannot tell which of the two worktrees is the trunk",
        context=f"neither {source[1].place.worktree} nor {target[1].place.worktree} is the main checkout, and neither "
        "was made from the other",
        hint="name it: direction=MergeDirection.TRUNK_TO_CHILD, or CHILD_TO_TRUNK",
    )


def _at(context: WorktreeSandboxContext) -> _Known:
    """The worktree of a context as it is now."""
    place = Place.of(str(context.main_worktree_path))
    return _Known(place, checked_out_at(place.git_dir, place.common_dir, place.worktree))


def _refuse_strangers(one: _Known, other: _Known) -> None:
    if one.place.common_dir != other.place.common_dir:
        raise Refusal(
            "worktrees-unrelated",
            "the two worktrees belong to different repositories",
            context=f"{one.place.common_dir} and {other.place.common_dir}",
        )


def _failed(direction: MergeDirection, refusal: Refusal) -> MergeDescriptor:
    message = refusal.message + (f": {refusal.context}" if refusal.context else "")
    return MergeDescriptor(
        merge_direction=direction, successful=False, error_message=message, hint=refusal.hint or None
    )


def _descriptors(run: Run, statuses: Sequence[AgentMergeStatus]) -> dict[str, MergeDescriptor]:
    outcome = run.outcome
    assert outcome is not None
    tried = [*outcome.merged, *([outcome.conflicted] if outcome.conflicted else [])]
    return {
        status.agent_result_id: done.merge_descriptor
        for status, done in zip(statuses, tried, strict=False)
        if done.merge_descriptor is not None
    }


def _sorted(children: Sequence[AgentMergeStatus], descriptors: Mapping[str, MergeDescriptor]) -> MergeAggregation:
    """Every child in its place: those without a worktree count as merged, as far as they were reached."""
    merged: list[AgentMergeStatus] = []
    pending: list[AgentMergeStatus] = []
    conflicted: AgentMergeStatus | None = None
    for status in children:
        found = descriptors.get(status.agent_result_id)
        done = status.model_copy(update={"merge_descriptor": found})
        if conflicted is not None:
            pending.append(done)
        elif found is not None and not found.successful:
            conflicted = done
        else:
            merged.append(done)
    return MergeAggregation(merged=tuple(merged), pending=tuple(pending), conflicted=conflicted)
