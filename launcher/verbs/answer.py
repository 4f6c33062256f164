"""`paddock answer`: the questions about refused hosts that sessions ask, and answers to them."""

import os

from launcher import cli
from launcher.session import answers, messages, places, state
from launcher.verbs import table
from policy import asking
from policy.errors import Refusal


def answer(words: list[str], *, as_json: bool) -> int:
    """Shows the open questions, of one session or of all, or answers one. Exit status 0."""
    where = places.places(os.environ)
    if len(words) < 2:
        names = words or state.live_sessions(where)
        _show({name: _open(where, name, quiet=not words) for name in names}, as_json=as_json)
        return 0
    if len(words) != 3 or words[2] not in asking.ANSWERS:
        raise cli.usage(f"an answer is SESSION HOST[:PORT] and one of {', '.join(asking.ANSWERS)}", "answer")
    session, host, word = words
    where_to = host if ":" in host else f"{host}:443"  # which port it is asked for may have changed since it was shown
    with answers.Client(where, session) as client:
        found = [each for each in client.questions if each.where == where_to]
        if not found:
            known = ", ".join(each.where for each in client.questions)
            raise Refusal(
                "question-unknown",
                f"the session {session} asks nothing about {where_to}",
                context=f"open: {known or 'none'}",
                hint="paddock answer shows the questions of all sessions; HOST alone is port 443, for others HOST:PORT",
            )
        given = client.answer(found[0], word)
    if given != word:
        messages.say("paddock: warning: your configuration could not be changed: the answer holds for this session")
    messages.show(f"{found[0].where}: {given}, {asking.MEANINGS[given]}")
    return 0


def _open(where: places.Places, session: str, *, quiet: bool) -> list[asking.Question]:
    try:
        with answers.Client(where, session) as client:
            return client.questions
    except Refusal as refusal:
        if quiet and refusal.reference in ("session-deaf", "session-unknown", "session-not-ours"):
            return []
        raise


def _show(found: dict[str, list[asking.Question]], *, as_json: bool) -> None:
    if as_json:
        table.show_json(
            [{"session": session, **each._asdict()} for session, questions in found.items() for each in questions]
        )
        return
    rows = [(session, each.where, each.process) for session, questions in found.items() for each in questions]
    if not rows:
        messages.show("nothing is asked")
        return
    messages.show("\n".join(table.lines(("SESSION", "HOST", "PROCESS"), rows)))
    messages.show(f"a yes is a risk: {asking.RISK}")
