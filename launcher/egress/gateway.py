"""From a request to a connection: rules, names, addresses, and the dialling. The one place that dials."""

import errno
import ipaddress
import os
import socket
import time
from typing import NamedTuple

from launcher.egress.log import NOBODY, Log, Witness
from launcher.egress.outside import Lookups, Upstream, Upstreams, is_own
from launcher.egress.questions import Questions
from launcher.ledger.denial import UNRESOLVED, Process
from launcher.loop import Timeout, receive, send_all, writable
from policy.egress_rules import LOCALHOST, EgressPolicy, Request, Verdict
from policy.hosts import Address

_LOOPBACK: tuple[Address, ...] = (ipaddress.IPv4Address("127.0.0.1"), ipaddress.IPv6Address("::1"))

_STAGGER = 0.25
"""Seconds before the next address is tried as well (RFC 8305 section 5)."""

_HTTPS_PORT = 443
_ANSWER_BYTES = 65536


class Bounds(NamedTuple):
    """The limits of one session's proxy. A jail that exceeds them harms its own network only.

    Attributes:
        connections: clients at the same time; more are answered 503.
        head_bytes: of a request's head, and of a TLS client's first message.
        head_seconds: until a request's head must be complete.
        resolve_seconds: until a name must be resolved.
        answer_seconds: for which a name's addresses are used again. They are judged for each connection.
        failure_seconds: for which a name is not asked for again that could not be resolved.
        dial_seconds: until a connection to the destination must stand.
        idle_seconds: without a byte in either direction, after which a connection is closed. Model servers may
            think for minutes before their first word.
        log_bytes: of the log; decisions beyond it are counted only.
    """

    connections: int = 2048
    head_bytes: int = 65536
    head_seconds: float = 30.0
    resolve_seconds: float = 20.0
    answer_seconds: float = 30.0
    failure_seconds: float = 3.0
    dial_seconds: float = 30.0
    idle_seconds: float = 3600.0
    log_bytes: int = 16 << 20


class Denied(Exception):
    """The rules say no; `verdict` has the reason and what would allow it."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.reason)
        self.verdict = verdict


class Failed(Exception):
    """The rules say yes, and the destination cannot be reached; `refused` when it said no itself."""

    def __init__(self, text: str, *, refused: bool = False) -> None:
        super().__init__(text)
        self.refused = refused


class Unreachable(OSError):
    """None of the addresses answered; `refused` when one of them said no."""

    def __init__(self, text: str, *, refused: bool) -> None:
        super().__init__(text)
        self.refused = refused


def connect_request(upstream: Upstream, wanted: Request) -> bytes:
    """The request to `upstream` for a tunnel (RFC 9110 section 9.3.6)."""
    head = f"CONNECT {wanted.where} HTTP/1.1\r\nHost: {wanted.where}\r\n".encode()
    if upstream.authorization:
        head += b"Proxy-Authorization: " + upstream.authorization + b"\r\n"
    return head + b"\r\n"


def connect_answer(data: bytes) -> tuple[int, bytes] | None:
    """The answer's (status, bytes behind its head); None when the head is not complete."""
    head, end, behind = data.partition(b"\r\n\r\n")
    if not end:
        if len(data) > _ANSWER_BYTES:
            raise ValueError("its answer is too long")
        return None
    words = head.partition(b"\r\n")[0].split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise ValueError("its answer is not HTTP")
    return int(words[1]), behind


async def dial(addresses: list[Address], port: int, patience: float) -> socket.socket:
    """A connection to the first of `addresses` that answers (RFC 8305): non-blocking, owned by the caller.

    Args:
        addresses: checked ones; both families take turns.
        port: of all of them.
        patience: seconds for all of it.

    Raises:
        Unreachable: with the reason of the first.
    """
    waiting = _interleaved(addresses)
    trying: list[socket.socket] = []
    errors: list[OSError] = []
    deadline = time.monotonic() + patience
    try:
        while waiting or trying:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                errors.insert(0, TimeoutError(f"no answer within {patience:.0f} seconds"))
                break
            if waiting:
                try:
                    trying.append(_connecting(waiting.pop(0), port))
                except OSError as error:
                    errors.append(error)
                    continue
            for sock in await writable(trying, min(remaining, _STAGGER) if waiting else remaining):
                trying.remove(sock)
                if code := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    sock.close()
                    errors.append(OSError(code, os.strerror(code)))
                else:
                    return sock
    finally:
        for sock in trying:
            sock.close()
    first = errors[0] if errors else OSError("no address")
    refused = any(isinstance(error, ConnectionRefusedError) for error in errors)
    raise Unreachable(first.strerror or str(first), refused=refused)


