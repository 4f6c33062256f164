"""What a merge came to: per repository, per agent, and for all agents together.

Plain frozen facts with the rules that make them trustworthy: a success has no conflict, a failure says why, and
nobody is counted twice. Sources: data-model.md (merge flow entities), contracts.md sections 9, 10 and 13, plan.md
EC-MF-001 to EC-MF-007, and the reading of their gaps in SPEC-NOTES.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Literal, NamedTuple, Protocol, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, StringConstraints, model_validator

from launcher.vcs.merge.target import Place
from policy.documents import label
from policy.errors import printable
from policy.pasted import cited
from policy.sandbox_context import AbsolutePath, Name, WorktreeSandboxContext

# What git could not decide: one conflict, its kind and its sides (git-merge-tree(1), "Conflicted file info").


def _label(value: object) -> object:
    """Bytes that are not UTF-8 become `\\xNN`: results are read by people, programmes and language models as text."""
    return label(value) if isinstance(value, str) else value


Text = Annotated[str, BeforeValidator(_label)]
TreePath = Annotated[Text, StringConstraints(min_length=1)]
ObjectId = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})$")]


class Frozen(BaseModel):
    """A model that never changes and refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ConflictKind(StrEnum):
    """Kinds of conflict: git's own names (merge-ort), and one for those it may learn later."""

    CONTENTS = "contents"
    ADD_ADD = "add/add"
    BINARY = "binary"
    MODIFY_DELETE = "modify/delete"
    RENAME_RENAME = "rename/rename"
    RENAME_DELETE = "rename/delete"
    RENAME_COLLIDES = "rename involved in collision"
    FILE_DIRECTORY = "file/directory"
    DISTINCT_MODES = "distinct modes"
    DISTINCT_TYPES = "distinct types"
    DIRECTORY_RENAME_SUGGESTED = "directory rename suggested"
    DIRECTORY_RENAME_FILE_IN_WAY = "file in way of directory rename"
    DIRECTORY_RENAME_COLLISION = "directory rename collision"
    DIRECTORY_RENAME_SPLIT = "directory rename unclear split"
    SUBMODULE = "submodule"
    OTHER = "other"  # a kind that this version of Paddock does not know; the message has git's words


StageNumber = Literal[1, 2, 3]


class ConflictStage(Frozen):
    """One side of a conflict, as git-ls-files(1) --unmerged shows it.

    Attributes:
        stage: 1 common ancestor, 2 ours (the target), 3 theirs (the source).
        mode: octal file mode, six digits; ``120000`` is a symbolic link, ``160000`` a submodule.
        object_id: blob, or commit of a submodule.
        path: where that side has it; differs from the conflict's path after renames.
    """

    stage: StageNumber
    mode: Annotated[str, StringConstraints(pattern=r"^[0-7]{6}$")]
    object_id: ObjectId
    path: TreePath


class MergeConflict(Frozen):
    """One thing git could not decide.

    Attributes:
        path: the file, relative to the root of the main worktree (inside submodules too).
        kind: what clashes.
        stages: the sides that exist; empty where the conflict has none of its own (a failed check).
        message: git's own words, or the last lines of a failed check.
        other_paths: further paths involved (the other names of a rename).
        submodule: name of the submodule it lies in.
    """

    path: TreePath
    kind: ConflictKind
    stages: tuple[ConflictStage, ...] = ()
    message: Text = ""
    other_paths: tuple[TreePath, ...] = ()
    submodule: Name | None = None


class MergeDirection(StrEnum):
    """Which way work flows."""

    TRUNK_TO_CHILD = "TRUNK_TO_CHILD"
    CHILD_TO_TRUNK = "CHILD_TO_TRUNK"


class MergeResult(Frozen):
    """The merge of one branch into one ref of one repository.

    Attributes:
        source: what was merged: a branch, or the id of a worktree.
        target: where it was merged into.
        successful: the target holds everything of the source (when the run has been carried out).
        no_op: it held it before; then `commit_id` is empty.
        fast_forward: no merge commit was needed.
        commit_id: what the target was moved to; empty for a no-op and a failure.
        previous_commit_id: what it was moved from.
        repository: the git directory whose ref moves.
        target_ref: that ref, ``HEAD`` when it is detached; empty where only the parent's pointer is moved.
        conflicts: empty on success.
        error_message: why it failed, when not by conflicts alone.
    """

    source: Name
    target: Name
    successful: bool
    no_op: bool = False
    fast_forward: bool = False
    commit_id: ObjectId | Annotated[str, StringConstraints(max_length=0)] = ""
    previous_commit_id: ObjectId | Annotated[str, StringConstraints(max_length=0)] = ""
    repository: AbsolutePath | None = None
    target_ref: Text = ""
    conflicts: tuple[MergeConflict, ...] = ()
    error_message: Text | None = None

    @property
    def conflict_files(self) -> tuple[str, ...]:
        """Paths in conflict, each once, in git's order."""
        return tuple(dict.fromkeys(conflict.path for conflict in self.conflicts))

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.successful:
            if not self.conflicts and not self.error_message:
                raise ValueError("a failed merge names conflicts or an error")
            if self.commit_id or self.no_op or self.fast_forward:
                raise ValueError("a failed merge has no commit and is neither a no-op nor a fast-forward")
            return self
        if self.conflicts or self.error_message:
            raise ValueError("a successful merge has no conflicts and no error")
        if self.no_op == bool(self.commit_id):
            raise ValueError("a successful merge has a commit, or is a no-op with an empty one")
        if self.no_op and self.fast_forward:
            raise ValueError("a no-op moves nothing forward")
        return self


