"""Promises about the kernel's surface and about limits."""

import json
import os
import signal
from pathlib import Path

from policy import promises
from tests.support.identity import AS_A_USER
from tests.support.install import base_python
from tests.support.programs.scene import Answers, Scene

LIMITS = {"open_files": 64, "file_size": 1 << 20, "memory": 256 << 20, "processes": 40, "cpu_time": 60}


def test_promise_kernel_surface(scene: Scene) -> None:
    """Calls that no agent needs are closed, by whatever instruction set and number; debugging one's child is not."""
    before = os.uname(), Path("/proc/sys/kernel/core_pattern").read_text()
    answers = scene.tried("surface", {})
    assert (os.uname(), Path("/proc/sys/kernel/core_pattern").read_text()) == before
    scene.judge("kernel-surface", answers)


@AS_A_USER
def test_promise_kernel_surface_with_an_open_network(scene: Scene) -> None:
    """--net open opens the network and nothing else."""
    scene.judge("kernel-surface", scene.tried("surface", {}, "--net", "open"))


def test_promise_limits(scene: Scene) -> None:
    """A limit that was set cannot be passed or lifted; what is not enforced, the report says."""
    words = [word for name, value in LIMITS.items() for word in ("--limit", f"{name}={value}")]
    # Where processes are counted by user, those outside count too, and the launcher's own.
    counted = LIMITS | ({"processes": 4000} if not promises.has_mounts(scene.backend) and scene.who.uid else {})
    words[words.index("processes=40")] = f"processes={counted['processes']}"
    # Who computes too long is ended with the whole jail: below, and test_limits.py.
    leave = ["compute_too_long"] + (["start_too_many_processes"] if counted["processes"] > 1000 else [])
    answers = scene.tried("limits", {"limits": counted, "leave": leave}, *words)
    (report,) = scene.place.glob("report-*")
    verdicts = {item["limit"]: item["verdict"] for item in json.loads(report.read_text())["limits"]}
    assert set(verdicts) >= set(LIMITS)
    unheld = {name for name, verdict in verdicts.items() if verdict != "held"}
    assert unheld <= {"processes"}
    assert not unheld or scene.who.uid == 0, "only root is exempt from the number of processes"
    held = Answers(answer for answer in answers if not unheld or answer["name"] != "start_too_many_processes")
    scene.judge("limits", held)


@AS_A_USER
def test_promise_limits_of_processor_time(scene: Scene) -> None:
    """A jail that computes longer than its limit is ended, by a signal; one that stays below is not."""
    loop: list[str | Path] = [base_python(), "-I", "-S", "-c", "import sys\nfor _ in range(int(sys.argv[1])): pass"]
    ended = scene.run([*loop, str(10**10)], "--limit", "cpu_time=1")
    assert ended.returncode in (128 + signal.SIGKILL, 128 + signal.SIGXCPU), ended.stderr
    assert scene.run([*loop, "1000"], "--limit", "cpu_time=1").returncode == 0


@AS_A_USER
def test_a_shell_in_the_jail_may_use_the_number_of_processes_it_was_given(scene: Scene) -> None:
    """Below the limit everything starts."""
    program = "for i in 1 2 3 4 5 6 7 8; do sleep 0.05 & done; wait; echo ok"
    processes = "40" if promises.has_mounts(scene.backend) else "4000"
    ended = scene.run(["bash", "-c", program], "--limit", f"processes={processes}")
    assert ended.stdout == "ok\n", ended.stderr
