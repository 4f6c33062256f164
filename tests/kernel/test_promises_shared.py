"""Promises about what processes of one user share: memory, semaphores, queues, keys, terminals."""

import ctypes
import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import termios
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from policy import promises
from tests.support.identity import Who
from tests.support.install import base_python
from tests.support.programs.harness import Given
from tests.support.programs.scene import SECRET, Answers, Scene, leaked

# Makes one of each as the identity (objects of another user would be closed by their modes), tells their numbers, and
# at the word of its standard input what has become of them.
OWNER = """
import ctypes, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
key, name, secret = int(sys.argv[1]), sys.argv[2], sys.argv[3].encode()
def made(value):
    if value == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return value
memory = made(libc.shmget(key, 4096, 0o1600))
libc.shmat.restype = ctypes.c_void_p
address = libc.shmat(memory, None, 0)
ctypes.memmove(address, secret, len(secret))
semaphore = made(libc.semget(key, 1, 0o1600))
made(libc.semctl(semaphore, 0, 16, 3))
queue = made(libc.msgget(key, 0o1600))
made(libc.msgsnd(queue, (1).to_bytes(8, "little") + secret, len(secret), 0))
librt = ctypes.CDLL("librt.so.1", use_errno=True)
posix = made(librt.mq_open(("/" + name).encode(), 0o102, 0o600, None))
for suffix in ("", "-spare"):
    with open("/dev/shm/" + name + suffix, "w") as file:
        file.write(secret.decode())
print(json.dumps({"memory": memory, "semaphore": semaphore, "queue": queue}), flush=True)
def state():
    buffer = ctypes.create_string_buffer(200)
    count = libc.msgrcv(queue, buffer, 190, 0, 0o4000)
    more = libc.msgrcv(queue, buffer, 190, 0, 0o4000)
    return {"memory": ctypes.string_at(address, len(secret)).decode(), "value": libc.semctl(semaphore, 0, 12),
            "messages": [count, more], "queue": librt.mq_unlink(("/" + name).encode()),
            "files": [open("/dev/shm/" + name).read(), os.path.exists("/dev/shm/" + name + "-spare")]}
sys.stdin.readline()
print(json.dumps(state()), flush=True)
libc.shmctl(memory, 0, None)
libc.semctl(semaphore, 0, 0)
libc.msgctl(queue, 0, None)
for suffix in ("", "-spare"):
    if os.path.exists("/dev/shm/" + name + suffix):
        os.unlink("/dev/shm/" + name + suffix)
"""


def test_promise_shared_memory(scene: Scene) -> None:
    """Shared memory, semaphores, queues and keys of others stay unseen and untouched; the jail's own can be used."""
    key, name = 0x50000000 | int.from_bytes(os.urandom(3), "little"), f"paddock-test-{os.urandom(6).hex()}"
    owner = subprocess.Popen(
        scene.who.command([base_python(), "-I", "-S", "-c", OWNER, str(key), name, SECRET]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=scene.place,
        env=scene.who.environment(),
    )
    with owner:
        assert owner.stdout is not None
        numbers = json.loads(owner.stdout.readline())
        try:
            programme = "shared,shared:OWN_IPC" if promises.has_mounts(scene.backend) else "shared"
            answers = scene.tried(programme, numbers | {"key": key, "name": name, "posix": name})
        finally:
            state = json.loads(owner.communicate("tell\n")[0])
    seen = set(leaked(answers))
    untouched = {
        "memory": SECRET,
        "value": 3,
        "messages": [len(SECRET), -1],
        "queue": 0,
        "files": [SECRET, True],
    }
    seen |= {f"changed {what}" for what in untouched if state[what] != untouched[what]}
    closed = {
        *("attach_by_key", "attach_by_number", "set_a_semaphore", "take_a_message", "send_a_message", "open_a_queue"),
        *("remove_a_queue", "read_a_key", "add_a_key", "ask_for_a_key", "changed memory", "changed value"),
        *("changed messages", "changed queue"),
    }
    scene.judge("shared-memory", answers, seen=seen, closed_anyway=closed)


@contextmanager
def terminal(who: Who) -> Iterator[tuple[int, int]]:
    """A new pseudo terminal of `who`, 91 columns wide, without echo: its two ends."""
    ours, theirs = pty.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 91, 0, 0))
        settings = termios.tcgetattr(theirs)
        settings[3] &= ~(termios.ECHO | termios.ICANON)
        termios.tcsetattr(theirs, termios.TCSANOW, settings)
        if os.geteuid() == 0:
            os.fchown(theirs, who.uid, who.gid)
        yield ours, theirs
    finally:
        os.close(ours)
        os.close(theirs)


def waiting(descriptor: int) -> bytes:
    """What can be read at once."""
    found = b""
    while select.select([descriptor], [], [], 0)[0]:
        found += os.read(descriptor, 4096)
    return found


def on_a_terminal(scene: Scene, theirs: int, programme: str, given: Given) -> Answers:
    """Runs attacks with this end of a terminal as standard input and controlling terminal."""
    words = scene.command(scene.words(programme, given))
    ended = subprocess.run(
        ["setsid", "--ctty", "--wait", *scene.who.command(words)],
        cwd=scene.area,
        env=scene.environment(),
        stdin=theirs,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return Answers(json.loads(ended.stdout))


def test_promise_terminals(scene: Scene) -> None:
    """Another terminal of the user stays closed, and nothing can be typed in his name on the one in use."""
    with ExitStack() as stack:
        (ours, theirs), (other, foreign) = (stack.enter_context(terminal(scene.who)) for _ in range(2))
        sitting = subprocess.Popen(
            scene.who.command(["cat"]), stdin=foreign, stdout=subprocess.DEVNULL, cwd=scene.place
        )
        stack.enter_context(sitting)
        stack.callback(sitting.kill)
        given = {"other": os.ttyname(foreign), "pid": sitting.pid, "device": os.fstat(foreign).st_rdev}
        mode = os.fstat(foreign).st_mode
        answers = on_a_terminal(scene, theirs, "shared:TERMINALS", given)
        shown = waiting(ours)
        seen = set()
        if waiting(theirs):
            seen.add("typed")
        if waiting(other):
            seen.add("written to the other")
        if os.fstat(foreign).st_mode != mode:
            seen.add("mode of the other")
    assert b"hello from the jail" in shown
    if promises.has_mounts(scene.backend):
        answers += scene.tried("shared:NEW", {})
    closed = {name for name in (a["name"] for a in answers) if name.startswith(("push", "paste"))}
    scene.judge("terminals", answers, seen=seen, closed_anyway=closed | {"typed"})


def test_keys_can_be_pushed_without_a_jail(who: Who) -> None:
    """Where the kernel still allows TIOCSTI, the attack types a letter, so its denial means something."""
    legacy = Path("/proc/sys/dev/tty/legacy_tiocsti")
    with terminal(who) as (_, theirs):
        program = "import fcntl; fcntl.ioctl(0, 0x5412, b'x')"
        ended = subprocess.run(
            ["setsid", "--ctty", "--wait", base_python(), "-I", "-S", "-c", program],
            stdin=theirs,
            capture_output=True,
            check=False,
        )
        allowed = not legacy.exists() or legacy.read_text().strip() == "1" or os.geteuid() == 0
        assert (ended.returncode == 0) == allowed, ended.stderr
        assert bool(waiting(theirs)) == allowed
    assert ctypes.sizeof(ctypes.c_long) == 8
