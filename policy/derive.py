"""From what is wanted to what is allowed: the one place where a Plan is decided. The page to read first.

Pure: what must be known of the disk is asked of `host`, whose answers the caller chose to give. Nothing here runs,
opens or binds anything, and each grant carries its source.

Order of the decisions: backend, network, git, grants, exceptions, environment, what must hold.
"""

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping

from policy import bring, egress_rules, ingredients, keys, promises
from policy.config.settings import Rules
from policy.errors import Refusal, in_rows
from policy.ingredients import (
    DATA,
    PRIVATE,
    READ,
    WRITE,
    asked_for,
    borrowed,
    check_git_grants,
    check_publish,
    closed_logins,
    devices,
    environment,
    git_grants,
    handoff,
    merged,
    other_names,
    program_grants,
    socket_warning,
)
from policy.launch import Boundaries, Command, Git, Host, Support, Trail, Translation, led_by, left_by, linked_by
from policy.plan import VERSION, Bind, Grant, Plan, beneath
from policy.toolchains import Toolchains

NAME_FILES = ("/etc/hosts", "/etc/resolv.conf")
"""Where hosts can be reached by name, a jail has its own of these: the machine's lead to what it cannot reach."""

# Deny inside allow: Landlock rules only add, so a tree with exceptions is granted as its siblings.
#
# Pure; the directory listings come in as a function.


Listing = Callable[[str], tuple[tuple[str, bool], ...]]
"""Canonical directory -> its entries as (name, whether it is a symbolic link); () when it cannot be listed."""


def listing_of(host: Host) -> Listing:
    """The listing of a machine's directories."""

    def listing(path: str) -> tuple[tuple[str, bool], ...]:
        prefix = "" if path == "/" else path
        return tuple((name, host.kind(f"{prefix}/{name}") == "link") for name in host.listing(path) or ())

    return listing


def meet_grants(first: str, second: str) -> str:
    """The access that both allow, in the order of `first`."""
    return "".join(letter for letter in first if letter in second)


def expand_grants(grants: Iterable[Grant], exceptions: Mapping[str, str], listing: Listing) -> tuple[Grant, ...]:
    """Rewrites `grants` so that no path named in `exceptions` gets more than the exception leaves.

    An ancestor of an exception keeps the access that is common to everything below it, because a Landlock rule
    reaches the whole subtree: beside a denied path the parent cannot even be listed; beside a read-only one it
    can be listed and read, but no entry can be made in it.
    """
    result: list[Grant] = []
    for path, access, source in grants:
        if path.startswith("@"):
            result.append((path, access, source))
            continue
        for ceiling_path, ceiling in exceptions.items():
            if beneath(path, ceiling_path):
                access = meet_grants(access, ceiling)
        result.extend(_expanded(path, access, source, exceptions, listing))
    return tuple(result)


def _expanded(path: str, access: str, source: str, exceptions: Mapping[str, str], listing: Listing) -> Iterator[Grant]:
    if not access:
        return
    inner = {where: left for where, left in exceptions.items() if where != path and beneath(where, path)}
    common = access
    for left in inner.values():
        common = meet_grants(common, left)
    if common == access:
        yield (path, access, source)
        return
    if common:
        yield (path, common, source)
    prefix = "" if path == "/" else path
    for name, is_link in listing(path):
        if is_link:
            continue  # the rule would land on its target; the target has a grant of its own or none
        child = f"{prefix}/{name}"
        yield from _expanded(child, meet_grants(access, inner.get(child, access)), source, inner, listing)


