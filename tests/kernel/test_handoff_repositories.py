"""Ways to have the user's git execute something in a worktree later, as an attacker tried them: each is told."""

import json
import shutil

import pytest

from launcher.session import handoff_changes
from tests.support.features import need
from tests.support.paddock import Paddock, Session

MONITOR = '[core]\\nfsmonitor="touch pwned;false"\\n'
SPLIT = (
    "mkdir -p t td/objects td/refs; echo ref: refs/heads/x >t/HEAD; echo ../td >t/commondir; "
    f"printf '{MONITOR}' >td/config"
)
EXISTING = (
    "git config --global user.name A; git config --global user.email a@example.invalid; "
    "git init -q own && echo '#!/bin/sh' >own/.git/hooks/pre-commit && git init -q --bare bare.git && git init -q m/s; "
    "mkdir stores; git init -q --separate-git-dir $PWD/stores/pointed pointed; echo vendor >.gitignore; "
    "git init -q vendor/v"
)
HIDDEN = (
    "o=$(echo x | git hash-object -w --stdin); for p in HEAD config objects/k refs/k; do "
    "GIT_INDEX_FILE=i git update-index --add --cacheinfo 100644,$o,tool/$p; done; "
    "c=$(git commit-tree -p HEAD -m x $(GIT_INDEX_FILE=i git write-tree)); git update-ref refs/heads/one $c; rm i"
)


@pytest.fixture
def here(user_paddock: Paddock) -> Paddock:
    """A linked worktree of an ordinary user, with repositories of his own in it."""
    need("userns")
    ended = user_paddock.who.run(["sh", "-c", EXISTING], cwd=user_paddock.worktree)
    assert ended.returncode == 0, ended.stderr
    return user_paddock


TOLD = {
    "rm own/.git/hooks/pre-commit": "removed own/.git/hooks/pre-commit",
    f"printf '{MONITOR}' >>own/.git/config": "changed own/.git/config",
    "mkdir own/.git/remotes; echo 'URL: ext::x' >own/.git/remotes/a": "created own/.git/remotes/a",
    "mkdir own/.git/sequencer; echo exec x >own/.git/sequencer/todo": "created own/.git/sequencer",
    "mkdir own/.git/rebase-merge; echo ../x >own/.git/rebase-merge/strategy": "created own/.git/rebase-merge",
    "echo '* filter=x' >own/.git/info/attributes": "created own/.git/info/attributes",
    f"mkdir -p own/.git/modules/a/b && printf '{MONITOR}' >own/.git/modules/a/b/config":
        "created own/.git/modules/a/b/config",
    f"printf '{MONITOR}' >>bare.git/config": "changed bare.git/config",
    "echo evil >bare.git/hooks/post-update": "created bare.git/hooks/post-update",
    "mv pointed/.git x && cp x pointed/.git": "changed pointed/.git",
    SPLIT: "created t",
    "git init -q dd; chmod 311 dd": "created dd",
}  # fmt: skip
"""What disturbs nothing else of it, and what is told of it."""


@pytest.mark.parametrize(
    "made",
    [TOLD, {"echo evil >own/.git/hooks/pre-commit": "changed own/.git/hooks/pre-commit"},
     {"mv own/.git own/old && git init -q own": "changed own/.git"}, {"mv own other": "removed own/.git"}],
    ids=["within", "a hook", "replaced", "moved"],
)  # fmt: skip
def test_what_git_would_obey_is_told(here: Paddock, made: dict[str, str]) -> None:
    """In repositories that were there before, in ones with their parts elsewhere, and behind closed doors."""
    # The guard, because nothing mounts it read-only there.
    env, line = {"PADDOCK_NO_USERNS": "1"}, "\n".join(f"({each})" for each in made)
    said = here.refused("run", "--git", "readonly", "--strict-handoff", "--", "sh", "-c", line, env=env)
    assert said.reference == "handoff-strict"
    assert [named for named in made.values() if f"{named}\n" not in f"{said.text}\n"] == [], said.text


