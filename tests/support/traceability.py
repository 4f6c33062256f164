"""Which test shows what of the specification, read from the sources.

`python -m tests.support.traceability` prints the table.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.spec_ids import IDS, OPEN

TESTS = Path(__file__).resolve().parents[1]
MARKER = "spec"


class Misplaced(Exception):
    """A marker that no test bears, or one whose ids cannot be read."""


def shown(root: Path = TESTS) -> dict[str, list[str]]:
    """Ids and the tests that bear them, as ``file::test``; scenarios of features bear ids as tags.

    Raises:
        Misplaced: a marker outside of a test, or with anything but plain strings.
    """
    found: dict[str, list[str]] = {}
    for path in sorted(root.rglob("*.py")):
        for test, ids in _in_module(path):
            for name in ids:
                found.setdefault(name, []).append(f"{path.relative_to(root)}::{test}")
    for path in sorted(root.rglob("*.feature")):
        for scenario, ids in _in_feature(path.read_text()):
            for name in ids:
                found.setdefault(name, []).append(f"{path.relative_to(root)}::{scenario}")
    return found


def table(found: dict[str, list[str]]) -> str:
    """All ids with their tests, or with what they wait for."""
    lines = []
    for name, wording in IDS.items():
        lines.append(f"{name:20} {wording}")
        lines += [f"    {test}" for test in found.get(name, [])]
        if name in OPEN:
            lines.append(f"    OPEN: waits for {OPEN[name]}")
    return "\n".join(lines)


def problems(found: dict[str, list[str]]) -> list[str]:
    """What is wrong: ids without a test, tests of unknown ids, and open ones that have a test."""
    wrong = [f"{name} has no test and is not OPEN" for name in IDS if name not in found and name not in OPEN]
    wrong += [f"{name} is OPEN but has a test: {found[name][0]}" for name in OPEN if name in found]
    wrong += [f"{name} is OPEN but no id" for name in OPEN if name not in IDS]
    wrong += [f"{name} is no id, but {tests[0]} bears it" for name, tests in found.items() if name not in IDS]
    return wrong


def _in_module(path: Path) -> Iterator[tuple[str, list[str]]]:
    source = path.read_text()
    if f"mark.{MARKER}" not in source:
        return
    tree = ast.parse(source)
    read = 0
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for call in filter(_is_marker, function.decorator_list):
                if not (path.name.startswith("test_") and function.name.startswith("test_")):
                    raise Misplaced(f"{path.name}:{call.lineno}: {function.name} is no test")
                read += 1
                yield function.name, _ids(call, path)
    everywhere = sum(_is_marker(node) for node in ast.walk(tree))
    if everywhere != read:
        raise Misplaced(f"{path.name}: {everywhere - read} of the markers decorate no function")


def _is_marker(node: ast.AST) -> bool:
    """Whether this is a use of `pytest.mark.spec`; the attribute inside a call is not counted again."""
    if isinstance(node, ast.Call):
        node = node.func
        return isinstance(node, ast.Attribute) and ast.unparse(node) == f"pytest.mark.{MARKER}"
    return False


def _ids(call: ast.AST, path: Path) -> list[str]:
    assert isinstance(call, ast.Call)
    ids = [argument.value for argument in call.args if isinstance(argument, ast.Constant)]
    if not ids or len(ids) != len(call.args) or call.keywords or not all(isinstance(name, str) for name in ids):
        raise Misplaced(f"{path.name}:{call.lineno}: ids are written out as strings")
    return [str(name) for name in ids]


def _in_feature(text: str) -> Iterator[tuple[str, list[str]]]:
    """Scenarios with the ids among their tags and their feature's."""
    tags: list[str] = []
    of_feature: list[str] = []
    for line in map(str.strip, text.splitlines()):
        if line.startswith("@"):
            tags += [tag[1:] for tag in line.split()]
        elif line.startswith("Feature:"):
            of_feature, tags = tags, []
        elif match := re.match(r"Scenario(?: Outline)?: (.+)", line):
            yield match[1], [tag for tag in (*of_feature, *tags) if tag in IDS or re.match(r"[A-Z]+-?[\dM]", tag)]
            tags = []


if __name__ == "__main__":
    print(table(shown()))
    sys.exit("\n".join(problems(shown())) or 0)
