"""What Paddock says is English as spoken: what was translated does not come back, and refusals keep their shape.

`python -m tests.support.texts` prints all of it, for reading.
"""

import ast
import re

from launcher.verbs import forms
from tests.support import day, texts
from tests.support.manual import ROOT

INSTEAD = {
    r"(?<![Tt]here )\b(?:is|are) no (?!longer\b|more than\b)": "is not a ...",
    r"\b(?:once more|anew)\b": "again",
    r"\bsomebody|\bwhoever\b|\bnobody else's\b": "another process, another user; anyone who",
    r"\bwithout a word\b|\bsaid nothing\b": "exited without saying why",
    r"\b(?:goes|go) on\b": "continues",
    r"\btak(?:en|es?|ing) over\b(?! writing| from)": "harvested",
    r"\blies? in(?:side)?\b": "is in",
    r"\bleads? (?:to|out of|there|nowhere)\b": "points to; resolves outside",
    r"\b(?:comes?|stands?) twice\b": "is listed twice",
    r"\bas many\b.*\bas (?:it )?may\b": "limit of N reached",
    r"\bcannot be had\b|\bmakes no sense\b": "is not available; is not valid",
    r"\bat stake\b": "would be lost",
    r"\bput right\b|\bmend(?:ed|s)?\b": "repaired, fixed",
    r"\basked for by\b": "requested by",
    r"\b(?:is|are) told\b|\blooked? at\b": "is reported; is checked",
    r"\bhung up\b": "closed the connection",
    r"\bits turn\b|\b(?:turn|time) has come\b|\blives? in the service\b|\bsession lives\b": "started; runs; is live",
    r"\bwaits? where it is\b|\bcommits wait\b": "is kept; are not harvested",
    r"\bstands? on it\b|\blose their ground\b": "builds on it",
    r"\bof the agent's\b": "of the agent",
    r"\bsomething else than\b": "something other than",
    r"\bstands? alone\b": "takes nothing else",
    r"\bhardly needed\b": "probably not needed",
    r"\bnothing does\b": "no option does",
    r"\bwould open\b": "would grant",
}
"""Phrases that do not come back, each with what is said instead."""


def test_what_nobody_would_say_is_not_said() -> None:
    """Neither in a message nor in a help text."""
    forms = (ROOT / "launcher/verbs/forms.txt").read_text(encoding="utf-8").splitlines()
    said = [
        *texts.refusals(),
        *texts.others(),
        *((f"forms.txt:{number}", line) for number, line in enumerate(forms, 1)),
    ]
    every = "\n".join(text for _, text in said)
    come_back = {phrase: instead for phrase, instead in INSTEAD.items() if re.search(phrase, every)}
    found = [
        f"{place}: {text}\n    say instead: {instead}"
        for place, text in said
        for phrase, instead in come_back.items()
        if re.search(phrase, text)
    ]
    assert not found, "\n".join(found)


def test_a_refusal_is_one_line_in_lower_case_without_a_full_stop() -> None:
    """So it can stand behind `paddock:` and in a log; names, values and options begin as they are written.

    Each is among what is printed for reading.
    """
    wrong, told = [], list(texts.refusals())
    names = (
        part.value for _, call in texts.calls() for part in ast.walk(call.args[0]) if isinstance(part, ast.Constant)
    )
    assert {name for name in names if "-" in str(name)} <= {part for name, _ in told for part in name.split(" | ")}
    for reference, text in told:
        message = text.partition(") ")[2].partition("\n    ")[0]
        first = message.partition(" ")[0]
        named = first[:1] in "{-" or first.isupper() or first in ("Git", "Landlock", "Paddock", "Paddock's")
        if not (named or first[:1].islower()) or message.endswith("."):
            wrong.append(f"{reference}: {message}")
    assert not wrong, "\n".join(wrong)


def test_each_verb_is_in_the_day() -> None:
    """So that what it prints is read (`tests/kernel/test_day.py`), sub-commands and all but what units call."""
    typed = [line for line in day.DAY.splitlines() if "paddock" in line]
    for name in forms.texts():
        verb = name.partition(" ")[0]
        if name != "service enable-audit" and not (
            forms.subcommands(verb) and name == verb and not forms.form(name).options
        ):
            assert any(re.search(rf"paddock {name}\b", line) for line in typed), f"no day has paddock {name}"
