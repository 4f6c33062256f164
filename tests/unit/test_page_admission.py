"""Who may see the page: each check alone, by an attack that all others let through."""

import _socket
import asyncio
import errno
import json
import os
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher import loopback
from launcher.service.page import admission
from launcher.service.page.admission import HEADERS, MOST_BODY, Admissions, owner_of
from launcher.service.page.listener import take
from policy.errors import Refusal
from tests.support.features import need
from tests.support.paged import PORT, Paged, paged


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Paged]:
    """A page, and a browser that was let in."""
    with paged(tmp_path) as made:
        yield made


def test_a_token_lets_one_browser_in_once(browser: Paged) -> None:
    """The second one learns nothing, and the first one stays."""
    address = browser.admissions.invite(plain=False)
    path = "/enter" + address.partition("/enter")[2]
    first, second = browser.get(path), browser.get(path)
    assert (first.status_code, first.headers["location"]) == (303, "/")
    assert second.status_code == 403
    assert "set-cookie" not in second.headers
    said = first.headers["set-cookie"]
    for word in ("HttpOnly", "SameSite=Strict", "Path=/"):
        assert word in said
    assert "domain" not in said.lower()
    path = "/enter" + browser.admissions.invite(plain=False).partition("/enter")[2]
    led = browser.get(path, headers={"sec-fetch-site": "cross-site"})  # by a file
    assert 'http-equiv="refresh" content="0;url=/"' in led.text
    assert browser.get("/").status_code == 200


def test_tokens_and_sessions_expire(browser: Paged, monkeypatch: pytest.MonkeyPatch) -> None:
    """After their time nobody is let in with them."""
    address = browser.admissions.invite(plain=False)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + admission.TOKEN_SECONDS + 1)
    assert browser.get("/enter" + address.partition("/enter")[2]).status_code == 403
    assert browser.get("/").status_code == 200
    monkeypatch.setattr(time, "monotonic", lambda: now + 2 * admission.IDLE_SECONDS)
    assert browser.get("/").status_code == 403


def test_a_file_that_leads_here_goes_with_its_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is used, when it is too old, when too many others came, and with the service."""
    known = Admissions(PORT)

    def left() -> list[Path]:
        return sorted(tmp_path.iterdir())

    address = known.invite(plain=False)
    path = Path(known.file_of(address, str(tmp_path)))
    assert path.stat().st_mode & 0o777 == 0o600
    assert f'content="0;url={address}"' in path.read_text()
    assert address.partition("token=")[2] not in str(path)
    assert known.enter(address.partition("token=")[2], known.host)
    assert left() == []
    known.file_of(known.invite(plain=False), str(tmp_path))
    for _ in range(admission.MOST_TOKENS):
        known.invite(plain=False)
    assert left() == []
    known.file_of(known.invite(plain=False), str(tmp_path))
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + admission.TOKEN_SECONDS + 1)
    known.sweep()
    assert left() == []
    known.file_of(known.invite(plain=False), str(tmp_path))
    known.close()
    assert left() == []


def test_there_are_few_tokens_and_sessions(browser: Paged) -> None:
    """Whoever asks for many pushes his own oldest out, and memory stays bounded."""
    found = [browser.admissions.invite(plain=False) for _ in range(100)]
    token = found[0].partition("token=")[2]
    assert browser.admissions.enter(token, browser.admissions.host) is None
    for _ in range(admission.MOST_SESSIONS + 3):
        address = browser.admissions.invite(plain=False)
        assert browser.admissions.enter(address.partition("token=")[2], browser.admissions.host)
    assert browser.get("/").status_code == 403


def test_without_a_session_nothing_is_shown(browser: Paged) -> None:
    """Neither a page nor whether there is one; a forged cookie is none."""
    browser.session("secret-name")
    for path in ("/", "/live/sessions", "/sessions/x", "/nothing", "/enter", "/enter?token=", "/static"):
        for cookie in ("", "paddock-page=", "paddock-page=x", f"paddock-page={browser.csrf}", "paddock-page"):
            answer = browser.get(path, headers={"cookie": cookie})
            assert (path, cookie, answer.status_code) == (path, cookie, 403)
            assert "secret-name" not in answer.text


def test_a_name_of_somebody_elses_is_not_answered(browser: Paged) -> None:
    """DNS rebinding: the victim's browser believes that the page is evil.example's own, cookie or not."""
    for host in (
        "evil.example", f"evil.example:{PORT}", f"paddock.localhost:{PORT}", "127.0.0.1", "127.0.0.1:1",
        f"127.0.0.1.evil.example:{PORT}", f"[::1]:{PORT}", f"0.0.0.0:{PORT}", f"127.1:{PORT}",
    ):  # fmt: skip
        answer = browser.get("/", host=host)
        assert (host, answer.status_code) == (host, 403)
        assert "the address is not the page" in answer.text
        token = browser.admissions.invite(plain=True).partition("token=")[2]
        assert (host, browser.get(f"/enter?token={token}", host=host).status_code) == (host, 403)


def test_a_session_is_of_one_host(browser: Paged) -> None:
    """A cookie that another server of this machine was sent is worth nothing under the page's own name, nor back."""
    for host in browser.admissions.plain:
        assert browser.get("/", host=host).status_code == 403
    own = browser.cookie
    browser.enter(plain=True)
    assert browser.get("/", host=f"127.0.0.1:{PORT}").status_code == 200
    assert browser.get("/").status_code == 403
    assert browser.get("/", host=f"localhost:{PORT}").status_code == 403
    assert own != browser.cookie


