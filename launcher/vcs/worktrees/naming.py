"""Names: ids from paths, directories and branches from tickets."""

import hashlib
import os

from policy.errors import Refusal

_LONGEST = 80


def worktree_id(path: str) -> str:
    """A stable id for a worktree: readable, and unique by the hash of its canonical path."""
    name = "".join(char if char.isascii() and char.isalnum() else "-" for char in os.path.basename(path))[:32]
    return f"{name.strip('-') or 'worktree'}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:12]}"


def slug(ticket: str) -> str:
    """A ticket as one name for a directory or a branch: letters, digits, ``.``, ``_`` and ``-``.

    Refusals: ticket-name (nothing is left of it, or it is longer than 80 characters).
    """
    text = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "-" for char in ticket)
    while "--" in text or ".." in text:
        text = text.replace("--", "-").replace("..", ".")
    text = text.strip("-.")
    if text.endswith(".lock"):
        text = text.removesuffix(".lock") + "-lock"  # git-check-ref-format(1)
    if not text or len(text) > _LONGEST:
        raise Refusal(
            "ticket-name",
            f"no name can be made of the ticket {ticket[: _LONGEST + 20]!r}",
            context=f"letters, digits, '.', '_' and '-' are kept, and 1 to {_LONGEST} characters must be left",
            hint="paddock worktree add PROJ-17",
        )
    return text


def sibling(parent: str, common_dir: str, ticket: str) -> str:
    """The directory of a ticket's worktree: beside the parent worktree (FR-006), ``<repository>-<ticket>``.

    Args:
        parent: root of the parent worktree; it may itself be a ticket's.
        common_dir: git directory of the repository, which names it.
        ticket: from `slug`.
    """
    base = os.path.basename(common_dir)
    if base == ".git":
        base = os.path.basename(os.path.dirname(common_dir))
    return os.path.join(os.path.dirname(parent), f"{base.removesuffix('.git') or 'worktree'}-{ticket}")


def staging(path: str) -> str:
    """A name beside `path`, of nobody else, in which it grows or vanishes."""
    return os.path.join(os.path.dirname(path), f".{os.path.basename(path)[:100]}.paddock-{os.urandom(6).hex()}")
