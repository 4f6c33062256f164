"""Tables of TOML as objects: what they take, and every way in which they refuse."""

import pytest

from policy.tables import Choice, Many, Mistakes, One, Pairs, Part, Version, boolean, checked, key, matching, string


class Inner(Part):
    """A table in a table."""

    word: str = key(Choice("a", "b"), "a")
    pass_: tuple[str, ...] = key(Many(string), ())


class Outer(Part):
    """All kinds of keys."""

    schema_: int = key(Version(1))
    name: str = key(matching(r"[a-z]+", "small letters"), "x")
    inner: Inner = key(Inner, Inner())
    several: tuple[Inner, ...] = key(Many(Inner), ())
    pair: tuple[str, ...] = key(Many(string, least=2, most=2), ("p", "q"))
    free: dict[str, tuple[str, ...]] = key(Pairs(matching(r"[A-Z]+", "capitals"), Many(string), least=1), {})
    flag: bool | None = key(boolean, None)
    based: str = key(One(lambda value, base: f"{base}/{string(value)}", based=True), "")

    def consistent(self) -> None:
        """A name is not its inner word."""
        if self.name == self.inner.word:
            raise ValueError("name and inner.word are the same")


def wrong(table: object) -> list[tuple[str, str]]:
    with pytest.raises(Mistakes) as refused:
        checked(Outer, table)
    return [(".".join(map(str, each.place)), each.text) for each in refused.value.found]


def test_a_table_becomes_an_object() -> None:
    """Lists become tuples, what is left out has its default, and what was there is known."""
    found = checked(Outer, {"schema": 1, "inner": {"pass": ["u"]}, "free": {"A": ["b"]}, "based": "c"}, "base")
    assert (found.inner.word, found.inner.pass_, found.free, found.based) == ("a", ("u",), {"A": ("b",)}, "base/c")
    assert (found.name, found.pair, found.flag, found.several) == ("x", ("p", "q"), None, ())
    assert found.given == {"schema_", "inner", "free", "based"}
    assert found.as_data()["inner"] == {"word": "a", "pass": ["u"]}


@pytest.mark.parametrize(
    ("table", "place", "words"),
    [
        ([], "", "must be a table, not a list"),
        ({}, "schema", "must be there"),
        ({"schema": True}, "schema", "must be 1"),
        ({"schema": 1.0}, "schema", "must be 1"),
        ({"schema": 2}, "schema", "must be 1"),
        ({"schema": 1, "nmae": "x"}, "nmae", "is unknown"),
        ({"schema": 1, "schema_": 1}, "schema_", "is unknown"),
        ({"schema": 1, "name": "x\n"}, "name", "is not small letters"),
        ({"schema": 1, "name": 5}, "name", "must be a string, not a number"),
        ({"schema": 1, "inner": {"word": "c"}}, "inner.word", "must be one of 'a' or 'b'"),
        ({"schema": 1, "inner": {"word": []}}, "inner.word", "must be one of 'a' or 'b'"),
        ({"schema": 1, "inner": {"pass_": []}}, "inner.pass_", "is unknown"),
        ({"schema": 1, "inner": "word"}, "inner", "must be a table, not a string"),
        ({"schema": 1, "inner": {"pass": "u"}}, "inner.pass", "must be a list of strings, not a string"),
        ({"schema": 1, "several": [{}, {"word": 1}]}, "several.1.word", "must be one of"),
        ({"schema": 1, "several": {}}, "several", "must be a list of tables, not a table"),
        ({"schema": 1, "pair": ["p"]}, "pair", "must have 2 entries"),
        ({"schema": 1, "pair": ["p", "q", "r"]}, "pair", "must have 2 entries"),
        ({"schema": 1, "pair": ["p", None]}, "pair.1", "must be a string, not nothing"),
        ({"schema": 1, "free": {}}, "free", "must have 1 entries or more"),
        ({"schema": 1, "free": {"a": []}}, "free.a", "is not capitals"),
        ({"schema": 1, "free": {"A": [1]}}, "free.A.0", "must be a string"),
        ({"schema": 1, "free": []}, "free", "must be a table, not a list"),
        ({"schema": 1, "flag": 1}, "flag", "must be true or false, not a number"),
        ({"schema": 1, "name": "a"}, "", "name and inner.word are the same"),
    ],
)
def test_a_mistake_is_named_with_its_place(table: object, place: str, words: str) -> None:
    """Nothing is converted, and nothing unknown is passed over."""
    ((where, text),) = wrong(table)
    assert where == place
    assert words in text


def test_all_mistakes_are_found_at_once() -> None:
    """And what holds a wrong key is not judged as a whole."""
    found = wrong({"name": "a", "inner": {"word": "z"}, "flag": 0, "more": 1})
    assert [where for where, _ in found] == ["schema", "inner.word", "flag", "more"]


def test_an_object_is_made_from_words_with_the_same_checks() -> None:
    """As a plug-in makes one; another object that was made so can be part of it."""
    inner = Inner(word="b")
    assert Outer(schema=1, inner=inner).inner is inner
    assert Outer(schema=1, flag=None).flag is None
    with pytest.raises(ValueError, match="must be a string, not nothing"):
        Outer(schema=1, name=None)
    with pytest.raises(ValueError, match="must be there"):
        Outer()
    with pytest.raises(ValueError, match="is unknown"):
        Inner(wrod="b")


def test_an_object_does_not_change() -> None:
    """And is the same as another of the same values, given or not."""
    found = Inner()
    with pytest.raises(AttributeError, match="does not change"):
        found.word = "b"
    assert found == Inner(word="a") != Inner(word="b")
    assert hash(found) == hash(Inner(word="a"))
    assert found != Outer(schema=1)
