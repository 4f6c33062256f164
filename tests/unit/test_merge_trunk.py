"""Merging branches into a trunk: what moves, what stays, and what is refused before anything moves."""

import os
import resource
import signal
from pathlib import Path
from typing import NamedTuple

import pytest

from launcher.vcs.jailed_git import JailedGit
from launcher.vcs.merge import into_children, work
from launcher.vcs.merge.runs import State
from launcher.vcs.merge.target import find
from launcher.vcs.merge.worktree_files import Files
from policy.errors import Refusal
from tests.support import forked
from tests.support.ground import Entry, Ground
from tests.support.repository import repeat

LINES = "".join(f"{number}\n" for number in range(20))


def make(root: Path) -> None:
    """`main` with two files; `one` and `two` merge cleanly, `three` conflicts with `one`."""
    made = Ground(root / "repo", {"a": LINES, "b": LINES, "d/c": "c\n"})
    made.branch("one", {"a": LINES.replace("3\n", "three\n", 1)})
    made.branch("two", {"a": LINES.replace("17\n", "seventeen\n"), "new": "new\n"}, remove=["d/c"])
    made.branch("three", {"a": LINES.replace("3\n", "THREE\n", 1)})


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    """A copy of what `make` makes."""
    repeat(make, tmp_path)
    return Ground(tmp_path / "repo", None)


def test_children_arrive_in_order_and_the_checkout_follows(ground: Ground) -> None:
    """Both branches are in the trunk, its files are the merged ones, and nothing is left to commit."""
    before = ground.id("main")
    run = ground.merge("one", "two")
    assert run.outcome is not None
    assert [status.agent_result_id for status in run.outcome.merged] == ["one", "two"]
    assert run.state is State.DONE
    assert ground.status() == []
    assert (ground.root / "a").read_text() == LINES.replace("3\n", "three\n", 1).replace("17\n", "seventeen\n")
    assert not (ground.root / "d/c").exists()
    assert ground.git("rev-list", "--parents", "-1", "main").split()[2] == ground.id("two")
    assert ground.id(f"refs/paddock/merge/{run.run_id}/old") == before


def test_a_conflict_stops_and_those_before_it_stay_merged(ground: Ground) -> None:
    """merged + pending + conflicted = all; the trunk has what came before the conflict and nothing of it."""
    run = ground.merge("one", "three", "two")
    outcome = run.outcome
    assert outcome is not None
    assert outcome.conflicted is not None
    assert [s.agent_result_id for s in (*outcome.merged, outcome.conflicted, *outcome.pending)] == [
        "one", "three", "two",
    ]  # fmt: skip
    descriptor = outcome.conflicted.merge_descriptor
    assert descriptor is not None
    assert descriptor.conflict_files == ("a",)
    assert descriptor.hint is not None
    assert ground.id("main") in descriptor.hint
    assert "seventeen" not in (ground.root / "a").read_text()
    assert ground.status() == []


def test_a_conflict_of_the_trunk_with_an_agents_worktree_is_solved_in_that_worktree(ground: Ground) -> None:
    """The advice does not bring the agent's unfinished work into the trunk; between two agents it names the other."""
    ground.merge("one")
    for name in ("two", "three"):
        ground.git("worktree", "add", "-q", str(ground.root.parent / name), name)
    hints = []
    for source in ("main", "two"):
        if source == "two":
            ground.commit("two", {"a": LINES.replace("3\n", "drei\n", 1)})
        found = into_children.named(ground.target("three"), [source], str(ground.root))
        run = work.merge(lambda: ground.target("three"), found, ground.settings(), str(ground.root / ".git"))
        outcome = run.outcome
        assert outcome is not None
        assert outcome.conflicted is not None
        assert outcome.conflicted.merge_descriptor is not None
        hints.append(outcome.conflicted.merge_descriptor.hint)
    assert hints == [
        f"in {ground.root.parent / 'three'}: git merge main, resolve, and commit",
        f"in {ground.root.parent / 'two'}: git merge {ground.id('three')}, resolve, and commit; then merge again",
    ]


def test_a_run_is_not_taken_back_from_under_a_later_one(ground: Ground) -> None:
    """What stands on it is named, with the order to take both back in, and then that works."""
    before = ground.id("main")
    first, second = ground.merge("one"), ground.merge("two")
    with pytest.raises(Refusal, match=f"run {second.run_id} builds on it") as caught:
        work.roll_back(str(ground.root / ".git"), str(ground.state), first.run_id)
    assert caught.value.hint.endswith(f"--rollback {second.run_id}; paddock merge --rollback {first.run_id}")
    assert ground.id("main") != before
    for run in (second, first):
        work.roll_back(str(ground.root / ".git"), str(ground.state), run.run_id)
    assert ground.id("main") == before
    assert ground.status() == []


