"""The work of a ticket run beside its sessions, as functions of plain data: worktrees, requests, merges.

Between them lie the agents' sessions, which are the service's (`launcher.service.ticket_runs`). Nothing here knows of
them: another way to run a command in a worktree, on another machine say, fits between the same two ends.
"""

import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn, TypeVar

from launcher.bridges.files.tool_calls import CALLS
from launcher.service.database import Database
from launcher.service.tables import StoredRequestContexts
from launcher.service.ticket_schema import aggregation, of_ticket
from launcher.service.ticket_words import orchestrator_of
from launcher.session import cache, configuration, harvesting, places, planning, recognition
from launcher.session.machine import Machine
from launcher.vcs import checkout, git_config, jailed_git
from launcher.vcs.disk import Present
from launcher.vcs.harvest.outstanding import outstanding
from launcher.vcs.merge import preview
from launcher.vcs.merge.descriptors import AgentMergeStatus
from launcher.vcs.merge.merges import checked_out_in
from launcher.vcs.private import record, swap
from launcher.vcs.worktrees.models import Worktree, slug
from launcher.vcs.worktrees.worktree_service import ChildWorktrees, WorktreeService, context_of_checkout
from launcher.workflow.flow import Workflow, build_workflow, default_prompts
from launcher.workflow.graph import InMemoryGraphRepository, Node
from launcher.workflow.request_context import OperationContext, PromptContext, ToolContext
from launcher.workflow.requests import (
    AgentRequest,
    AgentType,
    ArtifactKey,
    ContextManagerRequest,
    ContextManagerRoutingRequest,
    MergerInterruptRequest,
    MergerRequest,
    OrchestratorRequest,
    OwnWorktreeRequest,
    ReviewRequest,
    TicketAgentRequest,
    TicketAgentRequests,
    TicketAgentResult,
    TicketAgentResults,
    TicketOrchestratorRequest,
)
from launcher.workflow.worktrees import run_options, worktree_of_session
from policy import launch
from policy.config import layer
from policy.errors import Refusal
from policy.sandbox_context import WorktreeSandboxContext

Say = Callable[[dict[str, Any]], None]
"""Told each step at once, so that the service can write it down."""

log = logging.getLogger("paddock.service")

_MOST_THREADS = 8

_Given = TypeVar("_Given")
_Made = TypeVar("_Made")


def service(where: places.Places) -> WorktreeService:
    """Worktrees of this user."""
    state = places.made(where.state)

    def unharvested(root: os.PathLike[str]) -> bool:
        return outstanding(record.directory_of(state, launch.worktree_id(os.fspath(root))))

    user = git_config.read(where.home, os.path.dirname(where.config))
    return WorktreeService(state, unharvested=unharvested, user=user)


