"""The command line programmes of real agents do their work in a jail, and nothing beyond it."""

from collections.abc import Callable

import pytest

from policy import promises
from tests.support import agent_home
from tests.support.agent_home import INSTRUCTIONS, SERVER_KEY, SKILL
from tests.support.agent_scene import ELSEWHERE, EXECUTED, SECRET, Scene
from tests.support.features import need
from tests.support.programs.scene import SWITCHES


def claude(_scene: Scene) -> list[str]:
    return ["claude", "-p", "Do your work."]


def codex(scene: Scene) -> list[str]:
    settings = [word for setting in scene.codex_settings for word in ("-c", setting)]
    return ["codex", "exec", *settings, "Do your work."]


Agent = Callable[[Scene], list[str]]


@pytest.mark.parametrize(
    ("agent", "backend"),
    [(claude, promises.GUARD), (claude, promises.BUBBLEWRAP), (codex, promises.NAMESPACES)],
)
def test_an_agent_works_in_its_worktree_and_reaches_nothing_else(scene: Scene, agent: Agent, backend: str) -> None:
    """It writes, reads, executes and commits there; outside, its file tool and its shell do none of that.

    It is told what its user brings, by his own configuration; and codex says that its sandbox is off.
    """
    need("bubblewrap" if backend == promises.BUBBLEWRAP else "userns")
    environment, options = SWITCHES[backend]
    agent_home.furnish(scene, agent.__name__)
    scene.who.run(
        ["sh", "-c", "mkdir -p ~/.config/paddock; printf '[bring]\nagents = true\n' >~/.config/paddock/config.toml"]
    )
    scene.model.script = scene.script()
    ended = scene.run(*options, "--", *agent(scene), env=environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    # Without mounts there is no private git directory in a worktree that Paddock did not make.
    commits = backend != promises.GUARD
    scene.judge(scene.model.script, commits=commits)
    assert ("1 commit harvested to one" in ended.stderr) is commits
    assert agent_home.told(scene) == {INSTRUCTIONS, SKILL, SERVER_KEY}, ended.stderr
    assert "failed to" not in ended.stderr
    assert ("sandbox: danger-full-access" in ended.stderr) is (agent is codex)


@pytest.mark.parametrize(
    ("agent", "switch"),
    [(claude, "--dangerously-skip-permissions"), (codex, "--dangerously-bypass-approvals-and-sandbox")],
)
def test_without_a_jail_the_same_script_reaches_all_of_it(scene: Scene, agent: Agent, switch: str) -> None:
    """So what is stopped in a jail is not stopped by the agent, nor for want of an attack."""
    scene.model.script = scene.script(survivor=False)[3:]
    command = agent(scene)
    environment = scene.environment | {"NO_PROXY": "127.0.0.1"}
    ended = scene.who.run([*command[:-1], switch, command[-1]], cwd=scene.worktree, env=environment, timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    told = "".join(str(request.body) for request in scene.model.requests)
    assert sorted(path.name for path in scene.outside.iterdir()) == ["by-file-tool", "by-shell", "secret", "tool"]
    assert scene.beside.exists()
    assert SECRET in told
    assert EXECUTED in told
    assert scene.elsewhere.connections == 1
    assert [line for line in scene.company.asked if ELSEWHERE in line]
