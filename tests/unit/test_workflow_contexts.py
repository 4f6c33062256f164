"""What is known about sessions: immutable contexts, atomic updates, four states, and an end."""

import copy
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import ValidationError

from launcher.vcs.merge.descriptors import MergeAggregation
from launcher.workflow.request_context import ContextState, OperationContext, PromptContext, RequestContext, ToolContext
from launcher.workflow.requests import AgentType, ArtifactKey, TicketAgentRequest
from policy.errors import Refusal
from policy.sandbox_context import WorktreeSandboxContext
from tests.support.workflow import Contexts, worktree

KEY = ArtifactKey("run/one")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Hands:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def wall(self) -> datetime:
        return NOON + timedelta(seconds=self.seconds)


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
def repo(hands: Hands) -> Contexts:
    return Contexts(hands.wall)


def full() -> RequestContext:
    """A context in which everything is known."""
    request = TicketAgentRequest(context_id=KEY, goal="it")
    return RequestContext.empty(KEY, NOON).evolve(
        current_request=request,
        previous_request=TicketAgentRequest(context_id=ArtifactKey("run")),
        worktree_context=worktree("one", granted=("lib",), closed=("doc",)),
        tool_context=ToolContext(tools=("read",), metadata={"a": "b"}),
        prompt_context=PromptContext(
            agent_type=AgentType.TICKET_AGENT,
            current_request=request,
            metadata={"mergeAggregation": MergeAggregation(), "plain": "text"},
        ),
        operation_context=OperationContext(agent_name="a", action="b", method="c"),
        orchestrator_node_id="run",
        ticket_node_id="run/one",
        metadata={"x": "y"},
    )


@pytest.mark.spec("CONTRACT-2", "FR-004c")
def test_a_context_always_has_a_session_id() -> None:
    """The session id is the key's text; without a key there is no context."""
    assert RequestContext.empty(KEY).session_id == KEY.value == "run/one"
    with pytest.raises(ValidationError, match="artifact_key"):
        RequestContext.model_validate({})


@pytest.mark.spec("CONTRACT-2", "FR-004a")
def test_a_context_is_updated_by_making_a_new_one() -> None:
    """No field, and no entry of its metadata, can be changed in place."""
    before = RequestContext.empty(KEY)
    after = before.with_metadata(a="b").evolve(worktree_context=worktree("one"))
    assert before.worktree_context is None
    assert dict(before.metadata) == {}
    assert dict(after.metadata) == {"a": "b"}
    with pytest.raises(ValidationError, match="frozen"):
        after.worktree_context = None
    with pytest.raises(TypeError):
        after.metadata["a"] = "c"  # type: ignore[index]  # that is the point
    with pytest.raises(ValidationError, match="before it was created"):
        after.evolve(last_updated_at=after.created_at - timedelta(seconds=1))


def test_a_context_can_be_kept_elsewhere() -> None:
    """JSON, pickle and copies give the same context back, so a database can hold it."""
    context = full()
    back = RequestContext.model_validate_json(context.model_dump_json())
    assert back == context
    assert back.prompt_context is not None
    assert isinstance(back.prompt_context.metadata["mergeAggregation"], MergeAggregation)
    assert pickle.loads(pickle.dumps(context)) == context
    assert copy.deepcopy(context) == context


@pytest.mark.spec("CONTRACT-2")
def test_get_never_creates(repo: Contexts) -> None:
    """get() answers None for the unknown; get_or_create() makes an empty context once."""
    assert repo.get(KEY) is None
    assert repo.get(KEY.value) is None
    assert repo.state(KEY) is None
    made = repo.get_or_create(KEY)
    assert made == RequestContext.empty(KEY, NOON)
    assert repo.get_or_create(KEY) == repo.get(KEY) == repo.get("run/one") == made


@pytest.mark.parametrize("text", ["", "   ", "run one", "../run", "run/one/", "\0", "ä" * 600])
def test_a_text_that_is_no_key_names_nothing(repo: Contexts, text: str) -> None:
    """Texts come from headers: a bad one is unknown, not an error."""
    repo.get_or_create(KEY)
    assert repo.get(text) is None
    assert repo.get_worktree_context(text) is None
    assert repo.state(text) is None
    assert repo.clear(text) is None
    assert repo.get(KEY) is not None


def test_the_four_states_follow_one_another(repo: Contexts) -> None:
    """Initialized, enriched, consumed, expired; an update of a consumed context leaves it consumed."""
    assert repo.get_or_create(KEY).state is ContextState.INITIALIZED
    repo.update(KEY, lambda context: context.evolve(worktree_context=worktree("one")))
    assert repo.state(KEY) is ContextState.ENRICHED
    assert repo.get(KEY) is not None
    assert repo.state(KEY) is ContextState.ENRICHED
    assert repo.get_worktree_context("run/one") == worktree("one")
    assert repo.state(KEY) is ContextState.CONSUMED
    repo.update(KEY, lambda context: context.with_metadata(a="b"))
    repo.update(KEY, lambda context: context.evolve(state=ContextState.INITIALIZED))
    assert repo.state(KEY) is ContextState.CONSUMED
    last = repo.clear(KEY)
    assert last is not None
    assert last.state is repo.state(KEY) is ContextState.EXPIRED
    assert dict(last.metadata) == {"a": "b"}


