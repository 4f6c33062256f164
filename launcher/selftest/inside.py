"""What runs inside the sandbox: one attack or control after another, as standard input names them, a line of JSON each.

Each is a child of its own: sh(1), or Python with the names of this module. What it printed goes back as one line; what
it has brought about is judged by whoever asked. Imports nothing of Paddock: inside, there may be none.
"""

import array
import ctypes
import errno
import fcntl
import json
import mmap
import os
import platform
import resource
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterable
from typing import Any

PRELUDE = """
plant() {
    mkdir -p "$(dirname "$1")"
    printf '#!/bin/sh\\necho %s >>"%s/planted"\\n' "$WORD" "$OUT" >"$1"
    chmod 755 "$1"
}
"""
"""In front of each shell script: `plant FILE` makes a programme that shows where it was run."""

MODULES = (array, errno, fcntl, mmap, resource, shutil, struct, subprocess, termios, threading)
"""For the scripts."""

MOST = 1 << 16
"""Bytes of output that go back."""

E = os.environ
libc = ctypes.CDLL(None, use_errno=True)


def proof(fact: object = True) -> None:
    """Prints the word that stands for success, where nobody but the attack itself can see that it succeeded."""
    if fact:
        print(E["PROOF"], flush=True)


def works(fact: object = True) -> None:
    """Prints the word that stands for a control that works."""
    if fact:
        print(E["WORD"], flush=True)


def call(intel: int, arm: int, *arguments: Any) -> int:  # noqa: ANN401  # numbers and buffers
    """Makes a system call by its numbers on x86-64 and on 64-bit ARM.

    Raises:
        OSError: what the kernel answered.
    """
    number = {"x86_64": intel, "aarch64": arm}.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, "not on this machine")
    words = [word if isinstance(word, bytes | ctypes.Array) else ctypes.c_long(word) for word in arguments]
    result: int = libc.syscall(ctypes.c_long(number), *words)
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def reached(intel: int, arm: int, *arguments: Any) -> bool:  # noqa: ANN401
    """Whether a call reaches the kernel's own code: an error about its arguments is a yes."""
    try:
        call(intel, arm, *arguments)
    except OSError as error:
        return error.errno not in (errno.EPERM, errno.ENOSYS, errno.EACCES)
    return True


def send(family: int, kind: int, address: Any, data: bytes | None = None, protocol: int = 0) -> None:  # noqa: ANN401
    """Connects, sends the word (or `data`), and prints what comes back."""
    with socket.socket(family, kind, protocol) as sock:
        sock.settimeout(2)
        sock.connect(address)
        sock.sendall(E["WORD"].encode() if data is None else data)
        if kind != socket.SOCK_DGRAM:
            print(sock.recv(4096).decode(errors="replace"), flush=True)


def at(path: str, kind: int = socket.SOCK_STREAM) -> None:
    """As `send`, to a socket with a path, however long that is."""
    os.chdir(os.path.dirname(path))
    send(socket.AF_UNIX, kind, os.path.basename(path))


def proxied(request: str, without: str = "PORT") -> str:
    """Sends a request to the proxy that the environment names, else to one of the machine's listeners; the answer."""
    named = E.get("http_proxy") or E.get("HTTP_PROXY") or E.get("https_proxy") or E.get("HTTPS_PROXY") or ""
    token, _, where = named.partition("//")[2].rstrip("/").rpartition("@")
    head, _, rest = request.replace("\n", "\r\n").partition("\r\n")
    if token:
        import base64

        rest = "Proxy-Authorization: Basic " + base64.b64encode(token.encode()).decode() + "\r\n" + rest
    host, _, port = where.rpartition(":")
    with socket.create_connection((host or "127.0.0.1", int(port or E[without])), 3) as sock:
        sock.sendall((head + "\r\n" + rest).encode())
        answer = sock.recv(4096)
        if head.startswith("CONNECT") and b" 200" in answer.split(b"\r\n")[0]:
            sock.sendall(("GET /" + E["WORD"] + " HTTP/1.0\r\nHost: a\r\n\r\n").encode())
            answer = sock.recv(4096)
        print(answer.decode(errors="replace"), flush=True)
    return answer.decode(errors="replace")


def fetched(url: str, method: str = "GET", body: bytes | None = None, headers: Iterable[tuple[str, str]] = ()) -> str:
    """What a request to an API brings: its body, also that of an error."""
    import urllib.error
    import urllib.request

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, method=method, data=body, headers=dict(headers))
    try:
        answer: bytes = opener.open(request, timeout=4).read()
    except urllib.error.HTTPError as error:
        answer = error.read()
    return answer.decode(errors="replace")


def run(order: dict[str, Any]) -> dict[str, object]:
    """Runs one script and returns what became of it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            _become(order, writing)
            code = 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", flush=True)
        finally:
            sys.stdout.flush()
            os._exit(code)
    os.close(writing)
    output, status = _followed(child, reading, order["seconds"])
    os.close(reading)
    return {"output": output.decode(errors="replace"), "status": status}


def _become(order: dict[str, Any], writing: int) -> None:
    if not order["terminal"]:
        os.setpgid(0, 0)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(writing, 1)
    os.dup2(writing, 2)
    os.environ.update(order["environment"])
    if order["python"]:
        exec(compile(order["script"], order["name"], "exec"), globals())
    else:
        os.execv("/bin/sh", ["sh", "-c", PRELUDE + order["script"]])


def _followed(child: int, reading: int, seconds: float) -> tuple[bytes, int | None]:
    """What a child prints until it ends or its time is over, and its status; None when its time was over."""
    until = time.monotonic() + seconds
    output = b""
    status: int | None = None
    while time.monotonic() < until:
        if status is None:
            ended, code = os.waitpid(child, os.WNOHANG)
            status = code if ended else None
        ready = select.select([reading], [], [], 0 if status is not None else 0.01)[0]
        piece = os.read(reading, MOST) if ready else b""
        output = (output + piece)[:MOST]
        if status is not None and not piece:
            return output, status
    for kill, whom in ((os.killpg, child), (os.kill, child)):
        try:
            kill(whom, signal.SIGKILL)
        except OSError:
            pass
    if status is None:
        os.waitpid(child, 0)
    return output, None


def main() -> None:
    """Says that it is there, then does what each line asks; at a terminal, what the one argument asks."""
    if len(sys.argv) > 1:
        with open(sys.argv[1]) as file:
            answer = run(json.load(file))
        with open(sys.argv[1] + ".answer", "w") as file:
            json.dump(answer, file)
        return
    print(json.dumps({"ready": os.getpid()}), flush=True)
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
