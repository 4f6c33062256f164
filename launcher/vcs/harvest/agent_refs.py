"""HEAD and branches of a git directory that an agent wrote, read without git and without trust.

Any name there may be a symbolic link, a FIFO that never answers, a device, or a file without end. So everything is
opened below one descriptor without following a link, must be a regular file, and is read up to a bound.
Formats: gitrepository-layout(5), git-pack-refs(1), git-check-ref-format(1).

Launch path (a session's end): `os` and the system calls.
"""

import errno

from launcher.lean import os
from launcher.safefs import walk
from launcher.vcs.private import record as records
from launcher.vcs.private.record import GIT, RECORD, Record, Repository
from policy.errors import Refusal
from policy.pasted import cited

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MOST_PACKED = 16 << 20
"""Bytes of `packed-refs`: some two hundred thousand refs."""
MOST_LOOSE = 10_000
"""Entries below `refs/heads` that are looked at."""
_MOST_LINE = 4096
_HEX = frozenset("0123456789abcdef")
_DEEPEST = 5
"""Symbolic refs that git follows one after the other."""
_NO_PSEUDO = ("HEAD", "ORIG_HEAD", "FETCH_HEAD", "REBASE_HEAD", "AUTO_MERGE", "shallow")

MOST_STASHED = 1000
"""Stashes that are taken over."""

HEADS = "refs/heads/"
TAGS = "refs/tags/"
STASH = "refs/stash"


_MOST_BELOW = 100_000
"""Directories in which a repository is looked for. Git LFS has as many as 65,792."""


