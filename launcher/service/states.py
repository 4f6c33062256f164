"""The life of a session as the service sees it, and how it may move on."""

from enum import StrEnum

from policy.errors import Refusal


class SessionState(StrEnum):
    """Where a session is."""

    CREATED = "created"
    """Accepted; waits for its turn, or to be started again."""
    STARTING = "starting"
    """A helper makes its plan and its jail."""
    RUNNING = "running"
    """Its command runs."""
    STOPPING = "stopping"
    """It was asked to end."""
    ENDED = "ended"
    """Its command came to its end with status 0, or because somebody asked for it."""
    FAILED = "failed"
    """It could not be started, or its command ended otherwise."""
    LOST = "lost"
    """Its own processes were killed, and nobody saw how it ended."""
    UNHARVESTED = "unharvested"
    """It is over, and its commits wait in its private git directory: the harvest was refused, and is tried again."""

    @property
    def final(self) -> bool:
        """Whether nothing comes after it."""
        return self in FINAL


FINAL = frozenset({SessionState.ENDED, SessionState.FAILED, SessionState.LOST, SessionState.UNHARVESTED})

_C, _S, _R, _T = SessionState.CREATED, SessionState.STARTING, SessionState.RUNNING, SessionState.STOPPING

TRANSITIONS: dict[SessionState, frozenset[SessionState]] = {
    _C: frozenset({_S, *FINAL}),
    # Back to the beginning: it is to be started again.
    _S: frozenset({_R, _T, _C, *FINAL}),
    _R: frozenset({_T, _C, *FINAL}),
    _T: FINAL,
    **dict.fromkeys(FINAL, frozenset()),
    SessionState.UNHARVESTED: frozenset({SessionState.ENDED, SessionState.FAILED, SessionState.LOST}),
}
"""Where each state may lead."""


def check(name: str, before: SessionState, after: SessionState) -> None:
    """Refuses a move that the table does not have.

    Raises:
        Refusal: session-transition.
    """
    if after not in TRANSITIONS[before]:
        raise Refusal(
            "session-transition",
            f"session {name} is {before} and cannot become {after}",
            context=f"{before} leads to: {', '.join(sorted(TRANSITIONS[before])) or 'nothing'}",
        )
