"""Where an index names a submodule that is not populated, git outside finds nothing that a command has put there."""

import os
import shlex
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.features import need
from tests.support.git_scene import ok
from tests.support.identity import AS_A_USER
from tests.support.paddock import Paddock, Session

_PLANT = """
set -e
git init -q "$0"; cd "$0"
git config core.fsmonitor 'touch {ran}; false'
git config user.name A; git config user.email a@example.invalid
echo more >more; git add more 2>/dev/null; git commit -q -m 'agent: Planted.' 2>/dev/null
"""


_OLD_LAYOUT = """
set -e
git init -q sub; cd sub
git config user.name A; git config user.email a@example.invalid
echo '* filter=planted' >.gitattributes; echo one >file
git add . ; git commit -qm 'agent: Planted.'; echo two >file
mkfifo flips; git config include.path ../flips
cd ..; printf '[submodule "sub"]\\n\\tpath = sub\\n' >.gitmodules
"""


@contextmanager
def answered(fifo: Path, harmless: str, evil: str) -> Iterator[list[str]]:
    """Plays the agent who exchanges a file of configuration: git that lists it reads `harmless`, git at work `evil`.

    Gives the command lines of those who have read.
    """
    readers: list[str] = []
    over = threading.Event()

    def serve() -> None:
        while True:
            with open(fifo, "w") as file:
                if over.is_set():
                    return
                words = next(filter(None, map(_reading, os.listdir("/proc"))), "")
                readers.append(words)
                file.write(harmless if "--list" in words else evil)

    def _reading(pid: str) -> str:
        try:
            opened = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
            words = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        except OSError:
            return ""
        return words if str(fifo) in opened and "git" in words.partition(" ")[0] else ""

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield readers
    finally:
        over.set()
        with open(fifo):
            thread.join()


def test_no_git_outside_obeys_a_submodule_that_an_agent_made(user_paddock: Paddock) -> None:
    """Its git directory lies in the tree: adopting leaves it alone, and so does whatever looks at the worktree later.

    Checking its configuration first would not do, for it can be another one when git reads it.
    """
    here, ran = user_paddock, user_paddock.place / "ran"
    ended = here.run("--git", "private", "--", "sh", "-c", _OLD_LAYOUT)
    assert ended.returncode == 0, ended.stderr
    evil = f'[filter "planted"]\n\tclean = touch {ran}; cat\n'
    with answered(here.worktree / "sub/flips", "", evil) as readers:
        adopted = here.call("worktree", "adopt", ".")
        status = here.call("worktree", "status", here.worktree.name)
    assert not ran.exists()
    assert readers == []
    assert adopted.returncode == 0, adopted.stderr
    assert "sub contains its own git directory" in adopted.stderr
    assert "sub" in status.stdout  # what lies there is told as work that could be lost


@pytest.fixture
def here(with_submodule: Paddock) -> Paddock:
    """The command in a linked worktree whose submodule `library` is not populated."""
    outside(with_submodule, "submodule", "--quiet", "deinit", "--force", "library")
    return with_submodule


def outside(here: Paddock, *words: str) -> str:
    """What git says that the user runs in the worktree."""
    return ok(here.who.run(["git", "-c", "protocol.file.allow=always", *words], cwd=here.worktree))


def opened(here: Paddock, mode: str) -> tuple[Paddock, dict[str, str]]:
    """A worktree in which a command can make a repository in the submodule's place, and the environment for that."""
    env = {}
    if mode == "guard":  # which has private git directories in worktrees of Paddock's alone
        env = {"PADDOCK_NO_USERNS": "1"}
        ok(here.call("worktree", "add", "--no-submodules", "--path", here.place / "t", "t", env=env, cwd=here.main))
        return replace(here, worktree=here.place / "t"), env
    (here.worktree / "library").rmdir()
    return here, env


@AS_A_USER
@pytest.mark.parametrize(("mode", "backend"), [("private", "landlock"), ("readonly", "bubblewrap")])
def test_nothing_is_made_where_a_submodule_is_not_populated(here: Paddock, mode: str, backend: str) -> None:
    """Not while the session lives either; beside it everything can be written."""
    need(backend)
    ended = here.run("--git", mode, "--backend", backend, "--", "sh", "-c", "mkdir beside; git init -q library")
    assert ended.returncode != 0
    assert "Read-only file system" in ended.stderr
    assert (here.worktree / "beside").is_dir()
    assert list((here.worktree / "library").iterdir()) == []
    said = here.call("why", "library/.git", "--git", mode, "--backend", backend)
    for part in ("read, execute\n", f"{here.worktree}/library: unpopulated submodule", "submodule update --init"):
        assert part in said.stdout
    hint = said.stdout.partition("populate it outside: ")[2].partition(";")[0]
    outside(here, "-c", "protocol.file.allow=always", *shlex.split(hint)[1:])
    written = here.run("--git", mode, "--backend", backend, "--", "sh", "-c", "echo x >library/made")
    assert written.returncode == 0, written.stderr


