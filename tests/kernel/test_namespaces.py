"""How the jail's own view is built, from what, and what is said where it cannot be."""

import json
import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

from tests.support import jail as jails
from tests.support.identity import AS_A_USER
from tests.support.jail import Jail, filled

# What is there


def test_the_root_holds_what_is_granted_and_nothing_else(jail: Jail) -> None:
    """Everything on the way to a grant is an empty directory of the jail's own."""
    filled(jail, "secret")
    here, above, root = jail.attack(
        "result = [os.listdir(words[0]), os.listdir(words[1]), os.listdir('/')]", jail.worktree, jail.worktree.parent
    )
    assert here == []
    assert above == [jail.worktree.name]
    assert set(root) <= {"usr", "bin", "sbin", "lib", "lib64", "etc", "dev", "proc", "tmp", "var", *jail.worktree.parts}
    assert jail.attack("result = sorted(os.listdir('/etc'))") == ["ld.so.cache", "passwd"]


def test_the_root_cannot_be_written(jail: Jail) -> None:
    """Neither the jail's own tmpfs nor granted trees; the worktree, /tmp, /var/tmp and /dev/shm can."""
    code = "result = [attempt(os.mkdir, f'{p}/new') for p in words]"
    assert jail.attack(code, "/", "/etc", "/dev", "/var", "/usr", "/proc") == ["EROFS"] * 5 + ["ENOENT"]
    assert jail.attack(code, jail.worktree, "/tmp", "/var/tmp", "/dev/shm") == ["ok"] * 4
    assert (jail.worktree / "new").is_dir()


def test_temporary_directories_are_private(jail: Jail) -> None:
    """The host's files there are not seen, and nothing arrives on the host."""
    name = f"paddock-test-{os.getpid()}"
    host = Path("/tmp", name)
    host.touch()
    try:
        code = "result = [os.path.exists(w) for w in words]; open(words[0], 'w').write('inside')"
        assert jail.attack(code, host, f"/var/tmp/{name}", f"/dev/shm/{name}") == [False] * 3
        assert host.read_text() == ""
    finally:
        host.unlink()


def test_temporary_directories_have_one_bound(jail: Jail) -> None:
    """The limit `disk` counts /tmp, /var/tmp and /dev/shm together."""
    code = """
def fill(path):
    with open(path + "/fill", "wb", buffering=0) as file:
        for _ in range(int(words[0])):
            file.write(bytes(4096))
result = [attempt(fill, p) for p in ("/tmp", "/var/tmp", "/dev/shm")]
"""
    limits = [["disk", 1 << 20]]
    assert jail.attack(code, "60", limits=limits) == ["ok"] * 3
    assert jail.attack(code, "100", limits=limits) == ["ok", "ok", "ENOSPC"]
    assert jail.attack(code, "300", limits=limits)[0] == "ENOSPC"


def test_temporary_directories_have_a_bound_of_files_too(jail: Jail) -> None:
    """Empty files use no space on a tmpfs, but memory of the kernel."""
    code = """
def fill():
    for number in range(int(words[0])):
        os.mknod(f"/tmp/{number}")
result = attempt(fill)
"""
    limits = [["disk", 1 << 20]]
    assert jail.attack(code, "1000", limits=limits) == "ok"
    assert jail.attack(code, "4000", limits=limits) == "ENOSPC"


def test_devices_are_the_harmless_ones(jail: Jail) -> None:
    """They work, cannot be changed, and there are no others."""
    code = """
names = sorted(os.listdir("/dev"))
def use():
    assert open("/dev/urandom", "rb").read(8) and open("/dev/zero", "rb").read(2) == bytes(2)
    open("/dev/null", "w").write("x")
result = [names, attempt(use), attempt(os.chmod, "/dev/null", 0o777), attempt(os.utime, "/dev/zero"),
          attempt(open, "/dev/tty"), attempt(os.mknod, "/tmp/sda", 0o60600, os.makedev(8, 0))]
"""
    names, used, changed, touched, terminal, made = jail.attack(code)
    standard = "fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero"
    assert names == standard.split()  # no console: there is no terminal
    assert used == "ok"
    assert (changed, touched) == ("EROFS", "EROFS")
    assert terminal == "ENXIO"
    assert made == "EPERM"


