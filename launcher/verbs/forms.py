"""The command line forms of all verbs, as `forms.txt` has them: what they take, their help, and the function they call.

`paddock run` alone is parsed without this table, because it may load almost nothing; its options are in `cli.OPTIONS`.
"""

import functools
import gc
import math
import os
import re
import sys
import textwrap
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from launcher import cli
from policy.errors import EXIT_REFUSED, Refusal

MODULES = {
    "explain": "why",
    "init": "trust",
    **dict.fromkeys(("show", "events", "stop", "status"), "ps"),
}
"""Verbs that share the module of another one."""

PARAMETERS = {
    "--json": "as_json",
    "--from": "start_at",
    "--for": "users",
    "--all": "every",
    "--list": "show_list",
    "--preview": "forecast",
}
"""Options whose own name would hide something else in the function that takes them."""

DIRECTORY, FILE = "DIR", "FILE"
"""How values are shown that are paths: no link that may be an agent's leads one elsewhere (`_unbent`)."""

_OPTION = re.compile(r"(--[a-z-]+)(?: (-\w))?(?: ([^\s{]+?)(\.\.\.)?)?(?: \{([^}]*)\})?  +(.*)")
_OPERAND = re.compile(r"(\[?[A-Z|]+\]?(?:\.\.\.)?|[a-z]+(?:\|[a-z]+)+)  +(.*)")
_RANGE = re.compile(r"([\d.]*)\.\.([\d.]*)")


class Option(NamedTuple):
    """An option. The first four fields are those of a row of `cli.OPTIONS`."""

    name: str
    kind: str
    metavar: str
    text: str
    short: str = ""
    number: str = ""
    """"int" or "float" where the value is one."""

    least: float | None = None
    most: float | None = None
    default: str | None = None

    @property
    def choices(self) -> list[str]:
        """The values that there are, when the metavar lists them."""
        return self.metavar.split("|") if "|" in self.metavar and self.metavar.islower() else []

    @property
    def about(self) -> str:
        """What help says of it."""
        if self.kind == cli.SWITCH:
            return f"{self.text}; {cli.contrary(self.name)} overrides the configuration"
        facts = []
        if "(default" not in self.text:
            facts += [f"default: {self.default}"] if self.default is not None else []
            facts += [f"{self.least or 0:.9g} to {self.most:.9g}"] if self.most is not None else []
        facts += [f"short: {self.short}"] if self.short else []
        text = f"{self.text} ({', '.join(facts)})" if facts else self.text
        return text + ("; repeatable" if self.kind == cli.MANY else "")

    def value(self, given: str, verb: str) -> str | int | float:
        """A value as the verb's function takes it.

        Raises:
            Refusal: usage.
        """
        if self.choices and given not in self.choices:
            raise cli.usage(f"{self.name} is one of {', '.join(self.choices)}, not {given}", verb)
        if not self.number:
            return _unbent(self.metavar, given)
        try:
            found = int(given) if self.number == "int" else float(given)
        except ValueError:
            found = math.nan
        least = -math.inf if self.least is None else self.least
        if not least <= found <= (math.inf if self.most is None else self.most):
            what = "seconds" if self.metavar == "SECONDS" else "a whole number" if self.number == "int" else "a number"
            bounds = f" from {self.least or 0:.9g}" if self.least is not None or self.most is not None else ""
            bounds += f" to {self.most:.9g}" if self.most is not None else ""
            raise cli.usage(f"{self.name} takes {what}{bounds}, not {given}", verb)
        return found


def _unbent(metavar: str, word: str) -> str:
    """A value that was given, a directory's as its canonical path; refused behind a link that may be an agent's.

    Refusals: worktree-behind-link.
    """
    if metavar not in (DIRECTORY, FILE) or (metavar == FILE and word == "-"):
        return word
    from launcher.session import places
    from launcher.vcs import worktree_words

    found = worktree_words.directory(word, places.current_directory())
    return found if metavar == DIRECTORY else word


LAUNCH = tuple(Option(*row) for row in cli.OPTIONS)
DECIDING = tuple(row for row in LAUNCH if row.name not in cli.UNUSED)
"""The launch options that mean something where nothing is launched for its own sake."""

_OF_RUN = {
    "all": tuple(row for row in LAUNCH if row.name not in cli.OF_NEW),
    "deciding": DECIDING,
    "asking": tuple(row for row in DECIDING if row.name != "--verbose"),
}


