"""What the merge models accept, and what they refuse to say."""

import json
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from launcher.vcs.merge.descriptors import (
    SUCCESSFUL_STATUSES,
    AgentMergeStatus,
    ConflictKind,
    ConflictStage,
    MergeAggregation,
    MergeConflict,
    MergeDescriptor,
    MergeDirection,
    MergeResult,
    SubmoduleMergeResult,
    SubmoduleStatus,
)
from policy.sandbox_context import MainWorktreeContext, WorktreeSandboxContext

OLD, NEW = "1" * 40, "2" * 40
UP, DOWN = MergeDirection.CHILD_TO_TRUNK, MergeDirection.TRUNK_TO_CHILD
CONFLICT = MergeConflict(path="a.c", kind=ConflictKind.CONTENTS, message="Merge conflict in a.c")
MERGED = MergeResult(source="one", target="main", successful=True, commit_id=NEW, previous_commit_id=OLD)
NO_OP = MergeResult(source="one", target="main", successful=True, no_op=True)
FAILED = MergeResult(source="one", target="main", successful=False, conflicts=(CONFLICT,))
WORKTREE = WorktreeSandboxContext(main_worktree=MainWorktreeContext(worktree_id="w", worktree_path=Path("/repo/w")))
GOOD = MergeDescriptor(merge_direction=UP, successful=True, main_worktree_merge_result=MERGED)
BAD = MergeDescriptor(
    merge_direction=UP, successful=False, conflict_files=("a.c",), main_worktree_merge_result=FAILED, error_message="no"
)


def status(name: str, descriptor: MergeDescriptor | None = None, *, worktree: bool = True) -> AgentMergeStatus:
    return AgentMergeStatus(
        agent_result_id=name, worktree_context=WORKTREE if worktree else None, merge_descriptor=descriptor
    )


def submodule(state: SubmoduleStatus, result: MergeResult | None, *, pointer: bool = False) -> SubmoduleMergeResult:
    return SubmoduleMergeResult(submodule_name="lib", merge_result=result, pointer_updated=pointer, status=state)


def test_a_result_has_a_commit_or_is_a_no_op() -> None:
    """A success without a commit says that there was nothing to do (EC-MF-003)."""
    assert NO_OP.commit_id == ""
    with pytest.raises(ValidationError, match="no-op"):
        MergeResult(source="one", target="main", successful=True)
    with pytest.raises(ValidationError, match="no-op"):
        MergeResult(source="one", target="main", successful=True, no_op=True, commit_id=NEW)


@pytest.mark.parametrize(
    "fields",
    [
        {"successful": False},
        {"successful": False, "error_message": "x", "commit_id": NEW},
        {"successful": False, "error_message": "x", "no_op": True},
        {"successful": True, "commit_id": NEW, "conflicts": (CONFLICT,)},
        {"successful": True, "commit_id": NEW, "error_message": "x"},
        {"successful": True, "no_op": True, "fast_forward": True},
        {"successful": True, "commit_id": "abc"},
        {"successful": True, "commit_id": NEW, "unknown": 1},
    ],
)
def test_a_result_does_not_contradict_itself(fields: dict[str, object]) -> None:
    """Success, conflicts, error and commit fit together, or the result does not exist."""
    with pytest.raises(ValidationError):
        MergeResult.model_validate({"source": "one", "target": "main", **fields})


def test_conflict_files_are_named_once() -> None:
    """A path with two conflicts is one conflict file."""
    more = CONFLICT.model_copy(update={"kind": ConflictKind.DISTINCT_MODES})
    assert FAILED.model_copy(update={"conflicts": (CONFLICT, more)}).conflict_files == ("a.c",)


@pytest.mark.parametrize("stage", [0, 4])
def test_a_conflict_has_three_stages(stage: int) -> None:
    """Only ancestor, ours and theirs exist."""
    ConflictStage(stage=3, mode="100644", object_id=OLD, path="a")
    with pytest.raises(ValidationError):
        ConflictStage.model_validate({"stage": stage, "mode": "100644", "object_id": OLD, "path": "a"})


