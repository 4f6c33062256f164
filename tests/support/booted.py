"""The machine's systemd, booted in namespaces of its own: units are started, watched and killed by the real manager."""

import functools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.identity import SYSTEM_PATH, Word
from tests.support.install import Installed, public_root

ACCOUNT, UID = "paddock-agent", 64999
"""A user that only the booted system knows."""

INIT = Path("/lib/systemd/systemd")
MACHINE_UNITS = Path("/lib/systemd/system")
BOOT = Path(__file__).parent / "programs/boot_systemd.sh"
PATIENCE = 60.0

# What is booted: enough for services, sockets, slices and the journal; nothing that looks for hardware.
TAKEN = (
    *("basic.target", "sysinit.target", "sockets.target", "multi-user.target", "shutdown.target", "umount.target"),
    *("slices.target", "paths.target", "timers.target", "local-fs.target", "swap.target", "network.target"),
    *("nss-user-lookup.target", "user.slice", "systemd-journald.service", "systemd-journald.socket"),
    *("systemd-journald-dev-log.socket",),
)
WANTED = {
    "sockets.target": ("systemd-journald.socket", "systemd-journald-dev-log.socket"),
    "sysinit.target": ("systemd-journald.service",),
}


def hierarchy() -> Path | None:
    """Where the version 2 control groups are mounted."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(place)
    return None


@functools.cache
def missing() -> str:
    """Why systemd cannot be booted here; empty when it can."""
    if os.geteuid() != 0:
        return "only root may make the namespaces"
    if not INIT.exists() or not shutil.which("systemctl"):
        return "systemd is not installed"
    groups = hierarchy()
    if groups is None:
        return "no version 2 control groups are mounted"
    try:
        with _group():
            tried = subprocess.run(
                ["unshare", "--mount", "--pid", "--cgroup", "--uts", "--fork", "mount", "-t", "tmpfs", "tmpfs", "/run"],
                capture_output=True, text=True, timeout=PATIENCE, check=False,
            )  # fmt: skip
    except OSError as error:
        return f"no control group can be made: {error}"
    return tried.stderr.strip()


class Booted:
    """The booted system.

    Args:
        pid: of its init, as the test sees it.
        shared: a directory that is the same inside and outside, owned by `ACCOUNT`.
        installed: the environment whose units are tested.
        initial: it is a manager in the initial PID namespace (see `boot`).
    """

    def __init__(self, pid: int, shared: Path, installed: Installed, *, initial: bool) -> None:
        self.pid = pid
        self.initial = initial
        self.shared = shared
        self.installed = installed

    def run(
        self, *argv: Word, env: Mapping[str, str] | None = None, user: bool = False, stdin: str = ""
    ) -> "subprocess.CompletedProcess[str]":
        """Runs a command in the booted system to its end (never raises for a status).

        Args:
            argv: the command.
            env: on top of PATH, HOME and what finds the units.
            user: as `ACCOUNT`, without capabilities; else as root.
            stdin: text that it reads.
        """
        return subprocess.run(
            self.command(*argv, user=user), env=self.environment(env, user=user), input=stdin, cwd="/",
            capture_output=True, encoding="utf-8", errors="surrogateescape", timeout=PATIENCE, check=False,
        )  # fmt: skip

    def start(self, *argv: Word, env: Mapping[str, str] | None = None, user: bool = False) -> "subprocess.Popen[bytes]":
        """Starts a command in the booted system with pipes on 0, 1 and 2; the caller ends it."""
        return subprocess.Popen(
            self.command(*argv, user=user), env=self.environment(env, user=user), cwd="/",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def command(self, *argv: Word, user: bool = False) -> list[str]:
        """The words that run `argv` inside."""
        enter = ["nsenter", f"--target={self.pid}", "--mount", "--pid", "--cgroup", "--uts", "--wd=/"]
        if self.initial:
            enter.remove("--pid")
        drop = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--inh-caps=-all",
                "--bounding-set=-all"] if user else []  # fmt: skip
        return [*enter, "--", *drop, *map(str, argv)]

    def environment(self, extra: Mapping[str, str] | None = None, *, user: bool = False) -> dict[str, str]:
        """The whole environment of a command inside."""
        home = str(self.shared / "home") if user else "/root"
        units = "/etc/systemd/system:/run/systemd/system:/run/.keep/units"
        found = {"PATH": SYSTEM_PATH, "HOME": home, "LANG": "C.UTF-8", "SYSTEMD_UNIT_PATH": units}
        if self.initial and not user:
            found["XDG_RUNTIME_DIR"] = "/run/manager"
        if user:
            found |= {"USER": ACCOUNT, "LOGNAME": ACCOUNT}
            del found["SYSTEMD_UNIT_PATH"]
        return found | dict(extra or {})

    def systemctl(self, *words: str) -> str:
        """Runs systemctl, which must succeed; what it prints."""
        own = ("--user",) if self.initial else ()
        ended = self.run("systemctl", *own, "--no-pager", *words)
        assert ended.returncode == 0, f"systemctl {' '.join(words)}: {ended.stderr}\n{self.journal()}"
        return ended.stdout

    def show(self, unit: str, key: str) -> str:
        """One property of a unit."""
        return self.systemctl("show", unit, f"--property={key}", "--value").strip()

    def journal(self, *words: str) -> str:
        """What the journal has of services and their manager, the newest 200 lines."""
        own = ("_TRANSPORT=journal", "_TRANSPORT=stdout", "_TRANSPORT=syslog")  # not the kernel's audit
        return self.run("journalctl", "--no-pager", "--lines=200", *own, *words).stdout

    def main_pid(self, unit: str) -> int:
        """A service's main process as the test sees it; 0 for none."""
        inside = int(self.show(unit, "MainPID"))
        if self.initial:
            return inside
        return self.outside(inside) if inside else 0

    def outside(self, inside: int) -> int:
        """The test's number for a process of the booted system."""
        own = os.readlink(f"/proc/{self.pid}/ns/pid")
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                status = Path("/proc", entry, "status").read_text()
                numbers = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[1:]
                if len(numbers) > 1 and int(numbers[1]) == inside and self._below(int(entry), own):
                    return int(entry)
            except (OSError, StopIteration):
                continue
        return 0

    @staticmethod
    def _below(pid: int, namespace: str) -> bool:
        """Whether a process is in this PID namespace itself (jails have further ones)."""
        return os.readlink(f"/proc/{pid}/ns/pid") == namespace

    def clean(self) -> None:
        """Ends what of Paddock runs, and removes what is installed of it, and what the user has."""
        script = """
            systemctl stop 'paddock*' manager.service
            find /etc/systemd/system /etc/tmpfiles.d /run/paddock /run/user "$0/home" -mindepth 1 -delete
            find "$0" -mindepth 1 -maxdepth 1 -not -name home -not -name units -exec rm -r {} +
            rm -rf /run/systemd/system/paddock*
            systemctl daemon-reload; systemctl reset-failed
        """
        self.run("sh", "-c", script, self.shared)
        installed = self.run("find", "/etc/systemd/system", "/etc/tmpfiles.d", "-not", "-type", "d")
        units = self.systemctl("list-units", "--all", "--plain", "--no-legend", "paddock*")
        assert (installed.stdout, units) == ("", "")

    def until(self, fact: str, holds: Callable[[], bool]) -> None:
        """Waits until `holds`; the test fails with the journal when it does not."""
        deadline = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < deadline, f"it never came that {fact}\n{self.journal()}"
            time.sleep(0.05)


