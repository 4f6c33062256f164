"""What a verdict of the validator costs, beside stat and realpath of the path: `python -m tests.bench validate`."""

import os
import tempfile
from functools import partial
from pathlib import Path

from policy.sandbox import WorktreeSandbox
from policy.sandbox_context import MainWorktreeContext, WorktreeSandboxContext
from tests.bench import harness
from tests.bench.harness import Result, Way

CALLS = 1000


def each(call: Way) -> float:
    """Seconds of one of many calls."""
    return harness.seconds(lambda: [call() for _ in range(CALLS)]) / CALLS


def rows(quick: bool = False) -> list[Result]:
    """Every kind of verdict."""
    box = WorktreeSandbox()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name).resolve() / "wt"
        (root / "src" / "package" / "deep").mkdir(parents=True)
        file = str(root / "src" / "package" / "deep" / "module.py")
        Path(file).write_text("")
        whole = WorktreeSandboxContext(
            main_worktree=MainWorktreeContext(worktree_id="m", worktree_path=root),
            denied_paths=(root / ".env", root / "src" / "secret"),
            read_only_paths=(root / ".git",),
        )
        cases: dict[str, Way] = {
            "stat and realpath": lambda: (os.stat(file), os.path.realpath(file)),
            "existing file": lambda: box.validate(file, root),
            "relative path": lambda: box.validate("src/package/deep/module.py", root),
            "new file": lambda: box.validate(file + ".new", root, "WRITE"),
            "new directories": lambda: box.validate(root / "a" / "b" / "c", root, "WRITE"),
            "delete": lambda: box.validate(file, root, "DELETE"),
            "denied, outside": lambda: box.validate("/etc/passwd", root),
            "context, existing": lambda: box.validate_in_context(file, whole),
            "context, new": lambda: box.validate_in_context(file + ".new", whole, "WRITE"),
        }
        ways: dict[str, Way] = {name: partial(each, call) for name, call in cases.items()}
        return harness.against(harness.turns(ways, 5 if quick else 15), prefix="verdict, ")


if __name__ == "__main__":
    harness.main(rows)
