"""The launcher's handle on the proxy process: forked early, handed its sockets, ended with the session.

The child's imports take longer than a launch. For an agent they happen while the jail is built, else once the command
has started: connections wait in the listening socket's queue. Where the jail has a network namespace, the sockets are
made inside it and their descriptors passed out; nothing of the proxy is ever inside.

Launch path of sessions with a proxy: see launcher/jail/syscalls.py.
"""

import select
import sys
import time

from launcher import wire
from launcher.jail import hygiene, syscalls
from launcher.jail.spec import NO_SOCKETS, Sockets
from launcher.lean import os
from policy import promises
from policy.errors import Refusal
from policy.plan import Plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    import signal as _signal
    from collections.abc import Callable
    from typing import Any, NoReturn

    from policy.keys import Key
    from policy.logins import Login

    Kept = tuple[tuple[Login, ...], bytes, tuple[str, ...], Callable[[int], NoReturn] | None]
else:
    import _signal
    import _socket

USER = "paddock"
"""In the proxy's URL, before the token. Any other would do."""

PORT = 3128
"""Of the proxy in a network namespace of its own, where every port is free."""

_AF_INET, _AF_INET6, _AF_UNIX, _SOCK_STREAM = 2, 10, 1, 1
_LOOPBACK = bytes((127, 0, 0, 1))

RESOLVER = "127.0.0.53"
_DNS_PORT = 53

_HOSTS = "127.0.0.1 localhost\n127.0.1.1 {own}\n::1 localhost ip6-localhost ip6-loopback\n"

_TERMINAL_SIGNALS = (
    *(_signal.SIGINT, _signal.SIGQUIT, _signal.SIGHUP, _signal.SIGTSTP, _signal.SIGTTIN, _signal.SIGTTOU),
    _signal.SIGIO,  # see `init.BLOCKED`
)
"""They come to the caller's whole session, to which the proxy belongs while it is loaded."""

_HANDED_OVER_WITHIN = 120.0
"""Seconds: longer than a jail may take to be built."""

_QUIET = 40
"""Milliseconds in which the command starts undisturbed unless it connects: short commands never use a network."""

_POOL = 96
"""Connections from outside to published ports at the same time: each needs a socket of the jail's network namespace."""

_ENDS_WITHIN = 2.0
"""Seconds that the proxy may take to close its log."""


