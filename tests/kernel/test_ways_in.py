"""Every id of the specification is reached by a verb, an API call or the service: seen in the installed command."""

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kernel.test_library import EXAMPLE, SETUP
from tests.kernel.test_orchestrators import TOOLS
from tests.support import install, paddock, served
from tests.support.identity import Who
from tests.support.paddock import Paddock
from tests.support.traceability import IDS, WAYS, reached
from tests.support.traced import Traced

COMMIT = "git add -A && git -c user.name=A -c user.email=a@b.c commit -qm"


@pytest.fixture(scope="module")
def traced() -> Iterator[Traced]:
    """The command, which writes down what it calls of the table; with a plug-in."""
    with tempfile.TemporaryDirectory(prefix="t-", dir=install.public_root()) as place:
        Path(place).chmod(0o755)
        made = Traced(Path(place), {function for _, function in reached().values()})
        _plug_in(made.installed.packages)
        yield made


@pytest.fixture
def scene(user: Who, traced: Traced, public_dir: Path) -> Paddock:
    """That command in a repository with a submodule, `app`, and a plain one."""
    (public_dir / "place").mkdir()
    made = paddock.make(user, traced.installed, user.give(public_dir / "place"))
    user.run(["sh", "-c", SETUP], cwd=made.place).check_returncode()
    return made


def _claude(scene: Paddock) -> Path:
    """What is taken for Claude Code, and says nothing of what it was told."""
    path = scene.place / "claude"
    path.write_text("#!/bin/sh\ncat lib/file; touch ../app/stolen; exit 0\n")
    path.chmod(0o755)
    scene.who.give(path)
    return path


def tickets(scene: Paddock, traced: Traced) -> None:
    """`paddock tickets`: an orchestrator, three tickets, the file tools, a merger, what is told afterwards, undoing."""
    app = scene.place / "app"
    one = """
for tool, words in (("write", {"file_path": "same", "content": "one"}), ("read", {"file_path": "same"}),
                    ("edit", {"file_path": "same", "old_string": "one", "new_string": "1"}), ("list", {}),
                    ("write", {"file_path": "../outside", "content": "x"}), ("read", {"file_path": "lib/file"}),
                    ("read", {"file_path": "/etc/passwd"}), ("list", {"directory": "."})):
    print(call(tool, **words))
print(call("read", session="none", file_path="same"))
os.system("""
    one += f"{f'{COMMIT} one'!r})"
    two = f"os.system({f'echo two > same; cd lib; touch two; {COMMIT} lib; cd ..; {COMMIT} two'!r})"
    made = [{"ticket": "one", "details": one}, {"ticket": "two", "details": two}, {"ticket": "three", "details": "0"}]
    asked = {
        "goal": "Everything.",
        "file_tools": True,
        "orchestrator": {"command": ["python3", "-c", f"{TOOLS}\nask('prompts/get', name='orchestrator')\n"
                                                      f"print(call('make_tickets', tickets={made!r}))"]},
        "agent": {"command": ["python3", "-c", TOOLS + "exec(sys.argv[1])", "{details}"],
                  "options": ["--rw", str(traced.into)]},
        "merger": {"command": ["sh", "-c", f"echo both > same; {COMMIT} both"]},
        "tickets": [{"ticket": "claude", "command": [str(_claude(scene))],
                     "options": ["--provider", "claude-code", "--ro", str(_claude(scene))]}],
    }  # fmt: skip
    path = scene.place / "tickets.json"
    path.write_text(json.dumps(asked))
    scene.who.give(path)
    with served.serving(scene) as service:
        said = service.cli("tickets", "run", str(path), "--repo", str(app), "--name", "all")
        assert said.returncode == 0, (said, service.log("all.2"))
        for words in (["--prompt"], ["--contexts"], []):
            shown = service.cli("tickets", "show", "all", *words)
            assert shown.returncode == 0
    undo = re.findall(r"^undo: in \S+: (.*)", shown.stdout, re.MULTILINE)[0]
    assert scene.shell(f"cd {app} && {undo}").returncode == 0


PLUGIN = """
class Plugged:
    provider_name = "plugged"
    supports_sandbox = True

    def to_environment_variables(self, context):
        return {"PLUGGED": ":".join(map(str, context.submodule_paths))}

    def to_command_line_args(self, context):
        return []
"""


def _plug_in(packages: Path) -> None:
    """A package that brings a provider of its own."""
    (packages / "plugged.py").write_text(PLUGIN)
    (packages / "plugged-1.dist-info").mkdir()
    (packages / "plugged-1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1\n")
    (packages / "plugged-1.dist-info/entry_points.txt").write_text("[paddock.providers]\nplugged = plugged:Plugged\n")


