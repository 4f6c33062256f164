"""Forecasts: all children with the trunk in one pass, and with one another; nothing is kept."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from launcher.vcs.git import Git
from launcher.vcs.merge import work
from launcher.vcs.merge.engine import Engine
from launcher.vcs.merge.into_children import Order, all_of, named, ordered
from launcher.vcs.merge.preview import Trees, preview
from launcher.vcs.merge.target import Place, find
from launcher.vcs.merge.work import History
from policy.errors import Refusal
from policy.handoff import Patterns
from tests.support.ground import Entry, Ground
from tests.support.repository import LINES, Nested, changed, repeat


def make(root: Path) -> None:
    """`one` conflicts with `two`; `three` with nobody; `four` with the trunk."""
    made = Ground(root / "repo", {"a": LINES, "b": LINES})
    made.branch("one", {"a": changed(3)})
    made.branch("two", {"a": LINES.replace("3\n", "THREE\n", 1)})
    made.branch("three", {"a": changed(17)})
    made.branch("four", {"b": "four\n"})
    made.commit("main", {"b": "main\n"})
    made.git("reset", "-q", "--hard")


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    """A copy of what `make` makes."""
    repeat(make, tmp_path)
    return Ground(tmp_path / "repo", None)


def objects(ground: Ground) -> set[Path]:
    return {path for path in (ground.root / ".git/objects").rglob("*") if path.is_file()}


def test_conflicts_are_told_before_they_happen(ground: Ground) -> None:
    """Each child with the trunk, each pair of children; no object, ref or file is made."""
    before = objects(ground), ground.git("for-each-ref")
    found = preview(ground.target(), [ground.source(name) for name in ("one", "two", "three", "four")], Patterns(()))
    assert [(each.source, each.clean) for each in found.children] == [
        ("one", True), ("two", True), ("three", True), ("four", False),
    ]  # fmt: skip
    assert [(each.into, each.source) for each in found.pairs if not each.clean] == [("one", "two")]
    assert found.children[3].conflicts[0].path == "b"
    assert "four conflicts with main" in found.pretty_print()
    assert not found.clean
    assert (objects(ground), ground.git("for-each-ref")) == before


def test_a_childs_file_names_are_not_taken_for_results(tmp_path: Path) -> None:
    """git lists the names of a renamed file between NUL bytes, as it does status and tree of the next result."""
    ground = Ground(tmp_path / "repo", {"1": LINES})
    ground.branch("one", {"a" * 40: LINES}, remove=["1"])
    ground.branch("two", {"other": LINES}, remove=["1"])
    found = preview(ground.target(), [ground.source(name) for name in ("one", "two")], Patterns(()))
    assert [each.clean for each in (*found.children, *found.pairs)] == [True, True, False]


def test_one_that_cannot_be_merged_does_not_hide_the_others(ground: Ground) -> None:
    """git ends at unrelated histories; the forecast goes on."""
    ground.commit("stranger", {"z": "z\n"}, fresh=True)
    found = preview(ground.target(), [ground.source(name) for name in ("stranger", "one")], Patterns(()))
    assert [each.clean for each in found.children] == [False, True]
    assert "no common ancestor" in (found.children[0].error or "")


def test_submodules_are_forecast_as_they_would_be_merged(tmp_path: Path) -> None:
    """Both sides' work in a submodule is no conflict where the lines are different, and leaves nothing behind."""
    nested = Nested.copied(tmp_path)
    nested.child("one", lib=changed(1))
    nested.child("two", lib=changed(18))
    nested.child("three", lib=LINES.replace("1\n", "ONE\n", 1))
    before = objects(nested.main), objects(Ground(nested.main.root / ".git/modules/lib", None))
    found = preview(nested.main.target(), [nested.main.source(name) for name in ("one", "two", "three")], Patterns(()))
    assert [(each.into, each.source) for each in found.pairs if not each.clean] == [("one", "three")]
    assert found.pairs[1].conflicts[0].path == "lib/l"
    assert (objects(nested.main), objects(Ground(nested.main.root / ".git/modules/lib", None))) == before


