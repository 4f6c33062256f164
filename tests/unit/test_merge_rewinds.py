"""Submodules that a child would take back, and commits in them that it has left behind."""

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from launcher.vcs import history
from launcher.vcs.merge import sessions, work
from launcher.vcs.merge.descriptors import MergeDescriptor
from launcher.vcs.merge.into_children import all_of
from launcher.vcs.merge.preview import preview
from policy.handoff import Patterns
from tests.support.ground import ENVIRONMENT, last, statuses
from tests.support.repository import Nested, changed, link, modules


@pytest.fixture
def nested(tmp_path: Path) -> Nested:
    """A repository with submodules two levels deep."""
    return Nested.copied(tmp_path)


def test_going_back_is_taken_only_where_the_submodule_is_named(nested: Nested) -> None:
    """A pointer that one side took back, untouched on the other: nothing moves, unless the user says that it may."""
    first = nested.lib.id("HEAD")
    newer = nested.lib.commit("newer", {"l": changed(1)}, parents=[first])
    nested.main.commit("main", {"lib": link(newer)})
    nested.main.git("reset", "-q", "--hard")
    nested.lib.git("checkout", "-q", newer)
    nested.main.branch("one", {"lib": link(first)})
    nested.child("two", main=changed(3))
    target, sources = nested.main.target(), [nested.main.source("one")]
    assert not preview(target, sources, Patterns(())).clean
    assert preview(target, sources, Patterns(()), rewind=["lib"]).clean
    before = nested.heads()
    descriptor = last(nested.main.merge("one"))
    assert (descriptor.conflict_files, statuses(descriptor)) == (("lib",), {"doc": "up_to_date", "lib": "conflicted"})
    assert f"lib would go back to {first[:12]}" in (descriptor.error_message or "")
    assert "--rewind lib" in (descriptor.hint or "")
    assert nested.heads() == before
    settings = nested.main.settings()._replace(rewind=frozenset({"lib"}))
    run = nested.main.merge("two", "one", settings=settings)
    assert last(run).successful
    assert nested.main.id("HEAD:lib") == first
    assert nested.lib.id("HEAD") == first


class Way(NamedTuple):
    """A child whose `.gitmodules` does not name `lib` as the trunk does, and the places where it has it."""

    text: str | None
    at: str = "lib"
    decoy: str = ""


_LIB = modules(lib="lib", doc="doc")
_WAYS = {
    "removed": Way(None),
    "renamed": Way(modules(other="lib", doc="doc")),
    "slash": Way(modules(lib="lib/", doc="doc")),
    "second path": Way(_LIB.replace("path = lib\n", "path = lib\n\tpath = other\n")),
    "moved and renamed": Way(modules(other="libs/lib", doc="doc"), "libs/lib"),
    "moved and removed": Way(modules(doc="doc"), "libs/lib"),
    "decoy": Way(modules(lib="decoy", doc="doc"), decoy="decoy"),
    "another's name": Way(modules(doc="lib")),
}


@pytest.mark.parametrize(
    ("name", "populated"),
    [*((name, True) for name in _WAYS), *((name, False) for name in ("removed", "moved and renamed"))],
)
def test_going_back_is_seen_whatever_the_child_calls_the_submodule(nested: Nested, name: str, populated: bool) -> None:
    """By its place and by its history: nothing moves; on the way forward it is merged, and its checkout follows."""
    way = _WAYS[name]
    first = nested.lib.id("HEAD")
    newer = nested.lib.commit("newer", {"l": changed(1)}, parents=[first])
    newest = nested.lib.commit("newest", {"l": changed(2)}, parents=[newer])
    aside = nested.lib.commit("aside", {"l": changed(9)}, parents=[first])
    nested.main.commit("main", {"lib": link(newer)})
    nested.main.git("reset", "-q", "--hard")
    if populated:
        nested.lib.git("checkout", "-q", newer)
    else:
        nested.main.git("submodule", "--quiet", "deinit", "-f", "lib")
    for child, commit in (("back", first), ("aside", aside), ("on", newest)):
        tree = {way.at: link(commit)} | ({".gitmodules": way.text} if way.text is not None else {})
        gone = [*([".gitmodules"] if way.text is None else []), *(["lib"] if way.at != "lib" else [])]
        nested.main.branch(child, tree | ({way.decoy: link(newer)} if way.decoy else {}), remove=gone)
    before = nested.main.id("HEAD"), nested.main.status()
    for child in ("back", *(["aside"] if name == "removed" else [])):
        descriptor = last(nested.main.merge(child))
        assert not descriptor.successful
        assert "submodule lib would go" in (descriptor.error_message or "")
        assert "--rewind lib" in (descriptor.hint or "")
        assert (nested.main.id("HEAD"), nested.main.status()) == before
        assert preview(nested.main.target(), [nested.main.source(child)], Patterns(()), rewind=["lib"]).clean
    assert last(nested.main.merge("on")).successful
    assert nested.main.id(f"HEAD:{way.at}") == newest
    if populated and way.at == "lib" and not way.decoy and "doc = lib" not in (way.text or ""):
        assert nested.lib.id("HEAD") == newest


