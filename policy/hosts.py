"""The grammar of egress rules, ``HOST[:PORT]``, and which host and port a rule matches.

Strict on purpose: whatever two programmes could read differently (short or octal IPv4, Unicode names, percent
encoding, user information, zone ids) is refused instead of interpreted. Names: RFC 1123 section 2.1 and RFC 5890
(A-labels); literals: RFC 4291 and RFC 5952.
"""

import ipaddress
from typing import NamedTuple

from policy.errors import Refusal
from policy.pasted import cited

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_LETTERS_DIGITS_HYPHEN = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")
PASSED_OVER = "passed-over.invalid"
"""What a tool is told in the place of an index of the user's that cannot be used (RFC 6761 section 6.4)."""

_LONGEST_NAME = 253
_LONGEST_LABEL = 63
_LONGEST_TEXT = _LONGEST_NAME + len("*.") + len(".:65535")


class HostRule(NamedTuple):
    """One parsed rule; `str()` gives its canonical text, which parses to the same rule.

    Attributes:
        name: lower-case ASCII name without trailing dot; "" when the rule is about addresses.
        wildcard: the rule means every name *below* `name`, at any depth, and not `name` itself.
        network: the addresses meant (a single address is a network of one), or None.
        port: the one port meant, or None for every port.
    """

    name: str
    wildcard: bool
    network: Network | None
    port: int | None

    def __str__(self) -> str:
        """The canonical text of the rule."""
        if self.network is None:
            host = ("*." if self.wildcard else "") + self.name
        else:
            single = self.network.prefixlen == self.network.max_prefixlen
            host = str(self.network.network_address) if single else str(self.network)
            host = f"[{host}]" if self.network.version == 6 else host
        return host if self.port is None else f"{host}:{self.port}"


def parse_rule(text: str) -> HostRule:
    """The rule that `text` writes.

    Accepted: ``example.com``, ``*.example.com``, ``192.0.2.7``, ``192.0.2.0/24``, ``[2001:db8::1]``,
    ``[2001:db8::/32]``, each with an optional ``:PORT`` of 1-65535. One trailing dot of a name is dropped and upper
    case is lowered. Refusal (``host-rule``) for everything else, with the reason and, where there is one, the remedy.
    """
    reason, hint = _objection(text)
    if reason:
        raise _refused(text, reason, hint)
    try:
        host, port = _split_port(text)
        return _rule(host, port)
    except _Invalid as problem:
        raise _refused(text, problem.reason, problem.hint) from None


def parse_host(text: str) -> str | Address:
    """A host as a client names it: a canonical name (`str`), or an address.

    Raises:
        ValueError: not exactly one name or address (wildcards, ranges and ports are not hosts). IPv6 may come with
            or without brackets; an IPv4 address dressed as IPv6 is no host, so no rule can be walked around with it.
    """
    reason, _ = _objection(text)
    if reason:
        raise ValueError(reason)
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if ":" in inner or inner != text:
        return _ipv6(inner)
    return _name_or_ipv4(text)


def is_host(text: str) -> bool:
    """Whether `text` is one host, as `parse_host` takes it."""
    try:
        parse_host(text)
    except ValueError:
        return False
    return True


def matches(rule: HostRule, host: str, port: int) -> bool:
    """Whether `rule` covers a connection to `host` and `port`.

    Names are compared with name rules and literal addresses with address rules; a name is never resolved here. What
    `parse_host` does not accept matches nothing.
    """
    if not 1 <= port <= 65535 or (rule.port is not None and rule.port != port):
        return False
    try:
        parsed = parse_host(host)
    except ValueError:
        return False
    if isinstance(parsed, str):
        if rule.network is not None:
            return False
        return parsed.endswith("." + rule.name) if rule.wildcard else parsed == rule.name
    return rule.network is not None and parsed.version == rule.network.version and parsed in rule.network


