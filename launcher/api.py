"""What programmes may use of the launcher: documented in docs/library.md, loaded when it is first asked for."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from launcher import programmes

if TYPE_CHECKING:
    from launcher.bridges.files.mcp_server import SESSION_HEADER as SESSION_HEADER
    from launcher.bridges.files.mcp_server import TOKEN_HEADER as TOKEN_HEADER
    from launcher.bridges.files.router import Router as Router
    from launcher.sandbox.box import AsyncSandbox as AsyncSandbox
    from launcher.sandbox.box import Commit as Commit
    from launcher.sandbox.box import Done as Done
    from launcher.sandbox.box import Sandbox as Sandbox
    from launcher.service.tables import StoredRequestContexts as StoredRequestContexts
    from launcher.session.places import Places
    from launcher.vcs.harvest.parts import HarvestResult as HarvestResult
    from launcher.vcs.merge.descriptors import AgentMergeStatus as AgentMergeStatus
    from launcher.vcs.merge.descriptors import MergeAggregation as MergeAggregation
    from launcher.vcs.merge.descriptors import MergeDescriptor as MergeDescriptor
    from launcher.vcs.merge.descriptors import MergeDirection as MergeDirection
    from launcher.vcs.merge.descriptors import MergeResult as MergeResult
    from launcher.vcs.merge.descriptors import SubmoduleMergeResult as SubmoduleMergeResult
    from launcher.vcs.merge.merges import WorktreeMergeService as WorktreeMergeService
    from launcher.vcs.worktrees.models import Options as Options
    from launcher.vcs.worktrees.models import Worktree as Worktree
    from launcher.vcs.worktrees.worktree_service import ChildWorktrees as ChildWorktrees
    from launcher.vcs.worktrees.worktree_service import WorktreeService as WorktreeService
    from launcher.workflow.chain import DecoratorContext as DecoratorContext
    from launcher.workflow.chain import DecoratorFailed as DecoratorFailed
    from launcher.workflow.chain import RequestDecorator as RequestDecorator
    from launcher.workflow.chain import ResultDecorator as ResultDecorator
    from launcher.workflow.chain import ResultsRequestDecorator as ResultsRequestDecorator
    from launcher.workflow.chain import decorate_request as decorate_request
    from launcher.workflow.chain import decorate_result as decorate_result
    from launcher.workflow.chain import decorate_results_request as decorate_results_request
    from launcher.workflow.enrichment import ToolsFor
    from launcher.workflow.flow import Workflow as Workflow
    from launcher.workflow.flow import build_workflow as build_workflow
    from launcher.workflow.graph import GraphRepository as GraphRepository
    from launcher.workflow.graph import InMemoryGraphRepository as InMemoryGraphRepository
    from launcher.workflow.graph import Node as Node
    from launcher.workflow.graph import NodeStatus as NodeStatus
    from launcher.workflow.prompts import PromptContributor as PromptContributor
    from launcher.workflow.prompts import PromptContributorFactory as PromptContributorFactory
    from launcher.workflow.prompts import PromptContributorRegistry as PromptContributorRegistry
    from launcher.workflow.request_context import ContextState as ContextState
    from launcher.workflow.request_context import OperationContext as OperationContext
    from launcher.workflow.request_context import PromptContext as PromptContext
    from launcher.workflow.request_context import RequestContext as RequestContext
    from launcher.workflow.request_context import RequestContextRepository as RequestContextRepository
    from launcher.workflow.request_context import ToolContext as ToolContext
    from launcher.workflow.requests import AgentRequest as AgentRequest
    from launcher.workflow.requests import AgentResult as AgentResult
    from launcher.workflow.requests import AgentType as AgentType
    from launcher.workflow.requests import ArtifactKey as ArtifactKey
    from launcher.workflow.requests import ContextManagerRequest as ContextManagerRequest
    from launcher.workflow.requests import DiscoveryAgentRequest as DiscoveryAgentRequest
    from launcher.workflow.requests import DiscoveryAgentRequests as DiscoveryAgentRequests
    from launcher.workflow.requests import DiscoveryAgentResult as DiscoveryAgentResult
    from launcher.workflow.requests import DiscoveryAgentResults as DiscoveryAgentResults
    from launcher.workflow.requests import MergerInterruptRequest as MergerInterruptRequest
    from launcher.workflow.requests import MergerRequest as MergerRequest
    from launcher.workflow.requests import OrchestratorRequest as OrchestratorRequest
    from launcher.workflow.requests import PlanningAgentRequest as PlanningAgentRequest
    from launcher.workflow.requests import PlanningAgentRequests as PlanningAgentRequests
    from launcher.workflow.requests import PlanningAgentResult as PlanningAgentResult
    from launcher.workflow.requests import PlanningAgentResults as PlanningAgentResults
    from launcher.workflow.requests import ResultsRequest as ResultsRequest
    from launcher.workflow.requests import ReviewRequest as ReviewRequest
    from launcher.workflow.requests import TicketAgentRequest as TicketAgentRequest
    from launcher.workflow.requests import TicketAgentRequests as TicketAgentRequests
    from launcher.workflow.requests import TicketAgentResult as TicketAgentResult
    from launcher.workflow.requests import TicketAgentResults as TicketAgentResults
    from launcher.workflow.requests import TicketOrchestratorRequest as TicketOrchestratorRequest
    from launcher.workflow.worktrees import run_options as run_options
    from policy.plan import Plan

    AcpTooling = Router
    DispatchedAgentResultDecorator = ResultDecorator
    GitWorktreeService = WorktreeMergeService
    InMemoryRequestContextRepository = StoredRequestContexts
    MCP_SESSION_HEADER = SESSION_HEADER


_HOMES = {
    "launcher.bridges.files.mcp_server": (
        "SESSION_HEADER",
        "TOKEN_HEADER",
    ),
    "launcher.bridges.files.router": ("Router",),
    "launcher.sandbox.box": ("AsyncSandbox", "Commit", "Done", "Sandbox"),
    "launcher.service.tables": ("StoredRequestContexts",),
    "launcher.vcs.harvest.parts": ("HarvestResult",),
    "launcher.vcs.merge.descriptors": (
        "AgentMergeStatus",
        "MergeAggregation",
        "MergeDescriptor",
        "MergeDirection",
        "MergeResult",
        "SubmoduleMergeResult",
    ),
    "launcher.vcs.merge.merges": ("WorktreeMergeService",),
    "launcher.vcs.worktrees.models": (
        "Options",
        "Worktree",
    ),
    "launcher.vcs.worktrees.worktree_service": (
        "ChildWorktrees",
        "WorktreeService",
    ),
    "launcher.workflow.chain": (
        "DecoratorContext",
        "DecoratorFailed",
        "RequestDecorator",
        "ResultDecorator",
        "ResultsRequestDecorator",
        "decorate_request",
        "decorate_result",
        "decorate_results_request",
    ),
    "launcher.workflow.flow": (
        "Workflow",
        "build_workflow",
    ),
    "launcher.workflow.graph": (
        "GraphRepository",
        "InMemoryGraphRepository",
        "Node",
        "NodeStatus",
    ),
    "launcher.workflow.prompts": (
        "PromptContributor",
        "PromptContributorFactory",
        "PromptContributorRegistry",
    ),
    "launcher.workflow.request_context": (
        "ContextState",
        "OperationContext",
        "PromptContext",
        "RequestContext",
        "RequestContextRepository",
        "ToolContext",
    ),
    "launcher.workflow.requests": (
        "AgentRequest",
        "AgentResult",
        "AgentType",
        "ArtifactKey",
        "ContextManagerRequest",
        "DiscoveryAgentRequest",
        "DiscoveryAgentRequests",
        "DiscoveryAgentResult",
        "DiscoveryAgentResults",
        "MergerInterruptRequest",
        "MergerRequest",
        "OrchestratorRequest",
        "PlanningAgentRequest",
        "PlanningAgentRequests",
        "PlanningAgentResult",
        "PlanningAgentResults",
        "ResultsRequest",
        "ReviewRequest",
        "TicketAgentRequest",
        "TicketAgentRequests",
        "TicketAgentResult",
        "TicketAgentResults",
        "TicketOrchestratorRequest",
    ),
    "launcher.workflow.worktrees": ("run_options",),
}
"""Module -> the names that it gives, loaded when they are first asked for."""

_SPECIFIED = {
    "InMemoryRequestContextRepository": "StoredRequestContexts",
    "AcpTooling": "Router",
    "DispatchedAgentResultDecorator": "ResultDecorator",
    "GitWorktreeService": "WorktreeMergeService",
    "MCP_SESSION_HEADER": "SESSION_HEADER",
}
"""Names of the specification -> ours."""

_HOME = {name: module for module, names in _HOMES.items() for name in names}


# A few functions that put parts together for this user and this machine.


def spawn(
    command: Sequence[str],
    worktree: str | os.PathLike[str],
    options: Sequence[str] = (),
    **popen: Any,  # noqa: ANN401
) -> "subprocess.Popen[str]":
    """Starts a command in a jail around its worktree, as `paddock run` does.

    Args:
        command: its words.
        worktree: the root of its worktree.
        options: further ones of `paddock run`.
        popen: for `subprocess.Popen`.

    Returns:
        The launcher's process; its exit status is the command's, or 125 to 127 where that was not started.
    """
    words = programmes.paddock("run", "--worktree", os.fspath(worktree), *options, "--", *command)
    return subprocess.Popen(words, text=True, **popen)


def run(
    command: Sequence[str],
    worktree: str | os.PathLike[str],
    options: Sequence[str] = (),
    *,
    timeout: float | None = None,
    check: bool = False,
) -> "subprocess.CompletedProcess[str]":
    """Runs a command in a jail to its end, and takes its output; words as for `spawn` and `subprocess.run`."""
    pipe = subprocess.PIPE
    process = spawn(command, worktree, options, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    try:
        out, err = process.communicate(timeout=timeout)
    except BaseException:
        process.terminate()
        process.wait()
        raise
    done = subprocess.CompletedProcess(list(command), process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def plan(command: Sequence[str], worktree: str | os.PathLike[str], options: Sequence[str] = ()) -> "Plan":
    """The Plan that `run` would carry out; nothing is started.

    `policy.api.decide` says what it allows at a path.

    Raises:
        Refusal: the launch would be refused.
    """
    from launcher import cli
    from launcher.session import planning

    root = os.fspath(worktree)
    given, _ = cli.parse(["--worktree", root, *options, "--", *command], verb="run")
    return planning.make(given, list(command), root, _places()).plan


def worktrees() -> "WorktreeService":
    """Worktrees of this user: made, listed, looked at, removed."""
    from launcher.service import ticket_work

    return ticket_work.service(_places())


def harvest(worktree: str | os.PathLike[str], *, strict: bool = False) -> "HarvestResult | None":
    """Takes over what an agent has committed in a worktree; None where there never was anything to take over.

    Args:
        worktree: its root.
        strict: refuse commits that change hand-off files.

    Raises:
        Refusal: as `paddock worktree harvest` does.
    """
    from launcher.session import configuration, harvesting
    from launcher.vcs.private import record
    from policy.launch import worktree_id

    root = os.path.realpath(worktree)
    directory = record.directory_of(_places().state, worktree_id(root))
    if record.read(directory) is None:
        return None
    return harvesting.take(directory, configuration.handoff_patterns(root, os.environ), strict=strict)


def merges() -> "WorktreeMergeService":
    """Both phases of merging agents' worktrees, by their contexts; author and committer as this process says."""
    from launcher.session import harvesting

    return harvesting.by_contexts(_places(), os.environ)


