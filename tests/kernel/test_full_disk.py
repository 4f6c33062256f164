"""Full disks: nothing is lost, nothing is stuck, and all of it works again when there is room.

Each case has a small file system of its own, in a mount namespace of its own, for Paddock's state or for the repository
with its worktrees.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.jail import syscalls
from tests.support import forked, paddock
from tests.support.features import need
from tests.support.identity import Who
from tests.support.install import Installed
from tests.support.paddock import Paddock
from tests.support.served import PATIENCE, Served

COMMIT = "git -c user.name=A -c user.email=a@b.c commit -q --allow-empty -m"
DISKS = ("state", "repository")


class Disk:
    """A small file system."""

    def __init__(self, where: Path, who: Who) -> None:
        where.mkdir(parents=True, exist_ok=True)
        syscalls.mount("tmpfs", str(where), "tmpfs", syscalls.MS_NOSUID, "size=24m,mode=755")
        os.chown(where, who.uid, who.gid)
        self._filler = where / ".filler"

    def fill(self) -> None:
        """Leaves no room for anything."""
        with open(self._filler, "ab", buffering=0) as file:
            for size in (1 << 20, 4_096, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(b"x" * size)

    def empty(self) -> None:
        """Makes room again."""
        self._filler.unlink(missing_ok=True)


class Scene:
    """A repository, Paddock's state, and the disk that one of them lies on."""

    def __init__(self, who: Who, installed: Installed, place: Path, which: str) -> None:
        if which == "state":
            self.disk = Disk(who.home / ".local/state/paddock", who)
            for path in (who.home / ".local", who.home / ".local/state"):
                os.chown(path, who.uid, who.gid)
            os.chmod(who.home / ".local/state/paddock", 0o700)
            (place / "here").mkdir()
            who.give(place / "here")
        else:
            self.disk = Disk(place / "here", who)
        self.made: Paddock = paddock.make(who, installed, place / "here")
        runtime = place / "runtime"
        runtime.mkdir(mode=0o700)
        who.give(runtime)
        self.service = Served(self.made, runtime)

    @contextlib.contextmanager
    def serving(self) -> Iterator[Served]:
        """The service, with little patience."""
        self.service.settings(helpers=1, stdin_seconds=0.2, term_seconds=0.5, harvest_seconds=0.5)
        self.service.start()
        try:
            yield self.service
        finally:
            self.disk.empty()
            assert self.service.end() == 0

    def log_of(self, branch: str) -> list[str]:
        """Subjects of a branch's commits."""
        return self.made.who.run(["git", "log", "--format=%s", branch], cwd=self.made.main).stdout.splitlines()

    def check(self) -> None:
        """Nothing is broken, nothing half made."""
        ended = self.made.who.run(["git", "fsck", "--connectivity-only"], cwd=self.made.main)
        assert ended.returncode == 0, ended.stderr
        locks = [str(path) for path in self.made.main.rglob("*.lock")]
        assert not locks
        assert self.made.left() == []


def until(condition: Callable[[], object], what: object = "") -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


