"""Making a Plan: gather, derive, keep. The slow road; a warm launch never imports this module."""

import os
import sys
from typing import TYPE_CHECKING, NamedTuple

from launcher.jail import probe, seccomp
from launcher.safefs import guarded_files
from launcher.safefs.remove import remove_tree
from launcher.session import cache, configuration, messages, nested, obeyed, recognition, repositories, state
from launcher.session.machine import Machine
from launcher.session.places import SOCKETS, Places, made, make_private
from launcher.session.state import own_home
from launcher.session.trust_store import Trust
from launcher.vcs import checkout, worktree_words, written
from launcher.vcs.private import planted
from policy import derive, egress_rules, ingredients, promises, toolchains, verdict
from policy.bring import NOTHING_SECRET, Secrets
from policy.config import layer
from policy.config.layer import Kind
from policy.config.settings import Rules, Settings, rules_of
from policy.errors import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, Refusal, printable, unusable
from policy.handoff import PROTECT, REPORT
from policy.launch import Boundaries, Command, Git, Host, worktree_id
from policy.pasted import cited, quoted
from policy.plan import Plan, beneath, held_by
from policy.providers import registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from policy.sandbox_context import WorktreeSandboxContext

# A worktree's private home, made once: the user's name for git, and what toolchains must find there.
#
# It is filled under another name and then renamed, because from its first session on the home is the agent's to
# write: a link planted in it would turn a later write of ours into a write anywhere.

MOST_BYTES = 1 << 20


def make_private_home(home: str, git_dir: str, seeds: tuple[tuple[str, str], ...], worktree: str) -> None:
    """Makes `home` unless it is there.

    Args:
        git_dir: of the repository, whose own configuration may set another identity.
        seeds: (path relative to the home, canonical source) of plain files to copy.

    Refusals: it cannot be written.
    """
    if os.path.lexists(home):
        own_home(home)
        return
    parent = made(os.path.dirname(home))
    fresh = f"{parent}/.new-{os.urandom(5).hex()}"
    try:
        make_private(fresh)
        _write(f"{fresh}/.gitconfig", _git_identity(git_dir, worktree))
        for relative, source in seeds:
            _copy(source, f"{fresh}/{relative}")
        try:
            os.rename(fresh, home)
        except OSError:
            if not os.path.isdir(home):  # else another launch was quicker
                raise
    except OSError as error:
        raise unusable(home, error) from None
    finally:
        remove_tree(fresh)


def _write(path: str, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600)  # whatever the umask
        file.write(content)


def _copy(source: str, target: str) -> None:
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return  # gone since it was found: the tool then makes its own
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) <= MOST_BYTES:
        make_private(os.path.dirname(target))
        _write(target, content)


def _git_identity(git_dir: str, worktree: str) -> bytes:
    """A git configuration with user.name and user.email, and nothing else of the user's.

    Aliases, credential helpers and hooks paths run programmes, and remotes carry tokens.
    """
    from launcher.vcs.private import copied_settings

    try:
        configured = copied_settings.effective(git_dir, worktree)
    except Refusal:
        return b""  # git outside cannot tell either
    found = [(key, configured.last(key)) for key in ("user.name", "user.email")]
    return copied_settings.text(
        [(key, value) for key, value in found if value and "\n" not in value and len(value) <= 1000]
    )


# Finding the file that a command's name means, as execvp(3) would, without trusting relative PATH entries.


_KINDS = {"dir": "directory", "char": "device", "block": "device"}


