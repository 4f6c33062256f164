"""`paddock stop`: end sessions of the service."""

from typing import Annotated

import typer

from launcher.service.client import session_path
from launcher.session import messages
from launcher.verbs import typer_verb
from launcher.verbs.service_common import Json, client, ending, show_json
from policy.errors import printable

EXAMPLES = (
    ("paddock stop fix-17", "close its input, SIGTERM, and kill it when it does not end in time"),
    ("paddock stop fix-17 --now", "kill it at once; its work is harvested all the same"),
    ("paddock stop --signal SIGINT fix-17", "send a signal, and no more"),
    ("paddock stop --forget fix-17", "and forget it, with its log"),
)
_WAIT = 300


def main(argv: list[str]) -> int:
    """Exit status 0 when all of them are over (or were sent the signal); 1 when one is not yet."""
    return typer_verb.run("stop", stop, argv, examples=EXAMPLES)


def stop(
    sessions: Annotated[
        list[str], typer.Argument(metavar="SESSION...", help="Names of the sessions.", show_default=False)
    ],
    now: Annotated[bool, typer.Option("--now", help="Kill at once.")] = False,
    term: Annotated[
        float | None,
        typer.Option("--patience", metavar="SECONDS", min=0, max=3_600, help="Time between SIGTERM and kill."),
    ] = None,
    signal: Annotated[str | None, typer.Option("--signal", "-s", metavar="NAME", help="Only send this signal.")] = None,
    forget: Annotated[bool, typer.Option("--forget", help="Then remove their record and their log.")] = False,
    as_json: Json = False,
) -> int:
    """Ends sessions: closes their input, sends SIGTERM, kills what is left; what they committed is harvested."""
    service = client()
    ended = []
    paths = [
        session_path(name, "stop" if signal is None else "signal") for name in sessions
    ]  # all, before one is ended
    for path in paths:
        if signal is not None:
            service.call("POST", path, {"signal": signal})
            continue
        body = {"term_seconds": 0 if now else term, "wait": 0, "forget": False}
        ended.append(service.call("POST", path, body))
    for place, session in enumerate(ended):
        final = service.call("POST", session_path(session["name"], "stop"), {"wait": _WAIT, "forget": forget})
        ended[place] = final
        if not as_json:
            messages.show(printable(f"{final['name']}: {final['state']}, {ending(final)}"))
    if as_json:
        show_json(ended)
    return 0 if all(session["state"] in ("ended", "failed", "lost") for session in ended) else 1
