"""`paddock completion`: prints what completes Paddock's command lines in a shell, made from the table of all forms.

Sub-commands, options and the words that an option's value can be come from the table; other values are completed as
files, or as directories where the table says ``DIR`` or ``FOLDER``. What stands behind ``--`` is completed as a command
line.
"""

import re
import textwrap
from collections.abc import Iterator

from launcher import cli
from launcher.verbs import forms, pages
from launcher.verbs.forms import Form, Option
from policy.pasted import quoted

VERBS = {**cli.VERBS, "help": "show a page of the manual, or what a verb takes"}
DIRECTORY = "/"
FILE = ""

_BASH = """\
_paddock() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} offered= at
    COMPREPLY=()
    for ((at = 2; at < COMP_CWORD; at++)); do
        if [[ ${COMP_WORDS[at]} == -- ]]; then
            if declare -F _command_offset > /dev/null; then
                _command_offset $((at + 1))
            elif ((at == COMP_CWORD - 1)); then
                mapfile -t COMPREPLY < <(compgen -c -- "$word")
            fi
            return
        fi
    done
    if [[ $word == = ]]; then
        word=
    elif [[ $before == = ]]; then
        before=${COMP_WORDS[COMP_CWORD-2]}
    fi
    case ${COMP_WORDS[*]:1:COMP_CWORD-1} in
@FORMS@
    esac
    if [[ $offered == / ]]; then
        compopt -o filenames 2> /dev/null
        mapfile -t COMPREPLY < <(compgen -d -- "$word")
    else
        mapfile -t COMPREPLY < <(compgen -W "$offered" -- "$word")
    fi
}
complete -o default -F _paddock paddock
"""

_ZSH = """\
#compdef paddock
_paddock() {
    local -a before=("${(@)words[2,CURRENT-1]}") listed specs
    local depth=1
    case "$before[1] $before[2] " in
@FORMS@
    esac
    (( CURRENT -= depth ))
    words=("${(@)words[depth+1,-1]}")
    if (( $#listed && CURRENT == 2 )) && [[ $words[2] != -* ]]; then
        _describe command listed
    else
        _arguments -S -s "$specs[@]"
    fi
}
if [[ $funcstack[1] == _paddock ]]; then
    _paddock "$@"
else
    compdef _paddock paddock
fi
"""

_FISH = """\
function __paddock_in # the words so far begin with these, and do not end the options
    set -l words (commandline -opc)
    set -e words[1]
    not contains -- -- $words; and test "$words[1..$(count $argv)]" = "$argv"
end
function __paddock_at # there are no other words so far
    test (count (commandline -opc)) -eq (math 1 + (count $argv)); and __paddock_in $argv
end
function __paddock_command # completes what stands behind the end of the options
    set -l words (commandline -opc)
    set -e words[1..(contains -i -- -- $words)]
    complete -C (string join -- ' ' (string escape -- $words) (commandline -ct))
end
complete -c paddock -f
complete -c paddock -n 'contains -- -- (commandline -opc)' -a '(__paddock_command)'
@FORMS@
"""


def completion(shell: str) -> int:
    """Exit status 0."""
    script = {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]()
    print(script, end="")
    return 0


def described() -> Iterator[tuple[Form, dict[str, str]]]:
    """Every form with its sub-commands, these before their verb."""
    for verb in cli.VERBS:
        known = forms.subcommands(verb)
        yield from ((forms.form(f"{verb} {word}"), {}) for word in known)
        yield forms.form(verb), known
    topics = "|".join(dict.fromkeys([*pages.names(), *cli.VERBS]))
    yield Form("help", VERBS["help"], "", (), ((topics, ""),), (), (), (), ""), {}


def rows(form: Form) -> list[tuple[list[str], Option]]:
    """Each option of a form with all its names; what takes a switch back, and ``--help``, are options too."""
    found: list[tuple[list[str], Option]] = []
    letters = {name: letter for letter, name in cli.SHORT.items()}
    for row in forms.LAUNCH if form.name == "run" else form.rows:
        short = row.short or (letters.get(row.name, "") if row in forms.LAUNCH else "")
        found.append(([row.name, short] if short else [row.name], row))
        if row.kind == cli.SWITCH:
            found.append(([cli.contrary(row.name)], row._replace(text=f"overrules {row.name} of the configuration")))
    return [*found, (["--help", "-h"], Option("--help", cli.FLAG, "", "print help"))]


def value_of(metavar: str) -> str:
    """The words that a value can be, separated by spaces; else `DIRECTORY` or `FILE`."""
    words = [word for word in metavar.split("|") if re.fullmatch("[a-z][a-z.-]*", word)] if "|" in metavar else []
    return " ".join(words) or (FILE if {"DIR", "FOLDER"}.isdisjoint(re.split(r"\W", metavar)) else DIRECTORY)


