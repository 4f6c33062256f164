"""A link called `claude` that leads to Paddock stands in the agent's place: same words, same status, in a jail."""

import os
from pathlib import Path

import pytest

from tests.support.identity import Who
from tests.support.paddock import Paddock, said

AGENT = """#!/bin/sh
printf '<%s>' "$@"
echo
cat ../secret 2>/dev/null || echo jailed
exit 7
"""


@pytest.fixture
def who(user: Who) -> Who:
    """An ordinary user: a name is found on PATH by whoever asks."""
    return user


@pytest.fixture
def real(paddock: Paddock) -> Path:
    """A directory that holds the real agents, in a tree that a jail is granted because its programme lies there."""
    return _agents(paddock.who, paddock.place / "real")


def _agents(who: Who, directory: Path) -> Path:
    directory.mkdir()
    for name in ("claude", "codex", "goose", "foo"):
        (directory / name).write_text(AGENT)
        (directory / name).chmod(0o755)
    (directory.parent / "secret").write_text("secret\n")
    who.give(directory.parent)
    return directory


@pytest.fixture
def links(paddock: Paddock) -> Path:
    """A directory with a link for each agent."""
    return _links(paddock, "links")


def _links(paddock: Paddock, name: str) -> Path:
    directory = paddock.place / name
    directory.mkdir()
    for agent in ("claude", "codex", "goose", "foo"):
        (directory / agent).symlink_to(paddock.installed.paddock)
    return paddock.who.give(directory)


def path_of(paddock: Paddock, *directories: Path) -> dict[str, str]:
    """A PATH in which these directories come first."""
    return {"PATH": ":".join([*map(str, directories), paddock.who.path])}


WORDS = ("run", "--", "--help", "", "two words", "a\nb", "-h", "--worktree=/", "*", "\udcff")


@pytest.mark.parametrize("name", ["foo", "goose"])
def test_every_word_is_the_commands(paddock: Paddock, real: Path, links: Path, name: str) -> None:
    """Nothing is taken for an option of Paddock's, nothing is changed, and the status is the command's."""
    ended = paddock.who.run([links / name, *WORDS], cwd=paddock.worktree, env=path_of(paddock, links, real))
    words = "".join(f"<{word}>" for word in WORDS)
    assert (ended.returncode, ended.stdout) == (7, f"{words}\njailed\n"), ended.stderr


@pytest.mark.spec("FR-004h")
@pytest.mark.parametrize("name", ["claude", "codex"])
def test_a_known_agent_is_told_its_limits(paddock: Paddock, real: Path, links: Path, name: str) -> None:
    """The provider is chosen by the name: its flags come beside the caller's words, which stay whole and in order."""
    env = path_of(paddock, links, real)
    ended = paddock.who.run([links / name, *WORDS], cwd=paddock.worktree, env=env)
    words = "".join(f"<{word}>" for word in WORDS)
    assert (ended.returncode, ended.stdout.count(words)) == (7, 1), ended
    assert ended.stdout.replace(words, "") != "\njailed\n"
    provider = {"claude": "claude-code"}.get(name, name)
    by_name = paddock.run("--provider", provider, "--", str(real / name), *WORDS, env=env)
    assert ended.stdout == by_name.stdout


def test_it_is_found_by_name_in_path(paddock: Paddock, real: Path, links: Path) -> None:
    """As a shell starts it, wherever the caller's directory is inside the worktree."""
    env = path_of(paddock, links, real)
    ended = paddock.who.run(["sh", "-c", "mkdir sub && cd sub && foo x"], cwd=paddock.worktree, env=env)
    assert (ended.returncode, ended.stdout.startswith("<x>")) == (7, True), ended.stderr


def test_links_to_paddock_are_passed_over(paddock: Paddock, real: Path, links: Path) -> None:
    """Two links, a link to a link, and a copy of Paddock under that name: none of them is the real one."""
    second = _links(paddock, "second")
    third = paddock.place / "third"
    third.mkdir()
    (third / "foo").symlink_to(second / "foo")
    copies = paddock.place / "copies"
    copies.mkdir()
    (copies / "foo").write_bytes(paddock.installed.paddock.read_bytes())
    (copies / "foo").chmod(0o755)
    paddock.who.give(paddock.place)
    env = path_of(paddock, links, second, third, copies, real)
    ended = paddock.who.run([links / "foo", "x"], cwd=paddock.worktree, env=env)
    assert (ended.returncode, ended.stdout) == (7, "<x>\njailed\n"), ended.stderr


def test_what_cannot_be_executed_is_passed_over(paddock: Paddock, real: Path, links: Path) -> None:
    """Directories, files without permission, dangling links and relative entries of PATH, as in execvp(3)."""
    odd = paddock.place / "odd"
    (odd / "one/foo").mkdir(parents=True)
    (odd / "two").mkdir()
    (odd / "two/foo").touch(0o644)
    (odd / "three").mkdir()
    (odd / "three/foo").symlink_to("nonexistent")
    (paddock.worktree / "foo").write_text("#!/bin/sh\necho planted\n")
    (paddock.worktree / "foo").chmod(0o755)
    paddock.who.give(paddock.place)
    entries = ["", ".", *(str(odd / name) for name in ("one", "two", "three")), str(links), str(real)]
    env = {"PATH": ":".join([*entries, paddock.who.path])}
    ended = paddock.who.run([links / "foo", "x"], cwd=paddock.worktree, env=env)
    assert (ended.returncode, ended.stdout) == (7, "<x>\njailed\n"), ended.stderr


def test_without_a_real_one(paddock: Paddock, links: Path) -> None:
    """127, and the name that was looked for."""
    second = _links(paddock, "second")
    for env in (path_of(paddock, links), path_of(paddock, links, second), {"PATH": f"{links}:/usr/bin:/bin"}):
        ended = paddock.who.run([links / "goose", "--help"], cwd=paddock.worktree, env=env)
        assert (ended.returncode, ended.stdout) == (127, "")
        error = said(ended.stderr)
        assert (error.reference, "goose" in error.text) == ("alias-without-command", True)


def test_outside_of_a_worktree(paddock: Paddock, real: Path, links: Path) -> None:
    """It does not start the agent unjailed, and says how the user would."""
    ended = paddock.who.run([links / "foo"], cwd=paddock.place, env=path_of(paddock, links, real))
    assert (ended.returncode, ended.stdout) == (125, "")
    error = said(ended.stderr)
    assert error.reference == "not-a-worktree"
    assert f"without a jail: {real / 'foo'}" in error.text


def test_a_link_called_paddock_is_paddock(paddock: Paddock, links: Path) -> None:
    """Only another name means a command."""
    (links / "paddock").symlink_to(paddock.installed.paddock)
    ended = paddock.who.run([links / "paddock", "--version"], cwd=paddock.worktree)
    assert (ended.returncode, ended.stdout.startswith("paddock ")) == (0, True)
    assert os.readlink(links / "paddock") == str(paddock.installed.paddock)
