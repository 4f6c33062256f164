"""From a worktree context to the words that hold a command to it: options of `paddock run`, and the provider's own."""

from launcher.workflow.contexts.request_context import RequestContextRepository
from policy.providers.registry import SandboxTranslationRegistry
from policy.providers.strategy import Translation, translate
from policy.sandbox_context import WorktreeSandboxContext


def run_options(context: WorktreeSandboxContext) -> list[str]:
    """The words for `paddock run`, in front of ``--``.

    A submodule that is not granted is denied by its path: in a worktree that was made for an agent its directory is
    empty, and to the launcher an empty directory would be one like any other.
    """
    words = ["--worktree", str(context.worktree_path)]
    for path in (*(module.worktree_path for module in context.ungranted_submodules), *context.denied_paths):
        words += ["--deny", str(path)]
    return [*words, "--freeze-root"] if context.freeze_root else words


def provider_options(
    session_id: str, provider: str, contexts: RequestContextRepository, registry: SandboxTranslationRegistry
) -> Translation:
    """What a provider's command is told about the sandbox of a session (contracts section 2a, FR-004h).

    Nothing where the session has no worktree, the provider is unknown, or it understands nothing of a sandbox: the
    kernel holds it either way. The session's context is consumed by this.
    """
    worktree = contexts.get_worktree_context(session_id)
    strategy = registry.get_strategy(provider)
    if worktree is None or strategy is None:
        return Translation({}, [])
    return translate(strategy, worktree)
