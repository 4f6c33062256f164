"""Nothing inside reaches the control socket, and no client can stop the init."""

import json
import socket
import subprocess
import threading
import time
from contextlib import ExitStack

import pytest

from launcher import wire
from launcher.jail import init, minder
from policy import promises
from tests.conftest import IDENTITIES
from tests.support import paddock as paddocks
from tests.support.features import need_backend
from tests.support.identity import AS_A_USER
from tests.support.install import base_python
from tests.support.paddock import EXEC_PATIENCE as PATIENCE
from tests.support.paddock import Paddock, Session, below, content
from tests.support.programs.scene import SWITCHES

OF_A_USER = pytest.mark.parametrize(
    ("name_of_who", "shared_session"), [(IDENTITIES[-1], "namespaces")], indirect=["shared_session"]
)
"""Of a test of words, which knows no difference between identities and backends."""


@pytest.fixture
def session(shared_session: Session) -> Session:
    """One of the sessions that live as long as the tests of this file."""
    return shared_session


CONNECT = """
import socket, sys
for name in (sys.argv[1], "\\0" + sys.argv[1]):
    client = socket.socket(socket.AF_UNIX)
    try:
        client.connect(name)
    except OSError as error:
        print(type(error).__name__)
    else:
        print("connected")
"""


def test_it_cannot_be_reached_from_inside(session: Session) -> None:
    """By its path it leads nowhere, neither for a further command nor for another session's first one, and it has no
    abstract name.
    """
    path = session.directory / "control"
    assert path.is_socket()
    python = ("/usr/bin/python3", "-I", "-S", "-c", CONNECT, path)
    for ended in (session.run(*python), session.paddock.run("--", *python, env=session.env)):
        by_path, abstract = ended.stdout.split()
        assert by_path in ("FileNotFoundError", "PermissionError"), ended
        assert abstract in ("ConnectionRefusedError", "PermissionError"), ended


def test_no_descriptor_of_it_is_inherited(session: Session) -> None:
    """A command holds its three streams and what it opened itself."""
    first, further = session.paddock.worktree / "first.fds", session.run("ls", "/proc/self/fd").stdout
    assert (first.read_text().split(), further.split()) == (["0", "1", "2", "3"],) * 2


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


# Says something different to the control socket by each of many connections, then waits to be told to leave, and says
# what each was told meanwhile.
RUDE = """
import json, os, socket, sys
clients = {}
for what, data in json.loads(sys.argv[2]).items():
    client = clients[what] = socket.socket(socket.AF_UNIX)
    client.settimeout(30)
    client.connect(f"/proc/self/fd/{os.open(sys.argv[1], os.O_PATH)}/control")
    try:
        client.sendall(bytes.fromhex(data))
    except BrokenPipeError:
        pass
print("said", flush=True)
sys.stdin.read()
answers = {}
for what, client in clients.items():
    client.shutdown(socket.SHUT_WR)
    answers[what] = client.recv(65536)[:1].decode() or "nothing"
print(json.dumps(answers))
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


@OF_A_USER
def test_nonsense_stops_nobody(session: Session) -> None:
    """With each kind of bad client connected, and after it, the session runs a command as ever."""
    data = json.dumps({what: each.hex() for what, each in NONSENSE.items()})
    bad = session.paddock.who.start(["/usr/bin/python3", "-I", "-S", "-c", RUDE, session.directory, data])
    assert bad.stdout is not None
    assert bad.stdout.readline() == b"said\n"
    assert session.run("echo", "fine").stdout == "fine\n"
    out, errors = bad.communicate(timeout=PATIENCE)
    # Half a request that ends is a client that has left; everything else is refused.
    left = ("nothing", "half")
    assert json.loads(out) == {what: "nothing" if what.startswith(left) else "E" for what in NONSENSE}, errors
    assert session.run("echo", "fine").stdout == "fine\n"


def test_a_request_that_is_too_long_is_refused_before_it_is_read() -> None:
    """The length is judged by the head of the message."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(minder.COMMAND + (minder.MOST_BYTES + 1).to_bytes(4, "little"))
        with pytest.raises(Exception, match="too long"):
            minder.receive(ours.fileno(), [])


def test_more_commands_than_allowed_are_refused(user_paddock: Paddock) -> None:
    """The bound is on what runs or may begin at the same time: when one has ended, another may start."""
    few = 3
    with Session(user_paddock) as session:
        silent = json.dumps(dict.fromkeys(map(str, range(init.MOST_OTHERS - few)), ""))
        others = user_paddock.who.start(["/usr/bin/python3", "-I", "-S", "-c", RUDE, session.directory, silent])
        assert others.stdout is not None
        assert others.stdout.readline() == b"said\n"
        waiting = [session.start("sh", "-c", "echo ready; exec cat") for _ in range(few)]
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
            for process in (*waiting, others):
                process.communicate(timeout=PATIENCE)
        assert [process.returncode for process in (*waiting, others)] == [0] * (few + 1)


