"""Where `.git` is swapped on the disk, a SIGKILL at any step leaves what the next command completes."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.session import harvesting, planning
from launcher.session.places import Places
from launcher.session.places import places as own_places
from launcher.vcs.merge import sessions
from launcher.vcs.private import lease, swap
from launcher.vcs.private import record as records
from launcher.vcs.private.swap import dock_worktree
from launcher.vcs.worktrees.worktree_service import WorktreeService
from policy import promises
from policy.plan import Plan
from tests.support import git_scene
from tests.support.features import need
from tests.support.forked import killed_at

PLACES = ("", "library", "library/inner")


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    """Of a home beside the repository of `git_scene.SETUP`; no user namespaces."""
    need("landlock")
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PADDOCK_NO_USERNS", "1")
    monkeypatch.chdir(tmp_path)
    git_scene.grown(tmp_path)
    for name in ("STATE", "CACHE", "CONFIG"):
        monkeypatch.delenv(f"XDG_{name}_HOME", raising=False)
    return own_places(os.environ)


def planned(places: Places, worktree: Path | str, *options: str) -> Plan:
    """A plan for a worktree, with the default access to git unless `options` name one."""
    chosen: planning.Options = {"--git": options[0]} if options else {}
    return planning.make(chosen, ["true"], str(worktree), places).plan


def test_swapping_and_docking_can_be_killed_anywhere(places: Places, tmp_path: Path) -> None:
    """Killed in the swap, the session, or the docking: another session, a harvest, `dock` and any command end it."""
    root = Path(WorktreeService(places.state).add("main", "T-1").path)
    plan = planned(places, root)
    assert (plan.git, plan.backend) == ("private", promises.GUARD)
    assert any("run no git there outside" in warning for warning in plan.warnings)
    directory = records.directory_of(places.state, plan.worktree_id)
    Path(directory).mkdir(parents=True, mode=0o700)
    lease.take(directory, plan).close()

    def entries() -> list[tuple[bytes, int]]:
        return [((root / place / ".git").read_bytes(), (root / place / ".git").lstat().st_mode) for place in PLACES]

    def session() -> None:
        held = lease.take(directory, plan)
        (root / ".git").unlink()
        (root / "library/.git").unlink()
        (root / "library/.git").mkdir()
        held.close()

    def again() -> None:
        lease.take(directory, plan).close()

    ends: tuple[Callable[[], object], ...] = (
        again,
        lambda: dock_worktree(directory),
        lambda: harvesting.take(directory, ()),
        lambda: sessions.lacking(places.state, str(root)),
        lambda: WorktreeService(places.state).of_repository(root),
        lambda: planned(places, root / "src", "readonly"),
    )
    before = entries()
    swapped = number = 0
    while True:
        number += 1
        if not killed_at(number, session):
            break
        swapped += swap.is_swapped(directory)
        ends[number % len(ends)]()
        assert entries() == before
        assert not swap.is_swapped(directory)
        assert not list(root.rglob(".git.*"))
        assert not list((tmp_path / "main/.git").rglob("locked"))
    assert swapped > 15, f"there are that many steps; of {number} so many left it swapped: {swapped}"
    assert entries() == before
    subprocess.run(["git", "-C", str(root), "status"], check=True, capture_output=True)


def test_only_worktrees_that_paddock_made_are_swapped(places: Places, tmp_path: Path) -> None:
    """Those of others are read-only with a note, adopted ones too, and ones that Paddock does not know there."""
    service = WorktreeService(places.state)
    for _ in range(2):
        plan = planned(places, tmp_path / "one")
        assert plan.git == "readonly"
        assert any("paddock run --new" in warning for warning in plan.warnings)
        if service.store.at(str(tmp_path / "one")) is None:
            service.adopt("one")
    assert service.store.at(str(tmp_path / "one")) is not None
    root = Path(service.add("main", "T-1").path)
    assert planned(places, root).git == "private"
    shutil.move(root, tmp_path / "elsewhere")
    subprocess.run(["git", "-C", "main", "worktree", "repair", "../elsewhere"], check=True, capture_output=True)
    assert planned(places, tmp_path / "elsewhere").git == "readonly", "nobody has told Paddock of the move"
