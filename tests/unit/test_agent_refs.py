"""HEAD and branches of a git directory that an agent wrote, read without trust."""

import os
import tracemalloc
from collections import UserDict
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.vcs.git import Git
from launcher.vcs.harvest import agent_refs, further
from launcher.vcs.harvest.agent_refs import AgentRefs, plausible
from policy.errors import Refusal
from tests.support.ground import Ground

ONE, TWO, THREE = ("1" * 40, "2" * 40, "3" * 40)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A directory of ours with a git directory in it: one loose branch, and packed ones."""
    git = tmp_path / "git"
    (git / "refs/heads/deep").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/one\n")
    (git / "refs/heads/one").write_text(f"{ONE}\n")
    (git / "refs/heads/deep/er").write_text(f"{THREE}\n")
    (git / "packed-refs").write_text(
        f"# pack-refs with: peeled fully-peeled sorted \n{TWO} refs/heads/one\n{TWO} refs/heads/two\n"
        f"{ONE} refs/tags/v1\n^{TWO}\nnonsense refs/heads/three\n{TWO} refs/heads/../evil\n"
    )
    return git


def test_a_lock_is_no_ref(tree: Path) -> None:
    """What a killed git leaves beside a branch, or in `packed-refs` under such a name, is no branch and no tag."""
    (tree / "refs/heads/one.lock").write_text(f"{TWO}\n")
    (tree / "refs/tags").mkdir()
    (tree / "refs/tags/v1.lock").write_text(f"{TWO}\n")
    with (tree / "packed-refs").open("a") as file:
        file.write(f"{THREE} refs/heads/two.lock\n")
    with AgentRefs(str(tree), "", 40) as refs:
        assert not [name for name in refs.below("refs", whole=True) if name.endswith(".lock")]


def test_loose_wins_over_packed_and_nonsense_is_no_branch(tree: Path) -> None:
    """Branches by full name, wherever they are kept; what cannot be a branch is none."""
    with AgentRefs(str(tree), "", 40) as refs:
        assert refs.head() == ("refs/heads/one", ONE)
        assert refs.branch("refs/heads/two") == TWO
        assert refs.branch("refs/heads/three") is None
        assert refs.branch("refs/heads/tw") is None
        branches = {name: oid for name, oid in refs.below("refs/heads").items() if plausible(name)}
        assert branches == {"refs/heads/one": ONE, "refs/heads/deep/er": THREE, "refs/heads/two": TWO}
        assert refs.branch("refs/heads/two") == TWO


def test_an_id_is_read_as_git_reads_it(tree: Path) -> None:
    """In either case, and with anything behind a blank; what is read so is no reason to lose what it leads to."""
    upper = "ab" * 20
    (tree / "refs/heads/one").write_text(f"{upper.upper()} and more\n")
    (tree / "HEAD").write_text(upper.upper())
    with (tree / "packed-refs").open("a") as file:
        file.write(f"{upper.upper()} refs/heads/four\n{TWO}\trefs/heads/five\n")
    (tree / "logs/refs").mkdir(parents=True)
    (tree / "logs/refs/stash").write_text(f"{TWO} {upper.upper()} who\n")
    with AgentRefs(str(tree), "", 40) as refs:
        assert (refs.head(), refs.branch("refs/heads/one"), refs.stash()) == ((None, upper), upper, [upper])
        found = refs.below("refs", whole=True)
    assert (found["refs/heads/one"], found["refs/heads/four"], found["refs/heads/five"]) == (upper, upper, TWO)


def test_what_leads_nowhere_is_named_to_who_asks_for_everything(tree: Path) -> None:
    """A line that is no ref, a name that is there twice, symbolic refs in a circle: what they led to may be there."""
    with (tree / "packed-refs").open("a") as file:
        file.write(f"{ONE} refs/heads/two\n")
    for name, target in (("A_HEAD", "B_HEAD"), ("B_HEAD", "A_HEAD"), ("C_HEAD", "D_HEAD")):
        (tree / name).write_text(f"ref: {target}\n")
    (tree / "D_HEAD").write_text(f"{THREE}\n")
    (tree / "LINK").symlink_to("D_HEAD")
    (tree / "LONG").write_text(f"{THREE}\n" * 1000)
    for name in ("A_HEAD", "C_HEAD", "Z\0HEAD", "x" * 3000, "refs/heads/gone"):
        (tree / f"refs/heads/{name[:1]}").write_text(f"ref: {name}\n")
    with AgentRefs(str(tree), "", 40) as refs:
        found = refs.below("refs", whole=True)
        assert refs.pseudo() == {"D_HEAD": THREE}
    assert {name for name, oid in found.items() if not oid} == {
        "packed-refs", "refs/heads/A", "refs/heads/Z", "refs/heads/two", "refs/heads/x"
    }  # fmt: skip


def test_logs_without_end_are_refused(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One log may be that of thousands of linked worktrees: what is read of all of them is bounded."""
    monkeypatch.setattr(agent_refs, "MOST_PACKED", 1 << 16)
    (tree / "logs").mkdir()
    log = f"{TWO} {ONE} who <> 1 +0000\tcommit: one\n{ONE} {TWO} who <> 1 +0000\tcheckout: moving from {ONE} to main\n"
    (tree / "logs/HEAD").write_text(log.ljust(40_000) + "\n")
    with AgentRefs(str(tree), "", 40) as refs:
        assert refs.left(None) == {ONE: ONE}
        (tree / "worktrees/x/logs").mkdir(parents=True)
        (tree / "worktrees/x/logs/HEAD").hardlink_to(tree / "logs/HEAD")
        with pytest.raises(Refusal) as raised:
            refs.left(None)
    assert raised.value.reference == "harvest-refs-too-large"


