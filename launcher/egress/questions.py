"""Refused hosts that wait for a person's answer: held, folded into one question, bounded. The proxy's side.

Only what no rule names is asked about. What a rule denies, an address that may not be dialled, a method or path that a
rule leaves out: nobody is asked, and a yes opens none of it. Whoever cannot be held, and all who are not answered in
time, are refused as without questions.
"""

import hmac
import socket
import time
from collections.abc import Iterable

from launcher import wire
from launcher.egress.log import Witness
from launcher.loop import Signal, Timer, accept, running, sleep
from policy import asking
from policy.asking import Question
from policy.egress_rules import EgressPolicy, Request, Verdict

_MOST_OPEN = 8
_MOST_HELD = 64
"""Questions at the same time, and clients that one holds."""
_MOST_REFUSED = 20
"""Noes and silences of one session: afterwards nobody is asked any more, so that a command cannot wear people out."""
_MOST_ASKED = 200
"""Questions of one session, whatever the answers."""
_MOST_CLIENTS = 8
"""Who have come to answer, at the same time."""
_PAUSE = 0.05
"""Seconds without taking anybody in, when there are no descriptors or no memory."""
_MOST_NAMES = 256
"""Names that get an address in the jail because somebody could be asked about them."""


class _Held:
    """A question that is open: who waits for it, and who could not ask anybody."""

    def __init__(self, question: Question, timer: Timer) -> None:
        self.question = question
        self.timer = timer
        self.waiting: list[Signal] = []
        self.passed: set[_Asker] = set()
        self.answer = ""
        again = f"{asking.AGAIN_SECONDS / 60:g} minutes"
        self.why = f"the user was asked, and did not answer; not asked again about this host for {again}"


class _Asker:
    """A connection to who asks a person; `proven`: he has shown that he lives in no jail, or `stays` from the start."""

    def __init__(self, sock: socket.socket, *, proven: bool) -> None:
        self.sock = sock
        self.proven = self.stays = proven
        self.decoder = wire.Decoder(asking.MOST_BYTES)


