"""Directories of sessions: made in one step, locked while they live, removed when they are dead."""

import os
import threading
from pathlib import Path

import pytest

from launcher.session import messages, state
from launcher.session.places import Places, current_directory, made, places
from launcher.vcs import written
from launcher.vcs.private import writers
from policy.errors import Refusal


@pytest.fixture
def where(tmp_path: Path) -> Places:
    """Places below a temporary home."""
    return places({"HOME": str(tmp_path)})


def sessions(where: Places) -> list[str]:
    return sorted(os.listdir(f"{where.state}/sessions"))


def test_a_session_has_its_directories(where: Places) -> None:
    """A home that stays, a temp directory that goes, all private and canonical."""
    session = state.open_session(where, "tree-1", None)
    assert set(session.slots) == {"home", "tmp", "run"}
    assert (session.slots["tmp"], set(session.private)) == ("/tmp", {"/tmp", "/var/tmp"})
    for path in (session.slots["home"], session.slots["run"], *session.private.values()):
        assert os.stat(path).st_mode & 0o777 == 0o700
        assert os.path.realpath(path) == path
    Path(session.private["/tmp"], "file").write_text("x")
    Path(session.slots["home"], "file").write_text("x")
    assert session.close() == []
    assert sessions(where) == []
    assert Path(session.slots["home"], "file").exists()


def test_a_name_belongs_to_one_session(where: Places) -> None:
    """While it lives; then it is free again."""
    first = state.open_session(where, "tree", "name")
    with pytest.raises(Refusal, match="running") as caught:
        state.open_session(where, "other", "name")
    assert caught.value.reference == "session-in-use"
    assert sessions(where) == ["name"]
    first.close()
    state.open_session(where, "tree", "name").close()


def test_dead_sessions_are_removed_by_the_next_that_ends(where: Places) -> None:
    """Known by their free lock; live ones and those just being made are left alone."""
    living = state.open_session(where, "tree", "living")
    for name in ("dead", ".new-old", ".new-young"):
        Path(where.state, "sessions", name, "tmp").mkdir(parents=True)
    os.utime(Path(where.state, "sessions/.new-old"), (0, 0))
    state.open_session(where, "tree", None).close()
    assert sessions(where) == [".new-young", "living"]
    living.close()


def test_a_dead_sessions_name_can_be_taken_at_once(where: Places) -> None:
    """Whatever it holds."""
    Path(where.state, "sessions/name/tmp/deep").mkdir(parents=True)
    os.chmod(where.state, 0o700)
    session = state.open_session(where, "tree", "name")
    assert sorted(os.listdir(session.slots["run"])) == ["tmp", "var-tmp"]
    assert os.listdir(session.private["/tmp"]) == []
    session.close()


def test_a_file_in_the_sessions_way_is_an_error(where: Places) -> None:
    """It is not Paddock's, so it is not removed, and nothing else is left."""
    Path(where.state, "sessions").mkdir(parents=True, mode=0o700)
    Path(where.state, "sessions/name").write_text("x")
    with pytest.raises(Refusal) as caught:
        state.open_session(where, "tree", "name")
    assert caught.value.reference == "state-unusable"
    assert sessions(where) == ["name"]


@pytest.mark.parametrize("name", ["", ".", "..", "-x", ".x", "a/b", "a b", "a\n", "ä", "a" * 65, "a\0"])
def test_names_that_are_none(name: str) -> None:
    """Nothing that a path, a shell or a terminal could take for something else."""
    with pytest.raises(Refusal) as caught:
        state.check_name(name)
    assert caught.value.reference == "session-name"


def test_names_that_are_good() -> None:
    """Letters, digits, dots, dashes, underscores."""
    for name in ("a", "A-b_c.9", "0", "_", "a" * 64):
        assert state.check_name(name) == name


