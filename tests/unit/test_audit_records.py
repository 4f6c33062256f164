"""The kernel's audit records as values, and what a reader makes of them; lines as Linux 6.18 wrote them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.ledger import audit as records
from launcher.ledger import denial

ACCESS = (
    b'audit(1795270810.004:408): domain=16019f076 blockers=fs.make_reg,fs.refer path="/tmp/a b" dev="vda" ino=260072\0'
)
SYSCALL = (
    b"audit(1795270810.004:408): arch=c000003e syscall=257 success=no exit=-13 a0=ffffff9c items=0 ppid=11715 pid=11721"
    b' auid=4294967295 uid=0 tty=(none) ses=4294967295 comm="touch" exe="/usr/bin/touch" key=(null)'
)
SIGNAL = b'audit(1795270810.008:411): domain=16019f076 blockers=scope.signal opid=1 ocomm="process_api"'
HEX = b"audit(1.5:9): domain=1 blockers=fs.read_file path=2F746D702FFF0A22 dev=(null)"
ABSTRACT = b"audit(1.5:9): domain=1 blockers=scope.abstract_unix_socket path=0061626364"
CONNECT = b"audit(1.5:9): domain=1 blockers=net.connect_tcp daddr=127.0.0.1 dest=80"
SECCOMP = (
    b'audit(1.5:9): auid=1 uid=0 gid=0 ses=1 pid=77 comm="x" exe="/bin/x" sig=31 arch=40000003 syscall=20 code=0x0'
)


def fields(line: bytes) -> dict[str, str]:
    found = records.parse_record(records.LANDLOCK_ACCESS, line)
    assert found is not None
    return found[3]


def test_an_access_record_names_path_and_rights() -> None:
    """With the system call's record, the process too."""
    found = records.parse_record(records.LANDLOCK_ACCESS, ACCESS)
    assert found is not None
    assert found[:3] == (records.LANDLOCK_ACCESS, 1795270810.004, 408)
    told = denial.of_landlock(found[1], found[3], fields(SYSCALL))
    assert (told.path, told.rights) == ("/tmp/a b", ("fs.make_reg", "fs.refer"))
    assert told.process == (11721, "touch", "/usr/bin/touch")
    assert (told.operation, told.wanted) == ("make a file in and move or link across", "w")


def test_a_path_of_odd_bytes_comes_decoded() -> None:
    """The kernel writes it in hexadecimal, so that nobody can put a field of his own into the line."""
    assert fields(HEX)["path"] == '/tmp/\udcff\n"'
    assert fields(b'audit(1.5:9): path="/a domain=5" domain=7')["domain"] == "7"


def test_other_objects_than_files() -> None:
    """Processes, abstract sockets and addresses are what a denial was about, too."""
    assert denial.of_landlock(1.0, fields(SIGNAL), {}).target == "process 1 (process_api)"
    abstract = denial.of_landlock(1.0, fields(ABSTRACT), {})
    assert (abstract.path, abstract.target) == ("", "@abcd")
    connect = denial.of_landlock(1.0, fields(CONNECT), {})
    assert (connect.host, connect.port, connect.operation) == ("127.0.0.1", 80, "connect")


def test_seccomp_names_its_process_and_call() -> None:
    """Of the system call it has only the number."""
    told = denial.of_seccomp(1.0, fields(SECCOMP))
    assert (told.process.pid, told.process.exe, told.target, told.layer) == (77, "/bin/x", "20 of 40000003", "seccomp")


@pytest.mark.parametrize(("rights", "letter"), [("fs.read_file", "r"), ("fs.read_dir", "r"), ("fs.execute", "x"),
                                                 ("fs.execute,fs.read_file", "x"), ("fs.read_file,fs.truncate", "w"),
                                                 ("fs.something_new", "w")])  # fmt: skip
def test_the_access_that_a_grant_needs(rights: str, letter: str) -> None:
    """The largest of all that was missing; a right that is not known here is not taken for reading."""
    assert denial.of_landlock(1.0, {"blockers": rights, "path": "/x"}, {}).wanted == letter


@given(st.sampled_from(sorted(records.WANTED)), st.binary(max_size=300) | st.binary(max_size=200).map(
    lambda rest: b"audit(1.5:9): domain=1 blockers=fs.read_file " + rest))  # fmt: skip
def test_no_bytes_break_the_parser(kind: int, line: bytes) -> None:
    """What is no record is None; what is one is strings."""
    found = records.parse_record(kind, line)
    if found is not None:
        assert all(isinstance(text, str) for pair in found[3].items() for text in pair)
        denial.of_landlock(found[1], found[3], found[3])
    assert records.serial_of(line) >= -1
