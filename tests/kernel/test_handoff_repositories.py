"""Ways to have the user's git execute something in a worktree later, as an attacker tried them: each is told."""

import json
from pathlib import Path

import pytest

from launcher.session import handoff
from tests.support import paddock as paddocks
from tests.support.features import need
from tests.support.identity import Who
from tests.support.install import Installed
from tests.support.paddock import Paddock
from tests.support.session import Session

MONITOR = '[core]\\nfsmonitor="touch pwned;false"\\n'
SPLIT = (
    "mkdir -p t td/objects td/refs; echo ref: refs/heads/x >t/HEAD; echo ../td >t/commondir; "
    f"printf '{MONITOR}' >td/config"
)
EXISTING = "git init -q own && echo exit >own/.git/hooks/pre-commit && git init -q --bare bare.git && git init -q m/s"
HIDDEN = (
    "o=$(echo x | git hash-object -w --stdin); for p in HEAD config objects/k refs/k; do "
    "GIT_INDEX_FILE=i git update-index --add --cacheinfo 100644,$o,tool/$p; done; "
    "c=$(git commit-tree -p HEAD -m x $(GIT_INDEX_FILE=i git write-tree)); git update-ref refs/heads/one $c; rm i"
)


@pytest.fixture
def here(user: Who, installed: Installed, public_dir: Path) -> Paddock:
    """A linked worktree of an ordinary user, with repositories of his own in it."""
    need("landlock")
    need("userns")
    place = public_dir / "place-of-user"
    place.mkdir()
    made = paddocks.make(user, installed, user.give(place))
    ended = user.run(["sh", "-c", EXISTING], cwd=made.worktree)
    assert ended.returncode == 0, ended.stderr
    return made


@pytest.mark.parametrize(
    ("made", "named"),
    [
        ("echo evil >own/.git/hooks/pre-commit", "own/.git"),
        (f"printf '{MONITOR}' >>own/.git/config", "own/.git"),
        ("echo '* filter=x' >own/.git/info/attributes", "own/.git"),
        (f"mkdir -p own/.git/modules/a/b && printf '{MONITOR}' >own/.git/modules/a/b/config", "own/.git"),
        (f"printf '{MONITOR}' >>bare.git/config", "bare.git"),
        ("echo evil >bare.git/hooks/post-update", "bare.git"),
        (SPLIT, "t"),
        ("git init -q dd; chmod 311 dd", "dd"),
    ],
)
def test_what_git_would_obey_is_told(here: Paddock, made: str, named: str) -> None:
    """In repositories that were there before, in ones with their parts elsewhere, and behind closed doors."""
    said = here.refused("run", "--git", "readonly", "--strict-handoff", "--", "sh", "-c", made)
    assert (said.reference, f"created {named}\n" in said.text + "\n") == ("handoff-strict", True), said.text


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
    for number in range(handoff.MOST_ENTRIES + 1):
        (here.worktree / f".fleet/{number}").touch()
    here.who.give(here.worktree)
    # The guard, because nothing mounts it read-only there.
    env = {"PADDOCK_NO_USERNS": "1"}
    said = here.refused("run", "--git", "readonly", "--strict-handoff", "--", "sh", "-c", made, env=env)
    told = [line.split()[-1] for line in said.text.splitlines() if "changed " in line]
    assert told == ["shared/settings", ".fleet/9", "a/.envrc", "a/b/.vscode/tasks.json", "d/.vscode"], said.text
    assert here.run("--git", "readonly", "--strict-handoff", "--", "true").returncode == 0


def test_what_nobody_has_searched_for_is_told_by_the_next_session(here: Paddock) -> None:
    """After a session whose launcher was killed; once, and not what was there before it."""
    with Session(here, command=("sh", "-c", "git init -q a/b; echo ready; exec cat")) as session:
        session.kill()
    report = here.place / "report.json"
    for told in (["a/b/.git"], []):
        assert here.run("--git", "readonly", "--report", str(report), "--", "true").returncode == 0
        assert [each["path"] for each in json.loads(report.read_text())["handoff"]] == told


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


def test_reading_them_is_nothing_to_tell(here: Paddock) -> None:
    """The same repositories, looked at only, and files beside them."""
    line = "git -C own log --oneline --all; cat own/.git/config bare.git/config; echo x >m/s/file; mkdir HEADS"
    ended = here.run("--git", "readonly", "--strict-handoff", "--", "sh", "-c", line)
    assert ended.returncode == 0, ended.stderr


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