def find_command(name: str, cwd: str, directory: str, host: Host) -> Command:
    """The command called `name`.

    Args:
        name: as the caller wrote it; with a slash it is a path, relative to `cwd`.
        cwd: the caller's directory.
        directory: where the command will start.
        host: answers; every place that was looked at becomes an input of the Plan.

    Refusals: command-not-found (127), command-not-executable (126).
    """
    if "\0" in name or not name:
        raise Refusal("command-not-found", "the command's name is empty or contains a NUL", exit_code=EXIT_NOT_FOUND)
    candidates = _candidates(name, cwd, host)
    seen = ""
    for path in candidates:
        canonical = host.resolve(path)
        if canonical is None or (host.kind(canonical) == "dir" and "/" not in name):
            continue
        if host.executable(path):
            return Command(name, path, canonical, directory)
        seen = seen or path
    if seen:
        kind = host.kind(host.resolve(seen) or seen) or "name that has disappeared"
        file = kind == "file"
        raise Refusal(
            "command-not-executable",
            f"{seen} cannot be executed",
            context="it has no execute permission for this user" if file else f"it is a {_KINDS.get(kind, kind)}",
            hint=f"chmod +x {quoted(seen)}, or start it through its interpreter" if file else "",
            exit_code=EXIT_NOT_EXECUTABLE,
        )
    raise Refusal(
        "command-not-found",
        f"{name}: command not found",
        context="looked in: " + (":".join(os.path.dirname(path) for path in candidates) or "nowhere, PATH is empty"),
        hint="check the spelling and PATH",
        exit_code=EXIT_NOT_FOUND,
    )


def _candidates(name: str, cwd: str, host: Host) -> list[str]:
    """Where a command is looked for."""
    if "/" in name:
        return [_named(name, cwd)]
    # A relative or empty entry means the current directory: that is where the agent writes.
    entries = (host.env("PATH") or os.defpath).split(":")
    return [f"{entry.rstrip('/')}/{name}" for entry in entries if entry.startswith("/")]


def _named(name: str, cwd: str) -> str:
    """A path as it is where `..` may go through a link; a slash at the end means a directory and nothing else."""
    path = os.path.join(cwd, name)
    return path if ".." in name or name.endswith("/") else os.path.normpath(path)


Options = dict[str, str | list[str] | bool]

_SETTINGS = (
    "/proc/sys/kernel/random/boot_id",
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
    "/proc/sys/kernel/unprivileged_userns_clone",
    "/proc/sys/user/max_user_namespaces",
    "/proc/sys/kernel/yama/ptrace_scope",
)
_PLACES = ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR")


class Planned(NamedTuple):
    """A Plan with everything it was made from, for `explain` and for tests."""

    plan: Plan
    boundaries: Boundaries
    support: probe.Support
    machine: Machine
    git_dir: str
    seeds: tuple[tuple[str, str], ...]
    trees: tuple[str, ...]
    """Canonical: what is in them, or reached by a link there, may be an agent's word."""


