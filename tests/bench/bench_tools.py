"""What the file tools cost beside plain open, read and write: `python -m tests.bench tools`."""

import errno
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from unittest import mock

from launcher.bridges.files.file_worker import FileTools
from launcher.bridges.files.scope import Scope
from launcher.bridges.files.tool_calls import Answer, Call, Edit, List, Read, Write
from launcher.bridges.files.workers import WorkerProcess
from launcher.safefs import walk
from policy.sandbox_context import MainWorktreeContext, WorktreeSandboxContext
from tests.bench import harness
from tests.bench.harness import Result, Way

CONTENT = "a line of text\n" * 70  # 1 KiB
WORKER = (
    "import sys; sys.path.insert(0, {!r}); from launcher.bridges.files import file_worker; sys.exit(file_worker.main())"
)


def plain_read(path: Path) -> str:
    """open, read, close."""
    return path.read_text()


def plain_write(path: Path) -> None:
    """As tools write: a new file, renamed over the old one."""
    beside = path.with_name("beside")
    beside.write_text(CONTENT)
    beside.rename(path)


def plain_edit(path: Path) -> None:
    """Read, replace, write."""
    text = path.read_text().replace("nothing", "something")
    beside = path.with_name("beside")
    beside.write_text(text)
    beside.rename(path)


def done(way: Callable[[Call], Answer], call: Callable[[], Call]) -> None:
    """Has a call done; fails for an error."""
    answer = way(call())
    assert not answer.failed, answer


def rows(quick: bool = False) -> list[Result]:
    """Each call in the process, as it is where openat2(2) is refused, and by a worker."""
    # In memory where there is such a file system: a disk's journal would hide what is to be seen.
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as name:
        root = Path(name).resolve() / "wt"
        (root / "src/package/deep").mkdir(parents=True)
        path = root / "src/package/deep/module.py"
        main_worktree = MainWorktreeContext(worktree_id="m", worktree_path=root)
        scope = Scope(context=WorktreeSandboxContext(main_worktree=main_worktree))
        tools = FileTools(scope)
        words = iter(range(10**9))

        def edit() -> Edit:
            # The text goes back and forth, so that each edit finds what the one before has left.
            odd = next(words) % 2
            return Edit(file_path=str(path), old_string="aA"[odd], new_string="Aa"[odd], replace_all=True)

        cases: tuple[tuple[str, Callable[[], object], Callable[[], Call]], ...] = (
            ("read", lambda: plain_read(path), lambda: Read(file_path=str(path))),
            ("write", lambda: plain_write(path), lambda: Write(file_path=str(path), content=CONTENT)),
            ("edit", lambda: plain_edit(path), edit),
            ("list", lambda: sorted(os.listdir(path.parent)), lambda: List(directory=str(path.parent))),
        )
        worker = WorkerProcess([sys.executable, "-c", WORKER.format(sys.path[0])], scope, "/")
        in_jail = mock.patch.object(walk, "openat2", side_effect=OSError(errno.ENOSYS, "hidden"))
        ways: tuple[tuple[str, Callable[[Call], Answer], AbstractContextManager[object]], ...] = (
            ("in the process", tools.answer, nullcontext()),
            ("as in a jail", tools.answer, in_jail),
            ("by a worker, over pipes", worker.call, nullcontext()),
        )
        found = []
        for title, way, setting in ways:
            for label, plain, call in cases:
                path.write_text(CONTENT)
                words = iter(range(10**9))
                both: dict[str, Way] = {f"plain {label}": plain, label: partial(done, way, call)}
                with setting:
                    taken = harness.turns(both, 200 if quick else 2000)
                found += harness.against(taken, prefix=f"file tools {title}: ")
        worker.close()
        return found


if __name__ == "__main__":
    harness.main(rows)
