"""The control socket under attack: strangers, jailed processes, planted links, sizes, slowness, crowds, nonsense."""

import http.client
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import IDENTITIES
from tests.support import identity, install, paddock, served
from tests.support.identity import AS_A_USER, Who
from tests.support.install import Installed
from tests.support.served import Served

CONNECTIONS = int(os.environ.get("PADDOCK_CONNECTIONS", "300"))
STRANGER = 65_533

CONNECT = """
import socket, sys
try:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(20)
    connection.connect(sys.argv[1])
    try:
        connection.sendall(b"GET /v1/health HTTP/1.1\\r\\nhost: x\\r\\n\\r\\n")
    except BrokenPipeError:
        pass  # it was refused before it said anything; the answer is there
    print(connection.recv(4096).decode())
except OSError as error:
    print("no way:", error)
"""


@pytest.fixture(scope="module")
def service() -> Iterator[Served]:
    """A service that all tests here share."""
    with served.started(most_connections=128, request_bytes=100_000, request_seconds=2.0) as running:
        yield running


def healthy(service: Served) -> bool:
    """Whether the service still answers."""
    return service.get("/v1/health").status == 200


def test_another_user_is_refused(service: Served) -> None:
    """By the directory; and where that was opened to everybody, by his credentials. Root may come in."""
    assert service.address.parent.stat().st_mode & 0o7777 == 0o700
    assert service.address.stat().st_mode & 0o7777 == 0o600
    if os.geteuid() != 0:
        return  # nobody else can be played; tests/unit/test_service_peers.py has the rule
    stranger = ("setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups")
    words = [*stranger, "/usr/bin/python3", "-I", "-c", CONNECT, str(service.address)]
    assert "Permission denied" in subprocess.run(words, capture_output=True, text=True, check=True).stdout
    opened = (service.address.parent, service.address.parent.parent, service.paddock.place)
    modes = [path.stat().st_mode for path in opened]
    for path in opened:
        path.chmod(0o755)
    service.address.chmod(0o666)
    try:
        said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        assert said.startswith("HTTP/1.1 403")
        assert '"peer-refused"' in said
    finally:
        service.address.chmod(0o600)
        for path, mode in zip(opened, modes, strict=True):
            path.chmod(mode)
    said = subprocess.run(words[-5:], capture_output=True, text=True, check=True).stdout
    assert said.startswith("HTTP/1.1 200")


@pytest.mark.parametrize("switch", ["", "PADDOCK_NO_USERNS"])
def test_a_jailed_process_cannot_reach_it(service: Served, switch: str) -> None:
    """Neither a session nor a plain run, whatever is granted; what holds the socket is never granted to write."""
    env = {**service.env, **({switch: "1"} if switch else {})}
    python = str(install.base_python())
    words = (python, "-I", "-S", "-c", CONNECT, str(service.address))
    for granted in ((), ("--ro", str(service.runtime)), ("--ro", str(service.address.parent))):
        ended = service.paddock.call("run", *granted, "--", *words, env=env)
        assert ended.returncode in (0, 125), ended
        assert "HTTP" not in ended.stdout
        assert ended.returncode == 125 or "no way" in ended.stdout, ended
    # A caller who does not know where the service listens cannot hide it.
    elsewhere = {**env, "XDG_RUNTIME_DIR": "", "XDG_STATE_HOME": str(service.paddock.who.home / "elsewhere")}
    ended = service.paddock.call("run", "--ro", str(service.runtime), "--", *words, env=elsewhere)
    assert "no way" in ended.stdout or "peer-refused" in ended.stdout, ended
    assert ("peer-refused" in ended.stdout) is (not switch)
    # One whose runtime directory is another one is told by the record of where services have listened.
    for known in (env, {**env, "XDG_RUNTIME_DIR": ""}):
        refused = service.paddock.call("run", "--rw", str(service.runtime), "--", *words, env=known)
        assert refused.returncode == 125
        assert "grant-covers-state" in refused.stderr
    name = f"inside{switch.lower().replace('_', '-')}"
    environment = service.paddock.who.environment(env)
    service.create(*words, name=name, environment=environment)
    service.over(name)
    assert any("no way" in line for line in service.log(name)), service.log(name)


