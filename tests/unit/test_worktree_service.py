"""Worktrees for agents: where they are made, what is in them, and what is known of them."""

import os
from pathlib import Path

import pytest

from launcher.vcs import checkout
from launcher.vcs.disk import Present
from launcher.vcs.worktrees.models import Options, State
from launcher.vcs.worktrees.store import root_of
from launcher.vcs.worktrees.worktree_service import WorktreeService
from policy.errors import Refusal
from tests.support import repository
from tests.support.repository import Place, committed, git


@pytest.fixture
def plain(tmp_path: Path) -> Place:
    return repository.plain(tmp_path)


@pytest.fixture
def nested(tmp_path: Path) -> Place:
    return repository.nested(tmp_path)


@pytest.mark.spec("FR-006", "US7.1")
def test_a_worktree_is_made_beside_its_parent_on_a_branch_of_its_own(plain: Place) -> None:
    """A sibling directory, the branch of the ticket, the parent's commit, and git is content with it."""
    made = plain.service.add(plain.app, "PROJ-17: login")
    assert made.path == str(plain.root / "app-PROJ-17-login")
    root = Path(made.path)
    assert (root / "file").read_text() == "one\n"
    assert git("status", "--porcelain", "--branch", at=root) == "## agent/PROJ-17-login"
    assert git("rev-parse", "HEAD", at=root) == git("rev-parse", "main", at=plain.app) == made.main.base
    assert git("worktree", "list", "--porcelain", at=plain.app).count("worktree ") == 2
    assert "locked" not in git("worktree", "list", "--porcelain", at=plain.app)
    assert git("fsck", "--strict", at=root) == ""
    assert git("reflog", at=root).count("HEAD@{0}") == 1
    assert sorted(path.name for path in plain.root.iterdir()) == ["app", "app-PROJ-17-login", "state"]


@pytest.mark.spec("FR-006")
def test_a_second_ticket_from_a_tickets_worktree_lies_beside_both(plain: Place) -> None:
    """FR-006: siblings, also when the parent is itself a linked worktree; its commit is the start."""
    first = plain.service.add(plain.app, "one")
    committed(Path(first.path), more="more\n")
    second = plain.service.add(Path(first.path), "two")
    assert second.path == str(plain.root / "app-two")
    assert second.parent_worktree_id == first.worktree_id
    assert (Path(second.path) / "more").exists()


@pytest.mark.spec("MF-005", "MF-006", "MF-007", "MF-008")
def test_submodules_are_worktrees_too_nested_ones_and_offline(nested: Place) -> None:
    """MF-005 to MF-008: each has files, a branch and an id; the context names them all."""
    made = nested.service.add(nested.app, "T-1")
    root = Path(made.path)
    assert [part.name for part in made.submodules] == ["outer", "outer/deep/inner"]
    assert (root / "lib/outer/file").read_text() == "up-outer\n"
    assert (root / "lib/outer/deep/inner/file").read_text() == "up-inner\n"
    for place in (root, root / "lib/outer", root / "lib/outer/deep/inner"):
        assert git("status", "--porcelain", "--branch", at=place) == "## agent/T-1"
    assert "-" not in {line[0] for line in git("submodule", "status", "--recursive", at=root).splitlines()}
    assert git("submodule", "update", "--recursive", at=root) == ""
    context = made.context()
    assert context.main_worktree.submodule_worktree_ids == tuple(part.worktree_id for part in made.submodules)
    assert {submodule.main_worktree_id for submodule in context.submodule_worktrees} == {made.worktree_id}
    assert context.parent_worktree_id == made.parent_worktree_id


def test_a_launch_finds_the_submodules_of_a_made_worktree(nested: Place) -> None:
    """What `paddock run` reads from the disk is what the service made."""
    made = nested.service.add(nested.app, "T-1")
    found = checkout.find(made.path, Present(), exact=True)
    assert [(s.name, s.path, s.git_dir) for s in found.submodules] == [
        (part.name, os.fspath(part.path), os.fspath(part.git_dir)) for part in made.submodules
    ]


def test_commits_in_a_submodule_stay_when_the_worktree_goes(nested: Place) -> None:
    """Its objects and its branch are in the store that all worktrees share."""
    made = nested.service.add(nested.app, "T-1")
    inner = Path(made.path) / "lib/outer/deep/inner"
    committed(inner, more="more\n")
    oid = git("rev-parse", "HEAD", at=inner)
    committed(Path(made.path) / "lib/outer", x="")
    committed(Path(made.path), x="")
    removed = nested.service.remove(made)
    assert removed.backups == []
    assert not Path(made.path).exists()
    store = nested.app / ".git/modules/outer/modules/deep/inner"
    assert git("rev-parse", "agent/T-1", at=store) == oid
    assert not (store / "worktrees").exists()


