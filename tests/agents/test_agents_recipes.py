"""The recipes of docs/ do what they say, as they stand there."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from tests.support import acp_editor, agent_packages, agent_scene, identity, manual
from tests.support.agent_scene import Scene
from tests.support.features import need
from tests.support.models.script import Run, Step, Write

PATHS_OF_RECIPES = "/home/me/.local/bin/paddock", "/home/me/src/project-PROJ-17"


def recipe(name: str) -> str:
    """The block that stands under `<!-- recipe NAME -->` in README or docs/."""
    (found,) = re.findall(rf"<!-- recipe {name} -->\n```\w+\n(.*?)^```$", manual.documentation(), re.M | re.S)
    return str(found)


def server(text: str, title: str) -> list[str]:
    """The command line of one agent in an editor's settings."""
    known: dict[str, Any] = json.loads(text)["agent_servers"]
    assert known[title]["env"] == {}
    return [known[title]["command"], *known[title]["args"]]


def everyday(scene: Scene, worktree: Path) -> tuple[dict[str, str], list[Step]]:
    """A user who has Paddock and the agents in PATH and a way to the model in his configuration; and a day's work."""
    config = scene.who.home / ".config/paddock"
    config.mkdir(parents=True)
    (config / "config.toml").write_text(f'schema = 1\n\n[network]\nreach = ["127.0.0.1:{scene.model.port}"]\n')
    scene.who.give(scene.who.home / ".config")
    path = f"{scene.paddock.installed.paddock.parent}:{agent_packages.programs()}:{identity.SYSTEM_PATH}"
    script: list[Step] = [
        Write(f"{worktree}/made.txt", "made\n"),
        Run("git add made.txt && git commit -q --allow-empty -m 'agent: Work.'"),
        Write(f"{worktree.parent}/beside.txt", "x\n"),
    ]
    return scene.who.environment(scene.environment | {"PATH": path}), script


def judge(scene: Scene, worktree: Path, branch: str) -> None:
    """The agent has made a commit, and nothing beside the worktree."""
    assert scene.model.ended, scene.model.results
    assert scene.git("show", f"{branch}:made.txt") == "made"
    assert not (worktree.parent / "beside.txt").exists()


def test_zed_starts_agents_as_they_are_tried_elsewhere(scene: Scene) -> None:
    """Their commands are those of `test_agents_acp.py`, with the worktree as project; the way to the model comes from
    the user's configuration below.
    """
    tried = [("paddock", "acp", "--", *make(scene).command) for make in agent_scene.AGENTS]
    text = recipe("zed")
    titles = json.loads(text)["agent_servers"]
    assert len(titles) == 4
    assert [title for title in titles if tuple(server(text, title)) not in tried] == []


def test_an_ide_in_the_main_checkout_starts_an_agent_in_another_worktree(scene: Scene, tmp_path: Path) -> None:
    """JetBrains' settings, with the main checkout as project."""
    need("userns")
    text = recipe("jetbrains")
    for written, meant in zip(PATHS_OF_RECIPES, (scene.paddock.installed.paddock, scene.worktree), strict=True):
        assert written in text
        text = text.replace(written, str(meant))
    argv = server(text, "Claude Code on PROJ-17")
    env, scene.model.script = everyday(scene, scene.worktree)
    told = acp_editor.converse(scene.who.command(argv), cwd=scene.paddock.main, env=env, stderr=tmp_path / "stderr")
    assert told.status == 0, told.stderr
    judge(scene, scene.worktree, "one")


def test_agents_are_jailed_by_links_in_front_of_them(scene: Scene) -> None:
    """The user calls `codex` as ever. `claude`, by the same line: `tests/kernel/test_examples.py`, and below."""
    need("userns")
    env, scene.model.script = everyday(scene, scene.worktree)
    settings = [word for setting in scene.codex_settings for word in ("-c", setting)]
    command = ["codex", "exec", *settings, "Work."]
    ended = shell(scene, f'{recipe("aliases")}\nexec "$@"', *command, cwd=scene.worktree, env=env)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "paddock: " in ended.stderr
    judge(scene, scene.worktree, "one")
    assert scene.git("rev-list", "--count", "main..one") == "1"


def test_a_ticket_becomes_a_merge(scene: Scene) -> None:
    """The script makes a worktree, lets an agent work there, and merges what it committed."""
    need("userns")
    worktree = scene.paddock.place / "main-PROJ-17"
    env, scene.model.script = everyday(scene, worktree)
    ended = shell(scene, recipe("script"), "PROJ-17", "Do your work.", cwd=scene.paddock.main, env=env)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    judge(scene, worktree, "main")
    assert not worktree.exists()


def shell(scene: Scene, text: str, *words: str, cwd: Path, env: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """Runs a script of sh(1) with arguments, as the user."""
    return scene.who.run(["sh", "-c", text, "recipe", *words], cwd=cwd, env=env, timeout=120)
