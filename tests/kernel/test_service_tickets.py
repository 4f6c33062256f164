"""Ticket runs over the API: worktrees, jailed agents, a merge in two phases; what a killed merge leaves."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support import features, identity, served
from tests.support.served import Served

COMMIT = "git add -A && git -c user.name=A -c user.email=a@b.c commit -q -m"


@pytest.fixture(scope="module")
def running() -> Iterator[Served]:
    """A service that runs."""
    with served.started(stdin_seconds=0.1, term_seconds=0.2) as service:
        yield service


@pytest.fixture
def service(running: Served) -> Iterator[Served]:
    """The same, with a repository that belongs to one test, which may kill the service and start it again."""
    yield from served.lent(running)


def run(service: Served, *tickets: dict[str, Any], **fields: Any) -> Any:  # noqa: ANN401  # JSON
    """A ticket run, at its end."""
    environment = service.paddock.who.environment(service.env)
    body = {"repository": str(service.paddock.main), "tickets": tickets, "environment": environment, **fields}
    answer = service.post("/v1/ticket-runs?wait=120", body)
    assert answer.status == 201, answer.raw
    assert answer.json["ended"] is not None, answer.json
    return answer.json


def ticket(name: str, script: str) -> dict[str, Any]:
    return {"ticket": name, "command": ["sh", "-c", script]}


def git(service: Served, *words: str, cwd: Path | None = None) -> str:
    return service.paddock.who.run(["git", *words], cwd=cwd or service.paddock.main).stdout


def test_tickets_are_worked_on_side_by_side_and_merged(service: Served) -> None:
    """Each agent has a worktree of its own; what they commit is in the trunk; one that failed is told and left out.

    Nobody gets file tools or their port unasked.
    """
    begun = "! env | grep PADDOCK_FILES || exit 9; echo $$ >> started; "
    done = run(
        service,
        ticket("A-1", f"{begun} echo one > one; {COMMIT} 'one: Done.'"),
        ticket("A-2", f"echo two > two; {COMMIT} 'two: Done.'; touch ../escaped"),
        ticket("A-3", f"echo three > three; {COMMIT} 'three: Done.'; mkdir d; touch d/new; echo 4 >> three; exit 1"),
        ticket("A-4", f"echo four > four; {COMMIT} four; touch left"),
        parallel=2,
        goal="Numbers.",
    )
    agents = {agent["ticket"]: agent for agent in done["result"]["agents"]}
    assert (done["state"], [agents[name]["status"] for name in agents]) == ("failed", [0, 1, 1, 0]), done
    merged = [status["agent_result_id"] for status in done["result"]["aggregation"]["merged"]]
    assert merged == [agents["A-1"]["session_id"], agents["A-4"]["session_id"]]
    assert (service.paddock.main / "one").read_text() == "one\n"
    assert not (service.paddock.main / "three").exists()
    assert not (service.paddock.place / "escaped").exists()
    assert "three: Done." in git(service, "log", "--format=%s", cwd=Path(agents["A-3"]["worktree"]))
    assert done["result"]["removed"] == {
        agents["A-1"]["session_id"]: "",
        agents["A-4"]["session_id"]: f"{agents['A-4']['worktree']} has work that is nowhere else [worktree-dirty]",
    }
    assert [os.path.exists(agents[name]["worktree"]) for name in agents] == [False, True, True, True]
    # What is not committed is named, and only of the worktrees that are still there.
    assert done["result"]["uncommitted"] == {
        agents["A-3"]["session_id"]: {"files": ["three", "d"], "count": 2, "problem": ""},
        agents["A-4"]["session_id"]: {"files": ["left"], "count": 1, "problem": ""},
    }
    assert "not committed there: three, d\n" in service.cli("tickets", "show", done["name"]).stdout
    left = agents["A-2"]["worktree"]
    assert f"worktree {left}\n" in service.cli("tickets", "show", done["name"]).stdout
    assert service.cli("worktree", "remove", "--force", left).returncode == 0
    shown = service.cli("tickets", "show", done["name"]).stdout
    assert (f"worktree removed: {left}" in shown, f"cd {left}" in shown) == (True, False), shown
    assert "1 commit by A, " in shown
    assert "  A one +1 -0\n" in shown
    told = json.loads(service.cli("tickets", "show", done["name"], "--json").stdout)
    brought = [(each["commits"][0]["subject"], each["files"][0]["path"]) for each in told["history"].values()]
    assert brought == [("one: Done.", "one"), ("four", "four")]
    labels = service.get(f"/v1/sessions/{agents['A-1']['session']}").json["labels"]
    assert labels["session-id"] == agents["A-1"]["session_id"]


def test_a_conflict_stops_the_merge_and_nothing_is_lost(service: Served) -> None:
    """What came before it is in the trunk, the rest stays on its branches, and the aggregation says which is which.

    Every request of the run is written down, and has expired with it.
    """
    done = run(
        service,
        ticket("C-1", f"echo first > same; {COMMIT} first"),
        ticket("C-2", f"echo second > same; {COMMIT} second"),
        ticket("C-3", f"echo third > other; {COMMIT} third"),
        name="noted",
        goal="Numbers.",
        parallel=1,
    )
    _is_written_down(service, done)
    aggregation = done["result"]["aggregation"]
    assert done["state"] == "failed"
    assert len(aggregation["merged"]) == 1
    assert aggregation["conflicted"]["merge_descriptor"]["conflict_files"] == ["same"]
    assert len(aggregation["pending"]) == 1
    assert (service.paddock.main / "same").read_text() == "first\n"
    branches = git(service, "branch", "--list", "agent/*", "--format=%(refname:short)").split()
    assert branches == ["agent/C-1", "agent/C-2", "agent/C-3"]
    # What comes next are commands as they stand.
    shown = service.cli("tickets", "show", done["name"]).stdout
    (again,) = [line.removeprefix("or:   ") for line in shown.splitlines() if line.startswith("or:   cd ")]
    (step,) = [line for line in shown.splitlines() if line.startswith("next: ")]
    assert step.endswith(f", resolve, and commit; then: paddock tickets resume {done['name']}"), shown
    assert shown.startswith(f"{done['name']}  conflicted: 1 of 3 merged into {service.paddock.main}, 1 conflict\n"), (
        shown
    )
    there = Path(done["result"]["agents"][1]["worktree"])
    assert f"next: in {there}: git merge " in shown
    joined = shown.partition(f"next: in {there}: ")[2].partition(", resolve")[0]
    assert "CONFLICT" in service.paddock.who.run(["sh", "-c", joined], cwd=there).stdout
    assert service.paddock.who.run(["sh", "-c", f"echo both > same && {COMMIT} solved"], cwd=there).returncode == 0
    ended = service.paddock.shell(again, env=service.env)
    assert ended.returncode == 0, (again, ended.stderr)
    assert (service.paddock.main / "same").read_text() == "both\n"


def _is_written_down(service: Served, done: dict[str, Any]) -> None:
    """Orchestrators, dispatch and agents: requests, tools, boundaries, results, the aggregation, the two prompts."""
    shown = service.cli("tickets", "show", "noted", "--contexts")
    contexts = {each["artifact_key"]: each for each in json.loads(shown.stdout)}
    agents = [f"noted/tickets/dispatch/{number}" for number in (1, 2, 3)]
    assert contexts.pop("noted/tickets/ask/2")["current_request"]["kind"] == "MergerInterruptRequest"
    assert list(contexts) == ["noted", "noted/tickets", "noted/tickets/dispatch", *agents]
    assert {each["state"] for each in contexts.values()} == {"expired"}
    kinds = [contexts[name]["current_request"]["kind"] for name in contexts]
    assert kinds[:3] == ["OrchestratorRequest", "TicketOrchestratorRequest", "TicketAgentResults"]
    assert set(kinds[3:]) == {"TicketAgentRequest"}
    reading = ["read", "list", "glob", "grep"]
    assert [contexts[name]["tool_context"]["tools"] for name in ("noted", "noted/tickets")] == [reading, reading]
    for name, agent in zip(agents, done["result"]["agents"], strict=True):
        assert {"write", "edit", "shell"} < set(contexts[name]["tool_context"]["tools"])
        assert contexts[name]["worktree_context"]["main_worktree"]["worktree_path"] == agent["worktree"]
        assert contexts[name]["result"]["merge_descriptor"]["merge_direction"] == "TRUNK_TO_CHILD"
        assert contexts[name]["operation_context"]["action"] == "work"
    collected = contexts["noted/tickets/dispatch"]["current_request"]
    assert collected["merge_aggregation"] == done["result"]["aggregation"]
    assert collected["merge_aggregation"]["conflicted"]["agent_result_id"] == agents[1]
    assert len(collected["results"]) == 3
    told = service.cli("tickets", "show", "noted", "--prompt").stdout
    assert told.index("## Worktrees for Tickets") < told.index("## Worktree Merge Status")
    assert all(each["worktree"] in told for each in done["result"]["agents"])
    assert "MERGE CONFLICTS DETECTED" in told
    assert "`same`" in told
    prompts = json.loads(service.cli("tickets", "show", "noted", "--prompt", "--json").stdout)
    assert [each["agent_type"] for each in prompts] == ["ticket-orchestrator", "ticket-agent-dispatch"]
    refused = service.paddock.refused("tickets", "show", "noted", "--prompt", "--contexts", env=service.env)
    assert "usage" in refused.text
    assert service.get("/v1/ticket-runs/nobody/contexts").status == 404


def test_the_command_line_takes_a_file(service: Served, tmp_path: Path) -> None:
    """`paddock tickets run` waits and tells what comes next; what is wrong is said before anything is made."""
    file, main = service.paddock.place / "tickets.toml", service.paddock.main

    def tried(text: str) -> Any:  # noqa: ANN401  # a CompletedProcess
        file.write_text(text)
        return service.cli("tickets", "run", str(file), "--repo", str(main))

    one = '[[tickets]]\nticket = "D-1"\ncommand = ["sh", "-c", "touch d; ' + COMMIT + ' d"]\n'
    ended = tried(one)
    assert (ended.returncode, (main / "d").exists()) == (0, True), ended
    assert "1 of 1 merged" in ended.stdout
    assert "paddock: preparing: of 1 ticket " in ended.stderr
    assert "1 merged\n" in ended.stderr.splitlines(keepends=True)[-1]
    assert "D-1  merged as" in ended.stdout
    undo = next(line for line in ended.stdout.splitlines() if line.startswith("undo: "))
    assert service.paddock.call(*undo.rpartition("paddock ")[2].split(), cwd=main).returncode == 0
    assert not (main / "d").exists()
    assert "ended" in service.cli("tickets", "list").stdout
    for text, *words in (
        ("[[tickets]\n", "tickets-unreadable", "is not TOML", "line 1"),
        ("", "tickets-invalid", "tickets is missing"),
        ('[[tickets]]\nticket = "X"\n', "tickets-invalid", "ticket 1 (X): command is missing"),
        (
            '[[tickets]]\nticket = "X"\ncommand = "make"\n',
            "tickets-invalid",
            "ticket 1 (X): command: it must be a list",
        ),
        (one + 'comand = ["x"]\n', "tickets-invalid", "did you mean command?"),
        (one + 'options = ["--rwx", "/"]\n', "usage", "ticket D-1: unknown option"),
        (one + 'options = ["--worktree", "/"]\n', "usage", "ticket D-1"),
    ):
        file.write_text(text)
        refused = service.paddock.refused("tickets", "run", str(file), env=service.env, cwd=main)
        assert all(word in refused.text for word in words), refused.text
    before = git(service, "worktree", "list")
    late = tried(one.replace("D-1", "D-2") + 'options = ["--limit", "memory=much"]\n')
    assert (late.returncode, "ticket D-2" in late.stdout, "--limit" in late.stdout) == (1, True, True), late
    for command in ("nosuchcmd", "/nowhere/nosuchcmd"):
        late = tried(one + f'[[tickets]]\nticket = "D-3"\ncommand = ["{command}"]\n')
        assert (late.returncode, "command-not-found" in late.stdout, "ticket D-3" in late.stdout) == (1, True, True)
        assert "next: correct the command in the file, then run that: paddock tickets run FILE\nor:   " in late.stdout
    assert git(service, "worktree", "list") == before
    refused = run(service, ticket("E-1", "true"), repository=str(service.paddock.place / "runtime"))
    assert refused["state"] == "failed"
    assert refused["result"]["refusal"]["errorType"], refused
    double = {"repository": "/", "tickets": [ticket("F", "true"), ticket("F", "true")]}
    assert service.post("/v1/ticket-runs", double).json["errorType"] == "ticket-double"
    del tmp_path


def test_stopping_a_run_ends_its_agents(service: Served) -> None:
    """Ctrl-C at the command line stops them; nothing is merged; of each ticket is told why, where, and what is next.

    No context is left that anybody could act by.
    """
    main, file = service.paddock.main, service.paddock.place / "tickets.toml"
    file.write_text(f"""
        name = "halted"
        parallel = 1
        [[tickets]]
        ticket = "G-1"
        command = ["sh", "-c", "touch g; {COMMIT} g; touch left; echo written; sleep 1000"]
        [[tickets]]
        ticket = "G-2"
        command = ["true"]
    """)
    words = service.paddock.words("tickets", "run", file, "--repo", main, "--json")
    environment = service.paddock.who.environment(service.env)
    running = subprocess.Popen(
        service.paddock.who.command(words), cwd=main, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + served.PATIENCE
    while service.get("/v1/sessions/halted.1").status != 200 or "written" not in service.log("halted.1"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    contexts = "/v1/ticket-runs/halted/contexts"
    states = {each["state"] for each in service.get(contexts).json["contexts"]}
    assert states == {"enriched", "consumed"}  # the agent's launch has acted on its own
    running.send_signal(signal.SIGINT)
    told, said = running.communicate(timeout=served.PATIENCE)
    assert running.returncode == 128 + signal.SIGINT, said
    found = json.loads(told.splitlines()[-1])
    assert (found["state"], found["result"]["refusal"]["errorType"]) == ("failed", "ticket-run-stopped")
    assert {each["state"] for each in service.get(contexts).json["contexts"]} == {"expired"}
    stopped, late = found["result"]["agents"]
    assert (stopped["reason"], stopped["harvest"]["state"]) == ("stopped", "harvested")
    assert stopped["why"] == "it was stopped on request"
    assert (late["state"], late["log"]) == ("created", "")
    assert "before it started" in late["why"]
    assert os.path.isdir(stopped["log"])
    assert "written" in service.log("halted.1")
    shown = service.cli("tickets", "show", "halted").stdout
    assert "1 commit on agent/G-1" in shown
    assert all(each["worktree"] in shown and os.path.isdir(each["worktree"]) for each in (stopped, late))
    assert "next: paddock logs halted.1" in shown
    assert "not committed there: left\n" in shown
    assert "not started" in shown
    # The steps are commands as they stand, the merge among them.
    for step in stopped["next"][:-1]:
        line = step["command"]
        assert line in shown
        ended = service.paddock.shell(line, env=service.env)
        assert ended.returncode == 0, (line, ended.stderr)
    assert (main / "g").exists()


def test_why_a_ticket_was_ended_is_told(service: Served) -> None:
    """The limit that it passed, the signal, the session's stop; and where to go on."""
    limited = ticket("L-1", "head -c 8M /dev/zero >~/big; sleep 1000") | {"options": ["--limit", "disk=1M"]}
    done = run(service, limited, ticket("L-2", "kill -SEGV $$"), name="ended", merge=False)
    first, second = done["result"]["agents"]
    assert (first["reason"], second["reason"]) == ("limit", "signalled")
    assert "--limit disk=" in first["why"]
    assert "SIGSEGV" in second["why"]
    shown = service.cli("tickets", "show", "ended").stdout
    assert all(each["why"] in shown and each["log"] in shown and each["worktree"] in shown for each in (first, second))
    # A second run of the same tickets: its steps lead to its own worktrees, and only to those with something to merge.
    again = [
        ticket("L-1", f"touch l; {COMMIT} l; exit 1"),
        ticket("L-2", f"touch m; {COMMIT} m"),
        ticket("L-3", "true"),
    ]
    second_run = run(service, *again, name="again", merge=False)
    places = [each["worktree"] for each in second_run["result"]["agents"]]
    assert not {first["worktree"], second["worktree"]} & set(places)
    steps = [each["command"] for each in second_run["result"]["agents"][0]["next"]]
    assert [step.endswith(f" {places[0]}") for step in steps if "merge" in step or "remove" in step] == [True, True]
    shown = service.cli("tickets", "show", "again").stdout
    (step,) = [line for line in shown.splitlines() if line.startswith("next: in ")]
    assert step == f"next: in {service.paddock.main}: paddock merge {places[1]}"
    assert service.paddock.call("merge", places[1], cwd=service.paddock.main).returncode == 0
    assert (service.paddock.main / "m").exists()


