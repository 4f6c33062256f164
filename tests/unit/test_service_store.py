"""The service's record: states, damage, keys; its settings; its logs."""

import asyncio
import errno
import functools
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from launcher.service import log_files, settings
from launcher.service.database import Database
from launcher.service.log_files import Redactor, secrets
from launcher.service.schema import FINAL, TRANSITIONS, SessionRequest, SessionState, check
from launcher.service.shim.attempt import unstartable
from launcher.service.tables import SessionStore, session_of
from launcher.session.places import Places
from policy.errors import Refusal


def request(name: str, **fields: object) -> SessionRequest:
    return SessionRequest.model_validate({"name": name, "command": ["true"], "directory": "/", **fields})


@pytest.fixture
def store(tmp_path: Path) -> SessionStore:
    return SessionStore(Database(str(tmp_path / "service.db")))


def test_too_few_open_files_for_a_session_are_named_with_their_limit() -> None:
    """Nobody looks for what else the machine might be short of."""
    refusal = unstartable(OSError(errno.EMFILE, "Too many open files"))
    assert "(RLIMIT_NOFILE)" in refusal.context
    assert "LimitNOFILE=" in refusal.hint
    assert unstartable(OSError(errno.ENOMEM, "no")).hint == "the machine is out of some resource"


def test_states_only_move_as_the_table_says(store: SessionStore) -> None:
    """What is over stays over; every state leads to an end."""
    for state, after in TRANSITIONS.items():
        assert after <= FINAL if state in FINAL else after
        assert state in FINAL or after & FINAL
    store.create(request("a"), 0)
    store.move("a", SessionState.STARTING, "x", attempt=1)
    store.move("a", SessionState.LOST, "y")
    with pytest.raises(Refusal, match="lost and cannot become running"):
        store.move("a", SessionState.RUNNING, "z")
    assert [move.after for move in store.transitions("a")] == ["starting", "lost"]
    with pytest.raises(Refusal):
        check("a", SessionState.STOPPING, SessionState.CREATED)


def test_a_failed_move_writes_nothing(store: SessionStore) -> None:
    """The row and its transition belong together."""
    store.create(request("a"), 0)
    with pytest.raises(Refusal, match="cannot become stopping"):
        store.move("a", SessionState.STOPPING, "x")
    assert session_of(store.required("a")).state == "created"
    assert store.transitions("a") == []


