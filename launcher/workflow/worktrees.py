"""What the workflow asks of the worktree service, and which part of a worktree a node is granted."""

import logging
from collections.abc import Collection
from typing import Protocol

from launcher.workflow.graph import GraphRepository, Node, find_node_with_worktree
from launcher.workflow.request_context import RequestContextRepository
from launcher.workflow.requests import ArtifactKey
from policy.errors import Refusal
from policy.sandbox_context import WorktreeSandboxContext


class WorktreeService(Protocol):
    """Worktrees by id. The service makes them; agents never do (their jail forbids it)."""

    def worktree_context(self, worktree_id: str) -> WorktreeSandboxContext | None:
        """The worktree's boundaries with all its submodules; None when it is unknown or no longer exists."""
        ...

    def create_child(self, parent: WorktreeSandboxContext, name: str) -> WorktreeSandboxContext:
        """Makes a worktree on a branch of its own beside the parent's (FR-006), with every submodule.

        Args:
            parent: the worktree whose state it begins with.
            name: what it is named after; the service makes the name unique.

        Raises:
            Refusal: it cannot be made; nothing is left of it.
        """
        ...

    def discard_child(self, worktree_id: str) -> None:
        """Removes a worktree that holds no work yet.

        Raises:
            Refusal: it holds work.
        """
        ...


def granted_part(context: WorktreeSandboxContext, granted: Collection[str] | None) -> WorktreeSandboxContext:
    """`context` with only these submodules granted (story 6); None grants what it grants already."""
    if granted is None:
        return context
    names = [submodule.submodule_name for submodule in context.submodule_worktrees]
    unknown = sorted(set(granted) - set(names))
    if unknown:
        raise Refusal(
            "submodule-unknown",
            f"worktree {context.main_worktree_path} grants no submodule {', '.join(unknown)}",
            context=f"granted there: {', '.join(names) or 'none'}",
        )
    kept = tuple(module for module in context.submodule_worktrees if module.submodule_name in granted)
    closed = tuple(
        module.model_copy(update={"granted": False})
        for module in context.submodule_worktrees
        if module.submodule_name not in granted
    )
    return type(context).model_validate(
        {
            **dict(context),
            "submodule_worktrees": kept,
            "ungranted_submodules": (*context.ungranted_submodules, *closed),
        }
    )


def trusted(service: WorktreeService, claimed: WorktreeSandboxContext | None) -> WorktreeSandboxContext | None:
    """The service's record of the worktree that a message claims to have, or None.

    Messages are written by models. What one claims can only make the boundaries narrower: submodules that it leaves
    out are not granted, and its exceptions are added.
    """
    if claimed is None:
        return None
    known = service.worktree_context(claimed.worktree_id)
    if known is None or known.worktree_path != claimed.worktree_path:
        return None
    names = {module.submodule_name for module in claimed.submodule_worktrees}
    narrowed = granted_part(
        known, [module.submodule_name for module in known.submodule_worktrees if module.submodule_name in names]
    )
    return type(known).model_validate(
        {
            **dict(narrowed),
            "denied_paths": tuple(dict.fromkeys((*known.denied_paths, *claimed.denied_paths))),
            "read_only_paths": tuple(dict.fromkeys((*known.read_only_paths, *claimed.read_only_paths))),
            "unpopulated_submodules": tuple(
                dict.fromkeys((*known.unpopulated_submodules, *claimed.unpopulated_submodules))
            ),
            "freeze_root": known.freeze_root or claimed.freeze_root,
        }
    )


# From a session to its worktree: the one answer that decorators, bridges and file tools share (contracts 6).


log = logging.getLogger(__name__)


def worktree_of_node(worktrees: WorktreeService, node: Node) -> WorktreeSandboxContext | None:
    """The boundaries of a node; None before it has a worktree."""
    if node.worktree_id is None:
        return None
    context = worktrees.worktree_context(node.worktree_id)
    if context is None:
        raise Refusal(
            "worktree-gone",
            f"worktree {node.worktree_id} of node {node.node_id} no longer exists",
            context="it was removed while the workflow is running; no request is sent without its boundaries",
            hint="paddock worktree repair",
        )
    return granted_part(context, node.granted_submodules)


def worktree_of_key(
    graph: GraphRepository, worktrees: WorktreeService, key: ArtifactKey
) -> WorktreeSandboxContext | None:
    """The boundaries that the graph knows for a session: of its node, or of the nearest one above with a worktree."""
    node = find_node_with_worktree(graph, key)
    if node is None:
        log.debug("no node above %s has a worktree yet", key)
        return None
    return worktree_of_node(worktrees, node)


def worktree_of_session(
    session_id: str, contexts: RequestContextRepository, graph: GraphRepository, worktrees: WorktreeService
) -> WorktreeSandboxContext | None:
    """The boundaries for a tool call that names its session by header: from its context, else from its node.

    Only a node with exactly this id counts here: the id comes from outside, and an unknown one must stay unknown.
    An expired session has no boundaries, so nothing is allowed to it.

    Raises:
        Refusal: see `worktree_of_node`.
    """
    found = contexts.get_worktree_context(session_id)
    if found is not None:
        return found
    if contexts.state(session_id) == "expired":
        return None
    node = graph.get(session_id)
    return None if node is None else worktree_of_key(graph, worktrees, ArtifactKey(node.node_id))


# From a worktree context to the words that hold a command to it. The launch tells its provider in the provider's own.


def run_options(context: WorktreeSandboxContext) -> list[str]:
    """The words for `paddock run`, in front of ``--``.

    A submodule that is not granted is denied by its path: in a worktree that was made for an agent its directory is
    empty, and to the launcher an empty directory would be one like any other.
    """
    words = ["--worktree", str(context.worktree_path)]
    for path in (*(module.worktree_path for module in context.ungranted_submodules), *context.denied_paths):
        words += ["--deny", str(path)]
    return [*words, "--freeze-root"] if context.freeze_root else words