class _Work:
    """The workflow over this machine's worktrees and git, with contexts in the service's database."""

    def __init__(
        self,
        database: str,
        nodes: Sequence[Mapping[str, Any]] = (),
        who: Mapping[str, str] | None = None,
        only: Mapping[str, str] | None = None,
    ) -> None:
        where = places.places(os.environ)
        state = places.made(where.state)
        swap.originals(state)
        self.children = ChildWorktrees(service(where))
        self.graph = InMemoryGraphRepository()
        for node in nodes:
            self.graph.save(Node.model_validate(node))
        merges = harvesting.by_contexts(where, os.environ | dict(who or {}), only)
        self.contexts = StoredRequestContexts(Database(database))
        self.merges = merges
        self.flow: Workflow = build_workflow(self.contexts, self.graph, self.children, merges, tools_for)

    def begin(
        self, run: str, goal: str, trunk: WorktreeSandboxContext
    ) -> tuple[OrchestratorRequest, TicketOrchestratorRequest]:
        """The first requests of a run, whose tickets are handed out in `trunk`."""
        top = ArtifactKey(run)
        self.graph.save(Node(node_id=run, agent_type=AgentType.ORCHESTRATOR, worktree_id=trunk.worktree_id, title=goal))
        first = self.flow.request(OrchestratorRequest(context_id=top, goal=goal), operation=_step("begin"))
        second = TicketOrchestratorRequest(context_id=ArtifactKey(orchestrator_of(run)), goal=goal)
        return first, self.flow.request(second, first, _step("orchestrate"))

    def collected(
        self,
        sent: TicketAgentRequests,
        results: Sequence[TicketAgentResult],
        merged: Sequence[AgentMergeStatus],
        conflicted: Sequence[AgentMergeStatus],
        pending: Sequence[AgentMergeStatus],
    ) -> None:
        """Writes down what a dispatch came to as a whole, and the prompt by which an orchestrator decides about it.

        Those who were merged in an earlier attempt are among the merged; their results are taken from their contexts.
        """
        new = {result.session_id for result in results}
        stored = self.contexts.of_run(sent.session_id.partition("/")[0])
        kept = {each["artifact_key"]: each["result"] for each in stored if each.get("result")}
        ids = [status.agent_result_id for status in merged]
        before = [TicketAgentResult.model_validate(kept[each]) for each in ids if each in kept and each not in new]
        found = aggregation(*([each.model_dump() for each in part] for part in (merged, conflicted, pending)))
        asked = TicketAgentResults.model_validate(
            {"context_id": sent.context_id, "worktree_context": sent.worktree_context, "results": (*before, *results),
             "goal": sent.goal, "merge_aggregation": found["aggregation"]}
        )  # fmt: skip
        self.contexts.update(sent.context_id, lambda before: before.evolve(current_request=asked))
        told = {"agent_type": AgentType.TICKET_AGENT_DISPATCH, "current_request": asked}
        self.flow.prompt(PromptContext.model_validate(told))

    def place(self, number: int, ticket: str, session_id: str) -> dict[str, Any]:
        """Where a session works, and the options of `paddock run` that hold it there; counts as use of its context."""
        worktree = worktree_of_session(session_id, self.contexts, self.graph, self.children)
        if worktree is None:
            raise Refusal("worktree-gone", f"the worktree of ticket {ticket} no longer exists")
        return {
            "number": number,
            "ticket": ticket,
            "session_id": session_id,
            "worktree": str(worktree.worktree_path),
            "worktree_id": worktree.worktree_id,
            "options": run_options(worktree),
        }


def tools_for(request: AgentRequest) -> ToolContext:
    """The file tools that the receiver of a request is offered: all where it works, those that read elsewhere."""
    works = isinstance(request, OwnWorktreeRequest | MergerRequest)
    return ToolContext(tools=tuple(name for name, kind in CALLS.items() if works or kind.reads_only))


def common_dir_of(directory: str) -> str:
    """The git directory that all worktrees of a repository share.

    Refusals: it is no worktree.
    """
    return checkout.find(directory, Present(), exact=False).common_dir


def prepare(
    database: str,
    run: str,
    trunk: str,
    goal: str,
    tickets: list[dict[str, Any]],
    path: str,
    others: list[dict[str, Any]],
    claimed: list[str],
    since: float,
    say: Say,
) -> dict[str, Any]:
    """Makes a worktree for each ticket beside the trunk, all or none, and registers each agent's session.

    Args:
        trunk: a worktree; what the tickets begin with, and where their work is merged into.
        tickets: ``{"number", "ticket", "details", "command", "options", "worktree_id", "remote"}`` each; options by
            name; a worktree that was made for it before, or ""; whether its agent works on another machine.
        path: PATH of the agents' launchers.
        others: ``{"ticket", "command", "options", "remote"}`` of whatever is started besides.
        claimed: ids of worktrees that belong to other tickets.
        since: when the run was asked for, in seconds since the epoch.
        say: told ``{"number", "worktree_id", "worktree"}`` of each worktree that is ready.

    Returns:
        ``dispatch`` and ``nodes``, to be handed to `merge`, and ``agents``: ticket, session id, worktree, and the
        options of `paddock run` that hold a command to it.

    Refusals: a ticket's options mean nothing, its command is not there, a worktree cannot be made; nothing that was
    made by this call is left.
    """
    found = checkout.find(trunk, Present(), exact=False)
    for each in [*tickets, *others]:
        _check(found.root, each, path)
    work = _Work(database)
    context = work.children.open_trunk(found.root)
    worktrees = _worktrees(work, context, found.common_dir, tickets, set(claimed), since, say)
    top = ArtifactKey(run)
    _, second = work.begin(run, goal, context)
    dispatch = work.flow.request(
        TicketAgentRequests(
            context_id=top.child("tickets/dispatch"),
            goal=goal,
            requests=tuple(
                TicketAgentRequest(
                    context_id=top.child(f"tickets/dispatch/{each['number']}"),
                    goal=goal,
                    ticket_id=each["ticket"],
                    details=each["details"],
                    worktree_context=worktree,
                )
                for each, worktree in zip(tickets, worktrees, strict=True)
            ),
        ),
        second,
        _step("dispatch"),
    )
    asked = {"agent_type": AgentType.TICKET_ORCHESTRATOR, "current_request": second, "previous_request": dispatch}
    work.flow.prompt(PromptContext.model_validate(asked))
    for child in dispatch.requests:
        work.flow.request(child, dispatch, _step("work"))
    # What the launch is held to is what the context says, and counts as use of it.
    agents = [
        work.place(each["number"], child.ticket_id, child.session_id)
        for each, child in zip(tickets, dispatch.requests, strict=True)
    ]
    ids = [run, orchestrator_of(run), f"{run}/tickets/dispatch", *(child.session_id for child in dispatch.requests)]
    nodes = [node.model_dump(mode="json") for each in ids if (node := work.graph.get(each)) is not None]
    return {
        "dispatch": dispatch.model_dump(mode="json"),
        "nodes": nodes,
        "agents": agents,
        "trunk": found.root,
        "common_dir": found.common_dir,
    }


