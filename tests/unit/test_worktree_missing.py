"""A worktree whose directory is missing was moved, deleted, or is not mounted: nothing of it is lost by that."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from launcher.vcs.harvest import further
from launcher.vcs.private import contents, record, withheld
from launcher.vcs.worktrees.models import Options, State, Worktree
from launcher.vcs.worktrees.worktree_service import WorktreeService
from policy import launch
from policy.errors import Refusal
from tests.support import forked, repository
from tests.support.repository import Place, committed, git

OWN = ("lock", record.NAME, record.SIGN, further.TAKEN, withheld.NOTE, contents.GIVEN)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return repository.nested(tmp_path)


def unharvested(place: Place, made: Worktree, step: str = "") -> WorktreeService:
    """Makes a private git directory; a service that finds commits in it as long as it is there, killed at `step`."""
    private = Path(record.directory_of(place.state, made.worktree_id))
    private.mkdir(parents=True)
    (private / "precious").write_text("x")
    (private / "lock").touch()

    def kill(name: str) -> None:
        if name == step:
            os.kill(os.getpid(), signal.SIGKILL)

    return WorktreeService(place.state, unharvested=lambda _: private.exists(), step=kill)


def test_what_a_missing_worktree_alone_has_is_told_and_kept(place: Place) -> None:
    """Status says it, `repair` touches nothing, a plain removal is refused, a forced one keeps all of it."""
    made = place.service.add(place.app, "a")
    root = Path(made.path)
    loose = []
    for part in (root / "lib/outer", root):
        git("checkout", "-q", "--detach", at=part)
        committed(part, newer="")
        loose.append(git("rev-parse", "HEAD", at=part))
    service = unharvested(place, made)
    shutil.rmtree(root)
    (row,) = service.of_repository(place.app)
    assert row.state is State.MISSING
    assert service.status(row).at_stake() == [
        "commits on no branch", "submodule outer: commits on no branch", "commits that were not harvested",
    ]  # fmt: skip
    (said,) = service.repair(place.app)
    assert "paddock worktree repair DIR" in said
    assert "paddock worktree remove --force a" in said
    assert service.of_repository(place.app) == [row]
    with pytest.raises(Refusal) as raised:
        service.remove(row)
    assert raised.value.reference == "worktree-missing"
    assert "not harvested" in raised.value.context
    assert raised.value.hint.startswith("paddock worktree harvest a ")
    removed = service.remove(row, force=True)
    assert (Path(removed.set_aside) / "precious").exists()
    assert service.of_repository(place.app) == []
    assert repository.leftovers(place) == []
    for oid, store in zip(loose, (place.app / ".git/modules/outer", place.app), strict=True):
        assert "refs/paddock/backup/" in git("for-each-ref", "--contains", oid, at=store)


def test_a_missing_worktree_on_its_branch_is_removed_by_force_alone(place: Place) -> None:
    """It may have been moved, though its commits are elsewhere; forced, it goes as one that is there."""
    made = place.service.add(place.app, "a")
    shutil.rmtree(made.path)
    (row,) = place.service.of_repository(place.app)
    assert place.service.status(row).at_stake() == []
    with pytest.raises(Refusal) as raised:
        place.service.remove(row)
    assert raised.value.reference == "worktree-missing"
    assert place.service.remove(row, force=True).backups == []
    assert "agent/a" not in place.branches


def test_a_moved_worktree_outlives_repair_without_its_directory(place: Place) -> None:
    """Git in it is content again once `repair` was told where it is."""
    made = place.service.add(place.app, "a")
    there = place.root / "there"
    Path(made.path).rename(there)
    assert "is missing" in place.service.repair(place.app)[-1]
    with pytest.raises(Refusal) as raised:
        place.service.adopt(there)
    assert f"paddock worktree repair {there}" in raised.value.hint
    place.service.repair(there)
    assert git("status", "--porcelain", "--branch", at=there) == "## agent/a"


def test_what_git_has_pruned_stays_known_as_long_as_work_of_it_is_anywhere(place: Place) -> None:
    """Commits that wait in a private git directory, or that a harvest has kept, are not git's to forget."""
    made = place.service.add(place.app, "a")
    service = unharvested(place, made)
    shutil.rmtree(made.path)
    git("worktree", "prune", at=place.app)
    assert "it is registered again" in service.repair(place.app)[0]
    (row,) = service.of_repository(place.app)
    assert (row.state, row.main) == (State.MISSING, made.main)
    assert service.status(row).at_stake() == ["commits that were not harvested"]
    shutil.rmtree(record.directory_of(place.state, made.worktree_id))
    ref = f"refs/paddock/agents/{made.worktree_id}/agent/a"
    git("update-ref", ref, git("commit-tree", "-m", "x", "HEAD^{tree}", at=place.app), at=place.app)
    git("worktree", "prune", at=place.app)
    assert service.of_repository(place.app) == [row]
    assert service.status(row).at_stake() == [f"1 commit of the agent is kept in {ref}"]
    assert service.remove(row, force=True).refs_kept == [(str(place.app / ".git"), ref)]
    assert service.of_repository(place.app) == []
    assert repository.leftovers(place) == []


