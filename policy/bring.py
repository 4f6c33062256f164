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

FLAG = "--bring"
"""Source of what the user names for one run."""

_MOST = 500
"""Things that are brought for one launch."""
_DEEPEST = 2
"""Levels below what is brought at which links are followed: a skill is a directory in a directory, a command may be a
file one deeper."""
_MOST_LOOKED, _DEEPEST_LOOKED = 5000, 10
"""Entries, and levels, of one directory tree that are searched for credentials."""


class Secrets(NamedTuple):
    """What is never brought: places (absolute path -> what they hold), and names of files anywhere."""

    places: Mapping[str, str]
    names: tuple[str, ...]

    def reason(self, path: str, host: Host) -> str:
        """Why `path` is not to be brought; "" where nothing is known against it."""
        if why := self.by_name(path):
            return why
        inside = []
        for place, what in self.places.items():
            if beneath(path, place):
                return what
            if beneath(place, path):
                inside.append((place, what))
        if inside:
            there = next(((place, what) for place, what in inside if host.kind(place) is not None), None)
            return f"it contains {there[0]}: {there[1]}" if there else "logins would be in it, once there are any"
        return ""

    def by_name(self, path: str) -> str:
        """The same by what tools call their files, wherever they lie."""
        if path.rpartition("/")[2] in self.names:
            return "files of this name contain credentials"
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
        places = dict.fromkeys((item.path, shown, canonical or item.path))
        why = next(filter(None, (secrets.reason(place, host) for place in places)), "")
        if why and count <= named:
            raise _secret(item, item.path, why)
        if not why and canonical is not None:
            closed = [where for where in denied if beneath(canonical, where) or beneath(where, canonical)]
            why = f"{closed[0]} is denied" if closed else ""
        if why:
            warnings.append(f"{item.path} is not brought into the jail ({item.source}): {why}")
            continue
        if canonical is None or host.kind(canonical) not in ("file", "dir"):
            if item.source == FLAG and count <= named:
                raise Refusal(
                    "bring-missing",
                    f"{item.path} {'does not exist' if canonical is None else 'is neither a file nor a directory'}, "
                    "so it cannot be brought",
                    context=f"requested by {item.source}",
                    hint="create it first, or leave the option out; what `files` under [bring] in a configuration "
                    "names is passed over where it is missing",
                )
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
        tree = _looked_through(canonical, secrets, host)
        if tree.hidden and count <= named:
            raise _secret(item, *tree.hidden[0])
        if tree.hidden:  # the rest of it, one by one
            tops = [place[len(canonical) + 1 :].partition("/")[0] for place, _ in tree.hidden]
            for top, (place, why) in zip(tops, tree.hidden, strict=True):
                warnings.append(f"{item.path}/{top} is not brought into the jail ({item.source}): {place}: {why}")
            pending += [
                _Item(f"{item.path}/{name}", item.inside and f"{item.inside}/{name}", item.source)
                for name, _, _ in host.contents(canonical) or ()
                if name not in tops
            ]
            continue
        warnings += [f"{item.path} is brought ({item.source}): {line}" for line in tree.doubts]
        if not item.inside:  # a link in it leads to this absolute path
            grants.append((canonical, READ, item.source))
        else:
            found[item.inside] = (canonical, item.inside, item.source)
        pending += _links(canonical, tree.links, item, host)
    if pending:
        warnings.append(f"more than {_MOST} things are to be brought: {pending[0].path} and what follows is not")
    # What lies in something else that is brought is shown there.
    tops = [f"{inside}/" for inside, (canonical, _, _) in found.items() if canonical]
    kept = tuple(found[inside] for inside in sorted(found) if not inside.startswith(tuple(tops)))
    return Decided(kept, tuple(grants), tuple(warnings))


def _secret(item: _Item, place: str, why: str) -> Refusal:
    inside = "" if place == item.path else f"{place}: "
    option = verdict.told_where(place)
    return Refusal(
        "bring-secret",
        f"{item.path} is not brought into jails",
        context=f"requested by {item.source}; {inside}{why}",
        hint=(f"{option} shows it where it is, tokens included; or " if option else "")
        + "name only the files that you need of it; an agent's own login is passed with --logins",
    )


class _Tree(NamedTuple):
    """What was found in a file or directory: secrets with the reason, links, and what the user should know."""

    hidden: tuple[tuple[str, str], ...]
    links: tuple[str, ...]
    doubts: tuple[str, ...]


def _looked_through(top: str, secrets: Secrets, host: Host) -> _Tree:
    """Searches what is to be brought; a repository's `.git` is passed over, as skills and plugins are often clones."""
    hidden: list[tuple[str, str]] = []
    links: list[str] = []
    shared = [top] if host.names(top) > 1 else []
    pending = deque([("", 0)] if host.kind(top) == "dir" else [])
    doubts: list[str] = []
    looked = 0
    while pending:
        here, depth = pending.popleft()
        for name, kind, names in host.contents(f"{top}/{here}".rstrip("/")) or ():
            looked += 1
            below = f"{here}/{name}" if here else name
            path = f"{top}/{below}"
            if name == ".git":
                continue
            if why := secrets.by_name(path):
                hidden.append((path, why))
            elif kind == "dir" and depth < _DEEPEST_LOOKED:
                pending.append((below, depth + 1))
            elif kind == "dir":
                looked = _MOST_LOOKED
            elif kind == "link" and depth <= _DEEPEST:
                links.append(below)
            elif names > 1:
                shared.append(path)
        if looked >= _MOST_LOOKED:
            doubts.append(f"only {looked} entries of it were searched for credentials")
            break
    if shared:
        more = f" and {len(shared) - 1} more files" if shared[1:] else ""
        doubts.append(
            f"{shared[0]}{more} can be reached under another name (hard links): if that is a file with credentials, "
            "the jail reads it"
        )
    return _Tree(tuple(hidden), tuple(links), tuple(doubts))


def _links(directory: str, links: Iterable[str], item: _Item, host: Host) -> list[_Item]:
    """What links in a brought directory need so that they lead to the same in the jail.

    Dotfile managers and installers of skills fill such directories with links to elsewhere below the home directory.
    A relative one leads to the same place below the private home, an absolute one to its own path.
    """
    found: list[_Item] = []
    for below in links:
        path = f"{directory}/{below}"
        trail = host.trail(path)
        if not trail.canonical or not trail.links or beneath(trail.canonical, directory):
            continue
        text = trail.links[0][1]
        place = posixpath.normpath(posixpath.join(posixpath.dirname(f"{item.inside}/{below}"), text))
        if text.startswith("/") or not item.inside:
            found.append(_Item(path, "", item.source))
        elif not place.startswith(".."):
            found.append(_Item(path, place, item.source))
    return found
