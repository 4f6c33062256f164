"""The store of accepted contents, and the verbs `trust` and `init`."""

import contextlib
import json
import multiprocessing
import os
import stat
from pathlib import Path

import pytest

from launcher.safefs import guarded_files, walk
from launcher.safefs.guarded_files import Inside
from launcher.session.trust_store import Trust, digest_of
from launcher.vcs.private import writers
from launcher.verbs import forms
from policy.errors import Refusal


@pytest.fixture
def store(tmp_path: Path) -> Trust:
    return Trust(str(tmp_path / "state/paddock"))


def test_exactly_the_recorded_content_is_trusted(store: Trust) -> None:
    """Neither other bytes, nor the same bytes elsewhere."""
    assert not store.is_trusted("/p/a", b"x")
    assert store.trust("/p/a", b"x") == digest_of(b"x")
    assert store.is_trusted("/p/a", b"x")
    assert not store.is_trusted("/p/a", b"x\n")
    assert not store.is_trusted("/p/b", b"x")


def test_a_newer_record_replaces_the_older(store: Trust) -> None:
    """One content per file: what was accepted last."""
    store.trust("/p/a", b"1")
    store.trust("/p/a", b"2")
    assert not store.is_trusted("/p/a", b"1")
    assert store.entries() == (("/p/a", digest_of(b"2")),)


def test_forgetting_takes_trust_back(store: Trust) -> None:
    """And says whether there was something to forget; others stay."""
    assert not store.forget("/p/a")
    store.trust("/p/a", b"1")
    store.trust("/p/b", b"1")
    assert store.forget("/p/a")
    assert not store.is_trusted("/p/a", b"1")
    assert store.is_trusted("/p/b", b"1")


def test_asking_makes_nothing(store: Trust) -> None:
    """A launch without records leaves no directory behind."""
    store.is_trusted("/p", b"")
    store.entries()
    store.forget("/p")
    assert not Path(store.path).parent.exists()


def test_the_store_is_private(store: Trust) -> None:
    """Mode 0600 in a directory of mode 0700, whatever the umask."""
    before = os.umask(0)
    try:
        store.trust("/p", b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(store.path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(os.path.dirname(store.path)).st_mode) == 0o700
    assert sorted(os.listdir(os.path.dirname(store.path))) == ["trust.json", "trust.json.lock"]


def test_names_that_are_not_utf8_can_be_trusted(store: Trust) -> None:
    """File names are bytes."""
    store.trust("/p/\udcff", b"x")
    assert store.is_trusted("/p/\udcff", b"x")


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o602])
def test_a_store_that_others_can_reach_is_refused(store: Trust, mode: int) -> None:
    """Somebody else could have written it."""
    store.trust("/p", b"x")
    os.chmod(store.path, mode)
    for ask in (lambda: store.is_trusted("/p", b"x"), store.entries, lambda: store.trust("/q", b"")):
        with pytest.raises(Refusal) as caught:
            ask()
        assert caught.value.reference == "state-not-ours"


def test_a_store_of_somebody_else_is_refused(store: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its mode."""
    store.trust("/p", b"x")
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    with pytest.raises(Refusal) as caught:
        store.is_trusted("/p", b"x")
    assert caught.value.reference == "state-not-ours"


def test_a_state_directory_that_others_may_write_is_refused(store: Trust) -> None:
    """They could put a store of their own there."""
    directory = Path(store.path).parent
    directory.mkdir(parents=True)
    directory.chmod(0o777)
    with pytest.raises(Refusal) as caught:
        store.trust("/p", b"x")
    assert caught.value.reference == "state-not-ours"
    assert os.listdir(directory) == []


def test_a_link_in_place_of_the_store_is_refused(store: Trust, tmp_path: Path) -> None:
    """Its target is somebody's choice."""
    store.trust("/p", b"x")
    os.replace(store.path, tmp_path / "moved")
    os.symlink(tmp_path / "moved", store.path)
    with pytest.raises(Refusal) as caught:
        store.is_trusted("/p", b"x")
    assert caught.value.reference == "config-symlink"


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"{}", b'{"version": 1}', b'{"version": 2, "files": {}}', b"\xff",
     b'{"version": 1, "files": []}', b'{"version": 1, "files": {"/p": 1}}', b"[" * 100_000],
)  # fmt: skip
def test_a_damaged_store_is_refused(store: Trust, content: bytes) -> None:
    """Nothing counts as trusted then, and nothing is overwritten."""
    store.trust("/p", b"x")
    Path(store.path).write_bytes(content)
    for ask in (lambda: store.is_trusted("/p", b"x"), lambda: store.trust("/q", b"")):
        with pytest.raises(Refusal) as caught:
            ask()
        assert caught.value.reference == "trust-damaged"
    assert Path(store.path).read_bytes() == content


