"""No programme leaves a jail that takes its owner's identity, and the tools that copy and unpack modes still work.

Attacked for real, by every call that can give a file a mode; what counts is what lies in the worktree afterwards.
"""

import json
import os
import shutil
import stat
from pathlib import Path

from policy import promises
from tests.kernel.conftest import ROOT_ONCE
from tests.support import install
from tests.support.identity import AS_A_USER
from tests.support.programs.scene import Scene

# Numbers of x86-64 and of aarch64; -1 where a machine lacks the call.
ATTACKS = """
import ctypes, errno, json, os, platform, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
arm = platform.machine() == "aarch64"
AT = -100
def call(x86, generic, *words):
    number = generic if arm else x86
    if number < 0:
        return "absent"
    words = [word if isinstance(word, bytes) or word is None else ctypes.c_long(word) for word in words]
    answer = libc.syscall(ctypes.c_long(number), *words)
    if answer < 0:
        return errno.errorcode[ctypes.get_errno()]
    return "ok"
def made(name, mode=0o755):
    fd = os.open(name, os.O_CREAT | os.O_RDWR, mode)
    os.close(fd)
    os.chmod(name, mode)
    return name.encode()
result = {}
for bits in (0o4755, 0o2755, 0o6711):
    for high in (0, 1 << 40):
        mode, tag = bits | high, f"{bits:o}-{high:x}"
        make = os.O_CREAT | os.O_RDWR
        open_name = lambda kind: f"{kind}-{tag}".encode()
        fd = os.open(made(f"fd-{tag}"), os.O_RDWR)
        path_fd = os.open(made(f"path-fd-{tag}"), os.O_PATH)
        how = struct.pack("QQQ", make, bits, 0)
        directory = os.open(".", os.O_RDONLY)
        result |= {
            f"open {tag}": call(2, -1, open_name("open"), make, mode),
            f"creat {tag}": call(85, -1, open_name("creat"), mode),
            f"openat {tag}": call(257, 56, AT, open_name("openat"), make, mode),
            f"tmpfile {tag}": call(257, 56, AT, b".", os.O_TMPFILE | os.O_RDWR, mode),
            f"openat2 {tag}": call(437, 437, AT, open_name("openat2"), how, 24),
            f"mknod {tag}": call(133, -1, open_name("mknod"), 0o100000 | mode, 0),
            f"mknodat {tag}": call(259, 33, AT, open_name("mknodat"), 0o100000 | mode, 0),
            f"chmod {tag}": call(90, -1, made(f"chmod-{tag}"), mode),
            f"fchmod {tag}": call(91, 52, fd, mode),
            f"fchmodat {tag}": call(268, 53, AT, made(f"fchmodat-{tag}"), mode),
            f"fchmodat of a directory {tag}": call(268, 53, directory, made(f"fchmodat-d-{tag}"), mode),
            f"fchmodat2 {tag}": call(452, 452, AT, made(f"fchmodat2-{tag}"), mode, 0),
            f"fchmodat2 of a descriptor {tag}": call(452, 452, fd, b"", mode, 0x1000),
            f"fchmodat2 of a path descriptor {tag}": call(452, 452, path_fd, b"", mode, 0x1000),
            f"chmod of /proc/self/fd {tag}": call(90, -1, f"/proc/self/fd/{path_fd}".encode(), mode),
        }
xattr = made("capable")
cap = struct.pack("<IIIII", 0x02000001, 1 << 21, 0, 0, 0)
result["a capability"] = "ok"
try:
    os.setxattr(b"capable", "security.capability", cap)
except OSError as error:
    result["a capability"] = errno.errorcode[error.errno]
twins = {
    "fchmod": call(91, 52, os.open(made("t1"), os.O_RDWR), 0o751),
    "fchmodat": call(268, 53, AT, made("t2"), 0o640),
    "openat": call(257, 56, AT, b"t3", os.O_CREAT | os.O_RDWR, 0o777),
    "a mode that means nothing": call(257, 56, AT, b"t3", os.O_RDONLY, 0o4755),
    "mknodat": call(259, 33, AT, b"t4", 0o100600, 0),
    "a fifo": call(259, 33, AT, b"t5", 0o010600, 0),
    "a directory with the sticky bit": call(268, 53, AT, (os.mkdir("t6"), b"t6")[1], 0o1777),
}
print(json.dumps([result, twins]))
"""


def set_ids(directory: Path) -> list[str]:
    """What has a set-id bit below `directory`, or a capability."""
    found = []
    for where, _, files in os.walk(directory):
        for name in files:
            path = Path(where, name)
            if stat.S_ISREG(path.lstat().st_mode) and (path.lstat().st_mode & 0o6000 or os.listxattr(path)):
                found.append(str(path))
    return found


