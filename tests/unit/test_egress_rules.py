"""Egress rules: their grammar, and what they say about hosts, tunnels, requests and addresses."""

import ipaddress
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy import egress_rules
from policy.egress_rules import EgressPolicy, Request, canonical_path, normal_path, parse_egress_rule
from policy.errors import Refusal
from policy.hosts import parse_host, special

HTTP = {"method": "GET", "path": "/public/a"}


READING = ("GET,POST example.com/a",)


def wants(where: str, **more: Any) -> Request:  # noqa: ANN401  # fields of a Request
    """A request for HOST:PORT: a tunnel, or plain HTTP with `method` and `path`."""
    host, _, port = where.rpartition(":")
    return Request(parse_host(host), int(port), **more)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("Example.com:443", "example.com:443"),
        ("GET,HEAD,GET example.com", "GET,HEAD example.com"),
        ("example.com/a/b/", "example.com/a/b"),
        ("example.com:80/", "example.com:80/"),
        ("POST *.example.com:80/api", "POST *.example.com:80/api"),
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("10.0.0.0/8:80/x", "10.0.0.0/8:80/x"),
        ("192.0.2.7:80/x", "192.0.2.7:80/x"),
        ("[2001:db8::/32]:443", "[2001:db8::/32]:443"),
        ("[::1]/x", "[::1]/x"),
    ],
)
def test_a_rule_has_one_canonical_text(text: str, canonical: str) -> None:
    """It parses to the same rule again."""
    rule = parse_egress_rule(text)
    assert str(rule) == canonical
    assert parse_egress_rule(canonical) == rule


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "get example.com", "GET, example.com", "GET  example.com", "GE=T example.com",
        "A" * 21 + " example.com",
        "http://example.com/x", "example.com/a*", "example.com/../x", "example.com/a//b", "example.com/%61",
        "example.com/a?b", "example.com/a b", "192.0.2.7/path", "192.0.2.7/24/path", "example.com/" + "a" * 1024,
        "user@example.com/x", "example.com/\u00e9", "@python",
    ],
)  # fmt: skip
def test_what_could_be_read_in_two_ways_is_no_rule(text: str) -> None:
    """It is refused in words."""
    with pytest.raises(Refusal) as caught:
        parse_egress_rule(text)
    assert caught.value.reference == "host-rule"


@given(st.text(alphabet="aA.*:/ []@%0129,GETx-", max_size=40))
def test_any_text_parses_or_is_refused(text: str) -> None:
    """Nothing else than a Refusal comes out, and what parses is stable."""
    try:
        rule = parse_egress_rule(text)
    except Refusal:
        return
    assert parse_egress_rule(str(rule)) == rule


@pytest.mark.parametrize(
    ("allow", "where", "more", "allowed"),
    [
        ((), "example.com:443", {}, False),
        (("example.com",), "example.com:443", {}, True),
        (("example.com",), "www.example.com:443", {}, False),
        (("example.com:443",), "example.com:80", HTTP, False),
        (("example.com",), "example.com:80", HTTP, True),
        (("*.example.com",), "a.b.example.com:1", {}, True),
        (("*.example.com",), "example.com:1", {}, False),
        (("example.com",), "192.0.2.1:443", {}, False),
        (("192.0.2.0/24:443",), "192.0.2.1:443", {}, True),
        (("192.0.2.0/24:443",), "192.0.2.1:80", HTTP, False),
        (("GET example.com",), "example.com:80", HTTP, True),
        (("POST example.com",), "example.com:80", HTTP, False),
        (("GET example.com",), "example.com:443", {}, False),
        (("example.com/public",), "example.com:80", HTTP, True),
        (("example.com/public/a",), "example.com:80", HTTP, True),
        (("example.com/pub",), "example.com:80", HTTP, False),
        (("example.com/public",), "example.com:443", {}, False),
        (("example.com/public",), "example.com:80", {"method": "GET", "path": "/public/../secret"}, False),
        (("example.com/public",), "example.com:80", {"method": "GET", "path": "/public/%2e%2e/secret"}, False),
        (("example.com/public",), "example.com:80", {"method": "GET", "path": "/public/..;/secret"}, False),
        (("example.com/public",), "example.com:80", {"method": "GET", "path": "/p%75blic?x=/../"}, True),
        (("example.com/public",), "example.com:80", {"method": "GET", "path": "/public/%c0%ae%c0%ae/secret"}, False),
        (("example.com/public",), "example.com:80", {"method": "GET", "path": "/public/%C3%A9"}, True),
        (("GET example.com/x", "example.com"), "example.com:443", {}, True),
        (READING, "example.com:80", {"method": "POST", "path": "/a", "content": True}, True),
        (READING, "example.com:80", {"method": "GET", "path": "/a", "content": True}, False),
        (READING, "example.com:80", {"method": "GET", "path": "/a", "restated": "x-http-method"}, False),
        (("example.com/a",), "example.com:80", {"method": "GET", "path": "/a", "restated": "x-original-url"}, False),
        (("example.com/a",), "example.com:80", {"method": "GET", "path": "/a", "content": True}, True),
        (("example.com",), "example.com:80", {**HTTP, "content": True, "restated": "x-http-method"}, True),
    ],
)
def test_only_what_a_rule_names_is_allowed(
    allow: tuple[str, ...], where: str, more: dict[str, Any], allowed: bool
) -> None:
    """A denial says what would allow it."""
    verdict = EgressPolicy(allow).decide(wants(where, **more))
    assert verdict.allowed == allowed
    assert allowed or verdict.suggestion == f"--allow-domain {where}"
    assert allowed or EgressPolicy((*allow, verdict.suggestion.split()[1])).decide(wants(where, **more)).allowed


