"""Egress rules, ``[METHOD[,METHOD] ]HOST[:PORT][/PATH]``, and what they say about one connection. Pure.

Deny beats allow, and nothing is allowed that no rule names. Methods and a path can only be judged in plain HTTP: a rule
with one of them allows no tunnel, and a denial with one of them denies every tunnel to the same place.
"""

import functools
import ipaddress
import os
from collections.abc import Iterable
from typing import NamedTuple

from policy import tables
from policy.errors import Refusal
from policy.hosts import PASSED_OVER, Address, HostRule, is_private, matches, parse_host, parse_rule, special
from policy.pasted import cited
from policy.plan import Plan

# Named lists of hosts (`bundles.toml`), which an allow-list can hold as one word: ``@python``.

MARK = "@"
FILE = f"{os.path.dirname(__file__)}/bundles.toml"
_PORTS = (443,)


class Bundle(NamedTuple):
    """One list: its name, what it is for, its egress rules, and what allowing it risks ("": nothing special)."""

    name: str
    title: str
    rules: tuple[str, ...]
    risk: str


@functools.cache
def bundles() -> dict[str, Bundle]:
    """All bundles by name."""
    found = tables.shipped(FILE)
    if found["schema"] != 1:
        raise ValueError(f"{FILE} has an unknown version")
    return {
        name: Bundle(name, table["title"], _rules(table["hosts"], table.get("ports", _PORTS)), table.get("risk", ""))
        for name, table in found.items()
        if name != "schema"
    }


def require(word: str) -> Bundle:
    """The bundle that ``@NAME`` means. Refusal ``bundle-unknown``, with the nearest name."""
    known = bundles()
    name = word.removeprefix(MARK)
    if name in known:
        return known[name]
    from difflib import get_close_matches  # the proxy, which imports this module, has no use for it

    near = get_close_matches(name, known, n=1)
    raise Refusal(
        "bundle-unknown",
        f"{word[:80]!r} is not a known bundle of hosts",
        context=f"did you mean {MARK}{near[0]}?" if near else "",
        hint="known: " + ", ".join(MARK + name for name in known),
    )


def _rules(names: Iterable[str], ports: Iterable[int]) -> tuple[str, ...]:
    """Egress rules from names that are written from their top-level domains down."""
    hosts = [".".join(reversed(name.split("."))) for name in names]
    return tuple(f"{host}:{port}" for host in hosts for port in ports)


LOCALHOST = "localhost"
"""Needs no resolver (RFC 6761 section 6.3), and is a grant of the loopback addresses when a rule names it."""

WITHOUT_CONTENT = frozenset(("GET", "HEAD", "DELETE", "TRACE"))
"""Methods whose requests have no content that means anything (RFC 9110 section 9.3): by them it could only be carried
past a rule, or be a second request to a server that does not expect it.
"""

DNS_PORT = 53
"""Where the jail's own resolver listens."""

_METHOD_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ-")
_LONGEST_PATH = 1024


class EgressRule(NamedTuple):
    """One parsed rule; `str()` gives its canonical text.

    Attributes:
        host: which hosts and ports.
        methods: HTTP methods; empty means all.
        path: this path of a URL and everything below it; "" means all.
    """

    host: HostRule
    methods: tuple[str, ...] = ()
    path: str = ""

    def __str__(self) -> str:
        """The canonical text of the rule."""
        return (",".join(self.methods) + " " if self.methods else "") + str(self.host) + self.path

    @property
    def narrow(self) -> bool:
        """Whether the rule is about some requests to its host only."""
        return bool(self.methods or self.path)


class Request(NamedTuple):
    """What a client wants.

    Attributes:
        host: canonical name or address (`policy.hosts.parse_host`).
        port: 1 to 65535.
        method: of a plain HTTP request, "" for a tunnel.
        path: of a plain HTTP request, as sent.
        content: the plain HTTP request has some.
        restated: the name of a header or parameter that states its method, path or headers once more, "" without one.
    """

    host: str | Address
    port: int
    method: str = ""
    path: str = ""
    content: bool = False
    restated: str = ""

    @property
    def is_local(self) -> bool:
        """Whether it is about this machine's loopback."""
        return self.host == LOCALHOST if isinstance(self.host, str) else self.host.is_loopback

    @property
    def where(self) -> str:
        """HOST:PORT, as a rule would write it."""
        host = f"[{self.host}]" if isinstance(self.host, ipaddress.IPv6Address) else str(self.host)
        return f"{host}:{self.port}"


