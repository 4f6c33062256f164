"""Whether a command gets a private git directory, and what of the repository a jail with one shows.

The agent writes a git directory of its own, which borrows the repository's objects. It is shown in the place of the
worktree's `.git`, in the jail only; nothing of the repository but its objects is shown, and those are read-only. Where
a jail has no mounts, `.git` leads there on the disk meanwhile (`launcher.vcs.quarantine.swap`).
"""

from policy import promises
from policy.config.rules import Rules
from policy.errors import Refusal
from policy.host import Host
from policy.launch import Git
from policy.plan import Bind, Grant, Place, beneath

SOURCE = promises.PRIVATE_GIT

SWAPPED = (
    "while this runs, {root}/.git leads to a git directory that the command writes (no mount can cover it in the jail "
    "alone): run no git there outside, and open it in no editor or prompt that does; the end puts it back"
)

DIRECTORY = "@git/git"
"""The private git directory; see launcher/vcs/quarantine/record.py for what lies beside it."""


def choose(
    rules: Rules, git: Git, host: Host, *, mounts: bool, root: str, hidden: frozenset[str]
) -> tuple[str, list[str]]:
    """The access to git that a launch has, and what the user should know of it.

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
            context="\n".join(reasons),
            hint=("remove it, if it is an agent's work\n" if made else "")
            + ("make one that can, and work there: paddock worktree add TICKET\n"
               if not (mounts or git.created) else "")
            + "--git readonly: log, diff and status work\n"
            "or --git shared: the command may write the repository, hooks and configuration included",
        )  # fmt: skip
    return "readonly", [f"git is read-only, commits are not possible: {reasons[0]}"]


def _unswappable(git: Git, hidden: frozenset[str]) -> list[str]:
    """Why `.git` on the disk must not lead to a private git directory, where nothing but that is possible."""
    if git.kind == "main":
        return ["without a mount namespace the repository itself, which lies in a main checkout, cannot be covered"]
    if not git.created:
        return [
            "without a mount namespace the worktree's .git cannot be covered, and git outside of the jail would obey "
            "what the command writes there; only a worktree that Paddock made is put up with that "
            "(paddock worktree add TICKET)"
        ]
    return [
        f"without a mount namespace the private git directory of submodule {name}, which is not granted, cannot be "
        "hidden"
        for name in sorted(hidden)
    ][:1]


def _inside(git: Git) -> list[str]:
    """Git directories of submodules that without mounts the command could write. Paddock makes none such."""
    return [
        f"{where} lies in the submodule, where without a mount namespace the command could write it"
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
    """What a jail shows: grants at their own paths, binds at others, which need mounts, and what is denied.

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
