"""Attacks: changing what may not be written. Each placed act finds `file`, `directory/inner` and `empty`."""

import ctypes
import mmap
import os
import socket
import subprocess

from tests.support.programs.harness import Given, Programme, checked, libc, syscall
from tests.support.programs.reads import fresh

PROGRAMME = Programme(directories=True)
pair, attack, twin = PROGRAMME.pair, PROGRAMME.attack, PROGRAMME.twin

RENAME_EXCHANGE = 2
AT_SYMLINK_FOLLOW = 0x400
AT_FDCWD = -100


def put(path: str | int, flags: int = 0) -> None:
    """Opens for writing and writes one byte."""
    descriptor = os.open(path, os.O_WRONLY | flags, 0o644) if isinstance(path, str) else path
    os.write(descriptor, b"x")
    os.close(descriptor)


def made(given: Given) -> str:
    """A new file in the worktree."""
    path = fresh(given, "made")
    put(path, os.O_CREAT)
    return path


@pair
def create(given: Given, here: str) -> None:
    put(f"{here}/new", os.O_CREAT | os.O_EXCL)


@pair
def append(given: Given, here: str) -> None:
    put(f"{here}/file", os.O_APPEND)


@pair
def open_truncating(given: Given, here: str) -> None:
    os.close(os.open(f"{here}/file", os.O_WRONLY | os.O_TRUNC))


@pair
def open_for_reading_and_truncate(given: Given, here: str) -> None:
    """Linux truncates for O_RDONLY | O_TRUNC too (open(2): unspecified)."""
    os.close(os.open(f"{here}/file", os.O_RDONLY | os.O_TRUNC))


@pair
def truncate_by_path(given: Given, here: str) -> None:
    os.truncate(f"{here}/file", 3)


@pair
def truncate_a_path_descriptor(given: Given, here: str) -> None:
    os.truncate(f"/proc/self/fd/{os.open(f'{here}/file', os.O_PATH)}", 3)


@pair
def write_a_path_descriptor(given: Given, here: str) -> None:
    put(f"/proc/self/fd/{os.open(f'{here}/file', os.O_PATH)}")


@pair
def write_a_reading_descriptor_opened_again(given: Given, here: str) -> None:
    put(f"/proc/self/fd/{os.open(f'{here}/file', os.O_RDONLY)}", os.O_TRUNC)


@pair
def write_in_a_mapping(given: Given, here: str) -> None:
    descriptor = os.open(f"{here}/file", os.O_RDWR)
    with mmap.mmap(descriptor, 0) as memory:
        memory[0:1] = b"x"


@pair
def write_through_a_link(given: Given, here: str) -> None:
    link = fresh(given, "link")
    os.symlink(f"{here}/file", link)
    put(link, os.O_TRUNC)


@pair
def create_through_a_dangling_link(given: Given, here: str) -> None:
    link = fresh(given, "link")
    os.symlink(f"{here}/new", link)
    put(link, os.O_CREAT)


@pair
def write_by_dot_dot(given: Given, here: str) -> None:
    put(os.path.relpath(here, os.getcwd()) + "/file", os.O_TRUNC)


@pair
def write_by_the_root_of_the_process(given: Given, here: str) -> None:
    put(f"/proc/self/root{here}/file", os.O_TRUNC)


@pair
def remove(given: Given, here: str) -> None:
    os.unlink(f"{here}/file")


@pair
def remove_a_directory(given: Given, here: str) -> None:
    os.rmdir(f"{here}/empty")


@pair
def make_a_directory(given: Given, here: str) -> None:
    os.mkdir(f"{here}/new")


@pair
def make_a_link(given: Given, here: str) -> None:
    os.symlink("/etc/passwd", f"{here}/new")


@pair
def make_a_fifo(given: Given, here: str) -> None:
    os.mkfifo(f"{here}/new")


@pair
def make_a_node(given: Given, here: str) -> None:
    os.mknod(f"{here}/new", 0o100644)


@pair
def make_a_socket(given: Given, here: str) -> None:
    os.chdir(here)
    socket.socket(socket.AF_UNIX).bind("new")


@pair
def make_an_unnamed_file_and_name_it(given: Given, here: str) -> None:
    descriptor = os.open(here, os.O_TMPFILE | os.O_WRONLY)
    name = f"/proc/self/fd/{descriptor}".encode()
    checked(libc.linkat(AT_FDCWD, name, AT_FDCWD, f"{here}/new".encode(), AT_SYMLINK_FOLLOW))


@pair
def rename_within(given: Given, here: str) -> None:
    os.rename(f"{here}/file", f"{here}/renamed")


@pair
def exchange_within(given: Given, here: str) -> None:
    names = (f"{here}/file".encode(), f"{here}/script".encode())
    syscall("renameat2", AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE)


@pair
def link_within(given: Given, here: str) -> None:
    os.link(f"{here}/file", f"{here}/new")


@pair
def copy_into(given: Given, here: str) -> None:
    source = os.open(made(given), os.O_RDONLY)
    target = os.open(f"{here}/file", os.O_WRONLY)
    os.copy_file_range(source, target, 1)


@pair
def write_by_a_shell(given: Given, here: str) -> None:
    subprocess.run(["sh", "-c", 'echo x >"$0"', f"{here}/file"], stderr=subprocess.DEVNULL, check=False)
    with open(f"{here}/file") as file:
        assert file.read() == "x\n"


