"""Files, pipes, sockets and devices that the caller gives as standard streams: their bytes cross, they do not.

Attacked for real, through every stream and by every call that changes a file by its descriptor; what counts is what
the file outside looks like afterwards.
"""

import fcntl
import json
import os
import select
import shlex
import signal
import socket
import stat
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from launcher.jail.processes import children
from launcher.session.carrier import Carrier
from policy import promises
from tests.kernel.conftest import ROOT_ONCE
from tests.support.identity import AS_A_USER
from tests.support.install import base_python
from tests.support.paddock import EXEC_PATIENCE as PATIENCE
from tests.support.paddock import Paddock, Session, said
from tests.support.programs.scene import SWITCHES, Scene

ON_ONE_BACKEND = pytest.mark.parametrize("scene_of_user", promises.BACKENDS[:1], indirect=True)
"""Of what is done outside of the jail, whatever holds that."""

# Acts on one descriptor; says which went through. What only the file shows is looked at from outside.
ATTACK = """
import ctypes, fcntl, json, os, sys
done = []
def act(name, call, *arguments):
    try:
        call(*arguments)
    except (OSError, ValueError) as error:
        return None
    done.append(name)
def rewrite(path):
    fd = os.open(path, os.O_RDWR)
    os.pwrite(fd, b"agent", 0)
def overwrite(fd):
    fcntl.fcntl(fd, fcntl.F_SETFL, 0)
    os.pwrite(fd, b"agent", 0)
def mapped(fd):
    import mmap
    mmap.mmap(fd, 4)[:4] = b"agen"
for fd in (0, 1, 2):
    path = f"/proc/self/fd/{fd}"
    act(f"fchmod {fd}", os.fchmod, fd, 0o777)
    act(f"chmod {fd}", os.chmod, path, 0o777)
    act(f"fchown {fd}", os.fchown, fd, os.getuid(), os.getgid())
    act(f"utime {fd}", os.utime, fd, (1, 1))
    act(f"utime by path {fd}", os.utime, path, (1, 1))
    act(f"setxattr {fd}", os.setxattr, fd, "user.agent", b"1")
    act(f"setxattr by path {fd}", os.setxattr, path, "user.agent", b"1")
    act(f"truncate {fd}", os.ftruncate, fd, 0)
    act(f"truncate by path {fd}", os.truncate, path, 0)
    act(f"open and truncate {fd}", os.open, path, os.O_WRONLY | os.O_TRUNC)
    act(f"open and write {fd}", rewrite, path)
    act(f"overwrite {fd}", overwrite, fd)
    act(f"map {fd}", mapped, fd)
    act(f"lock {fd}", fcntl.flock, fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    act(f"list {fd}", os.listdir, fd)
    act(f"parent {fd}", lambda: os.stat("..", dir_fd=fd))
with open(sys.argv[1], "w") as file:
    json.dump(done, file)
"""
# The same for pipes and sockets: the other direction, the flags that all holders share, another peer.
ACROSS = """
import fcntl, os, socket, sys
def act(call, *arguments):
    try:
        return call(*arguments)
    except OSError as error:
        print(error, file=sys.stderr)
def opened(fd, mode):
    return os.open(f"/proc/self/fd/{fd}", mode | os.O_NONBLOCK)
def anew(fd, port, call, *arguments):
    with socket.socket(fileno=os.dup(fd)) as sock:
        act(sock.connect, "")
        libc.connect(fd, bytes(16), 16)
        act(getattr(sock, call), *arguments, ("127.0.0.1", port))
        act(sock.send, b"agent")
def listening(fd):
    with socket.socket(fileno=os.dup(fd)) as sock:
        sock.bind(("127.0.0.1", 0)), sock.listen()
import ctypes
libc = ctypes.CDLL(None)
for fd in (0, 1, 2):
    act(lambda: fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_NONBLOCK | os.O_ASYNC))
    act(anew, fd, int(sys.argv[1]), "connect")
    act(anew, fd, int(sys.argv[1]), "sendto", b"agent", 0x20000000)
    act(listening, fd)
act(lambda: os.write(opened(0, os.O_WRONLY), b"agent"))
for fd in (1, 2):
    act(lambda: os.read(opened(fd, os.O_RDONLY), 100))
"""