def derive(
    boundaries: Boundaries,
    git: Git,
    command: Command,
    rules: Rules,
    support: Support,
    host: Host,
    *,
    toolchains: Toolchains,
    provider: Translation | None = None,
    own: tuple[str, ...] = (),
    written: tuple[str, ...] = (),
    secrets: bring.Secrets = bring.NOTHING_SECRET,
) -> Plan:
    """Decides everything one launch may do.

    Args:
        boundaries: the worktree and its submodules, granted or not.
        git: where its git data lies.
        command: what will be executed.
        rules: the merged configuration, command-line flags included.
        support: what the machine's probe found.
        host: answers about the disk and the environment.
        toolchains: what was found from PATH.
        provider: what the provider is told.
        own: Paddock's own directories, which no jail may reach.
        written: trees that other jails of this user can write or once could: links in them grant nothing.
        secrets: what is never brought.

    Raises:
        Refusal: what is asked for cannot be held here; the text says what to change.
    """
    provider = provider or Translation()
    root = boundaries.root
    backend = choose_backend(rules.backend, support)
    mounts = promises.has_mounts(backend)
    hidden = frozenset(name for name, _ in boundaries.ungranted)
    mode, doubts = ingredients.choose(rules, git, host, mounts=mounts, root=root, hidden=hidden)
    unpopulated, left_open = ingredients.unpopulated(git, mode, mounts=mounts)
    rules = rules._replace(git=mode, net=network_mode(rules, provider))
    check_publish(rules, mounts=mounts)
    check_git_grants(rules, git, host)
    warnings = [*rules.warnings, *doubts]

    links: dict[str, str] = {}
    grants: list[Grant] = []
    asked: list[Grant] = []
    crossed: list[tuple[str, str, str]] = []

    def grant(path: str, access: str, source: str) -> Trail:
        """Adds a grant on the canonical form of `path`, when it exists. What else is decided goes by the trail."""
        trail = host.trail(path)
        if trail.canonical is not None:
            links.update(trail.links)
            grants.append((trail.canonical, access, source))
        return trail

    grants.append((root, WRITE, "worktree"))
    by_name = mounts and rules.net == "proxy"
    for path, source in () if rules.root else rules.system_trees:
        grant(path, READ, source)
    for path, source in _of_the_machine(rules, host) if rules.root else rules.system_files:
        if not (by_name and path in NAME_FILES):
            grant(path, DATA, source)
    grants += devices(rules, host, mounts=mounts)
    grants.append(("@home", WRITE, promises.PRIVATE_HOME))
    if not mounts:  # else it is the private /tmp
        grants.append(("@tmp", WRITE, promises.PRIVATE_TEMP))
    binds: list[Bind] = []
    covered: dict[str, str] = {}
    if mode == "private":
        shown, binds, covered = ingredients.shown(git, root, hidden, mounts=mounts)
        grants += shown
    else:
        grants += git_grants(git, mode, root)
    grants += toolchains.grants
    links.update(toolchains.links)
    for path, access, source in [(p, READ, s) for p, s in rules.read] + [(p, WRITE, s) for p, s in rules.write]:
        trail = grant(path, access, source)
        if trail.canonical is None and not source.startswith("--") and host.kind(trail.reached) in (None, "link"):
            # Configuration is written for many worktrees and machines; what a flag names is meant now.
            warnings.append(f"{source} {path}: it does not exist, so there is nothing to grant")
            continue
        trees = (*written, *ingredients.checkouts_around(trail, host))
        granted = asked_for(path, trail, source, root, host, trees)
        if mounts and beneath(granted, "/dev/shm"):
            warnings.append(f"{source} {path}: a jail has its own /dev/shm, which shows nothing of the machine's")
            del grants[-1]
            continue
        asked.append((granted, access, source))
        if linked_by((root, *written), trail):
            crossed.append((path, granted, source))
        if mounts and granted in PRIVATE:
            warnings.append(f"{source} {path}: a jail has its own {granted}; name what is needed below it")
        if host.kind(granted) == "socket":
            warnings.append(socket_warning(granted, source))
    narrowed, ignored = ingredients.narrowed(root, asked)
    if narrowed and crossed:
        raise ingredients.behind_link(*crossed[0])
    warnings += ignored
    grants = [ingredients.held(grant, narrowed) for grant in grants]
    if not rules.root:
        grants += program_grants(command, grants, host, root, written)
    if provider.program is not None and not rules.root:
        trail = host.trail(provider.program.path)
        if not led_by(root, provider.program.path, trail) and left_by(written, trail) is None:
            grants += program_grants(provider.program, grants, host, root, written)
            links.update(trail.links)
    if not rules.root:
        links.update(host.trail(command.path).links)

    denied = {path: not_granted(name) for name, path in boundaries.ungranted} | covered
    denied |= {path: not_granted(name) for name, path in _ungranted_modules(boundaries, git)}
    denied |= dict(toolchains.denied)
    for path, source in rules.deny:
        canonical = host.resolve(path)
        if canonical is None:
            warnings.append(f"{source} {path}: it does not exist, so there is nothing to deny")
        elif beneath(root, canonical):
            raise Refusal("deny-worktree", f"{path} contains the worktree itself", context=f"requested by {source}")
        else:
            denied[canonical] = source
    for place in own:
        canonical = canonical_form(place, host)
        if beneath(root, canonical):
            raise Refusal("worktree-in-state", f"{root} is inside Paddock's own directory {canonical}")
        denied[canonical] = "paddock's own"
    own_things = bring.decide(
        rules.bring, provider.bring, secrets=secrets, root=root, host=host, written=written, denied=denied
    )
    grants += own_things.grants
    warnings += own_things.warnings
    read_only: dict[str, str] = {}
    if git.kind == "main" and rules.git == "readonly":
        read_only[git.git_dir] = "--git readonly"
    if mode != "shared" and (mounts or boundaries.freeze_root):
        read_only |= dict.fromkeys(git.untouched, promises.OTHER_GIT)
    if mounts:
        # Whoever replaces a pointer decides which configuration the user's own git obeys there next.
        for where in (root, *(path for _, path in boundaries.granted)):
            if host.kind(f"{where}/.git") == "file":
                read_only[f"{where}/.git"] = "git pointer"
        # Of other worktrees in this one, and of submodules that carry their git directory inside, the same is true.
        read_only |= dict.fromkeys(git.pointers, "git pointer of another worktree")
        if mode != "shared":
            read_only |= dict.fromkeys(git.inside, "git directory inside the submodule")
            read_only |= dict.fromkeys(unpopulated, promises.UNPOPULATED)

    _check_own(grants, own, host)
    closed = {path: source for path, access, source in narrowed if access == "r"}
    exceptions = dict.fromkeys((*read_only, *closed), READ) | dict.fromkeys(denied, "")
    nested = _nested(boundaries, denied, git, mode, unpopulated)
    named = [rule for rule, _ in (*rules.domains, *provider.domains)] if by_name else []
    taken: list[int] = []
    if by_name:
        taken = [int(where.rpartition(":")[2]) for where, _ in rules.publish]  # by the jail's own servers
        grants += [(path, DATA, "hosts by name") for path in NAME_FILES]
        binds += [(f"@run/{posixpath.basename(path)}", path, DATA) for path in NAME_FILES]
        if rule := egress_rules.takes_all_names(named):
            warnings.append(
                f"the rule {rule} takes the addresses that hosts get in a jail: they are reached by the proxy only, "
                "which --proxy-env yes names to clients"
            )
    binds = ingredients.reachable(binds, denied, [inner for inner, _, _ in nested])
    nested += [(path, WRITE, source) for path, access, source in narrowed if access == "w"]
    if not mounts:
        _check_writable_exceptions(grants, exceptions, boundaries.freeze_root, closed | denied | read_only, git)
        grants = list(expand_grants(grants, exceptions, listing_of(host)))
        # What is denied above a granted submodule does not count in it, nor what is read-only above a writable path.
        nested = [
            expanded
            for inner in nested
            for expanded in expand_grants(
                [inner],
                {path: left for path, left in exceptions.items() if path != inner[0] and beneath(path, inner[0])},
                listing_of(host),
            )
        ]
    required = promises.required_rows(backend)
    if backend == promises.NAMESPACES and not support.fresh_proc:
        required = tuple(row for row in required if row != "visibility")
        warnings.append(f"names and command lines of processes outside are visible: {support.fresh_proc_why}")
    if backend == promises.GUARD:
        warnings.append("no user namespaces here: see `paddock doctor` for what is not held")
    if backend == promises.BUBBLEWRAP and rules.net == "open":
        required = tuple(row for row in required if row != "unix-sockets")
        warnings.append(
            "abstract sockets of this machine can be reached: with --net open, only Landlock could deny them"
        )
    if mode != "private":
        warnings += borrowed(git, host)
    handed = handoff(root, rules, host, exceptions, git)
    warnings += other_names((*denied, *(path for path, kind in handed if kind == "protect" and mounts)), host)
    if mode == "private" and git.inside:
        warnings.append(
            f"{git.inside[0]} is read-only: the submodule contains its own git directory, which git outside of the "
            "jail would obey; `git submodule absorbgitdirs` moves it to its usual place"
        )
    if rules.git == "shared":
        warnings.append(
            f"--git shared makes {git.common_dir} writable: the command can plant hooks and configuration that "
            "git will run outside the jail, and rewrite any branch"
        )

    ask = rules.ask if rules.net == "proxy" and (provider.provider or rules.ask == "yes") else "no"
    kept = (*provider.keys, *map(tuple, rules.inject)) if rules.net == "proxy" else ()
    for key in keys.made(kept):
        if key.in_clear:
            warnings.append(f"the key in {key.variable} goes to {key.in_clear} in clear: {key.url} is not https")

    return Plan(
        version=VERSION,
        worktree=root,
        worktree_id=boundaries.worktree_id,
        cwd=command.cwd,
        provider=provider.provider,
        provider_source=provider.source,
        dialect=provider.dialect,
        program=command.path,
        command=command.name,
        arguments=provider.arguments,
        arguments_unless=provider.arguments_unless,
        arguments_at=provider.arguments_at,
        grants=(*merged(grants), *nested),  # not merged: a grant above covers them by name, but is hidden there
        links=tuple(sorted(links.items())),
        denied=tuple(sorted(denied.items())),
        read_only=tuple(sorted(read_only.items())),
        narrowed=narrowed,
        binds=tuple(binds),
        brought=own_things.brought,
        handoff=handed,
        handoff_patterns=rules.handoff_patterns,
        net=rules.net,
        domains=(*rules.domains, *provider.domains),
        domains_denied=rules.domains_denied,
        internal=rules.internal,
        files=rules.files,
        authorities=rules.authorities,
        named_ports=egress_rules.named_ports(named, taken, asked=by_name and ask != "no"),
        routes=egress_rules.routes(named) if by_name else (),
        ask=ask,
        notify=rules.notify if ask != "no" else "",
        keys=kept,
        server_name=rules.server_name,
        publish=rules.publish if rules.net == "proxy" else (),
        reach=tuple(dict((*provider.reach, *rules.reach)).items()) if rules.net == "proxy" else (),
        env_pass=tuple(dict.fromkeys((*rules.env_pass, *toolchains.env_pass, *provider.credentials))),
        env_set=environment(rules, provider, toolchains, by_name=by_name),
        limits=tuple(limit for limit in rules.limits if limit[0] not in keys.BUDGETS),
        budget=_budget(rules, provider),
        bounds=rules.bounds,
        git=mode,
        review=rules.cow or ingredients.REVIEW in closed.values(),
        cow=rules.cow,
        root=rules.root,
        follow=rules.branch_policy == "follow",
        sign=rules.sign and mode == "private",
        logins=closed_logins(provider.logins, grants),
        repositories=git.repositories if mode == "private" else (),
        nested=git.nested if mode != "shared" else (),
        left_open=left_open,
        backend=backend,
        required=required,
        warnings=tuple(warnings),
    )


