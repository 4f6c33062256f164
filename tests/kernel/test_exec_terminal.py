"""A further command at a terminal: its own one inside the jail, and the caller's as if there were none between."""

import os
import select
import shlex
import signal
import tempfile
import termios
from pathlib import Path

import pytest

from tests.conftest import IDENTITIES
from tests.support.identity import CTRL_C, CTRL_D, CTRL_Z, SHELL, Console
from tests.support.paddock import EXEC_PATIENCE as PATIENCE
from tests.support.paddock import Session

# test_exec_attacks attacks root's session.
pytestmark = pytest.mark.parametrize("name_of_who", IDENTITIES[-1:])


@pytest.fixture
def session(shared_session: Session) -> Session:
    """One of the sessions that live as long as the tests of this file."""
    return shared_session


@pytest.fixture
def here(session: Session) -> Path:
    """A directory of the test's own in the worktree."""
    return session.paddock.who.give(Path(tempfile.mkdtemp(dir=session.paddock.worktree)))


@pytest.fixture
def console(session: Session, here: Path) -> Console:
    """A shell on a terminal, in that directory."""
    return Console(session.paddock.who, here)


def line(session: Session, *command: str) -> str:
    """A command line for a shell that runs `command` in the session."""
    return shlex.join(session.words(*command))


def test_it_has_a_terminal_like_the_callers(session: Session, console: Console) -> None:
    """All three streams are a terminal that tty(1) can name, and the controlling one; it echoes or not, as the caller's
    does; the last line of much output is there at the end, and the caller's terminal is as before.
    """
    script = "tty && test -t 0 && test -t 1 && test -t 2 && echo mine >/dev/tty && stty -a && seq 20000; echo last"
    with console:
        before = termios.tcgetattr(console.master)
        console.run(line(session, "sh", "-c", script))
        console.expect("/dev/pts/[0-9]+")
        console.expect("mine")
        console.expect(r" -echo ")
        console.expect("20000\r\nlast\r\n<0>")
        assert termios.tcgetattr(console.master) == before


def test_ctrl_c_ends_the_command(session: Session, console: Console) -> None:
    """The key reaches the terminal inside, which interrupts the command there."""
    with console:
        console.run(line(session, "sh", "-c", "echo ready; exec cat"))
        console.expect("ready")
        console.type(CTRL_C)
        console.expect(f"<{128 + signal.SIGINT}>")


def test_end_of_input_is_a_key(session: Session, console: Console) -> None:
    """Ctrl-D ends the input of a command that reads the terminal."""
    with console:
        console.run(line(session, "sh", "-c", "echo ready; cat; echo over"))
        console.expect("ready")
        console.type("typed\n")
        console.expect("typed")
        console.type(CTRL_D)
        console.expect("over")
        console.expect("<0>")


def test_ctrl_z_stops_and_fg_continues(session: Session, console: Console) -> None:
    """The caller's shell sees a stopped job, and brings it back with its input working."""
    with console:
        console.type(line(session, "sh", "-c", "echo ready; exec cat") + "\n")
        console.expect("ready")
        console.type(CTRL_Z)
        console.expect("Stopped")
        console.type("echo shell is $((40 + 2))\n")
        console.expect("shell is 42")
        console.run("fg")
        console.expect("exec cat")
        console.type("again\n")
        console.expect("again")
        console.type(CTRL_D)
        console.expect("<0>")


def test_a_command_that_stops_itself_stops_the_client(session: Session, console: Console) -> None:
    """kill -STOP of itself is a stop like any other."""
    with console:
        console.type(line(session, "sh", "-c", "kill -STOP $$; echo back") + "\n")
        console.expect("Stopped")
        console.type("fg\n")
        console.expect("back")


def test_a_shell_inside_has_job_control(session: Session, console: Console) -> None:
    """An interactive bash of its own stops and continues jobs inside the jail."""
    with console:
        console.run(line(session, *SHELL))
        console.type("echo inside $((20 + 1))\n")
        console.expect("inside 21")
        console.type("cat\n")
        console.type("heard\n")
        console.expect("heard")
        console.type(CTRL_Z)
        console.expect("Stopped")
        console.type("jobs; fg\n")
        console.expect("Stopped")
        console.type("again\n")
        console.expect("again")  # from cat, for the terminal does not echo: it is in the foreground
        console.type(CTRL_C)
        console.expect("bash-")  # the key throws away what is typed ahead
        console.type("exit 5\n")
        console.expect("<5>")


def test_the_window_has_its_size(session: Session, console: Console) -> None:
    """The size passes at the start, and each change with its signal."""
    with console:
        console.resize(33, 101)
        console.run(
            line(
                session,
                "bash",
                "-c",
                "stty size; trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.05; done",
            )
        )
        console.expect("33 101")
        console.expect("ready")
        console.resize(44, 122)
        console.expect("44 122")
        console.expect("<0>")


def test_the_terminal_is_restored_after_a_signal(session: Session, console: Console) -> None:
    """A client that is ended from outside leaves no raw terminal behind."""
    with console:
        before = termios.tcgetattr(console.master)
        console.type(line(session, "sh", "-c", "echo ready; exec cat") + " & client=$!; fg\n")
        console.expect("ready")
        console.type("hello\n")
        console.expect("hello")
        console.type(CTRL_Z)
        console.expect("Stopped")
        console.run("kill -TERM $client; fg")
        console.expect(f"<{128 + signal.SIGTERM}>")
        assert termios.tcgetattr(console.master) == before


