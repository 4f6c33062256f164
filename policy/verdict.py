"""What a Plan says about one path: the question behind `paddock explain PATH` and every hint.

The same arithmetic as the kernel's: a path has the union of the accesses of all grants above it, less what a denied or
read-only path above it takes away. Pure.
"""

from typing import NamedTuple

from policy import promises
from policy.pasted import pathspec, quoted
from policy.plan import Grant, Plan, beneath, held_by
from policy.promises import NESTED, PRIVATE_GIT, PRIVATE_HOME, PRIVATE_TEMP

NAMES = {"r": "read", "w": "write", "x": "execute", "i": "device control"}


HANDOFF = "hand-off file"
"""Source of a limit: other tools would execute the file later."""


SOURCES = {
    "default": "a rule that Paddock ships",
    "worktree": "it is the worktree",
    promises.UNPOPULATED: "unpopulated submodule: git outside would obey a `.git` made there",
    "git pointer": "what points git to its repository cannot be changed",
}
"""Sources of rules that say too little by their names."""

BEYOND_DENIAL = (NESTED, PRIVATE_HOME, PRIVATE_TEMP, PRIVATE_GIT)
"""Sources of grants that hold although a denied path lies above: the slots lie in Paddock's own state, once bound."""

OBEYED = "programmes that your shell runs outside the jail"
"""The risk of what may well be read."""

RISKS: tuple[tuple[str, str], ...] = (
    ("/.ssh", "private keys: anyone who has them can log in to your servers and push as you"),
    ("/.gnupg", "private keys: anyone who has them can sign and decrypt as you"),
    ("/.aws", "cloud credentials"),
    ("/.azure", "cloud credentials"),
    ("/.config/gcloud", "cloud credentials"),
    ("/.kube", "cluster credentials"),
    ("/.docker", "registry credentials"),
    ("/.netrc", "passwords"),
    ("/.npmrc", "registry tokens"),
    ("/.pypirc", "registry tokens"),
    ("/.git-credentials", "passwords for git hosts"),
    ("/.config/gh", "a token for GitHub"),
    ("/etc/shadow", "password hashes of every user"),
    ("/etc/ssl/private", "private keys of this machine"),
    ("docker.sock", "anyone who reaches the Docker daemon is root on this machine"),
    ("/run/user", "sockets of your desktop session: key agents, D-Bus, Wayland"),
    ("/.git/hooks", "programmes that git runs outside the jail"),
    ("/.git", "the repository itself: its config may contain tokens, its hooks run outside the jail"),
    ("/.bashrc", OBEYED),
    ("/.profile", OBEYED),
    ("/.zshrc", OBEYED),
)
"""(Last components or parts of a path, what a grant there would open); the first match counts."""

_NAMED_BY = (
    ("/.npmrc", "NPM_CONFIG_USERCONFIG"),
    ("/.config/pip/pip.conf", "PIP_CONFIG_FILE"),
    ("/.pip/pip.conf", "PIP_CONFIG_FILE"),
    ("/.gitconfig", "GIT_CONFIG_GLOBAL"),
    ("/.kube/config", "KUBECONFIG"),
    ("/.docker", "DOCKER_CONFIG"),
    ("/.aws/config", "AWS_CONFIG_FILE"),
    ("/.aws/credentials", "AWS_SHARED_CREDENTIALS_FILE"),
    ("/.condarc", "CONDARC"),
    ("/.ripgreprc", "RIPGREP_CONFIG_PATH"),
    ("/.inputrc", "INPUTRC"),
    ("/.wgetrc", "WGETRC"),
)
"""(End of a path, variable by which the tool that looks for it in ~ is told another place)."""

_WHOLE: dict[str, str] = {
    "/": "the whole machine",
    "/etc": "the machine's configuration, password hashes included",
    "/home": "the home directories of all users",
    "/tmp": "temporary files and sockets of every programme",
    "/var": "data, mail and queues of every service",
    "/run": "sockets of every service",
    "/usr": "programmes that everyone runs",
    "/proc": "memory, environment and descriptors of processes",
}
_ENVIRONMENT = "passwords and keys that programmes read when they start"
_TEMPLATES = (".env.example", ".env.sample", ".env.template")
"""Anyone who fetches a repository sees them: they name the secrets, and contain none."""
_A_HOME = "a whole home directory: keys, tokens, and files that your shell runs"


