"""Work that a harvest keeps beside a branch: told once, joined by the command that is named, and then done with."""

import dataclasses
import re
import subprocess
import time
from pathlib import Path

import pytest

from policy import promises
from tests.support import warmed
from tests.support.git_scene import Git, make, ok
from tests.support.identity import Who
from tests.support.install import Installed
from tests.support.private_git import Planted

_OUTSTANDING = """
import sys
from launcher.vcs.harvest import agent_refs, outstanding
answers = [outstanding.outstanding(sys.argv[1], kept=kept) for kept in (True, False)]
print(agent_refs.harvest_due(sys.argv[1]), *answers)
"""


@pytest.fixture
def submodules() -> bool:
    """Whether there are some, where a test does not say it."""
    return False


@pytest.fixture
def git(submodules: bool, user: Who, installed: Installed, public_dir: Path) -> Git:
    """A worktree that Paddock has made, for an ordinary user, with namespaces."""
    scene = make(user, installed, public_dir, "main", promises.NAMESPACES, submodules=submodules)
    ended = warmed.run(user, installed.python, ("worktree", "add", "mv2"), cwd=scene.worktree)
    assert ended.returncode == 0, ended.stderr
    (place,) = scene.place.glob("main-mv2*")
    return Git(user, installed, scene.place, place, scene.backend)


def _asked(planted: Planted) -> tuple[bool, bool, bool]:
    """(whether a harvest is due, whether commits would be lost with the directory, whether the branch lacks any)."""
    ended = warmed.run(planted.who, planted.installed.python, [planted.directory], program=_OUTSTANDING)
    assert ended.returncode == 0, ended.stderr
    due, lost, lacks = (word == "True" for word in ended.stdout.split())
    return due, lost, lacks


def _verb(git: Git, *words: str, at: str = "") -> "subprocess.CompletedProcess[str]":
    cwd = git.place / at if at else git.worktree
    return warmed.run(git.who, git.installed.python, ("worktree", *words), cwd=cwd)


def _joined(git: Git, said: str) -> None:
    """Does what the message says, as it stands."""
    hints = re.findall(r"to merge them: (.*)", said)
    assert len(hints) == 1, said
    ended = git.who.run(["sh", "-c", hints[0]], cwd=git.worktree, env={"GIT_EDITOR": "true"})
    assert ended.returncode == 0, ended.stderr


def _moved(git: Git, script: str) -> str:
    """What a session says whose branch the user moves while it runs."""
    go = "touch ready; while test ! -e go; do sleep 0.05; done; rm ready go"
    session = git.start(f"{go}; {script}")
    while not (git.worktree / "ready").exists():
        assert session.poll() is None
    git.outside("commit", "-q", "--allow-empty", "-m", "user: Mine.")
    (git.worktree / "go").touch()
    said = session.communicate(timeout=120)[1].decode()
    assert session.returncode == 0, said
    return said


def test_after_the_merge_that_the_message_names_the_session_goes_on_with_the_user(git: Git) -> None:
    """The command works although the agent's files lie there already and more is not committed; then all is quiet."""
    said = _moved(
        git,
        "echo new >added; echo more >>src/count; git add -A; git commit -qm 'agent: Work.'; echo draft >draft;"
        " sed -i '1i first' src/count",
    )
    assert "1 commit kept in refs/paddock/agents/" in said
    again = git.run("git log -1 --format=%s")
    assert (again.stdout, "not harvested yet" in again.stderr) == ("agent: Work.\n", True), again.stderr
    assert "kept in" not in again.stderr, "told once"
    shown = _verb(git, "status").stdout
    assert shown.count("not harvested") == 0, "it is kept, and not lost with the worktree"
    assert "1 commit of the agent is kept in refs/paddock/agents/" in shown
    content = (git.worktree / "src/count").read_text()
    _joined(git, said)
    assert (git.worktree / "src/count").read_text() == content
    assert (git.worktree / "draft").read_text() == "draft\n"
    assert git.outside("log", "--format=%s", "-3").count("agent: Work.") == 1
    assert git.outside("stash", "list") == ""
    now = git.run("git log -1 --format=%H; git commit -q --allow-empty -m 'agent: Next.'")
    assert now.stdout.strip() == git.outside("rev-parse", "HEAD~1"), now.stderr
    assert "not harvested" not in now.stderr
    assert git.outside("log", "-1", "--format=%s") == "agent: Next."
    assert _verb(git, "harvest").stdout == "nothing new\n"