class Form(NamedTuple):
    """A verb, or a sub-command.

    Attributes:
        name: ``ps``, or ``worktree add``.
        summary: what lists of verbs say of it; "" for what no list has.
        usage: its synopsis, where the verb parses its words itself.
        about: paragraphs, the first a sentence on what it does.
        operands: (name as the synopsis shows it, help).
        options: its own.
        launch: options of `paddock run` that it takes too.
        examples: (command line, what it does).
        statuses: a paragraph on exit statuses below the examples.
    """

    name: str
    summary: str
    usage: str
    about: tuple[str, ...]
    operands: tuple[tuple[str, str], ...]
    options: tuple[Option, ...]
    launch: tuple[Option, ...]
    examples: tuple[tuple[str, str], ...]
    statuses: str

    @property
    def synopsis(self) -> str:
        """What follows on the command line, for its own help."""
        words = ["[options]"] if self.options else []
        return self.usage or " ".join([*words, *(name for name, _ in self.operands)])

    @property
    def rows(self) -> tuple[Option, ...]:
        """Every option that it takes."""
        return (*self.options, *self.launch)


@functools.cache
def texts() -> dict[str, list[str]]:
    """What `forms.txt` says of each form, row by row: a line that begins with spaces continues the one before."""
    content = Path(__file__).with_name("forms.txt").read_text(encoding="utf-8")
    sections = (section.partition("\n") for section in content.removeprefix("== ").split("\n== "))
    return {name: re.sub(r"\n +", " ", body).splitlines() for name, _, body in sections}


@functools.cache
def form(name: str) -> Form:
    """A verb, or a sub-command, with all that the table says of it."""
    fields = {"summary": cli.VERBS.get(name, ""), "usage": ""}
    paragraphs = [""]
    operands: list[tuple[str, str]] = []
    options: list[Option] = []
    launch: tuple[Option, ...] = ()
    examples: list[tuple[str, str]] = []
    at_end = 0
    for line in texts()[name]:
        key, _, value = line.partition(": ")
        if line.startswith("$ "):
            command, _, meaning = line[2:].partition("  # ")
            examples.append((command, meaning))
            at_end = at_end or len(paragraphs)
        elif found := _OPTION.fullmatch(line):
            options.append(_option(*found.groups(default="")))
        elif found := _OPERAND.fullmatch(line):
            operands.append((found[1], found[2]))
        elif key in fields:
            fields[key] = value
        elif key == "options of run":
            launch = _OF_RUN[value]
        elif key == "options of acp":
            options += form("acp").options
            launch = form("acp").launch
        elif line:
            paragraphs[-1] = f"{paragraphs[-1]} {line}".lstrip()
        elif paragraphs[-1]:
            paragraphs.append("")
    written = [text for text in paragraphs if text]
    statuses = written.pop() if at_end and len(written) > at_end - 1 else ""
    return Form(name, about=tuple(written), operands=tuple(operands), options=tuple(options), launch=launch,
                examples=tuple(examples), statuses=statuses, **fields)  # fmt: skip


def _option(name: str, short: str, metavar: str, many: str, facts: str, text: str) -> Option:
    known: dict[str, str | float | None] = {"number": "", "default": None}
    for fact in facts.split():
        if bounds := _RANGE.fullmatch(fact):
            known |= {side: float(text) for side, text in zip(("least", "most"), bounds.groups(), strict=True) if text}
        elif fact.startswith("="):
            known["default"] = fact[1:]
        else:
            known["number"] = fact
    kind = cli.MANY if many else cli.ONE if metavar else cli.FLAG
    return Option(name, kind, metavar, text, short, **known)  # type: ignore[arg-type]  # as the table has them


def subcommands(verb: str) -> dict[str, str]:
    """Name and summary of each sub-command of a verb."""
    known = (name.partition(" ") for name in texts())
    found = {word: form(f"{first} {word}").summary for first, _, word in known if first == verb and word}
    return {word: summary for word, summary in found.items() if summary}


PAGED = ("denials", "explain", "logs", "merge status", "tickets show", "worktree status")
"""What can be long goes through the user's pager, as the pages of the manual do (`launcher.verbs.style`)."""


def call(words: list[str]) -> int:
    """Runs a command line that begins with a verb other than `run`; returns its exit status.

    Raises:
        Refusal: usage; and whatever the verb refuses.
    """
    name, argv = words[0], words[1:]
    known = subcommands(name)
    if argv and f"{name} {argv[0]}" in texts():
        name, argv = f"{name} {argv[0]}", argv[1:]
    elif known and not form(name).options:
        if not argv or argv[0] in ("-h", "--help", "help"):
            print(of_subcommands(form(name), known))
            return 0 if argv else EXIT_REFUSED
        raise unknown_subcommand(name, argv[0], tuple(known))
    taken = form(name)
    if taken.usage:
        from launcher.verbs import style

        paged = name in PAGED and "--json" not in argv
        return style.paged(lambda: function(name)(argv)) if paged else function(name)(argv)
    before = argv[: argv.index("--")] if "--" in argv else argv
    if "--help" in before or "-h" in before:
        return show_help(name)
    options, operands = cli.parse(argv, verb=name, options=taken.rows, mixed=True, empty=True)
    given, operand = values(taken, options), _operands(taken, operands)
    if name in PAGED and options.keys().isdisjoint(("--json", "--follow")):
        from launcher.verbs import style

        return style.paged(lambda: function(name)(*operand, **given))
    return function(name)(*operand, **given)


