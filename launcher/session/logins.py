"""Logins of a provider: into the private home when a session starts, and refreshed tokens back when it ends.

What may pass is decided by `policy.logins`, on bytes that were read once. The user's file is replaced under a lock on
its directory, and only while it still is what was read. A session that was killed leaves its refreshed token in the
private home; the next one in that worktree finds it there.

Only for plans that carry logins; not part of a plain launch.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from launcher.session import private_files
from launcher.session.private_files import Changing, Content, Unusable
from policy import logins
from policy.logins import Login
from policy.plan import Plan

LARGEST = 256 << 10
"""Bytes of a file that may go back."""

LARGEST_COPY = 8 << 20
"""Bytes of a file that is only copied in: what some programmes keep beside their settings grows."""

PATIENCE = 5.0
"""Seconds to wait for another session that is at the same file."""

_TRIES = 3


class Logins:
    """The logins of one session."""

    def __init__(self, plan: Plan, home: str) -> None:
        """Nothing is read yet.

        Args:
            plan: with the files.
            home: the private home, which is there.
        """
        self._provider = plan.provider
        fields: Any = plan.logins
        self._files = [Login(*data) for data in fields]
        self._home = home
        self._told: dict[str, None] = {}

    def bring(self) -> list[str]:
        """Copies into the private home what the user's files say now. Returns what could not be, for the user."""
        self._told = {}
        with self._saying("the private home", "cannot be opened"), self._top() as top:
            self._back(top)
            for login in self._files:
                what = "may still hold your login" if login.kept_out else "is not copied into the private home"
                with self._saying(login.inside, what):
                    (self._keep_out if login.kept_out else self._copy)(top, login)
        return list(self._told)

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
            directory = private_files.directory_below(top, login.inside, make=False)
        except FileNotFoundError:
            return None
        try:
            return private_files.read(directory, os.path.basename(login.inside), _limit(login))
        finally:
            os.close(directory)

    def _copy(self, top: int, login: Login) -> None:
        if login.inside.endswith("/"):
            os.close(private_files.directory_below(top, login.inside, make=True))
            return
        there = None
        with self._saying(login.host, "is not copied into the private home"):
            there = _of_user(login) if login.host else None
        if there is None and not (login.put or login.drop):
            return
        directory = private_files.directory_below(top, login.inside, make=True)
        try:
            for _ in range(_TRIES):  # another session of the worktree may start now, too
                if _copied(directory, os.path.basename(login.inside), login, there):
                    return
            raise Unusable("it keeps changing")
        finally:
            os.close(directory)

    def _keep_out(self, top: int, login: Login) -> None:
        """Takes away what a session that was allowed it has been given. A login of the jail's own stays."""
        there, here = _of_user(login), self._inside(top, login)
        if there is None or here is None or not logins.holds(here.data, there.data, login):
            return
        directory = private_files.directory_below(top, login.inside, make=False)
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
                against = against or "the login in the jail is another account's"
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
            raise Unusable("it is no JSON object")
        return inside

    def _tell(self, login: Login, why: str) -> None:
        self._told[
            f"{self._provider}: {login.host} keeps its tokens, those in the jail are not taken over: {why}; "
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
        return private_files.read(directory, os.path.basename(login.host), _limit(login), follow=not login.refreshed)
    finally:
        os.close(directory)


def _copied(directory: int, name: str, login: Login, there: Content | None) -> bool:
    try:
        here = private_files.read(directory, name, LARGEST_COPY)
    except Changing:
        return False  # another session's doing, or the agent's; nothing is taken away from it
    except Unusable:
        here = None  # the agent's doing; it is replaced
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=directory)  # EISDIR for a directory, which is then said
    data = _wanted(login, there, here)
    if data is None or (here is not None and here.data == data):
        return True
    return private_files.replace(directory, name, data, here, locked=False)


def _wanted(login: Login, there: Content | None, here: Content | None) -> bytes | None:
    """What the copy is to hold; None to leave it as it is."""
    if there is not None and (login.text or not (login.only or login.put or login.drop)):
        return there.data
    host = logins.parsed(there.data) if there is not None else None
    inside = logins.parsed(here.data) if here is not None else None
    wanted = logins.copied(host, inside, login)
    return here.data if here is not None and wanted == inside else logins.dumped(wanted)


def _refresh(login: Login, inside: logins.Document) -> None:
    """Writes the user's file, under a lock, from what it holds by then."""
    directory = os.open(os.path.dirname(login.host), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = os.fstat(directory)
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise Unusable(f"others may write {os.path.dirname(login.host)} (chmod go-w takes that away)")
        _lock(directory)
        name = os.path.basename(login.host)
        for _ in range(_TRIES):
            there = private_files.read(directory, name, LARGEST)
            host = logins.parsed(there.data) if there is not None else None
            if there is None or host is None or not logins.same_account(host, inside, login):
                raise Unusable("it has become another one meanwhile")
            document = logins.refreshed(host, inside, login)
            if document is None:
                return
            if private_files.replace(directory, name, logins.dumped(document, there.data), there, locked=True):
                return
        raise Unusable("somebody else keeps writing it")
    finally:
        os.close(directory)  # and with it the lock


def _lock(directory: int) -> None:
    """A lock on the user's directory itself, so that sessions of other state directories see it too (flock(2))."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise Unusable("another session has been at it for a long time") from None
            time.sleep(0.02)
        else:
            return
