"""The models of a worktree, its submodules and its exceptions."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from policy.documents import absolute_path
from policy.sandbox_context import MainWorktreeContext, SubmoduleWorktreeContext, WorktreeSandboxContext

ODD = Path(os.fsdecode(b"/wt/odd-\xff\xfe"))


def main(**changes: object) -> MainWorktreeContext:
    return MainWorktreeContext.model_validate({"worktree_id": "m", "worktree_path": "/wt"} | changes)


def sub(name: str, **changes: object) -> SubmoduleWorktreeContext:
    facts = {
        "submodule_name": name,
        "worktree_id": f"id-{name}",
        "worktree_path": f"/wt/{name}",
        "main_worktree_id": "m",
    }
    return SubmoduleWorktreeContext.model_validate(facts | changes)


def context(**changes: object) -> WorktreeSandboxContext:
    facts = {
        "main_worktree": main(submodule_worktree_ids=("id-a", "id-b"), parent_worktree_id="p"),
        "submodule_worktrees": (sub("a"),),
        "ungranted_submodules": (sub("b", granted=False),),
        "denied_paths": ("/wt/.env", "/home/u/.ssh"),
        "read_only_paths": ("/wt/.git",),
        "freeze_root": True,
    }
    return WorktreeSandboxContext.model_validate(facts | changes)


@pytest.mark.spec("MF-005", "CONTRACT-7")
def test_flat_names_read_the_nested_models() -> None:
    """Every name that one of the specification's two shapes uses is there."""
    whole = context()
    assert whole.main_worktree_id == whole.worktree_id == "m"
    assert whole.main_worktree_path == whole.worktree_path == Path("/wt")
    assert whole.submodule_paths == (Path("/wt/a"),)
    assert whole.parent_worktree_id == "p"
    assert whole.submodule_worktrees[0].parent_worktree_id == "m"


def test_a_worktree_alone_is_a_whole_context() -> None:
    """Submodules and exceptions are optional."""
    whole = WorktreeSandboxContext(main_worktree=main())
    assert whole.submodule_paths == ()
    assert whole.parent_worktree_id is None
    assert whole.freeze_root is False


@pytest.mark.parametrize("make", [main, lambda **changes: sub("a", **changes), context])
def test_models_are_frozen_and_refuse_unknown_fields(make: Callable[..., BaseModel]) -> None:
    """A context cannot be changed after it was checked, and a misspelt field is an error."""
    model = make()
    field = next(iter(type(model).model_fields))
    with pytest.raises(ValidationError, match="frozen"):
        setattr(model, field, getattr(model, field))
    with pytest.raises(ValidationError, match="Extra inputs"):
        make(worktree_pth="/x")
    assert hash(model) == hash(make())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("/wt", "/wt"),
        (b"/wt", "/wt"),
        (Path("/wt"), "/wt"),
        ("/wt/", "/wt"),
        ("//wt//x/./y/", "/wt/x/y"),
        ("/", "/"),
        ("/~", "/~"),
        (b"/wt/\xff", "/wt/\udcff"),
        ("file:///wt/%FF%25", "/wt/\udcff%"),
    ],
)
def test_paths_are_made_plain(given: object, expected: str) -> None:
    """Spelling differences that mean nothing to the kernel disappear."""
    assert str(absolute_path(given)) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [("x/y", "w/x/y"), (".", "w"), ("", None), ("../z", "z"), ("~/x", "w/~/x"), ("./../w/q", "w/q")],
)
def test_a_relative_path_starts_at_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, expected: str | None
) -> None:
    """Relative paths are made absolute, except the empty one."""
    (tmp_path / "w").mkdir()
    monkeypatch.chdir(tmp_path / "w")
    if expected is None:
        with pytest.raises(ValueError, match="empty"):
            absolute_path(given)
    else:
        assert absolute_path(given) == tmp_path.resolve() / expected


def test_a_relative_path_needs_a_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a deleted directory a relative path is refused, an absolute one is not."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(ValueError, match="current directory is gone"):
        absolute_path("x")
    assert absolute_path("/x") == Path("/x")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("/wt/../etc", "after a name"),
        ("/a\0b", "NUL"),
        ("/a\ud800", "surrogates"),
        (7, "not int"),
        (None, "not NoneType"),
    ],
)
def test_a_path_that_means_nothing_certain_is_refused(given: object, words: str) -> None:
    """The message says what is wrong with it, as a validation error of the model."""
    with pytest.raises(ValidationError, match=words):
        main(worktree_path=given)


