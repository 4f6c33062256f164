"""Pushing a harvested branch, as the user and with his credentials, without anything of the worktree taking part.

It is the user's own git with his own configuration (`as_user`), because only that knows how to log in.
"""

import os
import subprocess

from launcher.vcs import large
from launcher.vcs.git import Git
from launcher.vcs.harvest import as_user
from policy.errors import Refusal
from policy.pasted import quoted

PATIENCE = 600.0
"""Seconds. Credential helpers may ask the user."""


def push(git_dir: str, worktree: str, branch: str, remote: str) -> str:
    """Pushes one branch; returns what git said, as `readable` has it.

    Args:
        git_dir: trusted.
        worktree: nothing in it is executed.
        branch: full name.
        remote: name of a configured remote.

    Raises:
        Refusal: push-remote, push-failed, push-lfs: objects of Git LFS are pushed by a hook of its own; those of
            `as_user.prepare`.
    """
    if not remote or remote.startswith("-") or "/" in remote:
        raise Refusal("push-remote", f"{remote!r} is no name of a remote", hint="git remote -v")
    git = Git(git_dir)
    user = as_user.prepare(git_dir, git.common_dir, worktree)
    if os.path.isdir(large.store(git)):
        raise Refusal(
            "push-lfs",
            "this repository uses Git LFS, whose objects only its own hook pushes",
            context="hooks are off when Paddock pushes: they may lead into the worktree",
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
        raise Refusal("push-failed", f"git push {remote} did not end in {PATIENCE:.0f} seconds") from None
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
