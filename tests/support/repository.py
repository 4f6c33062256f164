"""Real git repositories: with worktrees, submodules, or a worktree service; and quick copies of each."""

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
from typing import NamedTuple

import pytest

from launcher.vcs.worktrees.worktree_service import WorktreeService
from tests.support import install
from tests.support.ground import Entry, Ground
from tests.support.identity import SYSTEM_PATH, Who

# Copies of what a script of git commands has made once.
#
# A repository with worktrees and a submodule takes a hundred processes to make and none to copy. The copies differ
# from what the script would make in nothing but times and inode numbers: paths in git's files are those of the copy,
# hard links are hard links, and the index holds the copy's own stat data, so that nothing looks changed.

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


# A repository with submodules two levels deep, checked out: `lib`, and `lib/inner` in it; and `doc` beside them.

LINES = "".join(f"{number}\n" for number in range(20))


def changed(*numbers: int) -> str:
    """Twenty lines, of which these are changed."""
    return "".join(f"changed {number}\n" if number in numbers else f"{number}\n" for number in range(20))


def link(commit: str) -> Entry:
    """A gitlink."""
    return Entry("160000", commit)


def modules(**paths: str) -> str:
    """A `.gitmodules` file: name=path; the URL is `../NAME-up`."""
    return "".join(f'[submodule "{name}"]\n\tpath = {path}\n\turl = ../{name}-up\n' for name, path in paths.items())


class Nested:
    """The repository `root/repo` and its submodules.

    Args:
        root: an empty directory; the upstreams lie there too.
    """

    def __init__(self, root: Path) -> None:
        self.main = Ground(root / "repo", None)
        self.lib = Ground(self.main.root / "lib", None)
        self.inner = Ground(self.main.root / "lib/inner", None)
        self.doc = Ground(self.main.root / "doc", None)

    @classmethod
    def make(cls, root: Path) -> None:
        """Makes it (about a second)."""
        inner = Ground(root / "inner-up", {"i": LINES})
        lib = Ground(
            root / "lib-up", {"l": LINES, ".gitmodules": modules(inner="inner"), "inner": link(inner.id("main"))}
        )
        doc = Ground(root / "doc-up", {"d": LINES})
        main = Ground(
            root / "repo",
            {"m": LINES, ".gitmodules": modules(lib="lib", doc="doc"), "lib": link(lib.id("main")),
             "doc": link(doc.id("main"))},
        )  # fmt: skip
        main.git("submodule", "--quiet", "update", "--init", "--recursive")

    @classmethod
    def copied(cls, root: Path) -> "Nested":
        """What `make` makes, as a copy of what it has made once."""
        repeat(cls.make, root)
        return cls(root)

    def populate(self, worktree: Path) -> None:
        """Checks out all submodules of a worktree."""
        self.main.git("submodule", "--quiet", "update", "--init", "--recursive", at=worktree)

    def child(
        self,
        name: str,
        *,
        lib: str | None = None,
        inner: str | None = None,
        doc: str | None = None,
        main: str | None = None,
    ) -> None:
        """A branch of the main repository whose submodules have work of the same branch name.

        Args:
            name: of the branches.
            lib: new content of `l` in `lib`; inner, doc and main likewise. None for no change there.
        """
        tree: dict[str, str | bytes | Entry] = {}
        in_lib: dict[str, str | bytes | Entry] = {}
        if inner is not None:
            in_lib["inner"] = link(self.inner.branch(name, {"i": inner}, start=self.inner.id("HEAD")))
        if lib is not None:
            in_lib["l"] = lib
        if in_lib:
            tree["lib"] = link(self.lib.branch(name, in_lib, start=self.lib.id("HEAD")))
        if doc is not None:
            tree["doc"] = link(self.doc.branch(name, {"d": doc}, start=self.doc.id("HEAD")))
        if main is not None:
            tree["m"] = main
        self.main.branch(name, tree)

    def heads(self) -> dict[str, str]:
        """What is checked out in the main repository and its submodules."""
        grounds = {"": self.main, "lib": self.lib, "lib/inner": self.inner, "doc": self.doc}
        return {name: ground.id("HEAD") for name, ground in grounds.items()}

    def status(self) -> list[str]:
        """`git status` of everything."""
        return [line for each in (self.main, self.lib, self.inner, self.doc) for line in each.status()]

    def read(self, path: str) -> str:
        """Content of a file in the checkout."""
        return (self.main.root / path).read_text()


SUBMODULE = "library"

# Every worktree has its own checkout of the submodule. `protocol.file` is off by default since git 2.38.1.
_SCRIPT = """
git() { command git -c init.defaultBranch=main -c protocol.file.allow=always "$@"; }
identify() { git -C "$1" config user.name Tester; git -C "$1" config user.email tester@example.invalid; }

git init -q upstream
identify upstream
echo 'library = True' > upstream/library.py
git -C upstream add .
git -C upstream commit -q -m 'upstream: First.'

git init -q main
identify main
mkdir main/src
echo 'print("hello")' > main/src/hello.py
echo 'A repository for tests.' > main/README.md
git -C main submodule --quiet add ../upstream library
git -C main add .
git -C main commit -q -m 'main: First.'
for name in one two; do
    git -C main worktree add -q -b "$name" "$PWD/$name"
    git -C "$name" submodule --quiet update --init
done
"""


