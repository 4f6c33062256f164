"""Keys and logins that stay outside: which of a known agent's, and where the keys come from.

What is read here goes to the proxy alone, by the memory that it is forked with. Launch path of plans with keys.
"""

from typing import NamedTuple

from launcher.lean import os
from launcher.safefs import walk
from policy.errors import Refusal
from policy.keys import BUDGETS, Key, api, local, passes, rules
from policy.plan import SYSTEM_PATH, USAGE, Grant, beneath
from policy.promises import OWN_TMP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from launcher.session.machine import Machine
    from policy.config.settings import Settings
    from policy.providers.model import Inject, ProviderSpec

    Ways = tuple[tuple[str, str], ...]

_LARGEST = 65536
_MOST = 1 << 50
_PATIENCE = 120.0
"""Seconds for a command, which may ask the user for a password."""


def keys_of(
    spec: "ProviderSpec",
    settings: "Settings",
    machine: "Machine",
    ways: "Ways",
    logins: "Iterable[str]",
    *,
    flags: bool,
) -> "Kept":
    """The keys of the caller's that stay outside: those that he has, and does not use in a way of his own; his login.

    Args:
        spec: of the provider.
        settings: whether keys stay outside, the network, and variables that are passed or set on purpose.
        machine: the Plan depends on what is looked at.
        ways: to its vendor's hosts, as `Plan.domains` and `Plan.reach` have them.
        logins: where logins of the caller's would be.
        flags: the provider's programme is started, which takes arguments.

    Raises:
        Refusal: key-base-unusable; the key would go where nobody knows.
    """
    passed = (*spec.credentials.environment, *spec.settings)
    present = any(map(machine.kind, logins))
    if settings.keys.value != "phantom" or settings.network_mode.value == "open":
        mode, why = _logins(spec, settings, machine, frozenset(), present=present)
        return Kept((), passed, why, mode)
    own = {entry.value[0] for entry in settings.env_set}
    chosen = own | {entry.value for entry in settings.env_pass}
    if settings.network_mode.value == "none":  # nothing there needs a key, nor should one be found by a later session
        held = {inject.variable for inject in spec.inject} - chosen
        mode, why = _logins(spec, settings, machine, held, present=present)
        return Kept((), tuple(name for name in passed if name not in held), why, mode)
    taken = []
    warnings = []
    for inject in spec.inject:
        if not machine.says(inject.variable) or inject.variable in chosen:
            continue
        users = [other for other in passed if machine.says(other, inject.variable)]
        if named := (*users, *filter(machine.says, inject.environment)):
            warnings.append(passes(inject.variable, f"{named[0]} in your environment says how it uses it"))
            continue
        if altered := sorted(own.intersection(filter(None, (inject.base, *inject.environment)))):
            warnings.append(passes(inject.variable, f"your configuration sets {altered[0]}"))
            continue
        taken.append((inject, _url(inject, machine)))
    held = {inject.variable for inject, _ in taken}
    mode, why = _logins(spec, settings, machine, held, present=present)
    warnings += why
    budget = any(limit.value[0] in BUDGETS for limit in settings.limits)  # which nothing may pass by
    others = any(machine.says(each) for each in spec.credentials.environment if each not in held)
    # The hosts of a login that stays outside are reached with its phantom, or not at all.
    alone = mode != "phantom" and (budget or not ((mode != "none" and present) or others))
    found = (_key(inject, url, spec.name, ways, alone=alone, flags=flags) for inject, url in taken)
    made = (key._replace(unknown_to=tuple(spec.native.unknown_to)) for key in found)
    return Kept(tuple(map(tuple, made)), passed, tuple(warnings), mode)


class Kept(NamedTuple):
    """What of an agent's stays outside.

    Attributes:
        keys: as `Plan.keys` has them.
        passed: variables that the agent gets.
        warnings: what the user should know.
        logins: what becomes of the login: a value of ``--logins``.
    """

    keys: tuple[tuple[object, ...], ...]
    passed: tuple[str, ...]
    warnings: tuple[str, ...]
    logins: str


def _logins(
    spec: "ProviderSpec", settings: "Settings", machine: "Machine", held: "Collection[str]", *, present: bool
) -> tuple[str, tuple[str, ...]]:
    """What becomes of the login, and why it is not what was wanted. `held`: variables whose keys stay outside."""
    mode = settings.logins.value
    if mode != "phantom" or not present:
        return mode if present or mode != "phantom" else "none", ()
    used = [
        name for name in (*spec.credentials.environment, *spec.endpoints) if name not in held and machine.says(name)
    ]
    if settings.network_mode.value in ("none", "open"):
        why = f"with --net {settings.network_mode.value} no phantom of it can be used"
    elif not any(file.phantom for file in spec.files):
        why = f"Paddock has no phantoms for the logins of {spec.title}"
    elif used:
        why = f"{used[0]} in your environment is used in its place, and enters the jail as it is"
        return "none", (f"your login of {spec.title} is not in the jail: {why}; unset it for phantoms of the login",)
    else:
        return mode, ()
    said = f"your login of {spec.title} is not in the jail: {why}; --logins copy passes the login itself"
    return "none", (said,)