@AS_A_USER
@pytest.mark.parametrize(
    ("mode", "form"),
    [("private", "directory"), ("readonly", "pointer"), ("guard", "directory")],
)
def test_git_status_outside_obeys_nothing(here: Paddock, mode: str, form: str) -> None:
    """Where nothing was to be made read-only, what was made is put aside; without that git runs what it says."""
    here, env = opened(here, mode)
    ran = here.worktree / "ran"
    plant = _PLANT.format(ran=ran)
    if form == "pointer":
        plant += "mv .git ../git-of-mine; echo 'gitdir: ../git-of-mine' >.git"
    options = () if mode == "guard" else ("--git", mode)
    ended = here.run(*options, "--", "sh", "-c", plant, "library", env=env)
    assert ended.returncode == 0, ended.stderr
    line = next(line for line in ended.stderr.splitlines() if "library/.git was written by the command" in line)
    aside = Path(line.rpartition(" it was moved to ")[2])
    assert aside.exists()
    assert not (here.worktree / "library/.git").exists()
    ran.unlink(missing_ok=True)  # by git in the jail
    outside(here, "status")
    assert not ran.exists()
    shutil.move(aside, here.worktree / "library/.git")
    here.who.run(["git", "status"], cwd=here.worktree)
    assert ran.exists()


@AS_A_USER
@pytest.mark.parametrize(
    ("mode", "then"),
    [("private", "run"), ("readonly", "other"), ("guard-readonly", "worktree")],
)
def test_what_a_killed_session_leaves_is_put_aside_by_the_next_command(here: Paddock, mode: str, then: str) -> None:
    """Nobody else could tell it from the user's own; the one that lives is not looked at by others."""
    git = () if mode == "guard" else ("--git", "readonly" if "readonly" in mode else "private")
    here, env = opened(here, "guard" if "guard" in mode else mode)
    ran = here.worktree / "ran"
    words = {"run": ("run", *git, "--", "true"), "worktree": ("worktree", "repair")}
    plant = f"({_PLANT.format(ran=ran)}\n) >&2; echo ready; exec cat"
    with Session(here, env, ("sh", "-c", plant, "library"), git) as session:
        where = here.worktree
        if then == "other":  # a session in another worktree, whose end sweeps
            where = here.main
            words["other"] = ("run", "--", "true")
        ok(here.call(*words[then], cwd=here.main if then == "run" else where))
        assert (here.worktree / "library/.git").is_dir()
        session.kill()
        ended = here.call(*words[then], env=env, cwd=where)
    assert ended.returncode == 0, ended.stderr
    said = ended.stderr + ended.stdout
    line = next(line for line in said.splitlines() if "library/.git was written by the command" in line)
    aside = Path(line.rpartition(" it was moved to ")[2])
    assert aside.is_dir()
    assert not (here.worktree / "library/.git").exists()
    ran.unlink(missing_ok=True)
    outside(here, "status")
    assert not ran.exists()
    shutil.rmtree(here.worktree / "library")
    outside(here, "submodule", "--quiet", "update", "--init")  # what comes there later is the user's
    assert "was written by the command" not in here.call(*words["run"], env=env, cwd=where).stderr
    assert (here.worktree / "library/library.py").exists()


@AS_A_USER
@pytest.mark.parametrize("where", ["library", "deep/renamed"])
def test_what_the_user_populates_meanwhile_stays(here: Paddock, where: str) -> None:
    """`git submodule update` outside, while a session lives: what leads to that submodule's store is not touched."""
    if where != "library":  # the name, and with it the store, stay
        ok(here.who.run(["mkdir", "deep"], cwd=here.worktree))
        outside(here, "mv", "library", where)
        outside(here, "commit", "-qm", "one: Renamed.")
    with Session(here):
        outside(here, "submodule", "--quiet", "update", "--init")
    assert (here.worktree / where / "library.py").exists()
    assert outside(here, "submodule", "status").startswith(" ")


