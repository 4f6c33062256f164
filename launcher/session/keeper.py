"""The process that keeps a session's logins: it alone reads the tokens, asks for new ones, and writes the user's file.

A child of the proxy's, made before that confines itself, so that it can reach the files; the jail's words do not reach
it. It is asked for a login, and whether the vendor has refused the token that there was. Of all jails of the user one
at a time refreshes, under the lock that `launcher.session.credentials` takes as well, and whoever waited finds what
another has brought. Once asked for, an answer with new tokens is written, whatever ends meanwhile: the old ones are of
no use any more.
"""

import json
import os
import re
import select
import signal
import time
import warnings
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import NoReturn

from launcher import wire
from launcher.jail import syscalls
from launcher.safefs.guarded_files import Inside
from launcher.session import credentials
from launcher.session.credentials import LARGEST, Unusable
from launcher.session.state import Session
from policy import logins, phantoms
from policy.errors import Refusal
from policy.keys import BUNDLES, TRUST, Key, api
from policy.logins import Document, Login
from policy.plan import Plan
from policy.promises import OWN_TMP

AUTHORITIES = ".paddock-authorities-*.pem"
"""In the private home: whom the agent trusts besides, for its vendor's hosts; ``*`` is the session's name."""

_BLOCK = re.compile(b"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_NO_SECRET = "changeit"
"""Java wants a password for what is no secret; this is what its own file has."""

_PATIENCE = 45.0
"""Seconds to wait for another jail that refreshes."""
_ANSWERS_WITHIN = 30.0
_CERTIFIED_WITHIN = 30.0
_LARGEST_ANSWER = 64 << 10
_FAILS_FOR = 10.0
_FORCED_EVERY = 600.0
"""Seconds between refreshes of a token that has not ended: a jail could make its vendor refuse a good one."""
_ASKED_EVERY = 30.0
"""Seconds after a refresh in which its tokens count as good, whatever the vendor says of their time."""


class Keeper:
    """What the process knows."""

    def __init__(self, kept: Iterable[Login], untrusted: Collection[str]) -> None:
        """`untrusted`: trees that the command can write; no authority counts that lies there."""
        self._logins = tuple(kept)
        self._untrusted = untrusted
        self._asked: dict[int, float] = {}
        self._failed: dict[int, tuple[float, str]] = {}
        self._unwritten: dict[int, tuple[Document, object]] = {}

    def serve(self, connection: int) -> NoReturn:
        """Answers until the proxy has ended; then this process ends. To be called in a child."""
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
        try:
            while True:
                kind, payload = wire.receive(connection, [], deadline=None, most=LARGEST)
                if kind != phantoms.WANTED:
                    break
                number, refused = json.loads(payload)
                try:
                    answer = wire.frame(phantoms.GIVEN, json.dumps(self.entry(number, refused)).encode())
                except (Unusable, OSError) as error:
                    why = str(error) if isinstance(error, Unusable) else error.strerror or str(error)
                    answer = wire.frame(phantoms.REFUSED, why.encode("utf-8", "replace"))
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
            there = credentials.read_private(directory, name, LARGEST)
            document = logins.parsed(there.data) if there is not None else None
            entry = phantoms.entry_of(document or {}, login)
            if entry is None:
                raise Unusable(f"{login.host} holds no login any more")
            renewed, spent = self._unwritten.get(number, (None, None))
            if renewed is not None and logins.at(entry, how.refresh) == spent:
                self._write(directory, name, number, renewed, spent)
                entry = phantoms.entry_of(renewed, login) or entry
            now = time.time()
            ends, is_refused = phantoms.expiry(entry, login), refused != "" and logins.at(entry, how.access) == refused
            asked = self._asked.get(number, -_FORCED_EVERY)
            forced = is_refused and time.monotonic() >= asked + _FORCED_EVERY
            if (ends - phantoms.MARGIN > now and not forced) or time.monotonic() < asked + _ASKED_EVERY:
                return entry
            body = phantoms.request(entry, login)
            if body is None:
                if ends > now:
                    return entry
                raise Unusable(f"the login in {login.host} has ended, and no token to refresh it with is there")
            _check_room(directory, name, LARGEST)  # before the old tokens are spent
            answer = self._answer(number, how.refresh_url, body, login)
            if isinstance(answer, str):
                if ends > now and not is_refused:
                    return entry  # good for some minutes yet
                raise Unusable(answer)
            self._asked[number] = time.monotonic()
            # The user may have logged in or out meanwhile, or an agent of his refreshed, which knows no lock.
            there = credentials.read_private(directory, name, LARGEST)
            document = logins.parsed(there.data) if there is not None else None
            entry = phantoms.entry_of(document or {}, login)
            if document is None or entry is None:
                raise Unusable(f"{login.host} holds no login any more")
            if logins.at(entry, how.refresh) != body["refresh_token"]:
                return entry
            phantoms.renewed(document, answer, login, time.time())
            self._write(directory, name, number, document, body["refresh_token"])
            return entry
        finally:
            os.close(directory)  # and with it the lock

    def _answer(self, number: int, url: str, body: Document, login: Login) -> Document | str:
        """What the vendor answers, or why nothing. A failure counts for a while: a jail may ask as often as it will."""
        when, why = self._failed.get(number, (0.0, ""))
        if time.monotonic() < when:
            return why
        try:
            found = _answered(url, body, self._untrusted)
            if not phantoms.is_answer(found, login):
                raise Unusable(f"{url} gave an answer without tokens")
            return found
        except Unusable as error:
            self._failed[number] = (time.monotonic() + _FAILS_FOR, str(error))
            return str(error)

    def _write(self, directory: int, name: str, number: int, document: Document, spent: object) -> None:
        """Writes the user's file; what cannot be written is kept, and tried again while the spent token is there."""
        self._unwritten[number] = (document, spent)
        try:
            there = credentials.read_private(directory, name, LARGEST)
            like = there.data if there is not None else b"\n"
            if credentials.replace_private(directory, name, logins.dumped(document, like), there, locked=True):
                del self._unwritten[number]
        except (Unusable, OSError):
            return


def _check_room(directory: int, name: str, size: int) -> None:
    """Writes and removes a file beside one that is to be replaced. Raises OSError where that would fail."""
    temporary = f".{name}.paddock"
    with suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=directory)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=directory)
    try:
        os.posix_fallocate(descriptor, 0, size)
    finally:
        os.close(descriptor)
        os.unlink(temporary, dir_fd=directory)