def choose_backend(wanted: str, support: Support) -> str:
    """The backend that holds most on this machine, or a Refusal that says what is missing.

    Without namespaces Landlock needs ABI 6: before, nothing but a PID namespace keeps signals inside, and before ABI 3
    nothing but read-only mounts keeps truncate(2) inside. What it does not cover is the guard's.
    """
    if not support.seccomp:
        raise Refusal("seccomp-missing", "this kernel has no seccomp filters", hint="CONFIG_SECCOMP_FILTER=y")
    if may_need_bubblewrap(wanted, support) and support.bubblewrap:
        return promises.BUBBLEWRAP
    if wanted == promises.BUBBLEWRAP:
        raise Refusal(
            "bubblewrap-missing",
            "bubblewrap does not work here",
            context=support.bubblewrap_why,
            hint=in_rows(
                "install the bubblewrap package and allow unprivileged user namespaces; see `paddock doctor`",
                "or leave --backend out: Landlock needs neither",
            ),
        )
    if support.landlock_abi < 1:
        raise Refusal(
            "landlock-missing",
            "this kernel does not offer Landlock"
            + (", and bubblewrap does not work here either" if wanted == "auto" else ""),
            context=f"bubblewrap: {support.bubblewrap_why}" if wanted == "auto" else "",
            hint=in_rows(
                "Linux 5.13 or newer, with landlock in the lsm= boot parameter (cat /sys/kernel/security/lsm)",
                "or install the bubblewrap package and allow unprivileged user namespaces",
            ),
        )
    if support.userns:
        return promises.NAMESPACES
    if support.landlock_abi < 6:
        raise Refusal(
            "landlock-too-old",
            f"Landlock ABI {support.landlock_abi} without user namespaces cannot enforce the jail",
            context=f"user namespaces: {support.userns_why}; signals are confined only from ABI 6 (Linux 6.12) on",
            hint="allow unprivileged user namespaces, or use a newer kernel; see `paddock doctor`",
        )
    if not support.guard:
        raise Refusal(
            "guard-missing",
            "without user namespaces the jail needs the guard, which cannot work here",
            context=in_rows(f"user namespaces: {support.userns_why}", f"guard: {support.guard_why}"),
            hint=in_rows(
                "inside a jail, leave out `paddock run --`: everything started there is confined already",
                "in a container, start it with --security-opt seccomp=unconfined, or with --cap-add SYS_PTRACE",
                "elsewhere, allow unprivileged user namespaces, or sysctl kernel.yama.ptrace_scope=1",
            ),
        )
    return promises.GUARD


