"""The stand-ins for `os` and `ctypes` agree with the real modules wherever a launch uses them."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from launcher import lean

ROOT = Path(__file__).resolve().parents[2]
PATHS = st.text(st.sampled_from("/a.\udcff\n-é"), max_size=12)
LEAN_OS = lean.lean_os()
LEAN_CTYPES = lean.lean_ctypes()


@given(PATHS)
def test_paths_are_taken_apart_as_ever(path: str) -> None:
    """dirname, basename and normpath give what `os.path` gives."""
    for name in ("dirname", "basename", "normpath"):
        assert getattr(LEAN_OS.path, name)(path) == getattr(os.path, name)(path), name
    assert LEAN_OS.fsencode(path) == os.fsencode(path)
    assert LEAN_OS.fsdecode(os.fsencode(path)) == os.fsdecode(os.fsencode(path))


def test_kinds_of_files_are_told_as_ever(tmp_path: Path) -> None:
    """exists, lexists, isdir, isfile and islink agree on files, directories, links, dangling links and nonsense."""
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "directory-link").symlink_to(".")
    (tmp_path / "dangling").symlink_to("nothing")
    for name in ("", "file", "link", "directory-link", "dangling", "nothing", "file/x", "nul\0"):
        path = f"{tmp_path}/{name}"
        for question in ("exists", "lexists", "isdir", "isfile", "islink"):
            assert getattr(LEAN_OS.path, question)(path) == getattr(os.path, question)(path), (question, name)


def test_the_rest_of_os_is_the_kernel_s_or_falls_back() -> None:
    """Built-in functions are the same objects; what is written in Python comes from the real module."""
    assert LEAN_OS.open is os.open
    assert LEAN_OS.O_CLOEXEC == os.O_CLOEXEC
    assert LEAN_OS.makedirs is os.makedirs
    assert LEAN_OS.path.relpath is os.path.relpath
    assert dict(LEAN_OS.environ) == {**LEAN_OS.environ, **{name: os.environ[name] for name in ("PATH",)}}
    reading, writing = os.pipe()
    with LEAN_OS.fdopen(writing, "wb") as file:
        file.write(b"x")
    assert os.read(reading, 2) == b"x"
    os.close(reading)


def test_foreign_functions_numbers_and_buffers_work_as_ever() -> None:
    """Calls with errno, arrays, buffers and addresses give what `ctypes` gives."""
    for module in (ctypes, LEAN_CTYPES):
        libc = module.CDLL(None, use_errno=True)
        assert libc["getpid"]() == os.getpid()
        close = libc["close"]
        close.argtypes = (module.c_int,)
        assert close(-1) == -1
        assert module.get_errno() == 9
        buffer = module.create_string_buffer(b"ab\0cd", 8)
        assert (buffer.raw, len(module.create_string_buffer(3)), len(module.create_string_buffer(b"ab"))) == (
            b"ab\0cd\0\0\0", 3, 3,
        )  # fmt: skip
        words = (module.c_uint64 * 2)(1, 2**64 - 1)
        assert list(words) == [1, 2**64 - 1]
        copied = libc["memcpy"]
        copied.argtypes, copied.restype = (module.c_void_p, module.c_void_p, module.c_size_t), module.c_void_p
        copied(module.addressof(buffer), module.addressof(words), 8)
        assert buffer.raw == b"\1" + bytes(7)
        length = libc["strlen"]
        length.argtypes, length.restype = (module.c_char_p,), module.c_size_t
        assert length(b"four") == 4
    assert {name: LEAN_CTYPES.sizeof(getattr(LEAN_CTYPES, name)) for name in lean._PRIMITIVES} == {
        name: ctypes.sizeof(getattr(ctypes, name)) for name in lean._PRIMITIVES
    }
    assert LEAN_CTYPES.Union is ctypes.Union


def test_nothing_is_loaded_that_was_not_asked_for() -> None:
    """In a bare interpreter neither `os` nor `ctypes` is imported by it, and both are once they are needed."""
    program = (
        f"import sys; sys.path.append({str(ROOT)!r}); from launcher.lean import ctypes, os; os.getpid(); "
        "ctypes.CDLL(None)['getpid'](); before = {'os', 'ctypes'} & set(sys.modules); os.walk; ctypes.Union; "
        "print(sorted(before), sorted({'os', 'ctypes'} & set(sys.modules)))"
    )
    told = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout == "[] ['ctypes', 'os']\n"
