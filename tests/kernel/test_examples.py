"""Every example on every page is what happens when somebody types it (tests/support/examples.txt prepares it)."""

import json
import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.service.ticket_schema import TicketRequest
from policy.api import WorktreeSandbox
from tests.agents import test_agents_tickets
from tests.support import examples
from tests.support.examples import HOME, Example, Shell
from tests.support.features import need
from tests.support.identity import Who
from tests.support.install import ROOT, Installed

ELSEWHERE = {
    "README.md: cd ~/src/project && paddock worktree add tabs": "tests/kernel/test_readme.py types into the jail",
    "docs/library.md: import tempfile": "tests/kernel/test_library.py",
    "docs/library.md: from launcher.api import Sandbox": "tests/kernel/test_library.py",
}
"""Examples that another test runs, as they stand on their pages."""

HELP = (
    "run",
    "exec",
    "explain",
    "why",
    "denials",
    "worktree",
    "merge",
    "prune",
    "selftest",
    "init",
    "trust",
    "providers",
    "doctor",
)
"""Verbs whose examples in help are run, too; tests/unit/test_documents.py parses those of all."""

EVERY = (*examples.examples("console"), *examples.of_help(*HELP))
CONSOLES = [
    example
    for example in EVERY
    if example.name not in ELSEWHERE and not any(example.is_part_of(other) for other in EVERY)
]
TOML = examples.examples("toml")
CONFIGURATIONS = [example for example in TOML if example.text.startswith("schema")]
TICKETS = [example for example in TOML if example not in CONFIGURATIONS]
SETTINGS = [example for example in examples.examples("json") if "agent_servers" in example.text]
HELLO = json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": 1}})
ANSWER = json.dumps({"jsonrpc": "2.0", "id": 0, "result": {"protocolVersion": 1}})
MENDS = "program claude 'echo mended >parser.py && git commit -qam \"PROJ-17: Mended.\"; echo done >&2'"


