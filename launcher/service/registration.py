"""Sessions in the request-context repository: who names one, by the text of its key, is told the boundaries it has.

The key of a session is ``session/NAME``. Its context is initialized when the session is accepted, enriched with its
worktree when its command runs, and expires with it. Sessions of ticket runs have the context of their request, too,
under the id that their label ``session-id`` names.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from launcher.service.models import SessionRequest
from launcher.session import planning
from launcher.vcs import checkout
from launcher.vcs.disk import Present
from launcher.workflow.contexts.repository import RequestContextRepository
from launcher.workflow.contexts.request_context import RequestContext
from launcher.workflow.keys import ArtifactKey
from policy.errors import Refusal
from policy.worktree import WorktreeSandboxContext

log = logging.getLogger("paddock.service")


def key_of(name: str) -> ArtifactKey:
    """The key of a session's context. A session's name is always one plain segment of a key."""
    return ArtifactKey(f"session/{name}")


class Registration:
    """Keeps the contexts of sessions. What goes wrong here is logged: the jail holds a session, not its context.

    Args:
        contexts: the repository.
        later: makes a write as soon as the repository takes it, in turn (`Database.later`).
    """

    def __init__(self, contexts: RequestContextRepository, later: Callable[[Callable[[], object]], None]) -> None:
        """See the class."""
        self._contexts = contexts
        self._later = later

    def of(self, name: str) -> RequestContext | None:
        """The context of a session; None when it is over, or unknown."""
        return self._contexts.get(key_of(name))

    def accepted(self, request: SessionRequest) -> None:
        """A session was accepted.

        Args:
            request: with its name.
        """
        labels = {"session": request.name or "", **({"bridge": request.bridge} if request.bridge else {})}
        key = key_of(request.name or "")
        self._later(lambda: self._contexts.update(key, lambda before: before.with_metadata(**labels)))

    async def placed(self, name: str, worktree: str, options: Mapping[str, str | list[str] | bool]) -> None:
        """A session's command runs.

        Args:
            name: the session.
            worktree: root of its worktree.
            options: of `paddock run`, by name.
        """
        try:
            context = await asyncio.to_thread(_boundaries, worktree, options)
        except (Refusal, OSError, ValueError) as error:  # the worktree has been removed meanwhile, say
            log.warning("session %s is registered without its worktree: %s", name, error)
            return
        self._later(lambda: self._contexts.update(key_of(name), lambda before: before.evolve(worktree_context=context)))

    def ended(self, name: str) -> None:
        """A session is over: nothing may act for it any more."""
        self._later(lambda: self._contexts.clear(key_of(name)))


def _boundaries(worktree: str, options: Mapping[str, str | list[str] | bool]) -> WorktreeSandboxContext:
    wanted = options.get("--submodule")
    found = checkout.find(worktree, Present(), exact=True)
    return planning.context_of(found, wanted if isinstance(wanted, list) else [], "--freeze-root" in options)