def test_a_submodule_that_is_not_granted_stays_empty(nested: Place) -> None:
    """Its directory is there, as git leaves it, and the context says that it is not granted."""
    made = nested.service.add(nested.app, "T-1", Options(submodules=()))
    assert list((Path(made.path) / "lib/outer").iterdir()) == []
    context = made.context()
    assert context.submodule_worktrees == ()
    assert [left.submodule_name for left in context.ungranted_submodules] == ["outer", "outer/deep/inner"]
    assert git("status", "--porcelain", at=Path(made.path)) == ""


def test_a_submodule_that_was_never_fetched_is_left_out_or_refused(nested: Place) -> None:
    """Without being named it is left empty, with the reason; named, it is a Refusal, and nothing is left behind."""
    (nested.app / ".git/modules/outer/modules").rename(nested.root / "away")
    made = nested.service.add(nested.app, "T-1")
    assert [part.name for part in made.submodules] == ["outer"]
    assert "never fetched" in made.unpopulated[0].why
    with pytest.raises(Refusal) as raised:
        nested.service.add(nested.app, "T-2", Options(submodules=("outer", "outer/deep/inner")))
    assert raised.value.reference == "submodule-unavailable"
    assert not (nested.root / "app-T-2").exists()


def test_a_submodule_name_that_leads_elsewhere_is_not_followed(nested: Place) -> None:
    """CVE-2018-11235: `..` in a name would make a store out of any directory."""
    text = (nested.app / ".gitmodules").read_text()
    (nested.app / ".gitmodules").write_text(text.replace('"outer"', '"../../gone-up-outer/.git"'))
    git("commit", "-q", "-a", "-m", "Bad.", at=nested.app)
    made = nested.service.add(nested.app, "T-1")
    assert made.submodules == ()
    assert "points elsewhere" in made.unpopulated[0].why


def test_an_existing_branch_is_never_started_anew(plain: Place) -> None:
    """Its commits may be an earlier agent's: it is gone on with only when it is named."""
    git("branch", "agent/T-1", at=plain.app)
    git("checkout", "-q", "agent/T-1", at=plain.app)
    committed(plain.app, work="work\n")
    with pytest.raises(Refusal) as raised:
        plain.service.add(plain.app, "T-1")
    assert raised.value.reference == "branch-exists"
    with pytest.raises(Refusal) as raised:
        plain.service.add(plain.app, "T-1", Options(branch="agent/T-1"))
    assert raised.value.reference == "branch-in-use"
    git("checkout", "-q", "main", at=plain.app)
    made = plain.service.add(plain.app, "T-1", Options(branch="agent/T-1"))
    assert (Path(made.path) / "work").exists()
    plain.service.remove(made)
    assert "agent/T-1" in plain.branches


def test_a_start_can_be_named(plain: Place) -> None:
    """Any commit; what is none is refused, an option in disguise too."""
    first = git("rev-parse", "HEAD", at=plain.app)
    committed(plain.app, later="")
    made = plain.service.add(plain.app, "T-1", Options(start="HEAD~1"))
    assert made.main.base == first
    for start in ("nothing", "--all", ""):
        with pytest.raises(Refusal) as raised:
            plain.service.add(plain.app, "T-2", Options(start=start))
        assert raised.value.reference == "commit-unknown"


def test_a_start_is_never_a_tag_that_is_called_as_a_branch_is(plain: Place) -> None:
    """A name of several refs is refused, also with what follows it, unless all are one commit; in full each can be."""
    first = git("rev-parse", "HEAD", at=plain.app)
    git("branch", "both", at=plain.app)
    git("tag", "both", at=plain.app)
    assert plain.service.add(plain.app, "T-1", Options(start="both")).main.base == first
    committed(plain.app, later="")
    git("tag", "--force", "both", at=plain.app)
    git("branch", "--force", "both", first, at=plain.app)
    for start in ("both", "both~0", "both^{}", "both@{0}"):
        with pytest.raises(Refusal) as raised:
            plain.service.add(plain.app, "T-2", Options(start=start))
        assert raised.value.reference == "ref-ambiguous"
    assert plain.service.add(plain.app, "T-2", Options(start="refs/heads/both")).main.base == first
    git("tag", "agent/T-3", at=plain.app)
    with pytest.raises(Refusal) as raised:
        plain.service.add(plain.app, "T-3", Options())
    assert raised.value.reference == "ref-ambiguous"
    assert "refs/heads/agent/T-3" not in git("for-each-ref", "--format=%(refname)", at=plain.app).split()


