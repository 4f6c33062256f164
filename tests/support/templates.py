"""Copies of what a script of git commands has made once.

A repository with worktrees and a submodule takes a hundred processes to make and none to copy. The copies differ from
what the script would make in nothing but times and inode numbers: paths in git's files are those of the copy, hard
links are hard links, and the index holds the copy's own stat data, so that nothing looks changed.
"""

import hashlib
import os
import re
import shutil
import stat
import struct
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import install
from tests.support.identity import Who

_TOO_LARGE = 1 << 24
_CORE_WORKTREE = re.compile(rb"^\s*worktree = (.+)$", re.MULTILINE)
_INDEX_HEADER, _INDEX_ENTRY, _HASH = struct.Struct(">4sII"), struct.Struct(">10L20sH"), 20
"""gitformat-index(5), version 2: signature, version, entries; an entry's stat data, object and length of the name."""


@dataclass(frozen=True)
class _Template:
    """A tree in memory.

    Args:
        root: where it was made; stands in its files.
        directories: relative path and mode, parents first.
        files: relative path, mode and content.
        links: relative path and target of symbolic links.
        names: relative path and the file in `files` of further names of it.
        indexes: relative path of each index, and of the worktree that it describes.
    """

    root: bytes
    directories: list[tuple[str, int]] = field(default_factory=list)
    files: list[tuple[str, int, bytes]] = field(default_factory=list)
    links: list[tuple[str, str]] = field(default_factory=list)
    names: list[tuple[str, str]] = field(default_factory=list)
    indexes: dict[str, str] = field(default_factory=dict)


_made: dict[object, _Template] = {}


def grow(who: Who, place: Path, script: str, *arguments: str) -> None:
    """Fills `place` with what `script`, run by sh(1) in an empty directory, would make there.

    Args:
        who: owns what is made.
        place: an existing directory.
        script: makes the same wherever it runs, but for the path of the directory in plain text files.
        arguments: of the script.

    Raises:
        subprocess.CalledProcessError: the script failed; the error holds its stderr.
    """

    def make(root: Path) -> None:
        ended = who.run(["sh", "-eu", "-c", script, "sh", *arguments], cwd=who.give(root))
        if ended.returncode != 0:
            raise subprocess.CalledProcessError(ended.returncode, "sh", ended.stdout, ended.stderr)

    _copy(_template((script, arguments, who.uid), make), place, who)


def repeat(make: Callable[[Path], None], place: Path) -> None:
    """Fills `place` with what `make`, a function of a module, makes in an empty directory; see `grow`."""
    _copy(_template(make, make), place, None)


def _template(key: object, make: Callable[[Path], None]) -> _Template:
    if key not in _made:
        directory = Path(tempfile.mkdtemp(prefix="m-", dir=install.public_root()))
        try:
            directory.chmod(0o755)
            root = directory / "template-of-a-repository"
            root.mkdir()
            make(root)
            _made[key] = _read(root)
        finally:
            shutil.rmtree(directory)
    return _made[key]


def _read(root: Path) -> _Template:
    template = _Template(os.fsencode(root))
    known: dict[int, str] = {}
    for parent, directories, files in os.walk(root):
        for name in (*directories, *files):
            path = Path(parent, name)
            relative, info = str(path.relative_to(root)), path.lstat()
            if stat.S_ISLNK(info.st_mode):
                template.links.append((relative, str(path.readlink())))
            elif stat.S_ISDIR(info.st_mode):
                template.directories.append((relative, stat.S_IMODE(info.st_mode)))
            elif info.st_ino in known:
                template.names.append((relative, known[info.st_ino]))
            else:
                assert stat.S_ISREG(info.st_mode), path
                assert info.st_size < _TOO_LARGE, f"too large to be kept in memory: {path}"
                known[info.st_ino] = relative
                template.files.append((relative, stat.S_IMODE(info.st_mode), path.read_bytes()))
                if name == "index" and "HEAD" in files:
                    template.indexes[relative] = os.path.relpath(_worktree(path.parent), root)
    return template


def _worktree(repository: Path) -> str:
    """The directory that the index of a git directory describes."""
    if (repository / "gitdir").exists():
        return os.path.dirname((repository / "gitdir").read_text())
    if not (found := _CORE_WORKTREE.search((repository / "config").read_bytes())):
        return str(repository.parent)
    return os.path.normpath(repository / os.fsdecode(found[1]))


def _copy(template: _Template, place: Path, who: Who | None) -> None:
    root, base = os.fsencode(place), str(place)
    owner = who if who is not None and who.uid != os.geteuid() else None
    for name, mode in template.directories:
        os.mkdir(f"{base}/{name}", mode)
    # The indexes come last: they describe the other files.
    for name, mode, content in sorted(template.files, key=lambda file: file[0] in template.indexes):
        if name in template.indexes:
            content = _described(content, f"{base}/{template.indexes[name]}")
        fd = os.open(f"{base}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            os.write(fd, content.replace(template.root, root))
            if owner is not None:
                os.fchown(fd, owner.uid, owner.gid)
        finally:
            os.close(fd)
    for name, target in template.links:
        os.symlink(target, f"{base}/{name}")
    for name, first in template.names:
        os.link(f"{base}/{first}", f"{base}/{name}")
    if owner is not None:
        for name in (*(name for name, _ in template.directories), *(name for name, _ in template.links)):
            os.chown(f"{base}/{name}", owner.uid, owner.gid, follow_symlinks=False)


def _described(index: bytes, worktree: str) -> bytes:
    """`index` with the stat data of the files that lie in `worktree`."""
    signature, version, entries = _INDEX_HEADER.unpack_from(index)
    assert (signature, version) == (b"DIRC", 2), "an index of another version than git makes by itself"
    changed, at = bytearray(index[:-_HASH]), _INDEX_HEADER.size
    for _ in range(entries):
        *_, mode, _, _, _, name, flags = _INDEX_ENTRY.unpack_from(changed, at)
        length = flags & 0xFFF
        path = changed[at + _INDEX_ENTRY.size : at + _INDEX_ENTRY.size + length]
        if stat.S_IFMT(mode) != 0o160000:  # a submodule's directory is looked into, not at
            info = os.lstat(b"%s/%s" % (os.fsencode(worktree), path))
            times = (*divmod(info.st_ctime_ns, 10**9), *divmod(info.st_mtime_ns, 10**9))
            facts = (*times, info.st_dev, info.st_ino, mode, info.st_uid, info.st_gid, info.st_size)
            _INDEX_ENTRY.pack_into(changed, at, *(fact & 0xFFFFFFFF for fact in facts), name, flags)
        at += (_INDEX_ENTRY.size + length) // 8 * 8 + 8
    return bytes(changed) + hashlib.sha1(changed, usedforsecurity=False).digest()
