"""The wheel, built once and installed for real in an environment that every user can execute.

Kept between runs below /var/tmp (/tmp may be in memory, and of one run), named after the content of what went in, so
that only a change of the sources costs a build and only a change of the dependencies costs an installation.
"""

import errno
import fcntl
import functools
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.identity import DROP, reachable_by_all

ROOT = Path(__file__).resolve().parents[2]
INPUTS = ("pyproject.toml", "README.md", "LICENSE", "launcher", "policy", "systemd", "docs")
KEEP_SECONDS = 24 * 3600

_FS_IOC_GETFLAGS, _FS_IOC_SETFLAGS, _FS_TOPDIR_FL = 0x80086601, 0x40086602, 0x00020000  # linux/fs.h, 64 bits

# Read at import: pip needs the caller's configuration, and tests run in a scrubbed environment.
CALLER = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("PADDOCK_", "PYTHON")) and name != "SOURCE_DATE_EPOCH"  # py_compile(1) would obey it
}


@dataclass(frozen=True)
class Installed:
    """An environment with nothing in it but the wheel and its dependencies.

    Args:
        prefix: root of the virtual environment.
        paddock: the command.
        python: the environment's interpreter.
        packages: its site-packages directory.
        wheel: the file that was installed.
    """

    prefix: Path
    paddock: Path
    python: Path
    packages: Path
    wheel: Path


STABLE = Path("/var/tmp")
"""Where what runs share lies."""


def public_root(temp: Path | None = None) -> Path:
    """The suite's own directory that all users can enter; made when absent.

    Args:
        temp: where; the system's temporary directory by default.

    Raises:
        PermissionError: somebody else owns it, or others may write there.
    """
    temp = temp or Path(tempfile.gettempdir())
    if not reachable_by_all(temp):
        temp = STABLE
    root = temp / f"paddock-tests-{os.geteuid()}"
    root.mkdir(mode=0o755, exist_ok=True)
    info = root.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o022:
        raise PermissionError(f"{root} is not a directory that only this user can write; remove it")
    spread(root)
    return root


def spread(directory: Path) -> None:
    """Has ext4 put each directory below this one somewhere else on the disk (chattr(1), +T); others ignore it.

    Where it has no journal, ext4 leaves inodes alone for minutes after they were freed, and looks at each of them again
    for each new file nearby. Tests remove thousands of files: without this, making a file takes 0.4 ms instead of 0.01.
    """
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        flags = int.from_bytes(fcntl.ioctl(fd, _FS_IOC_GETFLAGS, bytes(8)), sys.byteorder)
        if not flags & _FS_TOPDIR_FL:
            fcntl.ioctl(fd, _FS_IOC_SETFLAGS, (flags | _FS_TOPDIR_FL).to_bytes(8, sys.byteorder))
    except OSError as error:
        if error.errno not in (errno.ENOTTY, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM):
            raise
    finally:
        os.close(fd)


def source_files() -> list[Path]:
    """Every file that goes into a build, relative to the repository, sorted."""
    found: list[Path] = []
    for name in INPUTS:
        path = ROOT / name
        found += path.rglob("*") if path.is_dir() else [path]
    return sorted(
        path.relative_to(ROOT)
        for path in found
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    )


@functools.cache
def base_python() -> Path:
    """An interpreter >= 3.11 which an ordinary user can execute: the suite's, unless that lies in root's home.

    Raises:
        FileNotFoundError: there is none.
    """
    prefix = DROP if os.geteuid() == 0 else ()
    names = ("python3", *(f"python3.{minor}" for minor in range(20, 10, -1)))
    places = (os.path.dirname(os.path.realpath(sys.executable)), "/usr/bin", "/usr/local/bin")
    check = "import sys, venv; raise SystemExit(sys.version_info < (3, 11))"
    for candidate in (Path(place, name) for place in places for name in names):
        if not candidate.is_file():
            continue
        try:
            tried = subprocess.run(
                [*prefix, str(candidate), "-I", "-c", check], cwd="/", capture_output=True, check=False
            )
        except OSError:
            continue
        if tried.returncode == 0:
            return candidate
    raise FileNotFoundError("no Python >= 3.11 with venv that an ordinary user can execute; install python3-venv")


