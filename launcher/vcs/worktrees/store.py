"""The specification's WorktreeRepository: which worktrees there are, kept in SQLite, and the locks they change under.

Also the journal: a row is written before the first change on the disk and changed after the last, so what a crash left
half done is known. It holds nothing that could not be found again: `recovery` reads it from git's own files.
"""

import fcntl
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from launcher.vcs import checkout
from launcher.vcs.disk import Present
from launcher.vcs.private import ref_files
from policy.documents import absolute_path, label, read, written
from policy.errors import Refusal, in_rows, unusable

if TYPE_CHECKING:
    from launcher.vcs.worktrees.models import Worktree

FILE = "worktrees.db"
_VERSION = 1
_PATIENCE = 60.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS worktrees (
    worktree_id TEXT PRIMARY KEY,
    repository BLOB NOT NULL,
    path BLOB NOT NULL UNIQUE,
    state TEXT NOT NULL,
    document TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS trunks (
    worktree_id TEXT PRIMARY KEY,
    path BLOB NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS by_repository ON worktrees (repository);
"""

T = TypeVar("T")


class WorktreeRepository:
    """The worktrees of one user. Each call opens the database anew: any thread may use it, also after fork."""

    def __init__(self, state: str) -> None:
        self._state = state
        self.path = os.path.join(state, FILE)

    def get(self, worktree_id: str) -> "Worktree | None":
        """The worktree with this id."""
        found = self._read("SELECT document FROM worktrees WHERE worktree_id = ?", (worktree_id,))
        return found[0] if found else None

    def made(self, worktree_id: str) -> tuple[str, str] | None:
        """Root and git directory of a worktree that Paddock has made, not only taken over. Quick: launches ask this."""
        rows = self._act(
            lambda database: database.execute("SELECT document FROM worktrees WHERE worktree_id = ?", (worktree_id,))
            .fetchall()
        )  # fmt: skip
        if not rows:
            return None
        try:
            known = json.loads(rows[0][0])
            main = known["main"]
            return None if known["adopted"] else (str(absolute_path(main["path"])), str(absolute_path(main["git_dir"])))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            self._set_aside()
            raise _damaged(self.path, repr(error)) from None

    def at(self, path: str) -> "Worktree | None":
        """The worktree whose root is `path` (canonical)."""
        found = self._read("SELECT document FROM worktrees WHERE path = ?", (os.fsencode(path),))
        return found[0] if found else None

    def of(self, common_dir: str) -> "list[Worktree]":
        """All worktrees of a repository, in the order of their paths."""
        return self._read(
            "SELECT document FROM worktrees WHERE repository = ? ORDER BY path", (os.fsencode(common_dir),)
        )

    def all(self) -> "list[Worktree]":
        """All worktrees of all repositories."""
        return self._read("SELECT document FROM worktrees ORDER BY path", ())

    def save(self, worktree: "Worktree") -> None:
        """Keeps a worktree, in place of an earlier one with its id.

        Refusals: worktree-exists (another one has its path).
        """
        row = (
            worktree.worktree_id,
            os.fsencode(worktree.main.common_dir),
            os.fsencode(worktree.main.path),
            worktree.state.value,
            written(worktree),
        )
        statement = (
            "INSERT INTO worktrees VALUES (?, ?, ?, ?, ?) ON CONFLICT (worktree_id) DO UPDATE SET "
            "repository = excluded.repository, path = excluded.path, state = excluded.state, "
            "document = excluded.document"
        )
        self._act(lambda database: database.execute(statement, row))

    def forget(self, worktree_id: str) -> None:
        """Drops a worktree, if it is known."""
        self._act(lambda database: database.execute("DELETE FROM worktrees WHERE worktree_id = ?", (worktree_id,)))

    def note_trunk(self, worktree_id: str, path: str) -> None:
        """Notes where a worktree of the user's own is: agents' worktrees are made from it and merged into it."""
        statement = "INSERT OR REPLACE INTO trunks VALUES (?, ?)"
        self._act(lambda database: database.execute(statement, (worktree_id, os.fsencode(path))))

    def trunk(self, worktree_id: str) -> str | None:
        """Where `note_trunk` said that a worktree is."""
        row = self._act(
            lambda database: database.execute(
                "SELECT path FROM trunks WHERE worktree_id = ?", (worktree_id,)
            ).fetchone()
        )
        return None if row is None else os.fsdecode(row[0])

    # Locks between processes: one for each repository, and one for each worktree that is being made or removed.
    #
    # flock(2) on files in the state directory, which no jail can reach. The kernel releases a lock when the last
    # process that has it open has ended, so a SIGKILL leaves free locks. `Git(hold=...)` passes the descriptor to the
    # git processes: a checkout that outlives its Paddock still counts as work in progress.

    @contextmanager
    def repository_lock(self, common_dir: str) -> Iterator[int]:
        """Waits for the lock that a repository's names, refs and metadata are changed under; gives its descriptor."""
        import hashlib

        name = hashlib.sha256(os.fsencode(common_dir)).hexdigest()[:24]
        descriptor = _locked(f"{self._state}/locks/repository-{name}", wait=True)
        assert descriptor is not None
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def worktree_lock(self, worktree_id: str) -> Iterator[int | None]:
        """Holds the lock of a worktree for the block; gives None at once when another process has it."""
        descriptor = _locked(self._worktree_lock(worktree_id), wait=False)
        try:
            yield descriptor
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def remove_worktree_lock(self, worktree_id: str) -> None:
        """Removes the lock file of a worktree, which the caller holds: whoever waits for it makes a new one."""
        with suppress(FileNotFoundError):
            os.unlink(self._worktree_lock(worktree_id))

    def _worktree_lock(self, worktree_id: str) -> str:
        return f"{self._state}/locks/worktree-{worktree_id}"

    def _read(self, statement: str, values: tuple[object, ...]) -> "list[Worktree]":
        from launcher.vcs.worktrees.models import Worktree

        rows = self._act(lambda database: database.execute(statement, values).fetchall())
        try:
            return [read(Worktree, row[0]) for row in rows]
        except ValueError as error:
            self._set_aside()
            raise _damaged(self.path, str(error)) from None

    def _act(self, action: Callable[[sqlite3.Connection], T]) -> T:
        try:
            database = self._opened()
            try:
                with database:
                    return action(database)
            finally:
                database.close()
        except sqlite3.IntegrityError as error:
            raise Refusal(
                "worktree-exists", "a worktree already exists at this place", context=str(error),
                hint="paddock worktree list; paddock worktree repair",
            ) from None  # fmt: skip
        except sqlite3.OperationalError as error:
            raise unusable(self.path, OSError(str(error))) from None
        except sqlite3.DatabaseError as error:
            self._set_aside()
            raise _damaged(self.path, str(error)) from None

    def _opened(self) -> sqlite3.Connection:
        if not os.path.exists(self.path):
            try:
                os.makedirs(self._state, 0o700, exist_ok=True)
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
            except OSError as error:
                raise unusable(self.path, error) from None
        database = sqlite3.connect(self.path, timeout=_PATIENCE)
        try:
            # WAL: readers never wait for a writer. FULL: what was said to be done survives a power failure.
            self._patiently(database, "PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=FULL")
            database.execute("PRAGMA temp_store=MEMORY")  # never where TMPDIR says
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version == 0:
                database.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version={_VERSION}; COMMIT;")
            elif version != _VERSION:
                raise Refusal(
                    "state-version",
                    f"{self.path} was written by another version of Paddock",
                    context=f"its schema is {version}, and this version knows {_VERSION}",
                    hint="use the newer Paddock; or move the file away, and `paddock worktree repair` recreates it",
                )
        except BaseException:
            database.close()
            raise
        return database

    @staticmethod
    def _patiently(database: sqlite3.Connection, statement: str) -> None:
        """The change to WAL does not wait for others by itself (sqlite.org/wal.html): it says "locked" at once."""
        end = time.monotonic() + _PATIENCE
        while True:
            try:
                database.execute(statement)
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > end:
                    raise
                time.sleep(0.005)

    def _set_aside(self) -> None:
        """Moves a damaged database away, so that the next command makes a new one and finds the worktrees again."""
        mark = f"damaged-{time.time_ns()}"
        for suffix in ("", "-wal", "-shm"):
            try:
                os.rename(self.path + suffix, f"{self.path}.{mark}{suffix}")
            except FileNotFoundError:
                pass


def root_of(name: str, rows: "list[Worktree]", *, branches: bool = True) -> str | None:
    """Root of the one worktree that a ticket, id or (with `branches`) a branch means; None when there is none.

    Refusals: worktree-ambiguous.
    """
    ticket = label(name)  # as it is kept
    named = [row for row in rows if name == row.worktree_id or ticket == row.ticket
             or (branches and name == row.main.branch)]  # fmt: skip
    if len(named) > 1:
        context = in_rows(*(f"{row.worktree_id} in {row.path}" for row in named))
        raise Refusal("worktree-ambiguous", f"several worktrees match {name}", context=context,
                      hint="name one by its directory")  # fmt: skip
    return named[0].path if named else None


def _damaged(path: str, why: str) -> Refusal:
    return Refusal(
        "worktree-store-damaged",
        f"{path} is damaged; it has been moved aside",
        context=why,
        hint="paddock worktree repair finds the worktrees again from git's own files",
    )


def _locked(path: str, *, wait: bool) -> int | None:
    while True:
        try:
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise unusable(path, error) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        try:
            if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                return descriptor
        except FileNotFoundError:
            pass
        os.close(descriptor)  # removed by the process before this one


def labels_of(state: str, roots: Iterable[str]) -> dict[str, tuple[str, str]]:
    """What people know worktrees by: root of each -> (ticket, branch), "" for what it has not.

    Args:
        state: Paddock's state directory.
        roots: of worktrees.
    """
    store = WorktreeRepository(state)
    tickets = {row.path: row.ticket for row in store.all()} if os.path.exists(store.path) else {}
    found = {}
    for root in roots:
        branch = ""
        with suppress(Refusal, OSError):  # gone, or an agent is at its `.git`
            git_dir = checkout.find(root, Present(), exact=True).git_dir
            branch = ref_files.named(git_dir).removeprefix("refs/heads/") or "detached"
        found[root] = (tickets.get(root, ""), branch)
    return found
