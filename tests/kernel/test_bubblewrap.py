"""The bubblewrap backend: everyday use, what it keeps apart. The promises are tried elsewhere."""

import json
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import paddock as paddocks
from tests.support.features import need
from tests.support.identity import AS_A_USER, Who
from tests.support.install import Installed
from tests.support.paddock import BACKEND, PATIENCE, Paddock, below, content, program
from tests.support.paddock import run_in_bubblewrap as run
from tests.support.paddock import shell_in_bubblewrap as shell
from tests.support.repository import Repo


@pytest.fixture
def paddock(who: Who, installed: Installed, place: Path) -> Iterator[Paddock]:
    """The installed command with a linked worktree; nothing of a session may be left."""
    need("bubblewrap")
    made = paddocks.make(who, installed, place)
    yield made
    assert made.left() == []


# Everyday use


@AS_A_USER
def test_everyday_commands(paddock: Paddock) -> None:
    """Files, pipes, git, an interpreter, new terminals, temporary files, shared memory; the caller's own streams."""
    line = """
        echo words > new; cat new | tr a-z A-Z; mkdir -p a/b; cp new a/b; mv a c; ls c/b; rm -r c
        git log --oneline | wc -l; git status --short
        p='import os, tempfile, multiprocessing as m; os.openpty(); tempfile.mkdtemp(); m.Lock(); print("py")'
        /usr/bin/python3 -I -c "$p"
        echo x > /tmp/x; echo x > /var/tmp/x; echo x > /dev/shm/x; echo x > /dev/null; head -c1 /dev/urandom | wc -c
        id -u; hostname; pwd
    """
    ended = run(paddock, "--", "sh", "-euc", f"{line}\ncat; echo error >&2", stdin="words\n")
    assert (ended.returncode, ended.stderr) == (0, "error\n"), ended
    *said, uid, host, cwd, last = ended.stdout.splitlines()
    assert last == "words"
    assert said == ["WORDS", "new", "1", "?? file", "?? new", "py", "1"]
    assert (int(uid), host, cwd) == (paddock.who.uid, os.uname().nodename, str(paddock.worktree))
    assert (paddock.worktree / "new").read_text() == "words\n"


@AS_A_USER
def test_it_is_named_and_nothing_else_is_used(paddock: Paddock) -> None:
    """The report shows bubblewrap and the filter, no Landlock, and every promise held."""
    report = paddock.who.home / "report.json"
    assert run(paddock, "--report", str(report), "--", "true").returncode == 0
    said = json.loads(report.read_text())
    assert said["backend"] == "bubblewrap"
    assert {"bubblewrap", "seccomp", "capabilities"} <= {layer["layer"] for layer in said["layers"]}
    assert "landlock" not in {layer["layer"] for layer in said["layers"]}
    assert {promise["verdict"] for promise in said["promises"]} == {"held"}


def test_statuses_pass_through(user_paddock: Paddock) -> None:
    """Also those that bubblewrap or Paddock could have meant, and nothing is said about them; a death by signal is 128
    and the number, as a shell says it; 126 and 127 come with the reason when it only shows inside.
    """
    need("bubblewrap")
    paddock = user_paddock
    for status in (0, 3, 125, 127):
        ended = run(paddock, "--", "sh", "-c", f"exit {status}")
        assert (ended.returncode, ended.stderr) == (status, "")
    for number in (signal.SIGTERM, signal.SIGKILL):
        assert run(paddock, "--", "sh", "-c", f"kill -{number.value} $$").returncode == 128 + number
    script = paddock.worktree / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    assert paddock.refused("run", *BACKEND, "--", "./script", status=127).reference == "command-not-found"
    script.write_bytes(b"\x7fELF")
    assert paddock.refused("run", *BACKEND, "--", "./script", status=126).reference == "command-not-executable"


