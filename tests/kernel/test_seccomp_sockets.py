"""Sockets behind the system call filter, as root and as a user."""

import contextlib
import socket
from collections.abc import Iterator

import pytest

from tests.support import forked
from tests.support.bpf import filtered
from tests.support.forked import verdict
from tests.support.identity import Who

INTERNET = {
    "tcp": (socket.AF_INET, socket.SOCK_STREAM, 0),
    "tcp6": (socket.AF_INET6, socket.SOCK_STREAM, 6),
    "udp": (socket.AF_INET, socket.SOCK_DGRAM, 0),
    "mptcp": (socket.AF_INET, socket.SOCK_STREAM, 262),
    "raw": (socket.AF_INET, socket.SOCK_RAW, 1),
    "packet": (socket.AF_PACKET, socket.SOCK_RAW, 0),
    "vsock": (40, socket.SOCK_STREAM, 0),
    "routes": (socket.AF_NETLINK, socket.SOCK_RAW, 0),
    "diag": (socket.AF_NETLINK, socket.SOCK_RAW, 4),
    "unix": (socket.AF_UNIX, socket.SOCK_STREAM, 0),
    "unix-datagram": (socket.AF_UNIX, socket.SOCK_DGRAM, 0),
}


def opened(family: int, kind: int, protocol: int) -> None:
    # Close-on-exec and non-blocking are flags in the type, as programmes usually give them.
    socket.socket(family, kind | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, protocol).close()


@pytest.mark.parametrize(
    ("net", "own_network", "tcp", "udp"),
    [
        ("none", False, "EACCES", "EACCES"),
        ("proxy", False, "ok", "EACCES"),
        ("open", False, "ok", "ok"),
        ("none", True, "ok", "ok"),
    ],
)
def test_sockets_follow_the_network_mode(who: Who, net: str, own_network: bool, tcp: str, udp: str) -> None:
    """Each kind of socket is there or not as the mode says."""

    def act() -> dict[str, str]:
        return {name: verdict(opened, *arguments) for name, arguments in INTERNET.items()}

    internet = net != "none" or own_network
    assert forked.run(lambda: filtered(act, net, own_network=own_network), who) == {
        "tcp": tcp,
        "tcp6": tcp,
        "udp": udp,
        "mptcp": "EPROTONOSUPPORT" if internet else "EACCES",
        "raw": "EPERM" if internet else "EACCES",
        "packet": "EAFNOSUPPORT",
        "vsock": "EAFNOSUPPORT",
        "routes": "ok",
        "diag": "EPROTONOSUPPORT",
        "unix": "ok",
        "unix-datagram": "EAFNOSUPPORT",
    }


def test_unix_datagrams_reach_no_host_socket(who: Who) -> None:
    """A datagram socket pair would carry a path in each message; streams do not."""

    def act() -> list[str]:
        return [
            verdict(socket.socketpair, socket.AF_UNIX, socket.SOCK_DGRAM),
            verdict(socket.socketpair, socket.AF_UNIX, socket.SOCK_RAW),
            verdict(socket.socketpair, socket.AF_UNIX, socket.SOCK_STREAM),
        ]

    assert forked.run(lambda: filtered(act), who) == ["EAFNOSUPPORT", "EAFNOSUPPORT", "ok"]
    assert forked.run(lambda: filtered(act, unix_datagrams=True), who) == ["ok", "ok", "ok"]


@contextlib.contextmanager
def tcp_server() -> Iterator[tuple[str, int]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()


def test_tcp_fast_open_does_not_connect(who: Who) -> None:
    """sendto with MSG_FASTOPEN is refused where TCP is guarded by its port; a plain connect goes on to Landlock."""
    with tcp_server() as address:

        def act() -> list[str]:
            with socket.socket() as fast, socket.socket() as plain:
                return [
                    verdict(fast.sendto, b"x", socket.MSG_FASTOPEN, address),
                    verdict(fast.setsockopt, socket.IPPROTO_TCP, 30, 1),
                    verdict(plain.connect, address),
                    verdict(plain.sendall, b"x"),
                ]

        assert forked.run(lambda: filtered(act, "proxy"), who) == ["ENOTSUP", "ENOTSUP", "ok", "ok"]


def test_an_unbound_socket_does_not_listen_in_proxy_mode(who: Who) -> None:
    """listen(2) would choose a port by itself, past Landlock's bind rule; in open mode it may."""

    def act() -> str:
        with socket.socket() as server:
            return verdict(server.listen)

    assert forked.run(lambda: filtered(act, "proxy"), who) == "EPERM"
    assert forked.run(lambda: filtered(act, "open"), who) == "ok"
