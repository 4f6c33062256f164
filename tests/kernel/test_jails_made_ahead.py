"""Jails that warm helpers make ahead of their sessions: the same as others, and nobody's but the one that fits."""

import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import identity, install, paddock, served
from tests.support.features import need
from tests.support.identity import Who
from tests.support.install import Installed, base_python
from tests.support.served import PATIENCE, Served, alive

# All that a process can tell of its jail from inside, and what it meets where it tries to get further.
PROBE = """
import ctypes, errno, json, os, stat, sys
def read(path):
    with open(path) as file:
        return file.read()
def outcome(act, *words):
    try:
        found = act(*words)
        if isinstance(found, int) and found > 2:
            os.close(found)
        return "done"
    except OSError as error:
        # Which of the two it is depends on whether somebody executes the file at this moment.
        return errno.errorcode[errno.EROFS if error.errno == errno.ETXTBSY else error.errno]
STATUS = {"Seccomp", "Seccomp_filters", "NoNewPrivs", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "Uid", "Gid",
          "Groups", "NStgid", "NSsid", "SigBlk", "SigIgn", "SigCgt", "Threads", "TracerPid", "Umask"}
lines = [line.partition(":") for line in read("/proc/self/status").splitlines()]
mounts = [line.split() for line in read("/proc/self/mountinfo").splitlines()]
found = {
    "status": {name: rest.strip() for name, _, rest in lines if name in STATUS},
    "securebits": ctypes.CDLL(None).prctl(27, 0, 0, 0, 0),
    "namespaces": {name: os.readlink(f"/proc/self/ns/{name}") for name in os.listdir("/proc/self/ns")},
    # Where its own control group lies seen from the root of such a mount is a matter of the group, not of the jail.
    "mounts": sorted(["" if "cgroup" in words[-2] else words[3], words[4:]] for words in mounts),
    "ids": [read(f"/proc/self/{name}") for name in ("uid_map", "gid_map", "setgroups", "oom_score_adj", "limits")],
    "processes": [sorted(filter(str.isdigit, os.listdir("/proc"))), os.getpgrp(), os.getsid(0), os.getppid()],
    "descriptors": sorted(os.listdir("/proc/self/fd"))[:-1],
    "environment": dict(os.environ),
    "place": [os.getcwd(), os.getcwd() == os.path.realpath("."), sorted(os.listdir("/")), os.uname()[1]],
    "interfaces": [line.split()[0] for line in open("/proc/net/dev")][2:],
    "signals": [outcome(os.kill, pid, 0) for pid in (0, 1, os.getppid(), -1)],
    "kernel": {path: [outcome(os.open, path, flags) for flags in (os.O_RDONLY, os.O_WRONLY)] for path in (
        "/proc/sys/kernel/hostname", "/proc/sysrq-trigger", "/proc/1/mem", "/proc/1/environ", "/proc/1/root/etc")},
}
tries = found["tries"] = {}
for top, directories, files in os.walk("/"):
    names = sorted(files + directories)[:40]
    deep = top.count("/") > (2 if top.startswith(("/usr/", "/sys/")) else 4)
    directories[:] = [] if deep else [name for name in sorted(directories)[:40] if (top, name) != ("/", "proc")]
    names = [name for name in names if (top, name[:3]) != ("/dev", "std")]  # whose pipes they are is another matter
    for path in [os.path.join(top, name) for name in names]:
        flags = os.O_NONBLOCK | os.O_NOCTTY
        tries[path] = [outcome(os.open, path, os.O_RDONLY | flags), outcome(os.open, path, os.O_WRONLY | flags),
                       outcome(lambda: os.chmod(path, stat.S_IMODE(os.stat(path).st_mode)))]
    new = os.path.join(top, "made")
    tries[new] = [outcome(os.mkdir, new), outcome(os.rmdir, new),
                  outcome(os.symlink, "x", new), outcome(os.unlink, new)]
print(json.dumps(found, indent=1))
"""


# Makes jails ahead that show a directory, and looks whether what happens to it meanwhile is found.
CHANGES = """
import os
from launcher.jail import syscalls
from launcher.jail.namespaces import enter
from launcher.session import early
syscalls.mount("tmpfs", "/mnt", "tmpfs")
shown = "/mnt/shown"
for path in ("/mnt/shown", "/mnt/shown/inner", "/mnt/aside"):
    os.mkdir(path)
flags = enter.flags(type("Plan", (), {"net": "none"}))
def told(change, expected):
    made = early.Early((flags, None, 0, (("bind", "/usr", ""), ("bind", shown, ""))))
    waiting = early.select.poll()
    waiting.register(made._first.fileno(), early.select.POLLIN)
    assert waiting.poll(60_000)
    change()
    print(expected if (made._confirmed() is None) == (expected != "as it was") else "not found: " + expected)
    made.discard()
def replace():
    os.rename(shown, shown + "-before")
    os.mkdir(shown)
told(lambda: None, "as it was")
told(lambda: syscalls.mount("tmpfs", shown + "/inner", "tmpfs"), "mounted")
told(lambda: syscalls.mount("tmpfs", "/mnt/aside", "tmpfs"), "as it was")
told(replace, "replaced")
"""


