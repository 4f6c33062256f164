"""A first checkout by several gits, each with its own part of the index.

`checkout.workers` hands every file over a pipe: 12 system calls for a file in place of four, and half as much processor
time again as one git alone. Here each git has an index of its own with a contiguous part of the entries, writes their
files and notes the files' times there; the parts are put together to one. An entry is as long then as before, because
what a checkout notes has a fixed size. Format: gitformat-index(5), version 2.
"""

import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import NamedTuple

from launcher.vcs.git import Git

LEAST = 2_000
"""Files for which more than one process is worth it."""

_PLAIN = (
    ("index.version", "2"),
    ("index.sparse", "false"),
    ("index.threads", "1"),
    ("index.skipHash", "false"),
    ("core.splitIndex", "false"),
    ("core.untrackedCache", "false"),
    ("checkout.workers", "1"),
)
_HEADER = 12  # "DIRC", version, number of entries
_STAT = 40
_LONG = 0xFFF  # a name whose length the flags cannot hold


class _Index(NamedTuple):
    """An index file of version 2.

    Attributes:
        content: all of it.
        places: where each entry begins; one more for where the last one ends.
        algorithm: of object ids, and of the checksum at the end (hashlib).
    """

    content: bytes
    places: tuple[int, ...]
    algorithm: str

    @property
    def size(self) -> int:
        """How many entries there are."""
        return len(self.places) - 1

    @property
    def fixed(self) -> int:
        """Bytes of an entry before its path."""
        return _STAT + hashlib.new(self.algorithm).digest_size + 2

    def name(self, number: int) -> bytes:
        """The path of an entry: it ends with the first of the NULs that fill it up."""
        start = self.places[number] + self.fixed
        return self.content[start : self.content.index(b"\0", start)]

    def part(self, start: int, end: int) -> bytes:
        """An index file with the entries from `start` to before `end`, without extensions."""
        entries = self.content[self.places[start] : self.places[end]]
        return _with_checksum(self.content[:8] + (end - start).to_bytes(4) + entries, self.algorithm)


def check_out(git: Git, workers: int, algorithm: str, environment: Mapping[str, str]) -> bool:
    """Writes the files of HEAD into an empty work tree, and the index. False when that is not for this: it did nothing.

    Args:
        git: on a new worktree, without sparse checkout and filters.
        workers: processes at most.
        algorithm: of the repository's object ids: ``sha1`` or ``sha256``.
        environment: as for `Git.run`.

    Raises:
        GitFailed: git failed; files may have been written.
        OSError: the index or a directory cannot be written.
    """
    if workers < 2:
        return False
    plain = git.variant(work_tree=git.work_tree, settings=_PLAIN)
    plain.run("read-tree", "HEAD", environment=environment)
    path = f"{git.git_dir}/index"
    base = _read(path, algorithm)
    if base is None or base.size < LEAST:
        os.unlink(path)
        return False
    if b".gitattributes\0" in base.content:
        # Whole before any file beside them is written: what they say counts for it.
        names = [name for name in map(base.name, range(base.size)) if name.rpartition(b"/")[2] == b".gitattributes"]
        paths = b"".join(name + b"\0" for name in names)
        plain.run("checkout-index", "-q", "-u", "-z", "--stdin", input=paths, environment=environment)
        base = _read(path, algorithm)
        assert base is not None
    ends = [base.size * number // workers for number in range(workers + 1)]
    for end in ends[1:-1]:
        _make_shared(os.fsencode(git.work_tree or ""), base.name(end - 1), base.name(end))
    own = [f"{path}-paddock-{number}" for number in range(workers)]
    try:
        with ThreadPoolExecutor(workers) as pool:
            running = []
            for place, (start, end) in zip(own, pairwise(ends), strict=True):
                with open(place, "xb") as file:
                    file.write(base.part(start, end))
                where = {**environment, "GIT_INDEX_FILE": place}
                running.append(pool.submit(plain.run, "checkout-index", "-q", "-u", "-a", environment=where))
            for future in running:
                future.result()
        _put(path, _joined(base, own, ends))
    finally:
        for place in own:
            for name in (place, f"{place}.lock"):
                if os.path.lexists(name):
                    os.unlink(name)
    return True


def _make_shared(root: bytes, before: bytes, after: bytes) -> None:
    """Makes the directories that two neighbours have in common, which two gits would both want to make."""
    shared = root
    for one, other in zip(before.split(b"/")[:-1], after.split(b"/")[:-1], strict=False):
        if one != other:
            break
        shared += b"/" + one
        os.makedirs(shared, exist_ok=True)


def _joined(base: _Index, own: list[str], ends: list[int]) -> bytes:
    """The index with each part as its own git has left it."""
    pieces = [base.content[:_HEADER]]
    for place, (start, end) in zip(own, pairwise(ends), strict=True):
        with open(place, "rb") as file:
            content = file.read()
        begin, size = base.places[start], base.places[end] - base.places[start]
        for entry in {start, end - 1} if end > start else ():
            at, stop = base.places[entry], base.places[entry + 1]
            # All but the times, which come first.
            if content[at - begin + _HEADER + _STAT : stop - begin + _HEADER] != base.content[at + _STAT : stop]:
                raise OSError(f"{place}: git has changed entries that it was not asked for")
        pieces.append(content[_HEADER : _HEADER + size])
    digest = hashlib.new(base.algorithm).digest_size
    pieces.append(base.content[base.places[-1] : -digest])
    return _with_checksum(b"".join(pieces), base.algorithm)


def _with_checksum(content: bytes, algorithm: str) -> bytes:
    return content + hashlib.new(algorithm, content, usedforsecurity=False).digest()


def _put(path: str, content: bytes) -> None:
    """Replaces the index as git does, through its lock."""
    descriptor = os.open(f"{path}.lock", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), os.stat(path).st_mode & 0o777)
        os.rename(f"{path}.lock", path)
    except BaseException:
        os.unlink(f"{path}.lock")
        raise


def _read(path: str, algorithm: str) -> _Index | None:
    """An index; None when it is of another version, or empty."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        return None
    if content[:8] != b"DIRC\0\0\0\2":
        return None
    return _Index(content, _places(content, _STAT + hashlib.new(algorithm).digest_size), algorithm)


def _places(content: bytes, flags: int) -> tuple[int, ...]:
    """Where each entry begins, and the last one ends. `flags`: where in an entry its flags are."""
    at = _HEADER
    found = [at]
    for _ in range(int.from_bytes(content[8:12])):
        length = (content[at + flags] << 8 | content[at + flags + 1]) & _LONG
        if length == _LONG:
            length = content.index(b"\0", at + flags + 2 + length) - at - flags - 2
        at += (flags + 2 + length + 8) & ~7  # one to eight NULs behind the name
        found.append(at)
    return tuple(found)
