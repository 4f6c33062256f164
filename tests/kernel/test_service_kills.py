"""A service and its sessions, killed at random moments under load, again and again: what the next one puts right."""

import contextlib
import http.client
import os
import random
import signal
import subprocess
import threading
import time
from pathlib import Path

import psutil

from tests.support import paddock, served
from tests.support.identity import Who
from tests.support.install import Installed
from tests.support.served import Served, alive

KILLS = int(os.environ.get("PADDOCK_KILLS", "2"))
WORKTREES = 3

# Each commit is told only when git has made it.
COMMITS = """
for number in 1 2 3 4 5 6; do
    git -c user.name=A -c user.email=a@b.c commit -q --allow-empty -m "$1 $number" || exit 1
    git rev-parse HEAD >> commits
done
exec sleep 1000
"""


class Load:
    """Makes sessions of several kinds, as fast as it is answered, until the service is gone."""

    def __init__(self, service: Served, marker: str, seed: int) -> None:
        self._service = service
        self._marker = marker
        self._random = random.Random(seed)
        self.accepted: list[str] = []
        self._over = False
        self._thread = threading.Thread(target=self._run, args=(seed,))

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def stop(self) -> None:
        """Makes no more."""
        self._over = True
        self.join()

    def join(self) -> None:
        """Waits for its end."""
        self._thread.join(served.PATIENCE)
        assert not self._thread.is_alive()

    def _run(self, seed: int) -> None:
        for number in range(1_000):
            if self._over:
                return
            name = f"k{seed}-{number}"
            where = self._service.paddock.place / f"w{number % WORKTREES}"
            command = [
                ["sh", "-c", COMMITS, "sh", name],
                ["sh", "-c", "setsid sleep 1000 & setsid setsid sleep 1000 & exec sleep 1000", self._marker],
                ["true"],
                ["sh", "-c", "head -c 300000 /dev/zero; exit 3"],
            ][number % 4]
            body = {"name": name, "command": command, "directory": str(where), "stdin": "pipe"}
            try:
                if self._service.post("/v1/sessions", body).status == 201:
                    self.accepted.append(name)
                if number % 5 == 4:
                    self._service.post(f"/v1/sessions/{name}/stop", {"term_seconds": 0.05})
            except (OSError, ValueError, http.client.HTTPException):  # words for a server that vanished
                return


def below(service: Served) -> set[psutil.Process]:
    """Every process below the service: each that it is, not its number, which may be another test's a minute later."""
    return set(psutil.Process(service.pid).children(recursive=True))


def victims(family: set[psutil.Process], generator: random.Random) -> list[psutil.Process]:
    """Some of the service's processes and its sessions': shims, launchers, the first processes of jails, git."""
    kinds: dict[str, list[psutil.Process]] = {}
    for each in family:
        try:
            words = Path(f"/proc/{each.pid}/cmdline").read_bytes().split(b"\0")
            jailed = Path(f"/proc/{each.pid}/status").read_text().partition("NSpid:")[2].split("\n")[0].split()
        except OSError:
            continue
        kind = "git" if words[0].endswith(b"git") else "jail" if len(jailed) > 1 else "own"
        kinds.setdefault(kind, []).append(each)
    return [generator.choice(found) for found in kinds.values() if generator.random() < 0.7]


def test_killed_again_and_again(who: Who, installed: Installed, place: Path) -> None:
    """Every session is accounted for, no process, group, directory or lock of the dead is left, no commit is lost.

    The service is killed, and whatever lives below it: shims, launchers, jails, git in them. A repack, a collection
    and a prune go on beside.
    """
    made = paddock.make(who, installed, place)
    for number in range(WORKTREES):
        ended = who.run(["git", "worktree", "add", "-q", "-b", f"w{number}", f"../w{number}"], cwd=made.main)
        assert ended.returncode == 0, ended.stderr
    service = served.prepare(made)
    service.settings(helpers=2, most_starting=4, most_records=100_000, stdin_seconds=0.05, term_seconds=0.1,
                     harvest_seconds=0.5)  # fmt: skip
    accepted: list[str] = []
    generator = random.Random(KILLS)
    top = ""
    everything: set[psutil.Process] = set()
    gc = "while :; do git repack -adq; git gc -q --prune=now; git prune --expire=now; sleep 0.5; done"
    with who.start(["sh", "-c", gc], cwd=made.main) as busy, contextlib.ExitStack() as stack:
        stack.callback(busy.kill)  # else a failure waits for it
        for kill in range(KILLS):
            service.start()
            top = service.get("/v1/health").json["groups"]
            load = Load(service, f"paddock-kill-{os.getpid()}-{kill}", kill)
            load.start()
            time.sleep(generator.uniform(0.05, 0.8))
            family = below(service)
            for each in victims(family, generator):
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
            everything |= family | below(service)
            if kill % 2 == 0:
                os.kill(service.pid, signal.SIGSTOP)  # so that what is below it is known when it dies
                everything |= below(service)
                service.kill()
                load.join()
            else:
                load.stop()
                everything |= below(service)
                assert service.end() == 0
            accepted += load.accepted

        service.start()
        everything |= below(service)
        assert service.end() == 0
        deadline = time.monotonic() + served.PATIENCE
        while (left := [each.pid for each in everything if alive(each)]) and time.monotonic() < deadline:
            time.sleep(0.02)
        shown = ["ps", "-wwo", "pid,ppid,stat,wchan:30,etime,args", "-p", ",".join(map(str, left))]
        assert not left, subprocess.run(shown, capture_output=True, text=True, check=False).stdout

        service.start()
        try:
            deadline = time.monotonic() + served.PATIENCE
            while service.get("/v1/sessions?live=true").json["sessions"]:  # one may have been about to begin
                assert time.monotonic() < deadline
                time.sleep(0.1)
            found = {each["name"]: each for each in service.get("/v1/sessions?limit=10000").json["sessions"]}
            assert set(accepted) <= set(found)
            assert {each["state"] for each in found.values()} <= {"ended", "failed", "lost"}
            # One that was killed between its first two system calls goes when it is a minute old (`session.state`).
            assert [name for name in os.listdir(made.state / "sessions") if not name.startswith(".new-")] == []
            assert os.listdir(service.runtime / "paddock/sessions") == []
            if top:
                prefixes = {name.partition("-")[0] for name in os.listdir(top) if "-" in name}
                assert len(prefixes) == 1, prefixes
            for number in range(WORKTREES):
                where = made.place / f"w{number}"
                told = (where / "commits").read_text().split() if (where / "commits").exists() else []
                deadline = time.monotonic() + 4 * served.PATIENCE
                while missing := set(told) - reached(who, made.main, f"w{number}"):
                    assert time.monotonic() < deadline, (missing, service.said.read_text()[-3_000:])
                    time.sleep(0.2)
            os.kill(busy.pid, signal.SIGKILL)
            over = service.create("true", directory=str(made.place / "w0"), name="after")
            assert service.over(over["name"])["outcome"]["status"] == 0
        finally:
            busy.kill()
            busy.wait()
            assert service.end() == 0
    assert who.run(["git", "fsck", "--connectivity-only"], cwd=made.main).returncode == 0
    assert not top or not os.path.exists(top)


def reached(who: Who, repository: Path, branch: str) -> set[str]:
    """The commits of a branch."""
    return set(who.run(["git", "rev-list", branch], cwd=repository).stdout.split())
