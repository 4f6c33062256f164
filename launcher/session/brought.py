"""The user's own things in a private home: places for what is mounted there, or copies where nothing can be mounted.

The private home is the agent's to write, also while another session of the worktree lives. Everything in it is done by
descriptors and through no link; what an agent has put in the way is renamed. Only for plans that bring something, and
for worktrees in which something was brought before.
"""

import os
import stat
from collections.abc import Iterable
from contextlib import suppress

from launcher.safefs import guarded_files, walk
from launcher.safefs.guarded_files import Inside
from launcher.session.state import SHOWN, Session
from launcher.vcs.private import writers
from policy import promises
from policy.errors import Refusal
from policy.plan import Bind, Brought, Plan

NOTE = "brought"
"""Beside the private home, where no jail reaches: what was made in it, as ``KIND PATH``, each ended by a NUL."""

FILES_NOTE = "written"
"""The same of files for tools, each path ended by a NUL."""

LOGINS_NOTE = "logins"
"""And what the logins in it are: the secret of their phantoms or `_THEMSELVES`, then the sessions, a line each."""

_THEMSELVES = "themselves"

MARK = b"Written by Paddock"
"""In the first line of such a file; one without it is the command's own."""

MOST_BYTES, MOST_FILES = 64 << 20, 10_000
"""Of one tree that is copied."""

_PLACE, _COPY = "place", "copy"
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class _TooMuch(Exception):
    """A tree that is too large to be copied."""