def test_a_start_is_never_a_branch_that_is_called_as_a_commit_is(plain: Place) -> None:
    """What git-describe(1) prints, or the beginning of an id: refused where a branch of that name is another commit."""
    first = git("rev-parse", "HEAD", at=plain.app)
    git("tag", "v1.0", at=plain.app)
    committed(plain.app, later="")
    second = git("rev-parse", "HEAD", at=plain.app)
    for number, word in enumerate((git("describe", "--tags", at=plain.app), second[:9].upper(), "rev-gBEEFBEEF")):
        git("branch", word, first, at=plain.app)
        if word.endswith("BEEF"):  # the beginning of no commit's id
            assert plain.service.add(plain.app, f"T-{number}", Options(start=word)).main.base == first
            continue
        for start in (word, f"{word}^0"):
            with pytest.raises(Refusal) as raised:
                plain.service.add(plain.app, f"T-{number}", Options(start=start))
            assert raised.value.reference == "ref-ambiguous"
        git("branch", "--force", word, second, at=plain.app)
        assert plain.service.add(plain.app, f"T-{number}", Options(start=word)).main.base == second


def test_places_and_names_that_cannot_be_are_refused(plain: Place) -> None:
    """Nothing is overwritten, nothing lies inside the parent, and no name is made up."""
    (plain.root / "taken").mkdir()
    for options, reference in (
        (Options(path=str(plain.root / "taken")), "worktree-exists"),
        (Options(path=str(plain.app / "inside")), "worktree-place"),
        (Options(path=str(plain.root / "no/where")), "worktree-place"),
        (Options(branch="a..b"), "branch-name"),
        (Options(branch="-x"), "branch-name"),
        (Options(submodules=("none",)), "submodule-unknown"),
        (Options(copy=("../x",)), "copy-pattern"),
    ):
        with pytest.raises(Refusal) as raised:
            plain.service.add(plain.app, "T-1", options)
        assert raised.value.reference == reference
    with pytest.raises(Refusal, match="no name can be derived"):
        plain.service.add(plain.app, "///")
    assert plain.branches == {"main"}
    assert not (plain.app / ".git/worktrees").exists()


@pytest.mark.parametrize("directory", ["nosuch", "README", "a/../nosuch", "a\nb", "/", "../app"])
def test_a_sparse_checkout_of_what_is_not_there_is_refused(plain: Place, directory: str) -> None:
    """Git itself would check out nothing in its place, and say nothing."""
    with pytest.raises(Refusal, match="there is no directory") as caught:
        plain.service.add(plain.app, "one", Options(sparse=(directory,)))
    assert caught.value.reference == "directory-unknown"
    assert plain.branches == {"main"}


def test_a_sparse_checkout_is_asked_for_or_inherited(plain: Place) -> None:
    """Only the named directories are written; a child of such a worktree is the same."""
    for name in ("a", "b"):
        (plain.app / name).mkdir()
        committed(plain.app, **{f"{name}/file": ""})
    first = plain.service.add(plain.app, "one", Options(sparse=("a",)))
    second = plain.service.add(Path(first.path), "two")
    third = plain.service.add(plain.app, "three")
    for made, names in ((first, {"a"}), (second, {"a"}), (third, {"a", "b"})):
        assert {path.name for path in Path(made.path).iterdir() if path.is_dir()} == names
        assert git("status", "--porcelain", at=Path(made.path)) == ""


def test_untracked_files_are_copied_by_pattern_and_no_link_is_followed(plain: Place) -> None:
    """What matches, with its mode; a link to a secret, a directory behind a link and a hard link do not."""
    secret = plain.root / "secret"
    secret.mkdir()
    (secret / "x.env").write_text("secret")
    (plain.app / ".env").write_text("A=1")
    (plain.app / ".env").chmod(0o600)
    (plain.app / "conf").mkdir()
    (plain.app / "conf/local.env").write_text("B=2")
    (plain.app / "conf/link.env").symlink_to(secret / "x.env")
    os.link(secret / "x.env", plain.app / "conf/hard.env")
    (plain.app / "away").symlink_to(secret)
    (plain.app / "file").write_text("changed")
    made = plain.service.add(plain.app, "T", Options(copy=(".env", "*/*.env", "file")))
    root = Path(made.path)
    assert (root / ".env").read_text() == "A=1"
    assert (root / ".env").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in (root / "conf").iterdir()] == ["local.env"]
    assert not (root / "away").exists()
    assert (root / "file").read_text() == "one\n"


