"""What the file tools cost on top of plain open, read and write, in the same minute: in the process, and by a worker.

Run: python tests/bench/bench_files.py
"""

import errno
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from launcher.bridges.files.file_worker import FileTools
from launcher.bridges.files.scope import Scope
from launcher.bridges.files.tool_calls import Answer, Call, Edit, List, Read, Write
from launcher.bridges.files.workers import WorkerProcess
from launcher.safefs import walk
from policy.sandbox_context import MainWorktreeContext, WorktreeSandboxContext

CALLS = 2000
FILES = 1000
CONTENT = "a line of text\n" * 70  # 1 KiB
WORKER = (
    "import sys; sys.path.insert(0, {!r}); from launcher.bridges.files import file_worker; sys.exit(file_worker.main())"
)


def microseconds(one: Callable[[], object], other: Callable[[], object]) -> tuple[float, float]:
    """Medians of two calls that take turns."""
    taken: tuple[list[int], list[int]] = ([], [])
    for _ in range(CALLS):
        for call, times in ((one, taken[0]), (other, taken[1])):
            start = time.perf_counter_ns()
            call()
            times.append(time.perf_counter_ns() - start)
    return statistics.median(taken[0]) / 1000, statistics.median(taken[1]) / 1000


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


def on_disk(tools: FileTools, folder: Path) -> None:
    """Prints the same for a disk: each call has a file of its own, whose content lies there already.

    Of the process's time on the processors as well: with a disk real time is mostly its own. The plain twins replace
    a file as tools do; what ext4 does then for the sake of a power failure (`auto_da_alloc`) takes longest of all.
    """
    cases: tuple[tuple[str, Callable[[Path], object], Callable[[Path], Call]], ...] = (
        ("read", plain_read, lambda path: Read(file_path=str(path))),
        ("write", plain_write, lambda path: Write(file_path=str(path), content=CONTENT)),
        ("edit", plain_edit, lambda path: Edit(file_path=str(path), old_string="a", new_string="A", replace_all=True)),
    )
    for label, plain, call in cases:
        paths = [folder / f"{number}.py" for number in range(2 * FILES)]
        for path in paths:
            path.write_text(CONTENT)
        os.sync()
        real: tuple[list[int], list[int]] = ([], [])
        busy: tuple[list[int], list[int]] = ([], [])
        for number, path in enumerate(paths):
            start, processor = time.perf_counter_ns(), time.thread_time_ns()
            if number % 2:
                assert not tools.answer(call(path)).failed
            else:
                plain(path)
            busy[number % 2].append(time.thread_time_ns() - processor)
            real[number % 2].append(time.perf_counter_ns() - start)
        for title, times in (("on a disk", real), ("on a disk, processor time", busy)):
            before, after = (statistics.median(each) / 1000 for each in times)
            figures = f"{before:8.1f} {after:8.1f} {after - before:8.1f}  {after / before:5.2f}"
            print(f"{title}: {label:{32 - len(title)}} {figures}")


def done(way: Callable[[Call], Answer], call: Callable[[], Call]) -> None:
    """Has a call done; fails for an error."""
    answer = way(call())
    assert not answer.failed, answer


def main() -> None:
    """Prints one line per case: microseconds plain and by the tool, the difference, and the ratio."""
    # In memory where there is such a file system: a disk's journal would hide what is to be seen.
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as name:
        root = Path(name).resolve() / "wt"
        (root / "src/package/deep").mkdir(parents=True)
        path = root / "src/package/deep/module.py"
        path.write_text(CONTENT)
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
            ("the same, as in a jail", tools.answer, in_jail),
            ("by a worker, over pipes", worker.call, nullcontext()),
        )
        print(f"{'':34} {'plain':>8} {'tool':>8} {'on top':>8}  ratio   (microseconds, medians of {CALLS})")
        for title, way, setting in ways:
            for label, plain, call in cases:
                path.write_text(CONTENT)
                words = iter(range(10**9))
                with setting:
                    before, after = microseconds(plain, partial(done, way, call))
                figures = f"{before:8.1f} {after:8.1f} {after - before:8.1f}  {after / before:5.2f}"
                print(f"{title}: {label:{32 - len(title)}} {figures}")
        worker.close()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        root = Path(name).resolve()
        main_worktree = MainWorktreeContext(worktree_id="m", worktree_path=root)
        on_disk(FileTools(Scope(context=WorktreeSandboxContext(main_worktree=main_worktree))), root)


if __name__ == "__main__":
    main()
