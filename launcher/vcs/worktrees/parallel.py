"""A first checkout by several gits, each with its own part of the index.

`checkout.workers` hands every file over a pipe: 12 system calls for a file in place of four, and half as much processor
time again as one git alone. Here each git has an index of its own with a contiguous part of the entries, writes their
files and notes the files' times there; the parts are put together to one. An entry is as long then as before, because
what a checkout notes has a fixed size. Format: gitformat-index(5), version 2.
"""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import NamedTuple

from launcher.vcs.jailed_git import JailedGit
from launcher.vcs.quarantine.inside import Inside
from launcher.vcs.scratch import Scratch

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


def check_out(git: JailedGit, workers: int, algorithm: str) -> None:
    """Writes the files of HEAD into an empty work tree, and the index.

    Args:
        git: on a new worktree.
        workers: processes at most.
        algorithm: of the repository's object ids: ``sha1`` or ``sha256``.

    Raises:
        GitFailed: git failed; files may have been written.
        OSError: the index or a directory cannot be written.
    """
    with Scratch() as scratch:
        index = scratch.path("index")
        environment = {"GIT_INDEX_FILE": index}
        sparse = os.path.lexists(f"{git.git_dir}/info/sparse-checkout")
        base = None
        if workers > 1 and not sparse:
            git.variant(_PLAIN).repository.run("read-tree", "HEAD", environment=environment)
            base = _read(scratch.name, "index", algorithm)
        if base is None or base.size < LEAST:
            if os.path.lexists(index):
                os.unlink(index)
            git.run("read-tree", "-m", "-u", "HEAD", environment=environment)
            content = _content(scratch.name, "index")
        else:
            content = _by_parts(git.variant(_PLAIN), scratch, base, workers)
    _put(f"{git.git_dir}/index", content)


def _by_parts(git: JailedGit, scratch: Scratch, base: _Index, workers: int) -> bytes:
    """Writes the files of an index, `base`, by several gits. Returns the index that knows the files' times."""
    if b".gitattributes\0" in base.content:
        # Whole before any file beside them is written: what they say counts for it.
        names = [name for name in map(base.name, range(base.size)) if name.rpartition(b"/")[2] == b".gitattributes"]
        paths = b"".join(name + b"\0" for name in names)
        words = ("checkout-index", "-q", "-u", "-z", "--stdin")
        git.run(*words, input=paths, environment={"GIT_INDEX_FILE": scratch.path("index")})
        written = _read(scratch.name, "index", base.algorithm)
        assert written is not None
        base = written
    ends = [base.size * number // workers for number in range(workers + 1)]
    with Inside(git.work_tree) as inside:
        for end in ends[1:-1]:
            _make_shared(inside, base.name(end - 1), base.name(end))
    with ThreadPoolExecutor(workers) as pool:
        running = []
        for number, (start, end) in enumerate(pairwise(ends)):
            os.mkdir(scratch.path(str(number)))
            where = scratch.path(f"{number}/index")
            with open(where, "xb") as file:
                file.write(base.part(start, end))
            running.append(
                pool.submit(git.run, "checkout-index", "-q", "-u", "-a", environment={"GIT_INDEX_FILE": where})
            )
        for future in running:
            future.result()
    parts = [_content(scratch.name, f"{number}/index") for number in range(workers)]
    return _joined(base, parts, ends)


def _make_shared(inside: Inside, before: bytes, after: bytes) -> None:
    """Makes the directories that two neighbours have in common, which two gits would both want to make."""
    shared: list[bytes] = []
    for one, other in zip(before.split(b"/")[:-1], after.split(b"/")[:-1], strict=False):
        if one != other:
            break
        shared.append(one)
    if shared:
        inside.make(os.fsdecode(b"/".join(shared)), mode=0o777)


def _joined(base: _Index, parts: list[bytes], ends: list[int]) -> bytes:
    """The index with each part as its own git has left it."""
    pieces = [base.content[:_HEADER]]
    for content, (start, end) in zip(parts, pairwise(ends), strict=True):
        begin, size = base.places[start], base.places[end] - base.places[start]
        for entry in {start, end - 1} if end > start else ():
            at, stop = base.places[entry], base.places[entry + 1]
            # All but the times, which come first.
            if content[at - begin + _HEADER + _STAT : stop - begin + _HEADER] != base.content[at + _STAT : stop]:
                raise OSError("git has changed entries of its index that it was not asked for")
        pieces.append(content[_HEADER : _HEADER + size])
    digest = hashlib.new(base.algorithm).digest_size
    pieces.append(base.content[base.places[-1] : -digest])
    return _with_checksum(b"".join(pieces), base.algorithm)


def _with_checksum(content: bytes, algorithm: str) -> bytes:
    return content + hashlib.new(algorithm, content, usedforsecurity=False).digest()


def _put(path: str, content: bytes) -> None:
    """Makes an index as git does, through its lock."""
    descriptor = os.open(f"{path}.lock", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.rename(f"{path}.lock", path)
    except BaseException:
        os.unlink(f"{path}.lock")
        raise


def _content(directory: str, name: str) -> bytes:
    """What git in its jail has left there."""
    with Inside(directory) as inside:
        content = inside.read(name)
    if content is None:
        raise OSError(f"git has left no index at {directory}/{name}")
    return content


def _read(directory: str, name: str, algorithm: str) -> _Index | None:
    """An index; None when it is of another version, or empty."""
    with Inside(directory) as inside:
        content = inside.read(name)
    if content is None or content[:8] != b"DIRC\0\0\0\2":
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
