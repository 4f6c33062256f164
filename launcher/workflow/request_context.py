"""What is known about one session: its requests, its worktree, its tools (contracts section 2, data-model.md)."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Protocol, Self

from pydantic import AfterValidator, AwareDatetime, Field, PlainSerializer, model_validator

from launcher.vcs.merge.descriptors import MergeAggregation
from launcher.workflow.requests import (
    NO_LABELS,
    AgentType,
    AnyRequest,
    AnyResult,
    ArtifactKey,
    Frozen,
    Metadata,
    ReadOnly,
)
from policy.sandbox_context import Name, WorktreeSandboxContext


class ContextState(StrEnum):
    """The life of a context (data-model.md, "State Transitions"); it only ever moves forward."""

    INITIALIZED = "initialized"
    """A request was seen."""
    ENRICHED = "enriched"
    """Decorators have added to it."""
    CONSUMED = "consumed"
    """A tool or a bridge has acted on it."""
    EXPIRED = "expired"
    """The session has ended; nothing may act on it any more."""

    @property
    def rank(self) -> int:
        """Its place in the order above."""
        return list(ContextState).index(self)


class ToolContext(Frozen):
    """The tools that an agent is offered.

    Attributes:
        tools: their names.
        metadata: further labels.
    """

    tools: tuple[Name, ...] = ()
    metadata: Metadata = NO_LABELS


class OperationContext(Frozen):
    """Which step of the workflow a message belongs to.

    Attributes:
        agent_name: the agent that acts.
        action: the step.
        method: the function that carries it out.
        metadata: further labels.
    """

    agent_name: Name | None = None
    action: Name | None = None
    method: Name | None = None
    metadata: Metadata = NO_LABELS


PromptMetadata = Annotated[
    Mapping[Name, MergeAggregation | str],
    AfterValidator(ReadOnly),
    PlainSerializer(lambda value: {name: _as_data(entry) for name, entry in value.items()}),
]


class PromptContext(Frozen):
    """What prompt contributors may look at (contracts sections 3 and 13).

    Attributes:
        agent_type: whose prompt it is.
        current_request: what it is asked.
        previous_request: what came before; it holds the parent's worktree (FR-009).
        metadata: labels; a merge aggregation may stand under ``mergeAggregation``.
    """

    agent_type: AgentType
    current_request: AnyRequest | None = None
    previous_request: AnyRequest | None = None
    metadata: PromptMetadata = ReadOnly()


class RequestContext(Frozen):
    """All of it, for one session. Updates make a new one; see `RequestContextRepository.update`.

    Attributes:
        artifact_key: the session's key, equal to the context id of its requests (FR-004c).
        state: where in its life it is.
        current_request: the latest request.
        previous_request: the one before.
        result: what its agent has answered, with the outcome of phase 1.
        worktree_context: the boundaries that file tools keep to; None until they are known.
        tool_context: the tools it is offered.
        prompt_context: what its prompt was made from.
        operation_context: the step it is in.
        orchestrator_node_id: node of the orchestrator it belongs to.
        ticket_node_id: node of its own, when it works on a ticket.
        metadata: further labels.
        created_at: first seen.
        last_updated_at: last changed, never before `created_at`.
    """

    artifact_key: ArtifactKey
    state: ContextState = ContextState.INITIALIZED
    current_request: AnyRequest | None = None
    previous_request: AnyRequest | None = None
    result: AnyResult | None = None
    worktree_context: WorktreeSandboxContext | None = None
    tool_context: ToolContext | None = None
    prompt_context: PromptContext | None = None
    operation_context: OperationContext | None = None
    orchestrator_node_id: Name | None = None
    ticket_node_id: Name | None = None
    metadata: Metadata = NO_LABELS
    created_at: AwareDatetime = Field(default_factory=lambda: datetime.now(UTC))
    last_updated_at: AwareDatetime = Field(default_factory=lambda data: data["created_at"])

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.last_updated_at < self.created_at:
            raise ValueError("a context cannot have been updated before it was created")
        return self

    @classmethod
    def empty(cls, artifact_key: ArtifactKey, now: datetime | None = None) -> Self:
        """A context of which nothing but its key is known."""
        moment = now or datetime.now(UTC)
        return cls(artifact_key=artifact_key, created_at=moment, last_updated_at=moment)

    @property
    def session_id(self) -> str:
        """The text of the key: what tools send in their header. Never empty."""
        return self.artifact_key.value

    def with_metadata(self, **labels: str) -> Self:
        """A copy with further labels."""
        return self.evolve(metadata={**self.metadata, **labels})


def _as_data(entry: MergeAggregation | str) -> object:
    return entry.model_dump(mode="json") if isinstance(entry, MergeAggregation) else entry


# Where request contexts are kept, as the rest of the workflow sees it (contracts section 2).


Updater = Callable[[RequestContext], RequestContext]


class RequestContextRepository(Protocol):
    """Contexts by session. Safe to share between threads.

    Sessions are named by key or by the key's text. A text that is no key names nothing: it comes from a header.
    """

    def get_or_create(self, key: ArtifactKey) -> RequestContext:
        """The session's context, an empty one when it had none (an expired one begins anew)."""
        ...

    def get(self, key: ArtifactKey | str) -> RequestContext | None:
        """The session's context; None when it is unknown or expired. Counts as use, but not as consumption."""
        ...

    def update(self, key: ArtifactKey, updater: Updater) -> RequestContext:
        """Replaces the context by what `updater` makes of it, atomically, and returns the new one.

        Args:
            key: the session; made when it is unknown.
            updater: a function without side effects; it may be called more than once. It may not change the key.
        """
        ...

    def clear(self, key: ArtifactKey | str) -> RequestContext | None:
        """The session is complete: its context expires. Returns its last form, or None when there was none."""
        ...

    def get_worktree_context(self, session_id: ArtifactKey | str) -> WorktreeSandboxContext | None:
        """The boundaries of a session for a tool or bridge that is about to act; marks the context consumed."""
        ...

    def state(self, key: ArtifactKey | str) -> ContextState | None:
        """Where in its life the session's context is; None when it was never seen, or forgotten since."""
        ...