@OF_A_USER
def test_many_at_once_do_not_disturb_each_other(session: Session) -> None:
    """Ten commands that start in the same moment each get their own input, output and status."""
    results: dict[int, tuple[int, str]] = {}

    def one(number: int) -> None:
        ended = session.run("sh", "-c", f"cat; exit {number}", stdin=f"text {number}")
        results[number] = (ended.returncode, ended.stdout)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: (number, f"text {number}") for number in range(10)}


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


@AS_A_USER
@pytest.mark.parametrize("of", ["PADDOCK_NO_USERNS", "", "PADDOCK_NO_LANDLOCK"])
def test_no_other_session_gives_it_orders(paddock: Paddock, of: str) -> None:
    """A session in another environment, with this one's directory in a grant, is refused. Outside, all is answered."""
    other = {"XDG_STATE_HOME": str(paddock.who.home / "other")}
    give = ("--quiet", "--net", "none", "--rw", paddock.state / "sessions")
    # The init hangs up unread: before the client has sent everything (EPIPE), or after it (ECONNRESET).
    refused = {"refused\n", "hung up on\n", "BrokenPipeError\n", "ConnectionResetError\n", "PermissionError\n"}
    with Session(paddock, {of: "1"} if of else {}) as session:
        path = session.directory / "control"
        moved = paddock.state / "sessions" / ".moved"
        python = ("/usr/bin/python3", "-I", "-S", "-c", ORDER)
        assert paddock.who.run([*python, path]).stdout == "answered\n"
        for by in ("PADDOCK_NO_USERNS", "", "PADDOCK_NO_LANDLOCK"):
            path.rename(moved)
            ended = paddock.run(*give, "--", *python, moved, env=other | ({by: "1"} if by else {}))
            moved.rename(path)
            assert ended.stdout in refused, (by, ended)
        assert session.run("true").returncode == 0


# For each line of its input it tries itself on every process that can be named: those of /proc, and every number that
# one of the commands has, which the line holds. At the end of its input it is whole, if nobody has done it harm.
PART = """
import ctypes, json, os, signal, sys
print("ready", flush=True)
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
for line in sys.stdin:
    targets = {int(name) for name in line.split()}
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
print("whole", flush=True)
"""


@pytest.mark.parametrize(
    ("who", "backend"),
    [
        *((IDENTITIES[-1], backend) for backend in promises.BACKENDS),
        *((who, promises.GUARD) for who in IDENTITIES[:-1]),
    ],
    indirect=["who"],
)
def test_commands_of_a_session_cannot_touch_each_other(paddock: Paddock, backend: str) -> None:
    """None is signalled, traced, read or written by another one, whichever of them came first."""
    need_backend(backend)
    env, options = SWITCHES[backend]
    command = (base_python(), "-I", "-S", "-c", PART)
    with ExitStack() as stack:
        session = stack.enter_context(Session(paddock, env, command, options))
        further = [stack.enter_context(session.start(*command)) for _ in range(2)]
        for process in further:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
        commands = {"first": session.process, "further": further[0], "another": further[1]}
        seen = [number for pid in below(session.process.pid) for number in numbers(pid)]
        assert len(seen) >= len(commands)
        done = {name: hostile(process, seen) for name, process in commands.items()}
        whole = {name: whole_until_its_end(commands[name]) for name in ("further", "another", "first")}
        assert done == dict.fromkeys(commands, "[]\n")
        assert whole == dict.fromkeys(commands, b"whole\n")


def hostile(process: "subprocess.Popen[bytes]", targets: list[int]) -> str:
    """What a command of `PART` has done to other processes, these numbers among them."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(" ".join(map(str, targets)).encode() + b"\n")
    process.stdin.flush()
    return process.stdout.readline().decode()


def whole_until_its_end(process: "subprocess.Popen[bytes]") -> bytes:
    """What a command of `PART` says last."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    return process.stdout.read()


def numbers(pid: int) -> list[int]:
    """The process ids of a command of `PART`, in each of its namespaces but those in which it is the first."""
    if b"\0-c\0" not in content(pid, "cmdline") or b"paddock" in content(pid, "cmdline"):
        return []
    lines = content(pid, "status").decode().splitlines()
    (line,) = [line for line in lines if line.startswith("NSpid:")]
    return [number for number in map(int, line.split()[1:]) if number != 1]
