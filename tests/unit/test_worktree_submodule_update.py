"""`git submodule update`, by the user in a worktree of Paddock's, and the main checkout beside it."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from launcher.vcs import checkout
from launcher.vcs.disk import Present
from launcher.vcs.worktrees.worktree_service import WorktreeService
from policy.errors import Refusal
from tests.support import forked, repository
from tests.support.repository import ENV, Place, git

STORES = {"outer": "lib/outer", "outer/modules/deep/inner": "lib/outer/deep/inner"}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return repository.nested(tmp_path)


def configured(place: Place, file: str = "config") -> dict[str, str]:
    """Where each store says that its files are, as an absolute path."""
    found = {}
    for name in STORES:
        store = place.app / ".git/modules" / name
        words = ["git", "config", "--file", str(store / file), "core.worktree"]
        value = subprocess.run(words, cwd=place.root, env=ENV, capture_output=True, text=True, timeout=60).stdout
        if value:
            found[name] = os.path.normpath(store / value.strip())
    return found


def update(place: Place, root: Path) -> None:
    """What the manual says to do after a pull."""
    git("submodule", "update", "--init", "--recursive", at=root)


def broken(place: Place) -> Path:
    """A worktree as Paddock made it before, in which the user has run `git submodule update`; its root."""
    root = Path(place.service.add(place.app, "a").path)
    for name, path in STORES.items():
        store = place.app / ".git/modules" / name
        (store / "config.worktree").unlink()
        value = os.path.relpath(place.app / path, store)
        git("config", "--file", str(store / "config"), "core.worktree", value, at=place.root)
    update(place, root)
    assert not is_well(place)
    return root


def is_well(place: Place) -> bool:
    """Whether git is content with the main checkout, and Paddock knows its submodules."""
    words = ["git", "status", "--porcelain"]
    ended = subprocess.run(words, cwd=place.app, env=ENV, capture_output=True, text=True, timeout=60)
    known = [module.path for module in checkout.find(str(place.app), Present(), exact=True).submodules]
    return (ended.returncode, ended.stdout) == (0, "") and known == [str(place.app / path) for path in STORES.values()]


def test_it_leaves_the_main_checkout_alone(place: Place) -> None:
    """In the worktree, in the main checkout, and in the worktree again; and the worktree can be removed."""
    config = (place.app / ".git/config").read_bytes()
    made = place.service.add(place.app, "a")
    for root in (Path(made.path), place.app, Path(made.path)):
        update(place, root)
        assert is_well(place)
        assert git("status", "--porcelain", at=Path(made.path)) == ""
    assert configured(place) == {}
    assert configured(place, "config.worktree") == {name: str(place.app / path) for name, path in STORES.items()}
    assert (place.app / ".git/config").read_bytes() == config
    place.service.remove(made)
    assert is_well(place)


def test_what_it_broke_before_is_mended(place: Place) -> None:
    """What does not mend it names `repair`, which tells of each store; a second one has nothing to do."""
    broken(place)
    with pytest.raises(Refusal) as raised:
        checkout.find(str(place.app / "lib/outer"), Present(), exact=True)
    assert "paddock worktree repair" in raised.value.hint
    done = place.service.repair(place.app)
    assert [line.split(":")[0] for line in done] == [f"repaired {place.app}/.git/modules/{name}" for name in STORES]
    assert is_well(place)
    assert place.service.repair(place.app) == []


@pytest.mark.parametrize("before", ["nothing", "files", "deinit"])
def test_every_command_mends_it_first(place: Place, before: str) -> None:
    """A removal at once, one by hand that only left the damage, and one where the main checkout has no files."""
    root = broken(place)
    if before == "files":
        shutil.rmtree(root)
        shutil.rmtree(place.app / ".git/worktrees")
    elif before == "deinit":
        shutil.rmtree(place.app / "lib/outer")
        (place.app / "lib/outer").mkdir()
    if before == "nothing":
        place.service.remove(*place.service.store.all())
    else:
        place.service.of_repository(place.app)
    assert configured(place) == {}
    assert is_well(place) or before == "deinit"
    update(place, place.app)
    assert is_well(place)
    again = place.service.add(place.app, "b")
    update(place, Path(again.path))
    assert is_well(place)


def test_what_is_right_is_left_as_it_is(place: Place) -> None:
    """Without worktrees nothing is written, also where the files of a submodule are gone."""
    before = configured(place)
    shutil.rmtree(place.app / "lib/outer/deep/inner")
    assert place.service.repair(place.app) == []
    assert configured(place) == before
    assert set(before) == set(STORES)


def test_mending_survives_sigkill_between_its_steps(place: Place) -> None:
    """Killed after the note was written: the next command finds the same place."""
    broken(place)

    def die(name: str) -> None:
        if name == "mend":
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(forked.Killed):
        forked.run(lambda: bool(WorktreeService(place.state, step=die).of_repository(place.app)))
    store = place.app / ".git/modules/outer"
    value = os.path.relpath(place.app / "lib/outer", store)
    git("config", "--file", str(store / "config.worktree"), "core.worktree", value, at=place.root)
    assert len(place.service.repair(place.app)) == len(STORES)
    assert is_well(place)
