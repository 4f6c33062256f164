"""What a warm launch imports: every import counts in milliseconds, before every command of every agent."""

import sys
from pathlib import Path

import pytest

from tests.support import repository
from tests.support.features import need
from tests.support.identity import Who
from tests.support.install import Installed
from tests.support.repository import Repo

COSTLY = {
    "argparse",
    "asyncio",
    "collections",
    "contextlib",
    "dataclasses",
    "enum",
    "functools",
    "git",
    "importlib.metadata",
    "inspect",
    "json",
    "logging",
    "pathlib",
    "pydantic",
    "re",
    "rich",
    "shutil",
    "signal",
    "site",
    "socket",
    "subprocess",
    "tempfile",
    "threading",
    "tomllib",
    "typer",
    "typing",
}

# Runs the real script's Python part with every import reported to a file in the worktree: that stays writable when
# inherited descriptors are closed and Landlock stands, so imports after the fork are seen as well. On a busy machine a
# command lasts so long that it is watched, and its worktree searched: that is put off.
PROBE = """
import posix, sys
put_off = {{"launcher.session.handoff_changes": "LASTING", "launcher.session.generous": "FIRST_LOOK"}}
def report(event, arguments):
    for module in put_off.keys() & sys.modules.keys():
        setattr(sys.modules[module], put_off[module], 60.0)
    name = arguments[0] if event == "import" else arguments[0].co_filename if event == "exec" else ""
    if name.startswith("/"):  # its own modules come from one file, without an import statement for each
        name = ".".join(name.removesuffix(".py").rpartition("/site-packages/")[2].split("/"))
    if name and name[0] not in "<.":
        log = posix.open({log!r}, posix.O_WRONLY | posix.O_APPEND | posix.O_CREAT, 0o600)
        posix.write(log, name.encode() + b"\\n")
        posix.close(log)
for name in sys.modules:
    report("import", (name,))
sys.addaudithook(report)
with open({script!r}) as file:
    code = compile(file.read(), {script!r}, "exec")
sys.argv = [{script!r}, {script!r}, *sys.argv[1:]]
exec(code)
"""


@pytest.fixture
def who(user: Who) -> Who:
    """An ordinary user: the launcher loads the same for root."""
    return user


LOG = "imports.log"
OPTIONS = ("run", "--net", "none", "--git", "readonly", "--")


def imported(
    who: Who, installed: Installed, worktree: Path, command: tuple[str, ...], options: tuple[str, ...] = OPTIONS,
    env: dict[str, str] | None = None,
) -> set[str]:  # fmt: skip
    """Names of all modules that one launch of `command` imported, or tried to."""
    log = worktree / LOG
    log.write_text("")
    program = PROBE.format(log=str(log), script=str(installed.paddock))
    ended = who.run([installed.python, "-I", "-S", "-c", program, *options, *command], cwd=worktree, env=env)
    assert ended.returncode == 0, ended.stderr
    return set(log.read_text().split())


@pytest.fixture
def worktree(who: Who, repo: Repo, installed: Installed) -> Path:
    """A worktree in which `true` was run already, so that its plan is cached: before, a session with a report searched
    for repositories, of which a note makes another plan.
    """
    need("landlock")
    (repo.one / LOG).touch()  # now, because a new name in the worktree may ask for a new plan
    who.give(repo.one / LOG)
    run, *others = OPTIONS
    for report in (("--report", repo.one.parent / "report.json"), ()):
        ended = who.run([installed.paddock, run, *report, *others, "true"], cwd=repo.one)
        assert ended.returncode == 0, ended.stderr
    return repo.one


MOST_MODULES = 45
"""Paddock's own, packages included, that a launch without a private git directory loads. Only ever lower."""


def test_a_warm_launch_loads_little(who: Who, installed: Installed, worktree: Path) -> None:
    """With a valid cached plan, only the launcher's own modules and the interpreter's core are loaded, and what else
    costs next to nothing. What stands between a command line and a jail can be read in an afternoon.
    """
    names = imported(who, installed, worktree, ("true",))
    assert {"launcher.__main__", "launcher.jail.landlock", "launcher.jail.hygiene", "policy.plan"} <= names
    own = {name for name in names if name.partition(".")[0] in ("launcher", "policy")}
    assert len(own) <= MOST_MODULES, "\n".join(sorted(own))
    bare = who.run([installed.python, "-I", "-S", "-c", "import sys, os, ctypes; print(*sys.modules)"])
    allowed = set(bare.stdout.split()) | set(sys.builtin_module_names) | {"fcntl", "select", "_socket", "_struct"}
    assert {name for name in names - own if name.partition(".")[0] not in allowed} == set()
    assert {name for name in names if name in COSTLY or name.partition(".")[0] in COSTLY} == set()


def test_a_session_that_made_no_commit_ends_without_anything_costly(
    who: Who, installed: Installed, worktree: Path
) -> None:
    """With a private git directory, too, where the end looks for commits; with a harvest it loads more."""
    need("userns")
    options = ("run", "--net", "none", "--")
    for _ in range(2):
        ended = who.run([installed.paddock, *options, "true"], cwd=worktree)
        assert ended.returncode == 0, ended.stderr
    names = imported(who, installed, worktree, ("true",), options)
    assert "launcher.vcs.harvest.agent_refs" in names
    assert {name for name in names if name in COSTLY or name.partition(".")[0] in COSTLY} == set()


def test_a_changed_configuration_takes_the_long_way(who: Who, installed: Installed, worktree: Path) -> None:
    """The same probe sees what reads it where a plan has to be made, so its silence means something. No pydantic."""
    (worktree / ".paddock.toml").write_text("# nothing changed but the file\n")
    who.give(worktree)
    found = imported(who, installed, worktree, ("true",))
    assert "tomllib" in found
    assert "pydantic" not in found


def test_the_harvest_at_a_sessions_end_loads_no_pydantic(who: Who, installed: Installed, worktree: Path) -> None:
    """Whoever has committed waits for it after every command: pydantic would take as long as all else together."""
    commit = ("git", "commit", "-q", "--allow-empty", "-m", "Work.")
    found = imported(who, installed, worktree, commit, ("run", "--net", "none", "--"))
    assert "launcher.vcs.harvest.harvest" in found
    assert "pydantic" not in found


def test_a_worktree_of_paddocks_is_known_to_the_guard_without_pydantic(
    user: Who, installed: Installed, public_dir: Path
) -> None:
    """It asks the store who made the worktree, before its first command there."""
    place = public_dir / "place"
    place.mkdir()
    repo = repository.make(user, user.give(place))
    tree = place / "made"
    made = user.run([installed.paddock, "worktree", "add", "made", "--path", tree], cwd=repo.main)
    assert made.returncode == 0, made.stderr
    (tree / LOG).touch()
    user.give(tree / LOG)
    found = imported(user, installed, tree, ("true",), ("run", "--net", "none", "--"), {"PADDOCK_NO_USERNS": "1"})
    assert {"sqlite3", "launcher.vcs.worktrees.store"} <= found
    assert "pydantic" not in found


def test_a_live_session_keeps_nothing_of_what_planned_it(who: Who, installed: Installed, worktree: Path) -> None:
    """A launch that had to make its Plan holds no library afterwards that one that found it would not have."""
    (worktree / ".paddock.toml").write_text("# planned anew\n")
    who.give(worktree)
    words = [str(installed.paddock), *OPTIONS, "sh", "-c", "echo ready; read line"]
    with who.start(words, cwd=worktree) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        maps = Path(f"/proc/{process.pid}/maps").read_text()
        process.communicate(b"\n")
    assert "python" in maps
    assert "pydantic" not in maps
