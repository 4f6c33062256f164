"""The kernel's audit switched on while tests need it, and put back as it was when the last of them is done."""

import fcntl
import os
import socket
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from launcher.ledger import audit_socket

_SET = 1001
_REQUEST_AND_ACKNOWLEDGE = 5
_STATUS_ENABLED = 1


def switch(enabled: int) -> bool:
    """AUDIT_SET of audit_enabled; whether the kernel took it."""
    status = struct.pack("11I", _STATUS_ENABLED, enabled, *[0] * 9)
    header = struct.pack("IHHII", 16 + len(status), _SET, _REQUEST_AND_ACKNOWLEDGE, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 9) as asking:
        asking.settimeout(5)
        asking.sendto(header + status, (0, 0))
        answer = asking.recv(8192)
    return len(answer) >= 20 and struct.unpack("i", answer[16:20])[0] == 0


@contextmanager
def switched_on() -> Iterator[bool]:
    """Audit is on inside, also beside other test processes; whether it could be switched on and heard.

    Whoever switches it on writes that down, and whoever is the last switches it off again.
    """
    place = Path(tempfile.gettempdir(), f"paddock-tests-audit-{os.geteuid()}")
    with open(place, "a+") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        known = audit_socket.status()
        ours = known is not None and not known.enabled and switch(1)
        if ours:
            file.write("switched on")
            file.flush()
        listener = audit_socket.listening()
        if listener != -1:
            os.close(listener)
        try:
            yield listener != -1 and known is not None
        finally:
            _leave(file.fileno())


@contextmanager
def switched_off() -> Iterator[None]:
    """Audit is off at first, and what comes of that is nobody else's business; afterwards it is as before."""
    place = Path(tempfile.gettempdir(), f"paddock-tests-audit-{os.geteuid()}")
    with open(place, "a+") as file:
        for _ in range(1200):  # two minutes: whoever has it on has a file of tests to run
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.1)
        else:
            raise TimeoutError("other tests keep the kernel's audit switched on")
        known = audit_socket.status()
        assert known is not None
        assert not known.enabled or switch(0)
        try:
            yield
        finally:
            switch(int(known.enabled))


def _leave(lock: int) -> None:
    fcntl.flock(lock, fcntl.LOCK_UN)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return  # others still need it
    if os.fstat(lock).st_size:
        switch(0)
        os.ftruncate(lock, 0)