def roll_back(repository: str | os.PathLike[str], run_id: str) -> None:
    """Takes a merge back, all of its repositories.

    Args:
        repository: one of its worktrees.
        run_id: of `MergeDescriptor.run_id`.

    Raises:
        Refusal: merge-run-unknown, session-running; somebody has moved on since.
    """
    from launcher.service import ticket_work
    from launcher.session import places
    from launcher.vcs.merge import work

    work.roll_back(ticket_work.common_dir_of(os.fspath(repository)), places.made(_places().state), run_id)


def workflow(contexts: str | os.PathLike[str], tools: "ToolsFor | None" = None, **further: Any) -> "Workflow":  # noqa: ANN401
    """A workflow over this user's worktrees and git.

    Args:
        contexts: a file for the request contexts; made when there is none.
        tools: which tools the receiver of a request is offered; those of the file tools by default.
        further: decorators, contributors and factories, as for `build_workflow`.
    """
    from launcher.service import ticket_work
    from launcher.service.database import Database
    from launcher.service.tables import StoredRequestContexts
    from launcher.vcs.private import swap
    from launcher.vcs.worktrees.worktree_service import ChildWorktrees
    from launcher.workflow.flow import build_workflow
    from launcher.workflow.graph import InMemoryGraphRepository

    swap.originals(_places().state)
    kept = StoredRequestContexts(Database(os.fspath(contexts)))
    children = ChildWorktrees(worktrees())
    return build_workflow(
        kept, InMemoryGraphRepository(), children, merges(), tools or ticket_work.tools_for, **further
    )


def file_tools(sessions: Mapping[str, str]) -> "Router":
    """The file tools for worktrees by session id, each in a jail of its own; `close` ends them.

    Args:
        sessions: session id -> root of its worktree.
    """
    from launcher.bridges.files import file_service
    from launcher.bridges.files.router import Mode

    service = file_service.Service(_places(), {}, sessions, {}, mode=Mode.STRICT, base=os.getcwd())
    return service.router(None)


def _places() -> "Places":
    from launcher.session import places

    return places.places(os.environ)


_OWN = ("file_tools", "harvest", "merges", "plan", "roll_back", "run", "spawn", "workflow", "worktrees")
__all__ = sorted([*_HOME, *_SPECIFIED, *_OWN])


def __getattr__(name: str) -> object:
    ours = _SPECIFIED.get(name, name)
    if ours not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_HOME[ours]), ours)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return list(__all__)
