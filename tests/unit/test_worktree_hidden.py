"""Work of which `git status` says nothing: a removal names it, and keeps it when it is forced."""

import os
import shlex
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.safefs.remove import remove_tree
from launcher.vcs import jailed_git
from launcher.vcs.git import ERROR_TAIL, Completed
from launcher.vcs.worktrees.models import Worktree
from launcher.vcs.written import path_of
from policy.errors import Refusal
from policy.pasted import cited
from tests.support import repository
from tests.support.repository import ENV, Place, committed, git

FILES = {"deep/below/file": "x\n", "deep/beside": "y\n", ".gitignore": "ignored/\n"}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    found = repository.plain(tmp_path)
    committed(found.app, **FILES)
    return found


@pytest.fixture
def made(place: Place) -> Worktree:
    """A worktree whose index is too old for git to look at files again that seem to be as they were."""
    found = place.service.add(place.app, "T")
    time.sleep(1.1)  # its times have seconds
    git("read-tree", "HEAD", at=Path(found.path))
    git("update-index", "-q", "--refresh", at=Path(found.path))
    return found


def at_stake(place: Place, made: Worktree) -> str:
    """What a removal says that is not forced; nothing is gone."""
    with pytest.raises(Refusal) as raised:
        place.service.remove(made)
    assert raised.value.reference == "worktree-dirty"
    assert Path(made.path).exists()
    return raised.value.context


def in_a_repository(top: Path) -> None:
    """Commits something in a repository around files that the outer one has, or in place of it."""
    (top / ".git").unlink(missing_ok=True)
    git("init", "-q", at=top)
    committed(top, work="precious\n")
    (top / "work").unlink()


def below(name: str) -> Callable[[Path], None]:
    """Makes a file `work` in a directory."""

    def make(top: Path) -> None:
        (top / name).mkdir(parents=True)
        (top / name / "work").write_text("precious\n")

    return make


@pytest.mark.parametrize(
    ("inside", "make", "kept"),
    [
        ("deep", in_a_repository, "logs/HEAD"),
        ("", lambda top: in_a_repository(top), "logs/HEAD"),
        ("deep", below(".git"), "work"),
        ("in\n  hint: trusted", lambda top: in_a_repository_of_its_own(top / "in\n  hint: trusted"), "logs/HEAD"),
        ("deep", lambda top: (top / ".git").write_text("precious\n"), "."),
        ("new", below("new/.git"), "work"),
        ("new", lambda top: in_a_repository_of_its_own(top / "new"), "logs/HEAD"),
    ],
)
def test_what_git_takes_for_its_own_directory_is_at_stake(
    place: Place, made: Worktree, inside: str, make: Callable[[Path], object], kept: str
) -> None:
    """Git lists nothing below a `.git`, and no backup has it: it is moved, and what lies beside it is kept."""
    top = Path(made.path)
    make(top / inside if inside == "deep" else top)
    (top / "deep/below/file").write_text("changed\n")
    assert f"{cited(os.path.join(inside, '.git'))}, which no backup can hold" in at_stake(place, made)
    backups = place.service.remove(made, force=True).backups
    assert not top.exists()
    assert git("show", f"{backups[0][1]}:deep/below/file", at=place.app) == "changed"
    assert Path("/".join(backups[-1]), kept).read_text()


@pytest.mark.parametrize(
    ("words", "at", "kept"),
    [
        ("init -q --separate-git-dir {}/store {}/x", "x", "store"),
        ("init -q --bare {}/b.git", "", "b.git"),
        ("init -q --bare {}", "", "."),
        ("clone -q --bare app {}/b.git", "", "b.git"),
        ("-C elsewhere worktree add -q --detach {}/w", "w", "w/.git"),
    ],
)
def test_an_ignored_repository_has_work_wherever_its_git_directory_is(
    place: Place, made: Worktree, words: str, at: str, kept: str
) -> None:
    """Below a directory that is not called `.git`, in none at all, or in another repository."""
    ignored = Path(made.path, "ignored")
    ignored.mkdir()
    git("clone", "-q", str(place.app), "elsewhere", at=place.root)
    git(*words.replace("{}", str(ignored)).split(), at=place.root)
    if at:
        committed(ignored / at, work="precious\n")
    else:
        git("push", "-q", str(ignored / kept), "HEAD:refs/heads/other", at=place.root / "elsewhere")
    assert at_stake(place, made) == f"{os.path.normpath(f'ignored/{kept}')}, which no backup can hold"
    backups = place.service.remove(made, force=True).backups
    assert Path(*backups[-1]).exists()
    assert at == "w" or list(Path(*backups[-1]).rglob("refs/heads/*"))


