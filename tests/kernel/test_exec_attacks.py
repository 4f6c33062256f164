"""Nothing inside reaches the control socket, and no client can stop the init."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from launcher.jail import init, request
from tests.support import paddock as paddocks
from tests.support.paddock import Paddock
from tests.support.session import PATIENCE, Session


@pytest.fixture
def session(paddock: Paddock, backend: dict[str, str]) -> Iterator[Session]:
    """A session that lives as long as the test."""
    with Session(paddock, backend) as live:
        yield live


CONNECT = """
import socket, sys
kind, name = sys.argv[1:]
client = socket.socket(socket.AF_UNIX)
try:
    client.connect("\\0" + name if kind == "abstract" else name)
except OSError as error:
    print(type(error).__name__)
else:
    print("connected")
"""


@pytest.mark.parametrize("way", ["run", "exec"])
def test_its_path_leads_nowhere_inside(session: Session, way: str) -> None:
    """Neither the first command nor a further one can connect to the socket by its path."""
    path = session.directory / "control"
    assert path.is_socket()
    python = ("/usr/bin/python3", "-I", "-S", "-c", CONNECT, "path", path)
    ended = session.run(*python) if way == "exec" else session.paddock.run("--", *python, env=session.env)
    assert ended.stdout.strip() in ("FileNotFoundError", "PermissionError"), ended


def test_it_has_no_abstract_name(session: Session) -> None:
    """The socket exists under its path only."""
    ended = session.run("/usr/bin/python3", "-I", "-S", "-c", CONNECT, "abstract", session.directory / "control")
    assert ended.stdout.strip() in ("ConnectionRefusedError", "PermissionError"), ended


@pytest.mark.parametrize("way", ["run", "exec"])
def test_no_descriptor_of_it_is_inherited(paddock: Paddock, backend: dict[str, str], way: str) -> None:
    """A command holds its three streams and what it opened itself."""
    show = ("sh", "-c", "ls /proc/self/fd >fds; echo ready; exec cat")
    with Session(paddock, backend, show) as session:
        shown = session.run("ls", "/proc/self/fd").stdout if way == "exec" else (paddock.worktree / "fds").read_text()
    assert shown.split() == ["0", "1", "2", "3"]


TAKE = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
own, taken = os.getpid(), []
for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            if pid == own or b"paddock" not in file.read():
                continue
    except OSError:
        continue
    taken.append("seen")
    for act in (lambda: os.readlink(f"/proc/{pid}/fd/0"), lambda: open(f"/proc/{pid}/environ").read(),
                lambda: open(f"/proc/{pid}/mem", "rb"), lambda: os.stat(f"/proc/{pid}/root/")):
        try:
            act()
            taken.append(f"{pid} read")
        except OSError:
            pass
    if libc.ptrace(16, pid, 0, 0) == 0:
        taken.append(f"{pid} traced")
    pidfd = os.pidfd_open(pid)
    if any(libc.syscall(438, pidfd, fd, 0) >= 0 for fd in range(40)):
        taken.append(f"{pid} descriptor")
print(*sorted(set(taken)))
"""


def test_processes_of_ours_inside_give_nothing_away(session: Session) -> None:
    """Init and the process above the command can be seen, but neither traced nor read, and no descriptor taken."""
    ended = session.run("/usr/bin/python3", "-I", "-S", "-c", TAKE)
    assert (ended.returncode, ended.stdout) == (0, "seen\n"), ended


# Says something to the control socket, then waits to be told to leave, and says what it was told meanwhile.
RUDE = """
import os, socket, sys
client = socket.socket(socket.AF_UNIX)
client.settimeout(30)
client.connect(f"/proc/self/fd/{os.open(sys.argv[1], os.O_PATH)}/control")
try:
    client.sendall(bytes.fromhex(sys.argv[2]))
except BrokenPipeError:
    pass
print("said", flush=True)
sys.stdin.read()
client.shutdown(socket.SHUT_WR)
answer = client.recv(65536)
print(answer[:1].decode() or "nothing")
"""


NONSENSE = {
    "nothing": b"",
    "half a head": b"Q\x01",
    "half a request": request.message(request.COMMAND, request.Command(["true"]).encode())[:-3],
    "unknown kind": request.message(b"?"),
    "a length beyond all bounds": request.COMMAND + (1 << 31).to_bytes(4, "little"),
    "zeros": request.message(request.COMMAND, bytes(4096)),
    "marshal": request.message(request.COMMAND, b"\xf3" * 64),
    "no streams": request.message(request.COMMAND, request.Command(["true"]).encode()),
    "noise": bytes(range(256)) * 64,
}


