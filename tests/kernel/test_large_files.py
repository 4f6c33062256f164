"""Git LFS, the real one: its filters run in the jail, offline, and what an agent adds is checked and taken over."""

import hashlib
import json
from pathlib import Path

import pytest

from tests.support.features import need
from tests.support.git_scene import ok
from tests.support.identity import Who
from tests.support.install import Installed
from tests.support.paddock import Paddock, said

_POINTER = "version https"

_SETUP = """
git lfs install >/dev/null
git -c init.defaultBranch=main init -q main
cd main
git config user.name Tester; git config user.email tester@example.invalid
git lfs track '*.bin' >/dev/null
printf 'an old large file' >old.bin
git add . && git commit -q -m 'main: First.'
"""

_WORK = """
set -e
git lfs checkout >&2
cat old.bin; echo
rm old.bin; git checkout -q old.bin; cat old.bin; echo
if touch "$0/x" 2>/dev/null; then echo writable; fi
printf 'a new large file' >new.bin
git add new.bin; git commit -q -m 'agent: New.'
git show HEAD:new.bin | head -c 13; echo
git lfs fsck >&2
git status --porcelain
"""

_LIE = """
set -e
printf 'another large file' >other.bin
git add other.bin; git commit -q -m 'agent: Other.'
object=$(find "$(git rev-parse --git-dir)/lfs/objects" -name "$0")
chmod u+w "$object"; printf 'a different content' >"$object"
"""


@pytest.fixture
def here(user: Who, installed: Installed, public_dir: Path) -> Paddock:
    """A repository with a large file, and a worktree that Paddock has made of it."""
    for feature in ("git-lfs", "landlock", "userns"):
        need(feature)
    place = public_dir / "place-of-user"
    place.mkdir()
    ok(user.run(["sh", "-ec", _SETUP], cwd=user.give(place)))
    main = place / "main"
    made = json.loads(ok(user.run([installed.paddock, "worktree", "add", "T-1", "--json"], cwd=main)))
    return Paddock(user, installed, place, Path(made["main"]["path"]), main)


def _git(here: Paddock, *words: str, at: Path | None = None) -> str:
    return ok(here.who.run(["git", *words], cwd=at or here.worktree)).strip()


def _stored(here: Paddock, content: str) -> Path:
    name = hashlib.sha256(content.encode()).hexdigest()
    return here.main / f".git/lfs/objects/{name[:2]}/{name[2:4]}/{name}"


def test_large_files_are_read_and_added_in_a_jail(here: Paddock) -> None:
    """Old ones come from the read-only store, new ones with the harvest; then all is whole."""
    assert (here.worktree / "old.bin").read_text().startswith(_POINTER)
    ended = here.run("--", "sh", "-c", _WORK, str(here.main / ".git/lfs/objects"))
    assert (ok(ended).splitlines(), ended.stderr.count("1 commit harvested")) == (
        ["an old large file", "an old large file", _POINTER], 1,
    ), ended  # fmt: skip
    assert "1 Git LFS object of the worktree taken into" in ended.stderr
    new = _stored(here, "a new large file")
    assert (new.read_text(), new.stat().st_mode & 0o7777, new.is_symlink()) == ("a new large file", 0o644, False)
    assert json.loads(ok(here.call("worktree", "status", "T-1", "--json", cwd=here.main)))[0]["at_stake"] == []
    assert _git(here, "status", "--porcelain") == ""
    assert "Git LFS fsck OK" in _git(here, "lfs", "fsck")
    (here.worktree / "old.bin").write_text("an odd large file")
    here.who.give(here.worktree / "old.bin")
    assert here.refused("worktree", "remove", "T-1", cwd=here.main).reference == "worktree-dirty"
    (here.worktree / "old.bin").write_text("an old large file")
    ok(here.call("worktree", "remove", "T-1", cwd=here.main))
    _git(here, "merge", "-q", "agent/T-1", at=here.main)
    assert (here.main / "new.bin").read_text() == "a new large file"
    # In the main checkout the store is shown at another place.
    ended = here.run("--", "sh", "-c", "rm *.bin; git checkout .; cat old.bin new.bin", cwd=here.main)
    assert ok(ended) == "an old large filea new large file"


def test_an_object_that_no_commit_names_stays_in_the_jail(here: Paddock) -> None:
    """It would fill the user's disk with what is a hole on the session's; one that is named is taken, and said."""
    script = """
        set -e; d=$(git rev-parse --git-common-dir)/lfs/objects
        put() { o=$(sha256sum $1 | cut -c-64); mkdir -p $d/$(echo $o | cut -c1-2)/$(echo $o | cut -c3-4)
                mv $1 $d/$(echo $o | cut -c1-2)/$(echo $o | cut -c3-4)/$o; }
        truncate -s 9M unnamed; put unnamed; truncate -s 5M named.bin; git add named.bin; git commit -qm named
        rm $(find $d -name $(sha256sum named.bin | cut -c-64)); put named.bin; git status >&2
    """
    ended = here.run("--", "sh", "-c", script)
    assert "1 Git LFS object of the worktree taken into" in ended.stderr, ended
    assert "5.0 MiB" in ended.stderr
    new = [path.stat() for path in (here.main / ".git/lfs/objects").rglob("?" * 64) if path.stat().st_size > 1 << 20]
    assert [one.st_size for one in new] == [5 << 20]
    assert new[0].st_blocks * 512 < 1 << 20


def test_a_large_file_with_another_content_holds_the_commits_back(here: Paddock) -> None:
    """Nothing of it gets into the store, and the branch stays; put right, all of it is taken."""
    content = "another large file"
    target = _stored(here, content)
    before = _git(here, "rev-parse", "HEAD")
    refused = here.run("--", "sh", "-c", _LIE, target.name)
    assert refused.returncode == 0
    assert said(refused.stderr).reference == "harvest-lfs"
    assert "has another hash" in refused.stderr
    assert _git(here, "rev-parse", "HEAD") == before
    assert not target.exists()
    again = 'printf "another large file" >"$(find "$(git rev-parse --git-dir)/lfs/objects" -name "$0")"'
    assert "1 commit harvested" in here.run("--", "sh", "-ec", again, target.name).stderr
    assert target.read_text() == content
    assert [path.name for path in target.parent.iterdir()] == [target.name]
    assert _git(here, "status", "--porcelain") == ""
