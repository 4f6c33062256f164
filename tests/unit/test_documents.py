"""README, docs/, man page and --help say what the programme does, and agree, because they come from its tables."""

import inspect
import re
import shlex
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from launcher import cli
from launcher.__main__ import main as entry
from launcher.service import settings, units
from launcher.service.ticket_schema import OnConflict, TicketRequest
from launcher.vcs.merge.into_children import Order
from launcher.vcs.worktrees import retention
from launcher.verbs import forms, pages
from policy import promises
from policy.config import layer
from policy.config.values import Base
from policy.errors import EXIT_REFUSED, Refusal
from policy.providers.model import ProviderSpec
from tests.support import examples, man_pages, manual
from tests.support.features import need


def test_the_tables_of_the_pages_are_the_programmes() -> None:
    """The tables of options, verbs, promises and agents are made from those that the programme uses, once each."""
    for page in manual.TABLES:
        text = (manual.ROOT / page).read_text(encoding="utf-8")
        assert text == manual.with_tables(page, text), "run `make docs`"
    made = [name for tables in manual.TABLES.values() for name in tables]
    assert sorted(made) == ["options", "promised", "promises", "providers", "verbs"]
    measured = ("configurations", "measured", "scoreboard")  # by tests/bench/scoreboard.py
    assert sorted(re.findall(r"<!-- /(\w+) -->", manual.documentation())) == sorted((*made, *measured))


@pytest.mark.parametrize("page", man_pages.PAGES, ids=lambda page: str(page.name))
def test_the_man_pages_are_the_programmes(page: Path) -> None:
    """They are made from the same tables, and man(1) formats them without a warning."""
    assert page.read_text(encoding="utf-8") == man_pages.PAGES[page](), "run `make docs`"
    need("man")
    assert formatted(page)