def test_a_granted_device_is_added(jail: Jail) -> None:
    """Beside the standard ones, by the host's node."""
    code = "result = [os.path.exists('/dev/kmsg'), os.path.exists('/dev/null')]"
    assert jail.attack(code) == [False, True]
    assert jail.attack(code, grants=[["/dev/kmsg", "rwi", "test"]]) == [True, True]


def test_links_lead_to_their_grants(jail: Jail) -> None:
    """A name that is a symbolic link on the host is one in the jail."""
    real = filled(jail, "real")
    link = jail.outside / "link"
    spec = {"grants": [[real, "r", "test"]], "links": [[link, "real"]]}
    assert jail.attack("result = open(words[0]).read()", link / "file", **spec) == "content\n"
    assert jail.attack("result = os.readlink(words[0])", link, **spec) == "real"


def test_the_whole_file_system_for_reading(jail: Jail) -> None:
    """With `/` granted all is seen, nothing can be written, /tmp is private and what is denied is hidden."""
    shown, hidden = filled(jail, "shown"), filled(jail, "hidden")
    code = """
result = [os.listdir(words[0]), attempt(os.listdir, words[1]), attempt(os.mkdir, words[0] + "/new"),
          attempt(os.mkdir, words[2] + "/new"), attempt(os.mkdir, "/tmp/new"), os.path.exists("/proc/self/status")]
"""
    # The second: where all of this lies below the private /tmp, which covers the host's.
    grants = [["/", "rx", "test"], [jail.outside, "r", "test"]]
    seen, secret, written, own, temporary, proc = jail.attack(
        code, shown, hidden, jail.worktree, grants=grants, denied=[[hidden, "test"]]
    )
    assert seen == ["file"]
    assert secret == "EACCES"
    assert (written, own, temporary, proc) == ("EROFS", "ok", "ok", True)
    assert not (shown / "new").exists()


# While it is built


def test_nothing_is_made_on_the_disk(jail: Jail) -> None:
    """Paths that do not exist are skipped and reported; the worktree holds no file of ours."""
    filled(jail, "a", inside=True)
    missing = jail.worktree / "missing"
    before = sorted(str(p) for p in jail.worktree.parent.rglob("*") if p.is_relative_to(jail.worktree))
    facts = jail.facts(
        grants=[[jail.outside / "gone", "r", "test"]],
        handoff=[[missing, "protect"], [jail.worktree / "a/missing", "protect"]],
        denied=[[jail.worktree / "absent", "test"]],
    )
    assert sorted(str(p) for p in jail.worktree.rglob("*")) == [p for p in before if p != str(jail.worktree)]
    skipped = [detail.partition(":")[0] for _, detail in facts["skipped"]]
    assert {str(missing), str(jail.outside / "gone"), str(jail.worktree / "absent")} <= set(skipped)


def test_a_worktree_that_disappeared_is_a_refusal(jail: Jail) -> None:
    """There is nothing to start in."""
    words = jail.words(["true"], worktree=str(jail.outside / "gone"))
    ended = jail.who.run(words)
    assert ended.returncode == 125
    assert "[worktree-missing]" in ended.stderr


FLIP = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
names = [word.encode() for word in sys.argv[1:]]
print("ready", flush=True)
while True:
    for at in range(0, len(names), 2):
        libc.renameat2(-100, names[at], -100, names[at + 1], 2)  # RENAME_EXCHANGE: the name always exists
"""


@AS_A_USER
def test_directories_that_become_links_meanwhile(jail: Jail) -> None:
    """Somebody exchanges a directory for a link to a secret while jails start: the secret is never shown."""
    filled(jail, "secret")
    (jail.outside / "secret/file").write_text("secret")
    flip = filled(jail, "flip")
    (jail.outside / "other").symlink_to(jail.outside / "secret")
    inner = filled(jail, "inner", inside=True)
    (jail.worktree / "inner2").symlink_to(jail.outside / "secret")
    jail.who.give(jail.outside)
    jail.who.give(jail.worktree)
    code = """
