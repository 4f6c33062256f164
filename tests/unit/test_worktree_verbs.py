"""`paddock worktree`: what people and programmes read, and the exit status."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from launcher.vcs import written
from launcher.verbs import forms, worktree
from policy.errors import Refusal
from tests.support import repository
from tests.support.repository import Place, committed, git


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return repository.entered(repository.nested(tmp_path), monkeypatch)


def said(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
    assert forms.call(["worktree", *words]) == status
    return capsys.readouterr().out


def parsed(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> Any:  # noqa: ANN401  # it is JSON
    return json.loads(said(capsys, *words, "--json", status=status))


def test_the_life_of_a_worktree_in_words(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """Made, listed, looked at, refused to remove, removed by force: each says what a reader needs."""
    text = said(capsys, "add", "T-1")
    assert f"{place.root}/app-T-1 on branch agent/T-1, from " in text
    assert "submodule outer/deep/inner on branch agent/T-1" in text
    heading, row = said(capsys, "list").splitlines()
    assert heading.split() == ["TICKET", "STATE", "WORK", "BRANCH", "DIRECTORY"]
    assert row.split() == ["T-1", "ready", "no", "commits", "agent/T-1", f"{place.root}/app-T-1"]
    text = said(capsys, "status", "T-1")
    assert "nothing would be lost" in text
    assert "no commit since the worktree was made" in text
    (place.root / "app-T-1/new").write_text("")
    assert "would be lost: 1 untracked\n  not committed: new\n" in said(capsys, "status", status=1)
    with pytest.raises(Refusal, match="nowhere else"):
        forms.call(["worktree", "remove", "T-1"])
    text = said(capsys, "remove", "T-1", "--force")
    assert "is kept: refs/paddock/backup/" in text
    assert "deleted branch agent/T-1 in /" in text
    assert "paddock worktree add TICKET makes one" in said(capsys, "list")


def test_the_life_of_a_worktree_in_json(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """Every sub-command says the same facts to programmes."""
    made = parsed(capsys, "add", "T-1", "--submodule", "outer")
    assert made["main"]["path"] == f"{place.root}/app-T-1"
    assert made["context"]["main_worktree"]["submodule_worktree_ids"] == [
        part["worktree_id"] for part in made["submodules"] + made["unpopulated"]
    ]
    assert [row["worktree_id"] for row in parsed(capsys, "list")] == [made["worktree_id"]]
    assert parsed(capsys, "list", "--all") == parsed(capsys, "list")
    committed(place.root / "app-T-1", new="")
    head = git("rev-parse", "HEAD", at=place.root / "app-T-1")
    (now,) = parsed(capsys, "status", "T-1")
    assert (now["parts"][0]["ahead"], now["at_stake"]) == (1, [])
    assert now["work"] == {"work": "open", "into": "main", "further": [], "head": head}
    assert ", 1 commit since the worktree was made, to merge into main" in said(capsys, "status", "T-1")
    git("merge", "-q", "--no-ff", "agent/T-1", at=place.app)
    assert [row["work"]["work"] for row in parsed(capsys, "list")] == ["merged"]
    assert said(capsys, "list").splitlines()[1].split()[2:4] == ["in", "main"]
    assert "merged into main" in said(capsys, "status", "T-1")
    committed(place.root / "app-T-1", newer="")
    assert parsed(capsys, "repair") == {"done": []}
    gone = parsed(capsys, "remove", "T-1")
    assert gone["branches_kept"] == [{"git_dir": f"{place.app}/.git", "branch": "agent/T-1"}]


def test_options_reach_the_service(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """Place, start, branch, copies and submodules are as the command line says; `--repo` names the parent."""
    (place.app / ".env").write_text("A=1")
    made = parsed(
        capsys, "add", "x", "--path", "../there", "--from", "HEAD~1", "-b", "b", "--copy", ".env",
        "--no-submodules", "--workers", "1", "--repo", ".",
    )  # fmt: skip
    assert made["main"]["branch"] == "b"
    assert made["main"]["base"] == git("rev-parse", "main~1", at=place.app)
    assert (place.root / "there/.env").read_text() == "A=1"


def test_what_the_user_ignores_everywhere_is_no_work(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """`core.excludesFile` of his own configuration counts, as it does for his own git."""
    parsed(capsys, "add", "T-1")
    (place.root / "app-T-1/.idea").write_text("")
    assert parsed(capsys, "status", "T-1", status=1)[0]["at_stake"] == ["1 untracked"]
    (Path.home() / "mine").write_text(".idea\n")
    (Path.home() / ".gitconfig").write_text("[core]\n\texcludesFile = ~/mine\n")
    assert parsed(capsys, "status", "T-1")[0]["at_stake"] == []


def test_a_filter_of_the_users_own_runs_only_when_it_is_named(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """git-lfs is usually set up there; without its name files are written as they are stored."""
    (Path.home() / ".gitconfig").write_text('[filter "up"]\n\tsmudge = tr a-z A-Z\n')
    (place.app / ".git/info").mkdir(exist_ok=True)
    (place.app / ".git/info/attributes").write_text("file filter=up\n")
    parsed(capsys, "add", "one")
    parsed(capsys, "add", "two", "--filter", "up")
    assert (place.root / "app-one/file").read_text() == "app\n"
    assert (place.root / "app-two/file").read_text() == "APP\n"
    # No jail holds it, so it may not write where a session could lead it elsewhere.
    (place.root / "shared").mkdir()
    state = written.user_state()
    record = Path(written.path_of(state))
    record.write_bytes(os.fsencode(place.root / "shared") + b"\0")
    record.chmod(0o600)
    with pytest.raises(Refusal) as raised:
        forms.call(["worktree", "add", "three", "--filter", "up", "--path", "../shared/three"])
    assert raised.value.reference == "worktree-filter"
    assert not list((place.root / "shared").iterdir())
    (place.root / "elsewhere").mkdir()
    (place.root / "shared/link").symlink_to(place.root / "elsewhere")
    (place.root / "mine").symlink_to(place.root / "elsewhere")
    with pytest.raises(Refusal) as raised:
        forms.call(["worktree", "add", "five", "--path", "../shared/link/five"])
    assert raised.value.reference == "worktree-behind-link"
    assert f"name it as {place.root}/elsewhere/five;" in raised.value.hint
    assert not list((place.root / "elsewhere").iterdir())
    parsed(capsys, "add", "five", "--path", "../mine/five")  # a link of the user's own
    (place.root / "shared/link").unlink()
    parsed(capsys, "add", "three", "--path", "../shared/three")
    assert (place.root / "shared/three/file").read_text() == "app\n"


def test_mistakes_are_refused_like_everywhere(place: Place) -> None:
    """The nearest sub-command is named; options that exclude each other are."""
    for words, context in ((["ad"], "did you mean add?"), (["zzz"], "subcommands: add, list")):
        with pytest.raises(Refusal) as raised:
            forms.call(["worktree", *words])
        assert raised.value.reference == "usage"
        assert context in raised.value.context
    for words in (
        ["add", "x", "--submodule", "outer", "--no-submodules"],
        ["add"],
        ["list", "--all", "--repo", "."],
        ["remove"],
        ["status", "--nothing"],
    ):
        with pytest.raises(Refusal) as raised:
            forms.call(["worktree", *words])
        assert raised.value.reference == "usage"


def test_help_shows_every_subcommand_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a sub-command too, though that is a mistake."""
    text = said(capsys, "--help")
    assert forms.call(["worktree"]) == 125
    for name in forms.subcommands("worktree"):
        assert f"  {name}" in text
        assert "examples:" in said(capsys, name, "--help")


