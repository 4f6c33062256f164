"""What one jail leaves in the worktree opens nothing to the next one. Each case was a hole that a tester found."""

import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from policy.promises import GUARD as GUARDED
from tests.support.git_scene import ok
from tests.support.identity import AS_A_USER
from tests.support.paddock import Paddock, Session
from tests.support.programs.scene import SWITCHES

# A submodule in the old layout, with its git directory inside, that borrows objects from anywhere.
SUBMODULE = """
mkdir -p x/.git/objects/info x/.git/refs
echo x >x/.git/HEAD
echo {target} >x/.git/objects/info/alternates
printf '[submodule "x"]\\n\\tpath = x\\n' >>.gitmodules
"""
# A repository of its own in a directory, which is then "the worktree that holds the current directory".
REPOSITORY = "mkdir src && cd src && git init -q . && echo {target} >.git/objects/info/alternates"


# Without mounts a command can put a repository of its own in the place of the worktree's `.git`. Whatever git writes
# there of a merge would follow its links.
REPLACED = """
set -e
branch=$(git symbolic-ref HEAD); own=$(git rev-parse HEAD); trunk=$(git rev-parse main)
cp "$(git rev-parse --git-dir)/index" "$TMPDIR/index"; cp -r "$(git rev-parse --git-common-dir)/objects" "$TMPDIR"
rm -rf .git; git init -q -b main .; cp "$TMPDIR/index" .git/index; cp -r "$TMPDIR/objects" .git
git update-ref refs/heads/main "$trunk"; git update-ref "$branch" "$own"; git symbolic-ref HEAD "$branch"
git config user.name '$(evil)'; git config user.email a@example.invalid; git config core.logAllRefUpdates always
rm -rf .git/logs; mkdir -p ".git/logs/$(dirname "$branch")"
for log in HEAD "$branch" refs/heads/main; do ln -s "$0" ".git/logs/$log"; done
"""
GUARD = {"PADDOCK_NO_USERNS": "1"}


@pytest.fixture
def secret(paddock: Paddock) -> Path:
    """A file in a directory beside the worktree."""
    directory = paddock.place / "keys"
    directory.mkdir()
    (directory / "id").write_text("KEY\n")
    paddock.who.give(directory)
    return directory / "id"


@AS_A_USER
def test_a_planted_submodule_borrows_nothing(paddock: Paddock, secret: Path) -> None:
    """A git directory that a jail made names its own object stores; none of them is granted to the next run."""
    planted = SUBMODULE.format(target=shlex.quote(str(secret.parent)))
    assert paddock.run("sh", "-c", planted).returncode == 0
    ended = paddock.run("cat", secret)
    assert ended.returncode != 0
    assert "KEY" not in ended.stdout
    assert paddock.run("cat", "file").stdout == "content\n"


@AS_A_USER
def test_a_planted_repository_borrows_nothing(paddock: Paddock, secret: Path) -> None:
    """So does a repository that a jail made below the worktree, when somebody starts the next jail in there."""
    planted = REPOSITORY.format(target=shlex.quote(str(secret.parent)))
    assert paddock.run("sh", "-c", planted).returncode == 0
    ended = paddock.call("run", "--", "cat", str(secret), cwd=paddock.worktree / "src")
    assert "KEY" not in ended.stdout
    assert "which is not granted" in ended.stderr
    words = ("run", "--ro", str(secret.parent), "--", "cat", str(secret))
    assert "[git-dir-written]" in paddock.call(*words, cwd=paddock.worktree / "src").stderr
    assert str(secret.parent) in paddock.call("trust", ".", cwd=paddock.worktree / "src").stdout
    assert paddock.call(*words, cwd=paddock.worktree / "src").stdout == "KEY\n"


@AS_A_USER
def test_a_planted_link_as_the_command_grants_nothing(paddock: Paddock) -> None:
    """A command in the worktree that has become a link to a programme elsewhere is refused; called by name it runs."""
    tools = paddock.place / "tools"
    tools.mkdir()
    (tools / "tool").write_text("#!/bin/sh\necho ran\n")
    (tools / "tool").chmod(0o755)
    paddock.who.give(tools)
    assert paddock.run("ln", "-s", tools / "tool", "tool").returncode == 0
    ended = paddock.run("./tool")
    assert ended.returncode == 126
    assert "[command-leaves-worktree]" in ended.stderr
    assert paddock.run(tools / "tool").stdout == "ran\n"


