"""Which backend a launch gets, by what the machine lacks, what is asked for, and whether there is a bwrap."""

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from policy.promises import BUBBLEWRAP, GUARD, NAMESPACES
from tests.support.features import need
from tests.support.identity import AS_A_USER
from tests.support.paddock import Paddock, said

NO_LANDLOCK = {"PADDOCK_NO_LANDLOCK": "1"}
NO_USERNS = {"PADDOCK_NO_USERNS": "1"}

# What is missing, what is asked for -> the backend or the refusal with a bwrap in PATH, and without one.
MATRIX = [
    ({}, "auto", NAMESPACES, NAMESPACES),
    ({}, "landlock", NAMESPACES, NAMESPACES),
    ({}, "bubblewrap", BUBBLEWRAP, "bubblewrap-missing"),
    (NO_USERNS, "auto", GUARD, GUARD),
    (NO_USERNS, "landlock", GUARD, GUARD),
    (NO_USERNS, "bubblewrap", "bubblewrap-missing", "bubblewrap-missing"),
    (NO_LANDLOCK, "auto", BUBBLEWRAP, "landlock-missing"),
    (NO_LANDLOCK, "landlock", "landlock-missing", "landlock-missing"),
    (NO_LANDLOCK, "bubblewrap", BUBBLEWRAP, "bubblewrap-missing"),
    (NO_LANDLOCK | NO_USERNS, "auto", "landlock-missing", "landlock-missing"),
    (NO_LANDLOCK | NO_USERNS, "landlock", "landlock-missing", "landlock-missing"),
    (NO_LANDLOCK | NO_USERNS, "bubblewrap", "bubblewrap-missing", "bubblewrap-missing"),
]


def path_without_bwrap(paddock: Paddock) -> str:
    """A PATH with `true`, what changes the user, and nothing else."""
    directory = paddock.place / "few"
    directory.mkdir()
    for name in ("true", "setpriv"):
        if found := shutil.which(name, path="/usr/bin:/bin"):
            (directory / name).symlink_to(found)
    return str(directory)


def chosen(paddock: Paddock, wanted: str, env: dict[str, str]) -> str:
    """The backend that a run said it has, or the reference of its refusal."""
    ended = paddock.run("--verbose", "--backend", wanted, "--", "true", env=env)
    if ended.returncode == 125:
        error = said(ended.stderr)
        assert "hint:" in error.text
        return error.reference
    assert ended.returncode == 0, ended
    (line,) = (line for line in ended.stderr.splitlines() if line.startswith("paddock: session "))
    return line.split(", ")[1]


@AS_A_USER
def test_the_matrix(paddock: Paddock) -> None:
    """Landlock wherever it is there; bubblewrap where it is not, or where it is asked for; else a clear refusal.

    What gets a jail is asked for twice, with warm plans in another order: none is taken for one of other circumstances.
    """
    for feature in ("landlock", "userns", "bubblewrap"):
        need(feature)
    without = path_without_bwrap(paddock)
    for rows in (MATRIX, MATRIX[::-1]):
        for switches, wanted, with_bwrap, expected_without in rows:
            for env, expected in ((switches, with_bwrap), (switches | {"PATH": without}, expected_without)):
                if rows is MATRIX or not expected.endswith("-missing"):
                    assert chosen(paddock, wanted, env) == expected, (env, wanted)


def test_the_refusals_say_what_to_do(user_paddock: Paddock) -> None:
    """What to install or allow, and what is wrong with each way."""
    need("bubblewrap")
    without = {"PATH": path_without_bwrap(user_paddock)}
    error = user_paddock.refused("run", "--", "true", env=NO_LANDLOCK | without)
    assert "bubblewrap: bwrap is not installed" in error.text
    assert "install the bubblewrap package" in error.text
    assert "lsm=" in error.text
    error = user_paddock.refused("run", "--backend", "bubblewrap", "--", "true", env=NO_USERNS)
    assert "PADDOCK_NO_USERNS" in error.text


