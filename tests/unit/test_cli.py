"""The hand-written parser of the prefix form."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher import cli
from launcher.verbs import forms
from policy.config import layer
from policy.errors import Refusal

VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1).filter(
    lambda text: not text.startswith("-")
)
WITH_VALUE = [name for name, kind, _, _ in cli.OPTIONS if kind in (cli.ONE, cli.MANY)]
SWITCHES = [name for name, kind, _, _ in cli.OPTIONS if kind == cli.SWITCH]
FLAGS = [name for name, kind, _, _ in cli.OPTIONS if kind == cli.FLAG] + SWITCHES


def refused(*words: str, verb: str = "run") -> Refusal:
    with pytest.raises(Refusal) as caught:
        cli.parse(list(words), verb=verb)
    assert (caught.value.reference, caught.value.exit_code) == ("usage", 125)
    return caught.value


def test_the_command_begins_at_the_first_other_word() -> None:
    """With and without `--`, and options behind it are the command's."""
    assert cli.parse(["--net", "none", "sh", "--net", "open"], verb="run") == (
        {"--net": "none"},
        ["sh", "--net", "open"],
    )
    assert cli.parse(["--net=none", "--", "--net", "x"], verb="run") == ({"--net": "none"}, ["--net", "x"])
    assert cli.parse(["--", "--", "x"], verb="run") == ({}, ["--", "x"])
    assert cli.parse(["-"], verb="run") == ({}, ["-"])
    assert cli.parse([], verb="run") == ({}, [])


def test_repeated_options() -> None:
    """Those that may be repeated add up, of the others the last one counts."""
    options, _ = cli.parse(["--rw", "a", "--rw=b", "--net", "open", "--net=none"], verb="run")
    assert options == {"--rw": ["a", "b"], "--net": "none"}


def test_short_forms() -> None:
    """-v and -h are all there is."""
    assert cli.parse(["-v"], verb="run")[0] == {"--verbose": True}
    assert cli.parse(["-h", "--nonsense"], verb="run") == ({"--help": True}, [])
    assert "unknown option -x" in refused("-x").message


def test_values_keep_their_equals_signs() -> None:
    """Only the first one divides."""
    assert cli.parse(["--env", "A=b=c", "--env=D=e=f"], verb="run")[0] == {"--env": ["A=b=c", "D=e=f"]}


@pytest.mark.parametrize("name", WITH_VALUE)
def test_a_value_is_needed(name: str) -> None:
    """None, an empty one, `--` and another option are no values; with an equals sign anything is."""
    for words in ([name], [name, ""], [f"{name}="], [name, "--"], [name, "--net"], [name, "--rw=x"]):
        assert f"{name} needs a value" in refused(*words).message
    options, rest = cli.parse([f"{name}=--net", "x"], verb="run")
    assert (options[name] in ("--net", ["--net"]), rest) == (True, ["x"])


@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_takes_none(name: str) -> None:
    """Not even a yes."""
    assert cli.parse([name, "x"], verb="run") == ({name: True}, ["x"])
    assert refused(f"{name}=yes").message == f"{name} takes no value"


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_has_a_contrary_and_the_last_of_both_counts(name: str) -> None:
    """Every switch says what a key of the configuration says, so each run can differ from it both ways."""
    assert name in layer.FLAG_OF.values()
    contrary = f"--no-{name[2:]}"
    assert cli.parse([name, contrary, "x"], verb="run") == ({contrary: True}, ["x"])
    assert cli.parse([contrary, name, "x"], verb="run") == ({name: True}, ["x"])
    assert forms.joined({name: True}, {contrary: True}) == {contrary: True}
    assert refused(f"{contrary}=yes").message == f"{contrary} takes no value"
    assert "unknown option --no-quiet" in refused("--no-quiet").message
    (table, key) = next(known for known, flag in layer.FLAG_OF.items() if flag == name).split(".")
    for word, value in ((name, True), (contrary, False)):
        assert getattr(getattr(layer.layer({word: True}, cwd="/", home="/").content, table), key) is value


def test_the_nearest_option_is_named() -> None:
    """When there is one that is near."""
    assert "did you mean --worktree?" in refused("--worktre=x").context
    assert refused("--zzzzzzzz").context == ""
    assert "did you mean explain?" in cli.unknown_verb("exlpain").context
    assert ", ".join(cli.VERBS) in cli.unknown_verb("zzz").context


def test_options_of_one_verb() -> None:
    """A verb's own rows are known to it alone."""
    extra = (("--json", cli.FLAG, "", "print JSON"),)
    assert cli.parse(["--json"], verb="explain", options=(*extra, *cli.OPTIONS))[0] == {"--json": True}
    refused("--json")


@given(st.lists(st.tuples(st.sampled_from(WITH_VALUE), VALUES, st.booleans())), st.lists(st.text()))
def test_what_is_given_comes_out(given_options: list[tuple[str, str, bool]], command: list[str]) -> None:
    """Any options in either spelling, then any command: the command is untouched, each value is where it belongs."""
    words = [
        word for name, value, joined in given_options for word in ([f"{name}={value}"] if joined else [name, value])
    ]
    options, rest = cli.parse([*words, "--", *command], verb="run")
    assert rest == command
    for name, value, _ in given_options:
        found = options[name]
        last = [other for known, other, _ in given_options if known == name][-1]
        assert value in found if isinstance(found, list) else found == last


def test_help_names_every_option_and_verb() -> None:
    """The same tables serve parser and help; nothing is in two groups, or in none."""
    text = forms.of_verb(forms.form("run"))
    shown = re.findall(r"(?m)^  (--[a-z-]+)", text)
    assert sorted(shown) == sorted(name for name, *_ in cli.OPTIONS)
    assert "paddock run -- bash" in text
    verbs = re.findall(r"(?m)^  ([a-z]+) ", forms.overview().partition("examples:")[0])
    assert sorted(verbs) == sorted(cli.VERBS)
    for line in (text + forms.overview()).splitlines():
        assert len(line) <= 100


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["-af", "x"], ({"--all": True, "--follow": True}, ["x"])),
        (["x", "-an5", "y"], ({"--all": True, "--limit": "5"}, ["x", "y"])),
        (["-n=5"], ({"--limit": "5"}, [])),
        (["-n", "-5"], ({"--limit": "-5"}, [])),
        (["x", "--", "--all"], ({}, ["x", "--all"])),
    ],
)
def test_options_among_operands(words: list[str], found: tuple[cli.Parsed, list[str]]) -> None:
    """Where a verb takes no command, options may stand anywhere, and their short forms together."""
    rows = (
        ("--all", cli.FLAG, "", "", "-a"),
        ("--follow", cli.FLAG, "", "", "-f"),
        ("--limit", cli.ONE, "N", "", "-n"),
    )
    assert cli.parse(words, verb="ps", options=rows, mixed=True) == found
    with pytest.raises(Refusal, match="unknown option -z"):
        cli.parse(["-az"], verb="ps", options=rows, mixed=True)


def test_the_version_is_that_of_the_installed_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory beside the package names it, without reading it; where there is none, the metadata are asked."""
    (tmp_path / "launcher").mkdir()
    monkeypatch.setattr(cli, "__file__", str(tmp_path / "launcher/cli.py"))
    monkeypatch.setattr("importlib.metadata.version", lambda name: f"{name} of the metadata")
    assert cli.version() == "paddock-launcher of the metadata"
    (tmp_path / "paddock_launcher-1.2.3.dist-info").mkdir()
    assert cli.version() == "1.2.3"