def function(name: str) -> Callable[..., int]:
    """What a form calls: the function of its name, in its verb's module."""
    verb = name.partition(" ")[0]
    own = name.replace(" ", "_").replace("-", "_")
    found: Callable[..., int] = getattr(__import__(f"launcher.verbs.{MODULES.get(verb, verb)}", fromlist=[own]), own)
    gc.freeze()  # nothing of what was imported is garbage
    gc.enable()  # the `paddock` script has switched it off
    return found


def show_help(name: str) -> int:
    """Prints what ``paddock VERB --help`` says; exit status 0."""
    print(of_verb(form(name)))
    return 0


def values(taken: Form, options: cli.Parsed) -> dict[str, Any]:
    """The value of each option of a form's own, by the name of the parameter that takes it.

    Raises:
        Refusal: usage: one is no number, or none of those that there are.
    """
    found: dict[str, Any] = {}
    for row in taken.options:
        given = options.get(row.name, row.default)
        parameter = PARAMETERS.get(row.name, row.name[2:].replace("-", "_"))
        if row.kind == cli.FLAG:
            found[parameter] = bool(given)
        elif row.kind == cli.MANY:
            found[parameter] = [row.value(each, taken.name) for each in given] if isinstance(given, list) else []
        else:
            found[parameter] = row.value(given, taken.name) if isinstance(given, str) else None
    return found


def _operands(taken: Form, words: list[str]) -> list[str | list[str] | None]:
    """The operands as the verb's function takes them: a word or None, or a list."""
    name = taken.operands[0][0] if taken.operands else ""
    if not words and name and not name.startswith("["):
        listed = "paddock ps --all lists the sessions; " if name.startswith("SESSION") else ""
        raise Refusal("usage", f"{name.removesuffix('...')} is missing", hint=f"{listed}paddock {taken.name} --help")
    if name.endswith("..."):
        return [words]
    if len(words) > (1 if name else 0):
        raise cli.usage(f"unexpected argument {words[-1]}", taken.name)
    words = [_unbent(name.strip("[]"), word) for word in words]
    if name.islower() and words[0] not in name.split("|"):
        raise cli.usage(f"{words[0]} is not one of {', '.join(name.split('|'))}", taken.name)
    return [words[0] if words else None] if name else []


def joined(first: cli.Parsed, second: cli.Parsed) -> cli.Parsed:
    """Both sets of options; lists are put together, else the second wins, also over the contrary in the first."""
    both = dict(first)
    for name, value in second.items():
        both.pop(cli.contrary(name), None)
        known = both.get(name)
        both[name] = known + value if isinstance(known, list) and isinstance(value, list) else value
    return both


# What `--help` and `--version` print: the overview of all verbs, and one page for each, all in the same form.

VERB_GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("run", ("run", "exec", "acp", "files")),
    ("look", ("explain", "why", "denials", "answer", "learn")),
    ("worktrees and merge", ("worktree", "merge", "prune", "tickets", "batch")),
    ("service", ("serve", "ps", "show", "top", "logs", "events", "attach", "stop", "page", "status", "service")),
    ("set up", ("doctor", "selftest", "providers", "init", "trust", "completion")),
)
OPTION_GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "what runs",
        (
            "--worktree",
            "--directory",
            "--submodule",
            "--provider",
            "--dialect",
            "--keep-prompts",
            "--logins",
            "--bring",
        ),
    ),
    ("a worktree of its own", ("--new", "--from", "--copy", "--merge", "--rm")),
    ("files", ("--rw", "--ro", "--review", "--cow", "--root", "--deny", "--freeze-root")),
    (
        "network",
        (
            "--net",
            "--allow-domain",
            "--deny-domain",
            "--reach",
            "--publish",
            "--ask",
            "--keys",
            "--inject",
            "--proxy-env",
        ),
    ),
    ("git", ("--git", "--branch-policy", "--strict-handoff", "--sign")),
    ("environment and limits", ("--env", "--limit", "--budget")),
    ("the jail", ("--backend", "--config")),
    ("the session", ("--session", "--supervised", "--detach", "--report", "--dry-run", "--quiet", "--verbose")),
)

STATUSES = (
    "Exit status: the command's own; 128+N when a signal N ended it; 125 when paddock refused or failed, 126 when "
    "the command cannot be executed, 127 when it is not found."
)
_LEFT = 30
"""Columns of an option, with what surrounds it; a longer one stands on a line of its own."""
_NARROWEST, _WIDEST = 60, 100