class SubmoduleStatus(StrEnum):
    """What became of one submodule."""

    MERGED = "merged"
    UP_TO_DATE = "up_to_date"
    ADDED = "added"  # only the source has it; it comes with the main merge and may need initialization (EC-MF-005)
    REMOVED = "removed"  # the source has removed it
    CONFLICTED = "conflicted"
    FAILED = "failed"
    POINTER_NOT_UPDATED = "pointer_not_updated"  # merged, but the parent could not be told (EC-MF-002)
    ROLLED_BACK = "rolled_back"  # merged cleanly, and undone because the rest was not possible (EC-MF-001)
    SKIPPED = "skipped"  # not tried, because an earlier submodule had failed


SUCCESSFUL_STATUSES = frozenset(
    {SubmoduleStatus.MERGED, SubmoduleStatus.UP_TO_DATE, SubmoduleStatus.ADDED, SubmoduleStatus.REMOVED}
)
_MOVED = SUCCESSFUL_STATUSES - {SubmoduleStatus.UP_TO_DATE}
_MERGE_FAILED = frozenset({SubmoduleStatus.CONFLICTED, SubmoduleStatus.FAILED})


class SubmoduleMergeResult(Frozen):
    """The merge of one submodule.

    Attributes:
        submodule_name: its name in `.gitmodules`; of nested ones all names, from outside in, joined by ``/``.
        merge_result: the merge in its store; None where there was nothing to merge (added, removed, skipped).
        pointer_updated: the trunk's tree names the merged commit. Always False from trunk to child (contracts
            section 9: it does not apply there).
        status: what became of it.
    """

    submodule_name: Name
    merge_result: MergeResult | None = None
    pointer_updated: bool = False
    status: SubmoduleStatus

    @property
    def successful(self) -> bool:
        """Whether its work has arrived."""
        return self.status in SUCCESSFUL_STATUSES

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.pointer_updated and not self.successful:
            raise ValueError(f"no pointer was updated when the submodule is {self.status}")
        needs = {SubmoduleStatus.MERGED, SubmoduleStatus.UP_TO_DATE, SubmoduleStatus.POINTER_NOT_UPDATED,
                 SubmoduleStatus.ROLLED_BACK} | _MERGE_FAILED  # fmt: skip
        if self.status in needs and self.merge_result is None:
            raise ValueError(f"a submodule that is {self.status} has a merge result")
        if self.merge_result is not None and self.merge_result.successful == (self.status in _MERGE_FAILED):
            raise ValueError(f"the merge result contradicts the status {self.status}")
        return self


class MergeDescriptor(Frozen):
    """One attempt to bring one agent's worktree and the trunk together, in one direction (MF-012, MF-013).

    Attributes:
        merge_direction: which way.
        successful: everything arrived: main worktree and all submodules.
        conflict_files: paths in conflict, relative to the main worktree.
        submodule_merge_results: in the order they were merged, innermost first.
        main_worktree_merge_result: None when it was not tried.
        error_message: one sentence, on failure.
        hint: how to go on (for an agent: how to merge in its own jail), on failure.
        merge_commands: for sh(1), in the child's worktree: they merge the trunk there, up to the conflict; None where
            that would not help.
        run_id: the journal's name of the run, for `paddock merge --rollback`; None when nothing was moved.
    """

    merge_direction: MergeDirection
    successful: bool
    conflict_files: tuple[TreePath, ...] = ()
    submodule_merge_results: tuple[SubmoduleMergeResult, ...] = ()
    main_worktree_merge_result: MergeResult | None = None
    error_message: Text | None = None
    hint: Text | None = None
    merge_commands: Text | None = None
    run_id: Name | None = None

    @property
    def no_op(self) -> bool:
        """The merge succeeded and had nothing to do (EC-MF-003)."""
        main = self.main_worktree_merge_result
        return self.successful and (main is None or main.no_op)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        main = self.main_worktree_merge_result
        parts = [(f"submodule {cited(part.submodule_name)}", part.successful) for part in self.submodule_merge_results]
        if main is not None:
            parts.append(("the main worktree", main.successful))
        if not self.successful:
            if not self.conflict_files and not self.error_message:
                raise ValueError("a failed merge names conflict files or an error")
            return self
        if self.conflict_files or self.error_message:
            raise ValueError("a successful merge has no conflict files and no error")
        failed = [name for name, successful in parts if not successful]
        if failed:
            raise ValueError(f"a merge cannot be successful when {', '.join(failed)} was not merged")
        if self.merge_direction is MergeDirection.CHILD_TO_TRUNK:
            stale = [part.submodule_name for part in self.submodule_merge_results if not part.pointer_updated]
            if stale:
                raise ValueError(f"a merge cannot be successful when the trunk does not point at {stale}")
        _refuse_doubles("submodule", [part.submodule_name for part in self.submodule_merge_results])
        return self


