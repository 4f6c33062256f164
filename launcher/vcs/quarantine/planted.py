"""Repositories that a command has put where an index names a submodule that is not populated.

`git status` around it looks into every submodule that has a `.git`, by a git of its own that obeys the configuration
there: a file system monitor is a command line (git-config(1), core.fsmonitor). A repository that nobody names in an
index is not entered, so such places are few, and known.
"""

import os

from launcher.vcs import checkout
from launcher.vcs.disk import Present
from launcher.vcs.quarantine.pointer import Holder
from policy.errors import Refusal, printable
from policy.plan import beneath

_POINTER = "gitdir: "


def of_place(root: str, place: str, git_dir: str, directory: str) -> str | None:
    """Puts aside what lies at `.git` in one place, unless it leads to a submodule's git directory outside or nowhere.

    Args:
        root: canonical root of the repository around it.
        place: of the submodule.
        git_dir: the trusted git directory of the repository around it.
        directory: of ours, for what is put aside.

    Returns:
        Where it is now; None when there was nothing to do.

    Raises:
        Refusal: submodule-planted.
    """
    if not {"", ".", ".."}.isdisjoint(place[len(root) + 1 :].split("/")):
        return None  # no place that git would look at
    if os.path.realpath(root) != root:
        return None  # a command has put a link in the way of the repository around it, which git follows no more
    try:
        with Holder(root, place) as holder:
            if holder.stat() is None or _leads_to_ours(holder.read(), place, git_dir):
                return None
            return holder.put_aside(directory)
    except (FileNotFoundError, NotADirectoryError):
        return None  # git looks through no link, and into no file
    except OSError as error:
        raise Refusal(
            "submodule-planted",
            f"{place}/.git, which the command has made, cannot be put aside",
            context=f"{error.strerror}; `git status` around it would obey its configuration",
            hint="remove it before any git looks there",
        ) from None


def _leads_to_ours(content: bytes | None, place: str, git_dir: str) -> bool:
    """Whether a pointer is one that `git submodule` writes outside, or leads to nothing that is there."""
    text = "" if content is None else os.fsdecode(content).rstrip("\n")
    if not text.startswith(_POINTER) or "\0" in text:
        return False
    target = os.path.realpath(os.path.join(place, text[len(_POINTER) :]))
    common = checkout.common_dir(git_dir, Present())
    ours = any(beneath(target, f"{os.path.realpath(one)}/modules") for one in (git_dir, common))
    return ours or not os.path.lexists(target)


def told(place: str, aside: str) -> str:
    """What the user should know of it."""
    what = f"{printable(place)}/.git was the command's, where git outside expects a submodule and would obey it"
    return f"{what}; it is at {printable(aside)} now" if aside else f"{what}; it is gone"