@AS_A_USER
def test_a_planted_link_in_a_tree_that_was_moved_grants_nothing_to_others(paddock: Paddock) -> None:
    """As the command of another worktree: by its path, or by a link of the user's own on PATH."""
    tools, tree, bin_ = paddock.place / "tools", paddock.place / "tree", paddock.place / "bin"
    for directory in (tools, tree, bin_):
        directory.mkdir()
        paddock.who.give(directory)
    (tools / "tool").write_text("#!/bin/sh\necho ran\n")
    (tools / "tool").chmod(0o755)
    words = ("--directory", "--freeze-root", "--worktree", tree, "--", "ln", "-s", tools / "tool", "tool")
    assert paddock.run(*words).returncode == 0
    moved = tree.rename(paddock.place / "moved")
    (bin_ / "tool").symlink_to(moved / "tool")
    env = {"PATH": f"{bin_}:{paddock.who.path}"}
    for called in ("tool", str(moved / "tool")):
        ended = paddock.run(called, env=env)
        assert (ended.returncode, "[command-leaves-worktree]" in ended.stderr) == (126, True), (called, ended.stderr)
    (bin_ / "tool").unlink()
    (bin_ / "tool").symlink_to(tools / "tool")
    assert paddock.run("tool", env=env).stdout == "ran\n"


@AS_A_USER
@pytest.mark.parametrize("words", [("run", "--", "true"), ("doctor",)], ids=["run", "doctor"])
def test_a_planted_programme_on_path_is_not_run_outside(paddock: Paddock, words: tuple[str, ...]) -> None:
    """What Paddock runs itself comes from the system, though PATH leads into the worktree first."""
    tools = paddock.worktree / "bin"
    script = f'#!/bin/sh\necho "$0" >>{shlex.quote(str(paddock.place / "ran"))}\n'
    plant = 'mkdir bin; for name in git bwrap sleep; do printf %s "$0" >bin/$name; done; chmod +x bin/*'
    ok(paddock.run("sh", "-c", plant, script))
    assert sorted(path.name for path in tools.iterdir()) == ["bwrap", "git", "sleep"]
    shutil.rmtree(paddock.state)  # the private home is made, and the user's name asked for, at the first run only
    ended = paddock.call(*words, env={"PATH": f"{tools}:{paddock.who.path}"})
    assert ended.returncode == 0, ended.stderr
    assert not (paddock.place / "ran").exists()


@AS_A_USER
def test_no_git_of_paddocks_works_in_a_repository_that_has_replaced_the_pointer(paddock: Paddock) -> None:
    """The session is over, and could not commit; merges into the worktree and later sessions in it are refused."""
    told = paddock.place / "told"
    told.write_text("# mine\n")
    paddock.who.give(told)
    commit = 'git commit -q --allow-empty -m "main: More."; git symbolic-ref --short HEAD'
    trunk = ok(paddock.who.run(["sh", "-c", commit], cwd=paddock.main)).strip()
    branch = ok(paddock.who.run(["git", "symbolic-ref", "--short", "HEAD"], cwd=paddock.worktree)).strip()
    assert trunk == "main"
    ended = paddock.run("sh", "-c", REPLACED, told, env=GUARD)
    assert ended.returncode == 0, ended.stderr
    assert (paddock.worktree / ".git/logs/HEAD").is_symlink()
    said = {}
    for words, cwd in (
        (("merge", "main"), paddock.worktree),
        (("merge", "--into", paddock.worktree, "main"), paddock.main),
        (("merge", "--into", branch, "main"), paddock.main),
        (("worktree", "add", "more"), paddock.worktree),
        (("run", "--", "sh", "-c", "git commit -q --allow-empty -m more"), paddock.worktree),
    ):
        refused = paddock.call(*words, cwd=cwd)
        said[words[:3]] = (refused.returncode, "[git-dir-written]" in refused.stderr, told.read_text())
    assert said == dict.fromkeys(said, (125, True, "# mine\n"))


