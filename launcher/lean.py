"""`os` and `ctypes`, as much of them as a launch needs: importing both in full takes a tenth of it.

The names here are the real modules where somebody has loaded them already (tests, every verb but `run`), and else small
stand-ins: built-in functions under the same names, and for whatever they lack the real module, imported then. So code
that says ``from launcher.lean import ctypes, os`` reads and behaves as ever.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ctypes as ctypes
    import os as os
    from collections.abc import Callable
    from typing import Any

_PRIMITIVES = {
    "c_char": "c", "c_int": "i", "c_uint": "I", "c_uint32": "I", "c_long": "l", "c_ulong": "L", "c_uint64": "L",
    "c_ssize_t": "l", "c_size_t": "L", "c_char_p": "z", "c_void_p": "P",
}  # fmt: skip
"""Types by their letter in the `struct` module; on every machine that Paddock knows a long has 64 bits."""


def _falling_back(name: str) -> "Callable[[str], Any]":
    def attribute(wanted: str) -> "Any":  # noqa: ANN401  # whatever the module has
        return getattr(__import__(name), wanted)

    return attribute


def lean_os() -> "Any":  # noqa: ANN401  # stands for a module
    """A stand-in for `os` without the parts of it that are written in Python, but for the most usual ones."""
    import posix

    module: Any = type(sys)("os")
    for name, value in posix.__dict__.items():
        if not name.startswith("__"):
            module.__dict__[name] = value
    encoding, errors = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()
    fspath = posix.fspath

    def fsencode(filename: "str | bytes") -> bytes:
        path = fspath(filename)
        return path.encode(encoding, errors) if isinstance(path, str) else path

    def fsdecode(filename: "str | bytes") -> str:
        path = fspath(filename)
        return path.decode(encoding, errors) if isinstance(path, bytes) else path

    def fdopen(fd: int, mode: str = "r", *arguments: "Any", **options: "Any") -> "Any":  # noqa: ANN401  # as open()
        return open(fd, mode, *arguments, **options)  # the caller closes it

    module.fsencode, module.fsdecode, module.fdopen = fsencode, fsdecode, fdopen
    # A copy, where `os` would change the process's own environment too: nobody here writes to it.
    module.environ = {fsdecode(name): fsdecode(value) for name, value in posix.environ.items()}
    module.error = OSError
    module.name, module.sep, module.linesep, module.devnull, module.defpath = (
        "posix",
        "/",
        "\n",
        "/dev/null",
        "/bin:/usr/bin",
    )
    module.path = _lean_path(posix)
    module.__getattr__ = _falling_back("os")
    return module


def _lean_path(posix: "Any") -> "Any":  # noqa: ANN401  # modules
    module: Any = type(sys)("posixpath")

    def dirname(path: str) -> str:
        head = path[: path.rfind("/") + 1]
        return head.rstrip("/") or head

    def basename(path: str) -> str:
        return path[path.rfind("/") + 1 :]

    def asked(call: "Callable[[str], Any]", path: str) -> int:
        try:
            mode: int = call(path).st_mode
        except (OSError, ValueError):
            return 0
        return mode & 0o170000

    module.dirname, module.basename = dirname, basename
    module.exists = lambda path: asked(posix.stat, path) != 0
    module.lexists = lambda path: asked(posix.lstat, path) != 0
    module.isdir = lambda path: asked(posix.stat, path) == 0o040000
    module.isfile = lambda path: asked(posix.stat, path) == 0o100000
    module.islink = lambda path: asked(posix.lstat, path) == 0o120000
    if hasattr(posix, "_path_normpath"):  # from 3.11 on `posixpath.normpath` is this function, too
        module.normpath = lambda path: posix._path_normpath(path) or "."
    module.__getattr__ = _falling_back("posixpath")
    return module


def lean_ctypes() -> "Any":  # noqa: ANN401  # stands for a module
    """A stand-in for `ctypes`: functions of the C library that is loaded already, numbers, buffers and arrays."""
    import _ctypes

    module: Any = type(sys)("ctypes")
    simple: Any = _ctypes._SimpleCData
    function: Any = _ctypes.CFuncPtr
    dlopen: Any = _ctypes.dlopen
    for name, letter in _PRIMITIVES.items():
        module.__dict__[name] = type(simple)(name, (simple,), {"_type_": letter, "__module__": "ctypes"})
    for name in ("addressof", "sizeof", "byref", "get_errno", "set_errno", "Array", "Structure"):
        module.__dict__[name] = getattr(_ctypes, name)

    def library(flags: int) -> "Any":  # noqa: ANN401  # a class
        class Library:
            """Functions by their names, each time a new one with types of its own, as `ctypes.CDLL` has them."""

            def __init__(self, name: None, *, use_errno: bool = False) -> None:
                self._handle = dlopen(name, 0)
                options = flags | (_ctypes.FUNCFLAG_USE_ERRNO if use_errno else 0)
                body = {"_flags_": options, "_restype_": module.c_int, "__module__": "ctypes"}
                self._function: Any = type(function)("_FuncPtr", (function,), body)

            def __getitem__(self, name: str) -> "Any":  # noqa: ANN401  # a foreign function
                return self._function((name, self))

        return Library

    def create_string_buffer(init: "int | bytes", size: int | None = None) -> "Any":  # noqa: ANN401  # an array
        if isinstance(init, int):
            return (module.c_char * init)()
        buffer = (module.c_char * (len(init) + 1 if size is None else size))()
        buffer.value = init
        return buffer

    module.CDLL = library(_ctypes.FUNCFLAG_CDECL)
    module.PyDLL = library(_ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_PYTHONAPI)
    module.pythonapi = module.PyDLL(None)
    module.create_string_buffer = create_string_buffer
    module.__getattr__ = _falling_back("ctypes")
    return module


if not TYPE_CHECKING:
    os = sys.modules.get("os") or lean_os()
    ctypes = sys.modules.get("ctypes") or lean_ctypes()
