"""Removing a worktree: what would be lost is said first, and kept when the removal is forced."""

import errno
import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from launcher.jail import processes
from launcher.vcs import jailed_git, written
from launcher.vcs.harvest.decide import kept_places
from launcher.vcs.private import lock as private_lock
from launcher.vcs.private import record
from launcher.vcs.worktrees import condition
from launcher.vcs.worktrees.models import Options, Worktree
from launcher.vcs.worktrees.worktree_service import WorktreeService
from policy.errors import Refusal
from tests.support import repository
from tests.support.derived import plan
from tests.support.repository import ENV, Place, committed, git


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return repository.plain(tmp_path)


def refused(place: Place, made: Worktree) -> Refusal:
    with pytest.raises(Refusal) as raised:
        place.service.remove(made)
    assert Path(made.path).exists()
    return raised.value


def test_a_worktree_without_work_goes_with_its_branch(place: Place) -> None:
    """Nothing is left: files, metadata, branch, private home, records, lock."""
    made = place.service.add(place.app, "T")
    home = Path(place.state, "worktrees", made.worktree_id, "home")
    home.mkdir(parents=True)
    (home / "cache").write_text("x")
    written.remember(place.state, plan().replace(worktree=made.path, grants=()))
    removed = place.service.remove(made)
    assert written.trees(place.state) == ()
    assert removed.branches_deleted == [(str(place.app / ".git"), "agent/T")]
    assert not Path(made.path).exists()
    assert place.branches == {"main"}
    assert not home.parent.exists()
    assert repository.leftovers(place) == []
    assert place.service.of_repository(place.app) == []
    assert not Path(place.state, "locks", f"worktree-{made.worktree_id}").exists()


def test_the_lock_of_a_launch_that_was_killed_goes_with_the_worktree(place: Place) -> None:
    """It stays beside the ref that pins what a private git directory borrows."""
    made = place.service.add(place.app, "T")
    lock = place.app / ".git" / f"{record.pin(made.worktree_id)}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.touch()
    place.service.remove(made)
    assert not lock.exists()


@pytest.mark.parametrize(("mode", "closed"), [(0, "deep"), (0o444, "deep/below"), (0o111, "deep"), (0o111, "new")])
def test_what_is_closed_is_at_stake(place: Place, closed: str, mode: int) -> None:
    """Git passes over a directory that it may not enter, as if it were as before; forced, nothing is lost either."""
    committed(place.app, **{"deep/below/file": "x\n", "deep/beside": "y\n"})
    made = place.service.add(place.app, "T")
    tree = Path(made.path)
    if closed == "new":
        (tree / "new").mkdir()
    else:
        (tree / "deep/below/file").write_text("precious\n")
    (tree / closed / "untracked").write_text("precious\n")
    (tree / closed).chmod(mode)
    said = refused(place, made)
    assert said.reference == "worktree-dirty"
    assert mode == 0o111 or f"chmod -R u+rwX {tree}" in said.hint
    if mode != 0o111:
        with pytest.raises(Refusal, match="cannot be backed up"):
            place.service.remove(made, force=True)
    (tree / closed).chmod(0o755)
    for _, ref in place.service.remove(made, force=True).backups:
        assert git("show", f"{ref}:{closed}/untracked", at=place.app) == "precious"


@pytest.mark.parametrize("number", [errno.ELOOP, errno.ENOSPC, errno.EIO])
def test_nothing_is_to_be_opened_that_is_not_closed(number: int) -> None:
    """A link that comes and goes, or a full disk: a `chmod -R` would follow the link."""
    assert "chmod" not in condition.opening("/tree", f"warning: a: {os.strerror(number)}")
    assert "chmod -R u+rwX /tree" in condition.opening("/tree", f"warning: a: {os.strerror(errno.EACCES)}")


@pytest.mark.parametrize("end", ["\n", "\r", "\u2028"])
def test_a_name_does_not_speak_for_git(place: Place, end: str) -> None:
    """Git has a name in its complaint about attributes as it is: the rest of it was shown as what git cannot read."""
    made = place.service.add(place.app, "T")
    tree, fault = Path(made.path), f"fatal: run this: {os.strerror(errno.EACCES)}"
    odd = tree / f"a{end}{fault}{end}b"
    odd.mkdir()
    (odd / ".gitattributes").write_text("*.txt b@d\n")
    (odd / "x.txt").write_text("the one\n")
    git("add", ".", at=tree)
    (odd / "x.txt").write_text("another\n")  # as long: git reads it to compare, and what is said of its attributes
    said = place.service.status(made).at_stake()
    assert not [text for text in said if fault in text and text.endswith(os.strerror(errno.EACCES))], said
    if end == "\n":
        refusal = refused(place, made)
        assert condition.OF_LINES in refusal.context
        assert "look at what is named there" in refusal.hint
        odd.rename(tree / "even")
    ((at, ref), *_) = place.service.remove(made, force=True).backups
    assert "another" in git("grep", "another", ref, at=Path(at))


