"""What would allow something that was refused: the option, the line of configuration, and what it would open. Pure.

The ledger, `paddock why` and `paddock learn` all ask here. Whether anything is needed at all, `policy.verdict` decides.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import NamedTuple

from policy import asking, egress_rules, handoff, hosts, keys, phantoms, promises, toolchains
from policy.errors import Refusal, printable, unseen
from policy.hosts import Address
from policy.pasted import bare, cited, quoted
from policy.plan import Plan, beneath
from policy.verdict import decide, risk_of, view

READS = "the command can read it, and send it wherever the network lets it"
WRITES = "what is written there outlives the session, and programmes outside may use it"
REACHES = asking.RISK
TEMPORARY = "programmes that use $TMPDIR need no option: it names the session's own temporary directory"
ADDRESS = "only for clients of the proxy: direct connections to the address fail; a host name works for all"
PROXIED = "only for clients of the proxy (--proxy-env yes)"
DIRECT = "only for clients of the proxy; most obey NO_PROXY, and do not use it for the loopback"


_IN_THE_JAIL = "{} itself is in the jail then: the command can read it, and send it wherever the network lets it"


_ENDS_TLS = "TLS ends at the proxy: requests pass with the phantom of the login there, or read without any credentials"


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


KEEPS_OUT = {
    "--keys pass": Remedy("--keys pass", '[network]\nkeys = "pass"', "", _IN_THE_JAIL.format("the key")),
    "--logins copy": Remedy("--logins copy", '[provider]\nlogins = "copy"', "", _IN_THE_JAIL.format("the login")),
}
"""What would allow what a phantom does not, by the option."""


def remedy(plan: Plan, path: str, wanted: str) -> Remedy:
    """What would allow the access `wanted` ("r", "w" or "x") at a canonical path.

    An exception that stands in the way has to go first, and no option does that: then only `note` says how.
    """
    found = decide(plan, path)
    write = wanted == "w"
    if wanted in found.access:
        return Remedy(note="the plan allows it: the system's own permissions deny it, or it is a device")
    risk = found.risk or (WRITES if write else READS)
    if found.limits or view(plan, path).fixed:
        return Remedy(note=found.hint, risk=risk if found.limits else "")
    option, key = ("--rw", "write") if write else ("--ro", "read")
    shared = not promises.has_mounts(plan.backend) and (beneath(path, "/tmp") or beneath(path, "/var/tmp"))
    note = TEMPORARY if write and shared else ""
    return Remedy(f"{option} {quoted(path, own=False)}", toml("filesystem", key, path), note, risk)


class HostVerdict(NamedTuple):
    """A Plan's verdict on connections to one host and port: allowed or not, by which rule, and what would allow it."""

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
    wanted = egress_rules.Request(parsed, port)
    held = keys.of(plan)
    plan = keys.without_covered(plan, held)
    rules = egress_rules.EgressPolicy.of(plan)
    verdict = rules.decide(wanted)
    if verdict.allowed and not isinstance(parsed, str):
        verdict = rules.judge_address(wanted, parsed)
    if verdict.allowed:
        if any(wanted in phantoms.origins(login) for login in phantoms.of(plan.logins)):
            return HostVerdict(True, verdict.rule, _ENDS_TLS, Remedy())
        return HostVerdict(True, verdict.rule, "", Remedy(note=_way(plan, parsed, port, port_here)))
    apis = ((key, keys.api(key.url).origin) for key in held if key.variable)
    here = wanted.is_local
    only = next((key for key, at in apis if at == wanted or (here and at.is_local and at.port == port)), None)
    if only is not None and not verdict.rule:
        base = "".join(f", at the URL in {name}" for name, _ in only.environment[-1:])
        reason = f"it is reached only by the phantom in {only.variable}{base}"
        own = only.origin.startswith("provider ")
        return HostVerdict(False, "", reason, KEEPS_OUT["--keys pass"] if own else Remedy())
    return HostVerdict(
        False, verdict.rule, verdict.reason, answer if not verdict.rule else Remedy(note=verdict.suggestion)
    )