def read(path):
    try:
        return open(path).read()
    except OSError as error:
        return errno.errorcode[error.errno]
result = [read(words[0]), read(words[1])]
"""
    names = map(str, (flip, jail.outside / "other", inner, jail.worktree / "inner2"))
    with subprocess.Popen([sys.executable, "-c", FLIP, *names], stdout=subprocess.PIPE) as flipper:
        assert flipper.stdout is not None
        flipper.stdout.readline()
        seen = set()
        for _ in range(15):  # what takes a name twice is shown the secret in every fourth of them
            seen |= set(
                jail.attack(
                    code,
                    flip / "file",
                    inner / "file",
                    grants=[[flip, "r", "test"]],
                    read_only=[[inner / "file", "test"]],
                )
            )
        flipper.kill()
    assert "secret" not in seen
    assert "content\n" in seen


def test_the_callers_umask_and_host_name_stay(jail: Jail) -> None:
    """Building the view leaves no trace in what the command inherits."""
    code = "result = [oct(os.umask(0)), socket.gethostname()]"
    assert jail.attack(code) == ["0o22", socket.gethostname()]


def test_two_jails_in_one_worktree(jail: Jail) -> None:
    """They share the files and nothing else: neither sees the other's processes, mounts or sockets."""
    code = """
with socket.socket(socket.AF_UNIX) as server, socket.socket() as second:
    server.bind("\\0paddock-test")
    second.bind(("127.0.0.1", 4242))
    open(words[0], "w").close()
    while not os.path.exists(words[1]):
        os.sched_yield()
    result = len([n for n in os.listdir("/proc") if n.isdigit()])
"""
    program = f"{jails.ATTEMPT}\nwords = sys.argv[1:]\n{code}\nprint(json.dumps(result))\n"
    argv = [str(jail.python), "-I", "-S", "-c", program]
    running = [
        jail.who.start(jail.words([*argv, here, there]), cwd=jail.worktree)
        for here, there in (("one", "two"), ("two", "one"))
    ]
    for process in running:
        said, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert json.loads(said) == 2


# Poorer hosts


def inside_unshare(jail: Jail, preparation: str, words: list[str]) -> "subprocess.CompletedProcess[str]":
    """Runs `words` in a user and mount namespace where `preparation` (a shell command) was done first."""
    script = f"{preparation} && exec {shlex.join(words)}"
    return jail.who.run(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script], cwd=jail.worktree)


def test_a_masked_proc_is_said_and_kept_read_only(jail: Jail) -> None:
    """In a container with parts of /proc covered no fresh one can be mounted; the row is reported as not held."""
    report = jail.outside / "report"
    probe = "test -e /proc/self/status && ! echo x 2>/dev/null > /proc/self/comm"
    words = jail.words(["sh", "-c", probe], report=report)
    ended = inside_unshare(jail, "mount --bind /proc/sys /proc/sys", words)
    assert ended.returncode == 0, ended.stderr
    verdicts = {row: verdict for row, verdict, _ in json.loads(report.read_text())}
    assert verdicts["visibility"] == "not held"
    assert verdicts["metadata"] == verdicts["survival"] == "held"
    assert jail.facts()["visibility"][0][0] == "held"


def test_without_user_namespaces_the_refusal_says_so(jail: Jail) -> None:
    """Where the system allows none, nothing is started."""
    words = jail.words(["touch", str(jail.worktree / "started")])
    ended = inside_unshare(jail, "echo 0 > /proc/sys/user/max_user_namespaces", words)
    assert ended.returncode == 125
    assert "[userns-unavailable]" in ended.stderr
    assert not (jail.worktree / "started").exists()


def test_what_is_held_is_reported(jail: Jail) -> None:
    """Every row that this layer answers for."""
    facts = jail.facts()
    for row in ("handoff", "metadata", "visibility", "survival", "unix-sockets", "terminals", "network"):
        assert [verdict for verdict, _ in facts[row]] == ["held"]
    assert "network" not in jail.facts(net="open")
    assert "skipped" not in facts
