"""The known providers: built-ins, the user's own files, and plug-ins."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from policy import runners
from policy.errors import Refusal, in_rows
from policy.providers.model import (
    ArgumentsPosition,
    DialectName,
    ProviderSpec,
    Switch,
    filled,
    parse_spec,
    provider_name,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

# From a worktree context to the variables and flags of one provider (specification, contracts.md section 2a).

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class HasWorktreePaths(Protocol):
    """As much of a `WorktreeSandboxContext` as a translation needs."""

    @property
    def worktree_path(self) -> "Path":
        """Absolute root of the main worktree."""

    @property
    def submodule_paths(self) -> "Sequence[Path]":
        """Absolute roots of the granted submodules' worktrees."""


@runtime_checkable
class SandboxTranslationStrategy(Protocol):
    """How one provider learns of its sandbox."""

    @property
    def provider_name(self) -> str:
        """The provider that this strategy serves, such as ``codex``."""

    @property
    def supports_sandbox(self) -> bool:
        """Whether the provider understands anything of a sandbox; if not, nothing is translated."""

    def to_environment_variables(self, context: HasWorktreePaths) -> dict[str, str]:
        """The variables for the provider's environment."""

    def to_command_line_args(self, context: HasWorktreePaths) -> list[str]:
        """The arguments for the provider's command line."""


class Translation(NamedTuple):
    """The flags and variables that tell a provider about its sandbox."""

    environment: dict[str, str]
    arguments: list[str]


class DeclaredStrategy:
    """The strategy of a provider that is described by a `ProviderSpec`.

    Args:
        spec: the provider.
        dialect: which words to use.
        source: where the spec comes from, for messages about duplicates.
    """

    def __init__(self, spec: ProviderSpec, dialect: DialectName = DialectName.NATIVE, source: str = "built-in") -> None:
        """See the class."""
        self.spec = spec
        self.dialect = dialect
        self.source = source

    @property
    def provider_name(self) -> str:
        """The spec's name."""
        return self.spec.name

    @property
    def supports_sandbox(self) -> bool:
        """What the spec says."""
        return self.spec.supports_sandbox

    def to_environment_variables(self, context: HasWorktreePaths) -> dict[str, str]:
        """The dialect's variables, filled in."""
        worktree = str(context.worktree_path)
        words = self.spec.dialect(self.dialect)
        return {name: filled(value, worktree=worktree) for name, value in words.environment.items()}

    def to_command_line_args(self, context: HasWorktreePaths) -> list[str]:
        """The dialect's arguments, then those of each granted submodule in the context's order."""
        worktree = str(context.worktree_path)
        words = self.spec.dialect(self.dialect)
        arguments = [filled(text, worktree=worktree) for text in words.arguments]
        for submodule in context.submodule_paths:
            arguments += [
                filled(text, worktree=worktree, submodule=str(submodule)) for text in words.submodule_arguments
            ]
        return arguments

    def switches(self, *, keep_prompts: bool) -> tuple[Switch, ...]:
        """What turns off the provider's own sandbox and questions. Only for a process that the jail holds.

        Args:
            keep_prompts: leave its questions on.
        """
        words = self.spec.dialect(self.dialect)
        return (words.sandbox_off,) if keep_prompts else (words.sandbox_off, words.prompts_off)

    def place(self, argv: Sequence[str], arguments: Sequence[str]) -> list[str]:
        """`argv` with `arguments` where this dialect wants them.

        ``append`` puts them last, whatever the command is. ``after-program`` looks for one of the spec's commands:
        the programme itself, or what a runner of `policy.runners` is asked to start. Where there is none (an ACP
        adapter, a shell line) the command stays as it is: a flag in a wrong place breaks the command, while a missing
        one costs nothing but politeness, for the kernel holds the process either way.
        """
        if self.spec.dialect(self.dialect).arguments_position is ArgumentsPosition.APPEND:
            return [*argv, *arguments]
        at = program_index(argv, self.spec.commands)
        return list(argv) if at is None else [*argv[: at + 1], *arguments, *argv[at + 1 :]]


def translate(strategy: SandboxTranslationStrategy, context: HasWorktreePaths) -> Translation:
    """Both parts of a translation; empty when the provider does not support a sandbox.

    Raises:
        Refusal: provider-plugin; a plug-in's own strategy fails, or gives what no process can be given.
    """
    if isinstance(strategy, DeclaredStrategy):
        return _asked(strategy, context)
    try:
        found = _asked(strategy, context)
        for name, value in found.environment.items():
            if not _VARIABLE.fullmatch(name) or not isinstance(value, str) or "\0" in value:
                raise ValueError(f"{name!r}: {value!r} is not an environment variable")
        for word in found.arguments:
            if not isinstance(word, str) or "\0" in word:
                raise ValueError(f"{word!r} is not an argument")
    except Exception as error:  # whatever it does, its name belongs in the message
        kind = type(strategy)
        raise Refusal(
            "provider-plugin",
            f"the plug-in for {strategy.provider_name} ({kind.__module__}.{kind.__qualname__}) does not work",
            context=f"{type(error).__name__}: {error}",
            hint="fix or uninstall the package that provides it",
        ) from error
    return found


