"""`paddock trust` of a git directory that an agent made: what git obeys is shown in full, or nothing is accepted."""

import json
import shutil
from pathlib import Path

import pytest

from tests.support.identity import AS_A_USER
from tests.support.paddock import Paddock, Session

MADE = (
    "git init -q; git -c user.name=A -c user.email=a@example.invalid commit -q --allow-empty -m First; "
    "git worktree add -q ../par/tree; mkdir -p .git/modules/lib; cp -r .git/HEAD .git/config .git/refs .git/objects "
    ".git/modules/lib"
)
MONITOR = "printf '[core]\\nfsmonitor = touch ran' >{}"
INDIRECT = {
    "commondir": f"mkdir -p .x/refs .x/objects; {MONITOR.format('.x/config')}; echo ../.x >.git/commondir",
    "modules/lib/commondir": "echo ../../../.x >.git/modules/lib/commondir",
    "worktrees/tree/commondir": "echo ../../../.x >.git/worktrees/tree/commondir",
    "modules/worktrees/x/commondir": "mkdir -p .git/modules/worktrees .git/modules/objects .git/modules/refs; cp -r "
    f".git/modules/lib .git/modules/worktrees/x; {MONITOR.format('.git/modules/config')}; "
    "echo ../.. >.git/modules/worktrees/x/commondir",
    "config": "mv .git/config c; ln -s ../c .git/config",
    "config reads": "git config include.path ../c",
    "config reads another": "git config includeIf.onbranch:main.path ../c",
    "hooks": "mv .git/hooks h; ln -s ../h .git/hooks",
    "modules/lib": "mv .git/modules/lib m; ln -s ../../m .git/modules/lib",
    "worktrees": "mv .git/worktrees w; ln -s ../w .git/worktrees",
    "logs/HEAD": "ln -sf ../../rc .git/logs/HEAD",
    "logs": "mv .git/logs l; ln -s ../l .git/logs",
    "logs/refs/heads": "mv .git/logs/refs/heads l; ln -s ../../../l .git/logs/refs/heads",
    "logs/HEAD leads git elsewhere": "touch rc; ln -f rc .git/logs/HEAD",
    "refs/heads/v": "mkdir r; ln -s ../../../r .git/refs/heads/v",
    "refs/heads/objects/x": "mkdir .git/refs/heads/objects; echo x >r; ln r .git/refs/heads/objects/x",
    "refs": "mv .git/refs r; ln -s ../r .git/refs",
    "objects/ff": "mkdir -p o .git/objects; rm -rf .git/objects/ff; ln -s ../../o .git/objects/ff",
    "objects/ff/x": "mkdir -p .git/objects/ff; touch o; ln -s ../../../o .git/objects/ff/x",
    "objects/pack": "mv .git/objects/pack o; ln -s ../../o .git/objects/pack",
    "objects/pack/x.pack": "touch o; ln -s ../../../o .git/objects/pack/x.pack",
    "lfs/objects/ab": "mkdir -p o .git/lfs/objects; ln -s ../../../o .git/lfs/objects/ab",
    "lfs": "mkdir o; ln -s ../o .git/lfs",
    "modules/lib/logs/HEAD": "mkdir .git/modules/lib/logs; ln -s ../../../../rc .git/modules/lib/logs/HEAD",
    "modules/lib/logs": "mkdir l; ln -s ../../../l .git/modules/lib/logs",
    "modules/lib/logs/refs/heads/m": "mkdir -p .git/modules/lib/logs/refs/heads; touch rc; "
    "ln rc .git/modules/lib/logs/refs/heads/m",
    "modules/lib/refs/heads/v": "mkdir r; ln -s ../../../../../r .git/modules/lib/refs/heads/v",
    "modules/lib/objects/ff": "mkdir o; rm -rf .git/modules/lib/objects/ff; "
    "ln -s ../../../../o .git/modules/lib/objects/ff",
    "worktrees/tree/logs/HEAD": "ln -sf ../../../../rc .git/worktrees/tree/logs/HEAD",
    "worktrees/tree/logs/HEAD leads": "touch rc; ln -f rc .git/worktrees/tree/logs/HEAD",
    "COMMIT_EDITMSG": "touch rc; ln -sf ../rc .git/COMMIT_EDITMSG",
    "HEAD": "cp .git/HEAD rc; ln -sf ../rc .git/HEAD",
    "HEAD leads git": "cp .git/HEAD rc; ln -sf refs/../../rc .git/HEAD",
    "info": "mv .git/info i; ln -s ../i .git/info",
    "packed-refs": "touch rc; ln -sf ../rc .git/packed-refs",
    "modules/lib/index": "touch rc; ln -sf ../../../rc .git/modules/lib/index",
    "sequencer/todo": "mkdir .git/sequencer; echo exec x >t; ln -s ../../t .git/sequencer/todo",
}
UNREADABLE = {
    "config: git says: bad config line": "echo '[evil' >>.git/config",
    "modules/lib/config: git says: bad config line": "echo '[evil' >>.git/modules/lib/config",
    "config is not a regular file": "rm .git/config; mkfifo .git/config",
    "config.worktree is not a regular file": "mkdir .git/config.worktree",
}


