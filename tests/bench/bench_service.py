"""What a session of the service costs: `python -m tests.bench.bench_service [ROUNDS]` in the repository.

A command's start through a warm helper beside bubblewrap's, in turn; sessions one after the other; answers meanwhile.
"""

import sys
import threading
import time
from pathlib import Path

from tests.kernel.test_service_attach import Client
from tests.support import served
from tests.support.served import Served


def main(rounds: int) -> None:
    """Prints the figures."""
    with served.started(helpers=4) as service:
        served.churn(service, 5, "warm")
        if served.bubblewrap_works():
            ours, theirs = served.spawns(service, rounds, "s")
            mine, other = served.percentile(ours, 50), served.percentile(theirs, 50)
            print(f"start of a command, p50: warm helper {mine * 1000:.1f} ms, bubblewrap {other * 1000:.1f} ms, "
                  f"ratio {mine / other:.2f}")  # fmt: skip
            # The quickest of each is what the work itself takes, on a machine that others use too.
            print(f"the quickest: warm helper {min(ours) * 1000:.1f} ms, bubblewrap {min(theirs) * 1000:.1f} ms, "
                  f"ratio {min(ours) / min(theirs):.2f}")  # fmt: skip
        done = threading.Event()
        latencies: list[float] = []
        asking = threading.Thread(target=lambda: latencies.extend(served.answers(service, done.is_set)))
        asking.start()
        seconds = served.churn(service, rounds, "c")
        done.set()
        asking.join()
        print(f"sessions in turn, 4 at a time: {seconds / rounds * 1000:.1f} ms each; answers meanwhile: "
              f"p50 {served.percentile(latencies, 50) * 1000:.1f} ms, "
              f"p99 {served.percentile(latencies, 99) * 1000:.1f} ms")  # fmt: skip
        chatty(service)
        idle(service)


def chatty(service: Served, sessions: int = 20) -> None:
    """Answers while nothing happens, and while so many sessions print without end and one client does not read."""
    quiet = asked(service)
    for number in range(sessions):
        service.create("yes", name=f"yes{number}")
    with Client(service, "yes0", "mode=read&offset=0"):
        time.sleep(5)  # what a command may print in one go is behind them
        loud = asked(service)
    for number in range(sessions):
        service.post(f"/v1/sessions/yes{number}/stop", {"term_seconds": 0, "forget": True, "wait": 60})
    for percent in (50, 99):
        before, after = served.percentile(quiet, percent), served.percentile(loud, percent)
        print(f"answers, p{percent}: idle {before * 1000:.1f} ms, {sessions} sessions that print without end "
              f"{after * 1000:.1f} ms, ratio {after / before:.2f}")  # fmt: skip


def asked(service: Served, seconds: float = 10.0) -> list[float]:
    """Seconds that each answer took, for a while."""
    end = time.monotonic() + seconds
    return served.answers(service, lambda: time.monotonic() > end)


def idle(service: Served) -> None:
    """Memory of one session that does nothing: its own processes of Paddock, shared pages counted in parts (Pss)."""
    for options in ([], ["--allow-domain", "example.org"]):
        session = service.create("sleep", "1000", options=options)
        own = {each["pid"]: each["name"] for each in service.get(f"/v1/sessions/{session['name']}").json["processes"]}
        shim = int(Path(f"/proc/{session['pid']}/stat").read_text().rpartition(")")[2].split()[1])
        own = {pid: name for pid, name in {**own, shim: "shim"}.items() if name != "sleep"}
        sizes = []
        for pid in own:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            sizes.append(next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024)
        print(f"an idle session {' '.join(options)}: {len(own)} processes, {sum(sizes):.1f} MiB "
              f"({', '.join(f'{size:.1f}' for size in sizes)})")  # fmt: skip
        service.post(f"/v1/sessions/{session['name']}/stop", {"term_seconds": 0, "forget": True, "wait": 60})


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 30)
