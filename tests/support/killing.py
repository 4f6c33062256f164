"""Killing a function at each of its changes of the disk, one run after the other."""

import os
import signal
import sys
from collections.abc import Callable

from tests.support import forked

CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.chmod", "os.utime", "os.rmdir", "subprocess.Popen")


def killed_at(number: int, act: Callable[[], object]) -> bool:
    """Runs `act` in a child that is killed before its change number `number`; whether it came so far."""

    def child() -> None:
        left = number

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal left
            changes = event in CHANGES or (event == "open" and isinstance(arguments[2], int)
                                           and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))  # fmt: skip
            if changes:
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        act()

    try:
        forked.run(child)
    except forked.Killed:
        return True
    return False
