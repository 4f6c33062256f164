"""What a private git directory consists of, and how each part is made, or made anew, from the host's.

No git process writes it: it is a handful of files (gitrepository-layout(5)), and the agent's side of it is read and
replaced through `safefs` only.
"""

import hashlib
import os
import stat
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import NamedTuple

from launcher.safefs import walk
from launcher.safefs.guarded_files import Inside
from launcher.vcs import disk, git_config, written
from launcher.vcs.git import Git
from launcher.vcs.private import copied_settings, ref_files
from policy.errors import Refusal

MOST_HOOK_BYTES = 1 << 20
_MOST_COPIED = 64 << 20
MOST_HOOKS = 200
MOST_FOLDED = 4 << 20
"""Bytes of a `packed-refs` that is written anew for one changed ref: some sixty thousand refs."""

COPIED_HOOKS = "paddock-hooks"
"""Names of the hooks that were copied, to know them again."""

INCLUDED = "paddock-config"
"""Settings taken over from the host; `config` includes it, and is the agent's after that."""

GIVEN = "given"
"""Directory beside the private git directory that remembers which refs were shown."""

_PLACE = ("core", "", "worktree")
_IN_PROGRESS = ("MERGE_HEAD", "MERGE_MSG", "MERGE_MODE", "CHERRY_PICK_HEAD", "REVERT_HEAD", "AUTO_MERGE", "SQUASH_MSG")
_COPIED = (("info/exclude", "info/exclude"), ("info/attributes", "info/attributes"), ("shallow", "shallow"))
_USERS = (("core.excludesfile", "ignore", "excludesFile"), ("core.attributesfile", "attributes", "attributesFile"))


class Source(NamedTuple):
    """Where one private git directory comes from.

    Attributes:
        path: root of the working tree.
        git_dir: the host's git directory of it.
        common_dir: the host's git directory with config, refs and objects.
        private: below ``git/``: "" or ``modules/...``.
        object_format: ``sha1`` or ``sha256``.
        inside: the git directory's path in the jail.
        alternates: object directories that it borrows from, by their paths in the jail.
        worktree: root of all that the agent writes; `path` lies there.
    """

    path: str
    git_dir: str
    common_dir: str
    private: str
    object_format: str
    inside: str
    alternates: tuple[str, ...]
    worktree: str


def whole(directory: Inside) -> bool:
    """Whether what git needs at least is there: the agent may have removed any of it."""
    directories = all(map(directory.is_directory, ("objects", "refs")))
    return directories and directory.read("HEAD", 4096) is not None and directory.read("config", 1 << 20) is not None


def make(directory: Inside, source: Source, head: ref_files.Head) -> None:
    """Makes a private git directory in an empty directory (OSError)."""
    for name in ("objects/info", "objects/pack", "refs/heads", "refs/tags", "info", "hooks"):
        directory.make(name)
    extended = source.object_format != "sha1"
    config = [("core.repositoryformatversion", "1" if extended else "0"), ("core.bare", "false")]
    config += [("core.logallrefupdates", "true")]
    if source.inside != f"{source.path}/.git":
        # As in any git directory that a pointer file leads to: a jail in the jail looks whether both agree.
        config.append(("core.worktree", source.path))
    if extended:
        config.append(("extensions.objectformat", source.object_format))
    # Housekeeping in the background would outlive the command that started it.
    config += [("gc.auto", "0"), ("maintenance.auto", "false"), ("include.path", INCLUDED)]
    directory.write("config", copied_settings.text(list(config)))
    directory.write("HEAD", _head_text(head))
    index(directory, source)


def point_back(directory: Inside, source: Source) -> None:
    """Has the configuration name the root of the files, which may have moved. The agent's settings in it stay."""
    for name in ("config", "config.worktree"):  # to the second one `git sparse-checkout` moves it
        found = git_config.entries(directory.read(name, 1 << 20) or b"")
        right = [(*key, source.path if tuple(key) == _PLACE else value) for *key, value in found]
        if right != found:
            directory.write(name, copied_settings.text([(".".join(filter(None, key)), value) for *key, value in right]))


