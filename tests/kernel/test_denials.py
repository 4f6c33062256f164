"""What a session was refused stands in its ledger: by the kernel's audit for root, by the guard for everybody."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import features, guarded, identity
from tests.support.features import need
from tests.support.guarded import Guarded
from tests.support.identity import AS_A_USER, Who
from tests.support.install import Installed
from tests.support.paddock import Paddock

# What is tried, in the jail; `outside` and `inside` are directories, `pid` a process outside, `name` an abstract socket
# that it listens at.
TWENTY = """
outside, inside, pid, name = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
def out(name):
    return os.path.join(outside, name)
def connect(address):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(address)
def bind(address):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
def execute(path):
    os.execv(path, [path])
def ioctl():
    import fcntl
    with open("/dev/urandom", "rb", buffering=0) as device:
        fcntl.ioctl(device, 0x80045200, bytes(4))
os.chdir(inside)
open("own", "w").close()
result = [
    said(open, out("secret")), said(os.listdir, out("directory")), said(execute, out("program")),
    said(os.open, out("written"), os.O_WRONLY), said(os.truncate, out("cut"), 0),
    said(lambda: os.close(os.open(out("new"), os.O_CREAT | os.O_WRONLY))), said(os.mkdir, out("made")),
    said(os.symlink, "x", out("link")), said(bind, out("socket-made")), said(os.mkfifo, out("fifo")),
    said(os.mknod, out("char"), 0o20600, os.makedev(1, 3)), said(os.mknod, out("block"), 0o60600, os.makedev(7, 0)),
    said(os.unlink, out("removed")), said(os.rmdir, out("removed-directory")),
    said(os.rename, "own", out("taken")), said(ioctl), said(os.kill, pid, 0),
    said(connect, "\\0" + name), said(connect, out("socket")),
    said(os.chmod, out("mode"), 0o600), said(os.chown, out("owner"), -1, 0), said(os.utime, out("times")),
    said(os.setxattr, out("attribute"), "user.x", b"y"),
]
"""

LAYERS = {"landlock", "guard"}
KEYS = {
    "time",
    "layer",
    "operation",
    "path",
    "host",
    "port",
    "target",
    "rights",
    "process",
    "count",
    "allow",
    "risk",
    "last",
}


def expected(outside: Path, pid: int, name: str) -> set[tuple[str, str, str, tuple[str, ...]]]:
    """Layer, path, other target, rights of each attempt in `TWENTY`."""
    at = {right: str(outside) for right in ("make_reg", "make_dir", "make_sym", "make_fifo", "make_char",
                                            "make_block", "remove_file", "remove_dir")}  # fmt: skip
    at |= {"read_file": f"{outside}/secret", "read_dir": f"{outside}/directory", "truncate": f"{outside}/cut",
           "execute read_file": f"{outside}/program", "write_file": f"{outside}/written",
           "ioctl_dev": "/dev/urandom"}  # fmt: skip
    by_landlock = {("landlock", path, "", tuple(f"fs.{name}" for name in right.split())) for right, path in at.items()}
    by_guard = {("guard", f"{outside}/{file}", "", (call,)) for file, call in (
        ("socket", "connect"), ("mode", "chmod"), ("owner", "chown"), ("times", "utimensat"), ("attribute", "setxattr")
    )}  # fmt: skip
    return by_landlock | by_guard | {("guard", "", f"@{name}", ("connect",)), ("guard", str(outside), "", ("bind",))}


@pytest.fixture(scope="module")
def audited() -> Iterator[None]:
    """The kernel's audit is on, and no longer than for this file: there is a test that needs it off."""
    need("audit")
    with features.switched_on() as on:
        assert on
        yield


@pytest.fixture
def as_root(installed: Installed, public_dir: Path) -> Guarded:
    """A jail of root's, of the backend landlock+guard: there Landlock says no where namespaces would show nothing."""
    need("landlock")
    return guarded.at(identity.root(public_dir / "home"), installed, public_dir)


def plant(jail: Guarded) -> None:
    """What `TWENTY` reaches for."""
    for name in ("secret", "program", "written", "cut", "removed", "mode", "owner", "times", "attribute"):
        (jail.outside / name).write_text("content")
    (jail.outside / "program").chmod(0o755)
    for name in ("directory", "removed-directory"):
        (jail.outside / name).mkdir()