@AS_A_USER
def test_a_worktree_in_tmp(who: Who, installed: Installed) -> None:
    """It is shown in the jail's own /tmp, and nothing beside it."""
    need("bubblewrap")
    made = who.run(["mktemp", "-d", "/tmp/paddock-worktree-XXXXXX"]).stdout.strip()
    try:
        paddock = paddocks.make(who, installed, Path(made))
        (paddock.place / "beside").touch()
        assert shell(paddock, f"echo words > new; ls {made}") == "main\none\n"
        assert (paddock.worktree / "new").read_text() == "words\n"
    finally:
        who.run(["rm", "-rf", made])


@AS_A_USER
def test_names_of_every_kind(paddock: Paddock) -> None:
    """A newline, spaces, a backslash, bytes that are no UTF-8, in a granted path and in a protected one."""
    name = os.fsdecode(b"a\n b\\040\t\xff--bind")
    granted = paddock.place / name
    granted.mkdir()
    (granted / "file").write_text("words\n")
    inside = paddock.worktree / name
    inside.mkdir()
    (inside / "file").write_text("words\n")
    paddock.who.give(paddock.place)
    line = 'cat "$0/file" "$1/file"; ! echo x > "$0/file"; ! cat "$2/file"'
    ended = run(
        paddock,
        "--ro",
        str(granted),
        "--deny",
        str(inside),
        "--",
        "sh",
        "-c",
        line,
        *map(str, (granted,) * 2),
        str(inside),
    )
    assert ended.stdout == "words\nwords\n"
    assert "Read-only" in ended.stderr
    assert (inside / "file").read_text() == "words\n"


# What is kept apart


WRITES = ("/new", "/etc/new", "/usr/new", "/dev/new", "/proc/new", "/var/new", "/home/new", "/no/new")


def test_writes_outside_fail_visibly(paddock: Paddock) -> None:
    """None is swallowed by a root that is thrown away; root cannot change what its own devices look like."""
    lines = ("chmod 600 /dev/null", "chown 12:12 /dev/tty", "chmod 700 /usr/bin", "touch /etc/passwd")
    tries = {f"write {path}": f"echo x > {path}" for path in WRITES} | {line: line for line in lines}
    script = "\n".join(f"({line}) 2>/dev/null && echo '{name}'" for name, line in tries.items())
    ended = run(paddock, "--", "sh", "-c", f"{script}\necho over")
    assert (ended.returncode, ended.stdout) == (0, "over\n"), ended
    assert [path for path in WRITES if os.path.lexists(path)] == []
    assert stat.S_IMODE(Path("/dev/null").stat().st_mode) == 0o666


def test_kernel_settings_cannot_be_written(paddock: Paddock) -> None:
    """Not by root either, whose files they are."""
    code = """
        import errno, json, os
        met = {}
        for path in ("sys/kernel/core_pattern", "sys/kernel/hostname", "sysrq-trigger", "self/oom_score_adj"):
            try:
                os.close(os.open(f"/proc/{path}", os.O_WRONLY))
                met[path] = "ok"
            except FileNotFoundError:
                continue  # not with every kernel
            except OSError as error:
                met[path] = errno.errorcode[error.errno]
        print(json.dumps(met), os.path.exists("/proc/sys/kernel/core_pattern"))
    """
    said, there = run(paddock, "--", *program(code)).stdout.rsplit(" ", 1)
    assert set(json.loads(said).values()) <= {"EROFS", "EACCES"}
    assert there == "True\n"


@AS_A_USER
def test_the_environment_is_nobody_elses(paddock: Paddock) -> None:
    """Neither what the caller has nor what the command is given can be read from bubblewrap, inside or outside."""
    secret = "a-secret-of-the-caller"
    env = {"SECRET": secret, "PASSED": "passed-on"}
    code = """
        import os
        try:
            found = open("/proc/1/environ", "rb").read()
        except PermissionError:
            found = "closed"
        print(found, os.environ.get("SECRET"), os.environ["PASSED"])
        print("ready", flush=True)
        input()
    """
    words = paddock.words("run", *BACKEND, "--env", "PASSED", "--", *program(code))
    with paddock.who.start(words, cwd=paddock.worktree, env=env) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"closed None passed-on\n"
            assert process.stdout.readline() == b"ready\n"
            seen = [(pid, content(pid, "cmdline"), content(pid, "environ")) for pid in below(process.pid)]
            wrapped = [(pid, line, environment) for pid, line, environment in seen if line.startswith(b"bwrap\0")]
            assert len(wrapped) == 1
            for _, line, environment in wrapped:
                assert environment == b""
                assert str(paddock.worktree).encode() not in line
            for _, line, _ in seen:
                assert secret.encode() not in line
        finally:
            process.stdin.write(b"\n")
            process.stdin.close()
            assert process.wait(PATIENCE) == 0


