"""`policy.documents`: named tuples come back as they were written, and anything else is refused with its place."""

import json
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import pytest

from policy.documents import plain, read, written


class Colour(StrEnum):
    """A choice."""

    RED = "red"


class Leaf(NamedTuple):
    """One inside the other."""

    path: Path
    colour: Colour = Colour.RED


class Tree(NamedTuple):
    """Every kind of value that records have."""

    name: str
    since: float
    leaves: tuple[Leaf, ...] = ()
    number: int = 0
    flag: bool = False
    near: Leaf | None = None
    far: Path | None = None


TREE = Tree("ü", 1.5, (Leaf(Path("/a b")), Leaf(Path("/\udcff%41"))), 3, True, Leaf(Path("/")), Path("/x"))


def test_what_is_written_comes_back() -> None:
    """With paths that are no UTF-8; what is left out has its default, and whole numbers are seconds, too."""
    assert read(Tree, written(TREE)) == TREE
    assert read(Tree, written(TREE).encode()) == TREE
    assert json.loads(written(TREE)) == plain(TREE)
    assert plain(TREE)["leaves"] == [{"path": "/a b", "colour": "red"}, {"path": "file:///%FF%2541", "colour": "red"}]
    assert read(Tree, '{"name": "a", "since": 1}') == Tree("a", 1.0)


def test_names_that_are_no_text_become_labels() -> None:
    """JSON cannot hold them."""
    assert read(Tree, written(Tree("a\udcff", 0.0))).name == r"a\xff"


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("[]", "Tree: dict is expected, not list"),
        ("{}", "Tree: missing or unknown: name, since"),
        ('{"name": "a", "since": 1, "more": 2}', "Tree: missing or unknown: more"),
        ('{"name": 1, "since": 1}', "Tree.name: str is expected, not int"),
        ('{"name": "a", "since": true}', "Tree.since: float is expected, not bool"),
        ('{"name": "a", "since": 1, "number": true}', "Tree.number: int is expected, not bool"),
        ('{"name": "a", "since": 1, "flag": 1}', "Tree.flag: bool is expected, not int"),
        ('{"name": "a", "since": 1, "leaves": {}}', "Tree.leaves: list is expected, not dict"),
        ('{"name": "a", "since": 1, "leaves": [null]}', r"Tree.leaves\[0\]: dict is expected, not NoneType"),
        ('{"name": "a", "since": 1, "near": {"path": ""}}', "Tree.near.path: the path is empty"),
        ('{"name": "a", "since": 1, "far": "/a/.."}', "Tree.far: the path '/a/..' has"),
        ('{"name": "a", "since": 1, "far": 7}', "Tree.far: str is expected, not int"),
        ('{"name": "a", "since": 1, "near": {"path": "/", "colour": "blue"}}', "Tree.near.colour: 'blue' is not"),
        ("{", "Expecting property name"),
        ('{"name": "a", "since": 1' + "0" * 400 + "}", "Tree.since: int too large"),
        ("[" * 100_000, "Tree: it is nested too deeply"),
    ],
)
def test_what_is_no_such_document_is_refused(document: str, said: str) -> None:
    """With the place and the reason."""
    with pytest.raises(ValueError, match=said):
        read(Tree, document)
