"""The settings that all layers give together, and the rules that `policy.derive` takes from them.

Every value, and every entry of a list, knows where it comes from.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from policy import egress_rules
from policy.config.layer import Kind, Layer, flag_of
from policy.config.values import looks_secret
from policy.errors import Refusal, in_rows, printable
from policy.keys import BUDGETS, Key, parse_key
from policy.pasted import cited, quoted

T = TypeVar("T", covariant=True)


class Source(NamedTuple):
    """Where a value comes from: a layer, its file ("" for default and flags), and the key or option."""

    kind: Kind
    origin: str
    key: str

    def __str__(self) -> str:
        """As `paddock explain` shows it: ``default``, ``--rw``, or the file with the key."""
        if self.kind == Kind.DEFAULT:
            return "default"
        return self.key if self.kind == Kind.FLAGS else f"{self.origin} {self.key}"


class Sourced(NamedTuple, Generic[T]):
    """A value with its source."""

    value: T
    source: Source


Strings = tuple[Sourced[str], ...]
Pairs = tuple[Sourced[tuple[str, str]], ...]


class Settings(NamedTuple):
    """What all layers together ask for; the attribute names follow the keys of the files.

    Lists hold each value once, with the first source that named it, in the order of precedence. `deny` beats `read`
    and `write` wherever they come from. `env_set` and `limits` are (name, value) pairs, sorted; a limit without an
    entry is not set. `submodules` is empty when no option chose any, which means all of them.
    """

    read: Strings
    write: Strings
    deny: Strings
    freeze_root: Sourced[bool]
    network_mode: Sourced[str]
    allow_domains: Strings
    deny_domains: Strings
    proxy_env: Sourced[str]
    ask: Sourced[str]
    notify: Sourced[str]
    keys: Sourced[str]
    inject: Strings
    server_name: Sourced[str]
    reach: Strings
    publish: Strings
    env_pass: Strings
    env_set: Pairs
    git_mode: Sourced[str]
    branch_policy: Sourced[str]
    sign: Sourced[bool]
    submodules: Strings
    limits: tuple[Sourced[tuple[str, int]], ...]
    lifted: tuple[str, ...]
    backend: Sourced[str]
    provider: Sourced[str]
    dialect: Sourced[str]
    keep_prompts: Sourced[bool]
    logins: Sourced[str]
    bring_agents: Sourced[bool]
    bring_files: Strings
    handoff_protect: Strings
    handoff_report: Strings
    read_trees: Strings
    etc_files: Strings
    kernel_files: Strings
    devices: Pairs

    def warnings(self) -> tuple[str, ...]:
        """What was asked for and has no effect."""
        mode = self.network_mode
        asked = (Sourced("ask yes", self.ask.source),) if self.ask.value == "yes" else ()
        wanted = [
            entry
            for entry in (*self.allow_domains, *self.reach, *self.publish, *self.inject, *asked)
            if entry.source.kind >= mode.source.kind  # else who chose the mode later meant to close, or open, all of it
        ]
        if not wanted or mode.value in ("proxy", "auto"):
            return ()
        first = wanted[0]
        effect = "no host can be reached" if mode.value == "none" else "every host can be reached"
        return (
            f"{first.value} ({first.source}) has no effect: network mode is {mode.value} ({mode.source}), {effect}; "
            "it applies with --net proxy",
        )

    def describe(self) -> list[str]:
        """One line per value: key, value, source in brackets. Values of variables that look secret are not shown."""
        lines = []
        for key, entries in self._entries():
            lines += [
                f"{key:<24} {printable(_text(entry.value))}  [{printable(str(entry.source))}]" for entry in entries
            ]
        return lines

    def as_dict(self) -> dict[str, object]:
        """The same for `--json`: dotted key -> {value, source}, or a list of them."""
        result: dict[str, object] = {}
        for key, entries in self._entries():
            shown = [{"value": _shown(entry.value), "source": str(entry.source)} for entry in entries]
            result[key] = shown[0] if key in _SCALARS else shown
        return result

    def _entries(self) -> list[tuple[str, tuple[Sourced[object], ...]]]:
        rows: list[tuple[str, tuple[Sourced[object], ...]]] = []
        for attribute, key in KEYS.items():
            value = getattr(self, attribute)
            rows.append((key, (value,) if isinstance(value, Sourced) else value))
        return rows


KEYS = {
    "read": "filesystem.read",
    "write": "filesystem.write",
    "deny": "filesystem.deny",
    "freeze_root": "filesystem.freeze_root",
    "network_mode": "network.mode",
    "allow_domains": "network.allow_domains",
    "deny_domains": "network.deny_domains",
    "proxy_env": "network.proxy_env",
    "ask": "network.ask",
    "notify": "network.notify",
    "keys": "network.keys",
    "inject": "network.inject",
    "server_name": "network.server_name",
    "reach": "network.reach",
    "publish": "network.publish",
    "env_pass": "environment.pass",
    "env_set": "environment.set",
    "git_mode": "git.mode",
    "branch_policy": "git.branch_policy",
    "sign": "git.sign",
    "submodules": "git.submodules",
    "limits": "limits",
    "backend": "backend.choice",
    "provider": "provider.name",
    "dialect": "provider.dialect",
    "keep_prompts": "provider.keep_prompts",
    "logins": "provider.logins",
    "bring_agents": "bring.agents",
    "bring_files": "bring.files",
    "handoff_protect": "handoff.protect",
    "handoff_report": "handoff.report",
    "read_trees": "system.read_trees",
    "etc_files": "system.etc_files",
    "kernel_files": "system.kernel_files",
    "devices": "system.devices",
}
"""Attribute of `Settings` -> dotted key."""

_SCALARS = {
    KEYS[name]
    for name in (
        "freeze_root",
        "network_mode",
        "proxy_env",
        "ask",
        "notify",
        "keys",
        "server_name",
        "git_mode",
        "branch_policy",
        "sign",
        "backend",
        "provider",
        "dialect",
        "keep_prompts",
        "logins",
        "bring_agents",
    )
}


def _shown(value: object) -> object:
    if isinstance(value, tuple):
        name, content = value
        hidden = isinstance(content, str) and looks_secret(name)
        return {"name": name, "value": "(not shown)" if hidden else content}
    return value


def _text(value: object) -> str:
    shown = _shown(value)
    if isinstance(shown, dict):
        return f"{shown['name']}={shown['value']}"
    return str(shown).lower() if isinstance(shown, bool) else str(shown) or "(none)"


# Precedence: shipped default < /etc < user < project < --config FILE < options. Lists accumulate; a single value comes
# from the last layer that has it. A layer that is not trusted may only tighten what the layers below it decided.

BOUNDS = {"memory": 75, "disk": 50}
"""Percent of the machine's memory and free disk that a session may take which has no limit of its own."""

