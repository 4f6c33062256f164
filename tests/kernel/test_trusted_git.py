"""`paddock trust` of a git directory that an agent made: what git obeys is shown in full, or nothing is accepted."""

import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import IDENTITIES
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
    "modules/lib/HEAD": "cp .git/HEAD rc; ln -sf ../../../rc .git/modules/lib/HEAD",
    "HEAD leads git": "cp .git/HEAD rc; ln -sf refs/../../rc .git/HEAD",
    "info": "mv .git/info i; ln -s ../i .git/info",
    "packed-refs": "touch rc; ln -sf ../rc .git/packed-refs",
    "modules/lib/index": "touch rc; ln -sf ../../../rc .git/modules/lib/index",
    "info/attributes": "mkdir -p .git/info; echo '* x' >a; ln -s ../../a .git/info/attributes",
    "config leads git elsewhere": "ln .git/config c",
    "hooks/pre-commit": "mkdir -p .git/hooks; touch h; ln h .git/hooks/pre-commit",
    "modules/lib/config leads": "ln .git/modules/lib/config c",
    "modules/objects/pack/packed-refs": "mkdir .git/modules/objects; cp -r .git/modules/lib .git/modules/objects/pack; "
    "touch p; ln p .git/modules/objects/pack/packed-refs",
    "objects/info/alternates": "mkdir -p .git/objects/info; touch a; ln a .git/objects/info/alternates",
    "index": "touch i; ln -f i .git/index",
    "core.worktree is not the checkout whose .git this is: ../y": "mkdir -p y; git config core.worktree ../y",
    "core.worktree is not the checkout whose .git this is: .": "git config core.worktree .",
    "core.worktree is not the checkout whose .git this is: ../own": "ln -s . own; git config core.worktree ../own",
    "worktrees/tree/gitdir": "echo tree/.git >.git/worktrees/tree/gitdir",
    "worktrees/tree/gitdir leads": "ln -s tree t; echo $PWD/t/.git >.git/worktrees/tree/gitdir",
    "worktrees/tree/gitdir leads git": "yes '' | head -3000 >>.git/worktrees/tree/gitdir",
    "modules/lib/config": "git config -f .git/modules/lib/config core.worktree $PWD/../one",
}
UNREADABLE = {
    "config: git says: bad config line": "echo '[evil' >>.git/config",
    "modules/lib/config: git says: bad config line": "echo '[evil' >>.git/modules/lib/config",
    "config is not a regular file": "rm .git/config; mkfifo .git/config",
    "config.worktree is not a regular file": "mkdir .git/config.worktree",
    "packed-refs is not a regular file": "rm -f .git/packed-refs; mkfifo .git/packed-refs",
    "logs/HEAD is not a regular file": "rm .git/logs/HEAD; mkfifo .git/logs/HEAD",
    "refs/heads/z is not a regular file": "mkfifo .git/refs/heads/z",
    "objects/ff/x is not a regular file": "mkdir -p .git/objects/ff; mkfifo .git/objects/ff/x",
    "modules/lib/index is not a regular file": "mkfifo .git/modules/lib/index",
    "socket is not a regular file": "/usr/bin/python3 -c 'import socket; "
    'socket.socket(socket.AF_UNIX).bind(".git/socket")\'',
}
IN_PROGRESS = {
    "sequencer": "mkdir .git/sequencer; printf '[options]\\n\\tstrategy = ../evil' >.git/sequencer/opts",
    "rebase-merge": "mkdir .git/rebase-merge; echo ../evil >.git/rebase-merge/strategy",
    "worktrees/tree/rebase-apply": "mkdir .git/worktrees/tree/rebase-apply",
    "modules/lib/MERGE_HEAD": "touch .git/modules/lib/MERGE_HEAD",
    "BISECT_START": "touch .git/BISECT_START",
}


