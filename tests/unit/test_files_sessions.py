"""Whose call is it: session, token and mode, line by line."""

import pytest

from launcher.bridges.files.router import LEGACY, Mode, Sessions, Tokens
from launcher.bridges.files.tool_calls import ToolFailed
from launcher.workflow.graph import InMemoryGraphRepository
from launcher.workflow.request_context import RequestContext
from launcher.workflow.requests import ArtifactKey, OrchestratorRequest
from policy.sandbox_context import WorktreeSandboxContext
from tests.support.workflow import ROOT, Contexts, World, worktree

KEY = ArtifactKey("run/one")


def sessions(world: World, mode: Mode, tokens: Tokens | None = None) -> Sessions:
    return Sessions.of_workflow(world.contexts, world.graph, world.worktrees, mode=mode, tokens=tokens)


def unresolved(known: Sessions, session_id: str | None, token: str | None = None) -> str:
    """The message of a call that leads to no worktree."""
    with pytest.raises(ToolFailed) as refused:
        known.boundaries(session_id, token)
    assert refused.value.kind == "WORKTREE_UNRESOLVED"
    return refused.value.message


@pytest.mark.spec("FR-004d", "FR-017", "US5.1", "US5.3")
def test_tools_and_decorators_share_one_repository() -> None:
    """What a decorator writes down is what a tool finds, by the key of the request, and in no other repository."""
    world = World()
    known = sessions(world, Mode.STRICT)
    sent = world.flow.request(OrchestratorRequest(context_id=ROOT))
    assert known.boundaries(sent.session_id, None) == sent.worktree_context
    apart = Sessions.of_workflow(Contexts(), InMemoryGraphRepository(), world.worktrees)
    unresolved(apart, sent.session_id)


@pytest.mark.spec("US5.2", "CONTRACT-6", "EDGE-1")
@pytest.mark.parametrize(
    "session_id", [None, "", "  ", "stranger", "run/other", "../run", "\0", "x" * 10_000, "\udcff"]
)
def test_strict_resolves_nothing_for_unknown_sessions(session_id: str | None) -> None:
    """Missing, empty, unknown, or no key at all: an error that says so, cut and printable."""
    message = unresolved(sessions(World(), Mode.STRICT), session_id)
    assert "could not be resolved" in message
    assert message.isprintable()
    assert len(message) < 500


def without_worktree() -> World:
    """A session whose requests never had one, and whose node has none."""
    world = World()
    world.contexts.get_or_create(KEY)
    return world


def with_empty_fields() -> World:
    """A context whose fields are empty, as only another repository than ours would let them be."""
    world = World()

    class Repository(Contexts):
        def get_worktree_context(self, session_id: ArtifactKey | str) -> WorktreeSandboxContext | None:
            empty = worktree("w").main_worktree.model_copy(update={"worktree_path": ""})
            return worktree("w").model_copy(update={"main_worktree": empty}) if session_id == KEY.value else None

    world.contexts = Repository()
    return world


TABLE = {
    "request without worktreeContext": (without_worktree, KEY.value),
    "missing sessionId header": (World, None),
    "sessionId not in the repository": (World, "stranger"),
    "null or empty worktree fields": (with_empty_fields, KEY.value),
}


@pytest.mark.spec("CONTRACT-COMPATIBLE", "CONTRACT-6")
@pytest.mark.parametrize("row", TABLE)
def test_the_backward_compatibility_table(row: str) -> None:
    """Each row: legacy behaviour in the mode `compatible`, an error in the mode `strict`."""
    make, session_id = TABLE[row]
    world = make()
    assert sessions(world, Mode.COMPATIBLE).boundaries(session_id, None) is None
    unresolved(sessions(world, Mode.STRICT), session_id)


@pytest.mark.spec("CONTRACT-COMPATIBLE")
def test_the_table_lets_nobody_out_who_has_boundaries() -> None:
    """A known session keeps its boundaries in both modes; one that has ended gets none, and is not legacy either."""
    for mode in Mode:
        world = World()
        world.contexts.update(KEY, lambda before: before.evolve(worktree_context=worktree("w")))
        known = sessions(world, mode)
        assert known.boundaries(KEY.value, None) == worktree("w")
        world.contexts.clear(KEY)
        assert "ended" in unresolved(known, KEY.value)


@pytest.mark.spec("EDGE-5")
def test_a_node_whose_worktree_is_gone_is_an_error_in_both_modes() -> None:
    """It had boundaries; without them nothing is served."""
    for mode in Mode:
        world = World()
        del world.worktrees.known["main"]
        assert "no longer exists" in unresolved(sessions(world, mode), ROOT.value)


def test_tokens_belong_to_one_session() -> None:
    """The latest that was issued, and only until it is revoked; nothing of them is kept in clear."""
    tokens = Tokens()
    one, two = tokens.issue("one"), tokens.issue("two")
    assert tokens.matches("one", one)
    for session, token in (("one", two), ("two", one), ("one", None), ("one", ""), ("one", one + "x"), ("x", one)):
        assert not tokens.matches(session, token)
    newer = tokens.issue("one")
    assert (tokens.matches("one", one), tokens.matches("one", newer)) == (False, True)
    tokens.revoke("one")
    assert not tokens.matches("one", newer)
    assert not tokens.matches("one", "\udcff")
    assert two not in repr(vars(tokens))


@pytest.mark.spec("CONTRACT-6", "CONTRACT-COMPATIBLE")
def test_with_tokens_each_call_is_proven_first() -> None:
    """Unknown and unproven look the same; in the mode `compatible` sessionless calls have a token of their own."""
    world = World()
    world.contexts.update(KEY, lambda before: before.evolve(worktree_context=worktree("w")))
    tokens = Tokens()
    mine, legacy = tokens.issue(KEY.value), tokens.issue(LEGACY)
    for mode in Mode:
        known = sessions(world, mode, tokens)
        assert known.boundaries(KEY.value, mine) == worktree("w")
        for token in (None, "", legacy, "x"):
            unresolved(known, KEY.value, token)  # never let out by a token that is not the session's
        for session in (None, "stranger"):
            unresolved(known, session, mine)
            unresolved(known, session, None)
        unknown, unproven = unresolved(known, "stranger", "x"), unresolved(known, KEY.value, "x")
        assert unknown.replace("stranger", KEY.value) == unproven
    assert sessions(world, Mode.COMPATIBLE, tokens).boundaries(None, legacy) is None
    assert sessions(world, Mode.COMPATIBLE, tokens).boundaries("stranger", legacy) is None
    unresolved(sessions(world, Mode.STRICT, tokens), None, legacy)


def test_a_context_without_a_worktree_is_what_the_models_say() -> None:
    """The table's first row cannot be told from its last one in our models: absent is the only kind of empty."""
    assert RequestContext.empty(KEY).worktree_context is None
