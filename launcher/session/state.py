"""Directories of a session and of its worktree, and their life.

``<state>/worktrees/<worktree id>/home`` is the private home: caches and logins survive from run to run.
``<state>/sessions/<session>/tmp`` is the private temp directory, which goes when the session ends. Where mounts are
possible the jail sees it as /tmp, and ``var-tmp`` beside it as /var/tmp; elsewhere ``tmp`` is a link to a directory
with a short name (`launcher.session.state`). The session's directory is locked (flock on the directory itself) as
long as any process of ours lives, so what a SIGKILL left behind is known by its free lock and removed by the next
session that ends.

Launch path: `os`, `fcntl`.
"""

import fcntl

from launcher.jail import syscalls
from launcher.lean import os
from launcher.safefs.remove import remove_tree
from launcher.session import inputs
from launcher.session.places import Places, made, make_private
from policy import promises
from policy.errors import Refusal, printable, unusable
from policy.plan import Plan, beneath

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# A temp directory with a short name, for jails without mounts of their own.
#
# Programmes put sockets there, and a socket's address has room for 107 bytes (unix(7)); the state directory's path
# alone may be longer. /run/user would be short too, but it is a small tmpfs that the user's desktop needs.
#
# Loaded by sessions on the backend landlock+guard: see launcher/jail/syscalls.py.

SHORT_TEMP_BASE = "/tmp"
SHORT_TEMP_PREFIX = "paddock-"


def make_short_temp(link: str) -> str:
    """Makes the directory and `link`, which leads to it. Returns its canonical path.

    The link comes first: whoever cleans up after a SIGKILL finds what was made. Where /tmp is no place to trust, it is
    an ordinary directory at `link` itself, and the answer is "".
    """
    base = inputs.resolved(SHORT_TEMP_BASE)
    if base is None or not _trusted(base):
        make_private(link)
        return ""
    path = f"{base}/{SHORT_TEMP_PREFIX}{os.urandom(5).hex()}"
    os.symlink(path, link)
    os.mkdir(path, 0o700)
    os.chmod(path, 0o700)  # whatever the umask
    return path


def remove_short_temp(link: str) -> list[str]:
    """Removes the directory that `link` leads to, unless it is somebody else's by now. Returns what is left."""
    path = os.readlink(link)
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return []
    except OSError as error:
        return [f"{path}: {error.strerror}"]
    own = found.st_mode & 0o170000 == 0o040000 and found.st_uid == os.geteuid()
    return remove_tree(path) if own and os.path.basename(path).startswith(SHORT_TEMP_PREFIX) else []


def _trusted(directory: str) -> bool:
    """Whether nobody else can rename or remove what this user makes there, and this user can make something."""
    try:
        found = os.lstat(directory)
    except OSError:
        return False
    if found.st_mode & 0o170000 != 0o040000 or not os.access(directory, os.W_OK | os.X_OK, effective_ids=True):
        return False
    return found.st_uid in (0, os.geteuid()) and (bool(found.st_mode & 0o1000) or not found.st_mode & 0o022)


LEFT_OPEN = "left-open"
"""File in a session's directory that names places of submodules (`launcher.vcs.private.planted`)."""

CGROUPS = "cgroups"
"""File in a session's directory that names the control groups it has made, for whoever cleans up after it."""

WRITES = "writes"
"""File in a session's directory: what its jail may write, each path ended by a NUL, its own worktree first."""

WRITES_IN = "writes-in"
"""Beside it: which directories these are, and lie in, as `launcher.vcs.private.writers.identities_of` gives it."""

BRINGS, SHOWN, COPIED = "brings", "shown", "copied"
"""The same of one that brings the user's own things: how, and their places in the private home (`session.brought`)."""

HOLDS = "holds"
"""Directory beside the sessions' of trees in which none may start for now (`launcher.vcs.private.writers`)."""

VOUCHES = "vouches"
"""File that changes whenever what git directories are trusted does (`launcher.vcs.written`)."""

_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
NAME_RULE = "1 to 64 letters, digits, dots, dashes and underscores; not starting with a dot or dash"

PRIVATE = (("/tmp", "tmp"), ("/var/tmp", "var-tmp"))
"""Directories that a jail with mounts has for itself, and their names in the session's directory."""

CONTROL, QUESTIONS = "control", "questions"
"""Names of sockets in a session's directory: for further commands, and for answers about refused hosts."""

