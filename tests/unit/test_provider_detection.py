"""What a command line starts, and which provider that is."""

import importlib.metadata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.session.cache import RUNNERS, key_words
from launcher.verbs import providers
from policy import runners
from policy.providers import registry
from policy.providers.registry import BUILTIN_DIRECTORY, load_registry

REGISTRY = load_registry()
MODULES = "/home/u/.npm-global/lib/node_modules"

ADAPTERS = [
    ("claude-code", "@agentclientprotocol/claude-agent-acp", "claude-agent-acp"),
    ("codex", "@agentclientprotocol/codex-acp", "codex-acp"),
]
PROGRAMMES = [
    ("claude-code", "@anthropic-ai/claude-code", "claude"),
    ("codex", "@openai/codex", "codex"),
    ("copilot", "@github/copilot", "copilot"),
    ("gemini", "@google/gemini-cli", "gemini"),
    ("opencode", "opencode-ai", "opencode"),
    ("qwen", "@qwen-code/qwen-code", "qwen"),
]


@pytest.mark.parametrize(("provider", "package", "command"), [*ADAPTERS, *PROGRAMMES])
def test_every_usual_way_to_start_a_provider_is_recognised(provider: str, package: str, command: str) -> None:
    """By name, by path, behind env, through npm's runners, and as a script of node."""
    adapter = (provider, package, command) in ADAPTERS
    for argv in (
        [command],
        [f"/opt/agents/bin/{command}", "--acp"],
        ["env", "A=1", "-u", "B", command],
        ["npx", package],
        ["npx", "-y", f"{package}@1.2.3", "--acp"],
        ["npx", "--yes", "-p", package, command],
        ["npx", f"--package={package}", "--", command],
        ["npm", "exec", "--yes", package, "--", "--acp"],
        ["npm", "x", "--", f"{package}@latest"],
        ["bunx", package],
        ["bun", "x", package],
        ["pnpm", "dlx", package],
        ["/usr/bin/node", f"{MODULES}/{package}/dist/index.js"],
        ["node", "--import", "x", f"{MODULES}/{package}/cli.mjs", "-p", "hi"],
        ["node", f"{MODULES}/.bin/{command}"],
        ["node", f"node_modules/{package}/dist/index.js"],
        [f"{MODULES}/{package}/dist/index.js"],
        ["nice", "-n", "5", "env", "A=1", "npx", "-y", package],
        ["npx", "-p", "typescript", "-p", package, command],
        ["node", "--env-file", "x", f"{MODULES}/{package}/cli.mjs"],
        ["env", "-a", "x", command],
        ["timeout", "-k", "1", "60", command],
    ):
        found = REGISTRY.detect(argv)
        assert found is not None, argv
        assert (found.name, found.adapter) == (provider, adapter), argv
        assert argv[found.at] in found.reason(argv)


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["goose", "acp"], "goose"),
        (["/usr/local/bin/goose", "run"], "goose"),
        (["env", "GOOSE_MODE=auto", "goose"], "goose"),
        ([f"{MODULES}/@aaif/goose-binary-linux-x64/bin/goose", "acp"], "goose"),
        ([f"{MODULES}/@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex", "exec"], "codex"),
        ([f"{MODULES}/@github/copilot-linux-x64/copilot"], "copilot"),
        ([f"{MODULES}/@anthropic-ai/claude-code-linux-x64/claude", "-p"], "claude-code"),
    ],
)
def test_a_programme_of_one_platform_is_recognised(argv: list[str], name: str) -> None:
    """By its command, and by its own path, which is in a package of the vendor's for that platform."""
    found = REGISTRY.detect(argv)
    assert found is not None
    assert (found.name, found.adapter) == (name, False)


@pytest.mark.parametrize(
    ("argv", "adapter"),
    [
        (["vibe"], False),
        (["/home/u/.local/bin/vibe-acp"], True),
        (["uvx", "mistral-vibe"], False),
        (["uvx", "--from", "mistral-vibe==3.0.2", "vibe-acp"], True),
        (["uvx", "--from", "mistral-vibe[all]>=3", "vibe-acp"], True),
        (["uv", "tool", "run", "--from", "mistral-vibe", "vibe-acp"], True),
        (["pipx", "run", "--spec", "mistral-vibe", "vibe-acp"], True),
    ],
)
def test_vibe_is_recognised(argv: list[str], adapter: bool) -> None:
    """It comes from PyPI."""
    found = REGISTRY.detect(argv)
    assert found is not None
    assert (found.name, found.adapter) == ("mistral-vibe", adapter)


