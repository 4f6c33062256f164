"""Questions about refused hosts: what they may hold, how they are shown, and what an answer writes."""

import stat
import tomllib
from pathlib import Path

import pytest

from launcher.session import answers
from launcher.session.places import Places
from launcher.vcs import written
from policy import asking
from policy.asking import Question

WELL_FORMED = Question(7, "a.example", 443, "curl")


def test_a_question_arrives_as_it_was_sent() -> None:
    """Without a process, too."""
    for question in (WELL_FORMED, WELL_FORMED._replace(process="")):
        assert asking.unpacked(question.packed()) == question


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"1 files.example.org 443",
        b"1 files.example.org 443 curl more",
        b"x files.example.org 443 curl",
        b"1 Files.example.org 443 curl",
        b"1 files.example.org. 443 curl",
        b"1 files.example.org 0 curl",
        b"1 files.example.org 65536 curl",
        b"1 files.example.org 443 cu\x1brl",
        b"1 files.example.org 443 a'b",
        b"1 files\x1b[2Jexample.org 443 curl",
        b"1 10.1.2.3 443 curl",
        b"1 localhost 443 curl",
        b"1 server.local 443 curl",
        b"1 metadata.google.internal 443 curl",
        b"1 files.example.org 443 a-name-that-is-too-long",
        "1 b\N{LATIN SMALL LETTER U WITH DIAERESIS}cher.example 443 curl".encode(),
    ],
)
def test_whoever_shows_a_question_believes_its_grammar_only(payload: bytes) -> None:
    """A proxy that was taken over can say what it likes, and nothing but names, ports and letters is shown."""
    with pytest.raises(ValueError):
        asking.unpacked(payload)


def test_a_process_names_itself_in_plain_letters() -> None:
    """A command chooses its name (prctl(2)), and cannot make it a part of a sentence."""
    for name, shown in (
        ("node", "node"),
        ("ok? yes\x1b[1m", "ok??yes??1m"),
        ("\u202egpj.exe", "?gpj.exe"),
        ("x" * 99, "x" * 15),
    ):
        question = WELL_FORMED._replace(process=asking.plain(name))
        assert question.process == shown
        assert question.who == f'"{shown}"'
        assert asking.unpacked(question.packed()) == question


def test_an_answer_is_one_of_four_words() -> None:
    """With the number of its question."""
    for word in asking.ANSWERS:
        assert asking.answered(asking.answer(3, word)) == (3, word)
    for payload in (b"", b"3", b"3 yes", b"3 once more", b"once 3"):
        with pytest.raises(ValueError):
            asking.answered(payload)


HERE = 'schema = 1\n\n[network]\n# mine\nallow_domains = ["@python"]  # keep\n\n[limits]\nmemory = "8G"\n'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", 'schema = 1\n\n[network]\nallow_domains = ["a.example:443"]\n'),
        ("schema = 1", 'schema = 1\n\n[network]\nallow_domains = ["a.example:443"]\n'),
        (HERE, HERE.replace('["@python"', '["a.example:443", "@python"')),
        ("[network]\nallow_domains = []\n", '[network]\nallow_domains = ["a.example:443", ]\n'),
        ('[network]  # net\nask = "yes"\n', '[network]  # net\nallow_domains = ["a.example:443"]\nask = "yes"\n'),
        ('[limits]\nmemory = "8G"\n[network]\nallow_domains = [\n  # one\n  "b.example",\n]\n',
         '[limits]\nmemory = "8G"\n[network]\nallow_domains = ["a.example:443", \n  # one\n  "b.example",\n]\n'),
        ('[network]\nallow_domains = ["a.example:443"]\n', '[network]\nallow_domains = ["a.example:443"]\n'),
        ('network = { mode = "proxy" }\n', None),
        ('network.allow_domains = ["b.example"]\n', None),
        ('note = """\n[network]\n"""\n[network]\nallow_domains = ["b.example"]\n', None),
    ],
)  # fmt: skip
def test_always_adds_one_rule_and_changes_nothing_else(before: str, after: str | None) -> None:
    """Comments stay. What is written in a way that is not understood is left to its owner."""
    assert answers.with_domain(before, "a.example:443") == after
    if after is not None:
        assert tomllib.loads(after)["network"]["allow_domains"][0] == "a.example:443"


def places(directory: Path) -> Places:
    """Paddock's own directories, below this one."""
    return Places(str(directory), *(str(directory / name) for name in ("config", "state", "cache")))


def test_always_goes_into_the_users_own_file(tmp_path: Path) -> None:
    """Made private when it is missing; a link stays one, and the file its mode."""
    where, file = places(tmp_path), tmp_path / "config/config.toml"
    assert answers.allow_always(where, "/nosuch", WELL_FORMED) == ""
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    real = tmp_path / "dotfiles.toml"
    file.rename(real)
    real.chmod(0o640)
    file.symlink_to(real)
    assert answers.allow_always(where, "/nosuch", WELL_FORMED._replace(port=80)) == ""
    assert file.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert tomllib.loads(real.read_text())["network"]["allow_domains"] == [
        "a.example:80",
        "a.example:443",
    ]


def test_always_writes_to_no_tree_of_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that a link in the user's configuration leads to may lie in a worktree."""
    where, tree = places(tmp_path), tmp_path / "tree"
    tree.mkdir()
    (tmp_path / "config").mkdir()
    (tree / "config.toml").write_text("schema = 1\n")
    (tmp_path / "config/config.toml").symlink_to(tree / "config.toml")
    assert "where commands in jails write" in answers.allow_always(where, str(tree), WELL_FORMED)
    monkeypatch.setattr(written, "trees", lambda *_: (str(tree),))
    assert "where commands in jails write" in answers.allow_always(where, "/nosuch", WELL_FORMED)
    assert (tree / "config.toml").read_text() == "schema = 1\n"


def test_always_leaves_alone_what_it_cannot_read(tmp_path: Path) -> None:
    """A broken file stays as it is, and the reason is told."""
    where = places(tmp_path)
    (tmp_path / "config").mkdir(mode=0o700)
    file = tmp_path / "config/config.toml"
    for content in (b"[network\n", b"\xff", b'network = { mode = "proxy" }\n'):
        file.write_bytes(content)
        assert answers.allow_always(where, "/nosuch", WELL_FORMED)
        assert file.read_bytes() == content
