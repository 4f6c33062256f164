"""Settings in the shape that `policy.derive` takes, with the patterns replaced by what exists.

A pattern is a path whose components may hold ``*`` (any run of characters) and ``?`` (one character), neither of them
across a ``/``. Everything else stands for itself, brackets included: ``[id]`` is an ordinary directory's name.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from policy import egress
from policy.config.settings import Settings, Strings


@dataclass(slots=True)
class Rules:
    """The configuration as far as decisions need it; entries of the first group are (value, source).

    `devices` holds (path, access letters, source); `warnings` what the user should be told.
    """

    read: tuple[tuple[str, str], ...]
    write: tuple[tuple[str, str], ...]
    deny: tuple[tuple[str, str], ...]
    system_trees: tuple[tuple[str, str], ...]
    system_files: tuple[tuple[str, str], ...]
    devices: tuple[tuple[str, str, str], ...]
    net: str
    domains: tuple[tuple[str, str], ...]
    domains_denied: tuple[tuple[str, str], ...]
    server_name: str
    reach: tuple[tuple[str, str], ...]
    publish: tuple[tuple[str, str], ...]
    env_pass: tuple[str, ...]
    env_set: tuple[tuple[str, str], ...]
    git: str
    sign: bool
    backend: str
    limits: tuple[tuple[str, int], ...]
    handoff_protect: tuple[str, ...]
    handoff_report: tuple[str, ...]
    handoff_patterns: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]


class Lists(Protocol):
    """The part of `policy.launch.Host` that patterns need."""

    def listing(self, path: str) -> tuple[str, ...] | None:
        """Sorted names in a directory; None when it cannot be listed."""

    def present(self, directory: str, names: tuple[str, ...], suffixes: tuple[str, ...]) -> tuple[str, ...]:
        """Sorted entries of a directory that are in `names` or end in one of `suffixes`; () when unlistable."""


def rules(settings: Settings, root: str, host: Lists) -> Rules:
    """What `derive` needs of `settings`.

    Args:
        settings: the merged configuration.
        root: canonical root of the worktree, which hand-off patterns are relative to.
        host: asked for the listings of directories that a pattern's wildcard stands in, and for nothing else.
    """
    patterns = [entry.value for entry in (*settings.handoff_protect, *settings.handoff_report)]
    top = _present(root, patterns, host)

    def listing(directory: str) -> tuple[str, ...] | None:
        return top if directory == root else host.listing(directory)

    def handoff(patterns: tuple[str, ...]) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for name in patterns:
            first = name.partition("/")[0]
            if first in top or "*" in first or "?" in first:
                found |= dict.fromkeys(path[len(root) + 1 :] for path in expand(f"{root}/{name}", listing, len(root)))
        return tuple(found)

    protect = handoff(tuple(entry.value for entry in settings.handoff_protect))
    report = handoff(tuple(entry.value for entry in settings.handoff_report))
    files = [
        (path, str(entry.source)) for entry in settings.etc_files for path in expand(entry.value, host.listing)
    ] + [(entry.value, str(entry.source)) for entry in settings.kernel_files]
    return Rules(
        read=tuple((entry.value, str(entry.source)) for entry in settings.read),
        write=tuple((entry.value, str(entry.source)) for entry in settings.write),
        deny=tuple((entry.value, str(entry.source)) for entry in settings.deny),
        system_trees=tuple((entry.value, str(entry.source)) for entry in settings.read_trees),
        system_files=tuple(dict.fromkeys(files)),
        devices=tuple(
            (path, entry.value[1], str(entry.source))
            for entry in settings.devices
            for path in expand(entry.value[0], host.listing)
        ),
        net=settings.network_mode.value,
        domains=_domains(settings.allow_domains),
        domains_denied=_domains(settings.deny_domains),
        server_name=settings.server_name.value,
        reach=tuple((entry.value, str(entry.source)) for entry in settings.reach),
        publish=tuple((entry.value, str(entry.source)) for entry in settings.publish),
        env_pass=tuple(entry.value for entry in settings.env_pass),
        env_set=tuple(entry.value for entry in settings.env_set),
        git=settings.git_mode.value,
        sign=settings.sign.value,
        backend=settings.backend.value,
        limits=tuple(entry.value for entry in settings.limits),
        handoff_patterns=tuple((entry.value, "protect") for entry in settings.handoff_protect)
        + tuple((entry.value, "report") for entry in settings.handoff_report),
        handoff_protect=protect,
        # A name that one pattern protects and another reports is protected.
        handoff_report=tuple(name for name in report if name not in set(protect)),
        warnings=settings.warnings(),
    )


def _domains(entries: Strings) -> tuple[tuple[str, str], ...]:
    """(egress rule, source) of each entry, bundles taken apart."""
    found: dict[str, str] = {}
    for entry in entries:
        if entry.value.startswith(egress.MARK):
            for rule in egress.require(entry.value).rules:
                found.setdefault(rule, f"{entry.source} {entry.value}")
        else:
            found[entry.value] = str(entry.source)
    return tuple(found.items())


def _present(root: str, patterns: list[str], host: Lists) -> tuple[str, ...]:
    """The entries of `root` that some pattern may begin with.

    Asked for by name and suffix, so that a Plan does not depend on everything else that comes and goes in a worktree.
    Only a pattern with its wildcard elsewhere than in front needs the whole listing.
    """
    firsts = dict.fromkeys(pattern.partition("/")[0] for pattern in patterns)
    wild = [first for first in firsts if "*" in first or "?" in first]
    suffixes = tuple(first[1:] for first in wild if first[0] == "*" and "*" not in first[1:] and "?" not in first)
    if len(suffixes) < len(wild) or "" in suffixes:
        return host.listing(root) or ()
    return host.present(root, tuple(first for first in firsts if first not in wild), suffixes)


def expand(pattern: str, listing: Callable[[str], tuple[str, ...] | None], plain: int = 0) -> tuple[str, ...]:
    """The paths that `pattern` stands for, sorted per directory. Without wildcard: the pattern itself, unasked."""
    found = [pattern[:plain]]
    for part in pattern[plain:].strip("/").split("/"):
        if "*" not in part and "?" not in part:
            found = [f"{path}/{part}" for path in found]
            continue
        found = [f"{path}/{name}" for path in found for name in listing(path or "/") or () if fits(part, name)]
    return tuple(found)


def fits(pattern: str, name: str) -> bool:
    """Whether one component of a pattern stands for `name`.

    Only the last ``*`` is ever reconsidered, so the time is bounded by the product of the lengths: patterns come from
    files that agents write, and a regular expression could be made to run for years.
    """
    at = seen = 0
    star, mark = -1, 0
    while seen < len(name):
        if at < len(pattern) and pattern[at] == "*":
            star, mark = at, seen
            at += 1
        elif at < len(pattern) and pattern[at] in ("?", name[seen]):
            at += 1
            seen += 1
        elif star >= 0:
            mark += 1
            at, seen = star + 1, mark
        else:
            return False
    return pattern[at:].strip("*") == ""
