"""Git LFS: objects that an agent added to its private store, copied into the main one when their hash is their name.

Layout: ``lfs/objects/AB/CD/ABCD...``, the SHA-256 of the content (git-lfs, docs/spec.md). Git LFS itself is not run:
the files are read as what an agent left there, without following a link, and bounded.
"""

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from launcher.safefs import walk
from launcher.vcs.added_packs import Quarantine
from launcher.vcs.git import Git
from launcher.vcs.harvest import crossing
from launcher.vcs.harvest.parts import Part
from launcher.vcs.private.record import GIT
from policy.errors import Refusal

# Git LFS as data: where a repository's large files are, and what a pointer to one says. Git LFS itself is not run.
#
# Format of a pointer and layout of the store: git-lfs, docs/spec.md; ``lfs.storage``: git-lfs-config(5).

MOST_POINTER = 1023
"""Bytes: a pointer is smaller than 1024."""

_POINTER = re.compile(rb"version https://[^\n]+\noid sha256:([0-9a-f]{64})\nsize (0|[1-9][0-9]{0,18})\n")
_STORED = re.compile(
    rb"version https://[^\n]+\n(?:ext-[^\n]+\n)*oid sha256:([0-9a-f]{64})\nsize (?:0|[1-9][0-9]{0,18})\n"
)
_POINTER_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_BLOCK = 1 << 20


class Pointer(NamedTuple):
    """What stands in a repository for a large file: SHA-256 of its content (hexadecimal), and bytes."""

    oid: str
    size: int

    @property
    def place(self) -> str:
        """Where the content is, below a store."""
        return f"{self.oid[:2]}/{self.oid[2:4]}/{self.oid}"


def pointer(content: bytes) -> Pointer | None:
    """The pointer that a blob is; None for any other content, and for one of extensions, which change the content."""
    found = _POINTER.fullmatch(content) if len(content) <= MOST_POINTER else None
    return None if found is None else Pointer(found[1].decode(), int(found[2]))


def pointers(git: Git, oids: Iterable[str]) -> dict[str, Pointer]:
    """Those of `oids` (of blobs in a trusted repository) that are pointers."""
    small = [one.oid for one in git.objects(oids) if one.kind == "blob" and one.size <= MOST_POINTER]
    said = zip(small, map(pointer, git.contents(small)), strict=True)
    return {oid: found for oid, found in said if found is not None}


def lfs_store(git: Git) -> str:
    """The directory of a trusted repository's large files; it need not exist."""
    named = os.fsdecode(git.run("config", "--get", "lfs.storage", ok=(0, 1)).out.removesuffix(b"\n"))
    return f"{os.path.join(git.common_dir, named or 'lfs')}/objects"


def stored(directory: str, wanted: Pointer) -> bool:
    """Whether a store has a file of that name and size."""
    try:
        found = os.lstat(f"{directory}/{wanted.place}")
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size == wanted.size


MOST_COMPARED = 4 << 30
"""Bytes that one look at files reads; a sparse file costs an agent nothing."""


def unchanged(tree: int, files: Iterable[tuple[str, Pointer]]) -> set[str]:
    """Those of some files, which an agent may have written, that are what their pointers stand for.

    The smallest are looked at first; what is left at `MOST_COMPARED` is taken for changed. No earlier look counts: what
    is written through a shared mapping may leave all of a file's status as it was.

    Args:
        tree: what the paths are relative to.
    """
    left = MOST_COMPARED
    found: set[str] = set()
    for path, wanted in sorted(files, key=lambda one: one[1].size):
        same, read = _compared(tree, path, wanted, left)
        left -= read
        if same:
            found.add(path)
    return found


def _compared(tree: int, path: str, wanted: Pointer, most: int) -> tuple[bool, int]:
    """Whether a file is what a pointer stands for, and how much of it was read. It may be replaced meanwhile."""
    try:
        descriptor = walk.open_inside(tree, path, _POINTER_FILE)
    except OSError:
        return False, 0
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size != wanted.size or wanted.size > most:
            return False, 0
        digest = hashlib.sha256()
        left = wanted.size
        while left > 0 and (block := os.read(descriptor, min(left, _BLOCK))):
            digest.update(block)
            left -= len(block)
        return left == 0 and digest.hexdigest() == wanted.oid, wanted.size - left
    finally:
        os.close(descriptor)


