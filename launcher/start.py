"""Where the `paddock` script hands over: the quick road to `launcher.__main__`.

Everything here is about the time before a command starts. Importing some 25 small modules the usual way costs a third
of a launch, most of it for listing directories, computing names and asking for alternatives; `CompiledModules` opens
the one file that must be there. It trusts what the interpreter trusts: a `.pyc` counts only if it was made from the
source as it is now.

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

_ROOT = __file__.rpartition("/")[0].rpartition("/")[0]
_TOP_LEVEL = ("launcher", "policy")
_HEADER = MAGIC_NUMBER + bytes(4)  # flags 0: checked against the source's time and size (PEP 552)


class CompiledModules:
    """A finder on `sys.meta_path` (PEP 451) for this distribution's own modules, and their loader.

    Finds only what is already compiled and up to date; for anything else it answers None, and the usual finders
    behind it do their work, compiling included.
    """

    __slots__ = ("_code",)

    def __init__(self, code: "CodeType | None" = None) -> None:
        """Without `code` a finder; with it the loader of one module."""
        self._code = code

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> "ModuleSpec | None":
        """The spec of a module whose compiled form is up to date, else None."""
        del path, target
        if name.partition(".")[0] not in _TOP_LEVEL:
            return None
        base = f"{_ROOT}/{name.replace('.', '/')}"
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
        loader: Any = cls(marshal.loads(memoryview(content)[16:]))
        spec = ModuleSpec(name, loader, origin=source, is_package=package)
        spec.has_location = True
        spec.cached = cached
        if package:
            spec.submodule_search_locations = [base]
        return spec

    @staticmethod
    def create_module(spec: "ModuleSpec") -> None:
        """None: the import system makes the module."""
        del spec

    def exec_module(self, module: "ModuleType") -> None:
        """Runs the module's code in it."""
        assert self._code is not None
        exec(self._code, module.__dict__)


def start(argv: list[str]) -> "NoReturn":
    """Runs one command line with `launcher.__main__.main` and ends the process with its exit status.

    Collections of garbage are switched off: what a launch makes, it keeps to its end (verbs that live longer switch
    them on again). Taking the interpreter apart costs a millisecond more, so the process ends without it.
    """
    gc.disable()
    sys.meta_path.insert(0, CompiledModules)
    try:
        from launcher.__main__ import main

        status = main(argv)
        if sys.stdout is not None:
            sys.stdout.flush()  # `main` has done it, and said what went wrong
    except KeyboardInterrupt:  # ends like any command that Ctrl-C killed, so that a shell loop around it stops too
        import signal

        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
        raise
    posix._exit(status)
