"""Whatever is wrong with what Paddock is given: one clear error, a stable exit status, nothing left behind."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.identity import Who
from tests.support.paddock import Paddock, said

EXECUTABLE = 0o755


@pytest.fixture
def who(user: Who) -> Who:
    """An ordinary user: what is wrong with a command line is so whoever types it."""
    return user


def script(path: Path, text: str, who: Who, mode: int = EXECUTABLE) -> Path:
    """Writes a file that belongs to `who`."""
    path.write_text(text)
    path.chmod(mode)
    return who.give(path)


# Commands


def test_a_missing_command(paddock: Paddock) -> None:
    """127, and the places that were searched, whether a name or a path was given."""
    for word in ("nonexistent", "./nonexistent", "/nonexistent/x", "file/x"):
        error = paddock.refused("run", "--", word, status=127)
        assert error.reference == "command-not-found"
        assert word in error.text
    assert "looked in: " in paddock.refused("run", "--", "nonexistent", status=127).text


def test_a_file_without_permission(paddock: Paddock) -> None:
    """126, and how to make it executable."""
    script(paddock.worktree / "a file", "#!/bin/sh\n", paddock.who, 0o644)
    error = paddock.refused("run", "--", "./a file", status=126)
    assert error.reference == "command-not-executable"
    assert f"chmod +x '{paddock.worktree}/a file'" in error.text


def test_a_directory_or_device_as_command(paddock: Paddock) -> None:
    """126, as from a shell, and what it is."""
    for word, what in ((".", "command not found"), ("./", "directory"), ("/tmp", "directory"), ("/dev/null", "device")):
        error = paddock.refused("run", "--", word, status=127 if word == "." else 126)
        assert what in error.text


def test_a_script_without_interpreter_line(paddock: Paddock, backend: dict[str, str]) -> None:
    """126, and how to start it."""
    script(paddock.worktree / "plain", "echo hello\n", paddock.who)
    error = paddock.refused("run", "--", "./plain", status=126, env=backend)
    assert error.reference == "command-not-executable"
    assert "paddock run -- sh " in error.text
    assert paddock.run("--", "sh", "./plain", env=backend).stdout == "hello\n"


def test_an_interpreter_that_is_not_there(paddock: Paddock, backend: dict[str, str]) -> None:
    """The interpreter is named, whether it is missing everywhere or only in the jail."""
    hidden = script(paddock.place / "interpreter", "#!/bin/sh\n", paddock.who)
    for interpreter in ("/nonexistent/interpreter", str(hidden)):
        script(paddock.worktree / "script", f"#!{interpreter}\n", paddock.who)
        status = 126 if backend and interpreter == str(hidden) else 127  # without mounts it is there, but closed
        error = paddock.refused("run", "--", "./script", status=status, env=backend)
        assert error.reference == ("command-not-found" if status == 127 else "command-not-executable")
        assert f"paddock explain {interpreter}" in error.text


# Words


# Words, and a part of the refusal.
MEANINGLESS: list[tuple[list[str], str]] = [
    (["run"], "there is no command to run"),
    (["run", "--"], "there is no command to run"),
    (["run", "--worktre", "x", "--", "true"], "did you mean --worktree?"),
    (["run", "--worktree"], "--worktree needs a value"),
    (["run", "--worktree", "--", "true"], "--worktree needs a value"),
    (["run", "--worktree", "--net", "none", "--", "true"], "--worktree needs a value"),
    (["run", "--freeze-root=yes", "--", "true"], "--freeze-root takes no value"),
    (["run", "--env", "=x", "--", "true"], "is not a variable name"),
    (["run", "--net", "some", "--", "true"], "'none', 'auto', 'proxy' or 'open'"),
    (["run", "--git", "some", "--", "true"], "'auto', 'private', 'readonly' or 'shared'"),
    (["run", "--backend", "some", "--", "true"], "'auto', 'landlock' or 'bubblewrap'"),
    (["run", "--dialect", "some", "--", "true"], "'native' or 'contract'"),
    (["run", "--limit", "memory", "--", "true"], "--limit memory needs a value"),
    (["run", "--limit", "memory=", "--", "true"], "is not a size"),
    (["run", "--limit", "memory=lots", "--", "true"], "is not a size"),
    (["run", "--limit", "memory=-1", "--", "true"], "is not a size"),
    (["run", "--limit", "memory=0", "--", "true"], "must be between"),
    (["run", "--limit", f"memory={10**30}", "--", "true"], "is not a size"),
    (["run", "--limit", "memoy=1G", "--", "true"], "did you mean memory?"),
    (["run", "--allow-domain", "a b", "--", "true"], "is not an egress rule"),
    (["explain", "--pln"], "did you mean --plan?"),
    (["explain", "a", "b"], "explain takes one PATH"),
    (["explain", "--plan", "a"], "explain takes one PATH"),
    (["explain", ""], "PATH is empty"),
    (["doctor", "--jsn"], "--jsn"),
    (["doctor", "extra"], "extra"),
    (["trust", ""], "FILE is an empty name"),
    (["trust", "--list", "x"], "--list takes neither FILE"),
    (["init", "--forse"], "--forse"),
    (["rum"], "did you mean run?"),
    (["--versio"], "did you mean --version?"),
]


def test_words_that_mean_nothing(file_paddock: Paddock) -> None:
    """One line says which word it is, and the hint leads on; the status is 125 for each."""
    commands = [words for words, _ in MEANINGLESS]
    for (words, text), error in zip(MEANINGLESS, file_paddock.refused_each(*commands), strict=True):
        assert (words, error.reference) == (words, "usage")
        assert text in error.text
        assert "hint:" in error.text


OPTIONS = ("worktree", "provider", "dialect", "rw", "ro", "deny", "submodule", "net", "allow-domain", "env", "backend",
           "git", "limit", "config", "session", "report")  # fmt: skip


def test_empty_values(file_paddock: Paddock) -> None:
    """No option takes an empty word for an answer: it is an unset variable of a script."""
    forms = [(name, words) for name in OPTIONS for words in ([f"--{name}", ""], [f"--{name}="])]
    errors = file_paddock.refused_each(*(["run", *words, "--", "true"] for _, words in forms))
    for (name, words), error in zip(forms, errors, strict=True):
        assert (words, error.reference, f"--{name} needs a value" in error.text) == (words, "usage", True)


def test_a_value_may_look_like_an_option(file_paddock: Paddock) -> None:
    """With an equals sign it is taken as it is."""
    error = file_paddock.refused("run", "--worktree=--net", "--", "true")
    assert error.reference == "worktree-missing"


def test_what_cannot_be_held_here_refuses(file_paddock: Paddock) -> None:
    """A mode that was asked for by name never does silently less."""
    error = file_paddock.refused("run", "--git", "private", "--", "true", env={"PADDOCK_NO_USERNS": "1"})
    assert error.reference == "git-private-impossible"
    assert "hint:" in error.text


def test_an_unknown_provider_or_submodule(file_paddock: Paddock) -> None:
    """The known ones are listed."""
    error = file_paddock.refused("run", "--provider", "claude", "--", "true")
    assert error.reference == "provider-unknown"
    assert "claude-code, codex, copilot" in error.text
    assert "--env NOSUCH: not set" in file_paddock.run("--env", "NOSUCH", "--env", "A=1", "--", "true").stderr
    assert file_paddock.refused("run", "--submodule", "none", "--", "true").reference == "submodule-unknown"


def test_a_grant_on_nothing(file_paddock: Paddock) -> None:
    """What cannot be granted is refused; what cannot be denied is only mentioned."""
    error = file_paddock.refused("run", "--rw", "/nonexistent", "--", "true")
    assert error.reference == "grant-missing"
    assert file_paddock.refused("run", "--deny", "..", "--", "true").reference == "deny-worktree"
    ended = file_paddock.run("--deny", "/nonexistent", "--", "true")
    assert (ended.returncode, "there is nothing to deny" in ended.stderr) == (0, True)


def test_terminal_sequences_are_shown_escaped(file_paddock: Paddock) -> None:
    """A name with control characters, or bytes that are no text, cannot drive the terminal from an error."""
    evil = "\x1b[31mred\x1b]0;title\x07\n\udcff"
    assert file_paddock.refused("run", "--", evil, status=127).reference == "command-not-found"
    file_paddock.refused_each(
        ["run", "--worktree", evil, "--", "true"],
        ["run", "--rw", evil, "--", "true"],
        ["run", "--config", evil, "--", "true"],
        ["run", "--session", evil, "--", "true"],
        ["run", "--report", evil + "/x", "--", "true"],
        ["run", "--provider", evil, "--", "true"],
        ["run", "--limit", evil, "--", "true"],
        ["run", "--env", evil, "--", "true"],
        ["run", f"--{evil}", "--", "true"],
        ["trust", evil],
        [evil],
    )
    ended = file_paddock.call("explain", evil)
    assert (ended.returncode, ended.stderr, "\\x1b[31mred" in ended.stdout) == (0, "", True)


# Worktrees


def test_a_worktree_that_is_none(paddock: Paddock) -> None:
    """Each way of not being a worktree has its own name."""
    place = paddock.place
    paddock.who.run(["git", "init", "-q", "--bare", "bare"], cwd=place)
    for name in ("plain", "closed"):
        paddock.who.give(made(place / name))
    (place / "dangling").symlink_to("nonexistent")
    (place / "loop").symlink_to("loop")
    for name, reference in (
        ("nonexistent", "worktree-missing"),
        ("dangling", "worktree-missing"),
        ("loop", "worktree-missing"),
        ("one/file", "worktree-not-directory"),
        ("one/file/x", "worktree-missing"),
        ("plain", "not-a-worktree"),
        ("bare", "bare-repository"),
        ("main/.git", "bare-repository"),
    ):
        error = paddock.refused("run", "--worktree", f"../{name}", "--", "true")
        assert (error.reference, "hint:" in error.text) == (reference, True)
    error = paddock.refused("run", "--", "true", cwd=place / "plain")
    assert (error.reference, "--worktree DIR" in error.text) == ("not-a-worktree", True)
    # Each verb's hint names what that verb takes.
    for words in (["init"], ["merge", "x"], ["worktree", "list"], ["worktree", "add", "x"]):
        for name in ("plain", "bare"):
            error = paddock.refused(*words, cwd=place / name)
            assert ("hint:" in error.text, "--worktree" in error.text) == (True, False), error.text


def made(path: Path) -> Path:
    path.mkdir()
    return path


def test_a_worktree_behind_a_link(paddock: Paddock, backend: dict[str, str]) -> None:
    """A link to a worktree is as good as its own name."""
    (paddock.place / "link").symlink_to("one")
    ended = paddock.run("--worktree", "../link", "--", "pwd", cwd=paddock.place / "main", env=backend)
    assert (ended.returncode, ended.stdout) == (0, f"{paddock.worktree}\n")


def test_a_worktree_that_cannot_be_read(user_paddock: Paddock) -> None:
    """A directory without permissions on the way is named as such."""
    closed = user_paddock.who.give(made(user_paddock.place / "closed"))
    shutil.move(user_paddock.worktree, closed / "one")
    closed.chmod(0)
    error = user_paddock.refused("run", "--worktree", f"{closed}/one", "--", "true", cwd=user_paddock.place)
    assert error.reference == "worktree-missing"
    closed.chmod(0o700)


def test_a_pointer_that_leads_astray(paddock: Paddock) -> None:
    """A `.git` file that an agent rewrote is refused and named."""
    for text in ("", "gitdir: /nonexistent\n", "gitdir: ../main/.git\n", "gitdir: .\n", "\0" * 100):
        (paddock.worktree / ".git").write_text(text)
        error = paddock.refused("run", "--", "true")
        assert (error.reference, "/one/.git" in error.text) == ("git-pointer-invalid", True)


def test_a_current_directory_that_is_gone(paddock: Paddock) -> None:
    """Every verb that needs it says so."""
    for verb in ("run -- true", "explain /", "init", "trust x", "run --dry-run -- true"):
        ended = paddock.shell(f"mkdir ../gone && cd ../gone && rmdir ../gone && paddock {verb}")
        assert (ended.returncode, ended.stdout) == (125, "")
        (text,) = [ended.stderr[ended.stderr.index("paddock: ") :]]  # sh itself complains before it
        assert said(text).reference == "directory-missing"


def test_a_worktree_removed_before_the_warm_run(paddock: Paddock, backend: dict[str, str]) -> None:
    """A cached plan does not outlive its worktree."""
    words = ("run", "--worktree", str(paddock.worktree), "--", "true")
    assert paddock.call(*words, cwd=paddock.main, env=backend).returncode == 0
    shutil.rmtree(paddock.worktree)
    assert paddock.refused(*words, cwd=paddock.main, env=backend).reference == "worktree-missing"


# Configuration


BROKEN: dict[str, tuple[bytes, str]] = {
    "not valid TOML": (b"[filesystem\n", "config-syntax"),
    "not UTF-8": (b"\xff\xfe", "config-encoding"),
    "unknown key": (b"[filesystem]\nwriet = []\n", "config-unknown-key"),
    "wrong type": (b"[filesystem]\nwrite = 3\n", "config-invalid"),
    "future": (b"version = 99\n", "config-"),
}


def test_a_malformed_configuration(user_paddock: Paddock) -> None:
    """The file is named, with the place in it or the key, and nothing starts."""
    named = user_paddock.place / "named.toml"
    own = user_paddock.who.home / ".config/paddock/config.toml"
    own.parent.mkdir(parents=True)
    user_paddock.who.give(user_paddock.who.home)
    for path in (own, user_paddock.worktree / ".paddock.toml", named):
        for kind, (content, reference) in BROKEN.items():
            path.write_bytes(content)
            user_paddock.who.give(path)
            words = ["--config", str(path)] if path == named else []
            error = user_paddock.refused("run", *words, "--", "true")
            assert str(path) in error.text, (kind, path, error)
            assert error.reference.startswith(reference), (kind, path, error)
        path.unlink()


def test_a_configuration_that_is_no_file(user_paddock: Paddock) -> None:
    """A directory, a FIFO, a device, a link and an unreadable file are refused without being waited for."""
    path = user_paddock.worktree / ".paddock.toml"
    makers: dict[str, list[Callable[[], object]]] = {
        "config-not-a-file": [path.mkdir, lambda: os.mkfifo(path)],
        "config-symlink": [lambda: path.symlink_to("file"), lambda: path.symlink_to("/dev/zero")],
        "config-unreadable": [lambda: path.touch(0)],
    }
    for reference, ways in makers.items():
        for make in ways:
            make()
            user_paddock.who.give(path)
            error = user_paddock.refused("run", "--", "true")
            assert (error.reference, str(path) in error.text) == (reference, True)
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    assert user_paddock.refused("run", "--config", "nonexistent", "--", "true").reference == "config-missing"