def dated(ground: Ground, commit: str, years: int) -> str:
    """The same commit, made some years later."""
    content = ground.run("cat-file", "commit", commit).stdout
    head, _, rest = content.partition(b"committer ")
    line, _, message = rest.partition(b"\n")
    who, seconds, zone = line.rsplit(b" ", 2)
    later = b"%s %d %s" % (who, int(seconds) + years * 31_536_000, zone)
    made = ground.run(
        "hash-object", "-t", "commit", "-w", "--stdin", stdin=head + b"committer " + later + b"\n" + message
    )
    return made.stdout.decode().strip()


def test_children_can_be_put_in_order(ground: Ground) -> None:
    """By name, by the age of their last commit, by how many files they change."""
    ground.commit("four", {f"more{number}": "x\n" for number in range(5)})
    sources = named(ground.target(), ["two", "four", "one"], str(ground.root))
    assert [each.label for each in ordered(sources, Order.GIVEN, ground.target())] == ["two", "four", "one"]
    assert [each.label for each in ordered(sources, Order.NAME, ground.target())] == ["four", "one", "two"]
    assert [each.label for each in ordered(sources, Order.SIZE, ground.target())] == ["two", "one", "four"]
    aged = [
        source._replace(commit=dated(ground, source.commit, year))
        for source, year in zip(sources, (3, 1, 2), strict=True)
    ]
    twin = aged[0]._replace(label="twin")
    found = ordered([*aged, twin], Order.AGE, ground.target())
    assert [each.label for each in found] == ["four", "one", "two", "twin"]


def test_worktrees_are_children_too(ground: Ground, tmp_path: Path) -> None:
    """A path names the branch that is checked out there; `all_of` takes every linked worktree with a branch."""
    ground.git("worktree", "add", "-q", str(tmp_path / "w"), "one")
    ground.git("worktree", "add", "-q", "--detach", str(tmp_path / "detached"), "two")
    (source,) = named(ground.target(), ["../w"], str(ground.root))
    assert (source.label, source.commit) == ("one", ground.id("one"))
    assert [each.label for each in all_of(ground.target())] == ["one"]
    (tag,) = named(ground.target(), [ground.id("two")[:12]], str(ground.root))
    assert tag.commit == ground.id("two")
    with pytest.raises(Refusal, match="nothing called"):
        named(ground.target(), ["--all"], str(ground.root))
    with pytest.raises(Refusal, match="same worktree as one"):
        named(ground.target(), ["one", "../w"], str(ground.root))
    with pytest.raises(Refusal, match="cannot be merged into itself"):
        named(find(str(tmp_path / "detached"), None), [str(tmp_path / "detached")], str(ground.root))
    ground.git("worktree", "add", "-q", "--detach", str(tmp_path / "deeper/detached"), "three")
    both = named(ground.target(), ["../detached", "../deeper/detached"], str(ground.root))
    assert [each.label for each in both] == ["detached", str(tmp_path / "deeper/detached")]


def test_many_children_arrive(tmp_path: Path) -> None:
    """One after another, all in the trunk, in order, with one checkout at the end; each has its own merge commit."""
    ground = Ground(tmp_path / "repo", {f"f{number}": LINES for number in range(50)})
    made = ground.history(
        [({f"f{number}": LINES for number in range(50)}, [])]
        + [
            ({f"f{other}": changed(child % 20) if other == child % 50 else LINES for other in range(50)}, [0])
            for child in range(60)
        ]
    )
    for number, oid in enumerate(made[1:]):
        (ground.root / f".git/refs/heads/c{number}").write_text(f"{oid}\n")
    ground.git("update-ref", "refs/heads/main", made[0])
    ground.git("reset", "-q", "--hard")
    names = [f"c{number}" for number in range(60)]
    told: list[tuple[int, int, str]] = []
    settings = ground.settings()._replace(progress=lambda *words: told.append(words))
    run = ground.merge(*names, settings=settings)
    assert run.outcome is not None
    assert [each.agent_result_id for each in run.outcome.merged] == names
    assert told == [(number, 60, name) for number, name in enumerate(names)]
    assert ground.status() == []
    assert (ground.root / "f7").read_text() == changed(7, 17)
    assert len(ground.git("rev-list", "--first-parent", "main").splitlines()) == 61


