"""Store and disk disagree: git's own files decide."""

import os
import shlex
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.vcs import written
from launcher.vcs.worktrees.models import Options, State
from launcher.vcs.worktrees.store import FILE, WorktreeRepository
from launcher.vcs.worktrees.worktree_service import WorktreeService
from policy.errors import Refusal
from tests.support import repository as worktrees
from tests.support.repository import Place, git


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return worktrees.nested(tmp_path)


def test_a_lost_store_is_made_again(place: Place) -> None:
    """From the records in git's own directories: the same worktrees, with their tickets and submodules."""
    made = [place.service.add(place.app, name) for name in ("a", "b")]
    for path in Path(place.state).glob(f"{FILE}*"):
        path.unlink()
    assert place.service.of_repository(place.app) == made


def test_a_damaged_store_is_set_aside(place: Place) -> None:
    """One command says so; the next finds everything again."""
    made = place.service.add(place.app, "a")
    for path in Path(place.state).glob(f"{FILE}*"):
        path.unlink()
    Path(place.state, FILE).write_bytes(b"no database, " * 1000)
    with pytest.raises(Refusal) as raised:
        place.service.of_repository(place.app)
    assert raised.value.reference == "worktree-store-damaged"
    assert place.service.of_repository(place.app) == [made]
    assert list(Path(place.state).glob(f"{FILE}.damaged-*"))


def test_who_made_a_worktree_is_asked_without_the_rest(place: Place, tmp_path: Path) -> None:
    """Its places as they are, also where their names are no UTF-8; nothing of what was found; a damaged row is told."""
    store = WorktreeRepository(place.state)
    plain = place.service.add(place.app, "a")
    odd = place.service.add(place.app, "b", Options(path=str(tmp_path / "b\udcff %41")))
    for made in (plain, odd):
        assert store.made(made.worktree_id) == (made.path, str(made.main.git_dir))
    assert store.made("unknown") is None
    store.save(plain._replace(adopted=True))
    assert store.made(plain.worktree_id) is None
    with sqlite3.connect(store.path) as database:
        database.execute("UPDATE worktrees SET document = '[]'")
    database.close()
    with pytest.raises(Refusal) as raised:
        store.made(odd.worktree_id)
    assert raised.value.reference == "worktree-store-damaged"


def test_a_store_of_a_newer_version_is_not_touched(place: Place) -> None:
    """What another version wrote is not guessed at."""

    place.service.add(place.app, "a")
    database = sqlite3.connect(Path(place.state, FILE))
    database.execute("PRAGMA user_version=99")
    database.close()
    with pytest.raises(Refusal) as raised:
        place.service.of_repository(place.app)
    assert raised.value.reference == "state-version"


def test_files_that_come_back_make_it_ready_again(place: Place) -> None:
    """A mount that was missing, say."""
    made = place.service.add(place.app, "a")
    Path(made.path).rename(place.root / "away")
    assert [row.state for row in place.service.of_repository(place.app)] == [State.MISSING]
    (place.root / "away").rename(made.path)
    assert place.service.of_repository(place.app) == [made]


def test_a_worktree_moved_by_hand_is_followed(place: Place) -> None:
    """With its submodules, its private home, what sessions could write and a new id; git is content too."""
    made = place.service.add(place.app, "a")
    home = Path(place.state, "worktrees", made.worktree_id)
    home.mkdir(parents=True)
    (home / "x").write_text("")
    Path(place.state, written.NAME).touch(mode=0o600)
    Path(place.state, written.NAME).write_bytes(b"*" + os.fsencode(made.path) + b"\0")
    there = place.root / "there"
    Path(made.path).rename(there)
    place.service.of_repository(place.app)
    assert any(str(there) in line for line in place.service.repair(there))
    (row,) = place.service.of_repository(place.app)
    assert (row.path, row.state) == (str(there), State.READY)
    assert row.worktree_id != made.worktree_id
    assert Path(place.state, "worktrees", row.worktree_id, "x").exists()
    assert str(there) in written.trees(place.state), "sessions have been there"
    for part in (there, there / "lib/outer", there / "lib/outer/deep/inner"):
        assert git("status", "--porcelain", "--branch", at=part) == "## agent/a"
    assert worktrees.leftovers(place) == []


