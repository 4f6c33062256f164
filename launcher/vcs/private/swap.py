"""Where a jail has no mounts: `.git` on the disk leads to the private git directory while sessions live there.

What is changed is written down first (`swapped`, see `record`), so whoever has the directory's lock alone and
finds that file there knows that no session lives any more, and docks: the pointers lead to the trusted git directories
again. Every step may be repeated; a SIGKILL between any two leaves a state that the next one completes.

While it is swapped, git outside of the jail would obey what the agent writes. Paddock's own git never looks at `.git`
then: it is given the trusted git directory by the record, or by `originals`.

Launch path of jails without mounts: `os` and the system calls.
"""

from launcher.lean import os
from launcher.safefs import walk
from launcher.vcs.private import lock
from launcher.vcs.private import record as records
from launcher.vcs.private.pointer import NAME, Holder, named, target
from launcher.vcs.private.record import GIT, SWAPPED_NOW, Record
from policy.errors import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


# What the `.git` files of a worktree were before `swap` made them lead elsewhere: written down until they are back.


_MAGIC = b"paddock-swap 1"
_END = b"end"
_FIELDS = 9


class SwapEntry:
    """One `.git` file. Immutable by custom.

    Attributes:
        path: the directory that holds it, canonical.
        git_dir: the trusted git directory that it leads to.
        content: of the file.
        mode: of the file: permission bits.
        owner: user and group.
        time: of its last change, in nanoseconds.
        mark: what told this very file from any other; see `_mark`.
        swapped: what is written in its place.
    """

    __slots__ = ("content", "git_dir", "mark", "mode", "owner", "path", "swapped", "time")

    def __init__(
        self,
        path: str,
        git_dir: str,
        content: bytes,
        mode: int,
        owner: tuple[int, int],
        time: int,
        mark: str,
        swapped: bytes,
    ) -> None:
        self.path = path
        self.git_dir = git_dir
        self.content = content
        self.mode = mode
        self.owner = owner
        self.time = time
        self.mark = mark
        self.swapped = swapped

    def moved(self, path: str) -> "SwapEntry":
        """The same in another directory."""
        return SwapEntry(path, self.git_dir, self.content, self.mode, self.owner, self.time, self.mark, self.swapped)


def write_journal(directory: str, serial: str, entries: "Iterable[SwapEntry]") -> None:
    """Writes the entries down, synced. Neither a path nor a pointer holds a NUL, so that separates the fields."""
    words = [_MAGIC, serial.encode()]
    for entry in entries:
        words += [os.fsencode(entry.path), os.fsencode(entry.git_dir), entry.content, entry.swapped]
        words += [str(number).encode() for number in (entry.mode, *entry.owner, entry.time)]
        words.append(entry.mark.encode())
    walk.replace(f"{directory}/{SWAPPED_NOW}", b"\0".join((*words, _END)))


def remove_journal(directory: str) -> None:
    """Removes what is written down: all of it is back (OSError). Not synced: what is back may be put back once more."""
    try:
        os.unlink(f"{directory}/{SWAPPED_NOW}")
    except FileNotFoundError:
        return


def read_journal(directory: str) -> tuple[str, tuple[SwapEntry, ...]] | None:
    """What is written down: (serial, the entries); None when nothing is swapped."""
    path = f"{directory}/{SWAPPED_NOW}"
    try:
        with open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise journal_failed(directory, path, error) from None
    magic, *words = content.split(b"\0")
    if magic != _MAGIC or len(words) < 2 + _FIELDS or words[-1] != _END or (len(words) - 2) % _FIELDS:
        raise Refusal(
            "swap-damaged",
            f"{path} is not what Paddock writes",
            context="it records which git directories a worktree's .git files belong to",
            hint="write them by hand (gitdir: PATH), or git worktree repair from the main checkout; then remove it",
        )
    entries = []
    for at in range(1, len(words) - 1, _FIELDS):
        where, git_dir, original, swapped, mode, uid, gid, time, mark = words[at : at + _FIELDS]
        entries.append(SwapEntry(os.fsdecode(where), os.fsdecode(git_dir), original, int(mode), (int(uid), int(gid)),
                             int(time), mark.decode(), swapped))  # fmt: skip
    return words[0].decode(), tuple(entries)


def journal_failed(directory: str, path: str, error: OSError) -> Refusal:
    """The Refusal for a `.git` entry that cannot be put back."""
    return Refusal(
        "dock-failed",
        f"{path} cannot be repaired",
        context=error.strerror or str(error),
        hint=f"before you run git there: paddock worktree dock; {directory}/{SWAPPED_NOW} has its old content",
    )


BUSY = "paddock is at work here: "
"""How a lock of `git worktree lock` begins that is Paddock's own."""