@pytest.mark.spec("EC-MF-003")
def test_what_the_trunk_has_already_is_a_no_op(ground: Ground) -> None:
    """A child without changes succeeds with an empty commit id, and no ref, file or journal is written (EC-MF-003)."""
    ground.git("branch", "idle")
    ground.commit("main", {"later": "x\n"})
    ground.git("reset", "-q", "--hard")
    before = ground.git("for-each-ref")
    run = ground.merge("idle")
    assert run.outcome is not None
    (status,) = run.outcome.merged
    assert status.merge_descriptor is not None
    assert status.merge_descriptor.no_op
    assert status.merge_descriptor.main_worktree_merge_result is not None
    assert status.merge_descriptor.main_worktree_merge_result.commit_id == ""
    assert ground.git("for-each-ref") == before


def test_one_child_ahead_is_a_fast_forward(ground: Ground) -> None:
    """No merge commit is made where none is needed, and a second one follows from there."""
    run = ground.merge("one", "two")
    assert run.outcome is not None
    first = run.outcome.merged[0].merge_descriptor
    assert first is not None
    assert first.main_worktree_merge_result is not None
    assert first.main_worktree_merge_result.fast_forward
    assert first.main_worktree_merge_result.commit_id == ground.id("one")


def test_the_same_run_gives_the_same_commits(tmp_path: Path) -> None:
    """Names and times come from settings, so two machines make the same objects."""
    ids = []
    for name in ("x", "y"):
        made = Ground(tmp_path / name, {"a": LINES, "b": LINES})
        made.branch("one", {"a": "one\n"})
        made.branch("two", {"b": "two\n"})
        made.merge("one", "two")
        ids.append(made.id("main"))
    assert ids[0] == ids[1]


def test_a_branch_that_nobody_has_checked_out_can_be_the_trunk(ground: Ground) -> None:
    """Only the ref moves; the checkout of another branch stays as it is."""
    ground.git("branch", "release")
    (ground.root / "a").write_text("edited\n")
    ground.merge("one", into="release")
    assert ground.id("release") == ground.id("one")
    assert ground.status() == [" M a"]


def test_a_trunk_that_is_checked_out_elsewhere_is_moved_there(ground: Ground, tmp_path: Path) -> None:
    """`--into` finds the worktree that has the branch, and moves its files with it."""
    other = tmp_path / "other"
    ground.git("worktree", "add", "-q", "-b", "release", str(other), "main")
    ground.merge("one", into="release")
    assert "three\n" in (other / "a").read_text()
    assert ground.status(at=other) == []
    assert ground.status() == []


def test_a_detached_head_moves_alone(ground: Ground) -> None:
    """HEAD of that worktree is the target, and no branch moves."""
    ground.git("checkout", "-q", "--detach")
    main = ground.id("main")
    ground.merge("two")
    assert ground.id("HEAD") == ground.id("two")
    assert ground.id("main") == main
    assert ground.status() == []


def test_unrelated_edits_stay(ground: Ground) -> None:
    """Uncommitted, staged and untracked work beside the merge, and the stash, are what they were."""
    (ground.root / "b").write_text("stashed\n")
    ground.git("stash")
    (ground.root / "b").write_text("edited\n")
    (ground.root / "staged").write_text("staged\n")
    ground.git("add", "staged")
    (ground.root / "untracked").write_text("untracked\n")
    stash = ground.id("refs/stash")
    ground.merge("one")
    assert ground.status() == [" M b", "A  staged", "?? untracked"]
    assert (ground.root / "b").read_text() == "edited\n"
    assert ground.id("refs/stash") == stash


@pytest.mark.parametrize("how", ["edited", "staged", "untracked", "ignored"])
def test_overlapping_work_is_refused_before_anything_moves(ground: Ground, how: str) -> None:
    """A file that the merge would write and the user has written is kept; no ref has moved, no lock is left."""
    name = "a" if how in ("edited", "staged") else "new"
    (ground.root / name).write_text("mine\n")
    if how == "staged":
        ground.git("add", name)
    if how == "ignored":
        (ground.root / ".git/info/exclude").write_text("new\n")
    before = ground.git("for-each-ref"), ground.status()
    with pytest.raises(Refusal, match="in the way") as refused:
        ground.merge("one", "two")
    assert refused.value.reference == "trunk-dirty"
    assert name in refused.value.context
    assert (ground.root / name).read_text() == "mine\n"
    assert (ground.git("for-each-ref"), ground.status()) == before
    assert not list((ground.root / ".git").glob("index.*"))


