"""The rules that a reader may rely on: types, style, direction of imports, size, nothing private committed."""

import ast
import hashlib
import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("launcher", "policy")
FOLDERS = (*PACKAGES, "tests")
LINE_CEILING = 800

LAUNCH_PATH = (
    "policy/plan.py",
    "policy/errors.py",
    "policy/promises.py",
    "policy/runners.py",
    "launcher/start.py",
    "launcher/lean.py",
    "launcher/__main__.py",
    "launcher/cli.py",
    "launcher/verbs/run.py",
    "launcher/ledger/audit*.py",
    "launcher/ledger/enforcement.py",
    "launcher/egress/handle.py",
    "launcher/safefs/walk.py",
    "launcher/safefs/remove.py",
    "launcher/jail/*.py",
    "launcher/jail/*/*.py",
    "launcher/session/private_git.py",
    "launcher/vcs/harvest/agent_refs.py",
    "launcher/vcs/private/lease.py",
    "launcher/vcs/private/lock.py",
    "launcher/vcs/private/record.py",
)
"""Patterns of the files that every warm launch reads; a pattern may match nothing while a room is not built."""

CHEAP = {"sys", "os", "marshal", "ctypes"}
BUILT_IN = {
    "_frozen_importlib",
    "_frozen_importlib_external",
    "gc",
    "_signal",
    "_thread",
    "posix",
    "errno",
    "time",
    "select",
    "fcntl",
    "_stat",
    "_struct",
    "_ctypes",
    "_socket",
    "_imp",
}

JAIL_MAY_IMPORT = (
    "policy.plan",
    "policy.errors",
    "policy.promises",
    "launcher.jail",
    "launcher.ledger",
    "launcher.safefs",
    "launcher.lean",
    "launcher.wire",
)


def python_files(*folders: str) -> list[Path]:
    """Every Python file below these folders of the repository."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def committed_files() -> list[Path]:
    """What git would commit; in an unpacked archive, every file outside hidden and cache directories."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode == 0:
        return [path for name in listing.stdout.split("\0") if name and (path := ROOT / name).is_file()]
    return [
        path
        for path in ROOT.rglob("*")
        if path.is_file() and not any(p.startswith(".") or p == "__pycache__" for p in path.relative_to(ROOT).parts)
    ]


def tool(*words: str) -> None:
    """Runs a tool of this environment on the repository; the test fails with its output."""
    ended = subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def imports_of(nodes: list[ast.stmt], package: str) -> set[str]:
    """Absolute names of all modules that these statements import, conditional ones excepted for TYPE_CHECKING."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: len(package.split(".")) + 1 - node.level]) if node.level else ""
            module = ".".join(filter(None, (base, node.module or "")))
            found |= {f"{module}.{alias.name}" if module in PACKAGES_AND_ROOMS else module for alias in node.names}
        elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            found |= imports_of(node.orelse, package)
        else:
            for _, value in ast.iter_fields(node):
                if isinstance(value, list):
                    found |= imports_of([item for item in value if isinstance(item, ast.stmt)], package)
                    for handler in value:
                        if isinstance(handler, ast.ExceptHandler | ast.match_case):
                            found |= imports_of(handler.body, package)
    return found


# `from launcher.jail import syscalls` imports the module launcher.jail.syscalls: packages hold no names.
PACKAGES_AND_ROOMS = {
    ".".join(path.parent.relative_to(ROOT).parts) for path in python_files(*PACKAGES) if path.name == "__init__.py"
}


def module_level(tree: ast.Module) -> list[ast.stmt]:
    """The statements that run on import: everything but the bodies of functions."""

    class Strip(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
            return None

        def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
            return None

    stripped = Strip().visit(tree)
    assert isinstance(stripped, ast.Module)
    return stripped.body


def package_of(path: Path) -> str:
    """Dotted name of the package that holds this file."""
    return ".".join(path.parent.relative_to(ROOT).parts)


def test_ruff_finds_nothing() -> None:
    """The linter has no complaint."""
    tool("ruff", "check", "--quiet", ".")


def test_ruff_would_not_reformat_anything() -> None:
    """All Python files are formatted."""
    tool("ruff", "format", "--check", "--quiet", ".")


def test_mypy_is_content_with_everything() -> None:
    """Types hold under --strict, tests and the command script included."""
    # One that knew other modules or packages has reported new ones as missing.
    known = [*python_files(*FOLDERS), sys.executable]
    known += [f"{each.name} {each.version}" for each in importlib.metadata.distributions()]
    cache = ROOT / ".mypy_cache" / hashlib.sha256("\n".join(sorted(map(str, known))).encode()).hexdigest()[:16]
    for old in {*cache.parent.glob("*")} - {cache}:
        shutil.rmtree(old, ignore_errors=True)  # two files are mypy's own
    tool("mypy", "--strict", f"--cache-dir={cache}", "--scripts-are-modules", *FOLDERS, "launcher/paddock")


def test_the_command_script_passes_the_linter() -> None:
    """The part of the `paddock` script that Python reads is linted (not formatted: its quotes are shell syntax)."""
    ended = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--quiet", "--stdin-filename", "launcher/paddock.py", "-"],
        cwd=ROOT,
        input=(ROOT / "launcher/paddock").read_text(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_imports_point_in_one_direction() -> None:
    """The import contracts of pyproject.toml are kept."""
    program = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " 0 broken" in ended.stdout


def test_the_jail_sees_nothing_but_the_plan_and_the_ledger() -> None:
    """Between fork and exec no code runs that decides anything."""
    for path in python_files("launcher/jail"):
        for name in imports_of(ast.parse(path.read_text()).body, package_of(path)):
            if name.partition(".")[0] in PACKAGES:
                assert name.startswith(JAIL_MAY_IMPORT), f"{path.relative_to(ROOT)} imports {name}"


def test_launch_path_modules_import_only_what_is_cheap() -> None:
    """No module that every launch loads pulls in a costly one when it is imported."""
    paths = {path for pattern in LAUNCH_PATH for path in ROOT.glob(pattern)}
    assert len(paths) > len(LAUNCH_PATH)
    for path in sorted(paths):
        for name in imports_of(module_level(ast.parse(path.read_text())), package_of(path)):
            top = name.partition(".")[0]
            assert top in {*CHEAP, *BUILT_IN, *PACKAGES}, f"{path.relative_to(ROOT)} imports {name}"


@pytest.mark.parametrize("path", [p for p in python_files(*FOLDERS) if p.name == "__init__.py"], ids=package_of)
def test_a_package_file_holds_a_docstring_only(path: Path) -> None:
    """A re-export in `__init__.py` would put its import on everybody's path."""
    body = ast.parse(path.read_text()).body
    assert len(body) == 1
    assert isinstance(body[0], ast.Expr)
    assert isinstance(body[0].value, ast.Constant)
    assert isinstance(body[0].value.value, str)