@pytest.mark.parametrize("path", ["/wt", "/wtx", "/wt-2/a", "/other/a", "/"])
def test_a_submodule_lies_inside_the_main_worktree(path: str) -> None:
    """Inside is meant by components: a sibling whose name merely starts the same is outside."""
    with pytest.raises(ValidationError, match="is not inside the main worktree /wt"):
        context(submodule_worktrees=(sub("a", worktree_path=path),))
    assert context(submodule_worktrees=(sub("a", worktree_path="/wt/deep/a"),)).submodule_paths


@pytest.mark.parametrize("path", ["/wtx/.git", "/etc"])
def test_a_read_only_path_lies_inside_the_main_worktree(path: str) -> None:
    """Read-only exceptions outside the worktree would mean nothing, nor would writable ones; its root may be one."""
    with pytest.raises(ValidationError, match="read-only path"):
        context(read_only_paths=(path,))
    with pytest.raises(ValidationError, match="writable path"):
        context(writable_paths=(path,))
    assert context(read_only_paths=("/wt",)).read_only_paths


def test_names_and_ids_are_unique() -> None:
    """Doubles are named in the error."""
    ids = main(submodule_worktree_ids=("id-a", "x"))
    for double, words in (
        (sub("a", worktree_id="x", worktree_path="/wt/c", granted=False), "submodule name used more than once"),
        (sub("c", worktree_id="id-a", granted=False), "worktree id used more than once"),
        (sub("c", worktree_id="m", granted=False), "worktree id used more than once"),
        (sub("c", worktree_id="x", worktree_path="/wt/a", granted=False), "submodule path used more than once"),
    ):
        with pytest.raises(ValidationError, match=words):
            context(main_worktree=ids, ungranted_submodules=(double,))
    with pytest.raises(ValidationError, match="entry of submodule_worktree_ids"):
        context(main_worktree=main(submodule_worktree_ids=("id-a", "id-b", "id-b")))


@pytest.mark.spec("MF-007", "MF-008")
def test_references_between_the_models_agree() -> None:
    """A submodule of another worktree, and lists of ids that differ, are refused with both sides named."""
    with pytest.raises(ValidationError, match="belongs to worktree 'other', but the main worktree here is 'm'"):
        context(submodule_worktrees=(sub("a", main_worktree_id="other"),))
    with pytest.raises(ValidationError, match=r"missing there \['id-b'\], unknown here \['id-z'\]"):
        context(main_worktree=main(submodule_worktree_ids=("id-a", "id-z")))


def test_the_granted_flag_agrees_with_the_list() -> None:
    """A submodule cannot be granted by one field and withheld by the other."""
    with pytest.raises(ValidationError, match="granted=False and cannot be listed in submodule_worktrees"):
        context(submodule_worktrees=(sub("a", granted=False),))
    with pytest.raises(ValidationError, match="granted=True and cannot be listed in ungranted_submodules"):
        context(ungranted_submodules=(sub("b"),))


@pytest.mark.parametrize("field", ["worktree_id", "submodule_name", "main_worktree_id"])
@pytest.mark.parametrize("value", ["", "a\0b"])
def test_ids_and_names_are_not_empty(field: str, value: str) -> None:
    """An empty id would match other empty ids."""
    with pytest.raises(ValidationError):
        sub("a", **{field: value})


def test_json_round_trip_keeps_everything() -> None:
    """What was written is what is read."""
    whole = context()
    assert WorktreeSandboxContext.model_validate_json(whole.model_dump_json()) == whole
    assert WorktreeSandboxContext.model_validate(whole.model_dump()) == whole


def test_json_round_trip_keeps_names_that_are_not_utf8() -> None:
    """Bytes that JSON cannot hold are percent-encoded and come back as the same path."""
    whole = context(denied_paths=(ODD, "/wt/ü"), submodule_worktrees=(sub("a", submodule_name="s\udcff"),))
    text = whole.model_dump_json()
    assert "file:///wt/odd-%FF%FE" in text
    assert "/wt/ü" in text
    again = WorktreeSandboxContext.model_validate_json(text)
    assert again == whole
    assert os.fsencode(again.denied_paths[0]) == b"/wt/odd-\xff\xfe"
    assert again.submodule_worktrees[0].submodule_name == "s\\xff"