class Questions:
    """Of one session. A yes goes into its policy."""

    def __init__(
        self,
        policy: EgressPolicy,
        witness: Witness | None,
        apart: Iterable[str] = (),
        *,
        proof: bytes = b"",
        seconds: float = asking.SECONDS,
    ) -> None:
        """Nobody is asked yet.

        Args:
            policy: gains what is allowed for longer.
            witness: names the process that is held.
            apart: rules for hosts that are reached by phantoms alone: nobody is asked about those.
            proof: what shows that who comes to answer lives in no jail.
            seconds: for which clients are held.
        """
        self._proof = proof
        self._patient = False
        self._policy = policy
        self._apart = EgressPolicy(apart)
        self._witness = witness
        self._seconds = seconds
        self._askers: set[_Asker] = set()
        self._open: dict[tuple[str, int], _Held] = {}
        self._late: dict[int, Question] = {}
        self._not_before: dict[str, float] = {}
        self._names: set[str] = set()
        self._refused = 0
        self._asked = 0

    async def serve(self, listener: socket.socket, *askers: socket.socket) -> None:
        """Takes those in who come to answer, for ever.

        Args:
            listener: where they come.
            askers: who is there from the beginning. Where nobody is, clients wait for whoever comes.
        """
        self._patient = not askers
        for sock in askers:
            self.join(sock)
        listener.setblocking(False)
        while True:
            try:
                sock = await accept(listener)
            except OSError:
                await sleep(_PAUSE)
                continue
            if sum(not asker.stays for asker in self._askers) < _MOST_CLIENTS:
                self.join(sock, proven=False)
            else:
                sock.close()

    def join(self, sock: socket.socket, *, proven: bool = True) -> None:
        """Takes over the socket of who asks people."""
        sock.setblocking(False)
        asker = _Asker(sock, proven=proven)
        self._askers.add(asker)
        running().add_reader(sock.fileno(), lambda: self._hear(asker))

    def names(self, host: str) -> bool:
        """Whether a name that no rule allows gets an address in the jail: who connects to it can be asked about."""
        if not self._would_ask(host) or self._apart.names(host).allowed:
            return False
        if host not in self._names and len(self._names) >= _MOST_NAMES:
            return False
        self._names.add(host)
        return True

    def connected(self, host: str) -> bool:
        """Whether somebody has connected to a name since it got its address."""
        return host not in self._names

    async def judge(self, wanted: Request, refused: Verdict, client: socket.socket) -> Verdict:
        """What becomes of a request that was refused: asked about, or refused all the same."""
        if not isinstance(wanted.host, str):
            return refused
        self._names.discard(wanted.host)
        if refused.rule or not self._would_ask(wanted.host):
            return refused
        if self._apart.decide(Request(wanted.host, wanted.port)).allowed:
            return refused
        held = self._open.get((wanted.host, wanted.port)) or self._begin(wanted.host, wanted.port, client)
        if held is None or len(held.waiting) >= _MOST_HELD:
            return refused
        over = Signal()
        held.waiting.append(over)
        await over
        if held.answer in ("", asking.NO):
            return refused._replace(reason=f"{refused.reason}; {held.why}")
        return Verdict(True, f"asked: {held.answer}", "")

    def _would_ask(self, host: str) -> bool:
        if not asking.is_askable(host) or not (self._patient or any(asker.stays for asker in self._askers)):
            return False
        if any(name == host for name, _ in self._open):
            return True
        fewer = self._refused < _MOST_REFUSED and self._asked < _MOST_ASKED
        return fewer and time.monotonic() >= self._not_before.get(host, 0.0)

    def _begin(self, host: str, port: int, client: socket.socket) -> _Held | None:
        if len(self._open) >= _MOST_OPEN:
            return None
        self._asked += 1
        process = self._witness.of(client).comm if self._witness is not None else ""
        question = Question(self._asked, host, port, asking.plain(process))
        held = _Held(question, running().call_later(self._seconds, lambda: self._settle(held, "")))
        self._open[host, port] = held
        for asker in tuple(self._askers):
            self._tell(asker, asking.ASKED, question.packed())
        return self._open.get((host, port))

    def _settle(self, held: _Held, answer: str) -> None:
        """Ends a question; "": without an answer."""
        question = held.question
        if self._open.pop((question.host, question.port), None) is None:
            return
        held.timer.cancel()
        held.answer = answer
        held.why = "the user was asked, and said no" if answer else held.why
        if answer in ("", asking.NO):
            self._refused += 1
        if not answer:
            self._late[question.number] = question
        self._note(question, answer)
        for asker in tuple(self._askers):
            self._tell(asker, asking.GONE, str(question.number).encode())
        for waiting in held.waiting:
            waiting.set()

    def _note(self, question: Question, answer: str) -> None:
        """Keeps what an answer means for what comes."""
        if answer in (asking.SESSION, asking.ALWAYS):
            self._policy.asked[question.host, question.port] = answer
            self._not_before.pop(question.host, None)
        elif answer != asking.ONCE:
            quiet = asking.AGAIN_SECONDS if not answer else float("inf")
            self._not_before[question.host] = time.monotonic() + quiet

    def _hear(self, asker: _Asker) -> None:
        try:
            data = asker.sock.recv(4096)
            for kind, payload in asker.decoder.feed(data):
                self._take(asker, kind, payload)
        except BlockingIOError:
            return
        except (OSError, ValueError):
            data = b""
        if not data:
            self._leave(asker)

    def _take(self, asker: _Asker, kind: bytes, payload: bytes) -> None:
        """One message of who asks. Raises ValueError for what is none."""
        if not asker.proven:
            if kind != asking.PASS or not self._proof or not hmac.compare_digest(payload, self._proof):
                raise ValueError("it has shown nothing")
            asker.proven = True
            for each in tuple(self._open.values()):
                self._tell(asker, asking.ASKED, each.question.packed())
            self._tell(asker, asking.END, b"")
            return
        if kind == asking.PASS:
            number, word = int(payload), ""
        elif kind == asking.ANSWER:
            number, word = asking.answered(payload)
        else:
            raise ValueError("no such message")
        held = next((held for held in self._open.values() if held.question.number == number), None)
        if held is None:
            if word and (question := self._late.pop(number, None)) is not None:
                self._note(question, word)  # too late for who waited, in time for who comes back
        elif word:
            self._settle(held, word)
        else:
            held.passed.add(asker)
            self._look(held)

    def _look(self, held: _Held) -> None:
        """Ends a question that nobody can put to anybody."""
        if not self._patient and not {asker for asker in self._askers if asker.proven} - held.passed:
            held.why = "nobody could be asked"
            self._settle(held, "")

    def _tell(self, asker: _Asker, kind: bytes, payload: bytes) -> None:
        if not asker.proven:
            return
        frame = wire.frame(kind, payload)
        try:
            if asker.sock.send(frame) == len(frame):
                return
        except OSError:
            pass  # it has left, or does not read
        self._leave(asker)

    def _leave(self, asker: _Asker) -> None:
        if asker in self._askers:
            self._askers.discard(asker)
            running().remove_reader(asker.sock.fileno())
            asker.sock.close()
            for held in tuple(self._open.values()):
                self._look(held)
