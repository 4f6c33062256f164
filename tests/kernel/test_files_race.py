"""A path is swapped for a symbolic link while it is read and written; not one call gets out.

`PADDOCK_SWAPS=100000` swaps as often as the specification's tests ask for; the suite does with fewer.
"""

import os
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from launcher.bridges.files.scope import Scope
from launcher.bridges.files.tool_calls import Answer
from launcher.safefs import walk
from tests.support.file_tools import Files, boundaries, over_stdio
from tests.support.paddock import Paddock

SWAPS = int(os.environ.get("PADDOCK_SWAPS", "4000"))
PROGRAM = Path(__file__).resolve().parents[1] / "support/programs/swapper.py"
SECRET = "secret of somebody else"


def scene(place: Path, name: str = "wt") -> tuple[Path, Path]:
    """A worktree with ``way/file`` and ``name``, and a directory outside with ``file``."""
    root, outside = place / name, place / "outside"
    (root / "way").mkdir(parents=True, exist_ok=True)
    outside.mkdir()
    (root / "way/file").write_text("mine")
    (root / "name").write_text("mine")
    (outside / "file").write_text(SECRET)
    (outside / "only-outside").write_text(SECRET)
    return root, outside


def untouched(outside: Path) -> bool:
    """Whether nothing has been changed or made there."""
    return {path.name: path.read_text() for path in outside.iterdir()} == dict.fromkeys(
        ("file", "only-outside"), SECRET
    )


CALLS = (
    ("read", {"file_path": "way/file"}),
    ("read", {"file_path": "name"}),
    ("write", {"file_path": "way/file", "content": "mine"}),
    ("write", {"file_path": "name", "content": "mine"}),
    ("write", {"file_path": "way/new", "content": "mine"}),
    ("write", {"file_path": "way/deep/new", "content": "mine"}),
    ("edit", {"file_path": "way/file", "old_string": "mine", "new_string": "mine too"}),
    ("edit", {"file_path": "name", "old_string": SECRET, "new_string": "mine"}),
    ("list", {"directory": "way"}),
)


@pytest.mark.parametrize("hidden", [False, True], ids=["openat2", "by-steps"])
@pytest.mark.spec("SC-002", "EDGE-2")
def test_nothing_gets_out_while_paths_are_swapped(
    tmp_path: Path, hidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a jail, so that only validating and reopening stand between: verdicts change, files outside never do."""
    if hidden:

        def missing(*_: object) -> int:
            raise OSError(38, "hidden, as in a jail")

        monkeypatch.setattr(walk, "openat2", missing)
    root, outside = scene(tmp_path)
    files = Files(Scope(context=boundaries(root)))
    outcomes = {"served": 0, "denied": 0, "denied at the last moment": 0}

    def check(tool: str, answer: Answer) -> None:
        assert SECRET not in answer.text
        if tool == "list" and not answer.failed:
            assert "only-outside" not in answer.text
        late = "while it was being opened" in answer.text
        outcomes["denied at the last moment" if late else "denied" if answer.failed else "served"] += 1

    for tool, arguments in CALLS:  # so that it is seen that they would be served
        check(tool, files(tool, **arguments))
    assert outcomes["served"] > 5
    words = [sys.executable, str(PROGRAM), str(root), str(SWAPS), str(outside)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as swapper:
        assert swapper.stdout is not None
        assert swapper.stdout.readline() == b"ready\n"
        while swapper.poll() is None:
            for tool, arguments in CALLS:
                check(tool, files(tool, **arguments))
    assert swapper.returncode == 0
    assert untouched(outside)
    print(f"{SWAPS} swaps; calls: {outcomes}")


def test_nothing_gets_out_of_the_served_worktree(user_paddock: Paddock) -> None:
    """The same through the server, while the agent itself swaps, inside its own jail."""
    paddock = user_paddock
    root, outside = scene(paddock.place, "one")
    paddock.who.give(paddock.place)

    async def attack() -> None:
        async with over_stdio(paddock) as call, anyio.create_task_group() as group:
            ended = anyio.Event()

            async def swap() -> None:
                (root / "swapper.py").write_text(PROGRAM.read_text())
                command = f"python3 swapper.py . {max(SWAPS // 10, 1000)} {outside}"
                said = await call("shell", command=command, timeout_seconds=300)
                assert said.text == "exit status 0\nready\n"
                ended.set()

            group.start_soon(swap)
            while not ended.is_set():
                for tool, arguments in CALLS:
                    said = await call(tool, **arguments)
                    assert SECRET not in said.text

    anyio.run(attack)
    assert untouched(outside)
