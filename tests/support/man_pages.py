"""The man pages, rendered from the programme's own tables, schemas and units.

`python -m tests.support.man_pages` (or `make docs`) writes them, and the tables in `docs/`; a test compares.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

from launcher import cli
from launcher.service import settings as of_service
from launcher.service import units
from launcher.verbs import forms
from launcher.verbs.forms import Form
from policy import promises
from policy.config import layer, settings, values
from policy.config.layer import Kind as Layered
from policy.config.values import Base, Configuration
from policy.errors import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, EXIT_REFUSED
from policy.providers import model
from policy.tables import Choice, Kind, Many, One, Part, Version, boolean
from tests.support import manual
from tests.support.manual import ROOT


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


def _definitions(rows: Iterable[tuple[str, str, str]]) -> list[str]:
    """(bold, italic, text) as a list of roff(7)."""
    lines = []
    for bold, italic, text in rows:
        value = f" \\fI{_roff(italic)}\\fR" if italic else ""
        lines += [".TP", f"\\fB{_roff(bold)}\\fR{value}", _roff(text + ".")]
    return lines


def _title(name: str, section: int, summary: str) -> list[str]:
    return [
        ".\\\" Made by tests/support/man_pages.py from the programme's own tables. Do not edit.",
        f".TH {name.upper()} {section}",
        ".nh",
        ".ad l",
        ".SH NAME",
        f"{_roff(name)} \\- {summary}",
        ".SH SYNOPSIS",
    ]


def _verbs(known: Iterator[Form]) -> list[str]:
    """Each form with all that it takes."""
    out = []
    for form in known:
        out += [f".SS paddock {form.name}", _roff(form.summary[0].upper() + form.summary[1:] + ".")]
        if form.name == "run":
            out += ["The options are below, under OPTIONS OF RUN."]
        out += _notes(form)
        out += _definitions((name, "", text) for name, text in form.operands)
        out += _definitions((row.name, row.metavar, row.about) for row in form.options)
    return out


def paddock() -> str:
    """paddock(1)."""
    out = _title("paddock", 1, "hold a command to its git worktree")
    known = list(described())
    for form in known:
        out += [f".B paddock {form.name}", _roff(synopsis(form)), ".br"]
    out += [
        ".SH DESCRIPTION",
        "Paddock starts a command in a jail that the kernel enforces: it can read and write its git worktree,",
        "a private home and private temporary directories, read the system's programmes, and nothing else.",
    ]
    for title, verbs in forms.VERB_GROUPS:
        out += [f".SH {title.upper()}", *_verbs(form for form in known if form.name.partition(" ")[0] in verbs)]
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
        ".BR paddock-config (5),", ".BR paddock.service (8),",
        ".BR landlock (7),", ".BR seccomp (2),", ".BR user_namespaces (7),", ".BR git\\-worktree (1)",
    ]  # fmt: skip
    return "\n".join(out) + "\n"


def attributes(owner: type[Part]) -> dict[str, str]:
    """What is written below each key of a table."""
    body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
    assert isinstance(body, ast.ClassDef)
    return {
        field.target.id: " ".join(str(text.value.value).split())
        for field, text in zip(body.body, body.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }  # fmt: skip


_MEASURES: dict[object, str] = {
    values.size: "bytes, or a string with K, M, G or T", values.seconds: "seconds, or a string with m, h or d",
    values.count: "number", values.amount: "number",
}  # fmt: skip


def _prose(owner: type[Part]) -> str:
    return _roff((inspect.getdoc(owner) or "").replace("`", "").replace("\n\n", "\n"))


def kind_of(kind: Kind) -> str:
    """What a key takes, as the user writes it."""
    if isinstance(kind, Version):
        return "number"
    if isinstance(kind, One):
        return " | ".join(_choices(kind)) or _MEASURES.get(kind.check, "string")
    if isinstance(kind, Many):
        return "tables" if isinstance(kind.of, type) else "list of strings"
    return "table"


def _choices(kind: Kind) -> list[str]:
    if isinstance(kind, Choice):
        return list(kind.words)
    return ["true", "false"] if isinstance(kind, One) and kind.check is boolean else []


def untrusted(table: str, key: str, kind: Kind) -> str:
    """What a project's own file may do with a key before anybody trusts it: the merge itself is asked."""
    if table == "system":
        return "Only the machine's and the user's own file may have it."
    if table == "limits":
        return "An untrusted project's file may only lower it."
    below = settings.resolve([layer.shipped()])

    def accepted(value: str) -> bool:
        content = f"[{table}]\n{key} = {value}\n".encode()
        top = layer.parse(content, Layered.PROJECT, "x", Base("/w", "/home/me"), trusted=False)
        return not settings.loosening(below, top)

    if choices := _choices(kind):
        quote = "" if choices == ["true", "false"] else '"'
        good = [each for each in choices if accepted(f"{quote}{each}{quote}")]
        return f"An untrusted project's file may say, instead of the default: {', '.join(good) or 'nothing'}."
    template = (ROOT / "policy/config/template.toml").read_text(encoding="utf-8")
    (sample,) = re.findall(rf"(?m)^# {key} = (.+)$", template.partition(f"\n[{table}]\n")[2].partition("\n[")[0])
    return f"An untrusted project's file may {'add to it' if accepted(sample) else 'not touch it'}."


