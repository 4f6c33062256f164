"""What a word of the user's means to each verb: a worktree's name first, and no path that an agent has bent."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.engines.driver import Results
from launcher.ledger.enforcement import Target
from launcher.service import job
from launcher.vcs import written
from launcher.vcs.merge.target import find
from launcher.vcs.worktree_words import is_agents
from launcher.verbs import batch, files, forms, run, worktree
from policy.errors import Refusal
from tests.support import repository
from tests.support.repository import Place, committed, git

Verb = Callable[[str], object]

VERBS: dict[str, Verb] = {
    "status": lambda word: forms.call(["worktree", "status", word]),
    "remove": lambda word: forms.call(["worktree", "remove", word]),
    "remove --force": lambda word: forms.call(["worktree", "remove", "--force", word]),
    "dock": lambda word: forms.call(["worktree", "dock", word]),
    "harvest": lambda word: forms.call(["worktree", "harvest", word]),
    "merge": lambda word: forms.call(["merge", word]),
    "merge --preview": lambda word: forms.call(["merge", "--preview", word]),
    "merge --into": lambda word: forms.call(["merge", "--into", word, "main"]),
}
"""All that take a worktree's name or its directory."""
DIRECTORIES: dict[str, Verb] = {
    "run --worktree": lambda word: run.main(["--dry-run", "--worktree", word, "--", "true"]),
    "adopt": lambda word: forms.call(["worktree", "adopt", word]),
    "repair": lambda word: forms.call(["worktree", "repair", word]),
    "list --repo": lambda word: forms.call(["worktree", "list", "--repo", word]),
    "add --repo": lambda word: forms.call(["worktree", "add", "C", "--repo", word]),
}
"""What takes a directory alone."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A repository with the worktrees of A, which has a commit that nobody has read, and of B."""
    place = repository.entered(repository.plain(tmp_path), monkeypatch)
    for ticket in "AB":
        assert forms.call(["worktree", "add", ticket]) == 0
    committed(root(place, "A"), evil="evil\n")
    return place


def root(place: Place, ticket: str) -> Path:
    """The directory of a ticket's worktree."""
    return place.root / f"app-{ticket}"


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("word", ["B", "agent/B", "refs/heads/agent/B", "app-B", "./agent/B", "sub/../B"])
def test_no_link_in_a_checkout_leads_a_verb_to_another_worktree(place: Place, verb: str, word: str) -> None:
    """Whatever the word: it is refused, with where the link leads, and nothing is merged, moved or removed."""
    before = git("for-each-ref", at=place.app)
    link = Path(os.path.normpath(place.app / word))
    (place.app / "sub").mkdir()
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(root(place, "A"), link.parent))
    with pytest.raises(Refusal) as refused:
        VERBS[verb](word)
    assert refused.value.reference == "worktree-behind-link"
    assert f"through {link} it resolves to {root(place, 'A')}" in refused.value.context
    assert git("for-each-ref", at=place.app) == before
    assert all(root(place, ticket).is_dir() for ticket in "AB")
    assert not (place.app / "evil").exists()


@pytest.mark.parametrize("verb", DIRECTORIES)
def test_no_link_in_a_checkout_leads_to_another_directory(place: Place, verb: str) -> None:
    """Nothing starts there, and nothing becomes Paddock's; through a link of the user's it does."""
    git("worktree", "add", "-q", "-b", "mine", str(place.root / "mine"), at=place.app)
    (place.app / "linked").symlink_to(place.root / "mine")
    (place.root / "way").symlink_to(place.root)
    for word in ("linked", "./linked", f"{place.app}/linked", f"{place.app}/linked/../mine"):
        with pytest.raises(Refusal) as refused:
            DIRECTORIES[verb](word)
        assert refused.value.reference == "worktree-behind-link"
        assert f"through {place.app}/linked it resolves to {place.root}/mine" in refused.value.context
    assert DIRECTORIES[verb]("../way/mine") == 0


