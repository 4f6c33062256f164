"""`paddock run --supervised`: the same run, in the service, with this process's streams attached, or none."""

import os
import signal
from typing import Any

from launcher import cli
from launcher.service.attaching import Attached, status_of
from launcher.service.client import Client, session_path
from launcher.service.jobs import refusal_of
from launcher.session import messages, places
from launcher.verbs import session_request
from policy.errors import Refusal, printable

_OWN = ("--supervised", "--detach", "--quiet")
_BEGUN_SECONDS = 60
_NOT = ("--report", "--dry-run")


def run(options: cli.Parsed, command: list[str], cwd: str) -> int:
    """Makes a session of the service for this run, and follows it to its end; its exit status.

    From a terminal the session has one, too. With ``--detach`` nobody follows: the session's name is printed once its
    command runs.

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
    wanted = options.get("--session")
    detached = "--detach" in options
    body = {
        **session_request.request(options, command, cwd, without=(*_OWN, "--session")),
        "name": wanted if isinstance(wanted, str) else None,
        "wait_for_client": not detached,
    }
    if detached:
        return _detached(client, {**body, "stdin": "null"})
    if all(os.isatty(fd) for fd in (0, 1, 2)):
        body["stdin"] = "terminal"
    session = client.call("POST", "/v1/sessions", body)
    try:
        attached = Attached(client, session["name"], mode="write")
        attached.follow(signals=True)
    except KeyboardInterrupt:  # in the moment before signals are passed on
        client.call("POST", f"{session_path(session['name'])}/stop", {})
        return 128 + signal.SIGINT
    if attached.session is None and attached.left:
        messages.say(f"paddock: session {printable(session['name'])} goes on; paddock attach {session['name']}")
        return 0
    return status_of(attached.session)


def _detached(client: Client, body: dict[str, Any]) -> int:
    """Leaves the session to itself, as soon as it is known that its command runs."""
    session = client.call("POST", "/v1/sessions", body, query={"wait": _BEGUN_SECONDS})
    outcome = session["outcome"] or {}
    if outcome.get("refusal"):
        raise refusal_of(outcome["refusal"])
    messages.show(session["name"])
    return 0