def pairs(kind: str) -> tuple[int, int]:
    """A connection of the caller's: an end to read from, and one to write to."""
    if kind == "pipe":
        return os.pipe()
    if kind == "unix":
        one, two = socket.socketpair()
    else:
        with socket.create_server(("127.0.0.1", 0)) as server:
            one = socket.create_connection(server.getsockname())
            two = server.accept()[0]
    return one.detach(), two.detach()


KINDS = pytest.mark.parametrize("kind", ["pipe", "unix", "tcp"])


def look(path: Path) -> tuple[object, ...]:
    """What a command could change of something without being given it."""
    info = path.lstat()
    return info.st_mode, info.st_uid, int(info.st_mtime) > 1, os.listxattr(path, follow_symlinks=False)


def words(scene: Scene) -> list[str | Path]:
    """The attack, which leaves its list in the worktree."""
    return [base_python(), "-I", "-S", "-c", ATTACK, scene.area / "done"]


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """A descriptor of the caller's."""
    fd = os.open(path, flags | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def read_all(fd: int) -> bytes:
    """What comes until the end."""
    found = b""
    while piece := os.read(fd, 1 << 16):
        found += piece
    return found


def shown(scene: Scene, *command: str) -> str:
    """The line of sh(1) that runs a command in the jail."""
    return shlex.join(scene.command(command, "--worktree", scene.repo.one))


def through(scene: Scene) -> list[str]:
    """What the attack says that it did to more than pipes: those have modes and owners of their own."""
    done = json.loads((scene.area / "done").read_text())
    own = ("fchmod", "chmod", "fchown", "utime", "utime by path", "open and", "lock")
    return [name for name in done if not name.startswith(own)]


@ROOT_ONCE
def test_files_of_the_caller_are_out_of_reach(scene: Scene) -> None:
    """No mode, time, attribute or byte of them changes but by what is written to the stream."""
    paths = [scene.place / name for name in ("input", "output", "log")]
    for path in paths:
        path.write_text("of the caller\n")
    scene.own(scene.place)
    before = [look(path) for path in paths]
    with (
        opened(paths[0], os.O_RDONLY) as zero,
        opened(paths[1], os.O_WRONLY | os.O_APPEND) as one,
        opened(paths[2], os.O_RDWR | os.O_APPEND) as two,
        scene.start(words(scene), stdin=zero, stdout=one, stderr=two) as process,
    ):
        assert process.wait(PATIENCE) == 0, paths[2].read_text()
    assert [look(path) for path in paths] == before
    assert [path.read_text() for path in paths[:2]] == ["of the caller\n"] * 2
    first, *further = paths[2].read_text().splitlines()
    assert first == "of the caller"
    assert all(line.startswith("paddock: warning: ") for line in further)
    assert through(scene) == []


@AS_A_USER
def test_fifos_of_the_caller_are_out_of_reach(scene: Scene) -> None:
    """A FIFO with a name has a mode and times, and can be opened once more."""
    fifo = scene.place / "fifo"
    os.mkfifo(fifo)
    scene.own(fifo)
    before = look(fifo)
    with (
        opened(fifo, os.O_RDWR) as end,
        scene.start(words(scene), stdin=end, stdout=end, stderr=subprocess.PIPE) as process,
    ):
        _, complaint = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, complaint
        os.set_blocking(end, False)
        with pytest.raises(BlockingIOError):
            os.read(end, 10)
    assert look(fifo) == before
    assert through(scene) == []


@ROOT_ONCE
@KINDS
def test_pipes_and_sockets_of_the_caller_are_out_of_reach(scene: Scene, kind: str) -> None:
    """Nobody who holds them, too, reads what the command did not say, misses what others have, or finds other flags."""
    (source, feed), (out, sink), (errors, complaints) = ends = [pairs(kind) for _ in range(3)]
    os.write(feed, b"next\n")
    os.write(sink, b"earlier\n")
    os.write(complaints, b"earlier\n")
    flags = [fcntl.fcntl(fd, fcntl.F_GETFL) for fd in (source, sink, complaints)]
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        argv = [base_python(), "-I", "-S", "-c", ACROSS, elsewhere.getsockname()[1]]
        with scene.start(argv, stdin=source, stdout=sink, stderr=complaints) as process:
            assert process.wait(PATIENCE) == 0
        elsewhere.setblocking(False)
        with pytest.raises(BlockingIOError):
            elsewhere.accept()
    assert [fcntl.fcntl(fd, fcntl.F_GETFL) for fd in (source, sink, complaints)] == flags
    for fd in (feed, sink, complaints):
        os.close(fd)
    assert read_all(source) == b"next\n"
    assert read_all(out) == b"earlier\n"
    assert read_all(errors).startswith(b"earlier\n")
    for fd in (ends[0][0], out, errors):
        os.close(fd)


@ROOT_ONCE
def test_devices_are_the_jails_own(scene: Scene) -> None:
    """Mode and times of the machine's /dev/null stay what they are, for root, too, and the streams work."""
    before = look(Path("/dev/null"))
    check = f"{shlex.join(map(str, words(scene)))}; cat; echo x; printf %s done >{scene.area}/said"
    try:
        process = scene.start(
            ["sh", "-c", check], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        assert process.wait(PATIENCE) == 0
        after = look(Path("/dev/null"))
    finally:
        if os.geteuid() == 0:
            os.chmod("/dev/null", 0o666)
    assert after == before
    done = json.loads((scene.area / "done").read_text())
    assert not [name for name in done if name.startswith(("fchmod", "chmod", "fchown", "utime", "setxattr"))]
    assert (scene.area / "said").read_text() == "done"


@AS_A_USER
def test_devices_of_every_jail_are_what_they_are(scene: Scene) -> None:
    """/dev/full takes nothing, /dev/zero gives zeros."""
    with opened(Path("/dev/full"), os.O_WRONLY) as full, opened(Path("/dev/zero"), os.O_RDONLY) as zero:
        line = "head -c 3 | od -An -c >&2; cat script"
        (scene.area / "script").write_text("x")
        process = scene.start(["sh", "-c", line], stdin=zero, stdout=full, stderr=subprocess.PIPE)
        complaint = process.communicate(timeout=PATIENCE)[1].decode()
    assert process.returncode == 1
    assert "\\0  \\0  \\0" in complaint
    assert "No space left on device" in complaint


@ON_ONE_BACKEND
@pytest.mark.parametrize("stream", ["stdin", "stdout"])
def test_what_is_no_stream_is_refused(scene_of_user: Scene, stream: str) -> None:
    """A directory would be a way out of the view, by a pidfd processes are signalled, and a socket of messages has no
    bytes that could be carried."""
    scene = scene_of_user
    messages = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM), *socket.socketpair(type=socket.SOCK_SEQPACKET)]
    sockets = [each.detach() for each in messages]
    for fd in (os.open(scene.place, os.O_PATH), os.pidfd_open(os.getpid()), os.eventfd(1), *sockets):
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, stream: fd}
        process = scene.start(words(scene), stderr=subprocess.PIPE, **streams)
        directory = stat.S_ISDIR(os.fstat(fd).st_mode)
        os.close(fd)
        complaint = process.communicate(timeout=PATIENCE)[1].decode()
        assert not (scene.area / "done").exists()
        if directory:  # the interpreter itself will not start with one
            assert process.returncode != 0
        else:
            assert (process.returncode, said(complaint).reference) == (125, "stream-unusable")