NETWORK_STRICTNESS = ("none", "auto", "proxy", "open")
SERVER_NAME_STRICTNESS = ("require", "match")
ASK_STRICTNESS = ("no", "auto", "yes")
KEYS_STRICTNESS = ("phantom", "pass")
LOGINS_STRICTNESS = ("none", "phantom", "copy", "exchange")
"""Strictest first."""

GIT_TIGHTER = {"readonly": (), "private": (), "auto": ("private",), "shared": ("private", "auto", "readonly")}
"""Mode of access to git -> those that allow nothing that it does not. ``readonly`` is none of them for ``private``: it
writes less, and reads all branches and the repository's configuration, with the passwords in it."""


def resolve(layers: Sequence[Layer]) -> Settings:
    """The settings that `layers` make together.

    Args:
        layers: in ascending precedence, the shipped default first (ValueError otherwise: a caller's mistake).

    Raises:
        Refusal: ``config-untrusted``: a layer that is not trusted loosens something; every such key is listed.
    """
    kinds = [layer.kind for layer in layers]
    if kinds != sorted(kinds) or kinds[:1] != [Kind.DEFAULT]:
        raise ValueError(f"layers out of order: {kinds}")
    for at, layer in enumerate(layers):
        if not layer.trusted and (loose := loosening(_merged(layers[:at]), layer)):
            if layer.elsewhere:
                loose.append(
                    f"{layer.elsewhere} is another place than in the main checkout, so trust there is not enough"
                )
            raise Refusal(
                "config-untrusted",
                f"{layer.origin} loosens the rules, and its content is not trusted",
                context=in_rows("anyone who can write to the worktree, agents included, may have written it:", *loose),
                hint=f"read it, then: paddock trust {quoted(layer.same_as or layer.origin)}",
            )
    return _merged(layers)


