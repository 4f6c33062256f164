"""Attempts on the network, from inside a jail with a proxy: raw words to the proxy, and ways around it.

Runs there by itself: reads a JSON list of attempts from the file it is given, prints a JSON object, name -> outcome.
"""

import json
import os
import select
import socket
import sys
from base64 import b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

PATIENCE = 10.0
IPPROTO_MPTCP, MSG_FASTOPEN = 262, 0x20000000


def proxy() -> tuple[str, str, int]:
    """Token, host and port from the environment."""
    credentials, _, where = os.environ["HTTP_PROXY"].removeprefix("http://").rpartition("@")
    host, _, port = where.partition(":")
    return credentials.partition(":")[2], host, int(port)


def everything(sock: socket.socket) -> str:
    """What comes until the other end closes, or says nothing for a second after its first words."""
    data = b""
    try:
        while block := sock.recv(65536):
            data += block
            sock.settimeout(1.0)
    except OSError:
        data += b""
    return data.decode("latin-1")


def words(wanted: dict[str, Any]) -> str:
    """Sends `send` to the proxy, `{auth}` in it replaced, then each of `then` when an answer has come."""
    token, host, port = proxy()
    token = wanted.get("token", token)
    auth = "Proxy-Authorization: Basic " + b64encode(f"paddock:{token}".encode()).decode() + "\r\n"
    with socket.create_connection((host, port), timeout=PATIENCE) as sock:
        sock.sendall(wanted["send"].replace("{auth}", auth).encode("latin-1"))
        answer = ""
        for more in wanted.get("then", ()):
            answer += sock.recv(65536).decode("latin-1")
            if " 200 " not in answer.partition("\r\n")[0]:
                return answer
            sock.sendall(more.encode("latin-1"))
        return answer + everything(sock)


def socks(wanted: dict[str, Any]) -> str:
    """A SOCKS5 request with the address bytes `address` (hex: kind, host, port); then `send`, when it succeeds."""
    token, host, port = proxy()
    token = wanted.get("token", token)
    with socket.create_connection((host, port), timeout=PATIENCE) as sock:
        sock.sendall(bytes.fromhex(wanted.get("greeting", "050102")))
        chosen = sock.recv(2)
        if chosen != b"\x05\x02":
            return f"method {chosen.hex()}"
        sock.sendall(b"\x01\x07paddock" + bytes((len(token),)) + token.encode())
        if sock.recv(2) != b"\x01\x00":
            return "bad token"
        sock.sendall(b"\x05" + bytes((wanted.get("command", 1), 0)) + bytes.fromhex(wanted["address"]))
        answer = sock.recv(10)
        if answer[1:2] != b"\0":
            return f"reply {answer[1:2].hex()}"
        sock.sendall(wanted.get("send", "").encode("latin-1"))
        return "reply 00 " + everything(sock)


def _tcp(wanted: dict[str, Any], protocol: int = 0) -> str:
    family = socket.AF_INET6 if ":" in wanted["host"] else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM, protocol) as sock:
        sock.settimeout(3)
        sock.connect((wanted["host"], wanted["port"]))
        sock.sendall(b"GET /direct HTTP/1.0\r\n\r\n")
        return "connected"


def _mptcp(wanted: dict[str, Any]) -> str:
    return _tcp(wanted, IPPROTO_MPTCP)


def _fastopen(wanted: dict[str, Any]) -> str:
    with socket.socket() as sock:
        sock.settimeout(3)
        sock.sendto(b"GET /fast HTTP/1.0\r\n\r\n", MSG_FASTOPEN, (wanted["host"], wanted["port"]))
        return "connected"


def _udp(wanted: dict[str, Any]) -> str:
    family = socket.AF_INET6 if ":" in wanted["host"] else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"\0\1\1\0\0\1\0\0\0\0\0\0\6secret\4good\7example\0\0\1\0\1", (wanted["host"], wanted["port"]))
        return "sent"


def _resolve(wanted: dict[str, Any]) -> str:
    return str(socket.getaddrinfo(wanted["host"], 80)[0][4])


def _dns(wanted: dict[str, Any]) -> str:
    """A message (hex) to the jail's resolver: the answer's code, how many records, or "silent"."""
    data = bytes.fromhex(wanted["send"])
    kind = socket.SOCK_STREAM if wanted.get("tcp") else socket.SOCK_DGRAM
    with socket.socket(socket.AF_INET, kind) as sock:
        sock.settimeout(wanted.get("patience", 3))
        sock.connect(("127.0.0.53", 53))
        sock.sendall((len(data).to_bytes(2, "big") if wanted.get("tcp") else b"") + data)
        try:
            answer = sock.recv(4096)[2 if wanted.get("tcp") else 0 :]
        except TimeoutError:
            return "silent"
    return f"{answer[3] & 15} {int.from_bytes(answer[6:8], 'big')}" if answer else "closed"


def _by_name(wanted: dict[str, Any]) -> str:
    """Connects to a host as any client would, sends `send`, and says what came."""
    with socket.create_connection((wanted["host"], wanted["port"]), timeout=PATIENCE) as sock:
        sock.sendall(wanted.get("send", "").encode("latin-1"))
        return everything(sock) or "closed"


def _hammer(wanted: dict[str, Any]) -> str:
    """Lookups of `count` names below `zone`, then of each of `hosts`: their codes, and how many of the first wait."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("127.0.0.53", 53))
        zone = b"".join(bytes((len(label),)) + label.encode() for label in wanted["zone"].split("."))
        for number in range(wanted["count"]):
            label = f"n{number}".encode()
            sock.send(b"\0\1\1\0\0\1\0\0\0\0\0\0" + bytes((len(label),)) + label + zone + b"\0\0\1\0\1")
        found = [_resolve({"host": host}) for host in wanted["hosts"]]
        waiting = wanted["count"]
        while select.select([sock], [], [], 0)[0]:
            sock.recv(512)
            waiting -= 1
        return f"{waiting} wait, {found}"


def _listen(wanted: dict[str, Any]) -> str:
    """The allowed twin in a network namespace: the jail's own loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        return "connected"


ACTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "words": words,
    "socks": socks,
    "tcp": _tcp,
    "mptcp": _mptcp,
    "fastopen": _fastopen,
    "udp": _udp,
    "resolve": _resolve,
    "dns": _dns,
    "by name": _by_name,
    "hammer": _hammer,
    "listen": _listen,
}


def outcome(wanted: dict[str, Any]) -> str:
    """What came of one attempt: the answer, or the error's name."""
    try:
        return ACTS[wanted["act"]](wanted)
    except OSError as error:
        return f"{type(error).__name__}: {error.strerror or error}"


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        attempts = json.load(file)
    with ThreadPoolExecutor(16) as threads:  # most of their time they wait for what does not come
        outcomes = list(threads.map(outcome, attempts))
    print(json.dumps({wanted["name"]: said for wanted, said in zip(attempts, outcomes, strict=True)}))