def _way(plan: Plan, host: str | Address, port: int, port_here: str) -> str:
    """Which clients reach what is allowed, where not all do."""
    if port in plan.named_ports:
        return ""
    if port_here:
        return f"{DIRECT}; --reach {port_here} works for all"
    if port == egress_rules.DNS_PORT and promises.has_mounts(plan.backend):
        return f"{PROXIED}: in the jail, port 53 is its resolver's"
    if plan.named_ports:
        return f"{PROXIED}; a rule that names the port works for all: --allow-domain {host}:{port}"
    return "" if isinstance(host, str) else ADDRESS


def risk_of_host(host: str | Address) -> str:
    """What a way to a host would open."""
    special = "" if isinstance(host, str) else hosts.special(host)
    if "metadata" in special:
        return f"a cloud's metadata service gives this machine's credentials to anyone who asks; {REACHES}"
    if host == egress_rules.LOCALHOST or special in ("loopback", "this machine"):
        return f"services of this machine, which often ask for no password; {REACHES}"
    return f"hosts of your own network; {REACHES}" if special == "private" else REACHES


def loopback(host: str | Address, port: int) -> str:
    """The full ADDRESS:PORT for `--reach` when `host` is this machine's loopback; else "", and for port 0."""
    address = "127.0.0.1" if host == egress_rules.LOCALHOST else host
    if isinstance(host, str) and host != egress_rules.LOCALHOST:
        return ""
    if not port or (not isinstance(address, str) and not address.is_loopback):
        return ""
    return f"[{address}]:{port}" if ":" in str(address) else f"{address}:{port}"


def remedy_for_host(plan: Plan, host: str, port: int) -> Remedy:
    """What would allow connections to a host, as a client named it (port 0: not known); `--reach` for the loopback."""
    try:
        parsed: str | Address = hosts.parse_host(host)
    except ValueError:
        parsed = ""
    port_here = loopback(parsed, port)
    if not port_here or plan.net == "open":
        found = remedy_by_rule(plan, host, port)
        direct = isinstance(parsed, str) or not found.flag or promises.has_mounts(plan.backend)
        return found if direct else found._replace(note="; ".join(filter(None, (ADDRESS, found.note))))
    short = str(port) if port_here == f"127.0.0.1:{port}" else quoted(port_here)
    lines = toml("network", "reach", port_here)
    if plan.net == "proxy":
        return Remedy(f"--reach {short}", lines, f"--allow-domain is {DIRECT}", risk_of_host(parsed))
    return Remedy(
        f"--net proxy --reach {short}", _with_proxy(lines), f"--allow-domain is {DIRECT}", risk_of_host(parsed)
    )


def remedy_by_rule(plan: Plan, host: str, port: int) -> Remedy:
    """What would let a client of the proxy reach a host, as it named it (port 0: not known)."""
    if plan.net == "open":
        return Remedy(note="the plan allows it: the network is open")
    if host == hosts.PASSED_OVER:
        return Remedy(note=f"paddock why {host} names the setting")
    try:
        parsed = hosts.parse_host(host)
        name = f"[{parsed}]" if ":" in str(parsed) else str(parsed)
        rule = str(hosts.parse_rule(f"{name}:{port}" if port else name))
    except (ValueError, Refusal):
        return Remedy(note="it is not a host that a rule can name")
    net = "" if plan.net == "proxy" else "--net proxy "
    lines = toml("network", "allow_domains", rule)
    flag = f"{net}--allow-domain {quoted(rule)}"
    return Remedy(flag, _with_proxy(lines) if net else lines, _listed(rule), risk_of_host(parsed))


def _listed(rule: str) -> str:
    """The list that a host stands on, whose others a package manager mostly wants as well."""
    from policy import egress_rules

    found = [bundle for bundle in egress_rules.bundles().values() if rule in bundle.rules]
    return f"--allow-domain {egress_rules.MARK}{found[0].name} allows it with others: {found[0].title}" if found else ""


def _with_proxy(lines: str) -> str:
    return lines.replace("\n", '\nmode = "proxy"\n', 1)


def toml(table: str, key: str, value: str) -> str:
    """A table with one list of one string, as TOML; "" where that cannot say the value, which is no UTF-8."""
    return f"[{table}]\n{key} = [{string(value)}]" if _can_be_written(value) else ""


