"""A run at a terminal has one of its own, and the caller's is as if there were none between."""

import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.jail import processes
from launcher.session import own_terminal
from launcher.session.relayed import Relay
from tests.support.features import need
from tests.support.identity import AS_A_USER, CTRL_C, CTRL_D, CTRL_Z, SHELL, Console
from tests.support.paddock import Paddock
from tests.support.served import alive

THIEF = """
import errno, os, select
notes = open("notes", "w", buffering=1)
if os.fork():
    os.read(os.open("go", os.O_RDONLY), 1)
    os._exit(0)
told = os.open("told", os.O_RDWR)
fds = [*filter(os.isatty, (0, 1, 2)), told]
try:
    fds.append(os.open("/dev/tty", os.O_RDWR))
except OSError as error:
    print(errno.errorcode[error.errno], file=notes)
os.setsid()
open("ready", "w").close()  # once it has left the session, in which Ctrl-Z would stop it
while told not in (ready := select.select(fds, [], [], 60)[0]):
    for fd in ready:
        print("got", os.read(fd, 1000), file=notes)
open("done", "w").close()
"""

ECHO = "echo ready; exec sed -u 's/^/got /'"
"""What it says of a line shows that it has the terminal: before, a line is echoed too, and a key is the shell's."""


ON_NAMESPACES = pytest.mark.parametrize("backend", ["namespaces"], indirect=True)
"""Of what passes between two terminals, which is outside of every jail."""


@pytest.fixture
def console(paddock: Paddock, backend: dict[str, str]) -> Iterator[Console]:
    """A shell on a terminal, in the worktree, that knows where Paddock keeps things."""
    with Console(paddock.who, paddock.worktree) as console:
        for name, value in {**paddock.env, **backend}.items():
            console.run(f"export {name}={shlex.quote(value)}")
            console.expect("<0>")
        yield console


def line(paddock: Paddock, *command: str, options: tuple[str, ...] = ()) -> str:
    """A command line for a shell that runs `command` in a jail."""
    return shlex.join(paddock.words("run", "--quiet", *options, "--", *command))


def fifo(paddock: Paddock, name: str) -> Path:
    """A FIFO in the worktree."""
    path = paddock.worktree / name
    os.mkfifo(path)
    paddock.who.give(path)
    return path


@AS_A_USER
@pytest.mark.parametrize(
    ("backend", "how"),
    [*(("namespaces", how) for how in ("stopped", "background", "script")), ("landlock", "stopped")],
    indirect=["backend"],
)
def test_what_is_typed_at_the_shell_stays_there(paddock: Paddock, console: Console, how: str) -> None:
    """A process of the jail that has left its session, and job control with it, reads no password that is typed while
    the run is stopped, or in the background. Nor at a script that has the run, without a stream at the terminal, in the
    background: that finds no /dev/tty.
    """
    type_a_password(paddock, console, how)


@AS_A_USER
@ON_NAMESPACES
def test_it_stays_there_with_bubblewrap_too(paddock: Paddock, console: Console) -> None:
    """The third backend."""
    need("bubblewrap")
    type_a_password(paddock, console, "stopped", "--backend", "bubblewrap")


def type_a_password(paddock: Paddock, console: Console, how: str, *options: str) -> None:
    """At a shell whose run is stopped, or in the background, and has a thief in it; or at a script with such a run."""
    ready, go, told, done = (fifo(paddock, name) for name in ("ready", "go", "told", "done"))
    thief = line(paddock, "/usr/bin/python3", "-c", THIEF, options=options)
    asking = "read word </dev/tty; echo got $word"
    if how == "script":
        (paddock.worktree / "script").write_text(f"{thief} </dev/null >/dev/null 2>&1 &\n{asking}\nwait\n")
        console.run("sh script")
    else:
        console.type(thief + ("&" if how == "background" else "") + "\n")
    ready.read_bytes()
    if how == "stopped":
        console.type(CTRL_Z)
        console.expect("Stopped")
    if how != "script":
        console.run(asking)
    console.type("password\n")
    console.expect("got password")
    told.write_text("x")
    done.read_bytes()
    if how == "script":
        go.write_text("x")
    else:
        console.expect("<0>")
        console.run("kill -CONT %1; : >go; wait")
    console.expect("<0>")
    assert (paddock.worktree / "notes").read_text() == ("ENXIO\n" if how == "script" else "")


