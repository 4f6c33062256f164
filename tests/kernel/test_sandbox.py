"""Sandboxes of programmes (`launcher.api.Sandbox`): what commands in them may, what ends them, and what is left."""

import json
import signal
import subprocess
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from launcher.sandbox import launchers
from policy import promises
from tests.conftest import IDENTITIES
from tests.support import paddock as paddocks
from tests.support.features import need, need_backend
from tests.support.identity import AS_A_USER, Who
from tests.support.install import Installed
from tests.support.paddock import EXEC_PATIENCE as PATIENCE
from tests.support.paddock import Paddock
from tests.support.programs.scene import SWITCHES

BEGINNING = """
import asyncio, json, os, subprocess, sys, threading, time
from launcher.api import AsyncSandbox, Sandbox
from policy.api import Refusal
def refused(call, *words, **more):
    try:
        call(*words, **more)
    except Refusal as refusal:
        return refusal.reference
def grown(path):
    before = os.path.getsize(path)
    time.sleep(0.4)
    return os.path.getsize(path) - before
def beat(path):
    return "while :; do echo x >>" + path + "; sleep 0.02; done"
found = {}
"""
HARD = """
trap "" TERM HUP INT
echo so far
f() { sleep 0.02; f & }
(sleep 0.1; f) 2>/dev/null &
setsid sh -c "$1" &
(setsid sh -c "$2" &) &
sleep 1000
"""


@pytest.fixture(params=promises.BACKENDS)
def options(request: pytest.FixtureRequest) -> tuple[list[str], dict[str, str]]:
    """Options that choose a backend, and the environment."""
    need_backend(request.param)
    env, switches = SWITCHES[request.param]
    return list(switches), dict(env)


def start(paddock: Paddock, program: str, env: dict[str, str] | None = None) -> "subprocess.Popen[bytes]":
    """A programme that uses the library, in the worktree."""
    words = [str(paddock.installed.python), "-I", "-c", BEGINNING + program]
    return paddock.who.start(words, cwd=paddock.worktree, env={**paddock.env, **(env or {})})


def run(
    paddock: Paddock, program: str, env: dict[str, str] | None = None, patience: float = PATIENCE * 3
) -> dict[str, Any]:
    """What it says at its end; `found` in it is that."""
    process = start(paddock, textwrap.dedent(program) + "\nprint(json.dumps(found))", env)
    out, err = process.communicate(timeout=patience)
    assert process.returncode == 0, err.decode()
    result: dict[str, Any] = json.loads(out.splitlines()[-1])
    return result


@AS_A_USER
def test_commands_end_as_they_say(paddock: Paddock, options: tuple[list[str], dict[str, str]]) -> None:
    """Status, streams, input, variables, directory: as of a process of one's own; what cannot be started says so."""
    (paddock.worktree / "plain").write_text("no programme")
    found = run(
        paddock,
        f"""
        with Sandbox(".", {options[0]}) as box:
            done = box.exec("echo out; echo err >&2; exit 7")
            found["done"] = [done.status, done.text, done.stderr.decode(), done.timed_out, done.dropped]
            found["merged"] = box.exec("echo one; echo two >&2", merge=True).text
            found["input"] = len(box.exec(["cat"], input="x" * 3_000_000).stdout)
            found["unread"] = box.exec(["true"], input="x" * 3_000_000).status
            found["env"] = box.exec('echo "$A $PADDOCK_SECRET"', env={{"A": "b c"}}).text
            os.mkdir("below")
            found["cwd"] = box.exec("pwd", cwd="below").text == box.exec("pwd").text.strip() + "/below\\n"
            found["outside"] = refused(box.exec, "pwd", cwd="..")
            found["signalled"] = box.exec("kill -9 $$").status
            found["absent"] = refused(box.exec, ["no-such-command"])
            found["plain"] = refused(box.exec, ["./plain"])
            found["words"] = box.exec(["printf", "%s|", "", "a\\nb", "-x", "\\udcff"]).stdout.decode("latin-1")
            found["long"] = len(box.exec(["printf", "%s", *["y" * 100_000] * 15]).stdout)
            found["left"] = box.exec("sleep 1000 & echo done").text
            found["fds"] = box.exec("ls /proc/self/fd").text.split()
            found["nul"] = refused(box.exec, ["printf", "\\0"])
        found["closed"] = refused(box.exec, "true")
        box.close()
        """,
        {**options[1], "PADDOCK_SECRET": "secret"},
    )
    assert found == {
        "done": [7, "out\n", "err\n", False, 0],
        "merged": "one\ntwo\n",
        "input": 3_000_000,
        "unread": 0,
        "env": "b c \n",
        "cwd": True,
        "outside": "directory-outside",
        "signalled": 137,
        "absent": "command-not-found",
        "plain": "command-not-executable",
        "words": "|a\nb|-x|\xff|",
        "long": 1_500_000,
        "left": "done\n",
        "fds": ["0", "1", "2", "3"],
        "nul": "request-invalid",
        "closed": "sandbox-closed",
    }


