"""The private git directory over time: it keeps the agent's work, follows the host, and shows nothing else."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from policy import promises
from tests.support import warmed
from tests.support.git_scene import Git, make, ok
from tests.support.identity import Who
from tests.support.install import Installed
from tests.support.programs.scene import SWITCHES


@pytest.fixture
def submodules() -> bool:
    """Whether there are some, where a test does not say it."""
    return False


@pytest.fixture
def git(submodules: bool, user: Who, installed: Installed, public_dir: Path) -> Git:
    """The linked worktree, for an ordinary user, with namespaces."""
    return make(user, installed, public_dir, "one", promises.NAMESPACES, submodules=submodules)


@pytest.fixture
def main(user: Who, installed: Installed, public_dir: Path) -> Git:
    """The main checkout, without submodules."""
    return make(user, installed, public_dir, "main", promises.NAMESPACES, submodules=False)


def test_nothing_of_the_repository_is_shown_but_objects(user: Who, installed: Installed, public_dir: Path) -> None:
    """Its configuration, hooks and other worktrees are not there, its objects cannot be written, `.git` stays; with
    bubblewrap as with namespaces, which test_git_jail_attacks has.
    """
    git = make(user, installed, public_dir, "one", promises.BUBBLEWRAP)
    (git.common / "config").chmod(0o644)
    private = "$(git rev-parse --absolute-git-dir)"
    script = f"""
    cat {git.common}/config {git.common}/config.worktree; cat {private}/config {private}/paddock-config
    ls {git.common}/worktrees {git.common}/logs
    for store in $(cat {private}/objects/info/alternates); do
        test -d $store/pack || echo "no store $store"
        touch $store/x && echo "wrote $store"
        rm -rf $store/pack && echo "removed $store"
    done
    echo 'gitdir: /nowhere' >.git && echo "replaced .git"
    mv .git moved && echo "moved .git"
    echo 'gitdir: /nowhere' >library/.git && echo "replaced library/.git"
    mv library moved && echo "moved library"
    git rev-parse --git-common-dir >/dev/null && git cat-file -e HEAD && echo fine
    """
    ended = git.run(script + "2>/dev/null; true")
    assert "hush-" not in ended.stdout
    for word in ("no store", "wrote", "removed", "replaced", "moved"):
        assert word not in ended.stdout, ended.stdout
    assert "fine" in ended.stdout
    assert "[user]" in ended.stdout
    git.outside("fsck")


def test_a_second_session_goes_on_where_the_first_stopped(main: Git) -> None:
    """Branches, the stash, settings and what is staged are there again; the commits are the repository's."""
    git = main
    ok(
        git.run(
            "echo 1 >f; git add f; git commit -qm 'f: One.'; git branch topic; git config my.own yes;"
            " echo 2 >f; git stash -q; echo 3 >g; git add g"
        )
    )
    assert git.outside("log", "-1", "--format=%s") == "f: One."
    said = ok(git.run("git rev-parse topic; git config my.own; git stash list; git status --porcelain"))
    assert said.splitlines()[0] == git.outside("rev-parse", "HEAD")
    assert "yes" in said
    assert "stash@{0}" in said
    assert said.splitlines()[-1] == "A  g"


def test_what_the_user_commits_in_between_is_there(git: Git) -> None:
    """The next session starts from it, on the branch that is checked out then, with a clean status."""
    ok(git.run("echo 1 >f; git add f; git commit -qm 'f: One.'"))
    for words in (("commit", "-q", "--allow-empty", "-m", "Outside."), ("switch", "-q", "-c", "elsewhere")):
        git.outside(*words)
    (git.worktree / "new").write_text("x")
    git.who.give(git.worktree / "new")
    git.outside("add", "new")
    git.outside("commit", "-qm", "On another branch.")
    git.outside("tag", "lately")
    git.outside("pack-refs", "--all")
    script = "git status --porcelain; git branch --show-current; git log -3 --format=%s; git describe --all lately"
    said = ok(git.run(script))
    assert said.splitlines() == ["elsewhere", "On another branch.", "Outside.", "f: One.", "tags/lately"]
    ok(git.run("echo 2 >f; git commit -qam 'f: Two.'"))
    assert git.outside("log", "-1", "--format=%s elsewhere", "elsewhere") == "f: Two. elsewhere"
    assert git.outside("status", "--porcelain") == ""