def risk_of(path: str) -> str:
    """What a grant at `path` (absolute, canonical) would open; "" when nothing special is known."""
    for mark, risk in RISKS:
        if path.endswith(mark) or f"{mark}/" in path:
            return risk
    name = path.rpartition("/")[2]
    if (name == ".env" or name.startswith(".env.")) and name not in _TEMPLATES:
        return _ENVIRONMENT
    if path == "/root" or (path.startswith("/home/") and path.count("/") == 2):
        return _A_HOME
    return _WHOLE.get(path, "")


class Verdict(NamedTuple):
    """What a Plan allows at a path.

    Attributes:
        path: canonical path that was judged.
        access: letters as in `policy.plan`, "" when nothing is allowed.
        rules: (granted path, access, source) of each grant that reaches it, nearest first.
        limits: (path, "denied" | "read-only", source) of each exception that reaches it, nearest first.
        hint: what would allow it (or more of it); "" when everything is allowed.
        risk: what that would open; "" when nothing special is known.
    """

    path: str
    access: str
    rules: tuple[tuple[str, str, str], ...]
    limits: tuple[tuple[str, str, str], ...]
    hint: str
    risk: str

    def describe(self, layer: str = "") -> list[str]:
        """The verdict in words, one fact a line.

        Args:
            layer: what holds the path back; "" for nothing.
        """
        lines = [f"{self.path}: {_in_words(self.access) or 'denied'}"]
        lines += [
            f"  granted by  {path} ({_in_words(access)}): {_source(source)}" for path, access, source in self.rules
        ]
        lines += [f"  {kind:<11} {path}: {_source(source)}" for path, kind, source in self.limits]
        if not self.rules and not self.limits:
            lines.append("  decided by  no rule: what is not granted is denied")
        if layer:
            lines.append(f"  held by     {layer}")
        if self.hint:
            lines.append(f"  to allow it {self.hint}")
        if self.risk:
            lines.append(f"  risk        {self.risk}")
        return lines


def _in_words(access: str) -> str:
    return ", ".join(NAMES[letter] for letter in access)


def _source(source: str) -> str:
    return SOURCES.get(source, source)


def decide(plan: Plan, path: str) -> Verdict:
    """What `plan` allows at `path`, and why.

    Args:
        plan: bound or not; slots that are not bound never match.
        path: canonical absolute path (symbolic links resolved by the caller; it need not exist).
    """
    rules = [grant for grant in plan.grants if grant[0].startswith("/") and _reaches(grant, path)]
    rules.sort(key=lambda grant: -len(grant[0]))
    inner = max((len(where) for where, _, source in rules if source in BEYOND_DENIAL), default=0)
    limits = [(where, "denied", source) for where, source in plan.denied if beneath(path, where) and len(where) > inner]
    limits += [(where, "read-only", source) for where, source in plan.read_only if beneath(path, where)]
    held = held_by(plan.narrowed, path)
    limits += [(held[0], "read-only", held[2])] if held is not None and held[1] == "r" else []
    if promises.has_mounts(plan.backend):
        limits += [(where, "read-only", HANDOFF) for where, mode in plan.handoff
                   if mode == "protect" and beneath(path, where)]  # fmt: skip
    limits.sort(key=lambda limit: -len(limit[0]))
    access = "".join(letter for letter in "rwxi" if any(letter in grant[1] for grant in rules))
    if any(kind == "denied" for _, kind, _ in limits):
        access = ""
    elif limits:
        access = access.replace("w", "")
    return Verdict(
        path,
        access,
        tuple(rules),
        tuple(limits),
        "" if "w" in access else _NOTHING if view(plan, path).fixed
        else _hint(path, access, limits, plan.nested, plan.narrowed),
        risk_of(path),
    )  # fmt: skip


