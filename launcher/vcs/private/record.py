"""What the host knows of a worktree's private git directory. Trusted: no jail can reach it.

``<state>/git/<worktree id>/`` (mode 0700) is the directory of one worktree:

    record     this file's content: what was borrowed from where, and which commit the agent's work starts from
    lock       see `lock`: shared by the sessions in the worktree, exclusive for who makes, renews or harvests
    git/       the private git directory, which the agent writes; its submodules' are in git/modules, as git has them
    pointers/  the `.git` files that the jail sees in place of the worktree's own: `pointers/<place in the record>`
    store/     only in jails, where object stores are shown whose own place is covered
    given/     of `contents`: which refs were shown, to distinguish the agent's own
    harvest/   of the harvest: its journal, and what came in
    refused    of `withheld`: why the last harvest was refused
    strict     of `withheld`: what strict sessions have refused, or were killed before they could
    settled    of `harvest.outstanding`: what a harvest has seen that could do no more
    stashed    of `harvest.further`: which of the agent's stashes have been taken over
    sign       that what waits is to be signed
    signed     which signed commit stands for which of the agent's
    swapped    of `swap`: what the worktree's `.git` files were, as long as they lead to git/

A record is replaced as a whole and synced, so a reader meets the old one or the new one. There is one exactly when the
private git directory is complete: it is written last, before the first session starts.

Launch path: `os`.
"""

from launcher.lean import os
from launcher.safefs import walk
from policy import promises
from policy.errors import Refusal
from policy.plan import Plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

RECORD = "record"
GIT = "git"
POINTERS = "pointers"
STORE = "store"
HARVEST = "harvest"
SWAPPED_NOW = "swapped"
SIGN = "sign"
"""Note that what waits in the private git directory is to be signed, whoever harvests it. Made when a session starts,
because its end may be a SIGKILL; forgotten when nothing waits any more."""

STRICT = "strict"
"""Note that sessions with a strict hand-off left what waits there, or refused to hand it over."""
KEEP = "keep"
"""Note that the last session was told that further branches of the agent's stay inside, and the checkout as it is."""

SETTLED = "settled"

MOUNTED = "mounted"
SWAPPED = "swapped"
"""How a jail comes to the private directory: bound in the jail only, or named by the worktree's `.git` on disk."""

MAGIC = b"paddock-git 1"
"""How every record begins."""
_END = b"end"
_MOST_BYTES = 64 << 20

Stamp = tuple[str, str]
"""A path and what lstat(2) said of it, in a form that is only ever compared; see `stamp`."""


class Repository:
    """One repository of a worktree: its own, or that of a submodule. Immutable by custom.

    Attributes:
        name: the submodule's name (a nested one's begins with its parent's); "" for the worktree's own.
        path: canonical root of its working tree.
        git_dir: the host's git directory of this working tree: HEAD, index.
        common_dir: the host's git directory with config, refs and objects: the store that work is harvested into.
        private: where its private git directory is below ``git/``: "" or ``modules/...``.
        branch: full name of the branch that was checked out (``refs/heads/...``), None when HEAD was detached.
        base: object id of the commit that the agent's work starts from, None on a branch without commits. Pinned
            in the store by `pin`.
        object_format: ``sha1`` or ``sha256``.
        stores: canonical object directories that the private one borrows from, the store's own first.
    """

    __slots__ = ("base", "branch", "common_dir", "git_dir", "name", "object_format", "path", "private", "stores")

    def __init__(
        self,
        name: str,
        path: str,
        git_dir: str,
        common_dir: str,
        private: str,
        branch: str | None,
        base: str | None,
        object_format: str,
        stores: tuple[str, ...],
    ) -> None:
        self.name = name
        self.path = path
        self.git_dir = git_dir
        self.common_dir = common_dir
        self.private = private
        self.branch = branch
        self.base = base
        self.object_format = object_format
        self.stores = stores

    @property
    def digits(self) -> int:
        """Length of an object id."""
        return 64 if self.object_format == "sha256" else 40

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Repository) and self.fields() == other.fields()

    __hash__ = None  # type: ignore[assignment]  # `replace` is how one changes, and equality is by value

    def fields(self) -> tuple[str, ...]:
        """Everything but the stores, as text; None is the empty text."""
        return (self.name, self.path, self.git_dir, self.common_dir, self.private, self.branch or "", self.base or "",
                self.object_format)  # fmt: skip

    def replace(self, **changes: "str | None") -> "Repository":
        """A copy with other values."""
        return Repository(**{name: getattr(self, name) for name in Repository.__slots__} | changes)