def test_commits_on_the_users_detached_head_are_at_stake(git: Git) -> None:
    """They are harvested to HEAD, on which no ref is; what pins them for the private git directory goes with it."""
    git.outside("checkout", "-q", "--detach")
    said = _told(git, "git commit -q --allow-empty -m 'agent: Detached.'")
    assert "1 commit harvested to HEAD" in said
    assert "would be lost: commits on no branch\n" in _verb(git, "status").stdout
    git.outside("branch", "saved")
    assert "nothing would be lost" in _verb(git, "status").stdout


def test_commits_on_a_detached_head_are_kept_and_told(git: Git) -> None:
    """They have a ref and a command that joins them, status agrees, and the next session is on the branch again."""
    once = "git commit -q --allow-empty -m x"
    script = f"{once}; git checkout -q --detach; {once}; echo x >found; git add -A; git commit -qm 'agent: Detached.'"
    said = _told(git, script)
    assert "1 commit harvested to agent/mv2" in said, "counted apart"
    assert "2 commits kept in refs/paddock/detached/" in said
    assert "detached HEAD" in said
    shown = _verb(git, "status").stdout
    assert "not harvested" not in shown
    assert "2 commits of the agent are kept in refs/paddock/detached/" in shown
    assert "kept in" not in git.run("true").stderr, "told once"
    _joined(git, said)
    assert "nothing would be lost" in _verb(git, "status").stdout
    assert git.outside("log", "-1", "--format=%s") == "agent: Detached."
    assert ok(git.run("git branch --show-current; git log -1 --format=%s")).splitlines() == [
        git.outside("branch", "--show-current"),
        "agent: Detached.",
    ]
    assert _verb(git, "harvest").stdout == "nothing new\n"


def test_every_stash_is_taken_over_and_applied_by_the_command_that_is_named(git: Git) -> None:
    """A session's end takes the whole list, once; applied, given up or removed with the worktree, none is lost."""
    stash = "echo {0} >draft; git add draft; git stash -q -m {0}"
    said = _told(git, "; ".join(map(stash.format, ("first", "second"))))
    commands = re.findall(r"to apply it: (git stash apply (refs/paddock/stash/\S+/\d))$", said, re.MULTILINE)
    assert len(commands) == 2, said
    assert git.who.run(["sh", "-c", commands[0][0]], cwd=git.worktree).returncode == 0
    assert (git.worktree / "draft").read_text() == "first\n"
    git.outside("rm", "-qf", "draft")
    git.outside("update-ref", "-d", commands[0][1])
    shown = _verb(git, "status").stdout
    assert "nothing would be lost" in shown
    assert f"git -C {git.worktree} {commands[1][0][4:]}\n" in shown
    assert "stash" not in _told(git, "true"), "told once"
    removed = _verb(git, "remove", "mv2", at="main")
    assert f"a stash of the agent stays in {commands[1][1]} in " in removed.stdout, removed.stderr
    assert git.who.run(["git", "stash", "apply", commands[1][1]], cwd=git.place / "main").returncode == 0
    assert (git.place / "main/draft").read_text() == "second\n"


def test_tags_alone_are_taken_over_at_the_end_of_the_session(git: Git) -> None:
    """As branches are: told once, and none is lost with the worktree."""
    said = _told(git, "git tag reviewed; git tag -a -m x released; git tag --list | wc -l")
    head = git.outside("rev-parse", "HEAD")
    assert f"tag reviewed is new, at {head[:10]}\n" in said
    assert git.outside("rev-parse", "reviewed", "released^0").split() == [head, head]
    assert "tag" not in _told(git, "true"), "told once"
    assert "nothing would be lost" in _verb(git, "status").stdout


