"""Many agents of one repository, and sixteen threads that carry their messages. `PADDOCK_SESSIONS=1000`: a thousand."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from launcher.workflow.graph import NodeStatus
from launcher.workflow.requests import (
    OrchestratorRequest,
    TicketAgentRequest,
    TicketAgentRequests,
    TicketAgentResult,
    TicketAgentResults,
)
from launcher.workflow.worktrees import worktree_of_session
from tests.support.workflow import ROOT, World

AGENTS, THREADS = int(os.environ.get("PADDOCK_SESSIONS", "100")), 16
DISPATCH = ROOT.child("dispatch")


@pytest.mark.spec("SC-001", "SC-007", "FR-004a", "FR-017")
def test_many_sessions_keep_their_own_boundaries() -> None:
    """Requests, look-ups, results and node states of all sessions, mixed over all threads."""
    world = World()
    flow = world.flow
    first = flow.request(OrchestratorRequest(context_id=ROOT))
    requests = tuple(TicketAgentRequest(context_id=DISPATCH.child(f"t{number}")) for number in range(AGENTS))
    sent = flow.request(TicketAgentRequests(context_id=DISPATCH, requests=requests), first)
    own = {child.session_id: child.worktree_context for child in sent.children}
    assert len({place.worktree_id for place in own.values() if place is not None}) == AGENTS
    start = threading.Barrier(THREADS)

    def work(number: int) -> list[TicketAgentResult]:
        start.wait()
        done = []
        for index in range(number, AGENTS, THREADS):
            request = flow.request(requests[index], sent)  # without a worktree: it has to find its own
            neighbour = requests[(index + 1) % AGENTS].session_id
            for session in (request.session_id, neighbour):
                found = worktree_of_session(session, world.contexts, world.graph, world.worktrees)
                assert found == own[session]
            assert request.worktree_context == own[request.session_id]
            done.append(flow.result(TicketAgentResult(context_id=request.context_id), request))
        return done

    with ThreadPoolExecutor(THREADS) as pool:
        shares = [pool.submit(work, number) for number in range(THREADS)]
        answers = {result.session_id: result for share in shares for result in share.result()}
    results = tuple(answers[request.session_id] for request in requests)
    collected = flow.results(TicketAgentResults(context_id=DISPATCH, results=results), sent)
    assert collected.merge_aggregation is not None
    assert [status.agent_result_id for status in collected.merge_aggregation.merged] == list(own)
    for session, place in own.items():
        assert answers[session].worktree_context == place
        node = world.graph.get(session)
        assert node is not None
        assert node.status is NodeStatus.MERGED