def test_a_broken_bwrap_is_not_chosen(user_paddock: Paddock) -> None:
    """It is tried, not only found; its own words are the reason."""
    env = NO_LANDLOCK | _with_bwrap(user_paddock, "#!/bin/sh\necho 'bwrap: No permissions' >&2\nexit 1\n")
    error = user_paddock.refused("run", "--", "true", env=env)
    assert (error.reference, "bwrap: No permissions" in error.text) == ("landlock-missing", True)


def test_a_plan_forgets_a_bwrap_that_has_changed(user_paddock: Paddock) -> None:
    """A kept plan is good only for the file that was tried."""
    need("bubblewrap")
    env = NO_LANDLOCK | _with_bwrap(user_paddock, f'#!/bin/sh\nexec {_real(user_paddock)} "$@"\n')
    assert chosen(user_paddock, "auto", env) == BUBBLEWRAP
    assert chosen(user_paddock, "auto", env) == BUBBLEWRAP
    file = user_paddock.place / "bin/bwrap"
    file.rename(file.with_name("before"))
    assert chosen(user_paddock, "auto", env) == BUBBLEWRAP  # the next one in PATH
    _with_bwrap(user_paddock, "#!/bin/sh\nexit 1\n")
    assert chosen(user_paddock, "auto", env) == "landlock-missing"


@pytest.mark.parametrize("place", ["worktree", "granted", "written-by-others", "relative", "linked"])
def test_a_bwrap_that_an_agent_could_have_put_there_is_not_executed(user_paddock: Paddock, place: str) -> None:
    """It would run outside of every jail."""
    need("bubblewrap")
    paddock = user_paddock
    directory = {"worktree": paddock.worktree / "bin", "relative": paddock.worktree}.get(place, paddock.place / place)
    directory.mkdir(exist_ok=True)
    trap = directory / "bwrap"
    trap.write_text(f"#!/bin/sh\n: > {paddock.place}/executed\n")
    trap.chmod(0o757 if place == "written-by-others" else 0o755)
    if place == "linked":  # to a private home, say, where an agent has put it
        directory = paddock.worktree / "bin"
        directory.mkdir()
        (directory / "bwrap").symlink_to(trap)
    paddock.who.give(paddock.place)
    search = "." if place == "relative" else str(directory)
    options = ("--rw", str(directory)) if place == "granted" else ()
    ended = paddock.run(*options, "--", "true", env=NO_LANDLOCK | {"PATH": f"{search}:{paddock.who.path}"})
    assert ended.returncode == 0, ended
    assert not (paddock.place / "executed").exists()


def test_the_trap_works_where_it_is_trusted(user_paddock: Paddock) -> None:
    """A file of the user's own elsewhere in PATH is executed: the test before has tested something."""
    env = NO_LANDLOCK | _with_bwrap(user_paddock, f"#!/bin/sh\n: > {user_paddock.place}/executed\n")
    user_paddock.run("--", "true", env=env)
    assert (user_paddock.place / "executed").exists()


def test_a_set_uid_bwrap_is_used_without_its_privilege(user_paddock: Paddock) -> None:
    """What it makes with privilege could not be joined."""
    need("bubblewrap")
    if os.geteuid() != 0:
        pytest.skip("only root can install a set-uid programme")
    directory = user_paddock.place / "bin"
    directory.mkdir()
    subprocess.run(["cp", _real(user_paddock), directory / "bwrap"], check=True)
    os.chown(directory / "bwrap", 0, 0)
    (directory / "bwrap").chmod(0o4755)
    assert (directory / "bwrap").stat().st_mode & stat.S_ISUID
    env = NO_LANDLOCK | {"PATH": f"{directory}:{user_paddock.who.path}"}
    assert chosen(user_paddock, "auto", env) == BUBBLEWRAP


def _real(paddock: Paddock) -> str:
    return paddock.who.run(["sh", "-c", "command -v bwrap"]).stdout.strip()


def _with_bwrap(paddock: Paddock, text: str) -> dict[str, str]:
    """An environment in which `text` is the first bwrap of PATH."""
    directory = Path(paddock.place, "bin")
    directory.mkdir(exist_ok=True)
    (directory / "bwrap").write_text(text)
    (directory / "bwrap").chmod(0o755)
    paddock.who.give(directory)
    return {"PATH": f"{directory}:{paddock.who.path}"}
