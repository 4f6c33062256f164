"""The shim of a session, like a container's: a small process that outlives the service.

It forks the session's launcher, owns its streams, log and attached clients, restarts and ends it, and tells whichever
service is there what happened. A service that starts later finds it by its socket, catches up and goes on.

``<runtime>/sessions/<name>/`` (mode 0700) is its directory, locked (flock(2)) from before it has this name until the
shim has ended:

    record     what the service that accepted the session knows of it; values of variables are left out
    socket     of the shim (`launcher.service.packets`)
    end        everything, once the session is over; whichever service is next takes it over

Messages to it: ``begin`` and ``launch`` from the service that has started it; then ``hello`` (how many
moves are known), ``stop``, ``signal``, ``attach`` (with the client's connection), ``settings``, ``collected``. From it:
``state`` with what has changed, ``answer``. Nothing here needs a disk to end a session.
"""

import gc
import os
import select
import socket
import sys
from collections.abc import Callable
from typing import NoReturn

from launcher.service.shim.attempt import Launcher


def main(descriptor: int, run: Callable[..., int]) -> NoReturn:
    """Waits for a launch, and keeps that session until it is over; ends when the service hangs up before."""
    gc.disable()  # everything that is forked from here shares its pages
    os.setsid()
    os.set_inheritable(descriptor, False)
    channel = socket.socket(fileno=descriptor)
    from launcher.service import packets

    first, _ = packets.receive(channel)
    if first is None:
        os._exit(0)
    group = str(first["group"])
    warm: Launcher | None = None
    while True:
        try:
            # At once, so that it is warm when it is needed; and before this process loads what only a shim needs.
            warm = warm if warm is not None and warm.ended() is None else Launcher(run, group and f"{group}/run")
        except OSError as error:
            sys.stderr.write(f"paddock: no launcher can be started: {error}\n")
        from launcher.service.shim.session import ShimSession

        poll = select.poll()
        poll.register(channel, select.POLLIN)
        poll.poll()
        content, _ = packets.receive(channel)  # a launch brings the lock of its directory, which stays open to the end
        if content is None:
            os._exit(0)
        if content["op"] == "launch":
            os._exit(ShimSession(content, channel, run, group, warm).serve())
