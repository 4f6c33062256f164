"""The table of promises and the tests that try to break it belong together."""

import ast
from pathlib import Path

from policy import promises
from tests.support.programs.scene import SWITCHES

HERE = Path(__file__).parent
PREFIX = "test_promise_"


def test_every_row_has_a_test_and_every_test_a_row() -> None:
    """Each `test_promise_<row>...` begins with a row's id, and no row is without one."""
    names = {
        node.name.removeprefix(PREFIX).replace("_", "-")
        for path in HERE.glob("test_promises_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith(PREFIX)
    }
    rows = [row for row, _, _ in promises.ROWS]
    tested = {row for row in rows if any(name == row or name.startswith(row + "-") for name in names)}
    assert tested == set(rows)
    assert not {name for name in names if not any(name == row or name.startswith(row + "-") for row in rows)}


def test_every_backend_can_be_chosen_by_the_suite() -> None:
    """A backend without a switch would be promised and never attacked."""
    assert set(SWITCHES) == set(promises.BACKENDS)


def test_reasons_name_backends_that_exist() -> None:
    """What a row says about a backend is said of a known one, with a reason."""
    known = {promises.NAMESPACES, *promises.BACKENDS, promises.BUBBLEWRAP}
    for row, _, exceptions in promises.ROWS:
        for part in filter(None, exceptions.split(";;")):
            where, _, reason = part.partition(": ")
            assert set(where.split(", ")) <= known, row
            assert reason, row