WORDS = """
export GIT_AUTHOR_NAME=A GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=A GIT_COMMITTER_EMAIL=a@b
evil() {
    git init -q "$@"; shift $(($# - 1)); git -C "$1" commit -q --allow-empty -m x
    git -C "$1" config core.fsmonitor "touch $PWD/ran; false"
}
link() { git update-index --add --cacheinfo "160000,$(git rev-parse HEAD),$1"; }
forge() {
    link "$(printf %s "$1" | tr -c x x)"
    /usr/bin/python3 -c 'if True:
        import hashlib, sys
        data = open(".git/index", "rb").read()[:-20].replace(b"x" * len(sys.argv[1]), sys.argv[1].encode())
        open(".git/index", "wb").write(data + hashlib.sha1(data).digest())' "$1"
}
other=../other
"""
ENTERED = {
    "core.worktree names a directory in .git": (
        "trust-indirect", ".", ".", "mkdir .git/logs/co; echo gitdir: ../.. >.git/logs/co/.git; evil .git/logs/co/sub; "
        "link sub; git config core.worktree $PWD/.git/logs/co",
    ),
    "core.worktree names one elsewhere": (
        "trust-indirect", ".", ".", "mkdir $other/co; echo gitdir: $PWD/.git >$other/co/.git; evil $other/co/sub; "
        "link sub; git config core.worktree $(realpath $other/co)",
    ),
    "a store names a checkout in another tree": (
        "trust-nested", "s.git", "../other/co", "git init -q --separate-git-dir $PWD/s.git $other/co; cd $other/co; "
        "git commit -q --allow-empty -m x; git config core.worktree $PWD; link sub; cd ../../par; evil $other/co/sub",
    ),
    "a linked worktree in another tree": (
        "trust-nested", ".", "../other/co", "git worktree add -q $other/co; evil $other/co/sub; cd $other/co; link sub",
    ),
    "one in .git": (
        "trust-indirect", ".", ".git/logs/co", "git worktree add -q .git/logs/co; evil .git/logs/co/s; "
        "cd .git/logs/co; link s",
    ),
    "a pointer ends in CR LF": (
        "trust-nested", ".", ".", "link s; evil --separate-git-dir e s; printf 'gitdir: ../e\\r\\n' >s/.git",
    ),
    "a pointer ends at a NUL": (
        "trust-nested", ".", ".", "link s; evil --separate-git-dir e s; printf 'gitdir: ../e\\0x\\n' >s/.git",
    ),
    "a link to a pointer": (
        "trust-nested", ".", ".", "link s; evil --separate-git-dir e s; mv s/.git s/p; ln -s p s/.git",
    ),
    "a long pointer": (
        "trust-unreadable", ".", ".", "link s; evil --separate-git-dir e s; yes '' | head -9000 >>s/.git",
    ),
    "a directory that cannot be listed": ("trust-unreadable", ".", ".", "link d/s; evil d/s; chmod 0311 d"),
    "an index with a path in .git": ("trust-indirect", ".", ".", "evil .git/logs/s; rm .git/logs/s/.git/HEAD; "
                                     "echo ref: refs/heads/main >.git/logs/s/.git/HEAD; forge .git/logs/s"),
    "an index with a path outside": ("trust-indirect", ".", ".", "evil $other/s; forge ../other/s"),
    "an index with an absolute path": ("trust-indirect", ".", ".", "evil $other/s; forge $(realpath $other/s)"),
}  # fmt: skip
"""What is wrong: the refusal, what is to be trusted, where the user's git then obeys another repository, the making."""


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
    anew = f"rm -rf {par}; cp -a {par}.kept {par}; cd {par}"
    ended = paddock.who.run(["sh", "-euc", f"{anew}\n{line}"], cwd=paddock.place)
    assert ended.returncode == 0, ended.stderr


@AS_A_USER
def test_what_leads_git_elsewhere_is_not_accepted(paddock: Paddock, par: Path) -> None:
    """It is named, with what to do; without it the same repository is accepted."""
    assert paddock.who.run(["cp", "-a", str(par), f"{par}.kept"], cwd=paddock.place).returncode == 0
    for reference, cases in (
        ("trust-indirect", INDIRECT), ("trust-unreadable", UNREADABLE), ("trust-in-progress", IN_PROGRESS)
    ):  # fmt: skip
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
        "mkdir -p more other; ln .git/objects/??/* more; ln -f .git/modules/lib/objects/??/* other; "
        "git config core.worktree ..; git config -f .git/modules/lib/config core.worktree $PWD/lib; "
        "cd .git; touch MERGE_MSG MERGE_RR ORIG_HEAD; mkdir refs/heads/sequencer; "
        "echo x >refs/heads/config; mkdir refs/heads/hooks; "
        "cp refs/heads/main refs/heads/HEAD; ln -sf refs/heads/main HEAD; ln -sf refs/heads/main modules/lib/HEAD; "
        "git rev-parse main >tip; mkdir -p refs/tags/many-of-them-each-with-a-long-name; "
        "cd refs/tags/many*; seq -f 'an-even-longer-name-of-a-tag-%g' 20000 | xargs touch"
    )
    branch = "git branch -m main; git config --unset core.fsmonitor || :"
    ended = paddock.who.run(["sh", "-euc", f"{branch}; {made}"], cwd=par)
    assert ended.returncode == 0, ended.stderr
    done = paddock.call("trust", ".git", cwd=par)
    assert (done.returncode, "HEAD -> refs/heads/main" in done.stdout) == (0, True), done.stderr
    assert not {"config", "many", "more", "sequencer"} & {line.rpartition("/")[2] for line in done.stdout.splitlines()}


