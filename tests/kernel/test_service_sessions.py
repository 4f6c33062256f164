"""Sessions of a service: started through warm helpers, watched, restarted, ended in order, remembered."""

import json
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from policy import promises
from tests.support import identity, served
from tests.support.features import need, need_backend
from tests.support.programs.scene import SWITCHES
from tests.support.served import Served, alive


@pytest.fixture(scope="module", params=["root", "user"] if os.geteuid() == 0 else ["user"])
def service(request: pytest.FixtureRequest) -> Iterator[Served]:
    """A service that all tests here share, once root's and once an ordinary user's."""
    user = identity.root if request.param == "root" else identity.user
    with served.started(user, stdin_seconds=0.2, term_seconds=0.5, restart_seconds=0.05) as running:
        yield running


@pytest.fixture
def collecting() -> Iterator[Served]:
    """One that looks again and again what is not needed any more."""
    with served.started(stdin_seconds=0.2, term_seconds=0.5, collect_seconds=0.2) as running:
        yield running


OF_A_USER = pytest.mark.parametrize("service", ["user"], indirect=True)
"""Root's sessions differ in the control groups that they have, and so in limits and in how they are ended."""


def test_a_session_runs_in_a_jail_and_is_remembered(service: Served) -> None:
    """Its state, output, exit status and jail are told when it is over; the worktree has what it wrote there."""
    found = service.create("sh", "-c", "echo out; echo err >&2; echo made > made; touch /etc/x; exit 3", name="first")
    assert found["state"] in ("running", "failed")
    over = service.over("first")
    assert (over["state"], over["outcome"]["reason"], over["outcome"]["status"]) == ("failed", "exited", 3)
    assert over["backend"] in ("landlock+namespaces", "landlock+guard", "bubblewrap")
    assert [move["after"] for move in over["transitions"]] == ["starting", "running", "failed"]
    log = service.log("first")
    assert {"out", "err"} <= set(log)
    assert any("/etc/x" in line for line in log)
    assert (service.paddock.worktree / "made").read_text() == "made\n"
    assert service.log("first", "?stream=stderr&tail=100")[0] != "out"


@OF_A_USER
def test_what_it_commits_is_harvested_at_its_end(service: Served) -> None:
    """The branch of the worktree has the commit, and the record says so."""
    script = "git -c user.name=A -c user.email=a@b.c commit -q --allow-empty -m 'agent: Work.'"
    service.create("sh", "-c", script, name="commits")
    over = service.over("commits")
    assert over["state"] == "ended", over
    assert over["outcome"]["harvest"]["state"] == "harvested", over
    shown = service.paddock.who.run(["git", "log", "-1", "--format=%s"], cwd=service.paddock.worktree)
    assert shown.stdout == "agent: Work.\n", shown.stderr


@OF_A_USER
@pytest.mark.parametrize(("stdin", "status"), [("terminal", 129), ("pipe", 0)])
def test_a_stop_does_not_disturb_the_harvest(service: Served, stdin: str, status: int) -> None:
    """A command that the end of its input has ended is not sent SIGTERM: its launcher has work in hand."""
    made = "for n in $(seq 300); do echo $n >many-$n; done; git add -A; git commit -qm many; echo ready; read line"
    identity = "git config user.name A; git config user.email a@b.c"
    name = f"many-{stdin}"
    at = service.post("/v1/worktrees", {"repository": str(service.paddock.main), "ticket": name}).json["main"]["path"]
    service.create("sh", "-c", f"{identity}; {made}; true", name=name, stdin=stdin, directory=at)
    while not any("ready" in line for line in service.log(name)):
        time.sleep(0.05)
    service.post(f"/v1/sessions/{name}/stop", {})
    outcome = service.over(name)["outcome"]
    assert (outcome["status"], (outcome["harvest"] or {}).get("state")) == (status, "harvested"), outcome


@OF_A_USER
def test_a_session_that_cannot_be_started_says_why(service: Served) -> None:
    """The Refusal of the launcher is in its record; the command never ran."""
    over = service.over(service.create("no-such-command-anywhere")["name"])
    assert (over["state"], over["outcome"]["reason"]) == ("failed", "refused")
    assert over["outcome"]["refusal"]["errorType"] == "command-not-found"
    assert over["outcome"]["status"] == 127


