"""Sessions outlive their service: killed, restarted, upgraded, its database damaged; streams stay whole meanwhile."""

import contextlib
import errno
import json
import os
import select
import shutil
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from launcher.service.shims import Shim
from tests.kernel.test_service_attach import Client, output
from tests.support import forked, identity, paddock, served
from tests.support.identity import AS_A_USER, Who
from tests.support.install import Installed
from tests.support.served import PATIENCE, Served, alive

ROUNDS = int(os.environ.get("PADDOCK_RESTARTS", "2"))
COPIES = int(os.environ.get("PADDOCK_COPIES", "1"))
"""Of each kind of session."""

COUNT = """
until [ -e go ]; do sleep 0.02; done
i=0
while [ ! -e enough ]; do i=$((i+1)); echo line $i; [ $((i % 200)) -gt 0 ] || sleep 0.1; done
echo end $i
"""
COMMIT = "git -c user.name=A -c user.email=a@b.c commit -q --allow-empty -m"


FIRST = "root" if os.geteuid() == 0 else "user"


@pytest.fixture(scope="module", params=sorted({FIRST, "user"}))
def running(request: pytest.FixtureRequest) -> Iterator[Served]:
    """A service that runs. Root's has control groups: for tests of processes. An ordinary user's: for all others."""
    user = identity.root if request.param == "root" else identity.user
    with served.started(user, stdin_seconds=0.2, term_seconds=0.5, restart_seconds=0.2, harvest_seconds=0.5) as made:
        yield made


@pytest.fixture
def service(running: Served) -> Iterator[Served]:
    """The same with a repository of one test, which may end it; no session of the test is left, nor its settings."""
    yield from served.lent(running)
    for session in running.get("/v1/sessions").json["sessions"]:
        path = f"/v1/sessions/{session['name']}"
        running.post(f"{path}/stop", {"term_seconds": 0, "wait": PATIENCE})
        assert running.call("DELETE", path).status == 204, session
    running.settings()
    running.reload()


OF_A_USER = pytest.mark.parametrize("running", ["user"], indirect=True)


def until(condition: Callable[[], object], seen: Callable[[], object] = lambda: "") -> None:
    """Waits for something that is to happen; `seen` says what there is in its place."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, seen()
        time.sleep(0.02)


def killed(service: Served) -> None:
    """Ends the service with SIGKILL, and starts another one."""
    service.kill()
    service.start()


def left(service: Served) -> None:
    """Ends the service as an operator does who keeps its sessions."""
    os.kill(service.pid, signal.SIGUSR1)
    assert service.end() == 0


def restarted(service: Served) -> None:
    """The same, and starts another one."""
    left(service)
    service.start()


class Reader(threading.Thread):
    """Reads a session's output to its end, over one connection."""

    def __init__(self, service: Served, name: str) -> None:
        super().__init__()
        self.data = b""
        self.frames: list[tuple[bytes, bytes]] = []
        self._client = Client(service, name)
        self.start()

    def run(self) -> None:
        with self._client as client:
            self.frames = client.read(b"X")
            self.data = output(self.frames)