def alternates(directory: Inside, paths: "Iterable[str]") -> None:
    """Writes which object directories are borrowed from, where that is not what is written there already."""
    lines = [copied_settings.quoted(path) if path[:1] in '"#' or "\n" in path else path for path in paths]
    content = os.fsencode("".join(f"{line}\n" for line in lines))
    if directory.read("objects/info/alternates", len(content)) != content:
        directory.write("objects/info/alternates", content)


def advance(directory: Inside, source: Source, head: ref_files.Head) -> bool:
    """Puts HEAD, its branch and the index where the host's are now.

    The agent's index is kept as `index.previous`: what was staged and is nowhere else can be found there.
    """
    given_up = [name for name in _IN_PROGRESS if directory.exists(name)]
    for name in given_up:
        directory.remove(name)
    if head.branch is not None:
        if head.oid is not None:
            directory.write(head.branch, head.oid.encode() + b"\n")
        else:
            directory.remove(head.branch)
    if directory.exists("index"):
        directory.remove("index.previous")
        directory.move("index", "index.previous")
    directory.write("HEAD", _head_text(head))
    index(directory, source)
    return any(name.endswith("_HEAD") for name in given_up)


def index(directory: Inside, source: Source) -> None:
    """Copies the host's index, with its time: git compares files' times with it to find those that need a second look.

    With the times and inodes in it `git status` reads no file whose content it knows.
    """
    try:
        names = [name for name in os.listdir(source.git_dir) if name.startswith("sharedindex.")]
    except FileNotFoundError:
        names = []
    for name in (*names, "index"):
        try:
            with open(f"{source.git_dir}/{name}", "rb", buffering=0) as file:
                directory.write(name, file.readall(), time=os.fstat(file.fileno()).st_mtime_ns)
        except FileNotFoundError:
            continue  # a repository without commits has none


def watched(source: Source, effective: copied_settings.Settings | None) -> list[str]:
    """The files that `files` and `configure` read, for the record of what was seen; and what says which part is shown.

    A private git directory that an earlier Paddock made may hold a password.
    """
    home = os.path.expanduser("~")
    base = os.environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
    found = [
        copied_settings.__file__,
        f"{source.common_dir}/config",
        f"{source.git_dir}/config.worktree",
        f"{home}/.gitconfig",
    ]
    found += [f"{base}/git/config", f"{source.git_dir}/info/sparse-checkout"]
    found += [f"{source.common_dir}/{name}" for name, _ in _COPIED]
    if effective is not None:
        found += effective.files
        found += [os.path.join(source.path, path) for path, _, _ in _of_user(effective)]
        place = copied_settings.hooks(effective, source.common_dir, source.path, source.worktree)[1]
        found += [place] if place else []
    return found


def configure(directory: Inside, source: Source, effective: copied_settings.Settings) -> None:
    """Takes over settings, the user's own patterns for ignored files and attributes, and hooks."""
    shown = copied_settings.shown(effective)
    hooks_path, outside = copied_settings.hooks(effective, source.common_dir, source.path, source.worktree)
    if hooks_path:
        shown.append(("core.hookspath", hooks_path))
    for path, name, key in _of_user(effective):
        place = os.path.join(source.path, path)
        if disk.in_hands_of(source.worktree, place):
            shown.append((f"core.{key.lower()}", place))  # git in the jail reads it itself, where the jail lets it
            continue
        content = _user_file(place, source.worktree)
        if content is not None:
            directory.write(f"info/paddock-{name}", content)
            shown.append((f"core.{key.lower()}", f"{source.inside}/info/paddock-{name}"))
    # The jail has no agent and no key to sign with; whoever harvests may sign.
    shown += [("commit.gpgsign", "false"), ("tag.gpgsign", "false")]
    content = copied_settings.text(shown)
    if directory.read(INCLUDED) != content:
        directory.write(INCLUDED, content)
    if outside:
        _hooks(directory, outside, source.worktree)


def files(directory: Inside, source: Source) -> None:
    """Takes over ignored files, attributes, what is sparse and what is shallow."""
    sparse = (f"{source.git_dir}/info/sparse-checkout", "info/sparse-checkout")
    for path, name in (*((f"{source.common_dir}/{name}", target) for name, target in _COPIED), sparse):
        content = _user_file(path, source.worktree)
        if content is not None and directory.read(name) != content:
            directory.write(name, content)


