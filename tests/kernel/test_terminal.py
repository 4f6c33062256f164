"""A jail at a terminal is like no jail at all: job control, signals, pipelines, exit statuses."""

import os
import shlex
import signal

import pytest

from launcher.jail import processes
from tests.support.identity import CTRL_C, CTRL_D, CTRL_Z, SHELL, Console, Who
from tests.support.jail import Jail


@pytest.fixture
def who(user: Who) -> Who:
    """An ordinary user: job control is the same for root."""
    return user


@pytest.fixture
def console(jail: Jail) -> "Console":
    """A shell on a terminal."""
    return Console(jail.who, jail.worktree)


def line(jail: Jail, *argv: str, namespaces: bool, **spec: object) -> str:
    """A command line for a shell that runs `argv` in the jail."""
    return shlex.join(jail.words(argv, namespaces=namespaces, **spec))


STOPPING = """
(until [ -e resumed ]; do sleep 0.05; kill -CONT $$; done) &
kill -STOP $$; touch resumed; echo resumed; wait; exit 7
"""
"""Stops itself, and has something continue it that cannot come too early."""


# Job control


def test_ctrl_c_ends_the_command(jail: Jail, console: Console, namespaces: bool) -> None:
    """The terminal's interrupt reaches the command, and the status is 128+2."""
    with console:
        console.run(line(jail, "sh", "-c", "echo ready; exec cat", namespaces=namespaces))
        console.expect("ready")
        console.type(CTRL_C)
        console.expect(f"<{128 + signal.SIGINT}>")


COUNTING = """
import os, signal, time
counts = dict.fromkeys((signal.SIGINT, signal.SIGTERM, signal.SIGUSR2), 0)
def count(number, frame):
    counts[number] += 1
    os.write(1, b"<%s>\\n" % signal.Signals(number).name.encode())
for number in counts:
    signal.signal(number, count)
print("ready", flush=True)
while not counts[signal.SIGUSR2]:
    time.sleep(0.02)  # pause(2) would miss a signal that comes right before it
print("counted", counts[signal.SIGINT], counts[signal.SIGTERM])
"""


def test_an_interrupt_arrives_once(jail: Jail, console: Console, namespaces: bool) -> None:
    """Ctrl-C is not passed on a second time by the launcher, which sees it too."""
    file = jail.outside / "pid"
    program = [str(jail.python), "-I", "-S", "-c", COUNTING]
    with console:
        console.run(line(jail, *program, namespaces=namespaces, pid_file=str(file)))
        console.expect("ready")
        for _ in range(3):
            console.type(CTRL_C)
            console.expect("<SIGINT>")
        # Goes the way on which a second interrupt would come, behind it.
        os.kill(int(file.read_text()), signal.SIGUSR2)
        console.expect("counted 3 0")
        console.expect("<0>")


def test_a_signal_to_the_launcher_reaches_the_command(jail: Jail, console: Console, namespaces: bool) -> None:
    """What somebody sends to the one process that is known outside is passed on, once."""
    file = jail.outside / "pid"
    program = [str(jail.python), "-I", "-S", "-c", COUNTING]
    with console:
        console.run(line(jail, *program, namespaces=namespaces, pid_file=str(file)))
        console.expect("ready")
        os.kill(int(file.read_text()), signal.SIGTERM)
        console.expect("<SIGTERM>")
        os.kill(int(file.read_text()), signal.SIGUSR2)
        console.expect("counted 0 1")


def test_a_signal_to_the_group_arrives_once(jail: Jail, console: Console, namespaces: bool) -> None:
    """`kill %1` reaches command and launcher alike; the launcher's copy is recognised as the same."""
    file = jail.outside / "pid"
    program = [str(jail.python), "-I", "-S", "-c", COUNTING]
    with console:
        console.run(line(jail, *program, namespaces=namespaces, pid_file=str(file)))
        console.expect("ready")
        launcher = int(file.read_text())
        os.killpg(os.getpgid(launcher), signal.SIGTERM)
        console.expect("<SIGTERM>")
        os.kill(launcher, signal.SIGUSR2)
        console.expect("counted 0 1")


