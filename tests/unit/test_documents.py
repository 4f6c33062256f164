"""README, man page and --help say what the programme does, because they come from its tables."""

import inspect
import re
import subprocess

from launcher import cli
from launcher.service.schema import OnConflict
from launcher.vcs.merge.into_children import Order
from launcher.vcs.worktrees import retention
from launcher.verbs import forms
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
    page = manual.man_page()
    for form in manual.described():
        assert f".B paddock {form.name}\n" in page
        assert manual.synopsis(form)
        for row in form.options:
            assert f"\\fB{row.name.replace('-', chr(92) + '-')}\\fR" in page


def test_the_overview_names_every_verb() -> None:
    """`paddock --help` lists each verb of the table with its summary."""
    for name, summary in cli.VERBS.items():
        assert f"{name:<9} {summary}" in forms.overview()


def test_readme_names_no_verb_that_does_not_exist() -> None:
    """Nor a sub-command of one."""
    text = manual.README.read_text(encoding="utf-8")
    used = set(re.findall(r"(?:\$ |`|&& |sudo )paddock ([a-z]+)", text))
    assert len(used) > 15
    assert used <= set(cli.VERBS)
    for verb in ("worktree", "service", "tickets"):
        assert set(re.findall(rf"paddock {verb} ([a-z]+)", text)) <= set(forms.subcommands(verb))


def test_readme_names_no_option_that_does_not_exist() -> None:
    """Every long option in README is one of the programme's; behind `--` they are the command's."""
    known = {name for name, *_ in cli.OPTIONS} | {"--help", "--version"}
    known |= {row.name for name in forms.texts() for row in forms.form(name).options}
    known |= {cli.contrary(row.name) for row in forms.LAUNCH if row.kind == cli.SWITCH}
    text = manual.README.read_text(encoding="utf-8")
    lines = [line.partition(" -- ")[0] for line in re.findall(r"paddock [^`\n]*", text)]
    used = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", "\n".join(lines)))
    assert used <= known
