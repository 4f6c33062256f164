"""What the specifications of providers believe of real programmes, asked of the programmes themselves."""

import json
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from policy.providers.registry import DeclaredStrategy, load_registry
from tests.support import agent_packages
from tests.support.agent_scene import Scene

REGISTRY = load_registry()
PATIENCE = 60
COMPLAINT = re.compile(r"(?im)^.*\b(?:unknown|unexpected)\b.*$")
UNHEARD_OF = "unheard-of"


class Place(NamedTuple):
    """A worktree with two granted submodules."""

    worktree_path: Path
    submodule_paths: tuple[Path, ...]


def native(name: str, root: Path = Path("/srv")) -> list[str]:
    """What a provider's programme is given natively, with what turns its own sandbox and questions off."""
    strategy = REGISTRY.require(name)
    assert isinstance(strategy, DeclaredStrategy)
    switches = strategy.switches(keep_prompts=False)
    return [
        *strategy.to_command_line_args(Place(root, (root / "a", root / "b"))),
        *(word for switch in switches for word in switch.arguments),
    ]


def programme(name: str) -> str:
    """The command of a provider."""
    spec = REGISTRY.spec(name)
    assert spec is not None
    return next(command for command in spec.commands if command in agent_packages.PROGRAMS)


FLAGGED = [name for name in REGISTRY.names() if native(name)]


def test_the_providers_with_flags_are_those_that_are_asked_here() -> None:
    """A provider that is given flags without being asked for them here would be a belief."""
    assert {"claude-code", "codex", "copilot", "gemini", "mistral-vibe", "qwen"} == set(FLAGGED)
    assert {"goose", "opencode"} == set(REGISTRY.names()) - set(FLAGGED)


@pytest.mark.parametrize("name", FLAGGED)
def test_a_real_programme_accepts_our_native_flags(scene: Scene, name: str) -> None:
    """It complains of a flag that does not exist, and of none of ours, with directories that exist."""
    own = native(name, scene.worktree)
    assert scene.who.run(["mkdir", "a", "b"], cwd=scene.worktree).returncode == 0
    ended = scene.who.run([programme(name), *own, f"--{UNHEARD_OF}"], env=scene.environment, timeout=PATIENCE)
    assert ended.returncode != 0
    (complaint,) = COMPLAINT.findall(ended.stdout + ended.stderr)
    assert UNHEARD_OF in complaint
    ours = [word.partition("=")[0].lstrip("-") for word in own if word.startswith("-")]
    assert not [word for word in ours if re.search(rf"\b{re.escape(word)}\b", complaint)]


@pytest.mark.parametrize(
    ("name", "command", "complaint"),
    [
        ("claude-code", ("claude", "-p", "Hello."), "unknown option '--allowed-paths'"),
        ("codex", ("codex", "exec", "Hello."), "unexpected argument '--workspace'"),
        ("goose", ("goose", "acp"), "unexpected argument '--root-dir'"),
    ],
)
def test_a_real_programme_ends_at_the_flags_of_the_specification(
    scene: Scene, name: str, command: tuple[str, ...], complaint: str
) -> None:
    """So the dialect `contract` is for wrappers that know these flags, and never the default."""
    ended = scene.run("--provider", name, "--dialect", "contract", "--", *command)
    assert ended.returncode not in (0, 125)
    assert complaint in ended.stderr
    assert scene.model.requests == []


@pytest.mark.parametrize(
    "words", [("claude-agent-acp", "--allowed-paths", "/srv", "--sandbox"), ("codex-acp", "--workspace", "/srv")]
)
def test_an_adapter_ignores_flags_without_a_word(scene: Scene, words: tuple[str, ...]) -> None:
    """So a wrong translation would not be noticed there, and `native` gives adapters none."""
    params = {"protocolVersion": 1, "clientCapabilities": {}}
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
    with scene.who.start(words, env=scene.environment) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{line}\n".encode())
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
            process.stdin.close()
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert answer["id"] == 1
    assert answer["result"]["protocolVersion"] == 1


def test_the_server_behind_codexs_adapter_has_its_analytics_off(scene: Scene) -> None:
    """By default, which the adapter leaves alone: nobody can give it the switch that the command line programme has."""
    helped = scene.who.run(["codex", "app-server", "--help"], env=scene.environment, timeout=PATIENCE).stdout
    assert "--analytics-default-enabled" in helped
    assert "Analytics are disabled by default for app-server" in " ".join(helped.split())
    adapter = (agent_packages.programs() / "codex-acp").resolve().read_text()
    assert '"app-server"' in adapter
    assert "analytics" not in adapter
