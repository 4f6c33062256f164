"""The command line: one table of verbs, one table of launch options, one parser for the prefix form.

`paddock run ... -- COMMAND` stands in front of every agent start, so it is parsed by hand: importing argparse alone
costs as long as the interpreter's own start. Launch path: no imports but `policy.errors`.
"""

from policy.errors import EXIT_REFUSED, Refusal

VERBS: dict[str, tuple[str, str]] = {
    "run": ("launcher.verbs.run", "run a command in a jail around its git worktree"),
    "exec": ("launcher.verbs.exec", "run a further command inside a live session"),
    "files": ("launcher.verbs.files", "serve file tools over MCP, each session's in its own jail"),
    "acp": ("launcher.verbs.acp", "run an agent in its jail behind an editor's Agent Client Protocol"),
    "merge": ("launcher.verbs.merge", "merge agents' branches into the trunk, submodules first"),
    "explain": ("launcher.verbs.explain", "show what a jail would allow, and by which rule"),
    "learn": ("launcher.verbs.learn", "run a command in its jail, and propose the grants that it lacks"),
    "why": ("launcher.verbs.why", "say whether a path or a host is allowed, what decides it, what would allow it"),
    "denials": ("launcher.verbs.denials", "show what a session was refused, and what would allow it"),
    "worktree": ("launcher.verbs.worktree", "make, look at, harvest and remove worktrees for agents"),
    "attach": ("launcher.verbs.attach", "join a session of the service, or an agent that lives in it"),
    "service": ("launcher.verbs.service", "put the supervisor under systemd, and take it out again"),
    "doctor": ("launcher.verbs.doctor", "prove what this machine can enforce"),
    "providers": ("launcher.verbs.providers", "list the known agents, and explain one"),
    "serve": ("launcher.verbs.serve", "run the service that sessions live in"),
    "ps": ("launcher.verbs.ps", "list the service's sessions"),
    "show": ("launcher.verbs.show", "show all about a session of the service"),
    "top": ("launcher.verbs.top", "watch the service's sessions"),
    "status": ("launcher.verbs.status", "show how the service is"),
    "tickets": ("launcher.verbs.tickets", "work on many tickets in worktrees of their own, and merge"),
    "stop": ("launcher.verbs.stop", "end sessions of the service"),
    "logs": ("launcher.verbs.logs", "show what a session of the service has written"),
    "init": ("launcher.verbs.init", "write a commented .paddock.toml"),
    "trust": ("launcher.verbs.trust", "let one exact .paddock.toml loosen the rules"),
}

ONE = "one"  # takes a value, the last one counts
MANY = "many"  # takes a value, may be repeated
FLAG = "flag"  # takes none

OPTIONS: tuple[tuple[str, str, str, str], ...] = (
    # name, kind, metavar, help
    ("--worktree", ONE, "DIR", "root of the git worktree (default: the one that holds the current directory)"),
    ("--provider", ONE, "auto|none|NAME", "translate the worktree into this agent's own flags and environment"),
    ("--dialect", ONE, "native|contract", "flags the real agent accepts, or exactly the specification's"),
    ("--keep-prompts", FLAG, "", "leave the agent's own permission prompts on (off by default: the jail holds it)"),
    ("--logins", ONE, "none|copy|exchange", "the agent's own login: kept out, copied in, or refreshed tokens back too"),
    ("--rw", MANY, "PATH", "grant reading, writing and executing below PATH"),
    ("--ro", MANY, "PATH", "grant reading and executing below PATH"),
    ("--deny", MANY, "PATH", "deny everything below PATH, whatever else is granted"),
    ("--submodule", MANY, "NAME", "grant only these submodules (default: all)"),
    ("--net", ONE, "auto|none|proxy|open", "network (default: proxy with a provider or an allowed host, else none)"),
    ("--allow-domain", MANY, "[METHODS ]HOST[:PORT][/PATH]", "let --net proxy reach this; also @python, @github ..."),
    ("--deny-domain", MANY, "[METHODS ]HOST[:PORT][/PATH]", "deny this, whatever else is allowed"),
    ("--publish", MANY, "[ADDRESS:]PORT[:PORT]", "let this port of the machine's loopback lead to one of the jail"),
    ("--reach", MANY, "[ADDRESS:]PORT", "let the command connect to this port of the machine's loopback"),
    ("--env", MANY, "NAME[=VALUE]", "pass a variable of the caller, or set one"),
    ("--backend", ONE, "auto|landlock|bubblewrap", "what holds the jail (auto: Landlock where there is any)"),
    ("--git", ONE, "auto|private|readonly|shared", "access to git (auto: private where it can be held, else readonly)"),
    ("--limit", MANY, "NAME=VALUE", "processes, memory, open_files, file_size, disk or cpu_time"),
    ("--config", ONE, "FILE", "read one more configuration file, above all others"),
    ("--session", ONE, "ID", "name of the session (default: random)"),
    ("--supervised", FLAG, "", "in the service (paddock serve), where it can be watched and stopped"),
    ("--report", ONE, "FILE", "write what was really enforced to FILE, as JSON"),
    ("--strict-handoff", FLAG, "", "refuse to hand over work that changes files which other tools execute or obey"),
    ("--freeze-root", FLAG, "", "accept that directories above an exception are frozen (no mounts available)"),
    ("--dry-run", FLAG, "", "decide everything, print the plan, start nothing"),
    ("--quiet", FLAG, "", "no summary of what was denied (short: -q); it comes only at a terminal anyway"),
    ("--verbose", FLAG, "", "say what is done (short: -v)"),
)

