"""Keys that stay outside: a command works by a phantom, and finds the key nowhere, on every backend."""

import json
import os
import shlex
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import trustme

from policy import promises
from tests.support import served
from tests.support.features import need
from tests.support.identity import AS_A_USER
from tests.support.paddock import Paddock, Session
from tests.support.programs.scene import SWITCHES

KEY = "the-key-that-stays-outside"
SEARCH = Path(__file__).parent.parent / "support" / "programs" / "search.py"
CURL = 'curl -sS -H "Authorization: Bearer $TOKEN"'


@dataclass
class Api:
    """A vendor's API: what each request brought, and to what it would be upgraded; and what it answers."""

    port: int
    says: bytes = b"served\n"
    seen: list[tuple[str, str | None]] = field(default_factory=list)
    upgrades: list[str | None] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Of the API."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def option(self) -> str:
        """A key for it."""
        return f"--inject=TOKEN={self.url},base=API_URL,path=/chat"


class _Server(ThreadingHTTPServer):
    api: Api


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.server.api.seen.append((self.path, self.headers["Authorization"]))
        self.server.api.upgrades.append(self.headers["Upgrade"])
        self.send_response(200)
        self.send_header("Content-Length", f"{len(self.server.api.says)}")
        self.end_headers()
        self.wfile.write(self.server.api.says)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def api() -> Iterator[Api]:
    """An API on this machine's loopback."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.api = Api(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server.api
        server.shutdown()
        thread.join()


Launch = tuple[dict[str, str], tuple[str, ...]]


@pytest.fixture(params=SWITCHES)
def launch(request: pytest.FixtureRequest) -> Launch:
    """What selects a backend, and the key in the environment."""
    environment, options = SWITCHES[request.param]
    need("bubblewrap" if "bubblewrap" in options else "landlock")
    return {**environment, "TOKEN": KEY}, options


ONCE = pytest.mark.parametrize("launch", [promises.NAMESPACES], indirect=True)
"""Of what the proxy knows of phantoms and budgets: on which backend the command asks, is no matter."""
BY_BOTH_WAYS = pytest.mark.parametrize("launch", [promises.NAMESPACES, promises.GUARD], indirect=True)
"""Of ways past the proxy: a namespace closes them, or the guard."""


def in_jail(paddock: Paddock, launch: Launch, line: str, *options: str) -> "subprocess.CompletedProcess[str]":
    environment, more = launch
    return paddock.run(*more, *options, "--", "sh", "-c", line, env=environment)


def searched(paddock: Paddock) -> str:
    """A shell line that looks for the key wherever it can read. The programme lies in the worktree."""
    paddock.who.run(["sh", "-c", f"cat > {shlex.quote(str(paddock.worktree / 'search.py'))}"], stdin=SEARCH.read_text())
    return f"/usr/bin/python3 search.py {KEY[::-1]}"


def test_a_command_works_by_a_phantom_and_finds_no_key(paddock: Paddock, api: Api, launch: Launch) -> None:
    """Not in an environment, a file, or the memory of any process that it can look at."""
    line = f"{CURL} $API_URL/chat; {searched(paddock)}; echo $TOKEN"
    ended = in_jail(paddock, launch, line, api.option)
    assert ended.returncode == 0, ended.stderr
    served, looked, phantom = ended.stdout.splitlines()
    assert served == "served", ended.stderr
    assert looked.startswith("looked at"), ended.stdout
    assert phantom != KEY
    assert api.seen == [("/v1/chat", f"Bearer {KEY}")]
    kept = [path for top in (paddock.state, paddock.cache) for path in top.rglob("*") if path.is_file()]
    assert kept
    assert [path for path in kept if KEY.encode() in path.read_bytes() or phantom.encode() in path.read_bytes()] == []


@AS_A_USER
def test_a_key_that_is_passed_is_found(paddock: Paddock, api: Api, launch: Launch) -> None:
    """So the search would have found it."""
    ended = in_jail(paddock, launch, searched(paddock), "--env", "TOKEN", "--reach", str(api.port))
    assert "found in /proc/" in ended.stdout, ended.stderr


@AS_A_USER
@BY_BOTH_WAYS
def test_a_phantom_is_refused_beyond_its_rules_and_that_is_a_denial(paddock: Paddock, api: Api, launch: Launch) -> None:
    """Other paths, a key of somebody else's, and the API without any: none of it gets there."""
    line = f"""
        {CURL} $API_URL/files; {CURL} -X DELETE $API_URL/chat; {CURL} "$API_URL/chat?key=foreign"
        curl -sS -H "Authorization: Bearer foreign" $API_URL/chat; curl -sS $API_URL/chat
        {CURL} -m 5 --noproxy '*' {api.url}/chat || echo no way
        env -u HTTP_PROXY -u http_proxy {CURL} -m 5 {api.url}/chat || echo no way
    """
    ended = in_jail(paddock, launch, line, api.option)
    assert api.seen == [], ended.stdout
    assert ended.stdout.count("no way") == 2, ended.stdout
    kinds = [json.loads(text)["errorType"] for text in ended.stdout.splitlines() if text.startswith("{")]
    assert kinds == ["egress-denied"] * 3 + ["egress-key"] * 2
    denials = [json.loads(text) for text in paddock.call("denials", "--json").stdout.splitlines()]
    told = [denial for denial in denials if denial["operation"] == "key"]
    assert {(denial["host"], denial["port"]) for denial in told} == {("127.0.0.1", api.port)}
    assert sum(denial["count"] for denial in told) == 5
    assert {denial["process"]["comm"] for denial in told} == {"curl"}
    assert not any(denial["allow"]["flag"] for denial in told)


