"""The validator without /proc, on a made-up file system: the walk alone decides."""

import os
from pathlib import Path

import pytest
from pyfakefs.fake_filesystem import FakeFilesystem

from policy.sandbox import Operation, Reason, Unresolvable, WorktreeSandbox, by_kernel, by_walk
from policy.sandbox_context import MainWorktreeContext, SubmoduleWorktreeContext, WorktreeSandboxContext

BOX = WorktreeSandbox()
ROOT = Path("/worktrees/agent-1")


@pytest.fixture
def disk(fs: FakeFilesystem) -> FakeFilesystem:
    """The specification's own example: two agents side by side."""
    fs.is_case_sensitive = True
    fs.create_file("/worktrees/agent-1/src/main.py")
    fs.create_file("/worktrees/agent-2/file.txt")
    fs.create_file("/worktrees/agent-10/file.txt")
    fs.create_dir("/worktrees/agent-1/lib/a")
    fs.create_file("/worktrees/agent-1/lib/b/file")
    fs.create_symlink("/worktrees/agent-1/out", "/worktrees/agent-2")
    fs.create_symlink("/worktrees/agent-1/in", "src")
    fs.create_symlink("/worktrees/agent-1/new-out", "../agent-2/new")
    fs.create_symlink("/worktrees/agent-1/loop", "loop")
    return fs


def test_there_is_no_proc_here(disk: FakeFilesystem) -> None:
    """So the kernel's answer is not to be had, and the walk's is."""
    assert not os.path.exists("/proc/self/fd")
    assert by_kernel("/worktrees/agent-1/src/main.py") is None
    assert by_walk("/worktrees/agent-1/in/main.py").path == "/worktrees/agent-1/src/main.py"


@pytest.mark.parametrize("operation", list(Operation))
@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("/worktrees/agent-1/src/main.py", None),
        ("src/main.py", None),
        ("in/main.py", None),
        ("src/../src/main.py", None),
        ("src/new.py", None),
        ("src/new/er.py", None),
        ("/worktrees/agent-2/file.txt", Reason.OUTSIDE),
        ("/worktrees/agent-10/file.txt", Reason.OUTSIDE),
        ("/worktrees/AGENT-1/src/main.py", Reason.OUTSIDE),
        ("../agent-2/file.txt", Reason.OUTSIDE),
        ("in/../../agent-2/file.txt", Reason.OUTSIDE),
        ("out/file.txt", Reason.OUTSIDE),
        ("out/new", Reason.OUTSIDE),
        ("new-out/x", Reason.OUTSIDE),
        ("missing/../src", Reason.TRAVERSAL),
        ("src/main.py/..", Reason.TRAVERSAL),
        ("loop/x", Reason.SYMLINK_LOOP),
        ("", Reason.EMPTY),
        ("a\0", Reason.NUL),
        ("x/" + "y" * 256, Reason.TOO_LONG),
    ],
)
def test_the_walk_decides(disk: FakeFilesystem, operation: Operation, target: str, reason: Reason | None) -> None:
    """Stories 2 to 4 without any help from the kernel."""
    result = BOX.validate(target, ROOT, operation)
    assert result.reason is reason, result
    assert result.allowed is (reason is None)


def test_entries_and_the_root_itself(disk: FakeFilesystem) -> None:
    """Removing a link is not following it, and the root stays."""
    assert BOX.validate("out", ROOT, "DELETE").allowed
    assert BOX.validate("out", ROOT, "WRITE").reason is Reason.OUTSIDE
    assert BOX.validate("out/", ROOT, "DELETE").reason is Reason.OUTSIDE
    assert BOX.validate(".", ROOT, "LIST").allowed
    assert BOX.validate(".", ROOT, "DELETE").reason is Reason.ROOT_ITSELF


@pytest.mark.spec("US6.1", "US6.2", "SC-006")
def test_submodules(disk: FakeFilesystem) -> None:
    """Story 6: A granted, B not."""

    def sub(name: str, granted: bool) -> SubmoduleWorktreeContext:
        return SubmoduleWorktreeContext(
            submodule_name=name,
            worktree_id=name,
            worktree_path=ROOT / "lib" / name,
            main_worktree_id="m",
            granted=granted,
        )

    whole = WorktreeSandboxContext(
        main_worktree=MainWorktreeContext(worktree_id="m", worktree_path=ROOT, submodule_worktree_ids=("a", "b")),
        submodule_worktrees=(sub("a", True),),
        ungranted_submodules=(sub("b", False),),
    )
    assert BOX.validate_in_context("lib/a/file", whole, "WRITE").allowed
    assert BOX.validate_in_context("lib/b/file", whole, "READ").reason is Reason.UNGRANTED_SUBMODULE
    assert BOX.validate_in_context("src/main.py", whole, "EDIT").allowed


def test_a_root_that_is_gone_or_replaced(disk: FakeFilesystem) -> None:
    """The root is looked at each time."""
    assert BOX.validate("src", ROOT).allowed
    os.rename(ROOT, "/worktrees/moved")
    assert BOX.validate("src", ROOT).reason is Reason.ROOT_MISSING
    os.symlink("/worktrees/moved", ROOT)
    assert BOX.validate("src", ROOT).reason is Reason.ROOT_REPLACED
    os.unlink(ROOT)
    Path(ROOT).write_text("")
    assert BOX.validate("src", ROOT).reason is Reason.ROOT_REPLACED


def test_normalize_path(disk: FakeFilesystem) -> None:
    """Links and `..` resolve here as well."""
    assert BOX.normalize_path("/worktrees/agent-1/in/../out/file.txt") == Path("/worktrees/agent-2/file.txt")
    with pytest.raises(Unresolvable, match="symlink-loop"):
        BOX.normalize_path("/worktrees/agent-1/loop")
