"""Where the `paddock` script hands over: the quick road to `launcher.__main__`.

Everything here is about the time before a command starts. Importing some 35 small modules the usual way costs a third
of a launch, most of it for listing directories, computing names and asking for alternatives. `load_bundle` executes
them from one file, `CompiledModules` opens the one file that must be there. Both trust what the interpreter trusts:
what lies in `__pycache__` counts only if it was made from the source as it is now.

Imported by the script only, under `python -I -S`; nothing but built-in modules is imported at the top.
"""

import gc
import marshal
import posix
import sys
from _frozen_importlib import ModuleSpec  # the class behind importlib.machinery.ModuleSpec
from _frozen_importlib_external import MAGIC_NUMBER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, ModuleType
    from typing import Any, NoReturn

    Kept = tuple[str, str, int, int, int, int]
    """A module in the bundle: name, source, when that was changed (nanoseconds), its size, offset and length here."""

ROOT = __file__.rpartition("/")[0].rpartition("/")[0]
TOP_LEVEL = ("launcher", "policy")
_NO_MEMORY = (
    b"paddock: there is not enough memory to start [memory-missing]\n"
    b"  why:  the interpreter could not go on; `ulimit -v` says what this shell allows\n"
    b"  hint: allow more, or free some\n"
)
BUNDLE = b"paddock-bundle-3\n" + MAGIC_NUMBER
_HEADER = MAGIC_NUMBER + bytes(4)  # flags 0: checked against the source's time and size (PEP 552)


class CompiledModules:
    """A finder on `sys.meta_path` (PEP 451) for this distribution's own modules, and their loader.

    Finds only what is already compiled and up to date; for anything else it answers None, and the usual finders
    behind it do their work, compiling included.
    """

    __slots__ = ("code",)

    executed: "list[str]" = []  # noqa: RUF012  # shared on purpose
    """Names of the modules that were loaded, in the order in which that was finished."""

    kept: "dict[str, Kept]" = {}  # noqa: RUF012  # shared on purpose
    """What the bundle has of modules that only some launches need, by name."""

    bundle = 0
    """When the bundle was written that says so, in nanoseconds."""

    codes = 0
    """Where the code begins in it."""

    def __init__(self, code: "CodeType | None" = None) -> None:
        """Without `code` a finder; with it the loader of one module."""
        self.code = code

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> "ModuleSpec | None":
        """The spec of a module whose compiled form is up to date, else None."""
        del path, target
        if name.partition(".")[0] not in TOP_LEVEL:
            return None
        if name in cls.kept and (code := _from_bundle(name)) is not None:
            source = cls.kept[name][1]
            return _spec(name, cls(code), source, source.endswith("/__init__.py"))
        base = f"{ROOT}/{name.replace('.', '/')}"
        source, package = base + ".py", False
        try:
            found = posix.stat(source)
        except OSError:
            source, package = base + "/__init__.py", True
            try:
                found = posix.stat(source)
            except OSError:
                return None
        directory, _, file = source.rpartition("/")
        cached = f"{directory}/__pycache__/{file[:-3]}.{sys.implementation.cache_tag}.pyc"
        expected = _HEADER + (int(found.st_mtime) & 0xFFFFFFFF).to_bytes(4, "little")
        expected += (found.st_size & 0xFFFFFFFF).to_bytes(4, "little")
        try:
            descriptor = posix.open(cached, posix.O_RDONLY | posix.O_CLOEXEC)
        except OSError:
            return None
        try:
            content = posix.read(descriptor, 1 << 20)
        except OSError:
            return None
        finally:
            posix.close(descriptor)
        if content[:16] != expected or len(content) >= 1 << 20:
            return None
        return _spec(name, cls(marshal.loads(memoryview(content)[16:])), source, package)

    @classmethod
    def parsed(cls, path: str) -> "dict[str, Any] | None":
        """What one of `TABLES` says, by its path; None when that is not kept, or was changed since."""
        name = path[len(ROOT) + 1 :]
        return _from_bundle(name) if name in cls.kept else None

    @staticmethod
    def create_module(spec: "ModuleSpec") -> None:
        """None: the import system makes the module."""
        del spec

    def exec_module(self, module: "ModuleType") -> None:
        """Runs the module's code in it."""
        assert self.code is not None
        exec(self.code, module.__dict__)
        self.executed.append(module.__name__)


