"""Logins on a real disk, with a private home that an agent has prepared."""

import fcntl
import json
import os
import signal
import stat
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from launcher.session import logins as session_logins
from launcher.session import private_files
from launcher.session.logins import Logins
from policy.logins import Login
from policy.plan import VERSION, Plan


class Ground:
    """A user's file, a private home, and what is between."""

    def __init__(self, place: Path) -> None:
        self.user = place / "user"
        self.home = place / "home"
        self.inside = self.home / ".agent/auth.json"
        self.elsewhere = place / "elsewhere"
        for directory in (self.user, self.home, self.elsewhere):
            directory.mkdir(mode=0o700)
        self.host = self.user / "auth.json"
        self.host.write_text(json.dumps(document("old", 1)))
        login = Login(
            str(self.host), ".agent/auth.json", refreshed=("token", "time"), newer="time", account=("account",)
        )
        fields: dict[str, Any] = dict.fromkeys(Plan.FIELDS, ())
        self.plan = Plan(**(fields | {"version": VERSION, "provider": "agent", "logins": (tuple(login),)}))

    def logins(self) -> Logins:
        return Logins(self.plan, str(self.home))

    def refresh(self, token: str = "new", time: int = 2, account: str = "me") -> None:
        self.inside.write_text(json.dumps(document(token, time, account)))

    def kept(self) -> Any:  # noqa: ANN401  # JSON
        return json.loads(self.host.read_text())


def document(token: str, time: int, account: str = "me") -> dict[str, object]:
    return {"account": account, "token": token, "time": time}


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    """With the login brought in once."""
    made = Ground(tmp_path)
    assert made.logins().bring() == []
    return made


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_login_is_copied_in_and_its_refreshed_token_back(ground: Ground) -> None:
    """Both files are the user's alone, whatever the umask; nothing else lies beside them."""
    assert ground.inside.read_bytes() == ground.host.read_bytes()
    assert (mode(ground.inside), mode(ground.inside.parent)) == (0o600, 0o700)
    ground.refresh()
    assert ground.logins().take_back() == []
    assert ground.kept() == document("new", 2)
    assert mode(ground.host) == 0o600
    assert os.listdir(ground.user) == ["auth.json"]
    assert os.listdir(ground.inside.parent) == ["auth.json"]


def test_an_untouched_login_touches_nothing(ground: Ground) -> None:
    """The user's file keeps its inode and times."""
    before = ground.host.stat()
    assert ground.logins().take_back() == []
    assert ground.logins().bring() == []
    after = ground.host.stat()
    assert (before.st_ino, before.st_ctime_ns) == (after.st_ino, after.st_ctime_ns)


def test_what_a_killed_session_refreshed_is_found_by_the_next_one(ground: Ground) -> None:
    """Instead of being overwritten with the token that it replaced."""
    ground.refresh()
    assert ground.logins().bring() == []
    assert ground.kept() == document("new", 2)
    assert json.loads(ground.inside.read_text()) == document("new", 2)


def test_a_new_login_of_the_users_wins_over_the_jails(ground: Ground) -> None:
    """Newer, or another account: what the user has is brought in, and not overwritten at the end."""
    session = ground.logins()
    ground.refresh("stale", 2)
    ground.host.write_text(json.dumps(document("fresh", 3)))
    assert session.take_back() == []
    assert ground.kept() == document("fresh", 3)
    ground.host.write_text(json.dumps(document("other", 1, "them")))
    said = session.take_back()
    assert len(said) == 1
    assert "another account's" in said[0]
    assert ground.kept() == document("other", 1, "them")
    assert "another account's" in ground.logins().bring()[0]
    assert json.loads(ground.inside.read_text()) == document("other", 1, "them")


def test_a_login_of_another_account_stays_in_the_jail(ground: Ground) -> None:
    """And the user is told."""
    ground.refresh("theirs", 99, "them")
    said = ground.logins().take_back()
    assert said == [
        f"agent: {ground.host} keeps its tokens, those in the jail are not taken over: "
        "the login in the jail is another account's; if yours have expired, log in again outside of the jail"
    ]
    assert ground.kept() == document("old", 1)