def test_a_pointer_that_an_agent_wrote_moves_nothing(place: Place) -> None:
    """A directory that names the git directory of a worktree which is where it was is not followed."""
    made = place.service.add(place.app, "a")
    fake = place.root / "fake"
    fake.mkdir()
    (fake / ".git").write_text(f"gitdir: {made.main.git_dir}\n")
    with pytest.raises(Refusal) as raised:
        place.service.repair(fake)
    assert (raised.value.reference, made.path in raised.value.hint) == ("worktree-moved", True)
    assert place.service.of_repository(place.app) == [made]


@pytest.mark.parametrize("shared", [False, True])
def test_what_an_agent_says_in_its_own_tree_is_not_followed(
    place: Place, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    """A directory in a tree that sessions could write is not taken for a missing worktree, unless git is told so."""
    monkeypatch.setenv("XDG_STATE_HOME", str(place.root / "elsewhere"))  # the record is the service's own
    made = [place.service.add(place.app, name) for name in ("a", "b")]
    tree = place.root / "shared" if shared else Path(made[0].path)
    moved = tree / "d/moved"
    moved.mkdir(parents=True)
    (moved / ".git").write_text(f"gitdir: {made[1].main.git_dir}\n")
    entries = (b"*" * shared + bytes(tree), b"*" + os.fsencode(made[1].path), b"")
    Path(place.state, written.NAME).touch(mode=0o600)
    Path(place.state, written.NAME).write_bytes(b"\0".join(entries))
    true = place.root / "true"
    Path(made[1].path).rename(true)
    with pytest.raises(Refusal) as raised:
        place.service.repair(moved)
    assert (raised.value.reference, str(tree) in raised.value.message) == ("worktree-moved", True)
    assert [row.path for row in place.service.of_repository(place.app)] == [row.path for row in made]
    place.service.repair(true)
    with pytest.raises(Refusal) as raised:
        place.service.repair(moved)
    assert f"move {true} away" in raised.value.hint
    (moved / ".git").unlink()
    true.rename(made[1].path)
    place.service.repair(made[1].path)
    rows = place.service.of_repository(place.app)
    assert [row.path for row in rows] == [row.path for row in made], "it may come back to where its own sessions were"
    moved.rmdir()
    Path(made[1].path).rename(moved)
    with pytest.raises(Refusal) as raised:
        place.service.repair(moved)
    words = shlex.split(raised.value.hint.rpartition(": ")[2])
    subprocess.run(words, cwd=place.root, check=True)
    place.service.repair(moved)
    assert [row.path for row in place.service.of_repository(place.app)] == sorted((made[0].path, str(moved)))


def test_the_place_of_another_worktree_is_not_taken(place: Place) -> None:
    """Where there are no mounts a command may replace the `.git` at the root itself."""
    made = [place.service.add(place.app, name) for name in ("a", "b")]
    Path(made[1].path).rename(place.root / "true")
    (Path(made[0].path) / ".git").write_text(f"gitdir: {made[1].main.git_dir}\n")
    with pytest.raises(Refusal) as raised:
        place.service.repair(made[0].path)
    assert (raised.value.reference, "another worktree is there" in raised.value.message) == ("worktree-moved", True)
    place.service.store.forget(made[0].worktree_id)  # git knows it
    with pytest.raises(Refusal) as raised:
        place.service.repair(made[0].path)
    assert "another worktree is there" in raised.value.message
    stranger = place.root / "stranger"  # of another repository, or of none: only the record of its sessions is known
    stranger.mkdir()
    (stranger / ".git").write_text(f"gitdir: {made[1].main.git_dir}\n")
    Path(place.state, written.NAME).touch(mode=0o600)
    Path(place.state, written.NAME).write_bytes(b"*" + bytes(stranger) + b"\0")
    with pytest.raises(Refusal) as raised:
        place.service.repair(stranger)
    assert f"agents could write {stranger}" in raised.value.message
    (Path(made[0].path) / ".git").write_text(f"gitdir: {made[0].main.git_dir}\n")
    place.service.repair(place.root / "true")
    assert [row.path for row in place.service.of_repository(place.app)] == [made[0].path, str(place.root / "true")]


@pytest.mark.parametrize("why", ["moved", "copied", "not repaired", "written"])
def test_a_repository_that_was_moved_brings_its_worktrees(place: Place, why: str) -> None:
    """Once git has made their `.git` lead to it; not a copy of it, nor one that sessions could write."""
    made = place.service.add(place.app, "a")
    moved = place.root / "moved"
    if why == "copied":
        shutil.copytree(place.app, moved, symlinks=True)
    else:
        place.app.rename(moved)
    if why == "written":
        Path(place.state, written.NAME).touch(mode=0o600)
        Path(place.state, written.NAME).write_bytes(b"*" + bytes(moved / ".git") + b"\0")
    if why != "not repaired":
        git("worktree", "repair", at=moved)
    rows = place.service.of_repository(moved)
    if why != "moved":
        assert rows == []
        return
    (row,) = rows
    assert (row.path, row.worktree_id, row.parent_path) == (made.path, made.worktree_id, moved)
    assert all(part.git_dir.is_relative_to(moved) and part.git_dir.exists() for part in row.parts)
    place.service.repair(moved)
    for part in row.parts:
        assert git("status", "--porcelain", "--branch", at=part.path) == "## agent/a"
    assert place.service.repair(moved) == []


def test_what_git_removed_is_forgotten(tmp_path: Path) -> None:
    """`git worktree remove` and `prune` are the user's right."""
    place = worktrees.plain(tmp_path)
    made = place.service.add(place.app, "a")
    git("worktree", "remove", made.path, at=place.app)
    assert place.service.of_repository(place.app) == []
    git("worktree", "add", "-q", "../again", "agent/a", at=place.app)
    adopted = place.service.adopt(tmp_path / "again")
    git("worktree", "move", "../again", "../moved", at=place.app)
    (row,) = place.service.of_repository(place.app)
    assert row.path == str(tmp_path / "moved")
    assert row.main.git_dir == adopted.main.git_dir


def test_processes_that_make_worktrees_at_once_are_in_nobodys_way(tmp_path: Path) -> None:
    """Each is whole, none is made twice, and no lock of git's is in anybody's way."""
    place = worktrees.plain(tmp_path)
    program = (
        "import sys; from launcher.vcs.worktrees.worktree_service import WorktreeService as S\n"
        "s = S(sys.argv[1])\n"
        "for n in range(int(sys.argv[3]), 12, 4): s.add(sys.argv[2], f'T-{n}')\n"
    )

    repository = Path(__file__).resolve().parents[2]
    running = [
        subprocess.Popen([sys.executable, "-c", program, place.state, str(place.app), str(number)],
                         cwd=repository, stderr=subprocess.PIPE)
        for number in range(4)
    ]  # fmt: skip
    for process in running:
        _, err = process.communicate(timeout=200)
        assert process.returncode == 0, err
    rows = WorktreeService(place.state).of_repository(place.app)
    assert {row.ticket for row in rows} == {f"T-{number}" for number in range(12)}
    assert all(row.state is State.READY for row in rows)
    assert all((Path(row.path) / "file").read_text() == "one\n" for row in rows)
    assert len(place.branches) == 13
    assert git("worktree", "list", "--porcelain", at=place.app).count("branch refs/heads/agent/T-") == 12
    assert worktrees.leftovers(place) == []


def test_the_same_ticket_twice_at_once_is_made_once(tmp_path: Path) -> None:
    """One of two gets it, the other a Refusal that says why."""
    place = worktrees.plain(tmp_path)
    program = (
        "import sys; from launcher.vcs.worktrees.worktree_service import WorktreeService as S\n"
        "from policy.errors import Refusal\n"
        "try: S(sys.argv[1]).add(sys.argv[2], 'T')\n"
        "except Refusal as refusal: print(refusal.reference)\n"
    )

    repository = Path(__file__).resolve().parents[2]
    running = [
        subprocess.Popen([sys.executable, "-c", program, place.state, str(place.app)], cwd=repository,
                         stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]  # fmt: skip
    said = sorted(process.communicate(timeout=100)[0].strip() for process in running)
    assert said[0] == ""
    assert said[1] in ("worktree-exists", "branch-exists")
    assert len(place.service.of_repository(place.app)) == 1