def test_tests_are_no_packages() -> None:
    """Test modules are found by path; two of the same name would hide one another."""
    assert not [path for path in python_files("tests") if path.name == "__init__.py"]
    names = [path.name for path in python_files("tests") if path.name.startswith("test_")]
    assert len(names) == len(set(names))


def test_no_file_is_too_long_to_read_at_once() -> None:
    """A file beyond the ceiling holds two nouns and wants to be a package."""
    long = {
        str(path.relative_to(ROOT)): count
        for path in python_files(*FOLDERS)
        if (count := len(path.read_text().splitlines())) > LINE_CEILING
    }
    assert not long


# Spelt in parts, so that this file does not name them either.
PRIVATE = tuple(
    "".join(parts)
    for parts in (
        ("/wo", "rk/"),
        ("/opt/", "wheels"),
        ("/opt/", "pypi"),
        ("pypi", ".org"),
        ("python", "hosted.org"),
        ("registry.", "npmjs"),
        ("registry.", "yarnpkg"),
        ("proxy.", "golang.org"),
        ("crates", ".io"),
        ("rubygems", ".org"),
    )
)


def test_no_committed_file_names_this_machine_or_a_registry() -> None:
    """Paths of a developer's machine and package hosts do not belong in the repository."""
    here = re.escape(str(ROOT))
    own_path = re.compile(here + r"(?![\w.-])") if len(ROOT.parts) > 2 else None  # "/app" could stand for anything
    found = []
    for path in committed_files():
        text = path.read_bytes().decode(errors="replace")
        found += [f"{path.relative_to(ROOT)}: {word}" for word in PRIVATE if word in text]
        if own_path is not None and own_path.search(text):
            found.append(f"{path.relative_to(ROOT)}: {ROOT}")
    assert not found


def test_what_programmes_in_texts_import_is_there() -> None:
    """Tests and demonstrations hold programmes as texts, which no import check reads."""
    missing = []
    for path in (each for each in (ROOT / "tests").rglob("*.*") if each.suffix in (".py", ".txt")):
        for module, names in re.findall(r"from ((?:launcher|policy)[\w.]*) import ([\w, ]+)", path.read_text()):
            for name in (words.split()[0] for words in names.split(",") if words.split()):
                found = importlib.import_module(module)
                if not hasattr(found, name) and importlib.util.find_spec(f"{module}.{name}") is None:
                    missing.append(f"{path}: {module} {name}")
    assert missing == []
