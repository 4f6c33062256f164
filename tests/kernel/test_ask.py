"""A refused host is held, and a person is asked: at a terminal, on all backends, by clients of every kind."""

import json
import os
import re
import shlex
import signal
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from launcher.session import last_line
from policy import asking, promises
from tests.conftest import IDENTITIES
from tests.support.acp_editor import PlainEditor, request
from tests.support.features import need, need_backend
from tests.support.identity import AS_A_USER, Console
from tests.support.install import base_python
from tests.support.paddock import Paddock, below
from tests.support.programs.scene import SWITCHES
from tests.support.proxied import World

PREFIX = "\x1d"
QUESTION = r"asks for ([a-z0-9.-]+):(\d+); Ctrl-\] to answer"
CURL = "curl -sS -o /dev/null -w '%{http_code}' http://good.example/; echo \" <$?>\""


@pytest.fixture(params=[promises.NAMESPACES, promises.GUARD])
def backend(request: pytest.FixtureRequest) -> str:
    """Each way to who asks: past a namespace, or by the guard."""
    need("landlock")
    return need_backend(request.param)


@contextmanager
def terminal(
    world: World,
    paddock: Paddock,
    backend: str,
    script: str,
    *options: str,
    ask: Sequence[str] = ("--ask", "yes"),
    command: Sequence[str] = (),
) -> Iterator[Console]:
    """A shell script in a jail, at a terminal of the machine's; `command` stands in the place of `paddock`."""
    extra, switches = SWITCHES[backend]
    words = paddock.words(
        "run", "--git=readonly", "--session=asked", *switches, *ask, *options, "--", "sh", "-c", script
    )
    words[:1] = command or words[:1]
    given = {**paddock.env, **extra, "TERM": "xterm"}
    argv = ["env", *(f"{name}={value}" for name, value in given.items()), *words]
    with Console(
        paddock.who, paddock.worktree, argv, prefix=(*world.prefix, "env", f"--chdir={paddock.worktree}")
    ) as at:
        at.resize(24, 100)
        yield at


def reply(at: Console, letter: str) -> tuple[str, str]:
    """Waits for a question and answers it. Returns its host and port."""
    found = at.expect(QUESTION)
    time.sleep(0.9)  # it has to be seen before it can be answered
    at.type(PREFIX)
    at.expect(re.escape(f"send data to {found[1]}:{found[2]}? [n]o [o]nce [s]ession [a]lways"))
    press(at, letter)
    return found[1], found[2]


def press(at: Console, letter: str) -> None:
    """Types it once the terminal has reported that it shows all that was written, and a person can have seen it."""
    at.expect(r"\x1b\[5n")
    at.type("\x1b[0n")
    time.sleep(last_line.READ_SECONDS + 0.1)
    at.type(letter)


def denials(paddock: Paddock) -> list[dict[str, Any]]:
    """What the ledger of the last session holds."""
    ended = paddock.call("denials", "asked", "--json")
    assert ended.returncode == 0, ended
    return [json.loads(line) for line in ended.stdout.splitlines()]


def reached(world: World, since: int) -> int:
    """How many requests have arrived since."""
    return sum(entry["kind"] == "request" for entry in world.seen(since))


@AS_A_USER
def test_a_yes_lets_the_waiting_client_in(world: World, paddock: Paddock, backend: str) -> None:
    """It hears nothing of it but that it took a while; the next one does not wait."""
    before = len(world.seen())
    with terminal(world, paddock, backend, f"{CURL}; {CURL}; read line") as at:
        assert reply(at, "s") == ("good.example", "80")
        at.expect("200 <0>")
        at.expect("200 <0>")
        log = (paddock.state / "sessions/asked/egress.jsonl").read_text().splitlines()
        assert [json.loads(line)["rule"] for line in log] == ["asked: session"] * 2
        said = paddock.call("denials", "asked", "--decisions").stdout
        assert said == "allowed connect good.example:80 (asked: session)\n"
        at.type("\n")
        assert at.status() == 0
    assert reached(world, before) == 2


