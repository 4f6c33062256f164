"""A first checkout by several gits, each with its own part of the index.

`checkout.workers` hands every file over a pipe: 12 system calls for a file in place of four, and half as much processor
time again as one git alone. Here each git writes a contiguous part of the paths, and notes the files' times in an index
of its own; the parts are put together to one. An entry has the same place in all of them, because what a checkout notes
has a fixed size. Format: gitformat-index(5), version 2.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping
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
        names: paths, in their order.
        places: where each entry begins; one more for where the last one ends.
        algorithm: of object ids, and of the checksum at the end (hashlib).
    """

    content: bytes
    names: tuple[bytes, ...]
    places: tuple[int, ...]
    algorithm: str


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
    if base is None or len(base.names) < LEAST:
        os.unlink(path)
        return False
    attributes = [name for name in base.names if name.rpartition(b"/")[2] == b".gitattributes"]
    if attributes:
        # Whole before any file beside them is written: what they say counts for it.
        _write_files(plain, attributes, environment)
        base = _read(path, algorithm)
        assert base is not None
    ends = [len(base.names) * number // workers for number in range(workers + 1)]
    for end in ends[1:-1]:
        _make_shared(os.fsencode(git.work_tree or ""), base.names[end - 1], base.names[end])
    own = [f"{path}-paddock-{number}" for number in range(workers)]
    try:
        with ThreadPoolExecutor(workers) as pool:
            running = []
            for place, (start, end) in zip(own, pairwise(ends), strict=True):
                with open(place, "xb") as file:
                    file.write(base.content)
                where = {**environment, "GIT_INDEX_FILE": place}
                running.append(pool.submit(_write_files, plain, base.names[start:end], where))
            for future in running:
                future.result()
        _put(path, _joined(base, own, ends))
    finally:
        for place in own:
            for name in (place, f"{place}.lock"):
                if os.path.lexists(name):
                    os.unlink(name)
    return True


def _write_files(git: Git, names: "tuple[bytes, ...] | list[bytes]", environment: Mapping[str, str]) -> None:
    paths = b"".join(name + b"\0" for name in names)
    git.run("checkout-index", "-q", "-u", "-z", "--stdin", input=paths, environment=environment)


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
    last = base.places[-1]
    for place, (start, end) in zip(own, pairwise(ends), strict=True):
        with open(place, "rb") as file:
            content = file.read()
        begin, stop = base.places[start], base.places[end]
        if content[:begin] != base.content[:begin] or content[stop:last] != base.content[stop:last]:
            raise OSError(f"{place}: git has changed entries that it was not asked for")
        pieces.append(content[begin:stop])
    checksum = hashlib.new(base.algorithm, usedforsecurity=False)
    pieces.append(base.content[last : -checksum.digest_size])
    whole = b"".join(pieces)
    checksum.update(whole)
    return whole + checksum.digest()


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
    count = int.from_bytes(content[8:12])
    found = list(_entries(content, count, _STAT + hashlib.new(algorithm).digest_size))
    names = tuple(name for name, _ in found)
    return _Index(content, names, (_HEADER, *(end for _, end in found)), algorithm)


def _entries(content: bytes, count: int, flags: int) -> Iterator[tuple[bytes, int]]:
    """Each entry's path, and where it ends. `flags`: where in an entry its flags are."""
    at = _HEADER
    fixed = flags + 2
    for _ in range(count):
        length = int.from_bytes(content[at + flags : at + fixed]) & _LONG
        start = at + fixed
        end = start + length if length < _LONG else content.index(b"\0", start + length)
        at += (end - at + 8) & ~7  # one to eight NULs behind the name
        yield content[start:end], at