def all_refs(directory: Inside, source: Source, given: str, loose: dict[str, str]) -> None:
    """Shows the host's refs, in a new private git directory."""
    content = ref_files.with_loose(ref_files.packed(source.common_dir), loose)
    directory.write("packed-refs", content)
    for ref, value in loose.items():
        if not ref_files.is_oid(value):
            directory.write(ref, value.encode() + b"\n")
    os.makedirs(given, mode=0o700, exist_ok=True)
    walk.replace(f"{given}/packed", content)
    walk.replace(f"{given}/loose", _loose_text(loose))


def new_refs(
    directory: Inside, source: Source, given: str, loose: dict[str, str], own: str | None, *, packed_too: bool
) -> None:
    """Shows what changed among the host's refs since `given`, where the agent has not changed the same ref."""
    before = dict(line.split("\t")[::-1] for line in _text(f"{given}/loose").split("\n")[:-1])
    old = _bytes(f"{given}/packed")
    # Into one file with the others, so that what is loose is the agent's own; not where that file is large.
    fold = len(old) < MOST_FOLDED
    for ref, value in loose.items():
        if before.get(ref) != value and ref != own and not (fold and ref_files.is_oid(value)):
            _put(directory, ref, value, before.get(ref))
    for ref in before.keys() - loose.keys():
        if ref != own and os.fsdecode(directory.read(ref, 4096) or b"").rstrip() == before[ref]:
            directory.remove(ref)
    if packed_too or (fold and before != loose):
        content = ref_files.with_loose(ref_files.packed(source.common_dir), loose)
        now = directory.read("packed-refs") or b""
        if now != old:
            content = _with_changes(content, old, now, own)
        directory.write("packed-refs", content)
        walk.replace(f"{given}/packed", content)
    walk.replace(f"{given}/loose", _loose_text(loose))


def given_oids(given: str) -> set[str]:
    """Every object id that a ref of the host's had when it was shown (`given_place`)."""
    loose = {line.split("\t")[0] for line in _text(f"{given}/loose").split("\n")}
    packed = {
        line.split(b" ")[0].lstrip(b"^").decode("ascii", "replace") for line in _bytes(f"{given}/packed").split(b"\n")
    }
    return (loose | packed) - {""}


def given_place(directory: str, private: str) -> str:
    """Where what was shown to one private git directory is remembered."""
    return f"{directory}/{GIVEN}/{hashlib.sha256(os.fsencode(private)).hexdigest()[:16]}"


def _put(directory: Inside, ref: str, value: str, before: str | None) -> None:
    now = os.fsdecode(directory.read(ref, 4096) or b"").rstrip()
    if now and now != before:
        return  # the agent's
    try:
        directory.write(ref, value.encode() + b"\n")
    except (NotADirectoryError, IsADirectoryError):
        return  # the agent has a branch `a` where the host has `a/b` now, or the other way round: his stays


def _with_changes(host: bytes, given: bytes, now: bytes, own: str | None) -> bytes:
    """The host's packed refs with what the agent's differ in from the ones that he was given."""
    new, old, agents = ref_files.by_name(host), ref_files.by_name(given), ref_files.by_name(now)
    for name in agents.keys() | old.keys():
        if agents.get(name) != old.get(name) or name == os.fsencode(own or ""):
            if name in agents:
                new[name] = agents[name]
            elif name != os.fsencode(own or ""):
                new.pop(name, None)
    return ref_files.from_names(new)


def _loose_text(loose: dict[str, str]) -> bytes:
    return os.fsencode("".join(f"{value}\t{ref}\n" for ref, value in sorted(loose.items())))


def _head_text(head: ref_files.Head) -> bytes:
    return os.fsencode(f"ref: {head.branch}\n" if head.branch is not None else f"{head.oid}\n")


def _of_user(effective: copied_settings.Settings) -> list[tuple[str, str, str]]:
    """(file, name here, variable) of the user's own patterns, which may have their default places (gitignore(5))."""
    base = os.environ.get("XDG_CONFIG_HOME") or f"{effective.home}/.config"
    return [(effective.path(key) or f"{base}/git/{name}", name, variable) for key, name, variable in _USERS]


