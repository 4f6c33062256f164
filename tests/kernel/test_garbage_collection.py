"""The user's git collects garbage while Paddock writes into the same repository: no branch ever lacks an object."""

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import private_git, repository
from tests.support.features import need
from tests.support.identity import Who
from tests.support.install import Installed
from tests.support.private_git import Planted
from tests.support.repository import Repo

_COLLECTORS = (
    "git repack -adq",
    "git prune --expire=now; git repack -Adq",
    "git maintenance run -q --task=gc --task=incremental-repack --task=loose-objects; git fetch -q",
)


@pytest.fixture
def repo(user: Who, public_dir: Path) -> Repo:
    """A repository with a remote, two linked worktrees and a submodule."""
    need("landlock")
    place = public_dir / "collected"
    place.mkdir()
    made = repository.make(user, user.give(place))
    made.git("clone", "-q", "--bare", "../main", "../remote.git")
    made.git("remote", "add", "origin", "../remote.git")
    return made


@contextmanager
def _collecting(repo: Repo, script: str, *places: Path) -> Iterator[None]:
    """Runs a collector over and over in each of these repositories, the main one when none is named."""
    words = ["sh", "-c", f'echo ready; while :; do {script}; done 2>"$0"']
    started = [
        repo.who.start([*words, str(repo.main.parent / f"collector-{number}")], cwd=place)
        for number, place in enumerate(places or (repo.main,))
    ]
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
        yield
        assert [process.poll() for process in started] == [None] * len(started)
    finally:
        for process in started:
            process.send_signal(signal.SIGSTOP)
            process.kill()
            process.communicate()


def _assert_whole(repo: Repo, *places: Path) -> None:
    """Every branch leads to all of its objects, git can collect garbage, and no pack of ours is held any more."""
    for place in places or (repo.main,):
        repo.git("fsck", "--connectivity-only", "--no-dangling", at=place)
        repo.git("gc", "-q", "--prune=now", at=place)
        common = place / repo.git("rev-parse", "--git-common-dir", at=place)
        held = [path.name for path in (common / "objects/pack").iterdir() if path.suffix in (".keep", ".new")]
        assert held == [], held


def test_harvests_beside_a_collector_lose_nothing(repo: Repo, installed: Installed) -> None:
    """Also into a submodule's store; beside each collector in turn."""
    planted = private_git.plant(repo, repo.one, installed, repo.main.parent, submodule=True)
    library = Path(repo.git("rev-parse", "--absolute-git-dir", at=repo.one / "library"))
    for number, collector in enumerate(_COLLECTORS):
        inner = planted.commit(f"deep{number}", f"{number}\n", at="library")
        commit = planted.commit(f"file{number}", f"{number}\n", link=inner)
        with _collecting(repo, collector, repo.main, library):
            result = planted.harvest()
            assert result.get("state") == "harvested", (collector, json.dumps(result, indent=1))
            assert planted.host("rev-parse", "HEAD") == commit
        _assert_whole(repo, repo.main, library)


def test_harvests_beside_collectors_of_borrowed_stores_lose_nothing(repo: Repo, installed: Installed) -> None:
    """The repository borrows objects from one that is packed anew all the time, and lends its own to another."""
    place = repo.main.parent
    for name, source in (("borrower", "main"), ("reader", "borrower")):
        repo.git("clone", "-q", "--shared", f"../{source}", f"../{name}")
    middle = replace(repo, main=place / "borrower")
    agent = _agent(middle, installed, "agent")
    with _collecting(repo, "git repack -adq; git fetch -q", repo.main, middle.main, place / "reader"):
        for number in range(2):
            agent.commit(f"file{number}", f"{number}\n")
            result = agent.harvest()
            assert result.get("state") == "harvested", json.dumps(result, indent=1)
    _assert_whole(repo, middle.main)
    repo.git("fetch", "-q", at=place / "reader")
    assert repo.git("cat-file", "-t", "origin/agent", at=place / "reader") == "commit"


def test_many_harvests_at_once_beside_a_collector_lose_nothing(repo: Repo, installed: Installed) -> None:
    """None of them is refused, whatever the collector locks."""
    agents = [_agent(repo, installed, f"agent{number}") for number in range(4)]
    commits = [planted.commit(f"file{number}", f"{number}\n") for number, planted in enumerate(agents)]
    with _collecting(repo, "git repack -adq; git pack-refs --all"), ThreadPoolExecutor(len(agents)) as pool:
        results = list(pool.map(lambda planted: planted.harvest(), agents))
    assert [result.get("state") for result in results] == ["harvested"] * len(agents), [
        result for result in results if "errorType" in result
    ]
    assert [planted.host("rev-parse", "HEAD") for planted in agents] == commits
    _assert_whole(repo)


def test_what_an_agent_has_merged_of_a_deleted_branch_comes_with_its_work(repo: Repo, installed: Installed) -> None:
    """The user's branch is deleted and collected between the harvest's checks and the moment when refs move."""
    agent = _agent(repo, installed, "agent")
    repo.git("commit", "-q", "--allow-empty", "-m", "two: Work.", at=repo.two)
    agent.agent("merge", "-q", "--no-ff", "-m", "agent: Merge.", repo.git("rev-parse", "two"))
    assert agent.start(kill_before="keep").returncode == -signal.SIGKILL
    repo.git("worktree", "remove", "--force", str(repo.two))
    repo.git("branch", "-qD", "two")
    repo.git("reflog", "expire", "--expire=now", "--all")
    repo.git("gc", "-q", "--prune=now")
    assert agent.harvest()["state"] == "harvested"
    assert repo.git("log", "--format=%s", "agent").splitlines()[:2] == ["agent: Merge.", "two: Work."]
    _assert_whole(repo)


def test_merges_beside_a_collector_lose_nothing(repo: Repo, installed: Installed) -> None:
    """Merge commits, their trees, and what is fetched between stores of a submodule."""
    library = Path(repo.git("rev-parse", "--absolute-git-dir", at=repo.main / "library"))
    identity = ("-c", "user.name=User", "-c", "user.email=user@example.invalid")
    for place in (repo.main, repo.one / "library", repo.one):  # alone: --prune=now may take git's own commits
        (place / place.name).write_text("new\n")
        repo.git("add", ".", at=place)
        repo.git(*identity, "commit", "-q", "-m", f"{place.name}: New.", at=place)
    with _collecting(repo, "git gc -q --prune=now; git prune --expire=now", repo.main, library):
        ended = repo.who.run([str(installed.paddock), "merge", "one"], cwd=repo.main, timeout=120)
        assert ended.returncode == 0, ended.stderr
    assert repo.git("status", "--porcelain") == ""
    assert repo.git("rev-parse", "HEAD:library") == repo.git("rev-parse", "HEAD", at=repo.main / "library")
    _assert_whole(repo, repo.main, repo.main / "library")


def _agent(repo: Repo, installed: Installed, name: str) -> Planted:
    place = repo.main.parent / name
    repo.git("worktree", "add", "-q", "-b", name, str(place))
    return private_git.plant(repo, place, installed, repo.main.parent)