def test_worktrees_and_merges_over_the_api(service: Served) -> None:
    """Made, listed, merged, remembered; refusals come as they are."""
    main = str(service.paddock.main)
    made = service.post("/v1/worktrees", {"repository": main, "ticket": "H-1"})
    assert made.status == 201, made.raw
    path = made.json["main"]["path"]
    assert path in json.dumps(service.get(f"/v1/worktrees?repository={main}").json)
    again = service.post("/v1/worktrees", {"repository": main, "ticket": "H-1"})
    assert (again.status, again.json["errorType"]) == (422, "worktree-exists")
    service.create("sh", "-c", f"touch h; {COMMIT} h", name="h", directory=path)
    service.over("h")
    service.create("sh", "-c", "echo ready; sleep 1000", name="late", directory=path)
    merged = service.post("/v1/merges", {"repository": main, "children": ["H-1"]})
    assert (merged.status, merged.json["run"]["state"]) == (201, "done"), merged.raw
    assert ["a session is still working there" in each for each in merged.json["warnings"]] == [True]
    into = service.post("/v1/merges", {"repository": main, "children": ["main"], "into": path})
    assert (into.status, into.json["errorType"], "session late" in into.json["context"]) == (
        422,
        "session-running",
        True,
    )
    service.post("/v1/sessions/late/stop", {"term_seconds": 0, "wait": 60})
    assert (service.paddock.main / "h").exists()
    assert len(service.get(f"/v1/merges?repository={main}").json["runs"]) == 1
    assert service.post("/v1/merges", {"repository": main, "children": ["nobody"]}).status == 422
    identifier = made.json["worktree_id"]
    (Path(path) / "unsaved").touch()
    kept = service.call("DELETE", f"/v1/worktrees/{identifier}?repository={main}")
    assert (kept.status, kept.json["errorType"], os.path.exists(path)) == (422, "worktree-dirty", True), kept.raw
    (Path(path) / "unsaved").unlink()
    removed = service.call("DELETE", f"/v1/worktrees/{identifier}?repository={main}")
    assert (removed.status, os.path.exists(path)) == (200, False), removed.raw
    assert service.call("DELETE", f"/v1/worktrees/{identifier}?repository={main}").status == 404


