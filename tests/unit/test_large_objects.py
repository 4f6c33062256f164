"""Objects of Git LFS on their way out of a private store."""

import hashlib
import mmap
import os
import time
from pathlib import Path

import pytest

from launcher.vcs.added_packs import Quarantine
from launcher.vcs.git import Git
from launcher.vcs.harvest import lfs
from launcher.vcs.harvest.parts import Part
from launcher.vcs.private import record
from policy.errors import Refusal
from tests.support.ground import Ground

_POINTER = "version https://git-lfs.github.com/spec/v1\n{}oid sha256:{}\nsize {}\n"


def _object(place: Path, size: int, start: bytes = b"") -> str:
    """A sparse object in the agent's store; its name."""
    name = hashlib.sha256(start + bytes(size - len(start))).hexdigest()
    made = place / record.GIT / f"lfs/objects/{name[:2]}/{name[2:4]}/{name}"
    made.parent.mkdir(parents=True)
    made.write_bytes(start)
    os.truncate(made, size)
    return name


def _taken(place: Path, pointers: dict[str, str]) -> tuple[int, int]:
    ground = Ground(place / "repo", pointers)
    git_dir = ground.root / ".git"
    part = Part(record.Repository("", str(place), "", "", "", None, None, "sha1", ()), str(place))
    return lfs.take(str(place), part, Git(git_dir), Quarantine(f"{git_dir}/objects", str(place)))


def test_a_sparse_object_is_refused_before_it_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes no room where the agent made it, and reading it would take all day."""
    monkeypatch.setattr(lfs, "MOST_BYTES", 1 << 20)
    name = _object(tmp_path, 2 << 20)
    with pytest.raises(Refusal) as caught:
        _taken(tmp_path, {"a": _POINTER.format("", name, 2 << 20)})
    assert (caught.value.reference, "hold more than" in caught.value.context) == ("harvest-lfs", True)
    assert not (tmp_path / "repo/.git/lfs").exists()


def test_what_no_new_commit_names_is_not_taken_and_holes_stay_holes(tmp_path: Path) -> None:
    """What comes into the user's store is what commits need, and takes no more of his disk than of the session's."""
    size = 64 << 20
    named, extended, other = (_object(tmp_path, size, start) for start in (b"one", b"two", b"three"))
    pointers = {
        "a": _POINTER.format("", named, size),
        "b": _POINTER.format(f"ext-0-x sha256:{other}\n", extended, size),
    }
    assert _taken(tmp_path, {**pointers, "c": f"oid sha256:{other}\n"}) == (2, 2 * size)
    store = tmp_path / "repo/.git/lfs/objects"
    found = {path.name: path.stat() for path in store.rglob("*") if path.is_file()}
    assert {name: one.st_size for name, one in found.items()} == {named: size, extended: size}
    assert sum(one.st_blocks * 512 for one in found.values()) < size // 8
    assert all(hashlib.sha256(path.read_bytes()).hexdigest() == path.name for path in store.rglob("?" * 64))


def test_files_are_read_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sparse file costs nothing: what is beyond the bound counts as changed."""
    files = []
    for number in range(3):
        path = tmp_path / str(number)
        path.write_bytes(bytes(1000 + number))
        files.append((path.name, lfs.Pointer(hashlib.sha256(path.read_bytes()).hexdigest(), 1000 + number)))
    tree = os.open(tmp_path, os.O_PATH)
    monkeypatch.setattr(lfs, "MOST_COMPARED", 2500)
    assert lfs.unchanged(tree, reversed(files)) == {"0", "1"}
    assert lfs.unchanged(tree, files[2:]) == {"2"}
    os.close(tree)


def test_what_is_written_through_a_mapping_is_seen(tmp_path: Path) -> None:
    """Once a page may be written, a write to it is no call, and leaves the file's times as they were."""
    content = b"A" * 8192
    (tmp_path / "big").write_bytes(content)
    tree = os.open(tmp_path, os.O_PATH)
    with open(tmp_path / "big", "r+b") as file, mmap.mmap(file.fileno(), 0) as pages:
        pages[0:1] = pages[4096:4097] = b"A"
        time.sleep(0.1)  # so long that its status does not look recent
        files = [("big", lfs.Pointer(hashlib.sha256(content).hexdigest(), len(content)))]
        assert lfs.unchanged(tree, files) == {"big"}
        pages[:] = b"B" * len(content)
        assert lfs.unchanged(tree, files) == set()
    os.close(tree)