@AS_A_USER
def test_what_git_obeys_is_shown(paddock: Paddock, par: Path) -> None:
    """Line breaks are escaped; hooks are shown where they lie, and what a remote would execute."""
    made = (
        "git config core.fsmonitor 'touch a\n  = b'; git config core.hooksPath hk; mkdir hk; echo x >hk/pre-commit; "
        "chmod +x hk/pre-commit; mkdir -p .git/remotes; echo 'URL: ext::x' >.git/remotes/origin; "
        "ln -s ../../x .git/hooks/pre-push"
    )
    assert paddock.who.run(["sh", "-euc", made], cwd=par).returncode == 0
    shown = paddock.call("trust", ".", cwd=par).stdout.splitlines()
    assert {
        "  config:", "    core.fsmonitor = touch a\\n \\x20= b", f"      {par}/hk/pre-commit", "  modules/lib/config:",
        "  remotes/origin:", "    URL: ext::x",
        "  hooks/pre-push -> ../../x",
    } <= {*shown}  # fmt: skip


@AS_A_USER
def test_a_repository_in_the_checkout_is_accepted_first(paddock: Paddock, par: Path) -> None:
    """`git status` outside enters it, as a gitlink or not, wherever its git directory is; a HEAD there hides none."""
    places = ("nested", "nested/.git"), ("deep/er", "deep/er/.git"), ("refs/x", "refs/x/.git"), ("x", ".git/refs/x")
    for nested, git_dir in places:
        apart = "" if git_dir.endswith(".git") else f"--separate-git-dir $PWD/{git_dir}"
        made = (
            f"git init -q {apart} {nested}; cd {nested}; git -c user.name=A -c user.email=a@b commit -q --allow-empty "
            f"-m x; git config core.fsmonitor evil; cd {par}; git add {nested}; mkdir -p objects refs; echo x >HEAD"
        )
        assert paddock.who.run(["sh", "-euc", made], cwd=par).returncode == 0
        for name in (".git", "."):
            said = paddock.refused("trust", name, cwd=par)
            assert said.reference == "trust-nested"
            assert said.text.splitlines()[-1].strip() == f"paddock trust {par}/{git_dir}"
        assert "core.fsmonitor = evil" in paddock.call("trust", nested, cwd=par).stdout
        assert paddock.call("trust", ".", cwd=par).stdout.startswith(f"in {par}/.git, git obeys:")
        assert paddock.call("trust", ".", "--forget", cwd=par).returncode == 0


@AS_A_USER
def test_a_checkout_of_a_git_directory_elsewhere_is_searched_too(paddock: Paddock, par: Path) -> None:
    """One that a `.git` file leads to, a linked worktree, and what is one only as long as another is none."""
    made = (
        "git init -q --separate-git-dir $PWD/store apart; git init -q apart/n; git init -q tree/n; "
        "cp -r .git/modules/lib both; mkdir both/.git both/.git/objects both/.git/refs; echo no >both/.git/HEAD; "
        "cp -r both also; ln -sf ../HEAD also/.git/HEAD"
    )
    assert paddock.who.run(["sh", "-euc", made], cwd=par).returncode == 0
    for name, inner in (
        ("apart", "apart/n"),
        ("store", "apart/n"),
        (".git", "tree/n"),
        ("tree", "both"),
        (".", "also"),
    ):
        said = paddock.refused("trust", name, cwd=par)
        assert (said.reference, f"{par}/{inner}" in said.text) == ("trust-nested", True), said.text
    for name in ("both", "also"):
        said = paddock.refused("trust", name, cwd=par)
        assert (said.reference, f"{par}/{name}/.git leads" in said.text) == ("trust-indirect", True), said.text
        shutil.rmtree(par / name)
    for name in ("apart/n", "tree/n", "store", "."):
        assert paddock.call("trust", name, cwd=par).returncode == 0, name


@pytest.fixture
def other(paddock: Paddock) -> Path:
    """Another directory that an agent could write."""
    directory = paddock.place / "other"
    directory.mkdir()
    paddock.who.give(directory)
    assert paddock.run("--directory", "--worktree", directory, "--", "true").returncode == 0
    return directory