@pytest.fixture(params=DISKS)
def play(request: pytest.FixtureRequest, user: Who, installed: Installed, public_dir: Path) -> Callable[..., None]:
    """Runs a scene on small disks, in a process with mounts of its own. A tmpfs keeps nothing back for root."""
    need("userns")
    if os.geteuid() != 0:
        pytest.fail("only root may mount")
    place = public_dir / "place"
    place.mkdir()
    user.give(place)

    def act(body: Callable[[Scene], None]) -> None:
        def inside() -> None:
            syscalls.unshare(syscalls.CLONE_NEWNS)
            syscalls.mount("", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
            body(Scene(user, installed, place, request.param))

        forked.run(inside)

    return act


def test_a_service_whose_disk_is_full(play: Callable[..., None]) -> None:
    """A session that ends is over, with its own status; its commits come home, by the service alone, when there is
    room. What lives can be seen, signalled and stopped; what is asked for is refused with a reason; later all works.
    """

    def body(scene: Scene) -> None:
        with scene.serving() as service:
            script = f"{COMMIT} made; echo ready; read x; for i in $(seq 3000); do echo line $i; done; exit 3"
            service.create("bash", "-c", script, name="ends", stdin="pipe")
            until(lambda: "ready" in service.log("ends"))
            scene.disk.fill()
            ended = service.cli("attach", "ends", stdin="go\n")
            assert ended.returncode == 3, ended.stderr
            assert "line 3000" in ended.stdout
            found = service.get(f"/v1/sessions/ends?wait={PATIENCE:g}").json
            assert found["outcome"]["status"] == 3, found
            scene.disk.empty()
            until(lambda: scene.log_of("one")[:1] == ["made"], service.said.read_text()[-2000:])
            until(lambda: service.get("/v1/sessions/ends").json["state"] == "failed")
            lives_on(scene, service)
        scene.check()

    play(body)


def lives_on(scene: Scene, service: Served) -> None:
    """Sessions that go on while there is no room, and after their service was killed."""
    script = f"{COMMIT} before; trap 'echo caught' USR1; echo ready; while :; do sleep 0.05; done"
    for name in ("one", "two"):
        service.create("bash", "-c", script, name=name)
        until(lambda name=name: "ready" in service.log(name))  # type: ignore[misc]
    scene.disk.fill()
    answer = service.post("/v1/sessions?wait=60", {"command": ["true"], "directory": str(scene.made.worktree)})
    if answer.status == 201:  # the disk of the repository alone: the session itself says what it lacks
        assert answer.json["state"] in ("running", "ended", "failed"), answer.json
    else:
        assert answer.status in (422, 503), answer.raw
        assert {"errorType", "message", "hint"} <= answer.json.keys()
    assert service.get("/v1/health").status == 200
    assert service.get("/v1/sessions").status == 200
    assert service.cli("ps").returncode == 0
    assert service.post("/v1/sessions/one/signal", {"signal": "SIGUSR1"}).status == 204
    found = service.post("/v1/sessions/one/stop", {"wait": PATIENCE}).json
    assert found["outcome"]["reason"] == "stopped", found
    assert found["state"] in ("ended", "unharvested"), found
    service.kill()
    scene.disk.empty()
    service.start()
    found = service.get("/v1/sessions/two").json
    assert found["state"] == "running", found
    until(lambda: service.get("/v1/sessions/one").json["state"] == "ended", service.said.read_text()[-2000:])
    service.post("/v1/sessions/two/stop", {"wait": PATIENCE})
    until(lambda: "before" in scene.log_of("one"), service.said.read_text()[-2000:])
    assert service.create("true", name="after", wait=0)["state"]
    assert service.over("after")["outcome"]["status"] == 0


def test_a_plain_run_a_merge_and_a_removal_on_a_full_disk(play: Callable[..., None]) -> None:
    """The command's status is its own; harvest and merge are refused as a whole, and done when there is room, and so is
    a forced removal, which keeps what would be lost first."""

    def body(scene: Scene) -> None:
        made = scene.made
        ended = made.run("--", "sh", "-c", f"{COMMIT} first; echo content > new; git add new; {COMMIT} second")
        assert ended.returncode == 0, ended.stderr
        assert scene.log_of("one")[:2] == ["second", "first"]
        assert made.call("worktree", "add", "gone", cwd=made.main).returncode == 0
        (work,) = made.place.glob("*-gone")
        (work / "unsaved").write_bytes(os.urandom(1 << 20))
        scene.disk.fill()
        removed = made.call("worktree", "remove", "--force", "gone", cwd=made.main)
        if removed.returncode:
            assert paddock.said(removed.stderr).reference not in ("launch-failed", "internal-error"), removed.stderr
            assert (work / "unsaved").stat().st_size == 1 << 20
        merged = made.call("merge", "--into", "main", "one", cwd=made.main)
        said = merged.stderr
        if merged.returncode == 0:  # there was room enough for so little
            assert scene.log_of("main")[0] == "second"
        else:
            assert paddock.said(said).reference not in ("launch-failed", "internal-error"), said
            assert scene.log_of("main") == ["main: First."]
        assert not list(made.main.glob(".git/*.lock"))
        assert made.who.run(["git", "status", "--porcelain"], cwd=made.main).stdout == ""
        scene.disk.empty()
        merged = made.call("merge", "--resume", cwd=made.main)
        merged = made.call("merge", "--into", "main", "one", cwd=made.main)
        assert merged.returncode == 0, merged.stderr
        assert "second" in scene.log_of("main")
        if removed.returncode:
            removed = made.call("worktree", "remove", "--force", "gone", cwd=made.main)
        assert (removed.returncode, work.exists()) == (0, False), removed.stderr
        kept = made.who.run(["git", "for-each-ref", "--format=%(refname)", "refs/paddock/backup"], cwd=made.main).stdout
        (ref,) = kept.split()
        assert made.who.run(["git", "cat-file", "-s", f"{ref}:unsaved"], cwd=made.main).stdout == f"{1 << 20}\n"
        scene.check()

    play(body)


def test_ticket_runs_on_a_full_disk(play: Callable[..., None]) -> None:
    """Each comes to an end, or goes on, and loses nothing that its agents have done; resumed, it merges everything.

    There is no room from its beginning on, and from when the first of two has ended and the other one still works.
    """

    def body(scene: Scene) -> None:
        with scene.serving() as service:
            for phase, count in (("begin", 1), ("end", 2)):
                tickets_on_a_full_disk(scene, service, phase, count)
                scene.check()

    play(body)


def tickets_on_a_full_disk(scene: Scene, service: Served, phase: str, count: int) -> None:
    """A ticket run whose disk is full from one of its phases on."""
    made, known = scene.made, f"/v1/ticket-runs/{phase}"
    work = [f"{phase}-{number}" for number in range(count)]
    tickets = [{"ticket": each, "command": ["sh", "-c", f"{COMMIT} by-{each} && sleep {1 + 2 * number}"]}
               for number, each in enumerate(work)]  # fmt: skip
    environment = made.who.environment(service.env)
    body = {"repository": str(made.main), "tickets": tickets, "environment": environment, "name": phase}

    def sessions(*states: str) -> int:
        found = service.get("/v1/sessions").json["sessions"]
        return sum(each["name"].startswith(f"{phase}.") and each["state"] in states for each in found)

    if phase == "begin":
        scene.disk.fill()
    answer = service.post("/v1/ticket-runs?wait=0", body)
    if answer.status == 201:
        if phase == "end":
            until(lambda: sessions("ended", "unharvested"))
            scene.disk.fill()
        until(lambda: service.get(known).json["ended"] is not None)
    else:
        assert phase == "begin"
        assert answer.json["errorType"] in ("database-full", "database-unusable", "state-unusable"), answer.json
    scene.disk.empty()
    if answer.status != 201:
        answer = service.post("/v1/ticket-runs?wait=0", body)
        assert answer.status == 201, answer.json
    if service.get(f"{known}?wait=60").json["state"] != "ended":
        resumed = service.post(f"{known}/resume?wait=60", {"environment": environment})
        assert resumed.status == 200, resumed.json
    found = service.get(f"{known}?wait=60").json
    assert found["state"] == "ended", json.dumps(found, indent=1)
    assert {f"by-{each}" for each in work} <= set(scene.log_of("main")), json.dumps(found, indent=1)


def test_nothing_is_left_of_a_run_that_the_disk_had_no_room_for(play: Callable[..., None]) -> None:
    """One clear refusal before anything was started, or the command runs; a harvest that had no room is made up for."""

    def body(scene: Scene) -> None:
        made = scene.made
        assert made.run("--", "true").returncode == 0
        scene.disk.fill()
        ended = made.run("--", "true")
        assert ended.returncode == 0 or paddock.said(ended.stderr).reference, ended
        scene.disk.empty()
        script = f"{COMMIT} made; touch {made.worktree}/full; sleep 1"
        with made.who.start(made.words("run", "--", "sh", "-c", script), cwd=made.worktree) as run:
            until((made.worktree / "full").exists)
            scene.disk.fill()
            assert run.wait(PATIENCE) == 0
        scene.disk.empty()
        ended = made.call("worktree", "harvest", "--json")
        assert ended.returncode == 0, ended.stderr
        assert json.loads(ended.stdout)
        assert scene.log_of("one")[:1] == ["made"]
        scene.check()

    play(body)
