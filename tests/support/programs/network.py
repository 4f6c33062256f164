"""Ways out to the network. A place is "127.0.0.1" or another address of the machine, with `given["ports"]` there."""

import os
import socket
import struct

from tests.support.programs.harness import Given, Programme

PROGRAMME = Programme()
pair, attack = PROGRAMME.pair, PROGRAMME.attack

TCP, UDP, TCP6, UDP6, MPTCP = "tcp", "udp", "tcp6", "udp6", "mptcp"
IPPROTO_MPTCP = 262
MSG_FASTOPEN = 0x20000000
TCP_FASTOPEN_CONNECT = 30


def word(name: str) -> bytes:
    """What an act sends, so that it can be told apart outside."""
    return f"reached by {name}\n".encode()


def stream(family: int, protocol: int, address: tuple[object, ...], name: str) -> None:
    """Connects and sends."""
    sock = socket.socket(family, socket.SOCK_STREAM, protocol)
    sock.settimeout(5)
    sock.connect(address)
    sock.sendall(word(name))


@pair
def connect_over_tcp(given: Given, host: str) -> None:
    stream(socket.AF_INET, 0, (host, given["ports"][TCP]), "connect_over_tcp")


@pair
def connect_over_tcp_from_a_bound_port(given: Given, host: str) -> None:
    sock = socket.socket(socket.AF_INET)
    sock.bind((host, 0))
    sock.settimeout(5)
    sock.connect((host, given["ports"][TCP]))
    sock.sendall(word("connect_over_tcp_from_a_bound_port"))


@pair
def connect_without_waiting(given: Given, host: str) -> None:
    sock = socket.socket(socket.AF_INET)
    sock.setblocking(False)
    if (number := sock.connect_ex((host, given["ports"][TCP]))) not in (0, 115):
        raise OSError(number, os.strerror(number))
    sock.settimeout(5)
    sock.sendall(word("connect_without_waiting"))


@pair
def connect_over_ipv6(given: Given, host: str) -> None:
    stream(socket.AF_INET6, 0, ("::1", given["ports"][TCP6]), "connect_over_ipv6")


@pair
def connect_to_a_mapped_address(given: Given, host: str) -> None:
    address = (f"::ffff:{host}", given["ports"][TCP])
    stream(socket.AF_INET6, 0, address, "connect_to_a_mapped_address")


@pair
def connect_fast(given: Given, host: str) -> None:
    """sendto with MSG_FASTOPEN connects without connect(2)."""
    sock = socket.socket(socket.AF_INET)
    sock.sendto(word("connect_fast"), MSG_FASTOPEN, (host, given["ports"][TCP]))


@pair
def connect_fast_over_ipv6(given: Given, host: str) -> None:
    sock = socket.socket(socket.AF_INET6)
    sock.sendto(word("connect_fast_over_ipv6"), MSG_FASTOPEN, ("::1", given["ports"][TCP6]))


@pair
def connect_fast_by_an_option(given: Given, host: str) -> None:
    sock = socket.socket(socket.AF_INET)
    sock.settimeout(5)
    sock.setsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1)
    sock.connect((host, given["ports"][TCP]))
    sock.sendall(word("connect_fast_by_an_option"))


@pair
def send_over_udp(given: Given, host: str) -> None:
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(word("send_over_udp"), (host, given["ports"][UDP]))


@pair
def send_over_udp_connected(given: Given, host: str) -> None:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.connect((host, given["ports"][UDP]))
    sock.send(word("send_over_udp_connected"))


@pair
def send_over_udp_and_ipv6(given: Given, host: str) -> None:
    socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).sendto(
        word("send_over_udp_and_ipv6"), ("::1", given["ports"][UDP6])
    )


@pair
def send_over_udp_to_a_mapped_address(given: Given, host: str) -> None:
    sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    sock.sendto(word("send_over_udp_to_a_mapped_address"), (f"::ffff:{host}", given["ports"][UDP]))


@pair
def broadcast(given: Given, host: str) -> None:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    sock.sendto(word("broadcast"), ("127.255.255.255", given["ports"][UDP]))