def run(scene: Paddock, traced: Traced) -> None:
    """`paddock run`: a worktree of the whole, one of its submodules, a provider's own words, and a plug-in's."""
    app, claude = scene.place / "app", _claude(scene)
    made = scene.shell(f"cd {app} && {scene.installed.paddock} worktree add T-1")
    assert made.returncode == 0, made
    words = ["run", "--rw", str(traced.into), "--worktree", str(scene.place / "app-T-1"), "--submodule", "lib"]
    for provider in ("claude-code", "auto"):
        said = scene.call(*words, "--ro", str(claude), "--provider", provider, "--", str(claude))
        assert said.returncode == 0, said
    assert not (app / "stolen").exists()
    said = scene.call(*words, "--provider", "plugged", "--", "printenv", "PLUGGED")
    assert said.stdout == f"{scene.place / 'app-T-1' / 'lib'}\n", said


def files(scene: Paddock, traced: Traced) -> None:
    """`paddock files`: with a session and without one, in both modes, and after its worktree has gone."""
    call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call",
            "params": {"name": "read", "arguments": {"file_path": "README.md"}}}  # fmt: skip
    hello = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
    }
    ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    for mode in ("strict", "compatible"):
        words = scene.words("files", "--stdio", "--mode", mode, "--rw", str(traced.into))
        server = subprocess.Popen(scene.who.command(words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                  cwd=scene.worktree, env=scene.who.environment(scene.env))  # fmt: skip
        assert server.stdin is not None
        assert server.stdout is not None
        for message in (hello, ready, call):
            server.stdin.write(json.dumps(message) + "\n")
            server.stdin.flush()
            if "id" in message:
                assert "result" in json.loads(server.stdout.readline())
        if mode == "compatible":
            os.rename(scene.worktree, f"{scene.worktree}.gone")
            server.stdin.write(json.dumps({**call, "id": 3}) + "\n")
            server.stdin.flush()
            server.stdout.readline()
            os.rename(f"{scene.worktree}.gone", scene.worktree)
        server.stdin.close()
        server.wait(30)
        server.stdout.close()


OTHER_DISPATCHES = """
from launcher.api import *
before = first.evolve(context_id=top.child("more"))
flow.graph.save(Node(node_id=before.session_id, agent_type=AgentType.ORCHESTRATOR))
flow.request(before)
for kind, one, many, result, results in (
    ("d", DiscoveryAgentRequest, DiscoveryAgentRequests, DiscoveryAgentResult, DiscoveryAgentResults),
    ("p", PlanningAgentRequest, PlanningAgentRequests, PlanningAgentResult, PlanningAgentResults),
):
    asked = many(context_id=top.child(kind), requests=[one(context_id=top.child(f"{kind}/1"), focus="x")])
    sent = flow.request(asked, first)
    child = flow.request(sent.requests[0], sent)
    back = flow.result(result(context_id=child.context_id), child)
    assert back.merge_descriptor.successful
    found = flow.results(results(context_id=sent.context_id, results=[back]), sent)
    assert found.merge_aggregation.all_successful
"""


def library(scene: Paddock, traced: Traced) -> None:
    """`launcher.api`: the documentation's example, and behind it the two other kinds of dispatches."""
    assert traced.into.exists()
    words = [str(scene.installed.python), "-I", "-c", EXAMPLE + OTHER_DISPATCHES]
    said = scene.who.run(words, cwd=scene.place / "app")
    assert said.returncode == 0, said.stderr


FLOWS: dict[str, Callable[[Paddock, Traced], None]] = {
    "tickets": tickets, "run": run, "files": files, "library": library
}  # fmt: skip


@pytest.mark.parametrize("way", FLOWS)
def test_every_id_is_reached_from_where_the_table_says(scene: Paddock, traced: Traced, way: str) -> None:
    """The function that does it is called while the installed command, its service and its jails are at work."""
    traced.calls()
    FLOWS[way](scene, traced)
    called = traced.calls()
    missing = {name: function for name, (by, function) in reached().items() if by == way and function not in called}
    assert not missing, "these are reached by tests alone"


def test_the_table_names_every_id_and_a_way_that_is_walked() -> None:
    """No id without a way in, no way that no test walks."""
    assert list(reached()) == list(IDS)
    assert {way for way, _ in reached().values()} == set(FLOWS) == set(WAYS)
