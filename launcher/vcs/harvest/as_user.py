"""The user's own git, with his own configuration: for what only that can do, which is to log in and to sign.

Nothing of a tree that sessions write, or once wrote, may take part (`written.agents_choice`). The repository is named
by its trusted git directory, the current directory is `/`, hooks are off (a relative `core.hooksPath` would lead into
the worktree), and PATH and the other variables lead into no such tree. Neither may a file of the configuration, or
what a value of it names, lie there: also what is not there yet, because a session may make it before git looks.
A remote on this machine is a repository whose hooks and configuration git obeys, and a helper of another transport is a
programme in PATH: git itself is told to use neither (git(1), GIT_ALLOW_PROTOCOL).
"""

import os
import re
import shlex
import subprocess
from collections.abc import Iterable
from typing import NamedTuple

from launcher.vcs import git_config, written
from launcher.vcs.disk import Names
from launcher.vcs.git import Git, executable
from launcher.vcs.harvest import lfs
from policy.errors import Refusal, in_rows
from policy.pasted import quoted

_DATA = re.compile(
    r"safe\.directory|maintenance\.repo|scalar\.repo|gui\.recentrepo|core\.(?:worktree|excludesfile|attributesfile)"
    r"|commit\.template|blame\.ignorerevsfile|core\.(?:hookspath|fsmonitor)"
    r"|(?:remote|submodule)\..*\.(?:push)?url|url\..*",
    re.DOTALL,
)
"""Keys whose values may name an agent's tree (git-config(1)): what is done here as the user obeys none of them, or
`prepare` overrides them, or they are addresses, of which git takes those of `TRANSPORTS` only. Of all others, also of
those that git gets one day, each path counts, and each name that leads there from PATH: an alias, too, may stand for a
programme that git looks for, as `git credential-NAME` does."""

TRANSPORTS = ("ssh", "https", "http", "git")
"""Those for which git starts no programme of this machine but ssh and its own."""

_BEGINS = re.compile(r"(?:(?<![\w.~/+-])|(?<=^-\w)|(?<=\s-\w))[/~]")
"""Behind a letter only where that is an option's, as in `ssh -F/FILE`."""
_ENDS = re.compile(r"[\s'\"`;&|<>(){},:=]")
_RUN = (
    *("git", "gpg", "gpgsm", "gpgv", "ssh", "ssh-keygen", "ssh-add", "ssh-askpass", "sh"),
    *(f"git-remote-{each}" for each in TRANSPORTS),
)
"""Programmes that git, or one that git runs, looks for in PATH by itself; the last ones for addresses such as
``ssh::ADDRESS`` (gitremote-helpers(7))."""

_TEMPORARY = ("TMPDIR", "TMP", "TEMP")
"""They may lead into a tree of an agent's, and git writes a file there that holds what is to be signed."""


class AsUser(NamedTuple):
    """How the user's git is called on one repository.

    Attributes:
        words: the programme and its options; a sub-command comes behind them.
        environment: the whole of it.
        settings: his effective configuration; keys as git writes them, the last value of each.
    """

    words: tuple[str, ...]
    environment: dict[str, str]
    settings: dict[str, str]


class _Judge:
    """What agents decide, for one call: the harvested worktree's, and those of every session on record.

    Attributes:
        path: directories of PATH in which they decide nothing.
    """

    def __init__(self, worktree: str, own: tuple[str, ...]) -> None:
        self._worktree = worktree
        self._own = own
        self._names = Names()
        self._known: dict[str, bool] = {}
        entries = os.environ.get("PATH", os.defpath).split(":")
        self.path = [each for each in entries if each.startswith("/") and not self.agents(each)]

    def agents(self, path: str) -> bool:
        """Whether an agent decides what is, or will be, at a path; relative ones begin where git is run."""
        path = os.path.join("/", path)
        if path not in self._known:
            self._known[path] = written.agents_choice(self._names.walk(path), self._worktree, *self._own)
        return self._known[path]

    def named(self, value: str) -> str:
        """The first path in a value that an agent decides, or that a name in it has in PATH; "" for none."""
        return next((path for path in _paths(value) if self.agents(path)), "") or self.started(_names(value))

    def started(self, names: Iterable[str]) -> str:
        """The first of programmes in PATH that an agent decides; "" for none."""
        paths = (f"{directory}/{name}" for name in dict.fromkeys(names) for directory in self.path)
        return next((path for path in paths if os.path.lexists(path) and self.agents(path)), "")

    def refuse(self, path: str, why: str) -> None:
        """Refuses a path that an agent decides."""
        if self.agents(path):
            raise _refused(path, why)