def test_stop_goes_step_by_step(service: Served) -> None:
    """What waits for its input ends by itself; what ignores SIGTERM is killed, with all that it has started."""
    service.create("cat", name="reads", stdin="pipe")
    stopped = service.post("/v1/sessions/reads/stop", {"wait": 30}).json
    assert (stopped["state"], stopped["outcome"]["reason"], stopped["outcome"]["status"]) == ("ended", "stopped", 0)

    service.create("sh", "-c", "trap '' TERM; setsid sleep 1000 & echo ready; sleep 1000", name="stubborn")
    deadline = time.monotonic() + served.PATIENCE
    while "ready" not in "".join(service.log("stubborn")):  # before, SIGTERM would end it
        assert time.monotonic() < deadline
        time.sleep(0.05)
    tree = service.get("/v1/sessions/stubborn").json["processes"]
    stopped = service.post("/v1/sessions/stubborn/stop", {"wait": 30}).json
    assert (stopped["state"], stopped["outcome"]["signal"]) == ("ended", "SIGKILL")
    assert tree
    assert not [process for process in tree if alive(process["pid"])]


@OF_A_USER
def test_a_command_that_stops_itself_stops_no_helper(service: Served) -> None:
    """A session whose command was continued, or ended while it was stopped, is over like any other."""
    script = "(until [ -e on ]; do sleep 0.05; kill -CONT $$; done) & kill -STOP $$; touch on; wait; exit 7"
    service.create("sh", "-c", script, name="resumed")
    service.create("sh", "-c", "kill -STOP $$", name="stays-stopped", stdin="terminal")
    assert service.over("resumed")["outcome"]["status"] == 7
    deadline = time.monotonic() + served.PATIENCE
    while "stopped" not in [each["status"] for each in service.get("/v1/sessions/stays-stopped").json["processes"]]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    stopped = service.post("/v1/sessions/stays-stopped/stop", {"wait": 30}).json
    assert (stopped["state"], stopped["outcome"]["status"]) == ("ended", 137)


@OF_A_USER
def test_signals_reach_the_command(service: Served) -> None:
    """And only those that are known."""
    script = "trap 'echo got; exit 7' USR1; echo ready; while :; do sleep 0.05; done"
    service.create("sh", "-c", script, name="traps")
    deadline = time.monotonic() + served.PATIENCE
    while "ready" not in service.log("traps") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert service.post("/v1/sessions/traps/signal", {"signal": "SIGUSR1"}).status == 204
    assert service.over("traps")["outcome"]["status"] == 7
    assert service.post("/v1/sessions/traps/signal", {"signal": "SIGUSR1"}).status == 409
    assert service.post("/v1/sessions/traps/signal", {"signal": "SIGSTOP"}).json["errorType"] == "signal-unknown"


@OF_A_USER
def test_a_failing_session_is_started_again_so_often_and_no_more(service: Served, tmp_path: Path) -> None:
    """Each attempt is written down; the last one's outcome stays."""
    del tmp_path
    script = "echo x >> tries; [ $(wc -l < tries) -ge 3 ]"
    service.create("sh", "-c", script, name="again", restart={"policy": "on-failure", "most": 5})
    over = service.over("again")
    assert (over["state"], over["attempt"]) == ("ended", 3)
    service.create("false", name="hopeless", restart={"policy": "on-failure", "most": 2})
    over = service.over("hopeless")
    assert (over["state"], over["attempt"]) == ("failed", 3)