_NOTHING = "no option does: it is the jail's own"


def _reaches(grant: Grant, path: str) -> bool:
    """Whether a grant is about `path` of this machine. A private directory shows nothing of what lies below it here."""
    return path == grant[0] if _is_private(grant) else beneath(path, grant[0])


def _is_private(grant: Grant) -> bool:
    where, _, source = grant
    return source.startswith("private /") or (source == PRIVATE_TEMP and where in _TEMPORARY)


_TEMPORARY = ("/tmp", "/var/tmp")


class View(NamedTuple):
    """What a jail with mounts has of its own at a path, in words ("" for nothing); `fixed`: whatever is granted."""

    text: str = ""
    fixed: bool = False


def view(plan: Plan, path: str) -> View:
    """What the jail shows at a path in the machine's place: /proc, /dev, temporary directories, ways to grants."""
    if not promises.has_mounts(plan.backend):
        return View()
    if beneath(path, "/proc"):
        return View("/proc is the jail's own: it shows the jail's processes, and /proc/sys is read-only (EROFS)", True)
    above = max(
        (grant for grant in plan.grants if beneath(path, grant[0])), key=lambda grant: len(grant[0]), default=None
    )
    if above is not None and not _is_private(above):
        return View()
    if above is None and plan.root:
        return View(f"what is there in {plan.root}, as a copy: what is written is dropped at the end")
    if (above is None or above[0] != path) and is_way(plan, path):
        closed = " (EROFS)" if above is None else ""
        return View(f"a directory of the jail's own: it contains only the path to what is granted{closed}")
    if above is None:
        return View()
    where = above[0]
    what = f"{where} is the {'session' if where in _TEMPORARY else 'jail'}'s own: "
    if where == "/dev":
        return View(
            f"{what}it contains the devices that ordinary programmes need, and no others (ENOENT)", path == where
        )
    what += "what is there outside is not visible (ENOENT), and what is created there is not visible outside"
    return View(what, where not in _TEMPORARY)


def is_way(plan: Plan, path: str) -> bool:
    """Whether something below `path` is granted, so that the view of a jail with mounts has a directory there."""
    return any(beneath(where, path) for where, *_ in (*plan.grants, *plan.links))


def _hint(
    path: str, access: str, limits: list[tuple[str, str, str]], nested: tuple[str, ...], narrowed: tuple[Grant, ...]
) -> str:
    word = quoted(path, own=False)
    if "w" in access:
        return ""
    if limits:
        where, kind, source = limits[0]
        if source == "paddock's own":
            return "no option does: anyone who can reach it can read or write the rules of every jail"
        if source == HANDOFF and any(beneath(where, place) for place in nested):
            return "--git shared makes it writable; git outside obeys it, so the command must not write it"
        if source == promises.OTHER_GIT:
            return (
                f"a session in that repository: cd {quoted(where.removesuffix('/.git'))}, and run it there. Or "
                "--git shared in a worktree, which also makes the worktree's own repository writable"
            )
        if source == HANDOFF:
            return (
                f"report = [{where.rpartition('/')[2]!r}] under [handoff] makes it writable, and changes are reported"
            )
        if source == promises.UNPOPULATED:
            around, _, name = where.rpartition("/")
            return (
                f"populate it outside: git -C {quoted(around, own=False)} submodule update --init -- {pathspec(name)}; "
                "then a run is granted it like the others. Or --git shared, which also makes the repository writable"
            )
        if source == "--review":
            return f"leave out --review, or add --rw {word}" if where != path else "leave out --review"
        if source == "--ro":
            return f"leave out --ro {quoted(where, own=False)}" + (f", or add --rw {word}" if where != path else "")
        if any((where, "r", source) == entry for entry in narrowed):
            return f"--rw {word} (to write too)"
        if source.startswith("--deny"):
            return f"leave out --deny {quoted(where, own=False)}"
        if source.startswith(("git pointer", "--git private")):
            return "not needed: with --git private, git works in the jail anyway; --git shared makes it writable"
        return f"change what makes {quoted(where, own=False)} {kind}: {source}"
    if not access:
        if option := told_where(path):
            return f"{option} (the command has its own ~, so the variable names the file)"
        return f"--ro {word} (read and execute) or --rw {word} (write too)"
    return f"--rw {word} (to write too)"


