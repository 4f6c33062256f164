"""What `docs/` and the man page say of options, verbs, promises and agents, rendered from the programme's own tables.

`python -m tests.support.manual` (or `make docs`) writes it into them; a test compares.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from launcher import cli
from launcher.verbs import forms
from launcher.verbs.forms import Form
from policy import promises
from policy.errors import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, EXIT_REFUSED
from policy.providers.registry import load_registry

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
MAN_PAGE = ROOT / "launcher" / "paddock.1"
PAGES = (README, *sorted((ROOT / "docs").glob("*.md")))
"""What users read beside the man page and `--help`."""


def promise_table() -> str:
    """The promises as a Markdown table, one column per backend, with the reasons below."""
    lines = ["| row | promise | " + " | ".join(promises.BACKENDS) + " |", "|---|---|" + "---|" * len(promises.BACKENDS)]
    reasons: list[str] = []
    for name, promise, _ in promises.ROWS:
        cells = []
        for backend in promises.BACKENDS:
            verdict, reason = promises.verdict(name, backend)
            cells.append("held" if verdict == promises.HELD else "**not held**")
            if reason:
                reasons.append(f"- `{name}` on {backend}: {reason}.")
        lines.append(f"| `{name}` | {promise} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *reasons])


def option_table() -> str:
    """The launch options as a Markdown table, in groups."""
    lines = ["| option | meaning |", "|---|---|"]
    for title, rows in forms.grouped():
        lines.append(f"| **{title}** | |")
        for row in rows:
            shown = forms.notation(row).replace("|", "\\|")
            lines.append(f"| `{shown}` | {row.about} |")
    return "\n".join(lines)


def verb_table() -> str:
    """The verbs as a Markdown table, in groups."""
    lines = ["| verb | what it does |", "|---|---|"]
    for title, verbs in forms.VERB_GROUPS:
        lines.append(f"| **{title}** | |")
        lines += [f"| `paddock {name}` | {cli.VERBS[name]} |" for name in verbs]
    return "\n".join(lines)


def provider_table() -> str:
    """The built-in providers as a Markdown table."""
    lines = ["| provider | agent | recognised by | own sandbox, own questions |", "|---|---|---|---|"]
    known = load_registry()
    for name in known.names():
        spec = known.spec(name)
        assert spec is not None
        words = ", ".join(f"`{word}`" for word in (*spec.commands, *spec.adapters) if not word.startswith("@"))
        off = [
            " ".join((*(f"`{key}={value}`" for key, value in switch.environment.items()),
                      *((f"`{' '.join(switch.arguments)}`",) if switch.arguments else ())))
            or "none"
            for switch in (spec.native.sandbox_off, spec.native.prompts_off)
        ]  # fmt: skip
        lines.append(f"| `{name}` | {spec.title} | {words} | {'; '.join(off)} |")
    return "\n".join(lines)


TABLES = {
    "docs/agents.md": {"providers": provider_table},
    "docs/reference.md": {"verbs": verb_table, "options": option_table},
    "docs/security.md": {"promises": promise_table},
}
"""The pages that hold generated tables, and the functions that make these."""


def documentation() -> str:
    """README and all pages of `docs/`, one after the other."""
    return "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


def with_tables(page: str, text: str) -> str:
    """`text`, which is that of `page`, with each of its generated tables made anew between the table's two marks."""
    for name, render in TABLES[page].items():
        before, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- /{name} -->\n")
        if not begin or not end:
            raise ValueError(f"{page} has no table {name}")
        text = before + begin + render() + "\n" + end + after
    return text


