"""A dispatching agent: it reads its prompt over MCP, makes the tickets of its run, and all they come to is merged."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.test_service_tickets import COMMIT, git, run, running, service, ticket
from tests.kernel.test_ticket_files import CALL
from tests.support.served import Served

__all__ = ["running", "service"]

TOOLS = (
    CALL
    + r"""
def ask(method, **parameters):
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": parameters}
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
               "X-Paddock-Session": os.environ["PADDOCK_FILES_SESSION"],
               "X-Paddock-Token": os.environ["PADDOCK_FILES_TOKEN"]}
    request = urllib.request.Request(os.environ["PADDOCK_FILES_URL"], json.dumps(body).encode(), headers)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        return json.loads(answer.read())

def made(*tickets):
    return call("make_tickets", tickets=[{"ticket": name, "details": details} for name, details in tickets])
"""
)


def orchestrator(script: str, **fields: Any) -> dict[str, Any]:  # noqa: ANN401  # JSON
    """An orchestrator that calls the tools."""
    return {"command": ["python3", "-c", TOOLS + script], **fields}


CHILD = {"command": ["python3", "-c", CALL + "import sys\nexec(sys.argv[2])", "{ticket}", "{details}"]}
"""An agent that does with the file tools what its ticket says."""


def commit(name: str, *written: tuple[str, str]) -> str:
    lines = [f"call('write', file_path={path!r}, content={content!r})" for path, content in written]
    return "\n".join([*lines, f"print(call('shell', command={f'{COMMIT} {name}'!r}))"])


def contexts_of(service: Served, name: str) -> dict[str, Any]:
    return {each["artifact_key"]: each for each in service.get(f"/v1/ticket-runs/{name}/contexts").json["contexts"]}


@pytest.mark.spec("FR-005", "FR-007", "FR-008", "FR-009", "US7.1", "US7.2", "US7.3", "SC-007", "MF-022", "CONTRACT-3")
def test_a_dispatching_agent_makes_the_tickets_of_its_run(service: Served) -> None:
    """From one tickets file: prompt over MCP, tickets, file tools over HTTP, results, both phases, a merger."""
    tickets = (
        ("A-1", commit("one", ("same", "one\n"), ("first", "1\n"))),
        ("A-2", commit("two", ("same", "two\n"))),
        ("A-3", commit("three", ("third", "3\n"))),
    )
    script = f"""
prompt = ask("prompts/get", name="orchestrator")["result"]["messages"][0]["content"]["text"]
held = ask("resources/read", uri="paddock://orchestrator")["result"]["contents"][0]["text"]
print(json.dumps({{"prompt": prompt, "same": held == prompt == sys.argv[1],
                  "tools": [each["name"] for each in ask("tools/list")["result"]["tools"]]}}))
