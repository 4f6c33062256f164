"""Attacks: reading what was not granted. Each placed act finds what `scene.furnish` makes."""

import os
import subprocess
import time

from tests.support.programs.harness import Given, Programme, syscall

PROGRAMME = Programme(directories=True)
pair, attack, twin = PROGRAMME.pair, PROGRAMME.attack, PROGRAMME.twin


def content(path: str | int) -> bytes:
    """What a file or descriptor holds, up to 64 KiB."""
    descriptor = os.open(path, os.O_RDONLY) if isinstance(path, str) else path
    try:
        return os.read(descriptor, 1 << 16)
    finally:
        os.close(descriptor)


def fresh(given: Given, name: str) -> str:
    """A path in the worktree where nothing is yet."""
    path = f"{given['area']}/{name}-{time.monotonic_ns()}"
    assert not os.path.lexists(path)
    return path


@pair
def opened(given: Given, here: str) -> bytes:
    return content(f"{here}/file")


@pair
def through_a_symbolic_link(given: Given, here: str) -> bytes:
    link = fresh(given, "link")
    os.symlink(f"{here}/file", link)
    return content(link)


@pair
def through_a_linked_directory(given: Given, here: str) -> bytes:
    link = fresh(given, "link")
    os.symlink(here, link)
    return content(f"{link}/directory/../file")


@pair
def by_dot_dot(given: Given, here: str) -> bytes:
    os.chdir(given["area"])
    return content(os.path.relpath(here, given["area"]) + "/file")


@pair
def by_dot_dot_through_the_worktree(given: Given, here: str) -> bytes:
    up = "/.." * given["area"].count("/")
    return content(f"{given['area']}{up}{here}/file")


@pair
def by_the_root_of_the_process(given: Given, here: str) -> bytes:
    return content(f"/proc/self/root{here}/file")


@pair
def by_the_root_of_the_thread(given: Given, here: str) -> bytes:
    return content(f"/proc/thread-self/root{here}/file")


@pair
def by_the_directory_of_the_process(given: Given, here: str) -> bytes:
    os.chdir(given["area"])
    return content("/proc/self/cwd/" + os.path.relpath(here, given["area"]) + "/file")


@pair
def by_the_directory_descriptor(given: Given, here: str) -> bytes:
    directory = os.open(here, os.O_PATH | os.O_DIRECTORY)
    return content(os.open("file", os.O_RDONLY, dir_fd=directory))


@pair
def by_a_path_descriptor_opened_again(given: Given, here: str) -> bytes:
    path = os.open(f"{here}/file", os.O_PATH)
    return content(f"/proc/self/fd/{path}")


@pair
def by_a_path_descriptor_and_dev_fd(given: Given, here: str) -> bytes:
    path = os.open(here, os.O_PATH)
    return content(f"/dev/fd/{path}/file")


@pair
def by_listing(given: Given, here: str) -> list[str]:
    return os.listdir(here)


@pair
def by_listing_a_path_descriptor(given: Given, here: str) -> list[str]:
    return os.listdir(f"/proc/self/fd/{os.open(here, os.O_PATH)}")


@pair
def by_executing_a_script(given: Given, here: str) -> bytes:
    return subprocess.run([f"{here}/script"], capture_output=True, check=False).stdout


