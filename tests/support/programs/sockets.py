"""Attacks on AF_UNIX sockets outside. A place is a directory with `stream`, `datagram` and `packets` bound in it."""

import array
import os
import socket

from tests.support.programs.harness import Given, Programme
from tests.support.programs.reads import fresh

PROGRAMME = Programme()
pair = PROGRAMME.pair
STREAM, DATAGRAM, PACKETS = "stream", "datagram", "packets"
WORD = b"reached"

_listening: list[socket.socket] = []


KINDS = {STREAM: socket.SOCK_STREAM, DATAGRAM: socket.SOCK_DGRAM, PACKETS: socket.SOCK_SEQPACKET}


def bound(directory: str, *names: str, abstract: str = "") -> list[socket.socket]:
    """Binds sockets (all three by default) in a directory, or abstract ones; the caller keeps them."""
    found = []
    for name in names or KINDS:
        kind = KINDS[name]
        sock = socket.socket(socket.AF_UNIX, kind)
        if abstract:
            sock.bind(f"\0{abstract}-{name}")
        else:
            # A path of more than 108 bytes is bound through the directory's descriptor.
            descriptor = os.open(directory, os.O_PATH)
            sock.bind(f"/proc/self/fd/{descriptor}/{name}")
            os.close(descriptor)
        if kind != socket.SOCK_DGRAM:
            sock.listen(64)
        found.append(sock)
    return found


def arrived(sockets: list[socket.socket]) -> list[str]:
    """What came to sockets of `bound`: the kinds that got a connection or a datagram."""
    found = []
    names = {kind: name for name, kind in KINDS.items()}
    for sock in sockets:
        name = names[socket.SocketKind(sock.type)]
        sock.setblocking(False)
        try:
            if name == DATAGRAM:
                sock.recv(100)
            else:
                sock.accept()[0].close()
        except BlockingIOError:
            continue
        found.append(name)
    return found


def place(given: Given, where: str, name: str = STREAM) -> str:
    """The directory; when it is to be the jail's own, a new one with the socket `name` bound in it."""
    if where == given["own"]:
        where = fresh(given, "sockets")
        os.mkdir(where)
        _listening.extend(bound(where, name))
    return where


def short(given: Given, where: str, name: str) -> str:
    """A path to a socket below 108 bytes, through a descriptor of its directory."""
    return f"/proc/self/fd/{os.open(where, os.O_PATH)}/{name}"


def connect(path: str, kind: int = socket.SOCK_STREAM) -> None:
    """Connects and sends a word."""
    sock = socket.socket(socket.AF_UNIX, kind)
    sock.settimeout(5)
    sock.connect(path)
    sock.send(WORD)


@pair
def connect_a_stream(given: Given, where: str) -> None:
    connect(short(given, place(given, where, STREAM), STREAM))


@pair
def connect_packets(given: Given, where: str) -> None:
    connect(short(given, place(given, where, PACKETS), PACKETS), socket.SOCK_SEQPACKET)


@pair
def connect_a_datagram_socket(given: Given, where: str) -> None:
    connect(short(given, place(given, where, DATAGRAM), DATAGRAM), socket.SOCK_DGRAM)


@pair
def send_a_datagram(given: Given, where: str) -> None:
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(WORD, short(given, place(given, where, DATAGRAM), DATAGRAM))


@pair
def send_a_message(given: Given, where: str) -> None:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.sendmsg([WORD], [], 0, short(given, place(given, where, DATAGRAM), DATAGRAM))


@pair
def send_a_descriptor(given: Given, where: str) -> None:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    own = os.open("/proc/self/root", os.O_PATH)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [own]))]
    sock.sendmsg([WORD], rights, 0, short(given, place(given, where, DATAGRAM), DATAGRAM))


@pair
def send_from_a_pair(given: Given, where: str) -> None:
    """A connected datagram socket still sends to any address."""
    ours, _theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.sendto(WORD, short(given, place(given, where, DATAGRAM), DATAGRAM))


@pair
def send_as_raw(given: Given, where: str) -> None:
    """The kernel makes a datagram socket of AF_UNIX SOCK_RAW."""
    socket.socket(socket.AF_UNIX, socket.SOCK_RAW).sendto(WORD, short(given, place(given, where, DATAGRAM), DATAGRAM))


@pair
def through_a_link(given: Given, where: str) -> None:
    link = fresh(given, "l")
    os.symlink(f"{place(given, where)}/{STREAM}", link)
    connect(short(given, os.path.dirname(link), os.path.basename(link)))


