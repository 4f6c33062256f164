"""Bombs in a jail: it is held or ended, the user is told, and nothing outside notices. All bombs are bounded."""

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.jail import cgroup
from launcher.session import state
from tests.conftest import IDENTITIES
from tests.support.identity import AS_A_USER, SYSTEM_PATH, Console
from tests.support.install import Installed
from tests.support.paddock import Paddock

BOMBS = Path(__file__).parent.parent / "support/programs/bombs.py"
PYTHON = shutil.which("python3", path=SYSTEM_PATH) or "python3"
MIB = 1 << 20
MEMORY = 96
DISK = 32
PATIENCE = 60

MEMORY_BOMBS = ("private", "shared", "memory-file", "tmpfs")
HIDDEN_BOMBS = ("first-threads", "of-a-thread", "page-tables")
"""What a control group counts, and a watchdog has to look for."""
DISK_BOMBS = ("home", "home-many", "home-nameless", "home-unreadable", "temp", "var-temp")
BY_EITHER = pytest.mark.parametrize(
    ("who", "backend"),
    [*((who, "namespaces") for who in IDENTITIES[:-1]), (IDENTITIES[-1], "landlock")],
    indirect=True,
)
"""What a control group holds, as root, and what a watchdog does."""
BY_GROUP = [(who, "namespaces", "private") for who in IDENTITIES[:-1]]
"""Root's, whose memory a control group counts where there is one."""


def of_a_user(kinds: tuple[str, ...], *further: tuple[str, str, str]) -> pytest.MarkDecorator:
    """Each kind of bomb as an ordinary user, whom a watchdog holds; the first one on the other backend, too, where it
    finds the processes in another way.
    """
    user = IDENTITIES[-1]
    rows = [*((user, "namespaces", kind) for kind in kinds), (user, "landlock", kinds[0]), *further]
    return pytest.mark.parametrize(("who", "backend", "kind"), rows, indirect=["who", "backend"])


Bomb = Callable[..., "subprocess.Popen[bytes]"]


def groups(paddock: Paddock, session: str) -> list[str]:
    """The control groups of a session, in every hierarchy."""
    found = []
    start = cgroup.PREFIX + cgroup.label(f"{paddock.state}/sessions/{session}/{state.CGROUPS}")
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if " - cgroup" in line:
            for directory, names, _ in os.walk(line.split()[4]):
                found += [f"{directory}/{name}" for name in names if name.startswith(start)]
    return found


@pytest.fixture
def session(paddock: Paddock) -> Iterator[str]:
    """A session's name. Afterwards none of its control groups is left."""
    name = f"t{uuid.uuid4().hex[:12]}"
    yield name
    assert groups(paddock, name) == []


@pytest.fixture
def bomb(paddock: Paddock, backend: dict[str, str], session: str) -> Iterator[Bomb]:
    """Starts a bomb in a jail: kind, most, limit=value ...; whoever goes on waits until its input ends."""
    started = []
    source = shutil.copy(BOMBS, paddock.worktree)
    os.chmod(source, 0o644)

    def start(kind: str, most: int, *words: str, **limits: object) -> "subprocess.Popen[bytes]":
        options = [word for name, value in limits.items() for word in ("--limit", f"{name}={value}")]
        line = paddock.words("run", "--session", session, *options, *words, "--", PYTHON, "bombs.py", kind, str(most))
        started.append(paddock.who.start(line, cwd=paddock.worktree, env=backend))
        return started[-1]

    yield start
    for process in started:
        _end(process)
    for closed in paddock.who.home.rglob("closed"):
        closed.chmod(0o700)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def ended(process: "subprocess.Popen[bytes]") -> tuple[int, str, str]:
    """Status, output and errors of a bomb that has to come to its end although it may wait for input."""
    status = process.wait(PATIENCE)
    assert process.stdout is not None
    assert process.stderr is not None
    errors = process.stderr.read().decode()
    return status, process.stdout.read().decode(), "".join(
        line for line in errors.splitlines(keepends=True) if not line.startswith("paddock: warning: ")
    )  # fmt: skip


def finished(process: "subprocess.Popen[bytes]") -> tuple[int, str, str]:
    """The same of one that may go on, and comes to its end by itself."""
    assert process.stdin is not None
    process.stdin.close()
    return ended(process)


