"""Provider specs and their translation into variables and flags."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from policy.errors import Refusal
from policy.providers.model import ArgumentsPosition, DialectName, ProviderSpec, parse_spec
from policy.providers.registry import (
    DeclaredStrategy,
    SandboxTranslationStrategy,
    command_line,
    load_registry,
    program_index,
    translate,
)
from tests.support.install import ROOT


class Paths(NamedTuple):
    worktree_path: Path
    submodule_paths: tuple[Path, ...] = ()


PLAIN = Paths(Path("/w t"))
WITH_SUBMODULES = Paths(Path("/w"), (Path("/w/libs/a"), Path("/w/libs/b")))

MINIMAL = """
schema = 1
name = "mine"
title = "Mine"
[native]
[contract]
"""


def strategy(name: str, dialect: DialectName) -> DeclaredStrategy:
    found = load_registry(dialect).require(name)
    assert isinstance(found, DeclaredStrategy)
    return found


CONTRACT = [
    ("claude-code", {"CLAUDE_CODE_ALLOWED_PATHS": "/w t", "CLAUDE_CODE_SANDBOX_MODE": "strict"},
     ["--allowed-paths", "/w t", "--sandbox"]),
    ("codex", {"CODEX_WORKSPACE": "/w t"}, ["--workspace", "/w t"]),
    ("goose", {"GOOSE_ROOT_DIR": "/w t"}, ["--root-dir", "/w t"]),
]  # fmt: skip


@pytest.mark.spec("FR-004f", "FR-004g", "CONTRACT-2a")
@pytest.mark.parametrize(("name", "environment", "arguments"), CONTRACT)
def test_the_contract_dialect_is_exactly_the_specification(
    name: str, environment: dict[str, str], arguments: list[str]
) -> None:
    """Variables and flags of contracts.md section 2a, and nothing else, appended to the command."""
    translator = strategy(name, DialectName.CONTRACT)
    assert translate(translator, PLAIN) == (environment, arguments)
    assert translate(translator, WITH_SUBMODULES).arguments == [text.replace("/w t", "/w") for text in arguments]
    assert command_line(translator, ["anything", "-p", "hi"], PLAIN) == ["anything", "-p", "hi", *arguments]
    assert translator.supports_sandbox


@pytest.mark.parametrize(("name", "environment", "arguments"), CONTRACT)
def test_the_native_dialect_keeps_the_specifications_variables_and_drops_its_flags(
    name: str, environment: dict[str, str], arguments: list[str]
) -> None:
    """The variables harm no real programme; the flags end it with a usage error."""
    translation = translate(strategy(name, DialectName.NATIVE), PLAIN)
    assert environment.items() <= translation.environment.items()
    flags = {text for text in arguments if text.startswith("--")}
    assert not flags & {text.partition("=")[0] for text in translation.arguments}


def test_claude_gets_its_flags_before_a_prompt_and_each_as_one_word() -> None:
    """`--add-dir` is variadic: as two words it would swallow the prompt that follows."""
    line = command_line(strategy("claude-code", DialectName.NATIVE), ["/opt/bin/claude", "-p", "hi"], WITH_SUBMODULES)
    assert line == ["/opt/bin/claude", "--add-dir=/w", "--add-dir=/w/libs/a", "--add-dir=/w/libs/b", "-p", "hi"]


def test_codex_gets_its_flags_before_the_subcommand() -> None:
    """They are global ones, which its sub-commands inherit."""
    line = command_line(strategy("codex", DialectName.NATIVE), ["codex", "exec", "hi"], WITH_SUBMODULES)
    assert line[:2] == ["codex", "--add-dir=/w"]
    assert line[-4:] == ["--add-dir=/w/libs/a", "--add-dir=/w/libs/b", "exec", "hi"]


@pytest.mark.parametrize("name", load_registry().names())
def test_a_translation_alone_switches_no_precaution_off(name: str) -> None:
    """Whoever asks for the specification's words may start the command without a jail."""
    translator = strategy(name, DialectName.NATIVE)
    words = translate(translator, WITH_SUBMODULES)
    for switch in translator.switches(keep_prompts=False):
        assert not switch.environment.items() & words.environment.items()
        assert not {text for text in switch.arguments if text != "-c"} & {*words.arguments}


def test_codex_in_a_jail_has_its_sandbox_off_with_prompts_kept_or_not() -> None:
    """Under Landlock codex's own sandbox cannot start, and every command of it fails."""
    translator = strategy("codex", DialectName.NATIVE)
    kept, all_off = translator.switches(keep_prompts=True), translator.switches(keep_prompts=False)
    assert [text for switch in kept for text in switch.arguments] == ["-c", "sandbox_mode=danger-full-access"]
    assert kept[0].environment == {"INITIAL_AGENT_MODE": "agent-full-access"}
    assert all_off[0] == kept[0]
    assert all_off[1].arguments == ("-c", "approval_policy=never")