def test_what_git_complains_of_at_length_is_named(place: Place) -> None:
    """Else nobody knows what to do about it."""
    made = place.service.add(place.app, "T")
    (Path(made.path) / "new").mkdir()
    (Path(made.path) / "new/.gitattributes").write_text("*.txt b@d\n" * 3000)
    (Path(made.path) / "new/x.txt").write_text("x\n")
    git("add", "new", at=Path(made.path))
    (Path(made.path) / "new/x.txt").write_text("y\n")  # as long: git reads it to compare
    assert "b@d is not a valid attribute name: new/.gitattributes:3000" in refused(place, made).context


def test_a_directory_that_became_a_link_is_backed_up(place: Place) -> None:
    """What lay below it is gone, as far as git is concerned; and a file that cannot be read is named."""
    committed(place.app, **{"docs/page": "x\n", "src/a": "y\n"})
    made = place.service.add(place.app, "T")
    tree = Path(made.path)
    (tree / "docs/page").unlink()
    (tree / "docs").rmdir()
    (tree / "docs").symlink_to("src")
    secret = tree / "secret"
    secret.write_text("precious\n")
    secret.chmod(0)
    with pytest.raises(Refusal, match="cannot be backed up"):
        place.service.remove(made, force=True)
    secret.chmod(0o600)
    ((_, ref),) = place.service.remove(made, force=True).backups
    names = git("ls-tree", "-r", "--name-only", ref, at=place.app).split()
    assert ({"docs", "secret", "src/a"} <= {*names}, "docs/page" in names) == (True, False)


def test_files_that_are_called_like_commits_are_backed_up(place: Place) -> None:
    """Git would not say which of the two is meant, and the worktree would stay for ever."""
    made = place.service.add(place.app, "T")
    names = ("HEAD", git("rev-parse", "HEAD", at=place.app), "main", "agent")
    for name in names:
        (Path(made.path) / name).write_text(f"precious {name}\n")
    assert "4 untracked" in refused(place, made).context
    ((_, ref),) = place.service.remove(made, force=True).backups
    for name in names:
        assert git("show", f"{ref}:{name}", at=place.app) == f"precious {name}"


def test_a_copied_file_is_at_stake_once_it_differs_from_the_parents(place: Place) -> None:
    """What `--copy` brought stands in nobody's way; changed, made a link, or without the original, it does."""
    (place.app / "local.toml").write_text("A=1\n")
    made = place.service.add(place.app, "T", Options(copy=("local.toml",)))
    copy = Path(made.path, "local.toml")
    assert copy.read_text() == "A=1\n"
    copy.write_text("A=2\n")
    assert "1 untracked" in str(refused(place, made))
    copy.unlink()
    copy.symlink_to(place.app / "local.toml")
    assert "1 untracked" in str(refused(place, made))
    copy.unlink()
    copy.write_text("A=1\n")
    (place.app / "local.toml").rename(place.app / "moved")
    assert "1 untracked" in str(refused(place, made))
    (place.app / "moved").rename(place.app / "local.toml")
    place.service.remove(made)
    assert not Path(made.path).exists()


def test_a_branch_with_commits_of_its_own_stays(place: Place) -> None:
    """Until they are merged; `keep_branch` keeps also one that has none."""
    made = place.service.add(place.app, "T")
    committed(Path(made.path), new="")
    removed = place.service.remove(made)
    assert removed.branches_kept == [(str(place.app / ".git"), "agent/T")]
    git("merge", "-q", "agent/T", at=place.app)
    git("branch", "-q", "-d", "agent/T", at=place.app)
    made = place.service.add(place.app, "T")
    committed(Path(made.path), newer="")
    git("merge", "-q", "agent/T", at=place.app)
    assert place.service.remove(made).branches_deleted
    made = place.service.add(place.app, "T")
    assert place.service.remove(made, keep_branch=True).branches_kept


