"""What the machine offers, compared with what really works on it."""

import errno
import marshal
import os
from pathlib import Path

import pytest

from launcher.jail import landlock, probe, syscalls
from policy.errors import Refusal
from tests.support import features, forked
from tests.support.identity import Who

FAILED = ("", False, "bwrap is not installed")


def test_the_probe_agrees_with_the_machine(who: Who) -> None:
    """Namespaces are usable exactly if unshare(1) can use them; Landlock and seccomp as the kernel says."""
    support = forked.run(lambda: probe.probe().to_data(), who)
    found = probe.Support.from_data(support)
    assert found is not None
    assert found.uid == who.uid
    assert found.machine == os.uname().machine
    assert found.landlock_abi == min(landlock.kernel_abi()[0], landlock.NEWEST_ABI)
    assert found.seccomp == ("kill_process" in Path("/proc/sys/kernel/seccomp/actions_avail").read_text().split())
    tried = who.run(["unshare", "--user", "--map-current-user", "--mount", "--pid", "--fork", "true"]).returncode
    assert found.userns == (tried == 0)
    tried = who.run(["unshare", "-r", "--mount", "--pid", "--fork", "--mount-proc", "true"]).returncode
    assert found.fresh_proc == (tried == 0)


def test_the_probe_leaves_no_trace(who: Who) -> None:
    """The caller's namespaces, mounts, descriptors and capabilities are what they were."""

    def state() -> tuple[object, ...]:
        names = ("user", "mnt", "pid", "net", "ipc", "uts")
        return (
            [os.readlink(f"/proc/self/ns/{name}") for name in names],
            Path("/proc/self/mountinfo").read_text(),
            sorted(os.listdir("/proc/self/fd")),
            syscalls.capget(),
        )

    def act() -> tuple[tuple[object, ...], tuple[object, ...]]:
        before = state()
        probe.probe(whole=True)
        return before, state()

    before, after = forked.run(act, who)
    assert after == before


def test_support_survives_marshal() -> None:
    """The data of a Support can be stored and read back; other data is not taken for one."""
    support = probe.probe()
    stored = marshal.loads(marshal.dumps(support.to_data()))  # type: ignore[arg-type]  # its items are plain data
    again = probe.Support.from_data(stored)
    assert again is not None
    assert again.to_data() == support.to_data()
    assert probe.Support.from_data(stored[:-1]) is None
    assert probe.Support.from_data(list(stored)) is None


def test_the_environment_takes_abilities_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """PADDOCK_NO_USERNS and PADDOCK_NO_LANDLOCK are believed, and named as the reason."""
    monkeypatch.setenv(probe.ENV_NO_USERNS, "1")
    monkeypatch.setenv(landlock.ENV_DISABLE, "1")
    support = probe.probe()
    assert (support.userns, support.fresh_proc, support.landlock_abi) == (False, False, 0)
    assert probe.ENV_NO_USERNS in support.userns_why
    assert "environment" in support.landlock_why


def test_nonsense_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A switch that cannot be read is not read as "no"."""
    monkeypatch.setenv(probe.ENV_NO_USERNS, "true")
    with pytest.raises(Refusal, match=probe.ENV_NO_USERNS):
        probe.probe()


def test_a_closed_user_namespace_is_found_and_named(who: Who) -> None:
    """With the limit of nested user namespaces at 0 the probe says so."""
    features.need("userns")

    def act() -> tuple[bool, str]:
        # The limit belongs to a user namespace, so it is set in one that only this child is in.
        uid, gid = os.geteuid(), os.getegid()
        syscalls.unshare(syscalls.CLONE_NEWUSER)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            Path(f"/proc/self/{name}").write_text(text)
        Path("/proc/sys/user/max_user_namespaces").write_text("0")
        support = probe.probe()
        return support.userns, support.userns_why

    usable, why = forked.run(act, who)
    assert not usable
    assert "max_user_namespaces" in why


def test_a_covered_proc_is_found(who: Who) -> None:
    """Where something is mounted over a part of /proc no fresh one can be mounted, as in many containers."""
    features.need("userns")

    def act() -> tuple[bool, bool, str]:
        uid, gid = os.geteuid(), os.getegid()
        syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            Path(f"/proc/self/{name}").write_text(text)
        syscalls.mount("", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
        syscalls.mount("/proc/sys", "/proc/sys", flags=syscalls.MS_BIND | syscalls.MS_REC)
        support = probe.probe()
        return support.userns, support.fresh_proc, support.fresh_proc_why

    userns, fresh, why = forked.run(act, who)
    assert (userns, fresh) == (True, False)
    assert "mounted over parts of /proc" in why


def test_bubblewrap_is_judged_by_running_it(who: Who) -> None:
    """It works exactly if the machine's own trial says so."""
    path, works, why = forked.run(probe.bubblewrap, who)
    tried = who.run(["bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"]) if path else None
    assert works == (tried is not None and tried.returncode == 0), why
    assert works == (why == "")


def test_a_bubblewrap_of_the_current_directory_is_not_executed(
    public_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative and empty entries of PATH are passed over."""
    trap = public_dir / "bwrap"
    trap.write_text("#!/bin/sh\n: > executed\n")
    trap.chmod(0o755)
    monkeypatch.chdir(public_dir)
    monkeypatch.setenv("PATH", ":.:relative")
    assert probe.bubblewrap() == FAILED
    assert not (public_dir / "executed").exists()


def test_a_failing_bubblewrap_says_why(public_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first line of its complaint is the reason."""
    broken = public_dir / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create a new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(public_dir))
    assert probe.bubblewrap() == (str(broken), False, "bwrap: No permissions to create a new namespace")


def test_each_missing_layer_has_a_reason_and_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """`paddock doctor` never shows an unusable layer without saying what to do."""
    monkeypatch.setenv(probe.ENV_NO_USERNS, "1")
    monkeypatch.setenv(landlock.ENV_DISABLE, "1")
    support = probe.probe()
    support.seccomp, support.seccomp_why, support.yama = False, "seccomp: Function not implemented", 3
    support.guard, support.guard_why = False, "pidfd_getfd: Operation not permitted"
    support.cgroup, support.cgroup_why = "", "/x is not delegated to this user"
    rows = probe.describe(support, FAILED)
    assert [row[0] for row in rows] == ["landlock", "seccomp", "namespaces", "proc", "bubblewrap", "guard", "cgroup"]
    for layer, _, usable, why, remedy in rows:
        assert not usable, layer
        assert why, layer
        assert remedy, layer


def test_a_usable_layer_asks_for_nothing() -> None:
    """Where all is well there is no remedy."""
    for layer, _, usable, _, remedy in probe.describe(probe.probe(whole=True), ("/usr/bin/bwrap", True, "")):
        assert not (usable and remedy), layer


def test_where_apparmor_forbids_user_namespaces_the_package_with_its_profile_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As Ubuntu does since 23.10; a machine without the setting hears nothing of it."""
    support = probe.probe()
    support.userns = False
    for value, named in (("1", True), ("0", False)):
        monkeypatch.setattr(
            probe,
            "_read",
            lambda path, value=value: value if path.endswith("/apparmor_restrict_unprivileged_userns") else "",
        )
        support.userns_why = probe._userns_reason("mount", errno.EPERM)
        (remedy,) = (row[4] for row in probe.describe(support, FAILED) if row[0] == "namespaces")
        assert ("/etc/apparmor.d/paddock" in remedy) == named