def may_need_bubblewrap(wanted: str, support: Support) -> bool:
    """Whether `choose_backend` will ask for bubblewrap, which it costs some time to try."""
    return wanted == promises.BUBBLEWRAP or (wanted == "auto" and support.landlock_abi < 1)


def _budget(rules: Rules, provider: Translation) -> tuple[tuple[str, int], ...]:
    """What keys and logins that stay outside may be used for. Refusals: ``budget-unheld``, without any.

    Of a command that is no agent, where its options ask for the budget: a configuration's is for those who have keys.
    """
    wanted = tuple(limit for limit in rules.limits if limit[0] in keys.BUDGETS)
    held = provider.keys or any(not key.ambient for key in rules.inject) or any(login[-1] for login in provider.logins)
    if wanted and (provider.provider or rules.budget_asked) and not (rules.net == "proxy" and held):
        raise keys.unheld(provider.provider, wanted[0][0])
    return wanted


def network_mode(rules: Rules, provider: Translation) -> str:
    """none, proxy or open. Left to itself: the proxy for a known provider, or where anything is allowed by name."""
    if rules.net != "auto":
        return rules.net
    wanted = provider.provider or rules.domains or rules.reach or rules.publish or rules.inject or rules.ask == "yes"
    return "proxy" if wanted else "none"


