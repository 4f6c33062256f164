"""Files of a worktree that git and shells outside of it obey, because the user's own configuration names them.

Hook directories, filters, aliases and included files are wherever the effective configuration puts them: the
repository's, the user's and the system's, with all that is included under any condition. And a dotfiles repository
holds what links in the home directory lead to. Whoever writes such a file has the user run it: so all are hand-off
files, whether they exist yet or not.

What a command line runs is known by its words only: a script that is named in a script is not.

Sources: git-config(1), githooks(5), gitattributes(5), gitignore(5).
"""

import os
import re
import shlex
from collections.abc import Iterable

from launcher.vcs import git_config
from policy.handoff import PROTECT, REPORT
from policy.launch import Host
from policy.plan import beneath

_HOOKS = (
    "applypatch-msg", "commit-msg", "fsmonitor-watchman", "p4-changelist", "p4-post-changelist", "p4-pre-submit",
    "p4-prepare-changelist", "post-applypatch", "post-checkout", "post-commit", "post-index-change", "post-merge",
    "post-receive", "post-rewrite", "post-update", "pre-applypatch", "pre-auto-gc", "pre-commit", "pre-merge-commit",
    "pre-push", "pre-rebase", "pre-receive", "prepare-commit-msg", "proc-receive", "push-to-checkout",
    "reference-transaction", "sendemail-validate", "update",
)  # fmt: skip
_DIRECTORIES = {("core", "hookspath"): _HOOKS, ("init", "templatedir"): ("hooks", "config", "info", "description")}
"""Variables that name a directory, and what counts where that is the root of the worktree."""
_FILES = frozenset(
    {
        ("core", "excludesfile"), ("core", "attributesfile"), ("commit", "template"), ("mailmap", "file"),
        ("blame", "ignorerevsfile"), ("gpg", "allowedsignersfile"), ("gpg", "revocationfile"),
    }
)  # fmt: skip
_INCLUDES = frozenset({("include", "path"), ("includeif", "path")})
_USUAL = frozenset({".gitignore", ".gitattributes", ".mailmap", ".git-blame-ignore-revs"})
"""Files of a project that agents rightly edit, whoever names them."""
_COMMANDS = {
    "alias": (), "browser": (), "credential": ("helper",), "difftool": ("cmd", "path"), "filter": (),
    "guitool": ("cmd",),
    "core": ("fsmonitor", "editor", "pager", "sshcommand", "askpass", "alternaterefscommand", "gitproxy"),
    "diff": ("external", "command", "textconv"), "gc": ("recentobjectshook",), "hook": ("command",),
    "gpg": ("program", "defaultkeycommand"), "interactive": ("difffilter",), "man": ("cmd", "path"), "lfs": ("path",),
    "merge": ("driver",), "mergetool": ("cmd", "path"), "pager": (), "remote": ("uploadpack", "receivepack", "vcs"),
    "sendemail": ("sendmailcmd", "tocmd", "cccmd", "headercmd", "smtpserver"), "sequence": ("editor",),
    "submodule": ("update",), "tar": ("command",), "trailer": ("command", "cmd"), "uploadpack": ("packobjectshook",),
}  # fmt: skip
"""Section -> variables whose value is a command line; () for all of them."""
_DATA = frozenset({"author", "branch", "color", "committer", "extensions", "i18n", "safe", "url", "user"})
"""Sections whose values name no files of the worktree."""
_VARIABLES = (
    "GIT_EDITOR", "GIT_SEQUENCE_EDITOR", "GIT_PAGER", "GIT_SSH", "GIT_SSH_COMMAND", "GIT_ASKPASS", "SSH_ASKPASS",
    "GIT_EXTERNAL_DIFF", "EDITOR", "VISUAL", "PAGER",
)  # fmt: skip

