"""What programmes may use of the policy: documented in docs/library.md, loaded when it is first asked for."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from policy.derive import derive as derive
    from policy.errors import Refusal as Refusal
    from policy.plan import Plan as Plan
    from policy.providers.model import DialectName as DialectName
    from policy.providers.registry import SandboxTranslationRegistry as SandboxTranslationRegistry
    from policy.providers.registry import SandboxTranslationStrategy as SandboxTranslationStrategy
    from policy.providers.registry import Translation as Translation
    from policy.providers.registry import load_registry as load_registry
    from policy.providers.registry import translate as translate
    from policy.sandbox import WorktreeSandbox as WorktreeSandbox
    from policy.sandbox_context import MainWorktreeContext as MainWorktreeContext
    from policy.sandbox_context import SubmoduleWorktreeContext as SubmoduleWorktreeContext
    from policy.sandbox_context import WorktreeSandboxContext as WorktreeSandboxContext
    from policy.verdict import Verdict as Verdict
    from policy.verdict import decide as decide
    from policy.violation import Operation as Operation
    from policy.violation import SandboxValidationResult as SandboxValidationResult

    WorktreeContext = WorktreeSandboxContext


_HOMES = {
    "policy.derive": ("derive",),
    "policy.errors": ("Refusal",),
    "policy.plan": ("Plan",),
    "policy.providers.model": ("DialectName",),
    "policy.providers.registry": (
        "SandboxTranslationRegistry",
        "SandboxTranslationStrategy",
        "Translation",
        "load_registry",
        "translate",
    ),
    "policy.sandbox": ("WorktreeSandbox",),
    "policy.sandbox_context": (
        "MainWorktreeContext",
        "SubmoduleWorktreeContext",
        "WorktreeSandboxContext",
    ),
    "policy.verdict": (
        "Verdict",
        "decide",
    ),
    "policy.violation": (
        "Operation",
        "SandboxValidationResult",
    ),
}
"""Module -> the names that it gives, loaded when they are first asked for."""

_SPECIFIED = {
    "WorktreeContext": "WorktreeSandboxContext",
}
"""Names of the specification -> ours."""

_HOME = {name: module for module, names in _HOMES.items() for name in names}


__all__ = sorted([*_HOME, *_SPECIFIED])


def __getattr__(name: str) -> object:
    ours = _SPECIFIED.get(name, name)
    if ours not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_HOME[ours]), ours)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return list(__all__)