PROOF_NAME, PROOF_BYTES = "paddock-session", 32
"""The memory file (memfd_create(2)) with what a client of the control socket must show: `Session.proof`."""

ANSWERS_PROOF = "paddock-answers"
"""The same for the socket for answers."""

_AF_UNIX = _SOCK_STREAM = 1
_BACKLOG = 128


class Session:
    """An open session. `close` ends it.

    Attributes:
        places: where its directories lie.
        name: its name.
        directory: its own, which no jail reaches.
        slots: the paths that the Plan's slots have inside the jail.
        brings: as given to `open_session`.
        private: directories that stand in for the machine's own: path inside -> path outside.
        proof: what clients of the control socket must know; b"" before `listen`. They read it from a memory file that
            this process holds, in /proc, where the kernel lets in nobody who lives in a jail (ptrace(2), access mode
            PTRACE_MODE_READ). Process ids would not do: to the jail's init, whoever is outside has none.
    """

    __slots__ = ("_lock", "_proof", "_shown", "brings", "directory", "name", "places", "private", "proof", "slots")

    def __init__(
        self, places: Places, name: str, directory: str, slots: dict[str, str], private: dict[str, str], lock: int
    ) -> None:
        self.places = places
        self.name = name
        self.directory = directory
        self.slots = slots
        self.brings: tuple[str, ...] = ()
        self.private = private
        self.proof = b""
        self._lock, self._proof, self._shown = lock, -1, -1

    def listen(self) -> int:
        """The session's control socket, which takes further commands: for the jail's init, owned by the caller.

        Close-on-exec and non-blocking. It lies in the session's directory, which is in no jail's view or grants.

        Refusals: state-unusable.
        """
        fd, self._proof, self.proof = self._listening(CONTROL, PROOF_NAME)
        return fd

    def listen_for_answers(self) -> tuple[int, int]:
        """The socket for answers about refused hosts, and the memory file with its proof: both for the proxy.

        Refusals: state-unusable.
        """
        fd, self._shown, _ = self._listening(QUESTIONS, ANSWERS_PROOF)
        return fd, os.dup(self._shown)

    def _listening(self, name: str, proof_name: str) -> tuple[int, int, bytes]:
        """A listening socket of this name, a memory file, and what is in it."""
        path = control_address(self._lock, name)
        mask = os.umask(0o177)
        fd = -1
        try:
            fd = syscalls.socket(_AF_UNIX, _SOCK_STREAM | os.O_CLOEXEC | os.O_NONBLOCK)
            syscalls.bind(fd, _AF_UNIX.to_bytes(2, "little") + os.fsencode(path) + b"\0")
            syscalls.listen(fd, _BACKLOG)
            memory, proof = os.memfd_create(proof_name), os.urandom(PROOF_BYTES)
            os.write(memory, proof)
        except OSError as error:
            if fd != -1:
                os.close(fd)
            raise unusable(f"{self.directory}/{name}", error) from None
        finally:
            os.umask(mask)
        return fd, memory, proof

    def record_brings(self, brings: tuple[str, ...]) -> None:
        """Changes the session's record of what it brings, which others read. Raises OSError."""
        _record(f"{self.directory}/.{BRINGS}", brings)
        os.rename(f"{self.directory}/.{BRINGS}", f"{self.directory}/{BRINGS}")
        self.brings = brings

    def close(self) -> list[str]:
        """Removes the session's directory, and those of dead sessions. Returns what could not be removed."""
        parent, directory = os.path.dirname(self.directory), self.directory
        try:
            # Nobody takes it for a live session meanwhile: its record would be gone before its lock.
            os.rename(directory, f"{parent}/.ended-{self.name}")
            directory = f"{parent}/.ended-{self.name}"
        except OSError:
            pass  # a session of that name was killed while it did this
        failures = _remove(directory)
        for fd in (self._lock, self._proof, self._shown):
            if fd != -1:
                os.close(fd)
        _sweep(parent)
        return failures


def control_address(directory: int, name: str = CONTROL) -> str:
    """The address of a socket in a session's directory that is open as `directory`; good while it is.

    Short, because an address has room for 107 bytes (unix(7)), which a state directory's path may well exceed.
    """
    return f"/proc/self/fd/{directory}/{name}"


def home_of(places: Places, worktree_id: str) -> str:
    """The private home directory of a worktree (it need not exist yet)."""
    return f"{places.state}/worktrees/{worktree_id}/home"


