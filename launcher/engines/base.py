"""What rows start from, on its way to another machine: packs of commits, and the repository there that takes them in.

A base has a part for the repository and one for each submodule of its commits. On the machine that performs rows, all
of a repository's bases share one mirror, in the user's data directory: where jails may see the worktrees beside it.
"""

import fcntl
import hashlib
import json
import os
import threading
import time
from contextlib import suppress
from typing import NamedTuple

from launcher.engines import row
from launcher.safefs.remove import remove_tree
from launcher.service import ticket_work
from launcher.session import places
from launcher.vcs import jailed_git
from launcher.vcs.added_packs import Held, Quarantine
from launcher.vcs.git import Git, GitFailed
from launcher.vcs.harvest import crossing
from launcher.vcs.harvest.jail import Jailed, Reading
from launcher.vcs.scratch import Scratch
from launcher.vcs.worktrees import module_stores, retention
from launcher.vcs.worktrees.retention import Unneeded
from policy.errors import Refusal, Rows

MOST_BYTES = 4 << 30
"""Of one pack."""

KEPT_DAYS = 30.0
"""How long a mirror stays that nobody uses."""

_REFS = "refs/paddock/mirrored"
_PACK = ("pack-objects", "--revs", "--stdout", "--delta-base-offset", "-q")
_INDEX = ("index-pack", "--stdin")
_PATIENCE = 1800.0
_PIECE = 1 << 20
_CONFIG = "[core]\n\trepositoryformatversion = {}\n\tbare = {}\n"
_SHA256 = "[extensions]\n\tobjectformat = sha256\n"
_DAY = 86_400.0
_GOING = ".going-"
"""How the name of a mirror begins that is being removed."""

_used: dict[str, int] = {}
"""Descriptors of the directories of mirrors that this process uses, by their paths: locked for as long as it lives."""

_using = threading.Lock()


class Part(NamedTuple):
    """The repository, or a submodule's.

    Attributes:
        store: "" or its git directory below the repository's, ``modules/NAME``.
        digits: of its object ids.
        commits: that rows need of it.
    """

    store: str
    digits: int
    commits: tuple[str, ...]


def parts(repository: str, commits: tuple[str, ...]) -> list[Part]:
    """The parts of a base with these commits. What a submodule's repository here has not, no row gets elsewhere."""
    git = Git.open(repository)
    found: dict[str, dict[str, None]] = {"": dict.fromkeys(commits)}
    for commit in commits:
        for module in module_stores.modules_of_commit(git, commit):
            if not module.problem:
                store = os.path.relpath(module.common_dir, git.common_dir)
                found.setdefault(store, {})[module.commit] = None
    return [Part(store, len(next(iter(oids))), tuple(oids)) for store, oids in found.items()]


def packed(repository: str, part: Part, known: tuple[str, ...]) -> bytes:
    """A pack with the commits of a part and all they need but what `known` ones lead to.

    Raises:
        Refusal: base-shallow, base-unreadable, base-too-large.
    """
    git = Git(
        os.path.join(Git.open(repository).common_dir, part.store) if part.store else Git.open(repository).common_dir
    )
    if os.path.lexists(f"{git.common_dir}/shallow"):
        raise Refusal(
            "base-shallow", f"{git.common_dir} is a shallow clone", context="another machine needs the whole history",
            hint="git fetch --unshallow",
        )  # fmt: skip
    skeleton = jailed_git.Skeleton(git)
    revisions = "".join(f"{oid}\n" for oid in part.commits) + "".join(f"^{oid}\n" for oid in known)
    try:
        reading = Reading(skeleton.path, skeleton.stores[0], skeleton.stores)
        with Jailed(_PACK, reading, stdin=revisions.encode(), patience=_PATIENCE) as jailed:
            assert jailed.process.stdout is not None
            pack = bytearray()
            while piece := jailed.process.stdout.read(_PIECE):
                pack += piece
                if len(pack) <= MOST_BYTES:
                    continue
                raise Refusal("base-too-large", f"the commits of {git.common_dir} that rows need are too large",
                              context=f"the limit is {MOST_BYTES >> 30} GiB")  # fmt: skip
            jailed.check(f"packing commits of {git.common_dir}")
    except Refusal as refusal:
        raise _renamed(refusal) from None
    return bytes(pack)


def _renamed(refusal: Refusal) -> Refusal:
    if refusal.reference != "harvest-unreadable":
        return refusal
    return Refusal("base-unreadable", refusal.message, context=Rows(refusal.context), hint="git fsck")


def name_of(repository: str, machine: str) -> str:
    """What a repository's mirrors are called."""
    return f"{os.path.basename(repository)}-{hashlib.sha256(os.fsencode(f'{machine}:{repository}')).hexdigest()[:16]}"


def _mirrors() -> str:
    home = os.environ.get("XDG_DATA_HOME", "")
    home = home if home.startswith("/") else f"{places.places(os.environ).home}/.local/share"
    return os.path.realpath(f"{home}/paddock/mirrors")


def _use(directory: str) -> None:
    """Makes the directory of a mirror, and has `prune` leave it alone until this process ends."""
    with _using:
        while directory not in _used:
            places.make_private(directory)
            try:
                descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue  # it was removed in this moment
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(directory)):
                    _used[directory] = descriptor
                    break
            os.close(descriptor)
        os.utime(_used[directory])


