"""`paddock why`: may a command use this path, or reach this host, what decides it, and what would allow it?

Asks the same decisions as `paddock explain`, the jail and the proxy; there is no second opinion.
"""

import json
import os
from urllib.parse import urlsplit

from launcher import cli
from launcher.session import messages, places, planning
from launcher.verbs import question
from policy import hosts, remedy, verdict
from policy.derive import canonical_form
from policy.errors import printable

SYNOPSIS = "PATH|HOST[:PORT]|URL [options] [-- COMMAND [ARGUMENT]...]"
EXTRA = (("--json", cli.FLAG, "", "print JSON"),)
EXAMPLES = (
    ("paddock why ~/.ssh/id_ed25519", "which layer holds it back, which option would not"),
    ("paddock why api.example.com:443 --provider codex", "may the agent's jail reach it?"),
    ("paddock why ./README.md --json", "for programmes; a word with a slash, or the name of a file, is a path"),
    ("paddock why 127.0.0.1:5432 --reach 5432", "a port of this machine's loopback"),
    ("paddock why https://example.com/x", "of a URL, host and port count"),
)
STATUSES = "Exit status: 0 when anything is allowed there, 1 when nothing is; 125 when paddock refused or failed."

_PORT = 443
_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443, "ssh": 22}


def main(argv: list[str]) -> int:
    """Exit status 0 if anything is allowed there, else 1."""
    options, what, command = question.parse(argv, EXTRA, verb="why", one="PATH or HOST")
    if "--help" in options:
        print(question.page("why", SYNOPSIS, EXAMPLES, EXTRA, STATUSES))
        return 0
    if not what:
        raise cli.usage("there is nothing to ask about", "why")
    cwd = places.current_directory()
    planned, refused = question.planned(options, command, cwd)
    host = None
    if "://" in what and not os.path.lexists(os.path.join(cwd, what)):
        host = _of_url(what)
    elif "/" not in what and what not in (".", "..") and not os.path.lexists(os.path.join(cwd, what)):
        host = _host(what)
    if host is not None:
        content, lines = _about_host(planned, *host)
        if host[0] == what and "." in what and not content["allowed"] and not what.rpartition(".")[2].isdecimal():
            lines.insert(1, f"  taken for   a host, as nothing of this name is here; ./{what} is a file")
    else:
        content, lines = _about_path(planned, canonical_form(os.path.join(cwd, what), planned.machine))
    if "--json" in options:
        messages.show(json.dumps({"asked": what, **content, **question.refused(refused)}, indent=2))
    else:
        lines += question.told(refused)
        messages.show("\n".join(printable(line) for line in lines))
    return 0 if content["allowed"] else 1


def _host(text: str) -> tuple[str, int] | None:
    """Host and port (443 unless given) when `text` can be one: an address, or a name with a dot or a port."""
    host, port = text, _PORT
    if text.count(":") == 1 or text.startswith("["):
        head, colon, tail = text.rpartition(":")
        if colon and tail.isascii() and tail.isdigit() and 0 < int(tail) < 65536:
            host, port = head, int(tail)
    try:
        parsed = str(hosts.parse_host(host))
    except ValueError:
        return None
    return (parsed, port) if "." in parsed or ":" in parsed or host != text or parsed == "localhost" else None


def _of_url(text: str) -> tuple[str, int]:
    """Host and port of a URL (RFC 3986); without a port, that of http and https."""
    try:
        parts = urlsplit(text)
        host, port = str(hosts.parse_host(parts.hostname or "")), parts.port or _PORTS.get(parts.scheme)
    except ValueError as error:
        raise cli.usage(f"{text} names no host: {error}", "why") from None
    if port is None:
        raise cli.usage(f"{text} names no port, and {parts.scheme} has none that paddock knows", "why")
    return host, port


def _about_path(planned: planning.Planned, path: str) -> tuple[dict[str, object], list[str]]:
    found = question.grantable(verdict.decide(planned.plan, path), planned.machine)
    layer = verdict.layers_for_path(planned.plan, found)
    wanted = [] if "w" in found.access else ["w"] if "r" in found.access else ["r", "w"]
    answers = {verdict.NAMES[letter]: remedy.remedy(planned.plan, path, letter) for letter in wanted}
    lines = found.describe(layer)
    if any(answer.note == remedy.TEMPORARY for answer in answers.values()):
        lines.append(f"  note        {remedy.TEMPORARY}")
    note = verdict.layers_for_git(planned.plan, found)
    if note:
        lines.append(f"  note        {note}")
    if question.ABSENT in found.hint:
        answers = {name: answer._replace(note="; ".join(filter(None, (question.ABSENT, answer.note))))
                   for name, answer in answers.items()}  # fmt: skip
    content: dict[str, object] = {
        "kind": "path",
        "path": path,
        "allowed": [verdict.NAMES[letter] for letter in found.access],
        "rules": [{"path": where, "access": access, "source": source} for where, access, source in found.rules],
        "limits": [{"path": where, "kind": kind, "source": source} for where, kind, source in found.limits],
        "layer": layer,
        "git": note,
        "allow": {name: {"flag": answer.flag, "toml": answer.toml, "note": answer.note, "risk": answer.risk}
                  for name, answer in answers.items()},
    }  # fmt: skip
    return content, lines


def _about_host(planned: planning.Planned, host: str, port: int) -> tuple[dict[str, object], list[str]]:
    found = remedy.decide_host(planned.plan, host, port)
    layer = "" if found.allowed else verdict.layers_for_hosts(planned.plan)
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    source = next((source for rule, source in (*planned.plan.domains, *planned.plan.domains_denied)
                   if rule == found.rule), "")  # fmt: skip
    lines = [f"{shown}: {'allowed' if found.allowed else 'denied'}"]
    for name, text in (
        ("decided by", f"{found.rule}: {source}" if source else found.rule),
        ("because", found.reason),
        ("held by", layer),
        ("to allow it", found.remedy.flag),
        ("note", found.remedy.note),
        ("risk", found.remedy.risk),
    ):
        if text:
            lines.append(f"  {name:<11} {text}")
    answer = found.remedy
    content: dict[str, object] = {
        "kind": "host",
        "host": host,
        "port": port,
        "allowed": found.allowed,
        "rule": found.rule,
        "source": source,
        "reason": found.reason,
        "layer": layer,
        "allow": {"flag": answer.flag, "toml": answer.toml, "note": answer.note, "risk": answer.risk},
    }
    return content, lines
