"""Merging with submodules: both sides' work arrives, from the innermost outwards, or nothing does."""

from pathlib import Path

import pytest

from launcher.vcs.git import GitFailed
from launcher.vcs.merge import work
from launcher.vcs.merge.descriptors import SubmoduleStatus
from launcher.vcs.merge.into_children import all_of
from launcher.vcs.merge.object_store import Store
from policy.errors import Refusal
from tests.support.ground import Ground, last, statuses
from tests.support.repository import LINES, Nested, changed, link, modules


@pytest.fixture
def nested(tmp_path: Path) -> Nested:
    """A repository with submodules two levels deep."""
    return Nested.copied(tmp_path)


@pytest.mark.spec("MF-023", "SM-MF-003")
def test_work_on_both_sides_of_every_level_is_merged(nested: Nested) -> None:
    """Where git itself would stop, both children's lines stand in every submodule, and all is checked out. Moves and
    results go from the inside out (SM-MF-003).
    """
    nested.child("one", lib=changed(1), inner=changed(1), doc=changed(1), main=changed(1))
    nested.child("two", lib=changed(18), inner=changed(18), doc=changed(18), main=changed(18))
    run = nested.main.merge("one", "two")
    assert statuses(last(run)) == {"doc": "merged", "lib/inner": "merged", "lib": "merged"}
    assert [move.name for move in run.moves] == ["lib/inner", "lib", "doc", ""]
    assert [result.submodule_name for result in last(run).submodule_merge_results] == ["doc", "lib/inner", "lib"]
    for path in ("m", "lib/l", "lib/inner/i", "doc/d"):
        assert nested.read(path) == changed(1, 18), path
    assert nested.status() == []
    # Every merged commit has both sides as parents, and the pointers lead to them.
    for ground in (nested.main, nested.lib, nested.inner, nested.doc):
        assert len(ground.git("rev-list", "--parents", "-1", "HEAD").split()) == 3
        assert ground.id(f"refs/paddock/merge/{run.run_id}/new") == ground.id("HEAD")
    assert nested.main.id("HEAD:lib") == nested.lib.id("HEAD")
    assert nested.lib.id("HEAD:inner") == nested.inner.id("HEAD")


@pytest.mark.spec("EC-MF-001", "MF-025")
def test_a_submodule_conflict_leaves_everything_untouched(nested: Nested) -> None:
    """Conflicting work deep inside: no ref, no file, nowhere; what merged before it is told as undone (EC-MF-001)."""
    nested.child("one", doc=changed(1), inner=changed(5))
    nested.child("two", doc=changed(18), inner="conflict\n")
    nested.main.merge("one")
    before = nested.heads()
    run = nested.main.merge("two")
    descriptor = last(run)
    assert not descriptor.successful
    assert descriptor.conflict_files == ("lib/inner/i",)
    assert descriptor.main_worktree_merge_result is None
    assert statuses(descriptor) == {"doc": "rolled_back", "lib/inner": "conflicted", "lib": "conflicted"}
    assert not any(result.pointer_updated for result in descriptor.submodule_merge_results)
    assert nested.heads() == before
    assert nested.status() == []


@pytest.mark.spec("EC-MF-001")
def test_a_main_conflict_undoes_the_submodules(nested: Nested) -> None:
    """Submodules that merged cleanly are reported as such, and undone with the rest (EC-MF-001)."""
    nested.child("one", lib=changed(1), main=changed(5))
    nested.child("two", lib=changed(18), main="conflict\n")
    nested.main.merge("one")
    before = nested.heads()
    descriptor = last(nested.main.merge("two"))
    assert descriptor.conflict_files == ("m",)
    assert statuses(descriptor)["lib"] == "rolled_back"
    part = next(each for each in descriptor.submodule_merge_results if each.submodule_name == "lib")
    assert part.merge_result is not None
    assert part.merge_result.successful
    assert nested.heads() == before


@pytest.mark.spec("EC-MF-002", "MF-024")
def test_a_pointer_that_cannot_be_set_is_told(nested: Nested, monkeypatch: pytest.MonkeyPatch) -> None:
    """The submodule's merge succeeds, the parent's tree cannot be written: that is no success (EC-MF-002)."""

    def fail(*_: object) -> str:
        raise GitFailed("git-failed", ["update-index"], "x", "the disk is full", status=128)

    nested.child("one", lib=changed(1))
    nested.child("two", lib=changed(18))
    nested.main.merge("one")
    before = nested.heads()
    monkeypatch.setattr(Store, "with_gitlinks", fail)
    descriptor = last(nested.main.merge("two"))
    assert statuses(descriptor)["lib"] == "pointer_not_updated"
    assert not descriptor.successful
    assert "pointers" in (descriptor.error_message or "")
    assert nested.heads() == before