@pytest.mark.parametrize("switch", ["", "PADDOCK_NO_USERNS"])
def test_a_runtime_directory_that_a_service_makes_later_is_hidden(service: Served, switch: str) -> None:
    """A jail that has the directory above in its view, and was there before the service, sees nothing of it."""
    paddock = service.paddock
    runtime = paddock.place / f"later{switch.lower()}"
    runtime.mkdir()
    paddock.who.give(runtime)
    env = {**service.env, "XDG_RUNTIME_DIR": str(runtime), **({switch: "1"} if switch else {})}
    line = f"echo up; read line; cat {runtime}/beside {runtime}/paddock/later"
    words = paddock.words("run", "--quiet", "--ro", runtime, "--", "sh", "-c", line)
    with paddock.who.start(words, cwd=paddock.worktree, env=env) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"up\n"
        assert (runtime / "paddock").stat().st_mode & 0o7777 == 0o700
        for path, text in ((runtime / "beside", "seen"), (runtime / "paddock/later", "not for jails")):
            path.write_text(text)
            path.chmod(0o644)
        said, complaint = running.communicate(b"\n", timeout=60)
    assert said in (b"seen", b"")  # without mounts what is new beside a hidden directory is not granted, either
    assert said or switch, complaint
    assert b"later" in complaint


def test_planted_links_and_second_instances_are_refused(service: Served, user: Who, public_dir: Path) -> None:
    """A link or a file in the socket's place, and a service beside a service; a socket that a dead one left is not."""
    with_lock = service.cli("serve")
    assert with_lock.returncode == 125
    assert "service-running" in with_lock.stderr
    (public_dir / "other").mkdir()
    second = served.prepare(paddock.make(user, service.paddock.installed, user.give(public_dir / "other")))
    (second.runtime / "paddock").mkdir(mode=0o700)
    second.address.symlink_to("/dev/null")
    user.give(second.runtime)
    for _ in range(2):
        refused = second.cli("serve")
        assert refused.returncode == 125
        assert "service-socket" in refused.stderr, refused
        assert "service-stranger" in second.cli("ps").stderr
        second.address.unlink()
        second.address.write_text("not a socket")
        user.give(second.runtime)
    second.address.unlink()
    second.start()
    second.kill()
    assert second.address.is_socket()
    assert "service-absent" in second.cli("status").stderr
    second.start()
    assert second.end() == 0
    assert not second.address.exists()


def raw(service: Served, data: bytes, wait: float = 30) -> bytes:
    """Everything the service says to `data`."""
    connection = service.connect()
    connection.settimeout(wait)
    said = b""
    try:
        connection.sendall(data)
    except (BrokenPipeError, ConnectionResetError):
        pass  # it has seen enough; its answer is there
    try:
        while piece := connection.recv(65_536):
            said += piece
    except ConnectionResetError:
        pass
    finally:
        connection.close()
    return said


POST = b"POST /v1/sessions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"

NONSENSE = {
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 100 + b"\r\n\r\n", 400, "request-invalid"),
    "headers without end": (b"GET / HTTP/1.1\r\n" + b"x: " + b"y" * 200_000, 400, "request-invalid"),
    "a long body": (POST + b"content-length: 99999999\r\n\r\n", 413, "request-large"),
    "a long body in chunks": (
        POST + b"transfer-encoding: chunked\r\n\r\n" + (b"4000\r\n" + b"a" * 0x4000 + b"\r\n") * 8 + b"0\r\n\r\n",
        413,
        "request-large",
    ),
    "no JSON": (POST + b"content-length: 3\r\nconnection: close\r\n\r\n{x}", 422, "request-malformed"),
    "deep JSON": (
        POST + b"content-length: 90000\r\nconnection: close\r\n\r\n" + b"[" * 45_000 + b"]" * 45_000,
        400,
        "request-invalid",
    ),
    "no UTF-8": (POST + b"content-length: 4\r\nconnection: close\r\n\r\n\xff\xfe\x00\x01", 422, "request-malformed"),
    "an unknown upgrade": (
        b"GET /v1/health HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: paddock-stream\r\n\r\n",
        404,
        "route-unknown",
    ),
}


@pytest.mark.parametrize("what", NONSENSE)
def test_nonsense_gets_one_shape_of_refusal(service: Served, what: str) -> None:
    """Whatever it is; and the service goes on."""
    data, status, reference = NONSENSE[what]
    said = raw(service, data)
    head, _, body = said.partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode()), said[:500]
    refusal = json.loads(body)
    assert refusal["errorType"] == reference
    assert set(refusal) == {"error", "errorType", "message", "context", "hint", "exitCode"}
    assert healthy(service)


