"""Sessions by the ids of a protocol: found as long as they live, by one of them alone."""

import os
from pathlib import Path

import pytest

from launcher.session import places, state


@pytest.fixture
def where(tmp_path: Path) -> places.Places:
    return places.Places(*(str(tmp_path / name) for name in ("home", "config", "state", "cache")))


def opened(where: places.Places, name: str) -> state.Session:
    os.makedirs(where.home, mode=0o700, exist_ok=True)
    return state.open_session(where, "worktree-1", name)


def test_a_live_session_is_found_by_its_further_names(where: places.Places) -> None:
    """Any text can be one; when the session has ended it leads nowhere."""
    session = opened(where, "review")
    for identifier in ("3f2a-11", "../../etc", "a b/c\n", ""):
        assert state.resolved_alias(where, identifier) == identifier
        assert state.remember_alias(where, "review", identifier)
        assert state.remember_alias(where, "review", identifier)
        assert state.resolved_alias(where, identifier) == "review"
    assert session.close() == []
    assert state.resolved_alias(where, "3f2a-11") == "3f2a-11"
    with pytest.raises(OSError, match="No such file"):
        state.remember_alias(where, "review", "late")


def test_no_session_takes_anothers_name(where: places.Places) -> None:
    """A session's own name counts before, and what two claim names neither."""
    one, two = opened(where, "one"), opened(where, "two")
    state.remember_alias(where, "two", "one")
    assert state.resolved_alias(where, "one") == "one"
    state.remember_alias(where, "one", "same")
    state.remember_alias(where, "two", "same")
    assert state.resolved_alias(where, "same") == "same"
    one.close()
    assert state.resolved_alias(where, "same") == "two"
    two.close()


def test_no_session_has_names_without_end(where: places.Places, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that opens sessions for ever does not fill the disk."""
    monkeypatch.setattr(state, "MOST_ALIASES", 3)
    session = opened(where, "many")
    assert [state.remember_alias(where, "many", str(number)) for number in range(5)] == [True] * 3 + [False] * 2
    session.close()