def test_a_stash_that_cannot_be_taken_leaves_no_commit_behind(planted: Planted) -> None:
    """Commits cross, what is the matter with the stash is told, and it is named as what a removal would lose."""
    planted.commit("work", "work\n")
    (planted.worktree / "work").write_text("more\n")
    planted.agent("stash", "-q")
    stash = planted.agent("rev-parse", "refs/stash")
    (planted.git_dir / f"objects/{stash[:2]}/{stash[2:]}").unlink()
    result = planted.harvest()
    assert (result["state"], len(result["parts"])) == ("harvested", 1)
    assert "stash is not harvested" in result["notes"][0]
    assert _asked(planted)[1]
    assert planted.host("for-each-ref", "refs/paddock/stash") == ""


def test_an_agent_that_looks_at_an_old_commit_stays_there(git: Git) -> None:
    """As in the middle of a bisect: the files are the old ones, so the user's next commit does not take it along."""
    _told(git, "git checkout -q --detach HEAD~2")
    git.outside("commit", "-q", "--allow-empty", "-m", "user: Mine.")
    again = git.run("git symbolic-ref -q HEAD; git log -1 --format=%H; git status --porcelain")
    assert again.stdout.strip() == git.outside("rev-parse", "HEAD~3"), again.stderr
    assert "not harvested yet" in again.stderr


def _told(git: Git, script: str) -> str:
    """What a session that succeeds says on standard error."""
    ended = git.run(script)
    assert ended.returncode == 0, ended.stderr
    return ended.stderr


def test_what_a_branch_gains_is_told_though_the_repository_has_it(planted: Planted) -> None:
    """A harvest of another worktree has brought the same commits, say; here one that kept them beside the branch."""
    planted.host("commit", "-q", "--allow-empty", "-m", "user: Mine.")
    planted.commit("1", "1\n")
    new = planted.commit("2", "2\n")
    (kept,) = planted.harvest()["parts"]
    assert (kept["commits"], bool(kept["kept"])) == (2, True)
    planted.host("reset", "-q", "--mixed", "HEAD~1")
    (gained,) = planted.harvest()["parts"]
    assert (gained["commits"], gained["kept"], gained["ref"]) == (2, "", "refs/heads/one")
    assert planted.host("rev-parse", "HEAD") == new


def test_what_the_user_has_merged_is_harvested_without_a_session(planted: Planted) -> None:
    """Before anything is taken over it is due; once the branch reaches it, nothing is, and the record says so.

    Until then the branch stays where the user has moved it, and his commands are named, as often as one harvests.
    """
    (planted.worktree / "mine").write_text("mine\n")
    planted.host("add", "mine")
    planted.host("commit", "-q", "-m", "user: Mine.")
    mine = planted.host("rev-parse", "HEAD")
    new = planted.commit("theirs", "theirs\n")
    assert _asked(planted) == (True, True, True)
    for _ in range(2):
        result = planted.harvest()
        kept = result["parts"][0]["kept"]
        assert result["state"] == "kept"
        assert planted.host("rev-parse", "HEAD", kept).split() == [mine, new]
        assert f"git merge --autostash {kept}" in result["notes"][0]
        assert _asked(planted) == (True, False, True)
    (planted.worktree / "theirs").unlink()
    planted.host("merge", "-q", "--no-edit", kept)
    assert _asked(planted) == (True, False, False)
    assert planted.harvest()["state"] == "nothing"
    assert _asked(planted) == (False, False, False)


def test_every_detached_line_of_work_has_a_ref_of_its_own(planted: Planted) -> None:
    """What goes on from a kept commit moves its ref; what does not gets another, and neither is lost."""
    planted.agent("checkout", "-q", "--detach")
    first = planted.commit("a", "a\n")
    (one,) = planted.harvest()["parts"]
    assert (one["commits"], planted.host("rev-parse", one["kept"])) == (1, first)
    second = planted.commit("b", "b\n")
    (two,) = planted.harvest()["parts"]
    assert (two["kept"], planted.host("rev-parse", two["kept"])) == (one["kept"], second)
    planted.agent("checkout", "-q", "--detach", "HEAD~2")
    other = planted.commit("c", "c\n")
    (three,) = planted.harvest()["parts"]
    assert planted.host("rev-parse", three["kept"], one["kept"]).split() == [other, second]
    assert _asked(planted)[1] is False
    planted.agent("checkout", "-q", "--detach", "HEAD~1")
    assert planted.harvest()["parts"] == [], "a commit that the user has is no work"
    assert _asked(planted)[1] is False


