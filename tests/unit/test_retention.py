"""What Paddock has kept and nothing needs: by age and number, and refs of worktrees that are gone."""

import time
from pathlib import Path

import pytest

from launcher.vcs.merge import moving, work
from launcher.vcs.private import record
from launcher.vcs.worktrees import retention
from launcher.vcs.worktrees.retention import Bounds
from policy import launch
from tests.support.ground import Ground

DAY = 86_400.0
FEW = Bounds(days=30, most=1, lost_days=90)


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    """`main` with three branches that merge cleanly."""
    made = Ground(tmp_path / "repo", {"a": "a\n"})
    for name in ("one", "two", "three"):
        made.branch(name, {name: f"{name}\n"})
    made.state.mkdir()
    return made


def kept(ground: Ground, kind: str = "") -> list[str]:
    """Paddock's own refs."""
    return ground.git("for-each-ref", "--format=%(refname)", f"refs/paddock/{kind}").split()


def prune(ground: Ground, bounds: Bounds = FEW, *, later: float = 0.0, dry_run: bool = False) -> retention.Pruned:
    """Prunes as if it were later."""
    state, own = str(ground.state), [str(ground.root / ".git")]
    return retention.prune(state, own, bounds, dry_run=dry_run, now=time.time() + later)


def test_merges_go_by_number_and_age_with_their_journals(ground: Ground) -> None:
    """The newest stay; a trial removes nothing; what is left can be taken back."""
    runs = [ground.merge(name).run_id for name in ("one", "two", "three")]
    before = kept(ground)
    trial = prune(ground, dry_run=True)
    assert (kept(ground), trial.notes) == (before, ())
    done = prune(ground)
    assert done == trial
    assert {each.name for each in done.removed if not each.oid} == set(runs[:2])
    assert not any(each.lost for each in done.removed)
    journal = work.journal_of(str(ground.state), str(ground.root / ".git"))
    assert journal.runs() == runs[2:]
    assert {name.split("/")[3] for name in kept(ground, "merge")} == {runs[2]}
    assert work.roll_back(str(ground.root / ".git"), str(ground.state), runs[2]).state == "rolled-back"
    # What was taken back is on no branch: it stays beyond the age of the others, and is told when it goes.
    assert prune(ground, later=60 * DAY).removed == ()
    gone = prune(ground, later=91 * DAY).removed
    assert any(each.lost and "on no branch" in each.why for each in gone)
    assert (kept(ground), journal.runs()) == ([], [])


def test_what_an_unfinished_merge_needs_stays(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """However old it is, and while another one has the lock."""
    run = ground.merge("one").run_id
    with monkeypatch.context() as patch:
        patch.setattr(moving, "_finish", lambda *_: pytest.fail("killed here"))
        with pytest.raises(BaseException, match="killed here"):
            ground.merge("two")
    journal = work.journal_of(str(ground.state), str(ground.root / ".git"))
    unfinished = journal.unfinished()
    assert unfinished is not None
    with journal.lock():
        assert prune(ground, later=1_000 * DAY).notes != ()
    prune(ground, later=1_000 * DAY)
    assert journal.runs() == [unfinished.run_id]
    assert {name.split("/")[3] for name in kept(ground, "merge")} == {unfinished.run_id} != {run}
    assert work.resume(str(ground.root / ".git"), str(ground.state)) is not None


def test_backups_go_by_age_those_of_lost_work_later_and_packed_ones_too(ground: Ground) -> None:
    """The age of a ref that git has packed is known from when it was first seen."""
    lost = ground.git("commit-tree", "-m", "lost", "HEAD^{tree}")
    for name, oid in (("backup/w-1/1", lost), ("backup/w-1/2", ground.id("main")), ("links/" + lost, lost)):
        ground.git("update-ref", f"refs/paddock/{name}", oid)
    ground.git("pack-refs", "--all")
    bounds = Bounds(days=30, most=10, lost_days=90)
    assert prune(ground, bounds).removed == ()
    assert [each.name for each in prune(ground, bounds, later=31 * DAY).removed] == ["refs/paddock/backup/w-1/2"]
    (gone,) = prune(ground, bounds, later=91 * DAY).removed
    assert (gone.name, gone.lost) == ("refs/paddock/backup/w-1/1", True)
    assert kept(ground) == [f"refs/paddock/links/{lost}"]


def test_only_names_that_paddock_chose_are_taken_for_dates(ground: Ground) -> None:
    """An agent names its branches: one that is called like an old backup is as old as its ref."""
    lost = ground.git("commit-tree", "-m", "lost", "HEAD^{tree}")
    dated = "20010101T000000Z-abcd"
    kinds = ("agents", "detached", "stash", "links", "backup")
    for kind in kinds:
        ground.git("update-ref", f"refs/paddock/{kind}/w-1/{dated}", lost)
    assert [each.name for each in prune(ground).removed] == [f"refs/paddock/backup/w-1/{dated}"]
    assert {name.split("/")[2] for name in kept(ground)} == set(kinds) - {"backup"}
    gone = {each.name.split("/")[2] for each in prune(ground, later=91 * DAY).removed}
    assert gone == {"agents", "detached", "stash"}


def test_refs_of_a_worktree_that_the_user_removed_go_with_it(ground: Ground) -> None:
    """Not while the worktree, its private git directory or work that is nowhere else is there."""
    ground.git("worktree", "add", "-q", "-b", "side", "../side")
    ground.git("worktree", "add", "-q", "-b", "stays", "../stays")
    side, stays = (launch.worktree_id(str(ground.root.parent / name)) for name in ("side", "stays"))
    lost = ground.git("commit-tree", "-m", "lost", "HEAD^{tree}")
    base = ground.id("main")
    for name, oid in ((f"base/{side}", base), (f"base/{stays}", base), (f"agents/{side}/side", base),
                      (f"detached/{side}/1", lost), ("base/private-1", base)):  # fmt: skip
        ground.git("update-ref", f"refs/paddock/{name}", oid)
    (ground.state / "git/private-1").mkdir(parents=True)
    assert prune(ground).removed == ()
    ground.git("worktree", "remove", "../side")
    done = prune(ground)
    assert {each.name for each in done.removed} == {f"refs/paddock/base/{side}", f"refs/paddock/agents/{side}/side"}
    assert set(kept(ground)) == {record.pin(stays), record.pin("private-1"), f"refs/paddock/detached/{side}/1"}
    (ground.state / "git/private-1").rmdir()
    assert [each.name for each in prune(ground).removed] == [record.pin("private-1")]
    assert prune(ground, later=91 * DAY).removed[0].lost
