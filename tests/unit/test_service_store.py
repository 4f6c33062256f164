"""The service's record: states, migrations, damage, keys; its settings; its logs."""

import os
import sqlite3
from pathlib import Path

import pytest

from launcher.service import logs, settings
from launcher.service.database import MIGRATIONS, Database
from launcher.service.models import SessionRequest
from launcher.service.redaction import Redactor, secrets
from launcher.service.states import FINAL, TRANSITIONS, SessionState, check
from launcher.service.store import SessionStore, session_of
from launcher.session.places import Places
from policy.errors import Refusal


def request(name: str, **fields: object) -> SessionRequest:
    return SessionRequest.model_validate({"name": name, "command": ["true"], "directory": "/", **fields})


@pytest.fixture
def store(tmp_path: Path) -> SessionStore:
    return SessionStore(Database(str(tmp_path / "service.db")))


def test_states_only_move_as_the_table_says(store: SessionStore) -> None:
    """What is over stays over; every state leads to an end."""
    for state, after in TRANSITIONS.items():
        assert (state in FINAL) == (not after)
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


def test_the_record_survives_and_is_migrated(tmp_path: Path) -> None:
    """From every earlier version, with what it held; a newer one is left alone."""
    path = str(tmp_path / "old.db")
    connection = sqlite3.connect(path)
    connection.executescript(MIGRATIONS[0] + "PRAGMA user_version = 1;")
    connection.execute(
        "INSERT INTO session (name, state, attempt, request, client_uid, created) VALUES ('a', 'lost', 1, ?, 0, 1)",
        (request("a").model_dump_json(),),
    )
    connection.commit()
    connection.close()
    database = Database(path)
    assert session_of(SessionStore(database).required("a")).state == "lost"
    assert database.rows("PRAGMA user_version")[0][0] == len(MIGRATIONS)
    database.connection.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(Refusal, match="newer Paddock"):
        Database(path)


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


def test_keys_belong_to_their_client(store: SessionStore) -> None:
    """The same key of another user is another key; they are forgotten in time."""
    store.remember("k", 1000, "digest", "a")
    assert store.remembered("k", 1000, "digest") == "a"
    assert store.remembered("k", 0, "digest") is None
    with pytest.raises(Refusal, match="another request"):
        store.remembered("k", 1000, "other")
    store.forget_keys(4e9)
    assert store.remembered("k", 1000, "other") is None


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
    writer = logs.LogWriter(str(tmp_path / "log"), redact, most_bytes=300_000, files=1)
    for piece in (b"a abc/", b"def+ghi b\n", b"abc%2Fdef%2Bghi\n", b"given-", b"value"):
        writer.write("stdout", piece)
    writer.flush()
    long = b"x" * (logs.MOST_LINE - 4) + b"abc/def+ghi" + b"y" * logs.MOST_LINE
    for start in range(0, len(long), 1_000):
        writer.write("stdout", long[start : start + 1_000])
    writer.close()
    text = "".join(line["text"] for line in logs.read(str(tmp_path / "log")))
    for form in (*forms, "abc/def", "def+ghi"):
        assert form not in text
    assert text.startswith("a [redacted] b[redacted][redacted]xxx")
    writer = logs.LogWriter(str(tmp_path / "log"), redact, most_bytes=10_000, files=1)
    tail = logs.Tail(str(tmp_path / "log"))
    for number in range(1_000):
        writer.write("stderr", b"line %d\n" % number)
    writer.close()
    assert sum(path.stat().st_size for path in (tmp_path / "log").iterdir()) < 2 * 10_200
    assert tail.new()[-1]["text"] == "line 999"
    assert [line["text"] for line in logs.read(str(tmp_path / "log"), tail=2)] == ["line 998", "line 999"]
