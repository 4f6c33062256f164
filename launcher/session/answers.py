"""Answers to questions about refused hosts, outside of the jail: who comes to give one, and what "always" writes.

Loaded with the first answer.
"""

import os
import re
import time
import tomllib

from launcher import wire
from launcher.safefs import guarded_files, walk
from launcher.session import exec_client, state
from launcher.session.configuration import user_file
from launcher.session.places import Places, made
from launcher.vcs import written
from policy import asking
from policy.asking import Question
from policy.errors import Refusal
from policy.plan import beneath

_FRESH = 'schema = 1\n\n[network]\nallow_domains = ["{rule}"]\n'
_TABLE = re.compile(r"^[ \t]*\[[ \t]*network[ \t]*\][ \t]*(#.*)?$", re.MULTILINE)
_NEXT = re.compile(r"^[ \t]*\[", re.MULTILINE)
_PATIENCE = 3.0
"""Seconds for a session to say something."""
_LIST = re.compile(r"^[ \t]*allow_domains[ \t]*=[ \t]*\[", re.MULTILINE)


def allow_always(where: Places, worktree: str, question: Question) -> str:
    """Adds a host and port to `network.allow_domains` of the user's own configuration.

    Args:
        where: Paddock's own directories.
        worktree: of the session.
        question: that was answered.

    Returns:
        Why that was not possible, "" when it is done.
    """
    path = os.path.realpath(user_file(where))  # dotfile managers make it a link, which stays
    try:
        for tree in (worktree, *written.trees(where.state, path)):
            if beneath(path, tree):
                return f"{path} is in {tree}, where commands in jails write"
        made(where.config)
        with guarded_files.locked_directory(os.path.dirname(path)):
            content = guarded_files.read(path, follow=False)
            if content is not None and content.owner != os.geteuid():
                return f"{path} belongs to user {content.owner}"
            before = content.data.decode() if content is not None else ""
            after = with_domain(before, question.where)
            if after is None:
                return f'add "{question.where}" to allow_domains under [network] in {path} yourself'
            if after != before:
                walk.replace(path, after.encode(), mode=content.mode & 0o777 if content is not None else 0o600)
    except (OSError, ValueError, Refusal) as error:
        return f"{path} cannot be changed: {getattr(error, 'strerror', None) or error}"
    return ""


def with_domain(text: str, rule: str) -> str | None:
    """A configuration with one more rule in `network.allow_domains`, all else as it was; None where that is unclear.

    The text is changed at one place, and read again: what it means must differ by that rule alone.
    """
    table = tomllib.loads(text)
    network = table.get("network", {})
    rules = network.get("allow_domains", []) if isinstance(network, dict) else None
    if not isinstance(rules, list):
        return None
    if rule in rules:
        return text
    if not text.strip():
        return _FRESH.format(rule=rule)
    header = _TABLE.search(text)
    if header is None:
        end = "" if text.endswith("\n") else "\n"
        changed = f'{text}{end}\n[network]\nallow_domains = ["{rule}"]\n'
    else:
        following = _NEXT.search(text, header.end())
        found = _LIST.search(text, header.end(), following.start() if following else len(text))
        at = found.end() if found else header.end()
        changed = text[:at] + (f'"{rule}", ' if found else f'\nallow_domains = ["{rule}"]') + text[at:]
    expected = {**table, "network": {**network, "allow_domains": [rule, *rules]}}
    try:
        return changed if tomllib.loads(changed) == expected else None
    except ValueError:
        return None


def for_good(where: Places, worktree: str, question: Question) -> str:
    """The answer "always", written down; where that fails, what it is then: for the session."""
    return asking.SESSION if allow_always(where, worktree, question) else asking.ALWAYS


class Client:
    """Who comes to answer a live session's questions, from another terminal or from the service; a context manager.

    Attributes:
        questions: those that are open.
    """

    def __init__(self, where: Places, session: str) -> None:
        """Connects. Refusals: those of `exec_client.connect`; session-deaf."""
        self._where = where
        self._session = session
        self._connection = exec_client.connect(where, session, state.QUESTIONS, state.ANSWERS_PROOF)
        self.questions: list[Question] = []
        try:
            while (frame := self._next())[0] != asking.END:
                if frame[0] == asking.ASKED:
                    self.questions.append(asking.unpacked(frame[1]))
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def answer(self, question: Question, word: str) -> str:
        """Answers one of them. Returns the answer as it was given.

        Raises:
            Refusal: session-deaf.
        """
        if word == asking.ALWAYS:
            about = exec_client.about(self._where, self._session)
            word = for_good(self._where, about[0], question) if about else asking.SESSION
        wire.send(self._connection.fileno(), wire.frame(asking.ANSWER, asking.answer(question.number, word)))
        while self._next() != (asking.GONE, str(question.number).encode()):
            pass
        return word

    def _next(self) -> tuple[bytes, bytes]:
        try:
            deadline = time.monotonic() + _PATIENCE
            kind, payload = wire.receive(self._connection.fileno(), [], deadline=deadline, most=asking.MOST_BYTES)
        except (OSError, ValueError):
            kind, payload = b"", b""
        if not kind:
            raise Refusal("session-deaf", f"the session {self._session} does not answer", context="it is just ending")
        return kind, payload