def _hooks(directory: Inside, place: str, worktree: str) -> None:
    """Copies the programmes in a hooks directory: in the jail they run on the agent's commits, as on the user's.

    What was copied before and is gone there goes here, too; hooks that the agent has made for itself stay.
    """
    seen = disk.Seen()
    with disk.opened(seen.trail(place).canonical) as descriptor:
        try:
            names = () if descriptor is None else sorted(os.listdir(f"/proc/self/fd/{descriptor}"))
        except (NotADirectoryError, PermissionError):
            names = ()
    copied = []
    for name in [name for name in names if not name.endswith(".sample")][:MOST_HOOKS]:
        content = _user_file(f"{place}/{name}", worktree, MOST_HOOK_BYTES, executable=True, seen=seen)
        if content is not None:
            directory.write(f"hooks/{name}", content, mode=0o700)
            copied.append(name)
    before = directory.read(COPIED_HOOKS) or b""  # the agent may have written it: so only what is in that directory
    for name in {os.fsdecode(name) for name in before.split(b"\0")[:MOST_HOOKS]}.difference(copied, ("", ".", "..")):
        if "/" not in name:
            with suppress(IsADirectoryError):
                directory.remove(f"hooks/{name}")
    noted = b"\0".join(os.fsencode(name) for name in copied)
    if noted != before:
        directory.write(COPIED_HOOKS, noted)


def _user_file(
    path: str,
    worktree: str,
    limit: int = _MOST_COPIED,
    *,
    executable: bool = False,
    seen: disk.Seen | None = None,
) -> bytes | None:
    """The content of a file of the user's; None when there is none, or when an agent decides what is there."""
    seen = seen or disk.Seen()
    trail = seen.trail(path)
    if trail.canonical is None or written.agents_choice(trail, worktree):
        return None
    content = seen.read(path, limit)
    if content is None:
        with disk.opened(trail.canonical) as descriptor:
            regular = descriptor is not None and stat.S_ISREG(os.fstat(descriptor).st_mode)
        if regular and not executable:
            raise Refusal("git-file-unreadable", f"{path} cannot be read", context=f"or it is over {limit} bytes")
    return content if not executable or os.access(trail.canonical, os.X_OK) else None


def _bytes(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall()
    except FileNotFoundError:
        return b""


def _text(path: str) -> str:
    return os.fsdecode(_bytes(path))


# Whether a commit of an agent's has arrived: the trusted repository is asked, the private git directory never.
#
# Not for the launch path: it starts git.


def reached(git: Git, oid: str, *, tips: Iterable[str] = (), refs: Iterable[str] = ()) -> bool:
    """Whether the trusted repository has a commit, and one of its own tips is the commit or a descendant.

    Args:
        oid: object id that an agent's ref holds.
        refs: full names, or what names begin with up to a slash (git-for-each-ref(1)); absent ones count for nothing.

    Raises:
        GitFailed: git failed for another reason than a missing commit.
    """
    found = _found(git, tips, refs)
    if oid in found:
        return True
    # A commit that is not there is an error of git-rev-list(1), whose status is 128.
    asked = "".join((f"{oid}\n", *(f"^{tip}\n" for tip in found))).encode()
    listed = git.run("rev-list", "--max-count=1", "--stdin", input=asked, ok=(0, 128))
    return listed.status == 0 and not listed.out.strip()


def unreached(git: Git, oids: Collection[str], *, tips: Iterable[str] = (), refs: Iterable[str] = ()) -> set[str]:
    """Those of `oids` that are not `reached`, with a few processes for any number. Tags count as their objects."""
    if not oids:
        return set()
    found = _found(git, tips, refs)
    peeled: dict[str, str] = {}
    gone: set[str] = set()
    asked = [oid for oid in oids if oid not in found]
    if not asked:
        return set()
    for oid, one in zip(asked, git.objects(f"{oid}^{{}}" for oid in asked), strict=True):
        if one.kind == "missing":
            gone.add(oid)
        elif one.kind == "commit":
            peeled[oid] = one.oid
    wanted = "".join((*(f"{name}\n" for name in peeled.values()), *(f"^{tip}\n" for tip in found))).encode()
    beyond = set(git.run("rev-list", "--stdin", input=wanted).out.decode().split()) if peeled else set()
    return gone | {oid for oid, name in peeled.items() if name in beyond}


def _found(git: Git, tips: Iterable[str], refs: Iterable[str]) -> set[str]:
    names = tuple(refs)
    listed = git.text("for-each-ref", "--format=%(objectname)", *names).split() if names else []
    return {*tips, *listed}