@pytest.mark.parametrize("what", ["whole", "missing", "empty", "link", "fifo", "broken", "theirs"])
def test_the_account_in_a_file_beside_decides_too(ground: Ground, what: str) -> None:
    """It is not believed to be the same for being gone or unreadable."""
    beside, copy = ground.user / "account.json", ground.home / ".agent.json"
    beside.write_text(json.dumps({"uuid": "mine", "theme": "dark"}))
    login = Login(str(beside), ".agent.json", only=("uuid",), account=("uuid",))
    ground.plan = ground.plan.replace(logins=(*ground.plan.logins, tuple(login)))
    assert ground.logins().bring() == []
    ground.refresh()
    if what != "whole":
        copy.unlink()
    if what == "link":
        copy.symlink_to(beside)
    elif what == "fifo":
        os.mkfifo(copy)
    elif what != "whole" and what != "missing":
        copy.write_text({"empty": "{}", "broken": "{", "theirs": '{"uuid": "theirs"}'}[what])
    said = ground.logins().take_back()
    assert len(said) == (what != "whole"), said
    assert ground.kept() == (document("new", 2) if what == "whole" else document("old", 1))


def plant(ground: Ground, what: str) -> None:
    """Puts something else in the place of the copy."""
    secret = ground.elsewhere / "secret.json"
    secret.write_text(json.dumps(document("stolen", 50)))
    ground.inside.unlink()
    if what == "link":
        ground.inside.symlink_to(secret)
    elif what == "link to the user's":
        ground.inside.symlink_to(ground.host)
    elif what == "hard link":
        os.link(secret, ground.inside)
    elif what == "fifo":
        os.mkfifo(ground.inside)
    elif what == "socket":
        os.mknod(ground.inside, stat.S_IFSOCK | 0o600)
    elif what == "huge":
        with ground.inside.open("wb") as file:
            file.truncate(1 << 40)
    elif what == "long":
        ground.inside.write_text(json.dumps(document("new", 2) | {"x": "y" * session_logins.LARGEST}))
    elif what == "unreadable":
        ground.inside.write_bytes(b"\xff" * 100)
    elif what == "deep":
        ground.inside.write_bytes(b'{"a":' * 20_000)
    elif what == "directory":
        ground.inside.mkdir()


@pytest.mark.parametrize(
    "what",
    ["link", "link to the user's", "hard link", "fifo", "socket", "huge", "long", "unreadable", "deep", "directory"],
)
def test_what_is_planted_in_its_place_is_neither_followed_nor_believed(ground: Ground, what: str) -> None:
    """At the end it is refused with a reason; at the next start the copy is made anew, in the planted thing's place."""
    plant(ground, what)
    said = ground.logins().take_back()
    assert len(said) == 1
    assert "are not taken over: .agent/auth.json in the jail: " in said[0]
    assert ground.kept() == document("old", 1)
    again = ground.logins().bring()
    assert len(again) == (2 if what == "directory" else 1)
    if what != "directory":
        assert json.loads(ground.inside.read_text()) == document("old", 1)
        assert not ground.inside.is_symlink()
    assert json.loads((ground.elsewhere / "secret.json").read_text()) == document("stolen", 50)
    assert os.listdir(ground.elsewhere) == ["secret.json"]
    assert ground.kept() == document("old", 1)


@pytest.mark.parametrize("what", ["link", "file", "closed"])
def test_nothing_is_written_through_what_stands_in_the_directorys_place(ground: Ground, what: str) -> None:
    """A link to elsewhere or a file is put aside; a directory without rights is said, and the session goes on."""
    ground.inside.unlink()
    ground.inside.parent.rmdir()
    if what == "link":
        ground.inside.parent.symlink_to(ground.elsewhere)
    elif what == "file":
        ground.inside.parent.write_text("")
    else:
        ground.inside.parent.mkdir(mode=0)
    said = ground.logins().bring()
    if what != "closed" or os.geteuid() == 0:  # root needs no rights
        assert not any("is not copied" in line for line in said)
        assert json.loads(ground.inside.read_text()) == document("old", 1)
        assert [path.name for path in ground.home.iterdir() if ".replaced-" in path.name] or what == "closed"
    else:
        assert any("is not copied into the private home" in line for line in said)
    assert os.listdir(ground.elsewhere) == []
    assert ground.kept() == document("old", 1)