@AS_A_USER
@pytest.mark.parametrize("whose", ["another worktree's", "its own"])
def test_a_pointer_to_another_submodules_store_is_put_aside(with_submodule: Paddock, whose: str) -> None:
    """`git submodule update` there would check the agent's commit out in the other submodule."""
    here = with_submodule
    git_dirs = {"its own": here.worktree / "library", "another worktree's": here.main / "library"}
    outside(replace(here, worktree=here.main), "submodule", "--quiet", "update", "--init")
    store = ok(here.who.run(["git", "rev-parse", "--absolute-git-dir"], cwd=git_dirs[whose])).strip()
    ended = here.run("--", "sh", "-c", _POINTED, store)
    assert ended.returncode == 0, ended.stderr
    assert "160000" in outside(here, "ls-files", "--stage", "new")
    assert "new/.git was written by the command" in ended.stderr
    assert list((here.worktree / "new").iterdir()) == []
    assert outside(here, "submodule", "status", "library").startswith(" ")


@AS_A_USER
@pytest.mark.parametrize("mode", ["private", "readonly"])
def test_a_repository_that_the_user_has_put_there_stays(here: Paddock, mode: str) -> None:
    """One that no `.gitmodules` names: its files are the command's to write, what git obeys in it is not."""
    plant = _PLANT.format(ran=here.worktree / "ran")
    ok(here.who.run(["sh", "-c", f"rmdir library; git rm -q --cached .gitmodules library; rm .gitmodules; "
                     f"(\n{plant}\ngit config --unset core.fsmonitor\n); git add own",
                     "own"], cwd=here.worktree))  # fmt: skip
    ended = here.run("--git", mode, "--", "sh", "-c", "echo x >own/made; echo '[x]' >>own/.git/config")
    assert "Read-only file system" in ended.stderr, ended.stderr
    assert (here.worktree / "own/made").exists()
    assert (here.worktree / "own/.git/HEAD").exists()


@AS_A_USER
def test_a_submodule_that_is_added_as_a_repository_is_put_aside_before_it_is_taken_over(here: Paddock) -> None:
    """With the harvest the user's index names it, so git outside would look there from then on."""
    ran = here.worktree / "ran"
    script = (
        "set -e; d=$(git rev-parse --absolute-git-dir); git init -q again; "
        'git -C again fetch -q "$d/modules/library" HEAD 2>/dev/null || git -C again fetch -q "$1" HEAD; '
        "git -C again checkout -q FETCH_HEAD; "
        f"git -C again config core.fsmonitor 'touch {ran}; false'; "
        "git add again 2>/dev/null; git commit -q -m 'agent: Again.'"
    )
    outside(here, "submodule", "--quiet", "update", "--init")
    ended = here.run("--ro", here.place / "upstream", "--", "sh", "-c", script, "sh", str(here.place / "upstream"))
    assert "1 commit harvested" in ended.stderr, ended.stderr
    assert "again/.git was written by the command" in ended.stderr
    ran.unlink(missing_ok=True)
    outside(here, "status")
    assert not ran.exists()


@pytest.mark.parametrize("kind", ["fifo", "endless"])
@pytest.mark.parametrize("names", [("x/.git/index", "y/.git/HEAD", "z/.git/config", "own/.git"), (".gitmodules",)])
def test_what_an_agent_puts_for_a_file_stops_no_later_launch(
    user_paddock: Paddock, names: tuple[str, ...], kind: str
) -> None:
    """A FIFO that nobody writes, and a file without end: neither waited for, nor read."""
    here = user_paddock
    layouts = [_OLD_LAYOUT.replace("-q sub; cd sub", f"-q {sub}; cd {sub}").replace('"sub"', f'"{sub}"')
               .replace("= sub", f"= {sub}").replace(">.gitmodules", ">>.gitmodules") for sub in "xyz"]  # fmt: skip
    make = "mkfifo {0}" if kind == "fifo" else "ln -s /dev/zero {0}"
    plant = "\n".join([*layouts, "mkdir own", *(f"rm -f {name}; {make.format(name)}" for name in names)])
    env = {"PADDOCK_NO_USERNS": "1"}
    planted = here.run("--git", "readonly", "--", "sh", "-c", plant, env=env)
    assert planted.returncode == 0, planted.stderr
    assert all((here.worktree / name).is_symlink() or (here.worktree / name).is_fifo() for name in names)
    for words in (("run", "--", "echo", "went on"), ("explain", "--", "echo", "went on"), ("worktree", "list")):
        ended = here.call(*words)
        assert "Traceback" not in ended.stderr
        assert ended.returncode == 0, ended.stderr