def without_key_apis(spec: "ProviderSpec", ways: "Ways") -> "Ways":
    """Ways to a vendor, where its login stays outside: an API that takes keys is no other one."""
    mine = {str(origin.host) for file in spec.files if file.phantom for origin in file.phantom.as_planned().origins}
    others = {str(api(inject.url).origin.host) for inject in spec.inject} - mine
    return tuple(way for way in ways if way[0] not in others)


def _url(inject: "Inject", machine: "Machine") -> str:
    """Of the API: what the caller's own variable names, else the vendor's."""
    if not inject.base or not machine.says(inject.base):
        return inject.url
    try:
        if machine.says(inject.base, "@"):  # not read: it would be kept with the Plan
            raise ValueError("must have no user name")
        url = machine.env(inject.base) or ""
        api(url)
    except ValueError as error:
        raise Refusal(
            "key-base-unusable",
            f"{inject.base} in your environment is not a URL that {inject.variable} can be sent to: it {error}",
            context="the key stays outside, and the proxy puts it in on the way there",
            hint="change the URL, or --keys pass: the agent gets the key itself, and uses the URL as it is",
        ) from None
    return url


def _key(inject: "Inject", url: str, name: str, ways: "Ways", *, alone: bool, flags: bool) -> Key:
    """One key. `ways`: the provider's; `alone`: nothing else that it has could be meant for the vendor's hosts."""
    origin, here = api(url).origin, local(url)
    hosts = (str(origin.host), origin.where)
    environment = {variable: value.replace("{url}", here) for variable, value in inject.environment.items()}
    if inject.base:
        environment[inject.base] = here
    return Key(
        variable=inject.variable,
        source=f"env:{inject.variable}",
        url=url,
        header=inject.header,
        format=inject.format,
        rules=rules(url, tuple(inject.methods), tuple(inject.paths)),
        prefix=inject.prefix,
        suffix=inject.suffix,
        environment=tuple(environment.items()),
        arguments=tuple(text.replace("{url}", here) for text in inject.arguments) if flags else (),
        covers=tuple(way for way in ways if alone and way[0] in hosts),
        flags=tuple(inject.flags),
        origin=f"provider {name}",
    )


def values_of(
    keys: tuple[Key, ...], home: str, grants: tuple[Grant, ...], warn: "Callable[[str], object]" = str
) -> tuple[tuple[Key, str], ...]:
    """The keys with their values; a mirror whose credential is not there now may do without.

    Args:
        keys: of a launch.
        home: of the user, for ``file:~/...``.
        grants: of the jail, in which no file with a key may lie.
        warn: told what the user should know.

    Raises:
        Refusal: key-missing, key-unusable.
    """
    found: list[tuple[Key, str]] = []
    for key in keys:
        kind, _, where = key.source.partition(":")
        try:
            value = _READERS[kind](key, where, home, grants).strip()
            if not value:
                raise _missing(key, "it is empty" if kind != "env" or where in os.environ else f"{where} is not set")
        except Refusal as refusal:
            if not key.ambient:
                raise
            warn(f"{refusal.message}; the mirror may refuse what it does not give to everybody")
            continue
        if not value.isascii() or not value.isprintable():
            raise Refusal(
                "key-unusable",
                f"the key of {key.variable or key.origin} cannot stand in a header",
                context=f"{key.source} has characters other than printable ASCII, or several lines",
                hint="the source should give the key alone",
            )
        found.append((key, value))
    return tuple(found)


class Usage(NamedTuple):
    """What a session's keys were used for, as the proxy counts it (`launcher.egress.spending`); `budget`: of tokens."""

    requests: int = 0
    input: int = 0
    output: int = 0
    estimated: int = 0
    upload: int = 0
    refused: int = 0
    budget: int = 0


def usage(directory: str) -> Usage:
    """What the proxy has counted so far. It reads an agent's words, so numbers are all that is taken of it."""
    try:
        data = walk.read_regular(f"{directory}/{USAGE}", 4096, follow=True)
    except OSError:
        return Usage()
    import json

    try:
        found = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        return Usage()
    counts = {name: found.get(name) for name in Usage._fields} if isinstance(found, dict) else {}
    return Usage(**{name: value for name, value in counts.items() if type(value) is int and 0 <= value < _MOST})