def test_many_threads_want_one_name(where: Places) -> None:
    """Exactly one gets it."""
    barrier = threading.Barrier(8)
    got: list[state.Session] = []
    refused: list[str] = []

    def compete() -> None:
        barrier.wait()
        try:
            got.append(state.open_session(where, "tree", "name"))
        except Refusal as refusal:
            refused.append(refusal.reference)

    threads = [threading.Thread(target=compete) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(got), refused) == (1, ["session-in-use"] * 7)
    got[0].close()
    assert sessions(where) == []


@pytest.mark.parametrize("mask", [0o000, 0o077, 0o777])
def test_the_umask_counts_for_nothing(tmp_path: Path, mask: int) -> None:
    """All that is made is for this user alone, every parent too, and the umask is as before."""
    before = os.umask(mask)
    try:
        session = state.open_session(places({"HOME": f"{tmp_path}/a/b"}), "tree", None)
        assert os.umask(mask) == mask
    finally:
        os.umask(before)
    for path in (tmp_path / "a", *(tmp_path / "a").rglob("*")):
        assert path.stat().st_mode & 0o777 == 0o700
    session.close()


def test_a_home_that_was_opened_is_closed_again(where: Places) -> None:
    """Its mode is the command's to spoil, so it is put right; a link in its place is refused."""
    home = state.home_of(where, "tree")
    for mode in (0o777, 0o000, 0o3755):
        assert state.own_home(home) == home
        os.chmod(home, mode)
        state.own_home(home)
        assert os.stat(home).st_mode & 0o7777 == 0o700
    os.rmdir(home)
    os.symlink("/tmp", home)
    with pytest.raises(Refusal) as caught:
        state.own_home(home)
    assert (caught.value.reference, caught.value.context.startswith("it is a symbolic link")) == (
        "state-not-ours",
        True,
    )


def test_slots_are_canonical_behind_a_linked_home(tmp_path: Path) -> None:
    """Some systems have /home as a link."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    session = state.open_session(places({"HOME": f"{tmp_path}/link"}), "tree", None)
    outside = {session.slots["home"], session.slots["run"], *session.private.values()}
    assert {os.path.realpath(path) for path in outside} == outside
    session.close()


# What sessions can write, and holds


def test_a_live_session_is_found_by_what_it_can_write(where: Places) -> None:
    """In its tree, below and above it, whatever the umask; by name; not when it has ended, nor beside it."""
    before = os.umask(0o777)
    try:
        session = state.open_session(where, "tree", "one", writes=("/own/tree", "/granted"))
    finally:
        os.umask(before)
    for root in ("/own/tree", "/own/tree/sub", "/own", "/", "/granted/x"):
        assert [each.name for each in writers.live(where.state, root)] == ["one"], root
    assert writers.live(where.state, "/own/tree", own=True) == [writers.Writer("one", "/own/tree")]
    for root in ("/own/tree2", "/gran", "/other"):
        assert writers.live(where.state, root) == []
    assert writers.live(where.state, "/granted", own=True) == []
    os.unlink(f"{session.directory}/{state.WRITES_IN}")  # an older Paddock
    assert writers.live(where.state, "/other") == []
    os.unlink(f"{session.directory}/{state.WRITES}")  # an older Paddock has started it
    assert [each.name for each in writers.live(where.state, "/other", own=True)] == ["one"]
    session.close()
    assert writers.live(where.state, "/own/tree") == []


@pytest.mark.parametrize("own", [False, True])
def test_a_live_session_is_found_in_a_tree_that_was_moved(where: Places, tmp_path: Path, own: bool) -> None:
    """In it, above it, and where it lies in one that was; not in what has come to its place's neighbour."""
    tree = tmp_path / "around/tree"
    for name in ("tree/sub", "beside"):
        (tree.parent / name).mkdir(parents=True)
    session = state.open_session(where, "id", "one", writes=(str(tree),))
    moved = tree.parent.rename(tmp_path / "moved")
    for root in (moved, moved / "tree", moved / "tree/sub"):
        assert [each.name for each in writers.live(where.state, str(root), own=own)] == ["one"], root
        with pytest.raises(Refusal, match="session-running"), writers.excluded(where.state, [str(root)], own=own):
            pass
    assert writers.live(where.state, str(moved / "beside"), own=own) == []
    session.close()
    assert writers.live(where.state, str(moved / "tree"), own=own) == []


