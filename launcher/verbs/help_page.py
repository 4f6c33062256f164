"""What `--help` and `--version` print: the overview of all verbs, and one page for each, all in the same form."""

import os
import sys
import textwrap
from difflib import get_close_matches
from importlib import metadata

from launcher import cli
from launcher.verbs import forms
from launcher.verbs.forms import Form, Option
from policy.errors import Refusal

VERB_GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("run", ("run", "exec", "acp", "files")),
    ("look", ("explain", "why", "denials", "learn")),
    ("worktrees and merge", ("worktree", "merge", "prune", "tickets")),
    ("service", ("serve", "ps", "show", "top", "logs", "events", "attach", "stop", "status", "service")),
    ("set up", ("doctor", "providers", "init", "trust")),
)
OPTION_GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("what runs", ("--worktree", "--submodule", "--provider", "--dialect", "--keep-prompts", "--logins")),
    ("files", ("--rw", "--ro", "--deny", "--freeze-root")),
    ("network", ("--net", "--allow-domain", "--deny-domain", "--reach", "--publish")),
    ("git", ("--git", "--strict-handoff", "--sign")),
    ("environment and limits", ("--env", "--limit")),
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
    lines = [
        "usage: paddock VERB ...",
        "",
        "Holds coding agents, or any command, to one git worktree. The kernel enforces it.",
    ]
    for title, verbs in VERB_GROUPS:
        lines += ["", f"{title}:", *(f"  {name:<9} {cli.VERBS[name]}" for name in verbs)]
    lines += [
        "",
        "examples:",
        "  paddock run -- bash                       a shell that cannot leave this worktree",
        "  paddock run -- claude                     a known agent, told its limits in its own flags",
        "  paddock why ~/.ssh/id_ed25519             why it cannot be read, and what would allow it",
        "  paddock worktree add PROJ-17              a branch and a directory for one task",
        "  paddock merge --all --preview             what would conflict",
        "  paddock doctor                            what this machine can enforce",
        "",
        "paddock VERB --help says more. paddock --version prints the version.",
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
    options = forms.LAUNCH if form.name == "run" else form.options
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
    rows = {row.name: row for row in forms.LAUNCH}
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


def version() -> str:
    """The installed version of Paddock."""
    try:
        return metadata.version("paddock-launcher")
    except metadata.PackageNotFoundError:
        return "unknown (not installed)"