@functools.cache
def install() -> Installed:
    """The installed wheel of the present sources; built on first use, shared by all test processes."""
    root = public_root(STABLE)
    python = base_python()
    with locked(root / "lock"):
        digest = hashlib.sha256(os.fsencode(python.resolve()))
        contents = {path: (ROOT / path).read_bytes() for path in source_files()}
        for path, content in contents.items():
            digest.update(b"%d %s %d\0" % (len(content), os.fsencode(path), os.access(ROOT / path, os.X_OK)) + content)
        prefix = root / f"env-{digest.hexdigest()[:16]}"
        if not (prefix / "complete").exists():
            _remove_unused(root)
            shutil.rmtree(prefix, ignore_errors=True)
            _build(prefix, python, contents, root)
            (prefix / "complete").touch()
        os.utime(prefix / "complete")
    (packages,) = prefix.glob("lib/python*/site-packages")
    (wheel,) = prefix.glob("*.whl")
    return Installed(prefix, prefix / "bin/paddock", prefix / "bin/python3", packages, wheel)


def _build(prefix: Path, python: Path, contents: dict[Path, bytes], root: Path) -> None:
    # What was hashed is what is built, also when somebody edits the sources in this moment.
    with tempfile.TemporaryDirectory(dir=root) as snapshot:
        for path, content in contents.items():
            copy = Path(snapshot, path)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(content)
            shutil.copymode(ROOT / path, copy)
        _call([sys.executable, "-I", "-m", "hatchling", "build", "-t", "wheel", "-d", str(prefix)], cwd=Path(snapshot))
    _call([str(python), "-I", "-m", "venv", "--without-pip", str(prefix)])
    (packages,) = prefix.glob("lib/python*/site-packages")
    shutil.copytree(_dependencies(python, root), packages, copy_function=os.link, dirs_exist_ok=True)
    (wheel,) = prefix.glob("*.whl")
    pip = [sys.executable, "-I", "-m", "pip", "--python", str(prefix / "bin/python3")]
    _call([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)])
    # Whoever installs looks whether it works, and it keeps what every launch loads in one file from then on.
    _call([str(prefix / "bin/paddock"), "--version"])
    if not list(packages.glob("launcher/__pycache__/launch.*.bundle")):
        raise RuntimeError(f"{prefix}: no launch has written its bundle: every one would take twice as long")


def libraries(*wanted: str) -> Path:
    """A directory, for PYTHONPATH of `base_python`, with packages that a test needs in the jail; made once."""
    root = public_root(STABLE)
    with locked(root / "lock"):
        return _packages(base_python(), root, list(wanted))


def _dependencies(python: Path, root: Path) -> Path:
    """A directory with the dependencies installed, made once for each list of them."""
    return _packages(python, root, tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])


def _packages(python: Path, root: Path, wanted: list[str]) -> Path:
    key = hashlib.sha256("\0".join([str(python.resolve()), *wanted]).encode()).hexdigest()[:16]
    final = root / f"deps-{key}"
    if not final.exists():
        making = root / f"making-{key}"
        shutil.rmtree(making, ignore_errors=True)
        pip = [sys.executable, "-I", "-m", "pip", "--python", str(python)]
        _call([*pip, "install", "--quiet", "--no-user", "--target", str(making), *wanted])
        making.rename(final)
    return final


def _remove_unused(root: Path) -> None:
    for stamp in root.glob("env-*/complete"):
        if stamp.stat().st_mtime < time.time() - KEEP_SECONDS:
            shutil.rmtree(stamp.parent)


def _call(argv: list[str], cwd: Path | None = None) -> None:
    ended = subprocess.run(argv, cwd=cwd, env=CALLER, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock, also against the other workers of pytest-xdist."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def add_libraries(installed: Installed, *wanted: str) -> None:
    """Has the installed Python find packages behind its own, with ``-I`` too: as an extra would be installed."""
    link = installed.packages / "libraries.pth"
    making = link.with_suffix(f".{os.getpid()}")
    making.write_text(f"{libraries(*wanted)}\n")
    making.rename(link)
