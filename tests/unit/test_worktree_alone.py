"""Work that a worktree's own git directory alone leads to: it is named, and a forced removal keeps it."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import NoReturn

import pytest

from launcher.vcs.git import GitFailed
from launcher.vcs.private import record
from launcher.vcs.worktrees import removal
from launcher.vcs.worktrees.models import Options, State, Worktree
from launcher.vcs.worktrees.removal import Removal
from launcher.vcs.worktrees.worktree_service import WorktreeService
from policy.errors import Refusal
from tests.support import repository
from tests.support.repository import ENV, Place, committed, git
from tests.unit.test_worktree_removal import refused


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return repository.nested(tmp_path)


@pytest.mark.parametrize("way", ["removed", "repaired", "back", "forgotten"])
@pytest.mark.parametrize("inner", ["", "lib/outer"])
def test_what_the_git_directory_of_a_missing_worktree_alone_has_is_kept(place: Place, way: str, inner: str) -> None:
    """It is told, `git worktree prune` leaves it alone once Paddock knows, and a forced removal keeps it."""
    made = place.service.add(place.app, "T")
    root, there, lock = Path(made.path), place.root / "there", Path(made.main.git_dir, "locked")
    at = Path(made.path, inner)
    part = next(part for part in made.parts if part.path == at)
    store = Path(part.common_dir)
    (at / "new").write_text("staged\n")
    git("add", "new", at=at)
    loose = git("commit-tree", "-m", "loose", "-p", "HEAD", "HEAD^{tree}", at=at)
    git("update-ref", "refs/worktree/mine", loose, at=at)
    root.rename(there)
    prefix = "submodule outer: " if inner else ""
    (row,) = place.service.of_repository(place.app)
    assert place.service.status(row).at_stake() == [f"{prefix}1 modified", f"{prefix}commits on no branch"]
    git("worktree", "prune", at=store)
    (row,) = place.service.of_repository(place.app)
    assert (row.state, lock.exists(), place.service.status(row).locked) == (State.MISSING, True, None)
    if way == "removed":
        refs = [ref for where, ref in place.service.remove(row, force=True).backups if Path(where) == store]
        assert [git("show", f"{ref}:new", at=store) for ref in refs if ref.endswith("-staged")] == ["staged"]
        assert "loose" in [git("log", "-1", "--format=%s", ref, at=store) for ref in refs]
    elif way == "forgotten":
        git("worktree", "unlock", str(root), at=place.app)
        git("worktree", "prune", at=place.app)
        assert place.service.of_repository(place.app) == []
    else:
        if way == "repaired":
            place.service.repair(there)
        else:
            there.rename(root)
        (row,) = place.service.of_repository(place.app)
        assert (row.state, lock.exists()) == (State.READY, False)
        assert git("show", ":new", at=Path(row.path, inner)) == "staged"
    assert way in ("repaired", "back") or repository.leftovers(place) == []


def test_a_missing_worktree_without_work_is_left_to_git(place: Place) -> None:
    """Whoever has deleted one has `git worktree prune` forget it; no lock is in the way, and the user's own stays."""
    made = place.service.add(place.app, "T")
    shutil.rmtree(made.path)
    assert [row.state for row in place.service.of_repository(place.app)] == [State.MISSING]
    assert not Path(made.main.git_dir, "locked").exists()
    git("worktree", "prune", at=place.app)
    assert place.service.of_repository(place.app) == []


@pytest.mark.parametrize("damaged", ["index", "HEAD"])
def test_a_missing_worktree_whose_git_directory_is_damaged_is_removed_by_force(place: Place, damaged: str) -> None:
    """What only it had cannot be read any more; a commit that something else of it leads to is kept."""
    made = place.service.add(place.app, "T")
    loose = git("commit-tree", "-m", "loose", "-p", "HEAD", "HEAD^{tree}", at=Path(made.path))
    git("update-ref", "refs/worktree/mine", loose, at=Path(made.path))
    Path(made.path).rename(place.root / "there")
    Path(made.main.git_dir, damaged).write_text("a" * 40 + "\n")
    (row,) = place.service.of_repository(place.app)
    assert place.service.status(row).at_stake()
    kept = [
        git("log", "-1", "--format=%s", ref, at=place.app) for _, ref in place.service.remove(row, force=True).backups
    ]
    assert kept == ["loose"]
    assert place.service.of_repository(place.app) == []


