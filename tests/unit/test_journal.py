"""The journal of merges: whole or not at all on disk, one run at a time, and nothing is guessed."""

import os
import stat
from pathlib import Path

import pytest

from launcher.vcs.merge import work
from launcher.vcs.merge.runs import UNFINISHED, Journal, Move, Run, State
from policy.errors import Refusal
from tests.support.ground import Ground


def run_of(journal: Journal, state: State = State.PREPARED) -> Run:
    move = Move(git_dir=Path("/repo/.git"), ref="refs/heads/main", old="1" * 40, new="2" * 40)
    return Run(run_id=journal.new_id(), state=state, target="main", moves=(move,))


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    """With every state; only one that is not finished counts as unfinished."""
    journal = Journal(str(tmp_path / "journal"))
    run = run_of(journal)
    for state in State:
        run = journal.advance(run, state, "note")
        assert journal.read(run.run_id) == run
        assert journal.unfinished() == (run if state in UNFINISHED else None)
    assert journal.runs() == [run.run_id]


def test_it_is_private(tmp_path: Path) -> None:
    """Nobody else can read or write it."""
    journal = Journal(str(tmp_path / "journal"))
    journal.write(run_of(journal))
    with journal.lock():
        for path in (tmp_path / "journal", *(tmp_path / "journal").iterdir()):
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_runs_of_one_repository_do_not_mix(tmp_path: Path) -> None:
    """While one merges, another one waits, and gives up in the end; afterwards it may."""
    journal = Journal(str(tmp_path / "journal"))
    with journal.lock(), pytest.raises(Refusal, match="another merge"), journal.lock(wait=0.1):
        pass
    with journal.lock(wait=0.1):
        pass


def test_what_is_damaged_is_told(tmp_path: Path) -> None:
    """A journal that somebody has changed is not used; half a new one beside the old one does not matter."""
    journal = Journal(str(tmp_path / "journal"))
    run = journal.write(run_of(journal))
    path = tmp_path / f"journal/{run.run_id}.json"
    (tmp_path / f"journal/{run.run_id}.json.new").write_text('{"run_id": "')
    assert journal.read(run.run_id) == run
    path.write_text(path.read_text().replace('"prepared"', '"prepared", "more": 1'))
    with pytest.raises(Refusal, match="cannot be read"):
        journal.read(run.run_id)


@pytest.mark.parametrize("name", ["", "..", "../x", "20200101-000000-abcdeg", "20200101-000000-abcdef"])
def test_unknown_names_are_refused(tmp_path: Path, name: str) -> None:
    """A name that is none leads to no file."""
    with pytest.raises(Refusal) as refused:
        Journal(str(tmp_path / "journal")).read(name)
    assert refused.value.reference == "merge-run-unknown"


def test_repositories_have_journals_of_their_own(tmp_path: Path) -> None:
    """Found by the repository's real place, whatever way leads there."""
    (tmp_path / "a/repo/.git").mkdir(parents=True)
    (tmp_path / "b").symlink_to("a")
    state = str(tmp_path / "state")
    one = work.journal_of(state, str(tmp_path / "a/repo/.git"))
    assert work.journal_of(state, str(tmp_path / "b/repo/.git")).directory == one.directory
    assert work.journal_of(state, str(tmp_path / "a/other.git")).directory != one.directory
    assert os.path.basename(one.directory).startswith("repo-")


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    """`one` can be merged into `main`."""
    made = Ground(tmp_path / "repo", {"a": "a\n"})
    made.branch("one", {"b": "b\n"})
    return made


def test_an_interrupted_run_comes_first(ground: Ground) -> None:
    """Nothing is merged or rolled back beside it."""
    done = ground.merge("one")
    git_dir, state = str(ground.root / ".git"), str(ground.state)
    journal = work.journal_of(state, git_dir)
    run = journal.write(run_of(journal))
    with pytest.raises(Refusal) as refused:
        ground.merge("one")
    assert (refused.value.reference, run.run_id in refused.value.hint) == ("merge-unfinished", True)
    with pytest.raises(Refusal) as refused:
        work.roll_back(git_dir, state, done.run_id)
    assert refused.value.reference == "merge-unfinished"


def test_a_foreign_value_stops_and_is_told(ground: Ground) -> None:
    """A branch that somebody has moved since is not touched, by a rollback as by a resumption."""
    run = ground.merge("one")
    git_dir, state = str(ground.root / ".git"), str(ground.state)
    ground.commit("main", {"c": "c\n"})
    ground.git("reset", "-q", "--hard")
    later = ground.id("main")
    with pytest.raises(Refusal) as refused:
        work.roll_back(git_dir, state, run.run_id)
    assert refused.value.reference == "merge-halted"
    assert later in refused.value.context
    work.journal_of(state, git_dir).advance(run, State.COMMITTING)
    with pytest.raises(Refusal) as refused:
        work.resume(git_dir, state)
    assert refused.value.reference == "merge-halted"
    assert ground.id("main") == later
    assert ground.status() == []


def test_a_rollback_spares_unrelated_edits_and_refuses_overlapping_ones(ground: Ground) -> None:
    """The same rules as for a merge; and twice is once too often."""
    before = ground.id("main")
    run = ground.merge("one")
    (ground.root / "b").write_text("edited\n")
    git_dir, state = str(ground.root / ".git"), str(ground.state)
    with pytest.raises(Refusal) as refused:
        work.roll_back(git_dir, state, run.run_id)
    assert refused.value.reference == "trunk-dirty"
    assert work.journal_of(state, git_dir).read(run.run_id).state is State.DONE
    (ground.root / "b").write_text("b\n")
    (ground.root / "a").write_text("edited\n")
    assert work.roll_back(git_dir, state, run.run_id).state is State.ROLLED_BACK
    assert ground.id("main") == before
    assert ground.status() == [" M a"]
    # What was merged is still there for who wants it.
    assert ground.id(f"refs/paddock/merge/{run.run_id}/new") == run.moves[0].new
    with pytest.raises(Refusal) as refused:
        work.roll_back(git_dir, state, run.run_id)
    assert refused.value.reference == "merge-not-done"