def make(options: Options, command: list[str], cwd: str, places: Places) -> Planned:
    """Gathers what one launch depends on, and derives its Plan. Nothing is started, nothing is kept.

    Args:
        options: as `launcher.cli.parse` gives them.
    """
    machine = Machine(os.environ)
    for name in (*cache.SWITCHES, *_PLACES):
        machine.env(name)
    for path in _SETTINGS:
        machine.depends_on_setting(path)
    for own in (places.state, places.cache):
        made(own)
    places.make_runtimes()

    for line in planted.sweep(places.state):
        messages.say(f"paddock: {printable(line)}")
    start = _text(options, "--worktree")
    place = os.path.join(cwd, start) if start else cwd
    if "--directory" in options:
        found = _plain_directory(place, machine)
    else:
        found = checkout.find(place, machine, exact=start is not None, hint=checkout.WITH_OPTION)
    machine.depends_on_content(f"{places.state}/{written.VOUCHES}")  # before the record is read
    recorded = (*written.trees(places.state, place), places.state)
    if start:
        worktree_words.refuse_link(start, machine.trail(place), found.root)
    here = machine.resolve(cwd) or cwd
    directory = here if beneath(here, found.root) else found.root
    config_file = _text(options, "--config")
    if config_file:
        config_file = os.path.join(cwd, config_file)
    # Recorded before they are read: a file that changes in between makes the plan stale, not wrong.
    for path in configuration.sources(found.root, config_file, os.environ):
        machine.depends_on_content(path)
    flags_layer = layer.layer(without_values(options), cwd=cwd, home=places.home)
    settings, _ = configuration.load(found.root, config_file, flags_layer, os.environ, trust=Trust(places.state))
    rules = rules_of(settings, found.root, machine)
    checkouts = repositories.worktrees(found.root, found.common_dir, machine)
    rules = _with_obeyed(rules, settings, found, checkouts, machine)
    image = _text(options, "--root")
    named = (*(path for path, _ in (*rules.write, *rules.read)), *(machine.env("PATH") or os.defpath).split(":"))
    named = (place, *named, *(_candidates(command[0], cwd, machine) if image is None else [os.path.join(cwd, image)]))
    recorded = (*written.trees(places.state, *(path for path in named if path.startswith("/"))), places.state)
    program = (
        find_command(command[0], cwd, directory, machine) if image is None
        else _command_inside(command[0], cwd, directory)
    )  # fmt: skip
    others = tuple(dict.fromkeys((*recorded, *checkouts)))
    opened = filter(None, (machine.resolve(path) for path, _ in rules.write))
    trees = (found.root, *others, places.state, *opened)
    rules = _with_mirrors(rules, settings, options, trees, machine, found.root)
    support = probe.probe()
    if found.kind == "directory":
        rules = rules._replace(git="readonly")
    if derive.may_need_bubblewrap(rules.backend, support):
        trees = (found.root, found.common_dir or found.root, places.state, *others, *(path for path, _ in rules.write))
        _try_bubblewrap(support, machine, trees)
    if "--review" in options or "--cow" in options:
        rules = _for_nothing(rules, found, support, machine, cow="--cow" in options, review="--review" in options)
    if image is not None:
        rules = with_image(rules, os.path.join(cwd, image), found, recorded, support, places, machine)
    boundaries = boundaries_of(found, [name.value for name in settings.submodules], settings.freeze_root.value)
    table = toolchains.load_table()
    tools = toolchains.NOTHING if image is not None else toolchains.discover(
        machine,
        machine.env("PATH") or os.defpath,
        table,
        worktree=found.root,
        programs=(program.path,),
        written=others,
    )  # fmt: skip
    chosen = recognition.choose(settings, command, directory, places, machine)
    provider = recognition.translated(chosen, settings, boundaries, command, machine)
    git = repositories.described(
        found,
        machine,
        _agents(places, machine),
        created=not support.userns and _created(found, places, machine),
    )
    rules, git = _with_nested(rules, git, found, places, machine)
    _check_own_places(places, (found.root, *recorded, *(path for path, _ in rules.write)), machine)
    writable = (found.root, *(path for path, _ in rules.write))
    granted = (*writable, *(path for path, _ in rules.read))
    plan = derive.derive(
        boundaries,
        git,
        program,
        rules,
        support,
        machine,
        toolchains=tools,
        provider=provider,
        own=(*places.own(), *_sockets(granted, places, machine), *_kept_in(writable, places, machine)),
        written=others,
        secrets=secrets(places, machine) if rules.bring or provider.bring else NOTHING_SECRET,
    )
    hidden = next((path for path in (found.root, found.common_dir, found.git_dir) if beneath(path, "/dev")), None)
    if hidden and promises.has_mounts(plan.backend):
        raise Refusal(
            "worktree-place",
            f"no jail can show what is in {hidden}",
            context="a jail with mounts has a /dev of its own",
            hint="move the repository and its worktrees to another place",
        )
    if plan.git == "private" and not plan.review:
        for place in (found.common_dir, found.git_dir):
            written.refuse_agents_git_dir(place, places.state)  # here, and not when there are commits to harvest
    allowed = tuple(entry.value for entry in settings.allow_domains)
    plan = plan.replace(warnings=(*plan.warnings, *recognition.warnings(command, plan, provider, allowed)))
    return Planned(plan, boundaries, support, machine, found.common_dir, tools.seeds, trees)


