"""From a name to the addresses that may be dialled: resolved once, checked, and dialled as they were checked.

A name is resolved only when the rules allow it, so a name that is not allowed cannot carry anything away in its labels.
Nobody resolves it a second time, so an answer that changes in between changes nothing.
"""

import _thread
import errno
import ipaddress
import socket
from collections.abc import Callable
from typing import TypeVar

from launcher.loop import Loop, Signal, Timeout, running
from policy.egress import LOCALHOST, EgressPolicy, Request, Verdict
from policy.hosts import Address

# Calls that block, such as getaddrinfo(3), in threads of their own, a bounded number at a time.


T = TypeVar("T")


class _Job:
    """A call, and what became of it."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call
        self.over = Signal()
        self.wanted = True
        self.error: BaseException | None = None


class Threads:
    """Threads that end with their call."""

    def __init__(self, most: int) -> None:
        """`most`: calls at the same time; further ones wait for their turn."""
        self._most = most
        self._busy = 0
        self._waiting: list[_Job] = []

    async def run(self, function: Callable[[], T]) -> T:
        """What `function` returns or raises. Who stops waiting leaves the thread to its end, and hears no more of it.

        Raises:
            OSError: also when there can be no further thread.
        """
        values: list[T] = []
        job = _Job(lambda: values.append(function()))
        self._waiting.append(job)
        self._start(running())
        try:
            await job.over
        finally:
            job.wanted = False
        if job.error is not None:
            raise job.error
        return values[0]

    def _start(self, loop: Loop) -> None:
        while self._waiting and self._busy < self._most:
            job = self._waiting.pop(0)
            if not job.wanted:
                continue
            try:
                _thread.start_new_thread(self._work, (job, loop))
                self._busy += 1
            except RuntimeError:  # whatever pthread_create(3) has said
                job.error = OSError(errno.EAGAIN, "there can be no further thread")
                job.over.set()

    def _work(self, job: _Job, loop: Loop) -> None:
        try:
            job.call()
        except BaseException as error:
            job.error = error
        loop.post(lambda: self._ended(job, loop))

    def _ended(self, job: _Job, loop: Loop) -> None:
        self._busy -= 1
        job.over.set()
        self._start(loop)


_AT_ONCE = 16
"""Names that are being resolved at the same time."""

_NO_WAY = frozenset(
    (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
) | {errno.EACCES, errno.EINVAL}
"""Of a connect(2) that says that there is no way to the address, so that dialling it fails, too."""

_LOOPBACK: tuple[Address, ...] = (ipaddress.IPv4Address("127.0.0.1"), ipaddress.IPv6Address("::1"))


class Unresolved(OSError):
    """The name leads nowhere; the text says why."""


class Resolver:
    """Asks the machine's own resolver (getaddrinfo(3)), in threads of its own."""

    def __init__(self, patience: float) -> None:
        """`patience`: seconds for one name."""
        self._patience = patience
        self._threads = Threads(_AT_ONCE)

    async def addresses(self, host: str | Address, port: int) -> list[Address]:
        """The addresses of `host`, in the resolver's order (RFC 6724). Raises `Unresolved`."""
        if not isinstance(host, str):
            return [host]
        if host == LOCALHOST:
            return list(_LOOPBACK)
        try:
            found = await self.look_up(host, port)
        except TimeoutError:
            raise Unresolved(f"{host} was not resolved within {self._patience:.0f} seconds") from None
        except (OSError, UnicodeError) as error:
            raise Unresolved(f"{host} cannot be resolved: {getattr(error, 'strerror', None) or error}") from None
        return list(dict.fromkeys(found))

    async def look_up(self, host: str, port: int) -> list[Address]:
        """What the machine says of any name, not judged. Raises OSError (`TimeoutError` is one) and UnicodeError."""
        with Timeout(self._patience):
            return await self._threads.run(lambda: _look_up(host, port))


def _look_up(host: str, port: int) -> list[Address]:
    answers = socket.getaddrinfo(host, port, socket.AF_UNSPEC, socket.SOCK_STREAM)
    return [ipaddress.ip_address(str(answer[4][0]).partition("%")[0]) for answer in answers]


def allowed(policy: EgressPolicy, wanted: Request, found: list[Address]) -> tuple[list[Address], Verdict]:
    """Those of `found` that may be dialled, and the verdict: the first refusal when there is none of them."""
    good: list[Address] = []
    refused: Verdict | None = None
    for address in found:
        verdict = policy.judge_address(wanted, address, own=is_own(address, wanted.port))
        if verdict.allowed:
            good.append(address)
        else:
            refused = refused or verdict
    if good or refused is None:
        return good, Verdict(True, "", "")
    return [], refused


def is_own(address: Address, port: int) -> bool:
    """Whether `address` is this machine's: whoever connects to it from here does so from the same address.

    Nothing is sent: connecting a datagram socket only looks up the route (udp(7)).
    """
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), port))
            return ipaddress.ip_address(probe.getsockname()[0].partition("%")[0]) == address
    except OSError as error:
        return error.errno not in _NO_WAY  # without a descriptor, for instance, nobody knows
