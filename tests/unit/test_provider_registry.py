"""Where providers come from, and what happens when two of them claim one name."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from policy.errors import Refusal
from policy.providers.model import DialectName, parse_spec
from policy.providers.registry import DeclaredStrategy, SandboxTranslationRegistry, load_registry


def text(name: str, extra: str = "") -> str:
    return f'schema = 1\nname = "{name}"\ntitle = "T"\n{extra}\n[native]\n[contract]\n'


def declared(name: str, source: str) -> DeclaredStrategy:
    return DeclaredStrategy(parse_spec(text(name), source), DialectName.NATIVE, source)


class PlugIn:
    """A strategy object as a plug-in may give it."""

    provider_name = "plugged"
    supports_sandbox = True

    def to_environment_variables(self, context: object) -> dict[str, str]:
        return {"PLUGGED": "1"}

    def to_command_line_args(self, context: object) -> list[str]:
        return []


class Nameless(PlugIn):
    """A plug-in whose name nobody could ask for."""

    provider_name = "auto"


class Failing:
    """A plug-in whose construction fails."""

    def __init__(self) -> None:
        raise RuntimeError("no licence")


@pytest.fixture
def plug_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory on sys.path with an installed distribution whose entry points a test writes."""
    module = ModuleType("paddock_test_plugin")
    vars(module).update(
        STRATEGY=PlugIn(), Strategy=PlugIn, SPEC=parse_spec(text("plugged"), "x"), Failing=Failing, NOTHING=42,
        Nameless=Nameless,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "paddock_test_plugin", module)
    monkeypatch.syspath_prepend(str(tmp_path))
    info = tmp_path / "paddock_test_plugin-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: paddock-test-plugin\nVersion: 1\n")
    return info / "entry_points.txt"


def offer(plug_ins: Path, value: str) -> None:
    plug_ins.write_text(f"[paddock.providers]\nplugged = {value}\n")
    importlib.invalidate_caches()


@pytest.mark.spec("CONTRACT-2a")
def test_the_built_ins_are_known() -> None:
    """The three providers of the specification, and five more."""
    more = {"copilot", "gemini", "mistral-vibe", "opencode", "qwen"}
    assert {"claude-code", "codex", "goose"} | more == set(load_registry().names())


def test_an_unknown_name_gives_nothing() -> None:
    """Lookup answers None; a known name answers its strategy."""
    registry = load_registry()
    assert registry.get_strategy("nobody") is None
    found = registry.get_strategy("codex")
    assert found is not None
    assert found.provider_name == "codex"


def test_a_required_unknown_name_is_refused_with_the_known_and_the_nearest() -> None:
    """What the command line shows."""
    with pytest.raises(Refusal) as refused:
        load_registry().require("claude")
    assert refused.value.reference == "provider-unknown"
    assert "claude-code, codex, copilot" in refused.value.context
    assert refused.value.hint == "did you mean claude-code? paddock providers lists them"
    with pytest.raises(Refusal) as refused:
        load_registry().require("nope")
    assert "mean" not in refused.value.hint, "no name is near"


@pytest.mark.spec("CONTRACT-2a")
def test_duplicates_are_refused_and_both_sources_named() -> None:
    """Two strategies for one name; the second goose of the specification was such a slip."""
    with pytest.raises(Refusal) as refused:
        SandboxTranslationRegistry([declared("one", "/a.toml"), declared("two", "/t"), declared("one", "/b.toml")])
    assert refused.value.reference == "provider-duplicate"
    assert "/a.toml" in refused.value.context
    assert "/b.toml" in refused.value.context


@pytest.mark.spec("FR-004i")
def test_the_users_files_are_read(tmp_path: Path) -> None:
    """A *.toml file adds a provider; other files, and a missing directory, add nothing."""
    (tmp_path / "mine.toml").write_text(text("mine"))
    (tmp_path / "notes.txt").write_text("not a provider")
    assert "mine" in load_registry(user_directory=tmp_path).names()
    assert load_registry(user_directory=tmp_path / "missing").names() == load_registry().names()


def test_a_built_in_is_replaced_only_on_request(tmp_path: Path) -> None:
    """The same name needs `override = true`."""
    (tmp_path / "codex.toml").write_text(text("codex"))
    with pytest.raises(Refusal, match="twice") as refused:
        load_registry(user_directory=tmp_path)
    assert "override = true" in refused.value.hint
    (tmp_path / "codex.toml").write_text(text("codex", "override = true"))
    spec = load_registry(user_directory=tmp_path).spec("codex")
    assert spec is not None
    assert spec.title == "T"


def test_two_of_the_users_files_cannot_both_override(tmp_path: Path) -> None:
    """Which one would win is nobody's guess."""
    (tmp_path / "a.toml").write_text(text("codex", "override = true"))
    (tmp_path / "b.toml").write_text(text("codex", "override = true"))
    with pytest.raises(Refusal) as refused:
        load_registry(user_directory=tmp_path)
    assert "a.toml" in refused.value.context
    assert "b.toml" in refused.value.context


def test_an_unreadable_file_is_one_refusal(tmp_path: Path) -> None:
    """Bytes that are not UTF-8, a directory in a file's place, a file in the directory's place."""
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(Refusal) as refused:
        load_registry(user_directory=tmp_path)
    assert refused.value.reference == "provider-unreadable"
    (tmp_path / "bad.toml").unlink()
    (tmp_path / "bad.toml").mkdir()
    with pytest.raises(Refusal, match=r"bad\.toml"):
        load_registry(user_directory=tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(Refusal, match="cannot be listed"):
        load_registry(user_directory=tmp_path / "file")


@pytest.mark.spec("FR-004i")
@pytest.mark.parametrize("value", ["STRATEGY", "Strategy", "SPEC"])
def test_a_plug_in_gives_a_strategy_a_class_or_a_spec(plug_ins: Path, value: str) -> None:
    """All three are found by name, and only when plug-ins are asked for."""
    offer(plug_ins, f"paddock_test_plugin:{value}")
    assert load_registry().get_strategy("plugged") is None
    assert load_registry(entry_points=True).require("plugged").provider_name == "plugged"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("paddock_test_plugin:NOTHING", "int"),
        ("paddock_test_plugin:Failing", "no licence"),
        ("paddock_test_plugin:Nameless", "none of auto, none"),
        ("paddock_test_plugin:missing", "missing"),
        ("paddock_test_missing_module:x", "No module named"),
    ],
)
def test_a_broken_plug_in_is_one_refusal_that_names_it(plug_ins: Path, value: str, words: str) -> None:
    """Whatever goes wrong in it; nobody meets it who did not ask for plug-ins."""
    offer(plug_ins, value)
    with pytest.raises(Refusal) as refused:
        load_registry(entry_points=True)
    assert refused.value.reference == "provider-plugin"
    assert "plugged" in refused.value.message
    assert words in refused.value.context
    assert load_registry().names()


def test_a_built_in_is_found_by_each_of_its_names_and_no_other_is_read() -> None:
    """Its commands and adapters stand above all tables of its file; a word in them, like true, is no name."""
    for name in load_registry().names():
        spec = load_registry().spec(name)
        assert spec is not None
        for program in (*spec.commands, *spec.adapters):
            assert name in load_registry(about=[program]).names()
    assert load_registry(about=["true"]).names() == ()
