"""What the routes work with: put into the application by `build`, read from each request."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, cast

from fastapi import Request

from launcher.ledger import ledgers
from launcher.ledger.denial import PROXY
from launcher.ledger.ledgers import Tail, proxied
from launcher.service import log_files
from launcher.service.jobs import Jobs
from launcher.service.packets import Peer
from launcher.service.supervisor import Supervisor
from launcher.service.ticket_runs import TicketRuns
from launcher.service.upkeep import Collector, Sampler
from launcher.session.places import Places
from policy.errors import Refusal

# Answers that go on: log lines and denials as JSON lines, as they come, until the session is over.


_LOOK = 0.2
"""Seconds between two looks at a file."""

MOST_FOLLOWERS = 64


class Followers:
    """Counts the answers that go on."""

    def __init__(self) -> None:
        """Starts with none."""
        self.number = 0

    def check(self) -> None:
        """Refuses one more than there may be.

        Refusals: quota-followers.
        """
        if self.number >= MOST_FOLLOWERS:
            raise Refusal("quota-followers", f"limit of {MOST_FOLLOWERS} followers reached")

    async def counted(self, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """`lines`, counted while they last."""
        self.number += 1
        try:
            async for line in lines:
                yield line
        finally:
            self.number -= 1


def json_line(content: object) -> bytes:
    """One line."""
    return json.dumps(content, ensure_ascii=True).encode() + b"\n"


async def log_lines(
    supervisor: Supervisor, name: str, *, tail: int | None, streams: frozenset[str], follow: bool
) -> AsyncIterator[bytes]:
    """A session's log, then its new lines."""
    directory = supervisor.log_of(name)
    tailing = log_files.Tail(directory)
    # On a thread: it may be many megabytes.
    for line in await asyncio.to_thread(lambda: list(_wanted(tailing.before(directory, tail), streams))):
        yield line
    going_on = follow
    while going_on:
        going_on = name in supervisor.live
        for line in _wanted(tailing.new(), streams):
            yield line
        if going_on:
            await asyncio.sleep(_LOOK)


def _wanted(lines: Iterable[dict[str, Any]], streams: frozenset[str]) -> Iterable[bytes]:
    return (json_line(line) for line in lines if not streams or line.get("stream") in streams)


def denials_of(state: str, name: str) -> list[dict[str, Any]]:
    """The denials of a session's latest life, with their counts."""
    path = ledgers.path_of(state, name)
    return [] if path is None else ledgers.read(path).denials


async def denial_lines(supervisor: Supervisor, state: str, name: str) -> AsyncIterator[bytes]:
    """The denials of a live session, then its new ones.

    The proxy's come into the ledger at the session's end; until then its own log has them.
    """
    ledger: Tail | None = None
    proxy = Tail(f"{state}/sessions/{name}/{ledgers.PROXY_LOG}")
    row = supervisor.store.required(name)
    since = int(row["created"] * 1e9)
    going_on = True
    while going_on:
        going_on = name in supervisor.live
        for content in proxy.new():
            denial = ledgers.of_decision(content)
            if denial is not None:
                yield json_line(proxied(denial))
        if ledger is None:
            newest = next((one for one in ledgers.kept(state) if one.session == name and one.started >= since), None)
            ledger = None if newest is None else Tail(newest.path)
        for content in ledger.new() if ledger is not None else ():
            if content.pop("kind", "") == "denial" and not (proxy.at and content.get("layer") == PROXY):
                yield json_line(content)
        if going_on:
            await asyncio.sleep(_LOOK)


class Doorkeeper(Protocol):
    """Lets browsers see the page (`launcher.service.page.listener`, which only a service with a page loads).

    Attributes:
        port: where it listens.
    """

    port: int

    def invite(self, *, plain: bool, file: bool) -> tuple[str, str | None]:
        """An address that lets one browser in, once, and a file that leads to it, where one is wanted.

        Args:
            plain: with 127.0.0.1 in place of a name of its own.
            file: whether one is.
        """
        ...

    async def close(self) -> None:
        """Lets nobody in any more."""
        ...


@dataclass
class Context:
    """The service, as its API sees it.

    Attributes:
        supervisor: of sessions.
        sampler: what sessions use.
        places: of this user.
        jobs: work with git.
        tickets: ticket runs.
        followers: answers that go on.
        started: when the service was ready, in seconds since the epoch.
        process_started: when its process was started.
        notes: what is out of the ordinary, for `paddock status`.
        collector: brings home what waits, and removes what is old.
        listen: has the page listen on a port, 0 for any; returns who lets browsers in.
    """

    supervisor: Supervisor
    sampler: Sampler
    places: Places
    jobs: Jobs
    tickets: TicketRuns
    followers: Followers
    started: float
    process_started: float
    notes: list[str]
    collector: Collector
    listen: Callable[[int], Doorkeeper] | None = None


def context_of(request: Request) -> Context:
    """The service that a request came to."""
    return cast(Context, request.app.state.context)


def peer_of(request: Request) -> Peer:
    """Who asks."""
    return cast(Peer, request.scope["state"]["peer"])
