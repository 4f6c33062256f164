"""What the bridge makes of single messages: paths, sessions, servers, capabilities, and messages made to deceive it."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from acp.schema import CreateTerminalRequest, ReadTextFileRequest, WriteTextFileRequest

from launcher.bridges.acp import client_requests, rpc, rulings, terminals
from launcher.bridges.acp.agent_requests import MOST_ITEMS, AgentRequests, checked
from launcher.bridges.acp.client_requests import (
    MCP_IN_JAIL,
    ClientRequests,
    Place,
    SessionDirectories,
    chosen_servers,
)
from launcher.bridges.acp.rpc import Outcome
from launcher.bridges.acp.rulings import Choices, Decisions, Rules
from launcher.bridges.acp.terminals import ToolCalls
from launcher.ledger import ledgers
from policy import promises
from policy.plan import VERSION, Plan

CHOICES = Choices()


def plan(root: Path, **fields: object) -> Plan:
    grants = ((str(root), "rwx", "worktree"), ("/usr", "rx", "default"), ("/proc", "r", "default"))
    empty: dict[str, object] = dict.fromkeys(Plan.FIELDS, ())
    given: dict[str, object] = {"version": VERSION, "worktree": str(root), "worktree_id": "w-1", "grants": grants,
                                "backend": promises.NAMESPACES, "net": "none", "command": "agent"}  # fmt: skip
    return Plan(**(empty | given | fields))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    found = tmp_path.resolve() / "worktree"
    found.mkdir()
    (found / ".git").write_text("gitdir: elsewhere\n")
    return found


class Bridge:
    """Both directions for one plan, without any process."""

    def __init__(self, plan: Plan, ledger: str, choices: Choices = CHOICES) -> None:
        self.ledger = ledger
        self.rules = Rules(plan, choices, Decisions(ledger, plan, {"session": "s"}))
        self.sessions: list[tuple[str, Place]] = []
        directories = SessionDirectories(plan, self.rules.judge, choices.cwd)
        self.up = AgentRequests(self.rules, directories, self, self.found)
        self.down = ClientRequests(self.rules, directories, self.up.awaits, self.up.opened)

    def terminal(self, number: rpc.Id, method: str, params: dict[str, Any]) -> bytes:
        return rpc.result(number, {"terminal": method})

    def file(self, number: rpc.Id, wanted: ReadTextFileRequest | WriteTextFileRequest, path: str) -> bytes:
        return rpc.result(number, {"file": path})

    def shown(self, message: dict[str, Any]) -> dict[str, Any]:
        return message

    def found(self, name: str, place: Place) -> None:
        self.sessions.append((name, place))

    def ask(self, method: str, number: object = 1, **params: object) -> Outcome:
        return self.up(line({"jsonrpc": "2.0", "id": number, "method": method, "params": params}))

    def start(self, method: str = "session/new", **params: object) -> Outcome:
        return self.down(line({"jsonrpc": "2.0", "id": 5, "method": method, "params": {"mcpServers": [], **params}}))


def line(message: object) -> bytes:
    return json.dumps(message).encode() + b"\n"


@pytest.fixture
def bridge(root: Path, tmp_path: Path) -> Bridge:
    return Bridge(plan(root), ledgers.path_for(str(tmp_path), "s", 1))


def refusal(outcome: Outcome) -> dict[str, Any]:
    """The error that goes back; nothing may go on."""
    assert outcome.on == b""
    found = json.loads(outcome.back)["error"]
    assert isinstance(found, dict)
    return found


# Files


def test_a_file_inside_goes_on_in_the_bridges_own_words(bridge: Bridge, root: Path) -> None:
    """Only what the protocol knows, with the canonical path."""
    path = f"{root}/./new/../new"
    (root / "new").mkdir()
    outcome = bridge.ask("fs/write_text_file", sessionId="s", path=f"{path}/x", content="c", evil="more")
    assert outcome.back == b""
    assert json.loads(outcome.on) == {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "fs/write_text_file",
        "params": {"sessionId": "s", "path": f"{root}/new/x", "content": "c"},
    }


@pytest.mark.parametrize(
    "path", ["/etc/shadow", "relative", "", "/proc/self/environ", "/dev/stdin", "/x\0y", "/\ud800"]
)
def test_a_file_elsewhere_is_refused(bridge: Bridge, path: str) -> None:
    """Other trees, other name spaces, names that are none; with the specification's error."""
    found = refusal(bridge.ask("fs/read_text_file", sessionId="s", path=path))
    assert found["data"].get("errorType") == "SANDBOX_VIOLATION" or found["code"] == rpc.INVALID_PARAMS


