"""Modes, owners, times and attributes where the guard holds them: inside as without a jail, outside not at all."""

import json
import os
import stat
import subprocess
from pathlib import Path

import pytest

from tests.support import guarded
from tests.support.features import need
from tests.support.guarded import Guarded
from tests.support.identity import AS_A_USER, Who
from tests.support.install import Installed
from tests.support.repository import Repo


@pytest.fixture
def jail(who: Who, installed: Installed, repo: Repo, place: Path) -> Guarded:
    """A jail of the backend landlock+guard."""
    need("landlock")
    return guarded.make(who, installed, repo, place)


def plant(jail: Guarded, here: Path) -> Path:
    """A file, a directory, links to both and a hard link, in the new directory `here`."""
    here.mkdir()
    for name in ("file", "dir/inner"):
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text("content")
    (here / "link").symlink_to("file")
    (here / "dirlink").symlink_to("dir")
    (here / "loop").symlink_to("loop")
    os.link(here / "file", here / "hard")
    (here / "mine").write_text("content")
    jail.who.give(here)
    return here


def state(here: Path) -> dict[str, object]:
    """Mode, owner, times, attributes of everything below `here`. Not the last access: looking changes it."""
    found: dict[str, object] = {}
    for path in (here, *sorted(here.rglob("*"))):
        info = path.lstat()
        attributes = () if path.is_symlink() else tuple((n, os.getxattr(path, n)) for n in sorted(os.listxattr(path)))
        found[str(path)] = (stat.filemode(info.st_mode), info.st_uid, info.st_gid, attributes,
                            info.st_mtime_ns, info.st_ctime_ns)  # fmt: skip
    return found