class Docked:
    """What docking did with one `.git` entry.

    Attributes:
        path: the directory that holds it.
        action: ``right`` (nothing to do) or ``restored``; ``gone`` when the directory of a submodule is.
        aside: where what an agent had put there is now; "" when it was nothing.
        in_place: whether what `swap` had put there was still there, or had not been put yet.
    """

    __slots__ = ("action", "aside", "in_place", "path")

    def __init__(self, path: str, action: str, aside: str = "", *, in_place: bool = True) -> None:
        self.path = path
        self.action = action
        self.aside = aside
        self.in_place = in_place

    def as_dict(self) -> dict[str, str]:
        """Plain data for ``--json``."""
        return {"path": self.path, "action": self.action, "aside": self.aside}


def is_swapped(directory: str) -> bool:
    """Whether the pointers of the worktree whose private git directory is in `directory` lead there, or may."""
    return os.path.lexists(f"{directory}/{SWAPPED_NOW}")


def swap(directory: str, record: Record) -> None:
    """Makes every `.git` file of a worktree lead to its private git directory. For who has the lock alone.

    Raises:
        Refusal: git-pointer-changed: what lies at `.git` is not what the record knows. Nothing is changed then.
        OSError: one could not be written. What was changed is changed back.
    """
    entries = tuple(_looked(directory, record.worktree, one.path, one.git_dir, one.private)
                    for one in record.repositories)  # fmt: skip
    serial = os.urandom(6).hex()
    write_journal(directory, serial, entries)
    try:
        for entry in entries:
            _hold(entry, os.path.basename(directory))
        for entry in entries:
            with Holder(record.worktree, entry.path) as holder:
                # Whatever a power failure makes of it, it is written down what it was.
                holder.put(entry.swapped, _temporary(serial), mode=entry.mode, owner=entry.owner, lasting=False)
    except BaseException:
        dock(directory)
        raise


def dock(directory: str) -> tuple[Docked, ...]:
    """Puts back what `swap` has replaced. For who has the lock alone, so that no jail of the worktree lives.

    Nothing is done while the worktree's directory is missing: it may have been moved or not be mounted, and is docked
    when it is there again. After a Refusal (dock-failed, swap-damaged) the journal still says what is to be done.
    """
    found = read_journal(directory)
    if found is None:
        return ()
    serial, entries = found
    root = entries[0].path
    if not os.path.lexists(root):
        return ()
    done = tuple(_back(directory, root, entry, serial) for entry in entries)
    if not all(docked.in_place for docked in done):
        _drop_moved(directory, root, entries)
    for entry in entries:
        _release(entry)
    remove_journal(directory)
    return done


def follow(directory: str, root: str) -> tuple[Docked, ...]:
    """Docks a worktree that was moved while its pointers led to the private git directory.

    Where it is now is written down first: from then on whoever docks does it there.

    Args:
        root: where the worktree is now, on the word of its `.git`, which a command may have written: so only where it
            was there must be nothing any more.

    Refusals: worktree-moved; as `dock`; state-unusable.
    """
    try:
        descriptor = lock.opened(directory)
    except OSError as error:
        raise journal_failed(directory, directory, error) from None
    try:
        alone = lock.alone(descriptor, wait=False)
        found = read_journal(directory)
        was = found[1][0].path if found is not None else ""
        if not alone or found is None or os.path.lexists(was):
            why = "something else is there" if alone else "a session is running in it"
            raise Refusal(
                "worktree-moved",
                f"{root} cannot be taken for {was or 'a worktree'} now: {why}",
                context=f"its .git points to a private git directory, which an agent writes: {directory}/{GIT}",
                hint="run no git there until it is repaired"
                + ("; wait for the session's end, then repair again" if not alone else "; remove the .git of a copy"),
            )
        serial, entries = found
        if was != root:
            there = [entry.moved(f"{root}{entry.path[len(was) :]}") for entry in entries]
            try:
                write_journal(directory, serial, there)
            except OSError as error:
                raise journal_failed(directory, f"{root}/{NAME}", error) from None
        return dock(directory)
    finally:
        os.close(descriptor)


def dock_if_last(descriptor: int, directory: str) -> tuple[Docked, ...]:
    """Docks at the end of a session, unless another one lives in the worktree; that one does it."""
    # Of sessions that end together one has the lock alone in the end: a lock that cannot be raised is lost (flock(2)).
    return dock(directory) if is_swapped(directory) and lock.alone(descriptor, wait=False) else ()


def report_lines(done: "Iterable[Docked]") -> list[str]:
    """What the user should know of it: where an agent had something else at `.git`."""
    return [
        f"{docked.path}/{NAME} was replaced by the command; the replacement is in {docked.aside}"
        for docked in done
        if docked.aside
    ]