@AS_A_USER
def test_no_git_of_paddocks_works_there_while_the_session_lives(paddock: Paddock) -> None:
    """In a worktree that Paddock made, whose `.git` leads to the private git directory meanwhile, and is put back."""
    told = paddock.place / "told"
    told.write_text("# mine\n")
    paddock.who.give(told)
    ok(paddock.call("worktree", "add", "--path", paddock.place / "t", "t", cwd=paddock.main, env=GUARD))
    ok(paddock.who.run(["git", "commit", "-q", "--allow-empty", "-m", "main: More."], cwd=paddock.main))
    here = replace(paddock, worktree=paddock.place / "t")
    with Session(here, GUARD, ("sh", "-c", f"{REPLACED}\necho ready; kill -STOP $$; exec cat", told)) as session:
        said = {}
        for words, cwd in (
            (("merge", "--into", "t", "main"), paddock.main),
            (("merge", "main"), here.worktree),
            (("worktree", "add", "more"), here.worktree),
        ):
            refused = paddock.call(*words, cwd=cwd, env=GUARD)
            said[words] = (refused.returncode, "[git-dir-written]" in refused.stderr, told.read_text())
        session.kill()
    assert said == dict.fromkeys(said, (125, True, "# mine\n"))
    assert "a repository that was moved aside" in paddock.call("worktree", "status", "t", cwd=paddock.main).stdout
    assert (here.worktree / ".git").is_file()
    ok(here.run("true", env=GUARD))
    merged = paddock.call("merge", "--into", "t", "main", cwd=paddock.main)
    assert (merged.returncode, told.read_text()) == (0, "# mine\n"), merged.stderr


@AS_A_USER
def test_a_common_directory_with_a_nul_in_its_name_is_refused_as_any_other(paddock: Paddock) -> None:
    """Whoever looks at it first; the commands go on in the worktree around it."""
    make = "mkdir -p x/.git/objects x/.git/refs; echo ref: refs/heads/m >x/.git/HEAD; "
    ok(paddock.run("sh", "-c", f"{make} printf 'a\\0b\\n' >x/.git/commondir"))
    assert (paddock.worktree / "x/.git/commondir").read_bytes() == b"a\0b\n"
    for words in (("worktree", "add", "more"), ("worktree", "status"), ("worktree", "list"), ("prune",)):
        ended = paddock.call(*words, cwd=paddock.worktree / "x")
        assert "[internal-error]" not in ended.stderr, ended.stderr
        ok(paddock.call(*words))
    assert "[git-dir-written]" in paddock.call("worktree", "add", "again", cwd=paddock.worktree / "x").stderr


# A repository that its merges follow links out of, with a branch to merge; $0 is what they lead to.
LEADING_OUT = """
set -e
mkdir -p "$1"; cd "$1"; git init -q -b main .
git config user.name '$(evil)'; git config user.email a@example.invalid
git commit -q --allow-empty -m One; git checkout -q -b two; git commit -q --allow-empty -m Two; git checkout -q main
git config core.logAllRefUpdates always; git config core.worktree "$2"
rm -rf .git/logs; mkdir -p .git/logs/refs/heads; for log in HEAD refs/heads/main; do ln -s "$0" .git/logs/$log; done
"""
# One whose objects are those of the directory $0: whoever borrows them reads it.
OF_KEYS = """
set -e
mkdir -p "$1/refs" "$2"; echo ref: refs/heads/m >"$1/HEAD"; ln -s "$0" "$1/objects"
printf '[core]\\n\\trepositoryformatversion = 0\\n\\tworktree = %s\\n' "$2" >"$1/config"
"""


@pytest.fixture
def told(paddock: Paddock) -> Path:
    """A file of the user's that git of his must not write."""
    path = paddock.place / "told"
    path.write_text("# mine\n")
    paddock.who.give(path)
    return path


def _merge(paddock: Paddock, cwd: Path, told: Path) -> tuple[int, str, str]:
    """What it ends with: the status, the reference, and what is in the file then."""
    ended = paddock.call("merge", "two", cwd=cwd)
    return ended.returncode, ended.stderr.partition("[")[2].partition("]")[0], told.read_text()


REFUSED = (125, "git-dir-written", "# mine\n")


@AS_A_USER
def test_a_repository_in_the_private_home_is_no_users(paddock: Paddock, told: Path) -> None:
    """Its path is no secret, so a `.git` in the worktree can lead there. The user's own, so called, is merged into."""
    env, switches = SWITCHES[GUARDED]
    ok(paddock.run(*switches, "--", "true", env=env))
    (home,) = paddock.state.glob("worktrees/*/home")
    line = f'{LEADING_OUT}\nmkdir -p "$2"; echo "gitdir: $3/.git" >"$2/.git"'
    x, own = paddock.worktree / "x", paddock.place / "own"
    words = ("sh", "-c", 'exec sh -c "$1" "$2" "$HOME/r" "$3" "$4"', "sh", line, told, x, home / "r")
    ok(paddock.run(*switches, "--", *words, env=env))
    assert (home / "r/.git/logs/HEAD").is_symlink()
    assert _merge(paddock, x, told) == REFUSED
    said = paddock.refused("trust", x, cwd=paddock.main)
    assert (said.reference, "paddock trust" in said.text) == ("git-dir-written", False)
    line = (f"git clone -q --separate-git-dir {own}/r {home}/r {own}/x; cd {own}/x; git branch two origin/two; "
            "git config core.worktree $PWD; git config user.name V; git config user.email v@e.invalid")  # fmt: skip
    ok(paddock.who.run(["sh", "-euc", line], cwd=paddock.place))
    ok(paddock.call("merge", "two", cwd=own / "x"))


