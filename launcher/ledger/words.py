"""Denials in words, for people."""

from typing import Any

from launcher.ledger.denial import Denial
from launcher.ledger.record import answer
from policy import promises
from policy.errors import printable
from policy.plan import Plan


def one_line(found: Denial, seen: int, plan: Plan) -> str:
    """One kind of denial, and what would allow it."""
    remedy = answer(found, plan)
    who = found.process.comm or found.process.exe
    about = subject(found.path, found.host, found.port, found.target)
    times = f" ({seen} times)" if seen > 1 else ""
    fix = f": {remedy.flag or remedy.note}" + (f" ({remedy.note})" if remedy.flag and remedy.note else "")
    return f"{f'{who}: ' if who else ''}{found.operation} {about}{times}{fix}"


def subject(path: str | None, host: str | None, port: int | None, target: str | None) -> str:
    """What it was about."""
    if host:
        return f"{host}:{port}" if port else host
    return path or target or (f"port {port}" if port else "")


def paragraph(content: dict[str, Any]) -> list[str]:
    """A denial of a ledger (`store.read`), with all that is known of it."""
    process = content.get("process") or {}
    what = subject(content.get("path"), content.get("host"), content.get("port"), content.get("target"))
    times = f", {content['count']} times" if content.get("count", 1) > 1 else ""
    rights = f" ({', '.join(content['rights'])})" if content.get("rights") else ""
    lines = [f"{content.get('operation')} {what}"]
    lines.append(f"  refused by  {content.get('layer')}{rights}, {content.get('time')}{times}")
    if content.get("host") and content.get("target"):
        lines.append(f"  because     {content['target']}")
    if any(process.values()):
        lines.append(f"  asked for   {process.get('comm') or '?'}, process {process.get('pid')}, {process.get('exe')}")
    allow = content.get("allow") or {}
    if allow.get("flag"):
        lines.append(f"  to allow it {allow['flag']}")
        lines += [f"              {line}" for line in str(allow.get("toml", "")).splitlines()]
    if allow.get("note"):
        lines.append(f"  note        {allow['note']}")
    if content.get("risk"):
        lines.append(f"  risk        {content['risk']}")
    return [printable(line) for line in lines]


def decision(content: dict[str, Any]) -> str:
    """What a bridge let pass (`store.read`), in a line."""
    detail = f" ({content['detail']})" if content.get("detail") else ""
    return printable(f"{content.get('verdict')} {content.get('method')} {content.get('subject')}{detail}")


def missing(backend: str, *, heard: bool) -> list[str]:
    """Kinds of denials that a session's ledger cannot hold.

    Args:
        backend: of the session.
        heard: the kernel's audit was proven to be heard.
    """
    notes = []
    if backend != promises.BUBBLEWRAP and not heard:
        notes.append(
            "what Landlock and the system call filter refuse: needs CAP_AUDIT_READ, and audit on (auditctl -e 1)"
        )
    if promises.has_mounts(backend):
        notes.append("files that the jail does not show or shows read-only: `paddock learn` watches for them")
    return notes