# Each call by all the ways that the kernel knows; `here` is the directory that is meant. What is compared with a run
# outside of any jail is every result and, afterwards, every mode, owner, time and attribute.
EVERY_CALL = """
here = sys.argv[1]
os.chdir(here)
times = (ctypes.c_long * 4)(1000, 5, 2000, 6)
bad_times = (ctypes.c_long * 4)(1000, 5, 2000, 2_000_000)
omit = (ctypes.c_long * 4)(0, (1 << 30) - 2, 0, (1 << 30) - 2)
now_and_omit = (ctypes.c_long * 4)(0, (1 << 30) - 1, 0, (1 << 30) - 2)
whole = (ctypes.c_long * 2)(3000, 4000)
uid, gid = os.getuid(), os.getgid()
there = os.open(here, os.O_RDONLY | os.O_DIRECTORY)
path_only = os.open("file", os.O_PATH)
link_only = os.open("link", os.O_PATH | os.O_NOFOLLOW)
opened = os.open("file", os.O_RDWR)
reading = os.open("file", os.O_RDONLY)
inner = os.open("dir", os.O_PATH)
gone = os.open("gone", os.O_RDWR | os.O_CREAT)
os.unlink("gone")
unnamed = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600)
memory = os.memfd_create("memory")
sock = socket.socket(socket.AF_UNIX)
EMPTY, NOFOLLOW, CWD = 0x1000, 0x100, -100
calls = []
def call(name, *arguments):
    if name in NUMBERS:
        shown = ", ".join(repr(a).replace(here, "HERE")[:40] for a in arguments if not isinstance(a, ctypes.Array))
        calls.append([f"{name}({shown})".replace(str(os.getpid()), "PID"), said(syscall, name, *arguments)])
def b(text):
    return os.fsencode(text)
for mode in (0o640, 0o755, 0o571, 0o100644, 0o1777):
    for path in ("file", "./dir/../file", "link", "hard", here + "/file", "dir", "dirlink/inner", ".", "dir/",
                 "/proc/self/cwd/file", "/proc/thread-self/cwd/file", "/proc/self/root" + here + "/file",
                 f"/proc/self/fd/{opened}", f"/proc/{os.getpid()}/fd/{path_only}", f"/dev/fd/{reading}",
                 f"/proc/self/fd/{there}/file", f"/proc/self/task/{os.getpid()}/fd/{inner}/inner",
                 f"/proc/self/fd/{gone}", f"/proc/self/fd/{unnamed}", "missing", "file/", "file/x", "loop", "loop/x",
                 "", "x" * 300, "x/" * 3000):
        call("chmod", b(path), mode)
        call("fchmodat", CWD, b(path), mode)
    for fd in (opened, reading, gone, unnamed, memory, there, path_only, link_only, 999, -1):
        call("fchmod", fd, mode)
        call("fchmodat2", fd, b"", mode, EMPTY)
        call("fchmodat2", fd, b"", mode, 0)
    for dirfd, path, flags in ((there, "file", 0), (there, "link", 0), (there, "link", NOFOLLOW), (CWD, "", EMPTY),
                               (inner, "inner", 0), (inner, "../file", 0), (999, "file", 0), (999, here + "/file", 0),
                               (opened, "file", 0), (there, "file", 0x10000), (there, "file", EMPTY),
                               (there, f"/proc/self/fd/{link_only}", 0)):
        call("fchmodat2", dirfd, b(path), mode, flags)
        call("fchownat", dirfd, b(path), uid, gid, flags)
        call("fchownat", dirfd, b(path), 0xFFFFFFFF, gid, flags)
        call("utimensat", dirfd, b(path), times, flags)
        call("utimensat", dirfd, b(path), omit, flags)
call("chmod", None, 0o600)
call("chmod", 1, 0o600)
call("chmod", 0x7FFFFFFFF000, 0o600)
call("chmod", -1, 0o600)
for path in ("file", "link", "dir", "missing", ""):
    call("chown", b(path), uid, gid)
    call("lchown", b(path), uid, gid)
    call("chown", b(path), 4242, -1)
    call("chown", b(path), -1, -1)
    call("utime", b(path), whole)
    call("utimes", b(path), times)
    call("utimes", b(path), bad_times)
    call("futimesat", CWD, b(path), times)
    call("futimesat", there, b(path), times)
    for at in (times, omit, bad_times, whole):
        call("utimensat", there, b(path), times, 0)
        call("utimensat", there, b(path), times, NOFOLLOW)
for fd in (opened, reading, gone, unnamed, there, path_only, link_only, 999, -1):
    call("fchown", fd, uid, gid)
    call("utimensat", fd, None, times, 0)
    call("utimensat", fd, None, times, NOFOLLOW)
    call("utimensat", fd, b"", times, EMPTY)
    call("futimesat", fd, None, times)
    call("fsetxattr", fd, b"user.fd", b"value", 5, 0)
    call("fremovexattr", fd, b"user.fd")
    call("fremovexattr", fd, b"user.fd")
call("utimensat", CWD, None, times, 0)
call("utimensat", there, b"missing", omit, 0)
call("utimensat", there, b"file", 1, 0)
call("utimensat", there, b"file", now_and_omit, 0x10000)
for path in ("file", "link", "dir", "missing", "", "file/"):
    for name in ("setxattr", "lsetxattr"):
        call(name, b(path), b"user.one", b"value", 5, 0)
        call(name, b(path), b"user.one", b"value", 5, 1)
        call(name, b(path), b"user.two", b"value", 5, 2)
        call(name, b(path), b"user.none", None, 0, 0)
        call(name, b(path), b"user.three", b"v" * 100, 100, 0)
        call(name, b(path), b"user.three", b"v" * 100, 100, 77)
        call(name, b(path), b"user.big", b"v" * 70000, 70000, 0)
        call(name, b(path), b"user.huge", b"v", -1, 0)
        call(name, b(path), b"user." + b"n" * 300, b"v", 1, 0)
        call(name, b(path), b"", b"v", 1, 0)
        call(name, b(path), b"strange", b"v", 1, 0)
        call(name, b(path), b"trusted.x", b"v", 1, 0)
        call(name, b(path), b"user.bad", 1, 5, 0)
    for name in ("removexattr", "lremovexattr"):
        call(name, b(path), b"user.three")
        call(name, b(path), b"user.three")
        call(name, b(path), b"")
result = calls
"""

# chown(2) and setuid bits depend on capabilities that no jail has; what remains is compared.
WITHOUT_CAPABILITIES = """
header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
assert libc.capset(header, data) == 0
"""


def test_inside_every_call_answers_as_without_a_jail(jail: Guarded) -> None:
    """Every mediated call, by all kinds of paths and descriptors and with wrong arguments, has the kernel's result."""
    plain, held = plant(jail, jail.inside / "plain"), plant(jail, jail.inside / "held")
    expected = jail.plainly(WITHOUT_CAPABILITIES + EVERY_CALL, plain, cwd=plain)
    found = jail.tried(EVERY_CALL, held)
    assert len(expected) > 900
    differences = [f"{one}, guarded {two}" for one, two in zip(expected, found, strict=True) if one != two]
    assert not differences, "\n".join(differences)
    before, after = (
        {path.removeprefix(str(here)): facts[:4] for path, facts in state(here).items()}  # type: ignore[index]
        for here in (plain, held)
    )
    assert before == after


