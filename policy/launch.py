"""What one launch is about, as the launcher found it. Plain facts; `policy.derive` decides with them."""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from policy.host import Trail
from policy.plan import Conditional, Place, Repository, beneath


class Support(Protocol):
    """What the probe found, as far as decisions need it."""

    landlock_abi: int
    seccomp: bool
    userns: bool
    userns_why: str
    guard: bool
    guard_why: str
    fresh_proc: bool
    fresh_proc_why: str
    bubblewrap: str
    bubblewrap_why: str
    uid: int


class Git(NamedTuple):
    """Where the worktree's git data lies; all paths canonical.

    Attributes:
        kind: ``main``, ``linked`` or ``submodule``.
        git_dir: the worktree's own git directory.
        common_dir: objects, refs and config.
        modules: (submodule's name, its git directory).
        repositories: those that can get a private git directory.
        large: (object directory, directory of large files beside it): Git LFS finds one by the other.
        inside: git directories of submodules that lie in the submodules themselves, where the worktree is writable.
        pointers: `.git` files of other worktrees that lie in this one.
        unpopulated: places of submodules without a `.git`, which git outside would obey: directories.
        absent: the same where no directory is.
        obstacles: why no private git directory can be made, as sentences.
        doubtful: the same, where a command may have brought it about.
        nested: `.git` and git directories of other repositories, where the command may write.
        obeyed: what git outside obeys of these; it exists.
        created: whether Paddock made the worktree; looked at only where a jail has no mounts.
    """

    kind: str
    git_dir: str
    common_dir: str
    modules: tuple[tuple[str, str], ...]
    repositories: tuple[Repository, ...] = ()
    large: tuple[tuple[str, str], ...] = ()
    inside: tuple[str, ...] = ()
    pointers: tuple[str, ...] = ()
    unpopulated: tuple[Place, ...] = ()
    absent: tuple[Place, ...] = ()
    obstacles: tuple[str, ...] = ()
    created: bool = False
    doubtful: tuple[str, ...] = ()
    nested: tuple[str, ...] = ()
    obeyed: tuple[str, ...] = ()


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
    """What a provider's strategy made of the worktree. All empty for a plain command.

    Attributes:
        source: why it is this provider, or none.
        logins: the fields of a `policy.logins.Login` each, as plain tuples.
        program: the provider's programme, where a runner is what starts it and a path names it.
        warnings: what the user should know of it.
    """

    provider: str = ""
    source: str = "--provider none"
    dialect: str = "native"
    environment: tuple[tuple[str, str], ...] = ()
    arguments: tuple[str, ...] = ()
    arguments_unless: tuple[Conditional, ...] = ()
    arguments_at: int = -1
    credentials: tuple[str, ...] = ()
    domains: tuple[tuple[str, str], ...] = ()
    reach: tuple[tuple[str, str], ...] = ()
    program: Command | None = None
    logins: tuple[tuple[object, ...], ...] = ()
    warnings: tuple[str, ...] = ()


def led_by(worktree: str, path: str, trail: Trail) -> bool:
    """Whether something in the worktree decides where `path` leads: it lies there, or what is on its way does."""
    if beneath(path, worktree) or trail.entry is None or beneath(trail.entry, worktree):
        return True
    return linked_by((worktree,), trail)


def linked_by(trees: Iterable[str], trail: Trail) -> bool:
    """Whether a symbolic link in one of these trees, which an agent may have put there, was crossed on the way."""
    return any(tree and beneath(link, tree) for link, _ in trail.links for tree in trees)


def left_by(trees: Iterable[str], trail: Trail) -> str | None:
    """The first of these trees from which a symbolic link led out for good; None when none did."""
    for tree in trees:
        if linked_by((tree,), trail) and not beneath(trail.canonical or "/", tree):
            return tree
    return None
