"""Any path, any tool: nothing outside is read, changed or made, and every answer is an answer."""

import os
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.bridges.files.scope import Scope
from launcher.bridges.files.tool_calls import Answer
from launcher.safefs import walk
from tests.support.file_tools import Files, boundaries, error_of

SECRET = "secret of somebody else"
NAMES = (
    "",
    ".",
    "..",
    "dir",
    "file",
    "new",
    "in",
    "up",
    "out",
    "away",
    "loop",
    "outside",
    "wt",
    ".git",
    "\xff",
    "é" * 200,
)

paths = st.builds(
    lambda start, names: start + "/".join(names),
    st.sampled_from(("", "/", "{root}/", "{outside}/", "~/", "dir/../")),
    st.lists(st.sampled_from(NAMES), max_size=7),
)
calls = st.one_of(
    st.tuples(st.just("read"), st.builds(lambda path: {"file_path": path}, paths)),
    st.tuples(st.just("write"), st.builds(lambda path: {"file_path": path, "content": "mine"}, paths)),
    st.tuples(
        st.just("edit"),
        st.builds(lambda path: {"file_path": path, "old_string": "e", "new_string": "E", "replace_all": True}, paths),
    ),
    st.tuples(st.just("list"), st.builds(lambda path: {"directory": path}, paths)),
    st.tuples(st.just("shell"), st.builds(lambda path: {"command": "true", "directory": path}, paths)),
)


def made(place: Path) -> tuple[Path, Path]:
    """A worktree full of links, and what is outside."""
    root, outside = place / "wt", place / "outside"
    (root / "dir").mkdir(parents=True)
    outside.mkdir()
    (root / "file").write_text("mine")
    (root / "dir/file").write_text("mine")
    (outside / "file").write_text(SECRET)
    for name, target in (("in", "dir"), ("up", ".."), ("out", outside), ("away", "../outside/new"), ("loop", "loop")):
        (root / name).symlink_to(target)
        (root / "dir" / name).symlink_to(target)
    return root, outside


def state(place: Path) -> dict[str, str]:
    """All that is outside of the worktree, with contents."""
    found = {}
    for directory, names, files in os.walk(place):
        names[:] = [name for name in names if Path(directory, name) != place / "wt"]
        found[directory] = ""
        found.update({f"{directory}/{name}": Path(directory, name).read_text() for name in files})
    return found


@pytest.mark.spec("SC-002", "SC-004", "FR-013")
@pytest.mark.parametrize("hidden", [False, True], ids=["openat2", "by-steps"])
@settings(max_examples=150, deadline=None)
@given(sequence=st.lists(calls, min_size=1, max_size=8))
def test_no_path_leads_out(hidden: bool, sequence: list[tuple[str, dict[str, object]]]) -> None:
    """With `..`, links of every kind, absolute paths, odd names, and what earlier calls have made."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name).resolve()
        root, outside = made(place)
        before = state(place)
        files = Files(Scope(context=boundaries(root)))
        missing = mock.patch.object(walk, "openat2", side_effect=OSError(38, "hidden"))
        for tool, arguments in sequence:
            filled = {
                key: value.replace("{root}", str(root)).replace("{outside}", str(outside))
                for key, value in arguments.items()
                if isinstance(value, str)
            }
            if hidden:
                with missing:
                    answer = files(tool, **{**arguments, **filled})
            else:
                answer = files(tool, **{**arguments, **filled})
            check(answer, root)
        assert state(place) == before


def check(answer: Answer, root: Path) -> None:
    """An error has its six keys; anything else is about the worktree."""
    assert SECRET not in answer.text
    if answer.failed:
        assert error_of(answer) not in ("WORKER_FAILED", "UNKNOWN_TOOL")
    elif answer.text.startswith("/"):
        assert Path(answer.text).is_relative_to(root)
