"""The proxy process itself: its imports, its own confinement, its loop. Never on anybody's launch path."""

import gc
import ipaddress
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterable
from typing import NoReturn

from launcher.egress.dial import Forward
from launcher.egress.gateway import Bounds, Gateway
from launcher.egress.handle import destination
from launcher.egress.log import FILE, Log
from launcher.egress.server import Pool, Publication, Server
from launcher.egress.upstream import Upstreams
from launcher.egress.witness import Witness
from launcher.jail import capabilities, hygiene, landlock, syscalls
from launcher.loop import Loop, Task
from policy.egress import EgressPolicy
from policy.plan import Plan

# The proxy's own jail. It reads what strangers send, so it keeps what a resolver needs, its open log, and no more.


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


_RESERVED = 64
"""Descriptors for everything that is no client's connection."""


def run(plan: Plan, directory: str, secret: str, handed: list[int], published: tuple[int, ...]) -> NoReturn:
    """Serves until the launcher ends this process.

    Args:
        plan: its rules, and what else it grants.
        directory: of the session, for the log.
        secret: the session's token.
        handed: sockets: the proxy's, listening; where the jail has a network namespace then a listening one for each of
            `plan.reach`, and unconnected ones of that namespace, for what comes to published ports.
        published: listening sockets, one for each of `plan.publish`.
    """
    gc.freeze()  # nothing of what was imported is garbage: the first collection would look at all of it
    gc.enable()
    log = Log(f"{directory}/{FILE}", Bounds().log_bytes)
    code = 1
    try:
        witness = Witness(os.getppid())
        try:
            _serve(plan, secret, _sockets(handed), _sockets(published), log, witness)
        finally:
            witness.close()
        log.close()
        code = 0
    except BaseException as error:
        log.fault(str(error) if isinstance(error, Exception) else repr(error))
    os._exit(code)


def _sockets(fds: Iterable[int]) -> list[socket.socket]:
    return [socket.socket(fileno=fd) for fd in fds]


def _serve(
    plan: Plan, secret: str, handed: list[socket.socket], published: list[socket.socket], log: Log, witness: Witness
) -> None:
    """Serves until the launcher's word, or until one of the listening sockets cannot be served any more."""
    loop = Loop(lambda error: log.fault(repr(error)))
    signal.set_wakeup_fd(loop.waker, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: loop.stop())
    policy = EgressPolicy((rule for rule, _ in plan.domains), (rule for rule, _ in plan.domains_denied))
    upstreams = Upstreams(os.environ)
    bounds = _bounded(Bounds())
    gateway = Gateway(policy, upstreams, log, bounds, witness)
    server = Server(gateway, secret, log, bounds, name_required=plan.server_name == "require")
    confine(sys.path)
    gc.collect()
    gc.freeze()
    proxy, *others = handed
    pool = Pool(others[len(plan.reach) :])
    works = [server.serve(proxy), server.sweep()]
    for (rule, _), listener in zip(plan.reach, others, strict=False):
        packed, port = destination(rule)
        forward = Forward(ipaddress.ip_address(packed), port, rule, log, bounds.dial_seconds)
        works.append(server.serve(listener, forward))
    for (rule, _), listener in zip(plan.publish, published, strict=True):
        inside = Publication(pool, int(rule.rpartition(":")[2]), rule, log)
        works.append(server.serve(listener, inside))
    failed: list[BaseException] = []

    def ended(task: Task) -> None:
        if task.error is not None:
            failed.append(task.error)
            loop.stop()

    for work in works:
        loop.spawn(work).when_done(ended)
    loop.run()
    if failed:
        raise failed[0]


def _bounded(bounds: Bounds) -> Bounds:
    """As many connections as there can be descriptors for, two each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * bounds.connections + _RESERVED
    soft = max(soft, min(wanted, hard) if hard != resource.RLIM_INFINITY else wanted)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return bounds._replace(connections=min(bounds.connections, (soft - _RESERVED) // 2))
