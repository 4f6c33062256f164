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
    "run": "run a command in a jail that confines it to its git worktree",
    "exec": "run another command inside a live session",
    "acp": "run an agent in its jail behind an editor's Agent Client Protocol",
    "files": "serve file tools over MCP, each session's in its own jail",
    "explain": "show what a jail would allow, and by which rule",
    "why": "say whether a path or host is allowed, which rule decides, and what would allow it",
    "denials": "show what a session was denied, and what would allow it",
    "answer": "show what sessions ask about refused hosts, and answer",
    "learn": "run a command in its jail, and propose the grants it lacks",
    "worktree": "add, inspect, harvest and remove worktrees for agents",
    "merge": "merge agents' branches into the trunk, submodules first",
    "prune": "remove what is no longer needed: refs, journals, private directories",
    "tickets": "work on many tickets, each in its own worktree, and merge them",
    "batch": "run a command for each row of a file, each on a clean copy of a commit",
    "serve": "run the service that supervises sessions",
    "ps": "list the service's sessions",
    "show": "show everything about a session of the service",
    "top": "watch the service's sessions",
    "logs": "show the output of a session of the service",
    "events": "show what happens in the service, as it happens",
    "attach": "attach to a session of the service, or to an agent in it",
    "stop": "end sessions of the service",
    "page": "look at the service's sessions in a browser",
    "status": "show how the service itself is doing",
    "service": "install the service as systemd units, or remove them",
    "doctor": "prove what this machine can enforce",
    "selftest": "attack this machine's sandboxes, Paddock's or others, and say what they hold",
    "providers": "list the known agents, or explain one",
    "init": "write a commented .paddock.toml",
    "trust": "accept a .paddock.toml that loosens the rules",
    "completion": "print a shell completion script",
}

ONE = "one"  # takes a value, the last one counts
MANY = "many"  # takes a value, may be repeated
FLAG = "flag"  # takes none
SWITCH = "switch"  # takes none, and has a key in the configuration, which --no-NAME overrules