print(error(call("write", file_path="by-tools", content="x")))
open("plan", "w").write("the plan")
os.system({f"{COMMIT} plan"!r})
print(made(*{tickets!r}))
"""
    asked: dict[str, Any] = {
        "goal": "Number the files.",
        "file_tools": True,
        "parallel": 3,
        "orchestrator": {**orchestrator(script), "most_tickets": 3},
        "agent": CHILD,
        "merger": {"command": ["sh", "-c", f"printf 'one\\ntwo\\n' > same; {COMMIT} both"]},
    }
    asked["orchestrator"]["command"].append("{prompt}")
    main = service.paddock.main
    path = service.paddock.place / "tickets.json"
    path.write_text(json.dumps(asked))
    service.paddock.who.give(path)
    before = git(service, "rev-parse", "HEAD")
    trees = git(service, "worktree", "list", "--porcelain")
    said = service.cli("tickets", "run", str(path), "--repo", str(main), "--name", "handed")
    assert said.returncode == 0, (said, service.log("handed.0"), service.log("handed.1"))
    told = service.log("handed.0")
    first = json.loads(told[0])
    assert first["same"] is True
    assert first["prompt"].startswith("## Goal\n\nNumber the files.\n\n## Worktrees for Tickets\n")
    assert "main-orchestrator`" in first["prompt"]
    assert "make_tickets" in first["prompt"]
    assert first["tools"] == ["read", "list", "glob", "grep", "make_tickets"]
    assert told[1] == "ACCESS_DENIED"
    answer = json.loads(next(line for line in told[2:] if line.startswith("{")))
    assert answer == {"made": ["A-1", "A-2", "A-3"], "already": []}
    # What all have brought is in the trunk, which has moved once.
    assert (main / "same").read_text() == "one\ntwo\n"
    assert [(main / name).read_text() for name in ("plan", "first", "third")] == ["the plan", "1\n", "3\n"]
    assert git(service, "rev-parse", "HEAD@{1}") == before
    assert not git(service, "status", "--porcelain")
    after = git(service, "rev-parse", "HEAD")
    # Every part of it is in the stored contexts, the aggregation too, and none has boundaries any more.
    contexts = contexts_of(service, "handed")
    results = contexts["handed/tickets/dispatch"]["current_request"]
    assert [each["agent_result_id"] for each in results["merge_aggregation"]["merged"]] == [
        "handed/tickets/dispatch/1", "handed/tickets/dispatch/2", "handed/tickets/dispatch/3"
    ]  # fmt: skip
    assert len(results["results"]) == 3
    assert results["goal"] == "Number the files."
    assert {each["state"] for each in contexts.values()} == {"expired"}
    parents = {
        each["worktree_context"]["main_worktree"]["parent_worktree_id"]
        for name, each in contexts.items() if name.startswith("handed/tickets/dispatch/")
    }  # fmt: skip
    own = contexts["handed/tickets"]["worktree_context"]["main_worktree"]
    assert parents == {own["worktree_id"]}
    assert contexts["handed/tickets/merger/2"]["current_request"]["kind"] == "MergerRequest"
    # Nothing is left but branches.
    assert not os.path.exists(own["worktree_path"])
    assert git(service, "worktree", "list", "--porcelain").replace(after, before) == trees
    shown = service.cli("tickets", "show", "handed").stdout
    assert f"handed  ended: 3 of 3 merged into {main}\n" in shown
    assert "  orchestrator  merged as " in shown
    undo = next(line for line in shown.splitlines() if line.startswith("undo: "))
    assert (
        service.paddock.shell(f"cd {main} && {undo.partition(': ')[2].partition(': ')[2]}", env=service.env).returncode
        == 0
    )
    assert git(service, "rev-parse", "HEAD") == before


def test_only_the_orchestrator_hands_out_tickets_and_only_so_many(service: Served) -> None:
    """Not its children, not with another's token, not more than were granted, not twice with other words, and none that
    is called as itself. Without a context manager nobody asks one; without a merge nothing moves.
    """
    script = """
print(made(("B-1", "print(call('make_tickets', tickets=[{'ticket': 'X', 'details': 'y'}]))")))
print(made(("B-1", "print(call('make_tickets', tickets=[{'ticket': 'X', 'details': 'y'}]))")))
for wrong in ([("B-1", "other")], [("B-2", "x"), ("B-3", "y")], [("../up", "x")], [("B-2", "")], [],
              [("orchestrator", "x")]):
    print(made(*wrong))
print(call("make_tickets", session="guarded", tickets=[]))
print(call("make_tickets", token="0" * 64, tickets=[]))
"""
    asks = """
import sys
exec(sys.argv[1])
print(ask("prompts/list")["result"]["prompts"], "make_tickets" in str(ask("tools/list")))
print(error(call("ask", question="x")), "ask" in str(ask("tools/list")))
"""
    child = {"command": ["python3", "-c", TOOLS + asks, "{details}"]}
    script += f"os.system({f'(touch kept; {COMMIT} kept) >/dev/null 2>&1'!r})"
    before = git(service, "rev-parse", "HEAD")
    done = run(service, name="guarded", agent=child, file_tools=True, merge=False,
               orchestrator=orchestrator(script, most_tickets=2))  # fmt: skip
    assert (done["state"], done["tickets"]) == ("ended", ["B-1"]), (done, service.log("guarded.0"))
    assert ("landed" in done["result"], git(service, "rev-parse", "HEAD")) == (False, before), done
    assert (Path(done["orchestrator"]["worktree"]) / "kept").exists(), "what was not to be merged is there"
    *told, harvested = service.log("guarded.0")
    assert "1 commit harvested" in harvested
    lines = [json.loads(line) for line in told]
    assert lines[:2] == [{"made": ["B-1"], "already": []}, {"made": [], "already": ["B-1"]}]
    assert [each["errorType"] for each in lines[2:]] == ["INVALID_ARGUMENT"] * 6 + ["WORKTREE_UNRESOLVED"] * 2
    words = [each["message"] for each in lines[2:]]
    assert "other details" in words[0]
    assert "may make at most 2 tickets here, not 3" in words[1]
    assert "the run's orchestrator" in words[5]
    lines = service.log("guarded.1")
    assert json.loads(lines[0])["errorType"] == "ACCESS_DENIED"
    assert lines[1:] == ["[] False", "ACCESS_DENIED False"]


def test_nothing_of_an_orchestrator_that_fails_is_lost(service: Served) -> None:
    """Its tickets wait, the trunk stays as it is; it is started again, and tickets and commits count once."""
    script = f"""