# The allowed twins


def run_script(scene: Scene, script: str, *options: str) -> "subprocess.CompletedProcess[str]":
    """Runs a script of bash(1) in a directory of the caller's, outside of every jail."""
    scene.own(scene.place)
    return scene.who.run(["bash", *options, "-c", script], cwd=scene.place, env=scene.environment(), timeout=120)


def output(path: Path) -> str:
    """What is in a file, without what Paddock itself says."""
    return "".join(line for line in path.read_text().splitlines(True) if not line.startswith("paddock: "))


@AS_A_USER
def test_bytes_cross_in_order(scene: Scene) -> None:
    """A large file in, the same out; output and errors of one file stay in order; positions are the caller's."""
    big = os.urandom(3_000_000)
    (scene.place / "big").write_bytes(big)
    count = shown(scene, "sh", "-c", "for i in 1 2 3 4 5 6; do echo $i; echo e$i >&2; done")
    script = f"""
    {shown(scene, "cat")} <big >copy
    {{ echo before; {count}; echo after; }} >log 2>&1; echo first >>log
    printf '1\\n2\\n3\\n' >three; {{ {shown(scene, "sh", "-c", "read line")}; cat; }} <three >rest
    {{ {shown(scene, "true")}; wc -c; }} <big >unread
    """
    ended = run_script(scene, script, "-e")
    assert ended.returncode == 0, ended.stderr
    assert (scene.place / "copy").read_bytes() == big
    lines = [f"{e}{i}" for i in range(1, 7) for e in ("", "e")]
    assert output(scene.place / "log").split() == ["before", *lines, "after", "first"]
    assert (scene.place / "rest").read_text() == "2\n3\n"
    assert (scene.place / "unread").read_text().strip() == str(len(big))