def moved(service: Served, name: str, *states: str) -> Any:  # noqa: ANN401  # JSON
    """A run, once its tickets are in these states."""
    found = service.get(f"/v1/ticket-runs/{name}").json
    deadline = time.monotonic() + 2 * served.PATIENCE
    while [each["state"] for each in found["steps"]] != list(states):
        assert time.monotonic() < deadline, found
        found = service.get(f"/v1/ticket-runs/{name}?wait=5&seen={found['seen']}").json
    return found


def once(name: str) -> str:
    """A command that writes down each time that it runs, and commits."""
    return f"echo ran >> {name}; {COMMIT} {name}"


def until_told(name: str) -> str:
    """The same, which goes on when somebody makes the file `go` in its worktree."""
    return f"until test -e go; do sleep 0.05; done; rm go; {once(name)}"


def names(service: Served) -> set[str]:
    """The runs that are remembered."""
    return {each["name"] for each in service.get("/v1/ticket-runs").json["ticket_runs"]}


def holding(top: Path, text: bytes) -> list[Path]:
    """Files with a text. A session that has outlived its service goes on making and moving its own."""
    while True:
        with suppress(FileNotFoundError):
            return [path for path in top.rglob("*") if path.is_file() and text in path.read_bytes()]


def test_a_run_goes_on_where_it_was_when_its_service_was_killed(service: Served) -> None:
    """By itself: who ended well is not run again, who was at work and whose turn had not come end; all is merged.

    Submitted twice, also after a restart of the service, a file makes one run; another file is refused.
    """
    main, file, before = service.paddock.main, service.paddock.place / "tickets.toml", names(service)
    file.write_text(f"[[tickets]]\nticket = \"S-1\"\ncommand = ['sh', '-c', \"{once('S-1')}\"]\n")
    words = ("tickets", "run", str(file), "--repo", str(main), "--key", "mine", "--json")
    *events, end = [json.loads(line) for line in service.cli(*words).stdout.splitlines()]
    assert (end["event"], end["state"], end["result"]["clean"]) == ("end", "ended", True)
    assert {each["state"] for each in events if each["event"] == "ticket" and each["ticket"] == "S-1"} >= {"merged"}
    assert [each["state"] for each in events if each["event"] == "run"][-1] == "ended"
    tickets = [ticket("M-1", once("one")), ticket("M-2", until_told("two")), ticket("M-3", once("three"))]
    environment = service.paddock.who.environment(service.env) | {"SECRET_OF_THE_RUN": "never-on-a-disk"}
    body = {"name": "goes-on", "repository": str(main), "tickets": tickets, "parallel": 1, "environment": environment}
    assert service.post("/v1/ticket-runs", body).status == 201
    found = moved(service, "goes-on", "ended", "running", "prepared")
    service.kill()
    assert not holding(service.paddock.who.home, b"never-on-a-disk")
    service.start()
    assert json.loads(service.cli(*words).stdout.splitlines()[-1])["name"] == end["name"]
    assert (main / "S-1").read_text() == "ran\n"
    assert names(service) - before == {end["name"], "goes-on"}
    Path(found["steps"][1]["worktree"], "go").touch()
    service.paddock.who.give(Path(found["steps"][1]["worktree"], "go"))
    done = service.get("/v1/ticket-runs/goes-on?wait=120").json
    assert (done["state"], done["result"]["clean"]) == ("ended", True), done
    assert [(main / name).read_text() for name in ("one", "two", "three")] == ["ran\n"] * 3
    assert done["steps"][0]["attempt"] == 1
    assert [each["state"] for each in done["steps"]] == ["merged"] * 3
    assert not list((service.runtime / "paddock" / "ticket-runs").iterdir()), "its environment is forgotten"
    assert git(service, "worktree", "list").count("main-M-") == 0
    body = {"repository": str(main), "tickets": [ticket("S-3", "true")]}
    # By whoever asks: this process may be another user than the command.
    assert service.post("/v1/ticket-runs", body, idempotency_key="other").status == 201
    assert service.post("/v1/ticket-runs", body, idempotency_key="other").status == 200
    other = service.post("/v1/ticket-runs", body | {"goal": "Another."}, idempotency_key="other")
    assert (other.status, other.json["errorType"]) == (409, "idempotency-mismatch")