@pytest.mark.parametrize("data", [b"", b"GET /v1/hea", POST + b"content-length: 50\r\n\r\n{"])
def test_slow_requests_are_hung_up_on(service: Served, data: bytes) -> None:
    """One that does not come, does not end, or whose body does not."""
    begun = time.monotonic()
    said = raw(service, data)
    assert said.startswith(b"HTTP/1.1 408"), said
    assert time.monotonic() - begun >= 1.5


def test_a_crowd_is_told_to_wait(service: Served) -> None:
    """Connections beyond the bound are refused at once, with words; when the crowd has gone, all is as before."""
    before = served.descriptors(service.pid)
    crowd: list[socket.socket] = []
    try:
        for _ in range(CONNECTIONS):
            crowd.append(service.connect())
        said = crowd[-1].recv(4_096)
        assert said.startswith(b"HTTP/1.1 503"), said
        assert b"connections-exhausted" in said
    finally:
        for connection in crowd:
            connection.close()
    deadline = time.monotonic() + served.PATIENCE
    while time.monotonic() < deadline:
        try:
            if healthy(service) and served.descriptors(service.pid) <= before + 4:
                return
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(0.1)
    raise AssertionError(served.descriptors(service.pid))


def test_what_is_asked_for_is_checked(service: Served) -> None:
    """Names, paths, words and numbers that no session can have."""
    good = {"command": ["true"], "directory": str(service.paddock.worktree)}
    changes: tuple[dict[str, object], ...] = (
        {"name": "../x"}, {"name": ""}, {"directory": "relative"}, {"directory": "/a\0b"}, {"command": []},
        {"command": ["a\0b"]}, {"environment": {"A=B": "c"}}, {"umask": -1}, {"umask": 4096}, {"stdin": "tty"},
        {"restart": {"policy": "always"}}, {"surprise": 1}, {"options": ["--session", "x"]}, {"options": ["--dry-run"]},
        {"options": ["--no-such"]}, {"options": ["--", "sh"]}, {"options": ["sh"]}, {"options": ["--net"]},
    )  # fmt: skip
    for change in changes:
        answer = service.post("/v1/sessions", {**good, **change})
        assert answer.status == 422, (change, answer.raw)
        assert answer.json["errorType"] in ("request-malformed", "usage")
    (service.paddock.worktree / "lib").symlink_to(service.paddock.main)
    bent = str(service.paddock.worktree / "lib")
    answer = service.post("/v1/worktrees", {"repository": bent, "ticket": "Z"})
    assert answer.json["errorType"] == "worktree-behind-link", answer.raw
    begun = service.post("/v1/sessions?wait=60", {**good, "directory": bent}).json
    assert begun["outcome"]["refusal"]["errorType"] == "worktree-behind-link"
    for path in ("/v1/sessions/..%2f..%2fetc", "/v1/nothing", "/v1/sessions/x/attach"):
        assert service.get(path).status in (404, 422), path
    assert service.call("PATCH", "/v1/sessions").status == 405


@AS_A_USER
def test_no_service_begins_where_an_agent_could_put_its_socket(
    who: identity.Who, installed: Installed, public_dir: Path
) -> None:
    """In a directory that a session was granted, the service is refused; in another one it runs."""
    made = paddock.make(who, installed, public_dir)
    service = served.prepare(made)
    assert made.run("--rw", service.runtime, "--", "true").returncode == 0
    refused = paddock.said(service.cli("serve").stderr)
    assert refused.reference == "service-socket"
    assert str(service.runtime) in refused.text
    service.env["XDG_RUNTIME_DIR"] = str(public_dir / "home")
    service.runtime = public_dir / "home"
    service.start()
    assert service.end() == 0


@AS_A_USER
def test_no_client_speaks_to_a_jail(who: identity.Who, installed: Installed, public_dir: Path) -> None:
    """An agent that listens where the service would is told nothing."""
    made = paddock.make(who, installed, who.give(public_dir))
    service = served.prepare(made)
    code = """
import os, socket, sys
os.makedirs(os.path.dirname(sys.argv[1]), exist_ok=True)
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
listening.listen()
print("up", flush=True)
connection = listening.accept()[0]
print("told", connection.recv(4096))
"""
    words = (install.base_python(), "-I", "-S", "-c", code, service.address)
    for switch in ({}, {"PADDOCK_NO_USERNS": "1"}, {"PADDOCK_NO_LANDLOCK": "1"}):
        service.address.unlink(missing_ok=True)
        with who.start(
            made.words("run", "--quiet", "--rw", service.runtime, "--", *words), cwd=made.worktree,
            env={**switch, "XDG_STATE_HOME": str(who.home / "other")},
        ) as jailed:  # fmt: skip
            assert jailed.stdout is not None
            assert jailed.stdout.readline() == b"up\n"
            assert paddock.said(service.cli("ps").stderr).reference == "service-stranger"
            assert jailed.communicate(timeout=served.PATIENCE)[0] == b"told b''\n"