@ON_ONE_BACKEND
def test_fifos_carry_bytes_and_broken_pipes(scene_of_user: Scene) -> None:
    """A FIFO is a stream like another; whoever writes into one whose reader has gone hears of it."""
    scene = scene_of_user
    script = f"""
    mkfifo one two three
    cat <two >copy & {shown(scene, "tr", "a", "b")} <one >two & echo aaa >one; wait
    {{ yes; echo "${{PIPESTATUS[0]}} $?" >status; }} >three 2>&- & {shown(scene, "head", "-n1")} <three >head; wait
    head -n1 <two >taken & {shown(scene, "yes")} >two; echo "${{PIPESTATUS[0]}}" >broken; wait
    """
    ended = run_script(scene, script)
    assert (scene.place / "copy").read_text() == "bbb\n", ended.stderr
    assert (scene.place / "head").read_text() == "y\n"
    assert (scene.place / "status").read_text().split()[-1] in ("141", "1")
    assert (scene.place / "taken").read_text() == "y\n"
    assert (scene.place / "broken").read_text() == "141\n"


@AS_A_USER
def test_input_is_taken_as_far_as_it_is_read(scene: Scene) -> None:
    """Who shares the caller's pipe goes on where the command has ended: a loop's next turn, the rest of a script."""
    script = f"""
    seq 3 | while read each; do echo turn $each; {shown(scene, "true")}; done >turns
    seq 90000 | {{ {shown(scene, "sh", "-c", "read a; read b; echo $a $b")}; read c; echo $c
        {shown(scene, "head", "-c", "300000")} | wc -c; {shown(scene, "cat", "/dev/stdin")}; }} >parts
    printf '%s\n' {shlex.quote(shown(scene, "true"))} 'echo $((6 * 7))' | bash >script
    head -c 3000000 /dev/urandom | tee big | {shown(scene, "cat")} | {shown(scene, "cat")} >copy
    """
    ended = run_script(scene, script)
    assert (scene.place / "turns").read_text() == "turn 1\nturn 2\nturn 3\n", ended.stderr
    lines = (scene.place / "parts").read_text().splitlines()
    assert lines[:3] == ["1 2", "3", "300000"]
    assert lines[-1] == "90000"
    assert sum(len(line) + 1 for line in lines[3:]) == sum(len(f"{n}\n") for n in range(1, 90001)) - 6 - 300000
    assert (scene.place / "script").read_text() == "42\n"
    assert (scene.place / "copy").read_bytes() == (scene.place / "big").read_bytes()