_PATH = re.compile(r"(?:--[a-z-]+ )?\S*\b(?:DIR|FILE|PATH|FOLDER)\b")
"""What a synopsis, or the value of an option, shows as a path."""
_OWN = "the verb looks at the links itself: "
REASONS = {
    "--worktree DIR": f"{_OWN}launcher.session.planning",
    "--config FILE": f"{_OWN}launcher.session.configuration",
    "--report FILE": f"{_OWN}launcher.ledger.enforcement.Target",
    "--rw PATH": f"{_OWN}policy.ingredients.asked_for",
    "--ro PATH": f"{_OWN}policy.ingredients.asked_for",
    "--root DIR": f"{_OWN}policy.ingredients.asked_for",
    "--bring agents|PATH": f"{_OWN}policy.bring",
    "--deny PATH": "takes away from what is granted",
    "learn --write FILE": f"{_OWN}launcher.ledger.enforcement.Target",
    "files --session ID[=DIR]": f"{_OWN}launcher.verbs.files",
    "files --http HOST:PORT|unix:PATH": f"{_OWN}launcher.verbs.files",
    "exec --cwd DIR": "looked up in the jail",
    "explain PATH": "is only spoken of",
    "why PATH": "is only spoken of",
    "worktree add --sparse FOLDER": "a pattern for paths in the repository",
    "worktree harvest [DIR|NAME]": f"{_OWN}meant, which knows names",
    "worktree dock [DIR|NAME]": f"{_OWN}meant, which knows names",
    "trust [FILE|DIR]": f"{_OWN}launcher.verbs.trust; what has become a link can be forgotten",
}
"""Paths on command lines that the table of forms does not hold itself."""
NO_PATHS = {
    "ADDRESS", "BYTES", "CAUSE=N", "CHILD", "CMD", "COMMAND", "COMMIT", "HOST:PORT", "ID", "KEY", "KIND", "N", "NAME",
    "NAME=VALUE", "NAME[=VALUE]", "PATTERN", "REMOTE", "RULE", "RUN", "SECONDS", "SESSION", "SUBMODULE", "TICKET",
    "TRUNK", "USER", "VARIABLE=URL[,...]", "WORD", "[ADDRESS:]PORT", "[ADDRESS:]PORT[:PORT]", "127.0.0.1:PORT",
    "auto|none|NAME",
}  # fmt: skip
"""Other values. Where one may mean a worktree's directory, too, it goes through `meant`."""


def test_every_path_on_a_command_line_is_held_or_says_why_not(place: Place) -> None:
    """The table of forms refuses a link of an agent's before a verb is called; other paths have their reason."""
    (place.app / "linked").symlink_to(place.root)
    others = set()
    for name in forms.texts():
        form, own = forms.form(name), name.split()
        options = [(row.name, row.metavar, [row.name, "linked"]) for row in form.options if row.metavar]
        options = [(f"{name} {option}", value, [*own, *words]) for option, value, words in options]
        operands = [(name, operand, [*own, "linked"]) for operand, _ in form.operands]
        paths = [found for found in _PATH.findall(form.usage) if not found.startswith("--")]
        operands += [(name, path.strip("[]"), []) for path in paths]
        launch: list[tuple[str, str, list[str]]] = [
            (row.name, row.metavar, []) for row in forms.LAUNCH if row.metavar and name == "run"
        ]
        for label, value, words in (*options, *operands, *launch):
            if not _PATH.search(value):
                bare = value.removesuffix("...").strip("[]") if value.endswith(("]", "...")) else value
                assert value.islower() or {value, bare} & NO_PATHS, f"is {label} {value} a path?"
            elif f"{label} {value}" in REASONS:
                others.add(f"{label} {value}")
            else:
                assert not form.usage, f"{label} {value}"
                with pytest.raises(Refusal) as refused:
                    forms.call(words)
                assert refused.value.reference == "worktree-behind-link"
    assert others == set(REASONS)


def test_no_link_in_a_checkout_leads_what_the_service_is_asked_for(place: Place, tmp_path: Path) -> None:
    """By a file of tickets, and by whoever speaks to the service; nor is a socket made behind one."""
    (place.app / "linked").symlink_to(place.root)
    file = tmp_path / "tickets.toml"
    file.write_text('repository = "linked/app-A"\n[[tickets]]\nticket = "T"\ncommand = ["true"]\n')
    asked: list[Callable[[], object]] = [
        lambda: forms.call(["tickets", "run", str(file)]),
        lambda: forms.call(["files", "--http", "unix:linked/socket"]),
        lambda: job._unbent({"repository": f"{place.app}/linked/app-A", "name": "A"}),
    ]
    for act in asked:
        with pytest.raises(Refusal) as refused:
            act()
        assert refused.value.reference == "worktree-behind-link"
    given: dict[str, object] = {"trunk": str(root(place, "A")), "repository": None, "name": "linked"}
    assert job._unbent(given) == given