@pytest.mark.timeout(7_200)
@pytest.mark.parametrize(("running", "again"), [(FIRST, killed), ("user", restarted)], indirect=["running"])
def test_sessions_of_all_kinds_go_on(service: Served, again: Callable[[Served], None]) -> None:
    """None ends, attached clients notice nothing, every byte and every move is there once."""
    talking, idle, echoing, terminals = (
        [f"{kind}{number}" for number in range(COPIES)] for kind in ("talks", "idle", "echoes", "terminal")
    )
    for name in talking:
        service.create("sh", "-c", COUNT, name=name)
    for name in idle:
        service.create("sleep", "1000000", name=name)
    for name in echoing:
        service.create("cat", name=name, stdin="pipe")
    for name in terminals:
        service.create("sh", "-c", "stty -echo; echo ready; cat; echo over", name=name, stdin="terminal")
        until(
            lambda name=name: any("ready" in line for line in service.log(name)),  # type: ignore[misc]
            lambda name=name: (service.get(f"/v1/sessions/{name}").raw, service.log(name)),  # type: ignore[misc]
        )
    service.post("/v1/sessions", {
        "command": ["sh", "-c", "echo attempt; sleep 0.2; exit 3"], "directory": str(service.paddock.worktree),
        "name": "fails", "restart": {"policy": "on-failure", "most": 1_000_000},
    })  # fmt: skip
    names = (*talking, *idle, *echoing, *terminals)
    before = {name: service.get(f"/v1/sessions/{name}").json["pid"] for name in names}
    readers = [Reader(service, name) for name in talking]
    (service.paddock.worktree / "go").touch()
    with contextlib.ExitStack() as attached:
        writers = [attached.enter_context(Client(service, name, "mode=write&offset=0")) for name in echoing]
        for number in range(ROUNDS):
            again(service)
            found = {each["name"]: each for each in service.get("/v1/sessions?live=true").json["sessions"]}
            assert {name: found[name]["pid"] for name in names} == before
            assert {found[name]["state"] for name in names} == {"running"}
            for writer in writers:
                writer.send(b"I", b"%d\n" % number)
            for writer in writers:
                while b"%d\n" % number not in output(writer.read(b"O")):
                    pass
        until(
            lambda: service.get("/v1/sessions/fails").json["attempt"] > 2,
            lambda: (service.get("/v1/sessions/fails").raw, service.said.read_text()[-3_000:]),
        )
        fails = service.get("/v1/sessions/fails").json
        (service.paddock.worktree / "enough").touch()
        for writer in writers:
            writer.send(b"Z")
            assert json.loads(writer.read(b"X")[-1][1])["outcome"]["status"] == 0

    for name, reader in zip(talking, readers, strict=True):
        reader.join(PATIENCE)
        assert not reader.is_alive()
        lines = reader.data.decode().splitlines()
        last = int(lines[-1].removeprefix("end "))
        assert lines == [*(f"line {number}" for number in range(1, last + 1)), f"end {last}"]
        assert json.loads(reader.frames[-1][1])["outcome"]["status"] == 0
        assert service.over(name)["state"] == "ended"
        assert service.log(name, "?tail=1") == [f"end {last}"]
        moves = [move["after"] for move in service.get(f"/v1/sessions/{name}").json["transitions"]]
        assert moves == ["starting", "running", "ended"]

    attempts = [move["attempt"] for move in fails["transitions"] if move["after"] == "starting"]
    assert attempts == list(range(1, len(attempts) + 1))

    for name in terminals:
        with Client(service, name, "mode=write&offset=0") as client:
            client.send(b"I", b"still here\n\x04")
            assert b"still here" in output(client.read(b"X"))


@OF_A_USER
def test_what_ends_without_a_service_is_known_to_the_next_one(service: Served) -> None:
    """Its outcome, its log and its commits."""
    script = f"{COMMIT} first; echo ready; while [ ! -e enough ]; do sleep 0.02; done; {COMMIT} second; exit 7"
    service.create("sh", "-c", script, name="ends")
    until(lambda: "ready" in service.log("ends"))
    shim = psutil.Process(service.get("/v1/sessions/ends").json["pid"]).ppid()
    service.kill()
    (service.paddock.worktree / "enough").touch()
    until(lambda: not alive(shim))
    service.start()
    found = service.get("/v1/sessions/ends").json
    assert (found["state"], found["outcome"]["status"]) == ("failed", 7)
    assert [move["after"] for move in found["transitions"]] == ["starting", "running", "failed"]
    assert found["outcome"]["harvest"]["state"] == "harvested"
    shown = service.paddock.who.run(["git", "log", "-2", "--format=%s", "one"], cwd=service.paddock.main)
    assert shown.stdout == "second\nfirst\n"
    assert os.listdir(service.runtime / "paddock/sessions") == []