_HOME = (
    ".bash_aliases", ".bash_login", ".bash_logout", ".bash_profile", ".bashrc", ".profile", ".zlogin", ".zlogout",
    ".zprofile", ".zshenv", ".zshrc", ".kshrc", ".cshrc", ".tcshrc", ".login", ".inputrc", ".xinitrc", ".xprofile",
    ".xsession", ".Xresources", ".vimrc", ".vim", ".gvimrc", ".exrc", ".nanorc", ".emacs", ".emacs.d", ".doom.d",
    ".spacemacs", ".tmux.conf", ".tmux", ".screenrc", ".wezterm.lua", ".gdbinit", ".lldbinit", ".pdbrc", ".irbrc",
    ".pryrc", ".Rprofile", ".psqlrc", ".sqliterc", ".lesskey", ".lessfilter", ".npmrc", ".yarnrc", ".curlrc", ".wgetrc",
    ".pip", ".hgrc", ".direnvrc", ".oh-my-zsh", ".zsh", ".bash_it",
    ".ssh/config", ".ssh/rc", ".ssh/authorized_keys", ".ssh/environment", ".gnupg/gpg.conf", ".gnupg/gpg-agent.conf",
    ".cargo/config.toml", ".cargo/config", ".cargo/env", ".aws/config", ".kube/config", ".docker/config.json",
    ".claude/settings.json", ".claude/hooks", ".claude/commands", ".claude/agents", ".claude/skills",
    ".codex/config.toml", ".gemini/settings.json",
)  # fmt: skip
"""What shells and tools obey in a home directory; links to them are how a dotfiles repository is installed."""
_CONFIG = (
    "git", "fish", "nvim", "vim", "zsh", "bash", "tmux", "direnv", "mise", "environment.d", "systemd/user", "autostart",
    "starship.toml", "alacritty", "kitty", "wezterm", "helix", "zed", "emacs", "doom", "i3", "sway", "hypr", "pip",
    "hg", "gh/config.yml", "Code/User/settings.json", "Code/User/tasks.json",
)  # fmt: skip
"""The same in the directory of configurations; links one level below count, too."""
_MOST_LISTED = 500
_MOST_BASES = 5

Patterns = tuple[tuple[str, str], ...]
"""(path relative to the worktree, absolute in another tree that the command may write; "protect" | "report")."""


def patterns(
    root: str,
    repositories: Iterable[tuple[str, str, str]],
    checkouts: Iterable[str],
    host: Host,
    writable: Iterable[str] = (),
) -> Patterns:
    """What of the worktree is obeyed outside.

    Args:
        root: canonical root of the worktree.
        repositories: (root of the files, git directory, common directory) of its own and of its submodules.
        checkouts: roots of the repository's other checkouts: a commit of the agent's comes there by a merge.
        host: answers about the disk and the environment; all that is asked becomes an input of the Plan.
        writable: canonical paths of further trees that the command may write.
    """
    found = _Found((root, *checkouts), tuple(writable), host)
    found.dotfiles()
    for path, git_dir, common_dir in repositories:
        found.repository(path, git_dir, common_dir)
    return found.patterns()


