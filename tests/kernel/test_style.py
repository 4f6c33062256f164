"""Output for people looks as the user has told git, as to paths, colour and pager; never as a repository says."""

import shlex
from collections.abc import Iterator

import pytest

from tests.support.identity import AS_A_USER, Console
from tests.support.paddock import Paddock

NAMES = ("plain", "\u00e4", "tab\there", 'quo"te', "back\\slash", "line\nbreak", "esc\x1b[31m", "\u200fmark", "a b")


@pytest.fixture
def console(paddock: Paddock) -> Iterator[Console]:
    """A shell on a terminal that has colours, in the worktree."""
    with Console(paddock.who, paddock.worktree) as console:
        console.run("export TERM=xterm LANG=C.UTF-8; stty cols 400")
        console.expect("<0>")
        yield console


def configured(paddock: Paddock, key: str, value: str) -> None:
    """Sets something in the user's own git configuration."""
    assert paddock.who.run(["git", "config", "--global", key, value]).returncode == 0


def shown(paddock: Paddock, console: Console, *words: str, status: int = 0, before: str = "") -> str:
    """What the terminal shows of `paddock WORDS...`, which has to end with `status`."""
    console.run(f"{before} {shlex.join(paddock.words(*words))}")
    return console.expect(rf"(?s)^(.*)<{status}>")[1].replace("\r\n", "\n").lstrip("\n")


@AS_A_USER
@pytest.mark.parametrize("quote", ["true", "false"])
def test_paths_are_printed_as_git_prints_them(paddock: Paddock, quote: str) -> None:
    """git ls-files is the oracle; what could drive a terminal is escaped whatever is set."""
    configured(paddock, "core.quotePath", quote)
    assert paddock.call("worktree", "add", "T", "--path", str(paddock.place / "T")).returncode == 0
    for at in range(0, len(NAMES), 3):
        assert paddock.who.run(["git", "clean", "-fdq"], cwd=paddock.place / "T").returncode == 0
        for name in NAMES[at : at + 3]:
            (paddock.place / "T" / name).write_text("")
            paddock.who.give(paddock.place / "T" / name)
        listed = paddock.who.run(["git", "ls-files", "--others"], cwd=paddock.place / "T").stdout.splitlines()
        said = paddock.call("worktree", "status", "T", cwd=paddock.main).stdout
        (line,) = [line for line in said.splitlines() if "not committed: " in line]
        for name in listed:  # where git shows a character that turns the line's direction, Paddock does not
            assert name in line.partition(": ")[2] or "\u200f" in name, (name, line)
        assert "\x1b" not in line
        assert "\u200f" not in line


@AS_A_USER
def test_colour_is_the_users_and_not_the_repositorys(paddock: Paddock, console: Console) -> None:
    """color.ui, NO_COLOR and TERM=dumb count, and a pipe has none."""
    words = ("worktree", "status", str(paddock.worktree))
    assert paddock.call("worktree", "adopt", str(paddock.worktree), "--ticket", "T").returncode == 0
    console.run("export PAGER=cat")
    console.expect("<0>")
    green = "\x1b[32m" if paddock.call(*words).returncode == 0 else "\x1b[31m"
    status = 0 if green == "\x1b[32m" else 1
    assert green in shown(paddock, console, *words, status=status)
    assert "\x1b" not in paddock.call(*words).stdout
    for before in ("NO_COLOR=1", "TERM=dumb"):
        assert "\x1b[3" not in shown(paddock, console, *words, status=status, before=before)
    assert paddock.who.run(["git", "config", "color.ui", "never"], cwd=paddock.main).returncode == 0
    assert green in shown(paddock, console, *words, status=status)
    configured(paddock, "color.ui", "never")
    assert "\x1b[3" not in shown(paddock, console, *words, status=status)
    configured(paddock, "color.ui", "always")
    assert green in paddock.call(*words).stdout


@AS_A_USER
def test_the_pager_is_the_users_and_not_the_repositorys(paddock: Paddock, console: Console) -> None:
    """Chosen as git chooses it; the verb's status stays, a pager that ends early is no error, and one that is not
    there hides nothing."""
    page, failing = ("help", "network"), ("explain", "/nosuch/x")
    mark = "sed s/^/paged:/"
    assert shown(paddock, console, *page, before=f"PAGER={mark!r}").startswith("paged:")
    configured(paddock, "core.pager", "sed s/^/mine:/")
    assert shown(paddock, console, *page, before=f"PAGER={mark!r}").startswith("mine:")
    assert shown(paddock, console, *page, before=f"GIT_PAGER={mark!r}").startswith("paged:")
    assert ":" not in shown(paddock, console, *page, before="GIT_PAGER=cat")[:6]
    assert "mine:" in shown(paddock, console, *failing, status=1)
    assert "mine:" not in shown(paddock, console, *failing, "--json", status=1)
    assert "mine:" not in paddock.call(*page).stdout
    assert shown(paddock, console, *failing, status=1, before="GIT_PAGER=true") == ""
    assert "not granted" in shown(paddock, console, *failing, status=1, before="GIT_PAGER=/nosuch/pager")
    assert "no help page" in shown(paddock, console, "help", "nosuchpage", status=125)
    for key in ("core.pager", "pager.help"):
        assert paddock.who.run(["git", "config", key, "sed s/^/theirs:/"], cwd=paddock.main).returncode == 0
    assert "theirs:" not in shown(paddock, console, *page)


def test_no_directory_of_an_agents_chooses_the_pager(paddock: Paddock, console: Console) -> None:
    """PATH leads into the worktree, as with an active virtual environment, and there is a `more-or-less` in it."""
    (bin := paddock.worktree / "bin").mkdir()
    for name, where in (("theirs", bin), ("mine", paddock.place)):
        (where / "more-or-less").write_text(f"#!/bin/sh\nsed s/^/{name}:/\n")
        (where / "more-or-less").chmod(0o755)
    paddock.who.give(paddock.place)
    assert paddock.run("--", "true").returncode == 0  # from now on the worktree is on record
    page = shown(paddock, console, "help", "network", before=f"PAGER=more-or-less PATH={bin}:{paddock.place}:$PATH")
    assert page.startswith("mine:")
