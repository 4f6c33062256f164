"""An agent whose questions are kept asks; that it asks nobody otherwise is seen where it has its keys and an editor."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import agent_scene
from tests.support.agent_scene import Agent, Scene
from tests.support.features import need


@pytest.mark.parametrize("make", [agent_scene.claude, agent_scene.gemini, agent_scene.goose])
def test_an_agent_whose_questions_are_kept_asks(scene: Scene, make: Callable[[Scene], Agent], tmp_path: Path) -> None:
    """The editor's user decides then, as without a jail."""
    need("userns")
    kept = replace(make(scene), options=("--keep-prompts",))
    told = agent_scene.talk(scene, kept, scene.script()[:3], tmp_path / "stderr")
    assert told.stop_reason == "end_turn"
    assert told.editor.allowed