@pytest.mark.parametrize("what", list(NONSENSE))
def test_nonsense_stops_nobody(session: Session, what: str) -> None:
    """With each kind of bad client connected, and after it, the session runs a command as ever."""
    words = ["/usr/bin/python3", "-I", "-S", "-c", RUDE, str(session.directory), NONSENSE[what].hex()]
    bad = session.paddock.who.start(words)
    assert bad.stdout is not None
    assert bad.stdout.readline() == b"said\n"
    assert session.run("echo", "fine").stdout == "fine\n"
    out, errors = bad.communicate(timeout=PATIENCE)
    # Half a request that ends is a client that has left; everything else is refused.
    assert out.decode().strip() == ("nothing" if what.startswith(("nothing", "half")) else "E"), errors
    assert session.run("echo", "fine").stdout == "fine\n"


def test_a_request_that_is_too_long_is_refused_before_it_is_read() -> None:
    """The length is judged by the head of the message."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(request.COMMAND + (request.MOST_BYTES + 1).to_bytes(4, "little"))
        with pytest.raises(Exception, match="too long"):
            request.receive(ours.fileno(), [])


def test_more_commands_than_allowed_are_refused(user_paddock: Paddock) -> None:
    """The bound is on what runs at the same time: when one has ended, another may start."""
    with Session(user_paddock) as session:
        waiting = [session.start("sh", "-c", "echo ready; exec cat") for _ in range(init.MOST_OTHERS)]
        try:
            for process in waiting:
                assert process.stdout is not None
                assert process.stdout.readline() == b"ready\n"
            assert user_paddock.refused("exec", session.name, "--", "true").reference == "session-busy"
            waiting[0].communicate(timeout=PATIENCE)
            deadline = time.monotonic() + PATIENCE
            while (ended := session.run("true")).returncode and time.monotonic() < deadline:
                assert paddocks.said(ended.stderr).reference == "session-busy"
            assert ended.returncode == 0
        finally:
            for process in waiting:
                process.communicate(timeout=PATIENCE)
        assert [process.returncode for process in waiting] == [0] * init.MOST_OTHERS


def test_many_at_once_do_not_disturb_each_other(session: Session) -> None:
    """Twenty commands that start in the same moment each get their own input, output and status."""
    results: dict[int, tuple[int, str]] = {}

    def one(number: int) -> None:
        ended = session.run("sh", "-c", f"cat; exit {number}", stdin=f"text {number}")
        results[number] = (ended.returncode, ended.stdout)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: (number, f"text {number}") for number in range(20)}


def test_a_further_command_cannot_signal_the_first(session: Session) -> None:
    """Each command is a Landlock domain of its own: SIGKILL across gives EPERM, and within it works."""
    find = "$(grep -ls '^Name:.cat' /proc/[0-9]*/status)"
    ended = session.run("bash", "-c", f"sleep 1000 & kill -KILL $! && for p in {find}; do kill -KILL ${{p:6:-7}}; done")
    assert "not permitted" in ended.stderr
    assert session.run("true").returncode == 0
    assert session.process.poll() is None


# Says who it is, if it finds out how, and asks what the session is.
ORDER = """
import glob, os, socket, sys
client = socket.socket(socket.AF_UNIX)
client.settimeout(30)
try:
    client.connect(sys.argv[1])
    launcher = int.from_bytes(client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 4), sys.byteorder)
    for path in glob.glob(f"/proc/{launcher}/fd/*"):
        try:
            if os.readlink(path).startswith("/memfd:paddock-session"):
                proof = open(path, "rb").read()
                client.sendall(b"P" + len(proof).to_bytes(4, "little") + proof)
        except OSError:
            pass
    client.sendall(b"A" + bytes(4))
    print({b"E": "refused", b"R": "answered"}.get(client.recv(65536)[:1], "hung up on"))
except OSError as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize("of", ["PADDOCK_NO_USERNS", "", "PADDOCK_NO_LANDLOCK"])
@pytest.mark.parametrize("by", ["PADDOCK_NO_USERNS", "", "PADDOCK_NO_LANDLOCK"])
def test_no_other_session_gives_it_orders(paddock: Paddock, of: str, by: str) -> None:
    """A session in another environment, with this one's directory in a grant, is refused. Outside, all is answered."""
    other = {"XDG_STATE_HOME": str(paddock.who.home / "other"), **({by: "1"} if by else {})}
    give = ("--quiet", "--net", "none", "--rw", paddock.state / "sessions")
    with Session(paddock, {of: "1"} if of else {}) as session:
        path = session.directory / "control"
        moved = paddock.state / "sessions" / ".moved"
        python = ("/usr/bin/python3", "-I", "-S", "-c", ORDER)
        assert paddock.who.run([*python, path]).stdout == "answered\n"
        path.rename(moved)
        ended = paddock.run(*give, "--", *python, moved, env=other)
        moved.rename(path)
        assert ended.stdout in ("refused\n", "hung up on\n", "ConnectionResetError\n", "PermissionError\n"), ended
        assert session.run("true").returncode == 0
