"""SIGKILL, or an exchange for a link, at every step of making and removing a worktree: nothing is lost."""

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.vcs.worktrees.models import Options
from launcher.vcs.worktrees.worktree_service import WorktreeService
from policy.errors import Refusal
from tests.support import forked, install, paddock, repository
from tests.support.repository import Place, committed, git


def cut_off(place: Place, action: Callable[[WorktreeService], object]) -> Iterator[str | None]:
    """The place as SIGKILL before each step of `action` leaves it, with the step's name; last, None: it got through.

    What is done for the main worktree and for the innermost submodule alike is not tried for the one between as well.
    It is done once, in a child, and each of its steps copies what there is. Who did it is gone, as if it was killed.
    """
    copies = place.root.with_name(f"{place.root.name}-copies")

    def act() -> list[str]:
        names: list[str] = []

        def step(name: str) -> None:
            if not name.endswith("outer"):
                shutil.copytree(place.root, copies / str(len(names)), symlinks=True)
                names.append(name)

        action(WorktreeService(place.state, step=step))
        step("")
        return names

    for number, name in enumerate(forked.run(act)):
        shutil.rmtree(place.root)
        (copies / str(number)).rename(place.root)
        yield name or None


@pytest.fixture(scope="module")
def above(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("crash")
    install.spread(path)
    return path


def fresh(above: Path) -> Place:
    """The same place as new."""
    return repository.nested(Path(tempfile.mkdtemp(dir=above)))


REMADE = ("record", "metadata ", "staging", "files outer/deep/inner", "rename")
"""Steps after whose undoing the worktree is made again; between them nothing else is left to be undone."""


def test_making_a_worktree_survives_sigkill_at_every_step(above: Path) -> None:
    """After each, the next command leaves nothing half done, and the worktree can be made (or is there)."""
    seen = []
    place = fresh(above)
    (place.app / ".git/info").mkdir(exist_ok=True)
    (place.app / ".git/info/exclude").write_text(".env\n")
    (place.app / ".env").write_text("A=1")
    before = place.branches
    for name in cut_off(place, lambda service: service.add(place.app, "T", Options(copy=(".env",)))):
        known = place.service.of_repository(place.app)
        assert repository.leftovers(place) == [], name
        if known:
            assert known[0].path == str(place.root / "app-T"), name
        else:
            assert place.branches == before, name
            assert not (place.root / "app-T").exists(), name
            if name not in REMADE:
                continue
            known = [place.service.add(place.app, "T", Options(copy=(".env",)))]
        root = Path(known[0].path)
        assert (root / ".env").read_text() == "A=1", name
        for part in (root, root / "lib/outer", root / "lib/outer/deep/inner"):
            assert git("status", "--porcelain", "--branch", at=part) == "## agent/T", name
        assert place.service.status(known[0]).at_stake() == [], name
        seen.append(name)
    assert {"record", "staging", "rename", "ready", "files outer/deep/inner", None} <= set(seen)


def test_removing_a_worktree_survives_sigkill_at_every_step(above: Path) -> None:
    """It is there as before, or gone; and in each case the uncommitted file and the commits can be found again."""
    seen = []
    place = fresh(above)
    made = place.service.add(place.app, "T")
    root = Path(made.path)
    committed(root / "lib/outer", done="done\n")
    oid = git("rev-parse", "HEAD", at=root / "lib/outer")
    (root / "loose").write_text("loose\n")
    for name in cut_off(place, lambda service: service.remove(service.find(place.app, "T"), force=True)):
        known = place.service.of_repository(place.app)
        assert repository.leftovers(place) == [], name
        assert git("branch", "--contains", oid, at=place.app / ".git/modules/outer").split()[-1] == "agent/T", name
        if known:
            assert known[0] == made, name
            assert (root / "loose").read_text() == "loose\n", name
            assert "locked" not in git("worktree", "list", "--porcelain", at=place.app)
        else:
            assert not root.exists(), name
            backups = [ref for ref in place.branches if ref.startswith("paddock/backup/")]
            assert git("show", f"refs/{backups[0]}:loose", at=place.app) == "loose", name
        seen.append((name, bool(known)))
    assert {"backup", "record", "rename", "metadata ", "files", "forget"} <= {name for name, _ in seen}
    assert seen[-1] == (None, False)


@pytest.mark.parametrize("where", ["files outer", "note", "metadata outer", "rename"])
def test_a_recovery_survives_sigkill_at_every_step_too(above: Path, where: str) -> None:
    """Killed while it mends what a first SIGKILL left, it is mended by the one after it."""
    place = fresh(above)
    service = WorktreeService(place.state, step=killer(where))
    if where in ("metadata outer", "rename"):
        place.service.add(place.app, "T")
        act: Callable[[], object] = lambda: service.remove(service.find(place.app, "T")) and None  # noqa: E731
    else:
        act = lambda: service.add(place.app, "T") and None  # noqa: E731
    with pytest.raises(forked.Killed):
        forked.run(act)
    seen = []
    for name in cut_off(place, lambda service: service.repair(place.app)):
        known = place.service.of_repository(place.app)
        assert repository.leftovers(place) == [], name
        assert [row.state for row in known] == (["ready"] if where in ("note", "rename") else []), name
        assert (place.root / "app-T").exists() == bool(known), name
        seen.append(name)
    assert seen[0] == "mend"
    assert len(seen) > 2


def killer(where: str) -> Callable[[str], None]:
    """A step that kills its process at the step named `where`."""

    def step(name: str) -> None:
        if name == where:
            os.kill(os.getpid(), signal.SIGKILL)

    return step


def test_what_somebody_is_at_is_left_alone(tmp_path: Path) -> None:
    """A worktree that a living process is making is neither undone nor finished by another."""
    place = repository.plain(tmp_path)
    seen: list[object] = []

    def step(name: str) -> None:
        if name == "rename":
            seen.append([row.state for row in WorktreeService(place.state).of_repository(place.app)])
            seen.append(place.service.repair(place.app))

    made = WorktreeService(place.state, step=step).add(place.app, "T")
    assert seen == [["creating"], []]
    assert place.service.of_repository(place.app) == [made]


def test_a_failure_undoes_what_was_begun(tmp_path: Path) -> None:
    """Not only a crash: an error in the middle leaves neither branch nor directory nor record."""
    place = repository.plain(tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())

    def step(name: str) -> None:
        if name == "rename":
            raise RuntimeError("here")

    with pytest.raises(RuntimeError, match="here"):
        WorktreeService(place.state, step=step).add(place.app, "T")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*before, "state"])
    assert place.branches == {"main"}
    assert place.service.of_repository(place.app) == []
    assert not (place.app / ".git/worktrees").exists()


