"""Connects that wait, where the guard makes them: they hold up nobody, and stay open to signals."""

from pathlib import Path

import pytest

from tests.support import guarded
from tests.support.features import need
from tests.support.guarded import Guarded
from tests.support.identity import Who
from tests.support.install import Installed


@pytest.fixture
def jail(user: Who, installed: Installed, public_dir: Path) -> Guarded:
    """A jail of the backend landlock+guard, of an ordinary user: waiting knows no root."""
    need("landlock")
    return guarded.at(user, installed, public_dir)


def test_connects_that_block_stop_nobody(jail: Guarded) -> None:
    """With more connects waiting than the guard has threads, other calls go on, and all connects succeed in the end."""
    code = """
server = socket.socket(socket.AF_UNIX)
server.bind("s")
server.listen(0)
while True:  # until it would block
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        answer = said(probe.connect, "s")
        if answer == "EAGAIN":
            break
        probe.detach()
open("file", "w").close()
answers, ready = [], threading.Semaphore(0)
def connect():
    ready.release()
    with socket.socket(socket.AF_UNIX) as sock:
        answers.append(said(sock.connect, "s"))
threads = [threading.Thread(target=connect) for _ in range(60)]
for thread in threads:
    thread.start()
for _ in threads:
    ready.acquire()
for turn in range(300):
    os.chmod("file", 0o600 + turn % 2)
waiting = sum(thread.is_alive() for thread in threads)
def accept():
    while True:
        server.accept()[0].close()
threading.Thread(target=accept, daemon=True).start()
for thread in threads:
    thread.join()
result = [waiting, sorted(set(answers)), len(answers)]
"""
    assert jail.tried(code) == [60, ["ok"], 60]


FULL = """
server = socket.socket(socket.AF_UNIX)
server.bind("s")
server.listen(0)
while True:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        if said(probe.connect, "s") == "EAGAIN":
            break
        probe.detach()
def blocked(pid):
    # In the kernel, in connect(2), for as long as it takes until it is there.
    while open(f"/proc/{pid}/syscall").read().split()[0] != str(NUMBERS["connect"]):
        time.sleep(0.005)
"""


def test_a_blocked_connect_stays_open_to_signals(jail: Guarded) -> None:
    """A caller with a handler gets EINTR, or its connect again with SA_RESTART; stopping it changes nothing."""
    code = (
        FULL
        + """
def child(restart):
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)  # stop signals mean nothing to a group that is orphaned, as the suite's own may be
        ran = []
        signal.signal(signal.SIGUSR1, lambda *_: os.write(writing, b"h"))
        signal.siginterrupt(signal.SIGUSR1, not restart)
        sock = socket.socket(socket.AF_UNIX)
        answer = said(syscall, "connect", sock.fileno(), b"\\1\\0s\\0", 4)
        os.write(writing, str(answer).encode())
        os._exit(0)
    os.close(writing)
    blocked(pid)
    return pid, reading
result = {}
pid, reading = child(False)
os.kill(pid, signal.SIGUSR1)
os.waitpid(pid, 0)
result["interrupted"] = os.read(reading, 64).decode()
pid, reading = child(True)
os.kill(pid, signal.SIGUSR1)
os.kill(pid, signal.SIGTSTP)
result["stopped"] = os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
os.kill(pid, signal.SIGCONT)
result["continued"] = os.WIFCONTINUED(os.waitpid(pid, os.WCONTINUED)[1])
blocked(pid)
server.accept()
os.waitpid(pid, 0)
result["restarted"] = os.read(reading, 64).decode()[-1]
pid, _ = child(False)
os.kill(pid, signal.SIGTERM)
result["killed"] = os.WTERMSIG(os.waitpid(pid, 0)[1])
"""
    )
    found = jail.tried(code)
    assert found == {"interrupted": "hEINTR", "stopped": True, "continued": True, "restarted": "0", "killed": 15}


def test_killed_callers_leave_no_thread_behind(jail: Guarded) -> None:
    """Callers that were killed in a blocked connect, more than there are threads, do not use the guard up."""
    code = (
        FULL
        + """
for turn in range(2):
    pids = []
    for _ in range(45):
        pid = os.fork()
        if pid == 0:
            socket.socket(socket.AF_UNIX).connect("s")
            os._exit(1)
        pids.append(pid)
    for pid in pids:
        blocked(pid)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    ended = [os.WTERMSIG(os.waitpid(pid, 0)[1]) for pid in pids]
other = socket.socket(socket.AF_UNIX)
other.bind("other")
other.listen()
with socket.socket(socket.AF_UNIX) as sock:
    result = [set(ended) == {9}, said(sock.connect, "other")]
"""
    )
    assert jail.tried(code) == [True, "ok"]
