"""Both phases by worktree contexts, on real repositories with submodules: plan.md EC-MF-001 to EC-MF-007."""

import fcntl
import os
from pathlib import Path

import pytest

from launcher.vcs.harvest import agent_refs
from launcher.vcs.harvest.parts import HarvestResult
from launcher.vcs.merge.descriptors import (
    AgentMergeStatus,
    MergeAggregation,
    MergeDirection,
    MergeService,
    SubmoduleStatus,
)
from launcher.vcs.merge.merges import WorktreeMergeService
from launcher.vcs.private import lock, record
from policy.errors import Refusal
from policy.launch import worktree_id
from policy.sandbox_context import MainWorktreeContext, SubmoduleWorktreeContext, WorktreeSandboxContext
from tests.support.repository import Nested, changed, repeat


class Team:
    """The trunk and two children, each in a linked worktree with its own checkouts of all submodules."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.nested = Nested(root)
        self.service = WorktreeMergeService(str(root / "state"), {})
        self.trunk = self.context("repo")

    def context(self, name: str) -> WorktreeSandboxContext:
        """The context of a worktree, as the workflow layer would give it."""
        path = self.root / name
        main = MainWorktreeContext(worktree_id=name, worktree_path=path, submodule_worktree_ids=(f"{name}-lib",))
        lib = SubmoduleWorktreeContext(
            submodule_name="lib", worktree_id=f"{name}-lib", worktree_path=path / "lib", main_worktree_id=name
        )
        return WorktreeSandboxContext(main_worktree=main, submodule_worktrees=(lib,))

    def status(self, name: str) -> AgentMergeStatus:
        """A child that waits to be merged."""
        return AgentMergeStatus(agent_result_id=name, worktree_context=self.context(name))

    def write(self, name: str, path: str, content: str, *, commit: bool = True, pointer: bool = True) -> None:
        """An agent's work: a file, committed in its repository, and recorded in those around it."""
        root = self.root / name
        (root / path).write_text(content)
        places = [path.rpartition("/")[0]]
        while pointer and places[-1]:
            places.append(places[-1].rpartition("/")[0])
        for place in places if commit else []:
            self.nested.main.git("commit", "-q", "-a", "-m", f"{name}: {path}", at=root / place)

    def read(self, name: str, path: str) -> str:
        """A file of one worktree."""
        return (self.root / name / path).read_text()


def make(root: Path) -> None:
    """The team's repositories."""
    nested = Nested.copied(root)
    for name in ("one", "two"):
        nested.main.git("worktree", "add", "-q", "-b", name, str(root / name))
        nested.populate(root / name)
        for path in ("lib/inner", "lib", "doc"):
            nested.main.git("config", "user.name", "T", at=root / name / path)
            nested.main.git("config", "user.email", "t@example.invalid", at=root / name / path)


@pytest.fixture
def team(tmp_path: Path) -> Team:
    """A fresh copy of the team."""
    root = tmp_path / "team"
    root.mkdir()
    repeat(make, root)
    return Team(root)


def arrived(found: MergeAggregation) -> tuple[list[str], str | None, list[str]]:
    conflicted = found.conflicted.agent_result_id if found.conflicted else None
    return [s.agent_result_id for s in found.merged], conflicted, [s.agent_result_id for s in found.pending]


def test_the_service_is_what_the_workflow_asks_for(team: Team) -> None:
    """It fulfils the protocol."""
    service: MergeService = team.service
    assert service.merge_children_to_trunk([], team.trunk).all_successful


@pytest.mark.spec("MF-010", "MF-011", "MF-018", "MF-023", "CONTRACT-9", "CONTRACT-10")
def test_both_phases_bring_everyones_work_together(team: Team) -> None:
    """Children to the trunk, then the trunk to a child: submodules first, files and pointers everywhere."""
    team.write("one", "lib/inner/i", changed(1))
    team.write("two", "lib/inner/i", changed(18))
    team.write("two", "m", changed(4))
    found = team.service.merge_children_to_trunk([team.status("one"), team.status("two")], team.trunk)
    assert arrived(found) == (["one", "two"], None, [])
    assert team.read("repo", "lib/inner/i") == changed(1, 18)
    assert team.nested.status() == []
    last = found.merged[-1].merge_descriptor
    assert last is not None
    names = [part.submodule_name for part in last.submodule_merge_results]
    assert names.index("lib/inner") < names.index("lib")
    assert all(part.pointer_updated for part in last.submodule_merge_results)

    down = team.service.merge_trunk_to_child(team.trunk, team.context("one"))
    assert down.successful, down
    assert down.merge_direction is MergeDirection.TRUNK_TO_CHILD
    assert not any(part.pointer_updated for part in down.submodule_merge_results)
    assert team.read("one", "lib/inner/i") == changed(1, 18)
    assert team.read("one", "m") == changed(4)
    assert team.nested.main.status(at=team.root / "one") == []


