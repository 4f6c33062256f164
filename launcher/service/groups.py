"""Control groups of sessions, where this user may make some: one for each helper and all that comes of it.

Version 2 alone, because it alone can freeze and kill a group as a whole (cgroup.freeze, cgroup.kill; cgroup-v2.rst).
They hold processes together; limits are the business of `launcher.session.limits`. A helper goes in when it is started,
so that no session waits for the kernel's grace period (10 to 15 ms).
"""

import contextlib
import errno
import itertools
import logging
import os
import time
from pathlib import Path

log = logging.getLogger("paddock.service")

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
        self.why = "" if own else "no control group (version 2) that this user may write"
        self._numbers = itertools.count(1)
        self._discarded: set[str] = set()
        self._life = f"{time.time_ns():x}"  # not the process id, which may come again

    def sweep(self, keep: frozenset[str] | set[str] = frozenset()) -> int:
        """Ends what is in groups of an earlier life of this instance, and removes them. Returns how many there were.

        Args:
            keep: those of sessions that go on.
        """
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
        """A new group; "" where there are none."""
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
        """The group of this instance, of whichever life, in which a process is; "" for none."""
        try:
            own = next(line for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines() if line.startswith("0::"))
        except (OSError, StopIteration):
            return ""
        _, top, below = own.partition(f"/{os.path.basename(self.top)}/")
        return f"{self.top}/{below.partition('/')[0]}" if self.top and top else ""

    def kill(self, path: str) -> None:
        """Ends everything in a group (Linux 5.14)."""
        _try_write(path, "cgroup.kill", "1")

    def remove(self, path: str) -> bool:
        """Removes an empty group; whether it is gone. Ended processes leave a moment after they were waited for."""
        deadline = time.monotonic() + _PATIENCE
        while path:
            try:
                with contextlib.suppress(FileNotFoundError):
                    os.rmdir(f"{path}/run")
                os.rmdir(path)
            except FileNotFoundError:
                return True
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
            try:
                with contextlib.suppress(FileNotFoundError):
                    os.rmdir(f"{each}/run")
                os.rmdir(each)
            except FileNotFoundError:
                pass
            except OSError:
                continue
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


def _own() -> str:
    """Directory of this process's group in the unified hierarchy, when this user may make groups there; else ""."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    name = next((line[3:] for line in lines if line.startswith("0::")), None)
    for mount in mounts:
        before, _, after = mount.partition(" - ")
        root, point = before.split()[3:5]
        if after.startswith("cgroup2 ") and name is not None and (root == "/" or name.startswith(root)):
            path = (point + (name if root == "/" else name[len(root) :])).rstrip("/")
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