def orchestrate(
    database: str,
    run: str,
    trunk: str,
    goal: str,
    commands: list[dict[str, Any]],
    worktree_id: str,
    path: str,
    claimed: list[str],
    since: float,
    say: Say,
) -> dict[str, Any]:
    """Makes the worktree of a run's orchestrator beside the trunk, and registers its session.

    Args:
        trunk: a worktree; what the orchestrator begins with.
        commands: ``{"ticket", "command", "options"}`` of the orchestrator, and of whatever is started later.
        worktree_id: a worktree that was made for it before, or "".
        path: PATH of the agents' launchers.
        claimed: ids of worktrees that belong to others.
        since: when the run was asked for, in seconds since the epoch.
        say: told as `prepare` tells.

    Returns:
        As `prepare` has an agent, with ``prompt``, and ``trunk`` and ``common_dir`` as they are there.

    Refusals: as `prepare`.
    """
    found = checkout.find(trunk, Present(), exact=False)
    for each in commands:
        _check(found.root, each, path)
    work = _Work(database)
    context = work.children.open_trunk(found.root)
    ticket = {"number": 0, "ticket": "orchestrator", "worktree_id": worktree_id}
    (own,) = _worktrees(work, context, found.common_dir, [ticket], set(claimed), since, say)
    first, second = work.begin(run, goal, own)
    asked = {"agent_type": AgentType.TICKET_ORCHESTRATOR, "current_request": second, "previous_request": first}
    work.flow.prompt(PromptContext.model_validate(asked))
    return {
        **work.place(0, "orchestrator", second.session_id),
        "prompt": orchestrator_prompt(work.contexts, second.session_id),
        "trunk": found.root,
        "common_dir": found.common_dir,
    }


def orchestrator_prompt(contexts: StoredRequestContexts, session_id: str) -> str | None:
    """What an orchestrator is asked to do: the goal, the contributed part, and how it hands out tickets.

    None for a session that hands out none.
    """
    found = contexts.get(session_id)
    if found is None or not isinstance(found.current_request, TicketOrchestratorRequest):
        return None
    if (asked := found.prompt_context) is None:
        return None
    goal = found.current_request.goal
    parts = [f"## Goal\n\n{goal}"] if goal else []
    return "\n\n".join([*parts, default_prompts().assemble(asked), _HAND_OUT])


_HAND_OUT = """\
## Handing Out Tickets

Read what you need, decide which tickets there are, and hand them out with the tool `make_tickets`, in the order in
which their work is to be merged. Each has an id of letters, digits, dots, dashes and underscores, and details that
tell its agent everything it needs: it has not read this. What you commit here, all of them begin with. Their agents
start when you end."""


