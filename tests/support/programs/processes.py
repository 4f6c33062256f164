"""Attacks on processes outside the jail. A place is the process id of a bystander, or "child" for one made here."""

import ctypes
import fcntl
import os
import resource
import signal
import time

from tests.support.programs.harness import Given, Programme, checked, libc, syscall

PROGRAMME = Programme()
SEEING = Programme()
pair, attack, watched = PROGRAMME.pair, PROGRAMME.attack, PROGRAMME.watched

CHILD, OWN = "child", "own"
PTRACE_ATTACH, PTRACE_SEIZE, PTRACE_DETACH = 16, 0x4206, 17
IOPRIO_IDLE = 3 << 13
F_SETOWN, F_SETOWN_EX = 8, 15


def process(target: str) -> int:
    """The process id of a place; for "child" a new process that sleeps in a group of its own until this one ends."""
    if target == OWN:
        return 0
    if target != CHILD:
        return int(target)
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        checked(libc.prctl(1, signal.SIGKILL, 0, 0, 0))
        for number in (signal.SIGUSR1, signal.SIGURG, signal.SIGIO):
            signal.signal(number, signal.SIG_IGN)
        time.sleep(60)
        os._exit(0)
    while os.getpgid(pid) != pid:
        time.sleep(0.001)
    return pid


@pair
def signal_it(given: Given, target: str) -> None:
    os.kill(process(target), signal.SIGUSR1)


@pair
def signal_its_thread(given: Given, target: str) -> None:
    pid = process(target)
    syscall("tgkill", pid, pid, signal.SIGUSR1)


@pair
def signal_it_as_a_thread(given: Given, target: str) -> None:
    syscall("tkill", process(target), signal.SIGUSR1)


@pair
def signal_its_group(given: Given, target: str) -> None:
    pid = process(target)
    os.killpg(pid, signal.SIGUSR1)
    assert os.getpgrp() != pid, "own members were signalled; whether others were is seen outside"


@pair
def queue_a_signal(given: Given, target: str) -> None:
    pid = process(target)
    # SI_QUEUE = -1, then the sender's pid, which rt_sigqueueinfo(2) does not check.
    head = signal.SIGUSR1.to_bytes(4, "little") + bytes(4) + (-1).to_bytes(4, "little", signed=True)
    info = ctypes.create_string_buffer(head, 128)
    syscall("rt_sigqueueinfo", pid, signal.SIGUSR1, info)


@pair
def signal_its_descriptor(given: Given, target: str) -> None:
    signal.pidfd_send_signal(os.pidfd_open(process(target)), signal.SIGUSR1)


@pair
def signal_the_directory_in_proc(given: Given, target: str) -> None:
    signal.pidfd_send_signal(os.open(f"/proc/{process(target)}", os.O_RDONLY | os.O_DIRECTORY), signal.SIGUSR1)