@pytest.mark.spec("EC-MF-005")
def test_an_added_submodule_comes_with_its_parent(nested: Nested, tmp_path: Path) -> None:
    """It has its own status and a note how to check it out (EC-MF-005)."""
    extra = Ground(tmp_path / "extra-up", {"e": "e\n"})
    nested.child("one", lib=changed(1))
    nested.main.branch(
        "two", {".gitmodules": modules(lib="lib", doc="doc", extra="extra"), "extra": link(extra.id("main"))}
    )
    run = nested.main.merge("one", "two")
    assert statuses(last(run))["extra"] == "added"
    assert "submodule extra is new" in run.note
    assert nested.main.id("HEAD:extra") == extra.id("main")
    nested.populate(nested.main.root)
    assert nested.read("extra/e") == "e\n"


def test_a_note_is_one_line_whatever_a_name_holds(nested: Nested) -> None:
    """Names are the agent's, and could look like further notes."""
    odd = {"odd; undo: it": "odd", "new": r"new\nline"}
    links = {"odd": link(nested.doc.id("HEAD")), "new\nline": link(nested.doc.id("HEAD"))}
    nested.main.branch("one", {".gitmodules": modules(lib="lib", doc="doc", **odd), **links})
    second, first = sorted(nested.main.merge("one").note.splitlines())
    assert first.startswith("submodule new is new: git submodule update --init -- $'new\\012line'")
    assert second.startswith("submodule 'odd;\\x20undo:\\x20it' is new: git ")


def test_a_removed_submodule_goes_with_its_pointer(nested: Nested) -> None:
    """The pointer is gone; the checkout, which may hold other work, stays as an untracked directory."""
    nested.main.branch("one", {".gitmodules": modules(lib="lib")}, remove=["doc"])
    nested.child("two", lib=changed(1))
    run = nested.main.merge("two", "one")
    assert statuses(last(run))["doc"] == "removed"
    assert nested.main.id("HEAD:doc") == ""
    assert nested.read("doc/d") == LINES
    assert nested.main.status() == ["?? doc/"]


def test_a_submodule_removed_here_and_changed_there_conflicts(nested: Nested) -> None:
    """One side removed what the other changed: git is right to ask."""
    nested.main.branch("one", {".gitmodules": modules(lib="lib")}, remove=["doc"])
    nested.child("two", doc=changed(1))
    before = nested.heads()
    descriptor = last(nested.main.merge("two", "one"))
    assert "doc" in descriptor.conflict_files
    assert nested.heads()["doc"] != before["doc"]  # "two" alone has arrived


def test_a_moved_submodule_with_work_on_both_sides(nested: Nested) -> None:
    """Submodules are followed by name: moved and changed here, changed there, it is merged at the new place."""
    nested.child("one", lib=changed(1))
    commit = nested.lib.branch("two", {"l": changed(18)}, start=nested.lib.id("HEAD"))
    nested.main.branch(
        "two", {".gitmodules": modules(lib="libs/lib", doc="doc"), "libs/lib": link(commit)}, remove=["lib"]
    )
    run = nested.main.merge("one", "two")
    merged = nested.main.id("HEAD:libs/lib")
    assert (nested.main.id("HEAD:lib"), "has moved to libs/lib" in run.note) == ("", True)
    assert nested.lib.git("show", f"{merged}:l") + "\n" == changed(1, 18)


def test_a_renamed_submodule_is_another_one(nested: Nested) -> None:
    """Under a new name it is a submodule of its own: added there, removed here."""
    nested.main.branch("one", {".gitmodules": modules(lib="lib", manual="doc")})
    nested.child("two", lib=changed(1))
    descriptor = last(nested.main.merge("two", "one"))
    assert descriptor.successful
    assert statuses(descriptor) == {"doc": "removed", "lib": "up_to_date", "manual": "added"}


def test_going_back_on_one_side_and_on_at_the_other_conflicts(nested: Nested) -> None:
    """As git says: the submodule may have rewinds."""
    first = nested.lib.id("HEAD")
    newer = nested.lib.commit("newer", {"l": changed(1)}, parents=[first])
    other = nested.lib.commit("other", {"l": changed(9)}, parents=[first])
    nested.main.commit("main", {"lib": link(newer)})
    nested.main.git("reset", "-q", "--hard")
    nested.lib.git("checkout", "-q", newer)
    nested.main.branch("one", {"lib": link(other)})
    newest = nested.lib.commit("newest", {"l": changed(1, 2)}, parents=[newer])
    nested.main.branch("two", {"lib": link(newest)})
    descriptor = last(nested.main.merge("two", "one"))
    assert descriptor.conflict_files == ("lib",)
    part = next(each for each in descriptor.submodule_merge_results if each.submodule_name == "lib")
    assert part.status is SubmoduleStatus.CONFLICTED