def writable(plan: Plan) -> tuple[str, ...]:
    """What a Plan lets its command write on the disk, the session's own directories left out; the worktree first."""
    found = [plan.worktree]
    for path, access, source in plan.grants:
        own = source == promises.OWN_TMP or path.startswith("@") or beneath(path, "/dev")
        if "w" in access and not own and not beneath(path, plan.worktree):
            found.append(path)
    return tuple(found)


def vouches(places: Places) -> object:
    """What changes with the git directories that the user trusts. A Plan holds as long as it is the same."""
    return inputs.ask(inputs.CONTENT, f"{places.state}/{VOUCHES}", {})


def open_session(
    places: Places,
    worktree_id: str,
    name: str | None,
    *,
    mounts: bool = True,
    writes: tuple[str, ...] = (),
    brings: tuple[str, ...] = (),
) -> Session:
    """Makes a session's directories. Waits while another process works in a tree that it may write.

    Args:
        mounts: its jail has mounts of its own, so that the temp directory can be at /tmp.
        writes: from `writable`; where none are given, it counts as one that could write whatever there is.
        brings: see `BRINGS`.

    Refusals: session-name, session-in-use, state-not-ours, state-unusable.
    """
    wanted = check_name(name) if name is not None else os.urandom(5).hex()
    made(places.state)
    home = _canonical(own_home(home_of(places, worktree_id)))
    sessions = _canonical(made(f"{places.state}/sessions"))
    final = f"{sessions}/{wanted}"
    fresh = f"{sessions}/.new-{os.urandom(5).hex()}"
    lock = -1
    try:
        make_private(fresh)
        lock = os.open(fresh, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        slots = {"home": home, "tmp": f"{final}/tmp", "run": final}
        private: dict[str, str] = {}
        if mounts:
            for inside, own in PRIVATE:
                make_private(f"{fresh}/{own}")
                private[inside] = f"{final}/{own}"
            # A short name: the addresses of sockets, which many programmes keep there, have room for 107 bytes.
            slots["tmp"] = "/tmp"
        else:
            slots["tmp"] = make_short_temp(f"{fresh}/tmp") or slots["tmp"]
        known = tuple(",".join(syscalls.identities(path)) for path in writes)
        for record, content in ((WRITES, writes), (WRITES_IN, known), (BRINGS, brings)):
            if content:
                _record(f"{fresh}/{record}", content)
        _take_name(fresh, final, wanted)
    except OSError as error:
        _abandon(fresh, lock)
        raise unusable(fresh, error) from None
    except Refusal:
        _abandon(fresh, lock)
        raise
    session = Session(places, wanted, final, slots, private, lock)
    session.brings = brings
    try:
        _wait(places, writes)
    except BaseException:
        session.close()
        raise
    return session


def _wait(places: Places, writes: tuple[str, ...]) -> None:
    """Waits for whoever works in a tree that the session may write. Its record is there: one finds the other."""
    try:
        holds = os.listdir(f"{places.state}/{HOLDS}")
    except OSError:
        return
    if holds:
        from launcher.session import messages
        from launcher.vcs.private import writers

        writers.wait(places.state, holds, writes, lambda line: messages.say(f"paddock: {printable(line)}"))


def _record(path: str, entries: tuple[str, ...]) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(fd, 0o600)  # whatever the umask
        content = b"".join(os.fsencode(each) + b"\0" for each in entries)
        while content:
            content = content[os.write(fd, content) :]
    finally:
        os.close(fd)


def live_sessions(places: Places) -> list[str]:
    """Names of the sessions whose lock is held, sorted."""
    sessions = f"{places.state}/sessions"
    try:
        names = os.listdir(sessions)
    except OSError:
        return []
    return sorted(name for name in names if not name.startswith(".") and is_locked(f"{sessions}/{name}"))


def sweep(places: Places) -> None:
    """Removes what dead sessions have left behind, as the end of each session does."""
    from launcher.vcs.private import swap

    _sweep(f"{places.state}/sessions")
    swap.originals(places.state)


def is_locked(directory: str) -> bool:
    """Whether a process holds the lock of its directory."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        # Shared, so that those who ask at the same time do not take each other for the holder.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def own_home(path: str) -> str:
    """The private home at `path`, made when it is missing.

    Its mode is put right, because a command may do to its home what it likes, and the next one needs it.
    """
    try:
        found = os.lstat(path)
        if found.st_mode & 0o170000 == 0o040000 and found.st_uid == os.geteuid() and found.st_mode & 0o7777 != 0o700:
            os.chmod(path, 0o700)
    except FileNotFoundError:
        return made(path)
    except OSError as error:
        raise unusable(path, error) from None
    return made(path)


def _canonical(path: str) -> str:
    """`path` without symbolic links (the home directory may be reached through one): slots are canonical."""
    canonical = inputs.resolved(path)
    if canonical is None:
        raise unusable(path, FileNotFoundError(2, "it can no longer be reached"))
    return canonical


def check_name(name: str) -> str:
    """`name` if it can be a session's name: 1 to 64 letters, digits, dots, dashes; no leading dot or dash."""
    if not valid_name(name):
        raise Refusal(
            "session-name",
            f"{name!r} cannot name a session",
            hint=f"use {NAME_RULE}",
        )
    return name


def valid_name(name: str) -> bool:
    """Whether `name` can be a session's name; see `check_name`."""
    return 0 < len(name) <= 64 and _LETTERS.issuperset(name) and name[0] not in ".-"


def _take_name(fresh: str, final: str, name: str) -> None:
    """Renames the new directory to its name. The target is never empty while its session lives."""
    try:
        os.rename(fresh, final)
        return
    except OSError as error:
        if not os.path.isdir(final):
            raise error
    if not _remove_if_dead(final):
        raise Refusal(
            "session-in-use",
            f"a session named {name} is running",
            context=final,
            hint="choose another name with --session, or leave it out for a random one",
        )
    os.rename(fresh, final)


def _abandon(fresh: str, lock: int) -> None:
    _remove(fresh)
    if lock >= 0:
        os.close(lock)


def _remove_if_dead(directory: str) -> bool:
    """Removes a session's directory when nobody holds its lock. Returns whether the name is free now."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        if os.path.lexists(f"{directory}/{CGROUPS}"):
            from launcher.jail import cgroup

            cgroup.remove_recorded(f"{directory}/{CGROUPS}")
        if os.path.lexists(f"{directory}/{LEFT_OPEN}") and not _looked_after(directory):
            return False
        return not _remove(directory)
    finally:
        os.close(descriptor)


def _looked_after(directory: str) -> bool:
    """Whether what a dead session's command has put in submodules' places is put aside; tells of it."""
    from launcher.session import messages, packages

    packages.enable()
    from launcher.vcs.private import planted

    for line in planted.finish(directory):
        messages.say(f"paddock: {printable(line)}")
    return not os.path.lexists(f"{directory}/{LEFT_OPEN}")


def _remove(directory: str) -> list[str]:
    """Removes a session's directory, and first the temp directory elsewhere that it leads to."""
    failures: list[str] = []
    if os.path.islink(f"{directory}/tmp"):
        pass

        failures = remove_short_temp(f"{directory}/tmp")
    return failures + remove_tree(directory)


def _sweep(sessions: str) -> None:
    """Removes what sessions left that were killed with SIGKILL.

    A directory that is being made has a `.new-` name and takes its lock right after mkdir; to not meet it in
    between, such names are only removed when their session cannot be starting any more (older than a minute).
    Where one is found, the `.git` files that it may have left swapped are put back.
    """
    import time

    dead = False
    try:
        names = os.listdir(sessions)
    except OSError:
        return
    for name in names:
        path = f"{sessions}/{name}"
        if name.startswith(".new-"):
            try:
                if time.time() - os.lstat(path).st_mtime < 60:
                    continue
            except OSError:
                continue
        dead = _remove_if_dead(path) or dead
    if dead:
        from launcher.vcs.private import swap

        swap.originals(os.path.dirname(sessions))


# Other names of a live session: the ids that a protocol gives to what runs in it (`paddock acp`).
#
# An agent chooses the id of a session of the Agent Client Protocol, and its tools are called with that id. Under
# ``<state>/sessions/<session>/known-as`` lies a file for each, named by a digest, so that any text can be an id. They
# go with the session. A name that a session has itself counts before, and an id that two sessions claim names none of
# them.

ALIASES = "known-as"

MOST_ALIASES = 1000
"""Ids of one session."""


def remember_alias(places: Places, session: str, identifier: str) -> bool:
    """Takes note that a live session is known by this id, too.

    Returns:
        Whether it was noted: not when the session has too many already.

    Raises:
        OSError: it cannot be written, or the session has ended.
    """
    place = f"{places.state}/sessions/{check_name(session)}/{ALIASES}"
    try:
        os.mkdir(place, 0o700)
    except FileExistsError:
        if len(os.listdir(place)) >= MOST_ALIASES:
            return False
    os.close(os.open(f"{place}/{_digest(identifier)}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    return True


def resolved_alias(places: Places, name: str) -> str:
    """The name of the live session that is known by `name`; `name` itself when there is none, or more than one."""
    live = live_sessions(places)
    if name in live:
        return name
    digest = _digest(name)
    found = [each for each in live if os.path.lexists(f"{places.state}/sessions/{each}/{ALIASES}/{digest}")]
    return found[0] if len(found) == 1 else name


def _digest(identifier: str) -> str:
    import hashlib  # sessions that have one name need none

    return hashlib.sha256(identifier.encode("utf-8", "surrogatepass")).hexdigest()


_LAST = "last-session"


def remember_last(places: Places, session: str, started: int) -> None:
    """Takes note of the session that has ended last, which leaves no ledger where nothing was denied."""
    try:
        with open(f"{places.state}/{_LAST}", "w", encoding="utf-8") as file:
            file.write(f"{session} {started}")
    except OSError:
        return  # then an older session's denials are shown


def last_session(places: Places) -> tuple[str, int]:
    """The session that has ended last, and nanoseconds since the epoch when it started; ("", 0) when unknown."""
    try:
        with open(f"{places.state}/{_LAST}", encoding="utf-8") as file:
            name, _, started = file.read(200).partition(" ")
    except (OSError, ValueError):
        return "", 0
    return (name, int(started)) if valid_name(name) and started.isdigit() else ("", 0)


# When there were sessions after which nobody has searched the worktree (`handoff_changes.made_since`): a note.
#
# A walk over the worktree would be most of what a short command takes, and a launcher that is killed walks nowhere.
# So each session notes at its start that it has begun, and a short one that it is over. Whoever searches takes the note
# away, and looks at all that has changed since the first of them; what was made while one of them lasted is a session's
# (`nested.by_sessions`). What sessions that still live have noted stays, because they may yet be killed. The note lies
# beside the private home, where no jail reaches.

UNSEARCHED_NOTE = "unsearched"
"""File of lines: when a session began, with @ and its name, and in a line of its own, again with when it was over.
Of one whose launcher was killed nobody knows that: what it made counts as its user's."""
MOST_NOTED = 64 << 10
"""Bytes of the note from which on a short session searches, too."""

_ADDING = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


def note_unsearched(directory: str, *times: int, session: str = "") -> int:
    """Notes when a session began, or when it began and was over, in nanoseconds since the epoch.

    Args:
        session: its name, as long as it lives.

    Returns:
        The size of the note.
    """
    while True:
        fd = os.open(f"{directory}/{UNSEARCHED_NOTE}", _ADDING, 0o600)
        try:
            os.fchmod(fd, 0o600)  # whatever the umask
            os.write(fd, " ".join((*map(str, times), *((f"@{session}",) if session else ()))).encode() + b"\n")
            found = os.fstat(fd)
        finally:
            os.close(fd)
        if found.st_nlink:  # else it was taken, and perhaps read, before this line came
            size: int = found.st_size
            return size


def unsearched(
    directory: str, *, take: bool = False, lives: "Callable[[str], bool]" = lambda name: False
) -> list[tuple[int, int]]:
    """When the sessions since the last search began and were over; of those whose end is not known, twice the first.

    Args:
        directory: the worktree's in Paddock's state.
        take: the note is gone then, and the caller searches: not before, because a session that ends while it goes on
            writes it again.
        lives: whether a session is alive. With `take`, these are left out, and noted again.
    """
    path = f"{directory}/{UNSEARCHED_NOTE}"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return []
    try:
        if take:
            try:
                os.unlink(path)
            except OSError:
                pass  # it stays, and the next one looks once more
        lines = os.read(fd, 2 * MOST_NOTED).splitlines()
    finally:
        os.close(fd)
    found = []
    for line in lines:
        times, _, name = line.partition(b"@")
        numbers = times.split()
        if not b"".join(numbers).isdigit():
            continue
        if take and name and lives(os.fsdecode(name)):
            try:
                note_unsearched(directory, int(numbers[0]), session=os.fsdecode(name))
            except OSError:
                pass  # it looks itself, unless it is killed
            continue
        found.append((int(numbers[0]), int(numbers[-1])))
    return found