def test_a_run_that_was_killed_at_any_moment_makes_nothing_twice(service: Served) -> None:
    """While worktrees are made and branches merge, too: each worktree, agent and merge is there once.

    The trunk has all of the work, its files agree with its branch, and the next merge can begin.
    """
    main = service.paddock.main
    for number, (state, seconds) in enumerate((("preparing", 0), ("merging", 0.3))):
        names = [f"n{number}-{each}" for each in range(2)]
        tickets = [ticket(name, once(name)) for name in names]
        body = {"name": f"all{number}", "repository": str(main), "tickets": tickets, "remove": False}
        found = service.post("/v1/ticket-runs", body).json
        while found["state"] != state or (
            state == "preparing" and not any(each["worktree"] for each in found["steps"])
        ):
            found = service.get(f"/v1/ticket-runs/all{number}?wait=5&seen={found['seen']}").json
            assert found["ended"] is None
        time.sleep(seconds)  # of the merge's own time
        service.kill()
        service.start()
        done = service.get(f"/v1/ticket-runs/all{number}?wait=120").json
        assert (done["state"], len(done["result"]["agents"])) == ("ended", len(names)), done
        deadline = time.monotonic() + served.PATIENCE
        while " prepared" in service.cli("merge", "status").stdout or git(service, "status", "--porcelain"):
            assert time.monotonic() < deadline, (state, seconds)
            time.sleep(0.1)
        assert [(main / name).read_text() for name in names] == ["ran\n"] * len(names)
        listed = [line.split()[0] for line in git(service, "worktree", "list").splitlines()]
        assert sorted(each for each in listed if f"-n{number}-" in each) == [f"{main}-{name}" for name in names]
    again = service.post("/v1/merges", {"repository": str(main), "children": [f"agent/{name}" for name in names]})
    assert again.status == 201, again.raw
    assert "error" not in git(service, "fsck", "--connectivity-only")


