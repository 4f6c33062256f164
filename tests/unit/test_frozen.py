"""When a session counts as frozen, by what the kernel says of its processes and control groups."""

import fcntl
import os
import signal
import subprocess
from pathlib import Path

import pytest

from launcher.vcs.private import lock, writers

OWN = f"/proc/{os.getpid()}"
_MOUNTS = (
    b"30 23 0:26 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw\n31 23 0:27 /half /half rw - cgroup2 cgroup2 rw\n"
)


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """A session of which this process, with a filter, is all that lives in the jail; and what files of /proc say."""
    said = {
        f"{OWN}/status": b"Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1\n",
        f"{OWN}/cgroup": b"1:name=x:/other\n0::/a/b\n",
        "/proc/self/mountinfo": _MOUNTS,
        "/sys/fs/cgroup/a/b/cgroup.events": b"populated 1\nfrozen 0\n",
    }
    really = writers._read
    monkeypatch.setattr(writers, "_read", lambda path: said[path] if path in said else really(path))
    monkeypatch.setattr(writers, "sessions", lambda directory: [1])
    monkeypatch.setattr(writers, "_below", lambda pid: [os.getpid()])
    return said


def test_a_frozen_group_stops_what_is_in_it(files: dict[str, bytes]) -> None:
    """The group's own word counts, and only where the process has a filter, which all that is jailed has."""
    assert not writers.all_frozen("/nowhere")
    files["/sys/fs/cgroup/a/b/cgroup.events"] = b"populated 1\nfrozen 1\n"
    assert writers.all_frozen("/nowhere")
    files[f"{OWN}/status"] = b"Name:\tx\nSeccomp:\t0\n"
    assert not writers.all_frozen("/nowhere")


def test_one_that_runs_is_enough(files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped process does not speak for another one, nor one session for another."""
    pid = os.fork()
    if pid == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    try:
        os.waitpid(pid, os.WUNTRACED)
        files[f"/proc/{pid}/status"] = files[f"{OWN}/status"]
        monkeypatch.setattr(writers, "_below", lambda launcher: [pid])
        assert writers.all_frozen("/nowhere")
        monkeypatch.setattr(writers, "_below", lambda launcher: [pid, os.getpid()])
        assert not writers.all_frozen("/nowhere")
        monkeypatch.setattr(writers, "_below", lambda launcher: [pid] if launcher == 1 else [os.getpid()])
        monkeypatch.setattr(writers, "sessions", lambda directory: [1, 2])
        assert not writers.all_frozen("/nowhere")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_who_holds_the_lock_is_known(tmp_path: Path) -> None:
    """Sessions share it; whoever has it alone is none, and nobody is neither frozen nor alive."""
    directory = str(tmp_path)
    descriptor = lock.opened(directory)
    assert writers.sessions(directory) == []
    assert not writers.all_frozen(directory)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        own = lock.opened(directory)
        lock.together(own)
        os.write(writing, b"x")
        signal.pause()
    try:
        os.read(reading, 1)
        assert writers.sessions(directory) == [pid]
        with writers.held(directory) as use:
            assert use is writers.Use.BUSY
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reading)
        os.close(writing)
    with writers.held(directory) as use:
        assert use is writers.Use.ENDED
        assert writers.sessions(directory) is None
    os.close(descriptor)


def test_a_lock_elsewhere_is_no_lock_of_this_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A jail can make a file of the same number on a file system of its own, and as many locks as it may open files."""
    (tmp_path / lock.LOCK).touch()
    with open(tmp_path / lock.LOCK, "rb") as held, subprocess.Popen(["sleep", "60"]) as other:
        assert writers.sessions(str(tmp_path)) == []
        device, number = writers._device(held.fileno()), os.fstat(held.fileno()).st_ino
        line = f"1: FLOCK  ADVISORY  {{}} {other.pid} {{}}:{number} 0 EOF\n"
        table = tmp_path / "locks"
        monkeypatch.setattr(writers, "_LOCKS", str(table))
        table.write_text(line.format("WRITE", "00:99") + line.format("READ ", device))
        assert writers.sessions(str(tmp_path)) == [other.pid]
        table.write_text(line.format("READ ", "00:99") * (writers._MOST_LOCKS + 1) + line.format("READ ", device))
        assert writers.sessions(str(tmp_path)) is None
        assert not writers.stands_still(held.fileno())
        other.kill()


def test_the_device_of_a_lock_is_the_one_that_the_kernel_names(tmp_path: Path) -> None:
    """In the table of all locks, where this process has one."""
    with open(tmp_path / "file", "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        name = f"{writers._device(file.fileno())}:{os.fstat(file.fileno()).st_ino}"
        rows = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        assert [name, str(os.getpid())] in [[row[5], row[4]] for row in rows]
