"""The question that a refused host becomes: its bounds, its words, its answers. Pure.

It is asked by a confined process, on behalf of a command that may be hostile. Who shows it believes no more than this
grammar lets through: a host's name in its canonical form, a port, the name of a process in plain letters, quoted. All
else of what a person reads is Paddock's own.
"""

from typing import NamedTuple

from policy.hosts import parse_host

NO, ONCE, SESSION, ALWAYS = "no", "once", "session", "always"
ANSWERS = (NO, ONCE, SESSION, ALWAYS)
"""Once: those who wait. Session: until its end. Always: also in the user's own configuration."""

MEANINGS = {
    NO: "not in this session",
    ONCE: "what waits now",
    SESSION: "until this session ends",
    ALWAYS: "from now on, in your own configuration",
}
"""Of the answers, for people."""

SECONDS = 30.0
"""For which a client is held. Many clients wait longer for a server's first word, few people answer quicker."""

AGAIN_SECONDS = 300.0
"""In which a host is not asked about again that nobody answered for."""

RISK = "whatever the command can read can be sent there"

ASKED, GONE, END, ANSWER, PASS = b"Q", b"G", b"E", b"A", b"P"
"""Kinds of frames. To who asks: a question; the number of one that is over; there are no more for now. From him: a
number and an answer; the number of a question that he cannot ask anybody."""

MOST_BYTES = 1024
"""Of a frame."""

_ELSEWHERE = frozenset(("local", "internal", "localhost", "arpa", "invalid", "onion"))
"""Top-level names that lead to no public server (RFC 6762, RFC 6761)."""
_PROCESS = 15  # TASK_COMM_LEN, without its NUL


class Question(NamedTuple):
    """One question.

    Attributes:
        number: of the session's questions.
        host: canonical name.
        port: 1 to 65535.
        process: who is held, "" when that is not known.
    """

    number: int
    host: str
    port: int
    process: str = ""

    @property
    def where(self) -> str:
        """The rule that an answer adds."""
        return f"{self.host}:{self.port}"

    @property
    def who(self) -> str:
        """The process, quoted: never a word of Paddock's."""
        return f'"{self.process}"' if self.process else "the command"

    def packed(self) -> bytes:
        """The payload of an `ASKED` frame."""
        return f"{self.number} {self.host} {self.port} {self.process}".encode()


def unpacked(payload: bytes) -> Question:
    """What `packed` gave. Raises ValueError for what no question looks like."""
    number, host, port, process = payload.decode("ascii").split(" ")
    question = Question(int(number), host, int(port), process)
    if not is_askable(host) or parse_host(host) != host or not 1 <= question.port <= 65535 or process != plain(process):
        raise ValueError("not a question")
    return question


def is_askable(host: object) -> bool:
    """Whether a host, as `parse_host` gives it, is one that people may be asked about: a name of the public kind."""
    return isinstance(host, str) and "." in host and host.rpartition(".")[2] not in _ELSEWHERE


def plain(process: str) -> str:
    """A process's name in letters that mean nothing to a terminal, a shell or a reader."""
    return "".join(char if char.isascii() and (char.isalnum() or char in "._+-") else "?" for char in process)[
        :_PROCESS
    ]


def answer(number: int, word: str) -> bytes:
    """The payload of an `ANSWER` frame."""
    return f"{number} {word}".encode()


def answered(payload: bytes) -> tuple[int, str]:
    """What `answer` gave. Raises ValueError."""
    number, word = payload.decode("ascii").split(" ")
    if word not in ANSWERS:
        raise ValueError("not an answer")
    return int(number), word
