"""`paddock why` and `paddock explain`: what a jail would allow, what decides it, and what would allow more.

Both ask the same decisions as the jail and the proxy; there is no second opinion.
"""

import json
import os
import re
from typing import NamedTuple
from urllib.parse import urlsplit

from launcher import cli
from launcher.session import mcp_servers, messages, places, planning, view_denials
from launcher.verbs import forms
from policy import egress_rules, hosts, mirrors, remedy, verdict
from policy.derive import canonical_form
from policy.egress_rules import LOCALHOST, EgressPolicy, Request
from policy.errors import Refusal, printable
from policy.launch import Host
from policy.pasted import quoted
from policy.plan import Plan, beneath
from policy.verdict import Verdict

_ABSENT = "create it first (it does not exist, and only what exists can be granted)"


class Question(NamedTuple):
    """The words of ``paddock VERB [WHAT] [options] [-- COMMAND]``, taken apart."""

    options: cli.Parsed
    what: str | None
    command: list[str]


def _question(argv: list[str], *, verb: str, one: str) -> Question:
    """Takes the words of a question apart; options may stand before and behind what is asked about.

    Args:
        argv: without programme name and verb.
        verb: for error texts.
        one: what the verb takes one of, for error texts.

    Raises:
        Refusal: usage.
    """
    words, command = argv, ["sh"]
    if "--" in argv:
        cut = argv.index("--")
        words, command = argv[:cut], argv[cut + 1 :] or ["sh"]
    options, rest = cli.parse(words, verb=verb, options=(*forms.form(verb).options, *cli.OPTIONS), mixed=True)
    if len(rest) > 1:
        raise cli.usage(f"{verb} takes one {one}", verb)
    return Question(options, rest[0] if rest else None, command)


def _planned(options: cli.Parsed, command: list[str], cwd: str) -> tuple[planning.Planned, Refusal | None]:
    """A plan to answer by, and why no command would start with these options.

    Where a tree can be neither hidden nor frozen, that is what decides about a launch, and not about one path: the
    answer is that of the options with which a command would start.
    """
    where = places.places(os.environ)
    try:
        return planning.make(options, command, cwd, where), None
    except Refusal as refusal:
        if refusal.reference != "exception-in-writable-tree":
            raise
        return planning.make(forms.joined(options, {"--freeze-root": True}), command, cwd, where), refusal


def _as_json(refusal: Refusal | None) -> dict[str, object]:
    """The same for programmes, beside an answer."""
    return {"refused": None if refusal is None else refusal.as_dict()}


def _note(refusal: Refusal | None) -> list[str]:
    """The note below an answer about the refusal that a launch would meet."""
    if refusal is None:
        return []
    first = (
        f"  note        this is the answer with --freeze-root, without which no command starts here: {refusal.message}"
    )
    return [first, *(f"              {hint}" for hint in refusal.hint.split("\n"))]


def _grantable(found: Verdict, machine: Host) -> Verdict:
    """The same verdict; its hint says so when the path does not exist, which no option can grant."""
    if not found.hint.startswith(("--ro ", "--rw ")) or machine.resolve(found.path) is not None:
        return found
    return found._replace(hint=f"{_ABSENT}, then {found.hint}")


_LEGEND = (
    "legend    r read, w write, x execute, i device control; denied and read-only beat every grant above them",
    "          [source] is where a rule comes from: default is what Paddock ships, else an option, a file, a toolchain",
    "          [shows X]: X is visible there, instead of what is there outside",
    "          protect, report: files that other tools execute later, kept read-only, or reported at the end",
    "          @home, ${home}: the private home; @tmp, ${tmp}: temporary files; @git: the private git directory",
)


def plan_lines(plan: Plan) -> list[str]:
    """A plan in words, and what its marks mean."""
    return [*plan.describe(), *mcp_servers.lines_of(plan), *_LEGEND]


