"""Nothing inside reaches the control socket, and no client can stop the init."""

import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from launcher import wire
from launcher.jail import init, minder
from tests.support import paddock as paddocks
from tests.support.identity import AS_A_USER
from tests.support.install import base_python
from tests.support.paddock import EXEC_PATIENCE as PATIENCE
from tests.support.paddock import Paddock, Session, below, content
from tests.support.programs.scene import SWITCHES, Scene


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
    "half a request": wire.frame(minder.COMMAND, minder.Command(["true"]).encode())[:-3],
    "unknown kind": wire.frame(b"?"),
    "a length beyond all bounds": minder.COMMAND + (1 << 31).to_bytes(4, "little"),
    "zeros": wire.frame(minder.COMMAND, bytes(4096)),
    "marshal": wire.frame(minder.COMMAND, b"\xf3" * 64),
    "no streams": wire.frame(minder.COMMAND, minder.Command(["true"]).encode()),
    "noise": bytes(range(256)) * 64,
}


def test_nonsense_stops_nobody(session: Session) -> None:
    """With each kind of bad client connected, and after it, the session runs a command as ever."""
    for what, data in NONSENSE.items():
        words = ["/usr/bin/python3", "-I", "-S", "-c", RUDE, str(session.directory), data.hex()]
        bad = session.paddock.who.start(words)
        assert bad.stdout is not None
        assert bad.stdout.readline() == b"said\n"
        assert (what, session.run("echo", "fine").stdout) == (what, "fine\n")
        out, errors = bad.communicate(timeout=PATIENCE)
        # Half a request that ends is a client that has left; everything else is refused.
        answer = "nothing" if what.startswith(("nothing", "half")) else "E"
        assert (what, out.decode().strip()) == (what, answer), errors
        assert (what, session.run("echo", "fine").stdout) == (what, "fine\n")


def test_a_request_that_is_too_long_is_refused_before_it_is_read() -> None:
    """The length is judged by the head of the message."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(minder.COMMAND + (minder.MOST_BYTES + 1).to_bytes(4, "little"))
        with pytest.raises(Exception, match="too long"):
            minder.receive(ours.fileno(), [])


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


@AS_A_USER
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
        # The init hangs up unread: before the client has sent everything (EPIPE), or after it (ECONNRESET).
        unread = ("BrokenPipeError\n", "ConnectionResetError\n")
        assert ended.stdout in ("refused\n", "hung up on\n", *unread, "PermissionError\n"), ended
        assert session.run("true").returncode == 0


# Becomes what the first line of its input says. A victim lives until its input ends. The other one tries itself on
# every process that can be named: those of /proc, and every number that one of the commands has.
PART = """
import ctypes, json, os, signal, sys
print("ready", flush=True)
part, *words = sys.stdin.readline().split()
if part == "victim":
    sys.stdin.read()
    print("whole", flush=True)
    sys.exit()
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
done = []
def act(name, call, *arguments):
    try:
        if call(*arguments) != -1:
            done.append(name)
    except OSError:
        pass
word = ctypes.create_string_buffer(8)
vector = (ctypes.c_size_t * 2)(ctypes.addressof(word), 8)
targets = {int(name) for name in words}
for pid in sorted(targets | {int(name) for name in os.listdir("/proc") if name.isdigit()}):
    if pid in (1, os.getpid()):
        continue
    act(f"seize {pid}", libc.ptrace, 0x4206, pid, None, None)
    act(f"memory {pid}", libc.process_vm_readv, pid, vector, 1, vector, 1, 0)
    act(f"mem {pid}", lambda: open(f"/proc/{pid}/mem", "r+b", 0).close())
    for name in ("environ", "maps"):  # those of the kernel's own threads can be opened, and are empty
        act(f"{name} {pid}", lambda: 0 if open(f"/proc/{pid}/{name}", "rb", 0).read(1) else -1)
    for fd in (0, 1, 2):
        act(f"truncate {fd} {pid}", lambda: open(f"/proc/{pid}/fd/{fd}", "r+b", 0).truncate(0))
    if pid in targets:
        act(f"signal {pid}", os.kill, pid, signal.SIGKILL)
        act(f"signal thread {pid}", libc.syscall, 200 if os.uname().machine == "x86_64" else 130, pid, 9)
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        continue
    act(f"descriptor {pid}", libc.syscall, 438, pidfd, 1, 0)
    if pid in targets:
        act(f"signal by pidfd {pid}", signal.pidfd_send_signal, pidfd, signal.SIGKILL)
print(json.dumps(done), flush=True)
sys.stdin.read()  # a session ends with its first command
"""


@pytest.mark.parametrize("order", ["first on further", "further on first", "further on further"])
def test_commands_of_a_session_cannot_touch_each_other(scene: Scene, order: str) -> None:
    """None is signalled, traced, read or written by another one, whichever of them came first."""
    env, options = SWITCHES[scene.backend]
    paddock = Paddock(scene.who, scene.installed, scene.place, scene.repo.one, scene.repo.main)
    command = (base_python(), "-I", "-S", "-c", PART)
    with ExitStack() as stack:
        session = stack.enter_context(Session(paddock, env, command, options))
        further = [stack.enter_context(session.start(*command)) for _ in range(order.count("further"))]
        for process in further:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
        attacking, attacked = {
            "first on further": (session.process, further[0]),
            "further on first": (further[0], session.process),
            "further on further": (further[0], further[-1]),
        }[order]
        seen = [number for pid in below(session.process.pid) for number in numbers(pid)]
        say(attacked, "victim")
        say(attacking, "hostile", *map(str, seen))
        assert attacking.stdout is not None
        done = json.loads(attacking.stdout.readline())
        assert attacked.stdin is not None
        assert attacked.stdout is not None
        attacked.stdin.close()
        assert (done, attacked.stdout.read()) == ([], b"whole\n"), attacked.stderr.read() if attacked.stderr else ""
        for process in further:
            assert process.stdin is not None
            process.stdin.close()


def say(process: "subprocess.Popen[bytes]", *words: str) -> None:
    """Writes a line to a process."""
    assert process.stdin is not None
    process.stdin.write(" ".join(words).encode() + b"\n")
    process.stdin.flush()


def numbers(pid: int) -> list[int]:
    """The process ids of a command of `PART`, in each of its namespaces but those in which it is the first."""
    if b"\0-c\0" not in content(pid, "cmdline") or b"paddock" in content(pid, "cmdline"):
        return []
    lines = content(pid, "status").decode().splitlines()
    (line,) = [line for line in lines if line.startswith("NSpid:")]
    return [number for number in map(int, line.split()[1:]) if number != 1]
