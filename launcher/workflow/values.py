"""What the models of the workflow have in common: frozen, strict about names, convertible to JSON and back."""

import re
import uuid
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, PlainSerializer, RootModel, ValidationError, field_validator

from policy.sandbox_context import Name

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


# Which kinds of agents there are.


class AgentType(StrEnum):
    """The role that an agent plays; prompt contributors and nodes are told apart by it."""

    ORCHESTRATOR = "orchestrator"
    ORCHESTRATOR_COLLECTOR = "orchestrator-collector"
    DISCOVERY_ORCHESTRATOR = "discovery-orchestrator"
    DISCOVERY_AGENT_DISPATCH = "discovery-agent-dispatch"
    DISCOVERY_AGENT = "discovery-agent"
    DISCOVERY_COLLECTOR = "discovery-collector"
    PLANNING_ORCHESTRATOR = "planning-orchestrator"
    PLANNING_AGENT_DISPATCH = "planning-agent-dispatch"
    PLANNING_AGENT = "planning-agent"
    PLANNING_COLLECTOR = "planning-collector"
    TICKET_ORCHESTRATOR = "ticket-orchestrator"
    TICKET_AGENT_DISPATCH = "ticket-agent-dispatch"
    TICKET_AGENT = "ticket-agent"
    TICKET_COLLECTOR = "ticket-collector"
    REVIEW_AGENT = "review-agent"
    MERGER_AGENT = "merger-agent"
    CONTEXT_MANAGER = "context-manager"

    @property
    def dispatches(self) -> bool:
        """Whether it sends several agents to work and collects what they bring."""
        return self in DISPATCH_TYPES


DISPATCH_TYPES = frozenset(
    {AgentType.DISCOVERY_AGENT_DISPATCH, AgentType.PLANNING_AGENT_DISPATCH, AgentType.TICKET_AGENT_DISPATCH}
)


# Artifact keys: the names under which requests, results and sessions are found (contracts sections 2 and 6).


MAX_LENGTH = 512
_SEGMENT = re.compile(r"[A-Za-z0-9._~:@+=-]+")


class ArtifactKey(RootModel[str]):
    """A path of segments, such as ``run-7/ticket-2``. Equal texts are equal keys; the JSON form is the text.

    The value is also the session id that tools send in a header, so it holds only characters that mean nothing to
    HTTP, shells and file systems, and no ``.`` or ``..`` segment.
    """

    model_config = ConfigDict(frozen=True)

    @field_validator("root")
    @classmethod
    def _plain(cls, value: str) -> str:
        if len(value) > MAX_LENGTH:
            raise ValueError(f"an artifact key has at most {MAX_LENGTH} characters, not {len(value)}")
        for segment in value.split("/"):
            if not _SEGMENT.fullmatch(segment) or segment in (".", ".."):
                raise ValueError(
                    f"{segment!r} cannot be part of an artifact key: letters, digits and ._~:@+=- between slashes"
                )
        return value

    @classmethod
    def new(cls, label: str) -> Self:
        """A key that nobody else has, beginning with `label`."""
        return cls(f"{label}-{uuid.uuid4().hex}")

    @classmethod
    def of(cls, key: "ArtifactKey | str") -> "ArtifactKey | None":
        """The key that is given, or that a text names; None for what can be none."""
        if isinstance(key, ArtifactKey):
            return key
        try:
            return ArtifactKey(key)
        except ValidationError:
            return None

    @property
    def value(self) -> str:
        """The text: the session id."""
        return self.root

    @property
    def parent(self) -> "ArtifactKey | None":
        """The key that this one was made from with `child`; None at the top."""
        head, slash, _ = self.root.rpartition("/")
        return ArtifactKey(head) if slash else None

    def child(self, label: str) -> "ArtifactKey":
        """The key of something that belongs to this one.

        Raises:
            pydantic.ValidationError: `label` is not one plain segment or more.
        """
        return ArtifactKey(f"{self.root}/{label}")

    def __hash__(self) -> int:
        return hash(self.root)

    def __str__(self) -> str:
        return self.root