@pytest.mark.parametrize(
    "argv",
    [
        ["true"],
        [],
        ["vim", "goose"],
        ["sh", "-c", "claude -p hi"],
        ["grep", "claude", "file"],
        ["npx", "@evil/codex"],
        ["npx", "-p", "@evil/codex", "codex"],
        ["npm", "exec", "--package=@evil/codex", "--", "codex"],
        ["pnpm", "--package=@evil/codex", "dlx", "codex"],
        ["npx", "evil/gemini-cli"],
        ["npx", "github:evil/gemini-cli"],
        ["npx", "-p", "https://evil.example/@openai/codex", "codex"],
        ["npx", "@openai/codex@npm:evil"],
        ["node", f"{MODULES}/@evil/codex/codex.js"],
        ["npx", "-c", "claude"],
        ["env", "-S", "claude -p"],
        ["node", "-e", "claude"],
        ["node", "claude.js"],
        ["node", "./src/claude.js"],
        ["npm", "run", "claude"],
        ["npm", "test"],
        ["npm", "--", "claude"],
        ["env"],
        ["env", "claude=1"],
        ["timeout", "claude"],
        ["uvx", "--from", "vibe", "other"],
        ["uvx", "--from=evil", "vibe"],
        ["uvx", "--from", "git+https://evil.example/mistral-vibe", "vibe"],
        ["uvx", "mistral-vibe @ https://evil.example/x.whl"],
        ["pipx", "run", "--spec", "evil", "vibe-acp"],
        ["uv", "pip", "vibe"],
        ["env", "--", "--"],
        ["env"] * 40 + ["claude"],
    ],
)
def test_nothing_else_is_taken_for_a_provider(argv: list[str]) -> None:
    """Another package is another publisher's; a project's script, a shell line and a mere argument are no agents."""
    assert REGISTRY.detect(argv) is None


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("@openai/codex", "@openai/codex"),
        ("@openai/codex@0.1", "@openai/codex"),
        ("npm:@openai/codex@0.1", "@openai/codex"),
        ("codex@0.1", "codex"),
        ("vibe[x]==1", "vibe"),
        ("/a/codex.js", "codex"),
        ("/a/@openai/codex/bin/codex.cjs", "codex"),
        ("/a/node_modules/x/node_modules/@o/c/d.js", "@o/c"),
        ("/a/node_modules/.bin/codex", "codex"),
        ("@x", "@x"),
        ("", ""),
    ],
)
def test_a_name_keeps_its_scope_and_loses_place_version_and_suffix(word: str, name: str) -> None:
    """npm's and PyPI's ways of naming a package."""
    assert runners.name_of(word) == name


WORDS = st.sampled_from([*runners.TABLE, "-y", "--", "-p", "--package=x", "A=1", "exec", "run", "x", "tool", "claude",
                         "@openai/codex", "/a/node_modules/@o/c/d.js", "-c", "-e", "", "-", "1", "./x.js"])  # fmt: skip


@given(st.lists(WORDS | st.text(max_size=4), max_size=12))
def test_any_command_line_has_one_answer(argv: list[str]) -> None:
    """A place in it, in front of which only runners, their options and their words stand."""
    at = runners.started(argv)
    assert 0 <= at < max(1, len(argv))
    assert at == 0 or runners.base_name(argv[0]) in runners.TABLE
    found = REGISTRY.detect(argv)
    assert found is None or found.at == at
    assert all(any(word in given for given in argv) for word in runners.fetched(argv))
    assert found is None or len(load_registry(about=argv).names()) >= 1