def attack(jail: Guarded, session: str) -> set[tuple[str, str, str, tuple[str, ...]]]:
    """Runs `TWENTY` in a jail; what of the expected is not in the ledger, and the other way round."""
    plant(jail)
    name = f"paddock-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as abstract:
        listener.bind(str(jail.outside / "socket"))
        listener.listen()
        abstract.bind("\0" + name)
        abstract.listen()
        words = (jail.outside, jail.inside, str(os.getpid()), name)
        said = jail.tried(TWENTY, *words, options=("--session", session))
    assert len(said) == 23
    assert all(answer in ("EACCES", "EPERM", "EXDEV") for answer in said), said
    return expected(jail.outside, os.getpid(), name)


def told(lines: list[dict[str, Any]]) -> set[tuple[str, str, str, tuple[str, ...]]]:
    """The lines in the shape of `expected`."""
    return {(line["layer"], line["path"] or "", line["target"] or "", tuple(line["rights"])) for line in lines}


def test_twenty_denials_are_twenty_lines(as_root: Guarded, audited: None) -> None:
    """As root, each with the right path, the right of the kernel's own name, the process, and what would allow it."""
    wanted = attack(as_root, "twenty")
    lines = guarded.denials(as_root, "twenty")
    assert wanted <= told(lines), wanted - told(lines)
    assert len(lines) == 23, told(lines) - wanted
    for line in lines:
        assert set(line) == KEYS
        assert line["layer"] in LAYERS
        assert line["process"]["comm"] == "python3"
        assert line["process"]["exe"].startswith("/usr/")
        assert line["process"]["pid"] > 0
        if line["path"]:
            assert line["allow"]["flag"] or line["allow"]["note"]
            assert line["risk"] or line["path"].startswith("/dev/")
    moved = [line for line in lines if "fs.refer" in line["rights"]]
    assert moved, "the rename across directories"
    signalled = [line for line in lines if line["rights"] == ["scope.signal"]]
    assert [line["target"].split()[1] for line in signalled] == [str(os.getpid())]
    by_path = {line["path"]: line["allow"] for line in lines}
    secret = str(as_root.outside / "secret")
    assert by_path[secret] == {"flag": f"--ro {secret}", "toml": f'[filesystem]\nread = ["{secret}"]', "note": ""}


def test_without_the_right_to_audit_the_guard_tells_and_the_rest_is_named(
    user: Who, installed: Installed, public_dir: Path
) -> None:
    """An ordinary user's ledger holds what the guard refused, and says which kinds it cannot hold."""
    need("landlock")
    jail = guarded.at(user, installed, public_dir)
    wanted = {line for line in attack(jail, "mine") if line[0] == "guard"}
    lines = guarded.denials(jail, "mine")
    assert told(lines) == wanted
    ended = user.run([installed.paddock, "denials", "mine"], cwd=jail.inside)
    assert "not recorded: denials by Landlock and the system call filter" in ended.stdout


def test_what_the_suggestions_say_is_true(as_root: Guarded, audited: None) -> None:
    """A run with a suggested option is refused that no more."""
    secret = as_root.outside / "it's a secret"
    secret.write_text("content")
    command: list[str | Path] = ["cat", secret]
    assert as_root.run(command, "--session", "before").returncode == 1
    (line,) = guarded.denials(as_root, "before")
    assert line["allow"]["flag"] == f"--ro '{as_root.outside}/it'\"'\"'s a secret'"
    script = f'{as_root.installed.paddock} run --session after {line["allow"]["flag"]} -- cat "$1"'
    ended = as_root.who.run(["sh", "-c", script, "sh", secret], cwd=as_root.inside, env=guarded.ENVIRONMENT)
    assert (ended.returncode, ended.stdout) == (0, "content")
    ended = as_root.who.run([as_root.installed.paddock, "denials", "after"], cwd=as_root.inside)
    assert ended.returncode == 125
    assert "[session-unknown]" in ended.stderr