def test_a_token_is_of_one_kind_of_host(browser: Paged) -> None:
    """A plain address lets nobody in by the page's own name, and the other way round; by its own it still does."""
    name, (plain, local) = browser.admissions.host, browser.admissions.plain
    for is_plain, wrong, right in ((True, (name,), plain), (False, (plain, local, "evil.example"), name)):
        token = browser.admissions.invite(plain=is_plain).partition("token=")[2]
        for host in wrong:
            refused = browser.get(f"/enter?token={token}", host=host)
            assert (refused.status_code, "set-cookie" in refused.headers) == (403, False)
        assert browser.get(f"/enter?token={token}", host=right).status_code == 303


def test_a_service_that_ends_takes_its_cookies_with_it(browser: Paged) -> None:
    """Whoever listens at its port next may be sent one."""
    assert browser.get("/").status_code == 200
    browser.admissions.close()
    assert browser.get("/").status_code == 403


def test_the_name_cannot_be_guessed() -> None:
    """Else a server of an agent's could be visited under it, and be sent the cookie."""
    names = {Admissions(PORT).host for _ in range(100)}
    assert len(names) == 100
    assert all(len(name.partition(".")[0]) >= len("paddock-") + 20 for name in names)


def test_what_comes_from_another_page_changes_nothing(browser: Paged) -> None:
    """Each of the three is enough: origin, fetch metadata, token."""
    local = (f"http://127.0.0.1:{PORT}", f"http://localhost:{PORT + 1}")
    for name, values in (
        ("origin", ("http://evil.example", "null", *local, "")),
        ("sec-fetch-site", ("cross-site", "same-site")),
        ("x-csrf", ("", "x")),
    ):
        for value in values:
            assert (name, value, browser.post("/leave", headers={name: value}).status_code) == (name, value, 403)
            assert browser.get("/").status_code == 200, (name, value)


def test_another_page_cannot_read_by_embedding(browser: Paged) -> None:
    """A page of this machine's, to which the cookie is sent, gets no answer for an image, a script or a frame."""
    for site in ("same-site", "cross-site"):
        for path in ("/", "/live/sessions"):
            assert (site, path, browser.get(path, headers={"sec-fetch-site": site}).status_code) == (site, path, 403)


def test_the_token_of_a_form_is_of_its_session(browser: Paged) -> None:
    """Another session's is as good as none."""
    own = browser.csrf
    cookie = browser.cookie
    browser.enter()
    other = browser.csrf
    assert other != own
    without = {"x-csrf": "", "cookie": f"paddock-page={cookie}"}
    assert browser.post("/leave", {"csrf": other}, headers=without).status_code == 403
    assert browser.post("/leave", {"csrf": own}, headers=without).status_code in (200, 303)
    assert browser.get("/", headers={"cookie": f"paddock-page={cookie}"}).status_code == 403
    assert browser.get("/").status_code == 200


def test_bodies_are_bounded_and_headers_single(browser: Paged) -> None:
    """Before anything is made of them."""
    answer = asyncio.run(browser.ask("POST", "/leave", body=b"x" * (MOST_BODY + 1)))
    assert answer.status_code == 403
    assert "more than" in answer.text


