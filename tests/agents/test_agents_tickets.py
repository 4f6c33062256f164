"""Real agents carry out a ticket run: one makes the tickets over MCP, others work on them with the file tools."""

import json
from pathlib import Path

import pytest

from tests.support import served
from tests.support.agent_scene import Scene
from tests.support.models.script import Run, Use

MCP = {
    "mcpServers": {
        "paddock": {
            "type": "http",
            "url": "${PADDOCK_FILES_URL}",
            "headers": {
                "X-Paddock-Session": "${PADDOCK_FILES_SESSION}",
                "X-Paddock-Token": "${PADDOCK_FILES_TOKEN}",
            },
        }
    }
}
"""As docs/service.md has it."""


@pytest.mark.spec("FR-005", "FR-007", "FR-008", "FR-009", "SC-007")
def test_claude_code_makes_tickets_and_works_on_them(scene: Scene) -> None:
    """Its prompt is the orchestrator's; a ticket is made over MCP; a Claude Code of its own works on it.

    Of several, of which none sees the other's work: `tests/kernel/test_orchestrators.py`.
    """
    main = scene.paddock.main
    commit = "git add -A && git -c user.name=A -c user.email=a@b.c commit -qm"
    scene.model.scripts = {
        "Handing Out Tickets": [
            Use("read", {"file_path": "tool"}),
            Use("make_tickets", {"tickets": [{"ticket": "ONE", "details": "Do the only thing."}]}),
        ],
        "Do the only thing.": [Use("write", {"file_path": "only", "content": "by one\n"}),
                               Use("read", {"file_path": f"{scene.outside}/secret"}), Run(f"{commit} only")],
    }  # fmt: skip
    claude = ["claude", "--mcp-config", json.dumps(MCP), "-p"]
    # A scripted model does not search for tools before it uses them.
    options = ["--reach", str(scene.model.port), "--env", "ENABLE_TOOL_SEARCH=false"]
    tickets = {
        "goal": "One thing.",
        "file_tools": True,
        "orchestrator": {"command": [*claude, "{prompt}"], "options": options},
        "agent": {"command": [*claude, "{details}"], "options": options},
    }
    path = Path(scene.outside.parent, "tickets.json")
    path.write_text(json.dumps(tickets))
    scene.who.give(path)
    with served.serving(scene.paddock) as service:
        words = scene.paddock.words("tickets", "run", str(path), "--repo", str(main), "--name", "run")
        said = scene.who.run(words, cwd=main, env=scene.environment | service.env, timeout=300)
        log = [line for session in ("run.0", "run.1") for line in [session, *service.log(session)]]
        assert said.returncode == 0, (said.stdout, said.stderr, log, scene.model.unknown)
        assert (main / "only").read_text() == "by one\n"
        told = [result for request in scene.model.requests for result in request.results]
        assert any('"made": ["ONE"]' in text for text in told), told
        assert any("SANDBOX_VIOLATION" in text for text in told), told
        assert not any("the-secret" in text for text in told)
