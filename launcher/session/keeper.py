"""The process that keeps a session's logins: it alone reads the tokens, asks for new ones, and writes the user's file.

A child of the proxy's, made before that confines itself, so that it can reach the files; the jail's words do not reach
it. It is asked for a login, and whether the vendor has refused the token that there was. Of all jails of the user one
at a time refreshes, under the lock that `launcher.session.credentials` takes as well, and whoever waited finds what
another has brought. Once asked for, an answer with new tokens is written, whatever ends meanwhile: the old ones are of
no use any more.
"""

import fcntl
import json
import os
import select
import signal
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import NoReturn

from launcher import wire
from launcher.jail import syscalls
from launcher.safefs import walk
from launcher.safefs.guarded_files import Inside
from launcher.session import credentials
from launcher.session.credentials import LARGEST, Unusable
from policy import logins, phantoms
from policy.errors import Refusal
from policy.keys import BUNDLES, TRUST, Key, api
from policy.logins import Document, Login
from policy.plan import Plan, beneath
from policy.promises import OWN_TMP

SECRET = "phantoms"
"""Beside the private home, where no jail reaches: what its phantoms are made with."""

AUTHORITIES = ".paddock-authorities.pem"
"""In the private home: whom the agent trusts besides, for its vendor's hosts."""

WANTED, GIVEN, REFUSED = b"w", b"g", b"r"
"""Kinds of frames: JSON of [number, token that the vendor refused or ""]; the login's entry; why there is none."""

_SECRET_BYTES = 32
_PATIENCE = 45.0
"""Seconds to wait for another jail that refreshes."""
_ANSWERS_WITHIN = 30.0
_CERTIFIED_WITHIN = 30.0
_LARGEST_ANSWER = 64 << 10
_LARGEST_BUNDLE = 4 << 20
_FAILS_FOR = 10.0
_FORCED_EVERY = 60.0
"""Seconds between refreshes of a token that has not ended: a jail could make its vendor refuse a good one."""


