"""`paddock worktree SUBCOMMAND`: worktrees for agents. One table; each sub-command lives in a `worktree_*` module."""

from launcher.verbs import help_page
from policy.errors import EXIT_REFUSED

SUBCOMMANDS: dict[str, tuple[str, str, str]] = {
    # name -> (module, its function from argv to exit status, summary). A further sub-command is a row here.
    "add": ("launcher.verbs.worktree_add", "add", "make a worktree for a ticket, beside this one"),
    "list": ("launcher.verbs.worktree_show", "list_all", "list the worktrees of this repository"),
    "status": ("launcher.verbs.worktree_show", "status", "show what is at stake in worktrees"),
    "harvest": ("launcher.verbs.worktree_harvest", "harvest", "take over what an agent committed"),
    "dock": ("launcher.verbs.worktree_harvest", "dock", "make .git lead to your repository again"),
    "remove": (
        "launcher.verbs.worktree_remove",
        "remove",
        "remove a worktree, never with work that is nowhere else, but for what git ignores",
    ),
    "adopt": ("launcher.verbs.worktree_repair", "adopt", "take on a worktree that git made"),
    "repair": ("launcher.verbs.worktree_repair", "repair", "finish, undo or find again what a crash or a move left"),
}

EXAMPLES = (
    ("paddock worktree add PROJ-17", "a sibling directory on the branch agent/PROJ-17"),
    ("paddock worktree status", "which worktrees hold work that is nowhere else"),
    ("paddock worktree remove PROJ-17", "when it is merged"),
)


def main(argv: list[str]) -> int:
    """Hands the rest to a sub-command; its exit status."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(overview())
        return 0 if argv else EXIT_REFUSED
    if argv[0] not in SUBCOMMANDS:
        raise help_page.unknown_subcommand("worktree", argv[0], tuple(SUBCOMMANDS))
    module, function, _ = SUBCOMMANDS[argv[0]]
    status: int = getattr(__import__(module, fromlist=[function]), function)(argv[1:])
    return status


def overview() -> str:
    """What `paddock worktree --help` prints."""
    known = {name: summary for name, (_, _, summary) in SUBCOMMANDS.items()}
    return help_page.of_subcommands("worktree", "Worktrees for agents.", known, EXAMPLES)