@pytest.mark.spec("MF-020", "SM-MF-004")
def test_the_first_conflict_stops_and_counts_everybody(team: Team) -> None:
    """merged + pending + conflicted = all; a child without a worktree is merged as far as it was reached."""
    team.write("one", "m", "one\n")
    team.write("two", "m", "two\n")
    nobody = AgentMergeStatus(agent_result_id="nobody")
    late = AgentMergeStatus(agent_result_id="late")
    found = team.service.merge_children_to_trunk([nobody, team.status("one"), team.status("two"), late], team.trunk)
    assert arrived(found) == (["nobody", "one"], "two", ["late"])
    assert found.total_count == 4


@pytest.mark.spec("EC-MF-007")
def test_phase_one_stays_beside_phase_two(team: Team) -> None:
    """A child with conflicts from phase 1 is tried all the same, and both are told (EC-MF-007)."""
    team.write("repo", "m", "trunk\n")
    team.write("one", "m", "child\n")
    before = team.nested.main.id("one")
    down = team.service.merge_trunk_to_child(team.trunk, team.context("one"))
    assert (down.successful, down.conflict_files) == (False, ("m",))
    assert f"git merge {team.nested.main.id('main')}" in (down.hint or "")
    assert (team.nested.main.id("one"), team.read("one", "m")) == (before, "child\n")
    status = team.status("one").model_copy(update={"child_merge_descriptor": down})
    found = team.service.merge_children_to_trunk([status], team.trunk)
    assert found.conflicted is not None
    assert found.conflicted.child_merge_descriptor == down
    assert found.conflicted.merge_descriptor is not None
    assert found.conflicted.merge_descriptor.merge_direction is MergeDirection.CHILD_TO_TRUNK


@pytest.mark.spec("EC-MF-003")
def test_a_child_without_changes_succeeds(team: Team) -> None:
    """No conflict files and an empty commit id, in both directions (EC-MF-003)."""
    down = team.service.merge_trunk_to_child(team.trunk, team.context("one"))
    found = team.service.merge_children_to_trunk([team.status("one")], team.trunk)
    for descriptor in (down, found.merged[0].merge_descriptor):
        assert descriptor is not None
        assert descriptor.no_op
        assert descriptor.main_worktree_merge_result is not None
        assert descriptor.main_worktree_merge_result.commit_id == ""


@pytest.mark.spec("EC-MF-004")
def test_a_deleted_trunk_is_an_answer(team: Team) -> None:
    """Not an exception: a failed descriptor with the reason (EC-MF-004)."""
    gone = team.context("gone")
    down = team.service.merge_trunk_to_child(gone, team.context("one"))
    assert not down.successful
    assert "does not exist" in (down.error_message or "")
    found = team.service.merge_children_to_trunk([team.status("one"), team.status("two")], gone)
    assert arrived(found) == ([], "one", ["two"])


def test_a_deleted_child_stops_the_row(team: Team) -> None:
    """Those before it are merged, those behind it wait."""
    team.write("one", "m", changed(1))
    found = team.service.merge_children_to_trunk(
        [team.status("one"), team.status("gone"), team.status("two")], team.trunk
    )
    assert arrived(found) == (["one"], "gone", ["two"])
    assert team.read("repo", "m") == changed(1)


def test_work_in_a_submodule_that_the_child_has_not_recorded_arrives(team: Team) -> None:
    """Worktrees are merged, not only what their parents record; the trunk's pointer names the merged commit."""
    team.write("one", "lib/l", changed(1), pointer=False)
    found = team.service.merge_children_to_trunk([team.status("one")], team.trunk)
    assert found.all_successful, found.pretty_print()
    assert team.read("repo", "lib/l") == changed(1)
    assert team.nested.main.id("HEAD:lib") == team.nested.lib.id("HEAD")


@pytest.mark.spec("EC-MF-001")
def test_of_a_child_that_was_reviewed_nothing_else_arrives(team: Team) -> None:
    """Neither what it has committed since, in either phase, nor what it has committed in a submodule alone."""
    team.write("one", "m", changed(4))
    reviewed = team.nested.main.id("one")
    team.write("one", "m", changed(4, 5))
    team.service = WorktreeMergeService(str(team.root / "state"), {}, only={"one": reviewed})
    team.write("repo", "doc/d", "trunk\n")
    down = team.service.merge_trunk_to_child(team.trunk, team.context("one"))
    assert (down.successful, reviewed in str(down.error_message)) == (False, True), down
    found = team.service.merge_children_to_trunk([team.status("one")], team.trunk)
    assert arrived(found) == ([], "one", [])
    assert team.read("repo", "m") == changed()
    # As it was reviewed it arrives, with the trunk merged into it first.
    team.nested.main.git("reset", "-q", "--hard", reviewed, at=team.root / "one")
    team.write("one", "lib/inner/i", changed(7), pointer=False)
    assert team.service.merge_trunk_to_child(team.trunk, team.context("one")).successful
    assert team.nested.main.id("one") != reviewed
    found = team.service.merge_children_to_trunk([team.status("one")], team.trunk)
    assert arrived(found) == (["one"], None, [])
    assert (team.read("repo", "m"), team.read("repo", "lib/inner/i")) == (changed(4), changed())


