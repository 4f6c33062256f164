"""The way out of harvest-gitlink: the command that puts files in place of a repository that the agent has made."""

import os
from collections.abc import Mapping

from launcher.vcs.git import Git
from launcher.vcs.harvest.parts import Part
from policy.pasted import pathspec, quoted


def command(part: Part, git: Git, where: str, new: str, commits: int, environment: Mapping[str, str]) -> str:
    """What can be pasted as it is: the next session makes the new commits anew, with the files in them.

    The repository is removed outside: in a jail, one that lies there when it starts is read-only. That must not lead
    elsewhere through a link of the agent's, so nothing is offered where there is one.

    All of the new commits become one when there are several, as an earlier one may name the repository, too.

    Args:
        part: whose commits name what nobody has.
        git: on it.
        where: the place that they name, relative to `part.path`.
        new: the newest of them.
        commits: how many they are.
        environment: names the quarantine that they are in.

    Returns:
        The command; "" when what lies there has been exchanged for something else.
    """
    place = os.path.join(part.path, where)
    if os.path.realpath(place) != place or not os.path.isdir(place):
        return ""
    steps = [f"git rm -qf --cached -- {pathspec(where)}", f"git add -- {pathspec(where)}"]
    for name in _sections(git, where, new, environment):
        steps += [f"git config -f .gitmodules --remove-section {quoted(f'submodule.{name}')}"]
        steps += ["git add .gitmodules"]
    if commits > 1 and part.base:
        steps = [f"git reset -q --soft {part.base}", *steps, "git commit -q -C ORIG_HEAD"]
    else:
        steps += ["git commit -q --amend --no-edit"]
    if part.prefix:
        steps.insert(0, f"cd {quoted(part.prefix)}")
    root = part.path.removesuffix(f"/{part.prefix}".rstrip("/"))
    removed = f"rm -rf {quoted(f'{place}/.git')}"
    return f"{removed} && paddock run --worktree {quoted(root)} -- sh -c {quoted(' && '.join(steps))}"


def _sections(git: Git, where: str, commit: str, environment: Mapping[str, str]) -> list[str]:
    """Names of the sections for `where` in the `.gitmodules` of a commit; what git cannot parse has none."""
    words = ("config", "-z", f"--blob={commit}:.gitmodules", "--get-regexp", r"^submodule\..*\.path$")
    ended = git.run(*words, ok=(0, 1, 3, 128), environment=environment)
    entries = (entry.partition("\n") for entry in os.fsdecode(ended.out).split("\0"))
    return [key.removeprefix("submodule.").removesuffix(".path") for key, _, path in entries if path == where]