def test_a_background_job_leaves_the_terminal_alone(session: Session, console: Console) -> None:
    """Started with &, it writes, reads nothing, and can be brought to the front."""
    with console:
        console.type(line(session, "sh", "-c", "echo ready; exec cat") + " &\n")
        console.expect("ready")
        console.type("echo shell is $((40 + 2))\n")
        console.expect("shell is 42")
        console.run("fg")
        console.expect("exec cat")
        console.type("to the command\n")
        console.expect("to the command")
        console.type(CTRL_C)
        console.expect(f"<{128 + signal.SIGINT}>")


def test_output_can_go_to_a_pipe(session: Session, console: Console) -> None:
    """With a pipe behind it no terminal is made, and Ctrl-C ends the whole job."""
    with console:
        console.run(line(session, "sh", "-c", "test ! -t 1 && echo one") + " | tr a-z A-Z")
        console.expect("ONE")
        console.expect("<0>")
        waiting = line(session, "sh", "-c", "echo ready >&2; exec sleep 1000")
        console.type(f"{{ {waiting}; echo status $? >&2; }} | cat\n")
        console.expect("ready")
        console.type(CTRL_C)
        console.expect(f"status {128 + signal.SIGINT}")


THIEF = """
import os, select
notes, told = open("notes", "w", buffering=1), os.open("told", os.O_RDWR)
terminals = [fd for fd in (0, 1, 2) if os.isatty(fd)]
left, leave = os.pipe()
if os.fork():
    os.read(left, 1)  # the end of who leads the session would hang it up
    os._exit(0)
os.setsid()
os.write(leave, b"x")
for fd in {0, 1, 2}.difference(terminals):
    os.close(fd)
while True:
    ready = select.select([*terminals, told], [], [], 60)[0]
    if told in ready:
        os.read(told, 1)
        for fd in terminals:
            try:
                os.write(fd, b"from the jail")
            except OSError:
                pass
        with open("done", "w") as done:
            done.write("x")
        break
    for fd in ready:
        try:
            print("got", os.read(fd, 1000), file=notes)
        except OSError:
            terminals.remove(fd)
"""


@pytest.mark.parametrize("around", ["{}", "{} | cat", "{} </dev/null"])
def test_what_stays_behind_has_no_terminal(session: Session, here: Path, console: Console, around: str) -> None:
    """It reads nothing that the user types at his shell later, and writes nothing on his screen: whichever of the
    command's streams was a terminal.
    """
    notes, told, done = (here / name for name in ("notes", "told", "done"))
    for fifo in (told, done):
        os.mkfifo(fifo)
        session.paddock.who.give(fifo)
    with console:
        console.run(around.format(line(session, "/usr/bin/python3", "-c", THIEF)))
        console.expect("<0>")
        console.run("echo pass''word")
        console.expect("password")
        console.expect("<0>")
        with told.open("r+b", buffering=0) as telling, done.open("r+b", buffering=0) as tried:
            telling.write(b"x")
            assert select.select([tried], [], [], PATIENCE)[0], "it has not tried everything"
        console.run("echo still''there")
        assert "jail" not in console.expect("(.|\\n)*stillthere").group()
    assert set(notes.read_text().splitlines()) <= {"got b''"}


def test_output_at_a_terminal_is_a_terminal_whatever_the_input(session: Session, console: Console) -> None:
    """Lines end as they should, and the keys stay with the caller, who interrupts with Ctrl-C."""
    with console:
        console.run("echo in | " + line(session, "sh", "-c", "test -t 1 && test -t 2 && cat && stty size <&1"))
        console.expect("(?m)^in\\r\\n\\d+ \\d+\\r\\n<0>")
        console.run("echo | " + line(session, "sh", "-c", "echo ready; exec sleep 1000"))
        console.expect("ready")
        console.type(CTRL_C)
        console.expect(f"<{128 + signal.SIGINT}>")


def test_complaints_are_shown_where_output_goes_elsewhere(session: Session, console: Console) -> None:
    """All of them, in order, and the command finds no input instead of keys that are meant for a pager."""
    with console:
        console.run(line(session, "sh", "-c", "wc -c; seq 20000 >&2; echo last >&2") + " | sed 's/^/n=/'")
        shown = console.expect(r"(?s)\A.*<0>").group()  # from one place: from each, it took minutes
    counted, complaints = "n=0\r\n", "".join(f"{number}\r\n" for number in range(1, 20_001))
    assert shown.count(counted) == 1  # wherever: nobody orders what two processes write
    assert shown.replace(counted, "").endswith(f"{complaints}last\r\n<0>")


def test_ctrl_z_stops_a_pipeline(session: Session, here: Path, console: Console) -> None:
    """Without a terminal of its own the command stops too."""
    fifo = here / "go"
    os.mkfifo(fifo)
    session.paddock.who.give(fifo)
    with console:
        waiting = line(session, "bash", "-c", "echo ready >&2; read line <go; echo after >&2")
        console.type(waiting + " | cat\n")
        console.expect("ready")
        console.type(CTRL_Z)
        console.expect("Stopped")
        console.run("fg")
        console.expect("cat")
        fifo.write_text("\n")
        console.expect("after")
        console.expect("<0>")


def test_hanging_up_reaches_the_command(session: Session, here: Path, console: Console) -> None:
    """When the terminal goes away, the command is told."""
    fifo = here / "told"
    os.mkfifo(fifo)
    session.paddock.who.give(fifo)
    with console:
        # The kernel and the launcher may both tell it; the second time nobody reads.
        trap = "trap 'trap \"\" HUP; echo hung up >told; exit' HUP"
        console.type(line(session, "bash", "-c", f"{trap}; echo ready; read line") + "\n")
        console.expect("ready")
    assert fifo.read_text() == "hung up\n"
