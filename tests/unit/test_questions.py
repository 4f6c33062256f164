"""Clients that are held for a person's answer: folded, bounded, and refused by whatever goes wrong."""

import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher import wire
from launcher.egress import questions as module
from launcher.egress.questions import Questions
from launcher.loop import Signal, running, sleep
from policy import asking
from policy.asking import Question
from policy.egress_rules import EgressPolicy, Request, Verdict
from tests.support.proxied import looped

Work = Coroutine[Signal, None, Any]


class Person:
    """Who is asked, at the other end of a socket."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._decoder = wire.Decoder()
        end.setblocking(False)

    def heard(self) -> list[tuple[bytes, bytes]]:
        """What has come."""
        try:
            return list(self._decoder.feed(self._end.recv(1 << 20)))
        except BlockingIOError:
            return []

    def asked(self) -> list[Question]:
        """The questions of it."""
        return [asking.unpacked(payload) for kind, payload in self.heard() if kind == asking.ASKED]

    def says(self, kind: bytes, payload: bytes) -> None:
        """Sends a frame."""
        self._end.send(wire.frame(kind, payload))

    def answers(self, number: int, word: str) -> None:
        """Answers."""
        self.says(asking.ANSWER, asking.answer(number, word))

    def leaves(self) -> None:
        """Hangs up."""
        self._end.close()


class Scene:
    """Questions in a loop, with one who is asked, and a client."""

    def __init__(self, ends: tuple[socket.socket, ...], seconds: float = 60.0, allow: tuple[str, ...] = ()) -> None:
        self.policy = EgressPolicy(allow, ("denied.example", "narrow.example:80/private"))
        self.questions = Questions(self.policy, None, ("api.vendor.example", "*.covered.example"), seconds=seconds)
        self.questions.join(ends[0])
        self.person = Person(ends[1])
        self._client = ends[2]

    async def judge(self, host: str, port: int = 443, **more: str) -> Verdict:
        """What becomes of a request, by the rules and the person."""
        wanted = Request(host, port, **more)  # type: ignore[arg-type]
        verdict = self.policy.decide(wanted)
        return verdict if verdict.allowed else await self.questions.judge(wanted, verdict, self._client)

    def begin(self, host: str, port: int = 443) -> list[Verdict]:
        """A request that goes on by itself; the list gets its verdict."""
        found: list[Verdict] = []

        async def wait() -> None:
            found.append(await self.judge(host, port))

        running().spawn(wait())
        return found


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, ...]]:
    """Sockets: the proxy's and the person's, and a client's."""
    made = (*socket.socketpair(), *socket.socketpair())
    yield made
    for each in made:
        each.close()


async def turns(count: int = 20) -> None:
    """Lets everybody act."""
    for _ in range(count):
        await sleep(0.001)


def test_many_clients_of_a_host_are_one_question(ends: tuple[socket.socket, ...]) -> None:
    """Once lets in all who wait, and nobody who comes later; the rules stay as they are."""

    async def test() -> None:
        scene = Scene(ends)
        waiting = [scene.begin("a.example") for _ in range(5)]
        await turns()
        (question,) = scene.person.asked()
        assert (question.host, question.port) == ("a.example", 443)
        scene.person.answers(question.number, asking.ONCE)
        await turns()
        assert [found[0] for found in waiting] == [Verdict(True, "asked: once", "")] * 5
        assert scene.person.heard() == [(asking.GONE, str(question.number).encode())]
        assert not scene.policy.decide(Request("a.example", 443)).allowed
        later = scene.begin("a.example")
        await turns()
        assert len(scene.person.asked()) == 1
        assert later == []

    looped(test())


@pytest.mark.parametrize("word", [asking.SESSION, asking.ALWAYS])
def test_a_yes_for_longer_is_a_rule_for_that_port(ends: tuple[socket.socket, ...], word: str) -> None:
    """Another port of the same host is asked about by itself."""

    async def test() -> None:
        scene = Scene(ends)
        first = scene.begin("a.example")
        await turns()
        scene.person.answers(scene.person.asked()[0].number, word)
        await turns()
        assert first == [Verdict(True, f"asked: {word}", "")]
        assert (await scene.judge("a.example")).rule == f"asked: {word}"
        assert scene.policy.names("a.example").allowed
        other = scene.begin("a.example", 22)
        await turns()
        assert [question.port for question in scene.person.asked()] == [22]
        assert other == []

    looped(test())