class _Found:
    def __init__(self, roots: tuple[str, ...], writable: tuple[str, ...], host: Host) -> None:
        self._roots = tuple(dict.fromkeys(roots))
        self._writable = writable
        self._host = host
        self._home = host.env("HOME") or "/"
        self._config = host.env("XDG_CONFIG_HOME") or f"{self._home}/.config"
        self._modes: dict[str, str] = {}

    def patterns(self) -> Patterns:
        return tuple(self._modes.items())

    def dotfiles(self) -> None:
        """What links in the home directory lead to."""
        for name in _HOME:
            self._place(f"{self._home}/{name}")
        for name in _CONFIG:
            self._directory(f"{self._config}/{name}")

    def repository(self, path: str, git_dir: str, common_dir: str) -> None:
        """What the configuration of one repository names, in any of its checkouts."""
        host = self._host
        files = [*git_config.SYSTEM, f"{self._config}/git/config", f"{self._home}/.gitconfig"]
        files += [file for name in ("GIT_CONFIG_SYSTEM", "GIT_CONFIG_GLOBAL") if (file := host.env(name))]
        files += [f"{common_dir}/config", f"{common_dir}/config.worktree", f"{git_dir}/config.worktree"]
        for name in (host.listing(f"{common_dir}/worktrees") or ())[:_MOST_LISTED]:
            files.append(f"{common_dir}/worktrees/{name}/config.worktree")
        reader = git_config.Reader(host, self._home)
        for file in dict.fromkeys(files):
            self._place(file)
            for entry in reader.file(file):
                self._entry(entry, path)
        for name in _VARIABLES:
            self._command(host.env(name) or "", path)
        if template := host.env("GIT_TEMPLATE_DIR"):
            self._entry(git_config.Entry("init", "", "templatedir", template, "", True), path)
        count = host.env("GIT_CONFIG_COUNT") or ""
        for number in range(min(int(count) if count.isdecimal() else 0, _MOST_LISTED)):
            key, value = host.env(f"GIT_CONFIG_KEY_{number}") or "", host.env(f"GIT_CONFIG_VALUE_{number}")
            section, _, rest = key.partition(".")
            subsection, _, name = rest.rpartition(".")
            self._entry(git_config.Entry(section.lower(), subsection, name.lower(), value, "", True), path)
        for file in (f"{self._config}/git/ignore", f"{self._config}/git/attributes", "/etc/gitattributes"):
            self._place(file)
        for file in ("hooks", "info"):
            self._directory(f"{common_dir}/{file}")

    def _entry(self, entry: git_config.Entry, path: str) -> None:
        key, value = (entry.section, entry.name), entry.value or ""
        commands = _COMMANDS.get(entry.section)
        if not value or (entry.section == "alias" and not value.startswith("!")):
            return  # such an alias is a command of git's
        base = os.path.dirname(entry.file) if key in _INCLUDES else path
        place = git_config.expanded(value, self._home, base)
        if key in _DIRECTORIES:
            self._directory(place)
            if "" in self._inside(os.path.normpath(place)):
                self._add(_DIRECTORIES[key], PROTECT)
        elif key in _FILES or key in _INCLUDES:
            self._place(place)
        elif commands is not None and (not commands or entry.name in commands):
            self._command(value.removeprefix("!"), path)
        elif entry.section not in _DATA and entry.name not in ("url", "pushurl"):
            for word in _words(value):
                place = git_config.expanded(word, self._home, path)
                if "/" in word and self._kind(place) == "file":
                    self._place(place, REPORT)

    def _command(self, value: str, path: str) -> None:
        """What the words of a command line name: what is there, and what looks like a file that could be."""
        words = _words(value.replace("${HOME}", "~").replace("$HOME", "~"))
        bases = [path]
        for word in words[1:]:
            if len(bases) < _MOST_BASES and self._kind(f"{path}/{word}") == "dir":
                bases.append(f"{path}/{word}")  # of `cd DIRECTORY && ./script`
        for at, word in enumerate(words):
            # Behind an expansion, as of "$(git rev-parse --show-toplevel)/script", a path only looks absolute.
            for name in (word, word.lstrip("/")) if _EXPANSION.search(value) else (word,):
                if _PATH.fullmatch(name) or _QUOTED.fullmatch(name) or (at and _SCRIPT.fullmatch(name)):
                    self._place(git_config.expanded(name, self._home, path))
                for place in [git_config.expanded(name, self._home, base) for base in bases]:
                    if (at or "/" in name) and self._kind(place) in ("file", "link"):
                        self._place(place)

    def _directory(self, path: str) -> None:
        """A directory whose entries are obeyed: in the worktree as a whole, else what links in it lead to."""
        self._place(path)
        if not self._inside(os.path.normpath(path)):
            for name in (self._host.listing(path) or ())[:_MOST_LISTED]:
                if not name.endswith(".sample") and self._host.kind(f"{path}/{name}") == "link":
                    self._place(f"{path}/{name}")

    def _place(self, path: str, mode: str = PROTECT) -> None:
        """A file that is obeyed under this name: where it lies, and every link that leads there."""
        trail = self._host.trail(path)
        names = [os.path.normpath(path), *(link for link, _ in trail.links)]
        if trail.canonical is not None or trail.links:
            names.append(trail.reached)
        for name in names:
            self._add(self._inside(name), mode)

    def _add(self, names: Iterable[str], mode: str) -> None:
        for name in filter(None, names):
            strict = mode == PROTECT and os.path.basename(name) not in _USUAL
            if strict or name not in self._modes:
                self._modes[name] = PROTECT if strict else REPORT

    def _inside(self, place: str) -> list[str]:
        """The names of a path in the worktree: in every checkout that holds it; the path itself in a granted tree."""
        names = [place[len(root) + 1 :] for root in self._roots if beneath(place, root)]
        found = [name for name in names if name != ".git" and not name.startswith(".git/")]
        return found or [place for tree in self._writable if beneath(place, tree)]

    def _kind(self, path: str) -> str | None:
        """What `path` is, where it lies in a checkout."""
        return self._host.kind(path) if self._inside(os.path.normpath(path)) else None


_EXPANSION = re.compile(r"[$`]|%\(")
_PATH = re.compile(r"(?!s/)[\w.~+@/-]*/[\w.+@-]+")
_SCRIPT = re.compile(r"(?!-)[\w.-]*\w\.[A-Za-z]\w{0,4}")
_QUOTED = re.compile(r"(?=.* )[^\n;|&<>$`]{0,255}/[^\n;|&<>$`]{1,255}")  # a name with a blank in it
_BREAKS = re.compile(r"[\s;|&()<>{}\"'`=,$!]+")


def _words(value: str) -> list[str]:
    """The words of a command line, those in quotes and behind the `=` of an option, too."""
    try:
        words = shlex.split(value)
    except ValueError:
        words = []
    return [*dict.fromkeys(word for word in (*_BREAKS.split(value), *words) if word and "\0" not in word)]