_OF_PROCESS = re.compile(r"/proc/[0-9]+(/|$)")
_PROCESSES = (
    "memory, environment and descriptors of processes outside, and of the jail's own init, are inaccessible (EACCES)"
)
_SHOWN_ADDRESSES = 4
_PORT = 443
_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443, "ssh": 22}


def why(argv: list[str]) -> int:
    """Exit status 0 if anything is allowed there, else 1."""
    options, what, command = _question(argv, verb="why", one="PATH or HOST")
    if "--help" in options:
        return forms.show_help("why")
    if not what:
        raise cli.usage("there is no PATH or HOST to ask about", "why")
    cwd = places.current_directory()
    planned, refused = _planned(options, command, cwd)
    host = None
    if "://" in what and not os.path.lexists(os.path.join(cwd, what)):
        host = _of_url(what)
    elif "/" not in what and what not in (".", "..") and not os.path.lexists(os.path.join(cwd, what)):
        host = _host(what)
    if host is not None:
        content, lines = _about_host(planned, *host)
        if host[0] == what and "." in what and not content["allowed"] and not what.rpartition(".")[2].isdecimal():
            lines.insert(1, f"  treated as  a host, because nothing here has this name; ./{what} is a file")
    else:
        path = os.path.normpath(os.path.join(cwd, what))
        # Of /proc/self, what the command sees is meant, and not what this process does.
        path = path if beneath(path, "/proc") else canonical_form(path, planned.machine)
        content, lines = _about_path(planned, path)
    if "--json" in options:
        messages.show(json.dumps({"asked": what, **content, **_as_json(refused)}, indent=2))
    else:
        lines += _note(refused)
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
        raise cli.usage(f"{text} has no valid host: {error}", "why") from None
    if port is None:
        raise cli.usage(f"{text} has no port, and paddock knows no default port for {parts.scheme}", "why")
    return host, port


def _about_path(planned: planning.Planned, path: str) -> tuple[dict[str, object], list[str]]:
    where = places.places(os.environ)
    plan = view_denials.bound(planned.plan, where)
    found = _grantable(verdict.decide(plan, path), planned.machine)
    shown = next((f"{inside}{found.path[len(source) :]}" for source, inside, _ in plan.brought
                  if source and beneath(found.path, source)), "")  # fmt: skip
    own = "" if shown else _below_home(found, planned.machine)
    secret = _secret(planned, path, where) if own else ""
    if secret:
        found = found._replace(risk=secret)
    elif own:
        found = found._replace(hint=f"--bring {quoted(path)} (read-only, at ~/{own} of the jail), or {found.hint}")
    layer = verdict.layers_for_path(plan, found)
    wanted = [] if "w" in found.access else ["w"] if "r" in found.access else ["r", "w"]
    answers = {verdict.NAMES[letter]: remedy.remedy(plan, path, letter) for letter in wanted}
    if secret:
        answers = {name: answer._replace(risk=secret) for name, answer in answers.items()}
    elif own:
        toml = remedy.toml("bring", "files", f"~/{own}")
        answers["read"] = remedy.Remedy(f"--bring {quoted(path)}", toml, "", answers["read"].risk)
    lines = found.describe(layer)
    notes = [remedy.TEMPORARY] if any(answer.note == remedy.TEMPORARY for answer in answers.values()) else []
    view = verdict.view(plan, path)
    notes += [view.text] if view.text and not layer else []
    note = verdict.layers_for_git(plan, found)
    notes += [note] if note else []
    notes += [_PROCESSES] if _OF_PROCESS.match(path) else []
    if shown:
        notes.append(f"it is brought: ~/{shown} in the jail shows it, read-only")
    elif not found.access and not found.limits and beneath(path, where.home) and path != where.home:
        notes.append(f"~{path[len(where.home) :]} is another file in the jail: the command has its own home directory")
    lines += [f"  note        {note}" for note in notes]
    if _ABSENT in found.hint:
        answers = {name: answer._replace(note="; ".join(filter(None, (_ABSENT, answer.note))))
                   for name, answer in answers.items()}  # fmt: skip
    content: dict[str, object] = {
        "kind": "path",
        "path": path,
        "allowed": [verdict.NAMES[letter] for letter in found.access],
        "rules": [{"path": where, "access": access, "source": source} for where, access, source in found.rules],
        "limits": [{"path": where, "kind": kind, "source": source} for where, kind, source in found.limits],
        "layer": layer,
        "view": view.text,
        "git": note,
        "allow": {name: {"flag": answer.flag, "toml": answer.toml, "note": answer.note, "risk": answer.risk}
                  for name, answer in answers.items()},
    }  # fmt: skip
    return content, lines


