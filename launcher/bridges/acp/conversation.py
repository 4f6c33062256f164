"""What a client and an agent say to each other, carried and judged; and what Paddock itself asks the client's user.

A refused host is asked about as a permission (`session/request_permission`), in the session that began last. The
request has an id that nobody can guess and that goes to the client alone, so no message of an agent's is an answer to
it, and the client's answer goes no further than here. What an agent asks itself is the agent's, whatever it says it is.

Confined: the bridge gives up its rights before it makes any of this.
"""

import os
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from launcher import wire
from launcher.bridges.acp import rpc
from launcher.bridges.acp.agent_requests import AgentRequests
from launcher.bridges.acp.client_requests import ClientRequests, Place, SessionDirectories
from launcher.bridges.acp.lines import Carrier, Lines, Poll
from launcher.bridges.acp.rpc import Outcome
from launcher.bridges.acp.rulings import Rules
from launcher.bridges.acp.terminals import Inside
from launcher.session import messages
from policy import asking
from policy.asking import Question
from policy.errors import printable

_OPTIONS = (
    (asking.ONCE, "Once", "allow_once"),
    (asking.SESSION, "This session", "allow_always"),
    (asking.ALWAYS, "Always", "allow_always"),
    (asking.NO, "No", "reject_once"),
)
"""Answers, what they are called, and what kind of them the protocol has."""


class HostQuestions:
    """What the proxy asks, as permissions that the client's user is asked for."""

    def __init__(self, fd: int, allow: Callable[[Question], str]) -> None:
        """Takes over the socket that the proxy asks by; -1 where it asks nobody here.

        Args:
            fd: of it.
            allow: writes down what is allowed for good; returns why it could not, or "".
        """
        self.fd = fd
        self.session = ""
        """The protocol's session that began last."""
        self._allow = allow
        self._decoder = wire.Decoder(asking.MOST_BYTES)
        self._asked: dict[object, Question | None] = {}  # None: it has its answer, and its id stays taken

    def hear(self, tell: Callable[[bytes], None]) -> None:
        """Takes what the proxy has said; `tell` sends the client a line."""
        try:
            data = wire.receive_piece(self.fd, [])
            for kind, payload in self._decoder.feed(data):
                if kind == asking.ASKED:
                    self._ask(asking.unpacked(payload), tell)
        except BlockingIOError:
            return
        except (OSError, ValueError):
            data = b""
        if not data:
            self.close()

    def close(self) -> None:
        """Asks nothing more. Safe to call twice."""
        if self.fd != -1:
            os.close(self.fd)
        self.fd = -1

    def _ask(self, question: Question, tell: Callable[[bytes], None]) -> None:
        if not self.session:
            self._say(asking.PASS, str(question.number).encode())
            return
        number = f"paddock-{os.urandom(16).hex()}"
        self._asked[number] = question
        call = {
            "toolCallId": number,
            "title": f"paddock: send data to {question.where}, for which {question.who} waits? ({asking.RISK})",
            "kind": "fetch",
            "status": "pending",
        }
        options = [
            {"optionId": word, "name": f"{name}: {asking.MEANINGS[word]}", "kind": kind}
            for word, name, kind in _OPTIONS
        ]
        params = {"sessionId": self.session, "toolCall": call, "options": options}
        tell(rpc.encode({"jsonrpc": "2.0", "id": number, "method": "session/request_permission", "params": params}))

    def takes(self, message: dict[str, Any]) -> bool:
        """Whether a message of the client's answers one of these questions; it goes no further then."""
        number = message.get("id")
        if "method" in message or not isinstance(number, str) or number not in self._asked:
            return False
        question, self._asked[number] = self._asked[number], None
        if question is None:
            return True
        result = message.get("result")
        outcome = result.get("outcome") if isinstance(result, dict) else None
        selected = isinstance(outcome, dict) and outcome.get("outcome") == "selected"
        word = outcome.get("optionId") if isinstance(outcome, dict) and selected else None
        if not isinstance(word, str) or word not in asking.ANSWERS:
            self._say(asking.PASS, str(question.number).encode())
            return True
        if word == asking.ALWAYS and (failure := self._allow(question)):
            messages.say(f"paddock: warning: {question.where} is allowed for this session only: {printable(failure)}")
            word = asking.SESSION
        self._say(asking.ANSWER, asking.answer(question.number, word))
        return True

    def _say(self, kind: bytes, payload: bytes) -> None:
        with suppress(OSError):  # the proxy has ended, and refused everything
            wire.send(self.fd, wire.frame(kind, payload))


class Conversation:
    """Carries and judges what a client and an agent say to each other.

    Attributes:
        carrier: says who has ended.
    """

    def __init__(
        self,
        poll: Poll,
        client: tuple[int, int],
        agent: tuple[int, int],
        rules: Rules,
        connect: Callable[[], socket.socket],
        on_session: Callable[[str, Place], None],
        questions: HostQuestions | None = None,
    ) -> None:
        """Begins to carry.

        Args:
            poll: of the loop that hands events over.
            client: descriptors to read what it says and to write to it: owned from now on, different numbers.
            agent: the same of the agent, not blocking.
            rules: what is judged, and how.
            connect: makes a connection to the session's control socket (`exec_client.connect`).
            on_session: called with the id of each new session of the protocol, and where it works.
            questions: what the client's user is asked, besides.
        """
        self._questions = questions or HostQuestions(-1, lambda question: "")

        def opened(session: str, place: Place) -> None:
            self._questions.session = session
            on_session(session, place)

        directories = SessionDirectories(rules.plan, rules.judge, rules.choices.cwd)
        self._inside = Inside(poll, connect, rules, self._tell_agent, self._tell_client)
        up = AgentRequests(rules, directories, self._inside, opened)
        down = ClientRequests(rules, directories, up.awaits, up.opened, self._questions.takes)
        to_agent = Lines(_guarded(down), down.unreadable)
        to_client = Lines(_guarded(up), up.unreadable, last_words=up.last_words)
        self.carrier = Carrier(poll, client, agent, to_agent, to_client)
        self._poll = poll
        if self._questions.fd != -1:
            poll.register(self._questions.fd, select.POLLIN)

    def serve(self, fd: int, events: int) -> bool:
        """Handles what poll said of a descriptor; False when it is none of this object's."""
        if self.carrier.owns(fd):
            self.carrier.serve(fd, events)
        elif fd in self._inside.descriptors:
            self._inside.serve(fd)
        elif fd != -1 and fd == self._questions.fd:
            self._questions.hear(self._tell_client)
            if self._questions.fd == -1:
                self._poll.unregister(fd)
        else:
            return False
        return True

    def close(self) -> None:
        """Closes all descriptors, and ends what runs for the bridge in the jail."""
        self._inside.close()
        self.carrier.close()
        if self._questions.fd != -1:
            self._poll.unregister(self._questions.fd)
        self._questions.close()

    def _tell_agent(self, line: bytes) -> None:
        self.carrier.reply_to_agent(line)

    def _tell_client(self, line: bytes) -> None:
        self.carrier.reply_to_client(line)


def _guarded(judge: Callable[[bytes], Outcome]) -> Callable[[bytes], Outcome]:
    """`judge`, which refuses what it fails at: one line must not end what both sides have built up."""

    def judged(line: bytes) -> Outcome:
        try:
            return judge(line)
        except Exception as error:
            messages.say(f"paddock: refusing a message that could not be checked: {printable(repr(error)[:1000])}")
            return Outcome(back=rpc.error(None, rpc.INTERNAL_ERROR, "paddock could not check this message"))

    return judged