@OF_A_USER
def test_the_next_service_is_told_of_every_move_in_order(service: Served) -> None:
    """A move between its connection and its first word is not sent for all the others, which it would miss then."""
    service.post("/v1/sessions", {
        "command": ["sh", "-c", "exit 3"], "directory": str(service.paddock.worktree), "name": "fails",
        "restart": {"policy": "on-failure", "most": 1_000_000},
    })  # fmt: skip
    until(lambda: service.get("/v1/sessions/fails").json["attempt"] > 1)
    service.kill()

    def act() -> tuple[bool, list[int]]:
        shim = Shim.join(f"{service.runtime}/paddock/sessions/fails")
        silent = not select.select([shim.channel], [], [], 3.0)[0]  # it is started again meanwhile
        shim.send("hello", moves=0)
        select.select([shim.channel], [], [], PATIENCE)
        return silent, [move["number"] for move in shim.messages()[0][0]["moves"]]

    silent, numbers = forked.run(act, service.paddock.who)
    assert silent
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) > 5
    service.start()
    until(lambda: service.get("/v1/sessions/fails").json["attempt"] > 2)
    attempts = [move["attempt"] for move in service.get("/v1/sessions/fails").json["transitions"]]
    assert sorted(attempts) == attempts
    assert attempts[0] == 1


@pytest.mark.parametrize("running", [FIRST], indirect=True)
def test_a_session_whose_group_was_not_written_down_goes_on(service: Served) -> None:
    """The service is killed within milliseconds of the start: the next one asks the kernel, and ends nothing of it."""
    service.create("sleep", "1000", name="young")
    until(lambda: service.get("/v1/sessions/young").json["state"] == "running")
    before = service.get("/v1/sessions/young").json["pid"]
    service.kill()
    with contextlib.closing(sqlite3.connect(service.paddock.state / "service/service.db")) as database, database:
        database.execute("UPDATE session SET cgroup = ''")
    for _ in range(2):  # with the group adopted, it is in the record for the one after
        service.start()
        time.sleep(0.2)
        found = service.get("/v1/sessions/young").json
        assert (found["state"], found["pid"]) == ("running", before)
        service.kill()


@contextlib.contextmanager
def about_to_begin(service: Served, end: Callable[[Served], None], *, seconds: float) -> Iterator[psutil.Process]:
    """A session `late`, accepted `seconds` before the service's `end`, whose process has its launch, but does not
    listen within the block; and `queued`, which waits for its turn behind it.
    """
    service.settings(most_starting=1)
    service.reload()
    until(lambda: service.get("/v1/health").json["helpers"] == 1)
    (shim,) = (each for each in psutil.Process(service.pid).children() if "shim" in each.cmdline())
    shim.suspend()
    try:
        for name in ("late", "queued"):
            words = {"name": name, "command": ["sh", "-c", "echo ready; exec sleep 1000"]}
            assert service.post("/v1/sessions", {**words, "directory": str(service.paddock.worktree)}).status == 201
        until(lambda: not service.get("/v1/health").json["helpers"])
        end(service)
        with contextlib.closing(sqlite3.connect(service.paddock.state / "service/service.db")) as database, database:
            database.execute("UPDATE session SET created = created - ?", (seconds,))
        yield shim
    finally:
        shim.resume()


@pytest.mark.parametrize(
    ("running", "end", "queued"), [(FIRST, Served.kill, "lost"), ("user", left, "running")], indirect=["running"]
)
def test_a_session_that_was_about_to_begin_belongs_to_the_next_service(
    service: Served, end: Callable[[Served], None], queued: str
) -> None:
    """However long it takes to listen, and has waited before: it is not lost as long as its process may come.

    One that no process was told to begin is lost at once.
    """
    with about_to_begin(service, end, seconds=60):
        service.start()
        assert service.get("/v1/sessions/late").json["state"] == "created"
        if queued == "lost":
            assert service.get("/v1/sessions/queued").json["state"] == "lost"
    until(lambda: service.get("/v1/sessions/late").json["state"] == "running")
    until(lambda: service.get("/v1/sessions/queued").json["state"] == queued)


@OF_A_USER
def test_ending_in_order_ends_what_was_about_to_begin(service: Served) -> None:
    """The service waits for it: nothing else would end it, before another service is started."""
    with about_to_begin(service, Served.kill, seconds=60) as shim:
        service.start()
        before = len(service.said.read_text())
        os.kill(service.pid, signal.SIGTERM)
        until(lambda: "the service is ending" in service.said.read_text()[before:])
    assert service.end() == 0
    until(lambda: not alive(shim))
    service.start()
    assert service.get("/v1/sessions/late").json["outcome"]["reason"] == "service-stopped"


