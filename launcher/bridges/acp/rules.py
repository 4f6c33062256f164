"""What one bridge enforces: the choices of its command line, and who decides by them."""

from typing import NamedTuple

from launcher.bridges.acp.audit import Audit
from launcher.bridges.acp.judge import Judge
from launcher.bridges.acp.places import Places
from policy.plan import Plan

EDITOR, STRIP = "editor", "strip"


class Choices(NamedTuple):
    """Attributes: `cwd` (`places.CHECK`, `MAP`), `mcp` (`servers.JAIL`, `REFUSE`), `files` (`EDITOR`, `STRIP`)."""

    cwd: str = "check"
    mcp: str = "jail"
    files: str = EDITOR


class Rules:
    """Everything that both directions ask."""

    def __init__(self, plan: Plan, choices: Choices, audit: Audit) -> None:
        self.plan = plan
        self.choices = choices
        self.audit = audit
        self.judge = Judge(plan)
        self.places = Places(plan, self.judge, choices.cwd)
