"""What there is to be read: `python -m tests.bench.bench_house [--json]` in the repository.

Of launcher and policy: files and lines; the share of docstrings and comments; shards (modules of less than 120 lines
with one importer, in their own package); names of modules that occur several times; what a launch loads; circles of
imports, those inside
functions included and those for types alone left out.

"reading" counts the lines of every module that takes in bytes by itself (`INTAKE`: it reads descriptors, sockets or
files, lists directories, follows links, or decodes JSON, frames or models) with all of the user's rights, whoever wrote
them: those that only run confined (`CONFINED`) are left out. "unconfined" counts those of them that read what an agent
wrote, as the table tests/unit/unconfined.txt says; of a module that does, all lines. A module that is handed what
another one has read is in neither.
"""

import ast
import io
import json
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("launcher", "policy")
LAUNCH = ("launcher.start", "launcher.__main__", "launcher.cli", "launcher.verbs.run", "launcher.jail.namespaces")
"""What `paddock run` imports by name when it needs it; the rest comes with these."""
TABLE = ROOT / "tests/unit/unconfined.txt"
SHORT = 120
INTAKE = frozenset(
    {"read", "pread", "readv", "preadv", "readline", "recv", "recvmsg", "recv_fds", "recv_into", "recvfrom", "receive",
     "receive_packet", "receive_piece", "read_regular", "read_up_to", "read_text", "read_bytes", "readlink", "listdir",
     "scandir", "loads", "load", "model_validate", "model_validate_json", "Decoder", "feed"}
)  # fmt: skip
CONFINED = {
    "launcher.bridges.acp": ("agent_requests", "client_requests", "conversation", "lines", "rulings", "terminals"),
    "launcher.bridges.files": ("file_worker", "reading", "scope", "searching", "writing"),
    "launcher.egress": (
        "exchange",
        "gateway",
        "held_logins",
        "hello",
        "http",
        "names",
        "proxy",
        "secured",
        "questions",
        "socks",
        "spending",
        "tls",
        "vendors",
    ),
    "launcher.service": ("screen",),
    "launcher.vcs.worktrees": ("patches",),
}
"""Modules that read an agent's bytes confined only: the bridge confines itself before it reads a line (`cell.confine`),
the file tools work in the session's jail, the proxy confines itself before it serves (`proxy.confine`), what renders a
terminal before it reads a record (`screen.serve`), what reads a diff before it reads a byte (`patches.serve`)."""
ENTRIES = {
    "launcher.bridges.acp.bridge": "starts the conversation once it is confined",
    "launcher.bridges.acp.start_failed": "writes to a client when nothing was started, so no agent is there",
    "launcher.bridges.files.workers": "makes the worker's Scope of the Plan, sends it, and names its module",
    "launcher.egress.handle": "starts the proxy",
    "launcher.helper": "starts what renders a terminal or reads a diff in a process of its own, for the page",
    "launcher.session.keeper": "asks for new tokens, with the authorities that vendors are asked with",
    "launcher.verbs.acp": "makes the Choices of a command line",
    "launcher.verbs.logs": "starts the renderer in a process of its own, and prints what it says, made safe",
}
"""Who else may import those, and why nothing of an agent's is read by that."""


class Module(NamedTuple):
    """A module: its lines, how many of them are docstrings and comments, whom it imports, whether it takes in bytes."""

    path: Path
    lines: int
    prose: tuple[int, int]
    imports: frozenset[str]
    reads: bool


def modules(root: Path = ROOT) -> dict[str, Module]:
    """All modules by their dotted names; packages too, where they hold more than their docstring."""
    files = {
        _name(path.relative_to(root)): path for folder in FOLDERS for path in sorted((root / folder).rglob("*.py"))
    }
    found = {}
    for name, path in files.items():
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        imports = frozenset(one for one in _imported(tree.body, files) if one != name)
        prose = (_docstrings(tree), _comments(text))
        found[name] = Module(path, len(text.splitlines()), prose, imports, _reads(tree))
    return found