def test_no_link_in_a_checkout_leads_what_is_written_elsewhere(place: Place, tmp_path: Path) -> None:
    """Nor does a merged one, in a repository in which no session has worked; the user's own link leads on."""
    own = tmp_path / "own"
    own.symlink_to(place.root)
    (place.app / "linked").symlink_to(place.root)
    (place.app / "page.html").symlink_to(tmp_path / "kept")
    (tmp_path / "kept").write_text("mine")
    written: list[Callable[[str], object]] = [
        lambda word: Target(word, is_agents),
        lambda word: run.main(["--report", word, "--", "true"]),
        lambda word: forms.call(["learn", "--write", word, "--", "true"]),
    ]
    for act in written:
        for word in ("linked/r", "page.html"):
            with pytest.raises(Refusal) as refused:
                act(word)
            assert refused.value.reference == "report-unwritable"
    with pytest.raises(Refusal):
        forms.call(["selftest", "--html", "page.html"])
    (tmp_path / "link.html").symlink_to(tmp_path / "kept")
    with pytest.raises(Refusal) as refused:
        forms.call(["selftest", "--html", str(tmp_path / "link.html")])
    assert refused.value.reference == "report-unwritable"
    assert (tmp_path / "kept").read_text() == "mine"
    Target(f"{own}/r", is_agents).write("mine")
    assert (place.root / "r").read_text() == "mine"


def test_no_link_in_a_checkout_leads_tools_rows_or_worktrees_elsewhere(place: Place, tmp_path: Path) -> None:
    """Nor are results written through one: a shell may read that file. The user's own link leads on."""
    own = tmp_path / "own"
    own.symlink_to(place.root)
    (place.app / "linked").symlink_to(place.root)
    asked: dict[str, Verb] = {
        "files --session": lambda word: files._sessions([f"a={word}/app-A"], str(place.app)),
        "batch": lambda word: Results(f"{word}/rows.results.jsonl").close(),
        "worktree add --path": lambda word: forms.call(["worktree", "add", "C", "--path", f"{word}/there"]),
    }
    for act in asked.values():
        with pytest.raises(Refusal) as refused:
            act("linked")
        assert refused.value.reference == "worktree-behind-link"
        act(str(own))
    row = batch._commit(f"{place.app}/linked/app-A", "HEAD")
    assert isinstance(row, Refusal)
    assert row.reference == "worktree-behind-link"
    assert isinstance(batch._commit(f"{own}/app-A", "HEAD"), tuple)
    (place.app / "rows.results.jsonl").symlink_to(tmp_path / "aliases")
    with pytest.raises(Refusal) as refused:
        Results("rows.results.jsonl")
    assert refused.value.reference == "results-unusable"
    assert not (tmp_path / "aliases").exists()


@pytest.mark.parametrize("verb", VERBS)
def test_no_link_on_the_way_leads_there_either(place: Place, tmp_path: Path, verb: str) -> None:
    """In a tree without git that sessions could write; nor does a worktree's root that has become a link."""
    (shared := tmp_path / "shared").mkdir()
    written._append(written.path_of(written.user_state()), (f"*{shared}",))
    (shared / "way").symlink_to(place.root)
    for word in (f"{shared}/way/app-A", "../shared/way/app-A"):
        with pytest.raises(Refusal) as refused:
            VERBS[verb](word)
        assert refused.value.reference == "worktree-behind-link"


@pytest.mark.parametrize("verb", VERBS)
def test_a_name_that_is_another_worktrees_directory_is_refused(place: Place, verb: str) -> None:
    """No link is needed: a worktree may lie in a directory that is called as another one's ticket."""
    assert forms.call(["worktree", "add", "C"]) == 0
    own = place.app / "B"
    git("worktree", "move", str(root(place, "C")), str(own), at=place.app)
    assert forms.call(["worktree", "list"]) == 0
    with pytest.raises(Refusal) as refused:
        VERBS[verb]("B")
    assert refused.value.reference == "worktree-ambiguous"
    assert str(own) in refused.value.context


def test_a_directory_of_a_tickets_name_hides_no_ticket(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """The name is first, where the directory, or what a link leads to, is no worktree."""
    (place.app / "A").mkdir()
    (place.app / "B").symlink_to("A")
    for ticket in "AB":
        forms.call(["worktree", "status", ticket])
        assert f"{root(place, ticket)} ({ticket})" in capsys.readouterr().out
        assert worktree.directory_named(ticket) == str(root(place, ticket))


def test_paths_that_people_use_mean_what_they_did(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Absolute, relative, the current directory, `~`, and through links that no agent could have made."""
    there = root(place, "B")
    (tmp_path / "linked").symlink_to(place.root)
    (Path.home() / "mine").symlink_to(there)
    words = [str(there), "../app-B", f"{there}/", "../app/../app-B", f"{tmp_path}/linked/app-B", "~/mine"]
    for word in words:
        assert forms.call(["worktree", "status", word]) == 0
        assert f"{there} (B)" in capsys.readouterr().out
        assert worktree.directory_named(word) == str(there)
        assert find(str(place.app), word).worktree == str(there)
        assert forms.call(["merge", "--preview", word]) == 0
    monkeypatch.chdir(there)
    assert forms.call(["worktree", "status", "."]) == 0
    assert worktree.directory_named(".") == str(there)