def _all(ground: Ground) -> tuple[str, dict[str, tuple[int, bytes]], str]:
    """Refs, index and everything in the checkout: what a merge that fails leaves alone."""
    files = {
        str(path.relative_to(ground.root)): (
            path.lstat().st_mode,
            os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else b"",
        )
        for path in sorted(ground.root.rglob("*"))
        if ".git" not in path.relative_to(ground.root).parts
    }
    return ground.git("for-each-ref", "refs/heads") + ground.id("HEAD"), files, ground.git("ls-files", "--stage")


def test_what_no_file_system_takes_is_refused_before_anything_moves(ground: Ground) -> None:
    """Git would have written the files before it, and left them there; what is just short enough arrives."""
    before = _all(ground)
    cases: tuple[tuple[str, str | Entry, str], ...] = (
        ("d/" * 3000 + "f", "x", "too long"),
        ("n" * 256, "x", "more than 255 bytes"),
        ("to", Entry("120000", ""), "symbolic link"),
        ("to", Entry("120000", "t" * 4096), "symbolic link"),
        ("to", Entry("120000", b"a\0b"), "symbolic link"),
    )
    for number, (path, entry, why) in enumerate(cases):
        odd = ground.branch(f"odd{number}", {"0first": "new\n", "a": "changed\n", path: entry}, remove=["b"])
        with pytest.raises(Refusal, match="cannot be checked out") as refused:
            ground.merge(f"odd{number}")
        assert (refused.value.reference, why in refused.value.context) == ("checkout-impossible", True), number
        ground.git("update-ref", "-d", f"refs/heads/odd{number}", odd)
        assert _all(ground) == before, number
    longest = "n" * 255
    ground.branch("fits", {longest: "x", "to": Entry("120000", "t" * 4095)})
    assert ground.merge("fits").state is State.DONE
    assert (ground.root / longest).read_text() == "x"
    assert ground.status() == []


def test_names_that_the_file_system_takes_for_one_are_refused(ground: Ground, tmp_path: Path) -> None:
    """Where case is nothing, the second file would be written over the first; other names arrive."""
    root = tmp_path / "linked"
    ground.git("worktree", "add", "-q", "-b", "linked", str(root), "main")
    os.link(root / ".git", root / ".GIT")  # as such a file system answers
    for number, name in enumerate(("A", "D/c", "D", "B/c")):
        ground.branch(f"odd{number}", {name: "x\n"})
        with pytest.raises(Refusal, match="cannot be checked out") as refused:
            ground.merge(f"odd{number}", into=str(root))
        assert "upper and lower case" in refused.value.context, name
    assert ground.merge("two", into=str(root)).state is State.DONE


class Fails(NamedTuple):
    """A merge that goes wrong between two files."""

    ground: Ground
    before: tuple[str, dict[str, tuple[int, bytes]], str]


@pytest.fixture
def fails(ground: Ground) -> Fails:
    """A child that changes, removes, adds, retypes; its last file is large. The user has work beside it."""
    ground.commit("main", {"run": Entry("100755", "x\n"), "link": Entry("120000", "a"), "was": "file\n", "e/f": "f\n"})
    ground.git("reset", "-q", "--hard")
    ground.branch(
        "big",
        {"0first/in/it": "new\n", "a": "changed\n", "run": "x\n", "link": Entry("120000", "b"), "was/inner": "x\n",
         "e": "file\n", "staged": "same\n", "z": "z" * 500_000},
        remove=["b", "was", "e/f", "d/c"],
    )  # fmt: skip
    (ground.root / "staged").write_text("same\n")
    ground.git("add", "staged")
    (ground.root / "staged").write_text("same\nand more\n")
    (ground.root / "untracked").write_text("mine\n")
    return Fails(ground, _all(ground))