FORBIDDEN = """
libc.unshare.restype = ctypes.c_int
def unshare():
    if libc.unshare(0x10000000):
        raise OSError(ctypes.get_errno(), "")
def keys():
    syscall_number = 248 if os.uname().machine == "x86_64" else 217
    if libc.syscall(ctypes.c_long(syscall_number), 0, 0, 0, 0, 0) == -1:
        raise OSError(ctypes.get_errno(), "")
threads = [threading.Thread(target=time.sleep, args=(0,)) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
result = [said(unshare), said(keys), said(os.chown, sys.argv[1], -1, 0)]
time.sleep(0.5)  # the record names no session, only a process that has to be there when it is read
"""


@pytest.mark.parametrize("env", [guarded.ENVIRONMENT, {}], ids=["guard", "namespaces"])
def test_system_calls_that_the_filter_refuses(as_root: Guarded, audited: None, env: dict[str, str]) -> None:
    """They are named; what is answered as if the kernel lacked it (clone3, with every thread) makes no noise."""
    command = as_root.python(f"{FORBIDDEN}\nprint(result)", as_root.outside)
    ended = as_root.who.run(as_root.words(command, "--session", "calls"), cwd=as_root.inside, env=env)
    assert ended.returncode == 0, ended.stderr
    assert "'EPERM', 'EPERM'" in ended.stdout
    lines = [line for line in guarded.denials(as_root, "calls") if line["layer"] == "seccomp"]
    assert {line["target"] for line in lines} == {"unshare", "add_key"}
    assert all(line["process"]["comm"] == "python3" for line in lines)


FLOOD = """
denied, start = 0, time.monotonic()
while denied < 20000:
    try:
        os.open(sys.argv[1], os.O_RDONLY)
    except OSError:
        denied += 1
result = [denied, denied / (time.monotonic() - start)]
"""


def test_a_flood_of_denials_is_counted_and_breaks_nothing(as_root: Guarded, audited: None) -> None:
    """Every one of 20,000 in a row is either counted in the ledger's line, counted as lost, or said to be uncounted."""
    secret = as_root.outside / "secret"
    secret.write_text("content")
    denied, rate = as_root.tried(FLOOD, secret, options=("--session", "flood"))
    assert denied == 20000
    (line,) = [line for line in guarded.denials(as_root, "flood") if line["path"] == str(secret)]
    (kept,) = (as_root.who.home / ".local/state/paddock/ledgers").glob("flood.*.jsonl")
    end = json.loads(kept.read_text().splitlines()[-1])
    assert end["kind"] == "end"
    uncounted = any("own count did not come" in note for note in end["notes"])  # it was itself among the lost records
    assert line["count"] + end["lost"] >= 20000 or uncounted, end
    assert line["count"] > 0
    print(f"{rate:.0f} denials a second; {line['count']} in the ledger, {end['lost']} lost")
    assert kept.stat().st_size < 10_000


def test_two_sessions_at_a_time_keep_their_own(as_root: Guarded, audited: None) -> None:
    """A denial stands in the ledger of its own session only, though both hear all records of the machine."""
    names = ("first", "second")
    running = []
    for name in names:
        (as_root.outside / name).write_text("content")
        program = f"import sys; sys.stdin.read()\ntry: open({str(as_root.outside / name)!r})\nexcept OSError: pass"
        running.append(as_root.start(["/usr/bin/python3", "-I", "-S", "-c", program], "--session", name))
    for process in running:
        process.communicate(timeout=60)
        assert process.returncode == 0
    for name in names:
        assert [line["path"] for line in guarded.denials(as_root, name)] == [str(as_root.outside / name)]


def test_a_further_commands_denials_belong_to_the_session(as_root: Guarded, audited: None) -> None:
    """`paddock exec` makes a domain of its own, which is heard as well: what it comes from must live to be asked."""
    secret = as_root.outside / "secret"
    secret.write_text("content")
    waiting = as_root.start(["sh", "-c", "echo ready; read line"], "--session", "more")
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == b"ready\n"
    script = f"cat {secret}; status=$?; sleep 1; exit $status"
    ended = as_root.who.run([as_root.installed.paddock, "exec", "more", "--", "sh", "-c", script], cwd=as_root.inside)
    assert ended.returncode == 1
    waiting.communicate(b"\n", timeout=60)
    assert [line["path"] for line in guarded.denials(as_root, "more")] == [str(secret)]


