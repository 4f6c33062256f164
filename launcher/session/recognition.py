"""Which provider a command is, and what it is told: from settings and command line to a `policy.launch.Translation`.

Not on the warm launch path: a cached Plan knows its provider.
"""

import os
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from launcher.session import key_sources
from launcher.session.machine import Machine
from launcher.session.places import Places
from policy import runners
from policy.config import values
from policy.config.settings import Settings
from policy.egress_rules import endpoint
from policy.launch import Boundaries, Command, Translation
from policy.plan import Conditional, Plan
from policy.providers import registry
from policy.providers.model import ArgumentsPosition, DialectName, ProviderFile, ProviderSpec, Switch

Sourced = tuple[tuple[str, str], ...]


def endpoints_of(
    spec: ProviderSpec, name: str, machine: Machine, environ: Mapping[str, str]
) -> tuple[Sourced, Sourced]:
    """(egress rules, ports of the loopback), each entry with its source.

    A server on this machine's loopback is granted as a port, at its own address: clients do not use a proxy for it.
    """
    rules = [(domain, f"provider {name}") for domain in spec.domains]
    reach = []
    for variable in spec.endpoints:
        if "@" in environ.get(variable, ""):
            continue
        wanted = endpoint(machine.env(variable) or "")
        if wanted is None:
            continue
        source = f"{variable} in your environment"
        if wanted.is_local:
            reach.append((values.loopback(wanted.where), source))
        else:
            rules.append((wanted.where, source))
    return tuple(rules), tuple(reach)


FETCHES = (
    "{runner} needs its package registry, whose hosts are not allowed: it finds only what it has cached. "
    "--allow-domain {bundle} allows it (a registry can be written to as well), or start the installed programme"
)
SILENT = (
    "{title} asks for no permission in an editor: its ACP adapter drops its prompts along with its own sandbox, "
    "which cannot start in a jail"
)
_XDG = (
    ("~/.config/", "XDG_CONFIG_HOME"),
    ("~/.local/share/", "XDG_DATA_HOME"),
    ("~/.local/state/", "XDG_STATE_HOME"),
)
_BUNDLES = {"uvx": "@python", "uv": "@python", "pipx": "@python"}


class Chosen(NamedTuple):
    """The provider of a launch.

    Attributes:
        strategy: None for none.
        source: why that one.
        program: its programme, where a runner starts it and a path names it.
    """

    strategy: registry.SandboxTranslationStrategy | None
    source: str
    program: Command | None = None


def own_directory(places: Places) -> str:
    """Where the user's own providers lie, one TOML file each."""
    return f"{places.config}/providers"


def load(
    places: Places, dialect: DialectName = DialectName.NATIVE, about: list[str] | None = None
) -> registry.SandboxTranslationRegistry:
    """All known providers, plug-ins included; `about` a command line, those built-ins that it may start.

    Refusals: one of them is wrong.
    """
    plugins = registry.installed_plugins(sys.path)
    return registry.load_registry(dialect, own_directory(places), entry_points=plugins, about=about)


def choose(settings: Settings, command: list[str], directory: str, places: Places, machine: Machine) -> Chosen:
    """The provider that is asked for, or the one that the command line starts.

    Args:
        settings: name and dialect.
        places: the user's own providers lie in its configuration.
        machine: the Plan depends on what is looked at.

    Refusals: provider-unknown, or one of the provider files is wrong.
    """
    wanted, source = settings.provider.value, str(settings.provider.source)
    if wanted in ("none", ""):
        return Chosen(None, source)
    for place in (registry.BUILTIN_DIRECTORY, own_directory(places)):
        for name in machine.listing(place) or ():
            machine.depends_on_content(f"{place}/{name}")
    for place in sys.path:  # plug-ins come and go there with their packages
        machine.depends_on_content(place)
    dialect = DialectName(settings.dialect.value)
    known = load(places, dialect, command if wanted == "auto" else [wanted])  # its name stands where its commands do
    if wanted != "auto":
        return Chosen(known.get_strategy(wanted) or load(places, dialect).require(wanted), source)
    found = known.detect(command)
    if found is None:
        return Chosen(None, "auto: the command is not a known agent")
    return Chosen(
        known.require(found.name), found.reason(command), _behind_runner(command, found.at, directory, machine)
    )


def _behind_runner(command: list[str], at: int, directory: str, machine: Machine) -> Command | None:
    """The file that a runner is told to start, when it is named by a path."""
    word = command[at]
    if at == 0 or "/" not in word or word.startswith(("@", "npm:")):
        return None
    path = os.path.join(directory, word)
    canonical = machine.resolve(path)
    if canonical is None or machine.kind(canonical) != "file":
        return None
    return Command(word, path, canonical, directory)