@AS_A_USER
@ONCE
def test_a_phantom_is_worth_nothing_to_another_session_or_later(paddock: Paddock, api: Api, launch: Launch) -> None:
    """Not even at the first one's own proxy, for whom is not in its jail."""
    environment, options = launch
    waiting = ("sh", "-c", "echo ready; cat")
    with Session(paddock, environment, waiting, (*options, api.option)) as first:
        got = first.run("sh", "-c", "echo $TOKEN $API_URL; " + f"{CURL} $API_URL/chat")
        (phantom, url), served = got.stdout.splitlines()[0].split(), got.stdout.splitlines()[1]
        assert served == "served", got.stderr
        steal = f"""
            curl -sS -H 'Authorization: Bearer {phantom}' $API_URL/chat
            curl -sS -m 5 --noproxy '*' -H 'Authorization: Bearer {phantom}' {url}/chat || echo no way
        """
        stolen = in_jail(paddock, launch, steal, api.option)
    assert len(api.seen) == 1, stolen.stdout
    assert stolen.stdout.count("egress-key") >= 1
    later = paddock.who.run(["curl", "-sS", "-m", "5", "-H", f"Authorization: Bearer {phantom}", f"{url}/chat"])
    assert later.returncode != 0
    assert len(api.seen) == 1


@AS_A_USER
def test_the_key_is_read_anew_at_each_launch(paddock: Paddock, api: Api) -> None:
    """The Plan, which is kept, knows only its name; without a value nothing starts."""
    for value in ("one", "two"):
        assert in_jail(paddock, ({"TOKEN": value}, ()), f"{CURL} $API_URL/chat", api.option).stdout == "served\n"
    assert [header for _, header in api.seen] == ["Bearer one", "Bearer two"]
    said = paddock.refused("run", api.option, "--", "true")
    assert said.reference == "key-missing"
    assert "TOKEN cannot be read from env:TOKEN: TOKEN is not set" in said.text
    for value in ("two\nlines", "with\x01control", "sch\u00f6n"):
        assert paddock.refused("run", api.option, "--", "true", env={"TOKEN": value}).reference == "key-unusable"


