"""What README and man page say of options, verbs and promises, rendered from the tables the programme itself uses.

`python -m tests.support.manual` (or `make docs`) writes it into both; a test compares.
"""

import re
from pathlib import Path

from launcher import cli
from launcher.verbs import acp, attach, denials, doctor, explain, merge, run, service, why, worktree
from launcher.verbs import exec as further
from policy import promises
from policy.errors import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, EXIT_REFUSED
from policy.providers.registry import load_registry

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
MAN_PAGE = ROOT / "launcher" / "paddock.1"


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
    """The launch options as a Markdown table."""
    lines = ["| option | meaning |", "|---|---|"]
    for name, kind, metavar, text in cli.OPTIONS:
        shown = f"{name} {metavar}".rstrip() + (" ..." if kind == cli.MANY else "")
        lines.append(f"| `{shown.replace('|', chr(92) + '|')}` | {text} |")
    return "\n".join(lines)


def verb_table() -> str:
    """The verbs as a Markdown table."""
    return "\n".join(["| verb | what it does |", "|---|---|"]
                     + [f"| `paddock {name}` | {summary} |" for name, (_, summary) in cli.VERBS.items()])  # fmt: skip


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


SECTIONS = {"promises": promise_table, "options": option_table, "verbs": verb_table, "providers": provider_table}


def readme(text: str) -> str:
    """`text` with each generated section, between its two marks, made anew."""
    for name, render in SECTIONS.items():
        before, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- /{name} -->\n")
        if not begin or not end:
            raise ValueError(f"README has no section {name}")
        text = before + begin + render() + "\n" + end + after
    return text


def _roff(text: str) -> str:
    """Plain text for roff(7): backslashes, dashes of options, and lines that begin like requests."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"(?m)^([.'])", r"\\&\1", text)


def man_page() -> str:
    """The man page paddock(1)."""
    out = [
        ".\\\" Made by tests/support/manual.py from the programme's own tables. Do not edit.",
        ".TH PADDOCK 1",
        ".SH NAME",
        "paddock \\- hold a command to its git worktree",
        ".SH SYNOPSIS",
    ]
    shown = {"run": run.SYNOPSIS, "exec": further.SYNOPSIS, "acp": acp.SYNOPSIS,
             "explain": explain.SYNOPSIS, "why": why.SYNOPSIS,
             "denials": "[SESSION] [--follow] [--decisions] [--json] | --list"}  # fmt: skip
    for verb, synopsis in shown.items():
        out += [f".B paddock {verb}", _roff(synopsis), ".br"]
    for verb in cli.VERBS:
        if verb not in shown:
            out += [f".B paddock {verb}", "[options]", ".br"]
    out += [
        ".SH DESCRIPTION",
        "Paddock starts a command in a jail that the kernel enforces: it can read and write its git worktree,",
        "a private home and a private temporary directory, read the system's programmes, and nothing else.",
        ".SH VERBS",
    ]
    for verb, (_, summary) in cli.VERBS.items():
        out += [".TP", f".B {verb}", _roff(summary[0].upper() + summary[1:] + ".")]
    out += [".SH SUBCOMMANDS OF WORKTREE"]
    for name, (_, _, summary) in worktree.SUBCOMMANDS.items():
        out += [".TP", f".B {name}", _roff(summary[0].upper() + summary[1:] + ".")]
    out += [".SH SUBCOMMANDS OF SERVICE"]
    for name, (_, _, summary) in service.SUBCOMMANDS.items():
        out += [".TP", f".B {name}", _roff(summary[0].upper() + summary[1:] + ".")]
    for verbs, options in (
        ("RUN AND EXPLAIN", cli.OPTIONS),
        ("ACP", acp.EXTRA),
        ("ATTACH", attach.OWN),
        ("EXEC", further.OPTIONS),
    ):
        out += [f".SH OPTIONS OF {verbs}"]
        for name, kind, metavar, text in options:
            value = f" \\fI{_roff(metavar)}\\fR" if metavar else ""
            out += [".TP", f"\\fB{_roff(name)}\\fR{value}" + (" ..." if kind == cli.MANY else ""), _roff(text + ".")]
    out += [_roff(further.NOTES), ".SH EDITORS", _roff(acp.NOTES)]
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
    shown_by = (run, further, acp, attach, explain, why, denials, worktree, merge, service, doctor)
    for command, meaning in [example for verb_module in shown_by for example in verb_module.EXAMPLES]:
        out += [".TP", f".B {_roff(command)}", _roff(meaning[0].upper() + meaning[1:] + ".")]
    out += [
        ".SH FILES",
        ".TP", ".I /etc/paddock/config.toml", "Rules for the machine.",
        ".TP", ".I ~/.config/paddock/config.toml", "Rules of the user.",
        ".TP", ".I .paddock.toml", "Rules of the project: they can only tighten, unless trusted.",
        ".TP", ".I ~/.local/state/paddock", "Private homes, temporary directories and ledgers.",
        ".TP", ".I ~/.cache/paddock", "Finished plans.",
        ".SH SEE ALSO",
        ".BR landlock (7),", ".BR seccomp (2),", ".BR user_namespaces (7),", ".BR git\\-worktree (1)",
    ]  # fmt: skip
    return "\n".join(out) + "\n"


def main() -> None:
    """Writes both."""
    README.write_text(readme(README.read_text(encoding="utf-8")), encoding="utf-8")
    MAN_PAGE.write_text(man_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