@OF_A_USER
@pytest.mark.parametrize("backend", promises.BACKENDS)
def test_a_session_that_is_started_again_has_its_network_again(service: Served, backend: str) -> None:
    """Each attempt has a proxy, which refuses a host, and reaches the port that is granted."""
    need_backend(backend)
    extra, switches = SWITCHES[backend]
    environment = {"PATH": os.environ["PATH"], "HOME": str(service.paddock.who.home), **extra}
    name = f"anew-{promises.BACKENDS.index(backend)}"
    with socket.create_server(("127.0.0.1", 0)) as granted:
        port = granted.getsockname()[1]
        script = f"echo x >> {name}; curl -s -m 25 -o /dev/null -w '%{{http_code}}\\n' http://refused.example; "
        script += f"exec 3<>/dev/tcp/127.0.0.1/{port} && read -r line <&3; echo $line; [ $(wc -l < {name}) -ge 3 ]"
        options = [*switches, "--net", "proxy", "--proxy-env", "yes", "--reach", str(port)]
        service.create("bash", "-c", script, name=name, options=options, environment=environment, wait=0,
                       restart={"policy": "on-failure", "most": 2})  # fmt: skip
        granted.settimeout(served.PATIENCE)
        for _ in range(3):
            with granted.accept()[0] as connection:
                connection.sendall(b"hello\n")
        over = service.over(name)
    assert (over["state"], over["attempt"], over["backend"]) == ("ended", 3, backend), (over, service.log(name))
    said = [line for line in service.log(name) if line in ("403", "hello")]
    assert said == ["403", "hello"] * 3, service.log(name)


@OF_A_USER
def test_a_name_is_taken_once_and_a_key_makes_one_session(service: Served) -> None:
    """The same request with the same idempotency key is answered with the same session."""
    body = {"command": ["true"], "directory": str(service.paddock.worktree)}
    first = service.post("/v1/sessions", body, idempotency_key="k1")
    second = service.post("/v1/sessions", body, idempotency_key="k1")
    assert (first.status, second.status, first.json["name"]) == (201, 200, second.json["name"])
    other = service.post("/v1/sessions", {**body, "command": ["false"]}, idempotency_key="k1")
    assert (other.status, other.json["errorType"]) == (409, "idempotency-mismatch")
    service.over(first.json["name"])
    again = service.post("/v1/sessions", {**body, "name": first.json["name"]})
    assert (again.status, again.json["errorType"]) == (409, "session-exists")


