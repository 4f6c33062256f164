"""Logins on a real disk, with a private home that an agent has prepared."""

import json
import os
import stat
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from launcher.session import credentials
from launcher.session.credentials import Logins
from policy.logins import Login
from tests.support.logins import Ground, brought_in, document, mode


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    """With the login brought in once."""
    return brought_in(tmp_path)


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


def test_a_login_that_is_kept_out_goes_where_it_was_copied_before(ground: Ground) -> None:
    """One that the agent got in the jail stays, as does the user's file; a text is the user's when it is the same."""
    (fields,) = ground.plan.logins
    login = Login(*fields)._replace(refreshed=(), newer="", account=(), kept_out=("token",))  # type: ignore[arg-type]
    kept_out = ground.plan.replace(logins=(tuple(login),))
    for token, stays in (("old", False), ("its own", True)):
        ground.refresh(token)
        assert Logins(kept_out, str(ground.home)).bring() == []
        assert ground.inside.exists() is stays
    text = ground.plan.replace(logins=(tuple(login._replace(text=True, kept_out=("",))),))
    for content, stays in ((ground.host.read_text(), False), ("other", True)):
        ground.inside.write_text(content)
        assert Logins(text, str(ground.home)).bring() == []
        assert ground.inside.exists() is stays
    assert ground.kept() == document("old", 1)


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
    assert "belongs to another account" in said[0]
    assert ground.kept() == document("other", 1, "them")
    assert "belongs to another account" in ground.logins().bring()[0]
    assert json.loads(ground.inside.read_text()) == document("other", 1, "them")


def test_a_login_of_another_account_stays_in_the_jail(ground: Ground) -> None:
    """And the user is told."""
    ground.refresh("theirs", 99, "them")
    said = ground.logins().take_back()
    assert said == [
        f"agent: {ground.host} keeps its tokens, those in the jail are not copied back: "
        "the login in the jail belongs to another account; if yours have expired, log in again outside of the jail"
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
        ground.inside.write_text(json.dumps(document("new", 2) | {"x": "y" * credentials.LARGEST}))
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
    assert "are not copied back: .agent/auth.json in the jail: " in said[0]
    assert ground.kept() == document("old", 1)
    again = ground.logins().bring()
    aside = what in ("directory", "fifo", "link", "link to the user's", "socket")
    assert ["what was in the way" in line for line in again] == [False, True][: 1 + aside]
    assert json.loads(ground.inside.read_text()) == document("old", 1)
    assert not ground.inside.is_symlink()
    assert json.loads((ground.elsewhere / "secret.json").read_text()) == document("stolen", 50)
    assert os.listdir(ground.elsewhere) == ["secret.json"]
    assert ground.kept() == document("old", 1)


@pytest.mark.parametrize("what", ["link", "file", "closed"])
def test_nothing_is_written_through_what_stands_in_the_directorys_place(ground: Ground, what: str) -> None:
    """A link to elsewhere or a file is put aside; a directory without rights has them again."""
    ground.inside.unlink()
    ground.inside.parent.rmdir()
    if what == "link":
        ground.inside.parent.symlink_to(ground.elsewhere)
    elif what == "file":
        ground.inside.parent.write_text("")
    else:
        ground.inside.parent.mkdir(mode=0)
    said = ground.logins().bring()
    assert not any("is not copied" in line for line in said)
    assert json.loads(ground.inside.read_text()) == document("old", 1)
    assert [path.name for path in ground.home.iterdir() if ".replaced-" in path.name] or what == "closed"
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
    assert "not a regular file" in said[0]
    assert json.loads(copy.read_text()) == {"quiet": True}
    settings.unlink()
    assert session.bring() == []


def test_a_private_home_that_cannot_be_opened_is_said(ground: Ground) -> None:
    """It is the agent's to close or remove."""
    ground.home.rename(ground.home.with_name("gone"))
    assert "the private home cannot be opened" in ground.logins().take_back()[0]
