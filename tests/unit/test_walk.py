"""Opening without following links, by hand: the same answers as openat2(2) gives."""

import errno
import os
import stat
from pathlib import Path

import pytest

from launcher.safefs import walk

PATHS = (
    "file", "a", "a/", "a/.", "a/b/c", "a//b/./c", "a/../file", "link", "link/", "a/link/c", "dangling", "a/dangling/x",
    "gone", "a/gone", "a/gone/x", "file/x", "file/", ".", "..", "a/loop", "up/file", "a/b/c/d",
)  # fmt: skip
FLAGS = (
    os.O_PATH,
    os.O_PATH | os.O_DIRECTORY,
    os.O_PATH | os.O_NOFOLLOW,
    os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY,
    os.O_RDONLY,
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Files and directories, and links to each kind."""
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/c").touch()
    (tmp_path / "file").touch()
    for name, text in (("link", "file"), ("a/link", "b"), ("a/loop", "loop"), ("up", ".."), ("dangling", "nowhere"),
                       ("a/dangling", "nowhere")):  # fmt: skip
        (tmp_path / name).symlink_to(text)
    return tmp_path.resolve()


def outcome(opened: int | OSError) -> object:
    """Which inode was opened, or the errno's name."""
    if isinstance(opened, OSError):
        assert opened.errno is not None
        return errno.errorcode[opened.errno]
    found = os.fstat(opened)
    os.close(opened)
    return (found.st_dev, found.st_ino)


def by_hand(dirfd: int, path: str, flags: int) -> object:
    try:
        return outcome(walk.open_without_links(dirfd, path, flags))
    except OSError as error:
        return outcome(error)


def by_kernel(dirfd: int, path: str, flags: int) -> object:
    try:
        return outcome(walk.openat2(dirfd, path, flags, 0, walk.RESOLVE_NO_SYMLINKS))
    except OSError as error:
        return outcome(error)


@pytest.mark.parametrize("flags", FLAGS)
def test_the_walk_agrees_with_the_kernel(tree: Path, flags: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a descriptor, from the current directory and from the root, for what is there and what is not."""
    monkeypatch.chdir(tree)
    before = sorted(os.listdir("/proc/self/fd"))
    directory = os.open(tree, os.O_PATH)
    for path in PATHS:
        for dirfd, name in ((directory, path), (walk.AT_FDCWD, path), (walk.AT_FDCWD, f"{tree}/{path}")):
            assert by_hand(dirfd, name, flags) == by_kernel(dirfd, name, flags), name
    os.close(directory)
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_the_wrapper_falls_back_where_the_call_is_missing(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the one question that the walk can answer; any other is the error that it is."""
    monkeypatch.setattr(walk, "_OPENAT2", 10_000)
    assert by_kernel(walk.AT_FDCWD, f"{tree}/a/b/c", os.O_PATH) == by_hand(walk.AT_FDCWD, f"{tree}/a/b/c", os.O_PATH)
    assert by_kernel(walk.AT_FDCWD, f"{tree}/link", os.O_PATH) == "ELOOP"
    with pytest.raises(OSError, match="not implemented"):
        walk.openat2(walk.AT_FDCWD, str(tree), os.O_PATH, 0, walk.RESOLVE_NO_MAGICLINKS)


def test_put_replaces_an_entry_in_one_step(tmp_path: Path) -> None:
    """A link itself and not its target, with the exact mode; a directory stays, and nothing else is left behind."""
    (tmp_path / "target").write_text("of the user")
    (tmp_path / "entry").symlink_to("target")
    (tmp_path / "directory").mkdir()
    walk.replace(f"{tmp_path}/entry", b"new", mode=0o640)
    with pytest.raises(IsADirectoryError):
        walk.replace(f"{tmp_path}/directory", b"new")
    assert ((tmp_path / "target").read_text(), (tmp_path / "entry").read_text()) == ("of the user", "new")
    assert stat.S_IMODE((tmp_path / "entry").lstat().st_mode) == 0o640
    assert sorted(os.listdir(tmp_path)) == ["directory", "entry", "target"]