def _plain_directory(start: str, machine: Machine) -> checkout.Checkout:
    """A directory outside of all git worktrees, for a command that is held to it (`--directory`).

    Refusals: directory-is-worktree, directory-too-wide; worktree-missing and worktree-not-directory as of `find`.
    """
    try:
        found = checkout.find(start, machine, exact=False)
    except Refusal as refusal:
        if refusal.reference != "not-a-worktree":
            raise
        root = machine.resolve(start) or start
        if root.count("/") < 2:
            raise Refusal(
                "directory-too-wide",
                f"a command cannot be confined to {root}",
                context="it contains more than one task's files",
                hint="make a directory for the task, and cd there",
            ) from None
        return checkout.Checkout(root, "directory", "", "", ())
    raise Refusal(
        "directory-is-worktree",
        f"{start} is in a git worktree, {found.root}",
        context="git sees what is written there: its hooks, attributes and branches need a worktree's jail",
        hint="leave out --directory",
    )


def _command_inside(name: str, cwd: str, directory: str) -> Command:
    """A command by its name alone: what file of an image that is, the jail finds out."""
    if "\0" in name or not name:
        raise Refusal("command-not-found", "the command's name is empty or contains a NUL", exit_code=EXIT_NOT_FOUND)
    path = _named(name, cwd) if "/" in name else name
    return Command(name, path, path, directory)


def with_image(
    rules: Rules,
    given: str,
    found: checkout.Checkout,
    recorded: tuple[str, ...],
    support: probe.Support,
    places: Places,
    machine: Machine,
) -> Rules:
    """The rules with an image in place of the machine's own files (`--root`).

    What an image holds is nobody's word: of it, no more is looked at than whether it is one at all.

    Refusals: root-unavailable, root-unusable, root-covered; grant-missing and the like, as for any path.
    """
    backend = derive.choose_backend(rules.backend, support)
    if backend != promises.NAMESPACES:
        raise Refusal(
            "root-unavailable",
            "an image as the jail's root needs mounts of Paddock's own, which this backend has not",
            context=f"the backend is {backend}",
            hint="paddock doctor says what namespaces need here",
        )
    trail = machine.trail(given)
    trees = (*recorded, *ingredients.checkouts_around(trail, machine))
    image = ingredients.asked_for(given, trail, "--root", found.root, machine, trees)
    writable = (found.root, *filter(None, (machine.resolve(path) for path, _ in rules.write)))
    around = [
        path for path in (machine.home, found.root, *places.own()) if beneath(machine.resolve(path) or path, image)
    ]
    inside = [tree for tree in (*writable, *places.own()) if beneath(image, machine.resolve(tree) or tree)]
    why = hint = ""
    if machine.kind(image) != "dir":
        why = "it is not a directory"
    elif image == "/" or os.path.samestat(os.stat(image), os.stat("/")):
        why, hint = "it is the machine's own root", "leave out --root"
    elif around:
        why, hint = f"it contains {around[0]}", "an image has a directory of its own"
    elif inside:
        why, hint = (
            f"it is in {inside[0]}, where commands may write or Paddock keeps its own files",
            "move it elsewhere",
        )
    elif not os.access(image, os.R_OK | os.X_OK, effective_ids=True):
        why = "this user may not read it"
    elif not any(machine.kind(f"{image}/{name}") in ("dir", "link") for name in ("usr", "bin")):
        why, hint = (
            "it has neither usr nor bin",
            "name the directory in which an image was unpacked: debootstrap makes one",
        )
    if why:
        raise Refusal("root-unusable", f"{image} cannot be a jail's root", context=why, hint=hint)
    whole = next((source for path, source in rules.read if machine.resolve(path) == "/"), None)
    if whole is not None:
        raise Refusal(
            "root-covered",
            f"--root hides the machine's own files, but {whole} / shows them",
            hint=f"leave out either --root or {whole} /",
        )
    git = any(machine.kind(f"{image}{place}/git") for place in ingredients.IMAGE_PATH.split(":"))
    lacks = () if git or not found.git_dir else ("the image has no git, so commands there can commit nothing",)
    return rules._replace(root=image, warnings=(*rules.warnings, *lacks))