def test_only_what_a_runner_starts_is_in_the_key_of_a_plan() -> None:
    """Neither its other arguments nor an address, either of which may hold a password."""
    for argv in (
        ["env", "TOKEN=s3cret", "claude", "-p", "s3cret"],
        ["npx", "git+https://u:s3cret@example.com/x.git"],
        ["claude", "s3cret"],
        ["node", "-e", "s3cret"],
        ["npx", "-p", "git+https://u:s3cret@example.com/x.git", "codex"],
    ):
        words, _ = key_words({}, argv)
        assert "s3cret" not in repr(words)
    assert key_words({}, ["env", "claude"]) != key_words({}, ["env", "codex"])
    assert key_words({}, ["npx", "-p", "@openai/codex", "codex"]) != key_words({}, ["npx", "-p", "@evil/x", "codex"])
    assert key_words({}, ["node", "a.js"]) == key_words({}, ["node", "b.js"])


def test_the_launch_path_knows_the_runners() -> None:
    """A plan is found by what a runner starts, so none may be missing there."""
    assert set(runners.TABLE) == RUNNERS
    assert set(runners.TABLE) >= runners.FETCHING


@pytest.mark.parametrize("argv", [["claude"], ["npx", "-y", "@github/copilot"], ["true"], ["env", "A=1", "vibe-acp"]])
def test_files_that_do_not_name_the_command_need_not_be_read(argv: list[str]) -> None:
    """The answer is the same as with all of them."""
    few = load_registry(about=argv)
    assert few.detect(argv) == REGISTRY.detect(argv)
    assert len(few.names()) < len(REGISTRY.names())


def test_a_users_own_provider_is_detected_and_two_that_claim_a_command_are_not(tmp_path: Path) -> None:
    """Which one was meant is nobody's guess; --provider says it."""
    text = 'schema = 1\nname = "{}"\ntitle = "T"\ncommands = ["{}"]\n[native]\n[contract]\n'
    (tmp_path / "mine.toml").write_text(text.format("mine", "my-agent"))
    found = load_registry(user_directory=tmp_path, about=["my-agent"]).detect(["my-agent"])
    assert found is not None
    assert found.name == "mine"
    (tmp_path / "other.toml").write_text(text.format("other", "my-agent"))
    assert load_registry(user_directory=tmp_path).detect(["my-agent"]) is None


def test_an_override_of_a_built_in_counts_in_detection(tmp_path: Path) -> None:
    """It may answer to other commands than the one it replaces."""
    text = 'schema = 1\nname = "codex"\ntitle = "T"\noverride = true\ncommands = ["my-codex"]\n[native]\n[contract]\n'
    (tmp_path / "codex.toml").write_text(text)
    for argv, name in ((["my-codex"], "codex"), (["codex"], None)):
        found = load_registry(user_directory=tmp_path, about=argv).detect(argv)
        assert (found and found.name) == name


def test_plug_ins_are_noticed_without_importing_what_would_load_them(tmp_path: Path) -> None:
    """The entry point group's name stands in a package's entry_points.txt."""
    info = tmp_path / "agent-1.0.dist-info"
    info.mkdir()
    assert not registry.installed_plugins([str(tmp_path), str(tmp_path / "missing"), BUILTIN_DIRECTORY])
    (info / "entry_points.txt").write_text("[console_scripts]\na = b:c\n")
    assert not registry.installed_plugins([str(tmp_path)])
    (info / "entry_points.txt").write_text("[paddock.providers]\na = b:c\n")
    assert registry.installed_plugins([str(tmp_path)])
    found = importlib.metadata.distributions(path=[str(tmp_path)])
    assert [entry.value for one in found for entry in one.entry_points] == ["b:c"]


@pytest.mark.parametrize("name", REGISTRY.names())
def test_an_explanation_has_one_line_per_fact_beneath_its_label(name: str) -> None:
    """No label runs into what it stands for, and values are written as in JSON."""
    lines = providers.paragraphs(REGISTRY.require(name))
    assert lines[0].startswith(f"{name}  ")
    facts = lines[1 : next(at for at, line in enumerate(lines) if line.startswith("  notes"))]
    assert all((line[:2], line[14]) == ("  ", " ") and line[15] != " " for line in facts)
    assert all(len(line) <= 100 or " " not in line[15:].strip() for line in lines)
    text = "\n".join(lines)
    assert "command" in text
    assert "- " in text
    assert '= "bypassPermissions"' in text or name != "claude-code"
