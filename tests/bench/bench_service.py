"""How long a session of the service takes to start, and what others notice of it: `python -m tests.bench service`."""

import statistics
import time

from tests.bench import harness
from tests.bench.harness import Result
from tests.kernel.test_service_attach import Client
from tests.support import served
from tests.support.served import Served


def rows(quick: bool = False) -> list[Result]:
    """Start through a warm helper; answers beside sessions that print without end."""
    with served.started(helpers=4) as service:
        served.churn(service, 5, "warm")
        found = []
        if served.bubblewrap_works():
            ours, theirs = served.spawns(service, 8 if quick else 30, "s")
            found += harness.against({"bubblewrap": theirs, "start in the service": ours})
        return found + chatty(service, 3.0 if quick else 8.0)


def chatty(service: Served, seconds: float, sessions: int = 20) -> list[Result]:
    """Answers while nothing happens, and while so many sessions print without end and one client does not read."""
    quiet = asked(service, seconds)
    for number in range(sessions):
        service.create("yes", name=f"yes{number}")
    with Client(service, "yes0", "mode=read&offset=0"):
        time.sleep(seconds / 2)  # what a command may print in one go is behind them
        loud = asked(service, seconds)
    for number in range(sessions):
        service.post(f"/v1/sessions/yes{number}/stop", {"term_seconds": 0, "forget": True, "wait": 60})
    # Not in turn, so quartiles are compared with quartiles.
    before, after = (statistics.quantiles(each, n=9) for each in (quiet, loud))
    return harness.against({"an idle service": before, f"an answer beside {sessions} sessions that print": after})


def asked(service: Served, seconds: float) -> list[float]:
    """Seconds that each answer took, for a while."""
    end = time.monotonic() + seconds
    return served.answers(service, lambda: time.monotonic() > end)


if __name__ == "__main__":
    harness.main(rows)
