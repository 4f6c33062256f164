"""Jails that warm helpers make ahead of their sessions: the same as others, and nobody's but the one that fits."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import identity, install, paddock, served
from tests.support.features import need
from tests.support.identity import Who
from tests.support.install import Installed, base_python
from tests.support.paddock import Paddock
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


# Makes jails ahead that show a directory, and looks whether what happens to it or elsewhere meanwhile is found.
CHANGES = """
import os
from launcher.jail import syscalls
from launcher.jail.namespaces import enter
from launcher.session import early
syscalls.mount("tmpfs", "/mnt", "tmpfs")
shown = "/mnt/shown"
for path in ("/mnt/shown", "/mnt/shown/inner", "/mnt/aside", "/mnt/one", "/mnt/two"):
    os.mkdir(path)
def show(path):
    syscalls.mount(path, "/mnt/aside", "", 0x1000)  # MS_BIND
def exchange():  # which leaves the same line in mountinfo
    syscalls.umount2("/mnt/aside", 0)
    os.rmdir("/mnt/one")
    os.rename("/mnt/two", "/mnt/one")
    show("/mnt/one")
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
def elsewhere():
    if os.fork() == 0:
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.mount("", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
        syscalls.mount("tmpfs", "/mnt", "tmpfs")
        os._exit(0)
    assert os.wait()[1] == 0
told(lambda: None, "as it was")
told(elsewhere, "as it was")
told(lambda: syscalls.mount("tmpfs", shown + "/inner", "tmpfs"), "mounted")
told(lambda: show("/mnt/one"), "mounted aside")
told(exchange, "exchanged")
told(lambda: syscalls.mount("", "/mnt/aside", "", 0x1021), "remounted")  # MS_BIND, MS_REMOUNT, MS_RDONLY
told(lambda: syscalls.umount2("/mnt/aside", 0), "unmounted")
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
    """The children of a process's first thread; none when it has ended."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


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
    # Of a caller that leads no session, as a helper does, it is kept apart by one of its own.
    assert (early["status"].pop("NSsid"), usual["status"].pop("NSsid")) == ("0", "1")
    assert (early["processes"][1:3], usual["processes"][1:3]) == ([0, 0], [1, 1])
    early["processes"][1:3] = usual["processes"][1:3]
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
    """What was replaced, or any change of the mounts, is found; what happens in another namespace does not matter."""
    need("userns")
    namespace = ["unshare", "--mount"] if who.uid == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    words = [*namespace, str(installed.python), "-I", "-c", CHANGES]
    ended = who.run(words, cwd=place)
    found = ("as it was", "as it was", "mounted", "mounted aside", "exchanged", "remounted", "unmounted", "replaced")
    assert (ended.stdout.splitlines(), ended.stderr) == ([*found], "")


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
    assert ahead(service, "echo", "known") == "known"  # what sessions have in common
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


@contextmanager
def own_mounts() -> Iterator[tuple[str, ...]]:
    """The words that run a command in a mount namespace of its own, as somebody who may mount there."""
    words = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    holding = [*words, "sh", "-c", "echo; read -r _"]
    with subprocess.Popen(holding, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        names = f"/proc/{holder.pid}/ns"
        user = () if os.geteuid() == 0 else (f"--user={names}/user", "--preserve-credentials")
        yield "nsenter", *user, f"--mount={names}/mnt", "--"


def mounted_below(pid: int) -> str:
    """The mounts of jails that a service's helpers have made ahead."""
    found = ""
    for child in children(pid):
        for first in children(child):
            try:
                found += Path(f"/proc/{first}/mountinfo").read_text()
            except OSError:  # it has ended
                continue
    return found


def test_mounts_of_later_are_the_sessions(who: Who, installed: Installed, place: Path) -> None:
    """What the user covers, takes away or adds by mounting is so for the next session, and for the helpers that wait.

    In the worktree, in a part that all sessions have and whose name has a space, and where a project lies; likewise
    for a directory on the way that was replaced.
    """
    need("landlock")
    need("userns")
    for name in ("up/project/sub", "up/project/vol", "up/a part/inner", "later"):
        (place / name).mkdir(parents=True)
        (place / name / "file").write_text("covered")
    who.give(place)
    up = Path("/mnt/up")  # nothing below /tmp is made ahead
    project, part, later = up / "project", up / "a part", Path("/mnt/later")
    with own_mounts() as words:

        def inside(script: str) -> str:
            """What a shell in the namespace says that may mount."""
            line = [*words, "sh", "-ec", "cd /mnt; " + script]
            return subprocess.run(line, check=True, capture_output=True, encoding="utf-8").stdout

        within = replace(who, prefix=(*words, *who.prefix))
        tmpfs = f"mount -t tmpfs -o uid={who.uid if os.geteuid() == 0 else 0} none"
        subprocess.run([*words, "mount", "--bind", str(place), "/mnt"], check=True)
        inside(f"cd up/project; {tmpfs} vol; printf volume > vol/file")
        assert within.run(["git", "init", "-q", str(project)]).returncode == 0
        made = Paddock(within, installed, place, project, project)
        with served.serving(made, helpers=1) as service:
            look = ("sh", "-c", f"cat sub/file '{part}/inner/file' vol/file; echo written > sub/new")
            options = ["--ro", str(part)]
            assert ahead(service, *look, options=options) == "coveredcoveredvolume"
            inside("rm up/project/sub/new")
            ready(service)
            assert "/vol " in mounted_below(service.pid)

            inside(f"cd up/project; {tmpfs} sub; printf shown > sub/file; umount vol; printf bare > vol/file")
            inside(f"cd 'up/a part'; {tmpfs} inner; printf now > inner/file")
            assert session(service, *look, options=options)[1] == "shownnowbare"
            assert inside("cat up/project/sub/new") == "written\n"
            assert not (place / "up/project/sub/new").exists(), "what lies below a cover was reached"

            ready(service)
            inside(f"{tmpfs} later; printf added > later/file")
            assert within.run(["git", "init", "-q", str(later / "project")]).returncode == 0
            there = {"directory": str(later / "project"), "options": [*options, "--ro", str(later / "file")]}
            assert session(service, "cat", str(later / "file"), **there)[1] == "added"

            # No session comes after this: what happens is the waiting helper's doing.
            assert ahead(service, *look, options=options) == "shownnowbare"
            ready(service)
            assert "/later " in mounted_below(service.pid)
            inside("umount --lazy later")  # a helper that is ending may still be there
            deadline = time.monotonic() + PATIENCE
            while "/later " in mounted_below(service.pid):
                assert time.monotonic() < deadline
                time.sleep(0.02)
            ready(service)
            assert "/later " not in mounted_below(service.pid)

            inside("mv up old; mkdir -p up/project/sub up/project/vol; mv 'old/a part' up; chmod -R a+rwX up/project")
            inside("printf new | tee up/project/sub/file > up/project/vol/file")
            assert within.run(["git", "init", "-q", str(project)]).returncode == 0
            assert session(service, *look, options=options)[1] == "newnownew"