@pytest.mark.parametrize("named", [True, False], ids=["renamed before", "unnamed before"])
def test_a_name_that_went_in_an_earlier_merge_helps_nobody(nested: Nested, named: bool) -> None:
    """The trunk itself calls it otherwise by then, or nothing."""
    first = nested.lib.id("HEAD")
    newer = nested.lib.commit("newer", {"l": changed(1)}, parents=[first])
    nested.lib.git("checkout", "-q", newer)
    nested.main.commit("main", {"lib": link(newer)})
    nested.main.git("reset", "-q", "--hard")
    nested.main.branch("one", {".gitmodules": modules(doc="doc", **({"other": "lib"} if named else {}))})
    assert last(nested.main.merge("one")).successful
    nested.main.branch("two", {"lib": link(first)})
    nested.main.branch("three", {"lib": link("b" * 40)})
    before = nested.heads()
    assert last(nested.main.merge("two")).conflict_files == ("lib",)
    if not named:
        assert "cannot be told" in (last(nested.main.merge("three")).error_message or "")
    assert nested.heads() == before


def test_a_submodule_that_git_is_told_to_ignore_is_no_less_seen(nested: Nested) -> None:
    """`ignore = all`, which an earlier merge brought: git's own comparisons leave such a submodule out."""
    first = nested.lib.id("HEAD")
    newer = nested.lib.commit("newer", {"l": changed(1)}, parents=[first])
    nested.lib.git("checkout", "-q", newer)
    nested.main.branch("one", {"lib": link(newer), ".gitmodules": _LIB.replace("path", "ignore = all\n\tpath")})
    old = nested.main.id("HEAD")
    assert last(nested.main.merge("one")).successful
    brought = history.read(f"{nested.main.root}/.git", old, nested.main.id("HEAD"))
    assert brought is not None
    assert [change.path for change in brought.files] == [".gitmodules", "lib"]
    nested.main.branch("two", {"lib": link(first)})
    assert last(nested.main.merge("two")).conflict_files == ("lib",)
    target, sources = nested.main.target(), [nested.main.source("two")]
    assert not preview(target, sources, Patterns(())).clean
    assert preview(target, sources, Patterns(()), rewind=["lib"]).clean


def test_submodules_that_change_places_go_nowhere(nested: Nested) -> None:
    """Each is where the other was, under its own name; and one makes room for a new one of another history."""
    lib, doc, new = nested.lib.id("HEAD"), nested.doc.id("HEAD"), nested.main.id("HEAD")
    nested.main.branch("one", {".gitmodules": modules(lib="doc", doc="lib"), "lib": link(doc), "doc": link(lib)})
    assert last(nested.main.merge("one")).successful
    nested.main.branch("two", {".gitmodules": modules(lib="doc", new="new"), "new": link(new)}, remove=["lib"])
    assert last(nested.main.merge("two")).successful
    assert nested.main.id("HEAD:new") == new


def test_going_on_from_a_commit_that_nobody_has_is_asked_about(nested: Nested) -> None:
    """Whether a submodule leaves commits behind cannot be told without the one that the trunk records."""
    missing, first = "a" * 40, nested.lib.id("HEAD")
    newer = nested.lib.commit("newer", {"l": changed(1)}, parents=[first])
    nested.main.commit("main", {"lib": link(missing)})
    nested.main.git("reset", "-q", "--hard")
    nested.main.branch("one", {"lib": link(newer)})
    before = nested.heads()
    descriptor = last(nested.main.merge("one"))
    assert descriptor.conflict_files == ("lib",)
    assert f"{missing[:12]} is not in any repository of it here" in (descriptor.error_message or "")
    assert f"git -C lib fetch origin {missing}" in (descriptor.hint or "")
    assert nested.heads() == before
    settings = nested.main.settings()._replace(rewind=frozenset({"lib"}))
    assert last(nested.main.merge("one", settings=settings)).successful
    assert nested.main.id("HEAD:lib") == newer


def pasted(hint: str, worktree: Path) -> None:
    """Does what a hint says in a worktree; files in conflict are resolved to what its trunk has."""
    commands = hint.partition(": ")[2].partition(", resolve")[0].partition("; git commit -a; then")[0]
    script = f"{commands}; git checkout -q --theirs m; git commit -qam Mended"
    ended = subprocess.run(["sh", "-c", script], cwd=worktree, env=ENVIRONMENT, capture_output=True, check=False)
    assert ended.returncode == 0, (script, ended.stdout, ended.stderr)


