"""What the jailed process inherits: environment, descriptors, privileges."""

import ctypes
import os
import socket
import subprocess
import time

from tests.support.programs.harness import Given, Programme, checked, libc, syscall
from tests.support.programs.reads import content, fresh

ENVIRONMENT, DESCRIPTORS, PRIVILEGES = Programme(), Programme(), Programme()


@ENVIRONMENT.watched
def in_the_environment(given: Given) -> dict[str, str]:
    return dict(os.environ)


@ENVIRONMENT.watched
def in_what_env_says(given: Given) -> bytes:
    return subprocess.run(["env"], capture_output=True, check=True).stdout


@ENVIRONMENT.watched
def in_what_a_shell_says(given: Given) -> bytes:
    return subprocess.run(["bash", "-c", "set; declare -f; export -p"], capture_output=True, check=True).stdout


@ENVIRONMENT.watched
def in_the_own_environment_file(given: Given) -> bytes:
    return content("/proc/self/environ")


@ENVIRONMENT.watched
def in_any_process(given: Given) -> bytes:
    """Of the first process, the parents, the launcher and everything else that has a directory in /proc."""
    found = b""
    for name in [*(entry for entry in os.listdir("/proc") if entry.isdecimal()), str(os.getppid()), "1"]:
        for file in ("environ", "cmdline"):
            try:
                found += content(f"/proc/{name}/{file}")
            except OSError:
                continue
    assert b"harness" in found, "not even the own command line"
    return found


@ENVIRONMENT.watched
def in_the_memory_of_any_process(given: Given) -> bytes:
    """The stack holds the environment, its own and every other one that may be read."""
    found = b""
    for name in [entry for entry in os.listdir("/proc") if entry.isdecimal()]:
        try:
            with open(f"/proc/{name}/maps") as maps, open(f"/proc/{name}/mem", "rb", buffering=0) as memory:
                for line in maps:
                    if line.rstrip().endswith(("[stack]", "[heap]")):
                        first, last = (int(word, 16) for word in line.split()[0].split("-"))
                        memory.seek(first)
                        block = memory.read(last - first)
                        found += block[max(0, block.find(given["wanted"].encode()[:-1])) :][:100]
        except OSError:
            continue
    return found


@ENVIRONMENT.watched
def in_the_variables_of_the_dynamic_loader(given: Given) -> str:
    return " ".join(name for name in os.environ if name.startswith(("LD_", "PYTHON", "BASH", "GIT_SSH")))


@ENVIRONMENT.twin
def what_is_listed_is_there(given: Given) -> None:
    assert os.environ["LC_MESSAGES"] == "C.UTF-8"
    assert os.environ["TERM"] == "xterm-test"
    assert "/usr/bin" in os.environ["PATH"]
    assert os.environ["USER"]


@ENVIRONMENT.twin
def what_was_asked_for_is_there(given: Given) -> None:
    assert os.environ["ASKED"] == "of the caller"
    assert os.environ["GIVEN"] == "a value = of the command line"


@ENVIRONMENT.twin
def what_is_private_is_set(given: Given) -> None:
    for name in ("HOME", "TMPDIR"):
        assert os.path.isdir(os.environ[name])
        assert os.environ[name] != given["home"]


@DESCRIPTORS.attack
def any_other_than_the_standard_ones(given: Given) -> list[str]:
    """The harness looked before it opened anything; the listing itself needs one."""
    names = given["open at start"]
    assert set(names) - {"0", "1", "2"}, names
    return names  # type: ignore[no-any-return]  # given holds whatever JSON holds


def _use(name: str) -> None:
    def act(given: Given) -> bytes:
        number = given["descriptors"][name]
        assert str(number) in given["open at start"], "closed"
        os.fstat(number)
        return b"still open"

    act.__name__ = name
    DESCRIPTORS.attack(act)


KINDS = ("file", "directory", "path", "listener", "connected", "pipe", "memfd", "pidfd", "eventfd", "epoll", "high")
for _kind in KINDS:
    _use(_kind)


@DESCRIPTORS.attack
def by_passing_through_the_directory(given: Given) -> bytes:
    return content(f"/proc/self/fd/{given['descriptors']['directory']}/secret")


def opened_again(pid: int) -> bytes:
    """The content of whatever descriptor of another process can be opened (their numbers may be listed, proc(5))."""
    found = b""
    for number in {*os.listdir(f"/proc/{pid}/fd"), *map(str, range(1024))}:
        try:
            found += content(os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY | os.O_NONBLOCK)) + b" opened"
        except OSError:
            continue
    if not found:
        raise OSError(13, "none")
    return found


@DESCRIPTORS.attack
def those_of_the_first_process(given: Given) -> bytes:
    return opened_again(1)