@ROOT_ONCE
def test_no_file_gets_a_set_id_bit(scene: Scene) -> None:
    """By no call that can make a file or change its mode; every other mode can be had."""
    ended = scene.run([install.base_python(), "-I", "-S", "-c", ATTACKS], cwd=scene.area)
    assert ended.returncode == 0, ended.stderr
    attacks, twins = json.loads(ended.stdout)
    assert {name: answer for name, answer in attacks.items() if answer not in ("EPERM", "ENOSYS", "absent")} == {}
    assert set(twins.values()) == {"ok"}, twins
    assert set_ids(scene.repo.one) == []
    assert len([name for name, answer in attacks.items() if answer == "EPERM"]) >= 60


def test_a_set_id_programme_of_the_machine_cannot_be_copied_with_its_bit(scene_of_user: Scene) -> None:
    """Nor one from an archive; the tools say so, and the file comes without it where they go on."""
    scene = scene_of_user
    source = scene.place / "source"
    source.mkdir()
    shutil.copy("/bin/true", source / "tool")
    scene.own(source)
    (source / "tool").chmod(0o4755)
    made = scene.who.run(["tar", "-C", str(source), "-cf", f"{scene.place}/tool.tar", "tool"])
    assert made.returncode == 0, made.stderr
    script = """
    cp -p "$1/tool" copied; echo $?; install -m 4755 "$1/tool" installed; echo $?
    mkdir x && tar -C x -xpf "$2"; echo $?; cp "$1/tool" plain && chmod 755 plain; echo $?; ln "$1/tool" linked; echo $?
    """
    words = ["sh", "-c", script, "sh", str(source), f"{scene.place}/tool.tar"]
    ended = scene.run(words, "--ro", source, "--ro", scene.place / "tool.tar")
    copied, installed, unpacked, plain, linked = ended.stdout.split()
    assert (plain, "0" in (copied, installed, unpacked, linked)) == ("0", False), ended.stderr
    assert ended.stderr.count("Operation not permitted") >= 3
    assert set_ids(scene.repo.one) == []


WORK = r"""
set -eu
umask 022
mkdir -p tree/sub && echo x >tree/sub/file && chmod 750 tree/sub && chmod 640 tree/sub/file
chmod +t tree
tar -cf tree.tar tree && mkdir out && tar -C out -xpf tree.tar && stat -c %a out/tree out/tree/sub out/tree/sub/file
cp -a tree copy && stat -c %a copy/sub
install -D -m 755 tree/sub/file inst/a/b && stat -c %a inst/a/b
git init -q fresh && cd fresh && git config user.name a && git config user.email a@b.invalid
echo y >f && chmod +x f && git add f && git commit -qm 1 && git clone -q . ../cloned && cd .. && stat -c %a cloned/f
"$PYTHON" -c 'import shutil; shutil.copytree("tree", "py"); shutil.make_archive("z", "zip", "tree")'
"""


@AS_A_USER
def test_tools_that_carry_modes_work(scene: Scene) -> None:
    """tar -p, cp -a, install, git and Python's shutil."""
    ended = scene.run(["sh", "-c", WORK], "--env", f"PYTHON={install.base_python()}", cwd=scene.area)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["1755", "750", "640", "750", "755", "755"], ended.stderr


def test_a_tree_that_is_shared_by_set_gid_directories_keeps_its_way(scene_of_user: Scene) -> None:
    """Directories inherit the bit, and tools that copy a directory's mode may set it; set-uid stays out of reach."""
    scene = scene_of_user
    scene.repo.one.chmod(0o2755)
    script = """
    mkdir new && stat -c %a new && "$1" -c 'import shutil; shutil.copytree("new", "copied")' && stat -c %a copied
    cp -a new again && stat -c %a again; chmod g+s new; echo $?; cp /bin/true t; chmod u+s t; echo $?
    """
    ended = scene.run(["sh", "-c", script, "sh", install.base_python()], cwd=scene.repo.one)
    assert ended.stdout.split() == ["2755", "2755", "2755", "0", "1"], ended.stderr
    assert [path for path in set_ids(scene.repo.one) if Path(path).name == "t"] == []


@AS_A_USER
def test_a_jail_inside_a_jail_works_without_openat2(scene: Scene) -> None:
    """The outer one hides the call; the inner one resolves paths step by step, in its guard too."""
    inner = "chmod 700 inside; mkdir d && chmod 500 d; cd d; chmod 600 /proc/self/cwd/../inside; chmod 700 /etc/passwd"
    (scene.area / "inside").touch()
    scene.own(scene.area / "inside")
    words = [str(scene.installed.paddock), "run", "--", "sh", "-c", inner]
    ended = scene.run(words, "--git", "readonly", "--ro", scene.installed.prefix, cwd=scene.area)
    if scene.backend == promises.GUARD:  # one listener is all that a process can have
        assert (ended.returncode, "[guard-missing]" in ended.stderr) == (125, True)
        return
    assert "chmod: changing permissions of '/etc/passwd': Operation not permitted" in ended.stderr
    assert [oct((scene.area / name).stat().st_mode & 0o777) for name in ("inside", "d")] == ["0o600", "0o500"]