class Egress:
    """One session's proxy.

    Attributes:
        slots: what the Plan's environment is bound with: the proxy's address with credentials, port and token.
        addresses: (packed address, port) that the guard lets the command connect to.
        sockets: for `JailSpec.sockets`.
        certificate: pipe with that of the authority for hosts where a login's TLS ends, in PEM; -1 without one.
    """

    __slots__ = ("_directory", "_pid", "_pidfd", "addresses", "certificate", "slots", "sockets")

    def __init__(
        self,
        plan: Plan,
        directory: str,
        prepare: "Callable[[], None]",
        held: "tuple[tuple[Key, str], ...]" = (),
        kept: "Kept | None" = None,
        askers: tuple[int, ...] = (),
    ) -> None:
        """Forks the proxy. To be called once, before the jail is made, single-threaded.

        Args:
            plan: with ``net`` "proxy".
            directory: the session's, for the log.
            prepare: makes the environment's packages importable; called in the child.
            held: keys that stay outside, and their values, for the child. Each gets a phantom, in a slot of its name.
            kept: what does at hosts where TLS ends: logins of the plan, the secret of their phantoms, these hosts, and
                what serves a socket as the process that has the tokens.
            askers: sockets to who asks people about refused hosts, for the child; closed here.

        Raises:
            Refusal: proxy-unavailable, upstream-proxy.
        """
        _check_upstream()
        self._directory = directory
        secret = os.urandom(16).hex()
        granted = [destination(text) for text, _ in plan.reach]
        published: list[tuple[str, int]] = []
        own_network = promises.has_mounts(plan.backend)
        self.sockets: Sockets = NO_SOCKETS
        self.addresses: tuple[tuple[bytes, int], ...] = ()
        taken = {port for _, port in granted} | set(plan.named_ports)
        port = next(number for number in range(PORT, 65536) if number not in taken)
        try:
            if own_network:
                named = [destination(text.rpartition(":")[0]) for text, _ in plan.publish]
                for (text, _), place in zip(plan.publish, named, strict=True):
                    published += _published(text, place, named)
                ours, theirs = _socket.socketpair(_AF_UNIX, _SOCK_STREAM)
                routes = tuple(_network(text) for text in plan.routes)
                self.sockets = (ours.detach(), inside(plan, port, granted, _POOL if published else 0), routes)
                if plan.routes:  # in the place of the machine's own (`policy.derive.NAME_FILES`)
                    _written(f"{directory}/hosts", _HOSTS.format(own=os.uname().nodename))
                    _written(f"{directory}/resolv.conf", f"nameserver {RESOLVER}\n")
                inherited = (theirs.detach(),)
            else:
                inherited = (syscalls.listening_tcp(_LOOPBACK, 0),)
                port = _port_of(inherited[0])
                self.addresses = ((_LOOPBACK, port), *granted)
        except BaseException as error:
            for _, fd in published:
                os.close(fd)
            if not isinstance(error, OSError):
                raise
            raise Refusal("proxy-unavailable", f"the network proxy cannot be started: {error.strerror}") from None
        self.slots = {
            "proxy": f"{USER}:{secret}@127.0.0.1:{port}",
            "proxy_port": str(port),
            "proxy_token": secret,
        } | {key.slot: f"{key.prefix}{os.urandom(24).hex()}{key.suffix}" for key, _ in held}
        shown = tuple((key, self.slots[key.slot], value) for key, value in held)
        self.certificate, certified = os.pipe() if kept is not None else (-1, -1)
        launcher = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            wanted = self.sockets[1] or (("tcp", _LOOPBACK, port),)
            _work(plan, directory, prepare, secret, wanted, inherited, tuple(published), launcher, shown, kept,
                  certified, askers)  # fmt: skip
        self._pidfd = syscalls.pidfd_open(self._pid)
        for fd in (*inherited, *(fd for _, fd in published), *askers, *((certified,) if kept is not None else ())):
            os.close(fd)

    def close(self) -> str:
        """Ends the proxy. Returns "", or a message when it had ended before."""
        os.kill(self._pid, _signal.SIGTERM)  # not waited for yet, so the number is still the proxy's
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        expected = [0, int(_signal.SIGTERM)]
        if not poll.poll(_ENDS_WITHIN * 1000):
            os.kill(self._pid, _signal.SIGKILL)
            expected.append(int(_signal.SIGKILL))
        status = os.waitpid(self._pid, 0)[1]
        os.close(self._pidfd)
        if status in expected:
            return ""
        from launcher.egress.log import last_fault

        return f"the network proxy ended before the command: {last_fault(self._directory) or f'status {status}'}"


def _check_upstream() -> None:
    """Refuses now what the proxy process could only fail on (`launcher.egress.outside.Upstreams`)."""
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY"):
        scheme, separator, _ = (os.environ.get(name.lower()) or os.environ.get(name) or "").partition("://")
        if separator and scheme != "http":
            raise Refusal(
                "upstream-proxy",
                f"{name} in your environment names a proxy of the kind {scheme[:20]}",
                context="Paddock's own proxy can go out through HTTP proxies only",
                hint=f"name an http:// proxy there, or unset it: env -u {name} -u {name.lower()} paddock run ...",
            )


def inside(
    plan: Plan, port: int, granted: "list[tuple[bytes, int]]", pool: int
) -> "tuple[tuple[str, bytes, int], ...]":
    """The sockets of the jail's network namespace: the proxy's, the resolver's two, the ports', the pool's.

    Args:
        plan: its ports that can be reached by name; one for all addresses stands for an address that is granted, too.
        port: the proxy's.
        granted: from `Plan.reach`.
        pool: how many unconnected ones.
    """
    resolver = _socket.inet_pton(_AF_INET, RESOLVER)
    by_name = [("udp", resolver, _DNS_PORT), ("tcp", resolver, _DNS_PORT)] if plan.routes else []
    by_name += [("any", b"", each) for each in plan.named_ports]
    reach = [("tcp", packed, each) for packed, each in granted if each not in plan.named_ports]
    return (("tcp", _LOOPBACK, port), *by_name, *reach, *([("free", b"", 0)] * pool))


