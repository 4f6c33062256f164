"""The path validator with a whole context: submodules, denied and read-only paths, frozen directories."""

from collections.abc import Callable
from pathlib import Path

import pytest

from policy.sandbox import Operation, Reason, WorktreeSandbox
from policy.sandbox_context import MainWorktreeContext, SubmoduleWorktreeContext, WorktreeSandboxContext

BOX = WorktreeSandbox()
READING = [operation for operation in Operation if not operation.mutates]
MUTATING = [operation for operation in Operation if operation.mutates]


def context(root: Path, *, freeze: bool, **changes: tuple[Path, ...]) -> WorktreeSandboxContext:
    """Submodules a (granted) and b (not), and c granted inside b."""

    def sub(name: str, place: str, granted: bool) -> SubmoduleWorktreeContext:
        return SubmoduleWorktreeContext(
            submodule_name=name, worktree_id=name, worktree_path=root / place, main_worktree_id="m", granted=granted
        )

    return WorktreeSandboxContext(
        main_worktree=MainWorktreeContext(
            worktree_id="m", worktree_path=root, submodule_worktree_ids=("sub-a", "sub-b", "sub-c")
        ),
        submodule_worktrees=(sub("sub-a", "lib/a", True), sub("sub-c", "lib/b/c", True)),
        ungranted_submodules=(sub("sub-b", "lib/b", False),),
        denied_paths=changes.get("denied", ()),
        read_only_paths=changes.get("read_only", ()),
        freeze_root=freeze,
    )


Ask = Callable[[str, str], Reason | None]


def asker(whole: WorktreeSandboxContext) -> Ask:
    def ask(target: str, operation: str) -> Reason | None:
        return BOX.validate_in_context(target, whole, operation).reason

    return ask


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """A worktree with submodules, links between them, a git directory and something outside."""
    wt = tmp_path.resolve() / "wt"
    (wt / "src" / "deep").mkdir(parents=True)
    (wt / "src" / "deep" / "file").write_text("")
    (wt / "file").write_text("")
    (wt.parent / "out").mkdir()
    (wt.parent / "out" / "file").write_text("")
    for name in ("a", "b", "b/c", "ab"):
        (wt / "lib" / name).mkdir(parents=True)
        (wt / "lib" / name / "file").write_text(name)
    (wt / "lib" / "beside").write_text("")
    (wt / ".git").mkdir()
    (wt / ".git" / "config").write_text("")
    (wt / "to-b").symlink_to("lib/b")
    (wt / "to-c").symlink_to("lib/b/c")
    (wt / "to-new-in-b").symlink_to("lib/b/new")
    return wt


@pytest.mark.spec("US6.1", "US6.2", "FR-018", "SC-006")
@pytest.mark.parametrize("freeze", [False, True])
def test_the_deepest_root_wins(modules: Path, freeze: bool) -> None:
    """Story 6: submodule A is open, B is closed though it lies below the worktree, and C in B is open again."""
    ask = asker(context(modules, freeze=freeze))
    for operation in Operation:
        assert ask("lib/a/file", operation) is None
        assert ask("lib/ab/file", operation) is None
        assert ask("lib/b/c/file", operation) is None
        assert ask("to-c/file", operation) is None
        assert ask("src/deep/file", operation) is None
        assert ask("lib/b/file", operation) is Reason.UNGRANTED_SUBMODULE
        assert ask("lib/b/new/er", operation) is Reason.UNGRANTED_SUBMODULE
        assert ask("lib/a/../b/file", operation) is Reason.UNGRANTED_SUBMODULE
        assert ask("to-b/file", operation) is Reason.UNGRANTED_SUBMODULE
        assert ask("lib/b", operation) is Reason.UNGRANTED_SUBMODULE
        assert ask("../out/file", operation) is Reason.OUTSIDE
    assert ask("to-new-in-b", "WRITE") is Reason.UNGRANTED_SUBMODULE
    assert ask("lib/b/c/new", "WRITE") is None
    assert ask("lib/b/c", "DELETE") is Reason.UNGRANTED_SUBMODULE  # the entry belongs to B's directory
    message = BOX.validate_in_context("lib/b/file", context(modules, freeze=freeze)).message
    assert message is not None
    assert "lib/b/file" in message
    assert "sub-b" in message
    assert str(modules) in message


def test_the_directory_that_a_path_starts_at_can_be_given(modules: Path) -> None:
    """A tool's own working directory is inside the worktree as a rule, and judged where it is not."""
    whole = context(modules, freeze=False)
    assert BOX.validate_in_context("file", whole, cwd=modules / "lib" / "a").normalized_path == f"{modules}/lib/a/file"
    assert BOX.validate_in_context("file", whole, cwd="lib/b").reason is Reason.UNGRANTED_SUBMODULE
    assert BOX.validate_in_context("file", whole, cwd=modules.parent / "out").reason is Reason.OUTSIDE