@ON_ONE_BACKEND
@pytest.mark.parametrize("kind", ["pipe", "unix"])
def test_a_stream_that_ends_is_heard_of(scene_of_user: Scene, kind: str) -> None:
    """A reader's end ends a command that waits for nothing else; a writer's is the command's end of input.

    Of a TCP peer's end its writer would not hear before it writes either.
    """
    scene = scene_of_user
    (source, feed), (out, sink) = pairs(kind), pairs(kind)
    with scene.start(["sh", "-c", "cat; exec tail -f /dev/null"], stdin=source, stdout=sink) as process:
        for fd in (source, sink):
            os.close(fd)
        os.write(feed, b"x" * 20000)
        os.close(feed)
        read = b""
        while len(read) < 20000:
            read += os.read(out, 1 << 16)
        assert process.poll() is None
        os.close(out)
        assert process.wait(PATIENCE) in (1, 141)


@ON_ONE_BACKEND
def test_a_command_serves_a_connection(scene_of_user: Scene) -> None:
    """One socket for all, as inetd(8) gives it, in both directions at once and with more than any buffer holds."""
    one, two = socket.socketpair()
    sent = os.urandom(2_000_000)
    with scene_of_user.start(["cat"], stdin=one, stdout=one, stderr=subprocess.DEVNULL) as process, two:
        one.close()

        def feed() -> None:
            two.sendall(sent)
            two.shutdown(socket.SHUT_WR)

        feeding = threading.Thread(target=feed)
        feeding.start()
        assert read_all(two.fileno()) == sent
        feeding.join()
        assert process.wait(PATIENCE) == 0


@ON_ONE_BACKEND
@pytest.mark.parametrize("bound", ["ulimit -f 8", "true"])
def test_a_file_that_takes_no_more_is_told(scene_of_user: Scene, bound: str) -> None:
    """Whether the caller's limit or the session's: the command is ended by SIGPIPE, or its success is none."""
    scene = scene_of_user
    limit = ("--limit", "file_size=8192") if bound == "true" else ()
    for command, status in ((("head", "-c", "9000", "/dev/zero"), 125), (("yes",), 141)):
        line = shlex.join(scene.command(command, "--worktree", scene.repo.one, *limit))
        ended = run_script(scene, f"{bound}; {line} >file 2>errors; echo $?; cat errors")
        assert ended.stdout.splitlines()[0] == str(status), ended
        assert "standard output did not accept all that the command wrote [output-lost]" in ended.stdout
        assert (scene.place / "file").stat().st_size == 8192


@AS_A_USER
@pytest.mark.parametrize("scene", promises.BACKENDS[:1], indirect=True)
def test_one_open_file_for_input_and_output_has_one_place(scene: Scene) -> None:
    """What the command writes goes to where it has read to, and what comes after it goes there, too."""
    both = "sh -c 'read line; echo AB'"
    script = f"""
    for command in {shlex.quote(both)} {shlex.quote(shown(scene, *shlex.split(both)))}; do
        seq 10 13 >file; exec 5<>file
        eval "$command" <&5 >&5; head -n 1 <&5; echo CD >&5; cat file; exec 5>&-
    done
    """
    assert run_script(scene, script).stdout == "12\n10\nAB\n12\nCD\n" * 2


@ON_ONE_BACKEND
def test_a_stream_of_the_wrong_direction_fails_as_it_is(scene_of_user: Scene) -> None:
    """A pipe of which nothing can be read, and a file that cannot be written, say so at once."""
    scene = scene_of_user
    script = f"""
    mkfifo fifo; echo >file; sleep 600 <fifo & exec 5>fifo
    for command in cat {shlex.quote(shown(scene, "cat"))}; do eval "$command" <&5; echo $?; done
    for command in "echo x" {shlex.quote(shown(scene, "bash", "-c", "echo x"))}; do eval "$command" 1<file; done
    kill $!
    """
    ended = run_script(scene, script)
    assert ended.stdout == "1\n1\n"
    assert ended.stderr.count("Bad file descriptor") == 4
    assert "-lost]" not in ended.stderr
    assert (scene.place / "file").read_text() == "\n"


def carriers(file: Path) -> list[int]:
    """The processes that carry a file: they lead a session of their own and have it open."""
    found = []
    for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()):
        try:
            links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:  # it has ended, or is another user's
            continue
        if str(file) in links and os.getsid(pid) == pid:
            found.append(pid)
    return found


