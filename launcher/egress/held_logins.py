"""Logins that stay outside, in the proxy: phantoms on one side, the process that has the tokens on the other."""

import json
import socket
import time
from urllib.parse import parse_qsl

from launcher import wire
from launcher.egress.gateway import Failed
from launcher.loop import Signal, receive, running, send_all
from policy import phantoms
from policy.keys import api
from policy.logins import Document, Login, at, dumped, parsed
from policy.phantoms import Mint

_CHUNK = 65536

_SOON = 60.0
"""Seconds before its end at which a token is not used any more."""


class Unusable(Failed):
    """A login that is not good any more, or cannot be refreshed."""


class _Question:
    """What the keeper is asked, for all that want to know it."""

    def __init__(self) -> None:
        self.waiting: list[Signal] = []
        self.entry: Document | None = None
        self.why = "what keeps the login has ended"


class Tokens:
    """The process that has the tokens. It is asked one thing at a time, and nobody's leaving ends a question."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._decoder = wire.Decoder(phantoms.LARGEST_ENTRY)
        self._open: dict[tuple[int, str], _Question] = {}
        self._asks = False

    async def entry(self, number: int, refused: str) -> Document:
        """A login's entry; `refused`: the token that its vendor has refused, or "". Raises `Failed`."""
        question = self._open.setdefault((number, refused), _Question())
        signal = Signal()
        question.waiting.append(signal)
        if not self._asks:
            self._asks = True
            running().spawn(self._ask())
        await signal
        if question.entry is None:
            raise Unusable(f"the login cannot be used: {question.why}")
        return question.entry

    async def _ask(self) -> None:
        try:
            while self._open:
                asked, question = next(iter(self._open.items()))
                try:
                    await send_all(self._sock, wire.frame(phantoms.WANTED, json.dumps(asked).encode()))
                    kind, payload = await self._answer()
                    question.entry = parsed(payload) if kind == phantoms.GIVEN else None
                    question.why = (
                        payload.decode("utf-8", "replace")[:500] if kind == phantoms.REFUSED else question.why
                    )
                except (OSError, wire.Malformed):
                    pass  # it has ended
                finally:
                    del self._open[asked]
                    for signal in question.waiting:
                        signal.set()
        finally:
            self._asks = False

    async def _answer(self) -> tuple[bytes, bytes]:
        while data := await receive(self._sock, _CHUNK):
            for frame in self._decoder.feed(data):
                return frame
        return b"", b""


class Held:
    """A login that stays outside.

    Attributes:
        refresh: where the agent would have its tokens refreshed.
    """

    def __init__(self, number: int, login: Login, mint: Mint, tokens: Tokens) -> None:
        """`number`: the keeper's for it."""
        how = phantoms.phantom(login)
        assert how is not None
        self.how, self._login, self._mint, self._number, self._tokens = how, login, mint, number, tokens
        found = api(how.refresh_url)
        self.refresh = (found.origin, found.path.encode())
        self.token = ""
        self._ends = 0.0
        self._refused = ""

    def is_phantom(self, value: bytes) -> bool:
        """Whether the value of a header shows it as a bearer token (RFC 6750)."""
        scheme, _, token = value.decode("latin-1").partition(" ")
        return scheme.lower() == "bearer" and self._mint.knows(token.strip(), self.how.access)

    async def real(self) -> bytes:
        """The value in its place. Raises `Failed`."""
        if self._refused or self._ends - time.time() < _SOON:
            await self._entry()
        return b"Bearer " + self.token.encode()

    def refused(self, value: bytes) -> None:
        """The vendor has refused what `real` gave."""
        if value == b"Bearer " + self.token.encode():
            self._refused = self.token

    async def answer(self, body: bytes) -> bytes | None:
        """The answer to an agent that wants new tokens; None where it does not show its phantom. Raises `Failed`."""
        wanted = parsed(body) or dict(parse_qsl(body.decode("latin-1")))
        shown = wanted.get("refresh_token")
        if wanted.get("grant_type") != "refresh_token" or not isinstance(shown, str):
            return None
        if not self._mint.knows(shown, self.how.refresh):
            return None
        entry = await self._entry()
        return dumped(phantoms.answer(entry, self._login, self._mint, time.time()), b"{}")

    async def _entry(self) -> Document:
        entry = await self._tokens.entry(self._number, self._refused)
        token = at(entry, self.how.access)
        self.token, self._ends = str(token), phantoms.expiry(entry, self._login)
        if self.token != self._refused:
            self._refused = ""
        return entry
