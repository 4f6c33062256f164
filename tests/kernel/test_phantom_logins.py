"""Logins that stay outside: a jail has phantoms of the tokens, TLS ends at the proxy, one process refreshes for all."""

import json
import shlex
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import trustme

from policy import promises
from tests.support.features import need
from tests.support.identity import Who
from tests.support.paddock import Paddock
from tests.support.programs.scene import SWITCHES
from tests.support.proxied import CompanyProxy, company_proxy

API, LOGIN, OTHER = "api.example.com", "login.example.com", "files.example.com"
SEARCH = Path(__file__).parent.parent / "support" / "programs" / "search.py"
CURL = 'curl -sS --max-time 20 --cacert "$AGENT_CA"'
ACCESS = """$(sed -n 's/.*"access": "\\(.*\\)".*/\\1/p' ~/.agent/auth.json)"""
REFRESH = """$(sed -n 's/.*"refresh": "\\(.*\\)".*/\\1/p' ~/.agent/auth.json)"""
ASK = f'{CURL} -H "Authorization: Bearer {ACCESS}" https://{API}/v1/chat'
RENEW = (
    f"""{CURL} -H "Content-Type: application/json" https://{LOGIN}/token """
    f"""-d "{{\\"grant_type\\":\\"refresh_token\\",\\"refresh_token\\":\\"{REFRESH}\\"}}" """
)
PROVIDER = f"""
schema = 1
name = "agent"
title = "Agent"
commands = ["agent"]
domains = ["{API}", "{LOGIN}", "{OTHER}"]
[[files]]
path = "~/.agent/auth.json"
refreshed = ["access", "refresh", "ends"]
newer = "ends"
account = ["who"]
[files.phantom]
refresh_url = "https://{LOGIN}/token"
request = {{ client_id = "agent", scope = "{{scopes}}" }}
answer = {{ token_type = "Bearer", scope = "{{scopes}}" }}
access = "access"
refresh = "refresh"
tokens = {{ access = ["access_token", "acc-"], refresh = ["refresh_token", "ref-"] }}
times = {{ ends = "expires_in" }}
plain = ["who", "scopes"]
trust = ["AGENT_CA"]
[files.phantom.apis]
"https://{API}" = ["POST /v1/chat", "/v1/models"]
[native]
[contract]
"""


@pytest.fixture
def who(user: Who) -> Who:
    """An ordinary user: a phantom knows no rights; test_keys searches root's jail for what should not be there."""
    return user


def token(kind: str, number: int) -> str:
    """The vendor's n-th, as long as real ones."""
    return f"{kind}-{number:04d}" + "RealTokenOfTheUser" * 4


@dataclass
class Vendor:
    """An API and its token endpoint: refresh tokens are good once.

    Attributes:
        number: of the tokens that are good now.
        seen: host, path and authorization of each request.
        refreshed: bodies that asked for new tokens.
        headers: names of those of each request.
        slow: seconds that it thinks about those.
        lasts: seconds that a token is good.
    """

    port: int
    number: int = 1
    seen: list[tuple[str, str, str | None]] = field(default_factory=list)
    refreshed: list[dict[str, str]] = field(default_factory=list)
    headers: list[list[str]] = field(default_factory=list)
    refused: int = 0
    slow: float = 0.0
    lasts: int = 28800
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, host: str, path: str, authorization: str | None, body: bytes) -> tuple[int, dict[str, Any]]:
        """Status and body."""
        if host == LOGIN and path == "/token":
            asked = json.loads(body)
            time.sleep(self.slow)
            with self.lock:
                self.refreshed.append(asked)
                if asked.get("refresh_token") != token("ref", self.number):
                    self.refused += 1
                    return 400, {"error": "invalid_grant"}
                self.number += 1
                tokens = {"access_token": token("acc", self.number), "refresh_token": token("ref", self.number)}
            return 200, {**tokens, "expires_in": self.lasts, "token_type": "Bearer"}
        self.seen.append((host, path, authorization))
        if authorization is not None and authorization != f"Bearer {token('acc', self.number)}":
            return 401, {"error": "unauthorized"}
        return 200, {"served": path, "anonymous": authorization is None}


class _Server(ThreadingHTTPServer):
    vendor: Vendor


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        host = (self.headers["Host"] or "").partition(":")[0]
        self.server.vendor.headers.append([name.lower() for name in self.headers])
        status, found = self.server.vendor.answer(host, self.path, self.headers["Authorization"], body)
        data = json.dumps(found).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@dataclass
