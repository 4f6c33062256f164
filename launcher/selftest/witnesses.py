"""Who sees from outside of the sandbox what an attack has brought about: listeners, and a process that is attacked."""

import ctypes
import functools
import os
import pty
import select
import selectors
import shutil
import socket
import subprocess
import sys
import termios
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from launcher.jail import processes
from policy.plan import SYSTEM_PATH

_STREAMS = (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)
_AT_ONCE = 1 << 16


class Listeners:
    """Servers on sockets of every kind. Whoever connects gets a secret, and what arrives is remembered.

    `api` is one that the sandbox may reach: there, only what holds the word of an attack is remembered.

    Args:
        directory: for sockets with a path.
        abstract: begins the names of those without.
        tokens: kind of a socket -> the secret that it answers with.
        key: what requests to `api` need; the answer says whether it came.
    """

    def __init__(self, directory: Path, abstract: str, tokens: dict[str, str], key: str) -> None:
        self.facts: dict[str, str] = {}
        self._tokens, self._key = tokens, key
        self._arrived: list[str] = []
        self._asked: list[bytes] = []
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._idle = threading.Event()
        tcp, udp, seq, unix = socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET, socket.AF_UNIX
        for name, family, kind, address in (
            ("PORT", socket.AF_INET, tcp, ("127.0.0.1", 0)), ("PORT2", socket.AF_INET, tcp, ("127.0.0.2", 0)),
            ("PORT6", socket.AF_INET6, tcp, ("::1", 0)), ("API", socket.AF_INET, tcp, ("127.0.0.1", 0)),
            ("UDP", socket.AF_INET, udp, ("127.0.0.1", 0)), ("UDP6", socket.AF_INET6, udp, ("::1", 0)),
            ("SOCKET", unix, tcp, "stream"), ("SOCKET_DATAGRAM", unix, udp, "datagram"),
            ("SOCKET_PACKETS", unix, seq, "packets"), ("ABSTRACT", unix, tcp, f"\0{abstract}-stream"),
            ("ABSTRACT_DATAGRAM", unix, udp, f"\0{abstract}-datagram"),
        ):  # fmt: skip
            sock = socket.socket(family, kind)
            try:
                self.facts[name] = _bound(sock, directory, address)
            except OSError:
                sock.close()
                self.facts[name] = "0"  # this machine has no such address
                continue
            if kind in _STREAMS:
                sock.listen(16)
            self._selector.register(sock, selectors.EVENT_READ, name)
        self._waking, self._wake = socket.socketpair()
        self._selector.register(self._waking, selectors.EVENT_READ, "")
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def arrived(self, word: str) -> list[str]:
        """What has come since this was last asked, for people.

        Args:
            word: of the attack.
        """
        self._idle.clear()
        self._wake.send(b"x")
        self._idle.wait(5)  # what has come already is taken before that
        with self._lock:
            found = [f"reached a listener ({name.lower()})" for name in self._arrived]
            found += ["sent a forbidden request to the API" for request in self._asked if word.encode() in request]
            self._arrived.clear()
            self._asked.clear()
        return found

    def close(self) -> None:
        """Ends all of them."""
        self._wake.close()
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]  # sockets
        self._selector.close()

    def _serve(self) -> None:
        while True:
            ready = {key.data: key.fileobj for key, _ in self._selector.select()}
            woken = ready.pop("", None)
            for name, sock in ready.items():
                assert isinstance(sock, socket.socket)
                with suppress(OSError):
                    self._take(sock, name)
            if woken is not None:
                if not self._waking.recv(1):
                    return
                self._idle.set()

    def _take(self, sock: socket.socket, name: str) -> None:
        if sock.type not in _STREAMS:
            sock.recv(_AT_ONCE)
            self._remember(name)
            return
        peer, _ = sock.accept()
        with peer:
            peer.settimeout(1)
            if name != "API":
                self._remember(name)
                with suppress(OSError):
                    peer.recv(_AT_ONCE)
                peer.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + self._tokens["a listener"].encode() + b"\n")
                return
            request = _request(peer)
            with self._lock:
                self._asked.append(request)
            answer = b"granted" if self._key.encode() in request else b"hello"
            peer.sendall(
                b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(answer), answer)
            )

    def _remember(self, name: str) -> None:
        with self._lock:
            if name not in self._arrived:
                self._arrived.append(name)


def _bound(sock: socket.socket, directory: Path, address: object) -> str:
    """Binds a socket; how the scripts find it."""
    if isinstance(address, str) and not address.startswith("\0"):
        # The path of a socket is short by law (108 bytes); the directory's descriptor makes it so.
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            sock.bind(f"/proc/self/fd/{descriptor}/{address}")
        finally:
            os.close(descriptor)
        return f"{directory}/{address}"
    sock.bind(address)  # type: ignore[arg-type]  # its shape depends on the family
    return address[1:] if isinstance(address, str) else str(sock.getsockname()[1])


