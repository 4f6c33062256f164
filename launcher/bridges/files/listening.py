"""Where the server listens: a port of the loopback, or a unix socket of its owner's."""

import ipaddress
import os
import socket
import stat

from policy.errors import Refusal

UNIX = "unix:"


def listen(address: str) -> tuple[socket.socket, str]:
    """A listening socket (the caller owns it), and the URL at which it answers.

    Args:
        address: ``HOST:PORT`` with a loopback host and 0 for any free port, or ``unix:PATH``.

    Refusals: http-address, http-not-loopback, http-unusable.
    """
    if address.startswith(UNIX):
        return _unix(address[len(UNIX) :]), "http://localhost"
    host, colon, port = address.rpartition(":")
    host = host.strip("[]")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise Refusal("http-address", f"{address!r} is no address to listen at", hint="--http 127.0.0.1:0")
    return _loopback(host, int(port))


def remove(address: str, listener: socket.socket) -> None:
    """Removes the unix socket again, if it is still this one's name, and closes the listener."""
    listener.close()
    if address.startswith(UNIX):
        try:
            os.unlink(address[len(UNIX) :])
        except FileNotFoundError:
            return


def _loopback(host: str, port: int) -> tuple[socket.socket, str]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise Refusal("http-address", f"{host!r} is no host", context=error.strerror or str(error)) from None
    family, kind, protocol, _, where = found
    if not ipaddress.ip_address(where[0]).is_loopback:
        raise Refusal(
            "http-not-loopback",
            f"{host} is an address that other machines can reach",
            context="tokens and files would cross the network in clear text",
            hint="--http 127.0.0.1:PORT, and a tunnel (ssh -L) from elsewhere",
        )
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise _unusable(f"{host}:{port}", error) from None
    shown = f"[{where[0]}]" if family == socket.AF_INET6 else where[0]
    return listener, f"http://{shown}:{listener.getsockname()[1]}"


def _unix(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        _remove_dead(path)
        listener.bind(path)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise _unusable(path, error) from None
    finally:
        os.umask(mask)
    return listener


def _remove_dead(path: str) -> None:
    """Removes a socket on which nobody listens any more; anything else stays, and is in the way."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)


def _unusable(where: str, error: OSError) -> Refusal:
    return Refusal("http-unusable", f"cannot listen at {where}", context=error.strerror or str(error))
