"""`paddock completion`: what the printed scripts offer, asked of the shells themselves where they are installed."""

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from launcher import cli
from launcher.__main__ import main
from launcher.verbs import completion, forms, pages
from policy.errors import EXIT_REFUSED
from tests.support import features

SHELLS = ("bash", "zsh", "fish")

ASK = {
    # How a shell completes a command line; its last word is the one that is being written.
    "bash": 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _paddock; printf "%s\\n" "${COMPREPLY[@]}"',
    "fish": "source $argv[1]; for line in $argv[2..]; set words (string split \\x1f -- $line); "
            "complete -C (string join -- ' ' (string escape -- $words[1..-2]) $words[-1]); printf '\\x1e\\n'; end",
}  # fmt: skip


@pytest.fixture(params=sorted(ASK))
def shell(request: pytest.FixtureRequest) -> str:
    """A shell that is installed and can be asked."""
    name = str(request.param)
    if name != "bash":
        features.need("shells")
    return name


@pytest.fixture(params=SHELLS)
def script(request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, Path]:
    """A shell's name, and a file with what is printed for it."""
    return str(request.param), written(str(request.param), tmp_path, capsys)


def written(name: str, directory: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The script for a shell, in a file."""
    assert main(["paddock", "completion", name]) == 0
    path = directory / f"completion.{name}"
    path.write_text(capsys.readouterr().out)
    return path


def offered(shell: str, script: Path, *words: str, cwd: Path) -> list[str]:
    """What a shell offers for the last of some words."""
    return next(offered_each(shell, script, words, cwd=cwd))


def offered_each(shell: str, script: Path, *lines: Sequence[str], cwd: Path) -> Iterator[list[str]]:
    """The same for several lines. Starting fish takes longer than asking it."""
    if shell == "bash":
        for words in lines:
            yield printed(shell, script, "paddock", *words, cwd=cwd).split()
        return
    said = printed(shell, script, *("\x1f".join(["paddock", *words]) for words in lines), cwd=cwd)
    for each in said.split("\x1e\n")[:-1]:
        yield [line.partition("\t")[0] for line in each.splitlines() if line]


def printed(shell: str, script: Path, *words: str, cwd: Path) -> str:
    """What the shell's programme of `ASK` prints."""
    plain = {"bash": ["--norc", "--noprofile", "-c", ASK["bash"], "bash"], "fish": ["-N", "-c", ASK["fish"]]}[shell]
    home = {"PATH": "/usr/bin:/bin", "HOME": str(cwd), "LC_ALL": "C.UTF-8"}
    ended = subprocess.run(
        [shell, *plain, str(script), *words], cwd=cwd, env=home, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ended.stderr == ""
    return ended.stdout


def test_what_is_offered(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Verbs, sub-commands, options of one form alone, the words of a value, directories, commands."""
    script = written(shell, tmp_path, capsys)
    place = tmp_path / "place"
    (place / "inner").mkdir(parents=True)
    (place / "a-file").touch()

    def asked(*words: str) -> list[str]:
        return offered(shell, script, *words, cwd=place)

    assert set(cli.VERBS) <= set(asked(""))
    assert sorted(asked("wo")) == ["worktree"]
    assert sorted(asked("worktree", "")) == sorted(forms.subcommands("worktree"))
    assert sorted(asked("acp", "--fs", "")) == ["editor", "jail", "strip"]
    assert asked("run", "--net", "pr") == ["proxy"]
    assert sorted(asked("merge", "--order", "")) == ["age", "given", "name", "size"]
    assert sorted(asked("completion", "")) == sorted(SHELLS)
    assert asked("worktree", "add", "T", "--sp") == ["--sparse"]
    assert asked("worktree", "list", "--sp") == []
    assert [word.rstrip("/") for word in asked("run", "--worktree", "")] == ["inner"]
    assert "--json" not in asked("run", "--")
    assert {"--no-sign", "--rw", "--help"} <= set(asked("run", "--"))
    assert "--into" not in asked("merge", "status", "--")
    assert "--into" in asked("merge", "--")
    assert "git" in asked("run", "--", "gi")
    assert "--net" not in asked("run", "--", "git", "--n")


def test_every_option_and_choice_is_offered(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Asked one by one, they are those that the parser takes, and no others."""
    script = written(shell, tmp_path, capsys)
    taken = [form for form, _ in completion.described() if form.rows]
    assert len(taken) > 30
    asking = [(*form.name.split(), "--") for form in taken]
    for form, found in zip(taken, offered_each(shell, script, *asking, cwd=tmp_path), strict=True):
        rows = forms.LAUNCH if form.name == "run" else form.rows
        names = {row.name for row in rows} | {cli.contrary(row.name) for row in rows if row.kind == cli.SWITCH}
        assert {*found} - {"--"} == names | {"--help"}
    chosen = {row.name: (form, row.choices) for form in taken for row in form.rows if row.choices}
    assert len(chosen) >= 12
    asking = [(*form.name.split(), name, "") for name, (form, _) in chosen.items()]
    for (_, choices), found in zip(chosen.values(), offered_each(shell, script, *asking, cwd=tmp_path), strict=True):
        assert sorted(found) == sorted(choices)
    assert set(offered(shell, script, "help", "", cwd=tmp_path)) == {*pages.names(), *cli.VERBS}


def test_a_value_after_an_equals_sign(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Readline hands the sign over as a word of its own (COMP_WORDBREAKS in bash(1))."""
    script = written("bash", tmp_path, capsys)
    assert offered("bash", script, "acp", "--fs", "=", cwd=tmp_path) == ["jail", "editor", "strip"]
    assert offered("bash", script, "acp", "--fs", "=", "ed", cwd=tmp_path) == ["editor"]


def test_scripts_are_read_by_their_shells(script: tuple[str, Path]) -> None:
    """No syntax error; where the shell is not installed, at least every verb and option is in its script."""
    name, path = script
    text = path.read_text()
    for form, known in completion.described():
        assert all(word in text for word in (form.name.partition(" ")[2] or form.name, *known))
        for names, _ in completion.rows(form):
            for each in names:
                spelled = each if name != "fish" else f"-l {each[2:]}" if each.startswith("--") else f"-s {each[1:]}"
                assert spelled in text
    if shutil.which(name):
        assert subprocess.run([name, "-n", str(path)], capture_output=True, text=True, check=False).stderr == ""


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("acp --fs ", {"jail", "editor", "strip"}),
        ("worktree ", {"add", "list", "harvest"}),
        ("completion ", set(SHELLS)),
        ("tickets resume --on", {"--on-conflict"}),
    ],
)
def test_zsh_completes(typed: str, shown: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a terminal of zsh's own, because completion functions run in its line editor alone (zshcompwid(1))."""
    features.need("shells")
    script = written("zsh", tmp_path, capsys)
    program = f"""
        zmodload zsh/zpty
        zpty shell zsh -f -i
        zpty -w shell 'autoload -U compinit; compinit -D -u; source {script}; PS1=; print re''ady'
        zpty -r shell seen '*ready*'
        zpty -w -n shell $'paddock {typed}\\t\\t'
        repeat 1200; do
            while zpty -r -t shell seen; do print -rn -- $seen; all+=$seen; done
            if [[ {" && ".join(f"$all == *{word}*" for word in sorted(shown))} ]]; then break; fi
            sleep 0.05
        done
        zpty -d shell
    """
    home = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "TERM": "dumb", "LC_ALL": "C.UTF-8"}
    ended = subprocess.run(["zsh", "-f", "-c", program], env=home, capture_output=True, text=True, check=False)
    assert shown <= set(re.findall(r"[\w-]+", ended.stdout)), ended.stdout + ended.stderr


def test_an_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """And which there are is said."""
    assert main(["paddock", "completion", "tcsh"]) == EXIT_REFUSED
    assert "tcsh is not one of bash, zsh, fish" in capsys.readouterr().err
    assert main(["paddock", "completion"]) == EXIT_REFUSED
    capsys.readouterr()