@pytest.mark.parametrize(
    ("backend", "who"),
    [(promises.BUBBLEWRAP, IDENTITIES[-1]), *((promises.GUARD, each) for each in IDENTITIES[:-1])],
    indirect=True,
)
def test_once_is_for_who_waits(world: World, paddock: Paddock, backend: str) -> None:
    """The next client is a question of its own, and a no is final."""
    before = len(world.seen())
    with terminal(world, paddock, backend, f"{CURL}; {CURL}; {CURL}") as at:
        reply(at, "o")
        at.expect("200 <0>")
        reply(at, "n")
        at.expect("<[1-9][0-9]?>|403 <0>")
        at.expect("<[1-9][0-9]?>|403 <0>")
        assert at.status() == 0
        assert "asks for" not in at.screen
    assert reached(world, before) == 1
    assert "good.example" in {denial["host"] for denial in denials(paddock)}


@AS_A_USER
def test_always_is_written_to_the_users_own_file(world: World, paddock: Paddock) -> None:
    """Never to the worktree; the next session asks nobody."""
    file = paddock.who.home / ".config/paddock/config.toml"
    with terminal(world, paddock, promises.NAMESPACES, CURL) as at:
        reply(at, "a")
        at.expect("200 <0>")
        assert at.status() == 0
    assert tomllib.loads(file.read_text()) == {"schema": 1, "network": {"allow_domains": ["good.example:80"]}}
    assert not (paddock.worktree / ".paddock.toml").exists()
    said = paddock.call("denials", "asked", "--decisions").stdout
    assert "allowed connect good.example:80 (asked: always)" in said
    with terminal(world, paddock, promises.NAMESPACES, CURL) as at:
        at.expect("200 <0>")
        assert at.status() == 0


@AS_A_USER
def test_a_known_agent_at_a_terminal_is_asked_about(world: World, paddock: Paddock) -> None:
    """By default; another command is not, and neither is anything where the configuration says no."""
    agent = ("--provider", "claude-code", "--logins", "none", "--dialect", "native")
    with terminal(world, paddock, promises.NAMESPACES, CURL, *agent, ask=()) as at:
        reply(at, "s")
        at.expect("200 <0>")
        assert at.status() == 0
    for options, ask in ((("--allow-domain", "other.example"), ()), (agent, ("--ask", "no"))):
        with terminal(world, paddock, promises.NAMESPACES, CURL, *options, ask=ask) as at:
            at.expect("000 <6>")
            assert at.status() == 0
            assert "asks for" not in at.screen


@AS_A_USER
def test_a_yes_to_a_name_opens_no_private_address(world: World, paddock: Paddock) -> None:
    """Nor the machine's own, nor what a rule denies, which nobody is asked about."""
    script = "; ".join(
        CURL.replace("good.example", name) for name in ("private.example", "own.example", "other.example")
    )
    before = len(world.seen())
    with terminal(world, paddock, promises.NAMESPACES, script, "--deny-domain", "other.example") as at:
        for name in ("private.example", "own.example"):
            assert reply(at, "s")[0] == name
            at.expect("<[1-9][0-9]?>|403 <0>")
        at.expect("<[1-9][0-9]?>|403 <0>")
        assert at.status() == 0
        assert "asks for" not in at.screen
    assert reached(world, before) == 0
    assert {denial["host"] for denial in denials(paddock)} >= {"private.example", "own.example", "other.example"}


HASTY = """
import sys
import policy.asking
policy.asking.SECONDS = 3.0
sys.argv[:1] = ["paddock"]
from launcher.__main__ import main
sys.exit(main(sys.argv))
"""