@pytest.mark.parametrize("fate", [signal.SIG_IGN, signal.SIG_DFL], ids=["disk-full", "killed"])
def test_a_merge_whose_git_fails_on_the_way_leaves_everything_as_it_was(fails: Fails, fate: signal.Handlers) -> None:
    """Files that it has written, removed, retyped, index, HEAD and the user's own work; then the same merge works."""
    ground, before = fails

    def merge() -> Refusal:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        signal.signal(signal.SIGXFSZ, fate)
        with pytest.raises(Refusal) as refused:
            ground.merge("big")
        return refused.value

    assert forked.run(lambda: merge().reference) == "checkout-failed"
    assert _all(ground) == before
    assert not list((ground.root / ".git").glob("index.*"))
    assert ground.merge("big").state is State.DONE
    assert (ground.root / "z").stat().st_size == 500_000
    assert ground.status() == [" M staged", "?? untracked"]


def test_what_cannot_be_taken_back_is_said_and_rolled_back_later(fails: Fails, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full when the old files are to be written, too: the run is unfinished, its index stays locked."""
    ground, before = fails

    def merge() -> tuple[str, str]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        write = Files._write_missing

        def full(self: Files, paths: list[str]) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1, 200_000))
            try:
                write(self, paths)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

        monkeypatch.setattr(Files, "_write_missing", full)
        with pytest.raises(Refusal) as refused:
            ground.merge("big")
        return refused.value.reference, refused.value.hint

    reference, hint = forked.run(merge)
    assert (reference, "nothing has been changed" in hint) == ("checkout-stuck", False)
    assert ground.run("commit", "-q", "-a", "-m", "half", check=False).returncode != 0
    run = hint.partition("--rollback ")[2].partition(";")[0]
    with pytest.raises(Refusal, match="must be finished first"):
        ground.merge("two")
    assert work.roll_back(str(ground.root / ".git"), str(ground.state), run).state is State.ROLLED_BACK
    assert _all(ground) == before


@pytest.mark.parametrize(
    ("begin", "what"),
    [
        (["merge", "--no-ff", "--no-commit", "one"], "a merge"),
        (["merge", "three"], "a merge"),
        (["cherry-pick", "three"], "a cherry-pick"),
        (["rebase", "three"], "a rebase"),
        (["revert", "--no-commit", "HEAD"], "a revert"),
        (["bisect", "start"], "a bisection"),
    ],
)
def test_a_busy_trunk_is_refused(ground: Ground, begin: list[str], what: str) -> None:
    """While git is in the middle of an operation there, nothing is merged."""
    ground.commit("main", {"a": "conflict\n"})
    ground.git("reset", "-q", "--hard")
    ground.run(*begin, check=False)
    before = ground.git("for-each-ref"), ground.status()
    with pytest.raises(Refusal, match=what) as refused:
        ground.merge("two")
    assert refused.value.reference == "trunk-busy"
    assert (ground.git("for-each-ref"), ground.status()) == before


@pytest.mark.parametrize("lock", ["index.lock", "refs/heads/main.lock", "HEAD.lock"])
def test_a_lock_of_another_git_is_respected(ground: Ground, lock: str) -> None:
    """Somebody else's lock file is named and stays, and nothing moves; without it the same merge works."""
    if lock == "HEAD.lock":
        ground.git("checkout", "-q", "--detach")
    before = ground.git("for-each-ref"), ground.git("ls-files", "-s")
    (ground.root / ".git" / lock).touch()
    with pytest.raises(Refusal) as refused:
        ground.merge("two")
    assert refused.value.reference in ("trunk-locked", "refs-moved")
    assert str(ground.root / ".git" / lock) in refused.value.message + refused.value.context
    assert (ground.git("for-each-ref"), ground.git("ls-files", "-s")) == before
    assert (ground.root / "d/c").exists()
    (ground.root / ".git" / lock).unlink()
    assert ground.merge("two").state is State.DONE


@pytest.mark.parametrize("fate", [signal.SIG_IGN, signal.SIG_DFL], ids=["disk-full", "killed"])
def test_an_index_lock_of_ours_is_never_without_an_owner(ground: Ground, fate: signal.Handlers) -> None:
    """Where it cannot be written, or its writer is killed, the user's index is free, and nothing else is left of it."""
    git_dir = ground.root / ".git"
    names = sorted(os.listdir(git_dir))
    made = Files(JailedGit(str(git_dir), str(ground.root)), "20260101-000000-000000")

    def lock() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        signal.signal(signal.SIGXFSZ, fate)
        with pytest.raises(OSError, match="too large"):
            made.lock()

    if fate is signal.SIG_IGN:
        forked.run(lock)
        assert sorted(os.listdir(git_dir)) == names
    else:
        with pytest.raises(forked.Killed):
            forked.run(lock)
        assert not (git_dir / "index.lock").exists()
    made.lock()  # the same run, resumed
    assert made.locked_by() == "20260101-000000-000000"
    made.unlock()
    assert sorted(os.listdir(git_dir)) == names


def test_an_unborn_trunk_is_refused(ground: Ground) -> None:
    """There is nothing to merge into."""
    ground.git("checkout", "-q", "--orphan", "empty")
    with pytest.raises(Refusal, match="no commit yet"):
        ground.target()


def test_a_worktree_that_is_gone_keeps_its_branch(ground: Ground, tmp_path: Path) -> None:
    """Moving the branch behind the back of a worktree on an absent disk would lose track of its files."""
    other = tmp_path / "other"
    ground.git("worktree", "add", "-q", "-b", "release", str(other), "main")
    other.rename(tmp_path / "elsewhere")
    with pytest.raises(Refusal) as refused:
        ground.target("release")
    assert refused.value.reference == "trunk-missing"


def test_a_bare_repository_can_be_merged_in(ground: Ground, tmp_path: Path) -> None:
    """Without any worktree only the branch moves."""
    bare = tmp_path / "bare.git"
    ground.git("clone", "-q", "--bare", str(ground.root), str(bare))
    ground.git("config", "user.name", "T", at=bare)
    ground.git("config", "user.email", "t@example.invalid", at=bare)
    work.merge(lambda: find(str(bare), "main"), [ground.source("one")], ground.settings(), str(bare))
    assert ground.git("rev-parse", "main", at=bare) == ground.id("one")


def test_unrelated_histories_are_refused(ground: Ground) -> None:
    """Without a common ancestor nothing is merged, as with git."""
    ground.commit("stranger", {"z": "z\n"}, fresh=True)
    outcome = ground.merge("stranger").outcome
    assert outcome is not None
    assert outcome.conflicted is not None
    assert outcome.conflicted.merge_descriptor is not None
    assert "no common ancestor" in (outcome.conflicted.merge_descriptor.error_message or "")


def test_the_users_own_name_is_found(ground: Ground, tmp_path: Path) -> None:
    """A name in the user's configuration counts where the repository has none."""
    ground.git("config", "--unset", "user.name")
    ground.git("config", "--unset", "user.email")
    (tmp_path / ".gitconfig").write_text("[user]\nname = Ada <evil>\nemail = ada@example.invalid\n")
    ground.merge("one", "two", settings=ground.settings()._replace(caller={"HOME": str(tmp_path)}))
    assert ground.git("log", "-1", "--format=%an|%ae|%cn") == "Ada evil|ada@example.invalid|Ada evil"


def test_no_name_of_several_refs_is_merged(ground: Ground) -> None:
    """A branch of an agent's that is called as a remote's, or a tag's: neither is guessed, alone or among others."""
    ground.git("update-ref", "refs/remotes/up/one", "one")
    ground.git("update-ref", "refs/heads/up/one", "two")
    ground.git("tag", "v1", "one")
    ground.git("update-ref", "refs/heads/v1", "two")
    target = ground.target("three")
    for word in ("up/one", "v1", "up/one~0", "v1^{commit}"):
        for words in ([word], ["main", word]):
            with pytest.raises(Refusal) as raised:
                into_children.named(target, words, str(ground.root))
            assert raised.value.reference == "ref-ambiguous"
    for name, meant in (("refs/remotes/up/one", "one"), ("refs/heads/up/one", "two"), ("refs/tags/v1", "one")):
        for words in ([name], ["main", name]):
            assert into_children.named(target, words, str(ground.root))[-1].commit == ground.id(meant)
    with pytest.raises(Refusal) as raised:
        find(str(ground.root), "v1")
    assert raised.value.reference == "ref-ambiguous"
    assert find(str(ground.root), "refs/heads/v1").commit == ground.id("two")


def test_one_commit_of_several_names_is_merged_as_the_branch(ground: Ground) -> None:
    """Where all that a word may mean is one commit, nothing is to be asked; a revision is still taken."""
    ground.git("tag", "one-as-tag", "one")
    ground.git("update-ref", "refs/heads/one-as-tag", "one")
    found = into_children.named(ground.target("three"), ["one-as-tag", "two~0", ground.id("main")], str(ground.root))
    assert [source.commit for source in found] == [ground.id("one"), ground.id("two"), ground.id("main")]
