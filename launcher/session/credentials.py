"""Logins of a provider: into the private home when a session starts, and refreshed tokens back when it ends.

What may pass is decided by `policy.logins`, on bytes that were read once. The user's file is replaced under a lock on
its directory, and only while it still is what was read. A session that was killed leaves its refreshed token in the
private home; the next one in that worktree finds it there.

Only for plans that carry logins; not part of a plain launch.
"""

import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from launcher.safefs import walk
from launcher.safefs.guarded_files import Inside
from policy import logins
from policy.logins import Login
from policy.plan import Plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from policy.phantoms import Mint

# Small files in directories that somebody else may be changing: found, read and replaced by descriptors alone.
#
# The private home is the agent's to write, also while another session of the worktree lives. Each step on the way
# is opened by itself and without following a link, so what is planted there can make a step fail, and nothing else.
# The directory that is then open may be moved about by the agent, but only to where it could have written itself.


_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_REPLACED = 100
"""Times that a file may be replaced while it is opened. Who does it more often is not another session."""
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Unusable(Exception):
    """A file or directory is not what it should be. The text says what it is."""


class Changing(Unusable):
    """A file that is replaced again and again while it is opened: what it is cannot be said, and is soon known."""


class Content(NamedTuple):
    """A file's bytes, and what changes when anybody writes or replaces it."""

    data: bytes
    mark: tuple[int, ...]


def directory_below(top: int, path: str, *, make: bool) -> int:
    """Opens the directory of `path`, a path below the open directory `top`. The descriptor is the caller's to close.

    Args:
        make: make what is missing, with mode 0700; what is no directory is renamed.

    Raises:
        FileNotFoundError: it is missing, and is not to be made.
        Unusable: something else than a directory is in the way.
    """
    here = os.dup(top)
    try:
        for name in path.split("/")[:-1]:
            try:
                try:
                    below = _enter(here, name, make=make)
                except NotADirectoryError:
                    if not make:
                        raise
                    # Linux says so of a link, too. It is the agent's, and would keep all later sessions from a login.
                    os.rename(name, f"{name[:100]}.replaced-{os.urandom(5).hex()}", src_dir_fd=here, dst_dir_fd=here)
                    below = _enter(here, name, make=make)
            except (NotADirectoryError, PermissionError) as error:
                raise Unusable(f"{name} is not a directory of this user: {error.strerror}") from None
            except OSError as error:
                if error.errno == 40:  # ELOOP: a link
                    raise Unusable(f"{name} is a symbolic link") from None
                raise
            os.close(here)
            here = below
    except BaseException:
        os.close(here)
        raise
    return here


def _enter(here: int, name: str, *, make: bool) -> int:
    try:
        return os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
    except FileNotFoundError:
        if not make:
            raise
    try:
        os.mkdir(name, 0o700, dir_fd=here)
    except FileExistsError:
        return os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=here)  # somebody was quicker; what it is, open(2) says
    return os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=here)


def read_private(directory: int, name: str, limit: int, *, follow: bool = False) -> Content | None:
    """A regular file's content; None when there is none.

    Args:
        follow: for a file that is never written, a link is followed and whose file it is does not matter (managers of
            settings keep them in repositories and stores).

    Raises:
        Unusable: it is a link, no regular file, somebody else's, known by another name too, or larger.
        Changing: it was replaced each time that it was looked at.
    """
    try:
        descriptor = _opened(directory, name, follow=follow)
        found = os.fstat(descriptor)
        for _ in range(_REPLACED):
            if found.st_nlink:
                break
            os.close(descriptor)  # replaced between the two calls, as another session does it
            descriptor = _opened(directory, name, follow=follow)
            found = os.fstat(descriptor)
    except FileNotFoundError:
        return None
    except OSError as error:
        what = "it is a symbolic link" if error.errno == 40 else error.strerror or str(error)
        raise Unusable(what) from None
    try:
        if not follow and found.st_uid != os.geteuid():
            raise Unusable(f"it belongs to user {found.st_uid}")
        if not found.st_nlink:
            raise Changing("it keeps changing")
        if not follow and found.st_nlink > 1:
            raise Unusable("it has several names (hard links)")
        if found.st_size > limit:
            raise Unusable(f"it is larger than {limit >> 10} KiB")
        data = walk.read_up_to(descriptor, limit)
        if data is None:
            raise Unusable(f"it is larger than {limit >> 10} KiB")
        return Content(data, _mark(os.fstat(descriptor)))
    except OSError as error:
        raise Unusable(error.strerror or str(error)) from None
    finally:
        os.close(descriptor)


def _opened(directory: int, name: str, *, follow: bool) -> int:
    descriptor = walk.open_regular(name, dir_fd=directory, follow=follow)
    if descriptor is None:
        raise Unusable("it is not a regular file")
    return descriptor