@AS_A_USER
def test_ctrl_c_ends_a_run_without_a_stream_at_the_terminal(paddock: Paddock, console: Console) -> None:
    """Its jail is no part of the terminal's session, so the key is passed on; Ctrl-Z stops nothing."""
    ready = fifo(paddock, "ready")
    console.run(line(paddock, "sh", "-c", ": >ready; exec sleep 1000") + " </dev/null >/dev/null 2>&1")
    ready.read_bytes()
    console.type(CTRL_Z + CTRL_C)
    console.expect(f"<{128 + signal.SIGINT}>")
    console.run("jobs")
    assert console.expect("(.|\n)*<0>").group().strip() == "<0>"


SENDING = """
import errno, fcntl, os, signal, sys, time
came = []
if "handled" in sys.argv:
    signal.signal(signal.SIGIO, lambda number, _: came.append(number))
terminal = os.open("/dev/tty", os.O_RDWR)
for number in (signal.SIGKILL, signal.SIGSTOP):
    try:
        fcntl.fcntl(terminal, fcntl.F_SETSIG, number)
    except OSError as error:
        print(errno.errorcode[error.errno])
fcntl.fcntl(terminal, fcntl.F_SETFL, os.O_ASYNC)
print("ready", flush=True)
while not came:
    time.sleep(0.02)
print("came", *came)
"""


def sends_signals(paddock: Paddock, console: Console, *options: str) -> None:
    """Of a command that has its terminal send its foreground group, the launcher and the init too, a signal."""
    for how, end in (("handled", f"came {signal.SIGIO}\r\n<0>"), ("by default", f"<{128 + signal.SIGIO}>")):
        console.run(line(paddock, "/usr/bin/python3", "-c", SENDING, how, options=options))
        console.expect("EPERM\r\nEPERM\r\nready")
        console.type("word\n")
        console.expect(end)


@AS_A_USER
def test_keys_send_the_command_nothing_but_what_its_launcher_survives(paddock: Paddock, console: Console) -> None:
    """SIGKILL and SIGSTOP are refused. SIGIO comes, ends a command that does not handle it, and nothing else."""
    sends_signals(paddock, console)


@AS_A_USER
@ON_NAMESPACES
def test_nor_with_bubblewrap(paddock: Paddock, console: Console) -> None:
    """The third backend."""
    need("bubblewrap")
    sends_signals(paddock, console, "--backend", "bubblewrap")


@AS_A_USER
@ON_NAMESPACES
def test_it_is_one_job_of_the_shell(paddock: Paddock, console: Console) -> None:
    """Ctrl-Z stops it, `jobs` lists it, `fg` continues it, again and again; Ctrl-C ends it, and its status is known."""
    console.run(line(paddock, "sh", "-c", ECHO))
    console.expect("ready")
    for word in ("one", "two"):
        console.type(CTRL_Z)
        console.expect("Stopped")
        console.expect(f"<{128 + signal.SIGTSTP}>")
        console.run("jobs")
        console.expect(r"Stopped[^\n]*paddock")
        console.expect("<0>")
        console.run("fg")
        console.expect(r"paddock[^\n]*\n")
        console.type(f"{word}\n")
        console.expect(f"got {word}\r\n")
    console.type(CTRL_C)
    console.expect("\r\n")  # the shell's, which leaves the rest of its line
    console.run(f"test $? = {128 + signal.SIGINT}")
    console.expect("<0>")
    console.run(line(paddock, "sh", "-c", "kill -STOP $$; read word; echo back $word; exit 7"))
    console.expect("Stopped")
    console.expect(f"<{128 + signal.SIGSTOP}>")
    console.run("fg")
    console.type("word\n")
    console.expect("back word\r\n<7>")


