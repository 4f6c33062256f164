"""The process of one job (`launcher.service.jobs`): reads its arguments as JSON, says its result or refusal as JSON."""

import json
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from launcher.jail import init, processes
from policy.errors import Refusal


def main(parent: str, name: str) -> NoReturn:
    """Carries out the job `name` and ends this process.

    Args:
        parent: process id of the service, whose end is this process's, too.
        name: out of `TABLE`.
    """
    processes.tie_to_parent(int(parent))
    arguments = json.load(sys.stdin)
    answer: dict[str, Any]
    # What libraries print is no part of the answer.
    out = os.dup(1)
    os.dup2(2, 1)
    try:
        answer = {"result": TABLE[name](**arguments)}
    except Refusal as refusal:
        answer = {"refusal": refusal.as_dict()}
    except Exception as error:
        import traceback

        traceback.print_exc()
        answer = {"refusal": init.failure(f"{name} could not go on", error).as_dict()}
    with os.fdopen(out, "w", encoding="utf-8") as stream:
        json.dump(answer, stream)
    os._exit(0)


def harvest(worktree: str, strict: bool) -> dict[str, Any]:
    """Takes over what waits in a worktree's private git directory; {} when it never had one.

    Args:
        worktree: its root.
        strict: refuse commits that change hand-off files.

    Raises:
        Refusal: as `paddock worktree harvest` does.
    """
    from launcher.session import configuration, harvesting, places
    from launcher.vcs.quarantine import record
    from launcher.vcs.worktrees.naming import worktree_id

    where = record.directory_of(places.places(os.environ).state, worktree_id(worktree))
    if not os.path.isdir(where):
        return {}
    settings, _ = configuration.load(worktree, None, None, os.environ)
    patterns = [(entry.value, "protect") for entry in settings.handoff_protect]
    patterns += [(entry.value, "report") for entry in settings.handoff_report]
    return harvesting.take(where, patterns, strict=strict).as_dict()


TABLE: dict[str, Callable[..., dict[str, Any]]] = {"harvest": harvest}