@pytest.mark.parametrize("version", [3, 99])
def test_a_record_of_another_version_is_left_alone(tmp_path: Path, version: int) -> None:
    """It holds what this one would not understand."""
    path = str(tmp_path / "other.db")
    database = Database(path)
    SessionStore(database).create(request("a"), 0)
    database.connection.execute(f"PRAGMA user_version = {version}")
    database.close()
    with pytest.raises(Refusal, match="another version"):
        Database(path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT name FROM session").fetchall() == [("a",)]


@pytest.mark.parametrize("damage", ["nonsense", "torn"])
def test_a_damaged_database_is_moved_aside(tmp_path: Path, damage: str) -> None:
    """The service begins anew, says so, and keeps the damaged file."""
    path = tmp_path / "service.db"
    database = Database(str(path))
    for number in range(200):
        SessionStore(database).create(request(f"s{number}"), 0)
    database.close()
    content = path.read_bytes()
    path.write_bytes(b"nonsense" * 1_000 if damage == "nonsense" else content[:4096] + bytes(len(content) - 4096))
    again = Database(str(path))
    assert SessionStore(again).listed() == []
    assert "was damaged" in again.notes[0]
    assert [name for name in os.listdir(tmp_path) if ".damaged-" in name]
    again.close()


@pytest.mark.parametrize("lost", [("",), ("-wal",), ("", "-wal", "-shm"), ("other",)], ids="+".join)
@pytest.mark.parametrize("how", ["looks", "ends", "killed"])
def test_a_database_that_is_removed_while_it_is_open_is_written_anew(
    tmp_path: Path, how: str, lost: tuple[str, ...]
) -> None:
    """With all that was in it and was written since; what somebody has put in its place is kept."""
    path = tmp_path / "service.db"
    database = Database(str(path))
    store = SessionStore(database)
    told: list[tuple[str, bool]] = []
    database.conditions.changed = lambda condition, raised: told.append((condition.id, raised))
    store.create(request("a"), 0)
    if lost == ("other",):
        Database(str(tmp_path / "other")).close()
        (tmp_path / "other").rename(path)
    else:
        for suffix in lost:
            Path(f"{path}{suffix}").unlink()
    store.create(request("b"), 0)
    if how != "ends":
        database.probe()
        assert told == [("database-gone", True), ("database-gone", False)]
        store.create(request("c"), 0)
        database.probe()
    if how != "killed":  # as for the next service, else
        database.close()
    assert len(told) == 2
    for _ in range(2):
        again = Database(str(path))
        assert again.notes == []
        assert {row["name"] for row in SessionStore(again).listed()} == {"a", "b", *("c" if how != "ends" else "")}
        again.close()
    kept = [name for name in os.listdir(tmp_path) if ".replaced-" in name]
    assert len(kept) == (lost == ("other",))
    assert not (tmp_path / "service.db.new").exists()


def test_a_database_that_cannot_be_written_anew_goes_on_without_a_name(tmp_path: Path) -> None:
    """The service is degraded and says why, until there is a place for it again."""
    path = tmp_path / "service/service.db"
    path.parent.mkdir()
    database = Database(str(path))
    shutil.rmtree(path.parent)
    for name in ("a", "b"):
        SessionStore(database).create(request(name), 0)
        database.probe()
        assert database.conditions.names() == ["database-gone"]
        assert "No such file or directory" in database.conditions.listed()[0].what
    path.parent.mkdir()
    database.close()
    again = Database(str(path))
    assert len(SessionStore(again).listed()) == 2
    again.close()


def test_keys_belong_to_their_client(store: SessionStore) -> None:
    """The same key of another user is another key; they are forgotten in time."""
    store.create(request("a"), 1000, "k", "digest")
    assert store.remembered("k", 1000, "digest") == "a"
    assert store.remembered("k", 0, "digest") is None
    with pytest.raises(Refusal, match="another request"):
        store.remembered("k", 1000, "other")
    store.forget_keys(4e9)
    assert store.remembered("k", 1000, "other") is None


def test_a_key_whose_session_is_forgotten_makes_none_and_names_no_other(store: SessionStore) -> None:
    """The request was carried out once; another session that has the name by now is not its answer."""
    store.create(request("a"), 0, "k", "digest")
    store.move("a", SessionState.ENDED, "x")
    store.forget("a")
    for _ in range(2):
        with pytest.raises(Refusal) as caught:
            store.remembered("k", 0, "digest")
        assert caught.value.reference == "session-forgotten"
        if store.row("a") is None:
            store.create(request("a"), 0, "other", "digest")
    assert store.remembered("other", 0, "digest") == "a"


def test_a_session_and_its_key_are_written_together(store: SessionStore) -> None:
    """A key that cannot be written leaves no session behind that nobody would start."""
    store.create(request("a"), 0, "k", "digest")
    with pytest.raises(Refusal):
        store.create(request("b"), 0, "k", "digest")
    assert store.row("b") is None


_HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute(sys.argv[2])
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held(path: Path, statement: str = "BEGIN IMMEDIATE") -> Iterator[int]:
    """The database's lock in the hands of another process; its process id."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(path), statement], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        try:
            yield process.pid
        finally:
            process.communicate()


def test_a_foreign_lock_is_named_and_costs_one_short_wait(tmp_path: Path) -> None:
    """The first write waits a little, the next ones not at all; reads answer, and all is well when the lock is gone."""
    path = tmp_path / "service.db"
    database = Database(str(path), patience=0.05)
    store = SessionStore(database)
    store.create(request("a"), 0)
    with held(path) as pid:
        for number in range(200):  # which would be ten seconds, if each waited
            with pytest.raises(Refusal) as caught:
                store.create(request(f"b{number}"), 0)
            assert caught.value.reference == "database-busy"
            assert f"process {pid} (" in caught.value.context
        assert database.rows("PRAGMA busy_timeout")[0][0] == 0
        assert [row["name"] for row in store.listed()] == ["a"]
        assert database.conditions.names() == ["database-busy"]
        database.probe()
        assert database.conditions.names() == ["database-busy"]
    database.probe()
    assert database.conditions.names() == []
    store.create(request("b"), 0)
    assert database.rows("PRAGMA busy_timeout")[0][0] == 50
    database.close()


def test_writes_wait_for_a_foreign_lock_in_their_order(tmp_path: Path) -> None:
    """One that a client waits for is made as soon as it can be, or refused; others are made later. The loop runs on."""
    path = tmp_path / "service.db"
    database = Database(str(path), patience=0.05)
    store = SessionStore(database)

    async def scene() -> None:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.01)

        ticking = asyncio.create_task(tick())
        with held(path):
            for number in range(3):
                database.later(functools.partial(store.create, request(f"later{number}"), 0))
            with pytest.raises(Refusal, match="locked by another process"):
                await database.patiently(lambda: store.create(request("refused"), 0))
            assert ticks > 20
            waiting = asyncio.create_task(database.patiently(lambda: store.create(request("patient"), 0)))
            await asyncio.sleep(0)
        await waiting
        while store.row("later2") is None:
            await asyncio.sleep(0.01)
        ticking.cancel()

    asyncio.run(scene())
    names = [row["name"] for row in store.database.rows("SELECT name FROM session ORDER BY rowid")]
    assert sorted(names) == ["later0", "later1", "later2", "patient"]
    assert [name for name in names if name.startswith("later")] == ["later0", "later1", "later2"]
    database.close()


def test_a_full_disk_refuses_writes_and_no_more_when_there_is_room(tmp_path: Path) -> None:
    """A transaction that found no room is rolled back, whichever of its statements found that; reads answer."""
    database = Database(str(tmp_path / "service.db"))
    store = SessionStore(database)
    store.create(request("a"), 0)
    pages = database.rows("PRAGMA page_count")[0][0]
    database.connection.execute(f"PRAGMA max_page_count={pages}")
    labels = {str(number): "y" * 1_000 for number in range(30)}
    with pytest.raises(Refusal) as caught:
        store.create(request("b", labels=labels), 0)
    assert caught.value.reference == "database-full"
    assert not database.connection.in_transaction
    database.probe()
    assert database.conditions.names() == ["database-full"]
    assert store.row("a") is not None
    database.connection.execute("PRAGMA max_page_count=100000")
    database.probe()
    assert database.conditions.names() == []
    store.create(request("after"), 0)
    assert database.rows("SELECT name FROM sqlite_master WHERE name = 'probe'") == []
    database.close()


def test_settings_name_what_is_wrong(tmp_path: Path) -> None:
    """The user's file wins over the machine's, key by key; unknown keys and wrong values are refused."""
    places = Places("/h", str(tmp_path), "/s", "/c")
    system = tmp_path / "system.toml"
    system.write_text("helpers = 2\nmost_sessions = 9\n")
    own = tmp_path / "service.toml"
    own.write_text("helpers = 3\n")
    found = settings.load(places, system)
    assert (found.helpers, found.most_sessions) == (3, 9)
    for text, words in (
        ("helprs = 3", "did you mean helpers"),
        ("helpers = -1", "greater than or equal"),
        ("x", "cannot be read"),
    ):
        own.write_text(text)
        with pytest.raises(Refusal) as caught:
            settings.load(places, system)
        assert words in str(caught.value)
        assert str(own) in str(caught.value)


def test_a_secret_is_not_logged_however_it_comes(tmp_path: Path) -> None:
    """In pieces, at the edge of a line that is cut, base64 or percent-encoded; rotation keeps the bound."""
    forms = secrets({"MY_TOKEN": "abc/def+ghi", "PLAIN": "visible-text"}, ["X=given-value"], ())
    assert "visible-text" not in forms
    redact = Redactor(forms)
    writer = log_files.LogWriter(str(tmp_path / "log"), redact, most_bytes=300_000, files=1)
    for piece in (b"a abc/", b"def+ghi b\n", b"abc%2Fdef%2Bghi\n", b"given-", b"value"):
        writer.write("stdout", piece)
    writer.flush()
    long = b"x" * (log_files.MOST_LINE - 4) + b"abc/def+ghi" + b"y" * log_files.MOST_LINE
    for start in range(0, len(long), 1_000):
        writer.write("stdout", long[start : start + 1_000])
    writer.close()
    text = "".join(line["text"] for line in log_files.read(str(tmp_path / "log")))
    for form in (*forms, "abc/def", "def+ghi"):
        assert form not in text
    assert text.startswith("a [redacted] b[redacted][redacted]xxx")
    for secret in (b"abc/def+ghi", b"=given-value=", b"=given-value"):  # at every place that it can be cut
        for at in range(len(secret) + 1):
            directory = str(tmp_path / f"cut-{len(secret)}-{at}")
            writer = log_files.LogWriter(directory, redact, most_bytes=10_000, files=1)
            for piece in (secret[:at], secret[at:], b"\n"):
                writer.write("stdout", piece)
                writer.settle()
            writer.close()
            kept = list(log_files.read(directory))
            assert "".join(line["text"] for line in kept).strip("=") == "[redacted]"
            assert [line.get("more", False) for line in kept] == [True] * (len(kept) - 1) + [False]

    writer = log_files.LogWriter(str(tmp_path / "log"), redact, most_bytes=10_000, files=1)
    tail = log_files.Tail(str(tmp_path / "log"))
    for number in range(1_000):
        writer.write("stderr", b"line %d\n" % number)
    writer.close()
    assert sum(path.stat().st_size for path in (tmp_path / "log").iterdir()) < 2 * 10_200
    assert tail.new()[-1]["text"] == "line 999"
    assert [line["text"] for line in log_files.read(str(tmp_path / "log"), tail=2)] == ["line 998", "line 999"]