def in_a_repository_of_its_own(top: Path) -> None:
    """Commits something in a repository that git lists as one directory."""
    top.mkdir()
    in_a_repository(top)


@pytest.mark.parametrize("name", ["deep/.GIT/work", ".GIT/work", "git~1/work", "new/.Git/work", "inner/a/.GIT/work"])
def test_a_name_that_git_does_not_take_is_not_removed(place: Place, made: Worktree, name: str) -> None:
    """Git passes over it where it records files; under another name it is kept like any other."""
    top = Path(made.path)
    if name.startswith("inner"):
        in_a_repository_of_its_own(top / "inner")
    work = top / name
    work.parent.mkdir(parents=True, exist_ok=True)
    work.write_text("precious\n")
    at_stake(place, made)
    with pytest.raises(Refusal) as raised:
        place.service.remove(made, force=True)
    assert (raised.value.reference, "no such name" in raised.value.context) == ("worktree-unreadable", True)
    assert "chmod" not in raised.value.hint
    assert work.read_text() == "precious\n"
    work.rename(top / "kept")
    while work.parent != top / "inner" and not any((work := work.parent).iterdir()):
        work.rmdir()
    backups = place.service.remove(made, force=True).backups
    assert git("show", f"{backups[0][1]}:kept", at=place.app) == "precious"


def test_many_repositories_are_named_in_a_line(place: Place, made: Worktree) -> None:
    """An agent can make as many as it likes."""
    for number in range(50):
        below(f"deep/d{number:02}/.git")(Path(made.path))
    said = at_stake(place, made)
    assert said.count("/.git") < 10
    assert "and 45 more" in said
    assert len(place.service.remove(made, force=True).backups) == 51