@AS_A_USER
@pytest.mark.parametrize("scene", promises.BACKENDS[:1], indirect=True)
def test_what_was_written_survives_sigkill_of_the_launcher(scene: Scene) -> None:
    """Nothing stays (that is looked at after every test), and what the command has said by then is in the file."""
    for fifo in ("input", "errors"):
        os.mkfifo(scene.place / fifo)
    scene.own(scene.place)
    with opened(scene.place / "input", os.O_RDWR) as zero, opened(scene.place / "errors", os.O_RDWR) as end:
        target = os.open(scene.place / "file", os.O_WRONLY | os.O_CREAT, 0o666)
        line = "echo said; echo said >&2; exec sleep 600"
        with scene.start(["sh", "-c", line], stdin=zero, stdout=target, stderr=end) as process:
            while b"said" not in os.read(end, 65536):
                continue
            process.kill()
            process.wait(PATIENCE)
        os.close(target)
    assert (scene.place / "file").read_text() == "said\n"


@ON_ONE_BACKEND
def test_a_carrier_that_is_killed_is_told(scene_of_user: Scene) -> None:
    """The jail ends with it, and the status is no success."""
    scene = scene_of_user
    scene.own(scene.place)
    with opened(scene.place / "file", os.O_RDWR | os.O_CREAT) as file:
        process = scene.start(
            ["sh", "-c", "echo ready >&2; cat; exit 0"], stdin=subprocess.PIPE, stdout=file, stderr=subprocess.PIPE
        )
        assert process.stderr is not None
        while b"ready" not in process.stderr.readline():
            continue
        (carrier,) = carriers(scene.place / "file")
        os.kill(carrier, signal.SIGKILL)
        complaint = process.communicate(timeout=PATIENCE)[1].decode()
    assert said(complaint).reference == "output-lost"
    assert process.returncode in (125, 137)  # whether the command hears of it before the jail ends


@ON_ONE_BACKEND
def test_an_end_that_is_asked_for_waits_for_no_reader(scene_of_user: Scene) -> None:
    """Who has stopped reading holds up nobody that sends SIGTERM, and finds what is in his pipe all the same."""
    out, sink = os.pipe()
    with scene_of_user.start(["yes"], stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.DEVNULL) as process:
        os.close(sink)
        while waiting(out) < 1 << 16:
            time.sleep(0.02)
        process.terminate()
        assert process.wait(PATIENCE) == 143
    found = read_all(out)
    assert found == b"y\n" * (len(found) // 2)
    assert len(found) >= 1 << 16
    os.close(out)


@ON_ONE_BACKEND
@pytest.mark.parametrize("number", [0, signal.SIGTERM])
def test_a_signal_at_the_end_cuts_nothing_off(scene_of_user: Scene, number: int) -> None:
    """The command has ended, and its last words wait for a reader: what is to be said and written at the end is."""
    scene = scene_of_user
    report = scene.own(scene.place) / "report"
    line = "mkdir .vscode; echo {} >.vscode/tasks.json; exec head -c 100000 /dev/zero"
    out, sink = os.pipe()
    with scene.start(
        ["sh", "-c", line], "--report", report, cwd=scene.repo.one, stdin=subprocess.DEVNULL, stdout=sink,
        stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        os.close(sink)
        while waiting(out) < 1 << 16 or len(children(process.pid)) > 1:  # the carrier is the last one
            time.sleep(0.02)
        process.send_signal(number)
        found = b"" if number else read_all(out)
        complaint = process.communicate(timeout=PATIENCE)[1].decode()
    os.close(out)
    assert process.returncode == (128 + number if number else 0)
    assert "created .vscode/tasks.json" in complaint
    assert json.loads(report.read_text())["status"] == 0
    assert (len(found), "[output-lost]" in complaint) == ((0, True) if number else (100000, False))


def waiting(fd: int) -> int:
    """Bytes that a pipe holds."""
    return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), "little")


GIVE = (
    "import os, socket, sys, time; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
    " socket.send_fds(s, [b'x'], [1]); os.write(1, b'of the jail')"
)