@pair
def through_a_linked_directory(given: Given, where: str) -> None:
    link = fresh(given, "l")
    os.symlink(place(given, where), link)
    connect(short(given, os.path.dirname(link), f"{os.path.basename(link)}/{STREAM}"))


@pair
def by_the_root_of_the_process(given: Given, where: str) -> None:
    directory = os.open(f"/proc/self/root{place(given, where)}", os.O_PATH)
    connect(f"/proc/self/fd/{directory}/{STREAM}")


@pair
def by_a_descriptor_of_the_socket(given: Given, where: str) -> None:
    connect(f"/proc/self/fd/{os.open(f'{place(given, where)}/{STREAM}', os.O_PATH)}")


@pair
def while_working_there(given: Given, where: str) -> None:
    os.chdir(place(given, where))
    connect(f"./{STREAM}")


@pair
def by_dot_dot(given: Given, where: str) -> None:
    target = place(given, where)
    os.chdir(given["area"])
    directory = os.open(os.path.relpath(target, given["area"]), os.O_PATH)
    connect(f"/proc/self/fd/{directory}/../{os.path.basename(target)}/{STREAM}")


@PROGRAMME.attack
def by_a_hard_link(given: Given) -> None:
    link = fresh(given, "h")
    os.link(f"{given['attack']['outside']}/{STREAM}", link)
    connect(short(given, os.path.dirname(link), os.path.basename(link)))


@PROGRAMME.attack
def by_moving_it_in(given: Given) -> None:
    target = fresh(given, "m")
    os.rename(f"{given['attack']['outside']}/{DATAGRAM}", target)


@PROGRAMME.attack
def by_taking_its_name(given: Given) -> None:
    """Whoever binds the name that others connect to is the server from then on."""
    path = short(given, given["attack"]["outside"], STREAM)
    os.unlink(f"{given['attack']['outside']}/{STREAM}")
    socket.socket(socket.AF_UNIX).bind(path)


@PROGRAMME.attack
def abstract_stream(given: Given) -> None:
    connect(f"\0{given['abstract']}-{STREAM}")


@PROGRAMME.attack
def abstract_packets(given: Given) -> None:
    connect(f"\0{given['abstract']}-{PACKETS}", socket.SOCK_SEQPACKET)


@PROGRAMME.attack
def abstract_datagram(given: Given) -> None:
    connect(f"\0{given['abstract']}-{DATAGRAM}", socket.SOCK_DGRAM)


@PROGRAMME.attack
def abstract_datagram_sent(given: Given) -> None:
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(WORD, f"\0{given['abstract']}-{DATAGRAM}")


@PROGRAMME.attack
def abstract_datagram_from_a_pair(given: Given) -> None:
    ours, _theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.sendto(WORD, f"\0{given['abstract']}-{DATAGRAM}")


def _well_known(path: str) -> None:
    def act(given: Given) -> None:
        connect(path)

    act.__name__ = "well_known_" + path.strip("/").replace("/", "_")
    PROGRAMME.attack(act)


for _path in (
    *("/run/docker.sock", "/var/run/docker.sock", "/run/dbus/system_bus_socket", "/run/systemd/private"),
    *("/run/systemd/journal/stdout", "/tmp/.X11-unix/X0", "/run/containerd/containerd.sock", "/run/udev/control"),
):
    _well_known(_path)


@PROGRAMME.twin
def an_abstract_name_of_our_own(given: Given) -> None:
    kept = bound("", STREAM, abstract=f"own-{os.getpid()}")
    connect(f"\0own-{os.getpid()}-{STREAM}")
    assert arrived(kept) == [STREAM]


@PROGRAMME.twin
def pairs(given: Given) -> None:
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
        ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
        ours.send(WORD)
        assert theirs.recv(100) == WORD


@PROGRAMME.twin
def a_pair_of_datagram_sockets(given: Given) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.send(WORD)
    assert theirs.recv(100) == WORD


DATAGRAMS = (
    "connect_a_datagram_socket",
    "send_a_datagram",
    "send_a_message",
    "send_a_descriptor",
    "send_from_a_pair",
    "send_as_raw",
)
"""Placed acts whose twin needs datagram sockets, which the guard refuses: every datagram carries an address."""

ABSTRACT = tuple(attempt.name for attempt in PROGRAMME.attempts if attempt.name.startswith("abstract_"))
"""Closed by Landlock's scope (ABI 6) on every backend."""
