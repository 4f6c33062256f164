"""`launcher.service.jobs`: jobs are forked from one process, and none outlives who wanted it."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import psutil
import pytest

from launcher import programmes
from launcher.service.jobs import Jobs
from policy.errors import Refusal

ROOT = Path(__file__).parents[2]
PROGRAMME = f"""
import os, sys, time
sys.path.insert(0, {str(ROOT)!r})
from launcher.service import job
from policy.errors import Refusal

def refuse(): raise Refusal("no-such", "it is so")
def fail(): raise ValueError("unforeseen")
def wait(file):
    open(file, "w").close()
    time.sleep(60)
def steps():
    print("what a library prints")
    job._say({{"done": 1}})
    threads = len(os.listdir("/proc/self/task"))
    return {{"parent": os.getppid(), "session": os.getsid(0) == os.getpid(), "threads": threads}}

job.TABLE |= {{"refuse": refuse, "fail": fail, "wait": wait, "steps": steps, "echo": lambda text: {{"text": text}}}}
job._load = lambda name: time.sleep(0.3 if name == "wait" else 0)
job._IDLE = float(sys.argv[0].rpartition("-")[2])
sys.exit(job.serve(int(sys.argv[2]), int(sys.argv[3])))
"""


@pytest.fixture(autouse=True)
def idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets how long what jobs are forked from waits for another one; for longer than any test at first."""

    def seconds(number: float) -> None:
        helper = tmp_path / f"helper.py-{number}"
        helper.write_text(PROGRAMME)
        monkeypatch.setattr(programmes, "HELPER", str(helper))

    seconds(60)
    return seconds


def until(found: Callable[[], bool]) -> None:
    """Waits for it."""
    deadline = time.monotonic() + 30
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def children() -> list[psutil.Process]:
    """Of this process, dead ones that nobody has waited for included; not those of others in its interpreter."""
    return [each for each in psutil.Process().children(recursive=True) if "helper.py" in " ".join(_words(each))]


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline() or ["helper.py"]  # a zombie has none
    except psutil.NoSuchProcess:
        return []


def carried_out(story: Callable[[Jobs], Coroutine[Any, Any, None]]) -> None:
    """Runs it with `Jobs` that are closed at the end; nothing is left then."""

    async def told() -> None:
        own = Jobs()
        try:
            await story(own)
        finally:
            await own.close()

    asyncio.run(told())
    until(lambda: children() == [])


def starter() -> psutil.Process:
    """The process that jobs are forked from."""
    (found,) = children()
    return found


def test_a_job_answers_tells_its_steps_and_fails_in_words() -> None:
    """Each in a child and session of its own; what is large goes both ways; a refusal is the job's own."""
    told: list[dict[str, Any]] = []

    async def story(own: Jobs) -> None:
        found = await own.run("steps", {}, told.append)
        assert found == {"parent": os.getpid(), "session": True, "threads": 1}
        assert told == [{"done": 1}]
        text = "ü\n" * 1_000_000
        assert await asyncio.gather(*(own.run("echo", {"text": text}) for _ in range(4))) == [{"text": text}] * 4
        first = starter()
        for name, reference in (("refuse", "no-such"), ("fail", "internal-error"), ("unknown", "internal-error")):
            with pytest.raises(Refusal) as raised:
                await own.run(name, {})
            assert raised.value.reference == reference
        assert starter() == first

    carried_out(story)


def test_what_jobs_are_forked_from_may_end_at_any_time(idle: Callable[[float], None]) -> None:
    """When it was idle, or was killed: the next job starts another one, and one that runs goes on."""
    idle(0.5)

    async def story(own: Jobs) -> None:
        await own.run("steps", {})
        first = starter()
        await asyncio.to_thread(until, lambda: not first.is_running() or children() == [])
        assert (await own.run("steps", {}))["parent"] == os.getpid()
        starter().kill()
        assert (await own.run("echo", {"text": "a"})) == {"text": "a"}

    carried_out(story)


def test_a_job_that_is_killed_is_told_and_one_that_nobody_wants_ends(tmp_path: Path) -> None:
    """Also where it was given up before it had begun."""

    async def story(own: Jobs) -> None:
        begun = tmp_path / "begun"
        running = asyncio.create_task(own.run("wait", {"file": str(begun)}))
        await asyncio.to_thread(until, begun.exists)
        jobs_, base = [each for each in children() if each != first_of(own)], first_of(own)
        (job,) = jobs_
        base.kill()
        job.send_signal(signal.SIGKILL)
        with pytest.raises(Refusal, match="ended without an answer") as raised:
            await running
        assert "status -9" in raised.value.context

        for moment in (0.05, 0.5):
            wanted = asyncio.create_task(own.run("wait", {"file": str(begun)}))
            await asyncio.sleep(moment)
            wanted.cancel()
            with pytest.raises(asyncio.CancelledError):
                await wanted
            await asyncio.to_thread(until, lambda: [each for each in children() if each != first_of(own)] == [])
        assert (await own.run("echo", {"text": "a"})) == {"text": "a"}

    carried_out(story)


def first_of(own: Jobs) -> psutil.Process:
    """The process that the jobs of one are forked from."""
    process = own._starter._process
    assert process is not None
    return psutil.Process(process.pid)


def test_an_interpreter_that_does_not_start_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of being waited for."""
    monkeypatch.setattr(sys, "executable", "/bin/false")

    async def story(own: Jobs) -> None:
        with pytest.raises(Refusal) as raised:
            await own.run("steps", {})
        assert raised.value.reference == "job-lost"

    carried_out(story)


def test_a_moment_without_room_for_a_process_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system refuses one process (fork(2), EAGAIN): that job fails, and the next one is carried out."""
    start, refused = subprocess.Popen, [OSError(errno.EAGAIN, "no more processes")]

    def popen(*words: Any, **options: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401  # as `Popen` takes them
        if refused:
            raise refused.pop()
        return start(*words, **options)

    monkeypatch.setattr(subprocess, "Popen", popen)

    async def story(own: Jobs) -> None:
        with pytest.raises(OSError, match="no more processes"):
            await own.run("echo", {"text": "a"})
        assert await own.run("echo", {"text": "a"}) == {"text": "a"}

    carried_out(story)
