"""Hosts by name, for clients that know of no proxy: a resolver in the jail, and addresses that lead to this process.

The jail's network namespace takes every address of two networks for benchmarks for its own (`policy.egress_rules`), so
a connection to one of them ends at a socket of this process there. The resolver gives each allowed name an address of
them and keeps it for the session, because clients remember answers as long as they like. Which name a connection means
is told by the address that it was made to; whether it may is decided then, with the port, as for every other request.

RFC 1035 (messages), RFC 6761 (localhost), RFC 7766 (TCP). A name that no rule allows is never asked for outside, so it
carries nothing away.
"""

import collections
import ipaddress
import socket
import struct
from collections.abc import Callable
from typing import NamedTuple

from launcher.egress.gateway import Gateway
from launcher.egress.log import Log
from launcher.loop import Signal, Timeout, receive, running, send_all
from policy.egress_rules import DNS_PORT, FAKE_V4, FAKE_V6, LOCALHOST, EgressPolicy, Verdict
from policy.hosts import Address, parse_host

_MOST_NAMES = 1 << 16
"""Allowed names of one session: under a wildcard there are as many as somebody asks for."""
_MOST_TOLD = 1_000
"""Refused names that the log names; further ones are counted."""
_MOST_ASKED, _OF_ONE_RULE = 256, 64
"""Questions that wait for the outside at the same time, and those that the same rule allows; others are answered
SERVFAIL.
"""
_IN_ONE_GO = 32
"""Datagrams that are read before others have a turn."""
_LONGEST = 512
"""Bytes of a question: a name has at most 255, and the rest is short."""
_IDLE = 10.0
"""Seconds that a TCP client may take for a question."""
_TTL = 60
_UNUSED = 5.0
"""Seconds after which a name is logged as refused that got an address and no connection: to a port without a listener,
say.
"""

_A, _AAAA, _PTR, _ANY, _IN = 1, 28, 12, 255, 1
_NOERROR, _FORMERR, _SERVFAIL, _NXDOMAIN, _NOTIMP = 0, 1, 2, 3, 4
_HEAD = struct.Struct(">HHHHHH")
_QUERY_BITS = 0xF800  # QR and opcode: a plain question has neither


class Question(NamedTuple):
    """One question: its id, flags, name as sent, type and class, and its bytes, which the answer repeats."""

    number: int
    flags: int
    name: str
    kind: int
    group: int
    raw: bytes


class Malformed(ValueError):
    """No DNS message with one question; `answer` is what to send back, b"" for nothing."""

    def __init__(self, answer: bytes = b"") -> None:
        super().__init__("not a question")
        self.answer = answer


def question(data: bytes) -> Question:
    """The one question of a message. Raises `Malformed`."""
    if len(data) < _HEAD.size:
        raise Malformed
    number, flags, questions, answers, authorities, _ = _HEAD.unpack_from(data)
    if flags & 0x8000:
        raise Malformed  # an answer: replying to those makes loops
    wrong = Malformed(_HEAD.pack(number, 0x8080 | _FORMERR, 0, 0, 0, 0))
    if flags & _QUERY_BITS:
        raise Malformed(_HEAD.pack(number, 0x8080 | flags & _QUERY_BITS | _NOTIMP, 0, 0, 0, 0))
    if questions != 1 or answers or authorities:
        raise wrong
    labels, at = [], _HEAD.size
    while True:
        if at >= len(data) or data[at] > 63 or at - _HEAD.size > 255:
            raise wrong
        size = data[at]
        label, at = data[at + 1 : at + 1 + size], at + 1 + size
        if not size:
            break
        labels.append(label.decode("latin-1"))
    if len(data) < at + 4 or any("." in label for label in labels):
        raise wrong
    kind, group = struct.unpack_from(">HH", data, at)
    return Question(number, flags, ".".join(labels), kind, group, data[_HEAD.size : at + 4])


