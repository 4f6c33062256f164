"""The guard's own life: what it is allowed, who may disturb it, what holds when it is gone, and where it refuses."""

import errno
import json
import os
import signal
import stat
from pathlib import Path

import pytest

from launcher import wire
from launcher.jail import hygiene, reports, seccomp, syscalls, trials
from launcher.jail.guard import guard as attach
from launcher.jail.guard import server
from launcher.jail.seccomp import Program
from launcher.jail.spec import JailSpec
from policy.errors import Refusal
from tests.support import forked, guarded, install
from tests.support.features import need
from tests.support.forked import verdict
from tests.support.guarded import Guarded
from tests.support.identity import AS_A_USER, Who, Word
from tests.support.install import Installed
from tests.support.repository import Repo


@pytest.fixture
def jail(who: Who, installed: Installed, repo: Repo, place: Path) -> Guarded:
    """A jail of the backend landlock+guard."""
    need("landlock")
    return guarded.make(who, installed, repo, place)


def program() -> bytes:
    """The filter of a jail with a guard."""
    return seccomp.program(
        syscalls.MACHINE, net="none", own_network=False, own_processes=False, own_ipc=False, kill_zero=True,
        unix_datagrams=False, guard=True,
    )  # fmt: skip


def test_without_a_listener_no_mediated_call_goes_through(who: Who, place: Path) -> None:
    """When the last copy of the listener is closed, mediated calls are ENOSYS, and the others go on."""
    file = place / "file"
    file.touch(mode=0o600)
    who.give(place)

    def act() -> list[str]:
        hygiene.no_new_privs()
        os.close(hygiene.install_notifying(program()))
        return [verdict(os.chmod, file, 0o777), verdict(os.utime, file), verdict(os.stat, file)]

    assert forked.run(act, who) == ["ENOSYS", "ENOSYS", "ok"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@AS_A_USER
def test_a_second_listener_is_busy(jail: Guarded) -> None:
    """Nobody in the jail can become the supervisor of another's calls."""
    code = """
# One instruction: allow everything.
filter = ctypes.create_string_buffer((0x06 | 0x7FFF0000 << 32).to_bytes(8, "little"), 8)
fprog = (ctypes.c_uint64 * 2)(1, ctypes.addressof(filter))
result = [said(syscall, "seccomp", 1, 8, fprog), said(syscall, "seccomp", 1, 0, fprog)]
"""
    assert jail.tried(code) == ["EBUSY", 0]


def test_the_guard_holds_no_capability(jail: Guarded) -> None:
    """Every thread of the guard is without capabilities, cannot get any, and cannot be looked into."""
    started = jail.start(["sh", "-c", "chmod 700 .; echo $PPID; read end || true"])
    assert started.stdout is not None
    assert started.stdin is not None
    guard = int(started.stdout.readline())
    threads = list(Path(f"/proc/{guard}/task").iterdir())
    statuses = [dict(line.split(":\t", 1) for line in (thread / "status").read_text().splitlines() if ":\t" in line)
                for thread in threads]  # fmt: skip
    started.stdin.close()
    assert started.wait() == 0
    started.stdout.close()
    assert started.stderr is not None
    started.stderr.close()
    assert len(statuses) >= 3
    for thread in statuses:
        assert [int(thread[name], 16) for name in ("CapEff", "CapPrm", "CapInh", "CapAmb", "CapBnd")] == [0] * 5
        assert thread["NoNewPrivs"] == "1"


def test_the_jail_ends_with_its_guard(jail: Guarded) -> None:
    """SIGKILL of the guard's process ends the command and what it started; the launcher says so by its status."""
    started = jail.start(["sh", "-c", "sleep 600 & echo $PPID; while :; do chmod 700 . 2>/dev/null; done"])
    assert started.stdout is not None
    os.kill(int(started.stdout.readline()), signal.SIGKILL)
    assert started.wait(30) == 128 + signal.SIGKILL
    assert started.stdout.read() == b""
    for stream in (started.stdin, started.stdout, started.stderr):
        assert stream is not None
        stream.close()


def test_nobody_inside_disturbs_the_guard(jail: Guarded) -> None:
    """The guard can be neither signalled, traced, read, renamed nor limited from inside."""
    code = """
guard = os.getppid()
attempts = {
    "signal": lambda: os.kill(guard, signal.SIGSTOP),
    "urgent": lambda: os.kill(guard, signal.SIGURG),
    "trace": lambda: libc.ptrace(16, guard, None, None) and (_ for _ in ()).throw(OSError(ctypes.get_errno(), "")),
    "memory": lambda: open(f"/proc/{guard}/mem", "rb"),
    "environment": lambda: open(f"/proc/{guard}/environ", "rb").read(),
    "descriptors": lambda: [os.readlink(f"/proc/{guard}/fd/{name}") for name in os.listdir(f"/proc/{guard}/fd")],
    "oom": lambda: open(f"/proc/{guard}/oom_score_adj", "w"),
    "name": lambda: open(f"/proc/{guard}/comm", "w"),
    "limit": lambda: __import__("resource").prlimit(guard, 7, (4, 4)),
    "priority": lambda: os.setpriority(os.PRIO_PROCESS, guard, 19),
}
result = {name: said(attempt) for name, attempt in attempts.items()}
result["it serves"] = said(os.chmod, ".", 0o755)
"""
    found = jail.tried(code)
    assert found.pop("it serves") == "ok"
    assert set(found.values()) <= {"EPERM", "EACCES"}, found


@AS_A_USER
def test_many_processes_and_threads_are_served(jail: Guarded) -> None:
    """Processes and threads in parallel all get their own answer."""
    code = """
def work(name):
    open(name, "w").close()
    for turn in range(50):
        mode = 0o600 + (turn * 7) % 0o177
        os.chmod(name, mode)
        assert os.stat(name).st_mode & 0o777 == mode
        os.utime(name, (turn, turn))
        assert os.stat(name).st_mtime == turn
    return True
pids = []
for number in range(20):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            done = []
            threads = [threading.Thread(target=lambda n=n: done.append(work(f"{number}-{n}"))) for n in range(4)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
            code = 0 if done == [True] * 4 else 2
        finally:
            os._exit(code)
    pids.append(pid)
result = [os.waitpid(pid, 0)[1] for pid in pids]
"""
    assert jail.tried(code) == [0] * 20


@AS_A_USER
def test_signals_meet_mediated_calls_whole(jail: Guarded) -> None:
    """Under a storm of signals each call has its effect or says EINTR; with SA_RESTART it never does."""
    code = """
open("file", "w").close()
result = {}
for restart in (True, False):
    hits = []
    signal.signal(signal.SIGALRM, lambda *_: hits.append(1))
    signal.siginterrupt(signal.SIGALRM, not restart)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    answers, wrong = set(), 0
    while len(hits) < 300:
        mode = 0o600 + len(hits) % 0o177
        answer = said(syscall, "fchmodat", -100, b"file", mode)
        answers.add(answer)
        wrong += answer == 0 and os.stat("file").st_mode & 0o777 != mode
    signal.setitimer(signal.ITIMER_REAL, 0)
    result[str(restart)] = [sorted(map(str, answers)), wrong]
"""
    found = jail.tried(code)
    assert found["True"] == [["0"], 0]
    answers, wrong = found["False"]
    assert wrong == 0
    assert "0" in answers
    assert set(answers) <= {"0", "EINTR"}


@AS_A_USER
def test_a_programme_that_nobody_may_read_changes_nothing(jail: Guarded) -> None:
    """A binary that can be executed and not read cannot be served: EPERM."""
    script = (
        "install -m 0111 $(command -v chmod) unreadable; touch file; ./unreadable 600 file; echo $?; chmod 644 file"
    )
    ended = jail.run(["sh", "-c", script])
    assert ended.stdout == "1\n"
    assert "Operation not permitted" in ended.stderr
    assert ended.returncode == 0


@AS_A_USER
def test_the_command_keeps_nothing_of_the_guards(jail: Guarded) -> None:
    """Neither the listener nor a pipe of ours is left in the command."""
    libffi = "'/libffi.so' in os.path.realpath(f'/proc/self/fd/{name}')"  # newer than 3.4 it keeps its own file open
    found = jail.tried(f"result = sorted(int(name) for name in os.listdir('/proc/self/fd') if not {libffi})")
    assert found[:3] == [0, 1, 2]
    assert len(found) <= 4  # the listing's own


# Runs the command in argv[2:] where the named call is EPERM, as under somebody else's filter.
DENYING = """
import os, sys
from launcher.jail import hygiene, seccomp
from launcher.jail.seccomp import Program
bpf = Program()
bpf.load(0)
bpf.equal(int(sys.argv[1]), then="denied")
bpf.answer(seccomp.ALLOW)
bpf.label("denied")
bpf.answer(seccomp.ERRNO | 1)
hygiene.no_new_privs()
hygiene.install_filter(bpf.assemble())
os.execv(sys.argv[2], sys.argv[2:])
"""
PROCESS_VM_READV = {"x86_64": 310, "aarch64": 270}[syscalls.MACHINE]


@AS_A_USER
@pytest.mark.parametrize(("number", "step"), [(438, "pidfd_getfd"), (PROCESS_VM_READV, "process_vm_readv")])
def test_where_children_cannot_be_traced_it_refuses(jail: Guarded, number: int, step: str) -> None:
    """A host that forbids reading a child (as Yama's ptrace_scope 2 does) gets a Refusal that names the step."""
    words: list[Word] = [*jail.words(["true"])]
    ended = jail.who.run(
        [jail.installed.python, "-I", "-c", DENYING, str(number), *words], cwd=jail.inside, env=guarded.ENVIRONMENT
    )
    assert ended.returncode == 125
    assert "[guard-missing]" in ended.stderr
    assert f"{step}: Operation not permitted" in ended.stderr
    assert "ptrace_scope" in ended.stderr


@AS_A_USER
@pytest.mark.parametrize(("number", "step"), [(438, "pidfd_getfd"), (PROCESS_VM_READV, "process_vm_readv")])
def test_doctor_names_what_is_missing(jail: Guarded, number: int, step: str) -> None:
    """`paddock doctor` shows the guard as not usable, with the step that failed and what to do."""
    words: list[Word] = [jail.installed.python, "-I", "-c", DENYING, str(number)]
    words += [jail.installed.paddock, "doctor", "--json"]
    ended = jail.who.run(words, cwd=jail.inside, env=guarded.ENVIRONMENT)
    (row,) = [layer for layer in json.loads(ended.stdout)["layers"] if layer["layer"] == "guard"]
    assert not row["usable"]
    assert step in row["why"]
    assert row["remedy"]
    assert ended.returncode == 125


def test_a_guard_that_cannot_take_over_starts_nothing(who: Who) -> None:
    """Where tracing is closed although the plan counted on it, guard and command's process both refuse."""

    def act() -> tuple[str, str, int]:
        said, saying = os.pipe()
        guard = os.fork()
        if guard == 0:
            hygiene.no_new_privs()
            hygiene.install_filter(_denying(438))
            served = attach.Guard(JailSpec(), saying)
            child = os.fork()
            if child == 0:
                hygiene.close_inherited((saying, *served.descriptors))
                try:
                    served.install(program())
                except Refusal as refusal:
                    reports.send_refusal(saying, refusal)
                os._exit(0)
            served.serve(child)
            signal.pause()
        os.close(saying)
        code = os.waitstatus_to_exitcode(os.waitpid(guard, 0)[1])
        decoder = wire.Decoder()
        messages: list[tuple[bytes, bytes]] = []
        while data := os.read(said, 4096):
            messages += decoder.feed(data)
        first, second = (reports.refusal(payload).reference for _, payload in messages)
        return first, second, code

    assert forked.run(act, who) == ("guard-untraceable", "guard-lost", 125)


@AS_A_USER
def test_a_jail_in_a_jail_refuses(jail: Guarded) -> None:
    """Inside, Paddock says that somebody supervises it already, and starts nothing."""
    words: list[Word] = [jail.installed.paddock, "run", "--worktree", jail.repo.one, "--", "touch", "inner"]
    ended = jail.run(words, "--ro", jail.installed.prefix, "--ro", install.base_python())
    assert ended.returncode == 125, ended.stderr
    assert "[guard-missing]" in ended.stderr
    assert "another programme already intercepts" in ended.stderr
    assert not (jail.inside / "inner").exists()


def test_the_trial_is_honest(who: Who) -> None:
    """The probe says that the guard works where it does, and that it does not under another listener."""

    def under_another() -> tuple[bool, str]:
        hygiene.no_new_privs()
        held = hygiene.install_notifying((0x06 | seccomp.ALLOW << 32).to_bytes(8, "little"))
        found = trials.guard_works()
        os.close(held)
        return found

    assert forked.run(trials.guard_works, who) == (True, "")
    works, why = forked.run(under_another, who)
    assert not works
    assert "already intercepts" in why


def test_a_fault_of_the_guard_ends_it(user: Who, public_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that should never come is told, and the serving process ends: the call it was about is ENOSYS."""
    file = public_dir / "file"
    file.touch()
    user.give(public_dir)

    def broken(call: object, rules: object) -> int:
        raise ZeroDivisionError("made up")

    monkeypatch.setattr(server, "_HANDLERS", dict.fromkeys(server._HANDLERS, broken))

    def act() -> tuple[str, str, int]:
        said, saying = os.pipe()
        answered, answering = os.pipe()
        guard = os.fork()
        if guard == 0:
            served = attach.Guard(JailSpec(), saying)
            child = os.fork()
            if child == 0:
                hygiene.close_inherited((answering, *served.descriptors))
                served.install(program())
                os.write(answering, verdict(os.chmod, file, 0o777).encode())
                os._exit(0)
            served.serve(child)
            signal.pause()
        os.close(saying)
        os.close(answering)
        code = os.waitstatus_to_exitcode(os.waitpid(guard, 0)[1])
        ((_, payload),) = wire.Decoder().feed(os.read(said, 4096))
        return os.read(answered, 64).decode(), reports.refusal(payload).context, code

    answer, context, code = forked.run(act, user)
    assert (answer, code) == ("ENOSYS", 125)
    assert "ZeroDivisionError('made up')" in context


def _denying(number: int) -> bytes:
    """A filter that answers EPERM to one call."""
    bpf = Program()
    bpf.load(0)
    bpf.equal(number, then="denied")
    bpf.answer(seccomp.ALLOW)
    bpf.label("denied")
    bpf.answer(seccomp.ERRNO | errno.EPERM)
    return bpf.assemble()