def test_commits_are_fetched_from_the_childs_own_store(nested: Nested, tmp_path: Path) -> None:
    """git gives each linked worktree stores of its own: what was committed there reaches the trunk's, offline."""
    for number, name in ((1, "one"), (18, "two")):
        root = tmp_path / name
        nested.main.git("worktree", "add", "-q", "-b", name, str(root), "main")
        nested.populate(root)
        for path in ("lib/inner", "lib"):
            nested.main.git("config", "user.name", "T", at=root / path)
            nested.main.git("config", "user.email", "t@example.invalid", at=root / path)
        (root / "lib/inner/i").write_text(changed(number))
        (root / "lib/l").write_text(changed(number))
        for path in ("lib/inner", "lib", ""):
            nested.main.git("commit", "-q", "-a", "-m", name, at=root / path)
    commit = nested.main.git("rev-parse", "HEAD", at=tmp_path / "one/lib/inner")
    assert nested.inner.id(f"{commit}^{{commit}}") == ""
    target = nested.main.target()
    run = work.merge(nested.main.target, all_of(target), nested.main.settings(), target.common_dir)
    assert last(run).successful, last(run)
    assert nested.read("lib/inner/i") == changed(1, 18)
    assert nested.read("lib/l") == changed(1, 18)
    assert nested.status() == []


def test_a_commit_that_nobody_has_is_told(nested: Nested) -> None:
    """Work on both sides of a submodule needs the commits: which one is missing is said, and nothing moves."""
    nested.child("one", lib=changed(1))
    nested.main.branch("two", {"lib": link("1" * 40)})
    nested.main.merge("one")
    before = nested.heads()
    descriptor = last(nested.main.merge("two"))
    assert "111111111111 is in no repository" in (descriptor.error_message or "")
    assert nested.heads() == before


def test_a_submodule_checked_out_elsewhere_is_refused(nested: Nested) -> None:
    """The user's own place in a submodule is not left for another; where the merge does not need it, it stays."""
    mine = nested.lib.commit("mine", {"l": changed(9)}, parents=[nested.lib.id("HEAD")])
    nested.lib.git("checkout", "-q", mine)
    nested.child("one", main=changed(1))
    nested.main.merge("one")
    assert nested.lib.id("HEAD") == mine
    nested.lib.git("checkout", "-q", nested.main.id("HEAD:lib"))
    nested.child("two", lib=changed(1))
    nested.lib.git("checkout", "-q", mine)
    before = nested.heads()
    with pytest.raises(Refusal, match="not checked out at the commit"):
        nested.main.merge("two")
    assert nested.heads() == before


def test_edits_in_a_submodule_are_refused_where_they_overlap(nested: Nested) -> None:
    """Uncommitted work in a submodule is treated as in the main worktree: unrelated stays, overlapping refuses."""
    nested.child("one", lib=changed(1))
    (nested.main.root / "lib/untracked").write_text("mine\n")
    (nested.main.root / "doc/d").write_text("edited\n")
    nested.main.merge("one")
    assert nested.read("doc/d") == "edited\n"
    assert nested.read("lib/l") == changed(1)
    nested.child("two", lib=changed(1, 18))
    (nested.main.root / "lib/l").write_text("edited\n")
    before = nested.heads()
    with pytest.raises(Refusal, match="in the way"):
        nested.main.merge("two")
    assert nested.heads() == before
    assert nested.read("lib/l") == "edited\n"


def test_a_branch_in_the_submodule_follows(nested: Nested) -> None:
    """Where the trunk's submodule is on a branch, that branch moves; rollback takes it back."""
    nested.lib.git("checkout", "-q", "-b", "work")
    nested.child("one", lib=changed(1))
    before = nested.heads()
    run = nested.main.merge("one")
    assert nested.lib.git("symbolic-ref", "HEAD") == "refs/heads/work"
    assert nested.lib.id("work") == nested.lib.id("one")
    work.roll_back(str(nested.main.root / ".git"), str(nested.main.state), run.run_id)
    assert nested.heads() == before
    assert nested.status() == []


def test_submodules_that_are_not_checked_out_merge_in_their_store(nested: Nested) -> None:
    """Without a checkout only objects and pointers move, and the commits are kept by a ref."""
    nested.child("one", lib=changed(1), inner=changed(1))
    nested.child("two", lib=changed(18), inner=changed(18))
    store = nested.main.root / ".git/modules/lib"
    nested.main.git("submodule", "--quiet", "deinit", "-f", "lib")
    run = nested.main.merge("one", "two")
    assert last(run).successful
    merged = nested.main.id("HEAD:lib")
    assert nested.main.git("--git-dir", str(store), "rev-parse", f"refs/paddock/merge/{run.run_id}/new") == merged
    assert nested.main.status() == []
    nested.populate(nested.main.root)
    assert nested.read("lib/l") == changed(1, 18)
    assert nested.read("lib/inner/i") == changed(1, 18)


def test_hostile_names_and_paths_lead_nowhere(nested: Nested) -> None:
    """A crafted `.gitmodules` of a child is merged as text and followed nowhere."""
    text = modules(lib="lib", doc="doc")
    for number, evil in enumerate(("../../../../tmp/x", "/tmp/x", ".git/hooks", "--upload-pack=x")):
        text += f'[submodule "{evil}"]\n\tpath = e{number}\n[submodule "e{number}"]\n\tpath = {evil}\n'
        nested.main.branch(f"evil{number}", {".gitmodules": text}, start="main")
        assert last(nested.main.merge(f"evil{number}")).successful, evil
        assert nested.status() == [], evil
