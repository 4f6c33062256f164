"""Keys that stay outside: a jail gets a phantom in the place of one, and the proxy puts the real one in.

The Plan holds what is written here, and never a value. A key is for one vendor's API; who holds its phantom reaches
what its rules cover, and nothing else by it.
"""

from collections.abc import Iterable
from typing import NamedTuple

from policy.egress_rules import Request, endpoint, parse_egress_rule
from policy.errors import Refusal
from policy.plan import Plan

SLOT = "key:"
"""In front of a variable's name: the slot of its phantom."""

METHODS = ("GET", "HEAD", "POST")
"""Of an API, where nothing else is said."""

BUDGETS = ("tokens", "requests", "upload")
"""Limits of what keys that stay outside are used for."""

BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Where machines have their authorities in one file (OpenSSL's directory of single ones would be read late, and is out
of reach by then)."""

TRUST = (
    *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "CARGO_HTTP_CAINFO", "NODE_EXTRA_CA_CERTS"),
    *("npm_config_cafile", "GIT_SSL_CAINFO"),
)
"""Variables by which clients are told of authorities: a file with all of them; node has its own besides."""

SOURCES = ("env", "file", "cmd", "keyring")

_VARIABLE, _HEADER, _FORMAT = r"[A-Za-z_][A-Za-z0-9_]*", r"[A-Za-z][A-Za-z0-9-]*", r"([!-~]+ )?\{key\}"
_FRAMING = frozenset(
    ("host", "content-length", "transfer-encoding", "connection", "te", "trailer", "upgrade", "expect")
)
_EXAMPLE = "VARIABLE=https://HOST[:PORT][/PATH], for instance API_TOKEN=https://api.example.com,base=API_URL"


class Key(NamedTuple):
    """One key, as `Plan.keys` holds it.

    Attributes:
        variable: holds the phantom in the jail.
        source: where the key is outside: ``env:NAME``, ``file:PATH``, ``cmd:LINE`` or ``keyring:SERVICE/USER``.
        url: of the vendor's API.
        header: in which the API wants the key, in lower case.
        format: of that header's value; ``{key}`` stands for the key.
        rules: egress rules with methods and paths: what the phantom is good for.
        prefix, suffix: what a phantom begins and ends with, where clients look at it.
        environment: further variables of the jail, with slots.
        arguments: of the provider's programme, with slots.
        unknown_to: sub-commands that do not know the arguments.
        flags: of the provider's programme, in whose values the caller may say that he uses the key in his own way.
        authority: path of certificates by which its host is known besides the machine's, or these as PEM; "" without.
        covers: entries of `Plan.domains` and `Plan.reach` that are not needed with it.
        ambient: there is no phantom: at the API's own host, where TLS ends at the proxy, each request that the rules
            cover gets the key.
        origin: who asked for it.
    """

    variable: str
    source: str
    url: str
    header: str
    format: str
    rules: tuple[str, ...]
    prefix: str = ""
    suffix: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    arguments: tuple[str, ...] = ()
    unknown_to: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    authority: str = ""
    covers: tuple[tuple[str, str], ...] = ()
    ambient: bool = False
    origin: str = ""

    @property
    def in_clear(self) -> str:
        """Where the key goes without TLS, beyond this machine; "" where it does not."""
        found = api(self.url)
        return "" if found.tls or found.origin.is_local else found.origin.where

    @property
    def slot(self) -> str:
        """The slot that the phantom is bound to."""
        return SLOT + self.variable


class Api(NamedTuple):
    """Where a URL leads: host and port, whether by TLS, and the path without its last slash."""

    origin: Request
    tls: bool
    path: str


def api(url: str) -> Api:
    """What `url` names. Raises ValueError for anything but ``http[s]://HOST[:PORT][/PATH]``."""
    from urllib.parse import urlsplit  # a launch does without

    found, parts = endpoint(url), urlsplit(url)
    if found is None:
        raise ValueError("must begin with https:// or http:// and a host")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError("must have neither user name, nor query, nor fragment")
    return Api(found, parts.scheme == "https", parts.path.rstrip("/"))


def rules(url: str, methods: tuple[str, ...], paths: tuple[str, ...]) -> tuple[str, ...]:
    """The egress rules for methods and paths below an API's URL. Refusals: ``host-rule``; ValueError as of `api`."""
    found = api(url)
    words = f"{','.join(methods)} " if methods else ""
    return tuple(str(parse_egress_rule(f"{words}{found.origin.where}{found.path}{path or '/'}")) for path in paths)


def uses(url: str, texts: Iterable[str]) -> tuple[str, ...]:
    """The same for paths as a provider's file has them: for reading, or with ``POST `` in front for that, too."""
    found: tuple[str, ...] = ()
    for text in texts:
        method, _, path = text.rpartition(" ")
        found += rules(url, METHODS if method else METHODS[:2], (path,))
    return found


def local(url: str) -> str:
    """What an API's URL is in the jail, with slots: the proxy's own, with the same path."""
    return "http://127.0.0.1:${proxy_port}" + api(url).path


