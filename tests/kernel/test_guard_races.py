"""What changes between the guard's look and its act, does not matter: no race reaches anything outside."""

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import guarded
from tests.support.features import need
from tests.support.guarded import Guarded
from tests.support.identity import Who
from tests.support.install import Installed


@pytest.fixture
def jail(user: Who, installed: Installed, public_dir: Path) -> Guarded:
    """A jail of the backend landlock+guard, with a file and a socket on either side that have equally long paths.

    An ordinary user's: the guard has no capability whoever starts it, so root's races are the same ones.
    """
    need("landlock")
    made = guarded.at(user, installed, public_dir)
    for where in (made.outside, made.inside):
        (where / "t").mkdir()
        (where / "t/file").write_text("x")
        (where / "t/file").chmod(0o600)
        user.give(where)
    return made


@pytest.fixture
def untouched(jail: Guarded) -> Iterator[None]:
    """Fails when anything outside has changed at the end."""

    def look() -> list[tuple[int, int, int]]:
        found = [path.lstat() for path in (jail.outside / "t", *sorted((jail.outside / "t").iterdir()))]
        return [(info.st_mode, info.st_uid, info.st_ctime_ns) for info in found]

    before = look()
    yield
    assert look() == before


# `race` runs `change(turn)` in a process (or thread) of its own, at least REWRITES times, for as long as `act` is
# called, at least CALLS times. What `act` answers is counted.
RACE = """
import mmap
REWRITES, CALLS = 30_000, 1000
inside, outside = sys.argv[1:3]
def race(change, act, *, thread=False):
    state = mmap.mmap(-1, 16)
    def loop():
        turn = 0
        while not state[0]:
            change(turn)
            turn += 1
            if turn % 1000 == 0:
                state[8:16] = turn.to_bytes(8, "little")
    if thread:
        threading.Thread(target=loop, daemon=True).start()
    else:
        pid = os.fork()
        if pid == 0:
            try:
                loop()
            finally:
                os._exit(0)
    counts = {}
    calls = 0
    while calls < CALLS or int.from_bytes(state[8:16], "little") < REWRITES:
        answer = said(act)
        counts[answer] = counts.get(answer, 0) + 1
        calls += 1
    state[0] = 1
    if not thread:
        os.waitpid(pid, 0)
    return counts
def shared(*texts):
    size = max(map(len, texts)) + 1
    memory = mmap.mmap(-1, 4096)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    padded = [text.ljust(size, b"\\0") for text in texts]
    def change(turn):
        memory[:size] = padded[turn % len(padded)]
    change(0)
    return address, change, size
def exchange(one, other):
    # renameat2 with RENAME_EXCHANGE
    if libc.renameat2(-100, one, -100, other, 2):
        raise OSError(ctypes.get_errno(), "renameat2")
"""


def counted(counts: dict[str, int], denied: str, call: str = "") -> None:
    """Both answers came: the race was one."""
    assert counts.get("ok", 0) + counts.get("0", 0) > 0, (call, counts)
    assert counts.get(denied, 0) > 0, (call, counts)


@pytest.mark.usefixtures("untouched")
def test_a_path_rewritten_in_memory(jail: Guarded) -> None:
    """Another process rewrites the caller's path all the time: what is judged is what is changed."""
    code = (
        RACE
        + """
address, change, _ = shared(os.fsencode(inside + "/file"), os.fsencode(outside + "/file"))
acts = {
    "chmod": lambda: syscall("chmod" if "chmod" in NUMBERS else "fchmodat",
                             *([] if "chmod" in NUMBERS else [-100]), address, 0o777) and None,
    "chown": lambda: syscall("fchownat", -100, address, os.getuid(), os.getgid(), 0) and None,
    "utimensat": lambda: syscall("utimensat", -100, address, None, 0) and None,
    "setxattr": lambda: syscall("setxattr", address, b"user.x", b"v", 1, 0) and None,
}
result = {call: race(change, act) for call, act in acts.items()}
"""
    )
    counts = jail.tried(code, jail.inside / "t", jail.outside / "t")
    assert len(counts) == 4
    for call, each in counts.items():
        counted(each, "EPERM", call)


@pytest.mark.usefixtures("untouched")
def test_a_link_that_changes_its_target(jail: Guarded) -> None:
    """A name that is in turn a file inside and a link to one outside is changed only as the former."""
    code = (
        RACE
        + """
os.chdir(inside)
os.symlink(outside + "/file", "bait")
open("name", "w").close()
result = race(lambda turn: exchange(b"name", b"bait"), lambda: os.chmod("name", 0o777))
"""
    )
    counted(jail.tried(code, jail.inside / "t", jail.outside / "t"), "EPERM")


