"""Removing a tree that somebody hostile filled."""

import os
import resource
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.safefs.remove import remove_tree


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Path]:
    """A directory to be removed, beside a file that must stay."""
    (tmp_path / "kept").write_text("kept")
    (tmp_path / "tree").mkdir()
    yield tmp_path / "tree"
    assert (tmp_path / "kept").read_text() == "kept"
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o644


def deep(tree: Path) -> None:
    """Far deeper than a path can be long."""
    before = os.open(".", os.O_RDONLY)
    try:
        os.chdir(tree)
        for _ in range(3000):
            os.mkdir("d" * 20)
            os.chdir("d" * 20)
    finally:
        os.fchdir(before)
        os.close(before)


def wide(tree: Path) -> None:
    for number in range(2000):
        (tree / str(number)).mkdir()
        (tree / str(number) / "file").touch()


def closed(tree: Path) -> None:
    (tree / "a/b/c").mkdir(parents=True)
    (tree / "a/b/file").touch(0o000)
    for name in ("a/b/c", "a/b", "a"):
        (tree / name).chmod(0o000)
    tree.chmod(0o000)


def links(tree: Path) -> None:
    (tree / "file").symlink_to("../kept")
    (tree / "directory").symlink_to("..")
    (tree / "root").symlink_to("/")
    (tree / "dangling").symlink_to("nonexistent")
    os.link(tree.parent / "kept", tree / "hard")


def odd(tree: Path) -> None:
    os.mkfifo(tree / "fifo")
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(tree / "s"))
    sock.close()
    for name in ("a\nb", "\x1b[31m", "-rf", " ", "\udcff", "x" * 255, ".paddock-000000000000-1"):
        (tree / name).touch()
    (tree / ("y" * 255)).mkdir()


@pytest.mark.parametrize("fill", [deep, wide, closed, links, odd], ids=lambda fill: str(fill.__name__))
def test_everything_goes(tree: Path, fill: Callable[[Path], None]) -> None:
    """Whatever is in it, and nothing beside it."""
    fill(tree)
    assert remove_tree(str(tree)) == []
    assert not os.path.lexists(tree)


def test_few_descriptors_are_enough(tree: Path) -> None:
    """Depth costs no more than these."""
    deep(tree)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 12, hard))
    try:
        assert remove_tree(str(tree)) == []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(os.listdir("/proc/self/fd")) == used


def test_what_is_not_there_is_removed(tmp_path: Path) -> None:
    """It is the outcome that counts."""
    assert remove_tree(str(tmp_path / "nonexistent")) == []


_EXCHANGES = r"""
import ctypes, os, sys
os.chdir(sys.argv[1])
exchange = ctypes.CDLL(None).renameat2
names = [name.encode() for name in os.listdir(".") if not name.endswith(".link")]
print("ready", flush=True)
while os.path.lexists(b"."):
    for name in names:
        for _ in range(2):
            exchange(-100, name, -100, name + b".link", 2)
"""


def test_what_is_exchanged_for_a_link_meanwhile_leads_nowhere(tmp_path: Path) -> None:
    """A session that is alive exchanges each directory for a link and back: what the links lead to is as it was."""
    outside = tmp_path / "outside"
    (outside / "inner").mkdir(parents=True)
    (outside / "inner/file").write_text("x")
    for directory in (outside, outside / "inner"):
        directory.chmod(0o551)
    before = [(each.stat().st_mode, each.stat().st_ctime_ns) for each in (outside, outside / "inner")]
    tree = tmp_path / "tree"
    for round_ in range(5):
        for number in range(400):
            (tree / f"{number}").mkdir(parents=True)
            (tree / f"{number}/file").touch()
            (tree / f"{number}.link").symlink_to(outside)
        swapper = subprocess.Popen([sys.executable, "-c", _EXCHANGES, str(tree)], stdout=subprocess.PIPE)
        try:
            assert swapper.stdout is not None
            assert swapper.stdout.readline() == b"ready\n"
            remove_tree(str(tree))
        finally:
            swapper.kill()
            swapper.communicate()
        assert remove_tree(str(tree)) == [], f"alone again, in round {round_}"
        assert not tree.exists()
        assert [(each.stat().st_mode, each.stat().st_ctime_ns) for each in (outside, outside / "inner")] == before
    assert (outside / "inner/file").read_text() == "x"


def test_the_directory_around_the_tree_is_one_and_the_same(tmp_path: Path) -> None:
    """Given as a descriptor, it may be exchanged for a link by name: the tree in it goes, and no other."""
    for place in ("around", "other"):
        (tmp_path / place / "tree/inner").mkdir(parents=True)
        (tmp_path / place / "tree/inner/file").touch()
    parent = os.open(tmp_path / "around", os.O_PATH)
    try:
        (tmp_path / "around").rename(tmp_path / "moved")
        (tmp_path / "around").symlink_to("other")
        assert remove_tree(str(tmp_path / "around/tree"), parent=parent) == []
    finally:
        os.close(parent)
    assert list((tmp_path / "moved").iterdir()) == []
    assert (tmp_path / "other/tree/inner/file").exists()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """A link in the tree's own place stays, with what it leads to, and is told."""
    (tmp_path / "target").mkdir()
    (tmp_path / "target/file").write_text("x")
    (tmp_path / "target").chmod(0o750)
    (tmp_path / "link").symlink_to("target")
    assert remove_tree(str(tmp_path / "link")) != []
    assert (tmp_path / "target/file").read_text() == "x"
    assert stat.S_IMODE((tmp_path / "target").stat().st_mode) == 0o750


def test_a_file_is_told(tmp_path: Path) -> None:
    """A file in the tree's place is not a tree."""
    (tmp_path / "file").touch(0o640)
    assert remove_tree(str(tmp_path / "file")) != []
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_a_removal_that_was_killed_is_finished(tree: Path) -> None:
    """What an earlier one had moved to the top is not in the way."""
    for number in range(5):
        (tree / f".paddock-deadbeef-{number}/inner").mkdir(parents=True)
    assert remove_tree(str(tree)) == []
    assert not tree.exists()
