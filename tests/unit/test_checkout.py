"""Which worktree holds a directory: what git made is found, what somebody planted is refused."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.session.machine import Machine
from launcher.vcs import checkout
from policy.errors import Refusal

CLEAN = {"PATH": os.environ.get("PATH", os.defpath), "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}


def git(*words: str, at: Path) -> None:
    options = ("-c", "protocol.file.allow=always", "-c", "user.name=T", "-c", "user.email=t@example.invalid")
    subprocess.run(["git", *options, *words], cwd=at, check=True, capture_output=True, env=CLEAN)


def made(path: Path) -> Path:
    path.mkdir()
    git("init", "-q", "-b", "main", at=path)
    git("commit", "-q", "--allow-empty", "-m", "First.", at=path)
    return path


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`main` with the linked worktree `linked`; both hold `library`, and in it `inner`."""
    place = Path(os.path.realpath(tmp_path_factory.mktemp("checkout")))
    inner, library, main = made(place / "upstream-inner"), made(place / "upstream"), made(place / "main")
    git("submodule", "--quiet", "add", "../upstream-inner", "inner", at=library)
    git("commit", "-q", "-m", "Inner.", at=library)
    git("submodule", "--quiet", "add", "../upstream", "library", at=main)
    git("commit", "-q", "-m", "Library.", at=main)
    git("submodule", "--quiet", "update", "--init", "--recursive", at=main)
    git("worktree", "add", "-q", "-b", "linked", "../linked", at=main)
    git("submodule", "--quiet", "update", "--init", "--recursive", at=place / "linked")
    assert inner.exists()
    return place


@pytest.fixture
def place(template: Path, tmp_path: Path) -> Path:
    """The template's trees, to be damaged; git's absolute pointers are made to fit."""
    copy = Path(os.path.realpath(tmp_path)) / "copy"
    shutil.copytree(template, copy, symlinks=True)
    for path in copy.rglob("*"):
        if path.name in (".git", "gitdir", "config") and path.is_file() and not path.is_symlink():
            path.write_text(path.read_text().replace(str(template), str(copy)))
    return copy


def find(start: Path, *, exact: bool = False) -> checkout.Checkout:
    return checkout.find(str(start), Machine({"HOME": "/nonexistent"}), exact=exact)


def submodules(root: Path) -> dict[str, str]:
    """Path relative to the root -> name."""
    return {os.path.relpath(sub.path, root): sub.name for sub in find(root).submodules}


def refused(start: Path, *, exact: bool = False) -> str:
    with pytest.raises(Refusal) as caught:
        find(start, exact=exact)
    return caught.value.reference


def test_a_main_checkout(place: Path) -> None:
    """Its git directory lies inside, and is its common directory."""
    found = find(place / "main")
    assert found.kind == "main"
    assert found.root == str(place / "main")
    assert found.git_dir == found.common_dir == str(place / "main/.git")


def test_a_linked_worktree(place: Path) -> None:
    """Its git directory lies in the main repository, which is its common directory."""
    found = find(place / "linked")
    assert found.kind == "linked"
    assert found.git_dir == str(place / "main/.git/worktrees/linked")
    assert found.common_dir == str(place / "main/.git")


def test_a_submodule_by_itself(place: Path) -> None:
    """A populated submodule is a worktree of its own."""
    found = find(place / "main/library")
    assert found.kind == "submodule"
    assert found.git_dir == str(place / "main/.git/modules/library")


@pytest.mark.parametrize("root", ["main", "linked"])
def test_submodules_two_levels_deep_are_found(place: Path, root: str) -> None:
    """With their git directories, the outer one first."""
    found = find(place / root)
    base = Path(found.git_dir, "modules/library")
    assert [(os.path.relpath(sub.path, found.root), sub.git_dir) for sub in found.submodules] == [
        ("library", str(base)),
        ("library/inner", str(base / "modules/inner")),
    ]


