"""Reopening below a root: with openat2, and step by step as in a jail. Both say the same."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.safefs.walk import make_beneath, open_beneath, open_by_steps

Opener = Callable[[int, str, int], int]


@pytest.fixture(params=[open_beneath, open_by_steps])
def opener(request: pytest.FixtureRequest) -> Opener:
    found: Opener = request.param
    return found


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    """A directory with links of all kinds in it."""
    top = tmp_path / "root"
    (top / "a/b").mkdir(parents=True)
    (top / "a/b/file").write_text("inside")
    (tmp_path / "file").write_text("outside")
    (top / "absolute").symlink_to(tmp_path)
    (top / "upward").symlink_to("..")
    (top / "inward").symlink_to("a")
    (top / "a/last").symlink_to("b/file")
    fd = os.open(top, os.O_PATH | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def test_plain_paths_are_opened(opener: Opener, root: int) -> None:
    """Files, directories, and the root itself; descriptors are not inherited."""
    for path, flags in (("a/b/file", os.O_RDONLY), ("a/b", os.O_PATH | os.O_DIRECTORY), (".", os.O_RDONLY)):
        fd = opener(root, path, flags)
        assert not os.get_inheritable(fd)
        os.close(fd)


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("absolute/file", errno.ELOOP),
        ("upward/file", errno.ELOOP),
        ("inward/b/file", errno.ELOOP),
        ("a/last", errno.ELOOP),
        ("../file", errno.EXDEV),
        ("a/../../file", errno.EXDEV),
        ("/etc/passwd", errno.EXDEV),
        ("a/none", errno.ENOENT),
        ("a/b/file/x", errno.ENOTDIR),
    ],
)
def test_nothing_leads_out(opener: Opener, root: int, path: str, number: int) -> None:
    """No link is followed, wherever it leads, and no way goes up."""
    with pytest.raises(OSError) as refused:
        os.close(opener(root, path, os.O_RDONLY))
    assert refused.value.errno == number


def test_directories_are_made_without_following_links(root: int) -> None:
    """Missing ones only; a link on the way, or a file, is in the way."""
    os.close(make_beneath(root, "a/new/newer"))
    os.close(make_beneath(root, "a/new/newer"))
    os.close(make_beneath(root, ""))
    for path, number in (("inward/new", errno.ELOOP), ("a/b/file/new", errno.ENOTDIR), ("upward/new", errno.ELOOP)):
        with pytest.raises(OSError) as refused:
            make_beneath(root, path)
        assert refused.value.errno == number, path
    assert sorted(os.listdir(os.open("a", os.O_RDONLY, dir_fd=root))) == ["b", "last", "new"]
