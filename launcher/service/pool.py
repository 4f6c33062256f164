"""Warm helpers, kept ready: started ahead of need, handed out once.

Must be used from the service's main thread: a helper ends with the *thread* that started it (prctl(2),
PR_SET_PDEATHSIG).
"""

import asyncio
import logging
import marshal
import os
import socket
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

from launcher.service import helper
from launcher.service.groups import Groups
from launcher.session import early
from launcher.session.early import Recipe

log = logging.getLogger("paddock.service")

_ROOT = str(Path(__file__).resolve().parents[2])
_BOOT = (
    "import sys; sys.prefix = sys.exec_prefix = sys.argv[2]; sys.path.append(sys.argv[1]); "
    "from launcher import start; sys.meta_path.insert(0, start.CompiledModules); start.load_bundle(); "
    "from launcher.verbs.run import supervised; "  # with it comes all that a plain launch needs
    "from launcher.session import private_git; "  # most sessions need it
    "from launcher.service.helper import main; main(int(sys.argv[3]), int(sys.argv[4]), supervised)"
)
_EMPTY = {"LC_ALL": "C.UTF-8"}


class Helper:
    """One helper, from its start to its end. Owns `channel` and `pidfd`.

    Attributes:
        pid: its process id; it leads a session (setsid(2)) of that number from the launch on.
        started: when, in clock ticks since boot (proc_pid_stat(5)): tells it from a later process of the same number.
        group: its control group, "" without one.
    """

    def __init__(self, groups: Groups) -> None:
        """Starts the process; it does nothing yet."""
        self.group = groups.make()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._process = _start(theirs.fileno())
        except OSError:
            ours.close()
            groups.remove(self.group)
            raise
        finally:
            theirs.close()
        self.pid = self._process.pid
        self.pidfd = os.pidfd_open(self.pid)
        self.started = start_time(self.pid)
        self.channel = ours
        ours.setblocking(False)
        groups.enter(self.group, self.pid)

    def launch(self, launch: dict[str, Any], streams: tuple[int, int, int]) -> None:
        """Hands over the one launch.

        Args:
            launch: words, environment, directory, umask, open_files, terminal; see `launcher.service.helper`.
            streams: what becomes its standard input, output and error; they stay the caller's here.

        Raises:
            OSError: the helper has ended.
        """
        memory = os.memfd_create("launch", os.MFD_CLOEXEC)
        try:
            content = memoryview(marshal.dumps(launch))
            while content:
                content = content[os.write(memory, content) :]
            os.lseek(memory, 0, os.SEEK_SET)
            socket.send_fds(self.channel, [helper.LAUNCH], [memory, *streams])
        finally:
            os.close(memory)

    def prepare(self, recipe: Recipe) -> None:
        """Has it make a jail ahead. One that takes no message, or has ended, will be found so when it is needed."""
        try:
            self.channel.send(helper.PREPARE + marshal.dumps(recipe))
        except OSError as error:
            log.info("helper %s makes no jail ahead: %s", self.pid, error)

    def messages(self) -> list[tuple[bytes, Any]]:
        """What it has said since the last call: (letter, data)."""
        found: list[tuple[bytes, Any]] = []
        while True:
            try:
                packet = self.channel.recv(1 << 18)
            except (BlockingIOError, ConnectionResetError):
                return found
            if not packet:
                return found
            found.append((packet[:1], marshal.loads(packet[1:])))

    def ended(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    def send_signal(self, number: int) -> None:
        """Signals the process, unless it has ended."""
        if self._process.poll() is None:
            os.kill(self.pid, number)

    def signal_group(self, number: int) -> None:
        """Signals its process group, which it leads from the launch on; before that, it alone."""
        if self._process.poll() is None:
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                os.kill(self.pid, number)

    def kill_now(self) -> None:
        """Sends it SIGKILL, and so to all that lives by it."""
        self._process.kill()

    def kill(self) -> None:
        """Ends it now, and all that lives by it; waits for its end."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Lets go of the descriptors. A helper that was never used ends by that."""
        self.channel.close()
        os.close(self.pidfd)


def _start(theirs: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _BOOT, _ROOT, sys.prefix, str(os.getpid()), str(theirs)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=None,
        env=_EMPTY,
        cwd="/",
        pass_fds=(theirs,),
    )


def start_time(pid: int) -> int:
    """When a process was started, in clock ticks since boot (proc_pid_stat(5)); 0 when there is none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


class Pool:
    """Keeps `size` helpers ready.

    Args:
        size: how many.
        groups: makes the control group of each.
    """

    def __init__(self, size: int, groups: Groups) -> None:
        """Starts none yet; see `fill`."""
        self.size = size
        self._groups = groups
        self._ready: deque[Helper] = deque()
        self._recipe: Recipe | None = None
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
                one = Helper(self._groups)
            except OSError as error:
                log.warning("no helper can be started: %s", error)
                return
            if self._recipe is not None:
                one.prepare(self._recipe)
            self._ready.append(one)
            await asyncio.sleep(0)

    def learn(self, recipe: Recipe) -> None:
        """Has helpers make, from now on, jails ahead that serve a session like this one, too."""
        known, self._recipe = self._recipe, early.common(self._recipe, recipe)
        if self._recipe != known:
            for one in self._ready:
                one.prepare(self._recipe)

    def take(self) -> Helper:
        """A helper that is ready, or a new one. The next one is not started before `fill`: it would delay this one.

        Raises:
            OSError: none can be started.
        """
        found: Helper | None = None
        while self._ready and found is None:
            found = self._ready.popleft()
            if found.ended() is not None:
                self.drop(found)
                found = None
        return found if found is not None else Helper(self._groups)

    def drop(self, one: Helper) -> None:
        """Takes back what has ended: descriptors and control group."""
        one.close()
        self._groups.remove(one.group)

    def close(self) -> None:
        """Ends those that are ready."""
        if self._filling is not None:
            self._filling.cancel()
        while self._ready:
            one = self._ready.popleft()
            one.kill()
            self.drop(one)
