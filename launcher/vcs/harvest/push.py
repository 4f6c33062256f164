"""Pushing a harvested branch, as the user and with his credentials, without anything of the worktree taking part.

It is the user's own git with his own configuration, because only that knows how to log in. So the repository is named
by its trusted git directory, the current directory is `/`, hooks are off (a relative `core.hooksPath` would lead into
the worktree, where the agent writes), and PATH has no entry in it.
"""

import os
import shutil
import subprocess

from policy.errors import Refusal
from policy.plan import SYSTEM_PATH, beneath

PATIENCE = 600.0
"""Seconds. Credential helpers may ask the user."""


def push(git_dir: str, worktree: str, branch: str, remote: str) -> str:
    """Pushes one branch; returns what git said.

    Args:
        git_dir: trusted.
        worktree: nothing in it is executed.
        branch: full name.
        remote: name of a configured remote.

    Raises:
        Refusal: push-remote, push-failed, push-lfs: objects of Git LFS are pushed by a hook of its own.
    """
    git = shutil.which("git", path=SYSTEM_PATH)
    if git is None:
        raise Refusal("git-missing", "git is not installed", context=f"looked in {SYSTEM_PATH}")
    if not remote or remote.startswith("-") or "/" in remote:
        raise Refusal("push-remote", f"{remote!r} is no name of a remote", hint="git remote -v")
    common = subprocess.run(
        [git, f"--git-dir={git_dir}", "rev-parse", "--path-format=absolute", "--git-common-dir"],
        capture_output=True, text=True, check=True, cwd="/",
    ).stdout.strip()  # fmt: skip
    if os.path.isdir(f"{common}/lfs/objects"):
        raise Refusal(
            "push-lfs",
            "this repository uses Git LFS, whose objects only its own hook pushes",
            context="hooks are off when Paddock pushes: they may lead into the worktree",
            hint=f"push it yourself: git push {remote} {branch.removeprefix('refs/heads/')}",
        )
    path = ":".join(
        entry
        for entry in os.environ.get("PATH", os.defpath).split(":")
        if entry.startswith("/") and not beneath(os.path.realpath(entry), worktree)
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = [git, f"--git-dir={git_dir}", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false"]
    command += ["-c", "push.recurseSubmodules=no", "push", "--no-verify", "--porcelain", "--", remote]
    try:
        done = subprocess.run(
            [*command, f"{branch}:{branch}"],
            env=environment | {"PATH": path},
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
            context="\n".join(done.stdout.strip().splitlines()[-8:]),
            hint=f"git push {remote} {branch.removeprefix('refs/heads/')}",
        )
    return done.stdout.strip()
