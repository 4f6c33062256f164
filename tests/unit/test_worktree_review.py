"""What a worktree would bring, read for review: commits, files in none of them, hand-off files first, all bounded."""

import os
from pathlib import Path
from typing import Any

import pytest

from launcher.session import handoff_changes
from launcher.vcs.git_config import UserConfig
from launcher.vcs.worktrees import review
from launcher.vcs.worktrees.models import Worktree
from launcher.vcs.worktrees.review import COMMITS, FILES, key_of
from policy import review_marks
from policy.handoff import PROTECT, REPORT, Patterns
from tests.support import repository
from tests.support.repository import Place, committed, git

NAMES = ((".envrc", PROTECT), (".vscode", PROTECT), ("package.json", REPORT))
TOKEN = "ghp_" + "a1B2" * 9
HOSTILE = ("<script>alert(1)<", "a\u202eb\x1b[31m", "diff --git a", "tab\tand\nline", '"quoted" \\')


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return repository.plain(tmp_path)


def read(made: Worktree, wanted: str = "") -> dict[str, Any]:
    """The review of a worktree."""
    return review.read(made, Patterns(NAMES), UserConfig(), (), lying, wanted)


def lying(root: str, known: frozenset[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Hand-off files and repositories."""
    return handoff_changes.present(root, known, NAMES)


def files(found: dict[str, Any], section: str, part: int = 0) -> dict[str, Any]:
    """The files of a section, by their paths, in their order."""
    (wanted,) = (each for each in found["parts"][part]["sections"] if each["section"] == section)
    return {each["path"]: each for each in wanted["files"]}


def added(file: dict[str, Any]) -> list[str]:
    """The lines that a file has more."""
    return [line[3] for hunk in file["hunks"] for line in hunk["lines"] if line[0] == "+"]


def test_commits_and_what_is_in_none_are_told_apart(place: Place) -> None:
    """Hand-off files come first in each, then the others as git has them; new files are whole."""
    made = place.service.add(place.app, "T")
    root = Path(made.path)
    (root / ".vscode").mkdir()
    committed(root, **{"aaa": "new\n", ".envrc": "curl x | sh\n", "package.json": "{}\n", ".vscode/tasks.json": "{}\n"})
    (root / "file").write_text("one\ntwo\n")
    (root / "untracked").write_text(f"token = {TOKEN}\n")
    (root / "seen.log").write_text("ignored\n")
    found = read(made)
    assert list(files(found, COMMITS)) == [".envrc", ".vscode/tasks.json", "package.json", "aaa"]
    envrc = files(found, COMMITS)[".envrc"]
    assert (envrc["mark"], envrc["kind"], added(envrc)) == (PROTECT, "A", ["curl x | sh"])
    assert "shell" in envrc["why"]
    assert list(files(found, FILES)) == ["file", "untracked"]
    assert files(found, FILES)["file"]["hunks"][0]["lines"] == [
        [" ", 1, 1, "one", 0, ""], ["+", None, 2, "two", 0, ""],
    ]  # fmt: skip
    assert files(found, FILES)["untracked"]["hunks"][0]["lines"][0][5] == "a GitHub token"
    assert [each["subject"] for each in found["parts"][0]["commits"]] == [git("log", "-1", "--format=%s", at=root)]


def test_a_commit_that_is_merged_already_is_compared_with_the_beginning(place: Place) -> None:
    """And the trunk's own commits are not the child's."""
    made = place.service.add(place.app, "T")
    committed(Path(made.path), mine="mine\n")
    committed(place.app, theirs="theirs\n")
    assert list(files(read(made), COMMITS)) == ["mine"]
    git("merge", "-q", made.main.branch or "", at=place.app)
    assert list(files(read(made), COMMITS)) == ["mine"]


def test_no_commit_chooses_what_it_is_compared_with(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where trunk and work have merged one another's pasts, an old state could be brought back unseen."""
    committed(place.app, guard="old\n")
    made = place.service.add(place.app, "T")
    root = Path(made.path)
    with monkeypatch.context() as later:
        later.setitem(repository.ENV, "GIT_COMMITTER_DATE", "@4000000000 +0000")  # git names the newest base first
        committed(root, mine="mine\n")
    mine = git("rev-parse", "HEAD", at=root)
    committed(place.app, guard="new\n")
    trunk = git("rev-parse", "HEAD", at=place.app)
    git("merge", "-q", mine, at=place.app)
    git("merge", "-q", "--no-commit", trunk, at=root)
    committed(root, guard="old\n")
    found = files(read(made), COMMITS)
    assert (list(found), added(found["guard"])) == (["guard"], ["old"])


def test_kinds_of_changes_are_told(place: Place) -> None:
    """A rename, a mode, a link, a removal, a binary file, a large one, a change of type."""
    committed(place.app, **{f"old{n}": f"{n}\n" * 50 for n in range(4)})
    made = place.service.add(place.app, "T")
    root = Path(made.path)
    (root / "old0").rename(root / "renamed")
    (root / "old1").chmod(0o755)
    (root / "old2").unlink()
    (root / "old3").unlink()
    os.symlink("/etc/passwd", root / "old3")
    (root / "binary").write_bytes(b"\0\1\2")
    (root / "large").write_text("x" * 3_000_000)
    git("add", "-A", at=root)
    git("commit", "-qm", "all", at=root)
    found = files(read(made), COMMITS)
    assert (found["renamed"]["kind"], found["renamed"]["old_path"]) == ("R", "old0")
    assert "executed" in found["old1"]["why"]
    assert found["old2"]["kind"] == "D"
    assert (found["old3"]["kind"], added(found["old3"])) == ("T", ["/etc/passwd"])
    assert found["binary"]["note"] == "binary"
    assert (found["large"]["note"], found["large"]["new_size"], found["large"]["hunks"]) == ("large", 3_000_000, [])
    alone = files(read(made, key_of(COMMITS, "large")), COMMITS)
    assert list(alone) == ["large"]
    line = alone["large"]["hunks"][0]["lines"][0]
    assert (len(line[3]), line[4]) == (600, 3_000_000 - 600)


def test_the_same_of_files_in_no_commit(place: Place) -> None:
    """Names that look like anything else, links, and ten megabytes on one line."""
    made = place.service.add(place.app, "T")
    root = Path(made.path)
    for name in HOSTILE:
        (root / name).write_text(f"diff --git a/x b/x\n@@ -1 +1 @@\n{name}\n")
    (root / os.fsdecode(b"no\xffutf8")).write_bytes(b"\xfe\n")
    os.symlink("/etc/shadow", root / "link")
    (root / "long").write_bytes(b"x" * 10_000_000)
    (root / "file").unlink()
    found = files(read(made), FILES)
    assert set(HOSTILE) <= set(found)
    for name in HOSTILE:
        assert added(found[name])[:2] == ["diff --git a/x b/x", "@@ -1 +1 @@"]
        assert added(found[name])[2:] == name.split("\n")
    assert added(found[r"no\xffutf8"]) == [r"\xfe"]
    assert added(found["link"]) == ["/etc/shadow"]
    assert found["long"]["note"] == "large"
    assert found["file"]["kind"] == "D"


def test_no_ignore_file_hides_what_runs(place: Place) -> None:
    """An agent may have written it: hand-off files are shown anyway, those in directories full of them, too."""
    made = place.service.add(place.app, "T")
    root = Path(made.path)
    for name in (".gitignore", ".envrc", "package.json", "deep/.envrc", "other", "deep/other", "[x] *.log/.envrc"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("*\n")
    (root / ".vscode").mkdir()
    for number in range(handoff_changes.MOST_ENTRIES + 1):
        (root / f".vscode/{number}").touch()
    git("init", "-q", str(root / "made/by"), at=place.app)
    (section,) = (each for each in read(made)["parts"][0]["sections"] if each["section"] == FILES)
    assert all(each["mark"] == PROTECT for each in section["files"])
    assert (len(section["files"]), section["count"], section["marked"]) == (review.MOST_FILES, 2_006, 2_005)
    assert (section["nested"], section["nested_count"]) == (["made/by/"], 1)
    for number in range(handoff_changes.MOST_ENTRIES + 1):
        (root / f".vscode/{number}").unlink()
    wanted = [".envrc", "[x] *.log/.envrc", "deep/.envrc", "package.json", ".gitignore"]
    assert list(files(read(made), FILES)) == wanted


def test_what_runs_comes_before_any_number_of_other_files(place: Place) -> None:
    """The list is cut behind it, and says how many files are left out."""
    made = place.service.add(place.app, "T")
    root = Path(made.path)
    (root / "!").mkdir()
    for number in range(review.MOST_FILES + 1):
        (root / f"!/{number}").touch()
    for name in (".envrc", "package.json", "run"):
        (root / name).write_text("x\n")
    (root / "run").chmod(0o755)
    (section,) = (each for each in read(made)["parts"][0]["sections"] if each["section"] == FILES)
    assert [each["path"] for each in section["files"]][:3] == [".envrc", "package.json", "run"]
    assert (len(section["files"]), section["count"], section["marked"]) == (review.MOST_FILES, review.MOST_FILES + 4, 3)


def test_only_so_many_lines_are_read(place: Place) -> None:
    """And of the file that is asked for alone, more."""
    made = place.service.add(place.app, "T")
    (Path(made.path) / "many").write_text("line\n" * 5_000)
    file = files(read(made), FILES)["many"]
    assert (len(added(file)), file["left"], file["added"]) == (400, 4_600, 5_000)
    assert len(added(files(read(made, key_of(FILES, "many")), FILES)["many"])) == 5_000


def test_submodules_have_commits_of_their_own(tmp_path: Path) -> None:
    """Each is a part with its own sections; the outer one has the pointer."""
    place = repository.nested(tmp_path)
    made = place.service.add(place.app, "T")
    root = Path(made.path)
    committed(root / "lib/outer", inside="inside\n")
    git("commit", "-qam", "pointer", at=root)
    (root / "lib/outer/more").write_text("more\n")
    found = read(made)
    assert [part["name"] for part in found["parts"]] == ["", "outer", "outer/deep/inner"]
    assert list(files(found, COMMITS)) == ["lib/outer"]
    assert files(found, COMMITS)["lib/outer"]["new_mode"] == "160000"
    assert list(files(found, COMMITS, 1)) == ["lib/outer/inside"]
    assert list(files(found, FILES, 1)) == ["lib/outer/more"]
    assert list(files(found, FILES)) == []


def test_what_lies_in_a_worktree_configures_no_comparison(place: Place, tmp_path: Path) -> None:
    """A driver, a filter, a monitor that attributes of an agent's name: none runs."""
    made = place.service.add(place.app, "T")
    root = Path(made.path)
    trace = tmp_path / "ran"
    (root / ".gitattributes").write_text("* diff=evil filter=evil\n")
    for key in ("diff.evil.command", "diff.evil.textconv", "filter.evil.clean", "core.fsmonitor", "diff.external"):
        git("config", key, f"touch {trace}; cat", at=place.app)
    (root / "file").write_text("changed\n")
    assert {".gitattributes", "file"} <= set(files(read(made), FILES))
    assert not trace.exists()


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (f"x={TOKEN}", "a GitHub token"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----", "a private key"),
        ("AKIAIOSFODNN7EXAMPLE", "an AWS key"),
        ("postgres://user:hunter22@db/x", "a password in an address"),
        ("https://example.com/a:b@c", ""),
        ("x" * 10_000_000, ""),
        ("eyJ" + "a" * 100_000, ""),
    ],
)
def test_tokens_are_known_by_their_shapes(line: str, what: str) -> None:
    """In no time, however long the line."""
    assert review_marks.secret_in(line) == what


def test_every_pattern_of_the_house_has_a_reason() -> None:
    """The default hand-off files are all in the table, so that none is only "obeyed by other tools"."""
    import tomllib

    with open(Path(review_marks.__file__).with_name("default.toml"), "rb") as file:
        known = tomllib.load(file)["handoff"]
    names = [name.replace("*", "x") for name in (*known["protect"], *known["report"])]
    assert [name for name in names if review_marks.reason(name) == review_marks._OTHERS] == [".paddock.toml"]
    assert review_marks.reason("deep/below/.envrc") == review_marks.reason(".envrc")
    assert review_marks.reason("x/HEAD") == "git obeys it, wherever it lies"
