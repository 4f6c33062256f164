"""The system call filter, rule by rule, for both machines: run by an interpreter, so nothing is installed."""

import errno
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.jail import seccomp, syscall_tables, syscalls
from policy.errors import Refusal
from tests.support.bpf import execute

ENOSYS = seccomp.ERRNO | errno.ENOSYS
EPERM = seccomp.ERRNO | errno.EPERM
EACCES = seccomp.ERRNO | errno.EACCES
FAMILY = seccomp.ERRNO | errno.EAFNOSUPPORT
PROTOCOL = seccomp.ERRNO | errno.EPROTONOSUPPORT
FASTOPEN = seccomp.ERRNO | errno.EOPNOTSUPP
ANSWERS = {seccomp.ALLOW, seccomp.KILL_PROCESS, ENOSYS, EPERM, EACCES, FAMILY, PROTOCOL, FASTOPEN}

MACHINES = syscall_tables.MACHINES
NAMES = (*syscall_tables.UNIFIED, *syscall_tables.OLDER)


def seccomp_data(number: int, arch: int, arguments: tuple[int, ...]) -> bytes:
    """`struct seccomp_data`: number, architecture, instruction pointer, six arguments."""
    words = [*arguments, 0, 0, 0, 0, 0, 0][:6]
    head = (number & 0xFFFFFFFF).to_bytes(4, "little") + arch.to_bytes(4, "little") + bytes(8)
    return head + b"".join((word & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "little") for word in words)


class Filter:
    """A filter for one machine, asked by the names of calls. Nothing is allowed beyond the minimum unless said."""

    def __init__(
        self,
        machine: str,
        net: str = "none",
        *,
        own_network: bool = False,
        own_processes: bool = False,
        own_ipc: bool = False,
        kill_zero: bool = False,
        unix_datagrams: bool = False,
    ) -> None:
        self.machine = machine
        self.program = seccomp.program(
            machine,
            net=net,
            own_network=own_network,
            own_processes=own_processes,
            own_ipc=own_ipc,
            kill_zero=kill_zero,
            unix_datagrams=unix_datagrams,
        )

    def number(self, number: int, *arguments: int, arch: int | None = None) -> int:
        """The answer to a call by number."""
        native = syscall_tables.AUDIT_ARCH[self.machine]
        return execute(self.program, seccomp_data(number, native if arch is None else arch, arguments))

    def __call__(self, name: str, *arguments: int) -> int:
        """The answer to a call by name."""
        number = syscall_tables.number(name, self.machine)
        assert number is not None, f"{self.machine} has no {name}"
        return self.number(number, *arguments)


SWITCHES = ("own_network", "own_processes", "own_ipc", "kill_zero", "unix_datagrams")
FILTERS = [
    Filter(machine, net, **dict(zip(SWITCHES, values, strict=True)))
    for machine in MACHINES
    for net in seccomp.NETWORKS
    for values in product((False, True), repeat=len(SWITCHES))
]

filters = st.sampled_from(FILTERS)
words = st.integers(0, 2**64 - 1)


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# The filter as a whole


@settings(max_examples=300)
@given(filter=filters, number=st.integers(0, 2**32 - 1), arguments=st.tuples(*[words] * 6))
def test_every_call_gets_an_answer_of_the_known_kinds(filter: Filter, number: int, arguments: tuple[int, ...]) -> None:
    """Whatever the arguments, the filter ends and says one of the things it was made to say."""
    assert filter.number(number, *arguments) in ANSWERS


@settings(max_examples=300)
@given(filter=filters, number=st.integers(0, 480), arguments=st.tuples(*[words] * 6), high=words)
def test_high_words_of_arguments_change_nothing(
    filter: Filter, number: int, arguments: tuple[int, ...], high: int
) -> None:
    """What the kernel cuts off cannot be used to slip past a comparison."""
    noisy = tuple(argument & 0xFFFFFFFF | high & ~0xFFFFFFFF for argument in arguments)
    assert filter.number(number, *noisy) == filter.number(number, *arguments)


@given(filter=filters, number=st.integers(0, 2**32 - 1), arch=st.integers(0, 2**32 - 1))
def test_a_foreign_instruction_set_is_killed(filter: Filter, number: int, arch: int) -> None:
    """Another architecture's numbers mean other calls, so they are not even judged."""
    if arch != syscall_tables.AUDIT_ARCH[filter.machine]:
        assert filter.number(number, arch=arch) == seccomp.KILL_PROCESS


