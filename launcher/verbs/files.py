"""`paddock files`: parse, call. File tools for agents and editors, over MCP."""

import os

from launcher import cli
from launcher.session import inputs, messages, places
from launcher.vcs import checkout
from launcher.verbs import forms
from policy.errors import Refusal, printable


def files(argv: list[str]) -> int:
    """Serves until the client leaves, or a signal comes; returns the exit status."""
    form = forms.form("files")
    options, rest = cli.parse(argv, verb="files", options=form.rows)
    if "--help" in options:
        return forms.show_help("files")
    if rest:
        raise cli.usage(f"unexpected argument {rest[0]}", "files")
    mode = str(forms.values(form, options)["mode"])
    address = options.get("--http")
    if address is not None and "--stdio" in options:
        raise cli.usage("--stdio and --http exclude each other", "files")
    cwd = places.current_directory()
    named = options.get("--session", [])
    directories = _directories(named if isinstance(named, list) else [], cwd)
    if "--root" in options:
        raise cli.usage("the file tools need Paddock's own code in the jail, which --root does not show", "files")
    launch = {name: value for name, value in options.items() if name not in {row.name for row in form.options}}
    if address is None and len(directories) > 1:
        raise cli.usage("standard streams serve only one session", "files")
    where = places.places(os.environ)
    session_id = next(iter(directories), None)
    if not directories and ("--worktree" in options or mode == "strict"):
        session_id = "worktree"
        directories[session_id] = _worktree(options, cwd)
    _check_live(where, directories, compatible=mode == "compatible")
    from launcher.bridges.files import file_service
    from launcher.bridges.files.router import Mode

    service = file_service.Service(where, launch, directories, mode=Mode(mode), base=cwd)
    if isinstance(address, str):
        return file_service.over_http(service, address)
    return file_service.over_stdio(service, session_id)


def _directories(named: list[str], cwd: str) -> dict[str, str]:
    """Worktrees by session id; "" for the id of a live session."""
    found: dict[str, str] = {}
    for item in named:
        name, equals, directory = item.partition("=")
        if not name or name in found or bool(equals) is not bool(directory):
            raise cli.usage(f"--session {item} does not name another session: ID or ID=DIR", "files")
        path = os.path.join(cwd, directory) if directory else ""
        found[name] = path and (inputs.resolved(path) or os.path.normpath(path))
    return found


def _check_live(where: places.Places, directories: dict[str, str], *, compatible: bool) -> None:
    """Refuses ids of sessions that do not run: otherwise only the agent would learn of a typing mistake.

    With `compatible` such an id is served, as that of a stranger; that is said.
    """
    from launcher.session import exec_client, state

    for name in (name for name, directory in directories.items() if not directory):
        try:
            exec_client.connect(where, state.resolved_alias(where, name)).close()
        except Refusal as refusal:
            if refusal.reference == "session-deaf":
                continue  # it is just starting
            if not compatible or refusal.reference == "session-not-ours":
                raise
            without = "until there is, calls in its name are not confined"
            messages.say(f"paddock: warning: there is no live session {printable(name)}; {without}")


def _worktree(options: cli.Parsed, cwd: str) -> str:
    """Root of the worktree that was named, or that holds the current directory."""
    from launcher.session.machine import Machine

    named = options.get("--worktree")
    start = os.path.join(cwd, named) if isinstance(named, str) else cwd
    return checkout.find(start, Machine(os.environ), exact=isinstance(named, str), hint=checkout.WITH_OPTION).root