def test_what_arrives_after_a_session_without_commits_is_in_the_next_commit(main: Git) -> None:
    """The index follows the branch, however it has moved: else the commit would take back what has arrived."""
    git = main
    for number in range(2):
        git.outside("checkout", "-q", "-b", f"o{number}")
        (git.worktree / f"arrived{number}").write_text("from outside\n")
        git.outside("add", f"arrived{number}")
        git.outside("commit", "-q", "-m", "Arrived.")
        branch = git.outside("rev-parse", "--abbrev-ref", "@{-1}").strip()
        git.outside("checkout", "-q", branch)
        ok(git.run("true"))
        git.outside("merge", "-q", "--ff-only", f"o{number}")
        said = ok(git.run("git status --porcelain; git commit -q --allow-empty -m 'From the jail.'"))
        assert said == ""
        assert git.outside("show", "--stat", "--format=%s", "HEAD").strip() == "From the jail."
        assert git.outside("status", "--porcelain") == ""


def test_branches_of_others_are_renewed_and_the_agents_stay(git: Git) -> None:
    """What moved in the repository has moved in the jail; what the agent moved or removed stays as he left it."""
    for name in ("a", "b", "c"):
        git.outside("branch", name)
    git.outside("pack-refs", "--all")
    ok(git.run("git branch -q -f b HEAD~1; git branch -q -D c; git pack-refs --all"))
    for name in ("a", "b", "c", "d"):
        git.outside("branch", "-f", name, "main~2")
    script = "git rev-parse main~2 main~1 HEAD~1; git for-each-ref --format='%(refname) %(objectname)' refs/heads"
    said = ok(git.run(script))
    other, _, own, *rest = said.splitlines()
    refs = dict(line.split() for line in rest)
    assert (refs["refs/heads/a"], refs["refs/heads/d"], refs["refs/heads/b"]) == (other, other, own)
    assert "refs/heads/c" not in refs


def test_two_sessions_share_it_and_the_last_one_harvests(git: Git) -> None:
    """Each sees the other's commits at once; the repository gets them when the second one has ended."""
    first = git.start("git commit -q --allow-empty -m first; touch ready; while test ! -e go; do sleep 0.1; done")
    _await(git.worktree / "ready")
    before = git.outside("rev-parse", "HEAD")
    second = git.run("git log -1 --format=%s; git commit -q --allow-empty -m second")
    assert (second.returncode, second.stdout) == (0, "first\n"), second.stderr
    assert git.outside("rev-parse", "HEAD") == before
    (git.worktree / "go").touch()
    assert first.wait(60) == 0
    assert first.stderr is not None
    first.stderr.close()
    assert git.outside("log", "-2", "--format=%s").split() == ["second", "first"]


@pytest.mark.parametrize("submodules", [True], ids=["submodules"])
def test_what_the_agent_destroys_is_made_anew(git: Git) -> None:
    """Without HEAD, objects or a submodule's directory the next session has a good one, and is told of it."""
    for damage in ("rm -rf $p/objects $p/HEAD", "mv $p/refs $p/x; ln -s /etc $p/refs", "rm -rf $p/modules/library"):
        ended = git.run(f"p=$(git rev-parse --absolute-git-dir); {damage}")
        assert ended.returncode == 0
        script = "git status --porcelain; git -C library status --porcelain; git -C library/inner log -1 --format=%s"
        again = git.run(script)
        assert (again.returncode, again.stdout) == (0, "inner: First.\n"), again.stderr
        assert "created again" in again.stderr


def test_links_that_the_agent_plants_lead_nowhere(git: Git) -> None:
    """Renewing follows none of them, and writes nothing but in the private git directory."""
    prize = git.place / "prize"
    prize.write_text("untouched")
    ok(
        git.run(
            f"p=$(git rev-parse --absolute-git-dir); cd $p; rm -rf info hooks index; ln -s {git.place} info;"
            f" ln -s {git.place} hooks; ln -s {prize} index; rm paddock-config; ln -s {prize} paddock-config;"
            f" rm packed-refs; ln -s {prize} packed-refs; mkfifo FETCH_HEAD; true"
        )
    )
    git.outside("commit", "-q", "--allow-empty", "-m", "Outside.")
    git.outside("branch", "another")
    git.outside("config", "user.name", "Somebody")
    names = sorted(path.name for path in git.place.iterdir())
    git.run("true")
    assert prize.read_text() == "untouched"
    assert sorted(path.name for path in git.place.iterdir()) == names