def land(
    database: str, run: str, trunk: str, worktree_id: str, who: dict[str, str], reviewed: str | None
) -> dict[str, Any]:
    """Merges what the tickets have come to, in their orchestrator's worktree, into the trunk, in two phases.

    Args:
        worktree_id: of the orchestrator.
        reviewed: the commit that was reviewed there, and is merged; None: whatever is there.

    Returns:
        ``status`` (`launcher.vcs.merge.descriptors.AgentMergeStatus`), with a descriptor.

    Refusals: merging could not begin.
    """
    work = _Work(database, who=who, only=None if reviewed is None else {worktree_id: reviewed})
    own = work.children.worktree_context(worktree_id)
    if own is None:
        raise Refusal("worktree-gone", "the worktree of the orchestrator no longer exists")
    into = work.children.open_trunk(checkout.find(trunk, Present(), exact=False).root)
    with jailed_git.many():
        brought = work.merges.merge_trunk_to_child(into, own)
        status = AgentMergeStatus(
            agent_result_id=orchestrator_of(run), worktree_context=own, child_merge_descriptor=brought
        )
        found = work.merges.merge_children_to_trunk([status], into)
    (status,) = found.merged if found.conflicted is None else (found.conflicted,)
    return {"status": status.model_dump(mode="json")}


def _step(action: str) -> OperationContext:
    return OperationContext(agent_name="ticket-run", action=action, method="launcher.service.ticket_work")


def _worktrees(
    work: _Work,
    trunk: WorktreeSandboxContext,
    common_dir: str,
    tickets: Sequence[Mapping[str, Any]],
    claimed: set[str],
    since: float,
    say: Say,
) -> list[WorktreeSandboxContext]:
    """The worktree of each ticket: the one that it has already, else a new one; several are made at the same time."""
    claimed |= {each["worktree_id"] for each in tickets}
    # Made for this run by a job that was killed before it could say so.
    unclaimed = {
        row.ticket: row.worktree_id
        for row in work.children.made_since(common_dir, since)
        if row.worktree_id not in claimed
    }
    made: list[WorktreeSandboxContext] = []

    def worktree(ticket: Mapping[str, Any]) -> WorktreeSandboxContext:
        known = ticket["worktree_id"] or unclaimed.get(slug(ticket["ticket"][:60]), "")
        context = work.children.worktree_context(known) if known else None
        if context is None or context.parent_worktree_id != trunk.worktree_id:
            context = work.children.create_child(trunk, ticket["ticket"])
            made.append(context)
        say({"number": ticket["number"], "worktree_id": context.worktree_id, "worktree": str(context.worktree_path)})
        return context

    if len(tickets) >= (os.cpu_count() or 1):
        work.children.workers = 1
    try:
        return _side_by_side(worktree, tickets)
    except BaseException:
        for context in made:
            try:
                work.children.discard_child(context.worktree_id)
            except Refusal as refusal:
                log.warning("worktree %s remains: %s", context.worktree_path, refusal.message)
        say({"discarded": [context.worktree_id for context in made]})
        raise


def _side_by_side(act: Callable[[_Given], _Made], given: Sequence[_Given]) -> list[_Made]:
    """What `act` makes of each, on as many threads as there are processors; after a failure no other is begun.

    Each thread has one helper for all its jails, and outlives them.
    """
    waiting = iter(list(enumerate(given)))
    made: dict[int, _Made] = {}

    def one_after_the_other() -> None:
        with jailed_git.many():
            while (turn := next(waiting, None)) is not None:
                try:
                    made[turn[0]] = act(turn[1])
                except BaseException:
                    for _ in waiting:
                        pass
                    raise

    threads = min(os.cpu_count() or 1, _MOST_THREADS, len(given))
    with ThreadPoolExecutor(max(threads, 1)) as pool:
        for done in [pool.submit(one_after_the_other) for _ in range(threads)]:
            done.result()
    return [made[number] for number in range(len(given))]


def _check(root: str, ticket: dict[str, Any], path: str) -> None:
    """Reads a ticket's options and finds its command as its launch will, as far as its worktree need not be there."""
    where = places.places(os.environ)
    options = ticket["options"]
    config = options.get("--config")
    try:
        if ticket["remote"]:  # its node finds command and provider; what --bring takes depends on the home directory
            options = {name: value for name, value in options.items() if name != "--bring"}
        given = layer.layer(planning.without_values(options), cwd=root, home=where.home)
        if ticket["remote"]:
            return
        config = os.path.join(root, config) if config else None
        settings, _ = configuration.load(root, config, given, os.environ)
        recognition.choose(settings, ticket["command"], root, where, Machine(os.environ))
        name = ticket["command"][0]
        if "--root" not in options and ("/" not in name or name.startswith("/")):
            planning.find_command(name, root, root, Machine({"PATH": path}))
    except Refusal as refusal:
        raise of_ticket(ticket["ticket"], refusal) from None