ASK = """
import json, os, socket, sys
path, body, *ways = sys.argv[1:]
for way in ways:
    target = path if way == "there" else os.path.join(os.path.dirname(os.path.dirname(path)), way)
    if way == "renamed":
        os.rename(path, target)
    elif way == "linked":
        os.link(path, target)
    try:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(20)
        connection.connect(target)
        connection.sendall(b"POST /v1/sessions?wait=20 HTTP/1.1\\r\\nhost: x\\r\\ncontent-type: application/json\\r\\n"
                           b"content-length: %d\\r\\n\\r\\n" % len(body) + body.encode())
        print(repr(connection.recv(4096).decode()))
    except OSError as error:
        print("no way:", error)
"""


@pytest.mark.parametrize(
    ("who", "switch"),
    [(IDENTITIES[0], ""), *((IDENTITIES[-1], switch) for switch in ("PADDOCK_NO_USERNS", "PADDOCK_NO_LANDLOCK"))],
    indirect=["who"],
)
def test_a_jail_with_the_socket_in_a_grant_is_given_no_session(
    who: identity.Who, installed: Installed, public_dir: Path, switch: str
) -> None:
    """A jail that began before the service, in another environment, so that no look at the disk could foresee it.

    Neither where it is, nor by a further name, nor renamed. The same request from outside makes the session.
    """
    scene = public_dir / "scene"
    scene.mkdir()
    made = paddock.make(who, installed, who.give(scene))
    secret = public_dir / "elsewhere"
    secret.mkdir()
    who.give(secret)
    service = served.prepare(made)
    body = {
        "command": ["touch", str(secret / "mark")],
        "directory": str(made.worktree),
        "options": ["--rw", str(secret)],
        "environment": who.environment(service.env),
        "name": "planted",
    }
    state = who.environment({"XDG_STATE_HOME": str(public_dir / "home/other")}) | ({switch: "1"} if switch else {})
    python = (install.base_python(), "-I", "-S", "-c", "import sys; print('up', flush=True); input()\n" + ASK)
    words = (*python, service.address, json.dumps(body), "there", "linked", "renamed")
    granted = ("--quiet", "--rw", service.runtime)
    with who.start(made.words("run", *granted, "--", *words), cwd=made.worktree, env=state) as jailed:
        assert jailed.stdout is not None
        assert jailed.stdout.readline() == b"up\n"
        service.start()
        try:
            said, complaint = jailed.communicate(b"\n", timeout=served.PATIENCE)
            answers = said.splitlines()
            assert len(answers) == 3, complaint
            assert all(b"no way" in answer or b"peer-refused" in answer for answer in answers), answers
            assert b"201 Created" not in said
            (service.runtime / "renamed").rename(service.address)
            assert service.get("/v1/sessions/planted").status == 404
            twin = who.run([install.base_python(), "-I", "-S", "-c", ASK, service.address, json.dumps(body), "there"])
            assert "201 Created" in twin.stdout
            service.over("planted")
            assert (secret / "mark").exists()
        finally:
            service.end()


@AS_A_USER
def test_a_line_in_the_path_of_a_socket_closes_no_directory_to_others(
    who: identity.Who, installed: Installed, public_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/proc/net/unix shows a newline in a path as it is. A socket that is really there does close its directory."""
    scene = public_dir / "scene"
    scene.mkdir()
    made = paddock.make(who, installed, who.give(scene))
    told = made.worktree / "control.sock"
    forged = Path(f"x\n0 0 0 0 0 0 0 {told}")
    monkeypatch.chdir(scene)
    forged.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as odd, socket.socket(socket.AF_UNIX) as true:
        odd.bind(str(forged))
        odd.listen()
        assert f" {told}\n" in Path("/proc/net/unix").read_text()
        assert made.run("--", "true").returncode == 0
        true.bind(str(told))
        true.listen()
        refused = made.run("--quiet", "--", "true")
        assert (refused.returncode, "[worktree-in-state]" in refused.stderr) == (125, True), refused.stderr