def test_a_directory_below_leads_to_its_root(place: Path) -> None:
    """The nearest worktree wins, and `--worktree` takes roots alone."""
    below = place / "linked/a/b"
    below.mkdir(parents=True)
    assert find(below).root == str(place / "linked")
    assert refused(below, exact=True) == "not-a-worktree"
    assert find(place / "linked", exact=True).root == str(place / "linked")


def test_a_link_to_a_worktree_is_that_worktree(place: Path) -> None:
    """The root is canonical."""
    (place / "short").symlink_to("linked")
    assert find(place / "short").root == str(place / "linked")


def test_a_moved_worktree_is_refused_until_git_repaired_it(place: Path) -> None:
    """The repository does not point back at the new place; `git worktree repair` mends that."""
    (place / "linked").rename(place / "moved")
    assert refused(place / "moved") == "git-pointer-invalid"
    git("worktree", "repair", str(place / "moved"), at=place / "main")
    assert find(place / "moved").kind == "linked"


def test_a_worktree_that_git_moved_is_found(place: Path) -> None:
    """`git worktree move` keeps both pointers right (it takes no worktree with submodules)."""
    git("worktree", "add", "-q", "-b", "plain", "../plain", at=place / "main")
    git("worktree", "move", "../plain", "../elsewhere", at=place / "main")
    assert find(place / "elsewhere").kind == "linked"


def test_a_bare_repository_is_no_worktree(place: Path) -> None:
    """Neither is a git directory as such; from below it, the checkout that holds it is found."""
    git("init", "-q", "--bare", "bare", at=place)
    assert refused(place / "bare") == "bare-repository"
    assert refused(place / "main/.git", exact=True) == "bare-repository"
    assert find(place / "main/.git").root == str(place / "main")


def test_what_is_no_worktree_is_refused(place: Path) -> None:
    """Missing, a file, a dangling link, a loop, a directory outside of any repository."""
    (place / "file").touch()
    (place / "dangling").symlink_to("nowhere")
    (place / "loop").symlink_to("loop")
    assert refused(place / "missing") == "worktree-missing"
    assert refused(place / "file") == "worktree-not-directory"
    assert refused(place / "dangling") == "worktree-missing"
    assert refused(place / "loop") == "worktree-missing"
    assert refused(place) == "not-a-worktree"


def pointer(content: bytes) -> Callable[[Path], object]:
    return lambda root: (root / ".git").write_bytes(content)


def instead(act: Callable[[Path], object]) -> Callable[[Path], object]:
    """Removes `.git`, then acts on its path."""

    def change(root: Path) -> None:
        (root / ".git").unlink()
        act(root / ".git")

    return change


def planted_inside(root: Path) -> None:
    """A git directory of the agent's own, in the worktree."""
    git("init", "-q", "--bare", "hidden", at=root)
    (root / ".git").write_text(f"gitdir: {root}/hidden\n")


def planted_inside_by_link(root: Path) -> None:
    planted_inside(root)
    (root.parent / "detour").symlink_to(root / "hidden")
    (root / ".git").write_text("gitdir: ../detour\n")


def other_repository(root: Path) -> None:
    other = made(root.parent / "other")
    git("worktree", "add", "-q", "-b", "x", "../of-other", at=other)
    (root / ".git").write_text(f"gitdir: {other}/.git/worktrees/of-other\n")


def other_main(root: Path) -> None:
    (root / ".git").write_text(f"gitdir: {made(root.parent / 'other')}/.git\n")


def keys(root: Path) -> None:
    (root.parent / "home/.ssh").mkdir(parents=True)
    (root.parent / "home/.ssh/id").touch()
    (root / ".git").write_text(f"gitdir: {root.parent}/home/.ssh\n")


def sibling(root: Path) -> None:
    git("worktree", "add", "-q", "-b", "sibling", "../sibling", at=root.parent / "main")
    shutil.copy(root.parent / "sibling/.git", root / ".git")