def loosening(below: Settings, layer: Layer) -> list[str]:
    """What in `layer` goes beyond `below`, one ``KEY: what it does`` per line; [] when it only tightens."""
    content = layer.content
    found: list[str] = []

    def widened(attribute: str, values: Iterable[str]) -> None:
        known = {entry.value for entry in getattr(below, attribute)}
        found.extend(f"{KEYS[attribute]}: adds {_whole(value)}" for value in values if value not in known)

    def ranked(attribute: str, value: str | None, order: tuple[str, ...]) -> None:
        now = getattr(below, attribute).value
        if value is not None and order.index(value) > order.index(now):
            found.append(f"{KEYS[attribute]}: {value} instead of {now}")

    def changed(attribute: str, value: str | None) -> None:
        now = getattr(below, attribute).value
        if value is not None and value != now:
            found.append(f"{KEYS[attribute]}: {_whole(value) or '(none)'} instead of {now or '(none)'}")

    widened("read", content.filesystem.read)
    widened("write", content.filesystem.write)
    if content.filesystem.freeze_root is False and below.freeze_root.value:
        found.append("filesystem.freeze_root: false instead of true")
    ranked("network_mode", content.network.mode, NETWORK_STRICTNESS)
    widened("allow_domains", content.network.allow_domains)
    ranked("ask", content.network.ask, ASK_STRICTNESS)
    changed("notify", content.network.notify)
    ranked("keys", content.network.keys, KEYS_STRICTNESS)
    widened("inject", content.network.inject)
    widened("reach", content.network.reach)
    widened("publish", content.network.publish)
    ranked("server_name", content.network.server_name, SERVER_NAME_STRICTNESS)
    widened("env_pass", content.environment.pass_)
    known = {entry.value for entry in below.env_set}
    found += [
        f"environment.set: sets {_whole(name)}"
        for name, value in content.environment.set_.items()
        if (name, value) not in known
    ]
    if content.git.mode not in GIT_TIGHTER[below.git_mode.value]:
        changed("git_mode", content.git.mode)
    if content.git.sign is not None and content.git.sign is not below.sign.value:
        # Neither is tighter: the user's name under an agent's work, or work without it where he wants it.
        found.append(f"git.sign: {_word(content.git.sign)} instead of {_word(below.sign.value)}")
    limits = dict(entry.value for entry in below.limits)
    for name in sorted(content.limits.given):
        value = getattr(content.limits, name)
        if value is None and name in BOUNDS and name not in limits and name not in below.lifted:
            found.append(f"limits.{name}: unlimited instead of {BOUNDS[name]}% of what the machine has")
        if name in limits and (value is None or value > limits[name]):
            found.append(f"limits.{name}: {'unlimited' if value is None else value} instead of {limits[name]}")
    changed("backend", content.backend.choice)
    changed("provider", content.provider.name)
    changed("dialect", content.provider.dialect)
    ranked("logins", content.provider.logins, LOGINS_STRICTNESS)
    if content.bring.agents and not below.bring_agents.value:
        found.append("bring.agents: true instead of false")
    widened("bring_files", content.bring.files)
    ranked("branch_policy", content.git.branch_policy, ("keep", "follow"))
    if content.provider.keep_prompts is False and below.keep_prompts.value:
        found.append("provider.keep_prompts: false instead of true")
    protected = {entry.value for entry in below.handoff_protect}
    found += [f"handoff.report: {_whole(name)} is protected" for name in content.handoff.report if name in protected]
    if content.system.given:  # `layer.parse` refuses it already; here too, so that this stands alone
        found.append("system: describes the machine")
    return found


def _bounds(settings: Settings) -> tuple[tuple[str, int], ...]:
    """The bounds that stay: a project's own limit may be any number, so it takes none away."""
    own = {entry.value[0] for entry in settings.limits if entry.source.kind != Kind.PROJECT}
    return tuple((name, share) for name, share in BOUNDS.items() if name not in own and name not in settings.lifted)


def _whole(value: str) -> str:
    """As anybody may have written it; of what loosens the rules nothing is left out."""
    return value and cited(value, len(value))


def _word(value: bool) -> str:
    return "true" if value else "false"


def _source(layer: Layer, key: str) -> Source:
    return Source(layer.kind, layer.origin, flag_of(key) if layer.kind == Kind.FLAGS else key)