@pair
def edit_in_place(given: Given, here: str) -> None:
    ended = subprocess.run(["sed", "-i", "s/./x/", f"{here}/file"], capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr


@pair
def set_the_size(given: Given, here: str) -> None:
    descriptor = os.open(f"{here}/file", os.O_RDWR)
    os.posix_fallocate(descriptor, 0, 5000)


# Across the border, from the worktree outwards: the twin is `rename_within` and `link_within` inside.


@attack
def rename_out_of_the_worktree(given: Given) -> None:
    os.rename(made(given), f"{given['attack']['outside']}/create/moved")


@attack
def rename_out_over_a_file(given: Given) -> None:
    os.rename(made(given), f"{given['attack']['outside']}/create/file")


@attack
def link_out_of_the_worktree(given: Given) -> None:
    os.link(made(given), f"{given['attack']['outside']}/create/linked")


@attack
def exchange_across_the_border(given: Given) -> None:
    names = (made(given).encode(), f"{given['attack']['outside']}/create/file".encode())
    syscall("renameat2", AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE)


@attack
def move_the_worktree_itself(given: Given) -> None:
    os.rename(given["worktree"], given["worktree"] + "-moved")


@attack
def remove_the_worktree_itself(given: Given) -> None:
    os.chdir("/")
    os.rmdir(f"{given['worktree']}")


def _write_attack(name: str, path: str) -> None:
    """Watched, because a private /tmp may hold a place of the same name, in which to write is harmless."""

    def act(given: Given) -> None:
        target = path.format(**given)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        put(target, os.O_CREAT)

    act.__name__ = name
    PROGRAMME.watched(act)


def _open_attack(name: str, path: str) -> None:
    """To open for writing is enough; nothing is written, so that a jail which leaks does not ruin the machine."""

    def act(given: Given) -> None:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))

    act.__name__ = name
    attack(act)


PRIZES = (
    ("plant_in_the_shell_profile", "{home}/.bashrc"),
    ("plant_an_ssh_key", "{home}/.ssh/authorized_keys"),
    ("plant_in_the_home", "{home}/planted"),
    ("plant_a_hook", "{main}/.git/hooks/post-checkout"),
    ("change_the_configuration_of_the_repository", "{main}/.git/config"),
    ("move_a_branch", "{main}/.git/refs/heads/main"),
    ("plant_an_object", "{main}/.git/objects/planted"),
    ("borrow_objects", "{main}/.git/objects/info/alternates"),
    ("change_the_head_of_the_worktree", "{main}/.git/worktrees/one/HEAD"),
    ("plant_a_worktree_configuration", "{main}/.git/worktrees/one/config.worktree"),
    ("change_the_main_checkout", "{main}/README.md"),
    ("change_another_worktree", "{two}/README.md"),
    ("change_the_plan_cache", "{cache}"),
    ("trust_a_project_file", "{state}/trusted.json"),
)
"""Name of the act and the path it writes, with places in braces."""

for _name, _path in PRIZES:
    _write_attack(_name, _path)

for _path in (
    *("/etc/passwd", "/etc/ld.so.preload", "/usr/bin/planted", "/usr/local/bin/git", "/planted", "/run/planted"),
    *("/proc/sys/kernel/core_pattern", "/proc/sys/vm/overcommit_memory", "/proc/sys/kernel/modprobe"),
    *("/proc/sys/net/ipv4/ip_forward", "/proc/sys/kernel/randomize_va_space", "/proc/sysrq-trigger", "/dev/kmsg"),
    *("/sys/kernel/uevent_helper", "/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/planted", "/dev/planted"),
    *("/var/lib/planted", "/etc/cron.d/planted", "/boot/planted", "/opt/planted", "/proc/sys/fs/binfmt_misc/register"),
):
    _open_attack("system_path_" + _path.strip("/").replace("/", "_"), _path)


@attack
def spare_a_process_outside_from_the_memory_killer(given: Given) -> None:
    put(f"/proc/{given['pid']}/oom_score_adj")


@attack
def make_a_cgroup(given: Given) -> None:
    os.mkdir(f"/sys/fs/cgroup/planted-{os.getpid()}")


@attack
def make_a_block_device(given: Given) -> None:
    os.mknod(fresh(given, "disk"), 0o060600, os.makedev(254, 0))


@attack
def mark_a_file_immutable(given: Given) -> None:
    """FS_IOC_SETFLAGS with FS_IMMUTABLE_FL: the user could not remove it (CAP_LINUX_IMMUTABLE)."""
    descriptor = os.open(made(given), os.O_RDONLY)
    syscall("ioctl", descriptor, 0x40086602, ctypes.byref(ctypes.c_long(0x10)))


@twin
def write_the_private_home(given: Given) -> None:
    put(os.path.expanduser("~/.profile-of-the-jail"), os.O_CREAT)
    assert os.path.expanduser("~") != given["home"]


@twin
def write_the_private_temporary_directory(given: Given) -> None:
    put(os.environ["TMPDIR"] + "/scratch", os.O_CREAT)


@twin
def write_what_the_process_may_say_of_itself(given: Given) -> None:
    put("/dev/null")