def secret_of(home: str, *, alone: bool) -> bytes:
    """The secret of a private home's phantoms: a new one, or that of the sessions that live there.

    Raises:
        OSError: it cannot be written.
    """
    around = os.open(os.path.dirname(home), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(around, fcntl.LOCK_EX)
        if not alone:
            try:
                found = credentials.read_private(around, SECRET, _SECRET_BYTES)
            except Unusable:
                found = None
            if found is not None and len(found.data) == _SECRET_BYTES:
                return found.data
        made = os.urandom(_SECRET_BYTES)
        credentials.replace_private(
            around, SECRET, made, credentials.read_private(around, SECRET, LARGEST), locked=True
        )
        return made
    finally:
        os.close(around)


class Keeper:
    """What the process knows."""

    def __init__(self, kept: Iterable[Login], untrusted: Collection[str]) -> None:
        """`untrusted`: trees that the command can write; no authority counts that lies there."""
        self._logins = tuple(kept)
        self._untrusted = untrusted
        self._forced: dict[int, float] = {}
        self._failed: dict[int, tuple[float, str]] = {}
        self._unwritten: dict[int, Document] = {}

    def serve(self, connection: int) -> NoReturn:
        """Answers until the proxy has ended; then this process ends. To be called in a child."""
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
        try:
            while True:
                kind, payload = wire.receive(connection, [], deadline=None, most=LARGEST)
                if kind != WANTED:
                    break
                number, refused = json.loads(payload)
                try:
                    answer = wire.frame(GIVEN, json.dumps(self.entry(number, refused)).encode())
                except (Unusable, OSError) as error:
                    why = str(error) if isinstance(error, Unusable) else error.strerror or str(error)
                    answer = wire.frame(REFUSED, why.encode("utf-8", "replace"))
                wire.send(connection, answer)
        finally:
            os._exit(0)

    def entry(self, number: int, refused: str) -> Document:
        """A login with a token that is good, as far as anybody here can know.

        Args:
            number: of the login.
            refused: the access token that the vendor refused; "" for none.

        Raises:
            Unusable: there is none, and why.
            OSError: the same.
        """
        login = self._logins[number]
        how = phantoms.phantom(login)
        assert how is not None
        directory = os.open(os.path.dirname(login.host), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            found = os.fstat(directory)
            if found.st_uid != os.geteuid() or found.st_mode & 0o022:
                raise Unusable(f"others may write {os.path.dirname(login.host)} (chmod go-w takes that away)")
            credentials.lock(directory, _PATIENCE)
            name = os.path.basename(login.host)
            if (unwritten := self._unwritten.get(number)) is not None:
                self._write(directory, name, number, unwritten)
            there = credentials.read_private(directory, name, LARGEST)
            document = logins.parsed(there.data) if there is not None else None
            entry = phantoms.entry_of(self._unwritten.get(number, document) or {}, login)
            if entry is None:
                raise Unusable(f"{login.host} holds no login any more")
            now = time.time()
            ends, is_refused = phantoms.expiry(entry, login), refused != "" and logins.at(entry, how.access) == refused
            forced = is_refused and now >= self._forced.get(number, 0.0) + _FORCED_EVERY
            if ends - phantoms.MARGIN > now and not forced:
                return entry
            body = phantoms.request(entry, login)
            if body is None:
                if ends > now:
                    return entry
                raise Unusable(f"the login in {login.host} has ended, and no token to refresh it with is there")
            self._forced[number] = now
            answer = self._answer(number, how.refresh_url, body)
            if isinstance(answer, str):
                if ends > now and not is_refused:
                    return entry  # good for some minutes yet
                raise Unusable(answer)
            # The file may have been written by the user's own agent meanwhile, which knows no lock.
            there = credentials.read_private(directory, name, LARGEST)
            document = logins.parsed(there.data) if there is not None else document
            renewed = phantoms.renewed(document or {}, answer, login, time.time())
            entry = phantoms.entry_of(renewed, login) if renewed is not None else None
            if renewed is None or entry is None:
                raise Unusable(f"{how.refresh_url} gave an answer without tokens")
            self._write(directory, name, number, renewed)
            return entry
        finally:
            os.close(directory)  # and with it the lock

    def _answer(self, number: int, url: str, body: Document) -> Document | str:
        """What the vendor answers, or why nothing. A failure counts for a while: a jail may ask as often as it will."""
        when, why = self._failed.get(number, (0.0, ""))
        if time.monotonic() < when:
            return why
        try:
            return _asked(url, body, self._untrusted)
        except Unusable as error:
            self._failed[number] = (time.monotonic() + _FAILS_FOR, str(error))
            return str(error)

    def _write(self, directory: int, name: str, number: int, document: Document) -> None:
        """Writes the user's file; what cannot be written is kept, and tried again: the tokens before it are spent."""
        self._unwritten[number] = document
        try:
            there = credentials.read_private(directory, name, LARGEST)
            like = there.data if there is not None else b"\n"
            if credentials.replace_private(directory, name, logins.dumped(document, like), there, locked=True):
                del self._unwritten[number]
        except (Unusable, OSError):
            return


def _asked(url: str, body: Document, untrusted: Collection[str]) -> Document:
    """The answer of a token endpoint. Raises Unusable."""
    import urllib.error
    import urllib.request

    from launcher.egress.vendors import trusting

    class NoRedirect(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: object) -> None:
            """The tokens are for one place."""

    handlers = (urllib.request.HTTPSHandler(context=trusting(os.environ, untrusted)), NoRedirect())
    headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "paddock"}
    wanted = urllib.request.Request(url, json.dumps(body).encode(), headers, method="POST")
    try:
        with urllib.request.build_opener(*handlers).open(wanted, timeout=_ANSWERS_WITHIN) as found:
            data = found.read(_LARGEST_ANSWER)
    except urllib.error.HTTPError as error:
        said = logins.parsed(error.read(_LARGEST_ANSWER)) or {}
        kind = said.get("error")
        why = f" ({kind[:40]})" if isinstance(kind, str) and kind.replace("_", "").isalnum() else ""
        raise Unusable(f"{url} answered {error.code}{why}; log in again outside of the jail") from None
    except (OSError, ValueError) as error:
        raise Unusable(f"{url} cannot be asked: {getattr(error, 'reason', None) or error}") from None
    answer = logins.parsed(data)
    if answer is None:
        raise Unusable(f"{url} gave an answer that is not JSON")
    return answer


def kept(
    plan: Plan, keys: Iterable[Key], home: str, *, alone: bool
) -> tuple[tuple[Login, ...], bytes, tuple[str, ...], Callable[[int], NoReturn] | None]:
    """What stays outside at hosts where TLS ends, for the proxy.

    Args:
        plan: with logins, perhaps.
        keys: of the launch.
        home: the private home.
        alone: no other session lives there.

    Refusals: login-unusable.
    """
    found = phantoms.of(plan.logins)
    try:
        secret = secret_of(home, alone=alone)
    except (Unusable, OSError) as error:
        why = str(error) if isinstance(error, Unusable) else error.strerror or str(error)
        raise Refusal("login-unusable", f"no phantoms can be made for {home}: {why}") from None
    hosts = {str(origin.host) for login in found for origin in phantoms.origins(login)}
    hosts |= {str(api(key.url).origin.host) for key in keys if key.ambient}
    return found, secret, tuple(sorted(hosts)), Keeper(found, _writable(plan)).serve if found else None


def trusted(plan: Plan, keys: Iterable[Key], home: str, certificate: int) -> dict[str, str]:
    """Writes the authority's certificate into the private home, behind those that the user has his programmes trust.

    Args:
        plan: with logins that stay outside, perhaps.
        keys: of the launch.
        home: the private home.
        certificate: pipe with it, in PEM; closed.

    Returns:
        The variables by which the agent, and with ambient keys everybody, is told.

    Refusals: login-unusable.
    """
    names = [name for login in phantoms.of(plan.logins) for name in phantoms.trust(login)]
    trees, content = _writable(plan), b""
    known: Iterable[str] = ()
    if any(key.ambient for key in keys):
        own = {name for name, _ in plan.env_set} | set(plan.env_pass)
        names += [name for name in TRUST if name not in own]
        known = filter(os.path.exists, BUNDLES)
    told = filter(None, map(os.environ.get, (*names, *TRUST)))
    for path in dict.fromkeys((*told, *list(known)[:1])):
        if not any(beneath(each, tree) for each in (path, os.path.realpath(path)) for tree in trees):
            with suppress(OSError):
                content += (walk.read_regular(path, _LARGEST_BUNDLE, follow=True) or b"") + b"\n"
    try:
        with Inside(home) as inside:
            inside.write(AUTHORITIES, content + _certificate(certificate))
    except OSError as error:
        why = f"~/{AUTHORITIES} of the private home cannot be written: {error.strerror or error}"
        raise Refusal("login-unusable", why, hint=f"something in {home} is in the way") from None
    return dict.fromkeys(names, f"{home}/{AUTHORITIES}")


def _certificate(pipe: int) -> bytes:
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    data = b""
    while poll.poll(_CERTIFIED_WITHIN * 1000) and (piece := os.read(pipe, _LARGEST_ANSWER)):
        data += piece
    os.close(pipe)
    if not data:
        hint = "is the package cryptography installed, as pip installs it with Paddock?"
        raise Refusal("login-unusable", "the network proxy has made no authority for the login's hosts", hint=hint)
    return data


def _writable(plan: Plan) -> tuple[str, ...]:
    return tuple(path for path, access, who in plan.grants if "w" in access and who != OWN_TMP)
