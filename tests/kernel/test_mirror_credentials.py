"""A mirror that wants a credential: pip and npm use it in a jail, and have none; nobody can write there with it."""

import base64
import hashlib
import io
import json
import shlex
import ssl
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import trustme

from policy import promises
from tests.support.features import need
from tests.support.identity import Who
from tests.support.paddock import Paddock
from tests.support.programs.scene import SWITCHES
from tests.support.proxied import company_proxy

HOST, OTHER = "mirror.example.com", "other.example.com"
SECRET = "swordfish"
BASIC = "Basic " + base64.b64encode(f"me:{SECRET}".encode()).decode()
BEARER = f"Bearer {SECRET}"
PIP = "python3 -m pip install -q --disable-pip-version-check --no-deps --target lib demo && echo reached $(ls lib)"
NPM = "npm install --silent --no-audit --no-fund demo && echo reached $(ls node_modules)"


@pytest.fixture
def who(user: Who) -> Who:
    """An ordinary user: who holds the credential does not depend on rights; test_keys asks as root, too."""
    return user


def _wheel() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("demo_package.py", "")
        file.writestr("demo-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n")
        file.writestr(
            "demo-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr("demo-1.0.dist-info/RECORD", "")
    return packed.getvalue()


def _package() -> tuple[bytes, bytes]:
    """Archive and document; its address is absolute, as a registry has it."""
    manifest = json.dumps({"name": "demo", "version": "1.0.0"}).encode()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        entry = tarfile.TarInfo("package/package.json")
        entry.size = len(manifest)
        tar.addfile(entry, io.BytesIO(manifest))
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(packed.getvalue()).digest()).decode()
    dist = {"tarball": f"https://{HOST}/npm/demo/-/demo-1.0.0.tgz", "integrity": integrity}
    version = json.loads(manifest) | {"dist": dist}
    document = {"name": "demo", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
    return packed.getvalue(), json.dumps(document).encode()


@dataclass
class Mirror:
    """What it serves, and who asked: method, path, authorization."""

    pages: dict[str, bytes] = field(default_factory=dict)
    seen: list[tuple[str, str, str | None]] = field(default_factory=list)


class _Server(ThreadingHTTPServer):
    mirror: Mirror


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        mirror, shown = self.server.mirror, self.headers["Authorization"]
        mirror.seen.append((self.command, self.path, shown))
        wanted = BEARER if self.path.startswith("/npm") else BASIC
        page = mirror.pages.get(self.path.rstrip("/"), b"")
        status = 401 if shown != wanted and not self.path.startswith("/open") else 200 if page else 404
        self.send_response(status)
        self.send_header("Content-Type", "text/html" if page.startswith(b"<") else "application/octet-stream")
        self.send_header("Content-Length", str(len(page) if status == 200 else 0))
        self.end_headers()
        if status == 200:
            self.wfile.write(page)

    do_PUT = do_POST = do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@contextmanager
def made(paddock: Paddock) -> Iterator[tuple[Mirror, dict[str, str]]]:
    """The mirror behind a company's proxy and authority, and the environment of its user."""
    authority, file = trustme.CA(), paddock.who.home / "ca.pem"
    paddock.who.run(["sh", "-c", f"cat >{shlex.quote(str(file))}"], stdin=authority.cert_pem.bytes().decode())
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(HOST, OTHER).configure_cert(tls)
    with _Server(("127.0.0.1", 0), _Handler) as server, company_proxy() as company:
        server.mirror = Mirror()
        archive, document = _package()
        link = f'<a href="https://{HOST}/files/demo-1.0-py3-none-any.whl">demo-1.0-py3-none-any.whl</a>'
        server.mirror.pages = {
            "/simple/demo": link.encode(),
            "/files/demo-1.0-py3-none-any.whl": _wheel(),
            "/open/demo": link.replace("files", "open").encode(),
            "/open/demo-1.0-py3-none-any.whl": _wheel(),
            "/npm/demo": document,
            "/npm/demo/-/demo-1.0.0.tgz": archive,
        }
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        company.tls, company.vendors = tls, dict.fromkeys((HOST, OTHER), server.server_address[1])
        for name, text in (
            (".config/pip/pip.conf", f"[global]\nindex-url = https://me:{SECRET}@{HOST}/simple\n"),
            (
                ".npmrc",
                f"registry=https://{HOST}/npm/\n//{HOST}/npm/:_authToken=${{NPM_TOKEN}}\n"
                f"//{HOST}/npm/below/:_authToken=longer\n",
            ),
        ):
            place = shlex.quote(str(paddock.who.home / name))
            paddock.who.run(["sh", "-c", f"mkdir -p $(dirname {place}) && cat >{place}"], stdin=text)
        yield server.mirror, {**company.environment, "SSL_CERT_FILE": str(file), "NPM_TOKEN": SECRET,
                              "PATH": "/usr/local/bin:/usr/bin:/bin"}  # fmt: skip
        server.shutdown()
        thread.join()


Jailed = tuple[Mirror, "Run"]


class Run:
    """Runs a line of sh(1) in a jail."""

    def __init__(self, paddock: Paddock, environment: dict[str, str], options: tuple[str, ...]) -> None:
        self._parts = (paddock, environment, options)

    def __call__(self, line: str, *more: str) -> "subprocess.CompletedProcess[str]":
        """To its end; the bundles of Python and node are allowed."""
        paddock, environment, options = self._parts
        bundles = ("--allow-domain", "@python", "--allow-domain", "@node", "--git=readonly")
        return paddock.run(*options, *bundles, *more, "--", "sh", "-euc", line, env=environment)

    def explained(self) -> str:
        """The plan of such a jail."""
        paddock, environment, options = self._parts
        return paddock.call("explain", "--plan", *options, "--allow-domain", "@python", env=environment).stdout


@pytest.fixture(params=[promises.NAMESPACES, promises.GUARD])
def jailed(request: pytest.FixtureRequest, paddock: Paddock) -> Iterator[Jailed]:
    """Where a home is shown in two ways, and the proxy reached in two."""
    extra, options = SWITCHES[request.param]
    need("bubblewrap" if "bubblewrap" in options else "landlock")
    with made(paddock) as (mirror, environment):
        yield mirror, Run(paddock, {**environment, **extra}, options)


def test_a_tool_installs_and_has_no_credential(paddock: Paddock, jailed: Jailed) -> None:
    """Also what an absolute link of the mirror's leads to. Plans and ledgers name the settings only; a budget is not
    held by them.
    """
    mirror, run = jailed
    ended = run(f"{PIP}; {NPM}; env; ! grep -rs {SECRET} ~ /proc/self/environ")
    assert ended.returncode == 0, ended
    assert ended.stdout.count("reached") == 2, ended
    assert SECRET not in ended.stdout + ended.stderr
    assert "credential" not in ended.stderr
    shown = {(asked.startswith("/npm/"), shown) for _, asked, shown in mirror.seen}
    assert shown == {(False, BASIC), (True, BEARER)}, mirror.seen
    for path in ("/simple/demo", "/files/", "/npm/demo", "/npm/demo/-/"):
        assert any(asked.startswith(path) for _, asked, _ in mirror.seen), (path, mirror.seen)
    kept = [path for top in (paddock.state, paddock.cache) for path in top.rglob("*") if path.is_file()]
    hidden = [SECRET.encode(), BASIC.partition(" ")[2].encode()]
    assert kept
    assert [path for path in kept if any(word in path.read_bytes() for word in hidden)] == []
    line = f"key       put in outside, for GET,HEAD {HOST}:443/  [@python: index-url in ~/.config/pip/pip.conf]"
    assert line in run.explained().splitlines()


@pytest.mark.parametrize("jailed", [promises.NAMESPACES], indirect=True)  # what the proxy does
def test_the_credential_is_for_reading_where_it_is_meant(jailed: Jailed) -> None:
    """A publication has none, nor has npm's token for another path; a client's own counts, as it would in a tunnel."""
    mirror, run = jailed
    curl = f"curl -sS --max-time 20 --cacert $SSL_CERT_FILE -o /dev/null https://{HOST}"
    ended = run(
        f"{curl}/npm/demo -X PUT -d x -H 'Authorization: Bearer foreign'; {curl}/npm/demo; {curl}/npm/below/demo;"
        f"{curl}/other -I"
    )
    assert ended.returncode == 0, (ended, mirror.seen)
    assert mirror.seen == [
        ("PUT", "/npm/demo", "Bearer foreign"),
        ("GET", "/npm/demo", BEARER),
        ("GET", "/npm/below/demo", "Bearer longer"),
        ("HEAD", "/other", BASIC),
    ]


def test_a_token_that_is_not_there_now_is_said_and_keeps_nobody_up(paddock: Paddock) -> None:
    """As a variable that only some machines have: the mirror may give what it gives to everybody."""
    need("userns")
    with made(paddock) as (mirror, environment):
        run = Run(paddock, {**environment, "NPM_TOKEN": ""}, ())
        ended = run(f"for path in simple/demo npm/demo; do curl -sS -o /dev/null https://{HOST}/$path; done")
        assert ended.returncode == 0, ended
        assert "_authToken in ~/.npmrc: the credential is not there: it is empty" in ended.stderr
        # pip's is for the whole host
        assert mirror.seen == [("GET", "/simple/demo", BASIC), ("GET", "/npm/demo", BASIC)]


def test_the_host_of_a_mirror_is_reached_as_before_on_its_other_ports(paddock: Paddock) -> None:
    """A forge is a mirror, and more: ssh there, and other services, are none of the credential's business."""
    need("userns")
    with made(paddock) as (mirror, environment):
        more = paddock.who.home / ".config/pip/pip.conf"
        text = (
            f"[global]\nindex-url = https://me:{SECRET}@{HOST}/simple\nextra-index-url = https://me:two@{HOST}:8443/x\n"
        )
        paddock.who.run(["sh", "-c", f"cat >{shlex.quote(str(more))}"], stdin=text)
        run = Run(paddock, environment, ())
        places = (f"{HOST}/simple/x", f"{HOST}:8443/x", f"-k {HOST}:444/x")
        line = "; ".join(f"curl -sS -o /dev/null --proto-default https {place}" for place in places)
        ended = run(line, "--allow-domain", HOST, "--proxy-env", "yes")
        assert ended.returncode == 0, ended
        shown = [shown for _, path, shown in mirror.seen if path.endswith("/x")]
        assert shown == [BASIC, "Basic " + base64.b64encode(b"me:two").decode(), None], (ended, mirror.seen)


def rewritten(paddock: Paddock, **files: str) -> None:
    """The user's own pip.conf and .npmrc."""
    for name, text in files.items():
        place = shlex.quote(str(paddock.who.home / {"pip": ".config/pip/pip.conf", "npm": ".npmrc"}[name]))
        paddock.who.run(["sh", "-c", f"cat >{place}"], stdin=text)


NPMRC = f"registry=https://{OTHER}/npm/\n//{OTHER}/npm/:_authToken={SECRET}\n"


def test_maven_asks_with_a_credential_that_it_has_not(paddock: Paddock) -> None:
    """Java believes the authority of the session by a store of its own, and no password is in the jail."""
    need("userns")
    need("maven")
    with made(paddock) as (mirror, environment):
        server = f"<server><id>m</id><username>me</username><password>{SECRET}</password></server>"
        listed = f"<mirror><id>m</id><mirrorOf>*</mirrorOf><url>https://{HOST}/maven</url></mirror>"
        text = f"<settings><servers>{server}</servers><mirrors>{listed}</mirrors></settings>"
        place = shlex.quote(str(paddock.who.home / ".m2/settings.xml"))
        paddock.who.run(["sh", "-c", f"mkdir -p $(dirname {place}) && cat >{place}"], stdin=text)
        (paddock.worktree / ".mvn").mkdir()
        (paddock.worktree / ".mvn/jvm.config").write_text("-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        run = Run(paddock, environment, ())
        ended = run(f"mvn -B -q nothing:at-all >said 2>&1 || tail -25 said; ! grep -rs {SECRET} ~",
                    "--allow-domain", "@java")  # fmt: skip
        assert ended.returncode == 0, ended
        asked = {shown for _, path, shown in mirror.seen if path.startswith("/maven/org/apache/maven/plugins")}
        assert asked == {BASIC}, (ended.stdout[-1500:], mirror.seen)


@pytest.mark.parametrize("names", ["pip", "npm"])
def test_a_tools_own_authority_is_for_its_mirror_alone(paddock: Paddock, names: str) -> None:
    """It vouches for the host that the tool is told of; another one with a certificate of the same is not believed."""
    need("userns")
    with made(paddock) as (mirror, environment):
        pem = environment.pop("SSL_CERT_FILE")
        pip = f"[global]\nindex-url = https://me:{SECRET}@{HOST}/simple\n"
        if names == "pip":
            rewritten(paddock, pip=f"{pip}cert = ~/ca.pem\n", npm=NPMRC)
            line = f"{PIP}; curl -sS -k https://{OTHER}/npm/demo"
        else:
            npm = f"{NPMRC}cafile={pem}\n".replace(OTHER, HOST)
            rewritten(paddock, pip=pip.replace(HOST, OTHER), npm=npm)
            line = f"{NPM}; curl -sS -k https://{OTHER}/simple/demo"
        ended = Run(paddock, environment, ())(line)
        assert ended.returncode == 0, ended
        assert "reached" in ended.stdout
        assert "start Paddock with SSL_CERT_FILE" in ended.stdout
        assert f"{OTHER}:443 cannot be spoken to by TLS" in ended.stdout
        assert {shown for _, _, shown in mirror.seen} == {BEARER if names == "npm" else BASIC}


def test_a_tool_that_speaks_tls_itself_has_its_authority(paddock: Paddock) -> None:
    """Without a credential nothing ends at the proxy; a file that an agent could have made is not passed on."""
    need("userns")
    with made(paddock) as (mirror, environment):
        pem = environment.pop("SSL_CERT_FILE")
        conf = f"[global]\nindex-url = https://{HOST}/open\ncert = {{}}\n"
        run = Run(paddock, environment, ())
        rewritten(paddock, pip=conf.format(pem), npm="")
        ended = run(f"{PIP}; ls -A ~; ! curl -sS https://{HOST}/open/demo")
        assert ended.returncode == 0, ended
        assert "reached" in ended.stdout
        assert [name for name in ended.stdout.split() if name.endswith(".PIP_CERT.pem")]
        planted = paddock.worktree / "ca.pem"
        planted.write_text((paddock.who.home / "ca.pem").read_text())
        paddock.who.give(planted)
        rewritten(paddock, pip=conf.format(planted))
        mirror.seen.clear()
        ended = run(f"! {{ PIP_RETRIES=0 {PIP}; }}; env")
        assert ended.returncode == 0, ended
        assert "cert in ~/.config/pip/pip.conf is passed over: commands in jails can write there" in ended.stderr
        assert "PIP_CERT" not in ended.stdout
        assert not mirror.seen
