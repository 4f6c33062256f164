"""Logins that stay outside: phantoms of their tokens, what a refresh makes of the user's file, what the agent hears.

The decision, on documents that were read already. A phantom is told by what it ends with: a code over the secret of the
private home, so no table of those that were given is needed, and one stays good when the token it stands for changes.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from policy.egress_rules import Request
from policy.keys import api
from policy.logins import Document, Login, at, claims, copied, dumped, entries, may_replace, parsed, put

_TEMPLATE = re.compile(r"\{([^{}]+)\}")
_CODE = 43
"""Characters of a code: 32 bytes in the letters of base64url, without padding."""

LARGEST_ENTRY = 256 << 10
"""Bytes of a login, and of what an agent says to have it refreshed."""

WANTED, GIVEN, REFUSED = b"w", b"g", b"r"
"""Frames between the proxy and the process that has the tokens: JSON of [number, token that the vendor refused or ""];
the login's entry; why there is none."""

MARGIN = 600.0
"""Seconds before its end at which a token is refreshed: more than the agents' own five minutes, so that they do not ask
again and again for one that is fresh here and stale there."""


_SHORTEST, _UNTOLD = 60, 3600
"""Seconds that a token lasts at least, and where its vendor says nothing of use."""


class Phantom(NamedTuple):
    """How the tokens in one file of a provider's stay outside; paths are dotted, below the file's entry.

    Attributes:
        refresh_url: where a refresh is asked for (RFC 6749 section 6), in JSON.
        request: (name, value) of its body, besides the refresh token; ``{PATH}`` stands for a value of the entry.
        access, refresh: paths of the two tokens.
        tokens: (path, what it begins with, its name in the answer) of these, and of further ones.
        times: (path, name) of times in milliseconds, which the answer gives in seconds from now.
        stamp: path of the time of the last refresh (RFC 3339); "" for none.
        plain: paths of what passes as it is.
        answer: (name, value) of what an answer holds besides, as in `request`.
        apis: (URL, egress rules) of what a phantom is good for.
        trust: variables that name a file of authorities for the provider's programme.
    """

    refresh_url: str
    request: tuple[tuple[str, str], ...]
    access: str
    refresh: str
    tokens: tuple[tuple[str, str, str], ...]
    times: tuple[tuple[str, str], ...] = ()
    stamp: str = ""
    plain: tuple[str, ...] = ()
    answer: tuple[tuple[str, str], ...] = ()
    apis: tuple[tuple[str, tuple[str, ...]], ...] = ()
    trust: tuple[str, ...] = ()

    @property
    def origins(self) -> tuple[Request, ...]:
        """Hosts and ports where TLS ends."""
        return tuple(api(url).origin for url in (self.refresh_url, *(url for url, _ in self.apis)))


def phantom(login: Login) -> Phantom | None:
    """How its tokens stay outside; None where they do not."""
    return Phantom(*login.phantom) if login.phantom else None  # type: ignore[arg-type]  # as a Plan has them


def of(logins: Iterable[tuple[Any, ...]]) -> tuple[Login, ...]:
    """Those of a plan's whose tokens stay outside."""
    return tuple(login for login in (Login(*fields) for fields in logins) if login.phantom)


def origins(login: Login) -> tuple[Request, ...]:
    """Hosts and ports where TLS ends, for a login that stays outside."""
    how = phantom(login)
    return how.origins if how is not None else ()


def trust(login: Login) -> tuple[str, ...]:
    """The variables by which its programme is told of authorities."""
    how = phantom(login)
    return how.trust if how is not None else ()


class Mint:
    """Makes the phantoms of one private home, and knows them again."""

    def __init__(self, secret: bytes) -> None:
        """`secret`: the home's, at least 32 bytes."""
        self._secret = secret

    def phantom(self, token: str, path: str, prefix: str) -> str:
        """What stands for `token`, in its length and with its prefix; of a JWT, all but the signature is the same."""
        if _is_signed(token):
            content = token.rpartition(".")[0]
            return f"{content}.{self._code(path, content)}"
        start = prefix if token.startswith(prefix) else ""
        filling = hashlib.shake_256(self._secret + path.encode()).hexdigest(len(token))
        return start + filling[: max(0, len(token) - len(start) - _CODE)] + self._code(path, "")

    def knows(self, shown: str, path: str) -> bool:
        """Whether `shown` is a phantom of the token at `path`, in a time that reveals nothing about it."""
        content = shown.rpartition(".")[0] if _is_signed(shown) else ""
        code = self._code(path, content)
        return hmac.compare_digest(shown[-_CODE:].encode("utf-8", "replace"), code.encode())

    def _code(self, path: str, content: str) -> str:
        digest = hmac.digest(self._secret, f"{path}\0{content}".encode(), "sha256")
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _is_signed(token: str) -> bool:
    """Whether it is a JWT whose signature makes it one (RFC 7515; RFC 7519 section 6 knows others)."""
    return claims(token) is not None and token[-1:] != "."


