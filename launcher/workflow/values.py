"""What the models of the workflow have in common: frozen, strict about names, convertible to JSON and back."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, PlainSerializer

from policy.worktree import Name

_V = TypeVar("_V")


class Frozen(BaseModel):
    """A model that never changes; updates make a new one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def evolve(self, **changes: object) -> Self:
        """A copy with some fields replaced, validated as a whole.

        Raises:
            pydantic.ValidationError: an unknown field, or a value that does not fit.
        """
        return type(self).model_validate({**dict(self), **changes})


class ReadOnly(Mapping[str, _V]):
    """A mapping that nobody can change (types.MappingProxyType can be neither copied nor pickled)."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Mapping[str, _V] | None = None) -> None:
        """Takes a copy of `entries`."""
        self._entries = dict(entries or {})

    def __getitem__(self, name: str) -> _V:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __hash__(self) -> int:
        return hash(frozenset(self._entries.items()))

    def __repr__(self) -> str:
        return repr(self._entries)


Metadata = Annotated[Mapping[Name, str], AfterValidator(ReadOnly), PlainSerializer(dict)]
"""Labels and their values, read-only."""

NO_LABELS: Mapping[str, str] = ReadOnly()