def test_a_read_only_worktree_with_a_writable_place(modules: Path) -> None:
    """Nothing but what `writable_paths` name can be changed, the granted submodules included."""
    whole = context(modules, freeze=False, read_only=(modules, modules / "lib" / "a", modules / "src" / "deep"))
    ask = asker(whole.model_copy(update={"writable_paths": (modules / "src",)}))
    for operation in READING:
        assert ask("lib/a/key", operation) is None
    for operation in MUTATING:
        assert ask("new", operation) is Reason.READ_ONLY
        assert ask("lib/a/key", operation) is Reason.READ_ONLY
        assert ask("src/deep/file", operation) is Reason.READ_ONLY
        assert ask("src/new", operation) is None


@pytest.mark.parametrize("freeze", [False, True])
def test_denied_and_read_only_paths(modules: Path, freeze: bool) -> None:
    """Denied paths are closed, read-only ones can be read, and neither opens what encloses it."""
    whole = context(
        modules,
        freeze=freeze,
        denied=(modules / "src" / "secret", modules / "lib" / "a" / "key", modules.parent / "out"),
        read_only=(modules / ".git", modules / "lib" / "b" / "ro", modules / "lib" / "a" / "key"),
    ).model_copy(update={"unpopulated_submodules": (modules / "lib" / "b" / "c", modules / "lib" / "b" / "ro")})
    ask = asker(whole)
    for operation in Operation:
        assert ask("src/secret", operation) is Reason.DENIED
        assert ask("src/secret/below", operation) is Reason.DENIED
        assert ask("lib/a/key", operation) is Reason.DENIED  # denied and read-only: the stricter one
        assert ask("lib/b/ro/x", operation) is Reason.UNGRANTED_SUBMODULE
        assert ask("../out/file", operation) is Reason.OUTSIDE
        assert ask("src/deep/file", operation) is None
    for operation in READING:
        assert ask(".git/config", operation) is None
        assert ask(".git", operation) is None
        assert ask(".git/missing", operation) is None
        assert ask("lib/b/c/new", operation) is None  # granted, though what lies around it is not
    for operation in MUTATING:
        assert ask(".git/config", operation) is Reason.READ_ONLY
        assert ask(".git/new", operation) is Reason.READ_ONLY
        assert ask(".git", operation) is Reason.READ_ONLY
        assert ask("lib/b/c/new", operation) is Reason.UNPOPULATED_SUBMODULE
    (modules / "git-link").symlink_to(".git/config")
    assert ask("git-link", "READ") is None
    assert ask("git-link", "EDIT") is Reason.READ_ONLY


def test_frozen_directories_are_used_by_name_only(modules: Path) -> None:
    """What exists beside a closed exception works; the directories up to the root cannot be listed or changed."""
    ask = asker(context(modules, freeze=True))
    for operation in READING:
        assert ask(".", operation) is Reason.FROZEN
        assert ask("lib", operation) is Reason.FROZEN
        assert ask("new", operation) is Reason.FROZEN
        assert ask("lib/new", operation) is Reason.FROZEN
        assert ask("lib/beside", operation) is None
        assert ask("file", operation) is None
        assert ask("src", operation) is None
    for operation in MUTATING:
        assert ask(".", operation) is Reason.ROOT_ITSELF
        assert ask("lib", operation) is Reason.FROZEN
        assert ask("new", operation) is Reason.FROZEN
        assert ask("new/er", operation) is Reason.FROZEN
        assert ask("src/new", operation) is None
        assert ask("lib/ab/new", operation) is None
    for changing in ("WRITE", "EDIT"):
        assert ask("lib/beside", changing) is None
        assert ask("file", changing) is None
    for moving in ("DELETE", "MOVE", "MKDIR"):
        assert ask("lib/beside", moving) is Reason.FROZEN
        assert ask("file", moving) is Reason.FROZEN
        assert ask("src", moving) is Reason.FROZEN
        assert ask("src/deep", moving) is None
    (modules / "dangling").symlink_to("later")
    assert ask("dangling", "WRITE") is Reason.FROZEN


def test_beside_a_read_only_exception_only_changes_are_frozen(modules: Path) -> None:
    """Listing and reading go on; entries cannot come or go."""
    alone = WorktreeSandboxContext(
        main_worktree=MainWorktreeContext(worktree_id="m", worktree_path=modules),
        read_only_paths=(modules / "src" / "deep",),
        freeze_root=True,
    )
    ask = asker(alone)
    for operation in READING:
        assert ask(".", operation) is None
        assert ask("src", operation) is None
        assert ask("src/new", operation) is None
    for operation in MUTATING:
        assert ask("src/new", operation) is Reason.FROZEN
        assert ask("new", operation) is Reason.FROZEN
        assert ask("src", operation) is Reason.FROZEN
        assert ask("lib/new", operation) is None
    assert ask("file", "WRITE") is None
    assert ask("file", "DELETE") is Reason.FROZEN


