"""Writing the file from which `launcher.start` loads the modules of a launch, once for all launches.

All that every launch needs comes first, to be executed in one go; then, in groups, what only some launches need.
Imported by the one command that writes it.
"""

import ast
import marshal
import posix
import sys

from launcher.start import BUNDLE, ROOT, TOP_LEVEL, CompiledModules, bundle_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType

    from launcher.start import Kept

ALWAYS = "launcher.verbs.run"
"""With it comes all that a plain launch needs."""

ROOT_PACKAGE = "launcher"

SOMETIMES = (
    "launcher.jail.namespaces",
    "launcher.session.private_git",
    "launcher.vcs.harvest.agent_refs",
    "launcher.ledger.audit_socket",
    "launcher.ledger.audit_socket",
    "launcher.session.denial_collector",
    "launcher.jail.seccomp",
    "launcher.egress.handle",
    "launcher.session.own_terminal",
    "launcher.session.state",
    "launcher.session.limits",
    "launcher.jail.guard.server",
    "launcher.vcs.quarantine.swap",
)
"""What launches import at use, each with what it needs itself."""


def write() -> None:
    """Keeps the compiled forms of these modules together, atomically; where that is not possible, does nothing."""
    executed = CompiledModules.executed
    groups: list[list[str]] = []
    for name in (ALWAYS, *SOMETIMES):
        before = len(executed)
        __import__(name)
        groups.append(executed[before:] if groups else [ROOT_PACKAGE, *executed])
    ours = {name for name in sys.modules if name.partition(".")[0] in TOP_LEVEL}
    if ours != {ROOT_PACKAGE, "launcher.start", *executed}:
        return  # some were compiled just now: the next command does it
    # Of this command alone; what brought us here is no part of a launch.
    groups[0].remove(__name__)
    path = bundle_path()
    directory, _, own = path.rpartition("/")
    temporary = f"{path}.{posix.getpid()}"
    try:
        for name in posix.listdir(directory):
            beginning, _, writer = name.rpartition(".")
            if beginning == own and writer.isdigit() and not posix.access(f"/proc/{writer}", posix.F_OK):
                posix.unlink(f"{directory}/{name}")  # of a launch that was killed while it wrote
        content = _content(groups)
        descriptor = posix.open(temporary, posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_CLOEXEC, 0o644)
        try:
            whole = posix.write(descriptor, content) == len(content)
        finally:
            posix.close(descriptor)
        if whole:
            posix.replace(temporary, path)
        else:
            posix.unlink(temporary)
    except OSError:
        return


def _content(groups: list[list[str]]) -> bytes:
    """The file: a mark, the length of the index, the index, and the modules' code."""
    codes: list[bytes] = []
    found: list[list[Kept]] = []
    offset = 0
    for group in groups:
        found.append([])
        for name in group:
            source = sys.modules[name].__file__
            assert source is not None
            entry = posix.stat(source)
            codes.append(marshal.dumps(_slim(source)))
            found[-1].append((name, source, entry.st_mtime_ns, entry.st_size, offset, len(codes[-1])))
            offset += len(codes[-1])
    # Offsets are counted from the end of the index: its own length depends on them.
    index = marshal.dumps((ROOT, found[0], found[1:]))
    return b"".join((BUNDLE, len(index).to_bytes(4, "little"), index, *codes))


def _slim(source: str) -> "CodeType":
    """The code of a source file without docstrings and columns, a third of it that no launch ever looks at.

    Lines stay: an internal error says where it happened.
    """
    with open(source, "rb") as file:
        tree = ast.parse(file.read(), source)
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt | ast.expr | ast.excepthandler | ast.arg | ast.keyword | ast.alias | ast.pattern):
            node.end_lineno = node.lineno
            node.col_offset = node.end_col_offset = -1  # "none", for the compiler as for the table of places
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node, clean=False):
            node.body[:1] = [] if len(node.body) > 1 else [ast.copy_location(ast.Pass(), node.body[0])]
    code: CodeType = compile(tree, source, "exec", dont_inherit=True, optimize=sys.flags.optimize)
    return code