def originals(state: str) -> dict[str, bytes]:
    """Docks wherever every session has ended; what `.git` files are where one lives: path -> content.

    Args:
        state: Paddock's state directory. A worktree that cannot be docked counts as one where a session lives: who
            wants to use it is told why.
    """
    found: dict[str, bytes] = {}
    try:
        names = os.listdir(f"{state}/git")
    except OSError:
        return found
    for name in names:
        directory = f"{state}/git/{name}"
        if is_swapped(directory):
            found.update(_originals(directory))
    return found


def _originals(directory: str) -> dict[str, bytes]:
    try:
        settle(directory)
    except Refusal:
        pass  # whoever wants to use the worktree comes to the same place, and is told
    try:
        known = read_journal(directory)
    except Refusal:
        return {}  # what its `.git` files lead to is refused by `checkout.find`
    return {} if known is None else {f"{entry.path}/{NAME}": entry.content for entry in known[1]}


def settle(directory: str) -> tuple[Docked, ...]:
    """Docks if no session lives in the worktree.

    Refusals: as `dock`; state-unusable.
    """
    try:
        descriptor = lock.opened(directory)
    except OSError as error:
        raise journal_failed(directory, directory, error) from None
    try:
        return dock_if_last(descriptor, directory)
    finally:
        os.close(descriptor)


def _looked(directory: str, root: str, path: str, git_dir: str, private: str) -> SwapEntry:
    """A `.git` file as it is, which must be one that leads to the trusted git directory."""
    try:
        with Holder(root, path) as holder:
            found, content = holder.stat(), holder.read()
    except OSError as error:
        raise _changed(path, error.strerror or str(error)) from None
    if found is None or content is None or target(content, path) != git_dir:
        raise _changed(path, f"it does not point to {git_dir}")
    if named(content, path) != git_dir:  # what is put back later would lead wherever the link leads by then
        raise _changed(path, f"it points to {git_dir} by way of a symbolic link or `..`, which may change",
                       "paddock worktree dock repairs it; run no git there before")  # fmt: skip
    place = f"{directory}/{GIT}/{private}" if private else f"{directory}/{GIT}"
    owner = (found.st_uid, found.st_gid)
    return SwapEntry(path, git_dir, content, found.st_mode & 0o777, owner, found.st_mtime_ns, _mark(found),
                 os.fsencode(f"gitdir: {place}\n"))  # fmt: skip


def _back(directory: str, root: str, entry: SwapEntry, serial: str) -> Docked:
    """One `.git` entry is what it was. What an agent has put there is moved to where no git looks."""
    try:
        try:
            holder = Holder(root, entry.path)
        except (FileNotFoundError, NotADirectoryError):
            if entry.path == root:
                raise
            # The agent has removed the submodule's directory, or put a link there: `git submodule update` makes it.
            return Docked(entry.path, "right", in_place=False)
        with holder:
            holder.drop(_temporary(serial))
            found = holder.stat()
            if found is not None and _mark(found) == entry.mark:
                return Docked(entry.path, "right")
            content = holder.read()
            aside = "" if content in (entry.swapped, entry.content) else holder.put_aside(directory)
            try:
                holder.put(entry.content, _temporary(serial), mode=entry.mode, owner=entry.owner, time=entry.time)
            except OSError:
                holder.drop(NAME)  # the disk is full, say: git outside had better find nothing than what was there
                raise
            return Docked(entry.path, "restored", aside, in_place=content == entry.swapped)
    except OSError as error:
        raise journal_failed(directory, f"{entry.path}/{NAME}", error) from None


def _drop_moved(directory: str, root: str, entries: tuple[SwapEntry, ...]) -> None:
    """Removes pointers to the private git directories that lie elsewhere now: the command has moved a submodule.

    Git around it would go there by itself. What the next session needs is made anew by `git submodule update`.
    """
    places = {entry.path for entry in entries}
    targets = [target(entry.swapped, "/") for entry in entries]
    for path, file in walk.files(root):
        here = os.path.dirname(f"{root}/{path}")
        if file.name == NAME and here not in places:
            try:
                with Holder(root, here) as holder:
                    if target(holder.read(), here) in targets:
                        holder.drop(NAME)
            except OSError as error:
                raise journal_failed(directory, f"{here}/{NAME}", error) from None


def _temporary(serial: str) -> str:
    return f"{NAME}.paddock-{serial}"


def _mark(found: "os.stat_result") -> str:
    """Tells a file from all others, and from what it was before a change: nobody sets the ctime back."""
    return f"{found.st_dev}:{found.st_ino}:{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}"


