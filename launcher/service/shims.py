"""Shims of sessions, as the service sees them: warm ones that wait for a launch, and those of live sessions."""

import asyncio
import contextlib
import errno
import itertools
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from typing import Any

from launcher import programmes
from launcher.jail import cgroup
from launcher.service import packets
from launcher.service.packets import SHIM_SOCKET
from launcher.session.state import control_address
from policy.errors import Refusal

# Control groups of sessions, where this user may make some: one for each helper and all that comes of it.
#
# Version 2 alone, because it alone can freeze and kill a group as a whole (cgroup.freeze, cgroup.kill;
# cgroup-v2.rst). They hold processes together; limits are the business of `launcher.session.limits`. A helper goes in
# when it is started, so that no session waits for the kernel's grace period (10 to 15 ms).

PREFIX = "paddock-serve-"
_PATIENCE = 2.0


class Groups:
    """Makes groups below the service's own one.

    Args:
        label: tells this instance's groups from those of others; the same at every start.
        own: directory of the service's own group; "" finds it.
    """

    def __init__(self, label: str, own: str | None = None) -> None:
        """Looks whether groups can be made. `sweep` removes those of an earlier life."""
        own = _own() if own is None else own
        self.top = f"{own}/{PREFIX}{label}" if own else ""
        self.why = "" if own else "no version 2 control group that this user can write"
        self._numbers = itertools.count(1)
        self._discarded: set[str] = set()
        self._life = f"{time.time_ns():x}"  # not the process id, which may come again

    def sweep(self, keep: frozenset[str] | set[str] = frozenset()) -> int:
        """Ends and removes groups of an earlier life of this instance, but for `keep`; returns how many there were."""
        if not self.top:
            return 0
        found = 0
        try:
            for name in os.listdir(self.top):
                path = f"{self.top}/{name}"
                if os.path.isdir(path) and not name.startswith(f"{self._life}-") and path not in keep:
                    self.kill(path)
                    self.remove(path)
                    found += 1
        except FileNotFoundError:
            return 0
        return found

    def make(self) -> str:
        """Makes a group, and returns its path; "" where groups cannot be made."""
        if not self.top:
            return ""
        path = f"{self.top}/{self._life}-{next(self._numbers)}"
        try:
            os.makedirs(path, mode=0o755)
        except OSError as error:
            self._give_up(error)
            return ""
        return path

    def enter(self, path: str, pid: int) -> None:
        """Puts a process in. Where that fails the session does without: its processes are ended by other means too."""
        if path:
            try:
                _write(f"{path}/cgroup.procs", str(pid))
            except ProcessLookupError:
                return  # it has ended already, which its owner will notice
            except OSError as error:
                self._give_up(error)

    def of(self, pid: int) -> str:
        """The group of this instance, from any of its lives, that holds a process; "" for none."""
        own = cgroup.groups(cgroup.content(f"/proc/{pid}/cgroup")).get("", "")
        _, top, below = own.partition(f"/{os.path.basename(self.top)}/")
        return f"{self.top}/{below.partition('/')[0]}" if self.top and top else ""

    def kill(self, path: str) -> None:
        """Ends everything in a group (Linux 5.14)."""
        _try_write(path, "cgroup.kill", "1")

    def remove(self, path: str) -> bool:
        """Removes an empty group, and returns whether it did. Ended processes leave it a moment after wait(2)."""
        deadline = time.monotonic() + _PATIENCE
        while path:
            try:
                _rmdir(path)
            except OSError as error:
                if error.errno == errno.EBUSY and time.monotonic() < deadline:
                    time.sleep(0.002)
                    continue
                log.warning("control group %s was not removed: %s", path, error.strerror)
                return False
            return True
        return True

    def discard(self, path: str) -> None:
        """Removes an ended session's group, or tries again later: the kernel may need a moment for it."""
        self._discarded.update([path] if path else [])
        for each in tuple(self._discarded):
            with contextlib.suppress(OSError):
                _rmdir(each)
                self._discarded.discard(each)

    def close(self) -> None:
        """Removes the directory of all groups, when it is empty."""
        deadline = time.monotonic() + _PATIENCE
        while self._discarded and time.monotonic() < deadline:
            self.discard("")
            time.sleep(0.002)
        with contextlib.suppress(OSError):
            if self.top:
                os.rmdir(self.top)

    def _give_up(self, error: OSError) -> None:
        log.warning("no control groups for sessions: %s", error)
        self.top, self.why = "", error.strerror or str(error)


def _rmdir(path: str) -> None:
    for each in (f"{path}/run", path):
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(each)


def _own() -> str:
    """Directory of this process's group in the unified hierarchy, when this user may make groups there; else ""."""
    own = cgroup.groups(cgroup.content("/proc/self/cgroup")).get("")
    for kind, root, point, _ in cgroup.hierarchies(cgroup.content("/proc/self/mountinfo")):
        path = cgroup.below(point, root, own) if kind == "cgroup2" else ""
        if path:
            writable = os.access(path, os.W_OK) and os.access(f"{path}/cgroup.procs", os.W_OK)
            return path if writable else ""
    return ""


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _try_write(path: str, name: str, text: str) -> None:
    if path:
        try:
            _write(f"{path}/{name}", text)
        except FileNotFoundError:
            return  # the group has gone, or the kernel is older than the file: other means follow
        except OSError as error:
            log.warning("%s/%s: %s", path, name, error.strerror)


log = logging.getLogger("paddock.service")

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
        """Starts a shim, which waits for its launch. OSError: no processes or descriptors are left."""
        group = groups.make()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            process = subprocess.Popen(
                programmes.helper("shim", str(theirs.fileno()), sys.prefix, site=False),
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

        A Refusal says that whoever answers there is no shim of this user's; OSError, that nobody does.
        """
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            connection.connect(control_address(fd, SHIM_SOCKET))
            peer = packets.of(connection)
            packets.check(peer, os.geteuid(), set)
        except BaseException:
            connection.close()
            raise
        finally:
            os.close(fd)
        return cls(peer.pid, "", connection, None)

    def send(self, op: str, *descriptors: int, **content: Any) -> bool:  # noqa: ANN401  # as JSON has it
        """Sends a message; False when the shim has ended, or does not read."""
        try:
            packets.send(self.channel, {"op": op, **content}, descriptors)
        except OSError as error:
            # One that has left its record where the service finds it does not wait to be told.
            log.log(logging.DEBUG if op == "collected" else logging.INFO, "shim %d: %s: %s", self.pid, op, error)
            return False
        return True

    async def ask(self, op: str, **content: Any) -> None:  # noqa: ANN401  # as JSON has it
        """Sends a message and waits for its answer."""
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
        """Messages since the last call, without answers; and whether more can come."""
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

        answer = self._answers.get(content["to"])
        if answer is not None and not answer.done():
            if content["refusal"]:
                answer.set_exception(Refusal.of(content["refusal"]))
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
        """Kills it and all that depends on it; waits for its end where it is this service's child."""
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
        groups: makes the control group of each.
    """

    def __init__(self, size: int, groups: Groups) -> None:
        """Starts none yet; see `fill`."""
        self.size = size
        self._groups = groups
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
                return
            self._ready.append(one)
            await asyncio.sleep(0)

    def take(self) -> Shim:
        """A shim that is ready, or a new one. The next one is not started before `fill`: it would delay this one."""
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
