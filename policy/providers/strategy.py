"""From a worktree context to the variables and flags of one provider (specification, contracts.md section 2a)."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from policy import runners
from policy.errors import Refusal
from policy.providers.model import ArgumentsPosition, DialectName, ProviderSpec, Switch, filled

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class HasWorktreePaths(Protocol):
    """As much of a `WorktreeSandboxContext` as a translation needs."""

    @property
    def worktree_path(self) -> Path:
        """Absolute root of the main worktree."""

    @property
    def submodule_paths(self) -> Sequence[Path]:
        """Absolute roots of the granted submodules' worktrees."""


@runtime_checkable
class SandboxTranslationStrategy(Protocol):
    """How one provider is told about its sandbox."""

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
    """Both parts of what a provider is told."""

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
                raise ValueError(f"{name!r}: {value!r} is no environment variable")
        for word in found.arguments:
            if not isinstance(word, str) or "\0" in word:
                raise ValueError(f"{word!r} is no argument")
    except Exception as error:  # whatever it does, its name belongs in the message
        kind = type(strategy)
        raise Refusal(
            "provider-plugin",
            f"the plug-in for {strategy.provider_name} ({kind.__module__}.{kind.__qualname__}) does not work",
            context=f"{type(error).__name__}: {error}",
            hint="repair or uninstall the package that brings it",
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