def _published(text: str, place: tuple[bytes, int], named: "list[tuple[bytes, int]]") -> "list[tuple[str, int]]":
    """An entry of `Plan.publish` with each of its listening sockets on the machine.

    Args:
        text: the entry.
        place: its packed address and port. Where a browser tries that address for `localhost`, nobody else may have
            the other one: what it sends to this server would be his.
        named: of all entries: what one of them names is its own.
    """
    from launcher.loopback import LOOPBACKS, listening  # most sessions publish nothing

    packed, port = place
    addresses = [_address(packed)]
    if addresses[0] in LOOPBACKS:
        taken = [_address(each) for each, at in named if at == port]
        addresses += [each for each in LOOPBACKS if each not in taken]
    try:
        return [(text, one.detach()) for one in listening(addresses, port)]
    except OSError as error:
        raise Refusal(
            "publish-taken",
            f"port {port} of this machine cannot be published: {error.strerror}",
            context=f"at {error.filename}",
            hint=f"name another one: --publish PORT:{text.rpartition(':')[2]}",
        ) from None


def _address(packed: bytes) -> str:
    return _socket.inet_ntop(_AF_INET if len(packed) == 4 else _AF_INET6, packed)


def _network(text: str) -> tuple[bytes, int]:
    address, _, length = text.partition("/")
    return _socket.inet_pton(_AF_INET6 if ":" in address else _AF_INET, address), int(length)


def _written(path: str, content: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    os.write(fd, content.encode())
    os.close(fd)


def destination(text: str) -> tuple[bytes, int]:
    """Packed address and port of an entry of `Plan.reach`, which is in canonical form."""
    host, _, port = text.rpartition(":")
    family = _AF_INET6 if host.startswith("[") else _AF_INET
    return _socket.inet_pton(family, host.strip("[]")), int(port)


def _port_of(fd: int) -> int:
    with_port = _socket.socket(fileno=fd)
    port: int = with_port.getsockname()[1]
    with_port.detach()
    return port


def _work(
    plan: Plan,
    directory: str,
    prepare: "Callable[[], None]",
    secret: str,
    wanted: "tuple[tuple[str, bytes, int], ...]",
    inherited: tuple[int, ...],
    published: "tuple[tuple[str, int], ...]",
    launcher: int,
    held: "tuple[tuple[Key, str, str], ...]",
    kept: "Kept | None",
    certified: int,
    askers: tuple[int, ...],
) -> "NoReturn":
    # Nothing may escape from here: this is a copy of the launcher, with all that it has on its stack.
    try:
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, _signal.SIGKILL)
        if os.getppid() != launcher:
            os._exit(1)
        # Away from the streams, which belong to the command, and from the terminal and its signals.
        os.chdir("/")
        null = os.open("/dev/null", os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        ports = [fd for _, fd in published]
        hygiene.close_inherited((*inherited, *ports, *askers, *((certified,) if kept is not None else ())))
        for number in _TERMINAL_SIGNALS:
            _signal.signal(number, _signal.SIG_IGN)
        logins = None
        if kept is not None:
            _load(prepare)
            from launcher.egress import secured

            logins = secured.keeping(*kept, certified)
        if plan.provider:
            # Agents connect while they start and use every processor; now the launcher uses one. And before setsid: a
            # session of its own gives a process the weight of the whole agent (sched(7), autogroup).
            _load(prepare)
            from launcher.egress import http  # noqa: F401  # which every agent's first request needs
        os.setsid()
        listeners = list(inherited)
        if promises.has_mounts(plan.backend):
            listeners = []
            deadline = time.monotonic() + _HANDED_OVER_WITHIN
            for _ in wanted:
                if wire.receive(inherited[0], listeners, deadline=deadline, most=0) == (b"", b""):
                    os._exit(0)  # the jail was not built
            os.close(inherited[0])
        poll = select.poll()
        for fd in (*(fd for (kind, _, _), fd in zip(wanted, listeners, strict=True) if kind != "free"), *ports):
            poll.register(fd, select.POLLIN)
        poll.poll(0 if plan.provider else _QUIET)
        reach = [destination(text) for text, _ in plan.reach]
        _load(prepare).run(plan, reach, directory, secret, wanted, listeners, published, held, logins, askers)
    finally:
        os._exit(1)


def _load(prepare: "Callable[[], None]") -> "Any":  # noqa: ANN401  # a module
    prepare()
    # TLS passes through and is not spoken here: hmac does without OpenSSL, which takes long to load.
    sys.modules["_hashlib"] = None  # type: ignore[assignment]  # "cannot be imported"
    from launcher.egress import proxy

    return proxy