@of_a_user(HIDDEN_BOMBS)
def test_memory_that_hides_is_bounded(bomb: Bomb, kind: str) -> None:
    """Of a process without its first thread, in a file that one thread alone has open, and in page tables."""
    status, _, errors = ended(bomb(kind, 4 * MEMORY * MIB, memory=f"{MEMORY}M"))
    assert status == 137, errors
    assert "it used more than 96 MiB of memory (--limit memory=96M)" in errors


@AS_A_USER
def test_what_others_take_ends_no_jail_that_shares_some_memory(bomb: Bomb) -> None:
    """As databases and Python's multiprocessing do, with nothing open any more."""
    process = bomb("shares", 2 << 20, memory=f"{MEMORY}M")
    assert process.stdout is not None
    assert process.stdout.readline() == b"shares\n"
    others = os.memfd_create("others")
    until = time.monotonic() + 3
    for _ in range(3 * MEMORY):
        os.write(others, bytes(MIB))
    while time.monotonic() < until:
        assert process.poll() is None
        time.sleep(0.1)
    os.close(others)
    assert finished(process) == (0, f"used {2 << 20}\n", "")


@of_a_user(MEMORY_BOMBS, *BY_GROUP)
def test_memory_is_bounded(bomb: Bomb, kind: str) -> None:
    """Of whatever kind the memory is. A watchdog may come when four times as much is had; a control group does not."""
    status, out, errors = ended(bomb(kind, 4 * MEMORY * MIB, memory=f"{MEMORY}M"))
    assert status == 137, errors
    assert out == "" or "the jail was ended" in errors
    assert len(errors.splitlines()) == 1, errors
    assert "it used more than 96 MiB of memory (--limit memory=96M)" in errors


@of_a_user(DISK_BOMBS, (IDENTITIES[-1], "landlock", "temp"))
def test_disk_is_bounded(bomb: Bomb, kind: str) -> None:
    """In the private home and temp directories, with or without a name, in one file or many."""
    status, out, errors = ended(bomb(kind, 4 * DISK * MIB, disk=f"{DISK}M"))
    assert status == 137, errors
    assert out in ("", f"used {4 * DISK * MIB}\n"), "written before the first look, and ended while it waits"
    (line,) = errors.splitlines()
    assert line.startswith("paddock: the jail was ended: it used more than 32 MiB of disk in its private home (")
    assert line.endswith("(--limit disk=32M)")


@AS_A_USER
@pytest.mark.parametrize("backend", ["namespaces"], indirect=True)
def test_the_private_dev_shm_is_full_at_the_limit(bomb: Bomb) -> None:
    """With mounts it has a size, so writing more is an error and not the end."""
    assert finished(bomb("tmpfs", 2 * DISK * MIB, disk=f"{DISK}M")) == (0, f"errno 28 after {DISK * MIB}\n", "")


@AS_A_USER
def test_processor_time_is_bounded(bomb: Bomb) -> None:
    """All processes together, those that live and those that have ended: no two thirds of the bomb are too much."""
    status, out, errors = ended(bomb("spin-apart", 1290, cpu_time=1))
    assert (status, out) == (137, ""), errors
    assert errors == "paddock: the jail was ended: it used more than 1 second of processor time (--limit cpu_time=1)\n"


@BY_EITHER
def test_what_is_below_all_limits_is_had_and_the_report_says_how_they_are_held(bomb: Bomb, paddock: Paddock) -> None:
    """Some of everything, more than the limit only in the worktree, which it is not about; and an error of its own for
    the single process that wants more private memory than the jail may have.
    """
    report = paddock.place / "report.json"
    wanted = {"memory": 8 * DISK * MIB, "disk": DISK * MIB, "cpu_time": 60, "processes": 64, "open_files": 100}
    assert finished(bomb("modest", DISK * MIB, "--report", str(report), **wanted)) == (
        0, f"MemoryError\nused {DISK * MIB}\n", "",
    )  # fmt: skip
    facts = json.loads(report.read_text())["limits"]
    assert sorted(fact["limit"] for fact in facts) == sorted([*wanted, "core", "signals", "queues"])
    for fact in facts:
        assert fact["verdict"] == "held"
        if fact["limit"] in wanted:
            assert fact["detail"].startswith(str(wanted[fact["limit"]]))
    details = {fact["limit"]: fact["detail"] for fact in facts}
    assert "control group" in details["memory"] or "RLIMIT_DATA" in details["memory"]
    assert "watchdog" in details["disk"]