def _request(peer: socket.socket) -> bytes:
    """One request, as much of it as comes at once."""
    request = b""
    with suppress(OSError):
        while b"\r\n\r\n" not in request and len(request) < _AT_ONCE:
            if not (piece := peer.recv(_AT_ONCE)):
                break
            request += piece
        peer.settimeout(0.1)
        request += peer.recv(_AT_ONCE)
    return request


class Bystander:
    """A process of the same user, which has secrets in its words, its environment and a file that it has open.

    Args:
        tokens: place -> secret.
        prize: the file.
    """

    def __init__(self, tokens: dict[str, str], prize: Path) -> None:
        self._tokens, self._prize = tokens, prize
        self._start()

    def _start(self) -> None:
        sleep = shutil.which("sleep", path=SYSTEM_PATH) or "/bin/sleep"
        with open(self._prize, "rb") as prize:
            self._process = subprocess.Popen(
                [self._tokens["another process's words"], "3600"], executable=sleep, stdin=prize,
                env={"SECRET": self._tokens["another process's environment"]}, start_new_session=True,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self._prize.parent,
                preexec_fn=functools.partial(processes.tie_to_parent, os.getpid()),
            )  # fmt: skip
        self._before = self._state()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def changes(self) -> list[str]:
        """What was done to it, for people; then there is a new one."""
        now = self._state()
        if now == self._before:
            return []
        what = sorted(name for name in self._before if now.get(name) != self._before[name])
        self.end()
        self._start()
        return ["killed another process" if not now else f"changed another process ({', '.join(what)})"]

    def _state(self) -> dict[str, str]:
        """What others could change of it; nothing when it has ended."""
        if self._process.poll() is not None:
            return {}
        found = {}
        try:
            above = Path(f"/proc/{self.pid}")
            status = dict(line.split(":\t", 1) for line in (above / "status").read_text().splitlines() if ":\t" in line)
            numbers = (above / "stat").read_text().rpartition(")")[2].split()
            found["stopped"] = "yes" if numbers[0] in "tT" else "no"
            found["priority"] = " ".join(numbers[15:17] + numbers[37:39])
            found["process group"] = numbers[2]
            found["processors"] = status.get("Cpus_allowed_list", "")
            found["tracer"] = status.get("TracerPid", "")
            found["limits"] = (above / "limits").read_text()
            found["oom_score_adj"] = (above / "oom_score_adj").read_text()
            found["timer slack"] = (above / "timerslack_ns").read_text()
        except OSError:
            if self._process.poll() is not None:
                return {}
        return found

    def end(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.wait()


class Terminal:
    """A terminal of the same user's, with nobody at it."""

    def __init__(self) -> None:
        self._ours, self._theirs = pty.openpty()
        self.name = os.ttyname(self._theirs)
        self._before = termios.tcgetattr(self._theirs)

    def changes(self) -> list[str]:
        """What was done to it, for people; then it is as before."""
        found = []
        if select.select([self._ours], [], [], 0)[0]:
            os.read(self._ours, _AT_ONCE)
            found.append("wrote on another terminal")
        if termios.tcgetattr(self._theirs) != self._before:
            termios.tcsetattr(self._theirs, termios.TCSANOW, self._before)
            found.append("changed another terminal")
        return found

    def close(self) -> None:
        """Ends it."""
        os.close(self._ours)
        os.close(self._theirs)


class SystemV:
    """Shared memory and a queue of messages, which hold secrets and go by numbers (sysvipc(7)).

    Args:
        memory: what the memory holds.
        message: what the one message says.
    """

    def __init__(self, memory: str, message: str) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.shmat.restype = ctypes.c_void_p
        self._memory = self._libc.shmget(0, 4096, 0o1600)
        self._queue = self._libc.msgget(0, 0o1600)
        self.facts = {"SYSTEM_V": str(self._memory), "QUEUE": str(self._queue)}
        address = self._libc.shmat(self._memory, None, 0)
        if address not in (None, ctypes.c_void_p(-1).value):
            ctypes.memmove(address, memory.encode(), len(memory))
            self._libc.shmdt(ctypes.c_void_p(address))
        text = ctypes.create_string_buffer((1).to_bytes(8, sys.byteorder) + message.encode())
        self._libc.msgsnd(self._queue, text, len(message), 0o4000)

    def close(self) -> None:
        """Removes both."""
        self._libc.shmctl(self._memory, 0, None)
        self._libc.msgctl(self._queue, 0, None)


def survivors(words: Iterable[str]) -> dict[str, int]:
    """The words that living processes have on their command lines, or got as variables -> their process ids.

    What has just been forked has the command line of its parent yet, and its own variables already.
    """
    found: dict[str, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        known = b""
        for each in ("cmdline", "environ"):
            with suppress(OSError):
                known += Path(f"/proc/{name}/{each}").read_bytes()
        found |= {word: int(name) for word in words if word.encode() in known}
    return found
