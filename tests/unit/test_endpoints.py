"""Which hosts a provider may reach by default: its own, and the server that the user's environment names."""

from pathlib import Path

import pytest

from launcher.session import recognition
from launcher.session.machine import Machine
from policy.providers.model import ProviderSpec, parse_spec
from policy.providers.registry import BUILTIN_DIRECTORY


def spec(name: str) -> ProviderSpec:
    """A built-in provider."""
    return parse_spec(Path(BUILTIN_DIRECTORY, f"{name}.toml").read_text(), name)


@pytest.mark.parametrize(
    ("value", "rules", "reach"),
    [
        ("", [], []),
        ("https://gateway.example/v1", ["gateway.example:443"], []),
        ("http://Gateway.example:8080", ["gateway.example:8080"], []),
        ("https://10.1.2.3", ["10.1.2.3:443"], []),
        ("http://127.0.0.1:4000/x", [], ["127.0.0.1:4000"]),
        ("http://localhost:4000", [], ["127.0.0.1:4000"]),
        ("http://[::1]:4000", [], ["[::1]:4000"]),
        ("https://user:secret@gateway.example", [], []),
        ("gateway.example", [], []),
        ("https://", [], []),
        ("https://a_b", [], []),
        ("ftp://gateway.example", [], []),
        ("https://gateway.example:port", [], []),
    ],
)
def test_the_server_that_the_environment_names_is_granted(value: str, rules: list[str], reach: list[str]) -> None:
    """By name, or at its own address when it is on this machine; never with credentials, which would be kept."""
    environ = {"ANTHROPIC_BASE_URL": value}
    machine = Machine(environ)
    allowed, ports = recognition.endpoints_of(spec("claude-code"), "claude-code", machine, environ)
    assert allowed[0] == ("api.anthropic.com", "provider claude-code")
    source = "ANTHROPIC_BASE_URL in your environment"
    own = len(spec("claude-code").domains)
    assert list(allowed[own:]) == [(rule, source) for rule in rules]
    assert list(ports) == [(where, source) for where in reach]
    assert "secret" not in repr(machine.recorded())


@pytest.mark.parametrize("path", sorted(Path(BUILTIN_DIRECTORY).glob("*.toml")), ids=lambda path: path.stem)
def test_an_endpoint_is_one_of_the_settings_that_pass(path: Path) -> None:
    """A host is not granted for a variable that the command does not get."""
    found = spec(path.stem)
    assert set(found.endpoints) <= set(found.settings)
