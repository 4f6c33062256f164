"""The system call filter in the running kernel, as root and as a user."""

import asyncio
import ctypes
import errno
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from launcher.jail import hygiene, seccomp, syscall_tables, syscalls
from policy.errors import Refusal
from tests.support import forked
from tests.support.bpf import HERE, LIBC, call, filtered, raw
from tests.support.forked import verdict
from tests.support.identity import AS_A_USER, Who


def test_the_kernel_accepts_every_filter(who: Who) -> None:
    """Each mode and switch gives a program that passes the kernel's checker, and is in force afterwards."""

    def act() -> str:
        for net in seccomp.NETWORKS:
            for switches in range(32):
                bits = [bool(switches >> bit & 1) for bit in range(5)]
                names = ("own_network", "own_processes", "own_ipc", "kill_zero", "unix_datagrams")
                filtered(lambda: None, net, **dict(zip(names, bits, strict=True)))
        return Path("/proc/self/status").read_text()

    # Filters are stacked, so the checks of all of them hold at once; the kernel reports their number.
    status = forked.run(act, who)
    assert re.search(r"^Seccomp:\s2$", status, re.MULTILINE)
    assert re.search(r"^Seccomp_filters:\s96$", status, re.MULTILINE)


def test_without_no_new_privs_a_user_is_refused(user: Who) -> None:
    """The kernel takes filters only from processes that gave up set-uid."""

    def act() -> str:
        try:
            hygiene.install_filter(
                seccomp.program(
                    syscalls.MACHINE,
                    net="open",
                    own_network=False,
                    own_processes=False,
                    own_ipc=False,
                    kill_zero=False,
                    unix_datagrams=True,
                )
            )
        except Refusal as refusal:
            return refusal.reference
        return "installed"

    assert forked.run(act, user) == "seccomp-refused"


def tried(names: list[str]) -> dict[str, str]:
    """What becomes of each call by `names`. All arguments are zero, so that without a filter nothing would happen but
    another error; each is made in a process of its own, which one that succeeds may end or change.
    """
    return {name: forked.run(lambda name=name: call(name)) for name in names}  # type: ignore[misc]


def test_forbidden_calls_fail_with_eperm(who: Who) -> None:
    """Whatever they are for."""
    names = [name for name in (*seccomp._FORBIDDEN, *seccomp._IPC) if name in HERE]
    assert forked.run(lambda: filtered(lambda: tried(names), "open"), who) == dict.fromkeys(names, "EPERM")


def test_calls_with_a_fallback_do_not_exist(who: Who) -> None:
    """ENOSYS, even for root."""
    names = [name for name in seccomp._ABSENT if name in HERE]
    assert forked.run(lambda: filtered(lambda: tried(names), "open"), who) == dict.fromkeys(names, "ENOSYS")


def test_without_the_filter_these_calls_answer_for_themselves() -> None:
    """The twin: the errors above are the filter's, not the kernel's."""
    found = tried(["userfaultfd", "name_to_handle_at", "perf_event_open", "io_uring_setup", "mq_open"])
    assert not {name for name, outcome in found.items() if outcome in ("EPERM", "ENOSYS")}, found


def test_the_next_system_call_of_a_future_kernel_does_not_exist(who: Who) -> None:
    """Numbers that nobody judged are ENOSYS."""
    assert forked.run(lambda: filtered(lambda: raw(syscall_tables.NEWEST + 1), "open"), who) == "ENOSYS"


I386 = """
int main(void) {
    long pid;
    __asm__ volatile ("int $0x80" : "=a"(pid) : "a"(20L) : "memory");  /* getpid of i386 */
    return pid > 0 ? 0 : 1;
}
"""


