"""Which of the machine's audit records a reader takes for its session's own; a socket pair stands for the kernel."""

import socket
from collections.abc import Iterator

import pytest

from launcher.ledger import audit as records
from launcher.ledger.audit import Reader
from launcher.ledger.denial import Denial

INIT = 100


class Kernel:
    """Sends records, as netlink messages do."""

    def __init__(self) -> None:
        self._socket, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        there.setblocking(False)
        self.found: list[Denial] = []
        self.reader = Reader(there.detach(), lambda pid: INIT <= pid < INIT + 10, self.found.append)
        self._serial = 0

    def send(self, *lines: tuple[int, str]) -> None:
        """One event of these records."""
        self._serial += 1
        for kind, text in lines:
            line = f"audit(5.000:{self._serial}): {text}".encode()
            header = (16 + len(line)).to_bytes(4, "little") + kind.to_bytes(2, "little") + bytes(10)
            self._socket.send(header + line)
        self.reader.drain()

    def proof(self, domain: str, asked: int = INIT, *, parent: int | None = None, first: bool = True) -> None:
        """What a command's process provokes."""
        lines = [(records.LANDLOCK_ACCESS, f'domain={domain} blockers=scope.signal opid={asked} ocomm="x"')]
        if first:
            lines.append((records.LANDLOCK_DOMAIN, f"domain={domain} status=allocated mode=enforcing pid=101"))
        lines.append((records.SYSCALL, f"syscall=62 ppid={asked if parent is None else parent} pid=101"))
        self.send(*lines, (records.END_OF_EVENT, ""))

    def denial(self, domain: str, path: str = "/x", *, syscall: bool = True) -> None:
        """A file that was not read."""
        lines = [(records.LANDLOCK_ACCESS, f'domain={domain} blockers=fs.read_file path="{path}" dev="vda" ino=1')]
        if syscall:
            lines += [(records.SYSCALL, 'ppid=101 pid=102 comm="cat" exe="/bin/cat"'), (records.END_OF_EVENT, "")]
        self.send(*lines)

    def end(self, domain: str, denials: int) -> None:
        """A domain is gone."""
        self.send((records.LANDLOCK_DOMAIN, f"domain={domain} status=deallocated denials={denials}"))

    def close(self) -> None:
        """Both ends."""
        self._socket.close()
        self.reader.close()


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    found = Kernel()
    yield found
    found.close()


def test_the_proof_ties_a_domain_to_the_session(kernel: Kernel) -> None:
    """What came before is not heard, and the proof itself is no denial."""
    kernel.denial("a1")
    assert not kernel.reader.heard
    kernel.proof("a1")
    assert kernel.reader.heard
    kernel.denial("a1", "/y")
    assert [(denial.path, denial.process.comm) for denial in kernel.found] == [("/y", "cat")]


def test_other_domains_are_let_go_by(kernel: Kernel) -> None:
    """Also one whose name begins like ours, and one made inside of ours."""
    kernel.proof("a1")
    for domain in ("a", "a11", "b2"):
        kernel.denial(domain)
    assert kernel.found == []


@pytest.mark.parametrize("wrong", [{"asked": 7}, {"first": False}, {"parent": 7}], ids=["process", "domain", "parent"])
def test_strangers_cannot_tie_a_domain_of_theirs(kernel: Kernel, wrong: dict[str, int | bool]) -> None:
    """It must be the domain's first denial, by a child of a process of the session's."""
    kernel.proof("b2", **wrong)  # type: ignore[arg-type]  # one of each kind
    kernel.denial("b2")
    assert not kernel.reader.heard
    assert kernel.found == []


def test_further_commands_tie_further_domains(kernel: Kernel) -> None:
    """Their parent lives below the init."""
    kernel.proof("a1")
    kernel.proof("c3", INIT + 5)
    kernel.denial("c3")
    kernel.denial("a1")
    assert len(kernel.found) == 2


def test_without_a_record_of_the_system_call_the_path_is_told(kernel: Kernel) -> None:
    """Rules can switch these off for a process; then who asked stays unknown."""
    kernel.proof("a1")
    kernel.denial("a1", syscall=False)
    kernel.reader.await_ends(0)
    kernel.end("a1", 2)
    kernel.reader.settle(0.05)
    assert [(denial.path, denial.process) for denial in kernel.found] == [("/x", (0, "", ""))]
    assert kernel.reader.lost == 0


def test_what_the_kernel_counted_and_nobody_heard_is_lost(kernel: Kernel) -> None:
    """Known when the domain has ended; other domains' losses are theirs."""
    kernel.proof("a1")
    kernel.denial("a1")
    assert kernel.reader.lost == 0
    kernel.end("a1", 10)
    kernel.end("b2", 99)
    assert kernel.reader.lost == 8


def test_nonsense_is_passed_over(kernel: Kernel) -> None:
    """Records that are none, of known kinds."""
    kernel.proof("a1")
    for kind in records.WANTED:
        kernel.send((kind, ""), (kind, "domain=a1 domain= blockers"), (kind, "\0\0"))
    kernel.denial("a1")
    assert kernel.found[-1].path == "/x"