def _merged(layers: Sequence[Layer]) -> Settings:
    lists: dict[str, dict[str, Sourced[str]]] = {}
    scalars: dict[str, Sourced[str]] = {}
    tables: dict[str, dict[str, Sourced[tuple[str, str]]]] = {"env_set": {}, "devices": {}}
    limits: dict[str, Sourced[tuple[str, int]]] = {}
    lifted: set[str] = set()
    freeze_root = Sourced(False, Source(Kind.DEFAULT, "", "filesystem.freeze_root"))
    sign = Sourced(False, Source(Kind.DEFAULT, "", "git.sign"))
    keep_prompts = Sourced(False, Source(Kind.DEFAULT, "", "provider.keep_prompts"))
    bring_agents = Sourced(False, Source(Kind.DEFAULT, "", "bring.agents"))
    handoff: dict[str, tuple[str, Sourced[str]]] = {}
    for layer in layers:
        content = layer.content
        for attribute, entries in (
            ("read", content.filesystem.read),
            ("write", content.filesystem.write),
            ("deny", content.filesystem.deny),
            ("allow_domains", content.network.allow_domains),
            ("deny_domains", content.network.deny_domains),
            ("inject", content.network.inject),
            ("reach", content.network.reach),
            ("publish", content.network.publish),
            ("env_pass", content.environment.pass_),
            ("submodules", layer.submodules),
            ("bring_files", content.bring.files),
            ("read_trees", content.system.read_trees),
            ("etc_files", content.system.etc_files),
            ("kernel_files", content.system.kernel_files),
        ):
            known = lists.setdefault(attribute, {})
            for value in entries:
                known.setdefault(value, Sourced(value, _source(layer, KEYS[attribute])))
        for attribute, scalar in (
            ("network_mode", content.network.mode),
            ("proxy_env", content.network.proxy_env),
            ("ask", content.network.ask),
            ("notify", content.network.notify),
            ("keys", content.network.keys),
            ("server_name", content.network.server_name),
            ("git_mode", content.git.mode),
            ("branch_policy", content.git.branch_policy),
            ("backend", content.backend.choice),
            ("provider", content.provider.name),
            ("dialect", content.provider.dialect),
            ("logins", content.provider.logins),
        ):
            if scalar is not None:
                scalars[attribute] = Sourced(scalar, _source(layer, KEYS[attribute]))
        if content.filesystem.freeze_root is not None:
            freeze_root = Sourced(content.filesystem.freeze_root, _source(layer, KEYS["freeze_root"]))
        if content.git.sign is not None:
            sign = Sourced(content.git.sign, _source(layer, KEYS["sign"]))
        if content.provider.keep_prompts is not None:
            keep_prompts = Sourced(content.provider.keep_prompts, _source(layer, KEYS["keep_prompts"]))
        if content.bring.agents is not None:
            bring_agents = Sourced(content.bring.agents, _source(layer, KEYS["bring_agents"]))
        for attribute, table in (("env_set", content.environment.set_), ("devices", content.system.devices)):
            for name, value in table.items():
                tables[attribute][name] = Sourced((name, value), _source(layer, f"{KEYS[attribute]}.{name}"))
        for name in content.limits.given:
            bound = getattr(content.limits, name)
            limits.pop(name, None)
            lifted -= {name}
            lifted |= {name} if bound is None else set()
            if bound is not None:
                limits[name] = Sourced((name, bound), _source(layer, f"limits.{name}"))
        for mode, patterns in (("protect", content.handoff.protect), ("report", content.handoff.report)):
            for pattern in patterns:  # the last layer that names a pattern decides its mode
                if handoff.get(pattern, ("",))[0] != mode:
                    handoff[pattern] = (mode, Sourced(pattern, _source(layer, f"handoff.{mode}")))
    missing = {key for key in ("network_mode", "proxy_env", "ask", "notify", "keys", "server_name", "git_mode",
                               "branch_policy", "backend", "provider", "dialect", "logins")
               if key not in scalars}  # fmt: skip
    if missing:
        raise ValueError(f"the shipped default sets no {', '.join(sorted(missing))}")
    accumulated: dict[str, Strings] = {name: tuple(entries.values()) for name, entries in lists.items()}
    pairs: dict[str, Pairs] = {
        name: tuple(entry for _, entry in sorted(table.items())) for name, table in tables.items()
    }
    return Settings(
        read=accumulated["read"],
        write=accumulated["write"],
        deny=accumulated["deny"],
        freeze_root=freeze_root,
        network_mode=scalars["network_mode"],
        allow_domains=accumulated["allow_domains"],
        deny_domains=accumulated["deny_domains"],
        proxy_env=scalars["proxy_env"],
        ask=scalars["ask"],
        notify=scalars["notify"],
        keys=scalars["keys"],
        inject=accumulated["inject"],
        server_name=scalars["server_name"],
        reach=accumulated["reach"],
        publish=accumulated["publish"],
        env_pass=accumulated["env_pass"],
        env_set=pairs["env_set"],
        git_mode=scalars["git_mode"],
        branch_policy=scalars["branch_policy"],
        sign=sign,
        submodules=accumulated["submodules"],
        backend=scalars["backend"],
        provider=scalars["provider"],
        dialect=scalars["dialect"],
        keep_prompts=keep_prompts,
        logins=scalars["logins"],
        bring_agents=bring_agents,
        bring_files=accumulated["bring_files"],
        read_trees=accumulated["read_trees"],
        etc_files=accumulated["etc_files"],
        kernel_files=accumulated["kernel_files"],
        devices=pairs["devices"],
        limits=tuple(entry for _, entry in sorted(limits.items())),
        lifted=tuple(sorted(lifted)),
        handoff_protect=tuple(entry for mode, entry in handoff.values() if mode == "protect"),
        handoff_report=tuple(entry for mode, entry in handoff.values() if mode == "report"),
    )


