"""The worktree service as the workflow sees it: ids and contexts in, contexts out."""

import os
import threading
import time
from pathlib import Path

import pytest

from launcher.vcs.worktrees.models import State
from launcher.vcs.worktrees.worktree_service import ChildWorktrees
from launcher.workflow.worktrees import WorktreeService, granted_part
from policy.errors import Refusal
from tests.support import repository
from tests.support.repository import Place, committed, git


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return repository.nested(tmp_path)


def test_a_trunk_has_an_id_that_means_something(place: Place) -> None:
    """From then on its context is found by it, until it is gone."""
    children = ChildWorktrees(place.service)
    trunk = children.open_trunk(place.app)
    assert [submodule.submodule_name for submodule in trunk.submodule_worktrees] == ["outer", "outer/deep/inner"]
    assert children.worktree_context(trunk.worktree_id) == trunk
    assert children.worktree_context("nobody") is None
    place.app.rename(place.root / "away")
    assert children.worktree_context(trunk.worktree_id) is None


@pytest.mark.spec("FR-005", "FR-006", "FR-007")
def test_children_are_made_beside_their_parent_and_named_apart(place: Place) -> None:
    """FR-005 to FR-007: the same name twice gives two worktrees; their parent's id is in the context."""
    children: WorktreeService = ChildWorktrees(place.service)
    trunk = ChildWorktrees(place.service).open_trunk(place.app)
    made = [children.create_child(trunk, "fix login") for _ in range(2)]
    assert [child.main_worktree_path.name for child in made] == ["app-fix-login", "app-fix-login-2"]
    for child in made:
        assert child.parent_worktree_id == trunk.worktree_id
        assert children.worktree_context(child.worktree_id) == child
        assert child.main_worktree_path.parent == place.root


@pytest.mark.spec("US6.2")
def test_a_child_gets_no_submodule_that_its_parent_does_not_grant(place: Place) -> None:
    """It is left empty there, and listed as not granted."""
    children = ChildWorktrees(place.service)
    trunk = children.open_trunk(place.app)
    child = children.create_child(granted_part(trunk, []), "T")
    assert child.submodule_worktrees == ()
    assert len(child.ungranted_submodules) == 2
    assert list((child.main_worktree_path / "lib/outer").iterdir()) == []


def test_a_child_that_nobody_worked_in_is_discarded(place: Place) -> None:
    """With its branch, and twice is no error; one with a commit or a change stays."""
    children = ChildWorktrees(place.service)
    trunk = children.open_trunk(place.app)
    idle, changed, ahead = (children.create_child(trunk, name) for name in ("idle", "changed", "ahead"))
    children.discard_child(idle.worktree_id)
    children.discard_child(idle.worktree_id)
    assert not idle.main_worktree_path.exists()
    assert children.worktree_context(idle.worktree_id) is None
    assert "agent/idle" not in git("branch", "--list", at=place.app)
    (changed.main_worktree_path / "new").write_text("")
    committed(ahead.main_worktree_path / "lib/outer", new="")
    for child in (changed, ahead):
        with pytest.raises(Refusal) as raised:
            children.discard_child(child.worktree_id)
        assert raised.value.reference == "worktree-dirty"
        assert child.main_worktree_path.exists()


def test_what_a_killed_process_has_begun_is_settled_before_it_is_counted(place: Place) -> None:
    """Its git may hold the worktree a little longer than it lives: then it is undone or finished."""
    children = ChildWorktrees(place.service)
    trunk = children.open_trunk(place.app)
    since = time.time()
    child = children.create_child(trunk, "begun")
    row = place.service.store.get(child.worktree_id)
    assert row is not None
    place.service.store.save(row._replace(state=State.CREATING))
    held, let = threading.Event(), threading.Event()

    def hold() -> None:
        with place.service.store.worktree_lock(child.worktree_id) as own:
            assert own is not None
            held.set()
            let.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(30)
    threading.Timer(0.5, let.set).start()
    common = os.fspath(row.main.common_dir)
    assert [each.worktree_id for each in children.made_since(common, since)] == [child.worktree_id]
    holder.join()
    assert children.made_since(common, time.time()) == []