@contextmanager
def boot(installed: Installed, shared: Path, *, initial: bool = False) -> Iterator[Booted]:
    """Boots; ends everything afterwards.

    Args:
        installed: the environment to be tested.
        shared: an empty directory that all users can enter.
        initial: not the system's manager with a PID namespace of its own, but one of root's (`systemd --user`, which
            obeys User= and gives capabilities as the other does): audit knows processes by their initial numbers.
    """
    home = shared / "home"
    home.mkdir(mode=0o700)
    for path in (shared, home):
        os.chown(path, UID, UID)
    units = shared / "units"
    _take_units(units)
    account = f"{ACCOUNT}:x:{UID}:{UID}::{home}:/bin/sh"
    with _group() as group:
        # The shell joins the group before it makes the namespace whose root that group then is.
        namespaces = "--mount --cgroup --uts" if initial else "--mount --pid --cgroup --uts --fork --kill-child"
        script = f'echo $$ >"$0/cgroup.procs"; exec unshare {namespaces} "$@"'
        kind = "initial" if initial else "system"
        started = subprocess.Popen(
            ["sh", "-c", script, str(group), str(BOOT), str(installed.prefix), str(shared), str(units), account, kind],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={"PATH": SYSTEM_PATH, "LANG": "C.UTF-8"}, cwd="/", process_group=0,
        )  # fmt: skip
        try:
            yield _when_up(started, shared, installed, initial=initial)
        finally:
            started.kill()
            started.communicate()
            shutil.rmtree(units)


