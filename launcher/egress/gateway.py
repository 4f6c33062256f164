"""From a request to a connection: rules, names, addresses, and the way there. The one place that dials."""

import socket
from typing import NamedTuple

from launcher.egress import resolve, sockets, upstream
from launcher.egress.dial import Unreachable, dial
from launcher.egress.log import Log
from launcher.egress.upstream import Upstream, Upstreams
from launcher.egress.witness import NOBODY, Witness
from launcher.loop import Timeout
from policy.egress import EgressPolicy, Request, Verdict

# What one session's proxy will bear. A jail that goes beyond it harms its own network, and nothing else.


class Bounds(NamedTuple):
    """Upper bounds.

    Attributes:
        connections: clients at the same time; more are answered 503.
        head_bytes: of a request's head, and of a TLS client's first message.
        head_seconds: until a request's head must be complete.
        resolve_seconds: until a name must be resolved.
        dial_seconds: until a connection to the destination must stand.
        idle_seconds: without a byte in either direction, after which a connection is closed. Model servers may
            think for minutes before their first word.
        log_bytes: of the log; decisions beyond it are counted only.
    """

    connections: int = 2048
    head_bytes: int = 65536
    head_seconds: float = 30.0
    resolve_seconds: float = 20.0
    dial_seconds: float = 30.0
    idle_seconds: float = 3600.0
    log_bytes: int = 16 << 20


class Denied(Exception):
    """The rules say no; `verdict` has the reason and what would allow it."""

    def __init__(self, wanted: Request | None, verdict: Verdict) -> None:
        super().__init__(verdict.reason)
        self.wanted = wanted
        self.verdict = verdict


class Failed(Exception):
    """The rules say yes, and there is no way there; `refused` when the destination itself said no."""

    def __init__(self, text: str, *, refused: bool = False) -> None:
        super().__init__(text)
        self.refused = refused


class Gateway:
    """The way out, for one session."""

    def __init__(
        self, policy: EgressPolicy, upstreams: Upstreams, log: Log, bounds: Bounds, witness: Witness | None = None
    ) -> None:
        """`witness`: says who was refused something; without one nobody knows."""
        self._witness = witness
        self._policy = policy
        self._upstreams = upstreams
        self._log = log
        self._bounds = bounds
        self._resolver = resolve.Resolver(bounds.resolve_seconds)

    async def open(
        self, wanted: Request, operation: str, client: socket.socket
    ) -> tuple[socket.socket, Upstream | None]:
        """A connection for `wanted`, owned by the caller; with it the proxy that expects an absolute URL, if any.

        Args:
            wanted: what is asked for; a name that no rule allows is not even resolved.
            operation: for the log.
            client: who asks, for the log.

        Raises:
            Denied: the rules say no; the log has it.
            Failed: there is no way there.
        """
        verdict = self._policy.decide(wanted)
        if not verdict.allowed:
            raise self.denied(wanted, operation, verdict, client)
        through = self._upstreams.choose(wanted)
        try:
            found = await self._resolver.addresses(wanted.host, wanted.port)
        except resolve.Unresolved as error:
            if through is None:
                self._log.decision(operation, str(wanted.host), wanted.port, verdict)
                raise Failed(str(error)) from None
            found = []  # behind a proxy names of the outside are often unknown
        good, judged = resolve.allowed(self._policy, wanted, found)
        if not judged.allowed:
            raise self.denied(wanted, operation, judged, client)
        self._log.decision(operation, str(wanted.host), wanted.port, verdict)
        try:
            if through is None:
                return await dial(good, wanted.port, self._bounds.dial_seconds), None
            return await self._through(through, wanted), through if wanted.method else None
        except Unreachable as error:
            raise Failed(f"{wanted.where} cannot be reached: {error}", refused=error.refused) from None

    def denied(
        self, wanted: Request | None, operation: str, verdict: Verdict, client: socket.socket, text: str = ""
    ) -> Denied:
        """Logs a refusal, and returns it, before the client hears of it: many end then.

        Args:
            wanted: what was asked for; None when that is not known.
            operation: for the log.
            verdict: why.
            client: who asked.
            text: the host as sent, where it is none.
        """
        host, port = (str(wanted.host), wanted.port) if wanted is not None else (text, 0)
        asked = self._witness.of(client) if self._witness is not None else NOBODY
        self._log.decision(operation, host, port, verdict, asked)
        return Denied(wanted, verdict)

    async def _through(self, through: Upstream, wanted: Request) -> socket.socket:
        """A connection to the upstream proxy, with a tunnel in it when a tunnel is wanted."""
        try:
            addresses = await self._resolver.look_up(through.host, through.port)
        except (OSError, UnicodeError) as error:
            raise Failed(f"the proxy {through.host} of your environment cannot be resolved: {error}") from None
        sock = await dial(addresses, through.port, self._bounds.dial_seconds)
        if wanted.method:
            return sock
        try:
            with Timeout(self._bounds.dial_seconds):
                await sockets.send_all(sock, upstream.connect_request(through, wanted))
                data = b""
                # One byte too many would be the destination's, so the head is read as it comes.
                while (answer := upstream.connect_answer(data)) is None:
                    block = await sockets.receive(sock, 1)
                    if not block:
                        raise ValueError("it hung up")
                    data += block
            if not 200 <= answer[0] < 300:
                raise ValueError(f"it answered {answer[0]}")
        except (OSError, ValueError) as error:
            sock.close()
            raise Failed(f"the proxy {through.host} of your environment opens no tunnel: {error}") from None
        except BaseException:
            sock.close()
            raise
        return sock
