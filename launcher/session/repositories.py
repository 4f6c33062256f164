"""What a checkout's repositories are like: which can get a private git directory, and what speaks against it.

A repository that git in the jail would only half understand is an obstacle, told in one sentence: nothing then works
with a part of the data. Layout and extensions: gitrepository-layout(5), git-config(1).
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from launcher.session import nested
from launcher.vcs import git_config
from launcher.vcs.checkout import Checkout
from launcher.vcs.checkout import common_dir as common_dir_of
from launcher.vcs.private import pointer
from policy.launch import Git, Host
from policy.plan import Place, Repository, beneath

# Places of submodules that an index names and `launcher.vcs.checkout` does not know: what is in them.
#
# Empty ones must stay so while a command runs (see `launcher.session.submodule_places`). A repository that is there
# already is the user's, who has put it there without `.gitmodules`; what git obeys in it must not change.


class GitHost(Host, Protocol):
    """What is asked beyond `Host`."""

    def gitlinks(self, git_dir: str) -> tuple[str, ...]:
        """Paths of the submodules that the index of a trusted git directory names."""


class Places(NamedTuple):
    """What is in the places.

    Attributes:
        empty: directories without a `.git`, or with one that leads to what a command may write: it is its own.
        absent: places where no directory is.
        inside: `.git` directories.
        pointers: other `.git`.
    """

    empty: tuple[Place, ...]
    absent: tuple[Place, ...]
    inside: tuple[str, ...]
    pointers: tuple[str, ...]


def look_for_unpopulated(found: Checkout, inside: Iterable[str], pointers: Mapping[str, str], host: GitHost) -> Places:
    """Looks into every place; git enters what is a directory, and reached by no link."""
    around = {found.root: found.git_dir} | {sub.path: sub.git_dir for sub in found.submodules}
    around |= {os.path.dirname(git_dir): git_dir for git_dir in inside}
    around |= {os.path.dirname(path): git_dir for git_dir, path in pointers.items()}
    known = {root for root in around if host.kind(f"{root}/.git") is not None}
    empty: dict[str, Place] = {}
    absent: dict[str, Place] = {}
    directories, others = [], []
    for where in _named({root: around[root] for root in sorted(known)}, host):
        place = where[2]
        if place in known:
            continue
        if not _is_directory(place, host):
            absent[place] = where
            continue
        entry = f"{place}/.git"
        kind = host.kind(entry)
        if kind == "dir":
            directories.append(entry)
        elif kind is not None and not _leads_into(found.root, entry, host):
            others.append(entry)
        else:
            empty[place] = where
    return Places(tuple(empty.values()), tuple(absent.values()), tuple(directories), tuple(others))


def unpopulated_in_others(
    checkouts: Mapping[str, str], granted: Collection[str], host: GitHost
) -> tuple[tuple[Place, ...], tuple[Place, ...]]:
    """The same in other repositories of the user's: empty places, and those that no mount can keep empty.

    What is in a place is a repository by itself there, and looked at as one (`nested.look`).

    Args:
        checkouts: their roots and git directories, which no jail could write.
        granted: canonical trees that the command may write.
    """
    empty: dict[str, Place] = {}
    left: dict[str, Place] = {}
    for where in _named(checkouts, host):
        place = where[2]
        entry = f"{place}/.git"
        if not any(beneath(place, tree) for tree in granted) or nested.led_to(entry, host) is not None:
            continue
        # A pointer to nothing is put aside at the end, as the command may make what it names. And who grants the
        # place, or what lies in it, wants it written.
        dangling = host.kind(entry) is not None
        if _is_directory(place, host) and not dangling and not any(beneath(tree, place) for tree in granted):
            empty[place] = where
        else:
            left[place] = where
    return tuple(empty.values()), tuple(left.values())


def _named(around: Mapping[str, str], host: GitHost) -> Iterator[Place]:
    """The places that the indexes of checkouts name, each given with its git directory."""
    for root, git_dir in around.items():
        for name in host.gitlinks(git_dir):
            if {"", ".", "..", ".git"}.isdisjoint(name.split("/")):
                yield root, git_dir, f"{root}/{name}"


def _is_directory(place: str, host: Host) -> bool:
    """Whether a place is a directory, reached by no link."""
    return host.resolve(place) == place and host.kind(place) == "dir"


def _leads_into(root: str, entry: str, host: Host) -> bool:
    """Whether git, sent by a `.git` that is no directory, would be in the worktree, or nobody can say where."""
    text = pointer.text(host.read(entry, pointer.MOST_BYTES))
    target = None if text is None else host.resolve(os.path.join(os.path.dirname(entry), text))
    return target is None or beneath(target, root)


_KNOWN = ("objectformat", "worktreeconfig", "noop", "preciousobjects", "relativeworktrees")
_UNDER_WAY = (
    ("MERGE_HEAD", "a merge"),
    ("CHERRY_PICK_HEAD", "a cherry-pick"),
    ("REVERT_HEAD", "a revert"),
    ("rebase-merge", "a rebase"),
    ("rebase-apply", "a rebase or am"),
    ("BISECT_LOG", "a bisection"),
)
_DEPTH = 5
"""So many repositories deep git follows alternates."""


def described(found: Checkout, host: GitHost, agents: Callable[[str], object], *, created: bool = False) -> Git:
    """The facts about a checkout's git data that decisions need. What was looked at becomes an input of the Plan.

    Args:
        agents: whether jails could write a git directory.
        created: whether Paddock made it.
    """
    obstacles: list[str] = []
    doubtful: list[str] = []
    repositories: list[Repository] = []
    large: list[tuple[str, str]] = []
    inside: list[str] = []
    if found.kind == "directory":
        return Git(found.kind, "", "", ())
    entries = [("", found.root, found.git_dir, found.common_dir)]
    entries += [(sub.name, sub.path, sub.git_dir, common_dir_of(sub.git_dir, host)) for sub in found.submodules]
    for name, path, git_dir, common_dir in entries:
        label = f"submodule {name}" if name else "the repository"
        kind = host.kind(f"{path}/.git")
        if name and kind == "dir":
            inside.append(f"{path}/.git")
            continue
        if name and kind is None:
            continue  # not populated now
        if kind == "link":
            doubtful.append(f"{path}/.git is a symbolic link")
            continue
        own, lfs = f"{common_dir}/objects", f"{common_dir}/lfs/objects"
        data = [own, lfs] if host.kind(lfs) == "dir" else [own]
        away = next((each for each in data if host.resolve(each) not in (None, each)), "")
        if away and (agents(common_dir) or agents(git_dir)):
            doubtful.append(f"{away} is reached through a link, which commands in jails could have made")
            continue
        object_format = _format(f"{common_dir}/config", label, host, obstacles)
        stores = _stores(own, label, found.root, host, obstacles)
        _look(git_dir, common_dir, label, host, obstacles)
        if stores and lfs in data:
            large.append((stores[0], lfs))
        private = "" if not name else _private(found, git_dir, common_dir, host)
        if private is None:
            obstacles.append(f"the git directory of {label} is not where git keeps those of submodules")
            continue
        repositories.append((name, path, git_dir, common_dir, private, object_format, stores))
    pointers = _pointers(found, host)
    places = look_for_unpopulated(found, inside, pointers, host)
    return Git(
        kind=found.kind,
        git_dir=found.git_dir,
        common_dir=found.common_dir,
        modules=tuple((sub.name, sub.git_dir) for sub in found.submodules),
        repositories=tuple(repositories),
        large=tuple(large),
        inside=(*inside, *places.inside),
        pointers=(*pointers.values(), *places.pointers),
        unpopulated=places.empty,
        absent=places.absent,
        obstacles=tuple(obstacles),
        created=created,
        doubtful=tuple(doubtful),
    )


def worktrees(root: str, common_dir: str, host: Host) -> tuple[str, ...]:
    """Roots of a repository's other checkouts, where its agents may have left what the one at `root` can see."""
    if not common_dir:
        return ()  # a directory without git
    main = os.path.dirname(common_dir) if os.path.basename(common_dir) == ".git" else ""
    others = map(os.path.dirname, _others(root, common_dir, host).values())
    return tuple(each for each in (main, *others) if each)


