"""`paddock attach`: join a session of the service; with `--provider`, an agent that editors come back to."""

import hashlib
import json
import os
import shlex
import shutil
import signal
from typing import Any

from launcher import cli
from launcher.bridges.acp import start_failed
from launcher.safefs import guarded_files
from launcher.service.attaching import LEAVE_NAME, Attached, status_of
from launcher.service.client import Client, session_path
from launcher.session import messages, places
from launcher.session.places import Places
from launcher.verbs import forms, session_request
from policy import runners
from policy.errors import Refusal, Rows, printable

OWN = ("--take", "--read", "--from-now", "--new")
"""Options that no session is asked for with."""

LABEL = "paddock.acp"
_READY_SECONDS = 60
_LOOK_SECONDS = 3


def attach(argv: list[str]) -> int:
    """Exit status: the session's own when it has ended, 0 when this client detached."""
    known = forms.form("attach").rows
    options, rest = cli.parse(argv, verb="attach", options=known)
    if rest and "--provider" not in options:  # else these are the agent's own words
        behind, more = cli.parse(rest[1:], verb="attach", options=known)
        if "--provider" in behind:
            raise cli.usage("--provider NAME takes the place of SESSION", "attach")
        options, rest = forms.joined(options, behind), [rest[0], *more]
    if "--help" in options:
        return forms.show_help("attach")
    if "--provider" in options:
        for only in ("--read", "--from-now"):
            if only in options:
                raise cli.usage(f"{only} needs a SESSION", "attach")
        return editor(options, rest)
    others = [name for name in options if name not in ("--take", "--read", "--from-now")]
    if others:
        raise cli.usage(f"{others[0]} needs --provider", "attach")
    if not rest:
        raise Refusal("usage", "SESSION is missing", hint="paddock ps lists the sessions; paddock attach --help")
    if len(rest) > 1:
        raise cli.usage(f"attach takes one SESSION, not {rest[1]} too", "attach")
    client, take = Client(places.places(os.environ)), "--take" in options
    mode = "read" if "--read" in options else _mode(client, rest[0])
    offset = None if "--from-now" in options else 0
    return _follow(Attached(client, rest[0], mode=mode, take=take, offset=offset), rest[0])


def editor(options: cli.Parsed, command: list[str]) -> int:
    """Joins an editor's standard streams to the service's agent; also `paddock acp --supervised`.

    Args:
        options: of `paddock acp`, and those of `OWN`.
        command: the agent's words; none for the provider's own.
    """
    where = places.places(os.environ)
    client = Client(where)
    with start_failed.answering():
        name = _agent(client, where, options, command, new="--new" in options)
    try:
        attached = Attached(client, name, mode="acp", take="--take" in options, offset=None)
        status = _follow(attached, name)
    except Refusal as refusal:
        if refusal.reference != "session-over":
            raise
        return _told_over(client.call("GET", session_path(name)))  # it was quicker than this
    # Who has said nothing was no editor, and hears of an agent that could not begin.
    if attached.session is not None and not attached.heard:
        return _told_over(attached.session)  # it began to end while this joined it
    if attached.session is not None or not attached.left:
        return status
    found = client.call("GET", session_path(name), query={"wait": 0 if attached.heard else _LOOK_SECONDS})
    if found["outcome"] is not None:
        return _told_over(found)
    if not attached.heard:
        messages.say(f"paddock: standard input ended before an editor had said anything; session {printable(name)} "
                     f"continues: paddock stop {printable(name)} ends it")  # fmt: skip
    return status


def _told_over(session: dict[str, Any]) -> int:
    name = printable(session["name"])
    messages.say(f"paddock: session {name} is {session['state']}: paddock logs {name}")
    return status_of(session)


def _follow(attached: Attached, name: str) -> int:
    try:
        if attached.at_terminal:
            messages.say(f"paddock: attached to {printable(name)}; {LEAVE_NAME} detaches")
        attached.follow(signals=False)
    except KeyboardInterrupt:
        messages.say(f"paddock: session {printable(name)} continues")
        return 128 + signal.SIGINT
    if attached.session is None and attached.left:
        if attached.at_terminal:
            messages.say(f"paddock: session {printable(name)} continues")
        return 0
    return status_of(attached.session)


def _mode(client: Client, name: str) -> str:
    """A session without standard input, and one that speaks a protocol, can only be looked at."""
    session = client.call("GET", session_path(name))
    return "write" if session["stdin"] in ("pipe", "terminal") and session["bridge"] is None else "read"


def _agent(client: Client, where: Places, options: cli.Parsed, command: list[str], *, new: bool) -> str:
    """The name of the agent's session: the live one, or a new one."""
    words = command or _default(str(options["--provider"]), where)
    cwd = places.current_directory()
    own = ("--supervised", "--detach", *OWN)
    request = {**session_request.request(options, words, cwd, without=own), "bridge": "acp"}
    kind = hashlib.sha256(json.dumps([cwd, words, request["options"]]).encode()).hexdigest()[:32]
    request["labels"] = {LABEL: kind}
    # Two editors that start at the same moment get one agent.
    with guarded_files.locked_file(f"{places.made(where.state)}/attach.lock"):
        for session in client.call("GET", "/v1/sessions", query={"live": True, "limit": 10_000})["sessions"]:
            if not new and session["labels"].get(LABEL) == kind and session["state"] in ("starting", "running"):
                return str(session["name"])
        _warn(options, words, cwd, where)
        session = client.call("POST", "/v1/sessions", request, query={"wait": _READY_SECONDS})
    outcome = session.get("outcome") or {}
    # One whose command has ended by now is told of by its status, as if this had joined it before.
    if session["state"] not in ("starting", "running") and (not outcome or outcome.get("refusal")):
        raise _ended(session)
    return str(session["name"])


def _warn(options: cli.Parsed, words: list[str], cwd: str, where: Places) -> None:
    """Prints a run's warning about a fetched command, which the session itself writes to its log alone."""
    if words[0].rpartition("/")[2] not in runners.FETCHING:
        return
    from launcher.session import planning

    own = {row.name for row in forms.form("attach").options} | {"--supervised", "--detach"}
    launch = {name: value for name, value in options.items() if name not in own}
    for warning in planning.make(launch, words, cwd, where).plan.warnings:
        messages.say(f"paddock: warning: {printable(warning)}")


def _default(provider: str, where: Places) -> list[str]:
    """The provider's own command for the protocol: an adapter that is installed before one that npx would fetch."""
    from launcher.session import recognition

    spec = recognition.load(where).spec(provider)
    if spec is None or not spec.acp:
        raise cli.usage(f"{provider} has no command for the Agent Client Protocol: name one after `--`", "attach")
    for name in spec.adapters:
        if "/" not in name and shutil.which(name):
            return [name]
    return shlex.split(spec.acp)


def _ended(session: dict[str, Any]) -> Refusal:
    refusal = (session.get("outcome") or {}).get("refusal")
    if refusal:
        return Refusal(
            refusal["errorType"], refusal["message"], context=Rows(refusal["context"]), hint=Rows(refusal["hint"])
        )
    return Refusal("agent-ended", f"the agent ended immediately: {session['state']}",
                   hint=f"paddock logs {session['name']}")  # fmt: skip