def test_what_the_agent_puts_in_the_way_of_later_sessions_is_put_aside(git: Git, tmp_path: Path) -> None:
    """Links and files where directories are needed, directories where files are: the next session works."""
    ok(
        git.run(
            """cd "$(git rev-parse --absolute-git-dir)"
            rm -rf hooks info config packed-refs
            ln -s /etc hooks; mkfifo info; mkdir -p config/inner packed-refs/inner
            rm -rf objects/info; echo x >objects/info"""
        )
    )
    git.outside("commit", "--allow-empty", "-m", "the host goes on")
    (git.common / "info").mkdir(exist_ok=True)
    (git.common / "info/exclude").write_text("something\n")
    ok(git.run("echo more >more.txt && git add more.txt && git commit -qm 'after that'"))
    assert "after that" in git.outside("log", "--all", "--format=%s")


KILLED_GIT = """p=$(git rev-parse --absolute-git-dir)
GIT_EDITOR='kill -9 $PPID #' git commit -qa --allow-empty
test -e "$p/index.lock" && echo held"""


@pytest.mark.parametrize("submodules", [True], ids=["submodules"])
def test_locks_of_a_killed_git_are_in_nobodys_way(git: Git) -> None:
    """After a SIGKILL during `git commit` the next session, and the next harvest, remove the locks and say so."""
    assert ok(git.run(KILLED_GIT)) == "held\n"
    again = git.run("echo more >more.txt && git add more.txt && git commit -qm after")
    ok(again)
    assert "index.lock" in again.stderr
    assert git.outside("log", "-1", "--format=%s") == "after"
    ended = git.run("echo x >$(git rev-parse --absolute-git-dir)/refs/heads/X.lock")
    assert "refs/heads/X.lock" in ended.stderr
    assert "further branches" not in ended.stderr
    ok(git.run(f"{KILLED_GIT}; echo x >$p/modules/library/HEAD.lock"))
    harvested = warmed.run(git.who, git.installed.python, ("worktree", "harvest", "--json"), cwd=git.worktree)
    said = json.loads(ok(harvested))
    assert said["branches"] == []
    (note,) = [note for note in said["notes"] if "index.lock" in note]
    assert "modules/library/HEAD.lock" in note
    assert list((git.state / "git").rglob("*.lock")) == []
    assert "lock" not in git.run("git commit -q --allow-empty -m last").stderr


def test_what_is_planted_for_a_lock_neither_misleads_nor_wedges(git: Git) -> None:
    """Links, FIFOs, hard links and directories go as locks do; what they lead to stays, and so do other names."""
    prize = git.place / "prize"
    prize.mkdir()
    (prize / "index.lock").write_text("untouched")
    ok(
        git.run(
            f"""cd "$(git rev-parse --absolute-git-dir)"
            ln -s {prize}/index.lock index.lock; mkfifo HEAD.lock; ln config config.lock
            mkdir -p packed-refs.lock/inner/deep; mkdir -m 0 refs/heads/one.lock; ln -s {prize} logs/refs/heads/links
            mkdir -p modules/named.lock/inner objects/pack && echo x >modules/named.lock/inner/file
            mkdir -p objects/info/x.lock && echo x >objects/pack/kept.txt && chmod 500 refs/heads"""
        )
    )
    ended = git.run(
        "git branch fresh && echo more >more.txt && git add more.txt && git commit -qm after && git pack-refs --all"
    )
    ok(ended)
    for name in ("index.lock", "HEAD.lock", "config.lock"):
        assert name in ended.stderr
    assert git.outside("log", "-1", "--format=%s") == "after"
    assert (prize / "index.lock").read_text() == "untouched"
    private = git.state / "git"
    assert (private / "config").stat().st_nlink == 1
    assert (private / "modules/named.lock/inner/file").exists()
    assert (private / "objects/pack/kept.txt").exists()


