"""Request contexts in the service's database: the repository's rules, over connections and threads."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.service.database import Database
from launcher.service.tables import StoredRequestContexts
from launcher.workflow.request_context import ContextState, RequestContext, RequestContextRepository
from launcher.workflow.requests import ArtifactKey, TicketAgentRequest
from policy.errors import Refusal
from tests.support.workflow import worktree

KEY = ArtifactKey("run/one")
Open = Callable[[], RequestContextRepository]


@pytest.fixture
def opened(tmp_path: Path) -> Open:
    """Another look at the same repository."""
    return lambda: StoredRequestContexts(Database(str(tmp_path / "service.db")))


def test_a_context_goes_through_its_life(opened: Open) -> None:
    """Initialized, enriched, consumed, expired; then it begins anew."""
    contexts = opened()
    assert (contexts.get(KEY), contexts.state(KEY), contexts.clear(KEY)) == (None, None, None)
    assert contexts.get_or_create(KEY).state is ContextState.INITIALIZED
    place = worktree("main", granted=("lib",))
    request = TicketAgentRequest(context_id=KEY, ticket_id="A-1", worktree_context=place)
    contexts.update(KEY, lambda before: before.evolve(worktree_context=place, current_request=request))
    again = opened()
    found = again.get(KEY.value)
    assert found is not None
    assert (found.state, found.current_request) == (ContextState.ENRICHED, request)
    assert again.get_worktree_context(KEY.value) == place
    assert contexts.state(KEY) is ContextState.CONSUMED
    cleared = contexts.clear(KEY)
    assert cleared is not None
    assert cleared.state is ContextState.EXPIRED
    assert (again.get(KEY), again.get_worktree_context(KEY), again.state(KEY)) == (None, None, ContextState.EXPIRED)
    assert again.get_or_create(KEY).state is ContextState.INITIALIZED


def test_names_from_outside_that_are_no_keys_name_nothing(opened: Open) -> None:
    """They come from a header."""
    contexts = opened()
    for name in ("", "../x", "a b", "a//b"):
        assert (contexts.get(name), contexts.state(name), contexts.clear(name)) == (None, None, None)


def test_an_update_that_fails_changes_nothing(opened: Open) -> None:
    """Neither its own error nor a changed key is written."""
    contexts = opened()
    contexts.update(KEY, lambda before: before.with_metadata(a="1"))

    def wrong(before: RequestContext) -> RequestContext:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        contexts.update(KEY, wrong)
    with pytest.raises(Refusal, match="cannot become that of"):
        contexts.update(KEY, lambda before: before.evolve(artifact_key=ArtifactKey("other")))
    found = contexts.get(KEY)
    assert found is not None
    assert dict(found.metadata) == {"a": "1"}


def test_no_update_is_lost(opened: Open) -> None:
    """Several writers, each with a connection of its own."""

    def add(label: str) -> None:
        contexts = opened()
        for number in range(10):
            contexts.update(KEY, lambda before, number=number: before.with_metadata(**{f"{label}{number}": "x"}))  # type: ignore[misc]

    threads = [threading.Thread(target=add, args=(label,)) for label in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    found = opened().get(KEY)
    assert found is not None
    assert len(found.metadata) == 30