@pytest.mark.parametrize(
    "name", ["refs/heads/x", "refs/heads/a/b", "refs/heads/ünï", "refs/heads/a.b", "refs/heads/x-y_z+1@home"]
)
def test_what_git_takes_for_a_branch_may_be_one(name: str) -> None:
    """Ordinary names, in any script."""
    assert plausible(name)


@pytest.mark.parametrize(
    "name",
    [
        "refs/heads/", "refs/tags/x", "refs/heads/../x", "refs/heads/a..b", "refs/heads/.x", "refs/heads/x.lock",
        "refs/heads/x/", "refs/heads//x", "refs/heads/x.", "refs/heads/-x", "refs/heads/a b", "refs/heads/a~1",
        "refs/heads/a^", "refs/heads/a:b", "refs/heads/a?", "refs/heads/*", "refs/heads/[a", "refs/heads/a\\b",
        "refs/heads/@{x", "refs/heads/\x1b[31m", "refs/heads/HEAD", "HEAD", "refs/heads/" + "x" * 1000,
        "refs/heads/a\udce9",
    ],
)  # fmt: skip
def test_what_git_refuses_or_no_terminal_shows_is_no_branch(name: str) -> None:
    """After git-check-ref-format(1), and no escape sequences."""
    assert not plausible(name)


def test_links_fifos_and_files_without_end_are_not_read(tree: Path, tmp_path: Path) -> None:
    """Each is refused at once, for it hides what was committed; a directory is none, and counts as absent."""
    secret = tmp_path / "secret"
    secret.write_text(f"{TWO}\n")
    (tree / "refs/heads/link").symlink_to(secret)
    (tree / "refs/heads/linked").symlink_to(tmp_path)
    os.mkfifo(tree / "refs/heads/fifo")
    with AgentRefs(str(tree), "", 40) as refs:
        for name in ("link", "linked/secret", "fifo", "../../../secret"):
            with pytest.raises(Refusal, match="cannot be read"):
                refs.branch(f"refs/heads/{name}")
        for name in ("deep", "one/deeper", "none"):
            assert refs.branch(f"refs/heads/{name}") is None
        assert set(filter(plausible, refs.below("refs/heads"))) == {
            "refs/heads/one",
            "refs/heads/deep/er",
            "refs/heads/two",
        }
    os.truncate(tree / "packed-refs", agent_refs.MOST_PACKED + 1)
    with AgentRefs(str(tree), "", 40) as refs:
        assert refs.branch("refs/heads/one") == ONE
        with pytest.raises(Refusal, match="too many refs"):
            refs.branch("refs/heads/two")
    (tree / "HEAD").unlink()
    (tree / "HEAD").symlink_to(secret)
    with AgentRefs(str(tree), "", 40) as refs, pytest.raises(Refusal, match="HEAD points nowhere"):
        refs.head()


