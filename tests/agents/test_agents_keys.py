"""Real agents work by phantoms: what their jail holds is of no use elsewhere, and the key is not in it.

They find there what their user has at home, when he brings it: instructions, skills and MCP servers.
"""

import json
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import trustme

from tests.support import agent_home, agent_scene
from tests.support.agent_home import INSTRUCTIONS, SERVER_KEY, SKILL
from tests.support.agent_scene import KEY, Agent, Scene
from tests.support.features import need
from tests.support.models.script import Run, Step, Write

VENDORS = ("api.anthropic.com", "api.openai.com", "generativelanguage.googleapis.com")

SEARCH = Path(__file__).parent.parent / "support" / "programs" / "search.py"
"""Looks for the key, which it is told backwards, wherever a process of the jail can read."""


@pytest.fixture
def vendors(scene: Scene) -> dict[str, str]:
    """What a user has exported whose keys are for the vendors' own hosts, behind his company's proxy and authority."""
    ca, place = trustme.CA(), scene.outside.parent / "ca.pem"
    ca.cert_pem.write_to_path(place)
    place.chmod(0o644)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert(*VENDORS).configure_cert(tls)
    scene.company.tls = tls
    scene.company.vendors = dict.fromkeys(VENDORS, scene.model.port)
    (scene.worktree / "search.py").write_text(SEARCH.read_text())
    kept = {name: value for name, value in scene.environment.items() if not name.endswith(("_BASE_URL", "_API_KEY"))}
    return kept | {"SSL_CERT_FILE": str(place)}


def claude(_scene: Scene) -> Agent:
    return Agent(("claude-agent-acp",), {"ANTHROPIC_API_KEY": KEY})


def claude_token(_scene: Scene) -> Agent:
    return Agent(("claude-agent-acp",), {"ANTHROPIC_AUTH_TOKEN": KEY})


def codex(_scene: Scene) -> Agent:
    return Agent(("codex-acp",), {"OPENAI_API_KEY": KEY}, login="api-key")


def codex_key(_scene: Scene) -> Agent:
    return Agent(("codex-acp",), {"CODEX_API_KEY": KEY}, login="api-key")


def opencode(_scene: Scene) -> Agent:
    """Two keys: one vendor's model works, and the other one's finds a title for that."""
    models = {"models": {"m": {"name": "M"}}}
    settings = {"model": "anthropic/m", "small_model": "openai/m", "provider": {"anthropic": models, "openai": models}}
    environment = {"OPENCODE_CONFIG_CONTENT": json.dumps(settings), "OPENCODE_DISABLE_MODELS_FETCH": "1"}
    return Agent(("opencode", "acp"), {"ANTHROPIC_API_KEY": KEY, "OPENAI_API_KEY": KEY, **environment})


def goose(_scene: Scene) -> Agent:
    environment = {"GOOSE_PROVIDER": "openai", "GOOSE_MODEL": "m", "OPENAI_API_KEY": KEY}
    return Agent(("goose", "acp", "--with-builtin", "developer"), environment, through_terminal=True)


def goose_anthropic(_scene: Scene) -> Agent:
    environment = {"GOOSE_PROVIDER": "anthropic", "GOOSE_MODEL": "m", "ANTHROPIC_API_KEY": KEY}
    return Agent(("goose", "acp", "--with-builtin", "developer"), environment, through_terminal=True)


def gemini(_scene: Scene) -> Agent:
    environment = {"GEMINI_API_KEY": KEY, "GEMINI_CLI_NO_RELAUNCH": "true"}
    options = (*agent_scene.once(environment), "--grace", "3")  # it outlives its editor while a server of its own lives
    return Agent(("gemini", "--acp"), environment, login="gemini-api-key", options=options)


def qwen(scene: Scene) -> Agent:
    environment = {"OPENAI_API_KEY": KEY, **agent_scene.qwen_settings(scene)}
    command = ("qwen", "--acp", "--auth-type", "openai")
    return Agent(command, environment, login="openai", options=agent_scene.once(environment))


def copilot(_scene: Scene) -> Agent:
    environment = {
        "COPILOT_OFFLINE": "true",
        "COPILOT_PROVIDER_TYPE": "openai",
        "COPILOT_PROVIDER_API_KEY": KEY,
        "COPILOT_PROVIDER_BASE_URL": "https://api.openai.com/v1",
        "COPILOT_MODEL": "m",
    }
    return Agent(("copilot", "--acp"), environment)


@pytest.mark.parametrize(
    "make",
    [claude, claude_token, codex, codex_key, opencode, goose, goose_anthropic, gemini, qwen, copilot],
)
def test_an_agent_works_by_a_phantom_and_the_key_is_nowhere_in_its_jail(
    scene: Scene, vendors: dict[str, str], make: Callable[[Scene], Agent], tmp_path: Path
) -> None:
    """Its vendor, by TLS, sees the user's key; its own shell finds none, wherever it looks.

    Where nobody chose what an editor's file tools are for, it writes by its own, and asks for no permission either. It
    is told what its user brings, and starts his server (that none of it is there otherwise: `test_agents_acp.py`); the
    same agents with other keys bring nothing. A budget of tokens holds up none of them, and nothing is estimated.
    """
    need("userns")
    agent, brought = make(scene), set[str]()
    agent = replace(agent, options=(*agent.options, "--budget", "tokens=20M"))
    if make.__name__ in agent_home.AGENTS:
        agent_home.furnish(scene, make.__name__)
        agent = replace(agent, options=(*agent.options, "--bring", "agents"))
        brought = {INSTRUCTIONS, SKILL} | ({SERVER_KEY} if make is not goose else set())
    script: list[Step] = [Write(f"{scene.worktree}/made.txt", "made\n"), Run(f"python3 search.py {KEY[::-1]}")]
    told = agent_scene.talk(scene, agent, script, tmp_path / "stderr", environment=vendors)
    assert (told.stop_reason, told.editor.allowed) == ("end_turn", []), told.stderr
    assert told.status == 0 or (make is gemini and told.status == 143), told.stderr
    assert "tokens in, " in told.stderr
    assert "estimated" not in told.stderr
    assert agent_home.told(scene) == brought, told.stderr
    assert (scene.worktree / "made.txt").read_text() == "made\n"
    seen = [(request.path, request.headers) for request in scene.model.requests]
    assert [path for path, headers in seen if not any(KEY in value for value in headers.values())] == []
    vendors_asked = {"/v1/messages" in path for path, _ in seen}
    assert vendors_asked == {True, False} if make is opencode else len(vendors_asked) == 1, seen
    assert "looked at" in scene.model.results[1]
    assert "found" not in scene.model.results[1]
    assert json.dumps([request.body for request in scene.model.requests]).find(KEY) == -1
