"""Tables of TOML as objects that never change: which keys a table takes, and what each of them.

Nothing unknown and nothing converted; every mistake is found, each with its place. A launch reads some of these tables
before its command can start, and importing pydantic and building models of them took half of that time.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

Place = tuple[int | str, ...]
"""Keys, and numbers in lists, from the outermost table on."""

Check = Callable[[object], object]
"""Gives a value's canonical form, or raises ValueError with a text that completes the sentence "KEY ..."."""


class Mistake(NamedTuple):
    """What is wrong at one place: a text that completes the sentence "KEY ...", or a key that is unknown there."""

    place: Place
    text: str
    owner: "type[Part] | None" = None
    """The table that does not have this key."""

    @property
    def keys(self) -> list[str]:
        """The place without numbers of entries."""
        return [part for part in self.place if isinstance(part, str)]


class Mistakes(ValueError):
    """All that is wrong in one table."""

    def __init__(self, found: Sequence[Mistake]) -> None:
        """Takes one mistake at least."""
        super().__init__("; ".join(f"{'.'.join(map(str, each.place))} {each.text}" for each in found))
        self.found = tuple(found)


def toml_type(value: object) -> str:
    """What people call the type of a TOML value."""
    names: dict[type, str] = {bool: "a boolean", int: "a number", float: "a floating-point number", str: "a string"}
    names |= {list: "a list", tuple: "a list", dict: "a table", type(None): "nothing"}
    return names.get(type(value), "a date or time")


class One:
    """A value by itself.

    Args:
        check: of the value.
        based: whether it takes a second argument, the base of `checked`.
    """

    def __init__(self, check: Callable[..., object], *, based: bool = False) -> None:
        """See the class."""
        self.check, self.based = check, based

    def taken(self, value: object, place: Place, base: object, wrong: list[Mistake]) -> object:
        """The canonical form; a mistake is added to `wrong`."""
        try:
            return self.check(value, base) if self.based else self.check(value)
        except ValueError as error:
            wrong.append(Mistake(place, str(error)))
            return None


class Many:
    """A list, kept as a tuple."""

    def __init__(self, of: "Kind | Check", *, least: int = 0, most: int | None = None) -> None:
        """Takes what each entry is, and how many there are."""
        self.of, self.least, self.most = _kind(of), least, most

    def taken(self, value: object, place: Place, base: object, wrong: list[Mistake]) -> object:
        """As `One.taken`."""
        if not isinstance(value, list | tuple):
            what = "tables" if isinstance(self.of, type) else "strings"
            wrong.append(Mistake(place, f"must be a list of {what}, not {toml_type(value)}"))
            return ()
        if len(value) < self.least or (self.most is not None and len(value) > self.most):
            wrong.append(Mistake(place, f"must have {self.least} entries" + (" or more" if self.most is None else "")))
        return tuple(self.of.taken(entry, (*place, at), base, wrong) for at, entry in enumerate(value))


class Pairs:
    """A table whose keys are free."""

    def __init__(self, name: Callable[[object], str], of: "Kind | Check", *, least: int = 0) -> None:
        """Takes the check of each key, what each value is, and how many there are at least."""
        self.name, self.of, self.least = One(name), _kind(of), least

    def taken(self, value: object, place: Place, base: object, wrong: list[Mistake]) -> object:
        """As `One.taken`."""
        if not isinstance(value, dict):
            wrong.append(Mistake(place, f"must be a table, not {toml_type(value)}"))
            return {}
        if len(value) < self.least:
            wrong.append(Mistake(place, f"must have {self.least} entries or more"))
        return {
            self.name.taken(key, (*place, key), base, wrong): self.of.taken(content, (*place, key), base, wrong)
            for key, content in value.items()
        }


class Choice(One):
    """One of a few words."""

    def __init__(self, *words: str) -> None:
        """Takes all of them."""
        super().__init__(self._word)
        self.words = words

    def _word(self, value: object) -> str:
        if not isinstance(value, str) or value not in self.words:
            *some, last = map(repr, self.words)
            raise ValueError(f"must be {'one of ' if some else ''}{', '.join(some)}{' or ' if some else ''}{last}")
        return next(word for word in self.words if word == value)


class Version(One):
    """The number of a format."""

    def __init__(self, number: int) -> None:
        """Takes the only one that is known."""
        super().__init__(self._number)
        self.number = number

    def _number(self, value: object) -> int:
        if type(value) is not int or value != self.number:
            raise ValueError(f"must be {self.number}")
        return value


Kind = One | Many | Pairs | type["Part"]


def _kind(kind: Kind | Check) -> Kind:
    if isinstance(kind, One | Many | Pairs) or (isinstance(kind, type) and issubclass(kind, Part)):
        return kind
    return One(kind)


def string(value: object) -> str:
    """A string."""
    if not isinstance(value, str):
        raise ValueError(f"must be a string, not {toml_type(value)}")
    return value


def boolean(value: object) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {toml_type(value)}")
    return value


