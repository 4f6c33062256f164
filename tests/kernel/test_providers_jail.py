"""Stand-ins for agents in a real jail: what they are recognised by, told, and given."""

import json
from pathlib import Path

from tests.support.identity import AS_A_USER
from tests.support.paddock import Paddock

SHOW = """#!/bin/sh
printf '%s\\n' "$@"
env | sort | sed 's/^/env /'
"""


def stand_in(paddock: Paddock, path: str, text: str = SHOW) -> Path:
    """An executable script below the place of `paddock`."""
    program = paddock.place / path
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(text)
    program.chmod(0o755)
    return program


def shown(output: str) -> tuple[list[str], dict[str, str]]:
    """The words and variables that a stand-in printed."""
    lines = output.splitlines()
    variables = dict(line[4:].split("=", 1) for line in lines if line.startswith("env "))
    return [line for line in lines if not line.startswith("env ")], variables


@AS_A_USER
def test_a_known_agent_is_told_of_its_worktree_and_nobody_else_is(paddock: Paddock) -> None:
    """By its name: flags, private state, questions off, telemetry off. The same script by another name: nothing."""
    claude, other = stand_in(paddock, "bin/claude"), stand_in(paddock, "bin/claudette")
    words, variables = shown(paddock.run("--", str(claude), "-p", "hi").stdout)
    assert words == [f"--add-dir={paddock.worktree}", "--permission-mode=bypassPermissions", "-p", "hi"]
    assert variables["CLAUDE_CONFIG_DIR"] == f"{variables['HOME']}/.claude"
    assert variables["CLAUDE_CODE_TMPDIR"] == variables["TMPDIR"]
    assert (variables["IS_SANDBOX"], variables["DISABLE_AUTOUPDATER"]) == ("1", "1")
    assert "HTTPS_PROXY" not in variables  # its hosts are reached by name
    for choice in (("--provider", "none", "--", str(claude)), ("--", str(other))):
        words, variables = shown(paddock.run(*choice, "-p").stdout)
        assert words == ["-p"]
        assert not {"IS_SANDBOX", "CLAUDE_CONFIG_DIR", "HTTPS_PROXY"} & variables.keys()


def test_its_questions_stay_on_when_they_are_to_be_kept(user_paddock: Paddock) -> None:
    """Its own sandbox is off all the same, as it cannot start in the jail; where that takes them along, it is said."""
    codex = stand_in(user_paddock, "bin/codex")
    off, variables = shown(user_paddock.run("--", str(codex), "exec").stdout)
    assert "approval_policy=never" in off
    kept, variables = shown(user_paddock.run("--keep-prompts", "--", str(codex), "exec").stdout)
    assert not any("approval" in word for word in kept)
    assert "sandbox_mode=danger-full-access" in kept
    assert variables["INITIAL_AGENT_MODE"] == "agent-full-access"
    adapter = stand_in(user_paddock, "bin/codex-acp")
    told = [user_paddock.run(*choice, "--", str(adapter)).stderr for choice in ((), ("--keep-prompts",))]
    assert ["asks for no permission in an editor" in text for text in told] == [False, True]
    shared, _ = shown(user_paddock.run("--git", "shared", "--", str(codex), "exec").stdout)
    assert shared == kept


def test_a_choice_of_the_callers_stands_in_place_of_ours(user_paddock: Paddock) -> None:
    """gemini refuses two approval modes; and its sub-commands know none of the flags. The plan is the cached one."""
    gemini = stand_in(user_paddock, "bin/gemini")
    ours = [f"--include-directories={user_paddock.worktree}", "--approval-mode=yolo"]
    for caller, told in (
        (["-p", "hi"], ours),
        (["--approval-mode", "plan"], ours[:1]),
        (["-y"], ours[:1]),
        (["mcp", "list"], []),
        (["tell me of mcp"], ours),
    ):
        assert shown(user_paddock.run("--", str(gemini), *caller).stdout)[0] == [*told, *caller]


def test_an_agent_behind_a_runner_has_a_plan_of_its_own(user_paddock: Paddock) -> None:
    """`env` alone is found by other words than `env ... codex`, whichever was run first."""
    codex = stand_in(user_paddock, "bin/codex")
    for _ in range(2):
        assert "CODEX_HOME" not in user_paddock.run("--", "env", "A=1").stdout
        words, variables = shown(user_paddock.run("--", "env", "A=1", str(codex), "exec").stdout)
        assert words[0] == f"--add-dir={user_paddock.worktree}"
        assert (variables["A"], variables["CODEX_HOME"]) == ("1", f"{variables['HOME']}/.codex")


def test_each_session_has_a_password_of_its_own(user_paddock: Paddock) -> None:
    """For the server that opencode opens; it is written nowhere."""
    opencode = stand_in(user_paddock, "bin/opencode")
    found = [
        shown(user_paddock.run("--report", "report.json", "--", str(opencode)).stdout)[1]["OPENCODE_SERVER_PASSWORD"]
        for _ in range(2)
    ]
    assert found[0] != found[1]
    assert all(len(one) == 48 for one in found)
    kept = [path for path in user_paddock.place.rglob("*") if path.is_file()]
    assert kept
    assert not [path for path in kept if any(one.encode() in path.read_bytes() for one in found)]


