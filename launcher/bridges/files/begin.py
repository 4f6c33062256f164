"""The step before a worker: makes the plan of its jail, says which boundaries follow from it, and becomes the launcher.

A process of its own, because planning tries out what the kernel offers in forked children, which a process with
threads must not do, and the router has some. Standard output is a pipe to it and carries nothing but these words; the
jail does not exist yet, so they can be believed.

Started as ``python -I -m launcher.bridges.files.begin TASK``.
"""

import os
import sys

from pydantic import BaseModel, ConfigDict, field_validator

from launcher import wire
from launcher.bridges.files import frames
from launcher.bridges.files.scope import Scope
from launcher.session import messages, planning
from launcher.session.places import places
from launcher.vcs import written
from policy.errors import Refusal


class Task(BaseModel):
    """What is to be begun.

    Attributes:
        options: launch options, as `launcher.cli.parse` gives them.
        root: the worktree.
        worker: the worker's command line, which the plan is made for.
        argv: what this process becomes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    options: dict[str, str | list[str] | bool]
    root: str
    worker: list[str]
    argv: list[str]


class Begun(BaseModel):
    """What follows for the session.

    Attributes:
        scope: the worker's boundaries.
        plan: of its jail, as `Plan.to_data` gives it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    scope: Scope
    plan: tuple[object, ...]

    @field_validator("plan")
    @classmethod
    def _tuples(cls, value: tuple[object, ...]) -> tuple[object, ...]:
        return tuple(map(_as_tuple, value))  # JSON knows lists only


def _as_tuple(value: object) -> object:
    return tuple(map(_as_tuple, value)) if isinstance(value, list | tuple) else value


def main(text: str) -> int:
    """Returns only when the plan is refused: the exit status."""
    task = Task.model_validate_json(text)
    try:
        own = places(os.environ)
        planned = planning.make(dict(task.options), task.worker, task.root, own)
        written.remember(own.state, planned.plan)
    except Refusal as refusal:
        messages.say(str(refusal))
        return refusal.exit_code
    scope = Scope(context=planned.context, handoff=planned.plan.handoff_patterns)
    wire.write(1, frames.packed(Begun(scope=scope, plan=planned.plan.to_data())))
    os.execv(task.argv[0], task.argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
