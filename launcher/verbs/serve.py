"""`paddock serve`: the service that sessions live in."""

import asyncio
import faulthandler
import logging
import os
from typing import Annotated

import typer

from launcher import cli
from launcher.session import places
from launcher.verbs import acp, typer_verb, version

EXAMPLES = (
    ("paddock serve", "in the foreground, until Ctrl-C or SIGTERM; sessions are ended in order then"),
    ("paddock service install", "have systemd do it, at login or at boot"),
    ("paddock ps", "what runs in it"),
)


def main(argv: list[str]) -> int:
    """Exit status 0 when it was asked to end."""
    return typer_verb.run("serve", serve, argv, examples=EXAMPLES)


def serve(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say more.")] = False,
) -> int:
    """Starts the service of this user: it starts, watches and ends sessions, and answers on a socket of his own.

    SIGHUP reads service.toml again. Sessions outlive a service that is killed: the next one finds them. One that is
    ended in order ends them, too, and their work is harvested; SIGUSR1 before that leaves them alone.
    """
    from launcher.service import daemon, exchange, systemd

    os.chdir("/")  # or the worktree that it was started in would be in use for ever
    faulthandler.enable()  # the watchdog's SIGABRT then says where it stood still
    listener = exchange.join()  # first of all: nothing that is started later has the capability
    where = places.places(os.environ)
    handler = systemd.handler(os.environ)
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler], force=True)
    for name in ("asyncio", "uvicorn"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return asyncio.run(daemon.serve(where, version.installed(), _parse, audit=listener))


def _parse(words: list[str]) -> tuple[cli.Parsed, list[str]]:
    """Options and command of `launcher.service.schema.SessionRequest.words`."""
    if words and words[0] == "acp":
        return cli.parse(words[1:], acp.EXTRA, verb="acp")
    return cli.parse(words, verb="run")