PLANTED = (
    "echo evil >own/.git/hooks/post-checkout", "mv own/.git/hooks own/.git/h", "rm -r own/.git/info",
    f"printf '{MONITOR}' >>own/.git/config", "git -C own config core.fsmonitor evil",
    "echo evil >bare.git/hooks/post-update", "mv m/s/.git m/s/x", "mv m m2", "mv own own2",
    "rm pointed/.git", "echo evil >stores/pointed/hooks/post-checkout", "mv stores s",
    "echo evil >vendor/v/.git/hooks/post-checkout",
    # What sends git elsewhere, and was not there before.
    "echo ../../t >own/.git/commondir", f"printf '{MONITOR}' >own/.git/config.worktree", "mkdir -p own/.git/modules/x",
    "mkdir own/.git/rebase-merge", "mkdir own/.git/remotes", "echo ../../t >stores/pointed/commondir",
    "echo ../t >bare.git/commondir", "touch own/.git/index",
)  # fmt: skip
COMMIT = "for at in own pointed; do echo x >>$at/file; git -C $at add file && git -C $at commit -qm Jailed; done"


@pytest.mark.parametrize("backend", ["landlock", "bubblewrap"])
def test_nothing_is_planted_in_repositories_that_are_there(here: Paddock, backend: str) -> None:
    """Git directories that no jail could write are read-only as a whole and stay where they are; git reads them."""
    need(backend)
    tried = "; ".join(f"({each}) && echo done: {number}" for number, each in enumerate(PLANTED))
    # A shell may go on where it cannot redirect a command that is built in.
    ended = here.who.run(["sh", "-c", COMMIT], cwd=here.worktree)
    assert ended.returncode == 0, ended.stderr
    reads = "for at in own pointed; do git -C $at log --format=%s && git -C $at status --short; done"
    script = f"exec 2>/dev/null; {tried}; ({COMMIT}) && echo committed; {reads}"
    words = ("--git", "readonly", "--strict-handoff", "--backend", backend, "--", "sh", "-c")
    for number in (1, 2):  # that a session has been there opens nothing to the next one
        ended = here.run(*words, script)
        assert (ended.returncode, ended.stdout) == (0, "Jailed\n M file\n" * 2), (number, ended.stderr)
    said = here.call("why", "own/.git/index", "--git", "readonly", "--backend", backend)
    assert "a session in that repository" in said.stdout, said.stdout + said.stderr
    ended = here.run("--git", "shared", "--backend", backend, "--", "sh", "-c", f"({COMMIT}) && echo committed")
    assert ended.stdout == "committed\n"


def test_what_sessions_made_there_takes_commits(here: Paddock) -> None:
    """Until the user vouches for it: from then on it is his, and no session writes it any more."""
    make = "git init -q theirs; sleep 0.5"
    assert here.run("--git", "readonly", "--", "sh", "-c", make).returncode == 0
    commit = "git -C theirs commit -q --allow-empty -m x && echo committed; :"
    tried = f"(echo x >own/.git/commondir) 2>&-; {commit}"
    assert here.run("--git", "readonly", "--", "sh", "-c", tried).stdout == "committed\n"
    assert here.call("trust", "theirs/.git").returncode == 0
    for _ in range(2):
        assert here.run("--git", "readonly", "--", "sh", "-c", commit).stdout == ""
    assert not (here.worktree / "own/.git/commondir").exists()


@pytest.mark.parametrize(
    ("lasting", "between"),
    [("", "nothing"), ("", "a new Plan"), ("", "a search"), ("", "both"), ("; sleep 0.5", "a new Plan")],
)
def test_what_a_session_made_the_next_one_may_clear_away(here: Paddock, lasting: str, between: str) -> None:
    """However long it lasted, whoever has searched since, and whether the Plan of the next one is made anew."""

    def run(line: str, *words: str) -> str:
        ended = here.run("--git", "readonly", *words, "--", "sh", "-c", line)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    run("true")  # what it records is an input of the Plan that follows
    run(f"git init -q theirs; git init -q --bare store{lasting}")
    assert here.who.run(["git", "init", "-q", "mine"], cwd=here.worktree).returncode == 0
    if between in ("a search", "both"):
        run("true", "--report", str(here.place / "report"))
    if between in ("a new Plan", "both"):
        shutil.rmtree(here.who.home / ".cache/paddock/plans")
    run("rm -rf theirs store")
    if between != "nothing":
        assert run("(echo x >mine/.git/hooks/pre-commit) 2>&- && echo planted; :") == ""


