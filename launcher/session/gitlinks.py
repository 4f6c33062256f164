"""The places of submodules that the indexes of a worktree name, and which of them are not populated.

`git status` looks into every place that an index names as a submodule, once there is a `.git`: by a git of its own,
which obeys the configuration there (git-config(1), core.fsmonitor). So a command must not be able to make one where git
outside looks while it runs, and what it has made anywhere else by the end is put aside.

An index is searched for a gitlink's mode instead of being read entry by entry, which for thousands of files takes
longer than a launch. Format: gitformat-index(5).

Launch path of worktrees with submodules: `os`.
"""

from launcher.lean import os
from policy import promises
from policy.plan import Place, Plan

_MODE = b"\0\0\xe0\0"
_BEFORE = 24  # bytes of an entry in front of its mode
_DIGESTS = (20, 32)  # bytes of an object name
_LONG_NAME = 0xFFF
_EXTENDED = 0x4000
_TYPE, _DIRECTORY = 0o170000, 0o040000
_LONGEST_POINTER = 8192

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

Repository = tuple[str, str]
"""Root of the files, trusted git directory."""


def repositories(plan: Plan) -> list[Repository]:
    """The worktree's repositories whose `.git` the command cannot write; none with ``git`` shared."""
    found = [(path, git_dir) for _, path, git_dir, *_ in plan.repositories]
    if not found and plan.git != "shared" and promises.has_mounts(plan.backend):
        for path, _ in plan.read_only:
            root, _, name = path.rpartition("/")
            if name == ".git" and (git_dir := _led_to(root)):
                found.append((root, git_dir))
    return found


def open_places(plan: Plan) -> list[Place]:
    """Places of submodules where a `.git` would be the command's, by the indexes as they are now."""
    closed = {path.rpartition("/")[0] for path, _ in plan.read_only if path.endswith("/.git")}
    closed.update(repository[1] for repository in plan.repositories)
    places = []
    for root, git_dir in repositories(plan):
        for name in named(git_dir):
            if f"{root}/{name}" not in closed:
                places.append((root, git_dir, f"{root}/{name}"))
    return places


def made_in(places: "Iterable[Place]") -> list[Place]:
    """Those where a `.git` is."""
    return [place for place in places if os.path.lexists(f"{place[2]}/.git")]


def named(git_dir: str) -> list[str]:
    """Paths of the gitlinks in the index of a trusted git directory, relative to the root of its files."""
    try:
        with open(f"{git_dir}/index", "rb") as file:
            content = file.read()
    except OSError:
        return []
    if _MODE not in content and not _refers(content):
        return []
    if content[4:8] not in (b"\0\0\0\2", b"\0\0\0\3") or _refers(content):
        return _listed(git_dir)  # names are shortened there, or in another file
    found: dict[str, None] = {}
    at = content.find(_MODE)
    while at != -1:
        for digest in _DIGESTS:
            flags_at = at - _BEFORE + 40 + digest
            flags = int.from_bytes(content[flags_at : flags_at + 2], "big")
            start = flags_at + (4 if flags & _EXTENDED else 2)
            end = content.find(b"\0", start)
            # Only in an entry does the length that is said there agree with the name.
            if end > start and min(end - start, _LONG_NAME) == flags & _LONG_NAME:
                found[os.fsdecode(content[start:end])] = None
        at = content.find(_MODE, at + 1)
    return list(found)


def _refers(content: bytes) -> bool:
    """Whether an index is split: the extension ``link`` names the file that holds the rest."""
    at = content.rfind(b"link")
    size = int.from_bytes(content[at + 4 : at + 8], "big")
    return at != -1 and _DIGESTS[0] <= size <= len(content) - at - 8 - _DIGESTS[0]


def _listed(git_dir: str) -> list[str]:
    from launcher.session import packages

    packages.enable()
    from launcher.vcs.git import Git

    entries = Git(git_dir).run("ls-files", "--stage", "-z").out.split(b"\0")
    return [os.fsdecode(entry[entry.index(b"\t") + 1 :]) for entry in entries if entry.startswith(b"160000 ")]


def _led_to(root: str) -> str:
    """Where a `.git` leads that no command could write; "" when it is not there any more."""
    entry = f"{root}/.git"
    try:
        if os.lstat(entry).st_mode & _TYPE == _DIRECTORY:
            return entry
        with open(entry, "rb") as file:
            target = os.fsdecode(file.read(_LONGEST_POINTER).removeprefix(b"gitdir: ").rstrip(b"\n"))
    except OSError:
        return ""
    return target if target.startswith("/") else f"{root}/{target}"