def _asked(strategy: SandboxTranslationStrategy, context: HasWorktreePaths) -> Translation:
    if not strategy.supports_sandbox:
        return Translation({}, [])
    environment, arguments = strategy.to_environment_variables(context), strategy.to_command_line_args(context)
    if not isinstance(environment, Mapping) or not isinstance(arguments, list | tuple):
        raise TypeError(f"not a mapping and a list, but {environment!r} and {arguments!r}")
    return Translation(dict(environment), list(arguments))


def command_line(strategy: SandboxTranslationStrategy, argv: Sequence[str], context: HasWorktreePaths) -> list[str]:
    """The whole command: `argv` with the strategy's arguments in place. A strategy without `place` appends."""
    arguments = translate(strategy, context).arguments
    if isinstance(strategy, DeclaredStrategy):
        return strategy.place(argv, arguments)
    return [*argv, *arguments]


def program_index(argv: Sequence[str], names: Sequence[str]) -> int | None:
    """Where in `argv` one of the programmes `names` is started: first of all, or behind a runner; None for neither."""
    at = runners.started(list(argv))
    return at if at < len(argv) and runners.name_of(argv[at]) in names else None


# Whether any installed package brings a provider, without importing what would load it.


PLUGIN_GROUP = "paddock.providers"
"""The entry point group of plug-ins."""


def installed_plugins(path: Iterable[str]) -> bool:
    """Whether an installed distribution below one of these directories declares an entry point of our group.

    Looks for the group's name in ``*.dist-info/entry_points.txt`` (entry points specification, PyPA): a millisecond,
    where `importlib.metadata` costs forty.

    Args:
        path: directories, as in `sys.path`.
    """
    heading = f"[{PLUGIN_GROUP}]".encode()
    for directory in path:
        try:
            names = [name for name in os.listdir(directory or ".") if name.endswith((".dist-info", ".egg-info"))]
        except OSError:
            continue  # a zip file, or an entry that leads nowhere
        for name in names:
            try:
                with open(f"{directory}/{name}/entry_points.txt", "rb") as file:
                    if heading in file.read(1 << 20):
                        return True
            except OSError:
                continue  # most have none
    return False


BUILTIN_DIRECTORY = f"{os.path.dirname(__file__)}/builtin"


class Detected(NamedTuple):
    """A provider that was found in a command line.

    Attributes:
        name: the provider's.
        at: where its programme or package stands.
        adapter: whether that is an ACP adapter rather than its command line programme.
    """

    name: str
    at: int
    adapter: bool

    def reason(self, argv: Sequence[str]) -> str:
        """Why it was chosen, for people."""
        return f"auto: {argv[self.at]} is its {'ACP adapter' if self.adapter else 'command'}"


class SandboxTranslationRegistry:
    """Strategies by provider name.

    Args:
        strategies: in any order.

    Raises:
        Refusal: `provider-duplicate` when two strategies serve the same provider, naming where both come from.
    """

    def __init__(self, strategies: Iterable[SandboxTranslationStrategy]) -> None:
        """See the class."""
        self._strategies: dict[str, SandboxTranslationStrategy] = {}
        for strategy in strategies:
            _add(self._strategies, strategy)

    def get_strategy(self, name: str) -> SandboxTranslationStrategy | None:
        """The strategy of a provider, or None when the name is not known."""
        return self._strategies.get(name)

    def names(self) -> tuple[str, ...]:
        """The names of all known providers, sorted."""
        return tuple(sorted(self._strategies))

    def require(self, name: str) -> SandboxTranslationStrategy:
        """As `get_strategy`, but an unknown name is an error.

        Raises:
            Refusal: `provider-unknown`, with the known names and the nearest one.
        """
        strategy = self._strategies.get(name)
        if strategy is None:
            from difflib import get_close_matches

            near = get_close_matches(name, self.names(), n=1, cutoff=0.6)
            raise Refusal(
                "provider-unknown",
                f"there is no provider {name!r}",
                context=f"known: {', '.join(self.names()) or 'none'}",
                hint=(f"did you mean {near[0]}? " if near else "") + "paddock providers lists them",
            )
        return strategy

    def spec(self, name: str) -> ProviderSpec | None:
        """What is declared about a provider; None when it is unknown or a plug-in's own strategy object."""
        strategy = self._strategies.get(name)
        return strategy.spec if isinstance(strategy, DeclaredStrategy) else None

    def detect(self, argv: Sequence[str]) -> Detected | None:
        """The provider whose command or ACP adapter `argv` starts; None when it is none or not clear which one.

        A package that is fetched for it has to be that provider's own: anybody's may bring a command of the same name.
        """
        fetched = [runners.name_of(word) for word in runners.fetched(list(argv)) if runners.is_published(word)]
        if not fetched and runners.fetched(list(argv)):
            return None
        found = [
            Detected(name, at, adapter=adapter)
            for name in self.names()
            if (spec := self.spec(name)) is not None
            for adapter, programmes in ((False, spec.commands), (True, spec.adapters))
            if (at := program_index(argv, programmes)) is not None
            and (not fetched or not {*spec.commands, *spec.adapters}.isdisjoint(fetched))
        ]
        return found[0] if len(found) == 1 else None