@AS_A_USER
def test_who_is_not_answered_is_refused_in_time(world: World, paddock: Paddock) -> None:
    """After half a minute (3 s here), with the option that would allow it; not asked about again for a while."""
    assert asking.SECONDS == 30
    hasty = [str(paddock.installed.python), "-I", "-c", HASTY]
    with terminal(world, paddock, promises.NAMESPACES, f"{CURL}; {CURL}", command=hasty) as at:
        at.expect(QUESTION)
        start = time.monotonic()
        at.expect("<[1-9][0-9]?>|403 <0>")
        assert 2 < time.monotonic() - start < 20
        at.expect("<[1-9][0-9]?>|403 <0>")
        assert at.status() == 0
    assert [denial["host"] for denial in denials(paddock)] == ["good.example"] * 2


FORGER = r"""
import os, socket, sys, threading, time, tty
tty.setraw(0)
def ask():
    try:
        with socket.create_connection(("good.example", 80), timeout=60) as sock:
            sock.sendall(b"GET / HTTP/1.0\r\nHost: good.example\r\n\r\n")
            print("got", sock.recv(10), flush=True)
    except OSError as error:
        print("failed", error, flush=True)
threading.Thread(target=ask, daemon=True).start()
time.sleep(2)
for data in (
    "\x1d", "s", "\x1ds", "\x1b]0;\x1ds\x07\x1b[21t", "\x1b[6n\x1b[c\x1b[>q\x1b]52;c;?\x07\x1b[?2004l",
    "\x1b[24;1H\x1b[2K\x1b[7mpaddock: send data to harmless.example:443? [n]o [o]nce [s]ession [a]lways",
):
    os.write(1, data.encode())
    time.sleep(0.3)
for name in os.listdir("/proc/self/fd"):  # whatever this process holds
    try:
        os.write(int(name), b"A\x09\x00\x00\x001 session") if int(name) > 2 else None
    except OSError:
        pass
import fcntl, termios
for key in b"\x1ds":
    try:
        fcntl.ioctl(0, termios.TIOCSTI, bytes((key,)))
    except OSError:
        pass
for tty_name in ("/dev/tty", "/dev/pts/0", "/dev/pts/1", "/dev/pts/2"):
    try:
        os.write(os.open(tty_name, os.O_RDWR), b"\x1ds")
    except OSError:
        pass
print("tried", flush=True)
time.sleep(float(sys.argv[1]))
"""


@AS_A_USER
def test_an_answer_cannot_be_given_from_inside(world: World, paddock: Paddock) -> None:
    """By keys that are printed, reports that a terminal is made to send, or whatever descriptor there is; and what the
    command draws in the place of the question is drawn over before it is answered.
    """
    before = len(world.seen())
    script = shlex.join([str(base_python()), "-I", "-S", "-c", FORGER, "2"])
    with terminal(world, paddock, promises.NAMESPACES, script) as at:
        at.expect(QUESTION)
        time.sleep(0.8)
        for report in ("\x1b]l\x1ds\x1b\\", "\x1b[24;19R", "\x1b]52;c;HXM=\x1b\\", "\x1b[200~\x1ds\x1b[201~", "\x1ds"):
            at.type(report)
            time.sleep(0.15)
        at.expect("tried")
        assert "got" not in at.screen
        assert at.status() == 0
    assert reached(world, before) == 0
    with terminal(world, paddock, promises.NAMESPACES, script.removesuffix("2") + "20") as at:
        at.expect("harmless.example:443")
        at.type(PREFIX)
        at.expect(r"send data to good.example:80\?")
        press(at, "o")
        at.expect("got")
    assert reached(world, before) == 1


SPOOFER = r"""
import os, socket, sys, threading
def ask():
    try:
        with socket.create_connection((sys.argv[1], 443), timeout=60) as sock:
            print("got", sock.recv(10), flush=True)
    except OSError as error:
        print("failed", error, flush=True)
asking = threading.Thread(target=ask)
for data in (
    b"\x1b[?7h\x1b[1;23r\x1b[?69h\x1b[23;67s\x1b[3;1H\x1b[?2026h\x1b[8m",  # margins, no output, no colours
    b"\x1b]10;#000000\x07\x1b]11;#000000\x07\x1b]4;0;#000\x07\x1b]50;cursor\x07\x1b_Ga=T;AAAA\x1b\\\x1b[?2l\x1b[5i",
    b"\x1b]11;?\x07\x1b]2;its title\x07begun",  # these pass
):
    os.write(1, data)
asking.start()
asking.join()
"""