@pytest.mark.parametrize(
    ("options", "who"),
    [*((each, IDENTITIES[-1]) for each in promises.BACKENDS), *((promises.GUARD, each) for each in IDENTITIES[:-1])],
    indirect=True,
)
def test_commands_are_held(paddock: Paddock, options: tuple[list[str], dict[str, str]]) -> None:
    """Files and processes outside are out of reach, no privilege is there, limits hold; the worktree is theirs."""
    outside = paddock.place / "outside"
    outside.write_text("secret")
    paddock.who.give(outside)
    found = run(
        paddock,
        f"""
        with Sandbox(".", {[*options[0], "--limit", "open_files=77"]}) as box:
            for name in range(3):  # ahead of their commands, and not
                found[f"read {{name}}"] = box.exec(["cat", {str(outside)!r}]).stdout.decode()
                box.exec(["sh", "-c", 'echo x >"$1"; chmod 777 "$1"', "sh", {str(outside)!r}])
            found["kill"] = box.exec(["kill", "-9", str(os.getpid())]).status
            found["limit"] = box.exec("ulimit -n").text
            found["status"] = box.exec(["cat", "/proc/self/status"]).text
            found["net"] = box.exec("exec 3<>/dev/tcp/127.0.0.1/1 || exit 3").status
            box.exec("echo mine >mine; chmod 640 mine")
            peers = "for p in /proc/[0-9]*; do cat $p/environ $p/maps; ls -l $p/fd; done 2>/dev/null | wc -c"
            found["peers"] = box.exec("sleep 0.1; " + peers).text.strip()
        """,
        options[1],
    )
    status = dict(line.split(":", 1) for line in found["status"].splitlines())
    assert "secret" not in "".join(found[f"read {name}"] for name in range(3))
    assert outside.read_text() == "secret"
    assert outside.stat().st_mode & 0o777 != 0o777
    assert found["kill"] != 0
    assert found["limit"] == "77\n"
    assert found["net"] != 0
    assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == int(status["CapAmb"], 16) == 0
    assert status["NoNewPrivs"].strip() == "1"
    assert int(status["Seccomp"]) == 2
    assert (paddock.worktree / "mine").read_text() == "mine\n"


@AS_A_USER
def test_a_timeout_ends_all_that_a_command_started_and_nothing_else(
    paddock: Paddock, options: tuple[list[str], dict[str, str]]
) -> None:
    """Daemons, and what ignores signals and forks on, too; what an earlier command has left goes on."""
    found = run(
        paddock,
        f"""
        with Sandbox(".", {options[0]}) as box:
            box.exec("(" + beat("earlier") + ") >/dev/null 2>&1 &")
            begun = time.monotonic()
            done = box.exec(["sh", "-c", {HARD!r}, "sh", beat("daemon"), beat("second")], timeout=0.6)
            found["done"] = [done.status, done.timed_out, done.text, time.monotonic() - begun < 8]
            found["grown"] = [grown("daemon"), grown("second"), grown("earlier") > 0]
            found["next"] = box.exec("echo next").text
            found["own 124"] = [box.exec("exit 124", timeout=60).status, box.exec("exit 124", timeout=60).timed_out]
        found["closed"] = grown("earlier")
        """,
        options[1],
    )
    assert found == {
        "done": [124, True, "so far\n", True],
        "grown": [0, 0, True],
        "next": "next\n",
        "own 124": [124, False],
        "closed": 0,
    }