class Verdict(NamedTuple):
    """A verdict: `allowed`, the `rule` that decided ("" when none did), `reason`, and what would allow it."""

    allowed: bool
    rule: str
    reason: str
    suggestion: str = ""


_URL_PORTS = {"http": 80, "https": 443}


def endpoint(url: str) -> Request | None:
    """Host and port of an HTTP URL; None for anything else, which is for its reader to complain about."""
    from urllib.parse import urlsplit  # the proxy, which imports this module, has no use for it

    try:
        parts = urlsplit(url)
        port = parts.port or _URL_PORTS[parts.scheme]
        bracketed = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
        return Request(parse_host(bracketed), port)
    except (KeyError, ValueError):
        return None


def parse_egress_rule(text: str) -> EgressRule:
    """The rule that `text` writes: a host rule (`policy.hosts`) with methods in front, or a path behind it, or both.

    A path stands for itself and everything below it. An IPv4 address needs a port before its path, because a slash
    behind it begins a range's length.
    """
    methods: tuple[str, ...] = ()
    words, space, rest = text.partition(" ")
    if space and not words.startswith("@"):
        methods = tuple(dict.fromkeys(words.split(",")))
        for method in methods:
            if not method or len(method) > 20 or not _METHOD_LETTERS.issuperset(method):
                raise _refused(text, f"{method!r} is not an HTTP method in capital letters")
        text = rest
    if "://" in text:
        parse_rule(text)  # says why
    host, path = _split_path(text)
    if path:
        path = _checked_path(text, path)
    return EgressRule(parse_rule(host), methods, path)


USUAL_PORTS = (22, 80, 443)
"""Of a host that a rule allows on every port: those on which it is reached by name, without a proxy in the client."""

FAKE_V4, FAKE_V6 = "198.18.0.0/15", "2001:2::/48"
"""Addresses that names get in a jail: of networks for benchmarks (RFC 2544, RFC 5180), which lead nowhere outside."""


def named_ports(rules: Iterable[str], besides: Iterable[int] = (), *, asked: bool = False) -> tuple[int, ...]:
    """The ports on which a jail can reach by name what these rules allow, without those in `besides`.

    `asked`: somebody may allow more, on the usual ports.
    """
    found: set[int] = set(USUAL_PORTS if asked else ())
    for rule in map(parse_egress_rule, rules):
        found.update(USUAL_PORTS if rule.host.port is None else (rule.host.port,))
    return tuple(sorted(found - {DNS_PORT, *besides}))


def routes(rules: Iterable[str]) -> tuple[str, ...]:
    """The networks of the addresses that names get, and those that rules name themselves, loopback's left out."""
    networks = [rule.host.network for rule in map(parse_egress_rule, rules) if rule.host.network is not None]
    literal = (str(each) for each in networks if not each.is_loopback)
    return tuple(dict.fromkeys((FAKE_V4, FAKE_V6, *literal)))


def takes_all_names(rules: Iterable[str]) -> str:
    """The rule that names all of those addresses itself, so that none is left for names; "" without one."""
    for rule in map(parse_egress_rule, rules):
        if rule.host.network is not None and str(rule.host.network) in (FAKE_V4, FAKE_V6):
            return str(rule)
    return ""


def _split_path(text: str) -> tuple[str, str]:
    start = text.find("]") + 1
    colon, slash = text.find(":", start), text.find("/", start)
    if slash >= 0 and (colon < 0 or slash < colon) and text[start:slash].rpartition(".")[2].isdigit():
        slash = text.find("/", colon) if colon >= 0 else -1  # the first one begins a range's length
    return (text, "") if slash < 0 else (text[:slash], text[slash:])


def _checked_path(text: str, path: str) -> str:
    if len(path) > _LONGEST_PATH:
        raise _refused(text, f"its path is longer than {_LONGEST_PATH} characters")
    if "*" in path:
        raise _refused(text, "its path has a wildcard; a path covers everything below it")
    found = canonical_path(path)
    if found is None or any(char in path for char in "%?#;"):
        raise _refused(text, "its path is not plain: no percent, query, dots or double slashes")
    return found.rstrip("/") or "/"


def _refused(text: str, reason: str) -> Refusal:
    return Refusal(
        "host-rule",
        f"{text[:80]!r} is not an egress rule: {reason}",
        hint="[METHOD,... ]HOST[:PORT][/PATH], for instance example.com:443 or 'GET,HEAD example.com:80/public'",
    )


