"""Measuring a directory piece by piece."""

import os
from pathlib import Path

import pytest

from launcher.jail import syscalls
from launcher.session import watchdog
from launcher.session.watchdog import DiskUse
from tests.support import forked
from tests.support.features import need

MIB = 1 << 20


def measured(use: DiskUse) -> float:
    """The share once a whole walk is done."""
    while True:
        share = use.share([], 0.0)
        if share > 1 or use.idle:
            return share


def fill(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(size))


def test_everything_below_counts_once(tmp_path: Path) -> None:
    """Files in any directory; one with two names counts once, and what a link leads to does not."""
    home = tmp_path / "home"
    fill(home / "a/b/c", MIB)
    fill(home / "d", MIB)
    os.link(home / "d", home / "e")
    fill(tmp_path / "outside", 8 * MIB)
    (home / "link").symlink_to(tmp_path / "outside")
    (home / "way-out").symlink_to(tmp_path)
    assert 0.45 < measured(DiskUse((str(home),), 4 * MIB)) < 0.6


def test_more_than_the_limit_is_certain(tmp_path: Path) -> None:
    """Above it the share is more than 1, in one directory or several."""
    for name in ("home", "tmp"):
        fill(tmp_path / name / "file", 2 * MIB)
    paths = (str(tmp_path / "home"), str(tmp_path / "tmp"))
    assert measured(DiskUse(paths, 3 * MIB)) > 1
    assert measured(DiskUse(paths[:1], 3 * MIB)) < 1


def test_holes_take_no_disk(tmp_path: Path) -> None:
    """A sparse file counts as the blocks it has."""
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    assert measured(DiskUse((str(tmp_path),), MIB)) < 0.5


def test_what_is_empty_counts_as_a_block(tmp_path: Path) -> None:
    """Each file, link and directory takes one of the file system's inodes, which can run out before its blocks do."""
    for number in range(100):
        (tmp_path / f"d{number}").mkdir()
        (tmp_path / f"d{number}/empty").touch()
        (tmp_path / f"d{number}/link").symlink_to("empty")
    assert 300 * 4096 <= measured(DiskUse((str(tmp_path),), 4 * MIB)) * 4 * MIB < 340 * 4096


def test_a_share_of_a_disk_is_that_share_of_its_inodes(tmp_path: Path) -> None:
    """Half of what is free is passed by half of the inodes that are free, and well before by nothing."""
    need("userns")

    def seen() -> list[bool]:
        ids = {"uid_map": f"0 {os.geteuid()} 1", "setgroups": "deny", "gid_map": f"0 {os.getegid()} 1"}
        syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS)
        for name, content in ids.items():
            Path("/proc/self", name).write_text(content)
        syscalls.mount("own", str(tmp_path), "tmpfs", 0, "size=64m,nr_inodes=1000")
        passed = []
        use = DiskUse((str(tmp_path),), 32 * MIB, since=1)
        for number in range(600):
            (tmp_path / str(number)).touch()
            if number in (300, 599):
                passed.append(measured(use) > 1)
        return passed

    assert forked.run(seen) == [False, True]


def test_others_use_of_the_file_system_is_no_proof(tmp_path: Path) -> None:
    """What is written elsewhere leads to a new walk, and to nothing else."""
    home = tmp_path / "home"
    home.mkdir()
    use = DiskUse((str(home),), MIB)
    assert measured(use) < 1
    fill(tmp_path / "elsewhere", 8 * MIB)
    assert measured(use) <= 1


def test_a_walk_takes_as_many_pieces_as_it_needs(tmp_path: Path) -> None:
    """With no time at all each call does one piece, and the end is the same."""
    for number in range(200):
        fill(tmp_path / f"d{number % 7}/{number}", 4096)
    use = DiskUse((str(tmp_path),), 64 * MIB)
    calls = 0
    while use.share([], 0.0) <= 1 and not use.idle:
        calls += 1
    assert calls > 7


def test_too_deep_counts_as_what_the_file_system_has_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not measured is held against the jail, not for it: on a file system on which nobody frees anything."""
    need("userns")
    monkeypatch.setattr(watchdog, "_DEPTH", 3)

    def seen() -> tuple[float, float]:
        ids = {"uid_map": f"0 {os.geteuid()} 1", "setgroups": "deny", "gid_map": f"0 {os.getegid()} 1"}
        syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS)
        for name, content in ids.items():
            Path("/proc/self", name).write_text(content)
        syscalls.mount("own", str(tmp_path), "tmpfs")
        use = DiskUse((str(tmp_path),), 4 * MIB)
        before = measured(use)
        fill(tmp_path / "1/2/3/4/5/file", 8 * MIB)
        return before, measured(use)

    before, after = forked.run(seen)
    assert before < 1 < after


def test_a_directory_that_vanishes_is_no_error(tmp_path: Path) -> None:
    """Between the pieces of a walk everything may change."""
    for number in range(100):
        fill(tmp_path / f"{number}/file", 4096)
    use = DiskUse((str(tmp_path),), 64 * MIB)
    use.share([], 0.0)
    for number in range(50):
        (tmp_path / f"{number}/file").unlink()
        (tmp_path / f"{number}").rmdir()
    assert measured(use) < 1