def test_partial_success_is_told_in_phase_one(team: Team) -> None:
    """The submodule could have been merged, the main worktree could not: both stand in the descriptor (EC-MF-001)."""
    team.write("repo", "lib/l", changed(1))
    team.write("repo", "m", "trunk\n")
    team.write("one", "lib/l", changed(18))
    team.write("one", "m", "child\n")
    down = team.service.merge_trunk_to_child(team.trunk, team.context("one"))
    parts = {part.submodule_name: part.status for part in down.submodule_merge_results}
    assert parts["lib"] is SubmoduleStatus.ROLLED_BACK
    assert down.main_worktree_merge_result is not None
    assert team.read("one", "lib/l") == changed(18)


def test_dirty_trunks_are_an_answer_too(team: Team) -> None:
    """Uncommitted work in the way: the first child is told, the others wait, nothing is lost."""
    team.write("one", "m", changed(1))
    team.write("repo", "m", "mine\n", commit=False)
    found = team.service.merge_children_to_trunk([team.status("one"), team.status("two")], team.trunk)
    assert arrived(found) == ([], "one", ["two"])
    assert team.read("repo", "m") == "mine\n"


def test_a_live_session_keeps_its_worktree(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """While an agent works, neither phase touches its branch; when it has ended, its work is harvested first."""
    root, git_dir, state = str(team.root / "one"), str(team.root / "repo/.git"), str(team.root / "state")
    directory = Path(record.directory_of(state, worktree_id(root)))
    directory.mkdir(parents=True)
    repository = record.Repository("", root, git_dir, git_dir, "", None, None, "sha1", (f"{git_dir}/objects",))
    record.write(str(directory), record.Record(root, "linked", record.MOUNTED, (repository,)))
    service = WorktreeMergeService(state, {})
    team.write("repo", "m", changed(1))
    descriptor = lock.opened(str(directory))
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        down = service.merge_trunk_to_child(team.trunk, team.context("one"))
        up = service.merge_children_to_trunk([team.status("one")], team.trunk)
    finally:
        os.close(descriptor)
    assert "session is still working" in (down.error_message or "")
    assert f"git merge {team.nested.main.id('main')}" in (down.hint or "")
    assert arrived(up) == ([], "one", [])

    monkeypatch.setattr(agent_refs, "harvest_due", lambda _: True)
    late = service.merge_trunk_to_child(team.trunk, team.context("one"))
    assert "not harvested" in (late.error_message or "")
    asked: list[str] = []

    def harvested(place: str) -> HarvestResult:
        asked.append(place)
        team.write("one", "lib/l", changed(len(asked)))
        return HarvestResult(str(team.root / "one"), "harvested")

    service = WorktreeMergeService(state, {}, harvest=harvested)
    assert service.merge_trunk_to_child(team.trunk, team.context("one")).successful
    assert service.merge_children_to_trunk([team.status("one")], team.trunk).all_successful
    assert asked == [str(directory)] * 2
    assert team.read("repo", "lib/l") == changed(2)
    # Two agents have shared one worktree: what the first brings is nothing new from the second.
    again = team.status("one").model_copy(update={"agent_result_id": "again"})
    monkeypatch.setattr(agent_refs, "harvest_due", lambda _: False)
    assert arrived(service.merge_children_to_trunk([team.status("one"), again], team.trunk)) == (
        ["one", "again"],
        None,
        [],
    )


def test_a_pointer_can_be_set_by_itself(team: Team) -> None:
    """The trunk records what its submodule has checked out, in a commit of its own (MF-024); once is enough."""
    team.write("repo", "lib/l", changed(7), pointer=False)
    result = team.service.update_submodule_pointer(team.trunk, "lib")
    assert team.nested.main.id("HEAD:lib") == team.nested.lib.id("HEAD")
    assert result.commit_id == team.nested.main.id("HEAD")
    assert team.nested.status() == []
    assert team.service.update_submodule_pointer(team.trunk, "lib").no_op
    with pytest.raises(Refusal, match="no submodule nothing"):
        team.service.update_submodule_pointer(team.trunk, "nothing")


@pytest.mark.spec("MF-025")
def test_merges_can_be_taken_back(team: Team) -> None:
    """Two runs, submodules and files included, back to the commits before (MF-025)."""
    before = team.nested.heads()
    descriptors = []
    for number, name in ((1, "one"), (18, "two")):
        team.write(name, "lib/l", changed(number))
        descriptors.append(team.service.merge_submodules_first(team.context(name), team.trunk))
    assert team.service.merge_worktrees(team.context("one"), team.trunk).no_op
    assert team.read("repo", "lib/l") == changed(1, 18)
    team.service.rollback_merges(descriptors)
    assert team.nested.heads() == before
    assert team.nested.status() == []
