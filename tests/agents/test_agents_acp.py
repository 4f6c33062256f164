"""Real agents over ACP, as an editor starts them, do their work in a jail, and nothing beyond it.

They work by phantoms: what their jail holds is of no use elsewhere, and the key is not in it.
"""

import json
import shlex
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import trustme

from tests.support import agent_home, agent_scene
from tests.support.agent_home import INSTRUCTIONS, SERVER_KEY, SKILL
from tests.support.agent_scene import EXECUTED, KEY, THROUGH_EDITOR, Agent, Scene
from tests.support.features import need
from tests.support.models.script import Run, Step, Write

VENDORS = frozenset({"api.anthropic.com", "api.openai.com", "generativelanguage.googleapis.com"})
SEARCH = Path(__file__).parent.parent / "support" / "programs" / "search.py"
"""Looks for the key, which it is told backwards, wherever a process of the jail can read."""
ELSEWHERE = ("CODEX_CONFIG", "GOOGLE_GEMINI_BASE_URL", "OPENAI_BASE_URL", "OPENAI_HOST", "GOOSE_MODE")
"""Of what leads `agent_scene`'s agents to another host than their vendor's, and has one ask."""
_MODELS = {"models": {"m": {"name": "M"}}}
_OPENCODE = {"model": "anthropic/m", "small_model": "openai/m", "provider": {"anthropic": _MODELS, "openai": _MODELS}}
EXPORTED = {
    "claude": {"ANTHROPIC_API_KEY": KEY},
    "codex": {"OPENAI_API_KEY": KEY},
    "copilot": {"COPILOT_PROVIDER_BASE_URL": "https://api.openai.com/v1"},
    "goose": {"OPENAI_API_KEY": KEY},
    "opencode": {"ANTHROPIC_API_KEY": KEY, "OPENAI_API_KEY": KEY, "OPENCODE_CONFIG_CONTENT": json.dumps(_OPENCODE)},
}
"""What their users have exported instead. OpenCode's two keys: one vendor's model works, the other finds a title."""


@pytest.fixture
def vendors(scene: Scene) -> dict[str, str]:
    """What a user has exported whose keys are for the vendors' own hosts, behind his company's proxy and authority."""
    ca, place = trustme.CA(), scene.outside.parent / "ca.pem"
    ca.cert_pem.write_to_path(place)
    place.chmod(0o644)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert(*VENDORS).configure_cert(tls)
    scene.company.tls = tls
    scene.company.vendors = dict.fromkeys(VENDORS, scene.model.port)
    kept = {name: value for name, value in scene.environment.items() if not name.endswith(("_BASE_URL", "_API_KEY"))}
    return kept | {"SSL_CERT_FILE": str(place)}


def at_its_vendor(scene: Scene, make: Callable[[Scene], Agent]) -> Agent:
    """One of `agent_scene`, with a key for its vendor.

    Of those whose file tool can use the editor's, one does; the other finds out that nobody chose so. That one outlives
    its editor while a server of its own lives.
    """
    agent = make(scene)
    kept = {name: value for name, value in agent.environment.items() if name not in ELSEWHERE}
    agent = replace(agent, environment=kept | EXPORTED.get(make.__name__, {}), hosts=agent.hosts | VENDORS)
    if make is agent_scene.codex:
        return replace(agent, login="api-key")
    if make is agent_scene.gemini:
        return replace(agent, options=(*agent_scene.once(kept), "--grace", "3"), through_editor=False)
    return agent


def forged(scene: Scene) -> str:
    """A line of sh(1), words in the agent's own name: it asks the editor from the jail, by the agent's standard output.

    Most agents have no use for what an editor offers, but whatever they start can open the end of that pipe.
    """
    outside = scene.outside
    calls: list[tuple[str, dict[str, object]]] = [
        ("fs/write_text_file", {"path": f"{outside}/by-editor", "content": "x"}),
        ("fs/read_text_file", {"path": f"{outside}/secret"}),
        ("terminal/create", {"command": f"{outside}/tool", "args": [], "cwd": str(outside)}),
    ]
    lines = [
        json.dumps(
            {"jsonrpc": "2.0", "id": f"forged-{number}", "method": method, "params": {"sessionId": "s", **params}}
        )
        for number, (method, params) in enumerate(calls)
    ]
    return f"printf '%s\\n' {shlex.join(lines)} >/proc/2/fd/1 && echo asked the editor"


