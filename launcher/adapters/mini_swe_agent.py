"""mini-swe-agent's environment interface over a sandbox: ``mini --environment-class`` takes the class by its name."""

import logging
import platform
import weakref
from typing import Any

from minisweagent.exceptions import Submitted
from pydantic import BaseModel, ConfigDict

from launcher.api import Sandbox
from policy.errors import Refusal

_SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
_OVER = ("sandbox-closed", "sandbox-ended")


class PaddockEnvironmentConfig(BaseModel):
    """What ``-c environment.NAME=VALUE`` sets.

    Attributes:
        cwd: the worktree or directory that commands work in; the present one by default.
        options: further ones of ``paddock run``.
        commit: commands work in a new worktree beside `cwd`, made from this commit.
        cow: commands work on a copy of `cwd`.
        env: variables on top of the session's.
        timeout: seconds until a command is ended, with all that it has started.
        interpreter: a command's text is its last argument.
    """

    model_config = ConfigDict(extra="forbid")

    cwd: str = ""
    options: list[str] = []
    commit: str | None = None
    cow: bool = False
    env: dict[str, str] = {}
    timeout: float = 30
    interpreter: list[str] = ["bash", "-c"]


class PaddockEnvironment:
    """One live sandbox for all commands of a run; it is closed by `cleanup`, or at the end of the programme.

    Attributes:
        config: see `PaddockEnvironmentConfig`.
        box: the sandbox: `diff`, `commits`, `denials` tell what commands did.
    """

    def __init__(self, **settings: object) -> None:
        """Makes the sandbox; Refusals as of ``paddock run``."""
        self.config = config = PaddockEnvironmentConfig.model_validate(settings)
        self.box = Sandbox(config.cwd or ".", config.options, commit=config.commit, cow=config.cow)
        self._close = weakref.finalize(self, _closed, self.box)

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: float | None = None) -> dict[str, Any]:
        """Runs a command to its end, as mini-swe-agent's own environments do.

        Args:
            action: its text is "command".
            cwd: where it starts, relative to the root of the worktree.
            timeout: seconds, in place of the configured ones.

        Returns:
            "output" (both streams), "returncode", "exception_info", and what was refused as "extra".

        Raises:
            Submitted: the command's output is the answer to the task.
            Refusal: the sandbox has ended: nothing can be run any more.
        """
        command, patience = action.get("command", ""), timeout or self.config.timeout
        try:
            done = self.box.exec(
                [*self.config.interpreter, command], timeout=patience, env=self.config.env, cwd=cwd, merge=True
            )
        except Refusal as refusal:
            if refusal.reference in _OVER:
                raise
            return _result("", -1, str(refusal), exception_type=refusal.reference)
        refused = {"denials": list(done.denials)} if done.denials else {}
        if done.timed_out:
            return _result(done.text, -1, f"the command was ended after {patience:g} seconds", **refused)
        first, _, rest = done.text.lstrip().partition("\n")
        if done.status == 0 and first.strip() == _SUBMIT:
            extra = {"exit_status": "Submitted", "submission": rest}
            raise Submitted({"role": "exit", "content": rest, "extra": extra})
        return _result(done.text, done.status, "", **refused)

    def get_template_vars(self, **further: Any) -> dict[str, Any]:  # noqa: ANN401
        """The configuration and what machine this is, for the prompts' templates."""
        return {**self.config.model_dump(), **platform.uname()._asdict(), **further}

    def serialize(self) -> dict[str, Any]:
        """The configuration, for the record of a run."""
        kind = f"{type(self).__module__}.{type(self).__name__}"
        return {"info": {"config": {"environment": self.config.model_dump(mode="json"), "environment_type": kind}}}

    def cleanup(self) -> None:
        """Ends all that runs in the sandbox; of a worktree, what was committed is harvested."""
        self._close()


def _closed(box: Sandbox) -> None:
    box.close()
    if box.messages:
        logging.getLogger("minisweagent.environment").warning(box.messages.rstrip())


def _result(output: str, status: int, problem: str, **extra: Any) -> dict[str, Any]:  # noqa: ANN401
    result = {"output": output, "returncode": status, "exception_info": problem}
    return {**result, "extra": extra} if extra else result
