"""What was really enforced in one run, row by row, as `--report` writes it.

Launch path, but called there only with `--report`: json comes in then.
"""

from policy import promises
from policy.plan import Plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

Facts = tuple[tuple[str, str, str], ...]


def rows(plan: Plan, facts: Facts) -> list[dict[str, str]]:
    """The table of promises with the verdict of this run.

    A row counts as held only when the jail itself reported it; the table in `policy.promises` gives the reason
    why a backend does not hold one.
    """
    held = {name for name, state, _ in facts if state == "held"}
    result = []
    for name, promise, _ in promises.ROWS:
        expected, reason = promises.verdict(name, plan.backend)
        verdict = promises.HELD if name in held and expected == promises.HELD else promises.NOT_HELD
        result.append({"row": name, "promise": promise, "verdict": verdict, "reason": reason})
    return result


def document(
    plan: Plan,
    facts: Facts,
    *,
    session: str,
    status: int | None,
    changes: tuple[tuple[str, str, str], ...],
    harvest: "dict[str, Any] | None" = None,
) -> dict[str, object]:
    """The report as plain data.

    Args:
        plan: what was asked for.
        facts: what the jail reported.
        session: its name.
        status: the command's exit status, None when it never started.
        changes: of hand-off files, as (what, path, mode).
        harvest: its result or refusal; None when there was nothing to harvest.
    """
    return {
        "version": 1,
        "session": session,
        "backend": plan.backend,
        "worktree": plan.worktree,
        "program": plan.program,
        "provider": plan.provider,
        "provider_source": plan.provider_source,
        "network": plan.net,
        "git": plan.git,
        "status": status,
        "promises": rows(plan, facts),
        "layers": [{"layer": name, "detail": detail} for name, state, detail in facts if state == "layer"],
        "limits": [
            {"limit": name.removeprefix("limit "), "verdict": state, "detail": detail}
            for name, state, detail in facts
            if name.startswith("limit ")
        ],
        "handoff": [{"change": what, "path": path, "mode": mode} for what, path, mode in changes],
        "harvest": harvest,
        "warnings": list(plan.warnings),
    }


def text(content: dict[str, object]) -> str:
    """The document as JSON, ASCII only: names that are not UTF-8 come escaped."""
    import json

    return json.dumps(content, indent=2, ensure_ascii=True) + "\n"
