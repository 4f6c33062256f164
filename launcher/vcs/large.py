"""Git LFS as data: where a repository's large files are, and what a pointer to one says. Git LFS itself is not run.

Format of a pointer and layout of the store: git-lfs, docs/spec.md; ``lfs.storage``: git-lfs-config(5).
"""

import hashlib
import os
import re
import stat
from collections.abc import Iterable
from typing import NamedTuple

from launcher.safefs import walk
from launcher.vcs.git import Git

MOST_POINTER = 1023
"""Bytes: a pointer is smaller than 1024."""

_POINTER = re.compile(rb"version https://[^\n]+\noid sha256:([0-9a-f]{64})\nsize (0|[1-9][0-9]{0,18})\n")
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
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
    """Those of `oids` (of blobs in a trusted repository) that are pointers.

    Raises:
        GitFailed: git failed.
    """
    lines = "".join(f"{oid}\n" for oid in oids).encode()
    small = []
    for line in git.run("cat-file", "--batch-check", input=lines).out.decode().splitlines():
        oid, kind, size = [*line.split(" "), "", ""][:3]
        if kind == "blob" and int(size) <= MOST_POINTER:
            small.append(oid)
    out = git.run("cat-file", "--batch", input="".join(f"{oid}\n" for oid in small).encode()).out if small else b""
    found = {}
    at = 0
    for oid in small:
        start = out.index(b"\n", at) + 1
        at = start + int(out[at:start].split()[2]) + 1
        said = pointer(out[start : at - 1])
        if said is not None:
            found[oid] = said
    return found


def store(git: Git) -> str:
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


def is_content(tree: int, path: str, wanted: Pointer) -> bool:
    """Whether a file that an agent may have written is what a pointer stands for. It may be replaced meanwhile.

    Args:
        tree: descriptor of the directory that `path` is relative to; no link is followed.
        path: relative.
        wanted: the pointer.
    """
    try:
        descriptor = walk.open_inside(tree, path, _FILE)
    except OSError:
        return False
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size != wanted.size:
            return False
        digest = hashlib.sha256()
        left = wanted.size
        while left > 0 and (block := os.read(descriptor, min(left, _BLOCK))):
            digest.update(block)
            left -= len(block)
        return left == 0 and digest.hexdigest() == wanted.oid
    finally:
        os.close(descriptor)
