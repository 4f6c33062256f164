"""Where the service keeps things: its runtime directory with the socket, its lock, its database, its logs."""

import fcntl
import json
import os
import stat
import time
from pathlib import Path
from typing import Any

from launcher.safefs.remove import remove_tree
from launcher.service.packets import SHIM_END, SHIM_RECORD
from launcher.session.places import SOCKETS, Places, made
from policy.errors import Refusal, unusable

SOCKET = "control.sock"
LOCK = "service.lock"


class Directories:
    """The service's own directories.

    Attributes:
        runtime: 0700, for the socket; below XDG_RUNTIME_DIR, which goes when the user logs out.
        state: survives; below Paddock's state directory. The lock is here: whoever holds it owns the record.
        database: the file.
        logs: directory of the sessions' logs.
        sessions: directory of the shims' own directories, by the sessions' names.
        socket: path of the control socket.
    """

    def __init__(self, places: Places) -> None:
        """Names them; nothing is made yet."""
        self.runtime = places.runtime
        self.state = f"{places.state}/service"
        self.database = f"{self.state}/service.db"
        self.logs = f"{self.state}/logs"
        self.socket = f"{self.runtime}/{SOCKET}"
        self.sessions = f"{self.runtime}/sessions"
        self._places = places

    def make(self) -> None:
        """Makes them."""
        for path in (self.runtime, self.state, self.logs, self.sessions):
            made(path)
            if stat.S_IMODE(os.stat(path).st_mode) != 0o700:
                os.chmod(path, 0o700)

    def record(self) -> None:
        """Puts the runtime directory on record, so that no jail is granted it; a jail that can write there is refused.

        The lock is held.
        """
        from launcher.safefs import guarded_files, walk
        from launcher.vcs import written

        directory = os.path.realpath(self.runtime)
        if tree := written.agents_tree(directory, self._places.state):
            raise Refusal(
                "service-socket",
                f"the control socket cannot be in {directory}",
                context=f"commands in jails could write {tree}, so what is there may be an agent's work",
                hint="set XDG_RUNTIME_DIR to a directory that no session was granted",
            )
        path = f"{self._places.state}/{SOCKETS}"
        content = guarded_files.read(path, follow=False)
        known = content.data if content is not None else b""
        if os.fsencode(directory) not in known.split(b"\0"):
            walk.replace(path, known + os.fsencode(directory) + b"\0")

    def session(self, name: str, request: str, client_uid: int) -> tuple[str, int]:
        """The directory for a new session's shim, with its record (`launcher.service.shim.main`), and its lock.

        The lock is the shim's, which holds it to its end. As long as the directory is locked, the session may begin.
        """
        path = f"{self.sessions}/{name}"
        fresh = f"{self.sessions}/.{name}"
        content = json.dumps({"request": request, "client_uid": client_uid, "created": time.time()})
        lock = -1
        try:
            for each in (path, fresh):
                if os.path.lexists(each):  # of one whose shim is gone: its name would not be free else
                    remove_tree(each)
            os.mkdir(fresh, 0o700)
            lock = os.open(fresh, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
            fcntl.flock(lock, fcntl.LOCK_EX)
            Path(fresh, SHIM_RECORD).write_text(content)
            os.rename(fresh, path)
        except OSError as error:
            if lock != -1:
                os.close(lock)
            remove_tree(fresh)
            raise unusable(path, error) from None
        return path, lock

    def end(self, name: str) -> dict[str, Any] | None:
        """The final record of a session's shim; None when it wrote none."""
        return _content(f"{self.sessions}/{name}/{SHIM_END}")

    def of_session(self, name: str) -> dict[str, Any] | None:
        """The record in the directory of a session's shim; None without one."""
        return _content(f"{self.sessions}/{name}/{SHIM_RECORD}")

    def known_sessions(self) -> list[str]:
        """Names of the sessions whose shims have directories. What a killed service did not finish is removed."""
        names = sorted(os.listdir(self.sessions))
        for name in names:
            if name.startswith("."):
                remove_tree(f"{self.sessions}/{name}")
        return [name for name in names if not name.startswith(".")]

    def lock(self) -> int:
        """Takes the lock of the one instance; it is held as long as the descriptor is open."""
        path = f"{self.state}/{LOCK}"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise unusable(path, error) from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.pread(fd, 32, 0).decode(errors="replace").strip()
            os.close(fd)
            raise Refusal(
                "service-running",
                "a Paddock service of this user is already running",
                context=f"process {owner or '?'} holds {path}",
                hint="paddock status shows it; one instance serves one user",
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return fd


def _content(path: str) -> dict[str, Any] | None:
    try:
        found = json.loads(Path(path).read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def check_socket(path: str) -> bool:
    """Whether Paddock's own socket lies at `path`; False where nothing is; anything else is refused."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    kind = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "no socket"
    if stat.S_ISSOCK(found.st_mode) and found.st_uid == os.geteuid():
        return True
    if stat.S_ISSOCK(found.st_mode):
        kind = f"of user {found.st_uid}"
    raise Refusal(
        "service-socket",
        f"{path} is {kind}",
        context=f"the control socket must be a socket of user {os.geteuid()} at exactly this path",
        hint=f"check it, then remove it: rm {Path(path)}",
    )
