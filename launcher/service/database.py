"""The service's database: one SQLite file, WAL, looked at before it is believed.

Written by one thread of the service; other processes of the service (ticket runs) have connections of their own. A
commit survives SIGKILL of the service; after a power failure the last ones may be missing, never half there (WAL with
``synchronous=NORMAL``, sqlite.org/pragma.html).

The service's thread is its event loop, which must not wait for somebody else's lock: it opens the database with little
patience. A write then fails with `database-busy`; one that a client waits for is tried again by `patiently`, one that
nobody waits for by `later`.
"""

import asyncio
import logging
import os
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import TypeVar

import psutil

from launcher.service.schema import Conditions
from policy.errors import Refusal, printable, unusable

log = logging.getLogger("paddock.service")

PATIENCE = 10.0
"""Seconds that a process without an event loop waits for another one's lock."""

LOOP_PATIENCE = 0.1
"""The same for the service itself; once it was in vain, its next writes do not wait at all until one succeeds."""

_CLIENT_SECONDS = 2.0
_RETRY_SECONDS = 0.05
_MOST_WAITING = 10_000

BUSY, FULL, UNUSABLE = "database-busy", "database-full", "database-unusable"
GONE = "database-gone"
PASSING = frozenset({BUSY, FULL, UNUSABLE})
"""References of refusals after which the same write may succeed later."""

_Result = TypeVar("_Result")

_VERSION = 4
_SCHEMA = """
CREATE TABLE session (
    name TEXT PRIMARY KEY, state TEXT NOT NULL, attempt INTEGER NOT NULL, request TEXT NOT NULL,
    client_uid INTEGER NOT NULL, created REAL NOT NULL, started REAL, ended REAL,
    process INTEGER, process_started INTEGER, cgroup TEXT NOT NULL DEFAULT '',
    worktree TEXT NOT NULL DEFAULT '', worktree_id TEXT NOT NULL DEFAULT '', backend TEXT NOT NULL DEFAULT '',
    network TEXT NOT NULL DEFAULT '', spawn_seconds REAL, outcome TEXT, moves INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX session_state ON session (state, created);
CREATE TABLE transition (
    session TEXT NOT NULL REFERENCES session (name) ON DELETE CASCADE, time REAL NOT NULL,
    before TEXT NOT NULL, after TEXT NOT NULL, attempt INTEGER NOT NULL, why TEXT NOT NULL
);
CREATE INDEX transition_session ON transition (session);
CREATE TABLE idempotency (
    key TEXT NOT NULL, client_uid INTEGER NOT NULL, digest TEXT NOT NULL, session TEXT NOT NULL,
    created REAL NOT NULL, forgotten REAL, PRIMARY KEY (client_uid, key)
);
CREATE TABLE context (
    key TEXT PRIMARY KEY, content TEXT NOT NULL, version INTEGER NOT NULL, used REAL NOT NULL,
    expired INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX context_used ON context (used);
CREATE TABLE ticket_run (
    name TEXT PRIMARY KEY, state TEXT NOT NULL, request TEXT NOT NULL, client_uid INTEGER NOT NULL,
    created REAL NOT NULL, ended REAL, common_dir TEXT NOT NULL DEFAULT '', result TEXT,
    key TEXT, digest TEXT NOT NULL DEFAULT ''
);
CREATE UNIQUE INDEX ticket_run_key ON ticket_run (client_uid, key);
CREATE TABLE repository (common_dir TEXT PRIMARY KEY, merging INTEGER NOT NULL);
CREATE TABLE ticket (
    run TEXT NOT NULL REFERENCES ticket_run (name) ON DELETE CASCADE, number INTEGER NOT NULL,
    ticket TEXT NOT NULL, state TEXT NOT NULL, changed REAL NOT NULL, attempt INTEGER NOT NULL DEFAULT 0,
    session TEXT NOT NULL DEFAULT '', worktree TEXT NOT NULL DEFAULT '', worktree_id TEXT NOT NULL DEFAULT '',
    agent TEXT, merged TEXT, PRIMARY KEY (run, number)
);
CREATE TABLE event (
    id INTEGER PRIMARY KEY, time REAL NOT NULL, kind TEXT NOT NULL, session TEXT NOT NULL, data TEXT NOT NULL
);
"""