@AS_A_USER
def test_a_key_comes_from_a_file_or_a_command(paddock: Paddock, api: Api) -> None:
    """Of the user's own, outside of the jail; the command with the system's PATH, never one of the worktree's."""
    home = paddock.who.home
    plant = "printf '#!/bin/sh\necho planted' > bin/printf; chmod +x bin/printf"
    line = f"echo from-a-file > {home}/key; mkdir -p bin; {plant}"
    paddock.who.run(["sh", "-c", line], cwd=paddock.worktree)
    option = api.option.replace(",path", ",method=GET,path")
    sources = {
        "file:~/key": "from-a-file",
        f"file:{home}/key": "from-a-file",
        "cmd:printf 'a,%s' b": "a,b",
        "env:OTHER": "another",
    }
    path = f"{paddock.worktree}/bin:{os.environ['PATH']}"
    for source, value in sources.items():
        ended = paddock.run(
            f"{option},from={source}", "--", "sh", "-c", f"{CURL} $API_URL/chat", env={"OTHER": "another", "PATH": path}
        )
        assert ended.stdout == "served\n", ended.stderr
        assert api.seen[-1] == ("/v1/chat", f"Bearer {value}")
    wrong = {
        "file:~/missing": "No such file",
        "file:key": "the path is relative",
        f"file:{home}": "not a regular file",
        "cmd:exit 3": "status 3",
        "cmd:true": "it is empty",
    }
    errors = paddock.refused_each(*(("run", f"{option},from={source}", "--", "true") for source in wrong))
    for (source, why), said in zip(wrong.items(), errors, strict=True):
        assert said.reference == "key-missing", source
        assert why in said.text, source


AGENT = '#!/bin/sh\neval "$WORK"\n'


def agent(paddock: Paddock, name: str) -> str:
    """A stand-in for a known agent, outside of the worktree: does what WORK says."""
    line = f"mkdir -p bin && cat > bin/{name} && chmod +x bin/{name}"
    paddock.who.run(["sh", "-c", line], cwd=paddock.place, stdin=AGENT)
    return str(paddock.place / "bin" / name)


def as_claude(
    paddock: Paddock, work: str, *words: str, options: tuple[str, ...] = (), env: Mapping[str, str] = {}
) -> "subprocess.CompletedProcess[str]":
    """What Claude Code's stand-in says."""
    return paddock.run(*options, "--env", f"WORK={work}", "--", agent(paddock, "claude"), *words, env=env)


SHOWN = "echo $ANTHROPIC_API_KEY $ANTHROPIC_BASE_URL"


