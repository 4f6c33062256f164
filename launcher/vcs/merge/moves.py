"""Which refs and worktrees follow when the trunk goes from one commit to another: submodules' first."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from launcher.vcs import way
from launcher.vcs.gitlinks import Gitlink
from launcher.vcs.journal import Move
from launcher.vcs.merge.engine import Engine, inside
from launcher.vcs.merge.place import Place
from launcher.vcs.merge.target import Target, checked_out_at, refuse_when_busy
from policy.errors import Refusal


class Moves(NamedTuple):
    """What is to be moved, innermost first, the main repository last; and what is left for the user to do."""

    moves: tuple[Move, ...]
    notes: tuple[str, ...]


class Follow(NamedTuple):
    """How the files of the target follow.

    Attributes:
        files: those of the worktree (and of submodules in it) are moved.
        jailed: by git in a jail, because an agent wrote them.
        agent: the agent's private git directory, where there is one.
    """

    files: bool
    jailed: bool = False
    agent: str | None = None

    def of(self, *, name: str, target: Target, old: str, new: str) -> Move:
        """The move of one repository, its files with it."""
        root = target.worktree if self.files else None
        agent = Path(self.agent) if self.agent is not None and root is not None else None
        return Move(
            name=name, git_dir=Path(target.git_dir), work_tree=None if root is None else Path(root), ref=target.ref,
            old=old, new=new, jailed=self.jailed and root is not None, agent=agent,
        )  # fmt: skip


FILES = Follow(files=True)
"""A user's own worktree."""


class _Where(NamedTuple):
    """A repository in the tree of submodules: its names, its path, and the way to its store (`engine.inside`)."""

    name: str
    path: str
    modules: str


def moves(engine: Engine, target: Target, new: str, sources: Sequence[Place], follow: Follow) -> Moves:
    """Everything that follows from moving `target` to `new`.

    Args:
        engine: for the repository of the target.
        target: as it is now.
        new: its commit afterwards.
        sources: worktrees that commits of submodules may have to be taken from.
        follow: see `Follow`.

    Raises:
        Refusal: submodule-moved: a submodule that has to follow is checked out somewhere else; trunk-busy.
    """
    found: list[Move] = []
    notes: list[str] = []
    _below(engine, engine.place, _Where("", "", ""), (target.commit, new), tuple(sources), found, notes, follow)
    main = follow.of(name="", target=target, old=target.commit, new=new)
    return Moves((*found, main), tuple(notes))


def _below(
    engine: Engine,
    place: Place,
    at: _Where,
    commits: tuple[str, str],
    sources: tuple[Place, ...],
    found: list[Move],
    notes: list[str],
    follow: Follow,
) -> None:
    store = engine.store(place)
    before, after = (engine.links(store, commit) for commit in commits)
    for key, link in after.items():
        full = f"{at.name}/{key}" if at.name else key
        where = os.path.join(at.path, link.path)
        modules = inside(at.modules, key)
        old = before.get(key)
        if old is None:
            notes.append(f"submodule {full} is new: {way.populate(place.worktree, link.path, where)}")
            continue
        if old.commit == link.commit and old.path == link.path:
            continue
        inner = place.submodule(key, old.path)
        if inner is None:
            continue  # nobody has it here
        if old.path != link.path and inner.worktree is not None:
            notes.append(f"submodule {full} has moved to {where}: {way.populate(place.worktree, link.path, where)}")
        below = Engine.below(sources, link)
        if not engine.fetch(inner, modules, link.commit, below):
            notes.append(f"submodule {full} stays as it is: commit {link.commit[:12]} is in no store of this machine")
            continue
        if not engine.store(inner).has_commit(old.commit):
            notes.append(f"submodule {full} stays as it is: its old commit {old.commit[:12]} is missing")
            continue
        follows = follow.files and inner.worktree is not None and old.path == link.path
        # Where nothing is checked out, the commits are held all the same; there is nothing for the user to do.
        how, said = (follow, notes) if follows else (Follow(files=False), [])
        _below(engine, inner, _Where(full, where, modules), (old.commit, link.commit), below, found, said, how)
        if old.commit != link.commit:
            found.append(_move(inner, full, old, link, how))


def _move(place: Place, name: str, old: Gitlink, new: Gitlink, follow: Follow) -> Move:
    if not follow.files:
        # Only kept from being collected as garbage: what is checked out there is not ours to move.
        return Move(name=name, git_dir=Path(place.common_dir), ref="", old=old.commit, new=new.commit)
    assert place.worktree is not None
    target = checked_out_at(place.git_dir, place.common_dir, place.worktree)
    if target.commit not in (old.commit, new.commit):
        raise Refusal(
            "submodule-moved",
            f"submodule {name} is checked out somewhere else than the trunk records",
            context=f"{place.worktree} is at {target.commit[:12]}, recorded is {old.commit[:12]}, "
            f"and the merge needs to take it to {new.commit[:12]}",
            hint="commit the submodule in the trunk, or take it back: git submodule update",
        )
    refuse_when_busy(target)
    if target.commit == new.commit:
        return Move(name=name, git_dir=Path(place.common_dir), ref="", old=old.commit, new=new.commit)
    return follow.of(name=name, target=target, old=old.commit, new=new.commit)
