"""A programme for tests: one harvest in a process of its own, which may kill itself at any step.

Words: a JSON object with limits, branches, strict, sign, kill_at (number of the step before which it dies, from 1),
kill_before (name of that step), everything (its git processes die with it), and the directory. Prints the result or the
Refusal as JSON; `steps` among it are the steps that were told, `with_git` the numbers of those beside which git ran.
"""

import json
import os
import signal
import sys
from typing import Any

from launcher.jail import processes
from launcher.vcs.harvest.harvest import harvest
from launcher.vcs.harvest.parts import Limits
from policy.errors import Refusal


def main(spec: dict[str, Any], directory: str) -> None:
    steps: list[str] = []
    with_git: list[int] = []

    def step(what: str) -> None:
        steps.append(what)
        if any(_is_git(child) for child in processes.children(os.getpid())):
            with_git.append(len(steps))
        if len(steps) == spec.get("kill_at") or what == spec.get("kill_before"):
            for child in processes.children(os.getpid()) if spec.get("everything") else ():
                os.kill(child, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        result = harvest(
            directory,
            limits=Limits(**spec.get("limits", {})),
            branches=spec.get("branches", {}),
            handoff=lambda changes: tuple((change.change, change.path, "report") for change in changes),
            strict=spec.get("strict", False),
            sign=spec.get("sign", False),
            follow=spec.get("follow"),
            step=step,
        )
        answer = result.as_dict()
    except Refusal as refusal:
        answer = dict(refusal.as_dict())
    print(json.dumps(answer | {"steps": steps, "with_git": with_git}))


def _is_git(pid: int) -> bool:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return os.path.basename(file.read().partition(b"\0")[0]) == b"git"


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2])