def operand_of(form: Form) -> str | None:
    """The same of the first operand; None where that is neither a file nor one of some words."""
    first = form.operands[0][0] if form.operands else form.usage.partition(" ")[0]
    value = value_of(first)
    return value if value != FILE or re.search(r"\b(FILE|PATH)\b", first) else None


def _bash() -> str:
    lines = []
    for form, known in described():
        pattern = form.name.replace(" ", "\\ ")
        options = [name for names, _ in rows(form) for name in names] if form.rows or not known else []
        lines += [f"{pattern} | {pattern}\\ *)", f"    offered={quoted(' '.join([*known, *options]))}"]
        if (operand := operand_of(form)) is not None:
            lines.append(f"    [[ $word == -* ]] || offered={quoted(operand)}")
        grouped: dict[str, list[str]] = {}
        for names, row in rows(form):
            if row.kind in (cli.ONE, cli.MANY):
                grouped.setdefault(value_of(row.metavar), []).extend(names)
        if grouped:
            lines.append("    case $before in")
            lines += [f"        {' | '.join(names)}) offered={quoted(value)} ;;" for value, names in grouped.items()]
            lines.append("    esac")
        lines.append("    ;;")
    lines.append(f"'') offered={quoted(' '.join([*VERBS, '--help', '--version']))} ;;")
    return _BASH.replace("@FORMS@", textwrap.indent("\n".join(lines), 8 * " "))


def _zsh() -> str:
    lines = []
    for form, known in described():
        specs = [_zsh_option(name, names, row) for names, row in rows(form) for name in names]
        operand = operand_of(form)
        if operand is not None:
            specs.append(f"{'1' if form.usage else '*'}:{_zsh_value('argument', operand)}")
        elif form.usage and not form.usage.startswith("["):
            specs.append("1:session: ")
        if "-- " in form.usage:
            specs.append("*:::command:_normal")
        lines += _zsh_case(quoted(f"{form.name} ") + "*", len(form.name.split()), known, specs)
    lines += _zsh_case("*", 0, VERBS, ["--help[list the verbs]", "--version[print the version]"])
    return _ZSH.replace("@FORMS@", textwrap.indent("\n".join(lines), 8 * " "))


def _zsh_case(pattern: str, depth: int, listed: dict[str, str], specs: list[str]) -> list[str]:
    return [
        f"{pattern})",
        f"    depth={depth}",
        *_zsh_array("listed", [f"{name}:{summary}" for name, summary in listed.items()]),
        *_zsh_array("specs", specs),
        "    ;;",
    ]


def _zsh_array(name: str, values: list[str]) -> list[str]:
    return [f"    {name}=(", *(f"        {quoted(value)}" for value in values), "    )"]


def _zsh_option(name: str, names: list[str], row: Option) -> str:
    """One name of an option as `_arguments` of zshcompsys(1) takes it; it excludes all of them, or may be repeated."""
    front = "*" if row.kind == cli.MANY else f"({' '.join(names)})"
    text = re.sub(r"([\[\]:\\])", r"\\\1", row.text)
    if row.kind in (cli.FLAG, cli.SWITCH):
        return f"{front}{name}[{text}]"
    joint = "=" if name.startswith("--") else "+"
    return f"{front}{name}{joint}[{text}]:{_zsh_value(row.metavar, value_of(row.metavar))}"


def _zsh_value(metavar: str, value: str) -> str:
    action = {DIRECTORY: "_files -/", FILE: "_files"}.get(value, f"({value})")
    return metavar.replace(":", "\\:") + f":{action}"


def _fish() -> str:
    lines = []
    for verb, summary in VERBS.items():
        lines.append(_fish_line("test (count (commandline -opc)) -eq 1", f"-a {verb}", summary))
    for form, known in described():
        lines += [_fish_line(f"__paddock_at {form.name}", f"-a {word}", text) for word, text in known.items()]
        others = "".join(f"; and not __paddock_in {form.name} {word}" for word in known)
        at = f"__paddock_in {form.name}{others}"
        for names, row in rows(form):
            spelled = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in names)
            value = value_of(row.metavar)
            if row.kind in (cli.ONE, cli.MANY):
                spelled += " -rF" if value == FILE else f" -x -a {_fish_value(value)}"
            lines.append(_fish_line(at, spelled, row.text))
        if (operand := operand_of(form)) is not None:
            lines.append(_fish_line(at, "-F" if operand == FILE else f"-a {_fish_value(operand)}", ""))
    return _FISH.replace("@FORMS@", "\n".join(lines))


def _fish_value(value: str) -> str:
    return _fish_quoted("(__fish_complete_directories)" if value == DIRECTORY else value)


def _fish_line(condition: str, what: str, text: str) -> str:
    about = f" -d {_fish_quoted(text)}" if text else ""
    return f"complete -c paddock -n {_fish_quoted(condition)} {what}{about}"


def _fish_quoted(text: str) -> str:
    """A word as fish reads it: between single quotes only a quote and a backslash are escaped."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