def string(value: str, *, spoken: bool = False) -> str:
    """A TOML basic string. Bytes that are not UTF-8 cannot be in one: they come out visibly escaped.

    Args:
        spoken: a sentence of Paddock's, whose spaces stay.
    """
    try:
        value.encode()
    except UnicodeEncodeError:
        value = printable(value)
    found = unseen(value) | (set() if spoken else bare(value))
    escaped = "".join(
        f"\\U{ord(char):08X}" if at in found else f"\\{char}" if char in '"\\' else char
        for at, char in enumerate(value)
    )
    return f'"{escaped}"'


# The smallest set of grants that gives a command what it missed, for `paddock learn`.
#
# Small in both senses: few lines, and no line wider than it must be. A grant that would open a secret, a whole home
# directory or a file that other tools execute is withheld: it is named with its risk, and somebody has to write it
# down.

FEW = 3
"""So many neighbours that are read become one grant of their directory."""

_CACHES = ("__pycache__", ".pyc")

_HARMLESS = (
    (".cache", "*"), (".cargo", "registry"), (".cargo", "git"), (".npm", "_cacache"), (".m2", "repository"),
    (".gradle", "caches"), (".ivy2", "cache"), (".nuget", "packages"), (".yarn", "cache"), (".yarn", "berry", "cache"),
    (".bun", "install", "cache"), (".conda", "pkgs"), (".ccache",), (".pub-cache",), (".pnpm-store",),
    (".local", "share", "pnpm", "store"), (".venv",), (".tox",), (".nox",), (".bin",), (".pnpm",), (".editorconfig",),
)  # fmt: skip
"""Hidden things that may be read, besides the toolchains of the table. To be written, only a programme's own cache."""

_PRIVATE_NAMES = ("token", "stored_tokens", "mozilla", "thunderbird", "google-chrome", "chromium", "BraveSoftware")
"""In caches, too: logins, mail, and pages that somebody has read."""

_MACHINES = ("/etc", "/usr", "/opt", "/boot", "/bin", "/sbin", "/lib", "/lib64", "/var/spool")

_HIDDEN = "it is hidden, as settings, logins and what programmes start with are, and not known as harmless"
_CREDENTIALS = "files of this name contain credentials"
_EXECUTED = "other tools execute or obey it"
_IN_PATH = "programmes that you run are there: it is in PATH"
_THE_MACHINES = "programmes and settings of the whole machine"


class Missed(NamedTuple):
    """One thing that a command did not get.

    Attributes:
        path: what a grant has to cover; for a file that is to be made, its directory, or the topmost one missing.
        access: the letter that is needed there: "r", "w" or "x".
        directory: it is a directory, or would be one.
        exists: it is there.
        seen_only: the command only asked whether it is there.
        asked: the path that was asked for, canonical.
        call: the system call.
        who: the programme's name.
        public: a file that everyone on this machine can read.
    """

    path: str
    access: str
    directory: bool
    exists: bool
    seen_only: bool
    asked: str
    call: str
    who: str
    public: bool = False


class Outside(NamedTuple):
    """The user's own, of which a Plan says nothing; canonical.

    Attributes:
        home: his home directory.
        path: directories in PATH.
        hidden: what hidden links in his home lead to: dotfiles that are kept elsewhere.
    """

    home: str = ""
    path: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()


NOWHERE = Outside()


class Standing(StrEnum):
    """What a line is."""

    PROPOSED = "proposed"
    OPTIONAL = "optional"
    """Programmes ask for such things and do without."""
    UNTRIED = "untried"
    """It may be needed: `--try` grants no such thing."""
    WITHHELD = "withheld"


class Line(NamedTuple):
    """One grant.

    Attributes:
        key: "read" or "write", as in the table [filesystem].
        path: canonical.
        standing: whether it is proposed.
        reason: who wanted what.
        risk: what it opens.
        prepare: "directory" or "file" when it has to be made first; else "".
        tried: `--try` may grant it (`_can_be_tried`).
    """

    key: str
    path: str
    standing: Standing
    reason: str
    risk: str
    prepare: str
    tried: bool = False

    @property
    def flag(self) -> str:
        """The option of `paddock run` that grants the same."""
        return "--rw" if self.key == "write" else "--ro"


