"""A running service of the installed command, and a client that speaks to its socket by itself."""

import copy
import http.client
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tests.support import identity, install, paddock, warmed
from tests.support.identity import Who
from tests.support.paddock import Paddock

PATIENCE = 60.0
lasting: set[int] = set()
"""Services that a test has started again, and that outlive it."""
_SERVING = ("launcher.verbs.forms", "launcher.verbs.serve", "launcher.service.daemon", "uvicorn.lifespan.off")


class Answer:
    """One HTTP answer."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.raw = response.read()

    @property
    def json(self) -> Any:  # noqa: ANN401  # whatever the service says
        """The body as JSON."""
        return json.loads(self.raw)


class Served:
    """`paddock serve` of one user. `start` runs it; a context manager over its life is `serving`.

    Args:
        made: the command.
        runtime: the runtime directory.
    """

    def __init__(self, made: Paddock, runtime: Path) -> None:
        self.paddock = made
        self.runtime = runtime
        self.env = {**made.env, "XDG_RUNTIME_DIR": str(runtime)}
        self.usual: dict[str, object] = {}
        self.process: subprocess.Popen[bytes] | warmed.Process | None = None
        self.said = runtime.parent / "serve.log"

    @property
    def address(self) -> Path:
        """The control socket."""
        return self.runtime / "paddock" / "control.sock"

    @property
    def pid(self) -> int:
        """The service's process id."""
        assert self.process is not None
        return self.process.pid

    def start(self, env: Mapping[str, str] | None = None, *, loaded: bool = True) -> None:
        """Starts it and waits until it answers.

        Args:
            env: further variables.
            loaded: in a child of a process that has its code (`warmed`), and not by the command.
        """
        made, env = self.paddock, {**self.env, **(env or {})}
        if loaded and not warmed.APART:
            python = made.installed.python
            self.said.touch()
            made.who.give(self.said)
            self.process = warmed.start(
                made.who, python, ["serve"], cwd=made.place, env=env, log=self.said, loaded=_SERVING
            )
        else:
            with open(self.said, "ab") as log:
                self.process = subprocess.Popen(
                    made.who.command(made.words("serve")),
                    cwd=made.place,
                    env=made.who.environment(env),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                )
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.said.read_text()
            try:
                if self.get("/v1/health").status == 200:
                    return
            except OSError:
                time.sleep(0.02)
        raise AssertionError(self.said.read_text())

    def kill(self) -> None:
        """SIGKILL; waits until it has ended."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(PATIENCE)

    def end(self) -> int:
        """Asks it to end, as systemd does; returns its exit status."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process.wait()

    # The API

    def connect(self) -> socket.socket:
        """A connection to the control socket."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(PATIENCE)
        try:
            connection.connect(str(self.address))
        except OSError:
            connection.close()
            raise
        return connection

    def call(self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> Answer:
        """One request with a JSON body."""
        connection = http.client.HTTPConnection("paddock", timeout=PATIENCE)
        connection.sock = self.connect()
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, path, content, {"content-type": "application/json", **(headers or {})})
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def get(self, path: str) -> Answer:
        """GET."""
        return self.call("GET", path)

    def post(self, path: str, body: object, **headers: str) -> Answer:
        """POST."""
        return self.call("POST", path, body, {name.replace("_", "-"): value for name, value in headers.items()})

    def create(self, *command: str, wait: float = PATIENCE, **fields: Any) -> Any:  # noqa: ANN401  # see Answer.json
        """Makes a session in the worktree, and waits until it runs or is over."""
        body = {"command": list(command), "directory": str(self.paddock.worktree), **fields}
        answer = self.post(f"/v1/sessions?wait={wait:g}", body)
        assert answer.status == 201, answer.raw
        return answer.json

    def attaching(self, name: str, query: str) -> socket.socket:
        """A connection that asks to be attached to a session, and has no answer yet."""
        connection = self.connect()
        connection.sendall(
            f"GET /v1/sessions/{name}/attach?{query} HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\n"
            "upgrade: paddock-stream\r\n\r\n".encode()
        )
        return connection

    @contextmanager
    def behind(self, session: Mapping[str, Any]) -> Iterator[psutil.Process]:
        """A session's own process, stopped; at the end it must not have hung up on anybody whom it knew before."""
        shim = next(each for each in psutil.Process(session["pid"]).parents() if "shim" in each.cmdline())

        def sockets() -> set[str]:
            found: set[str] = set()
            for each in Path(f"/proc/{shim.pid}/fd").iterdir():
                with suppress(FileNotFoundError):  # closed in this moment
                    found.add(os.readlink(each))
            return {link for link in found if "socket:" in link}

        before = sockets()
        shim.suspend()
        yield shim
        assert before <= sockets()

    def over(self, name: str) -> Any:  # noqa: ANN401  # see Answer.json
        """A session, after its end."""
        found = self.get(f"/v1/sessions/{name}?wait={PATIENCE:g}").json
        assert found["state"] in ("ended", "failed", "lost"), found
        return found

    def log(self, name: str, query: str = "") -> list[str]:
        """The lines of a session's log."""
        answer = self.get(f"/v1/sessions/{name}/logs{query}")
        assert answer.status == 200, answer.raw
        return [json.loads(line)["text"] for line in answer.raw.splitlines()]

    def cli(self, *words: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        """Runs `paddock WORDS...` against this service; one that is to be refused as a service, where its code is."""
        made = self.paddock
        if words == ("serve",):
            return warmed.run(made.who, made.installed.python, words, cwd=made.worktree, env=self.env)
        return made.call(*words, env=self.env, stdin=stdin)

    def reload(self, *, works: bool = True) -> None:
        """Has it read its settings again, and waits until it has."""
        assert self.process is not None
        word = "settings reloaded" if works else "settings are unchanged"
        before = self.said.read_text().count(word)
        self.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + PATIENCE
        while self.said.read_text().count(word) == before:
            assert time.monotonic() < deadline, self.said.read_text()
            time.sleep(0.02)

    def settings(self, **values: object) -> None:
        """Writes service.toml, with `usual` below; the service reads it at its start and at `reload`."""
        path = self.paddock.who.home / ".config/paddock/service.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in (self.usual | values).items()))
        self.paddock.who.give(self.paddock.who.home / ".config")


def prepare(made: Paddock) -> Served:
    """A service that does not run yet, with a runtime directory of its own."""
    runtime = made.place / "runtime"
    runtime.mkdir(mode=0o700)
    made.who.give(runtime)
    return Served(made, runtime)


@contextmanager
def serving(made: Paddock, **settings: object) -> Iterator[Served]:
    """A service that runs, with these settings; ended in order afterwards.

    It keeps one warm helper, unless told: four take longer to start than most tests need it.
    """
    served = prepare(made)
    served.usual = {"helpers": 1, **settings}
    served.settings()
    served.start()
    try:
        yield served
    finally:
        served.end()


@contextmanager
def started(user: Callable[[Path], Who] = identity.user, **settings: object) -> Iterator[Served]:
    """A service that runs, with these settings, of a user who has a home and a repository for it alone."""
    place = Path(tempfile.mkdtemp(prefix="t-", dir=install.public_root()))
    try:
        place.chmod(0o755)
        who = user(place / "home")
        (place / "place").mkdir()
        with serving(paddock.make(who, install.install(), who.give(place / "place")), **settings) as served:
            yield served
    finally:
        shutil.rmtree(place)


def with_repository(running: Served) -> Served:
    """The same service, with a further repository of its user, for one of the tests that share it."""
    user, place = running.paddock.who, Path(tempfile.mkdtemp(dir=running.paddock.place))
    found = copy.copy(running)
    found.env = {**running.env}
    found.paddock = paddock.make(user, running.paddock.installed, user.give(place))
    return found


def lent(running: Served) -> Iterator[Served]:
    """For a fixture: `with_repository`, to a test that may kill the service; for the next one it runs in any case."""
    running.env[identity.MARKER] = ""  # what is started again is not this test's
    found = with_repository(running)
    try:
        yield found
    finally:
        running.process = found.process
        if found.process is None or found.process.poll() is not None:
            running.start()
        lasting.add(running.pid)


def alive(process: int | psutil.Process) -> bool:
    """Whether a process runs (one that only waits to be reaped does not); by its number, whichever has that now."""
    try:
        found = psutil.Process(process) if isinstance(process, int) else process
        return found.is_running() and found.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def descriptors(pid: int) -> int:
    """How many descriptors a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


# Load for a service: many sessions at once, many one after the other; what that takes, how fast it answers.

BWRAP = ("bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "/bin/true")


class Cost(NamedTuple):
    """What the service has: descriptors, KiB of resident memory."""

    descriptors: int
    memory: int


def cost(service: Served) -> Cost:
    """What it has now."""
    return Cost(descriptors(service.pid), psutil.Process(service.pid).memory_info().rss // 1024)


def settled(service: Served, helpers: int) -> Cost:
    """What it has once nothing lives and its helpers are ready again."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        health = service.get("/v1/health").json
        live = sum(health["sessions"][state] for state in ("created", "starting", "running", "stopping"))
        if not live and health["helpers"] == helpers:
            return cost(service)
        time.sleep(0.1)
    raise AssertionError(service.get("/v1/health").json)


def still_alive(service: Served, count: int, label: str) -> list[str]:
    """Makes so many sessions that stay, and waits until all of them run; their names."""
    names = [f"{label}{number}" for number in range(count)]
    for name in names:
        body = {"name": name, "command": ["sleep", "1000"], "directory": str(service.paddock.worktree)}
        answer = service.post("/v1/sessions", body)
        assert answer.status == 201, answer.raw
    deadline = time.monotonic() + PATIENCE + count
    while time.monotonic() < deadline:
        states = service.get("/v1/health").json["sessions"]
        if states["running"] == count:
            return names
        assert not states["failed"], service.get("/v1/sessions?state=failed").json
        time.sleep(0.1)
    raise AssertionError(service.get("/v1/health").json)


def churn(service: Served, count: int, label: str, workers: int = 4) -> float:
    """Starts, talks to and ends so many sessions, `workers` at the same time; seconds that it took."""
    problems: list[object] = []
    numbers = iter(range(count))
    lock = threading.Lock()

    def work() -> None:
        while not problems:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            name = f"{label}{number}"
            try:
                service.create("sh", "-c", f"echo {name}", name=name, wait=0)
                over = service.over(name)
                if over["outcome"]["status"] != 0 or service.log(name) != [name]:
                    problems.append(over)
            except Exception as error:  # told by the thread that waits
                problems.append(error)

    begun = time.monotonic()
    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems, problems
    return time.monotonic() - begun


def answers(service: Served, until: Callable[[], bool]) -> list[float]:
    """Seconds that each of many small requests took, while something else goes on."""
    found = []
    while not until():
        begun = time.monotonic()
        assert service.get("/v1/sessions?live=1&limit=20").status == 200
        found.append(time.monotonic() - begun)
        time.sleep(0.005)
    return found


def own_processes(service: Served, name: str) -> list[int]:
    """Paddock's own processes of a session: its launcher, and those of its jail beside the command, sleep(1)."""
    session = service.get(f"/v1/sessions/{name}").json
    launcher = psutil.Process(session["pid"]).ppid()
    return [launcher, *(each["pid"] for each in session["processes"] if each["name"] != "sleep")]


def spawns(service: Served, rounds: int, label: str, *, beside: bool = True) -> tuple[list[float], list[float]]:
    """Seconds to start a command: in a session, from the hand-over to a helper on; and `beside` it in bubblewrap."""
    ours, theirs = [], []
    for number in range(rounds):
        while service.get("/v1/health").json["helpers"] < 2:
            time.sleep(0.05)
        time.sleep(0.1)
        name = f"{label}{number}"
        service.create("true", name=name, wait=0)
        ours.append(service.over(name)["spawn_seconds"])
        if not beside:
            continue
        time.sleep(0.1)
        begun = time.monotonic()
        pid = os.posix_spawnp(BWRAP[0], BWRAP, os.environ)
        os.waitpid(pid, 0)
        theirs.append(time.monotonic() - begun)
    return ours, theirs


def percentile(values: list[float], percent: int) -> float:
    """So many percent of the values are not above this one."""
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def bubblewrap_works() -> bool:
    """Whether there is something to compare with."""
    try:
        return subprocess.run(BWRAP, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False
