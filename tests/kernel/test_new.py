"""`paddock run --new`: a worktree for one task, the run in it, what comes after, and what is left of a failure."""

import json
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import paddock as paddocks
from tests.support.features import need
from tests.support.identity import Console, Who
from tests.support.install import Installed
from tests.support.paddock import Paddock

COMMIT = "git add -A && git commit -qm 'agent: Work.'"


@pytest.fixture
def here(user: Who, installed: Installed, public_dir: Path) -> Paddock:
    """The command, called in the main checkout of an ordinary user's repository."""
    need("landlock")
    need("userns")
    place = public_dir / "place-of-user"
    place.mkdir()
    return paddocks.make(user, installed, user.give(place))


def _new(here: Paddock, *words: str, cwd: Path | None = None) -> tuple[int, str, str]:
    ended = here.run("--new", "T-1", *words, cwd=cwd or here.main)
    return ended.returncode, ended.stdout, ended.stderr


def _git(here: Paddock, *words: str) -> str:
    ended = here.who.run(["git", *words], cwd=here.main)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def _tree(here: Paddock) -> Path:
    return here.main.with_name(f"{here.main.name}-T-1")


def test_it_is_made_once_entered_again_and_told_what_comes_next(here: Paddock) -> None:
    """The work is on the ticket's branch; the caller's directory below the root is the command's, where it is there."""
    status, _, said = _new(here, "--", "sh", "-c", f"mkdir deep; echo x >deep/file; {COMMIT}; echo y >>deep/file")
    assert (status, "1 commit harvested to agent/T-1" in said, "paddock merge T-1" in said) == (0, True, True)
    assert (_tree(here) / "deep/file").read_text() == "x\ny\n"
    assert not (here.main / "deep").exists()
    (here.main / "deep").mkdir()
    here.who.give(here.main / "deep")
    status, out, said = _new(here, "--", "sh", "-c", "pwd; exit 3", cwd=here.main / "deep")
    assert (status, out) == (3, f"{_tree(here)}/deep\n")
    assert ("made " in said, "the worktree of T-1 is kept" in said) == (False, True)
    assert here.refused("run", "--new", "T-1", "--from", "HEAD", "--", "true", cwd=here.main).reference == (
        "worktree-exists"
    )


def test_merged_and_removed_at_the_end(here: Paddock) -> None:
    """--merge and --rm, one after the other; a failure of the command leaves everything where it is."""
    work = f"echo $1 >made; {COMMIT}; exit $2"
    status, _, said = _new(here, "--merge", "--rm", "--", "sh", "-c", work, "sh", "first", "4")
    assert (status, "not merged: the command ended with status 4\n" in said) == (4, True)
    assert (_tree(here) / "made").read_text() == "first\n"
    assert "made" not in _git(here, "ls-tree", "--name-only", "HEAD")
    status, out, said = _new(here, "--merge", "--rm", "--", "sh", "-c", work, "sh", "second", "0")
    assert (status, "1 of 1 merged" in out) == (0, True), said
    assert (here.main / "made").read_text() == "second\n"
    assert not _tree(here).exists()
    assert "agent/T-1" not in _git(here, "branch")


def test_removed_at_the_end_of_a_run_at_a_terminal(here: Paddock) -> None:
    """Where Paddock has processes of its own beside the command, for its terminal: none of them is in the worktree."""
    with Console(here.who, here.main) as console:
        console.run(
            shlex.join(here.words("run", "--new", "T-1", "--merge", "--rm", "--", "sh", "-c", f"echo x >x; {COMMIT}"))
        )
        console.expect(r"(?s)^(.*)<0>")
    assert not _tree(here).exists()
    assert (here.main / "x").read_text() == "x\n"


def test_the_agents_own_branches_are_named_until_they_are_merged(here: Paddock) -> None:
    """The one that it ended on is the ticket's work; one beside it is named by whatever tells how far that has come."""
    work = (f"git checkout -q -b feature/x; echo x >x; {COMMIT}; git tag v9; "
            f"git checkout -q -b feature/y agent/T-1; echo y >y; {COMMIT}")  # fmt: skip
    status, _, said = _new(here, "--", "sh", "-ec", work)
    assert (status, "1 commit harvested to feature/x" in said, "tag v9 is new, at " in said) == (0, True, True), said
    assert "paddock merge T-1\n        paddock merge feature/x\n" in said
    line = "branch feature/x is not merged into main: paddock merge feature/x\n"
    told = here.call("worktree", "status", "T-1", cwd=here.main).stdout
    assert "1 commit since the worktree was made, to merge into main\n" in told
    assert f"  {line}" in told
    assert f"  note        {line}" in here.call("merge", "T-1", cwd=here.main).stdout
    told = here.call("worktree", "remove", "T-1", cwd=here.main).stdout
    assert (f"  {line}" in told, f"  deleted branch agent/T-1 in {here.main}/.git\n" in told) == (True, True), told


def test_nothing_is_removed_that_is_nowhere_else(here: Paddock) -> None:
    """A file that was not committed keeps the worktree; the exit status says so."""
    status, _, said = _new(here, "--rm", "--", "touch", "left")
    assert (status, "[worktree-dirty]" in said, "or paddock worktree remove T-1 --force: " in said) == (125, True, True)
    assert (_tree(here) / "left").exists()


