"""What of the user's git configuration a private git directory gets: settings of behaviour, and no secret.

An allow-list. Tokens hide in remote URLs, in `http.*.extraHeader`, `credential.*` and `url.*.insteadOf`; hooks paths,
aliases, editors, pagers and askpass programmes lead to files that the jail does not have. Variables: git-config(1).
"""

import os
import shutil
import subprocess
from typing import NamedTuple

from launcher.vcs import disk
from policy.errors import Refusal

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/run/current-system/sw/bin"

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
_PARTS = {
    "branch": frozenset({"remote", "merge", "rebase"}),
    "remote": frozenset({"url", "fetch", "tagopt", "prune"}),
    "submodule": frozenset({"url", "active", "branch", "ignore"}),
    # Commands; without them what they convert would be committed unconverted. They run in the jail.
    "filter": frozenset({"clean", "smudge", "process", "required"}),
    "merge": frozenset({"name", "driver", "recursive"}),
    "diff": frozenset({"xfuncname", "funcname", "wordregex", "binary", "algorithm"}),
}

Setting = tuple[str, str | None]
"""(section.name or section.subsection.name, value); None is the short form of true."""


class Settings(NamedTuple):
    """The effective configuration of a trusted repository.

    Attributes:
        entries: all of it, in the order of precedence.
        home: the user's home directory, for values that begin with ``~/``.
    """

    entries: tuple[Setting, ...]
    home: str

    def last(self, key: str) -> str:
        """The value of a single-valued variable that counts; "" when it is not set."""
        return next((value or "" for name, value in reversed(self.entries) if name == key), "")

    def path(self, key: str) -> str:
        """As `last`, for a path: absolute, or as it is when it is relative; "" when it is not set."""
        value = self.last(key)
        return f"{self.home}/{value[2:]}" if value.startswith("~/") else value


def effective(git_dir: str) -> Settings:
    """What git itself finds in all its configuration files for a trusted git directory.

    Raises:
        Refusal: git-config-unreadable.
    """
    home = os.environ.get("HOME") or os.path.expanduser("~")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "PATH": _SYSTEM_PATH, "HOME": home}
    git = shutil.which("git", path=_SYSTEM_PATH)
    if git is None:
        raise Refusal("git-missing", "git is not installed", hint="install git, or --git readonly")
    try:
        answer = subprocess.run(
            [git, f"--git-dir={git_dir}", "config", "--includes", "--null", "--list"],
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error).encode()
        raise Refusal(
            "git-config-unreadable",
            f"git cannot read its configuration for {git_dir}",
            context=os.fsdecode(said).strip(),
        ) from None
    entries = []
    for item in answer.stdout.split(b"\0")[:-1]:
        name, newline, value = os.fsdecode(item).partition("\n")
        entries.append((name, value if newline else None))
    return Settings(tuple(entries), home)


def shown(settings: Settings) -> list[Setting]:
    """The settings that a private git directory gets."""
    found = []
    for name, value in settings.entries:
        section, _, rest = name.partition(".")
        middle, dot, last = rest.rpartition(".")
        if not dot and last in _WHOLE.get(section, ()):
            found.append((name, value))
        elif dot and middle and last in _PARTS.get(section, ()):
            if last == "url":
                value = without_credentials(value or "")
                if value is None:
                    continue
            found.append((name, value))
    return found


def without_credentials(url: str) -> str | None:
    """A repository's URL without passwords and tokens, None for one of a helper, whose form is not known (gitremotes).

    A user name stays only where it is no secret: over SSH.
    """
    if "::" in url.partition("/")[0]:
        return None
    scheme, mark, rest = url.partition("://")
    if not mark:
        return url  # a path, or host:path
    authority = rest.partition("/")[0].partition("?")[0].partition("#")[0]
    path = rest[len(authority) :].partition("?")[0].partition("#")[0]
    user, at, host = authority.rpartition("@")
    keep = f"{user.partition(':')[0]}@" if at and scheme.lower() in ("ssh", "git+ssh", "ssh+git") else ""
    return f"{scheme}://{keep}{host}{path}"


def hooks(settings: Settings, git_dir: str, root: str, worktree: str) -> tuple[str, str]:
    """Where a repository's hooks are: (the setting that leads to them inside the worktree, else "", directory outside).

    Hooks in the tree (as husky has them) are found by the same setting in the jail; those outside are copied. A link in
    the tree counts as what it is: an agent could have it lead to any directory outside.

    Args:
        settings: of the repository.
        git_dir: with its own hooks.
        root: of its files.
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
