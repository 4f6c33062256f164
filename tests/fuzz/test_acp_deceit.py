"""Whatever an agent writes, no reader finds a request in what passes but for a file that the plan allows."""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from acp.schema import ReadTextFileRequest, WriteTextFileRequest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.bridges.acp import rpc
from launcher.bridges.acp.agent_requests import AgentRequests
from launcher.bridges.acp.carrier import Lines
from launcher.bridges.acp.client_requests import ClientRequests, SessionDirectories
from launcher.bridges.acp.rulings import Choices, Decisions, Rules
from launcher.ledger import ledgers
from policy import promises
from policy.plan import VERSION, Plan, beneath
from tests.support import acp_editor

EXAMPLES = int(os.environ.get("PADDOCK_EXAMPLES", "150"))
MOST = 3000  # bytes of a line that are held here, so that lines without end are met often

METHODS = ("fs/read_text_file", "fs/write_text_file", "fs/delete", "terminal/create", "mcp/message", "session/update")
PATHS = ("ROOT/file", "ROOT/link/x", "ROOT/../outside", "/etc/shadow", "ROOT/.git", "ROOT/new/deep", "~/x", "ROOT")


class NoJail:
    """Answers in the client's place."""

    def terminal(self, number: rpc.Id, method: str, params: dict[str, Any]) -> bytes:
        return rpc.result(number, {})

    def file(self, number: rpc.Id, wanted: ReadTextFileRequest | WriteTextFileRequest, path: str) -> bytes:
        raise AssertionError("files are the client's here")

    def shown(self, message: dict[str, Any]) -> dict[str, Any]:
        return message


