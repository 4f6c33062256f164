"""The proxy process itself: its imports, its own confinement, its loop. Never on anybody's launch path."""

import asyncio
import gc
import ipaddress
import os
import resource
import signal
import socket
import sys
from typing import NoReturn

from launcher.egress import confine
from launcher.egress.bounds import Bounds
from launcher.egress.forward import Forward
from launcher.egress.gateway import Gateway
from launcher.egress.log import FILE, Log
from launcher.egress.server import Server
from launcher.egress.start import destination
from launcher.egress.upstream import Upstreams
from policy.egress import EgressPolicy
from policy.plan import Plan

_RESERVED = 64
"""Descriptors for everything that is no client's connection."""


def run(plan: Plan, directory: str, secret: str, listeners: list[int]) -> NoReturn:
    """Serves until the launcher ends this process.

    Args:
        plan: its rules, and what else it grants.
        directory: of the session, for the log.
        secret: the session's token.
        listeners: listening sockets: the proxy's, then one for each of `plan.reach` where they are handed out.
    """
    gc.enable()
    log = Log(f"{directory}/{FILE}", Bounds().log_bytes)
    try:
        asyncio.run(_serve(plan, secret, [socket.socket(fileno=fd) for fd in listeners], log))
    except asyncio.CancelledError:  # the launcher's word: the session has ended
        log.close()
        os._exit(0)
    except BaseException as error:
        log.fault(str(error) if isinstance(error, Exception) else repr(error))
    os._exit(1)


async def _serve(plan: Plan, secret: str, listeners: list[socket.socket], log: Log) -> None:
    main = asyncio.current_task()
    assert main is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, main.cancel)
    policy = EgressPolicy((rule for rule, _ in plan.domains), (rule for rule, _ in plan.domains_denied))
    upstreams = Upstreams(os.environ)
    bounds = _bounded(Bounds())
    gateway = Gateway(policy, upstreams, log, bounds)
    server = Server(gateway, secret, log, bounds, name_required=plan.server_name == "require")
    confine.confine(sys.path)
    gc.collect()
    gc.freeze()
    proxy, *others = listeners
    async with asyncio.TaskGroup() as group:
        group.create_task(server.serve(proxy))
        group.create_task(server.sweep())
        for (rule, _), listener in zip(plan.reach, others, strict=False):
            packed, port = destination(rule)
            forward = Forward(ipaddress.ip_address(packed), port, rule, log, bounds.dial_seconds)
            group.create_task(server.serve(listener, forward))


def _bounded(bounds: Bounds) -> Bounds:
    """As many connections as there can be descriptors for, two each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * bounds.connections + _RESERVED
    soft = max(soft, min(wanted, hard) if hard != resource.RLIM_INFINITY else wanted)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return bounds._replace(connections=min(bounds.connections, (soft - _RESERVED) // 2))