OUTSIDE = """
target, trial = sys.argv[1:3]
times = (ctypes.c_long * 4)(1000, 5, 2000, 6)
uid, gid = os.getuid(), os.getgid()
def b(text):
    return os.fsencode(text)
name = os.path.basename(target)
os.symlink(target, "to-it")
os.symlink("to-it", "to-the-link")
os.symlink(os.path.dirname(target), "to-its-directory")
os.symlink(f"/proc/self/root{target}", "by-the-root")
EMPTY, NOFOLLOW, CWD = 0x1000, 0x100, -100
path_only = os.open(target, os.O_PATH)
above = os.open(os.path.dirname(target), os.O_PATH)
deep = os.path.relpath(target)
paths = [target, deep, "to-it", "to-the-link", f"to-its-directory/{name}", "by-the-root", f"/proc/self/root{target}",
         f"/proc/self/cwd/{deep}", f"/proc/self/fd/{path_only}", f"/dev/fd/{path_only}",
         f"/proc/self/fd/{above}/{name}", f"/proc/{os.getppid()}/root{target}",
         f"/proc/{os.getppid()}/cwd/{deep}", f"./x/../{deep}"]
os.mkdir("x")
answers = {}
def call(name, *arguments):
    if name in NUMBERS:
        answers.setdefault(said(syscall, name, *arguments), []).append([name, repr(arguments)])
for path in paths:
    call("chmod", b(path), 0o777)
    call("fchmodat", CWD, b(path), 0o777)
    call("fchmodat2", CWD, b(path), 0o777, 0)
    call("chown", b(path), uid, gid)
    call("lchown", b(target), uid, gid)
    call("fchownat", CWD, b(path), uid, gid, 0)
    call("utime", b(path), None)
    call("utimes", b(path), times)
    call("futimesat", CWD, b(path), times)
    call("utimensat", CWD, b(path), times, 0)
    call("utimensat", CWD, b(path), None, 0)
    call("setxattr", b(path), b"user.x", b"v", 1, 0)
    call("removexattr", b(path), b"user.present")
for dirfd, path, flags in ((above, name, 0), (path_only, "", EMPTY), (above, name, NOFOLLOW), (above, "", EMPTY)):
    call("fchmodat2", dirfd, b(path), 0o777, flags)
    call("fchownat", dirfd, b(path), uid, gid, flags)
    call("utimensat", dirfd, b(path), times, flags)
    call("futimesat", dirfd, b(path), times) if path else None
    call("fchmodat", dirfd, b(path), 0o777) if path else None
# A descriptor from outside: standard input.
call("fchmod", 0, 0o777)
call("fchown", 0, uid, gid)
call("futimesat", 0, None, times)
call("utimensat", 0, None, None, 0)
call("fsetxattr", 0, b"user.x", b"v", 1, 0)
call("fremovexattr", 0, b"user.present")
os.chdir("/")
call("chmod", b(target.lstrip("/")), 0o777)
result = answers
"""