def test_history_is_asked_once(ground: Ground) -> None:
    """What the trunk holds, and what would be a fast-forward, is known without a process per child."""
    base, one = ground.id("main"), ground.id("one")
    ahead = ground.commit("ahead", {"c": "c\n"}, parents=["main"])
    both = ground.commit("both", {}, parents=["one", "main"])
    history = History.of(Git(str(ground.root / ".git")), base, [one, ahead, both, base])
    assert history.contains(base)
    assert not history.contains(one)
    assert history.extends(ahead)
    assert history.extends(both)
    assert not history.extends(one)
    history.add(both)
    assert history.contains(one)


def test_a_gate_has_the_last_word(ground: Ground) -> None:
    """It sees every merged commit; where it says no, the merge counts as failed and nothing of it stays."""
    place = Place.of(str(ground.root))
    seen: list[str] = []

    def gate(label: str, commit: str) -> str:
        seen.append(label)
        assert ground.git("show", f"{commit}:b") == "main"
        return "the tests fail" if label == "three" else ""

    who = work.identity_environment(Git(str(ground.root / ".git")), {}, seconds=1)
    with Engine(place, who) as engine:
        sources = [ground.source(name) for name in ("one", "three", "two")]
        done = work.merge_in_turn(engine, ground.id("main"), sources, "main", gate=gate)
    assert seen == ["one", "three"]
    assert [bool(each.outcome.commit) for each in done.tried] == [True, False]
    assert done.tried[1].outcome.error == "the tests fail"
    assert done.commit == done.tried[0].outcome.commit


def test_who_commits_is_found_as_git_finds_it(ground: Ground) -> None:
    """The caller's variables, then author.* and committer.*, then user.*, then EMAIL: git's own answer each time."""
    git = Git(str(ground.root / ".git"))
    names = ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL", "EMAIL")
    for key in ("user.name", "user.email"):
        ground.git("config", "--unset-all", key)
    with pytest.raises(Refusal) as refused:
        work.identity_environment(git, {"EMAIL": "a@b"})
    assert refused.value.reference == "identity-unknown"
    home = {"HOME": str(ground.root)}
    settings = ("user.name", "user.email", "author.email", "committer.name", "committer.email", "author.name")
    compared = 0
    for count in (1, *range(len(settings) + 1)):
        for given in ({}, {"EMAIL": "by@mail"}, {"GIT_AUTHOR_NAME": "by var", "EMAIL": "by@mail"},
                      dict.fromkeys(names, "by var")):  # fmt: skip
            told = subprocess.run(
                ["git", "-C", ground.root, "-c", "user.useConfigOnly=true", "var", "-l"],
                env={"PATH": os.environ["PATH"], **home, **given}, capture_output=True, text=True, check=False,
            )  # fmt: skip
            try:
                who = work.identity_environment(git, home | given)
            except Refusal:
                continue  # git would take the account's name, and the machine's
            compared += 1
            for role in ("AUTHOR", "COMMITTER"):
                line = f"GIT_{role}_IDENT={who[f'GIT_{role}_NAME']} <{who[f'GIT_{role}_EMAIL']}> "
                assert line in told.stdout, (count, given)
        for key in settings[:count]:
            ground.git("config", key, f"by {key}")
    assert compared == 26


def test_a_submodule_that_cannot_be_trusted_does_not_hide_the_others(tmp_path: Path) -> None:
    """Its place leads elsewhere: the child with work in it is told of, the other one is forecast."""
    nested = Nested.copied(tmp_path)
    nested.child("one", lib=changed(1))
    nested.child("two", main=changed(1))
    nested.lib.root.rename(tmp_path / "elsewhere")
    nested.lib.root.symlink_to(tmp_path / "elsewhere")
    found = preview(nested.main.target(), [nested.main.source(name) for name in ("one", "two")], Patterns(()))
    assert [each.clean for each in found.children] == [False, True]
    assert "symbolic link" in (found.children[0].error or "")


# What judges a commit sees a fresh worktree of it (`Trees`).

