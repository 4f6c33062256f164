"""A private git directory is made and renewed again after a SIGKILL at any step, and nothing of the agent's is lost."""

import shutil
import subprocess
from pathlib import Path

import pytest

from launcher.session import planning
from launcher.session.places import Places
from launcher.vcs.private import lease
from launcher.vcs.private import record as records
from policy.plan import Plan
from tests.support import git_scene
from tests.support.features import need
from tests.support.forked import killed_at


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Holds the repository of `git_scene.SETUP` and a home."""
    need("userns")
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    git_scene.grown(tmp_path)
    return tmp_path


def planned(place: Path, worktree: str) -> tuple[Plan, str]:
    """A plan with a private git directory for a worktree, and where that directory is."""
    home = place / "home"
    places = Places(str(home), f"{home}/config", f"{home}/state", f"{home}/cache")
    plan = planning.make({"--git": "private"}, ["true"], str(place / worktree), places).plan
    directory = records.directory_of(places.state, plan.worktree_id)
    return plan, directory


def taken(directory: str, plan: Plan) -> tuple[str, ...]:
    """Takes and ends a lease; returns its warnings."""
    held = lease.take(directory, plan)
    held.close()
    return held.warnings


def content(directory: str) -> dict[str, bytes]:
    """Every file below a directory, but the record's stamps."""
    found = {
        str(path.relative_to(directory)): path.read_bytes() for path in Path(directory).rglob("*") if path.is_file()
    }
    record = records.read(directory)
    assert record is not None
    found[records.RECORD] = b"\0".join("\0".join(repository.fields()).encode() for repository in record.repositories)
    return found


@pytest.mark.parametrize("worktree", ["one", "main"])
def test_making_it_can_be_killed_anywhere(place: Path, worktree: str) -> None:
    """There is a record exactly when the private git directory is complete, and the next launch makes it complete."""
    plan, directory = planned(place, worktree)
    Path(directory).mkdir(parents=True, mode=0o700)
    assert taken(directory, plan) == ()
    whole = content(directory)
    number = 0
    while True:
        shutil.rmtree(directory)
        Path(directory).mkdir(mode=0o700)
        number += 17 if worktree == "main" else 11  # every one of them takes a minute
        if not killed_at(number, lambda: taken(directory, plan)):
            break
        if Path(directory, records.RECORD).exists():
            assert content(directory).keys() >= whole.keys()
        assert taken(directory, plan) == ()
        assert content(directory) == whole
    assert number > 50, "there are that many steps"
    for name in ("main", "one"):
        subprocess.run(["git", "-C", name, "fsck", "--no-dangling"], check=True, capture_output=True)


def test_renewing_it_can_be_killed_anywhere(place: Path) -> None:
    """The agent's commit and branch stay, what moved in the repository arrives, and the branch goes on where it was."""
    plan, directory = planned(place, "one")
    Path(directory).mkdir(parents=True, mode=0o700)
    taken(directory, plan)
    private = f"{directory}/git"

    def git(*words: str) -> str:
        made = subprocess.run(["git", *words], check=True, capture_output=True, text=True)
        return made.stdout.strip()

    made = git(f"--git-dir={private}", "commit-tree", "HEAD^{tree}", "-p", "HEAD", "-m", "the agent's")
    git(f"--git-dir={private}", "update-ref", "refs/heads/topic", made)
    git(f"--git-dir={private}", "update-ref", "refs/heads/other", made)
    saved = place / "saved"
    shutil.copytree(directory, saved, symlinks=True)
    git("-C", "one", "commit", "-q", "--allow-empty", "-m", "Outside.")
    git("-C", "main", "branch", "-f", "other", "HEAD~1")
    git("-C", "main", "branch", "fresh")
    git("-C", "main", "config", "user.name", "Somebody")
    git("-C", "one", "config", "core.abbrev", "12")
    now = git("-C", "one", "rev-parse", "HEAD")
    number = 0
    while True:
        shutil.rmtree(directory)
        shutil.copytree(saved, directory, symlinks=True)
        number += 2
        if not killed_at(number, lambda: taken(directory, plan)):
            break
        assert taken(directory, plan) == ()
        refs = dict(line.split()[::-1] for line in git(f"--git-dir={private}", "show-ref").splitlines())
        assert refs["refs/heads/one"] == now
        assert (refs["refs/heads/topic"], refs["refs/heads/other"]) == (made, made)
        assert "refs/heads/fresh" in refs
        assert git(f"--git-dir={private}", "config", "core.abbrev") == "12"
        record = records.read(directory)
        assert record is not None
        assert record.repositories[0].base == now
        assert git("-C", "main", "rev-parse", records.pin(Path(directory).name)) == now
    assert number > 10, "there are that many steps"
