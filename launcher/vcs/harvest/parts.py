"""What is harvested, as data: the worktree's repository and its submodules' (parts), limits, and the outcome."""

from dataclasses import asdict, dataclass

from launcher.vcs.quarantine.record import Repository


@dataclass(frozen=True)
class Part:
    """One repository of a worktree, from its `record.Repository`: the worktree's own, or a submodule's.

    Args:
        name: "" for the worktree's own, else the submodule's name.
        path: the checkout's root.
        prefix: the checkout's place in the worktree, "" or ``lib/``.
        inside: the private git directory below the private ``git`` directory: "" or ``modules/...``.
        git_dir: the trusted git directory of the checkout (HEAD, index).
        common: the trusted directory of objects and refs.
        branch: full name of the branch that the checkout was on, None when HEAD was detached.
        base: what that was when the private directory was made, or after the last harvest; "" before a first commit.
        digits: length of an object id, 40 (SHA-1) or 64 (SHA-256).
        stores: trusted object directories that the private one borrows from, its own store first.
    """

    name: str
    path: str
    prefix: str
    inside: str
    git_dir: str
    common: str
    branch: str | None
    base: str
    digits: int
    stores: tuple[str, ...]

    @classmethod
    def of(cls, repository: Repository, root: str) -> "Part":
        """The part for a repository of the worktree at `root`."""
        below = repository.path[len(root) :].lstrip("/")
        return cls(
            repository.name,
            repository.path,
            f"{below}/" if below else "",
            repository.private,
            repository.git_dir,
            repository.common_dir,
            repository.branch,
            repository.base or "",
            64 if repository.object_format == "sha256" else 40,
            repository.stores,
        )

    @property
    def root(self) -> str:
        """Root of the worktree that holds the checkout."""
        return self.path[: -len(self.prefix)] if self.prefix else self.path

    @property
    def label(self) -> str:
        """For messages."""
        return f"the submodule {self.name}" if self.name else "the worktree"

    @property
    def store(self) -> str:
        """The trusted object directory."""
        return f"{self.common}/objects"

    @property
    def ref(self) -> str:
        """What a harvest moves: the branch that was checked out, or a detached HEAD."""
        return self.branch or "HEAD"


@dataclass(frozen=True)
class Limits:
    """What one harvest may take over, per repository. More is refused, and stays in the private directory.

    Args:
        pack: bytes of the pack stream.
        objects: their number.
        blob: bytes of the largest single object.
        commits: their number.
    """

    pack: int = 2 << 30
    objects: int = 2_000_000
    blob: int = 512 << 20
    commits: int = 100_000


@dataclass(frozen=True)
class FileChange:
    """A file that differs between what a branch was and what it becomes.

    Args:
        path: relative to the worktree's root, submodules' files too.
        change: ``created``, ``changed`` or ``removed``.
        executable: whether it can be executed now.
    """

    path: str
    change: str
    executable: bool = False


@dataclass(frozen=True)
class PartResult:
    """What became of one repository.

    Args:
        name: as in `Part`.
        ref: what was moved: a branch's full name, or HEAD.
        old: its value before.
        new: its value now, or what was to become it.
        commits: number of commits that are new in the repository.
        files: number of files that differ.
        rewritten: the branch does not continue the old value (the agent amended or rebased).
        backup: where the old value is kept then.
        kept: where the work is kept when the branch had been moved by somebody else meanwhile, or HEAD was detached.
        again: an earlier harvest had kept it there already.
        note: why it is kept there, and how to join it with the branch.
    """

    name: str
    ref: str
    old: str
    new: str
    commits: int = 0
    files: int = 0
    rewritten: bool = False
    backup: str = ""
    kept: str = ""
    again: bool = False
    note: str = ""


@dataclass(frozen=True)
class HarvestResult:
    """The outcome of one harvest.

    Args:
        worktree: root of the worktree.
        state: ``nothing`` (there was nothing new), ``harvested``, ``kept`` (taken over, but beside the branch, which
            somebody else has moved), ``gone`` (the agent's own branch is not there, or unreadable), or ``busy``
            (another session of the worktree lives).
        parts: repositories with something new.
        branches: branches that the agent made or moved beside its own; ``--branch NAME`` takes one over.
        handoff: files among the changes that other tools execute or obey: (change, path, mode).
        notes: what the user should know.
    """

    worktree: str
    state: str
    parts: tuple[PartResult, ...] = ()
    branches: tuple[str, ...] = ()
    handoff: tuple[tuple[str, str, str], ...] = ()
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, object]:
        """Plain data for ``--json``."""
        return asdict(self)