@pytest.mark.parametrize("backend", ["namespaces", "guard", "bubblewrap"])
def test_what_is_trusted_between_two_sessions_is_not_written_by_the_second(here: Paddock, backend: str) -> None:
    """Though it is the same command; without mounts, what is written is trusted no more."""
    need("bubblewrap" if backend == "bubblewrap" else "landlock")
    env = {"namespaces": {}, "guard": {"PADDOCK_NO_USERNS": "1"}, "bubblewrap": {"PADDOCK_NO_LANDLOCK": "1"}}[backend]
    plant = "for at in mine theirs; do git -C $at commit -q --allow-empty -m x && echo wrote $at; done; :"
    words = ("--git", "readonly", "--", "sh", "-c", f"git init -q theirs; {plant}")
    ended = here.run(*words, env=env)
    assert ended.stdout == "wrote theirs\n", ended.stderr
    assert here.who.run(["git", "init", "-q", "mine"], cwd=here.worktree).returncode == 0
    assert here.call("trust", "mine").returncode == 0
    guard = backend == "guard"
    assert here.run(*words, env=env).stdout == "wrote mine\n" * guard + "wrote theirs\n"
    assert (f"{here.worktree}/mine/.git" in here.call("trust", "--list").stdout) != guard


@pytest.mark.parametrize("backend", ["namespaces", "bubblewrap"])
def test_a_directory_s_repositories_are_out_of_reach(here: Paddock, backend: str) -> None:
    """Of a directory that is no worktree, in the first session and in later ones; what it makes itself is its own."""
    need("bubblewrap" if backend == "bubblewrap" else "landlock")
    parent = here.place / "par"
    own = parent / "lib/modules/own"
    ended = here.who.run(["git", "init", "-q", str(own)], cwd=here.place)
    assert ended.returncode == 0, ended.stderr
    plant = (
        "cd lib/modules; (echo ../../t >own/.git/commondir) 2>&- && echo planted; echo x >own/file; cd ../..; "
        "git init -q new$0 && echo made; mkdir -p lib/objects lib/refs; echo x >lib/HEAD"  # which hides nothing
    )
    env = {"namespaces": {}, "bubblewrap": {"PADDOCK_NO_LANDLOCK": "1"}}[backend]
    for number in (1, 2):
        words = ("--directory", "--worktree", parent, "--", "sh", "-c", plant, str(number))
        ended = here.run(*words, env=env)
        assert ended.stdout == "made\n", ended.stderr
    assert "no session could write" in here.call("trust", own / ".git").stdout


def test_frozen_directories_hold_a_repository_without_mounts(here: Paddock) -> None:
    """The guard cannot take it out of a writable tree otherwise."""
    plant = "(echo ../../t >own/.git/commondir) 2>&- && echo planted; echo x >own/.git/config; git -C own log; cat .git"
    words = ("--git", "readonly", "--freeze-root", "--", "sh", "-c", f"({plant}) 2>&-")
    ended = here.run(*words, env={"PADDOCK_NO_USERNS": "1"})
    assert ended.stdout.startswith("gitdir: "), ended.stderr
    assert not (here.worktree / "own/.git/commondir").exists()