def test_ctrl_z_and_fg(jail: Jail, console: Console, namespaces: bool) -> None:
    """The job stops, is listed, continues in the foreground, stops a second time, and reads on."""
    with console:
        console.type(line(jail, "sh", "-c", "echo ready; exec cat", namespaces=namespaces) + "\n")
        console.expect("ready")
        for word in ("one", "two", "three"):
            console.type(CTRL_Z)
            console.expect("Stopped")
            console.run("jobs")
            console.expect(r"Stopped[^\n]*jailed.py")
            console.expect("<0>")
            console.type("fg\n")
            console.expect(r"jailed.py[^\n]*\n")
            console.type(f"{word}\n")
            console.expect(word)
        console.type(CTRL_D)
        console.run("true")
        console.expect("<0>")


def test_a_stopped_job_continues_in_the_background(jail: Jail, console: Console, namespaces: bool) -> None:
    """`bg` lets it run on without the terminal."""
    with console:
        console.type(line(jail, "sh", "-c", "echo ready; read x < fifo; echo got $x", namespaces=namespaces) + "\n")
        os.mkfifo(jail.worktree / "fifo")
        jail.who.give(jail.worktree)
        console.expect("ready")
        console.type(CTRL_Z)
        console.expect("Stopped")
        console.type("bg\n")
        console.run("echo word > fifo; wait")
        console.expect("got word")
        console.expect("<0>")


def test_a_command_that_stops_itself(jail: Jail, console: Console, namespaces: bool) -> None:
    """The shell gets the terminal back although the terminal sent nothing; `fg` brings the command back."""
    with console:
        console.type(line(jail, "sh", "-c", "kill -STOP $$; echo back; read x; echo $x", namespaces=namespaces) + "\n")
        console.expect("Stopped")
        console.run("echo outside")
        console.expect("outside")
        console.expect("<0>")
        console.type("fg\n")
        console.expect("back")
        console.type("word\n")
        console.expect("word")
        console.run("true")
        console.expect("<0>")


def test_a_stopped_job_goes_on_or_ends_with_its_command(jail: Jail, console: Console, namespaces: bool) -> None:
    """Who continues or kills the command, and not the launcher, has the launcher end with its status all the same."""
    file = jail.outside / "pid"
    os.mkfifo(jail.worktree / "go")
    jail.who.give(jail.worktree)
    with console:
        console.run("set -b")
        script = "(read x < go; kill -CONT $$) & kill -STOP $$; echo resumed; wait; exit 7"
        console.type(line(jail, "sh", "-c", script, namespaces=namespaces) + "\n")
        console.expect("Stopped")
        console.type("echo > go\n")
        console.expect("resumed")
        console.expect("Exit 7")
        console.type(line(jail, "sh", "-c", "kill -STOP $$", namespaces=namespaces, pid_file=str(file)) + "\n")
        console.expect("Stopped")
        os.kill(processes.descendants(int(file.read_text()))[-1], signal.SIGKILL)
        console.expect("Exit 137")


def test_a_stop_that_no_shell_would_notice_is_the_commands_alone(jail: Jail, namespaces: bool) -> None:
    """With a terminal but without a shell at it, the launcher waits, and goes on with its command."""
    with Console(jail.who, jail.worktree, jail.words(["sh", "-c", STOPPING], namespaces=namespaces)) as console:
        console.expect("resumed")
        assert console.status() == 7


def test_a_shell_inside_is_interactive(jail: Jail, console: Console, namespaces: bool) -> None:
    """bash in the jail has jobs of its own, can be suspended as a whole, and leaves the terminal in order."""
    with console:
        console.type(line(jail, *SHELL, namespaces=namespaces) + "\n")
        console.type("sh -c 'echo inside-$((6*7)); exec cat'\n")
        console.expect("inside-42")
        console.type(CTRL_Z)
        console.expect("Stopped")
        console.type("jobs; suspend -f\n")
        console.expect(r"Stopped[^\n]*sh -c")
        console.expect(r"Stopped[^\n]*jailed.py")
        console.run("echo outside")
        console.expect("outside\r\n<0>")
        console.type("fg\n")
        console.expect(r"jailed.py[^\n]*\n")
        console.type("fg\n")
        console.expect("sh -c[^\n]*\n")
        console.type("to-cat\n")
        console.expect("to-cat")
        console.type(CTRL_D)
        console.run("echo still-inside")
        console.expect("still-inside\r\n<0>")
        console.type("exit 5\n")
        console.run("echo status $?")
        console.expect("status 5")