def plan(launches: list[dict[str, Any]], environment: dict[str, str] | None, say: Say) -> dict[str, Any]:
    """Makes and keeps the Plans that the agents' launchers will look for: nothing has to be loaded anew for each.

    A launcher whose Plan is not there, or not right any more, makes its own, and says why it cannot.

    Args:
        launches: ``{"number", "directory", "options", "command"}`` each; options by name.
        environment: the launchers'; None for this process's own.
        say: told ``{"number"}`` when its Plan is kept, or cannot be made.
    """
    if environment is not None:
        # Taken over here, as launchers do: a process that began with it would obey its LD_PRELOAD.
        os.environ.clear()
        os.environ.update(environment)
    where = places.places(os.environ)
    for each in launches:
        try:
            os.chdir(each["directory"])
            words, _ = cache.key_words(each["options"], each["command"])
            cache.entry(words, each["options"], each["command"], where)
        except (OSError, Refusal) as error:
            log.info("no plan was made in advance for %s: %s", each["directory"], error)
        say({"number": each["number"]})
    return {}


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
    rows = {row.worktree_id: row for row in known.of_repository(trunk)}
    removed: dict[str, str] = {}
    uncommitted: dict[str, dict[str, Any]] = {}

    def ended(session_id: str) -> None:
        try:
            if (row := rows.get(worktrees[session_id])) is None:
                row = known.find(trunk, worktrees[session_id])
            if session_id in removable and not (why := _removed(known, row)):
                removed[session_id] = ""
                return
            if session_id in removable:
                removed[session_id] = why
            files, count = known.status(row).uncommitted()
            if count:
                uncommitted[session_id] = {"files": files, "count": count, "problem": ""}
        except Refusal as refusal:
            uncommitted[session_id] = {"files": [], "count": 0, "problem": _in_words(refusal)}

    _side_by_side(ended, list(worktrees))
    return {"removed": removed, "uncommitted": uncommitted}


def _removed(known: WorktreeService, row: Worktree) -> str:
    """ "" when a worktree is gone now, else why it stays."""
    try:
        known.remove(row, keep_branch=True)
    except Refusal as refusal:
        return _in_words(refusal)
    return ""


def _in_words(refusal: Refusal) -> str:
    return f"{refusal.message} [{refusal.reference}]"


def merge(
    database: str,
    dispatch: dict[str, Any],
    nodes: list[dict[str, Any]],
    outputs: dict[str, str],
    earlier: list[dict[str, Any]],
    skip: bool,
    who: dict[str, str],
    reviewed: dict[str, str] | None,
    say: Say,
) -> dict[str, Any]:
    """Merges in two phases: the trunk into each agent's worktree, then the agents' work into the trunk, in order.

    Args:
        outputs: what each agent brings, by session id; who is missing is not merged.
        earlier: statuses of those whose work has arrived in an earlier attempt.
        skip: leave out who conflicts, and go on with the others; else everybody behind the first conflict waits.
        who: variables of the caller that say who commits.
        reviewed: the commit of each that was reviewed, by session id: nothing else of it is merged; None where nothing
            is reviewed.
        say: told ``{"merged"}``: the statuses of those whose work has arrived, as soon as it has.

    Returns:
        ``merged``, ``conflicted`` and ``pending``: statuses (`launcher.vcs.merge.descriptors.AgentMergeStatus`),
        ``results``, the ``nodes`` as they are then, and ``reviewed``: the same with the trunk merged into it, by this.

    Refusals: merging could not begin; context-lost: nobody knows any more where a ticket's agent worked. Without this
    it would count as one that has no worktree, and so nothing to merge.
    """
    sent = TicketAgentRequests.model_validate(dispatch)
    worktrees = {
        child.session_id: child.worktree_context.worktree_id
        for child in sent.requests
        if child.session_id in outputs and child.worktree_context is not None
    }
    only = None if reviewed is None else {place: reviewed[name] for name, place in worktrees.items()}
    work = _Work(database, nodes, who, only)
    for child in sent.requests:
        known = work.contexts.get(child.context_id) if child.session_id in outputs else None
        if child.session_id in outputs and (known is None or known.worktree_context is None):
            raise Refusal(
                "context-lost", f"nothing is known any more of the worktree of ticket {child.ticket_id}",
                context=f"the context of session {child.session_id} has expired; nothing was merged",
                hint=f"paddock tickets resume {child.session_id.partition('/')[0]}",
            )  # fmt: skip
    merged: list[AgentMergeStatus] = []
    conflicted: list[AgentMergeStatus] = []
    pending: tuple[AgentMergeStatus, ...] = ()
    with jailed_git.many():
        results = [
            work.flow.result(
                TicketAgentResult(context_id=child.context_id, output=outputs[child.session_id]),
                child,
                _step("bring"),
            )
            for child in sent.requests
            if child.session_id in outputs
        ]
        waiting = results
        while True:
            wanted = {"context_id": sent.context_id, "results": tuple(waiting)}
            asked = work.flow.results(TicketAgentResults.model_validate(wanted), sent, _step("collect"))
            found = asked.merge_aggregation
            if found is None:
                break
            say({"merged": [status.model_dump(mode="json") for status in found.merged]})
            merged += found.merged
            pending = found.pending
            if found.conflicted is None:
                break
            conflicted.append(found.conflicted)
            if not skip or not pending or _is_of_the_trunk(conflicted):
                break
            left = {status.agent_result_id for status in pending}
            waiting = [result for result in waiting if result.context_id.value in left]
        if merged or conflicted:
            arrived = [AgentMergeStatus.model_validate(status) for status in earlier]
            work.collected(sent, results, [*arrived, *merged], conflicted, pending)
    for status in merged:
        work.contexts.clear(status.agent_result_id)
    ids = [node["node_id"] for node in nodes]
    return {
        "merged": [status.model_dump(mode="json") for status in merged],
        "conflicted": [status.model_dump(mode="json") for status in conflicted],
        "pending": [status.model_dump(mode="json") for status in pending],
        "results": [result.model_dump(mode="json") for result in results],
        "nodes": [node.model_dump(mode="json") for each in ids if (node := work.graph.get(each)) is not None],
        "reviewed": {} if only is None else {name: work.merges.only[place] for name, place in worktrees.items()},
    }