print(made(("C-1", "open('one', 'w'); import os; os.system({f"{COMMIT} one"!r})")))
if not os.path.exists("plan"):
    open("plan", "w")
    os.system({f"{COMMIT} plan"!r})
    sys.exit(3)
"""
    child = {"command": ["python3", "-c", "{details}"]}
    main = service.paddock.main
    before = git(service, "rev-parse", "HEAD")
    done = run(service, name="again", agent=child, orchestrator=orchestrator(script))
    assert (done["state"], done["tickets"], done["result"]["agents"]) == ("failed", ["C-1"], []), done
    assert done["orchestrator"]["state"] == "failed"
    assert done["result"]["orchestrator"]["status"] == 3
    assert git(service, "rev-parse", "HEAD") == before
    shown = service.cli("tickets", "show", "again").stdout
    assert "  orchestrator  failed (3)\n" in shown
    assert "next: paddock tickets resume again" in shown
    said = service.cli("tickets", "resume", "again")
    assert said.returncode == 0, (said, service.log("again.0.2"))
    assert (main / "one").exists()
    assert git(service, "log", "--format=%s").split() == ["one", "plan", "main:", "First."]


def moved(service: Served, name: str, **fields: Any) -> dict[str, Any]:  # noqa: ANN401  # JSON
    """A run during which the trunk moves, so that what its tickets come to conflicts with it."""
    script = f"""
print(made(("D-1", {f"echo ours > same; touch one; {COMMIT} ours"!r}),
           ("D-2", "while [ ! -e go ]; do sleep 0.05; done")))
"""
    main = service.paddock.main
    body = {"repository": str(main), "name": name, "orchestrator": orchestrator(script), **fields,
            "agent": {"command": ["sh", "-c", 'eval "$1"', "sh", "{details}"]},
            "environment": service.paddock.who.environment(service.env)}  # fmt: skip
    assert service.post("/v1/ticket-runs", body).status == 201
    found = service.get(f"/v1/ticket-runs/{name}").json
    while not (len(found["steps"]) == 2 and found["steps"][1]["worktree"]):
        assert found["ended"] is None, (found, service.log(f"{name}.0"))
        found = service.get(f"/v1/ticket-runs/{name}?wait=10&seen={found['seen']}").json
    assert service.paddock.shell(f"cd {main} && echo theirs > same && {COMMIT} theirs").returncode == 0
    go = Path(found["steps"][1]["worktree"], "go")
    go.touch()
    service.paddock.who.give(go)
    done: dict[str, Any] = service.get(f"/v1/ticket-runs/{name}?wait=60").json
    return done


def test_what_conflicts_with_the_trunk_at_the_end_waits(service: Served) -> None:
    """The trunk has moved meanwhile: tickets stay merged in the orchestrator's worktree, and a person resolves it."""
    main = service.paddock.main
    done = moved(service, "moved")
    assert done["state"] == "failed", done
    assert done["result"]["landed"]["status"]["merge_descriptor"]["conflict_files"] == ["same"]
    assert done["orchestrator"]["state"] == "conflicted"
    assert (main / "same").read_text() == "theirs\n"
    assert not (main / "one").exists()
    shown = service.cli("tickets", "show", "moved").stdout
    there = Path(done["orchestrator"]["worktree"])
    assert "  orchestrator  conflicts\n" in shown
    joined = shown.partition(f"next: in {there}: ")[2].partition(", resolve")[0]
    assert "CONFLICT" in service.paddock.who.run(["sh", "-c", joined], cwd=there).stdout
    assert service.paddock.who.run(["sh", "-c", f"echo both > same && {COMMIT} solved"], cwd=there).returncode == 0
    assert service.cli("tickets", "resume", "moved").returncode == 0
    assert (main / "same").read_text() == "both\n"
    assert (main / "one").exists()


