"""What of a login may pass between the user's files and a worktree's private home: the decision, on bytes already read.

The agent writes its own copy, so nothing of that is believed. Into the user's file go single tokens that the provider's
file names, into the user's own document, and only where everything that tells the account is the same on both sides.
JSON after RFC 8259, read more strictly: UTF-8, no name twice, an object at the top. Tokens after RFC 7519 are looked
into, not verified: what counts is that both name the same subject.
"""

import base64
import binascii
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

MOST_DOTS = 1024
"""In a line of TOML: tomllib needs time that grows with the square of a key's parts."""

LARGEST_TOKEN = 16 << 10
"""Characters; the longest tokens seen have three thousand."""

_MISSING = object()

Document = dict[str, Any]


class Login(NamedTuple):
    """One file of a provider's, as a Plan carries it; see `policy.providers.model` for what the fields mean.

    Attributes:
        host: canonical directory and name of the user's own file; "" where there is none to be copied.
        inside: path below the private home; one that ends in a slash is a directory that has to be there, and no more.
        text: it is no JSON, and only ever copied in.
        entry: dotted path of the object that holds one login; "" is the whole document, "*" each object in it.
        refreshed: dotted paths below an entry, of what a refresh replaces.
        newer: that of them which grows with each refresh.
        account: dotted paths below an entry, of what tells the account.
        proofs: (dotted path of a JWT below an entry, claims that tell the account).
        only: dotted paths of what is copied in; empty means all.
        put: (dotted path, value) of what the copy is given besides.
        drop: the same, of what it is rid of.
        toml: the document is TOML, of which parts are copied in.
        brought: dotted paths of those among `only` that hold the user's MCP servers.
        withheld: dotted paths of what an earlier session may have brought: what the user's file holds there goes.
        kept_out: dotted paths below an entry: a copy that holds one of the user's tokens there goes; nothing is copied.
            "" is the whole text.
        phantom: fields of a `policy.phantoms.Phantom`: the copy holds phantoms of its tokens; () where it holds them.
    """

    host: str
    inside: str
    text: bool = False
    entry: str = ""
    refreshed: tuple[str, ...] = ()
    newer: str = ""
    account: tuple[str, ...] = ()
    proofs: tuple[tuple[str, tuple[str, ...]], ...] = ()
    only: tuple[str, ...] = ()
    put: tuple[tuple[str, object], ...] = ()
    drop: tuple[tuple[str, str | bool | int], ...] = ()
    toml: bool = False
    brought: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()
    kept_out: tuple[str, ...] = ()
    phantom: tuple[object, ...] = ()

    @property
    def only_withholds(self) -> bool:
        """Whether nothing is copied in: what an earlier session has brought is taken away, and no more."""
        return bool(self.withheld) and not (self.only or self.put or self.drop)


def parsed(data: bytes) -> Document | None:
    """The object that `data` holds, or None where it is anything else."""
    try:
        found = json.loads(
            data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refused, parse_float=_finite
        )
    except (ValueError, RecursionError):  # of bytes, syntax, our own hooks, or depth
        return None
    return found if isinstance(found, dict) else None


def parsed_toml(data: bytes) -> Document | None:
    """The table that `data` holds, with dates as strings; None where it is not TOML."""
    import tomllib  # few agents have such a file

    try:
        text = data.decode("utf-8")
        if max(line.count(".") for line in text.split("\n")) > MOST_DOTS:
            return None
        found: Document = json.loads(json.dumps(tomllib.loads(text), default=str))
    except (ValueError, RecursionError, OverflowError):
        return None
    return found


def dumped_toml(document: Document) -> bytes:
    """A table of `parsed_toml` as TOML (v1.0.0)."""
    return "\n".join(_tables(document, "")).encode() + b"\n"


def _tables(table: Document, name: str) -> Iterator[str]:
    inner = {key: value for key, value in table.items() if isinstance(value, dict)}
    if name and len(inner) < max(len(table), 1):
        yield f"[{name}]"
    yield from (f"{_value(key)} = {_value(table[key])}" for key in table if key not in inner)
    for key, value in inner.items():
        yield from _tables(value, f"{name}.{_value(key)}" if name else _value(key))