def test_a_surrogate_is_not_taken_for_a_byte(bridge: Bridge, root: Path) -> None:
    """The client would open another name than the one that was looked at."""
    text = b'{"jsonrpc":"2.0","id":1,"method":"fs/read_text_file","params":{"sessionId":"s","path":"PATH/\\udcff"}}'
    assert refusal(bridge.up(text.replace(b"PATH", os.fsencode(root))))


def test_what_is_no_regular_file_is_refused(bridge: Bridge, root: Path) -> None:
    """A pipe would hold the client up."""
    os.mkfifo(root / "pipe")
    (root / "file").write_text("")
    assert refusal(bridge.ask("fs/read_text_file", sessionId="s", path=f"{root}/pipe"))
    assert refusal(bridge.ask("fs/read_text_file", sessionId="s", path=str(root)))
    assert bridge.ask("fs/read_text_file", sessionId="s", path=f"{root}/file").on


def test_read_only_grants_are_read_alone(bridge: Bridge) -> None:
    """As the plan says of /usr."""
    assert bridge.ask("fs/read_text_file", sessionId="s", path="/usr/bin/env").on
    assert refusal(bridge.ask("fs/write_text_file", sessionId="s", path="/usr/bin/env", content=""))


@pytest.mark.parametrize("name", [".git", ".GIT", ".git/hooks/pre-commit", "sub/.git/config", ".envrc", "closed/x"])
def test_what_host_tools_obey_is_not_written(root: Path, tmp_path: Path, name: str) -> None:
    """Git's own files anywhere, protected hand-off files, and what the plan denies, on every backend."""
    (root / ".envrc").write_text("")
    (root / "closed").mkdir()
    for backend in promises.BACKENDS:
        rules = plan(root, backend=backend, handoff=((f"{root}/.envrc", "protect"),), denied=((f"{root}/closed", "x"),))
        bridge = Bridge(rules, ledgers.path_for(str(tmp_path), "s", 1))
        assert refusal(bridge.ask("fs/write_text_file", sessionId="s", path=f"{root}/{name}", content=""))
        assert bridge.ask("fs/write_text_file", sessionId="s", path=f"{root}/free", content="").on


def test_what_is_something_else_in_the_jail_is_refused(root: Path, tmp_path: Path) -> None:
    """A path at which the jail shows another file."""
    rules = plan(root, binds=(("@git/pointers/0", f"{root}/.git", "r"),))
    bridge = Bridge(rules, ledgers.path_for(str(tmp_path), "s", 1))
    assert refusal(bridge.ask("fs/read_text_file", sessionId="s", path=f"{root}/.git"))


def test_stripped_files_are_refused(root: Path, tmp_path: Path) -> None:
    """With `--fs strip` there are none, and none are offered."""
    bridge = Bridge(plan(root), ledgers.path_for(str(tmp_path), "s", 1), Choices(files="strip"))
    assert refusal(bridge.ask("fs/read_text_file", sessionId="s", path=f"{root}/x"))["code"] == rpc.METHOD_NOT_FOUND
    told = bridge.down(line({"id": 1, "method": "initialize", "params": {"clientCapabilities": {"fs": {"x": 1}}}}))
    offered = json.loads(told.on)["params"]["clientCapabilities"]
    assert offered == {"fs": {"readTextFile": False, "writeTextFile": False}}