def test_every_answer_has_the_headers(browser: Paged) -> None:
    """Of a page, a file, a refusal: no frame, no script of another's, no address in a Referer, no copy in a cache."""
    for path in ("/", "/nothing", "/static/page.css", "/static/nothing", "/static/../admission.py", "/enter"):
        for cookie in (browser.cookie, ""):
            answer = browser.get(path, headers={"cookie": f"paddock-page={cookie}"})
            for name, value in HEADERS:
                assert answer.headers.get_list(name.decode()) == [value.decode()], (path, name)
            assert "access-control-allow-origin" not in answer.headers, path
            policy = answer.headers["content-security-policy"]
            assert ("unsafe" in policy, "default-src 'none'" in policy) == (False, True), path


def test_what_lies_beside_the_static_files_is_not_served(browser: Paged) -> None:
    """Neither the package's code nor anything else."""
    for path in ("/static/../admission.py", "/static/%2e%2e/admission.py", "/static//etc/passwd", "/static/../../../x"):
        assert browser.get(path).status_code in (403, 404)


# The peer


@pytest.fixture(params=["127.0.0.1", "::1"])
def listening(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    """A server at a loopback address."""
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with socket.create_server((request.param, 0), family=family) as made:
        yield made


def connection(listening: socket.socket) -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection over the loopback interface: who connected, and who was connected to."""
    ours = socket.create_connection(listening.getsockname()[:2])
    theirs, _ = listening.accept()
    return ours, theirs


def test_the_other_end_is_this_users(listening: socket.socket) -> None:
    """As the kernel's own table says."""
    ours, theirs = connection(listening)
    with ours, theirs:
        peer, own = theirs.getpeername()[:2], theirs.getsockname()[:2]
        assert owner_of(peer, own) == os.geteuid()
        assert owner_of((peer[0], 1), own) is None


def test_a_closed_other_end_is_nobodys(listening: socket.socket) -> None:
    """It is user 0's in the table: a stranger who sends and closes at once must not be taken for root."""
    ours, theirs = connection(listening)
    with theirs:
        peer, own = theirs.getpeername()[:2], theirs.getsockname()[:2]
        ours.close()
        assert owner_of(peer, own) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="nobody else can be played")
def test_another_users_end_is_his(listening: socket.socket) -> None:
    """A socket belongs to who made it."""
    child = os.fork()
    if child == 0:
        os.setuid(4_321)
        made = socket.create_connection(listening.getsockname()[:2])
        made.recv(1)
        os._exit(0)
    theirs, _ = listening.accept()
    with theirs:
        assert owner_of(theirs.getpeername()[:2], theirs.getsockname()[:2]) == 4_321
    os.waitpid(child, 0)


# The port: to a browser the page is who listens at any address of its name