SETTINGS = {
    "core.trustCtime=false": ("deep/beside", "z\n"),
    "core.checkStat=minimal": ("deep/beside", "z\n"),
    "core.ignoreStat=true": ("deep/beside", "z\n"),
    "core.ignoreCase=true": ("deep/BESIDE", "z\n"),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_no_setting_of_the_users_lets_work_pass_for_none(place: Place, made: Worktree, setting: str) -> None:
    """Content of the same size with the time set back, a marked file, a name that differs by case alone."""
    name, content = SETTINGS[setting]
    for each in {"core.trustCtime=false", setting} if "Stat" in setting else {setting}:
        git("config", *each.split("="), at=place.app)
    if "ignoreStat" in setting:
        git("checkout", "-q", "HEAD", "--", ".", at=Path(made.path))
    assert place.service.status(made).at_stake() == []
    path = Path(made.path, name)
    before = os.stat(path) if path.exists() else None
    path.write_text(content)
    if before is not None:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert at_stake(place, made) in ("1 modified", "1 untracked")
    ((_, ref),) = place.service.remove(made, force=True).backups
    assert git("show", f"{ref}:{name}", at=place.app) == content.strip()


LONG = {"plain": "d" * 200, "two bytes": "é" * 100, "three bytes": "€" * 80, "lines": "a\n" * 100, "widest": "d" * 255,
        "at the edge": "d" * 203}  # fmt: skip
"""Names of directories."""


@pytest.mark.parametrize("name", LONG.values(), ids=LONG.keys())
@pytest.mark.parametrize("top", ["new", "ignored"])
def test_a_path_too_long_for_git_is_at_stake(place: Place, made: Worktree, name: str, top: str) -> None:
    """Of whatever characters, git cuts off its complaint by bytes. What is ignored stands in nobody's way."""
    work = Path(made.path, top)
    work.mkdir()
    here = os.open(work, os.O_RDONLY)
    for _ in range(4096 // len(os.fsencode(name)) + 1):
        os.mkdir(name, dir_fd=here)
        deeper = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(os.open("work", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)
    try:
        if top == "ignored":
            (ignored,) = place.service.status(made).ignored()
            assert ignored.startswith("at least ")
            (Path(made.path) / "deep/beside").write_text("changed\n")
            place.service.remove(made, force=True)
            assert not Path(made.path).exists()
            return
        said = at_stake(place, made)
        assert "File name too long" in said
        assert max(map(len, said.splitlines())) < 800
        with pytest.raises(Refusal) as raised:
            place.service.remove(made, force=True)
        assert raised.value.reference == "worktree-unreadable"
        assert "chmod" not in raised.value.hint
        assert work.exists()
    finally:
        remove_tree(str(made.path))  # shutil cannot


def test_an_ignored_repository_that_was_fetched_is_named_like_all_that_is_ignored(place: Place, made: Worktree) -> None:
    """It keeps no worktree from being removed: a package manager's cache may hold hundreds."""
    below("ignored/.git")(Path(made.path))
    git("clone", "-q", str(place.app), "ignored/clone", at=Path(made.path))
    git("checkout", "-q", "--detach", at=Path(made.path, "ignored/clone"))
    git("reset", "-q", "--hard", "HEAD~0", at=Path(made.path, "ignored/clone"))
    git("init", "-q", "ignored/empty", at=Path(made.path))
    git("clone", "-q", str(place.app), "ignored/clone2", at=Path(made.path))
    git("clone", "-q", "--bare", str(place.app), "ignored/bare.git", at=Path(made.path))
    git("clone", "-q", "--mirror", str(place.app), "ignored/mirror.git", at=Path(made.path))
    git("branch", "new", at=place.app)
    git("fetch", "-q", at=Path(made.path, "ignored/mirror.git"))
    assert Path(made.path, "ignored/mirror.git/refs/heads/new").exists()
    git("branch", "-q", "-m", "renamed", at=Path(made.path, "ignored/clone2"))
    committed(place.app, more="")
    git("fetch", "-q", at=Path(made.path, "ignored/clone2"))
    git("rebase", "-q", "origin/HEAD", at=Path(made.path, "ignored/clone2"))
    git("init", "-q", "--bare", "ignored/cache", at=Path(made.path))
    git("fetch", "-q", str(place.app), "+refs/heads/*:refs/remotes/origin/*", at=Path(made.path, "ignored/cache"))
    git("pack-refs", "--all", at=Path(made.path, "ignored/cache"))
    (said,) = place.service.status(made).ignored()
    assert said.endswith(": ignored/")
    place.service.remove(made)
    assert not Path(made.path).exists()


@pytest.mark.parametrize("work", ["commit", "commit in a clone", "stash", "commit in a submodule"])
def test_an_ignored_repository_with_work_is_at_stake(place: Place, made: Worktree, work: str) -> None:
    """Nobody else has what was committed there: it is named, and moved as it is."""
    there = Path(made.path, "ignored/lib")
    there.mkdir(parents=True)
    if work == "commit":
        in_a_repository(there)
    elif work == "commit in a submodule":
        git("init", "-q", at=there)
        (there / ".git/modules").mkdir()
        git("init", "-q", "--separate-git-dir=.git/modules/inner", "inner", at=there)
        committed(there / "inner", work="precious\n")
    else:
        git("clone", "-q", str(place.app), ".", at=there)
        if work == "stash":
            (there / "deep/beside").write_text("changed\n")
            git("stash", "-q", at=there)
        else:
            committed(there, work="precious\n")
    assert at_stake(place, made) == "ignored/lib/.git, which no backup can hold"
    *_, (where, name) = place.service.remove(made, force=True).backups
    assert not Path(made.path).exists()
    assert any(Path(where, name).rglob("logs/HEAD"))


@pytest.mark.parametrize("worktree", ["inside", "outside", "gone"])
def test_an_ignored_bare_repository_has_what_its_worktrees_had(place: Place, made: Worktree, worktree: str) -> None:
    """Its own git directory keeps their logs; without any it has nothing that was not fetched."""
    store = Path(made.path, "ignored/b.git")
    tree = (place.root if worktree == "outside" else store.parent) / "w"
    git("clone", "-q", "--bare", str(place.app), str(store), at=place.root)
    git("worktree", "add", "-q", "--detach", str(tree), at=store)
    assert worktree != "outside" or place.service.status(made).at_stake() == []
    committed(tree, work="precious\n")
    oid = git("rev-parse", "HEAD", at=tree)
    if worktree == "gone":
        remove_tree(str(tree))
    assert "ignored/b.git, which no backup can hold" in at_stake(place, made)
    kept = [Path(*each) for each in place.service.remove(made, force=True).backups]
    (now,) = (path for path in kept if path.is_dir())
    assert git("cat-file", "-t", oid, at=now) == "commit"


@pytest.mark.parametrize("at", ["b.git", "new/b.git", "deep/b.git"])
def test_a_new_bare_repository_is_kept_as_it_is(place: Place, made: Worktree, at: str) -> None:
    """In a backup it would be none: git stores no empty directory. A fixture that git has is files like all others."""
    fixture, there = Path(made.path, "fixture.git"), Path(made.path, at)
    git("init", "-q", "--bare", str(fixture), at=place.root)
    (fixture / "objects/x").touch()
    git("add", "fixture.git", at=Path(made.path))
    git("commit", "-q", "-m", "fixture", at=Path(made.path))
    (fixture / "objects/new").touch()
    there.parent.mkdir(exist_ok=True)
    git("clone", "-q", "--bare", str(place.app), str(there), at=place.root)
    git("gc", "-q", at=there)
    assert at_stake(place, made).splitlines() == ["2 untracked", f"{at}, which no backup can hold"]
    kept = [Path(*each) for each in place.service.remove(made, force=True).backups]
    (now,) = (path for path in kept if path.is_dir())
    assert git("log", "-1", "--format=%s", at=now)


@pytest.mark.parametrize("written", [True, False], ids=["by agents", "by its user"])
def test_a_repository_that_borrows_from_one_that_goes_is_made_whole_first(
    place: Place, made: Worktree, written: bool
) -> None:
    """Kept without the other one's objects it would be broken; what is said to do about it does. In a jail, unless it
    would be read-only there.
    """
    ignored = Path(made.path, "ignored")
    if written:
        Path(path_of(place.state)).write_bytes(os.fsencode(f"{made.path}\0"))
        Path(path_of(place.state)).chmod(0o600)
    git("clone", "-q", "--mirror", str(place.app), str(ignored / "cache.git"), at=place.root)
    git("clone", "-q", "--shared", str(ignored / "cache.git"), str(ignored / "lib"), at=place.root)
    assert place.service.status(made).at_stake() == []
    committed(ignored / "lib", work="precious\n")
    assert at_stake(place, made) == "ignored/lib/.git, which no backup can hold"
    with pytest.raises(Refusal) as raised:
        place.service.remove(made, force=True)
    assert raised.value.reference == "worktree-obstructed"
    said = raised.value.hint.partition(": ")[2]
    words = shlex.split(said) if written else ["paddock", "run", "--worktree", made.path, "--", "sh", "-c", said]
    assert words[:5] == ["paddock", "run", "--worktree", made.path, "--"]
    (ignored / "lib/.git/modules/x/objects/info").mkdir(parents=True)
    (ignored / "lib/.git/modules/x/HEAD").touch()
    (ignored / "lib/.git/modules/x/objects/info/alternates").write_bytes(b"\0\n\n/" + b"a/" * 30_000)
    subprocess.run(words[5:], check=True, env=ENV)
    *_, kept = place.service.remove(made, force=True).backups
    assert git("--git-dir", str(Path(*kept)), "fsck", at=place.root) == ""


@pytest.mark.parametrize("inside", ["ignored/tree", "tree"])
@pytest.mark.parametrize("of", ["app", "outer"])
def test_another_worktree_inside_is_not_removed(tmp_path: Path, inside: str, of: str) -> None:
    """Git knows it, and has it where this one goes: not even a forced removal takes its files; moved, it is safe."""
    place = repository.nested(tmp_path)
    committed(place.app, **{".gitignore": "ignored/\n"})
    made = place.service.add(place.app, "T")
    owner = Path(made.path, "lib/outer" if of == "outer" else "")
    tree = Path(made.path, inside)
    git("worktree", "add", "-q", "--detach", str(tree), at=owner)
    (tree / "new").write_text("precious\n")
    said = f"another git worktree: {cited(inside)}"
    assert said in place.service.status(made).at_stake()
    for force in (False, True):
        with pytest.raises(Refusal) as raised:
            place.service.remove(made, force=force)
        assert (raised.value.reference, raised.value.context) == ("worktree-obstructed", said)
        assert (tree / "new").exists()
    _, _, move = raised.value.hint.partition(": git ")
    git(*shlex.split(move.removesuffix("DIR")), str(tmp_path / "moved"), at=place.app)
    place.service.remove(made)
    assert not Path(made.path).exists()
    assert git("status", "--porcelain", at=tmp_path / "moved") == "?? new"


def test_complaints_that_push_others_out_count_for_them() -> None:
    """Of what git says only the end is kept."""
    assert jailed_git.unread(Completed(0, b"", b"warning: harmless\n" * 100)) == ""
    assert jailed_git.unread(Completed(0, b"", (b"warning: harmless\n" * ERROR_TAIL)[-ERROR_TAIL:])) != ""