def _nested(boundaries: Boundaries, denied: dict[str, str], git: Git, mode: str, empty: tuple[str, ...]) -> list[Grant]:
    """Granted submodules inside ones that are not: the deepest root wins, but `--deny` beats both.

    The same for their git directories, which git puts into those of the outer ones; a private one lies elsewhere.
    """
    hidden = {path: not_granted(name) for name, path in (*boundaries.ungranted, *_ungranted_modules(boundaries, git))}
    granted = {name for name, _ in boundaries.granted}
    places = [(path, READ if path in empty else WRITE) for _, path in boundaries.granted]
    if mode != "private":
        access = WRITE if mode == "shared" else DATA
        places += [(path, access) for name, path in git.modules if name in granted]
    result: list[Grant] = []
    for path, access in places:
        above = [where for where in denied if beneath(path, where)]
        if above and all(denied[where] == hidden.get(where) for where in above):
            result.append((path, access, promises.NESTED))
    return result


def not_granted(name: str) -> str:
    """The source of a submodule's denial: it tells apart what `--deny` closed at the same path."""
    return f"submodule {name} is not granted"


def _ungranted_modules(boundaries: Boundaries, git: Git) -> list[tuple[str, str]]:
    names = {name for name, _ in boundaries.ungranted}
    return [(name, path) for name, path in git.modules if name in names]


