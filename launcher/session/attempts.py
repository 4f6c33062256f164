"""What `paddock doctor` tries inside its miniature jail. Runs there as a programme of its own, under any Python.

Prints one JSON object: row of `policy.promises` -> [["attack" | "twin", what, "denied" | "done", detail], ...].
Imports nothing of Paddock: inside, there may be none.
"""

import ctypes
import json
import os
import platform
import resource
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

Outcome = list[tuple[str, str, str, str]]


def attempt(outcome: Outcome, what: str, action: Callable[[], object], kind: str = "attack") -> None:
    """Records whether `action` raised (denied) or went through (done)."""
    try:
        action()
        outcome.append((kind, what, "done", ""))
    except (OSError, ValueError, AssertionError) as error:
        name = type(error).__name__
        outcome.append((kind, what, "denied", getattr(error, "strerror", None) or str(error) or name))


def read(path: str) -> Callable[[], object]:
    """An action that reads a file."""
    return Path(path).read_bytes


def read_any(paths: list[str]) -> Callable[[], object]:
    """An action that goes through when one of the files can be read."""

    def action() -> None:
        for path in paths:
            try:
                Path(path).read_bytes()
            except OSError:
                continue
            return
        raise PermissionError(1, f"none of {len(paths)}")

    return action


def write(path: str) -> Callable[[], object]:
    """An action that writes a file."""

    def action() -> None:
        with open(path, "ab") as file:
            file.write(b"x")

    return action


def make(path: str) -> Callable[[], object]:
    """An action that writes a file, and removes it: where it lies is not the jail's own on every backend."""

    def action() -> None:
        write(path)()
        os.unlink(path)

    return action


def check(fact: object) -> Callable[[], object]:
    """An action that goes through when `fact` is true."""

    def action() -> None:
        assert fact, "absent"

    return action


def connect(family: int, kind: int, address: object) -> Callable[[], object]:
    """An action that connects (or sends one datagram) to an address."""

    def action() -> None:
        with socket.socket(family, kind) as sock:
            sock.settimeout(2)
            sock.connect(address)  # type: ignore[arg-type]  # its shape depends on the family
            sock.send(b"x")

    return action


def syscall(number: dict[str, int], *arguments: int) -> Callable[[], object]:
    """An action that makes a raw system call, by machine."""

    def action() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.syscall(ctypes.c_long(number[platform.machine()]), *map(ctypes.c_long, arguments)) == -1:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    return action


def daemon(pid_file: str) -> Callable[[], object]:
    """An action that leaves a double-forked, setsid'ed process behind, which records its start."""

    def action() -> None:
        reading, writing = os.pipe()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                with open(pid_file, "w") as file:
                    file.write("started")
                os.write(writing, b"x")
                for descriptor in (0, 1, 2, reading, writing):
                    os.close(descriptor)
                signal.pause()
            os._exit(0)
        os.close(writing)
        if not os.read(reading, 1):
            raise OSError(5, "the daemon did not start")

    return action


