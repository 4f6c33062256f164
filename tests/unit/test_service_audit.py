"""Which launcher gets which audit record from the service; a socket pair stands for the kernel."""

import asyncio
import os
import socket
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

from launcher.ledger import audit as records
from launcher.ledger import audit_socket
from launcher.ledger.audit import Reader
from launcher.ledger.denial import Denial
from launcher.service import kernel_audit
from launcher.service.kernel_audit import Exchange
from launcher.session.places import AUDIT_SOCKET

HERE = os.getpid()
INIT = 1_000_100
"""The jail's init; its launcher is this very process."""
FOREIGN = 1_000_900
PARENTS = {INIT: HERE, INIT + 1: INIT, INIT + 2: INIT + 1, FOREIGN: 1}


class Kernel:
    """Sends records, as netlink messages do, to an exchange that listens in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.ours, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        there.setblocking(False)
        self.exchange = Exchange(there.detach(), lambda pid: PARENTS.get(pid, 0), os.getuid())
        asyncio.get_running_loop().add_reader(self.exchange._listener.fileno(), self.exchange.drain)
        self.exchange.listen(str(directory))
        self._serial = 0

    async def send(self, *lines: tuple[int, str]) -> None:
        """One event of these records."""
        self._serial += 1
        for kind, text in lines:
            line = f"audit(5.000:{self._serial}): {text}".encode()
            self.ours.send((16 + len(line)).to_bytes(4, "little") + kind.to_bytes(2, "little") + bytes(10) + line)
        await settle()

    async def proof(self, domain: str, asked: int = INIT, parent: int | None = None) -> None:
        """What a command's process provokes first."""
        await self.send(
            (records.LANDLOCK_ACCESS, f'domain={domain} blockers=scope.signal opid={asked} ocomm="x"'),
            (records.LANDLOCK_DOMAIN, f"domain={domain} status=allocated mode=enforcing pid={asked + 1}"),
            (records.SYSCALL, f"syscall=62 ppid={asked if parent is None else parent} pid={asked + 1}"),
            (records.END_OF_EVENT, ""),
        )

    async def denial(self, domain: str, path: str) -> None:
        """A file that was not read."""
        await self.send(
            (records.LANDLOCK_ACCESS, f'domain={domain} blockers=fs.read_file path="{path}" dev="vda" ino=1'),
            (records.SYSCALL, f'ppid={INIT + 1} pid={INIT + 2} comm="cat" exe="/bin/cat"'),
            (records.END_OF_EVENT, ""),
        )


class Launcher:
    """This process as a launcher: asks, and reads with what every session reads with."""

    def __init__(self, directory: Path) -> None:
        self.found: list[Denial] = []
        fd = audit_socket.request_stream(str(directory / AUDIT_SOCKET))
        assert fd != -1
        self.reader = Reader(fd, lambda pid: INIT <= pid < INIT + 10, self.found.append)

    def paths(self) -> list[str]:
        """What was refused, as far as it has come."""
        self.reader.drain()
        return [denial.path for denial in self.found]


async def settle() -> None:
    """Lets the exchange handle what has arrived."""
    for _ in range(5):
        await asyncio.sleep(0)


def run(directory: Path, act: Callable[[Kernel], Awaitable[None]]) -> None:
    """Runs `act` with an exchange that listens in `directory`."""

    async def main() -> None:
        kernel = Kernel(directory)
        try:
            await act(kernel)
        finally:
            kernel.exchange.close()
            kernel.ours.close()

    asyncio.run(main())


def test_a_launcher_gets_the_records_of_its_own_domain(tmp_path: Path) -> None:
    """After its command's proof, denials of that domain arrive whole, and others' do not."""

    async def act(kernel: Kernel) -> None:
        launcher = Launcher(tmp_path)
        await settle()
        await kernel.denial("beef", "/nobody's")
        await kernel.proof("cafe")
        await kernel.proof("dead", FOREIGN)
        await kernel.denial("cafe", "/mine")
        await kernel.denial("dead", "/another's")
        assert launcher.paths() == ["/mine"]
        assert launcher.reader.heard
        assert launcher.found[0].process.comm == "cat"
        await kernel.send((records.LANDLOCK_DOMAIN, "domain=cafe status=deallocated denials=4"))
        assert launcher.paths() == ["/mine"]
        assert launcher.reader.lost == 2
        launcher.reader.close()

    run(tmp_path, act)


def test_what_comes_before_the_launcher_has_asked_is_not_lost(tmp_path: Path) -> None:
    """A busy service hears of the launcher after its command's first denials: they are handed on then, in order."""

    async def act(kernel: Kernel) -> None:
        await kernel.proof("cafe")
        await kernel.denial("cafe", "/first")
        launcher = Launcher(tmp_path)
        await settle()
        await kernel.denial("cafe", "/second")
        assert launcher.paths() == ["/first", "/second"]
        launcher.reader.close()

    run(tmp_path, act)