def matching(pattern: str, what: str) -> Callable[[object], str]:
    """The check of a string that is to be `what`, as the whole of it shows by a regular expression."""

    def check(value: object) -> str:
        if not re.fullmatch(pattern, string(value), re.ASCII):
            raise ValueError(f"{value!r} is not {what} ({pattern})")
        return string(value)

    return check


_NEEDED = object()


class Key:
    """One key of a table.

    Attributes:
        name: in the file.
        kind: what it takes.
        default: where the file does not have it.
        needed: whether the file must have it.
    """

    def __init__(self, kind: Kind | Check, default: object) -> None:
        """See the class."""
        self.name = ""
        self.kind, self.default, self.needed = _kind(kind), default, default is _NEEDED


def key(kind: Kind | Check, default: object = _NEEDED) -> Any:  # noqa: ANN401  # what the table's instances have there
    """A key in the body of a `Part`: ``NAME: TYPE = key(KIND, DEFAULT)``; without a default it must be there."""
    return Key(kind, default)


class Part:
    """A table with known keys. An attribute that would be a reserved word has a ``_`` behind the key's name.

    Made with keywords from values as TOML has them, which are checked (Mistakes, a ValueError). Where the default is
    None, so may be what is given.
    """

    KEYS: ClassVar[dict[str, Key]]
    """By attribute."""
    given: frozenset[str]
    """The attributes whose keys were there."""

    def __init_subclass__(cls) -> None:
        """Gathers the keys."""
        cls.KEYS = {name: value for name, value in cls.__dict__.items() if isinstance(value, Key)}
        for name, found in cls.KEYS.items():
            found.name = name.removesuffix("_")
            delattr(cls, name)

    def __init__(self, **values: object) -> None:
        """See the class."""
        wrong: list[Mistake] = []
        self._fill(values, (), None, wrong)
        if wrong:
            raise Mistakes(wrong)

    @classmethod
    def taken(cls, value: object, place: Place, base: object, wrong: list[Mistake]) -> Self:
        """As `One.taken`."""
        found = cls.__new__(cls)
        if isinstance(value, cls):
            return value  # made and checked before
        if isinstance(value, dict):
            found._fill(value, place, base, wrong)
        else:
            wrong.append(Mistake(place, f"must be a table, not {toml_type(value)}"))
        return found

    def _fill(self, values: Mapping[str, object], place: Place, base: object, wrong: list[Mistake]) -> None:
        before, known, content = len(wrong), set(), self.__dict__
        for attribute, one in self.KEYS.items():
            if one.name in values and (values[one.name] is not None or one.default is not None):
                known.add(attribute)
                content[attribute] = one.kind.taken(values[one.name], (*place, one.name), base, wrong)
            elif one.needed:
                wrong.append(Mistake((*place, one.name), "must be there"))
            else:
                content[attribute] = one.default
        content["given"] = frozenset(known)
        known_names = names(type(self))
        wrong += [Mistake((*place, name), "is unknown", type(self)) for name in values if name not in known_names]
        if len(wrong) == before:
            try:
                self.consistent()
            except ValueError as error:
                wrong.append(Mistake(place, str(error)))

    def consistent(self) -> None:
        """Raises ValueError where keys that are right by themselves do not fit together."""

    def as_data(self) -> dict[str, Any]:
        """Key -> value, ready for JSON."""
        return {one.name: _plain(getattr(self, attribute)) for attribute, one in self.KEYS.items()}

    def __setattr__(self, name: str, value: object) -> None:
        """Refuses: nothing changes later."""
        raise AttributeError(f"{type(self).__name__}.{name} does not change")

    def __eq__(self, other: object) -> bool:
        """Whether all values are the same, given or not."""
        return isinstance(other, Part) and type(self) is type(other) and self.as_data() == other.as_data()

    def __hash__(self) -> int:
        """By the values."""
        return hash(repr(self))

    def __repr__(self) -> str:
        """The table."""
        return f"{type(self).__name__}({self.as_data()})"


P = TypeVar("P", bound=Part)


def checked(part: type[P], table: object, base: object = None) -> P:
    """What `table` says.

    Args:
        part: the class of the outermost table.
        table: as `tomllib` gives it.
        base: what the checks that are `based` get besides the value.

    Raises:
        Mistakes: something in it is wrong.
    """
    wrong: list[Mistake] = []
    found = part.taken(table, (), base, wrong)
    if wrong:
        raise Mistakes(wrong)
    return found


def shipped(path: str) -> dict[str, Any]:
    """What a file of TOML says that comes with Paddock; whoever loads its modules may have it parsed.

    Args:
        path: absolute.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    parsed: Callable[[str], dict[str, Any] | None] | None = getattr(globals().get("__loader__"), "parsed", None)
    found = parsed(path) if parsed is not None else None
    if found is None:
        import tomllib  # 3 ms with what it needs, and 3 more for the tables of a plain launch

        with open(path, "rb") as file:
            found = tomllib.load(file)
    return found


def names(part: type[Part]) -> list[str]:
    """The keys of a table as they stand in a file."""
    return [one.name for one in part.KEYS.values()]


def _plain(value: object) -> object:
    if isinstance(value, Part):
        return value.as_data()
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    return {name: _plain(content) for name, content in value.items()} if isinstance(value, dict) else value