def test_a_branch_that_the_agent_amends_leaves_what_was_kept(planted: Planted) -> None:
    """Work that was kept and is rewritten afterwards has both of its forms in refs."""
    planted.host("commit", "-q", "--allow-empty", "-m", "user: Mine.")
    old = planted.commit("a", "a\n")
    (first,) = planted.harvest()["parts"]
    planted.agent("commit", "-q", "--amend", "-m", "agent: Better.")
    (second,) = planted.harvest()["parts"]
    assert planted.host("rev-parse", second["kept"]) == planted.agent("rev-parse", "HEAD")
    assert old in planted.host("for-each-ref", "--format=%(objectname)", "refs/paddock").split(), first


_BREAK = "GIT_SEQUENCE_EDITOR='sed -i 1ibreak' git rebase -q -i --autostash HEAD"
_DIRECTORY = "$(git rev-parse --absolute-git-dir)"
_MODULE = """git init -q ~/s; cd ~/s; git commit -q --allow-empty -m s; cd ~-
git -c protocol.file.allow=always submodule --quiet add ~/s sub; git -C sub commit -q --allow-empty -m mine
git rm -qf sub .gitmodules; git reset -q --hard"""
_MANY = r"""echo mine >m; o=$(git hash-object -w m); rm m; n=$(printf %0150d)
seq 70000 | sed "s|.*|100644 $o 0\t$n/&|" | git update-index --index-info"""
_MINE = "$(echo mine | git hash-object -w --stdin)"
_WORK = "$(git --git-dir $H commit-tree -m mine $(git --git-dir $H mktree </dev/null))"
_CONFLICT = rf"""x={_MINE}; printf "100644 $x 2\ts\n100644 $x 3\ts\n" | git update-index --index-info"""
_SPLIT = "git update-index --split-index"
_WIP = """x=$(git commit-tree -m mine HEAD^{tree}); git update-ref WIP_HEAD $x
git symbolic-ref refs/heads/wip WIP_HEAD || echo ref: WIP_HEAD >$(git rev-parse --git-path refs/heads/wip)
git log wip --"""
_IN, _UNTOLD = "a repository in the private git directory", "staged in a jail: more than can be compared"
_COMMITS, _LIBRARY = "commits that were not harvested", "submodule library: "
_SOME = "seq 2000 | while read n; do echo mine $n >g$n; done; git add .; rm g[0-9]*"


def _linked(name: str) -> str:
    return f"git worktree add -q ~/{name}; cd ~/{name}"


def _new(place: str) -> str:
    return f"mkdir -p {_DIRECTORY}/lfs; H={_DIRECTORY}/{place}; git init -q --bare $H"