def test_who_is_at_work_is_named(
    place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what it runs. The command that asks does not count, though it stands in the worktree."""
    said(capsys, "add", "T-1")
    monkeypatch.chdir(place.root / "app-T-1")
    assert "in use" not in said(capsys, "status", "T-1")
    assert parsed(capsys, "status", "T-1")[0]["in_use"] == []
    with subprocess.Popen(["sleep", "1000"]) as process:
        assert f"in use by sleep ({process.pid})\n" in said(capsys, "status", "T-1")
        with pytest.raises(Refusal) as refused:
            forms.call(["worktree", "remove", "T-1"])
        process.kill()
    assert refused.value.hint == "end them (or cd elsewhere)\nor paddock worktree remove T-1 --force"
    with pytest.raises(Refusal) as alone:
        forms.call(["worktree", "remove", "T-1"])
    assert alone.value.hint == "cd elsewhere, then run the command again"
    assert refused.value.reference == "worktree-in-use"
    assert f"this command ({os.getpid()})" in refused.value.context
    assert f"sleep ({process.pid})" in refused.value.context
    # A process is called what the kernel calls it: 15 bytes of its file's name, which anybody chooses.
    program = shutil.copy("/bin/sleep", place.root / "a\npaddock: go on")
    with subprocess.Popen([program, "1000"]) as odd:
        (row,) = [line for line in said(capsys, "status", "T-1").splitlines() if "in use" in line]
        odd.kill()
    assert row == rf"  in use by 'a\npaddock:\x20go o' ({odd.pid})"


def test_a_ticket_is_looked_for_in_the_repository_around_first(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another repository of the user's with the same ticket makes nothing ambiguous here; elsewhere it does."""
    (tmp_path / "second").mkdir()
    second = repository.plain(tmp_path / "second")
    here = parsed(capsys, "add", "T-1")["main"]["path"]
    there = parsed(capsys, "add", "T-1", "--repo", str(second.app))["main"]["path"]
    assert worktree.directory_named("T-1") == here
    monkeypatch.chdir(second.app)
    assert worktree.directory_named("T-1") == there
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Refusal) as raised:
        worktree.directory_named("T-1")
    assert raised.value.reference == "worktree-ambiguous"