def test_a_no_holds_for_the_session_and_silence_for_a_while(
    ends: tuple[socket.socket, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On every port. Who is refused hears why."""

    async def test() -> None:
        scene = Scene(ends, seconds=0.05)
        first = scene.begin("no.example")
        await turns(3)
        scene.person.answers(scene.person.asked()[0].number, asking.NO)
        await turns()
        assert first[0].reason == "no rule allows no.example:443; the user was asked, and said no"
        assert first[0].suggestion == "--allow-domain no.example:443"
        assert (await scene.judge("no.example", 80)).reason == "no rule allows no.example:80"
        assert (await scene.judge("slow.example")).reason.endswith("again about this host for 5 minutes")
        assert (await scene.judge("slow.example")).reason.endswith("allows slow.example:443")
        assert len(scene.person.asked()) == 1
        for seconds, again in ((299, 0), (301, 1)):
            real = time.monotonic()
            monkeypatch.setattr(
                module, "time", SimpleNamespace(monotonic=lambda real=real, seconds=seconds: real + seconds)
            )
            scene.begin("slow.example")
            scene.begin("no.example")
            for _ in range(20):
                await sleep(0)
            assert [question.host for question in scene.person.asked()] == ["slow.example"] * again
            monkeypatch.undo()

    looped(test())


def test_an_answer_that_comes_late_holds_for_who_comes_back(ends: tuple[socket.socket, ...]) -> None:
    """An editor shows a question until it is answered."""

    async def test() -> None:
        scene = Scene(ends, seconds=0.01)
        assert not (await scene.judge("late.example")).allowed
        (question,) = scene.person.asked()
        scene.person.answers(question.number, asking.SESSION)
        await turns()
        assert (await scene.judge("late.example")).rule == "asked: session"
        scene.person.answers(question.number, asking.NO)  # once only
        await turns()
        assert (await scene.judge("late.example")).allowed

    looped(test())


@pytest.mark.parametrize(
    ("host", "more"),
    [
        ("denied.example", {}),
        ("narrow.example", {"port": 80}),
        ("some.example", {"port": 80}),
        ("localhost", {}),
        ("api.vendor.example", {}),
        ("www.covered.example", {}),
        ("intranet", {}),
        ("printer.local", {}),
    ],
)
def test_nobody_is_asked_about_what_a_rule_decides(
    ends: tuple[socket.socket, ...], host: str, more: dict[str, int]
) -> None:
    """Nor about names that lead to no public server."""

    async def test() -> None:
        scene = Scene(ends, allow=("GET some.example:80/public",))
        assert not (await scene.judge(host, **more)).allowed  # type: ignore[arg-type]
        assert scene.person.heard() == []

    looped(test())


def test_a_flood_is_refused_and_wears_nobody_out(ends: tuple[socket.socket, ...]) -> None:
    """Of a thousand hosts eight are asked about at a time, twenty in all; the others do not wait."""

    async def test() -> None:
        scene = Scene(ends, seconds=2)
        asked: list[Question] = []
        waiting: list[list[Verdict]] = []
        for number in range(1000):  # in much less time than a question waits
            waiting.append(scene.begin(f"h{number}.example"))
        await turns(5)
        asked += scene.person.asked()
        assert len(asked) == 8
        assert sum(not found for found in waiting) == 8
        for number in range(4):
            waiting += [scene.begin(f"g{number}{each}.example") for each in range(20)]
            await sleep(2.1)
            asked += scene.person.asked()
        assert len(asked) <= 20 + 8
        assert all(found and not found[0].allowed for found in waiting)
        assert not scene.questions.names("more.example")

    looped(test())


def test_a_question_holds_so_many_clients(ends: tuple[socket.socket, ...]) -> None:
    """Further ones are refused at once."""

    async def test() -> None:
        scene = Scene(ends)
        waiting = [scene.begin("a.example") for _ in range(100)]
        await turns()
        assert sum(bool(found) for found in waiting) == 36
        scene.person.answers(scene.person.asked()[0].number, asking.ONCE)
        await turns()
        assert sum(found[0].allowed for found in waiting) == 64

    looped(test())


@pytest.mark.parametrize(
    "wrong",
    [
        lambda person, number: person.leaves(),
        lambda person, number: person.says(asking.PASS, str(number).encode()),
        lambda person, number: person.says(asking.ANSWER, b"yes"),
        lambda person, number: person.says(asking.ANSWER, f"{number} perhaps".encode()),
        lambda person, number: person.says(b"X", b""),
        lambda person, number: person.says(asking.ANSWER, bytes(5000)),
    ],
)
def test_whatever_goes_wrong_with_who_asks_is_a_denial(
    ends: tuple[socket.socket, ...], wrong: Callable[[Person, int], None]
) -> None:
    """At once, and nobody waits for the next one either; an answer to another question changes nothing."""

    async def test() -> None:
        scene = Scene(ends)
        found = scene.begin("a.example")
        await turns()
        (question,) = scene.person.asked()
        scene.person.answers(question.number + 1, asking.SESSION)
        await turns()
        assert found == []
        wrong(scene.person, question.number)
        await turns()
        assert not found[0].allowed
        assert not (await scene.judge("a.example")).allowed

    looped(test())


def test_names_get_addresses_only_where_somebody_can_be_asked(ends: tuple[socket.socket, ...]) -> None:
    """So many, until somebody connects."""

    async def test() -> None:
        scene = Scene(ends)
        assert all(scene.questions.names(f"n{number}.example") for number in range(256))
        assert not scene.questions.names("one-more.example")
        assert scene.questions.names("n1.example")
        assert not scene.questions.connected("n1.example")
        scene.begin("n1.example")
        await turns()
        assert scene.questions.connected("n1.example")
        assert scene.questions.names("one-more.example")
        assert not scene.questions.names("printer.local")
        assert not scene.questions.names("api.vendor.example")
        scene.person.leaves()
        await turns()
        assert not scene.questions.names("n2.example")

    looped(test())


def test_who_comes_to_answer_shows_that_he_lives_in_no_jail(ends: tuple[socket.socket, ...], tmp_path: Path) -> None:
    """Without the proof he hears nothing, and is not heard; with it, what is open, and whatever comes."""

    listener = socket.socket(socket.AF_UNIX)

    async def test() -> None:
        scene = Scene(ends)
        scene.questions = Questions(scene.policy, None, proof=b"secret")
        listener.bind(str(tmp_path / "questions"))
        listener.listen()
        running().spawn(scene.questions.serve(listener))
        waiting = scene.begin("a.example")
        await turns()
        for shown in (b"", b"secre", b"secret!", None):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(tmp_path / "questions"))
                stranger = Person(client)
                if shown is not None:
                    stranger.says(asking.PASS, shown)
                stranger.answers(1, asking.SESSION)
                await turns()
                assert stranger.heard() == []
        assert waiting == []
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "questions"))
            person = Person(client)
            person.says(asking.PASS, b"secret")
            await turns()
            assert [kind for kind, _ in person.heard()] == [asking.ASKED, asking.END]
            person.says(asking.PASS, b"1")  # where nobody is there from the start, somebody else may come
            await turns()
            assert waiting == []
            person.answers(1, asking.SESSION)
            await turns()
            assert waiting == [Verdict(True, "asked: session", "")]
            assert person.heard() == [(asking.GONE, b"1")]
        strangers = []
        for _ in range(12):
            strangers.append(socket.socket(socket.AF_UNIX))
            strangers[-1].connect(str(tmp_path / "questions"))
        await turns()
        gone = 0
        for each in strangers:
            each.setblocking(False)
            try:
                gone += each.recv(1) == b""
            except BlockingIOError:
                continue
            finally:
                each.close()
        assert gone == 4
        await turns()  # it hears that they have left, and closes its ends

    with listener:
        looped(test())
