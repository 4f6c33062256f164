"""What `policy.derive` decides from: facts of one launch, and what may be asked of the machine."""

import os
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from policy.plan import Conditional, Place, Repository, beneath

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hashlib import sha256
    from pathlib import Path
else:
    try:
        from _sha256 import sha256  # Python 3.11; `hashlib` loads OpenSSL, which takes 3 ms
    except ImportError:
        try:
            from _sha2 import sha256
        except ImportError:  # some distributions build neither
            from hashlib import sha256

# What decisions may ask of the machine. The launcher answers; tests answer from a table.
#
# Every answer is also an input of the Plan: the launcher's implementation records what was asked, and a cached
# Plan is valid only while each recorded answer would still be the same.


class Trail(NamedTuple):
    """What one walk along a path found. Whoever judges a path and grants it must do both from the same walk.

    A path may lead elsewhere at the next: a session that is alive in the worktree can exchange a directory for a
    symbolic link at any time.

    Attributes:
        canonical: where it leads, all symbolic links followed; None when that does not exist or cannot be reached.
        links: symbolic links that were crossed, as (path of the link, its text), in order. The paths are canonical but
            for their last component. A loop gives what was met before it closed.
        entry: the canonical directory and the path's own last component, which may be a link; None when the way there
            does not exist.
        reached: how far the walk came: `canonical`, or the first name that was absent.
    """

    canonical: str | None
    links: tuple[tuple[str, str], ...]
    entry: str | None
    reached: str


class Host(Protocol):
    """Questions about the disk and the environment. Paths are absolute `str` (surrogateescape)."""

    @property
    def home(self) -> str:
        """Canonical home directory of the calling user (from the password database when HOME is unset)."""

    @property
    def uid(self) -> int:
        """Effective user id."""

    def env(self, name: str) -> str | None:
        """The caller's environment variable, or None."""

    def locations(self, pattern: str) -> tuple[tuple[str, str], ...]:
        """(name, value) of the caller's variables that `pattern` means, which may hold one ``*``; sorted.

        What stands in a URL before its ``@`` is left out of the value, and the ``@`` stays.
        """

    def kind(self, path: str) -> str | None:
        """``file``, ``dir``, ``link``, ``socket``, ``fifo``, ``char``, ``block``; None when absent. Like lstat(2)."""

    def resolve(self, path: str) -> str | None:
        """The canonical path (all symbolic links followed); None when it does not exist or cannot be reached."""

    def trail(self, path: str) -> Trail:
        """Where `path` leads and how, from one walk; `resolve` gives the same end."""

    def listing(self, path: str) -> tuple[str, ...] | None:
        """Sorted names in a directory; None when it cannot be listed."""

    def contents(self, path: str) -> tuple[tuple[str, str, int], ...] | None:
        """Sorted (name, `kind`, `names`) of what is in a directory; None when it cannot be listed."""

    def present(self, directory: str, names: tuple[str, ...], suffixes: tuple[str, ...]) -> tuple[str, ...]:
        """Sorted entries of a directory that are in `names` or end in one of `suffixes`; () when it cannot be listed.

        Unlike `listing` it does not make a Plan depend on every other entry.
        """

    def read(self, path: str, limit: int = 65536) -> bytes | None:
        """Content of a regular file, at most `limit` bytes (longer: None); None when it cannot be read."""

    def executable(self, path: str) -> bool:
        """Whether the calling user may execute this regular file."""

    def names(self, path: str) -> int:
        """How many names a regular file has (hard links); 0 for anything else."""

    def others_can_write(self, path: str) -> bool:
        """Whether a user other than root and the caller may write `path`: mode bit o+w, or another owner."""


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


class Boundaries(NamedTuple):
    """The worktree of one launch with its populated submodules; a `WorktreeSandboxContext` without the models.

    Attributes:
        root: canonical.
        worktree_id: stable id.
        granted: (name, canonical path) of submodules that the command may use.
        ungranted: the same of those that it may not.
        freeze_root: see `WorktreeSandboxContext`.
    """

    root: str
    worktree_id: str
    granted: tuple[tuple[str, str], ...] = ()
    ungranted: tuple[tuple[str, str], ...] = ()
    freeze_root: bool = False

    @property
    def worktree_path(self) -> "Path":
        """The root (contracts section 7)."""
        from pathlib import Path  # 3 ms, for agents alone

        return Path(self.root)

    @property
    def submodule_paths(self) -> "tuple[Path, ...]":
        """Roots of the granted submodules (contracts section 7)."""
        from pathlib import Path

        return tuple(Path(path) for _, path in self.granted)


def worktree_id(path: str) -> str:
    """A stable id for a worktree: readable, and unique by the hash of its canonical path."""
    name = "".join(char if char.isascii() and char.isalnum() else "-" for char in os.path.basename(path))[:32]
    return f"{name.strip('-') or 'worktree'}-{sha256(os.fsencode(path)).hexdigest()[:12]}"


class Git(NamedTuple):
    """Where the worktree's git data lies; all paths canonical.

    Attributes:
        kind: ``main``, ``linked`` or ``submodule``; ``directory`` for what is no worktree, and has none of the rest.
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
        untouched: git directories of these that no jail could write.
        obeyed: what git outside obeys of the others; it exists.
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
    untouched: tuple[str, ...] = ()
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
        keys: the fields of a `policy.keys.Key` each.
        bring: (path, path below the private home) of the user's instructions, skills and the like.
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
    keys: tuple[tuple[object, ...], ...] = ()
    program: Command | None = None
    logins: tuple[tuple[object, ...], ...] = ()
    bring: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()


def led_by(worktree: str, path: str, trail: Trail) -> bool:
    """Whether the worktree can decide where `path` leads: path, entry or a crossed link lies in it.

    A trail without an entry counts as well, because where it leads is unknown.
    """
    if beneath(path, worktree) or trail.entry is None or beneath(trail.entry, worktree):
        return True
    return linked_by((worktree,), trail)


def linked_by(trees: Iterable[str], trail: Trail) -> bool:
    """Whether the walk crossed a symbolic link in one of these trees, where an agent may have made it."""
    return any(tree and beneath(link, tree) for link, _ in trail.links for tree in trees)


def left_by(trees: Iterable[str], trail: Trail) -> str | None:
    """The first of these trees from which a symbolic link led out for good; None when none did."""
    for tree in trees:
        if linked_by((tree,), trail) and not beneath(trail.canonical or "/", tree):
            return tree
    return None