def _for_nothing(
    rules: Rules, found: checkout.Checkout, support: probe.Support, machine: Machine, *, cow: bool, review: bool
) -> Rules:
    """The rules of a session that hands nothing over: of a review, where the worktree is read-only, or on a copy of it.

    Refusals: usage; review-shares-git; cow-unavailable, cow-covered.
    """
    option = "--cow" if cow else "--review"
    if cow and review:
        raise Refusal("usage", "--review makes the worktree read-only, and --cow writable", hint="leave out one")
    own = [path for path in (found.git_dir, found.common_dir) if path]
    opened = (f"{source} {path}" for path, source in rules.write
              if any(beneath(machine.resolve(path) or path, place) for place in own))  # fmt: skip
    shared = "--git shared" if rules.git == "shared" else next(opened, None)
    if shared is not None:
        raise Refusal(
            "review-shares-git",
            f"{option} hands nothing over, but {shared} lets the command write the repository itself",
            hint=f"leave out either {option} or {shared}",
        )
    backend = derive.choose_backend(rules.backend, support)
    if cow:
        if backend != promises.NAMESPACES:
            raise Refusal(
                "cow-unavailable",
                "a copy of the worktree needs mounts of Paddock's own, which this backend has not",
                context=f"the backend is {backend}",
                hint="paddock doctor says what namespaces need here; --review shows the worktree read-only",
            )
        wide = next((f"{source} {path}" for path, source in rules.write
                     if beneath(found.root, machine.resolve(path) or path)), None)  # fmt: skip
        if wide is not None:
            raise Refusal(
                "cow-covered",
                f"--cow keeps what is written in the worktree from the disk, but {wide} lets it be written",
                hint=f"leave out either --cow or {wide}",
            )
        return rules._replace(cow=True)
    if not promises.has_mounts(backend):
        rules = rules._replace(git="readonly")
    return rules._replace(read=(*rules.read, (found.root, ingredients.REVIEW)))


def _with_obeyed(
    rules: Rules, settings: Settings, found: checkout.Checkout, checkouts: tuple[str, ...], machine: Machine
) -> Rules:
    """The rules with what the user's git and shells obey in the worktree; what he has only reported stays writable."""
    common = [(sub.path, sub.git_dir, checkout.common_dir(sub.git_dir, machine)) for sub in found.submodules]
    own = ((found.root, found.git_dir, found.common_dir),) if found.git_dir else ()
    writable = tuple(filter(None, (machine.resolve(path) for path, _ in rules.write)))
    names = dict(obeyed.patterns(found.root, (*own, *common), checkouts, machine, writable))
    trusted = (Kind.DEFAULT, Kind.SYSTEM, Kind.USER)
    by_user = {entry.value for entry in settings.handoff_report if entry.source.kind in trusted}
    protect = [name for name, mode in names.items() if mode == PROTECT and name not in by_user]
    return rules._replace(
        handoff_protect=tuple(dict.fromkeys((*rules.handoff_protect, *protect))),
        handoff_report=tuple(name for name in (*rules.handoff_report, *names) if name not in protect),
        handoff_patterns=(
            *rules.handoff_patterns, *((name, PROTECT if name in protect else REPORT) for name in names)
        ),
    )  # fmt: skip


def _with_mirrors(
    rules: Rules, settings: Settings, options: Options, trees: tuple[str, ...], machine: Machine, root: str
) -> Rules:
    """The rules with the mirrors of the package registries that are allowed by their bundles."""
    mark = egress_rules.MARK
    bundles = [entry.value.removeprefix(mark) for entry in settings.allow_domains if entry.value.startswith(mark)]
    if not bundles or rules.net in ("none", "open"):
        return rules
    from policy import mirrors

    given = options.get("--env")
    own = {item.partition("=")[0] for item in given} if isinstance(given, list) else set()
    own.update(name for name, _ in rules.env_set)

    def taken(name: str) -> bool:
        passed = (name.startswith(each[:-1]) if each.endswith("*") else name == each for each in rules.env_pass)
        return name in own or any(passed)

    granted = (root, "/usr", *filter(None, (machine.resolve(path) for path, _ in (*rules.read, *rules.write))))
    found = mirrors.find(machine, bundles, trees=trees, taken=taken, granted=granted)
    return rules._replace(
        domains=tuple((dict(found.domains) | dict(rules.domains)).items()),
        internal=found.internal,
        files=found.files,
        authorities=found.authorities,
        reach=tuple((dict(found.reach) | dict(rules.reach)).items()),
        env_set=(*found.environment, *rules.env_set),
        inject=(*rules.inject, *found.keys),
        warnings=(*rules.warnings, *found.warnings),
    )


