"""What a jailed process inherits, in the running kernel, as root and as a user."""

import errno
import fcntl
import os
import resource
import subprocess
from pathlib import Path

import pytest

from launcher.jail import hygiene, syscalls
from launcher.session import running
from policy.errors import Refusal
from policy.plan import VERSION, Plan
from tests.support import forked
from tests.support.forked import verdict
from tests.support.identity import Who


def plan(env_pass: tuple[str, ...] = (), env_set: tuple[tuple[str, str], ...] = ()) -> Plan:
    """A plan of which only the environment matters."""
    fields: dict[str, object] = dict.fromkeys(Plan.FIELDS, ())
    return Plan(**(fields | {"version": VERSION, "env_pass": env_pass, "env_set": env_set}))


def refusal_of(call: "object") -> str:
    """The reference of the refusal that a call without arguments ends in."""
    assert callable(call)
    with pytest.raises(Refusal) as refused:
        call()
    return refused.value.reference


def open_descriptors() -> set[int]:
    """Descriptors that are open, the one that lists them left out."""
    return {fd for fd in map(int, os.listdir("/proc/self/fd")) if verdict(os.fstat, fd) == "ok"}


# Descriptors


@pytest.mark.parametrize("closed", [(), (0,), (1,), (2,), (0, 2), (0, 1, 2)])
def test_closed_standard_descriptors_become_dev_null(closed: tuple[int, ...]) -> None:
    """What the caller closed is filled, and survives an exec; what he left open is left alone."""

    def act() -> tuple[int, list[bool], list[bool]]:
        null = os.stat("/dev/null").st_rdev
        for fd in closed:
            os.close(fd)
        filled = hygiene.fill_standard_fds()
        is_null = [os.fstat(fd).st_rdev == null for fd in closed]
        return filled, is_null, [os.get_inheritable(fd) for fd in closed]

    assert forked.run(act) == (len(closed), [True] * len(closed), [True] * len(closed))


def test_filling_leaves_nothing_else_open() -> None:
    """No descriptor above 2 is left behind."""

    def act() -> set[int]:
        before = open_descriptors()
        hygiene.fill_standard_fds()
        return open_descriptors() - before

    assert forked.run(act) == set()


def inherit() -> tuple[int, int, int]:
    """Three inheritable descriptors, one of them far up."""
    first = os.open("/", os.O_RDONLY)
    second = os.open("/", os.O_RDONLY)
    far = fcntl.fcntl(second, fcntl.F_DUPFD, 500)
    for fd in (first, second, far):
        os.set_inheritable(fd, True)
    return first, second, far


def closing(keep_index: tuple[int, ...], *, broken: int = 0) -> tuple[set[int], set[int]]:
    """(open afterwards, expected) in a child; `broken` is the errno that close_range fails with."""

    def act() -> tuple[set[int], set[int]]:
        fds = inherit()
        keep = {fds[index] for index in keep_index}
        if broken:

            def close_range(first: int, last: int, flags: int = 0) -> None:
                raise OSError(broken, os.strerror(broken))

            syscalls.close_range = close_range  # in a child only
        # Everything is kept that the child needs to say what it saw.
        needed = open_descriptors() - set(fds)
        kept = hygiene.close_inherited((*keep, *needed))
        return open_descriptors() & set(fds), set(kept) & set(fds)

    left, kept = forked.run(act)
    assert left == kept
    return left, kept


@pytest.mark.parametrize("keep", [(), (0,), (1,), (2,), (0, 2), (0, 1, 2)])
def test_inherited_descriptors_are_closed_except_those_named(keep: tuple[int, ...]) -> None:
    """Near and far ones are closed; the named ones stay."""
    assert len(closing(keep)[0]) == len(keep)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
@pytest.mark.parametrize("keep", [(), (0,), (0, 2)])
def test_without_close_range_they_are_closed_one_by_one(keep: tuple[int, ...], number: int) -> None:
    """On old kernels, and behind filters that do not know the call, the result is the same."""
    assert len(closing(keep, broken=number)[0]) == len(keep)


def test_a_descriptor_to_keep_must_be_open() -> None:
    """A wrong number is a mistake that must not pass silently."""

    def act() -> str:
        return refusal_of(lambda: hygiene.close_inherited((987,)))

    assert forked.run(act) == "fd-not-open"


# Environment


def test_only_listed_names_and_prefixes_pass() -> None:
    """PATH by name and LC_* by prefix; a name that merely begins like a listed one does not."""
    environ = {"PATH": "/bin", "PATHEXT": "x", "LC_ALL": "C", "LC": "x", "SECRET": "x", "XLC_ALL": "x"}
    passed = running.jail_environment(plan(("PATH", "LC_*", "ABSENT")), environ, {})
    assert passed == {"PATH": "/bin", "LC_ALL": "C"}


