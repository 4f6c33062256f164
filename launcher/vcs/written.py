"""Trees that jails of this user were given to write, now or in former sessions, and the git directories in them.

An agent may have chosen what a link in one of them leads to: the directory was shared with one session, and another one
is granted something in it by name. So such a link grants nothing (`policy.ingredients.asked_for`). A git
directory in one of them is never given to git outside of a jail (`refuse_agents_git_dir`).

The record is one file in the user's state directory, which no jail can reach: entries in the order of the sessions,
each ended by a NUL. ``/TREE``: a tree whose own `.git` no session could write. ``*/TREE``: all of it was writable, or
its `.git`, a pointer, could be replaced.
``=IDENTITY/TREE`` says which directory it was: a tree that was moved since, or is mounted elsewhere, is still an
agent's. Of records that are older, the next session completes what is there.
A git directory is its user's, whatever the entries above it say: ``+IDENTITY/DIRECTORY``: he vouches for it;
``-IDENTITY/DIRECTORY``: the session that could write around it had it read-only. That counts for the very directory,
wherever it is now, and for none that has come to its place.

On no record, because all sessions write there: Paddock's own places for them, and where it has moved what they left.
"""

import os
import pwd
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from launcher.jail import syscalls
from launcher.safefs import guarded_files, walk
from launcher.vcs.disk import Names
from policy import promises
from policy.errors import Refusal, unusable
from policy.launch import Trail
from policy.pasted import quoted
from policy.plan import Plan, beneath

NAME = "written"
VOUCHES = "vouches"
"""File beside the record that grows whenever the user vouches for a git directory, or takes that back: no Plan from
before is used then. `launcher.session.state` has the name, too."""
MOST = 4000
"""Entries from which on those are left out, at the next record, that can mean no directory any more."""
_LARGEST = 32 << 20
_ALL, _VOUCHED, _KEPT, _IDENTITY = "*", "+", "-", "="
_USERS = (_VOUCHED, _KEPT)
GIT_OWN = frozenset({"branches", "hooks", "info", "lfs", "logs", "modules", "objects", "refs", "rr-cache", "worktrees"})
"""Directories of a git directory that git obeys or believes. A bare repository may hold worktrees beside them."""

_NO_SESSIONS = frozenset({"run", "scratch", "service"})
"""What no session can write below the state directory: what else lies there is theirs, or was moved there for them."""
_SHORT_TEMP = re.compile(r"/paddock-[0-9a-f]{10}(/|$)")
"""Temp directories of jails without mounts, in /tmp (`launcher.session.state.make_short_temp`)."""
BACKUP = "paddock-backup"
"""Directory in a git directory to which repositories go that lay in a worktree when it was removed."""


class _Record(NamedTuple):
    """What is in the file.

    Attributes:
        entries: the last one of those that are there more than once.
        directories: identity -> trees that an entry names, and that had it.
    """

    entries: tuple[str, ...]
    directories: dict[str, tuple[str, ...]]


_parsed: tuple[tuple[str, tuple[int, ...]], _Record] | None = None


def path_of(state: str) -> str:
    """Where the record is, in Paddock's state directory."""
    return os.path.join(state, NAME)


def user_state() -> str:
    """Paddock's state directory by this process's environment, as `launcher.session.places` has it."""
    base = os.environ.get("XDG_STATE_HOME", "")
    if base.startswith("/"):
        return os.path.normpath(f"{base}/paddock")
    home = os.environ.get("HOME", "")
    if not home.startswith("/"):
        try:
            home = pwd.getpwuid(os.geteuid()).pw_dir
        except KeyError:
            home = "/"
    return os.path.normpath(f"{home}/.local/state/paddock")


def trees(state: str, *paths: str) -> tuple[str, ...]:
    """Canonical paths of all trees on record, oldest first.

    Args:
        paths: absolute: of the trees that were moved, those in which one of these lies or crosses a link, as they are
            now.

    Refusals: state-not-ours (the record could be somebody else's), and those of `guarded_files.read`.
    """
    known, names = _read(state), Names()
    entries = _followed(known.entries, _moved(known, _around(known, [names.walk(path) for path in paths])))
    return tuple(dict.fromkeys(_path(each) for each in entries if not each.startswith(_USERS)))


def former(state: str, tree: str) -> tuple[str, ...]:
    """Where a directory (canonical) was when sessions could write it, by the record; as `trees`."""
    return _read(state).directories.get(syscalls.identity(tree), ())


