"""What goes through a jail unchanged: streams, exit statuses, signal dispositions; and what its launcher refuses."""

import os
import shlex
import signal
import subprocess

import pytest

from tests.support.identity import Who
from tests.support.jail import Jail


@pytest.fixture
def who(user: Who) -> Who:
    """An ordinary user: streams and statuses are the same for root."""
    return user


def line(jail: Jail, *argv: str, namespaces: bool, **spec: object) -> str:
    """A command line for a shell that runs `argv` in the jail."""
    return shlex.join(jail.words(argv, namespaces=namespaces, **spec))


# Pipelines


def test_the_pipeline_outlives_the_command(jail: Jail, namespaces: bool) -> None:
    """What is behind a jail gets all of the output and ends by itself."""
    words = line(jail, "sh", "-c", "echo a; echo b; kill -9 $$", namespaces=namespaces)
    ended = jail.who.run(["bash", "-c", f'{words} | tee copy; echo "${{PIPESTATUS[*]}}"'], cwd=jail.worktree)
    assert ended.stdout == "a\nb\n137 0\n"
    assert (jail.worktree / "copy").read_text() == "a\nb\n"


def test_a_reader_that_leaves_ends_the_command(jail: Jail, namespaces: bool) -> None:
    """SIGPIPE has its default meaning inside, although the interpreter ignores it."""
    words = line(jail, "yes", namespaces=namespaces)
    ended = jail.who.run(["bash", "-c", f'{words} | head -1; echo "${{PIPESTATUS[*]}}"'], cwd=jail.worktree)
    assert ended.stdout == f"y\n{128 + signal.SIGPIPE} 0\n"


def test_end_of_input_comes_through(jail: Jail, namespaces: bool) -> None:
    """An editor that closes its end of the pipe is noticed, so no process of ours holds it open."""
    ended = jail.who.run(jail.words(["cat"], namespaces=namespaces), cwd=jail.worktree, stdin="text\n")
    assert (ended.returncode, ended.stdout) == (0, "text\n")


def test_end_of_output_comes_through(jail: Jail, namespaces: bool) -> None:
    """A command that closes its output while it goes on is noticed by nobody but its reader."""
    file = jail.worktree / "fifo"
    os.mkfifo(file)
    jail.who.give(jail.worktree)
    script = "exec <&-; exec 3<fifo; read x <&3"
    process = jail.who.start(jail.words(["sh", "-c", script], namespaces=namespaces), cwd=jail.worktree)
    assert process.stdin is not None
    with process:
        file.write_text("go\n")
        assert process.wait(30) == 0


def test_closed_standard_input_is_empty(jail: Jail, namespaces: bool) -> None:
    """With nothing on descriptor 0 the command reads /dev/null, not a pipe or pidfd of ours."""
    words = line(jail, "sh", "-c", "readlink /proc/self/fd/0; cat", namespaces=namespaces)
    ended = jail.who.run(["sh", "-c", f"exec {words} <&-"], cwd=jail.worktree)
    assert (ended.returncode, ended.stdout) == (0, "/dev/null\n")


def test_without_a_terminal(jail: Jail, namespaces: bool) -> None:
    """A session that has none runs as well."""
    ended = jail.who.run(["setsid", "--wait", *jail.words(["sh", "-c", "tty; exit 9"], namespaces=namespaces)])
    assert (ended.returncode, ended.stdout) == (9, "not a tty\n")


def test_a_stopped_command_stops_nothing_else(jail: Jail, namespaces: bool) -> None:
    """Without a terminal no shell would continue a stopped launcher, so it waits, and ends with its command."""
    script = "(until [ -e on ]; do sleep 0.05; kill -CONT $$; done) & kill -STOP $$; touch on; echo resumed; exit 7"
    ended = jail.who.run(["setsid", "--wait", *jail.words(["sh", "-c", script], namespaces=namespaces)],
                         cwd=jail.worktree)  # fmt: skip
    assert (ended.returncode, ended.stdout) == (7, "resumed\n")


# Statuses

ALL = """
import sys
from launcher.jail import enter, init, syscalls
from launcher.jail import namespaces
from launcher.jail.spec import JailSpec
from launcher.session import terminal
import os
namespaces.flags = lambda spec: syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWPID
namespaces.enter = lambda spec, operations, **ids: ()
def end(spec, **more):
    code = int(spec.argv[0])
    if code >= 256:
        os.kill(os.getpid(), code - 256)
    os._exit(code)
enter.enter = end
def status(code):
    spec = JailSpec((str(code),), namespaces=sys.argv[1] == "True", filter=b"none")
    try:
        return terminal.supervise(spec, terminal.Listener())
    finally:
        init.unblock_signals()
print(*map(status, map(int, sys.argv[2:])))
"""


