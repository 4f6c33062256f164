"""A question about a jail that is not started: launch options, one thing to ask about, perhaps a command."""

import os
from typing import NamedTuple

from launcher import cli
from launcher.session import places, planning
from launcher.verbs import help_page
from policy.errors import Refusal
from policy.launch import Host
from policy.plan import Plan
from policy.verdict import Verdict

ABSENT = "make it first (it does not exist, and only what exists can be granted)"


class Question(NamedTuple):
    """The words of ``paddock VERB [WHAT] [options] [-- COMMAND]``, taken apart."""

    options: cli.Parsed
    what: str | None
    command: list[str]


def parse(argv: list[str], extra: tuple[tuple[str, str, str, str], ...], *, verb: str, one: str) -> Question:
    """Takes the words of a question apart; options may stand before and behind what is asked about.

    Args:
        argv: without programme name and verb.
        extra: options that only this verb has, in the shape of `cli.OPTIONS`.
        verb: for error texts.
        one: what the verb takes one of, for error texts.

    Raises:
        Refusal: usage.
    """
    words, command = argv, ["sh"]
    if "--" in argv:
        cut = argv.index("--")
        words, command = argv[:cut], argv[cut + 1 :] or ["sh"]
    options, rest = cli.parse(words, extra, verb=verb)
    what = rest[0] if rest else None
    if len(rest) > 1:
        more, rest = cli.parse(rest[1:], extra, verb=verb)
        options = joined(options, more)
        if rest:
            raise cli.usage(f"{verb} takes one {one}", verb)
    return Question(options, what, command)


def joined(first: cli.Parsed, second: cli.Parsed) -> cli.Parsed:
    """Both sets of options; lists are put together, else the second wins, also over the contrary in the first."""
    both = dict(first)
    for name, value in second.items():
        both.pop(cli.contrary(name), None)
        known = both.get(name)
        both[name] = known + value if isinstance(known, list) and isinstance(value, list) else value
    return both


def planned(options: cli.Parsed, command: list[str], cwd: str) -> tuple[planning.Planned, Refusal | None]:
    """A plan to answer by, and why no command would start with these options.

    Where a tree can be neither hidden nor frozen, that is what decides about a launch, and not about one path: the
    answer is that of the options with which a command would start.

    Raises:
        Refusal: of another kind.
    """
    where = places.places(os.environ)
    try:
        return planning.make(options, command, cwd, where), None
    except Refusal as refusal:
        if refusal.reference != "exception-in-writable-tree":
            raise
        return planning.make(joined(options, {"--freeze-root": True}), command, cwd, where), refusal


def refused(refusal: Refusal | None) -> dict[str, object]:
    """The same for programmes, beside an answer."""
    return {"refused": None if refusal is None else refusal.as_dict()}


def told(refusal: Refusal | None) -> list[str]:
    """What is said below an answer of the refusal that a launch would meet."""
    if refusal is None:
        return []
    first = f"  note        as with --freeze-root, without which no command starts here: {refusal.message}"
    return [first, *(f"              {hint}" for hint in refusal.hint.splitlines())]


def grantable(found: Verdict, machine: Host) -> Verdict:
    """The same verdict; its hint says so when the path does not exist, which no option can grant."""
    if not found.hint.startswith(("--ro ", "--rw ")) or machine.resolve(found.path) is not None:
        return found
    return found._replace(hint=f"{ABSENT}, then {found.hint}")


LEGEND = (
    "legend    r read, w write, x execute, i device control; what denied and read-only say beats every grant above it",
    "          [source] is where a rule comes from: default is what Paddock ships, else an option, a file, a toolchain",
    "          [shows X]: X is seen there, in place of what is there outside",
    "          protect, report: files that other tools execute later, kept read-only, or told at the end",
    "          @home, ${home}: the private home; @tmp, ${tmp}: temporary files; @git: the private git directory",
)


def plan_lines(plan: Plan) -> list[str]:
    """A plan in words, and what its marks mean."""
    return [*plan.describe(), *LEGEND]


def page(
    verb: str,
    synopsis: str,
    examples: tuple[tuple[str, str], ...],
    options: tuple[help_page.Row, ...],
    statuses: str,
) -> str:
    """The `--help` of a verb that asks."""
    launch = tuple(option for option in cli.without_unused() if option[0] != "--verbose")
    return help_page.of_verb(verb, synopsis, examples, options=options, launch=launch, statuses=statuses)
