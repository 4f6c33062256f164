"""The cluster of a ticket run, as the service sees it: a process that talks to it (`launcher.engines.broker`).

It outlives the service, as sessions do; the next service finds it by its socket.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import select
import socket
import subprocess
import threading
from typing import Any

from launcher import programmes, wire
from launcher.service.packets import ENGINE_END
from launcher.service.ticket_schema import TicketRequest
from launcher.session import places
from policy.errors import Refusal

_OF_RAY = "RAY_"
_PATIENCE = 600.0
"""Seconds for a cluster to be joined, and for every node's doctor."""


def place_of(run: str) -> str:
    """The socket of a run's process."""
    return f"{places.places(os.environ).runtime}/engines/{hashlib.sha256(run.encode()).hexdigest()[:16]}"


def end(run: str) -> None:
    """The run is over; it may have no such process."""
    _tell(place_of(run), wire.frame(ENGINE_END))


def _tell(place: str, frame: bytes) -> bool:
    """Whether a process listens; it is told something then."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(place)
            connection.sendall(frame)
        except OSError:
            return False
    return True


class Engine:
    """Of one run.

    Attributes:
        place: the socket that the run's sessions connect to.
    """

    def __init__(self, run: str, request: TicketRequest) -> None:
        """Prepares; `ready` begins."""
        self.place = place_of(run)
        places.make_private(os.path.dirname(self.place))
        self._run = run
        self._address = request.address
        environment = os.environ if request.environment is None else request.environment
        self._environment = {
            name: value for name, value in environment.items() if name.startswith(_OF_RAY) or name == "HOME"
        }
        self._starting = asyncio.Lock()

    async def ready(self) -> None:
        """Returns once sessions may connect; starts the process unless it is there.

        Raises:
            Refusal: see `launcher.engines.ray.Ray` and its `prepare`; engine-lost.
        """
        async with self._starting:
            if not _tell(self.place, b""):
                await self._start()

    async def _start(self) -> None:
        told = await asyncio.to_thread(self._started)
        if told is not None:
            raise Refusal.of(told)

    def _started(self) -> dict[str, Any] | None:
        """Starts the process; the Refusal that it answers with, as a dictionary, or None."""
        # Not by asyncio, which ends its processes when the service ends.
        words = programmes.helper("engine", self.place, self._run)
        own = {name: value for name, value in os.environ.items() if not name.startswith(_OF_RAY)}
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/", start_new_session=True, env=own
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        threading.Thread(target=process.wait, name="engine", daemon=True).start()
        with process.stdin, process.stdout:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps({"address": self._address, "environment": self._environment}).encode())
                process.stdin.close()
            if select.select([process.stdout], [], [], _PATIENCE)[0]:
                with contextlib.suppress(ValueError):
                    told: dict[str, Any] | None = json.loads(process.stdout.read())["refusal"]
                    return told
        process.kill()
        return Refusal("engine-lost", "what talks to the cluster did not start",
                       context="the service's log may say more").as_dict()  # fmt: skip
