"""Real agents find in a jail what their user has at home: instructions, skills and MCP servers, when he brings them."""

import json
import shlex
from pathlib import Path

import pytest

from policy import promises
from tests.support import agent_scene
from tests.support.agent_scene import Scene, talk
from tests.support.features import need
from tests.support.models.script import Run
from tests.support.programs.scene import SWITCHES

INSTRUCTIONS, SKILL = "instructions-of-the-user", "skill-of-the-user"
_SKILL = f"---\nname: {SKILL}\ndescription: How to test.\n---\nTest.\n"
_SERVER = """
import json, os, sys
def answer(asked):
    if asked["method"] == "initialize":
        mine = {"capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
        return {"result": {"protocolVersion": asked["params"]["protocolVersion"], **mine}}
    if asked["method"] != "tools/list":
        return {"error": {"code": -32601, "message": "no such method"}}
    open("listed", "w").write(os.environ["KEY"])
    return {"result": {"tools": [{"name": "test", "description": "d", "inputSchema": {"type": "object"}}]}}
for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer(asked)}), flush=True)
"""
"""Leaves its key in the worktree when it is asked for its tools. Some agents tell the model of them only on demand."""
_STDIO = {"command": "/usr/bin/python3", "args": ["-c", _SERVER], "env": {"KEY": "key-of-the-server"}}
_TOML = f"""
model = 'kept-outside'
[mcp_servers.ours]
command = {json.dumps(_STDIO["command"])}
args = {json.dumps(_STDIO["args"])}
env = {{ KEY = "key-of-the-server" }}
"""
_GRACE = ("--grace", "3")  # Gemini stays when its editor has left, while a server of its own lives
AGENTS = {
    "claude": (".claude/CLAUDE.md", ".claude/skills", ".claude.json", json.dumps({"mcpServers": {"ours": _STDIO}})),
    "codex": (".codex/AGENTS.md", ".codex/skills", ".codex/config.toml", _TOML),
    "copilot": (".copilot/copilot-instructions.md", ".copilot/skills", ".copilot/mcp-config.json",
                json.dumps({"mcpServers": {"ours": {"type": "local", "tools": ["*"], **_STDIO}}})),
    "gemini": (".gemini/GEMINI.md", ".gemini/skills", ".gemini/settings.json",
               json.dumps({"mcpServers": {"ours": _STDIO}})),
    "goose": (".config/goose/.goosehints", ".config/goose/skills", "", ""),
    "opencode": (".config/opencode/AGENTS.md", ".config/opencode/skills", ".config/opencode/opencode.json",
                 json.dumps({"mcp": {"ours": {"type": "local", "command": [_STDIO["command"], *_STDIO["args"]],
                                              "environment": _STDIO["env"]}}})),
    "qwen": (".qwen/QWEN.md", ".qwen/skills", ".qwen/settings.json", json.dumps({"mcpServers": {"ours": _STDIO}})),
}  # fmt: skip
"""Agent -> its file of instructions and directory of skills below the home directory, and its MCP servers' file."""


def _prepare(scene: Scene, name: str) -> None:
    instructions, skills, servers, content = AGENTS[name]
    files = {instructions: INSTRUCTIONS, f"{skills}/{SKILL}/SKILL.md": _SKILL, servers: content}
    lines = [
        f"mkdir -p ~/{Path(path).parent}; printf %s {shlex.quote(text)} >~/{path}"
        for path, text in files.items()
        if path
    ]
    ended = scene.who.run(["sh", "-euc", "; ".join(["umask 077", *lines])])
    assert ended.returncode == 0, ended.stderr


def _told(scene: Scene) -> str:
    return "".join(json.dumps(request.body) for request in scene.model.requests)


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_is_told_what_its_user_brings(scene: Scene, name: str, tmp_path: Path) -> None:
    """And without that none of it: neither instructions nor skills, nor is a server started."""
    need("userns")
    _prepare(scene, name)
    agent = getattr(agent_scene, name)(scene)
    listed = scene.worktree / "listed"
    for options, brought in (((), False), (("--bring", "agents"), True)):
        scene.model.forget()
        chosen = agent_scene.Agent(**(vars(agent) | {"options": (*agent.options, *options, *_GRACE)}))
        talk(scene, chosen, [Run("true")], tmp_path / "log")
        told = _told(scene)
        said = (tmp_path / "log").read_text()
        assert (INSTRUCTIONS in told, SKILL in told) == (brought, brought), said
        assert listed.exists() is (brought and name != "goose"), said
        assert "kept-outside" not in told
    assert name == "goose" or listed.read_text() == "key-of-the-server"


@pytest.mark.parametrize("backend", promises.BACKENDS)
@pytest.mark.parametrize("name", ["claude", "codex"])
def test_a_programme_is_told_on_every_backend(scene: Scene, name: str, backend: str) -> None:
    """From the command line, with what the user's own configuration says."""
    need("bubblewrap" if backend == promises.BUBBLEWRAP else "userns")
    _prepare(scene, name)
    scene.who.run(
        ["sh", "-c", "mkdir -p ~/.config/paddock; printf '[bring]\nagents = true\n' >~/.config/paddock/config.toml"]
    )
    scene.model.script = [Run("true")]
    settings = [word for setting in scene.codex_settings for word in ("-c", setting)]
    command = ["codex", "exec", *settings, "Work."] if name == "codex" else ["claude", "-p", "Work."]
    environment, options = SWITCHES[backend]
    ended = scene.run(*options, "--", *command, env=environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    told = _told(scene)
    assert (INSTRUCTIONS in told, SKILL in told) == (True, True), ended.stderr
    assert "failed to" not in ended.stderr
    assert (scene.worktree / "listed").read_text() == "key-of-the-server"