def test_what_was_chosen_is_said_and_reported(user_paddock: Paddock) -> None:
    """At -v, in the report, and by explain; a plain run says nothing."""
    vibe = stand_in(user_paddock, "bin/vibe-acp")
    why = f"auto: {vibe} is its ACP adapter"
    quiet = user_paddock.run("--report", "report.json", "--", str(vibe))
    assert quiet.stderr == ""
    report = json.loads((user_paddock.worktree / "report.json").read_text())
    assert (report["provider"], report["provider_source"]) == ("mistral-vibe", why)
    told = user_paddock.run("-v", "--", str(vibe)).stderr.splitlines()
    assert f"paddock: provider mistral-vibe ({why})" in told
    lines = user_paddock.call("explain", "--plan", "--", str(vibe)).stdout.splitlines()
    assert f"provider  mistral-vibe, native dialect  [{why}]" in lines
    lines = user_paddock.call("explain", "--plan", "--provider", "codex", "--", "true").stdout.splitlines()
    assert "provider  codex, native dialect  [--provider]" in lines
    lines = user_paddock.call("explain", "--plan", "--", "true").stdout.splitlines()
    assert "provider  none  [auto: the command is not a known agent]" in lines


def test_a_package_that_would_be_fetched_is_said_to_need_its_registry(user_paddock: Paddock) -> None:
    """Unless that may be reached, or no proxy stands between."""
    npx = stand_in(user_paddock, "bin/npx")
    ask = ("--dry-run", "--", str(npx), "-y", "@openai/codex")
    for choice, warned in ((), True), (("--allow-domain", "@node"), False), (("--net", "open"), False):
        lines = user_paddock.run(*choice, *ask).stdout.splitlines()
        assert any(line.startswith("warning   npx needs its package registry") for line in lines) is warned


def test_providers_are_listed_and_explained(user_paddock: Paddock) -> None:
    """The user's own too, with where they come from."""
    own = Path(user_paddock.who.home, ".config/paddock/providers/mine.toml")
    text = 'schema = 1\nname = "mine"\ntitle = "My Agent"\ncommands = ["my-agent"]\n[native]\n[contract]\n'
    user_paddock.who.run(["sh", "-c", f"umask 077; mkdir -p {own.parent} && cat >{own}"], stdin=text)
    try:
        listed = user_paddock.call("providers").stdout
        assert ["mine", "My", "Agent", "my-agent"] in [line.split() for line in listed.splitlines()]
        assert f"\n\nyour own: {own.parent}/*.toml" in listed
        assert "  Qwen Code  " in listed
        rows = json.loads(user_paddock.call("providers", "--json").stdout)
        assert [row["name"] for row in rows] == sorted(row["name"] for row in rows)
        assert {row["name"]: row["source"] for row in rows}["mine"] == str(own)
        one = user_paddock.call("providers", "codex").stdout
        assert "\\x" not in one  # its columns are Paddock's own
        assert "sandbox off" in one
        assert "sandbox_mode=danger-full-access" in one
        assert json.loads(user_paddock.call("providers", "codex", "--json").stdout)["name"] == "codex"
        assert user_paddock.refused("providers", "claud").reference == "provider-unknown"
        agent = stand_in(user_paddock, "bin/my-agent")
        lines = user_paddock.call("explain", "--plan", "--", str(agent)).stdout.splitlines()
        assert f"provider  mine, native dialect  [auto: {agent} is its command]" in lines
        own.write_text("schema = 2")
        assert user_paddock.refused("providers").reference == "provider-invalid"
    finally:
        own.unlink()


def test_the_place_that_a_variable_names_is_there(user_paddock: Paddock) -> None:
    """codex ends where CODEX_HOME leads nowhere; it can make things there, with or without a login to copy."""
    line = '#!/bin/sh\ncd "$CODEX_HOME" && echo made > made && cat made\n'
    codex = stand_in(user_paddock, "bin/codex", line)
    for options in ((), ("--logins", "none")):
        assert user_paddock.run(*options, "--", str(codex)).stdout == "made\n"


def test_the_packages_around_a_script_that_node_is_told_to_start_can_be_read(user_paddock: Paddock) -> None:
    """All below node_modules, and nothing beside it; not where a link in the worktree leads there."""
    stand_in(user_paddock, "bin/node", '#!/bin/sh\nexec sh "$@"\n')
    script = stand_in(
        user_paddock,
        "lib/node_modules/@openai/codex/bin/codex.js",
        'cd "${0%/*}/../../.."; cat other/data; cat ../beside 2>&1\n',
    )
    stand_in(user_paddock, "lib/node_modules/other/data", "data\n")
    stand_in(user_paddock, "lib/beside", "secret\n")
    node = str(user_paddock.place / "bin/node")
    ended = user_paddock.run("--", node, str(script))
    assert ended.stdout.startswith("data\n"), ended
    assert "secret" not in ended.stdout
    (user_paddock.worktree / "node_modules").symlink_to(user_paddock.place / "lib/node_modules")
    planted = f"{user_paddock.worktree}/node_modules/@openai/codex/bin/codex.js"
    lines = user_paddock.call("explain", "--plan", "--", node, planted).stdout
    assert "provider  codex" in lines
    assert f"{user_paddock.place}/lib/node_modules  [" not in lines
