"""The suite's own tools do what the tests rely on: identities are real, leaks are seen, requirements bite."""

import os
import signal
import subprocess
import uuid
from pathlib import Path

import pytest

from tests.kernel.conftest import _children, _mounts, _survivors
from tests.support import features
from tests.support.features import need, parse_required
from tests.support.identity import MARKER, Who
from tests.support.install import Installed
from tests.support.repository import Repo

STATUS = "grep -E '^(Uid|Gid|Groups|Cap(Inh|Prm|Eff|Bnd|Amb)):' /proc/self/status"


def test_an_ordinary_user_has_no_capability_and_no_group(user: Who) -> None:
    """Credentials are dropped for good, the bounding set included where the suite is root."""
    facts = dict(line.split(":\t", 1) for line in user.run(["sh", "-c", STATUS]).stdout.splitlines())
    assert set(facts["Uid"].split()) == {str(user.uid)} != {"0"}
    assert {facts[name] for name in ("CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
    if os.geteuid() == 0:
        assert facts["Groups"].strip() == ""
        assert facts["CapBnd"] == "0" * 16


def test_an_ordinary_user_can_run_the_installed_command(user: Who, installed: Installed) -> None:
    """The environment lies where everybody can reach it."""
    ended = user.run([installed.paddock, "--version"])
    assert ended.returncode == 0, ended.stderr


def test_commands_get_a_clean_environment(who: Who) -> None:
    """Only what every command needs, and the marker of the leak check."""
    names = {line.partition("=")[0] for line in who.run(["env"]).stdout.splitlines()}
    assert names == {"PATH", "HOME", "LANG", "USER", MARKER}
    assert not [name for name in os.environ if name.startswith(("GIT_", "XDG_"))]


def test_the_repository_is_whole_and_owned(who: Who, repo: Repo) -> None:
    """Both linked worktrees and all three checkouts of the submodule are there, clean, and belong to who acts."""
    assert len(repo.git("worktree", "list").splitlines()) == 3
    for tree in (repo.main, repo.one, repo.two):
        assert (tree / "library/library.py").read_text() == "library = True\n"
        assert repo.git("status", "--porcelain", at=tree) == ""
        assert tree.stat().st_uid == who.uid
    assert (repo.one / ".git").is_file()
    assert repo.git("branch", "--show-current", at=repo.two) == "two"


def test_a_daemon_that_hid_itself_is_found_and_ended(who: Who) -> None:
    """A double fork, a session of its own and an empty environment do not escape the check."""
    before = _children()
    who.run(["sh", "-c", "exec env -i setsid -f sleep 1000 >/dev/null 2>&1 </dev/null"])
    # Cut short: what is asked is whether it is seen, not whether it ends by itself.
    left = _survivors(uuid.uuid4().hex, before, grace=0.1)
    assert len(left) == 1
    assert left[0].endswith("sleep 1000")
    assert _children() == before


def test_a_marked_process_elsewhere_is_found_and_ended() -> None:
    """A process that is no child of the suite is recognised by the marker in its environment."""
    marker = uuid.uuid4().hex
    with subprocess.Popen(["sleep", "1000"], env=os.environ | {MARKER: marker}) as process:
        left = _survivors(marker, _children(), grace=0.1)
    assert left == [f"{process.pid} sleep 1000"]
    assert process.returncode in (-signal.SIGKILL, 0)  # 0: collected by the check already


def test_what_is_just_ending_is_no_leak() -> None:
    """A process that ends within the grace period is waited for, not reported."""
    before = _children()
    with subprocess.Popen(["sleep", "0.2"]):
        assert _survivors(uuid.uuid4().hex, before, grace=30) == []
    assert _children() == before


def test_mounts_of_other_namespaces_are_not_counted(public_dir: Path) -> None:
    """Tests mount in a namespace of their own, which is gone with its last process."""
    need("userns")
    before = _mounts()
    ended = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "none", str(public_dir)], check=True
    )
    assert ended.returncode == 0
    assert _mounts() == before


def test_a_missing_feature_skips_unless_it_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same lack is a skip on a poor machine and a failure in CI."""
    monkeypatch.setattr(features, "missing", lambda feature: "not here")
    with pytest.raises(pytest.skip.Exception, match="needs landlock: not here"):
        need("landlock", required_text="userns")
    with pytest.raises(pytest.fail.Exception, match="landlock is required"):
        need("landlock", required_text="userns, landlock")


def test_a_present_feature_neither_skips_nor_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing happens when the machine has it."""
    monkeypatch.setattr(features, "missing", lambda feature: "")
    need("landlock", required_text="landlock")


def test_an_unknown_requirement_is_an_error() -> None:
    """A misspelt feature would otherwise never be required."""
    assert parse_required("landlock, ,userns,") == {"landlock", "userns"}
    with pytest.raises(ValueError, match="landlok"):
        parse_required("landlok")