def answer(asked: Question, code: int, address: Address | None = None) -> bytes:
    """The answer: with `code`, and with one address where there is one."""
    head = _HEAD.pack(asked.number, 0x8080 | asked.flags & 0x0100 | code, 1, int(address is not None), 0, 0)
    record = b""
    if address is not None:
        # The name is the question's: a pointer to byte 12 (RFC 1035 section 4.1.4).
        record = struct.pack(">HHHIH", 0xC00C, asked.kind, _IN, _TTL, len(address.packed)) + address.packed
    return head + asked.raw + record


class Names:
    """The addresses that names have in one session."""

    def __init__(self, policy: EgressPolicy) -> None:
        """`policy`: those that its grants name themselves are given to no name. A larger range does not mean them."""
        self._v4, self._v6 = ipaddress.IPv4Network(FAKE_V4), ipaddress.IPv6Network(FAKE_V6)
        networks = [rule.host.network for rule in policy.allow if rule.host.network is not None]
        self._taken = [
            each for each in networks for own in (self._v4, self._v6)
            if each.network_address in own and each.prefixlen >= own.prefixlen
        ]  # fmt: skip
        self._next = 0
        self._number: dict[str, int] = {}
        self._name: dict[int, str] = {}

    def address(self, name: str, version: int) -> Address | None:
        """The address of a name, the same for the whole session; None when there are too many names."""
        if name not in self._number:
            if len(self._number) >= _MOST_NAMES:
                return None
            self._next += 1
            while any(self._at(self._next, version) in taken for taken in self._taken for version in (4, 6)):
                self._next += 1
                if self._next >= self._v4.num_addresses - 1:
                    return None
            self._number[name] = self._next
            self._name[self._next] = name
        return self._at(self._number[name], version)

    def name(self, address: Address) -> str:
        """Which name has an address; "" for none."""
        network = self._v4 if address.version == 4 else self._v6
        return self._name.get(int(address) - int(network.network_address), "") if address in network else ""

    def _at(self, number: int, version: int) -> Address:
        return self._v4[number] if version == 4 else self._v6[number]