def test_a_caller_without_job_control_gets_the_terminal_back(jail: Jail, console: Console, namespaces: bool) -> None:
    """An interactive shell inside took the terminal for a group that is dead now; the caller can read again."""
    script = f"{line(jail, *SHELL, namespaces=namespaces)}; read x; echo got $x"
    with console:
        console.run(f"sh -c {shlex.quote(script)}")
        console.type("echo inside-$((6*7)); exit\n")
        console.expect("inside-42")
        console.type("word\n")
        console.expect("got word")
        console.expect("<0>")


def test_reading_in_the_background_stops(jail: Jail, console: Console, namespaces: bool) -> None:
    """A background job that reads the terminal is stopped by it, and gets its line in the foreground."""
    with console:
        console.type(line(jail, "sh", "-c", "read x; echo got $x", namespaces=namespaces) + " &\n")
        console.run("wait %1")
        console.expect(r"<\d+>")
        console.run("jobs")
        console.expect(r"Stopped[^\n]*jailed.py")
        console.expect("<0>")
        console.type("fg\n")
        console.expect(r"jailed.py[^\n]*\n")
        console.type("word\n")
        console.expect("got word")


def test_a_job_in_the_background_leaves_the_terminal_alone(jail: Jail, console: Console, namespaces: bool) -> None:
    """The shell keeps the foreground while, and after, a background jail runs."""
    with console:
        console.run(line(jail, "true", namespaces=namespaces) + " & wait")
        console.expect("<0>")
        console.run("read x; echo got $x")
        console.type("word\n")
        console.expect("got word")
        console.expect("<0>")


# The screen


SIZED = """
import os, signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGWINCH})
print("ready", flush=True)
signal.sigwait({signal.SIGWINCH})
size = os.get_terminal_size(0)
print(size.lines, size.columns)
"""


def test_a_new_window_size_reaches_the_command(jail: Jail, console: Console, namespaces: bool) -> None:
    """SIGWINCH and the size come straight from the terminal."""
    with console:
        console.run(line(jail, str(jail.python), "-I", "-S", "-c", SIZED, namespaces=namespaces))
        console.expect("ready")
        console.resize(33, 77)
        console.expect("33 77")
        console.expect("<0>")


RAW = """
import os, termios, tty
tty.setraw(0)
os.write(1, b"raw\\r\\n")
while (key := os.read(0, 1)) != b"q":
    os.write(1, b"[%d]" % key[0])
"""


def test_a_full_screen_programme_gets_every_key(jail: Jail, console: Console, namespaces: bool) -> None:
    """In raw mode even Ctrl-C and Ctrl-Z are keys, and nobody stops or dies."""
    with console:
        console.run(line(jail, str(jail.python), "-I", "-S", "-c", RAW, namespaces=namespaces))
        console.expect("raw")
        console.type("a" + CTRL_C + CTRL_Z + "q")
        console.expect(r"\[97\]\[3\]\[26\]")
        console.expect("<0>")


def test_the_terminal_has_a_name_inside(jail: Jail, console: Console) -> None:
    """tty(1) finds the inherited terminal, though its number belongs to nothing inside."""
    with console:
        console.run(line(jail, "tty", namespaces=True))
        console.expect("/dev/console\r\n<0>")


def test_one_job_with_its_pipeline(jail: Jail, console: Console, namespaces: bool) -> None:
    """A jail in front of a programme that reads the terminal is one job with it."""
    reader = 'while read l; do echo "[$l]"; done; read k < /dev/tty; echo key $k'
    with console:
        console.run(f"{line(jail, 'seq', '3', namespaces=namespaces)} | sh -c {shlex.quote(reader)}")
        console.expect(r"\[1\]\r\n\[2\]\r\n\[3\]")
        console.type("word\n")
        console.expect("key word\r\n<0>")
