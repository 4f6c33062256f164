"""The system call filter, rule by rule, for both machines: run by an interpreter, so nothing is installed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.jail import seccomp, syscall_tables, syscalls
from policy.errors import Refusal
from tests.support.bpf import ANSWERS, DONE, ENOSYS, EPERM, FILTERS, SWITCHES, Filter

MACHINES = syscall_tables.MACHINES
NAMES = (*syscall_tables.UNIFIED, *syscall_tables.OLDER)


filters = st.sampled_from(FILTERS)
words = st.integers(0, 2**64 - 1)


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# The filter as a whole


@settings(max_examples=300)
@given(filter=filters, number=st.integers(0, 2**32 - 1), arguments=st.tuples(*[words] * 6))
def test_every_call_gets_an_answer_of_the_known_kinds(filter: Filter, number: int, arguments: tuple[int, ...]) -> None:
    """Whatever the arguments, the filter ends and says one of the things it was made to say."""
    assert filter.number(number, *arguments) in ANSWERS


@settings(max_examples=300)
@given(filter=filters, number=st.integers(0, 480), arguments=st.tuples(*[words] * 6), high=words)
def test_high_words_of_arguments_change_nothing(
    filter: Filter, number: int, arguments: tuple[int, ...], high: int
) -> None:
    """What the kernel cuts off cannot be used to slip past a comparison."""
    noisy = tuple(argument & 0xFFFFFFFF | high & ~0xFFFFFFFF for argument in arguments)
    if number == syscall_tables.number("prlimit64", filter.machine):
        noisy = (*noisy[:2], arguments[2], *noisy[3:])  # an address
    assert filter.number(number, *noisy) == filter.number(number, *arguments)


@given(filter=filters, number=st.integers(0, 2**32 - 1), arch=st.integers(0, 2**32 - 1))
def test_a_foreign_instruction_set_is_killed(filter: Filter, number: int, arch: int) -> None:
    """Another architecture's numbers mean other calls, so they are not even judged."""
    if arch != syscall_tables.AUDIT_ARCH[filter.machine]:
        assert filter.number(number, arch=arch) == seccomp.KILL_PROCESS


@pytest.mark.parametrize("arch", [0x40000003, 0x40000028], ids=["i386", "arm"])
def test_32_bit_calls_are_killed(machine: str, arch: int) -> None:
    """int 0x80 on x86-64 and 32-bit ARM on aarch64 arrive with an architecture of their own."""
    assert Filter(machine, "open").number(1, arch=arch) == seccomp.KILL_PROCESS


def test_x32_calls_are_killed() -> None:
    """x32 shares x86-64's architecture and sets a bit in the number."""
    assert Filter("x86_64", "open").number(syscall_tables.X32_BIT | 39) == seccomp.KILL_PROCESS


def test_the_number_that_a_debugger_writes_to_skip_a_call_is_not_killed(machine: str) -> None:
    """-1 is answered like a missing call."""
    assert Filter(machine).number(-1) == ENOSYS


@given(filter=filters, number=st.integers(syscall_tables.NEWEST + 1, syscall_tables.X32_BIT - 1))
def test_calls_that_nobody_has_judged_yet_are_missing(filter: Filter, number: int) -> None:
    """A future kernel does not open the jail."""
    assert filter.number(number) == ENOSYS


