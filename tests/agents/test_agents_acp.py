"""Real agents over ACP, as an editor starts them, do their work in a jail, and nothing beyond it."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import agent_home, agent_scene
from tests.support.agent_scene import EXECUTED, Scene
from tests.support.features import need
from tests.support.models.script import Run, Step, Write


def forged(scene: Scene) -> Run:
    """Words in the agent's own name: a shell in the jail asks the editor, through the agent's standard output.

    Most agents have no use for what an editor offers, but whatever they start can open the end of that pipe.
    """
    outside = scene.outside
    calls: list[tuple[str, dict[str, object]]] = [
        ("fs/write_text_file", {"path": f"{outside}/by-editor", "content": "x"}),
        ("fs/read_text_file", {"path": f"{outside}/secret"}),
        ("terminal/create", {"command": f"{outside}/tool", "args": [], "cwd": str(outside)}),
    ]
    lines = [
        json.dumps(
            {"jsonrpc": "2.0", "id": f"forged-{number}", "method": method, "params": {"sessionId": "s", **params}}
        )
        for number, (method, params) in enumerate(calls)
    ]
    return Run(f"printf '%s\\n' {shlex.join(lines)} >/proc/2/fd/1 && echo asked the editor")


@pytest.mark.parametrize("make", agent_scene.AGENTS)
def test_an_agent_of_an_editor_works_in_its_worktree_and_reaches_nothing_else(
    scene: Scene, make: Callable[[Scene], agent_scene.Agent], tmp_path: Path
) -> None:
    """It writes, reads, executes and commits there; outside, neither its tools nor the editor do, whoever asks.

    Nor is it told what its user has at home, as nobody brought it; and it asks the editor for no permission.
    """
    need("userns")
    agent = make(scene)
    agent_home.furnish(scene, make.__name__)
    *script, last = scene.script()
    told = agent_scene.talk(scene, agent, [*script, forged(scene), last], tmp_path / "stderr")
    assert (told.stop_reason, told.status) == ("end_turn", 0), told.stderr
    scene.judge(scene.model.script, hosts=agent.hosts)
    assert told.editor.written == [f"{scene.worktree}/made.txt"] * agent.through_editor
    assert (told.editor.run, told.editor.allowed) == ([], [])
    assert agent_home.told(scene) == set(), told.stderr
    assert "1 commit harvested to one" in told.stderr
    if agent.through_terminal:  # a jail's further commands have no way to what its first one holds open
        assert "/proc/2/fd/1: Permission denied" in scene.model.results[-2]
        return
    assert "asked the editor" in scene.model.results[-2]
    refused = [json.loads(line)["path"] for line in scene.paddock.call("denials", "--json").stdout.splitlines()]
    assert {f"{scene.outside}/by-editor", f"{scene.outside}/secret"} <= set(refused)


def test_without_the_bridge_an_editor_writes_and_executes_outside_for_an_agent(scene: Scene, tmp_path: Path) -> None:
    """The editor is in no jail, and a prefix alone does not see what it is asked for, by an agent that leaves both to
    it.
    """
    need("userns")
    beside, agent = scene.beside, agent_scene.goose(scene)
    script: list[Step] = [Write(str(beside), "x\n"), Run(f"{scene.outside}/tool")]
    told = agent_scene.talk(scene, agent, script, tmp_path / "stderr", verb="run")
    assert told.editor.written == [str(beside)], told.stderr
    assert beside.read_text() == "x\n"
    assert EXECUTED in scene.model.results[1]