def _roff(text: str) -> str:
    """Plain text for roff(7): backslashes, dashes of options, and lines that begin like requests."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"(?m)^([.'])", r"\\&\1", text)


def described() -> Iterator[Form]:
    """Every command line form: ``run``, ``worktree add`` and so on, as its own `--help` has it."""
    for verb in cli.VERBS:
        known = forms.form(verb)
        words = forms.subcommands(verb)
        if not words or known.options:
            yield known
        yield from (forms.form(f"{verb} {word}") for word in words)


def synopsis(form: Form) -> str:
    """What follows a form on the command line, each option named."""
    words = [f"[{forms.notation(row)}]" + ("..." if row.kind == cli.MANY else "") for row in form.options]
    return form.usage or " ".join([*words, *(name for name, _ in form.operands)])


def _notes(form: Form) -> list[str]:
    """What the manual adds on a verb that takes a command."""
    notes = [
        *form.about[1:],
        *(["It takes the options of run, too, as far as they decide anything."] if form.launch else []),
    ]
    return [".PP", "\n.PP\n".join(map(_roff, notes))] if form.usage and notes else []


def _definitions(rows: Iterator[tuple[str, str, str]]) -> list[str]:
    """(bold, italic, text) as a list of roff(7)."""
    lines = []
    for bold, italic, text in rows:
        value = f" \\fI{_roff(italic)}\\fR" if italic else ""
        lines += [".TP", f"\\fB{_roff(bold)}\\fR{value}", _roff(text + ".")]
    return lines


def man_page() -> str:
    """The man page paddock(1)."""
    out = [
        ".\\\" Made by tests/support/manual.py from the programme's own tables. Do not edit.",
        ".TH PADDOCK 1",
        ".nh",
        ".ad l",
        ".SH NAME",
        "paddock \\- hold a command to its git worktree",
        ".SH SYNOPSIS",
    ]
    known = list(described())
    for form in known:
        out += [f".B paddock {form.name}", _roff(synopsis(form)), ".br"]
    out += [
        ".SH DESCRIPTION",
        "Paddock starts a command in a jail that the kernel enforces: it can read and write its git worktree,",
        "a private home and private temporary directories, read the system's programmes, and nothing else.",
    ]
    for title, verbs in forms.VERB_GROUPS:
        out += [f".SH {title.upper()}"]
        for form in known:
            if form.name.partition(" ")[0] not in verbs:
                continue
            out += [f".SS paddock {form.name}", _roff(form.summary[0].upper() + form.summary[1:] + ".")]
            if form.name == "run":
                out += ["The options are below, under OPTIONS OF RUN."]
            out += _notes(form)
            out += _definitions((name, "", text) for name, text in form.operands)
            out += _definitions((row.name, row.metavar, row.about) for row in form.options)
    out += [".SH OPTIONS OF RUN"]
    for title, rows in forms.grouped():
        out += [f".SS {title.capitalize()}"]
        out += _definitions((row.name, row.metavar, row.about) for row in rows)
    out += [".SH PROMISES"]
    for name, promise, _ in promises.ROWS:
        out += [".TP", f".B {_roff(name)}", _roff(promise + ".")]
        for backend in promises.BACKENDS:
            verdict, reason = promises.verdict(name, backend)
            if verdict != promises.HELD:
                out.append(_roff(f"Not held on {backend}: {reason}."))
    out += [".SH EXIT STATUS", "The command's own, or:"]
    for status, meaning in (
        (str(EXIT_REFUSED), "Paddock refused or failed; the text on standard error says why."),
        (str(EXIT_NOT_EXECUTABLE), "The command cannot be executed."),
        (str(EXIT_NOT_FOUND), "The command was not found."),
        ("128+N", "Signal N ended the command."),
    ):
        out += [".TP", f".B {status}", meaning]
    out += [".SH EXAMPLES"]
    for command, meaning in (example for form in known for example in form.examples):
        end = "" if meaning.endswith("?") else "."
        out += [".TP", f".B {_roff(command)}", _roff(meaning[0].upper() + meaning[1:] + end)]
    out += [
        ".SH FILES",
        ".TP", ".I /etc/paddock/config.toml", "Rules for the machine.",
        ".TP", ".I ~/.config/paddock/config.toml", "Rules of the user.",
        ".TP", ".I ~/.config/paddock/providers/", "Further agents, a TOML file for each.",
        ".TP", ".I ~/.config/paddock/service.toml", "Quotas, sizes and time limits of the service.",
        ".TP", ".I .paddock.toml", "Rules of the project: they can only tighten, unless trusted.",
        ".TP", ".I ~/.local/state/paddock", "Private homes, temporary directories and ledgers.",
        ".TP", ".I ~/.cache/paddock", "Finished plans.",
        ".TP", ".I $XDG_RUNTIME_DIR/paddock/control.sock", "The service's API.",
        ".SH ENVIRONMENT",
        "These take abilities away, to show what a machine with fewer of them would hold. They never add one.",
        ".TP", ".BI PADDOCK_LANDLOCK_ABI= N", "Landlock's interface is taken to be version N.",
        ".TP", ".B PADDOCK_NO_USERNS=1", "User namespaces are taken to be blocked.",
        ".TP", ".B PADDOCK_NO_LANDLOCK=1", "Landlock is taken to be missing.",
        ".SH SEE ALSO",
        ".BR landlock (7),", ".BR seccomp (2),", ".BR user_namespaces (7),", ".BR git\\-worktree (1)",
    ]  # fmt: skip
    return "\n".join(out) + "\n"


def main() -> None:
    """Writes the tables and the man page."""
    for page in TABLES:
        path = ROOT / page
        path.write_text(with_tables(page, path.read_text(encoding="utf-8")), encoding="utf-8")
    MAN_PAGE.write_text(man_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
