"""A worktree with a damaged git directory: what it has is said to be at stake, mended by `repair`, kept by --force."""

import subprocess
from pathlib import Path

import pytest

from launcher.vcs.private import record
from launcher.vcs.worktrees import removal
from launcher.vcs.worktrees.models import State
from launcher.vcs.worktrees.store import FILE
from launcher.vcs.worktrees.worktree_service import WorktreeService
from policy.errors import Refusal
from tests.support import repository
from tests.support.repository import Place, committed, git
from tests.unit.test_worktree_removal import refused

MISSING = "a" * 40


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return repository.nested(tmp_path)


def damage(git_dir: Path, name: str, content: str | None) -> None:
    """Has a file of a git directory say something else, or nothing, or removes it."""
    (git_dir / name).unlink()
    if content is not None:
        (git_dir / name).write_text(content)


DAMAGE = [("HEAD", ""), ("HEAD", None), ("HEAD", "garbage\n"), ("HEAD", f"{MISSING}\n"), ("commondir", "/nowhere\n")]


@pytest.mark.parametrize(("name", "content"), DAMAGE)
def test_a_forced_removal_keeps_the_files_of_a_damaged_worktree(place: Place, name: str, content: str | None) -> None:
    """It was removed without a backup, or never; what its submodule has is kept as well."""
    made = place.service.add(place.app, "T")
    for part in made.parts[:2]:
        (part.path / "file").write_text("precious\n")
        damage(part.git_dir, name, content)
    refusal = refused(place, made)
    assert (refusal.reference, ": paddock worktree repair" in refusal.context) == ("worktree-dirty", True)
    assert "submodule outer: " in refusal.context
    kept = [git("show", f"{ref}:file", at=Path(at)) for at, ref in place.service.remove(made, force=True).backups]
    assert kept[:2] == ["precious"] * 2
    assert repository.leftovers(place) == []


@pytest.mark.parametrize("detached", [False, True])
def test_repair_finds_the_head_of_a_worktree_in_its_reflog(place: Place, detached: bool) -> None:
    """The branch where that is what was checked out last, else the commit; what is staged stays staged."""
    made = place.service.add(place.app, "T")
    root = Path(made.path)
    if detached:
        git("checkout", "-q", "--detach", at=root)
    committed(root, new="")
    (root / "new").write_text("staged\n")
    git("add", "new", at=root)
    before = [git(*words, at=root) for words in (("status", "--branch", "--short"), ("rev-parse", "HEAD"))]
    damage(made.main.git_dir, "HEAD", "")
    assert str(made.main.git_dir / "HEAD") in "".join(place.service.repair(place.app))
    assert [git(*words, at=root) for words in (("status", "--branch", "--short"), ("rev-parse", "HEAD"))] == before
    assert place.service.repair(place.app) == []


def test_what_a_missing_worktree_without_a_head_has_staged_is_kept(place: Place) -> None:
    """Nothing was said of it, and it went with the git directory."""
    made = place.service.add(place.app, "T")
    (Path(made.path) / "new").write_text("staged\n")
    git("add", "new", at=Path(made.path))
    Path(made.path).rename(place.root / "there")
    damage(made.main.git_dir, "HEAD", "")
    (row,) = place.service.of_repository(place.app)
    assert row.state is State.MISSING
    assert place.service.status(row).at_stake()
    ((_, ref),) = place.service.remove(row, force=True).backups
    assert git("show", f"{ref}:new", at=place.app) == "staged"


def test_what_was_changed_since_it_was_staged_is_kept_without_a_commit(place: Place) -> None:
    """On a branch without a commit yet, the files are compared with nothing."""
    made = place.service.add(place.app, "T")
    root = Path(made.path)
    git("checkout", "-q", "--orphan", "new", at=root)
    (root / "file").write_text("precious\n")
    kept = [git("show", f"{ref}:file", at=Path(at)) for at, ref in place.service.remove(made, force=True).backups]
    assert "precious" in kept


def test_a_repository_that_git_cannot_read_keeps_its_worktrees(place: Place) -> None:
    """It is asked before anything is moved: the branch could not be deleted any more."""
    made = place.service.add(place.app, "T")
    damage(place.app / ".git", "HEAD", "")
    for force in (False, True):
        with pytest.raises(Refusal) as raised:
            place.service.remove(made, force=force)
        assert (raised.value.reference, f"{place.app}/.git/HEAD" in str(raised.value)) == ("git-head-unreadable", True)
        assert Path(made.path, "file").exists()
    (row,) = place.service.of_repository(place.app)
    assert row.state is State.READY


