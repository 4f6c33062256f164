"""What an agent leaves in its private git directory harms nothing outside: not one bit of the main repository.

Some attacks at a time are followed by their allowed twin: the next agent's ordinary commit in the same worktree is
harvested.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import identity, install, private_git, repository
from tests.support.features import need
from tests.support.identity import Who
from tests.support.install import Installed
from tests.support.private_git import Attack, Planted
from tests.support.repository import Repo

# What a harvest of `one` may change or add; everything else stays as it is, to the nanosecond.
OWN = (
    "refs/heads/one", "logs/refs/heads/one", "worktrees/one/index", "worktrees/one/logs/HEAD", "refs/paddock",
    "logs/refs/paddock", "lfs",
)  # fmt: skip


class Scene(NamedTuple):
    """A repository under attack.

    Attributes:
        repo: its main part and worktrees.
        place: where more can be made.
        canary: a directory that whatever is executed leaves a file in.
        base: the first commit of `one`.
        planted: the private git directory of an agent there.
    """

    repo: Repo
    place: Path
    canary: Path
    base: str
    planted: Planted

    @property
    def who(self) -> Who:
        """Whose it is."""
        return self.repo.who

    @property
    def store(self) -> Path:
        """The main repository's git directory."""
        return self.repo.main / ".git"


@pytest.fixture(scope="module")
def scene(installed: Installed) -> Iterator[Scene]:
    """One repository for all attacks: none of them may change it. The user has drivers in his configuration."""
    need("landlock")
    base = Path(tempfile.mkdtemp(prefix="t-", dir=install.public_root()))
    base.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("GIT_", "XDG_", "PADDOCK_"))]:
            patch.delenv(name)
        who = identity.user(base / "home")
        place = base / "place"
        place.mkdir()
        who.give(place)
        repo = repository.make(who, place)
        canary = place / "canary"
        canary.mkdir()
        who.give(canary)
        evil = place / "driver"
        evil.write_text(f'#!/bin/sh\necho "$*" >>"{canary}/driver"\ncat\n')
        evil.chmod(0o755)
        for key in ("filter.user.clean", "filter.user.smudge", "diff.user.textconv", "merge.user.driver"):
            repo.git("config", key, str(evil))
        assert who.run(["sh", "-c", "git init -q foreign && cd foreign && echo secret >secret && git add . && git -c "
                        "user.name=x -c user.email=x@y commit -qm secret"], cwd=place).returncode == 0  # fmt: skip
        planted = private_git.plant(repo, repo.one, installed, place, submodule=True)
        planted.directory.rename(place / "kept")
        yield Scene(repo, place, canary, repo.git("rev-parse", "one"), planted)
    shutil.rmtree(base)


@contextmanager
def _planted(scene: Scene) -> Iterator[Planted]:
    """A copy of the private git directory for the worktree `one`, which is clean before and after."""
    planted = scene.planted
    shutil.copytree(scene.place / "kept", planted.directory, symlinks=True)
    scene.who.give(planted.directory)
    yield planted
    _without_fifos(planted.worktree)
    scene.repo.git("reset", "-q", "--hard", scene.base, at=scene.repo.one)
    # Forced, twice: an attack may have left repositories.
    scene.repo.git("clean", "-ffdxq", at=scene.repo.one)
    shutil.rmtree(planted.directory)


def _without_fifos(directory: Path) -> None:
    """Any git would wait for them for ever."""
    for path in directory.rglob("*"):
        if path.is_fifo():
            path.unlink()


def _agent(scene: Scene, planted: Planted, attack: Attack) -> None:
    environment = {
        "GIT_DIR": str(planted.git_dir),
        "GIT_WORK_TREE": str(planted.worktree),
        "GIT_AUTHOR_NAME": "Agent",
        "GIT_AUTHOR_EMAIL": "agent@example.invalid",
        "GIT_COMMITTER_NAME": "Agent",
        "GIT_COMMITTER_EMAIL": "agent@example.invalid",
        "CANARY": str(scene.canary),
        "MAIN": str(scene.repo.main),
    }
    ended = planted.who.run(["sh", "-c", private_git.script(attack)], cwd=planted.worktree, env=environment)
    assert ended.returncode == 0, ended.stderr


def _unharmed(scene: Scene, before: dict[str, tuple[object, ...]]) -> None:
    """Nothing that was there has changed, but the own branch; what is new are objects and the own branch's records."""
    after = private_git.tree_state(scene.store)
    changed = {name for name in before if after.get(name) != before[name] and not name.startswith(OWN)}
    # A directory's mode and number stay; its entries are looked at one by one.
    assert changed == set()
    added = {name for name in after.keys() - before.keys() if not name.startswith(("objects/", *OWN))}
    assert {name for name in added if name not in ("logs/refs", "logs/refs/heads")} == set()
    left = [name for name in after if name.endswith(".lock") or "/tmp_" in name or "paddock-index" in name]
    assert left == []


def _harvested(scene: Scene, planted: Planted, attack: Attack) -> None:
    """The harvest after an attack: it ends as it should, and has touched nothing else."""
    _agent(scene, planted, attack)
    before = private_git.tree_state(scene.store)
    canaries = {path.name for path in scene.canary.iterdir()}
    result = planted.harvest()
    outcome = result.get("errorType") or result["state"]
    assert outcome in attack.outcomes, result
    assert attack.said in str(result)
    _unharmed(scene, before)
    assert {path.name for path in scene.canary.iterdir()} == canaries, "something was executed"
    if outcome not in private_git.TAKEN:
        assert scene.repo.git("rev-parse", "one") == scene.base


AT_A_TIME = 16
ATTACKS = [private_git.ALL[at : at + AT_A_TIME] for at in range(0, len(private_git.ALL), AT_A_TIME)]


@pytest.mark.parametrize("attacks", ATTACKS, ids=lambda attacks: f"{attacks[0].name} ... {attacks[-1].name}")
def test_no_attack_harms_anything_and_the_next_commit_is_taken(scene: Scene, attacks: tuple[Attack, ...]) -> None:
    """The main repository stays bit for bit outside its own branch, nothing is executed, and harvests go on."""
    wrong = {}
    for attack in attacks:
        with _planted(scene) as planted:
            try:
                _harvested(scene, planted, attack)
            except AssertionError as error:
                wrong[attack.name] = str(error)
    assert wrong == {}
    with _planted(scene) as twin:
        (twin.worktree / "twin").write_text(attacks[0].name)
        twin.agent("add", "twin")
        twin.agent("commit", "-q", "-m", "agent: Twin.")
        assert twin.harvest()["state"] == "harvested"
        assert scene.repo.git("rev-parse", "one") == twin.agent("rev-parse", "HEAD")