def entry_of(document: Document, login: Login) -> Document | None:
    """The one object of a document that holds the login."""
    found = next((there for there, _ in entries(document, {}, login)), None)
    return found if found is not None and isinstance(_value(found, login, "access"), str) else None


def _value(entry: Document, login: Login, which: str) -> object:
    return at(entry, getattr(phantom(login), which))


def disguised(host: Document, inside: Document | None, login: Login, mint: Mint) -> Document | None:
    """The copy for the jail, with phantoms for tokens, and nothing that is not named; None where there is no login."""
    entry, how = entry_of(host, login), phantom(login)
    if entry is None or how is None:
        return None
    made: Document = {}
    for path in filter(None, (*how.plain, *(path for path, _ in how.times), how.stamp)):
        value = at(entry, path)
        if value is None or isinstance(value, str | bool | int | float | list):
            put(made, path, value)
    for path, prefix, _ in how.tokens:
        token = at(entry, path)
        if isinstance(token, str):
            put(made, path, mint.phantom(token, path, prefix))
    if not login.entry:
        return made
    result = copied(host, inside, login)
    put(result, login.entry, made)
    return result


def copied_in(host: bytes, inside: bytes | None, login: Login, mint: Mint) -> bytes:
    """The same of bytes. Raises ValueError, with the reason."""
    there, here = parsed(host), parsed(inside) if inside is not None else None
    made = disguised(there, here, login, mint) if there is not None else None
    if made is None:
        raise ValueError("it does not hold, as a JSON object, a login that can stay outside")
    return dumped(made)


def request(entry: Document, login: Login) -> Document | None:
    """The body that asks for new tokens; None where there is no token for it."""
    how = phantom(login)
    token = at(entry, how.refresh) if how is not None else None
    if how is None or not isinstance(token, str) or not token:
        return None
    body = {name: _filled(value, entry) for name, value in how.request}
    return {"grant_type": "refresh_token", "refresh_token": token} | {name: text for name, text in body.items() if text}


def is_answer(answer: Document, login: Login) -> bool:
    """Whether it is what a refresh is answered with: tokens in the letters of tokens."""
    how = phantom(login)
    if how is None:
        return False
    given = {path: answer[name] for path, _, name in how.tokens if answer.get(name) is not None}
    return how.access in given and all(may_replace("", token) for token in given.values())


def renewed(document: Document, answer: Document, login: Login, now: float) -> Document | None:
    """The user's document with the tokens of an answer, which `is_answer`; None where it holds no login.

    Args:
        document: the user's; changed in place.
        answer: the vendor's.
        login: what is refreshed in it.
        now: seconds since the epoch.
    """
    entry, how = entry_of(document, login), phantom(login)
    if entry is None or how is None:
        return None
    for path, _, name in how.tokens:
        if answer.get(name) is not None and isinstance(at(entry, path), str):
            put(entry, path, answer[name])
    for number, (path, name) in enumerate(how.times):
        seconds = answer.get(name)
        if isinstance(seconds, int | float) and not isinstance(seconds, bool) and _SHORTEST <= seconds < 1 << 31:
            put(entry, path, int((now + seconds) * 1000))
        elif not number:
            put(entry, path, int((now + _UNTOLD) * 1000))
    if how.stamp:
        put(entry, how.stamp, stamp(now))
    return document


def stamp(now: float) -> str:
    """A time as files hold it (RFC 3339, UTC)."""
    import time

    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))


def expiry(entry: Document, login: Login) -> float:
    """When the access token ends, in seconds since the epoch; infinity where nothing says."""
    how = phantom(login)
    if how is None:
        return 0.0
    if how.times:
        found, scale = at(entry, how.times[0][0]), 1000.0
    else:
        found, scale = (claims(at(entry, how.access)) or {}).get("exp"), 1.0
    return found / scale if isinstance(found, int | float) and not isinstance(found, bool) else float("inf")


def answer(entry: Document, login: Login, mint: Mint, now: float) -> Document:
    """What the agent hears when it asks for new tokens: the phantoms of those that there are."""
    how = phantom(login)
    assert how is not None
    made: Document = {name: _filled(value, entry) for name, value in how.answer}
    for path, prefix, name in how.tokens:
        token = at(entry, path)
        if isinstance(token, str):
            made[name] = mint.phantom(token, path, prefix)
    for path, name in how.times:
        end = at(entry, path)
        if isinstance(end, int | float) and not isinstance(end, bool):
            made[name] = max(0, int(end / 1000 - now))
    return made


def _filled(text: str, entry: Document) -> str:
    def value(match: re.Match[str]) -> str:
        found = at(entry, match[1])
        parts = found if isinstance(found, list) else [found]
        return " ".join(part for part in parts if isinstance(part, str))

    return _TEMPLATE.sub(value, text)