def test_a_lock_of_a_living_session_stays(git: Git) -> None:
    """Neither a second session nor a harvest takes it away."""
    script = "touch $(git rev-parse --absolute-git-dir)/index.lock; touch ready; while test ! -e go; do sleep 0.1; done"
    first = git.start(script)
    _await(git.worktree / "ready")
    assert "index.lock" not in git.run("true").stderr
    warmed.run(git.who, git.installed.python, ("worktree", "harvest"), cwd=git.worktree)
    assert (git.state / "git/index.lock").exists()
    (git.worktree / "go").touch()
    assert first.wait(60) == 0
    assert first.stderr is not None
    first.stderr.close()


def test_hooks_in_the_tree_run_in_the_jail(git: Git) -> None:
    """As husky has them: the setting leads into the worktree, and the hook there is executed."""
    (git.worktree / ".husky").mkdir()
    (git.worktree / ".husky/commit-msg").write_text("#!/bin/sh\necho 'by husky' >>$1\n")
    (git.worktree / ".husky/commit-msg").chmod(0o755)
    git.who.give(git.worktree / ".husky")
    git.outside("config", "core.hooksPath", ".husky")
    ok(git.run("git commit -q --allow-empty -m mine"))
    assert "by husky" in git.outside("log", "-1", "--format=%B")
    # What a link there leads to is not copied.
    secret = git.place / "private"
    secret.mkdir()
    (secret / "secret").write_text("s3cret")
    (secret / "secret").chmod(0o755)
    git.who.give(secret)
    ok(git.run(f"ln -s {secret} linked; ln -s {secret}/secret ignored"))
    git.outside("config", "core.hooksPath", "linked")
    git.outside("config", "core.excludesFile", "ignored")
    ok(git.run('! grep -r s3cret "$(git rev-parse --absolute-git-dir)"'))


def test_a_hook_that_is_removed_outside_runs_no_more(git: Git) -> None:
    """One that the agent has made for itself does."""
    hook = git.common / "hooks/commit-msg"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho outside >>$1\n")
    hook.chmod(0o755)
    git.who.give(hook.parent)
    own = 'h=$(git rev-parse --git-path hooks)/prepare-commit-msg; printf "#!/bin/sh\\necho own >>\\$1\\n" >$h'
    ok(git.run(f"{own}; chmod +x $h; git commit -q --allow-empty -m first"))
    assert git.outside("log", "-1", "--format=%B").split() == ["first", "own", "outside"]
    hook.unlink()
    ok(git.run("git commit -q --allow-empty -m second"))
    assert git.outside("log", "-1", "--format=%B").split() == ["second", "own"]


def test_the_index_comes_with_what_it_knows_of_files(git: Git) -> None:
    """Times, inodes and sizes are the ones outside, and the index's own time too: git reads no unchanged file again."""
    outside = git.outside("ls-files", "--debug")
    inside = git.run('git ls-files --debug; stat -c %Y "$(git rev-parse --git-path index)" >&2')
    assert inside.stdout.removesuffix("\n") == outside
    index = git.outside("rev-parse", "--git-path", "index")
    assert inside.stderr.split()[-1] == str(int((git.worktree / index).stat().st_mtime))


@pytest.mark.parametrize("submodules", [True], ids=["submodules"])
def test_a_submodule_that_is_denied_is_closed_in_the_jail(git: Git) -> None:
    """Its files are hidden, whatever its private git directory knows; the others work."""
    said = git.run("ls library/inner; git -C library log -1 --format=%s", "--deny", str(git.worktree / "library/inner"))
    assert (said.returncode, said.stdout) == (0, "library: Inner.\n"), said.stderr


@pytest.mark.parametrize(("worktree", "backend"), [("one", promises.NAMESPACES), ("main", promises.BUBBLEWRAP)])
def test_a_submodule_that_is_not_granted_has_no_objects_in_the_jail(
    user: Who, installed: Installed, public_dir: Path, worktree: str, backend: str
) -> None:
    """Neither its files nor its git directory, private or not, can be seen; the others work."""
    git = make(user, installed, public_dir, worktree, backend)
    extra = 'git -c protocol.file.allow=always submodule --quiet add "$PWD/../inner" other && git commit -qm other'
    ok(user.run(["sh", "-c", extra], cwd=git.worktree))
    script = """
    ls library; git -C library log; git -C library/inner log
    ls $(git rev-parse --absolute-git-dir)/modules/library
    git -C other log -1 --format=%s
    """
    said = git.run(script, "--submodule", "other")
    assert said.stdout.splitlines() == ["inner: First."], (said.stdout, said.stderr)
    assert "library.txt" in ok(git.run(script)), "granted, all of it is there"


