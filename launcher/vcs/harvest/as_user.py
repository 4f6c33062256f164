"""The user's own git, with his own configuration: for what only that can do, which is to log in and to sign.

Nothing of the worktree may take part. The repository is named by its trusted git directory, the current directory is
`/`, hooks are off (a relative `core.hooksPath` would lead into the worktree), PATH has no entry in it, and neither may
a file of the configuration, or a programme that it names, lie where the agent writes.
"""

import os
import shlex
import subprocess
from typing import NamedTuple

from launcher.vcs import disk, git_config
from launcher.vcs.git import Git, executable
from launcher.vcs.harvest import lfs
from policy.errors import Refusal
from policy.pasted import quoted
from policy.plan import beneath

_NAMING = (
    *("gpg.program", "gpg.openpgp.program", "gpg.x509.program", "gpg.ssh.program", "gpg.ssh.defaultkeycommand"),
    "user.signingkey",
)
"""Keys that may name a programme or a file to sign with."""

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


def prepare(git_dir: str, common_dir: str, worktree: str) -> AsUser:
    """The user's git on a trusted repository.

    Args:
        common_dir: trusted; may lie in the worktree (`.git` of a main checkout), where the jail covers it.
        worktree: where the agent writes.

    Refusals: git-missing, git-config-unreadable, git-config-in-worktree.
    """

    def agents(path: str) -> bool:
        real = os.path.realpath(path)
        trusted = beneath(real, common_dir) or beneath(real, git_dir)
        return not trusted and disk.in_hands_of(worktree, path)

    path = ":".join(
        entry for entry in os.environ.get("PATH", os.defpath).split(":") if entry.startswith("/") and not agents(entry)
    )
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("GIT_") and name not in _TEMPORARY
    } | {"PATH": path}
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
        if origin.startswith("file:") and agents(os.path.join("/", origin.removeprefix("file:"))):
            raise _in_worktree(origin.removeprefix("file:"), "git would obey that file of its configuration")
        key, _, value = entry.partition("\n")
        settings[key] = value
        if key.startswith(("include.", "includeif.")) and key.endswith(".path"):
            # Also what is not there, or not in force: another session may make it before git looks again.
            base = os.path.dirname(os.path.join("/", origin.removeprefix("file:")))
            if agents(place := git_config.expanded(value, os.path.expanduser("~"), base)):
                raise _in_worktree(place, "git would obey that file of its configuration")
    for key in _NAMING:
        for word in _words(settings.get(key, "")):
            if agents(os.path.join("/", os.path.expanduser(word))):
                raise _in_worktree(word, f"{key} names it")
    return AsUser(words, environment, settings)


def _words(value: str) -> list[str]:
    try:
        return [value, *shlex.split(value)] if value else []
    except ValueError:
        return [value]


def _in_worktree(path: str, why: str) -> Refusal:
    return Refusal(
        "git-config-in-worktree",
        f"git is not run with your own configuration, because {path} is where the agent writes",
        context=why,
        hint="read that file and do it yourself, or move it out of the worktree",
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
    `as_user.prepare`.
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
