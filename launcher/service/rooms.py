"""Where the service keeps things: its runtime directory with the socket, its lock, its database, its logs."""

import fcntl
import os
import stat
from pathlib import Path

from launcher.session.places import SOCKETS, Places, made, unusable
from policy.errors import Refusal

SOCKET = "control.sock"
LOCK = "service.lock"


class Rooms:
    """The service's own directories.

    Attributes:
        runtime: 0700, for the socket; below XDG_RUNTIME_DIR, which goes when the user logs out.
        state: survives; below Paddock's state directory. The lock is here: whoever holds it owns the record.
        database: the file.
        logs: directory of the sessions' logs.
        socket: path of the control socket.
    """

    def __init__(self, places: Places) -> None:
        """Names them; nothing is made yet."""
        self.runtime = places.runtime
        self.state = f"{places.state}/service"
        self.database = f"{self.state}/service.db"
        self.logs = f"{self.state}/logs"
        self.socket = f"{self.runtime}/{SOCKET}"
        self._places = places

    def make(self) -> None:
        """Makes them.

        Raises:
            Refusal: state-not-ours, state-unusable.
        """
        for path in (self.runtime, self.state, self.logs):
            made(path)
            if stat.S_IMODE(os.stat(path).st_mode) != 0o700:
                os.chmod(path, 0o700)

    def record(self) -> None:
        """Puts the runtime directory on record, so that no jail is granted it. The lock is held.

        Raises:
            Refusal: service-socket: a jail can write there, or could; and those of `launcher.vcs.guarded_files`.
        """
        from launcher.vcs import guarded_files, written

        directory = os.path.realpath(self.runtime)
        if tree := written.agents_tree(directory, self._places.state):
            raise Refusal(
                "service-socket",
                f"the control socket cannot lie in {directory}",
                context=f"commands in jails could write {tree}, so what lies there may be an agent's work",
                hint="set XDG_RUNTIME_DIR to a directory that no session was granted",
            )
        path = f"{self._places.state}/{SOCKETS}"
        content = guarded_files.read(path, follow=False)
        known = content.data if content is not None else b""
        if os.fsencode(directory) not in known.split(b"\0"):
            guarded_files.replace(path, known + os.fsencode(directory) + b"\0", 0o600)

    def lock(self) -> int:
        """Takes the lock of the one instance; it is held as long as the descriptor is open.

        Raises:
            Refusal: service-running.
        """
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
                "a Paddock service of this user is running already",
                context=f"process {owner or '?'} holds {path}",
                hint="paddock status shows it; one instance serves one user",
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return fd


def short(directory: int, name: str) -> str:
    """An address for `name` in an open directory, short enough for unix(7) whatever the directory's path."""
    return f"/proc/self/fd/{directory}/{name}"


def check_socket(path: str) -> bool:
    """Whether a socket of ours lies at `path`. Nothing at all is fine too (False); anything else is refused.

    Raises:
        Refusal: service-socket: a symbolic link, a file of another kind, or somebody else's.
    """
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
        context=f"the control socket is a socket of user {os.geteuid()} at exactly this place",
        hint=f"look at it, and remove it: rm {Path(path)}",
    )