def _below_home(found: Verdict, machine: Host) -> str:
    """The path below the home directory of what programmes look for there, hidden by name; "" for anything else."""
    home = machine.home.rstrip("/")
    name = found.path.removeprefix(f"{home}/")
    hidden = beneath(found.path, home) and name.startswith(".") and found.hint.startswith("--ro ")
    hidden = hidden and name.partition("/")[0] not in (".cache", ".local")  # what programmes keep is not for others
    return name if hidden and found.risk in ("", verdict.OBEYED) else ""


def _secret(planned: planning.Planned, path: str, where: places.Places) -> str:
    """Why `--bring` would refuse a path; "" where it would not."""
    secrets = planning.secrets(where, planned.machine)
    places_of_it = (path, planned.machine.resolve(path) or path)
    return next(filter(None, (secrets.reason(place, planned.machine) for place in places_of_it)), "")


def _led(plan: Plan, host: str, port: int, found: remedy.HostVerdict) -> tuple[remedy.HostVerdict, str]:
    """What becomes of an allowed name when it is resolved, as the proxy does it; with it the addresses."""
    from launcher.egress import outside

    wanted = Request(hosts.parse_host(host), port)
    if not isinstance(wanted.host, str) or wanted.host == LOCALHOST:
        return found, ""
    if outside.Upstreams(os.environ).choose(wanted) is not None:
        return found, "the proxy in your environment, which resolves it"
    rules = EgressPolicy.of(plan)
    outside.search_nothing()
    try:
        addresses = list(dict.fromkeys(outside.look_up(host, port)))
    except (OSError, UnicodeError) as error:
        return found, f"nothing: it cannot be resolved now ({getattr(error, 'strerror', None) or error})"
    judged = [rules.judge_address(wanted, each, own=outside.is_own(each, port)) for each in addresses]
    if not any(verdict.allowed for verdict in judged):
        option = judged[0].suggestion
        remedy_now = remedy.Remedy(
            flag=option if option.startswith("--") else "", risk=remedy.risk_of_host(addresses[0])
        )
        found = remedy.HostVerdict(False, judged[0].rule, judged[0].reason, remedy_now)
    return found, " ".join(map(str, addresses[:_SHOWN_ADDRESSES]))


def _with_address(found: remedy.HostVerdict, led: remedy.HostVerdict) -> remedy.HostVerdict:
    """What would allow a host that no rule names, and that leads to an address which needs a rule of its own."""
    if led is found or not led.remedy.flag:
        return found
    lines = found.remedy.toml.replace('"]', f'", "{led.remedy.flag.partition(" ")[2]}"]')
    both = found.remedy._replace(flag=f"{found.remedy.flag} {led.remedy.flag}", toml=lines, risk=led.remedy.risk)
    return found._replace(reason=f"{found.reason}; {led.reason}" if found.reason else led.reason, remedy=both)