@pytest.mark.parametrize("own", [False, True])
def test_no_session_begins_in_a_tree_that_is_moved_while_somebody_holds_it(
    where: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    """By its new place; in one beside it, it does."""

    def waits(line: str) -> None:
        raise InterruptedError(line)

    monkeypatch.setattr(messages, "say", waits)
    for name in ("tree", "beside"):
        (tmp_path / name).mkdir()
    with writers.excluded(where.state, [f"{tmp_path}/tree"], own=own):
        moved = (tmp_path / "tree").rename(tmp_path / "moved")
        with pytest.raises(InterruptedError, match="waiting until a merge"):
            state.open_session(where, "id", None, writes=(str(moved),))
        state.open_session(where, "id", None, writes=(f"{tmp_path}/beside",)).close()


def test_the_names_of_the_records_are_the_same() -> None:
    """Two layers have them."""
    ours = (state.WRITES, state.WRITES_IN, state.HOLDS, state.VOUCHES)
    assert ours == (writers.WRITES, writers.WRITES_IN, writers.HOLDS, written.VOUCHES)


@pytest.mark.parametrize("own", [False, True])
def test_no_session_begins_in_a_tree_that_somebody_holds(
    where: Places, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    """It says so and waits for the end; not one that is elsewhere, nor for a hold whose process was killed."""
    waits, opened = threading.Event(), threading.Event()
    monkeypatch.setattr(messages, "say", lambda line: waits.set())

    def begin() -> None:
        session = state.open_session(where, "id", None, writes=("/tree",))
        opened.set()
        session.close()

    thread = threading.Thread(target=begin)
    with writers.excluded(where.state, ["/tree"], own=own):
        thread.start()
        assert waits.wait(60)
        waits.clear()
        state.open_session(where, "id", "elsewhere", writes=("/elsewhere",)).close()
        if own:
            state.open_session(where, "id", "granted", writes=("/elsewhere", "/tree")).close()
        assert not waits.is_set()
        assert not opened.is_set()
    assert opened.wait(60)
    thread.join()
    Path(where.state, state.HOLDS, "stale").write_bytes(b"all\0/tree\0")
    state.open_session(where, "id", None, writes=("/tree",)).close()
    with writers.excluded(where.state, ["/tree"]):
        assert len(os.listdir(f"{where.state}/{state.HOLDS}")) == 1
    assert os.listdir(f"{where.state}/{state.HOLDS}") == []


def test_who_begins_first_is_seen(where: Places) -> None:
    """A live session keeps everybody else out, who leaves no hold then."""
    session = state.open_session(where, "id", "one", writes=("/tree",))
    with pytest.raises(Refusal) as caught, writers.excluded(where.state, ["/elsewhere", "/tree/below"]):
        pass
    assert (caught.value.reference, "session one of /tree" in caught.value.context) == ("session-running", True)
    assert os.listdir(f"{where.state}/{state.HOLDS}") == []
    session.close()


# The temp directory of a jail without mounts


def test_a_temp_directory_without_mounts_has_a_short_name(where: Places) -> None:
    """Room for the names of sockets; private, canonical, and removed with its session."""
    session = state.open_session(where, "tree", None, mounts=False)
    temp = Path(session.slots["tmp"])
    assert len(str(temp)) <= 40
    assert (session.private, temp.stat().st_mode & 0o7777, os.path.realpath(temp)) == ({}, 0o700, str(temp))
    assert Path(session.directory, "tmp").readlink() == temp
    (temp / "deep/er").mkdir(parents=True)
    assert session.close() == []
    assert not temp.exists()


def test_the_temp_directory_of_a_dead_session_is_found_and_removed(where: Places) -> None:
    """Its session's directory says where it is."""
    dead = state.open_session(where, "tree", "dead", mounts=False)
    Path(dead.slots["tmp"], "file").write_text("x")
    os.close(dead._lock)
    state.open_session(where, "tree", None).close()
    assert (sessions(where), os.path.lexists(dead.slots["tmp"])) == ([], False)


def test_only_a_directory_of_paddocks_name_is_removed(where: Places, tmp_path: Path) -> None:
    """Whatever the link says, a file or somebody's own directory stays."""
    (tmp_path / "own").mkdir()
    (tmp_path / "paddock-file").touch()
    for number, target in enumerate(("own", "paddock-file", "gone")):
        Path(where.state, "sessions", f"dead{number}").mkdir(parents=True)
        Path(where.state, "sessions", f"dead{number}", "tmp").symlink_to(tmp_path / target)
    os.chmod(where.state, 0o700)
    state.open_session(where, "tree", None).close()
    assert sessions(where) == []
    assert {path.name for path in tmp_path.iterdir()} >= {"own", "paddock-file"}


@pytest.mark.parametrize("mode", [0o777, 0o555, 0o770])
def test_a_tmp_that_others_rule_is_not_used(
    where: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    """Without the sticky bit others may exchange what lies there; the session's own directory serves then."""
    base = tmp_path / "base"
    base.mkdir()
    base.chmod(mode)
    monkeypatch.setattr(state, "SHORT_TEMP_BASE", str(base))
    session = state.open_session(where, "tree", None, mounts=False)
    writable = mode == 0o555 and os.geteuid() == 0
    assert session.slots["tmp"].startswith(str(base if writable else session.directory))
    assert session.close() == []


# Places


def test_where_things_are(tmp_path: Path) -> None:
    """After XDG; values that are relative or empty are ignored, slashes are tidied."""
    home = str(tmp_path)
    own = tuple(f"{home}/{name}/paddock" for name in (".config", ".local/state", ".cache"))
    own = (*own, "/run/paddock")
    usual = f"/run/user/{os.geteuid()}"
    assert places({"HOME": home}).own() == (*own, f"{usual}/paddock")
    assert places({"HOME": home, "XDG_RUNTIME_DIR": usual}).own() == (*own, f"{usual}/paddock")
    assert places({"HOME": home, "XDG_RUNTIME_DIR": "/r"}).own() == (*own, "/r/paddock", f"{usual}/paddock")
    assert places({"HOME": home, "XDG_STATE_HOME": "x", "XDG_CACHE_HOME": ""}).own() == places({"HOME": home}).own()
    assert places({"HOME": home, "XDG_STATE_HOME": "/s/../t/"}).state == "/t/paddock"
    assert places({"HOME": "/"}).cache == "/.cache/paddock"
    assert places({"HOME": home + "//"}).home == home


def test_made_refuses_what_is_not_ours(tmp_path: Path) -> None:
    """A file, a link and a directory that others can write; a private one is taken as it is."""
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o770)
    for name, why in (("file", "not a directory"), ("link", "symbolic link"), ("open", "mode 0770")):
        with pytest.raises(Refusal) as caught:
            made(str(tmp_path / name))
        assert (caught.value.reference, why in caught.value.context) == ("state-not-ours", True)
    with pytest.raises(Refusal) as caught:
        made(str(tmp_path / "file/below"))
    assert caught.value.reference == "state-unusable"
    (tmp_path / "good").mkdir(mode=0o755)
    assert made(str(tmp_path / "good")) == str(tmp_path / "good")


def test_a_current_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said so."""
    monkeypatch.chdir(tmp_path)
    assert current_directory() == str(tmp_path)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(Refusal) as caught:
        current_directory()
    assert caught.value.reference == "directory-missing"
