"""An agent that is recognised by its command alone asks nobody in a jail, unless its questions are kept."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import agent_scene
from tests.support.agent_scene import EXECUTED, KEY, Agent, Scene
from tests.support.features import need


def claude(_scene: Scene) -> Agent:
    """As an editor starts it."""
    return Agent(("claude-agent-acp",))


def codex(scene: Scene) -> Agent:
    """With the way to the model in its configuration."""
    return Agent(("codex-acp",), agent_scene.codex(scene).environment)


def opencode(scene: Scene) -> Agent:
    """The same; what it may do is not said there."""
    return Agent(("opencode", "acp"), agent_scene.opencode(scene).environment)


def goose(scene: Scene) -> Agent:
    """It asks nobody by itself, so here its user wants to be asked."""
    agent = agent_scene.goose(scene)
    return replace(agent, environment=agent.environment | {"GOOSE_MODE": "approve"})


def gemini(scene: Scene) -> Agent:
    """Its key and its server are variables that the provider's file names."""
    environment = {"GEMINI_API_KEY": KEY, "GOOGLE_GEMINI_BASE_URL": scene.model.url}
    return Agent(("gemini", "--acp"), environment, login="gemini-api-key")


def qwen(scene: Scene) -> Agent:
    """The same."""
    environment = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{scene.model.url}/v1", "OPENAI_MODEL": "m"}
    return Agent(("qwen", "--acp", "--auth-type", "openai"), environment, login="openai")


@pytest.mark.parametrize("make", [claude, codex, goose, opencode, gemini, qwen])
def test_an_agent_in_a_jail_does_not_ask(scene: Scene, make: Callable[[Scene], Agent], tmp_path: Path) -> None:
    """Neither before it writes a file nor before it runs a command; and it is told of no option but by Paddock."""
    need("userns")
    told = agent_scene.talk(scene, make(scene), scene.script()[:3], tmp_path / "stderr")
    assert (told.stop_reason, told.editor.allowed) == ("end_turn", []), told.stderr
    assert (scene.worktree / "made.txt").exists()
    assert EXECUTED in scene.model.results[2]


@pytest.mark.parametrize("make", [claude, gemini, goose])
def test_an_agent_whose_questions_are_kept_asks(scene: Scene, make: Callable[[Scene], Agent], tmp_path: Path) -> None:
    """The editor's user decides then, as without a jail."""
    need("userns")
    agent = make(scene)
    kept = replace(agent, options=("--keep-prompts",))
    told = agent_scene.talk(scene, kept, scene.script()[:3], tmp_path / "stderr")
    assert told.stop_reason == "end_turn"
    assert told.editor.allowed