def _of_the_machine(rules: Rules, host: Host) -> list[tuple[str, str]]:
    """What a jail with another root has of the machine's files: what the kernel says and what the network takes."""
    names = NAME_FILES if rules.net == "open" else ()
    found = [(path, source) for path, source in rules.system_files if path.startswith(("/proc", "/sys/"))]
    found += [(path, source) for path, source in rules.system_files if path in names]
    authorities = next((path for path in keys.BUNDLES if host.resolve(path)), None) if rules.net != "none" else None
    return [*found, *([(authorities, "the machine's authorities")] if authorities else [])]


def _check_own(grants: Iterable[Grant], own: tuple[str, ...], host: Host) -> None:
    """No jail may write Paddock's own directories: who writes there writes the rules."""
    for place in own:
        canonical = canonical_form(place, host)
        for path, access, source in grants:
            if source == promises.OWN_TMP:
                continue  # the jail's own: what lies there outside is not in it
            if "w" in access and not path.startswith("@") and beneath(canonical, path):
                raise Refusal(
                    "grant-covers-state",
                    f"{path} contains Paddock's own files, so it cannot be writable in a jail",
                    context=f"{canonical} is in it; the grant comes from: {source}",
                    hint="work in a worktree that does not contain your home directory or configuration "
                    "(paddock worktree add), or move XDG_CONFIG_HOME, XDG_STATE_HOME and XDG_CACHE_HOME out of it",
                )


def canonical_form(path: str, host: Host) -> str:
    """Canonical form of an absolute path that need not exist: the part that exists is resolved, dangling links too."""
    here = path
    for _ in range(40):  # links, as in the kernel
        head, tail = here, ""
        while (found := host.resolve(head)) is None and host.kind(head) != "link":
            head, _, name = head.rpartition("/")
            head, tail = head or "/", f"/{name}{tail}"
        if found is not None:
            # What does not exist holds no link either, so `..` in it can be taken literally.
            return posixpath.normpath(f"{found.rstrip('/')}{tail}" or "/")
        link, text = host.trail(head).links[-1]
        here = posixpath.join(posixpath.dirname(link), text) + tail
    return posixpath.normpath(path)  # a loop: it leads nowhere


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
                f"{where} cannot be denied to a jail that may write {path}",
                context=f"{sources[where]}; hiding part of a writable tree needs a mount namespace, and user "
                "namespaces are not available here",
                hint=in_rows(
                    "use a separate worktree: paddock run --new TICKET -- COMMAND" if main else "",
                    f"{'or ' if main else ''}--freeze-root: {path} and the directories down to it get no new entries",
                ),
            )
