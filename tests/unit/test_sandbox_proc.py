"""The path validator and /proc: links that jump where no text leads."""

import os
from pathlib import Path

import pytest

from policy.sandbox import Reason, WorktreeSandbox

BOX = WorktreeSandbox()


@pytest.fixture
def wt(tmp_path: Path) -> Path:
    """A worktree with a file and a directory, and something outside."""
    root = tmp_path.resolve() / "wt"
    (root / "src" / "deep").mkdir(parents=True)
    (root / "src" / "deep" / "file").write_text("in")
    (root / "file").write_text("in")
    (root.parent / "out").mkdir()
    (root.parent / "out" / "file").write_text("out")
    return root


def allows(target: str, root: Path, operation: str = "READ") -> str | None:
    result = BOX.validate(target, root, operation)
    assert result.allowed, result
    return result.normalized_path


def denies(target: str, root: Path, operation: str = "READ") -> Reason | None:
    result = BOX.validate(target, root, operation)
    assert not result.allowed, result
    return result.reason


def test_links_of_proc_lead_where_the_kernel_goes(wt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """cwd, root and fd/N jump; inside is allowed, outside denied, what has no path denied."""
    monkeypatch.chdir(wt / "src")
    assert allows("/proc/self/cwd/deep/file", wt) == f"{wt}/src/deep/file"
    assert allows("/proc/self/cwd/new", wt, "WRITE") == f"{wt}/src/new"
    assert allows(f"/proc/self/root{wt}/file", wt) == f"{wt}/file"
    assert denies("/proc/self/root/etc/passwd", wt) is Reason.OUTSIDE
    assert denies("/proc/self/cwd/../../out/file", wt) is Reason.OUTSIDE
    assert denies("/proc/self/cwd", wt, "DELETE") is Reason.OUTSIDE
    assert denies("/proc/self/environ", wt) is Reason.OUTSIDE
    fd = os.open(wt.parent / "out", os.O_PATH)
    inside = os.open(wt / "file", os.O_RDONLY)
    reader, writer = os.pipe()
    try:
        assert denies(f"/proc/self/fd/{fd}/file", wt) is Reason.OUTSIDE
        assert denies(f"/dev/fd/{fd}/file", wt) is Reason.OUTSIDE
        assert allows(f"/proc/self/fd/{inside}", wt) == f"{wt}/file"
        assert denies(f"/proc/self/fd/{reader}", wt) is Reason.UNREACHABLE
    finally:
        for number in (fd, inside, reader, writer):
            os.close(number)


def test_a_deleted_file_is_not_taken_for_its_name(wt: Path) -> None:
    """/proc shows "name (deleted)"; neither that name nor a file put there in its place is the file."""
    (wt / "gone").write_text("old")
    fd = os.open(wt / "gone", os.O_RDONLY)
    try:
        (wt / "gone").unlink()
        assert denies(f"/proc/self/fd/{fd}", wt) is Reason.UNREACHABLE
        (wt / "gone (deleted)").write_text("new")
        assert denies(f"/proc/self/fd/{fd}", wt) is Reason.UNREACHABLE
        assert denies(f"/proc/self/fd/{fd}", wt, "WRITE") is Reason.UNREACHABLE
        assert allows("gone (deleted)", wt) == f"{wt}/gone (deleted)"
    finally:
        os.close(fd)
