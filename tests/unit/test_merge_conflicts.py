"""Every kind of conflict that git knows: path, kind, stages and git's words, the same as `git merge` has."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from launcher.vcs.merge import report
from launcher.vcs.merge.descriptors import ConflictKind, MergeConflict
from launcher.vcs.merge.object_store import Store
from tests.support.ground import Entry, Ground, Tree

LINES = "".join(f"{number}\n" for number in range(20))


def edited(number: int, text: str) -> str:
    return LINES.replace(f"{number}\n", f"{text}\n", 1)


def compared(ground: Ground, ours: str, theirs: str) -> tuple[str, tuple[MergeConflict, ...]]:
    """The engine's merge, after a look whether `git merge` says the same: the tree when clean, and the conflicts."""
    tree, unmerged = ground.git_merge(ground.id(ours), ground.id(theirs))
    with Store(str(ground.root / ".git"), {}) as store:
        merged = store.merge_trees(ground.id(ours), ground.id(theirs), attributes=ground.id(ours))
    assert merged is not None
    assert {f"{s.mode} {s.object_id} {s.stage}\t{s.path.decode()}" for s in merged.stages} == unmerged
    assert (merged.tree if merged.clean else "") == tree
    return tree, report.conflicts(merged)


CASES: Mapping[str, tuple[Tree, Tree, Sequence[str], Tree, Sequence[str], str, ConflictKind, set[int]]] = {
    # name: base, ours, removed there, theirs, removed there, path, kind, stages
    "contents": ({"a": LINES}, {"a": edited(3, "x")}, (), {"a": edited(3, "y")}, (), "a", ConflictKind.CONTENTS,
                 {1, 2, 3}),
    "add/add": ({"z": "z"}, {"a": "x\n"}, (), {"a": "y\n"}, (), "a", ConflictKind.ADD_ADD, {2, 3}),
    "binary": ({"a": b"\0"}, {"a": b"\0x"}, (), {"a": b"\0y"}, (), "a", ConflictKind.BINARY, {1, 2, 3}),
    "modify/delete": ({"a": LINES, "z": "z"}, {}, ("a",), {"a": edited(3, "y")}, (), "a", ConflictKind.MODIFY_DELETE,
                      {1, 3}),
    "rename/delete": ({"a": LINES, "z": "z"}, {"b": LINES}, ("a",), {}, ("a",), "b", ConflictKind.RENAME_DELETE,
                      {1, 2}),
    "rename/rename": ({"a": LINES}, {"b": LINES}, ("a",), {"c": LINES}, ("a",), "a", ConflictKind.RENAME_RENAME, {1}),
    "file/directory": ({"z": "z"}, {"a": "file\n"}, (), {"a/b": "inside\n"}, (), "a~one", ConflictKind.FILE_DIRECTORY,
                       {2}),
    "symlink": ({"a": Entry("120000", "t")}, {"a": Entry("120000", "x")}, (), {"a": Entry("120000", "y")}, (), "a",
                ConflictKind.CONTENTS, {1, 2, 3}),
    "types": ({"z": "z"}, {"a": LINES}, (), {"a": Entry("120000", "y")}, (), "a", ConflictKind.DISTINCT_MODES, {2}),
    "modes": ({"z": "z"}, {"a": Entry("100755", LINES)}, (), {"a": LINES}, (), "a", ConflictKind.ADD_ADD, {2, 3}),
    "submodule": ({"s": Entry("160000", "1" * 40)}, {"s": Entry("160000", "2" * 40)}, (),
                  {"s": Entry("160000", "3" * 40)}, (), "s", ConflictKind.SUBMODULE, {1, 2, 3}),
    "two renames into one name": ({"a": LINES, "b": LINES.upper() + "B\n" * 9}, {"c": LINES}, ("a",),
                                  {"c": LINES.upper() + "B\n" * 9}, ("b",), "c", ConflictKind.ADD_ADD, {2, 3}),
    "a new file in a renamed directory": ({"d/a": LINES, "d/b": LINES + "b"}, {"e/a": LINES, "e/b": LINES + "b"},
                                          ("d/a", "d/b"), {"d/new": "new\n"}, (), "e/new",
                                          ConflictKind.DIRECTORY_RENAME_SUGGESTED, {3}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_conflict_is_told(tmp_path: Path, name: str) -> None:
    """The kind, the path, the sides that exist, and git's own words; nothing else is in conflict."""
    base, ours, ours_removed, theirs, theirs_removed, path, kind, stages = CASES[name]
    ground = Ground(tmp_path / "repo", base) if name != "submodule" else Ground(tmp_path / "repo", {"z": "z"})
    if name == "submodule":
        ground.commit("main", base)
        ground.git("reset", "-q", "--hard")
    ground.branch("one", ours, remove=ours_removed)
    ground.branch("two", theirs, remove=theirs_removed)
    if name in ("file/directory", "types"):
        # git names such files after the side: `git merge` of a detached HEAD says HEAD.
        with Store(str(ground.root / ".git"), {}) as store:
            one, two = (store.commit_id(name) for name in ("one", "two"))
            merged = store.merge_trees(one, two, attributes=one)
        assert merged is not None
        found = report.conflicts(merged)
        path = path.replace("~one", f"~{one}")
    else:
        tree, found = compared(ground, "one", "two")
        assert tree == ""
    by_path = {conflict.path: conflict for conflict in found}
    assert path in by_path or name == "types", by_path
    conflict = by_path.get(path) or found[0]
    assert conflict.kind is kind, (conflict.kind, conflict.message)
    assert conflict.message
    if name != "types":
        assert {stage.stage for stage in conflict.stages if stage.path == path} == stages, conflict


def test_a_mode_and_an_edit_go_together(tmp_path: Path) -> None:
    """Changed bits on one side and lines on the other are no conflict."""
    ground = Ground(tmp_path / "repo", {"a": LINES})
    ground.branch("one", {"a": Entry("100755", LINES)})
    ground.branch("two", {"a": edited(3, "y")})
    tree, found = compared(ground, "one", "two")
    assert not found
    assert ground.git("ls-tree", tree).startswith("100755 ")


def test_renames_take_edits_along(tmp_path: Path) -> None:
    """A file that one side renames and the other edits is edited under its new name."""
    ground = Ground(tmp_path / "repo", {"a": LINES, "b": "b\n"})
    ground.branch("one", {"deep/er/a": edited(3, "x")}, remove=["a"])
    ground.branch("two", {"a": edited(17, "y")})
    tree, found = compared(ground, "one", "two")
    assert not found
    assert ground.git("show", f"{tree}:deep/er/a").split("\n")[3:18:14] == ["x", "y"]


@pytest.mark.parametrize(
    ("attributes", "clean"),
    [("a merge=union\n", True), ("a -merge\n", False), ("a -text\n", False), ("", False), ("a merge=evil\n", False)],
)
def test_attributes_of_the_trunk_count(tmp_path: Path, attributes: str, clean: bool) -> None:
    """`merge=union`, `-merge` and the like work as in a checkout of the trunk, whatever is checked out."""
    tree = {"a": LINES, "dir/a": LINES, ".gitattributes": attributes}
    ground = Ground(tmp_path / "repo", tree)
    ground.branch("one", {"a": edited(3, "x")})
    ground.branch("two", {"a": edited(3, "y")})
    found = compared(ground, "one", "two")[1]
    assert (not found) is clean
    # The checkout has other attributes, which are nobody's.
    ground.git("checkout", "-q", "main")
    (ground.root / ".gitattributes").write_text("a -merge\n" if clean else "a merge=union\n")
    with Store(str(ground.root / ".git"), {}) as store:
        one, two = (store.commit_id(name) for name in ("one", "two"))
        merged = store.merge_trees(one, two, attributes=one)
    assert merged is not None
    assert merged.clean is clean


def test_no_merge_driver_of_the_repository_runs(tmp_path: Path) -> None:
    """A child may name a driver in its attributes: what the configuration says about it is not executed."""
    ground = Ground(tmp_path / "repo", {"a": LINES, ".gitattributes": "a merge=evil\n"})
    ground.git("config", "merge.evil.driver", f"touch {tmp_path}/executed; exit 0")
    ground.branch("one", {"a": edited(3, "x")})
    ground.branch("two", {"a": edited(17, "y")})
    run = ground.merge("one", "two")
    assert run.outcome is not None
    assert run.outcome.all_successful
    assert not (tmp_path / "executed").exists()
    assert (ground.root / "a").read_text() == edited(3, "x").replace("17\n", "y\n", 1)


def test_line_ends_are_normalised_as_git_does(tmp_path: Path) -> None:
    """With merge.renormalize, a side that changed line ends only does not conflict; files are written with CRLF."""
    ground = Ground(tmp_path / "repo", {"a.txt": LINES.replace("\n", "\r\n"), "b.txt": LINES})
    ground.git("config", "merge.renormalize", "true")
    ground.branch("one", {"a.txt": edited(3, "x"), ".gitattributes": "*.txt text eol=crlf\n"})
    ground.branch("two", {"a.txt": edited(17, "y").replace("\n", "\r\n")})
    tree, found = compared(ground, "one", "two")
    assert not found
    ground.git("checkout", "-q", "main")
    ground.merge("one", "two")
    assert ground.tree("main") == tree
    assert (ground.root / "a.txt").read_bytes().count(b"\r\n") == 20
    assert ground.status() == []


def test_a_childs_new_attributes_count_for_the_next(tmp_path: Path) -> None:
    """Attributes that one child brings are the trunk's when the next one is merged."""
    ground = Ground(tmp_path / "repo", {"a": LINES})
    ground.branch("one", {".gitattributes": "a merge=union\n", "a": edited(3, "x")})
    ground.branch("two", {"a": edited(3, "y")})
    run = ground.merge("one", "two")
    assert run.outcome is not None
    assert run.outcome.all_successful
    assert (ground.root / "a").read_text().split("\n")[3:5] == ["x", "y"]


def test_messages_behind_a_submodule_conflict_are_not_read() -> None:
    """git 2.39 prints advice without a mark; what looks like another result or message there is taken for none."""
    oid = b"a" * 40
    stage = b"160000 " + oid + b" 2\tlib"
    message = b"1\0lib\0CONFLICT (submodule)\0CONFLICT (submodule): Merge conflict in lib\n"
    advice = b"Recursive merging with submodules\n - go to submodule (lib), and either merge\n"
    output = oid + b"\0" + stage + b"\0\0" + message + b"\0" + advice
    merged = report.parse(output, clean=False)
    assert [conflict.kind for conflict in report.conflicts(merged)] == [ConflictKind.SUBMODULE]
    two = report.parse_many(b"0\0" + output + b"\0" + b"1\0" + oid + b"\0\0")
    assert [each.clean for each in two] == [False, True]


@pytest.mark.parametrize("output", [b"", b"fatal: no\n", b"\0\0", b"g" * 40 + b"\0"])
def test_other_output_is_no_result(output: bytes) -> None:
    """What git should not print is an error, not an empty merge."""
    with pytest.raises(ValueError, match="did not print"):
        report.parse(output, clean=True)
    if output:
        with pytest.raises(ValueError, match="did not print"):
            report.parse_many(output)


def test_an_unknown_kind_is_still_a_conflict() -> None:
    """A later git may have more kinds: its words are kept, and unmerged paths without words are told, too."""
    oid = b"a" * 40
    stages = b"\0".join(b"100644 " + oid + b" 2\t" + name for name in (b"new", b"silent"))
    output = oid + b"\0" + stages + b"\0\0" + b"1\0new\0CONFLICT (brand new)\0words\n\0"
    found = report.conflicts(report.parse(output, clean=False), prefix="lib/", submodule="lib")
    assert [(c.path, c.kind, c.message, c.submodule) for c in found] == [
        ("lib/new", ConflictKind.OTHER, "words", "lib"),
        ("lib/silent", ConflictKind.OTHER, "", "lib"),
    ]