def test_nobody_gets_another_ones_domain_by_signalling_his_init(tmp_path: Path) -> None:
    """A process that signals a jail's init, and is not its child, proves nothing."""

    async def act(kernel: Kernel) -> None:
        launcher = Launcher(tmp_path)
        await settle()
        await kernel.proof("evil", INIT, parent=FOREIGN)
        await kernel.denial("evil", "/forged")
        assert launcher.paths() == []
        assert not launcher.reader.heard
        launcher.reader.close()

    run(tmp_path, act)


def test_the_service_knows_that_it_hears_when_its_own_proof_arrives(tmp_path: Path) -> None:
    """Another process's proof says nothing of that: its number could be of another namespace."""

    async def act(kernel: Kernel) -> None:
        await kernel.proof("cafe", FOREIGN)
        assert not kernel.exchange.heard.is_set()
        await kernel.proof("beef", HERE)
        assert kernel.exchange.heard.is_set()

    run(tmp_path, act)


def test_refused_system_calls_go_to_the_launcher_above_the_process(tmp_path: Path) -> None:
    """Seccomp's records name no domain; the process that made the call leads to its launcher."""

    async def act(kernel: Kernel) -> None:
        launcher = Launcher(tmp_path)
        await settle()
        for pid in (INIT + 2, FOREIGN):
            await kernel.send((records.SECCOMP, f'pid={pid} comm="x" exe="/x" sig=0 arch=c000003e syscall=321'))
        assert launcher.paths() == [""]
        assert launcher.found[0].layer == "seccomp"
        launcher.reader.close()

    run(tmp_path, act)


def test_strangers_and_nonsense_get_nothing(tmp_path: Path) -> None:
    """A message without a socket, with a file, with two, or with other words makes nobody a launcher."""

    async def act(kernel: Kernel) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking, (tmp_path / "file").open("w") as file:
            fd = file.fileno()
            one = (socket.SOL_SOCKET, socket.SCM_RIGHTS, fd.to_bytes(4, "little"))
            two = (socket.SOL_SOCKET, socket.SCM_RIGHTS, fd.to_bytes(4, "little") * 2)
            greeting = audit_socket.STREAM_GREETING
            for words, passed in ((greeting, []), (greeting, [one]), (b"", [one]),
                                  (audit_socket.STREAM_GREETING, [two]), (b"x" * 4096, [])):  # fmt: skip
                asking.sendmsg([words], passed, 0, str(tmp_path / AUDIT_SOCKET))
        before = len(os.listdir("/proc/self/fd"))
        await settle()
        assert kernel.exchange.launchers == 0
        assert len(os.listdir("/proc/self/fd")) == before

    run(tmp_path, act)


def test_the_socket_is_its_users_alone_and_goes_with_the_service(tmp_path: Path) -> None:
    """Mode 0600; a socket that a killed service has left is replaced; without a service nobody sends records."""
    (tmp_path / AUDIT_SOCKET).write_text("left behind")

    async def act(kernel: Kernel) -> None:
        assert (tmp_path / AUDIT_SOCKET).stat().st_mode & 0o777 == 0o600

    run(tmp_path, act)
    assert not (tmp_path / AUDIT_SOCKET).exists()
    assert audit_socket.request_stream(str(tmp_path / AUDIT_SOCKET)) == -1


def test_a_launcher_that_has_ended_is_forgotten(tmp_path: Path) -> None:
    """Its process, its socket and its domains are let go of."""

    async def act(kernel: Kernel) -> None:
        program = "import sys; from launcher.ledger import audit_socket as a; print(a.request_stream(sys.argv[1]))"
        words = ["python3", "-c", program, str(tmp_path / AUDIT_SOCKET)]
        root = Path(kernel_audit.__file__).parents[2]
        child = subprocess.run(words, capture_output=True, text=True, check=True, cwd=root)
        assert int(child.stdout) > 2
        launcher = Launcher(tmp_path)
        for _ in range(100):
            await asyncio.sleep(0.01)
            if kernel.exchange.launchers == 1:
                break
        assert kernel.exchange.launchers == 1
        launcher.reader.close()

    run(tmp_path, act)


def test_a_flood_of_foreign_records_needs_no_more_memory(tmp_path: Path) -> None:
    """What is nobody's is kept for a while only: the newest thousand events."""

    async def act(kernel: Kernel) -> None:
        launcher = Launcher(tmp_path)
        await settle()
        for number in range(3_000):
            await kernel.denial(f"{number:x}", "/foreign")
        assert len(kernel.exchange._unclaimed) <= kernel_audit._MOST_KEPT
        await kernel.proof("cafe1")
        await kernel.denial("cafe1", "/mine")
        assert launcher.paths() == ["/mine"]
        launcher.reader.close()

    run(tmp_path, act)
