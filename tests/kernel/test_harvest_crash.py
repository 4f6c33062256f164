"""A harvest that is killed at any step leaves a state that the next one completes.

What is done for each repository alike is killed for the last of them, after the others have been through it.
`PADDOCK_KILLS=N`, from 2 on, has every step.
"""

import itertools
import os
import re
from pathlib import Path

from tests.support import private_git, repository
from tests.support.features import need
from tests.support.identity import Who
from tests.support.install import Installed


def _steps(steps: list[str]) -> list[int]:
    """The numbers of those that are tried."""
    numbers = {re.sub("[0-9a-f]{40}|worktree|library", "", step): at for at, step in enumerate(steps, 1)}
    return list(range(1, len(steps) + 1)) if int(os.environ.get("PADDOCK_KILLS", "1")) > 1 else sorted(numbers.values())


def test_sigkill_at_every_step_loses_nothing(user: Who, installed: Installed, public_dir: Path) -> None:
    """Killed before each of its steps, a harvest is finished by the next: all repositories, or none until then.

    Killed alone, and together with the git that runs beside the step where there is one.
    """
    need("landlock")
    place = public_dir / "crash"
    place.mkdir()
    user.give(place)
    repo = repository.make(user, place)
    planted = private_git.plant(repo, repo.one, installed, place, submodule=True)
    library = repo.one / "library"
    number = itertools.count()

    def committed() -> tuple[str, str]:
        name = f"{next(number)}.py"
        inner = planted.commit(f"deep{name}", name, at="library")
        return planted.commit(f"src/{name}", name, link=inner), inner

    for _ in range(2):  # the first one makes what is there from then on
        old = committed()
        whole = planted.harvest()
    assert len(whole["steps"]) > 10, whole
    together = {whole["steps"][at - 1].split()[0]: at for at in whole["with_git"]}  # one of each kind
    assert together, whole
    kills = [(at, False) for at in _steps(whole["steps"])] + [(at, True) for at in together.values()]
    assert len(kills) > 15, whole
    for kill_at, everything in kills:
        new = committed()
        ended = planted.start(kill_at=kill_at, everything=everything)
        assert ended.returncode == -9, (kill_at, whole, ended)
        now = (planted.host("rev-parse", "HEAD"), planted.host("rev-parse", "HEAD", at=library))
        assert now[0] in (old[0], new[0])
        assert now[1] in (old[1], new[1])
        assert planted.host("fsck", "--strict", "--no-dangling") == ""
        if now[0] == new[0]:
            assert now[1] == new[1], "the commit that names a submodule's came before it"
        result = planted.harvest()
        assert result["state"] == "harvested", result
        assert {part["new"] for part in result["parts"]} == set(new)
        assert (planted.host("rev-parse", "HEAD"), planted.host("rev-parse", "HEAD", at=library)) == new
        assert planted.host("status", "--porcelain") == ""
        assert _left(repo.main / ".git") == []
        assert os.listdir(planted.directory / "harvest") == []
        old = new


def test_sigkill_while_a_checkout_follows(user: Who, installed: Installed, public_dir: Path) -> None:
    """HEAD, index and branches are those of before or those of after; the next harvest completes it.

    From the moment when refs begin to move: what comes before is the same without a checkout.
    """
    need("landlock")
    place = public_dir / "crash"
    place.mkdir()
    user.give(place)
    repo = repository.make(user, place)
    planted = private_git.plant(repo, repo.one, installed, place)

    def committed(name: str) -> str:
        planted.agent("checkout", "-q", "-b", f"topic{name}")
        return planted.commit(f"src/{name}.py", f"{name}\n")

    for name in "ab":  # the first one makes what is there from then on
        committed(name)
        steps = planted.harvest()["steps"]
    kills = range(steps.index("prepare 0") + 1, len(steps) + 1)
    for kill_at in kills:
        before = planted.host("symbolic-ref", "HEAD")
        new = committed(str(kill_at))
        assert planted.start(kill_at=kill_at).returncode == -9
        now = planted.host("symbolic-ref", "HEAD")
        assert now in (before, f"refs/heads/topic{kill_at}")
        assert planted.host("fsck", "--strict", "--no-dangling") == ""
        planted.harvest()
        assert planted.host("symbolic-ref", "HEAD") == f"refs/heads/topic{kill_at}"
        assert planted.host("rev-parse", "HEAD") == new
        assert planted.host("status", "--porcelain") == ""
        assert _left(repo.main / ".git") == []
    assert "head worktree" in steps[kills[0] :]
    assert len(kills) > 8


def _left(git_dir: Path) -> list[str]:
    """Locks and temporary files, and packs that are held."""
    return [
        str(path)
        for path in git_dir.rglob("*")
        if path.name.endswith((".lock", ".keep", ".new"))
        or path.name.startswith(("paddock-index", "tmp_pack", "tmp_objdir"))
    ]
