"""Paddock's own confinement: what a process that reads an agent's words can still do, and what not."""

import errno
import fcntl
import json
import os
import select
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.jail import cell, landlock, processes
from tests.support.acp_editor import PlainEditor as Editor
from tests.support.paddock import Paddock


def confined(work: Callable[[], object], writable: list[str]) -> dict[str, object]:
    """What `work` returns in a process that has been confined."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            cell.confine("confined", writable=writable)
            os.write(writer, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        data = file.read()
    os.waitpid(child, 0)
    found = json.loads(data)
    assert isinstance(found, dict)
    return found


def number(action: Callable[[], object]) -> int:
    """The errno that an action fails with; 0 when it does not."""
    try:
        action()
    except OSError as error:
        return error.errno or -1
    return 0


def test_what_is_confined_reaches_nothing(tmp_path: Path) -> None:
    """No file of the user's, no socket, no programme, no other process; its own directory and Python it has."""
    own = tmp_path / "own"
    own.mkdir()
    (tmp_path / "secret").write_text("x")
    parent = os.getpid()

    def work() -> dict[str, int]:
        import xml.sax.handler  # noqa: F401  # from the standard library, loaded after the fact

        return {
            "secret": number(lambda: os.open(tmp_path / "secret", os.O_RDONLY)),
            "write": number(lambda: os.open(tmp_path / "new", os.O_WRONLY | os.O_CREAT)),
            "passwd": number(lambda: os.open("/etc/passwd", os.O_RDONLY)),
            "list": number(lambda: os.listdir(tmp_path)),
            "internet": number(lambda: socket.socket(socket.AF_INET)),
            "unix": number(lambda: socket.socket(socket.AF_UNIX)),
            "execute": number(lambda: os.execv("/bin/true", ["true"])),
            "kill": number(lambda: os.kill(parent, 0)),
            "owner": number(lambda: fcntl.fcntl(1, fcntl.F_SETOWN, parent)),
            "signal": number(lambda: fcntl.fcntl(1, fcntl.F_SETSIG, 9)),
            "thread": number(lambda: signal.pthread_kill(threading.get_ident(), 0)),
            "own": number(lambda: os.open(own / "new", os.O_WRONLY | os.O_CREAT)),
            "stat": number(lambda: os.stat(tmp_path / "secret")),
        }

    found = confined(work, [str(own)])
    if landlock.abi() < 1:
        for name in ("secret", "write", "passwd", "list"):
            found.pop(name)
    denied = {name: code for name, code in found.items() if name not in ("own", "stat")}
    assert set(denied.values()) <= {errno.EACCES, errno.EPERM}, found
    assert (found["own"], found["stat"]) == (0, 0)


def test_the_bridge_is_confined_before_it_reads_a_line(user_paddock: Paddock, backend: dict[str, str]) -> None:
    """On every backend: filter, no privileges to be gained, none left."""
    with Editor(user_paddock, env=backend) as editor:
        editor.say({"method": "_ready"})
        assert editor.read()["method"] == "_ready"
        pid = editor.process.pid
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        status = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
        assert status["Name"] == "paddock-acp"
        assert (status["Seccomp"], status["NoNewPrivs"], int(status["CapPrm"], 16)) == ("2", "1", 0)


def test_what_a_confined_process_started_dies_with_it() -> None:
    """The kernel sends PR_SET_PDEATHSIG in the name of the process that dies: a signal scope would hold it back."""
    reader, writer = os.pipe()
    middle = os.fork()
    if middle == 0:
        own = os.getpid()
        if os.fork() == 0:
            processes.tie_to_parent(own)
            os.close(reader)
            os.write(writer, b"tied")
            while True:
                signal.pause()
        os.close(writer)
        os.read(reader, 4)
        cell.confine("confined")
        os._exit(0)
    os.close(writer)
    os.waitpid(middle, 0)
    ready, _, _ = select.select([reader], [], [], 10)
    ended = bool(ready) and os.read(reader, 1) == b""
    os.close(reader)
    assert ended, "the grandchild lives on"


def test_numbers_are_this_machines() -> None:
    """Against the kernel's own headers, where they are installed."""
    machine = os.uname().machine
    header = Path(f"/usr/include/{machine}-linux-gnu/asm/unistd_64.h")
    if machine != "x86_64" or not header.exists():
        pytest.skip("no headers of the kernel")
    words = dict(line.split()[1:3] for line in header.read_text().splitlines() if line.startswith("#define __NR_"))
    known = {call: numbers[0] for call, numbers in cell._FORBIDDEN_TOO.items()}
    assert known == {call: int(words[f"__NR_{call}"]) for call in known}
