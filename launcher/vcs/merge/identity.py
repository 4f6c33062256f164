"""Who commits a merge, and when: the same inputs give the same commit, byte for byte."""

import os
import time
from collections.abc import Mapping

from launcher.vcs.git import Git
from policy.errors import Refusal

_FORBIDDEN = str.maketrans("", "", "<>\n\0")


def environment(git: Git, caller: Mapping[str, str], *, seconds: int | None = None) -> dict[str, str]:
    """Author and committer of the merge commits of one run, as variables for `Git.run`.

    The name and address are the repository's `user.name` and `user.email`, else those of the user's own or of the
    system's configuration. `Git` reads none of the latter, so they are asked for here, as files.

    Args:
        git: the repository.
        caller: the caller's environment (HOME, XDG_CONFIG_HOME, TZ).
        seconds: since the epoch; now when None.

    Raises:
        Refusal: identity-unknown.
    """
    name, email = (_setting(git, key, caller) for key in ("user.name", "user.email"))
    if not name or not email:
        raise Refusal(
            "identity-unknown",
            "merge commits need an author, and git does not know you",
            context=f"user.{'email' if name else 'name'} is not set",
            hint='git config --global user.name "Your Name"; git config --global user.email you@example.org',
        )
    when = f"@{int(time.time()) if seconds is None else seconds} {_zone()}"
    found: dict[str, str] = {}
    for role in ("AUTHOR", "COMMITTER"):
        found |= {f"GIT_{role}_NAME": name, f"GIT_{role}_EMAIL": email, f"GIT_{role}_DATE": when}
    return found


def _setting(git: Git, key: str, caller: Mapping[str, str]) -> str:
    sources = [["--local"]]
    home = caller.get("HOME", "")
    if home.startswith("/"):
        config = caller.get("XDG_CONFIG_HOME", "")
        config = config if config.startswith("/") else f"{home}/.config"
        sources += [["--file", f"{home}/.gitconfig"], ["--file", f"{config}/git/config"]]
    sources.append(["--file", "/etc/gitconfig"])
    for source in sources:
        # 1: not set, or no such file
        found = git.run("config", *source, "--includes", "--get", key, ok=(0, 1)).out
        value = os.fsdecode(found).removesuffix("\n").translate(_FORBIDDEN).strip()
        if value:
            return value
    return ""


def _zone() -> str:
    return time.strftime("%z")