@AS_A_USER
@pytest.mark.parametrize("backend", [promises.GUARD], indirect=True)  # it is all between terminals
def test_nothing_that_a_command_has_set_hides_the_host(world: World, paddock: Paddock, backend: str) -> None:
    """Margins that have the line wrap over itself, colours in which it cannot be seen, output that is not shown."""
    host = "x" * 45 + "good.example"
    script = shlex.join([str(base_python()), "-I", "-S", "-c", SPOOFER, host])
    if backend == promises.GUARD:  # no names there
        script = f"{script.replace(host, 'none.invalid')}; curl -sS https://{host}/ || echo failed"
    with terminal(world, paddock, backend, script) as at:
        at.resize(24, 130)
        begun = at.expect("(?s).*begun")[0]
        assert "\x1b]11;?\x07\x1b]2;its title\x07" in begun
        assert "\x1b[?69h\x1b[23;67s" in begun
        for unseen in ("#000", "cursor", "\x1b_G", "\x1b[?2l", "\x1b[5i"):
            assert unseen not in begun
        at.expect(f"asks for {host}:443")
        time.sleep(0.9)
        at.type(PREFIX)
        armed = at.expect(r"(?s).*(\x1b7.*\x1b\[24;1H[^\n]*?)(paddock: .*? \[a\]lways) *\x1b\[K(.*?)\x1b8")
        assert armed[2] == f"paddock: send data to {host}:443? [n]o [o]nce [s]ession [a]lways"
        for own in ("\x1b[?2026l", "\x1b[?69l", "\x1b[?7l", "\x1b[0;10m"):
            assert own in armed[1]
        assert armed[3].endswith("\x1b[?7h\x1b[?69h\x1b[23;67s")
        press(at, "n")
        at.expect("failed|got b''")
        assert at.status() == 0


FLICKER = r"""
%s &
i=0
while [ $i -lt 900 ]; do
    printf '\0337\033[24;1H\033[0;7mpaddock: "pip" asks for harmless.example:443; Ctrl-] to answer\0338'
    sleep 0.012
    i=$((i+1))
    kill -0 $! 2>/dev/null || break
done
wait
"""

READ_SECONDS = 3.0
READER = f"""
import sys
from launcher.session import last_line
last_line.READ_SECONDS = {READ_SECONDS}
sys.argv[:1] = ["paddock"]
from launcher.__main__ import main
sys.exit(main(sys.argv))
"""


@AS_A_USER
@pytest.mark.parametrize("backend", [promises.NAMESPACES], indirect=True)  # it is all between terminals
def test_a_letter_that_comes_before_the_host_could_be_read_is_nobodys(
    world: World, paddock: Paddock, backend: str
) -> None:
    """Whoever looks has seen another one until then, which the command has drawn over it all the time. Nothing of the
    command's output comes between the two keys, however long.
    """
    before = len(world.seen())
    reader = [str(paddock.installed.python), "-I", "-c", READER]
    with terminal(world, paddock, backend, FLICKER % f"({CURL})", command=reader) as at:
        at.expect(QUESTION.replace("([a-z0-9.-]+)", "(good.example)"))
        time.sleep(0.9)
        at.type(PREFIX)
        at.expect(r"send data to good\.example:80\? \[n\]o")
        press(at, "o")
        time.sleep(READ_SECONDS + 1)  # the letter before may have been read late
        assert reached(world, before) == 0
        at.type("o")
        held = at.expect(r"(?s)^(.*?)\x18")[1]  # what erases the question
        assert held == ""
        at.expect(r"(?s)200.* <0>")  # the question of the other one may be drawn between
        assert at.status() == 0
    assert reached(world, before) == 1