def told_where(path: str) -> str:
    """The options that show a tool its file in the place where it is; "" where no variable tells it of another."""
    word = quoted(path, own=False)
    variable = next((name for end, name in _NAMED_BY if path.endswith(end)), "")
    return f"--ro {word} --env {variable}={word}" if variable else ""


class Exceptions(NamedTuple):
    """What of the worktree is not the command's as the rest is, for who validates paths: sorted canonical paths."""

    read_only: tuple[str, ...]
    writable: tuple[str, ...]
    unpopulated: tuple[str, ...]
    denied: tuple[tuple[str, str], ...]


def exceptions(plan: Plan) -> Exceptions:
    """A Plan's exceptions at and below its worktree; `denied` with sources, `writable` inside of what is read-only."""
    root = plan.worktree
    empty = [path for path, source in plan.read_only if source == promises.UNPOPULATED and beneath(path, root)]
    read_only = [path for path, _ in plan.read_only if beneath(path, root) and path not in empty]
    read_only += [path for path, access, _ in plan.narrowed if access == "r" and beneath(path, root)]
    if promises.has_mounts(plan.backend):
        read_only += [path for path, mode in plan.handoff if mode == "protect"]
    inner = [path for path, access, _ in plan.narrowed if access == "w" and beneath(path, root)]
    return Exceptions(
        tuple(dict.fromkeys(read_only)),
        tuple(path for path in inner if "w" in decide(plan, path).access),
        tuple(empty),
        tuple((path, source) for path, source in plan.denied if beneath(path, root)),
    )


# Which layer says no, and how the command sees it. Pure; from the Plan's backend and network alone.


def layers_for_path(plan: Plan, found: Verdict) -> str:
    """What holds a path back, in words; "" when nothing does."""
    if "w" in found.access:
        return ""
    if promises.has_mounts(plan.backend):
        if found.rules and any(kind == "denied" for _, kind, _ in found.limits):
            return "a mask mounted over it: it and everything below it cannot be opened (EACCES)"
        if own := view(plan, found.path).text:
            return f"the jail's view: {own}"
        if not found.access:
            return "the jail's view: it looks as if it were not there (ENOENT)"
        return "a read-only mount (EROFS)" + ("" if plan.backend == promises.BUBBLEWRAP else ", and Landlock")
    return "Landlock (EACCES); the guard for mode, owner, times and attributes (EPERM)"


def layers_for_git(plan: Plan, found: Verdict) -> str:
    """What git in the jail makes of a denied path of the worktree; "" for any other path."""
    denied = any(kind == "denied" for _, kind, _ in found.limits)
    if not denied or not beneath(found.path, plan.worktree):
        return ""
    return "git in the jail sees tracked files there as modified, and `git add -A` fails on them: add others by name"


def layers_for_hosts(plan: Plan, *, local: bool = False) -> str:
    """What holds connections back, in words; "" when nothing does.

    Args:
        plan: what was decided.
        local: to a port of this machine's loopback.
    """
    guard = plan.backend == promises.GUARD
    if plan.net == "open":
        return ""
    if plan.net == "none" and guard:
        return "the system call filter: there are no internet sockets (EACCES)"
    if local and guard:
        return "the guard, which connects to the proxy and to what --reach names (EACCES)"
    if local:
        return "the network namespace: it has its own loopback, where nothing of this machine listens (ECONNREFUSED)"
    if plan.named_ports:
        return "the jail's resolver, for which such a name does not exist; past it there is no way out (ENETUNREACH)"
    if plan.net == "proxy":
        return f"the proxy, which answers 403; past it there is no way out ({'EACCES' if guard else 'ENETUNREACH'})"
    return "the network namespace, which has only its own loopback (ENETUNREACH)"
