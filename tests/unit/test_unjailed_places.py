"""What Paddock does outside of its jails by name: every place stands in a table, with why its tree is no agent's.

The table is `unjailed_places.txt`: a line that begins with ``#`` gives a reason, and the places below it have that one.
A place is a module, a function and the calls there. Whoever adds one has to say why no session can lead it elsewhere;
whoever can, works by descriptors instead (`launcher.safefs.walk`, `launcher.safefs.guarded_files`), or in a jail.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("unjailed_places.txt")

_BY_NAME = frozenset(
    {"chmod", "chown", "lchown", "link", "makedirs", "mkdir", "mkfifo", "mknod", "open", "remove", "removedirs",
     "removexattr", "rename", "renames", "replace", "rmdir", "setxattr", "symlink", "truncate", "unlink", "utime"}
)  # fmt: skip
_RELATIVE = frozenset({"dir_fd", "src_dir_fd", "dst_dir_fd"})
_STARTS = frozenset({"execv", "execve", "posix_spawn", "posix_spawnp", "system", "popen"})
_OF_PATHS = frozenset({"read_bytes", "read_text", "write_bytes", "write_text", "touch"})
_OURS = frozenset({"Git", "JailedGit", "open", "remove_tree"})


def call(node: ast.Call) -> str | None:
    """The name of a call that works by name or starts a process; None for any other."""
    function = node.func
    if isinstance(function, ast.Name):
        return function.id if function.id in _OURS else None
    if not isinstance(function, ast.Attribute):
        return None
    if function.attr in _OF_PATHS:
        return f"Path.{function.attr}"
    if not isinstance(function.value, ast.Name):
        return None
    module = function.value.id
    if module == "os" and function.attr in _BY_NAME and _RELATIVE.isdisjoint(word.arg for word in node.keywords):
        return f"os.{function.attr}"
    if (module, function.attr) == ("walk", "replace"):
        return "walk.replace"
    if (module == "os" and function.attr in _STARTS) or module in ("shutil", "subprocess", "tempfile"):
        return f"{module}.{function.attr}"
    return "asyncio." + function.attr if function.attr.startswith("create_subprocess_") else None


def places(tree: ast.AST, within: str = "") -> Iterator[tuple[str, str]]:
    """(function, call) of everything in a module."""
    for node in ast.iter_child_nodes(tree):
        named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        inner = f"{within}.{node.name}".lstrip(".") if named else within  # type: ignore[attr-defined]
        if isinstance(node, ast.Call) and (name := call(node)) is not None:
            yield inner or "(module)", name
        yield from places(node, inner)


def found() -> set[str]:
    """The places of the product, as lines of the table."""
    lines: dict[str, set[str]] = {}
    for folder in ("launcher", "policy"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for function, name in places(ast.parse(path.read_text())):
                lines.setdefault(f"{path.relative_to(ROOT)} {function}:", set()).add(name)
    return {f"{place} {' '.join(sorted(names))}" for place, names in lines.items()}


def table() -> dict[str, str]:
    """Place -> reason."""
    reason = ""
    reasons: dict[str, str] = {}
    for line in filter(None, map(str.strip, TABLE.read_text().splitlines())):
        if line.startswith("#"):
            reason = line.lstrip("# ")
        else:
            assert reason, f"{line}: no reason stands above it"
            assert line not in reasons, f"{line} stands there twice"
            reasons[line] = reason
    return reasons


def test_every_place_that_works_by_name_has_a_reason() -> None:
    """A new place fails, and so does a line of the table whose place is gone."""
    known, now = set(table()), found()
    assert not sorted(now - known), "works by name outside of a jail, or starts a process: say why no agent can lead it"
    assert not sorted(known - now), "is not in the code any more"


def test_the_walk_sees_what_it_is_for() -> None:
    """One line of each kind; what is relative to a descriptor is none."""
    code = """
class A:
    def f(self):
        os.rename(a, b)
        os.rename(a, b, src_dir_fd=1, dst_dir_fd=2)
        walk.replace(a, b)
        walk.put(1, a, b)
        subprocess.Popen(words)
def g():
    Git(directory)
    Path(p).write_text("")
    open(p)
"""
    assert list(places(ast.parse(code))) == [
        ("A.f", "os.rename"),
        ("A.f", "walk.replace"),
        ("A.f", "subprocess.Popen"),
        ("g", "Git"),
        ("g", "Path.write_text"),
        ("g", "open"),
    ]
