"""What people name to be merged, as commits: branches, worktrees, any revision."""

import os
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from launcher.vcs import worktree_words
from launcher.vcs.git import Git
from launcher.vcs.merge.descriptors import Source
from launcher.vcs.merge.object_store import Store, changes
from launcher.vcs.merge.target import Listed, Place, Target, worktrees
from policy.errors import Refusal
from policy.pasted import joined


class Order(StrEnum):
    """In which order children are merged."""

    GIVEN = "given"
    NAME = "name"
    AGE = "age"  # the one whose last commit is oldest first
    SIZE = "size"  # the one that changes fewest files first


def named(
    target: Target, words: Sequence[str], start: str, root_of: Callable[[str], str | None] = lambda word: None
) -> list[Source]:
    """The sources that `words` stand for, in this order.

    Args:
        words: names of worktrees or branches, roots of worktrees, or other revisions.
        start: the directory that relative paths begin at.
        root_of: the root of the worktree that has a name other than its branch's (a ticket); None for no worktree.

    Refusals: child-unknown, child-ambiguous, ref-ambiguous, child-is-trunk, child-twice, and those of
    `worktree_words.meant`.
    """
    git = Git(target.git_dir)
    known = _Known(git, worktrees(git), git.refs() if len(words) > 1 else None)
    found: list[Source] = []
    for word in words:
        source = _one(known, word, start, root_of)
        root = source.place.worktree if source.place is not None else None
        if target.ref == f"refs/heads/{source.label}" or (root is not None and root == target.worktree):
            raise Refusal(
                "child-is-trunk",
                f"{source.label} cannot be merged into itself",
                hint="name the trunk with --into, or leave it out of the children",
            )
        for other in found:
            if source.place is not None and source.place == other.place:
                raise Refusal(
                    "child-twice",
                    f"{word} is the same worktree as {other.label}",
                    context=f"both are in {root}",
                    hint="name each child once",
                )
            if source.label == other.label and source.place is None:
                raise Refusal("child-twice", f"{word} is listed twice", hint="name each child once")
            if source.label == other.label:
                source = source._replace(label=root or word)  # detached, in directories of the same name
        found.append(source)
    return found


def all_of(target: Target) -> list[Source]:
    """The branches of all linked worktrees but the trunk's own, by name.

    Refusals: child-unknown: there are none.
    """
    git = Git(target.git_dir)
    found = [
        Source(label, each.commit, _place(each))
        for each in worktrees(git)
        if each.branch
        and each.branch != target.ref
        and os.path.realpath(each.root) != os.path.dirname(target.common_dir)
        for label in (each.branch.removeprefix("refs/heads/"),)
    ]
    if not found:
        raise Refusal(
            "child-unknown",
            "there is no worktree to merge from",
            context=f"{target.common_dir} has no linked worktree on a branch of its own",
            hint="make one: paddock worktree add; or name branches: paddock merge BRANCH...",
        )
    return sorted(found, key=lambda source: source.label)


def ordered(sources: Sequence[Source], order: Order, target: Target) -> list[Source]:
    """The same sources in another order; equal ones stay as they are."""
    if order is Order.NAME:
        return sorted(sources, key=lambda source: source.label)
    if order is Order.AGE:
        git = Git(target.git_dir)
        commits = list(dict.fromkeys(source.commit for source in sources))  # git tells of each once
        times = git.text("show", "--no-patch", "--no-notes", "--format=%ct", *commits).split() if commits else []
        ages = dict(zip(commits, map(int, times), strict=True))
        return sorted(sources, key=lambda source: ages[source.commit])
    if order is Order.SIZE:
        with Store(target.common_dir, {}) as store:
            bases = [(store.bases(target.commit, source.commit) or [target.commit])[0] for source in sources]
            sizes = [changes(store, base, [s.commit])[0].paths for base, s in zip(bases, sources, strict=True)]
        return [source for _, source in sorted(zip(sizes, sources, strict=True), key=lambda pair: pair[0])]
    return list(sources)


class _Known(NamedTuple):
    """What is asked of git once: worktrees, and all refs where there are several words to look up."""

    git: Git
    listed: Sequence[Listed]
    refs: Mapping[str, str] | None


def _one(known: _Known, word: str, start: str, root_of: Callable[[str], str | None]) -> Source:
    roots = {worktree_words.canonical(each.root): each for each in known.listed}
    found = worktree_words.meant(
        word, start, roots.__contains__, lambda root: _of(roots[root]), lambda: _named(known, word, root_of)
    )
    if found is not None:
        return found
    raise Refusal(
        "child-unknown",
        f"nothing called {word} to merge",
        context="it is not a branch, a ticket, the root of a worktree of this repository, or any other revision",
        hint="git branch --list; git worktree list; paddock worktree list",
    )


def _named(known: _Known, word: str, root_of: Callable[[str], str | None]) -> Source | None:
    """What has a name, or is another revision; None when nothing is."""
    git, listed, refs = known
    full = git.ref_named(word, refs)
    root = root_of(word) if full != word else None
    ticket = next((_of(each) for each in listed if root in (each.root, worktree_words.canonical(each.root))), None)
    branch = full.startswith("refs/heads/")
    commit = (refs or {}).get(full, "") if branch else ""
    commit = commit or (git.commit_of(full) if full else "")
    if ticket is not None and branch and commit not in ("", ticket.commit):
        raise Refusal(
            "child-ambiguous",
            f"{word} is a worktree and another branch",
            context=f"{root} is on {ticket.label}; the branch may be one that another agent made",
            hint=f"{joined(('paddock', 'merge', str(root)))} or {joined(('paddock', 'merge', full))}",
        )
    if ticket is not None:
        return ticket
    commit = commit or git.commit_of(word)  # a revision: 1234 is rather a ticket than an object
    if not commit:
        return None
    place = next((_place(each) for each in listed if branch and each.branch == full), None)
    return Source(word.removeprefix("refs/heads/"), commit, place)


def _of(listed: Listed) -> Source:
    """What is checked out in a worktree."""
    label = listed.branch.removeprefix("refs/heads/") or os.path.basename(listed.root)
    return Source(label, listed.commit, _place(listed))


def _place(listed: Listed) -> Place | None:
    """Where a child's submodules are; None where that cannot be trusted or is gone: its commits are enough then."""
    if not listed.present:
        return None
    try:
        place = Place.of(listed.root)
    except Refusal:
        return None
    return place if place.worktree == worktree_words.canonical(listed.root) else None
