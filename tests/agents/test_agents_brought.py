"""Real agents find in a jail what their user has at home: instructions, skills and MCP servers, when he brings them."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import agent_home, agent_scene
from tests.support.agent_home import INSTRUCTIONS, SERVER_KEY, SKILL
from tests.support.agent_scene import Scene
from tests.support.features import need
from tests.support.models.script import Run

_GRACE = ("--grace", "3")  # Gemini stays when its editor has left, while a server of its own lives


@pytest.mark.parametrize("name", agent_home.AGENTS)
def test_an_agent_is_told_what_its_user_brings(scene: Scene, name: str, tmp_path: Path) -> None:
    """That it is told nothing otherwise, and starts no server, is seen in `test_agents_acp.py`."""
    need("userns")
    agent_home.furnish(scene, name)
    agent = getattr(agent_scene, name)(scene)
    chosen = replace(agent, options=(*agent.options, "--bring", "agents", *_GRACE))
    told = agent_scene.talk(scene, chosen, [Run("true")], tmp_path / "log")
    wanted = {INSTRUCTIONS, SKILL, *([] if name == "goose" else [SERVER_KEY])}
    assert agent_home.told(scene) == wanted, told.stderr
