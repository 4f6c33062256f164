"""Codex has a sandbox of its own, which cannot start in another one: in a jail it has to be off.

That our translation switches it off is seen in `test_agents_cli.py`.
"""

from pathlib import Path

from tests.support import agent_scene
from tests.support.agent_scene import Scene
from tests.support.features import need

BROKEN = "bwrap: No permissions to create new namespace"


def command(scene: Scene, *switches: str) -> list[str]:
    settings = [word for setting in scene.codex_settings for word in ("-c", setting)]
    return ["codex", "exec", *switches, *settings, "Do your work."]


def test_without_the_translation_no_command_runs_and_codex_ends_well(scene: Scene) -> None:
    """What users of a plain sandbox see: status 0, and nothing done."""
    need("userns")
    scene.model.script = scene.script()[:3]
    words = command(scene, "--sandbox", "workspace-write")
    ended = scene.run("--provider", "none", "--net", "proxy", "--env", "OPENAI_API_KEY", "--", *words)
    assert ended.returncode == 0
    assert [BROKEN in result for result in scene.model.results] == [False, True, True]
    assert sorted(path.name for path in scene.worktree.iterdir()) == [".git", "file", "tool"]


def test_without_the_translation_the_adapter_reports_the_end_of_a_turn(scene: Scene, tmp_path: Path) -> None:
    """Over ACP an editor is told that all went well."""
    need("userns")
    agent = agent_scene.codex(scene)
    options = ("--provider", "none", "--net", "proxy", "--env", "OPENAI_API_KEY", "--env", "CODEX_CONFIG")
    untold = agent_scene.Agent(agent.command, agent.environment | {"INITIAL_AGENT_MODE": "agent"}, options=options)
    told = agent_scene.talk(scene, untold, scene.script()[2:3], tmp_path / "stderr")
    assert told.stop_reason == "end_turn"
    assert BROKEN in scene.model.results[0]
    assert not (scene.worktree / "shell.txt").exists()