def _agents(places: Places, machine: Machine) -> "Callable[[str], str]":
    """Asks for the tree in which agents could write a git directory; then the Plan depends on the record."""

    def agents(git_dir: str) -> str:
        machine.depends_on_content(written.path_of(places.state))
        return written.agents_tree(git_dir, places.state)

    return agents


def _with_nested(
    rules: Rules, git: Git, found: checkout.Checkout, places: Places, machine: Machine
) -> tuple[Rules, Git]:
    """The rules and facts with what is known of other repositories where the command may write."""
    if rules.git == "shared":
        return rules, git
    granted = tuple(filter(None, (machine.resolve(name) for name, _ in rules.write)))
    trees = dict.fromkeys((found.root, *(path for path in granted if not beneath(path, found.root))))
    own = [f"{root}/.git" for root in (found.root, *(sub.path for sub in found.submodules))]
    kept = os.path.dirname(state.home_of(places, worktree_id(found.root)))
    machine.depends_on_content(f"{kept}/{nested.NOTE}")
    agents = _agents(places, machine)
    noted = nested.by_sessions(kept, state.unsearched(kept))

    def made(place: str) -> bool:
        return beneath(place, found.root) and noted(place) and bool(agents(place))  # no search looks elsewhere

    known, untouched, obeyed, checkouts, warnings = nested.look(
        trees, (*own, *git.pointers, *git.inside), made, machine, agents
    )
    rules = rules._replace(warnings=(*rules.warnings, *warnings))
    empty, absent = repositories.unpopulated_in_others(checkouts, (found.root, *granted), machine)
    return rules, git._replace(
        nested=known,
        untouched=untouched,
        obeyed=obeyed,
        unpopulated=(*git.unpopulated, *empty),
        absent=(*git.absent, *absent),
    )


def _check_own_places(places: Places, trees: tuple[str, ...], machine: Machine) -> None:
    """Refuses to believe configuration and state that are reached through a link which a session can set."""
    canonical = [tree for tree in map(machine.resolve, trees) if tree is not None]
    for path in (*places.own(), f"{places.config}/config.toml"):
        for link, target in machine.trail(path).links:
            tree = next((tree for tree in canonical if beneath(link, tree)), None)
            if tree is not None:
                raise Refusal(
                    "grant-covers-state",
                    f"Paddock's own {path} is reached through a link that commands in jails could set",
                    context=f"{printable(link)} points to {printable(target)}, and {tree} is or was granted",
                    hint="replace the link with a directory, or with a link straight to the place itself",
                )


def prepare(planned: Planned, places: Places) -> None:
    """Makes the worktree's private home, and records what may be written.

    The Plan depends on both being there, so that they are made again.
    """
    for path in written.directories(places.state, planned.plan):
        planned.machine.depends_on_directory(path)
    written.remember(places.state, planned.plan)
    planned.machine.kind(written.path_of(places.state))
    home = state.home_of(places, planned.plan.worktree_id)
    make_private_home(home, planned.git_dir, planned.seeds, planned.plan.worktree)
    planned.machine.kind(home)


def secrets(places: Places, machine: Machine) -> Secrets:
    """What is not brought into jails: credentials, and whatever agents keep beside their logins."""
    home, table = machine.home.rstrip("/"), toolchains.load_table()
    known = registry.load_registry(user_directory=recognition.own_directory(places))
    specs = [spec for name in known.names() if (spec := known.spec(name)) is not None]
    mixed = {f"{home}/.config", *(f"{home}{path[1:]}" for spec in specs for path in spec.state.directories)}
    found = {f"{home}{mark}": what for mark, what in verdict.RISKS if mark.startswith("/.") and what != verdict.OBEYED}
    found |= {path: "credentials" for path in (f"{home}/{name}" for name in table.credentials) if path not in mixed}
    for spec in specs:
        found |= {
            recognition.place_of_user(file, spec, machine): f"logins or state of {spec.title}" for file in spec.files
        }
        found |= {f"{home}{file.path[1:]}": f"logins or state of {spec.title}" for file in spec.files}
    return Secrets(found, tuple(table.credential_names))


