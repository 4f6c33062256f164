"""Attacks on the surface of the kernel: what no agent needs and no jail should have. Mostly calls by number.

A call that comes back with an error about its arguments has reached the kernel's code: that counts as through.
"""

import ctypes
import errno
import mmap
import os
import platform
import signal

from tests.support.programs.harness import Given, Programme, checked, in_child, libc, syscall

PROGRAMME = Programme()
attack, twin = PROGRAMME.attack, PROGRAMME.twin

CLONE_NEW = {
    **{"mount": 0x20000, "cgroup": 0x2000000, "uts": 0x4000000, "ipc": 0x8000000, "user": 0x10000000},
    **{"pid": 0x20000000, "net": 0x40000000, "time": 0x80},
}
CLOSED = (errno.EPERM, errno.ENOSYS)
X32 = 0x40000000


def _called(name: str, *arguments: object, label: str = "") -> None:
    """An attack by one call: only EPERM and ENOSYS count as closed, every other answer as reached."""

    def act(given: Given) -> str:
        try:
            return str(syscall(name, *arguments))
        except OSError as error:
            if error.errno in CLOSED:
                raise
            return f"reached: {errno.errorcode[error.errno or 0]}"

    act.__name__ = f"call_{name}" + (f"_{label}" if label else "")
    attack(act)


for _name, *_arguments in (
    ("io_uring_setup", 1, 0),
    ("bpf", 0, 0, 0),
    ("perf_event_open", 0, 0, -1, -1, 0),
    ("userfaultfd", 1),
    ("add_key", 0, 0, 0, 0, 0),
    ("request_key", 0, 0, 0, 0),
    ("keyctl", 1, 0),
    ("mount", b"none", b"/", 0, 0x44000, 0),
    ("umount2", b"/proc", 2),
    ("pivot_root", b".", b"."),
    ("chroot", b"/"),
    ("move_mount", -1, b"", -1, b"", 0),
    ("open_tree", -100, b"/", 1),
    ("fsopen", b"tmpfs", 0),
    ("fsconfig", -1, 0, 0, 0, 0),
    ("fsmount", -1, 0, 0),
    ("fspick", -100, b"/", 0),
    ("mount_setattr", -100, b"/", 0, 0, 0),
    ("setns", -1, 0),
    ("name_to_handle_at", -100, b"/", 0, 0, 0),
    ("open_by_handle_at", -1, 0, 0),
    ("fanotify_init", 0, 0),
    ("kexec_load", 0, 0, 0, 0),
    ("init_module", 0, 0, 0),
    ("finit_module", -1, 0, 0),
    ("delete_module", b"x", 0),
    ("swapon", b"/nowhere", 0),
    ("acct", 0),
    ("quotactl", 0x800000 << 8, 0, 0, 0),
    ("adjtimex", 0),
    ("syslog", 10, 0, 0),
    ("vhangup",),
    ("sethostname", b"planted", 7),
    ("setdomainname", b"planted", 7),
    ("kcmp", 1, 1, 0, 0, 0),
    ("clone3", 0, 0),
    ("file_setattr", -100, b".", 0, 0, 0),
):
    _called(_name, *_arguments)


def _namespaces() -> None:
    def made(name: str, act: object) -> None:
        act.__name__ = name  # type: ignore[attr-defined]  # a function
        attack(act)  # type: ignore[arg-type]  # a function

    for name, flag in CLONE_NEW.items():

        def unshared(given: Given, flag: int = flag) -> None:
            syscall("unshare", flag)

        def cloned(given: Given, flag: int = flag) -> None:
            # The raw call forks when it is let through; the child must go at once.
            if syscall("clone", flag | signal.SIGCHLD, 0, 0, 0, 0) == 0:
                os._exit(0)

        made(f"unshare_{name}", unshared)
        if flag != CLONE_NEW["time"]:  # that bit is part of clone's exit signal
            made(f"clone_{name}", cloned)

        def joined(given: Given, name: str = name) -> None:
            file = {"mount": "mnt"}.get(name, name)
            descriptor = os.open(f"/proc/self/ns/{file}", os.O_RDONLY)
            try:
                syscall("setns", descriptor, 0)
            except OSError as error:
                if error.errno not in CLOSED:
                    return
                raise

        made(f"join_{name}", joined)


