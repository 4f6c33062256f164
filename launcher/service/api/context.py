"""What the routes work with: put into the application by `build`, read from each request."""

from dataclasses import dataclass
from typing import cast

from fastapi import Request

from launcher.service.api.follow import Followers
from launcher.service.collecting import Collector
from launcher.service.jobs import Jobs
from launcher.service.peers import Peer
from launcher.service.samples import Sampler
from launcher.service.supervisor import Supervisor
from launcher.service.tickets import TicketRuns
from launcher.session.places import Places


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


def context_of(request: Request) -> Context:
    """The service that a request came to."""
    return cast(Context, request.app.state.context)


def peer_of(request: Request) -> Peer:
    """Who asks."""
    return cast(Peer, request.scope["state"]["peer"])