def test_a_branch_that_alone_has_its_base_stays(place: Place) -> None:
    """The branch that it was made from was deleted or amended since.

    Another worktree that is there, without a branch, may be gone tomorrow. A broken ref has no say in it.
    """
    kept = (str(place.app / ".git"), "agent/T")
    git("branch", "feature", git("commit-tree", "-m", "x", "HEAD^{tree}", at=place.app), at=place.app)
    made = place.service.add(place.app, "T", Options(start="feature"))
    git("branch", "-q", "-D", "feature", at=place.app)
    git("worktree", "add", "-q", "--detach", "../look", "agent/T", at=place.app)
    assert place.service.remove(made).branches_kept == [kept]
    git("branch", "-q", "-D", "agent/T", at=place.app)
    made = place.service.add(place.app, "T")
    (place.app / ".git/refs/heads/broken").write_text("a" * 40 + "\n")
    assert place.service.remove(made).branches_kept == []


UNWATCHED = ("skip-worktree", "assume-unchanged")


@pytest.mark.parametrize("kind", ["modified", *UNWATCHED, "untracked", "deleted", "merge", "detached"])
def test_work_that_is_nowhere_else_is_not_removed(place: Place, kind: str) -> None:
    """Each kind of it is named in the Refusal."""
    made = place.service.add(place.app, "T")
    root = Path(made.path)
    said = "1 modified"
    if kind in ("modified", *UNWATCHED):
        if kind in UNWATCHED:
            git("update-index", f"--{kind}", "file", at=root)
            assert place.service.status(made).at_stake() == []
        (root / "file").write_text("changed")
    elif kind == "untracked":
        (root / "new").write_text("")
        said = "1 untracked"
    elif kind == "deleted":
        (root / "file").unlink()
    elif kind == "merge":
        committed(root, file="ours\n")
        committed(place.app, file="theirs\n")
        subprocess.run(["git", "merge", "main"], cwd=root, env=ENV, capture_output=True, check=False)
        said = "a merge in progress"
    else:
        git("checkout", "-q", "--detach", at=root)
        committed(root, new="")
        said = "commits on no branch"
    refusal = refused(place, made)
    assert refusal.reference == "worktree-dirty"
    assert said in refusal.context
    way = (
        "switch -c NAME gives commits on no branch a branch"
        if kind == "detached"
        else f"add -A && git -C {root} commit"
    )
    kept = "or paddock worktree remove T --force: files are kept under refs/paddock/backup"
    assert refusal.hint == f"git -C {root} {way}\n{kept}"
    removed = place.service.remove(made, force=True)
    assert not root.exists()
    (store, ref), *sides = [*removed.backups]
    assert [one.removeprefix(ref) for _, one in sides] == ["-staged"] * (kind == "merge")
    assert ref.startswith(f"refs/paddock/backup/{made.worktree_id}/")
    content = git("ls-tree", "-r", "--name-only", ref, at=Path(store)).splitlines()
    assert ("file" in content) is (kind != "deleted")
    if kind in ("modified", *UNWATCHED):
        assert git("show", f"{ref}:file", at=Path(store)) == "changed"
    assert ("new" in content) is (kind in ("untracked", "detached"))


@pytest.mark.parametrize("inner", ["", "lib/outer"])
def test_what_only_the_index_has_is_backed_up(tmp_path: Path, inner: str) -> None:
    """What was staged, and changed or deleted since, gets a commit of its own, beside that of the files."""
    place = repository.nested(tmp_path)
    made = place.service.add(place.app, "T")
    root = Path(made.path, inner)
    store = place.app / ".git" / ("modules/outer" if inner else "")
    staged = {"new": "staged new\n", "file": "staged file\n", "gone": "staged gone\n", "same": "as staged\n"}
    committed(root, file="x\n", gone="y\n")
    for name, content in staged.items():
        (root / name).write_text(content)
    git("add", "--all", at=root)
    (root / "new").unlink()
    (root / "gone").unlink()
    (root / "file").write_text("changed since\n")
    status = git("status", "--porcelain", at=root).split("\n")
    assert {"AD new", "MD gone", "A  same"} < {*status}
    head = git("rev-parse", "HEAD", at=root)
    kept = [ref for where, ref in place.service.remove(made, force=True).backups if Path(where) == store]
    files, index = kept
    assert index == f"{files}-staged"
    assert git("rev-parse", f"{index}^", at=store) == head
    for name, content in staged.items():
        assert git("show", f"{index}:{name}", at=store) + "\n" == content
    assert git("show", f"{files}:file", at=store) == "changed since"
    assert {"new", "gone"}.isdisjoint(git("ls-tree", "--name-only", files, at=store).split())


