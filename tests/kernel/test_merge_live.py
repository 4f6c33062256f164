"""Merges beside live sessions of every git mode: by contexts, as a workflow does, and with the installed command."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from launcher.jail import processes
from tests.support import features, paddock, warmed
from tests.support.identity import Who
from tests.support.install import Installed
from tests.support.paddock import Paddock

NAMES = ("first", "second", "third")
_AGENT = 'echo "$1" >"$1"; git add "$1"; git commit -q -m "$1"; echo committed; read go'
_WAITING = "echo waiting; read go"
_SERVICE = """
import json, os, sys
from pathlib import Path
from launcher.session.places import places
from launcher.vcs.merge.runs import State
from launcher.vcs.merge import work
from launcher.vcs.merge.descriptors import AgentMergeStatus, MergeDescriptor
from launcher.vcs.merge.merges import WorktreeMergeService
from policy.errors import Refusal
from policy.sandbox_context import MainWorktreeContext, WorktreeSandboxContext

def at(root):
    return WorktreeSandboxContext(main_worktree=MainWorktreeContext(worktree_id=Path(root).name, worktree_path=root))

merges = WorktreeMergeService(places(os.environ).state, os.environ)
def answer(what, *rest):
    if what == "children":
        waiting = [AgentMergeStatus(agent_result_id=Path(each).name, worktree_context=at(each)) for each in rest[1:]]
        found = merges.merge_children_to_trunk(waiting, at(rest[0]))
        return {**found.model_dump(mode="json"), "all_successful": found.all_successful}
    if what == "rollback":
        return [each.run_id for each in merges.rollback_merges([MergeDescriptor.model_validate_json(rest[0])])]
    if what == "interrupt":
        journal = work.journal_of(places(os.environ).state, rest[0])
        with journal.lock():
            journal.write(journal.read(rest[1]).model_copy(update={"state": State.COMMITTING}))
        return None
    return getattr(merges, what)(at(rest[0]), at(rest[1])).model_dump(mode="json")

for call in json.loads(sys.argv[1]):
    try:
        said = answer(*call)
    except Refusal as refusal:
        said = refusal.as_dict()
    print(json.dumps(said))
"""


class Team:
    """A main checkout, and a worktree that Paddock has made for each agent.

    Args:
        ground: the main checkout.
    """

    def __init__(self, ground: Paddock) -> None:
        self.ground = ground
        for name in NAMES:
            assert ground.call("worktree", "add", name, cwd=ground.main).returncode == 0
        self.roots = {name: ground.place / f"main-{name}" for name in NAMES}
        self.shell("mkdir " + " ".join(f"{root}/below" for root in (ground.main, *self.roots.values())))

    @contextmanager
    def live(self, cwd: Path, *words: str | Path, script: str = _WAITING) -> Iterator["subprocess.Popen[bytes]"]:
        """A session that has begun, and waits; at the end it is let go on, and ends."""
        command = self.ground.words("run", "--quiet", *words, "--", "sh", "-euc", script, "sh", cwd.name)
        process = self.ground.who.start(command, cwd=cwd)
        with process:
            try:
                assert process.stdout is not None
                if not process.stdout.readline():
                    assert process.stderr is not None
                    raise AssertionError(process.stderr.read())
                yield process
            finally:
                process.communicate(b"go\n", timeout=60)

    def service(self, *words: str | Path, env: dict[str, str] | None = None) -> Any:  # noqa: ANN401  # JSON
        """What a process of the user's gets from the merge service."""
        (said,) = self.services(words, env=env)
        return said

    def services(self, *calls: Sequence[str | Path], env: dict[str, str] | None = None) -> list[Any]:
        """What one process of the user's gets for several calls, one after another."""
        who, installed = self.ground.who, self.ground.installed
        asked = json.dumps([[str(word) for word in call] for call in calls])
        env = {**self.ground.env, **(env or {})}
        ended = warmed.run(who, installed.python, [asked], env=env, cwd=self.ground.place, program=_SERVICE)
        assert ended.returncode == 0, ended.stderr
        return [json.loads(line) for line in ended.stdout.splitlines()]

    def commit(self, root: Path, name: str) -> None:
        """A commit of the user's, outside of any jail."""
        self.shell(f"echo {name} >{name}; git add {name}; git commit -q -m {name}", root)

    def shell(self, line: str, cwd: Path | None = None) -> str:
        """Standard output of a line of sh(1) as the user."""
        ended = self.ground.who.run(["sh", "-euc", line], cwd=cwd or self.ground.main)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.strip()

    def everything(self) -> str:
        """All branches, and all files of all worktrees."""
        places = " ".join(map(str, (self.ground.main, *self.roots.values())))
        return self.shell(f"git for-each-ref refs/heads; ls {places}; git status --porcelain")


