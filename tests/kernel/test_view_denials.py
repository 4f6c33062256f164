"""A command that fails at a terminal because of its jail's view: what it named is told, with the option that helps."""

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.features import need
from tests.support.identity import AS_A_USER, Console, Word
from tests.support.paddock import Paddock

HEAD = "paddock: named by the command, and denied by the jail's view"


@pytest.fixture(params=[(), ("--backend", "bubblewrap")], ids=["namespaces", "bubblewrap"])
def options(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """What selects the backend."""
    need("bubblewrap" if request.param else "userns")
    words: tuple[str, ...] = request.param
    return words


BUBBLEWRAP = pytest.mark.parametrize("options", [("--backend", "bubblewrap")], indirect=True)
NAMESPACES = pytest.mark.parametrize("options", [()], indirect=True)
"""Of what is made of a command's words: that knows the plan, and not who mounts it."""


@pytest.fixture
def console(paddock: Paddock) -> Iterator[Console]:
    """A shell on a terminal, in the worktree."""
    with Console(paddock.who, paddock.worktree) as console:
        yield console


def shown(paddock: Paddock, console: Console, *words: Word, status: int) -> list[str]:
    """The lines at a terminal of `paddock run WORDS...`, which has to end with `status`."""
    console.run(shlex.join(paddock.words("run", *words)))
    found = console.expect(rf"(?s)^(.*)<{status}>")
    return found[1].replace("\r\n", "\n").strip("\n").splitlines()


def plant(paddock: Paddock, name: str) -> Path:
    """A file outside of the worktree."""
    path = paddock.place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("content\n")
    paddock.who.give(paddock.place)
    return path


@AS_A_USER
def test_what_is_not_there_and_what_is_read_only(paddock: Paddock, console: Console, options: tuple[str, ...]) -> None:
    """Named by the command line or by what the command says; the option that is told makes it pass."""
    secret, tree = plant(paddock, "outside/secret"), plant(paddock, "tree/file").parent
    lines = shown(paddock, console, *options, "--", "cat", secret, status=1)
    assert lines[1:] == [HEAD, f"paddock:   read {secret}: --ro {secret}", lines[-1]]
    lines = shown(paddock, console, *options, "--", "sh", "-c", "cat ../out*/secret ../outside/$0", "secret", status=1)
    assert f"paddock:   read {secret}: --ro {secret}" in lines
    assert shown(paddock, console, *options, "--ro", secret, "--", "cat", secret, status=0) == ["content"]
    command = ("--", "sh", "-c", "echo new >> ../tree/file")
    lines = shown(paddock, console, *options, "--ro", tree, *command, status=2)
    assert f"paddock:   write {tree}/file: --rw {tree}/file" in lines
    assert shown(paddock, console, *options, "--rw", f"{tree}/file", *command, status=0) == []


@AS_A_USER
@BUBBLEWRAP
def test_what_must_not_be_opened_is_named_without_an_option(
    paddock: Paddock, console: Console, options: tuple[str, ...]
) -> None:
    """Keys, tokens, Paddock's state, what the jail has of its own; and no link of the command's hides what it is."""
    key = plant(paddock, "them/.ssh/id_ed25519")
    token = plant(paddock, "them/.vault-token")
    paddock.run(*options, "--", "true")
    (paddock.worktree / "harmless").symlink_to(key)
    script = "echo \"cat: '$PWD/harmless': No such file or directory\"; exit 3"
    for words in (("cat", key, token, paddock.state), ("sh", "-c", script)):
        lines = shown(paddock, console, *options, "--", *words, status=3 if words[0] == "sh" else 1)
        about = next(line for line in lines if line.startswith(f"paddock:   read {key}: "))
        assert "private keys" in about
        assert words[0] == "sh" or any(line.startswith(f"paddock:   read {token}: it is hidden") for line in lines)
        assert not [line for line in lines if "--r" in line], lines


@AS_A_USER
@NAMESPACES
def test_it_is_only_a_hint(paddock: Paddock, console: Console, options: tuple[str, ...]) -> None:
    """Nothing of what is there and open, what is not there outside, or what nobody can open; and nothing unasked."""
    secret = plant(paddock, "outside/secret")
    script = "ls /nosuch/x; ls /dev/sda /proc/1/x; cat file; exit 4"
    assert HEAD not in shown(paddock, console, *options, "--", "sh", "-c", script, status=4)
    assert HEAD not in shown(paddock, console, *options, "--quiet", "--", "cat", secret, status=1)
    assert HEAD not in shown(paddock, console, *options, "--", "sh", "-c", f"cat {secret}; true", status=0)
    assert HEAD not in paddock.run(*options, "--", "cat", secret).stderr
    hostile = plant(paddock, "outside/\x1b[31mred")
    lines = shown(paddock, console, *options, "--", "cat", hostile, status=1)
    assert "\x1b" not in "".join(line for line in lines if line.startswith("paddock:"))
    many = 'for i in 1 2 3 4 5 6; do echo "cat: $0$i: No such file or directory"; done; exit 5'
    for number in range(1, 7):
        plant(paddock, f"outside/many{number}")
    lines = shown(paddock, console, *options, "--", "sh", "-c", many, paddock.place / "outside/many", status=5)
    assert "paddock:   and 3 more" in lines
    assert len([line for line in lines if line.startswith("paddock:")]) == 6


@AS_A_USER
def test_a_command_that_misses_the_network_is_told_how_to_have_it(paddock: Paddock, options: tuple[str, ...]) -> None:
    """Without a terminal too; not where it ended well, failed for another reason, was quiet, or has a network."""
    asks = "import socket; socket.getaddrinfo('asked.example', 443)"
    goes = "import socket; socket.create_connection(('198.51.100.7', 443))"
    for script in (asks, goes):
        ended = paddock.run(*options, "--", "/usr/bin/python3", "-c", script)
        assert "paddock: the command wanted the network, and this jail has none: --allow-domain" in ended.stderr
    others = (
        ("--", "false"),
        ("--", "sh", "-c", f"/usr/bin/python3 -c {shlex.quote(goes)}; true"),
        ("--quiet", "--", "/usr/bin/python3", "-c", goes),
        ("--net", "open", "--", "false"),
    )
    for words in others:
        assert "wanted the network" not in paddock.run(*options, *words).stderr
