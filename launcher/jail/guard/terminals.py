"""New pseudo terminals without access to /dev/pts, where the user's other terminals lie.

openpty(3) asks the master for its other side by ioctl, not by name. Landlock judges even that by its path, so the
guard opens it and hands it over. What opens /dev/pts/N by name stays denied.

Launch path of the backend landlock+guard: see launcher/jail/syscalls.py.
"""

from launcher.jail import syscalls
from launcher.jail.guard.call import Call
from launcher.jail.guard.rules import Rules
from launcher.lean import os

TIOCGPTPEER = 0x5441
_FLAGS = os.O_ACCMODE | os.O_NONBLOCK | os.O_CLOEXEC


def other_side(call: Call, rules: Rules) -> None:
    """ioctl(fd, TIOCGPTPEER, flags); the caller is answered here.

    O_NOCTTY is implied: a terminal becomes the caller's controlling one by TIOCSCTTY.
    """
    del rules  # whoever holds the master has the terminal already
    flags = call.integer(2)
    master = call.descriptor(call.integer(0))
    call.check()
    fd = call.own(syscalls.ioctl(master, TIOCGPTPEER, flags & _FLAGS | os.O_NOCTTY | os.O_CLOEXEC))
    call.listener.answer_with_descriptor(call.identity, fd, close_on_exec=bool(flags & os.O_CLOEXEC))