def test_every_exit_status_comes_through(jail: Jail, namespaces: bool) -> None:
    """As they are, those too that a shell or Paddock itself gives a meaning; a death by signal as 128+N."""
    statuses = [0, 1, 2, 3, 63, 64, *range(120, 144), 192, 254, 255]
    deadly = [signal.SIGHUP, signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGXFSZ, signal.SIGUSR1]
    codes = map(str, (*statuses, *(256 + number for number in deadly)))
    ended = jail.who.run([str(jail.installed.python), "-I", "-c", ALL, str(namespaces), *codes])
    assert ended.stderr == ""
    assert list(map(int, ended.stdout.split())) == [*statuses, *(128 + int(n) for n in deadly)]


LATE = """
terminal.Terminal.take_back = lambda self: [os.kill(os.getpid(), number) for number in (*init.ENDING, *init.FORWARDED)]
"""


def test_a_signal_that_comes_when_the_command_has_ended_asks_the_launcher_to(jail: Jail, namespaces: bool) -> None:
    """Its own end may wait for a reader that does not read. All others were for the command."""
    before, mark, after = ALL.partition("def status")
    after = after.replace("finally:\n", "finally:\n        print(init.take_ending(), end=' ')\n")
    ended = jail.who.run([str(jail.installed.python), "-I", "-c", before + LATE + mark + after, str(namespaces), "7"])
    assert (ended.stderr, ended.stdout) == ("", f"{int(signal.SIGTERM)} 7\n")


def test_a_refusal_in_the_worker_reaches_the_launcher(jail: Jail, namespaces: bool) -> None:
    """An exception that nobody foresaw becomes a Refusal with its place, and the status is 125."""
    ended = jail.run(["true"], namespaces=namespaces, fault="error")
    assert ended.returncode == 125
    assert "[internal-error]" in ended.stderr
    assert "jailed.py" in ended.stderr
    assert "made up" in ended.stderr


def test_a_worker_that_dies_is_noticed(jail: Jail, namespaces: bool) -> None:
    """Without a word of its own there is still an answer."""
    ended = jail.run(["true"], namespaces=namespaces, fault="die")
    assert ended.returncode == 125
    assert "[jail-lost]" in ended.stderr


def test_a_worker_that_hangs_is_ended(jail: Jail, namespaces: bool) -> None:
    """A mount that never comes back does not keep the caller forever."""
    ended = jail.run(["true"], namespaces=namespaces, fault="hang", start_timeout=0.2)
    assert ended.returncode == 125
    assert "[start-timeout]" in ended.stderr


# What the command inherits


STATE = "grep -E '^Sig(Blk|Ign)' /proc/self/status"


def test_the_command_inherits_the_callers_signals(jail: Jail, namespaces: bool) -> None:
    """What the caller ignores is ignored, and nothing else is ignored or blocked."""
    words = line(jail, "sh", "-c", STATE, namespaces=namespaces)
    for caller in ("", "trap '' INT", "trap '' CHLD", "trap '' HUP TERM"):
        bare = jail.who.run(["sh", "-c", f"{caller}\nexec sh -c {shlex.quote(STATE)}"])
        ended = jail.who.run(["sh", "-c", f"{caller}\nexec {words}"], cwd=jail.worktree)
        assert bare.stdout.count("Sig") == 2
        assert (caller, ended.stdout) == (caller, bare.stdout)


def test_the_status_survives_an_ignored_sigchld(jail: Jail, namespaces: bool) -> None:
    """A caller who ignores SIGCHLD would have the kernel throw the status away."""
    words = line(jail, "sh", "-c", "exit 7", namespaces=namespaces)
    assert jail.who.run(["sh", "-c", f"trap '' CHLD; exec {words}"], cwd=jail.worktree).returncode == 7


def test_without_a_terminal_the_jail_has_its_own_session(jail: Jail) -> None:
    """Without a PID namespace that can be read from inside. What the caller's whole group is sent is passed on.

    A launcher that leads a session has nobody to be kept from.
    """
    probe = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
print(os.getsid(0), os.getpgrp(), flush=True)
print(signal.sigwait({signal.SIGUSR1}).name)
"""
    words = jail.words([str(jail.python), "-I", "-S", "-c", probe], namespaces=False)
    for caller, leads in ((["sh", "-c", 'trap : USR1; "$@"; exit $?', "sh"], False), ([], True)):
        process = subprocess.Popen(
            jail.who.command([*caller, *words]),
            stdout=subprocess.PIPE,
            text=True,
            env=jail.who.environment(),
            start_new_session=True,
        )
        assert process.stdout is not None
        session, group = process.stdout.readline().split()
        assert (session == group, int(session) == process.pid) == (True, leads)
        os.killpg(process.pid, signal.SIGUSR1)
        said, _ = process.communicate(timeout=30)
        assert (process.returncode, said) == (0, "SIGUSR1\n")
