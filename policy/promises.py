"""The promises, row by row, and what each backend keeps of them.

One table serves `paddock doctor`, the ledger, `docs/security.md` and the behavioural tests, so none of them can
claim more than the others. No imports: the launch path reads `required_rows`.
"""

HELD = "held"
NOT_HELD = "not held"

NAMESPACES = "landlock+namespaces"
GUARD = "landlock+guard"
BUBBLEWRAP = "bubblewrap"

PRIVATE_HOME = "private home"
PRIVATE_TEMP = "private temp"
PRIVATE_GIT = "--git private"
"""Sources of the grants of the session's slots, which lie in Paddock's own state: they hold although that is denied."""

OWN_TMP = "private /tmp"
"""Source of the grant of /tmp where the jail has one of its own, which shows nothing of the machine's."""

NESTED = "granted submodule"
"""Source of a grant that holds although a denied path lies above it: a submodule inside one that is not granted."""

UNPOPULATED = "unpopulated submodule"
"""Source of the exception that a place of a submodule is while nothing is there: git outside obeys a `.git` in it."""

OTHER_GIT = "git directory of another repository"
"""Source of the exception that a git directory no jail could write is: git outside obeys whatever is put there."""

BACKENDS = (NAMESPACES, GUARD, BUBBLEWRAP)
"""In the order of preference of `--backend auto`."""

ROWS: tuple[tuple[str, str, str], ...] = (
    # id, what is promised, backends that do NOT hold it (comma separated) with the reason after a colon
    ("reads", "reads are denied unless granted; /etc is granted file by file", ""),
    ("deny-inside-allow", "exceptions inside a granted tree stay denied", ""),
    ("toolchains", "toolchains under the home directory run; their credentials cannot be read", ""),
    ("writes", "only the worktree, the private temp and home and the provider's state can be written", ""),
    (
        "handoff",
        "existing protected hand-off files (which other tools execute or obey) are read-only",
        "landlock+guard: needs a mount namespace; `.git` files can be replaced too, which is reported, and with --git "
        "private undone",
    ),
    ("metadata", "chmod, chown, utime and xattr outside the grants fail", ""),
    ("environment", "only allow-listed environment variables are passed", ""),
    ("fds", "inherited file descriptors are closed, except 0, 1 and 2", ""),
    ("privileges", "no_new_privs, no capability, empty bounding set", ""),
    ("signals", "processes outside cannot be signalled, traced, reniced or limited", ""),
    (
        "visibility",
        "processes outside cannot be seen",
        "landlock+guard: /proc lists names and command lines; needs a PID namespace",
    ),
    ("survival", "nothing outlives the jail, even when the launcher is killed with SIGKILL", ""),
    ("unix-sockets", "AF_UNIX sockets outside the grants are unreachable", ""),
    (
        "shared-memory",
        "/dev/shm, System V IPC, POSIX queues and keyrings are private or denied",
        "landlock+guard: common programmes' semaphores need the machine's own /dev/shm; needs a mount namespace",
    ),
    (
        "terminals",
        "the caller's stays outside, no other can be opened, no input can be pushed into the command's own",
        "",
    ),
    (
        "network",
        "no way out by TCP, UDP, ICMP, MPTCP, fast open, raw, IPv6: `none` allows none, `proxy` only allowed hosts",
        "",
    ),
    ("kernel-surface", "io_uring, bpf, perf, keyrings, userfaultfd, mounts and nested namespaces are denied", ""),
    ("limits", "processes, memory, open files and file size are limited where a limit is set", ""),
)


def has_mounts(backend: str) -> bool:
    """Whether the jail has its own mount, PID and IPC namespaces, and shows nothing but what is granted."""
    return backend in (NAMESPACES, BUBBLEWRAP)


def verdict(row: str, backend: str) -> tuple[str, str]:
    """`(HELD | NOT_HELD, reason)` for a row's id on a backend; KeyError for an unknown id."""
    for name, _, exceptions in ROWS:
        if name == row:
            for part in exceptions.split(";;"):
                where, _, reason = part.partition(": ")
                if backend in where.split(", "):
                    return NOT_HELD, reason
            return HELD, ""
    raise KeyError(row)


def required_rows(backend: str) -> tuple[str, ...]:
    """The ids that a plan for `backend` requires: all that the backend holds."""
    return tuple(name for name, _, _ in ROWS if verdict(name, backend)[0] == HELD)