REFUSED = {
    "git merge -q other || true": "a merge is in progress",
    "git merge --abort; git config remote.origin.promisor true": "partial clone",
    "git config core.repositoryFormatVersion 1; git config extensions.somethingNew yes": "somethingnew",
    "echo /usr/share >$(git rev-parse --git-common-dir)/objects/info/alternates": "borrows objects from /usr/share",
}


def test_what_git_in_the_jail_would_half_understand(git: Git) -> None:
    """Named explicitly, private is refused with the reason; left to itself, git is read-only, and that is said."""
    script = "git checkout -q -b other2; echo x >src/count; git commit -qam x; git checkout -q one; echo y >src/count;"
    ok(git.who.run(["sh", "-c", f"{script} git commit -qam y; git branch -q -f other other2"], cwd=git.worktree))
    config = (git.common / "config").read_bytes()
    for doing, reason in REFUSED.items():
        ok(git.who.run(["sh", "-c", doing], cwd=git.worktree))
        refused = git.run("true", "--git", "private")
        assert (refused.returncode, "git-private-impossible" in refused.stderr) == (125, True), (doing, refused.stderr)
        assert reason in refused.stderr
        left = git.run("git commit -q --allow-empty -m x && echo committed; true")
        assert left.stdout == "", doing
        assert reason in left.stderr
        (git.common / "config").write_bytes(config)


def test_objects_that_are_borrowed_further_need_a_grant(git: Git) -> None:
    """With --ro the objects of a third repository are there, and commits work."""
    git.outside("clone", "-q", "--shared", str(git.place / "main"), str(git.place / "shared"))
    shared = Git(git.who, git.installed, git.place, git.place / "shared", git.backend)
    refused = shared.run("git log -1", "--git", "private")
    assert "git-private-impossible" in refused.stderr
    script = "git log -1 --format=%s; git -c user.name=T -c user.email=t@example.invalid commit -q --allow-empty -m new"
    assert ok(shared.run(script, "--ro", str(git.common / "objects"))) == "count: To 5.\n"
    assert shared.outside("log", "-1", "--format=%s") == "new"


def test_a_plan_with_a_private_git_directory_is_explained(git: Git) -> None:
    """`explain` says what is shown where, and that the repository's own directory is out of reach."""
    words = ("explain", "--plan", "--", "true")
    said = warmed.run(git.who, git.installed.python, words, cwd=git.place / "main").stdout
    assert f"{git.place}/main/.git  [shows @git/git]" in said
    about = warmed.run(git.who, git.installed.python, ("explain", ".git/config"), cwd=git.place / "main")
    assert about.stdout.splitlines()[0].endswith(": denied")
    assert "--git private" in about.stdout


def _await(path: Path) -> None:
    for _ in _patience():
        if path.exists():
            return
    raise AssertionError(f"{path} did not appear")


def _patience() -> Iterator[None]:
    import time

    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        yield
        time.sleep(0.05)


def test_what_is_said_of_objects_behind_the_users_own_link_works(
    user: Who, installed: Installed, public_dir: Path
) -> None:
    """After a session that could have made the link: read-only with --ro; and private where the directory itself is."""
    git = make(user, installed, public_dir, "main", promises.NAMESPACES, submodules=False)
    big, objects = git.place / "big", git.common / "objects"
    objects.rename(big)
    objects.symlink_to(big)
    assert ok(git.run("git log -1 --format=%s")) == "count: To 5.\n"
    ok(git.run("true", "--git", "shared"))
    refused = git.run("true").stderr
    assert "remove it, if an agent made it; else put what it points to in its place" in refused
    assert "--git readonly: log, diff and status work, once --ro grants what the link points to" in refused
    log = "git log -1 --format=%s"
    assert ok(git.run(log, "--git", "readonly", "--ro", str(big))) == "count: To 5.\n"
    objects.unlink()
    big.rename(objects)
    _paddock(git, "trust", str(git.common))
    assert ok(git.run(log)) == "count: To 5.\n"


PLACES = (".", "library", "library/inner")
COMMITS = f"for at in {' '.join(reversed(PLACES))}; do git -C $at commit -qam $1 --allow-empty; done; git status -s"


