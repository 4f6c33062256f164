"""The controlling terminal of a launcher: which process group it listens to, and how it treats what is typed.

Launch path: `fcntl`, `os`, `launcher.jail.processes`.
"""

import fcntl

from launcher.jail import processes
from launcher.lean import os

_TCGETS, _TCSETS = 0x5401, 0x5402
"""ioctl_tty(2), by the numbers of every machine that Paddock knows; the module `termios` would have to be loaded."""

_SETTINGS = bytes(64)
"""More than the kernel's structure has."""


class Terminal:
    """The controlling terminal, its foreground process group and its settings. Owns `fd` (-1: there is none)."""

    def __init__(self) -> None:
        self._inner = 0
        self._settings = b""
        try:
            self.fd = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            # ENXIO: no controlling terminal. Anything else leaves it as little to manage.
            self.fd = -1
            return
        # In the background it is as the shell has it, for its own line; in a pipeline it is somebody else's, too.
        if self._foreground() == os.getpgrp() and os.isatty(0) and os.isatty(1):
            try:
                self._settings = fcntl.ioctl(self.fd, _TCGETS, _SETTINGS)
            except OSError:
                return  # it has hung up

    def close(self) -> None:
        """Closes the terminal."""
        if self.fd != -1:
            os.close(self.fd)
            self.fd = -1

    def remember(self, child: int) -> None:
        """Notes the foreground group if it is one that was made below `child` (a shell inside does that)."""
        group = self._foreground()
        inside = group not in (0, os.getpgrp()) and any(_group(pid) == group for pid in processes.descendants(child))
        self._inner = group if inside else 0

    def give_back(self) -> None:
        """Makes the noted group the foreground group again, if the shell has put the launcher there."""
        if self._inner and self._foreground() == os.getpgrp():
            self._set_foreground(self._inner)

    def take_back(self) -> None:
        """Makes the launcher's group the foreground group if the present one has died with the jail.

        A shell inside cannot do it when it ends: from its PID namespace the outer group has no number.
        """
        group = self._foreground()
        if group in (0, os.getpgrp()):
            return
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            self._set_foreground(os.getpgrp())
        except PermissionError:
            return  # somebody else's, so it lives

    def mend(self) -> None:
        """Puts the terminal's settings back after a command that a signal ended: it could not do so itself.

        Shells do it for the commands that they wait for (bash(1) by WIFSIGNALED), and see in the launcher one that has
        ended in good order. What a command leaves that ends by itself is its own will (stty(1)).
        """
        self.take_back()
        if self._settings and self._foreground() == os.getpgrp():
            try:
                fcntl.ioctl(self.fd, _TCSETS, self._settings)
            except OSError:
                return  # it has hung up

    def _foreground(self) -> int:
        if self.fd == -1:
            return 0
        try:
            return os.tcgetpgrp(self.fd)
        except OSError:
            return 0  # the terminal has hung up

    def _set_foreground(self, group: int) -> None:
        # SIGTTOU is blocked, or setting it from the background would stop the launcher.
        try:
            os.tcsetpgrp(self.fd, group)
        except OSError:
            return  # the group or the terminal has gone meanwhile: nobody is left to serve


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0