_POINTED = """
set -e
commit=$(git rev-parse :library); git update-index --add --cacheinfo 160000,$commit,new
git config -f .gitmodules submodule.new.path new; git config -f .gitmodules submodule.new.url ./new
git add .gitmodules; git commit -qm 'agent: One more.'
mkdir new; echo "gitdir: $0" >new/.git
"""
_COMPLETED = """
set -e
rm -rf led; mkdir -p "$(dirname "$0")"
git init -q made; git -C made config user.name A; git -C made config user.email a@example.invalid
git -C made commit -q --allow-empty -m 'agent: Planted.'; git -C made config core.fsmonitor "touch $1; false"
mv made/.git "$0"
"""


@AS_A_USER
@pytest.mark.parametrize("way", ["later", "led/modules/library"])
def test_a_pointer_that_an_agent_made_is_not_completed_later(with_submodule: Paddock, way: str) -> None:
    """By a session elsewhere, which makes what it names, or turns the link on its way: it was put aside before."""
    here = with_submodule
    ok(here.call("worktree", "add", "--no-submodules", "--path", here.place / "u", "u", cwd=here.main))
    other = replace(here, worktree=here.place / "u")
    (other.worktree / "led").symlink_to(here.main / ".git")
    named, ran = other.worktree / way, other.worktree / "ran"
    ended = here.run("--", "sh", "-c", _POINTED, named)
    assert ended.returncode == 0, ended.stderr
    assert "160000" in outside(here, "ls-files", "--stage", "new")
    assert "new/.git was written by the command" in ended.stderr
    assert list((here.worktree / "new").iterdir()) == []
    completed = other.run("--", "sh", "-c", _COMPLETED, named, ran)
    assert completed.returncode == 0, completed.stderr
    ran.unlink(missing_ok=True)  # by git in the jail
    outside(here, "status")
    assert not ran.exists()


_NAMED = """
set -e
commit=$(git rev-parse HEAD:library); export GIT_INDEX_FILE=$PWD/index
git read-tree HEAD; git cat-file blob HEAD:.gitmodules >modules
git config -f modules submodule.new.path new; git config -f modules submodule.new.url "$0"
git update-index --add --cacheinfo 160000,$commit,new
git update-index --cacheinfo 100644,$(git hash-object -w modules),.gitmodules
git update-ref refs/heads/more $(git commit-tree -p HEAD -m 'main: New.' $(git write-tree)); rm index modules
"""


@AS_A_USER
@pytest.mark.parametrize("whose", ["worktree", "main"])
def test_no_merge_puts_a_submodule_where_an_agents_repository_is(with_submodule: Paddock, whose: str) -> None:
    """It is named, and nothing has moved; without it, or with the true submodule there, the merge goes on."""
    main = with_submodule.main
    ok(with_submodule.who.run(["sh", "-c", _NAMED, with_submodule.place / "upstream"], cwd=main))
    here = with_submodule if whose == "worktree" else replace(with_submodule, worktree=main)
    words = ("merge", *(("--into", here.worktree) if whose == "worktree" else ()), "more")
    ran = here.worktree / "ran"
    ended = here.run("--", "sh", "-c", _PLANT.format(ran=ran), "new")
    assert ended.returncode == 0, ended.stderr
    ran.unlink(missing_ok=True)  # by git in the jail
    refused = here.call(*words, cwd=main)
    assert (refused.returncode, "[submodule-planted]" in refused.stderr) == (125, True), refused.stderr
    assert f"rm -rf {here.worktree}/new/.git; paddock trust {here.worktree}/new/.git shows" in refused.stderr
    assert outside(here, "ls-files", "--stage", "new") == ""
    outside(here, "status")
    assert not ran.exists()
    shutil.move(here.worktree / "new/.git", here.place / "planted")
    merged = ok(here.call(*words, cwd=main))
    assert "160000" in outside(here, "ls-files", "--stage", "new")
    ok(here.call("merge", "--rollback", merged.rpartition("--rollback ")[2].split()[0], cwd=main))
    shutil.rmtree(here.worktree / "new")
    outside(here, "submodule", "--quiet", "add", str(here.place / "upstream"), "new")
    outside(here, "reset", "-q", "--hard")
    assert (here.worktree / "new/.git").is_file()
    ok(here.call(*words, cwd=main))
    outside(here, "status")


