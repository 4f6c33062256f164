"""File tools in this process, over a directory that stands for a worktree: for the tools' own rules, without a jail."""

import json
from collections.abc import Iterable
from pathlib import Path

from launcher.bridges.files.answers import Answer
from launcher.bridges.files.calls import CALLS
from launcher.bridges.files.scope import Scope
from launcher.bridges.files.worker import FileTools
from policy.worktree import MainWorktreeContext, SubmoduleWorktreeContext, WorktreeSandboxContext


def boundaries(root: Path, *, closed: Iterable[str] = (), denied: Iterable[Path] = ()) -> WorktreeSandboxContext:
    """The context of a worktree at `root`, whose submodules `closed` are not granted."""
    modules = tuple(
        SubmoduleWorktreeContext(
            submodule_name=name,
            worktree_id=f"w.{name}",
            worktree_path=root / name,
            main_worktree_id="w",
            granted=False,
        )
        for name in closed
    )
    return WorktreeSandboxContext(
        main_worktree=MainWorktreeContext(
            worktree_id="w",
            worktree_path=root,
            submodule_worktree_ids=tuple(module.worktree_id for module in modules),
        ),
        ungranted_submodules=modules,
        denied_paths=tuple(denied),
    )


class Files:
    """Calls of tools on one scope."""

    def __init__(self, scope: Scope) -> None:
        self.tools = FileTools(scope)

    def __call__(self, tool: str, **arguments: object) -> Answer:
        """One call, as the worker does it."""
        return self.tools.answer(CALLS[tool].model_validate(arguments))

    def text(self, tool: str, **arguments: object) -> str:
        """The text of a call that succeeds."""
        answer = self(tool, **arguments)
        assert not answer.failed, answer.text
        return answer.text

    def error(self, tool: str, **arguments: object) -> str:
        """The errorType of a call that fails, in whose JSON nothing is missing."""
        answer = self(tool, **arguments)
        assert answer.failed, answer.text
        return error_of(answer)


def error_of(answer: Answer) -> str:
    """The errorType of an error with all six keys."""
    told = json.loads(answer.text)
    assert list(told) == ["error", "errorType", "attemptedPath", "sandboxRoot", "operation", "message"]
    assert told["error"] is True
    assert told["message"]
    return str(told["errorType"])