@pytest.mark.parametrize("inside", ["", "new"])
def test_a_file_that_became_a_directory_is_backed_up(place: Place, inside: str) -> None:
    """An empty one is nothing that git knows: the file is gone, and that is all there is to keep."""
    made = place.service.add(place.app, "T")
    root = Path(made.path)
    (root / "file").unlink()
    (root / "file").mkdir()
    if inside:
        (root / "file" / inside).write_text("precious\n")
    ((store, ref),) = place.service.remove(made, force=True).backups
    names = git("ls-tree", "-r", "--name-only", ref, at=Path(store)).splitlines()
    assert [name for name in names if name.startswith("file")] == ([f"file/{inside}"] if inside else [])


def test_a_file_that_became_a_fifo_is_gone(place: Place) -> None:
    """Git puts none into a commit, and there is nothing in it to keep; what else there is has a backup."""
    made = place.service.add(place.app, "T")
    root = Path(made.path)
    (root / "file").unlink()
    os.mkfifo(root / "file")
    (root / "new").write_text("precious\n")
    ((store, ref),) = place.service.remove(made, force=True).backups
    names = git("ls-tree", "-r", "--name-only", ref, at=Path(store)).splitlines()
    assert ("new" in names, "file" in names, root.exists()) == (True, False, False)


def test_a_ref_that_goes_with_the_worktree_keeps_no_commit(tmp_path: Path) -> None:
    """Private git directories pin what they borrow, and git has refs of a worktree's own: neither holds work."""
    place = repository.nested(tmp_path)
    made = place.service.add(place.app, "T")
    for root, said in ((Path(made.path), ""), (Path(made.path, "lib/outer"), "submodule outer: ")):
        git("checkout", "-q", "--detach", at=root)
        assert f"{said}commits on no branch" not in place.service.status(made).at_stake()
        committed(root, new="")
        for ref in (record.pin(made.worktree_id), "refs/worktree/mine", "refs/bisect/bad"):
            git("update-ref", ref, "HEAD", at=root)
        assert f"{said}commits on no branch" in refused(place, made).context.splitlines()
        if said:
            git("branch", "-q", "saved", at=root)
            assert f"{said}commits on no branch" not in place.service.status(made).at_stake()
            git("branch", "-q", "-D", "saved", at=root)
    heads = [git("rev-parse", "HEAD", at=Path(made.path, name)) for name in ("", "lib/outer")]
    place.service.remove(made, force=True)
    for oid, store in zip(heads, (place.app / ".git", place.app / ".git/modules/outer"), strict=True):
        assert "refs/paddock/backup/" in git("for-each-ref", "--contains", oid, at=store)
    assert git("for-each-ref", record.pin(made.worktree_id), at=place.app) == ""


@pytest.mark.parametrize(("place_of_refs", "name"), [(0, "app-T"), (1, "a'b\n\t\\ \udcff1")])
def test_work_that_was_kept_beside_a_branch_is_at_stake_until_it_is_joined(
    place: Place, place_of_refs: int, name: str
) -> None:
    """Its ref is named with its commits and the command that joins them; a forced removal leaves it, and says so."""
    at = Options(path=str(place.root / name))
    made = place.service.add(place.app, "T", at)
    root = Path(made.path)
    ref = f"{kept_places(made.worktree_id)[place_of_refs]}/agent/T"
    committed(root, theirs="")
    git("update-ref", ref, "HEAD", at=root)
    git("reset", "-q", "--hard", "HEAD~1", at=root)
    now = place.service.status(made)
    assert now.at_stake() == [f"1 commit of the agent is kept in {ref}"]
    (kept,) = now.beside()
    refusal = refused(place, made)
    assert refusal.context == now.at_stake()[0]
    assert f"hint: to merge them: {kept.join}\n        or to drop them: {kept.give_up}\n" in str(refusal)
    git("update-ref", record.pin("other"), ref, at=root)
    removed = place.service.remove(made, force=True)
    store = str(place.app / ".git")
    assert (removed.backups, removed.refs_kept) == ([], [(store, ref)])
    made = place.service.add(place.app, "T", at)
    subprocess.run(["bash", "-c", kept.join], env=ENV, check=True, timeout=60)
    assert place.service.status(made).at_stake() == []
    removed = place.service.remove(made)
    assert (removed.branches_kept, removed.refs_kept) == ([(store, "agent/T")], [])