def test_follow_shows_denials_as_they_come(as_root: Guarded, audited: None) -> None:
    """Each line comes while the session runs, and the end of the session ends it."""
    for name in ("one", "two"):
        (as_root.outside / name).write_text("content")
    script = "echo ready; while read name; do cat $name; done"
    session = as_root.start(["sh", "-c", script], "--session", "live")
    assert session.stdin is not None
    assert session.stdout is not None
    assert session.stdout.readline() == b"ready\n"
    watching = as_root.who.start([as_root.installed.paddock, "denials", "live", "--follow", "--json"])
    assert watching.stdout is not None
    for name in ("one", "two"):
        session.stdin.write(f"{as_root.outside / name}\n".encode())
        session.stdin.flush()
        assert json.loads(watching.stdout.readline())["path"] == str(as_root.outside / name)
    session.communicate(timeout=60)
    rest, _ = watching.communicate(timeout=60)
    assert (rest, watching.returncode) == (b"", 0)


def test_the_ledger_is_out_of_reach_of_the_jail(as_root: Guarded, audited: None) -> None:
    """Neither reading nor writing it is possible inside, and it outlives the session for its owner only."""
    assert as_root.run(["cat", "/etc/shadow"], "--session", "past").returncode == 1
    (kept,) = (as_root.who.home / ".local/state/paddock/ledgers").glob("past.*.jsonl")
    assert kept.stat().st_mode & 0o777 == 0o600
    assert as_root.run(["cat", kept]).returncode == 1
    assert as_root.run(["sh", "-c", f"echo >> {kept}"]).returncode != 0


@pytest.mark.parametrize(("quiet", "lines"), [((), True), (("--quiet",), False)], ids=["plain", "quiet"])
def test_the_summary_is_for_terminals(as_root: Guarded, audited: None, quiet: tuple[str, ...], lines: bool) -> None:
    """It comes on a terminal, without `--quiet`, and never to a pipe."""
    words = as_root.words(["cat", "/etc/shadow"], *quiet)
    ended = as_root.who.run(
        ["script", "-qec", " ".join(words), "/dev/null"], cwd=as_root.inside, env=guarded.ENVIRONMENT
    )
    assert ("cat: read /etc/shadow: --ro /etc/shadow" in ended.stdout) is lines
    piped = as_root.run(["cat", "/etc/shadow"], *quiet)
    assert "--ro" not in piped.stderr + piped.stdout


def test_a_killed_launcher_leaves_what_it_has_heard(as_root: Guarded, audited: None) -> None:
    """Lines are written at once, so a SIGKILL takes no more than the last counts."""
    secret = as_root.outside / "secret"
    secret.write_text("content")
    session = as_root.start(["sh", "-c", f"cat {secret}; echo ready; read line"], "--session", "killed")
    assert session.stdout is not None
    assert session.stdout.readline() == b"ready\n"
    watching = as_root.who.start([as_root.installed.paddock, "denials", "killed", "--follow", "--json"])
    assert watching.stdout is not None
    assert json.loads(watching.stdout.readline())["path"] == str(secret)
    os.kill(session.pid, signal.SIGKILL)
    session.communicate(timeout=60)
    assert watching.communicate(timeout=60)[0] == b""
    assert [line["path"] for line in guarded.denials(as_root, "killed")] == [str(secret)]


@AS_A_USER
def test_the_last_session_is_meant_also_where_nothing_was_denied(paddock: Paddock) -> None:
    """An older session's denials are named, and not shown as if they were the last one's."""
    need("landlock")
    lookup = "import socket; socket.create_connection(('refused.example', 443))"
    assert paddock.run("--session=older", "--net=proxy", "--", "/usr/bin/python3", "-c", lookup).returncode == 1
    assert "refused.example" in paddock.call("denials").stdout
    assert paddock.run("--session=newer", "--", "true").returncode == 0
    shown = paddock.call("denials").stdout
    assert shown.startswith("no denial was recorded in the last session, newer\n")
    assert shown.endswith("  an earlier session had some: paddock denials older\n")
    assert paddock.call("denials", "--json").stdout == ""
    assert "refused.example" in paddock.call("denials", "older").stdout