@pytest.mark.parametrize(
    ("deny", "where", "more", "allowed"),
    [
        ("bad.example.com", "bad.example.com:443", {}, False),
        ("bad.example.com", "good.example.com:443", {}, True),
        ("*.example.com:80", "bad.example.com:443", {}, True),
        ("POST example.com", "example.com:80", HTTP, True),
        ("POST example.com", "example.com:80", {"method": "POST", "path": "/"}, False),
        ("POST example.com", "example.com:443", {}, False),  # what happens in a tunnel cannot be seen
        ("example.com/secret", "example.com:80", HTTP, True),
        ("example.com/secret", "example.com:80", {"method": "GET", "path": "/secret/x"}, False),
        ("example.com/secret", "example.com:80", {"method": "GET", "path": "/%73ecret"}, False),
        ("example.com/secret", "example.com:80", {"method": "GET", "path": "/a/../secret"}, False),
        ("example.com/secret", "example.com:80", {"method": "GET", "path": "//secret"}, False),
        ("example.com/secret", "example.com:80", {"method": "GET", "path": "/SECRET"}, False),
        ("example.com/secret", "example.com:80", {**HTTP, "restated": "x-original-url"}, False),
        ("POST example.com", "example.com:80", {**HTTP, "restated": "x-http-method-override"}, False),
        ("POST example.com", "example.com:80", {**HTTP, "content": True}, True),
    ],
)
def test_a_denial_beats_what_is_allowed(deny: str, where: str, more: dict[str, Any], allowed: bool) -> None:
    """Whichever order they are written in; the verdict names it."""
    verdict = EgressPolicy(("example.com", "*.example.com"), (deny,)).decide(wants(where, **more))
    assert verdict.allowed == allowed
    assert allowed or deny in verdict.suggestion


# fmt: off
NOT_PUBLIC = [
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.254",
    "169.254.169.254",
    "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.168.1.1", "198.18.0.1", "224.0.0.1", "255.255.255.255",
    "168.63.129.16", "203.0.113.5", "::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "100::1", "2001::1", "2001:db8::1", "2002:7f00:1::", "3fff::1", "5f00::1",
    "fc00::1", "fd00:ec2::254", "fe80::1", "fec0::1", "ff02::1", "2600::5efe:7f00:1", "2600::200:5efe:a00:1",
]
PUBLIC = [
    "1.1.1.1", "8.8.8.8", "11.0.0.1", "100.63.255.255", "100.128.0.1", "172.15.255.255", "172.32.0.1", "192.0.1.1",
    "223.255.255.255", "2600::1", "2a00:1450::1", "2001:4860:4860::8888", "64:ff9b::808:808", "2600::5efe:808:808",
]
# fmt: on


@pytest.mark.parametrize("text", NOT_PUBLIC)
def test_an_address_that_is_not_public_is_known(text: str) -> None:
    """Whatever form it comes in; the reason is said."""
    assert special(ipaddress.ip_address(text))


@pytest.mark.parametrize("text", PUBLIC)
def test_a_public_address_is_nothing_special(text: str) -> None:
    """The twin, next to each border."""
    assert special(ipaddress.ip_address(text)) == ""


@given(st.ip_addresses(v=4))
def test_what_wraps_an_address_is_no_more_public_than_it(address: ipaddress.IPv4Address) -> None:
    """NAT64 and ISATAP lead where the inner address leads."""
    for head in (0x0064FF9B << 96, 0x26000000 << 96 | 0x5EFE << 32):
        wrapped = ipaddress.IPv6Address(head | int(address))
        assert bool(special(wrapped)) == bool(special(address))


@pytest.mark.parametrize(
    ("allow", "host", "address", "own", "allowed"),
    [
        (("example.com",), "example.com", "11.0.0.1", False, True),
        (("example.com",), "example.com", "127.0.0.1", False, False),
        (("example.com",), "example.com", "11.0.0.1", True, False),
        (("example.com", "127.0.0.1"), "example.com", "127.0.0.1", False, True),
        (("example.com", "127.0.0.1:80"), "example.com", "127.0.0.1", False, False),
        (("example.com", "10.0.0.0/8:443"), "example.com", "10.1.2.3", False, True),
        (("localhost",), "localhost", "127.0.0.1", True, True),
        (("localhost",), "localhost", "::1", True, True),
        (("a.localhost",), "a.localhost", "127.0.0.1", False, False),
        (("10.0.0.1",), "10.0.0.1", "10.0.0.1", False, True),
        (("example.com", "GET 127.0.0.1"), "example.com", "127.0.0.1", False, False),
    ],
)
def test_a_name_leads_to_private_addresses_only_where_they_are_granted(
    allow: tuple[str, ...], host: str, address: str, own: bool, allowed: bool
) -> None:
    """An address, or localhost, written in the list is the grant; a name is not."""
    wanted = Request(parse_host(host), 443)
    policy = EgressPolicy(allow)
    assert policy.decide(wanted).allowed
    verdict = policy.judge_address(wanted, ipaddress.ip_address(address), own=own)
    assert verdict.allowed == allowed
    assert allowed or verdict.suggestion == f"--allow-domain {Request(ipaddress.ip_address(address), 443).where}"