@pytest.mark.parametrize("name", ["refs/tags/x", "refs/tags", "refs/heads/y/z", "refs", "packed-refs"])
@pytest.mark.parametrize("kind", ["fifo", "link", "mode"])
def test_whoever_asks_for_everything_hears_of_what_is_hidden(tree: Path, tmp_path: Path, name: str, kind: str) -> None:
    """Anything in the place of a ref, of a directory of refs or of packed ones may hide commits; a symref does not."""
    (tree / "refs/stash").write_text(f"{TWO}\n")
    (tree / "refs/remotes/origin").mkdir(parents=True)
    (tree / "refs/remotes/origin/HEAD").write_text("ref: refs/remotes/origin/main\n")
    with AgentRefs(str(tree), "", 40) as refs:
        found = refs.below("refs", whole=True)
        assert (found["refs/stash"], found["refs/heads/one"], found["refs/tags/v1"]) == (TWO, ONE, ONE)
        assert "refs/remotes/origin/HEAD" not in found
    path = tree / name
    path.parent.mkdir(exist_ok=True)
    if kind == "mode":
        if os.geteuid() == 0:  # whom no mode keeps out
            return
        if not path.exists():
            path.write_text(f"{TWO}\n")
        path.chmod(0)
    else:
        if path.exists():
            path.rename(tmp_path / "away")
        os.mkfifo(path) if kind == "fifo" else path.symlink_to(tmp_path)
    try:
        with AgentRefs(str(tree), "", 40) as refs, pytest.raises(Refusal, match="cannot be read"):
            refs.below("refs", whole=True)
    finally:
        if kind == "mode":
            path.chmod(0o700)


def test_a_directory_reached_through_a_link_is_refused(tree: Path, tmp_path: Path) -> None:
    """A private git directory, or a submodule's, that the agent replaced by a link is no private git directory."""
    (tree / "modules").mkdir()
    (tree / "modules/library").symlink_to(tmp_path)
    for directory, inside in ((str(tree), "modules/library"), (str(tree / "modules/library"), ""), (str(tree), "x")):
        with pytest.raises(Refusal, match="cannot be read"):
            AgentRefs(directory, inside, 40)
    (tree / "modules/real").mkdir()
    AgentRefs(str(tree), "modules/real", 40).__exit__()


def test_a_branch_that_was_made_or_moved_is_noticed_by_its_time(tree: Path) -> None:
    """The own branch does not count; any other, a tag, and packing, does."""
    with AgentRefs(str(tree), "", 40) as refs:
        latest = max(path.lstat().st_ctime_ns for path in tree.rglob("*"))
        assert not refs.changed_since(latest, "refs/heads/one")
        assert refs.changed_since(latest - 10**12, "refs/heads/one")
        deep = (tree / "refs/heads/deep/er").lstat().st_ctime_ns
        assert refs.changed_since(deep - 1, "refs/heads/one")
        (tree / "refs/tags/deep").mkdir(parents=True)
        assert not refs.changed_since(latest, "refs/heads/one")
        (tree / "refs/tags/deep/v2").write_text(f"{TWO}\n")
        os.utime(tree / "refs/tags/deep/v2", ns=(0, 0))
        made = (tree / "refs/tags/deep/v2").lstat().st_ctime_ns
        assert (refs.changed_since(made - 1, "refs/heads/one"), refs.changed_since(made, "refs/heads/one")) == (1, 0)


class _Counted(UserDict[str, str]):
    """Says how often it has been gone through."""

    times = 0

    def __iter__(self) -> Iterator[str]:
        self.times += 1
        return super().__iter__()


def test_thousands_of_names_are_not_compared_with_all_of_the_users(tmp_path: Path) -> None:
    """Where neither its own nor the worktree's name is free, a name is refused by a look-up; another one is taken."""
    git = Git(Ground(tmp_path / "repo", {"a": "a\n"}).root / ".git")
    names = further.Names(git)
    names.__dict__["refs"] = known = _Counted(dict.fromkeys(("refs/heads/x", "refs/heads/wt/x"), "0" * 40))
    assert names.place("refs/heads/x/first", "wt") == ""
    once = known.times
    assert not any(names.place(f"refs/heads/x/{number}", "wt") for number in range(100))
    assert known.times == once
    assert names.place("refs/heads/y", "wt") == "refs/heads/y"
    assert names.place("refs/heads/y/1", "wt") == "refs/heads/wt/y/1"
    assert names.place("refs/heads/y/1", "wt") == ""


