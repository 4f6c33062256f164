"""How the proxy looks names up: fairly, each once at a time, remembered for a moment and judged each time."""

import json
import socket
import threading
from collections import Counter
from ipaddress import ip_address
from pathlib import Path

import pytest

from launcher.egress import outside
from launcher.egress.gateway import Bounds, Gateway
from launcher.egress.log import Log
from launcher.egress.names import Names as AddressesOfNames
from launcher.egress.outside import Lookups, Upstreams
from launcher.ledger import ledgers
from launcher.loop import running, sleep
from launcher.session import denial_collector
from policy.egress_rules import EgressPolicy
from policy.hosts import Address
from tests.support.proxied import AUTH, PATIENCE, asked, lines, looped, prompt, proxy, run, server
from tests.unit.test_ledger import plan

HERE = ip_address("127.0.0.1")


class Names:
    """Stands for the machine's resolver: `dead.*` waits until the test is over, `gone.*` is not there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.over = threading.Event()
        self.asked: Counter[str] = Counter()
        monkeypatch.setattr(outside, "look_up", self._look_up)

    def _look_up(self, host: str, port: int) -> list[Address]:
        del port
        self.asked[host] += 1
        if host.startswith("dead"):
            self.over.wait(PATIENCE)
        if host.startswith(("dead", "gone")):
            raise socket.gaierror(socket.EAI_NONAME, "not known")
        return [HERE]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    return Names(monkeypatch)


def test_a_zone_that_does_not_answer_holds_up_names_of_its_own_rule_only(names: Names) -> None:
    """However many of its names are asked for, and before: other rules' names come through meanwhile."""

    async def test() -> list[Address]:
        lookups = Lookups(PATIENCE, 30, 3)

        async def ask(host: str) -> None:
            with pytest.raises(OSError, match="not known"):
                await lookups.addresses(host, 443, "*.dead.example")

        tasks = [running().spawn(ask(f"dead{number}.dead.example")) for number in range(300)]
        await sleep(0)
        found = [*await lookups.addresses("good.example", 443, "good.example")]
        assert not any(task.done for task in tasks)
        assert len(names.asked) <= 1 + outside._OF_ONE_RULE
        names.over.set()
        while not all(task.done for task in tasks):
            await sleep(0.01)
        return found

    assert looped(test()) == [HERE]


def test_names_whose_time_is_over_leave_no_queue(names: Names) -> None:
    """Who waits behind a dead zone gives up in time, and what nobody waits for any more is not asked."""

    async def test() -> None:
        lookups = Lookups(0.05, 30, 3)
        for number in range(40):
            with pytest.raises(TimeoutError):
                await lookups.addresses(f"dead{number}.dead.example", 443, "*.dead.example")
        assert len(names.asked) == outside._OF_ONE_RULE
        assert not lookups._threads._waiting
        names.over.set()

    looped(test())


def test_a_name_is_asked_for_once_at_a_time_and_remembered_for_a_moment(names: Names) -> None:
    """Its failure, too; and no more names than there is room for."""

    async def test() -> None:
        lookups = Lookups(PATIENCE, 0.2, 0.1)

        async def ask(host: str) -> None:
            try:
                assert await lookups.addresses(host, 443, "rule") == [HERE]
            except socket.gaierror:
                assert host.startswith("gone")

        tasks = [running().spawn(ask(host)) for host in ("good.example", "gone.example") for _ in range(50)]
        while not all(task.done for task in tasks):
            await sleep(0.01)
        assert names.asked == {"good.example": 1, "gone.example": 1}
        await sleep(0.2)
        await ask("good.example")
        await ask("gone.example")
        assert names.asked == {"good.example": 2, "gone.example": 2}
        lookups.forget("good.example")
        await ask("good.example")
        assert names.asked["good.example"] == 3
        for number in range(2 * outside._REMEMBERED):
            await ask(f"n{number}.example")
        assert len(lookups._answers) == outside._REMEMBERED
        assert not any(task.error for task in tasks)

    looped(test())


def test_names_have_other_addresses_than_those_that_a_grant_names() -> None:
    """Parts of the networks are passed over; ranges around them, and denials, leave them to names."""
    for allowed, denied, first in (
        ((), (), "198.18.0.1"), (("198.18.0.0/24:80",), (), "198.18.1.0"), (("[2001:2::/122]",), (), "198.18.0.64"),
        (("192.0.0.0/2", "[2000::/3]"), ("198.18.0.0/15",), "198.18.0.1"), (("198.18.0.0/15",), (), "None"),
    ):  # fmt: skip
        names = AddressesOfNames(EgressPolicy(("good.example", *allowed), denied))
        found = names.address("good.example", 4)
        assert str(found) == first, allowed
        assert found is None or names.name(found) == "good.example"


@pytest.mark.parametrize(("seconds", "second"), [(60.0, b"200"), (0.0, b"403")])
def test_a_name_that_leads_elsewhere_later_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, second: bytes
) -> None:
    """Once it is looked up again; until then nothing but the address that was judged is reached."""
    answers = [ip_address("127.0.0.1"), ip_address("127.0.0.2")]  # the test's rules have the first one only
    monkeypatch.setattr(outside, "look_up", lambda _host, _port: [answers.pop(0)])

    async def test() -> None:
        async with server(prompt) as to, proxy(tmp_path, Bounds(answer_seconds=seconds)) as port:
            for status in (b"200", second):
                request = f"CONNECT example.com:{to} HTTP/1.1\r\nHost: example.com:{to}\r\n".encode() + AUTH + b"\r\n"
                head = await asked(port, request, end=True)
                assert head.split()[1] == status, head

    run(test())
    assert len(answers) == (1 if seconds else 0)


def test_an_allowed_name_that_leads_nowhere_is_no_refusal(
    tmp_path: Path, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client hears why, by the proxy and by name; the user reads that no rule is missing."""
    words = "is allowed, but its name does not resolve"

    async def test() -> None:
        async with proxy(tmp_path, allow=("gone.example",)) as port:
            head = await asked(port, b"CONNECT gone.example:80 HTTP/1.1\r\nHost: gone.example\r\n" + AUTH + b"\r\n")
            assert head.startswith(b"HTTP/1.1 502 "), head
            assert b"gone.example cannot be resolved: not known" in head

    async def by_name() -> None:  # as the resolver asks
        log = Log(str(tmp_path / "names.jsonl"), 4096)
        gateway = Gateway(EgressPolicy(("gone.example",)), Upstreams({}), log, Bounds())
        assert await gateway.known("gone.example", "gone.example", 1, 2) is False

    run(test())
    looped(by_name())
    logged = [json.loads(line) for line in (tmp_path / "names.jsonl").read_text().splitlines()]
    for content in (lines(tmp_path)[-1], logged[-1]):
        found = ledgers.of_decision(content)
        assert found is not None
        assert found.harmless
        denials = denial_collector.Denials(str(tmp_path), "one", str(tmp_path), plan(net="proxy"), -1)
        denials.add(found)
        monkeypatch.setattr("os.isatty", lambda _fd: True)
        (line,) = denials.summary(quiet=False)
        assert line.startswith(f"gone.example {words}")
        shown = ledgers.paragraph(ledgers.line(found, ledgers.answer(found, plan())))
        assert shown[1].startswith("  failed in   proxy")
        assert any(words in each for each in shown)
        assert not any("to allow" in each or "risk" in each for each in shown)