def test_a_directory_that_is_swapped_all_the_time_leads_nowhere(ground: Ground) -> None:
    """A live session may exchange it for a link while another one starts."""
    real = ground.home / ".agent"
    stop = threading.Event()

    def swap() -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            with suppress(OSError):  # the session may have made the directory meanwhile
                os.rename(real, ground.home / f"aside-{turn}")
                os.symlink(ground.elsewhere, real)
            with suppress(OSError):
                os.unlink(real)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for turn in range(2, 200):
            ground.host.write_text(json.dumps(document("old", turn)))
            ground.logins().bring()
            assert os.listdir(ground.elsewhere) == []
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("what", ["link", "fifo", "hard link", "no JSON"])
def test_a_strange_file_of_the_users_is_left_alone(ground: Ground, what: str) -> None:
    """It is not copied in and not replaced; a link would lead the copy elsewhere."""
    target = ground.elsewhere / "real.json"
    ground.host.rename(target)
    if what == "link":
        ground.host.symlink_to(target)
    elif what == "fifo":
        os.mkfifo(ground.host)
    elif what == "hard link":
        os.link(target, ground.host)
    else:
        ground.host.write_text("// comment\n{}")
    before = os.lstat(ground.host)
    ground.refresh()
    session = ground.logins()
    said = session.bring()
    assert bool(said) is (what != "no JSON")
    session.take_back()
    after = os.lstat(ground.host)
    assert (before.st_ino, before.st_ctime_ns) == (after.st_ino, after.st_ctime_ns)
    assert json.loads(target.read_text()) == document("old", 1)


def test_a_directory_that_others_may_write_gets_nothing(ground: Ground) -> None:
    """Somebody else could exchange the file for a link while it is replaced."""
    ground.user.chmod(0o777)
    ground.refresh()
    assert f"others may write {ground.user} (chmod go-w" in ground.logins().take_back()[0]
    assert ground.kept() == document("old", 1)


def test_an_absent_file_is_not_made(ground: Ground) -> None:
    """A login made in the jail belongs to the worktree."""
    ground.host.unlink()
    ground.refresh()
    session = ground.logins()
    assert session.bring() + session.take_back() == []
    assert os.listdir(ground.user) == []
    assert json.loads(ground.inside.read_text()) == document("new", 2)