def test_a_run_that_was_stopped_or_failed_is_resumed(service: Served) -> None:
    """`paddock tickets resume`: who ended well is left alone, the others are started again in their worktrees."""
    main = service.paddock.main
    fails = f"test -e tried || {{ touch tried; exit 3; }}; rm tried; {once('second')}"
    tickets = [ticket("P-1", once("first")), ticket("P-2", fails), ticket("P-3", until_told("third"))]
    body = {"name": "resumes", "repository": str(main), "tickets": tickets, "parallel": 1}
    assert service.post("/v1/ticket-runs", body).status == 201
    found = moved(service, "resumes", "ended", "failed", "running")
    stopped = service.cli("tickets", "stop", "resumes")
    assert "next: paddock tickets resume resumes" in stopped.stdout, stopped
    Path(found["steps"][2]["worktree"], "go").touch()
    service.paddock.who.give(Path(found["steps"][2]["worktree"], "go"))
    assert not (main / "first").exists()
    resumed = service.cli("tickets", "resume", "resumes")
    assert (resumed.returncode, "3 of 3 merged" in resumed.stdout) == (0, True), resumed
    assert [(main / name).read_text() for name in ("first", "second", "third")] == ["ran\n"] * 3
    done = service.get("/v1/ticket-runs/resumes").json
    assert [(each["state"], each["attempt"]) for each in done["steps"]] == [("merged", 1), ("merged", 2), ("merged", 2)]
    # One that has ended is shown as it is, and no run begins.
    assert service.post("/v1/ticket-runs/resumes/resume", {}).json["state"] == "ended"
    assert service.post("/v1/ticket-runs/nobody/resume", {}).status == 404