@pytest.mark.skipif(syscalls.MACHINE != "x86_64", reason="int 0x80 and x32 exist on x86-64 only")
class TestForeignInstructionSets:
    """The two ways on x86-64 to make calls by other numbers."""

    @pytest.fixture
    def int80(self, public_dir: Path) -> Path:
        """A programme that makes one i386 call."""
        program = public_dir / "int80"
        source = public_dir / "int80.c"
        source.write_text(I386)
        subprocess.run(["gcc", "-static-pie", "-O1", "-o", program, source], check=True, capture_output=True)
        return program

    def test_an_i386_call_kills(self, int80: Path, who: Who) -> None:
        """SIGSYS ends the process at the int 0x80; without the filter the kernel answers or lacks the emulation."""

        def act() -> None:
            filtered(lambda: os.execv(int80, [str(int80)]), "open")

        with pytest.raises(forked.Killed) as killed:
            forked.run(act, who)
        assert killed.value.signal == signal.SIGSYS
        assert subprocess.run([int80], check=False).returncode in (0, -signal.SIGSEGV)

    def test_an_x32_call_kills(self, who: Who) -> None:
        """getpid with the x32 bit; without the filter it is ENOSYS or works."""
        number = syscall_tables.X32_BIT | 39
        with pytest.raises(forked.Killed) as killed:
            forked.run(lambda: filtered(lambda: raw(number), "open"), who)
        assert killed.value.signal == signal.SIGSYS
        assert forked.run(lambda: raw(number)) in ("ok", "ENOSYS")


def test_namespaces_cannot_be_made(who: Who) -> None:
    """unshare and clone with a namespace flag are EPERM; a thread's and a child's flags are not."""

    def act() -> list[str]:
        seen = [verdict(syscalls.unshare, flag) for flag in (0x10000000, 0x20000, 0x40000000, 0x80)]
        seen.append(call("clone", 0x10000000 | signal.SIGCHLD))
        thread = threading.Thread(target=lambda: seen.append("thread"))
        thread.start()
        thread.join()
        pid = os.fork()
        if pid == 0:
            os._exit(7)
        seen.append(f"child {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}")
        seen.append(verdict(syscalls.unshare, 0x200))  # CLONE_FS
        return seen

    assert forked.run(lambda: filtered(act), who) == ["EPERM"] * 5 + ["thread", "child 7", "ok"]


def test_nothing_can_be_typed_into_the_terminal(who: Who) -> None:
    """TIOCSTI on the controlling terminal is EPERM, with high bits set as well; asking for its size is not."""

    def act() -> list[str]:
        _, name = pty.openpty()
        os.setsid()
        syscalls.ioctl(name, 0x540E)  # TIOCSCTTY
        letter = ctypes.create_string_buffer(b"x")
        size = ctypes.create_string_buffer(8)
        address = ctypes.addressof(letter)

        def requests() -> list[str]:
            return [
                call("ioctl", name, 0x5412, address),
                call("ioctl", name, 0x5412 | 1 << 32, address),
                call("ioctl", name, 0x541C, address),
                call("ioctl", name, 0x5413, ctypes.addressof(size)),
            ]

        return filtered(requests)

    assert forked.run(act, who) == ["EPERM", "EPERM", "EPERM", "ok"]


def test_limits_of_others_cannot_be_changed(who: Who) -> None:
    """prlimit on the parent is EPERM without a PID namespace, on oneself it works."""
    parent = os.getpid()
    nice = os.getpriority(os.PRIO_PROCESS, 0)  # of the whole suite, perhaps

    def act() -> list[str]:
        return [
            verdict(syscalls.prlimit64, parent, 4),
            verdict(syscalls.prlimit64, 0, 4),
            verdict(os.setpriority, os.PRIO_PGRP, 0, nice),
            verdict(os.setpriority, os.PRIO_PROCESS, 0, nice),
            verdict(os.sched_setaffinity, parent, os.sched_getaffinity(0)),
            verdict(os.sched_setaffinity, 0, os.sched_getaffinity(0)),
        ]

    assert forked.run(lambda: filtered(act), who) == ["EPERM", "ok", "EPERM", "ok", "EPERM", "ok"]


def test_the_own_process_group_cannot_be_signalled(who: Who) -> None:
    """kill(0) is EPERM; a signal to oneself arrives."""

    def act() -> list[str]:
        return [verdict(os.kill, 0, 0), verdict(os.kill, os.getpid(), 0)]

    assert forked.run(lambda: filtered(act), who) == ["EPERM", "ok"]
    assert forked.run(lambda: filtered(act, kill_zero=True), who) == ["ok", "ok"]


def test_asyncio_and_its_servers_run_behind_the_strictest_filter(who: Who, place: Path) -> None:
    """An event loop, a subprocess in it and a server on a socket file work without any network."""

    async def scene() -> list[object]:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readline())
            writer.close()

        server = await asyncio.start_unix_server(echo, place / "socket")
        reader, writer = await asyncio.open_unix_connection(place / "socket")
        writer.write(b"hello\n")
        answer = await reader.readline()
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()
        child = await asyncio.create_subprocess_exec("/bin/true")
        return [answer, await child.wait()]

    assert forked.run(lambda: filtered(lambda: asyncio.run(scene())), who) == [b"hello\n", 0]