@pytest.mark.parametrize("kind", ["file", "dir", "readable"])
def test_outside_nothing_changes_whatever_the_way(jail: Guarded, kind: str) -> None:
    """No call by any path or descriptor changes anything outside, one that the jail may read included."""
    there = plant(jail, jail.outside / "there")
    target = there / ("dir" if kind == "dir" else "file")
    os.setxattr(target, "user.present", b"x")
    before = state(there)
    options = ("--ro", there) if kind == "readable" else ()
    argv = jail.python(OUTSIDE + "\nprint(json.dumps(result))", target, kind)
    words = jail.who.command(jail.words(argv, *options))
    with target.open("rb") if target.is_file() else open(os.devnull, "rb") as stdin:  # one of two
        ended = subprocess.run(
            words,
            cwd=jail.inside,
            env=jail.who.environment(guarded.ENVIRONMENT),
            stdin=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert ended.returncode == 0, ended.stderr
    answers = json.loads(ended.stdout)
    assert state(there) == before
    assert set(answers) <= {"EPERM", "EACCES", "ENOENT"}, answers
    assert len(answers["EPERM"]) > 100
    # What is not there: the launcher's /proc entries, which Landlock closes, are the only other refusals.
    assert all("/proc/" in arguments for said in ("EACCES", "ENOENT") for _, arguments in answers.get(said, ()))


def test_devices_are_nobodys(jail: Guarded) -> None:
    """A device that may be written keeps its mode and times, which belong to the machine."""
    code = """
result = [said(os.chmod, "/dev/null", 0o600), said(os.utime, "/dev/null"), said(os.fchmod, os.open("/dev/null", 2), 0)]
"""
    assert jail.tried(code) == ["EPERM"] * 3


def test_attributes_of_inodes_are_closed(jail: Guarded) -> None:
    """Flags of a file that may only be read cannot be set by ioctl; reading them is left."""
    (jail.outside / "shared").mkdir()
    (jail.outside / "shared/file").write_text("x")
    jail.who.give(jail.outside)
    code = """
import fcntl
def ioctl(path, request, size):
    fd = os.open(path, os.O_RDONLY)
    return said(lambda: fcntl.ioctl(fd, request, b"\\0" * size) and None)
result = {}
for path in (sys.argv[1], "."):
    result[path == "."] = [
        *(ioctl(path, request, 64) for request in (0x40086602, 0x401C5820, 0x40087602, 0x5000940E, 0x40806685)),
        ioctl(path, 0x80086601, 8) in ("ok", "ENOTTY", "EOPNOTSUPP"),
    ]
"""
    shared = jail.outside / "shared"
    assert jail.tried(code, shared, options=("--ro", shared)) == dict.fromkeys(
        ("true", "false"), ["EPERM"] * 5 + [True]
    )


@AS_A_USER
def test_younger_relatives_are_absent(jail: Guarded) -> None:
    """What changes metadata by newer calls, which no libc needs, does not exist in the jail."""
    code = """
result = [said(syscall, "setxattrat", -100, b"file", 0, b"user.x", 0, 0),
          said(syscall, "removexattrat", -100, b"file", 0, b"user.x")]
"""
    assert jail.tried(code) == ["ENOSYS", "ENOSYS"]


def test_exceptions_in_a_writable_tree_keep_their_metadata(jail: Guarded) -> None:
    """What --deny takes out of the worktree cannot be changed; what lies beside it can."""
    for name in ("kept", "open"):
        (jail.inside / name).mkdir()
        (jail.inside / name / "file").write_text("x")
        (jail.inside / name / "file").chmod(0o644)
    jail.who.give(jail.inside)
    code = """
result = [said(os.chmod, path, 0o700) for path in ("kept/file", "kept", "open/file")]
"""
    found = jail.tried(code, options=("--deny", jail.inside / "kept", "--freeze-root"))
    assert found == ["EPERM", "EPERM", "ok"]
    assert (jail.inside / "kept/file").stat().st_mode & 0o777 == 0o644


@AS_A_USER
def test_a_process_that_nobody_may_read_is_refused(jail: Guarded) -> None:
    """A caller that is not dumpable gets EPERM, never an unjudged call."""
    code = """
open("file", "w").close()
before = said(os.chmod, "file", 0o600)
assert libc.prctl(4, 0, 0, 0, 0) == 0
after = [said(os.chmod, "file", 0o644), said(os.fchmod, os.open(".", 0), 0o755), said(os.utime, "file")]
after.append(said(socket.socket(socket.AF_UNIX).connect, "file"))
assert libc.prctl(4, 1, 0, 0, 0) == 0
result = [before, after, said(os.chmod, "file", 0o644)]
"""
    assert jail.tried(code) == ["ok", ["EPERM"] * 4, "ok"]


@AS_A_USER
def test_threads_have_their_own_directory_and_descriptors(jail: Guarded) -> None:
    """A thread that has left the others' current directory and descriptors (unshare(2)) is served with its own."""
    code = """
for name in ("a", "b"):
    os.mkdir(name)
    open(name + "/file", "w").close()
    os.chmod(name + "/file", 0o600)
common = os.open("a/file", os.O_RDWR)
started, done = threading.Event(), threading.Event()
def other():
    assert libc.unshare(0x200 | 0x400) == 0, ctypes.get_errno()  # CLONE_FS | CLONE_FILES
    os.chdir("b")
    os.dup2(os.open("file", os.O_RDWR), common)
    started.set()
    os.chmod("file", 0o611)
    os.fchmod(common, 0o622)
    done.set()
thread = threading.Thread(target=other)
thread.start()
started.wait()
os.chdir("a")
thread.join()
assert done.is_set()
first = [oct(os.stat("/proc/self/cwd/" + p).st_mode & 0o777) for p in ("file", "../b/file")]
os.fchmod(common, 0o633)
result = [first, [oct(os.stat(p).st_mode & 0o777) for p in ("file", "../b/file")]]
"""
    assert jail.tried(code) == [["0o600", "0o622"], ["0o633", "0o622"]]
