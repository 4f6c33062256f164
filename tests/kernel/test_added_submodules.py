"""Submodules that an agent adds: taken where the user has a place for their commits, else refused with a way out."""

import shutil

from tests.support.git_scene import ok
from tests.support.paddock import Paddock, said

_KNOWN = """
set -e
git -c protocol.file.allow=always submodule --quiet add "$(git rev-parse --absolute-git-dir)/modules/library" again
git config -f .gitmodules submodule.again.url "$0"
git add .; git commit -q -m 'agent: Again.'
"""

_NEW = """
set -e
git init -q made; echo made >made/file
git -C made add .; git -C made -c user.name=A -c user.email=a@example.invalid commit -q -m 'made: First.'
git submodule --quiet add ./made made 2>/dev/null; git commit -q -m 'agent: Made.'
"""

_TAKEN_IN = """
set -e
git rm -q --cached made; git config -f .gitmodules --remove-section submodule.made
git add .gitmodules made; git commit -q --amend -m 'agent: Files.'
"""


def test_a_known_repository_may_be_added_and_a_new_one_is_refused(with_submodule: Paddock) -> None:
    """The hint of each is what works: a new clone outside; the files, without their repository, in the next session."""
    here = with_submodule

    def git(*words: str) -> str:
        return ok(here.who.run(["git", "-c", "protocol.file.allow=always", *words], cwd=here.worktree)).strip()

    ended = here.run("--", "sh", "-c", _KNOWN, str(here.place / "upstream"))
    assert "1 commit harvested" in ended.stderr
    assert "added the submodule again" in ended.stderr
    assert git("rev-parse", "HEAD:again") == git("rev-parse", "HEAD:library")
    shutil.rmtree(here.worktree / "again")
    git("submodule", "--quiet", "update", "--init", "again")
    assert git("status", "--porcelain") == ""

    ended = here.run("--", "sh", "-c", _NEW)
    refused = [line for line in ended.stderr.splitlines() if "harvest-gitlink" in line or line.startswith("  ")]
    assert said("\n".join(refused)).reference == "harvest-gitlink"
    assert "remove made/.git" in ended.stderr
    assert git("log", "-1", "--format=%s") == "agent: Again."
    shutil.rmtree(here.worktree / "made/.git")
    assert "1 commit harvested" in here.run("--", "sh", "-c", _TAKEN_IN).stderr
    assert git("ls-tree", "-r", "--name-only", "HEAD", "made") == "made/file"
    assert git("status", "--porcelain") == ""
