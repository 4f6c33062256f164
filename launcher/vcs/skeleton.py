"""Repositories of Paddock's own, without refs and hooks, that borrow the objects of another one.

Git that meets what an agent wrote works in one of these. Of the other repository's configuration it gets what decides
how content is stored and compared, so nothing there, nor anything that it includes, can name a programme or a file.
"""

import os

from launcher.vcs import written
from launcher.vcs.disk import Present, Seen
from launcher.vcs.git import Git
from launcher.vcs.hardening import Setting
from launcher.vcs.scratch import Scratch

_CONFIG = "[core]\n\trepositoryformatversion = 0\n\tbare = true\n"
_CONFIG_SHA256 = (
    "[core]\n\trepositoryformatversion = 1\n\tbare = true\n[extensions]\n\tobjectformat = sha256\n"  # git-config(1)
)
_HARMLESS = frozenset(
    f"{section}.{name}"
    for section, names in {
        "core": (
            "abbrev", "autocrlf", "bigfilethreshold", "checkroundtripencoding", "checkstat", "compression", "eol",
            "filemode", "fsync", "fsyncmethod", "fsyncobjectfiles", "ignorecase", "loosecompression",
            "precomposeunicode", "protecthfs", "protectntfs", "quotepath", "safecrlf", "sharedrepository",
            "sparsecheckout", "sparsecheckoutcone", "symlinks", "trustctime", "whitespace",
        ),
        "diff": ("algorithm", "renamelimit", "renames"),
        "index": ("sparse", "version"),
        "merge": ("conflictstyle", "directoryrenames", "renamelimit", "renames", "renormalize"),
        "pack": ("compression",),
        "sparse": ("expectfilesoutsideofpatterns",),
    }.items()
    for name in names
)  # fmt: skip
COPIED = {"core.excludesfile": "excludes", "core.attributesfile": "attributes"}
"""Keys that name a file of patterns, and the name of its copy here."""
_MOST_BYTES = 16 << 20


def make(path: str, digits: int) -> str:
    """Makes an empty repository anew at `path`, whose directory is ours alone; returns `path`.

    Args:
        path: absolute.
        digits: length of an object id.
    """
    for name in ("objects", "refs", "info"):
        os.makedirs(f"{path}/{name}", 0o700, exist_ok=True)
    for name, content in (("HEAD", "ref: refs/heads/none\n"), ("config", _CONFIG if digits == 40 else _CONFIG_SHA256)):
        with open(f"{path}/{name}", "w", encoding="ascii") as file:
            file.write(content)
    return path


class Skeleton:
    """A skeleton of one trusted repository.

    Args:
        git: on the repository.
        settings: above its configuration; files that they name are copied.

    Attributes:
        path: its git directory.
        settings: configuration that git in it gets.
        shared: the constant parts of a split index (git-update-index(1)), to which links lead from here.
        stores: object directories that it reads: the repository's, and those that this one borrows from.
    """

    def __init__(self, git: Git, settings: tuple[Setting, ...] = ()) -> None:
        self._scratch = Scratch()
        self.path = self._scratch.path("git")
        self.git_dir, self.common_dir = git.git_dir, git.common_dir
        entries = git.configured()
        own = (f"{git.common_dir}/", f"{git.git_dir}/")
        wide = any(name == "extensions.objectformat" and value == "sha256" for _, name, value in entries)
        make(self.path, 64 if wide else 40)
        # What is included from elsewhere may lie in a tree that a session writes.
        stated = [(name, value or "true") for origin, name, value in entries if origin.startswith(own)]
        found: dict[str, str] = {}
        for name, value in (*stated, *((name.lower(), value) for name, value in settings)):
            copy = COPIED.get(name)
            if copy is not None and value.startswith("/") and self._copied(value, copy):
                found[name] = f"{self.path}/{copy}"
            elif name in _HARMLESS:
                found[name] = value
        self.settings = (*found.items(), ("core.splitIndex", "false"))
        for name in ("exclude", "attributes"):
            self._copied(f"{git.common_dir}/info/{name}", f"info/{name}")
        self._copied(f"{git.git_dir}/info/sparse-checkout", "info/sparse-checkout")
        names = [name for name in Present().listing(git.git_dir) or () if name.startswith("sharedindex.")]
        self.shared = tuple(f"{git.git_dir}/{name}" for name in names)
        for name, source in zip(names, self.shared, strict=True):
            os.symlink(source, f"{self.path}/{name}")
        self._copied(f"{git.common_dir}/shallow", "shallow")
        own_store = f"{git.common_dir}/objects"
        borrows = os.path.lexists(f"{own_store}/info/alternates")
        lines = git.text("count-objects", "--verbose").splitlines() if borrows else ()
        borrowed = (line.removeprefix("alternate: ") for line in lines if line.startswith("alternate: "))
        self.stores = tuple(dict.fromkeys(map(os.path.realpath, (own_store, *borrowed))))

    def point(self, head: str) -> None:
        """Sets HEAD to a commit; "" for none."""
        with open(f"{self.path}/HEAD", "w", encoding="ascii") as file:
            file.write(f"{head}\n" if head else "ref: refs/heads/none\n")

    def _copied(self, source: str, name: str) -> bool:
        seen = Seen()
        content = None if written.tree_of(seen.trail(source)) else seen.read(source, _MOST_BYTES)
        if content is None:
            return False
        with open(f"{self.path}/{name}", "wb") as file:
            file.write(content)
        return True