def test_a_file_of_short_lines_takes_no_more_memory_than_its_size(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut up at once, `packed-refs` and the stash's log would take some fifteen times theirs."""
    size = 1 << 18
    monkeypatch.setattr(agent_refs, "MOST_PACKED", size)  # as much is asked for
    (tree / "packed-refs").write_bytes(b"ab\n" * (size // 3))
    (tree / "refs/stash").write_text(f"{ONE}\n")
    (tree / "logs/refs").mkdir(parents=True)
    (tree / "logs/refs/stash").write_bytes(f"{ONE} {ONE}\n".encode() * (size // 82))
    with AgentRefs(str(tree), "", 40) as refs:
        tracemalloc.start()
        try:
            assert (len(refs.below("refs/heads")), refs.stash()) == (2, [ONE])
            assert tracemalloc.get_traced_memory()[1] < 4 * size
        finally:
            tracemalloc.stop()


def _configured(root: Path, file: str, text: str) -> None:
    place = root / file
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text((place.read_text() if place.exists() else "") + text)


CONFIGURED = {
    "of the user": ("home/.gitconfig", '[remote "up"]\n\turl = /nowhere\n'),
    "where XDG says": ("xdg/git/config", '[remote "up"]\n\turl = /nowhere\n'),
    "by a variable": ("global", '[remote "up"]\n\turl = /nowhere\n'),
    "included": ("home/.gitconfig", "[include]\n\tpath = more\n"),
    "included elsewhere": ("home/.gitconfig", '[includeIf "gitdir:/elsewhere/"]\n\tpath = more\n'),
    "of another worktree": ("repo/.git/worktrees/other/config.worktree", '[remote "up"]\n\turl = /nowhere\n'),
    "of this worktree": ("repo/.git/config.worktree", '[remote "up"]\n\turl = /nowhere\n'),
    "without a url": ("repo/.git/config", '[remote "up"]\n\tfetch = +refs/heads/*:refs/remotes/x/*\n'),
    "of several parts": ("repo/.git/config", '[remote "up/next"]\n\turl = /nowhere\n'),
    "fetched elsewhere": ("repo/.git/config", '[remote "x"]\n\tfetch = +refs/heads/*:refs/remotes/up/*\n'),
    "of a branch": ("repo/.git/config", '[branch "main"]\n\tremote = up\n'),
    "to push to": ("repo/.git/config", "[remote]\n\tpushDefault = up\n"),
    "an old file": ("repo/.git/remotes/up", "URL: /nowhere\n"),
    "an older file": ("repo/.git/branches/up", "/nowhere\n"),
}


@pytest.mark.parametrize("where", CONFIGURED)
def test_no_branch_is_called_as_one_of_a_remote_will_be(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the user has named the remote, fetched or not; an ordinary name with a slash stays as it is."""
    git = Git(Ground(tmp_path / "repo", {"a": "a\n"}).root / ".git")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "global"))
    names = further.Names(git)
    assert names.place("refs/heads/up/next/x", "wt") == "refs/heads/up/next/x"
    _configured(tmp_path, "home/more", '[remote "up"]\n\turl = /nowhere\n')
    _configured(tmp_path, *CONFIGURED[where])
    names = further.Names(git)
    assert names.place("refs/heads/up/next/x", "wt") == "refs/heads/wt/up/next/x"
    assert names.place("refs/tags/up/next/v1", "wt") == "refs/tags/wt/up/next/v1"
    assert names.place("refs/heads/feature/x", "wt") == "refs/heads/feature/x"


def test_no_branch_is_called_as_one_of_a_remote_to_come_would_be(tmp_path: Path) -> None:
    """What ends as a branch of the user's does, behind any name, and what begins as remotes usually do."""
    ground = Ground(tmp_path / "repo", {"a": "a\n"})
    ground.git("update-ref", "refs/remotes/fork/their/topic", "HEAD")
    names = further.Names(Git(ground.root / ".git"))
    for name in ("new/main", "new/er/main", "new/their/topic", "origin/x", "upstream/x"):
        assert names.place(f"refs/heads/{name}", "wt") == f"refs/heads/wt/{name}"
    for name in ("new/topic", "new/main/x", "main-2/x"):
        assert names.place(f"refs/heads/{name}", "wt") == f"refs/heads/{name}"