def test_a_missing_worktree_whose_work_cannot_be_written_stays(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a full disk: what can be read is not given up."""
    made = place.service.add(place.app, "T")
    (Path(made.path) / "new").write_text("staged\n")
    git("add", "new", at=Path(made.path))
    Path(made.path).rename(place.root / "there")
    (row,) = place.service.of_repository(place.app)

    def full(*_: object, **__: object) -> NoReturn:
        raise GitFailed("git-failed", ["write-tree"], made.path, "No space left on device", status=128)

    with monkeypatch.context() as patch:
        patch.setattr(removal, "_commits", full)
        with pytest.raises(GitFailed):
            place.service.remove(row, force=True)
    (there,) = place.service.of_repository(place.app)
    refs = [ref for _, ref in place.service.remove(there, force=True).backups]
    assert [git("show", f"{ref}:new", at=place.app) for ref in refs] == ["staged"]


@pytest.mark.parametrize("ref", ["refs/worktree/mine", "refs/bisect/bad", "refs/rewritten/mine"])
@pytest.mark.parametrize(("inner", "store"), [("", ".git"), ("lib/outer", ".git/modules/outer")])
def test_a_commit_that_a_ref_of_the_worktrees_alone_leads_to_is_at_stake(
    place: Place, ref: str, inner: str, store: str
) -> None:
    """Git removes such refs with the worktree; the command that is named for it keeps the commit."""
    made = place.service.add(place.app, "T")
    root = Path(made.path, inner)
    oid = alone(root, "precious")
    git("update-ref", ref, oid, at=root)
    said = "submodule outer: commits on no branch" if inner else "commits on no branch"
    assert place.service.status(made).at_stake() == [said]
    refusal = refused(place, made)
    assert refusal.context == said
    assert refusal.hint.startswith(f"git -C {root} branch NAME {oid} gives commits on no branch a branch\n")
    git("branch", "saved", oid, at=root)
    assert place.service.status(made).at_stake() == []
    git("branch", "-q", "-D", "saved", at=root)
    kept = [ref for where, ref in place.service.remove(made, force=True).backups if Path(where) == place.app / store]
    assert oid in git("for-each-ref", "--format=%(objectname)", *kept, at=place.app / store).splitlines()


def failing(*words: str, at: Path) -> None:
    """Runs a git command that stops for its user."""
    ended = subprocess.run(
        ["git", *words], cwd=at, env=ENV | {"GIT_SEQUENCE_EDITOR": "true"}, capture_output=True, check=False
    )
    assert ended.returncode, ended.stdout


def in_conflict(place: Place) -> tuple[Worktree, Path]:
    """A worktree whose branch changes what another one, `other`, changes; something else is changed, not committed."""
    made = place.service.add(place.app, "T")
    root = Path(made.path)
    (root / "file").write_text("base\n")
    (root / "beside").write_text("beside\n")
    git("add", "-A", at=root)
    git("commit", "-q", "-m", "base", at=root)
    git("checkout", "-q", "-b", "other", at=root)
    committed(root, file="theirs\n")
    git("checkout", "-q", "-", at=root)
    committed(root, file="ours\n")
    (root / "beside").write_text("uncommitted\n")
    return made, root


@pytest.mark.parametrize("words", ["rebase --autostash", "merge --autostash", "rebase --apply --autostash"])
def test_what_a_rebase_or_merge_has_put_aside_is_kept(place: Place, words: str) -> None:
    """The files do not have it, and no ref: it comes back only when the operation ends."""
    made, root = in_conflict(place)
    failing(*words.split(), "other", at=root)
    assert (root / "beside").read_text() == "beside\n"
    assert "commits on no branch" in refused(place, made).context
    refs = [ref for where, ref in place.service.remove(made, force=True).backups if Path(where) == place.app / ".git"]
    assert "uncommitted" in [git("show", f"{ref}:beside", at=place.app) for ref in refs]


def test_a_side_of_a_conflict_that_no_commit_has_is_kept(place: Place) -> None:
    """What was changed and not committed is one, once `git checkout -m` has merged it; the file may be gone since."""
    made, root = in_conflict(place)
    (root / "file").write_text("precious\n")
    git("checkout", "-q", "-m", "other", at=root)
    (root / "file").unlink()
    refused(place, made)
    refs = [ref for _, ref in place.service.remove(made, force=True).backups if ref.endswith("-staged")]
    sides = [git("show", f"{refs[0]}:paddock-backup/stage-{number}/file", at=place.app) for number in (1, 2, 3)]
    assert sides == ["ours", "theirs", "precious"]


def test_what_a_cherry_pick_has_not_reached_is_kept(place: Place) -> None:
    """What is to be picked may be on no branch, and is named there by the beginning of its id."""
    made, root = in_conflict(place)
    git("checkout", "-q", "--detach", "other", at=root)
    picks = []
    for number in range(3):
        committed(root, file=f"picked {number}\n")
        picks.append(git("rev-parse", "HEAD", at=root))
    git("checkout", "-q", "-f", "agent/T", at=root)
    failing("cherry-pick", *picks, at=root)
    (root / "file").write_text("ours\n")
    place.service.remove(made, force=True)
    for oid in picks:
        assert "refs/paddock/backup/" in git("for-each-ref", "--points-at", oid, at=place.app)


def test_the_mails_that_an_am_has_not_applied_are_kept(place: Place) -> None:
    """Their files may be gone; nothing says to commit, which does not end it."""
    made, root = in_conflict(place)
    git("checkout", "-q", "beside", at=root)
    patches = git("format-patch", "-1", "-o", str(place.root / "mails"), "other", at=root)
    failing("am", patches, at=root)
    refusal = refused(place, made)
    assert refusal.context == "a rebase or am in progress"
    assert refusal.hint.startswith(
        f"how the rebase or am in progress is continued or given up, says: git -C {root} status\n"
    )
    assert "commit" not in refusal.hint
    refs = [ref for _, ref in place.service.remove(made, force=True).backups if ref.endswith("-staged")]
    assert "+theirs" in git("show", f"{refs[0]}:paddock-backup/rebase-apply/0001", at=place.app).splitlines()


def reachable(place: Place) -> Place:
    """Has submodules cloned again."""
    for name in ("up-inner", "up-outer"):
        (place.root / f"gone-{name}").rename(place.root / name)
    return place


def alone(at: Path, name: str, *, parent: str = "HEAD") -> str:
    """A commit that nothing leads to."""
    return git("commit-tree", "-p", parent, "-m", name, "HEAD^{tree}", at=at)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("work", ["branch", "stash", "file"])
def test_work_in_a_store_that_git_made_in_a_worktree_is_kept(place: Place, nested: bool, work: str) -> None:
    """Git puts it below the git directory of the submodule around, too, which goes; nobody looked there."""
    if nested:
        git("submodule", "--quiet", "deinit", "--all", at=place.app / "lib/outer")
        shutil.rmtree(place.app / ".git/modules/outer/modules")
    made = reachable(place).service.add(place.app, "T", Options(submodules=("outer",) if nested else ()))
    git("submodule", "--quiet", "update", "--init", "--recursive", at=Path(made.path))
    root = Path(made.path, "lib/outer/deep/inner" if nested else "lib/outer")
    assert place.service.status(made).at_stake() == []
    oid = alone(root, "precious")
    if work == "branch":
        git("branch", "x", oid, at=root)
    (root / "file").write_text("precious\n")
    if work == "stash":
        git("stash", "-q", at=root)
        oid = git("rev-parse", "stash", at=root)
    elif work == "branch":
        git("checkout", "-q", "file", at=root)
    assert refused(place, made).reference == "worktree-dirty"
    backups = place.service.remove(made, force=True).backups
    kept = [Path(at) for at, ref in backups if ref.startswith("refs/")]
    assert [path for path in kept if not path.exists()] == []
    name = "inner" if nested else "outer"
    (store,) = (each.parent for each in (place.app / ".git/paddock-backup").glob(f"*/modules*/**/{name}/objects"))
    if work == "file":
        assert [git("show", f"{ref}:file", at=store) for at, ref in backups if Path(at) == store] == ["precious"]
    else:
        assert git("cat-file", "-t", oid, at=store) == "commit"


@pytest.mark.parametrize(("inner", "own"), [("", False), ("lib/outer", False), ("lib/outer/deep/inner", True)])
def test_commits_that_a_checkout_has_left_behind_are_at_stake(place: Place, inner: str, own: bool) -> None:
    """HEAD was on no branch then: `git submodule update` does that. What was amended was given up."""
    made = reachable(place).service.add(place.app, "T", Options(submodules=() if own else None))
    git("submodule", "--quiet", "update", "--init", "--recursive", at=Path(made.path)) if own else None
    root = Path(made.path, inner)
    git("checkout", "-q", "--detach", at=root)
    committed(root, new="given up\n")
    (root / "new").write_text("precious\n")
    git("commit", "-q", "-a", "--amend", "-m", "precious", at=root)
    oid = git("rev-parse", "HEAD", at=root)
    if inner:
        git(
            "submodule",
            "--quiet",
            "update",
            at=Path(made.path, inner.removesuffix("lib/outer").removesuffix("deep/inner")),
        )
    else:
        git("checkout", "-q", "-", at=root)
    assert git("rev-parse", "HEAD", at=root) != oid
    (said, *_) = place.service.status(made).at_stake()
    assert said.endswith("commits on no branch")
    assert f"branch NAME {oid} gives" in refused(place, made).hint
    kept = [at for at, ref in place.service.remove(made, force=True).backups if ref.startswith("refs/")]
    assert {git("log", "--all", "--format=%s", "--", "new", at=Path(at)) for at in kept} - {""} == {"precious"}


@pytest.mark.parametrize("way", ["orphan", "rebase of another branch", "one that is up to date"])
def test_commits_that_were_left_behind_without_a_checkout_are_at_stake(place: Place, way: str) -> None:
    """Git says nothing of a checkout then. A rebase of what is checked out gives up what it was, and is no work."""
    made = place.service.add(place.app, "T", Options(submodules=()))
    root = Path(made.path)
    own = git("rev-parse", "--abbrev-ref", "HEAD", at=root)
    git("branch", "topic", at=root)
    committed(root, base="new\n")
    git("checkout", "-q", "topic", at=root)
    committed(root, topic="rebased\n")
    git("rebase", "-q", own, at=root)
    git("checkout", "-q", "--detach", "HEAD", at=root)
    git("rebase", "-q", "--onto", "HEAD~2", "HEAD~1", at=root)
    git("rebase", "-q", own, at=root)
    git("branch", "-q", "-f", "topic", at=root)
    git("checkout", "-q", own, at=root)
    assert "commits on no branch" not in "".join(place.service.status(made).at_stake())
    git("checkout", "-q", "--detach", at=root)
    committed(root, new="precious\n")
    oid = git("rev-parse", "HEAD", at=root)
    if way == "orphan":
        git("checkout", "-q", "--orphan", "pages", at=root)
        git("commit", "-q", "--allow-empty", "-m", "pages", at=root)
    else:
        git("rebase", "-q", *(["--onto", "HEAD~2"] if way[0] == "r" else []), f"{own}~1", "topic", at=root)
    git("checkout", "-q", own, at=root)
    assert f"branch NAME {oid} gives" in refused(place, made).hint


def test_an_adopted_worktrees_first_commits_are_at_stake_without_a_branch(place: Place) -> None:
    """It began on none, which its log does not say; a rebase of another branch left them behind."""
    root = place.root / "adopted"
    git("checkout", "-q", "-b", "topic", at=place.app)
    committed(place.app, topic="new\n")
    git("checkout", "-q", "-", at=place.app)
    committed(place.app, main="new\n")
    git("worktree", "add", "-q", "--detach", str(root), at=place.app)
    place.service.adopt(root)
    (made,) = place.service.of_repository(place.app)
    committed(root, new="precious\n")
    oid = git("rev-parse", "HEAD", at=root)
    git("rebase", "-q", "HEAD~1", "topic", at=root)
    assert f"branch NAME {oid} gives" in refused(place, made).hint


def test_what_is_said_about_commits_of_a_submodule_is_the_end_of_it(place: Place) -> None:
    """Where something else is checked out, too: to push that was said for ever."""
    made = reachable(place).service.add(place.app, "T", Options(submodules=()))
    outer = Path(made.path, "lib/outer")
    git("submodule", "--quiet", "update", "--init", at=Path(made.path))
    committed(outer, one="precious\n")
    git("checkout", "-q", "HEAD~1", at=outer)
    for name in ("first", "second"):
        said = refused(place, made).hint.splitlines()[0]
        words = shlex.split(said.partition(" gives ")[0].partition(" brings ")[0].replace("NAME", name))
        assert words[:3] == ["git", "-C", str(outer)]
        git(*words[3:], at=outer)
    place.service.remove(made)
    assert git("show", "second:one", at=place.root / "up-outer") == "precious"


@pytest.mark.parametrize("shallow", [True, False])
def test_what_was_fetched_into_a_submodule_is_no_work_without_a_ref(place: Place, shallow: bool) -> None:
    """Where a shallow history ends, nor what HEAD was reset or forwarded to. What was made there is."""
    up, recorded = reachable(place).root / "up-outer", git("rev-parse", "HEAD:lib/outer", at=place.app)
    git("config", "uploadpack.allowAnySHA1InWant", "true", at=up)
    git("checkout", "-q", "-b", "topic", at=up)
    committed(up, one="")
    git("checkout", "-q", "-", at=up)
    committed(up, two="")
    git("config", "submodule.outer.url", f"file://{up}", at=place.app)
    made = place.service.add(place.app, "T", Options(submodules=()))
    root, outer = Path(made.path), Path(made.path, "lib/outer")
    git("submodule", "--quiet", "update", "--init", "--single-branch", *["--depth=1"][: int(shallow)], at=root)
    assert git("rev-parse", "HEAD", at=outer) == recorded
    assert place.service.status(made).at_stake() == []
    git(*(["fetch", "-q", "--depth=1"] if shallow else ["pull", "-q"]), "origin", "topic", at=outer)
    git("reset", "-q", "--hard", "FETCH_HEAD", at=outer)
    git("submodule", "--quiet", "update", at=root)
    assert place.service.status(made).at_stake() == []
    committed(outer, new="precious\n")
    assert "submodule outer: commits on no branch" in place.service.status(made).at_stake()


@pytest.mark.parametrize("remote", ["inside", "another submodule", "borrows", "gone, below another's"])
def test_a_remote_that_goes_too_has_nothing(place: Place, remote: str) -> None:
    """What a submodule's own store knows of it is no answer to where a commit is; of one that stays it is."""
    committed(place.app, **{".gitignore": "ignored/\n"})
    made = reachable(place).service.add(place.app, "T", Options(submodules=()))
    git("submodule", "--quiet", "update", "--init", "--recursive", at=Path(made.path))
    outer, inner = Path(made.path, "lib/outer"), Path(made.path, "lib/outer/deep/inner")
    there = Path(made.path, "ignored/up.git") if remote == "inside" else place.root / "up.git"
    name = "origin/here" if remote.endswith("another's") else "here"
    if remote == "borrows":
        git("clone", "-q", "--bare", "--shared", str(inner), str(place.root / "one.git"), at=place.root)
        git("clone", "-q", "--bare", "--shared", str(place.root / "one.git"), str(there), at=place.root)
    elif remote == "another submodule":
        there = outer
        git("fetch", "-q", str(inner), "HEAD:refs/remotes/inner/x", at=outer)
    else:
        git("clone", "-q", "--bare", str(place.root / "up-inner"), str(there), at=place.root)
    git("remote", "add", name, os.path.relpath(there, inner) if remote == "inside" else str(there), at=inner)
    oid = alone(inner, "precious")
    git("push", "-q", name, f"{oid}:refs/heads/x", at=inner)
    if remote.startswith("gone"):
        assert place.service.status(made).at_stake() == []
        shutil.rmtree(there)
    assert "submodule outer/deep/inner: commits that are on no remote" in place.service.status(made).at_stake()
    place.service.remove(made, force=True)
    (store,) = (each.parent for each in (place.app / ".git/paddock-backup").glob("*/modules*/**/inner/objects"))
    assert git("cat-file", "-t", oid, at=store) == "commit"


def test_what_a_remote_has_is_known_by_its_tracking_refs(place: Place) -> None:
    """Of one branch alone, too. What was fetched from it to branches, or from none that is known, was not."""
    made = reachable(place).service.add(place.app, "T", Options(submodules=()))
    git("submodule", "--quiet", "update", "--init", "--single-branch", at=Path(made.path))
    outer = Path(made.path, "lib/outer")
    spec = "+refs/heads/main:refs/remotes/origin/main"
    assert git("config", "remote.origin.fetch", at=outer) == spec
    assert place.service.status(made).at_stake() == []
    for change in ("remote.origin.fetch=+refs/heads/*:refs/heads/*", "remote.origin.url="):
        name, _, value = change.partition("=")
        git("config", *(["--unset", name] if not value else [name, value]), at=outer)
        assert place.service.status(made).at_stake() == ["submodule outer: commits that are on no remote"]
        git("config", "remote.origin.fetch", spec, at=outer)


@pytest.mark.parametrize("at", ["deep/odd", "modules/outer/odd"])
def test_a_repository_in_a_git_directory_that_goes_holds_up_the_removal(place: Place, at: str) -> None:
    """Git makes none there, and nobody looks into it: moved as the hint says it is safe, and the removal goes on."""
    made = reachable(place).service.add(place.app, "T", Options(submodules=()))
    git("submodule", "--quiet", "update", "--init", at=Path(made.path))
    store = Path(made.main.git_dir, at)
    git("clone", "-q", "--bare", str(place.app), str(store), at=place.root)
    assert place.service.status(made).at_stake()
    for force in (False, True):
        with pytest.raises(Refusal) as raised:
            place.service.remove(made, force=force)
        assert (raised.value.reference, raised.value.context) == ("worktree-obstructed", f"{store} would go with it")
    move = shlex.split(raised.value.hint.partition(": ")[2].removesuffix("DIR"))
    subprocess.run([*move, place.root / "moved"], check=True)
    place.service.remove(made)
    assert git("log", "-1", "--format=%s", at=place.root / "moved")


def test_a_branch_is_not_deleted_for_what_is_made_to_be_dropped(place: Place) -> None:
    """A stash, a replacement, or a ref of the main working tree's own: all its commits were said to be elsewhere."""
    refs = ("refs/stash", "refs/replace/{base}", "refs/bisect/bad", "refs/worktree/x")
    for ticket, ref in zip("TUVW", refs, strict=True):
        made = place.service.add(place.app, ticket)
        committed(Path(made.path), new=ticket)
        oid = git("rev-parse", "HEAD", at=Path(made.path))
        git("update-ref", ref.format(base=made.main.base), oid, at=place.app)
        assert str(place.app / ".git") not in dict(place.service.remove(made).branches_deleted), ref
        assert git("rev-parse", f"agent/{ticket}", at=place.app) == oid
        git("update-ref", "-d", ref.format(base=made.main.base), at=place.app)


def test_a_ref_beside_head_is_somebodys_and_what_git_leaves_there_is_not(place: Place) -> None:
    """Whatever its name. After a rebase that left a commit out, its name stays in a file of git's."""
    made = place.service.add(place.app, "T")
    root = Path(made.path)
    for name in ("REBASE_HEAD", "ORIG_HEAD", "FETCH_HEAD"):
        git("update-ref", name, alone(root, name), at=root)
    assert place.service.status(made).at_stake() == []
    oids = {name: alone(root, name) for name in ("MY-HEAD", "MINE", "WIP_2")}
    for name, oid in oids.items():
        (made.main.git_dir / name).write_text(f"{oid}\n")
    assert "commits on no branch" in refused(place, made).context
    refs = [ref for at, ref in place.service.remove(made, force=True).backups if at == str(place.app / ".git")]
    assert {*oids.values()} <= {*git("rev-list", *refs, at=place.app).split()}


def test_a_missing_worktree_is_not_pruned_with_a_store_that_has_work(place: Place) -> None:
    """The store was the only copy, and went with it."""
    made = reachable(place).service.add(place.app, "T", Options(submodules=()))
    git("submodule", "--quiet", "update", "--init", at=Path(made.path))
    committed(Path(made.path, "lib/outer"), new="precious\n")
    Path(made.path).rename(place.root / "there")
    (row,) = place.service.of_repository(place.app)
    git("worktree", "prune", "--expire", "now", at=place.app)
    assert (row.state, made.main.git_dir.exists()) == (State.MISSING, True)
    assert "submodule outer: commits that are on no remote" in place.service.status(row).at_stake()


def test_the_repository_that_git_finds_in_a_submodule_is_looked_at(place: Place) -> None:
    """After `deinit` and `update` it is another one; what Paddock had made there keeps what only it has."""
    made = reachable(place).service.add(place.app, "T")
    root, outer = Path(made.path), Path(made.path, "lib/outer")
    git("checkout", "-q", "--detach", at=outer)
    committed(outer, new="precious\n")
    oid = git("rev-parse", "HEAD", at=outer)
    git("submodule", "--quiet", "deinit", "-f", "--all", at=root)
    assert place.service.status(made).at_stake() == ["1 modified", "submodule outer: commits on no branch"]
    git("submodule", "--quiet", "update", "--init", at=root)
    (outer / "file").write_text("staged\n")
    git("add", "file", at=outer)
    (outer / "file").write_text("up-outer\n")
    now = place.service.status(made)
    said = ["submodule outer: 1 modified", "submodule outer: commits on no branch"]
    assert sorted(now.at_stake()) == said
    assert now.lost_pointers == ()
    pointer = (outer / ".git").read_text()
    (outer / ".git").write_text(f"gitdir: {made.submodules[0].git_dir}\n")  # as `repair` has it
    assert "submodule 'outer (made by git)': 1 modified" in place.service.status(made).at_stake()
    (outer / ".git").write_text(pointer)
    backups = place.service.remove(made, force=True).backups
    assert [git("show", f"{ref}:file", at=Path(at)) for at, ref in backups if ref.endswith("-staged")] == ["staged"]
    refs = [ref for at, ref in backups if at == str(place.app / ".git/modules/outer")]
    assert oid in git("rev-list", *refs, at=place.app / ".git/modules/outer").split()
    made = place.service.add(place.app, "U")
    git("submodule", "--quiet", "deinit", "-f", "--all", at=Path(made.path))
    git("submodule", "--quiet", "update", "--init", at=Path(made.path))
    shutil.rmtree(made.submodules[0].git_dir)
    assert place.service.status(made).at_stake() == []


def test_a_submodule_whose_files_are_of_a_repository_elsewhere_is_not_judged_by_its_store(place: Place) -> None:
    """Git made the store, and the user another repository at its place: its files are at stake, whatever is in it."""
    made = reachable(place).service.add(place.app, "T", Options(submodules=()))
    git("submodule", "--quiet", "update", "--init", at=Path(made.path))
    outer = Path(made.path, "lib/outer")
    shutil.rmtree(outer)
    git("clone", "-q", "--separate-git-dir", str(place.root / "odd"), str(place.root / "up-outer"), str(outer),
        at=place.root)  # fmt: skip
    committed(outer, new="precious\n")
    (said,) = place.service.status(made).at_stake()
    assert said == "the content of lib/outer, where a submodule belongs"
    place.service.remove(made, force=True)
    assert git("show", "HEAD:new", at=place.root / "odd") == "precious"


def test_a_submodule_that_was_taken_out_is_no_work(place: Place) -> None:
    """It was said to be missing, for good; emptied, to be modified, with hints that went to the repository around."""
    made = place.service.add(place.app, "T")
    root = Path(made.path)
    git("submodule", "--quiet", "deinit", "--all", at=root)
    assert place.service.status(made).at_stake() == []
    git("rm", "-q", "lib/outer", at=root)
    git("commit", "-q", "-m", "Without.", at=root)
    assert place.service.status(made).at_stake() == []
    place.service.remove(made)


def test_a_worktree_of_a_store_that_goes_holds_up_the_removal(place: Place) -> None:
    """Wherever it lies: its index and all else that git keeps of it would go."""
    made = reachable(place).service.add(place.app, "T", Options(submodules=()))
    git("submodule", "--quiet", "update", "--init", at=Path(made.path))
    other = place.root / "elsewhere"
    git("worktree", "add", "-q", "--detach", str(other), at=Path(made.path, "lib/outer"))
    for force in (False, True):
        with pytest.raises(Refusal, match="other worktrees are in") as raised:
            place.service.remove(made, force=force)
    git(*shlex.split(raised.value.hint.partition(": git ")[2]), at=place.root)
    place.service.remove(made)
    assert not other.exists()


def test_the_resolution_of_a_merge_of_notes_is_kept(place: Place) -> None:
    """No ref has it yet."""
    made = place.service.add(place.app, "T")
    root = Path(made.path)
    for ref in ("commits", "other"):
        git("notes", "--ref", ref, "add", "-m", ref, at=root)
    subprocess.run(["git", "notes", "merge", "-q", "other"], cwd=root, env=ENV, check=False, capture_output=True)
    (note,) = (made.main.git_dir / "NOTES_MERGE_WORKTREE").iterdir()
    note.write_text("precious\n")
    assert refused(place, made).context.splitlines()[:1] == ["a merge of notes in progress"]
    (ref,) = (ref for _, ref in place.service.remove(made, force=True).backups if ref.endswith("-staged"))
    assert git("grep", "-h", "precious", ref, "--", at=place.app) == "precious"


def test_a_tag_that_only_a_worktree_has_is_named_and_kept(place: Place) -> None:
    """What it says is in no commit."""
    made = place.service.add(place.app, "T")
    root = Path(made.path)
    git("tag", "-a", "-m", "precious", "v", at=root)
    oid = git("rev-parse", "v", at=root)
    git("update-ref", "refs/worktree/v", oid, at=root)
    git("tag", "-d", "v", at=root)
    assert "refs/worktree/v led to, which names no commit" in refused(place, made).context
    refs = [ref for at, ref in place.service.remove(made, force=True).backups if at == str(place.app / ".git")]
    assert oid in git("for-each-ref", "--format=%(objectname)", *refs, at=place.app).split()


@pytest.mark.parametrize("way", ["rm", "deinit", "missing", "unborn"])
def test_what_is_staged_in_a_store_without_files_is_at_stake(place: Place, way: str) -> None:
    """Its index and refs beside HEAD went with it: with the files, or the commit, nobody looked at it any more."""
    made = reachable(place).service.add(place.app, "T", Options(submodules=()))
    root, outer = Path(made.path), Path(made.path, "lib/outer")
    git("submodule", "--quiet", "update", "--init", at=root)
    oid = alone(outer, "precious")
    git("update-ref", "MINE", oid, at=outer)
    if way == "unborn":
        git("switch", "-q", "--orphan", "new", at=outer)
    (outer / "new").write_text("staged\n")
    git("add", "new", at=outer)
    if way == "rm":
        shutil.rmtree(outer)
    elif way == "deinit":
        git("submodule", "--quiet", "deinit", "-f", "--all", at=root)
    elif way == "missing":
        root.rename(place.root / "there")
    else:
        (outer / "new").write_text("else\n")
    (row,) = place.service.of_repository(place.app)
    git("worktree", "prune", "--expire", "now", at=place.app)
    said = place.service.status(row).at_stake()
    assert {"submodule outer: 1 modified", "submodule outer: commits on no branch"} <= {*said}
    backups = place.service.remove(row, force=True).backups
    (store,) = (Path(at) for at, ref in backups if ref.endswith("-staged"))
    refs = [ref for at, ref in backups if Path(at) == store]
    assert [git("show", f"{ref}:new", at=store) for ref in refs if ref.endswith("-staged")] == ["staged"]
    assert oid in git("rev-list", *refs, at=store).split()


def test_the_store_of_a_submodule_of_any_name_is_looked_at(place: Place) -> None:
    """Git makes as many directories as the name has slashes."""
    made = reachable(place).service.add(place.app, "T", Options(submodules=()))
    name, root = "/".join("a" * 300), Path(made.path)
    git("submodule", "--quiet", "add", "--name", name, "../up-inner", "x", at=root)
    git("commit", "-q", "-m", "x", at=root)
    committed(root / "x", new="precious\n")
    assert [each for each, _ in place.service.status(made).own_stores] == [name]


@pytest.mark.parametrize("late", [False, True])
def test_what_is_set_aside_borrows_from_where_a_store_is_kept(
    place: Place, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The private git directory was kept, and its commits could not be read; nor when a killed removal was undone, or
    when the commits came while one was under way (`late`).
    """
    made = reachable(place).service.add(place.app, "T", Options(submodules=()))
    root, outer = Path(made.path), Path(made.path, "lib/outer")
    git("submodule", "--quiet", "update", "--init", at=root)
    private = Path(record.directory_of(place.state, made.worktree_id))
    agents = private / "git/modules/outer"
    store = made.main.git_dir / "modules/outer"
    git("init", "-q", "--bare", str(agents), at=place.root)
    (agents / "objects/info/alternates").write_text(f"{store}/objects\n")
    base = git("rev-parse", "HEAD", at=outer)
    borrowed = (f"{store}/objects",)
    repositories = (
        record.Repository("", made.path, str(made.main.git_dir), str(place.app / ".git"), "", None, None, "sha1", ()),
        record.Repository("outer", str(outer), str(store), str(store), "modules/outer", None, base, "sha1", borrowed),
    )
    record.write(str(private), record.Record(made.path, "linked", record.MOUNTED, repositories, ()))

    def waits(path: Path) -> bool:
        return path == Path(made.path)

    def interrupted(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    def killed(name: str) -> None:
        if name == ("metadata " if late else "rename"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        WorktreeService(place.state, unharvested=(lambda path: False) if late else waits, step=killed).remove(
            made, force=True
        )
    if late:  # killed once more, between the two
        monkeypatch.setattr(Removal, "_keep_stores", interrupted)
        with pytest.raises(KeyboardInterrupt):
            WorktreeService(place.state, unharvested=waits).of_repository(place.app)
        monkeypatch.undo()
    service = WorktreeService(place.state, unharvested=waits)
    rows = service.of_repository(place.app)  # which puts all of it back, or finishes it
    if late:
        (aside,) = Path(place.state, "removed").iterdir()
    else:
        assert (rows[0].state, git("cat-file", "-t", base, at=agents)) == (State.READY, "commit")
        aside = Path(service.remove(made, force=True).set_aside)
    assert not store.exists()
    assert git("--git-dir", str(aside / "git/modules/outer"), "cat-file", "-t", base, at=place.root) == "commit"


def test_a_store_that_git_has_made_again_is_in_nobodys_way(place: Place) -> None:
    """Where a removal was killed, and its undoing would put the store back: each further verb failed."""
    made = reachable(place).service.add(place.app, "T", Options(submodules=()))
    root, outer = Path(made.path), Path(made.path, "lib/outer")
    git("submodule", "--quiet", "update", "--init", at=root)
    committed(outer, new="precious\n")

    def step(name: str) -> None:
        if name == "rename":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        WorktreeService(place.state, step=step).remove(made, force=True)
    shutil.rmtree(outer)
    git("submodule", "--quiet", "update", "--init", at=root)
    said: list[str] = []
    (row,) = WorktreeService(place.state, warn=said.append).of_repository(place.app)
    (kept,) = (place.app / ".git/paddock-backup").glob("*/modules")
    assert (row.state, [str(kept) in line for line in said]) == (State.READY, [True])
