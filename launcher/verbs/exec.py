"""`paddock exec`: one more command inside a live session."""

import os

from launcher import cli
from launcher.jail import minder
from launcher.session import exec_client, inputs, messages, places, state
from launcher.verbs import forms, table
from policy.errors import Refusal, printable

TERMINAL_VARIABLES = ("TERM", "COLORTERM")
"""They describe the terminal in front of the caller, which may be another one than the session was started at."""


def exec(argv: list[str]) -> int:
    """Runs a command in a session, or lists sessions; returns the exit status for the shell."""
    known = forms.form("exec").options
    options, rest = cli.parse(argv, verb="exec", options=known)
    session = rest[0] if rest else ""
    if rest and "--help" not in options:
        more, rest = cli.parse(rest[1:], verb="exec", options=known)
        options = forms.joined(options, more)
    if "--help" in options:
        return forms.show_help("exec")
    where = places.places(os.environ)
    if "--list" in options:
        if session or set(options) - {"--list", "--json"}:
            raise cli.usage("--list can only be combined with --json", "exec")
        _list(where, as_json="--json" in options)
        return 0
    if "--json" in options:
        raise cli.usage("--json needs --list", "exec")
    if not session:
        raise cli.usage("SESSION is missing", "exec")
    if not rest:
        raise cli.usage("there is no command to run", "exec")
    cwd = options.get("--cwd")
    command = minder.Command(
        rest,
        _environment(options),
        cwd=_directory(cwd if isinstance(cwd, str) else None),
        insists=isinstance(cwd, str),
    )
    return exec_client.run(exec_client.connect(where, session), command)


def _directory(asked: str | None) -> str:
    """The canonical path of a directory; by default of the current one, if it still has a name."""
    if asked is None:
        try:
            return os.getcwd()
        except OSError:
            return ""
    path = asked if asked.startswith("/") else os.path.join(places.current_directory(), asked)
    return inputs.resolved(path) or os.path.normpath(path)


def _environment(options: cli.Parsed) -> tuple[tuple[str, str], ...]:
    given: dict[str, str] = {}
    if os.isatty(0) or os.isatty(1):
        given.update((name, os.environ[name]) for name in TERMINAL_VARIABLES if name in os.environ)
    items = options.get("--env", [])
    for item in items if isinstance(items, list) else ():
        name, equals, value = item.partition("=")
        if not name:
            raise Refusal("environment-invalid", f"{item!r} does not name a variable", hint="--env NAME=VALUE")
        if equals:
            given[name] = value
        elif name in os.environ:
            given[name] = os.environ[name]
        else:
            messages.say(f"paddock: warning: --env {printable(name)}: not set in your environment")
    return tuple(given.items())


def _list(where: places.Places, *, as_json: bool) -> None:
    """Prints the live sessions, including those that do not answer in time."""
    names = ("session", "worktree", "command", "backend", "net", "provider")
    rows = [(name, *(exec_client.about(where, name) or ("",) * 5)) for name in state.live_sessions(where)]
    if as_json:
        import json

        messages.show(json.dumps([dict(zip(names, row, strict=True)) for row in rows], indent=2))
        return
    if not rows:
        messages.show("no session is running")
        return
    cells = [(name, worktree or "(does not answer)", command) for name, worktree, command, *_ in rows]
    messages.show("\n".join(table.lines(("SESSION", "WORKTREE", "COMMAND"), cells)))