@contextmanager
def shared(installed: Installed) -> Iterator[Booted]:
    """A booted system for the tests of a file, each of which leaves it to the next one by `Booted.clean`."""
    directory = Path(tempfile.mkdtemp(prefix="b-", dir=public_root()))
    directory.chmod(0o755)
    try:
        with boot(installed, directory) as up:
            yield up
    finally:
        shutil.rmtree(directory)


def _when_up(started: "subprocess.Popen[bytes]", shared: Path, installed: Installed, *, initial: bool) -> Booted:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        assert started.poll() is None, (started.communicate()[0] or b"").decode()
        pid = started.pid if initial else _child(started.pid)
        if pid and Path(f"/proc/{pid}/comm").read_text().strip() == "systemd":
            booted = Booted(pid, shared, installed, initial=initial)
            own = ("--user",) if initial else ()
            state = booted.run("systemctl", *own, "is-system-running").stdout.strip()
            if state in ("running", "degraded"):
                assert state == "running", booted.systemctl("--failed") + booted.journal()
                if initial:  # the system's manager lets other users notify it; a user's own has no need to
                    booted.run("chmod", "a+rwx", "/run/manager/systemd", "/run/manager/systemd/notify")
                return booted
        time.sleep(0.05)
    started.kill()
    raise AssertionError(f"systemd did not come up: {(started.communicate()[0] or b'').decode()}")


def _child(pid: int) -> int:
    """The one child of a process; 0 as long as there is none."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else 0


def _take_units(directory: Path) -> None:
    directory.mkdir()
    for name in TAKEN:
        shutil.copy(MACHINE_UNITS / name, directory / name)
    for target, names in WANTED.items():
        (directory / f"{target}.wants").mkdir()
        for name in names:
            (directory / f"{target}.wants" / name).symlink_to(f"../{name}")


@contextmanager
def _group() -> Iterator[Path]:
    """A control group of its own, below this process's; everything in it is killed afterwards."""
    mounted = hierarchy()
    assert mounted is not None
    own = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
    group = mounted / own[3:].lstrip("/") / f"paddock-test-{os.getpid()}-{time.monotonic_ns()}"
    group.mkdir()
    try:
        yield group
    finally:
        kill = group / "cgroup.kill"
        if kill.exists():
            kill.write_text("1")
        _remove(group)


def _remove(group: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            for directory, _, _ in os.walk(group, topdown=False):
                os.rmdir(directory)
            return
        except OSError:  # what was killed takes a moment to go
            assert time.monotonic() < deadline, f"{group} is still in use"
            for line in (group / "cgroup.procs").read_text().split():
                os.kill(int(line), signal.SIGKILL)
            time.sleep(0.02)
