"""`paddock serve`: the service that sessions live in."""

import asyncio
import faulthandler
import logging
import os

from launcher import cli
from launcher.session import places
from launcher.verbs import acp

_LOOPBACK = "127.0.0.1"


def serve(*, http: str | None, verbose: bool) -> int:
    """Exit status 0 when it was asked to end."""
    port = None if http is None else _port(http)
    from launcher.service import daemon, kernel_audit, systemd

    os.chdir("/")  # or the worktree that it was started in would be in use for ever
    faulthandler.enable()  # the watchdog's SIGABRT then says where it stood still
    listener = kernel_audit.join()  # first of all: nothing that is started later has the capability
    where = places.places(os.environ)
    handler = systemd.handler(os.environ)
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler], force=True)
    for name in ("asyncio", "uvicorn"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return asyncio.run(daemon.serve(where, cli.version(), _parse, audit=listener, port=port))


def _port(address: str) -> int:
    """The port of an address of the page's."""
    host, _, port = address.rpartition(":")
    if host != _LOOPBACK or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise cli.usage(f"--http takes {_LOOPBACK}:PORT, not {address}: the page is for this machine alone", "serve")
    return int(port)


def _parse(words: list[str]) -> tuple[cli.Parsed, list[str]]:
    """Options and command of `launcher.service.schema.SessionRequest.words`."""
    if words and words[0] == "acp":
        return acp.parse(words[1:])
    words = words[1:] if words and words[0] == "remote" else words
    return cli.parse(words, verb="run")