@pytest.fixture(scope="module")
def root() -> Iterator[str]:
    """A worktree with a link that leads out of it."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory).resolve()
        made = place / "worktree"
        made.mkdir()
        (made / "file").write_text("")
        (made / "link").symlink_to(place)
        yield str(made)


class Bridge:
    """Both directions."""

    def __init__(self, root: str) -> None:
        empty: dict[str, object] = dict.fromkeys(Plan.FIELDS, ())
        fields = {"version": VERSION, "worktree": root, "worktree_id": "w", "grants": ((root, "rwx", "worktree"),),
                  "backend": promises.NAMESPACES, "net": "none", "command": "agent"}  # fmt: skip
        plan = Plan(**(empty | fields))
        rules = Rules(plan, Choices(), Decisions(ledgers.path_for(os.path.dirname(root), "s", 1), plan, {}))
        directories = SessionDirectories(plan, rules.judge, "check")
        agent = AgentRequests(rules, directories, NoJail(), lambda name, place: None)
        client = ClientRequests(rules, directories, agent.awaits, agent.opened)
        self.up = Lines(agent, agent.unreadable, MOST)
        self.down = Lines(client, client.unreadable, MOST)
        self.up.replies_to(self.down)
        self.down.replies_to(self.up)


def escape(text: str, choices: list[int]) -> str:
    """A JSON string with some characters escaped in one of the ways that there are."""
    out = []
    for at, character in enumerate(text):
        how = choices[at % len(choices)] % 6 if choices else 0
        if how == 1 or (how == 2 and character != "/"):
            out.append(f"\\u{ord(character):04x}")
        elif how == 2:
            out.append("\\/")
        elif how == 3:
            out.append(f"\\u{ord(character):04X}")
        else:
            out.append(json.dumps(character)[1:-1])
    return '"' + "".join(out) + '"'


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """One line that asks for something, more or less well-formed."""
    choices = draw(st.lists(st.integers(0, 40), max_size=8))
    spaced = draw(st.sampled_from(("", "", "", " ", "\0", "\t")))
    method = escape(spaced + draw(st.sampled_from(METHODS)), choices)
    if draw(st.integers(0, 9)) == 0:
        method = f"[{method}]"
    path = escape(draw(st.sampled_from(PATHS)), choices)
    params = draw(st.sampled_from((
        '{{"sessionId":"s","path":{0},"content":"c"}}',
        '{{"path":"ROOT/file","path":{0},"sessionId":"s","content":"c"}}',
        '{{"path":"ROOT/file","Path":{0},"sessionId":"s","content":"c"}}',
        '{{"path":{0},"sessionId":"s","content":"c","_meta":{{"path":{0}}}}}',
        '["s",{0}]',
    ))).format(path)  # fmt: skip
    key = draw(st.sampled_from(('"method"', '"method"', '"Method"', '"method "', '"\\u006dethod"')))
    number = draw(st.sampled_from(("1", "1", '"a"', "null", "1.0", "1e400", "true", "-1", "[]")))
    members = ['"jsonrpc":"2.0"', f'"id":{number}', f"{key}:{method}", f'"params":{params}']
    members += draw(st.lists(st.sampled_from((
        '"method":"session/update"', '"params":{}', '"result":{}', '"id":2', f'"method":{method}', '"x":NaN',
        '"x":"\u2028"', '"x":"\x85"', '"x":"\r"', '"text":"\\"method\\":\\"fs/read_text_file\\""',
    )), max_size=2))  # fmt: skip
    members = draw(st.permutations(members))
    gap = draw(st.sampled_from((",", ",", ", ", ",\r", ",\u2028", ",\x0b", ",\0")))
    text = "{" + gap.join(members) + "}"
    around = draw(st.sampled_from(("", "", "", "[]", "\ufeff", "x", "1\r", "{}", '"\u2028')))
    text = f"[{text}]" if around == "[]" else around + text
    data = text.encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 5)) == 0 and data:  # bytes that some leave out
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.sampled_from((b"\xff", b"\0", b"\xc1\xa6", b"\x80", b"\xed\xa0\x80"))) + data[at:]
    if draw(st.integers(0, 7)) == 0:  # cut anywhere
        data = data[: draw(st.integers(0, len(data)))]
    if draw(st.integers(0, 7)) == 0:  # longer than is held
        data = data[:1] + b" " * draw(st.sampled_from((MOST, 2 * MOST))) + data[1:]
    return data + draw(st.sampled_from((b"\n", b"\n", b"\r\n", b"\n\n")))


plain = st.sampled_from((
    b"log line\n", b"\n", b'{"jsonrpc":"2.0","method":"session/update","params":{"x":"\\u001b \xe2\x80\xa8"}}\n',
    b'{"jsonrpc":"2.0","id":1,"result":{"sessionId":"x"}}\n', b"[" * 500 + b"\n", b'{"a":' * 300 + b"\n",
    b'{"id":5,"error":{"data":{"authMethods":[{"type":"terminal"}]}}}\n',
))  # fmt: skip


def fed(way: Lines, data: bytes, sizes: list[int]) -> None:
    at, turn = 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        way.feed(data[at : at + size])
        at += size
        turn += 1
    way.end()


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    lines=st.lists(requests() | plain | st.binary(max_size=60).map(lambda data: data + b"\n"), min_size=1, max_size=6),
    sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=4),
)
def test_no_reader_finds_a_request_that_leads_out(root: str, lines: list[bytes], sizes: list[int]) -> None:
    """However the bytes are cut, escaped, doubled or hidden; and what comes back to the agent is well-formed."""
    bridge = Bridge(root)
    fed(bridge.up, b"".join(lines).replace(b"ROOT", root.encode()), sizes)
    for message in acp_editor.messages(bytes(bridge.up.out)):
        method = acp_editor.method(message)
        assert method not in METHODS[3:5], message
        assert not str(message.get("method")).startswith(("fs/delete", "terminal/", "mcp/")), message
        if method in METHODS[:2]:
            path = message["params"]["path"]
            assert beneath(os.path.realpath(path), root), message
            assert os.path.realpath(path) == path, message
            assert not path.endswith("/.git") or method == METHODS[0], message
        assert "terminal" not in [each.get("type") for each in _methods(message)], message
    for line in bytes(bridge.down.out).splitlines():
        assert json.loads(line)["jsonrpc"] == "2.0"


def _methods(message: dict[str, Any]) -> list[dict[str, Any]]:
    error = message.get("error")
    data = error.get("data") if isinstance(error, dict) else None
    found = data.get("authMethods") if isinstance(data, dict) else None
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


@settings(max_examples=EXAMPLES // 3, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    lines=st.lists(requests() | plain | st.binary(max_size=60).map(lambda data: data + b"\n"), min_size=1, max_size=6),
    sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=4),
)
def test_what_goes_on_to_the_agent_is_what_was_read(root: str, lines: list[bytes], sizes: list[int]) -> None:
    """Each line that the bridge could read comes with its meaning, in order; each other one is answered."""
    bridge = Bridge(root)
    data = b"".join(lines)
    fed(bridge.down, data, sizes)
    expected: list[object] = []
    refused = 0
    for line in data.split(b"\n"):
        try:
            expected += [rpc.parse(line)] if line.strip() and len(line) <= MOST else []
            refused += len(line) > MOST
        except rpc.Ambiguous:
            refused += 1
    assert [json.loads(line) for line in bytes(bridge.down.out).splitlines()] == expected
    assert len(bytes(bridge.up.out).splitlines()) == refused


@settings(max_examples=EXAMPLES // 3, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    texts=st.lists(st.text(max_size=200), min_size=1, max_size=5),
    sizes=st.lists(st.integers(1, 500), min_size=1, max_size=4),
)
def test_updates_mean_the_same_on_the_other_side(root: str, texts: list[str], sizes: list[int]) -> None:
    """Any text that an agent streams arrives with its meaning, in lines that no reader splits."""
    bridge = Bridge(root)
    updates = [{"jsonrpc": "2.0", "method": "session/update", "params": {"text": text}} for text in texts]
    sent = [json.dumps(update, ensure_ascii=False).encode("utf-8", "replace") + b"\n" for update in updates]
    fed(bridge.up, b"".join(sent), sizes)
    got = bytes(bridge.up.out)
    assert got.isascii()
    assert [json.loads(line) for line in got.decode().splitlines()] == [json.loads(line) for line in sent]