@pytest.fixture
def par(paddock: Paddock) -> Path:
    """A directory in which an agent made a repository."""
    directory = paddock.place / "par"
    directory.mkdir()
    paddock.who.give(directory)
    ended = paddock.run("--directory", "--worktree", directory, "--", "sh", "-euc", MADE)
    assert ended.returncode == 0, ended.stderr
    return directory


def _changed(paddock: Paddock, par: Path, line: str) -> None:
    """As the agent could have left it."""
    shutil.rmtree(par)
    assert paddock.who.run(["cp", "-a", f"{par}.kept", str(par)], cwd=paddock.place).returncode == 0
    ended = paddock.who.run(["sh", "-euc", line], cwd=par)
    assert ended.returncode == 0, ended.stderr


@AS_A_USER
def test_what_leads_git_elsewhere_is_not_accepted(paddock: Paddock, par: Path) -> None:
    """It is named, with what to do; without it the same repository is accepted."""
    assert paddock.who.run(["cp", "-a", str(par), f"{par}.kept"], cwd=paddock.place).returncode == 0
    for reference, cases in (("trust-indirect", INDIRECT), ("trust-unreadable", UNREADABLE)):
        for name, line in cases.items():
            _changed(paddock, par, line)
            said = paddock.refused("trust", ".git", cwd=par)
            assert (said.reference, name.split(" reads")[0] in said.text) == (reference, True), (name, said.text)
            assert "\0" not in said.text
    assert paddock.call("trust", "--list", cwd=par).stdout == "nothing is trusted\n"
    _changed(paddock, par, "true")
    assert paddock.call("trust", ".git", cwd=par).returncode == 0


@AS_A_USER
def test_data_as_git_leaves_it_is_accepted(paddock: Paddock, par: Path) -> None:
    """Objects that a local clone shares, a HEAD of the old kind, names like those that are obeyed, and many refs."""
    made = (
        "cd .git; mkdir more; ln objects/??/* more; echo x >refs/heads/config; mkdir refs/heads/hooks; "
        "cp refs/heads/main refs/heads/HEAD; ln -sf refs/heads/main HEAD; ln -sf refs/heads/main modules/lib/HEAD; "
        "git rev-parse main >tip; mkdir -p refs/tags/many-of-them-each-with-a-long-name; "
        "cd refs/tags/many*; seq -f 'an-even-longer-name-of-a-tag-%g' 20000 | xargs touch"
    )
    branch = "git branch -m main; git config --unset core.fsmonitor || :"
    ended = paddock.who.run(["sh", "-euc", f"{branch}; {made}"], cwd=par)
    assert ended.returncode == 0, ended.stderr
    done = paddock.call("trust", ".git", cwd=par)
    assert (done.returncode, "HEAD -> refs/heads/main" in done.stdout) == (0, True), done.stderr
    assert not {"config", "many", "more"} & {line.rpartition("/")[2] for line in done.stdout.splitlines()}