def _default(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (tuple, dict)):
        listed = [f"{name}={text}" for name, text in value.items()] if isinstance(value, dict) else list(value)
        return ", ".join(listed)
    return "" if value is None else str(value)


def _number(value: float) -> str:
    return f"{int(value):_}" if value == int(value) else f"{value:g}"


def _key(name: str, kind: str, *sentences: str) -> list[str]:
    text = " ".join(filter(None, sentences)).replace("`", "")
    return [".TP", f"\\fB{_roff(name)}\\fR \\fI{_roff(kind)}\\fR", _roff(text)]


def _tables() -> Iterator[tuple[str, type[Part]]]:
    for name, key in Configuration.KEYS.items():
        if isinstance(key.kind, type):
            yield name, key.kind


def config() -> str:
    """paddock-config(5)."""
    shipped: Any = layer.shipped().content
    out = [
        *_title("paddock-config", 5, "configuration files of paddock(1)"),
        ".I /etc/paddock/config.toml", ".br", ".I ~/.config/paddock/config.toml", ".br", ".I .paddock.toml", ".br",
        ".I ~/.config/paddock/providers/NAME.toml", ".br",
        ".I /etc/paddock/service.toml", ".br", ".I ~/.config/paddock/service.toml",
        ".SH DESCRIPTION",
        "The files are TOML. The rules for jails come, in ascending precedence, from the shipped defaults, from",
        ".IR /etc/paddock/config.toml ,", "from", ".IR ~/.config/paddock/config.toml ,", "from",
        ".I .paddock.toml", "at the root of the worktree, from the file that", ".B \\-\\-config",
        "names, and from options. Lists add up, single values replace each other, and",
        ".B deny", "beats every grant. An unknown key is refused.",
        ".PP",
        ".I .paddock.toml", "lies where agents write, and so may a file that", ".B \\-\\-config",
        "names. Until its exact content is trusted", "(\\fBpaddock trust\\fR),",
        "such a file may only tighten the rules. \\(lqUntrusted\\(rq below means a file in that state.",
        ".PP",
        "Relative paths are relative to the worktree, and only a project's file may have them;",
        ".I ~/", "is the user's home directory. A size is a number of bytes, or a string such as 512M or 2G (powers of",
        "1024); a time is a number of seconds, or a string such as 90s, 10m, 2h or 1d. A limit may also be",
        "\\(lqunlimited\\(rq.",
        ".SH KEYS",
        *_key("schema", "number", "Version of the format: 1, which is also meant where the key is missing."),
    ]  # fmt: skip
    for table, owner in _tables():
        out += [f".SS [{table}]", _prose(owner)]
        said = attributes(owner)
        for name, found in owner.KEYS.items():
            key = found.name
            default = _default(getattr(getattr(shipped, table), name))
            option = layer.FLAG_OF.get(f"{table}.{key}", layer.FLAG_OF["limits"] if table == "limits" else "")
            out += _key(key, kind_of(found.kind), said[name], f"Option: {option}." if option else "",
                        untrusted(table, key, found.kind), f"Default: {default}." if default else "")  # fmt: skip
    out += [
        ".SH SERVICE.TOML",
        "What the service itself obeys: quotas, patience, sizes. The user's file beats the machine's, key by key. The",
        "service reads them when it starts, and when it gets SIGHUP.",
    ]
    schema = of_service.Settings.model_json_schema()["properties"]
    for name, facts in schema.items():
        text = facts["description"]
        if facts["type"] == "string":
            out += _key(name, "text", text[0].upper() + text[1:], "Default: none.")
            continue
        least, most = facts.get("minimum", facts.get("exclusiveMinimum")), facts.get("maximum")
        bounds = f"From {_number(least)}" + (f" to {_number(most)}." if most is not None else " on.")
        out += _key(name, "number", text[0].upper() + text[1:], bounds, f"Default: {_number(facts['default'])}.")
    out += [
        ".SH FILES OF PROVIDERS",
        "A file for each agent of your own; the name before .toml is the provider's.",
    ]
    for table, owner in (("", model.ProviderSpec), ("[state]", model.State), ("[credentials]", model.Credentials),
                         ("[temp]", model.Temp), ("[[files]]", model.ProviderFile),
                         ("[native], [contract]", model.Dialect),
                         ("[native.sandbox_off], [native.prompts_off]", model.Switch)):  # fmt: skip
        said = attributes(owner)
        out += [f".SS {table}", _prose(owner)] if table else []
        for name, found in owner.KEYS.items():
            needed = "Must be there." if found.needed else ""
            out += _key(found.name, kind_of(found.kind), said[name], needed)
    example = (ROOT / "policy/providers/example.toml").read_text(encoding="utf-8")
    out += [
        ".SH EXAMPLES", ".nf", _roff(re.sub(r"^# .*\n", "", example).rstrip("\n")), ".fi",
        ".SH SEE ALSO", ".BR paddock (1),", ".BR paddock.service (8)",
    ]  # fmt: skip
    return "\n".join(out) + "\n"


