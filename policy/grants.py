"""Deny inside allow: Landlock rules only add, so a tree with exceptions is granted as its siblings.

Pure; the directory listings come in as a function.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from policy.host import Host
from policy.plan import Grant, beneath

Listing = Callable[[str], tuple[tuple[str, bool], ...]]
"""Canonical directory -> its entries as (name, whether it is a symbolic link); () when it cannot be listed."""


def listing_of(host: Host) -> Listing:
    """The listing of a machine's directories."""

    def listing(path: str) -> tuple[tuple[str, bool], ...]:
        prefix = "" if path == "/" else path
        return tuple((name, host.kind(f"{prefix}/{name}") == "link") for name in host.listing(path) or ())

    return listing


def meet(first: str, second: str) -> str:
    """The access that both allow, in the order of `first`."""
    return "".join(letter for letter in first if letter in second)


def expand(grants: Iterable[Grant], exceptions: Mapping[str, str], listing: Listing) -> tuple[Grant, ...]:
    """Rewrites `grants` so that no path named in `exceptions` gets more than the exception leaves.

    Args:
        grants: with canonical paths (slots are left alone: they never hold an exception).
        exceptions: canonical path -> the access that stays possible at and below it ("" for none). Where
            exceptions are nested, each one only ever narrows what is above it.
        listing: see `Listing`. A name that appears later is not granted: that is the price.

    An ancestor of an exception keeps the access that is common to everything below it, because a Landlock rule
    reaches the whole subtree: beside a denied path the parent cannot even be listed; beside a read-only one it
    can be listed and read, but no entry can be made in it.
    """
    result: list[Grant] = []
    for path, access, source in grants:
        if path.startswith("@"):
            result.append((path, access, source))
            continue
        for ceiling_path, ceiling in exceptions.items():
            if beneath(path, ceiling_path):
                access = meet(access, ceiling)
        result.extend(_expanded(path, access, source, exceptions, listing))
    return tuple(result)


def _expanded(path: str, access: str, source: str, exceptions: Mapping[str, str], listing: Listing) -> Iterator[Grant]:
    if not access:
        return
    inner = {where: left for where, left in exceptions.items() if where != path and beneath(where, path)}
    common = access
    for left in inner.values():
        common = meet(common, left)
    if common == access:
        yield (path, access, source)
        return
    if common:
        yield (path, common, source)
    prefix = "" if path == "/" else path
    for name, is_link in listing(path):
        if is_link:
            continue  # the rule would land on its target; the target has a grant of its own or none
        child = f"{prefix}/{name}"
        yield from _expanded(child, meet(access, inner.get(child, access)), source, inner, listing)