COMMANDS = {
    "shell pipeline": "printf 'a\\nb\\n' | sort -r | head -1 | grep -q b",
    "git commit": "git init -q r && cd r && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x",
    "compiler": "echo 'int main(void){return 0;}' > t.c && gcc -o t t.c && ./t",
    "subprocesses": "python3 -I -S -c 'import subprocess; subprocess.run([\"true\"], check=True)'",
    "pool": 'python3 -I -c \'import multiprocessing as m; p = m.get_context("spawn").Pool(2);'
    " assert p.map(abs, [-1, 2]) == [1, 2]; p.close(); p.join()'",
    "resolver": "python3 -I -c 'import socket; socket.getaddrinfo(\"localhost\", 80)'",
    "pty": "python3 -I -c 'import pty; assert pty.spawn([\"true\"]) == 0'",
}


@AS_A_USER
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_everyday_commands_run_behind_the_strictest_filter(who: Who, place: Path, command: str) -> None:
    """Shells, git, a compiler, Python's subprocesses and resolvers need nothing of what is closed."""

    def act() -> "subprocess.CompletedProcess[str]":
        environment = who.environment() | {"PATH": "/usr/local/bin:/usr/bin:/bin"}
        return filtered(
            lambda: subprocess.run(
                ["/bin/sh", "-ec", command],
                cwd=place,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
        )

    done = forked.run(act, who)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_debugger_can_trace_its_own_child(who: Who) -> None:
    """ptrace of a child works, with capabilities gone as in a jail."""

    def act() -> list[object]:
        hygiene.drop_all()
        pid = os.fork()
        if pid == 0:
            LIBC.ptrace(0, 0, 0, 0)  # PTRACE_TRACEME
            os.kill(os.getpid(), signal.SIGSTOP)
            os._exit(5)
        _, status = os.waitpid(pid, 0)
        stopped = os.WIFSTOPPED(status) and os.WSTOPSIG(status)
        continued = LIBC.ptrace(7, pid, 0, 0)  # PTRACE_CONT
        return [stopped, continued, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]

    assert forked.run(lambda: filtered(act), who) == [signal.SIGSTOP, 0, 5]


def test_the_filter_outlives_exec(who: Who, place: Path) -> None:
    """A programme started later is behind it, too."""
    source = "import ctypes; l = ctypes.CDLL(None, use_errno=True); l.unshare(0x10000000); print(ctypes.get_errno())"

    def act() -> str:
        return filtered(
            lambda: subprocess.run(["/usr/bin/python3", "-I", "-c", source], capture_output=True).stdout.decode()
        )

    assert forked.run(act, who).strip() == str(errno.EPERM)


HEADERS = {
    "x86_64": "#include <asm/unistd_64.h>\n",
    # What arch/arm64/include/uapi/asm/unistd.h sets before it includes the generic table.
    "aarch64": "#define __ARCH_WANT_RENAMEAT\n#define __ARCH_WANT_NEW_STAT\n#define __ARCH_WANT_SET_GET_RLIMIT\n"
    "#define __BITS_PER_LONG 64\n#include <asm-generic/unistd.h>\n",
}


@pytest.mark.skipif(syscalls.MACHINE != "x86_64", reason="x86-64's kernel headers are found on x86-64 only")
@pytest.mark.parametrize("machine", syscall_tables.MACHINES)
def test_the_tables_say_what_the_kernel_headers_say(machine: str) -> None:
    """Every number of the tables that the installed headers know is theirs."""
    text = subprocess.run(
        ["gcc", "-E", "-dM", "-"], input=HEADERS[machine], capture_output=True, text=True, check=True
    ).stdout
    known = {name: int(number) for name, number in re.findall(r"^#define __NR_(\w+) (\d+)$", text, re.MULTILINE)}
    ours = {name: syscall_tables.number(name, machine) for name in (*syscall_tables.UNIFIED, *syscall_tables.OLDER)}
    checked = {name: number for name, number in ours.items() if name in known}
    assert checked == {name: known[name] for name in checked}
    assert len(checked) > 75


def test_this_suite_runs_on_a_known_machine() -> None:
    """The tests above speak for the machine they run on."""
    assert syscalls.MACHINE in syscall_tables.MACHINES
    assert sys.byteorder == "little"