# In rules, patterns are replaced by what exists.
#
# A pattern is a path whose components may hold ``*`` (any run of characters) and ``?`` (one character), neither of
# them across a ``/``. Everything else stands for itself, brackets included: ``[id]`` is an ordinary directory's name.


class Rules(NamedTuple):
    """The configuration as far as decisions need it; entries of the first group are (value, source).

    `devices` holds (path, access letters, source); `warnings` what the user should be told.
    """

    read: tuple[tuple[str, str], ...]
    write: tuple[tuple[str, str], ...]
    deny: tuple[tuple[str, str], ...]
    system_trees: tuple[tuple[str, str], ...]
    system_files: tuple[tuple[str, str], ...]
    devices: tuple[tuple[str, str, str], ...]
    net: str
    domains: tuple[tuple[str, str], ...]
    domains_denied: tuple[tuple[str, str], ...]
    proxy_env: str
    ask: str
    notify: str
    inject: tuple[Key, ...]
    server_name: str
    reach: tuple[tuple[str, str], ...]
    publish: tuple[tuple[str, str], ...]
    env_pass: tuple[str, ...]
    env_set: tuple[tuple[str, str], ...]
    git: str
    branch_policy: str
    sign: bool
    backend: str
    limits: tuple[tuple[str, int], ...]
    budget_asked: bool
    bounds: tuple[tuple[str, int], ...]
    bring: tuple[tuple[str, str], ...]
    handoff_protect: tuple[str, ...]
    handoff_report: tuple[str, ...]
    handoff_patterns: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]
    internal: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    authorities: tuple[tuple[str, str], ...] = ()
    cow: bool = False
    root: str = ""


class Lists(Protocol):
    """The part of `policy.launch.Host` that patterns need."""

    def listing(self, path: str) -> tuple[str, ...] | None:
        """Sorted names in a directory; None when it cannot be listed."""

    def present(self, directory: str, names: tuple[str, ...], suffixes: tuple[str, ...]) -> tuple[str, ...]:
        """Sorted entries of a directory that are in `names` or end in one of `suffixes`; () when unlistable."""