class AgentMergeStatus(Frozen):
    """One agent in the aggregation.

    Attributes:
        agent_result_id: which result (context id or the like).
        worktree_context: the agent's worktree; None when it has none, which counts as merged.
        merge_descriptor: phase 2, child to trunk; None while pending, and without a worktree.
        child_merge_descriptor: phase 1, trunk to child, kept whatever phase 2 came to (EC-MF-007).
    """

    agent_result_id: Name
    worktree_context: WorktreeSandboxContext | None = None
    merge_descriptor: MergeDescriptor | None = None
    child_merge_descriptor: MergeDescriptor | None = None

    @model_validator(mode="after")
    def _directions(self) -> Self:
        for descriptor, direction, field in (
            (self.merge_descriptor, MergeDirection.CHILD_TO_TRUNK, "merge_descriptor"),
            (self.child_merge_descriptor, MergeDirection.TRUNK_TO_CHILD, "child_merge_descriptor"),
        ):
            if descriptor is not None and descriptor.merge_direction is not direction:
                raise ValueError(f"{field} is {direction}, not {descriptor.merge_direction}")
        return self


class MergeAggregation(Frozen):
    """All agents of one dispatch (MF-019): every one is in exactly one place.

    Attributes:
        merged: arrived in the trunk, in order; those without a worktree too.
        pending: not tried, because an earlier one conflicted.
        conflicted: the first one that could not be merged.
    """

    merged: tuple[AgentMergeStatus, ...] = ()
    pending: tuple[AgentMergeStatus, ...] = ()
    conflicted: AgentMergeStatus | None = None

    @model_validator(mode="before")
    @classmethod
    def _none_is_empty(cls, data: object) -> object:
        """Absent lists are empty ones (contracts section 13)."""
        if isinstance(data, dict):
            return {key: () if value is None and key != "conflicted" else value for key, value in data.items()}
        return data

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for status in self.merged:
            if status.merge_descriptor is not None and not status.merge_descriptor.successful:
                raise ValueError(f"{status.agent_result_id!r} was not merged and cannot be listed as merged")
            if status.merge_descriptor is None and status.worktree_context is not None:
                raise ValueError(f"{status.agent_result_id!r} has a worktree and no merge descriptor, so it is pending")
        for status in self.pending:
            if status.merge_descriptor is not None:
                raise ValueError(f"{status.agent_result_id!r} was tried and cannot be pending")
        last = self.conflicted
        if last is not None and (last.merge_descriptor is None or last.merge_descriptor.successful):
            raise ValueError(f"{last.agent_result_id!r} has no failed merge and cannot be listed as conflicted")
        everyone = (*self.merged, *self.pending, *([last] if last else []))
        _refuse_doubles("agent result id", [status.agent_result_id for status in everyone])
        return self

    @property
    def all_successful(self) -> bool:
        """Nothing conflicted and nothing is left."""
        return self.conflicted is None and not self.pending

    @property
    def has_conflict(self) -> bool:
        """One agent could not be merged."""
        return self.conflicted is not None

    @property
    def total_count(self) -> int:
        """All agents (SM-MF-004)."""
        return len(self.merged) + len(self.pending) + (self.conflicted is not None)

    def pretty_print(self, shown: Callable[[str], str] = cited) -> str:
        """The aggregation as text for people and for a model's context; names are made printable, paths by `shown`."""
        lines = [f"{len(self.merged)} of {self.total_count} merged"]
        lines += [f"  merged      {printable(s.agent_result_id)}{_details(s.merge_descriptor)}" for s in self.merged]
        if self.conflicted is not None:
            lines.append(f"  conflicted  {printable(self.conflicted.agent_result_id)}")
            descriptor = self.conflicted.merge_descriptor
            assert descriptor is not None
            lines += [f"    {printable(line)}" for line in (descriptor.error_message or "").splitlines()]
            lines += [f"    conflict in {shown(path)}{_kinds(descriptor, path)}" for path in descriptor.conflict_files]
        lines += [f"  pending     {printable(s.agent_result_id)}" for s in self.pending]
        return "\n".join(lines)