@pytest.mark.parametrize("make", agent_scene.AGENTS)
def test_an_agent_of_an_editor_works_in_its_worktree_and_reaches_nothing_else(
    scene: Scene, vendors: dict[str, str], make: Callable[[Scene], Agent], tmp_path: Path
) -> None:
    """It writes, reads, executes and commits there; outside, neither its tools nor the editor do, whoever asks.

    Its vendor, by TLS, sees the user's key; its own shell finds none, wherever it looks. It asks for no permission, is
    told what its user brings, and starts his server. A budget of tokens holds it up nowhere; nothing is estimated.
    """
    need("userns")
    agent = at_its_vendor(scene, make)
    agent = replace(agent, options=(*agent.options, "--budget", "tokens=20M", "--bring", "agents"))
    agent_home.furnish(scene, make.__name__)
    (scene.worktree / "search.py").write_text(SEARCH.read_text())
    *script, last = scene.script()
    script += [Run(f"{forged(scene)}; python3 search.py {KEY[::-1]}"), last]
    told = agent_scene.talk(scene, agent, script, tmp_path / "stderr", environment=vendors)
    assert told.stop_reason == "end_turn", told.stderr
    assert told.status == 0 or (make is agent_scene.gemini and told.status == 143), told.stderr
    scene.judge(script, hosts=agent.hosts)
    assert told.editor.written == [f"{scene.worktree}/made.txt"] * agent.through_editor
    assert (told.editor.run, told.editor.allowed) == ([], [])
    assert "1 commit harvested to one" in told.stderr
    assert "tokens in, " in told.stderr
    assert "estimated" not in told.stderr
    brought = {INSTRUCTIONS, SKILL} | ({SERVER_KEY} if make is not agent_scene.goose else set())
    assert agent_home.told(scene) == brought, told.stderr
    asked = scene.model.results[-2]
    assert "looked at" in asked
    assert "found" not in asked
    vendors_asked = by_the_key(scene)
    assert vendors_asked == {True, False} if make is agent_scene.opencode else len(vendors_asked) == 1
    if agent.through_terminal:  # a jail's further commands have no way to what its first one holds open
        assert "/proc/2/fd/1: Permission denied" in asked
        return
    assert "asked the editor" in asked
    refused = [json.loads(line)["path"] for line in scene.paddock.call("denials", "--json").stdout.splitlines()]
    assert {f"{scene.outside}/by-editor", f"{scene.outside}/secret"} <= set(refused)


def by_the_key(scene: Scene) -> set[bool]:
    """Whether Anthropic was asked, and whether another was: each time with the user's key, and never told it."""
    seen = [(request.path, request.headers) for request in scene.model.requests]
    assert [path for path, headers in seen if not any(KEY in value for value in headers.values())] == []
    assert KEY not in json.dumps([request.body for request in scene.model.requests])
    return {"/v1/messages" in path for path, _ in seen}


@pytest.mark.parametrize(
    ("make", "exported", "asks"),
    [
        (agent_scene.claude, {"ANTHROPIC_AUTH_TOKEN": KEY}, True),
        (agent_scene.codex, {"CODEX_API_KEY": KEY}, False),
        (agent_scene.goose, {"GOOSE_PROVIDER": "anthropic", "ANTHROPIC_API_KEY": KEY, "GOOSE_MODE": "approve"}, True),
        (agent_scene.gemini, {}, True),
    ],
)
def test_an_agent_whose_questions_are_kept_asks_and_is_told_of_nothing_at_home(
    scene: Scene,
    vendors: dict[str, str],
    make: Callable[[Scene], Agent],
    exported: dict[str, str],
    asks: bool,
    tmp_path: Path,
) -> None:
    """The editor's user decides then, as without a jail. They have the other keys that their vendors take.

    What nobody brings is not there: their user's instructions, skills and server. Gemini starts itself once more.
    """
    need("userns")
    agent = at_its_vendor(scene, make)
    kept = {name: value for name, value in agent.environment.items() if name not in EXPORTED.get(make.__name__, {})}
    options = ("--keep-prompts", *(THROUGH_EDITOR if make is agent_scene.gemini else ()))
    agent_home.furnish(scene, make.__name__)
    told = agent_scene.talk(
        scene, replace(agent, environment=kept | exported, options=options), scene.script()[:3], tmp_path / "stderr",
        environment=vendors,
    )  # fmt: skip
    assert (told.stop_reason, told.status) == ("end_turn", 0), told.stderr
    assert bool(told.editor.allowed) is asks
    assert agent_home.told(scene) == set(), told.stderr
    assert len(by_the_key(scene)) == 1
    assert EXECUTED in scene.model.results[2]


def test_without_the_bridge_an_editor_writes_and_executes_outside_for_an_agent(scene: Scene, tmp_path: Path) -> None:
    """The editor is in no jail, and a prefix alone does not see what it is asked for, by an agent that leaves both to
    it.
    """
    need("userns")
    beside, agent = scene.beside, agent_scene.goose(scene)
    script: list[Step] = [Write(str(beside), "x\n"), Run(f"{scene.outside}/tool")]
    told = agent_scene.talk(scene, agent, script, tmp_path / "stderr", verb="run")
    assert told.editor.written == [str(beside)], told.stderr
    assert beside.read_text() == "x\n"
    assert EXECUTED in scene.model.results[1]
