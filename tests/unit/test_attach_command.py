"""What `paddock attach --provider NAME` starts when no command is named; names that can be nobody's."""

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher import cli
from launcher.service.attaching import Attached, RawTerminal
from launcher.service.packets import HELLO, OUTPUT
from launcher.session.places import Places, places
from launcher.verbs import attach, forms
from launcher.wire import frame
from policy.errors import Refusal


@pytest.fixture
def where(tmp_path: Path) -> Places:
    """Paddock's directories in a home of this test."""
    return places({"HOME": str(tmp_path)})


def test_an_adapter_that_is_installed_comes_before_one_that_npx_would_fetch(
    where: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No jail reaches a registry of packages unless it is told to."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert attach._default("claude-code", where) == ["npx", "-y", "@agentclientprotocol/claude-agent-acp"]
    adapter = tmp_path / "claude-agent-acp"
    adapter.write_text("#!/bin/sh\n")
    adapter.chmod(0o755)
    assert attach._default("claude-code", where) == ["claude-agent-acp"]
    assert attach._default("gemini", where) == ["gemini", "--acp"]


def test_a_provider_without_a_command_for_the_protocol_is_an_error(where: Places) -> None:
    """It says what to write."""
    with pytest.raises(Refusal, match="name one after"):
        attach._default("nobody", where)


def test_two_keys_leave_a_terminal_and_one_of_them_is_for_the_session() -> None:
    """The first is held back until the next one has come, which may be in another read."""
    terminal = RawTerminal.__new__(RawTerminal)
    terminal._held = b""
    assert terminal.typed(b"ab\x1d") == (b"ab", False)
    assert terminal.typed(b"c") == (b"\x1dc", False)
    assert terminal.typed(b"d\x1d") == (b"d", False)
    assert terminal.typed(b".rest") == (b"", True)


def test_nothing_is_shown_before_it_can_be_undone(capfd: pytest.CaptureFixture[str]) -> None:
    """A signal that comes before `follow` ends the process with the terminal as it is."""
    ours, theirs = socket.socketpair()
    client: Any = SimpleNamespace(
        upgrade=lambda path, query: (ours, frame(HELLO, b'{"a": 1}') + frame(OUTPUT, b"early "))
    )
    attached = Attached(client, "one", mode="read", take=False, offset=0)
    assert capfd.readouterr().out == ""
    with theirs:
        theirs.sendall(frame(OUTPUT, b"late"))
    attached.follow(signals=False)
    assert capfd.readouterr().out == "early late"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "SESSION is missing"),
        (["one", "two"], "one SESSION, not two too"),
        (["one", "--read", "--", "two"], "one SESSION, not two too"),
        (["one", "--cwd", "map"], "--cwd needs --provider"),
        (["one", "--provider", "codex"], "the place of SESSION"),
        (["one", "--nope"], "unknown option --nope"),
        (["--provider", "codex", "--read", "codex-acp"], "--read needs a SESSION"),
    ],
)
def test_words_that_name_no_session_are_refused(words: list[str], message: str) -> None:
    """Before anything is asked of the service."""
    with pytest.raises(Refusal, match=message) as caught:
        forms.call(["attach", *words])
    assert caught.value.reference == "usage"


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        ("attach", [""]),
        ("attach", ["", "--read"]),
        ("events", ["--session", ""]),
        ("logs", [""]),
        ("logs", ["../x"]),
        ("show", [""]),
        ("stop", ["one", ""]),
        ("stop", ["one", "a/b", "--signal", "SIGINT"]),
        ("tickets", ["resume", ""]),
        ("tickets", ["show", ""]),
        ("tickets", ["show", "a/b"]),
        ("tickets", ["stop", ""]),
    ],
)
def test_a_word_that_can_be_no_name_is_refused_before_the_service_is_asked(verb: str, words: list[str]) -> None:
    """Whether there is one or not: what is wrong with it, and what lists the names."""
    with pytest.raises(Refusal, match="cannot be the name of a") as caught:
        forms.call([verb, *words])
    assert caught.value.reference == "usage"
    assert "64 letters" in caught.value.context
    assert caught.value.hint.startswith("paddock ")


def test_options_are_taken_before_and_behind_the_session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With `--provider`, what follows the first other word belongs to the agent."""
    for name in ("HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    for words in (["one", "--read", "--from-now"], ["--read", "one", "--from-now"], ["--read", "--from-now", "one"]):
        with pytest.raises(Refusal) as caught:
            forms.call(["attach", *words])
        assert caught.value.reference == "service-absent", words
    seen: list[object] = []

    def editor(options: cli.Parsed, command: list[str]) -> int:
        seen.append((options, command))
        return 0

    monkeypatch.setattr(attach, "editor", editor)
    assert forms.call(["attach", "--provider", "codex", "codex-acp", "--take"]) == 0
    assert seen == [({"--provider": "codex"}, ["codex-acp", "--take"])]