def test_a_commit_in_such_a_repository_is_nothing_to_tell(here: Paddock) -> None:
    """Where only a comparison at the end protects it; nor is a look at them, or a file beside them."""
    env = {"PADDOCK_NO_USERNS": "1"}
    line = (
        f"{COMMIT}; git -C own log --oneline --all; cat own/.git/config bare.git/config; echo x >m/s/file; mkdir HEADS"
    )
    ended = here.run("--git", "readonly", "--strict-handoff", "--", "sh", "-c", line, env=env)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    ("granted", "backend"),
    [("beside/repository", "namespaces"), ("beside/repository", "guard"), ("beside", "bubblewrap"), ("beside", "guard"),
     ("beside/repository/.git", "namespaces")],
)  # fmt: skip
def test_a_grant_over_a_git_directory_does_not_open_its_hooks(here: Paddock, granted: str, backend: str) -> None:
    """It is read-only, or a change is told, unless the user said that git directories are the command's."""
    need("bubblewrap" if backend == "bubblewrap" else "landlock")
    other = here.place / "beside/repository"
    assert here.who.run(["git", "init", "-q", str(other)], cwd=here.place).returncode == 0
    env = {"namespaces": {}, "guard": {"PADDOCK_NO_USERNS": "1"}, "bubblewrap": {"PADDOCK_NO_LANDLOCK": "1"}}[backend]
    plant = f"for f in hooks/post-checkout objects/x; do (echo x >{other}/.git/$f) && echo wrote $f; done; :"
    words = ("--rw", here.place / granted, "--git", "readonly", "--strict-handoff", "--", "sh", "-c", plant)
    ended = here.run(*words, env=env)
    if granted.endswith(".git"):
        assert "grant-opens-git" in ended.stderr
    elif backend == "guard":
        assert ended.returncode == 125
        assert f"created {other}/.git/hooks/post-checkout" in ended.stderr
    else:
        assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
    opened = here.run("--rw", here.place / granted, "--git", "shared", "--", "sh", "-c", plant, env=env)
    assert opened.stdout == "wrote hooks/post-checkout\nwrote objects/x\n", opened.stderr


@pytest.mark.parametrize("name", ["hooks", "config", "hooks/pre-commit.sample"])
def test_hooks_and_configuration_are_not_granted_by_name(here: Paddock, name: str) -> None:
    """Nothing could keep them read-only then; the refusal says what would open them."""
    said = here.refused("run", "--rw", here.main / ".git" / name, "--git", "readonly", "--", "true")
    assert said.reference == "grant-opens-git"
    assert "--git shared" in said.text


def test_a_repository_that_comes_later_is_protected_once_it_was_met(here: Paddock) -> None:
    """The walk for a Plan is not made again for each launch; what a search at an end meets makes a new Plan."""
    words = ("run", "--git", "readonly", "--report", str(here.place / "report"), "--", "sh", "-c")
    plant = "echo evil >later/.git/hooks/post-checkout && echo planted; :"
    assert here.call(*words, "[ ! -d later ] || (" + plant + ")").returncode == 0
    assert here.who.run(["git", "init", "-q", "later"], cwd=here.worktree).returncode == 0
    here.call(*words, "[ -d later ] || :")  # meets it
    ended = here.call(*words, "[ ! -d later ] || (" + plant + ")")
    assert ended.stdout == "", ended.stderr


def test_protected_files_are_told_in_whatever_directory(here: Paddock) -> None:
    """Tools look for them where they are started; a link may stand for a directory of them; packages are left out."""
    made = "mkdir -p a/b/.vscode d node_modules/x; for f in a/.envrc a/b/.vscode/tasks.json node_modules/x/.npmrc"
    made += "; do echo x >$f; done; ln -s ../a/b/.vscode d/.vscode; echo x >a/b/.vscode/other; echo x >.fleet/9"
    # A link in the root stands for what it leads to.
    (here.worktree / "shared").mkdir()
    (here.worktree / "shared/settings").write_text("x")
    (here.worktree / ".vimrc").symlink_to("shared/settings")
    (here.worktree / ".zed").symlink_to("shared")
    made += "; echo x >>shared/settings"
    # With so many entries a directory in the root is compared as a whole, by its own time and their number.
    (here.worktree / ".fleet").mkdir()
    for number in range(handoff_changes.MOST_ENTRIES + 1):
        (here.worktree / f".fleet/{number}").touch()
    here.who.give(here.worktree)
    # The guard, because nothing mounts it read-only there.
    env = {"PADDOCK_NO_USERNS": "1"}
    said = here.refused("run", "--git", "readonly", "--strict-handoff", "--", "sh", "-c", made, env=env)
    told = [line.split()[-1] for line in said.text.splitlines() if "changed " in line]
    assert told == ["shared/settings", ".fleet/9", "a/.envrc", "a/b/.vscode/tasks.json", "d/.vscode"], said.text
    assert here.run("--git", "readonly", "--strict-handoff", "--", "true").returncode == 0