class Ground:
    """A user with a login, his company's proxy, and the vendor behind it."""

    paddock: Paddock
    vendor: Vendor
    company: CompanyProxy
    environment: dict[str, str]
    options: tuple[str, ...]

    @property
    def file(self) -> Path:
        """The user's login."""
        return Path(self.paddock.who.home, ".agent/auth.json")

    def log_in(self, number: int = 1, *, ends: float | None = None, **more: object) -> None:
        """Writes it. `ends`: seconds from now; an hour, where nothing is said."""
        until = int((time.time() + (3600 if ends is None else ends)) * 1000)
        found = {"who": "me", "scopes": ["a", "b"], "access": token("acc", number), "refresh": token("ref", number)}
        content = json.dumps({**found, "ends": until, "secret": "what-nobody-named", **more})
        place = shlex.quote(str(self.file))
        self.paddock.who.run(["sh", "-c", f"umask 077; mkdir -p $(dirname {place}) && cat >{place}"], stdin=content)

    def kept(self) -> dict[str, Any]:
        """What the user's file holds."""
        found: dict[str, Any] = json.loads(self.file.read_text())
        return found

    def run(self, line: str, *options: str, shell: str = "sh") -> "subprocess.CompletedProcess[str]":
        """A line of the shell in a jail of the agent's."""
        given = ("--provider", "agent", "--logins", "phantom", *self.options, *options)
        return self.paddock.run(*given, "--", shell, "-c", line, env=self.environment)

    def denials(self) -> str:
        """Of the last session."""
        return self.paddock.call("denials", env=self.environment).stdout


@pytest.fixture(params=SWITCHES)
def ground(request: pytest.FixtureRequest, paddock: Paddock) -> Iterator[Ground]:
    """On every backend."""
    extra, options = SWITCHES[request.param]
    need("bubblewrap" if "bubblewrap" in options else "landlock")
    with made(paddock, extra, options) as found:
        yield found


IN_NAMESPACES = pytest.mark.parametrize("ground", [promises.NAMESPACES], indirect=True)
"""Of what the vendor, the user's file, the process that refreshes and the launcher, which makes phantoms, do: on which
backend the agent asks, is no matter."""
BY_BOTH_WAYS = pytest.mark.parametrize("ground", [promises.NAMESPACES, promises.GUARD], indirect=True)
"""Of ways past the proxy: a namespace closes them, or the guard."""


