"""All prompt contributors, by ascending priority."""

from collections import Counter
from collections.abc import Sequence

from launcher.workflow.contexts.request_context import PromptContext
from launcher.workflow.prompts.protocol import PromptContributor, PromptContributorFactory
from policy.errors import Refusal


class PromptContributorRegistry:
    """Makes the contributed part of prompts.

    Args:
        contributors: for every prompt.
        factories: make further ones for each prompt.

    Raises:
        Refusal: `prompt-duplicate` when two contributors have the same name.
    """

    def __init__(
        self,
        contributors: Sequence[PromptContributor] = (),
        factories: Sequence[PromptContributorFactory] = (),
    ) -> None:
        """See the class."""
        self._contributors = tuple(contributors)
        self._factories = tuple(factories)
        _refuse_doubles(self._contributors)

    def contributors(self, context: PromptContext) -> list[PromptContributor]:
        """Those who have something to say here: lower priorities first, equals in the order of registration.

        Raises:
            Refusal: `prompt-duplicate`, when a factory makes a name that is taken.
        """
        made = [contributor for factory in self._factories for contributor in factory.create(context)]
        everyone = (*self._contributors, *made)
        _refuse_doubles(everyone)
        return sorted(
            (contributor for contributor in everyone if contributor.include(context)),
            key=lambda contributor: contributor.priority,
        )

    def assemble(self, context: PromptContext) -> str:
        """Their texts, one after another, with an empty line between them."""
        texts = (contributor.contribute(context).strip("\n") for contributor in self.contributors(context))
        return "\n\n".join(text for text in texts if text)


def _refuse_doubles(contributors: Sequence[PromptContributor]) -> None:
    doubles = sorted(name for name, count in Counter(each.name for each in contributors).items() if count > 1)
    if doubles:
        raise Refusal("prompt-duplicate", f"more than one prompt contributor is called {', '.join(doubles)}")