def prepare(git_dir: str, common_dir: str, worktree: str) -> AsUser:
    """The user's git on a trusted repository.

    Args:
        common_dir: trusted; may lie in the worktree (`.git` of a main checkout), where the jail covers it.
        worktree: where the agent writes.

    Refusals: git-missing, git-config-unreadable, git-config-in-worktree, git-dir-written.
    """
    for directory in dict.fromkeys((common_dir, git_dir)):
        written.refuse_agents_git_dir(directory)
    judge = _Judge(worktree, (os.path.realpath(common_dir), os.path.realpath(git_dir)))
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GIT_")
        and name not in _TEMPORARY
        and (name in ("HOME", "XDG_CONFIG_HOME") or not judge.named(value))
    }
    environment |= {"PATH": ":".join(judge.path), "GIT_ALLOW_PROTOCOL": ":".join(TRANSPORTS)}
    home = os.environ.get("HOME") or os.path.expanduser("~")
    base = os.environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
    for file in (*git_config.SYSTEM, f"{base}/git/config", f"{home}/.gitconfig"):
        judge.refuse(file, "git would obey that file of its configuration")
    git = executable(("config",), git_dir)
    words = (git, f"--git-dir={git_dir}", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false")
    listed = subprocess.run(
        [*words, "config", "--list", "--includes", "--show-origin", "--null"],
        env=environment, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    if listed.returncode != 0:
        raise Refusal(
            "git-config-unreadable",
            f"git cannot read its configuration for {git_dir}",
            context=os.fsdecode(listed.stderr).strip(),
        )
    settings: dict[str, str] = {}
    fields = os.fsdecode(listed.stdout).split("\0")
    for origin, entry in zip(fields[::2], fields[1::2], strict=False):
        key, _, value = entry.partition("\n")
        settings[key] = value
        if not origin.startswith("file:"):
            continue
        file = os.path.join("/", origin.removeprefix("file:"))
        judge.refuse(file, "git would obey that file of its configuration")
        if key.startswith(("include.", "includeif.")) and key.endswith(".path"):
            place = git_config.expanded(value, home, os.path.dirname(file))
            judge.refuse(place, "git would obey that file of its configuration")
        elif not _DATA.fullmatch(key):
            helpers = (f"git-credential-{name}" for name in _names(value) if key.endswith(".helper"))
            if path := judge.named(value) or judge.started(helpers):
                raise _refused(path, f"{key} names it")
    if path := judge.started(_RUN):
        raise _refused(path, "git runs it")
    return AsUser(words, environment, settings)


def _paths(value: str) -> list[str]:
    """All that may be a path in a value: it itself, and what begins like one, to its end and to the next separator.

    A shell may put together others, of which nobody can tell.
    """
    found: dict[str, None] = {}
    for text in dict.fromkeys((value, os.path.expandvars(value))):
        for word in (text, *_words(text)):
            for begin in _BEGINS.finditer(word):
                rest = word[begin.start() :]
                found |= dict.fromkeys(map(os.path.expanduser, (rest, _ENDS.split(rest, maxsplit=1)[0])))
    return list(found)


def _names(value: str) -> list[str]:
    """All that may be the name of a programme in a value: each piece of a word, as a shell's command is one."""
    pieces = (piece for word in _words(value.removeprefix("!")) for piece in _ENDS.split(word))
    return [piece for piece in pieces if piece and "/" not in piece]


def _words(value: str) -> list[str]:
    try:
        return shlex.split(value)
    except ValueError:
        return value.split()


def _refused(path: str, why: str) -> Refusal:
    return Refusal(
        "git-config-in-worktree",
        f"git is not run with your own configuration, because {path} is where agents write",
        context=why,
        hint="read that file and do it yourself, or move it out of the trees of sessions",
    )


# Pushing a harvested branch, as the user and with his credentials, without anything of the worktree taking part.
#
# It is the user's own git with his own configuration (`as_user`), because only that knows how to log in.

PATIENCE = 600.0
"""Seconds. Credential helpers may ask the user."""

_NOT_ALLOWED = re.compile(r"^fatal: transport '(.+)' not allowed$", re.MULTILINE)
"""Git's own words (transport.c), where nothing translates them."""


def push(git_dir: str, worktree: str, branch: str, remote: str) -> str:
    """Pushes one branch; returns what git said, as `readable` has it.

    Args:
        worktree: nothing in it is executed.

    Refusals: push-remote, push-failed, push-lfs: objects of Git LFS are pushed by a hook of its own; push-transport: by
    none of `TRANSPORTS`; those of `as_user.prepare`.
    """
    if not remote or remote.startswith("-") or "/" in remote:
        raise Refusal("push-remote", f"{remote!r} is not a remote", hint="git remote -v")
    git = Git(git_dir)
    user = prepare(git_dir, git.common_dir, worktree)
    yourself = f"git push {quoted(remote)} {quoted(branch.removeprefix('refs/heads/'))}"
    if os.path.isdir(lfs.lfs_store(git)):
        raise Refusal(
            "push-lfs",
            "this repository uses Git LFS, whose objects are pushed only by its own hook",
            context="hooks are off when Paddock pushes: they may point into the worktree",
            hint=f"push it yourself: {yourself}",
        )
    command = [*user.words, "-c", "push.recurseSubmodules=no", "push", "--no-verify", "--porcelain", "--", remote]
    try:
        done = subprocess.run(
            [*command, f"{branch}:{branch}"],
            env=user.environment | {"LANGUAGE": "C"},  # for `_NOT_ALLOWED`
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Refusal("push-failed", f"git push {remote} did not finish within {PATIENCE:.0f} seconds") from None
    if done.returncode != 0 and (refused := _NOT_ALLOWED.search(done.stdout)):
        raise Refusal(
            "push-transport",
            f"git would push to {remote} by {refused[1]!r}, and Paddock pushes only by {', '.join(TRANSPORTS)}",
            context="by others git starts programmes of this machine, such as hooks, and agents may have written them",
            hint=f"the harvested commits are in the main repository; push them yourself: {yourself}",
        )
    if done.returncode != 0:
        raise Refusal(
            "push-failed",
            f"git push {remote} failed; the harvested commits are in the main repository",
            context=in_rows(*readable(done.stdout).split("\n")[-8:]),
            hint=yourself,
        )
    return readable(done.stdout)


def readable(said: str) -> str:
    """What ``git push --porcelain`` prints, as it prints it without that option (git-push(1), OUTPUT).

    Args:
        said: lines of ``FLAG <tab> FROM:TO <tab> SUMMARY``, among others that stay as they are, but for the last one,
            ``Done``.
    """
    lines = []
    for line in said.strip("\n").split("\n"):
        flag, *fields = line.split("\t")
        if len(flag) == 1 and len(fields) == 2:
            source, _, target = (name.removeprefix("refs/heads/") for name in fields[0].partition(":"))
            lines.append(f" {flag} {fields[1]}  {source} -> {target}")
        elif line != "Done":
            lines.append(line.replace("\t", " "))
    return "\n".join(lines)