def _name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _imported(nodes: Iterable[ast.AST], known: dict[str, Path]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from _imported(node.orelse, known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in known or node.module in known:
                    yield inner if inner in known else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        else:
            yield from _imported(ast.iter_child_nodes(node), known)


def _docstrings(tree: ast.Module) -> int:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, kinds)]
    first = [body[0] for body in bodies if body and isinstance(body[0], ast.Expr)]
    return sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in first
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    )


def _comments(text: str) -> int:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(token.type == tokenize.COMMENT and token.line.lstrip().startswith("#") for token in tokens)


def _reads(tree: ast.Module) -> bool:
    """Whether a module takes in bytes by itself."""
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return any(
        (call.attr if isinstance(call, ast.Attribute) else getattr(call, "id", "")) in INTAKE | {"open", "fdopen"}
        for call in calls
    )


def confined() -> frozenset[str]:
    """The modules of `CONFINED`."""
    return frozenset(f"{package}.{name}" for package, names in CONFINED.items() for name in names)


def unconfined(found: dict[str, Module]) -> dict[str, int]:
    """Modules that take in bytes with all of the user's rights, and their lines."""
    return {name: module.lines for name, module in found.items() if module.reads and name not in confined()}


def whose() -> dict[str, list[str]]:
    """The table of those modules: by whose bytes they read, an agent's first."""
    groups: dict[str, list[str]] = {}
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            groups[line.lstrip("# ")] = []
        else:
            groups[next(reversed(groups))].append(line)
    return groups


def circles(graph: dict[str, frozenset[str]]) -> list[list[str]]:
    """Groups of modules that import each other in a circle."""
    reached: dict[str, set[str]] = {}
    for name in graph:
        seen: set[str] = set()
        pending = list(graph[name])
        while pending:
            other = pending.pop()
            if other not in seen:
                seen.add(other)
                pending += graph[other]
        reached[name] = seen
    groups = {tuple(sorted(other for other in reached[name] if name in reached[other])) for name in graph}
    return [list(group) for group in sorted(groups) if len(group) > 1]


def launch(found: dict[str, Module]) -> list[str]:
    """The modules that a launch without a private git directory loads, packages left out."""
    pending, loaded = list(LAUNCH), set[str]()
    while pending:
        name = pending.pop()
        if name in found and name not in loaded:
            loaded.add(name)
            nodes = ast.parse(found[name].path.read_text(encoding="utf-8")).body
            outside = [node for node in nodes if not isinstance(node, ast.FunctionDef | ast.ClassDef)]
            pending += _imported(outside, {other: module.path for other, module in found.items()})
    return sorted(name for name in loaded if found[name].path.name != "__init__.py")


def figures(found: dict[str, Module]) -> dict[str, object]:
    """What there is to be read, by the names of the figures."""
    users = Counter(other for module in found.values() for other in module.imports)
    only = {other: name for name, module in found.items() for other in module.imports if users[other] == 1}
    shards = [
        name
        for name, module in found.items()
        if module.path.name != "__init__.py"
        and module.lines < SHORT
        and only.get(name, "").rpartition(".")[0] == name.rpartition(".")[0]
    ]
    names = Counter(module.path.stem for module in found.values() if module.path.name != "__init__.py")
    reading = unconfined(found)
    lines = sum(module.lines for module in found.values())
    docstrings, comments = (sum(module.prose[at] for module in found.values()) for at in (0, 1))
    return {
        "files": len(found),
        "lines": lines,
        "docstrings": round(100 * docstrings / lines, 1),
        "comments": round(100 * comments / lines, 1),
        "shards": sorted(shards),
        "several": sorted(name for name, count in names.items() if count > 1),
        "reading": sum(reading.values()),
        "unconfined": sum(reading[name] for name in next(iter(whose().values())) if name in reading),
        "launch": launch(found),
        "circles": circles({name: module.imports for name, module in found.items()}),
    }


def main() -> None:
    """Prints the figures."""
    found = figures(modules())
    if "--json" in sys.argv[1:]:
        print(json.dumps(found, indent=1))
        return
    for name, value in found.items():
        print(f"{name:12} {len(value) if isinstance(value, list) else value}")


if __name__ == "__main__":
    main()
