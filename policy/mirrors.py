"""Mirrors of package registries that the user's own settings name: found outside, and told to the same tools inside.

Told by variables, or by files of their own, without credentials: the user's files hold tokens as well. Nothing of this
happens for an ecosystem whose bundle (``@python`` ...) is not allowed. No file counts that an agent could have written.
What cannot be had in the jail is told all the same: without it, a tool would ask the public registry, where anybody may
have a package of a private one's name. Pure.
"""

import base64
import configparser
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from policy import egress_rules, hosts, tables
from policy.config.values import loopback
from policy.egress_rules import Request
from policy.errors import Refusal
from policy.keys import Key, rules
from policy.launch import Host
from policy.pasted import quoted
from policy.plan import beneath

FILE = f"{os.path.dirname(__file__)}/mirrors.toml"

_MOST = 2048
"""Characters of one address, and twice as many of one setting."""
_BETWEEN = re.compile(r"\s*([,|])\s*|\s+")
_ADDRESS = re.compile(r"(?P<lead>(?:[A-Za-z0-9_.-]+=)?(?:sparse\+)?)(?P<url>[a-z][a-z0-9+.-]*://\S*)")
_URL = re.compile(r"https?://[A-Za-z0-9._~:/\[\]@!+=%-]+")  # nothing that a file or a shell could read as more
_WORD = re.compile(r"[A-Za-z0-9._~:/*+=-]+")
_LOCAL = re.compile(r"[\w.~:/\[\]@!+=%-]+")
_NOWHERE = f"https://{hosts.PASSED_OVER}/"
"""In the place of what cannot be told."""
_OFF = frozenset(("0", "n", "no", "f", "false", "off"))
_HEAD = "# Written by Paddock from your own settings\n"
_LOGIN = re.compile(r"(?<=://)[^/?#\s]*@")
_FURTHER = re.compile(r"^\s*(-c|-r|--constraint|--requirement)", re.MULTILINE)
_EXPANDED = re.compile(r"\$\{([^}]+)\}")
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----\n[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----")
_CREDENTIALS = (":_authtoken", ":_auth", ":_password", ":username", ":certfile")


class Mirrors(NamedTuple):
    """What was found.

    Attributes:
        domains: (egress rule, source) of their hosts.
        internal: those of these rules that may lead to addresses of private networks.
        reach: (loopback ADDRESS:PORT, source) of those on this machine.
        environment: variables for the jail.
        files: (path below the private home, content) of files for the tools there.
        authorities: (variable, path or PEM) of the certificates that a tool is to trust instead of the machine's.
        keys: their credentials, which stay outside.
        warnings: what the user should know.
    """

    domains: tuple[tuple[str, str], ...]
    internal: tuple[str, ...]
    reach: tuple[tuple[str, str], ...]
    environment: tuple[tuple[str, str], ...]
    files: tuple[tuple[str, str], ...]
    authorities: tuple[tuple[str, str], ...]
    keys: tuple[Key, ...]
    warnings: tuple[str, ...]


@cache
def table() -> list[dict[str, Any]]:
    """The known tools."""
    content = tables.shipped(FILE)
    if content["schema"] != 1:
        raise ValueError(f"{FILE} has an unknown version")
    tools: list[dict[str, Any]] = content["tool"]
    return tools


def find(
    host: Host,
    bundles: Iterable[str],
    *,
    trees: Iterable[str],
    taken: Callable[[str], bool],
    granted: Iterable[str] = (),
) -> Mirrors:
    """The mirrors that the user's environment and files name for the ecosystems of `bundles`.

    Args:
        host: answers; all of them become inputs of the Plan.
        bundles: names, without the mark.
        trees: canonical; what lies in them, or is reached through a link in them, may be an agent's word.
        taken: whether the user passes or sets a variable himself, who then is the one to say it.
        granted: canonical; what lies in them can be read in the jail.
    """
    search = _Search(host, tuple(trees), taken, tuple(granted))
    wanted = frozenset(bundles)
    for tool in table():
        if tool["bundle"] in wanted:
            search.tool(tool)
    domains = search.domains
    return Mirrors(
        tuple(domains.items()),
        tuple(rule for rule in domains if rule in search.internal),
        tuple(search.reach.items()),
        tuple(search.environment.items()),
        tuple(search.files.items()),
        tuple(search.authorities.items()),
        tuple(search.keys.values()),
        tuple(search.warnings),
    )


class _Entry(NamedTuple):
    """What a file says: the value, where it was found for people, and for `header`."""

    value: str
    where: str
    place: tuple[str, str, str]


class _Found(NamedTuple):
    """A setting: what was found, in a file its key and what the pattern's star stands for in it."""

    entry: _Entry
    key: str
    part: str


class _Search:
    def __init__(
        self, host: Host, trees: tuple[str, ...], taken: Callable[[str], bool], granted: tuple[str, ...]
    ) -> None:
        self.host, self.trees, self.taken, self.granted = host, trees, taken, granted
        self.domains: dict[str, str] = {}
        self.internal: set[str] = set()
        self.reach: dict[str, str] = {}
        self.environment: dict[str, str] = {}
        self.files: dict[str, str] = {}
        self.authorities: dict[str, str] = {}
        self.authority = ""
        self.keys: dict[tuple[str, str, str], Key] = {}
        self.warnings: dict[str, None] = {}

    def tool(self, tool: Mapping[str, Any]) -> None:
        """One tool's settings: variables first, as all of these tools have it."""
        entries: dict[str, _Entry] = {}
        unknown = False
        for path in self._files(tool):
            shown = _shown(path, self.host.home)
            known = self._read(path, shown, tool)
            unknown = unknown or known is None
            for key, value in (known or {}).items():
                entries[key] = _Entry(value, f"{key} in {shown}", (tool["format"], path, key))
        if unknown and not any(map(self.taken, tool["closed"]["names"])):
            self.environment |= tool["closed"].get("environment", {})
            if "file" in tool["closed"]:
                self._write(tool, [tool["closed"]["file"]])
            return
        self.authority = self._authority(tool, entries)
        tokens = [entries[key] for key in entries if key.startswith("//") and key.lower().endswith(_CREDENTIALS)]
        lines: dict[str, str] = {}
        for setting in tool["settings"]:
            variables = setting.get("variables", ())
            for name, found in self._found(setting, entries).items():
                carried = self._carried(found.entry, tool["bundle"], tokens, setting.get("kind", ""))
                carried = carried.replace(" ", setting.get("between", " "))
                needed = [each.format(value=carried) for each in setting.get("of", ())]
                if not carried or (needed and lines.keys().isdisjoint(needed)):
                    continue
                if found.key and "inside" in tool:
                    words = {"key": found.key, "part": found.part, "value": carried, "number": len(lines)}
                    lines[found.key] = tool["line"].format(**words)
                elif not any(map(self.taken, (name, *variables))):
                    self.environment[name] = carried
        if lines:
            self._write(tool, lines.values())

    def _write(self, tool: Mapping[str, Any], lines: Iterable[str]) -> None:
        """The tool's file in the private home, and the variables with which it is read."""
        parts = (tool["head"], *lines, tool.get("tail", ""))
        self.environment |= {name: value for name, value in tool.get("set", {}).items() if not self.taken(name)}
        self.files[tool["inside"]] = "".join(f"{part}\n" for part in parts if part)

    def _authority(self, tool: Mapping[str, Any], entries: Mapping[str, _Entry]) -> str:
        """Whom a tool trusts instead of the machine's authorities, as `Key.authority` has it."""
        setting = tool.get("authority", {"keys": ()})
        for name, found in self._found(setting, entries).items():
            where = "\n".join(_PEM.findall(found.entry.value)) or found.entry.value.strip()
            if not where.startswith("-----"):
                where = where.replace("${HOME}", self.host.home)
                where = self.host.home.rstrip("/") + where[1:] if where.startswith("~/") else where
                place, why = self._own(where) if where.startswith("/") else (None, "its path is not absolute")
                if why:
                    self._warn(f"{egress_rules.MARK}{tool['bundle']}: {found.entry.where} is passed over: {why}")
                if place is None:
                    continue
            if not any(map(self.taken, setting["variables"])):
                self.authorities[name] = where
            return where
        return ""

    def _found(self, setting: Mapping[str, Any], entries: Mapping[str, _Entry]) -> dict[str, _Found]:
        """What was found, by the variable that could tell it (by its key where there is none)."""
        variables = setting.get("variables", ())
        found: dict[str, _Found] = {}
        for pattern in setting["keys"]:
            for key in entries:
                part = _part(pattern, key, setting.get("part", "[A-Za-z0-9_-]+"))
                if part is not None:
                    name = part.upper().replace("-", "_") if setting.get("upper") else part
                    own = variables[0].replace("*", name) if variables else key
                    found.setdefault(own, _Found(entries[key], key, part))
        for pattern in reversed(variables):
            for name, value in self.host.locations(pattern):
                if value:
                    own = name if "*" in pattern else variables[0]
                    found[own] = _Found(_Entry(value, f"{name} in your environment", ("", "", name)), "", "")
        return found

    def _files(self, tool: Mapping[str, Any]) -> Iterator[str]:
        if any(self.host.env(name) == value for name, value in tool.get("none", {}).items()):
            return
        for entry in tool["files"]:
            for choice in entry.split("|"):
                path = self._placed(choice)
                if path is not None:
                    yield path
                    break

    def _placed(self, choice: str) -> str | None:
        """The path that an entry of the table means; None when the variable in it is not set, or names no place."""
        home = self.host.home.rstrip("/")
        if choice.startswith("$"):
            name, slash, rest = choice[1:].partition("/")
            value = self.host.env(name) or ""
            value = home + value[1:] if value.startswith("~/") else value
            return f"{value.rstrip('/')}{slash}{rest}" if value.startswith("/") else None
        configured = self.host.env("XDG_CONFIG_HOME") or ""
        if choice.startswith("~/.config/") and configured.startswith("/"):
            return f"{configured.rstrip('/')}/{choice[10:]}"
        return home + choice[1:] if choice.startswith("~") else choice

    def _own(self, path: str) -> tuple[str | None, str]:
        """Where a file is that is the user's own word; else None, and why not: "" where it is not there."""
        trail = self.host.trail(path)
        if trail.canonical in (None, "/dev/null"):
            return None, ""
        places = (path, trail.canonical, *(link for link, _ in trail.links))
        if any(beneath(place, tree) for place in places for tree in self.trees):
            return None, "commands in jails can write there"
        if self.host.others_can_write(trail.canonical):
            return None, "other users can write it"
        return trail.canonical, ""

    def _content(self, path: str) -> tuple[bytes | None, str]:
        """What such a file holds; else None, and why not."""
        place, why = self._own(path)
        if place is None:
            return None, why
        content = self.host.read(place)
        return content, "it is too large, or it cannot be read" if content is None else ""

    def _read(self, path: str, shown: str, tool: Mapping[str, Any]) -> dict[str, str] | None:
        """What a file says, by key; None where it is passed over, and the tool does not find it in the jail itself."""
        content, why = self._content(path)
        if content is not None:
            try:
                return FORMATS[tool["format"]](content.decode("utf-8"))
            except (ValueError, SyntaxError, configparser.Error):
                why = f"it is not a file of {tool['format']}"
        if not why:
            return {}
        source = f"{egress_rules.MARK}{tool['bundle']}: {shown}"
        if path == self._placed(tool.get("found", "")) and any(beneath(path, place) for place in self.granted):
            self._warn(f"{source} is passed over: {why}; the tool may find it there itself")
            return {}
        self._unreached(_NOWHERE, source, why)
        return None

    def _carried(self, entry: _Entry, bundle: str, tokens: Iterable[_Entry], kind: str) -> str:
        """The setting as the jail gets it, without credentials; "" when there is nothing in it to be told."""
        text, source = entry.value, f"{egress_rules.MARK}{bundle}: {entry.where}"
        if kind == "switch":
            return "false" if text.strip().lower() in _OFF else "true"  # which npm takes for what they say
        if len(text) > 2 * _MOST:
            return self._unreached(_NOWHERE, source, "it is too long")
        kept: list[str] = []
        for piece in _BETWEEN.split(text.strip()):
            if piece in (",", "|"):
                kept.append(piece)
            elif piece is None:
                kept.append(" ")
            elif kind == "words" and "://" not in piece and _WORD.fullmatch(piece):
                kept.append(piece)
            elif piece and (path := self._local(piece)):
                kept.append(self._file(piece, path, source, comes_along=kind == "contents"))
            elif kind in ("paths", "contents") and "://" not in piece and _WORD.fullmatch(piece):
                kept.append(piece)  # from the command's directory, as outside
            elif piece:
                kept.append(self._word(piece, entry, source, bundle, tokens))
        joined = "".join(kept).strip(" ,|")
        return re.sub(r"([ ,|])[ ,|]+", r"\1", joined)

    def _local(self, word: str) -> str:
        """The absolute path that a word names, as it is or by a URL; "" where it does not."""
        found = _ADDRESS.fullmatch(word)
        if found is None:
            return self.host.home.rstrip("/") + word[1:] if word.startswith("~/") else word if word[0] == "/" else ""
        host, slash, path = found["url"].removeprefix("file://").partition("/")
        return unquote(slash + path) if found["url"].startswith("file://") and host in ("", "localhost") else ""

    def _file(self, word: str, path: str, source: str, *, comes_along: bool) -> str:
        """What names a file or directory as the jail gets it. `comes_along`: its content, where that can be read."""
        content = self._content(path)[0] if comes_along else None
        with suppress(UnicodeDecodeError):
            text = _LOGIN.sub("", content.decode()) if content is not None else "\0"
            if "\0" not in text and not _FURTHER.search(text):  # what it names in turn would not be there
                name = f".paddock-settings-{len(self.files)}.txt"
                self.files[name] = _HEAD + text
                return f"${{home}}/{name}"
        if not _LOCAL.fullmatch(word) or not path.isprintable():
            return self._unreached(_NOWHERE, source, "its path has characters that cannot be told")
        canonical = self.host.resolve(path) or path
        if not any(beneath(canonical, place) for place in self.granted):
            self._warn(f"{source} reaches the tool as it is: --ro {quoted(path)}, unless something else grants it")
        return path if word[0] == "~" else word

    def _unreached(self, told: str, source: str, why: str) -> str:
        """Says that what is told is not reached."""
        what = (
            "is passed over" if told.endswith(_NOWHERE) else "reaches the tool as it is, and nothing is allowed for it"
        )
        self._warn(f"{source} {what}: {why}; the public registry does not take its place")
        return told

    def _word(self, word: str, entry: _Entry, source: str, bundle: str, tokens: Iterable[_Entry]) -> str:
        """One address without its credentials; where it cannot be told, one that leads nowhere."""
        found = _ADDRESS.fullmatch(word)
        try:
            parts = urlsplit(found["url"] if found else "")
            bare = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
            plain = urlsplit(bare)._replace(query="", fragment="").geturl() if found else word
        except ValueError:
            bare = plain = ""
        wanted = (
            egress_rules.endpoint(bare) if _URL.fullmatch(bare) and "@" not in bare and len(bare) <= _MOST else None
        )
        if found is None or wanted is None:
            told = plain if _WORD.fullmatch(plain) and len(plain) <= _MOST else _NOWHERE
            lead = found["lead"] if found else ""
            return self._unreached(lead + told, source, "only plain http and https addresses are")
        literal = None if isinstance(wanted.host, str) else wanted.host
        if wanted.is_local:
            self.reach.setdefault(loopback(wanted.where), source)
        elif literal is not None and hosts.special(literal) and not hosts.is_private(literal):
            return self._unreached(found["lead"] + bare, source, f"{literal} is {hosts.special(literal)}")
        else:
            self.domains.setdefault(wanted.where, source)
            if literal is None and wanted.where not in egress_rules.require(bundle).rules:
                self.internal.add(wanted.where)
        login, at, _ = parts.netloc.rpartition("@")
        needed = [(entry, "/")] if at else []
        needed += [(each, _path_of(each.place[2])) for each in tokens if _belongs(each.place[2], bare)]
        for each, path in needed:
            known = login or each.place[0] != "maven"
            if not known or not self._held(each, wanted, path, parts.scheme, bundle):
                self._warn(
                    f"{source}: the mirror {wanted.where} needs a credential, which does not enter the jail; "
                    "it may refuse what it does not give to everybody"
                )
        return found["lead"] + bare

    def _held(self, entry: _Entry, wanted: Request, path: str, scheme: str, bundle: str) -> bool:
        """Notes that a credential is put in outside, for reading; whether it can be."""
        if scheme != "https" or wanted.is_local or entry.place[2].lower().endswith(":certfile"):
            return False
        url = f"https://{wanted.where}"
        try:
            allowed = rules(url, ("GET", "HEAD"), (path,))
        except Refusal:
            return False
        place, origin = json.dumps(entry.place), f"{egress_rules.MARK}{bundle}: {entry.where}"
        key = Key(
            *("", f"mirror:{place}", url, "authorization", "{key}", allowed),
            authority=self.authority,
            ambient=True,
            origin=origin,
        )
        self.keys.setdefault((wanted.where, path, self.authority), key)
        return True

    def _warn(self, text: str) -> None:
        self.warnings[text] = None


def _part(pattern: str, key: str, form: str) -> str | None:
    """What `*` stands for in `key` ("" without one); None where the pattern does not mean this key."""
    head, star, tail = pattern.partition("*")
    if not star:
        return "" if key == pattern else None
    part = key[len(head) : len(key) - len(tail)]
    return part if part and key == head + part + tail and re.fullmatch(form, part) else None


def _belongs(key: str, url: str) -> bool:
    """Whether npm sends what this key holds to the registry, or to what lies below it: addresses without a scheme."""
    registry, place = (f"{text.rstrip('/')}/" for text in (url.partition(":")[2], key.rpartition(":")[0]))
    return registry.startswith(place) or place.startswith(registry)


def _path_of(key: str) -> str:
    """The path on a registry's host for which npm sends what this key holds: ``//HOST/PATH/:_authToken``."""
    return "/" + key.rpartition(":")[0].strip("/").partition("/")[2]


def header(place: Sequence[str], text: str, origin: Request, environ: Mapping[str, str]) -> str:
    """The value of the header for a mirror; "" where there is none any more.

    Args:
        place: of the credential, as a key's source has it: the file's format ("" for a variable), its path, the key.
        text: the file's content, or the variable's value.
        origin: of the mirror.
        environ: for what a file takes from there.

    Raises:
        ValueError: the file is not of its format.
    """
    entries = FORMATS[place[0]](text) if place[0] else {place[2]: text}
    name = place[2]
    if name.startswith("//"):
        values = {key: _EXPANDED.sub(lambda match: environ.get(match[1], ""), value) for key, value in entries.items()}
        about, _, kind = name.rpartition(":")
        if kind.lower() == "_authtoken":
            return f"Bearer {values[name]}" if values.get(name) else ""
        if kind.lower() == "_auth":
            return f"Basic {values[name]}" if values.get(name) else ""
        user = next((value for key, value in values.items() if key.lower() == f"{about}:username".lower()), "")
        word = next((value for key, value in values.items() if key.lower() == f"{about}:_password".lower()), "")
        return _basic(user, base64.b64decode(word).decode()) if user and word else ""
    for word in filter(None, map(str.strip, re.split(r"[\s,|]+", entries.get(name, "")))):
        found = _ADDRESS.fullmatch(word)
        parts = urlsplit(found["url"] if found else "")
        login, at, _ = parts.netloc.rpartition("@")
        bare = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        if at and egress_rules.endpoint(bare) == origin:
            user, _, password = login.partition(":")
            return _basic(unquote(user), unquote(password))
    return ""


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _shown(path: str, home: str) -> str:
    return f"~{path[len(home) :]}" if beneath(path, home) else path


def _pip(text: str) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    parser.read_string(text)
    found: dict[str, str] = {}
    for section in ("global", "install"):
        for name, value in parser.items(section) if parser.has_section(section) else ():
            found[name.replace("_", "-").removeprefix("--")] = value
    return {name: value for name, value in found.items() if value}


def _npm(text: str) -> dict[str, str]:
    parser = configparser.RawConfigParser(
        delimiters=("=",), inline_comment_prefixes=("#", ";"), strict=False, allow_no_value=True
    )
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # keys as they are
    lines = (line.strip() for line in re.split(r"[\r\n]+", text))
    parser.read_string("\n".join(["[.]", *lines]))
    pairs = ((name, value or "") for name, value in parser.items("."))
    found = {name: _unquoted(value) for name, value in pairs if value}
    if certificates := re.findall(r"^[ \t]*ca(?:\[\])?[ \t]*=(.*CERTIFICATE.*)$", text, re.MULTILINE):
        found["ca"] = "\n".join(_unquoted(each.strip()).replace("\\n", "\n") for each in certificates)
    return found


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else value


def _toml(text: str) -> dict[str, str]:
    """Strings by dotted keys; lists of them as words; of uv's indexes the addresses, with their names."""
    found: dict[str, str] = {}

    def add(key: str, value: object) -> None:
        if isinstance(value, bool):
            found[key] = str(int(value))
        elif isinstance(value, str):
            found[key] = f"{found[key]} {value}" if key in found else value
        elif isinstance(value, dict) and isinstance(value.get("url"), str) and key == "index":
            if not value.get("explicit"):
                name = f"{value['name']}=" if isinstance(value.get("name"), str) else ""
                add("index.default" if value.get("default") is True else key, name + value["url"])
        elif isinstance(value, dict):
            for name, inner in value.items():
                add(f"{key}.{name}" if key else name, inner)
        elif isinstance(value, list):
            for inner in value:
                add(key, inner)

    add("", tomllib.loads(text))
    return found


def _env(text: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
    return {name: value for name, _, value in pairs if name and value}


def _maven(text: str) -> dict[str, str]:
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise ValueError("entities could make it any size")
    from xml.etree import ElementTree

    found: dict[str, str] = {}
    tree = ElementTree.fromstring(text)
    logins: dict[str, str] = {}
    for server in tree.iterfind("{*}servers/{*}server"):
        name, user, word = (server.findtext(f"{{*}}{field}", "").strip() for field in ("id", "username", "password"))
        # What Maven alone can decrypt, or what stands for a variable, is no password yet.
        logins[name] = f"{quote(user, '')}:{quote(word, '')}@" if user and word and word[0] not in "{$" else "@"
    for mirror in tree.iterfind("{*}mirrors/{*}mirror"):
        url, of, blocked = (mirror.findtext(f"{{*}}{name}", "").strip() for name in ("url", "mirrorOf", "blocked"))
        if blocked != "true":
            login = logins.get(mirror.findtext("{*}id", "").strip(), "") if "@" not in url else ""
            found.setdefault(f"mirror.{of}", url.replace("://", f"://{login}", 1))
    return found


FORMATS: dict[str, Callable[[str], dict[str, str]]] = {
    "pip": _pip,
    "npm": _npm,
    "toml": _toml,
    "env": _env,
    "maven": _maven,
}