def test_sessions_that_end_together_leave_the_newest_token(ground: Ground, tmp_path: Path) -> None:
    """Each in a worktree of its own; no half of a file is ever seen."""
    grounds = [ground]
    for number in range(3):
        home = tmp_path / f"home-{number}"
        home.mkdir()
        other = Ground.__new__(Ground)
        other.__dict__ |= ground.__dict__ | {"home": home, "inside": home / ".agent/auth.json"}
        assert other.logins().bring() == []
        grounds.append(other)
    said: list[str] = []

    def end(one: Ground, first: int) -> None:
        for turn in range(first, 42, 4):
            one.refresh(f"t{turn}", turn)
            said.extend(one.logins().take_back())

    threads = [threading.Thread(target=end, args=(one, 2 + number)) for number, one in enumerate(grounds)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert ground.kept()["account"] == "me"
    for thread in threads:
        thread.join()
    assert said == []
    assert ground.kept() == document("t41", 41)
    assert os.listdir(ground.user) == ["auth.json"]


def test_a_session_that_holds_the_lock_for_ever_is_not_waited_for(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its token stays in the private home, where the next session finds it."""
    monkeypatch.setattr(session_logins, "PATIENCE", 0.05)
    holder = os.open(ground.user, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    ground.refresh()
    assert "for a long time" in ground.logins().take_back()[0]
    os.close(holder)
    assert ground.kept() == document("old", 1)
    assert ground.logins().take_back() == []
    assert ground.kept() == document("new", 2)


@pytest.mark.parametrize("call", ["fsync", "rename", "fchmod"])
def test_a_kill_in_the_middle_leaves_the_old_file_whole(ground: Ground, call: str) -> None:
    """What was half written is removed by the next session."""
    ground.refresh()
    child = os.fork()
    if child == 0:

        def kill(*_: object, **__: object) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(os, call, kill)
        ground.logins().take_back()
        os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert ground.kept() == document("old", 1)
    assert sorted(os.listdir(ground.user)) == [".auth.json.paddock", "auth.json"]
    assert mode(ground.user / ".auth.json.paddock") == 0o600
    assert ground.logins().take_back() == []
    assert ground.kept() == document("new", 2)
    assert os.listdir(ground.user) == ["auth.json"]


def test_a_file_that_changed_since_it_was_read_is_not_replaced(ground: Ground) -> None:
    """The user's own programme writes it without our lock."""
    directory = os.open(ground.user, os.O_RDONLY)
    try:
        read = private_files.read(directory, "auth.json", 1000)
        assert read is not None
        ground.host.write_text("changed")
        assert not private_files.replace(directory, "auth.json", b"ours", read, locked=True)
        assert not private_files.replace(directory, "auth.json", b"ours", None, locked=False)
        assert ground.host.read_text() == "changed"
        assert os.listdir(ground.user) == ["auth.json"]
        assert private_files.replace(directory, "other", b"ours", None, locked=False)
    finally:
        os.close(directory)


def test_sessions_that_start_together_in_one_worktree_both_have_the_login(ground: Ground) -> None:
    """Neither meets the other's half of a file, and nothing is left beside it."""
    said = ground.logins().bring()
    stop = threading.Event()

    def start() -> None:
        for _ in range(100):
            said.extend(ground.logins().bring())
        stop.set()

    threads = [threading.Thread(target=start) for _ in range(3)]
    for thread in threads:
        thread.start()
    for turn in range(10_000):
        text = json.dumps(document("t" * (turn % 50), 1))
        ground.host.with_suffix(".new").write_text(text)
        ground.host.with_suffix(".new").rename(ground.host)
        json.loads(ground.inside.read_text())
        if stop.is_set():
            break
    for thread in threads:
        thread.join()
    assert [line for line in said if not line.endswith(": it keeps changing")] == []
    assert ground.logins().bring() == []
    assert ground.inside.read_bytes() == ground.host.read_bytes()
    assert os.listdir(ground.inside.parent) == ["auth.json"]


def test_settings_that_are_a_link_are_followed_and_what_paddock_wants_is_put_in_any_case(ground: Ground) -> None:
    """Settings often lie in a repository of dotfiles; and a file that cannot be read is no reason to do nothing."""
    settings = ground.elsewhere / "settings.json"
    settings.write_text('{"model": "big", "hooks": {}}')
    os.link(settings, ground.elsewhere / "stored")
    (ground.user / "settings.json").symlink_to(settings)
    login = Login(str(ground.user / "settings.json"), ".agent/settings.json", only=("model",), put=(("quiet", True),))
    session = Logins(ground.plan.replace(logins=(tuple(login),)), str(ground.home))
    copy = ground.home / ".agent/settings.json"
    assert session.bring() == []
    assert json.loads(copy.read_text()) == {"model": "big", "quiet": True}
    settings.unlink()
    os.mkfifo(settings)
    copy.unlink()
    said = session.bring()
    assert len(said) == 1
    assert "no regular file" in said[0]
    assert json.loads(copy.read_text()) == {"quiet": True}
    settings.unlink()
    assert session.bring() == []


def test_a_private_home_that_cannot_be_opened_is_said(ground: Ground) -> None:
    """It is the agent's to close or remove."""
    ground.home.rename(ground.home.with_name("gone"))
    assert "the private home cannot be opened" in ground.logins().take_back()[0]
