"""What the specifications of providers believe of real programmes, asked of the programmes themselves."""

import json
import re
import subprocess

import pytest

from policy.providers.model import DialectName, filled
from policy.providers.registry import load_registry
from tests.support import agent_packages
from tests.support.agent_scene import Scene

REGISTRY = load_registry()
PATIENCE = 60
NOT_INSTALLED = {"copilot", "mistral-vibe"}
"""Their flags were tried by hand on 1.0.102 and 3.0.2: 190 MB more, and another Python than the suite's."""
COMPLAINT = re.compile(r"(?im)^.*\b(?:unknown|unexpected)\b.*$")


def native(name: str) -> tuple[str, list[str]]:
    """The command of a provider, and the arguments that it is given natively, two submodules included."""
    spec = REGISTRY.spec(name)
    assert spec is not None
    words = spec.dialect(DialectName.NATIVE)
    own = [filled(text, worktree="/srv") for text in words.arguments]
    for submodule in ("/srv/a", "/srv/b"):
        own += [filled(text, worktree="/srv", submodule=submodule) for text in words.submodule_arguments]
    own += [text for switch in (words.sandbox_off, words.prompts_off) for text in switch.arguments]
    command = next((command for command in spec.commands if command in agent_packages.PROGRAMS), "")
    return command, own


FLAGGED = [name for name in REGISTRY.names() if all(native(name))]


def test_the_providers_with_flags_are_those_that_are_asked_here() -> None:
    """A provider that is given flags without being asked for them here would be a belief."""
    without = [name for name in REGISTRY.names() if native(name)[1] and name not in FLAGGED]
    assert set(without) == NOT_INSTALLED
    assert {"claude-code", "codex", "gemini", "qwen"} == set(FLAGGED)


@pytest.mark.parametrize("name", FLAGGED)
def test_a_real_programme_accepts_our_native_flags(scene: Scene, name: str) -> None:
    """It complains of a flag that does not exist, and of none of ours."""
    command, own = native(name)
    ended = scene.who.run([command, *own, "--unheard-of"], env=scene.environment, timeout=PATIENCE)
    assert ended.returncode != 0
    (complaint,) = COMPLAINT.findall(ended.stdout + ended.stderr)
    assert "unheard-of" in complaint
    ours = [word.partition("=")[0].lstrip("-") for word in own if word.startswith("-")]
    assert not [word for word in ours if re.search(rf"\b{re.escape(word)}\b", complaint)]


@pytest.mark.parametrize(
    ("name", "command", "complaint"),
    [
        ("claude-code", ("claude", "-p", "Hello."), "unknown option '--allowed-paths'"),
        ("codex", ("codex", "exec", "Hello."), "unexpected argument '--workspace'"),
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