@contextmanager
def made(paddock: Paddock, extra: dict[str, str], options: tuple[str, ...]) -> Iterator[Ground]:
    """A ground; `extra` and `options` select the backend."""
    authority = trustme.CA()
    file = paddock.who.home / "ca.pem"
    paddock.who.run(["sh", "-c", f"cat >{shlex.quote(str(file))}"], stdin=authority.cert_pem.bytes().decode())
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(API, LOGIN, OTHER).configure_cert(tls)
    with _Server(("127.0.0.1", 0), _Handler) as server, company_proxy() as company:
        server.vendor = vendor = Vendor(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        company.tls, company.vendors = tls, dict.fromkeys((API, LOGIN, OTHER), vendor.port)
        own = shlex.quote(f"{paddock.who.home}/.config/paddock/providers/agent.toml")
        paddock.who.run(["sh", "-c", f"mkdir -p $(dirname {own}) && cat >{own}"], stdin=PROVIDER)
        found = Ground(paddock, vendor, company, {**extra, **company.environment, "SSL_CERT_FILE": str(file)}, options)
        found.log_in()
        yield found
        server.shutdown()
        thread.join()


def test_a_command_works_by_a_phantom_and_finds_no_token(ground: Ground) -> None:
    """Not in a file, an environment or the memory of any process that it can look at."""
    place = shlex.quote(str(ground.paddock.worktree / "search.py"))
    ground.paddock.who.run(["sh", "-c", f"cat > {place}"], stdin=SEARCH.read_text())
    wanted = "RealTokenOfTheUser"[::-1]
    ended = ground.run(f"{ASK}; /usr/bin/python3 search.py {wanted}; cat ~/.agent/auth.json")
    assert ended.returncode == 0, ended.stderr
    assert '"served": "/v1/chat"' in ended.stdout, (ended, ground.denials())
    assert ground.vendor.seen == [(API, "/v1/chat", f"Bearer {token('acc', 1)}")]
    assert "looked at" in ended.stdout
    assert "found in" not in ended.stdout
    assert "what-nobody-named" not in ended.stdout
    copied = json.loads(ended.stdout[ended.stdout.index("{\n") :])
    assert copied.keys() == {"who", "scopes", "access", "refresh", "ends"}
    assert copied["access"][:4] == "acc-"
    assert len(copied["access"]) == len(token("acc", 1))
    assert ground.kept()["access"] == token("acc", 1)
    kept = [path for top in (ground.paddock.state, ground.paddock.cache) for path in top.rglob("*") if path.is_file()]
    assert [path for path in kept if b"RealTokenOfTheUser" in path.read_bytes()] == []


@IN_NAMESPACES
def test_a_login_that_is_copied_is_found(ground: Ground) -> None:
    """So the search would have found a token."""
    ended = ground.run("cat ~/.agent/auth.json", "--logins", "copy")
    assert token("acc", 1) in ended.stdout, ended.stderr


@IN_NAMESPACES
def test_a_token_that_has_ended_is_refreshed_once_and_written(ground: Ground) -> None:
    """The agent sees nothing of it; what else the user's file holds stays."""
    ground.log_in(ends=-10)
    ended = ground.run(f"{ASK}; {ASK}")
    assert ended.stdout.count('"served"') == 2, (ended, ground.denials())
    (body,) = ground.vendor.refreshed
    assert body == {
        "grant_type": "refresh_token",
        "refresh_token": token("ref", 1),
        "client_id": "agent",
        "scope": "a b",
    }
    kept = ground.kept()
    assert (kept["access"], kept["refresh"]) == (token("acc", 2), token("ref", 2))
    assert kept["secret"] == "what-nobody-named"
    assert kept["ends"] / 1000 - time.time() == pytest.approx(28800, abs=60)
    assert ground.file.stat().st_mode & 0o777 == 0o600


@IN_NAMESPACES
def test_the_agents_own_refresh_gets_phantoms(ground: Ground) -> None:
    """Of tokens that are good still, without the vendor being asked; of new ones where it has ended."""
    ended = ground.run(RENEW)
    answer = json.loads(ended.stdout)
    assert answer["scope"] == "a b"
    assert 3500 < answer["expires_in"] <= 3600
    assert token("acc", 1) not in ended.stdout
    assert ground.vendor.refreshed == []
    ground.log_in(ends=60)
    ended = ground.run(f"{RENEW}; cat ~/.agent/auth.json")
    assert len(ground.vendor.refreshed) == 1
    assert "RealToken" not in ended.stdout
    again, end = json.JSONDecoder().raw_decode(ended.stdout)
    assert again["expires_in"] > 28000
    assert f'"{again["access_token"]}"' in ended.stdout[end:], "the phantom in the file is another one"


@IN_NAMESPACES
def test_a_token_that_the_vendor_refuses_is_refreshed_when_the_agent_asks(ground: Ground) -> None:
    """Revoked, or a clock that goes wrong: 401, a refresh, and on."""
    ground.vendor.number = 7  # what the user has is not good any more
    ground.log_in(1)
    ended = ground.run(f"{ASK}; {RENEW} >/dev/null; {ASK}")
    assert '"unauthorized"' in ended.stdout
    assert ground.vendor.refused == 1  # and the refresh token is spent as well: nothing to be done
    ground.vendor.number = 1
    ground.log_in(1)
    ground.vendor.seen.clear()

    def revoked(host: str, path: str, authorization: str | None, body: bytes) -> tuple[int, dict[str, Any]]:
        if path == "/token" or authorization != f"Bearer {token('acc', 1)}":
            return Vendor.answer(ground.vendor, host, path, authorization, body)
        return 401, {"error": "unauthorized"}

    ground.vendor.answer = revoked  # type: ignore[method-assign]
    ended = ground.run(f"{ASK}; {RENEW} >/dev/null; {ASK}; {RENEW} >/dev/null; {RENEW} >/dev/null")
    assert '"served"' in ended.stdout, (ended, ground.denials())
    assert len(ground.vendor.refreshed) == 2  # one of the first half, one of this: those after it found a good one


@BY_BOTH_WAYS
def test_what_is_not_the_logins_is_refused(ground: Ground) -> None:
    """Foreign tokens, other paths, other methods, a phantom elsewhere: and what may be read is read."""
    foreign = f'{CURL} -H "Authorization: Bearer {token("acc", 1)}" https://{API}/v1/chat'
    other = ASK.replace("/v1/chat", "/v1/keys")
    written = ASK.replace("/v1/chat", "/v1/models") + " -d x"
    elsewhere = ASK.replace(API, LOGIN)
    cookie = f'{CURL} -H "Cookie: session=stolen" https://{API}/v1/models'
    query = f"{CURL} 'https://{API}/v1/models?access_token=x'"
    posted = f"{CURL} https://{API}/v1/chat -d x"
    stolen = RENEW.replace(REFRESH, token("ref", 1))
    code = f"{CURL} https://{LOGIN}/token -d grant_type=authorization_code -d code=x"
    own = "http://$(echo $HTTPS_PROXY | sed 's/.*@//')"
    by_proxy = f"curl -sS --max-time 20 --noproxy '*' -H 'Authorization: Bearer foreign' {own}"
    proxied = (f"{by_proxy}/v1/chat", f"{by_proxy}/v1/models -H 'Host: {API}'")
    batch = ASK.replace("/v1/chat", "/v1/chat/batches") + " -d x"
    content = f"{CURL} -X GET https://{API}/v1/models -d x"
    value = f"{CURL} -H 'Foo: Bearer x' -H 'Bar: sk-ant-x' -H 'x.api.key: y' https://{API}/v1/models"
    looks = f"{CURL} 'https://{API}/v1/models?a=sk-ant-x'"
    lines = (
        foreign,
        other,
        written,
        elsewhere,
        cookie,
        query,
        posted,
        stolen,
        code,
        *proxied,
        batch,
        content,
        value,
        looks,
    )
    ended = ground.run("; echo; echo; ".join(lines), "--proxy-env", "yes")
    answers = ended.stdout.split("\n\n")
    said = [json.loads(answer).get("errorType", "served") for answer in answers]
    served = ["served"]  # without the cookie
    assert said == [
        *served,
        *["egress-denied"] * 2,
        *served,
        *served,
        "egress-denied",
        *["egress-key"] * 5,
        *["egress-denied"] * 2,
        "served",
        "egress-denied",
    ], (
        ended,
        ground.denials(),
    )
    assert [authorization for _, _, authorization in ground.vendor.seen] == [None] * len(ground.vendor.seen)
    assert not [name for names in ground.vendor.headers for name in names if name in ("foo", "bar", "x.api.key")]
    assert ground.vendor.refreshed == []


@IN_NAMESPACES
def test_a_phantom_is_good_in_its_own_worktree_only(ground: Ground) -> None:
    """And not after its sessions: the next one has others."""
    first = ground.run(f'echo "{ACCESS}"').stdout.strip()
    second = ground.run(f'echo "{ACCESS}"').stdout.strip()
    assert first[:4] == second[:4] == "acc-"
    assert first != second
    ended = ground.run(ASK.replace(ACCESS, first))
    assert ground.vendor.seen == [(API, "/v1/chat", None)], ended  # a foreign token is none


@IN_NAMESPACES
def test_two_sessions_of_a_worktree_share_their_phantoms(ground: Ground) -> None:
    """Else the second one's file would end the first one's login."""
    ready, go = ground.paddock.worktree / "ready", ground.paddock.worktree / "go"
    line = f"{ASK}; touch ready; while ! test -e go; do sleep 0.05; done; {ASK}"
    with ThreadPoolExecutor() as pool:
        first = pool.submit(ground.run, line)
        for _ in range(600):
            if ready.exists():
                break
            time.sleep(0.05)
        second = ground.run(ASK)
        ground.paddock.who.run(["touch", str(go)])
        ended = first.result()
    assert second.stdout.count('"served"') == 1, second
    assert ended.stdout.count('"served"') == 2, (ended, ground.denials())


@IN_NAMESPACES
def test_a_flood_of_wishes_asks_the_vendor_once(ground: Ground) -> None:
    """Twenty clients of a token that has ended; and a jail that asks again and again for new ones."""
    ground.log_in(ends=-10)
    ground.vendor.slow = 0.5
    ended = ground.run(f"for n in $(seq 20); do ({ASK}) & done; wait; for n in $(seq 10); do {RENEW} >/dev/null; done")
    assert ended.stdout.count('"served"') == 20, (ended, ground.denials())
    assert len(ground.vendor.refreshed) == 1


@IN_NAMESPACES
def test_a_vendor_that_says_no_is_not_asked_on_and_on(ground: Ground) -> None:
    """And the command hears why."""
    ground.log_in(9, ends=-10)
    ended = ground.run(f"for n in 1 2 3 4 5; do {ASK}; done")
    assert ended.stdout.count("invalid_grant") == 5, ended
    assert len(ground.vendor.refreshed) == 1
    assert ground.kept()["access"] == token("acc", 9)


@BY_BOTH_WAYS
def test_the_end_of_a_session_in_mid_refresh_loses_no_token(ground: Ground) -> None:
    """The vendor has spent the old one by then, so the new one has to be written."""
    ground.log_in(ends=-10)
    ground.vendor.slow = 2.0
    ended = ground.run(f"({ASK}) & sleep 1")
    assert ended.returncode == 0, ended
    for _ in range(200):
        if ground.kept()["access"] == token("acc", 2):
            break
        time.sleep(0.05)
    assert ground.kept()["refresh"] == token("ref", 2)
    assert [path.name for path in ground.file.parent.iterdir()] == ["auth.json"]


@BY_BOTH_WAYS
def test_other_hosts_are_reached_with_their_own_tls(ground: Ground) -> None:
    """The session's authority is good for the login's hosts alone."""
    outside = ground.environment["SSL_CERT_FILE"]
    ended = ground.run(
        f"{CURL} https://{OTHER}/x; curl -sS --max-time 20 --cacert {outside} https://{API}/v1/models",
        f"--ro={outside}",
    )
    assert '"served": "/x"' in ended.stdout, ended  # by the company's authority, which the file holds besides
    assert "/v1/models" not in ended.stdout
    assert "certificate" in ended.stderr


@BY_BOTH_WAYS
def test_a_host_of_the_login_is_reached_in_no_other_way(ground: Ground) -> None:
    """On other ports, in clear, as an address: what is sent there nobody could judge."""
    proxy = 'curl -sS --max-time 20 -o /dev/null -w "%{http_connect} %{http_code}\\n" -x $HTTPS_PROXY --noproxy ""'
    proxied = [
        f"{proxy} -k https://{API}:8443/v1/chat",
        f"{proxy} http://{API}/v1/chat",
        f"{proxy} http://{API}:443/v1/chat",
        f"{proxy} -k https://{API.upper()}.:8443/v1/chat",
        f"{proxy} --cacert $AGENT_CA https://{API.upper()}.:443/v1/models",
    ]
    ended = ground.run("\n".join(proxied), "--proxy-env", "yes")
    assert ended.stdout.splitlines() == ["403 000", "000 403", "000 403", "403 000", "200 200"], (
        ended,
        ground.denials(),
    )
    assert [authorization for _, _, authorization in ground.vendor.seen] == [None]
    assert not [line for line in ground.company.asked if ":8443" in line or ":80 " in line]


FORGED = """/usr/bin/python3 -c 'import json, os
path = os.path.expanduser("~/.agent/auth.json")
found = json.load(open(path))
found.update(access="acc-EVIL" + "e" * 60, refresh="ref-EVIL" + "e" * 60, ends=found["ends"] + 10 ** 12)
json.dump(found, open(path, "w"))'"""


def test_what_a_jail_makes_of_its_phantoms_is_never_a_login(paddock: Paddock) -> None:
    """Also not for a later session that gives the login itself, and takes refreshed tokens back."""
    need("userns")
    with made(paddock, {}, ()) as ground:
        assert ground.run(FORGED).returncode == 0
        ended = ground.run("cat ~/.agent/auth.json", "--logins", "exchange")
        assert token("acc", 1) in ended.stdout
        assert (ground.kept()["access"], ground.kept()["refresh"]) == (token("acc", 1), token("ref", 1))
        twin = ground.run(FORGED.replace("EVIL", "GOOD"), "--logins", "exchange")
        assert twin.returncode == 0, twin
        assert ground.kept()["access"].startswith("acc-GOOD"), "what such a session brings back is what its agent says"


def test_a_home_has_the_login_or_phantoms_and_never_both(paddock: Paddock) -> None:
    """One file is there for all sessions of a worktree."""
    need("userns")
    with made(paddock, {}, ()) as ground, ThreadPoolExecutor() as pool:
        for first, second in (("phantom", "exchange"), ("copy", "phantom")):
            for name in ("ready", "go"):
                (paddock.worktree / name).unlink(missing_ok=True)
            line = "touch ready; while ! test -e go; do sleep 0.05; done; cat ~/.agent/auth.json"
            running = pool.submit(ground.run, line, "--logins", first)
            for _ in range(600):
                if (paddock.worktree / "ready").exists():
                    break
                time.sleep(0.05)
            refused = ground.run("true", "--logins", second)
            paddock.who.run(["touch", str(paddock.worktree / "go")])
            assert refused.returncode == 125, refused
            assert "[login-home-shared]" in refused.stderr
            assert (token("acc", 1) in running.result().stdout) is (first == "copy")


@pytest.mark.parametrize("change", ["other", "out"])
def test_a_login_that_changes_during_a_refresh_is_the_users(paddock: Paddock, change: str) -> None:
    """Whoever logs in anew, or out, meanwhile has the last word."""
    need("userns")
    with made(paddock, {}, ()) as ground, ThreadPoolExecutor() as pool:
        ground.log_in(ends=-10)
        ground.vendor.slow = 2.0
        running = pool.submit(ground.run, ASK)
        for _ in range(600):
            if any("login.example.com" in line for line in ground.company.asked):
                break
            time.sleep(0.05)
        time.sleep(0.5)
        if change == "out":
            ground.file.unlink()
        else:
            ground.log_in(9, who="another")
        running.result()
        assert len(ground.vendor.refreshed) == 1
        if change == "out":
            assert not ground.file.exists()
        else:
            assert (ground.kept()["access"], ground.kept()["who"]) == (token("acc", 9), "another")


def test_no_token_is_spent_that_could_not_be_kept(paddock: Paddock) -> None:
    """A directory that cannot be written: the vendor is not asked, and why is a denial."""
    need("userns")
    with made(paddock, {}, ()) as ground:
        ground.log_in(ends=-10)
        ground.file.parent.chmod(0o500)
        ended = ground.run(ASK)
        ground.file.parent.chmod(0o700)
        assert "egress-unreachable" in ended.stdout
        assert ground.vendor.refreshed == []
        assert "the login cannot be used" in ground.denials()
        assert '"served"' in ground.run(ASK).stdout


def test_a_vendor_that_tells_no_time_is_not_asked_at_each_request(paddock: Paddock) -> None:
    """Nor one whose new tokens are refused."""
    need("userns")
    with made(paddock, {}, ()) as ground:
        ground.log_in(ends=-10)
        ground.vendor.lasts = -5
        ended = ground.run(f"for n in 1 2 3 4; do {ASK}; done")
        assert ended.stdout.count('"served"') == 4, ended
        assert len(ground.vendor.refreshed) == 1


def test_two_worktrees_refresh_one_login_in_turn(paddock: Paddock) -> None:
    """One asks, the other finds what it got: no token is used twice."""
    need("userns")
    with made(paddock, {}, ()) as ground:
        ground.log_in(ends=-10)
        ground.vendor.slow = 1.0
        other = paddock.worktree.parent / "second"
        paddock.who.run(["git", "-C", str(paddock.worktree), "worktree", "add", "-q", "-b", "second", str(other)])
        words = ("--provider", "agent", "--logins", "phantom", "--", "sh", "-c", ASK)
        with ThreadPoolExecutor() as pool:
            both = [pool.submit(paddock.run, *words, env=ground.environment, cwd=where) for where in (None, other)]
            ended = [each.result() for each in both]
        assert [each.stdout.count('"served"') for each in ended] == [1, 1], ended
        assert len(ground.vendor.refreshed) == 1
        assert ground.vendor.refused == 0


def test_a_client_that_does_not_trust_the_authority_is_a_denial(paddock: Paddock) -> None:
    """Which names the client, and why."""
    need("userns")
    with made(paddock, {}, ()) as ground:
        ended = ground.run(f"curl -sS --max-time 20 https://{API}/v1/models")
        assert ended.returncode != 0
        assert "does not trust the authority in the session's ~/.paddock-authorities" in ground.denials()
        ended = ground.run(f"exec 3<>/dev/tcp/{API}/443", shell="bash")
        assert ended.returncode == 0, ended
        only_looked = ground.denials()  # whether it is there: nothing was refused
        assert only_looked.startswith("no denial was recorded in the last session"), only_looked


def test_a_login_that_cannot_be_a_phantom_is_not_there(paddock: Paddock) -> None:
    """A key in its place in the file, another token in the environment, no network: kept out, and said."""
    need("userns")
    with made(paddock, {}, ()) as ground:
        ground.log_in(access=None)
        ended = ground.run("cat ~/.agent/auth.json")
        assert "holds" in ended.stderr or "does not hold" in ended.stderr, ended
        assert "RealToken" not in ended.stdout
        ground.log_in()
        ended = ground.run("cat ~/.agent/auth.json", "--net", "none")
        assert "is not in the jail" in ended.stderr, ended
        assert "RealToken" not in ended.stdout
