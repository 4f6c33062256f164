"""What would allow something that was refused: the option, the line of configuration, and what it would open. Pure.

One place for the ledger, `paddock why` and `paddock learn`; whether anything is needed at all says `policy.verdict`.
"""

from typing import NamedTuple

from policy import egress, hosts, promises
from policy.errors import Refusal, printable
from policy.hosts import Address
from policy.pasted import quoted
from policy.plan import Plan, beneath
from policy.verdict import decide

READS = "the command can read it, and send it wherever the network lets it"
WRITES = "what is written there outlives the session, and programmes outside may use it"
REACHES = "whatever the command can read can be sent there"
TEMPORARY = "programmes that use $TMPDIR need no option: it names the session's own temporary directory"
DIRECT = "for clients of the proxy alone: those that obey NO_PROXY, as most do, do not ask it for the loopback"


class Remedy(NamedTuple):
    """What would allow something.

    Attributes:
        flag: the option, quoted for a shell; "" when no option does.
        toml: the same as lines of a configuration file.
        note: what to do instead, or besides; "" when the option is all.
        risk: what it would open; "" when there is no remedy.
    """

    flag: str = ""
    toml: str = ""
    note: str = ""
    risk: str = ""


def remedy(plan: Plan, path: str, wanted: str) -> Remedy:
    """What would allow the access `wanted` ("r", "w" or "x") at a canonical path.

    An exception that stands in the way has to go first, and no option does that: then only `note` says how.
    """
    found = decide(plan, path)
    write = wanted == "w"
    if wanted in found.access:
        return Remedy(note="the plan allows it: the system's own permissions do not, or it is a device")
    risk = found.risk or (WRITES if write else READS)
    if found.limits:
        return Remedy(note=found.hint, risk=risk)
    option, key = ("--rw", "write") if write else ("--ro", "read")
    shared = not promises.has_mounts(plan.backend) and (beneath(path, "/tmp") or beneath(path, "/var/tmp"))
    note = TEMPORARY if write and shared else ""
    return Remedy(f"{option} {quoted(path)}", toml("filesystem", key, path), note, risk)


class HostVerdict(NamedTuple):
    """What a Plan says of connections to one host and port: whether, by which rule, and otherwise what would."""

    allowed: bool
    rule: str
    reason: str
    remedy: Remedy


def decide_host(plan: Plan, host: str, port: int) -> HostVerdict:
    """Whether `plan` lets a client reach a host, as the client names it; names are not resolved.

    Args:
        plan: what was decided.
        host: a name or an address.
        port: 1 to 65535.

    Raises:
        ValueError: it is no host (`policy.hosts.parse_host`).
    """
    parsed = hosts.parse_host(host)
    if plan.net == "open":
        return HostVerdict(True, "--net open", "the network is open", Remedy())
    answer = remedy_for_host(plan, host, port)
    port_here = loopback(parsed, port)
    for rule, _ in plan.reach if plan.net == "proxy" else ():
        if rule == port_here:
            return HostVerdict(True, f"--reach {rule}", "a port of this machine's loopback", Remedy())
    if plan.net != "proxy":
        return HostVerdict(False, "", "the network is closed", answer)
    rules = egress.EgressPolicy((rule for rule, _ in plan.domains), (rule for rule, _ in plan.domains_denied))
    wanted = egress.Request(parsed, port)
    verdict = rules.decide(wanted)
    if verdict.allowed and not isinstance(parsed, str):
        verdict = rules.judge_address(wanted, parsed)
    if verdict.allowed:
        note = f"{DIRECT}; --reach {port_here} is for all" if port_here else ""
        return HostVerdict(True, verdict.rule, "", Remedy(note=note))
    return HostVerdict(
        False, verdict.rule, verdict.reason, answer if not verdict.rule else Remedy(note=verdict.suggestion)
    )


def loopback(host: str | Address, port: int) -> str:
    """The full ADDRESS:PORT for `--reach` when `host` is this machine's loopback; else "", and for port 0."""
    address = "127.0.0.1" if host == egress.LOCALHOST else host
    if isinstance(host, str) and host != egress.LOCALHOST:
        return ""
    if not port or (not isinstance(address, str) and not address.is_loopback):
        return ""
    return f"[{address}]:{port}" if ":" in str(address) else f"{address}:{port}"


def remedy_for_host(plan: Plan, host: str, port: int) -> Remedy:
    """What would allow connections to a host, as a client named it (port 0: not known); `--reach` for the loopback."""
    try:
        port_here = loopback(hosts.parse_host(host), port)
    except ValueError:
        port_here = ""
    if not port_here or plan.net == "open":
        return remedy_by_rule(plan, host, port)
    short = str(port) if port_here == f"127.0.0.1:{port}" else quoted(port_here)
    lines = toml("network", "reach", port_here)
    if plan.net == "proxy":
        return Remedy(f"--reach {short}", lines, f"--allow-domain is {DIRECT}", REACHES)
    return Remedy(f"--net proxy --reach {short}", _with_proxy(lines), f"--allow-domain is {DIRECT}", REACHES)


def remedy_by_rule(plan: Plan, host: str, port: int) -> Remedy:
    """What would let a client of the proxy reach a host, as it named it (port 0: not known)."""
    if plan.net == "open":
        return Remedy(note="the plan allows it: the network is open")
    try:
        parsed = hosts.parse_host(host)
        name = f"[{parsed}]" if ":" in str(parsed) else str(parsed)
        rule = str(hosts.parse_rule(f"{name}:{port}" if port else name))
    except (ValueError, Refusal):
        return Remedy(note="it is not a host that a rule can name")
    net = "" if plan.net == "proxy" else "--net proxy "
    lines = toml("network", "allow_domains", rule)
    flag = f"{net}--allow-domain {quoted(rule)}"
    return Remedy(flag, _with_proxy(lines) if net else lines, _listed(rule), REACHES)


def _listed(rule: str) -> str:
    """The list that a host stands on, whose others a package manager mostly wants as well."""
    from policy import egress

    found = [bundle for bundle in egress.bundles().values() if rule in bundle.rules]
    return f"--allow-domain {egress.MARK}{found[0].name} allows it with others: {found[0].title}" if found else ""


def _with_proxy(lines: str) -> str:
    return lines.replace("\n", '\nmode = "proxy"\n', 1)


def toml(table: str, key: str, value: str) -> str:
    """A table with one list of one string, as TOML."""
    return f"[{table}]\n{key} = [{string(value)}]"


def string(value: str) -> str:
    """A TOML basic string. Bytes that are not UTF-8 cannot be in one: they come out visibly escaped."""
    try:
        value.encode()
    except UnicodeEncodeError:
        value = printable(value)
    escaped = "".join(
        f"\\{char}" if char in '"\\' else char if char.isprintable() else f"\\U{ord(char):08X}" for char in value
    )
    return f'"{escaped}"'
