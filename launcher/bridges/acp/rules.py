"""What one bridge enforces: the choices of its command line, and who decides by them."""

from typing import NamedTuple

from launcher.bridges.acp.audit import Audit
from launcher.bridges.acp.judge import Judge
from launcher.bridges.acp.places import Places
from policy.plan import Plan

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
