"""Parts of a Plan that follow from one fact each: devices, git, the programme, hand-off files, the environment."""

from collections.abc import Iterable

from policy import promises
from policy.config.settings import Rules
from policy.errors import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, Refusal, in_rows
from policy.launch import Command, Git, Host, Trail, Translation, led_by, left_by, linked_by
from policy.pasted import quoted
from policy.plan import Bind, Grant, Place, beneath, held_by
from policy.promises import OWN_TMP
from policy.toolchains import Toolchains
from policy.verdict import risk_of

# A private git directory is the agent's own and borrows the repository's objects. The jail shows it in the place of the
# worktree's `.git`; of the repository it shows nothing but the objects, read-only. Where a jail has no mounts, `.git`
# leads there on the disk meanwhile (`launcher.vcs.private.swap`).

SOURCE = promises.PRIVATE_GIT

SWAPPED = (
    "while this runs, {root}/.git points to a git directory that the command writes (no mount can cover it in the jail "
    "alone): until it ends, run no git there outside, nor an editor or prompt that does"
)

DIRECTORY = "@git/git"
"""The private git directory; see launcher/vcs/private/record.py for what lies beside it."""


def choose(
    rules: Rules, git: Git, host: Host, *, mounts: bool, root: str, hidden: frozenset[str]
) -> tuple[str, list[str]]:
    """The access to git that a launch has, with warnings for the user.

    `auto` is private where that can be held, else readonly. Without mounts `.git` on the disk has to lead to the
    private git directory meanwhile, where git outside of the jail meets it too: so only in worktrees that Paddock made
    for agents, and with a warning.

    Args:
        rules: the merged configuration.
        git: of the worktree.
        host: answers about the disk.
        mounts: whether the jail has a mount namespace.
        root: canonical root of the worktree.
        hidden: names of submodules that are not granted.

    Raises:
        Refusal: git-private-impossible.
    """
    if rules.git not in ("auto", "private"):
        return rules.git, []
    made = [*git.doubtful, *(_inside(git) if git.created and not mounts else ())]
    reasons = [*made, *git.obstacles, *_not_granted(rules, git, host)]
    if not mounts:
        reasons = [*_unswappable(git, hidden), *reasons]
    if not reasons:
        return "private", [] if mounts else [SWAPPED.format(root=root)]
    # What a command can make in its files must not open the repository for reading to the next one.
    if rules.git == "private" or made:
        raise Refusal(
            "git-private-impossible",
            "this worktree cannot have a private git directory",
            context=in_rows(*reasons),
            hint=in_rows(
                ("remove it, if an agent made it" if made else "")
                + ("; else put what it points to in its place" if git.doubtful else ""),
                "" if mounts or git.created else "use a worktree that can: paddock run --new TICKET -- COMMAND",
                "--git readonly: log, diff and status work"
                + (", once --ro grants what the link points to" if git.doubtful else ""),
                "or --git shared: the command may write the repository, including hooks and configuration",
            ),
        )  # fmt: skip
    return "readonly", [f"git is read-only, commits are not possible: {reasons[0]}"]


def _unswappable(git: Git, hidden: frozenset[str]) -> list[str]:
    """Why `.git` on the disk must not lead to a private git directory, where nothing but that is possible."""
    if git.kind == "main":
        return ["without a mount namespace, the repository inside a main checkout cannot be covered"]
    if not git.created:
        return [
            "without a mount namespace the worktree's .git cannot be covered, and git outside of the jail would obey "
            "what the command writes there; this is accepted only in a worktree that Paddock made "
            "(paddock run --new TICKET -- COMMAND)"
        ]
    return [
        f"without a mount namespace the private git directory of submodule {name}, which is not granted, cannot be "
        "hidden"
        for name in sorted(hidden)
    ][:1]


def _inside(git: Git) -> list[str]:
    """Git directories of submodules that without mounts the command could write. Paddock makes none such."""
    return [
        f"{where} is in the submodule, where without a mount namespace the command could write it"
        for where in git.inside[:1]
    ]


def _not_granted(rules: Rules, git: Git, host: Host) -> list[str]:
    """Object directories of other repositories are granted by nobody but the user: see `ingredients.borrowed`."""
    allowed = [host.resolve(path) for path, _ in (*rules.read, *rules.write)]
    return [
        f"git borrows objects from {store}, which is not granted: --ro {store} grants it, if you know it"
        for *_, stores in git.repositories
        for store in stores[1:]
        if not any(path is not None and beneath(store, path) for path in allowed)
    ]