def parse_key(text: str, origin: str = "--inject") -> Key:
    """The key that ``--inject`` writes: ``VARIABLE=URL[,NAME=VALUE]...``.

    The names: ``base`` (a variable that gets the URL of the API as the jail sees it; ``VARIABLE_URL`` without),
    ``header``, ``format``, ``method`` and ``path`` (both may be repeated), ``prefix``, and ``from``, which may hold
    commas and comes last.

    Raises:
        Refusal: ``key-invalid``, with the reason.
    """
    import re  # a launch does without

    variable, _, rest = text.partition("=")
    head, _, source = rest.partition(",from=")
    url, *words = head.split(",")
    given: dict[str, list[str]] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name not in ("base", "header", "format", "method", "path", "prefix"):
            raise _refused(text, f"{word!r} is none of base=, header=, format=, method=, path=, prefix= and from=")
        given.setdefault(name, []).append(value)
    if repeated := next((name for name in given if len(given[name]) > 1 and name not in ("method", "path")), ""):
        raise _refused(text, f"{repeated}= is given twice")

    def one(name: str, default: str) -> str:
        return given.get(name, [default])[0]

    base, header = one("base", f"{variable}_URL"), one("header", "authorization").lower()
    shape = one("format", "Bearer {key}" if header == "authorization" else "{key}")
    source = source or f"env:{variable}"
    if not rest:
        raise _refused(text, "there is no URL of an API")
    for name in (variable, base):
        if not re.fullmatch(_VARIABLE, name):
            raise _refused(text, f"{name!r} is not a variable name")
    kind, _, where = source.partition(":")
    if kind not in SOURCES or not where or "\0" in where:
        raise _refused(text, f"from={source} is none of env:NAME, file:PATH, cmd:LINE and keyring:SERVICE/USER")
    if not re.fullmatch(_HEADER, header) or header in _FRAMING:
        raise _refused(text, f"header={header} is not the name of a header that can hold a key")
    if "{key}" not in shape:
        raise _refused(text, f"format={shape} lacks {{key}}, which stands for the key")
    if not re.fullmatch(_FORMAT, shape):
        raise _refused(text, f"format={shape} is not {{key}} with at most one word and a space in front")
    if path := next((path for path in given.get("path", ()) if not path.startswith("/")), ""):
        raise _refused(text, f"path={path} does not begin with a slash")
    if not re.fullmatch(r"[A-Za-z0-9_-]*", one("prefix", "")):
        raise _refused(text, "prefix has letters, digits, _ and - only")
    try:
        methods = tuple(given.get("method", METHODS))
        found = rules(url, () if methods == ("*",) else methods, tuple(given.get("path", [""])))
        environment = ((base, local(url)),)
    except (ValueError, Refusal) as error:
        raise _refused(text, error.message if isinstance(error, Refusal) else f"{url!r} {error}") from None
    return Key(variable, source, url, header, shape, found, one("prefix", ""), environment=environment, origin=origin)


def _refused(text: str, reason: str) -> Refusal:
    return Refusal("key-invalid", f"{text[:80]!r} is not a key that can be put in: {reason}", hint=_EXAMPLE)


def unheld(provider: str, budget: str) -> Refusal:
    """The Refusal for a budget of what works without a phantom: an agent, or ("") another command."""
    need = "export the agent's API key (without --keys pass), or --logins phantom"
    return Refusal(
        "budget-unheld",
        f"the budget of {budget} cannot be held: {provider or 'this'} has neither key nor login that stays outside",
        context="requests are counted where a phantom is replaced; a login, or a key that passes, is not seen",
        hint=(need if provider else "give it a key by --inject, or name the agent that it is: --provider NAME")
        + f"; or lift the budget: --budget {budget}=none",
    )


def made(rows: Iterable[tuple[object, ...]]) -> tuple[Key, ...]:
    """Keys from their fields."""
    return tuple(Key(*row) for row in rows)  # type: ignore[arg-type]  # as a Plan and a Translation have them


def of(plan: Plan) -> tuple[Key, ...]:
    """All keys of a plan."""
    return made(plan.keys)


def active(plan: Plan, arguments: tuple[str, ...], given: dict[str, str]) -> tuple[Key, ...]:
    """The keys of a launch: those that the caller's own words do not use in another way.

    Args:
        plan: with keys.
        arguments: the caller's, for the command. A variable's name counts in the value of a flag that configures the
            agent, and nowhere else: a prompt may be somebody else's text.
        given: variables that the caller gave a value.
    """
    found: list[Key] = []
    for key in of(plan):
        names = {key.variable, *(name for name, _ in key.environment)}
        if not key.origin.startswith("provider ") or (names.isdisjoint(given) and not _named(key, arguments)):
            found.append(key)
    return tuple(found)


def _named(key: Key, arguments: tuple[str, ...]) -> bool:
    words = arguments[: arguments.index("--")] if "--" in arguments else arguments
    values = [words[at] for at in range(1, len(words)) if words[at - 1] in key.flags]
    values += [word for word in words if word.startswith(tuple(f"{flag}=" for flag in key.flags))]
    return any(key.variable in value for value in values)


def passes(variable: str, why: str) -> str:
    """The warning about a key that an agent gets as it is."""
    return f"the agent gets the key in {variable} itself, no phantom: {why}"


def without_covered(plan: Plan, keys: tuple[Key, ...]) -> Plan:
    """The plan without the ways to a vendor that its key's phantom replaces."""
    covered = {entry for key in keys for entry in key.covers}
    return plan.replace(
        domains=tuple(entry for entry in plan.domains if entry not in covered),
        reach=tuple(entry for entry in plan.reach if entry not in covered),
    )


def told(plan: Plan, keys: tuple[Key, ...], slots: dict[str, str]) -> Plan:
    """The bound plan, with the phantoms and the API's URLs in its environment and arguments."""
    environment = dict(plan.env_set)
    more = list(plan.arguments_unless)

    def bound(text: str) -> str:
        return text.replace("${proxy_port}", slots["proxy_port"])

    for key in (key for key in keys if not key.ambient):
        environment |= {name: bound(value) for name, value in key.environment}
        environment[key.variable] = slots[key.slot]
        if key.arguments:
            more.append((tuple(map(bound, key.arguments)), key.unknown_to))
    return plan.replace(env_set=tuple(environment.items()), arguments_unless=tuple(more))