@AS_A_USER
@ON_NAMESPACES
def test_the_rest_of_the_job_is_signalled_with_it(paddock: Paddock, console: Console) -> None:
    """By keys, as by a terminal for both: a script around it stops, goes on and ends with it."""
    script = paddock.worktree / "script"
    script.write_text(line(paddock, "sh", "-c", ECHO) + "\necho not interrupted\n")
    console.run("sh script")
    console.expect("ready")
    console.type(CTRL_Z)
    console.expect("Stopped[^\n]*sh script")
    console.expect(f"<{128 + signal.SIGTSTP}>")
    console.run("fg")
    console.expect("sh script")
    console.type("word\n")
    console.expect("got word\r\n")
    console.type(CTRL_C)
    console.expect("\r\n")  # the shell's, which leaves the rest of its line
    console.run("echo over")
    assert "not" not in console.expect("(.|\n)*over\r\n<").group()


@AS_A_USER
@ON_NAMESPACES
def test_a_stopped_job_continues_in_the_background(paddock: Paddock, console: Console) -> None:
    """`bg` lets it run on without the terminal."""
    go = fifo(paddock, "go")
    console.run(line(paddock, "sh", "-c", "echo ready; read word <go; echo got $word"))
    console.expect("ready")
    console.type(CTRL_Z)
    console.expect(f"Stopped(.|\n)*<{128 + signal.SIGTSTP}>")
    console.run("bg")
    console.expect("<0>")
    go.write_text("word\n")
    console.run("wait")
    console.expect("got word(.|\n)*<0>")


RESUMED = """
resumed() {
    (until grep -q '^State:.T' /proc/$$/status; do sleep 0.01; done; kill -CONT $$) &
    kill -STOP $$
    wait
}
"""
"""Stops, and has something continue it that cannot come too early."""


@AS_A_USER
@ON_NAMESPACES
def test_a_stopped_job_goes_on_or_ends_with_its_command(paddock: Paddock, console: Console) -> None:
    """Whoever continues or ends the command: the shell hears of it."""
    console.run(line(paddock, "sh", "-c", f"{RESUMED} resumed; exit 7"))
    console.expect(f"<(7|{128 + signal.SIGSTOP})>")
    console.run("while jobs -s | grep -q .; do sleep 0.1; done; wait; true")
    console.expect("<0>")
    front = started(paddock, console, "echo ready; kill -STOP $$")
    console.run("until jobs -s | grep -q .; do sleep 0.1; done")
    console.expect("<0>")
    os.kill(processes.descendants(front)[-1], signal.SIGKILL)
    console.run("while jobs -s | grep -q .; do sleep 0.1; done; wait $!")
    console.expect(f"<{128 + signal.SIGKILL}>")


@AS_A_USER
@ON_NAMESPACES
def test_a_stop_after_others_that_are_over_stands(paddock: Paddock, console: Console) -> None:
    """Whoever ended those: what has been woken for an earlier stop does not undo a later one."""
    console.run(line(paddock, "sh", "-c", f"{RESUMED} resumed; resumed; touch last; kill -STOP $$; echo back; exit 7"))
    console.expect(f"<{128 + signal.SIGSTOP}>")
    console.run("until [ -e last ]; do sleep 0.1; done; sleep 1; jobs -s")
    console.expect("Stopped[^\n]*paddock(.|\n)*<0>")
    console.run("fg")
    console.expect("back\r\n<7>")


@AS_A_USER
def test_a_stop_that_no_shell_would_notice_is_the_commands_alone(paddock: Paddock, backend: dict[str, str]) -> None:
    """With a terminal but without a shell at it, the run waits, and goes on with its command."""
    words = ["env", *(f"{name}={value}" for name, value in {**paddock.env, **backend}.items())]
    words += paddock.words("run", "--quiet", "--", "sh", "-c", f"{RESUMED} resumed; read word; echo got $word; exit 7")
    with Console(paddock.who, paddock.worktree, words) as console:
        console.type("word\n")
        console.expect("got word")
        assert console.status() == 7