class Resolver:
    """Answers the jail's questions: allowed names with an address, all others with NXDOMAIN, and a line in the log."""

    def __init__(self, gateway: Gateway, policy: EgressPolicy, names: Names, log: Log, *, ipv6: bool) -> None:
        """`ipv6`: the jail has it, so names have such addresses, too."""
        self._gateway = gateway
        self._policy = policy
        self._names = names
        self._log = log
        self._ipv6 = ipv6
        self._told: set[str] = set()
        self._asked: collections.Counter[str] = collections.Counter()

    async def datagrams(self, sock: socket.socket) -> None:
        """Serves a UDP socket, for ever."""
        while True:
            ready = Signal()
            running().add_reader(sock.fileno(), ready.set)
            try:
                await ready
            finally:
                running().remove_reader(sock.fileno())
            for _ in range(_IN_ONE_GO):
                try:
                    data, sender = sock.recvfrom(_LONGEST + 1)
                except OSError:
                    break  # nothing more, or the report of an answer that nobody took

                def reply(content: bytes, sender: tuple[str, int] = sender) -> None:
                    try:
                        sock.sendto(content, sender)
                    except OSError:
                        return  # it does not listen any more

                self._take(data, reply, sender[1])

    async def connection(self, client: socket.socket) -> None:
        """Serves one TCP client; owns it."""
        replies: list[bytes] = []
        with client:
            buffer = b""
            try:
                while True:
                    with Timeout(_IDLE):
                        while len(buffer) < 2 or len(buffer) < 2 + int.from_bytes(buffer[:2], "big"):
                            block = await receive(client, 4096)
                            if not block:
                                return
                            buffer += block
                    size = int.from_bytes(buffer[:2], "big")
                    data, buffer = buffer[2 : 2 + size], buffer[2 + size :]
                    over = Signal()

                    def reply(content: bytes, over: Signal = over) -> None:
                        replies.append(content)
                        over.set()

                    if size > _LONGEST or not self._take(data, reply, client.getpeername()[1]):
                        return
                    await over
                    content = replies.pop()
                    await send_all(client, len(content).to_bytes(2, "big") + content)
            except (OSError, TimeoutError):
                return  # it has left

    def _take(self, data: bytes, reply: Callable[[bytes], None], port: int) -> bool:
        """Answers one message, at once or when the outside has; whether there is or will be an answer.

        Args:
            data: the message.
            reply: sends the answer.
            port: of the client.
        """
        try:
            if len(data) > _LONGEST:
                raise Malformed
            asked = question(data)
        except Malformed as problem:
            if problem.answer:
                reply(problem.answer)
            return bool(problem.answer)
        if asked.group not in (_IN, _ANY):
            reply(answer(asked, _NXDOMAIN))
            return True
        self._decide(asked, reply, port)
        return True

    def _decide(self, asked: Question, reply: Callable[[bytes], None], port: int) -> None:
        name = asked.name.lower().removesuffix(".")
        if name == LOCALHOST or name.endswith("." + LOCALHOST):
            loopback = {_A: ipaddress.ip_address("127.0.0.1"), _AAAA: ipaddress.ip_address("::1")}
            reply(answer(asked, _NOERROR, loopback.get(asked.kind)))
            return
        if name.endswith(".arpa"):
            reply(answer(asked, _NXDOMAIN))  # which name an address has: nobody's business, and no denial
            return
        # A service's own labels (_https._tcp.NAME) are no host; their records are never there.
        host = name
        while host.startswith("_"):
            host = host.partition(".")[2]
        try:
            parsed = parse_host(host)
        except ValueError:
            parsed = None
        verdict = self._policy.names(parsed) if isinstance(parsed, str) else Verdict(False, "", "it is not a host name")
        if isinstance(parsed, str) and host == name and not verdict.allowed and self._is_asked_about(parsed):
            # Asked about is a connection, whose port says what for. Nothing of it is looked up before a yes.
            running().call_later(_UNUSED, lambda: self._refuse_unused(host, verdict, port))
            self._point(asked, parsed, reply)
        elif not verdict.allowed or not isinstance(parsed, str):
            self._refuse(host, verdict, port)
            reply(answer(asked, _NXDOMAIN))
        elif host != name:
            reply(answer(asked, _NXDOMAIN))
        elif self._asked.total() >= _MOST_ASKED or self._asked[verdict.rule] >= _OF_ONE_RULE:
            reply(answer(asked, _SERVFAIL))
        else:
            self._asked[verdict.rule] += 1
            running().spawn(self._resolved(asked, parsed, verdict.rule, reply, port))

    def _is_asked_about(self, name: str) -> bool:
        """Whether a name that no rule allows has an address all the same: somebody can be asked."""
        questions = self._gateway.questions
        return questions is not None and questions.names(name)

    def _refuse_unused(self, name: str, verdict: Verdict, port: int) -> None:
        questions = self._gateway.questions
        if questions is not None and not questions.connected(name):
            self._refuse(name, verdict, port)

    async def _resolved(self, asked: Question, name: str, rule: str, reply: Callable[[bytes], None], port: int) -> None:
        """Answers for an allowed name, which has to be known outside, too."""
        try:
            known = await self._gateway.known(name, rule, port, DNS_PORT)
        finally:
            self._asked[rule] -= 1
        if not known:
            reply(answer(asked, _SERVFAIL if known is None else _NXDOMAIN))
            return
        self._point(asked, name, reply)

    def _point(self, asked: Question, name: str, reply: Callable[[bytes], None]) -> None:
        """Answers with the address that leads to this process."""
        version = {_A: 4, _AAAA: 6}.get(asked.kind)
        if version is None or (version == 6 and not self._ipv6):
            reply(answer(asked, _NOERROR))
            return
        address = self._names.address(name, version)
        reply(answer(asked, _NOERROR if address is not None else _SERVFAIL, address))

    def _refuse(self, name: str, verdict: Verdict, port: int) -> None:
        """Logs a refused name once: clients ask for two kinds of addresses, and again."""
        if name in self._told:
            return
        if len(self._told) >= _MOST_TOLD:
            self._log.count()
            return
        self._told.add(name)
        self._gateway.refused_name(name, verdict, port, DNS_PORT)