def rules_of(settings: Settings, root: str, host: Lists) -> Rules:
    """What `derive` needs of `settings`.

    Args:
        settings: the merged configuration.
        root: canonical root of the worktree, which hand-off patterns are relative to.
        host: asked for the listings of directories that a pattern's wildcard stands in, and for nothing else.
    """
    patterns = [entry.value for entry in (*settings.handoff_protect, *settings.handoff_report)]
    top = _present(root, patterns, host)

    def listing(directory: str) -> tuple[str, ...] | None:
        return top if directory == root else host.listing(directory)

    def handoff(patterns: tuple[str, ...]) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for name in patterns:
            first = name.partition("/")[0]
            if first in top or "*" in first or "?" in first:
                found |= dict.fromkeys(path[len(root) + 1 :] for path in expand(f"{root}/{name}", listing, len(root)))
        return tuple(found)

    protect = handoff(tuple(entry.value for entry in settings.handoff_protect))
    report = handoff(tuple(entry.value for entry in settings.handoff_report))
    files = [
        (path, str(entry.source)) for entry in settings.etc_files for path in expand(entry.value, host.listing)
    ] + [(entry.value, str(entry.source)) for entry in settings.kernel_files]
    return Rules(
        read=tuple((entry.value, str(entry.source)) for entry in settings.read),
        write=tuple((entry.value, str(entry.source)) for entry in settings.write),
        deny=tuple((entry.value, str(entry.source)) for entry in settings.deny),
        system_trees=tuple((entry.value, str(entry.source)) for entry in settings.read_trees),
        system_files=tuple(dict.fromkeys(files)),
        devices=tuple(
            (path, entry.value[1], str(entry.source))
            for entry in settings.devices
            for path in expand(entry.value[0], host.listing)
        ),
        net=settings.network_mode.value,
        domains=_domains(settings.allow_domains),
        domains_denied=_domains(settings.deny_domains),
        proxy_env=settings.proxy_env.value,
        ask=settings.ask.value,
        notify=settings.notify.value,
        inject=tuple(parse_key(entry.value, str(entry.source)) for entry in settings.inject),
        server_name=settings.server_name.value,
        reach=tuple((entry.value, str(entry.source)) for entry in settings.reach),
        publish=tuple((entry.value, str(entry.source)) for entry in settings.publish),
        env_pass=tuple(entry.value for entry in settings.env_pass),
        env_set=tuple(entry.value for entry in settings.env_set),
        git=settings.git_mode.value,
        branch_policy=settings.branch_policy.value,
        sign=settings.sign.value,
        backend=settings.backend.value,
        limits=tuple(entry.value for entry in settings.limits),
        budget_asked=any(entry.source.kind == Kind.FLAGS and entry.value[0] in BUDGETS for entry in settings.limits),
        bounds=_bounds(settings),
        bring=tuple((entry.value, str(entry.source)) for entry in settings.bring_files),
        handoff_patterns=tuple((entry.value, "protect") for entry in settings.handoff_protect)
        + tuple((entry.value, "report") for entry in settings.handoff_report),
        handoff_protect=protect,
        # A name that one pattern protects and another reports is protected.
        handoff_report=tuple(name for name in report if name not in set(protect)),
        warnings=settings.warnings(),
    )


def _domains(entries: Strings) -> tuple[tuple[str, str], ...]:
    """(egress rule, source) of each entry, bundles taken apart."""
    found: dict[str, str] = {}
    for entry in entries:
        if entry.value.startswith(egress_rules.MARK):
            for rule in egress_rules.require(entry.value).rules:
                found.setdefault(rule, f"{entry.source} {entry.value}")
        else:
            found[entry.value] = str(entry.source)
    return tuple(found.items())


def _present(root: str, patterns: list[str], host: Lists) -> tuple[str, ...]:
    """The entries of `root` that some pattern may begin with.

    Asked for by name and suffix, so that a Plan does not depend on everything else that comes and goes in a worktree.
    Only a pattern with its wildcard elsewhere than in front needs the whole listing.
    """
    firsts = dict.fromkeys(pattern.partition("/")[0] for pattern in patterns)
    wild = [first for first in firsts if "*" in first or "?" in first]
    suffixes = tuple(first[1:] for first in wild if first[0] == "*" and "*" not in first[1:] and "?" not in first)
    if len(suffixes) < len(wild) or "" in suffixes:
        return host.listing(root) or ()
    return host.present(root, tuple(first for first in firsts if first not in wild), suffixes)


def expand(pattern: str, listing: Callable[[str], tuple[str, ...] | None], plain: int = 0) -> tuple[str, ...]:
    """The paths that `pattern` stands for, sorted per directory. Without wildcard: the pattern itself, unasked.

    The first `plain` characters are taken literally, because a worktree's root may hold a ``*``.
    """
    found = [pattern[:plain]]
    for part in pattern[plain:].strip("/").split("/"):
        if "*" not in part and "?" not in part:
            found = [f"{path}/{part}" for path in found]
            continue
        found = [f"{path}/{name}" for path in found for name in listing(path or "/") or () if fits(part, name)]
    return tuple(found)


def fits(pattern: str, name: str) -> bool:
    """Whether one component of a pattern stands for `name`.

    Only the last ``*`` is ever reconsidered, so the time is bounded by the product of the lengths: patterns come from
    files that agents write, and a regular expression could be made to run for years.
    """
    at = seen = 0
    star, mark = -1, 0
    while seen < len(name):
        if at < len(pattern) and pattern[at] == "*":
            star, mark = at, seen
            at += 1
        elif at < len(pattern) and pattern[at] in ("?", name[seen]):
            at += 1
            seen += 1
        elif star >= 0:
            mark += 1
            at, seen = star + 1, mark
        else:
            return False
    return pattern[at:].strip("*") == ""
