"""Attacks: changing modes, owners, times and attributes of what may not be written."""

import ctypes
import os
import subprocess

from tests.support.programs.harness import Given, Programme, checked, libc, syscall
from tests.support.programs.reads import fresh

PROGRAMME = Programme(directories=True)
pair, twin = PROGRAMME.pair, PROGRAMME.twin

AT_EMPTY_PATH = 0x1000
ATTRIBUTE = "user.paddock"


@pair
def change_the_mode(given: Given, here: str) -> None:
    os.chmod(f"{here}/file", 0o777)


@pair
def change_the_mode_of_a_directory(given: Given, here: str) -> None:
    os.chmod(here, 0o777)


@pair
def change_the_mode_through_a_link(given: Given, here: str) -> None:
    link = fresh(given, "link")
    os.symlink(f"{here}/file", link)
    os.chmod(link, 0o777)


@pair
def change_the_mode_by_the_root_of_the_process(given: Given, here: str) -> None:
    os.chmod(f"/proc/self/root{here}/file", 0o777)


@pair
def change_the_mode_by_a_path_descriptor(given: Given, here: str) -> None:
    os.chmod(f"/proc/self/fd/{os.open(f'{here}/file', os.O_PATH)}", 0o777)


@pair
def change_the_mode_by_a_directory_descriptor(given: Given, here: str) -> None:
    os.chmod("file", 0o777, dir_fd=os.open(here, os.O_PATH))


@pair
def change_the_mode_by_the_empty_path(given: Given, here: str) -> None:
    syscall("fchmodat2", os.open(f"{here}/file", os.O_PATH), b"", 0o777, AT_EMPTY_PATH)


@pair
def change_the_mode_while_working_there(given: Given, here: str) -> None:
    os.chdir(here)
    os.chmod("file", 0o777)


@pair
def change_the_mode_with_a_tool(given: Given, here: str) -> None:
    ended = subprocess.run(["chmod", "-R", "a+rwx", here], capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr


@pair
def change_the_owner(given: Given, here: str) -> None:
    os.chown(f"{here}/file", os.getuid(), os.getgid())


@pair
def change_the_owner_of_a_link(given: Given, here: str) -> None:
    os.lchown(f"{here}/link", os.getuid(), os.getgid())


@pair
def change_the_owner_by_a_path_descriptor(given: Given, here: str) -> None:
    descriptor = os.open(f"{here}/file", os.O_PATH)
    checked(libc.fchownat(descriptor, b"", os.getuid(), os.getgid(), AT_EMPTY_PATH))


@pair
def change_the_times(given: Given, here: str) -> None:
    os.utime(f"{here}/file", (1, 1))


@pair
def change_the_times_of_a_link(given: Given, here: str) -> None:
    os.utime(f"{here}/link", (1, 1), follow_symlinks=False)


@pair
def change_the_times_of_a_directory(given: Given, here: str) -> None:
    os.utime(f"{here}/directory", (1, 1))


@pair
def change_the_times_by_a_path_descriptor(given: Given, here: str) -> None:
    os.utime(f"/proc/self/fd/{os.open(f'{here}/file', os.O_PATH)}", (1, 1))


@pair
def set_an_attribute(given: Given, here: str) -> None:
    os.setxattr(f"{here}/file", ATTRIBUTE, b"x")


@pair
def set_an_attribute_by_a_path_descriptor(given: Given, here: str) -> None:
    os.setxattr(f"/proc/self/fd/{os.open(f'{here}/file', os.O_PATH)}", ATTRIBUTE, b"x")


@pair
def set_an_attribute_of_a_directory(given: Given, here: str) -> None:
    os.setxattr(f"{here}/directory", ATTRIBUTE, b"x")


@pair
def remove_an_attribute(given: Given, here: str) -> None:
    os.removexattr(f"{here}/file", "user.present")


@pair
def set_an_access_list(given: Given, here: str) -> None:
    """A POSIX access list in the form of the kernel: version 2, then (tag, permissions, id) entries (acl(5))."""
    entries = ((0x01, 6, -1), (0x02, 7, os.getuid()), (0x04, 4, -1), (0x10, 7, -1), (0x20, 4, -1))
    value = (2).to_bytes(4, "little")
    for tag, permissions, who in entries:
        value += (
            tag.to_bytes(2, "little") + permissions.to_bytes(2, "little") + (who & 0xFFFFFFFF).to_bytes(4, "little")
        )
    os.setxattr(f"{here}/file", "system.posix_acl_access", value)


@pair
def race_with_a_link(given: Given, here: str) -> None:
    """chmod on a name that changes all the time between a file of ours and the wanted one."""
    name, own = fresh(given, "race"), fresh(given, "own")
    with open(own, "w"):
        pass
    os.symlink(own, name)
    pid = os.fork()
    if pid == 0:
        for turn in range(100):
            os.symlink(f"{here}/file" if turn % 2 else own, f"{name}.next")
            os.rename(f"{name}.next", name)
        os._exit(0)
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        try:
            os.chmod(name, 0o700)
        except OSError:
            continue
    os.unlink(name)
    os.symlink(f"{here}/file", name)
    os.chmod(name, 0o700)


@twin
def change_the_mode_of_an_open_file_of_the_jail(given: Given) -> None:
    path = fresh(given, "opened")
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    os.fchmod(descriptor, 0o640)
    os.fchown(descriptor, os.getuid(), os.getgid())
    os.utime(descriptor, (5, 5))
    assert os.stat(path).st_mode & 0o777 == 0o640


@twin
def install_a_file(given: Given) -> None:
    target = fresh(given, "installed")
    subprocess.run(["install", "-m", "755", given["twin"]["inside"] + "/change_the_mode/file", target], check=True)


@twin
def read_the_flags_of_a_file(given: Given) -> None:
    descriptor = os.open(fresh(given, "flags"), os.O_CREAT | os.O_RDWR, 0o600)
    syscall("ioctl", descriptor, 0x80086601, ctypes.byref(ctypes.c_long()))