@OF_A_USER
def test_credentials_are_neither_logged_nor_written_down(service: Served) -> None:
    """Not from the environment, not from --env, in no usual form; the command itself has what its plan lets through."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(service.paddock.who.home), "MY_API_KEY": "s3cret-of-mine"}
    service.create(
        "sh", "-c", "echo $MY_API_KEY $GIVEN; printf '%s' $MY_API_KEY | base64", name="secrets",
        environment=environment, options=["--env", "MY_API_KEY", "--env", "GIVEN=other-secret"],
    )  # fmt: skip
    over = service.over("secrets")
    assert service.log("secrets") == ["[redacted] [redacted]", "[redacted]"], over
    assert over["options"] == ["--env", "MY_API_KEY", "--env", "GIVEN"]
    state = service.paddock.state / "service"
    for path in (path for path in state.rglob("*") if path.is_file()):
        content = path.read_bytes()
        assert b"s3cret-of-mine" not in content, path
        assert b"other-secret" not in content, path


def test_a_session_that_passes_a_limit_says_which(service: Served) -> None:
    """The reason is the limit, not the signal that came of it; denials are counted where they are heard."""
    service.create("sh", "-c", "while :; do :; done", name="busy", options=["--limit", "cpu_time=1"])
    listed = service.cli("ps").stdout
    assert ("WORKTREE" in listed, "one" in listed) == (True, True)
    assert "branch    one\n" in service.cli("show", "busy").stdout
    outcome = service.over("busy")["outcome"]
    assert (outcome["reason"], outcome["limit"], outcome["status"]) == ("limit", "cpu_time", 137)
    # Shared memory, which no rlimit bounds: a control group's killer, or the watchdog, ends it.
    greedy = "import mmap; m = mmap.mmap(-1, 1 << 30)\nfor at in range(0, 1 << 30, 4096): m[at] = 1\ninput()"
    service.create("/usr/bin/python3", "-c", greedy, name="greedy", stdin="pipe", options=["--limit", "memory=64M"])
    outcome = service.over("greedy")["outcome"]
    assert (outcome["reason"], outcome["limit"], outcome["status"]) == ("limit", "memory", 137)
    proxied = ["--net", "proxy", "--allow-domain", "good.example"]
    program = "import urllib.request as r\ntry:\n r.urlopen('http://bad.example/')\nexcept Exception: pass"
    service.create("/usr/bin/python3", "-c", program, name="refused", options=proxied)
    over = service.over("refused")
    assert over["outcome"]["denials"] >= 1, over
    told = [json.loads(line) for line in service.get("/v1/sessions/refused/denials").raw.splitlines()]
    assert "bad.example" in [denial["host"] for denial in told]


def test_private_directories_of_worktrees_that_have_gone_are_removed(collecting: Served) -> None:
    """In time; those of a worktree that is there stay, and so does what was never brought home."""
    service = collecting
    made = service.paddock
    for name in ("gone", "holds"):
        added = made.who.run(["git", "worktree", "add", "-q", "-b", name, f"../{name}"], cwd=made.main)
        assert added.returncode == 0, added.stderr
        service.create("true", directory=str(made.place / name), name=f"in-{name}")
        service.over(f"in-{name}")
    held = service.get("/v1/sessions/in-holds").json["worktree_id"]
    gone = service.get("/v1/sessions/in-gone").json["worktree_id"]
    commit = ["git", "-c", "user.name=A", "-c", "user.email=a@b.c", "commit", "-q", "--allow-empty", "-m", "kept"]
    service.create(*commit, directory=str(made.place / "holds"), name="kept", options=["--strict-handoff"])
    service.over("kept")
    shutil.rmtree(made.place / "gone")
    homes = made.state / "worktrees"
    (homes / gone / "cache").write_bytes(bytes(1_000_000))
    deadline = time.monotonic() + served.PATIENCE
    while not (homes / gone / ".gone").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    six, seven = (time.time() - days * 86_400 for days in (6, 7))
    os.utime(homes / gone / ".gone", (six, six))
    time.sleep(1)  # several collections
    assert (homes / gone / "cache").exists()
    os.utime(homes / gone / ".gone", (seven, seven))
    while f"removed {homes / gone}" not in service.said.read_text():
        assert time.monotonic() < deadline, service.said.read_text()
        time.sleep(0.05)
    told = next(line for line in service.said.read_text().splitlines() if f"removed {homes / gone}" in line)
    assert 1_000_000 < int(re.findall(r"(\d+) bytes", told)[0]) < 2_000_000
    assert f"its worktree is gone: {made.place / 'gone'}" in told
    assert (homes / held).exists()
    assert not (homes / gone).exists()


@OF_A_USER
def test_the_command_line_shows_and_stops(service: Served) -> None:
    """`paddock ps`, `logs` and `stop` say what the API says."""
    service.create("sh", "-c", "echo hello; echo paddock: over; exec sleep 1000", name="shown")
    deadline = time.monotonic() + served.PATIENCE
    while not (context := service.get("/v1/sessions/shown/context").json)["worktree_context"]:
        assert time.monotonic() < deadline, context
        time.sleep(0.02)
    assert (context["session_id"], context["state"]) == ("session/shown", "enriched")
    assert context["worktree_context"]["main_worktree"]["worktree_path"] == str(service.paddock.worktree)
    assert "shown" in service.cli("ps").stdout
    ended = service.cli("stop", "shown", "--now")
    assert (ended.returncode, ended.stdout) == (0, "shown: ended, stopped (137)\n"), ended
    assert service.get("/v1/sessions/shown/context").json["errorType"] == "context-unknown"
    assert service.cli("logs", "shown").stdout == "hello\n| paddock: over\n"
    assert service.cli("logs", "shown", "--raw").stdout == "hello\npaddock: over\n"
    assert re.fullmatch(r"no session is running; \d+ ended: paddock ps --all\n", service.cli("ps").stdout)
    assert "shown" in service.cli("ps", "--all").stdout
    service.create("sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 1; done", name="deaf")
    while "deaf" not in service.log("deaf"):  # before that a signal would end it
        assert time.monotonic() < deadline + served.PATIENCE
        time.sleep(0.02)
    waited = service.cli("stop", "deaf", "--patience", "3")
    assert "waiting for deaf: sent SIGTERM, will be killed after 3 s (--now" in waited.stderr
    assert service.cli("stop", "--forget", "shown").returncode == 0
    assert service.get("/v1/sessions/shown").json["errorType"] == "session-unknown"


def test_nothing_of_ended_sessions_is_left(service: Served) -> None:
    """No directory of a session, no control group but the helpers', no process."""
    service.over(service.create("true")["name"])
    assert os.listdir(service.paddock.state / "sessions") == []
    health = service.get("/v1/health").json
    if health["groups"]:
        assert len(os.listdir(health["groups"])) >= health["helpers"]
        assert len([name for name in os.listdir(health["groups"]) if "-" in name]) <= health["helpers"] + 1


