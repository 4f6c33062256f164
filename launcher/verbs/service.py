"""`paddock service SUBCOMMAND`: the supervisor as a unit of systemd. One table; each sub-command in its own module."""

from launcher.verbs import help_page
from policy.errors import EXIT_REFUSED

SUBCOMMANDS: dict[str, tuple[str, str, str]] = {
    # name -> (module, its function from argv to exit status, summary)
    "install": ("launcher.verbs.service_install", "install", "put the systemd units in place"),
    "uninstall": ("launcher.verbs.service_install", "uninstall", "stop the services and remove the units"),
    "stop": ("launcher.verbs.service_install", "stop", "stop the services; their sessions end in order, or go on"),
    "status": ("launcher.verbs.service_status", "status", "show what is installed and what runs"),
}
HIDDEN: dict[str, tuple[str, str]] = {
    # for paddock-audit.service alone
    "enable-audit": ("launcher.verbs.service_status", "enable_audit"),
}

EXAMPLES = (
    ("paddock service install --user --now", "your own supervisor, under your own service manager"),
    ("sudo paddock service install --system --for alice --now", "one that also hears the kernel's audit"),
    ("paddock service install --system --dry-run", "show the units and change nothing"),
    ("paddock service status", "what is installed, and what runs"),
)


def main(argv: list[str]) -> int:
    """Hands the rest to a sub-command; its exit status."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(overview())
        return 0 if argv else EXIT_REFUSED
    word = argv[0]
    if word not in SUBCOMMANDS and word not in HIDDEN:
        raise help_page.unknown_subcommand("service", word, tuple(SUBCOMMANDS))
    module, function = HIDDEN[word] if word in HIDDEN else SUBCOMMANDS[word][:2]
    status: int = getattr(__import__(module, fromlist=[function]), function)(argv[1:])
    return status


def overview() -> str:
    """What `paddock service --help` prints."""
    known = {name: summary for name, (_, _, summary) in SUBCOMMANDS.items()}
    return help_page.of_subcommands("service", "The service (paddock serve) as a unit of systemd.", known, EXAMPLES)