@pytest.mark.usefixtures("untouched")
def test_a_directory_that_becomes_a_link(jail: Guarded) -> None:
    """The same with a directory on the way to the file."""
    code = (
        RACE
        + """
os.chdir(inside)
os.mkdir("way")
open("way/file", "w").close()
os.symlink(outside, "bait")
result = race(lambda turn: exchange(b"way", b"bait"), lambda: os.chmod("way/file", 0o777))
"""
    )
    counted(jail.tried(code, jail.inside / "t", jail.outside / "t"), "EPERM")


@pytest.mark.usefixtures("untouched")
def test_a_link_below_proc_that_changes(jail: Guarded) -> None:
    """The same with the guard's own walk through links below /proc."""
    code = (
        RACE
        + """
os.chdir(inside)
os.mkdir("way")
os.symlink(f"/proc/self/cwd/way/file", "through")
open("way/file", "w").close()
os.symlink(outside, "bait")
CALLS = 300
result = race(lambda turn: exchange(b"way", b"bait"), lambda: os.chmod("through", 0o777))
"""
    )
    counted(jail.tried(code, jail.inside / "t", jail.outside / "t"), "EPERM")


@pytest.mark.usefixtures("untouched")
def test_a_descriptor_that_changes_its_file(jail: Guarded) -> None:
    """A thread puts another file under the descriptor's number all the time."""
    code = (
        RACE
        + """
files = [os.open(inside + "/file", os.O_RDONLY), os.open(outside + "/file", os.O_RDONLY)]
wanted = os.dup(files[0])
result = race(lambda turn: os.dup2(files[turn % 2], wanted), lambda: os.fchmod(wanted, 0o777), thread=True)
"""
    )
    found = jail.tried(code, jail.inside / "t", jail.outside / "t", options=("--ro", jail.outside / "t"))
    counted(found, "EPERM")


@pytest.mark.usefixtures("untouched")
def test_a_current_directory_that_changes(jail: Guarded) -> None:
    """A thread changes the directory that a relative path starts from."""
    code = (
        RACE
        + """
where = [os.open(inside, os.O_RDONLY), os.open(outside, os.O_RDONLY)]
result = race(lambda turn: os.fchdir(where[turn % 2]), lambda: os.chmod("file", 0o777), thread=True)
"""
    )
    found = jail.tried(code, jail.inside / "t", jail.outside / "t", options=("--ro", jail.outside / "t"))
    counted(found, "EPERM")


@pytest.fixture
def servers(jail: Guarded) -> Iterator[socket.socket]:
    """A listening socket ``t/s`` outside; the jail makes its own of the same name inside."""
    with socket.socket(socket.AF_UNIX) as listening:
        above = os.open(jail.outside / "t", os.O_PATH)
        listening.bind(f"/proc/self/fd/{above}/s")
        os.close(above)
        (jail.outside / "t/s").chmod(0o777)
        jail.who.give(jail.outside)
        listening.listen(4096)
        listening.setblocking(False)
        yield listening


CONNECT = """
os.chdir(inside)
server = socket.socket(socket.AF_UNIX)
server.bind("s")
server.listen(64)
def accept():
    while True:
        server.accept()[0].close()
threading.Thread(target=accept, daemon=True).start()
"""


def test_an_address_rewritten_in_memory(jail: Guarded, servers: socket.socket) -> None:
    """Another process rewrites the address all the time, path and kind: nobody connects to the socket outside."""
    code = (
        RACE
        + CONNECT
        + """
os.symlink(outside, "o")
def unix(path):
    return (1).to_bytes(2, "little") + path.ljust(20, b"\\0")
other_family = (16).to_bytes(2, "little") + b"o/s".ljust(20, b"\\0")
address, change, size = shared(unix(b"./s"), unix(b"o/s"), unix(b"\\0/s"), other_family)
def act():
    with socket.socket(socket.AF_UNIX) as sock:
        syscall("connect", sock.fileno(), address, size)
result = race(change, act)
"""
    )
    found = jail.tried(code, jail.inside / "t", jail.outside / "t", timeout=180)
    counted(found, "EACCES")
    with pytest.raises(BlockingIOError):
        servers.accept()


def test_a_socket_file_that_is_replaced(jail: Guarded, servers: socket.socket) -> None:
    """A name that is in turn a socket inside and a link to one outside leads inside only."""
    code = (
        RACE
        + CONNECT
        + """
os.symlink(outside + "/s", "bait")
def act():
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect("./s")
result = race(lambda turn: exchange(b"s", b"bait"), act)
"""
    )
    found = jail.tried(code, jail.inside / "t", jail.outside / "t", timeout=180)
    counted(found, "EACCES")
    with pytest.raises(BlockingIOError):
        servers.accept()


def test_the_file_inside_did_change(jail: Guarded) -> None:
    """The allowed twin of all races: without one, the same call goes through."""
    assert jail.tried("result = said(os.chmod, sys.argv[1], 0o777)", jail.inside / "t/file") == "ok"
    assert stat.S_IMODE((jail.inside / "t/file").stat().st_mode) == 0o777
