"""README, man page and --help say what the programme does, because they come from its tables."""

import re
import subprocess

import typer

from launcher import cli
from launcher.verbs import help_page, run
from tests.support import manual
from tests.support.features import need


def test_the_readmes_tables_are_the_programmes() -> None:
    """README's tables of options, verbs and promises are made from the tables that the programme uses."""
    text = manual.README.read_text(encoding="utf-8")
    assert text == manual.readme(text), "run `make docs`"


def test_the_man_page_is_the_programmes() -> None:
    """The man page is made from the same tables."""
    assert manual.MAN_PAGE.read_text(encoding="utf-8") == manual.man_page(), "run `make docs`"


def test_the_man_page_is_clean_roff() -> None:
    """man(1) formats the page without a warning, and each option is in what it prints."""
    need("man")
    shown = subprocess.run(
        ["man", "--warnings", "--local-file", str(manual.MAN_PAGE)],
        env={"PATH": "/usr/bin:/bin", "MANWIDTH": "100", "LC_ALL": "C.UTF-8", "MANPAGER": "cat"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stderr == ""
    plain = re.sub(".\b", "", shown.stdout)
    assert all(name in plain for name, *_ in cli.OPTIONS)


def test_help_names_every_option() -> None:
    """`paddock run --help` lists each option of the table with its text."""
    text = help_page.of_verb("run", run.SYNOPSIS, run.EXAMPLES, options=cli.OPTIONS)
    plain = " ".join(text.split())
    for row in cli.OPTIONS:
        assert f"  {help_page.notation(row)}" in text
        assert help_page.told(row) in plain


def test_help_of_the_other_verbs_names_what_typer_takes() -> None:
    """A page is made from the signature that Typer reads: neither knows an option that the other does not."""
    compared = 0
    for verb, about in manual.described():
        if verb in manual.BY_HAND:
            continue
        command, _ = manual.function_of(verb)
        app = typer.Typer(add_completion=False)
        app.command()(command)
        taken = {word for each in typer.main.get_command(app).params for word in each.opts if word.startswith("--")}
        assert {row[0] for row in about.taken.options} == taken - {"--help"}, verb
        compared += len(taken)
    assert compared > 80


def test_the_man_page_has_every_form_of_every_verb() -> None:
    """Synopsis and options of sub-commands too."""
    page = manual.man_page()
    for verb, about in manual.described():
        assert f".B paddock {verb}\n" in page
        assert about.synopsis
        for row in about.taken.options:
            assert f"\\fB{row[0].replace('-', chr(92) + '-')}\\fR" in page


def test_the_overview_names_every_verb() -> None:
    """`paddock --help` lists each verb of the table with its summary."""
    for name, (_, summary) in cli.VERBS.items():
        assert f"{name:<9} {summary}" in help_page.overview()


def test_readme_names_no_verb_that_does_not_exist() -> None:
    """Nor a sub-command of one."""
    text = manual.README.read_text(encoding="utf-8")
    used = set(re.findall(r"(?:\$ |`|&& |sudo )paddock ([a-z]+)", text))
    assert len(used) > 15
    assert used <= set(cli.VERBS)
    for verb, known in manual.SUBCOMMANDS.items():
        if "" not in known:
            assert set(re.findall(rf"paddock {verb} ([a-z]+)", text)) <= set(known)


def test_readme_names_no_option_that_does_not_exist() -> None:
    """Every long option in README is one of the programme's; behind `--` they are the command's."""
    sources = [path.read_text(encoding="utf-8") for path in (manual.ROOT / "launcher/verbs").rglob("*.py")]
    known = {name for name, *_ in cli.OPTIONS} | {"--help", "--version"}
    known |= {word for text in sources for word in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)}
    text = manual.README.read_text(encoding="utf-8")
    lines = [line.partition(" -- ")[0] for line in re.findall(r"paddock [^`\n]*", text)]
    used = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", "\n".join(lines)))
    assert used <= known