def test_who_conflicts_is_skipped_where_that_was_asked_for(service: Served) -> None:
    """The others are merged; each conflict is reported with its files; a resume merges it once it is solved."""
    main, file = service.paddock.main, service.paddock.place / "tickets.toml"
    scripts = [f"echo {each} > {'other' if each == 'third' else 'same'}; {COMMIT} {each}"
               for each in ("first", "second", "third")]  # fmt: skip
    text = "".join(
        f"[[tickets]]\nticket = \"Q-{number}\"\ncommand = ['sh', '-c', \"{script}\"]\n"
        for number, script in enumerate(scripts, 1)
    )
    file.write_text('name = "skips"\non_conflict = "skip"\n' + text)
    # An index that is locked is not anybody's conflict: nobody is tried after it has been seen twice.
    (main / ".git/index.lock").touch()
    ended = service.cli("tickets", "run", str(file), "--repo", str(main))
    locked = service.get("/v1/ticket-runs/skips").json["result"]
    assert (ended.returncode, len(locked["conflicts"]), locked["aggregation"]["merged"]) == (1, 2, []), ended
    (main / ".git/index.lock").unlink()
    ended = service.cli("tickets", "resume", "skips")
    assert (ended.returncode, "2 of 3 merged" in ended.stdout) == (1, True), ended
    assert (ended.stdout.count("  conflicts\n"), ended.stdout.count("next: in ")) == (1, 1)
    assert ended.stdout.count("; then: paddock tickets resume skips\n") == 1
    done = service.get("/v1/ticket-runs/skips").json
    assert [each["state"] for each in done["steps"]] == ["merged", "conflicted", "merged"]
    conflicts = [each["merge_descriptor"]["conflict_files"] for each in done["result"]["conflicts"]]
    assert conflicts == [["same"]]
    assert ((main / "same").read_text(), (main / "other").read_text()) == ("first\n", "third\n")
    solve = f"git merge main; echo solved > same; {COMMIT} solved"
    assert service.paddock.who.run(["sh", "-c", solve], cwd=Path(done["steps"][1]["worktree"])).returncode == 0
    resumed = service.cli("tickets", "resume", "skips", "--on-conflict", "stop")
    assert (resumed.returncode, "3 of 3 merged" in resumed.stdout) == (0, True), resumed
    # Those that were merged before the resume are told as what they are, too.
    assert resumed.stdout.count("worktree removed: ") == 3, resumed.stdout
    assert len(service.get("/v1/ticket-runs/skips").json["result"]["removed"]) == 3
    assert (main / "same").read_text() == "solved\n"
    assert [each["attempt"] for each in service.get("/v1/ticket-runs/skips").json["steps"]] == [1] * 3
    file.write_text('name = "wrong"\non_conflict = "ignore"\n' + text)
    assert "on_conflict" in service.paddock.refused("tickets", "run", str(file), env=service.env, cwd=main).text


def test_a_ticket_that_takes_too_long_is_stopped(service: Served) -> None:
    """In order, with what it has committed; the others go on; a run's own bound holds for who has none."""
    slow = f"touch slow; {COMMIT} slow; sleep 1000"
    done = run(
        service, ticket("T-1", slow) | {"timeout": 1}, ticket("T-2", f"sleep 2; touch u; {COMMIT} u"), timeout=300
    )
    first, second = done["result"]["agents"]
    assert (first["state"], first["reason"], first["why"]) == ("failed", "timeout", "it took longer than 1 s")
    assert (first["harvest"]["state"], second["state"]) == ("harvested", "ended")
    assert ((service.paddock.main / "slow").exists(), (service.paddock.main / "u").exists()) == (False, True)
    assert "timeout (143): it took longer than 1 s" in service.cli("tickets", "show", done["name"]).stdout
    all_of_them = run(service, ticket("T-3", "sleep 1000"), timeout=0.5)
    assert all_of_them["result"]["agents"][0]["reason"] == "timeout"


def test_how_far_a_run_is_is_told_at_a_terminal(service: Served) -> None:
    """By one line that is written over."""
    main, file = service.paddock.main, service.paddock.place / "tickets.toml"
    file.write_text('[[tickets]]\nticket = "W-1"\ncommand = ["true"]\n')
    words = service.paddock.words("tickets", "run", str(file), "--repo", str(main))
    quiet = ["script", "-qec", " ".join(words), "/dev/null"]
    shown = service.paddock.who.run(quiet, cwd=main, env=service.env)
    assert "\n\x1b[Kpreparing: of 1 ticket " in shown.stdout, shown  # the carriage return is read as a line's end


def test_runs_and_contexts_are_remembered_within_bounds(service: Served) -> None:
    """The oldest that are over are forgotten by number; one that is under way never is; status says the bounds."""
    for name in ("x0", "x1"):
        run(service, {"ticket": name, "command": ["nosuchcmd"]}, name=name)  # over before anything is made
    body = {"name": "live", "repository": str(service.paddock.main), "tickets": [ticket("Y", until_told("y"))]}
    service.post("/v1/ticket-runs", body)
    found = moved(service, "live", "running")
    service.settings(most_ticket_records=1, most_contexts=0, collect_seconds=0.2)
    service.reload()
    service.kill()
    service.start()
    deadline = time.monotonic() + served.PATIENCE
    while len(left := names(service)) > 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert left == {"x1", "live"}
    go = Path(found["steps"][0]["worktree"], "go")
    go.touch()
    service.paddock.who.give(go)
    assert service.get("/v1/ticket-runs/live?wait=60").json["state"] == "ended"
    told = service.cli("status").stdout
    assert "ticket runs" in told
    assert "of 1" in told
    service.settings()
    service.reload()