def withheld(path: str, key: str, plan: Plan, outside: Outside = NOWHERE) -> str:
    """Why a path is neither proposed nor tried, by all that Paddock knows; "" where nothing is known against it.

    Args:
        path: canonical.
        key: "read" or "write"; what is written can be read, too.
    """
    if known := risk_of(path):
        return known
    parts, hidden = path.split("/")[1:], _hidden(path)
    logins = [str(login[0]) for login in plan.logins if login[0]]
    if parts[-1] in toolchains.load_table().credential_names or any(beneath(path, where) for where in logins):
        return _CREDENTIALS
    led = any(beneath(path, where) or beneath(where, path) for where in outside.hidden)
    if led or (hidden and not _harmless(hidden, key)):
        return _HIDDEN
    if key == "read":
        return ""
    if any(beneath(path, where) or beneath(where, path) for where in outside.path):
        return _IN_PATH
    if any(beneath(path, where) for where in _MACHINES):
        return _THE_MACHINES
    return _EXECUTED if handoff.Patterns(plan.handoff_patterns).mode(path[1:]) else ""


def _hidden(path: str) -> list[str]:
    """The components of a path from the first hidden one on."""
    parts = path.split("/")[1:]
    return parts[next((at for at, part in enumerate(parts) if part.startswith(".")), len(parts)) :]


def _can_be_tried(line: Line, outside: Outside, *, public: bool) -> bool:
    """Whether the command may have it before anybody has read the line.

    It may be an agent's command, and names say little of what is secret, or executed one day. So no writing is tried,
    and no reading but of caches and toolchains from the tables, and of the machine's files that everyone can read.
    """
    hidden = _hidden(line.path)
    if line.key == "write":
        return False
    if hidden[:1] == [".cache"]:
        tools = toolchains.load_table().toolchain
        return any(f"${{home}}/{'/'.join(hidden[:2])}" == place for tool in tools for place in tool.set.values())
    own = bool(outside.home) and beneath(line.path, outside.home)
    return bool(hidden) or (public and not own and any(beneath(line.path, where) for where in _MACHINES))


def _harmless(parts: list[str], key: str) -> bool:
    """Whether what is below a home directory, or hidden in another one, is a cache or an installed programme."""
    if any(name in parts for name in _PRIVATE_NAMES):
        return False
    if key == "write" or any(_begins(parts, known) for known in _HARMLESS):
        return key == "read" or _begins(parts, _HARMLESS[0])
    for tool in toolchains.load_table().toolchain:
        for top in [root[2:].split("/") for root in tool.roots if root.startswith("~/.")]:
            inner = parts[len(top) :]
            closed = any(_begins(inner, each.split("/")) for each in tool.excluded)
            if _begins(parts, top) and not closed and any(_begins(inner, each.split("/")) for each in tool.grants):
                return True
    return False