def _details(descriptor: MergeDescriptor | None) -> str:
    if descriptor is None:
        return " (no worktree)"
    if descriptor.no_op:
        return " (nothing new)"
    main = descriptor.main_worktree_merge_result
    inside = [cited(part.submodule_name) for part in descriptor.submodule_merge_results if part.status in _MOVED]
    with_them = f", with {', '.join(inside)}" if inside else ""
    return f" ({main.commit_id[:12]}{with_them})" if main is not None else ""


def _kinds(descriptor: MergeDescriptor, path: str) -> str:
    """What clashes at a path, in words behind it."""
    results = (descriptor.main_worktree_merge_result, *(p.merge_result for p in descriptor.submodule_merge_results))
    found = [clash for result in results if result is not None for clash in result.conflicts if clash.path == path]
    return f": {', '.join(dict.fromkeys(clash.kind.value for clash in found))}" if found else ""


def _refuse_doubles(what: str, values: list[str]) -> None:
    doubles = sorted(value for value, count in Counter(values).items() if count > 1)
    if doubles:
        raise ValueError(f"{what} used more than once: {doubles}")


# What goes into a merge of two commits, and what comes out of it.


class Outcome(NamedTuple):
    """The merge of one source into one target commit.

    Attributes:
        commit: what the target would be; "" on failure, the target itself for a no-op.
        no_op: the target holds it already.
        fast_forward: the source itself is the result.
        conflicts: what git could not decide; those in submodules come first.
        error: why it failed, when not by conflicts alone.
        submodules: one result for each submodule that was looked at, innermost first.
        hint: the way out of a failure, where it has one of its own.
    """

    commit: str
    no_op: bool = False
    fast_forward: bool = False
    conflicts: tuple[MergeConflict, ...] = ()
    error: str = ""
    submodules: tuple[SubmoduleMergeResult, ...] = ()
    hint: str = ""

    def result(
        self, source: str, target: str, old: str, *, repository: str | None = None, ref: str = "", error: str = ""
    ) -> MergeResult:
        """It as the merge of `source` into `target`, which was at `old`; `error`: in place of its own."""
        return MergeResult(
            source=source, target=target, successful=bool(self.commit), no_op=self.no_op,
            fast_forward=self.fast_forward, commit_id="" if self.no_op else self.commit, previous_commit_id=old,
            repository=repository, target_ref=ref,  # type: ignore[arg-type]  # validated into a Path
            conflicts=self.conflicts,
            error_message=None if self.commit else error or self.error or "there are conflicts",
        )  # fmt: skip


def gitlink_conflict(name: str, path: str, sides: Mapping[StageNumber, str], message: str) -> MergeConflict:
    """A conflict about a submodule; `sides`: the commit of each stage."""
    stages = tuple(
        ConflictStage(stage=stage, mode="160000", object_id=commit, path=path) for stage, commit in sides.items()
    )
    return MergeConflict(path=path, kind=ConflictKind.SUBMODULE, stages=stages, message=message, submodule=name)


class Source(NamedTuple):
    """What is merged.

    Attributes:
        label: as people call it.
        commit: of the main repository.
        place: the worktree it comes from, when it is known: its submodules' stores may hold commits that no other
            store has.
        heads: take what is checked out in the submodules of `place`, where it is ahead of what the commit records.
    """

    label: str
    commit: str
    place: Place | None = None
    heads: bool = False


# What the workflow layer asks of the merge engine; its decorators know nothing else of git.


class MergeService(Protocol):
    """Merging by worktree contexts. What cannot be merged is an answer, not an exception.

    Both phases answer with a descriptor also when a worktree is gone (EC-MF-004), its session is still running, or
    git failed: `successful` is False then, with `error_message` and `hint`.
    """

    def merge_trunk_to_child(self, trunk: WorktreeSandboxContext, child: WorktreeSandboxContext) -> MergeDescriptor:
        """Phase 1: brings the trunk's work to one child; a conflict leaves the child as it was."""
        ...

    def merge_children_to_trunk(
        self, children: Sequence[AgentMergeStatus], trunk: WorktreeSandboxContext
    ) -> MergeAggregation:
        """Phase 2: brings every child's work to the trunk, in this order, up to the first that conflicts.

        Args:
            children: pending statuses, with phase 1's descriptor where there is one; those without a worktree context
                count as merged.
        """
        ...