def test_lists_of_parameters_are_bounded() -> None:
    """However long the line is: pydantic would make a kilobyte of each item that is wrong."""
    params = {"sessionId": "s", "command": "sh", "args": ["a"] * MOST_ITEMS}
    assert isinstance(checked(CreateTerminalRequest, 1, "terminal/create", params), CreateTerminalRequest)
    for more, wanted in (
        ({"command": 1}, ["command"]),
        ({"args": [0] * (MOST_ITEMS + 1)}, []),
        ({"env": [{}] * 300_000}, []),
        ({"sessionId": "s" * (rpc.MOST_NAME + 1)}, []),
    ):
        told = checked(CreateTerminalRequest, 1, "terminal/create", {**params, **more})
        assert isinstance(told, bytes)
        error = json.loads(told)["error"]
        assert error["code"] == rpc.INVALID_PARAMS
        assert [each["field"] for each in error.get("data", [])] == wanted
        assert len(told) < 2000


def test_files_of_the_jail_are_judged_too(root: Path, tmp_path: Path) -> None:
    """With `--fs jail` what is refused never gets there, and nothing reaches the client."""
    bridge = Bridge(plan(root), ledgers.path_for(str(tmp_path), "s", 1), Choices(files="jail"))
    assert refusal(bridge.ask("fs/read_text_file", sessionId="s", path="/etc/shadow"))["code"] == rpc.DENIED
    told = bridge.ask("fs/read_text_file", sessionId="s", path=f"{root}/x")
    assert (told.on, json.loads(told.back)["result"]) == (b"", {"file": f"{root}/x"})


# Deceit

READ = '"params":{"sessionId":"s","path":"/etc/shadow"}'


@pytest.mark.parametrize(
    "text",
    [
        '{"id":1,"method":"session/update","method":"fs/read_text_file",' + READ + "}",
        '{"id":1,"Method":"fs/read_text_file",' + READ + "}",
        '{"id":1,"method ":"fs/read_text_file",' + READ + "}",
        '{"id":1,"method":["fs/read_text_file"],' + READ + "}",
        '{"id":1,"method":"fs/read_text_file\\u0000",' + READ + "}",
        '{"id":1,"method":"\\u0000f\\u200bs/read_text_file",' + READ + "}",
        '{"id":1,"method":" fs/read_text_file",' + READ + "}",
        '{"id":1,"method":"FS/read_text_file",' + READ + "}",
        '{"id":1,"method":"\\u0066s/read_text_file",' + READ + "}",
        '{"id":1,"method":"fs\\/read_text_file",' + READ + "}",
        '{"method":"fs/read_text_file",' + READ + "}",
        '{"id":null,"method":"fs/read_text_file",' + READ + "}",
        '{"id":1.0,"method":"fs/read_text_file",' + READ + "}",
        '{"id":true,"method":"fs/read_text_file",' + READ + "}",
        '{"id":9007199254740993,"method":"fs/read_text_file",' + READ + "}",
        '{"id":1,"method":"fs/read_text_file","params":["s","/etc/shadow"]}',
        '{"id":1,"method":"fs/read_text_file"}',
        '{"id":1,"result":{},"method":"fs/read_text_file",' + READ + "}",
        '{"id":1,"method":"fs/read_text_file","params":{"sessionId":"s","path":"/tmp/x","Path":"/etc/shadow"}}',
        '[{"id":1,"method":"fs/read_text_file",' + READ + "}]",
        '\ufeff{"id":1,"method":"fs/read_text_file",' + READ + "}",
        '{"id":1,\r"method":"fs/read_text_file",' + READ + "}",
        '{"id":1,"method":"fs/delete","params":{}}',
        '{"id":null,"method":"terminal/create","params":{"sessionId":"s","command":"id"}}',
        '{"id":1,"method":"mcp/message","params":{}}',
        '{"id":1,"method":"fs/read_text_file",' + READ,
    ],
)
def test_no_trick_opens_a_path(bridge: Bridge, text: str) -> None:
    """Whatever some parser might make of it: nothing goes on, and an error comes back."""
    assert refusal(bridge.up(text.encode() + b"\n"))


