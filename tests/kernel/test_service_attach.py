"""Clients attached to sessions: whole streams, one writer, coming back, slow ones; runs under supervision."""

import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.wire import Decoder
from tests.support import served
from tests.support.identity import CTRL_C, Console
from tests.support.paddock import below
from tests.support.served import Served


@pytest.fixture(scope="module")
def service() -> Iterator[Served]:
    """A service that all tests here share."""
    with served.started(
        replay_bytes=65_536, stdin_seconds=0.2, term_seconds=0.5, log_bytes=4_096, log_files=20
    ) as running:
        yield running


class Client:
    """One attached client that speaks frames by itself."""

    def __init__(self, service: Served, name: str, query: str = "mode=read&offset=0") -> None:
        self.connection = service.attaching(name, query)
        head = b""
        while b"\r\n\r\n" not in head:
            head += self.connection.recv(1)
        self.head = head
        self.decoder = Decoder()
        self.frames: list[tuple[bytes, bytes]] = []

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def refusal(self) -> Any:  # noqa: ANN401  # JSON
        """What it was refused with, instead of a stream."""
        body = b""
        while piece := self.connection.recv(65_536):
            body += piece
        return json.loads(body)

    def send(self, kind: bytes, payload: bytes = b"") -> None:
        """Sends one frame."""
        self.connection.sendall(kind + len(payload).to_bytes(4, "little") + payload)

    def read(self, until: bytes) -> list[tuple[bytes, bytes]]:
        """Frames up to the first of this kind."""
        while not any(kind == until for kind, _ in self.frames):
            data = self.connection.recv(65_536)
            assert data, self.frames[-3:]
            self.frames += self.decoder.feed(data)
        place = next(number for number, (kind, _) in enumerate(self.frames) if kind == until) + 1
        taken, self.frames = self.frames[:place], self.frames[place:]
        return taken