@OF_A_USER
def test_a_late_answer_is_of_no_use_to_the_next_attempt(service: Served) -> None:
    """Which counts its questions anew: what a person allowed one host for good is not given to the next one."""
    need("userns")
    script = """
        if [ -e first ]; then curl -s -m 25 http://second.example/; exit 0; fi
        touch first; curl -s -m 25 http://first.example/ & until [ -e go ]; do sleep 0.02; done; kill $!; exit 1
    """
    service.create("sh", "-c", script, name="late", options=["--ask", "yes"], wait=0,
                   restart={"policy": "on-failure", "most": 1})  # fmt: skip
    path = "/v1/sessions/late/questions"

    def asked(host: str) -> dict[str, object]:
        deadline = time.monotonic() + 30
        while not [each for each in service.get(path).json.get("questions", []) if each["host"] == host]:
            assert time.monotonic() < deadline, service.log("late")
        (found,) = service.get(path).json["questions"]
        return {"number": found["number"], "host": found["host"], "port": found["port"]}

    first = asked("first.example")
    (service.paddock.worktree / "go").touch()
    second = asked("second.example")
    assert first["number"] == second["number"]
    configuration = service.paddock.who.home / ".config/paddock/config.toml"

    def answered(question: dict[str, object], word: str) -> int:
        body = {"answer": word, "host": question["host"], "port": question["port"]}
        return service.post(f"{path}/{question['number']}", body).status

    assert answered(first, "always") == 404
    assert not configuration.exists() or "example" not in configuration.read_text()
    assert asked("second.example") == second
    assert answered(second, "no") == 200
    assert service.over("late")["attempt"] == 2


@OF_A_USER
def test_questions_about_refused_hosts_are_answered_over_the_api(service: Served) -> None:
    """By number, host and port; what was answered is asked no more, and a session that asks nothing says so."""
    need("userns")
    script = "curl -sS http://files.example/; read line"
    service.create("sh", "-c", script, name="asking", options=["--ask", "yes"], stdin="pipe")
    path, deadline = "/v1/sessions/asking/questions", time.monotonic() + 30
    while not (found := service.get(path).json.get("questions")):
        assert time.monotonic() < deadline
    (question,) = found
    assert (question["host"], question["port"], question["process"]) == ("files.example", 80, "curl")
    assert question["risk"]
    assert json.loads(service.cli("answer", "asking", "--json").stdout)[0]["host"] == "files.example"
    number, no = question["number"], {"answer": "no", "host": "files.example", "port": 80}
    for other in ({"host": "other.example"}, {"host": "example"}, {"host": ""}, {"port": 443}):
        assert service.post(f"{path}/{number}", no | other).status == 404
    for which, body, status in ((99, no, 404), (number, no | {"answer": "yes"}, 422), (number, {"answer": "no"}, 422)):
        assert service.post(f"{path}/{which}", body).status == status
    answer = service.post(f"{path}/{number}", no)
    assert (answer.status, answer.json) == (200, no)
    assert service.get(path).json == {"questions": []}
    assert service.post(f"{path}/{number}", no | {"answer": "session"}).status == 404
    service.create("sleep", "100", name="silent")
    assert service.get("/v1/sessions/silent/questions").status == 409
    assert service.get("/v1/sessions/nosuch/questions").status == 404
    for name in ("asking", "silent"):
        service.post(f"/v1/sessions/{name}/stop", {"wait": 10, "term_seconds": 1})