def _spec(name: str, found: CompiledModules, source: str, package: bool) -> ModuleSpec:
    loader: Any = found
    spec = ModuleSpec(name, loader, origin=source, is_package=package)
    spec.has_location = True
    if package:
        spec.submodule_search_locations = [source.rpartition("/")[0]]
    return spec


def bundle_path() -> str:
    """Where the modules of a plain launch are kept together, beside the other compiled forms."""
    return f"{ROOT}/launcher/__pycache__/launch.{sys.implementation.cache_tag}.bundle"


def load_bundle() -> bool:
    """Executes the modules of a plain launch from the bundle; False when there is none, or one source has changed."""
    try:
        descriptor = posix.open(bundle_path(), posix.O_RDONLY | posix.O_CLOEXEC)
    except OSError:
        return False
    try:
        # The kernel hands out memory by the page, which costs more than reading: small pieces use the same pages again.
        head = posix.read(descriptor, len(BUNDLE) + 4)
        if not head.startswith(BUNDLE):
            return False
        written = posix.fstat(descriptor).st_mtime_ns
        root, modules, others = marshal.loads(posix.read(descriptor, int.from_bytes(head[len(BUNDLE) :], "little")))
        if root != ROOT:
            return False
        for module in modules:
            if _changed(module):
                return False
        for name, source, _, _, _, length in modules:
            content = posix.read(descriptor, length)
            if name not in sys.modules:
                _execute(name, source, marshal.loads(content))
    except OSError:
        return False
    finally:
        posix.close(descriptor)
    CompiledModules.bundle, CompiledModules.codes = written, len(head) + int.from_bytes(head[len(BUNDLE) :], "little")
    CompiledModules.kept.update((module[0], module) for module in others)
    return True


def _changed(module: "Kept") -> bool:
    """Whether a source is not the one any more from which the bundle was made."""
    found = posix.stat(module[1])
    return found.st_mtime_ns != module[2] or found.st_size != module[3]


def _from_bundle(name: str) -> "Any":  # noqa: ANN401  # typeshed names no type for what marshal gives
    """The code of a module that is kept for launches that need it, or a table; None when it is not up to date.

    Nothing is executed here, ahead of being asked for: other threads import meanwhile, and wait for whole modules only
    where the import system executes them.
    """
    module = CompiledModules.kept[name]
    try:
        descriptor = posix.open(bundle_path(), posix.O_RDONLY | posix.O_CLOEXEC)
    except OSError:
        return None
    try:
        if posix.fstat(descriptor).st_mtime_ns != CompiledModules.bundle:
            return None  # another one by now
        if _changed(module):
            return None
        return marshal.loads(posix.pread(descriptor, module[5], CompiledModules.codes + module[4]))
    except OSError:
        return None
    finally:
        posix.close(descriptor)


def _execute(name: str, source: str, code: "CodeType") -> None:
    module: Any = type(sys)(name)
    module.__file__ = source
    parent, _, own = name.rpartition(".")
    if source.endswith("/__init__.py"):
        module.__package__, module.__path__ = name, [source[: -len("/__init__.py")]]
    else:
        module.__package__ = parent
    sys.modules[name] = module
    exec(code, module.__dict__)
    if parent:
        setattr(sys.modules[parent], own, module)


