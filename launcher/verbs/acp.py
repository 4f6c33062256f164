"""`paddock acp`: an agent in its jail, behind a bridge that holds the Agent Client Protocol to the jail too."""

import os
from collections.abc import Callable
from typing import Any

from launcher import cli
from launcher.session import messages, places
from launcher.verbs import forms
from launcher.verbs import run as runs
from policy.errors import printable


def parse(argv: list[str]) -> tuple[cli.Parsed, list[str]]:
    """Options, and the provider's words."""
    return cli.parse(argv, verb="acp", options=forms.form("acp").rows)


def acp(argv: list[str]) -> int:
    """Runs a provider behind the bridge; returns its exit status."""
    from launcher.bridges.acp import start_failed

    with start_failed.answering():
        options, command = parse(argv)
        if "--help" in options:
            return forms.show_help("acp")
        if "--detach" in options:
            raise cli.usage(
                "--detach is for `paddock run`; for an agent that outlives its editor: paddock attach", "acp"
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
    """Runs a provider behind the bridge; `observer` as in `launcher.session.running.run`."""
    options, command = parse(argv)
    if not command:
        raise cli.usage("there is no provider to run", "acp")
    form = forms.form("acp")
    chosen: dict[str, Any] = forms.values(form, options)
    own = {row.name for row in form.options}
    launch = {name: value for name, value in options.items() if name not in own}
    where = places.places(os.environ)
    entry, given = runs.planned(launch, command, where)
    if entry is None:
        return 0
    from launcher.bridges.acp import bridge
    from launcher.bridges.acp.rulings import Choices

    if not entry.plan.provider and entry.plan.provider_source.startswith("auto"):
        messages.say(
            f"paddock: warning: {printable(command[0])} is not an agent that Paddock knows: no agent's login, keys or "
            "hosts are in its jail; --provider NAME names it, --provider none says that it needs none"
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
        choices=Choices(cwd=chosen["cwd"], mcp=chosen["mcp"], files=chosen["fs"], terminals=chosen["terminals"]),
        grace=chosen["grace"],
        observer=observer,
    )