@pytest.fixture
def shell(user: Who, installed: Installed, public_dir: Path) -> Iterator[Shell]:
    """Where the scene's first part has been done."""
    need("userns")
    programs, clone = public_dir / "programs", public_dir / "clone"
    for place in (programs, clone, *(clone / name for name in ("launcher", "policy", "docs", "systemd"))):
        place.mkdir()
    for name in ("Makefile", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    user.give(programs)
    environment = {
        "PATH": f"{installed.paddock.parent}:{programs}:{user.path}",
        "PROGRAMS": str(programs),
        "INSTALLED": str(installed.prefix),
        "CLONE": str(clone),
        "XDG_RUNTIME_DIR": str(public_dir / "home-of-user/runtime"),
    }
    with Shell(user, user.home, environment) as made:
        prepare(made, examples.scenes()[""])
        yield made


def prepare(shell: Shell, scene: str) -> None:
    """Does a part of the scene; nothing in it may fail."""
    said, status = shell.run(f"set -e\n{scene}\nset +e")
    assert status == 0, said


@pytest.mark.parametrize("example", CONSOLES, ids=lambda example: str(example.name))
def test_a_console_shows_what_happens(example: Example, shell: Shell, user: Who) -> None:
    """Line by line: the status, and the words where the page shows them."""
    scene = examples.scenes().get(example.name, "")
    statuses, replaced = examples.statuses(scene), examples.replaced(scene)
    prepare(shell, scene)
    for typed, expected in example.steps:
        said, status = shell.run(replaced.get(typed, typed).replace(HOME, str(user.home)))
        said = said.replace(str(user.home), HOME)
        assert status == statuses.get(typed, 0), f"{typed}: {status}: {said}"
        if expected:
            assert shell.same(expected, said), f"{typed}\n--- shown on the page\n{expected}\n--- said\n{said}"


@pytest.mark.parametrize("example", CONFIGURATIONS, ids=lambda example: str(example.name))
def test_a_configuration_is_obeyed(example: Example, shell: Shell, user: Who) -> None:
    """As the project's own, once it is trusted."""
    (user.home / "src/project/.paddock.toml").write_text(example.text)
    prepare(shell, "mkdir ../shared; paddock trust")
    said, status = shell.run("paddock explain --plan -- true")
    assert status == 0, said
    for granted in ("home-of-user/datasets", "src/shared", "127.0.0.1:5432", "*.example.com:443"):
        assert granted in said


def test_a_ticket_run_ends_merged(shell: Shell, user: Who) -> None:
    """The first file of docs/service.md; the second is valid (tests/kernel/test_orchestrators.py runs its like)."""
    first, second = TICKETS
    TicketRequest.model_validate({**tomllib.loads(second.text), "repository": "/src/project"})
    (user.home / "src/tickets.toml").write_text(first.text)
    prepare(shell, f"{MENDS}; served")
    said, status = shell.run("paddock tickets run ../tickets.toml && git log -3 --format=%s")
    assert status == 0, said
    assert "PROJ-17: Mended." in said.splitlines()


def editors() -> list[list[str]]:
    """The command lines that the settings of editors start (real agents: tests/agents/test_agents_recipes.py)."""
    zed, jetbrains = (json.loads(each.text)["agent_servers"] for each in SETTINGS)
    (lua,) = examples.examples("lua")
    (words,) = re.findall(r"default = \{ (.*?) \}", lua.text)
    listed = [[each["command"], *each["args"]] for each in (*zed.values(), *jetbrains.values())]
    return [*listed, json.loads(f"[{words}]")]


def test_what_an_editor_starts_answers(shell: Shell, user: Who) -> None:
    """Each command of the settings, with an agent of that name."""
    prepare(shell, "ln -s $(command -v paddock) ~/.local/bin/; paddock worktree add PROJ-17")
    assert len(editors()) == 6
    for words in editors():
        program = words[words.index("--") + 1]
        answers = f"read -r line; echo {shlex.quote(ANSWER)}; cat >/dev/null"
        prepare(shell, f"program {program} {shlex.quote(answers)}")
        line = shlex.join(words).replace(HOME, str(user.home))
        said, status = shell.run(f"echo {shlex.quote(HELLO)} | {line}")
        assert status == 0, said
        assert '"protocolVersion":1' in said.replace(" ", "")


def test_the_scripts_do_what_they_are_for(shell: Shell, user: Who) -> None:
    """Links in front of agents' names; a ticket from its worktree to its merge. A cluster is for `test_ray`."""
    links, ticket = (example.text for example in examples.examples("sh") if "ray start" not in example.text)
    prepare(shell, MENDS)
    said, status = shell.run(f"({links}\ntype -P claude codex; claude)")
    assert status == 0, said
    assert said.splitlines()[:2] == [f"{user.home}/.local/jailed/claude", f"{user.home}/.local/jailed/codex"]
    assert "paddock: 1 commit harvested" in said
    said, status = shell.run(f"git reset -q --hard HEAD~1 && sh -c {shlex.quote(ticket)} ticket PROJ-17 'Mend it.'")
    assert status == 0, said
    said, status = shell.run("git log -1 --format=%s; ls ..")
    assert said.split("\n")[0] == "PROJ-17: Mended."
    assert "project-PROJ-17" not in said


def test_the_json_on_the_pages_is_what_is_said_and_read(tmp_path: Path) -> None:
    """The validator's answer; the file by which Claude Code finds the file tools in tests/agents."""
    refusal, servers = (json.loads(example.text) for example in examples.examples("json") if example not in SETTINGS)
    verdict = WorktreeSandbox().validate(refusal["attemptedPath"], str(tmp_path))
    assert json.loads(verdict.to_error_json()) == refusal | {"sandboxRoot": str(tmp_path)}
    assert servers == test_agents_tickets.MCP


def test_every_example_is_run_by_one_of_these() -> None:
    """There is no further language on the pages; text is what the scoreboard has run (test_scoreboard.py)."""
    known = {"console", "toml", "json", "sh", "lua", "python", "text"}
    assert {example.language for example in examples.examples()} == known
    assert [example.name for example in examples.examples("python") if example.name not in ELSEWHERE] == []
    assert len(CONFIGURATIONS) == len(TICKETS) == len(SETTINGS) == 2


def test_the_scenes_are_those_of_examples_that_are_there() -> None:
    """Nothing is prepared, replaced or excused that no page has any more."""
    known = {example.name: example for example in (*examples.examples(), *examples.of_help(*HELP))}
    run = {example.name for example in CONSOLES}
    for name, scene in examples.scenes().items():
        if name:
            assert name in run, name
            typed = {line for line, _ in known[name].steps}
            assert {*examples.statuses(scene), *examples.replaced(scene)} <= typed, name
    assert set(ELSEWHERE) <= set(known)