def canonical_path(target: str) -> str | None:
    """The path that `target` (path and query of a request) means, or None when two servers could read it differently.

    Ambiguous are encoded slashes, backslashes and percent signs, dot segments, empty segments, parameters behind dots,
    characters that do not belong into a URL (RFC 3986 section 3.3), and encoded bytes that are no UTF-8, such as a
    dot's in more bytes than it needs; in wide forms of these characters, too.
    """
    path = target.partition("?")[0]
    if not path.startswith("/") or not path.isascii() or any(not "!" <= char <= "~" for char in path) or "#" in path:
        return None
    head, *parts = path.split("%")
    decoded = head
    for part in parts:
        try:
            char = chr(int(part[:2], 16)) if part[:2].isalnum() and len(part) > 1 else ""
        except ValueError:
            char = ""
        if char in ("", "/", "\\", "%") or ord(char) < 0x20 or char == "\x7f":
            return None
        decoded += char + part[2:]
    try:
        text = decoded.encode("latin-1").decode()
    except UnicodeDecodeError:
        return None
    if not text.isascii():
        from unicodedata import normalize  # a launch does without

        text = normalize("NFKC", text)  # as some servers read it: a wide dot or slash as a plain one
    segments = text.split("/")[1:]
    if (
        text.count("/") > decoded.count("/")
        or {"\\", "%"} & {*text}
        or any(_is_dotted(part) for segment in segments for part in segment.split(";"))
    ):
        return None
    return None if "" in segments[:-1] else decoded


_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


def normal_path(target: str) -> str:
    """`target` with its path in normal form (RFC 3986 section 6.2.2): no escape but where one is needed, in capitals.

    A server that compares paths before it decodes them reads this one as the rules did. An ambiguous path has no such
    form, and stays.
    """
    if canonical_path(target) is None:
        return target
    path, mark, query = target.partition("?")
    head, *parts = path.split("%")
    for part in parts:
        char = chr(int(part[:2], 16))
        head += (char if char in _UNRESERVED else "%" + part[:2].upper()) + part[2:]
    return head + mark + query


def _is_dotted(part: str) -> bool:
    """Whether some server could take a part of a path for ``.`` or ``..``: with anything behind that is no name."""
    rest = part.lstrip(" .")
    dots = len(part) - len(rest)
    return (
        bool(dots)
        and "." in part[:dots]
        and not (rest[:1].isascii() and rest[:1].isalnum())
        and rest[:1] not in ("_", "-", "~")
    )