@pytest.mark.parametrize("what", ["parent", "root"])
@pytest.mark.parametrize("action", ["add", "remove"])
def test_what_is_exchanged_for_a_link_at_any_step_leads_nowhere(tmp_path: Path, action: str, what: str) -> None:
    """By a session that may write around the worktree: another directory of the same shape is as it was."""
    seen = []
    for number in range(1, 40):
        (tmp_path / str(number)).mkdir()
        place = repository.plain(tmp_path / str(number))
        # Without files: a checkout is git's work.
        empty = git("commit-tree", "-m", "empty", git("hash-object", "-t", "tree", "-w", "/dev/null", at=place.app),
                    at=place.app)  # fmt: skip
        trees, other = place.root / "trees", place.root / "other"
        trees.mkdir()
        (other / "T/below").mkdir(parents=True)
        (other / "T/below/file").write_text("precious")
        if action == "remove":
            place.service.add(place.app, "T", Options(path=str(trees / "T"), start=empty))
            (other / "T/.git").write_bytes((trees / "T/.git").read_bytes())
        before = paddock.seen(other)
        left = number

        def step(name: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                seen.append(name)
                for path in [trees] if what == "parent" else [*trees.iterdir()]:  # noqa: B023
                    path.rename(place.root / f"moved-{path.name}")  # noqa: B023
                    path.symlink_to(other if what == "parent" else other / "T")  # noqa: B023

        service = WorktreeService(place.state, step=step)
        try:
            if action == "add":
                service.add(place.app, "T", Options(path=str(trees / "T"), start=empty))
            else:
                service.remove(place.service.find(place.app, "T"), force=True)
        except Refusal:
            assert left <= 0
        assert paddock.seen(other) == before, f"{action}, before step {number}: {seen[-1:]}"
        if left > 0:
            break
    assert {"rename", "note" if action == "add" else "files"} <= set(seen)