def test_a_conflict_goes_to_the_merger_of_the_run(service: Served) -> None:
    """It works in the conflicting ticket's jail, in which the trunk is being merged; then it is merged.

    Where it fails nothing of the ticket is merged, a person is asked, and the next attempt may do better.
    """
    (service.paddock.place / "secret").write_text("hidden")
    solve = (
        "test -e again || exit 1; grep -q '<<<<<<<' same || exit 7; cat ../secret && exit 8; "
        f"rm again; echo both > same; {COMMIT} Both."
    )
    failed = run(
        service,
        ticket("L-1", f"echo first > same; {COMMIT} first"),
        ticket("L-2", f"echo second > same; {COMMIT} second"),
        name="solved",
        merger={"command": ["sh", "-c", solve]},
    )
    main = service.paddock.main
    assert (failed["state"], failed["result"]["mergers"][0]["status"]) == ("failed", 1)
    assert (main / "same").read_text() == "first\n"
    assert failed["result"]["aggregation"]["conflicted"]["agent_result_id"] == "solved/tickets/dispatch/2"
    contexts = service.get("/v1/ticket-runs/solved/contexts").json["contexts"]
    (question,) = [each["current_request"] for each in contexts if "/ask/" in each["artifact_key"]]
    assert (question["kind"], len(question["choices"])) == ("MergerInterruptRequest", 3)

    who = service.paddock.who
    assert who.run(["touch", "again"], cwd=Path(failed["result"]["agents"][1]["worktree"])).returncode == 0
    assert service.cli("tickets", "resume", "solved").returncode == 0
    done = service.get("/v1/ticket-runs/solved").json
    assert (done["state"], done["result"]["clean"]) == ("ended", True), done
    assert (main / "same").read_text() == "both\n"
    assert "Both." in git(service, "log", "--format=%s")
    (merger,) = done["result"]["mergers"]
    assert (merger["ticket"], merger["session"], merger["status"]) == ("L-2", "solved.2.m2", 0)
    contexts = {each["artifact_key"]: each for each in service.get("/v1/ticket-runs/solved/contexts").json["contexts"]}
    asked = contexts["solved/tickets/merger/2"]
    assert asked["current_request"]["kind"] == "MergerRequest"
    assert asked["current_request"]["conflicted"]["merge_descriptor"]["conflict_files"] == ["same"]
    assert asked["worktree_context"] == contexts["solved/tickets/dispatch/2"]["worktree_context"]
    assert asked["state"] == "expired"
    collected = contexts["solved/tickets/dispatch"]["current_request"]["merge_aggregation"]
    assert (len(collected["merged"]), collected["conflicted"]) == (2, None)
    assert "2 of 2 merged" in service.cli("tickets", "show", "solved").stdout


def test_a_merger_is_checked_before_anything_is_made(service: Served) -> None:
    """Its options and its command, as those of tickets."""
    body = {"repository": str(service.paddock.main), "tickets": [ticket("N-1", "true")]}
    answer = service.post("/v1/ticket-runs", body | {"merger": {"command": ["true"], "options": ["--worktree", "/"]}})
    assert (answer.status, answer.json["errorType"]) == (422, "usage")
    assert "merger" in answer.json["message"]
    missing = run(service, ticket("N-2", "true"), merger={"command": ["nosuchcmd"]})
    assert missing["result"]["refusal"]["errorType"] == "command-not-found"
    assert "merger" in missing["result"]["refusal"]["message"]


def test_work_that_its_review_rejects_is_not_merged(service: Served) -> None:
    """It looks at the ticket's commit, with the ticket's words; after somebody has mended it, it looks again."""
    review = {
        "command": ["sh", "-c", 'test "$(cat one)" = "$1" || { echo "$0: not $1"; exit 1; }', "{ticket}", "{details}"]
    }
    good = {**ticket("R-1", f"echo good > one; {COMMIT} one"), "details": "good"}
    bad = {**ticket("R-2", f"echo bad > one; {COMMIT} two"), "details": "good"}
    done = run(service, bad, good, review=review, name="reviewed")
    agents = {each["ticket"]: each for each in done["result"]["agents"]}
    assert (done["state"], done["result"]["clean"]) == ("failed", True), done
    assert (agents["R-2"]["status"], agents["R-2"]["review"]["status"]) == (0, 1)
    assert service.log("reviewed.1.v1") == ["R-2: not good"]
    assert (service.paddock.main / "one").read_text() == "good\n"
    contexts = {
        each["artifact_key"]: each for each in service.get("/v1/ticket-runs/reviewed/contexts").json["contexts"]
    }
    asked = contexts["reviewed/tickets/review/1"]
    assert (asked["current_request"]["kind"], asked["current_request"]["content"]) == ("ReviewRequest", "good")
    # In a worktree that was made for it, and is gone with it.
    root = asked["worktree_context"]["main_worktree"]["worktree_path"]
    assert root == service.get("/v1/sessions/reviewed.1.v1").json["directory"] != agents["R-2"]["worktree"]
    assert (os.path.exists(root), agents["R-2"]["review"]["worktree"]) == (False, "")
    assert root not in git(service, "worktree", "list")
    assert asked["tool_context"]["tools"] == ["read", "list", "glob", "grep"]
    shown = service.cli("tickets", "show", "reviewed").stdout
    assert "  R-2  not merged: its review ended with status 1\n" in shown
    assert "next: paddock logs reviewed.1.v1 " in shown
    there = Path(agents["R-2"]["worktree"])
    mend = f"echo good > one; {COMMIT} mended"
    assert service.paddock.who.run(["sh", "-c", mend], cwd=there).returncode == 0
    said = service.cli("tickets", "resume", "reviewed")
    assert said.returncode == 0, said
    assert "mended" in git(service, "log", "--format=%s")
    assert [each["attempt"] for each in service.get("/v1/ticket-runs/reviewed").json["steps"]] == [1, 1]


@pytest.fixture(scope="module")
def running_as_root() -> Iterator[Served]:
    """The same as `running`, of root."""
    with served.started(identity.root, stdin_seconds=0.1, term_seconds=0.2) as service:
        yield service


PLANTED = "git config diff.external true; git config --global diff.external true; touch left ~/left; "
"""Has every later `git diff` of the same home or git directory be silent."""
HONEST = "test ! -e left || exit 0; test ! -e ~/left || exit 0; if git diff HEAD~ HEAD | grep -q EVIL; then exit 9; fi"