@AS_A_USER
def test_a_launcher_that_somebody_stops_is_a_stopped_job(paddock: Paddock, console: Console) -> None:
    """And `fg` continues it. The command, which has gone on, reads what is typed before the leader hears of that."""
    front = started(paddock, console, "echo ready; read word; echo got $word; exit 7")
    (leader,) = processes.children(front)
    (launcher,) = processes.children(leader)
    os.kill(launcher, signal.SIGSTOP)
    console.run("until jobs -s | grep -q .; do sleep 0.1; done")
    console.expect("<0>")
    os.kill(leader, signal.SIGSTOP)
    console.run("fg")
    console.type("word\n")
    console.expect("got word\r\n")
    os.kill(leader, signal.SIGCONT)
    console.expect("<7>")


def test_who_ends_before_he_has_read_all_is_heard_to_the_end() -> None:
    """The launcher, to which its leader says that it may go on; or the leader, to which the front does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        own_terminal.send(ours, own_terminal.GOES_ON, 1)
        own_terminal.send(theirs, own_terminal.ENDED, 7)
        theirs.close()
        assert own_terminal.received(ours) == (own_terminal.ENDED, 7)
        assert own_terminal.received(ours) == (b"", 0)


def test_who_floods_a_terminal_holds_no_stop_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was said before is shown; others may go on writing as fast as it is read."""
    caller, target = os.openpty()
    master, slave = os.openpty()
    relay = Relay(target, target, keys=False)
    relay.begin(master)
    with subprocess.Popen(["cat"], stdin=caller, stdout=subprocess.DEVNULL) as reader:
        monkeypatch.setattr("launcher.session.relayed.os.read", lambda fd, size: b"y" * size)
        relay.pause()
        assert relay.tail.startswith(b"yy")
        reader.kill()
    relay.close()
    for fd in (caller, target, slave):
        os.close(fd)


@AS_A_USER
def test_a_shell_inside_is_interactive(paddock: Paddock, console: Console) -> None:
    """It has job control, the window's size, and hears of a new one; the caller's settings are as they were."""
    console.run("stty -g >before")
    console.expect("<0>")
    console.resize(33, 77)
    console.run(line(paddock, "bash", "--norc", "--noprofile", "-i"))
    console.expect(r"bash-[^\n]*[$#] ")
    console.type("sh -c 'stty size; exec sleep 1000'\n")
    console.expect("33 77")
    console.type(CTRL_Z)
    console.expect("Stopped")
    console.resize(44, 88)
    console.type("stty size\n")
    console.expect("44 88")
    console.type("kill -9 %1; wait %1; stty raw -echo -isig; exit 5\n")
    console.expect("<5>")
    console.run("stty -g | cmp - before")
    console.expect("<0>")


@AS_A_USER
def test_a_shell_inside_is_suspended_with_its_jobs(paddock: Paddock, console: Console) -> None:
    """It gets the terminal back with `fg`, and its jobs are as they were."""
    console.run(line(paddock, *SHELL))
    console.type("sh -c 'echo inside-$((6*7)); exec cat'\n")
    console.expect("inside-42")
    console.type(CTRL_Z)
    console.expect("Stopped")
    console.type("jobs; suspend -f\n")
    console.expect(r"Stopped[^\n]*sh -c")
    console.expect(r"Stopped[^\n]*paddock")
    console.expect(f"<{128 + signal.SIGSTOP}>")
    console.run("echo outside")
    console.expect("outside\r\n<0>")
    console.run("fg")
    console.expect(r"paddock[^\n]*\n")
    console.type("fg\n")
    console.expect("sh -c[^\n]*\n")
    console.type("to-cat\n")
    console.expect("to-cat")
    console.type(CTRL_D)
    console.run("echo still-inside")
    console.expect("still-inside\r\n<0>")
    console.type("exit 5\n")
    console.expect("<5>")


