"""The process beside a programme that uses sandboxes: each sandbox's launcher is forked from it, warm.

It says nothing and asks for nothing. A packet with one descriptor makes a launcher, which talks over that descriptor as
`launcher.service.shim.attempt` says. When the programme is gone, so are the inputs of its jails' first commands: the
jails end, what was committed in them is harvested, and this process ends last.
"""

import gc
import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from launcher import wire
from launcher.jail import processes
from launcher.service.shim import attempt

PATIENCE = 10.0
"""Seconds for jails to end by themselves, once the programme is gone."""


def main(descriptor: int, run: Callable[..., int]) -> NoReturn:
    """Forks launchers until the programme has left, and waits for the last of them.

    Args:
        descriptor: of the socket to the programme.
        run: what a launcher runs.
    """
    own = os.getpid()
    gc.disable()  # everything that is forked from here shares its pages
    gc.freeze()
    os.setsid()
    os.set_inheritable(descriptor, False)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    poll = select.poll()
    for fd in (descriptor, reader):
        poll.register(fd, select.POLLIN)
    while True:
        ready = [fd for fd, _ in poll.poll()]
        if reader in ready:
            os.read(reader, 4096)
            _reap(os.WNOHANG)
        if descriptor not in ready:
            continue
        packet, given = wire.receive_packet(descriptor)
        if not packet:
            break
        for channel in given:
            if os.fork() == 0:
                try:
                    attempt.become(own, channel, run)
                finally:
                    os._exit(125)
            os.close(channel)
    os.close(descriptor)
    deadline = time.monotonic() + PATIENCE
    while processes.children(own) and time.monotonic() < deadline:
        _reap(os.WNOHANG)
        time.sleep(0.02)
    for pid in processes.children(own):
        _end_jail(pid)
    _reap(0)
    os._exit(0)


def _end_jail(pid: int) -> None:
    """Ends the jail of a launcher whose first command does not end: another one has stopped it. It harvests then."""
    for child in processes.children(pid):
        with suppress(OSError):
            if processes.jailed(child):
                os.kill(child, signal.SIGKILL)


def _reap(options: int) -> None:
    try:
        while os.waitpid(-1, options)[0]:
            pass
    except ChildProcessError:
        return