def test_a_merger_resolves_what_conflicts_at_the_end(service: Served) -> None:
    """In the orchestrator's worktree, as it does in a ticket's, by a request that is written down."""
    done = moved(service, "solved", merger={"command": ["sh", "-c", f"echo both > same; {COMMIT} both"]})
    assert done["state"] == "ended", done
    assert (service.paddock.main / "same").read_text() == "both\n"
    asked = contexts_of(service, "solved")["solved/tickets/merger/0"]["current_request"]
    assert (asked["kind"], asked["conflicted"]["agent_result_id"]) == ("MergerRequest", "solved/tickets")


def test_a_run_is_stopped_while_its_orchestrator_works(service: Served) -> None:
    """It ends with it; the trunk is as it was, and what was committed is on its branch."""
    script = f"""
import time
os.system({f"touch plan; {COMMIT} plan"!r})
print(made(("F-1", "true")), flush=True)
time.sleep(600)
"""
    body = {"repository": str(service.paddock.main), "name": "stopped", "orchestrator": orchestrator(script),
            "agent": {"command": ["true"]}, "environment": service.paddock.who.environment(service.env)}  # fmt: skip
    assert service.post("/v1/ticket-runs", body).status == 201
    found = service.get("/v1/ticket-runs/stopped").json
    while not found["tickets"]:
        assert found["ended"] is None, found
        found = service.get(f"/v1/ticket-runs/stopped?wait=10&seen={found['seen']}").json
    service.post("/v1/ticket-runs/stopped/stop", {})
    done = service.get("/v1/ticket-runs/stopped?wait=60").json
    assert (done["state"], done["result"]["orchestrator"]["reason"]) == ("failed", "stopped"), done
    assert (
        "  orchestrator  stopped (143): it was stopped on request\n" in service.cli("tickets", "show", "stopped").stdout
    )
    assert git(service, "log", "-1", "--format=%s", "agent/orchestrator") == "plan\n"
    assert not (service.paddock.main / "plan").exists()


def test_a_run_needs_tickets_or_who_makes_them(service: Served) -> None:
    """And an orchestrator needs an agent for its tickets; mistakes in either are told by their place."""
    body = {"repository": str(service.paddock.main)}
    trees = git(service, "worktree", "list")
    for fields, words in (
        ({}, "tickets is missing"),
        ({"orchestrator": {"command": ["true"]}}, "agent is missing"),
        ({"tickets": [{"ticket": "E-1"}], "agent": {"comand": ["x"]}}, "command"),
    ):
        answer = service.post("/v1/ticket-runs", {**body, **fields})
        assert answer.status == 422, answer.raw
        assert words in answer.raw.decode(), answer.raw
    answer = service.post("/v1/ticket-runs", {**body, "orchestrator": {"command": ["no-such-command"]},
                                              "agent": {"command": ["true"]}, "name": "lost"})  # fmt: skip
    found = service.get("/v1/ticket-runs/lost?wait=30").json
    assert found["result"]["refusal"]["errorType"] == "command-not-found", found
    double = {"tickets": [{"ticket": "orchestrator"}], "agent": {"command": ["true"]}, "orchestrator": orchestrator("")}
    answer = service.post("/v1/ticket-runs", body | double)
    assert (answer.status, answer.json["errorType"]) == (422, "ticket-double"), answer.raw
    assert git(service, "worktree", "list") == trees
    # Without an orchestrator its name is free.
    agent = {"command": ["sh", "-c", "touch {ticket}"]}
    done = run(service, {"ticket": "orchestrator"}, ticket("E-3", "true"), agent=agent)
    assert done["state"] == "ended", done