def service() -> str:
    """paddock.service(8)."""
    files = sorted(path for path in units.sources().rglob("*") if path.is_file() and path.suffix != ".md")
    names = [str(path.relative_to(units.sources())) for path in files]
    out = [
        *_title("paddock.service", 8, "Paddock under systemd"),
        *(f".I {_roff(name)}\n.br" for name in names),
        ".SH DESCRIPTION",
        "The service (\\fBpaddock serve\\fR) is one user's. Sessions live in it without a terminal.",
        ".B paddock service install", "puts these files in place, with the absolute path of the command for @PADDOCK@:",
        "with", ".B \\-\\-user", "those of your own service manager, with", ".B \\-\\-system",
        "those of the machine's. Changes belong in drop\\-ins (\\fBsystemctl edit\\fR): a file that was edited is",
        "never overwritten.",
        ".SH VERBS",
        *_verbs(form for form in described() if form.name.startswith("service ") and form.summary),
        ".SH SIGNALS",
        *_definitions((
            ("SIGHUP", "", "Reads service.toml again. No session ends; what is wrong in the file is reported, and the "
                           "settings stay as they were"),
            ("SIGTERM, SIGINT", "", "Ends the sessions in order, harvests their work, and ends"),
            ("SIGUSR1", "", "Before SIGTERM: leaves the sessions alone; the next service finds them"),
        )),
        ".SH FILES",
        *_definitions((
            ("/run/paddock/USER/control.sock", "", "The API under the system's manager"),
            ("$XDG_RUNTIME_DIR/paddock/control.sock", "", "The API under your own manager, or without one"),
            ("~/.local/state/paddock", "", "The record of the sessions, and their logs"),
            ("/etc/paddock/service.toml, ~/.config/paddock/service.toml", "", "Settings: paddock-config(5)"),
        )),
        ".SH UNITS",
        "Each setting has its reason above it.",
    ]  # fmt: skip
    for name, path in zip(names, files, strict=True):
        out += [f".SS {_roff(name)}", ".nf", _roff(path.read_text(encoding="utf-8").rstrip()), ".fi"]
    out += [".SH SEE ALSO", ".BR paddock (1),", ".BR paddock-config (5),", ".BR systemctl (1),",
            ".BR systemd.service (5)"]  # fmt: skip
    return "\n".join(out) + "\n"


PAGES = {
    ROOT / "launcher/paddock.1": paddock,
    ROOT / "launcher/paddock-config.5": config,
    ROOT / "launcher/paddock.service.8": service,
}
"""The files of the man pages, and what they hold."""


def main() -> None:
    """Writes the tables and the man pages."""
    for page in manual.TABLES:
        path = ROOT / page
        path.write_text(manual.with_tables(page, path.read_text(encoding="utf-8")), encoding="utf-8")
    for path, render in PAGES.items():
        path.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
