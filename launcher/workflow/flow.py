"""The workflow's parts put together: what happens to a message from the moment it enters."""

from collections.abc import Sequence
from dataclasses import dataclass

from launcher.vcs.merge.descriptors import MergeService
from launcher.workflow.chain import (
    DecoratorContext,
    MaybeRequest,
    MaybeResult,
    MaybeResults,
    RequestDecorator,
    ResultDecorator,
    ResultsRequestDecorator,
    decorate_request,
    decorate_result,
    decorate_results_request,
)
from launcher.workflow.enrichment import (
    AttachWorktreesDecorator,
    RequestContextRepositoryDecorator,
    RequestContextResultDecorator,
    ToolContextDecorator,
    ToolsFor,
    WorktreeContextRequestDecorator,
    note_result,
)
from launcher.workflow.graph import GraphRepository
from launcher.workflow.merge_results import (
    NodeStateRequestDecorator,
    NodeStateResultDecorator,
    NodeStateResultsDecorator,
    ResultWorktrees,
    WorktreeMergeResultDecorator,
    WorktreeMergeResultsDecorator,
)
from launcher.workflow.prompts import (
    MergeAggregationPromptContributorFactory,
    PromptContributor,
    PromptContributorFactory,
    PromptContributorRegistry,
    TicketOrchestratorWorktreePromptContributor,
)
from launcher.workflow.request_context import OperationContext, PromptContext, RequestContextRepository
from launcher.workflow.requests import AgentRequest
from launcher.workflow.worktrees import WorktreeService


@dataclass(frozen=True)
class Workflow:
    """All decorators and contributors, in their places.

    Args:
        contexts: what is known about each session.
        graph: the nodes.
        worktrees: makes and knows worktrees.
        request_decorators: for requests, results of whole dispatches among them.
        result_decorators: for the results of agents.
        results_decorators: for the results of whole dispatches.
        prompts: pieces of text for prompts.
    """

    contexts: RequestContextRepository
    graph: GraphRepository
    worktrees: WorktreeService
    request_decorators: Sequence[RequestDecorator]
    result_decorators: Sequence[ResultDecorator]
    results_decorators: Sequence[ResultsRequestDecorator]
    prompts: PromptContributorRegistry

    def request(
        self, request: MaybeRequest, last: AgentRequest | None = None, operation: OperationContext | None = None
    ) -> MaybeRequest:
        """A request enters.

        Args:
            request: what an agent is to be asked.
            last: the request that led to it.
            operation: the step it belongs to.

        Raises:
            DecoratorFailed: nothing is to be sent out.
        """
        decorated = decorate_request(request, self.request_decorators, _context(last, operation))
        if decorated is not None:
            self._note(decorated)
        return decorated

    def result(
        self, result: MaybeResult, last: AgentRequest | None = None, operation: OperationContext | None = None
    ) -> MaybeResult:
        """An agent has answered `last`; its session has ended or is frozen.

        Raises:
            DecoratorFailed: see `request`.
        """
        decorated = decorate_result(result, self.result_decorators, _context(last, operation))
        if decorated is not None:
            note_result(self.contexts, decorated)
        return decorated

    def results(
        self, results: MaybeResults, last: AgentRequest | None = None, operation: OperationContext | None = None
    ) -> MaybeResults:
        """All agents of the dispatch `last` have answered; the outcome goes to the routing model.

        Raises:
            DecoratorFailed: see `request`.
        """
        step = operation or OperationContext()
        decorated = decorate_results_request(
            results,
            self.results_decorators,
            last_request=last,
            agent_name=step.agent_name,
            action=step.action,
            method=step.method,
        )
        if decorated is not None:
            self._note(decorated, last)
        return decorated

    def _note(self, request: AgentRequest, last: AgentRequest | None = None) -> None:
        """Writes down a request as the whole chain has left it."""
        before = self.contexts.get(request.context_id)
        if before is None or before.current_request != request:
            known = {"current_request": request, **({} if last is None else {"previous_request": last})}
            self.contexts.update(request.context_id, lambda context: context.evolve(**known))

    def prompt(self, context: PromptContext) -> str:
        """The contributed part of a prompt; what it was made from is written down under the request's session."""
        request = context.current_request
        if request is not None:
            self.contexts.update(request.context_id, lambda before: before.evolve(prompt_context=context))
        return self.prompts.assemble(context)


def build_workflow(
    contexts: RequestContextRepository,
    graph: GraphRepository,
    worktrees: WorktreeService,
    merges: MergeService,
    tools: ToolsFor,
    *,
    request_decorators: Sequence[RequestDecorator] = (),
    result_decorators: Sequence[ResultDecorator] = (),
    results_decorators: Sequence[ResultsRequestDecorator] = (),
    contributors: Sequence[PromptContributor] = (),
    factories: Sequence[PromptContributorFactory] = (),
) -> Workflow:
    """The workflow with everything that the specification asks for, and what the caller adds to it.

    Places in the chains are the decorators' own: lower orders come first, and equals as they are given, the caller's
    behind Paddock's. So it is with contributors and their priorities.
    """
    places = ResultWorktrees(contexts, worktrees)
    return Workflow(
        contexts=contexts,
        graph=graph,
        worktrees=worktrees,
        request_decorators=(
            RequestContextRepositoryDecorator(contexts, graph),
            WorktreeContextRequestDecorator(contexts, graph, worktrees),
            AttachWorktreesDecorator(contexts, graph, worktrees),
            ToolContextDecorator(contexts, tools),
            NodeStateRequestDecorator(graph),
            *request_decorators,
        ),
        result_decorators=(
            RequestContextResultDecorator(contexts),
            WorktreeMergeResultDecorator(merges, places),
            NodeStateResultDecorator(graph),
            *result_decorators,
        ),
        results_decorators=(
            WorktreeMergeResultsDecorator(merges, places),
            NodeStateResultsDecorator(graph),
            *results_decorators,
        ),
        prompts=default_prompts(contributors, factories),
    )


def default_prompts(
    contributors: Sequence[PromptContributor] = (), factories: Sequence[PromptContributorFactory] = ()
) -> PromptContributorRegistry:
    """The contributors that the specification names, and further ones."""
    return PromptContributorRegistry(
        contributors=(TicketOrchestratorWorktreePromptContributor(), *contributors),
        factories=(MergeAggregationPromptContributorFactory(), *factories),
    )


def _context(last: AgentRequest | None, operation: OperationContext | None) -> DecoratorContext:
    return DecoratorContext.model_validate({"last_request": last, "operation": operation or OperationContext()})
