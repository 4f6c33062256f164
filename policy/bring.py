"""Which of the user's own things a jail is shown, read-only, at the same place in its private home: the decision. Pure.

Instructions, skills and dotfiles, named by the user or by the table of his agent; never what holds credentials.
"""

import posixpath
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from policy import verdict
from policy.errors import Refusal
from policy.ingredients import READ, asked_for
from policy.launch import Host
from policy.plan import Brought, Grant, beneath

AGENTS = "bring.agents"
"""Source of what a provider's table declares."""

_MOST = 500
"""Entries of one directory tree that are looked at for links."""
_DEEPEST = 2
"""Levels below what is brought: a skill is a directory in a directory, a command may be a file one deeper."""


class Secrets(NamedTuple):
    """What is never brought: places (absolute path -> what they hold), and names of files anywhere."""

    places: Mapping[str, str]
    names: tuple[str, ...]

    def reason(self, path: str) -> str:
        """Why `path` is not to be brought; "" where nothing is known against it."""
        if path.rpartition("/")[2] in self.names:
            return "files of this name contain credentials"
        for place, what in self.places.items():
            if beneath(path, place):
                return what
            if beneath(place, path):
                return f"it contains {place}: {what}"
        risk = verdict.risk_of(path)
        return "" if risk == verdict.OBEYED else risk


NOTHING_SECRET = Secrets({}, ())


class _Item(NamedTuple):
    path: str
    inside: str
    source: str


class Decided(NamedTuple):
    """What is brought, what is granted for links in it that lead to absolute paths, and what the user should know."""

    brought: tuple[Brought, ...]
    grants: tuple[Grant, ...]
    warnings: tuple[str, ...]


def decide(
    files: Iterable[tuple[str, str]],
    declared: Iterable[tuple[str, str]],
    *,
    secrets: Secrets,
    root: str,
    host: Host,
    written: Iterable[str],
    denied: Iterable[str],
) -> Decided:
    """What is brought.

    Args:
        files: (``~/PATH``, source) as the user names them.
        declared: (absolute path, path below the private home) of the provider's table.
        secrets: what is refused where the user names it, and left out where a table or a link does.
        root: of the worktree.
        host: answers about the disk.
        written: trees that commands in jails could write: a link in them brings nothing.
        denied: canonical paths that are denied.

    Raises:
        Refusal: bring-secret, or as `policy.ingredients.asked_for`, about what the user names himself.
    """
    home, written, denied = host.home.rstrip("/"), tuple(written), tuple(denied)
    pending = deque(_Item(f"{home}/{name[2:]}", name[2:], source) for name, source in files)
    named = len(pending)
    pending += [_Item(path, inside, AGENTS) for path, inside in declared]
    found: dict[str, Brought] = {}
    grants: list[Grant] = []
    warnings: list[str] = []
    count = 0
    while pending and count < _MOST:
        item = pending.popleft()
        count += 1
        if item.inside in found:
            continue
        canonical = host.resolve(item.path)
        shown = f"{home}/{item.inside}" if item.inside else item.path
        why = next(filter(None, map(secrets.reason, (item.path, shown, canonical or item.path))), "")
        if why and count <= named:
            raise Refusal(
                "bring-secret",
                f"{item.path} is not brought into jails",
                context=f"requested by {item.source}; {why}",
                hint="name only the files in it that are needed; an agent's own login is passed with --logins",
            )
        if not why and canonical is not None:
            closed = [where for where in denied if beneath(canonical, where) or beneath(where, canonical)]
            why = f"{closed[0]} is denied" if closed else ""
        if why:
            warnings.append(f"{item.path} is not brought into the jail ({item.source}): {why}")
            continue
        if canonical is None or host.kind(canonical) not in ("file", "dir"):
            if count <= named:
                found[item.inside] = ("", item.inside, item.source)
            continue
        try:
            asked_for(item.path, host.trail(item.path), item.source, root, host, written)
        except Refusal as refusal:
            if count <= named:
                raise
            warnings.append(f"{item.path} is not brought into the jail ({item.source}): {refusal.message}")
            continue
        if not item.inside:  # a link in it leads to this absolute path
            grants.append((canonical, READ, item.source))
        else:
            found[item.inside] = (canonical, item.inside, item.source)
        if host.kind(canonical) == "dir":
            pending += _links(canonical, item, host)
    # What lies in something else that is brought is shown there.
    tops = [f"{inside}/" for inside, (canonical, _, _) in found.items() if canonical]
    kept = tuple(found[inside] for inside in sorted(found) if not inside.startswith(tuple(tops)))
    return Decided(kept, tuple(grants), tuple(warnings))


def _links(directory: str, item: _Item, host: Host) -> list[_Item]:
    """What links in a brought directory need so that they lead to the same in the jail.

    Dotfile managers and installers of skills fill such directories with links to elsewhere below the home directory.
    A relative one leads to the same place below the private home, an absolute one to its own path.
    """
    found: list[_Item] = []
    pending = [("", 0)]
    while pending and len(found) < _MOST:
        here, depth = pending.pop()
        for name in host.listing(f"{directory}/{here}".rstrip("/")) or ():
            below = f"{here}/{name}" if here else name
            path = f"{directory}/{below}"
            kind = host.kind(path)
            if kind == "dir" and depth < _DEEPEST:
                pending.append((below, depth + 1))
            if kind != "link" or not (trail := host.trail(path)).canonical or beneath(trail.canonical, directory):
                continue
            text = trail.links[0][1]
            place = posixpath.normpath(posixpath.join(posixpath.dirname(f"{item.inside}/{below}"), text))
            if text.startswith("/") or not item.inside:
                found.append(_Item(path, "", item.source))
            elif not place.startswith(".."):
                found.append(_Item(path, place, item.source))
    return found
