"""What of the user's git configuration a private git directory gets: settings of behaviour, and no secret.

An allow-list of variables, each with the shape that its values and its subsection's name must have. Tokens hide in
remote URLs, which `git push -u URL` also writes to `branch.*.remote`, in names of subsections, in the arguments of
filters, in `http.*.extraHeader`, `credential.*` and `url.*.insteadOf`; hooks paths, aliases, editors and askpass
programmes lead to files that the jail does not have. Variables: git-config(1).
"""

import os
import re
import shlex
from collections.abc import Callable
from typing import NamedTuple

from launcher.vcs import checkout, disk, git_config, written
from policy.errors import Refusal
from policy.launch import Trail
from policy.plan import beneath

_WHOLE = {
    "core": frozenset(
        {
            "filemode",
            "symlinks",
            "ignorecase",
            "precomposeunicode",
            "autocrlf",
            "eol",
            "safecrlf",
            "quotepath",
            "trustctime",
            "checkstat",
            "commentchar",
            "whitespace",
            "abbrev",
            "bigfilethreshold",
            "compression",
            "protecthfs",
            "protectntfs",
            "sparsecheckout",
            "sparsecheckoutcone",
        }
    ),
    "index": frozenset({"sparse", "version"}),
    "init": frozenset({"defaultbranch"}),
    "user": frozenset({"name", "email"}),
    "author": frozenset({"name", "email"}),
    "committer": frozenset({"name", "email"}),
    "commit": frozenset({"cleanup", "verbose"}),
    "push": frozenset({"default"}),
    "pull": frozenset({"rebase", "ff"}),
    "merge": frozenset({"ff", "conflictstyle", "renames", "directoryrenames", "renamelimit", "autostash"}),
    "rerere": frozenset({"enabled", "autoupdate"}),
    "rebase": frozenset({"autosquash", "autostash", "updaterefs"}),
    "diff": frozenset(
        {
            "algorithm",
            "renames",
            "renamelimit",
            "submodule",
            "ignoresubmodules",
            "mnemonicprefix",
            "noprefix",
            "colormoved",
        }
    ),
    "status": frozenset({"submodulesummary", "showuntrackedfiles", "relativepaths"}),
    "submodule": frozenset({"recurse"}),
    "i18n": frozenset({"commitencoding", "logoutputencoding"}),
    "apply": frozenset({"whitespace"}),
    "branch": frozenset({"sort", "autosetupmerge", "autosetuprebase"}),
    "tag": frozenset({"sort"}),
    "log": frozenset({"date"}),
    "column": frozenset({"ui"}),
}
_FAILS = "echo 'this command may hold a password, so Paddock does not pass it into the jail' >&2; exit 1"
"""What stands for a filter or a merge driver that is left out: without one, git would commit unconverted files."""

Setting = tuple[str, str | None]
"""(section.name or section.subsection.name, value); None is the short form of true."""


def _shaped(pattern: str) -> Callable[[str], str | None]:
    shape = re.compile(pattern)
    return lambda value: value if shape.fullmatch(value) else None


_plain = _shaped(r"(?:(?!//)[\w ,.:+/%-]|=\d){0,100}|.?")
"""Words, numbers, lists of them, and the one character of core.commentChar."""
_text = _shaped(r"(?!.*://)(?!.*[^\s:/@]+:[^\s@]+@).{0,200}")
_ref = _shaped(r"refs/[^\s:@~^?*\[\\][^\s:~^?*\[\\]*")
_refspec = _shaped(r"[+^]?refs/[^\s:@~^?\[\\]+(?::refs/[^\s:@~^?\[\\]+)?")
_name = _shaped(r"[\w.-]+")
_path = _shaped(r"[^\s:@~^?*\[\\][^\s:~^?*\[\\]*")
_SENSITIVE = re.compile(r"-[kKpPuH]$|-.*(?:pass|pw|token|secret|auth|cred|user|key(?!-name))", re.IGNORECASE)
_PROGRAM = re.compile(r"(?!(?:.*/)?(?:openssl|curl|wget|sed|perl|awk)$)[\w./~+-]+")
_ARGUMENT = re.compile(r"--?[a-z][a-z-]*(?:=(?:%[A-Za-z]|[a-z-]+))?|-[A-Za-z]|--|%[A-Za-z]|\d{1,4}|[a-z][a-z._-]{0,30}"
                       r"|(?:/|\.\.?/|~/)[\w./+-]*", re.ASCII)  # fmt: skip