def agents_tree(git_dir: str, state: str | None = None) -> str:
    """The tree in which a git directory lies that agents could write, or is led to by a link; "" for no agent's.

    The `.git` of a worktree's own root counts as no agent's, unless a session had it to write: jails cover it.

    Args:
        git_dir: absolute.
        state: Paddock's state directory; by default that of this process's environment.

    Refusals: as `trees`.
    """
    return tree_of(Names().walk(os.path.abspath(git_dir)), state)


def tree_of(trail: Trail, state: str | None = None) -> str:
    """The same for a walk whose result is then opened by its canonical path."""
    state = user_state() if state is None else state
    return _of_sessions(trail, state) or _tree_by(_entries_for(_read(state), trail), trail)


def agents_choice(trail: Trail, worktree: str, *own: str) -> bool:
    """Whether an agent, of a session in this worktree or of any on record, decides what a walk has found.

    Args:
        worktree: canonical root of all that the agent writes.
        own: git directories, canonical, that count as no agent's beside the worktree's `.git`, unless by the record.
    """
    users = (f"{worktree}/.git", *own)
    inside = any(
        beneath(path, worktree) and not any(beneath(path, each) for each in users)
        for path in (trail.reached, *(link for link, _ in trail.links))
    )
    return inside or bool(tree_of(trail))


def of_sessions(git_dir: str, state: str) -> str:
    """The place of Paddock's own in which a git directory lies that sessions write: nobody can vouch for it there."""
    return _of_sessions(Names().walk(os.path.abspath(git_dir)), state)


def _of_sessions(trail: Trail, state: str) -> str:
    own, temp = os.path.realpath(state), os.path.realpath("/tmp")
    for path in (trail.reached, *(link for link, _ in trail.links)):
        name = path[len(own) + 1 :].partition("/")[0] if beneath(path, own) else ""
        if name and name not in _NO_SESSIONS:
            return f"{own}/{name}"
        if path.startswith(temp) and (found := _SHORT_TEMP.match(path, len(temp))):
            return path[: found.end()].rstrip("/")
    return ""


def _entries_for(known: _Record, trail: Trail) -> list[str]:
    """The entries, and those that follow from where this walk has come."""
    around = _around(known, [trail], (f"{trail.reached}/{name}" for name in GIT_OWN))
    return [*_backups(trail), *_followed(_of_users(known.entries, around), _moved(known, around))]


def _backups(trail: Trail) -> Iterator[str]:
    for path in (trail.reached, *(link for link, _ in trail.links)):
        parts = path.split("/")
        for around in ("/".join(parts[:at]) for at, name in enumerate(parts) if name == BACKUP):
            if os.path.lexists(f"{around}/HEAD"):
                yield f"{_ALL}{around}/{BACKUP}"


def _around(known: _Record, trails: Iterable[Trail], inside: Iterable[str] = ()) -> dict[str, str]:
    """Directories around the ends of walks and the links on their way, and which each is.

    Args:
        inside: further ones to look at.
    """
    if not known.entries:
        return {}
    around = dict.fromkeys(inside, "")
    for trail in trails:
        for here in (trail.reached, *(os.path.dirname(link) for link, _ in trail.links)):
            while here not in ("", "/") and here not in around:
                around[here] = ""
                here = os.path.dirname(here)
    return {here: syscalls.identity(here) for here in around}


def _moved(known: _Record, around: dict[str, str]) -> list[tuple[str, str]]:
    """Trees on record among directories: where each was, and where it is now."""
    return [(was, now) for now, it in around.items() for was in known.directories.get(it, ()) if was != now]


def _followed(entries: Iterable[str], moved: list[tuple[str, str]]) -> Iterable[str]:
    """Entries, each followed by what it says of trees that were moved. What is the user's is known by itself alone."""
    if not moved:
        return entries
    found = []
    for entry in entries:
        found += [entry]
        if entry.startswith(_USERS):
            continue
        path = _path(entry)
        found += [f"{entry[: -len(path)]}{now}{path[len(was) :]}" for was, now in moved if beneath(path, was)]
    return found


def _of_users(entries: Iterable[str], around: dict[str, str]) -> Iterator[str]:
    """Entries, in which what is the user's has the place where it is now; left out where that is not around here."""
    for entry in entries:
        if not entry.startswith(_USERS):
            yield entry
            continue
        kind, identity, path = entry[0], _identity_in(entry), _path(entry)
        # Without a birth, another directory may have the inode by now.
        places = [here for here, it in around.items() if it == identity and (":" in it or here == path)]
        yield from (f"{kind}{identity}{here}" for here in places)


def _path(entry: str) -> str:
    return entry[entry.index("/") :]


def _identity_in(entry: str) -> str:
    return entry[1 : entry.index("/")]