@pytest.mark.parametrize("named", ["", "{root}/docs/x", "{root}/other/.git", "{root}/gone/.git"])
@pytest.mark.parametrize("known", [True, False])
def test_a_damaged_way_back_leads_nowhere(place: Place, named: str, known: bool) -> None:
    """The directory that it names was taken for the worktree, and removed; so was git's directory of all worktrees."""
    made, other = (place.service.add(place.app, name) for name in ("T", "U"))
    (place.root / "docs/x").mkdir(parents=True)
    (place.root / "docs/x/thesis").write_text("precious\n")
    git("init", "-q", "other", at=place.root)
    damage(made.main.git_dir, "gitdir", named.format(root=place.root))
    if not known:
        for path in Path(place.state).glob(f"{FILE}*"):
            path.unlink()
    for _ in range(2):  # one that was not known is known first
        assert {row.path for row in place.service.of_repository(place.app)} == {made.path, other.path}
    assert (made.main.git_dir / "gitdir").read_text() == f"{made.path}/.git\n"
    place.service.remove(made, force=True)
    assert not Path(made.path).exists()
    assert (place.root / "docs/x/thesis").exists()
    assert (place.root / "other/.git").exists()
    assert git("status", "--short", at=Path(other.path)) == ""


@pytest.mark.parametrize("content", ["", f"{MISSING}\n"])
def test_a_broken_ref_holds_nothing_and_is_in_nobodys_way(place: Place, content: str) -> None:
    """What only it led to was "clean", and went with the worktree; where there were files, too, `--force` failed."""
    made = place.service.add(place.app, "T")
    root, there = Path(made.path), place.root / "there"
    git("checkout", "-q", "--detach", at=root)
    committed(root, new="precious\n")
    oid = git("rev-parse", "HEAD", at=root)
    git("branch", "other", at=root)
    damage(place.app / ".git", "refs/heads/other", content)
    assert place.service.status(made).at_stake() == ["commits on no branch"]
    assert refused(place, made).reference == "worktree-dirty"
    root.rename(there)
    (row,) = place.service.of_repository(place.app)
    git("-c", "gc.auto=0", "worktree", "prune", at=place.app)
    assert (row.state, Path(made.main.git_dir).exists()) == (State.MISSING, True)
    there.rename(root)
    (row,) = place.service.of_repository(place.app)
    (root / "untracked").write_text("mine\n")
    removed = place.service.remove(row, force=True)
    (ref,) = [ref for at, ref in removed.backups if at == str(place.app / ".git")]
    assert git("rev-parse", f"{ref}^", at=place.app) == oid
    assert git("show", f"{ref}:untracked", at=place.app) == "mine"
    assert removed.branches_deleted[0] == (str(place.app / ".git"), "agent/T")  # its commit is on `main`, too


def test_a_worktree_whose_branch_is_broken_is_removed_by_force(place: Place) -> None:
    """The files are kept; the branch stays for whoever mends it."""
    made = place.service.add(place.app, "T")
    (Path(made.path) / "untracked").write_text("mine\n")
    damage(place.app / ".git", "refs/heads/agent/T", "")
    assert refused(place, made).reference == "worktree-dirty"
    removed = place.service.remove(made, force=True)
    assert "mine" in [git("show", f"{ref}:untracked", at=Path(at)) for at, ref in removed.backups[:1]]
    assert (str(place.app / ".git"), "agent/T") in removed.branches_kept


@pytest.mark.parametrize("away", [False, True])
@pytest.mark.parametrize("content", ["", "\0" * 64, None])
def test_commits_of_a_branch_that_is_broken_or_gone_are_kept(place: Place, content: str | None, away: bool) -> None:
    """They went without a word: the branch had none, and the log of what was checked out went with the worktree."""
    made = place.service.add(place.app, "T")
    oids = []
    for part in made.parts[:2]:
        committed(part.path, new="precious\n")
        oids.append(git("rev-parse", "HEAD", at=part.path))
        committed(part.path, more="lost\n")
        oid = git("rev-parse", "HEAD", at=part.path)
        (part.common_dir / "objects" / oid[:2] / oid[2:]).unlink()  # what a crash takes besides
    for part in made.parts[:2]:
        damage(part.common_dir, "refs/heads/agent/T", content)
    if away:
        Path(made.path).rename(place.root / "there")
    (made,) = place.service.of_repository(place.app)
    said = place.service.status(made).at_stake()
    assert {"commits on no branch", "submodule outer: commits on no branch"} <= {*said}, said
    with pytest.raises(Refusal, match="worktree-missing" if away else "worktree-dirty"):
        place.service.remove(made)
    backups = place.service.remove(made, force=True).backups
    for part, oid in zip(made.parts, oids, strict=False):
        refs = [ref for at, ref in backups if at == str(part.common_dir)]
        assert oid in git("rev-list", *refs, at=part.common_dir).split()