def test_without_freezing_only_the_way_to_an_exception_is_pinned(modules: Path) -> None:
    """Entries come and go beside it, but the directory that holds it cannot be moved away."""
    ask = asker(context(modules, freeze=False, read_only=(modules / ".git",)))
    for operation in ("DELETE", "MOVE"):
        assert ask("lib", operation) is Reason.FROZEN
        assert ask("lib/b", operation) is Reason.UNGRANTED_SUBMODULE
        assert ask(".git", operation) is Reason.READ_ONLY
        assert ask("lib/a", operation) is None
        assert ask("src", operation) is None
        assert ask("file", operation) is None
    assert ask("lib/new", "WRITE") is None
    assert ask("lib", "LIST") is None
    assert ask(".", "LIST") is None


def test_exceptions_hold_where_their_links_lead(modules: Path) -> None:
    """A denied path given through a link closes the place behind it too; a granted one opens nothing elsewhere."""
    (modules / "alias").symlink_to("src/deep")
    ask = asker(context(modules, freeze=False, denied=(modules / "alias",)))
    assert ask("src/deep/file", "READ") is Reason.DENIED
    assert ask("alias/file", "READ") is Reason.DENIED
    assert ask("src/new", "WRITE") is None
    (modules / "lib" / "b" / "c" / "file").unlink()
    (modules / "lib" / "b" / "c").rmdir()
    (modules / "lib" / "b" / "c").symlink_to("../../../out")
    fresh = asker(context(modules, freeze=False))
    assert fresh("lib/b/c/file", "READ") is Reason.OUTSIDE
    assert fresh("lib/b/c", "DELETE") is Reason.UNGRANTED_SUBMODULE
    assert fresh("../out/file", "READ") is Reason.OUTSIDE


def test_a_main_path_below_a_linked_directory_keeps_its_exceptions(modules: Path) -> None:
    """Paths of the context are laid over the canonical root."""
    (modules.parent / "way").symlink_to(modules.parent)
    given = modules.parent / "way" / "wt"
    ask = asker(context(given, freeze=False, denied=(modules / "src" / "deep",)))
    assert ask(f"{modules}/lib/b/file", "READ") is Reason.UNGRANTED_SUBMODULE
    assert ask(f"{given}/lib/b/file", "READ") is Reason.UNGRANTED_SUBMODULE
    assert ask("src/deep/file", "READ") is Reason.DENIED
    assert ask("lib/a/file", "READ") is None


def test_a_worktree_that_moved_behind_a_linked_directory_is_laid_out_anew(modules: Path) -> None:
    """The exceptions follow the place where the worktree is now."""
    way = modules.parent / "way"
    way.symlink_to(modules.parent)
    ask = asker(context(way / "wt", freeze=False))
    assert ask("lib/b/file", "READ") is Reason.UNGRANTED_SUBMODULE
    moved = modules.parent / "moved"
    moved.mkdir()
    modules.rename(moved / "wt")
    way.unlink()
    way.symlink_to(moved)
    assert ask("lib/b/file", "READ") is Reason.UNGRANTED_SUBMODULE
    assert ask("lib/a/file", "READ") is None


def test_another_spelling_of_an_exception_is_the_exception(modules: Path) -> None:
    """Where a file system takes two cases for one name, both reach the same file; here a hard link plays that part."""
    (modules / ".env").write_text("secret")
    (modules / ".ENV").hardlink_to(modules / ".env")
    (modules / ".Env").write_text("another file")
    ask = asker(context(modules, freeze=False, denied=(modules / ".env",)))
    assert ask(".env", "READ") is Reason.DENIED
    assert ask(".ENV", "READ") is Reason.DENIED
    assert ask(".Env", "READ") is None


@pytest.mark.spec("EDGE-5")
def test_a_context_whose_worktree_is_gone_denies(modules: Path) -> None:
    """What was laid out earlier does not outlive the worktree."""
    whole = context(modules, freeze=False)
    ask = asker(whole)
    assert ask("file", "READ") is None
    modules.rename(modules.parent / "moved")
    assert ask("file", "READ") is Reason.ROOT_MISSING
    modules.symlink_to(modules.parent / "moved")
    assert ask("file", "READ") is Reason.ROOT_REPLACED


def test_many_contexts_do_not_mix(modules: Path) -> None:
    """The validator remembers a bounded number of contexts, each by itself."""
    box = WorktreeSandbox()
    for number in range(300):
        name = f"d{number}"
        whole = context(modules, freeze=False, denied=(modules / name,))
        assert box.validate_in_context(name, whole).reason is Reason.DENIED
        assert box.validate_in_context(f"{name}x", whole).allowed
    assert len(box._boundaries) <= 128