FLOOD = """
import concurrent.futures, socket
def ask(number):
    try:
        with socket.create_connection((f"h{number}.example", 80), timeout=2) as sock:
            sock.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
            sock.recv(1)
    except OSError:
        pass
with concurrent.futures.ThreadPoolExecutor(64) as pool:
    list(pool.map(ask, range(300)))
print("done", flush=True)
with socket.create_connection(("good.example", 22), timeout=20) as sock:
    print(sock.recv(4).decode(), flush=True)
"""


@AS_A_USER
def test_a_flood_of_hosts_harms_nothing_that_is_allowed(world: World, paddock: Paddock) -> None:
    """Few of them are asked about, and the others are refused as without questions."""
    script = shlex.join([str(base_python()), "-I", "-S", "-c", FLOOD])
    with terminal(world, paddock, promises.NAMESPACES, script, "--allow-domain", "good.example:22") as at:
        at.expect(r"asks for h\d+\.example")
        at.expect("done")
        at.expect("220 ")
        assert at.status() == 0


@AS_A_USER
@pytest.mark.parametrize("whom", ["front", "all"])
def test_a_kill_in_the_middle_of_a_question_leaves_nothing(
    world: World, paddock: Paddock, whom: str, public_dir: Path
) -> None:
    """Whichever process it is; who waits is not let in."""
    before = len(world.seen())
    with terminal(world, paddock, promises.NAMESPACES, f"{CURL}; sleep 60") as at:
        at.expect(QUESTION)
        processes = below(at.process)
        named = [pid for pid in processes if b"run\0--git" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert named
        for pid in named[:1] if whom == "front" else reversed(named):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
    assert reached(world, before) == 0
    deadline = time.monotonic() + 20
    while paddock.left() and time.monotonic() < deadline:
        assert paddock.run("--git=readonly", "--", "true").returncode == 0  # whose end sweeps
    assert paddock.left() == []


@AS_A_USER
def test_yes_where_nobody_can_be_asked_is_refused(paddock: Paddock) -> None:
    """Without a terminal; a worktree's own file cannot say yes, and can say no."""
    assert paddock.refused("run", "--ask", "yes", "--", "true").reference == "ask-nobody"
    (paddock.worktree / ".paddock.toml").write_text('[network]\nask = "yes"\n')
    said = paddock.refused("run", "--", "true")
    assert said.reference == "config-untrusted"
    assert "network.ask: yes instead of auto" in said.text
    (paddock.worktree / ".paddock.toml").write_text('[network]\nask = "no"\n')
    assert paddock.run("--", "true").returncode == 0


CLIENT = r"""
import os, socket, sys, time
def ask():
    with socket.create_connection(("good.example", 80), timeout=60) as sock:
        sock.sendall(b"GET / HTTP/1.0\r\nHost: good.example\r\n\r\n")
        return sock.recv(12).decode()
"""

INTRUDER = (
    CLIENT
    + r"""
import ctypes, threading
def tried():
    for path in sys.argv[1:]:
        for name in (path, "\0" + path):
            for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
                try:
                    with socket.socket(socket.AF_UNIX, kind) as sock:
                        sock.connect(name)
                        sock.sendall(b"P\x20\0\0\0" + bytes(32) + b"A\x09\0\0\0" + b"1 session")
                        yield f"connected to {name!r}"
                except OSError:
                    pass
    for pid in [each for each in os.listdir("/proc") if each.isdigit()]:
        for directory in ("fd", "root", "cwd"):
            try:
                for fd in os.listdir(f"/proc/{pid}/{directory}"):
                    if "paddock-answers" in os.readlink(f"/proc/{pid}/{directory}/{fd}"):
                        yield "found the proof"
            except OSError:
                pass
def attack():
    time.sleep(2)
    print(*tried(), "tried", flush=True)
threading.Thread(target=attack).start()
try:
    print(ask(), flush=True)
except OSError:
    print("refused", flush=True)
"""
)


@AS_A_USER
@pytest.mark.parametrize(
    ("backend", "who_is_asked"),
    [(promises.GUARD, "terminal"), (promises.NAMESPACES, "notify")],
    indirect=["backend"],
)
def test_another_terminal_can_answer(world: World, paddock: Paddock, backend: str, who_is_asked: str) -> None:
    """By the verb, which lists what is asked; what is asked by a command alone waits for it, too."""
    if who_is_asked == "notify":
        configured(paddock, 'notify = "true"')
    program = shlex.join([str(base_python()), "-I", "-S", "-c", CLIENT + "print(ask(), flush=True)"])
    if backend == promises.GUARD:
        program = CURL
    with terminal(world, paddock, backend, program) as at:
        at.expect(QUESTION)
        listed = json.loads(paddock.call("answer", "--json").stdout)
        assert [(each["session"], each["host"], each["port"]) for each in listed] == [("asked", "good.example", 80)]
        assert paddock.refused("answer", "asked", "other.example", "once").reference == "question-unknown"
        assert paddock.refused("answer", "asked", "good.example", "maybe").reference == "usage"
        said = paddock.refused("answer", "asked", "good.example", "session")  # 443, whichever port is asked for now
        assert (said.reference, "good.example:80" in said.text) == ("question-unknown", True), said.text
        ended = paddock.call("answer", "asked", "good.example:80", "once")
        assert (ended.returncode, ended.stdout) == (0, "good.example:80: once, what waits now\n"), ended
        at.expect("200")
        assert at.status() == 0
    assert paddock.call("answer").stdout == "nothing is asked\n"


@AS_A_USER
def test_no_answer_comes_by_the_socket_from_inside(world: World, paddock: Paddock, backend: str) -> None:
    """Neither its name nor its proof is in the jail; the same programme outside gets no answer through without one."""
    before = len(world.seen())
    path = str(paddock.state / "sessions/asked/questions")
    program = shlex.join([str(base_python()), "-I", "-S", "-c", INTRUDER, path, f"/proc/self/cwd/{path}"])
    if backend == promises.GUARD:
        program = f"({CURL}) & {program}; wait"
    with terminal(world, paddock, backend, program) as at:
        at.expect("asks for")
        assert "connected" not in at.expect("[^\r]*tried")[0]
        assert json.loads(paddock.call("answer", "--json").stdout)  # it is there, for whoever is outside
        outside = paddock.who.run(
            [str(base_python()), "-I", "-S", "-c", INTRUDER.replace("(ask()", "(0"), path], cwd=paddock.place
        )
        assert "connected" in outside.stdout
        assert reached(world, before) == 0
        assert paddock.call("answer", "asked", "good.example:80", "no").returncode == 0
        at.expect("403|<[1-9]")
        at.status()
    assert reached(world, before) == 0


def configured(paddock: Paddock, line: str) -> None:
    """Puts a line of `[network]` into the user's own configuration."""
    directory = paddock.who.home / ".config/paddock"
    directory.mkdir(parents=True, mode=0o700)
    (directory / "config.toml").write_text(f"[network]\n{line}\n")
    paddock.who.give(paddock.who.home / ".config")


def ran(world: World, paddock: Paddock, script: str, *options: str) -> str:
    """What a script in a jail prints, without a terminal."""
    ended = world.run(
        paddock.who, paddock.words("run", "--git=readonly", "--ask", "yes", *options, "--", "sh", "-c", script),
        cwd=paddock.worktree,
    )  # fmt: skip
    assert ended.returncode == 0, ended
    return ended.stdout


CHECK = 'test "$PADDOCK_HOST:$PADDOCK_PORT $PADDOCK_PROCESS" = "good.example:80 curl"'


@AS_A_USER
@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("echo session", "200 <0> 200 <0>"),
        ("echo no", None),
        ("echo once; sleep 100", "200 <0> 200 <0>"),
        (f"{CHECK} && pwd >where && echo always", "200 <0> 200 <0>"),
    ],
)
def test_a_command_of_the_users_may_answer(world: World, paddock: Paddock, command: str, status: str | None) -> None:
    """With one word; it has the question in its environment, and his home directory."""
    configured(paddock, f"notify = {json.dumps(command)}")
    words = ran(world, paddock, f"{CURL}; {CURL}").split()
    if status is None:
        assert "200" not in words
    else:
        assert " ".join(words) == status
    if "always" in command:
        text = (paddock.who.home / ".config/paddock/config.toml").read_text()
        assert tomllib.loads(text)["network"]["allow_domains"] == ["good.example:80"]
        assert (paddock.who.home / "where").read_text() == f"{paddock.who.home}\n"