def test_a_fifo_that_git_would_read_patterns_from_holds_nobody_up(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named at once, by a look and by a forced removal; git alone would wait for its other side for ever."""
    made = place.service.add(place.app, "T")
    patterns = Path(made.path, ".gitignore")
    content = patterns.read_text()
    patterns.unlink()
    os.mkfifo(patterns)
    new = Path(made.path, "new")  # only for what it does not know git asks whether it is ignored
    new.touch()
    with monkeypatch.context() as patch:
        patch.setattr(jailed_git, "SOON", 0.3)
        (stake,) = place.service.status(made).at_stake()
        assert str(patterns) in stake
        assert condition.processes_at_work(made.path) == ()  # nothing of the git that was ended
        assert refused(place, made).reference == "worktree-dirty"
        with pytest.raises(Refusal) as raised:
            place.service.remove(made, force=True)
    assert (raised.value.reference, raised.value.hint) == ("worktree-obstructed", f"rm {patterns}")
    patterns.unlink()
    patterns.write_text(content)
    new.unlink()
    assert place.service.status(made).at_stake() == []


def test_terabytes_of_holes_hold_nobody_up(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is named; git would read all, as its size is that of the index in the 32 bits that are there."""
    made = place.service.add(place.app, "T")
    monkeypatch.setattr(jailed_git, "SOON", 0.3)
    tracked = Path(made.path, "file")
    size = tracked.stat().st_size
    os.truncate(tracked, size + (4 << 40))
    (stake,) = place.service.status(made).at_stake()
    assert str(tracked) in stake
    os.truncate(tracked, size)
    assert place.service.status(made).at_stake() == []


def test_a_backup_reads_no_terabytes_of_holes(place: Place) -> None:
    """The file is named, and without it the worktree goes; a hole that git reads in no time is kept with the file."""
    made = place.service.add(place.app, "T")
    huge, small = Path(made.path, "huge"), Path(made.path, "small")
    for path, size in ((huge, 4 << 40), (small, 1 << 20)):
        path.touch()
        os.truncate(path, size)
    with pytest.raises(Refusal) as raised:
        place.service.remove(made, force=True)
    assert (raised.value.reference, raised.value.hint) == ("worktree-obstructed", f"rm {huge}")
    huge.unlink()
    ((where, ref),) = place.service.remove(made, force=True).backups
    assert git("cat-file", "-s", f"{ref}:small", at=Path(where)) == str(1 << 20)


@pytest.mark.parametrize("namespaces", [True, False])
def test_a_fifo_that_is_gone_when_it_is_looked_for_holds_nobody_up(
    place: Place, monkeypatch: pytest.MonkeyPatch, namespaces: bool
) -> None:
    """A session can take it away each time: who has begun to open it waits for ever all the same."""
    made = place.service.add(place.app, "T")
    patterns = Path(made.path, ".gitignore")
    patterns.unlink()
    os.mkfifo(patterns)
    Path(made.path, "new").touch()
    for name, value in (("SOON", 0.3), ("_obstacle", lambda _: None)):
        monkeypatch.setattr(jailed_git, name, value)
    monkeypatch.setattr(processes, "LOOK", 0.2)
    if not namespaces:
        monkeypatch.setattr(jailed_git._of_thread, "helper", None)  # the shared one knows that there are some
        monkeypatch.setenv("PADDOCK_NO_USERNS", "1")
    began = time.monotonic()
    (stake,) = place.service.status(made).at_stake()
    assert "git hangs" in stake
    with pytest.raises(Refusal) as raised:
        place.service.remove(made, force=True)
    assert raised.value.reference == "worktree-obstructed"
    assert time.monotonic() - began < 60
    assert condition.processes_at_work(made.path) == ()


@contextmanager
def woken(fifos: list[Path], pause: float) -> Iterator[None]:
    """Plays the agent that lets git go on, from one FIFO to the next."""
    over = threading.Event()

    def serve() -> None:
        while not over.wait(pause):
            for fifo in fifos:
                with suppress(OSError):  # nobody reads there now
                    os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
                    break

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("lives", [True, False])
def test_a_session_that_wakes_git_again_and_again_holds_nobody_up(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lives: bool
) -> None:
    """One FIFO after another: what counts is how long git sleeps in all. Without a session the disk is slow."""
    made = place.service.add(place.app, "T")
    fifos = [Path(made.path, f"d{number:02}", ".gitignore") for number in range(60)]
    for fifo in fifos:
        fifo.parent.mkdir()
        os.mkfifo(fifo)
        fifo.with_name("file").touch()
    session = tmp_path / "xdg/paddock/sessions/one"
    session.mkdir(parents=True)
    (session / "writes").write_text(f"{made.path}\0")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    for module, name, value in (
        (jailed_git, "SOON", 0.3), (jailed_git, "_obstacle", lambda _: None), (processes, "LOOK", 0.05),
        (processes, "MOST_SLEPT", 0.5), (processes, "_SLEPT", 10_000),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    descriptor = os.open(session, os.O_RDONLY)
    try:
        if lives:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        with woken(fifos, 0.05):
            said = "; ".join(place.service.status(made).at_stake())
    finally:
        os.close(descriptor)
    assert ("git hangs" in said) is lives, said
    assert ("untracked" in said) is not lives, said


@pytest.mark.parametrize(
    ("line", "sleeps"),
    [
        ("read -r", True), ("while :; do :; done", False), ("while ! read -rt 0.01; do :; done", False), ("", False),
        ("bash -c 'while :; do :; done'; :", False), ("bash -c 'read -r'; :", True),
    ],
)  # fmt: skip
def test_a_git_that_goes_on_is_not_taken_for_one_that_sleeps(tmp_path: Path, line: str, sleeps: bool) -> None:
    """Whether it computes, or waits again and again for a moment, as on a slow disk, or for a child that does; nor is a
    jail that has none.
    """
    name = str(tmp_path / ("git" if line else "other"))
    shutil.copy(str(shutil.which("bash")), name)
    words = ["bash", "-c", '"$@"; :', "bash", name, "-c", f"echo; {line or 'read -r'}"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.5 if sleeps else 0)  # until it sleeps
        sleep = processes.Sleep(process.pid, b"git")
        looks = []
        for _ in range(7):
            looks.append(sleep.for_good())
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    assert looks == [False] * 5 + [sleeps] * 2


@pytest.mark.parametrize(
    ("line", "long"),
    [("while ! read -rt 0.01; do :; done", True), ("while :; do :; done", False)],
)
def test_who_is_woken_again_and_again_has_slept_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, long: bool
) -> None:
    """Beside one that computes; what was slept in one git counts for the next one on the same tree."""
    monkeypatch.setattr(processes, "MOST_SLEPT", 0.5)
    monkeypatch.setattr(processes, "_PER_WORKED", 1)
    name = str(tmp_path / "git")
    shutil.copy(str(shutil.which("bash")), name)
    words = ["bash", "-c", '"$@"; :', "bash", name, "-c", f"echo; {line}"]
    found = []
    before = None
    for _ in range(2):
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0) as process:
            assert process.stdout is not None
            process.stdout.readline()
            before = processes.Sleep(process.pid, b"git", before)
            until = time.monotonic() + (4 if long else 1)
            while not before.for_long() and time.monotonic() < until:
                time.sleep(0.05)
                before.for_good()
            found.append(before.for_long())
            os.killpg(process.pid, signal.SIGKILL)
        monkeypatch.setattr(processes, "MOST_SLEPT", before._slept)  # the next one has nothing left
    assert found == [long] * 2