def _paddock(git: Git, *words: str) -> str:
    """Runs another command than `run`, in the worktree."""
    env, _ = SWITCHES[git.backend]
    return ok(warmed.run(git.who, git.installed.python, words, cwd=git.worktree, env=env))


def _works(git: Git) -> None:
    """Git works in the jail, in all submodules, and what it commits arrives."""
    assert ok(git.run(f"set -e -- there; {COMMITS}")) == ""
    for at in PLACES:
        assert git.outside("log", "-1", "--format=%s", at=at) == "there"


@pytest.mark.parametrize("backend", [promises.NAMESPACES, promises.GUARD])
def test_git_works_where_a_worktree_was_moved_to(
    user: Who, installed: Installed, public_dir: Path, backend: str
) -> None:
    """Also in its submodules, and with what the agent has set: one that git made, and one of Paddock's (the guard)."""
    git = make(user, installed, public_dir, "one", backend)
    if backend != promises.GUARD:
        _paddock(git, "worktree", "adopt", ".")
    ok(git.run("git config my.own ' \"a;b\\'; git -C library sparse-checkout set --no-cone '/*'"))
    deep = git.place / "deep"
    deep.mkdir()
    git.who.give(deep)
    moved = dataclasses.replace(git, worktree=git.worktree.rename(deep / "moved"))
    assert f"is at {moved.worktree} now" in _paddock(moved, "worktree", "repair", str(moved.worktree))
    _works(moved)
    assert ok(moved.run("git config my.own")) == ' "a;b\\\n'
    assert moved.outside("status", "--porcelain") == ""


def test_git_works_where_git_has_moved_a_worktree_to(git: Git) -> None:
    """`git worktree move`, which moves none with submodules: any command of Paddock's on worktrees finds it."""
    tree = git.outside("hash-object", "-t", "tree", "/dev/null")
    git.outside("worktree", "add", "-q", "-b", "plain", "../plain", git.outside("commit-tree", "-m", "Plain.", tree))
    plain = dataclasses.replace(git, worktree=git.place / "plain")
    _paddock(plain, "worktree", "adopt", ".")
    ok(plain.run("git commit -q --allow-empty -m here"))
    git.outside("worktree", "move", "../plain", "../moved")
    moved = dataclasses.replace(git, worktree=git.place / "moved")
    _paddock(moved, "worktree", "list")
    assert ok(moved.run("touch f; git add f; git commit -qm there; git status --porcelain")) == ""
    assert moved.outside("log", "--format=%s") == "there\nhere\nPlain."


@pytest.mark.parametrize("submodules", [True], ids=["submodules"])
def test_git_works_in_a_worktree_whose_main_checkout_was_moved(git: Git) -> None:
    """A session before `repair` leaves the pointers of submodules where they are; then they are right again. What the
    sessions before had is put aside, and nothing of it is lost.
    """
    main = git.place / "main"
    _paddock(git, "worktree", "add", "two", "--path", str(git.place / "two"))
    two = dataclasses.replace(git, worktree=git.place / "two")
    ok(two.run(f"set -e -- here; {COMMITS}; git config my.before kept"))
    pointer = two.worktree / "library/.git"
    before = pointer.read_bytes()
    main.rename(git.place / "moved")
    git.who.run(["git", "worktree", "repair"], cwd=git.place / "moved")
    said = two.run("git config my.own yes").stderr
    assert "moved to" not in said
    assert f"is that of {main}/.git and is created again; the old one is in " in said
    aside = Path(said.partition("the old one is in ")[2].split("\n")[0])
    assert "before = kept" in (aside / "config").read_text()
    assert pointer.read_bytes() == before
    said = _paddock(two, "worktree", "repair")
    assert f"restored {pointer}" in said
    assert pointer.read_text().startswith(f"gitdir: {git.place}/moved/.git/modules/library/")
    _works(two)
    assert ok(two.run("git config my.own; git log --format=%s -2")) == "yes\nthere\nhere\n"
    assert "nothing to do" in _paddock(two, "worktree", "repair")
    status = warmed.run(git.who, git.installed.python, ("worktree", "status"), cwd=two.worktree)
    assert f"would be lost: a repository that was moved aside: {aside}" in status.stdout