def _hold(entry: SwapEntry, owner: str) -> None:
    """Locks a linked worktree as `git worktree lock` does: without a `.git`, git elsewhere would prune it as gone."""
    if not os.path.lexists(f"{entry.git_dir}/commondir"):
        return
    try:
        fd = os.open(f"{entry.git_dir}/locked", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        return  # the user's own
    try:
        os.write(fd, os.fsencode(f"{BUSY}{owner}\n"))
    finally:
        os.close(fd)


def _release(entry: SwapEntry) -> None:
    """Takes Paddock's lock away; one of the user's stays."""
    path = f"{entry.git_dir}/locked"
    try:
        with open(path, "rb") as file:
            ours = file.read(200).startswith(BUSY.encode())
    except FileNotFoundError:
        return
    if ours:
        os.unlink(path)


def _changed(path: str, why: str, hint: str = "") -> Refusal:
    return Refusal(
        "git-pointer-changed",
        f"{path}/{NAME} has changed since this launch was planned",
        context=why,
        hint=hint or "check it, then run the command again; `git worktree repair` fixes moved worktrees",
    )


# Docking: the `.git` entries of a worktree lead to the trusted git directories again.
#
# Where mounts hold a jail they never led anywhere else. Where they do not, or when something in the worktree was
# damaged after all, what lies at `.git` may be an agent's work: it is moved out of the worktree, into a directory
# beside the private one where no git looks for it, before the pointer is written. Host git never meets it.


def dock_worktree(directory: str) -> tuple[Docked, ...]:
    """Puts the `.git` entries of a worktree and its submodules right.

    Refusals: dock-no-record, dock-busy (a session lives there), dock-main: the `.git` of a main checkout is the
    repository itself, and cannot be made anew; dock-failed.
    """
    descriptor = lock.opened(directory) if os.path.isdir(directory) else -1
    try:
        record = records.read(directory) if descriptor >= 0 else None
        if record is None:
            raise Refusal(
                "dock-no-record",
                "there is nothing to dock: no session has had a private git directory in this worktree",
                context=directory,
            )
        if not lock.alone(descriptor, wait=False):
            raise Refusal(
                "dock-busy", f"a session is running in {record.worktree}", hint="dock it when the session has ended"
            )
        before = dock(directory)
        # The worktree's own pointer first, then outermost to innermost.
        now = tuple(_put_right(directory, record, repository) for repository in record.repositories)
        known = {docked.path: docked for docked in before}
        return tuple(known.get(docked.path, docked) if docked.action == "right" else docked for docked in now)
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def leads_to(holder: Holder, git_dir: str) -> bool:
    """Whether a `.git` file leads to a git directory, and nobody could have it lead elsewhere later."""
    found = holder.stat()
    # Through another name of the same file an agent could write it later.
    return found is not None and found.st_nlink == 1 and named(holder.read(), holder.path) == git_dir


def point(holder: Holder, git_dir: str, directory: str, *, relative: bool) -> str:
    """Makes a `.git` file that leads to a git directory. Returns where what was there is now, in `directory`."""
    aside = holder.put_aside(directory)
    text = os.path.relpath(git_dir, holder.path) if relative else git_dir  # as git itself writes the two
    holder.put(os.fsencode(f"gitdir: {text}\n"), f".git.paddock-{os.urandom(6).hex()}")
    return aside


def _put_right(directory: str, record: records.Record, repository: records.Repository) -> Docked:
    path = repository.path
    entry = f"{path}/.git"
    try:
        try:
            holder = Holder(record.worktree, path)
        except (FileNotFoundError, NotADirectoryError):
            if not repository.name:
                raise
            # The agent has removed the submodule's directory, or put a link there: `git submodule update` makes it.
            return Docked(path, "gone")
        with holder:
            found = holder.stat()
            if repository.git_dir == entry:
                if found is None or found.st_mode & 0o170000 != 0o040000:
                    raise Refusal(
                        "dock-main",
                        f"{entry} was the repository itself, and is missing",
                        context="a main checkout contains its repository; there is nothing to restore it from",
                        hint="look for it beside the worktree, or restore it from a backup",
                    )
                return Docked(path, "right")
            if leads_to(holder, repository.git_dir) or (found is None and _is_given_up(record, repository)):
                return Docked(path, "right")
            aside = point(holder, repository.git_dir, directory, relative=bool(repository.name))
            return Docked(path, "restored", aside)
    except OSError as error:
        raise Refusal(
            "dock-failed", f"{entry} cannot be repaired", context=error.strerror or str(error),
            hint=f"do not run git in {record.worktree} until it is repaired: paddock worktree dock",
        ) from None  # fmt: skip


def _is_given_up(record: records.Record, repository: records.Repository) -> bool:
    """Whether the index around a submodule no longer has it: the files in its place are another branch's, say."""
    from launcher.vcs import gitlinks
    from launcher.vcs.git import Git

    outers = [outer for outer in record.repositories if repository.path.startswith(f"{outer.path}/")]
    around = max(outers, key=lambda outer: len(outer.path), default=None)
    if around is None:
        return False
    return repository.path[len(around.path) + 1 :] not in gitlinks.in_index(Git(around.git_dir))
