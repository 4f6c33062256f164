"""Where the client says that sessions live: checked against the worktree, or mapped to it.

The agent's effective root is the `cwd` of `session/new`, which the client chooses. In the jail only the worktree is
there to work in; a client that stands elsewhere is told so, or moved (`--cwd map`).

A client may know the worktree by another name, through a symbolic link that the jail does not show. The agent gets the
canonical name, and paths that it asks the client for get the client's own spelling back.
"""

import os
from typing import NamedTuple

from launcher.bridges.acp.audit import Audit
from launcher.bridges.acp.judge import Judge
from policy.plan import Plan, beneath

CHECK, MAP = "check", "map"

_ELSEWHERE = "start the client in the worktree, or let `paddock acp --cwd map` move its sessions there"
_GRANT = "`paddock acp --ro DIR` lets it read there, --rw write too, and --cwd map leaves out what it cannot read"


class Place(NamedTuple):
    """A directory for the agent.

    Attributes:
        path: canonical, for the agent; "" when it is refused.
        spelled: as the client gave it.
        why: of a refusal, for people.
        hint: what to do about that.
    """

    path: str
    spelled: str
    why: str = ""
    hint: str = ""


class Places:
    """Directories of one bridge's sessions, and how the client spells them."""

    def __init__(self, plan: Plan, judge: Judge, mode: str) -> None:
        """Takes what decides.

        Args:
            plan: of the jail.
            judge: for the same plan.
            mode: `CHECK` or `MAP`.
        """
        self._plan = plan
        self._judge = judge
        self._mode = mode
        self._spellings: dict[str, tuple[str, str]] = {}

    def root(self, path: object) -> Place:
        """The directory that a session is to start in: inside the worktree."""
        if not isinstance(path, str) or not path.startswith("/"):
            return Place("", str(path), f"{path!r} is not an absolute path")
        ruling = self._judge.directory(path)
        if ruling.allowed and beneath(ruling.path, self._plan.worktree):
            return Place(ruling.path, path)
        if self._mode == MAP:
            return Place(self._mapped(path), path)
        why = f"{path} is not inside the worktree {self._plan.worktree}, which is all that the agent's jail holds"
        return Place("", path, why, _ELSEWHERE)

    def further(self, path: object) -> Place:
        """A further directory of a session: readable in the jail."""
        if not isinstance(path, str) or not path.startswith("/"):
            return Place("", str(path), f"{path!r} is not an absolute path")
        ruling = self._judge.directory(path)
        if ruling.allowed:
            return Place(ruling.path, path)
        if not os.path.isdir(path):
            return Place("", path, f"the further directory {path} is not there")
        return Place("", path, f"the agent's jail does not hold the further directory {path}", _GRANT)

    def remember(self, session: str, place: Place) -> None:
        """Takes note of how the client spells the root of a session."""
        if place.path and place.path != place.spelled and not beneath(place.spelled, self._plan.worktree):
            self._spellings[session] = (place.path, place.spelled.rstrip("/") or "/")
        else:
            self._spellings.pop(session, None)

    def forget(self, session: str) -> None:
        """The session has been closed."""
        self._spellings.pop(session, None)

    def spelled(self, session: str, path: str) -> str:
        """A canonical path as the client of a session would write it, as long as that leads to the same place."""
        canonical, spelled = self._spellings.get(session, ("", ""))
        if not canonical or not beneath(path, canonical) or os.path.realpath(spelled) != canonical:
            return path
        return spelled + path[len(canonical) :]

    def _mapped(self, path: str) -> str:
        """The worktree's directory for a place elsewhere: the one of the same name in another checkout, or the root."""
        canonical = os.path.realpath(path)
        top = _checkout(canonical)
        if top:
            inside = self._judge.directory(self._plan.worktree + canonical[len(top) :])
            if inside.allowed and beneath(inside.path, self._plan.worktree):
                return inside.path
        return self._plan.worktree


def _checkout(path: str) -> str:
    """The root of the checkout that holds a directory (the nearest one above with a `.git`); "" when there is none."""
    while path != "/":
        if os.path.lexists(f"{path}/.git"):
            return path
        path = os.path.dirname(path)
    return ""


# What one bridge enforces: the choices of its command line, and who decides by them.


EDITOR, JAIL, STRIP = "editor", "jail", "strip"
"""Who carries out what an agent asks its client for: the client, the bridge in the jail, nobody."""


class Choices(NamedTuple):
    """What a bridge does.

    Attributes:
        cwd: with sessions outside the worktree: `places.CHECK` or `MAP`.
        mcp: with MCP servers of the client: `servers.JAIL` or `REFUSE`.
        files: with requests for files: `EDITOR`, `JAIL` or `STRIP`.
        terminals: with requests for terminals: `JAIL` or `STRIP`.
    """

    cwd: str = "check"
    mcp: str = "jail"
    files: str = EDITOR
    terminals: str = JAIL


class Rules:
    """Everything that both directions ask."""

    def __init__(self, plan: Plan, choices: Choices, audit: Audit) -> None:
        self.plan = plan
        self.choices = choices
        self.audit = audit
        self.judge = Judge(plan)
        self.places = Places(plan, self.judge, choices.cwd)