def boundaries_of(found: checkout.Checkout, wanted: list[str], freeze_root: bool) -> Boundaries:
    """The boundaries of a checkout.

    Args:
        wanted: names of the submodules to grant; none named means all. A submodule inside a granted one is granted.

    Refusals: submodule-unknown.
    """
    known = {submodule.name: submodule for submodule in found.submodules}
    for name in wanted:
        if name not in known:
            raise Refusal(
                "submodule-unknown",
                f"there is no populated submodule {cited(name)} in {found.root}",
                context="known: " + (", ".join(sorted(known)) or "none"),
                hint=f"git submodule update --init {name}" if not known else "",
            )
    chosen = [known[name].path for name in wanted]
    granted: list[tuple[str, str]] = []
    ungranted: list[tuple[str, str]] = []
    for submodule in found.submodules:
        allowed = not wanted or any(beneath(submodule.path, path) for path in chosen)
        (granted if allowed else ungranted).append((submodule.name, submodule.path))
    return Boundaries(found.root, worktree_id(found.root), tuple(granted), tuple(ungranted), freeze_root)


def context_for_tools(planned: Planned) -> "WorktreeSandboxContext":
    """The context with the Plan's exceptions inside the worktree, so that the validator says what the kernel does."""
    from pathlib import Path

    from launcher.vcs.worktrees import models  # 80 ms of pydantic, which no launch needs

    plan, context = planned.plan, models.context_of(planned.boundaries)
    hidden = {str(sub.worktree_path): derive.not_granted(sub.submodule_name) for sub in context.ungranted_submodules}
    found = verdict.exceptions(plan)
    read_only = list(found.read_only)
    denied = [path for path, source in found.denied if hidden.get(path) != source]
    granted = []
    ungranted = list(context.ungranted_submodules)
    for submodule in context.submodule_worktrees:
        # `--deny` beats the rule that the deepest root wins.
        if any(beneath(str(submodule.worktree_path), path) for path in denied):
            ungranted.append(submodule.model_copy(update={"granted": False}))
        else:
            granted.append(submodule)
            held = held_by(plan.narrowed, str(submodule.worktree_path))
            read_only += [str(submodule.worktree_path)] if held is not None and held[1] == "r" else []
    return context.model_copy(
        update={
            "submodule_worktrees": tuple(granted),
            "ungranted_submodules": tuple(ungranted),
            "read_only_paths": tuple(Path(path) for path in read_only),
            "writable_paths": tuple(Path(path) for path in found.writable),
            "unpopulated_submodules": tuple(Path(path) for path in found.unpopulated),
            "denied_paths": tuple(Path(path) for path in denied),
            # With mounts nothing freezes: the exceptions are mounted over.
            "freeze_root": context.freeze_root and not promises.has_mounts(plan.backend),
        }
    )


def without_values(options: Options) -> Options:
    """`options` with `--env NAME=VALUE` left out, after a check of the names: values must not enter a Plan."""
    items = options.get("--env")
    if not isinstance(items, list):
        return options
    layer.layer({"--env": items}, cwd="/", home="/")
    return options | {"--env": [item for item in items if "=" not in item]}


def filter_program(plan: Plan, support: probe.Support, machine: Machine, *, watch: bool = False) -> bytes:
    """The seccomp programme for a Plan's backend and network.

    With `watch` it is the one for `paddock learn`.

    Where people share a tree by set-gid directories, new ones get the bit by themselves, and tools that copy a
    directory's mode must be able to set it. The filter cannot tell directories from files, so there it may be set.
    """
    mounts = promises.has_mounts(plan.backend)
    return seccomp.program(
        support.machine,
        net=plan.net,
        own_network=mounts and plan.net != "open",
        own_processes=mounts,
        own_ipc=mounts,
        kill_zero=support.landlock_abi >= 6 and plan.backend != promises.BUBBLEWRAP,
        unix_datagrams=mounts,
        guard=plan.backend == promises.GUARD,
        set_gid=any(machine.set_gid(path) for path, access, _ in plan.grants if "w" in access),
        watch=watch,
    )