@AS_A_USER
def test_no_harvest_puts_a_submodule_where_an_agents_repository_is(with_submodule: Paddock) -> None:
    """A branch of the user's names it, of which the agent has made one that the checkout follows; it was killed."""
    here = with_submodule
    ok(here.who.run(["sh", "-c", _NAMED, here.place / "upstream"], cwd=here.main))
    ran = here.worktree / "ran"
    plant = f"git switch -q -c less more; ({_PLANT.format(ran=ran)}) >&2; echo ready; exec cat"
    with Session(here, {}, ("sh", "-c", plant, "new")) as session:
        session.kill()
    harvested = ok(here.call("worktree", "harvest"))
    assert "the worktree is on less now" in harvested
    assert "new/.git was written by the command" in harvested
    assert "160000" in outside(here, "ls-files", "--stage", "new")
    ran.unlink(missing_ok=True)  # by git in the jail
    outside(here, "status")
    assert not ran.exists()
    assert (here.worktree / "new/more").exists()


_IDENTITY = "export GIT_AUTHOR_NAME=A GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=A GIT_COMMITTER_EMAIL=a@b\n"
_PLACES = ("held", "deep/er", "absent")
_VENDORED = f"""{_IDENTITY}
set -e
git init -q vendor; cd vendor; git commit -q --allow-empty -m 'vendor: One.'
for at in {" ".join(_PLACES)}; do git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),$at; done
mkdir -p held deep/er; git commit -q -m 'vendor: Submodules.'
"""
_PLANT_IN_EACH = f"""{_IDENTITY}
top=$PWD
for at in {" ".join(_PLACES)}; do
    mkdir -p $at
    (cd $at && git init -q . && git commit -q --allow-empty -m x && git config core.fsmonitor "touch $0; :")
done
mv deep away && mkdir -p deep/er && mv away/er/.git deep/er
echo x >beside; echo x >deep/beside
"""
_BACKENDS = {"namespaces": {}, "guard": {"PADDOCK_NO_USERNS": "1"}, "bubblewrap": {"PADDOCK_NO_LANDLOCK": "1"}}


def _planted_and_entered(here: Paddock, vendor: Path, backend: str, *options: str | Path) -> None:
    """Has a session plant a repository in each place; the user's git in `vendor` executes nothing of it."""
    need("bubblewrap" if backend == "bubblewrap" else "landlock")
    ran = here.place / "ran"
    plant = f"cd {vendor}; {_PLANT_IN_EACH}"
    ended = here.run(*options, "--", "sh", "-c", plant, ran, env=_BACKENDS[backend])
    assert (ended.returncode, (vendor / "deep/beside").exists()) == (0, True), ended.stderr
    ran.unlink(missing_ok=True)  # by git in the jail
    ok(here.who.run(["git", "status"], cwd=vendor))
    assert not ran.exists()
    assert [at for at in _PLACES if (vendor / at / ".git").exists()] == []
    assert f"{vendor}/absent/.git was written by the command" in ended.stderr
    ok(here.who.run(["sh", "-c", _PLANT_IN_EACH, ran], cwd=vendor))  # the twin: planted outside, git obeys it
    ok(here.who.run(["git", "status"], cwd=vendor))
    assert ran.exists()


@AS_A_USER
@pytest.mark.parametrize("backend", _BACKENDS)
def test_nothing_is_planted_in_another_repository_of_the_users(paddock: Paddock, backend: str) -> None:
    """His git enters the submodules that its index names as it does those of the worktree's own."""
    ok(paddock.who.run(["sh", "-c", _VENDORED], cwd=paddock.worktree))
    _planted_and_entered(paddock, paddock.worktree / "vendor", backend)


def test_nothing_is_planted_in_a_repository_that_is_trusted(user_paddock: Paddock) -> None:
    """An agent made it; which submodules it names is shown."""
    ok(user_paddock.run("--", "sh", "-c", _VENDORED))
    shown = ok(user_paddock.call("trust", "vendor"))
    assert all(f"    {at}: a submodule, which git enters\n" in shown for at in _PLACES), shown
    _planted_and_entered(user_paddock, user_paddock.worktree / "vendor", "namespaces")


def test_nothing_is_planted_around_a_granted_directory(user_paddock: Paddock) -> None:
    """A repository of the user's in which only a part is granted; where that is the place itself, it is put aside."""
    here, vendor, ran = user_paddock, user_paddock.place / "vendor", user_paddock.place / "ran"
    ok(here.who.run(["sh", "-c", _VENDORED], cwd=here.place))
    options = ("--rw", vendor / "held", "--rw", vendor / "deep")
    ended = here.run(*options, "--", "sh", "-c", f"cd {vendor}; {_PLANT_IN_EACH}", ran)
    assert (vendor / "deep/beside").exists()
    assert f"{vendor}/held/.git was written by the command" in ended.stderr
    assert [at for at in _PLACES if (vendor / at / ".git").exists()] == []
    ran.unlink(missing_ok=True)
    ok(here.who.run(["git", "status"], cwd=vendor))
    assert not ran.exists()
