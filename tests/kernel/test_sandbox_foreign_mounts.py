"""Paths that reach into another mount namespace carry names that mean something else here."""

import subprocess
from pathlib import Path

import pytest

from policy.sandbox import Reason, WorktreeSandbox

SCRIPT = 'mount -t tmpfs none "$1" && echo theirs > "$1/file" && ln -s new "$1/dangling" && echo ready && read line'


@pytest.mark.parametrize("operation", ["READ", "WRITE", "DELETE"])
def test_another_mount_namespace_is_not_taken_for_ours(tmp_path: Path, operation: str) -> None:
    """/proc/PID/root/WORKTREE/file is shown under the worktree's own name, and is another file."""
    root = tmp_path.resolve() / "wt"
    root.mkdir()
    (root / "file").write_text("ours")
    (root / "dangling").symlink_to("new")
    box = WorktreeSandbox()
    with subprocess.Popen(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", SCRIPT, "sh", str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        theirs = f"/proc/{other.pid}/root{root}"
        assert Path(f"{theirs}/file").read_text() == "theirs\n"
        for name in ("file", "new", "new/er", "dangling", "dangling/x"):
            result = box.validate(f"{theirs}/{name}", root, operation)
            assert not result.allowed, result
            assert result.reason is Reason.UNREACHABLE
        assert box.validate(f"/proc/self/root{root}/file", root, operation).allowed
        assert box.validate(f"/proc/self/root{root}/new", root, operation).allowed
        other.stdin.write("\n")