def test_the_contract_dialect_switches_nothing_off() -> None:
    """It is exactly the specification."""
    for name in load_registry().names():
        for switch in strategy(name, DialectName.CONTRACT).switches(keep_prompts=False):
            assert (switch.environment, switch.arguments) == ({}, ())


def test_goose_native_takes_no_flags() -> None:
    """Its root is the current directory."""
    assert command_line(strategy("goose", DialectName.NATIVE), ["goose", "acp"], PLAIN) == ["goose", "acp"]


@pytest.mark.parametrize(
    "argv", [["claude-agent-acp"], ["sh", "-c", "claude -p hi"], ["grep", "claude", "file"], ["my-wrapper", "x"], []]
)
def test_native_flags_stay_away_from_what_is_not_the_programme(argv: list[str]) -> None:
    """An adapter, a shell line or another command is left as it is."""
    assert command_line(strategy("claude-code", DialectName.NATIVE), argv, PLAIN) == argv


@pytest.mark.parametrize(
    ("argv", "index"),
    [
        (["codex"], 0),
        (["/x/y/codex", "exec"], 0),
        (["env", "A=1", "codex", "exec"], 2),
        (["npx", "-y", "@openai/codex@latest", "exec"], 2),
        (["node", "/m/@openai/codex/bin/codex.js"], 1),
        (["grep", "codex"], None),
        (["npx", "other"], None),
        ([], None),
    ],
)
def test_the_programme_is_found_behind_a_runner(argv: list[str], index: int | None) -> None:
    """env, npx and node start what one of their arguments names."""
    assert program_index(argv, ["codex", "@openai/codex"]) == index


def test_braces_in_a_path_stay_what_they_are() -> None:
    """A worktree called `{submodule}` is not a placeholder."""
    paths = Paths(Path("/{submodule}"), (Path("/{submodule}/{worktree}"),))
    arguments = strategy("claude-code", DialectName.NATIVE).to_command_line_args(paths)
    assert arguments == ["--add-dir=/{submodule}", "--add-dir=/{submodule}/{worktree}"]


@pytest.mark.spec("CONTRACT-2a")
def test_a_provider_without_sandbox_support_is_told_nothing() -> None:
    """`supports_sandbox = false` gives neither variables nor arguments."""
    text = MINIMAL.replace('title = "Mine"', 'title = "Mine"\nsupports_sandbox = false') + 'arguments = ["-x"]\n'
    translator = DeclaredStrategy(parse_spec(text, "x"), DialectName.CONTRACT)
    assert translate(translator, PLAIN) == ({}, [])
    assert command_line(translator, ["mine"], PLAIN) == ["mine"]


def test_a_strategy_of_another_kind_appends_its_arguments() -> None:
    """A plug-in object need not know about positions."""

    class Other:
        provider_name = "other"
        supports_sandbox = True

        def to_environment_variables(self, context: object) -> dict[str, str]:
            return {"A": "1"}

        def to_command_line_args(self, context: object) -> list[str]:
            return ["--root"]

    other = Other()
    assert isinstance(other, SandboxTranslationStrategy)
    assert command_line(other, ["prog", "x"], PLAIN) == ["prog", "x", "--root"]


@pytest.mark.parametrize(
    ("environment", "arguments", "words"),
    [
        ({"A": 1}, [], "'A': 1 is not an environment variable"),
        ({"A=B": "x"}, [], "'A=B'"),
        ({"A": "a\0"}, [], "'A'"),
        ({1: "x"}, [], "string"),
        (None, [], "not a mapping"),
        ({}, "--root", "not a mapping and a list"),
        ({}, [b"x"], "b'x' is not an argument"),
        ({}, ["a\0"], "is not an argument"),
        (RuntimeError("boom"), [], "RuntimeError: boom"),
    ],
)
def test_a_plug_in_that_gives_nonsense_is_named(environment: object, arguments: object, words: str) -> None:
    """It is not Paddock's fault, nor the user's."""

    class Other:
        provider_name = "other"
        supports_sandbox = True

        def to_environment_variables(self, context: object) -> Any:  # noqa: ANN401  # whatever it gives
            if isinstance(environment, Exception):
                raise environment
            return environment

        def to_command_line_args(self, context: object) -> Any:  # noqa: ANN401  # whatever it gives
            return arguments

    with pytest.raises(Refusal) as refused:
        translate(Other(), PLAIN)
    assert refused.value.reference == "provider-plugin"
    assert "plug-in for other" in refused.value.message
    assert words in refused.value.context


