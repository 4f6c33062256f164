"""What a prompt contributor is (contracts section 3)."""

from collections.abc import Sequence
from typing import Protocol

from launcher.workflow.contexts.request_context import PromptContext


class PromptContributor(Protocol):
    """Adds a piece of text to some prompts."""

    @property
    def name(self) -> str:
        """Its name, unique in a prompt."""
        ...

    @property
    def priority(self) -> int:
        """Its place: lower numbers come first."""
        ...

    def include(self, context: PromptContext) -> bool:
        """Whether it has something to say here."""
        ...

    def contribute(self, context: PromptContext) -> str:
        """Its text; asked only where `include` says yes."""
        ...


class PromptContributorFactory(Protocol):
    """Makes contributors for one prompt, when they need something of it."""

    def create(self, context: PromptContext) -> Sequence[PromptContributor]:
        """The contributors; none where nothing is to be said."""
        ...