def test_names_that_are_no_text_still_make_json() -> None:
    """A path in Latin-1 is shown escaped, and the JSON form can be read again."""
    conflict = MergeConflict(path="caf\udce9", kind=ConflictKind.CONTENTS)
    assert conflict.path == "caf\\xe9"
    assert MergeConflict.model_validate_json(conflict.model_dump_json()) == conflict


def test_a_submodule_result_needs_a_name() -> None:
    """`submodule_name` is required, and not empty."""
    with pytest.raises(ValidationError, match="submodule_name"):
        SubmoduleMergeResult.model_validate({"status": "added"})
    with pytest.raises(ValidationError, match="submodule_name"):
        SubmoduleMergeResult(submodule_name="", status=SubmoduleStatus.ADDED)


def test_the_status_of_a_submodule_fits_its_merge() -> None:
    """A merge that was undone or could not be recorded is not a success; a conflict has a failed merge."""
    assert submodule(SubmoduleStatus.MERGED, MERGED, pointer=True).successful
    assert submodule(SubmoduleStatus.ADDED, None, pointer=True).successful
    assert not submodule(SubmoduleStatus.POINTER_NOT_UPDATED, MERGED).successful
    assert not submodule(SubmoduleStatus.ROLLED_BACK, MERGED).successful
    for state, result, pointer in (
        (SubmoduleStatus.MERGED, None, False),
        (SubmoduleStatus.MERGED, FAILED, False),
        (SubmoduleStatus.CONFLICTED, MERGED, False),
        (SubmoduleStatus.POINTER_NOT_UPDATED, MERGED, True),
        (SubmoduleStatus.ROLLED_BACK, MERGED, True),
        (SubmoduleStatus.CONFLICTED, FAILED, True),
    ):
        with pytest.raises(ValidationError):
            submodule(state, result, pointer=pointer)


def test_every_status_is_on_one_side() -> None:
    """Each status says whether the work has arrived."""
    assert {state.value for state in SubmoduleStatus if state not in SUCCESSFUL_STATUSES} == {
        "conflicted", "failed", "pointer_not_updated", "rolled_back", "skipped",
    }  # fmt: skip


def test_a_descriptor_has_a_direction() -> None:
    """`merge_direction` is required."""
    with pytest.raises(ValidationError, match="merge_direction"):
        MergeDescriptor.model_validate({"successful": True})


def test_a_failed_descriptor_says_why() -> None:
    """Conflict files, or an error message; one of them is enough."""
    MergeDescriptor(merge_direction=UP, successful=False, error_message="the trunk is gone")
    MergeDescriptor(merge_direction=UP, successful=False, conflict_files=("a.c",))
    with pytest.raises(ValidationError, match="names conflict files or an error"):
        MergeDescriptor(merge_direction=UP, successful=False)


def test_a_descriptor_is_successful_only_as_a_whole() -> None:
    """A part that failed, or a trunk that does not point at the merged submodule, is no success (EC-MF-002)."""
    fine = submodule(SubmoduleStatus.MERGED, MERGED, pointer=True)
    unpointed = submodule(SubmoduleStatus.MERGED, MERGED)
    base = {"successful": True, "main_worktree_merge_result": MERGED}
    MergeDescriptor.model_validate({"merge_direction": UP, "submodule_merge_results": (fine,), **base})
    MergeDescriptor.model_validate({"merge_direction": DOWN, "submodule_merge_results": (unpointed,), **base})
    for fields in (
        {"merge_direction": UP, "submodule_merge_results": (unpointed,), **base},
        {"merge_direction": UP, "submodule_merge_results": (fine, fine), **base},
        {"merge_direction": UP, "submodule_merge_results": (submodule(SubmoduleStatus.SKIPPED, None),), **base},
        {"merge_direction": UP, **base, "main_worktree_merge_result": FAILED},
        {"merge_direction": UP, **base, "conflict_files": ("a.c",)},
        {"merge_direction": UP, **base, "error_message": "x"},
    ):
        with pytest.raises(ValidationError):
            MergeDescriptor.model_validate(fields)


