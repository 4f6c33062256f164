"""Directories for a moment's work: gone with their process, even with a killed one, once the next is made."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launcher.session.places import places
from launcher.vcs import written
from launcher.vcs.scratch import PREFIX, Scratch
from policy.errors import Refusal

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this test and its children make them."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    place = Path(places(os.environ).state, "scratch")
    place.mkdir(mode=0o700, parents=True)
    return place


def aged(path: Path) -> None:
    """As if it had been made an hour ago."""
    long_ago = time.time() - 3600
    os.utime(path, (long_ago, long_ago))


def holder(place: Path) -> tuple[subprocess.Popen[bytes], Path]:
    """A process that holds such a directory with a file in it."""
    program = (
        f"import sys, time; sys.path.insert(0, {str(ROOT)!r}); from launcher.vcs.scratch import Scratch; "
        "held = Scratch(); open(held.path('file'), 'w').close(); print(held.name, flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    return process, Path(os.fsdecode(process.stdout.readline().strip()))


def test_it_vanishes_at_its_end(place: Path) -> None:
    """Whatever modes its parts have."""
    with Scratch() as scratch:
        inner = Path(scratch.path("inner"))
        inner.mkdir()
        (inner / "file").touch()
        inner.chmod(0)
        assert Path(scratch.name).stat().st_mode & 0o777 == 0o700
    assert list(place.iterdir()) == []


def test_a_killed_process_leaves_it_until_the_next_one(place: Path) -> None:
    """One whose process lives stays."""
    dead, left = holder(place)
    living, kept = holder(place)
    try:
        dead.send_signal(signal.SIGKILL)
        dead.wait()
        assert left.exists()
        for path in (left, kept):
            aged(path)
        Scratch().close()
        assert list(place.iterdir()) == [kept]
    finally:
        for process in (dead, living):
            process.kill()
            process.communicate()


def test_one_that_is_just_being_made_stays(place: Path) -> None:
    """Between making and locking it nobody holds it."""
    young = place / f"{PREFIX}young"
    young.mkdir(mode=0o700)
    Scratch().close()
    assert young.exists()


def test_what_others_planted_is_left_alone(place: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A link of that name leads nowhere, and a directory that others may write is not ours."""
    victim = tmp_path_factory.mktemp("victim")
    (victim / "file").touch()
    (place / f"{PREFIX}link").symlink_to(victim)
    open_to_all = place / f"{PREFIX}open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    for path in (victim, open_to_all):
        aged(path)
    Scratch().close()
    assert (victim / "file").exists()
    assert open_to_all.exists()


def test_none_lies_where_tmpdir_leads(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool such as direnv sets it to a directory in an agent's tree. One for a session is out of the state."""
    (tmp_path / "tree").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tree"))
    with Scratch() as scratch, Scratch(for_session=True) as beside:
        assert Path(scratch.name).parent == place
        state = Path(places(os.environ).state)
        assert state not in Path(beside.name).parents
        assert Path(beside.name).parent.parent == state.parent
        assert list((tmp_path / "tree").iterdir()) == []


@pytest.mark.parametrize("how", ["on-record", "open-to-all", "of-others", "closed"])
def test_none_lies_where_somebody_else_could_write(place: Path, tmp_path: Path, how: str) -> None:
    """A tree that was a session's, a directory of everybody's on the way, one that is not private."""
    if how == "on-record":
        record = Path(written.path_of(str(place.parent)))
        record.write_bytes(os.fsencode(tmp_path.parent) + b"\0")
        record.chmod(0o600)
    elif how == "open-to-all":
        tmp_path.chmod(0o777)
    elif how == "of-others":
        place.chmod(0o750)
    else:
        place.rmdir()
        place.write_text("")
    with pytest.raises(Refusal) as raised:
        Scratch()
    assert raised.value.reference == ("state-unusable" if how == "closed" else "scratch-unsafe")
    if how == "open-to-all":
        tmp_path.chmod(0o1777)
        Scratch().close()