def _private(found: Checkout, git_dir: str, common_dir: str, host: Host) -> str | None:
    """Where git has a submodule's git directory below that of the worktree around it; None when it is elsewhere."""
    if beneath(git_dir, f"{found.git_dir}/modules"):
        return git_dir[len(found.git_dir) + 1 :]
    # A worktree of the store that all worktrees share (`launcher.vcs.worktrees`).
    if git_dir != common_dir and beneath(common_dir, f"{found.common_dir}/modules"):
        return common_dir[len(found.common_dir) + 1 :]
    # One that git has made in such a worktree.
    for around in found.submodules:
        if beneath(git_dir, f"{around.git_dir}/modules"):
            outer = _private(found, around.git_dir, common_dir_of(around.git_dir, host), host)
            return None if outer is None else outer + git_dir[len(around.git_dir) :]
    return None


def _format(config: str, label: str, host: Host, obstacles: list[str]) -> str:
    """The object format that a repository's configuration names."""
    content = host.read(config, 1 << 20)
    if content is None:
        obstacles.append(f"{config} cannot be read")
        return "sha1"
    object_format = "sha1"
    for section, _, name, value in git_config.entries(content):
        promised = section == "remote" and name == "promisor" and value.lower() not in ("false", "no", "off", "0", "")
        if section == "core" and name == "repositoryformatversion" and value not in ("0", "1"):
            obstacles.append(f"{label} is of format version {value}, which Paddock does not know")
        elif promised or (section, name) == ("extensions", "partialclone"):
            obstacles.append(f"{label} is a partial clone: git would fetch missing objects at any time")
        elif section == "extensions" and name == "objectformat":
            object_format = value.lower()
        elif section == "extensions" and name == "refstorage" and value.lower() == "files":
            continue
        elif section == "extensions" and name not in _KNOWN:
            obstacles.append(f"{label} uses git's extension {name} = {value}, which Paddock does not know")
    if object_format not in ("sha1", "sha256"):
        obstacles.append(f"{label} has objects of the format {object_format}, which Paddock does not know")
    return object_format


