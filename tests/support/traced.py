"""An installation of the wheel that writes down which of the functions in question are called, in whatever process.

So a test can say what a verb, an API call or the service reaches: nothing is looked at but the installed command at
work. Each of these functions, in the installed sources, begins with a line of ours; nothing else differs.
"""

import ast
import os
import shutil
import subprocess
from collections.abc import Collection
from pathlib import Path

from tests.support import install
from tests.support.install import Installed

_TRACER = """
import os

_INTO = {into!r}
_seen = set()
_file = None  # descriptor and inode; opened early, because what it writes to may be out of reach later


def _opened():
    global _file
    try:
        found = os.fstat(_file[0])
        if found.st_ino != _file[1] or not found.st_nlink:  # somebody has closed it, or it has been read
            raise OSError
    except (OSError, TypeError):
        try:
            fd = os.open(_INTO + "/" + str(os.getpid()) + "-" + str(os.getuid()),
                         os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError:
            return None
        _file = (fd, os.fstat(fd).st_ino)
    return _file[0]


def call(name):
    if name not in _seen and (fd := _opened()) is not None:
        _seen.add(name)
        os.write(fd, (name + "\\n").encode())


_opened()
"""


def _functions(tree: ast.AST, within: str = "") -> dict[str, ast.stmt]:
    """Name -> first statement behind the docstring, of all functions, by their qualified names."""
    found: dict[str, ast.stmt] = {}
    for node in ast.iter_child_nodes(tree):
        name = within
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{within}{node.name}."
            if not isinstance(node, ast.ClassDef):
                body = node.body[1:] if ast.get_docstring(node) is not None and node.body[1:] else node.body
                found[name.removesuffix(".")] = body[0]
                name += "<locals>."
        found |= _functions(node, name)
    return found


class Traced:
    """The installation.

    Args:
        place: an empty directory that every user can enter.
        functions: what is asked about, as ``module:name``.

    Attributes:
        installed: the command.
        into: where it writes; the jail of whatever is to be traced has to show it (`--rw`).
    """

    def __init__(self, place: Path, functions: Collection[str]) -> None:
        self.into = place / "trace"
        self.into.mkdir()
        self.into.chmod(0o1777)
        known = install.install()
        prefix = place / "env"
        shutil.copytree(known.prefix, prefix, symlinks=True, ignore=shutil.ignore_patterns("complete", "*.whl"))
        for script in (prefix / "bin").iterdir():
            if not script.is_symlink() and (text := script.read_bytes()).startswith(b"#!"):
                script.write_bytes(text.replace(os.fsencode(known.prefix), os.fsencode(prefix)))
        (packages,) = prefix.glob("lib/python*/site-packages")
        (packages / "traced_calls.py").write_text(_TRACER.format(into=str(self.into)))
        (packages / "traced_calls.pth").write_text("import traced_calls\n")
        modules: dict[str, set[str]] = {}
        for function in functions:
            module, _, name = function.partition(":")
            modules.setdefault(module, set()).add(name)
        changed = [_trace(packages, module, names) for module, names in modules.items()]
        self.installed = Installed(prefix, prefix / "bin/paddock", prefix / "bin/python3", packages, known.wheel)
        # As whoever installs does: what is compiled is kept, and what every launch loads.
        subprocess.run([self.installed.python, "-m", "compileall", "-q", *changed], check=True)
        subprocess.run([self.installed.paddock, "--version"], check=True, stdout=subprocess.DEVNULL)

    def calls(self) -> set[str]:
        """Those that were called since the last time that this was asked."""
        found: set[str] = set()
        for path in self.into.iterdir():
            found |= set(path.read_text().splitlines())
            path.unlink()
        return found


def _trace(packages: Path, module: str, names: set[str]) -> Path:
    path = packages / (module.replace(".", "/") + ".py")
    source = path.read_text()
    lines, first = source.splitlines(), _functions(ast.parse(source))
    for name, statement in sorted(((name, first[name]) for name in names), key=lambda each: -each[1].lineno):
        at = min([statement.lineno, *(each.lineno for each in getattr(statement, "decorator_list", ()))]) - 1
        indent = lines[at][: statement.col_offset]
        assert not indent.strip(), f"{module}:{name} stands in one line"
        lines.insert(at, f"{indent}import traced_calls; traced_calls.call({f'{module}:{name}'!r})")
    path.write_text("\n".join(lines) + "\n")
    return path
