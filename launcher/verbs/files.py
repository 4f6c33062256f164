"""`paddock files`: parse, call. File tools for agents and editors, over MCP."""

import os

from launcher import cli
from launcher.session import messages, places
from launcher.vcs import checkout, worktree_words
from launcher.verbs import forms
from policy.errors import Refusal
from policy.pasted import cited


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
    if isinstance(address, str) and address.startswith("unix:"):
        worktree_words.directory(address.removeprefix("unix:"), cwd)  # not used: a socket's name may not be long
    named = options.get("--session", [])
    directories, ids = _sessions(named if isinstance(named, list) else [], cwd)
    if "--root" in options:
        raise cli.usage("the file tools need Paddock's own code in the jail, which --root does not show", "files")
    launch = {name: value for name, value in options.items() if name not in {row.name for row in form.options}}
    if address is None and len(directories) + len(ids) > 1:
        raise cli.usage("standard streams serve only one session", "files")
    where = places.places(os.environ)
    session_id = next(iter((*directories, *ids)), None)
    if session_id is None and ("--worktree" in options or mode == "strict"):
        session_id = "worktree"
        directories[session_id] = _worktree(options, cwd)
    live = _live(where, ids)
    from launcher.bridges.files import file_service
    from launcher.bridges.files.router import Mode

    service = file_service.Service(where, launch, directories, live, mode=Mode(mode), base=cwd)
    if isinstance(address, str):
        return file_service.over_http(service, address)
    return file_service.over_stdio(service, session_id)


def _sessions(named: list[str], cwd: str) -> tuple[dict[str, str], list[str]]:
    """Worktrees by session id, and the ids of live sessions."""
    found: dict[str, str] = {}
    live: list[str] = []
    for item in named:
        name, equals, directory = item.partition("=")
        if not name or name in found or name in live or bool(equals) is not bool(directory):
            raise cli.usage(f"--session {item} does not name another session: ID or ID=DIR", "files")
        if directory:
            found[name] = worktree_words.directory(directory, cwd)
        else:
            live.append(name)
    return found, live


def _live(where: places.Places, ids: list[str]) -> dict[str, str]:
    """Names of the running sessions that ids stand for, once and for all: agents choose ids, and may claim any later.

    Refuses ids of sessions that do not run: otherwise only the agent would learn of a typing mistake.
    """
    from launcher.session import exec_client, state

    found: dict[str, str] = {}
    for each in ids:
        name = found[each] = state.resolved_alias(where, each)
        try:
            exec_client.connect(where, name).close()
        except Refusal as refusal:
            if refusal.reference != "session-deaf":  # else it is just starting
                raise
        if name != each:
            messages.say(f"paddock: {cited(each)} is what an agent calls its session; it runs in the session {name}")
    return found


def _worktree(options: cli.Parsed, cwd: str) -> str:
    """Root of the worktree that was named, or that holds the current directory."""
    from launcher.session.machine import Machine

    named = options.get("--worktree")
    start = worktree_words.directory(named, cwd) if isinstance(named, str) else cwd
    return checkout.find(start, Machine(os.environ), exact=isinstance(named, str), hint=checkout.WITH_OPTION).root
