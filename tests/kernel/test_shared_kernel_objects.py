"""What a jail could share with others through the kernel: queues, leases, descriptors, control groups, hard links."""

import json
import os
import resource
import subprocess
from pathlib import Path

import pytest

from launcher.jail import processes
from policy import promises
from tests.kernel.conftest import ROOT_ONCE
from tests.support.identity import AS_A_USER
from tests.support.install import base_python
from tests.support.programs.scene import Scene


def answers(scene: Scene, code: str, *words: str | int | Path, options: tuple[str | Path, ...] = ()) -> list[object]:
    """What Python `code` in the jail leaves in `result`; it has `attempt` (ok or the errno's name) and `words`."""
    prelude = """
import ctypes, errno, fcntl, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
words = sys.argv[1:]
def attempt(call, *arguments):
    try:
        answer = call(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
    return errno.errorcode[ctypes.get_errno()] if answer == -1 else "ok"
"""
    program = f"{prelude}{code}\nprint(json.dumps(result))\n"
    ended = scene.run([str(base_python()), "-I", "-S", "-c", program, *map(str, words)], *options)
    assert ended.returncode == 0, ended.stderr
    found: list[object] = json.loads(ended.stdout)
    return found


QUEUES = """
libc.mq_open.restype = ctypes.c_int
name = words[0].encode()
def opened(name, flags):
    return libc.mq_open(name, flags, 0o600, None)
queue = opened(name, os.O_CREAT | os.O_RDWR)
result = [attempt(opened, name, os.O_CREAT | os.O_RDWR)]
if queue >= 0:
    result += [attempt(libc.mq_send, queue, b"hello", 5, 0), os.listdir("/dev/mqueue") == [words[0][1:]]]
    result += [attempt(libc.mq_unlink, name), attempt(libc.mq_unlink, words[1].encode())]
"""


@AS_A_USER
def test_posix_queues_are_the_jails_own(scene: Scene) -> None:
    """They can be made and used, and those of the machine are not there; without an IPC namespace they are closed."""
    libc = __import__("ctypes").CDLL(None, use_errno=True)
    outside = f"/paddock-outside-{os.getpid()}-{os.urandom(4).hex()}"
    queue = libc.mq_open(outside.encode(), os.O_CREAT | os.O_RDWR, 0o666, None)
    assert queue >= 0
    try:
        found = answers(scene, QUEUES, "/paddock-inside", outside)
    finally:
        assert libc.mq_unlink(outside.encode()) == 0
        os.close(queue)
    assert found == (["ok", "ok", True, "ok", "ENOENT"] if promises.has_mounts(scene.backend) else ["EPERM"])


LEASE = """
fd = os.open(words[0], os.O_RDONLY)
result = [attempt(fcntl.fcntl, fd, fcntl.F_SETLEASE, kind) for kind in (fcntl.F_RDLCK, fcntl.F_WRLCK)]
result += [attempt(libc.fcntl, fd, 1040, fcntl.F_RDLCK), attempt(libc.fcntl, fd, (1 << 32) + 1024, fcntl.F_RDLCK)]
own = os.open("own", os.O_CREAT | os.O_RDWR)
result += [attempt(fcntl.flock, own, fcntl.LOCK_EX), attempt(fcntl.lockf, own, fcntl.LOCK_EX),
           attempt(fcntl.fcntl, own, fcntl.F_SETFL, os.O_NONBLOCK), attempt(fcntl.fcntl, own, fcntl.F_DUPFD, 10)]
"""


@ROOT_ONCE
def test_no_lease_is_had_that_would_stop_writers_outside(scene: Scene) -> None:
    """A lease on a file that may only be read makes others wait for seconds; locks and the other commands work."""
    data = scene.place / "data"
    data.write_text("x")
    scene.own(data)
    found = answers(scene, LEASE, data, options=("--ro", data))
    assert found == ["EPERM"] * 4 + ["ok"] * 4


def test_limits_of_own_children_can_be_changed(scene_of_user: Scene) -> None:
    """prlimit(1) on a child, and in front of a command; without a PID namespace only the latter."""
    script = 'sleep 60 & prlimit --pid $! --nofile=64; echo $?; kill $!; prlimit --nofile=32 sh -c "ulimit -n"'
    child, own = scene_of_user.run(["sh", "-c", script]).stdout.split()
    assert (child == "0", own) == (promises.has_mounts(scene_of_user.backend), "32")


SIGNALS = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {40})
made = 0
while made < int(words[0]) and libc.timer_create(0, None, ctypes.byref(ctypes.c_void_p())) == 0:
    made += 1