def test_output_is_bounded(user_paddock: Paddock) -> None:
    """Of more than is asked for, the beginning and the end are kept; what nobody reads keeps nobody waiting."""
    found = run(
        user_paddock,
        """
        import resource
        with Sandbox(".") as box:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            done = box.exec("echo first; yes | head -c 100000000; echo last", limit=1000)
            found["size"] = [len(done.stdout), done.stdout[:6].decode(), done.stdout[-5:].decode(), done.dropped]
            found["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30_000
            open("large", "wb").write(b"x" * 2_000_000)
            found["large"] = [refused(box.read, "large", 1_999_999), len(box.read("large", 2_000_000))]
        """,
    )
    assert found == {
        "size": [1000, "first\n", "last\n", 100_000_000 + 6 + 5 - 1000],
        "memory": True,
        "large": ["file-too-large", 2_000_000],
    }


def test_commands_side_by_side(user_paddock: Paddock) -> None:
    """Threads do not disturb each other; one command too many is refused; descriptors are given back."""
    found = run(
        user_paddock,
        """
        with Sandbox(".") as box:
            open_before = len(os.listdir("/proc/self/fd"))
            said = [None] * 20
            def one(number):
                done = box.exec(f"sleep 0.0{number % 7}; cat; exit {number}", input=str(number))
                said[number] = [done.status, done.text]
            threads = [threading.Thread(target=one, args=(number,)) for number in range(20)]
            [each.start() for each in threads]
            [each.join() for each in threads]
            found["each"] = said == [[number, str(number)] for number in range(20)]
            for _ in range(10):
                box.exec(["true"])
            found["refused"] = [refused(box.exec, ["no-such-command"]) for _ in range(3)][-1]
            found["fds"] = len(os.listdir("/proc/self/fd")) - open_before
            os.mkfifo("go")
            go = os.open("go", os.O_RDWR)
            waiting = [threading.Thread(target=box.exec, args=(f"exec <go; touch at.{n}; cat",)) for n in range(80)]
            [each.start() for each in waiting]  # 64, and room for those that have not quite ended
            while sum(name.startswith("at.") for name in os.listdir()) < 80:
                time.sleep(0.02)
            found["busy"] = refused(box.exec, "true")
            os.close(go)
            [each.join() for each in waiting]
            found["after"] = box.exec("true").status
        """,
    )
    assert found == {"each": True, "refused": "command-not-found", "fds": 0, "busy": "session-busy", "after": 0}


def test_a_command_that_ends_our_processes_ends_its_own_sandbox(user_paddock: Paddock) -> None:
    """The programme hears of it, closing works, and the next sandbox is as ever."""
    found = run(
        user_paddock,
        """
        with Sandbox(".") as box:
            found["before"] = box.exec("true").status
            # What can be seen of Paddock's there: what minds, what is ready, what all of them are forked from.
            found["said"] = refused(box.exec, "kill -9 -1; sleep 5")
            found["later"] = refused(box.exec, "true")
        with Sandbox(".") as box:
            found["next"] = box.exec("echo fine").text
            for _ in range(5):  # what is ready for the next command, alone
                refused(box.exec, "for p in $(ps -eo pid= --sort=-pid | head -n 6); do [ $p = $$ ] || kill -9 $p; done")
                time.sleep(0.1)
                found.setdefault("answers", []).append(refused(box.exec, "true"))
        found["answers"] = set(found["answers"]) <= {None, "sandbox-ended"}
        """,
    )
    assert found["said"] in ("sandbox-ended", None)
    assert found["later"] == "sandbox-ended"
    assert (found["before"], found["next"], found["answers"]) == (0, "fine\n", True)