def translated(
    chosen: Chosen, settings: Settings, boundaries: Boundaries, command: list[str], machine: Machine
) -> Translation:
    """What the provider is told, and what it needs.

    Its own sandbox, and its questions (see `keeps_prompts`), are turned off: whatever has a Plan runs in a jail.
    """
    if chosen.strategy is None:
        return Translation(source=chosen.source)
    name = chosen.strategy.provider_name
    if not isinstance(chosen.strategy, registry.DeclaredStrategy):
        from launcher.vcs.worktrees import models  # 80 ms of pydantic, for what the specification promises plug-ins

        words = registry.translate(chosen.strategy, models.context_of(boundaries))
        return Translation(
            provider=name,
            source=chosen.source,
            dialect=settings.dialect.value,
            environment=tuple(words.environment.items()),
            arguments=tuple(words.arguments),
        )
    words = registry.translate(chosen.strategy, boundaries)
    spec = chosen.strategy.spec
    keep = keeps_prompts(settings)
    switches = chosen.strategy.switches(keep_prompts=keep) if spec.supports_sandbox else ()
    environment = words.environment | {key: value for switch in switches for key, value in switch.environment.items()}
    arguments: tuple[str, ...] = tuple(words.arguments)
    more: tuple[Conditional, ...] = tuple(
        (tuple(switch.arguments), tuple(switch.unless)) for switch in switches if switch.arguments
    )
    at = -1
    dialect = spec.dialect(chosen.strategy.dialect)
    if dialect.arguments_position is ArgumentsPosition.AFTER_PROGRAM:
        index = registry.program_index(command, spec.commands)
        if index is None:
            arguments, more = (), ()
        else:
            at = index + 1
    if dialect.unknown_to:
        more = (((arguments, ()), *more)) if arguments else more
        more = tuple((added, (*unless, *dialect.unknown_to)) for added, unless in more)
        arguments = ()
    domains, reach = endpoints_of(spec, name, machine, os.environ)
    places = (place_of_user(file, spec, machine) for file in spec.files if file.refreshed or file.format == "text")
    flags = at >= 0 and chosen.strategy.dialect is DialectName.NATIVE
    kept = key_sources.keys_of(spec, settings, machine, (*domains, *reach), places, flags=flags)
    silent = (SILENT.format(title=spec.title),) if keep and _is_silent(spec, switches, command) else ()
    domains = key_sources.without_key_apis(spec, domains) if kept.logins == "phantom" else domains
    return Translation(
        provider=name,
        source=chosen.source,
        dialect=settings.dialect.value,
        environment=tuple((_places_of(spec) | spec.quiet | environment).items()),
        arguments=arguments,
        arguments_unless=more,
        arguments_at=at,
        credentials=kept.passed,
        domains=domains,
        reach=reach,
        keys=kept.keys,
        program=chosen.program,
        logins=files_of(
            spec, settings, machine, kept.logins, unattended=bool(switches) and not keep, keyed=bool(kept.keys)
        ),
        bring=_brought(spec, machine) if settings.bring_agents.value else (),
        warnings=(*kept.warnings, *silent),
    )


def _is_silent(spec: ProviderSpec, switches: tuple[Switch, ...], command: list[str]) -> bool:
    """Whether an ACP adapter is started that cannot be told to ask."""
    adapter = registry.program_index(command, spec.adapters) is not None
    return adapter and any(switch.silences_adapters for switch in switches)


def _places_of(spec: ProviderSpec) -> dict[str, str]:
    """The variables that lead a provider into its worktree's private home and temp directory, and its passwords."""
    found = dict.fromkeys(spec.session_secrets, "${secret}")
    root = spec.state.home
    if spec.state.variable is not None and root is not None:
        found[spec.state.variable] = "${home}" + root[1:]
    if spec.temp.variable is not None:
        found[spec.temp.variable] = "${tmp}"
    return found


def keeps_prompts(settings: Settings) -> bool:
    """Whether the provider goes on asking: when that is wanted, and where the jail does not hold all it does.

    With ``--git shared`` it can plant hooks that git runs outside.
    """
    return settings.keep_prompts.value or settings.git_mode.value == "shared"