_BESIDE: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "branches, tags and repositories": (
        (
            "git checkout -qb packed; git commit -q --allow-empty -m side; git checkout -q -; git pack-refs --all",
            "git checkout -qb side; echo s >s; git add s; git commit -qm side; git checkout -q -",
            "git checkout -q --detach; git commit -q --allow-empty -m x; git tag kept; git checkout -q -",
            "git worktree add -q --detach ~/x; git -C ~/x commit -q --allow-empty -m x",
            _WIP,
            f"git init -q --bare {_DIRECTORY}/w.git; git push -q {_DIRECTORY}/w.git HEAD:refs/heads/w",
            _MODULE,
            f"{_new('x.git')}; git --git-dir $H update-ref refs/remotes/o/m {_WORK}",
            f"{_new('lfs/x.git')}; git --git-dir $H update-ref refs/heads/m {_WORK}",
            f"{_new('modules/s')}; cd $H; git update-index --add --cacheinfo 100644,{_MINE},f",
            f"{_new('modules/t')}; git --git-dir $H worktree add -q --detach ~/t {_WORK}",
            f"rm {_DIRECTORY}/index; mkfifo {_DIRECTORY}/index",
        ),
        {
            "not harvested: packed, side, tags/kept, wip, worktrees/x/HEAD",
            *(f"{_IN}: {name}" for name in ("w.git", "modules/sub", "x.git", "lfs/x.git", "modules/s", "modules/t")),
            _UNTOLD,
        },
    ),
    "refs that lead nowhere, or twice": (
        (
            "git checkout -qb twice; git commit -q --allow-empty -m twice; git checkout -q -; git pack-refs --all",
            f"echo $(git rev-parse HEAD) refs/heads/twice >>{_DIRECTORY}/packed-refs",
            f"git update-ref MINE {_WORK.replace('$H', '.git')}; git symbolic-ref A_HEAD B_HEAD",
            f"git update-ref B_HEAD $(git commit-tree -m b HEAD^{{tree}}); echo ref: A_HEAD >{_DIRECTORY}/refs/heads/b",
            f"cd library; echo mine >m; git add m; git stash -q; echo garbage >>{_DIRECTORY}/logs/refs/stash",
        ),
        {"not harvested: MINE, b, twice", _COMMITS},
    ),
    "refs that a crash has left empty": (
        (
            "git checkout -qb side; echo s >s; git add s; git commit -qm side; git checkout -q -",
            "echo mine >m; git add m; git stash -q",
            "git worktree add -q --detach ~/x; git -C ~/x commit -q --allow-empty -m x",
            "cd library; git checkout -qb l; git commit -q --allow-empty -m l; git checkout -q -",
            f": >{_DIRECTORY}/refs/heads/side; head -c 41 /dev/zero >{_DIRECTORY}/refs/stash",
            f": >{_DIRECTORY}/worktrees/x/HEAD; cd library; echo garbage >{_DIRECTORY}/refs/heads/l",
        ),
        {"not harvested: side, stash, worktrees/x/HEAD", f"{_LIBRARY}not harvested: l"},
    ),
    "operations and indexes": (
        (
            f"echo mine >>src/count; {_BREAK}",
            f"cd library; echo mine >>library.txt; {_BREAK}",
            f"{_linked('a')}; echo mine >>src/count; {_BREAK}",
            f"{_linked('b')}; git format-patch -q -o ~ HEAD~3..HEAD~2; git am -q ~/0001* || true",
            f"{_linked('c')}; git revert HEAD~3 && exit 1; git reset -q --hard; git revert HEAD~3 || true",
            f"{_linked('d')}; git bisect start",
            f"{_SPLIT}; echo mine >f; git add f; rm f; {_CONFLICT}",
            f"cd library; {_SOME}; echo mine >f; git add f; echo other >f",
            f"{_linked('e')}; echo mine >f; git add f; {_SPLIT}",
        ),
        {
            "a rebase in progress, in a jail",
            f"{_LIBRARY}a rebase in progress, in a jail",
            "a rebase in progress, in a jail: worktrees/a",
            "a rebase or am in progress, in a jail: worktrees/b",
            "a revert in progress, in a jail: worktrees/c",
            "a bisect in progress, in a jail: worktrees/d",
            "staged in a jail only: f, s, worktrees/e/f",
            f"{_LIBRARY}staged in a jail only: f, g1, g10, g100, g1000 and 1996 more",
        },
    ),
    "a link for linked worktrees, an index that cannot be opened": (
        (
            "echo mine >f; git add f; rm f; chmod 0 $(git rev-parse --git-path index)",
            f"cd library; git worktree add -q ~/x; rm -r {_DIRECTORY}/worktrees; ln -s ~ {_DIRECTORY}/worktrees",
        ),
        {_UNTOLD, _COMMITS},
    ),
    "a FIFO as a head, an index of too much": (
        (
            _MANY,
            f"cd library; git worktree add -q ~/x; H={_DIRECTORY}/worktrees/x/HEAD; rm $H; mkfifo $H",
        ),
        {_UNTOLD, _COMMITS},
    ),
}
"""What an agent leaves, and what `status` and `remove` call it: each is a line of its own."""