def test_a_command_that_stops_our_processes_ends_its_own_sandbox(user_paddock: Paddock) -> None:
    """What minds it, what holds the sandbox open, what takes commands: nothing waits for ever, and nothing lives on."""
    found = run(
        user_paddock,
        """
        from launcher.sandbox import command, live
        command._KILL_SECONDS = live._PATIENCE = 2.0
        def stop(name):
            return "kill -STOP " + name + "; "
        with Sandbox(".") as box:  # the one that minds it, killed a moment later
            daemon = "setsid sh -c 'sleep 3; kill -KILL '$PPID'; " + beat("one") + "' >/dev/null 2>&1 </dev/null & "
            box.exec(stop("$PPID") + daemon + "sleep 100", timeout=0.5)
            time.sleep(1)
            found["one"] = [os.path.exists("one") and grown("one"), refused(box.exec, "true")]
        with Sandbox(".") as box:
            threading.Timer(0.5, lambda: os.kill(os.getpid(), 2)).start()
            try:
                box.exec(stop("$PPID") + beat("two").replace("sleep 0.02", ":"))  # at work in any moment
            except KeyboardInterrupt:
                found["two"] = grown("two")
        with Sandbox(".") as box:  # the first command, which the sandbox lives as long as
            first = box.exec("pgrep -x cat").text.strip()
            box.exec(stop(first))
            begun = time.monotonic()
        found["close"] = time.monotonic() - begun < 8
        with Sandbox(".") as box:  # the one that takes commands
            box.exec(stop("3"), timeout=5)  # stopped before it has told what minds this command: that waits, as any may
            begun = time.monotonic()
            found["full"] = refused(box.exec, ["true", *["x" * 100_000] * 20], timeout=1)
            found["sent"] = time.monotonic() - begun < 8
        async def main():
            async with AsyncSandbox(".") as box:
                task = asyncio.ensure_future(box.exec(stop("$PPID") + beat("three")))
                await asyncio.sleep(0.5)
                for _ in range(2):
                    task.cancel()
                    await asyncio.sleep(0.1)
                try:
                    await task
                except asyncio.CancelledError:
                    found["three"] = grown("three")
        asyncio.run(main())
        """,
    )
    assert found == {
        "one": [False, "sandbox-ended"], "two": 0, "close": True, "full": "sandbox-ended", "sent": True, "three": 0,
    }  # fmt: skip