@ON_ONE_BACKEND
def test_who_was_given_a_stream_has_it_no_longer_than_the_jail(scene_of_user: Scene) -> None:
    """A pipe that the command has sent elsewhere leads nowhere once its launcher was killed."""
    scene = scene_of_user
    scene.own(scene.place)
    with socket.socket(socket.AF_UNIX) as listening, opened(scene.place / "file", os.O_RDWR | os.O_CREAT) as file:
        listening.bind(str(scene.area / "socket"))
        listening.listen()
        scene.own(scene.area)
        argv: list[str | Path] = [base_python(), "-I", "-S", "-c", f"{GIVE}; time.sleep(1000)", scene.area / "socket"]
        with scene.start(argv, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.DEVNULL) as process:
            listening.settimeout(PATIENCE)
            with listening.accept()[0] as connection:
                _, (held,), *_ = socket.recv_fds(connection, 10, 1)
            while (scene.place / "file").read_bytes() != b"of the jail":
                time.sleep(0.02)
            process.kill()
            while carriers(scene.place / "file"):
                time.sleep(0.02)
        with pytest.raises(BrokenPipeError):
            os.write(held, b"of another one")
        os.close(held)
    assert (scene.place / "file").read_bytes() == b"of the jail"


# Further commands


@pytest.fixture
def session(scene: Scene) -> Iterator[Session]:
    """A session on each backend."""
    env, options = SWITCHES[scene.backend]
    paddock = Paddock(scene.who, scene.installed, scene.place, scene.repo.one, scene.repo.main, {})
    with Session(paddock, env, options=options) as live:
        yield live


@AS_A_USER
def test_files_of_a_further_commands_caller_are_out_of_reach(scene: Scene, session: Session) -> None:
    """The same for `paddock exec`, and its bytes cross as well."""
    paths = [scene.place / name for name in ("input", "output")]
    for path in paths:
        path.write_text("of the caller\n")
    scene.own(scene.place)
    before = [look(path) for path in paths]
    line = shlex.join(session.words(*words(scene)))
    ended = run_script(scene, f"{line} <input >>output 2>>output")
    assert ended.returncode == 0, paths[1].read_text()
    assert [look(path) for path in paths] == before
    assert [path.read_text() for path in paths] == ["of the caller\n"] * 2
    assert through(scene) == []
    twin = shlex.join(session.words("sh", "-c", "cat; echo error >&2"))
    assert run_script(scene, f"{twin} <input >>output 2>&1").returncode == 0
    assert paths[1].read_text() == "of the caller\nof the caller\nerror\n"