def replace_private(directory: int, name: str, data: bytes, expected: Content | None, *, locked: bool) -> bool:
    """Puts `data` in the place of a file, in one step, with mode 0600.

    Args:
        expected: what was read there before; None for nothing.
        locked: the caller holds a lock that all writers take. So what a writer that was killed has left is removed.

    Returns:
        False when something else is there by now, and nothing was done.

    Raises:
        OSError: it cannot be written; the file is as it was.
    """
    temporary = f".{name}.paddock" if locked else f".{name}.{os.urandom(8).hex()}.paddock"
    with suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=directory)
    descriptor = os.open(temporary, _WRITE, 0o600, dir_fd=directory)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)  # whatever the umask
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        if _mark_of(directory, name) != (expected.mark if expected is not None else None):
            os.unlink(temporary, dir_fd=directory)
            return False
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with suppress(FileNotFoundError):  # renamed already, or taken away by whoever else may write here
            os.unlink(temporary, dir_fd=directory)
        raise
    os.fsync(directory)
    return True


def _mark(found: os.stat_result) -> tuple[int, ...]:
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _mark_of(directory: int, name: str) -> tuple[int, ...] | None:
    try:
        return _mark(os.stat(name, dir_fd=directory, follow_symlinks=False))
    except FileNotFoundError:
        return None


LARGEST = 256 << 10
"""Bytes of a file that may go back."""

LARGEST_COPY = 8 << 20
"""Bytes of a file that is only copied in: what some programmes keep beside their settings grows."""

PATIENCE = 5.0
"""Seconds to wait for another session that is at the same file."""

_TRIES = 3


