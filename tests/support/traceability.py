"""Which test shows what of the specification, read from the sources, and what reaches it in the product.

`python -m tests.support.traceability` prints the table.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

# What the specification asks for, by its own ids, in our words; and which of it is still to be built.
#
# Stories are numbered as there (``US2.3`` is scenario 3 of story 2), edge cases and sections by their order.

IDS = {
    # Stories and their acceptance scenarios
    "US1.1": "the orchestrator's request has its worktree",
    "US1.2": "every agent's request has a worktree, by a decorator",
    "US1.3": "submodules come with the main worktree",
    "US2.1": "reading inside works",
    "US2.2": "reading in another agent's worktree is denied, with a message",
    "US2.3": "reading by '..' is denied",
    "US3.1": "writing inside works",
    "US3.2": "writing in another agent's worktree is denied, with a message",
    "US3.3": "creating by '..' is denied",
    "US4.1": "editing inside works",
    "US4.2": "editing outside is denied, with a message",
    "US5.1": "a tool's header leads to the worktree",
    "US5.2": "an invalid header gives a clear error",
    "US5.3": "a node's id leads to its worktree",
    "US6.1": "an assigned submodule can be used",
    "US6.2": "a submodule that was not assigned cannot",
    "US7.1": "each ticket gets a worktree beside the original",
    "US7.2": "the ticket's request names it",
    "US7.3": "ticket agents do not touch one another's work",
    # Edge cases
    "EDGE-1": "a request before its worktree exists",
    "EDGE-2": "symbolic links that lead out",
    "EDGE-3": "two agents in one worktree",
    "EDGE-4": "operations on the worktree's root itself",
    "EDGE-5": "a worktree that is deleted during work",
    # Functional requirements
    "FR-001": "decorators pass worktrees on",
    "FR-002": "the orchestrator's comes from its node",
    "FR-003": "all others inherit it",
    "FR-004": "every request type has room for it",
    "FR-004a": "contexts in memory, by session, updated immutably",
    "FR-004b": "decorators fill them",
    "FR-004c": "session id, key and context id are one",
    "FR-004d": "whoever needs the contexts is given them",
    "FR-004e": "the ACP side translates a session's boundaries",
    "FR-004f": "translation is each provider's own",
    "FR-004g": "variables and arguments by a strategy per provider",
    "FR-004h": "they are part of the command that is started",
    "FR-004i": "further providers can be added",
    "FR-005": "a worktree per ticket",
    "FR-006": "beside the parent's",
    "FR-007": "the ticket's request names it",
    "FR-008": "the ticket orchestrator's prompt speaks of worktrees",
    "FR-009": "with the parent's, from the previous request",
    "FR-010": "reading outside is blocked",
    "FR-011": "writing outside is blocked",
    "FR-012": "editing outside is blocked",
    "FR-013": "paths are normalized",
    "FR-014": "denials are JSON",
    "FR-015": "one session header",
    "FR-016": "file tools take the session from it",
    "FR-017": "boundaries are looked up by session",
    "FR-018": "designated submodules",
    "FR-019": "file tools enforce the boundaries",
    # Success criteria
    "SC-001": "all requests have a worktree",
    "SC-002": "everything outside is blocked",
    "SC-003": "inside nothing gets slower",
    "SC-004": "'..' never leads out",
    "SC-005": "errors name path and boundary",
    "SC-006": "all submodule arrangements",
    "SC-007": "ticket worktrees are distinct",
    "SC-008": "worktrees pass from parent to child",
    # Merge flow
    "MF-001": "all request types get their worktree",
    "MF-002": "the orchestrator's node is found",
    "MF-003": "children inherit",
    "MF-004": "dispatches give distinct worktrees",
    "MF-005": "main worktree and submodules in one context",
    "MF-006": "a worktree for every submodule",
    "MF-007": "the main worktree lists them",
    "MF-008": "each names its main worktree",
    "MF-009": "phase 1 for three kinds of results",
    "MF-010": "from trunk to child",
    "MF-011": "submodules first",
    "MF-012": "the result tells how it went",
    "MF-013": "direction, success, files, submodules",
    "MF-014": "three kinds of dispatch results",
    "MF-015": "decorators for them",
    "MF-016": "run after collecting, before routing",
    "MF-017": "phase 2 goes through all children",
    "MF-018": "submodules first there too",
    "MF-019": "merged, pending, conflicted",
    "MF-020": "it stops at the first conflict",
    "MF-021": "the routing model is told",
    "MF-022": "and decides",
    "MF-023": "submodule merges in the right order",
    "MF-024": "pointers follow",
    "MF-025": "rollback",
    "EC-MF-001": "submodule merged, main not",
    "EC-MF-002": "pointer not updated",
    "EC-MF-003": "no changes",
    "EC-MF-004": "the parent's worktree is gone",
    "EC-MF-005": "a submodule that only the child has",
    "EC-MF-006": "no worktree on the result",
    "EC-MF-007": "conflict in phase 1 already",
    "EC-MF-008": "how the routing model learns of it",
    "SM-MF-001": "all results with a descriptor",
    "SM-MF-002": "all dispatch results with an aggregation",
    "SM-MF-003": "submodules before main, always",
    "SM-MF-004": "the aggregation counts everybody",
    "SM-MF-005": "its prompt piece for dispatches",
    "SM-MF-006": "integration tests of all merge scenarios",
    "SM-MF-007": "unit tests of all merge edge cases",
    # Sections of the contracts
    "CONTRACT-1": "request decorators",
    "CONTRACT-2": "request context and its repository",
    "CONTRACT-2a": "provider translation",
    "CONTRACT-3": "prompt contributors",
    "CONTRACT-4": "the validator",
    "CONTRACT-5": "file tools",
    "CONTRACT-6": "the session header",
    "CONTRACT-7": "request types and where their worktrees come from",
    "CONTRACT-8": "the order in which contexts are filled",
    "CONTRACT-9": "phase 1",
    "CONTRACT-10": "phase 2",
    "CONTRACT-11": "dispatch results",
    "CONTRACT-12": "decorating them",
    "CONTRACT-13": "the merge status in prompts",
    "CONTRACT-ERROR": "the JSON of a denial",
    "CONTRACT-COMPATIBLE": "four cases of legacy behaviour",
}

OPEN: dict[str, str] = {}
"""Ids that wait for a part of Paddock which is not built yet, and which one. A test of it takes the id out of here."""


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


WAYS = {
    "tickets": "paddock tickets, over the service",
    "run": "paddock run",
    "files": "paddock files",
    "library": "launcher.api",
}


def reached() -> dict[str, tuple[str, str]]:
    """From where each id is reached, one of `WAYS`, and the function that does it, as ``module:name``."""
    lines = (TESTS / "support/reached.txt").read_text().splitlines()
    rows = [line.split() for line in lines if not line.startswith("#")]
    return {name: (way, function) for name, way, function in rows}


def table(found: dict[str, list[str]]) -> str:
    """All ids with what reaches them and with their tests, or with what they wait for."""
    lines = []
    ways = reached()
    for name, wording in IDS.items():
        lines.append(f"{name:20} {wording}")
        way, function = ways[name]
        lines.append(f"    reached from {WAYS[way]}: {function}")
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
