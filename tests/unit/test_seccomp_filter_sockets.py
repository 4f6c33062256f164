"""What the system call filter says to sockets, for both machines and every network mode."""

import pytest

from launcher.jail import seccomp, syscall_tables
from tests.support.bpf import EACCES, EPERM, FAMILY, FASTOPEN, FILTERS, PROTOCOL, Filter


@pytest.fixture(params=syscall_tables.MACHINES)
def machine(request: pytest.FixtureRequest) -> str:
    """Each machine that has a filter."""
    return str(request.param)


UNIX, INET, INET6, NETLINK, PACKET, ALG, VSOCK, BLUETOOTH = 1, 2, 10, 16, 17, 38, 40, 31
STREAM, DGRAM, RAW, SEQPACKET = 1, 2, 3, 5
NONBLOCK_CLOEXEC = 0x80800
TCP, UDP, ICMP, SCTP, MPTCP = 6, 17, 1, 132, 262


@pytest.mark.parametrize("family", [PACKET, ALG, VSOCK, BLUETOOTH, 3, 9, 21, 44, 2**32 - 1])
@pytest.mark.parametrize("filter", FILTERS[:: len(FILTERS) // 12])
def test_other_socket_families_are_closed(filter: Filter, family: int) -> None:
    """Packet, crypto, VM, bluetooth, amateur radio, XDP and unknown sockets do not exist in any jail."""
    assert filter("socket", family, RAW, 0) == FAMILY


def test_of_netlink_only_routes_can_be_asked(machine: str) -> None:
    """Resolvers list addresses with NETLINK_ROUTE; sock_diag, audit and uevents are closed."""
    filter = Filter(machine, "open")
    assert filter("socket", NETLINK, RAW | NONBLOCK_CLOEXEC, 0) == seccomp.ALLOW
    assert {filter("socket", NETLINK, RAW, protocol) for protocol in (4, 9, 12, 15, 16)} == {PROTOCOL}


@pytest.mark.parametrize("family", [INET, INET6])
@pytest.mark.parametrize("flags", [0, NONBLOCK_CLOEXEC])
@pytest.mark.parametrize(
    ("net", "own_network", "tcp", "udp", "mptcp", "sctp", "raw"),
    [
        ("none", False, EACCES, EACCES, EACCES, EACCES, EACCES),
        ("proxy", False, seccomp.ALLOW, EACCES, PROTOCOL, PROTOCOL, EPERM),
        ("open", False, seccomp.ALLOW, seccomp.ALLOW, PROTOCOL, PROTOCOL, EPERM),
        ("none", True, seccomp.ALLOW, seccomp.ALLOW, PROTOCOL, PROTOCOL, EPERM),
        ("proxy", True, seccomp.ALLOW, seccomp.ALLOW, PROTOCOL, PROTOCOL, EPERM),
        ("open", True, seccomp.ALLOW, seccomp.ALLOW, PROTOCOL, PROTOCOL, EPERM),
    ],
)
def test_internet_sockets_follow_the_network_mode(
    machine: str,
    family: int,
    flags: int,
    net: str,
    own_network: bool,
    tcp: int,
    udp: int,
    mptcp: int,
    sctp: int,
    raw: int,
) -> None:
    """Type flags and spelt-out protocols change nothing; what Landlock does not see is never there."""
    filter = Filter(machine, net, own_network=own_network)
    assert {filter("socket", family, STREAM | flags, protocol) for protocol in (0, TCP)} == {tcp}
    assert {filter("socket", family, DGRAM | flags, protocol) for protocol in (0, UDP, ICMP)} == {udp}
    assert filter("socket", family, STREAM | flags, MPTCP) == mptcp
    assert filter("socket", family, STREAM | flags, SCTP) == sctp
    assert {filter("socket", family, kind | flags, 0) for kind in (RAW, SEQPACKET, 4, 10)} == {raw}


@pytest.mark.parametrize("name", ["socket", "socketpair"])
def test_unix_datagrams_follow_their_switch(machine: str, name: str) -> None:
    """The kernel treats a raw AF_UNIX socket as a datagram one; streams are never touched."""
    closed, open_ = Filter(machine), Filter(machine, unix_datagrams=True)
    for kind in (STREAM, SEQPACKET, STREAM | NONBLOCK_CLOEXEC):
        assert closed(name, UNIX, kind, 0) == seccomp.ALLOW
    for kind in (DGRAM, RAW, DGRAM | NONBLOCK_CLOEXEC, 4, 6):
        assert closed(name, UNIX, kind, 0) == FAMILY
        assert open_(name, UNIX, kind, 0) == seccomp.ALLOW


@pytest.mark.parametrize(("name", "index"), [("sendto", 3), ("sendmsg", 2), ("sendmmsg", 3)])
@pytest.mark.parametrize("net", ["none", "proxy"])
def test_tcp_fast_open_is_closed_where_tcp_is(machine: str, net: str, name: str, index: int) -> None:
    """A first packet with data is a connection without connect(2)."""
    plain = [0] * 6
    fast = [0] * 6
    fast[index] = 0x20000000 | 0x4000
    plain[index] = 0x4000
    filter = Filter(machine, net)
    assert filter(name, *fast) == FASTOPEN
    assert filter(name, *plain) == seccomp.ALLOW
    assert Filter(machine, "open")(name, *fast) == seccomp.ALLOW
    assert Filter(machine, net, own_network=True)(name, *fast) == seccomp.ALLOW


def test_tcp_fast_open_by_socket_option_is_closed(machine: str) -> None:
    """TCP_FASTOPEN_CONNECT is refused, TCP_NODELAY and other levels' option 30 are not."""
    filter = Filter(machine, "proxy")
    assert filter("setsockopt", 3, 6, 30) == FASTOPEN
    assert filter("setsockopt", 3, 6, 1) == seccomp.ALLOW
    assert filter("setsockopt", 3, 1, 30) == seccomp.ALLOW


@pytest.mark.parametrize(
    ("net", "own_network", "answer"),
    [("none", False, seccomp.ALLOW), ("proxy", False, EPERM), ("proxy", True, seccomp.ALLOW), ("open", False, 0)],
)
def test_listening_is_closed_where_an_unbound_socket_would_listen_to_the_world(
    machine: str, net: str, own_network: bool, answer: int
) -> None:
    """listen(2) without bind takes a free port that Landlock never judges; in "none" there is no such socket."""
    assert Filter(machine, net, own_network=own_network)("listen", 3, 128) == (answer or seccomp.ALLOW)