def test_the_filter_cannot_be_walked_around(paddock: Paddock) -> None:
    """The first process of the namespace runs under it too, with the same limits, and cannot be traced."""
    code = """
        import ctypes, os, re
        assert ctypes.CDLL(None).ptrace(16, 1, None, None) == -1  # PTRACE_ATTACH
        for pid in sorted(filter(str.isdigit, os.listdir("/proc")), key=int):
            text = open(f"/proc/{pid}/status").read()
            print(pid, *re.findall(r"(?:Seccomp|NoNewPrivs|CapEff|CapBnd|CapPrm):\\s*(\\w+)", text))
            print(*re.findall(r"Max open files\\s+(\\d+)\\s+(\\d+)", open(f"/proc/{pid}/limits").read()))
    """
    said = run(paddock, "--limit", "open_files=123", "--", *program(code)).stdout.splitlines()
    zero = "0000000000000000"
    assert said[0] == f"1 {zero} {zero} {zero} 1 2"
    assert said[2].split()[1:] == said[0].split()[1:]
    assert said[1] == said[3] == "('123', '123')"
    assert len(said) == 4


def test_orphans_are_reaped(user_paddock: Paddock) -> None:
    """What loses its parent and ends does not stay as a zombie."""
    code = """
        import os, time
        reading, writing = os.pipe()
        if os.fork() == 0:
            if os.fork() == 0:
                os.read(os.pipe()[0], 0)
                os._exit(0)  # the pipe's last holder: its end is what the reader sees
            os._exit(0)
        os.wait()
        os.close(writing)
        os.read(reading, 1)
        deadline = time.monotonic() + 20
        while len(list(filter(str.isdigit, os.listdir("/proc")))) > 2 and time.monotonic() < deadline:
            os.sched_yield()
        print(sorted(filter(str.isdigit, os.listdir("/proc")), key=int))
    """
    assert run(user_paddock, "--", *program(code)).stdout == "['1', '2']\n"


@AS_A_USER
def test_exceptions_in_the_worktree(repo: Repo, installed: Installed) -> None:
    """A submodule that is not granted is hidden, a denied path too, a hand-off file and the pointer are read-only."""
    need("bubblewrap")
    root = repo.one
    (root / "secret").mkdir()
    (root / "secret/file").write_text("secret\n")
    (root / "denied-file").write_text("secret\n")
    (root / ".envrc").write_text("before\n")
    (root / ".vscode").mkdir()
    (root / ".vscode/tasks.json").write_text("{}\n")
    repo.who.give(root)
    line = """
        bad() { "$@" && echo "BAD: $*"; }
        bad cat library/library.py; bad ls library; bad cat secret/file; bad cat denied-file; bad touch library
        bad cp denied-file .envrc; bad sh -c 'echo x > .envrc'; bad mv .vscode x; bad rm -f .git; bad chmod 777 .envrc
        bad mv secret x; bad rm -rf denied-file; bad chmod 777 denied-file; bad chmod 777 secret
        echo allowed > src/new && cat src/new
    """
    deny = [word for name in ("library", "secret", "denied-file") for word in ("--deny", root / name)]
    said = repo.who.run([installed.paddock, "run", *BACKEND, *deny, "--", "sh", "-c", line], cwd=root)
    assert said.stdout == "allowed\n", said
    assert (root / ".envrc").read_text() == "before\n"
    assert (root / ".vscode/tasks.json").exists()
    assert (root / "secret/file").read_text() == "secret\n"