_namespaces()


@attack
def unshare_all_at_once(given: Given) -> None:
    syscall("unshare", sum(CLONE_NEW.values()))


@attack
def unshare_with_high_bits(given: Given) -> None:
    """unshare takes 64 bits; what the filter does not look at must not help."""
    syscall("unshare", 1 << 40 | CLONE_NEW["user"])


def machine_code(code: bytes) -> int:
    """Runs machine code and returns what it leaves in the first register."""
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    return int(function())


if platform.machine() == "x86_64":

    @attack
    def call_in_32_bits(given: Given) -> int:
        """mov eax, 20 (getpid); int 0x80; ret."""
        return machine_code(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")

    @attack
    def call_keyctl_in_32_bits(given: Given) -> int:
        """mov eax, 288 (keyctl); xor ebx, ebx; int 0x80; ret: on i386 number 288, here splice."""
        return machine_code(b"\x53\xb8\x20\x01\x00\x00\x31\xdb\xcd\x80\x5b\xc3")

    @attack
    def call_by_x32(given: Given) -> int:
        return checked(libc.syscall(X32 | 39))

    @attack
    def call_ptrace_by_x32(given: Given) -> int:
        return checked(libc.syscall(X32 | 521, 0, 0, 0, 0))

    @attack
    def raise_the_io_privilege(given: Given) -> None:
        syscall("iopl", 3)

    @attack
    def change_the_descriptor_table(given: Given) -> None:
        syscall("modify_ldt", 0, 0, 0)


@attack
def change_the_personality(given: Given) -> None:
    """READ_IMPLIES_EXEC makes every readable page executable."""
    syscall("personality", 0x0400000)


@attack
def write_protect_nothing(given: Given) -> None:
    """MMAP_PAGE_ZERO and SHORT_INODE: old ways to turn a null pointer into code."""
    syscall("personality", 0x0100000)


@attack
def map_the_first_page(given: Given) -> None:
    result = libc.mmap
    result.restype = ctypes.c_void_p
    if result(ctypes.c_void_p(0), 4096, 3, 0x32, -1, 0) in (ctypes.c_void_p(-1).value, None):
        raise OSError(errno.EPERM, "mmap")


@attack
def call_a_number_of_the_future(given: Given) -> str:
    """A call that this kernel may have and the filter does not know."""
    for number in range(472, 520):
        result = libc.syscall(number, 0, 0, 0, 0, 0, 0)
        if result != -1 or ctypes.get_errno() != errno.ENOSYS:
            return f"{number}: {result} {ctypes.get_errno()}"
    raise OSError(errno.ENOSYS, "all")


@attack
def mount_with_a_helper(given: Given) -> None:
    assert os.system("mount -t tmpfs none /tmp 2>/dev/null || fusermount -u /tmp 2>/dev/null") == 0, "no"


@attack
def make_a_namespace_with_a_tool(given: Given) -> None:
    assert os.system("unshare --user --map-root-user true 2>/dev/null") == 0, "no"


@twin
def an_ordinary_process(given: Given) -> None:
    assert os.waitpid(in_child(lambda: None), 0)[1] == 0


@twin
def a_thread(given: Given) -> None:
    import threading

    found: list[int] = []
    thread = threading.Thread(target=found.append, args=(1,))
    thread.start()
    thread.join()
    assert found == [1]


@twin
def unshare_the_file_table(given: Given) -> None:
    syscall("unshare", 0x400)


@twin
def ask_for_the_personality(given: Given) -> None:
    syscall("personality", 0xFFFFFFFF)


@twin
def switch_off_randomisation(given: Given) -> None:
    """What debuggers do for their child: ADDR_NO_RANDOMIZE."""
    syscall("personality", 0x0040000)


@twin
def trace_a_child(given: Given) -> None:
    pid = os.fork()
    if pid == 0:
        syscall("ptrace", 0, 0, 0, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(7)
    assert os.WIFSTOPPED(os.waitpid(pid, 0)[1])
    syscall("ptrace", 7, pid, 0, 0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
