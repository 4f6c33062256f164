"""The command line: the verbs, the options of a launch, and the one parser for both these and every other verb's.

`paddock run ... -- COMMAND` stands in front of every agent start, and importing argparse alone costs as long as the
interpreter's own start. What the other verbs take is in `verbs/forms.txt`. Launch path: no imports but `policy.errors`.
"""

from policy.errors import EXIT_REFUSED, Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

VERBS = {
    "run": "run a command in a jail around its git worktree",
    "exec": "run a further command inside a live session",
    "acp": "run an agent in its jail behind an editor's Agent Client Protocol",
    "files": "serve file tools over MCP, each session's in its own jail",
    "explain": "show what a jail would allow, and by which rule",
    "why": "say whether a path or a host is allowed, what decides it, what would allow it",
    "denials": "show what a session was refused, and what would allow it",
    "learn": "run a command in its jail, and propose the grants that it lacks",
    "worktree": "make, look at, harvest and remove worktrees for agents",
    "merge": "merge agents' branches into the trunk, submodules first",
    "prune": "remove what nothing needs any more: refs, journals, private directories",
    "tickets": "work on many tickets in worktrees of their own, and merge",
    "serve": "run the service that sessions live in",
    "ps": "list the service's sessions",
    "show": "show all about a session of the service",
    "top": "watch the service's sessions",
    "logs": "show what a session of the service has written",
    "events": "show what happens in the service, as it happens",
    "attach": "join a session of the service, or an agent that lives in it",
    "stop": "end sessions of the service",
    "status": "show how the service itself is doing",
    "service": "put the service under systemd, and take it out again",
    "doctor": "prove what this machine can enforce",
    "providers": "list the known agents, and explain one",
    "init": "write a commented .paddock.toml",
    "trust": "let one exact .paddock.toml loosen the rules",
    "completion": "print what completes command lines in a shell",
}

ONE = "one"  # takes a value, the last one counts
MANY = "many"  # takes a value, may be repeated
FLAG = "flag"  # takes none
SWITCH = "switch"  # takes none, and has a key in the configuration, which --no-NAME overrules

OPTIONS: tuple[tuple[str, str, str, str], ...] = (
    # name, kind, metavar, help
    ("--worktree", ONE, "DIR", "root of the git worktree (default: the one that holds the current directory)"),
    ("--directory", FLAG, "", "hold the command to this directory, which is no git worktree: nothing is harvested"),
    ("--new", ONE, "TICKET", "run in a worktree for TICKET, made beside this one unless it is there"),
    ("--from", ONE, "COMMIT", "with --new: the commit to start from (default: HEAD)"),
    ("--copy", MANY, "PATTERN", "with --new: copy untracked files that match; the command can then read them"),
    ("--merge", FLAG, "", "with --new: merge its work into the trunk when the command ends with status 0"),
    ("--rm", FLAG, "", "with --new: remove the worktree when its work is merged, or when there is none"),
    ("--submodule", MANY, "NAME", "grant only these submodules (default: all)"),
    ("--provider", ONE, "auto|none|NAME", "translate the worktree into this agent's own flags and environment"),
    ("--dialect", ONE, "native|contract", "flags the real agent accepts (default), or exactly the specification's"),
    ("--keep-prompts", SWITCH, "", "leave the agent's own permission prompts on (off by default: the jail holds it)"),
    (
        "--logins",
        ONE,
        "none|copy|exchange",
        "the agent's own login: kept out, copied in, or (default) refreshed tokens back too",
    ),
    (
        "--bring",
        MANY,
        "agents|PATH",
        "show the agent's instructions, skills and MCP servers of your home directory, or PATH of it, read-only",
    ),
    ("--rw", MANY, "PATH", "grant reading, writing and executing below PATH; of --ro and --rw the longer path counts"),
    ("--ro", MANY, "PATH", "grant reading and executing below PATH; in the worktree, or as it: make it read-only"),
    ("--review", FLAG, "", "the whole worktree read-only; git works, and what is committed is dropped at the end"),
    ("--deny", MANY, "PATH", "deny everything below PATH, whatever else is granted"),
    ("--freeze-root", SWITCH, "", "accept that directories above an exception are frozen (no mounts available)"),
    ("--net", ONE, "auto|none|proxy|open", "network (default: proxy with a provider or an allowed host, else none)"),
    (
        "--allow-domain",
        MANY,
        "RULE",
        "let --net proxy reach this: [METHODS ]HOST[:PORT][/PATH], or @python, @github ...",
    ),
    ("--deny-domain", MANY, "RULE", "deny this, whatever else is allowed"),
    ("--reach", MANY, "[ADDRESS:]PORT", "let the command connect to this port of the machine's loopback"),
    ("--publish", MANY, "[ADDRESS:]PORT[:PORT]", "let this port of the machine's loopback lead to one of the jail"),
    ("--git", ONE, "auto|private|readonly|shared", "access to git (auto: private where it can be held, else readonly)"),
    (
        "--branch-policy",
        ONE,
        "keep|follow",
        "new branches and tags of the agent: left inside, or (default) harvested, and the checkout follows its HEAD",
    ),
    ("--strict-handoff", FLAG, "", "refuse to hand over work that changes files which other tools execute or obey"),
    ("--sign", SWITCH, "", "sign the commits that are taken over, outside, by your own git configuration"),
    ("--env", MANY, "NAME[=VALUE]", "pass a variable of the caller, or set one"),
    (
        "--limit",
        MANY,
        "NAME=VALUE",
        "bound processes, memory, open_files, file_size, disk or cpu_time; none lifts a bound",
    ),
    ("--backend", ONE, "auto|landlock|bubblewrap", "what holds the jail (auto: Landlock where there is any)"),
    ("--config", ONE, "FILE", "read one more configuration file, above all others"),
    ("--session", ONE, "NAME", "name of the session (default: random)"),
    ("--supervised", FLAG, "", "run in the service (paddock serve), where it can be watched and stopped"),
    ("--detach", FLAG, "", "run in the service, left to itself; started at a terminal, it has one: paddock attach"),
    ("--report", ONE, "FILE", "write what was really enforced to FILE, as JSON"),
    ("--dry-run", FLAG, "", "decide everything, print the plan, start nothing"),
    ("--quiet", FLAG, "", "no summary of what was denied, which comes only at a terminal anyway (short: -q)"),
    ("--verbose", FLAG, "", "say what is done (short: -v)"),
)

