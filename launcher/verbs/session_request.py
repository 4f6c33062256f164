"""A run as the service is asked for it: what the caller's command line, directory and environment say."""

import os
import sys
from typing import Any

from launcher import cli


def request(options: cli.Parsed, command: list[str], cwd: str, *, without: tuple[str, ...]) -> dict[str, Any]:
    """The parts of `launcher.service.models.SessionRequest` that every verb fills in the same way.

    Args:
        options: as `cli.parse` gives them.
        command: the command's words.
        cwd: the current directory.
        without: options that are the verb's own.
    """
    mask = os.umask(0o077)
    os.umask(mask)
    return {
        "command": command,
        "options": words(options, without),
        "directory": cwd,
        "environment": environment(),
        "stdin": "pipe",
        "umask": mask,
    }


def words(options: cli.Parsed, without: tuple[str, ...]) -> list[str]:
    """Options as words again. Relative paths mean the same: the session begins in the same directory."""
    found: list[str] = []
    for name, value in options.items():
        if name in without:
            continue
        if value is True:
            found.append(name)
        else:
            found += [f"{name}={each}" for each in (value if isinstance(value, list) else [value])]
    return found


def environment() -> dict[str, str]:
    """This process's own, as far as JSON can carry it."""
    return {name: value for name, value in os.environ.items() if _sendable(name, value)}


def _sendable(name: str, value: str) -> bool:
    """Whether JSON can carry a variable: bytes that are no UTF-8 cannot cross, and mean nothing to most programmes."""
    return name.isprintable() and (name + value).encode(errors="replace") == (name + value).encode(
        sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()
    )