def test_set_values_win_over_the_callers_and_given_ones_over_both() -> None:
    """The order is: passed, set by the plan, given."""
    environ = {"A": "caller", "B": "caller", "C": "caller"}
    bound = plan(("A", "B", "C"), (("B", "plan"), ("C", "plan")))
    assert running.jail_environment(bound, environ, {"C": "given"}) == {"A": "caller", "B": "plan", "C": "given"}


def test_bytes_and_undecodable_values_survive() -> None:
    """`os.environb` serves as well, and what is no UTF-8 arrives unchanged."""
    passed = running.jail_environment(plan(("A",)), {b"A": b"\xff\xe4", b"B": b"x"}, {})
    assert {name: os.fsencode(value) for name, value in passed.items()} == {"A": b"\xff\xe4"}


@pytest.mark.parametrize("given", [{"": "x"}, {"A=B": "x"}, {"A\0": "x"}, {"A": "x\0y"}])
def test_what_execve_would_read_differently_is_refused(given: dict[str, str]) -> None:
    """A name with "=" would set another variable."""
    assert refusal_of(lambda: running.jail_environment(plan(), {}, given)) == "environment-invalid"


def test_an_empty_prefix_is_not_everything_by_accident() -> None:
    """`*` alone is a prefix like any other: it passes all, because it says so."""
    assert running.jail_environment(plan(("*",)), {"A": "1"}, {}) == {"A": "1"}
    assert running.jail_environment(plan(()), {"A": "1"}, {}) == {}


def test_umask_is_set_and_reported() -> None:
    """The mask before and the mask now."""

    def act() -> tuple[tuple[int, int], int]:
        os.umask(0o002)
        return hygiene.umask(0o077), os.umask(0)

    assert forked.run(act) == ((0o002, 0o077), 0o077)


# Privileges


def test_no_new_privs_is_set_for_good(who: Who) -> None:
    """A set-uid programme gives nothing any more, and the flag cannot be taken back."""

    def act() -> tuple[bool, str, str]:
        held = hygiene.no_new_privs()
        cleared = verdict(syscalls.prctl, syscalls.PR_SET_NO_NEW_PRIVS, 0)
        return held, cleared, Path("/proc/self/status").read_text()

    held, cleared, status = forked.run(act, who)
    assert held
    assert cleared == "EINVAL"
    assert "NoNewPrivs:\t1\n" in status


CAPABILITY_SETS = ("CapInh", "CapPrm", "CapEff", "CapAmb")


def capability_lines(status: str) -> dict[str, int]:
    """The capability masks of a /proc/PID/status."""
    pairs = (line.split(":\t") for line in status.splitlines() if line.startswith("Cap"))
    return {name: int(mask, 16) for name, mask in pairs}


def test_all_capabilities_go(who: Who) -> None:
    """Every set is empty afterwards, also in a programme that is executed later."""

    def act() -> tuple[str, str]:
        hygiene.no_new_privs()
        hygiene.drop_all()
        after = subprocess.run(["/bin/cat", "/proc/self/status"], capture_output=True, text=True, check=True)
        return Path("/proc/self/status").read_text(), after.stdout

    for status in forked.run(act, who):
        masks = capability_lines(status)
        assert {masks[name] for name in (*CAPABILITY_SETS, "CapBnd")} == {0}