@pytest.fixture
def env() -> dict[str, str]:
    """Chooses namespaces: what a session can write stands in its record, whatever holds it."""
    return {}


@pytest.fixture
def team(env: dict[str, str], user: Who, installed: Installed, public_dir: Path) -> Team:
    """Agents of an ordinary user."""
    features.need("landlock")
    place = public_dir / "team"
    place.mkdir()
    made = paddock.make(user, installed, user.give(place))
    return Team(Paddock(user, installed, made.place, made.worktree, made.main, env))


@pytest.mark.parametrize("env", [{"PADDOCK_NO_USERNS": "1"}], ids=["guard"])
def test_work_in_live_jails_is_not_reported_as_merged(team: Team) -> None:
    """Three agents have committed and are still at work: nothing moves, and each is named; once ended, all arrives."""
    main = team.ground.main
    roots = list(team.roots.values())
    trunk = team.shell("git rev-parse main; ls")
    with (
        team.live(roots[0], "--git", "private", "--session", "a", script=_AGENT),
        team.live(roots[1], "--git", "private", "--session", "b", script=_AGENT),
        team.live(roots[2], "--git", "private", "--session", "c", script=_AGENT),
    ):
        found = team.service("children", main, *roots)
        assert not found["all_successful"], found
        assert found["merged"] == []
        assert found["conflicted"]["agent_result_id"] == roots[0].name
        why = found["conflicted"]["merge_descriptor"]["error_message"]
        assert all(f"session {name}" in why for name in "abc"), why
        assert team.shell("git rev-parse main; ls") == trunk
    found = team.service("children", main, *roots)
    assert found["all_successful"], found
    assert team.shell("ls") == "\n".join(["below", *sorted(root.name for root in roots)])
    assert team.shell("git status --porcelain") == ""


def modes(team: Team, root: Path) -> dict[str, tuple[Path, tuple[str | Path, ...]]]:
    """Ways to have a live session that can write a worktree: where it starts, and its options."""
    other = team.roots["second"]
    found: dict[str, tuple[Path, tuple[str | Path, ...]]] = {
        "below": (other, ("--git", "readonly", "--rw", root / "below")),
        "readonly": (root, ("--git", "readonly")),
    }
    if root != team.ground.main:  # its .git is a directory, and who grants that has given up git outside of jails there
        found["granted"] = (other, ("--git", "readonly", "--rw", root))
        found["private"] = (root, ("--git", "private"))
    return found


def test_a_live_session_of_any_mode_keeps_both_sides(team: Team) -> None:
    """From trunk to child, the specification's own phase-1 call, and back: refused by name, and nothing moves."""
    main, child = team.ground.main, team.roots["first"]
    team.commit(main, "t")
    team.commit(child, "c")
    before = team.everything()
    for root in (child, main):
        for mode, (cwd, words) in modes(team, root).items():
            with team.live(cwd, "--session", mode, *words):
                both = [
                    (call, *pair)
                    for call in ("merge_worktrees", "merge_submodules_first")
                    for pair in ((main, child), (child, main))
                ]
                *refused, down, up = team.services(
                    *both, ("merge_trunk_to_child", main, child), ("children", main, child)
                )
                for call, said in zip(both, refused, strict=True):
                    assert said.get("errorType") == "session-running", (root, mode, call, said)
                    assert f"session {mode}" in said["context"], said
                assert not down["successful"], (root, mode, down)
                assert not up["all_successful"], (root, mode, up)
                assert team.everything() == before, (root, mode)
    # Beside a session that can write neither, it is as ever: a descriptor that says what it was, files by jailed git.
    with team.live(team.roots["second"], "--git", "readonly"):
        unjailed = {"PADDOCK_NO_USERNS": "1", "PADDOCK_NO_LANDLOCK": "1"}
        assert team.service("merge_worktrees", main, child, env=unjailed)["errorType"] == "harvest-no-jail"
        said = team.service("merge_submodules_first", main, child)
        assert (said["successful"], said["merge_direction"]) == (True, "TRUNK_TO_CHILD"), said
        assert (child / "t").exists()
        said = team.service("merge_submodules_first", child, main)
        assert (said["successful"], said["merge_direction"]) == (True, "CHILD_TO_TRUNK"), said
        assert (main / "c").exists()
        said = team.service("merge_worktrees", child, team.roots["third"])
        assert said["errorType"] == "merge-direction", said