def resolve(
    database: str,
    run: str,
    number: int,
    dispatch: dict[str, Any],
    nodes: list[dict[str, Any]],
    status: dict[str, Any],
    ask: bool,
) -> dict[str, Any]:
    """Sends out the request to resolve a ticket's conflict: to a merger, or to a person (MF-022).

    Args:
        number: of the ticket; 0 for the orchestrator, whose worktree all others were merged into.
        status: of the ticket, which conflicts.
        ask: a person; nobody else will do it.

    Returns:
        Where a merger works: ``number``, ``ticket``, ``session_id``, ``worktree``, ``options`` as `prepare` has them;
        ``commands`` merge the trunk there, up to the conflict.

    Refusals: the request could not be dispatched.
    """
    work = _Work(database, nodes)
    sent = TicketAgentRequests.model_validate(dispatch)
    conflicted = AgentMergeStatus.model_validate(status)
    who = conflicted.agent_result_id
    ticket = next((child.ticket_id for child in sent.requests if child.session_id == who), "orchestrator")
    descriptor = conflicted.merge_descriptor
    why = "" if descriptor is None else descriptor.error_message or ""
    common = {"goal": sent.goal, "ticket_agent": who, "conflicted": conflicted}
    stored = work.contexts.get(sent.context_id)
    last = sent if stored is None else stored.current_request
    key = ArtifactKey(run).child(f"tickets/{'ask' if ask else 'merger'}/{number}")
    if ask:
        choices = ("resolve the conflict in the ticket's worktree", "skip its changes", "roll the run back")
        question = MergerInterruptRequest.model_validate(
            {"context_id": key, "reason": why, "choices": choices, **common}
        )
        work.flow.request(question, last, _step("ask"))
        return {}
    request = MergerRequest.model_validate({"context_id": key, "summary": why, **common})
    request = work.flow.request(request, last, _step("resolve"))
    commands = (descriptor.merge_commands if descriptor is not None else "") or ""
    return work.place(number, ticket, request.session_id) | {"commands": commands}