class _Invalid(ValueError):
    """A reason and a remedy on their way to `parse_rule`."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


def _refused(text: str, reason: str, hint: str) -> Refusal:
    shown = text if len(text) <= 80 else text[:77] + "..."
    return Refusal(
        "host-rule",
        f"{shown!r} is not a host rule: {reason}",
        hint=hint or "HOST[:PORT], for instance example.com, *.example.com:443, 192.0.2.7 or [2001:db8::1]:443",
    )


def _objection(text: str) -> tuple[str, str]:
    """What already disqualifies the characters of `text`, with a remedy; ("", "") when nothing does."""
    if not text:
        return "it is empty", ""
    if not text.isascii():
        try:
            ascii_form = text.encode("idna").decode("ascii").lower()
        except UnicodeError:
            ascii_form = ""
        return "it has non-ASCII characters", f"write its A-label form: {ascii_form}" if ascii_form else ""
    if len(text) > _LONGEST_TEXT:
        return f"it is longer than a name of {_LONGEST_NAME} characters can be", ""
    if "://" in text:
        return "it is a URL", "name the host only, without scheme and path"
    for char, meaning in (("@", "user information"), ("%", "percent encoding or a zone id"), ("\\", "a backslash")):
        if char in text:
            return f"it has {meaning}", ""
    if any(not "!" <= char <= "~" for char in text):
        return "it has white space or control characters", ""
    return "", ""


def _split_port(text: str) -> tuple[str, int | None]:
    if text.startswith("["):
        inside, bracket, rest = text.partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise _Invalid("the bracket is not closed, or is followed by something other than :PORT")
        return inside + bracket, _port(rest[1:]) if rest else None
    host, colon, port = text.partition(":")
    if ":" in port:
        raise _Invalid("an IPv6 address needs brackets", f"[{text}] or [ADDRESS]:PORT")
    return host, _port(port) if colon else None


def _port(text: str) -> int:
    if not text.isdigit() or len(text) > 5 or text.startswith("0") or int(text) > 65535:
        raise _Invalid("the port is not a plain number from 1 to 65535")
    return int(text)


def _rule(host: str, port: int | None) -> HostRule:
    if host.startswith("["):
        inside = host[1:-1]
        return HostRule("", False, _range(inside) if "/" in inside else _alone(_ipv6(inside)), port)
    if "/" in host:
        return HostRule("", False, _range(host), port)
    if "*" in host:
        if not host.startswith("*.") or "*" in host[1:]:
            raise _Invalid(
                "a wildcard can only be the whole left-most label",
                "*.example.com; to allow every host: --net open",
            )
        base = _name_or_ipv4(host[2:])
        if not isinstance(base, str) or "." not in base:
            raise _Invalid("a wildcard needs a name of at least two labels after it")
        return HostRule(base, True, None, port)
    parsed = _name_or_ipv4(host)
    return HostRule(parsed, False, None, port) if isinstance(parsed, str) else HostRule("", False, _alone(parsed), port)


def _alone(address: Address) -> Network:
    return ipaddress.ip_network(address)


def _range(text: str) -> Network:
    address_text, _, length = text.partition("/")
    address = _ipv6(address_text) if ":" in address_text else _name_or_ipv4(address_text)
    if isinstance(address, str):
        raise _Invalid("only an address range can contain a slash", "name the host only, without a path")
    longest = 32 if address.version == 4 else 128
    if not length.isdigit() or len(length) > 3 or (length != "0" and length.startswith("0")) or int(length) > longest:
        raise _Invalid(f"the prefix length is not a plain number from 1 to {longest}")
    if length == "0":
        raise _Invalid("it covers every address", "use --net open for that")
    network = ipaddress.ip_network(f"{address}/{length}", strict=False)
    if network.network_address != address:
        raise _Invalid("bits below the prefix are set", f"the range is {network}")
    return network


def _ipv6(text: str) -> ipaddress.IPv6Address:
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        raise _Invalid("the text in brackets is not an IPv6 address") from None
    if address.ipv4_mapped is not None:
        raise _Invalid("it is an IPv4 address written as IPv6", f"write {address.ipv4_mapped}")
    return address


def _name_or_ipv4(text: str) -> str | ipaddress.IPv4Address:
    name = text.lower().removesuffix(".")
    labels = name.split(".")
    last = labels[-1]
    if last.isdigit() or (last.startswith("0x") and all(c in "0123456789abcdef" for c in last[2:])):
        # Every resolver and browser reads a name with a numeric last label as some IPv4 address.
        try:
            return ipaddress.IPv4Address(text)
        except ValueError:
            raise _Invalid("an IPv4 address has four decimal parts without leading zeros") from None
    if len(name) > _LONGEST_NAME:
        raise _Invalid(f"the name is longer than {_LONGEST_NAME} characters")
    for label in labels:
        _check_label(label)
    return name


def _check_label(label: str) -> None:
    if not label:
        raise _Invalid("a label is empty")
    if len(label) > _LONGEST_LABEL:
        raise _Invalid(f"a label is longer than {_LONGEST_LABEL} characters")
    if not _LETTERS_DIGITS_HYPHEN.issuperset(label):
        raise _Invalid(f"label {cited(label)} has characters other than letters, digits and hyphens")
    if label.startswith("-") or label.endswith("-"):
        raise _Invalid(f"label {cited(label)} starts or ends with a hyphen")
    if label[2:4] == "--":
        try:
            decoded = label[4:].encode("ascii").decode("punycode")
            valid = label.startswith("xn--") and not decoded.isascii() and decoded.isprintable()
            valid = valid and decoded.encode("punycode") == label[4:].encode("ascii")
        except (ValueError, OverflowError):
            valid = False
        if not valid:
            raise _Invalid(f"label {cited(label)} is not a valid A-label")


# Addresses that a name must not lead to: loopback, link-local, private, metadata services, and what hides one of
# them.
#
# Tables: IANA's special-purpose address registries (RFC 6890 and its updates). `ipaddress` has the same tables, but
# they differ between Python's patch releases, and know neither metadata services nor all of the forms that wrap
# IPv4.


_V4 = (
    ("0.0.0.0/8", "this machine"),
    ("10.0.0.0/8", "private"),
    ("100.64.0.0/10", "shared by a carrier's customers, and used by metadata services"),
    ("127.0.0.0/8", "loopback"),
    ("169.254.0.0/16", "link-local, where metadata services are"),
    ("172.16.0.0/12", "private"),
    ("192.0.0.0/24", "reserved for protocols, and used by metadata services"),
    ("192.0.2.0/24", "for documentation"),
    ("192.88.99.0/24", "used by deprecated relays"),
    ("192.168.0.0/16", "private"),
    ("198.18.0.0/15", "for benchmarks"),
    ("198.51.100.0/24", "for documentation"),
    ("203.0.113.0/24", "for documentation"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved"),
    ("168.63.129.16/32", "a cloud platform's own service"),
)
_V6 = (
    ("::1/128", "loopback"),
    ("2001::/23", "reserved for protocols and tunnels"),
    ("2001:db8::/32", "for documentation"),
    ("2002::/16", "IPv4 embedded in a tunnel address"),
    ("3fff::/20", "for documentation"),
    ("fd00:42::/32", "private, and used by metadata services"),
    ("fd00:c1::/32", "private, and used by metadata services"),
    ("fd00:ec2::/32", "private, and used by metadata services"),
    ("fd20:ce::/32", "private, and used by metadata services"),
    ("fc00::/7", "private"),
    ("fe80::/10", "link-local"),
    ("fec0::/10", "private"),
    ("ff00::/8", "multicast"),
)
_TABLES: dict[int, tuple[tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, str], ...]] = {
    4: tuple((ipaddress.IPv4Network(text), what) for text, what in _V4),
    6: tuple((ipaddress.IPv6Network(text), what) for text, what in _V6),
}
_PRIVATE = tuple(map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")))
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_ISATAP = (0x00005EFE, 0x02005EFE)


def is_private(address: Address) -> bool:
    """Whether `address` is one of somebody's own network (RFC 1918, RFC 4193), written as such; no metadata service."""
    return special(address) == "private" and any(
        address.version == network.version and address in network for network in _PRIVATE
    )


def special(address: Address) -> str:
    """What makes `address` no public one, as an adjective phrase; "" when it is an ordinary public address.

    IPv4 addresses inside IPv6 ones (mapped, NAT64 of RFC 6052, ISATAP) are judged by what they lead to.
    """
    for network, what in _TABLES[address.version]:
        if address in network:
            return what
    if isinstance(address, ipaddress.IPv4Address):
        return ""
    if address.ipv4_mapped is not None:
        return special(address.ipv4_mapped) or "IPv4 embedded in IPv6"
    number = int(address)
    if address in _NAT64:
        return special(ipaddress.IPv4Address(number & 0xFFFFFFFF))
    if address not in _GLOBAL_UNICAST:
        return "reserved"
    if number >> 32 & 0xFFFFFFFF in _ISATAP:
        return special(ipaddress.IPv4Address(number & 0xFFFFFFFF))
    return ""