class Record:
    """What is known of one private git directory. Immutable by custom.

    Attributes:
        worktree: canonical root of the worktree.
        kind: ``main``, ``linked`` or ``submodule``, as `launcher.vcs.checkout` names them.
        form: `MOUNTED` or `SWAPPED`.
        repositories: the worktree's own first, then submodules, each behind the one that it is nested in.
        seen: what the private directory was last renewed from. Whoever changes a repository's `base` passes () for it:
            the next session then looks at everything.
    """

    __slots__ = ("form", "kind", "repositories", "seen", "worktree")

    def __init__(
        self,
        worktree: str,
        kind: str,
        form: str,
        repositories: tuple[Repository, ...],
        seen: tuple[Stamp, ...] = (),
    ) -> None:
        self.worktree = worktree
        self.kind = kind
        self.form = form
        self.repositories = repositories
        self.seen = seen

    def encode(self) -> bytes:
        """The content of the file. A path never holds a NUL, so that is what separates the fields."""
        words = [self.worktree, self.kind, self.form, str(len(self.repositories))]
        for repository in self.repositories:
            words += [*repository.fields(), str(len(repository.stores)), *repository.stores]
        for stamp in self.seen:
            words += stamp
        return b"\0".join((MAGIC, *map(os.fsencode, words), _END))

    @classmethod
    def decode(cls, content: bytes) -> "Record | None":
        """The record that `encode` wrote; None for anything else."""
        magic, *fields = content.split(b"\0")
        if magic != MAGIC or not fields or fields.pop() != _END:
            return None
        words = list(map(os.fsdecode, fields))
        try:
            worktree, kind, form, count = words[:4]
            at = 4
            repositories = []
            for _ in range(int(count)):
                name, path, git_dir, common_dir, private, branch, base, object_format, stores = words[at : at + 9]
                at += 9 + int(stores)
                if at > len(words):
                    return None
                known = tuple(words[at - int(stores) : at])
                place = (name, path, git_dir, common_dir, private)
                repositories.append(Repository(*place, branch or None, base or None, object_format, known))
        except ValueError:
            return None
        rest = words[at:]
        if len(rest) % 2 or not repositories:
            return None
        return cls(worktree, kind, form, tuple(repositories), tuple(zip(rest[::2], rest[1::2], strict=True)))


def directory_of(state: str, worktree_id: str) -> str:
    """The directory of a worktree's private git directory and its record (it need not exist yet)."""
    return f"{state}/git/{worktree_id}"


def read(directory: str) -> Record | None:
    """The record in `directory`; None when there is none, which means that no session has ever started there.

    Refusals: git-record-damaged. It is never guessed at: what it says is where the host's git works.
    """
    path = f"{directory}/{RECORD}"
    try:
        content = walk.read_regular(path, _MOST_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _damaged(path, error.strerror or str(error)) from None
    record = Record.decode(content) if content is not None else None
    if record is None:
        raise _damaged(path, "Paddock did not write its content")
    return record


def write(directory: str, record: Record) -> None:
    """Replaces the record in `directory`, so that a reader or a power failure sees the old one or the new one."""
    walk.replace(f"{directory}/{RECORD}", record.encode())


def pin(worktree_id: str) -> str:
    """The ref in each store that keeps gc there from removing what the private git directory borrows."""
    return f"refs/paddock/base/{worktree_id}"


def stamp(path: str) -> Stamp:
    """What tells whether a file, or the entries of a directory, have changed: compared, never read."""
    try:
        found = os.lstat(path)
    except OSError:
        return path, ""
    return path, f"{found.st_dev}:{found.st_ino}:{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}"


def _damaged(path: str, why: str) -> Refusal:
    return Refusal(
        "git-record-damaged",
        f"{path} cannot be read, so the private git directory beside it is not used",
        context=why,
        hint=f"the agent's commits are in {os.path.dirname(path)}/{GIT}: move the directory aside, or --git readonly",
    )


def form_of(plan: Plan) -> str:
    """How the plan's jail reaches the private git directory: `MOUNTED` or `SWAPPED`."""
    return MOUNTED if promises.has_mounts(plan.backend) else SWAPPED


def unusable(directory: str, error: OSError) -> Refusal:
    """The Refusal for a private git directory that cannot be made or renewed."""
    return Refusal(
        "state-unusable",
        f"the private git directory in {directory} cannot be prepared",
        context=f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error),
        hint=f"free some space; or check {directory}/{GIT}, which the agent could write; or --git readonly",
    )


def note(directory: str, name: str, content: bytes = b"") -> None:
    """Notes something in a file beside the record, so that it survives a power failure (OSError)."""
    walk.replace(f"{directory}/{name}", content)


def noted(directory: str, name: str) -> bytes | None:
    """What is noted in a file there; None when there is none."""
    try:
        return walk.read_regular(f"{directory}/{name}", _MOST_BYTES)
    except FileNotFoundError:
        return None


def forget(directory: str, name: str) -> None:
    """Removes a note, if it is there (OSError)."""
    try:
        os.unlink(f"{directory}/{name}")
    except FileNotFoundError:
        return


# Which signed commit in the main repository replaces which commit of the agent's.
#
# A harvest that signs makes commits anew. The private git directory has the agent's own until the next session there
# starts from the signed ones. The list is beside the record, out of every jail's reach.

NAME = "signed"
MOST = 100_000
"""Pairs that are kept; the newest ones."""


def read_signed(directory: str) -> dict[str, str]:
    """The agent's commit -> the signed one. The signed one may be gone from the repository."""
    return dict(line.split() for line in (noted(directory, NAME) or b"").decode("ascii").splitlines())


def write_signed(directory: str, pairs: "Mapping[str, str]") -> None:
    """Replaces what is known (OSError)."""
    newest = list(pairs.items())[-MOST:]
    note(directory, NAME, "".join(f"{old} {new}\n" for old, new in newest).encode("ascii"))