@pytest.mark.parametrize("content", ["", "\0" * 64])
@pytest.mark.parametrize("way", ["repair", "remove", "missing"])
def test_an_index_that_a_crash_has_left_empty_is_made_anew(place: Place, content: str, way: str) -> None:
    """Git reads nothing of the worktree with it; of one that was away besides, `git worktree prune` made an end."""
    made = place.service.add(place.app, "T")
    root = Path(made.path)
    (root / "file").write_text("precious\n")
    damage(made.main.git_dir, "index", content)
    refusal = refused(place, made)
    assert f"{made.main.git_dir}/index is damaged: paddock worktree repair" in refusal.context
    if way == "repair":
        assert str(made.main.git_dir / "index") in "".join(place.service.repair(place.app))
        assert git("status", "--short", at=root) == "M file"
    elif way == "remove":
        ((at, ref), *_) = place.service.remove(made, force=True).backups
        assert git("show", f"{ref}:file", at=Path(at)) == "precious"
    else:
        root.rename(place.root / "there")
        place.service.of_repository(place.app)
        git("worktree", "prune", at=place.app)
        assert (made.main.git_dir / "index").exists()


@pytest.mark.parametrize(
    ("content", "number", "logged"),
    [("", 0, True), ("\0" * 41, 1, False), ("HEAD^{tree}", 0, False), ("ref: refs/heads/gone\n", 1, True)],
)
def test_commits_of_a_branch_that_is_not_checked_out_are_not_lost_with_it(
    place: Place, content: str, number: int, logged: bool
) -> None:
    """What it led to counted as none, and went without --force; where it named a tree, the branch did, too."""
    made = place.service.add(place.app, "T")
    part = made.parts[number]
    committed(part.path, new="precious\n")
    oid, tree = git("rev-parse", "HEAD", "HEAD^{tree}", at=part.path).split()
    git("update-ref", record.pin(part.worktree_id), oid, at=part.path)  # as a session has it
    git("switch", "-q", "--detach", "HEAD~1", at=part.path)
    if not logged:
        git("reflog", "expire", "--expire=now", "--all", at=part.path)
    damage(part.common_dir, "refs/heads/agent/T", f"{tree}\n" if content.startswith("HEAD") else content)
    said = "; ".join(place.service.status(made).at_stake())
    assert "commits on no branch" in said
    assert f"what {part.common_dir}/refs/heads/agent/T led to, which names no commit" in said
    refusal = refused(place, made)
    assert refusal.reference == "worktree-dirty"
    assert f"branch NAME {oid} gives commits" in refusal.hint
    assert f": rm {part.common_dir}/refs/heads/agent/T" in refusal.hint
    refs = [ref for at, ref in place.service.remove(made, force=True).backups if at == str(part.common_dir)]
    assert oid in git("rev-list", *refs, at=part.common_dir).split()
    assert (part.common_dir / "refs/heads/agent/T").exists()


@pytest.mark.parametrize("packed", [False, True])
def test_commits_of_a_branch_of_which_only_the_log_is_left_are_not_lost(place: Place, packed: bool) -> None:
    """Git removes a branch with its log, so a crash was it; `remove` said that it had deleted the branch."""
    made = place.service.add(place.app, "T")
    root, common = Path(made.path), place.app / ".git"
    committed(root, new="precious\n")
    oid = git("rev-parse", "HEAD", at=root)
    git("switch", "-q", "--detach", "HEAD~1", at=root)
    if packed:
        git("pack-refs", "--all", at=root)
        heads = git("for-each-ref", "--format=%(objectname) %(refname)", at=root).splitlines()
        (common / "packed-refs").write_text("".join(f"{line}\n" for line in heads if "agent/T" not in line))
    else:
        (common / "refs/heads/agent/T").unlink()
    assert place.service.status(made).at_stake() == ["commits on no branch"]
    assert f"branch NAME {oid} gives commits" in refused(place, made).hint
    refs = [ref for at, ref in place.service.remove(made, force=True).backups if at == str(common)]
    assert oid in git("rev-list", *refs, at=common).split()