context = ctypes.c_ulong()
result = [made, attempt(libc.syscall, {"x86_64": 206}.get(os.uname().machine, 0), 1, ctypes.byref(context))]
"""


@AS_A_USER
def test_a_jail_leaves_signals_and_requests_to_others(scene: Scene) -> None:
    """A user's signals in queues and timers are one number, and the machine's asynchronous requests another."""
    most = resource.getrlimit(resource.RLIMIT_SIGPENDING)[0] // 4
    made, asynchronous = answers(scene, SIGNALS, most + 100)
    assert isinstance(made, int)
    assert made <= most
    assert made or not promises.has_mounts(scene.backend), "without a user namespace others' count, too"
    assert asynchronous == "ENOSYS"


def test_core_dumps_stay_off_for_those_who_switch_them_off(scene_of_user: Scene) -> None:
    """`ulimit -c 0` succeeds, as before a key is handled, and leaves the value at which the kernel starts no helper."""
    script = (
        "ulimit -c 0 && prlimit --core=0 sh -c 'prlimit --core=0 --pid $$; prlimit --core --noheadings -o SOFT,HARD'"
    )
    ended = scene_of_user.run(["sh", "-c", script])
    assert ended.stdout.split() == ["1", "1"], ended


@AS_A_USER
def test_no_process_of_paddocks_keeps_what_the_caller_left_open(scene: Scene) -> None:
    """But the launcher, which is what the caller started: a pipe's other end is not held by the jail's init."""
    reading, writing = os.pipe()
    words = ["sh", "-c", "echo ready; exec cat"]
    process = scene.start(
        words, "--session", "holding", stdin=-1, stdout=-1, stderr=subprocess.DEVNULL, pass_fds=(writing,)
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        # The init lets go when it has started the command, so it may still be at it; it serves others afterwards.
        further = [str(scene.installed.paddock), "exec", "holding", "--", "true"]
        asked = scene.who.run(further, cwd=scene.area, env={})
        assert asked.returncode == 0, asked.stderr
        inode = f"pipe:[{os.fstat(writing).st_ino}]"
        assert [pid for pid in processes.descendants(process.pid) if inode in _descriptors(pid)] == []
        assert inode in _descriptors(process.pid)
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()
        os.close(reading)
        os.close(writing)


def _descriptors(pid: int) -> set[str]:
    found = set()
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            found.add(os.readlink(entry))
    except (FileNotFoundError, ProcessLookupError):  # it ended about now, or this one was closed
        return found
    return found


@pytest.mark.parametrize("scene", promises.BACKENDS[:1], indirect=True)
def test_control_groups_do_not_tell_the_names_of_sessions(scene: Scene) -> None:
    """Another jail may see the groups, but what the user called his session is not in their names."""
    name = f"named-{os.urandom(4).hex()}"
    words = ["sh", "-c", "echo ready; exec cat"]
    options = ("--session", name, "--limit", "memory=2G")
    process = scene.start(words, *options, stdin=-1, stdout=-1, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        listed = scene.run(["sh", "-c", "find /sys/fs/cgroup -type d"])
        assert name not in listed.stdout
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()


NESTED = """
make() { git init -q -b main "$1" && git -C "$1" -c user.name=n -c user.email=e@x commit -q --allow-empty -m "$2"; }
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=protocol.file.allow GIT_CONFIG_VALUE_0=always
make inner "inner: First." && make outer "outer: First."
git -C outer submodule --quiet add "$PWD/inner" inner
git -C outer -c user.name=n -c user.email=e@x commit -qm "outer: Second."
make super "super: First." && git -C super submodule --quiet add "$PWD/outer" outer
git -C super -c user.name=n -c user.email=e@x commit -qm "super: Second."
git -C super submodule --quiet update --init --recursive
"""


@AS_A_USER
def test_a_granted_submodule_inside_a_hidden_one_has_its_history(scene: Scene) -> None:
    """Its git directory lies in that of the hidden one; nothing else of that can be read."""
    made = scene.who.run(["sh", "-euc", NESTED], cwd=scene.place)
    assert made.returncode == 0, made.stderr
    script = """git -C outer/inner log --format=%s; git -C outer/inner status --short
    cat .git/modules/outer/HEAD .git/modules/outer/modules/inner/HEAD; ls .git/modules/outer/objects"""
    options = ["--git", "readonly", "--submodule", "outer/inner"]
    if scene.backend == promises.GUARD:
        options.append("--freeze-root")
    ended = scene.run(["sh", "-c", script], *options, cwd=scene.place / "super")
    assert ended.stdout.split("\n")[0] == "inner: First.", ended.stderr
    assert ended.stdout.count("ref: refs/heads/main") <= 1
    assert "objects" in ended.stderr
    assert "modules/outer/HEAD" in ended.stderr


def test_a_protected_file_with_another_name_is_warned_of(scene_of_user: Scene) -> None:
    """Rules are about names: what is denied under one is open under another; a file with one name is not spoken of."""
    scene = scene_of_user
    denied, single = scene.place / "denied", scene.place / "single"
    denied.write_text("secret\n")
    single.write_text("secret\n")
    scene.own(scene.place)
    os.link(denied, scene.area / "linked")
    options = ("--ro", scene.place, "--deny", denied, "--deny", single)
    ended = scene.run(["sh", "-c", f"cat {denied} {single}; cat linked"], *options)
    assert ended.stdout == "secret\n"
    (line,) = (line for line in ended.stderr.splitlines() if "hard links" in line)
    assert f"{denied} is protected under this name, and has 1 more" in line
