"""What a verdict costs, against os.stat + os.path.realpath on the same path in the same minute.

Run: python tests/bench/bench_validate.py
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from policy.sandbox import WorktreeSandbox
from policy.sandbox_context import MainWorktreeContext, WorktreeSandboxContext

ROUNDS = 15
CALLS = 1000


def microseconds(call: Callable[[], object]) -> float:
    """The fastest of several rounds, per call; the machine's other work only ever adds."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        for _ in range(CALLS):
            call()
        best = min(best, (time.perf_counter_ns() - start) / CALLS / 1000)
    return best


def main() -> None:
    """Prints one line per case: microseconds, and the ratio to the plain calls."""
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
        cases: dict[str, Callable[[], object]] = {
            "existing file": lambda: box.validate(file, root),
            "relative path": lambda: box.validate("src/package/deep/module.py", root),
            "new file": lambda: box.validate(file + ".new", root, "WRITE"),
            "new directories": lambda: box.validate(root / "a" / "b" / "c", root, "WRITE"),
            "delete": lambda: box.validate(file, root, "DELETE"),
            "denied, outside": lambda: box.validate("/etc/passwd", root),
            "context, existing": lambda: box.validate_in_context(file, whole),
            "context, new": lambda: box.validate_in_context(file + ".new", whole, "WRITE"),
        }
        plain = microseconds(lambda: (os.stat(file), os.path.realpath(file)))
        print(f"{'stat + realpath':20} {plain:6.1f} us   1.00")
        for label, call in cases.items():
            cost = microseconds(call)
            print(f"{label:20} {cost:6.1f} us  {cost / plain:5.2f}")


if __name__ == "__main__":
    main()