RULES = "[attr]odd working-tree-encoding=UTF-16\n[attr]even odd\n*.rc even\n/old.rc -odd\n"


@pytest.mark.parametrize(
    ("tree", "refused"),
    [
        ({".gitattributes": RULES + "*.c diff=cpp\n# ident\n", "new.rc": "x"}, False),
        ({"sub/.gitattributes": "* text=auto\n"}, False),
        ({".gitattributes": "*.c text\n"}, False),
        ({".gitattributes": RULES + "later ident\n"}, True),
        ({".gitattributes": RULES + "later working-tree-encoding=UTF-16\n"}, True),
        ({".gitattributes": RULES + '"later"ident\n'}, True),
        ({".gitattributes": RULES + "later text even\n"}, True),
        ({".gitattributes": RULES + "[attr]next even\n"}, True),
        ({".gitattributes": RULES.replace("/old.rc -odd\n", "")}, True),
        ({"sub/.gitattributes": "\ufeff* ident\n"}, True),
    ],
)
def test_rules_that_disguise_are_the_trunks_own(tmp_path: Path, tree: dict[str, str], *, refused: bool) -> None:
    """Also those for files that come later: once merged, they would be the trunk's. All others change as they like."""
    ground = Ground(tmp_path / "repo", {"a": "", ".gitattributes": RULES})
    ground.branch("work", tree)
    try:
        with Trees(ground.target().place, ground.id("main")) as trees, trees.of(ground.id("work")) as root:
            assert os.listdir(root)
        found = ""
    except Refusal as refusal:
        found = refusal.reference
    assert found == ("content-disguised" if refused else "")


def test_a_commit_is_compared_with_the_trunk_and_not_with_where_it_has_left_that(tmp_path: Path) -> None:
    """A commit that was merged once, and taken back, is a place to begin with that its author has chosen."""
    ground = Ground(tmp_path / "repo", {"a": ""})
    ground.commit("main", {".gitattributes": "b ident\n", "sub": Entry("160000", "1" * 40)})
    ground.git("branch", "old", "main")
    ground.commit("main", {"other": ""}, remove=[".gitattributes", "sub"])
    with Trees(ground.target().place, ground.id("main")) as trees:
        ground.commit("old", {"b": ""})
        with pytest.raises(Refusal, match="it sets ident for b"), trees.of(ground.id("old")):
            pass
        ground.commit("old", {}, remove=[".gitattributes"])
        with pytest.raises(Refusal, match="it records 111111111111 for the submodule sub"), trees.of(ground.id("old")):
            pass
        ground.commit("old", {}, remove=["sub"])
        with trees.of(ground.id("old")) as root:
            assert sorted(os.listdir(root)) == [".git", "a", "b"]


def test_worktrees_whose_files_are_elsewhere_are_kept(tmp_path: Path) -> None:
    """Those of commits that were judged are forgotten, also after a process was killed; one in use is not."""
    ground = Ground(tmp_path / "repo", {"a": ""})
    ground.git("worktree", "add", "-q", "--detach", str(tmp_path / "own"))
    ground.git("commit", "-q", "--allow-empty", "-m", "precious", at=tmp_path / "own")
    precious = ground.git("rev-parse", "HEAD", at=tmp_path / "own")
    (tmp_path / "own").rename(tmp_path / "away")
    place, main = ground.target().place, ground.id("main")
    with Trees(place, main) as killed, killed.of(main) as left:
        known = ground.root / ".git/worktrees"
        (name,) = {each.name for each in known.iterdir()} - {"own"}
        shutil.copytree(known / name, tmp_path / "copy")
        with Trees(place, main) as trees, trees.of(main) as root:
            assert os.path.dirname(root) != os.path.dirname(left)
        assert sorted(each.name for each in known.iterdir()) == sorted(["own", name])
    shutil.copytree(tmp_path / "copy", known / name)
    with Trees(place, main):
        assert [each.name for each in known.iterdir()] == ["own"]
    (tmp_path / "away").rename(tmp_path / "own")
    assert ground.git("rev-parse", "HEAD", at=tmp_path / "own") == precious
