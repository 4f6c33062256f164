"""The file tools that the service offers to the agents of a ticket run: header, token, stored context, jail."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.test_service_tickets import COMMIT, run, running, service
from tests.support.served import Served

__all__ = ["running", "service"]

CALL = r"""
import json, os, sys, urllib.request

def call(tool, session=None, token=None, **arguments):
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
               "X-Paddock-Session": session or os.environ["PADDOCK_FILES_SESSION"],
               "X-Paddock-Token": token or os.environ["PADDOCK_FILES_TOKEN"]}
    request = urllib.request.Request(os.environ["PADDOCK_FILES_URL"], json.dumps(body).encode(), headers)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        result = json.loads(answer.read())["result"]
    return result["content"][0]["text"]

def error(text):
    return json.loads(text)["errorType"]
"""


def agent(name: str, script: str) -> dict[str, Any]:
    """A ticket whose agent works with the file tools alone."""
    return {"ticket": name, "command": ["python3", "-c", CALL + script]}


@pytest.mark.spec("FR-004d", "FR-015", "FR-016", "FR-017", "FR-019", "US5.1", "US5.3", "CONTRACT-6")
def test_agents_of_a_run_use_the_file_tools_of_the_service(service: Served) -> None:
    """By header and token, each in its own worktree and jail; another's worktree, session and token lead nowhere."""
    main, place = service.paddock.main, service.paddock.place
    (place / "secret").write_text("hidden")
    first = f"""
call("write", file_path="made", content="by tools")
print(call("read", file_path="made"))
print(error(call("read", file_path="{place}/secret")))
print(error(call("write", file_path="{main}/stolen", content="x")))
print(error(call("read", file_path="../main-P-2/README.md")))
print(error(call("read", session="filed/tickets/dispatch/2", file_path="made")))
print(error(call("read", session="filed/tickets", file_path="made")))
print(error(call("read", session="filed", token="0" * 64, file_path="made")))
print(call("shell", command={f"{COMMIT} made"!r}))
print(call("shell", command="cat {place}/secret; id -u; cat /proc/1/comm"))
"""
    first += f"""
try:
    print(open("{service.runtime}/paddock/ticket-files").read())
except OSError:
    print("no secret")
"""
    second = 'print(call("read", file_path="made")); print(call("list"))'
    done = run(service, agent("P-1", first), agent("P-2", second), name="filed", file_tools=True, parallel=1)
    assert done["state"] == "ended", (done, service.log("filed.1"), service.log("filed.2"))
    lines = service.log("filed.1")
    assert lines[0] == "by tools"
    assert lines[1:4] == ["SANDBOX_VIOLATION"] * 3
    assert lines[4:7] == ["WORKTREE_UNRESOLVED"] * 3
    assert lines[7] == "exit status 0", lines
    assert not any("hidden" in line for line in lines)
    assert "no secret" in lines
    assert (service.runtime / "paddock/ticket-files").stat().st_mode & 0o777 == 0o600
    assert (main / "made").read_text() == "by tools"
    assert not (main / "stolen").exists()
    assert any("NOT_FOUND" in line for line in service.log("filed.2"))
    contexts = {each["artifact_key"]: each for each in service.get("/v1/ticket-runs/filed/contexts").json["contexts"]}
    assert contexts["filed/tickets/dispatch/1"]["metadata"]["session"] == "filed.1"


def test_a_session_that_is_over_has_no_tools_any_more(service: Served) -> None:
    """Its address and token were kept by somebody: the context has expired, and nothing is allowed by it."""
    script = 'print(json.dumps({name: os.environ["PADDOCK_FILES_" + name] for name in ("URL", "SESSION", "TOKEN")}))'
    done = run(service, agent("Q-1", script), name="over", file_tools=True, remove=False)
    assert done["state"] == "ended", service.log("over.1")
    found = json.loads(service.log("over.1")[0])
    environment = {f"PADDOCK_FILES_{name}": value for name, value in found.items()}
    script = CALL + 'print(error(call("write", file_path="late", content="x")))'
    said = service.paddock.who.run(["python3", "-c", script], cwd=service.paddock.place, env=environment)
    assert said.stdout == "WORKTREE_UNRESOLVED\n", said
    assert not (Path(done["result"]["agents"][0]["worktree"]) / "late").exists()


def test_the_tools_of_a_review_show_the_commit_alone(service: Served) -> None:
    """So do the answers that it gets to its questions: nothing comes from the worktree of the agent it reviews."""
    work = f"echo committed > one; {COMMIT} one; echo left > one; echo left > two"
    review = """
print(call("read", file_path="one"))
print(error(call("read", file_path="two")), error(call("write", file_path="one", content="x")))
print(call("ask", question="What is there?"))
sys.exit("left" in open("one").read())
"""
    done = run(service, {"ticket": "R-1", "command": ["sh", "-c", work]}, name="shown", file_tools=True,
               review={"command": ["python3", "-c", CALL + review]},
               context_manager={"command": ["sh", "-c", "cat one; ls"]})  # fmt: skip
    assert done["result"]["agents"][0]["review"]["status"] == 0, (done, service.log("shown.1.v1"))
    said = "\n".join(service.log("shown.1.v1"))
    assert ("committed" in said, "left" in said, "two" in said) == (True, False, False), said
    assert "NOT_FOUND ACCESS_DENIED" in said
