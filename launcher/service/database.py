"""The service's database: one SQLite file, WAL, migrated step by step, looked at before it is believed.

Written by one thread of the service; other processes of the service (ticket runs) have connections of their own. A
commit survives SIGKILL of the service; after a power failure the last ones may be missing, never half there (WAL with
``synchronous=NORMAL``, sqlite.org/pragma.html).
"""

import logging
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager

from launcher.session.places import unusable
from policy.errors import Refusal

log = logging.getLogger("paddock.service")

_BUSY_SECONDS = 10.0

MIGRATIONS = (
    """
    CREATE TABLE session (
        name TEXT PRIMARY KEY, state TEXT NOT NULL, attempt INTEGER NOT NULL, request TEXT NOT NULL,
        client_uid INTEGER NOT NULL, created REAL NOT NULL, started REAL, ended REAL,
        process INTEGER, process_started INTEGER, cgroup TEXT NOT NULL DEFAULT '',
        worktree TEXT NOT NULL DEFAULT '', worktree_id TEXT NOT NULL DEFAULT '', backend TEXT NOT NULL DEFAULT '',
        network TEXT NOT NULL DEFAULT '', spawn_seconds REAL, outcome TEXT
    );
    CREATE INDEX session_state ON session (state, created);
    CREATE TABLE transition (
        session TEXT NOT NULL REFERENCES session (name) ON DELETE CASCADE, time REAL NOT NULL,
        before TEXT NOT NULL, after TEXT NOT NULL, attempt INTEGER NOT NULL, why TEXT NOT NULL
    );
    CREATE INDEX transition_session ON transition (session);
    CREATE TABLE idempotency (
        key TEXT NOT NULL, client_uid INTEGER NOT NULL, digest TEXT NOT NULL, session TEXT NOT NULL,
        created REAL NOT NULL, PRIMARY KEY (client_uid, key)
    );
    """,
    """
    CREATE TABLE context (
        key TEXT PRIMARY KEY, content TEXT NOT NULL, version INTEGER NOT NULL, used REAL NOT NULL,
        expired INTEGER NOT NULL DEFAULT 0
    );
    CREATE TABLE ticket_run (
        name TEXT PRIMARY KEY, state TEXT NOT NULL, request TEXT NOT NULL, client_uid INTEGER NOT NULL,
        created REAL NOT NULL, ended REAL, common_dir TEXT NOT NULL DEFAULT '', result TEXT
    );
    CREATE TABLE repository (common_dir TEXT PRIMARY KEY, merging INTEGER NOT NULL);
    """,
)
"""Each brings the database from one version (PRAGMA user_version) to the next."""


class Database:
    """An open database.

    Attributes:
        notes: what had to be done to open it, for people.
    """

    def __init__(self, path: str) -> None:
        """Opens, checks and migrates it; makes it when there is none.

        Args:
            path: of the file, in a directory of ours.

        Raises:
            Refusal: database-newer; database-unusable.
        """
        self.path = path
        self.notes: list[str] = []
        try:
            self.connection = self._opened()
        except OSError as error:
            raise unusable(path, error) from None
        except sqlite3.DatabaseError as error:
            if not _damaged(error):
                raise _unusable(path, error) from None
            self._move_aside(str(error))
            try:
                self.connection = self._opened()
            except sqlite3.Error as again:
                raise _unusable(path, again) from None

    def _opened(self) -> sqlite3.Connection:
        connection = connect(self.path)
        try:
            _write_ahead(connection)
            found = [row[0] for row in connection.execute("PRAGMA quick_check(5)")]
            if found != ["ok"]:
                raise sqlite3.DatabaseError("malformed: " + "; ".join(found))
            self._migrate(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _migrate(self, connection: sqlite3.Connection) -> None:
        """Step by step, in one transaction: whoever opens the file at the same time waits, and finds it done."""
        connection.execute("BEGIN IMMEDIATE")
        try:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version > len(MIGRATIONS):
                raise Refusal(
                    "database-newer",
                    f"{self.path} was written by a newer Paddock",
                    context=f"its version is {version}, this Paddock knows {len(MIGRATIONS)}",
                    hint="update Paddock, or move the file away to begin with an empty record",
                )
            for script in MIGRATIONS[version:]:
                for statement in filter(str.strip, script.split(";")):
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")

    def _move_aside(self, why: str) -> None:
        """A damaged file is kept for whoever wants to look at it; the service goes on with an empty one."""
        aside = f"{self.path}.damaged-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}"
        for suffix in ("", "-wal", "-shm"):
            if os.path.lexists(self.path + suffix):
                os.replace(self.path + suffix, aside + suffix)
        note = f"the database was damaged ({why}) and has been moved to {aside}; the record of sessions begins anew"
        self.notes.append(note)
        log.error(note)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing.

        Raises:
            Refusal: database-unusable: the disk is full, the file is gone ...
        """
        try:
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield self.connection
            except BaseException:
                self.connection.execute("ROLLBACK")
                raise
            self.connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise _unusable(self.path, error) from None

    def rows(self, query: str, *values: object) -> list[sqlite3.Row]:
        """The answer to a query.

        Raises:
            Refusal: database-unusable.
        """
        try:
            return self.connection.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise _unusable(self.path, error) from None

    def close(self) -> None:
        """Closes it, and leaves no WAL behind."""
        self.connection.close()


def connect(path: str) -> sqlite3.Connection:
    """A connection with the pragmas that all connections here have. The file is made with mode 0600, and so its WAL."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA temp_store=MEMORY")  # never where TMPDIR says
    connection.execute("PRAGMA foreign_keys=ON")
    return connection


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Switches to a write-ahead log, which somebody may be doing at this moment; SQLite does not wait for that."""
    deadline = time.monotonic() + _BUSY_SECONDS
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


def _unusable(path: str, error: sqlite3.Error) -> Refusal:
    return Refusal(
        "database-unusable",
        f"the service's database {path} cannot be used",
        context=str(error),
        hint="free some space, or look at the file's owner and mode",
    )