def test_ignored_files_that_go_are_counted_measured_and_named(place: Place, tmp_path: Path) -> None:
    """What lies behind a link, is in the parent as well, or is empty counts for nothing."""
    committed(place.app, **{".gitignore": ".env\n*.log\ndata/\n"})
    (place.app / ".env").write_text("x")
    (tmp_path / "large").mkdir()
    (tmp_path / "large/file").write_bytes(bytes(5000))
    made = place.service.add(place.app, "T", Options(copy=(".env",)))
    root = Path(made.path)
    assert place.service.status(made).ignored() == []
    (root / "data/deep").mkdir(parents=True)
    assert place.service.status(made).ignored() == []
    (root / "data/deep/result.csv").write_bytes(bytes(2048))
    (root / "data/out").symlink_to(tmp_path / "large")
    (root / "a.log").write_text("abc")
    now = place.service.status(made)
    size = 2051 + len(str(tmp_path / "large"))
    assert now.ignored() == [f"3 files, {size / 1024:.1f} KiB: a.log, data/"]
    assert now.at_stake() == []
    assert f"removed with it, as git ignored it: {now.ignored()[0]}" in place.service.remove(made).lines()


def test_a_repository_inside_is_kept_file_by_file(place: Place) -> None:
    """Git would note its commit alone, which is gone with it; its own git directory is moved, and not read."""
    made = place.service.add(place.app, "T")
    inner = Path(made.path) / "inner"
    (inner / "sub").mkdir(parents=True)
    git("init", "-q", at=inner)
    committed(inner, a="a\n")
    (inner / "sub/b").write_text("b\n")
    (inner / "link").symlink_to("/etc")
    mark = place.root / "mark"
    program = place.root / "program"
    program.write_text(f"#!/bin/sh\n: > {mark}\n")
    program.chmod(0o755)
    git("config", "core.fsmonitor", str(program), at=inner)
    assert "1 untracked" in refused(place, made).context
    (store, ref), aside = place.service.remove(made, force=True).backups
    listing = git("ls-tree", "-r", ref, at=Path(store))
    assert Path(*aside, "HEAD").exists()
    assert [line.split("\t")[1] for line in listing.splitlines()] == [
        ".gitignore", "file", "inner/a", "inner/link", "inner/sub/b",
    ]  # fmt: skip
    assert "120000" in listing
    assert "160000" not in listing
    assert not mark.exists()