def test_a_minimal_file_is_enough() -> None:
    """Everything but the name, the title and the dialects has a default."""
    spec = parse_spec(MINIMAL, "x")
    assert (spec.name, spec.commands, spec.state.directories) == ("mine", (), ())
    assert spec.native.arguments_position is ArgumentsPosition.APPEND


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("[native]", "[native"), "not valid TOML"),
        (("schema = 1", "schema = 2"), "schema"),
        (('name = "mine"', 'name = "My Agent"'), "name"),
        (('name = "mine"', 'name = "mine"\ndomain = ["a.b"]'), "did you mean domains?"),
        (("[native]", '[native]\nargument = ["-x"]'), "did you mean arguments?"),
        (("[native]", '[native]\narguments = ["{root}"]'), "unknown placeholder {root}"),
        (("[native]", '[native]\narguments = ["{submodule}"]'), "unknown placeholder {submodule}"),
        (("[native]", '[native]\narguments_position = "front"'), "after-program"),
        (("[native]", '[native.prompts_off]\nargument = ["-x"]\n[native]'), "did you mean arguments?"),
        (("[native]", '[native.sandbox_off]\nunless = ["yolo"]\n[native]'), "sandbox_off.unless"),
        (("[native]", '[native.prompts_off]\nenvironment = {A = "a\\u0000"}\n[native]'), "NUL"),
        (('name = "mine"', 'name = "auto"'), "none of auto, none"),
        (("[native]", '[[files]]\npath = "/etc/shadow"\n[native]'), "must start with ~/"),
        (("[native]", '[[files]]\npath = "~/a"\nmoved = "../b"\n[native]'), "without any .."),
        (("[native]", '[[files]]\npath = "~/a"\nrefresh = ["b"]\n[native]'), "did you mean refreshed?"),
        (("[native]", '[[files]]\npath = "~/a"\nrefreshed = ["b"]\n[native]'), "go together"),
        (("[native]", '[[files]]\npath = "~/a"\nrefreshed = ["b"]\nnewer = "c"\n[native]'), "one of refreshed"),
        (
            ("[native]", '[[files]]\npath = "~/a"\nrefreshed = ["b"]\nnewer = "b"\naccount = ["b"]\n[native]'),
            "never refreshed",
        ),
        (("[native]", '[[files]]\npath = "~/a"\nformat = "text"\nonly = ["b"]\n[native]'), "for a text file"),
        (('title = "Mine"', 'title = "Mine"\ncommands = ["@/x"]'), "scope"),
        (('title = "Mine"', 'title = "Mine"\ncommands = ["@a/b/c"]'), "base name"),
        (("[native]", '[native.environment]\n"A=B" = "x"'), "native.environment"),
        (("[native]", '[state]\ndirectories = ["/etc"]\n[native]'), "must start with ~/"),
        (("[native]", '[state]\ndirectories = ["~/a/../.."]\n[native]'), "hold no .."),
        (("[native]", '[state]\nfiles = ["~/"]\n[native]'), "name something"),
        (('title = "Mine"', 'title = "Mine"\ncommands = ["/bin/x"]'), "base name"),
        (('title = "Mine"', 'title = "Mine"\ndomains = ["https://a.b/c"]'), "domains"),
        (('title = "Mine"', 'title = "Mine"\ndomains = ["a.b:99999"]'), "domains.0: 'a.b:99999' is not a host rule"),
        (('title = "Mine"', 'title = "Mine"\ndomains = ["a..b"]'), "domains.0: 'a..b' is not a host rule"),
        (('title = "Mine"', 'title = "Mine"\nsupports_sandbox = "yes"'), "supports_sandbox"),
        (("[contract]", ""), "contract"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name_and_the_key(change: tuple[str, str], words: str) -> None:
    """One refusal says where and what, and names the key that may have been meant."""
    text = MINIMAL.replace(*change)
    assert text != MINIMAL
    with pytest.raises(Refusal) as refused:
        parse_spec(text, "/etc/x.toml")
    assert refused.value.reference == "provider-invalid"
    assert "/etc/x.toml" in refused.value.message
    assert words in str(refused.value)


@pytest.mark.parametrize("name", load_registry().names())
def test_built_ins_name_commands_state_and_credentials(name: str) -> None:
    """Detection, private state and credential passing all have what they need."""
    spec: ProviderSpec = strategy(name, DialectName.NATIVE).spec
    assert spec.commands
    assert spec.state.directories
    assert spec.credentials.environment
    assert spec.notes
    places = (*(f"{directory}/" for directory in spec.state.directories), *spec.state.files)
    assert all(file.path.startswith(places) for file in spec.files)
    assert all(file.moved for file in spec.files) or spec.state.variable is None


def test_specs_are_frozen() -> None:
    """Nobody changes a provider after it was read."""
    spec = parse_spec(MINIMAL, "x")
    with pytest.raises(AttributeError, match="does not change"):
        spec.name = "other"


def test_the_example_of_the_documentation_is_a_provider() -> None:
    """As it stands there; README leads to it."""
    example = "policy/providers/example.toml"
    assert f"]({example})" in (ROOT / "README.md").read_text()
    spec = parse_spec((ROOT / example).read_text(), example)
    assert spec.files[0].account == ("user_id",)
    assert spec.native.prompts_off.unless == ("--ask",)
