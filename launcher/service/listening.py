"""The control socket: handed over by the service manager, or made here, in a directory that is only ours."""

import contextlib
import os
import socket

from launcher.service import rooms
from launcher.service.rooms import Rooms
from launcher.session.places import unusable
from policy.errors import Refusal

_BACKLOG = 1_024


class Listener:
    """A listening socket. `close` ends it, and takes its name away if this service has made it."""

    def __init__(self, own: Rooms, given: list[socket.socket]) -> None:
        """Takes the first of `given`, else makes one. The instance's lock is held.

        Raises:
            Refusal: service-socket, state-unusable.
        """
        self._made: tuple[str, int] | None = None
        if given:
            self.socket, *rest = given
            for more in rest:
                more.close()
            if self.socket.family != socket.AF_UNIX or self.socket.type != socket.SOCK_STREAM:
                raise Refusal("service-socket", "the socket that was handed over is no unix(7) stream socket",
                              hint="ListenStream= with a path, in the .socket unit")  # fmt: skip
            self.socket.setblocking(False)
        else:
            self.socket = self._listening(own)

    def _listening(self, own: Rooms) -> socket.socket:
        if rooms.check_socket(own.socket):
            # Nobody answers there: whoever did would hold the lock.
            os.unlink(own.socket)
        directory = os.open(own.runtime, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        before = os.umask(0o177)
        try:
            made.bind(rooms.short(directory, rooms.SOCKET))
            made.listen(_BACKLOG)
        except OSError as error:
            made.close()
            raise unusable(own.socket, error) from None
        finally:
            os.umask(before)
            os.close(directory)
        self._made = (own.socket, os.lstat(own.socket).st_ino)
        return made

    def renewed(self, own: Rooms) -> socket.socket | None:
        """Another socket in the place of the one that this service has made and that is gone; None while it is there.

        A runtime directory goes with everything in it when its user logs out, and is made anew at the next login.

        Raises:
            Refusal: the directory cannot be made, or must not be used; see `Rooms`.
        """
        if self._made is None or os.path.lexists(own.socket):
            return None
        own.make()
        own.record()
        self.socket = self._listening(own)
        return self.socket

    def close(self) -> None:
        """Stops listening."""
        self.socket.close()
        if self._made is not None:
            path, inode = self._made
            with contextlib.suppress(FileNotFoundError):
                if os.lstat(path).st_ino == inode:
                    os.unlink(path)