def test_nothing_that_an_agent_put_in_a_submodules_place_is_executed(tmp_path: Path) -> None:
    """Its `.git` is replaced by a directory whose configuration runs programmes: status and removal never meet it."""
    place = repository.nested(tmp_path)
    made = place.service.add(place.app, "T")
    outer = Path(made.path) / "lib/outer"
    mark, program = tmp_path / "mark", tmp_path / "program"
    program.write_text(f"#!/bin/sh\n: > {mark}\n")
    program.chmod(0o755)
    (outer / ".git").unlink()
    git("init", "-q", at=outer)
    git("config", "core.fsmonitor", str(program), at=outer)
    (outer / "file").write_text("changed\n")
    git("status", at=Path(made.path))
    assert mark.exists(), "plain git runs it"
    mark.unlink()
    assert {"submodule outer: 1 modified", "submodule outer: .git, which no backup can hold"} <= {
        *place.service.status(made).at_stake()
    }
    assert Path(*place.service.remove(made, force=True).backups[-1], "config").exists()
    assert not mark.exists()


def test_a_submodule_that_moved_on_is_work(tmp_path: Path) -> None:
    """Its commits stay in its branch, but which of them belongs here is written nowhere else."""
    place = repository.nested(tmp_path)
    made = place.service.add(place.app, "T")
    committed(Path(made.path) / "lib/outer", new="")
    assert "1 modified" in refused(place, made).context
    removed = place.service.remove(made, force=True)
    outer = place.app / ".git/modules/outer"
    main = next(ref for store, ref in removed.backups if store == str(place.app / ".git"))
    assert git("rev-parse", f"{main}:lib/outer", at=place.app) == git("rev-parse", "agent/T", at=outer)


@pytest.mark.parametrize("back", [False, True])
def test_a_commit_of_a_submodule_that_is_staged_is_work(tmp_path: Path, back: bool) -> None:
    """Also where it is the one that is checked out, or no longer is; the index alone says that it belongs here."""
    place = repository.nested(tmp_path)
    made = place.service.add(place.app, "T")
    outer = Path(made.path, "lib/outer")
    committed(outer, new="")
    git("add", "lib/outer", at=Path(made.path))
    oid = git("rev-parse", "HEAD", at=outer)
    if back:
        git("checkout", "-q", "--detach", "HEAD~1", at=outer)
    assert refused(place, made).context == "1 modified"
    refs = [ref for at, ref in place.service.remove(made, force=True).backups if at == str(place.app / ".git")]
    assert oid in [git("rev-parse", f"{ref}:lib/outer", at=place.app) for ref in refs]


def test_a_submodule_behind_what_is_recorded_is_no_work(tmp_path: Path) -> None:
    """As `git merge` leaves it: to commit that would take it back, so what brings it along is said, and works."""
    place = repository.nested(tmp_path)
    made = place.service.add(place.app, "T")
    root = Path(made.path)
    for path in ("lib/outer/deep/inner", "lib/outer", ""):
        committed(place.app / path, new="")
    git("merge", "-q", "main", at=root)
    now = place.service.status(made)
    assert now.at_stake() == []
    for name in ("lib/outer", "lib/outer/deep/inner"):
        (said,) = place.service.status(made).lagging()  # the inner one lags as soon as the outer does not
        assert f"submodule {name} is checked out at an older commit than recorded: git -C " in said
        git(*shlex.split(said.partition(": git ")[2]), at=place.app)
    assert place.service.status(made).lagging() == []
    assert (root / "lib/outer/deep/inner/new").exists()
    assert git("symbolic-ref", "HEAD", at=root / "lib/outer") == "refs/heads/agent/T"
    place.service.remove(made, force=False)
    assert not root.exists()