def output(frames: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join(payload for kind, payload in frames if kind == b"O")


def test_a_client_talks_to_a_session(service: Served) -> None:
    """Every byte crosses, both ways; the last frame is the session's end."""
    service.create("cat", name="talks", stdin="pipe")
    sent = bytes(range(256)) * 4_096
    with Client(service, "talks", "mode=write") as client:
        hello = json.loads(client.read(b"H")[0][1])
        assert (hello["session"], hello["mode"], hello["missed"]) == ("talks", "write", 0)
        seen = b""
        for start in range(0, len(sent), 65_536):
            client.send(b"I", sent[start : start + 65_536])
            while len(seen) < start + 65_536:
                seen += output(client.read(b"O"))
        client.send(b"Z")
        frames = client.read(b"X")
    assert seen + output(frames) == sent
    assert json.loads(frames[-1][1])["outcome"]["status"] == 0


def test_clients_that_are_gone_before_they_are_answered_leave_nothing(service: Served) -> None:
    """None counts as attached, and the service does not lose the session by the answer that nobody takes."""
    session = service.create("sleep", "1000", name="hasty", stdin="pipe")
    with service.behind(session) as shim:
        gone = [service.attaching("hasty", query) for query in ("mode=read", "mode=acp", "mode=write")]
        assert service.get("/v1/sessions/hasty").status == 200  # the service has passed them on by now
        for connection in gone:
            connection.close()
        shim.resume()
        with Client(service, "hasty", "mode=write") as last:
            last.read(b"H")
            assert service.get("/v1/sessions/hasty").json["attached"] == 1
    assert service.post("/v1/sessions/hasty/stop", {"wait": served.PATIENCE}).status == 200


def test_a_client_that_comes_back_goes_on_where_it_was(service: Served) -> None:
    """By offset; what is not kept any more is counted as missed."""
    service.create(
        "sh", "-c", "echo 12345; read x; head -c 100000 /dev/zero; read x; echo end", name="back", stdin="pipe"
    )
    with Client(service, "back", "mode=write&offset=0") as client:
        assert output(client.read(b"O")) == b"12345\n"
        client.send(b"I", b"\n")
        seen = 0
        while seen < 100_000:
            seen += len(output(client.read(b"O")))
    with Client(service, "back", "mode=read&offset=100000") as client:
        assert json.loads(client.read(b"H")[0][1])["missed"] == 0
        assert output(client.read(b"O")) == b"\0" * 6
    with Client(service, "back", "mode=write&offset=0") as client:
        missed = json.loads(client.read(b"H")[0][1])["missed"]
        assert 100_006 - 65_536 - 65_536 <= missed <= 100_006 - 65_536 + 65_536
        assert missed > 0
        client.send(b"I", b"\n")
        assert output(client.read(b"X")).endswith(b"end\n")


def test_one_client_writes_and_another_can_take_its_place(service: Served) -> None:
    """Two readers see the same; a second writer is refused unless it takes over; a reader that writes is refused."""
    service.create("cat", name="shared", stdin="pipe")
    with Client(service, "shared", "mode=write") as one, Client(service, "shared", "mode=read") as two:
        with Client(service, "shared", "mode=write") as third:
            assert third.refusal()["errorType"] == "session-has-writer"
        one.send(b"I", b"x\n")
        assert output(one.read(b"O")) == output(two.read(b"O")) == b"x\n"
        with Client(service, "shared", "mode=write&take=1") as third:
            third.read(b"H")
            third.send(b"I", b"y\n")
            assert output(two.read(b"O")) == b"y\n"
            one.send(b"I", b"z\n")
            assert json.loads(one.read(b"E")[-1][1])["errorType"] == "session-has-writer"
            third.send(b"K", bytes((15,)))
            assert json.loads(third.read(b"X")[-1][1])["outcome"]["signal"] == "SIGTERM"


def test_a_client_that_does_not_read_holds_the_output_back(service: Served) -> None:
    """Nothing is lost for it, and the service's memory does not grow with what it does not read."""
    service.create("sh", "-c", "read x; head -c 30000000 /dev/zero", name="flood", stdin="pipe")
    before = service.get("/v1/health").json["memory"]
    with Client(service, "flood", "mode=write") as client:
        client.read(b"H")
        client.send(b"I", b"\n")
        service.get("/v1/sessions/flood?wait=0.5")
        assert service.get("/v1/sessions/flood").json["state"] == "running"
        frames = client.read(b"X")
    assert len(output(frames)) == 30_000_000
    assert service.get("/v1/health").json["memory"] - before < 25_000_000


@pytest.mark.parametrize("frame", [b"?" + bytes(4), b"I" + b"\xff\xff\xff\x7f" + bytes(1 << 20), b"K\x02\0\0\0ab"])
def test_nonsense_in_a_stream_is_refused(service: Served, frame: bytes) -> None:
    """The client is told and hung up on; the session goes on."""
    name = f"nonsense-{len(frame)}"
    service.create("cat", name=name, stdin="pipe")
    with Client(service, name, "mode=write") as client:
        try:
            client.connection.sendall(frame + bytes(1 << 16))
        except (TimeoutError, BrokenPipeError, ConnectionResetError):
            pass
        assert json.loads(client.read(b"E")[-1][1])["errorType"] in ("request-invalid", "request-large")
    assert service.get(f"/v1/sessions/{name}").json["state"] == "running"
    service.post(f"/v1/sessions/{name}/stop", {"term_seconds": 0, "wait": 30})


def test_a_supervised_run_is_like_any_other(service: Served) -> None:
    """Streams, exit status and environment; it is in the service's record."""
    run = service.paddock.call(
        "run", "--supervised", "--session", "mine", "--env", "GIVEN=1", "--", "sh", "-c",
        "cat; echo err >&2; echo $GIVEN $LANG; exit 9", env=service.env, stdin="in\n",
    )  # fmt: skip
    assert (run.returncode, run.stdout) == (9, "in\n1 C.UTF-8\n"), run
    assert "err\n" in run.stderr
    assert service.over("mine")["outcome"]["status"] == 9
    refused = service.paddock.call("run", "--supervised", "--", "no-such-thing", env=service.env)
    assert refused.returncode == 127
    assert "command-not-found" in refused.stderr


def test_attach_sees_output_and_leaves(service: Served) -> None:
    """`paddock attach` ends with the session's status; `paddock show` and `top --once` know the session."""
    service.create("sh", "-c", "echo begun; read x; exit 5", name="joined", stdin="pipe")
    assert "joined" in service.cli("top", "--once").stdout
    ended = service.cli("attach", "joined", stdin="go\n")
    assert (ended.returncode, ended.stdout) == (5, "begun\n"), ended
    shown = service.cli("show", "joined").stdout
    assert "exited (5)" in shown
    assert service.cli("attach", "joined").returncode == 125
    assert json.loads(service.cli("status", "--json").stdout)["uid"] == service.paddock.who.uid
    assert os.path.exists(service.address)


def test_ctrl_c_of_a_client_reaches_all_that_a_terminal_would_reach(service: Served) -> None:
    """With the mark behind it a signal is for the command's process group: its children, and once for each."""
    waits = "while :; do sleep 0.05; done"
    script = f"trap 'echo told' INT; (trap 'echo child; exit 3' INT; echo ready; {waits}); echo status $?; read x"
    service.create("bash", "-c", script, name="group", stdin="pipe")
    with Client(service, "group", "mode=write&offset=0") as client:
        seen = b""
        while b"ready" not in seen:
            seen += output(client.read(b"O"))
        client.send(b"K", bytes((signal.SIGINT, 1)))
        while b"status" not in seen:
            seen += output(client.read(b"O"))
        client.send(b"Z")
        seen += output(client.read(b"X"))
    assert sorted(seen.split()) == sorted(b"ready child told status 3".split())


def test_a_supervised_run_at_a_terminal_has_one(service: Served) -> None:
    """With its size and keys; it can be left and joined again, and the person's own terminal is as before."""
    who = service.paddock.who
    inside = "test -t 0 && stty size >/dev/tty; trap 'stty size' WINCH; echo ready; while :; do sleep 0.05; done"
    run = shlex.join(service.paddock.words("run", "--supervised", "--session", "typed", "--", "sh", "-c", inside))
    join = shlex.join(service.paddock.words("attach", "typed"))
    with Console(who, service.paddock.worktree) as console:
        console.type(f"export XDG_RUNTIME_DIR={service.runtime}\n")
        console.resize(30, 90)
        console.run(run)
        console.expect(r"30 90\s+ready")
        console.resize(31, 91)
        console.expect("31 91")
        console.type("\x1d.")
        console.expect("session typed continues")
        console.expect("<0>")
        console.resize(32, 92)
        console.run(join)
        console.expect("ready")
        console.expect("32 92")
        console.type(CTRL_C)
        console.expect(f"<{128 + signal.SIGINT}>")
        console.run("stty -a")
        console.expect(r" icanon ")
    assert service.over("typed")["outcome"]["signal"] == "SIGINT"


def test_a_detached_run_is_left_to_itself(service: Served) -> None:
    """Its name is printed once its command runs; one that cannot start is an error."""
    run = service.cli("run", "--detach", "--", "sleep", "1000")
    name = run.stdout.strip()
    assert (run.returncode, service.get(f"/v1/sessions/{name}").json["state"]) == (0, "running"), run
    service.post(f"/v1/sessions/{name}/stop", {"term_seconds": 0, "wait": 30})
    assert service.cli("run", "--detach", "--", "no-such-thing").returncode == 127
    assert "[session-name]" in service.cli("run", "--detach", "--session", "<b>x", "--", "true").stderr


# Not bash: its `read -t` forgets that it was in a trap when the time is over there, and runs none after that.
SCREEN = r"""
import os, signal

def draw(*_):
    size = os.get_terminal_size()
    os.write(1, b"\x1b[H\x1b[2Jscreen %dx%d" % (size.lines, size.columns))

os.write(1, b"\x1b[?1049h")
signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.signal(signal.SIGWINCH, draw)
draw()
while key := os.read(0, 1000).strip():
    os.write(1, b"\x1b[3;1Hread " + key)
"""


def test_a_detached_run_from_a_terminal_has_one(service: Served) -> None:
    """Of the caller's size; what reads it waits for somebody; attached, it draws anew, takes keys, is left again."""
    words = service.paddock.words("run", "--detach", "--session", "agent", "--", "/usr/bin/python3", "-c", SCREEN)
    join = shlex.join(service.paddock.words("attach", "agent", "--from-now"))
    with Console(service.paddock.who, service.paddock.worktree) as console:
        console.type(f"export XDG_RUNTIME_DIR={service.runtime}\n")
        console.resize(30, 90)
        console.run(shlex.join(words))
        console.expect("agent")
        console.expect("<0>")
        until(lambda: lines(service, "agent") == ["screen 30x90"])
        assert service.get("/v1/sessions/agent").json["state"] == "running"
        for _ in range(2):  # its size has not changed, and it was not asked to draw
            console.run(join)
            console.expect("attached to agent")
            console.expect("screen 30x90")
            console.type("hello\n")
            console.expect("read hello")
            console.type("\x1d.")
            console.expect(r"\x1b\[0;10m.*\x1b\[r")
            console.expect("session agent continues")
            console.expect("<0>")
        console.run(join)
        console.resize(31, 91)
        console.expect("screen 31x91")
        console.type(CTRL_C)
        console.expect(f"<{128 + signal.SIGINT}>")
    assert service.over("agent")["outcome"]["signal"] == "SIGINT"
    assert lines(service, "agent")[0] == "screen 31x91^C"


TUI = r"""
import os
os.write(1, b"\x1b[?1049h\x1b[?1003;1006h\x1b[?2004h\x1b[?25l\x1b[>1u\x1b[>1u\x1b[?69h\x1b[4h\x1b(0\x1b[?2031h\x1b[?5h")
os.write(1, b"\x1b]10;#000\x07\x1b]11;#000\x07\x1b]50;cursor\x07\x1b[31mTUI")
while os.read(0, 100).strip() != b"q":
    pass
"""
UNDONE = [
    *(f"\x1b[?{mode}l" for mode in (1049, 1003, 1006, 2004, 69, 2031, 5)),
    *("\x1b[?25h", "\x1b[<99u", "\x1b[4l", "\x1b(B", "\x1b[0;10m"),
]


@pytest.mark.parametrize("leaving", ["keys", "ctrl-c", "terminated", "ended"])
def test_a_persons_terminal_is_as_before_however_he_leaves(service: Served, leaving: str) -> None:
    """Who only reads, too. What could not be set back has not reached it."""
    name = f"tui-{leaving}"
    words = service.paddock.words("run", "--detach", "--session", name, "--", "/usr/bin/python3", "-c", TUI)
    reading = leaving in ("ctrl-c", "terminated")
    with Console(service.paddock.who, service.paddock.worktree) as console:
        console.type(f"export XDG_RUNTIME_DIR={service.runtime}\n")
        console.run(shlex.join(words))
        console.expect("<0>")
        console.run(shlex.join(service.paddock.words("attach", name, *["--read"] * reading)))
        begun = console.expect("(?s)attached.*TUI|TUI")[0] + console.screen
        if leaving == "terminated":
            [attached] = [
                pid for pid in below(console.process) if b"\0attach\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
            ]
            os.kill(attached, signal.SIGTERM)
        else:
            console.type({"keys": "\x1d.", "ctrl-c": CTRL_C, "ended": "q\n"}[leaving])
        left = console.expect(rf"(?s).*<({128 + signal.SIGINT if reading else 0})>")[0]
    assert "#000" not in begun
    assert "cursor" not in begun
    assert [undone for undone in UNDONE if undone not in left] == []
    assert ("continues" in left) == (leaving != "ended")
    if leaving != "ended":
        service.post(f"/v1/sessions/{name}/stop", {"term_seconds": 0, "wait": 30})


def test_what_is_no_terminal_gets_all_that_a_session_says(service: Served) -> None:
    """Byte by byte, as it was said."""
    script = r"printf '\033]11;#000\007\033[?1049hx\n'; read x"
    service.create("sh", "-c", script, name="bytes", stdin="pipe")
    assert service.cli("attach", "bytes", stdin="go\n").stdout == "\x1b]11;#000\x07\x1b[?1049hx\n"


@pytest.mark.parametrize("redirected", ["</dev/null", ">name", "2>/dev/null"])
def test_a_detached_run_that_is_redirected_has_no_terminal(service: Served, redirected: str) -> None:
    """Any of the three streams that is no terminal: its input is empty, and its output two streams, as ever."""
    words = service.paddock.words("run", "--detach", "--", "sh", "-c", "cat; test -t 1 || echo none; sleep 1000")
    with Console(service.paddock.who, service.paddock.worktree) as console:
        console.type(f"export XDG_RUNTIME_DIR={service.runtime}\n")
        console.run(f"{shlex.join(words)} {redirected}")
        console.expect("<0>")
    found = service.get("/v1/sessions?live=true").json["sessions"][0]
    assert found["stdin"] == "null"
    until(lambda: lines(service, found["name"]) == ["none"])
    service.post(f"/v1/sessions/{found['name']}/stop", {"term_seconds": 0, "wait": 30})


# What is read of a session's terminal.

PAGER = r"""
printf '\033[?1049h\033[H\033[2J'
for number in 1 2 3; do printf '\033[2;3H\033[1mround %s\033[0m' $number; done
"""


def until(holds: Callable[[], object]) -> None:
    """Waits for what other processes do."""
    deadline = time.monotonic() + served.PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def lines(service: Served, *words: str) -> list[str]:
    """What `paddock logs` prints."""
    ended = service.cli("logs", *words)
    assert (ended.returncode, ended.stderr) == (0, ""), ended
    return ended.stdout.splitlines()


def test_a_terminals_output_is_read_as_it_was_seen(service: Served) -> None:
    """Lines, progress bars and a full screen, over rotations of the log; `--raw` and `--json` are as it was kept."""
    script = f"seq 200; printf '10%%\\r100%%\\n\\033[31mred\\033[0m\\n'; {PAGER} printf '\\033[?1049l'; echo over"
    service.create("sh", "-c", script, name="seen", stdin="terminal")
    service.over("seen")
    numbers = [str(number) for number in range(1, 201)]
    assert lines(service, "seen") == [*numbers, "100%", "red", "", "  round 3", "over"]
    assert lines(service, "seen", "--tail", "2") == ["  round 3", "over"]
    assert lines(service, "seen", "--stream", "stdout", "--times")[-1].endswith(" over")
    assert lines(service, "seen", "--stream", "paddock") == []
    raw = service.cli("logs", "seen", "--raw").stdout
    assert raw.startswith("1\r\n2\r\n") or raw.startswith("1\n2\n")  # the test's reader may translate
    assert "\x1b[31mred\x1b[0m" in raw
    kept = [json.loads(line) for line in lines(service, "seen", "--json")]
    assert kept[0]["stream"] == "terminal"
    assert kept[0]["text"] == "24 80 new"
    assert "\x1b[31mred\x1b[0m\r" in [line["text"] for line in kept]
    assert service.cli("logs", "seen", "--raw", "--times").returncode == 125


def test_a_live_screen_is_shown_though_no_line_is_whole(service: Served) -> None:
    """Within a second or so, and its credentials are not: not even by halves."""
    secret = "s3cr3t-of-the-user"
    script = f"{PAGER} printf '\\033[4;1H%s' \"${{SOME_TOKEN%-user}}\"; sleep 2; printf -- '-user'; read x"
    environment = {**service.paddock.who.environment(service.env), "SOME_TOKEN": secret}
    service.create(
        "sh", "-c", script, name="live", stdin="terminal", options=["--env", "SOME_TOKEN"], environment=environment
    )
    until(lambda: lines(service, "live")[1:2] == ["  round 3"])
    until(lambda: lines(service, "live")[3:] == ["[redacted]"])
    assert secret[:9] not in service.cli("logs", "live", "--raw").stdout
    service.post("/v1/sessions/live/stop", {"term_seconds": 0, "wait": 30})


def test_a_credential_that_the_screen_puts_together_is_not_shown(service: Served) -> None:
    """Its parts come with something unseen in between, at once or one after the other."""
    begin, end = "s3cr3t-of", "-the-user"
    unseen = (r"\033[1m", r"\000", r"\177", r"\0337\0338", r"\033[s\033[u", r"\033]0;title\007", r"\033[m\033[31m")
    script = "; ".join(
        f"printf '%s{each}' \"${{SOME_TOKEN%{end}}}\"; {pause} printf '%s\\n' \"${{SOME_TOKEN#{begin}}}\""
        for each in unseen for pause in ("", "sleep 0.4;")
    )  # fmt: skip
    environment = {**service.paddock.who.environment(service.env), "SOME_TOKEN": begin + end}
    service.create(
        "sh", "-c", script, name="parts", stdin="terminal", options=["--env", "SOME_TOKEN"], environment=environment
    )
    service.over("parts")
    assert lines(service, "parts") == ["[redacted]"] * 2 * len(unseen)
    for tail in ("99999999999999999999", "-1"):
        ended = service.cli("logs", "parts", "--tail", tail)
        assert (ended.returncode, ended.stdout, "--tail" in ended.stderr) == (125, "", True)


def test_follow_shows_what_stays(service: Served) -> None:
    """What was there, its tail; then lines as they are left alone, a full screen when it ends, and the end."""
    script = f"seq 30; read x; printf '1%%\\r2%%\\r'; read x; printf '3%%\\n'; read x; {PAGER} printf '\\033[?1049l'"
    service.create("sh", "-c", f"stty -echo; {script}; read x; echo end", name="followed", stdin="terminal")
    until(lambda: "30" in lines(service, "followed"))
    words = service.paddock.words("logs", "followed", "--follow", "--tail", "2")
    who = service.paddock.who
    with (
        subprocess.Popen(
            who.command(words), env=who.environment(service.env), cwd=service.paddock.place,
            stdout=subprocess.PIPE, text=True,
        ) as following,
        Client(service, "followed", "mode=write") as typing,
    ):  # fmt: skip
        assert following.stdout is not None
        assert [following.stdout.readline() for _ in range(2)] == ["29\n", "30\n"]
        typing.send(b"I", b"\n\n")
        assert following.stdout.readline() == "3%\n"
        typing.send(b"I", b"\n")
        assert [following.stdout.readline() for _ in range(2)] == ["\n", "  round 3\n"]
        typing.send(b"I", b"\n")
        assert following.stdout.read() == "end\n"
        assert following.wait() == 0


def test_streams_that_are_no_terminal_are_printed_line_by_line(service: Served) -> None:
    """As before: control characters made visible."""
    service.create("printf", r"a\033[2Jb\rc\n\n\n", name="piped")
    service.over("piped")
    assert lines(service, "piped") == [r"a\x1b[2Jb\rc", "", ""]