@pair
def signal_as_the_owner_of_a_pipe(given: Given, target: str) -> None:
    """The kernel signals a descriptor's owner when data comes (fcntl(2), F_SETOWN), by SIGIO; F_SETSIG is refused."""
    pid = process(target)
    reading, writing = os.pipe()
    fcntl.fcntl(reading, F_SETOWN, pid)
    fcntl.fcntl(reading, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    os.write(writing, b"x")
    assert target == CHILD, "whether it came is seen outside"


@pair
def trace_it(given: Given, target: str) -> None:
    pid = process(target)
    syscall("ptrace", PTRACE_ATTACH, pid, 0, 0)
    os.waitpid(pid, 0x40000000)
    syscall("ptrace", PTRACE_DETACH, pid, 0, 0)


@pair
def seize_it(given: Given, target: str) -> None:
    syscall("ptrace", PTRACE_SEIZE, process(target), 0, 0)


@pair
def read_its_memory(given: Given, target: str) -> None:
    """At an address that exists in this process, hence in its child; the access check comes first."""
    here = ctypes.create_string_buffer(b"original", 8)
    there = ctypes.create_string_buffer(8)
    pid = process(target)
    local = (ctypes.c_void_p * 2)(ctypes.addressof(there), 8)
    remote = (ctypes.c_void_p * 2)(ctypes.addressof(here), 8)
    syscall("process_vm_readv", pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)


@pair
def write_its_memory(given: Given, target: str) -> None:
    here = ctypes.create_string_buffer(b"original", 8)
    pid = process(target)
    local = (ctypes.c_void_p * 2)(ctypes.addressof(here), 8)
    remote = (ctypes.c_void_p * 2)(ctypes.addressof(here), 8)
    syscall("process_vm_writev", pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)


@pair
def open_its_memory(given: Given, target: str) -> None:
    os.close(os.open(f"/proc/{process(target)}/mem", os.O_RDONLY))


@pair
def take_a_descriptor(given: Given, target: str) -> None:
    syscall("pidfd_getfd", os.pidfd_open(process(target)), 0, 0)


@pair
def ask_for_its_maps(given: Given, target: str) -> None:
    with open(f"/proc/{process(target)}/maps") as file:
        assert file.read()


@pair
def change_its_limits(given: Given, target: str) -> None:
    resource.prlimit(process(target), resource.RLIMIT_NOFILE, (256, 256))


@pair
def read_its_limits(given: Given, target: str) -> None:
    resource.prlimit(process(target), resource.RLIMIT_NOFILE)


@pair
def change_its_priority(given: Given, target: str) -> None:
    os.setpriority(os.PRIO_PROCESS, process(target), 15)


@pair
def change_its_processors(given: Given, target: str) -> None:
    os.sched_setaffinity(process(target), {min(os.sched_getaffinity(0))})


@pair
def change_its_scheduler(given: Given, target: str) -> None:
    os.sched_setscheduler(process(target), os.SCHED_BATCH, os.sched_param(0))


@pair
def change_its_disk_priority(given: Given, target: str) -> None:
    syscall("ioprio_set", 1, process(target), IOPRIO_IDLE)


BY_ID = (
    *("change_its_limits", "read_its_limits", "change_its_priority", "change_its_processors", "change_its_scheduler"),
    *("change_its_disk_priority",),
)
"""Acts that a jail without a PID namespace allows on the calling thread only: their twin has the place "own"."""


@attack
def migrate_its_pages(given: Given) -> None:
    mask = ctypes.c_ulong(1)
    syscall("migrate_pages", given["pid"], 64, ctypes.byref(mask), ctypes.byref(mask))


@attack
def advise_its_memory(given: Given) -> None:
    vector = (ctypes.c_void_p * 2)(0, 0)
    syscall("process_madvise", os.pidfd_open(given["pid"]), ctypes.byref(vector), 1, 20, 0)


@attack
def compare_its_resources(given: Given) -> None:
    syscall("kcmp", os.getpid(), given["pid"], 1, 0, 0)


@attack
def reap_its_memory(given: Given) -> None:
    syscall("process_mrelease", os.pidfd_open(given["pid"]), 0)


@attack
def change_its_memory_score(given: Given) -> None:
    with open(f"/proc/{given['pid']}/oom_score_adj", "w") as file:
        file.write("500")


@attack
def freeze_it_by_cgroup(given: Given) -> None:
    with open("/sys/fs/cgroup/cgroup.freeze", "w") as file:
        file.write("0")


@watched
def signal_everything(given: Given) -> None:
    """kill(2) with -1: whatever may be signalled. The harness ignores it."""
    os.kill(-1, signal.SIGUSR1)


@watched
def signal_the_own_group(given: Given) -> None:
    """The group is the launcher's, and whatever stands beside it in a pipeline is a member."""
    os.kill(0, signal.SIGUSR1)


@watched
def signal_the_group_as_owner_of_a_pipe(given: Given) -> None:
    for group in (os.getpgrp(), os.getsid(0)):
        reading, writing = os.pipe()
        fcntl.fcntl(reading, F_SETOWN_EX, (2).to_bytes(4, "little") + group.to_bytes(4, "little"))
        fcntl.fcntl(reading, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
        os.write(writing, b"x")


@watched
def renice_the_own_group(given: Given) -> None:
    os.setpriority(os.PRIO_PGRP, 0, 9)


@watched
def renice_all_of_the_user(given: Given) -> None:
    os.setpriority(os.PRIO_USER, 0, 9)


@watched
def lower_the_disk_priority_of_the_own_group(given: Given) -> None:
    syscall("ioprio_set", 2, 0, IOPRIO_IDLE)


@watched
def signal_the_parent_and_the_first(given: Given) -> None:
    for pid in (given["parent"], 1, os.getppid()):
        try:
            os.kill(pid, signal.SIGTERM if pid == 1 else signal.SIGUSR1)
        except OSError:
            continue


@watched
def signal_when_this_one_dies(given: Given) -> None:
    """Terminal-less SIGHUP to an orphaned group, by leaving a stopped member behind."""
    if os.fork() == 0:
        os.setpgid(0, 0)
        if os.fork() == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)


# Seeing.


def command_lines() -> bytes:
    """Of all processes in /proc."""
    found = b""
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    found += file.read()
            except OSError:
                continue
    return found


@SEEING.attack
def by_its_command_line(given: Given) -> None:
    assert given["marker"].encode() in command_lines(), "not listed"


@SEEING.attack
def by_its_directory(given: Given) -> None:
    os.stat(f"/proc/{given['pid']}")


@SEEING.attack
def by_its_status(given: Given) -> None:
    with open(f"/proc/{given['pid']}/status") as file:
        assert file.read()


@SEEING.attack
def by_its_descriptors(given: Given) -> None:
    assert os.listdir(f"/proc/{given['pid']}/fd")


@SEEING.attack
def by_its_group(given: Given) -> None:
    os.getpgid(given["pid"])


@SEEING.attack
def by_its_processors(given: Given) -> None:
    os.sched_getaffinity(given["pid"])


@SEEING.attack
def by_its_priority(given: Given) -> None:
    os.getpriority(os.PRIO_PROCESS, given["pid"])


@SEEING.attack
def by_a_descriptor(given: Given) -> None:
    os.pidfd_open(given["pid"])


@SEEING.attack
def by_the_answer_to_no_signal(given: Given) -> None:
    """EPERM means that it is there, ESRCH that it is not."""
    try:
        os.kill(given["pid"], 0)
    except PermissionError:
        return


@SEEING.attack
def by_a_tool(given: Given) -> None:
    assert given["marker"] in os.popen("ps axww -o args").read(), "not listed"


@SEEING.attack
def by_the_number_of_processes(given: Given) -> None:
    assert len([name for name in os.listdir("/proc") if name.isdecimal()]) > 5, "only our own"


@SEEING.attack
def by_the_cgroup(given: Given) -> None:
    with open("/sys/fs/cgroup/cgroup.procs") as file:
        assert set(file.read().split()) - {"0"} - set(os.listdir("/proc")), "none with a number"


@SEEING.twin
def its_own(given: Given) -> None:
    assert b"harness" in command_lines()
    pid = process(CHILD)
    os.kill(pid, 0)
    assert os.path.exists(f"/proc/{pid}/status")
    assert os.getpriority(os.PRIO_PROCESS, pid) >= 0