@pytest.mark.parametrize("doing", _BESIDE)
@pytest.mark.parametrize("submodules", [True], ids=["submodules"])
def test_work_beside_the_branch_is_not_removed_with_a_worktree(git: Git, doing: str) -> None:
    """Status says so, `remove` refuses; with --force it is set aside."""
    scripts, waiting = _BESIDE[doing]
    ok(git.run("set -e\n" + "\n".join(f"({each})" for each in scripts), "--branch-policy", "keep",
               "--submodule", "library"))  # fmt: skip
    refused = _verb(git, "remove", "mv2", at="main")
    assert "[worktree-dirty]" in refused.stderr, refused.stderr
    (lost,) = re.findall("would be lost: (.*)", _verb(git, "status").stdout)
    assert waiting - set(lost.split("; ")) == set(), lost
    assert [each for each in waiting if each not in refused.stderr] == [], refused.stderr
    assert ("paddock run -- git status" in refused.stderr) is (" in progress" in refused.stderr)
    assert ("fetches what was committed" in refused.stderr) is ("commits that were not" in refused.stderr)
    assert ("worktree harvest" in refused.stderr) is ("not harvested" in refused.stderr)
    assert ("paddock run -- git commit" in refused.stderr) is ("staged in a jail" in refused.stderr)
    assert ("no harvest fetches" in refused.stderr) is ("a repository in the private" in refused.stderr)
    forced = _verb(git, "remove", "mv2", "--force", at="main")
    assert forced.returncode == 0, forced.stderr
    aside = re.findall(r"is kept: (\S+)", forced.stdout)[-1]
    assert Path(aside).is_dir()


_LEFT = "git checkout -q --detach; git commit -q --allow-empty -m left; git rev-parse HEAD;"
_ORPHAN = "git checkout -q --orphan o; git commit -q --allow-empty -m o"
_LOOKED = (
    "git commit -q --allow-empty -m a; git commit -q --allow-empty -m b; git checkout -q HEAD~1; git checkout -q -"
)


@pytest.mark.parametrize("submodules", [True], ids=["submodules"])
def test_commits_that_a_checkout_has_left_behind_in_a_jail_are_named(git: Git) -> None:
    """HEAD was on no branch, as with `git submodule update`. What is only looked at is held by its branch."""
    script = f"b=$(git branch --show-current); {_LOOKED}; {_LEFT} {_ORPHAN}; git checkout -q $b"
    told = ok(git.run(f"{script}; cd library; {_LEFT} cd ..; git submodule --quiet update"))
    ours, theirs = told.split()
    assert f"would be lost: not harvested: {ours}; {_LIBRARY}not harvested: {theirs}" in _verb(git, "status").stdout
    refused = _verb(git, "remove", "mv2", at="main")
    assert "paddock run -- git branch NAME REF" in refused.stderr
    ok(git.run(f"git branch ours {ours}; git -C library branch theirs {theirs}"))
    assert "nothing would be lost" in _verb(git, "status").stdout


def test_a_stash_whose_ref_a_crash_has_left_empty_is_taken_over_again(git: Git) -> None:
    """It was known to have been, and went with the worktree."""
    ok(git.run("echo mine >m; git add m; git stash -q"))
    (ref,) = (git.common / "refs/paddock/stash").rglob("1")
    oid = ref.read_text()
    ref.write_text("")
    assert "would be lost: 1 stash not harvested" in _verb(git, "status").stdout
    ok(_verb(git, "harvest"))
    assert (ref.parent / "2").read_text() == oid
    ok(_verb(git, "remove", "mv2", at="main"))


_NO_WORK = r"""git worktree add -q ~/x; git update-index --split-index; git -C ~/x update-index --split-index
git init -q --bare $(git rev-parse --git-dir)/x.git; x=$(git rev-parse HEAD:src/count)
printf "100644 $x 2\ts\n100644 $x 3\ts\n" | git update-index --index-info"""


