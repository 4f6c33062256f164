"""Shims of sessions, seen from the service: warm ones, kept ready and handed out once, and those of live sessions."""

import asyncio
import contextlib
import logging
import os
import select
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launcher.service import packets, peers, rooms
from launcher.service.groups import Groups
from launcher.service.shim.process import SOCKET
from policy.errors import Refusal

log = logging.getLogger("paddock.service")

_ROOT = str(Path(__file__).resolve().parents[2])
_BOOT = (
    "import sys; sys.prefix = sys.exec_prefix = sys.argv[2]; sys.path.append(sys.argv[1]); "
    "from launcher import start; sys.meta_path.insert(0, start.CompiledModules); start.load_bundle(); "
    "from launcher.verbs.run import supervised; "  # with it comes all that a plain launch needs
    "from launcher.session import private_git; "  # most sessions need it
    "from launcher.service.shim.process import main; main(int(sys.argv[3]), supervised)"
)
_EMPTY = {"LC_ALL": "C.UTF-8"}
_ANSWER_SECONDS = 10.0


class Shim:
    """A connection to one shim (`launcher.service.shim`). Owns `channel`.

    Attributes:
        pid: its process id.
        group: its control group, "" without one.
        channel: the connection.
    """

    def __init__(self, pid: int, group: str, channel: socket.socket, process: "subprocess.Popen[bytes] | None") -> None:
        """Args: see the class; the process, when this service has started it."""
        self.pid = pid
        self.group = group
        self.channel = channel
        self._process = process
        self._numbers = 0
        self._answers: dict[int, asyncio.Future[None]] = {}
        channel.setblocking(False)

    @classmethod
    def start(cls, groups: Groups) -> "Shim":
        """Starts one; it waits for its launch.

        Raises:
            OSError: there are no processes or descriptors left.
        """
        group = groups.make()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _BOOT, _ROOT, sys.prefix, str(theirs.fileno())],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=None, env=_EMPTY, cwd="/",
                pass_fds=(theirs.fileno(),),
            )  # fmt: skip
            groups.enter(group, process.pid)
            made = cls(process.pid, group, ours, process)
            packets.send(ours, {"op": "begin", "group": group})
        except OSError:
            ours.close()
            groups.remove(group)
            raise
        finally:
            theirs.close()
        return made

    @classmethod
    def join(cls, directory: str) -> "Shim":
        """Connects to the shim of a session that an earlier service has started.

        Args:
            directory: the session's, below the runtime directory.

        Raises:
            OSError: nobody answers there.
            Refusal: whoever answers is no shim of this user's.
        """
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            connection.connect(rooms.short(fd, SOCKET))
            peer = peers.of(connection)
            peers.check(peer, peers.owner(), set)
        except BaseException:
            connection.close()
            raise
        finally:
            os.close(fd)
        return cls(peer.pid, "", connection, None)

    def send(self, op: str, *descriptors: int, **content: Any) -> bool:  # noqa: ANN401  # as JSON has it
        """Sends a message; False when the shim is gone, or does not read."""
        try:
            packets.send(self.channel, {"op": op, **content}, descriptors)
        except OSError as error:
            log.info("shim %d: %s: %s", self.pid, op, error)
            return False
        return True

    async def ask(self, op: str, **content: Any) -> None:  # noqa: ANN401  # as JSON has it
        """Sends a message and waits for its answer.

        Raises:
            Refusal: the shim's; session-not-running when it is gone.
        """
        self._numbers += 1
        answer = self._answers[self._numbers] = asyncio.get_running_loop().create_future()
        try:
            if self.send(op, number=self._numbers, **content):
                await asyncio.wait_for(answer, _ANSWER_SECONDS)
                return
        except TimeoutError:
            pass
        finally:
            del self._answers[self._numbers]
        raise Refusal("session-not-running", "the session's own process does not answer", hint="paddock ps --all")

    def messages(self) -> tuple[list[dict[str, Any]], bool]:
        """What has come since the last call, answers left out; and whether more can come."""
        found: list[dict[str, Any]] = []
        while True:
            try:
                content, descriptors = packets.receive(self.channel)
            except BlockingIOError:
                return found, True
            except (OSError, ValueError) as error:
                log.error("shim %d: %s", self.pid, error)
                return found, False
            for fd in descriptors:
                os.close(fd)
            if content is None:
                return found, False
            if content.get("event") == "answer":
                self._answered(content)
            else:
                found.append(content)

    def _answered(self, content: dict[str, Any]) -> None:
        from launcher.service.jobs import refusal_of

        answer = self._answers.get(content["to"])
        if answer is not None and not answer.done():
            if content["refusal"]:
                answer.set_exception(refusal_of(content["refusal"]))
            else:
                answer.set_result(None)

    def ended(self) -> bool:
        """Whether the process has ended; reaps it where it is this service's child."""
        if self._process is not None:
            return self._process.poll() is not None
        try:
            pidfd = os.pidfd_open(self.pid)
        except OSError:
            return True
        try:
            # Readable once it has ended, also where nobody has reaped it yet (pidfd_open(2)).
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            return bool(poll.poll(0))
        finally:
            os.close(pidfd)

    def kill(self) -> None:
        """Ends it now, and all that lives by it; waits for its end where it is this service's child."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Lets go of the connection. A shim that was never used ends by that."""
        self.channel.close()


class Pool:
    """Keeps `size` shims ready, each with a launcher that is warm.

    Args:
        size: how many.
        groups: makes the control group of each.
        trouble: told why none can be started, and "" when one could be.
    """

    def __init__(self, size: int, groups: Groups, trouble: Callable[[str], None] = lambda why: None) -> None:
        """Starts none yet; see `fill`."""
        self.size = size
        self._groups = groups
        self._trouble = trouble
        self._ready: deque[Shim] = deque()
        self._filling: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """How many are ready."""
        return len(self._ready)

    def fill(self) -> None:
        """Starts those that are missing, one after the other, between other work."""
        if self._filling is None or self._filling.done():
            self._filling = asyncio.get_running_loop().create_task(self._fill())

    async def _fill(self) -> None:
        while len(self._ready) < self.size:
            try:
                one = Shim.start(self._groups)
            except OSError as error:
                log.warning("no helper can be started: %s", error)
                self._trouble(error.strerror or str(error))
                return
            self._trouble("")
            self._ready.append(one)
            await asyncio.sleep(0)

    def take(self) -> Shim:
        """A shim that is ready, or a new one. The next one is not started before `fill`: it would delay this one.

        Raises:
            OSError: none can be started.
        """
        while self._ready:
            found = self._ready.popleft()
            if not found.ended():
                return found
            self.drop(found)
        return Shim.start(self._groups)

    def drop(self, one: Shim) -> None:
        """Takes back what has ended: connection and control group."""
        one.close()
        self._groups.discard(one.group)

    def close(self) -> None:
        """Ends those that are ready."""
        if self._filling is not None:
            self._filling.cancel()
        while self._ready:
            one = self._ready.popleft()
            one.kill()
            self.drop(one)
