"""How a user would have set up each real agent for the model server, and one prompt to it over ACP."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from policy import bundles
from tests.support import acp_editor
from tests.support.acp_editor import Conversation
from tests.support.agent_scene import KEY, Scene
from tests.support.models.script import Step

PROVIDER_OF_OURS = "ours"
PACKAGES = frozenset(rule.partition(":")[0] for rule in bundles.require("@node").rules)


THROUGH_EDITOR = ("--fs", "editor")
"""Options for agents whose file tool uses the editor's: the default is tried where their questions are."""


@dataclass(frozen=True)
class Agent:
    """How a user would have set up one agent for the model server.

    Attributes:
        command: what speaks ACP; the provider is found from it.
        environment: what the user would have exported.
        login: the method that an editor authenticates with.
        hosts: what it asks for of its own accord, for plug-ins and packages. Nobody can switch it off for a session.
        options: of `paddock`.
        through_editor: whether its file tool uses an editor that offers to read and write.
        through_terminal: whether its shell is the editor's terminal, which the bridge has in the jail beside it.
    """

    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    login: str = ""
    hosts: frozenset[str] = frozenset()
    options: tuple[str, ...] = ()
    through_editor: bool = False
    through_terminal: bool = False


def claude(_scene: Scene) -> Agent:
    return Agent(("claude-agent-acp",))


def codex(scene: Scene) -> Agent:
    model = {"name": "Ours", "base_url": f"{scene.model.url}/v1", "env_key": "OPENAI_API_KEY", "wire_api": "responses"}
    settings = {"model_provider": PROVIDER_OF_OURS, "model_providers": {PROVIDER_OF_OURS: model}}
    environment = {"CODEX_CONFIG": json.dumps(settings)}
    return Agent(("codex-acp",), environment, hosts=frozenset({"chatgpt.com", "github.com", "api.github.com"}))


def opencode(scene: Scene) -> Agent:
    options = {"baseURL": f"{scene.model.url}/v1", "apiKey": KEY}
    model = {"npm": "@ai-sdk/openai-compatible", "name": "Ours", "options": options, "models": {"m": {"name": "M"}}}
    settings = {
        "model": f"{PROVIDER_OF_OURS}/m",
        "provider": {PROVIDER_OF_OURS: model},
    }
    environment = {
        "OPENCODE_CONFIG_CONTENT": json.dumps(settings),
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
    }
    return Agent(("opencode", "acp"), environment, hosts=PACKAGES)


def goose(scene: Scene) -> Agent:
    environment = {"GOOSE_PROVIDER": "openai", "GOOSE_MODEL": "m", "OPENAI_HOST": scene.model.url}
    return Agent(("goose", "acp", "--with-builtin", "developer"), environment, through_terminal=True)


def gemini(scene: Scene) -> Agent:
    environment = {
        "GEMINI_API_KEY": KEY,
        "GOOGLE_GEMINI_BASE_URL": scene.model.url,
    }
    command = ("gemini", "--acp")
    return Agent(command, environment, login="gemini-api-key", through_editor=True, options=THROUGH_EDITOR)


def qwen(scene: Scene) -> Agent:
    environment = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{scene.model.url}/v1", "OPENAI_MODEL": "m"}
    command = ("qwen", "--acp", "--auth-type", "openai")
    return Agent(command, environment, login="openai", through_editor=True, options=THROUGH_EDITOR)


def copilot(scene: Scene) -> Agent:
    environment = {
        "COPILOT_OFFLINE": "true",
        "COPILOT_PROVIDER_TYPE": "openai",
        "COPILOT_PROVIDER_BASE_URL": f"{scene.model.url}/v1",
        "COPILOT_PROVIDER_API_KEY": KEY,
        "COPILOT_MODEL": "m",
    }
    return Agent(("copilot", "--acp"), environment)


def talk(scene: Scene, agent: Agent, script: list[Step], log: Path, *, verb: str = "acp") -> Conversation:
    """One prompt to the agent in a jail, by an editor that offers everything.

    Args:
        scene: where.
        agent: who.
        script: what its model does.
        log: file for what is said on standard error.
        verb: of `paddock`: with the bridge, or `run`, a mere prefix.
    """
    scene.model.script = script
    grace = ("--grace", str(acp_editor.PATIENCE)) if verb == "acp" else ()
    return acp_editor.converse(
        scene.who.command(scene.words(*grace, *agent.options, "--", *agent.command, verb=verb)),
        cwd=scene.worktree,
        env=scene.who.environment(scene.environment | agent.environment),
        login=agent.login,
        stderr=log,
    )


AGENTS: tuple[Callable[[Scene], Agent], ...] = (claude, codex, copilot, goose, opencode, gemini, qwen)