def _begins(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    return len(parts) >= len(pattern) and all(map(fnmatchcase, parts, pattern))


def propose(
    missed: Iterable[Missed],
    plan: Plan,
    outside: Outside = NOWHERE,
    is_clean: Callable[[str], bool] = lambda directory: False,
) -> list[Line]:
    """The grants for all that was missed: those for writing first, each kind sorted by path.

    Args:
        is_clean: whether nothing that a directory contains is `withheld`.
    """
    lines: dict[tuple[str, str], Line] = {}
    for one in missed:
        line = _line(one, plan, outside)
        if line.tried and one.directory and not is_clean(line.path):
            line = line._replace(tried=False)
        known = lines.get((line.key, line.path))
        if known is None or (known.standing, line.standing) == (Standing.OPTIONAL, Standing.PROPOSED):
            lines[line.key, line.path] = line
    found = _collapsed(list(lines.values()), plan, outside, is_clean)
    kept = [line for line in found if not any(_covers(other, line) for other in found)]
    return sorted(kept, key=lambda line: (line.key != "write", line.path))


def _line(one: Missed, plan: Plan, outside: Outside) -> Line:
    key = "write" if one.access == "w" else "read"
    path, prepare = one.path, "" if one.exists else "directory" if one.directory else "file"
    if key == "write" and one.directory and one.exists and one.asked != path and _too_wide(path, key, plan, outside):
        # A single file in a directory that holds much else: that file.
        path, prepare = one.asked, "file"
    found = decide(plan, path)
    text, special = withheld(path, key, plan, outside), _too_wide(path, key, plan, outside)
    standing = Standing.OPTIONAL if one.seen_only or any(mark in one.asked for mark in _CACHES) else Standing.PROPOSED
    if found.limits:
        special, text = True, f"{text or (WRITES if key == 'write' else READS)}; {found.hint}"
    elif special and not text:
        text = "it contains the worktree or the home directory, and everything beside it"
    if not _can_be_written(path):
        special, text = True, "its name is not UTF-8, so no configuration file can contain it"
    if special:
        standing = Standing.WITHHELD
    reason = f"{cited(one.who or '?')}: {one.call} {cited(one.asked)}"
    line = Line(key, path, standing, reason, text or (WRITES if key == "write" else READS), prepare)
    return line._replace(tried=not special and _can_be_tried(line, outside, public=one.public))


def _can_be_written(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _too_wide(path: str, key: str, plan: Plan, outside: Outside) -> bool:
    """Whether a grant of this directory would open much more than anybody meant, or what is withheld."""
    homes = [outside.home, *(value for name, value in plan.env_set if name == "HOME")]
    return (
        path.count("/") < 2
        or beneath(plan.worktree, path)
        or any(beneath(home, path) for home in homes if home.startswith("/"))
        or any(beneath(where, path) for where, _ in plan.denied)
        or bool(withheld(path, key, plan, outside))
    )


def _covers(wide: Line, narrow: Line) -> bool:
    if wide is narrow or wide.standing is Standing.WITHHELD or narrow.standing is Standing.WITHHELD:
        return False
    if wide.standing is Standing.OPTIONAL and narrow.standing is Standing.PROPOSED:
        return False
    if wide.path == narrow.path:
        return (wide.key, narrow.key) == ("write", "read")
    return beneath(narrow.path, wide.path) and (wide.key == "write" or narrow.key == "read")


def _collapsed(lines: list[Line], plan: Plan, outside: Outside, is_clean: Callable[[str], bool]) -> list[Line]:
    """Neighbours that are read become their directory, as far up as that is not too wide, and as cheaply tried."""
    closed: set[Line] = set()
    while True:
        groups: dict[Line, list[Line]] = {}
        for line in lines:
            if line.key == "read" and line.standing is not Standing.WITHHELD:
                wide = Line("read", line.path.rpartition("/")[0] or "/", line.standing, "", READS, "", line.tried)
                groups.setdefault(wide, []).append(line)
        full = [wide for wide, group in groups.items() if len(group) >= FEW and wide not in closed]
        if not full:
            return lines
        wide = max(full, key=lambda line: line.path.count("/"))
        if (
            _too_wide(wide.path, "read", plan, outside)
            or wide.tried != _can_be_tried(wide, outside, public=False)
            or not is_clean(wide.path)
        ):
            closed.add(wide)
            continue
        group = groups[wide]
        lines = [line for line in lines if line not in group]
        lines.append(wide._replace(reason=f"{group[0].reason} and {len(group) - 1} more below"))


def configuration(lines: Iterable[Line], heading: Iterable[str]) -> str:
    """The lines as a configuration file; what is not proposed stands in comments."""
    lines = list(lines)
    out = [f"# {text}".rstrip() for text in heading]
    out += ["schema = 1", ""]
    proposed = [line for line in lines if line.standing is Standing.PROPOSED]
    if proposed:
        out.append("[filesystem]")
    for key in ("read", "write"):
        chosen = [line for line in proposed if line.key == key]
        if chosen:
            out.append(f"{key} = [")
            for line in chosen:
                out += [*_comments(line, "    "), f"    {string(line.path)},"]
            out.append("]")
    for standing, title in (
        (Standing.WITHHELD, "Not proposed, because of what it would grant; add it yourself if you mean it:"),
        (Standing.UNTRIED, "Perhaps needed, but not tried; add yourself what you mean:"),
        (Standing.OPTIONAL, "Requested, but probably not needed:"),
    ):
        rest = [line for line in lines if line.standing is standing]
        if rest:
            out += ["", f"# {title}"]
        for line in rest:
            out += [*_comments(line, ""), f"#   {line.key}: {string(line.path)}"]
    return "\n".join(out) + "\n"


def _comments(line: Line, indent: str) -> list[str]:
    out = [f"{indent}# {_plain(line.reason)}", f"{indent}# risk: {_plain(line.risk)}"]
    if line.prepare:
        out.append(f"{indent}# create it first, as a {line.prepare}")
    return out


def _plain(text: str) -> str:
    """One line of a comment: a path may hold anything."""
    return string(text, spoken=True)[1:-1].replace('\\"', '"').replace("\\\\", "\\")