@AS_A_USER
def test_pipes_of_a_further_commands_caller_are_out_of_reach(scene: Scene, session: Session) -> None:
    """The same for them."""
    (source, feed), (out, sink) = os.pipe(), os.pipe()
    os.write(feed, b"next\n")
    os.write(sink, b"earlier\n")
    argv = session.words(base_python(), "-I", "-S", "-c", ACROSS, "9")
    environment = scene.environment()
    ended = subprocess.run(
        scene.who.command(argv), cwd=scene.place, env=environment, stdin=source, stdout=sink, stderr=subprocess.PIPE,
        check=False, timeout=PATIENCE,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    for fd in (feed, sink):
        os.close(fd)
    assert (read_all(source), read_all(out)) == (b"next\n", b"earlier\n")
    for fd in (source, out):
        os.close(fd)


@AS_A_USER
@pytest.mark.parametrize("scene", promises.BACKENDS[:1], indirect=True)
def test_what_a_further_command_leaves_goes_on_writing(scene: Scene, session: Session) -> None:
    """The caller has its exit status at once, and the file what comes later, until the session ends."""
    for fifo in (scene.area / "go", scene.place / "output"):
        os.mkfifo(fifo)
    scene.own(scene.area)
    late = f"(read word <{scene.area}/go; echo $word) 2>/dev/null & echo now"
    line = shlex.join(session.words("sh", "-c", late))
    with subprocess.Popen(["cat", scene.place / "output"], stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        ended = run_script(scene, f"{line} >output")
        assert (ended.returncode, reader.stdout.readline()) == (0, "now\n"), ended
        (scene.area / "go").write_text("late\n")
        assert reader.stdout.readline() == "late\n"
        flood = shlex.join(session.words("sh", "-c", "yes 2>/dev/null &"))
        assert run_script(scene, f"{flood} >/dev/full; {flood} >flood").returncode == 0
        session.end()
        assert reader.stdout.read() == ""


@AS_A_USER
@pytest.mark.parametrize("scene", promises.BACKENDS[:1], indirect=True)
def test_who_was_given_a_further_commands_stream_has_it_no_longer_than_the_session(
    scene: Scene, session: Session
) -> None:
    """The command and its client have ended long ago; what was written before the session's end arrives."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(scene.area / "socket"))
        listening.listen()
        scene.own(scene.area)
        line = shlex.join(session.words(base_python(), "-I", "-S", "-c", GIVE, scene.area / "socket"))
        ended = run_script(scene, f"{line} >file")
        assert ended.returncode == 0, ended
        with listening.accept()[0] as connection:
            _, (held,), *_ = socket.recv_fds(connection, 10, 1)
    os.write(held, b", and of another one")
    session.end()
    while carriers(scene.place / "file"):
        time.sleep(0.02)
    with pytest.raises(BrokenPipeError):
        os.write(held, b"late")
    os.close(held)
    assert (scene.place / "file").read_bytes() == b"of the jail, and of another one"


@AS_A_USER
@pytest.mark.parametrize("scene", promises.BACKENDS[:1], indirect=True)
def test_a_further_command_that_has_ended_waits_for_no_reader(scene: Scene, session: Session) -> None:
    """Not when its client is asked to end; what is in the caller's pipe stays to be read."""
    out, sink = os.pipe()
    argv = session.words("sh", "-c", "yes | head -c 100000; echo over >&2")
    client = subprocess.Popen(
        scene.who.command(argv), cwd=scene.place, env=scene.environment(), stdin=subprocess.DEVNULL, stdout=sink,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    os.close(sink)
    assert client.stderr is not None
    assert client.stderr.readline() == b"over\n"
    client.terminate()
    client.communicate(timeout=PATIENCE)
    assert read_all(out).startswith(b"y\n" * 32768)
    os.close(out)


@ON_ONE_BACKEND
def test_files_of_a_further_command_are_bounded_as_the_session_says(scene_of_user: Scene) -> None:
    """What is written for it counts as if it wrote itself."""
    scene = scene_of_user
    env, options = SWITCHES[scene.backend]
    paddock = Paddock(scene.who, scene.installed, scene.place, scene.repo.one, scene.repo.main, {})
    with Session(paddock, env, options=(*options, "--limit", "file_size=8192")) as session:
        ended = run_script(scene, f"{shlex.join(session.words('yes'))} >file; echo $?")
    assert ended.stdout == "141\n", ended
    assert (scene.place / "file").stat().st_size == 8192


def test_nothing_is_written_before_the_bound_is_known(tmp_path: Path) -> None:
    """However late its client hears of it: the command may run, and write, by then. A refused one has its end, too."""

    def carried(late: Callable[[Carrier], object]) -> tuple[int, bytes]:
        with open(tmp_path / "file", "wb") as file:
            child = os.fork()
            if child == 0:
                try:
                    os.dup2(file.fileno(), 1)
                    carrier = Carrier((1,))
                    os.write(carrier.streams[1], b"x" * 20_000)
                    os.close(carrier.streams[1])
                    select.select([], [], [], 0.3)  # a carrier that does not wait is done by now
                    late(carrier)
                    carrier.finish(ended=True, impatient=False)
                finally:
                    os._exit(0)
        return os.waitpid(child, 0)[1], (tmp_path / "file").read_bytes()

    assert carried(lambda carrier: carrier.limit((("file_size", 8_192),))) == (0, b"x" * 8_192)
    assert carried(lambda carrier: carrier.limit(())) == (0, b"x" * 20_000)
    assert carried(lambda carrier: None) == (0, b"")