def formatted(page: Path) -> str:
    """A man page as plain text, with one space between words."""
    shown = subprocess.run(
        ["man", "--warnings", "--local-file", str(page)],
        env={"PATH": "/usr/bin:/bin", "MANWIDTH": "100", "LC_ALL": "C.UTF-8", "MANPAGER": "cat"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stderr == ""
    return " ".join(re.sub(".\b", "", shown.stdout).split())


def test_the_man_page_has_every_option_of_run() -> None:
    """In what is printed."""
    need("man")
    text = formatted(manual.ROOT / "launcher/paddock.1")
    assert all(f"{name} " in text for name, *_ in cli.OPTIONS)


def test_the_man_page_of_the_configuration_has_every_key() -> None:
    """Of rules, of the service and of providers, each with a text; and it says what a project's own file may do."""
    need("man")
    text = formatted(manual.ROOT / "launcher/paddock-config.5")
    keys = [key for table in ("", *layer.known_keys(())) for key in layer.known_keys((table,) if table else ())]
    keys += [*settings.Settings.model_fields, *(key.name for key in ProviderSpec.KEYS.values())]
    assert [key for key in keys if not re.search(rf"[ \[]{key}[\] ]", text)] == []
    for words in (
        "mode none | auto | proxy | open How far connections reach; auto is proxy with a provider or an allowed host, "
        "else none. Option: --net. An untrusted project's file may say, instead of the default: none, auto. "
        "Default: auto.",
        "Of read and write, the longer path wins. Option: --rw. An untrusted project's file may not touch it.",
        "Option: --deny. An untrusted project's file may add to it.",
        "most_sessions number Live sessions in all. From 1 to 10_000. Default: 256.",
    ):
        assert words in text


def test_the_man_page_of_the_service_has_every_unit_and_verb() -> None:
    """Unit files as they are installed."""
    text = man_pages.service()
    assert len(man_pages.PAGES) == 3
    for unit in (name for names in units.UNITS.values() for name in names):
        assert f"/{unit.replace('-', chr(92) + '-')}\n" in text
    for word in forms.subcommands("service"):
        assert f".SS paddock service {word}\n" in text


def test_help_names_every_option() -> None:
    """`paddock run --help` lists each option of the table with its text."""
    text = forms.of_verb(forms.form("run"))
    plain = " ".join(text.split())
    for row in forms.LAUNCH:
        assert f"  {forms.notation(row)}" in text
        assert row.about in plain


def test_every_form_calls_a_function_that_takes_what_its_table_says() -> None:
    """Neither knows a parameter that the other does not; what a line of the table means is never prose by mistake."""
    compared = 0
    for name in forms.texts():
        form = forms.form(name)
        assert form.about
        assert not [line for line in form.about if "  " in line or line.startswith("$ ")], name
        if (forms.subcommands(name) and not form.options) or name == "run":
            continue
        function = forms.function(name)
        taken = list(inspect.signature(function).parameters)
        if form.usage:
            assert taken == ["argv"]
            continue
        assert sorted(taken[len(form.operands) :]) == sorted(forms.values(form, {})), name
        compared += len(taken)
    assert compared > 100


def test_defaults_of_the_table_are_those_of_the_code() -> None:
    """Where both have them."""
    found = forms.values(forms.form("prune"), {})
    assert retention.Bounds(found["keep_days"], found["keep"], found["keep_lost_days"]) == retention.Bounds()
    orders = next(row for row in forms.form("merge").options if row.name == "--order")
    assert orders.choices == [*Order]
    skips = next(row for row in forms.form("tickets run").options if row.name == "--on-conflict")
    assert skips.choices == [*OnConflict]


def test_the_man_page_has_every_form_of_every_verb() -> None:
    """Synopsis and options of sub-commands too."""
    page = man_pages.paddock()
    for form in man_pages.described():
        assert f".B paddock {form.name}\n" in page
        assert man_pages.synopsis(form)
        for row in form.options:
            assert f"\\fB{row.name.replace('-', chr(92) + '-')}\\fR" in page


TOPICS = {
    "usage", "git", "worktrees", "merging", "network", "install", "keys", "denials", "editors", "file-tools", "service",
    "configuration", "page", "providers", "security", "library", "scale", "reference", "scoreboard", "selftest",
    "benchmarks",
}  # fmt: skip
"""What somebody would look for."""


@pytest.mark.parametrize("verb", cli.VERBS)
def test_help_of_a_verb_is_what_the_verb_says(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    """`paddock help VERB`, with the verb's page of the manual where there is one."""
    assert entry(["paddock", verb, "--help"]) == 0
    told = capsys.readouterr().out
    assert entry(["paddock", "help", verb]) == 0
    rest = capsys.readouterr().out.removeprefix(told)
    assert rest in ("", f"\nThe page of the manual: paddock help {verb}.md\n")


def test_every_page_of_the_manual_is_shown_by_help(capsys: pytest.CaptureFixture[str]) -> None:
    """By its name, as text without marks; the overview lists them, and links name the page that they lead to."""
    listed = forms.overview().partition("help PAGE is the manual: ")[2].removesuffix(".").split(",")
    assert {name.strip().removesuffix(".md") for name in listed} == set(pages.topics()) == TOPICS
    for name in pages.topics():
        assert entry(["paddock", "help", f"{name}.md"]) == 0
        shown = capsys.readouterr().out
        assert shown.splitlines()[0].isupper()
        assert not re.search(r"\]\(|\*\*|```|<!--", shown), name
        assert name in cli.VERBS or entry(["paddock", "help", name]) == 0
    capsys.readouterr()
    assert entry(["paddock", "help", "usge"]) == EXIT_REFUSED
    assert "did you mean usage?" in capsys.readouterr().err


@pytest.mark.parametrize("width", [60, 80, 100])
def test_pages_fit_into_a_terminal_and_lose_nothing(width: int) -> None:
    """Tables and text stay within the width, without Markdown's marks; each word of a table's cells is shown."""
    for name, page in pages.topics().items():
        text = page.read_text(encoding="utf-8")
        shown = pages.plain(text, width)
        assert not [line for line in shown if re.search(r"\|--|<!--|\]\(|^\|.*\|$", line)], name
        assert not [line for line in shown if len(line) > width and not line.startswith("    ")], name
        found = Counter(" ".join(shown).replace("*", "").split())
        rows = [re.sub(r"[`*]|\\(?=\|)", "", line) for line in text.splitlines() if re.match(r"\|[^-]", line)]
        words = Counter(word for row in rows for word in row.split() if word != "|" and "](" not in word)
        assert not {word for word in words - found if f"{word}:" not in found}, name


def test_a_table_that_is_too_wide_becomes_a_list() -> None:
    """A row's first cell stands as a heading, what belongs to it below it; titles between rows stay titles."""
    table = "| a | b |\n|---|---|\n| **group** | |\n| `x \\| y` | [words](https://example.org), **and** *more* |\n"
    columns = ["a      b", "-----  " + 37 * "-", "", "group", "x | y  words (https://example.org), and more"]
    assert pages.plain(table, 60) == columns
    below = ["a: b", "----", "", "group", "x | y", "    words", "    (https://example.org), and", "    more"]
    assert pages.plain(table, 30) == below
    third = "| a | b | c |\n|---|---|---|\n| one | two | three |"
    assert pages.plain(third, 10) == ["a", "-", "one", "    b: two", "    c:", "    three"]


def typed(line: str) -> Iterator[list[str]]:
    """The words of each `paddock` command in a line of a shell, without the command's name."""
    lexer = shlex.shlex(re.sub(r'"?\$\((.*?)\)"?', r"; \1 ;", line), posix=True, punctuation_chars="|&;<>()")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set("|&;<>()"):
            while words and (re.match(r"[A-Z_]+=", words[0]) or words[0] in ("sudo", "eval", "echo")):
                words = words[1:]
            if words[:1] == ["paddock"]:
                yield words[1:]
            words = []
        else:
            words.append(word)


def parsed(words: list[str]) -> None:
    """Has the programme's own parser read a command line.

    Raises:
        Refusal: usage.
    """
    name, argv = words[0], words[1:]
    if argv and f"{name} {argv[0]}" in forms.texts():
        name, argv = f"{name} {argv[0]}", argv[1:]
    form = forms.form(name)
    rows = forms.LAUNCH if name == "run" else form.rows
    options, rest = cli.parse(argv, verb=name, options=rows, mixed=name not in ("run", "acp", "learn", "files"))
    for row in rows:
        if isinstance(value := options.get(row.name), str):
            row.value(value, name)
    if not form.usage:
        forms._operands(form, rest)


def test_every_example_is_understood_by_the_parser() -> None:
    """Those of help and of the pages: verbs, options, their values and operands exist."""
    lines = [command for name in forms.texts() for command, _ in forms.form(name).examples]
    lines += re.findall(r"(?m)^  (paddock .*?)(?:  .*)?$", forms.overview())
    lines += re.findall(r"(?m)\| `(paddock run [^`]* -- [a-z][^`]*)` ", manual.README.read_text(encoding="utf-8"))
    lines += [line for example in examples.examples("console") for line, _ in example.steps]
    read = [words for line in lines for words in typed(line) if words[0] != "help"]
    for words in read:
        parsed(words)
    assert len(read) > 200
    with pytest.raises(Refusal, match="unknown option --preveiw"):
        parsed(["merge", "--all", "--preveiw"])


def test_the_overview_names_every_verb() -> None:
    """`paddock --help` lists each verb of the table with its summary."""
    for name, summary in cli.VERBS.items():
        assert f"{name:<10} {summary}" in forms.overview()


def test_no_page_names_a_verb_that_does_not_exist() -> None:
    """Nor a sub-command of one."""
    text = manual.documentation()
    used = set(re.findall(r"(?:\$ |`|&& |sudo )paddock ([a-z]+)", text))
    assert len(used) > 15
    assert used <= {*cli.VERBS, "help"}
    for verb in ("worktree", "service", "tickets"):
        assert set(re.findall(rf"paddock {verb} ([a-z]+)", text)) <= set(forms.subcommands(verb))


OTHERS_OPTIONS = {"--cap-add", "--no-verify", "--security-opt"}
"""Of git and Docker, which the pages name too."""


def test_no_page_names_an_option_that_does_not_exist() -> None:
    """Every long option in backticks or of a `paddock` line is the programme's; behind `--` they are the command's."""
    known = {name for name, *_ in cli.OPTIONS} | {"--help", "--version"}
    known |= {row.name for name in forms.texts() for row in forms.form(name).options}
    known |= {cli.contrary(row.name) for row in forms.LAUNCH if row.kind == cli.SWITCH}
    text = manual.documentation()
    lines = [line.partition(" -- ")[0] for line in re.findall(r"paddock [^`\n]*", text)]
    used = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", "\n".join(lines)))
    assert used <= known
    named = set(re.findall(r"`(--[a-z][a-z-]+)", text.replace(manual.provider_table(), "")))
    assert named - known == OTHERS_OPTIONS
    assert len(named) > 40


def test_readme_is_short_and_begins_with_the_front_door() -> None:
    """At most 15 KB: two sentences, a session that is denied something, two commands; then the sections, in order."""
    assert manual.README.stat().st_size <= 15 * 1024
    text = manual.README.read_text(encoding="utf-8")
    opening, *sections = re.split(r"(?m)^## ", text)
    assert [section.partition("\n")[0] for section in sections] == [
        "Usage", "How it works", "Security model", "Configuration", "Service", "Development",
    ]  # fmt: skip
    title, what, session, bridge, commands, *_ = opening.split("\n\n")
    assert title == "# Paddock"
    assert re.findall(r"[.!?](?=\s|$)", what) == [".", "."]
    assert session.startswith("```console\n$ ")
    assert re.findall(r"Could not resolve host|No such file or directory|Permission denied", session)
    assert "Python 3.11" in bridge
    assert re.findall(r"(?m)^(?:\$ (make \w+) .*|```\w*)$", commands) == ["", "make demo", "make test", ""]
    steps, model = sections[1], sections[2]
    assert re.findall(r"(?m)^(\d)\. ", steps) == ["1", "2", "3", "4", "5"]
    assert "**Not protected**" in model
    assert "eighteen [promises]" in model
    assert model.count("` * | ") == 3
    assert len(promises.ROWS) == 18


def test_the_pictures_of_the_front_page_are_small_and_well_formed() -> None:
    """A recording, the scoreboard, and the layers with the words of the text; each says in words what it shows."""
    pictures = re.findall(r"!\[[^\]]{20,}\]\((docs/\w+\.svg)\)", manual.README.read_text(encoding="utf-8"))
    assert pictures == ["docs/recording.svg", "docs/scoreboard.svg", "docs/layers.svg"]
    for name in pictures:
        picture = manual.ROOT / name
        assert picture.stat().st_size < 10_000
        assert ElementTree.parse(picture).getroot().get("aria-label")
    shown = (manual.ROOT / "docs/layers.svg").read_text(encoding="utf-8")
    for word in ("one Plan", "path validator", "seccomp", "Landlock", "namespaces", "proxy", "private git", "harvest"):
        assert word in shown


def without_code(page: Path) -> str:
    """The text of a page without its blocks of code."""
    return re.sub(r"(?ms)^```.*?^```$", "", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The names by which GitHub links to the headings of a page."""
    return {
        re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-")
        for heading in re.findall(r"(?m)^#+ (.+)$", without_code(page))
    }


LINKED = (*manual.PAGES, manual.ROOT / "systemd/README.md", manual.ROOT / "CHANGELOG.md")


def targets(page: Path) -> Iterator[tuple[Path, str]]:
    """The file and the anchor of each link of a page that stays in the repository."""
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page)):
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            yield (page.parent / path).resolve() if path else page, anchor


def test_the_links_of_the_pages_lead_somewhere() -> None:
    """Files exist, and so do the headings in them."""
    compared = 0
    for page in LINKED:
        for path, anchor in targets(page):
            assert path.is_relative_to(manual.ROOT), f"{page}: {path} is outside of the repository"
            assert path.exists(), f"{page}: no {path}"
            assert not anchor or anchor in anchors(path), f"{page}: no {anchor} in {path}"
            compared += 1
    assert compared > 30


def test_readme_leads_to_every_page() -> None:
    """Whoever begins there finds all of docs/."""
    assert {path for path, _ in targets(manual.README)} >= set(manual.PAGES) - {manual.README}


def test_files_of_the_repository_that_pages_name_exist() -> None:
    """Names in backticks that begin like the repository's directories."""
    for page in LINKED:
        text = page.read_text(encoding="utf-8")
        for name in re.findall(r"`((?:launcher|policy|tests|systemd|docs)/[\w./@-]*)`", text):
            assert (manual.ROOT / name).exists(), f"{page}: no {name}"


def test_the_toml_of_the_pages_is_accepted() -> None:
    """Configurations are read without a refusal, and ticket runs are valid requests."""
    seen = []
    for text in re.findall(r"(?ms)^```toml\n(.*?)^```$", manual.documentation()):
        if "[[tickets]]" in text:
            TicketRequest.model_validate({**tomllib.loads(text), "repository": "/src/project"})
        else:
            layer.parse(text.encode(), layer.Kind.FILE, "config.toml", Base("/src/project", "/home/me"))
        seen.append(text)
    assert len(seen) >= 3


def test_the_template_explains_every_key_of_the_configuration() -> None:
    """But for those of [system], which describe the machine; docs/configuration.md sends readers there."""
    template = (manual.ROOT / "policy/config/template.toml").read_text(encoding="utf-8")
    tables = [table for table in layer.known_keys(()) if layer.known_keys((table,)) and table != "system"]
    assert len(tables) >= 8
    for table in tables:
        section = template.partition(f"\n[{table}]\n")[2].partition("\n[")[0]
        written = set(re.findall(r"(?m)^(?:# )?(\w+) = ", section))
        assert written == set(layer.known_keys((table,))), table
