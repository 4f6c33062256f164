"""Commands by which submodules follow a `git merge` in the checkout around them: git leaves them where they were.

What is not brought along is recorded as it was by the next `git commit -a`, and the others' work is gone from there.
"""

from typing import NamedTuple

from launcher.vcs.merge.engine import Engine
from launcher.vcs.merge.place import Place
from policy.pasted import joined, quoted

UPDATE = "git submodule update --merge --recursive"
"""On its branch where it is on one; a plain update would leave a detached HEAD, and later commits on no branch."""


class _Steps(NamedTuple):
    """Commands that bring commits, and then those that merge them, each before the one around it."""

    fetches: list[str]
    merges: list[str]


def commands(engine: Engine, here: Place, mine: str, there: Place, other: str, *, recorded: bool = False) -> list[str]:
    """What comes after ``git merge OTHER`` where `mine` is checked out; nothing where no submodule has to follow.

    Args:
        engine: for the repository.
        here: the worktree that they are for.
        mine: its commit.
        there: where the submodules are as `other` records them.
        other: the commit that is merged.
        recorded: it is merged already, and what the submodules were at is recorded there.

    Raises:
        GitFailed: git failed; Refusal: a submodule's place cannot be trusted.
    """
    found = _below(engine, (here, mine), (there, other), "", recorded=recorded)
    return [*found.fetches, *found.merges, UPDATE] if found is not None else []


def _below(
    engine: Engine, mine: tuple[Place, str], other: tuple[Place, str], prefix: str, *, recorded: bool
) -> _Steps | None:
    """None where nothing has to follow."""
    (here, before), (there, after) = mine, other
    left, right = engine.links(engine.store(here), before), engine.links(engine.store(there), after)
    found: _Steps | None = None
    for name, link in right.items():
        was = left.get(name)
        if was is None or was.commit == link.commit:
            continue
        inner, source = here.submodule(name, was.path), there.submodule(name, link.path)
        if inner is None or inner.worktree is None or source is None:
            continue
        store, beside = engine.store(source), inner.common_dir
        if not store.has_commit(link.commit):
            continue  # nobody has it here
        path = f"{prefix}{was.path}"
        deeper = _below(engine, (inner, was.commit), (source, link.commit), f"{path}/", recorded=recorded)
        ahead = store.leads_to(link.commit, was.commit, beside=beside)
        if ahead and deeper is None:
            continue
        fetches, merges = deeper or _Steps([], [])
        if not ahead:
            fetches = _fetched(engine, path, link.commit, inner, source) + fetches
        if recorded or not store.leads_to(was.commit, link.commit, beside=beside):
            git = f"git -C {quoted(path)}"
            above = f"git -C {quoted(prefix.rstrip('/'))}" if prefix else "git"
            merges = [*([] if ahead else [f"{git} merge {link.commit}"]), *merges,
                      *([f"{git} commit -m 'Merge submodules'"] if merges else []),
                      f"{above} add {quoted(was.path)}"]  # fmt: skip
        # Else the update takes it along.
        old = found or _Steps([], [])
        found = _Steps(old.fetches + fetches, old.merges + merges)
    return found


def _fetched(engine: Engine, path: str, commit: str, here: Place, there: Place) -> list[str]:
    """The command that brings a submodule's commit into a checkout with a store of its own; none where it is there."""
    if engine.store(here).has_commit(commit):
        return []
    return [joined(("git", "-C", path, "fetch", "--no-recurse-submodules", there.common_dir, commit))]
