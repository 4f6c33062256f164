"""From a session to its worktree: the one answer that decorators, bridges and file tools share (contracts 6)."""

import logging

from launcher.workflow.contexts.repository import RequestContextRepository
from launcher.workflow.graph.nodes import Node
from launcher.workflow.graph.repository import GraphRepository, find_node_with_worktree
from launcher.workflow.keys import ArtifactKey
from launcher.workflow.worktrees import WorktreeService, granted_part
from policy.errors import Refusal
from policy.worktree import WorktreeSandboxContext

log = logging.getLogger(__name__)


def worktree_of_node(worktrees: WorktreeService, node: Node) -> WorktreeSandboxContext | None:
    """The boundaries of a node; None before it has a worktree.

    Raises:
        Refusal: `worktree-gone` when it had one that no longer exists; `submodule-unknown`.
    """
    if node.worktree_id is None:
        return None
    context = worktrees.worktree_context(node.worktree_id)
    if context is None:
        raise Refusal(
            "worktree-gone",
            f"worktree {node.worktree_id} of node {node.node_id} no longer exists",
            context="it was removed while the workflow goes on; no request is sent out without its boundaries",
            hint="paddock worktree repair",
        )
    return granted_part(context, node.granted_submodules)


def worktree_of_key(
    graph: GraphRepository, worktrees: WorktreeService, key: ArtifactKey
) -> WorktreeSandboxContext | None:
    """The boundaries that the graph knows for a session: of its node, or of the nearest one above with a worktree.

    Raises:
        Refusal: see `worktree_of_node`.
    """
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