def main(given: dict[str, str]) -> dict[str, Outcome]:
    """Makes every attempt; `given` holds the paths, numbers and names that the outside prepared."""
    inside, outside = given["inside"], given["outside"]
    rows: dict[str, Outcome] = {}

    def row(name: str) -> Outcome:
        return rows.setdefault(name, [])

    def pair(name: str, what: str, attack: Callable[[], object], twin: str, allowed: Callable[[], object]) -> None:
        attempt(row(name), what, attack)
        attempt(row(name), twin, allowed, "twin")

    pair("reads", "read a file outside", read(f"{outside}/secret"), "read one inside", read(f"{inside}/file"))
    pair("reads", "read /etc/shadow", read("/etc/shadow"), "read /etc/passwd", read("/etc/passwd"))
    pair("writes", "write a file outside", write(f"{outside}/new"), "write one inside", write(f"{inside}/new"))
    home, temp = os.environ["HOME"], os.environ["TMPDIR"]
    pair("writes", "write into the real home", write(f"{given['home']}/.paddock-selftest"), "write into the private "
         "home", write(f"{home}/selftest"))  # fmt: skip
    pair(
        "writes",
        "write into /etc",
        write("/etc/paddock-selftest"),
        "write into the private temp",
        write(f"{temp}/paddock-selftest"),
    )
    pair("deny-inside-allow", "read the exception", read(f"{given['tree']}/exception/file"), "read beside it",
         read(f"{given['tree']}/beside/file"))  # fmt: skip
    pair("toolchains", "read a file of the real home", read_any(given["private"].split("\n")), "run this interpreter",
         check(True))  # fmt: skip
    pair("handoff", "write an existing .envrc", write(given["handoff"]), "write another file", write(f"{inside}/a"))
    pair("metadata", "chmod outside", lambda: os.chmod(f"{outside}/chmod", 0o777), "chmod inside",
         lambda: os.chmod(f"{inside}/file", 0o700))  # fmt: skip
    pair("environment", "see a variable that is not listed", check("PADDOCK_SELFTEST_SECRET" in os.environ),
         "see PATH", check("PATH" in os.environ))  # fmt: skip
    pair("fds", "use an inherited descriptor", lambda: os.fstat(int(given["descriptor"])), "use standard output",
         lambda: os.fstat(1))  # fmt: skip
    status = Path("/proc/self/status").read_text()
    effective = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff"))
    pair("privileges", "hold a capability", check(int(effective, 16)), "have no_new_privs",
         check("NoNewPrivs:\t1" in status))  # fmt: skip
    child = os.fork()
    if child == 0:
        signal.pause()
    pair("signals", "signal a process outside", lambda: os.kill(int(given["pid"]), signal.SIGURG),
         "signal a child", lambda: os.kill(child, signal.SIGKILL))  # fmt: skip
    os.waitpid(child, 0)
    pair("visibility", "see a process outside", check(given["bystander"].encode() in command_lines()), "see itself",
         check(os.path.exists("/proc/self/status")))  # fmt: skip
    pair("unix-sockets", "connect to a socket file outside", connect(socket.AF_UNIX, socket.SOCK_STREAM, given["unix"]),
         "make a socket pair", lambda: socket.socketpair())  # fmt: skip
    pair("unix-sockets", "connect to an abstract socket outside",
         connect(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + given["abstract"]), "make a pipe", os.pipe)  # fmt: skip
    pair("shared-memory", "read shared memory of others", read(given["shm"]), "make some",
         make(f"/dev/shm/paddock-{os.getpid()}"))  # fmt: skip
    pair("terminals", "open another terminal", lambda: os.open(given["terminal"], os.O_RDWR | os.O_NOCTTY),
         "make a new one", lambda: os.openpty())  # fmt: skip
    pair("network", "connect over TCP", connect(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", int(given["tcp"]))),
         "make a socket pair", lambda: socket.socketpair())  # fmt: skip
    # A datagram to the jail's own loopback is sent without an error; whether one arrived is judged outside.
    attempt([], "send over UDP", connect(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", int(given["udp"]))))
    numbers = {"io_uring": {"x86_64": 425, "aarch64": 425}, "unshare": {"x86_64": 272, "aarch64": 97},
               "bpf": {"x86_64": 321, "aarch64": 280}, "keyctl": {"x86_64": 250, "aarch64": 219},
               "getpid": {"x86_64": 39, "aarch64": 172}}  # fmt: skip
    pair("kernel-surface", "make an io_uring", syscall(numbers["io_uring"], 1, 0), "call getpid",
         syscall(numbers["getpid"]))  # fmt: skip
    attempt(row("kernel-surface"), "make a user namespace", syscall(numbers["unshare"], 0x10000000))
    attempt(row("kernel-surface"), "load a BPF map", syscall(numbers["bpf"], 0, 0, 0))
    attempt(row("kernel-surface"), "join a keyring", syscall(numbers["keyctl"], 1, 0))
    pair("limits", "lift a limit", lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096)),
         "stay below it", check(resource.getrlimit(resource.RLIMIT_NOFILE)[1] == int(given["open_files"])))  # fmt: skip
    attempt(row("survival"), "start a daemon", daemon(f"{inside}/daemon"), "twin")
    return rows


def command_lines() -> bytes:
    """The command lines of all processes that can be seen, but for this one's."""
    found = b""
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                found += Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue
    return found


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8", errors="surrogateescape") as prepared:
        print(json.dumps(main(json.load(prepared))))