def overview() -> str:
    """What `paddock --help` prints."""
    from launcher.verbs import pages

    lines = [
        "usage: paddock VERB ...",
        "",
        "Holds coding agents, or any command, to one git worktree. The kernel enforces it.",
    ]
    for title, verbs in VERB_GROUPS:
        lines += ["", f"{title}:", *(f"  {name:<10} {cli.VERBS[name]}" for name in verbs)]
    lines += [
        "",
        "examples:",
        "  paddock run -- bash                       a shell that cannot leave this worktree",
        "  paddock run -- claude                     a known agent, with its limits in its own flags",
        "  paddock why ~/.ssh/id_ed25519             why it cannot be read, and what would allow it",
        "  paddock worktree add PROJ-17              a branch and a directory for one task",
        "  paddock merge --all --preview             what would conflict",
        "  paddock doctor                            what this machine can enforce",
        "",
        "paddock VERB --help says more, and paddock --version prints the version.",
        *_wrapped(f"paddock help PAGE is the manual: {', '.join(pages.names())}."),
    ]
    return "\n".join(lines)


def of_subcommands(form: Form, known: dict[str, str]) -> str:
    """The page of a verb that has sub-commands, each with its summary."""
    width = max(map(len, known))
    lines = [f"usage: paddock {form.name} SUBCOMMAND ...", "", *form.about, "", "subcommands:"]
    lines += [f"  {name:<{width}}  {summary}" for name, summary in known.items()]
    return "\n".join([*lines, *_examples(form.examples), "", f"paddock {form.name} SUBCOMMAND --help says more."])


def unknown_subcommand(verb: str, word: str, known: tuple[str, ...]) -> Refusal:
    """The Refusal for a sub-command that does not exist, with the nearest one that does."""
    near = get_close_matches(word, known, n=1)
    return Refusal(
        "usage",
        f"paddock {verb} has no {word}",
        context=f"did you mean {near[0]}?" if near else "subcommands: " + ", ".join(known),
        hint=f"paddock {verb} --help",
    )


def of_verb(form: Form) -> str:
    """The page of a verb, or of a sub-command."""
    options = LAUNCH if form.name == "run" else form.options
    column = min(
        _LEFT,
        max((len(left) + 4 for left in (*(name for name, _ in form.operands), *map(notation, options))), default=0),
    )
    lines = _wrapped(f"usage: paddock {form.name} {form.synopsis}", hanging=7)
    for paragraph in form.about:
        lines += ["", *_wrapped(paragraph)]
    if form.operands:
        lines += ["", "arguments:", *_entries(form.operands, column)]
    for title, rows in grouped() if form.name == "run" else (("options", options),) if options else ():
        lines += ["", f"{title}:", *_entries(tuple((notation(row), row.about) for row in rows), column)]
    if form.launch:
        lines += ["", *_wrapped("and of the options of `paddock run`, which `paddock run --help` explains:")]
        lines += [f"  {line}" for line in _wrapped("  ".join(row.name for row in form.launch), narrower=2)]
    lines += _examples(form.examples)
    if form.usage:
        lines += ["", *_wrapped(form.statuses or STATUSES)]
    return "\n".join(lines)


def grouped() -> tuple[tuple[str, tuple[Option, ...]], ...]:
    """The options of `paddock run` under the titles of `OPTION_GROUPS`."""
    rows = {row.name: row for row in LAUNCH}
    return tuple((title, tuple(rows[name] for name in names)) for title, names in OPTION_GROUPS)


def notation(row: Option) -> str:
    """An option and its value as help and manuals show it: ``--ro PATH``."""
    return f"{row.name} {row.metavar}".rstrip()


def _examples(examples: tuple[tuple[str, str], ...]) -> list[str]:
    lines = ["", "examples:"] if examples else []
    for command, meaning in examples:
        lines += [f"  {command}", f"      {meaning}"]
    return lines


def _entries(rows: tuple[tuple[str, str], ...], column: int) -> list[str]:
    lines: list[str] = []
    for left, text in rows:
        beginning, *rest = _wrapped(text, narrower=column)
        if len(left) + 4 > column:
            lines += [f"  {left}", f"{'':<{column}}{beginning}"]
        else:
            lines.append(f"  {left:<{column - 2}}{beginning}")
        lines += [f"{'':<{column}}{line}" for line in rest]
    return lines


def _wrapped(text: str, *, narrower: int = 0, hanging: int = 0) -> list[str]:
    width = _width() - narrower
    return textwrap.wrap(
        text, width, subsequent_indent=" " * hanging, break_long_words=False, break_on_hyphens=False
    ) or [""]


def _width() -> int:
    """Columns of the terminal, when standard output is one."""
    try:
        columns = os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):  # no terminal; no descriptor
        columns = _WIDEST
    return min(_WIDEST, max(_NARROWEST, columns))