def _tree_by(entries: Iterable[str], trail: Trail) -> str:
    found = ""
    for entry in entries:
        tree = _path(entry)
        if entry.startswith(_USERS):
            found = "" if found and beneath(trail.reached, tree) else found
        elif any(beneath(link, tree) for link, _ in trail.links):
            found = tree
        elif beneath(trail.reached, tree):
            found = found if not entry.startswith(_ALL) and beneath(trail.reached, f"{tree}/.git") else tree
        elif beneath(tree, trail.reached) and tree[len(trail.reached) + 1 :].partition("/")[0] in GIT_OWN:
            found = tree
    return found


def refuse_agents_git_dir(git_dir: str, state: str | None = None) -> None:
    """Refuses a git directory that an agent could write, which git outside of a jail must not touch (`agents_tree`).

    Refusals: git-dir-written, and those of `trees`.
    """
    tree = agents_tree(git_dir, state)
    if tree:
        accept = f"paddock trust {quoted(git_dir)} shows what git would obey there, and accepts it; or "
        own = of_sessions(git_dir, user_state() if state is None else state)
        raise Refusal(
            "git-dir-written",
            f"agents could write the git directory {git_dir}",
            context=f"commands in jails could write {tree}; git outside of a jail would obey what they left there",
            hint=f"{'' if own else accept}clone it to a place of your own",
        )


def granted(plan: Plan) -> tuple[str, ...]:
    """What a Plan lets its command write on the disk, as entries of the record."""
    own = f"{plan.worktree}/.git"
    bare = plan.git == "shared" or not os.path.lexists(own)  # --directory: it may make one
    # No mount covers a pointer under the guard, so it may be a directory next time; one that is a directory now is
    # held, with the root (`exception-in-writable-tree`).
    bare = bare or (plan.backend == promises.GUARD and (os.path.islink(own) or not os.path.isdir(own)))
    found = [f"{_ALL}{plan.worktree}" if bare else plan.worktree]
    for path, access, source in plan.grants:
        private = source == promises.OWN_TMP or path.startswith("@")
        private = private or (promises.has_mounts(plan.backend) and beneath(path, "/dev"))
        if "w" in access and not private and not beneath(path, plan.worktree) and os.path.isdir(path):
            found.append(f"{_ALL}{path}")
    # What a jail has read-only as a whole stays its user's.
    kept = ((syscalls.identity(path), path) for path, source in plan.read_only if source == promises.OTHER_GIT)
    return (*found, *(f"{_KEPT}{identity}{path}" for identity, path in kept if identity))


def directories(state: str, plan: Plan) -> tuple[str, ...]:
    """What has to be the same directories as long as a Plan holds: what it grants, and all that is the user's.

    When one of the user's is moved, every Plan goes on record anew: it may be in a tree of that one now.

    Refusals: those of `trees`.
    """
    users = (each for each in _read(state).entries if each.startswith(_USERS))
    return tuple(dict.fromkeys(map(_path, (*granted(plan), *users))))


def remember(state: str, plan: Plan) -> None:
    """Puts what a Plan grants on record, before anything runs with it.

    Refusals: state-unusable, and those of `trees`.
    """
    wanted = granted(plan)
    known = _read(state)
    if not _missing(wanted, known) and not _unidentified(wanted, known):
        return
    path = path_of(state)
    with guarded_files.locked_file(f"{path}.lock"):
        known = _read(state)
        added = _missing(wanted, known)
        gone = _gone(known) if len(known.entries) + len(added) > MOST else frozenset()
        try:
            if gone:
                _replace(path, (*(each for each in known.entries if each not in gone), *added), known)
                known = _read(state)
            _append(path, (*(() if gone else added), *_unidentified((*_unnamed(known), *wanted), known)))
        except OSError as error:
            raise unusable(path, error) from None


def _gone(known: _Record) -> frozenset[str]:
    """Entries that can mean no directory any more, or one of the user's that is not where it was.

    A tree that is known by itself may have been moved.
    """
    named = {path for paths in known.directories.values() for path in paths}
    return frozenset(
        each
        for each in known.entries
        if (syscalls.identity(_path(each)) != _identity_in(each) if each.startswith(_USERS)
            else _path(each) not in named and not os.path.isdir(_path(each)))
    )  # fmt: skip