@pytest.mark.parametrize(
    ("where", "own", "lost"), [("lib", True, False), ("lib", False, True), ("lib/inner", True, True)]
)
def test_a_trunk_merged_beside_submodules_takes_none_of_them_back(
    nested: Nested, where: str, own: bool, lost: bool
) -> None:
    """`git merge` and `commit -a` in a child record its old submodules: refused; what the hints say helps, pasted."""
    root, target = nested.main.root.parent / "two", nested.main.target()
    nested.main.git("worktree", "add", "-q", "-b", "two", str(root), "main")
    nested.populate(root)
    if own:
        (root / where / {"lib": "l", "lib/inner": "i"}[where]).write_text(changed(18))
    (root / "m").write_text("conflict\n")
    for path in ("lib/inner", "lib", ""):
        nested.main.run("commit", "-q", "-a", "-m", "two", at=root / path, check=not path)  # or there is nothing
    nested.child("one", lib=changed(1), inner=changed(1), main=changed(5))
    nested.main.merge("one")
    before = nested.heads()

    def merged() -> MergeDescriptor:
        run = work.merge(nested.main.target, all_of(target), nested.main.settings(), target.common_dir)
        return last(run)

    found = merged()
    assert found.conflict_files == ("m",)
    if lost:
        nested.main.run("merge", "-q", nested.main.id("main"), at=root, check=False)
        nested.main.git("checkout", "-q", "--theirs", "m", at=root)
        nested.main.git("commit", "-q", "-a", "-m", "Resolved.", at=root)
        assert not preview(nested.main.target(), all_of(target), Patterns(())).clean
        found = merged()
        assert (found.conflict_files, "--rewind lib" in (found.hint or "")) == (("lib",), True)
        assert nested.heads() == before
    pasted(found.hint or "", root)
    assert merged().successful
    assert [nested.read(path) for path in ("lib/l", "lib/inner/i")] == [
        changed(1, 18) if own and where == place else changed(1) for place in ("lib", "lib/inner")
    ]
    assert nested.read("m") == changed(5)
    assert nested.status() == []


def test_a_submodules_commits_that_the_child_does_not_record_are_told(nested: Nested) -> None:
    """A merge of the child brings none of them; the command that is named does, and then there is nothing to tell."""
    root, target, state = nested.main.root.parent / "one", nested.main.target(), nested.main.settings().state
    nested.main.git("worktree", "add", "-q", "-b", "one", str(root), "main")
    nested.populate(root)
    assert sessions.warnings(all_of(target)[0], state) == []
    (root / "lib/l").write_text(changed(1))
    nested.main.git("commit", "-q", "-a", "-m", "one", at=root / "lib")
    (said,) = sessions.warnings(all_of(target)[0], state)
    assert "submodule lib has 1 commit not merged, because one does not record them" in said
    command = said.partition("to record them: ")[2].removesuffix("; then merge again")
    subprocess.run(["sh", "-c", command], cwd=nested.main.root, env=ENVIRONMENT, check=True, capture_output=True)
    assert sessions.warnings(all_of(target)[0], state) == []
    work.merge(nested.main.target, all_of(target), nested.main.settings(), target.common_dir)
    assert nested.read("lib/l") == changed(1)


def test_a_commit_that_only_the_childs_store_has_is_told(nested: Nested) -> None:
    """Where the main checkout has none of the submodule's, the trunk names what nobody can fetch."""
    root, target, state = nested.main.root.parent / "one", nested.main.target(), nested.main.settings().state
    shutil.rmtree(nested.main.root / ".git/modules/lib/modules")
    shutil.rmtree(nested.main.root / "lib/inner")
    nested.main.git("worktree", "add", "-q", "-b", "one", str(root), "main")
    nested.populate(root)
    assert sessions.warnings(all_of(target)[0], state) == []
    (root / "lib/inner/i").write_text(changed(1))
    for at in ("lib/inner", "lib", ""):
        nested.main.git("commit", "-q", "-a", "-m", "one", at=root / at)
    (said,) = sessions.warnings(all_of(target)[0], state)
    assert said.startswith("submodule lib/inner is recorded at a commit that only this worktree has")
    push = said.partition(" fetch it: ")[2].replace("NAME", "one")
    subprocess.run(["sh", "-c", push], cwd=nested.main.root, env=ENVIRONMENT, check=True, capture_output=True)
    assert sessions.warnings(all_of(target)[0], state) == []
