"""Sessions of the protocol as the rest of Paddock knows sessions: by the same id, with the same boundaries.

The id that an agent gives to a session is the key of its request context, so decorators and file tools that are called
with it find the worktree that its jail holds (contracts section 6).
"""

from collections.abc import Callable

from launcher.bridges.acp.places import Place
from launcher.workflow.request_context import RequestContextRepository
from launcher.workflow.requests import ArtifactKey
from policy.sandbox_context import WorktreeSandboxContext


def registrar(contexts: RequestContextRepository, boundaries: WorktreeSandboxContext) -> Callable[[str, Place], None]:
    """What `front.Front` tells of new sessions, for owners of a bridge that have contexts in their own process.

    Args:
        contexts: gets a context for each session.
        boundaries: of the bridge's jail (`judge.Judge.context`, or the richer one of its plan).
    """

    def found(session: str, _: Place) -> None:
        try:
            key = ArtifactKey(session)
        except ValueError:
            return  # no header could carry such an id either
        contexts.update(key, lambda context: context.evolve(worktree_context=boundaries))

    return found