@AS_A_USER
@ON_NAMESPACES
def test_a_caller_without_job_control_reads_on_after_a_shell(paddock: Paddock, console: Console) -> None:
    """A script whose run was an interactive shell."""
    (paddock.worktree / "script").write_text(f"{line(paddock, *SHELL)}\necho outside; read word; echo got $word\n")
    console.run("sh script")
    console.type("echo inside-$((6*7)); exit\n")
    console.expect("inside-42")
    console.expect("outside")
    console.type("word\n")
    console.expect("got word\r\n<0>")


RESIZED = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGWINCH})
print("ready", flush=True)
while (size := os.get_terminal_size(0)) != (77, 33):
    signal.sigwait({signal.SIGWINCH})
print("resized")
"""
RAW = """
import os, tty
tty.setraw(0)
os.write(1, b"raw\\r\\n")
while (key := os.read(0, 1)) != b"q":
    os.write(1, b"[%d]" % key[0])
"""
INTERRUPTED = """
import os, signal, time
count = 0
def more(*_):
    global count
    count += 1
    os.write(1, b"more\\n")
signal.signal(signal.SIGINT, more)
signal.signal(signal.SIGUSR2, lambda *_: os._exit(count))
print("ready", flush=True)
while True:
    time.sleep(0.02)
"""


@AS_A_USER
@ON_NAMESPACES
def test_the_screen_and_the_keys_are_the_commands(paddock: Paddock, console: Console) -> None:
    """It is told of a new size; in raw mode even Ctrl-C and Ctrl-Z are keys, and in another one interrupt is sent."""
    console.run(line(paddock, "/usr/bin/python3", "-c", RESIZED))
    console.expect("ready")
    console.resize(33, 77)
    console.expect("resized\r\n<0>")
    console.run(line(paddock, "/usr/bin/python3", "-c", RAW))
    console.expect("raw")
    console.type(f"a{CTRL_C}{CTRL_Z}q")
    console.expect(r"\[97\]\[3\]\[26\]")
    console.expect("<0>")
    console.run(line(paddock, "/usr/bin/python3", "-c", INTERRUPTED) + " & echo front $!.; fg")
    front = int(console.expect(r"front (\d+)\.").group(1))
    console.expect("\nready")
    for _ in range(3):
        console.type(CTRL_C)
        console.expect("more")
    os.kill(front, signal.SIGUSR2)  # goes the way on which a second interrupt would come, behind it
    console.expect("<3>")


@AS_A_USER
@ON_NAMESPACES
def test_the_terminal_has_a_name_inside(paddock: Paddock, console: Console) -> None:
    """tty(1) finds it, though its number belongs to nothing inside."""
    console.run(line(paddock, "tty"))
    console.expect("/dev/console\r\n<0>")


@AS_A_USER
@ON_NAMESPACES
def test_input_and_output_elsewhere(paddock: Paddock, console: Console) -> None:
    """Pipes and files stay what they are; a command in a pipeline gets the keys when it asks for them."""
    console.run("echo in | " + line(paddock, "sh", "-c", "cat; test -t 1 && test ! -t 0; echo $?") + " 2>/dev/null")
    console.expect("in\r\n0\r\n<0>")
    asking = line(paddock, "sh", "-c", "echo complaint >&2; read word; test -t 1; echo $word $?")
    console.run(f"{asking} | tr a-z A-Z")
    console.expect("complaint\r\n")
    console.type("word\n")
    console.expect("WORD 1\r\n<0>")
    console.run("echo | " + line(paddock, "sh", "-c", "echo asking; read word </dev/tty; echo got $word"))
    console.expect("asking")
    console.type("word\n")
    console.expect("got word\r\n<0>")
    reader = 'while read number; do echo "[$number]"; done; read word </dev/tty; echo got $word'
    console.run(f"{line(paddock, 'seq', '3')} | sh -c {shlex.quote(reader)}")
    console.expect(r"\[1\]\r\n\[2\]\r\n\[3\]")
    console.type("word\n")
    console.expect("got word\r\n<0>")
    counting = "trap 'echo continued >&2' CONT; echo ready >&2; while :; do sleep 0.05; done"
    console.run(line(paddock, "bash", "-c", counting) + " | cat")
    console.expect("ready")
    console.type(CTRL_Z)
    console.expect("Stopped")
    console.expect(f"<{128 + signal.SIGTSTP}>")
    console.run("fg")
    console.expect("continued\r\n")  # before, a key may still be the shell's
    console.type(CTRL_C)
    console.expect("\r\n")  # the shell's, which leaves the rest of its line
    console.run("echo over")
    console.expect("over\r\n<0>")


@AS_A_USER
@ON_NAMESPACES
def test_a_job_of_the_background_finds_ordinary_modes(paddock: Paddock, console: Console) -> None:
    """Those in which the shell edits its line were there when it was started, and are not the command's."""
    console.run("stty raw")
    console.run(
        line(paddock, "sh", "-c", "sleep 0.3; read word; stty -a; echo got $word") + " & stty sane -echo; sleep 1"
    )
    console.expect("<0>(.|\n)*<0>")
    console.run("fg")
    console.type("word\n")
    console.expect(" icanon(.|\n)*got word\r\n<0>")