def _value(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_value(key)} = {_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, float):
        return repr(value)  # inf and nan, too
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def dumped(document: Document, like: bytes = b"\n") -> bytes:
    """The document as JSON, in lines if `like` is."""
    indent = 2 if b"\n" in like.strip() or like == b"\n" else None
    try:
        data = json.dumps(document, indent=indent, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can write and UTF-8 cannot
        data = json.dumps(document, indent=indent, allow_nan=False).encode("ascii")
    return data + (b"\n" if like.endswith(b"\n") else b"")


def copied(host: Document | None, inside: Document | None, login: Login) -> Document:
    """The copy for the jail: the user's file or the chosen parts of it, over what the agent keeps there itself.

    Args:
        host: the user's document; None where there is none.
        inside: the agent's, None where there is none that can be read.
        login: which parts.
    """
    if host is not None and not (login.only or login.withheld):
        result = _copy(host)
    else:
        result = _copy(inside or {})
        for path in login.only if host is not None else ():
            value = at(host or {}, path)
            if value is _MISSING:
                _remove(result, path)
            else:
                put(result, path, value)
    for path in login.withheld:
        ours, theirs = at(result, path), at(host or {}, path)
        if isinstance(ours, dict) and isinstance(theirs, dict):
            for name in [name for name in ours if name in theirs and ours[name] == theirs[name]]:
                del ours[name]
        if ours in ({}, theirs) and ours is not _MISSING:
            _remove(result, path)
    for path, value in login.put:
        put(result, path, value)
    for path, value in login.drop:
        if at(result, path) == value:
            _remove(result, path)
    return result


def wanted(host: bytes | None, inside: bytes | None, login: Login) -> bytes | None:
    """What the copy for the jail is to hold: see `copied`. None for nothing.

    Args:
        host: the user's file; None where there is none.
        inside: the agent's, None where there is none that can be read.
        login: which parts.
    """
    if host is not None and (login.text or not (login.only or login.put or login.drop or login.withheld)):
        return host
    parse = parsed_toml if login.toml else parsed
    ours = parse(inside) if inside is not None else None
    result = copied(parse(host) if host is not None else None, ours, login)
    if inside is not None and result == ours:
        return inside
    return dumped_toml(result) if login.toml else dumped(result)


def same_account(host: Document, inside: Document, login: Login) -> bool:
    """Whether everything that identifies the account is the same in every login of the user's document."""
    for there, here in entries(host, inside, login):
        if here is None:
            return False
        if any(at(there, path) != at(here, path) for path in login.account):
            return False
        for path, names in login.proofs:
            theirs = claims(at(there, path))
            if theirs is None:
                continue  # opaque: the rest has to tell
            ours = claims(at(here, path))
            if ours is None or any(theirs.get(name) != ours.get(name) for name in names):
                return False
    return True


def refreshed(host: Document, inside: Document, login: Login) -> Document | None:
    """The user's document with the tokens of the agent's newer one; None where none is newer, or whole.

    Neither adds nor removes anything. Each value has the type that it had, and a token's letters.

    Args:
        host: the user's.
        inside: the agent's; `same_account` says whether it may be used at all.
        login: what a refresh replaces.
    """
    result = _copy(host)
    changed = False
    for there, here in entries(result, inside, login):
        if here is None or not _grown(at(there, login.newer), at(here, login.newer)):
            continue
        values = {path: (at(there, path), at(here, path)) for path in login.refreshed}
        present = {path: pair for path, pair in values.items() if pair[0] is not _MISSING}
        if all(may_replace(old, new) for old, new in present.values()):
            for path, (_, new) in present.items():
                put(there, path, new)
            changed = True
    return result if changed else None


def holds(inside: bytes, host: bytes, login: Login) -> bool:
    """Whether the agent's copy still holds a token of the user's."""
    if login.text:
        return inside == host
    there, here = parsed(host), parsed(inside)
    if there is None or here is None:
        return False
    return any(
        isinstance(token := at(ours, path), str) and token != "" and token == at(theirs, path)
        for ours, theirs in entries(there, here, login)
        if theirs is not None
        for path in login.kept_out
    )


def _unique(pairs: list[tuple[str, Any]]) -> Document:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is listed twice")
    return found


def _refused(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if abs(number) == float("inf"):
        raise ValueError(f"{digits} is too large")
    return number


def _copy(document: Document) -> Document:
    copy: Document = json.loads(json.dumps(document))
    return copy


def entries(host: Document, inside: Document, login: Login) -> Iterator[tuple[Document, Document | None]]:
    """Each login of the user's document, with the agent's counterpart."""
    if login.entry == "*":
        pairs = [(value, inside.get(name)) for name, value in host.items()]
    else:
        pairs = [(at(host, login.entry), at(inside, login.entry))]
    for there, here in pairs:
        if isinstance(there, dict):
            yield there, here if isinstance(here, dict) else None


def at(document: Document, path: str) -> Any:  # noqa: ANN401  # JSON
    """What lies at a dotted path; something that equals no value of JSON where nothing does."""
    found: Any = document
    for name in path.split(".") if path else ():
        found = found.get(name, _MISSING) if isinstance(found, dict) else _MISSING
    return found


def put(document: Document, path: str, value: object) -> None:
    """Puts a value at a dotted path, with the objects on the way."""
    *above, last = path.split(".")
    for name in above:
        below = document.get(name)
        if not isinstance(below, dict):
            below = document[name] = {}
        document = below
    document[last] = value


def _remove(document: Document, path: str) -> None:
    *above, last = path.split(".")
    parent = at(document, ".".join(above))
    if isinstance(parent, dict):
        parent.pop(last, None)


def _number(value: object) -> bool:
    """Whether it is a number that every reader of JSON takes for the same (RFC 8259, section 6)."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1 << 53


def _grown(old: object, new: object) -> bool:
    """Whether a time or counter has gone up. Times in words (RFC 3339, in UTC) go up with their letters."""
    if isinstance(old, str) and isinstance(new, str):
        return old < new
    return _number(old) and _number(new) and old < new  # type: ignore[operator]  # both are numbers


def may_replace(old: object, new: object) -> bool:
    """Whether a refresh may give a value's place to another one: of the same type, and a token in a token's letters."""
    if _number(old):
        return _number(new)
    if not isinstance(old, str) or not isinstance(new, str):
        return old == new
    return 0 < len(new) <= LARGEST_TOKEN and all("!" <= letter <= "~" for letter in new)


def claims(token: object) -> Document | None:
    """The claims of a JWT (RFC 7519), unverified; None for anything else."""
    parts = token.split(".") if isinstance(token, str) else []
    if len(parts) != 3 or len(parts[1]) > LARGEST_TOKEN:
        return None
    try:
        payload = base64.b64decode(parts[1] + "=" * (-len(parts[1]) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    return parsed(payload)
