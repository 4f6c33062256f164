"""Which worktree a word of the user's means: the one of that name, or the one that is there.

Agents choose what is in a checkout, and what they have committed comes to others with a merge. So no link in a
checkout, or in another tree that sessions wrote, decides which worktree is merged, or removed.
"""

import os
from collections.abc import Callable
from typing import TypeVar

from launcher.vcs import written
from launcher.vcs.disk import Names
from policy.errors import Refusal, printable
from policy.launch import Trail
from policy.pasted import quoted
from policy.plan import beneath

_Worktree = TypeVar("_Worktree")


def is_path(word: str) -> bool:
    """Whether a word can only be a path; any other is a name first."""
    return word in (".", "..", "~") or word.startswith(("/", "./", "../", "~/"))


def meant(
    word: str,
    start: str,
    is_root: Callable[[str], bool],
    at: Callable[[str], _Worktree],
    named: Callable[[], _Worktree | None] = lambda: None,
) -> _Worktree | None:
    """The worktree that a word means; None when it means none.

    Args:
        start: the directory that relative paths begin at.
        is_root: whether a canonical path is one that may be meant.
        at: the worktree with this root.
        named: the one that has the word for its name.

    Refusals: worktree-behind-link, worktree-ambiguous, and those of `at` and `named`.
    """
    by_name = None if is_path(word) else named()
    root, trail = _walked(os.path.join(start, os.path.expanduser(word)))
    if not is_root(root):
        return by_name
    refuse_link(word, trail, root)
    there = at(root)
    if by_name not in (None, there):
        raise Refusal(
            "worktree-ambiguous",
            f"{word} is the name of one worktree or branch, and the directory of another",
            context=f"{root} is a worktree's root, and not that of what is named {printable(word)}",
            hint=f"name the one that you mean by its path: {quoted(root)}; paddock worktree list",
        )
    return there


def directory(word: str, start: str) -> str:
    """The directory, or file, that a word of the user's leads to; where nothing is there, the path as he means it.

    Args:
        start: the directory that relative paths begin at.

    Refusals: worktree-behind-link.
    """
    path = os.path.join(start, os.path.expanduser(word))
    root, trail = _walked(path)
    refuse_link(word, trail, root)
    return root if trail.canonical or not trail.links else path


def refuse_link(word: str, trail: Trail, root: str) -> None:
    """Refuses a way on which there is a link that may be an agent's.

    Args:
        word: of the user's.
        trail: the way that it stands for.
        root: where that ends.

    Refusals: worktree-behind-link.
    """
    if link := _agents_among(trail):
        raise Refusal(
            "worktree-behind-link",
            f"{word} is reached through a symbolic link, which an agent may have made",
            context=f"through {link} it resolves to {root}",
            hint=f"if you mean that: name it as {quoted(root)}; else remove the link",
        )


def canonical(root: str) -> str:
    """Where a worktree is that is on record, canonical; as it is written where an agent may have bent the way there."""
    reached, trail = _walked(root)
    return root if _agents_among(trail) else reached


def is_agents(link: str) -> bool:
    """Whether a link may be an agent's: one in a checkout, or in another tree that sessions wrote.

    Args:
        link: canonical but for its last component.
    """
    state, here = written.user_state(), os.path.dirname(link)
    if written.of_sessions(link, state) or any(beneath(link, tree) for tree in written.trees(state, link)):
        return True
    while here != "/" and not os.path.lexists(f"{here}/.git"):
        here = os.path.dirname(here)
    return here != "/"


def _walked(path: str) -> tuple[str, Trail]:
    trail = Names().walk(path)
    return trail.canonical or (trail.reached if trail.links else os.path.abspath(path)), trail


def _agents_among(trail: Trail) -> str:
    """The first link on a way that may be an agent's; "" for none."""
    return next((link for link, _ in trail.links if is_agents(link)), "")
