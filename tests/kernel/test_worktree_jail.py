"""An agent in a worktree that Paddock made: it commits there and in the submodule, and nothing else is its own."""

import json
from pathlib import Path
from typing import Any

from tests.support import repository
from tests.support.features import need
from tests.support.identity import Who
from tests.support.install import Installed
from tests.support.repository import Repo

_WORK = """
set -e
git config user.name A; git config user.email a@example.invalid
echo done > library/done; git -C library add done
git -C library -c user.name=A -c user.email=a@example.invalid commit -qm 'library: Done.'
echo done > done; git add done library
git commit -qm 'main: Done.'
git status --porcelain --branch
! cat "$1"/README.md
"""


def test_the_work_of_a_ticket_from_start_to_end(installed: Installed, repo: Repo) -> None:
    """Made, worked in by a jailed git, harvested, looked at, removed: the commits are on the ticket's branches."""

    def paddock(*words: str, at: Path = repo.main, status: int = 0) -> str:
        ended = repo.who.run([str(installed.paddock), *words], cwd=at, timeout=120)
        assert ended.returncode == status, ended.stderr
        return ended.stdout

    made: dict[str, Any] = json.loads(paddock("worktree", "add", "T-1", "--json"))
    root = Path(made["main"]["path"])
    assert root.parent == repo.main.parent
    assert (root / "library/library.py").exists()

    said = paddock("run", "--git", "private", "--", "sh", "-c", _WORK, "sh", str(repo.main), at=root)
    assert "## agent/T-1" in said
    plan = json.loads(paddock("explain", "--plan", "--json", at=root))
    assert plan["worktree_id"] == made["worktree_id"]

    assert repo.git("log", "-1", "--format=%s", "agent/T-1") == "main: Done."
    library = repo.main / ".git/modules/library"
    assert repo.git("--git-dir", str(library), "log", "-1", "--format=%s", "agent/T-1") == "library: Done."
    assert repo.git("status", "--porcelain", at=root) == ""
    (now,) = json.loads(paddock("worktree", "status", "T-1", "--json"))
    assert (now["at_stake"], [part["ahead"] for part in now["parts"]]) == ([], [1, 1])

    gone = json.loads(paddock("worktree", "remove", "T-1", "--json"))
    assert [kept["branch"] for kept in gone["branches_kept"]] == ["agent/T-1", "agent/T-1"]
    assert not root.exists()
    assert repo.git("for-each-ref", "refs/paddock") == ""


def test_a_private_git_directory_that_was_not_harvested_holds_the_worktree(installed: Installed, repo: Repo) -> None:
    """A commit on a detached HEAD is kept back by the harvest's rules until the user decides: removal says so."""

    def paddock(*words: str, at: Path = repo.main) -> tuple[int, str, str]:
        ended = repo.who.run([str(installed.paddock), *words], cwd=at, timeout=120)
        return ended.returncode, ended.stdout, ended.stderr

    status, out, err = paddock("worktree", "add", "T-2", "--json")
    assert status == 0, err
    root = Path(json.loads(out)["main"]["path"])
    work = "git switch -qc other; git -c user.name=A -c user.email=a@e.invalid commit -q --allow-empty -m x"
    status, out, err = paddock("run", "--git", "private", "--", "sh", "-ec", work, at=root)
    assert status == 0, err
    status, out, err = paddock("worktree", "remove", "T-2")
    assert status == 125
    assert "not harvested" in err
    status, out, err = paddock("worktree", "remove", "T-2", "--force", "--json")
    assert status == 0, err
    assert (Path(json.loads(out)["set_aside"]) / "git").is_dir()
    assert not root.exists()


_IN_PLACE = """
set -e
git init -q library; cd library; echo precious >work; git add work
git -c user.name=A -c user.email=a@example.invalid commit -q -m 'agent: Real.'
"""


def test_work_in_a_submodules_place_is_not_removed_with_the_worktree(
    user: Who, installed: Installed, public_dir: Path
) -> None:
    """What an agent makes where the index names a submodule is seen; forced, its files and its commits are kept."""
    need("landlock")
    place = public_dir / "strangers"
    place.mkdir()
    repo = repository.make(user, user.give(place))

    def paddock(*words: str, at: Path = repo.main, status: int = 0) -> str:
        # Without mounts: where there are some, the place is read-only.
        ended = user.run([str(installed.paddock), *words], cwd=at, env={"PADDOCK_NO_USERNS": "1"}, timeout=120)
        assert ended.returncode == status, ended.stderr
        return ended.stdout or ended.stderr

    root = Path(json.loads(paddock("worktree", "add", "T-3", "--no-submodules", "--json"))["main"]["path"])
    assert "nothing is at stake" in paddock("worktree", "status", "T-3")
    paddock("run", "--git", "private", "--", "sh", "-c", _IN_PLACE, at=root)
    assert "what lies in library, where a submodule belongs" in paddock("worktree", "status", "T-3", status=1)
    assert "[worktree-dirty]" in paddock("worktree", "remove", "T-3", status=125)
    gone = json.loads(paddock("worktree", "remove", "T-3", "--force", "--json"))
    assert not root.exists()
    assert repo.git("show", f"{gone['backups'][0]['ref']}:library/work") == "precious"
    # Whoever has put the repository aside, the end of the session or this removal: its commits are still there.
    aside = [Path(one["git_dir"], one["ref"]) for one in gone["backups"][1:]]
    (found,) = [*aside, *(one for one in Path(gone["set_aside"]).glob("docked-*") if one.is_dir())]
    assert repo.git("--git-dir", str(found), "show", "HEAD:work") == "precious"
