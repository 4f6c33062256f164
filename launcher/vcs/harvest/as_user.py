"""The user's own git, with his own configuration: for what only that can do, which is to log in and to sign.

Nothing of a tree that sessions write, or once wrote, may take part (`written.agents_choice`). The repository is named
by its trusted git directory, the current directory is `/`, hooks are off (a relative `core.hooksPath` would lead into
the worktree), and PATH and the other variables lead into no such tree. Neither may a file of the configuration, or
what a value of it names, lie there: also what is not there yet, because a session may make it before git looks.
"""

import os
import re
import shlex
import subprocess
from typing import NamedTuple
from urllib.parse import unquote

from launcher.vcs import checkout, git_config, written
from launcher.vcs.disk import Names, Present
from launcher.vcs.git import FIXED, Git, executable, overrides
from launcher.vcs.harvest import lfs
from policy.errors import Refusal
from policy.pasted import quoted

_DATA = re.compile(
    r"safe\.directory|maintenance\.repo|scalar\.repo|gui\.recentrepo|core\.(?:worktree|excludesfile|attributesfile)"
    r"|commit\.template|blame\.ignorerevsfile|core\.(?:hookspath|fsmonitor)|alias\..*"
    r"|(?:remote|submodule)\..*\.(?:push)?url|url\..*",
    re.DOTALL,
)
"""Keys whose values may name an agent's tree (git-config(1)): what is done here as the user obeys none of them, or
`prepare` overrides them, or `_refuse_remote` judges them as far as they are in use. Of all others, also of those that
git gets one day, each path counts."""

_BEGINS = re.compile(r"(?:(?<![\w.~/+-])|(?<=^-\w)|(?<=\s-\w))[/~]")
"""Behind a letter only where that is an option's, as in `ssh -F/FILE`."""
_ENDS = re.compile(r"[\s'\"`;&|<>(){},:=]")
_RUN = ("git", "gpg", "gpgsm", "gpgv", "ssh", "ssh-keygen", "ssh-add", "ssh-askpass", "sh")
"""Programmes that git, or one that git runs, looks for in PATH by itself."""

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
    """What agents decide, for one call: the harvested worktree's, and those of every session on record."""

    def __init__(self, worktree: str, own: tuple[str, ...]) -> None:
        self._worktree = worktree
        self._own = own
        self._names = Names()
        self._known: dict[str, bool] = {}

    def agents(self, path: str) -> bool:
        """Whether an agent decides what is, or will be, at a path; relative ones begin where git is run."""
        path = os.path.join("/", path)
        if path not in self._known:
            self._known[path] = written.agents_choice(self._names.walk(path), self._worktree, *self._own)
        return self._known[path]

    def named(self, value: str) -> str:
        """The first path in a value that an agent decides; "" for none."""
        return next((path for path in _paths(value) if self.agents(path)), "")

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
    entries = [each for each in os.environ.get("PATH", os.defpath).split(":") if each.startswith("/")]
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GIT_")
        and name not in _TEMPORARY
        and (name in ("HOME", "XDG_CONFIG_HOME") or not judge.named(value))
    }
    environment["PATH"] = ":".join(entry for entry in entries if not judge.agents(entry))
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
    programmes = dict.fromkeys(_RUN, "git runs it")
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
            if path := judge.named(value):
                raise _refused(path, f"{key} names it")
            programmes |= dict.fromkeys(_programmes(key, value), f"{key} names it")
    for name, why in programmes.items():
        for directory in environment["PATH"].split(":"):
            if os.path.lexists(path := f"{directory}/{name}"):
                judge.refuse(path, why)
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


def _words(value: str) -> list[str]:
    try:
        return shlex.split(value)
    except ValueError:
        return value.split()


_FIXED = frozenset(key.lower() for key, _ in FIXED)


def _programmes(key: str, value: str) -> list[str]:
    """The names that git looks for in PATH because of a setting, if it is one that Paddock's own git overrides."""
    if key not in _FIXED and not overrides([key]):
        return []
    names = [word for word in _words(value.removeprefix("!")) if "/" not in word]
    return [*names, *(f"git-credential-{name}" for name in names if key.endswith(".helper"))]


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


def push(git_dir: str, worktree: str, branch: str, remote: str) -> str:
    """Pushes one branch; returns what git said, as `readable` has it.

    Args:
        worktree: nothing in it is executed.

    Refusals: push-remote, push-failed, push-lfs: objects of Git LFS are pushed by a hook of its own; those of
    `as_user.prepare`, git-config-in-worktree also for a remote that is an agent's; those of `checkout.find`.
    """
    if not remote or remote.startswith("-") or "/" in remote:
        raise Refusal("push-remote", f"{remote!r} is not a remote", hint="git remote -v")
    git = Git(git_dir)
    user = prepare(git_dir, git.common_dir, worktree)
    if os.path.isdir(lfs.lfs_store(git)):
        raise Refusal(
            "push-lfs",
            "this repository uses Git LFS, whose objects are pushed only by its own hook",
            context="hooks are off when Paddock pushes: they may point into the worktree",
            hint=f"push it yourself: git push {quoted(remote)} {quoted(branch.removeprefix('refs/heads/'))}",
        )
    _refuse_remote(user, git, worktree, remote)
    command = [*user.words, "-c", "push.recurseSubmodules=no", "push", "--no-verify", "--porcelain", "--", remote]
    try:
        done = subprocess.run(
            [*command, f"{branch}:{branch}"],
            env=user.environment,
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
    if done.returncode != 0:
        raise Refusal(
            "push-failed",
            f"git push {remote} failed; the harvested commits are in the main repository",
            context="\n".join(readable(done.stdout).splitlines()[-8:]),
            hint=f"git push {quoted(remote)} {quoted(branch.removeprefix('refs/heads/'))}",
        )
    return readable(done.stdout)


def _refuse_remote(user: AsUser, git: Git, worktree: str, remote: str) -> None:
    """Refuses a remote on this machine whose hooks or configuration agents decide: git would obey them, unjailed."""
    listed = subprocess.run(
        [*user.words, "remote", "get-url", "--push", "--all", "--", remote],
        env=user.environment, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    judge = _Judge(worktree, (os.path.realpath(git.common_dir),))
    for url in os.fsdecode(listed.stdout).split("\n"):
        if "::" in url and (path := judge.named(url)):  # of a helper (gitremote-helpers(7))
            raise _refused(path, f"the remote {remote} names it")
        local = unquote(url.removeprefix("file://")) if url.startswith("file://") else url
        if not local or ":" in local.partition("/")[0]:
            continue
        local = os.path.join("/", local)
        # Of these git takes the first that is there (enter_repo in git's path.c).
        places = (f"{local}/.git", local, f"{local}.git/.git", f"{local}.git")
        place = next((each for each in places if os.path.lexists(each)), local)
        judge.refuse(place, f"the remote {remote} is a repository there")
        if os.path.isfile(place):
            found = checkout.find(os.path.dirname(place), Present(), exact=True)
            for directory in (found.git_dir, found.common_dir):
                judge.refuse(directory, f"the remote {remote} is a repository there")


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