def test_what_a_jail_s_git_only_stores_otherwise_is_no_work(git: Git) -> None:
    """A shared index, a worktree linked there, an empty repository, a conflict of what the host has: all may go.

    And all refs that the host has shown to the session.
    """
    ok(git.run(_NO_WORK))
    assert "nothing would be lost" in _verb(git, "status").stdout
    ok(_verb(git, "remove", "mv2", at="main"))


@pytest.mark.parametrize("submodules", [True], ids=["submodules"])
def test_agents_that_make_the_same_commits_at_the_same_time_all_hand_them_over(git: Git) -> None:
    """Byte by byte the same in the repository and its submodule, on branches of their own: no harvest is refused."""
    count = 2
    for number in range(count):
        ended = _verb(git, "add", f"same{number}", at="main")
        assert ended.returncode == 0, ended.stderr
    places = [git.place / f"main-same{number}" for number in range(count)]
    script = """set -e; export GIT_AUTHOR_DATE='1700000000 +0000' GIT_COMMITTER_DATE='1700000000 +0000'
    for times in 1 2; do
        echo $times >library/inner/same; git -C library/inner add same; git -C library/inner commit -qm same
        git -C library commit -qam same; git commit -qam same
    done; touch ready; while test ! -e go; do sleep 0.05; done; rm ready go"""
    sessions = [dataclasses.replace(git, worktree=place).start(script) for place in places]
    for place, session in zip(places, sessions, strict=True):
        while not (place / "ready").exists():
            assert session.poll() is None
            time.sleep(0.05)
    for place in places:
        (place / "go").touch()
    said = [session.communicate(timeout=120)[1].decode() for session in sessions]
    assert [text for text in said if "harvested to agent/same" not in text or re.search(r"\[[a-z-]+\]", text)] == []
    for at in ("", "library", "library/inner"):
        assert len({git.outside("-C", str(place / at), "rev-parse", "HEAD") for place in places}) == 1
        git.outside("-C", str(places[0] / at), "fsck", "--strict", "--no-dangling")


def test_a_name_that_is_kept_bars_no_work(planted: Planted) -> None:
    """Work on `f` is kept by that name, so none on `f/g` can be: it gets a number, and the agent's branch arrives."""
    main = planted.repo.main
    planted.agent("branch", "f")
    planted.harvest()
    planted.host("checkout", "-q", "f", at=main)
    planted.agent("branch", "-f", "f", _work(planted, "HEAD"))
    (kept,) = planted.harvest()["parts"]
    assert kept["kept"].endswith("/f"), kept
    planted.host("checkout", "-q", "--detach", at=main)
    planted.host("branch", "-q", "-D", "f")
    planted.agent("branch", "-D", "f")
    planted.agent("branch", "f/g")
    assert [part["ref"] for part in planted.harvest()["parts"]] == ["refs/heads/f/g"]
    planted.host("checkout", "-q", "f/g", at=main)
    work = _work(planted, "HEAD")
    planted.agent("branch", "-f", "f/g", work)
    new = planted.commit("own", "own\n")
    result = planted.harvest()
    assert planted.host("rev-parse", "HEAD") == new, result
    (place,) = [part["kept"] for part in result["parts"] if part["kept"]]
    assert (planted.host("rev-parse", place), "/detached/" in place) == (work, True)
    newer = _work(planted, work)
    planted.agent("branch", "-f", "f/g", newer)
    (again,) = planted.harvest()["parts"]
    assert (again["kept"], planted.host("rev-parse", place)) == (place, newer), "it goes on there"


def test_a_name_that_git_cannot_make_is_refused_before_anything_is_written_down(planted: Planted) -> None:
    """As the user asks for it: the next harvest is not held up by it."""
    branch = planted.host("branch", "--show-current")
    planted.agent("branch", "topic", _work(planted, "HEAD"))
    refused = planted.harvest(follow=False, branches={"topic": f"{branch}/x"})
    assert refused["errorType"] == "harvest-branch-exists", refused
    assert planted.harvest(follow=False, branches={"topic": "taken"})["state"] == "harvested"


def _work(planted: Planted, parent: str) -> str:
    """A commit that no branch of the agent's has yet."""
    return planted.agent("commit-tree", "-p", parent, "-m", "agent: Work.", "HEAD^{tree}")