def test_root_without_capabilities_is_nobody_special(who: Who) -> None:
    """chown, mounting and raw devices are closed to uid 0; its own files are not."""

    def act() -> list[str]:
        own = os.open("/tmp", os.O_TMPFILE | os.O_RDWR, 0o600)
        before = verdict(os.fchown, own, 1, 1)
        hygiene.drop_all()
        return [before, verdict(os.fchown, own, 2, 2), verdict(os.fchmod, own, 0o644), verdict(os.chroot, "/")]

    before, *after = forked.run(act, who)
    assert before == ("ok" if who.uid == 0 else "EPERM")
    # The file belongs to uid 1 after root's first chown, so that not even its mode can be changed any more.
    assert after == ["EPERM", "EPERM" if who.uid == 0 else "ok", "EPERM"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has secure bits to lock")
def test_root_locks_itself_out() -> None:
    """With CAP_SETPCAP the bounding set is emptied and the secure bits are locked."""

    def act() -> tuple[tuple[bool, bool], int]:
        return hygiene.drop_all(), syscalls.prctl(syscalls.PR_GET_SECUREBITS)

    assert forked.run(act) == ((True, True), hygiene.SECUREBITS)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has a capability to raise")
def test_an_ambient_capability_goes_too() -> None:
    """What a service was given to hand on to its children does not reach the jail."""

    def act() -> tuple[tuple[int, ...], tuple[int, ...], str]:
        everything = syscalls.capget()[1]
        syscalls.capset(everything, everything, everything)
        syscalls.prctl(syscalls.PR_CAP_AMBIENT, syscalls.PR_CAP_AMBIENT_RAISE, 37)  # CAP_AUDIT_READ
        before = hygiene.ambient()
        hygiene.drop_all()
        raised = verdict(syscalls.prctl, syscalls.PR_CAP_AMBIENT, syscalls.PR_CAP_AMBIENT_RAISE, 37)
        return before, hygiene.ambient(), raised

    assert forked.run(act) == ((37,), (), "EPERM")


def test_a_user_without_capabilities_drops_what_there_is(user: Who) -> None:
    """Without CAP_SETPCAP the secure bits stay as they are, which is said."""

    def act() -> tuple[bool, bool]:
        return hygiene.drop_all()

    _, locked = forked.run(act, user)
    assert not locked


def test_capabilities_of_a_new_user_namespace_go_too(user: Who) -> None:
    """unshare gives all capabilities; after dropping, none is left and nothing can be mounted."""

    def act() -> tuple[list[str], tuple[bool, bool], tuple[int, int, int]]:
        syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS)
        first = verdict(syscalls.mount, "", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
        dropped = hygiene.drop_all()
        second = verdict(syscalls.mount, "", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
        return [first, second], dropped, syscalls.capget()

    assert forked.run(act, user) == (["ok", "EPERM"], (True, True), (0, 0, 0))


# Limits

VALUES = (("memory", 1 << 30), ("open_files", 64), ("file_size", 4096), ("cpu_time", 600), ("processes", 10_000))

SHARED = (resource.RLIMIT_SIGPENDING, resource.RLIMIT_MSGQUEUE)


def test_limits_are_in_force_and_reported(who: Who) -> None:
    """Each limit holds as soft and hard limit; core dumps are off without being asked for, by a helper of the kernel's,
    too, which looks at no limit but 1. Of what is counted by user a jail has a quarter of the caller's.
    """

    def act() -> tuple[tuple[hygiene.Fact, ...], list[tuple[int, int]]]:
        facts = hygiene.rlimits(VALUES, kernel_uid=os.getuid())
        names = (resource.RLIMIT_CORE, *SHARED, *(hygiene.RESOURCES[name] for name, _ in VALUES))
        return facts, [resource.getrlimit(name) for name in names]

    facts, in_force = forked.run(act, who)
    quarters = [
        (name, resource.getrlimit(number)[0] // 4) for name, number in zip(("signals", "queues"), SHARED, strict=True)
    ]
    assert [fact[:2] for fact in facts] == [("core", 1), *quarters, *VALUES]
    assert in_force == [(value, value) for _, value, _, _ in facts]
    assert [name for name, _, enforced, _ in facts if not enforced] == (["processes"] if who.uid == 0 else [])
    assert all(remark for name, _, _, remark in facts if name == "memory")


def test_a_file_cannot_grow_beyond_its_limit(who: Who, place: Path) -> None:
    """The file size limit is real: EFBIG, and nothing more is written."""

    def act() -> tuple[str, int]:
        hygiene.rlimits((("file_size", 4096),), kernel_uid=os.getuid())
        fd = os.open(place / "file", os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(fd, bytes(4096))
        return verdict(os.write, fd, b"x"), os.fstat(fd).st_size

    assert forked.run(act, who) == ("EFBIG", 4096)


def test_memory_ends_at_its_limit(who: Who) -> None:
    """A private allocation beyond the limit fails, one below it works."""

    def act() -> list[str]:
        def allocate(size: int) -> str:
            try:
                return "ok" if len(bytearray(size)) == size else "short"
            except MemoryError:
                return "MemoryError"

        hygiene.rlimits((("memory", 256 << 20),), kernel_uid=os.getuid())
        return [allocate(512 << 20), allocate(1 << 20)]

    assert forked.run(act, who) == ["MemoryError", "ok"]


def test_a_lower_limit_of_the_caller_stays() -> None:
    """A plan cannot raise what the caller himself is held to; the value in force is the one reported."""

    def act() -> tuple[hygiene.Fact, ...]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (50, 50))
        return hygiene.rlimits((("open_files", 1000),), kernel_uid=os.getuid())

    assert forked.run(act)[-1][:2] == ("open_files", 50)


def test_a_caller_that_may_have_no_limit_for_core_dumps_but_0_is_told(who: Who) -> None:
    """Nobody can raise it in the jail's user namespace, and the kernel's helper is started at it."""

    def act() -> tuple[hygiene.Fact, ...]:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        return hygiene.rlimits((), kernel_uid=os.getuid())

    assert forked.run(act, who)[0][:3] == ("core", 0, False)


@pytest.mark.parametrize("limit", [("threads", 1), ("memory", -1)])
def test_unknown_limits_are_refused(limit: tuple[str, int]) -> None:
    """A limit that cannot be set is not skipped."""
    assert forked.run(lambda: refusal_of(lambda: hygiene.rlimits((limit,), kernel_uid=1000))) == "limit-invalid"