@OF_A_USER
def test_a_session_that_is_about_to_begin_can_be_stopped(service: Served) -> None:
    """By the service that has not reached it yet."""
    with about_to_begin(service, Served.kill, seconds=0):
        service.start()
        assert service.post("/v1/sessions/late/stop", {}).status == 200
    assert service.over("late")["outcome"]["reason"] == "stopped"


@pytest.mark.parametrize(
    ("running", "kinds"),
    [("user", ("launcher", "shim", "all")), (FIRST, ("all",))],
    ids=("each", "all"),
    indirect=["running"],
)
def test_commits_of_a_session_whose_processes_are_killed(service: Served, kinds: tuple[str, ...]) -> None:
    """It is over, nothing of it lives on, and the service brings its commits home by itself."""
    for whom in kinds:
        script = f"{COMMIT} {whom}; echo ready; setsid sleep 1000 & exec sleep 1000"
        service.create("sh", "-c", script, name=whom)
        until(lambda: "ready" in service.log(whom))  # noqa: B023
        found = service.get(f"/v1/sessions/{whom}").json
        shim = psutil.Process(found["pid"]).ppid()
        everything = {process["pid"] for process in found["processes"]} | {shim}
        if whom == "all":
            service.kill()
        os.kill(found["pid"] if whom == "launcher" else shim, signal.SIGKILL)
        if whom == "all":
            service.start()
        found = service.over(whom)
        state = "failed" if whom == "launcher" else "lost"
        assert (whom, found["state"], found["outcome"]["reason"]) == (whom, state, "lost")
        until(lambda: not any(alive(pid) for pid in everything), lambda: whom)  # noqa: B023
        words = ["git", "log", "-1", "--format=%s", "one"]
        until(lambda: service.paddock.who.run(words, cwd=service.paddock.main).stdout == f"{whom}\n", lambda: whom)  # noqa: B023
    assert service.create("true", name="after")["name"] == "after"
    assert service.over("after")["outcome"]["status"] == 0