def test_an_expired_session_has_no_boundaries_and_may_begin_anew(repo: Contexts) -> None:
    """After clear() nothing is found; a new request of the same session starts with an empty context."""
    repo.update(KEY, lambda context: context.evolve(worktree_context=worktree("one")))
    repo.clear(KEY.value)
    assert repo.get(KEY) is None
    assert repo.get_worktree_context(KEY) is None
    assert repo.clear(KEY) is None
    assert repo.get_or_create(KEY).worktree_context is None
    assert repo.state(KEY) is ContextState.INITIALIZED


def test_time_stamps_move_forward_only(repo: Contexts, hands: Hands) -> None:
    """Each update is stamped; a clock that is set back does not make it older."""
    created = repo.get_or_create(KEY).created_at
    hands.seconds = 5
    assert repo.update(KEY, lambda context: context).last_updated_at == created + timedelta(seconds=5)
    hands.seconds = 2
    assert repo.update(KEY, lambda context: context).last_updated_at == created + timedelta(seconds=5)


@pytest.mark.parametrize(
    ("updater", "error"),
    [
        (lambda context: context.evolve(artifact_key=ArtifactKey("other")), Refusal),
        (lambda context: context.evolve(nonsense=1), ValidationError),
        (lambda context: 1 / 0, ZeroDivisionError),
    ],
)
def test_a_failed_update_changes_nothing(
    repo: Contexts,
    updater: Callable[[RequestContext], RequestContext],
    error: type[Exception],
) -> None:
    """The error reaches the caller, and the context is what it was."""
    before = repo.update(KEY, lambda context: context.with_metadata(a="b"))
    with pytest.raises(error):
        repo.update(KEY, updater)
    assert repo.get(KEY) == before
    assert repo.get("other") is None


def test_an_updater_may_use_the_repository(repo: Contexts) -> None:
    """No lock is held while it runs; the inner update is seen by the outer one."""

    def outer(context: RequestContext) -> RequestContext:
        if "inner" not in context.metadata:
            repo.update(KEY, lambda each: each.with_metadata(inner="1"))
        return context.with_metadata(outer="1")

    repo.update(KEY, outer)
    found = repo.get(KEY)
    assert found is not None
    assert dict(found.metadata) == {"inner": "1", "outer": "1"}


def note(label: str, place: WorktreeSandboxContext | None) -> Callable[[RequestContext], RequestContext]:
    return lambda context: context.evolve(worktree_context=place).with_metadata(**{label: label})


@pytest.mark.spec("FR-004a")
def test_a_hundred_sessions_and_sixteen_threads_lose_no_update() -> None:
    """Every thread updates every session, in an order of its own, while others read and consume."""
    repo = Contexts()
    keys = [ArtifactKey(f"run/{number}") for number in range(100)]
    threads, rounds = 16, 3
    start = threading.Barrier(threads)
    indices = {key: number for number, key in enumerate(keys)}
    places = {key: worktree(f"w{number}") for number, key in enumerate(keys)}

    def work(number: int) -> None:
        start.wait()
        for turn in range(rounds):
            shift = (number * 61 + turn * 17) % len(keys)
            for key in keys[shift:] + keys[:shift]:
                if (indices[key] + number + turn) % 4 == 0:  # four times as many updates would prove no more
                    repo.update(key, note(f"t{number}.{turn}", places[key]))
                else:
                    found = repo.get_worktree_context(key)
                    assert found is None or found == places[key]

    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work, number) for number in range(threads)]:
            done.result()
    for key in keys:
        context = repo.get(key)
        assert context is not None
        assert context.worktree_context == places[key]
        expected = {
            f"t{number}.{turn}"
            for number in range(threads)
            for turn in range(rounds)
            if (indices[key] + number + turn) % 4 == 0
        }
        assert set(context.metadata) == expected


def test_sixteen_threads_on_one_session_lose_no_update() -> None:
    """The hardest case for compare-and-swap: everybody wants the same context."""
    repo = Contexts()
    threads, updates = 16, 10
    start = threading.Barrier(threads)

    def work(number: int) -> None:
        start.wait()
        for turn in range(updates):
            repo.update(KEY, note(f"t{number}.{turn}", None))

    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work, number) for number in range(threads)]:
            done.result()
    found = repo.get(KEY)
    assert found is not None
    assert len(found.metadata) == threads * updates