OPTIONS: tuple[tuple[str, str, str, str], ...] = (
    # name, kind, metavar, help
    ("--worktree", ONE, "DIR", "root of the git worktree (default: the one that holds the current directory)"),
    (
        "--directory",
        FLAG,
        "",
        "confine the command to this directory, which is not a git worktree: nothing is harvested",
    ),
    ("--new", ONE, "TICKET", "run in the worktree for TICKET, made beside this one if it does not exist"),
    ("--from", ONE, "COMMIT", "with --new: the commit to start from (default: HEAD)"),
    ("--copy", MANY, "PATTERN", "with --new: copy untracked files that match; the command can then read them"),
    ("--merge", FLAG, "", "with --new: merge its work into the trunk if the command exits with status 0"),
    ("--rm", FLAG, "", "with --new: remove the worktree once its work is merged, or if there is none"),
    ("--submodule", MANY, "NAME", "grant only these submodules (default: all)"),
    ("--provider", ONE, "auto|none|NAME", "pass the worktree to this agent in its own flags and environment"),
    (
        "--dialect",
        ONE,
        "native|contract",
        "flags that the real agent accepts (default), or exactly the specification's",
    ),
    ("--keep-prompts", SWITCH, "", "keep the agent's own permission prompts (off by default: the jail confines it)"),
    (
        "--logins",
        ONE,
        "none|phantom|copy|exchange",
        "the agent's login: not passed, phantoms of it, a copy, or (default) a copy whose refreshed tokens come back",
    ),
    (
        "--bring",
        MANY,
        "agents|PATH",
        "show the agent's instructions, skills and MCP servers of your home directory, or PATH of it, read-only",
    ),
    ("--rw", MANY, "PATH", "grant reading, writing and executing below PATH; of --ro and --rw, the longer path wins"),
    ("--ro", MANY, "PATH", "grant reading and executing below PATH; for the worktree or part of it: make it read-only"),
    ("--review", FLAG, "", "make the whole worktree read-only; git works, but commits are dropped at the end"),
    (
        "--cow",
        FLAG,
        "",
        "show a private copy of the worktree: what is written or committed there is dropped at the end",
    ),
    (
        "--root",
        ONE,
        "DIR",
        "show a private copy of this unpacked image in place of the machine's own files: its /usr, /etc and commands",
    ),
    ("--deny", MANY, "PATH", "deny everything below PATH, whatever else is granted"),
    ("--freeze-root", SWITCH, "", "accept that directories above an exception are frozen (no mounts available)"),
    ("--net", ONE, "auto|none|proxy|open", "network (default: proxy with a provider or an allowed host, else none)"),
    (
        "--allow-domain",
        MANY,
        "RULE",
        "let --net proxy reach this: [METHODS ]HOST[:PORT][/PATH], or @python, @github ...",
    ),
    ("--deny-domain", MANY, "RULE", "deny this host, whatever else is allowed"),
    ("--reach", MANY, "[ADDRESS:]PORT", "let the command connect to this port of the machine's loopback"),
    ("--publish", MANY, "[ADDRESS:]PORT[:PORT]", "forward this port of the machine's loopback to a port in the jail"),
    (
        "--ask",
        ONE,
        "auto|yes|no",
        "ask you about a host that no rule allows (auto: at a terminal, for a known agent)",
    ),
    (
        "--keys",
        ONE,
        "phantom|pass",
        "an agent's API key: stays outside, the jail has a phantom (default), or is passed",
    ),
    (
        "--inject",
        MANY,
        "VARIABLE=URL[,...]",
        "keep this key outside: the jail has a phantom, which the proxy replaces at that API (paddock help keys)",
    ),
    (
        "--proxy-env",
        ONE,
        "auto|yes|no",
        "set HTTPS_PROXY and the like to paddock's proxy (auto: only where hosts cannot be reached by name)",
    ),
    (
        "--git",
        ONE,
        "auto|private|readonly|shared",
        "access to git (auto: private where it can be enforced, else readonly)",
    ),
    (
        "--branch-policy",
        ONE,
        "keep|follow",
        "the agent's new branches and tags: left inside, or (default) harvested, and the checkout follows its HEAD",
    ),
    ("--strict-handoff", FLAG, "", "refuse work that changes hand-off files, which other tools execute or obey"),
    ("--sign", SWITCH, "", "sign harvested commits, outside the jail, with your own git configuration"),
    ("--env", MANY, "NAME[=VALUE]", "pass one of your environment variables, or set one"),
    (
        "--limit",
        MANY,
        "NAME=VALUE",
        "limit processes, memory, open_files, file_size, disk or cpu_time; none lifts a limit",
    ),
    (
        "--budget",
        MANY,
        "NAME=VALUE",
        "bound what a key that stays outside is used for: tokens, requests (in a minute) or upload",
    ),
    ("--backend", ONE, "auto|landlock|bubblewrap", "what enforces the jail (auto: Landlock where available)"),
    ("--config", ONE, "FILE", "read one more configuration file, which overrides all others"),
    ("--session", ONE, "NAME", "name of the session (default: random)"),
    ("--supervised", FLAG, "", "run in the service (paddock serve), where it can be watched and stopped"),
    ("--detach", FLAG, "", "run in the service, in the background; at a terminal, it gets one of its own"),
    ("--report", ONE, "FILE", "write what was actually enforced to FILE, as JSON"),
    ("--dry-run", FLAG, "", "make the plan and print it; start nothing"),
    ("--quiet", FLAG, "", "print no summary of denials (printed only at a terminal anyway; short: -q)"),
    ("--verbose", FLAG, "", "say more (short: -v)"),
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


def version() -> str:
    """The installed version of Paddock."""
    from launcher.lean import os

    # `importlib.metadata` takes twice as long as all else that `paddock --version` does.
    above = os.path.dirname(os.path.dirname(__file__))
    names = [name for name in os.listdir(above) if name.startswith("paddock_launcher-") and name.endswith(".dist-info")]
    if len(names) == 1:
        return names[0][len("paddock_launcher-") : -len(".dist-info")]
    from importlib import metadata

    try:
        return metadata.version("paddock-launcher")
    except metadata.PackageNotFoundError:
        return "unknown (not installed)"


def unknown_verb(word: str) -> Refusal:
    """The Refusal for a verb that does not exist, with the nearest one that does."""
    from difflib import get_close_matches

    near = get_close_matches(word, (*VERBS, "--version", "--help"), n=1)
    return Refusal(
        "usage",
        f"unknown verb {word}" if not word.startswith("-") else f"unknown option {word}",
        context=f"did you mean {near[0]}?" if near else "verbs: " + ", ".join(VERBS),
        hint="paddock --help; a command to run in a jail goes after `paddock run --`",
    )


def unknown_option(word: str, names: tuple[str, ...], verb: str) -> Refusal:
    """The Refusal for an option that does not exist, with the nearest one that does."""
    from difflib import get_close_matches

    near = get_close_matches(word.partition("=")[0], names, n=1)
    return Refusal(
        "usage",
        f"unknown option {word}",
        context=f"did you mean {near[0]}?" if near else "",
        hint=f"paddock {verb} --help" + ("; options of COMMAND itself go after `--`" if "--env" in names else ""),
    )