def _answered(url: str, body: Document, untrusted: Collection[str]) -> Document:
    """The answer of a token endpoint. Raises Unusable."""
    import urllib.error
    import urllib.request

    from launcher.egress.tls import trusting

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
        again = "; log in again outside of the jail" if error.code in (400, 401) else "; it is asked again later"
        raise Unusable(f"{url} answered {error.code}{why}{again}") from None
    except (OSError, ValueError) as error:
        raise Unusable(f"{url} cannot be asked: {getattr(error, 'reason', None) or error}") from None
    answer = logins.parsed(data)
    if answer is None:
        raise Unusable(f"{url} gave an answer that is not JSON")
    return answer


def kept(
    plan: Plan, keys: Iterable[Key], secret: bytes
) -> tuple[tuple[Login, ...], bytes, tuple[str, ...], Callable[[int], NoReturn] | None]:
    """What stays outside at hosts where TLS ends, for the proxy.

    Args:
        plan: with logins, perhaps.
        keys: of the launch.
        secret: of the private home's phantoms; a new one for a session without any.
    """
    found = phantoms.of(plan.logins)
    hosts = {str(origin.host) for login in found for origin in phantoms.origins(login)}
    hosts |= {str(api(key.url).origin.host) for key in keys if key.ambient}
    return found, secret, tuple(sorted(hosts)), Keeper(found, _writable(plan)).serve if found else None


def trusted(
    plan: Plan, keys: Iterable[Key], session: Session, living: Collection[str], certificate: int
) -> dict[str, str]:
    """Writes the authority's certificate into the private home, behind those that the user has his programmes trust.

    A tool whose own setting names certificates gets a file of its own, with these in the place of all others.

    Args:
        plan: with logins that stay outside, perhaps, and with authorities.
        keys: of the launch.
        session: whose private home and authority it is.
        living: names of the other sessions there; what earlier ones left is removed.
        certificate: pipe with it, in PEM, closed; -1 where TLS ends nowhere.

    Returns:
        The variables by which the agent, and with ambient keys everybody, is told.

    Refusals: login-unusable.
    """
    from launcher.egress.tls import certificates

    names = [name for login in phantoms.of(plan.logins) for name in phantoms.trust(login)]
    trees = _writable(plan)
    known: Iterable[str] = ()
    if any(key.ambient for key in keys):
        own = {name for name, _ in plan.env_set} | set(plan.env_pass)
        names += [name for name in TRUST if name not in own]
        known = filter(os.path.exists, BUNDLES)
    told = filter(None, map(os.environ.get, (*names, *TRUST)))
    ours = _certificate(certificate) if certificate != -1 else b""
    everything = b"".join(certificates(path, trees) for path in dict.fromkeys((*told, *list(known)[:1])))
    contents = {"": everything + ours} if ours else {}
    contents |= {f".{name}": certificates(where, trees) + ours for name, where in plan.authorities}
    store = _java_store(contents[""]) if ours and "MAVEN_OPTS" in dict(plan.env_set) else b""
    head, tail = AUTHORITIES.split("*")
    try:
        with Inside(session.slots["home"]) as inside:
            for name in inside.names():
                if name.startswith(head) and name.removeprefix(head).partition(".")[0] not in living:
                    inside.clear(name)
            for which, content in contents.items():
                inside.write(f"{head}{session.name}{which}{tail}", content)
            if store:
                inside.write(f"{head}{session.name}.p12", store)
    except OSError as error:
        why = f"no file of authorities can be written into the private home: {error.strerror or error}"
        raise Refusal("login-unusable", why, hint=f"something in {session.slots['home']} is in the way") from None
    place = f"{session.slots['home']}/{head}{session.name}"
    variables = dict.fromkeys(names, place + tail) | {name: f"{place}.{name}{tail}" for name, _ in plan.authorities}
    if store:
        java = f"-Djavax.net.ssl.trustStore={place}.p12 -Djavax.net.ssl.trustStorePassword={_NO_SECRET}"
        before = dict(plan.env_set)["MAVEN_OPTS"].replace("${home}", session.slots["home"])
        variables["MAVEN_OPTS"] = f"{before} {java}"
    return variables


def forget(session: Session) -> None:
    """Removes what `trusted` has written."""
    head = AUTHORITIES.partition("*")[0] + session.name
    with suppress(OSError), Inside(session.slots["home"]) as inside:
        for name in inside.names():
            if name.startswith(f"{head}."):
                inside.remove(name)


def _java_store(bundle: bytes) -> bytes:
    """These certificates as Java takes them, which reads no PEM; its password is none (keytool(1))."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

    found = []
    for number, text in enumerate(_BLOCK.findall(bundle)):
        with suppress(ValueError), warnings.catch_warnings():  # old authorities may have numbers that are none
            warnings.simplefilter("ignore")
            found.append(pkcs12.PKCS12Certificate(x509.load_pem_x509_certificate(text), b"%d" % number))
    return pkcs12.serialize_java_truststore(found, BestAvailableEncryption(_NO_SECRET.encode()))


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
