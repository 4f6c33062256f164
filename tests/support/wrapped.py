"""The bubblewrap backend of the installed command, for its tests."""

import subprocess
import textwrap
from pathlib import Path

from tests.support.install import base_python
from tests.support.paddock import Paddock

BACKEND = ("--backend", "bubblewrap")
PATIENCE = 30.0


def run(paddock: Paddock, *words: str, **options: object) -> "subprocess.CompletedProcess[str]":
    """`paddock run --backend bubblewrap WORDS...`."""
    return paddock.run(*BACKEND, *words, **options)


def shell(paddock: Paddock, line: str, *options: str) -> str:
    """What a line of sh(1) in the jail prints; it must succeed."""
    ended = run(paddock, *options, "--", "sh", "-euc", line)
    assert (ended.returncode, ended.stderr) == (0, ""), ended
    return ended.stdout


def program(code: str) -> list[str]:
    """A Python programme for the jail."""
    return [str(base_python()), "-I", "-S", "-c", textwrap.dedent(code)]


def content(pid: int, name: str) -> bytes:
    """A file of /proc/PID, empty when the process is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def below(pid: int) -> list[int]:
    """Every process below `pid`."""
    found: list[int] = []
    for child in map(int, content(pid, f"task/{pid}/children").split()):
        found += [child, *below(child)]
    return found