@pytest.mark.parametrize("inner", [False, True])
def test_refs_of_a_worktrees_own_that_lead_nowhere_are_named_and_kept(place: Place, inner: bool) -> None:
    """Whatever has become of them; one that git takes for none is there all the same."""
    made = place.service.add(place.app, "T")
    part = made.parts[inner]
    ways = {
        "symbolic": "ref: refs/heads/gone\n",
        "tree": git("rev-parse", "HEAD^{tree}", at=part.path) + "\n",
        "missing": f"{MISSING}\n",
        "tags/tree": git("rev-parse", "HEAD^{tree}", at=part.path) + "\n",
        "gone": None,
        "of~git": "",
    }
    oids = {}
    for name in ways:
        words = ("commit-tree", "-m", name, "-p", "HEAD", "HEAD^{tree}")
        oids[name] = git(*words, at=part.path)
        git("update-ref", "--create-reflog", f"refs/worktree/{name.replace('~', '-')}", oids[name], at=part.path)
    git("update-ref", "MINE", oids["symbolic"], at=part.path)
    place_of = part.git_dir / "refs/worktree"
    (place_of / "of-git").rename(place_of / "of~git")
    for name, content in ways.items():
        if content != "":
            damage(part.git_dir, f"refs/worktree/{name}", content)
    said = place.service.status(made).at_stake()
    assert [name for name in ways if any(f"refs/worktree/{name}" in each for each in said)] == [
        name for name in ways if name != "gone"
    ]
    assert refused(place, made).reference == "worktree-dirty"
    refs = [ref for at, ref in place.service.remove(made, force=True).backups if at == str(part.common_dir)]
    assert {*oids.values()} <= {*git("rev-list", *refs, at=part.common_dir).split()}


