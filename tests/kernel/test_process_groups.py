"""What a jail does to process groups is its own affair: nobody outside is hung up, stopped or joined."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import guarded
from tests.support.features import need
from tests.support.guarded import ENVIRONMENT, Guarded
from tests.support.identity import AS_A_USER, Who
from tests.support.install import Installed, base_python
from tests.support.programs.scene import Scene
from tests.support.repository import Repo

ORPHAN = Path(__file__).parents[1] / "support/programs/orphan.py"

CALLER = """
import subprocess, sys
ended = subprocess.run(sys.argv[1:], capture_output=True, text=True)
print(ended.stdout, ended.stderr, "the caller goes on", ended.returncode, flush=True)
"""
"""A programme that starts others and leads a session of its own, like a runner of CI jobs: SIGHUP ends it."""


@AS_A_USER
def test_the_callers_group_is_not_hung_up(scene: Scene) -> None:
    """A command that makes its process group an orphaned one with a stopped member ends nobody outside of the jail."""
    jailed = scene.command([base_python(), "-I", "-S", scene.area / "suite/tests/support/programs/orphan.py"])
    ended = subprocess.run(
        scene.who.command([base_python(), "-c", CALLER, *jailed]), cwd=scene.area, env=scene.environment(),
        capture_output=True, text=True, check=False, timeout=60, start_new_session=True,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "orphaned" in ended.stdout
    assert "the caller goes on 0" in ended.stdout


def test_without_the_jail_it_would_be() -> None:
    """The same command ends a caller that starts it without Paddock."""
    ended = subprocess.run(
        [sys.executable, "-c", CALLER, sys.executable, str(ORPHAN)], capture_output=True, text=True, check=False,
        timeout=60, start_new_session=True,
    )  # fmt: skip
    assert ended.returncode == -signal.SIGHUP


AT_A_TERMINAL = """
import json, os, pty, subprocess, sys
told, tell = os.pipe()
shell, terminal = pty.fork()
if shell == 0:
    other = subprocess.Popen(["sleep", "60"], process_group=0)
    ended = subprocess.run([*sys.argv[1:], str(other.pid)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    os.write(tell, json.dumps([ended.returncode, ended.stdout, ended.stderr]).encode())
    other.kill()
    os._exit(0)
os.close(tell)
sys.stdout.write(open(told).read())
"""
"""Runs the words with the number of another job's process group behind them, in the session of a terminal."""


@pytest.fixture
def jail(who: Who, installed: Installed, repo: Repo, place: Path) -> Guarded:
    """A jail of the backend landlock+guard."""
    need("landlock")
    return guarded.make(who, installed, repo, place)


def test_the_guard_lets_groups_of_the_jail_be_joined(jail: Guarded) -> None:
    """Another job's group, which has a number there, and the caller's own are not; job control works all the same."""
    words = jail.python("""
first = os.getpgrp()
result = {
    "another": said(os.setpgid, 0, int(sys.argv[1])),
    "own": said(os.setpgid, 0, 0),
    "the caller's": said(os.setpgid, 0, first),
}
waiting = []
for name in ("leader", "member", "late"):
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
    waiting.append(pid)
    result[name] = said(os.setpgid, pid, waiting[0])
    if name == "member":
        os.kill(waiting[0], signal.SIGKILL)
        os.waitpid(waiting.pop(0), 0)
        waiting.insert(0, os.getpgid(pid))
for pid in waiting[1:]:
    os.kill(pid, signal.SIGKILL)
print(json.dumps(result), flush=True)
os.execvp("bash", ["bash", "-c", "set -m; true | sleep 0.1 | cat & wait $!; echo $?"])
""")
    ended = jail.who.run([base_python(), "-c", AT_A_TERMINAL, *jail.words(words)], cwd=jail.inside, env=ENVIRONMENT)
    assert ended.returncode == 0, ended.stderr
    status, out, complaints = json.loads(ended.stdout)
    result, job = out.splitlines()
    assert (status, job) == (0, "0"), complaints
    assert json.loads(result) == {
        "another": "EPERM", "own": "ok", "the caller's": "EPERM", "leader": "ok", "member": "ok", "late": "ok",
    }  # fmt: skip
    assert not any(line.startswith("bash:") for line in complaints.splitlines()), complaints