@pair
def by_a_shell(given: Given, here: str) -> bytes:
    ended = subprocess.run(["sh", "-c", 'exec cat < "$0"', f"{here}/file"], capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pair
def by_copying(given: Given, here: str) -> bytes:
    target = fresh(given, "copy")
    ended = subprocess.run(["cp", "-a", here, target], capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return content(f"{target}/file")


@pair
def by_working_there(given: Given, here: str) -> bytes:
    os.chdir(f"{here}/directory")
    return content("inner")


@pair
def by_a_race_of_links(given: Given, here: str) -> bytes:
    """A link that keeps changing between a harmless file and the wanted one, opened all the while."""
    link, harmless = fresh(given, "race"), fresh(given, "harmless")
    with open(harmless, "w") as file:
        file.write("harmless")
    os.symlink(harmless, link)
    pid = os.fork()
    if pid == 0:
        for turn in range(150):
            os.symlink(f"{here}/file" if turn % 2 else harmless, f"{link}.next")
            os.rename(f"{link}.next", link)
        os._exit(0)
    found = b""
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        try:
            met = content(link)
        except OSError:
            continue
        found = found if met == b"harmless" else met
    if not found:  # the race was lost: the plain way must not lead there either
        os.unlink(link)
        os.symlink(f"{here}/file", link)
        found = content(link)
    return found


def _read_attack(name: str, key: str) -> None:
    def act(given: Given) -> bytes:
        return content(key.removeprefix("system:") if key.startswith("system:") else given[key])

    act.__name__ = name
    attack(act)


for _name, _key in (
    ("another_worktree", "other_worktree"),
    ("the_main_checkout", "main_checkout"),
    ("the_repository_of_the_submodule", "upstream"),
    ("the_private_key_in_the_home", "ssh"),
    ("the_history_in_the_home", "history"),
    ("the_memory_of_a_process_outside", "outside_memory"),
    ("a_file_that_a_process_outside_has_open", "outside_descriptor"),
    ("the_plan_cache", "cache"),
):
    _read_attack(_name, _key)

for _path in (
    *("/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/gitconfig", "/etc/fstab", "/proc/kcore", "/dev/mem"),
    *("/dev/kmsg", "/proc/kmsg", "/etc/machine-id", "/etc/apt/sources.list", "/etc/ssh/sshd_config", "/root/.bashrc"),
    *("/var/log/dpkg.log", "/etc/ssl/private", "/proc/sys/kernel/random/../../../1/environ", "/etc/crontab"),
):
    _read_attack("system_path_" + _path.strip("/").replace("/", "_"), "system:" + _path)


@attack
def the_root_of_the_first_process(given: Given) -> bytes:
    return content(f"/proc/1/root{given['attack']['outside']}/opened/file")


@attack
def the_root_of_a_process_outside(given: Given) -> bytes:
    return content(f"/proc/{given['pid']}/root{given['attack']['outside']}/opened/file")


@attack
def the_directory_of_a_process_outside(given: Given) -> list[str]:
    return os.listdir(f"/proc/{given['pid']}/cwd/")


@attack
def a_hard_link_across_the_border(given: Given) -> bytes:
    link = fresh(given, "hard")
    os.link(f"{given['attack']['outside']}/opened/file", link)
    return content(link)


@attack
def a_rename_across_the_border(given: Given) -> bytes:
    target = fresh(given, "moved")
    os.rename(f"{given['attack']['outside']}/opened/directory", target)
    return content(f"{target}/inner")


@attack
def a_file_handle_made_up(given: Given) -> bytes:
    """Inode 2 is the root directory of ext4: what opened whole hosts from containers (struct file_handle)."""
    handle = bytearray((8).to_bytes(4, "little") + (1).to_bytes(4, "little") + (2).to_bytes(8, "little"))
    directory = os.open(given["area"], os.O_RDONLY)
    return content(syscall("open_by_handle_at", directory, bytes(handle), os.O_RDONLY))


@attack
def the_names_beside_the_worktree(given: Given) -> list[str]:
    names = os.listdir(os.path.dirname(given["worktree"]))
    assert {"two", "upstream"} & set(names), names  # on the way to what is granted, the jail shows names of its own
    return names


@attack
def the_block_device(given: Given) -> bytes:
    with open("/proc/self/mountinfo") as file:
        devices = {line.split(" - ")[1].split()[1] for line in file}
    for device in sorted(devices):
        if device.startswith("/dev/"):
            return content(device)
    raise OSError(2, "no device")


@twin
def the_files_of_the_system(given: Given) -> int:
    return len(content("/etc/passwd")) + len(os.listdir("/usr/bin"))


@twin
def the_configuration_of_the_main_repository(given: Given) -> bytes:
    return content(given["main_config"])


@twin
def the_log_of_the_repository(given: Given) -> bytes:
    return subprocess.run(["git", "-C", given["worktree"], "log"], capture_output=True, check=True).stdout


@twin
def the_environment_of_the_process(given: Given) -> bytes:
    return content("/proc/self/environ")
