"""From what is wanted to what is allowed: the one place where a Plan is decided. The page to read first.

Pure: what must be known of the disk is asked of `host`, whose answers the caller chose to give. Nothing here runs,
opens or binds anything, and each grant carries its source.

Order of the decisions: backend, network, git, grants, exceptions, environment, what must hold.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from policy import promises
from policy.config.rules import Rules
from policy.errors import EXIT_NOT_FOUND, Refusal
from policy.grants import expand
from policy.host import Host
from policy.plan import VERSION, Grant, Plan, beneath
from policy.toolchains import Toolchains
from policy.worktree import WorktreeSandboxContext

_PRIVATE = ("/tmp", "/var/tmp", "/dev", "/proc")
READ = "rx"  # a tree that may be used: read, listed, executed
WRITE = "rwx"
DATA = "r"  # files that are only read


class Support(Protocol):
    """What the probe found, as far as decisions need it."""

    landlock_abi: int
    seccomp: bool
    userns: bool
    userns_why: str
    fresh_proc: bool
    fresh_proc_why: str
    uid: int


class Git(NamedTuple):
    """Where the worktree's git data lies; all paths canonical.

    Attributes:
        kind: ``main``, ``linked`` or ``submodule``.
        git_dir: the worktree's own git directory.
        common_dir: objects, refs and config.
        modules: (submodule's name, its git directory).
    """

    kind: str
    git_dir: str
    common_dir: str
    modules: tuple[tuple[str, str], ...]


class Command(NamedTuple):
    """What is to be executed, found by the launcher.

    Attributes:
        name: the word the caller gave, argv[0].
        path: the absolute path it was found at, which is executed (its links matter: virtual environments and
            multi-call programmes look at the name they were started by).
        program: the canonical file behind it.
        cwd: directory to start in.
    """

    name: str
    path: str
    program: str
    cwd: str


class Translation(NamedTuple):
    """What a provider's strategy made of the worktree. All empty for a plain command."""

    provider: str = ""
    dialect: str = "native"
    environment: tuple[tuple[str, str], ...] = ()
    arguments: tuple[str, ...] = ()
    arguments_at: int = -1
    credentials: tuple[str, ...] = ()


def derive(
    context: WorktreeSandboxContext,
    git: Git,
    command: Command,
    rules: Rules,
    support: Support,
    host: Host,
    *,
    toolchains: Toolchains,
    provider: Translation | None = None,
    own: tuple[str, ...] = (),
) -> Plan:
    """Decides everything one launch may do.

    Args:
        context: the worktree, its submodules (granted or not) and exceptions.
        git: where its git data lies.
        command: what will be executed.
        rules: the merged configuration, command-line flags included.
        support: what the machine's probe found.
        host: answers about the disk and the environment.
        toolchains: what was found from PATH.
        provider: the provider's translation of the context.
        own: Paddock's own directories, which no jail may reach.

    Raises:
        Refusal: what is asked for cannot be held here; the text says what to change.
    """
    provider = provider or Translation()
    root = str(context.main_worktree_path)
    backend = choose_backend(rules.backend, support)
    mounts = backend == promises.NAMESPACES
    check_built(rules)
    warnings = list(rules.warnings)

    links: dict[str, str] = {}
    grants: list[Grant] = []

    def grant(path: str, access: str, source: str) -> str | None:
        """Adds a grant on the canonical form of `path`, when it exists."""
        canonical = path if path.startswith("@") else host.resolve(path)
        if canonical is not None:
            links.update(host.links(path) if canonical != path else ())
            grants.append((canonical, access, source))
        return canonical

    grants.append((root, WRITE, "worktree"))
    for path, source in rules.system_trees:
        grant(path, READ, source)
    for path, source in rules.system_files:
        grant(path, DATA, source)
    grants += _devices(rules, host, mounts=mounts)
    grants += [("@home", WRITE, "private home"), ("@tmp", WRITE, "private temp")]
    grants += _git_grants(git, rules.git, root, host)
    grants += toolchains.grants
    links.update(toolchains.links)
    for path, access, source in [(p, READ, s) for p, s in rules.read] + [(p, WRITE, s) for p, s in rules.write]:
        if grant(path, access, source) is None:
            raise Refusal(
                "grant-missing",
                f"{path} does not exist, so it cannot be granted",
                context=f"asked for by {source}",
                hint="make it first, or leave the grant out",
            )
    grants += _program_grants(command, grants, host)
    links.update(host.links(command.path))

    denied = {str(path): f"submodule {name} is not granted" for name, path in _ungranted(context)}
    denied |= {path: f"submodule {name} is not granted" for name, path in _ungranted_modules(context, git)}
    denied |= {str(path): "worktree context" for path in context.denied_paths}
    denied |= dict(toolchains.denied)
    for path, source in rules.deny:
        canonical = host.resolve(path)
        if canonical is None:
            warnings.append(f"{source} {path}: it does not exist, so there is nothing to deny yet")
        elif beneath(root, canonical):
            raise Refusal("deny-worktree", f"{path} holds the worktree itself", context=f"asked for by {source}")
        else:
            denied[canonical] = source
    for place in own:
        canonical = canonical_form(place, host)
        if beneath(root, canonical):
            raise Refusal("worktree-in-state", f"{root} lies inside Paddock's own directory {canonical}")
        denied[canonical] = "paddock's own"
    read_only = {str(path): "worktree context" for path in context.read_only_paths}
    if git.kind == "main" and rules.git == "readonly":
        read_only[git.git_dir] = "--git readonly"

    _check_own(grants, own, host)
    exceptions = dict.fromkeys(read_only, READ) | dict.fromkeys(denied, "")
    nested = _nested(context, denied)
    if not mounts:
        _check_writable_exceptions(grants, exceptions, context.freeze_root, denied | read_only, git)
        grants = list(expand(grants, exceptions, _listing(host)))
    grants += nested
    required = promises.required_rows(backend)
    if mounts and not support.fresh_proc:
        required = tuple(row for row in required if row != "visibility")
        warnings.append(f"names and command lines of processes outside can be seen: {support.fresh_proc_why}")
    if backend == promises.LANDLOCK:
        warnings.append("no user namespaces here: see `paddock doctor` for what is not held")
    if rules.git == "shared":
        warnings.append(
            f"--git shared opens {git.common_dir} for writing: the command can plant hooks and configuration that "
            "git will run outside the jail, and rewrite any branch"
        )

    return Plan(
        version=VERSION,
        worktree=root,
        worktree_id=context.main_worktree_id,
        cwd=command.cwd,
        provider=provider.provider,
        dialect=provider.dialect,
        program=command.path,
        command=command.name,
        arguments=provider.arguments,
        arguments_at=provider.arguments_at,
        grants=_merged(grants),
        links=tuple(sorted(links.items())),
        denied=tuple(sorted(denied.items())),
        read_only=tuple(sorted(read_only.items())),
        handoff=_handoff(root, rules, host, exceptions),
        net=rules.net,
        domains=tuple(rules.domains),
        env_pass=tuple(dict.fromkeys((*rules.env_pass, *toolchains.env_pass, *provider.credentials))),
        env_set=_environment(rules, provider, toolchains),
        limits=tuple(rules.limits),
        git=rules.git,
        backend=backend,
        required=required,
        warnings=tuple(warnings),
    )


def choose_backend(wanted: str, support: Support) -> str:
    """The backend that holds most on this machine, or a Refusal that says what is missing.

    Landlock alone needs ABI 6: before, nothing but a PID namespace keeps signals inside, and before ABI 3
    nothing but read-only mounts keeps truncate(2) inside.
    """
    if wanted == promises.BUBBLEWRAP:
        raise Refusal(
            "not-built-yet",
            "--backend bubblewrap is not built yet",
            hint="leave it out: Landlock holds more",
        )
    if not support.seccomp:
        raise Refusal("seccomp-missing", "this kernel has no seccomp filters", hint="CONFIG_SECCOMP_FILTER=y")
    if support.landlock_abi < 1:
        raise Refusal(
            "landlock-missing",
            "this kernel does not offer Landlock, and the bubblewrap backend is not built yet",
            hint="Linux 5.13 or newer, with landlock in the lsm= boot parameter (cat /sys/kernel/security/lsm)",
        )
    if support.userns:
        return promises.NAMESPACES
    if support.landlock_abi < 6:
        raise Refusal(
            "landlock-too-old",
            f"Landlock ABI {support.landlock_abi} without user namespaces cannot hold the jail",
            context=f"user namespaces: {support.userns_why}; signals stay inside only from ABI 6 (Linux 6.12) on",
            hint="allow unprivileged user namespaces, or use a newer kernel; `paddock doctor` says more",
        )
    return promises.LANDLOCK


def check_built(rules: Rules) -> None:
    """Refuses the modes that later work will bring, so that none of them silently does less."""
    if rules.net == "proxy":
        raise Refusal(
            "not-built-yet",
            "--net proxy is not built yet",
            context="egress by domain needs the proxy; without it every host would be reachable",
            hint="--net none (default), or --net open to allow every host",
        )
    if rules.git == "private":
        raise Refusal(
            "not-built-yet",
            "--git private is not built yet",
            hint="--git readonly (default), or --git shared, which lets the command write the repository",
        )


def _devices(rules: Rules, host: Host, *, mounts: bool) -> list[Grant]:
    """Devices and process information. With mounts /dev, /tmp and /proc are made anew inside the jail."""
    found = [device for device in rules.devices if host.kind(device[0]) not in (None, "link")]
    if not mounts:
        return found
    return [
        *(device for device in found if device[0] != "/dev/ptmx"),  # inside, a link into the private /dev/pts
        ("/dev", DATA, "private /dev"),
        ("/dev/console", "rwi", "private /dev"),
        ("/tmp", WRITE, "private temp"),
        ("/var/tmp", WRITE, "private temp"),
    ]


def _git_grants(git: Git, mode: str, root: str, host: Host) -> list[Grant]:
    """Grants outside the worktree that git itself needs.

    readonly: objects, refs and config can be read, so `git log`, `diff` and `status` work. shared: all of it,
    writable.
    """
    source = f"--git {mode}"
    if mode == "shared":
        return [] if git.kind == "main" else [(git.common_dir, WRITE, source), (git.git_dir, WRITE, source)]
    # As trees, not file by file: git replaces its files by renaming, and a rule or mount stays with the old one.
    paths = [git.common_dir, git.git_dir, *(path for _, path in git.modules)]
    for objects in [f"{path}/objects" for path in dict.fromkeys(paths)]:
        paths += _alternates(objects, host, 5)
    outside = dict.fromkeys(path for path in paths if not beneath(path, root))
    return [(path, DATA, source) for path in outside]


def _alternates(objects: str, host: Host, depth: int) -> list[str]:
    """Object stores that `objects` borrows from (gitrepository-layout(5), objects/info/alternates)."""
    content = host.read(f"{objects}/info/alternates") if depth else None
    found: list[str] = []
    for line in (content or b"").split(b"\n"):
        text = line.decode("utf-8", "surrogateescape")
        if text and not text.startswith("#"):
            path = host.resolve(text if text.startswith("/") else f"{objects}/{text}")
            if path is not None:
                found += [path, *_alternates(path, host, depth - 1)]
    return found


def _program_grants(command: Command, grants: Iterable[Grant], host: Host) -> list[Grant]:
    """The programme itself, and the package it belongs to, when nothing else grants them."""
    if any(beneath(command.program, path) and "x" in access for path, access, _ in grants):
        return []
    before, marker, _ = command.program.partition("/node_modules/")
    path = before + "/node_modules" if marker else command.program
    if host.resolve(path) != path:
        raise Refusal("command-moved", f"{command.program} changed while it was looked at", exit_code=EXIT_NOT_FOUND)
    return [(path, READ, "the command's own programme")]


def _nested(context: WorktreeSandboxContext, denied: dict[str, str]) -> list[Grant]:
    """Granted submodules inside ones that are not: the deepest root wins, but `--deny` beats both."""
    hidden = [str(path) for _, path in _ungranted(context)]
    result: list[Grant] = []
    for submodule in context.submodule_worktrees:
        path = str(submodule.worktree_path)
        above = [where for where in denied if beneath(path, where)]
        if above and all(where in hidden for where in above):
            result.append((path, WRITE, promises.NESTED))
    return result


def _ungranted(context: WorktreeSandboxContext) -> list[tuple[str, str]]:
    return [(sub.submodule_name, str(sub.worktree_path)) for sub in context.ungranted_submodules]


def _ungranted_modules(context: WorktreeSandboxContext, git: Git) -> list[tuple[str, str]]:
    names = {sub.submodule_name for sub in context.ungranted_submodules}
    return [(name, path) for name, path in git.modules if name in names]


def _check_own(grants: Iterable[Grant], own: tuple[str, ...], host: Host) -> None:
    """No jail may write Paddock's own directories: who writes there writes the rules."""
    for place in own:
        canonical = canonical_form(place, host)
        for path, access, source in grants:
            if "w" in access and not path.startswith("@") and beneath(canonical, path):
                raise Refusal(
                    "grant-covers-state",
                    f"{path} holds Paddock's own files, so it cannot be writable in a jail",
                    context=f"{canonical} lies in it; the grant comes from: {source}",
                    hint="work in a worktree that does not hold your home directory, or move "
                    "XDG_CONFIG_HOME, XDG_STATE_HOME and XDG_CACHE_HOME out of it",
                )


def canonical_form(path: str, host: Host) -> str:
    """Canonical form of a path that need not exist: the part that exists is resolved."""
    head, tail = path, ""
    while (found := host.resolve(head)) is None and head not in ("/", ""):
        head, _, name = head.rpartition("/")
        head, tail = head or "/", f"/{name}{tail}"
    return (found or "").rstrip("/") + tail or "/"


def _check_writable_exceptions(
    grants: Iterable[Grant], exceptions: dict[str, str], freeze_root: bool, sources: dict[str, str], git: Git
) -> None:
    """Without mounts, an exception inside a writable tree needs the user's word that directories freeze."""
    if freeze_root:
        return
    for path, access, _ in grants:
        for where in exceptions:
            if "w" not in access or path.startswith("@") or where == path or not beneath(where, path):
                continue
            main = where == git.git_dir
            raise Refusal(
                "exception-in-writable-tree",
                f"{where} cannot be kept from a jail that may write {path}",
                context=f"{sources[where]}; hiding part of a writable tree needs a mount namespace, and user "
                "namespaces are not available here",
                hint=("make a linked worktree: git worktree add ../agent-1 -b agent-1\n" if main else "")
                + f"or --freeze-root: {path} and the directories down to it get no new entries",
            )


def _listing(host: Host) -> Callable[[str], tuple[tuple[str, bool], ...]]:
    def listing(path: str) -> tuple[tuple[str, bool], ...]:
        prefix = "" if path == "/" else path
        return tuple((name, host.kind(f"{prefix}/{name}") == "link") for name in host.listing(path) or ())

    return listing


def _handoff(root: str, rules: Rules, host: Host, exceptions: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """Existing hand-off files in the worktree: (canonical path, mode). Names are relative to the root."""
    found: dict[str, str] = {}
    for mode, names in (("report", rules.handoff_report), ("protect", rules.handoff_protect)):
        for name in names:
            path = f"{root}/{name.rstrip('/')}"
            if host.kind(path) in ("file", "dir") and host.resolve(path) == path and path not in exceptions:
                found[path] = mode
    return tuple(sorted(found.items()))


def _environment(rules: Rules, provider: Translation, toolchains: Toolchains) -> tuple[tuple[str, str], ...]:
    """Later entries win: what the user sets beats the provider's, which beats ours."""
    values = {"HOME": "${home}", "TMPDIR": "${tmp}", "TMP": "${tmp}", "TEMP": "${tmp}"}
    if rules.git == "readonly":
        values["GIT_OPTIONAL_LOCKS"] = "0"  # or `git status` complains that it cannot refresh the index
    if toolchains.path:
        values["PATH"] = ":".join(toolchains.path)  # without entries that lead nowhere in the jail
    return tuple((values | dict(toolchains.env_set) | dict(provider.environment) | dict(rules.env_set)).items())


def _merged(grants: Iterable[Grant]) -> tuple[Grant, ...]:
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
        while parent not in ("", "/"):
            parent = parent.rpartition("/")[0] or "/"
            if parent not in _PRIVATE and parent in merged and set(access) <= set(merged[parent][0]):
                return True
        return False

    return tuple((path, access, source) for path, (access, source) in merged.items() if not covered(path, access))