def prune(days: float, *, dry_run: bool = False) -> tuple[list[Unneeded], list[str]]:
    """Removes mirrors that no process uses, and that none has used for some days.

    Worktrees of rows in them, which a killed driver has left, go too. A mirror with any other worktree stays.

    Args:
        days: since the last use.
        dry_run: nothing is removed.

    Returns:
        what goes, and a line for each thing that could not be removed.
    """
    removed: list[Unneeded] = []
    notes: list[str] = []
    above = _mirrors()
    try:
        names = sorted(os.listdir(above))
    except FileNotFoundError:
        names = []
    for name in names:
        path = f"{above}/{name}"
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # another process was quicker, or it is no mirror
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if name.startswith(_GOING):  # its removal was killed
                notes += [] if dry_run else remove_tree(path)
            elif time.time() - os.fstat(descriptor).st_mtime >= days * _DAY:
                size = retention.size(path)
                if _removed(path, notes, dry_run=dry_run):
                    why = f"no batch has used it for {days:g} days"
                    removed.append(Unneeded(above, path, "", why, lost=False, size=size))
        except BlockingIOError:
            continue  # in use
        finally:
            os.close(descriptor)
    return removed, notes


def _removed(mirror: str, notes: list[str], *, dry_run: bool) -> bool:
    """Removes a mirror that is locked; False when it stays."""
    store = f"{_root(mirror)}/.git"
    service = ticket_work.service(places.places(os.environ))
    if not dry_run:
        service.settle(store)
    worktrees = service.store.of(store)
    if not all(each.ticket.startswith((row.PREFIX, row.OF_TICKETS)) for each in worktrees):
        return False
    if dry_run:
        return True
    if failures := row.give_up(worktrees):
        notes += failures
        return False
    going = f"{os.path.dirname(mirror)}/{_GOING}{os.urandom(6).hex()}"
    os.rename(mirror, going)  # so that nobody ever finds a half one
    notes += remove_tree(going)
    return True


def _root(mirror: str) -> str:
    name = os.path.basename(mirror)
    return f"{mirror}/{name.rpartition('-')[0] or name}"


class Mirror:
    """The repository on this machine that takes in bases. It stays as long as this process lives.

    Attributes:
        root: of its (empty) main checkout.
    """

    def __init__(self, name: str) -> None:
        """Finds it, or makes it. Refusal: mirror-name."""
        if not name or name.startswith(".") or "/" in name or not name.isprintable():
            raise Refusal("mirror-name", f"{name!r} does not name a mirror")
        directory = f"{_mirrors()}/{name}"
        self.root = _root(directory)
        _use(directory)

    def has(self, part: Part) -> bool:
        """Whether all commits of a part are there, with all they need."""
        where = self._store(part)
        return os.path.isdir(where) and set(part.commits) <= set(self.commits(part.store))

    def commits(self, store: str) -> list[str]:
        """The commits of a part that were taken in."""
        where = os.path.join(self.root, ".git", store) if store else f"{self.root}/.git"
        return [ref.rpartition("/")[2] for ref in Git(where).refs(_REFS)] if os.path.isdir(where) else []

    def take(self, part: Part, pack: bytes) -> None:
        """Takes in a pack, by git in a jail; what lacks anything is refused.

        Raises:
            Refusal: base-unreadable.
        """
        os.makedirs(self.root, 0o700, exist_ok=True)
        descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # several processes of this machine need it at the same time
            if not self.has(part):
                self._take(part, pack)
        finally:
            os.close(descriptor)

    def _take(self, part: Part, pack: bytes) -> None:
        _make(f"{self.root}/.git", part.digits, bare=False)
        where = self._store(part)
        if part.store:
            _make(where, part.digits, bare=True)
        git = Git(where)
        with Scratch() as scratch, Held("a base of rows, until refs hold it") as held:
            quarantine = Quarantine(scratch.path("quarantine"), f"{where}/objects")
            os.makedirs(f"{quarantine.directory}/pack", 0o700)
            skeleton = jailed_git.Skeleton(git)
            reading = Reading(skeleton.path, quarantine.directory, skeleton.stores)
            try:
                with Jailed(_INDEX, reading, stdin=pack, writes=True, patience=_PATIENCE) as jailed:
                    jailed.check("reading the pack of a base")
                crossing.check_packs_alone(quarantine, "reading the pack of a base")
                wanted = "".join(f"{oid}^{{commit}}\n" for oid in part.commits)
                words = ("rev-list", "--objects", "--quiet", "--stdin", "--not", "--all")
                git.run(*words, input=wanted.encode(), environment=quarantine.environment)
            except GitFailed as failure:
                raise Refusal("base-unreadable", "a base lacks objects", context=Rows(failure.context)) from None
            except Refusal as refusal:
                raise _renamed(refusal) from None
            held.add(quarantine.directory, git.common_dir)
            for oid in part.commits:
                git.variant(hold=held.locks).run("update-ref", f"{_REFS}/{oid}", oid)

    def _store(self, part: Part) -> str:
        if part.store and (part.store.split("/")[0] != "modules" or {"", ".", ".."} & set(part.store.split("/"))):
            raise Refusal("base-unreadable", f"{part.store!r} does not name a submodule's repository")
        return os.path.join(self.root, ".git", part.store) if part.store else f"{self.root}/.git"


def _make(git_dir: str, digits: int, *, bare: bool) -> None:
    if os.path.lexists(f"{git_dir}/HEAD"):
        return
    for name in ("objects", "refs"):
        os.makedirs(f"{git_dir}/{name}", 0o700, exist_ok=True)
    config = _CONFIG.format(1 if digits == 64 else 0, json.dumps(bare)) + (_SHA256 if digits == 64 else "")
    for name, content in (("config", config), ("HEAD", "ref: refs/heads/none\n")):
        with open(f"{git_dir}/{name}", "w", encoding="ascii") as file:
            file.write(content)