class Logins:
    """The logins of one session."""

    def __init__(self, plan: Plan, home: str, mint: "Mint | None" = None) -> None:
        """Nothing is read yet.

        Args:
            plan: with the files.
            home: the private home, which is there.
            mint: makes phantoms for logins that stay outside.
        """
        self._mint = mint
        self._provider = plan.provider
        fields: Any = plan.logins
        self._files = [Login(*data) for data in fields]
        self._home = home
        self._told: dict[str, None] = {}

    def bring(self, *, believed: bool = True) -> list[str]:
        """Copies into the private home what the user's files say now. Returns what could not be, for the user.

        Args:
            believed: the last session that had logins there had the same ones; what a killed one refreshed comes back.

        Refusals: bring-blocked.
        """
        self._told = {}
        with self._saying("the private home", "cannot be opened"), self._top() as top:
            if believed:
                self._back(top)
            for login in self._files:
                what = "may still hold your login" if login.kept_out else "is not copied into the private home"
                with self._saying(login.inside, what), self._brought(login):
                    (self._keep_out if login.kept_out else self._copy)(top, login)
        return list(self._told)

    @contextmanager
    def _brought(self, login: Login) -> Iterator[None]:
        """Refuses where the agent's own servers would be there in the place of the user's."""
        try:
            yield
        except (Unusable, OSError) as error:
            if not login.brought:
                raise
            from launcher.session import brought

            what = f"what {login.host} holds of {', '.join(login.brought)}"
            raise brought.blocked(what, f"{self._home}/{login.inside}", "bring.agents", _why(error)) from None

    def take_back(self) -> list[str]:
        """Copies refreshed tokens into the user's files. Returns what could not be, for the user."""
        self._told = {}
        with self._saying("the private home", "cannot be opened"), self._top() as top:
            self._back(top)
        return list(self._told)

    @contextmanager
    def _top(self) -> Iterator[int]:
        top = os.open(self._home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            yield top
        finally:
            os.close(top)

    @contextmanager
    def _saying(self, path: str, what: str) -> Iterator[None]:
        """Says of one file why nothing was done with it: a session without it is better than none."""
        try:
            yield
        except (Unusable, OSError) as error:
            self._told[f"{self._provider}: {path} {what}: {_why(error)}"] = None

    @staticmethod
    def _inside(top: int, login: Login) -> Content | None:
        try:
            directory = directory_below(top, login.inside, make=False)
        except FileNotFoundError:
            return None
        try:
            return read_private(directory, os.path.basename(login.inside), _limit(login))
        finally:
            os.close(directory)

    def _copy(self, top: int, login: Login) -> None:
        if login.inside.endswith("/"):
            os.close(directory_below(top, login.inside, make=True))
            return
        there = None
        with self._saying(login.host, "is not copied into the private home"):
            there = _of_user(login) if login.host else None
        if there is None and not (login.put or login.drop):
            return
        here = self._inside(top, login) if login.only_withholds else None
        if login.only_withholds and not (here and any(os.fsencode(path) in here.data for path in login.withheld)):
            return  # nothing is made where nothing was ever brought
        with Inside(self._home) as home:
            if aside := home.free(login.inside, stat.S_IFREG):
                self._told[f"~/{login.inside}: what was in the way is now ~/{aside} of the private home"] = None
        directory = directory_below(top, login.inside, make=True)
        try:
            for _ in range(_TRIES):  # another session of the worktree may start now, too
                if _copied(directory, os.path.basename(login.inside), login, there, self._mint):
                    return
            raise Unusable("it keeps changing")
        finally:
            os.close(directory)

    def _keep_out(self, top: int, login: Login) -> None:
        """Takes away what a session that was allowed it has been given. A login of the jail's own stays."""
        there, here = _of_user(login), self._inside(top, login)
        if there is None or here is None or not logins.holds(here.data, there.data, login):
            return
        directory = directory_below(top, login.inside, make=False)
        try:
            os.unlink(os.path.basename(login.inside), dir_fd=directory)
        finally:
            os.close(directory)

    def _back(self, top: int) -> None:
        """Takes over what is newer inside, where everything that tells the account is the same in all files.

        A file that cannot be read, or is missing, tells of no account: then nothing is taken over. What is wrong with
        the user's own files is said where they are copied.
        """
        newer: list[tuple[Login, logins.Document]] = []
        against = ""
        for login in self._files:
            if not login.host or not (login.refreshed or login.account):
                continue
            try:
                there = _of_user(login)
            except (Unusable, OSError) as error:
                against = against or f"{login.host}: {_why(error)}"
                continue
            host = logins.parsed(there.data) if there is not None else None
            if host is None:
                continue
            try:
                inside = self._parsed_inside(top, login)
            except (Unusable, OSError) as error:
                against = against or f"{login.inside} in the jail: {_why(error)}"
                if login.refreshed:
                    self._tell(login, against)
                continue
            if inside is None and login.refreshed:
                continue
            if not logins.same_account(host, inside or {}, login):
                against = against or "the login in the jail belongs to another account"
            if inside is not None and login.refreshed and logins.refreshed(host, inside, login) is not None:
                newer.append((login, inside))
        for login, inside in newer:
            try:
                if against:
                    raise Unusable(against)
                _refresh(login, inside)
            except (Unusable, OSError) as error:
                self._tell(login, _why(error))

    def _parsed_inside(self, top: int, login: Login) -> logins.Document | None:
        here = self._inside(top, login)
        inside = logins.parsed(here.data) if here is not None else None
        if here is not None and inside is None:
            raise Unusable("it is not a JSON object")
        return inside

    def _tell(self, login: Login, why: str) -> None:
        self._told[
            f"{self._provider}: {login.host} keeps its tokens, those in the jail are not copied back: {why}; "
            "if yours have expired, log in again outside of the jail"
        ] = None


def _why(error: Unusable | OSError) -> str:
    return str(error) if isinstance(error, Unusable) else error.strerror or str(error)


def _limit(login: Login) -> int:
    return LARGEST if login.refreshed else LARGEST_COPY


def _of_user(login: Login) -> Content | None:
    try:
        directory = os.open(os.path.dirname(login.host), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return read_private(
            directory, os.path.basename(login.host), _limit(login), follow=not (login.refreshed or login.phantom)
        )
    finally:
        os.close(directory)


def _copied(directory: int, name: str, login: Login, there: Content | None, mint: "Mint | None") -> bool:
    try:
        here = read_private(directory, name, LARGEST if login.toml else LARGEST_COPY)
    except Changing:
        return False  # another session's doing, or the agent's; nothing is taken away from it
    except Unusable:
        here = None  # the agent's doing; it is replaced
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=directory)  # EISDIR for a directory, which is then said
    ours, theirs = here and here.data, there and there.data
    try:
        if mint is not None and login.phantom:
            from policy import phantoms

            data: bytes | None = phantoms.copied_in(theirs or b"", ours, login, mint)
        else:
            data = logins.wanted(theirs, ours, login) if not login.phantom else None
    except ValueError as error:
        with suppress(FileNotFoundError):  # it may hold tokens of a session that was given them
            os.unlink(name, dir_fd=directory)
        raise Unusable(str(error)) from None
    if data is None or (here is not None and here.data == data):
        return True
    return replace_private(directory, name, data, here, locked=False)


def _refresh(login: Login, inside: logins.Document) -> None:
    """Writes the user's file, under a lock, from what it holds by then."""
    directory = os.open(os.path.dirname(login.host), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = os.fstat(directory)
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise Unusable(f"others may write {os.path.dirname(login.host)} (chmod go-w takes that away)")
        lock(directory)
        name = os.path.basename(login.host)
        for _ in range(_TRIES):
            there = read_private(directory, name, LARGEST)
            host = logins.parsed(there.data) if there is not None else None
            if there is None or host is None or not logins.same_account(host, inside, login):
                raise Unusable("it was replaced in the meantime")
            document = logins.refreshed(host, inside, login)
            if document is None:
                return
            if replace_private(directory, name, logins.dumped(document, there.data), there, locked=True):
                return
        raise Unusable("another process keeps writing it")
    finally:
        os.close(directory)  # and with it the lock


def lock(directory: int, patience: float = PATIENCE) -> None:
    """A lock on the user's directory itself, so that sessions of other state directories see it too (flock(2))."""
    end = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise Unusable("another session has held its lock for too long") from None
            time.sleep(0.02)
        else:
            return