@pytest.mark.parametrize("arch", [0x40000003, 0x40000028], ids=["i386", "arm"])
def test_32_bit_calls_are_killed(machine: str, arch: int) -> None:
    """int 0x80 on x86-64 and 32-bit ARM on aarch64 arrive with an architecture of their own."""
    assert Filter(machine, "open").number(1, arch=arch) == seccomp.KILL_PROCESS


def test_x32_calls_are_killed() -> None:
    """x32 shares x86-64's architecture and sets a bit in the number."""
    assert Filter("x86_64", "open").number(syscall_tables.X32_BIT | 39) == seccomp.KILL_PROCESS


def test_the_number_that_a_debugger_writes_to_skip_a_call_is_not_killed(machine: str) -> None:
    """-1 is answered like a missing call."""
    assert Filter(machine).number(-1) == ENOSYS


@given(filter=filters, number=st.integers(syscall_tables.NEWEST + 1, syscall_tables.X32_BIT - 1))
def test_calls_that_nobody_has_judged_yet_are_missing(filter: Filter, number: int) -> None:
    """A future kernel does not open the jail."""
    assert filter.number(number) == ENOSYS


def test_the_filter_is_short(machine: str) -> None:
    """No combination of parameters comes near the kernel's limit."""
    assert max(len(filter.program) // 8 for filter in FILTERS) < 256


@pytest.mark.parametrize("read", [0, 1, 63, 202, 257])
def test_ordinary_calls_are_allowed(read: int) -> None:
    """read, write, uname, futex and openat on x86-64 pass in the strictest filter."""
    assert Filter("x86_64").number(read) == seccomp.ALLOW


def test_a_machine_without_tables_is_refused() -> None:
    """No filter is better than a filter with another machine's numbers; no launch is better than both."""
    with pytest.raises(Refusal, match="riscv64"):
        Filter("riscv64")


def test_an_unknown_network_mode_is_an_error() -> None:
    """A misspelt mode opens nothing."""
    with pytest.raises(ValueError, match="'closed'"):
        Filter("x86_64", "closed")


def test_no_two_calls_share_a_number(machine: str) -> None:
    """A slip in a table would judge another call."""
    numbers = [syscall_tables.number(name, machine) for name in NAMES]
    known = [number for number in numbers if number is not None]
    assert len(known) == len(set(known))


def test_both_tables_of_numbers_agree() -> None:
    """What the wrappers call is what the filter judges."""
    for machine, numbers in syscalls._LEGACY_NUMBERS.items():
        shared = numbers.keys() & set(NAMES)
        assert {name: syscall_tables.number(name, machine) for name in shared} == {
            name: numbers[name] for name in shared
        }


# Single rules


@pytest.mark.parametrize("name", ["io_uring_setup", "io_uring_enter", "io_uring_register", "clone3", "file_setattr"])
def test_calls_with_a_fallback_are_missing(machine: str, name: str) -> None:
    """ENOSYS is what makes callers fall back."""
    assert Filter(machine, "open")(name) == ENOSYS


@pytest.mark.parametrize("name", seccomp._FORBIDDEN)
def test_forbidden_calls_are_forbidden_in_the_widest_filter(name: str) -> None:
    """Nothing that a jail may be given brings these back."""
    widest = dict.fromkeys(SWITCHES, True)
    for machine in MACHINES:
        if syscall_tables.number(name, machine) is not None:
            assert Filter(machine, "open", **widest)(name) == EPERM


NEW_NAMESPACES = {
    "mount": 0x20000,
    "cgroup": 0x2000000,
    "uts": 0x4000000,
    "ipc": 0x8000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
}
PTHREAD_FLAGS = 0x3D0F00  # VM FS FILES SIGHAND THREAD SYSVSEM SETTLS PARENT_SETTID CHILD_CLEARTID
VFORK_FLAGS = 0x4111  # VFORK VM SIGCHLD


@pytest.mark.parametrize("flag", NEW_NAMESPACES.values(), ids=NEW_NAMESPACES)
@pytest.mark.parametrize("name", ["clone", "unshare"])
def test_new_namespaces_are_forbidden(machine: str, name: str, flag: int) -> None:
    """Neither clone nor unshare makes a namespace, whatever other flags are there."""
    assert Filter(machine, "open")(name, flag) == EPERM
    assert Filter(machine, "open")(name, flag | PTHREAD_FLAGS) == EPERM


@pytest.mark.parametrize("flags", [17, PTHREAD_FLAGS, VFORK_FLAGS], ids=["fork", "thread", "vfork"])
def test_processes_and_threads_are_allowed(machine: str, flags: int) -> None:
    """clone for fork, pthread_create and posix_spawn passes."""
    assert Filter(machine)("clone", flags) == seccomp.ALLOW


def test_the_time_namespace_bit_means_a_namespace_only_in_unshare(machine: str) -> None:
    """In clone the same bit belongs to the exit signal's number."""
    assert Filter(machine)("unshare", 0x80) == EPERM
    assert Filter(machine)("clone", 0x80) == seccomp.ALLOW
    assert Filter(machine)("unshare", 0x600) == seccomp.ALLOW  # FS FILES: what threads unshare


@pytest.mark.parametrize("request_", [0x5412, 0x541C, 0x5423], ids=["TIOCSTI", "TIOCLINUX", "TIOCSETD"])
def test_input_cannot_be_pushed_into_a_terminal(machine: str, request_: int) -> None:
    """Terminal requests that type for the user are forbidden, high bits or not."""
    for high in (0, 1 << 32, 0xFFFFFFFF << 32):
        assert Filter(machine, "open")("ioctl", 0, request_ | high) == EPERM


@pytest.mark.parametrize("request_", [0x5401, 0x5413, 0x541B, 0x80045430], ids=["TCGETS", "WINSZ", "FIONREAD", "PTN"])
def test_ordinary_terminal_requests_are_allowed(machine: str, request_: int) -> None:
    """Asking for modes, size, and making ptys works."""
    assert Filter(machine)("ioctl", 0, request_) == seccomp.ALLOW


@pytest.mark.parametrize(
    ("persona", "answer"),
    [
        (0, seccomp.ALLOW),
        (0xFFFFFFFF, seccomp.ALLOW),
        (0x40000, seccomp.ALLOW),
        (8, seccomp.ALLOW),
        (0x400000, EPERM),
        (0x440000, EPERM),
        (1, EPERM),
    ],
    ids=["linux", "question", "no-randomize", "linux32", "read-implies-exec", "both", "svr4"],
)
def test_only_harmless_personalities_pass(machine: str, persona: int, answer: int) -> None:
    """A debugger may switch randomization off; nobody may make data executable."""
    assert Filter(machine)("personality", persona) == answer


BY_PID = seccomp._BY_PID


@pytest.mark.parametrize("name", BY_PID)
def test_limits_and_scheduling_of_others_are_closed_without_a_pid_namespace(machine: str, name: str) -> None:
    """Only the caller itself (0) can be meant; a number could be anybody's."""
    filter = Filter(machine, "open")
    assert filter(name, 0) == seccomp.ALLOW
    assert filter(name, 1) == EPERM
    assert filter(name, 4242) == EPERM


@pytest.mark.parametrize("name", BY_PID)
def test_limits_and_scheduling_are_open_in_a_pid_namespace(machine: str, name: str) -> None:
    """There, numbers name processes of the jail and no others."""
    assert Filter(machine, own_processes=True)(name, 4242) == seccomp.ALLOW


@pytest.mark.parametrize(("name", "process", "group", "user"), [("setpriority", 0, 1, 2), ("ioprio_set", 1, 2, 3)])
def test_priorities_reach_nobody_outside(machine: str, name: str, process: int, group: int, user: int) -> None:
    """The own process group may have members outside, in a PID namespace too."""
    bare, namespaced = Filter(machine), Filter(machine, own_processes=True)
    assert bare(name, process, 0) == seccomp.ALLOW
    assert [bare(name, which, 7) for which in (process, group, user)] == [EPERM] * 3
    assert [bare(name, which, 0) for which in (group, user)] == [EPERM] * 2
    assert [namespaced(name, which, 7) for which in (process, group, user)] == [seccomp.ALLOW] * 3
    assert namespaced(name, group, 0) == EPERM
    assert namespaced(name, process, 0) == seccomp.ALLOW


def test_the_own_process_group_can_be_signalled_only_where_that_is_safe(machine: str) -> None:
    """`kill 0` reaches the rest of a pipeline unless Landlock scopes signals."""
    assert Filter(machine)("kill", 0, 15) == EPERM
    assert Filter(machine)("kill", 7 << 32, 15) == EPERM
    assert Filter(machine)("kill", 1234, 15) == seccomp.ALLOW
    assert Filter(machine, kill_zero=True)("kill", 0, 15) == seccomp.ALLOW


@pytest.mark.parametrize("name", seccomp._IPC)
def test_system_v_ipc_needs_a_namespace(machine: str, name: str) -> None:
    """Making, finding and using an object are closed together, since identifiers can be guessed."""
    assert Filter(machine, "open")(name) == EPERM
    assert Filter(machine, own_ipc=True)(name) == seccomp.ALLOW


# Sockets

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