def load_registry(
    dialect: DialectName = DialectName.NATIVE,
    user_directory: str | os.PathLike[str] | None = None,
    *,
    entry_points: bool = False,
    about: Sequence[str] | None = None,
) -> SandboxTranslationRegistry:
    """Built-in providers, those of the user's directory, and on request those of installed plug-ins.

    Args:
        dialect: the words that declared strategies use.
        about: a command line; built-ins whose files do not hold the name of what it starts are left out. Reading
            eight files to learn that `true` is no agent would be a good part of making a plan.
        user_directory: its ``*.toml`` files are read; it need not exist. A file whose provider is built in must
            say ``override = true``.
        entry_points: whether to import the plug-ins of the entry point group ``paddock.providers``. Each gives a
            `ProviderSpec`, a strategy object, or a strategy class without arguments.

    Raises:
        Refusal: `provider-invalid`, `provider-unreadable`, `provider-duplicate` or `provider-plugin`.
    """
    strategies: dict[str, SandboxTranslationStrategy] = {}
    for path in _files_of(BUILTIN_DIRECTORY):
        if about is None or _holds(path, about):
            _add(strategies, _read(path, dialect, f"built-in {os.path.basename(path)}"))
    own: dict[str, SandboxTranslationStrategy] = {}
    for path in _files_of(user_directory):
        strategy = _read(path, dialect, path)
        _add(own, strategy)
        if strategy.spec.override:
            strategies.pop(strategy.provider_name, None)
        _add(strategies, strategy)
    if entry_points:
        for plugin in _plugins(dialect):
            _add(strategies, plugin)
    return SandboxTranslationRegistry(strategies.values())


def _holds(path: str, argv: Sequence[str]) -> bool:
    at = runners.started(list(argv))
    with open(path, "rb") as file:
        own = file.read().partition(b"\n[")[0]  # `commands` and `adapters` stand above all tables
    return at < len(argv) and f'"{runners.name_of(argv[at])}"'.encode("utf-8", "surrogateescape") in own


def _add(known: dict[str, SandboxTranslationStrategy], strategy: SandboxTranslationStrategy) -> None:
    name = strategy.provider_name
    if name in known:
        raise Refusal(
            "provider-duplicate",
            f"provider {name!r} is defined twice",
            context=in_rows(f"by {_source(known[name])}", f"and by {_source(strategy)}"),
            hint="give one of them another name, or write `override = true` in your own file to replace a built-in",
        )
    known[name] = strategy


def _source(strategy: SandboxTranslationStrategy) -> str:
    if isinstance(strategy, DeclaredStrategy):
        return strategy.source
    kind = type(strategy)
    return f"{kind.__module__}.{kind.__qualname__}"


def _files_of(directory: str | os.PathLike[str] | None) -> list[str]:
    if directory is None:
        return []
    try:
        return [os.path.join(directory, name) for name in sorted(os.listdir(directory)) if name[1:].endswith(".toml")]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Refusal("provider-unreadable", f"{directory} cannot be listed", context=str(error)) from error


def _read(path: str, dialect: DialectName, source: str) -> DeclaredStrategy:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise Refusal("provider-unreadable", f"{source} cannot be read", context=str(error)) from error
    return DeclaredStrategy(parse_spec(text, source), dialect, source)


def _plugins(dialect: DialectName) -> list[SandboxTranslationStrategy]:
    from importlib.metadata import entry_points  # 40 ms, and it runs other people's code: only when asked

    strategies = []
    for entry in sorted(entry_points(group=PLUGIN_GROUP), key=lambda entry: entry.name):
        source = f"plug-in {entry.name} ({entry.value})"
        try:
            strategies.append(_strategy_of(entry.load(), dialect, source))
        except (Exception, SystemExit) as error:  # whatever a plug-in's import does, its name belongs in the message
            raise Refusal(
                "provider-plugin",
                f"{source} does not work",
                context=f"{type(error).__name__}: {error}",
                hint="fix or uninstall the package that provides it",
            ) from error
    return strategies


def _strategy_of(loaded: object, dialect: DialectName, source: str) -> SandboxTranslationStrategy:
    if isinstance(loaded, type):
        loaded = loaded()
    if isinstance(loaded, ProviderSpec):
        return DeclaredStrategy(loaded, dialect, source)
    if not isinstance(loaded, SandboxTranslationStrategy) or not isinstance(loaded.provider_name, str):
        raise TypeError(f"neither a ProviderSpec nor a SandboxTranslationStrategy, but {type(loaded).__name__}")
    try:
        provider_name(loaded.provider_name)
    except ValueError as error:
        raise ValueError(f"provider_name {loaded.provider_name!r}: {error}") from None
    return loaded