class AgentRefs:
    """The refs of one agent-written git directory. Close it, or use it as a context manager."""

    __slots__ = ("_descriptor", "_digits", "path")

    def __init__(self, tree: str, inside: str, digits: int) -> None:
        """Opens the directory.

        Args:
            tree: a directory of ours; nothing that leads to it is the agent's.
            inside: the git directory's name below it, "" for `tree` itself.
            digits: of an object id: 40 or 64.

        Refusals: harvest-git-replaced: it is not a directory that can be reached without links.
        """
        self.path = f"{tree}/{inside}" if inside else tree
        self._digits = digits
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            top = os.open(tree, flags)
            if not inside:
                self._descriptor = top
                return
            try:
                self._descriptor = walk.open_inside(top, inside, flags)
            finally:
                os.close(top)
        except OSError as error:
            raise Refusal(
                "harvest-git-replaced",
                "the private git directory cannot be read",
                context=f"{self.path}: {error.strerror}; the agent removed or replaced it",
                hint="commits that were only there are lost; files in the worktree are as the agent left them",
            ) from None

    def __enter__(self) -> "AgentRefs":
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._descriptor)

    def head(self, place: str = "") -> tuple[str | None, str | None]:
        """Where HEAD stands: on which branch (None when detached), at which commit (None on a branch not yet born).

        Args:
            place: one of `places`.

        Refusals: harvest-head-unreadable, harvest-refs-too-large.
        """
        content = self._read(f"{place}/HEAD".lstrip("/"), _MOST_LINE)
        text = "" if content is None else content.decode("utf-8", "surrogateescape").rstrip()
        if text.startswith("ref:"):
            ref = text[4:].strip()
            if not ref.startswith(HEADS) or not plausible(ref):
                raise _unreadable(self.path, "it does not name a branch")
            return ref, self.branch(ref)
        if oid := self._oid(text):
            return None, oid
        raise _unreadable(
            self.path, "it is missing, or not a regular file" if content is None else "it is not an object id"
        )

    def branch(self, ref: str) -> str | None:
        """The object id that a branch (its full name) has; None when there is no such branch.

        Refusals: harvest-ref-unreadable: something else than a file has its name, and hides what was committed.
        """
        content = self._read(ref, _MOST_LINE)
        if content is None:
            if self._hidden(ref):
                raise self._obstructed(ref)
            return self._packed_one(ref)
        return self._oid(content.decode("ascii", "replace").strip()) or None

    def _packed_one(self, ref: str) -> str | None:
        """The object id of one branch in `packed-refs`, found without reading the thousands beside it one by one."""
        content = self._read("packed-refs", MOST_PACKED) or b""
        end = content.find(b" " + ref.encode("utf-8", "surrogateescape") + b"\n")
        start = end - self._digits
        if start < 0 or (start and content[start - 1 : start] != b"\n"):
            return None
        return self._oid(content[start:end].decode("ascii", "replace")) or None

    def below(self, top: str, *, whole: bool = False) -> dict[str, str]:
        """Refs by full name: plain files and packed ones below a directory. More than `MOST_LOOSE` are a Refusal.

        With `whole`, so is whatever hides any (harvest-ref-unreadable). What leads nowhere, as a crash leaves it, has
        the id "": a file, a name that is packed twice, and `packed-refs` itself for a line that names no ref.
        """
        found: dict[str, str] = {}
        prefix = f"{top}/".encode()
        packed = self._read("packed-refs", MOST_PACKED)
        if whole and packed is None and self._there("packed-refs"):
            raise self._obstructed("packed-refs")
        for line in _lines(packed or b""):
            ours = line.startswith(prefix, self._digits + 1) and not line.endswith(b".lock")
            oid = self._oid(line[: self._digits + 1].decode("ascii", "replace")) if ours else ""
            if oid:
                name = line[self._digits + 1 :].decode("utf-8", "surrogateescape")
                found[name] = "" if whole and found.get(name, oid) != oid else oid
            elif whole and line[:1] not in (b"#", b"^"):
                found["packed-refs"] = ""
        return found | self._loose(self._files(top, whole=whole), whole=whole)

    def linked(self) -> dict[str, str]:
        """Refs that are a linked worktree's own, by git's names for them: detached HEADs above all (gitglossary(7)).

        Refusals: harvest-ref-unreadable, harvest-refs-too-large.
        """
        paths = self._files("worktrees", whole=True)
        return self._loose((path for path in paths if path.split("/")[2:3] in ([], ["HEAD"], ["refs"])), whole=True)

    def pseudo(self) -> dict[str, str]:
        """Refs that somebody has made beside HEAD, here or in a linked worktree's git directory (gitglossary(7)).

        Refusals: harvest-ref-unreadable, harvest-refs-too-large.
        """
        beside = ((place, name) for place in self.places() for name, _ in self._listing(place or ".") or ())
        paths = (f"{place}/{name}".lstrip("/") for place, name in beside if is_pseudo(name))
        return self._loose(filter(self._is_short, paths), whole=False)

    def left(self, branch: str | None) -> dict[str, str]:
        """Commits made on no `branch`, where something else is checked out now (`git submodule update` does that, too).

        By their ids, of linked worktrees, too. What was amended, rebased or reset was given up.

        Refusals: harvest-ref-unreadable, harvest-refs-too-large.
        """
        from launcher.vcs.harvest.head_log import left_behind  # no session's end asks

        found: dict[str, str] = {}
        room = MOST_PACKED  # for all of them: one log may have many names
        for place in self.places():
            log = self._read(f"{place}/logs/HEAD".lstrip("/"), room) or b""
            room -= len(log)
            began = "" if place else branch  # nobody knows of a linked one's
            is_loose = not (self._read(f"{place}/HEAD".lstrip("/"), _MOST_LINE) or b"").startswith(b"ref:")
            found |= {oid: oid for oid in left_behind(log, began, loose=is_loose) if self._oid(oid)}
        return found

    def _is_short(self, path: str) -> bool:
        try:
            return self._look(path).st_size < _MOST_LINE
        except OSError:
            return False  # a link, which is followed nowhere

    def under_way(self, names: "Iterable[str]") -> list[tuple[str, str]]:
        """Which of `names` are there, in which of `places`. Refusals: as there."""
        places = self.places()
        return [(place, name) for place in places for name in names if self._there(f"{place}/{name}".lstrip("/"))]

    def places(self) -> list[str]:
        """This git directory ("") and those of linked worktrees, by their names.

        Refusals: harvest-ref-unreadable, harvest-refs-too-large.
        """
        linked = self._listing("worktrees")
        if linked is None:
            raise self._obstructed("worktrees")
        if len(linked) > MOST_LOOSE:
            raise _too_many(f"more than {MOST_LOOSE} entries below {self.path}/worktrees")
        return ["", *(f"worktrees/{name}" for name, _ in linked)]

    def repositories(self) -> list[str]:
        """Git directories below this one: submodules', and what somebody has put there.

        Refusals: harvest-ref-unreadable, harvest-refs-too-large.
        """
        found: list[str] = []
        pending, seen = ["."], 0
        while pending:
            here = pending.pop()
            listing = self._listing(here)
            if listing is None:
                raise self._obstructed(here)
            below = [f"{here}/{name}" for name, directory in listing if directory]
            seen += len(below)
            if seen > _MOST_BELOW or len(listing) > MOST_LOOSE:
                raise _too_many(f"more entries below {self.path} than can be looked through")
            if {"HEAD", "objects"} <= {name for name, _ in listing}:
                found.append(here[2:])
            pending += below
        return found[1:]

    def has_objects(self) -> bool:
        """Whether there are objects, which it does not only borrow.

        Refusals: harvest-ref-unreadable, harvest-refs-too-large.
        """
        return any(not path.startswith("objects/info/") for path in self._files("objects", whole=True))

    def _loose(self, paths: "Iterable[str]", *, whole: bool) -> dict[str, str]:
        found: dict[str, str] = {}
        for path in paths:
            if path.endswith(".lock"):  # never a ref (git-check-ref-format(1))
                continue
            content = self._read(path, _MOST_LINE)
            if whole and content is None and self._there(path):
                raise self._obstructed(path)
            text = _text(content)
            for _ in range(_DEEPEST if whole else 0):
                target = text[4:].strip() if text.startswith("ref:") else "refs/"
                if target.startswith("refs/"):
                    break
                text = _text(self._read(target, _MOST_LINE))  # nothing else leads to a ref with a name beside HEAD
            if oid := self._oid(text):
                found[path] = oid
            elif whole and content is not None and not (text[:4] == "ref:" and text[4:].strip().startswith("refs/")):
                found[path] = ""
        return found

    def stash(self) -> list[str]:
        """What `git stash list` names, the oldest first: in a log, and the last one in a ref (git-stash(1)).

        Refusals: harvest-ref-unreadable, harvest-refs-too-large.
        """
        found: dict[str, None] = {}
        log = self._read(f"logs/{STASH}", MOST_PACKED)
        if log is None and self._there(f"logs/{STASH}"):
            raise self._obstructed(f"logs/{STASH}")
        for line in _lines(log or b""):
            oid = self._oid(line[self._digits + 1 : 2 * self._digits + 2].decode("ascii", "replace"))
            if not oid:
                raise self._obstructed(f"logs/{STASH}", "git cannot read one of its lines")
            found[oid] = None
            if len(found) > MOST_STASHED:
                raise _too_many(f"more than {MOST_STASHED} stashes")
        if last := self.branch(STASH):  # git removes the log with the last one: a ref that is gone alone was lost
            found[last] = None
        return list(found)

    def _hidden(self, ref: str) -> bool:
        """Whether what has a ref's name, or leads to it, is neither a file nor a directory."""
        try:
            return self._look(ref).st_mode & 0o170000 not in (0o100000, 0o040000)
        except OSError as error:
            return error.errno not in (errno.ENOENT, errno.ENOTDIR)

    def _there(self, path: str) -> bool:
        """Whether anything has that name, or something on the way to it keeps that from being known."""
        try:
            self._look(path)
        except OSError as error:
            return error.errno != errno.ENOENT
        return True

    def _look(self, path: str) -> "os.stat_result":
        descriptor = walk.open_inside(self._descriptor, path, os.O_PATH | os.O_NOFOLLOW)
        try:
            return os.fstat(descriptor)
        finally:
            os.close(descriptor)

    def _obstructed(self, path: str, why: str = "it should be a file; the agent put something else there") -> Refusal:
        what = f"branch {path.removeprefix(HEADS)}" if path.startswith(HEADS) else path
        return Refusal(
            "harvest-ref-unreadable",
            f"the agent's {what} cannot be read",
            context=f"{cited(f'{self.path}/{path}')}: {why}",
            hint="its commits are still in that directory: git reflog, in a jail of the worktree, lists them",
        )

    def _files(self, top: str, *, whole: bool = False) -> list[str]:
        """What is below a directory and is none. More than `MOST_LOOSE` entries are a Refusal.

        With `whole` a directory that cannot be listed is one (harvest-ref-unreadable), too.
        """
        found: list[str] = []
        pending, seen = [top], 0
        while pending:
            here = pending.pop()
            listing = self._listing(here)
            if whole and listing is None:
                raise self._obstructed(here)
            for name, directory in listing or ():
                seen += 1
                if seen > MOST_LOOSE:
                    raise _too_many(f"more than {MOST_LOOSE} entries below {self.path}/{top}")
                if directory:
                    pending.append(f"{here}/{name}")
                else:
                    found.append(f"{here}/{name}")
        return found

    def changed_since(self, time: int, own: str | None) -> bool:
        """Whether a branch beside `own`, a tag or a stash may have been made or moved after `time` (ns).

        The lock that a killed git has left counts: a harvest removes it.
        The time of a file's last change is the kernel's, and no agent can set it back.
        """
        try:
            paths = [path for top in (HEADS, TAGS) for path in self._files(top[:-1]) if path != own]
        except Refusal:
            return True
        return any(self._changed(path) > time for path in (*paths, "packed-refs", STASH, f"logs/{STASH}"))

    def _changed(self, path: str) -> int:
        try:
            return self._look(path).st_ctime_ns
        except OSError:
            return 0

    def _oid(self, text: str) -> str:
        """The object id that git reads at the beginning of a ref: in either case, whatever is behind a blank; or ""."""
        oid, beyond = text[: self._digits].lower(), text[self._digits :]
        whole = len(oid) == self._digits and _HEX.issuperset(oid)
        return oid if whole and (not beyond or beyond[0].isspace()) else ""

    def _listing(self, path: str) -> list[tuple[str, bool]] | None:
        """Names in a directory, and whether each is one; None for what cannot be listed, [] for what is not there."""
        try:
            fd = walk.open_inside(self._descriptor, path, os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno in walk.ABSENT:
                return [] if error.errno == errno.ENOENT else None
            raise
        found = []
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    found.append((entry.name, entry.is_dir(follow_symlinks=False)))
                    if len(found) > MOST_LOOSE:
                        break
        finally:
            os.close(fd)
        return sorted(found)

    def _read(self, path: str, limit: int) -> bytes | None:
        """Content of a regular file; None when it is absent or something else. Longer than `limit` is a Refusal."""
        if "\0" in path:
            return None
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        try:
            fd = walk.open_inside(self._descriptor, path, flags)
        except OSError as error:
            if error.errno in walk.ABSENT:
                return None
            raise
        try:
            if os.fstat(fd).st_mode & 0o170000 != 0o100000:
                return None
            content = walk.read_up_to(fd, limit)
        finally:
            os.close(fd)
        if content is None:
            raise _too_many(f"{cited(f'{self.path}/{path}')} holds more than {limit} bytes")
        return content


def is_pseudo(name: str) -> bool:
    """Whether a file beside HEAD that holds an id may be somebody's ref: no note of git's on what was given up."""
    return name not in _NO_PSEUDO


def _text(content: bytes | None) -> str:
    return (content or b"").decode("utf-8", "surrogateescape").strip()


def plausible(ref: str) -> bool:
    """Whether `ref` may be the full name of a branch, after git-check-ref-format(1). Agents choose names freely.

    Stricter in one point: names that no terminal can show are none, because they end up in messages.
    """
    if not ref.startswith(HEADS) or len(ref) > 1000 or not ref.isprintable():
        return False
    if ref.endswith(("/", ".")) or ".." in ref or "@{" in ref or any(char in ref for char in " ~^:?*[\\\x7f"):
        return False
    parts = ref.split("/")
    if parts[2].startswith("-") or ref == f"{HEADS}HEAD":
        return False
    return all(part and not part.startswith(".") and not part.endswith(".lock") for part in parts)


def _lines(content: bytes) -> "Iterator[bytes]":
    """Lines one by one: a file of short ones would take thirty times its size."""
    start = 0
    while start < len(content):
        end = content.find(b"\n", start)
        end = len(content) if end == -1 else end
        yield content[start:end]
        start = end + 1


def _unreadable(path: str, why: str) -> Refusal:
    return Refusal(
        "harvest-head-unreadable",
        "the private repository's HEAD points nowhere",
        context=f"{path}/HEAD: {why}",
        hint="name what to harvest: paddock worktree harvest --branch NAME",
    )


def _too_many(why: str) -> Refusal:
    return Refusal(
        "harvest-refs-too-large",
        "the private repository has too many refs to harvest",
        context=why,
        hint="nothing is lost; delete some, with git branch -D and git pack-refs --all: paddock run -- bash",
    )


# What an agent has committed: for each repository of a worktree the commit to take over, and branches beside it.
#
# Read from the private git directory without git (`agent_refs`). Launch path (a session's end): no imports but the
# system calls' and the record's.


class Tip:
    """What one repository's private git directory holds.

    Attributes:
        repository: of the record.
        new: the commit to take over: the checked-out branch's, or HEAD's when it was detached. None when there is none.
        on: full name of the branch that HEAD is on now, None when it is detached or leads nowhere.
        detached: the commit of a HEAD that was on a branch and is detached now, else None.
    """

    __slots__ = ("detached", "new", "on", "repository")

    def __init__(self, repository: Repository, new: str | None, on: str | None, detached: str | None = None) -> None:
        self.repository = repository
        self.new = new
        self.on = on
        self.detached = detached

    @property
    def moved(self) -> bool:
        """Whether there is something to take over."""
        return self.new is not None and self.new != self.repository.base


def read(directory: str, record: Record) -> tuple[Tip, ...]:
    """The tips of all repositories of a record, in its order.

    Refusals: what `AgentRefs` refuses of the worktree's own repository. A submodule whose private git directory has
    been removed (`git submodule deinit`) has nothing to take over.
    """
    return tuple(_tip(directory, repository) for repository in record.repositories)


def opened(directory: str, repository: Repository) -> AgentRefs:
    """The refs of one repository of a record, whose directory this is (`record.directory_of`)."""
    return AgentRefs(f"{directory}/{GIT}", repository.private, repository.digits)


def _tip(directory: str, repository: Repository) -> Tip:
    try:
        with opened(directory, repository) as refs:
            try:
                on, oid = refs.head()
            except Refusal as refusal:
                if refusal.reference != "harvest-head-unreadable" or repository.branch is None:
                    raise
                on, oid = None, None
            new = oid if repository.branch is None else refs.branch(repository.branch)
            return Tip(repository, new, on, oid if on is None and repository.branch is not None else None)
    except Refusal as refusal:
        if repository.private and refusal.reference in ("harvest-git-replaced", "harvest-head-unreadable"):
            return Tip(repository, None, None)
        raise


def unchanged(directory: str, record: Record) -> bool:
    """Whether nothing was committed and no branch was made or moved since the record was written, or last looked at.

    By reading a few files, for a session's end. True means: sure. Whatever is unusual gives False, and the harvest
    itself looks closely.
    """
    written = os.stat(f"{directory}/{RECORD}").st_mtime_ns
    for tip in read(directory, record):
        repository = tip.repository
        if tip.new != repository.base or tip.on != repository.branch:
            return False
        if further(directory, repository, written):
            return False
    return True


def further(directory: str, repository: Repository, written: int) -> bool:
    """Whether a branch beside the own one may have been made or moved since `written` (see `changed_since`)."""
    with opened(directory, repository) as refs:
        return refs.changed_since(written, repository.branch)


# The end of a session with a private git directory: harvest, if there is anything to harvest.
#
# Most sessions end without a commit, and then it costs the reading of a few files and no process.


HARVEST_JOURNAL = "journal"


def harvest_due(directory: str) -> bool:
    """Whether a harvest has anything to do; what is unusual counts as something. No process is started.

    Refusals: git-record-damaged.
    """
    record = records.read(directory)
    if record is None:
        return False
    if os.path.lexists(f"{directory}/{records.HARVEST}/{HARVEST_JOURNAL}"):
        return True
    try:
        return not unchanged(directory, record)
    except (Refusal, OSError):
        return True
