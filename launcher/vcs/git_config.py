"""Git's configuration files, read as text: nothing is executed, and every file that is read was judged before.

Configuration decides what is copied into jails and what runs outside of them, so none of it may be an agent's. A file
whose name leads into a tree that an agent writes is not followed; what is followed is opened by the canonical path
that was judged, through no link, so nobody can exchange it in between.

Sources: git-config(1), and config.c of git for what that leaves open.
"""

import os
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from launcher.vcs import written
from launcher.vcs.disk import Seen
from policy.launch import Trail

MOST_BYTES = 1 << 20
_MOST_FILES = 100
_DEEPEST = 10
"""So many includes deep git follows."""

SYSTEM = ("/etc/gitconfig", "/usr/local/etc/gitconfig")
_SPACE = " \t\r\v\f"
_ESCAPES = {"n": "\n", "t": "\t", "b": "\b", "\\": "\\", '"': '"'}


class Files(Protocol):
    """The part of `policy.launch.Host` that reading needs; `launcher.vcs.disk.Seen` and `session.machine.Machine`."""

    def trail(self, path: str) -> Trail:
        """Where `path` leads and how, from one walk."""

    def read(self, path: str, limit: int = 65536) -> bytes | None:
        """Content of the regular file that the same walk found; None when it cannot be read."""


class Entry(NamedTuple):
    """One variable.

    Attributes:
        section, name: in small letters.
        subsection: as it is written.
        value: None is the short form of true.
        file: where it was read, as that was named.
        own: the file is no agent's; paths in one that is are nobody's but the agent's choice.
    """

    section: str
    subsection: str
    name: str
    value: str | None
    file: str
    own: bool

    @property
    def key(self) -> str:
        """As `git config --list` prints it."""
        return f"{self.section}.{self.subsection}.{self.name}" if self.subsection else f"{self.section}.{self.name}"


class Malformed(ValueError):
    """Git could not read the file either."""


def entries(content: bytes) -> list[tuple[str, str, str, str]]:
    """All variables of a file in order, as (section, subsection, name, value), up to where git could not read on."""
    found: list[tuple[str, str, str, str]] = []
    try:
        for section, subsection, name, value in _Parser(content).variables():
            found.append((section, subsection, name, "true" if value is None else value))
    except Malformed:
        pass
    return found


def expanded(value: str, home: str, base: str) -> str:
    """A path of the configuration, absolute (git-config(1), pathname)."""
    if value == "~" or value.startswith("~/"):
        value = home + value[1:]
    elif value.startswith("~"):
        value = os.path.expanduser(value)
    elif value.startswith("%(prefix)/"):
        value = f"/usr/{value[10:]}"
    return os.path.join(base, value)