def _command(value: str) -> str:
    """A command that consists of a programme, options, placeholders and names of files; else what fails in its place.

    Passwords are arguments: `openssl enc -k PASSWORD` is a recipe, and so is a sed that takes them out of files.
    """
    try:
        words = shlex.split(value)
    except ValueError:
        return _FAILS
    simple = words and _PROGRAM.fullmatch(words[0]) and all(map(_ARGUMENT.fullmatch, words[1:]))
    return value if simple and not any(map(_SENSITIVE.match, words[1:])) else _FAILS


def _address(value: str) -> str | None:
    return value if _name(value) else without_credentials(value)


_PARTS: dict[str, tuple[Callable[[str], str | None], dict[str, Callable[[str], str | None]]]] = {
    "branch": (_path, {"remote": _address, "merge": _ref, "rebase": _plain}),
    "remote": (_name, {"url": _address, "fetch": _refspec, "tagopt": _plain, "prune": _plain}),
    "submodule": (_path, {"url": _address, "active": _plain, "branch": _path, "ignore": _plain}),
    # Commands; without them what they convert would be committed unconverted. They run in the jail.
    "filter": (_name, {"clean": _command, "smudge": _command, "process": _command, "required": _plain}),
    "merge": (_name, {"name": _text, "driver": _command, "recursive": _plain}),
    "diff": (
        _name,
        {"xfuncname": _text, "funcname": _text, "wordregex": _text, "binary": _plain, "algorithm": _plain},
    ),
}
"""Section -> (shape of the subsection, variable -> shape of its value)."""


class Settings(NamedTuple):
    """The effective configuration of a trusted repository.

    Attributes:
        entries: all of it, in the order of precedence. Of includes only those of files in the worktree, for git in
            the jail to read there.
        home: the user's home directory, for values that begin with ``~/``.
        own: what no agent may have written.
        files: names of all files that were looked for.
    """

    entries: tuple[Setting, ...]
    home: str
    own: tuple[Setting, ...] = ()
    files: tuple[str, ...] = ()

    def last(self, key: str) -> str:
        """The value of a single-valued variable that counts; "" when it is not set."""
        return next((value or "" for name, value in reversed(self.entries) if name == key), "")

    def path(self, key: str) -> str:
        """As `last`, for a path: absolute, or as it is when it is relative; "" when it is not set by the user."""
        value = next((value or "" for name, value in reversed(self.own) if name == key), "")
        return git_config.expanded(value, self.home, "") if value else ""


def effective(git_dir: str, worktree: str) -> Settings:
    """What git itself finds in all its configuration files for a trusted git directory, agents' files left out.

    Args:
        git_dir: of the repository; "" where there is none.
        worktree: canonical root of all that the agent writes.

    Refusals: git-config-unreadable, and those of `written.trees`.
    """
    home = os.environ.get("HOME") or os.path.expanduser("~")
    base = os.environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
    files = disk.Seen()
    common = checkout.common_dir(git_dir, disk.Present()) if git_dir else ""
    head = os.fsdecode(files.read(f"{git_dir}/HEAD") or b"").strip() if git_dir else ""
    branch = head.removeprefix("ref: refs/heads/") if head.startswith("ref: refs/heads/") else None
    urls: list[str] = []

    def holds(condition: str, file: str) -> bool:
        return git_config.condition_holds(condition, file, git_dir=git_dir, home=home, branch=branch, urls=urls)

    def agents(trail: Trail) -> bool:
        return written.agents_choice(trail, worktree)

    def all_of(reader: git_config.Reader) -> list[git_config.Entry]:
        found = []
        for path in (
            *git_config.SYSTEM,
            f"{base}/git/config",
            f"{home}/.gitconfig",
            *([f"{common}/config"] if common else []),
        ):
            found += reader.file(path)
        extended = [entry.value for entry in found if entry.key == "extensions.worktreeconfig"]
        if extended and extended[-1] not in ("false", "no", "off", "0", ""):
            found += reader.file(f"{git_dir}/config.worktree")
        return found

    try:
        reader = git_config.Reader(files, home, agents=agents, holds=holds, strict=True)
        found = all_of(reader)
        if any(entry.section == "includeif" and entry.subsection.startswith("hasconfig:") for entry in found):
            urls += [entry.value or "" for entry in found if (entry.section, entry.name) == ("remote", "url")]
            reader = git_config.Reader(files, home, agents=agents, holds=holds, strict=True)
            found = all_of(reader)
    except git_config.Malformed as error:
        raise Refusal(
            "git-config-unreadable", f"git cannot read its configuration for {git_dir}", context=str(error)
        ) from None
    entries: list[Setting] = []
    for entry in found:
        if entry.section not in ("include", "includeif"):
            entries.append((entry.key, entry.value))
        elif entry.own and entry.value and entry.name == "path" and reader.included(entry):
            place = git_config.expanded(entry.value, home, os.path.dirname(entry.file))
            trail = files.trail(place)
            if beneath(trail.reached, worktree) and agents(trail):
                entries.append(("include.path", trail.canonical or os.path.normpath(place)))
    own = tuple((entry.key, entry.value) for entry in found if entry.own)
    return Settings(tuple(entries), home, own, reader.names)