@AS_A_USER
def test_what_git_obeys_is_shown(paddock: Paddock, par: Path) -> None:
    """Line breaks are escaped; hooks are shown where they lie, and what a rebase or a remote would execute."""
    made = (
        "git config core.fsmonitor 'touch a\n  = b'; git config core.hooksPath hk; mkdir hk; echo x >hk/pre-commit; "
        "chmod +x hk/pre-commit; mkdir -p .git/remotes .git/rebase-merge; echo 'exec touch x' "
        ">.git/rebase-merge/git-rebase-todo; echo 'URL: ext::x' >.git/remotes/origin; ln -s ../../x .git/hooks/pre-push"
    )
    assert paddock.who.run(["sh", "-euc", made], cwd=par).returncode == 0
    shown = paddock.call("trust", ".", cwd=par).stdout.splitlines()
    assert {
        "  config:", "    core.fsmonitor = touch a\\n  = b", f"      {par}/hk/pre-commit", "  modules/lib/config:",
        "  rebase-merge/git-rebase-todo:", "    exec touch x", "  remotes/origin:", "    URL: ext::x",
        "  hooks/pre-push -> ../../x",
    } <= {*shown}  # fmt: skip


@AS_A_USER
@pytest.mark.parametrize(
    ("nested", "git_dir"),
    [("nested", "nested/.git"), ("deep/er", "deep/er/.git"), ("objects/x", "objects/x/.git"), ("x", ".git/refs/x")],
)
def test_a_repository_in_the_checkout_is_accepted_first(paddock: Paddock, par: Path, nested: str, git_dir: str) -> None:
    """`git status` outside enters it, as a gitlink or not, and wherever its git directory is put."""
    apart = "" if git_dir.endswith(".git") else f"--separate-git-dir $PWD/{git_dir}"
    made = (
        f"git init -q {apart} {nested}; git -C {nested} -c user.name=A -c user.email=a@b commit -q --allow-empty -m x; "
        f"git -C {nested} config core.fsmonitor evil; git add {nested}; mkdir -p objects refs; echo x >HEAD"
    )
    assert paddock.who.run(["sh", "-euc", made], cwd=par).returncode == 0
    said = paddock.refused("trust", ".git", cwd=par)
    assert (said.reference, f"paddock trust {par}/{git_dir}\n" in said.text) == ("trust-nested", True), said.text
    assert "core.fsmonitor = evil" in paddock.call("trust", nested, cwd=par).stdout
    said = paddock.refused("trust", ".git", cwd=par)
    assert said.text.splitlines()[-1].strip() == f"paddock trust {par}", "which only looks like a bare one"
    (par / "HEAD").unlink()
    assert paddock.call("trust", ".git", cwd=par).returncode == 0


@AS_A_USER
def test_trust_is_listed_and_revoked(paddock: Paddock, par: Path) -> None:
    """By any of its names: the git directory, the checkout, a linked worktree."""
    place = f"{par}/.git"
    for name in (".git", ".", "tree"):
        assert paddock.call("trust", name, cwd=par).stdout.startswith(f"in {place}, git obeys:")
        assert "is trusted already" in paddock.call("trust", name, cwd=par).stdout
        assert f"git directory  {place}" in paddock.call("trust", "--list", cwd=par).stdout
        listed = json.loads(paddock.call("trust", "--list", "--json", cwd=par).stdout)
        assert listed == [{"path": place, "sha256": None}]
        assert "is no longer trusted" in paddock.call("trust", name, "--forget", cwd=par).stdout
        assert paddock.call("trust", name, "--forget", cwd=par).returncode == 1
    assert paddock.refused("run", "--", "true", cwd=par).reference == "git-dir-written"


@AS_A_USER
def test_a_session_that_runs_there_is_waited_for(paddock: Paddock, par: Path) -> None:
    """The advice names no merge."""
    with Session(paddock, options=("--rw", par), command=("sh", "-c", "echo ready; exec cat")):
        said = paddock.refused("trust", ".git", cwd=par)
    assert said.reference == "session-running"
    assert "merge" not in said.text
