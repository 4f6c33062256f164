"""The words that hold a session's command to its worktree."""

from pathlib import Path

import pytest

from launcher.workflow.request_context import ContextState
from launcher.workflow.requests import ArtifactKey
from launcher.workflow.worktrees import run_options
from policy.providers.model import DialectName
from policy.providers.registry import Translation, load_registry, translate
from tests.support.workflow import Contexts, worktree

KEY = ArtifactKey("run/one")


def test_what_is_not_granted_is_denied_by_path() -> None:
    """Submodules and exceptions; a plain worktree needs its root only."""
    assert run_options(worktree("w", granted=("a",))) == ["--worktree", "/trees/w"]
    closed = worktree("w", granted=("a",), closed=("b",)).model_copy(
        update={"denied_paths": (Path("/trees/w/x"),), "freeze_root": True}
    )
    expected = ["--worktree", "/trees/w", "--deny", "/trees/w/b", "--deny", "/trees/w/x", "--freeze-root"]
    assert run_options(closed) == expected


@pytest.mark.spec("FR-004f", "FR-004g", "CONTRACT-2a")
def test_a_sessions_worktree_becomes_the_providers_words() -> None:
    """Each provider's own, of the boundaries that the repository has, and none of a session that is over."""
    contexts = Contexts()
    registry = load_registry(DialectName.CONTRACT)
    assert contexts.get_worktree_context(KEY) is None
    contexts.update(KEY, lambda context: context.evolve(worktree_context=worktree("w")))
    assert contexts.state(KEY) is ContextState.ENRICHED
    found = contexts.get_worktree_context(KEY)
    assert found is not None
    assert contexts.state(KEY) is ContextState.CONSUMED
    codex = translate(registry.require("codex"), found)
    assert codex == Translation({"CODEX_WORKSPACE": "/trees/w"}, ["--workspace", "/trees/w"])
    goose = translate(registry.require("goose"), found)
    assert goose == Translation({"GOOSE_ROOT_DIR": "/trees/w"}, ["--root-dir", "/trees/w"])
    assert registry.get_strategy("nobody") is None
    contexts.clear(KEY)
    assert contexts.get_worktree_context(KEY) is None