def unpopulated(git: Git, mode: str, *, mounts: bool) -> tuple[tuple[str, ...], tuple[Place, ...]]:
    """Paths of unpopulated submodules that a jail keeps from being written, and the places that are left open.

    A mount needs a directory. Without mounts the `.git` around is the command's to replace, and whatever is done there
    meanwhile is no worse than that. With ``git`` shared all of it is the command's.
    """
    if mode == "shared":
        return (), ()
    if not mounts:
        return (), (*git.unpopulated, *git.absent)
    return tuple(place for _, _, place in git.unpopulated), git.absent


def reachable(binds: list[Bind], denied: dict[str, str], nested: list[str]) -> list[Bind]:
    """The binds without those in denied trees, except in what is granted inside of these (`nested`)."""

    def hidden(target: str) -> bool:
        above = [where for where, source in denied.items() if beneath(target, where) and source != SOURCE]
        return any(not any(beneath(inner, where) and beneath(target, inner) for inner in nested) for where in above)

    return [bind for bind in binds if not hidden(bind[1])]


def shown(
    git: Git, root: str, hidden: frozenset[str], *, mounts: bool = True
) -> tuple[list[Grant], list[Bind], dict[str, str]]:
    """What a jail shows of git: grants at their own paths, binds at others (which need mounts), and denied paths.

    Args:
        git: of the worktree.
        root: canonical root of the worktree.
        hidden: names of submodules that are not granted.
        mounts: whether the jail has a mount namespace.
    """
    top = f"{root}/.git"
    main = git.kind == "main"
    grants: list[Grant] = [] if main else [(DIRECTORY, "rwx", SOURCE)]
    binds: list[Bind] = [(DIRECTORY, top, "rwx")] if main else []
    denied = {top: SOURCE} if main else {}
    large = dict(git.large)
    for at, (name, path, _, _, private, _, stores) in enumerate(git.repositories):
        if name in hidden:
            denied |= {} if main else {f"{DIRECTORY}/{private}": f"submodule {name} is not granted"}
            continue
        if mounts and (name or not main):
            binds.append((f"@git/pointers/{at}", f"{path}/.git", "r"))
        for number, store in enumerate(stores):
            found = [(store, "objects"), *([(large[store], "lfs/objects")] if store in large else [])]
            if main and beneath(store, top):
                # Its own place is covered, so it is shown at another.
                binds += [(where, f"@git/store/{at}-{number}/{kind}", "r") for where, kind in found]
            else:
                grants += [(where, "r", SOURCE) for where, _ in found]
    return grants, binds, denied