def test_a_lock_that_stays_holds_up_a_removal_and_nothing_else(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The removal stopped halfway, and each further verb did, of whatever worktree."""
    monkeypatch.setattr(removal, "_PATIENCE", 0.0)
    made, other = (place.service.add(place.app, ticket) for ticket in ("T", "U"))
    lock = place.app / ".git/packed-refs.lock"
    lock.touch()
    with pytest.raises(Refusal) as raised:
        place.service.remove(made, force=True)
    assert (raised.value.reference, f"rm {lock}" in raised.value.hint) == ("git-refs-locked", True)
    assert Path(made.path, "file").exists()
    lock.unlink()
    said: list[str] = []
    git("update-ref", record.pin(made.worktree_id), "HEAD", at=place.app)

    def step(name: str) -> None:
        if name == "metadata ":
            lock.touch()

    with pytest.raises(Refusal, match=r"packed-refs\.lock"):
        WorktreeService(place.state, step=step).remove(made)
    rows = WorktreeService(place.state, say=said.append).of_repository(place.app)
    assert [row.path for row in rows if row.state is State.READY] == [other.path]
    assert [f"could not finish the removal of {made.path}: git: " in line for line in said] == [True]
    lock.unlink()
    assert [row.path for row in place.service.of_repository(place.app)] == [other.path]
    assert git("for-each-ref", "refs/paddock", at=place.app) == ""


def test_a_damaged_file_of_packed_refs_keeps_its_worktrees(place: Place) -> None:
    """Git can make no ref then; the removal failed halfway, in its words."""
    made = place.service.add(place.app, "T")
    git("pack-refs", "--all", at=place.app)
    packed = place.app / ".git/packed-refs"
    whole = packed.read_bytes()
    for content in (whole[:-20], b"\0" * len(whole)):
        packed.write_bytes(content)
        for force in (False, True):
            with pytest.raises(Refusal, match="packed-refs is damaged") as raised:
                place.service.remove(made, force=force)
            assert "logs/refs/heads" in raised.value.hint
    packed.write_bytes(whole)
    place.service.remove(made, force=False)


@pytest.mark.parametrize("lost", ["logs/HEAD", "logs/refs/worktree/keep"])
def test_a_ref_of_a_worktrees_own_that_is_broken_is_no_reason_to_lose_what_it_led_to(place: Place, lost: str) -> None:
    """Its own log knows, where git was told to keep one, or that of HEAD may."""
    made = place.service.add(place.app, "T")
    root = Path(made.path)
    git("checkout", "-q", "--detach", at=root)
    committed(root, new="precious\n")
    oid = git("rev-parse", "HEAD", at=root)
    git("-c", "core.logAllRefUpdates=always", "update-ref", "refs/worktree/keep", oid, at=root)
    git("checkout", "-q", "agent/T", at=root)
    damage(made.main.git_dir, "refs/worktree/keep", "")
    damage(made.main.git_dir, lost, None)
    assert f"what {made.main.git_dir}/refs/worktree/keep led to, which names no commit" in refused(place, made).context
    refs = [ref for at, ref in place.service.remove(made, force=True).backups if at == str(place.app / ".git")]
    assert oid in git("rev-list", *refs, at=place.app).split()


def test_a_branch_without_a_log_is_kept_by_what_pins_it(place: Place) -> None:
    """It is checked out, and broken."""
    made = place.service.add(place.app, "T")
    committed(Path(made.path), new="precious\n")
    oid = git("rev-parse", "HEAD", at=Path(made.path))
    git("update-ref", record.pin(made.worktree_id), oid, at=place.app)
    git("reflog", "expire", "--expire=now", "--all", at=Path(made.path))
    damage(place.app / ".git", "refs/heads/agent/T", "")
    assert "commits on no branch" in refused(place, made).context
    refs = [ref for at, ref in place.service.remove(made, force=True).backups if at == str(place.app / ".git")]
    assert oid in git("rev-list", *refs, at=place.app).split()


@pytest.mark.parametrize(("content", "part"), [("", 0), ("", 1), ("\0" * 41, 0), ("garbage\n", 1)])
def test_a_branch_that_a_crash_has_left_empty_is_in_nobodys_way(place: Place, content: str, part: int) -> None:
    """Neither `git branch -D` nor `worktree add` could do anything about it; the hint says what can."""
    broken = place.service.add(place.app, "T").parts[part].common_dir / "refs/heads/agent/T"
    place.service.remove(*place.service.of_repository(place.app))
    broken.parent.mkdir(exist_ok=True)
    broken.write_text(content)
    with pytest.raises(Refusal, match="branch agent/T is broken") as raised:
        place.service.add(place.app, "T")
    assert raised.value.reference == "branch-broken"
    assert place.service.of_repository(place.app) == []
    subprocess.run(raised.value.hint, shell=True, check=False)
    place.service.add(place.app, "T")


def test_a_branch_that_somebody_holds_stays_when_its_worktree_goes(place: Place) -> None:
    """The removal failed after the files had gone, and nobody was told where they are kept."""
    made = place.service.add(place.app, "T")
    (Path(made.path) / "untracked").write_text("mine\n")
    (place.app / ".git/refs/heads/agent/T.lock").touch()
    removed = place.service.remove(made, force=True)
    assert git("show", f"{removed.backups[0][1]}:untracked", at=place.app) == "mine"
    assert (str(place.app / ".git"), "agent/T") in removed.branches_kept


def test_the_files_of_a_worktree_whose_commit_is_lost_are_kept(place: Place) -> None:
    """On top of the last commit that is whole; the branch stays as it is."""
    made = place.service.add(place.app, "T")
    root = Path(made.path)
    committed(root, new="new\n")
    oid = git("rev-parse", "HEAD", at=root)
    (root / "file").write_text("precious\n")
    (place.app / ".git/objects" / oid[:2] / oid[2:]).unlink()
    assert refused(place, made).reference == "worktree-dirty"
    removed = place.service.remove(made, force=True)
    (ref, *_) = [ref for at, ref in removed.backups if at == str(place.app / ".git")]
    assert git("show", f"{ref}:file", at=place.app) == "precious"
    assert git("show", f"{ref}:new", at=place.app) == "new"
    assert (place.app / ".git/refs/heads/agent/T").read_text() == f"{oid}\n"


@pytest.mark.parametrize("lost", ["HEAD:new", "HEAD~1", "HEAD^{tree}"])
def test_the_files_of_a_worktree_whose_history_is_not_whole_are_kept(place: Place, lost: str) -> None:
    """Git can compare them with nothing; what has no object any more is kept as the file that is there."""
    made = place.service.add(place.app, "T")
    root = Path(made.path)
    committed(root, other="other\n")
    committed(root, new="new\n")
    oid = git("rev-parse", lost, at=root)
    (root / "file").write_text("precious\n")
    (place.app / ".git/objects" / oid[:2] / oid[2:]).unlink()
    assert refused(place, made).reference == "worktree-dirty"
    refs = [ref for at, ref in place.service.remove(made, force=True).backups if at == str(place.app / ".git")]
    for name, content in (("file", "precious"), ("new", "new"), ("other", "other")):
        assert git("show", f"{refs[0]}:{name}", at=place.app) == content