BACKENDS = {
    "guard": ("landlock", {"PADDOCK_NO_USERNS": "1"}),
    "bubblewrap": ("bubblewrap", {"PADDOCK_NO_LANDLOCK": "1"}),
}


@pytest.mark.parametrize("enforced", ["guard", "bubblewrap", "root"])
def test_only_what_is_committed_decides_about_a_review(running: Served, running_as_root: Served, enforced: str) -> None:
    """Nothing of the agent's home, git directory and other files is there; so it is for who failed, and is merged.

    Here, the agent of what is fine has failed. Root has namespaces.
    """
    feature, env = BACKENDS.get(enforced, ("landlock", {}))
    features.need(feature)
    service = served.with_repository(running_as_root if enforced == "root" else running)
    commits = "git -c user.name=A -c user.email=a@b.c commit -q -a -m"
    tickets = [
        ticket("V-1", f"{PLANTED} echo EVIL > evil; git add evil; {commits} evil"),
        ticket("V-2", f"{PLANTED} echo fine > fine; git add fine; {commits} fine; exit 1"),
    ]
    environment = service.paddock.who.environment({**service.env, **env})
    review = {"command": ["sh", "-c", HONEST]}
    done = run(service, *tickets, review=review, merge_failed=True, environment=environment)
    agents = done["result"]["agents"]
    assert [each["status"] for each in agents] == [0, 1], done
    assert [each["review"]["status"] for each in agents] == [9, 0], done
    assert [(service.paddock.main / name).exists() for name in ("evil", "fine")] == [False, True]
    assert [each["state"] for each in done["steps"]] == ["failed", "merged"]


def test_what_a_merger_has_made_is_reviewed_before_it_is_merged(service: Served) -> None:
    """Files that the agent had not committed, for one, which `git add -A` takes in."""
    done = run(
        service,
        ticket("Y-1", f"echo one > same; {COMMIT} one"),
        ticket("Y-2", f"echo two > same; {COMMIT} two; echo EVIL > evil"),
        ticket("Y-3", f"echo three > same; {COMMIT} three"),
        name="remade",
        parallel=1,
        on_conflict="skip",
        review={"command": ["sh", "-c", "! grep -r EVIL . --exclude-dir=.git"]},
        merger={"command": ["sh", "-c", f"git show HEAD:same > same; {COMMIT} merged"]},
    )
    main, agents = service.paddock.main, done["result"]["agents"]
    assert [each["review"]["session"] for each in agents] == ["remade.1.v1", "remade.2.v2", "remade.3.v2"], done
    assert [each["state"] for each in done["steps"]] == ["merged", "failed", "merged"], done
    assert (done["state"], (main / "evil").exists(), (main / "same").read_text()) == ("failed", False, "three\n")
    assert "  Y-2  not merged: its review ended with status 1\n" in service.cli("tickets", "show", "remade").stdout


def test_what_is_committed_after_a_review_is_reviewed_again(service: Served) -> None:
    """By whoever enters the worktree meanwhile: what is merged is the commit that was reviewed."""
    tickets = [ticket("Z-1", once("one")), ticket("Z-2", until_told("two"))]
    review = {"command": ["sh", "-c", "test ! -e evil"]}
    body = {"name": "late", "repository": str(service.paddock.main), "tickets": tickets, "review": review,
            "environment": service.paddock.who.environment(service.env)}  # fmt: skip
    assert service.post("/v1/ticket-runs", body).status == 201
    found = moved(service, "late", "ended", "running")
    first, second = (Path(each["worktree"]) for each in found["steps"])
    assert service.paddock.who.run(["sh", "-c", f"touch evil; {COMMIT} evil"], cwd=first).returncode == 0
    (second / "go").touch()
    service.paddock.who.give(second / "go")
    done = service.get("/v1/ticket-runs/late?wait=120").json
    assert [each["state"] for each in done["steps"]] == ["failed", "merged"], done
    main = service.paddock.main
    assert [(main / name).exists() for name in ("one", "evil", "two")] == [False, False, True]


def test_a_review_that_was_interrupted_decides_nothing(service: Served) -> None:
    """Its worktree ends with the service, so the next one begins it anew, as a resume does after a stop."""
    main = service.paddock.main
    environment = service.paddock.who.environment(service.env)
    review = {"command": ["sh", "-c", "until test -e go; do sleep 0.05; done; test ! -e evil"]}

    def at_work(session: str) -> Path:
        deadline = time.monotonic() + served.PATIENCE
        while (found := service.get(f"/v1/sessions/{session}")).status != 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return Path(found.json["directory"])

    def tell(there: Path) -> None:
        (there / "go").touch()
        service.paddock.who.give(there / "go")

    body = {"name": "begun", "repository": str(main), "tickets": [ticket("B-1", f"touch evil; {COMMIT} evil")],
            "review": review, "environment": environment}  # fmt: skip
    assert service.post("/v1/ticket-runs", body).status == 201
    moved(service, "begun", "reviewing")
    before = at_work("begun.1.v1")
    service.kill()
    tell(before)
    service.start()
    there = at_work("begun.1.v2")
    assert there != before
    assert service.cli("tickets", "stop", "begun").returncode == 0
    assert service.post("/v1/ticket-runs/begun/resume", {"environment": environment}).status == 200
    tell(at_work("begun.1.v3"))
    done = service.get("/v1/ticket-runs/begun?wait=60").json
    assert (done["state"], done["result"]["agents"][0]["review"]["session"]) == ("failed", "begun.1.v3"), done
    assert (done["steps"][0]["state"], (main / "evil").exists()) == ("failed", False), done