@pytest.mark.parametrize(
    ("address", "own", "allowed"),
    [
        ("10.1.2.3", False, True),
        ("172.16.0.1", False, True),
        ("192.168.77.1", False, True),
        ("fd12:3456::7", False, True),
        ("11.0.0.1", False, True),
        ("10.1.2.3", True, False),
        ("11.0.0.1", True, False),
        ("127.0.0.1", False, False),
        ("::1", False, False),
        ("0.0.0.0", False, False),
        ("169.254.169.254", False, False),
        ("fe80::a9fe:a9fe", False, False),
        ("fd00:ec2::254", False, False),
        ("fd20:ce::254", False, False),
        ("fd00:c1::a9fe:a9fe", False, False),
        ("fd00:42::42", False, False),
        ("100.100.100.200", False, False),
        ("192.0.0.192", False, False),
        ("168.63.129.16", False, False),
        ("fec0::1", False, False),
        ("::ffff:10.1.2.3", False, False),
        ("64:ff9b::10.1.2.3", False, False),
        ("2002:a01:203::1", False, False),
        ("224.0.0.1", False, False),
    ],
)
def test_a_mirrors_name_leads_to_private_networks_and_nowhere_else(address: str, own: bool, allowed: bool) -> None:
    """Not to this machine, links, metadata services; another port or name of the same rules gets nothing of it."""
    rules = ("mirror.example.com:8081", "mirror.example.com:443", "other.example.com")
    policy = EgressPolicy(rules, ("10.66.0.0/16",), rules[:1])
    there = ipaddress.ip_address(address)
    wanted = Request("mirror.example.com", 8081)
    assert policy.judge_address(wanted, there, own=own).allowed == allowed
    for other in (Request("mirror.example.com", 443), Request("other.example.com", 8081)):
        assert policy.judge_address(other, there, own=own).allowed == (allowed and address == "11.0.0.1")
    assert not policy.judge_address(wanted, ipaddress.ip_address("10.66.1.1")).allowed


def test_a_denied_range_counts_for_what_names_lead_to() -> None:
    """A public one too."""
    policy = EgressPolicy(("example.com",), ("11.0.0.0/8",))
    wanted = Request("example.com", 443)
    assert not policy.judge_address(wanted, ipaddress.ip_address("11.1.1.1")).allowed
    assert policy.judge_address(wanted, ipaddress.ip_address("12.1.1.1")).allowed


@given(st.text(alphabet="/.%25eEfFcC;?ab\\", max_size=30))
def test_a_canonical_path_has_one_reading(path: str) -> None:
    """Whatever is accepted has no dot segments, no empty ones, and no escapes left."""
    found = canonical_path("/" + path)
    if found is not None:
        segments = found.split("/")[1:]
        assert not {".", ".."} & set(segments)
        assert "" not in segments[:-1]
        assert "\\" not in found
        assert "%" not in found


@given(st.text(alphabet="/.%25eEfFcC67~;?:ab\\", max_size=30))
def test_a_normal_path_is_the_one_that_was_decided_on(path: str) -> None:
    """It has the same reading, no escape that it does not need, and its query as it was."""
    found = normal_path("/" + path)
    assert canonical_path(found) == canonical_path("/" + path)
    assert normal_path(found) == found
    assert found.partition("?")[2] == path.partition("?")[2]


def test_every_bundle_is_a_list_of_valid_rules() -> None:
    """Each rule is canonical, has a port, and no bundle is empty."""
    found = egress_rules.bundles()
    assert {"python", "node", "rust", "go", "github"} <= found.keys()
    for bundle in found.values():
        assert bundle.title
        assert bundle.rules
        for text in bundle.rules:
            rule = parse_egress_rule(text)
            assert str(rule) == text
            assert rule.host.port is not None
            assert rule.host.network is None
    rules = list(itertools.chain.from_iterable(bundle.rules for bundle in found.values()))
    assert len(rules) == len(set(rules))


def test_an_unknown_bundle_names_the_nearest() -> None:
    """A slip of the finger is not a long search."""
    with pytest.raises(Refusal) as caught:
        egress_rules.require("@pyhton")
    assert caught.value.reference == "bundle-unknown"
    assert caught.value.message == "'@pyhton' is not a known bundle of hosts"  # what follows an option's name reads on
    assert "@python" in caught.value.context