def provided(plan: Plan, session: Session) -> tuple[tuple[Bind, ...], list[str]]:
    """Makes the private home ready. Returns what is to be mounted, and what the user should know.

    Whoever unlinks a mount point in one mount namespace takes away the mount in all others. So the sessions of a home
    have the same ones: a session writes its record first, and looks for those of others then (`session.state`). One
    that brings no more than those that live there has the rest of their places read-only, as they are.

    Refusals: bring-home-shared, bring-blocked.
    """
    home = session.slots["home"]
    mounts = promises.has_mounts(plan.backend)
    brought = [entry for entry in plan.brought if entry[0]]
    with guarded_files.locked_directory(os.path.dirname(home)):  # against one that makes the same places ready
        note = f"{os.path.dirname(home)}/{NOTE}"
        if brought:  # it tells those that bring nothing to look, as long as this session lives
            os.close(os.open(note, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        living, kept = _agreed(plan, session)
        pins = tuple((f"{home}/{path}", f"{home}/{path}", "r") for path in kept)
        before = guarded_files.read(note, follow=False)
        made = dict.fromkeys(os.fsdecode(before.data).split("\0")[:-1]) if before is not None else {}
        try:
            with Inside(home) as inside:
                if not all(map(inside.exists, kept)):
                    raise _shared(session, living[0])  # which is being started, or refused
                binds, lines = _made_ready(inside, brought, made, mounts=mounts, alone=not living)
                return (*binds, *pins), lines
        finally:
            content = "".join(f"{entry}\0" for entry in made)
            if content or brought:
                walk.replace(note, os.fsencode(content), lasting=False)
            elif before is not None:
                os.unlink(note)


def written(plan: Plan, session: Session) -> list[str]:
    """Writes `plan.files` into the private home, for the tools there. Returns what the user should know.

    What a command has there itself stays. What an earlier session was told is removed, unless one still lives there.
    """
    home, lines = session.slots["home"], []
    try:
        with guarded_files.locked_directory(os.path.dirname(home)):
            note = f"{os.path.dirname(home)}/{FILES_NOTE}"
            before = guarded_files.read(note, follow=False)
            made = os.fsdecode(before.data).split("\0")[:-1] if before is not None else []
            wanted = dict(plan.files)
            _note(note, (*made, *wanted))  # first: what a crash leaves is removed by a later session
            with Inside(home) as inside:
                if not others(session, plan.worktree):
                    for path in set(made) - wanted.keys():
                        if MARK in (inside.read(path) or b"")[:80]:
                            inside.remove(path)
                    _note(note, wanted)
                for path, content in wanted.items():
                    if not inside.exists(path) or MARK in (inside.read(path) or b"")[:80]:
                        inside.write(path, content.encode())
                    else:
                        lines.append(
                            f"~/{path} of the private home is the command's own, so it names no mirror of yours"
                        )
    except OSError as error:
        lines.append(f"mirrors cannot be told in the private home: {error.strerror or error}")
    return lines


def logins_agreed(plan: Plan, session: Session) -> tuple[bytes, bool]:
    """Has all sessions of a home have the login itself in it, or phantoms: one file is there for both.

    Returns:
        What the phantoms are made with (b"" for the login itself), and whether the last session had the same in it:
        else what lies there is not believed to be a login that was given.

    Refusals: login-home-shared, login-unusable.
    """
    home = session.slots["home"]
    phantoms = any(login[-1] for login in plan.logins)
    try:
        with guarded_files.locked_directory(os.path.dirname(home)):
            note = f"{os.path.dirname(home)}/{LOGINS_NOTE}"
            before = guarded_files.read(note, follow=False)
            kept, *names = os.fsdecode(before.data).split("\n") if before is not None else [_THEMSELVES]
            living = {other.name for other in others(session, plan.worktree)}
            users = [name for name in names if name in living]
            same = phantoms == (kept != _THEMSELVES)
            if users and not same:
                raise Refusal(
                    "login-home-shared",
                    f"session {users[0]} has {'the' if phantoms else 'phantoms of the'} login in the private home",
                    context="that home is the worktree's, and this session would put the other in its place",
                    hint="wait for its end, start this one with the same --logins, or use another worktree "
                    "(paddock run --new TICKET)",
                )
            if not users:
                kept = os.urandom(32).hex() if phantoms else _THEMSELVES
            walk.replace(note, os.fsencode("\n".join((kept, *users, session.name))), lasting=False)
            return bytes.fromhex(kept) if phantoms else b"", same
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise Refusal("login-unusable", f"{home} cannot be made ready for a login: {why}") from None


def _note(path: str, names: Iterable[str]) -> None:
    content = "".join(f"{name}\0" for name in dict.fromkeys(names))
    if content:
        walk.replace(path, os.fsencode(content), lasting=False)
    else:
        with suppress(FileNotFoundError):
            os.unlink(path)


def others(session: Session, root: str) -> list[writers.Writer]:
    """The other sessions that live in the home."""
    return [
        each
        for each in writers.live(session.places.state, root, own=True, frozen=True)
        if each.name != session.name and each.worktree in (root, "")
    ]


def _agreed(plan: Plan, session: Session) -> tuple[list[writers.Writer], list[str]]:
    """The others that live in the home, and those of their places that the session keeps for them.

    Refusals: bring-home-shared.
    """
    living = others(session, plan.worktree)
    own, kept = session.brings, set[str]()
    for other in living:
        shown = promises.has_mounts(plan.backend) and other.brings[:1] == (SHOWN,)
        if other.brings != own and shown and set(own[1:]) <= set(other.brings[1:]):
            kept.update(other.brings[1:])
        elif other.brings != own:
            raise _shared(session, other)
    kept -= set(own[1:])
    if kept:
        session.record_brings((SHOWN, *sorted((*own[1:], *kept))))  # for one that comes later
    return living, [path.removeprefix("~/") for path in sorted(kept)]


def _shared(session: Session, other: writers.Writer) -> Refusal:
    return Refusal(
        "bring-home-shared",
        f"session {other.name} lives in the private home of this worktree, and does not bring the same into it",
        context=f"it brings {_words(other.brings)}; this one would bring {_words(session.brings)}; "
        "one could take away what the other is shown",
        hint=f"start it with the same --bring, run it in that session (paddock exec {other.name} -- COMMAND), "
        "wait for its end, or use another worktree (paddock run --new TICKET)",
    )


def _words(brings: tuple[str, ...]) -> str:
    return f"{', '.join(brings[1:])} ({brings[0]})" if brings else "nothing"


def _made_ready(
    home: Inside, brought: list[Brought], made: dict[str, None], *, mounts: bool, alone: bool
) -> tuple[tuple[Bind, ...], list[str]]:
    binds: list[Bind] = []
    lines: list[str] = []
    mine = _PLACE if mounts else _COPY
    wanted = {f"{mine} {path}" for _, path, _ in brought}
    for entry in [entry for entry in made if alone and entry not in wanted]:
        how, _, path = entry.partition(" ")
        if _removed(home, path, empty=how == _PLACE):
            del made[entry]
    for source, path, who in brought:
        entry = f"{mine} {path}"
        try:
            kind = stat.S_IFMT(os.lstat(source).st_mode)
            # Of what the agent has there itself, a mount only needs the place; a copy takes it.
            if aside := home.free(path, kind if mounts or entry in made else 0, move=alone):
                lines.append(f"~/{path}: what was in the way is now ~/{aside} of the private home")
            if mounts:
                made |= dict.fromkeys([entry] if _placed(home, kind, path) else [])
                binds.append((source, f"{home.path}/{path}", "r"))
            else:
                made[entry] = None
                _copied(home, source, path, alone=alone)
        except _TooMuch as error:
            if alone:  # else it is shown to the others as it is
                home.free(path, 0)
            lines.append(f"~/{path} is not brought into the jail: {error}")
        except OSError as error:
            raise blocked(f"~/{path}", f"{home.path}/{path}", who, error.strerror or str(error)) from None
    return tuple(binds), lines


def blocked(what: str, place: str, who: str, why: str) -> Refusal:
    """The Refusal for what would be the agent's own in the place of the user's."""
    return Refusal(
        "bring-blocked",
        f"{what} cannot be brought into the jail",
        context=f"requested by {who}; {place}: {why}",
        hint="look at that place, and move away what is there; or use another worktree: paddock run --new TICKET",
    )


def _placed(home: Inside, kind: int, path: str) -> bool:
    """Makes sure that something of this kind is at `path`, to be mounted over. Returns whether it is new."""
    if home.exists(path):
        return False
    if kind == stat.S_IFDIR:
        home.make(path)
    else:
        home.write(path, b"")
    return True


def _copied(home: Inside, source: str, path: str, *, alone: bool) -> None:
    """Copies the file or tree `source` to `path`, where a copy of before may lie.

    A tree that other sessions are shown is renewed file by file, so that at no moment they miss one. What the source
    has no more stays in it until a session is alone.
    """
    if not stat.S_ISDIR(os.lstat(source).st_mode):
        data, mode = _content(walk.open_canonical(source, _FILE), MOST_BYTES)
        home.write(path, data, mode=mode)
        return
    fresh = f".brought-{os.urandom(8).hex()}"
    renewed = not alone and home.kind(path) == stat.S_IFDIR
    target = path if renewed else fresh
    home.make(target)
    try:
        size = count = 0
        with Inside(source) as tree:
            for name, entry in walk.files(source):
                count += 1
                if count > MOST_FILES:
                    raise _TooMuch(f"it has more than {MOST_FILES} files, and without mounts it has to be copied")
                if entry.is_symlink():
                    text = tree.link(name) or ""
                    home.link_to(link := fresh if renewed else f"{target}/{name}", text)
                    if renewed:
                        home.move(link, f"{target}/{name}")
                elif (descriptor := tree.opened(name)) is not None:
                    data, mode = _content(descriptor, MOST_BYTES - size)
                    size += len(data)
                    home.write(f"{target}/{name}", data, mode=mode)
        if renewed:
            return
        _removed(home, path, empty=False)
        if home.exists(path):
            home.clear(path)
        home.move(fresh, path)
    except BaseException:
        home.remove_tree(fresh)
        raise


def _content(descriptor: int, limit: int) -> tuple[bytes, int]:
    try:
        found = os.fstat(descriptor)
        data = walk.read_up_to(descriptor, limit) if stat.S_ISREG(found.st_mode) else b""
    finally:
        os.close(descriptor)
    if data is None:
        raise _TooMuch(f"it contains more than {MOST_BYTES >> 20} MiB, and without mounts it has to be copied")
    return data, 0o700 if found.st_mode & 0o100 else 0o600


def _removed(home: Inside, path: str, *, empty: bool) -> bool:
    """Removes what was made at `path` and is brought no more; what the agent has put into a mere place stays."""
    kind = home.kind(path)
    try:
        if kind == stat.S_IFDIR and empty:
            home.remove_directory(path)
        elif kind == stat.S_IFDIR:
            around, _, name = path.rpartition("/")
            with Inside(home.path, around) as directory:
                return not directory.remove_tree(name)
        elif kind is not None and not (empty and home.size(path)):
            home.remove(path)
    except OSError:
        return True  # it is the agent's by now
    return True