@dataclass(frozen=True)
class Repo:
    """Where the parts are.

    Args:
        who: owner of all files.
        main: the main checkout; its git directory is ``main/.git``.
        one: linked worktree on the branch ``one``.
        two: linked worktree on the branch ``two``.
        upstream: the repository that the submodule ``library`` was cloned from.
    """

    who: Who
    main: Path
    one: Path
    two: Path
    upstream: Path

    def git(self, *words: str, at: Path | None = None) -> str:
        """Runs git in `at` (the main checkout by default) as the owner and returns stdout without its last newline.

        Raises:
            subprocess.CalledProcessError: git failed; the error holds its stderr.
        """
        ended = self.who.run(["git", *words], cwd=at or self.main)
        ended.check_returncode()
        return ended.stdout.removesuffix("\n")


def make(who: Who, place: Path) -> Repo:
    """Makes the repository below `place`, which `who` owns."""
    grow(who, place, _SCRIPT)
    return Repo(who, place / "main", place / "one", place / "two", place / "upstream")


# Repositories for the tests of the worktree service, and git as a user would run it on them.

ENV = {
    "PATH": SYSTEM_PATH,
    "HOME": "/nonexistent",
    "GIT_CONFIG_COUNT": "3",
    "GIT_CONFIG_KEY_0": "protocol.file.allow",
    "GIT_CONFIG_VALUE_0": "always",
    "GIT_CONFIG_KEY_1": "user.name",
    "GIT_CONFIG_VALUE_1": "T",
    "GIT_CONFIG_KEY_2": "user.email",
    "GIT_CONFIG_VALUE_2": "t@example.invalid",
}


def git(*words: str, at: Path) -> str:
    """Runs plain git and returns its output without the white space around it."""
    ended = subprocess.run(["git", *words], cwd=at, env=ENV, check=True, capture_output=True, text=True, timeout=60)
    return ended.stdout.strip()


def committed(path: Path, **files: str) -> None:
    """Writes files and commits them."""
    for name, text in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    git("add", ".", at=path)
    git("commit", "-q", "-m", "Work.", at=path)


class Place(NamedTuple):
    """A directory with a repository `app` in it, and a service whose state lies beside it."""

    root: Path
    app: Path
    service: WorktreeService

    @property
    def state(self) -> str:
        """The service's state directory."""
        return str(self.root / "state")

    @property
    def branches(self) -> set[str]:
        """Short names of the repository's branches, and full names of its other refs."""
        return set(git("for-each-ref", "--format=%(refname:short)", at=self.app).splitlines())


def entered(place: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Makes the repository the current directory, with a home and a state of its own for the verbs."""
    monkeypatch.setenv("XDG_STATE_HOME", str(place.root / "xdg"))
    (place.root / "home").mkdir()
    monkeypatch.setenv("HOME", str(place.root / "home"))
    monkeypatch.chdir(place.app)
    return place


def plain(root: Path) -> Place:
    """`app` has one file and ignores `.env` and logs."""
    repeat(_plain, root)
    return Place(root, root / "app", WorktreeService(str(root / "state")))


def _plain(root: Path) -> None:
    app = root / "app"
    app.mkdir()
    git("init", "-q", "-b", "main", at=app)
    committed(app, **{"file": "one\n", ".gitignore": ".env\n*.log\n"})


def nested(root: Path) -> Place:
    """`app` has the submodule `outer` at lib/outer, and that `deep/inner`. What they were cloned from is gone."""
    repeat(_nested, root)
    return Place(root, root / "app", WorktreeService(str(root / "state")))


def _nested(root: Path) -> None:
    for name in ("up-inner", "up-outer", "app"):
        (root / name).mkdir()
        git("init", "-q", "-b", "main", at=root / name)
        committed(root / name, file=f"{name}\n")
    git("submodule", "--quiet", "add", "../up-inner", "deep/inner", at=root / "up-outer")
    git("commit", "-q", "-m", "Inner.", at=root / "up-outer")
    git("submodule", "--quiet", "add", "--name", "outer", "../up-outer", "lib/outer", at=root / "app")
    git("commit", "-q", "-m", "Outer.", at=root / "app")
    git("submodule", "--quiet", "update", "--init", "--recursive", at=root / "app")
    for name in ("up-inner", "up-outer"):
        (root / name).rename(root / f"gone-{name}")


def leftovers(place: Place) -> list[str]:
    """What a half-made or half-removed worktree could have left: odd names, locks, metadata without files."""
    found = [path.name for path in place.root.iterdir() if path.name.startswith(".")]
    for store in [place.app / ".git", *(place.app / ".git/modules").rglob("objects")]:
        directory = (store.parent if store.name == "objects" else store) / "worktrees"
        for admin in directory.iterdir() if directory.is_dir() else ():
            if (admin / "locked").exists() or not Path((admin / "gitdir").read_text().strip()).exists():
                found.append(str(admin))
    return [*found, *(name for name in os.listdir(place.app / ".git") if name.endswith(".lock"))]