UNUSED = (
    *("--session", "--supervised", "--detach", "--report", "--strict-handoff", "--sign", "--no-sign", "--dry-run"),
    *("--branch-policy", "--new", "--from", "--copy", "--merge", "--rm", "--quiet"),
)
OF_NEW = ("--new", "--from", "--copy", "--merge", "--rm")
"""Those that mean something to `paddock run` alone, and something else to other verbs."""
"""What `paddock run` alone obeys. Verbs that put a question about a run accept them, so that a line can be reused."""

SHORT = {"-q": "--quiet", "-v": "--verbose"}
"""Short forms of launch options, which their help names itself."""

Parsed = dict[str, str | list[str] | bool]


def parse(
    argv: list[str],
    *,
    verb: str,
    options: "Sequence[tuple[Any, ...]]" = OPTIONS,
    mixed: bool = False,
    empty: bool = False,
) -> tuple[Parsed, list[str]]:
    """Splits `argv` into options and other words.

    Args:
        argv: without programme name and verb. Options stand as ``--name VALUE`` or ``--name=VALUE``; the first other
            word, or what follows ``--``, begins the rest.
        verb: for error texts.
        options: rows in the shape of `OPTIONS`, which may have a short form as fifth.
        mixed: options may stand behind other words, too.
        empty: whether a value may be empty.

    Returns:
        options by name (absent ones are missing) and the other words.
    """
    kinds = {row[0]: row[1] for row in options}
    kinds |= {contrary(name): FLAG for name, kind in kinds.items() if kind == SWITCH}
    short = {row[4]: row[0] for row in options if row[4:5] and row[4]}
    short |= {letter: name for letter, name in SHORT.items() if name in kinds} | {"-h": "--help"}
    found: Parsed = {}
    words: list[str] = []
    at = 0
    while at < len(argv):
        word = argv[at]
        at += 1
        if word == "--":
            return found, words + argv[at:]
        if not word.startswith("-") or word == "-":
            if not mixed:
                return found, argv[at - 1 :]
            words.append(word)
            continue
        name, equals, value = word.partition("=")
        if mixed and word[1] != "-" and word[2:3] not in ("", "="):  # -n5, or -fn 5
            name, value = word[:2], word[2:]
            equals = "=" if kinds.get(short.get(name, "")) in (ONE, MANY) else ""
            if not equals and name in short:
                argv = [*argv[:at], "-" + value, *argv[at:]]
        name = short.get(name, name)
        if name == "--help" and not equals:
            found[name] = True
            return found, []
        kind = kinds.get(name)
        if kind is None:
            raise unknown_option(word, tuple(kinds), verb)
        if kind in (FLAG, SWITCH):
            if equals:
                raise usage(f"{name} takes no value", verb)
            found.pop(contrary(name), None)  # the last one counts
            found[name] = True
            continue
        if not equals:
            # What is an option itself was hardly meant as a value; `--name=--value` says so.
            if at == len(argv) or argv[at] == "--" or argv[at].partition("=")[0] in kinds:
                raise usage(f"{name} needs a value", verb)
            value = argv[at]
            at += 1
        if not value and not empty:
            raise usage(f"{name} needs a value that is not empty", verb)
        if kind == MANY:
            known = found.setdefault(name, [])
            assert isinstance(known, list)
            known.append(value)
        else:
            found[name] = value
    return found, words


def contrary(name: str) -> str:
    """What takes a switch back: ``--no-sign`` for ``--sign``, and the other way round."""
    return "--" + name[5:] if name.startswith("--no-") else "--no-" + name[2:]


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
        hint=f"paddock {verb} --help" + ("; options of COMMAND itself go behind `--`" if "--env" in names else ""),
    )