def test_agents_ask_the_context_manager_of_their_run(service: Served) -> None:
    """It answers in the worktree of who asks, in a jail of its own; after the run, nobody answers."""
    manager = {
        "command": ["sh", "-c", 'echo "you asked: $1"; cat own; cat ../../secret; echo hidden >&2', "sh", "{details}"]
    }
    script = """
open("own", "w").write("own file\\n")
print(sorted(each["name"] for each in ask("tools/list")["result"]["tools"])[:2])
print(call("ask", question="Where is it?"))
print(error(call("ask", question="")))
print(error(call("ask", token="0" * 64, question="x")))
print(error(call("ask", session="asked/tickets", question="x")))
print(error(call("make_tickets", tickets=[{"ticket": "X", "details": "y"}])))
"""
    (service.paddock.place / "secret").write_text("secret")
    asking = {"ticket": "G-1", "command": ["python3", "-c", TOOLS + script]}
    done = run(service, asking, name="asked", context_manager=manager, remove=False)
    assert done["state"] == "ended", (done, service.log("asked.1"))
    lines = service.log("asked.1")
    assert lines[:3] == ["['ask', 'edit']", "you asked: Where is it?", "own file"], lines
    assert lines[3:] == ["INVALID_ARGUMENT", "WORKTREE_UNRESOLVED", "WORKTREE_UNRESOLVED", "ACCESS_DENIED"]
    contexts = contexts_of(service, "asked")
    kinds = {each["current_request"]["kind"]: each for each in contexts.values()}
    answered = kinds["ContextManagerRequest"]
    assert answered["current_request"]["reason"] == "Where is it?"
    assert answered["current_request"]["return_to"] == "ticket-agent"
    assert answered["previous_request"]["kind"] == "ContextManagerRoutingRequest"
    assert answered["worktree_context"] == contexts["asked/tickets/dispatch/1"]["worktree_context"]
    assert answered["orchestrator_node_id"] == "asked"
    question = {"session_id": "asked/tickets/dispatch/1", "question": "x"}
    late = service.post("/v1/ticket-runs/asked/questions", question)
    assert late.json["errorType"] == "ticket-run-closed", late.raw


def test_a_context_manager_ends_with_its_run(service: Served) -> None:
    """Also the one that would never end: its run is stopped, or it has taken too long."""
    manager = {"command": ["sh", "-c", "echo begun; sleep 600"], "timeout": 1}
    script = 'print(call("ask", question="x"))'
    asking = {"ticket": "H-1", "command": ["python3", "-c", TOOLS + script]}
    done = run(service, asking, name="slow", context_manager=manager)
    assert done["state"] == "ended", done
    told = json.loads(service.log("slow.1")[0])
    assert (told["errorType"], "did not answer" in told["message"]) == ("WORKER_FAILED", True)
    body = {"repository": str(service.paddock.main), "name": "long", "tickets": [asking],
            "context_manager": {**manager, "timeout": 600},
            "environment": service.paddock.who.environment(service.env)}  # fmt: skip
    assert service.post("/v1/ticket-runs", body).status == 201

    def managers() -> list[Any]:
        found = service.get("/v1/sessions").json["sessions"]
        return [each for each in found if each["name"].startswith("long.c") and each["state"] == "running"]

    while not managers():
        assert service.get("/v1/ticket-runs/long").json["ended"] is None
    service.post("/v1/ticket-runs/long/stop", {})
    assert service.get("/v1/ticket-runs/long?wait=60").json["state"] == "failed"
    name = service.over(next(each["name"] for each in service.get("/v1/sessions").json["sessions"]
                             if each["name"].startswith("long.c")))  # fmt: skip
    assert name["outcome"]["reason"] == "stopped"


def test_a_run_outlives_the_service_while_its_orchestrator_works(service: Served) -> None:
    """The session goes on, all its tools are found at the same place, and what it has made counts once."""
    script = f"""
import http.client, time
def patiently(*tickets):
    for attempt in range(200):
        try:
            return print(made(*tickets), flush=True)
        except (OSError, http.client.HTTPException):  # the service may go while it answers
            time.sleep(0.1)
patiently(("I-1", "touch one; {COMMIT} one"))
while not os.path.exists("go"):
    time.sleep(0.05)
patiently(("I-1", "touch one; {COMMIT} one"), ("I-2", "touch two; {COMMIT} two"))
print(call("glob", pattern="g*"))
"""
    body = {"repository": str(service.paddock.main), "name": "killed", "orchestrator": orchestrator(script),
            "agent": {"command": ["sh", "-c", 'eval "$1"', "sh", "{details}"]},
            "environment": service.paddock.who.environment(service.env)}  # fmt: skip
    assert service.post("/v1/ticket-runs", body).status == 201
    found = service.get("/v1/ticket-runs/killed").json
    while not found["tickets"]:
        assert found["ended"] is None, found
        found = service.get(f"/v1/ticket-runs/killed?wait=10&seen={found['seen']}").json
    service.kill()
    service.start()
    go = Path(found["orchestrator"]["worktree"], "go")
    go.touch()
    service.paddock.who.give(go)
    done = service.get("/v1/ticket-runs/killed?wait=60").json
    assert (done["state"], done["tickets"]) == ("ended", ["I-1", "I-2"]), (done, service.log("killed.0"))
    assert done["orchestrator"]["attempt"] == 1
    assert service.log("killed.0")[-1] == "go"
    assert all((service.paddock.main / name).exists() for name in ("one", "two"))
    assert sorted(git(service, "log", "--format=%s", "--no-merges").split()) == ["First.", "main:", "one", "two"]


