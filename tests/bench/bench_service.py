"""What a session of the service costs: `python -m tests.bench.bench_service [ROUNDS]` in the repository.

A command's start through a warm helper beside bubblewrap's, in turn; sessions one after the other; answers meanwhile.
"""

import shutil
import sys
import tempfile
import threading
from pathlib import Path

from tests.support import identity, install, paddock, served, service_load


def main(rounds: int) -> None:
    """Prints the figures."""
    place = Path(tempfile.mkdtemp(prefix="b-", dir=install.public_root()))
    place.chmod(0o755)
    who = identity.user(place / "home")
    (place / "place").mkdir()
    made = paddock.make(who, install.install(), who.give(place / "place"))
    try:
        with served.serving(made, helpers=4) as service:
            service_load.churn(service, 5, "warm")
            if service_load.bubblewrap_works():
                ours, theirs = service_load.spawns(service, rounds, "s")
                mine, other = service_load.percentile(ours, 50), service_load.percentile(theirs, 50)
                print(f"start of a command, p50: warm helper {mine * 1000:.1f} ms, bubblewrap {other * 1000:.1f} ms, "
                      f"ratio {mine / other:.2f}")  # fmt: skip
                # The quickest of each is what the work itself takes, on a machine that others use too.
                print(f"the quickest: warm helper {min(ours) * 1000:.1f} ms, bubblewrap {min(theirs) * 1000:.1f} ms, "
                      f"ratio {min(ours) / min(theirs):.2f}")  # fmt: skip
            done = threading.Event()
            latencies: list[float] = []
            asking = threading.Thread(target=lambda: latencies.extend(service_load.answers(service, done.is_set)))
            asking.start()
            seconds = service_load.churn(service, rounds, "c")
            done.set()
            asking.join()
            print(f"sessions in turn, 4 at a time: {seconds / rounds * 1000:.1f} ms each; answers meanwhile: "
                  f"p50 {service_load.percentile(latencies, 50) * 1000:.1f} ms, "
                  f"p99 {service_load.percentile(latencies, 99) * 1000:.1f} ms")  # fmt: skip
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 30)
