"""What this machine can do, found by trying, and what it must be able to do.

`PADDOCK_REQUIRE=landlock,userns` turns a missing feature from a skip into a failure: CI sets it, so that a
suite which skips everything cannot pass there.
"""

import ctypes
import fcntl
import functools
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from launcher.ledger import audit_socket
from policy import promises
from tests.support import agent_packages, booted
from tests.support.identity import DROP

# The kernel's audit switched on while tests need it, and put back as it was when the last of them is done.

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


LANDLOCK_CREATE_RULESET = 444  # the same number on every architecture
LANDLOCK_CREATE_RULESET_VERSION = 1


def _landlock() -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    abi = libc.syscall(LANDLOCK_CREATE_RULESET, None, 0, LANDLOCK_CREATE_RULESET_VERSION)
    return "" if abi >= 1 else f"landlock_create_ruleset: {os.strerror(ctypes.get_errno())}"


def _tried(*argv: str) -> str:
    """Why `argv`, run as an ordinary user, does not succeed; empty when it does."""
    prefix = DROP if os.geteuid() == 0 else ()
    try:
        ended = subprocess.run([*prefix, *argv], cwd="/", capture_output=True, text=True, timeout=20, check=False)
    except OSError as error:
        return str(error)
    return "" if ended.returncode == 0 else (ended.stderr.strip() or f"{argv[0]} ended with {ended.returncode}")


def _userns() -> str:
    return _tried("unshare", "--user", "--map-root-user", "--mount", "true")


def _bubblewrap() -> str:
    return _tried("bwrap", "--unshare-all", "--ro-bind", "/", "/", "true")


def _network() -> str:
    words = ("ip", "link", "add", "paddock0", "type", "veth", "peer", "name", "paddock1")
    return _tried("unshare", "--user", "--map-root-user", "--net", *words)


def _agents() -> str:
    return agent_packages.missing()


def _chromium() -> str:
    return "" if shutil.which("chromium") else "chromium is not installed"


def _audit() -> str:
    if os.geteuid() != 0:
        return "only root may switch it on and read it"
    with switched_on() as state:
        return "" if state else "CAP_AUDIT_CONTROL or the initial network namespace is missing"


def _git_lfs() -> str:
    return "" if shutil.which("git-lfs") else "git-lfs is not installed"


def _signing() -> str:
    lacking = [name for name in ("ssh-keygen", "gpg", "gpg-agent") if shutil.which(name) is None]
    return f"{', '.join(lacking)}: not installed" if lacking else ""


def _shells() -> str:
    lacking = [name for name in ("zsh", "fish") if shutil.which(name) is None]
    return f"{', '.join(lacking)}: not installed" if lacking else ""


def _debian() -> str:
    if os.geteuid() != 0:
        return "only root can make a root directory to install in"
    names = ("apt-get", "dpkg-buildpackage", "dh", "dh_apparmor", "apparmor_parser", "debootstrap")
    lacking = [name for name in names if shutil.which(name) is None]
    return f"{', '.join(lacking)}: not installed" if lacking else ""


def _qemu() -> str:
    return "" if shutil.which("qemu-aarch64") else "qemu-aarch64 (qemu-user) is not installed"


def _man() -> str:
    return "" if shutil.which("man") else "man (man-db) is not installed"


FEATURES: dict[str, Callable[[], str]] = {
    "landlock": _landlock,
    "userns": _userns,
    "bubblewrap": _bubblewrap,
    "network": _network,
    "agents": _agents,
    "harbor": agent_packages.missing_harbor,
    "chromium": _chromium,
    "git-lfs": _git_lfs,
    "maven": lambda: "" if shutil.which("mvn") else "maven is not installed",
    "signing": _signing,
    "man": _man,
    "shells": _shells,
    "qemu": _qemu,
    "debian": _debian,
    "audit": _audit,
    "systemd": booted.missing,
}


def parse_required(text: str) -> frozenset[str]:
    """The names in a comma list; ValueError names the ones that are no feature."""
    names = frozenset(filter(None, (name.strip() for name in text.split(","))))
    if unknown := sorted(names - FEATURES.keys()):
        raise ValueError(f"PADDOCK_REQUIRE: unknown {', '.join(unknown)}; known are {', '.join(FEATURES)}")
    return names


# Read at import: the environment is scrubbed before the first test.
REQUIRED_TEXT = os.environ.get("PADDOCK_REQUIRE", "")


@functools.cache
def missing(feature: str) -> str:
    """Why the machine lacks `feature`; empty when it has it. KeyError for a name that is no feature."""
    return FEATURES[feature]()


def need(feature: str, *, required_text: str = REQUIRED_TEXT) -> None:
    """Goes on when the machine has `feature`; else skips the test, or fails it when the feature is required."""
    if why := missing(feature):
        if feature in parse_required(required_text):
            pytest.fail(f"{feature} is required (PADDOCK_REQUIRE) and missing: {why}", pytrace=False)
        pytest.skip(f"needs {feature}: {why}")


def need_backend(backend: str) -> str:
    """The name of a backend of `policy.promises`; `need` of what it is made of."""
    need({promises.NAMESPACES: "userns", promises.BUBBLEWRAP: "bubblewrap"}.get(backend, "landlock"))
    return backend