NO_ANSWERS = {"good.example": "echo yes please", "www.good.example": "exit 1", "second.example": "nosuchcommand"}


@AS_A_USER
def test_what_is_no_word_of_a_command_is_no_answer(world: World, paddock: Paddock) -> None:
    """Three hosts are asked about at once, and wait for somebody else."""
    cases = "; ".join(f"{host}) {command};" for host, command in NO_ANSWERS.items())
    configured(paddock, f"notify = {json.dumps(f'case $PADDOCK_HOST in {cases}; esac')}")
    script = " & ".join(CURL.replace("good.example", host).replace("; echo", " && echo") for host in NO_ANSWERS)
    process = paddock.words(
        "run", "--git=readonly", "--ask=yes", "--session=asked", "--", "sh", "-c", f"{script} & wait"
    )

    def asked() -> set[str]:
        return {each["host"] for each in json.loads(paddock.call("answer", "--json").stdout or "[]")}

    with world.start(paddock.who, process, cwd=paddock.worktree) as running:
        deadline = time.monotonic() + 20
        while asked() != NO_ANSWERS.keys():
            assert time.monotonic() < deadline
        time.sleep(0.5)
        assert asked() == NO_ANSWERS.keys()
        for host in NO_ANSWERS:
            assert paddock.call("answer", "asked", f"{host}:80", "no").returncode == 0
        assert "200" not in running.communicate(timeout=20)[0]