class Reader:
    """Configuration as git would put it together from several files.

    Args:
        agents: whether an agent decides what a walk has found; never, where it does not matter whose a file is.
        holds: whether a condition of ``includeIf`` holds in the file of this name.
        strict: raise `Malformed` for a file that git could not read.
    """

    def __init__(
        self,
        files: Files,
        home: str,
        *,
        agents: Callable[[Trail], bool] = lambda trail: False,
        holds: Callable[[str, str], bool] = lambda condition, file: True,
        strict: bool = False,
    ) -> None:
        self._files = files
        self._home = home
        self._agents = agents
        self._holds = holds
        self._strict = strict
        self._read: dict[str, None] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all files that were looked for."""
        return tuple(self._read)

    def file(self, path: str, *, _depth: int = 0) -> list[Entry]:
        """The variables of one file and of what it includes; none when it is not there.

        A file that somebody else but an agent names is read also where an agent may have written it, unless a link of
        the agent's leads to it. What such a file includes is left alone.
        """
        if _depth > _DEEPEST or len(self._read) > _MOST_FILES:
            return []
        self._read[path] = None
        trail = self._files.trail(path)
        own = not self._agents(trail)
        if not own and (_depth or any(self._agents(Trail(link, (), link, link)) for link, _ in trail.links)):
            return []
        content = self._files.read(path, MOST_BYTES)
        found: list[Entry] = []
        try:
            for section, subsection, name, value in _Parser(content or b"").variables():
                found.append(Entry(section, subsection, name, value, path, own))
                if own and value and name == "path" and self.included(found[-1]):
                    found += self.file(expanded(value, self._home, os.path.dirname(path)), _depth=_depth + 1)
        except Malformed as error:
            if self._strict:
                raise Malformed(f"{path}: {error}") from None
        return found

    def included(self, entry: Entry) -> bool:
        """Whether a `path` is that of a file to include."""
        if entry.section == "include":
            return not entry.subsection
        return entry.section == "includeif" and self._holds(entry.subsection, entry.file)


def condition_holds(
    condition: str, file: str, *, git_dir: str, home: str, branch: str | None, urls: Iterable[str]
) -> bool:
    """Whether a condition of ``includeIf`` holds (git-config(1), Conditional includes); an unknown one does not."""
    kind, _, pattern = condition.partition(":")
    if kind in ("gitdir", "gitdir/i"):
        if pattern.startswith("./"):
            pattern = os.path.join(os.path.dirname(file), pattern[2:])
        elif pattern.startswith("~/"):
            pattern = home + pattern[1:]
        pattern = pattern if pattern.startswith("/") else f"**/{pattern}"
        return _fits(pattern + "**" if pattern.endswith("/") else pattern, git_dir, fold=kind.endswith("/i"))
    if kind == "onbranch" and branch is not None:
        return _fits(pattern + "**" if pattern.endswith("/") else pattern, branch)
    if kind == "hasconfig" and pattern.startswith("remote.*.url:"):
        return any(_fits(pattern[13:], url) for url in urls)
    return False


def _fits(pattern: str, text: str, *, fold: bool = False) -> bool:
    result = ""
    at = 0
    while at < len(pattern):
        char = pattern[at]
        ahead = pattern.startswith("**", at) and (at == 0 or pattern[at - 1] == "/")
        if ahead and pattern.startswith("**/", at):
            result += "(?:.*/)?"
            at += 3
            continue
        if ahead and at + 2 == len(pattern):
            result += ".*"
            at += 2
            continue
        end = pattern.find("]", at + 2) if char == "[" else -1
        if char == "*":
            result += "[^/]*"
        elif char == "?":
            result += "[^/]"
        elif end != -1:
            inner = pattern[at + 1 : end]
            negated = inner[0] in "!^"
            result += f"(?!/)[{'^' if negated else ''}{re.escape(inner[negated:]).replace(chr(92) + '-', '-')}]"
            at = end
        else:
            at += char == "\\" and at + 1 < len(pattern)
            result += re.escape(pattern[at])
        at += 1
    try:
        return re.fullmatch(result, text, re.DOTALL | (re.IGNORECASE if fold else 0)) is not None
    except re.error:
        return False


class _Parser:
    def __init__(self, content: bytes) -> None:
        self._text = os.fsdecode(content.removeprefix(b"\xef\xbb\xbf")).replace("\r\n", "\n") + "\n"
        self._at = 0

    def variables(self) -> "Iterable[tuple[str, str, str, str | None]]":
        section = subsection = ""
        while self._at < len(self._text):
            char = self._next()
            if char == "\n" or char in _SPACE:
                continue
            if char in "#;":
                self._at = self._text.index("\n", self._at)
            elif char == "[":
                section, subsection = self._header()
            elif char.isascii() and char.isalpha():
                name, value = self._variable(char)
                yield section, subsection, name, value
            else:
                raise self._bad()

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise self._bad()
        self._at += 1
        return self._text[self._at - 1]

    def _bad(self) -> Malformed:
        return Malformed(f"line {self._text.count(chr(10), 0, self._at) + 1}")

    def _header(self) -> tuple[str, str]:
        section = ""
        while (char := self._next()) != "]":
            if char == "\n":
                raise self._bad()
            if char in _SPACE:
                return section.lower(), self._quoted()
            if not _of_key(char) and char != ".":
                raise self._bad()
            section += char
        head, _, tail = section.lower().partition(".")
        return head, tail

    def _quoted(self) -> str:
        while (char := self._next()) in _SPACE:
            continue
        if char != '"':
            raise self._bad()
        found = ""
        while (char := self._next()) != '"':
            if char == "\\":
                char = self._next()
            if char == "\n":
                raise self._bad()
            found += char
        if self._next() != "]":
            raise self._bad()
        return found

    def _variable(self, first: str) -> tuple[str, str | None]:
        name = first
        while _of_key(char := self._next()):
            name += char
        while char in " \t":
            char = self._next()
        if char == "\n":
            return name.lower(), None
        if char != "=":
            raise self._bad()
        return name.lower(), self._value()

    def _value(self) -> str:
        found = space = ""
        quoted = False
        while (char := self._next()) != "\n" or quoted:
            if char == "\n":
                raise self._bad()
            if char in _SPACE and not quoted:
                space += char if found else ""
                continue
            if char in "#;" and not quoted:
                self._at = self._text.index("\n", self._at)
                continue
            found, space = found + space, ""
            if char == '"':
                quoted = not quoted
            elif char != "\\":
                found += char
            elif (char := self._next()) != "\n":
                if char not in _ESCAPES:
                    raise self._bad()
                found += _ESCAPES[char]
        return found


def _of_key(char: str) -> bool:
    return char.isascii() and (char.isalnum() or char == "-")


# The two things of the user's own git configuration that worktrees need: what he ignores, and filters he asks for.
#
# Everything else of it is left out, because it names programmes (`git.overrides`), and so is what an agent could write.
# Read as text; conditions of includes count as not met.

_FILTER_KEYS = ("clean", "smudge", "process", "required")


class UserConfig(NamedTuple):
    """Settings for `Git(settings=...)`.

    Attributes:
        ignores: ``core.excludesFile``: what does not count as untracked.
        filters: the `filter` drivers, as (name of the driver, setting).
    """

    ignores: tuple[tuple[str, str], ...] = ()
    filters: tuple[tuple[str, tuple[str, str]], ...] = ()

    def of_filters(self, wanted: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
        """The settings of these drivers."""
        return tuple(setting for name, setting in self.filters if name in wanted)


def read(home: str, config_home: str) -> UserConfig:
    """The user's configuration; nothing that an agent could write, or that a link of an agent's leads to."""
    excludes = f"{config_home}/git/ignore"  # git's own default
    filters: dict[tuple[str, str], str] = {}
    files = Seen()

    def agents(trail: Trail) -> bool:
        return bool(written.tree_of(trail))

    reader = Reader(files, home, agents=agents, holds=lambda condition, file: False)
    for path in (f"{config_home}/git/config", f"{home}/.gitconfig"):
        for entry in reader.file(path):
            value = "true" if entry.value is None else entry.value
            if not entry.own:
                continue
            if entry.key == "core.excludesfile":
                excludes = expanded(value, home, "")
            elif entry.section == "filter" and entry.subsection and entry.name in _FILTER_KEYS:
                filters[entry.subsection, entry.name] = value
    # What is ignored is removed with a worktree.
    if not excludes.startswith("/") or agents(files.trail(excludes)):
        excludes = os.devnull
    return UserConfig(
        (("core.excludesFile", excludes),),
        tuple((driver, (f"filter.{driver}.{name}", value)) for (driver, name), value in filters.items()),
    )


def remotes(common_dir: str) -> set[str]:
    """What branches of remotes may be called by, before a slash, after all files of the user's configuration.

    Each condition of an include counts as met, and other worktrees' own files count: a name too many does no harm.
    """
    home = os.environ.get("HOME") or os.path.expanduser("~")
    base = os.environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
    named = (os.environ.get(f"GIT_CONFIG_{scope}", "") for scope in ("SYSTEM", "GLOBAL"))
    own = (common_dir, *(f"{common_dir}/worktrees/{name}" for name in _names(f"{common_dir}/worktrees")))
    users = (*SYSTEM, *filter(os.path.isabs, named), f"{base}/git/config", f"{home}/.gitconfig")
    # One reader for each: what it reads is bounded.
    files = (*users, f"{common_dir}/config", *(f"{directory}/config.worktree" for directory in own))
    found = {name for directory in ("remotes", "branches") for name in _names(f"{common_dir}/{directory}")}
    for entry in (entry for file in files for entry in Reader(Seen(), home).file(file)):
        value = entry.value or ""
        if entry.section in ("remote", "svn-remote") and entry.subsection:
            found.add(entry.subsection)
        if entry.name == "fetch" and (target := value.rpartition(":")[2]).startswith("refs/"):
            found |= {*target.split("/")[1:3]} - {"heads", "remotes", "tags", "*"}
        if entry.name in ("remote", "pushremote", "pushdefault", "defaultremote"):
            found.add(value)
    return found - {"", "."}


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []
