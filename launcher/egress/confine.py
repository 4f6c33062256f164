"""The proxy's own jail. It reads what strangers send, so it keeps what a resolver needs, its open log, and no more."""

import os
import socket
from collections.abc import Iterable

from launcher.jail import capabilities, hygiene, landlock, syscalls

# What getaddrinfo(3) reads: its settings, and the modules that they name. Directories that services replace files in.
_RESOLVER = (
    *("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf", "/etc/services"),
    *("/etc/protocols", "/etc/networks", "/etc/ld.so.cache", "/etc/localtime"),
    *("/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager", "/run/nscd", "/var/run/nscd"),
)
_LIBRARIES = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/nix/store", "/gnu/store")
NAME = "paddock-proxy"
"""Of the process, as ps(1) shows it, once it is confined."""

_DEVICES = ("/dev/null", "/dev/urandom")


def confine(modules: Iterable[str]) -> None:
    """Gives up every privilege, and every file but those above. Cannot be undone.

    Args:
        modules: directories that Python may still import from.

    Raises:
        Refusal: the kernel refused. Without Landlock (a kernel of the bubblewrap backend) files stay within reach.
    """
    _load_late()
    with open("/proc/self/comm", "w") as file:
        file.write(NAME)
    hygiene.no_new_privs()
    capabilities.drop_all()
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    abi = landlock.abi()
    if abi < 1:
        return
    grants = [(path, "r", "resolver") for path in _RESOLVER]
    grants += [(path, "rx", "libraries") for path in _LIBRARIES]
    grants += [(path, "r", "modules") for path in modules if path.startswith("/")]
    grants += [(path, "rw", "devices") for path in _DEVICES]
    canonical = {(os.path.realpath(path), access, source) for path, access, source in grants}
    landlock.restrict(tuple(sorted(canonical)), abi=abi, network=True, log=False)


def _load_late() -> None:
    """Loads what the first name would: a codec, and the resolver's modules."""
    try:
        socket.getaddrinfo("localhost", 1, type=socket.SOCK_STREAM)
    except OSError:
        return  # no hosts file: names are tried as they come
