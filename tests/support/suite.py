"""`make test`: the whole suite, where its files cost little and nothing of the caller's is in its way.

What fails is not tried again: a test that fails beside others and passes alone has shown a fault of Paddock's or its
own, more often than not one that users meet on a busy machine.
"""

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

MOST_SECONDS = 75 * 60
"""After which a suite that hangs is interrupted, so that it still says what failed and where it was."""
FAILED = 1
"""Pytest's own exit status when tests ran and some failed."""

_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x00020000, 0x4000, 1 << 18
_LEAST_MEMORY = 12 << 30
"""Free bytes with which half of the memory may hold what the tests write; a whole run needs 2 GB of it."""


def work_in_memory() -> bool:
    """Whether this process and its children have a temporary directory in memory from now on, theirs alone.

    Tests make and remove some million small directories. A disk that discards at once (mount(8), `discard`) takes up
    to 2 ms for each of them, and half of the suite's time was waiting for that. Only root can; who names a directory
    by TMPDIR gets it.
    """
    pages = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if os.geteuid() != 0 or "TMPDIR" in os.environ or pages < _LEAST_MEMORY:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) != 0 or libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None) != 0:
        return False
    return bool(libc.mount(b"tmpfs", os.fsencode(tempfile.gettempdir()), b"tmpfs", 0, b"mode=1777") == 0)


def compile_tests() -> None:
    """Compiles the tests of a fresh checkout, each file once: workers that start together all compile all of them."""
    if Path("tests/unit/__pycache__").exists():
        return
    words = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", "--collect-only", "-qq"]
    # By folders, of about the same length: for each file that is named, pytest looks through its whole folder.
    shares = [
        subprocess.Popen([*words, *names], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for names in (["tests/unit"], ["tests/kernel", "tests/agents", "tests/features", "tests/fuzz"])
    ]
    for share in shares:
        share.wait()  # what is wrong with a file is said by who runs it


def make_directories_of_caches() -> None:
    """Makes what the tools keep in the checkout's root, from which tests import: a Plan that is made there depends on
    the root's entries, and was out of date when another worker's mypy made its cache."""
    for name in (".hypothesis", ".mypy_cache", ".ruff_cache"):
        Path(name).mkdir(exist_ok=True)


def pytest(*arguments: str) -> int:
    """Exit status of one run of pytest in a process of its own, which keeps nothing in the checkout's root."""
    with subprocess.Popen([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]) as process:
        try:
            return process.wait(MOST_SECONDS)
        except subprocess.TimeoutExpired:
            print(f"\nsuite: interrupted after {MOST_SECONDS} seconds", flush=True)
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
            return process.wait() or FAILED


def forget_the_interpreters_settings() -> None:
    """Forgets what the caller tells interpreters, but for where modules are.

    Images of containers set PYTHONDONTWRITEBYTECODE. With it each of the thousands of interpreters that tests start
    from these sources compiles them again.
    """
    for name in [name for name in os.environ if name.startswith("PYTHON") and name != "PYTHONPATH"]:
        del os.environ[name]


if __name__ == "__main__":
    forget_the_interpreters_settings()
    work_in_memory()
    make_directories_of_caches()
    compile_tests()
    sys.exit(pytest(*sys.argv[1:]))
