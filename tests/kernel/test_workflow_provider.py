"""From a session's context to a provider's process: the boundaries in the repository are what its command is told."""

import json

import pytest

from launcher.workflow.requests import ArtifactKey
from launcher.workflow.worktrees import run_options
from policy.providers.model import DialectName
from policy.providers.registry import load_registry, translate
from policy.sandbox_context import MainWorktreeContext, WorktreeSandboxContext
from tests.support.paddock import Paddock
from tests.support.workflow import Contexts

SESSION = ArtifactKey("run/dispatch/one")
PROGRAM = """#!/usr/bin/env python3
import json, os, sys
print(json.dumps([sys.argv[1:], dict(os.environ)]))
"""


@pytest.mark.spec("FR-004e", "FR-004d", "FR-004h")
@pytest.mark.parametrize(("provider", "command"), [("claude-code", "claude"), ("codex", "codex"), ("goose", "goose")])
def test_a_sessions_boundaries_reach_its_provider(user_paddock: Paddock, provider: str, command: str) -> None:
    """Looked up by session id, translated by the provider's strategy, given to the process that the jail holds."""
    paddock = user_paddock
    contexts = Contexts()
    main = MainWorktreeContext(worktree_id="one", worktree_path=paddock.worktree)
    contexts.update(SESSION, lambda before: before.evolve(worktree_context=WorktreeSandboxContext(main_worktree=main)))
    (paddock.worktree / command).write_text(PROGRAM)
    (paddock.worktree / command).chmod(0o755)
    paddock.who.give(paddock.worktree)
    context = contexts.get_worktree_context(SESSION)
    assert context is not None
    words = translate(load_registry(DialectName.CONTRACT).require(provider), context)
    assert words.arguments
    assert words.environment
    options = ("--provider", provider, "--dialect", "contract", "--net", "none")
    ended = paddock.run(*run_options(context), *options, "--", f"./{command}", "own", cwd=paddock.main.parent / "one")
    assert ended.returncode == 0, ended.stderr
    arguments, environment = json.loads(ended.stdout)
    assert arguments == ["own", *words.arguments]
    assert {name: environment[name] for name in words.environment} == words.environment
