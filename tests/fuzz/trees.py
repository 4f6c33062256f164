"""Random worktrees: what hypothesis draws, and the tree on disk that it becomes."""

import hashlib
import os
from typing import NamedTuple

from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("PADDOCK_EXAMPLES", "10"))
LETTER = {"READ": "r", "LIST": "r", "EXECUTE": "x"}
ALL = ("READ", "LIST", "WRITE", "MKDIR", "DELETE", "MOVE", "EXECUTE")

NAMES = (b"a", b"b", b"sp ace", b"new\nline", b"-dash", b"\xff\xfe", b"A", "é".encode(), b"..x", b".envrc", b".vscode")
FILE_MODES = (0o644, 0o755, 0o600, 0o444, 0o000)
DIRECTORY_MODES = (0o755, 0o755, 0o755, 0o555, 0o700)
SUBMODULES = (b"lib", b"lib/deep", b"other")
VENDOR = b"vendor"
"""A submodule that an index names and nobody has initialised."""


class Node(NamedTuple):
    """One entry of a tree; numbers are taken modulo what there is, so that every draw means something."""

    parent: int
    name: bytes
    kind: str
    target: int
    mode: int


class Case(NamedTuple):
    """One example: the tree, what is granted, and in which way."""

    linked: bool
    nodes: list[Node]
    submodules: int
    hollow: tuple[bytes, ...]
    vendor: str
    granted: tuple[str, ...]
    deny: list[int]
    read: list[int]
    write: list[int]
    spellings: list[tuple[int, int, int]]


NODE = st.builds(
    Node,
    parent=st.integers(0, 30),
    name=st.sampled_from(NAMES),
    kind=st.sampled_from(
        ["directory"] * 3
        + ["file"] * 3
        + [
            "programme",
            "link",
            "relative link",
            "outside link",
            "dangling",
            "loop",
            "up link",
            "hard link",
            "outer name",
        ]
    ),
    target=st.integers(0, 30),
    mode=st.integers(0, 4),
)
INDEXES = st.lists(st.integers(0, 60), max_size=2)
CASE = st.builds(
    Case,
    linked=st.booleans(),
    nodes=st.lists(NODE, min_size=2, max_size=12),
    submodules=st.integers(0, 3),
    hollow=st.sampled_from(((), (), (b"lib",), (b"lib/deep",), (b"other",))),
    vendor=st.sampled_from(("empty", "empty", "missing", "repository")),
    granted=st.sampled_from(((), (), ("lib",), ("other",), ("deep",), ("lib", "other"))),
    deny=INDEXES,
    read=INDEXES,
    write=INDEXES,
    spellings=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 60), st.integers(0, 60)), max_size=6),
)