def review(
    database: str,
    run: str,
    number: int,
    trunk: str,
    dispatch: dict[str, Any],
    nodes: list[dict[str, Any]],
    session_id: str,
    passed: str,
    given: dict[str, Any],
    say: Say,
) -> dict[str, Any]:
    """Sends out the request to review the work on a ticket: a commit, in a fresh worktree that lasts until SIGTERM.

    Nothing that its agent left decides there, neither in files that it did not commit nor in its home or git directory.

    Args:
        number: of the ticket; 0 for the orchestrator, whose worktree all others were merged into.
        trunk: the worktree that the run began with (not its orchestrator's, into which tickets are merged: an agent's).
        session_id: of its agent.
        passed: the commit that has passed its review; "" for none.
        given: the options that the review has, by name.
        say: told where the review works, as `prepare` has an agent, and the ``commit``.

    Returns:
        ``{}``, at once, where that commit is what there is to review.

    Refusals: the request could not be dispatched; the worktree could not be made, or not with all that is committed;
    config-unread.
    """
    signal.signal(signal.SIGTERM, _end)
    work = _Work(database, nodes)
    sent = TicketAgentRequests.model_validate(dispatch)
    child = next((child for child in sent.requests if child.session_id == session_id), None)
    own = worktree_of_session(session_id, work.contexts, work.graph, work.children)
    if own is None:
        raise Refusal("worktree-gone", "the worktree of the work to review no longer exists")
    place, commit = checked_out_in(own)
    if commit == passed:
        return {}
    key = ArtifactKey(run).child(f"tickets/review/{number}")
    asked = ReviewRequest(
        context_id=key,
        goal=sent.goal,
        ticket_agent=ArtifactKey(session_id),
        content=sent.goal if child is None else child.details,
        return_to=AgentType.TICKET_AGENT_DISPATCH,
    )
    _, trunk_now = checked_out_in(work.children.open_trunk(checkout.find(trunk, Present(), exact=False).root))
    with preview.Trees(place, trunk_now) as trees, trees.of(commit) as root:
        harvesting.refuse_unread(root, place.common_dir, trunk_now, given.get("--config"))
        request = work.flow.request(asked, child or sent, _step("review"))
        # Not what the workflow gives to whoever looks at an agent's work: that agent's worktree.
        fresh = context_of_checkout(checkout.find(root, Present(), exact=True))
        known = {"worktree_context": fresh, "current_request": request.with_worktree_context(fresh)}
        work.contexts.update(key, lambda before: before.evolve(**known))
        there = work.place(number, "orchestrator" if child is None else child.ticket_id, key.value)
        if not {"--git", "--review", "--cow"}.intersection(given):  # the latter two hand nothing over either
            there["options"] += preview.RUN_OPTIONS
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # from here on it waits to be asked for
        say(there | {"commit": commit})
        signal.sigwait({signal.SIGTERM})
    return {}


def _end(_number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + signal.SIGTERM)


def ask(database: str, run: str, number: str, session_id: str, question: str) -> dict[str, Any]:
    """Sends out the request to a run's context manager, who works where the agent that asks does.

    Args:
        number: of the question.
        session_id: of the agent that asks.

    Returns:
        As `prepare` has an agent.

    Refusals: the agent is none of the run's, or the request could not be dispatched.
    """
    work = _Work(database)
    asking = work.contexts.get(session_id) if session_id.partition("/")[0] == run else None
    if asking is None or (last := asking.current_request) is None:
        raise Refusal("session-unknown", f"no agent of ticket run {run} is known as {session_id}")
    top = work.contexts.get(run)
    if top is not None and top.worktree_context is not None:
        worktree_id = top.worktree_context.worktree_id
        work.graph.save(Node(node_id=run, agent_type=AgentType.ORCHESTRATOR, worktree_id=worktree_id))
    key = ArtifactKey(run).child(f"tickets/question/{number}")
    told = {"goal": last.goal, "reason": question, "return_to": last.agent_type}
    routed = ContextManagerRoutingRequest.model_validate({"context_id": key, **told})
    routed = work.flow.request(routed, last, _step("ask"))
    request = ContextManagerRequest.model_validate({"context_id": key.child("answer"), **told})
    request = work.flow.request(request, routed, _step("answer"))
    return work.place(0, "context-manager", request.session_id)


def _is_of_the_trunk(conflicted: Sequence[AgentMergeStatus]) -> bool:
    """Whether the last two were refused for the same reason, and not for their own files: so would all others be."""
    last = [status.merge_descriptor for status in conflicted[-2:]]
    first = last[0]
    return len(last) == 2 and all(
        each is not None and not each.conflict_files and first is not None and each.error_message == first.error_message
        for each in last
    )
