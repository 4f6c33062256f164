"""The request for a run in the service, made from the caller's command line, directory and environment."""

import os
import signal
import sys
from typing import Any

from launcher import cli
from launcher.service.attaching import Attached, status_of
from launcher.service.client import Client, session_path
from launcher.session import messages, places, state
from policy.errors import Refusal, printable


def request(options: cli.Parsed, command: list[str], cwd: str, *, without: tuple[str, ...]) -> dict[str, Any]:
    """The parts of `launcher.service.schema.SessionRequest` that every verb fills in the same way.

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


# `paddock run --supervised`: the same run, in the service, with this process's streams attached, or none.


_OWN = ("--supervised", "--detach", "--quiet")
_BEGUN_SECONDS = 60
_NOT = ("--report", "--dry-run")


def run_supervised(options: cli.Parsed, command: list[str], cwd: str) -> int:
    """Makes a session of the service for this run, and follows it to its end; its exit status.

    From a terminal the session has one, too, of the same size. With ``--detach`` nobody follows: the session's name is
    printed once its command runs.

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
                          hint="for how the session ended: paddock show SESSION")  # fmt: skip
    client = Client(places.places(os.environ))
    wanted = options.get("--session")
    detached = "--detach" in options
    body = {
        **request(options, command, cwd, without=(*_OWN, "--session")),
        "name": state.check_name(wanted) if isinstance(wanted, str) else None,
        "wait_for_client": not detached,
    }
    if all(os.isatty(fd) for fd in (0, 1, 2)):
        size = os.get_terminal_size(0)
        body |= {"stdin": "terminal", **({"window": (size.lines, size.columns)} if all(size) else {})}
    elif detached:
        body["stdin"] = "null"
    if detached:
        return _detached(client, body)
    session = client.call("POST", "/v1/sessions", body)
    try:
        attached = Attached(client, session["name"], mode="write")
        attached.follow(signals=True)
    except KeyboardInterrupt:  # in the moment before signals are passed on
        client.call("POST", f"{session_path(session['name'])}/stop", {})
        return 128 + signal.SIGINT
    if attached.session is None and attached.left:
        messages.say(f"paddock: session {printable(session['name'])} continues; paddock attach {session['name']}")
        return 0
    return status_of(attached.session)


def _detached(client: Client, body: dict[str, Any]) -> int:
    """Detaches from the session as soon as its command runs."""
    session = client.call("POST", "/v1/sessions", body, query={"wait": _BEGUN_SECONDS})
    outcome = session["outcome"] or {}
    if outcome.get("refusal"):
        raise Refusal.of(outcome["refusal"])
    messages.show(session["name"])
    return 0