class Tree:
    """A worktree on the disk, made from a Case, with things outside of it.

    Attributes:
        root: the worktree.
        paths: every path worth asking about, as the tool would give it.
    """

    def __init__(self, place: bytes, case: Case) -> None:
        self.place = place
        self.root = place + b"/work"
        self.outside = place + b"/outside"
        self.entries: list[bytes] = []
        self.directories = [self.root]
        self.files: list[bytes] = []
        self._plant_outside()
        self._plant_git(case)
        for node in case.nodes:
            self._add(node)
        self.known = [*self.entries, *self.outer]
        self.paths = self._paths(case)

    def _plant_outside(self) -> None:
        for name in (b"/work", b"/outside/dir/inner", b"/outside/other"):
            os.makedirs(self.place + name)
        for name in (b"/outside/file", b"/outside/dir/file", b"/outside/dir/inner/file", b"/outside/other/file"):
            make_file(self.place + name, 0o755)
        self.outer = [self.outside + name for name in (b"", b"/file", b"/dir", b"/dir/file", b"/dir/inner", b"/other")]

    def _plant_git(self, case: Case) -> None:
        """The least on-disk shape that `launcher.vcs.checkout` takes for a worktree with populated submodules."""
        if case.linked:
            common = self.place + b"/main/.git"
            own = common + b"/worktrees/work"
            git_directory(common)
            os.makedirs(own)
            make_file(own + b"/HEAD", 0o644, b"ref: refs/heads/work\n")
            make_file(own + b"/commondir", 0o644, b"../..\n")
            make_file(own + b"/gitdir", 0o644, self.root + b"/.git\n")
            make_file(self.root + b"/.git", 0o644, b"gitdir: " + own + b"\n")
            self.entries.append(self.root + b"/.git")
        else:
            own = self.root + b"/.git"
            git_directory(own)
            self.entries += [own, own + b"/HEAD", own + b"/config", own + b"/objects"]
            self.directories.append(own + b"/objects")
        present = SUBMODULES[: case.submodules]
        make_index(own, [VENDOR, *(name for name in present if b"/" not in name)])
        if case.vendor != "missing":
            self._directory(self.root + b"/" + VENDOR)
        if case.vendor == "repository":
            git_directory(self.root + b"/" + VENDOR + b"/.git")
            self.entries.append(self.root + b"/" + VENDOR + b"/.git")
        for name in present:
            path = self.root + b"/" + name
            git_dir = own + b"/modules/" + name.replace(b"/", b"/modules/")
            git_directory(git_dir, b"[core]\n\tworktree = " + path + b"\n")
            if b"lib" in case.hollow and name == b"lib/deep":
                continue  # it goes with the one around it
            if name == b"lib":
                make_index(git_dir, [VENDOR, b"deep"])
            if name in case.hollow:
                self._directory(path)
                continue
            os.makedirs(path)
            make_file(path + b"/.git", 0o644, b"gitdir: " + git_dir + b"\n")
            make_file(path + b"/file", 0o755)
            self.entries += [path, path + b"/.git", path + b"/file"]
            self.directories.append(path)
            self.files.append(path + b"/file")

    def _directory(self, path: bytes) -> None:
        os.mkdir(path)
        self.entries.append(path)
        self.directories.append(path)

    def _add(self, node: Node) -> None:
        parent = self.directories[node.parent % len(self.directories)]
        path = parent + b"/" + node.name
        if os.path.lexists(path):
            return
        known = [self.root, *self.entries]
        target = known[node.target % len(known)]
        outer = self.outer[node.target % len(self.outer)]
        text: bytes | None = {
            "link": target,
            "relative link": os.path.relpath(target, parent),
            "outside link": outer,
            "dangling": b"nowhere-yet",
            "loop": node.name,
            "up link": (b"..", b"../..", b"../../outside", b".", b"/", b"/etc/passwd")[node.target % 6],
        }.get(node.kind)
        if node.kind == "directory":
            os.mkdir(path)
            self.directories.append(path)
        elif node.kind in ("file", "programme"):
            make_file(path, 0o755 if node.kind == "programme" else FILE_MODES[node.mode])
            self.files.append(path)
        elif text is not None:
            os.symlink(text, path)
        else:
            # One inode by two names: of a file in the worktree, or of one outside.
            files = self.files if node.kind == "hard link" else [self.outside + b"/file", self.outside + b"/dir/file"]
            if not files:
                return
            os.link(files[node.target % len(files)], path)
        self.entries.append(path)

    def modes(self, case: Case) -> None:
        """Narrows directories at last, when everything is in them."""
        for number, node in enumerate(case.nodes):
            if node.kind == "directory" and len(self.directories) > 2:
                path = self.directories[1 + number % (len(self.directories) - 1)]
                if b"/.git" not in path:
                    os.chmod(path, DIRECTORY_MODES[node.mode])

    def _paths(self, case: Case) -> list[bytes]:
        found = dict.fromkeys([self.root, *self.entries, *self.outer, b"/etc/passwd", b"/etc/shadow", b"/"])
        for folder in (*self.directories, self.outside, self.outside + b"/dir"):
            found[folder + b"/made"] = None
        found[self.root + b"/missing/deeper"] = None
        for shape, first, second in case.spellings:
            one, other = self.pick(first), self.pick(second)
            found[
                (
                    os.path.relpath(one, self.root),
                    one + b"/../" + os.path.basename(other),
                    one + b"/.." + os.path.relpath(other, os.path.dirname(one)).join((b"/", b"")),
                    one + b"/",
                    one + b"/.",
                    one.replace(b"/", b"//"),
                    one + b"/missing/../x",
                    os.path.dirname(one) + b"/./" + os.path.basename(one),
                    b"../outside/" + os.path.basename(other),
                )[shape]
            ] = None
        return list(found)

    def pick(self, number: int) -> bytes:
        return self.known[number % len(self.known)]


def make_file(path: bytes, mode: int, content: bytes = b"#!/bin/true\n") -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(descriptor, content)
    os.fchmod(descriptor, mode)
    os.close(descriptor)


def git_directory(path: bytes, config: bytes = b"") -> None:
    for name in (b"/objects", b"/refs"):
        os.makedirs(path + name)
    make_file(path + b"/HEAD", 0o644, b"ref: refs/heads/main\n")
    make_file(path + b"/config", 0o644, config)


def make_index(git_dir: bytes, names: list[bytes]) -> None:
    """An index that names nothing but submodules (gitformat-index(5), version 2)."""
    entries = b""
    for name in sorted(names):
        entry = bytes(24) + 0o160000.to_bytes(4, "big") + bytes(12) + b"\1" * 20 + len(name).to_bytes(2, "big") + name
        entries += entry + bytes(8 - len(entry) % 8)
    content = b"DIRC" + (2).to_bytes(4, "big") + len(names).to_bytes(4, "big") + entries
    make_file(git_dir + b"/index", 0o644, content + hashlib.sha1(content, usedforsecurity=False).digest())