def forged_back_pointer(root: Path) -> None:
    """A worktree directory with a back pointer, but not in the `worktrees` of the repository it names."""
    forged = root.parent / "forged/worktrees/linked"
    forged.mkdir(parents=True)
    for name, text in (("gitdir", f"{root}/.git\n"), ("commondir", f"{root.parent}/main/.git\n"), ("HEAD", "x\n")):
        (forged / name).write_text(text)
    (root / ".git").write_text(f"gitdir: {forged}\n")


def steps(*acts: Callable[[], object]) -> None:
    """One after the other."""
    for act in acts:
        act()


HOSTILE: dict[str, Callable[[Path], object]] = {
    "into the worktree": planted_inside,
    "into the worktree through a link": planted_inside_by_link,
    "the worktree itself": pointer(b"gitdir: .\n"),
    "itself": pointer(b"gitdir: .git\n"),
    "at keys": keys,
    "at another repository": other_main,
    "at a worktree of another repository": other_repository,
    "at a sibling": sibling,
    "at the root directory": pointer(b"gitdir: /\n"),
    "nowhere": pointer(b"gitdir: /nonexistent/x\n"),
    "at nothing": pointer(b"gitdir: \n"),
    "with a forged back pointer": forged_back_pointer,
    "empty": pointer(b""),
    "other words": pointer(b"gitfile: ../main/.git/worktrees/linked\n"),
    "huge": lambda root: (root / ".git").write_bytes(b"gitdir: " + b"x" * (1 << 20)),
    "over-long": pointer(b"gitdir: " + b"x/" * 3000 + b"\n"),
    "a NUL": pointer(b"gitdir: ../main\0/.git\n"),
    "two lines": pointer(b"gitdir: ../main/.git/worktrees/linked\nx\n"),
    "a newline in the name": pointer(b"gitdir: ../new\nline\n"),
    "a link to a file": instead(lambda path: steps(path.with_name("p").touch, lambda: path.symlink_to("p"))),
    "a link to the right directory": instead(lambda path: path.symlink_to("../main/.git/worktrees/linked")),
    "a link loop": instead(lambda path: path.symlink_to(".git")),
    "a FIFO": instead(lambda path: os.mkfifo(path)),
    "an empty directory": instead(lambda path: path.mkdir()),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_pointer_that_does_not_lead_to_its_own_repository_is_refused(place: Path, what: str) -> None:
    """Whoever may write `.git` cannot choose which directory becomes readable as git's."""
    HOSTILE[what](place / "linked")
    assert refused(place / "linked") == "git-pointer-invalid"


def test_a_pointer_through_a_link_in_the_worktree_is_refused(place: Path) -> None:
    """It leads to its own repository until the link is turned. A link beside the worktree is the user's."""
    (place / "short").symlink_to("main")
    (place / "linked/.git").write_text("gitdir: ../short/.git/worktrees/linked\n")
    assert find(place / "linked").git_dir == str(place / "main/.git/worktrees/linked")
    (place / "linked/ln").symlink_to("../main/.git")
    for way in ("ln/worktrees", f"{place}/linked/ln/worktrees", "ln/../.git/worktrees"):
        (place / "linked/.git").write_text(f"gitdir: {way}/linked\n")
        assert refused(place / "linked") == "git-pointer-invalid"


def test_a_newline_in_a_real_name_is_no_obstacle(place: Path) -> None:
    """git writes the name as it is, and it is read as it is."""
    git("worktree", "add", "-q", "-b", "odd", "../odd\nname", at=place / "main")
    assert find(place / "odd\nname").kind == "linked"


HIDING: dict[str, Callable[[Path], object]] = {
    "removed": lambda root: (root / ".gitmodules").unlink(),
    "empty": lambda root: (root / ".gitmodules").write_text(""),
    "garbage": lambda root: (root / ".gitmodules").write_bytes(b"\0\xff[submodule\n" * 100),
    "huge": lambda root: (root / ".gitmodules").write_bytes(b"#" * (2 << 20)),
    "a FIFO": lambda root: steps((root / ".gitmodules").unlink, lambda: os.mkfifo(root / ".gitmodules")),
    "a directory": lambda root: steps((root / ".gitmodules").unlink, (root / ".gitmodules").mkdir),
    "a link out": lambda root: steps(
        (root / ".gitmodules").unlink,
        lambda: (root / ".gitmodules").symlink_to("/etc/passwd"),
    ),
    "another path": lambda root: (root / ".gitmodules").write_text('[submodule "library"]\n\tpath = elsewhere\n'),
    "a path that goes up": lambda root: (root / ".gitmodules").write_text('[submodule "library"]\n\tpath = ../..\n'),
    "an absolute path": lambda root: (root / ".gitmodules").write_text('[submodule "library"]\n\tpath = /etc\n'),
    "the root": lambda root: (root / ".gitmodules").write_text('[submodule "library"]\n\tpath = .\n'),
    "a path through a link": lambda root: steps(
        lambda: (root / "through").symlink_to("/etc"),
        lambda: (root / ".gitmodules").write_text('[submodule "library"]\n\tpath = through/ssl\n'),
    ),
    "twice": lambda root: (root / ".gitmodules").write_text('[submodule "library"]\n\tpath = library\n' * 2),
    "the pointer removed": lambda root: (root / "library/.git").unlink(),
    "the pointer forged": lambda root: (root / "library/.git").write_text("gitdir: ../inner\n"),
}


@pytest.mark.parametrize("root", ["main", "linked"])
@pytest.mark.parametrize("what", HIDING)
def test_a_populated_submodule_cannot_be_hidden(place: Path, root: str, what: str) -> None:
    """The repository's own record finds it, whatever an agent wrote into the worktree; nothing else is believed."""
    HIDING[what](place / root)
    assert submodules(place / root) == {"library": "library", "library/inner": "library/inner"}


def test_a_submodule_with_its_git_directory_inside_is_found(place: Path) -> None:
    """As old versions of git made it, and `git init` in a subdirectory still does; it needs `.gitmodules`."""
    made(place / "main/old")
    with (place / "main/.gitmodules").open("a") as file:
        file.write('[submodule "old"]\n\tpath = old\n')
    assert submodules(place / "main")["old"] == "old"


def test_an_unpopulated_submodule_is_none(place: Path) -> None:
    """A name in `.gitmodules` without a checkout grants nothing and hides nothing."""
    git("submodule", "--quiet", "deinit", "-f", "library", at=place / "main")
    shutil.rmtree(place / "main/library")
    assert submodules(place / "main") == {}


def test_a_removed_checkout_whose_place_became_a_link_is_none(place: Path) -> None:
    """A link in the place of the submodule does not carry the record somewhere else."""
    (place / "main/library").rename(place / "aside")
    (place / "main/library").symlink_to(place / "aside")
    assert submodules(place / "main") == {}


def test_the_name_of_a_submodule_may_hold_slashes(place: Path) -> None:
    """Its git directory then lies deeper."""
    git("submodule", "--quiet", "add", "--name", "group/part", "../upstream-inner", "parts/one", at=place / "main")
    assert submodules(place / "main")["parts/one"] == "group/part"


def test_every_answer_becomes_an_input(place: Path) -> None:
    """What was looked at on the way is recorded, so that a cached plan notices its change."""
    machine = Machine({"HOME": "/nonexistent"})
    checkout.find(str(place / "linked"), machine, exact=False)
    subjects = {subject for _, subject, _ in machine.recorded()}
    own = place / "main/.git/worktrees/linked"
    for path in (place / "linked/.git", own / "gitdir", own / "commondir", own / "modules/library/config"):
        assert str(path) in subjects
    assert str(place / "linked/.gitmodules") in subjects