IMAGE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where programmes are looked for in an image, unless the user says otherwise: the caller's PATH is the machine's."""

READ = "rx"  # a tree that may be used: read, listed, executed
WRITE = "rwx"
RO, REVIEW = "--ro", "--review"  # sources of what the command line names for reading
DATA = "r"  # files that are only read

PRIVATE = ("/tmp", "/var/tmp", "/dev", "/proc")
"""Where mounts are possible, a jail has its own of these."""


# Where programmes look for a proxy. ALL_PROXY is HTTP too: some refuse to work with SOCKS in it (httpx). The jail's own
# loopback is reached without. Java's own clients know no credentials; those of build tools take the last two.
_PROXY = "http://${proxy}"
_DIRECT = "localhost,127.0.0.1,::1"
_JAVA = " ".join(
    f"-D{scheme}.proxyHost=127.0.0.1 -D{scheme}.proxyPort=${{proxy_port}} "
    f"-D{scheme}.proxyUser=paddock -D{scheme}.proxyPassword=${{proxy_token}}"
    for scheme in ("http", "https")
)
PROXIED = {
    **dict.fromkeys(("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"), _PROXY),
    **dict.fromkeys(("NO_PROXY", "no_proxy"), _DIRECT),
    "NODE_USE_ENV_PROXY": "1",
    **dict.fromkeys(("npm_config_proxy", "npm_config_https_proxy", "YARN_HTTP_PROXY", "YARN_HTTPS_PROXY"), _PROXY),
    "npm_config_noproxy": _DIRECT,
    "GLOBAL_AGENT_HTTP_PROXY": _PROXY,
    "JAVA_TOOL_OPTIONS": f"{_JAVA} -Dhttp.nonProxyHosts=localhost|127.*|[::1] "
    "-Djdk.http.auth.tunneling.disabledSchemes=",
}


def devices(rules: Rules, host: Host, *, mounts: bool) -> list[Grant]:
    """Devices and process information. With mounts /dev, /tmp and /proc are made anew inside the jail."""
    found = [device for device in rules.devices if host.kind(device[0]) not in (None, "link")]
    if not mounts:
        # Not /dev/pts, where the user's other terminals are too: the guard opens the other side of new ones.
        multiplexer = host.resolve("/dev/ptmx")  # in containers a link into /dev/pts
        multiplexers = [(multiplexer, access, source) for path, access, source in rules.devices if path == "/dev/ptmx"]
        found = [device for device in found if device[0] not in ("/dev/pts", "/dev/ptmx")]
        return found + [(path, access, source) for path, access, source in multiplexers if path is not None]
    own = ("/dev/pts", "/dev/shm")
    # /dev/ptmx is a link into the private /dev/pts.
    shown = [(path, access, "private /dev" if path in own else source) for path, access, source in found]
    return [
        *(device for device in shown if device[0] != "/dev/ptmx"),
        ("/dev", DATA, "private /dev"),
        ("/dev/console", "rwi", "private /dev"),
        ("/dev/mqueue", "rw", "private /dev"),
        ("/tmp", WRITE, OWN_TMP),
        ("/var/tmp", WRITE, OWN_TMP),
    ]


def git_grants(git: Git, mode: str, root: str) -> list[Grant]:
    """Grants outside the worktree that git itself needs.

    readonly: objects, refs and config can be read, so `git log`, `diff` and `status` work. shared: all of it,
    writable.
    """
    source = f"--git {mode}"
    if git.kind == "directory":
        return []
    if mode == "shared":
        return [] if git.kind == "main" else [(git.common_dir, WRITE, source), (git.git_dir, WRITE, source)]
    # As trees, not file by file: git replaces its files by renaming, and a rule or mount stays with the old one.
    paths = [git.common_dir, git.git_dir, *(path for _, path in git.modules)]
    outside = dict.fromkeys(path for path in paths if not beneath(path, root))
    return [(path, DATA, source) for path in outside]


def check_publish(rules: Rules, *, mounts: bool) -> None:
    """Refuses to publish a port of a jail in which nothing can listen."""
    if rules.publish and rules.net == "proxy" and not mounts:
        raise Refusal(
            "publish-needs-namespaces",
            "nothing in the jail can listen on ports here, so none can be published",
            context=f"requested by {rules.publish[0][1]}; without user namespaces, every listener would be open to all",
            hint="allow unprivileged user namespaces; see `paddock doctor`",
        )


def asked_for(path: str, trail: Trail, source: str, root: str, host: Host, written: Iterable[str] = ()) -> str:
    """The canonical form of a path that the user wants granted, which must exist and be his own choice.

    Args:
        path: as it was named.
        trail: of the walk along it, whose end is what gets granted.
        source: who named it.
        root: of the worktree.
        host: answers.
        written: other trees that commands in jails could write, now or earlier.

    Refusals: grant-missing, grant-changed, grant-leaves-worktree.
    """
    canonical = trail.canonical
    if canonical is None and host.kind(trail.reached) not in (None, "link"):
        raise Refusal(
            "grant-changed",
            f"{path} changed while it was being checked",
            context=f"requested by {source}; it was {trail.reached}, which that name no longer reaches",
            hint="a live session may be working there: run the command again, or grant the directory that contains it",
        )
    if canonical is None:
        raise Refusal(
            "grant-missing",
            f"{path} does not exist, so it cannot be granted",
            context=f"requested by {source}",
            hint="create it first, or leave the grant out",
        )
    if not beneath(canonical, root):
        hint = f"name the target itself, {quoted(canonical)}, if that is what you mean"
        if linked_by((root,), trail):
            raise Refusal(
                "grant-leaves-worktree",
                f"{path} resolves outside the worktree, to {canonical}",
                context=f"requested by {source}; a link in the worktree may be an agent's work, so it grants nothing",
                hint=hint,
            )
        tree = left_by(written, trail)
        if tree is not None:
            raise Refusal(
                "grant-leaves-written-tree",
                f"{path} resolves outside {tree}, to {canonical}",
                context=f"requested by {source}; a link in it may be an agent's work, written in a jail or merged, "
                "so it grants nothing",
                hint=hint,
            )
    return canonical


def checkouts_around(trail: Trail, host: Host) -> tuple[str, ...]:
    """The innermost checkouts in which the links of a walk lie: what agents committed comes there with a merge."""
    found = []
    for link, _ in trail.links:
        here = link.rpartition("/")[0]
        while here and host.kind(f"{here}/.git") is None:
            here = here.rpartition("/")[0]
        found += [here] if here else []
    return tuple(found)


def behind_link(path: str, canonical: str, source: str) -> Refusal:
    """The Refusal for what an agent could have chosen, where a part of a writable tree is to be read-only."""
    return Refusal(
        "grant-behind-link",
        f"{path} is a symbolic link to {canonical}, or lies behind one",
        context=f"requested by {source}; an agent may have made the link, and so have chosen what is read-only",
        hint=f"name the place itself, {quoted(canonical)}, if that is what you mean",
    )


def narrowed(root: str, asked: Iterable[Grant]) -> tuple[tuple[Grant, ...], list[str]]:
    """What the user makes read-only inside of trees that can be written, and what he opens again in there.

    The longest path decides. Of one that is named for both, writing counts unless ``--ro`` names it on the command
    line: configuration that is read everywhere may name for reading what is the worktree this time.

    Args:
        root: of the worktree.
        asked: what the user names, as (canonical path, access, source).

    Returns:
        `Plan.narrowed`, sorted; and warnings for what has no effect.
    """
    read = {path: source for path, access, source in asked if "w" not in access}
    read |= {path: source for path, access, source in asked if "w" not in access and source in (RO, REVIEW)}
    write = {root: "worktree"} | {path: source for path, access, source in asked if "w" in access}
    warnings = [
        f"{source} {path}: it is the worktree, which remains writable; --ro {quoted(path)} makes it read-only"
        for path, source in read.items()
        if path == root and source not in (RO, REVIEW)
    ]
    closed = {
        path: source
        for path, source in read.items()
        if (source in (RO, REVIEW) or path not in write) and any(beneath(path, tree) for tree in write)
    }
    opened = {
        path: source
        for path, source in write.items()
        if path not in closed and any(beneath(path, where) for where in closed)
    }
    found = [(path, "r", source) for path, source in closed.items()]
    found += [(path, "w", source) for path, source in opened.items()]
    return tuple(sorted(found)), warnings


def held(grant: Grant, narrowed: tuple[Grant, ...]) -> Grant:
    """A grant, without writing where `narrowed` takes that away from the whole of it."""
    path, access, source = grant
    decisive = held_by(narrowed, path) if "w" in access else None
    return (path, access.replace("w", ""), source) if decisive is not None and decisive[1] == "r" else grant


def socket_warning(path: str, source: str) -> str:
    """The warning for a granted socket file: no rule of the jail holds for the programme that answers there."""
    known = risk_of(path)
    text = f"{source} {path}: whatever serves that socket acts outside of the jail, at the command's request"
    return f"{text}; {known}" if known else text


def borrowed(git: Git, host: Host) -> list[str]:
    """Warnings for object stores that the repository borrows from (gitrepository-layout(5), objects/info/alternates).

    They are never granted by themselves: whoever could write the repository once, in a run with ``--git shared`` or in
    a repository that an agent made below the worktree, would name any directory there, and the next run would read it.
    """
    content = host.read(f"{git.common_dir}/objects/info/alternates") or b""
    found = [line.decode("utf-8", "surrogateescape") for line in content.split(b"\n") if line]
    return [
        f"git borrows objects from {name}, which is not granted; the repository's objects/info/alternates says so, and "
        "an agent may have written that: grant it with --ro only if you know it"
        for name in found[:8]
        if not name.startswith("#")
    ]


def other_names(paths: Iterable[str], host: Host) -> list[str]:
    """Warnings for files whose protection holds for one name, and that have others (link(2))."""
    counted = [(path, host.names(path)) for path in paths]
    return [
        f"{path} is protected under this name, and has {names - 1} more (hard links): if one is in a granted "
        "tree, the file can be reached through it"
        for path, names in counted
        if names > 1
    ]


def program_grants(
    command: Command, grants: Iterable[Grant], host: Host, root: str, written: tuple[str, ...] = ()
) -> list[Grant]:
    """The programme itself, and the package it belongs to, when nothing else grants them.

    Not when a link inside the worktree, or out of another tree that commands could write, leads to it: an agent may
    have put it there, and the next run would open what it chose.
    """
    before, marker, _ = command.program.partition("/node_modules/")
    whole = before + "/node_modules" if marker else command.program
    shown = [grant for grant in grants if grant[2] != OWN_TMP]  # the jail's own /tmp does not show the machine's
    if any(beneath(whole, path) and "x" in access for path, access, _ in shown):
        return []
    trail = host.trail(command.path)
    if trail.canonical != command.program:
        raise Refusal(
            "command-moved", f"{command.program} changed while it was being checked", exit_code=EXIT_NOT_FOUND
        )
    tree = root if led_by(root, command.path, trail) else left_by(written, trail)
    if tree is not None:
        raise Refusal(
            "command-leaves-worktree",
            f"{command.path} resolves outside {'the worktree' if tree == root else tree}, to {command.program}",
            context="commands in jails could write there: a link may be an agent's work, so it grants nothing",
            hint=f"name the programme itself, {quoted(command.program)}, or grant its directory with --ro",
            exit_code=EXIT_NOT_EXECUTABLE,
        )
    if host.resolve(whole) != whole:
        raise Refusal(
            "command-moved", f"{command.program} changed while it was being checked", exit_code=EXIT_NOT_FOUND
        )
    return [(whole, READ, "the command's own programme")]


def closed_logins(logins: Iterable[tuple[object, ...]], grants: Iterable[Grant]) -> tuple[tuple[object, ...], ...]:
    """Those of a provider's files whose place the jail cannot write: else what lies there is the agent's word."""
    writable = [path for path, access, source in grants if "w" in access and source != OWN_TMP]
    return tuple(login for login in logins if not (login[0] and any(beneath(str(login[0]), path) for path in writable)))


def handoff(root: str, rules: Rules, host: Host, exceptions: dict[str, str], git: Git) -> tuple[tuple[str, str], ...]:
    """Existing hand-off files: (canonical path, mode). Names are relative to the root, or absolute in other trees."""
    found: dict[str, str] = {}
    for mode, names in (("report", rules.handoff_report), ("protect", rules.handoff_protect)):
        for name in names:
            path = name if name.startswith("/") else f"{root}/{name.rstrip('/')}"
            if rules.git == "shared" and beneath(path, git.common_dir):
                continue  # opened on purpose, and the user has been told what for
            if rules.git == "private" and beneath(path, f"{root}/.git"):
                continue  # not in the jail, which has the private one there
            if host.kind(path) in ("file", "dir") and host.resolve(path) == path and path not in exceptions:
                found[path] = mode
    if rules.git != "shared":
        found |= dict.fromkeys((path for path in git.obeyed if path not in exceptions), "protect")
    return tuple(sorted(found.items()))


def check_git_grants(rules: Rules, git: Git, host: Host) -> None:
    """Refuses grants of what git executes or obeys: no mount around them could keep that read-only."""
    for path, source in rules.write if rules.git != "shared" else ():
        canonical = host.resolve(path)
        places = (*git.untouched, *git.obeyed)
        above = next((each for each in places if canonical is not None and beneath(canonical, each)), None)
        if above is not None:
            raise Refusal(
                "grant-opens-git",
                f"{path} is something that git executes or obeys outside of the jail",
                context=f"requested by {source}; {above} is or belongs to a git directory",
                hint="leave the grant out; or --git shared: the command may write git directories, hooks and "
                "configuration included",
            )


def environment(
    rules: Rules, provider: Translation, toolchains: Toolchains, *, by_name: bool
) -> tuple[tuple[str, str], ...]:
    """Later entries win: what the user sets beats the provider's, which beats ours.

    Args:
        rules: the merged configuration.
        provider: the provider's translation.
        toolchains: what was found from PATH.
        by_name: clients need not know of the proxy.
    """
    values = {"HOME": "${home}", "TMPDIR": "${tmp}", "TMP": "${tmp}", "TEMP": "${tmp}"}
    if rules.net == "proxy" and (rules.proxy_env == "yes" or (rules.proxy_env == "auto" and not by_name)):
        values |= PROXIED
    if rules.git == "readonly":
        values["GIT_OPTIONAL_LOCKS"] = "0"  # or `git status` complains that it cannot refresh the index
    if rules.root:
        values["PATH"] = IMAGE_PATH
    if toolchains.path:
        values["PATH"] = ":".join(toolchains.path)  # without entries that lead nowhere in the jail
    return tuple((values | dict(toolchains.env_set) | dict(provider.environment) | dict(rules.env_set)).items())


def merged(grants: Iterable[Grant]) -> tuple[Grant, ...]:
    """One grant per path, with the union of accesses; sources are joined, order is kept.

    A grant that one above it covers is left out: rules and mounts reach the whole tree below them. Not so where the
    one above is a private directory of the jail, which shows nothing of what lies below it outside.
    """
    merged: dict[str, tuple[str, str]] = {}
    for path, access, source in grants:
        known, sources = merged.get(path, ("", ""))
        union = "".join(letter for letter in "rwxi" if letter in known or letter in access)
        merged[path] = (union, sources if union == known else f"{sources}, {source}" if sources else source)

    def covered(path: str, access: str) -> bool:
        parent = path
        while path.startswith("/") and parent not in ("", "/"):
            parent = parent.rpartition("/")[0] or "/"
            if parent not in PRIVATE and parent in merged and set(access) <= set(merged[parent][0]):
                return True
        return False

    return tuple((path, access, source) for path, (access, source) in merged.items() if not covered(path, access))
