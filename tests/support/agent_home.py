"""What a user of real agents has at home, told to nobody in a jail but where he brings it."""

import json
import shlex
from pathlib import Path

from tests.support.agent_scene import Scene

INSTRUCTIONS, SKILL, KEPT = "instructions-of-the-user", "skill-of-the-user", "kept-outside"
SERVER_KEY = "key-of-the-server"
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
_STDIO = {"command": "/usr/bin/python3", "args": ["-c", _SERVER], "env": {"KEY": SERVER_KEY}}
_TOML = f"""
model = '{KEPT}'
[mcp_servers.ours]
command = {json.dumps(_STDIO["command"])}
args = {json.dumps(_STDIO["args"])}
env = {{ KEY = "{SERVER_KEY}" }}
"""
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


def furnish(scene: Scene, name: str) -> None:
    """Puts all of that into the home directory of who acts.

    Args:
        scene: where.
        name: of the agent.
    """
    instructions, skills, servers, content = AGENTS[name]
    files = {instructions: INSTRUCTIONS, f"{skills}/{SKILL}/SKILL.md": _SKILL, servers: content}
    lines = [
        f"mkdir -p ~/{Path(path).parent}; printf %s {shlex.quote(text)} >~/{path}"
        for path, text in files.items()
        if path
    ]
    ended = scene.who.run(["sh", "-euc", "; ".join(["umask 077", *lines])])
    assert ended.returncode == 0, ended.stderr


def told(scene: Scene) -> set[str]:
    """What of it the model heard, and the key of the server when it was asked for its tools."""
    said = "".join(json.dumps(request.body) for request in scene.model.requests)
    listed = scene.worktree / "listed"
    return {word for word in (INSTRUCTIONS, SKILL, KEPT) if word in said} | (
        {listed.read_text()} if listed.exists() else set()
    )