def forget(state: str, tree: str, identity: str) -> None:
    """Takes off the record a tree that Paddock has removed from the disk; not another one that was there before.

    Args:
        identity: of the tree (`syscalls.identity`), from before.

    Refusals: state-unusable, and those of `trees`.
    """
    path = path_of(state)
    with guarded_files.locked_file(f"{path}.lock"):
        known = _read(state)
        if os.path.lexists(tree) or tree not in known.directories.get(identity, ()):
            return
        left = {**known.directories, identity: tuple(each for each in known.directories[identity] if each != tree)}
        named = any(tree in paths for paths in left.values())
        entries = (each for each in known.entries if named or each.startswith(_USERS) or _path(each) != tree)
        try:
            _replace(path, tuple(entries), _Record((), left))
        except OSError as error:
            raise unusable(path, error) from None


def follow(state: str, was: str, now: str) -> None:
    """Puts on record that a tree has been moved, or copied to another file system: what was an agent's there is here.

    Refusals: state-unusable, and those of `trees`.
    """
    path = path_of(state)
    with guarded_files.locked_file(f"{path}.lock"):
        known = _read(state)
        if not any(beneath(_path(each), was) for each in known.entries):
            return
        try:
            _replace(path, tuple(_followed(known.entries, [(was, now)])), known)
            known = _read(state)
            _append(path, _unidentified(_unnamed(known), known))
        except OSError as error:
            raise unusable(path, error) from None


def refuse_late(state: str, plan: Plan) -> None:
    """Refuses a Plan that was made before the user vouched for a git directory which it lets its command write.

    Refusals: trust-changed, and those of `trees`.
    """
    if _missing(granted(plan), _read(state)):
        raise Refusal(
            "trust-changed",
            f"what is trusted in {plan.worktree} changed while this session started",
            context="it was planned before `paddock trust` had ended, and could write what is trusted now",
            hint="start it again",
        )


def vouch(state: str, git_dir: str, identity: str) -> None:
    """Puts on record that the user has looked at a git directory and answers for it, until a session can write it.

    Args:
        identity: of the directory that he looked at (`syscalls.identity`), from before he did.

    Refusals: trust-changed (it is not there, or cannot be known), state-unusable.
    """
    path = path_of(state)
    if not identity or syscalls.identity(git_dir) != identity:
        raise Refusal(
            "trust-changed",
            f"{git_dir} is not the directory that was shown" if identity else f"{git_dir} cannot be told from others",
            context="another process has moved or replaced it" if identity else "statx(2) says nothing about it",
            hint=f"paddock trust {quoted(git_dir)}",
        )
    with guarded_files.locked_file(f"{path}.lock"):
        try:
            _append(f"{state}/{VOUCHES}", ("",))  # in front, too: nothing of the record is ever newer
            _append(path, (f"{_VOUCHED}{identity}{git_dir}",))
            _append(f"{state}/{VOUCHES}", ("",))
        except OSError as error:
            raise unusable(path, error) from None


def vouched(state: str) -> dict[str, bool]:
    """The git directories that the user vouches for, and that no session could write since; as `trees`.

    Returns:
        Where each was then, sorted; whether it still is there. If not, it counts wherever it is now.
    """
    known = _read(state)
    found: dict[str, bool] = {}
    for at, entry in enumerate(known.entries):
        if not entry.startswith(_VOUCHED):
            continue
        path = _path(entry)
        here = syscalls.identity(path) == _identity_in(entry)
        if not (agents_tree(path, state) if here else _written_since(known, at)):
            found[path] = found.get(path, False) or here
    return dict(sorted(found.items()))


def _written_since(known: _Record, at: int) -> bool:
    """Whether the record has a tree after an entry, by any of its names, in which the entry's directory was."""
    later = {_path(each) for each in known.entries[at:] if not each.startswith(_USERS)}
    names = {name for paths in known.directories.values() if not later.isdisjoint(paths) for name in paths}
    return any(beneath(_path(known.entries[at]), each) for each in later | names)


def is_vouched(state: str, git_dir: str) -> bool:
    """Whether the user vouches for the git directory that is there, wherever it was then; as `trees`."""
    return bool(_vouching(_read(state), git_dir, by_name=False)) and not agents_tree(git_dir, state)


def _vouching(known: _Record, git_dir: str, *, by_name: bool) -> list[str]:
    identity = syscalls.identity(git_dir)
    return [
        each
        for each in known.entries
        if each.startswith(_VOUCHED)
        and ((by_name and _path(each) == git_dir) or (identity and _identity_in(each) == identity))
    ]