def shown(settings: Settings) -> list[Setting]:
    """The settings that a private git directory gets."""
    found: list[Setting] = []
    failing: dict[str, None] = {}
    for key, value in settings.entries:
        section, _, rest = key.partition(".")
        middle, dot, last = rest.rpartition(".")
        shape: Callable[[str], str | None] | None = None
        if key == "include.path":
            shape = str
        elif not dot and last in _WHOLE.get(section, ()):
            shape = _text if section in ("user", "author", "committer") else _plain
        elif dot and section in _PARTS and _PARTS[section][0](middle):
            shape = _PARTS[section][1].get(last)
        seen = shape(value) if shape is not None and value is not None else None
        if seen is not None or (shape is not None and value is None):
            found.append((key, seen))
        if seen == _FAILS and section == "filter":
            failing[middle] = None
    names = {key for key, _ in found}
    for name in failing:
        # Where git could not convert, it is not to go on; and what the user's git does not convert is no failure.
        found += [(f"filter.{name}.{last}", "cat") for last in ("clean", "smudge")
                  if f"filter.{name}.{last}" not in names]  # fmt: skip
        found.append((f"filter.{name}.required", "true"))
    return found


_URL = re.compile(
    r"(?P<scheme>https?|ssh|git|git\+ssh|ssh\+git|ftps?|file|rsync)://(?:(?P<user>[\w.-]+)?[^/?#]*@)?"
    r"(?P<host>(?:[\w.-]+|\[[0-9a-fA-F:.]+\])(?::\d*)?)?(?P<path>(?:/[^@:;=&?#\s]*)?)(?:[?#].*)?",
    re.IGNORECASE,
)
_SCP = re.compile(r"(?:[\w.-]{1,64}@)?(?:[\w.-]+|\[[0-9a-fA-F:.]+\]):[^@:;=&?#\s]*")
_LOCAL = re.compile(r"\.{0,2}/[^\n]*|[^@:\s][^@:\n]*")


def without_credentials(url: str) -> str | None:
    """A repository's URL without passwords and tokens, None for one whose form is not known (git-fetch(1), gitremotes).

    A user name stays only where it is no secret: over SSH.
    """
    found = _URL.fullmatch(url)
    if found is None:
        return url if "://" not in url and (_SCP.fullmatch(url) or _LOCAL.fullmatch(url)) else None
    scheme, host = found["scheme"], found["host"] or ""
    if not host and scheme.lower() != "file":
        return None
    user = f"{found['user']}@" if found["user"] and "ssh" in scheme.lower() else ""
    return f"{scheme}://{user}{host}{found['path']}"


def hooks(settings: Settings, git_dir: str, root: str, worktree: str) -> tuple[str, str]:
    """Where a repository's hooks are: (the setting that leads to them inside the worktree, else "", directory outside).

    Hooks in the tree (as husky has them) are found by the same setting in the jail; those outside are copied. A link in
    the tree counts as what it is: an agent could have it lead to any directory outside.

    Args:
        git_dir: with its own hooks.
        worktree: root of all that the agent writes.
    """
    value = settings.path("core.hookspath")
    if not value:
        return "", f"{git_dir}/hooks"
    place = os.path.normpath(os.path.join(root, value))
    if place != root and disk.in_hands_of(worktree, place):
        return value, ""
    return "", place


def text(settings: list[Setting]) -> bytes:
    """Settings as a configuration file."""
    lines = []
    before = ""
    for name, value in settings:
        section, _, rest = name.partition(".")
        middle, dot, last = rest.rpartition(".")
        escaped = middle.replace("\\", "\\\\").replace('"', '\\"')
        header = f'[{section} "{escaped}"]' if dot else f"[{section}]"
        if header != before:
            lines.append(header)
        before = header
        lines.append(f"\t{last}" if value is None else f"\t{last} = {quoted(value)}")
    return os.fsencode("\n".join(lines) + "\n")


def quoted(value: str) -> str:
    """A value as git reads it back whole: in its configuration, and among GIT_ALTERNATE_OBJECT_DIRECTORIES (git(1))."""
    for char, escape in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\t", "\\t"), ("\b", "\\b")):
        value = value.replace(char, escape)
    return f'"{value}"'
