"""An agent in a worktree that Paddock made: it commits there and in the submodule, and nothing else is its own."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from policy import promises
from tests.support import paddock as exchanges
from tests.support import repository, warmed
from tests.support.features import need
from tests.support.identity import AS_A_USER, Who
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


@AS_A_USER
def test_the_work_of_a_ticket_from_start_to_end(installed: Installed, repo: Repo) -> None:
    """Made, worked in by a jailed git, harvested, looked at, removed: the commits are on the ticket's branches."""

    def paddock(*words: str, at: Path = repo.main, status: int = 0) -> str:
        ended = warmed.run(repo.who, installed.python, words, cwd=at)
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

    # A session may have taken a submodule as its worktree: what it did not hand over is not lost with the outer one.
    inner = Path(json.loads(paddock("worktree", "add", "T-2", "--json"))["main"]["path"], "library")
    work = "echo x >.envrc; git add -A; git -c user.name=A -c user.email=a@example.invalid commit -qm precious"
    paddock("run", "--git", "private", "--strict-handoff", "--", "sh", "-c", work, at=inner, status=125)
    assert "submodule library: commits that were not harvested" in paddock("worktree", "status", "T-2", status=1)
    paddock("worktree", "remove", "T-2", status=125)
    gone = json.loads(paddock("worktree", "remove", "T-2", "--force", "--json"))
    assert "precious" in Path(gone["set_aside"], "git/logs/HEAD").read_text()
    assert not inner.exists()


_NESTED = """
for name in nested sub top; do
    git init -q -b main $name; git -C $name commit -q --allow-empty -m first
    test $name = nested || git -C $name submodule --quiet add ../$inner $inner
    test $name = nested || git -C $name commit -q -m $inner
    inner=$name
done
"""
_WORK_IN_NESTED = """
set -e
cd sub/nested; git switch -q -c feature; echo x >x; git add x; git commit -q -m nested
cd ..; git commit -q -a -m sub
cd ..; git commit -q -a -m top; git status --porcelain
"""


@pytest.mark.parametrize("env", [{}, {"PADDOCK_NO_USERNS": "1"}], ids=["namespaces", "landlock"])
def test_a_nested_submodule_that_the_user_populates_is_committed_to(
    user: Who, installed: Installed, public_dir: Path, env: dict[str, str]
) -> None:
    """Git puts its repository below that of the submodule around, which Paddock has made; no commit was possible."""
    place = public_dir / "place"
    place.mkdir()
    user.give(place)
    for name, value in (("user.name", "A"), ("user.email", "a@example.invalid"), ("protocol.file.allow", "always")):
        user.run(["git", "config", "--global", name, value])
    done = user.run(["sh", "-euc", _NESTED], cwd=place)
    assert done.returncode == 0, done.stderr
    ended = warmed.run(user, installed.python, ("worktree", "add", "T"), cwd=place / "top")
    assert "git submodule update --init --recursive" in ended.stdout, ended.stderr
    root = place / "top-T"
    done = user.run(["git", "submodule", "--quiet", "update", "--init", "--recursive"], cwd=root)
    assert done.returncode == 0, done.stderr
    ended = warmed.launch(user, installed.python, ("run", "--", "sh", "-c", _WORK_IN_NESTED), cwd=root, env=env)
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
    for at, subject in ((root, "top"), (root / "sub", "sub"), (root / "sub/nested", "nested")):
        assert user.run(["git", "log", "-1", "--format=%s", "--all"], cwd=at).stdout == f"{subject}\n"
    ended = warmed.run(user, installed.python, ("worktree", "remove", "T"), cwd=place / "top")
    assert "submodule sub/nested: commits that are on no remote" in ended.stderr


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
        ended = warmed.run(user, installed.python, words, cwd=at, env={"PADDOCK_NO_USERNS": "1"})
        assert ended.returncode == status, ended.stderr
        return ended.stdout or ended.stderr

    root = Path(json.loads(paddock("worktree", "add", "T-3", "--no-submodules", "--json"))["main"]["path"])
    assert "nothing would be lost" in paddock("worktree", "status", "T-3")
    paddock("run", "--git", "private", "--", "sh", "-c", _IN_PLACE, at=root)
    assert "the content of library, where a submodule belongs" in paddock("worktree", "status", "T-3", status=1)
    assert "[worktree-dirty]" in paddock("worktree", "remove", "T-3", status=125)
    gone = json.loads(paddock("worktree", "remove", "T-3", "--force", "--json"))
    assert not root.exists()
    assert repo.git("show", f"{gone['backups'][0]['ref']}:library/work") == "precious"
    # Whoever has put the repository aside, the end of the session or this removal: its commits are still there.
    aside = [Path(one["git_dir"], one["ref"]) for one in gone["backups"][1:]]
    (found,) = [*aside, *(one for one in Path(gone["set_aside"]).glob("docked-*") if one.is_dir())]
    assert repo.git("--git-dir", str(found), "show", "HEAD:work") == "precious"