def test_what_conflicts_among_the_tickets_keeps_the_trunk_as_it_was_or_is_left_out(service: Served) -> None:
    """`stop` waits for a person before the trunk moves; `skip` brings the others."""
    script = f"""
print(made(("J-1", "echo 1 > same; {COMMIT} one"), ("J-2", "echo 2 > same; {COMMIT} two")))
"""
    agent = {"command": ["sh", "-c", 'eval "$1"', "sh", "{details}"]}
    main = service.paddock.main
    before = git(service, "rev-parse", "HEAD")
    done = run(service, name="waits", agent=agent, orchestrator=orchestrator(script))
    assert (done["state"], "landed" in done["result"], done["orchestrator"]["state"]) == ("failed", False, "ended"), (
        done
    )
    assert git(service, "rev-parse", "HEAD") == before
    said = service.cli("tickets", "resume", "waits", "--on-conflict", "skip")
    assert said.returncode == 1
    assert "  orchestrator  merged as " in said.stdout
    assert "  J-2           conflicts\n" in said.stdout
    assert (main / "same").read_text() == "1\n"
    assert os.path.exists(done["orchestrator"]["worktree"]), "J-2 is still to be merged into it"


def test_what_an_orchestrator_has_committed_is_reviewed_before_it_lands(service: Served) -> None:
    """All that its tickets have come to, and what it has added itself, which no ticket's review saw as its own."""
    main = service.paddock.main
    review = {"command": ["sh", "-c", 'echo "$0: $1"; test ! -e evil || test ! -e "$0"', "{ticket}", "{details}"]}
    child = {"command": ["sh", "-c", f"touch of-{{ticket}}; {COMMIT} {{ticket}}"]}
    plan = f"open('evil', 'w'); open('orchestrator', 'w'); os.system({f'{COMMIT} evil'!r})"
    work = f"{plan}\nprint(made(('H-bad', 'x')))"
    done = run(service, name="bad", goal="All of it.", agent=child, orchestrator=orchestrator(work), review=review,
               remove=False)  # fmt: skip
    assert service.log("bad.0.v1") == ["orchestrator: All of it."], done
    assert (done["state"], (main / "of-H-bad").exists(), (main / "evil").exists()) == ("failed", False, False), done
    shown = service.cli("tickets", "show", "bad").stdout
    assert "  orchestrator  not merged: its review ended with status 1\n" in shown
    # What it has committed is nobody's word on how its tickets are reviewed.
    plan = f"open('.paddock.toml', 'w').write('[filesystem]'); os.system({f'{COMMIT} settings'!r})"
    work = f"{plan}\nprint(made(('H-own', 'x')))"
    own = run(service, name="own", agent=child, orchestrator=orchestrator(work), review=review)
    assert own["result"]["agents"][0]["review"]["refusal"]["errorType"] == "config-unread", own
    # Who resumes it does not start the orchestrator anew.
    there = Path(done["orchestrator"]["worktree"])
    mend = f"git rm -q evil; {COMMIT} mended"
    assert service.paddock.who.run(["sh", "-c", mend], cwd=there).returncode == 0
    assert service.cli("tickets", "resume", "bad").returncode == 0
    assert ((main / "of-H-bad").exists(), (main / "evil").exists()) == (True, False)
    assert service.get("/v1/ticket-runs/bad").json["orchestrator"]["attempt"] == 1
