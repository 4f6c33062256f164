"""`paddock run --supervised`: the same run, in the service, with this process's streams attached."""

import os

from launcher import cli
from launcher.service.attaching import Attached, status_of
from launcher.service.client import Client
from launcher.session import places
from launcher.verbs import session_request
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
    wanted = options.get("--session")
    body = {
        **session_request.request(options, command, cwd, without=(*_OWN, "--session")),
        "name": wanted if isinstance(wanted, str) else None,
        "wait_for_client": True,
    }
    session = client.call("POST", "/v1/sessions", body)
    attached = Attached(client, session["name"], mode="write")
    attached.follow(signals=True)
    return status_of(attached.session)