@pytest.mark.spec("EC-MF-001")
def test_partial_success_can_be_told() -> None:
    """A submodule that merged and was undone stands beside the conflict of the main worktree (EC-MF-001)."""
    part = submodule(SubmoduleStatus.ROLLED_BACK, MERGED)
    descriptor = BAD.model_copy(update={"submodule_merge_results": (part,)})
    assert MergeDescriptor.model_validate_json(descriptor.model_dump_json()) == descriptor
    assert not descriptor.no_op


@pytest.mark.spec("EC-MF-007")
def test_a_status_keeps_both_phases_apart() -> None:
    """Phase 1's descriptor stands beside phase 2's, each in its own field (EC-MF-007)."""
    down = BAD.model_copy(update={"merge_direction": DOWN})
    both = AgentMergeStatus(agent_result_id="a", merge_descriptor=GOOD, child_merge_descriptor=down)
    assert both.child_merge_descriptor == down
    with pytest.raises(ValidationError):
        AgentMergeStatus(agent_result_id="a", merge_descriptor=down)
    with pytest.raises(ValidationError):
        AgentMergeStatus(agent_result_id="a", child_merge_descriptor=GOOD)
    with pytest.raises(ValidationError, match="agent_result_id"):
        AgentMergeStatus.model_validate({})


@pytest.mark.spec("SM-MF-004")
def test_an_aggregation_counts_everyone_once() -> None:
    """merged + pending + conflicted = all (SM-MF-004); nobody is in two places."""
    found = MergeAggregation(
        merged=(status("a", GOOD), status("b", worktree=False)), pending=(status("d"),), conflicted=status("c", BAD)
    )
    assert (found.total_count, found.all_successful, found.has_conflict) == (4, False, True)
    with pytest.raises(ValidationError, match="more than once"):
        MergeAggregation(merged=(status("a", GOOD),), pending=(status("a"),))


def test_absent_lists_are_empty() -> None:
    """None counts as nobody, and then everything was successful."""
    empty = MergeAggregation.model_validate({"merged": None, "pending": None, "conflicted": None})
    assert empty == MergeAggregation()
    assert (empty.total_count, empty.all_successful, empty.has_conflict) == (0, True, False)
    assert not MergeAggregation(pending=(status("a"),)).all_successful


@pytest.mark.parametrize(
    "fields",
    [
        {"merged": (status("a", BAD),)},
        {"merged": (status("a"),)},
        {"pending": (status("a", GOOD),)},
        {"conflicted": status("a", GOOD)},
        {"conflicted": status("a")},
    ],
)
def test_an_agent_stands_where_its_descriptor_says(fields: dict[str, object]) -> None:
    """What failed is not merged, what was tried is not pending, what succeeded is not conflicted."""
    with pytest.raises(ValidationError):
        MergeAggregation.model_validate(fields)


def test_the_summary_can_be_read() -> None:
    """Text for people and models names every agent, submodule and conflict with its kind, and can drive no terminal."""
    hostile = BAD.model_copy(update={"conflict_files": ("a.c", "\x1b[2J\nmerged x")})
    with_lib = GOOD.model_copy(
        update={"submodule_merge_results": (submodule(SubmoduleStatus.MERGED, MERGED, pointer=True),)}
    )
    text = MergeAggregation(
        merged=(status("a", with_lib), status("b", worktree=False)),
        pending=(status("d"),),
        conflicted=status("c", hostile),
    ).pretty_print()
    assert text.splitlines() == [
        "2 of 4 merged",
        f"  merged      a ({NEW[:12]}, with lib)",
        "  merged      b (no worktree)",
        "  conflicted  c",
        "    no",
        "    conflict in a.c: contents",
        "    conflict in '\\x1b[2J\\nmerged x'",
        "  pending     d",
    ]


@pytest.mark.parametrize("model", [MERGED, FAILED, GOOD, BAD, MergeAggregation(merged=(status("a", GOOD),))])
def test_models_are_frozen_and_survive_json(model: BaseModel) -> None:
    """What was reported cannot be changed, and a programme can read it back."""
    with pytest.raises(ValidationError, match="frozen"):
        setattr(model, next(iter(type(model).model_fields)), None)
    assert type(model).model_validate(json.loads(model.model_dump_json())) == model
