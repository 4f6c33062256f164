"""The places of submodules that the indexes of a worktree name, and which of them are not populated.

`git status` looks into every place that an index names as a submodule, once there is a `.git`: by a git of its own,
which obeys the configuration there (git-config(1), core.fsmonitor). So a command must not be able to make one where git
outside looks while it runs, and what it has made anywhere else by the end is put aside.

An index is searched for a gitlink's mode instead of being read entry by entry, which for thousands of files takes
longer than a launch. Format: gitformat-index(5).

Launch path of worktrees with submodules: `os`.
"""

from launcher.lean import os
from launcher.safefs import walk
from policy import promises
from policy.plan import Place, Plan

_MODE = b"\0\0\xe0\0"
_BEFORE = 24  # bytes of an entry in front of its mode
_DIGESTS = (20, 32)  # bytes of an object name
_LONG_NAME = 0xFFF
_EXTENDED = 0x4000
_TYPE, _DIRECTORY = 0o170000, 0o040000
_LONGEST_POINTER = 8192
_LARGEST = 256 << 20
_LONGEST_NAME = 4096  # PATH_MAX
_DIGITS = 5

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
    held = (path for path, what in plan.read_only if what == promises.UNPOPULATED)
    closed.update(path for path in held if _leads_nowhere(path))  # it was there before
    places = []
    for root, git_dir in repositories(plan):
        for name in named(git_dir):
            if f"{root}/{name}" not in closed:
                places.append((root, git_dir, f"{root}/{name}"))
    return places


def _leads_nowhere(place: str) -> bool:
    """Whether a `.git` leads to what is not there, and where no command could make it: its repository was moved."""
    target = _led_to(place)
    if not target or os.path.lexists(target):
        return False
    from launcher.session import packages

    packages.enable()
    from launcher.vcs import written

    return not written.agents_tree(os.path.realpath(target))


def made_in(places: "Iterable[Place]") -> list[Place]:
    """Those where a `.git` is."""
    return [place for place in places if os.path.lexists(f"{place[2]}/.git")]


def named(git_dir: str) -> list[str]:
    """Paths of the gitlinks in the index of a git directory, relative to the root of its files.

    An agent may have written it, where the git directory lies in a tree: nothing but a regular file is read, and git is
    asked only where no agent could write.
    """
    content = _content(f"{git_dir}/index")
    if content is None:
        return _listed(git_dir)
    if not content.startswith(b"DIRC"):
        return []
    if content[4:8] == b"\0\0\0\4":  # names are shortened there
        found = next((links for digest in _DIGESTS if (links := _unshortened(content, digest)) is not None), {})
    else:
        found = _searched(content)
    shared = _shared(git_dir, content)
    if shared is None:
        return list(found)
    from launcher.session import packages

    packages.enable()
    from launcher.vcs import written

    # A file that became a submodule is named in neither; else all that git would list are in one of the two.
    return list({**found, **_searched(shared)}) if written.agents_tree(git_dir) else _listed(git_dir)


def _content(path: str) -> bytes | None:
    """What is in an index; nothing where there is none that git could read, None when it is too large to be read."""
    try:
        descriptor = walk.open_regular(path)
        if descriptor is None:
            return b""
        try:
            return walk.read_up_to(descriptor, _LARGEST)
        finally:
            os.close(descriptor)
    except OSError:
        return b""


def _searched(content: bytes) -> dict[str, None]:
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
    return found


def _unshortened(content: bytes, digest: int) -> dict[str, None] | None:
    """Gitlinks of an index of version 4: each name says how much of the one before it is left out at its end.

    None when this cannot be read, as with object names of another length.
    """
    if _MODE not in content:
        return {}
    found: dict[str, None] = {}
    name = b""
    at = 12
    for _ in range(int.from_bytes(content[8:12], "big")):
        flags_at = at + 40 + digest
        mode = content[at + _BEFORE : at + _BEFORE + 4]
        at = flags_at + (4 if int.from_bytes(content[flags_at : flags_at + 2], "big") & _EXTENDED else 2)
        cut, at = _number(content, at)
        end = content.find(b"\0", at)
        if end < 0 or not 0 <= cut <= len(name) or end - at > _LONGEST_NAME or mode[:2] != b"\0\0":
            return None
        name = name[: len(name) - cut] + content[at:end]
        if len(name) > _LONGEST_NAME:
            return None
        at = end + 1
        if mode == _MODE:
            found[os.fsdecode(name)] = None
    whole = at == len(content) - digest or content[at : at + 4].isalpha()  # extensions are named by four letters
    return found if whole else None


def _number(content: bytes, at: int) -> tuple[int, int]:
    """A number of variable length, as in packs (gitformat-pack(5)), and where it ends; -1 for none."""
    value = -1
    for _ in range(_DIGITS):
        byte = content[at : at + 1]
        if not byte:
            return -1, at
        value, at = (value + 1) << 7 | byte[0] & 0x7F, at + 1
        if not byte[0] & 0x80:
            return value, at
    return -1, at


def _shared(git_dir: str, content: bytes) -> bytes | None:
    """The index that holds the rest of one that is split: the extension ``link`` names it. None when it is not."""
    at = content.rfind(b"link")
    size = int.from_bytes(content[at + 4 : at + 8], "big")
    if at == -1 or not _DIGESTS[0] <= size <= len(content) - at - 8 - _DIGESTS[0]:
        return None
    for digest in _DIGESTS:
        if other := _content(f"{git_dir}/sharedindex.{content[at + 8 : at + 8 + digest].hex()}"):
            return other
    return b""


def _listed(git_dir: str) -> list[str]:
    from launcher.session import packages

    packages.enable()
    from launcher.vcs import gitlinks, written
    from launcher.vcs.git import Git

    written.refuse_agents_git_dir(git_dir)
    return gitlinks.in_index(Git(git_dir))


def _led_to(root: str) -> str:
    """Where a `.git` leads that no command could write; "" when it is not there any more."""
    entry = f"{root}/.git"
    try:
        if os.lstat(entry).st_mode & _TYPE == _DIRECTORY:
            return entry
        content = walk.read_regular(entry, _LONGEST_POINTER)
    except OSError:
        return ""
    target = os.fsdecode((content or b"").removeprefix(b"gitdir: ").rstrip(b"\n"))
    return target if target.startswith("/") else f"{root}/{target}"
