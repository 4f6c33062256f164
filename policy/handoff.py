"""Hand-off files among many: which of the files that a piece of work changed do other tools execute or obey later?

The configured patterns are about the worktree's root. Work that is handed over is looked at more widely: the same name
counts in every directory, because tools look for their files where they are started, and so do nested packages. What
git itself obeys in any directory counts always, whatever is configured.

Pure.
"""

from collections.abc import Iterable
from fnmatch import fnmatchcase

from policy.errors import Refusal, in_rows
from policy.pasted import cited

PROTECT = "protect"
REPORT = "report"

_MOST_NAMED = 20

GIT_OWN: tuple[tuple[str, str], ...] = (
    (".gitattributes", REPORT),
    (".gitmodules", REPORT),
    ("HEAD", PROTECT),
    ("commondir", PROTECT),
    ("config.worktree", PROTECT),
)
"""Obeyed by git in every directory (gitattributes(5)), or by name at the root (gitmodules(5)); and files that make any
directory a bare repository, whose configuration git obeys there (git-config(1), safe.bareRepository)."""


class Patterns:
    """Patterns ready for many paths."""

    def __init__(self, patterns: Iterable[tuple[str, str]]) -> None:
        """Takes (pattern, mode) pairs as `Plan.handoff_patterns` has them; ``*`` and ``?`` do not cross a slash."""
        self._plain: dict[str, list[tuple[tuple[str, ...], str]]] = {}
        self._wild: list[tuple[tuple[str, ...], str]] = []
        patterns = tuple(patterns)
        firsts = {pattern.partition("/")[0] for pattern, mode in patterns if mode == PROTECT}
        self._begin_wild = [_literal(first) for first in firsts if "*" in first or "?" in first]
        self._begin = firsts - {first for first in firsts if "*" in first or "?" in first}
        for pattern, mode in (*patterns, *GIT_OWN):
            parts = tuple(part for part in pattern.split("/") if part)
            if not parts or pattern.startswith("/"):
                continue  # of another tree that was granted
            if "*" in parts[0] or "?" in parts[0]:
                self._wild.append((parts, mode))
            else:
                self._plain.setdefault(parts[0], []).append((parts, mode))

    def begins(self, name: str) -> bool:
        """Whether one of the patterns for protected files begins with `name`; git's own are left out."""
        return name in self._begin or any(fnmatchcase(name, first) for first in self._begin_wild)

    def mode(self, path: str) -> str | None:
        """How `path` (relative, slashes) is treated: ``protect``, ``report``, or None when no pattern is about it."""
        parts = path.split("/")
        found: str | None = None
        for at, part in enumerate(parts):
            for pattern, mode in (*self._plain.get(part, ()), *self._wild):
                if mode != found and _fits(parts[at : at + len(pattern)], pattern):
                    if mode == PROTECT:
                        return PROTECT
                    found = mode
        return found


def _fits(parts: list[str], pattern: tuple[str, ...]) -> bool:
    # Brackets stand for themselves, as everywhere in the configuration.
    return len(parts) == len(pattern) and all(
        part == wanted or (("*" in wanted or "?" in wanted) and fnmatchcase(part, _literal(wanted)))
        for part, wanted in zip(parts, pattern, strict=True)
    )


def _literal(wanted: str) -> str:
    return wanted.replace("[", "[[]")


def refused(changes: Iterable[tuple[str, str, str]], so: str, hint: str) -> Refusal:
    """The Refusal of a strict hand-off.

    Args:
        changes: what has happened, path, mode. What is protected comes first: what comes last may be cut off.
        so: what is not done because of it.
        hint: how to go on when they are read.
    """
    first = sorted(changes, key=lambda change: change[2] != PROTECT)
    lines = [f"{what} {cited(path)}" for what, path, _ in first]
    more = f"and {len(lines) - _MOST_NAMED} more" if len(lines) > _MOST_NAMED else ""
    return Refusal(
        "handoff-strict",
        f"the work changes hand-off files, which other tools execute or obey, so it is {so}",
        context=in_rows(*lines[:_MOST_NAMED], more),
        hint=hint,
    )
