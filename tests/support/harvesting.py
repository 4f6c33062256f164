"""A programme for tests: one harvest in a process of its own, which may kill itself at any step.

Words: a JSON object with limits, branches, strict, sign, kill_at (number of the step before which it dies, from 1),
kill_before (name of that step), everything (its git processes die with it), dies (a command of git's that begins to
write an index and is ended by a signal, SEGV or what stands behind a colon), and the directory. Prints the result or
the Refusal as JSON; `steps` among it are the steps that were told, `with_git` the numbers of those beside which git
ran.
"""

import json
import os
import signal
import subprocess
import sys
from typing import Any

from launcher.jail import processes
from launcher.vcs.git import Git
from launcher.vcs.harvest.harvest import harvest
from launcher.vcs.harvest.parts import Limits
from launcher.vcs.jailed_git import JailedGit
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

    if spec.get("dies"):
        _kill(*spec["dies"].split(":"))
    try:
        result = harvest(
            directory,
            limits=Limits(**spec.get("limits", {})),
            branches=spec.get("branches", {}),
            handoff=lambda change: (change.change, change.path, "report"),
            strict=spec.get("strict", False),
            sign=spec.get("sign", False),
            follow=spec.get("follow"),
            step=step,
        )
        answer = result.as_dict()
    except Refusal as refusal:
        answer = dict(refusal.as_dict())
    print(json.dumps(answer | {"steps": steps, "with_git": with_git}))


def _kill(command: str, by: str = "SEGV") -> None:
    """Has each git of that command die, by a signal, over the index that it is to make, in a jail or not."""

    def dying(start: Any) -> Any:  # noqa: ANN401  # `start` of a class
        def started(git: Git, *words: str, **given: Any) -> "subprocess.Popen[bytes]":  # noqa: ANN401  # as `Git.start`
            index = (given.get("environment") or {}).get("GIT_INDEX_FILE")
            if words[0] != command or index is None:
                answer: subprocess.Popen[bytes] = start(git, *words, **given)
                return answer
            line = ("sh", "-c", ': >"$0.lock"; ulimit -c 0; kill -s "$1" $$', index, by)
            out, err = given["stdout"], given["stderr"]
            return subprocess.Popen(line, stdin=given["stdin"], stdout=out, stderr=err, start_new_session=True)

        return started

    for kind in (Git, JailedGit):
        kind.start = dying(kind.start)  # type: ignore[method-assign]


def _is_git(pid: int) -> bool:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return os.path.basename(file.read().partition(b"\0")[0]) == b"git"


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2])