def test_no_hook_and_no_filter_runs(plain: Place) -> None:
    """A post-checkout hook and a smudge filter stay silent; `filters` lets the filter run."""
    mark = plain.root / "mark"
    program = plain.root / "program"
    program.write_text(f"#!/bin/sh\n: > {mark}\ncat\n")
    program.chmod(0o755)
    for name in ("post-checkout", "post-index-change", "reference-transaction"):
        (plain.app / ".git/hooks").mkdir(exist_ok=True)
        os.symlink(program, plain.app / ".git/hooks" / name)
    git("config", "filter.f.smudge", str(program), at=plain.app)
    (plain.app / ".git/info").mkdir(exist_ok=True)
    (plain.app / ".git/info/attributes").write_text("file filter=f\n")
    plain.service.add(plain.app, "one")
    assert not mark.exists()
    plain.service.add(plain.app, "two", Options(filters=("f",)))
    assert mark.exists()


def test_worktrees_are_found_by_what_people_call_them(plain: Place) -> None:
    """By ticket, branch, id or directory; what is unknown is refused with the known ones."""
    made = plain.service.add(plain.app, "T-1")
    for name in ("T-1", "agent/T-1", made.worktree_id, made.path):
        assert plain.service.find(plain.app, name) == made
    with pytest.raises(Refusal) as raised:
        plain.service.find(plain.app, "T-2")
    assert raised.value.context == "known: T-1"
    assert plain.service.everywhere() == [made]


def test_a_directory_that_is_no_text_is_found_by_its_name(plain: Place) -> None:
    """Its ticket is kept with the undecodable bytes escaped; no newline of one gets into a list of them."""
    for branch, name in (("one", "w\udcff"), ("two", "a\nhint: b")):
        git("worktree", "add", "-q", "-b", branch, f"../{name}", at=plain.app)
        plain.service.adopt(plain.root / name)
    rows = plain.service.of_repository(plain.app)
    for name in ("w\udcff", "w\\xff"):
        assert plain.service.find(plain.app, name).main.branch == "one"
        assert root_of(name, rows) == str(plain.root / "w\udcff")
    with pytest.raises(Refusal) as raised:
        plain.service.find(plain.app, "none")
    assert raised.value.context == r"known: a\nhint: b, w\xff"


def test_a_worktree_of_git_is_adopted(plain: Place) -> None:
    """It is known from then on; its branch is not ours to delete. A main checkout is refused."""
    git("worktree", "add", "-q", "-b", "mine", "../mine", at=plain.app)
    adopted = plain.service.adopt(plain.root / "mine", "T-9")
    assert adopted.adopted
    assert plain.service.find(plain.app, "T-9").main.branch == "mine"
    with pytest.raises(Refusal) as raised:
        plain.service.adopt(plain.root / "mine")
    assert raised.value.reference == "worktree-exists"
    with pytest.raises(Refusal) as raised:
        plain.service.adopt(plain.app)
    assert raised.value.reference == "adopt-main"
    plain.service.remove(adopted)
    assert "mine" in plain.branches
    assert not (plain.root / "mine").exists()


def test_unsupported_repositories_are_refused(plain: Place) -> None:
    """A partial clone would need the network in the middle; a repository without a commit has nothing to start from."""
    git("config", "remote.origin.promisor", "true", at=plain.app)
    with pytest.raises(Refusal) as raised:
        plain.service.add(plain.app, "T-1")
    assert raised.value.reference == "git-unsupported"
    empty = plain.root / "empty"
    empty.mkdir()
    git("init", "-q", at=empty)
    with pytest.raises(Refusal) as raised:
        plain.service.add(empty, "T-1")
    assert (raised.value.reference, raised.value.message) == ("commit-unknown", f"{empty}/.git has no commits yet")


def test_the_state_of_a_new_worktree_is_ready(plain: Place) -> None:
    """And its context survives the store."""
    made = plain.service.add(plain.app, "T-1")
    again = WorktreeService(str(plain.root / "state")).find(plain.app, "T-1")
    assert again.state is State.READY
    assert again.context() == made.context()
