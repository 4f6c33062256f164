"""The two ends of a ticket run, as functions from plain data to plain data: worktrees are made; work is merged.

Between them lie the agents' sessions, which are the service's (`launcher.service.tickets`). Nothing here knows of them:
another way to run a command in a worktree, on another machine say, fits between the same two ends.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.service.contexts import StoredRequestContexts
from launcher.service.database import Database
from launcher.service.ticket_models import of_ticket
from launcher.session import configuration, merging, places, planning, programs, providers
from launcher.session.machine import Machine
from launcher.vcs import checkout
from launcher.vcs.disk import Present
from launcher.vcs.harvest.outstanding import outstanding
from launcher.vcs.quarantine import record, swap
from launcher.vcs.worktrees import user_config
from launcher.vcs.worktrees.children import ChildWorktrees
from launcher.vcs.worktrees.models import Worktree
from launcher.vcs.worktrees.naming import worktree_id
from launcher.vcs.worktrees.service import WorktreeService
from launcher.workflow.agent_types import AgentType
from launcher.workflow.confinement import run_options
from launcher.workflow.contexts.request_context import ToolContext
from launcher.workflow.decorators.chain import DecoratorFailed
from launcher.workflow.flow import Workflow, build_workflow
from launcher.workflow.graph.nodes import Node
from launcher.workflow.graph.repository import InMemoryGraphRepository
from launcher.workflow.keys import ArtifactKey
from launcher.workflow.requests.orchestration import OrchestratorRequest
from launcher.workflow.requests.ticket import (
    TicketAgentRequest,
    TicketAgentRequests,
    TicketAgentResult,
    TicketAgentResults,
    TicketOrchestratorRequest,
)
from policy.config import flags
from policy.errors import Refusal


def service(where: places.Places) -> WorktreeService:
    """Worktrees of this user."""
    state = places.made(where.state)

    def unharvested(root: os.PathLike[str]) -> bool:
        return outstanding(record.directory_of(state, worktree_id(os.fspath(root))))

    user = user_config.read(where.home, os.path.dirname(where.config))
    return WorktreeService(state, unharvested=unharvested, user=user)


class _Work:
    """The workflow over this machine's worktrees and git, with contexts in the service's database."""

    def __init__(self, database: str, nodes: Sequence[Mapping[str, Any]] = ()) -> None:
        where = places.places(os.environ)
        state = places.made(where.state)
        swap.originals(state)
        self.children = ChildWorktrees(service(where))
        self.graph = InMemoryGraphRepository()
        for node in nodes:
            self.graph.save(Node.model_validate(node))
        merges = merging.by_contexts(where, os.environ)
        self.contexts = StoredRequestContexts(Database(database))
        self.flow: Workflow = build_workflow(
            self.contexts, self.graph, self.children, merges, lambda request: ToolContext()
        )


def common_dir_of(directory: str) -> str:
    """The git directory that all worktrees of a repository share.

    Raises:
        Refusal: it is no worktree.
    """
    return checkout.find(directory, Present(), exact=False).common_dir


def prepare(database: str, run: str, trunk: str, goal: str, tickets: list[dict[str, Any]], path: str) -> dict[str, Any]:
    """Makes a worktree for each ticket beside the trunk, all or none, and registers each agent's session.

    Args:
        database: the service's.
        run: name of the run.
        trunk: a worktree; what the tickets begin with, and where their work is merged into.
        goal: of the run.
        tickets: ``{"ticket", "details", "command", "options"}`` each; options by name.
        path: PATH of the agents' launchers.

    Returns:
        ``dispatch`` and ``nodes``, to be handed to `merge`, and ``agents``: ticket, session id, worktree, and the
        options of `paddock run` that hold a command to it.

    Raises:
        Refusal: a ticket's options mean nothing, its command is not there, a worktree cannot be made; nothing is left
            of the others.
    """
    found = checkout.find(trunk, Present(), exact=False)
    for each in tickets:
        _check(found.root, each, path)
    work = _Work(database)
    context = work.children.open_trunk(found.root)
    top = ArtifactKey(run)
    work.graph.save(Node(node_id=run, agent_type=AgentType.ORCHESTRATOR, worktree_id=context.worktree_id, title=goal))
    try:
        first = work.flow.request(OrchestratorRequest(context_id=top, goal=goal))
        second = work.flow.request(TicketOrchestratorRequest(context_id=top.child("tickets"), goal=goal), first)
        dispatch = work.flow.request(
            TicketAgentRequests(
                context_id=top.child("tickets/dispatch"),
                goal=goal,
                requests=tuple(
                    TicketAgentRequest(
                        context_id=top.child(f"tickets/dispatch/{number}"),
                        goal=goal,
                        ticket_id=each["ticket"],
                        details=each["details"],
                    )
                    for number, each in enumerate(tickets, 1)
                ),
            ),
            second,
        )
    except DecoratorFailed as error:
        raise _reason(error) from None
    assert isinstance(dispatch, TicketAgentRequests)
    agents = []
    for child in dispatch.children:
        worktree = child.worktree_context
        assert worktree is not None
        agents.append(
            {
                "ticket": child.ticket_id,
                "session_id": child.session_id,
                "worktree": str(worktree.worktree_path),
                "worktree_id": worktree.worktree_id,
                "options": run_options(worktree),
            }
        )
    ids = [run, f"{run}/tickets", f"{run}/tickets/dispatch", *(child.session_id for child in dispatch.children)]
    nodes = [node.model_dump(mode="json") for each in ids if (node := work.graph.get(each)) is not None]
    return {
        "dispatch": dispatch.model_dump(mode="json"),
        "nodes": nodes,
        "agents": agents,
        "trunk": found.root,
        "common_dir": found.common_dir,
    }


def _check(root: str, ticket: dict[str, Any], path: str) -> None:
    """Reads a ticket's options and finds its command as its launch will, as far as its worktree need not be there.

    Raises:
        Refusal: with the ticket's name.
    """
    where = places.places(os.environ)
    options = ticket["options"]
    config = options.get("--config")
    try:
        given = flags.layer(planning.without_values(options), cwd=root, home=where.home)
        config = os.path.join(root, config) if config else None
        settings, _ = configuration.load(root, config, given, os.environ)
        providers.choose(settings, ticket["command"], root, where, Machine(os.environ))
        name = ticket["command"][0]
        if "/" not in name or name.startswith("/"):
            programs.find_command(name, root, root, Machine({"PATH": path}))
    except Refusal as refusal:
        raise of_ticket(ticket["ticket"], refusal) from None


def end(trunk: str, worktrees: dict[str, str], removable: list[str]) -> dict[str, dict[str, Any]]:
    """Removes worktrees in which nothing would be lost, and looks at what is not committed in those that stay.

    Their branches stay: a merge can be taken back.

    Args:
        trunk: a worktree of the repository.
        worktrees: worktree ids by session id.
        removable: session ids of those that may go.

    Returns:
        ``removed``, by session id: "" when it is gone, else why it stays. ``uncommitted``, by session id: ``files``,
        the first of them relative to the root, their ``count``, and the ``problem`` that kept somebody from looking.
    """
    known = service(places.places(os.environ))
    removed: dict[str, str] = {}
    uncommitted: dict[str, dict[str, Any]] = {}
    for session_id, name in worktrees.items():
        try:
            row = known.find(trunk, name)
            if session_id in removable and not (why := _removed(known, row)):
                removed[session_id] = ""
                continue
            if session_id in removable:
                removed[session_id] = why
            files, count = known.status(row).uncommitted()
            if count:
                uncommitted[session_id] = {"files": files, "count": count, "problem": ""}
        except Refusal as refusal:
            uncommitted[session_id] = {"files": [], "count": 0, "problem": _told(refusal)}
    return {"removed": removed, "uncommitted": uncommitted}


def _removed(known: WorktreeService, row: Worktree) -> str:
    """ "" when a worktree is gone now, else why it stays."""
    try:
        known.remove(row, keep_branch=True)
    except Refusal as refusal:
        return _told(refusal)
    return ""


def _told(refusal: Refusal) -> str:
    return f"{refusal.message} [{refusal.reference}]"


def merge(
    database: str, dispatch: dict[str, Any], nodes: list[dict[str, Any]], outputs: dict[str, str]
) -> dict[str, Any]:
    """Merges in two phases: the trunk into each agent's worktree, then the agents' work into the trunk, in order.

    Args:
        database: the service's.
        dispatch: from `prepare`.
        nodes: from `prepare`.
        outputs: what each agent brings, by session id; who is missing is not merged.

    Returns:
        ``aggregation`` (`launcher.vcs.merge.models.MergeAggregation`), ``results``, and the ``nodes`` as they are then.

    Raises:
        Refusal: merging could not begin.
    """
    work = _Work(database, nodes)
    sent = TicketAgentRequests.model_validate(dispatch)
    try:
        results = [
            work.flow.result(TicketAgentResult(context_id=child.context_id, output=outputs[child.session_id]), child)
            for child in sent.children
            if child.session_id in outputs
        ]
        all_of_them = TicketAgentResults.model_validate({"context_id": sent.context_id, "results": tuple(results)})
        merged = work.flow.results(all_of_them, sent)
    except DecoratorFailed as error:
        raise _reason(error) from None
    for child in sent.children:
        work.contexts.clear(child.context_id)
    aggregation = merged.merge_aggregation
    ids = [node["node_id"] for node in nodes]
    return {
        "aggregation": None if aggregation is None else aggregation.model_dump(mode="json"),
        "summary": "" if aggregation is None else aggregation.pretty_print(),
        "clean": aggregation is not None and aggregation.all_successful,
        "results": [result.model_dump(mode="json") for result in results],
        "nodes": [node.model_dump(mode="json") for each in ids if (node := work.graph.get(each)) is not None],
    }


def _reason(error: DecoratorFailed) -> Refusal:
    cause = error.__cause__
    if isinstance(cause, Refusal):
        return cause
    return Refusal("workflow-failed", "the request could not be sent out", context=str(error))