@AS_A_USER
@ON_NAMESPACES
def test_all_output_is_shown(paddock: Paddock, console: Console) -> None:
    """The last line of much output is there when the command has ended."""
    console.run(line(paddock, "sh", "-c", "seq 20000; echo last"))
    console.expect("20000\r\nlast\r\n<0>")


def started(paddock: Paddock, console: Console, program: str) -> int:
    """Starts a run in the background; returns its process id when it says that it is ready."""
    console.type(line(paddock, "bash", "-c", program) + " & echo front $!.\n")
    front = console.expect(r"front (\d+)\.").group(1)
    console.expect("ready")
    return int(front)


@AS_A_USER
def test_signals_of_others_reach_the_command_once(paddock: Paddock, console: Console) -> None:
    """What is sent to the process that the shell knows, to its job, and by a terminal that hangs up."""
    told = fifo(paddock, "told")
    front = started(
        paddock,
        console,
        "trap 'echo term' TERM; trap 'echo hup >told; exit' HUP; sleep 0.1; echo ready; while :; do sleep 0.05; done",
    )
    for whom in (str(front), "%1"):
        console.run(f"kill {whom}; sleep 0.3")
        said = console.expect("(.|\n)*<0>").group()
        assert said.count("term") == 1
    os.close(console.master)
    console.master = os.open(os.devnull, os.O_RDONLY)  # for its end
    assert told.read_text() == "hup\n"
    while alive(front):
        time.sleep(0.02)


@AS_A_USER
@pytest.mark.parametrize(
    ("backend", "generations"),
    [*(("namespaces", generations) for generations in (0, 1, 2)), ("landlock", 0)],
    ids=["front", "leader", "launcher", "front without namespaces"],
    indirect=["backend"],
)
def test_nothing_is_left_of_one_that_is_killed(paddock: Paddock, console: Console, generations: int) -> None:
    """SIGKILL to any of the three ends the others and the jail, whatever holds the other terminal."""
    front = started(paddock, console, "setsid sleep 1000 & echo ready; exec sleep 1000")
    below = [front, *processes.descendants(front)]
    assert len(below) >= 5
    victim = front
    for _ in range(generations):
        (victim,) = processes.children(victim)
    os.kill(victim, signal.SIGKILL)
    while any(map(alive, below)):
        time.sleep(0.02)
    assert paddock.run("--", "true").returncode == 0  # sees to what the dead launcher had


@AS_A_USER
def test_without_a_terminal_there_is_none(paddock: Paddock) -> None:
    """And without one to be had, the command does not get the caller's."""
    assert paddock.run("--", "sh", "-c", "test -t 0 || test -t 1 || test -t 2").returncode == 1