def test_text_about_files_goes_on(bridge: Bridge) -> None:
    """A message that only quotes what is policed, written anew."""
    text = b'{ "method":"session/update","params":{"text":"\\"fs/write_text_file\\" \\u0041"} }\n'
    assert bridge.up(text) == Outcome(b'{"method":"session/update","params":{"text":"\\"fs/write_text_file\\" A"}}\n')


# Terminals in tool calls


def shown(*items: object) -> dict[str, Any]:
    """An update with this content."""
    update = {"sessionUpdate": "tool_call", "toolCallId": "c", "content": list(items)}
    return {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": update}}


def terminal(name: str) -> dict[str, str]:
    return {"type": "terminal", "terminalId": name}


def test_one_message_shows_so_much_of_terminals() -> None:
    """However often one is named; what is no terminal stands as it is."""
    sent: list[bytes] = []
    calls = ToolCalls({"t": "x" * 65_536}.get, sent.append)
    diff = {"type": "diff", "path": "/p", "newText": "n"}
    made = calls.rewritten(shown(terminal("t"), terminal("other"), diff, *[terminal("t")] * 100_000))
    content = made["params"]["update"]["content"]
    assert content[1:3] == [terminal("other"), diff]
    assert [len(content[number]["content"]["text"]) for number in (0, 3, 4, 5)] == [65_536] * 4
    assert len(content) == 100_003
    assert all("more terminals" in each["content"]["text"] for each in content[6:])
    assert len(rpc.encode(made)) < len(rpc.encode(shown(*[terminal("t")] * 100_000))) * 3
    calls.ended("t")
    assert sent == []  # more than is remembered
    calls.rewritten(shown(*[terminal("t")] * 10_000))
    calls.ended("t")
    assert len(sent) == 1
    assert len(sent[0]) < terminals.MOST_TEXT + 3 * terminals.MOST_CALLS


def test_so_much_is_remembered_of_tool_calls() -> None:
    """The newest ones: what an agent says of a terminal is told again when that ends."""
    sent: list[bytes] = []
    calls = ToolCalls(lambda name: "text", sent.append)
    half = {"type": "diff", "path": "/p", "newText": "n" * (terminals.MOST_CALLS // 2)}
    for name in ("first", "second", "third"):
        calls.rewritten(shown(terminal(name), half if name != "third" else "small"))
    calls.rewritten(shown(terminal("first"), "again"))
    for name in ("first", "second", "third"):
        calls.ended(name)
    assert [json.loads(line)["params"]["update"]["content"][1] for line in sent] == ["again", half, "small"]
    calls.rewritten(shown(terminal("large"), half, half))
    calls.ended("large")
    assert len(sent) == 3


def test_what_is_no_message_is_left_out(bridge: Bridge, capsys: pytest.CaptureFixture[str]) -> None:
    """Log lines and empty ones are not answered: an agent might log the answer, and so on. The first ones are shown."""
    for text in (b"", b"  \r\n", b"Starting up ...\n", b"42\n", b"\x1b[31mred\n"):
        assert bridge.up(text) == Outcome()
        assert bridge.down(b"\r\n") == Outcome()
    assert "not a message: Starting up" in capsys.readouterr().err
    for _ in range(100):
        assert bridge.up(b"noise\n") == Outcome()
    assert capsys.readouterr().err.count("noise") == 17


def test_a_login_in_a_terminal_is_taken_out(bridge: Bridge) -> None:
    """The client would run it outside of the jail; other logins stay, wherever they are offered."""
    methods = [
        {"id": "a", "name": "A"},
        {"id": "t", "name": "T", "type": "terminal", "args": ["--login"], "env": {"LD_PRELOAD": "/w/evil.so"}},
        {"id": "z", "name": "Z", "_meta": {"terminal-auth": {"command": "/w/evil"}, "kept": 1}},
        {"id": "q", "name": "Q", "_meta": {"type": "terminal", "args": ["--login"], "env": {"PATH": "/w"}, "kept": 1}},
    ]
    kept = [{"id": "a", "name": "A"}, *({"id": name, "name": name.upper(), "_meta": {"kept": 1}} for name in "zq")]
    for message, place in (
        ({"id": 0, "result": {"protocolVersion": 1, "authMethods": methods}}, "result"),
        ({"id": 9, "error": {"code": -32000, "message": "", "data": {"authMethods": methods}}}, "error"),
    ):
        found = json.loads(bridge.up(line(message)).on)[place]
        assert found.get("authMethods", found.get("data", {}).get("authMethods")) == kept
    assert json.loads(bridge.up(line({"id": 0, "result": {"authMethods": {}}})).on)["result"] == {"authMethods": []}
    plain = line({"id": 0, "result": {"authMethods": methods[:1]}})
    assert json.loads(bridge.up(plain).on) == json.loads(plain)


def test_no_other_spelling_of_a_login_in_a_terminal_passes(bridge: Bridge) -> None:
    """Parsers that forgive case take it for the same member, and the last one counts."""
    evil = {"type": "terminal", "command": "/w/evil"}
    odd = {"AuthMethods": [evil], "authmethods ": [evil], "authMethod\u017f": [evil]}
    meta = {"Terminal-Auth": evil, " terminal-auth": evil, "type": "terminal", "Command": "/w/evil"}
    methods = [{"id": "a", "Type": "terminal", "_Meta": evil, "_meta": meta}]
    assert json.loads(bridge.up(line({"id": 0, "result": odd})).on)["result"] == {}
    found = json.loads(bridge.up(line({"id": 0, "result": {**odd, "authMethods": methods}})).on)["result"]
    assert found == {"authMethods": [{"id": "a", "_meta": {}}]}


# Sessions


def test_a_session_is_found_by_its_reply(bridge: Bridge, root: Path) -> None:
    """The id that the agent gives; an error, or another id, is no session."""
    assert json.loads(bridge.start(cwd=str(root)).on)["params"]["cwd"] == str(root)
    bridge.up(line({"id": 6, "result": {"sessionId": "other"}}))
    bridge.up(line({"id": 5, "result": {"sessionId": "mine"}}))
    bridge.up(line({"id": 5, "result": {"sessionId": "again"}}))
    assert bridge.sessions == [("mine", Place(str(root), str(root)))]


def test_a_session_that_is_taken_up_again_is_found_by_its_request(bridge: Bridge, root: Path) -> None:
    """What is replayed comes before the reply."""
    assert bridge.start("session/load", cwd=str(root), sessionId="old").on
    assert bridge.sessions == [("old", Place(str(root), str(root)))]


@pytest.mark.parametrize("method", ["session/new", "session/load", "session/resume", "session/fork", "session/list"])
def test_a_session_outside_is_refused(bridge: Bridge, root: Path, method: str) -> None:
    """However it starts; and the worktree's parent is outside."""
    for cwd in (root.parent, "/", "/usr", "relative", f"{root}/missing"):
        assert refusal(bridge.start(method, cwd=str(cwd), sessionId="s"))["code"] == rpc.INVALID_PARAMS
    assert bridge.start(method, cwd=str(root), sessionId="s").on


def test_a_session_elsewhere_is_mapped(root: Path, tmp_path: Path) -> None:
    """To the same directory of the worktree where there is one, else to its root."""
    main = tmp_path.resolve() / "main"
    for folder in (main / ".git", main / "src", main / "only-there", root / "src"):
        folder.mkdir(parents=True)
    bridge = Bridge(plan(root), ledgers.path_for(str(tmp_path), "s", 1), Choices(cwd=client_requests.MAP))
    for cwd, wanted in ((main, root), (main / "src", root / "src"), (main / "only-there", root), ("/usr", root)):
        assert json.loads(bridge.start(cwd=str(cwd)).on)["params"]["cwd"] == str(wanted)


def test_further_directories_are_checked(bridge: Bridge, root: Path, tmp_path: Path) -> None:
    """What the jail can read goes on; another one refuses the session, or is left out when sessions are mapped."""
    told = bridge.start(cwd=str(root), additionalDirectories=["/usr/bin"])
    assert json.loads(told.on)["params"]["additionalDirectories"] == [os.path.realpath("/usr/bin")]
    for other, advice in (("/etc", "--ro DIR"), ("/nowhere", "does not exist")):
        told = refusal(bridge.start(cwd=str(root), additionalDirectories=["/usr/bin", other]))["message"]
        assert other in told
        assert advice in told
    mapping = Bridge(plan(root), bridge.ledger, Choices(cwd=client_requests.MAP))
    told = mapping.start(cwd=str(root), additionalDirectories=["/usr/bin", "/etc"])
    assert json.loads(told.on)["params"]["additionalDirectories"] == [os.path.realpath("/usr/bin")]


def test_paths_come_back_in_the_clients_spelling(bridge: Bridge, root: Path, tmp_path: Path) -> None:
    """A client that knows the worktree through a link gets its own names, as long as the link leads there."""
    link = tmp_path.resolve() / "link"
    link.symlink_to(root)
    assert json.loads(bridge.start(cwd=str(link)).on)["params"]["cwd"] == str(root)
    bridge.up(line({"id": 5, "result": {"sessionId": "mine"}}))
    asked = bridge.ask("fs/read_text_file", sessionId="mine", path=f"{root}/x")
    assert json.loads(asked.on)["params"]["path"] == f"{link}/x"
    link.unlink()
    link.symlink_to("/etc")
    asked = bridge.ask("fs/read_text_file", sessionId="mine", path=f"{root}/x")
    assert json.loads(asked.on)["params"]["path"] == f"{root}/x"


@pytest.mark.parametrize(
    "text",
    [
        b'{"text":"\\"session/new\\"","text":"session/new"}\n',
        b'{"id":1,"method":"session/new","params":{"cwd":"/"},"params":{"cwd":"/etc"}}\n',
        b'[{"id":1,"method":"initialize","params":{}}]\n',
        b'{"id":1,"Method":"initialize","params":{}}\n',
        b"any text\n",
        b'{"a":NaN}\n',
    ],
)
def test_lines_of_the_client_that_cannot_be_read_are_answered(bridge: Bridge, text: bytes) -> None:
    """The agent might read them in another way than the bridge does."""
    assert refusal(bridge.down(text))["code"] == rpc.PARSE_ERROR


# Servers and what is offered


def test_servers_that_can_run_in_the_jail_are_kept(root: Path) -> None:
    """Stdio ones as they are; of the network those that its rules allow; never one that the client runs."""
    stdio: dict[str, object] = {"name": "a", "command": "/usr/bin/a", "args": [], "env": []}
    good = {"type": "http", "name": "b", "url": "https://good.example/mcp", "headers": []}
    bad = {"type": "sse", "name": "c", "url": "https://bad.example/mcp", "headers": []}
    acp = {"type": "acp", "name": "d", "id": "x"}
    broken = {"type": "http", "name": "e", "url": "https://[", "headers": []}
    rules = plan(root, net="proxy", domains=(("good.example:443", "test"),))
    kept, dropped = chosen_servers([stdio, good, bad, acp, broken, 7, {"type": "new"}], rules, MCP_IN_JAIL)
    assert kept == [stdio, good]
    assert [one.name for one in dropped] == ["c", "d", "e", "", ""]
    assert (dropped[0].host, dropped[0].port) == ("bad.example", 443)
    assert chosen_servers([stdio, good], rules, client_requests.MCP_REFUSED)[0] == []


@pytest.mark.parametrize("terminals", ["jail", "strip"])
def test_offers_of_the_client_are_adjusted(root: Path, tmp_path: Path, terminals: str) -> None:
    """No logins in terminals, and those only where the bridge serves them; files and whatever is unknown stay."""
    bridge = Bridge(plan(root), ledgers.path_for(str(tmp_path), "s", 1), Choices(terminals=terminals))
    there = terminals == "jail"
    asked = bridge.ask("terminal/create", sessionId="s", command="id")
    assert asked.on == b""
    assert (json.loads(asked.back).get("result") == {"terminal": "terminal/create"}) is there
    offered = {"fs": {"readTextFile": True}, "terminal": True, "auth": {"terminal": True, "x": 1},
               "_meta": {"terminal-auth": True, "terminal_output": True}, "new": {"y": 2}}  # fmt: skip
    told = bridge.down(
        line({"id": 0, "method": "initialize", "params": {"protocolVersion": 1, "clientCapabilities": offered}})
    )
    assert json.loads(told.on)["params"] == {
        "protocolVersion": 1,
        "clientCapabilities": {"fs": {"readTextFile": True}, "terminal": there, "auth": {"terminal": False, "x": 1},
                               "_meta": {"terminal_output": True}, "new": {"y": 2}},
    }  # fmt: skip


def test_decisions_are_written_once_each(bridge: Bridge, root: Path) -> None:
    """What was allowed beside what was refused, with method, path and verdict."""
    for _ in range(3):
        bridge.ask("fs/read_text_file", sessionId="s", path=f"{root}/x")
        bridge.ask("fs/read_text_file", sessionId="s", path="/etc/shadow")
    contents = ledgers.read(bridge.ledger)
    assert contents.facts["session"] == "s"
    assert [(one["path"], one["rights"], one["layer"]) for one in contents.denials] == [
        ("/etc/shadow", ["fs/read_text_file"], "bridge")
    ]
    decisions = [one for one in ledgers.lines(bridge.ledger) if one["kind"] == "decision"]
    assert [(one["method"], one["subject"], one["verdict"]) for one in decisions] == [
        ("fs/read_text_file", f"{root}/x", "allowed")
    ]


def test_long_names_are_cut_in_the_ledger(bridge: Bridge) -> None:
    """An agent may send megabytes for a path; the refusal says so, the ledger keeps its beginning."""
    assert refusal(bridge.ask("fs/read_text_file", sessionId="s", path="/" + "x" * 1_000_000))
    assert len(ledgers.read(bridge.ledger).denials[0]["path"]) == 4096
    assert refusal(bridge.ask("fs/read_text_file", "i" * 1001, sessionId="s", path="/etc/passwd"))


def test_no_agent_fills_the_ledger(bridge: Bridge, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Beyond a number of kinds nothing is written, which is said once; decisions hold."""
    for number in range(rulings.MOST_KINDS + 100):
        assert bridge.ask("fs/read_text_file", sessionId="s", path=f"{root}/{number}").on
    assert len(list(ledgers.lines(bridge.ledger))) == rulings.MOST_KINDS + 1
    assert capsys.readouterr().err.count("too many kinds") == 1


def test_a_ledger_that_cannot_be_written_changes_no_decision(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is said once."""
    (tmp_path / "ledgers").write_text("no directory")
    bridge = Bridge(plan(root), ledgers.path_for(str(tmp_path), "s", 1))
    assert refusal(bridge.ask("fs/read_text_file", sessionId="s", path="/etc/shadow"))
    assert bridge.ask("fs/read_text_file", sessionId="s", path=f"{root}/x").on
    assert capsys.readouterr().err.count("the ledger cannot be written") == 1