@AS_A_USER
@pytest.mark.parametrize(
    ("backend", "grant"),
    [
        (promises.NAMESPACES, "--rw"),
        (promises.GUARD, "readonly"),
    ],
)
def test_a_removal_beside_a_live_session_changes_nothing_outside(
    installed: Installed, repo: Repo, backend: str, grant: str
) -> None:
    """Refused; and forced, what a command exchanges for links meanwhile leads nowhere. In another worktree it may.

    The removal works outside of the jail: whether a session has its own worktree or another one's is all that differs.
    """

    def paddock(*words: str) -> "subprocess.CompletedProcess[str]":
        return warmed.run(repo.who, installed.python, ("worktree", *words), cwd=repo.main)

    outside = exchanges.canary(repo.who, repo.main.parent)
    made = [json.loads(paddock("add", name, "--no-submodules", "--json").stdout)["main"]["path"] for name in "ab"]
    root, other = map(Path, made)
    before = exchanges.seen(outside)
    options = ["--git", "readonly"] if grant == "readonly" else ["--git", "readonly", "--rw", str(root)]
    words = [*options, "--", *exchanges.DIRECTORIES, str(root), str(outside)]
    where = root if grant == "readonly" else repo.one
    with exchanges.session(repo.who, installed, backend, where, *words):
        said = paddock("remove", "a")
        assert (said.returncode, "[session-running]" in said.stderr) == (125, True), said.stderr
        assert root.exists()
        said = paddock("remove", "b")
        assert said.returncode == 0, said.stderr
        assert not other.exists()
        said = paddock("remove", "a", "--force")
        assert not root.exists(), said.stderr
        assert exchanges.seen(outside) == before
    paddock("repair")
    assert paddock("list").stdout.count(str(root)) == 0
    assert exchanges.seen(outside) == before
    assert [path.name for path in root.parent.iterdir() if ".paddock-" in path.name] == []


def test_what_another_session_exchanges_around_worktrees_leads_nowhere(
    installed: Installed, user: Who, public_dir: Path
) -> None:
    """It may write the directory in which they are made, looked at and removed. Without files: git writes those.

    What is attacked works outside of every jail, so one backend has all that there is to see.
    """
    place = public_dir / "around"
    place.mkdir()
    repo = repository.make(user, user.give(place))
    trees = repo.main.parent / "trees"
    trees.mkdir()
    user.give(trees)
    outside = exchanges.canary(user, repo.main.parent)
    before = exchanges.seen(outside)
    empty = repo.git("commit-tree", "-m", "empty", repo.git("hash-object", "-t", "tree", "-w", "/dev/null"))

    def paddock(*words: str) -> "subprocess.CompletedProcess[str]":
        return warmed.run(user, installed.python, ("worktree", *words), cwd=repo.main)

    add = ("add", "--from", empty, "--path")
    words = ("--git", "readonly", "--rw", str(trees), "--", *exchanges.WHATEVER_COMES, str(trees), str(outside))
    with exchanges.session(user, installed, promises.NAMESPACES, repo.one, *words):
        for number in range(3):
            paddock(*add, str(trees / f"T{number}"), f"T{number}")
            assert exchanges.seen(outside) == before
        for verb in (
            ("status",),
            ("list",),
            ("repair",),
            *(("remove", "--force", f"T{number}") for number in range(3)),
        ):
            paddock(*verb)
            assert exchanges.seen(outside) == before, verb
    made = paddock(*add, str(trees / "alone"), "alone")
    assert made.returncode == 0, made.stderr
    assert paddock("remove", "alone").returncode == 0
    assert exchanges.seen(outside) == before