UNUSED = ("--session", "--supervised", "--report", "--strict-handoff", "--dry-run", "--quiet")
"""What `paddock run` alone obeys. Verbs that put a question about a run accept them, so that a line can be reused."""

STATUSES = (
    "exit status: the command's own; 128+N when a signal N ended it; 125 when paddock refused or",
    "failed, 126 when the command cannot be executed, 127 when it is not found.",
)

SHORT = {"-q": "--quiet", "-v": "--verbose", "-h": "--help"}

Parsed = dict[str, str | list[str] | bool]


def parse(
    argv: list[str],
    extra: tuple[tuple[str, str, str, str], ...] = (),
    *,
    verb: str,
    options: tuple[tuple[str, str, str, str], ...] = OPTIONS,
) -> tuple[Parsed, list[str]]:
    """Splits `argv` into options and what follows them.

    Args:
        argv: without programme name and verb. Options come first, as ``--name VALUE`` or ``--name=VALUE``; the
            first other word, or what follows ``--``, begins the rest.
        extra: rows in the shape of `OPTIONS` that only this verb has.
        verb: for error texts.
        options: in place of `OPTIONS`, for a verb that starts no jail.

    Returns:
        options by name (absent ones are missing) and the rest.
    """
    kinds = {name: kind for name, kind, _, _ in options + extra}
    found: Parsed = {}
    at = 0
    while at < len(argv):
        word = argv[at]
        at += 1
        if word == "--":
            return found, argv[at:]
        if not word.startswith("-") or word == "-":
            return found, argv[at - 1 :]
        name, equals, value = word.partition("=")
        name = SHORT.get(name, name)
        if name == "--help" and not equals:
            found[name] = True
            return found, []
        kind = kinds.get(name)
        if kind is None:
            raise unknown_option(word, tuple(kinds), verb)
        if kind == FLAG:
            if equals:
                raise usage(f"{name} takes no value", verb)
            found[name] = True
            continue
        if not equals:
            # What is an option itself was hardly meant as a value; `--name=--value` says so.
            if at == len(argv) or argv[at] == "--" or argv[at].partition("=")[0] in kinds:
                raise usage(f"{name} needs a value", verb)
            value = argv[at]
            at += 1
        if not value:
            raise usage(f"{name} needs a value that is not empty", verb)
        if kind == MANY:
            known = found.setdefault(name, [])
            assert isinstance(known, list)
            known.append(value)
        else:
            found[name] = value
    return found, []


def usage(message: str, verb: str) -> Refusal:
    """The Refusal for words that the command line does not take."""
    return Refusal("usage", message, hint=f"paddock {verb} --help", exit_code=EXIT_REFUSED)


def unknown_verb(word: str) -> Refusal:
    """The Refusal for a verb that does not exist, with the nearest one that does."""
    from difflib import get_close_matches

    near = get_close_matches(word, (*VERBS, "--version", "--help"), n=1)
    return Refusal(
        "usage",
        f"there is no verb {word}" if not word.startswith("-") else f"unknown option {word}",
        context=f"did you mean {near[0]}?" if near else "verbs: " + ", ".join(VERBS),
        hint="paddock --help; a command to be jailed goes behind `paddock run --`",
    )


def unknown_option(word: str, names: tuple[str, ...], verb: str) -> Refusal:
    """The Refusal for an option that does not exist, with the nearest one that does."""
    from difflib import get_close_matches

    near = get_close_matches(word.partition("=")[0], names, n=1)
    return Refusal(
        "usage",
        f"unknown option {word}",
        context=f"did you mean {near[0]}?" if near else "",
        hint=f"paddock {verb} --help; options of COMMAND itself go behind `--`",
    )


def help_text(
    verb: str,
    synopsis: str,
    examples: tuple[tuple[str, str], ...],
    extra: str = "",
    *,
    options: tuple[tuple[str, str, str, str], ...] = OPTIONS,
    statuses: tuple[str, ...] = STATUSES,
) -> str:
    """The `--help` of a verb that runs a command, with the launch options or its own `options` and exit `statuses`."""
    lines = [f"usage: paddock {verb} {synopsis}", "", VERBS[verb][1][0].upper() + VERBS[verb][1][1:] + "."]
    if extra:
        lines += ["", extra]
    lines += ["", "options:"]
    for name, kind, metavar, text in options:
        left = f"{name} {metavar}".rstrip() + (" ..." if kind == MANY else "")
        lines.append(f"  {left:<36}{text}" if len(left) < 35 else f"  {left}\n  {'':<36}{text}")
    lines += ["", "examples:"]
    for command, meaning in examples:
        lines += [f"  {command}", f"      {meaning}"]
    lines += ["", *statuses]
    return "\n".join(lines)


def without_unused() -> tuple[tuple[str, str, str, str], ...]:
    """The launch options that mean something where nothing is launched for its own sake."""
    return tuple(option for option in OPTIONS if option[0] not in UNUSED)


def overview() -> str:
    """What `paddock --help` prints."""
    lines = [
        "usage: paddock VERB ...",
        "",
        "Holds coding agents, or any command, to one git worktree. The kernel enforces it.",
        "",
        "verbs:",
    ]
    lines += [f"  {name:<9} {summary}" for name, (_, summary) in VERBS.items()]
    lines += [
        "",
        "examples:",
        "  paddock run -- bash                       a shell that cannot leave this worktree",
        "  paddock run -- claude                     a known agent, told its limits in its own flags",
        "  paddock explain ~/.ssh/id_ed25519         why it cannot be read, and what would allow it",
        "  paddock doctor                            what this machine can enforce",
        "",
        "paddock VERB --help says more. paddock --version prints the version.",
    ]
    return "\n".join(lines)