def _stores(own: str, label: str, root: str, host: Host, obstacles: list[str]) -> tuple[str, ...]:
    """Canonical object directories of a repository: its own, then those that it borrows from, at any depth."""
    found: list[str] = []
    pending = [(own, 0)]
    while pending:
        path, depth = pending.pop(0)
        store = host.resolve(path)
        if store is None or host.kind(store) != "dir" or store in found:
            if depth == 0:
                obstacles.append(f"the objects of {label} are not at {path}")
            continue  # git passes over what is not there
        if depth and beneath(store, root):
            obstacles.append(
                f"{label} borrows objects from {store}, in the worktree, where the command could change them"
            )
        found.append(store)
        content = host.read(f"{store}/info/alternates") or b""
        for line in content.split(b"\n"):
            text = os.fsdecode(line)
            if not text or text[0] == "#" or depth >= _DEPTH:
                continue
            if text[0] == '"':
                obstacles.append(f"{store}/info/alternates holds a quoted path")
            elif text[0] == "/" or depth == 0:
                pending.append((os.path.join(store, text), depth + 1))
    return tuple(found)


def _look(git_dir: str, common_dir: str, label: str, host: Host, obstacles: list[str]) -> None:
    """What of a repository's present state stands in the way."""
    for name, what in _UNDER_WAY:
        if host.kind(f"{git_dir}/{name}") is not None:
            obstacles.append(f"{what} is in progress in {label}: finish or abort it first ({git_dir}/{name})")
            break
    for name in ("refs", "objects"):
        host.kind(f"{common_dir}/{name}")  # its mode and owner belong to the plan
        if not os.access(f"{common_dir}/{name}", os.W_OK | os.X_OK, effective_ids=True):
            obstacles.append(f"{common_dir}/{name} cannot be written, so the work could not be harvested")
            break


def _pointers(found: Checkout, host: Host) -> dict[str, str]:
    """Git directory -> `.git` file, of other worktrees of the repository that lie inside of this one."""
    return {
        where: path
        for where, path in (_others(found.root, found.common_dir, host) if found.kind != "submodule" else {}).items()
        if beneath(path, found.root) and host.resolve(path) == path
    }


def _others(root: str, common_dir: str, host: Host) -> dict[str, str]:
    """Git directory -> `.git` file as it is recorded, of other linked worktrees of a repository."""
    result = {}
    for name in host.listing(f"{common_dir}/worktrees") or ():
        content = host.read(f"{common_dir}/worktrees/{name}/gitdir", 8192)
        where = f"{common_dir}/worktrees/{name}"
        path = os.path.normpath(os.path.join(where, os.fsdecode((content or b"").rstrip(b"\n"))))
        if content and path != f"{root}/.git":
            result[where] = path
    return result