def _interleaved(addresses: list[Address]) -> list[Address]:
    first = [address for address in addresses if address.version == addresses[0].version]
    second = [address for address in addresses if address.version != addresses[0].version]
    mixed: list[Address] = []
    while first or second:
        mixed += first[:1] + second[:1]
        first, second = first[1:], second[1:]
    return mixed


def _connecting(address: Address, port: int) -> socket.socket:
    """A socket that connects, or is connected already; `writable` waits for it."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        begin_connecting(sock, (str(address), port))
    except OSError:
        sock.close()
        raise
    return sock


def begin_connecting(sock: socket.socket, address: tuple[str, int]) -> None:
    """Begins to connect a non-blocking socket to a numeric address. Raises OSError (connect(2))."""
    code = sock.connect_ex(address)
    if code not in (0, errno.EINPROGRESS, errno.EINTR):
        raise OSError(code, os.strerror(code))


class Gateway:
    """The way out, for one session.

    A name is resolved only when the rules allow it, so a name that is not allowed cannot carry anything away in its
    labels. The addresses that are dialled are those that were checked, so an answer that changes in between changes
    nothing.
    """

    def __init__(
        self, policy: EgressPolicy, upstreams: Upstreams, log: Log, bounds: Bounds, witness: Witness | None = None
    ) -> None:
        """`witness`: names the process that was refused something."""
        self.bounds = bounds
        self._witness = witness
        self._policy = policy
        self._upstreams = upstreams
        self._log = log
        self._lookups = Lookups(bounds.resolve_seconds, bounds.answer_seconds, bounds.failure_seconds)
        self.questions: Questions | None = None
        """Who is asked about what the rules do not name; None where nobody is."""

    def with_policy(self, policy: EgressPolicy) -> "Gateway":
        """The same way out by other rules."""
        return Gateway(policy, self._upstreams, self._log, self.bounds, self._witness)

    async def open(
        self, wanted: Request, operation: str, client: socket.socket
    ) -> tuple[socket.socket, Upstream | None]:
        """A connection for `wanted`, owned by the caller; with it the proxy that expects an absolute URL, if any.

        Args:
            wanted: what is asked for.
            operation: for the log.
            client: who asks, for the log.

        Raises:
            Denied: the rules say no; the log has it.
            Failed: the destination cannot be reached.
        """
        verdict = self._policy.decide(wanted)
        if not verdict.allowed and self.questions is not None:
            verdict = await self.questions.judge(wanted, verdict, client)
        if not verdict.allowed:
            raise self.denied(wanted, operation, verdict, client)
        through = self._upstreams.choose(wanted)
        try:
            addresses = await self._addresses(wanted, verdict.rule)
        except Failed as error:
            if through is None:
                self._log.decision(operation, str(wanted.host), wanted.port, verdict)
                self._unresolved(str(wanted.host), verdict.rule, error, self._asker(client))
                raise
            addresses = []  # behind a proxy names of the outside are often unknown
        judged = [
            (address, self._policy.judge_address(wanted, address, own=is_own(address, wanted.port)))
            for address in addresses
        ]
        good = [address for address, judgement in judged if judgement.allowed]
        if judged and not good:
            raise self.denied(wanted, operation, judged[0][1], client)
        self._log.decision(operation, str(wanted.host), wanted.port, verdict)
        try:
            if through is None:
                return await dial(good, wanted.port, self.bounds.dial_seconds), None
            return await self._through(through, wanted), through if wanted.method else None
        except Unreachable as error:
            self._lookups.forget(str(wanted.host))
            raise Failed(f"{wanted.where} cannot be reached: {error}", refused=error.refused) from None

    async def known(self, name: str, rule: str, theirs: int, ours: int) -> bool | None:
        """Whether a name that a rule allows leads anywhere; None when nobody can tell now. The log has what does not.

        Behind a proxy of the machine's own, names of the outside are often unknown here: then every name does.

        Args:
            name: that is asked for.
            rule: which allows it.
            theirs, ours: ports of the question, for the log.
        """
        if self._upstreams.choose(Request(name, _HTTPS_PORT)) is not None:
            return True
        try:
            await self._addresses(Request(name, _HTTPS_PORT), rule)
        except Failed as error:
            process = self._witness.at(theirs, ours) if self._witness is not None else NOBODY
            self._unresolved(name, rule, error, process)
            unknown = isinstance(error.__context__, socket.gaierror) and error.__context__.errno != socket.EAI_AGAIN
            return False if unknown else None
        return True

    def denied(
        self, wanted: Request | None, operation: str, verdict: Verdict, client: socket.socket, text: str = ""
    ) -> Denied:
        """Logs a refusal and returns it, before the client hears of it: many end then.

        Args:
            wanted: what was asked for; None when that is not known.
            operation: for the log.
            verdict: why.
            client: who asked.
            text: the host as sent, where it is none.
        """
        host, port = (str(wanted.host), wanted.port) if wanted is not None else (text, 0)
        self._log.decision(operation, host, port, verdict, self._asker(client))
        return Denied(verdict)

    def _asker(self, client: socket.socket) -> Process:
        return self._witness.of(client) if self._witness is not None else NOBODY

    def _unresolved(self, name: str, rule: str, error: Failed, process: Process) -> None:
        """Logs that an allowed name leads nowhere: to a client without words, that looks as if it were refused."""
        hint = f"{name} is allowed, but its name does not resolve: check its spelling and the machine's resolver"
        self._log.decision(UNRESOLVED, name, 0, Verdict(False, rule, str(error), hint), process)

    def refused_name(self, name: str, verdict: Verdict, theirs: int, ours: int) -> None:
        """Logs that a name was not resolved, before the client hears of it; the ports are those of the question."""
        process = self._witness.at(theirs, ours) if self._witness is not None else NOBODY
        self._log.decision("lookup", name, 0, verdict, process)

    async def _addresses(self, wanted: Request, rule: str) -> list[Address]:
        host = wanted.host
        if not isinstance(host, str):
            return [host]
        if host == LOCALHOST:
            return list(_LOOPBACK)
        try:
            return list(dict.fromkeys(await self._lookups.addresses(host, wanted.port, rule)))
        except TimeoutError:
            raise Failed(f"{host} was not resolved within {self.bounds.resolve_seconds:.0f} seconds") from None
        except (OSError, UnicodeError) as error:
            raise Failed(f"{host} cannot be resolved: {getattr(error, 'strerror', None) or error}") from None

    async def _through(self, through: Upstream, wanted: Request) -> socket.socket:
        """A connection to the upstream proxy, with a tunnel in it when a tunnel is wanted."""
        try:
            addresses = await self._lookups.addresses(through.host, through.port, "")
        except (OSError, UnicodeError) as error:
            raise Failed(f"the proxy {through.host} in your environment cannot be resolved: {error}") from None
        sock = await dial(addresses, through.port, self.bounds.dial_seconds)
        if wanted.method:
            return sock
        try:
            with Timeout(self.bounds.dial_seconds):
                await send_all(sock, connect_request(through, wanted))
                data = b""
                # One byte too many would be the destination's, so the head is read byte by byte.
                while (answer := connect_answer(data)) is None:
                    block = await receive(sock, 1)
                    if not block:
                        raise ValueError("it closed the connection")
                    data += block
            if not 200 <= answer[0] < 300:
                raise ValueError(f"it answered {answer[0]}")
        except (OSError, ValueError) as error:
            sock.close()
            raise Failed(f"the proxy {through.host} in your environment opens no tunnel: {error}") from None
        except BaseException:
            sock.close()
            raise
        return sock