def test_what_git_enters_is_seen_or_refused(paddock: Paddock, par: Path, other: Path) -> None:
    """Each of these has the user's `git status` execute what an agent wrote; nothing of it is accepted unseen."""
    assert paddock.who.run(["cp", "-a", str(par), f"{par}.kept"], cwd=paddock.place).returncode == 0
    for case, (reference, place, checkout, line) in ENTERED.items():
        closed = "listed" in case  # only this differs for root, to whom nothing is closed
        if paddock.who.uid == 0 and "user" in IDENTITIES and not closed:
            continue
        assert paddock.who.run(["sh", "-c", f"rm -rf {other}/*"]).returncode == 0
        _changed(paddock, par, f"{WORDS}\n{line}")
        said = paddock.refused("trust", place, cwd=par)
        assert said.reference == ("trust-nested" if closed and paddock.who.uid == 0 else reference), (case, said.text)
        assert not (par / "ran").exists()
        paddock.who.run(["git", "status"], cwd=par / checkout)
        assert (par / "ran").exists(), case
        if closed:
            assert paddock.who.run(["chmod", "755", str(par / "d")]).returncode == 0


@AS_A_USER
def test_checkouts_without_another_repository_are_accepted(paddock: Paddock, par: Path, other: Path) -> None:
    """In whichever tree they are, once a repository in them is accepted; so is an index as git writes it."""
    line = (
        "git worktree add -q $other/co; mkdir .x; touch .x/.gitx ..y; git add .x ..y; link z; "
        "git init -q --separate-git-dir $PWD/s.git $other/apart; git -C $other/apart config core.worktree "
        "$(realpath $other/apart); evil --separate-git-dir e s; printf 'gitdir: ../e\\r\\n' >s/.git; git add ."
    )
    made = paddock.who.run(["sh", "-euc", f"{WORDS}\n{line}"], cwd=par)
    assert made.returncode == 0, made.stderr
    assert f"paddock trust {par}/e" in paddock.refused("trust", ".", cwd=par).text
    for name in ("e", f"{other}/apart", "."):
        assert "git obeys:" in paddock.call("trust", name, cwd=par).stdout, name
    paddock.who.run(["sh", "-euc", "mkdir -p d/s; echo gitdir: ../../nothing >d/s/.git"], cwd=other / "apart")
    assert paddock.call("trust", "--forget", "s.git", cwd=par).returncode == 0
    assert "points to nothing now" in paddock.refused("trust", "s.git", cwd=par).text


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
    assert paddock.call("trust", ".", cwd=par).returncode == 0
    moved = par.rename(par.parent / "moved")
    assert "is trusted already" in paddock.call("trust", ".", cwd=moved).stdout
    assert f"moved since  {place}" in paddock.call("trust", "--list", cwd=moved).stdout
    listed = json.loads(paddock.call("trust", "--list", "--json", cwd=moved).stdout)
    assert listed == [{"path": place, "sha256": None, "moved": True}]
    assert "is no longer trusted" in paddock.call("trust", ".", "--forget", cwd=moved).stdout
    assert paddock.refused("run", "--", "true", cwd=moved).reference == "git-dir-written"


@AS_A_USER
def test_what_was_accepted_is_the_repository_and_not_its_place(
    paddock: Paddock, par: Path, backend: dict[str, str]
) -> None:
    """One that a session could write again is no more accepted when another one in its place is."""
    place, away = par / "x/y", par / "away"

    def session(line: str, *options: str) -> bool:
        words: tuple[str | Path, ...] = (*options, "--rw", par, "--", "sh", "-euc", f"cd {par}; {line}")
        return paddock.run(*words, env=backend).returncode == 0

    for name in (".git", "tree"):
        shutil.rmtree(par / name)
    assert session("git init -q x/y")
    assert paddock.call("trust", place, cwd=par).returncode == 0
    moved = "git -C x/y config alias.x y; mv x/y away; git init -q x/y"
    if not session(moved):  # read-only there, as long as not too many are
        assert session("mkdir -p $(seq -f %g/.git 1 300)")
        assert session(moved, "--limit", "processes=200")  # of another plan
    assert paddock.refused("run", "--", "true", cwd=away).reference == "git-dir-written"
    assert paddock.call("trust", place, cwd=par).returncode == 0
    assert paddock.refused("run", "--", "true", cwd=away).reference == "git-dir-written"
    assert paddock.call("run", "--", "true", cwd=place).returncode == 0


@AS_A_USER
def test_a_session_that_runs_there_is_waited_for(paddock: Paddock, par: Path) -> None:
    """Also after its tree was moved. The advice names no merge."""
    with Session(paddock, options=("--rw", par), command=("sh", "-c", "echo ready; exec cat")):
        said = paddock.refused("trust", ".git", cwd=par)
        moved = par.rename(par.parent / "moved")
        after = paddock.refused("trust", ".git", cwd=moved)
    assert (said.reference, after.reference) == ("session-running", "session-running")
    assert "merge" not in said.text
    assert paddock.who.run(["git", "worktree", "repair", "tree"], cwd=moved).returncode == 0  # its .git led to nothing
    assert paddock.call("trust", ".git", cwd=moved).returncode == 0