@AS_A_USER
def test_a_worktree_cannot_choose_the_command(paddock: Paddock) -> None:
    """It would run outside of the jail."""
    (paddock.worktree / ".paddock.toml").write_text('[network]\nnotify = "touch /tmp/out"\n')
    said = paddock.refused("run", "--", "true")
    assert said.reference == "config-untrusted"
    assert "network.notify: 'touch /tmp/out' instead of (none)" in said.text


@AS_A_USER
def test_an_editor_is_asked(paddock: Paddock) -> None:
    """In its own words for a permission; the agent that waits for the host neither sees nor gives the answer."""
    need("userns")
    with PlainEditor(paddock, "--ask", "yes", own_default=True) as editor:
        editor.send(request("session/new", 1, cwd=str(paddock.worktree), mcpServers=[]))
        editor.got()
        editor.say({"jsonrpc": "2.0", "id": 1, "result": {"sessionId": "mine"}})
        assert editor.read()["result"] == {"sessionId": "mine"}
        line = "curl -sS http://files.example/ http://files.example:80/"
        terminal = editor.answer(request("terminal/create", 2, sessionId="mine", command=line))["result"]["terminalId"]
        asked = editor.read()
        assert (asked["method"], asked["params"]["sessionId"]) == ("session/request_permission", "mine")
        assert "files.example:80" in asked["params"]["toolCall"]["title"]
        chosen = {"outcome": "selected", "optionId": "session"}
        editor.say({"jsonrpc": "2.0", "id": asked["id"], "result": {"outcome": chosen}})  # the agent's, if it knew
        assert editor.read()["id"] == asked["id"]
        assert json.loads(paddock.call("answer", "--json").stdout)[0]["host"] == "files.example"
        chosen = {"outcome": "selected", "optionId": "no"}
        editor.send({"jsonrpc": "2.0", "id": asked["id"], "result": {"outcome": chosen}})
        waited = editor.answer(request("terminal/wait_for_exit", 3, sessionId="mine", terminalId=terminal))
        assert waited["id"] == 3
        output = editor.answer(request("terminal/output", 4, sessionId="mine", terminalId=terminal))["result"]["output"]
        assert "the user was asked, and said no" in output
        assert output.count("egress-denied") == 2