TAKERS = {
    "127.0.0.1": (socket.AF_INET, "127.0.0.1"),
    "0.0.0.0": (socket.AF_INET, "0.0.0.0"),
    "::1": (socket.AF_INET6, "::1"),
    "::": (socket.AF_INET6, "::"),
    "mapped": (socket.AF_INET6, "::ffff:127.0.0.1"),
}
MEANS = {
    "alone": (),
    "reuse": ((socket.SOL_SOCKET, socket.SO_REUSEADDR, 1),),
    "share": ((socket.SOL_SOCKET, socket.SO_REUSEADDR, 1), (socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)),
    "device": ((socket.SOL_SOCKET, socket.SO_REUSEADDR, 1), (socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")),
    "free": ((socket.SOL_SOCKET, socket.SO_REUSEADDR, 1), (socket.SOL_IP, 15, 1)),  # IP_FREEBIND
}


def taking(name: str, means: str, port: int) -> socket.socket:
    """A socket of somebody else's, bound to the port; OSError: he cannot."""
    family, address = TAKERS[name]
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        for option in MEANS[means]:
            made.setsockopt(*option)
        made.bind((address, port))
    except OSError:
        made.close()
        raise
    return made


@pytest.mark.parametrize("name", TAKERS)
def test_nobody_else_can_listen_at_the_pages_port(name: str) -> None:
    """At no address that a browser tries, by no option; and a port that somebody has is not taken."""
    mine = take(0)
    port = mine[0].getsockname()[1]
    for means in MEANS:
        with pytest.raises(OSError, match="in use"):
            taking(name, means, port).listen()
    for each in mine:
        each.close()
    with taking(name, "reuse", port) as theirs:
        theirs.listen()
        with pytest.raises(Refusal, match=str(port)) as refused:
            take(port)
        assert refused.value.reference == "page-port"
    for each in take(port):
        each.close()


@pytest.mark.parametrize("name", TAKERS)
def test_who_is_at_the_port_first_cannot_listen_later(name: str) -> None:
    """A socket that is bound and does not listen yet is in nobody's way, until the page does."""
    with taking(name, "reuse", 0) as theirs:
        mine = take(theirs.getsockname()[1])
        with pytest.raises(OSError, match="in use"):
            theirs.listen()
        for each in mine:
            each.close()


MACHINE = """
import fcntl, json, socket, struct, sys
from launcher.service.page.listener import take
from policy.errors import Refusal

def set_to(name, value):
    with open("/proc/sys/net/" + name, "w") as file:
        file.write(value)

with socket.socket() as any:
    fcntl.ioctl(any, 0x8914, struct.pack("16sH14x", b"lo", 0x41))  # SIOCSIFFLAGS, IFF_UP | IFF_RUNNING
"""


def on_a_machine(code: str) -> Any:  # noqa: ANN401  # whatever it prints as JSON
    """What Python code prints in a network namespace of its own."""
    need("userns")
    words = ["unshare", "-rn", sys.executable, "-c", MACHINE + textwrap.dedent(code)]
    ended = subprocess.run(words, capture_output=True, text=True, check=False, env={"PYTHONPATH": os.getcwd()})
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_any_port_is_one_that_is_free_everywhere() -> None:
    """Where the kernel names one at 127.0.0.1 that somebody has at ::1, another is taken; where there is none, none."""
    found = on_a_machine(
        """
        set_to("ipv4/ip_local_port_range", "40000 40007")

        def theirs(*ports):
            return [socket.create_server(("::1", port), family=socket.AF_INET6) for port in ports]

        some = theirs(40000, 40001, 40002)
        found = []
        for _ in range(8):
            mine = take(0)
            found.append([each.getsockname()[1] for each in mine])
            for each in mine:
                each.close()
        others = theirs(40003, 40004, 40005, 40006, 40007)
        try:
            take(0)
        except Refusal as refusal:
            found.append(refusal.reference)
        print(json.dumps(found))
        """
    )
    assert found.pop() == "page-port"
    assert all(ipv4 == ipv6 for ipv4, ipv6 in found)


def test_the_port_is_held_at_an_address_that_appears_later() -> None:
    """Where the interface has no ::1, anybody can hold the port for it; so does the page, which answers there then."""
    found = on_a_machine(
        """
        set_to("ipv6/conf/lo/disable_ipv6", "1")
        mine = take(0)
        port = mine[0].getsockname()[1]

        def tried(port, address="::1"):
            with socket.socket(socket.AF_INET6) as theirs:
                theirs.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                theirs.setsockopt(socket.IPPROTO_IPV6, 78, 1)
                try:
                    theirs.bind((address, port))
                    theirs.listen()
                except OSError as error:
                    return error.strerror
                return "held"

        def connected():
            try:
                socket.create_connection(("::1", port)).close()
            except OSError as error:
                return error.strerror
            return "connected"

        said = [tried(0), tried(0, "::"), tried(port), tried(port, "::"), connected()]
        set_to("ipv6/conf/lo/disable_ipv6", "0")
        said += [tried(port), tried(port, "::"), connected()]
        mine[1].setblocking(True)
        mine[1].accept()
        print(json.dumps(said))
        """
    )
    taken = "Address already in use"
    assert found == ["held", "held", taken, taken, "Cannot assign requested address", taken, taken, "connected"]


def test_only_a_kernel_without_ipv6_has_one_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where this process alone may have no such socket, a filter's doing, others may: the page does not listen."""

    def filtered(family: int, *words: Any) -> _socket.socket:  # noqa: ANN401  # as it takes them
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return _socket.socket(family, *words)

    monkeypatch.setattr(loopback, "_socket", SimpleNamespace(**{**vars(_socket), "socket": filtered}))
    with pytest.raises(Refusal, match="cannot listen") as refused:
        take(0)
    assert refused.value.reference == "page-port"
    monkeypatch.setattr(os, "access", lambda path, _mode: path != "/proc/net/tcp6")
    (only,) = take(0)
    with only:
        assert only.getsockname()[0] == "127.0.0.1"