def start(argv: list[str]) -> "NoReturn":
    """Runs one command line with `launcher.__main__.main` and ends the process with its exit status.

    Collections of garbage are switched off: what a launch makes, it keeps to its end (verbs that live longer switch
    them on again). Taking the interpreter apart costs a millisecond more, so the process ends without it.
    """
    gc.disable()
    sys.meta_path.insert(0, CompiledModules)
    try:
        bundled = load_bundle()
        from launcher.__main__ import main

        # Whatever is asked for: where root installs for everybody, root may never launch anything.
        if not bundled and posix.access(bundle_path().rpartition("/")[0], posix.W_OK, effective_ids=True):
            write_bundle()
        status = main(argv)
        if sys.stdout is not None:
            sys.stdout.flush()  # `main` has done it, and said what went wrong
    except (MemoryError, SystemError):  # the latter is what a call gives for which there was no memory, in CPython 3.11
        posix.write(2, _NO_MEMORY)
        posix._exit(125)
    except KeyboardInterrupt:  # ends like any command that Ctrl-C killed, so that a shell loop around it stops too
        import signal

        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
        raise
    posix._exit(status)


# Writing the file from which `launcher.start` loads the modules of a launch, once for all launches.
#
# All that every launch needs comes first, to be executed in one go; then what only some launches need.

ALWAYS = "launcher.verbs.run"
"""With it comes all that a plain launch needs."""

ROOT_PACKAGE = "launcher"

SOMETIMES = (
    "launcher.jail.namespaces",
    "launcher.session.private_git",
    "launcher.vcs.harvest.agent_refs",
    "launcher.ledger.audit_socket",
    "launcher.session.denial_collector",
    "launcher.jail.seccomp",
    "launcher.egress.handle",
    "launcher.session.own_terminal",
    "launcher.session.state",
    "launcher.session.generous",
    "launcher.session.limits",
    "launcher.jail.guard.server",
    "launcher.vcs.private.swap",
    "launcher.session.planning",
)
"""What launches import at use."""

TABLES = ("policy/default.toml", "policy/toolchains.toml")
"""Data that a plan is made from, kept as it is once it is parsed."""


def write_bundle() -> None:
    """Keeps the compiled forms of these modules together, atomically; where that is not possible, does nothing."""
    executed = CompiledModules.executed
    __import__(ALWAYS)
    always = [ROOT_PACKAGE, *executed]
    for name in SOMETIMES:
        __import__(name)
    ours = {name for name in sys.modules if name.partition(".")[0] in TOP_LEVEL}
    if ours != {ROOT_PACKAGE, "launcher.start", *executed}:
        return  # some were compiled just now: the next command does it
    path = bundle_path()
    directory, _, own = path.rpartition("/")
    temporary = f"{path}.{posix.getpid()}"
    try:
        for name in posix.listdir(directory):
            beginning, _, writer = name.rpartition(".")
            if beginning == own and writer.isdigit() and not posix.access(f"/proc/{writer}", posix.F_OK):
                posix.unlink(f"{directory}/{name}")  # of a launch that was killed while it wrote
        content = _content(always, [*executed[len(always) - 1 :], *TABLES])
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


def _content(*groups: list[str]) -> bytes:
    """The file: a mark, the length of the index, the index, and the modules' code."""
    codes: list[bytes] = []
    found: list[list[Kept]] = []
    offset = 0
    for group in groups:
        found.append([])
        for name in group:
            source = f"{ROOT}/{name}" if name in TABLES else sys.modules[name].__file__
            assert source is not None
            entry = posix.stat(source)
            codes.append(marshal.dumps(_table(source) if name in TABLES else _slim(source)))
            found[-1].append((name, source, entry.st_mtime_ns, entry.st_size, offset, len(codes[-1])))
            offset += len(codes[-1])
    # Offsets are counted from the end of the index: its own length depends on them.
    index = marshal.dumps((ROOT, *found))
    return b"".join((BUNDLE, len(index).to_bytes(4, "little"), index, *codes))


def _table(source: str) -> "dict[str, Any]":
    import tomllib

    with open(source, "rb") as file:
        return tomllib.load(file)


def _slim(source: str) -> "CodeType":
    """The code of a source file without docstrings and columns, a third of it that no launch ever looks at.

    Lines stay: an internal error says where it happened.
    """
    import ast

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