MOST_OBJECTS = 20_000
MOST_BYTES = 8 << 30
"""All new objects of one harvest together."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_HOLE = bytes(4096)
"""What a file system leaves out at least, where it leaves out anything."""
_AT_ONCE = 100_000
"""Blobs whose contents are in memory together; each may be a pointer's size."""


def take(directory: str, part: Part, git: Git, quarantine: Quarantine) -> tuple[int, int]:
    """Copies the objects that new commits name into the main store; returns their number and bytes. May be repeated.

    One that is missing would make the user's checkout fail. One that nobody names is the agent's own affair.

    Refusals: harvest-lfs: an object's content is not what its name says, or there are too many.
    """
    below = f"{part.private}/lfs/objects" if part.private else "lfs/objects"
    try:
        tree = os.open(f"{directory}/{GIT}", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0, 0
    try:
        try:
            top = walk.open_inside(tree, below, _DIRECTORY)
        except OSError:
            return 0, 0  # no store, or a link or a file in its place: nothing of it is believed
    finally:
        os.close(tree)
    taken = size = 0
    try:
        store = lfs_store(git)
        for name in _named(git, quarantine):
            place = Pointer(name, 0).place
            target = f"{store}/{place}"
            if os.path.lexists(target) or not _is_there(top, place):
                continue
            taken += 1
            size += _copy(part, top, place, target, MOST_BYTES - size)
            if taken > MOST_OBJECTS:
                raise _refused(part, f"more than {MOST_OBJECTS} new objects")
    finally:
        os.close(top)
    return taken, size


def _named(git: Git, quarantine: Quarantine) -> Iterator[str]:
    """The objects that pointers in a quarantine name, also those with extensions."""
    blobs = (one for one in crossing.own_objects(git, quarantine) if one.kind == "blob" and one.size <= MOST_POINTER)
    small = [one.oid for one in blobs]
    for first in range(0, len(small), _AT_ONCE):
        for content in git.contents(small[first : first + _AT_ONCE], quarantine.environment):
            if found := _STORED.fullmatch(content):
                yield found[1].decode()


def _is_there(top: int, place: str) -> bool:
    try:
        os.close(walk.open_inside(top, place, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _copy(part: Part, top: int, source: str, target: str, most: int) -> int:
    """Copies one object; its holes stay holes, so it takes no more of the disk than a session's limit has let it."""
    name = os.path.basename(target)
    try:
        reader = walk.open_inside(top, source, _FILE)
    except OSError as error:
        raise _refused(part, f"{name}: {error.strerror}") from None
    temporary = f"{target}.{os.urandom(5).hex()}.tmp"
    try:
        found = os.fstat(reader)
        if not stat.S_ISREG(found.st_mode):
            raise _refused(part, f"{name} is not a regular file")
        if found.st_size > most:
            raise _too_much(part)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        writer = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            digest = hashlib.sha256()
            size = 0
            sparse = found.st_blocks * 512 < found.st_size
            while block := os.read(reader, len(_HOLE) if sparse else _BLOCK):
                size += len(block)
                if size > most:
                    raise _too_much(part)
                digest.update(block)
                if sparse and _HOLE.startswith(block):
                    os.lseek(writer, len(block), os.SEEK_CUR)
                    continue
                while block:
                    block = block[os.write(writer, block) :]
            os.ftruncate(writer, size)
            if digest.hexdigest() != name:
                raise _refused(part, f"the content of {name} has another hash")
            os.fsync(writer)
            os.rename(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
        finally:
            os.close(writer)
    finally:
        os.close(reader)
    return size


def _too_much(part: Part) -> Refusal:
    return _refused(part, f"the new objects hold more than {MOST_BYTES} bytes")


def _refused(part: Part, why: str) -> Refusal:
    return Refusal(
        "harvest-lfs",
        f"Git LFS objects in {part.label} cannot be harvested, so neither are the commits",
        context=why,
        hint="see what changed below lfs/objects: paddock run -- git lfs fsck",
    )