def test_what_nobody_has_searched_for_is_told_by_the_next_session(here: Paddock) -> None:
    """After a session whose launcher was killed; once, and not what was there before it.

    In the root, too, moved there with the directory in which it lay; and if another one has ended meanwhile.
    """
    (here.worktree / "plain").mkdir()
    (here.worktree / "plain/settings.json").touch()
    (here.worktree / ".vimrc").touch()
    here.who.give(here.worktree)
    report = here.place / "report.json"
    made = "git init -q a/b; echo x >.envrc; mv plain .claude; echo ready; exec cat"
    with Session(here, command=("sh", "-c", made)) as session:
        assert here.run("--git", "readonly", "--report", str(report), "--", "true").returncode == 0
        assert json.loads(report.read_text())["handoff"] == []
        session.kill()
    for told in ([".claude/settings.json", ".envrc", "a/b/.git"], []):
        assert here.run("--git", "readonly", "--report", str(report), "--", "true").returncode == 0
        assert sorted(each["path"] for each in json.loads(report.read_text())["handoff"]) == told


def test_what_the_repositorys_configuration_includes_is_protected(here: Paddock) -> None:
    """Git outside obeys it from then on: it is read-only, through other files too, and told where it is made anew."""
    (here.main / "team").mkdir()
    (here.main / "team/git").write_text(
        '[include]\n\tpath = ../more.inc\n[includeIf "onbranch:x"]\n\tpath = ../new.inc\n'
    )
    (here.main / "more.inc").write_text("[diff]\n\tnoprefix = false\n")
    here.who.give(here.main / "team")
    here.who.give(here.main / "more.inc")
    assert here.who.run(["git", "config", "include.path", "../team/git"], cwd=here.main).returncode == 0
    tried = "for f in team/git more.inc; do echo x 2>&- >>$f && echo wrote $f; mv $f moved && echo moved $f; done; :"
    ended = here.call("run", "--", "sh", "-c", f"({tried}) 2>&1; git status --short", cwd=here.main)
    assert ended.returncode == 0, ended.stderr
    assert not [line for line in ended.stdout.splitlines() if line.startswith(("wrote ", "moved "))], ended.stdout
    made = ("run", "--strict-handoff", "--", "sh", "-c", "echo x >new.inc; echo y >plain")
    said = here.refused(*made, cwd=here.main)
    assert (said.reference, "created new.inc" in said.text, "plain" in said.text) == ("handoff-strict", True, False)


def test_a_replaced_pointer_is_told_where_nothing_protects_it(here: Paddock) -> None:
    """Without mounts the jail can write the worktree's own `.git`."""
    env = {"PADDOCK_NO_USERNS": "1"}
    line = "mkdir t; rm .git; echo gitdir: $PWD/t >.git"
    said = here.refused("run", "--strict-handoff", "--", "sh", "-c", line, env=env)
    assert (said.reference, "changed .git\n" in said.text) == ("handoff-strict", True), said.text


def test_a_bare_repository_in_a_commit_is_told(here: Paddock) -> None:
    """It need not have been checked out by anybody."""
    said = here.refused("run", "--git", "private", "--strict-handoff", "--", "sh", "-c", HIDDEN)
    assert (said.reference, "tool/HEAD" in said.text) == ("handoff-strict", True), said.text