def test_a_conflict_stays_with_its_worktree(here: Paddock) -> None:
    """Exit status 1, as of `paddock merge`; nothing has moved, and the next command is named."""
    other = f"echo theirs >same; {COMMIT}"
    assert here.run("--", "sh", "-c", other, cwd=here.main).returncode == 0
    status, out, said = _new(
        here, "--merge", "--rm", "--from", "HEAD~1", "--", "sh", "-c", f"echo ours >same; {COMMIT}"
    )
    assert (status, "conflict" in out) == (1, True), said
    assert (here.main / "same").read_text() == "theirs\n"
    assert (_tree(here) / "same").exists()


def test_a_command_that_cannot_start_leaves_no_worktree(here: Paddock) -> None:
    """Neither the directory nor the branch; one that was there before stays."""
    status, _, said = _new(here, "--", "no-such-command")
    assert (status, "[command-not-found]" in said) == (127, True)
    assert (_tree(here).exists(), "agent/T-1" in _git(here, "branch")) == (False, False)
    _new(here, "--", "true")
    assert _new(here, "--", "no-such-command")[0] == 127
    assert _tree(here).exists()


def test_what_is_trusted_in_the_main_checkout_is_trusted_in_the_new_worktree(here: Paddock) -> None:
    """The hint of a refusal leads on: it names the main checkout's file, or one in a worktree that is kept."""
    config = here.main / ".paddock.toml"
    for line, trusted in (("pass = ['A_SETTING']", config), ("pass = ['B']\n[filesystem]\nread = ['a/../../x']",
                                                             _tree(here) / config.name)):  # fmt: skip
        config.write_text(f"[environment]\n{line}\n")
        here.who.give(config)
        _git(here, "add", "-A")
        _git(here, "commit", "-qm", "x")
        status, _, said = _new(here, "--", "true")
        assert (status, f"paddock trust {trusted}\n" in said) == (125, True), said
        assert (_tree(here).exists(), "the worktree of T-1 is kept" in said) == (trusted != config,) * 2
        here.call("trust", str(trusted), cwd=here.main)
        assert _new(here, "--", "true")[0] == 0
        here.call("worktree", "remove", "T-1", cwd=here.main)


def test_options_that_do_not_go_together(here: Paddock) -> None:
    """One sentence, and nothing is made."""
    for words in (("--merge",), ("--from", "HEAD"), ("--new", "x", "--worktree", "."), ("--new", "x", "--dry-run"),
                  ("--new", "x", "--merge", "--detach")):  # fmt: skip
        assert (words, here.refused("run", *words, "--", "true", cwd=here.main).reference) == (words, "usage")
    assert [path.name for path in here.place.iterdir() if path.name.endswith("-x")] == []


def test_untracked_files_come_along(here: Paddock) -> None:
    """--copy, as of `worktree add`; the paths of --ro mean the worktree in which the command starts."""
    (here.main / ".env.local").write_text("a\n")
    here.who.give(here.main / ".env.local")
    status, out, _ = _new(here, "--copy", ".env.local", "--ro", ".env.local", "--",
                          "sh", "-c", "cat .env.local; echo b >>.env.local || echo held")  # fmt: skip
    assert (status, out) == (0, "a\nheld\n")


def test_what_is_left_of_a_removed_project_is_pruned(here: Paddock) -> None:
    """Private home and git directory go with a word on their size; not what waits in one, and not of what is there."""
    assert _new(here, "--", "sh", "-c", f"echo x >file; {COMMIT}; head -c 1000000 /dev/urandom >~/cache")[0] == 0
    assert here.run("--", "true").returncode == 0
    home = next((here.state / "worktrees").glob("main-T-1-*"))
    shutil.rmtree(_tree(here))
    assert "main-T-1" not in here.call("prune").stdout
    told = here.call("prune", "--dry-run", "--keep-gone-days", "0").stdout
    assert f"would remove {home} (" in told
    assert home.exists()
    told = here.call("prune", "--keep-gone-days", "0").stdout
    assert f"removed {home} (" in told
    assert "its worktree is gone" in told
    assert [path.name for path in here.state.glob("*/main-T-1-*")] == []
    assert list((here.state / "worktrees").glob("one-*"))


def test_lists_show_main_checkouts_and_where_work_waits(here: Paddock) -> None:
    """A session in the main checkout that was killed behind its commit: its work is listed, and taken by its name."""
    commit = "git switch -qc side; git commit -q --allow-empty -m x; echo made; sleep 60"
    words = here.words("run", "--branch-policy", "keep", "--", "sh", "-c", commit)
    running = subprocess.Popen(
        here.who.command(words), cwd=here.main, env=here.who.environment(here.env), stdout=subprocess.PIPE
    )
    assert running.stdout is not None
    with running, running.stdout:
        assert running.stdout.readline() == b"made\n"
        running.kill()
    listed = here.call("worktree", "list", cwd=here.main).stdout.splitlines()
    assert [line.split()[:4] for line in listed if line.endswith(str(here.main))] == [["-", "main", "not", "harvested"]]
    status = here.call("worktree", "status", cwd=here.main)
    assert (status.returncode, f"{here.main} (main checkout)" in status.stdout) == (1, True)
    documents = json.loads(here.call("worktree", "status", "--json", cwd=here.main).stdout)
    assert [document["at_stake"] for document in documents if document.get("path") == str(here.main)] != [[]]
    assert here.call("worktree", "harvest", "--branch", "side", cwd=here.main).returncode == 0
    assert here.call("worktree", "harvest", "--branch", "side=again", cwd=here.main).returncode == 125