class EgressPolicy:
    """The rules of one session. Asked before a name is resolved, and again for each address it leads to."""

    def __init__(self, allow: Iterable[str], deny: Iterable[str] = (), internal: Iterable[str] = ()) -> None:
        """Parses the lists of rules; names of `internal` may lead to private networks. Refusals: ``host-rule``."""
        self.allow = tuple(map(parse_egress_rule, allow))
        self.deny = tuple(map(parse_egress_rule, deny))
        self.internal = tuple(map(parse_egress_rule, internal))
        self.asked: dict[tuple[str, int], str] = {}
        """Names and ports that no rule allows and a person has, while the session runs; and his answer."""

    @classmethod
    def of(cls, plan: Plan) -> "EgressPolicy":
        """The rules of a Plan."""
        return cls((rule for rule, _ in plan.domains), (rule for rule, _ in plan.domains_denied), plan.internal)

    def decide(self, wanted: Request) -> Verdict:
        """Whether the rules let `wanted` pass, names not resolved. An address still has to pass `judge_address`."""
        for rule in self.deny:
            if self._denies(rule, wanted):
                reason = f"denied by the rule {rule}"
                if rule.narrow and not wanted.method:
                    reason += ", which cannot be judged inside a tunnel"
                return Verdict(False, str(rule), reason, f"without --deny-domain {_quoted(rule)}")
        narrow: list[EgressRule] = []
        for rule in self.allow:
            if matches(rule.host, str(wanted.host), wanted.port):
                if not rule.narrow or self._fits(rule, wanted):
                    return Verdict(True, str(rule), "")
                narrow.append(rule)
        if not narrow and (answer := self.asked.get((str(wanted.host), wanted.port))):
            return Verdict(True, f"asked: {answer}", "")
        if not narrow:
            return _unruled(str(wanted.host), wanted.where)
        path = canonical_path(wanted.path.partition("?")[0]) or ""
        near = [rule for rule in narrow if rule.path and _below(path, rule.path)] or narrow
        which = f"the rule {near[-1]} does not cover" if len(near) == 1 else f"none of {len(near)} rules covers"
        return Verdict(
            False, str(near[-1]), f"{which} {_described(near[-1], wanted)}", f"--allow-domain {wanted.where}"
        )

    def names(self, host: str) -> Verdict:
        """Whether a name may be asked for: some rule allows it on some port. What for is decided with the port."""
        allowed = [rule for rule in self.allow if matches(rule.host, host, rule.host.port or USUAL_PORTS[-1])]
        ports = {port for rule in allowed for port in ((rule.host.port,) if rule.host.port else USUAL_PORTS)}
        denial = _unruled(host, host)
        for port in sorted(ports):
            wanted = Request(host, port)
            denied = next((rule for rule in self.deny if not rule.narrow and matches(rule.host, host, port)), None)
            if denied is None:
                return Verdict(True, str(allowed[0]), "")
            denial = self.decide(wanted)
        answer = next((answer for (name, _), answer in self.asked.items() if name == host), "")
        return Verdict(True, f"asked: {answer}", "") if answer else denial

    def is_narrow(self, wanted: Request) -> bool:
        """Whether only the requests inside a connection tell if they may pass: by a rule with methods or a path."""
        rules = [rule for rule in (*self.allow, *self.deny) if matches(rule.host, str(wanted.host), wanted.port)]
        return not self.decide(wanted).allowed and any(rule.narrow for rule in rules)

    def judge_address(self, wanted: Request, address: Address, *, own: bool = False) -> Verdict:
        """Whether `address`, which a name that passed `decide` has led to, may be dialled.

        Args:
            wanted: the request.
            address: the one to be dialled.
            own: this machine has it, so it leads to services that listen here.
        """
        there = wanted._replace(host=address)
        for rule in self.deny:
            if rule.host.network is not None and self._denies(rule, there):
                return Verdict(
                    False,
                    str(rule),
                    f"{wanted.host} resolves to {address}, denied by the rule {rule}",
                    f"without --deny-domain {_quoted(rule)}",
                )
        why = special(address) or ("this machine's own" if own else "")
        if not why or (wanted.host == LOCALHOST and address.is_loopback):
            return Verdict(True, "", "")
        if not own and is_private(address):
            for rule in self.internal:
                if not rule.narrow and matches(rule.host, str(wanted.host), wanted.port):
                    return Verdict(True, str(rule), "")
        for rule in self.allow:
            grants = rule.host.network is not None and matches(rule.host, str(address), wanted.port)
            if grants and (not rule.narrow or self._fits(rule, there)):
                return Verdict(True, str(rule), "")
        return Verdict(
            False,
            "",
            f"{wanted.host} resolves to {address}, which is {why}; only a rule for that address allows it",
            f"--allow-domain {there.where}",
        )

    def _fits(self, rule: EgressRule, wanted: Request) -> bool:
        """Whether a request, at the rule's host, is one that a narrow rule means. Never an ambiguous path."""
        if not wanted.method or wanted.restated or not self._has_method(rule, wanted):
            return False
        path = canonical_path(wanted.path)
        return not rule.path or (path is not None and _below(path, rule.path))

    def _denies(self, rule: EgressRule, wanted: Request) -> bool:
        if not matches(rule.host, str(wanted.host), wanted.port):
            return False
        if not rule.narrow or not wanted.method or wanted.restated:
            return True
        if rule.methods and wanted.method not in rule.methods:
            return False
        path = canonical_path(wanted.path)
        # Some servers take capital and small letters for the same, in a path.
        return not rule.path or path is None or _below(path.lower(), rule.path.lower())

    def _has_method(self, rule: EgressRule, wanted: Request) -> bool:
        """Whether a rule's methods, if it has any, stand for the request; those without content stand for none with."""
        if not rule.methods:
            return True
        return wanted.method in rule.methods and not (wanted.content and wanted.method in WITHOUT_CONTENT)


def _unruled(host: str, where: str) -> Verdict:
    """The answer about a host that no rule names."""
    if host == PASSED_OVER:
        return Verdict(False, "", f"{host} stands for a setting that Paddock passed over; a warning names it")
    return Verdict(False, "", f"no rule allows {where}", f"--allow-domain {where}")


def _described(rule: EgressRule, wanted: Request) -> str:
    """What of the request a narrow rule does not cover."""
    if not wanted.method:
        return "tunnels"
    if wanted.restated:
        return f"a request that repeats its method, host or path, in {cited(wanted.restated)}"
    if wanted.content and wanted.method in rule.methods and wanted.method in WITHOUT_CONTENT:
        return f"{wanted.method} with content"
    return f"{cited(wanted.method)} {cited(wanted.path.partition('?')[0])}"


def _below(path: str, top: str) -> bool:
    return top == "/" or path == top or path.startswith(top + "/")


def _quoted(rule: EgressRule) -> str:
    text = str(rule)
    return f"'{text}'" if " " in text or "*" in text or "[" in text else text