def test_a_failed_write_leaves_the_old_records(store: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk loses nothing and leaves no temporary file."""
    store.trust("/p", b"x")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Refusal) as caught:
        store.trust("/q", b"y")
    monkeypatch.undo()
    assert caught.value.reference == "state-unusable"
    assert store.entries() == (("/p", digest_of(b"x")),)
    assert sorted(os.listdir(os.path.dirname(store.path))) == ["trust.json", "trust.json.lock"]


def _record(directory: str, number: int) -> None:
    for step in range(10):
        Trust(directory).trust(f"/p/{number}/{step}", b"x")


def test_parallel_writers_lose_no_record(store: Trust) -> None:
    """Four processes write ten records each; all forty are there."""
    context = multiprocessing.get_context("spawn")
    directory = os.path.dirname(store.path)
    with context.Pool(4) as pool:
        pool.starmap(_record, [(directory, number) for number in range(4)])
    assert len(store.entries()) == 40


def test_a_file_is_created_only_where_nothing_is(tmp_path: Path) -> None:
    """And replaced only by the function that says so."""
    path = str(tmp_path / "f")
    with Inside(str(tmp_path)) as directory:
        directory.create("f", b"1")
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o644
        with pytest.raises(FileExistsError):
            directory.create("f", b"2")
    assert guarded_files.read(path, follow=False) == guarded_files.Content(b"1", os.geteuid(), 0o644)
    walk.replace(path, b"3")
    assert guarded_files.read(path, follow=False) == guarded_files.Content(b"3", os.geteuid(), 0o600)
    assert os.listdir(tmp_path) == ["f"]


class Desk:
    """A repository with a configuration file, and the user's own places."""

    def __init__(self, base: Path) -> None:
        self.root = base / "re po"
        self.file = self.root / ".paddock.toml"
        (self.root / ".git/refs").mkdir(parents=True)
        (self.root / ".git/objects").mkdir()
        (self.root / ".git/HEAD").write_text("ref: refs/heads/main\n", encoding="utf-8")
        self.store = Trust(str(base / "state/paddock"))


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    base = tmp_path.resolve()
    made = Desk(base)
    monkeypatch.setenv("HOME", str(base / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(base / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(base / "state"))
    monkeypatch.chdir(made.root)
    return made


def test_the_verb_shows_what_a_file_loosens_and_records_it(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    """Both in one step; --list shows it, --forget takes it back."""
    desk.file.write_text("[filesystem]\nwrite = ['/srv']\n[network]\nmode = 'open'\n", encoding="utf-8")
    below = desk.root / "below"
    below.mkdir()
    with contextlib.chdir(below):
        assert forms.call(["trust"]) == 0, "without a name it is the worktree's own"
    shown = capsys.readouterr().out
    assert "filesystem.write: adds /srv" in shown
    assert "network.mode: open instead of auto" in shown
    assert desk.store.is_trusted(str(desk.file), desk.file.read_bytes())
    assert forms.call(["trust", "--list"]) == 0
    assert str(desk.file) in capsys.readouterr().out
    assert forms.call(["trust", ".paddock.toml", "--forget"]) == 0
    assert not desk.store.is_trusted(str(desk.file), desk.file.read_bytes())
    assert forms.call(["trust", ".paddock.toml", "--forget"]) == 1


def test_the_verb_speaks_json(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    """One document per call."""
    desk.file.write_text("[network]\nmode = 'open'\n", encoding="utf-8")
    assert forms.call(["trust", ".paddock.toml", "--json"]) == 0
    sha256 = digest_of(desk.file.read_bytes())
    assert json.loads(capsys.readouterr().out) == {
        "path": str(desk.file),
        "sha256": sha256,
        "loosens": ["network.mode: open instead of auto"],
        "trusted": True,
    }
    assert forms.call(["trust", "--list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"path": str(desk.file), "sha256": sha256}]
    assert forms.call(["trust", ".paddock.toml", "--forget", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"path": str(desk.file), "trusted": False, "forgotten": True}


def test_forgetting_in_a_linked_worktree_says_that_the_main_checkout_still_counts(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    """Or the user would believe that the file loosens nothing any more."""
    root, own = desk.root.with_name("linked"), desk.root / ".git/worktrees/linked"
    own.mkdir(parents=True)
    root.mkdir()
    (root / ".git").write_text(f"gitdir: {own}\n", encoding="utf-8")
    for name, text in (("HEAD", "ref: refs/heads/x"), ("commondir", "../.."), ("gitdir", f"{root}/.git")):
        (own / name).write_text(f"{text}\n", encoding="utf-8")
    desk.store.trust(str(root / ".paddock.toml"), b"x")
    desk.store.trust(str(desk.file), b"x")
    with contextlib.chdir(root):
        assert forms.call(["trust", "--forget", ".paddock.toml"]) == 0
        assert f"counts here, too: paddock trust --forget '{desk.file}'" in capsys.readouterr().out
        desk.store.forget(str(desk.file))
        assert forms.call(["trust", "--forget", ".paddock.toml"]) == 1
    assert "counts here" not in capsys.readouterr().out


def test_a_file_that_is_gone_can_be_forgotten(desk: Desk) -> None:
    """The record is about a path, not about what lies there now."""
    desk.store.trust(str(desk.file), b"x")
    assert forms.call(["trust", ".paddock.toml", "--forget"]) == 0
    assert desk.store.entries() == ()


def test_a_link_cannot_be_trusted(desk: Desk, tmp_path: Path) -> None:
    """Nothing is recorded for it, nor for its target."""
    (tmp_path / "t").write_text("", encoding="utf-8")
    desk.file.symlink_to(tmp_path / "t")
    with pytest.raises(Refusal) as caught:
        forms.call(["trust", ".paddock.toml"])
    assert caught.value.reference == "config-symlink"
    assert desk.store.entries() == ()


@pytest.mark.parametrize(
    ("content", "reference"),
    [("[", "config-syntax"), ("[network]\nmod = 1", "config-unknown-key"), (None, "config-missing")],
)
def test_a_file_that_is_not_valid_cannot_be_trusted(desk: Desk, content: str | None, reference: str) -> None:
    """It would never count."""
    if content is not None:
        desk.file.write_text(content, encoding="utf-8")
    with pytest.raises(Refusal) as caught:
        forms.call(["trust", ".paddock.toml"])
    assert caught.value.reference == reference
    assert desk.store.entries() == ()


@pytest.mark.parametrize("argv", [["--nope"], ["a", "b"], ["a", "--list"], ["--list", "--forget"]])
def test_wrong_words_are_refused(desk: Desk, argv: list[str]) -> None:
    """As a Refusal, with the way to the help."""
    with pytest.raises(Refusal) as caught:
        forms.call(["trust", *argv])
    assert caught.value.reference == "usage"
    assert "paddock trust" in caught.value.hint


@pytest.mark.parametrize("verb", ["trust", "init"])
def test_the_help_has_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Ready to paste, one a line."""
    assert forms.call([verb, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"usage: paddock {verb}" in shown
    assert all(command in map(str.strip, shown.splitlines()) for command, _ in forms.form(verb).examples)


def test_init_writes_at_the_root_from_anywhere_below(
    desk: Desk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says what to do next."""
    (desk.root / "a/b").mkdir(parents=True)
    monkeypatch.chdir(desk.root / "a/b")
    assert forms.call(["init"]) == 0
    assert desk.file.is_file()
    assert "next:" in capsys.readouterr().out
    with pytest.raises(Refusal) as caught:
        forms.call(["init"])
    assert caught.value.reference == "init-exists"
    assert forms.call(["init", "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"path": str(desk.file), "written": True}


def test_init_outside_of_a_worktree_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no root to write to."""
    (tmp_path / "plain").mkdir()
    monkeypatch.chdir(tmp_path / "plain")
    with pytest.raises(Refusal) as caught:
        forms.call(["init"])
    assert caught.value.reference == "not-a-worktree"
    assert os.listdir(tmp_path / "plain") == []


class _SaidError(Exception):
    """Ends a wait."""


@pytest.mark.parametrize(("frozen", "what"), [(True, "`paddock trust`"), (False, "a merge")])
def test_a_session_that_waits_says_for_what(tmp_path: Path, frozen: bool, what: str) -> None:
    """And which tree it is about."""
    state, tree = str(tmp_path / "state"), str(tmp_path / "tree")

    def say(text: str) -> None:
        raise _SaidError(text)

    with (
        writers.excluded(state, [tree], frozen=frozen),
        pytest.raises(_SaidError, match=f"waiting until {what} in {tree} has ended"),
    ):
        writers.wait(state, os.listdir(f"{state}/{writers.HOLDS}"), (tree,), say)
