"""`paddock run --supervised`: the same run, in the service, with this process's streams attached."""

import os
import sys

from launcher import cli
from launcher.service.attaching import Attached, status_of
from launcher.service.client import Client
from launcher.session import places
from policy.errors import Refusal

_OWN = ("--supervised", "--quiet")
_NOT = ("--report", "--dry-run")


def run(options: cli.Parsed, command: list[str], cwd: str) -> int:
    """Makes a session of the service for this run, and follows it to its end; its exit status.

    Args:
        options: of `paddock run`.
        command: the command's words.
        cwd: the current directory.

    Raises:
        Refusal: the service's or the launcher's.
    """
    for name in _NOT:
        if name in options:
            raise Refusal("usage", f"{name} and --supervised exclude each other",
                          hint="paddock show SESSION has what a report says of its end")  # fmt: skip
    client = Client(places.places(os.environ))
    mask = os.umask(0)
    os.umask(mask)
    wanted = options.get("--session")
    body = {
        "command": command,
        "options": _words(options),
        "directory": cwd,
        "name": wanted if isinstance(wanted, str) else None,
        "environment": {key: value for key, value in os.environ.items() if _sendable(key, value)},
        "stdin": "pipe",
        "umask": mask,
        "wait_for_client": True,
    }
    session = client.call("POST", "/v1/sessions", body)
    attached = Attached(client, session["name"], mode="write")
    attached.follow(signals=True)
    return status_of(attached.session)


def _sendable(name: str, value: str) -> bool:
    """Whether JSON can carry a variable: bytes that are no UTF-8 cannot cross, and mean nothing to most programmes."""
    return name.isprintable() and (name + value).encode(errors="replace") == (name + value).encode(
        sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()
    )


def _words(options: cli.Parsed) -> list[str]:
    """Options as words again. Relative paths mean the same: the session begins in the same directory."""
    words: list[str] = []
    for name, value in options.items():
        if name in _OWN or name == "--session":
            continue
        if value is True:
            words.append(name)
        else:
            words += [f"{name}={each}" for each in (value if isinstance(value, list) else [value])]
    return words