def files_of(
    spec: ProviderSpec, settings: Settings, machine: Machine, mode: str, *, unattended: bool, keyed: bool
) -> tuple[tuple[object, ...], ...]:
    """The provider's files that pass between the user's home and the private one, for the Plan. `mode`: of logins."""
    from policy.logins import Login

    root = spec.state.home
    # Some refuse to start where the variable names what is not there (codex).
    found = [tuple(Login("", f"{root[2:]}/"))] if spec.state.variable and root not in (None, "~") else []
    for file in spec.files:
        directory, _, name = place_of_user(file, spec, machine).rpartition("/")
        canonical = machine.resolve(directory or "/")
        text = file.format == "text"
        brought, bring = tuple(file.brought), settings.bring_agents.value
        outside = mode == "none" or (mode == "phantom" and file.phantom is None and (text or file.refreshed))
        if outside:
            secrets = ("",) if text else tuple(file.refreshed)
            if canonical is not None and secrets:
                host = f"{canonical.rstrip('/')}/{name}"
                found.append(tuple(Login(host, _inside(file, spec), text, file.entry, kept_out=secrets)))
            canonical = canonical if brought else None
        switched = tuple(file.unattended.items()) if settings.dialect.value == DialectName.NATIVE else ()
        put = (*file.put.items(), *(switched if unattended else ()), *(file.keyed.items() if keyed else ()))
        drop = () if unattended else switched
        if canonical is None and not put and not drop:
            continue
        login = Login(
            host=f"{canonical.rstrip('/')}/{name}" if canonical else "",
            inside=_inside(file, spec),
            text=text,
            entry=file.entry,
            refreshed=tuple(file.refreshed) if mode == "exchange" else (),
            newer=file.newer or "",
            account=tuple(file.account),
            proofs=tuple((path, tuple(claims)) for path, claims in file.proofs.items()),
            only=(*(() if outside else file.only), *(brought if bring else ())),
            put=put,
            drop=drop,
            toml=file.format == "toml",
            brought=brought if bring else (),
            withheld=() if bring else brought,
            phantom=tuple(file.phantom.as_planned()) if file.phantom is not None and mode == "phantom" else (),
        )
        found.append(tuple(login))
    return tuple(found)


def _brought(spec: ProviderSpec, machine: Machine) -> tuple[tuple[str, str], ...]:
    """The user's instructions, skills and the like: where they lie, and where the agent in the jail looks for them."""
    found: list[tuple[str, str]] = []
    for path, moved in spec.bring.items():
        file = ProviderFile(path=path.removesuffix("/*"), moved=moved.removesuffix("/*") or None)
        place, inside = place_of_user(file, spec, machine), _inside(file, spec)
        below = [f"/{name}" for name in machine.listing(place) or () if name[0] != "."] if path.endswith("/*") else [""]
        found += [(place + name, inside + name) for name in below]
    return tuple(found)


def place_of_user(file: ProviderFile, spec: ProviderSpec, machine: Machine) -> str:
    """Where the user's own file lies: the provider's variable, or XDG's, may have moved it."""
    if file.moved is not None and spec.state.variable is not None:
        place = machine.env(spec.state.variable) or ""
        if place.startswith("/"):
            return f"{place.rstrip('/')}/{file.moved}"
    for prefix, variable in _XDG if spec.state.xdg else ():
        place = machine.env(variable) or ""
        if file.path.startswith(prefix) and place.startswith("/"):
            return f"{place.rstrip('/')}/{file.path[len(prefix) :]}"
    return machine.home.rstrip("/") + file.path[1:]


def _inside(file: ProviderFile, spec: ProviderSpec) -> str:
    """Where the copy lies, below the private home. There the provider's variable is always set, XDG's never."""
    root = spec.state.home
    if file.moved is None or spec.state.variable is None or root is None:
        return file.path[2:]
    return f"{root[2:]}/{file.moved}".lstrip("/")


def warnings(command: list[str], plan: Plan, provider: Translation, allowed: tuple[str, ...]) -> tuple[str, ...]:
    """What the user should know of a provider: logins that stay out, a command that is fetched before it is started.

    Args:
        allowed: the hosts that may be reached, with bundles by their names.
    """
    fields: Any = [login for login in provider.logins if login not in plan.logins]
    left_out: list[str] = []
    if fields:
        from policy.logins import Login

        left_out = [login.host for login in (Login(*each) for each in fields) if not login.only_withholds]
    found = provider.warnings + tuple(
        f"{path} is not copied into the jail: the command can write its directory" for path in left_out
    )
    runner, at = command[0].rpartition("/")[2], runners.started(command)
    bundle = _BUNDLES.get(runner, "@node")
    if plan.net != "proxy" or not at or runner not in runners.FETCHING or bundle in allowed:
        return found
    return (*found, FETCHES.format(runner=runner, bundle=bundle))