def test_processes_are_bounded(bomb: Bomb, paddock: Paddock, backend: dict[str, str]) -> None:
    """Fork fails at the limit; without namespaces not exactly there, as the same user's others come and go."""
    status, out, errors = finished(bomb("fork", 400, processes=64))
    assert status == 0, errors
    first, second = out.splitlines()
    assert first == "errno 11"
    count = int(second.removeprefix("used "))
    assert 20 < count < (320 if backend and paddock.who.uid else 65)
    if paddock.who.uid == 0:
        assert "(--limit processes=64)" in errors


def test_root_is_bounded_without_a_limit_of_the_users(paddock: Paddock) -> None:
    """The default bounds root's processes too where there are namespaces: by their process ids."""
    report = paddock.place / "report.json"
    done = paddock.run("--report", report, "--", "cat", "/proc/sys/kernel/pid_max")
    facts = {fact["limit"]: fact for fact in json.loads(report.read_text())["limits"]}
    assert facts["processes"]["verdict"] == "held"
    assert (done.stdout == "16384\n") == (paddock.who.uid == 0)


def test_nothing_of_this_is_loaded_without_such_a_limit(installed: Installed) -> None:
    """What the default configuration sets costs no module."""
    program = "import sys, launcher.session.running; print([m for m in sys.modules if m.endswith(%r)])"
    words = [str(installed.python), "-I", "-c", program % ((".limits", ".watchdog", ".usage", ".disk_use", ".cgroup"),)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def working_in(directory: Path) -> list[str]:
    """Processes whose current directory that is."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):  # it has ended
            found += [link.parent.name] if os.readlink(link) == str(directory) else []
    return found


@BY_EITHER
def test_a_neighbour_is_not_disturbed_and_the_next_one_removes_what_a_killed_one_has_left(
    bomb: Bomb, paddock: Paddock, backend: dict[str, str], session: str
) -> None:
    """While processes start processes without end, another jail of the same user starts and works."""
    process = bomb("fork-on", 20, memory="200M", processes=64)
    assert process.stdout is not None
    assert process.stdout.readline() == b"started\n"
    done = paddock.run("--", "sh", "-c", "for i in 1 2 3 4 5; do echo $i | cat; done", env=backend)
    assert process.poll() is None, "the bomb has to be there still"
    if paddock.who.uid == 0 and Path("/sys/fs/cgroup/pids").exists():
        assert groups(paddock, session) != []
    _end(process)
    deadline = time.monotonic() + PATIENCE
    while working_in(paddock.worktree):  # its processes end with it, one after the other
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert (done.returncode, done.stdout) == (0, "1\n2\n3\n4\n5\n"), done.stderr
    assert paddock.run("--", "true", env=backend).returncode == 0
    assert groups(paddock, session) == []


PROBE = """
import os
found = tried = 0
for directory, names, files in os.walk("/sys/fs/cgroup"):
    found += 1
    for name in files:
        if name in ("cgroup.procs", "tasks", "pids.max", "memory.limit_in_bytes", "memory.max", "cgroup.kill"):
            tried += 1
            try:
                os.close(os.open(f"{directory}/{name}", os.O_WRONLY))
                print("opened", directory, name)
            except OSError:
                pass
    try:
        os.mkdir(f"{directory}/agent")
        print("made", directory)
    except OSError:
        pass
for name in os.listdir("/proc/self/fd"):
    try:
        if "cgroup" in os.readlink(f"/proc/self/fd/{name}"):
            print("inherited", name)
    except OSError:
        pass
print("done", found > 0, tried > 0)
"""


def test_no_control_group_can_be_changed_from_inside(paddock: Paddock, backend: dict[str, str], session: str) -> None:
    """Neither the jail's own nor another; root's neither. They are there to be read."""
    words = ("--session", session, "--limit", "memory=200M", "--limit", "processes=64")
    done = paddock.run(*words, "--", PYTHON, "-c", PROBE, env=backend)
    assert (done.returncode, done.stdout) == (0, "done True True\n"), done.stderr


@AS_A_USER
@pytest.mark.parametrize(
    ("backend", "limit", "script"),
    [
        ("namespaces", f"memory={MEMORY}M", f"exec {PYTHON} bombs.py awake {2 * MEMORY * MIB}"),
        ("landlock", "cpu_time=1",
         f"{PYTHON} bombs.py spin 20 & {PYTHON} bombs.py spin-without-first 20 & kill -STOP $$; wait"),
    ],
    ids=["continues itself", "others run"],
    indirect=["backend"],
)  # fmt: skip
def test_who_goes_on_while_the_command_is_stopped_is_looked_at(
    paddock: Paddock, backend: dict[str, str], session: str, bomb: Bomb, limit: str, script: str
) -> None:
    """A process may have itself continued, and others are not stopped with it; with nobody typing anything, their jail
    is ended for what they use.
    """
    del bomb  # its programme is in the worktree
    line = paddock.words("run", "--session", session, "--limit", limit, "--", "sh", "-c", script)
    setting = shlex.join(f"{name}={value}" for name, value in backend.items())
    with Console(paddock.who, paddock.worktree) as console:
        console.type(f"{setting} {shlex.join(line)}\n")
        console.expect("Stopped")
        console.expect(f"--limit {limit}")
        console.run("while jobs | grep -q .; do sleep 0.1; done; true")
        console.expect("<0>")


BLIND = """
import sys
from launcher.session import watchdog
def blind(watching):
    raise OSError("it cannot look")
watchdog.Watchdog.look = blind
sys.argv[:1] = ["paddock"]
from launcher.__main__ import main
sys.exit(main(sys.argv))
"""


@AS_A_USER
def test_what_cannot_be_looked_at_is_ended(paddock: Paddock, backend: dict[str, str], session: str) -> None:
    """Where a look fails, which is shown by one that always does."""
    words = (paddock.installed.python, "-I", "-c", BLIND, *paddock.words("run", "--session", session)[1:])
    command = ("--limit", "memory=1G", "--", "sh", "-c", "sleep 60; echo went on")
    ended = paddock.who.run([*map(str, words), *command], cwd=paddock.worktree, env={**paddock.env, **backend})
    assert (ended.returncode, ended.stdout) == (125, ""), ended.stderr


SMALL = """
import sys
import launcher.session.watchdog
import policy.config.settings
launcher.session.watchdog._SELDOM = 1.0
policy.config.settings.BOUNDS[sys.argv[1]] = float(sys.argv[2])
sys.argv[:3] = ["paddock"]
from launcher.__main__ import main
sys.exit(main(sys.argv))
"""
_WRITE = "for _ in range(20): f.write(bytes(4 << 20))\nf.flush()"
BY_DEFAULT = {
    "memory": "b = [bytearray(4 << 20) for _ in range(30)]",
    "disk": f"f = open('big', 'wb')\n{_WRITE}",
    "deleted": f"import os; f = open('big', 'wb'); os.unlink('big')\n{_WRITE}",
}


@pytest.mark.parametrize(
    ("who", "backend", "what"),
    [
        *((who, "namespaces", "memory") for who in IDENTITIES),
        (IDENTITIES[-1], "landlock", "disk"),
        (IDENTITIES[-1], "namespaces", "deleted"),
    ],
    indirect=["who", "backend"],
)
def test_a_session_without_limits_is_bounded_by_the_machine(
    paddock: Paddock, backend: dict[str, str], what: str
) -> None:
    """A bomb of memory, and one in the worktree, end with a sentence that names the way out; what lifts it lets it be.

    The shares are made small, and the looks at a worktree frequent: nobody fills the machine, or waits, to see them.
    """
    name = "memory" if what == "memory" else "disk"
    free = os.statvfs(paddock.worktree)
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if name == "memory" else (
        free.f_bavail * free.f_frsize)  # fmt: skip
    share = f"{(60 << 20) * 100 / whole:.6f}"

    def run(*options: str, after: str = "") -> "subprocess.CompletedProcess[str]":
        program = f"{BY_DEFAULT[what]}\n{after}"
        words = [str(paddock.installed.python), "-I", "-c", SMALL, name, share, "run", *options, "--"]
        return paddock.who.run(
            [*words, PYTHON, "-c", program], cwd=paddock.worktree, env={**paddock.env, **backend}, timeout=120
        )

    ended = run(after="import time; time.sleep(60)")
    assert (ended.returncode, f"{name}=none lifts it" in ended.stderr) == (137, True), ended.stderr
    (paddock.worktree / "big").unlink(missing_ok=True)
    if what == "memory":
        ended = run("--limit", "memory=none")
        assert ended.returncode == 0, ended.stderr
    said = paddock.call("explain", "--plan").stdout
    assert f"limit     {name} {'75' if name == 'memory' else '50'}%" in said