NETWORKED = tuple(PROGRAMME.placed)


def _opened(name: str, family: int, kind: int, protocol: int = 0) -> None:
    def act(given: Given) -> None:
        socket.socket(family, kind, protocol)

    act.__name__ = name
    attack(act)


# Closed in every mode, --net open included: no programme of an agent's work needs them, and each leads elsewhere.
for _row in (
    ("multipath_tcp", socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP),
    ("multipath_tcp_over_ipv6", socket.AF_INET6, socket.SOCK_STREAM, IPPROTO_MPTCP),
    ("sctp", socket.AF_INET, socket.SOCK_STREAM, 132),
    ("udp_lite", socket.AF_INET, socket.SOCK_DGRAM, 136),
    ("raw", socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW),
    ("raw_icmp", socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
    ("raw_over_ipv6", socket.AF_INET6, socket.SOCK_RAW, 58),
    ("packets", 17, socket.SOCK_RAW, 0x0300),
    ("packets_as_datagrams", 17, socket.SOCK_DGRAM, 0x0300),
    ("vsock", 40, socket.SOCK_STREAM, 0),
    ("vsock_datagrams", 40, socket.SOCK_DGRAM, 0),
    ("kernel_crypto", 38, socket.SOCK_SEQPACKET, 0),
    ("bluetooth", 31, socket.SOCK_RAW, 1),
    ("can", 29, socket.SOCK_RAW, 1),
    ("tipc", 30, socket.SOCK_STREAM, 0),
    ("rds", 21, socket.SOCK_SEQPACKET, 0),
    ("qrtr", 42, socket.SOCK_DGRAM, 0),
    ("xdp", 44, socket.SOCK_RAW, 0),
    ("key", 15, socket.SOCK_RAW, 2),
    ("ax25", 3, socket.SOCK_SEQPACKET, 0),
    ("smc", 43, socket.SOCK_STREAM, 0),
    ("netlink_generic", 16, socket.SOCK_RAW, 16),
    ("netlink_audit", 16, socket.SOCK_RAW, 9),
    ("netlink_uevent", 16, socket.SOCK_DGRAM, 15),
    ("netlink_netfilter", 16, socket.SOCK_RAW, 12),
    ("netlink_diag", 16, socket.SOCK_RAW, 4),
    ("netlink_connector", 16, socket.SOCK_DGRAM, 11),
    ("netlink_xfrm", 16, socket.SOCK_RAW, 6),
):
    _opened(*_row)


@attack
def ping_another_host(given: Given) -> None:
    """An echo request to the machine's own address outside; an answer means that it left."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
    sock.settimeout(1)
    sock.sendto(struct.pack("!BBHHH", 8, 0, 0, 0, 1), (given["address"], 0))
    sock.recv(100)


@attack
def resolve_a_name(given: Given) -> None:
    socket.getaddrinfo("name.invalid", 80)


@PROGRAMME.twin
def local_names_resolve(given: Given) -> None:
    assert socket.getaddrinfo("localhost", 80, type=socket.SOCK_STREAM)


@PROGRAMME.twin
def processes_of_the_jail_talk(given: Given) -> None:
    path = os.environ["TMPDIR"] + "/s"
    os.chdir(os.environ["TMPDIR"])
    server = socket.socket(socket.AF_UNIX)
    server.bind("s")
    server.listen()
    client = socket.socket(socket.AF_UNIX)
    client.connect("s")
    client.sendall(b"x")
    assert server.accept()[0].recv(1) == b"x"
    os.unlink(path)


@PROGRAMME.twin
def routes_can_be_asked_for(given: Given) -> None:
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)


LOOPBACK = Programme()


@LOOPBACK.twin
def a_server_on_the_own_loopback(given: Given) -> None:
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        server = socket.socket(family)
        server.bind((host, 0))
        server.listen()
        client = socket.socket(family)
        client.connect(server.getsockname())
        client.sendall(b"x")
        assert server.accept()[0].recv(1) == b"x"