def test_runs_are_finished_and_taken_back_beside_no_live_session(team: Team) -> None:
    """Of any git mode; a frozen one is none."""
    main, child = team.ground.main, team.roots["first"]
    team.commit(main, "t")
    done = team.service("merge_submodules_first", main, child)
    before = team.everything()
    for mode, (cwd, words) in modes(team, child).items():
        with team.live(cwd, "--session", mode, *words):
            assert team.service("rollback", json.dumps(done))["errorType"] == "session-running", mode
            said = team.ground.refused("merge", "--rollback", done["run_id"], cwd=main)
            assert (said.reference, f"session {mode}" in said.text) == ("session-running", True), said
    team.service("interrupt", main / ".git", done["run_id"])
    with team.live(child, "--git", "private"):
        assert team.ground.refused("merge", "--resume", cwd=main).reference == "session-running"
    assert team.everything() == before
    with team.live(child, "--git", "readonly") as process, frozen(process):
        assert settled(lambda: team.ground.call("merge", "--resume", cwd=main))
        assert settled(lambda: team.ground.call("merge", "--rollback", done["run_id"], cwd=main))
        assert not (child / "t").exists()


def test_the_command_counts_sessions_of_every_mode(team: Team) -> None:
    """Into an agent's own worktree it is refused; into one that is granted to others, git in a jail moves the files."""
    main, child = team.ground.main, team.roots["first"]
    team.commit(main, "t")
    team.commit(child, "c")
    ways = modes(team, child)
    before = team.everything()
    for mode in ("readonly", "private"):
        cwd, words = ways[mode]
        with team.live(cwd, "--session", mode, *words):
            said = team.ground.refused("merge", "--into", child, "main", cwd=main)
            assert (said.reference, f"session {mode}" in said.text) == ("session-running", True), said
            assert team.everything() == before
            merged = team.ground.call("merge", child, "--no-checkout", cwd=main)
            assert "a session is still working there" in merged.stderr
            team.shell("git update-ref refs/heads/main HEAD~1")
    for root, mode, words in ((child, "granted", ("--into", child, "main")), (main, "below", (child,)),
                              (main, "readonly", (child,))):  # fmt: skip
        before = team.everything()
        cwd, options = modes(team, root)[mode]
        with team.live(cwd, *options):
            unjailed = {"PADDOCK_NO_USERNS": "1", "PADDOCK_NO_LANDLOCK": "1"}
            said = team.ground.refused("merge", *words, cwd=main, env=unjailed)
            assert said.reference == "harvest-no-jail", (root, mode)
            ended = team.ground.call("merge", *words, cwd=main)
            assert ended.returncode == 0, ended
            assert (root / "t").exists()
            assert team.shell("git status --porcelain", root) == ""
        run = ended.stdout.rpartition("--rollback ")[2].strip()
        assert team.ground.call("merge", "--rollback", run, cwd=main).returncode == 0
        assert team.everything() == before


@contextmanager
def frozen(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """All that is in a session's jail is stopped."""
    jailed = [pid for pid in processes.descendants(process.pid) if _filtered(pid)]
    assert jailed
    for pid in reversed(jailed):
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in jailed:
            os.kill(pid, signal.SIGCONT)
        process.send_signal(signal.SIGCONT)  # it has stopped with its command


def _filtered(pid: int) -> bool:
    try:
        return "\nSeccomp:\t2\n" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def settled(attempt: Callable[[], "subprocess.CompletedProcess[str]"]) -> bool:
    """Whether it succeeds once a signal has arrived at every thread."""
    deadline = time.monotonic() + 60
    while "session-running" in (said := attempt()).stderr:
        assert time.monotonic() < deadline
    assert said.returncode == 0, said
    return True