def spent(directory: str, keys: tuple[Key, ...], *, login: bool = False) -> list[str]:
    """What the keys of a session, and its login, were used for, as a line; none where they were not."""
    found = usage(directory)
    lines = []
    if found.requests:
        guessed = f", {found.estimated:,} of them estimated" if found.estimated else ""
        variables = ", ".join(key.variable for key in keys if not key.ambient)
        names = [f"the key in {variables}"] if variables else []
        names += ["the login"] if login else []
        tokens = f"{found.input:,} tokens in, {found.output:,} out"
        requests = f"{found.requests:,} request{'' if found.requests == 1 else 's'}"
        lines.append(f"{requests} with {' and '.join(names)}: {tokens}{guessed}")
    if found.refused:
        were = "was" if found.refused == 1 else "were"
        lines.append(f"{found.refused:,} {'more ' if lines else ''}{were} refused by the session's budget")
    return lines


def _missing(key: Key, why: str, place: str = "") -> Refusal:
    """`place`: to put it, where its source is none."""
    what = f"{key.origin}: the credential is not there" if key.ambient else f"the key of {key.variable} cannot be read"
    return Refusal(
        "key-missing",
        f"{what}: {why}" if key.ambient else f"{what} from {key.source}: {why}",
        context=f"it was to stay outside of the jail, as {key.origin} says",
        hint=f"put it in {place or key.source or 'your own setting'}, or leave the key out (paddock help keys)",
    )


def _from_mirror(key: Key, where: str, home: str, grants: tuple[Grant, ...]) -> str:
    """The header for a mirror of a package registry, as the user's own setting has it (`policy.mirrors.header`)."""
    import json

    from policy import mirrors

    place = json.loads(where)
    text = _from_file(key, place[1], home, grants) if place[0] else _from_environment(key, place[2], home, grants)
    try:
        return mirrors.header(
            place, text.encode("latin-1").decode() if place[0] else text, api(key.url).origin, os.environ
        )
    except ValueError as error:
        raise _missing(key, str(error)) from None


def _from_environment(_key: Key, where: str, _home: str, _grants: tuple[Grant, ...]) -> str:
    return os.environ.get(where) or ""


def _from_file(key: Key, where: str, home: str, grants: tuple[Grant, ...]) -> str:
    path = f"{home}{where[1:]}" if where.startswith("~/") else where
    if not path.startswith("/"):
        raise _missing(key, "the path is relative")
    for place in (os.path.normpath(path), os.path.realpath(path)):
        if tree := next((tree for tree, _, who in grants if who != OWN_TMP and beneath(place, tree)), None):
            # A link there would be an agent's word for which file is sent to the vendor.
            why = f"{place} is in {tree}, where the command can read it, or could have made it"
            safe = f"a file elsewhere, such as ~/.config/keys/{key.variable}, or in a variable (from=env:NAME)"
            raise _missing(key, why, safe)
    try:
        data = walk.read_regular(path, _LARGEST, follow=True)
    except OSError as error:
        raise _missing(key, error.strerror or str(error)) from None
    if data is None:
        raise _missing(key, "it is not a regular file, or too large")
    return data.decode("latin-1")


def _from_command(key: Key, where: str, home: str, _grants: tuple[Grant, ...]) -> str:
    """What the user's own command prints: with his terminal for its questions, and in his home directory.

    Not with his PATH, which may lead into a worktree.
    """
    import select
    import subprocess
    import time

    words, environment = ["/bin/sh", "-c", where], {**os.environ, "PATH": SYSTEM_PATH}
    deadline, data = time.monotonic() + _PATIENCE, b""
    try:
        with subprocess.Popen(words, stdout=subprocess.PIPE, cwd=home, env=environment) as process:
            assert process.stdout is not None
            try:
                while len(data) < _LARGEST:
                    remaining = deadline - time.monotonic()
                    if remaining <= 0 or not select.select([process.stdout], [], [], remaining)[0]:
                        raise _missing(key, f"the command took longer than {_PATIENCE:.0f} seconds")
                    piece = os.read(process.stdout.fileno(), _LARGEST)
                    if not piece:
                        break
                    data += piece
            finally:
                if len(data) >= _LARGEST or time.monotonic() >= deadline:
                    process.kill()
    except OSError as error:
        raise _missing(key, str(error)) from None
    if len(data) >= _LARGEST:
        raise _missing(key, "the command prints more than a key")
    if process.returncode:
        raise _missing(key, f"the command ended with status {process.returncode}")
    return data.decode("latin-1")


def _from_keyring(key: Key, where: str, _home: str, _grants: tuple[Grant, ...]) -> str:
    from launcher.session import packages

    packages.enable()
    try:
        import keyring
    except ImportError:
        raise Refusal(
            "keyring-missing",
            "the user's keyring cannot be asked",
            context=f"{key.source} is wanted by {key.origin}, and the package keyring is not installed",
            hint="install paddock-launcher[keyring]",
        ) from None
    service, _, user = where.rpartition("/")
    try:
        return keyring.get_password(service, user) or ""
    except Exception as error:  # of whatever backend there is
        raise _missing(key, str(error) or type(error).__name__) from None


_READERS = {
    "env": _from_environment,
    "file": _from_file,
    "cmd": _from_command,
    "keyring": _from_keyring,
    "mirror": _from_mirror,
}
