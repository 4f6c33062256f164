"""Terminals where the guard holds them: the own one, new ones, and nobody else's."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import guarded, install
from tests.support.features import need
from tests.support.guarded import Guarded
from tests.support.identity import Who
from tests.support.install import Installed


@pytest.fixture
def jail(user: Who, installed: Installed, public_dir: Path) -> Guarded:
    """A jail of the backend landlock+guard, of an ordinary user: a terminal is its owner's, root or not."""
    need("landlock")
    return guarded.at(user, installed, public_dir)


@pytest.fixture
def terminal(jail: Guarded) -> Iterator[int]:
    """A terminal that belongs to the identity."""
    master, slave = os.openpty()
    os.chown(os.ttyname(slave), jail.who.uid, jail.who.gid)
    yield slave
    os.close(master)
    os.close(slave)


def test_new_terminals_work(jail: Guarded) -> None:
    """openpty gives a pair that talks to itself, with the flags that were asked for."""
    code = """
import fcntl, termios, tty
master, slave = os.openpty()
tty.setraw(slave)
os.write(slave, b"hello")
one = [os.isatty(slave), os.read(master, 5).decode(), os.ttyname(slave).startswith("/dev/pts/")]
peers = [fcntl.ioctl(master, 0x5441, os.O_RDWR | os.O_NOCTTY | flag) for flag in (0, os.O_CLOEXEC, os.O_NONBLOCK)]
flags = [(os.get_inheritable(fd), bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK)) for fd in peers]
wrong = [said(fcntl.ioctl, slave, 0x5441, os.O_RDWR), said(fcntl.ioctl, os.open("/dev/null", os.O_RDWR), 0x5441, 2),
         said(syscall, "ioctl", 999, 0x5441, 2)]
result = [one, flags, wrong]
"""
    one, flags, wrong = jail.tried(code)
    assert one == [True, "hello", True]
    assert flags == [[True, False], [False, False], [True, True]]
    assert wrong == ["EIO", "ENOTTY", "EBADF"] or wrong == ["ENOTTY", "ENOTTY", "EBADF"]


def test_a_full_table_of_descriptors_is_said(jail: Guarded) -> None:
    """Who has no number left for the other side of a terminal gets EMFILE."""
    code = """
import fcntl, resource
master = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)
fcntl.ioctl(master, 0x40045431, array.array("i", [0]))  # TIOCSPTLCK
resource.setrlimit(resource.RLIMIT_NOFILE, (master + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
result = said(fcntl.ioctl, master, 0x5441, os.O_RDWR | os.O_NOCTTY)
"""
    assert jail.tried(code) == "EMFILE"


def test_programmes_that_need_a_terminal_get_one(jail: Guarded) -> None:
    """A shell on a new terminal of its own has job control."""
    code = """
import pty
os.environ["PS1"] = ""
sys.stdout.flush()
os._exit(os.waitstatus_to_exitcode(pty.spawn(["sh", "-c", "test -t 0 && echo x >/dev/tty && tty && echo done"])))
"""
    ended = jail.run([install.base_python(), "-I", "-c", "import os, sys" + code])
    assert ended.returncode == 0, ended.stderr
    assert "done" in ended.stdout
    assert "/dev/pts/" in ended.stdout


def test_no_other_terminal_can_be_opened(jail: Guarded, terminal: int) -> None:
    """A terminal of the same user outside is EACCES by name, and by every way around it."""
    code = """
name = sys.argv[1]
number = os.path.basename(name)
result = [said(os.open, path, os.O_RDWR | os.O_NOCTTY) for path in
          (name, f"/proc/self/root{name}", f"/dev/../dev/pts/{number}")]
result.append(said(lambda: os.listdir("/dev/pts") and None))
result.append(said(os.chmod, name, 0o666))
"""
    assert jail.tried(code, os.ttyname(terminal)) == ["EACCES", "EACCES", "EACCES", "EACCES", "EPERM"]


def test_the_own_terminal_has_its_name(jail: Guarded, terminal: int) -> None:
    """The terminal on standard input can be opened by the name that `tty` tells; the caller's and others cannot."""
    master, other = os.openpty()
    os.chown(os.ttyname(other), jail.who.uid, jail.who.gid)
    code = """
name = os.ttyname(0)
result = [name, said(lambda: os.close(os.open(name, os.O_RDWR | os.O_NOCTTY)))]
result += [said(os.open, path, os.O_RDWR | os.O_NOCTTY) for path in sys.argv[1:]]
"""
    others = os.ttyname(other), os.ttyname(terminal)
    argv = jail.python(f"{code}\nprint(json.dumps(result))", *others)
    try:
        ended = subprocess.run(
            jail.who.command(jail.words(argv)),
            cwd=jail.inside,
            env=jail.who.environment(guarded.ENVIRONMENT),
            stdin=terminal,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(master)
        os.close(other)
    assert ended.returncode == 0, ended.stderr
    name, *results = json.loads(ended.stdout)
    assert name not in others
    assert results == ["ok", "EACCES", "EACCES"]
