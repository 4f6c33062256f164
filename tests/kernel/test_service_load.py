"""A service under load: all sessions come to what they should, and it needs no more afterwards than before."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.kernel.test_service_attach import Client
from tests.support import served
from tests.support.served import Served

SESSIONS = int(os.environ.get("PADDOCK_SESSIONS", "5"))
CHURN = int(os.environ.get("PADDOCK_CHURN", str(2 * SESSIONS)))
HELPERS = 3


@pytest.fixture
def service() -> Iterator[Served]:
    """A service that runs, and remembers little."""
    with served.started(
        helpers=HELPERS,
        most_sessions=SESSIONS + 8,
        most_sessions_of_client=SESSIONS + 8,
        stdin_seconds=0.1,
        term_seconds=5.0,
        sample_seconds=1.0,
    ) as running:
        yield running


@pytest.mark.timeout(1_800)
def test_many_at_once_and_many_in_turn(service: Served, capsys: pytest.CaptureFixture[str]) -> None:
    """Descriptors come back to the number before, memory does not grow with the number of sessions."""
    served.churn(service, SESSIONS, "warm")
    served.still_alive(service, min(SESSIONS, 10), "w")
    for number in range(min(SESSIONS, 10)):
        service.post(f"/v1/sessions/w{number}/stop", {"wait": 60, "forget": True})
    before = served.settled(service, HELPERS)

    names = served.still_alive(service, SESSIONS, "a")
    many = served.cost(service)
    one_more = service.post("/v1/sessions", {"command": ["true"], "directory": str(service.paddock.worktree)})
    assert one_more.status == 201
    for name in names:
        assert service.post(f"/v1/sessions/{name}/stop", {}).status == 200
    for name in names:
        assert service.over(name)["outcome"]["reason"] == "stopped"
    between = served.settled(service, HELPERS)

    done = threading.Event()
    latencies: list[float] = []
    asking = threading.Thread(target=lambda: latencies.extend(served.answers(service, done.is_set)))
    asking.start()
    try:
        seconds = served.churn(service, CHURN, "c")
    finally:
        done.set()
        asking.join()
    after = served.settled(service, HELPERS)
    with capsys.disabled():
        print(
            f"\n{SESSIONS} at once: {many.descriptors} descriptors, {many.memory >> 10} MiB; {CHURN} in turn: "
            f"{seconds / CHURN * 1000:.0f} ms each, answers in {served.percentile(latencies, 50) * 1000:.1f} ms, "
            f"p99 {served.percentile(latencies, 99) * 1000:.0f} ms; memory {before.memory >> 10}, "
            f"{between.memory >> 10}, {after.memory >> 10} MiB; descriptors {before.descriptors}, "
            f"{between.descriptors}, {after.descriptors}"
        )
    assert between.descriptors <= before.descriptors + 2
    assert after.descriptors <= before.descriptors + 2
    assert after.memory <= between.memory + 8_192 + CHURN * 4
    assert service.get("/v1/metrics").raw.count(b"paddock_attempts_ended_total{reason=") >= 2
    assert os.listdir(service.paddock.state / "sessions") == []


def test_quotas_are_kept() -> None:
    """Of connections, sessions, one client, and records; a reload brings others, and wrong settings change nothing.

    Attached clients are the sessions' own, and are connections all the same; one that leaves makes room.
    """
    with served.started(
        most_connections=8, most_sessions=3, most_sessions_of_client=2, helpers=1, most_records=1
    ) as service:
        for name in ("one", "two"):
            service.create("sleep", "1000", name=name)
        with ExitStack() as attached:
            clients = [attached.enter_context(Client(service, "one")) for _ in range(8)]
            for client in clients:
                client.read(b"H")
            with service.connect() as refused:
                assert b"connections-exhausted" in refused.recv(65_536)
            clients[0].connection.close()
            deadline = time.monotonic() + served.PATIENCE
            while True:
                try:
                    assert service.get("/v1/health").status == 200
                    break
                except (OSError, AssertionError):
                    assert time.monotonic() < deadline
                    time.sleep(0.02)
            assert service.get("/v1/sessions/one").json["attached"] == 7
            for client in clients[1:3]:
                client.connection.close()
        body = {"command": ["true"], "directory": str(service.paddock.worktree)}
        answer = service.post("/v1/sessions", body)
        assert (answer.status, answer.json["errorType"]) == (429, "quota-client")
        service.settings(most_sessions=2, collect_seconds=0.2)
        service.reload()
        assert service.post("/v1/sessions", body).json["errorType"] == "quota-sessions"
        service.settings(most_sessions="many")
        service.reload(works=False)
        assert service.post("/v1/sessions", body).json["errorType"] == "quota-sessions"
        assert service.get("/v1/health").json["settings"]["collect_seconds"] == 0.2
        for name in ("one", "two"):
            service.post(f"/v1/sessions/{name}/stop", {"term_seconds": 0, "wait": 60})