@AS_A_USER
@pytest.mark.parametrize("lies", ["in the worktree", "in the private home"])
def test_the_objects_of_a_planted_repository_open_nothing(paddock: Paddock, secret: Path, lies: str) -> None:
    """Where they are a link, whatever the next session may do with git."""
    src = paddock.worktree / "src"
    line = f'{OF_KEYS}\n[ "$1" = "$2/.git" ] || echo "gitdir: $1" >"$2/.git"'
    where = f"{src}/.git" if lies == "in the worktree" else "$HOME/r"
    ok(paddock.run("sh", "-c", f'mkdir src; exec sh -c "$1" "$2" "{where}" "$3"', "sh", line, secret.parent, src))
    for options in ((), ("--git", "private"), ("--review",), ("--git", "readonly")):
        ended = paddock.call("run", *options, "--", "cat", secret, cwd=src)
        assert (ended.stdout, ended.returncode != 0) == ("", True), options
    assert ok(paddock.call("run", "--ro", secret, "--", "cat", secret)) == "KEY\n"


@AS_A_USER
def test_a_worktree_that_was_moved_is_an_agents(paddock: Paddock, told: Path, secret: Path) -> None:
    """Before Paddock knows of it and after, and whatever sessions come then; the worktree itself goes on working.

    Without mounts, where its `.git` is exchanged besides; whose a tree is, records say for every backend.
    """
    env, switches = SWITCHES[GUARDED]
    place, there, other = (paddock.place / name for name in ("t", "there", "b"))
    for path in (place, other):
        ok(paddock.call("worktree", "add", "--path", path, path.name, cwd=paddock.main))
    git_dir = ok(paddock.who.run(["git", "rev-parse", "--git-dir"], cwd=other)).strip()
    here = replace(paddock, worktree=place)
    planted = f'mkdir moved; echo gitdir: {git_dir} >moved/.git; ln -s "$0" keys\n{OF_KEYS}'
    ok(here.run(*switches, "--", "sh", "-c", LEADING_OUT, told, "x", there / "x", env=env))
    ok(here.run(*switches, "--", "sh", "-c", planted, secret.parent, "src/.git", "src", env=env))
    place.rename(there)
    here = replace(paddock, worktree=there)
    assert _merge(paddock, there / "x", told) == REFUSED
    ok(paddock.call("worktree", "repair", there, cwd=paddock.main))
    ok(here.run(*switches, "--", "sh", "-c", "git log >log && test -s log", env=env))
    assert _merge(paddock, there / "x", told) == REFUSED
    ended = paddock.call("run", *switches, "--", "cat", secret, cwd=there / "src", env=env)
    assert (ended.stdout, ended.returncode) == ("", 125), ended
    said = paddock.refused("run", *switches, "--ro", there / "keys", "--", "true", env=env)
    assert said.reference == "grant-leaves-written-tree"
    other.rename(paddock.place / "away")
    assert paddock.refused("worktree", "repair", there / "moved", cwd=paddock.main).reference == "worktree-moved"
    ok(paddock.call("worktree", "repair", paddock.place / "away", cwd=paddock.main))


@AS_A_USER
def test_a_repository_kept_when_its_worktree_was_removed_is_an_agents(paddock: Paddock, told: Path) -> None:
    """It is moved into the git directory, where sessions can read its name. The user may accept it."""
    backup = paddock.main / ".git/paddock-backup/x-1/docked-1"
    x = paddock.worktree / "x"
    ok(paddock.run("sh", "-c", LEADING_OUT, told, "r", x))
    backup.parent.mkdir(parents=True)
    (paddock.worktree / "r/.git").rename(backup)
    paddock.who.give(backup.parent.parent)
    ok(paddock.run("sh", "-c", f"mkdir x; echo gitdir: {backup} >x/.git"))
    assert _merge(paddock, x, told) == REFUSED
    shutil.rmtree(backup / "logs")
    ok(paddock.call("trust", x, cwd=paddock.main))
    ok(paddock.call("merge", "two", cwd=x))
    assert told.read_text() == "# mine\n"
