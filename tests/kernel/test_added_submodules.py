"""Submodules that an agent adds: taken where the user has a place for their commits, else refused with a way out."""

import shutil

from policy.pasted import cited
from tests.support.git_scene import ok
from tests.support.identity import AS_A_USER
from tests.support.paddock import Paddock, said

_KNOWN = """
set -e
git -c protocol.file.allow=always submodule --quiet add "$(git rev-parse --absolute-git-dir)/modules/library" again
git config -f .gitmodules submodule.again.url "$0"
git add .; git commit -q -m 'agent: Again.'
"""

_LISTED = """
set -e
git init -q listed; echo made >listed/file
git -C listed add .; git -C listed -c user.name=A -c user.email=a@example.invalid commit -q -m 'made: First.'
git submodule --quiet add --name 'the listed' ./listed listed 2>/dev/null; git commit -q -m 'agent: Listed.'
echo more >more; git add more; git commit -q -m 'agent: More.'
"""

_PLAIN = """
set -e
git init -q 'pl ain'; echo made >'pl ain/file'
git -C 'pl ain' add .; git -C 'pl ain' -c user.name=A -c user.email=a@example.invalid commit -q -m 'made: First.'
git add 'pl ain' 2>/dev/null; git commit -q -m 'agent: Plain.'
"""

_BEHIND_LINKS = """
set -e
known=$(git rev-parse HEAD:library)
ln -s "$0" 'led
away'; ln -s "$0/main" late; mkdir deep; ln -s ../late deep/late
i=0
for place in 'led
away/main' late deep/late deep/gone; do
    i=$((i + 1))
    git config -f .gitmodules "submodule.new-$i.path" "$place"
    git config -f .gitmodules "submodule.new-$i.url" "$0/upstream"
    git update-index --add --cacheinfo "160000,$known,$place"
done
git add .gitmodules; git commit -q -m 'agent: Links.'
git rm -q --cached deep/gone; git commit -q -m 'agent: Gone.'
mkdir deep/gone; echo 'gitdir: /nowhere' >deep/gone/.git
"""

_UNKNOWN = """
set -e
git update-index --add --cacheinfo "160000,$(git rev-parse HEAD),late"
git commit -q --amend -m 'agent: Unknown.'
"""


@AS_A_USER
def test_nobody_is_sent_behind_a_link_of_the_agents(with_submodule: Paddock) -> None:
    """A submodule whose place a link leads to is told with the link, and with nothing to remove or populate there."""
    here = with_submodule
    # With a report, this session searches the worktree, however short it was; else the next may tell of deep/gone.
    ended = here.run("--report", str(here.place / "report"), "--", "sh", "-c", _BEHIND_LINKS, here.place)
    assert "2 commits harvested" in ended.stderr
    lines = [line for line in ended.stderr.splitlines() if "added the submodule" in line]
    links = {
        "led\naway/main": ("led\naway", here.place),
        "late": ("late", here.main),
        "deep/late": ("deep/late", "../late"),
    }
    assert len(lines) == len(links), ended.stderr  # `deep/gone` is in no tree any more
    for name, (link, target) in links.items():
        (line,) = (line for line in lines if f"the submodule {cited(name)}, " in line)
        assert f"{cited(f'{here.worktree}/{link}')} is a symbolic link to {target}: " in line
        assert "remove that directory" not in line
        assert "submodule update" not in line

    ended = here.run("--", "sh", "-c", _UNKNOWN)
    assert said(ended.stderr).reference == "harvest-gitlink"
    assert f"{here.worktree}/late is a symbolic link to {here.main}, " in ended.stderr
    assert "remove late/.git" not in ended.stderr
    (here.worktree / "library").rename(here.place / "moved")
    (here.worktree / "library").symlink_to("../moved")
    docked = here.call("worktree", "dock").stdout
    assert f"{here.worktree}/library is a symbolic link to ../moved" in docked
    assert "submodule update" not in docked


@AS_A_USER
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

    before = "agent: Again."
    for script, name, title in ((_LISTED, "listed", "agent: More."), (_PLAIN, "pl ain", "agent: Plain.")):
        ended = here.run("--", "sh", "-c", script)
        refused = [line for line in ended.stderr.splitlines() if "harvest-gitlink" in line or line.startswith("  ")]
        assert said("\n".join(refused)).reference == "harvest-gitlink"
        assert git("log", "-1", "--format=%s") == before
        ((_, hint),) = [line.split("take in its files: ") for line in refused if "take in its files: " in line]
        pasted = here.who.run(
            ["sh", "-c", f'paddock() {{ "$0" "$@"; }}; {hint}', here.installed.paddock], cwd=here.place
        )
        assert "1 commit harvested" in pasted.stderr
        before = title
        assert git("log", "-1", "--format=%s") == before
        assert git("ls-tree", "-r", "--name-only", "HEAD", name) == f"{name}/file"
        assert "the listed" not in git("show", "HEAD:.gitmodules")
        assert git("status", "--porcelain") == ""
