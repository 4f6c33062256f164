"""`paddock acp`: an agent in its jail, behind a bridge that holds the Agent Client Protocol to the jail too."""

import os
from collections.abc import Callable
from typing import Any

from launcher import cli
from launcher.session import messages, places
from launcher.verbs import help_page
from launcher.verbs import run as runs
from policy.errors import printable

SYNOPSIS = "[options] -- PROVIDER [ARGUMENT]..."
EXTRA: tuple[tuple[str, str, str, str], ...] = (
    ("--cwd", cli.ONE, "check|map", "sessions outside the worktree: refused (default), or moved into it"),
    (
        "--fs",
        cli.ONE,
        "jail|editor|strip",
        "files for the agent: in the jail (default); by the editor, as the plan says; none",
    ),
    ("--terminals", cli.ONE, "jail|strip", "terminals for the agent: in the jail (default), or none"),
    ("--mcp", cli.ONE, "jail|refuse", "the editor's MCP servers: those that can run in the jail (default), or none"),
    ("--grace", cli.ONE, "SECONDS", "for the agent to end by itself when the editor has left (default: 5)"),
)
CHOICES = {
    "--cwd": ("check", "map"),
    "--fs": ("jail", "editor", "strip"),
    "--terminals": ("jail", "strip"),
    "--mcp": ("jail", "refuse"),
}
EXAMPLES = (
    ("paddock acp -- claude-agent-acp", "what an editor starts in place of `claude-agent-acp`"),
    ("paddock acp --allow-domain @node -- npx -y @agentclientprotocol/codex-acp", "fetched, once for each worktree"),
    ("paddock acp --worktree ~/agents/one --cwd map -- opencode acp", "the editor stands in the main checkout"),
    ("paddock acp --fs editor -- claude-agent-acp", "unsaved buffers are seen; for an agent that you trust that far"),
    ("paddock acp --fs strip --mcp refuse -- gemini --acp", "an agent that gets nothing from the editor"),
)
NOTES = """Standard input and output are the editor's. Sessions start inside the worktree. What the agent asks the
editor to read, write or run is done in the jail; with --fs editor, files are judged by the plan, symbolic links
resolved, and left to the editor. Everything else passes as it is. `paddock denials` shows what was refused."""

_MOST_GRACE = 3600.0


def main(argv: list[str]) -> int:
    """Runs a provider behind the bridge; returns its exit status."""
    from launcher.bridges.acp import refused

    with refused.answering():
        options, command = cli.parse(argv, EXTRA, verb="acp")
        if "--help" in options:
            print(help_page.of_verb("acp", SYNOPSIS, EXAMPLES, about=NOTES, options=EXTRA, launch=cli.OPTIONS))
            return 0
        if "--detach" in options:
            raise cli.usage(
                "--detach goes with `paddock run`; an agent that outlives its editor: paddock attach", "acp"
            )
        supervised = "--supervised" in options and bool(command)
        status = 0 if supervised else launch(argv)
    if supervised:
        from launcher.verbs import attach

        return attach.editor(options, command)
    messages.show()
    # The thread that loads what requests are checked with may not have finished: nobody waits for it any more.
    os._exit(status)


def launch(argv: list[str], observer: "Callable[[str, Any], None] | None" = None) -> int:
    """Runs a provider behind the bridge; `observer` as in `launcher.session.run.run`."""
    options, command = cli.parse(argv, EXTRA, verb="acp")
    if not command:
        raise cli.usage("there is no provider to run", "acp")
    chosen = {name: _choice(options, name) for name in CHOICES}
    grace = _grace(options)
    own = {name for name, *_ in EXTRA}
    launch = {name: value for name, value in options.items() if name not in own}
    where = places.places(os.environ)
    entry, given = runs.planned(launch, command, where)
    if entry is None:
        return 0
    from launcher.bridges.acp import bridge
    from launcher.bridges.acp.rulings import Choices

    if not entry.plan.provider and entry.plan.provider_source.startswith("auto"):
        messages.say(
            f"paddock: warning: {printable(command[0])} is no agent that Paddock knows: no login, keys or hosts of one "
            "are in its jail; --provider NAME says which it is, --provider none that it needs none"
        )
    name, report = launch.get("--session"), launch.get("--report")
    return bridge.serve(
        entry,
        tuple(command[1:]),
        where,
        given=given,
        name=name if isinstance(name, str) else None,
        report=report if isinstance(report, str) else None,
        verbose="--verbose" in launch,
        quiet="--quiet" in launch,
        strict="--strict-handoff" in launch,
        choices=Choices(
            cwd=chosen["--cwd"], mcp=chosen["--mcp"], files=chosen["--fs"], terminals=chosen["--terminals"]
        ),
        grace=grace,
        observer=observer,
    )


def _choice(options: cli.Parsed, name: str) -> str:
    known = CHOICES[name]
    value = options.get(name, known[0])
    if value not in known:
        raise cli.usage(f"{name} is one of {', '.join(known)}, not {value}", "acp")
    return str(value)


def _grace(options: cli.Parsed) -> float:
    text = str(options.get("--grace", "5"))
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= _MOST_GRACE:
        raise cli.usage(f"--grace takes seconds from 0 to {_MOST_GRACE:.0f}, not {text}", "acp")
    return seconds