class Database:
    """An open database.

    Attributes:
        notes: what had to be done to open it, for people.
        conditions: of the service, among them those of the database.
    """

    def __init__(self, path: str, *, patience: float = PATIENCE, conditions: Conditions | None = None) -> None:
        """Opens and checks it; makes it when there is none."""
        self.path = path
        self.notes: list[str] = []
        self.conditions = Conditions() if conditions is None else conditions
        self._patience = patience
        self._failed: Refusal | None = None
        self._waiting: deque[Callable[[], object]] = deque()
        self._retry: asyncio.TimerHandle | None = None
        try:
            self.connection = self._opened()
        except OSError as error:
            raise unusable(path, error) from None
        except sqlite3.DatabaseError as error:
            if not _damaged(error):
                raise self._refusal(error) from None
            self._move_aside(str(error))
            try:
                self.connection = self._opened()
            except sqlite3.Error as again:
                raise self._refusal(again) from None
        try:
            self._files = _files(path)
        except OSError as error:
            self.connection.close()
            raise unusable(path, error) from None
        self._wait_for_locks(patience)

    def _opened(self) -> sqlite3.Connection:
        connection = connect(self.path)
        try:
            _write_ahead(connection)
            found = [row[0] for row in connection.execute("PRAGMA quick_check(5)")]
            if found != ["ok"]:
                raise sqlite3.DatabaseError("malformed: " + "; ".join(found))
            self._make(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _make(self, connection: sqlite3.Connection) -> None:
        """Makes the tables in one transaction: another process that opens the file meanwhile waits, and finds them."""
        connection.execute("BEGIN IMMEDIATE")
        try:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, _VERSION):
                raise Refusal(
                    "database-version",
                    f"{self.path} was written by another version of Paddock",
                    context=f"its version is {version}, this Paddock knows {_VERSION}",
                    hint="update Paddock, or move the file away to begin with an empty record",
                )
            if version == 0:
                for statement in filter(str.strip, _SCHEMA.split(";")):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {_VERSION}")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")

    def _move_aside(self, why: str) -> None:
        """Renames a damaged file, so that it can be examined, and continues with an empty one."""
        aside = _aside(self.path, "damaged")
        for suffix in ("", "-wal", "-shm"):
            if os.path.lexists(self.path + suffix):
                os.replace(self.path + suffix, aside + suffix)
        note = f"the database was damaged ({why}) and has been moved to {aside}; the record of sessions starts empty"
        self.notes.append(note)
        log.error(note)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all of its statements count, or none (database-busy, database-full, database-unusable)."""
        try:
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield self.connection
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:  # SQLite itself has rolled back some
                    with suppress(sqlite3.Error):
                        self.connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise self._refusal(error) from None
        if self._failed is not None:
            self._works()

    def rows(self, query: str, *values: object) -> list[sqlite3.Row]:
        """The answer to a query."""
        try:
            return self.connection.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise self._refusal(error) from None

    async def patiently(self, write: Callable[[], _Result]) -> _Result:
        """Makes a write that a client waits for: again and again while the database is locked, other work between."""
        deadline = time.monotonic() + _CLIENT_SECONDS
        while True:
            try:
                return write()
            except Refusal as refusal:
                if refusal.reference != BUSY or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(_RETRY_SECONDS)

    def later(self, write: Callable[[], object]) -> None:
        """Makes a write that nobody waits for, as soon as the database takes it; a failed one must change nothing."""
        if len(self._waiting) >= _MOST_WAITING:
            log.error("%d writes are waiting for the database; the oldest is dropped", len(self._waiting))
            self._waiting.popleft()
        self._waiting.append(write)
        if self._retry is None:
            self._write_waiting()

    def _write_waiting(self) -> None:
        self._retry = None
        while self._waiting:
            try:
                self._waiting[0]()
            except Refusal as refusal:
                if refusal.reference in PASSING:
                    self._retry = asyncio.get_running_loop().call_later(5 * _RETRY_SECONDS, self._write_waiting)
                    return
                log.error("not recorded: %s (%s)", refusal.message, refusal.context)
            except Exception:  # or those behind it would wait for ever
                log.exception("not recorded")
            self._waiting.popleft()

    def keep_file(self) -> None:
        """Writes the database anew in its place when the open file was removed or replaced.

        SQLite would go on with a file without a name, of which nothing is left when the service ends.
        """
        if all(_is_at(file, self.path + suffix) for suffix, file in self._files.items()):
            self.conditions.clear(GONE)
            return
        what = f"the service's database {self.path} was removed or replaced while the service has it open"
        hint = "the service rewrites it as soon as it can, and loses it if it ends before: leave it running"
        self.conditions.raise_(GONE, what, hint)
        try:
            self._write_anew()
        except (OSError, sqlite3.Error, Refusal) as error:
            self.conditions.raise_(GONE, f"{what}, and cannot be rewritten: {error}",
                                   f"check {os.path.dirname(self.path)}; {hint}")  # fmt: skip
            return
        log.warning("all of %s was rewritten", self.path)
        self.conditions.clear(GONE)

    def _write_anew(self) -> None:
        fresh = f"{self.path}.new"
        _unlink(fresh, "", "-journal", "-wal", "-shm")  # of one that was killed at this
        try:
            with closing(connect(fresh)) as copy:
                self.connection.backup(copy)
                copy.execute("PRAGMA journal_mode=DELETE")  # all of it in the one file
        except BaseException:
            _unlink(fresh, "", "-journal", "-wal", "-shm")  # the disk may be full
            raise
        # SQLite would take an old write-ahead log for the new file's.
        aside = _aside(self.path, "replaced")
        for suffix, file in self._files.items():
            if os.path.lexists(self.path + suffix) and not _is_at(file, self.path + suffix):
                os.replace(self.path + suffix, aside + suffix)
                log.error("the file that had replaced the database is at %s", aside + suffix)
        _unlink(self.path, "-wal", "-shm")
        os.replace(fresh, self.path)
        old, self.connection = self.connection, self._opened()
        old.close()  # which leaves files alone that are not its own (SQLITE_FCNTL_HAS_MOVED)
        self._wait_for_locks(self._patience)
        before, self._files = self._files, _files(self.path)
        for file in before.values():
            os.close(file)

    def probe(self) -> None:
        """Finds out whether the database can be written, and raises or clears the conditions of that."""
        self.keep_file()
        with suppress(Refusal), self.transaction() as connection:
            if self._failed is not None:  # a page is really written
                connection.execute("CREATE TABLE probe (content BLOB)")
                connection.execute("INSERT INTO probe VALUES (zeroblob(4096))")
                connection.execute("DROP TABLE probe")

    def close(self) -> None:
        """Closes it, and leaves no WAL behind."""
        if self._retry is not None:
            self._retry.cancel()
            with suppress(RuntimeError):  # no loop runs any more: this was the last chance
                self._write_waiting()
        if self._waiting:
            log.error("%d writes could not be made before the service ended", len(self._waiting))
        self.keep_file()
        self.connection.close()
        for file in self._files.values():
            os.close(file)

    def _wait_for_locks(self, seconds: float) -> None:
        self.connection.execute(f"PRAGMA busy_timeout={int(seconds * 1_000)}")

    def _works(self) -> None:
        """A write has succeeded after others had failed."""
        self._failed = None
        self._wait_for_locks(self._patience)
        for name in PASSING:
            self.conditions.clear(name)

    def _refusal(self, error: sqlite3.Error) -> Refusal:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_CONSTRAINT:
            return self._refused(UNUSABLE, str(error))
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            if self._failed is not None and self._failed.reference == BUSY:
                return self._refused(BUSY, self._failed.context)
            refusal = self._refused(BUSY, holder(self.path))
            if hasattr(self, "connection"):
                self._wait_for_locks(0 if self._patience < PATIENCE else self._patience)
        elif code == sqlite3.SQLITE_FULL:
            refusal = self._refused(FULL, str(error))
        else:
            refusal = self._refused(UNUSABLE, str(error))
        if self._failed is not None and self._failed.reference != refusal.reference:
            self.conditions.clear(self._failed.reference)
        self._failed = refusal
        self.conditions.raise_(refusal.reference, refusal.message, refusal.hint)
        return refusal

    def _refused(self, reference: str, context: str) -> Refusal:
        message, hint = _TEXTS[reference]
        return Refusal(reference, message.format(path=self.path), context=context, hint=hint)


_TEXTS = {
    BUSY: ("the service's database {path} is locked by another process",
           "try again; if it stays locked, check the process that holds it"),
    FULL: ("no space left for the service's database {path}",
           "free some space on its filesystem; the service then continues by itself"),
    UNUSABLE: ("the service's database {path} cannot be used", "free some space, or check the file's owner and mode"),
}  # fmt: skip


def holder(path: str) -> str:
    """Who holds a lock for writing on the database, in words; "" when that cannot be known (proc_locks(5))."""
    files = set()
    for suffix in ("", "-shm"):
        with suppress(OSError):
            found = os.stat(path + suffix)
            files.add(f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}")
    try:
        with open("/proc/locks", encoding="ascii") as locks:
            held = [line.split() for line in locks if " WRITE " in line and " -> " not in line]
    except OSError:
        return ""
    pids = sorted({int(words[4]) for words in held if words[5] in files and int(words[4]) > 0} - {os.getpid()})
    return ", ".join(f"process {pid} ({_name(pid)}) holds the lock" for pid in pids)


def _name(pid: int) -> str:
    try:
        return printable(psutil.Process(pid).name())
    except psutil.Error:
        return "?"


def connect(path: str) -> sqlite3.Connection:
    """A connection with the pragmas that all connections here have. The file is made with mode 0600, and so its WAL."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    connection = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA temp_store=MEMORY")  # never where TMPDIR says
    connection.execute("PRAGMA foreign_keys=ON")
    return connection


def _files(path: str) -> dict[str, int]:
    """Descriptors (O_PATH: closing another kind would give up SQLite's locks) of the files of an open database."""
    found = {}
    for suffix in ("", "-wal"):
        with suppress(FileNotFoundError):  # a filesystem without shared memory has no write-ahead log
            found[suffix] = os.open(path + suffix, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    return found


def _is_at(file: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(path, follow_symlinks=False))
    except OSError:
        return False


def _unlink(path: str, *suffixes: str) -> None:
    for suffix in suffixes:
        with suppress(FileNotFoundError):
            os.unlink(path + suffix)


def _aside(path: str, why: str) -> str:
    return f"{path}.{why}-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}"


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Switches to a write-ahead log, which somebody may be doing at this moment; SQLite does not wait for that."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _damaged(error: sqlite3.DatabaseError) -> bool:
    return "malformed" in str(error) or "not a database" in str(error)
