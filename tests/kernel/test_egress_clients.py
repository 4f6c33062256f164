"""Everyday clients through the proxy, against TLS servers of the test's own: what is allowed works, no more."""

import base64
import hashlib
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support import identity
from tests.support.features import need
from tests.support.identity import Who
from tests.support.install import Installed
from tests.support.paddock import Paddock, make
from tests.support.proxied import ONE_ATTEMPT, World

URL = "https://good.example"


@pytest.fixture(scope="module")
def served(world: World) -> World:
    """A world that serves a git repository, a Python wheel and an npm package."""
    www = world.directory / "www"
    _git(www)
    _wheel(www)
    _npm(www)
    return world


def _git(www: Path) -> None:
    script = """
git init -q --bare demo.git
git init -q work
git -C work -c user.name=T -c user.email=t@example.invalid commit -q --allow-empty -m 'demo: First.'
git -C work push -q ../demo.git HEAD:refs/heads/main
git -C demo.git symbolic-ref HEAD refs/heads/main
git -C demo.git update-server-info
rm -rf work
"""
    subprocess.run(["sh", "-euc", script], cwd=www, check=True)


def _wheel(www: Path) -> None:
    simple = www / "simple/demo"
    simple.mkdir(parents=True)
    with zipfile.ZipFile(simple / "demo-1.0-py3-none-any.whl", "w") as file:
        file.writestr("demo_package.py", "WORD = 'installed'\n")
        file.writestr("demo-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n")
        file.writestr(
            "demo-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr("demo-1.0.dist-info/RECORD", "")
    (simple / "index.html").write_text('<a href="demo-1.0-py3-none-any.whl">demo-1.0-py3-none-any.whl</a>')


def _npm(www: Path) -> None:
    directory = www / "npm"
    directory.mkdir()
    manifest = json.dumps({"name": "demo", "version": "1.0.0", "main": "index.js"}).encode()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in (
            ("package/package.json", manifest),
            ("package/index.js", b"module.exports = 'installed'\n"),
        ):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    (directory / "demo-1.0.0.tgz").write_bytes(packed.getvalue())
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(packed.getvalue()).digest()).decode()
    version = json.loads(manifest) | {"dist": {"tarball": f"{URL}/npm/demo-1.0.0.tgz", "integrity": integrity}}
    document = {"name": "demo", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
    (directory / "demo").write_text(json.dumps(document))


@pytest.fixture
def suite(installed: Installed, public_dir: Path) -> Paddock:
    """The command as whoever runs the suite: only he can read the environment that requests and httpx are in."""
    need("landlock")
    home = public_dir / "home"
    who: Who = identity.root(home) if os.geteuid() == 0 else identity.user(home)
    place = public_dir / "place"
    place.mkdir()
    return make(who, installed, place)


def client(world: World, suite: Paddock, line: str, *options: str) -> "subprocess.CompletedProcess[str]":
    """Runs a line of sh(1) in a jail that may reach good.example:443; $PYTHON has requests and httpx."""
    shutil.copy(world.directory / "ca.pem", suite.worktree / "ca.pem")
    ca = f"{suite.worktree}/ca.pem"
    names = ("CURL_CA_BUNDLE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO", "npm_config_cafile")
    environment = [f"--env={name}={ca}" for name in (*names, "NODE_EXTRA_CA_CERTS")]
    environment += [f"--env=PYTHON={sys.executable}", *ONE_ATTEMPT]
    granted = [f"--ro={path}" for path in dict.fromkeys((sys.prefix, sys.base_prefix)) if path != "/usr"]
    own = ("--git=readonly", "--allow-domain=good.example:443", "--proxy-env=yes")
    options = (*own, *environment, *granted, *options)
    words = suite.words("run", *options, "--", "sh", "-euc", line)
    return world.run(suite.who, words, cwd=suite.worktree)


FETCH = """
fetch(process.argv[1]).then(r => r.text()).then(t => console.log(t), e => console.log("failed", e.cause?.code ?? e))
"""
REQUESTS = "import requests, sys; print(requests.get(sys.argv[1], timeout=20).text)"
HTTPX = "import httpx, sys; print(httpx.get(sys.argv[1], timeout=20).text)"
URLLIB = "import urllib.request, sys; print(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode())"

CLIENTS = {
    "curl": 'curl -sS "$URL/reached"',
    "curl by SOCKS": 'curl -sS --proxy "$(echo "$HTTP_PROXY" | sed s/^http:/socks5h:/)" "$URL/reached"',
    "git": "git clone -q $URL/demo.git clone && git -C clone log --format='reached %s'",
    "pip": '"$PYTHON" -m pip install -q --disable-pip-version-check --no-deps --target lib --index-url $URL/simple demo'
    " && echo reached $(ls lib)",
    "npm": "npm install --silent --no-audit --no-fund --registry $URL/npm/ demo && echo reached $(ls node_modules)",
    "requests": f"\"$PYTHON\" -I -c '{REQUESTS}' $URL/reached",
    "httpx": f"\"$PYTHON\" -I -c '{HTTPX}' $URL/reached",
    "urllib": f"\"$PYTHON\" -I -c '{URLLIB}' $URL/reached",
}


# What is asked for by those that are told no path.
_OWN = {"git": "/demo.git/", "pip": "/simple/demo/", "npm": "/npm/demo"}

UNKNOWING = {
    "fetch of node": f"node -e '{FETCH}' $URL/reached | grep reached",
    "curl without": "curl -sS --noproxy '*' $URL/reached",
    "curl by IPv4": "curl -4 -sS $URL/reached",
    "curl by IPv6": "curl -6 -sS $URL/reached",
    "wget": "wget -q --ca-certificate=$CURL_CA_BUNDLE -O - $URL/reached",
}
"""Clients that know of no proxy, and flags by which others do not."""


# Each client in a directory of its own; what it says is left there.
EACH = """
client() {
    mkdir "$1"
    status=0
    (cd "$1" && exec sh -euc "$2" >out 2>err) || status=$?
    echo "$1 $status"
}
"""


@pytest.mark.parametrize("proxy_env", ["yes", "no"])
def test_everyday_clients_reach_what_is_allowed(served: World, suite: Paddock, proxy_env: str) -> None:
    """By the proxy in its environment, or by name alone; another host is denied to the same client."""
    lines = CLIENTS if proxy_env == "yes" else {name: line for name, line in (CLIENTS | UNKNOWING).items()
                                                if "SOCKS" not in name}  # fmt: skip
    numbered = {f"{number}-{name.replace(' ', '-')}": line for number, (name, line) in enumerate(lines.items())}
    paths = {name: f"/reached-{name}" if "/reached" in line else _OWN[name.partition("-")[2]]
             for name, line in numbered.items()}  # fmt: skip

    def all_of_them(url: str) -> dict[str, str]:
        """Name -> exit status of each client that asks this server."""
        calls = [f"client {name} {shlex.quote(line.replace('/reached', paths[name]))}"
                 for name, line in numbered.items()]  # fmt: skip
        ended = client(served, suite, "\n".join([f"export URL={url}", EACH, *calls]), f"--proxy-env={proxy_env}")
        assert ended.returncode == 0, ended
        return dict(line.split() for line in ended.stdout.splitlines())

    def said(name: str) -> str:
        return "\n".join((suite.worktree / name / stream).read_text() for stream in ("out", "err"))

    before = len(served.seen())
    statuses = all_of_them(URL)
    wrong = {name: said(name) for name in numbered
             if statuses[name] != "0" or "reached" not in (suite.worktree / name / "out").read_text()}  # fmt: skip
    assert wrong == {}
    asked = " ".join(str(entry.get("what")) for entry in served.seen(before))
    assert {name for name in numbered if paths[name] not in asked} == set()
    middle = len(served.seen())
    for name in numbered:
        shutil.rmtree(suite.worktree / name)
    statuses = all_of_them("https://other.example")
    wrong = {name: said(name) for name in numbered
             if statuses[name] == "0" or "reached" in (suite.worktree / name / "out").read_text()}  # fmt: skip
    assert wrong == {}
    assert served.seen()[middle:] == []


JAVA = """
public class Fetch {
    public static void main(String[] words) throws Exception {
        for (String word : words) try {
            System.out.println(new String(new java.net.URL(word).openStream().readAllBytes()));
        } catch (java.io.IOException error) {
            System.out.println(error);
        }
    }
}
"""


def test_programmes_that_speak_something_else(served: World, suite: Paddock) -> None:
    """A server that speaks first, a database's client, Java: by name, on the ports that rules name, and only there."""
    (suite.worktree / "Fetch.java").write_text(JAVA)
    before = len(served.seen())
    line = """
exec 3<>/dev/tcp/good.example/22; head -n 1 <&3; echo hello >&3; head -n 1 <&3; exec 3>&-
timeout 5 ssh -o BatchMode=yes -o StrictHostKeyChecking=no good.example true 2>&1 | head -n 1
timeout 5 psql -h good.example -U nobody -c '' 2>&1 | head -n 1
(exec 3<>/dev/tcp/good.example/3128) 2>&1 | head -n 1
curl -sS http://localhost:8000/own >/dev/null
java Fetch.java http://good.example:8000/reached http://other.example:8000/unreached
"""
    ports = (*(f"--allow-domain=good.example:{port}" for port in (22, 5432, 8000)), "--reach=8000")
    ended = client(served, suite, f"bash -c '{line.replace(chr(39), chr(34))}'", "--proxy-env=auto", *ports)
    first, second, *_, refused, fetched, unknown = ended.stdout.splitlines()
    assert (first, second) == ("220 a server that speaks first", "hello")
    assert "refused" in refused
    assert "/reached" in fetched
    assert "UnknownHostException" in unknown
    seen = served.seen(before)
    assert {e["port"] for e in seen if (e["kind"], e["side"]) == ("tcp", "internet")} == {22, 5432, 8000}
    assert [e["what"] for e in seen if (e["kind"], e["side"]) == ("request", "machine")] == ["GET /own"]


def test_a_denial_tells_an_agent_what_to_ask_for(served: World, suite: Paddock) -> None:
    """In the body over plain HTTP, in the reason phrase in front of a tunnel."""
    line = "curl -sS http://other.example/x; curl -sv https://other.example/x 2>&1 | grep -i blocked"
    ended = client(served, suite, line)
    body, reason = ended.stdout.splitlines()
    said = json.loads(body)
    assert said["errorType"] == "egress-denied"
    assert said["message"] == "no rule allows other.example:80"
    assert said["hint"].endswith("--allow-domain other.example:80")
    assert "403 Blocked by Paddock: no rule allows other.example:443" in reason


HANDSHAKE = """
import base64, os, socket, ssl, sys
token, _, where = os.environ["HTTPS_PROXY"].removeprefix("http://").partition("@")
host, _, port = where.partition(":")
def shake(name):
    with socket.create_connection((host, int(port)), timeout=20) as sock:
        auth = base64.b64encode(token.encode()).decode()
        sock.sendall(f"CONNECT good.example:443 HTTP/1.0\\r\\nProxy-Authorization: Basic {auth}\\r\\n\\r\\n".encode())
        assert b" 200 " in sock.recv(4096)
        context = ssl.create_default_context(cafile="ca.pem")
        context.check_hostname = False
        try:
            with context.wrap_socket(sock, server_hostname=name) as tls:
                tls.sendall(b"GET /fronted HTTP/1.0\\r\\n\\r\\n")
                return tls.recv(12).decode()
        except OSError as error:
            return getattr(error, "reason", None) or str(error)
for name in ("good.example", "other.example", None):
    print(shake(name))
"""


def test_a_tunnel_is_held_to_its_servers_name(served: World, suite: Paddock) -> None:
    """The same server certifies another allowed-looking name; asked for inside a tunnel it is not reached."""
    (suite.worktree / "handshake.py").write_text(HANDSHAKE)
    before = len(served.seen())
    ended = client(served, suite, '"$PYTHON" -I handshake.py')
    assert ended.stdout.splitlines() == ["HTTP/1.1 200", "TLSV1_ALERT_ACCESS_DENIED", "HTTP/1.1 200"], ended
    fronted = [entry for entry in served.seen(before) if entry.get("what") == "GET /fronted"]
    assert len(fronted) == 2


RETRY = """
import base64, os, socket, ssl
token, _, where = os.environ["HTTPS_PROXY"].removeprefix("http://").partition("@")
host, _, port = where.partition(":")
def shake(name, cut, early):
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = ssl.create_default_context(cafile="ca.pem").wrap_bio(incoming, outgoing, server_hostname="good.example")
    with socket.create_connection((host, int(port)), timeout=20) as sock:
        auth = base64.b64encode(token.encode()).decode()
        sock.sendall(f"CONNECT good.example:8443 HTTP/1.0\\r\\nProxy-Authorization: Basic {auth}\\r\\n\\r\\n".encode())
        assert b" 200 " in sock.recv(4096)
        hellos = 0
        while True:
            try:
                tls.do_handshake()
                sock.sendall(outgoing.read())
                tls.write(b"GET /retried HTTP/1.0\\r\\n\\r\\n")
                sock.sendall(outgoing.read())
                incoming.write(sock.recv(65536))
                while True:
                    try:
                        return hellos, tls.read(12).decode()
                    except ssl.SSLWantReadError:
                        incoming.write(sock.recv(65536))
            except ssl.SSLWantReadError:
                said = outgoing.read()
                if said[:1] == b"\\x16" or b"\\x16\\x03\\x03" in said[:12]:
                    hellos += 1
                if hellos == 2:
                    said = early + said.replace(b"good.example", name)
                    start = 0
                    while said[start] != 22:  # by records: what is random in it may look like the beginning of one
                        start += 5 + int.from_bytes(said[start + 3 : start + 5], "big")
                    body = said[start + 5:]
                    said = said[:start] + b"".join(
                        b"\\x16\\x03\\x03" + len(p).to_bytes(2, "big") + p
                        for p in (body[i : i + cut] for i in range(0, len(body), cut)))
                    hellos += 1
                sock.sendall(said)
                data = sock.recv(65536)
                if not data:
                    return hellos, "end"
                incoming.write(data)
            except OSError as error:
                return hellos, getattr(error, "reason", None) or str(error)
early = b"\\x17\\x03\\x03\\x00\\x03abc"
for name in (b"good.example", b"evil.example"):
    for cut in (16384, 3):
        print(*shake(name, cut, b""))
print(*shake(b"evil.example", 16384, early))
"""


def test_the_second_hello_of_a_handshake_is_held_to_it_too(served: World, suite: Paddock) -> None:
    """A server that asks again never hears of another name, whole or in pieces; with the same name it answers."""
    (suite.worktree / "retry.py").write_text(RETRY)
    before = len(served.seen())
    ended = client(served, suite, '"$PYTHON" -I retry.py', "--allow-domain=good.example:8443")
    denied = "TLSV1_ALERT_ACCESS_DENIED"
    answers = [line.split(None, 1)[1] for line in ended.stdout.splitlines()]
    assert answers == ["HTTP/1.1 200", "HTTP/1.1 200", denied, denied, denied], ended
    names = [entry["what"] for entry in served.seen(before) if entry["kind"] == "sni" and entry["port"] == 8443]
    assert set(names) == {"good.example"}
    assert len(names) > 5  # each handshake's first one, and the second one of those that went through


def test_a_name_can_be_required_of_every_tunnel(served: World, suite: Paddock) -> None:
    """network.server_name = "require" turns away clients that name none, and what is not TLS."""
    (suite.worktree / "handshake.py").write_text(HANDSHAKE)
    (suite.worktree / ".paddock.toml").write_text('[network]\nserver_name = "require"\n')
    line = '"$PYTHON" -I handshake.py\ncurl -sS -p http://good.example/plain || echo turned away'
    ended = client(served, suite, line, "--allow-domain=good.example:80")
    denied = "TLSV1_ALERT_ACCESS_DENIED"
    assert ended.stdout.splitlines() == ["HTTP/1.1 200", denied, denied, "turned away"], ended
    (suite.worktree / ".paddock.toml").unlink()
    assert "plain" in client(served, suite, line, "--allow-domain=good.example:80").stdout
