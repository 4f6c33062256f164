"""What an operator relies on: a service that answers whatever happens beside it, and says what is wrong."""

import functools
import json
import os
import re
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support import served
from tests.support.served import Answer, Served

LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def service() -> Iterator[Served]:
    """A service that all tests here share. An ordinary user's: what is told of a service is the same of root's."""
    with served.started(stdin_seconds=0.2, term_seconds=0.5, sample_seconds=0.5) as running:
        yield running


@contextmanager
def locked(service: Served) -> Iterator[int]:
    """The service's database, locked by a process of its user; that process's id."""
    path = service.paddock.state / "service/service.db"
    words = [str(service.paddock.installed.python), "-c", LOCK, str(path)]
    with subprocess.Popen(service.paddock.who.command(words), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        try:
            yield process.pid
        finally:
            process.communicate()


def wanted(service: Served, **fields: object) -> dict[str, object]:
    """A request for a session."""
    return {"command": ["true"], "directory": str(service.paddock.worktree), **fields}


class Asked(threading.Thread):
    """A request whose answer may take its time."""

    def __init__(self, service: Served, body: object, **headers: str) -> None:
        super().__init__()
        self._ask = functools.partial(service.post, "/v1/sessions", body, **headers)
        self.answer: Answer | None = None
        self.start()

    def run(self) -> None:
        """Asks."""
        self.answer = self._ask()


def test_a_foreign_lock_on_the_database_stalls_nobody(service: Served) -> None:
    """While a write waits for it, everything else is answered; the write is refused with the name of who holds it."""
    service.create("sh", "-c", "read line", stdin="pipe", name="beside")
    with locked(service):
        asked = Asked(service, wanted(service, name="refused"))
        answered = 0
        while asked.is_alive():
            assert service.get("/v1/sessions/beside").json["state"] == "running"
            answered += asked.is_alive()
        assert answered > 20
    assert asked.answer is not None
    refusal = asked.answer.json
    assert (asked.answer.status, refusal["errorType"]) == (503, "database-busy")
    assert "holds the lock" in refusal["context"]
    assert service.get("/v1/sessions/refused").status == 404
    assert service.post("/v1/sessions/beside/stop", {"wait": 60}).json["state"] == "ended"


def test_a_write_that_waited_for_a_lock_is_made_once(service: Served) -> None:
    """A client whose request meets a short lock notices a delay, nothing else."""
    with locked(service):
        asked = Asked(service, wanted(service, name="patient"), idempotency_key="patient")
        while "database-busy" not in service.get("/v1/metrics").raw.decode() and asked.is_alive():
            time.sleep(0.01)
        assert asked.is_alive()
    asked.join()
    assert asked.answer is not None
    assert asked.answer.status == 201, asked.answer.raw
    assert service.over("patient")["state"] == "ended"
    again = service.post("/v1/sessions", wanted(service, name="patient"), idempotency_key="patient")
    assert again.status == 200


def test_a_repetition_after_the_session_was_forgotten_starts_nothing(service: Served) -> None:
    """It gets one stable answer, even when the name has gone to another session; forgetting twice says 404."""
    body = wanted(service, name="once", command=["sh", "-c", "echo x >> often"])
    assert service.post("/v1/sessions", body, idempotency_key="once").status == 201
    service.over("once")
    assert service.call("DELETE", "/v1/sessions/once").status == 204
    for _ in range(2):
        assert service.call("DELETE", "/v1/sessions/once").json["errorType"] == "session-unknown"
        answer = service.post("/v1/sessions", body, idempotency_key="once")
        assert (answer.status, answer.json["errorType"]) == (410, "session-forgotten")
    service.create("true", name="once")
    service.over("once")
    assert service.post("/v1/sessions", body, idempotency_key="once").status == 410
    assert (service.paddock.worktree / "often").read_text() == "x\n"


def reasons(service: Served) -> dict[str, dict[str, str]]:
    """What is wrong with the service, by id."""
    health = service.get("/v1/health").json
    assert health["status"] == ("degraded" if health["reasons"] else "ok")
    return {reason["id"]: reason for reason in health["reasons"]}


def until(what: Callable[[], bool]) -> None:
    """Waits for something that the service looks at now and then."""
    deadline = time.monotonic() + served.PATIENCE
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_health_says_what_is_wrong_and_what_to_do(service: Served) -> None:
    """A disk without room, settings that cannot be read: until they are mended; `status` shows them."""
    assert service.get("/v1/health").json["status"] == "ok"
    service.settings(least_free_bytes=1 << 60)
    service.reload()
    until(lambda: "disk-low" in reasons(service))
    reason = reasons(service)["disk-low"]
    assert str(service.paddock.state) in reason["what"]
    assert "most_log_bytes" in reason["hint"]
    assert "[disk-low]" in service.cli("status").stdout
    service.settings(nonsense=1)
    service.reload(works=False)
    assert "nonsense" in reasons(service)["settings-wrong"]["what"]
    assert 'paddock_degraded{id="settings-wrong"} 1' in service.get("/v1/metrics").raw.decode()
    service.settings()
    service.reload()
    until(lambda: not reasons(service))
    with locked(service):
        until(lambda: "database-busy" in reasons(service))
        assert service.get("/v1/events?since=0&follow=false").status == 200
    until(lambda: not reasons(service))


def test_a_refused_harvest_degrades_the_service_until_it_is_made(service: Served) -> None:
    """The commits wait; a metric, a reason and an event say so, and so does the log, as a warning."""
    commit = "git add -A && git -c user.name=A -c user.email=a@b.c commit -qm 'agent: Work.'"
    script = f"mkdir -p sub && echo evil > sub/.envrc && {commit}"
    service.create("sh", "-c", script, name="refused-harvest", options=["--strict-handoff"])
    over = service.get(f"/v1/sessions/refused-harvest?wait={served.PATIENCE:g}").json
    refusal = over["outcome"]["harvest"] or over["outcome"]["refusal"]
    assert refusal["errorType"] == "handoff-strict", over
    assert str(service.paddock.worktree) in reasons(service)["harvest-refused"]["what"]
    metrics = service.get("/v1/metrics").raw.decode()
    assert re.search(r'^paddock_harvests_total\{result="refused"\} [1-9]', metrics, re.MULTILINE)
    assert re.search(r'^paddock_refusals_total\{id="handoff-strict"\} [1-9]', metrics, re.MULTILINE)
    assert "WARNING paddock.service: harvest of " in service.said.read_text()
    assert service.paddock.call("worktree", "harvest").returncode == 0
    service.create("sh", "-c", f"echo x >plain && {commit}", name="harvests-again")
    service.over("harvests-again")
    until(lambda: "harvest-refused" not in reasons(service))
    assert 'paddock_harvests_total{result="harvested"}' in service.get("/v1/metrics").raw.decode()


def test_metrics_are_exact_and_name_what_runs(service: Served) -> None:
    """Bytes to the last digit, the build, when the process was started, and room on disks."""
    service.create("sh", "-c", "read line", stdin="pipe", name="measured")
    samples: dict[str, str] = {}

    def measured() -> bool:
        for line in service.get("/v1/metrics").raw.decode().splitlines():
            name, _, value = line.rpartition(" ")
            samples[name] = value
        return samples.get('paddock_session_memory_bytes{session="measured"}', "0") != "0"

    until(measured)
    memory = samples['paddock_session_memory_bytes{session="measured"}']
    assert memory.isdigit(), memory
    started = float(samples["process_start_time_seconds"])
    ticks = int(Path(f"/proc/{service.pid}/stat").read_text().rpartition(")")[2].split()[19])
    booted = next(int(line.split()[1]) for line in Path("/proc/stat").read_text().splitlines() if "btime" in line)
    assert abs(started - booted - ticks / os.sysconf("SC_CLK_TCK")) < 2
    assert any(name.startswith("paddock_build_info{") and 'kernel="' in name for name in samples)
    until(lambda: measured() and 'paddock_disk_free_bytes{directory="state"}' in samples)
    assert samples['paddock_disk_free_bytes{directory="state"}'].isdigit()
    service.post("/v1/sessions/measured/stop", {"wait": 60})


def test_the_processes_of_the_machine_are_not_read_on_the_event_loop(service: Served) -> None:
    """Fifty times `show` of a session cost the service's main thread hardly any read(2), whoever runs here."""
    service.create("sh", "-c", "read line", stdin="pipe", name="shown")

    def reads() -> int:
        text = Path(f"/proc/{service.pid}/task/{service.pid}/io").read_text()
        return int(next(line.split()[1] for line in text.splitlines() if line.startswith("syscr")))

    service.get("/v1/sessions/shown")
    before = reads()
    for _ in range(50):
        assert service.get("/v1/sessions/shown").json["processes"]
    running = sum(name.isdigit() for name in os.listdir("/proc"))
    assert reads() - before < 50 * min(20, running)
    service.post("/v1/sessions/shown/stop", {"wait": 60})


def test_all_logs_together_are_bounded(service: Served) -> None:
    """Those of sessions that ended first go first, and say so; live ones stay. The figures are told."""
    noise = "head -c 300000 /dev/zero | tr '\\0' 'x' | fold -w 100; echo"
    for number in range(4):
        service.create("sh", "-c", noise, name=f"loud{number}")
        service.over(f"loud{number}")
    service.create("sh", "-c", noise + "; read line", stdin="pipe", name="loud-live")
    until(lambda: len(service.log("loud-live")) > 2_999)
    service.settings(most_log_bytes=1_200_000)
    service.reload()
    until(lambda: service.get("/v1/health").json["logs"] <= 1_200_000 and len(service.log("loud0")) == 1)
    assert "most_log_bytes" in service.log("loud0")[0]
    assert len(service.log("loud3")) > 2_999
    assert len(service.log("loud-live")) > 2_999
    until(lambda: "at most 1.1M" in service.cli("status").stdout)
    lines = service.get("/v1/metrics").raw.decode().splitlines()
    logs = next(int(line.split()[1]) for line in lines if line.startswith("paddock_logs_bytes "))
    directory = service.paddock.state / "service/logs"
    assert abs(logs - sum(path.stat().st_size for path in directory.rglob("log.jsonl*"))) < 100_000
    service.settings()
    service.reload()
    service.post("/v1/sessions/loud-live/stop", {"wait": 60})


def test_a_failed_session_is_a_warning_in_the_log(service: Served) -> None:
    """One that ended well is not."""
    service.create("false", name="fails")
    service.create("true", name="goes-well")
    service.over("fails")
    service.over("goes-well")
    said = service.said.read_text()
    assert "WARNING paddock.service: session fails is failed" in said
    assert "INFO paddock.service: session goes-well is ended" in said


class Listening:
    """A client of the event stream that reads only when it is asked to."""

    def __init__(self, service: Served, query: str = "", last: int | None = None) -> None:
        self.connection = service.connect()
        header = "" if last is None else f"last-event-id: {last}\r\n"
        self.connection.sendall(f"GET /v1/events{query} HTTP/1.1\r\nhost: x\r\n{header}\r\n".encode())
        self._file = self.connection.makefile("rb")
        while (line := self._file.readline()) != b": events\n":  # from now on it is told of all
            assert line, "the service closed the connection"

    def __enter__(self) -> "Listening":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self.connection.close()

    def next(self) -> dict[str, Any]:
        """The next event."""
        while line := self._file.readline():
            if line.startswith(b"data: "):
                event: dict[str, Any] = json.loads(line[6:])
                return event
        raise EOFError

    def until(self, **wanted: object) -> dict[str, Any]:
        """The next event whose data have this."""
        while True:
            event = self.next()
            if wanted.items() <= {**event, **event["data"]}.items():
                return event


@pytest.fixture
def alone(service: Served) -> Iterator[Served]:
    """The same with a repository of one test, which may end it and start it again."""
    yield from served.lent(service)


def test_events_are_told_as_they_happen_and_after_a_restart(alone: Served) -> None:
    """States and harvests of sessions; who comes back with the last id misses nothing, and hears nothing twice."""
    with Listening(alone, "?session=told") as listening:
        script = "git -c user.name=A -c user.email=a@b.c commit -q --allow-empty -m 'agent: Work.'; exit 3"
        alone.create("true", name="not-asked-for")
        alone.over("not-asked-for")  # the last session of a worktree harvests: else this one might, for the other
        alone.create("sh", "-c", script, name="told")
        states = [listening.next() for _ in range(4)]
        assert [event["data"]["state"] for event in states] == ["created", "starting", "running", "failed"]
        assert (states[3]["data"]["reason"], states[3]["data"]["status"]) == ("exited", 3)
        harvest = listening.next()
        assert (harvest["kind"], harvest["data"]["result"]) == ("harvest", "harvested")
        alone.create("sh", "-c", "read line", stdin="pipe", name="over-the-end")
        assert alone.end() == 0
    alone.start()
    alone.create("true", name="later")
    with Listening(alone, "?kind=session", last=states[1]["id"]) as again:
        seen = [again.until(session="told", state=state)["id"] for state in ("running", "failed")]
        assert seen == [event["id"] for event in states[2:]]
        assert again.until(session="over-the-end", reason="service-stopped")["id"] > harvest["id"]
        assert again.until(session="later", state="created")["id"] > harvest["id"]
    first = alone.cli("events", "--since", str(states[1]["id"]), "--session", "told", "--no-follow", "--json").stdout
    assert [json.loads(line)["id"] for line in first.splitlines()] == [*seen, harvest["id"]]
    assert "told is failed" in alone.cli("events", "--since", str(states[1]["id"]), "--no-follow").stdout


def test_a_database_that_is_removed_under_a_service_is_there_for_the_next(alone: Served) -> None:
    """The service notices it while it runs, says so, and once more when it ends."""
    record = alone.paddock.state / "service/service.db"
    assert alone.create("true", name="kept")["name"] == "kept"
    alone.over("kept")
    record.unlink()
    until(record.exists)
    until(lambda: not reasons(alone))
    told = alone.cli("events", "--since", "0", "--kind", "condition", "--no-follow", "--json").stdout.splitlines()
    moves = [json.loads(line)["data"] for line in told]
    assert [move["raised"] for move in moves if move.get("id") == "database-gone"] == [True, False]
    for suffix in ("", "-wal", "-shm"):
        Path(f"{record}{suffix}").unlink()
    alone.end()
    alone.start()
    assert alone.get("/v1/sessions/kept").json["state"] == "ended"


def test_a_client_that_reads_no_events_is_hung_up_on(service: Served) -> None:
    """It costs a bounded queue, and then nothing; another one beside it hears everything."""
    assert service.process is not None
    gone, told = select.poll(), 0
    with Listening(service) as deaf, Listening(service, "?kind=condition") as hearing:
        gone.register(deaf.connection, select.POLLHUP)
        while not gone.poll(0):
            assert told < 3_000, "nobody hangs up"
            told += 1
            service.settings(**({"n" * 4_000: 1} if told % 2 else {}))  # the refusal of the name makes a large event
            service.process.send_signal(signal.SIGHUP)
            assert hearing.until(id="settings-wrong")["data"]["raised"] is bool(told % 2)
    service.settings()
    service.reload()
    until(lambda: not reasons(service))


@pytest.mark.parametrize("switch", ["", "PADDOCK_NO_LANDLOCK=1"], ids=["namespaces", "bubblewrap"])
def test_too_few_open_files_are_named_as_what_they_are(service: Served, switch: str) -> None:
    """Not taken for a machine without namespaces: the limit, and how to raise it. With enough of them all is well."""
    low, enough = 20, 1_024
    refused = service.paddock.shell(f"ulimit -n {low}; {switch} exec paddock run -- true")
    assert refused.returncode == 125
    assert f"may open {low} files (RLIMIT_NOFILE)" in refused.stderr
    assert "LimitNOFILE=" in refused.stderr
    assert "PADDOCK_NO_USERNS" not in refused.stderr
    assert service.paddock.shell(f"ulimit -n {enough}; {switch} exec paddock run -- true").returncode == 0