def test_what_git_has_pruned_is_forgotten_when_nothing_of_it_is_left(place: Place) -> None:
    """That is the user's right; no lock and no half git directory stays."""
    made = place.service.add(place.app, "a")
    Path(record.directory_of(place.state, made.worktree_id)).mkdir(parents=True)
    shutil.rmtree(made.path)
    git("worktree", "prune", at=place.app)
    assert place.service.repair(place.app) == [f"forgot {made.path}: git no longer knows it"]
    assert repository.leftovers(place) == []


def test_a_new_worktree_has_nothing_of_a_missing_one_at_its_place(place: Place) -> None:
    """The old one is forgotten as a forced removal does it, and a warning says where everything is; or nothing is."""
    made = place.service.add(place.app, "a")
    unharvested(place, made)
    shutil.rmtree(made.path)
    warnings: list[str] = []
    again = WorktreeService(place.state, unharvested=lambda _: True, warn=warnings.append)
    with pytest.raises(Refusal) as raised:
        again.add(place.app, "a")
    assert raised.value.reference == "branch-exists"
    assert again.find(place.app, "a").state is State.MISSING
    new = again.add(place.app, "a", Options(branch="agent/b"))
    assert new.path == made.path
    assert again.of_repository(place.app) == [new]
    assert not Path(record.directory_of(place.state, new.worktree_id)).exists()
    (aside,) = Path(place.state, "removed").glob("*/precious")
    (warning,) = warnings
    assert str(aside.parent) in warning
    assert "kept branch agent/a" in warning


def test_a_worktree_that_git_makes_at_the_place_of_another_has_nothing_of_that(place: Place) -> None:
    """The store goes by paths, and git by names that it uses again; Paddock's own note tells the two apart."""
    made = place.service.add(place.app, "a")
    service = unharvested(place, made)
    shutil.rmtree(made.path)
    git("worktree", "prune", at=place.app)
    git("worktree", "add", "-q", "-b", "other", made.path, at=place.app)
    adopted = service.adopt(made.path)
    assert adopted.main.git_dir == made.main.git_dir
    assert (adopted.adopted, adopted.main.branch) == (True, "other")
    assert not Path(record.directory_of(place.state, made.worktree_id)).exists()
    assert len(list(Path(place.state, "removed").glob("*/precious"))) == 1


def test_what_a_worktree_unknown_to_paddock_left_is_not_for_the_next_one(place: Place) -> None:
    """A session needs no adoption; the one that is adopted keeps its own, and a later one does not get it."""
    root = place.root / "x"
    git("worktree", "add", "-q", "-b", "x", str(root), at=place.app)
    private = Path(record.directory_of(place.state, launch.worktree_id(str(root))))
    private.mkdir(parents=True)
    (private / "lock").touch()
    service = WorktreeService(place.state, unharvested=lambda _: True)
    service.adopt(root)
    assert private.exists()
    service.remove(service.find(place.app, "x"), force=True)
    private.mkdir(parents=True)
    (private / "lock").touch()
    os.utime(private / "lock", ns=(0, 0))
    git("worktree", "add", "-q", str(root), "x", at=place.app)
    service.adopt(root)
    assert not private.exists()


def test_what_paddock_alone_has_written_beside_a_private_directory_keeps_nothing(place: Place) -> None:
    """Where nothing waits, it goes for good; a file of anybody else's is kept."""
    made = place.service.add(place.app, "a")
    private, removed = Path(record.directory_of(place.state, made.worktree_id)), Path(place.state, "removed")
    for names, kept in ((OWN, 0), ((*OWN, "mine"), 1)):
        place.service.remove(place.service.find(place.app, "a"))
        private.mkdir(parents=True)
        for name in names:
            (private / name).touch()
        place.service.add(place.app, "a")
        assert not private.exists()
        assert len(list(removed.iterdir()) if removed.exists() else []) == kept


@pytest.mark.parametrize("step", ["set aside", "metadata outer", "home"])
def test_a_forced_removal_that_was_killed_keeps_what_was_not_harvested(place: Place, step: str) -> None:
    """Recovery cannot tell from the files how far it came: they were missing before."""
    made = place.service.add(place.app, "a")
    shutil.rmtree(made.path)
    (row,) = place.service.of_repository(place.app)
    service = unharvested(place, made, step)
    with pytest.raises(forked.Killed):
        forked.run(lambda: bool(service.remove(row, force=True)))
    again = WorktreeService(place.state, unharvested=lambda _: True)
    assert again.of_repository(place.app) == []
    assert len(list(Path(place.state, "removed").glob("*/precious"))) == 1
