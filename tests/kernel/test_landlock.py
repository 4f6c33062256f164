"""Landlock rulesets against the running kernel, for every ABI that it can stand in for, as root and as a user."""

import errno
import os
import signal
import socket
import stat
from pathlib import Path

import pytest

from launcher.jail import hygiene, landlock, syscalls
from tests.conftest import IDENTITIES
from tests.support import features, forked
from tests.support.forked import ABIS, create, grants, plant, read, restricted, verdict, write
from tests.support.identity import Who


@pytest.fixture(autouse=True)
def _needs_landlock() -> None:
    features.need("landlock")


@pytest.fixture(params=ABIS)
def abi(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """An ABI pinned through the environment, the way a bug report would do it."""
    monkeypatch.setenv(landlock.ENV_ABI, str(request.param))
    assert landlock.abi() == request.param
    return landlock.abi()


EACH = pytest.mark.parametrize(
    ("who", "abi"),
    [*((IDENTITIES[-1], abi) for abi in ABIS), *((who, ABIS[-1]) for who in IDENTITIES[:-1])],
    indirect=True,
)
"""Every ABI as a user, and root with the newest one."""


@pytest.fixture
def newest() -> int:
    """The newest ABI of this kernel."""
    return landlock.abi()


@pytest.fixture
def tree(place: Path, who: Who) -> Path:
    """`open` and `shut`, alike; see `plant`."""
    return plant(place, who)


@EACH
def test_reads_follow_the_grants(tree: Path, who: Who, abi: int) -> None:
    """Files and listings inside a grant are open, beside it they are not."""

    def act() -> list[str]:
        return [
            *(verdict(read, tree / name) for name in ("open/file", "open/inner/deep", "shut/file")),
            *(verdict(os.listdir, tree / name) for name in ("open", "shut", "")),
        ]

    seen = forked.run(lambda: restricted(grants((tree / "open", "r")), act, abi=abi), who)
    assert seen == ["ok", "ok", "EACCES", "ok", "EACCES", "EACCES"]


@EACH
def test_writes_follow_the_grants(tree: Path, who: Who, abi: int) -> None:
    """Each way to change a tree is open in a writable grant and closed in a readable one."""

    def changes(root: Path) -> dict[str, str]:
        listener = socket.socket(socket.AF_UNIX)
        return {
            "write": verdict(lambda: write(root / "file")),
            "create": verdict(lambda: create(root / "new")),
            "mkdir": verdict(lambda: (root / "made").mkdir()),
            "symlink": verdict(lambda: (root / "link").symlink_to("file")),
            "fifo": verdict(lambda: os.mkfifo(root / "fifo")),
            "socket": verdict(lambda: listener.bind(str(root / "socket"))),
            "rename": verdict(lambda: os.rename(root / "file", root / "renamed")),
            "unlink": verdict(lambda: os.unlink(root / "inner/deep")),
            "rmdir": verdict(lambda: os.rmdir(root / "empty")),
        }

    given = grants((tree / "open", "rw"), (tree / "shut", "r"))
    seen = forked.run(lambda: restricted(given, lambda: (changes(tree / "open"), changes(tree / "shut")), abi=abi), who)
    assert set(seen[0].values()) == {"ok"}
    assert set(seen[1].values()) == {"EACCES"}


@EACH
def test_truncation_is_held_from_abi_3_on(tree: Path, who: Who, abi: int) -> None:
    """Before it, truncate(2) empties any file that the user may write: the writes row is not held there."""

    def act() -> list[str]:
        return [verdict(os.truncate, tree / name / "file", 0) for name in ("open", "shut")]

    given = grants((tree / "open", "rw"), (tree / "shut", "r"))
    expected = "EACCES" if abi >= 3 else "ok"
    assert forked.run(lambda: restricted(given, act, abi=abi), who) == ["ok", expected]


@EACH
def test_renaming_between_directories_needs_abi_2(tree: Path, who: Who, abi: int) -> None:
    """With ABI 1 files stay in their directory (EXDEV); later they move inside the grant, never out of it."""

    def act() -> list[str]:
        return [
            verdict(lambda: os.rename(tree / "open/file", tree / "open/inner/file")),
            verdict(lambda: os.rename(tree / "open/tool", tree / "shut/moved")),
            verdict(lambda: os.link(tree / "shut/tool", tree / "open/stolen")),
        ]

    given = grants((tree / "open", "rw"), (tree / "shut", "r"))
    inside, *outside = forked.run(lambda: restricted(given, act, abi=abi), who)
    assert inside == ("EXDEV" if abi == 1 else "ok")
    # The kernel lets EACCES prevail where the move would be denied in any case.
    assert set(outside) <= {"EXDEV", "EACCES"}


def executes(path: Path) -> int:
    """Exit status of a programme; 126 where it could not be executed."""
    pid = os.fork()
    if pid == 0:
        try:
            os.execv(path, [str(path)])
        except OSError as error:
            os._exit(126 if error.errno == errno.EACCES else 99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@EACH
def test_execution_needs_its_letter(tree: Path, who: Who, abi: int) -> None:
    """A readable programme does not run; a readable and executable one does."""
    system = grants(("/usr", "rx"), ("/lib", "rx"), ("/lib64", "rx"), ("/bin", "rx"), ("/etc/ld.so.cache", "r"))
    system = tuple(grant for grant in system if not os.path.islink(grant[0]))
    given = (*system, *grants((tree / "open", "rx"), (tree / "shut", "r")))

    def act() -> list[int]:
        return [executes(tree / name / "tool") for name in ("open", "shut")]

    assert forked.run(lambda: restricted(given, act, abi=abi), who) == [0, 126]


def test_devices_cannot_be_made_even_by_root_in_a_writable_grant(tree: Path, abi: int) -> None:
    """mknod of the memory device is denied; a fifo in the same place is not."""

    def act() -> list[str]:
        return [
            verdict(lambda: os.mknod(tree / "open/null", stat.S_IFCHR | 0o600, os.makedev(1, 3))),
            verdict(lambda: os.mknod(tree / "open/disk", stat.S_IFBLK | 0o600, os.makedev(7, 0))),
            verdict(lambda: os.mknod(tree / "open/fifo", stat.S_IFIFO | 0o600)),
        ]

    # As whoever runs the suite: for an ordinary user mknod is EPERM anyway, before Landlock is asked.
    denied = "EACCES" if os.geteuid() == 0 else "EPERM"
    assert forked.run(lambda: restricted(grants((tree / "open", "rw")), act, abi=abi)) == [denied, denied, "ok"]


@EACH
def test_device_ioctls_need_their_letter_from_abi_5_on(who: Who, abi: int) -> None:
    """FIONBIO-like requests pass; a device's own ones need `i`."""
    tcgets = 0x5401

    def act() -> list[str]:
        with open("/dev/null", "rb") as null, open("/dev/zero", "rb") as zero:
            return [verdict(syscalls.ioctl, file.fileno(), tcgets) for file in (null, zero)]

    given = grants(("/dev/null", "ri"), ("/dev/zero", "r"))
    # ENOTTY is the device's own answer: the request went through.
    expected = ["ENOTTY", "EACCES" if abi >= 5 else "ENOTTY"]
    assert forked.run(lambda: restricted(given, act, abi=abi), who) == expected


@EACH
def test_tcp_is_held_from_abi_4_on(who: Who, abi: int) -> None:
    """Without network neither bind nor connect works; with it both do."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()

        def act() -> list[str]:
            with socket.socket() as one, socket.socket() as other:
                return [verdict(lambda: one.bind(("127.0.0.1", 0))), verdict(lambda: other.connect(address))]

        closed = forked.run(lambda: restricted((), act, abi=abi, network=False), who)
        opened = forked.run(lambda: restricted((), act, abi=abi, network=True), who)
    assert closed == (["EACCES", "EACCES"] if abi >= 4 else ["ok", "ok"])
    assert opened == ["ok", "ok"]


def test_a_port_can_be_left_open(who: Who, newest: int) -> None:
    """Only the named port can be connected to."""
    with socket.create_server(("127.0.0.1", 0)) as named, socket.create_server(("127.0.0.1", 0)) as other:

        def act() -> list[str]:
            hygiene.no_new_privs()
            ports = (named.getsockname()[1],)
            landlock.restrict((), abi=newest, network=False, log=False, connect_ports=ports)
            with socket.socket() as one, socket.socket() as two:
                return [
                    verdict(lambda: one.connect(named.getsockname())),
                    verdict(lambda: two.connect(other.getsockname())),
                ]

        assert forked.run(act, who) == ["ok", "EACCES"]


@EACH
def test_abstract_sockets_outside_are_out_of_reach_from_abi_6_on(who: Who, abi: int) -> None:
    """An abstract listener of the test's own process cannot be connected to, one made inside can."""
    with socket.socket(socket.AF_UNIX) as server:
        name = f"\0paddock-{os.getpid()}-{abi}-{who.name}"
        server.bind(name)
        server.listen(5)

        def act() -> list[str]:
            with socket.socket(socket.AF_UNIX) as own, socket.socket(socket.AF_UNIX) as inner:
                own.bind(name + "-own")
                own.listen(1)
                with socket.socket(socket.AF_UNIX) as outer:
                    return [
                        verdict(lambda: outer.connect(name)),
                        verdict(lambda: inner.connect(name + "-own")),
                    ]

        seen = forked.run(lambda: restricted((), act, abi=abi), who)
    assert seen == ["EPERM" if abi >= 6 else "ok", "ok"]


@EACH
def test_signals_reach_nobody_outside_from_abi_6_on(who: Who, abi: int) -> None:
    """A process of the same user outside the domain cannot be signalled, a child can."""
    reading, writing = os.pipe()

    def stranger() -> None:
        forked.become(who)
        os.write(writing, b"!")
        signal.pause()

    pid = os.fork()
    if pid == 0:
        try:
            stranger()
        finally:
            os._exit(0)
    try:
        assert os.read(reading, 1) == b"!"

        def act() -> list[str]:
            child = os.fork()
            if child == 0:
                try:
                    signal.pause()
                finally:
                    os._exit(0)
            try:
                return [verdict(lambda: os.kill(pid, 0)), verdict(lambda: os.kill(child, signal.SIGKILL))]
            finally:
                os.waitpid(child, 0)

        seen = forked.run(lambda: restricted((), act, abi=abi), who)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reading)
        os.close(writing)
    assert seen == ["EPERM" if abi >= 6 else "ok", "ok"]
