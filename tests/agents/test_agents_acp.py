"""Real agents over ACP, as an editor starts them, do their work in a jail, and nothing beyond it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import acp_agents
from tests.support.agent_scene import Scene
from tests.support.features import need
from tests.support.models.script import Step, Write


@pytest.mark.parametrize("make", acp_agents.AGENTS)
def test_an_agent_of_an_editor_works_in_its_worktree_and_reaches_nothing_else(
    scene: Scene, make: Callable[[Scene], acp_agents.Agent], tmp_path: Path
) -> None:
    """It writes, reads, executes and commits there; outside, its file tool and its shell do none of that."""
    need("userns")
    agent = make(scene)
    told = acp_agents.talk(scene, agent, scene.script(), tmp_path / "stderr")
    assert (told.stop_reason, told.status) == ("end_turn", 0), told.stderr
    scene.judge(scene.model.script, hosts=agent.hosts)
    assert told.editor.run == []
    assert "1 commit harvested to one" in told.stderr


def test_the_bridge_does_not_let_an_editor_write_outside_for_an_agent(scene: Scene, tmp_path: Path) -> None:
    """What is asked for in the worktree is done by the editor; what is asked for beside it never reaches it."""
    need("userns")
    within, beside = scene.worktree / "by-the-editor", scene.worktree.parent / "by-the-editor"
    script: list[Step] = [Write(str(within), "x\n"), Write(str(beside), "x\n")]
    told = acp_agents.talk(scene, acp_agents.qwen(scene), script, tmp_path / "stderr")
    assert told.editor.written == [str(within)], told.stderr
    assert within.read_text() == "x\n"
    assert not beside.exists()
    assert len(scene.model.results) == len(script)
    assert str(beside) in scene.paddock.call("denials", "--json").stdout


def test_without_the_bridge_an_editor_writes_outside_for_an_agent(scene: Scene, tmp_path: Path) -> None:
    """The editor is in no jail, and a prefix alone does not see what it is asked for."""
    need("userns")
    beside = scene.worktree.parent / "by-the-editor"
    told = acp_agents.talk(scene, acp_agents.qwen(scene), [Write(str(beside), "x\n")], tmp_path / "stderr", verb="run")
    assert told.editor.written == [str(beside)], told.stderr
    assert beside.read_text() == "x\n"