def test_a_known_agents_key_stays_outside_by_itself(user_paddock: Paddock, api: Api) -> None:
    """And is at the vendor whom the user's own base URL names."""
    env = {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": api.url.removesuffix("/v1")}
    ask = 'curl -sS -H "x-api-key: $ANTHROPIC_API_KEY" $ANTHROPIC_BASE_URL/v1/messages -d {}'
    ended = as_claude(user_paddock, f"{ask}; {SHOWN}", env=env)
    served, shown = ended.stdout.splitlines()
    assert served == "served", ended.stdout
    assert shown.startswith("sk-ant-api03-")
    assert shown.endswith(" http://127.0.0.1:3128")
    assert api.seen == [("/v1/messages", None)]


def test_an_agent_that_asks_about_a_new_key_does_not_ask_about_each_phantom(user_paddock: Paddock) -> None:
    """Claude Code remembers the last 20 characters of what it was told to use."""
    work = "cat $CLAUDE_CONFIG_DIR/.claude.json; echo; echo $ANTHROPIC_API_KEY"
    told = as_claude(user_paddock, work, env={"ANTHROPIC_API_KEY": KEY})
    *lines, phantom = told.stdout.splitlines()
    settings = json.loads("".join(lines))
    assert settings["customApiKeyResponses"]["approved"] == [phantom[-20:]]
    assert settings["hasCompletedOnboarding"] is True


def test_a_key_that_the_user_uses_in_a_way_of_his_own_passes(user_paddock: Paddock) -> None:
    """He names it himself: in an option, in the command's words, or in a setting that is passed."""
    cases: tuple[tuple[tuple[str, ...], tuple[str, ...], dict[str, str]], ...] = (
        (("--keys", "pass"), (), {}),
        (("--env", "ANTHROPIC_API_KEY"), (), {}),
        (("--net", "open"), (), {}),
        ((), ("--settings", '{"apiKeyHelper": "echo $ANTHROPIC_API_KEY"}'), {}),
        ((), ('--settings={"apiKeyHelper": "echo $ANTHROPIC_API_KEY"}',), {}),
        ((), (), {"ANTHROPIC_MODEL": "by ANTHROPIC_API_KEY"}),
    )
    told = "the agent gets the key in ANTHROPIC_API_KEY itself, no phantom"
    for case in (*cases, cases[0], cases[3]):  # the last two by the Plans that were kept
        options, words, more = case
        ended = as_claude(user_paddock, SHOWN, *words, options=options, env={"ANTHROPIC_API_KEY": KEY, **more})
        assert ended.stdout.split()[:1] == [KEY], (case, ended.stderr)
        assert (told in ended.stderr) is not bool(options), (case, ended.stderr)


def test_a_prompt_that_names_the_variable_changes_nothing(user_paddock: Paddock) -> None:
    """It may be somebody else's text; and so is what follows `--`."""
    for words in (
        ("-p", "about ANTHROPIC_API_KEY"),
        ("ANTHROPIC_API_KEY",),
        ("-p", "x", "--", "--settings", "ANTHROPIC_API_KEY"),
    ):
        ended = as_claude(user_paddock, SHOWN, *words, env={"ANTHROPIC_API_KEY": KEY})
        assert ended.stdout.startswith("sk-ant-api03-"), ended


def test_without_a_network_there_is_no_key_at_all(user_paddock: Paddock) -> None:
    """A project's file may close the network: what one session finds then, a later one with a network would send."""
    env = {"ANTHROPIC_API_KEY": KEY}
    assert as_claude(user_paddock, SHOWN, options=("--net", "none"), env=env).stdout == "\n"
    line = "printf '[network]\\nmode = \"none\"\\n' > .paddock.toml"
    user_paddock.who.run(["sh", "-c", line], cwd=user_paddock.worktree)
    assert as_claude(user_paddock, SHOWN, env=env).stdout == "\n"


@pytest.mark.parametrize(
    "url", ["not a URL", "https://gw:pw@localhost:9443", "https://localhost/x?y", "ftp://x.example"]
)
def test_a_base_url_that_cannot_be_used_is_refused(user_paddock: Paddock, url: str) -> None:
    """Else the key would have to be in the jail, unasked. The user can have it so."""
    env = {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": url}
    said = user_paddock.refused("run", "--provider", "claude-code", "--", "true", env=env)
    assert said.reference == "key-base-unusable"
    assert "pw" not in said.text
    assert user_paddock.run("--provider", "claude-code", "--keys", "pass", "--", "true", env=env).returncode == 0


def test_an_authority_in_the_worktree_does_not_count(user_paddock: Paddock, tmp_path: Path) -> None:
    """Nor behind a link there: an agent could have made it, and be the vendor."""
    ca = trustme.CA()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(tls)
    outside, inside = user_paddock.place / "ca.pem", user_paddock.worktree / "ca.pem"
    write = f"cat > {shlex.quote(str(outside))}; cp {outside} {inside}; ln -s {outside} {inside.parent}/link.pem"
    user_paddock.who.run(["sh", "-c", write], stdin=ca.cert_pem.bytes().decode())
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.api = Api(server.server_address[1])
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        option = f"--inject=TOKEN=https://127.0.0.1:{server.api.port}/v1,base=API_URL"
        try:
            for place, served in ((inside, False), (inside.parent / "link.pem", False), (outside, True)):
                env = {"TOKEN": KEY, "SSL_CERT_FILE": str(place)}
                ended = user_paddock.run(option, "--", "sh", "-c", f"{CURL} $API_URL/chat", env=env)
                assert (ended.stdout == "served\n") is served, ended
        finally:
            server.shutdown()
            thread.join()
    assert len(server.api.seen) == 1


def test_a_key_that_travels_in_clear_is_told(user_paddock: Paddock) -> None:
    """Beyond this machine, anybody on the way could read it."""
    option = "--inject=TOKEN=http://clear.example/x"
    assert "goes to clear.example:80 in clear" in user_paddock.run(option, "--", "true", env={"TOKEN": KEY}).stderr


def test_no_file_that_the_jail_could_read_or_make_holds_a_key(user_paddock: Paddock, api: Api) -> None:
    """Nor a link there to another file; nor an authority that the command could have written."""
    worktree, home = user_paddock.worktree, user_paddock.who.home
    line = f"echo secret > {home}/key; echo secret > key; ln -s {home}/key link; mkdir d; ln -s {home} d/up"
    user_paddock.who.run(["sh", "-c", line], cwd=worktree)
    sources = (*(f"file:{worktree}/{name}" for name in ("key", "link", "d/up/key")), "cmd:yes")
    errors = user_paddock.refused_each(*(("run", f"{api.option},from={source}", "--", "true") for source in sources))
    assert {said.reference for said in errors} == {"key-missing"}
    for source, said in zip(sources[:3], errors, strict=False):
        assert "where the command can read it, or could have made it" in said.text, source
        assert "hint: put it in a file elsewhere, such as ~/.config/keys/TOKEN, or in a variable" in said.text, source


def test_a_configuration_that_sets_the_api_has_the_key_passed_and_said(user_paddock: Paddock) -> None:
    """The agent would use that URL, where a phantom is worth nothing; to pass the variable changes nothing."""
    key, home = {"ANTHROPIC_API_KEY": KEY}, user_paddock.who.home
    lines = '[environment]\nset = { ANTHROPIC_BASE_URL = "https://gateway.example" }'
    user_paddock.who.run(["sh", "-c", f"mkdir -p {home}/.config/paddock; cat > {home}/set.toml"], stdin=lines)
    ended = as_claude(user_paddock, SHOWN, options=("--config", f"{home}/set.toml"), env=key)
    assert ended.stdout == f"{KEY} https://gateway.example\n"
    assert "no phantom: your configuration sets ANTHROPIC_BASE_URL" in ended.stderr
    passed = as_claude(user_paddock, SHOWN, options=("--env", "ANTHROPIC_BASE_URL"), env=key)
    assert passed.stdout.startswith("sk-ant-api03-"), passed


def test_a_value_that_the_command_line_gives_is_the_agents(user_paddock: Paddock) -> None:
    """It is meant for the jail."""
    options = ("--env", "ANTHROPIC_API_KEY=given")
    ended = as_claude(user_paddock, SHOWN, options=options, env={"ANTHROPIC_API_KEY": KEY})
    assert ended.stdout == "given\n", ended.stderr


def test_the_vendors_host_is_reached_by_the_phantom_alone(user_paddock: Paddock) -> None:
    """Unless something else of the user's is meant for it: a login, or a key that passes."""
    lookup = "getent hosts api.anthropic.com >/dev/null && echo resolved || echo refused"
    key = {"ANTHROPIC_API_KEY": KEY}
    assert as_claude(user_paddock, lookup, env=key).stdout == "refused\n"
    denials = [json.loads(text) for text in user_paddock.call("denials", "--json").stdout.splitlines()]
    assert [denial["host"] for denial in denials] == ["api.anthropic.com"]
    command = ("--provider", "claude-code", "--", "true")
    explain, ask = ("explain", "--plan", *command), ("why", "api.anthropic.com", *command)
    shown, why = (ended.stdout for ended in user_paddock.each(explain, ask, env=key))
    (line,) = [line for line in shown.splitlines() if line.startswith("key ")]
    assert "ANTHROPIC_API_KEY is a phantom, for GET,HEAD,POST api.anthropic.com:443/v1/messages" in line
    assert "not reached otherwise: api.anthropic.com" in line
    assert KEY not in shown
    assert "it is reached only by the phantom in ANTHROPIC_API_KEY, at the URL in ANTHROPIC_BASE_URL" in why
    assert "to allow it --keys pass" in why
    login = user_paddock.who.home / ".claude/.credentials.json"
    user_paddock.who.run(["sh", "-c", f"mkdir -p {login.parent}; echo '{{}}' > {login}"])
    shown = user_paddock.call(*explain, env=key).stdout
    assert "ANTHROPIC_API_KEY is a phantom" in shown
    assert "not reached otherwise" not in shown


@AS_A_USER
@ONCE
def test_a_budget_ends_what_a_key_is_good_for(paddock: Paddock, api: Api, launch: Launch) -> None:
    """The end says what was used, and what was refused."""
    line = f"for i in 1 2 3 4; do {CURL} -d $(printf %012000d 0) $API_URL/chat; done"
    ended = in_jail(paddock, launch, line, api.option, "--budget", "upload=30000")
    assert ended.stdout.count("served\n") == 2
    assert "the session's budget of 30,000 bytes to send is used up" in ended.stdout
    assert len(api.seen) <= 3  # the third was ended in the middle of its content
    assert "paddock: 3 requests with the key in TOKEN: 0 tokens in, 0 out" in ended.stderr
    assert "paddock: 2 more were refused by the session's budget" in ended.stderr


def test_a_budget_is_for_all_attempts_at_a_session(api: Api) -> None:
    """What is started again goes on from what was used, which is told at the end."""
    need("landlock")
    api.says = json.dumps({"usage": {"input_tokens": 3, "output_tokens": 4}}).encode() + b"\n"
    script = f"for i in 1 2; do {CURL} -d {{}} $API_URL/chat/completions; done; exit 1"
    with served.started(restart_seconds=0.05) as service:
        environment = {"PATH": os.environ["PATH"], "HOME": str(service.paddock.who.home), "TOKEN": KEY}
        service.create("sh", "-c", script, name="again", options=[api.option, "--budget", "tokens=20"],
                       environment=environment, restart={"policy": "on-failure", "most": 2})  # fmt: skip
        over = service.over("again")
        assert over["attempt"] == 3, over
        assert len(api.seen) == 3, service.log("again")
        assert any("used up: 21 used" in line for line in service.log("again"))
        assert "3 requests with the key in TOKEN: 9 tokens in, 12 out" in service.cli("show", "again").stdout


@AS_A_USER
@ONCE
def test_an_answer_that_hides_what_it_took_passes_no_budget(paddock: Paddock, api: Api, launch: Launch) -> None:
    """Gemini's stream that is a list, and what is left where a client has asked for some parts of it alone."""
    told = {"promptTokenCount": 10, "candidatesTokenCount": 2, "thoughtsTokenCount": 30_000, "totalTokenCount": 30_012}
    for says, counted in (([{"usageMetadata": told}], "30,002 out"),
                          ({"usageMetadata": dict(list(told.items())[:2])}, "128,000 out")):  # fmt: skip
        api.seen.clear()
        api.says = json.dumps(says).encode() + b"\n"
        line = f"for i in 1 2 3; do {CURL} -d {{}} $API_URL/chat/m:streamGenerateContent; done"
        ended = in_jail(paddock, launch, line, api.option, "--budget", "tokens=1k")
        assert len(api.seen) == 1, ended.stdout
        assert f"1 request with the key in TOKEN: 10 tokens in, {counted}" in ended.stderr


@AS_A_USER
@BY_BOTH_WAYS
def test_no_way_round_a_budget_reaches_the_vendor(paddock: Paddock, api: Api, launch: Launch) -> None:
    """No path of batches in other letters, no upgraded connection, nothing compressed, nothing whose answer reports no
    tokens; the same in plain words does.
    """
    line = f"""
        {CURL} -d {{}} $API_URL/chat/%62atches; {CURL} -d {{}} $API_URL/chat/bat%43hes\\;x
        {CURL} -d {{}} -H 'Content-Encoding: gzip' $API_URL/chat/completions
        {CURL} -d '{{"background":true}}' $API_URL/chat/completions; {CURL} -d {{}} $API_URL/chat/videos
        {CURL} -H 'Connection: Upgrade' -H 'Upgrade: websocket' $API_URL/chat
        {CURL} -d {{}} $API_URL/%63hat/completions
    """
    ended = in_jail(paddock, launch, line, api.option, "--budget", "tokens=2M")
    assert api.seen == [("/v1/chat", f"Bearer {KEY}"), ("/v1/chat/completions", f"Bearer {KEY}")], ended.stdout
    assert api.upgrades == [None, None]
    assert ended.stdout.count("batches are worked on after the session") == 2
    assert "have the client send it as it is" in ended.stdout
    assert "work in the background" in ended.stdout
    assert "not known to report its tokens" in ended.stdout
    assert ended.stdout.count("ask the user to start Paddock without --budget tokens") == 2
    ended = in_jail(paddock, launch, line, api.option, "--budget", "upload=1M")
    assert ended.stdout.count("served\n") == 5
    assert api.upgrades == [None] * 7
    in_jail(paddock, launch, line, api.option)
    assert api.upgrades[7:] == [None, None, None, "websocket", None]


def test_a_budget_that_nothing_can_hold_is_refused(user_paddock: Paddock) -> None:
    """A login, and a key that passes, are not seen; without an agent there is nothing to be held."""
    command = ("--provider", "claude-code", "--", "true")
    key = {"ANTHROPIC_API_KEY": KEY}
    budget = ("run", "--budget", "tokens=2M")
    login, limit, nobody, no_number = user_paddock.refused_each(
        (*budget, *command), ("run", "--limit", "requests=3", *command), (*budget, "--", "true"),
        ("run", "--budget", "tokens=many", *command),
    )  # fmt: skip
    assert (login.reference, limit.reference, no_number.reference) == ("budget-unheld", "budget-unheld", "usage")
    assert (nobody.reference, "name the agent that it is" in nobody.text) == ("budget-unheld", True)
    for words in (("--budget", "tokens=1", "--keys", "pass", *command),
                  (*budget[1:], *command, "--settings", "ANTHROPIC_API_KEY")):  # fmt: skip
        assert user_paddock.refused("run", *words, env=key).reference == "budget-unheld", words
    assert user_paddock.call(*budget, *command, env=key).returncode == 0
    own = user_paddock.who.home / ".config/paddock/config.toml"
    user_paddock.who.run(["sh", "-c", f"mkdir -p {own.parent}; printf 'schema = 1\n[limits]\ntokens = 9' > {own}"])
    assert user_paddock.run("--", "true").returncode == 0
    own.unlink()
    lines = user_paddock.call("explain", "--plan", "--budget", "tokens=2M", *command, env=key).stdout
    assert "budget    tokens 2,000,000" in lines
    passed = next(line for line in lines.splitlines() if line.startswith("env       "))
    assert "ANTHROPIC_API_KEY" not in passed
    assert "env       ANTHROPIC_API_KEY=phantom  [the key itself stays outside]" in lines


def test_with_a_budget_a_login_opens_no_other_way(user_paddock: Paddock) -> None:
    """Nothing that is not counted reaches the vendor."""
    login = user_paddock.who.home / ".claude/.credentials.json"
    user_paddock.who.run(["sh", "-c", f"mkdir -p {login.parent}; echo '{{}}' > {login}"])
    command = ("--budget", "tokens=2M", "--provider", "claude-code", "--", "true")
    lines = user_paddock.call("explain", "--plan", *command, env={"ANTHROPIC_API_KEY": KEY}).stdout
    assert "not reached otherwise: api.anthropic.com" in lines


def test_a_key_that_is_no_key_is_refused(user_paddock: Paddock) -> None:
    """With what is wrong, before anything starts; `explain` reads what `run` does."""
    wrong: dict[str, Any] = {
        "TOKEN": "there is no URL of an API",
        "TOKEN=x": "must begin with https://",
        "TOKEN=example.com": "must begin with https://",
        "TOKEN=ftp://example.com": "must begin with https://",
        "TOKEN=https://me:pw@example.com": "user name",
        "TOKEN=https://example.com/?a=b": "query",
        "TO KEN=https://example.com": "not a variable name",
        "TOKEN=https://example.com,base=A-B": "not a variable name",
        "TOKEN=https://example.com,heder=x": "none of base=",
        "TOKEN=https://example.com,header=a b": "header=a b is not the name of a header",
        "TOKEN=https://example.com,format=none": "format=none lacks {key}",
        "TOKEN=https://example.com,format=a b {key}": "at most one word",
        "TOKEN=https://example.com,path=v1": "path=v1 does not begin with a slash",
        "TOKEN=https://example.com,header=host": "header=host is not the name",
        "TOKEN=https://example.com,base=LD_PRELOAD": "means something to ordinary programmes",
        "PATH=https://example.com": "means something to ordinary programmes",
        "TOKEN=https://example.com,prefix=a b": "letters, digits",
        "TOKEN=https://example.com,path=/a/../b": "path is not plain",
        "TOKEN=https://example.com,method=get": "not an HTTP method",
        "TOKEN=https://example.com,from=vault:x": "none of env:NAME",
        "TOKEN=https://example.com,base=A,base=B": "given twice",
        "TOKEN=https://exa_mple.com": "",
    }
    verbs = ("run", *["explain"] * (len(wrong) - 1))
    words = (("--inject", text, "--", "true") for text in wrong)
    errors = user_paddock.refused_each(*((verb, *each) for verb, each in zip(verbs, words, strict=True)))
    for (text, why), said in zip(wrong.items(), errors, strict=True):
        assert said.reference == "usage", (text, said.text)
        assert why in said.text, text
        assert "hint: paddock help keys" in said.text, text