def linked(source: str, target: str) -> None:
    """A hard link, or a copy on another file system."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.copy2(source, target)


def another(installed: Installed, place: Path) -> Installed:
    """An installation whose directories a test may change; the files are those of the other one."""
    prefix = place / "env"
    shutil.copytree(installed.prefix, prefix, symlinks=True, copy_function=linked)
    (packages,) = prefix.glob("lib/python*/site-packages")
    paddock = prefix / "bin/paddock"
    script = paddock.read_text().replace(str(installed.prefix), str(prefix))
    paddock.unlink()
    paddock.write_text(script)
    paddock.chmod(0o755)
    return Installed(prefix, paddock, prefix / "bin/python3", packages, installed.wheel)


@AS_A_USER
def test_an_upgrade_takes_the_code_away(who: Who, installed: Installed, place: Path) -> None:
    """The package is gone while sessions live, and another one is there later: they talk, and end as they would."""
    (place / "own").mkdir()
    own = another(installed, place / "own")
    service = served.prepare(paddock.make(who, own, place))
    service.settings(helpers=1, stdin_seconds=0.2, term_seconds=0.5, harvest_seconds=0.5)
    service.start(loaded=False)
    try:
        script = f"{COMMIT} made; echo ready; read x; echo got $x; exit 7"
        for name in ("ends", "stays"):
            service.create("sh", "-c", script, name=name, stdin="pipe")
            until(lambda name=name: "ready" in service.log(name))  # type: ignore[misc]
        with Client(service, "ends", "mode=write&offset=0") as client:
            os.kill(service.pid, signal.SIGUSR1)
            assert service.end() == 0
            os.rename(own.packages / "launcher", own.packages / "gone")
            client.send(b"I", b"it\n")
            frames = client.read(b"X")
        assert output(frames) == b"ready\ngot it\n"
        assert json.loads(frames[-1][1])["outcome"]["status"] == 7, frames[-1][1]
        os.rename(own.packages / "gone", own.packages / "launcher")
        service.start(loaded=False)
        stays = service.get("/v1/sessions/stays").json
        assert stays["state"] == "running", json.dumps(stays)
        assert service.get("/v1/sessions/ends").json["outcome"]["status"] == 7
        with Client(service, "stays", "mode=write&offset=0") as client:
            client.send(b"I", b"it\n")
            assert output(client.read(b"X")) == b"ready\ngot it\n"
        assert service.over("stays")["outcome"]["status"] == 7
        until(lambda: service.get("/v1/sessions/ends").json["state"] == "failed")
        shown = service.paddock.who.run(["git", "log", "-2", "--format=%s", "one"], cwd=service.paddock.main)
        assert shown.stdout == "made\nmade\n"
    finally:
        service.end()


@OF_A_USER
def test_a_session_that_nobody_could_find_any_more_ends(service: Served) -> None:
    """Its directory was removed while there was no service: it stops by itself, its commits come home; none is lost
    before it has ended.
    """
    service.create("sh", "-c", f"{COMMIT} made; echo ready; exec sleep 1000", name="alone")
    until(lambda: "ready" in service.log("alone"))
    found = service.get("/v1/sessions/alone").json
    pids: set[int] = {process["pid"] for process in found["processes"]}
    jailed = {pid for pid in pids if os.readlink(f"/proc/{pid}/ns/pid") != os.readlink("/proc/self/ns/pid")}
    watching = {psutil.Process(found["pid"]).ppid(), *pids} - jailed  # with what carries the streams
    assert jailed
    service.kill()
    shutil.rmtree(service.runtime / "paddock/sessions/alone")
    service.start()
    until(lambda: service.get("/v1/sessions/alone").json["state"] == "lost")
    assert not any(alive(pid) for pid in jailed)
    until(lambda: not any(alive(pid) for pid in watching))
    words = ["git", "log", "-1", "--format=%s", "one"]
    until(lambda: service.paddock.who.run(words, cwd=service.paddock.main).stdout == "made\n")


def test_ending_in_order_ends_all_and_a_stop_reaches_what_was_adopted(service: Served) -> None:
    """Signals and stops reach sessions of an earlier service; SIGTERM to the service ends them, with their work."""
    trap = "trap 'echo caught' USR1; echo ready; while :; do sleep 0.05; done"
    service.create("bash", "-c", f"{COMMIT} made; {trap}", name="one")
    service.create("sleep", "1000", name="two")
    until(lambda: "ready" in service.log("one"))
    killed(service)
    assert service.post("/v1/sessions/one/signal", {"signal": "SIGUSR1"}).status == 204
    until(lambda: "caught" in service.log("one"))
    assert service.post("/v1/sessions/two/stop", {"wait": PATIENCE}).json["outcome"]["reason"] == "stopped"
    family = {process["pid"] for process in service.get("/v1/sessions/one").json["processes"]}
    assert service.end() == 0
    assert not [pid for pid in family if alive(pid)]
    service.start()
    assert service.get("/v1/sessions/one").json["outcome"]["reason"] == "service-stopped"
    shown = service.paddock.who.run(["git", "log", "-1", "--format=%s", "one"], cwd=service.paddock.main)
    assert shown.stdout == "made\n"


@OF_A_USER
def test_an_end_waits_for_no_process_that_does_not_answer(service: Served) -> None:
    """A stopped shim and a stopped job: the session is killed with all that is in it, and its commits come home."""
    service.create("sh", "-c", f"{COMMIT} made; echo ready; exec sleep 1000", name="hangs")
    until(lambda: "ready" in service.log("hangs"))
    family = [process["pid"] for process in service.get("/v1/sessions/hangs").json["processes"]]
    below = psutil.Process(service.pid).children()
    for process in below:
        process.suspend()
    try:
        assert service.end() == 0
        until(lambda: not any(alive(pid) for pid in family))
    finally:
        for process in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    service.start()
    assert service.get("/v1/sessions/hangs").json["state"] == "lost"
    words = ["git", "log", "-1", "--format=%s", "one"]
    until(lambda: service.paddock.who.run(words, cwd=service.paddock.main).stdout == "made\n")


@OF_A_USER
def test_the_runtime_directory_is_made_again(service: Served) -> None:
    """It goes when its user logs out: the service listens again where it was, and its sessions were never away."""
    service.create("sh", "-c", "echo ready; exec sleep 1000", name="stays")
    until(lambda: "ready" in service.log("stays"))
    shutil.rmtree(service.runtime / "paddock")

    def answers() -> bool:
        try:
            return service.get("/v1/health").status == 200
        except OSError:
            return False

    assert not answers()
    until(answers)
    time.sleep(6)  # for as long as a shim takes to look for its directory
    assert service.get("/v1/sessions/stays").json["state"] == "running"
    service.create("true", name="other")
    assert service.over("other")["state"] == "ended"


@OF_A_USER
def test_a_stop_between_two_attempts_is_a_stop(service: Served) -> None:
    """The session is ended, by the one who asked for it, and not failed by its last attempt."""
    service.settings(restart_seconds=60)
    service.reload()
    service.post("/v1/sessions", {
        "command": ["sh", "-c", "exit 3"], "directory": str(service.paddock.worktree), "name": "pauses",
        "restart": {"policy": "on-failure"},
    })  # fmt: skip
    until(lambda: service.get("/v1/sessions/pauses").json["outcome"])
    assert service.get("/v1/sessions/pauses").json["state"] == "created"
    found = service.post("/v1/sessions/pauses/stop", {"wait": PATIENCE}).json
    assert (found["state"], found["outcome"]["reason"]) == ("ended", "stopped")


@OF_A_USER
def test_logs_are_read_as_asked_and_a_damaged_database_loses_neither_them_nor_sessions(service: Served) -> None:
    """`--tail 0` is nothing; a line that a full disk has cut off holds up nobody; a new database forgets no log.

    Sessions that live are adopted with all that belongs to them; the end of others is taken over.
    """
    service.create("sh", "-c", "echo one; until [ -e go ]; do sleep 0.02; done; echo two", name="logged")
    service.create("sh", "-c", "echo ready; exec sleep 1000", name="lives", labels={"for": "me"})
    until(lambda: "one" in service.log("logged") and "ready" in service.log("lives"))
    assert service.cli("logs", "logged", "--tail", "0").stdout == ""
    assert service.cli("logs", "logged", "--tail", "1").stdout.endswith("one\n")
    words = service.paddock.words("logs", "logged", "--follow")
    with service.paddock.who.start(words, cwd=service.paddock.worktree, env=service.env) as follower:
        assert follower.stdout is not None
        assert b"one" in follower.stdout.readline()
        with open(service.paddock.state / "service/logs/logged/log.jsonl", "ab") as file:
            file.write(b'{"time": 1, "stre\n')
        (service.paddock.worktree / "go").touch()
        assert b"two" in follower.stdout.readline()
        assert follower.wait(PATIENCE) == 0
    before = service.get("/v1/sessions/lives").json
    service.kill()
    (service.paddock.state / "service/service.db").write_bytes(b"nonsense" * 1_000)
    service.start()
    found = service.get("/v1/sessions/lives").json
    for name in ("state", "attempt", "command", "directory", "labels", "worktree", "backend", "pid", "created"):
        assert found[name] == before[name], name
    assert [move["after"] for move in found["transitions"]] == ["starting", "running"]
    assert service.post("/v1/sessions/lives/stop", {"wait": PATIENCE}).json["state"] == "ended"
    service.create("true", name="other")
    service.over("other")
    assert (service.paddock.state / "service/logs/logged/log.jsonl").exists()


@OF_A_USER
def test_input_for_a_slow_reader_waits_and_none_is_lost(service: Served) -> None:
    """More than is kept for a command that does not read: the client waits, as at a full pipe."""
    size = 12 << 20
    command = [*service.paddock.words("run", "--supervised", "--", "sh", "-c", "sleep 2; wc -c; sleep 1")]
    with service.paddock.who.start(command, cwd=service.paddock.worktree, env=service.env) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"x" * (size // 2))
        service.kill()
        service.start()
        process.stdin.write(b"x" * (size // 2))
        process.stdin.close()
        assert process.stdout.read() == b"%d\n" % size
        assert process.wait(PATIENCE) == 0
