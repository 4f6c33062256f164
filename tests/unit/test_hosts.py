"""Egress rules: what is accepted, what is refused, and what each rule matches."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.errors import Refusal
from policy.hosts import matches, parse_host, parse_rule

ACCEPTED = [
    ("example.com", "example.com"),
    ("EXAMPLE.Com", "example.com"),
    ("example.com.", "example.com"),
    ("example.com:443", "example.com:443"),
    ("example.com.:443", "example.com:443"),
    ("localhost:1", "localhost:1"),
    ("a-b.c1:65535", "a-b.c1:65535"),
    ("*.example.com", "*.example.com"),
    ("*.Example.com:80", "*.example.com:80"),
    ("xn--mnchen-3ya.de", "xn--mnchen-3ya.de"),
    ("192.0.2.7", "192.0.2.7"),
    ("192.0.2.7/32", "192.0.2.7"),
    ("192.0.2.7:53", "192.0.2.7:53"),
    ("192.0.2.0/24", "192.0.2.0/24"),
    ("192.0.2.0/24:443", "192.0.2.0/24:443"),
    ("[::1]", "[::1]"),
    ("[::1]:443", "[::1]:443"),
    ("[2001:DB8:0::1]", "[2001:db8::1]"),
    ("[2001:db8::/32]:443", "[2001:db8::/32]:443"),
    ("1password.com", "1password.com"),
    ("0x7f.example", "0x7f.example"),
]

REFUSED = [
    ("", "empty"),
    (" ", "white space"),
    ("example.com ", "white space"),
    ("exa\tmple.com", "white space"),
    ("example.com\n", "white space"),
    ("example\0.com", "control characters"),
    ("https://example.com", "URL"),
    ("example.com/path", "address range"),
    ("user@example.com", "user information"),
    ("example%2ecom", "percent"),
    ("[fe80::1%eth0]", "percent"),
    ("fe80::1%25eth0", "percent"),
    ("example\\.com", "backslash"),
    ("münchen.de", "non-ASCII"),
    ("example。com", "non-ASCII"),
    ("exаmple.com", "non-ASCII"),
    (".", "empty"),
    (".example.com", "label is empty"),
    ("example..com", "label is empty"),
    ("example.com..", "label is empty"),
    ("-a.com", "hyphen"),
    ("a-.com", "hyphen"),
    ("a_b.com", "characters other"),
    ("a,b", "characters other"),
    ("a" * 64 + ".com", "longer than 63"),
    (".".join(["a" * 63] * 4), "longer than 253"),
    ("a." * 200 + "com", "longer"),
    ("ab--cd.com", "A-label"),
    ("xn--.com", "hyphen"),
    ("xn--a.com", "A-label"),
    ("xn--abc-.com", "hyphen"),
    ("*", "left-most"),
    ("*:443", "left-most"),
    ("*.", "label is empty"),
    ("*.com", "two labels"),
    ("*.1.2.3.4", "two labels"),
    ("a.*.com", "left-most"),
    ("*a.example.com", "left-most"),
    ("*.*.example.com", "left-most"),
    ("example.*", "left-most"),
    ("example.com:", "port"),
    ("example.com:0", "port"),
    ("example.com:65536", "port"),
    ("example.com:080", "port"),
    ("example.com:+80", "port"),
    ("example.com:http", "port"),
    ("example.com:-1", "port"),
    ("example.com:99999999999999999999", "port"),
    ("2130706433", "four decimal parts"),
    ("0x7f000001", "four decimal parts"),
    ("0x7f.0.0.1", "four decimal parts"),
    ("0177.0.0.1", "four decimal parts"),
    ("127.1", "four decimal parts"),
    ("127.0.0.0x1", "four decimal parts"),
    ("127.0.0.1.", "four decimal parts"),
    ("256.0.0.1", "four decimal parts"),
    ("1.2.3.4.5", "four decimal parts"),
    ("example.0", "four decimal parts"),
    ("example.0x", "four decimal parts"),
    ("192.0.2.1/24", "bits below"),
    ("192.0.2.0/33", "prefix length"),
    ("192.0.2.0/024", "prefix length"),
    ("192.0.2.0/", "prefix length"),
    ("192.0.2.0/255.255.255.0", "prefix length"),
    ("0.0.0.0/0", "every address"),
    ("[::/0]", "every address"),
    ("[2001:db8::1/32]", "bits below"),
    ("[::1/129]", "prefix length"),
    ("::1", "brackets"),
    ("2001:db8::1", "brackets"),
    ("2001:db8::/32", "brackets"),
    ("[::1", "bracket"),
    ("[::1]443", "bracket"),
    ("[::1]:", "port"),
    ("[]", "not an IPv6"),
    ("[192.0.2.1]", "not an IPv6"),
    ("[example.com]", "not an IPv6"),
    ("[::ffff:127.0.0.1]", "written as IPv6"),
    ("[::ffff:7f00:1]", "written as IPv6"),
]


@pytest.mark.parametrize(("text", "canonical"), ACCEPTED)
def test_a_valid_rule_has_one_canonical_text(text: str, canonical: str) -> None:
    """A rule prints its canonical form, and that form parses to the same rule."""
    rule = parse_rule(text)
    assert str(rule) == canonical
    assert parse_rule(canonical) == rule


@pytest.mark.parametrize(("text", "reason"), REFUSED)
def test_an_ambiguous_rule_is_refused_with_its_reason(text: str, reason: str) -> None:
    """What two programmes could read differently is refused, and the text says why."""
    with pytest.raises(Refusal) as caught:
        parse_rule(text)
    assert caught.value.reference == "host-rule"
    assert reason in caught.value.message
    assert caught.value.hint


def test_a_unicode_name_is_refused_with_its_a_label_form() -> None:
    """The remedy can be pasted."""
    with pytest.raises(Refusal) as caught:
        parse_rule("münchen.de")
    assert caught.value.hint == "write its A-label form: xn--mnchen-3ya.de"
    assert str(parse_rule("xn--mnchen-3ya.de")) == "xn--mnchen-3ya.de"


@pytest.mark.parametrize(
    ("rule", "host", "port"),
    [
        ("example.com", "example.com", 443),
        ("example.com", "EXAMPLE.com.", 80),
        ("example.com:443", "example.com", 443),
        ("*.example.com", "a.example.com", 443),
        ("*.example.com", "a.b.example.com", 443),
        ("192.0.2.0/24", "192.0.2.255", 1),
        ("192.0.2.7", "192.0.2.7", 1),
        ("[::1]:443", "::1", 443),
        ("[::1]:443", "[::1]", 443),
        ("[2001:db8::/32]", "2001:DB8:ffff::", 9),
    ],
)
def test_a_rule_matches_what_it_names(rule: str, host: str, port: int) -> None:
    """The host is compared in canonical form, and without a port every port is meant."""
    assert matches(parse_rule(rule), host, port)


@pytest.mark.parametrize(
    ("rule", "host", "port"),
    [
        ("example.com", "a.example.com", 443),
        ("example.com", "badexample.com", 443),
        ("example.com", "example.com.evil.net", 443),
        ("example.com:443", "example.com", 80),
        ("*.example.com", "example.com", 443),
        ("*.example.com", "badexample.com", 443),
        ("*.example.com", "*.example.com", 443),
        ("192.0.2.0/24", "192.0.3.0", 1),
        ("192.0.2.0/24", "192.0.2.0/24", 1),
        ("192.0.2.7", "::ffff:192.0.2.7", 1),
        ("192.0.2.7", "[::ffff:c000:207]", 1),
        ("127.0.0.1", "2130706433", 1),
        ("127.0.0.1", "127.1", 1),
        ("127.0.0.1", "localhost", 1),
        ("localhost", "127.0.0.1", 1),
        ("[::1]", "127.0.0.1", 1),
        ("[::1]", "::1%lo", 1),
        ("example.com", "example.com:443", 443),
        ("example.com", "example.com\0", 443),
        ("example.com", "", 443),
        ("example.com", "example.com", 0),
        ("example.com", "example.com", 65536),
    ],
)
def test_a_rule_does_not_match_anything_else(rule: str, host: str, port: int) -> None:
    """Neighbours, lookalikes and other spellings of an address are outside."""
    assert not matches(parse_rule(rule), host, port)


def test_a_host_is_a_name_or_an_address() -> None:
    """A name comes back as text, a literal as an address."""
    assert parse_host("A.b.") == "a.b"
    assert parse_host("192.0.2.1") == ipaddress.IPv4Address("192.0.2.1")
    assert parse_host("[::1]") == ipaddress.IPv6Address("::1")


@given(st.text(max_size=40) | st.text(alphabet="a1.:*[]/-x%@", max_size=20))
def test_any_text_is_a_rule_or_a_refusal(text: str) -> None:
    """No input raises anything else, and what is accepted is stable ASCII."""
    try:
        rule = parse_rule(text)
    except Refusal:
        return
    assert str(rule).isascii()
    assert parse_rule(str(rule)) == rule


@given(st.ip_addresses(), st.integers(1, 65535))
def test_a_literal_address_matches_itself(address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> None:
    """Every address that may be written as a rule matches itself, and no name does."""
    text = f"[{address}]" if address.version == 6 else str(address)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        with pytest.raises(Refusal):
            parse_rule(text)
        return
    rule = parse_rule(f"{text}:{port}")
    assert matches(rule, str(address), port)
    assert not matches(rule, "example.com", port)