def _mirrored(planned: planning.Planned, host: str, port: int) -> tuple[str, str]:
    """What allows a host that the user's own settings name as a mirror, and what it does; ("", "") for others.

    Of another port than the mirror's, the second alone.
    """
    found = mirrors.find(planned.machine, egress_rules.bundles(), trees=planned.trees, taken=lambda name: False)
    if host == hosts.PASSED_OVER:
        return "", "; ".join(text for text in found.warnings if hosts.PASSED_OVER in text or "is passed over" in text)
    for rule, source in (*found.domains, *found.reach):
        parsed = hosts.parse_rule(rule)
        if hosts.matches(parsed, host, parsed.port or _PORT):
            bundle, _, where = source.partition(": ")
            note = f"{bundle} allows {rule}, and has the tools in the jail use it, as outside ({where})"
            return bundle if port == (parsed.port or _PORT) else "", note
    return "", ""


def _about_host(planned: planning.Planned, host: str, port: int) -> tuple[dict[str, object], list[str]]:
    found = remedy.decide_host(planned.plan, host, port)
    leads = ""
    if planned.plan.net != "open" and (found.allowed or "--allow-domain" in found.remedy.flag):
        led, leads = _led(planned.plan, host, port, found)
        found = led if found.allowed else _with_address(found, led)
    local = bool(remedy.loopback(hosts.parse_host(host), port))
    layer = "" if found.allowed else verdict.layers_for_hosts(planned.plan, local=local)
    if leads and not found.allowed and found.rule:
        layer = "the proxy, which connects to none of these addresses"
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    source = next((source for rule, source in (*planned.plan.domains, *planned.plan.domains_denied)
                   if rule == found.rule), "")  # fmt: skip
    if not found.allowed and planned.plan.net != "open":
        bundle, note = _mirrored(planned, host, port)
        if note:
            found = found._replace(remedy=found.remedy._replace(note=note))
        if bundle:
            toml = remedy.toml("network", "allow_domains", bundle)
            found = found._replace(remedy=found.remedy._replace(flag=f"--allow-domain {bundle}", toml=toml))
    lines = [f"{shown}: {'allowed' if found.allowed else 'denied'}"]
    for name, text in (
        ("decided by", f"{found.rule}: {source}" if source else found.rule),
        ("because", found.reason),
        ("leads to", leads),
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
        "leads_to": leads,
        "layer": layer,
        "allow": {"flag": answer.flag, "toml": answer.toml, "note": answer.note, "risk": answer.risk},
    }
    return content, lines


def explain(argv: list[str]) -> int:
    """Prints the plan, or the verdict on a path (exit status 0 if anything is allowed there, else 1)."""
    options, path, command = _question(argv, verb="explain", one="PATH, or --plan")
    if "--help" in options:
        return forms.show_help("explain")
    if path == "":
        raise cli.usage("PATH is empty", "explain")
    if path is not None and "--plan" in options:
        raise cli.usage("explain takes one PATH, or --plan", "explain")
    cwd = places.current_directory()
    if path is None:
        planned = planning.make(options, command, cwd, places.places(os.environ))
        if "--json" in options:
            messages.show(json.dumps(dict(zip(planned.plan.FIELDS, planned.plan.to_data(), strict=True)), indent=2))
        else:
            messages.show("\n".join(printable(line) for line in plan_lines(planned.plan)))
        return 0
    planned, refused = _planned(options, command, cwd)
    canonical = canonical_form(os.path.join(cwd, path), planned.machine)
    found = _grantable(verdict.decide(planned.plan, canonical), planned.machine)
    if "--json" in options:
        messages.show(json.dumps({**_as_dict(path, found), **_as_json(refused)}, indent=2))
    else:
        messages.show("\n".join(printable(line) for line in (*found.describe(), *_note(refused))))
    return 0 if found.access else 1


def _as_dict(asked: str, found: verdict.Verdict) -> dict[str, object]:
    return {
        "asked": asked,
        "path": found.path,
        "allowed": [verdict.NAMES[letter] for letter in found.access],
        "rules": [{"path": path, "access": access, "source": source} for path, access, source in found.rules],
        "limits": [{"path": path, "kind": kind, "source": source} for path, kind, source in found.limits],
        "hint": found.hint,
        "risk": found.risk,
    }