def _try_bubblewrap(support: probe.Support, machine: Machine, writable: tuple[str, ...]) -> None:
    """Asks for bubblewrap, and makes the Plan depend on where it was found.

    It runs outside of the jail: none is taken that lies where a command may write, nor one to which a link there leads.
    """
    trees = list(filter(None, map(machine.resolve, writable)))
    found = []
    for directory in (machine.env("PATH") or os.defpath).split(":"):
        if directory.startswith("/"):
            trail = machine.trail(f"{directory}/bwrap")
            places = (trail.canonical or "", *(link for link, _ in trail.links))
            if trail.canonical and not any(beneath(place, tree) for place in places for tree in trees):
                found.append(trail.canonical)
    path, works, why = probe.bubblewrap(tuple(found))
    support.bubblewrap, support.bubblewrap_why = path if works else "", why


def _kept_in(writable: tuple[str, ...], places: Places, machine: Machine) -> list[str]:
    """Files of the user's configuration that lie in trees which the command may write: dotfile managers link them."""
    own = recognition.own_directory(places)
    names = [configuration.user_file(places), own, *(f"{own}/{name}" for name in machine.listing(own) or ())]
    trees = list(filter(None, map(machine.resolve, writable)))
    files = filter(None, map(machine.resolve, names))
    return [path for path in files if any(beneath(path, tree) for tree in trees)]


def _sockets(granted: tuple[str, ...], places: Places, machine: Machine) -> tuple[str, ...]:
    """Directories in what is granted where services of this user have listened, or somebody does under their name.

    A service that begins later, or that another one's records name, refuses jails when they connect.
    """
    path = f"{places.state}/{SOCKETS}"
    machine.depends_on_content(path)
    content = guarded_files.read(path, follow=False)
    found = {os.fsdecode(each) for each in content.data.split(b"\0") if each} if content is not None else set()
    bound = {os.path.dirname(address) for address in _addresses() if address.endswith("/control.sock")}
    trees = list(filter(None, map(machine.resolve, granted)))
    return tuple(
        path
        for path in sorted(found | bound)
        if any(beneath(path, tree) for tree in trees)
        and (path in found or machine.kind(f"{path}/control.sock") == "socket")
    )


def _addresses() -> list[str]:
    """Paths of this machine's unix sockets, as they were bound; whoever bound one may have written anything.

    Lines too: the kernel writes a newline in a path as it is.
    """
    with open("/proc/net/unix", "rb") as file:
        lines = [line.split(None, 7) for line in file.read().split(b"\n")]
    return [os.fsdecode(fields[7]) for fields in lines if len(fields) == 8 and fields[7].startswith(b"/")]


def _created(found: checkout.Checkout, places: Places, machine: Machine) -> bool:
    """Whether Paddock made this worktree for an agent, and did not find it made by somebody else."""
    if found.kind != "linked":
        return False
    from launcher.vcs.worktrees import admin_files
    from launcher.vcs.worktrees.store import WorktreeRepository

    machine.depends_on_content(f"{found.git_dir}/{admin_files.RECORD}")  # written anew whenever what is known changes
    store = WorktreeRepository(places.state)
    return os.path.exists(store.path) and store.made(worktree_id(found.root)) == (found.root, found.git_dir)


def depend_on_code(machine: Machine) -> None:
    """A new version of Paddock (or of its data) makes new plans."""
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if path and name.partition(".")[0] in ("launcher", "policy"):
            machine.depends_on_own(path)
    data = os.path.dirname(derive.__file__)
    for name in ("default.toml", "toolchains.toml", "bundles.toml", "mirrors.toml"):
        machine.depends_on_own(f"{data}/{name}")


def _text(options: Options, name: str) -> str | None:
    value = options.get(name)
    return value if isinstance(value, str) else None