def revoke(state: str, git_dir: str) -> bool:
    """Takes back what `vouch` has put on record: what jails could write there counts again.

    Args:
        git_dir: where it is now, or where it was then.

    Returns:
        Whether it counted.

    Refusals: state-unusable, and those of `trees`.
    """
    counted = is_vouched(state, git_dir) or git_dir in vouched(state)
    path = path_of(state)
    with guarded_files.locked_file(f"{path}.lock"):
        known = _read(state)
        names = {_identity_in(each) for each in _vouching(known, git_dir, by_name=True)}
        if not names:
            return False
        kept = (each for each in known.entries if not each.startswith(_USERS) or _identity_in(each) not in names)
        try:
            _replace(path, tuple(kept), known)
            _append(f"{state}/{VOUCHES}", ("",))
        except OSError as error:
            raise unusable(path, error) from None
    return counted


def _missing(wanted: tuple[str, ...], known: _Record) -> tuple[str, ...]:
    """Entries that are not on record, or that are followed by one in which the user vouches for something in them.

    What is wanted to stay the user's is vouched for where it is his by what is known, and would not be any more.
    """
    missing: list[str] = []
    kept = {_identity_in(each) for each in wanted if each.startswith(_KEPT)}
    for entry in wanted:
        if entry.startswith(_KEPT):
            trail = Names().walk(_path(entry))
            before = _entries_for(known, trail)
            if not _tree_by(before, trail) and _tree_by((*before, *missing), trail):
                missing.append(entry)
            continue
        last = max((at for at, each in enumerate(known.entries) if each == entry), default=-1)
        after = [each for each in known.entries[last + 1 :] if each.startswith(_USERS)]
        if last < 0 or any(_identity_in(each) not in kept and _may_be_in(_path(entry), each) for each in after):
            missing.append(entry)
    return tuple(missing)


def _may_be_in(tree: str, entry: str) -> bool:
    """Whether what is the user's may lie in a tree, or around it. One that is not where it was may be anywhere."""
    path, identity = _path(entry), _identity_in(entry)
    there, around = syscalls.identities(path), syscalls.identities(tree)
    return there[0] != identity or identity in around or (around[0] or tree) in there or beneath(path, tree)


def _unnamed(known: _Record) -> tuple[str, ...]:
    """Trees of which no identity is on record."""
    named = {path for paths in known.directories.values() for path in paths}
    return tuple(each for each in known.entries if not each.startswith(_USERS) and _path(each) not in named)


def _unidentified(entries: Iterable[str], known: _Record) -> tuple[str, ...]:
    """Entries that say which directories these trees are now, where that is not on record."""
    paths = dict.fromkeys(_path(each) for each in entries if not each.startswith(_USERS))
    found = ((syscalls.identity(path), path) for path in paths)
    return tuple(f"{_IDENTITY}{it}{path}" for it, path in found if it and path not in known.directories.get(it, ()))


def _read(state: str) -> _Record:
    global _parsed
    path = path_of(state)
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return _Record((), {})
    except OSError as error:
        raise unusable(path, error) from None
    key = (path, (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))
    if _parsed is not None and _parsed[0] == key:
        return _parsed[1]
    content = guarded_files.read_private(
        path, limit=_LARGEST, hint="check yourself what agents left in directories that were shared with them"
    )
    if content is None:
        return _Record((), {})
    parts = [os.fsdecode(each) for each in content.split(b"\0")]
    entries = [each for each in parts if each.startswith(("/", f"{_ALL}/"))
               or (each.startswith(_USERS) and "/" in each and _identity_in(each))]  # fmt: skip
    # Of an entry that is there more than once the last one counts: what was vouched for between them may have changed.
    last = {each: at for at, each in enumerate(entries)}
    directories: dict[str, tuple[str, ...]] = {}
    for each in dict.fromkeys(parts):
        identity, slash, directory = each[1:].partition("/")
        if each.startswith(_IDENTITY) and identity and slash:
            directories[identity] = (*directories.get(identity, ()), slash + directory)
    result = _Record(tuple(each for at, each in enumerate(entries) if last[each] == at), directories)
    _parsed = (key, result)
    return result


def _replace(path: str, entries: tuple[str, ...], known: _Record) -> None:
    """Writes the record anew, with what is known of the directories that are still in it."""
    named = {_path(each) for each in entries if not each.startswith(_USERS)}
    said = [f"{_IDENTITY}{it}{each}" for it, paths in known.directories.items() for each in paths if each in named]
    walk.replace(path, _packed((*entries, *said)))


def _packed(paths: tuple[str, ...]) -> bytes:
    return b"".join(os.fsencode(path) + b"\0" for path in paths)


def _append(path: str, entries: tuple[str, ...]) -> None:
    if not entries:
        return
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o600)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        os.fchmod(descriptor, 0o600)  # whatever the umask is
        # A NUL in front, too: the last entry may have been cut short by a power failure.
        file.write(b"\0" + _packed(entries))
        os.fsync(file.fileno())