def test_the_filter_is_short(machine: str) -> None:
    """No combination of parameters comes near the kernel's limit."""
    assert max(len(filter.program) // 8 for filter in FILTERS) < 256


@pytest.mark.parametrize("read", [0, 1, 63, 202, 257])
def test_ordinary_calls_are_allowed(read: int) -> None:
    """read, write, uname, futex and openat on x86-64 pass in the strictest filter."""
    assert Filter("x86_64").number(read) == seccomp.ALLOW


def test_a_machine_without_tables_is_refused() -> None:
    """No filter is better than a filter with another machine's numbers; no launch is better than both."""
    with pytest.raises(Refusal, match="riscv64"):
        Filter("riscv64")


def test_an_unknown_network_mode_is_an_error() -> None:
    """A misspelt mode opens nothing."""
    with pytest.raises(ValueError, match="'closed'"):
        Filter("x86_64", "closed")


def test_no_two_calls_share_a_number(machine: str) -> None:
    """A slip in a table would judge another call."""
    numbers = [syscall_tables.number(name, machine) for name in NAMES]
    known = [number for number in numbers if number is not None]
    assert len(known) == len(set(known))


def test_both_tables_of_numbers_agree() -> None:
    """What the wrappers call is what the filter judges."""
    for machine, numbers in syscalls._LEGACY_NUMBERS.items():
        shared = numbers.keys() & set(NAMES)
        assert {name: syscall_tables.number(name, machine) for name in shared} == {
            name: numbers[name] for name in shared
        }


# Single rules


def listed(text: str) -> list[str]:
    """The words of a text."""
    return text.split()


# Spelt out once more, so that a name which falls out of the filter is missed here.
FORBIDDEN = listed("""
    bpf perf_event_open userfaultfd lookup_dcookie add_key request_key keyctl kcmp
    mount umount2 pivot_root chroot move_mount open_tree open_tree_attr fsopen fsconfig fsmount fspick mount_setattr
    setns name_to_handle_at open_by_handle_at fanotify_init fanotify_mark
    kexec_load kexec_file_load init_module finit_module delete_module reboot swapon swapoff acct quotactl quotactl_fd
    iopl ioperm settimeofday clock_settime adjtimex clock_adjtime syslog vhangup sethostname setdomainname
""")
IPC = listed("shmget shmat shmctl semget semop semtimedop semctl msgget msgsnd msgrcv msgctl mq_open mq_unlink")
BY_PID = listed("prlimit64 sched_setaffinity sched_setscheduler sched_setparam sched_setattr migrate_pages move_pages")
ABSENT = listed(
    "openat2 io_uring_setup io_uring_enter io_uring_register io_setup clone3 file_setattr listns modify_ldt nfsservctl"
    " uselib"
)


def test_the_lists_of_this_test_are_those_of_the_filter() -> None:
    """What is added to the filter is added here, where the tests below pick it up."""
    assert set(FORBIDDEN) == set(seccomp._FORBIDDEN)
    assert set(IPC) == set(seccomp._IPC)
    assert set(BY_PID) == {*seccomp._BY_PID, "prlimit64"}
    assert set(ABSENT) == set(seccomp._ABSENT)


@pytest.mark.parametrize("name", ABSENT)
def test_calls_with_a_fallback_are_missing(name: str) -> None:
    """ENOSYS is what makes callers fall back."""
    for machine in MACHINES:
        if syscall_tables.number(name, machine) is not None:
            assert Filter(machine, "open")(name) == ENOSYS


@pytest.mark.parametrize("name", FORBIDDEN)
def test_forbidden_calls_are_forbidden_in_the_widest_filter(name: str) -> None:
    """Nothing that a jail may be given brings these back."""
    widest = dict.fromkeys(SWITCHES, True)
    for machine in MACHINES:
        if syscall_tables.number(name, machine) is not None:
            assert Filter(machine, "open", **widest)(name) == EPERM


NEW_NAMESPACES = {
    "mount": 0x20000,
    "cgroup": 0x2000000,
    "uts": 0x4000000,
    "ipc": 0x8000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
}
PTHREAD_FLAGS = 0x3D0F00  # VM FS FILES SIGHAND THREAD SYSVSEM SETTLS PARENT_SETTID CHILD_CLEARTID
VFORK_FLAGS = 0x4111  # VFORK VM SIGCHLD


@pytest.mark.parametrize("flag", NEW_NAMESPACES.values(), ids=NEW_NAMESPACES)
@pytest.mark.parametrize("name", ["clone", "unshare"])
def test_new_namespaces_are_forbidden(machine: str, name: str, flag: int) -> None:
    """Neither clone nor unshare makes a namespace, whatever other flags are there."""
    assert Filter(machine, "open")(name, flag) == EPERM
    assert Filter(machine, "open")(name, flag | PTHREAD_FLAGS) == EPERM


@pytest.mark.parametrize("flags", [17, PTHREAD_FLAGS, VFORK_FLAGS], ids=["fork", "thread", "vfork"])
def test_processes_and_threads_are_allowed(machine: str, flags: int) -> None:
    """clone for fork, pthread_create and posix_spawn passes."""
    assert Filter(machine)("clone", flags) == seccomp.ALLOW


def test_the_time_namespace_bit_means_a_namespace_only_in_unshare(machine: str) -> None:
    """In clone the same bit belongs to the exit signal's number."""
    assert Filter(machine)("unshare", 0x80) == EPERM
    assert Filter(machine)("clone", 0x80) == seccomp.ALLOW
    assert Filter(machine)("unshare", 0x600) == seccomp.ALLOW  # FS FILES: what threads unshare


@pytest.mark.parametrize("request_", [0x5412, 0x541C, 0x5423], ids=["TIOCSTI", "TIOCLINUX", "TIOCSETD"])
def test_input_cannot_be_pushed_into_a_terminal(machine: str, request_: int) -> None:
    """Terminal requests that type for the user are forbidden, high bits or not."""
    for high in (0, 1 << 32, 0xFFFFFFFF << 32):
        assert Filter(machine, "open")("ioctl", 0, request_ | high) == EPERM


FILE_COMMANDS = {1024: EPERM, 1040: EPERM, 10: EPERM} | dict.fromkeys((0, 1, 4, 6, 8, 9, 11, 1030), seccomp.ALLOW)
"""F_SETLEASE, F_SETDELEG, F_SETSIG; F_DUPFD, F_GETFD, F_SETFL, locks, F_SETOWN, F_GETOWN, F_GETSIG, F_DUPFD_CLOEXEC."""


@pytest.mark.parametrize(("command", "answer"), FILE_COMMANDS.items())
def test_files_tell_others_nothing(machine: str, command: int, answer: int) -> None:
    """What makes others wait for a file, or get any signal of it, is forbidden in all filters, high bits or not."""
    for filter in (filter for filter in FILTERS if filter.machine == machine):
        for high in (0, 1 << 32, 0xFFFFFFFF << 32):
            assert filter("fcntl", 3, command | high) == answer


@pytest.mark.parametrize("request_", [0x5401, 0x5413, 0x541B, 0x80045430], ids=["TCGETS", "WINSZ", "FIONREAD", "PTN"])
def test_ordinary_terminal_requests_are_allowed(machine: str, request_: int) -> None:
    """Asking for modes, size, and making ptys works."""
    assert Filter(machine)("ioctl", 0, request_) == seccomp.ALLOW


@pytest.mark.parametrize(
    ("persona", "answer"),
    [
        (0, seccomp.ALLOW),
        (0xFFFFFFFF, seccomp.ALLOW),
        (0x40000, seccomp.ALLOW),
        (8, seccomp.ALLOW),
        (0x400000, EPERM),
        (0x440000, EPERM),
        (1, EPERM),
    ],
    ids=["linux", "question", "no-randomize", "linux32", "read-implies-exec", "both", "svr4"],
)
def test_only_harmless_personalities_pass(machine: str, persona: int, answer: int) -> None:
    """A debugger may switch randomization off; nobody may make data executable."""
    assert Filter(machine)("personality", persona) == answer


@pytest.mark.parametrize("name", BY_PID)
def test_limits_and_scheduling_of_others_are_closed_without_a_pid_namespace(machine: str, name: str) -> None:
    """Only the caller itself (0) can be meant; a number could be anybody's."""
    filter = Filter(machine, "open")
    assert filter(name, 0) == seccomp.ALLOW
    assert filter(name, 1) == EPERM
    assert filter(name, 4242) == EPERM


@pytest.mark.parametrize("name", BY_PID)
def test_limits_and_scheduling_are_open_in_a_pid_namespace(machine: str, name: str) -> None:
    """There, numbers name processes of the jail and no others."""
    assert Filter(machine, own_processes=True)(name, 4242) == seccomp.ALLOW


CORE = {"setrlimit": (4, 0x7000), "prlimit64": (0, 4, 0x7000), "prlimit64 at 4 GiB": (0, 4, 1 << 32)}


@pytest.mark.parametrize("call", CORE)
def test_the_limit_of_core_dumps_stays_and_who_sets_it_is_content(call: str) -> None:
    """In all filters, high bits or not; the kernel asks a helper of root's for a dump at every value but 1."""
    name = call.split()[0]
    for filter in FILTERS:
        for high in (0, 1 << 32, 0xFFFFFFFF << 32):
            words = tuple(word | high if word == 4 else word for word in CORE[call])
            assert filter(name, *words) == DONE
            assert filter(name, *(7 if word == words[-2] else word for word in words)) == seccomp.ALLOW
        assert filter("prlimit64", 0, 4, 0, 0x7000) == seccomp.ALLOW  # a question


@pytest.mark.parametrize(("name", "process", "group", "user"), [("setpriority", 0, 1, 2), ("ioprio_set", 1, 2, 3)])
def test_priorities_reach_nobody_outside(machine: str, name: str, process: int, group: int, user: int) -> None:
    """The own process group may have members outside, in a PID namespace too."""
    bare, namespaced = Filter(machine), Filter(machine, own_processes=True)
    assert bare(name, process, 0) == seccomp.ALLOW
    assert [bare(name, which, 7) for which in (process, group, user)] == [EPERM] * 3
    assert [bare(name, which, 0) for which in (group, user)] == [EPERM] * 2
    assert [namespaced(name, which, 7) for which in (process, group, user)] == [seccomp.ALLOW] * 3
    assert namespaced(name, group, 0) == EPERM
    assert namespaced(name, process, 0) == seccomp.ALLOW


def test_the_own_process_group_can_be_signalled_only_where_that_is_safe(machine: str) -> None:
    """`kill 0` reaches the rest of a pipeline unless Landlock scopes signals."""
    assert Filter(machine)("kill", 0, 15) == EPERM
    assert Filter(machine)("kill", 7 << 32, 15) == EPERM
    assert Filter(machine)("kill", 1234, 15) == seccomp.ALLOW
    assert Filter(machine, kill_zero=True)("kill", 0, 15) == seccomp.ALLOW


@pytest.mark.parametrize("name", IPC)
def test_system_v_ipc_needs_a_namespace(machine: str, name: str) -> None:
    """Making, finding and using an object are closed together, since identifiers can be guessed."""
    assert Filter(machine, "open")(name) == EPERM
    assert Filter(machine, own_ipc=True)(name) == seccomp.ALLOW
