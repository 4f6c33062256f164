"""What lies in the place of a submodule that is not populated is work like any other, whatever it is."""

import os
from pathlib import Path

import pytest

from launcher.vcs.private import record
from launcher.vcs.private.pointer import NAME, Holder
from launcher.vcs.worktrees.models import Options, State, Worktree
from policy.errors import Refusal
from tests.support import repository
from tests.support.repository import Place, committed, git


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return repository.nested(tmp_path)


def refused(place: Place, made: Worktree) -> str:
    """What a removal says that holds work; nothing of it is gone."""
    with pytest.raises(Refusal) as raised:
        place.service.remove(made)
    assert raised.value.reference == "worktree-dirty"
    assert Path(made.path).exists()
    return raised.value.context


@pytest.mark.parametrize("kind", ["file", "link", "repository", "only-git"])
def test_what_lies_where_a_submodule_belongs_is_kept(place: Place, kind: str) -> None:
    """Named and refused; a forced removal has its files in the backup, and a repository there as it was."""
    made = place.service.add(place.app, "T", Options(submodules=()))
    there = Path(made.path, "lib/outer")
    assert place.service.status(made).at_stake() == []
    commit = ""
    if kind == "file":
        (there / "deep").mkdir()
        (there / "deep/work").write_text("precious\n")
    elif kind == "link":
        there.rmdir()
        there.symlink_to("/precious")
    else:
        git("init", "-q", at=there)
        committed(there, work="precious\n")
        commit = git("rev-parse", "HEAD", at=there)
        if kind == "only-git":
            (there / "work").unlink()
    named = "the content of lib/outer, where a submodule belongs"
    assert named in place.service.status(made).at_stake()
    assert named in refused(place, made)
    backups = place.service.remove(made, force=True).backups
    assert not Path(made.path).exists()
    kept = {"file": "lib/outer/deep/work", "link": "lib/outer", "repository": "lib/outer/work"}.get(kind)
    if kept is not None:
        assert git("show", f"{backups[0][1]}:{kept}", at=place.app) in ("precious", "/precious")
    if commit:
        aside = "/".join(backups[-1])
        assert git("--git-dir", aside, "show", f"{commit}:work", at=place.root) == "precious"


def test_a_submodule_that_an_agent_has_added_is_kept(place: Place) -> None:
    """The index names it, and what was changed in it since is nowhere else."""
    made = place.service.add(place.app, "T")
    added = Path(made.path, "x")
    git("clone", "-q", str(place.app / ".git/modules/outer"), "x", at=Path(made.path))
    git("add", "x", at=Path(made.path))
    git("commit", "-q", "-m", "Added.", at=Path(made.path))
    (added / "file").write_text("changed\n")
    (added / "new").write_text("new\n")
    assert refused(place, made) == "the content of x, where a submodule belongs"
    backups = place.service.remove(made, force=True).backups
    assert git("show", f"{backups[0][1]}:x/file", at=place.app) == "changed"
    assert git("show", f"{backups[0][1]}:x/new", at=place.app) == "new"


def test_a_submodule_that_the_user_populates_later_is_looked_at_like_others(place: Place) -> None:
    """Clean, it stands in nobody's way; what is changed in it is named as its own, and kept."""
    for name in ("up-inner", "up-outer"):
        (place.root / f"gone-{name}").rename(place.root / name)
    made = place.service.add(place.app, "T", Options(submodules=()))
    git("submodule", "--quiet", "update", "--init", at=Path(made.path))
    assert place.service.status(made).at_stake() == []
    (Path(made.path) / "lib/outer/file").write_text("changed\n")
    assert refused(place, made) == "submodule outer: 1 modified"
    backups = place.service.remove(made, force=True).backups
    assert [ref for _, ref in backups][-1:] == ["modules"]
    for at, ref in backups[:-1]:  # one is in the store that git has made, which went
        git("cat-file", "-e", ref, at=Path(at))
    assert git("show", f"{backups[1][1]}:file", at=Path(backups[1][0])) == "changed"
    made = place.service.add(place.app, "U", Options(submodules=()))
    git("submodule", "--quiet", "update", "--init", at=Path(made.path))
    place.service.remove(made)
    assert not Path(made.path).exists()


def test_a_repository_that_a_session_has_put_aside_is_kept(place: Place) -> None:
    """With the private git directory, which is set aside; a pointer there holds nothing up."""
    made = place.service.add(place.app, "T")
    private = Path(record.directory_of(place.state, made.worktree_id))
    private.mkdir(parents=True)
    (private / "docked-1").write_text("gitdir: elsewhere\n")
    assert place.service.status(made).at_stake() == []
    git("init", "-q", "--bare", "docked-2", at=private)
    assert refused(place, made) == f"a repository that was moved aside: {private}/docked-2"
    aside = Path(place.service.remove(made, force=True).set_aside)
    assert (aside / "docked-2/HEAD").exists()
    assert not private.exists()


@pytest.mark.parametrize("committed_too", [False, True])
def test_a_submodule_that_was_moved_is_kept(place: Place, committed_too: bool) -> None:
    """Its old place is gone and its new one is not known: both are said, and a forced removal keeps the files."""
    made = place.service.add(place.app, "T", Options(submodules=("outer",)))
    root = Path(made.path)
    (root / "lib").rename(root / "lib2")
    (root / "lib2/outer/.git").unlink()  # as docking does with what leads to a private git directory
    if committed_too:
        git("update-index", "--force-remove", "lib/outer", at=root)
        oid = git("rev-parse", "HEAD:lib/outer", at=root)
        git("update-index", "--add", "--cacheinfo", f"160000,{oid},lib2/outer", at=root)
        git("commit", "-q", "-m", "Moved.", at=root)
    (root / "lib2/outer/new").write_text("new\n")
    said = refused(place, made)
    missing, new = f"submodule outer: {root}/lib/outer is missing, or was replaced", "the content of lib2/outer, where"
    assert [missing in said, new in said] == [not committed_too, committed_too]
    (_, ref), *_ = place.service.remove(made, force=True).backups
    assert git("show", f"{ref}:lib2/outer/new", at=place.app) == "new"


def test_a_repository_that_cannot_be_moved_is_not_removed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the worktree is on another file system than the repository it stays with the worktree, and says so."""
    made = place.service.add(place.app, "T", Options(submodules=()))
    there = Path(made.path, "lib/outer")
    git("init", "-q", at=there)
    real = Holder.stat

    def elsewhere(holder: Holder, name: str = NAME) -> "os.stat_result | None":
        found = real(holder, name)
        return found and os.stat_result((*found[:2], found.st_dev + 1, *found[3:10]))

    monkeypatch.setattr(Holder, "stat", elsewhere)
    for _ in range(2):
        with pytest.raises(Refusal) as raised:
            place.service.remove(made, force=True)
        assert raised.value.reference == "worktree-obstructed"
        assert list(there.glob(".git*/HEAD"))
        (made,) = place.service.of_repository(place.app)
        assert made.state is State.READY
        monkeypatch.setattr(Holder, "stat", real)
        if (there / ".git").exists():
            (there / ".git").rename(there / ".git.docked-1")  # what `put_aside` does between file systems
