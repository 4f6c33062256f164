"""What Paddock holds in a repository goes when its holder has gone, and never what a user holds."""

import fcntl
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.vcs.added_packs import Held, Quarantine, sweep
from launcher.vcs.harvest import crossing
from policy.errors import Refusal
from tests.support import forked
from tests.support.ground import Ground
from tests.support.identity import Who


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    """A repository, and an object directory with one pack of it."""
    return _ground(tmp_path)


def _ground(place: Path) -> Ground:
    made = Ground(place / "repo", {"a": "a\n"})
    (place / "quarantine/pack").mkdir(parents=True)
    made.run("pack-objects", "-q", str(place / "quarantine/pack/pack"), stdin=made.id("main").encode() + b"\n")
    return made


def _endings(ground: Ground) -> list[str]:
    return sorted(path.suffix for path in (ground.root / ".git/objects/pack").iterdir())


def _add(ground: Ground, step: str = "") -> Held:
    """Adds the pack, or is killed before a step."""

    def stepping(what: str) -> None:
        if step and what.startswith(step):
            os.kill(os.getpid(), signal.SIGKILL)

    held = Held("test", stepping)
    held.add(str(ground.root.parent / "quarantine"), str(ground.root / ".git"))
    return held


def test_a_pack_is_held_until_it_is_released(ground: Ground) -> None:
    """Nobody else's sweep ends that; repack leaves it alone until then, and removes it afterwards."""
    with _add(ground) as held:
        assert len(held.locks) == 1
        sweep(str(ground.root / ".git"))
        ground.git("repack", "-adq")
        assert _endings(ground).count(".keep") == 1
        assert _endings(ground).count(".pack") == 2
    assert ".keep" not in _endings(ground)
    ground.git("repack", "-adq")
    assert _endings(ground).count(".pack") == 1
    ground.git("fsck", "--strict")


@pytest.mark.parametrize("step", ["add", "show", "release"])
def test_the_next_one_removes_what_a_killed_holder_left(ground: Ground, step: str) -> None:
    """Before the pack is complete, all of it; afterwards its `.keep` alone."""
    with pytest.raises(forked.Killed):
        forked.run(lambda: _add(ground, step).release())
    assert ".keep" in _endings(ground)
    sweep(str(ground.root / ".git"))
    rest, newer = ({".idx", ".pack"}, {".rev"}) if step == "release" else (set(), set())  # git writes .rev since 2.41
    assert set(_endings(ground)) - newer == rest
    ground.git("fsck", "--strict")


def _before_the_lock(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Has something happen once, between the making of a `.keep` and its lock."""
    lock, waiting = fcntl.flock, [act]

    def locked(descriptor: int, operation: int) -> None:
        while waiting:
            waiting.pop()()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", locked)


def test_no_jail_locks_a_keep_before_its_holder(user: Who, public_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sees the store (inotify tells it at once), and would hold up harvests and merges of all others for good."""
    ground = _ground(public_dir)
    user.give(public_dir)
    packs, opened = ground.root / ".git/objects/pack", []

    def open_all() -> None:
        opened.append([forked.verdict(forked.read, path) for path in packs.iterdir()])

    def act() -> list[list[str]]:
        _before_the_lock(monkeypatch, open_all)
        with _add(ground):
            open_all()
        return opened

    assert forked.run(act, user) == [["EACCES"], ["ok"] * 3]


def test_a_keep_that_is_swept_before_it_is_locked_is_made_again(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a holder that was killed there, nothing stays."""
    common = str(ground.root / ".git")
    with monkeypatch.context() as patch:
        _before_the_lock(patch, lambda: os.kill(os.getpid(), signal.SIGKILL))
        with pytest.raises(forked.Killed):
            forked.run(lambda: _add(ground).release())
    assert _endings(ground) == [".new"]
    _before_the_lock(monkeypatch, lambda: sweep(common))
    with _add(ground):
        assert _endings(ground).count(".keep") == 1
        assert ".new" not in _endings(ground)


def test_what_users_hold_stays(ground: Ground) -> None:
    """Their own packs, and one that was Paddock's once."""
    _add(ground).release()
    (pack,) = (ground.root / ".git/objects/pack").glob("*.pack")
    pack.with_suffix(".keep").touch()
    (pack.parent / f"pack-{'0' * 40}.keep").write_text("paddock: mine\n")
    os.mkfifo(pack.parent / f"{pack.name[:20]}{'0' * 25}.keep")
    sweep(str(ground.root / ".git"))
    assert _endings(ground).count(".keep") == 3


@pytest.mark.parametrize("planted", ["directory", "link", "fifo"])
def test_what_jailed_git_may_have_planted_leads_nowhere(ground: Ground, planted: str) -> None:
    """A link in place of the packs' directory or of a pack is not followed, and a FIFO keeps nobody waiting."""
    packs = ground.root.parent / "quarantine/pack"
    away = ground.root.parent / "away"
    if planted == "directory":
        packs.rename(away)
        packs.symlink_to(away)
    else:
        (pack,) = packs.glob("*.pack")
        pack.rename(away)
        if planted == "link":
            pack.symlink_to(away)
        else:
            os.mkfifo(pack)
    with pytest.raises(OSError, match=r"not a regular file|Not a directory"), Held("test") as held:
        held.add(str(packs.parent), str(ground.root / ".git"))
    with Held("test"):
        sweep(str(ground.root / ".git"))
    assert not [path for path in (ground.root / ".git/objects/pack").iterdir() if path.suffix in (".pack", ".idx")]


def test_a_quarantine_of_packs_is_taken(ground: Ground) -> None:
    """The allowed twin of the next."""
    crossing.check_packs_alone(_quarantine(ground), "packing")


@pytest.mark.parametrize("planted", ["alternates", "loose", "link", "linked pack", "fifo", "other", "no pack"])
def test_a_quarantine_with_anything_else_is_refused(ground: Ground, planted: str) -> None:
    """Git in its jail wrote it; git outside would read further objects where that says so."""
    top = ground.root.parent / "quarantine"
    (pack,) = (top / "pack").glob("*.pack")
    match planted:
        case "alternates":
            (top / "info").mkdir()
            (top / "info/alternates").write_text("/elsewhere\n")
        case "loose":
            (top / "00").mkdir()
        case "link":
            (top / "pack").rename(ground.root.parent / "elsewhere")
            (top / "pack").symlink_to("../elsewhere")
        case "linked pack":
            pack.rename(ground.root.parent / "elsewhere")
            pack.symlink_to(ground.root.parent / "elsewhere")
        case "fifo":
            os.mkfifo(top / f"pack/pack-{'0' * 40}.pack")
        case "other":
            (top / "pack/multi-pack-index").write_bytes(b"")
        case "no pack":
            (top / "pack").rename(ground.root.parent / "elsewhere")
            (top / "pack").write_bytes(b"")
    with pytest.raises(Refusal) as caught:
        crossing.check_packs_alone(_quarantine(ground), "packing")
    assert caught.value.reference == "harvest-malformed"


def _quarantine(ground: Ground) -> Quarantine:
    return Quarantine(str(ground.root.parent / "quarantine"), str(ground.root / ".git/objects"))