def test_commits_that_git_submodule_update_made_a_store_for_are_kept(tmp_path: Path) -> None:
    """In a linked worktree git puts a submodule's objects where they go with the worktree."""
    place = repository.nested(tmp_path)
    for name in ("up-inner", "up-outer"):
        (tmp_path / f"gone-{name}").rename(tmp_path / name)
    git("worktree", "add", "-q", "../mine", at=place.app)
    git("submodule", "--quiet", "update", "--init", at=tmp_path / "mine")
    adopted = place.service.adopt(tmp_path / "mine")
    assert place.service.status(adopted).at_stake() == []
    own = tmp_path / "app/.git/worktrees/mine/modules/outer"
    for name in ("refs/heads/x", "refs/tags/x", "refs/stash"):
        git("branch", "x", git("commit-tree", "-m", "x", "HEAD^{tree}", at=own), at=own)
        git("update-ref", "--create-reflog", name, "x", at=own)
        git("branch", *(() if name.endswith("heads/x") else ("-D", "x")), at=own)
        (own / name).write_text("")
        assert place.service.status(adopted).at_stake() == ["submodule outer: commits that are on no remote"]
        for path in (own / name, own / "logs" / name):
            path.unlink()
    assert place.service.status(adopted).at_stake() == []
    committed(tmp_path / "mine/lib/outer", new="")
    git("commit", "-q", "-a", "-m", "Pointer.", at=tmp_path / "mine")
    oid = git("rev-parse", "HEAD", at=tmp_path / "mine/lib/outer")
    assert "submodule outer: commits that are on no remote" in refused(place, adopted).context
    backups = place.service.remove(adopted, force=True).backups
    assert [at for at, _ in backups if not Path(at).exists()] == []
    (store,) = (place.app / ".git/paddock-backup").glob("*/modules/outer")
    assert git("--git-dir", str(store), "cat-file", "-t", oid, at=tmp_path) == "commit"


def test_a_worktree_in_use_or_locked_is_not_removed(place: Place) -> None:
    """By a process in it, by `git worktree lock`, by another Paddock; forced, the first two do not hold it."""
    made = place.service.add(place.app, "T")
    process = subprocess.Popen(["sleep", "1000"], cwd=made.path)
    try:
        refusal = refused(place, made)
        assert refusal.reference == "worktree-in-use"
        assert str(process.pid) in refusal.context
    finally:
        process.kill()
        process.wait()
    private = record.directory_of(place.state, made.worktree_id)
    os.makedirs(private)
    session = private_lock.opened(private)
    private_lock.together(session)
    assert "a session is running" in refused(place, made).message
    os.close(session)
    git("worktree", "lock", "--reason", "mine", made.path, at=place.app)
    refusal = refused(place, made)
    assert (refusal.reference, refusal.context) == ("worktree-locked", "mine")
    with place.service.store.worktree_lock(made.worktree_id):
        with pytest.raises(Refusal) as raised:
            place.service.remove(made, force=True)
        assert raised.value.reference == "worktree-busy"
    place.service.remove(made, force=True)
    assert repository.leftovers(place) == []


def test_a_tree_that_resists_is_removed(place: Place) -> None:
    """Directories without permissions are what agents leave behind."""
    made = place.service.add(place.app, "T")
    deep = Path(made.path) / "a.log"
    deep.mkdir()
    (deep / "x.log").write_text("")
    deep.chmod(0)
    place.service.remove(made, force=True)
    assert not os.path.lexists(made.path)


def test_who_comes_while_files_are_removed_waits_for_nobody(place: Place) -> None:
    """Deleting a tree holds no repository: others are made beside it; at its own place nobody begins meanwhile."""
    seen: list[str] = []

    def step(what: str) -> None:
        if what == "files":
            seen.append(WorktreeService(place.state).add(place.app, "other").ticket)
            with pytest.raises(Refusal) as raised:
                WorktreeService(place.state).add(place.app, "T", Options(branch="again"))
            seen.append(raised.value.reference)

    made = place.service.add(place.app, "T")
    WorktreeService(place.state, step=step).remove(made)
    assert seen == ["other", "worktree-busy"]
    assert [row.ticket for row in place.service.of_repository(place.app)] == ["other"]
    assert place.service.add(place.app, "T").ticket == "T"