def test_a_killed_programme_whose_jail_is_held_open(user_paddock: Paddock) -> None:
    """The first command was stopped: the jail is ended all the same, a while later."""
    process = start(
        user_paddock,
        """
box = Sandbox(".")
box.exec("kill -STOP $(pgrep -x cat)")
print("ready", flush=True)
time.sleep(1000)
""",
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.kill()
    process.communicate()
    deadline = time.monotonic() + PATIENCE + launchers.PATIENCE
    while user_paddock.left():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@AS_A_USER
def test_a_killed_programme_leaves_nothing_and_its_commits_come(paddock: Paddock) -> None:
    """SIGKILL: the jail ends with all in it, and what was committed is harvested by its launcher."""
    process = start(
        paddock,
        """
box = Sandbox(".")
box.exec("echo new >new && git add new && git commit -qm 'Keep me.'")
box.exec("(" + beat("beat") + ") >/dev/null 2>&1 &")
while not os.path.exists("beat"):
    time.sleep(0.02)
print("ready", flush=True)
box.exec("sleep 1000")
""",
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    deadline = time.monotonic() + PATIENCE
    while "Keep me." not in paddock.who.run(["git", "log", "-1"], cwd=paddock.worktree).stdout or paddock.left():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    size = (paddock.worktree / "beat").stat().st_size
    time.sleep(0.3)
    assert (paddock.worktree / "beat").stat().st_size == size


def test_an_interrupt_ends_the_command(user_paddock: Paddock) -> None:
    """KeyboardInterrupt comes out of `exec`, when the command has ended; so does a cancelled task."""
    found = run(
        user_paddock,
        """
        import signal
        with Sandbox(".") as box:
            threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            try:
                box.exec(beat("one"))
            except KeyboardInterrupt:
                found["one"] = grown("one")
        async def main():
            async with AsyncSandbox(".") as box:
                found["many"] = [done.text for done in await asyncio.gather(*[box.exec(f"echo {n}") for n in range(5)])]
                task = asyncio.ensure_future(box.exec(beat("two")))
                await asyncio.sleep(0.5)
                task.cancel()
                try:
                    await task
                except asyncio.CancelledError:
                    found["two"] = grown("two")
                await box.write("three", "3")
                found["read"] = (await box.read("three")).decode()
                found["late"] = (await box.exec("sleep 9", timeout=0.1)).timed_out
        asyncio.run(main())
        """,
    )
    assert found == {
        "one": 0,
        "many": [f"{number}\n" for number in range(5)],
        "two": 0,
        "read": "3",
        "late": True,
    }


def test_a_forked_process_ends_no_sandbox_of_its_parent(user_paddock: Paddock) -> None:
    """At its end it has copies of them, and of the pipe that holds them open."""
    found = run(
        user_paddock,
        """
        with Sandbox(".") as box:
            child = os.fork()
            if child == 0:
                sys.exit(0)
            found["child"] = os.waitpid(child, 0)[1]
            found["said"] = box.exec("echo alive").text
        """,
    )
    assert found == {"child": 0, "said": "alive\n"}


@AS_A_USER
def test_files_cross_both_ways(paddock: Paddock, options: tuple[list[str], dict[str, str]]) -> None:
    """Odd names come through, links stay links and lead nobody out; no set-id bit comes out, no denied file in."""
    secret = paddock.place / "secret"
    secret.write_text("secret")
    paddock.who.give(secret)
    found = run(
        paddock,
        f"""
        os.makedirs("../up/below")
        names = [b"-x", b"new\\nline", b"\\xff\\xfe", b"below/file", b"sp ace"]
        for name in names:
            open(b"../up/" + name, "wb").write(name)
        os.symlink({str(secret)!r}, "../up/link")
        with Sandbox(".", {options[0]}) as box:
            box.upload("../up", "got/here")
            found["in"] = sorted(os.path.relpath(os.path.join(place, each), b"got/here").decode("latin-1")
                                 for place, _, files in os.walk(b"got/here") for each in files)
            box.upload("../up/-x")
            found["one"] = open("-x").read()
            found["through"] = box.exec(["cat", "got/here/link"]).text
            box.exec("cd got/here && chmod 4755 ./-x; ln -s ../../../.. up; mkdir ./-d; ln /etc/passwd hard")
            box.download("got/here", "../down")
            found["out"] = sorted(os.listdir("../down"))
            found["mode"] = os.stat("../down/-x").st_mode & 0o7000
            found["links"] = [os.path.islink("../down/link"), os.path.islink("../down/up")]
            box.download("got/here/new\\nline", "../single")
            found["single"] = os.listdir("../single")
            found["denied"] = refused(box.download, {str(secret)!r}, "../stolen")
            found["absent"] = [refused(box.download, "nowhere", "../stolen"), refused(box.read, "nowhere")]
            found["unwritable"] = [refused(box.write, "/usr/x", "x"), refused(box.upload, "../up", "/usr/x")]
            found["unreadable"] = refused(box.upload, "../no-such-thing")
            found["stolen"] = os.listdir("../stolen")
        """,
        options[1],
    )
    names = sorted(["-x", "new\nline", "\xff\xfe", "below/file", "sp ace", "link"])
    assert found["in"] == names
    assert (found["one"], found["through"]) == ("-x", "")
    assert found["out"] == sorted(["-x", "-d", "new\nline", "\udcff\udcfe", "below", "sp ace", "link", "up"])
    assert (found["mode"], found["links"], found["single"]) == (0, [True, True], ["new\nline"])
    assert found["denied"] == "file-unreadable"
    assert found["absent"] == ["file-unreadable"] * 2
    assert found["unwritable"] == ["file-unwritable"] * 2
    assert found["unreadable"] == "file-unreadable"
    assert found["stolen"] == []


COPIED = """
import os, subprocess, time
place = {place!r}
with Sandbox(place, cow=True) as box:
    box.exec("echo more >>file; mkdir -p new/below; echo new >'new/a b'; printf '\\\\0\\\\1' >bin; chmod +x file")
    if {worktree}:
        box.exec("git add -A && git commit -qm 'Two.\\n\\nBody.' && echo again >>file")
        found["commits"] = [(each.author, each.message) for each in box.commits()]
    patch = box.diff()
    found["seen"] = box.exec("ls -A; cat file").text
    found["reset"] = []
    for turn in range(3):
        box.exec("echo $RANDOM >>file; rm -rf new; touch /tmp/mine-alone; (sleep 1000 &)")
        if turn == 2:
            box._spare.result().kill()  # the next jail, which waits
            time.sleep(0.5)
        box.reset()
        found["reset"].append([box.exec("cat file; ls -d /tmp/mine-alone new").text, box.diff().decode()])
    found["patch"] = box.diff() == b""
found["late"] = refused(box.reset)
found["disk"] = [open(place + "/file").read(), os.path.exists(place + "/new")]
subprocess.run(["git", "apply", "--binary", "-"], cwd=place, input=patch, check=True)
found["applied"] = [open(place + "/file").read(), open(place + "/new/a b").read(), os.access(place + "/file", os.X_OK)]
"""


@AS_A_USER
def test_a_copy_keeps_the_worktree_as_it_is(paddock: Paddock) -> None:
    """Commands write, commit and see what they wrote; nothing reaches the disk but by the patch; `reset` undoes it."""
    need("userns")
    found = run(paddock, COPIED.format(place=str(paddock.worktree), worktree=True))
    assert found["commits"] == [["U", "Two.\n\nBody.\n"]] or found["commits"][0][1] == "Two.\n\nBody.\n"
    assert "new" in found["seen"]
    assert found["seen"].endswith("content\nmore\nagain\n")
    assert found["reset"] == [["content\n", ""]] * 3
    assert found["late"] == "sandbox-closed"  # no jail that nobody would close
    assert found["disk"] == ["content\n", False]
    assert found["applied"] == ["content\nmore\nagain\n", "new\n", True]
    log = paddock.who.run(["git", "log", "--all", "--format=%s"], cwd=paddock.worktree).stdout
    assert "Two." not in log


@AS_A_USER
def test_a_plain_directory(paddock: Paddock) -> None:
    """As itself, and as a copy, whose patch names what changed."""
    need("userns")
    plain = paddock.place / "plain"
    plain.mkdir()
    (plain / "file").write_text("content\n")
    paddock.who.give(plain)
    found = run(paddock, COPIED.format(place=str(plain), worktree=False))
    assert found["reset"] == [["content\n", ""]] * 3
    assert found["disk"] == ["content\n", False]
    assert found["applied"] == ["content\nmore\n", "new\n", True]
    written = run(
        paddock,
        f"""
        with Sandbox({str(plain)!r}) as box:
            box.exec("echo real >file")
            found["refused"] = [refused(box.diff), refused(box.reset), box.commits()]
        """,
    )
    assert written == {"refused": ["diff-unavailable", "reset-unavailable", []]}
    assert (plain / "file").read_text() == "real\n"


def test_a_copy_is_no_way_to_what_is_denied(paddock: Paddock) -> None:
    """What is hidden or read-only in the worktree is so in its copy, and what cannot be a copy is refused."""
    need("userns")
    hidden = paddock.worktree / "hidden"
    hidden.mkdir()
    (hidden / "secret").write_text("secret")
    (paddock.worktree / ".envrc").write_text("echo\n")
    paddock.who.give(hidden)
    paddock.who.give(paddock.worktree / ".envrc")
    script = (
        "cat hidden/secret; mv hidden away; cat away/secret; echo x >.envrc; umount -l . ; "
        "cat /proc/*/root/proc/lower/hidden/secret; echo own >own; cat own"
    )
    said = paddock.call("run", "--cow", "--deny", str(hidden), "--", "sh", "-c", script)
    assert "secret\n" not in said.stdout
    assert said.stdout.endswith("own\n")
    assert (paddock.worktree / ".envrc").read_text() == "echo\n"
    assert not (paddock.worktree / "own").exists()
    for words, reference in (
        (("--rw", str(paddock.worktree.parent)), "cow-covered"),
        (("--rw", str(paddock.worktree)), "cow-covered"),
        (("--ro", str(paddock.worktree), "--rw", str(hidden)), "cow-covered"),
        (("--review",), "usage"),
        (("--git", "shared"), "review-shares-git"),
        (("--backend", "bubblewrap"), "cow-unavailable"),
    ):
        assert f"[{reference}]" in paddock.call("run", "--cow", *words, "--", "true").stderr, words
    guard = paddocks.Paddock(paddock.who, paddock.installed, paddock.place, paddock.worktree, paddock.main,
                             {"PADDOCK_NO_USERNS": "1"})  # fmt: skip
    assert "[cow-unavailable]" in guard.call("run", "--cow", "--", "true").stderr


@AS_A_USER
@pytest.mark.parametrize("above", ["..", "/"])
def test_a_copy_below_what_is_granted_for_reading(paddock: Paddock, above: str) -> None:
    """It is a copy there, too; nothing of it is the disk."""
    need("userns")
    script = "echo EVIL >file; echo x >new; cat file"
    said = paddock.call("run", "--cow", "--ro", above, "--", "sh", "-c", script)
    assert said.stdout == "EVIL\n", said.stderr
    assert (paddock.worktree / "file").read_text() == "content\n"
    assert not (paddock.worktree / "new").exists()


def test_a_limit_of_the_disk_counts_the_copy(user_paddock: Paddock) -> None:
    """As it counts the temporary directory."""
    need("userns")
    script = "head -c 300M /dev/zero >full; for n in $(seq 100); do sleep 0.1; done; echo still"
    said = user_paddock.call("run", "--cow", "--limit", "disk=50M", "--", "sh", "-c", script)
    assert "still" not in said.stdout
    assert "disk" in said.stderr


def test_what_comes_out_goes_where_it_was_sent(user_paddock: Paddock) -> None:
    """Through no link that a command has made, and no larger than allowed; odd commits and names are no fault."""
    victim = user_paddock.place / "victim"
    victim.mkdir()
    user_paddock.who.give(victim)
    found = run(
        user_paddock,
        f"""
        with Sandbox(".") as box:
            box.exec(["ln", "-s", {str(victim)!r}, "results"])
            box.exec("mkdir art; echo pwned >art/keys; truncate -s 3G art/big; mkfifo fifo; echo dash >-")
            found["link"] = [refused(box.download, "art", "results"), refused(box.download, "art", "results/below")]
            box.exec("mkdir many; for n in 1 2 3 4 5; do head -c 400000 /dev/zero >many/$n; done")
            found["large"] = refused(box.download, "art", "../large", 1_000_000)
            found["sum"] = [refused(box.download, "many", "../many", 1_000_000), len(os.listdir("../many")) < 5]
            box.download("many", "../many", 3_000_000)
            late = {{"timeout": 0}}
            found["late"] = [refused(box.read, "art/big", 1 << 40, **late), refused(box.write, "x", "y", **late),
                             refused(box.upload, "art", "up", **late), refused(box.download, "art", "../l", **late)]
            found["read"] = [refused(box.read, "fifo"), refused(box.read, "/dev/zero", 10), box.read("-").decode()]
            box.exec('git commit -q --allow-empty -m x; git cat-file commit HEAD | sed "s/^author .*/author x <y>/" >c')
            box.exec("git update-ref HEAD $(git hash-object -t commit -w --literally c)")
            found["time"] = [each.time for each in box.commits()]
            found["env"] = [refused(box.exec, "true", env=each) for each in ({{"A=B": "c"}}, {{"A": "\\ud800"}})]
        """,
    )
    assert found == {
        "link": ["file-unwritable"] * 2,
        "large": "file-unwritable",
        "sum": ["file-too-large", True],
        "late": ["sandbox-timeout"] * 4,
        "read": ["file-unreadable", "file-unreadable", "dash\n"],
        "time": [0.0],
        "env": ["environment-invalid", "request-invalid"],
    }
    assert list(victim.iterdir()) == []


def test_each_command_runs_once(user_paddock: Paddock) -> None:
    """Whoever is first in what a command's end and its beginning tell of it; a busy machine mixes these up."""
    found = run(
        user_paddock,
        """
        others = [subprocess.Popen(["sh", "-c", "while :; do /bin/true; done"]) for _ in range(2)]
        try:
            with Sandbox(".", ["--net", "none"]) as box:
                for number in range(40):
                    box.exec(f"echo {number} >>ran")
                found["ran"] = box.read("ran").split() == b" ".join(b"%d" % number for number in range(40)).split()
        finally:
            for each in others:
                each.kill()
        """,
    )
    assert found == {"ran": True}


def test_a_command_is_told_what_was_refused(user_paddock: Paddock) -> None:
    """By the network's proxy, at once and for the first time; all of it while the sandbox lives, and afterwards."""
    need("network")
    found = run(
        user_paddock,
        """
        with Sandbox(".", ["--allow-domain", "allowed.example"]) as box:
            for host in ("one.example", "two.example", "one.example"):
                done = box.exec(f"curl -sS -m 5 http://{host}")
                found.setdefault("each", []).append([each["host"] for each in done.denials])
            found["quiet"] = len(box.exec("true").denials)
            found["live"] = sorted(each["host"] for each in box.denials())
        found["over"] = sorted(each["host"] for each in box.denials())
        """,
    )
    assert found["each"] == [["one.example"], ["two.example"], []]
    assert found["quiet"] == 0
    assert found["live"] == found["over"] == ["one.example", "two.example"]


def test_git_of_a_sandbox_is_bounded(user_paddock: Paddock) -> None:
    """A command can have it run what it likes, for ever too."""
    found = run(
        user_paddock,
        """
        with Sandbox(".") as box:
            box.exec("echo '* filter=e' >.gitattributes; git config filter.e.clean 'sleep 300'; echo more >>file")
            found["late"] = refused(box.diff, timeout=2)
            found["commits"] = box.commits(timeout=20)
        os.makedirs("tools")
        os.symlink("/bin/sh", "tools/sh")
        with Sandbox(".", ["--env", "PATH=" + os.path.abspath("tools")]) as box:  # as in an image that has no git
            found["without"] = [box.exec(["/bin/echo", "still"]).text, refused(box.diff), refused(box.commits)]
        """,
    )
    without = ["still\n", "diff-unavailable", "diff-unavailable"]
    assert found == {"late": "sandbox-timeout", "commits": [], "without": without}


def test_a_worktree_of_its_own(user: Who, installed: Installed, public_dir: Path) -> None:
    """`commit` makes one; at the end it goes, its branch stays with what was committed; work that is left keeps it."""
    need("landlock")
    (public_dir / "place").mkdir()
    paddock = paddocks.make(user, installed, user.give(public_dir / "place"))
    found = run(
        paddock,
        """
        with Sandbox(".", commit="HEAD", name="first") as box:
            box.exec("echo 1 >1; git add 1; git commit -qm One.")
            found["root"] = [os.path.basename(box.root), box.harvest]
        found["first"] = [os.path.exists(box.root), box.harvest["state"]]
        with Sandbox(".", commit="HEAD", name="second") as box:
            box.exec("echo 2 >2")
        found["second"] = [os.path.exists(box.root), "worktree-dirty" in box.messages]
        box = Sandbox(".", commit="HEAD", name="third")
        box.exec("echo 3 >3")
        box.close(discard=True)
        found["third"] = os.path.exists(box.root)
        found["unknown"] = refused(Sandbox, ".", commit="no-such-commit")
        found["branches"] = subprocess.run(["git", "branch", "--format=%(refname:short)", "--list", "agent/*"],
                                           capture_output=True, text=True).stdout.split()
        """,
    )
    assert found["first"] == [False, "harvested"]
    assert found["second"] == [True, True]
    assert (found["third"], found["branches"]) == (False, ["agent/first", "agent/second"])
    assert found["unknown"]


def test_what_cannot_be_made_says_so_and_leaves_nothing(user_paddock: Paddock) -> None:
    """Refusals are those of `paddock run`; neither descriptors nor processes stay."""
    found = run(
        user_paddock,
        """
        Sandbox(".").close()
        before = len(os.listdir("/proc/self/fd"))
        found["refused"] = [refused(Sandbox, *words) for words in
                            ((".", ["--net", "nowhere"]), ("/nowhere",), ("/",), (".", ["--rw", "/nowhere"]),
                             (".", "--net none"))]
        found["named"] = []
        with Sandbox(".", name="same"):
            found["named"].append(refused(Sandbox, ".", name="same"))
        for _ in range(3):
            Sandbox(".").close()
        found["fds"] = len(os.listdir("/proc/self/fd")) - before
        """,
    )
    assert None not in found["refused"]
    assert (found["named"], found["fds"]) == (["session-in-use"], 0)
