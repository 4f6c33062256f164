"""Harvest: commits of a private git directory become commits of the main repository, and nothing else does."""

from pathlib import Path

import pytest

from tests.support import private_git
from tests.support.features import need
from tests.support.install import Installed
from tests.support.private_git import Planted
from tests.support.repository import Repo


@pytest.fixture
def planted(repo: Repo, installed: Installed, place: Path) -> Planted:
    """The private git directory of the linked worktree `one`, without submodules."""
    need("landlock")
    return private_git.plant(repo, repo.one, installed, place)


@pytest.fixture(params=["linked", "main"])
def anywhere(request: pytest.FixtureRequest, repo: Repo, installed: Installed, place: Path) -> Planted:
    """The private git directory of a worktree with its submodule: a linked one, and the main checkout."""
    need("landlock")
    return private_git.plant(repo, repo.one if request.param == "linked" else repo.main, installed, place,
                             submodule=True)  # fmt: skip


def test_a_commit_reaches_the_branch_and_the_worktree_is_clean(anywhere: Planted) -> None:
    """After a harvest the branch has the agent's commit, and `git status` of the user says clean."""
    new = anywhere.commit("src/new.py", "print('new')\n")
    result = anywhere.harvest()
    assert result["state"] == "harvested", result
    assert anywhere.host("rev-parse", "HEAD") == new
    assert anywhere.host("status", "--porcelain") == ""
    assert result["parts"][0]["commits"] == 1
    assert anywhere.host("fsck", "--strict", "--no-dangling") == ""
    assert anywhere.harvest()["state"] == "nothing"


def test_commits_of_a_submodule_come_with_it(anywhere: Planted) -> None:
    """A commit in a submodule and the one that names it arrive together."""
    inner = anywhere.commit("deep.py", "deep = 1\n", at="library")
    new = anywhere.commit("src/uses.py", "import deep\n", link=inner)
    result = anywhere.harvest()
    assert result["state"] == "harvested", result
    assert anywhere.host("rev-parse", "HEAD") == new
    assert anywhere.host("rev-parse", "HEAD", at=anywhere.worktree / "library") == inner
    assert anywhere.host("status", "--porcelain") == ""


def test_nothing_new_starts_no_process(planted: Planted) -> None:
    """Without a commit the end of a session reads a few files; with one, a harvest is due until it is done."""
    program = (
        "import sys; from launcher.vcs.harvest import ending; "
        "print(ending.due(sys.argv[1]), 'subprocess' in sys.modules)"
    )
    words = [str(planted.installed.python), "-I", "-c", program, str(planted.directory)]
    assert planted.who.run(words).stdout == "False False\n"
    planted.commit("file", "content\n")
    assert planted.who.run(words).stdout == "True False\n"
    assert planted.harvest()["state"] == "harvested"
    assert planted.who.run(words).stdout == "False False\n"