@DESCRIPTORS.attack
def those_of_the_parent(given: Given) -> bytes:
    """The harness's parent is the jail's init, a process of ours that holds pipes and locks."""
    return opened_again(given["parent"])


@DESCRIPTORS.attack
def those_of_the_first_process_by_copying(given: Given) -> None:
    """pidfd_getfd(2) asks for the right to trace."""
    descriptor = os.pidfd_open(given["parent"] or 1)
    for number in range(64):
        try:
            syscall("pidfd_getfd", descriptor, number, 0)
        except OSError:
            continue
        return
    raise OSError(1, "none")


@DESCRIPTORS.twin
def the_standard_ones(given: Given) -> None:
    for number in (0, 1, 2):
        os.fstat(number)
    assert {"0", "1", "2"} <= set(given["open at start"])


@DESCRIPTORS.twin
def new_ones(given: Given) -> None:
    with open(fresh(given, "new"), "w") as file:
        assert file.fileno() > 2


def status(name: str) -> str:
    """A field of /proc/self/status."""
    with open("/proc/self/status") as file:
        return next(line.split()[1] for line in file if line.startswith(name + ":"))


def _capabilities(field: str) -> None:
    def act(given: Given) -> str:
        assert int(status(field), 16), "none"
        return status(field)

    act.__name__ = f"capabilities_{field}"
    PRIVILEGES.attack(act)


for _field in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
    _capabilities(_field)


@PRIVILEGES.attack
def raise_a_capability(given: Given) -> None:
    """capset(2) with version 3 and every bit."""
    header = (0x20080522).to_bytes(4, "little") + bytes(4)
    syscall("capset", header, b"\xff" * 8 + bytes(4) + b"\xff" * 8 + bytes(4))


@PRIVILEGES.attack
def raise_an_ambient_capability(given: Given) -> None:
    checked(libc.prctl(47, 2, 0, 0, 0))


@PRIVILEGES.attack
def gain_new_privileges_again(given: Given) -> None:
    checked(libc.prctl(38, 0, 0, 0, 0))


@PRIVILEGES.attack
def become_another_user(given: Given) -> None:
    other = 1 if os.getuid() != 1 else 2
    os.setresuid(other, other, other)


@PRIVILEGES.attack
def become_root(given: Given) -> None:
    assert os.getuid() != 0, "a name without power: see the capabilities"
    os.setresuid(0, 0, 0)


@PRIVILEGES.attack
def join_a_group(given: Given) -> None:
    os.setgroups([4])


@PRIVILEGES.attack
def run_a_set_uid_programme(given: Given) -> bytes:
    said = subprocess.run([given["setuid"], "-u"], capture_output=True, check=True).stdout
    assert int(said) != os.getuid(), said
    return said


@PRIVILEGES.attack
def run_a_set_gid_programme(given: Given) -> bytes:
    said = subprocess.run([given["setgid"], "-g"], capture_output=True, check=True).stdout
    assert int(said) != os.getgid(), said
    return said


@PRIVILEGES.attack
def run_a_programme_with_capabilities(given: Given) -> bytes:
    program = "print([line for line in open('/proc/self/status') if line.startswith('CapEff')][0].split()[1])"
    said = subprocess.run([given["capable"], "-I", "-S", "-c", program], capture_output=True, check=True).stdout
    assert int(said, 16), said
    return said


@PRIVILEGES.attack
def read_a_file_against_its_mode(given: Given) -> bytes:
    return content(given["unreadable"])


@PRIVILEGES.attack
def change_the_root_directory(given: Given) -> None:
    os.chroot(given["area"])


@PRIVILEGES.attack
def raise_the_priority(given: Given) -> None:
    os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) - 5)


@PRIVILEGES.attack
def run_in_real_time(given: Given) -> None:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


@PRIVILEGES.attack
def be_spared_from_the_memory_killer(given: Given) -> None:
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("-900")


@PRIVILEGES.attack
def bind_a_raw_socket(given: Given) -> None:
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)


@PRIVILEGES.attack
def set_the_clock(given: Given) -> None:
    syscall("clock_settime", 0, ctypes.byref((ctypes.c_long * 2)(int(time.time()), 0)))


@PRIVILEGES.twin
def no_new_privileges_is_set(given: Given) -> None:
    assert status("NoNewPrivs") == "1"
    assert status("Seccomp") == "2"


@PRIVILEGES.twin
def be_oneself(given: Given) -> None:
    os.setresuid(os.getuid(), os.getuid(), os.getuid())
    assert subprocess.run(["id", "-u"], capture_output=True, check=True).stdout.strip() == str(os.getuid()).encode()


@PRIVILEGES.twin
def be_nicer(given: Given) -> None:
    os.nice(1)