@pytest.fixture(scope="module", params=["root", "user"] if os.geteuid() == 0 else ["user"])
def service(request: pytest.FixtureRequest, installed: Installed) -> Iterator[Served]:
    """A service with one helper, which has seen a session."""
    need("landlock")
    need("userns")
    place = Path(tempfile.mkdtemp(prefix="t-", dir=install.public_root()))
    place.chmod(0o755)
    who = (identity.root if request.param == "root" else identity.user)(place / "home")
    (place / "place").mkdir()
    made = paddock.make(who, installed, who.give(place / "place"))
    with served.serving(made, helpers=1) as running:
        yield running
    shutil.rmtree(place)


def count(service: Served) -> int:
    """How many sessions had a jail that was made ahead."""
    lines = service.get("/v1/metrics").raw.decode().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("paddock_jails_ahead_total "))


def session(service: Served, *command: str, **fields: Any) -> tuple[bool, str]:  # noqa: ANN401  # see `create`
    """Runs a command to its end: whether its jail was made ahead, and what it wrote."""
    before = count(service)
    deadline = time.monotonic() + PATIENCE
    while service.get("/v1/health").json["helpers"] < 1:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    name = service.create(*command, **fields)["name"]
    over = service.over(name)
    assert over["outcome"]["status"] == 0, (over, service.log(name))
    written = "\n".join(service.log(name, "?stream=stdout"))
    assert service.call("DELETE", f"/v1/sessions/{name}").status == 204
    return count(service) > before, written


def children(pid: int) -> list[int]:
    """The children of a process's first thread."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def ready(service: Served) -> None:
    """Waits until the one helper that waits has a jail: an init, and the process that will be the command."""
    deadline = time.monotonic() + PATIENCE
    while not any(children(first) for helper in children(service.pid) for first in children(helper)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def ahead(service: Served, *command: str, **fields: Any) -> str:  # noqa: ANN401  # likewise
    """What a command writes in a jail that was made ahead for it. It may take some sessions until there is one."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        was_ahead, written = session(service, *command, **fields)
        if was_ahead:
            return written
    raise AssertionError("no jail was made ahead")


def test_a_jail_made_ahead_is_like_any_other(service: Served) -> None:
    """Privileges, filter, namespaces, mounts, limits, descriptors, environment, and what each attempt meets."""
    words = (str(base_python()), "-I", "-S", "-c", PROBE)
    early = json.loads(ahead(service, *words, name="twin"))
    ended = service.paddock.run("--session", "twin", "--", *words)
    assert ended.returncode == 0, ended.stderr
    usual = json.loads(ended.stdout)
    for found in (early, usual):  # a caller may have ignored Ctrl-C, and the service is another caller
        for name in ("SigIgn", "SigCgt"):
            found["status"][name] = int(found["status"][name], 16) & ~0b110
    own, other = early.pop("namespaces"), usual.pop("namespaces")
    ours = {name: os.readlink(f"/proc/self/ns/{name}") for name in os.listdir("/proc/self/ns")}
    assert {name for name in ours if own[name] == ours[name]} == {name for name in ours if other[name] == ours[name]}
    for what, found in usual.items():
        assert early[what] == found, what
    assert early["status"]["Seccomp"] == "2"
    assert early["signals"][1:3] == ["EPERM", "EPERM"], "Landlock's scope"
    assert early["tries"]["/made"] == ["EROFS"] * 4 or "done" not in early["tries"]["/made"]


def test_nothing_is_taken_on_trust_from_the_time_before(who: Who, installed: Installed, place: Path) -> None:
    """What was replaced, or has something mounted in it since, is found; where nothing happened, nothing is."""
    need("userns")
    namespace = ["unshare", "--mount"] if who.uid == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    words = [*namespace, str(installed.python), "-I", "-c", CHANGES]
    ended = who.run(words, cwd=place)
    assert (ended.stdout, ended.stderr) == ("as it was\nmounted\nas it was\nreplaced\n", "")


def test_another_kind_of_jail_is_made_anew(service: Served) -> None:
    """A session with an open network, or with limits that take a control group, has what it asked for."""
    links = ("sh", "-c", "readlink /proc/self/ns/net")
    assert ahead(service, *links) != os.readlink("/proc/self/ns/net")
    ready(service)
    assert session(service, *links, options=["--net", "open"]) == (False, os.readlink("/proc/self/ns/net"))
    was_ahead, written = session(service, "sh", "-c", "ulimit -d", options=["--limit", "memory=512M"])
    assert not was_ahead
    assert written in ("524288", "unlimited")


def test_a_helper_takes_what_it_made_ahead_with_it(service: Served) -> None:
    """Killed before its session has come, it leaves no process; the service goes on with another one."""
    ready(service)
    below = children(service.pid)
    (helper,) = [pid for pid in below if children(pid)]
    (first,) = children(helper)
    made = [helper, first, *children(first)]
    assert len(made) == 3
    os.kill(helper, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE
    while any(map(alive, made)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert session(service, "echo", "on") == (False, "on")
    assert ahead(service, "echo", "again") == "again"
